//! A member that lies: a true node of the cluster, whose engine says more than its segment knows.

use super::GROUP;
use phalanx_core::{Addr, Boot, Code, Duration, Fingerprint, Group, Identity, Instant, Machine, Rng, Sink};
use phalanx_daemon::platform::udp::Options;
use phalanx_daemon::{Driver, Platform, Udp, Waker};
use phalanx_protocol::baselines::Start;
use phalanx_protocol::link::seal::KeyRing;
use phalanx_protocol::link::sign::Signer;
use phalanx_protocol::link::{self, Link};
use phalanx_protocol::member::{Card, Engine, Input, Name, Out, Output, Slot, Version};
use phalanx_protocol::node::Node;
use phalanx_protocol::segment::{Segment, SegmentConfig};
use phalanx_wire::baseline::{Attributes, Entry, NUMBER_MAX};
use phalanx_wire::segment::{self, Change, Packet, Pulse, Says, short};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread::JoinHandle;

/// What it is called.
pub(super) const NAME: &str = "liar";
/// Between two rounds of lies, each of which holds one of each kind.
const PAUSE: Duration = Duration::from_millis(10);
/// Members that it makes up.
const GHOSTS: u64 = 32;
/// A level in which nobody is here.
const NOWHERE: u8 = 7;

/// What a test may tell it, and see of it.
#[derive(Default)]
struct Desk {
    lies: AtomicBool,
    over: AtomicBool,
    told: AtomicU64,
    heard: AtomicUsize,
}

/// The liar, on a thread of its own.
pub(super) struct Liar {
    desk: Arc<Desk>,
    waker: Waker,
    thread: JoinHandle<()>,
}

impl Liar {
    pub(super) fn start(home: IpAddr, ring: KeyRing) -> Self {
        let mut rng = Rng::new(11, 11);
        let udp = Udp::open(Options::at(SocketAddr::new(home, 0))).expect("a socket");
        let (mut secret, mut boot) = ([0; 32], Boot::default());
        rng.fill(&mut secret);
        rng.fill(&mut boot.0);
        let signer = Signer::generate(&secret);
        let card = Card { identity: signer.identity(), addr: udp.local(), name: Name::new(NAME).expect("a name") };
        let config = Arc::new(link::Config { groups: true, ..link::Config::default() });
        let link = Link::new(config, Arc::new(ring), signer, boot, rng.u64());
        let start = Start { card, incarnation: 1, bootstrap: Vec::new(), shared: Arc::default() };
        let now = udp.now();
        let segment = Segment::new(SegmentConfig::lan(GROUP, 4), start, Rng::new(rng.u64(), 1), now);
        let desk = Arc::new(Desk::default());
        let engine = Lying { segment, heard: BTreeMap::new(), at: now, round: 0, rng, desk: At(Arc::clone(&desk)) };
        let mut driver = Driver::new(udp, Node::new(link, engine, 1400), None, 9);
        let (waker, ends) = (driver.waker(), Arc::clone(&desk));
        let thread = std::thread::spawn(move || {
            while !ends.over.load(Ordering::Relaxed) {
                let _ = driver.poll();
                driver.news();
                driver.wait(Instant::NEVER);
            }
        });
        Self { desk, waker, thread }
    }

    /// Waits until it has heard so many members say who they are, itself not among them.
    pub(super) fn wait_until_heard(&self, members: usize) {
        let began = std::time::Instant::now();
        while self.desk.heard.load(Ordering::Relaxed) + 1 < members {
            assert!(began.elapsed() < phalanx_cluster::PATIENCE, "it hears {:?}", self.desk.heard);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// From now on it lies, or does not.
    pub(super) fn lie(&self, lies: bool) {
        self.desk.lies.store(lies, Ordering::Relaxed);
    }

    /// Lies told.
    pub(super) fn told(&self) -> u64 {
        self.desk.told.load(Ordering::Relaxed)
    }

    /// It says nothing any more.
    pub(super) fn stop(self) {
        self.desk.over.store(true, Ordering::Relaxed);
        self.waker.wake();
        self.thread.join().expect("it ends");
    }
}

/// What a member said of itself.
#[derive(Clone, PartialEq, Eq)]
struct Heard {
    addr: Addr,
    name: String,
    incarnation: u64,
    minor: u32,
    counter: u64,
}

#[derive(Clone, PartialEq, Eq)]
struct Lying {
    segment: Segment,
    heard: BTreeMap<Identity, Heard>,
    at: Instant,
    round: u64,
    rng: Rng,
    desk: At,
}

/// The desk of one is that of no other.
#[derive(Clone)]
struct At(Arc<Desk>);

impl PartialEq for At {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for At {}

impl Lying {
    fn hear(&mut self, from: Identity, bytes: &[u8]) {
        let Ok(Packet { says, .. }) = Packet::parse(bytes) else { return };
        match says {
            Says::Heartbeat { entry, .. } if entry.identity == from => {
                let Entry { addr, incarnation, minor, counter, .. } = entry;
                let heard = Heard { addr, name: entry.name.to_owned(), incarnation, minor, counter };
                self.heard.insert(from, heard);
            }
            Says::Beat { pulse } => {
                self.heard.entry(from).and_modify(|heard| heard.counter = heard.counter.max(pulse.counter));
            }
            _ => {}
        }
        self.desk.0.heard.store(self.heard.len(), Ordering::Relaxed);
    }

    /// One lie of each kind.
    fn lie(&mut self, out: &mut impl Out) {
        let mut rng = Rng::new(self.rng.u64(), 2);
        self.round += 1;
        let all = Group { number: GROUP, ttl: 1 };
        let me = self.segment.me();
        let my_name = self.segment.card(me).map_or(0, |card| short(&card.identity));
        let victims: Vec<(Identity, &Heard)> = self.heard.iter().map(|(&i, heard)| (i, heard)).collect();
        if victims.is_empty() {
            return;
        }
        let (identity, heard) = victims[rng.below(victims.len() as u64) as usize];
        let entry = |counter: u64| Entry {
            identity,
            addr: heard.addr,
            name: &heard.name,
            incarnation: heard.incarnation,
            minor: heard.minor,
            counter,
            age_ms: 0,
            departed: None,
            attributes: Attributes::default(),
        };
        let far = || NUMBER_MAX / 2;
        let mut numbers = [0; 4];
        numbers.iter_mut().for_each(|number| *number = rng.below(NUMBER_MAX - 8) + 8);
        // Who leads, whom it follows and who comes next, its number and its digest: none of it is so.
        let pulse = |leads, counter| Pulse {
            leads,
            leaves: false,
            counter,
            number: numbers[0],
            digest: numbers[1],
            follows: if numbers[2].is_multiple_of(2) { short(&identity) } else { numbers[2] },
            backup: numbers[3],
        };
        let is_alive =
            self.segment.members().any(|(slot, _)| self.segment.card(slot).is_some_and(|c| c.identity == identity));
        let set = |change: Change<'_>| {
            let mut bytes = Vec::new();
            change.encode(&mut bytes);
            bytes
        };
        let mut lies: Vec<Vec<u8>> = Vec::new();
        let mut say = |write: &dyn Fn(&mut Vec<u8>)| {
            let mut bytes = Vec::new();
            write(&mut bytes);
            lies.push(bytes);
        };
        // In another's name.
        say(&|out| segment::heartbeat(0, &pulse(true, heard.counter + 9), &entry(heard.counter + 9), 0, out));
        // It leads, it follows somebody, it has told more than it has.
        say(&|out| segment::beat(0, &pulse(self.round.is_multiple_of(2), self.round), out));
        // A member as it was: of the dead one this is all that was true once. Of a living one, that it has been heard for ages.
        let counter = if is_alive { far() } else { heard.counter };
        let alive = Change::Alive { own: true, entry: entry(counter), by: 0 };
        // Numbers that jump, there and back.
        say(&|out| segment::update(0, numbers[0], [&set(alive)[..]].into_iter(), out));
        say(&|out| segment::update(0, 1 + self.round % 3, [&set(alive)[..]].into_iter(), out));
        // Somebody is gone, who has been heard since.
        let Heard { incarnation, .. } = *heard;
        let gone = Change::Gone { own: true, identity, incarnation, counter: 0, departed: None, lost: false };
        say(&|out| segment::update(0, numbers[1], [&set(gone)[..]].into_iter(), out));
        // Members that nobody else knows.
        let mut made_up = [7; 32];
        made_up[..8].copy_from_slice(&(self.round % GHOSTS).to_be_bytes());
        let name = format!("ghost{}", self.round % GHOSTS);
        let ghost = Entry { identity: Identity(made_up), name: &name, ..entry(self.round) };
        let ghost = Change::Alive { own: true, entry: ghost, by: 0 };
        say(&|out| segment::image(0, numbers[2], [ghost, alive].into_iter(), out));
        // Nobody lives; and it has it all from us.
        say(&|out| segment::image(0, numbers[3], std::iter::empty(), out));
        let ours = Change::Alive { own: false, entry: entry(heard.counter), by: my_name };
        say(&|out| segment::update(0, numbers[3], [&set(ours)[..]].into_iter(), out));
        // Levels where nobody is, leaders that are nowhere, questions without end.
        say(&|out| segment::beat(NOWHERE, &pulse(true, self.round), out));
        say(&|out| segment::update(NOWHERE, numbers[0], [&set(alive)[..]].into_iter(), out));
        say(&|out| segment::lead(0, heard.addr, out));
        say(&|out| segment::who(0, out));
        say(&|out| segment::poll(0, out));
        say(&|out| segment::greet(NOWHERE, out));
        // What cannot be read.
        let mut broken = lies[rng.below(lies.len() as u64) as usize].clone();
        let at = rng.below(broken.len() as u64) as usize;
        broken[at] ^= 1 << rng.below(8);
        lies.push(broken);
        for bytes in &lies {
            out.push(Output::Cast { group: all, bytes });
            out.push(Output::Datagram { to: heard.addr, bytes });
        }
        self.desk.0.told.fetch_add(2 * lies.len() as u64, Ordering::Relaxed);
    }
}

impl Machine for Lying {
    type Input<'a> = Input<'a>;
    type Output<'a> = Output<'a>;

    fn handle<S: for<'a> Sink<Output<'a>>>(&mut self, now: Instant, input: Input<'_>, out: &mut S) {
        if let Input::Datagram { from, bytes, .. } = &input {
            let identity = from.identity;
            self.hear(identity, bytes);
        }
        self.segment.handle(now, input, out);
    }

    fn expire<S: for<'a> Sink<Output<'a>>>(&mut self, now: Instant, out: &mut S) {
        if self.segment.deadline() <= now {
            self.segment.expire(now, out);
        }
        if self.at <= now {
            self.at = now + PAUSE;
            if self.desk.0.lies.load(Ordering::Relaxed) {
                self.lie(out);
            }
        }
    }

    fn deadline(&self) -> Instant {
        self.segment.deadline().min(self.at)
    }

    fn fingerprint(&self, print: &mut Fingerprint) {
        self.segment.fingerprint(print);
    }
}

impl Engine for Lying {
    fn me(&self) -> Slot {
        self.segment.me()
    }

    fn version(&self, member: Slot) -> Option<Version> {
        self.segment.version(member)
    }

    fn card(&self, member: Slot) -> Option<&Card> {
        self.segment.card(member)
    }

    fn members(&self) -> impl Iterator<Item = (Slot, Version)> {
        self.segment.members()
    }

    fn len(&self) -> usize {
        self.segment.len()
    }

    fn set(&mut self, now: Instant, key: &str, value: Option<&[u8]>) -> Result<(), Code> {
        self.segment.set(now, key, value)
    }

    fn attribute(&self, member: Slot, key: &str) -> Option<&[u8]> {
        self.segment.attribute(member, key)
    }

    fn attributes(&self, member: Slot) -> impl Iterator<Item = (&str, &[u8])> {
        self.segment.attributes(member)
    }

    fn leave(&mut self, now: Instant, code: u8, out: &mut impl Out) {
        self.segment.leave(now, code, out);
    }
}
