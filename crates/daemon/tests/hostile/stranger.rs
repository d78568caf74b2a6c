//! Those who do not have the key: they can hear, say again what they heard, bend it, and make noise; or they have another key.

use super::{GROUP, GROUP_PORT};
use phalanx_core::{Instant, Rng};
use phalanx_daemon::platform::udp::Options;
use phalanx_daemon::{Driver, Platform, Udp, Waker};
use phalanx_protocol::link::seal::KeyRing;
use phalanx_protocol::member::Name;
use phalanx_protocol::node::{Profile, Start};
use phalanx_protocol::segment::SegmentConfig;
use socket2::{Domain, Protocol, Socket, Type};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{self, Duration};

/// Packets of a burst, and the time between two: thousands a second, and none of those whom they hit is busy with nothing else.
const BURST: u64 = 32;
const PAUSE: Duration = Duration::from_millis(8);
const LARGEST: u64 = 1400;
const LOCALHOST: Ipv4Addr = Ipv4Addr::LOCALHOST;

fn group() -> Ipv4Addr {
    let [high, low] = GROUP.to_be_bytes();
    Ipv4Addr::new(239, 77, high, low)
}

/// What was said to the group.
pub(super) struct Echo(Vec<Vec<u8>>);

impl Echo {
    /// Hears for so long.
    pub(super) fn hear(lasts: Duration) -> Self {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).expect("a socket");
        socket.set_reuse_address(true).expect("daemons share the port");
        socket.bind(&SocketAddr::from((Ipv4Addr::UNSPECIFIED, GROUP_PORT)).into()).expect("the port of groups");
        let socket = UdpSocket::from(socket);
        socket.join_multicast_v4(&group(), &LOCALHOST).expect("loopback carries groups");
        socket.set_read_timeout(Some(Duration::from_millis(50))).expect("a socket can wait");
        let (began, mut heard, mut packet) = (time::Instant::now(), Vec::new(), [0; 2048]);
        while began.elapsed() < lasts {
            if let Ok(length) = socket.recv(&mut packet) {
                heard.push(packet[..length].to_vec());
            }
        }
        Self(heard)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

/// Ends a thread, and waits for it.
struct Thread(Arc<AtomicBool>, Option<JoinHandle<()>>);

impl Drop for Thread {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        // It has said why when it panicked.
        let _ = self.1.take().map(JoinHandle::join);
    }
}

/// Noise without an end.
pub(super) struct Flood {
    sent: Arc<AtomicU64>,
    thread: Thread,
}

impl Flood {
    /// Makes noise at these and at the group, of what was heard among other things.
    pub(super) fn start(echo: &Echo, at: &[SocketAddr]) -> Self {
        let (sent, end) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let mut to = at.to_vec();
        to.push(SocketAddr::from((group(), GROUP_PORT)));
        let mut noise = Noise { heard: echo.0.clone(), rng: Rng::new(7, 7) };
        let (counter, ends) = (Arc::clone(&sent), Arc::clone(&end));
        let thread = std::thread::spawn(move || {
            let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).expect("a socket");
            socket.set_multicast_if_v4(&LOCALHOST).expect("loopback carries groups");
            let socket = UdpSocket::from(socket);
            while !ends.load(Ordering::Relaxed) {
                for _ in 0..BURST {
                    let packet = noise.packet();
                    for to in &to {
                        // A full socket is no reason to stop.
                        counter.fetch_add(u64::from(socket.send_to(&packet, to).is_ok()), Ordering::Relaxed);
                    }
                }
                std::thread::sleep(PAUSE);
            }
        });
        Self { sent, thread: Thread(end, Some(thread)) }
    }

    /// Ends it; says how many packets were sent, each receiver counted.
    pub(super) fn stop(self) -> u64 {
        drop(self.thread);
        self.sent.load(Ordering::Relaxed)
    }
}

struct Noise {
    heard: Vec<Vec<u8>>,
    rng: Rng,
}

impl Noise {
    fn packet(&mut self) -> Vec<u8> {
        let mut packet = self.heard[self.rng.below(self.heard.len() as u64) as usize].clone();
        match self.rng.below(4) {
            // As it was.
            0 => {}
            // A bit is another one.
            1 => {
                let at = self.rng.below(packet.len() as u64) as usize;
                packet[at] ^= 1 << self.rng.below(8);
            }
            2 => packet.truncate(self.rng.below(packet.len() as u64) as usize),
            _ => {
                packet.resize(self.rng.below(LARGEST) as usize, 0);
                self.rng.fill(&mut packet);
            }
        }
        packet
    }
}

/// A whole node on the same groups, of another cluster.
pub(super) struct Stranger {
    thread: Thread,
    waker: Waker,
}

impl Stranger {
    /// One that has these keys and this name.
    pub(super) fn start(home: IpAddr, ring: KeyRing, name: &str) -> Self {
        let udp = Udp::open(Options::at(SocketAddr::new(home, 0))).expect("a socket");
        let mut entropy = [0; 64];
        Rng::new(u64::from(ring.sealing()), 3).fill(&mut entropy);
        let name = Name::new(name).expect("a name");
        let start = Start { ring: Arc::new(ring), ..Start::new(name, udp.local(), [0; 32], entropy) };
        let node = start.member(&Profile::Segment(SegmentConfig::lan(GROUP, 4)), udp.now());
        let mut driver = Driver::new(udp, node, None, 5);
        let (end, waker) = (Arc::new(AtomicBool::new(false)), driver.waker());
        let ends = Arc::clone(&end);
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                let _ = driver.poll();
                driver.news();
                driver.wait(Instant::NEVER);
            }
        });
        Self { thread: Thread(end, Some(thread)), waker }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        self.thread.0.store(true, Ordering::Relaxed);
        self.waker.wake();
    }
}
