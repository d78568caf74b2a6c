//! A real etcd of one node, for seats of casts that are kept outside the cluster.

use crate::PATIENCE;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// An etcd on a loopback address of its own, and its data. Both end with it, also when a test panics.
#[derive(Debug)]
pub struct Etcd {
    clients: SocketAddr,
    peers: SocketAddr,
    dir: PathBuf,
    child: Option<Child>,
}

impl Etcd {
    /// One that does not run yet; `None` where there is no etcd.
    ///
    /// # Panics
    /// When this machine gives it no address or no directory.
    #[must_use]
    pub fn new() -> Option<Self> {
        static NEXT: AtomicU8 = AtomicU8::new(1);
        if Command::new("etcd").arg("--version").stdout(Stdio::null()).status().is_err() {
            eprintln!("skipped: there is no `etcd` (Debian: etcd-server)");
            return None;
        }
        let (number, pid) = (NEXT.fetch_add(1, Ordering::Relaxed), std::process::id());
        let host = Ipv4Addr::new(127, 41, (pid % 256) as u8, number);
        let free = || TcpListener::bind((host, 0)).and_then(|l| l.local_addr()).expect("loopback has addresses");
        let dir = std::env::temp_dir().join(format!("phalanx-etcd-{pid}-{number}"));
        std::fs::create_dir_all(&dir).expect("a directory for tests");
        Some(Self { clients: free(), peers: free(), dir, child: None })
    }

    /// One that runs.
    #[must_use]
    pub fn running() -> Option<Self> {
        let mut etcd = Self::new()?;
        etcd.start();
        Some(etcd)
    }

    /// Where it is asked.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}", self.clients)
    }

    /// Starts it, with the data that it had, and waits until it answers.
    ///
    /// # Panics
    /// When it does not.
    pub fn start(&mut self) {
        let (clients, peers) = (self.url(), format!("http://{}", self.peers));
        let log = File::options().append(true).create(true).open(self.dir.join("log")).expect("a log");
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(self.dir.join("data")).args(["--name", "only", "--log-outputs", "stderr"]);
        command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
        command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
        command.args(["--initial-cluster", &format!("only={peers}")]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().expect("etcd starts"));
        let began = Instant::now();
        while !self.is_well() {
            let log = || std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
            assert!(began.elapsed() < PATIENCE, "etcd does not answer\n{}", log());
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn is_well(&self) -> bool {
        let mut said = String::new();
        TcpStream::connect(self.clients).is_ok_and(|mut stream| {
            let asked = stream.write_all(b"GET /health HTTP/1.0\r\n\r\n");
            asked.and_then(|()| stream.read_to_string(&mut said)).is_ok() && said.contains("\"true\"")
        })
    }

    /// kill -9.
    ///
    /// # Panics
    /// When it does not run.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("it is ours");
        child.wait().expect("it is ours");
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        if self.child.is_some() {
            self.kill();
        }
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
