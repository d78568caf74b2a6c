//! A member that is a process: killed, stopped and ended for real.

use super::ground::rss_mb;
use crate::stats::median;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::process::Child;

/// A running process, ended when this drops.
pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn new(child: Child) -> Self {
        Self(child)
    }

    /// Stops it, or lets it go on.
    pub(crate) fn stop(&self, stopped: bool) -> nix::Result<()> {
        let signal = if stopped { Signal::SIGSTOP } else { Signal::SIGCONT };
        kill(Pid::from_raw(self.0.id() as i32), signal)
    }

    /// Kills it; whoever has it waits for its end.
    pub(crate) fn kill(&self) -> nix::Result<()> {
        kill(Pid::from_raw(self.0.id() as i32), Signal::SIGKILL)
    }

    /// Memory that it holds.
    fn rss_mb(&self) -> Option<f64> {
        rss_mb(self.0.id())
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only when it has ended already, which is what they are for.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The median of what processes hold.
pub(super) fn median_rss_mb<'a>(processes: impl Iterator<Item = &'a Process>) -> Option<f64> {
    median(&processes.filter_map(Process::rss_mb).collect::<Vec<_>>())
}
