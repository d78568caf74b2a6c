//! A cluster of real daemons on this machine: one process each, everything in one directory.

use phalanx_client::api::Status;
use phalanx_client::blocking::Client;
use phalanx_client::local::{Daemon, Start};
use phalanx_daemon::store::hex;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a daemon may take to answer, and to end.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(10);

/// The cluster in a directory.
pub(crate) struct Local {
    dir: PathBuf,
}

/// One of its nodes.
pub(crate) struct Node {
    dir: PathBuf,
}

impl Local {
    /// The cluster that is, or will be, in this directory.
    pub(crate) fn at(dir: PathBuf) -> Self {
        Self { dir }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn exists(&self) -> bool {
        self.dir.exists()
    }

    /// A node, by its number from 1.
    pub(crate) fn node(&self, number: usize) -> Node {
        Node { dir: self.dir.join(format!("n{number}")) }
    }

    /// Starts `nodes` daemons; says how long it took from the first start until all see all. What was started ends when it
    /// fails.
    pub(crate) fn up(&self, nodes: usize, zones: usize) -> Result<Duration, String> {
        self.up_with(nodes, zones, &[])
    }

    /// As [`Local::up`], with further arguments for each daemon.
    pub(crate) fn up_with(&self, nodes: usize, zones: usize, more: &[&str]) -> Result<Duration, String> {
        fs::create_dir_all(&self.dir).map_err(|e| format!("cannot create {}: {e}", self.dir.display()))?;
        let took = if zones > 1 { self.start_zones(nodes, zones) } else { self.start(nodes, more) };
        if took.is_err() {
            let _ = self.down();
        }
        took
    }

    fn start(&self, nodes: usize, more: &[&str]) -> Result<Duration, String> {
        let (key, began) = (draw_key()?, Instant::now());
        let (first, expect) = (self.node(1), nodes.to_string());
        let running = [&["--expect", expect.as_str(), "--run-as-root"], more].concat();
        first.spawn("n1", &key, None, &running)?;
        let seed = first.answer()?.me.addr.to_string();
        for n in 2..=nodes {
            self.node(n).spawn(&format!("n{n}"), &key, Some(&seed), &running)?;
        }
        for node in (1..=nodes).map(|n| self.node(n)) {
            while node.answer()?.alive < nodes {
                if began.elapsed() > PATIENCE * 3 {
                    return Err(format!("{} does not see all others: look at its log", node.dir.display()));
                }
                std::thread::sleep(LOOK);
            }
        }
        Ok(began.elapsed())
    }

    /// Waits until jobs can be run: the manager decides, and knows the slots of so many nodes.
    pub(crate) fn wait_until_managed(&self, nodes: usize) -> Result<(), String> {
        let (first, began) = (Client::new(self.node(1).socket()), Instant::now());
        loop {
            let managers = first.managers().map_err(|e| e.to_string())?;
            let known = first.slots().map_or(0, |slots| slots.iter().filter(|s| s.alive && s.slots > 0).count());
            if managers.decides && known >= nodes {
                return Ok(());
            }
            if began.elapsed() > PATIENCE * 3 {
                let why = if managers.note.is_empty() { "look at the logs" } else { &managers.note };
                return Err(format!("the manager knows {known} of {nodes} nodes: {why}"));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// The same in zones of nearly equal size, beneath two supervisors.
    fn start_zones(&self, nodes: usize, zones: usize) -> Result<Duration, String> {
        let (key, began) = (draw_key()?, Instant::now());
        let mut supervisors: Vec<String> = Vec::new();
        for name in ["s1", "s2"] {
            let node = Node { dir: self.dir.join(name) };
            node.spawn(name, &key, supervisors.first().map(String::as_str), &["--role", "supervisor"])?;
            supervisors.push(node.answer()?.me.addr.to_string());
        }
        let mut seeds: Vec<Option<String>> = vec![None; zones];
        let expect = nodes.to_string();
        for n in 0..nodes {
            let (node, zone) = (self.node(n + 1), format!("z{}", n % zones + 1));
            let mut place = vec!["--zone", zone.as_str(), "--expect", &expect, "--run-as-root"];
            supervisors.iter().for_each(|s| place.extend(["--supervisor", s]));
            node.spawn(&format!("n{}", n + 1), &key, seeds[n % zones].as_deref(), &place)?;
            if seeds[n % zones].is_none() {
                seeds[n % zones] = Some(node.answer()?.me.addr.to_string());
            }
        }
        let supervisor = Client::new(Node { dir: self.dir.join("s1") }.socket());
        loop {
            let census = supervisor.census().map_err(|e| e.to_string())?;
            if census.zones.len() == zones && census.members == nodes as u64 {
                return Ok(began.elapsed());
            }
            if began.elapsed() > PATIENCE * 3 {
                return Err(format!("the supervisors see {} of {nodes} members: look at the logs", census.members));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Ends all daemons and removes the directory; says how many ran.
    pub(crate) fn down(&self) -> Result<usize, String> {
        let Ok(nodes) = fs::read_dir(&self.dir) else {
            return Err(format!("there is no cluster in {}: start one with `phalanx dev up 3`", self.dir.display()));
        };
        let nodes = nodes.filter_map(|n| Some(Node { dir: n.ok()?.path() }));
        let running: Vec<(Node, i32)> =
            nodes.filter_map(|n| Some((n.running()?, n)).map(|(pid, n)| (n, pid))).collect();
        for (_, pid) in &running {
            signal(*pid, nix::sys::signal::Signal::SIGTERM);
        }
        let began = Instant::now();
        for (node, pid) in &running {
            while node.running().is_some() {
                if began.elapsed() > PATIENCE {
                    signal(*pid, nix::sys::signal::Signal::SIGKILL);
                }
                std::thread::sleep(LOOK);
            }
        }
        fs::remove_dir_all(&self.dir).map_err(|e| format!("cannot remove {}: {e}", self.dir.display()))?;
        Ok(running.len())
    }
}

impl Node {
    /// Where its control API listens.
    pub(crate) fn socket(&self) -> PathBuf {
        self.daemon().socket()
    }

    /// Starts its daemon in the background.
    fn spawn(&self, name: &str, key: &str, seed: Option<&str>, more: &[&str]) -> Result<(), String> {
        let fail = |e: std::io::Error| format!("cannot start a daemon in {}: {e}", self.dir.display());
        let binary = std::env::current_exe().map_err(fail)?;
        let join: Vec<String> = seed.map(str::to_owned).into_iter().collect();
        let start = Start {
            binary: &binary,
            launcher: &[],
            name,
            bind: "127.0.0.1:0",
            join: &join,
            key: Some(key),
            profile: Some("local"),
            config: None,
        };
        let mut command = self.daemon().command(&start).map_err(fail)?;
        // It outlives the terminal, and an interrupt there is not meant for it.
        let child = command.args(more).process_group(0).spawn().map_err(fail)?;
        fs::write(self.dir.join("pid"), format!("{}\n", child.id())).map_err(fail)
    }

    /// What its daemon says of itself, as soon as it does.
    pub(crate) fn answer(&self) -> Result<Status, String> {
        self.daemon().answer(PATIENCE)
    }

    fn daemon(&self) -> Daemon {
        Daemon::at(self.dir.clone())
    }

    /// Its process, when it runs: numbers are used again, so it must be one that works in this directory.
    pub(crate) fn running(&self) -> Option<i32> {
        let pid: i32 = fs::read_to_string(self.dir.join("pid")).ok()?.trim().parse().ok()?;
        let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let mut arguments = command.split(|&b| b == 0);
        arguments.any(|a| a == self.dir.as_os_str().as_encoded_bytes()).then_some(pid)
    }
}

fn signal(pid: i32, signal: nix::sys::signal::Signal) {
    // It may have ended just now.
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal);
}

fn draw_key() -> Result<String, String> {
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(|e| format!("the system has no random numbers: {e}"))?;
    Ok(hex(&key))
}
