//! CL-2, 004 §3: in steady state a message costs no allocation, on the way out or on the way in.
//!
//! Every allocation of a thread is counted while it carries 10,000 messages, after a warm-up in which pools, queues
//! and tables have grown to what the load needs. Not one is allowed: "few" would be a number to argue about.

use phalanx_core::{Addr, Buf, Code, Duration, Endpoint};
use phalanx_daemon::{Host, Platform};
use phalanx_papers::party::{FROM, KEY, TO, config};
use phalanx_papers::{OverThreads, OverUdp, World};
use phalanx_protocol::link::Output;
use phalanx_protocol::link::seal::KeyRing;
use phalanx_protocol::link::sign::Signer;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The system's allocator, and how often each thread asked it for memory.
struct Counting;

thread_local! {
    /// Without a destructor and constant at first: touching it allocates nothing.
    static ASKED: Cell<u64> = const { Cell::new(0) };
    /// The next request is one that must not be.
    static WATCHED: Cell<bool> = const { Cell::new(false) };
}

fn count() {
    ASKED.set(ASKED.get() + 1);
    // Whoever breaks this wants to know where. The trace itself allocates, which is neither watched nor counted.
    if WATCHED.replace(false) {
        let asked = ASKED.get();
        eprintln!("{}", std::backtrace::Backtrace::force_capture());
        ASKED.set(asked);
    }
}

// The trait is unsafe by nature, and there is no other way to see an allocation. Each call is handed on as it is.
#[allow(unsafe_code)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        unsafe { System.dealloc(place, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, place: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        unsafe { System.realloc(place, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Messages carried while every allocation counts.
const MESSAGES: usize = 10_000;
/// Sizes of RL-3, from a heartbeat to several packets' worth.
const SIZES: [usize; 3] = [64, 1024, 4096];
/// Messages that a stream hands over before it polls.
const BURST: usize = 48;
/// Buffers of each size in a pool that has seen a large burst: a full send queue of 4 MiB and what a poll sends.
const POOLED: usize = 1000;
/// Messages under way at most in a stream of datagrams: what a kernel buffer takes without loss.
const AHEAD: usize = 128;

/// Packets between two ends at most: several times what RCL's credit allows.
const CROWD: usize = 600;
/// How long a receiver sleeps at most before it looks whether all is over.
const NAP: Duration = Duration::from_millis(1);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Layer {
    Cl,
    Rcl,
}

/// One end of the traffic: sends, counts what it hears.
struct End<P> {
    host: Host<P>,
    peer: Option<Endpoint>,
    heard: usize,
}

impl<P: Platform> End<P> {
    fn open<W: World<Platform = P>>(world: &W, number: u8) -> Self {
        let signer = Signer::generate(&[number; 32]);
        let host = Host::new(world.open(), config::<W>(), KeyRing::new(1, KEY), signer);
        Self { host, peer: None, heard: 0 }
    }

    fn poll(&mut self) {
        let Self { host, peer, heard } = self;
        let polled = host.poll(&mut |output| match output {
            Output::Datagram { .. } | Output::Message { .. } => *heard += 1,
            Output::Up { node, .. } => *peer = Some(Endpoint { node, port: TO }),
            Output::Down { code, .. } => panic!("the session ended: {code}"),
            _ => {}
        });
        polled.expect("the platform works");
    }

    /// False when there is no room now.
    fn send(&mut self, layer: Layer, message: &[u8]) -> bool {
        let to = self.peer.expect("they have met");
        let sent = match layer {
            Layer::Cl => self.host.send(FROM, to, message),
            Layer::Rcl => self.host.send_reliable(FROM, to, message),
        };
        match sent {
            Ok(()) => true,
            Err(Code::LocalResource | Code::RemoteResource) => false,
            Err(code) => panic!("a send was refused: {code}"),
        }
    }
}

/// Two ends in one thread: everything that either does is counted.
struct Two<P> {
    a: End<P>,
    b: End<P>,
}

impl<P: Platform> Two<P> {
    fn open<W: World<Platform = P>>(world: &W) -> Self {
        let mut two = Self { a: End::open(world, 1), b: End::open(world, 2) };
        let at_b: Addr = two.b.host.local();
        let node = two.a.host.peer(at_b).expect("room for a peer");
        two.a.host.send(FROM, Endpoint { node, port: TO }, b"hello").expect("the first datagram waits");
        two.until(|two| two.a.peer.is_some() && two.b.peer.is_some() && two.b.heard == 1);
        two
    }

    fn until(&mut self, so: impl Fn(&Self) -> bool) {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while !so(self) {
            assert!(std::time::Instant::now() < end, "{} and {} heard", self.a.heard, self.b.heard);
            self.a.poll();
            self.b.poll();
        }
    }

    /// Fills the queues between the two as far as a receiver that is kept from running would let them fill.
    fn crowd(&mut self) {
        let (a, b) = (self.a.heard, self.b.heard);
        for _ in 0..CROWD {
            assert!(self.a.send(Layer::Cl, &[7; 64]) && self.b.send(Layer::Cl, &[7; 64]));
        }
        self.a.host.flush();
        self.b.host.flush();
        self.until(|two| two.a.heard == a + CROWD && two.b.heard == b + CROWD);
    }

    fn ping_pong(&mut self, layer: Layer, message: &[u8], times: usize) {
        for _ in 0..times {
            let (a, b) = (self.a.heard, self.b.heard);
            assert!(self.a.send(layer, message));
            self.until(|two| two.b.heard > b);
            assert!(self.b.send(layer, message));
            self.until(|two| two.a.heard > a);
        }
    }

    /// A to B, as fast as B takes it.
    fn stream(&mut self, layer: Layer, message: &[u8], times: usize) {
        let (first, mut sent) = (self.b.heard, 0);
        while sent < times {
            for _ in 0..BURST.min(times - sent) {
                let ahead = first + sent - self.b.heard;
                if (layer == Layer::Cl && ahead >= AHEAD) || !self.a.send(layer, message) {
                    break;
                }
                sent += 1;
            }
            self.a.poll();
            self.b.poll();
        }
        self.until(|two| two.b.heard == first + times);
    }
}

/// Runs `work` and says how often this thread asked for memory in it.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = ASKED.get();
    WATCHED.set(true);
    work();
    WATCHED.set(false);
    ASKED.get() - before
}

/// Leaves this thread's pool as the largest burst would: how large a burst gets depends on how often the machine
/// lets each end run, and a test must not.
fn remember_a_large_burst() {
    for length in [100, 500, 2000, 9000, 16_000] {
        drop((0..POOLED).map(|_| Buf::new(0, length)).collect::<Vec<_>>());
    }
}

fn no_message_costs_an_allocation<W: World>(layer: Layer) {
    let mut two = Two::open(&W::default());
    remember_a_large_burst();
    two.crowd();
    for size in SIZES {
        let message = vec![7; size];
        two.ping_pong(layer, &message, 300);
        let ping_pong = allocations(|| two.ping_pong(layer, &message, MESSAGES / 2));
        two.stream(layer, &message, MESSAGES / 2);
        let stream = allocations(|| two.stream(layer, &message, MESSAGES));
        assert_eq!((ping_pong, stream), (0, 0), "{layer:?} over {} with {size} bytes", W::NAME);
    }
}

#[test]
fn cl_2_datagrams_over_udp_allocate_nothing() {
    no_message_costs_an_allocation::<OverUdp>(Layer::Cl);
}

#[test]
fn cl_2_datagrams_between_threads_allocate_nothing() {
    no_message_costs_an_allocation::<OverThreads>(Layer::Cl);
}

#[test]
fn rl_1_reliable_messages_over_udp_allocate_nothing() {
    no_message_costs_an_allocation::<OverUdp>(Layer::Rcl);
}

#[test]
fn rl_1_reliable_messages_between_threads_allocate_nothing() {
    no_message_costs_an_allocation::<OverThreads>(Layer::Rcl);
}

/// Buffers that change threads find their way back: neither thread allocates.
#[test]
fn cl_2_a_stream_from_one_thread_to_another_allocates_on_neither() {
    crossing::<OverUdp>();
    crossing::<OverThreads>();
}

fn crossing<W: World>()
where
    W::Platform: Send + 'static,
{
    let mut two = Two::open(&W::default());
    two.crowd();
    let Two { mut a, mut b } = two;
    let first = b.heard;
    let over = Arc::new(AtomicBool::new(false));
    let ended = Arc::clone(&over);
    let receiver = std::thread::spawn(move || {
        let mut listen = |enough: &dyn Fn(usize) -> bool| {
            while !enough(b.heard - first) && !ended.load(Ordering::Relaxed) {
                b.host.wait(b.host.now() + NAP);
                b.poll();
            }
        };
        remember_a_large_burst();
        listen(&|heard| heard >= 2 * MESSAGES);
        let counted = allocations(|| listen(&|heard| heard >= 3 * MESSAGES));
        // The last acknowledgement is still to be sent.
        listen(&|_| false);
        counted
    });
    let mut speak = || {
        let mut sent = 0;
        while sent < MESSAGES {
            while sent < MESSAGES && a.send(Layer::Rcl, &[7; 1024]) {
                sent += 1;
            }
            a.poll();
        }
        // Not before all is acknowledged: what is measured next begins from rest.
        while a.host.link().backlog(a.peer.expect("they have met").node) > 0 {
            a.poll();
        }
    };
    remember_a_large_burst();
    speak();
    speak();
    let sending = allocations(speak);
    over.store(true, Ordering::Relaxed);
    let receiving = receiver.join().expect("the receiver ends");
    assert_eq!((sending, receiving), (0, 0), "sender and receiver over {}", W::NAME);
}

/// The counter counts: a test that cannot fail proves nothing.
#[test]
fn an_allocation_is_seen() {
    let before = ASKED.get();
    drop(std::hint::black_box(Box::new(7)));
    assert_eq!(ASKED.get() - before, 1);
    assert_eq!(allocations(|| drop(std::hint::black_box(Vec::<u8>::new()))), 0);
}

/// TG-4: a query that was asked once is asked again without an allocation, its regular expression included.
#[test]
fn tg_4_to_ask_a_query_again_allocates_nothing() {
    use phalanx_core::{Identity, Instant, Rng};
    use phalanx_protocol::directory::{Directory, Query, Service, load, register};
    use phalanx_protocol::member::{Card, Engine, Name, Roster};
    use phalanx_protocol::zone::{Config, Zone};
    let name = |text: &str| Name::new(text).expect("a name");
    let card = Card { identity: Identity([1; 32]), addr: Addr::Local(1), name: name("a") };
    let (config, roster) = (Arc::new(Config::lan()), Roster::new(Arc::default(), 8));
    let mut zone = Zone::new(&config, roster, &card, 1, &Arc::from([]), Rng::new(1, 1), Instant::ZERO);
    for port in 0..100 {
        let service = Service::new(name("cache-users")).port(port).partitions(3, 9).tag("hot").parameter("k", "v");
        register(&mut zone, Instant::ZERO, &service).expect("room");
    }
    zone.set(Instant::ZERO, load::LOAD, Some(b"0.25")).expect("room");
    let text = "name =~ 'cache-.*' and partition in 4..5 and k in [u, v] and load < 0.5 and not port == 7";
    let query = Query::parse(text).expect("a query");
    let ask = || Directory::of(&zone).find(&query).count();
    assert_eq!(ask(), 99);
    assert_eq!(allocations(|| assert_eq!(ask(), 99)), 0);
}

/// TG-4: nor does a look-up in a program's own memory.
#[test]
fn tg_4_to_look_something_up_in_memory_allocates_nothing() {
    use phalanx_client::api::directory::{Directory, Entry};
    use phalanx_client::api::{Member, Offer, Phase, State};
    use phalanx_client::directory::{Book, Query};
    let entry = |n: u16| {
        let member = Member {
            name: format!("n{n}"),
            id: format!("{n:x}"),
            addr: "10.0.0.1:7946".parse().expect("an address"),
            state: State::Alive,
            zone: None,
            incarnation: 1,
            minor: 0,
            me: false,
            part: None,
            teller: None,
        };
        let offer = |port| Offer {
            name: format!("cache-{}", port % 10),
            port: Some(port),
            partitions: vec![(3, 9)],
            tags: ["hot".to_owned()].into(),
            parameters: [("k".to_owned(), "v".to_owned())].into(),
        };
        let attributes = [("phalanx.load".to_owned(), "0.25".to_owned())].into();
        Entry { attributes, services: (0..100).map(offer).collect(), ..Entry::new(member) }
    };
    let book = Book::from(Directory { event: 1, phase: Phase::Member, entries: (0..10).map(entry).collect() });
    let rest = "partition in 4..5 and k in [u, v] and load < 0.5 and not port == 7";
    for (names, found) in
        [("name == cache-7", 90), ("name in [cache-7, x]", 90), ("name =~ 'cache-.*'", 990), ("has name", 990)]
    {
        let query = Query::parse(&format!("{names} and {rest}")).expect("a query");
        let ask = || book.find(&query).count();
        assert_eq!(ask(), found, "{names}");
        assert_eq!(allocations(|| assert_eq!(ask(), found)), 0, "{names}");
    }
}
