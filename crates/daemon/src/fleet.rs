//! A fleet: many nodes in one process, each with its own sockets, for trying large clusters on one machine.
//!
//! A few threads (*crews*) drive them all: each waits for the sockets of its nodes at once. The nodes share one listener
//! for tripwires, and what they know of each other's cards. Everything else is as in a daemon: real datagrams, sealed by a
//! real key, and a node that is killed is gone without a word.

use crate::clock::Clock;
use crate::driver::{Driver, News};
use crate::platform::Waker;
use crate::platform::poller::Poller;
use crate::platform::udp::Options;
use crate::wires::Wires;
use crate::{Platform, Udp};
use nix::sys::epoll::EpollFlags;
use nix::sys::eventfd::{EfdFlags, EventFd};
use phalanx_core::{Addr, Duration, Instant};
use phalanx_protocol::link::seal::KeyRing;
use phalanx_protocol::member::{Engine, Frozen, Name, Why};
use phalanx_protocol::node::{Node, Start};
use phalanx_protocol::zone::{Config, Zone};
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::SystemTime;

/// Seeds of a fleet.
const SEEDS: usize = 4;
/// Nodes that start at first.
const FIRST_WAVE: usize = 64;
/// A crew looks at its orders at least so often.
const ROUND: Duration = Duration::from_millis(5);

/// The bell's mark in a crew's poller; nodes are marked by their places.
const CALLED: u64 = u64::MAX - 1;

/// A node, by its number.
type Driven = (usize, Driver<Udp, Node<Zone>>);

/// What is known of a node from outside.
#[derive(Debug, Default)]
struct Board {
    /// Members in its view; 0 before it starts, and once it was killed.
    alive: AtomicU32,
    /// When its view last changed, by the fleet's clock.
    changed_at: AtomicU64,
    /// Members that it took for dead, and those of them that nobody had killed.
    failed: AtomicU32,
    wrong: AtomicU32,
    /// It was killed, or will be at once.
    killed: AtomicBool,
}

/// A node's view changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// Whose view.
    pub observer: usize,
    /// Who came or went.
    pub subject: usize,
    /// Whether it is there now.
    pub alive: bool,
    /// When.
    pub at: SystemTime,
}

/// What befalls a node.
#[derive(Clone, Copy, Debug)]
enum Order {
    Kill(usize),
    Pause(usize),
    Resume(usize),
}

impl Order {
    const fn node(self) -> usize {
        match self {
            Self::Kill(node) | Self::Pause(node) | Self::Resume(node) => node,
        }
    }
}

/// Many nodes.
#[derive(Debug)]
pub struct Fleet {
    boards: Arc<[Board]>,
    crews: Vec<Crew>,
    clock: Clock,
    end: Arc<AtomicBool>,
    _wires: Wires,
}

#[derive(Debug)]
struct Crew {
    orders: mpsc::Sender<Order>,
    thread: Option<JoinHandle<()>>,
}

impl Fleet {
    /// Starts so many nodes on loopback, driven by so many threads.
    ///
    /// # Errors
    /// What the system said: most often that there are too few descriptors.
    pub fn start(nodes: usize, threads: usize, profile: &Config) -> io::Result<Self> {
        Self::start_watched(nodes, threads, profile, None)
    }

    /// The same; each change of each view is told.
    ///
    /// # Errors
    /// As for [`Fleet::start`].
    pub fn start_watched(
        nodes: usize,
        threads: usize,
        profile: &Config,
        changes: Option<&mpsc::Sender<Change>>,
    ) -> io::Result<Self> {
        let mut key = [0; 32];
        getrandom::fill(&mut key).map_err(|e| io::Error::other(e.to_string()))?;
        let ring = Arc::new(KeyRing::new(1, key));
        let wires = Wires::open("127.0.0.1:0".parse().expect("an address"), Arc::clone(&ring), true)?;
        let mut starts = Vec::with_capacity(nodes);
        let mut sockets = Vec::with_capacity(nodes);
        for n in 0..nodes {
            let at = SocketAddr::from(([127, 0, 0, 1], 0));
            let mut udp = Udp::open(Options { crowded: true, ..Options::at(at) })?;
            let mut entropy = [0; 64];
            getrandom::fill(&mut entropy).map_err(|e| io::Error::other(e.to_string()))?;
            let name = Name::new(&format!("n{}", n + 1)).expect("a letter and digits");
            let start = Start::new(name, udp.local(), key, entropy);
            // All paths are the same.
            let largest = udp.max_datagram(udp.local()) as u16;
            starts.push(Start { ring: Arc::clone(&ring), profile: profile.clone(), largest, ..start });
            sockets.push(udp);
        }
        let known = Arc::new(Frozen::new(starts.iter().map(|s| (s.card(), 1))));
        let seeds: Vec<Addr> = starts.iter().take(SEEDS).map(|s| s.addr).collect();
        let boards: Arc<[Board]> = (0..nodes).map(|_| Board::default()).collect();
        let (clock, end) = (Clock::start(), Arc::new(AtomicBool::new(false)));
        let mut hands: Vec<Vec<Driven>> = (0..threads.max(1)).map(|_| Vec::new()).collect();
        let bells = hands.iter().map(|_| Ok(Arc::new(Bell::new()?))).collect::<io::Result<Vec<_>>>()?;
        for (n, (start, udp)) in starts.into_iter().zip(sockets).enumerate() {
            let start = Start { known: Arc::clone(&known), seeds: seeds.clone(), ..start };
            let Addr::Ip(addr) = start.addr else { return Err(io::ErrorKind::AddrNotAvailable.into()) };
            let crew = n % hands.len();
            let (bell, place) = (Arc::clone(&bells[crew]), hands[crew].len());
            let handle = profile.tripwires.then(|| wires.enter(addr, Waker::new(move || bell.ring(place))));
            let driver = Driver::new(udp, start.node(Instant::ZERO), handle, n as u64);
            hands[crew].push((n, driver));
        }
        let waves = Arc::new(Waves::new(nodes));
        let crews = hands.into_iter().zip(bells).map(|(nodes, bell)| {
            let (orders, given) = mpsc::channel();
            let (boards, end, waves) = (Arc::clone(&boards), Arc::clone(&end), Arc::clone(&waves));
            let changes = changes.cloned();
            let thread = std::thread::Builder::new().name("crew".into()).spawn(move || {
                // Without a poller nobody is driven, and nobody ever sees anybody: the caller waits in vain, and says so.
                if let Ok(work) = Work::new(nodes, bell, waves, boards, clock, changes) {
                    work.run(&given, &end);
                }
            })?;
            Ok(Crew { orders, thread: Some(thread) })
        });
        let crews = crews.collect::<io::Result<Vec<_>>>()?;
        Ok(Self { boards, crews, clock, end, _wires: wires })
    }

    /// Kills nodes: their sockets are closed, and they say nothing.
    pub fn kill(&self, nodes: &[usize]) {
        for &node in nodes {
            self.boards[node].killed.store(true, Ordering::Release);
            self.order(Order::Kill(node));
        }
    }

    /// Stops a node as a signal stops a process: it hears and says nothing, and what is sent to it waits in its socket.
    pub fn pause(&self, node: usize) {
        self.order(Order::Pause(node));
    }

    /// Lets a paused node go on.
    pub fn resume(&self, node: usize) {
        self.order(Order::Resume(node));
    }

    fn order(&self, order: Order) {
        // A crew ends only with the fleet.
        let _ = self.crews[order.node() % self.crews.len()].orders.send(order);
    }

    /// Living nodes that see exactly `alive` members, and how many live.
    #[must_use]
    pub fn that_see(&self, alive: usize) -> (usize, usize) {
        let seen = self.boards.iter().map(|b| b.alive.load(Ordering::Relaxed)).filter(|&n| n > 0);
        seen.fold((0, 0), |(right, all), n| (right + usize::from(n as usize == alive), all + 1))
    }

    /// When the last view changed.
    #[must_use]
    pub fn changed_at(&self) -> Instant {
        Instant(self.boards.iter().map(|b| b.changed_at.load(Ordering::Relaxed)).max().unwrap_or(0))
    }

    /// How often somebody took somebody for dead.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.boards.iter().map(|b| u64::from(b.failed.load(Ordering::Relaxed))).sum()
    }

    /// How often somebody took somebody for dead who lives.
    #[must_use]
    pub fn mistakes(&self) -> u64 {
        self.boards.iter().map(|b| u64::from(b.wrong.load(Ordering::Relaxed))).sum()
    }

    /// The fleet's clock, at zero when it started.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.clock.now()
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Release);
        for crew in &mut self.crews {
            if let Some(thread) = crew.thread.take() {
                // It holds nothing that a panic could have broken.
                let _ = thread.join();
            }
        }
    }
}

/// Nodes start in waves. All dial a few others at once, and they share a processor, which nodes of their own hosts would not:
/// the next wave begins when those before see each other, and is as large as all of them.
#[derive(Debug)]
struct Waves {
    /// Nodes that may run, those killed included.
    begun: AtomicUsize,
}

impl Waves {
    fn new(nodes: usize) -> Self {
        Self { begun: AtomicUsize::new(FIRST_WAVE.min(nodes)) }
    }

    /// How many may run; more from the next call on when all of these see each other.
    fn begun(&self, boards: &[Board]) -> usize {
        let begun = self.begun.load(Ordering::Relaxed);
        if begun < boards.len() {
            let living = || boards[..begun].iter().filter(|b| !b.killed.load(Ordering::Relaxed));
            let all = living().count();
            // Somebody of a later wave may have been called before its time, and is seen, too.
            if living().all(|b| b.alive.load(Ordering::Relaxed) as usize >= all) {
                let next = (begun * 2).min(boards.len());
                // Another crew may have seen it first.
                let _ = self.begun.compare_exchange(begun, next, Ordering::Relaxed, Ordering::Relaxed);
            }
        }
        begun
    }
}

/// Calls a crew from another thread, for one of its nodes. One for all of them: descriptors are few.
struct Bell {
    file: EventFd,
    /// Places that were called for.
    called: Mutex<Vec<usize>>,
}

impl Bell {
    fn new() -> io::Result<Self> {
        let file = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        Ok(Self { file, called: Mutex::default() })
    }

    fn ring(&self, place: usize) {
        let mut called = self.called.lock().unwrap_or_else(PoisonError::into_inner);
        called.push(place);
        if called.len() == 1 {
            // It fails when it has rung 2⁶⁴ times unheard.
            let _ = self.file.write(1);
        }
    }

    fn answer(&self) -> Vec<usize> {
        // First: a call that comes between the two rings once more, for nothing.
        let _ = self.file.read();
        std::mem::take(&mut *self.called.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The work of a crew.
struct Work {
    /// By place; `None` once it was killed.
    nodes: Vec<Option<Driven>>,
    /// True for those that are paused.
    paused: Vec<bool>,
    /// When each is due, and the places by that.
    due: Vec<Instant>,
    queue: BTreeSet<(Instant, usize)>,
    /// Places up to here have been started.
    started: usize,
    waves: Arc<Waves>,
    poller: Poller,
    bell: Arc<Bell>,
    boards: Arc<[Board]>,
    clock: Clock,
    changes: Option<mpsc::Sender<Change>>,
}

impl Work {
    fn new(
        nodes: Vec<Driven>,
        bell: Arc<Bell>,
        waves: Arc<Waves>,
        boards: Arc<[Board]>,
        clock: Clock,
        changes: Option<mpsc::Sender<Change>>,
    ) -> io::Result<Self> {
        let poller = Poller::new()?;
        poller.add(&bell.file, CALLED, EpollFlags::EPOLLIN)?;
        for (place, (_, driver)) in nodes.iter().enumerate() {
            poller.add(driver.platform().socket(), place as u64, EpollFlags::EPOLLIN)?;
        }
        let (due, queue) = (vec![Instant::NEVER; nodes.len()], BTreeSet::new());
        let paused = vec![false; nodes.len()];
        Ok(Self {
            nodes: nodes.into_iter().map(Some).collect(),
            paused,
            due,
            queue,
            started: 0,
            waves,
            poller,
            bell,
            boards,
            clock,
            changes,
        })
    }

    fn run(mut self, orders: &mpsc::Receiver<Order>, end: &AtomicBool) {
        let mut ready = Vec::new();
        while !end.load(Ordering::Acquire) {
            for order in orders.try_iter() {
                self.obey(order);
            }
            self.start_more();
            let now = self.clock.now();
            while let Some(&(at, place)) = self.queue.first().filter(|d| d.0 <= now) {
                self.queue.remove(&(at, place));
                self.poll(place);
            }
            let until = self.queue.first().map_or(Instant::NEVER, |d| d.0).min(self.clock.now() + ROUND);
            ready.clear();
            // A signal is none of our business.
            let _ = self.poller.wait(&self.clock, until, &mut |mark, _| ready.push(mark));
            for &mark in &ready {
                match mark {
                    CALLED => self.bell.answer().into_iter().for_each(|place| self.poll(place)),
                    place => self.poll(place as usize),
                }
            }
        }
    }

    /// Starts those whose wave has come.
    fn start_more(&mut self) {
        if self.started == self.nodes.len() {
            return;
        }
        let (begun, now) = (self.waves.begun(&self.boards), self.clock.now());
        while let Some(node) = self.nodes.get(self.started).filter(|n| n.as_ref().is_none_or(|n| n.0 < begun)) {
            if node.is_some() {
                self.due[self.started] = now;
                self.queue.insert((now, self.started));
            }
            self.started += 1;
        }
    }

    fn obey(&mut self, order: Order) {
        let place = self.nodes.iter().position(|n| n.as_ref().is_some_and(|n| n.0 == order.node()));
        let Some(place) = place else { return };
        match order {
            Order::Kill(node) => {
                self.queue.remove(&(self.due[place], place));
                self.nodes[place] = None;
                self.boards[node].alive.store(0, Ordering::Relaxed);
            }
            Order::Pause(_) => {
                self.paused[place] = true;
                self.queue.remove(&(self.due[place], place));
                self.listen(place, EpollFlags::empty());
            }
            Order::Resume(_) => {
                self.paused[place] = false;
                self.listen(place, EpollFlags::EPOLLIN);
                self.poll(place);
            }
        }
    }

    /// Whether a node is called when something has arrived for it.
    fn listen(&self, place: usize, interest: EpollFlags) {
        if let Some((_, driver)) = &self.nodes[place] {
            // A socket that was added can be asked for something else.
            let _ = self.poller.change(driver.platform().socket(), place as u64, interest);
        }
    }

    /// Lets a node do what is to be done, and writes on its board what it sees.
    fn poll(&mut self, place: usize) {
        let Some((node, driver)) = &mut self.nodes[place] else { return };
        if self.paused[place] {
            return;
        }
        // What a socket says of itself is for the node to bear, as in a network that loses things.
        let _ = driver.poll();
        let (news, board) = (driver.news(), &self.boards[*node]);
        if !news.is_empty() {
            for member in news.iter().filter_map(News::failed) {
                board.failed.fetch_add(1, Ordering::Relaxed);
                // All are in the roster that they share, in the order of their numbers.
                let killed = self.boards.get(member.at()).is_some_and(|b| b.killed.load(Ordering::Acquire));
                board.wrong.fetch_add(u32::from(!killed), Ordering::Relaxed);
            }
            board.changed_at.store(self.clock.now().0, Ordering::Relaxed);
            if let Some(changes) = &self.changes {
                tell(changes, *node, &news);
            }
        }
        board.alive.store(driver.node().engine().len() as u32, Ordering::Relaxed);
        // Each node's clock began when its socket was opened: ours is a little behind.
        let wait = driver.deadline().since(driver.now());
        let at = if driver.deadline() == Instant::NEVER { Instant::NEVER } else { self.clock.now() + wait };
        self.queue.remove(&(self.due[place], place));
        self.due[place] = at;
        self.queue.insert((at, place));
    }
}

/// All nodes share what they know of each other, so that a slot is a node's number.
fn tell(changes: &mpsc::Sender<Change>, observer: usize, news: &[News]) {
    let at = SystemTime::now();
    for news in news {
        let (subject, alive) = match news {
            News::Joined { member, .. } => (member.0 as usize, true),
            // The new one is told as a join.
            News::Left { why: Why::Replaced, .. } => continue,
            News::Left { member, .. } => (member.0 as usize, false),
            _ => continue,
        };
        // Who asked for it may have heard enough.
        let _ = changes.send(Change { observer, subject, alive, at });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that is called before its wave does not hold up the others.
    #[test]
    fn a_wave_begins_though_somebody_came_early() {
        let (waves, boards) = (Waves::new(2 * FIRST_WAVE), (0..2 * FIRST_WAVE).map(|_| Board::default()));
        let boards: Vec<Board> = boards.collect();
        boards[..FIRST_WAVE].iter().for_each(|b| b.alive.store(FIRST_WAVE as u32 + 1, Ordering::Relaxed));
        waves.begun(&boards);
        assert_eq!(waves.begun(&boards), 2 * FIRST_WAVE);
    }

    fn wait_for(fleet: &Fleet, alive: usize) -> bool {
        let until = fleet.now() + Duration::from_secs(60);
        while fleet.now() < until {
            if fleet.that_see(alive) == (alive, alive) {
                return true;
            }
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        false
    }

    /// Real sockets, real seals: all see all, and when some are killed, all others see that and nothing else.
    #[test]
    fn a_fleet_boots_and_survives_kills() {
        let fleet = Fleet::start(128, 2, &Config::lan()).unwrap();
        assert!(wait_for(&fleet, 128), "{:?}", fleet.that_see(128));
        assert_eq!(fleet.failures(), 0);
        fleet.kill(&[0, 7, 20, 21, 47, 80, 99, 127]);
        assert!(wait_for(&fleet, 120), "{:?}", fleet.that_see(120));
        assert!(fleet.failures() >= 120 * 8);
        assert_eq!(fleet.mistakes(), 0);
    }
    /// A paused node is missed by all others and by nobody else; who goes on within the others' patience is not.
    #[test]
    fn who_is_paused_is_silent_and_changes_are_told() {
        let (tell, changes) = mpsc::channel();
        let fleet = Fleet::start_watched(12, 2, &Config::local(), Some(&tell)).unwrap();
        assert!(wait_for(&fleet, 12), "{:?}", fleet.that_see(12));
        assert_eq!(changes.try_iter().filter(|c| c.alive && c.observer != c.subject).count(), 12 * 11);
        fleet.pause(3);
        std::thread::sleep(std::time::Duration::from_millis(100));
        fleet.resume(3);
        std::thread::sleep(std::time::Duration::from_millis(1500));
        assert_eq!(changes.try_iter().collect::<Vec<_>>(), []);
        fleet.pause(3);
        let mut missed_by = BTreeSet::new();
        while missed_by.len() < 11 {
            let change = changes.recv_timeout(std::time::Duration::from_secs(30)).unwrap();
            assert_eq!((change.subject, change.alive), (3, false));
            missed_by.insert(change.observer);
        }
    }
}
