//! Shepherds of one job as real processes, and the test in the place of their daemons and of the console.

use phalanx_api::jobs::{self, frame_length};
use phalanx_api::run::{
    INPUT_MAX, OUTPUT, OnFailure, Program, RankEnd, Stream, ToConsole, ToConsoleShepherd, input_frame, output,
};
use phalanx_cluster::{KEY, PATIENCE, binary};
use phalanx_daemon::shepherd::words::{Crew, Terms, ToDaemon, ToShepherd, Work};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const JOB: u64 = 42;
const LOOK: Duration = Duration::from_millis(5);
/// A lease that nobody renews in a test that is not about it.
const LEASE_MS: u64 = 600_000;

/// A program with its arguments.
pub(crate) fn program(ranks: u32, argv: &[&str]) -> Program {
    let env = vec![("PATH".to_owned(), std::env::var("PATH").unwrap_or_default())];
    Program { argv: argv.iter().map(|a| (*a).to_owned()).collect(), ranks, env, wdir: "/".to_owned() }
}

/// A script of the shell.
pub(crate) fn shell(ranks: u32, script: &str) -> Vec<Program> {
    vec![program(ranks, &["sh", "-c", script])]
}

fn frame(from: &mut impl Read) -> Option<(u8, Vec<u8>)> {
    let mut head = [0; 4];
    from.read_exact(&mut head).ok()?;
    let mut body = vec![0; frame_length(head)?];
    from.read_exact(&mut body).ok()?;
    let kind = body.remove(0);
    Some((kind, body))
}

fn words(words: &impl serde::Serialize) -> Vec<u8> {
    jobs::words(&serde_json::to_vec(words).expect("words"))
}

fn connect(socket: &Path) -> UnixStream {
    let began = Instant::now();
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) => return stream,
            Err(e) => assert!(began.elapsed() < PATIENCE, "a shepherd listens: {e}"),
        }
        std::thread::sleep(LOOK);
    }
}

/// One shepherd, and what it said to its daemon.
struct Host {
    socket: PathBuf,
    process: Child,
    to: UnixStream,
    heard: mpsc::Receiver<ToDaemon>,
    said: Vec<ToDaemon>,
    /// Said before this was looked at and waited for.
    seen: Vec<bool>,
    addr: Option<SocketAddr>,
    first: u32,
    ranks: Vec<u32>,
}

fn talk(socket: &Path) -> (UnixStream, mpsc::Receiver<ToDaemon>) {
    let to = connect(socket);
    let mut from = to.try_clone().expect("a stream");
    let (tell, heard) = mpsc::channel();
    std::thread::spawn(move || {
        while let Some((kind, body)) = frame(&mut from) {
            assert_eq!(kind, jobs::WORDS);
            if tell.send(serde_json::from_slice(&body).expect("words of a shepherd")).is_err() {
                return;
            }
        }
    });
    (to, heard)
}

impl Host {
    fn tell(&mut self, said: &ToShepherd) {
        // One that was killed hears nothing.
        let _ = self.to.write_all(&words(said));
    }

    fn listen(&mut self) {
        while let Ok(said) = self.heard.try_recv() {
            if let ToDaemon::Ready { addr, first, .. } = &said {
                (self.addr, self.first) = (Some(*addr), *first);
            }
            self.said.push(said);
            self.seen.push(false);
        }
    }
}

/// The shepherds of a job.
pub(crate) struct Shepherds {
    dir: PathBuf,
    pub(crate) cluster: String,
    hosts: Vec<Host>,
    pub(crate) programs: Vec<Program>,
    pub(crate) attempt: u32,
    home: usize,
    lease_ms: u64,
}

impl Shepherds {
    /// So many, not told what to run yet. Ranks are spread over all of them, the lowest ones on the first.
    pub(crate) fn new(hosts: usize, size: u32, programs: Vec<Program>) -> Self {
        Self::with_ranks(hosts, hosts, size, programs)
    }

    fn with_ranks(hosts: usize, with_ranks: usize, size: u32, programs: Vec<Program>) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("shepherds-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = std::env::temp_dir().join(&name);
        std::fs::create_dir_all(&dir).expect("a directory");
        let terms = Terms { name: "solver".to_owned(), size, arity: 4, on_partition: jobs::OnPartition::Primary };
        let each = size.div_ceil(with_ranks as u32);
        let start = |number: usize| {
            let socket = dir.join(format!("{number}.sock"));
            let mut command = Command::new(binary());
            command.arg("shepherd").arg(&socket).stdin(Stdio::null());
            let process = command.spawn().expect("the command runs");
            let (mut to, heard) = talk(&socket);
            let begin = ToShepherd::Begin {
                terms: terms.clone(),
                bind: "127.0.0.1:0".parse().expect("an address"),
                advertise: None,
                keys: vec![(1, KEY.to_owned())],
                cluster: name.clone(),
            };
            to.write_all(&words(&begin)).expect("it listens");
            let from = (number as u32 * each).min(size);
            let ranks = if number < with_ranks { (from..(from + each).min(size)).collect() } else { Vec::new() };
            Host { socket, process, to, heard, said: Vec::new(), seen: Vec::new(), addr: None, first: 0, ranks }
        };
        let hosts: Vec<Host> = (0..hosts).map(start).collect();
        let home = hosts.len() - 1;
        Self { dir: dir.clone(), cluster: name.clone(), hosts, programs, attempt: 0, home, lease_ms: LEASE_MS }
    }

    /// So many, ready to run this; home is the last one.
    pub(crate) fn start(hosts: usize, size: u32, programs: Vec<Program>) -> Self {
        let mut all = Self::new(hosts, size, programs);
        all.prepare_and_wait();
        all
    }

    /// As [`Shepherds::start`], with one more for the console alone.
    pub(crate) fn start_with_home_apart(hosts: usize, size: u32, programs: Vec<Program>) -> Self {
        let mut all = Self::with_ranks(hosts + 1, hosts, size, programs);
        all.prepare_and_wait();
        all
    }

    pub(crate) fn home(&self) -> usize {
        self.home
    }

    pub(crate) fn ranks_of(&self, host: usize) -> Vec<u32> {
        self.hosts[host].ranks.clone()
    }

    pub(crate) fn host_of(&self, rank: u32) -> usize {
        self.hosts.iter().position(|h| h.ranks.contains(&rank)).expect("a host")
    }

    pub(crate) fn pids(&self) -> Vec<u32> {
        self.hosts.iter().map(|h| h.process.id()).collect()
    }

    fn work(&self, host: usize) -> Work {
        let nodes = self.hosts.iter().map(|h| h.ranks.iter().map(|&r| (r, r + 1)).collect()).collect();
        Work {
            job: JOB,
            attempt: self.attempt,
            life: 0,
            home: host == self.home,
            user: None,
            ranks: self.hosts[host].ranks.clone(),
            nodes,
            names: (0..self.hosts.len()).map(|n| format!("n{n}")).collect(),
            programs: self.programs.clone(),
            puts: Vec::new(),
            on_failure: OnFailure::Abort,
        }
    }

    pub(crate) fn prepare(&mut self) {
        for host in 0..self.hosts.len() {
            let work = self.work(host);
            self.hosts[host].tell(&ToShepherd::Prepare { work });
            let ms = self.lease_ms;
            self.hosts[host].tell(&ToShepherd::Lease { ms });
        }
    }

    pub(crate) fn prepare_and_wait(&mut self) {
        self.prepare();
        let attempt = self.attempt;
        for host in 0..self.hosts.len() {
            self.wait_for(host, |w| matches!(w, ToDaemon::Ready { attempt: a, .. } if *a == attempt));
        }
    }

    /// The lease of this host is over soon.
    pub(crate) fn short_lease(&mut self, host: usize) {
        self.hosts[host].tell(&ToShepherd::Lease { ms: 1000 });
    }

    fn addr(&self, host: usize) -> SocketAddr {
        self.hosts[host].addr.expect("it was ready")
    }

    pub(crate) fn go(&mut self) {
        let crew = |(n, h): (usize, &Host)| Crew {
            addr: self.addr(n),
            first: h.first,
            ranks: h.ranks.iter().map(|&r| (r, r + 1)).collect(),
        };
        let crews: Vec<Crew> = self.hosts.iter().enumerate().map(crew).collect();
        let go = ToShepherd::Go { attempt: self.attempt, home: Some(self.addr(self.home)), crews };
        self.tell_all(&go);
    }

    /// A rank starts again on this host.
    pub(crate) fn respawn(&mut self, host: usize, rank: u32, life: u32) {
        let work = Work { life, ranks: vec![rank], ..self.work(host) };
        self.hosts[host].tell(&ToShepherd::Prepare { work });
        self.wait_for(host, |w| matches!(w, ToDaemon::Ready { life: l, .. } if *l == life));
        let contacts = (0..self.hosts.len()).map(|h| self.addr(h)).collect();
        let respawn = ToShepherd::Respawn { attempt: self.attempt, life, home: Some(self.addr(self.home)), contacts };
        self.hosts[host].tell(&respawn);
    }

    pub(crate) fn tell_all(&mut self, said: &ToShepherd) {
        self.hosts.iter_mut().for_each(|h| h.tell(said));
    }

    pub(crate) fn over(&mut self, status: i32) {
        self.tell_all(&ToShepherd::Over { status, why: String::new() });
    }

    pub(crate) fn reconnect(&mut self, host: usize) {
        let host = &mut self.hosts[host];
        (host.to, host.heard) = talk(&host.socket);
        host.said.clear();
        host.seen.clear();
        host.tell(&ToShepherd::Keys { keys: vec![(1, KEY.to_owned())], cluster: self.cluster.clone() });
    }

    /// The daemon of this host goes, and does not come back.
    pub(crate) fn desert(&mut self, host: usize) {
        let _ = self.hosts[host].to.shutdown(std::net::Shutdown::Both);
    }

    /// The next thing of this kind that a shepherd says.
    pub(crate) fn wait_for(&mut self, host: usize, is_it: impl Fn(&ToDaemon) -> bool) -> ToDaemon {
        let began = Instant::now();
        let host = &mut self.hosts[host];
        loop {
            host.listen();
            if let Some(at) = (0..host.said.len()).find(|&at| !host.seen[at] && is_it(&host.said[at])) {
                host.seen[at] = true;
                return host.said[at].clone();
            }
            assert!(began.elapsed() < PATIENCE, "it said only {:#?}", host.said);
            std::thread::sleep(LOOK);
        }
    }

    pub(crate) fn wait_until(&mut self, what: &str, holds: impl Fn(&Self) -> bool) {
        let began = Instant::now();
        while !holds(self) {
            assert!(began.elapsed() < PATIENCE, "{what}");
            std::thread::sleep(LOOK);
        }
    }

    fn ends(&mut self) -> BTreeMap<u32, RankEnd> {
        let now = self.attempt;
        self.hosts.iter_mut().for_each(Host::listen);
        let said = self.hosts.iter().flat_map(|h| &h.said);
        let ended = said.filter_map(|w| match w {
            ToDaemon::Ended { attempt, ranks, .. } if *attempt == now => Some(ranks.clone()),
            _ => None,
        });
        ended.flatten().collect()
    }

    pub(crate) fn wait_for_ends(&mut self, count: usize) -> BTreeMap<u32, RankEnd> {
        let began = Instant::now();
        loop {
            let ends = self.ends();
            if ends.len() == count {
                return ends;
            }
            assert!(began.elapsed() < PATIENCE, "only {ends:?} ended");
            std::thread::sleep(LOOK);
        }
    }

    pub(crate) fn wait_for_ends_of(&mut self, ranks: &[u32]) {
        let began = Instant::now();
        while !ranks.iter().all(|r| self.ends().contains_key(r)) {
            assert!(began.elapsed() < PATIENCE, "only {:?} ended", self.ends());
            std::thread::sleep(LOOK);
        }
    }

    pub(crate) fn wait_until_gone(&mut self) {
        self.wait_until_gone_but(usize::MAX);
    }

    /// All shepherds have ended by themselves, and their sockets are gone; but for one that was killed.
    pub(crate) fn wait_until_gone_but(&mut self, killed: usize) {
        let began = Instant::now();
        for (number, host) in self.hosts.iter_mut().enumerate() {
            loop {
                if let Some(status) = host.process.try_wait().expect("a child") {
                    assert!(number == killed || (status.success() && !host.socket.exists()), "{number}: {status}");
                    break;
                }
                assert!(began.elapsed() < PATIENCE, "shepherd {number} ends");
                std::thread::sleep(LOOK);
            }
        }
    }

    /// How many deaths words of ranks have told on a host, and how many of these words proved nothing; and how many tasks live.
    pub(crate) fn notices(&mut self, host: usize) -> (u64, u64, u32) {
        self.hosts[host].tell(&ToShepherd::Show { ticket: 0 });
        match self.wait_for(host, |w| matches!(w, ToDaemon::Shown { .. })) {
            ToDaemon::Shown { view: Some(view), .. } => (view.counts.notices, view.counts.alarms, view.alive),
            other => panic!("no view: {other:?}"),
        }
    }

    /// Processes of the job that run.
    fn processes(&self) -> Vec<(i32, BTreeMap<String, String>)> {
        let pids = std::fs::read_dir("/proc").expect("proc").filter_map(|e| e.ok()?.file_name().to_str()?.parse().ok());
        let mark = format!("@{}", self.cluster);
        let of = |pid: i32| {
            let bytes = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let pairs = text.split('\0').filter_map(|v| v.split_once('='));
            let variables: BTreeMap<_, _> = pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect();
            variables.get("PHALANX_RUN").is_some_and(|m| m.ends_with(&mark)).then_some((pid, variables))
        };
        pids.filter_map(of).collect()
    }

    pub(crate) fn left(&self) -> Vec<i32> {
        self.processes().into_iter().map(|p| p.0).collect()
    }

    /// Ranks of which a process runs below a shepherd.
    pub(crate) fn ranks_that_run(&self) -> usize {
        let running = self.processes().into_iter().filter(|(pid, _)| self.parent_is_a_shepherd(*pid));
        running.filter_map(|(_, mut variables)| variables.remove("PHALANX_RANK")).collect::<BTreeSet<_>>().len()
    }

    fn stat(pid: i32) -> Vec<String> {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rest = text.rsplit_once(')').map(|r| r.1.to_owned()).unwrap_or_default();
        rest.split_whitespace().map(str::to_owned).collect()
    }

    fn parent_is_a_shepherd(&self, pid: i32) -> bool {
        let stat = Self::stat(pid);
        stat.get(1).and_then(|p| p.parse().ok()).is_some_and(|p: u32| self.pids().contains(&p))
    }

    /// The process of a rank.
    pub(crate) fn process_of(&self, rank: u32) -> i32 {
        let rank = rank.to_string();
        let found = self
            .processes()
            .into_iter()
            .find(|(pid, variables)| variables.get("PHALANX_RANK") == Some(&rank) && self.parent_is_a_shepherd(*pid));
        found.expect("it runs").0
    }

    /// Attaches to home.
    pub(crate) fn console(&mut self) -> Console {
        Console::attach(&self.hosts[self.home].socket)
    }
}

impl Drop for Shepherds {
    fn drop(&mut self) {
        for host in &mut self.hosts {
            let _ = host.process.kill();
            let _ = host.process.wait();
        }
        phalanx_daemon::shepherd::sweep::sweep(&self.cluster, |_, _| true);
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// The console of a job.
pub(crate) struct Console {
    stream: UnixStream,
    output: BTreeMap<(u32, Stream), Vec<u8>>,
    pub(crate) ends: Vec<(u32, RankEnd)>,
    pub(crate) words: Vec<ToConsole>,
    room: usize,
    status: Option<i32>,
}

impl Console {
    fn attach(socket: &Path) -> Self {
        let mut stream = connect(socket);
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        stream.write_all(&words(&ToConsoleShepherd::Attach)).expect("it listens");
        let room = phalanx_api::run::INPUT_AHEAD;
        let (output, ends, words) = (BTreeMap::new(), Vec::new(), Vec::new());
        Self { stream, output, ends, words, room, status: None }
    }

    fn read(&mut self) {
        let (kind, body) = frame(&mut self.stream).unwrap_or_else(|| {
            panic!("the shepherd says something: {:?}, {:?}, {:?}", self.ends, self.words, self.output.keys())
        });
        if kind == OUTPUT {
            let (rank, stream, bytes) = output(&body).expect("output");
            assert!(!self.ends.iter().any(|e| e.0 == rank && e.1 == RankEnd::Lost), "its end comes last");
            return self.output.entry((rank, stream)).or_default().extend(bytes);
        }
        match serde_json::from_slice(&body).expect("words for a console") {
            ToConsole::Ended { rank, end } => self.ends.push((rank, end)),
            ToConsole::Fed { bytes } => self.room += bytes as usize,
            ToConsole::Over { status } => self.status = Some(status),
            words => self.words.push(words),
        }
    }

    pub(crate) fn read_until(&mut self, holds: impl Fn(&Self) -> bool) {
        while !holds(self) {
            self.read();
        }
    }

    /// What a rank has written so far.
    pub(crate) fn text(&self, rank: u32, stream: Stream) -> String {
        self.output.get(&(rank, stream)).map(|b| String::from_utf8_lossy(b).into_owned()).unwrap_or_default()
    }

    pub(crate) fn wait_for_over(&mut self) -> i32 {
        self.read_until(|c| c.status.is_some());
        self.status.expect("just seen")
    }

    pub(crate) fn type_all(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(INPUT_MAX) {
            while self.room < piece.len() {
                self.read();
            }
            self.room -= piece.len();
            self.stream.write_all(&input_frame(piece)).expect("it listens");
        }
    }

    pub(crate) fn end_input(&mut self) {
        self.stream.write_all(&input_frame(b"")).expect("it listens");
    }

    pub(crate) fn signal(&mut self, signal: i32) {
        self.stream.write_all(&words(&ToConsoleShepherd::Signal { signal })).expect("it listens");
    }
}
