//! The death notice: this process holds a word that it shares with its shepherd, and the kernel lets go of it when the process begins to
//! end, before it frees its memory. So the other ranks know within a millisecond, however large this one was.
//!
//! A thread holds the word, and does nothing else: the kernel lets go of a robust futex when the thread ends that holds it. Tasks of
//! `phalanx run` do this by themselves. Where it cannot be done the death is known later, when the process is gone. The file of the page
//! stays open: a program that this process becomes may hold the word in its turn.
//!
//! The thread has its own list of robust futexes in the place of the C library's, so the page holds a number and nothing that the kernel
//! would follow; mutexes of the program are on the lists of its other threads. `unsafe`: there is no other way to share memory, and to
//! tell the kernel of a list.

use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::libc;
use nix::sys::signal::SigSet;
use nix::sys::stat::fstat;
use nix::unistd::gettid;
use phalanx_api::notice::{HOLDER, LENGTH, VARIABLE, WAITERS, placed};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// The thread needs next to nothing.
const STACK: usize = 64 << 10;

/// `struct robust_list` and `struct robust_list_head` of the kernel: a list of one, which ends where it begins.
#[repr(C)]
struct Head {
    first: *mut Entry,
    /// From an entry to its word.
    offset: isize,
    pending: *mut Entry,
}

#[repr(C)]
struct Entry {
    next: *mut Head,
}

/// Holds the word from now on, if there is one and nobody holds it yet. True when this process has held it at any time; a process that was
/// forked from it does not hold it, and says so too.
pub fn hold() -> bool {
    static HELD: OnceLock<bool> = OnceLock::new();
    *HELD.get_or_init(|| page().is_some_and(hold_in_a_thread))
}

/// The page that the shepherd made, when the environment speaks of it and it is there.
fn page() -> Option<&'static AtomicU32> {
    let (file, inode) = placed(&std::env::var(VARIABLE).ok()?)?;
    // SAFETY: looked at only, for the length of this function; one that is closed is refused by the system.
    #[allow(unsafe_code)]
    let file = unsafe { BorrowedFd::borrow_raw(file) };
    let sealed = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
    let is_ours = fstat(file).is_ok_and(|s| s.st_ino == inode && s.st_size == LENGTH as i64)
        && fcntl(file, FcntlArg::F_GET_SEALS) == Ok(sealed.bits());
    if !is_ours {
        return None;
    }
    let how = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping, at a place of the kernel's choice, of a file that is as long and stays so.
    #[allow(unsafe_code)]
    let at = unsafe { libc::mmap(null_mut(), LENGTH, how, libc::MAP_SHARED, file.as_raw_fd(), 0) };
    if at == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the mapping is ours. A process that is forked from this one does not get it: it has nothing to say there.
    #[allow(unsafe_code)]
    unsafe {
        libc::madvise(at, LENGTH, libc::MADV_DONTFORK);
    }
    // SAFETY: aligned, and never unmapped; others write to it, too, and it is an atomic.
    #[allow(unsafe_code)]
    Some(unsafe { &*at.cast::<AtomicU32>() })
}

fn hold_in_a_thread(word: &'static AtomicU32) -> bool {
    let (tell, told) = std::sync::mpsc::channel();
    let holds = move || {
        // Signals are for other threads.
        let _ = SigSet::all().thread_block();
        let is_held = enlist(word) && take(word);
        let _ = tell.send(is_held);
        if is_held {
            loop {
                std::thread::park();
            }
        }
    };
    let thread = std::thread::Builder::new().name("notice".into()).stack_size(STACK).spawn(holds);
    thread.is_ok() && told.recv().unwrap_or(false)
}

/// Tells the kernel that this thread may hold the word.
fn enlist(word: &'static AtomicU32) -> bool {
    let entry = Box::into_raw(Box::new(Entry { next: null_mut() }));
    let offset = (word.as_ptr() as isize).wrapping_sub(entry as isize);
    let head = Box::into_raw(Box::new(Head { first: entry, offset, pending: null_mut() }));
    // SAFETY: both were made here and are never freed, for the kernel reads them when the thread ends; nobody else knows them.
    #[allow(unsafe_code)]
    unsafe {
        (*entry).next = head;
        libc::syscall(libc::SYS_set_robust_list, head, size_of::<Head>()) == 0
    }
}

/// Takes the word, unless somebody who lives holds it: another program that the rank has started, or that has started this one.
fn take(word: &AtomicU32) -> bool {
    let me = gettid().as_raw().cast_unsigned() & HOLDER | WAITERS;
    word.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |held| (held & HOLDER == 0).then_some(me)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_api::notice::OWNER_DIED;
    use std::time::{Duration, Instant};

    /// The kernel lets go of a word when the thread ends that holds it, and the next one may take it.
    #[test]
    fn a_word_is_let_go_by_the_kernel() {
        let word: &'static AtomicU32 = Box::leak(Box::new(AtomicU32::new(0)));
        for _ in 0..2 {
            let held = std::thread::spawn(move || {
                assert!(enlist(word) && take(word));
                assert!(!take(word), "it is held");
                let held = word.load(Ordering::Acquire);
                (held & WAITERS, held & HOLDER) == (WAITERS, gettid().as_raw().cast_unsigned())
            });
            assert!(held.join().expect("it ends"));
            // A thread can be joined just before the kernel walks its list.
            let began = Instant::now();
            while word.load(Ordering::Acquire) & OWNER_DIED == 0 {
                assert!(began.elapsed() < Duration::from_secs(10), "{:x}", word.load(Ordering::Acquire));
                std::thread::yield_now();
            }
            assert_eq!(word.load(Ordering::Acquire) & HOLDER, 0);
        }
    }

    #[test]
    fn a_program_that_was_started_otherwise_holds_nothing() {
        assert!(!hold());
    }
}
