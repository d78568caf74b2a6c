//! A crowd: many whole nodes of any engine in one process, link and all, each on real UDP sockets and a thread of its own.
//!
//! One host has one loopback, which no router divides. So each network of 20 has a multicast group of its own for what is sent with a TTL of 1,
//! as the paper's experiment had channels (003 §5.2): [`Network`] stands between a node and its sockets, and counts what comes in.
//!
//! A node that dies just stops. Its sockets stay open, so that nothing is said of it, as by a host that has lost its power.

use super::{GROUP, GROUP_NUMBER};
use phalanx_core::{Addr, Boot, Buf, Code, Group, Instant, Rng};
use phalanx_daemon::driver::News;
use phalanx_daemon::platform::udp::Options;
use phalanx_daemon::{Driver, Platform, Udp, Waker, Woke};
use phalanx_protocol::link::seal::KeyRing;
use phalanx_protocol::link::sign::Signer;
use phalanx_protocol::link::{self, Link};
use phalanx_protocol::member::{Card, Engine, Frozen, Name, Why};
use phalanx_protocol::node::Node;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};
use std::time;

/// Everybody's bootstrap set is the first of them.
const SEEDS: usize = 8;
/// What a datagram has around it: IPv4 and UDP, as in the simulator.
const HEADERS: u64 = phalanx_sim::HEADERS;
/// Groups of level 0, one for each network, lie above those of all levels.
const NETWORKS: u16 = 256;
/// Identities and keys.
const SEED: u64 = 1;

/// What an engine begins with.
pub(super) struct Birth {
    pub(super) card: Card,
    pub(super) seeds: Vec<Addr>,
    pub(super) known: Arc<Frozen>,
    pub(super) rng: Rng,
    pub(super) now: Instant,
}

/// A node's view changed: who saw whom go, and whether it was taken for dead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Left {
    pub(super) observer: u32,
    pub(super) subject: u32,
    pub(super) at: time::Instant,
}

/// What is known of a node from outside.
#[derive(Debug, Default)]
struct Board {
    state: AtomicU8,
    /// Members in its view.
    alive: AtomicU32,
    /// Levels that it leads.
    leads: AtomicUsize,
    /// IP bytes that it heard.
    heard: AtomicU64,
}

const RUNS: u8 = 0;
const DEAD: u8 = 1;
const OVER: u8 = 2;

/// Many nodes.
pub(super) struct Crowd {
    boards: Arc<[Board]>,
    seats: Vec<(Waker, JoinHandle<()>)>,
    left: mpsc::Receiver<Left>,
}

impl Crowd {
    /// Starts so many nodes on loopback; `leads` says how many levels one leads.
    ///
    /// # Errors
    /// What the system said: most often that there are too few descriptors or threads.
    pub(super) fn start<E: Engine + Send + 'static>(
        nodes: u32,
        engine: impl Fn(Birth) -> E,
        leads: fn(&E) -> usize,
    ) -> io::Result<Self> {
        // Who leads depends on identities: the same nodes in each run.
        let mut rng = Rng::new(SEED, nodes.into());
        let mut key = [0; 32];
        rng.fill(&mut key);
        let ring = Arc::new(KeyRing::new(1, key));
        let config = Arc::new(link::Config { groups: true, ..link::Config::default() });
        let group_port = free_port()?;
        let boards: Arc<[Board]> = (0..nodes).map(|_| Board::default()).collect();
        let mut sockets = Vec::new();
        for n in 0..nodes {
            let at = SocketAddr::from(([127, 0, 0, 1], 0));
            let udp = Udp::open(Options { group_port, ..Options::at(at) })?;
            let mut secret = [0; 32];
            rng.fill(&mut secret);
            let signer = Signer::generate(&secret);
            let name = Name::new(&format!("n{n}")).expect("a letter and digits");
            let card = Card { identity: signer.identity(), addr: udp.local(), name };
            sockets.push((udp, signer, card));
        }
        let known = Arc::new(Frozen::new(sockets.iter().map(|(_, _, card)| (card.clone(), 1))));
        let seeds: Vec<Addr> = sockets.iter().take(SEEDS).map(|(udp, ..)| udp.local()).collect();
        let (tell, left) = mpsc::channel();
        let mut crowd = Self { boards, seats: Vec::new(), left };
        for (n, (udp, signer, card)) in (0..nodes).zip(sockets) {
            let mut udp = Network { udp, number: NETWORKS + (n / GROUP) as u16, boards: Arc::clone(&crowd.boards), n };
            let largest = udp.max_datagram(udp.local()) as u16;
            let mut boot = Boot::default();
            rng.fill(&mut boot.0);
            let link = Link::new(Arc::clone(&config), Arc::clone(&ring), signer, boot, rng.u64());
            let (seeds, known, now) = (seeds.clone(), Arc::clone(&known), udp.now());
            let engine = engine(Birth { card, seeds, known, rng: Rng::new(rng.u64(), 1), now });
            let driver = Driver::new(udp, Node::new(link, engine, largest), None, n.into());
            let (waker, tell, boards) = (driver.waker(), tell.clone(), Arc::clone(&crowd.boards));
            let thread =
                thread::Builder::new().name(format!("n{n}")).spawn(move || drive(driver, n, &boards, &tell, leads))?;
            crowd.seats.push((waker, thread));
        }
        Ok(crowd)
    }

    /// Waits until each living node sees `alive` members; false when it has not come to that within `bound`.
    pub(super) fn sees(&self, alive: u32, bound: time::Duration) -> bool {
        let until = time::Instant::now() + bound;
        loop {
            let living = self.boards.iter().filter(|b| b.state.load(Ordering::Relaxed) == RUNS);
            if living.map(|b| b.alive.load(Ordering::Relaxed)).all(|n| n == alive) {
                return true;
            }
            if time::Instant::now() >= until {
                return false;
            }
            thread::sleep(time::Duration::from_millis(20));
        }
    }

    /// The first from `from` on that lives and leads so many levels.
    pub(super) fn that_leads(&self, levels: usize, from: u32) -> Option<u32> {
        let is = |b: &Board| b.state.load(Ordering::Relaxed) == RUNS && b.leads.load(Ordering::Relaxed) == levels;
        (from..).zip(self.boards.iter().skip(from as usize)).find(|(_, b)| is(b)).map(|(n, _)| n)
    }

    /// The most levels that one leads.
    pub(super) fn levels(&self) -> usize {
        let living = self.boards.iter().filter(|b| b.state.load(Ordering::Relaxed) == RUNS);
        living.map(|b| b.leads.load(Ordering::Relaxed)).max().unwrap_or(0)
    }

    /// IP bytes that all have heard so far.
    pub(super) fn heard(&self) -> u64 {
        self.boards.iter().map(|b| b.heard.load(Ordering::Relaxed)).sum()
    }

    /// A node stops; when that was.
    pub(super) fn kill(&self, node: u32) -> time::Instant {
        self.boards[node as usize].state.store(DEAD, Ordering::Release);
        self.seats[node as usize].0.wake();
        time::Instant::now()
    }

    /// The next that somebody saw go, unless nobody did until then.
    pub(super) fn left(&self, until: time::Instant) -> Option<Left> {
        self.left.recv_timeout(until.saturating_duration_since(time::Instant::now())).ok()
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.boards.iter().for_each(|b| b.state.store(OVER, Ordering::Release));
        for (waker, thread) in self.seats.drain(..) {
            waker.wake();
            thread.thread().unpark();
            // It holds nothing that a panic could have broken.
            let _ = thread.join();
        }
    }
}

fn drive<E: Engine>(
    mut driver: Driver<Network, Node<E>>,
    n: u32,
    boards: &[Board],
    tell: &mpsc::Sender<Left>,
    leads: fn(&E) -> usize,
) {
    let board = &boards[n as usize];
    loop {
        match board.state.load(Ordering::Acquire) {
            RUNS => {}
            DEAD => {
                thread::park();
                continue;
            }
            _ => return,
        }
        // What a socket says of itself is for the node to bear, as in a network that loses things.
        let _ = driver.poll();
        for news in driver.news() {
            if let News::Left { member, why, .. } = news
                && why != Why::Replaced
            {
                // All are in the roster that they share, in the order of their numbers. Who asked may have heard enough.
                let _ = tell.send(Left { observer: n, subject: member.0, at: time::Instant::now() });
            }
        }
        let engine = driver.node().engine();
        board.alive.store(engine.len() as u32, Ordering::Relaxed);
        board.leads.store(leads(engine), Ordering::Relaxed);
        driver.wait(Instant::NEVER);
    }
}

/// The sockets of a node, in its network.
struct Network {
    udp: Udp,
    /// The group that stands for level 0 here.
    number: u16,
    boards: Arc<[Board]>,
    n: u32,
}

impl Network {
    /// Level 0 is heard in the network only.
    fn within(&self, group: Group) -> Group {
        if group.number == GROUP_NUMBER { Group { number: self.number, ..group } } else { group }
    }

    fn at(&self, to: Addr) -> Addr {
        if let Addr::Group(group) = to { Addr::Group(self.within(group)) } else { to }
    }
}

impl Platform for Network {
    fn local(&self) -> Addr {
        self.udp.local()
    }

    fn max_datagram(&mut self, to: Addr) -> usize {
        self.udp.max_datagram(self.at(to))
    }

    fn send(&mut self, to: Addr, packet: Buf, ticket: Option<u32>) -> Result<(), Code> {
        self.udp.send(self.at(to), packet, ticket)
    }

    fn answer(&mut self, to: Addr, packet: Buf, ticket: Option<u32>) -> Result<(), Code> {
        self.udp.answer(self.at(to), packet, ticket)
    }

    fn flush(&mut self, done: &mut impl FnMut(u32, Result<(), Code>)) {
        self.udp.flush(done);
    }

    fn receive(&mut self, each: &mut impl FnMut(Addr, &mut [u8])) -> Result<usize, Code> {
        let heard = &self.boards[self.n as usize].heard;
        self.udp.receive(&mut |from, bytes| {
            heard.fetch_add(bytes.len() as u64 + HEADERS, Ordering::Relaxed);
            each(from, bytes);
        })
    }

    fn wait(&mut self, until: Instant) -> Woke {
        self.udp.wait(until)
    }

    fn waker(&self) -> Waker {
        self.udp.waker()
    }

    fn now(&self) -> Instant {
        self.udp.now()
    }

    fn join(&mut self, group: Group) -> Result<(), Code> {
        self.udp.join(self.within(group))
    }

    fn leave(&mut self, group: Group) -> Result<(), Code> {
        self.udp.leave(self.within(group))
    }

    fn trouble(&mut self) -> Option<(Addr, Code)> {
        self.udp.trouble()
    }
}

/// A port for groups that no other crowd of this machine uses.
fn free_port() -> io::Result<u16> {
    Ok(UdpSocket::bind(("0.0.0.0", 0))?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::segment::{Profile, leads, segment};
    use phalanx_protocol::baselines::Start;
    use phalanx_protocol::segment::Segment;

    /// Real sockets, real seals: two networks of which each hears its own level 0 only see each other through their leaders.
    #[test]
    fn networks_of_one_host_see_each_other_and_who_stops_is_missed() {
        let nodes = GROUP + 2;
        let config = segment(Profile::Lan, nodes);
        let engine = |b: Birth| {
            let start = Start { card: b.card, incarnation: 1, bootstrap: b.seeds, shared: b.known };
            Segment::new(config, start, b.rng, b.now)
        };
        let crowd = Crowd::start(nodes, engine, leads).unwrap();
        assert!(crowd.sees(nodes, time::Duration::from_secs(60)));
        assert!(crowd.levels() > 0);
        assert!(crowd.heard() > 0);
        let victim = crowd.that_leads(0, 3).unwrap();
        let at = crowd.kill(victim);
        assert!(crowd.sees(nodes - 1, time::Duration::from_secs(60)));
        let left = crowd.left(time::Instant::now()).unwrap();
        assert!(left.at > at && left.observer != victim);
    }

    #[test]
    fn level_0_is_another_group_in_each_network() {
        let network = |number| {
            let udp = Udp::open(Options::at("127.0.0.1:0".parse().unwrap())).unwrap();
            Network { udp, number, boards: Arc::new([]), n: 0 }
        };
        let (a, b) = (network(NETWORKS), network(NETWORKS + 1));
        let (near, far) = (Group { number: GROUP_NUMBER, ttl: 1 }, Group { number: GROUP_NUMBER + 1, ttl: 2 });
        assert_ne!(a.within(near), b.within(near));
        assert_eq!((a.at(Addr::Group(far)), b.within(far)), (Addr::Group(far), far));
    }
}
