//! A run: nodes, network, faults and checkers under virtual time, on one thread or several.
//!
//! Time goes on in windows no longer than the network's shortest latency. Inside a window shards run alone; between
//! two windows mail is exchanged, checkers hear what was said, and faults are inflicted. Windows begin at the next
//! event, so idle time costs nothing; and they are the same however many threads run, and so is the trace.

use crate::barrier::Barrier;
use crate::check::{Checker, Cluster, Report, Verdict};
use crate::director::{Action, Director};
use crate::disk::Disk;
use crate::fault::Fault;
use crate::io::Io;
use crate::network::{Network, NetworkError, World};
use crate::node::{Meta, Node, State, fold};
use crate::process::Process;
use crate::shard::{Shard, Shared};
use crate::stats::Stats;
use phalanx_core::{Duration, Instant, NodeId, Rng};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

/// The size of a run and what lies beneath it.
#[derive(Clone, PartialEq, Debug)]
pub struct Setup {
    /// The same seed gives the same run, to the byte.
    pub seed: u64,
    /// Nodes, numbered from 0.
    pub nodes: u32,
    /// Threads that share the nodes. The run is the same with any number.
    pub threads: usize,
    /// A window after one with fewer events than this is run by one thread alone: a meeting would cost more than it
    /// saves. No part of the run: only its speed changes.
    pub alone_below: u64,
    /// The network between them.
    pub network: Network,
    /// Nodes start at random times within this; all at once when it is zero.
    pub start_within: Duration,
    /// Time that a write to disk takes.
    pub disk: Duration,
    /// Datagrams that wait in the socket of a paused node; more are dropped.
    pub socket_packets: usize,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            seed: 1,
            nodes: 1,
            threads: 1,
            // About twice what a thread does while another wakes up.
            alone_below: 500,
            network: Network::default(),
            start_within: Duration::ZERO,
            disk: Duration::from_millis(1),
            // What the default receive buffer of Linux holds.
            socket_packets: 256,
        }
    }
}

/// What a process is built from, at each start.
pub struct Birth<'a> {
    /// The node it runs on.
    pub node: u32,
    /// How often the node has started, this time included: the first is 1.
    pub boot: u32,
    /// How often its host has crashed: what was on the machine beside the process is gone when this grows.
    pub host: u16,
    /// The node's clock.
    pub now: Instant,
    /// What the node's disk kept.
    pub disk: &'a Disk,
    /// The process's generator, which goes on as [`crate::Ctx::rng`].
    pub rng: &'a mut Rng,
}

/// Builds the process of a node at each start.
pub type Factory<P> = dyn Fn(Birth<'_>) -> P + Send + Sync;

/// How often liveness is looked at, as a part of the time given.
const LOOKS: u64 = 200;
/// The window when nothing limits it: one thread and nobody who reacts.
const SOLO: Duration = Duration::from_millis(1);
/// The window of a network without a shortest latency.
const SHORTEST: Duration = Duration::from_micros(1);
/// Tells the workers that the run is over: no window ends at the epoch.
const OVER: u64 = 0;

/// A simulated cluster.
pub struct Sim<P: Process> {
    seed: u64,
    world: World,
    factory: Box<Factory<P>>,
    shards: Vec<Shard<P>>,
    director: Director<P>,
}

impl<P: Process> Sim<P> {
    /// A cluster at time zero: nothing has started yet.
    ///
    /// # Errors
    /// When the network makes no sense, or cannot be shared by so many threads.
    pub fn new(setup: &Setup, factory: impl Fn(Birth<'_>) -> P + Send + Sync + 'static) -> Result<Self, NetworkError> {
        let Setup { seed, nodes, .. } = *setup;
        if nodes == 0 || setup.threads == 0 || nodes as usize > NodeId::MAX_SLOTS {
            return Err(NetworkError::Size);
        }
        let mut world = World::new(seed, nodes, &setup.network)?;
        (world.disk, world.socket) = (setup.disk, setup.socket_packets);
        if setup.threads > 1 && world.lookahead == Duration::ZERO {
            return Err(NetworkError::NoLookahead(setup.threads));
        }
        let each = share(&world, nodes, setup.threads);
        let count = nodes.div_ceil(each) as usize;
        let mut starts = Rng::new(seed, u64::MAX);
        let mut shards = Vec::with_capacity(count);
        for shard in 0..count {
            let first = shard as u32 * each;
            let own = first..(first + each).min(nodes);
            let mut part = Shard {
                nodes: own.clone().map(|n| Node { process: None, meta: Meta::new(seed, n), held: None }).collect(),
                io: Io::new(count, first, each),
            };
            for node in own {
                part.start(Instant(starts.below(setup.start_within.0)), node);
            }
            shards.push(part);
        }
        let director = Director::new(seed, setup.alone_below);
        Ok(Self { seed, world, factory: Box::new(factory), shards, director })
    }

    /// Adds a checker.
    pub fn check(&mut self, checker: impl Checker<P> + 'static) {
        self.director.checkers.push(Box::new(checker));
    }

    /// Keeps all notes from now on, for [`Sim::notes`].
    pub fn keep_notes(&mut self) {
        self.director.keep_notes = true;
    }

    /// The line that replays this run, for its report.
    pub fn replay_with(&mut self, line: impl Into<String>) {
        self.director.replay = line.into();
    }

    /// Plans a fault.
    pub fn fault_at(&mut self, at: Instant, fault: Fault) {
        self.director.plan(at, Action::Fault(fault));
    }

    /// Inflicts a fault now.
    pub fn fault(&mut self, fault: Fault) {
        self.fault_at(self.now(), fault);
    }

    /// Plans to ask something of a process. The dead do not hear it.
    pub fn command_at(&mut self, at: Instant, node: u32, command: P::Command) {
        self.director.plan(at, Action::Command(node, command));
    }

    /// Asks something of a process now.
    pub fn command(&mut self, node: u32, command: P::Command) {
        self.command_at(self.now(), node, command);
    }

    /// Runs for a while.
    pub fn run_for(&mut self, time: Duration) {
        self.run_until(self.now() + time);
    }

    /// Runs everything before `limit`, faults planned for `limit` included.
    ///
    /// # Panics
    /// When a process panics or never lets time go on.
    pub fn run_until(&mut self, limit: Instant) {
        let Self { world, factory, shards, director, .. } = self;
        let solo = shards.len() == 1 && director.checkers.is_empty();
        let window = if solo { SOLO } else { world.lookahead.max(SHORTEST) };
        let cells: Vec<_> = shards.iter_mut().map(Mutex::new).collect();
        let (world, factory) = (RwLock::new(world), &**factory);
        let work = |cell: &Mutex<&mut Shard<P>>, end: Instant| {
            let world = world.read().unwrap_or_else(PoisonError::into_inner);
            lock(cell).run(Shared { world: &world, factory }, end);
        };
        let direct = |director: &mut Director<P>| {
            let mut parts: Vec<_> = cells.iter().map(lock).collect();
            let mut world = world.write().unwrap_or_else(PoisonError::into_inner);
            director.next(&mut parts, &mut world, factory, window, limit)
        };
        if cells.len() == 1 {
            while let Some(end) = direct(director) {
                work(&cells[0], end);
            }
            return;
        }
        let (barrier, end) = (Barrier::new(cells.len()), AtomicU64::new(OVER));
        std::thread::scope(|scope| {
            for cell in &cells[1..] {
                scope.spawn(|| {
                    let _guard = barrier.guard();
                    loop {
                        barrier.wait();
                        match end.load(Ordering::Acquire) {
                            OVER => return,
                            end => work(cell, Instant(end)),
                        }
                        barrier.wait();
                    }
                });
            }
            let _guard = barrier.guard();
            while let Some(until) = direct(director) {
                if director.events.1 < director.alone_below {
                    cells.iter().for_each(|cell| work(cell, until));
                    continue;
                }
                end.store(until.0, Ordering::Release);
                barrier.wait();
                work(&cells[0], until);
                barrier.wait();
            }
            end.store(OVER, Ordering::Release);
            barrier.wait();
        });
    }

    /// The second phase begins: every fault ends, and what was planned is forgotten. Dead nodes start again, or stay
    /// dead.
    pub fn heal(&mut self, restart: bool) {
        self.director.actions.clear();
        self.fault(Fault::HealAll { restart });
        self.run_until(self.now());
        self.director.healed = Some(self.now());
        self.ask(|checker, at, cluster, verdict| checker.healed(at, cluster, verdict));
    }

    /// Runs until no checker waits for anything, at most for `bound`, and reports. What is still missing then is a
    /// violation.
    pub fn settle(&mut self, bound: Duration) -> Report {
        let end = self.now() + bound;
        let look = Duration((bound.0 / LOOKS).max(1));
        loop {
            let missing = self.missing();
            if missing.is_empty() {
                self.director.settled_in = self.director.healed.map(|since| self.now().since(since));
                break;
            }
            if self.now() >= end {
                let at = self.now();
                for (checker, text) in missing {
                    self.director.record(checker, at, None, format!("not within {bound} of healing: {text}"));
                }
                break;
            }
            self.run_until((self.now() + look).min(end));
        }
        self.ask(|checker, at, cluster, verdict| checker.ended(at, cluster, verdict));
        self.report()
    }

    fn missing(&mut self) -> Vec<(&'static str, String)> {
        let (at, cluster) = (self.director.now, Cluster(&self.shards));
        self.director.checkers.iter_mut().filter_map(|c| Some((c.name(), c.pending(at, &cluster)?))).collect()
    }

    fn ask(&mut self, mut question: impl FnMut(&mut dyn Checker<P>, Instant, &Cluster<'_, P>, &mut Verdict)) {
        let (at, cluster) = (self.director.now, Cluster(&self.shards));
        self.director.judge(at, |checker, verdict| question(checker, at, &cluster, verdict));
    }

    /// A driver saw something that must not be: it is reported as a checker's violation is.
    pub fn accuse(&mut self, checker: &'static str, text: impl Into<String>) {
        let at = self.now();
        self.director.record(checker, at, None, text.into());
    }

    /// What the run came to so far.
    #[must_use]
    pub fn report(&self) -> Report {
        Report {
            seed: self.seed,
            ended: self.now(),
            settled_in: self.director.settled_in,
            trace: self.trace(),
            stats: self.stats(),
            violations: self.director.violations.clone(),
            more: self.director.more,
            replay: self.director.replay.clone(),
        }
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.director.now
    }

    /// All nodes, to be looked at.
    #[must_use]
    pub fn cluster(&self) -> Cluster<'_, P> {
        Cluster(&self.shards)
    }

    /// The process of `node`; `None` while it is dead.
    #[must_use]
    pub fn process(&self, node: u32) -> Option<&P> {
        self.cluster().process(node)
    }

    /// How `node` is.
    ///
    /// # Panics
    /// When there is no such node.
    #[must_use]
    pub fn state(&self, node: u32) -> State {
        self.meta(node).state
    }

    /// What the disk of `node` holds.
    ///
    /// # Panics
    /// When there is no such node.
    #[must_use]
    pub fn disk(&self, node: u32) -> &Disk {
        self.meta(node).peek_extras().map_or(Disk::EMPTY, |x| &x.disk)
    }

    /// Bytes that `node` sent and received, headers included.
    ///
    /// # Panics
    /// When there is no such node.
    #[must_use]
    pub fn bytes(&self, node: u32) -> (u64, u64) {
        let meta = self.meta(node);
        (meta.bytes_out, meta.bytes_in)
    }

    fn meta(&self, node: u32) -> &Meta {
        let shard = &self.shards[(node / self.shards[0].io.each) as usize];
        &shard.nodes[(node - shard.io.first) as usize].meta
    }

    /// What processes said since [`Sim::keep_notes`], by time and node.
    #[must_use]
    pub fn notes(&self) -> &[(Instant, u32, P::Note)] {
        &self.director.notes
    }

    /// Counters of the run so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let mut all = Stats::default();
        for shard in &self.shards {
            all += shard.io.stats;
        }
        all
    }

    /// A hash of all that happened in all nodes: the same for the same seed, in each process and on any number of
    /// threads.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.shards.iter().flat_map(|s| &s.nodes).fold(self.seed, |hash, node| fold(hash, node.meta.trace))
    }
}

/// Nodes of each shard. A switch is never split: both sides of a split would have to know its queue.
fn share(world: &World, nodes: u32, threads: usize) -> u32 {
    let even = nodes.div_ceil(u32::try_from(threads).unwrap_or(u32::MAX));
    if world.per_flow.is_none() {
        return even;
    }
    let first_of_next = (even..nodes).find(|&n| world.topology.segment(n) != world.topology.segment(n - 1));
    // Segments are of equal size, so a whole number of them fits the other shards as well.
    first_of_next.unwrap_or(nodes)
}

fn lock<'a, T>(cell: &'a Mutex<T>) -> MutexGuard<'a, T> {
    // A poisoned shard belongs to a run that is panicking already.
    cell.lock().unwrap_or_else(PoisonError::into_inner)
}
