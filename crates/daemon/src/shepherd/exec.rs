//! From a program to a process, without a copy of the shepherd in between.
//!
//! A child that is forked gets a copy of its parent's page tables, and both pay for each page that one of them touches then. A rank needs none
//! of it: it shares our memory, and we stand still, until it is another program (`CLONE_VM`, `CLONE_VFORK`). What it does before that are
//! system calls only, on memory that was made ready here. The standard library does the same for children that want nothing special; ours want
//! a session, another user, limits, files, and to die with us.

use nix::errno::Errno;
use nix::libc::{self, c_char, c_int};
use nix::sched::{CloneFlags, clone};
use nix::sys::resource::rlim_t;
use nix::sys::signal::{SigSet, SigmaskHow, sigprocmask};
use nix::sys::wait::waitpid;
use nix::unistd::{Gid, Pid, Uid};
use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

/// What a child has for its system calls.
const STACK: usize = 64 << 10;
/// What runs a script that does not say what runs it, as `execvp` has it.
const SHELL: &CStr = c"/bin/sh";

/// All that a process needs; its files are open here until it was started, above the three that it calls standard.
pub(super) struct Image<'a> {
    pub(super) path: &'a CStr,
    /// Its name first.
    pub(super) argv: &'a [CString],
    pub(super) env: &'a [CString],
    pub(super) wdir: &'a CStr,
    /// Standard input, output and error.
    pub(super) standard: [RawFd; 3],
    /// Files that it inherits under the numbers that they have.
    pub(super) inherited: &'a [RawFd],
    /// As whom it runs, when that is somebody else.
    pub(super) guise: Option<(Uid, Gid, &'a [Gid])>,
    /// How many files it may open.
    pub(super) files: Option<(rlim_t, rlim_t)>,
}

/// Variables as a program is given them; of each the last one counts.
///
/// # Errors
/// One of them cannot be given.
pub(super) fn environment<'v>(variables: impl Iterator<Item = (&'v str, &'v str)>) -> io::Result<Vec<CString>> {
    let variables: BTreeMap<&str, &str> = variables.collect();
    variables.into_iter().map(|(name, value)| text(&format!("{name}={value}"))).collect()
}

/// A text as the system wants it.
///
/// # Errors
/// It has an end in it.
pub(super) fn text(text: &str) -> io::Result<CString> {
    CString::new(text).map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))
}

fn pointers<'c>(texts: impl Iterator<Item = &'c CStr>) -> Vec<*const c_char> {
    texts.map(CStr::as_ptr).chain([ptr::null()]).collect()
}

impl Image<'_> {
    /// Starts it.
    ///
    /// # Errors
    /// What the system said; no process is left.
    pub(super) fn start(&self) -> io::Result<Pid> {
        let argv = pointers(self.argv.iter().map(CString::as_c_str));
        let script = [SHELL, self.path].into_iter().chain(self.argv.iter().skip(1).map(CString::as_c_str));
        let (script, env) = (pointers(script), pointers(self.env.iter().map(CString::as_c_str)));
        let (error, shepherd) = (AtomicI32::new(0), Pid::this().as_raw());
        let mut stack = vec![0; STACK];
        let child = Box::new(|| {
            error.store(self.turn(shepherd, &argv, &script, &env) as i32, Ordering::Relaxed);
            127
        });
        // A handler of ours that ran in the child would run on our memory.
        let mut before = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))?;
        // SAFETY: we stand still until the child has left our memory, so nothing is seen by two. It makes system calls only: it allocates
        // nothing, takes no lock, and calls nothing that knows of our other threads.
        #[allow(unsafe_code)]
        let started = unsafe { clone(child, &mut stack, CloneFlags::CLONE_VM | CloneFlags::CLONE_VFORK, Some(libc::SIGCHLD)) };
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
        let pid = started?;
        match error.load(Ordering::Relaxed) {
            0 => Ok(pid),
            why => {
                let _ = waitpid(pid, None);
                Err(io::Error::from_raw_os_error(why))
            }
        }
    }

    /// In the child: becomes the program. Why not, when it comes back.
    fn turn(&self, shepherd: c_int, argv: &[*const c_char], script: &[*const c_char], env: &[*const c_char]) -> Errno {
        let done = |result: libc::c_long| if result < 0 { Err(Errno::last()) } else { Ok(()) };
        // SAFETY: all pointers are to what the parent has made and keeps. Users and groups are changed by the system's own calls: those of the
        // C library would change our other threads, too.
        #[allow(unsafe_code)]
        let turned = || -> Result<(), Errno> { unsafe {
            for (number, &file) in self.standard.iter().enumerate() {
                done(libc::dup2(file, number as c_int).into())?;
            }
            // A session, and so a group, of its own: what is typed at a terminal of ours is not meant for it, and where the system shares
            // processors between sessions it has a share like a rank that any other launcher starts.
            done(libc::setsid().into())?;
            if let Some((user, group, groups)) = self.guise {
                done(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()))?;
                done(libc::syscall(libc::SYS_setgid, group.as_raw()))?;
                done(libc::syscall(libc::SYS_setuid, user.as_raw()))?;
            }
            if let Some((rlim_cur, rlim_max)) = self.files {
                done(libc::setrlimit(libc::RLIMIT_NOFILE, &libc::rlimit { rlim_cur, rlim_max }).into())?;
            }
            done(libc::chdir(self.wdir.as_ptr()).into())?;
            // Another user forgets it, so this comes after.
            done(libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL).into())?;
            // We may have died before that.
            if libc::getppid() != shepherd {
                return Err(Errno::ESRCH);
            }
            for &file in self.inherited {
                done(libc::fcntl(file, libc::F_SETFD, 0).into())?;
            }
            // We ignore it, and whoever is not told otherwise would, too.
            let mut usual: libc::sigaction = std::mem::zeroed();
            usual.sa_sigaction = libc::SIG_DFL;
            done(libc::sigaction(libc::SIGPIPE, &usual, ptr::null_mut()).into())?;
            let mut none: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut none);
            done(libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut()).into())?;
            libc::execve(self.path.as_ptr(), argv.as_ptr(), env.as_ptr());
            if Errno::last() == Errno::ENOEXEC {
                libc::execve(SHELL.as_ptr(), script.as_ptr(), env.as_ptr());
            }
            Err(Errno::last())
        }};
        turned().err().unwrap_or(Errno::UnknownErrno)
    }
}
