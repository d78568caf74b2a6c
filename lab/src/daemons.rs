//! A cluster of real daemons for an experiment: processes of the `phalanx` that lies beside this executable, in one directory.

use crate::error::Error;
use crate::peers::process::Process;
use phalanx_client::blocking::Client;
use phalanx_client::local::{Daemon, Start};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The command that is run.
pub(crate) const COMMAND: &str = "phalanx";
/// Anything takes less.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);
const KEY: &str = "7068616c616e78207068616c616e78207068616c616e78207068616c616e7821";

/// Daemons `n0`, `n1` and so on; they end when this drops.
pub(crate) struct Daemons {
    dir: PathBuf,
    binary: PathBuf,
    seed: Vec<String>,
    arguments: Vec<String>,
    processes: Vec<Option<Process>>,
}

impl Daemons {
    /// Starts so many, and waits until all see all. `what` is a part of their directory's name.
    pub(crate) fn start(what: &str, nodes: usize) -> Result<Self, Error> {
        Self::start_with(what, nodes, &[])
    }

    /// The same with a manager and so many slots on each, and waits until it decides.
    pub(crate) fn managed(what: &str, nodes: usize, slots: usize) -> Result<Self, Error> {
        let (expect, slots) = (nodes.to_string(), slots.to_string());
        let daemons = Self::start_with(what, nodes, &["--run-as-root", "--expect", &expect, "--slots", &slots])?;
        let ready =
            || daemons.client(0).slots().is_ok_and(|s| s.iter().filter(|n| n.alive && n.slots > 0).count() == nodes);
        wait("the manager knows all slots", ready)?;
        Ok(daemons)
    }

    /// The same on segments, in a profile of theirs. Others that run at the same time on the same groups are another cluster.
    pub(crate) fn segments(what: &str, nodes: usize, profile: &str) -> Result<Self, Error> {
        let (what, cluster) = (format!("{what}-{profile}"), format!("{what}-{profile}-{}", std::process::id()));
        Self::start_with(&what, nodes, &["--engine", "segment", "--profile", profile, "--cluster", &cluster])
    }

    fn start_with(what: &str, nodes: usize, arguments: &[&str]) -> Result<Self, Error> {
        let binary = std::env::current_exe()?.with_file_name(COMMAND);
        if !binary.is_file() {
            let reason = format!("{} is not there: cargo build --release -p {COMMAND}", binary.display());
            return Err(Error::Peer { library: COMMAND, reason });
        }
        let dir = std::env::temp_dir().join(format!("phalanx-lab-{what}-{}", std::process::id()));
        let arguments = arguments.iter().map(|&a| a.to_owned()).collect();
        let mut daemons = Self { dir, binary, seed: Vec::new(), arguments, processes: Vec::new() };
        daemons.processes.resize_with(nodes, || None);
        for number in 0..nodes {
            daemons.spawn(number)?;
            if number == 0 {
                let first = daemons.daemon(0).answer(PATIENCE).map_err(said)?;
                daemons.seed.push(first.me.addr.to_string());
            }
        }
        daemons.wait_whole()?;
        Ok(daemons)
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn binary(&self) -> &Path {
        &self.binary
    }

    pub(crate) fn daemon(&self, number: usize) -> Daemon {
        Daemon::at(self.dir.join(format!("n{number}")))
    }

    pub(crate) fn client(&self, number: usize) -> Client {
        Client::new(self.daemon(number).socket())
    }

    /// Starts one of them, for the first time or again.
    pub(crate) fn spawn(&mut self, number: usize) -> Result<(), Error> {
        let name = format!("n{number}");
        let start = Start {
            binary: &self.binary,
            launcher: &[],
            name: &name,
            bind: "127.0.0.1:0",
            join: &self.seed,
            key: Some(KEY),
            profile: None,
            config: None,
        };
        let child = self.daemon(number).command(&start)?.args(&self.arguments).spawn()?;
        self.processes[number] = Some(Process::new(child));
        Ok(())
    }

    /// Takes some of them: to be killed together, and waited for when dropped.
    pub(crate) fn take(&mut self, numbers: &[usize]) -> Vec<Process> {
        numbers.iter().filter_map(|&n| self.processes[n].take()).collect()
    }

    /// Waits until all that run see each other.
    pub(crate) fn wait_whole(&self) -> Result<(), Error> {
        let running: Vec<usize> = (0..self.processes.len()).filter(|&n| self.processes[n].is_some()).collect();
        let whole = |n: &usize| self.client(*n).status().is_ok_and(|s| s.alive == running.len());
        wait("all daemons see all", || running.iter().all(whole))
    }
}

impl Drop for Daemons {
    fn drop(&mut self) {
        self.processes.clear();
        // The next one has another place.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// What a daemon said instead of what was asked.
pub(crate) fn said(said: impl ToString) -> Error {
    Error::Child { role: COMMAND.into(), said: said.to_string() }
}

/// Waits until something holds.
pub(crate) fn wait(what: &str, holds: impl Fn() -> bool) -> Result<(), Error> {
    let began = Instant::now();
    while !holds() {
        if began.elapsed() > PATIENCE {
            return Err(said(format!("nothing: {what}, for {} s", PATIENCE.as_secs())));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}
