//! The page that a rank shares with its shepherd, and waiting for the words of many: all that needs `unsafe` in a death notice, because the
//! system has no other way to share memory and to wait for it.
//!
//! The shepherd makes the page, maps it to read only and seals its length, so nothing that a rank does with it can make a read fault: it is
//! a number that may be wrong, and no more.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::libc;
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::stat::fstat;
use nix::time::{ClockId, clock_gettime};
use nix::unistd::ftruncate;
use phalanx_api::notice::{LENGTH, place};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::{NonNull, null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Words that can be waited for at once.
pub(super) const WORDS: usize = libc::FUTEX_WAITV_MAX as usize;

/// A page, mapped to be read.
#[derive(Debug)]
pub struct Page(NonNull<AtomicU32>);

// SAFETY: the mapping belongs to nobody but this value, and what is in it is read as an atomic.
#[allow(unsafe_code)]
unsafe impl Send for Page {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for Page {}

impl Page {
    /// A new page, and its file for the rank.
    ///
    /// # Errors
    /// What the system said.
    pub fn new() -> io::Result<(Self, OwnedFd)> {
        let file = memfd_create("phalanx-notice", MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
        ftruncate(&file, LENGTH as libc::off_t)?;
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals))?;
        // SAFETY: a new mapping, at a place of the kernel's choice, of a file that is as long and stays so.
        #[allow(unsafe_code)]
        let at = unsafe { libc::mmap(null_mut(), LENGTH, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        let at = if at == libc::MAP_FAILED { None } else { NonNull::new(at.cast()) };
        let page = Self(at.ok_or_else(io::Error::last_os_error)?);
        Ok((page, file))
    }

    /// The word, as the rank or the kernel left it.
    #[must_use]
    pub fn word(&self) -> u32 {
        // SAFETY: the mapping is readable and aligned until this value drops, and nobody here writes to it.
        #[allow(unsafe_code)]
        let word = unsafe { self.0.as_ref() };
        word.load(Ordering::Acquire)
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped in `new`, with this length, and nobody has a reference any more.
        #[allow(unsafe_code)]
        unsafe {
            libc::munmap(self.0.as_ptr().cast(), LENGTH);
        }
    }
}

/// What a rank's environment says of its file, while it is open.
///
/// # Errors
/// What the system said.
pub fn placed(file: &OwnedFd) -> io::Result<String> {
    Ok(place(file.as_raw_fd(), fstat(file)?.st_ino))
}

/// A word of our own, which ends a wait.
#[derive(Debug, Default)]
pub(super) struct Bell(AtomicU32);

impl Bell {
    pub(super) fn rings(&self) -> u32 {
        self.0.load(Ordering::Acquire)
    }

    pub(super) fn ring(&self) {
        self.0.fetch_add(1, Ordering::Release);
        let wake = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
        // SAFETY: the word lives as long as `self`; the call does not write to it.
        #[allow(unsafe_code)]
        unsafe {
            libc::syscall(libc::SYS_futex, self.0.as_ptr(), wake, 1);
        }
    }
}

/// `struct futex_waitv` of the kernel.
#[repr(C)]
struct Waiter {
    value: u64,
    address: u64,
    flags: u32,
    reserved: u32,
}

/// Waits until the bell has rung more than `rings` times, a page's word is another than the one beside it, or the time is over; and now and
/// then for no reason.
pub(super) fn wait<'p>(
    (bell, rings): (&Bell, u32),
    pages: impl Iterator<Item = (&'p Page, u32)>,
    patience: Option<Duration>,
) -> Result<(), Errno> {
    let waiter = |address: *const AtomicU32, value: u32, private: libc::c_int| Waiter {
        value: u64::from(value),
        address: address as u64,
        flags: (libc::FUTEX2_SIZE_U32 | private).cast_unsigned(),
        reserved: 0,
    };
    let mut waiters = vec![waiter(&raw const bell.0, rings, libc::FUTEX2_PRIVATE)];
    waiters.extend(pages.map(|(page, word)| waiter(page.0.as_ptr(), word, 0)));
    let until = match patience {
        Some(patience) => {
            let now = Duration::from(clock_gettime(ClockId::CLOCK_MONOTONIC)?);
            let until = now + patience;
            Some(libc::timespec { tv_sec: until.as_secs() as _, tv_nsec: until.subsec_nanos().into() })
        }
        None => None,
    };
    let until = until.as_ref().map_or(null(), |u| &raw const *u);
    // SAFETY: the kernel reads the list, the time and the words, which all outlive the call: the caller holds bell and pages.
    #[allow(unsafe_code)]
    let woken = unsafe {
        libc::syscall(libc::SYS_futex_waitv, waiters.as_ptr(), waiters.len(), 0, until, libc::CLOCK_MONOTONIC)
    };
    match Errno::result(woken) {
        Ok(_) | Err(Errno::EAGAIN | Errno::EINTR | Errno::ETIMEDOUT) => Ok(()),
        Err(why) => Err(why),
    }
}

/// Whether the kernel can wait for many words: since 5.16, where nothing forbids it.
pub(super) fn can_wait() -> bool {
    // SAFETY: a list of nothing is refused before anything is read.
    #[allow(unsafe_code)]
    let refused = unsafe { libc::syscall(libc::SYS_futex_waitv, null::<Waiter>(), 0, 0, null::<libc::timespec>(), 0) };
    Errno::result(refused) == Err(Errno::EINVAL)
}
