//! The embedding example as people run it: real processes, real sockets, a real kill.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// More than enough on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

struct Process {
    child: Child,
    lines: Receiver<String>,
}

impl Process {
    fn start(name: &str, listen: &str, seeds: &[&str]) -> Self {
        // Beside the test itself, where cargo builds examples.
        let here = std::env::current_exe().expect("a test has a path");
        let example: PathBuf = here.ancestors().nth(2).expect("deps lies in a folder").join("examples/embed");
        let mut child = Command::new(&example)
            .arg(name)
            .arg(listen)
            .args(seeds)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{}: {e}; run the whole package's tests", example.display()));
        let lines = lines(child.stdout.take().expect("it is piped"));
        Self { child, lines }
    }

    /// Waits until so many lines begin with a word.
    fn says(&self, word: &str, times: usize) {
        let end = Instant::now() + PATIENCE;
        let mut seen = 0;
        while seen < times {
            let line = self.lines.recv_timeout(end.saturating_duration_since(Instant::now()));
            seen += usize::from(line.unwrap_or_else(|e| panic!("`{word}` {times} times: {e}")).starts_with(word));
        }
    }
}

fn lines(from: ChildStdout) -> Receiver<String> {
    let (to, lines) = channel();
    std::thread::spawn(move || BufReader::new(from).lines().map_while(Result::ok).all(|l| to.send(l).is_ok()));
    lines
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free_port() -> String {
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("loopback");
    socket.local_addr().expect("bound").to_string()
}

/// ZN-1, ZN-5: members find each other, and a killed one is missed by all.
#[test]
fn embedded_members_find_each_other_and_miss_a_killed_one() {
    let addrs: Vec<String> = (0..4).map(|_| free_port()).collect();
    let seeds = [addrs[0].as_str()];
    let mut members: Vec<Process> =
        addrs.iter().enumerate().map(|(i, a)| Process::start(&format!("m{i}"), a, &seeds)).collect();
    for member in &members {
        member.says("joined", 3);
    }
    drop(members.remove(2));
    for member in &members {
        member.says("left", 1);
    }
}
