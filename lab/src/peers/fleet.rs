//! Ours, many members in one process: a [`Fleet`], as `phalanx dev up N --in-process` runs it.
//!
//! Its members share one address, so a member is cut off by pausing it: it hears and says nothing, and nobody is told. A
//! fleet takes nobody back; it boots within a moment, so each trial has its own.

use super::ground::{Ground, rss_mb};
use super::measure::System;
use super::sight::{Sighting, Watch, now_ms};
use crate::error::Error;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use phalanx_daemon::fleet::{Change, Fleet};
use phalanx_protocol::zone::Config;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::{Duration, UNIX_EPOCH};

/// Descriptors for each member: its socket, its bell, and both ends of its tripwires.
const DESCRIPTORS: u64 = 12;
/// A fleet that has just booted comes to rest.
const REST: Duration = Duration::from_millis(1_500);

/// A cluster in this process.
pub(super) struct InProcess {
    nodes: usize,
    tell: Sender<Sighting>,
    fleet: Option<Fleet>,
}

impl InProcess {
    pub(super) fn new(nodes: usize, tell: Sender<Sighting>) -> Self {
        Self { nodes, tell, fleet: None }
    }

    fn start(&mut self) -> Result<(), Error> {
        let threads = thread::available_parallelism().map_or(1, usize::from);
        let (changes, changed) = channel::<Change>();
        let tell = self.tell.clone();
        // It ends with the fleet.
        thread::spawn(move || {
            for change in changed {
                let at_ms = change.at.duration_since(UNIX_EPOCH).map_or(0.0, |d| d.as_secs_f64() * 1e3);
                let Change { observer, subject, alive, .. } = change;
                if tell.send(Sighting { observer, subject, alive, at_ms }).is_err() {
                    return;
                }
            }
        });
        self.fleet = Some(Fleet::start_watched(self.nodes, threads, &Config::lan(), Some(&changes))?);
        Ok(())
    }
}

impl System for InProcess {
    fn boot(&mut self) -> Result<f64, Error> {
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
        let wanted = self.nodes as u64 * DESCRIPTORS + 64;
        if soft < wanted {
            setrlimit(Resource::RLIMIT_NOFILE, wanted, hard.max(wanted))?;
        }
        let began = now_ms();
        self.start()?;
        Ok(began)
    }

    fn crash(&mut self, member: usize) -> Result<(), Error> {
        self.fleet.iter().for_each(|fleet| fleet.kill(&[member]));
        Ok(())
    }

    fn cut(&mut self, member: usize, _ground: &Ground) -> Result<(), Error> {
        self.stop(member, true)
    }

    fn heal(&mut self, _ground: &Ground) -> Result<(), Error> {
        Ok(())
    }

    fn mend(&mut self, _member: usize, watch: &mut Watch) -> Result<(), Error> {
        self.fleet = None;
        // What the old one still had to say has been said when its threads have ended.
        thread::sleep(Duration::from_millis(50));
        watch.rebooted();
        self.start()?;
        watch.listen(REST);
        Ok(())
    }

    fn stop(&mut self, member: usize, stopped: bool) -> Result<(), Error> {
        let order = if stopped { Fleet::pause } else { Fleet::resume };
        self.fleet.iter().for_each(|fleet| order(fleet, member));
        Ok(())
    }

    fn rss_mb(&self) -> Option<f64> {
        Some(rss_mb(std::process::id())? / self.nodes as f64)
    }
}
