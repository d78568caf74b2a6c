//! A cluster of real daemons on this machine, for tests: one process for each node, real sockets, real signals.
//!
//! Everything lives in a directory of its own and ends with the [`Cluster`], also when a test panics.

pub mod console;
pub mod etcd;
pub mod host;

pub use phalanx_netlab as net;

use host::Disk;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use phalanx_client::api::{Member, State, Status, What};
use phalanx_client::blocking::Client;
use phalanx_client::local::{Daemon, Start};
use phalanx_netlab::Network;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant, SystemTime};

/// How long anything may take before a test fails: machines are slow at times, and a story that ends well ends early.
pub const PATIENCE: Duration = Duration::from_secs(30);
/// Where daemons listen that have a host of their own.
const PORT: u16 = 7946;
/// What the directories of clusters begin with; the number of the test's process follows.
const DIRS: &str = "phalanx-test-";
const LOOK: Duration = Duration::from_millis(5);
/// The key of test clusters.
pub const KEY: &str = "7068616c616e78207068616c616e78207068616c616e78207068616c616e7821";

/// The command, built once for each run of the tests.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| built("phalanx", &["--package", "phalanx", "--bin", "phalanx"]))
}

/// The command as a build of tomorrow will be: it says more than today's knows. It is today's under another name.
pub fn tomorrow() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let path = binary().with_file_name("phalanx-tomorrow");
        // One that an earlier run left may be of another build.
        let _ = std::fs::remove_file(&path);
        std::fs::hard_link(binary(), &path).expect("a second name beside the first");
        path
    })
}

/// An example of a package.
pub fn example(package: &str, name: &str) -> PathBuf {
    built(&format!("examples/{name}"), &["--package", package, "--example", name])
}

/// Builds something as this test was built, unless it is newer than all sources; says where it is. A run of all tests has
/// built it already, with other features of its dependencies, and to build it for itself would take minutes.
fn built(path: &str, what: &[&str]) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let dir = test.parent().and_then(Path::parent).expect("target/PROFILE/deps/TEST");
    let (release, path) = (dir.file_name().is_some_and(|name| name == "release"), dir.join(path));
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates");
    if modified(&path).is_none_or(|built| newest(&sources).is_none_or(|changed| changed >= built)) {
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet"]).args(what).args(release.then_some("--release"));
        assert!(build.status().expect("cargo runs").success(), "{what:?} builds");
    }
    path
}

fn modified(path: &Path) -> Option<SystemTime> {
    path.metadata().and_then(|m| m.modified()).ok()
}

/// When something below a directory was last changed.
fn newest(dir: &Path) -> Option<SystemTime> {
    let entries = std::fs::read_dir(dir).ok()?.filter_map(Result::ok).map(|e| e.path());
    entries.filter_map(|path| if path.is_dir() { newest(&path) } else { modified(&path) }).max()
}

/// The loopback address of a test's cluster. A daemon that is started again needs the port it had, and meanwhile a daemon of another
/// story, or any stream of this machine, may have been given it; at an address of its own nobody else is given any.
fn home(cluster: u32) -> IpAddr {
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 1 + (cluster % 254) as u8, high, low).into()
}

/// Daemons, by number.
pub struct Cluster {
    dir: PathBuf,
    /// Where those listen who have no host of their own.
    home: IpAddr,
    nodes: Vec<Node>,
    network: Option<Network>,
    /// Daemons are told where others are.
    seeds: bool,
}

/// One daemon.
pub struct Node {
    name: String,
    dir: PathBuf,
    process: Option<Child>,
    addr: Option<SocketAddr>,
    launcher: Vec<String>,
    binary: PathBuf,
    disk: Option<Disk>,
}

impl Cluster {
    /// Starts `n` daemons, and waits until all see all.
    pub fn start(n: usize) -> Self {
        let mut cluster = Self::empty();
        (0..n).for_each(|_| _ = cluster.add(&[]));
        cluster.wait_until_all_see(n);
        cluster
    }

    /// Starts `n` daemons that run jobs, with so many slots each, and waits until the manager decides.
    pub fn managed(n: usize, slots: usize) -> Self {
        let (expect, slots) = (n.to_string(), slots.to_string());
        let mut cluster = Self::empty();
        let arguments = ["--expect", &expect, "--slots", &slots, "--run-as-root"];
        (0..n).for_each(|_| _ = cluster.add(&arguments));
        cluster.wait_until_all_see(n);
        cluster.wait_until_managed(n);
        cluster
    }

    /// Waits until all that run know a manager that decides, and it knows the slots of `n` nodes.
    pub fn wait_until_managed(&self, n: usize) {
        self.wait_until("the manager decides", |node| {
            node.client().managers().is_ok_and(|managers| managers.decides)
                && node.client().slots().is_ok_and(|slots| slots.iter().filter(|s| s.alive && s.slots > 0).count() == n)
        });
    }

    /// Nobody yet.
    pub fn empty() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let dir = std::env::temp_dir().join(format!("{DIRS}{}-{number}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("a directory for the cluster");
        Self { dir, home: home(number), nodes: Vec::new(), network: None, seeds: true }
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

    /// Daemons are told of nobody from now on: they find each other.
    #[must_use]
    pub fn without_seeds(mut self) -> Self {
        self.seeds = false;
        self
    }

    /// The address at which those daemons listen that have no host of their own; nobody else is there.
    pub fn home(&self) -> IpAddr {
        self.home
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
        let launcher = self.network.as_ref().map(|network| network.on(number)).unwrap_or_default();
        let addr = self.network.as_ref().map(|network| SocketAddr::new(network.addr(number), PORT));
        self.nodes.push(Node { name, dir, process: None, addr, launcher, binary: binary().to_owned(), disk: None });
        number
    }

    /// From its next start on, the daemon is run by this command.
    pub fn start_by(&mut self, number: usize, command: &[impl AsRef<str>]) {
        self.nodes[number].launcher = command.iter().map(|word| word.as_ref().to_owned()).collect();
    }

    /// What a daemon keeps is on a small disk, from its first start on. False where no disk can be mounted.
    pub fn put_on_small_disk(&mut self, number: usize) -> bool {
        let node = &mut self.nodes[number];
        node.disk = Disk::at(&node.dir);
        node.disk.is_some()
    }

    /// From its next start on, the daemon is of this build.
    pub fn install(&mut self, number: usize, binary: &Path) {
        self.nodes[number].binary = binary.to_owned();
    }

    fn spawn(&mut self, number: usize, arguments: &[&str], key: Option<&str>) {
        let seeds: Vec<String> = self.nodes.iter().filter_map(|n| n.addr).map(|a| a.to_string()).collect();
        let node = &mut self.nodes[number];
        let bind = node.addr.unwrap_or_else(|| SocketAddr::new(self.home, 0)).to_string();
        let join: Vec<String> = seeds.into_iter().filter(|s| *s != bind && self.seeds).collect();
        // What the story says of name, place and key counts, and so does a key that is kept.
        let given = |option: &str| arguments.iter().position(|a| *a == option).map(|at| arguments[at + 1]);
        let start = Start {
            binary: &node.binary,
            launcher: &node.launcher,
            name: given("--name").unwrap_or(&node.name),
            bind: given("--bind").unwrap_or(&bind),
            join: &join,
            key: key.filter(|_| given("--key").is_none() && !node.dir.join("keys").exists()),
            profile: given("--profile").or(Some("local")),
            config: given("--config"),
        };
        let mut command = node.daemon().command(&start).expect("a directory for the node");
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            match *argument {
                "--name" | "--bind" | "--profile" | "--config" => _ = rest.next(),
                other => _ = command.arg(other),
            }
        }
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
        command.args(arguments).env("PHALANX_SOCKET", self.nodes[number].daemon().socket());
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
                eprintln!("--- log of {}\n{}", node.name, node.daemon().log());
            }
            node.disk = None;
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

impl Node {
    /// What it is called.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it listens, as far as that is known.
    pub fn addr(&self) -> Option<SocketAddr> {
        self.addr
    }

    /// Where its state is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        self.daemon().log()
    }

    /// Where its control API listens.
    pub fn socket(&self) -> PathBuf {
        self.daemon().socket()
    }

    /// A client of it.
    pub fn client(&self) -> Client {
        Client::new(self.daemon().socket())
    }

    /// How it is, as soon as it answers.
    pub fn status(&self) -> Status {
        self.daemon().answer(PATIENCE).unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }

    fn daemon(&self) -> Daemon {
        Daemon::at(self.dir.clone())
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

    /// Its small disk.
    ///
    /// # Panics
    /// When it has none of its own.
    pub fn disk(&self) -> &Disk {
        self.disk.as_ref().expect("it has a disk")
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
