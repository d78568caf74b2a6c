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
        let started =
            unsafe { clone(child, &mut stack, CloneFlags::CLONE_VM | CloneFlags::CLONE_VFORK, Some(libc::SIGCHLD)) };
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
        let turned = || -> Result<(), Errno> {
            unsafe {
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
            }
        };
        turned().err().unwrap_or(Errno::UnknownErrno)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::wait::WaitStatus;
    use std::io::Read;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::PermissionsExt;

    /// Runs a program to its end; gives its status and what it wrote.
    fn ran(path: &str, words: &[&str], variables: &[(&str, &str)]) -> io::Result<(WaitStatus, String)> {
        let (mut out, theirs) = io::pipe()?;
        let nothing = std::fs::File::open("/dev/null")?;
        let image = Image {
            path: &text(path)?,
            argv: &[&[path], words].concat().into_iter().map(text).collect::<io::Result<Vec<_>>>()?,
            env: &environment(variables.iter().copied())?,
            wdir: c"/",
            standard: [nothing.as_raw_fd(), theirs.as_raw_fd(), theirs.as_raw_fd()],
            inherited: &[],
            guise: None,
            files: Some((77, 77)),
        };
        let pid = image.start()?;
        drop(theirs);
        let mut said = String::new();
        out.read_to_string(&mut said)?;
        Ok((waitpid(pid, None)?, said))
    }

    #[test]
    fn a_program_has_a_session_and_what_it_was_given() {
        let script = "read -r pid name state parent group session rest < /proc/self/stat
                      [ $pid = $group ] && [ $pid = $session ] && echo \"$PWD $A $B $# $(ulimit -n)\"
                      exit 7";
        let variables = [("A", "old"), ("B", "two words"), ("A", "new"), ("PWD", "/")];
        let (status, said) = ran("/bin/sh", &["-c", script, "name", "x"], &variables).unwrap();
        assert!(matches!(status, WaitStatus::Exited(_, 7)), "{status:?} {said}");
        assert_eq!(said, "/ new two words 1 77\n");
    }

    /// Neither what we ignore nor what we do not want to hear for a moment stays with it.
    #[test]
    fn signals_are_as_usual() {
        let (_, said) = ran("/bin/cat", &["/proc/self/status"], &[]).unwrap();
        let mask = |name: &str| {
            let line = said.lines().find_map(|line| line.strip_prefix(name)).expect("a line");
            u64::from_str_radix(line.trim(), 16).expect("a mask")
        };
        assert_eq!(mask("SigBlk:"), 0);
        assert_eq!(mask("SigIgn:") >> (libc::SIGPIPE - 1) & 1, 0);
        let ours = SigSet::thread_get_mask().unwrap();
        assert!(!ours.contains(nix::sys::signal::Signal::SIGTERM), "ours are as they were");
    }

    #[test]
    fn a_script_that_does_not_say_what_runs_it_is_the_shells() {
        let path = std::env::temp_dir().join(format!("phalanx-exec-{}", std::process::id()));
        std::fs::write(&path, "echo script $1\n").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let ended = ran(path.to_str().unwrap(), &["word"], &[]).unwrap();
        assert_eq!(ended.1, "script word\n");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let why = ran(path.to_str().unwrap(), &[], &[]).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(why.raw_os_error(), Some(libc::EACCES));
    }

    #[test]
    fn what_cannot_be_started_is_told() {
        assert_eq!(ran("/no/such/program", &[], &[]).unwrap_err().raw_os_error(), Some(libc::ENOENT));
        let kind = |result: io::Result<(WaitStatus, String)>| result.unwrap_err().kind();
        assert_eq!(kind(ran("/bin/true", &["a\0b"], &[])), io::ErrorKind::InvalidInput);
        assert_eq!(kind(ran("/bin/true", &[], &[("A", "a\0b")])), io::ErrorKind::InvalidInput);
    }
}
