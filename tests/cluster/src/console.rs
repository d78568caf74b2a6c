//! `phalanx run` in the background, and what its job is made of.

use crate::{Cluster, PATIENCE, binary};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use phalanx_client::api::manage::{Run, RunDetail, RunState};
use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// A `phalanx run` in the background. Dropped, it is killed, and its job ends.
pub struct Console {
    process: Child,
    input: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
    said: Vec<String>,
}

/// How a console ended: its status, and all lines of both outputs.
pub struct Ended {
    /// Its exit status; none when a signal ended it.
    pub status: Option<i32>,
    /// What was said, in the order in which it was read.
    pub said: Vec<String>,
}

impl Console {
    /// Starts one at a daemon.
    pub fn start(cluster: &Cluster, node: usize, arguments: &[&str]) -> Self {
        let mut command = Command::new(binary());
        command.arg("run").args(arguments).env("PHALANX_SOCKET", cluster.node(node).socket());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("the command runs");
        let (tell, lines) = mpsc::channel();
        let (out, err) = (process.stdout.take().expect("piped"), process.stderr.take().expect("piped"));
        for from in [Box::new(out) as Box<dyn Read + Send>, Box::new(err)] {
            let tell = tell.clone();
            std::thread::spawn(move || {
                BufReader::new(from).lines().map_while(Result::ok).all(|line| tell.send(line).is_ok())
            });
        }
        let input = process.stdin.take();
        Self { process, input, lines, said: Vec::new() }
    }

    /// Where the job's input is written.
    pub fn input(&mut self) -> &mut ChildStdin {
        self.input.as_mut().expect("open")
    }

    /// All lines that were waited for so far, and those before them.
    pub fn said(&self) -> &[String] {
        &self.said
    }

    /// Waits until it has said a line with this in it.
    pub fn wait_for(&mut self, text: &str) {
        self.wait_for_times(text, 1);
    }

    /// Waits until so many lines have this in them.
    pub fn wait_for_times(&mut self, text: &str, times: usize) {
        self.wait_until(&format!("said {times} times: {text}"), |said| {
            said.iter().filter(|line| line.contains(text)).count() >= times
        });
    }

    /// Waits until something holds of all that it has said.
    pub fn wait_until(&mut self, what: &str, holds: impl Fn(&[String]) -> bool) {
        let began = Instant::now();
        while !holds(&self.said) {
            match self.lines.recv_timeout(PATIENCE.saturating_sub(began.elapsed())) {
                Ok(line) => self.said.push(line),
                Err(why) => panic!("{why}: not {what}; but {:#?}", self.said),
            }
        }
    }

    /// A signal for the console alone.
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.id().cast_signed()), signal).expect("it runs");
    }

    /// No more input; waits for its end.
    pub fn end(mut self) -> Ended {
        self.input = None;
        let began = Instant::now();
        let status = loop {
            match self.process.try_wait().expect("it is our child") {
                Some(status) => break status.code(),
                None if began.elapsed() > PATIENCE => {
                    panic!("it does not end; it said {:#?}", self.lines.try_iter().collect::<Vec<_>>());
                }
                None => std::thread::sleep(Duration::from_millis(2)),
            }
        };
        while let Ok(line) = self.lines.recv() {
            self.said.push(line);
        }
        Ended { status, said: std::mem::take(&mut self.said) }
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        // It has ended already where a story ended well.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Ended {
    /// Lines of it, in order.
    pub fn sorted(&self) -> Vec<&str> {
        let mut lines: Vec<&str> = self.said.iter().map(String::as_str).collect();
        lines.sort_unstable();
        lines
    }
}

/// Runs a job to its end.
pub fn run(cluster: &Cluster, node: usize, arguments: &[&str]) -> Ended {
    Console::start(cluster, node, arguments).end()
}

/// A job, as the manager knows it.
pub fn job(cluster: &Cluster, node: usize, name: &str) -> RunDetail {
    cluster.node(node).client().run_detail(name).expect("the manager knows it")
}

/// The number of the daemon where a rank is.
pub fn node_of(cluster: &Cluster, job: &RunDetail, rank: u32) -> usize {
    let name = &job.all_ranks.iter().find(|r| r.rank == rank).expect("a rank").node;
    (0..).find(|&n| cluster.node(n).name() == name).expect("a node of ours")
}

/// The shepherd of a job on a node.
pub fn shepherd(cluster: &Cluster, node: usize, name: &str) -> Pid {
    let jobs = cluster.node(node).client().jobs().expect("it answers");
    let pid = jobs.iter().find(|j| j.name == name).and_then(|j| j.shepherd).expect("a shepherd");
    Pid::from_raw(pid.cast_signed())
}

/// Daemon, shepherd and ranks of a node, all at once.
pub fn kill_node(cluster: &mut Cluster, node: usize, name: &str) {
    kill_nodes(cluster, &[node], name);
}

/// The same of several nodes, all at once.
pub fn kill_nodes(cluster: &mut Cluster, nodes: &[usize], name: &str) {
    let shepherds: Vec<Pid> = nodes.iter().map(|&node| shepherd(cluster, node, name)).collect();
    // Their ranks die with them.
    shepherds.iter().for_each(|&pid| kill(pid, Signal::SIGSTOP).expect("it runs"));
    nodes.iter().for_each(|&node| cluster.kill(node));
    shepherds.iter().for_each(|&pid| kill(pid, Signal::SIGKILL).expect("it runs"));
}

/// Waits until the manager says that a job has ended.
pub fn wait_until_over(cluster: &Cluster, node: usize, name: &str) -> Run {
    let began = Instant::now();
    loop {
        let run = job(cluster, node, name).run;
        if run.state == RunState::Over {
            return run;
        }
        assert!(began.elapsed() < PATIENCE, "{name} does not end: {:#?}", job(cluster, node, name));
        std::thread::sleep(Duration::from_millis(10));
    }
}
