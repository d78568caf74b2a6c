//! Child processes of an experiment: started from this executable, heard line by line, ended by id.
//!
//! Both ends of a measured channel are children, and the parent only waits: a lost datagram then ends in a timeout of
//! one trial instead of a run that hangs. A child is ended when its handle drops, so also when the run fails, and asks
//! the kernel to end it should its parent be killed.

use crate::error::Error;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

/// A running child.
pub(crate) struct Child {
    role: String,
    process: std::process::Child,
    lines: Receiver<String>,
}

impl Child {
    /// Starts `phalanx-lab child ROLE ARGS…`.
    pub(crate) fn start(role: &str, args: &[String]) -> Result<Self, Error> {
        Self::start_in(role, args, &[])
    }

    /// The same, with these variables in its environment.
    pub(crate) fn start_in(role: &str, args: &[String], variables: &[(&str, &str)]) -> Result<Self, Error> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("child").arg(role).args(args).envs(variables.iter().copied());
        command.stdin(Stdio::null());
        Self::spawn(role, command)
    }

    /// The same, for one that is told more while it runs, by [`Child::tell`].
    pub(crate) fn start_told(role: &str, args: &[String]) -> Result<Self, Error> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("child").arg(role).args(args).stdin(Stdio::piped());
        Self::spawn(role, command)
    }

    fn spawn(role: &str, mut command: Command) -> Result<Self, Error> {
        let mut process = command.stdout(Stdio::piped()).spawn()?;
        let stdout = process.stdout.take().expect("it was asked for");
        let (tell, lines) = channel();
        // A thread for each child, because a pipe has no read with a timeout; it ends with the child.
        thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    break;
                }
            }
        });
        Ok(Self { role: role.into(), process, lines })
    }

    /// A line to a child that listens.
    pub(crate) fn tell(&mut self, line: &str) -> Result<(), Error> {
        match &mut self.process.stdin {
            Some(stdin) => Ok(writeln!(stdin, "{line}")?),
            None => Err(self.said("")),
        }
    }

    /// The child's next line.
    pub(crate) fn line(&self, patience: Duration) -> Result<String, Error> {
        self.lines.recv_timeout(patience).map_err(|e| match e {
            RecvTimeoutError::Timeout => Error::Silent { role: self.role.clone(), seconds: patience.as_secs_f64() },
            RecvTimeoutError::Disconnected => self.said(""),
        })
    }

    /// The error for a child that answered something else than it was asked.
    pub(crate) fn said(&self, line: &str) -> Error {
        Error::Child { role: self.role.clone(), said: line.into() }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // Both fail only when it has ended already, which is what they are for.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// For the child: end with the parent, however that ends.
pub(crate) fn end_with_parent() -> Result<(), Error> {
    set_pdeathsig(Signal::SIGKILL)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn shell(script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Child::spawn("shell", command).unwrap()
    }

    #[test]
    fn lines_arrive_then_silence_then_the_end_are_told_apart() {
        let child = shell("echo one; sleep 0.3");
        assert_eq!(child.line(Duration::from_secs(5)).unwrap(), "one");
        assert!(matches!(child.line(Duration::from_millis(20)), Err(Error::Silent { .. })));
        assert!(matches!(child.line(Duration::from_secs(5)), Err(Error::Child { .. })));
    }

    #[test]
    fn a_dropped_child_is_gone() {
        let child = shell("echo up; sleep 60");
        child.line(Duration::from_secs(5)).unwrap();
        let proc = format!("/proc/{}", child.process.id());
        assert!(Path::new(&proc).exists());
        drop(child);
        assert!(!Path::new(&proc).exists());
    }
}
