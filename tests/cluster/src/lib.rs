//! A cluster of real daemons on this machine, for tests: one process for each node, real sockets, real signals.
//!
//! Everything lives in a directory of its own and ends with the [`Cluster`], also when a test panics.

pub mod host;
pub mod net;

use net::Network;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use phalanx_client::api::{Member, State, Status, What};
use phalanx_client::blocking::Client;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// How long anything may take before a test fails: machines are slow at times, and a story that ends well ends early.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Where daemons listen that have a host of their own.
const PORT: u16 = 7946;
const LOOK: Duration = Duration::from_millis(5);
/// The key of test clusters.
pub const KEY: &str = "7068616c616e78207068616c616e78207068616c616e78207068616c616e7821";

/// The command, built once for each run of the tests.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| built("phalanx", &[]))
}

/// The command as a later version may be: it says more than today's knows.
pub fn tomorrow() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| built("phalanx-tomorrow", &["--features", "tomorrow"]))
}

fn built(name: &str, options: &[&str]) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let dir = test.parent().and_then(Path::parent).expect("target/PROFILE/deps/TEST");
    let release = dir.file_name().is_some_and(|name| name == "release");
    let mut build = Command::new(env!("CARGO"));
    build
        .args(["build", "--quiet", "--package", "phalanx", "--bin", name])
        .args(options)
        .args(release.then_some("--release"));
    assert!(build.status().expect("cargo runs").success(), "the command builds");
    dir.join(name)
}

/// Daemons, by number.
pub struct Cluster {
    dir: PathBuf,
    nodes: Vec<Node>,
    network: Option<Network>,
}

/// One daemon.
pub struct Node {
    name: String,
    dir: PathBuf,
    process: Option<Child>,
    addr: Option<SocketAddr>,
    before: Vec<String>,
    binary: PathBuf,
}

impl Cluster {
    /// Starts `n` daemons, and waits until all see all.
    pub fn start(n: usize) -> Self {
        let mut cluster = Self::empty();
        (0..n).for_each(|_| _ = cluster.add(&[]));
        cluster.wait_until_all_see(n);
        cluster
    }

    /// Nobody yet.
    pub fn empty() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("phalanx-test-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory for the cluster");
        Self { dir, nodes: Vec::new(), network: None }
    }

    /// Nobody yet, on a network: each daemon that is added is on the next host.
    pub fn on(network: Network) -> Self {
        let mut cluster = Self::empty();
        cluster.network = Some(network);
        cluster
    }

    /// Starts a daemon on each of `n` hosts with these arguments, and waits until all see all. `None` where no network can
    /// be made.
    pub fn on_hosts(n: usize, arguments: &[&str]) -> Option<Self> {
        let mut cluster = Self::on(Network::new(n)?);
        (0..n).for_each(|_| _ = cluster.add(arguments));
        cluster.wait_for_one_view();
        Some(cluster)
    }

    /// The network, to do harm to it.
    ///
    /// # Panics
    /// When the cluster has none of its own.
    pub fn network(&mut self) -> &mut Network {
        self.network.as_mut().expect("it has a network")
    }

    /// Starts one more daemon, with further arguments; it joins those who are there. Gives its number.
    pub fn add(&mut self, arguments: &[&str]) -> usize {
        let number = self.place();
        self.run(number, arguments);
        number
    }

    /// As [`Cluster::add`], for a daemon that is told no key.
    pub fn add_without_key(&mut self, arguments: &[&str]) -> usize {
        let number = self.place();
        self.spawn(number, arguments, None);
        number
    }

    /// A file beside the daemons' directories; says where it is.
    pub fn write(&self, name: &str, text: &str) -> String {
        let path = self.dir.join(name);
        std::fs::write(&path, text).expect("a file");
        path.to_str().expect("a path of ours").to_owned()
    }

    /// Starts a daemon, again or for the first time.
    pub fn run(&mut self, number: usize, arguments: &[&str]) {
        self.spawn(number, arguments, Some(KEY));
    }

    /// A place for a daemon that is not started yet. Gives its number.
    pub fn place(&mut self) -> usize {
        let number = self.nodes.len();
        let name = format!("n{number}");
        let dir = self.dir.join(&name);
        std::fs::create_dir_all(&dir).expect("a directory for the node");
        let before = self.network.as_ref().map(|network| network.on(number)).unwrap_or_default();
        let addr = self.network.as_ref().map(|network| SocketAddr::new(network.addr(number), PORT));
        self.nodes.push(Node { name, dir, process: None, addr, before, binary: binary().to_owned() });
        number
    }

    /// From its next start on, the daemon is run by this command.
    pub fn start_by(&mut self, number: usize, command: &[impl AsRef<str>]) {
        self.nodes[number].before = command.iter().map(|word| word.as_ref().to_owned()).collect();
    }

    /// From its next start on, the daemon is of this build.
    pub fn install(&mut self, number: usize, binary: &Path) {
        self.nodes[number].binary = binary.to_owned();
    }

    fn spawn(&mut self, number: usize, arguments: &[&str], key: Option<&str>) {
        let seeds: Vec<String> = self.nodes.iter().filter_map(|n| n.addr).map(|a| a.to_string()).collect();
        let node = &mut self.nodes[number];
        let bind = node.addr.map_or_else(|| "127.0.0.1:0".to_owned(), |a| a.to_string());
        let log = std::fs::OpenOptions::new().create(true).append(true).open(node.dir.join("log")).expect("a log");
        let mut words = node.before.iter().map(Path::new).chain([node.binary.as_path()]);
        let mut command = Command::new(words.next().expect("there is the daemon, at least"));
        command.args(words).arg("agent");
        // What the story says of itself counts.
        let mut usually = |option: &str, value: &str| {
            if !arguments.contains(&option) {
                command.args([option, value]);
            }
        };
        usually("--profile", "local");
        usually("--name", &node.name);
        usually("--bind", &bind);
        usually("--data-dir", node.dir.to_str().expect("a path of ours"));
        command.arg("--socket").arg(node.dir.join("sock"));
        seeds.iter().filter(|s| **s != bind).for_each(|seed| _ = command.args(["--join", seed]));
        // A key that the story gives, or that is kept, counts.
        if !arguments.contains(&"--key") && !node.dir.join("keys").exists() {
            key.iter().for_each(|key| _ = command.env("PHALANX_KEY", key));
        }
        command.args(arguments).stdin(Stdio::null()).stderr(log);
        node.process = Some(command.spawn().expect("the daemon starts"));
        node.addr = Some(node.status().me.addr);
    }

    /// A daemon.
    pub fn node(&self, number: usize) -> &Node {
        &self.nodes[number]
    }

    /// Runs the command about a daemon; says how it ended, and what it said on standard output and standard error.
    pub fn command(&self, number: usize, arguments: &[&str]) -> (Option<i32>, String, String) {
        let mut command = Command::new(binary());
        command.args(arguments).env("PHALANX_SOCKET", self.nodes[number].dir.join("sock"));
        let output = command.stdin(Stdio::null()).output().expect("the command runs");
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (output.status.code(), text(output.stdout), text(output.stderr))
    }

    /// Kills a daemon: it can say nothing any more.
    pub fn kill(&mut self, number: usize) {
        let mut process = self.nodes[number].process.take().expect("it runs");
        process.kill().expect("we may kill it");
        process.wait().expect("it ends");
    }

    /// Waits until a daemon has ended by itself; gives its exit code.
    pub fn wait_for_end(&mut self, number: usize) -> Option<i32> {
        let process = self.nodes[number].process.as_mut().expect("it runs");
        let began = Instant::now();
        loop {
            if let Some(status) = process.try_wait().expect("it is our child") {
                self.nodes[number].process = None;
                return status.code();
            }
            assert!(began.elapsed() < PATIENCE, "node {number} does not end");
            std::thread::sleep(LOOK);
        }
    }

    /// The daemons that run.
    pub fn running(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|n| n.process.is_some())
    }

    /// Waits until all that run see exactly `n` members that are there.
    pub fn wait_until_all_see(&self, n: usize) {
        self.wait_until(&format!("all see {n}"), |node| node.status().alive == n);
    }

    /// Waits until all that run agree who is there: all that run, each in the same life, and nobody else.
    pub fn wait_for_one_view(&self) {
        let began = Instant::now();
        let mut running: Vec<String> = self.running().map(|n| n.name.clone()).collect();
        running.sort_unstable();
        loop {
            let views: Vec<Vec<(String, u64, u32)>> = self.running().map(Node::view).collect();
            if views[0].iter().map(|m| &m.0).eq(&running) && views.iter().all(|v| *v == views[0]) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "no one view of {running:?} within {PATIENCE:?}: {views:#?}");
            std::thread::sleep(LOOK);
        }
    }

    /// Waits until something holds at all that run.
    pub fn wait_until(&self, what: &str, holds: impl Fn(&Node) -> bool) {
        for node in self.running() {
            node.wait_until(what, &holds);
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            if let Some(process) = &mut node.process {
                // One that is stopped ends too.
                let _ = process.kill();
                let _ = process.wait();
            }
            if std::thread::panicking() {
                let log = std::fs::read_to_string(node.dir.join("log")).unwrap_or_default();
                eprintln!("--- log of {}\n{log}", node.name);
            }
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Node {
    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where its state is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// A client of it.
    pub fn client(&self) -> Client {
        Client::new(self.dir.join("sock"))
    }

    /// How it is, as soon as it answers.
    pub fn status(&self) -> Status {
        let (client, began) = (self.client(), Instant::now());
        loop {
            match client.status() {
                Ok(status) => return status,
                Err(e) => assert!(began.elapsed() < PATIENCE, "{} does not answer: {e}", self.name),
            }
            std::thread::sleep(LOOK);
        }
    }

    /// What it says of a member.
    pub fn sees(&self, name: &str) -> Option<Member> {
        self.client().members().expect("it answers").into_iter().find(|m| m.name == name)
    }

    /// In which state it sees a member.
    pub fn state_of(&self, name: &str) -> Option<State> {
        self.sees(name).map(|m| m.state)
    }

    /// Who is there, as it sees it, by name: the life of each, and how often it had to speak up for itself.
    pub fn view(&self) -> Vec<(String, u64, u32)> {
        let members = self.client().members().expect("it answers");
        let there = members.into_iter().filter(|m| m.state == State::Alive);
        let mut view: Vec<_> = there.map(|m| (m.name, m.incarnation, m.minor)).collect();
        view.sort_unstable();
        view
    }

    /// Whose failures it has heard of in this life, as often as it has.
    pub fn failures(&self) -> Vec<String> {
        let recent = self.client().recent(None).expect("it answers");
        let failed = recent.into_iter().filter_map(|event| match event.what {
            What::Left { member } if member.state == State::Failed => Some(member.name),
            _ => None,
        });
        failed.collect()
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().expect("it runs").id()
    }

    /// Sends a signal to its process.
    pub fn signal(&self, signal: Signal) {
        let process = self.process.as_ref().expect("it runs");
        kill(Pid::from_raw(process.id() as i32), signal).expect("it is our child");
    }

    /// Waits until something holds.
    pub fn wait_until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !holds(self) {
            assert!(
                began.elapsed() < PATIENCE,
                "{}: not so within {PATIENCE:?}: {what}; it sees {:#?}",
                self.name,
                self.client().members()
            );
            std::thread::sleep(LOOK);
        }
    }
}
