//! Where a shard's events go: into its own queue, or to the shard of their receiver at the next barrier.

use crate::event::{Signal, Stage, What};
use crate::network::{Fate, World};
use crate::node::Meta;
use crate::queue::{Event, Queue};
use crate::stats::{Drop, Stats};
use phalanx_core::rng::mix;
use phalanx_core::{Buf, Duration, Group, Instant, Rng};
use std::collections::BTreeMap;

/// A kernel's first wait before it sends a stream's signal again; each further wait is twice as long.
const RESEND: Duration = Duration::from_millis(200);
/// How often a signal is sent again before the kernel gives up: after about two minutes in all.
const RESENDS: u8 = 9;

/// All of a shard but its nodes, so that a process can use it while its node is borrowed.
pub(crate) struct Io<N> {
    /// The first node of this shard.
    pub(crate) first: u32,
    /// Nodes of each shard but the last.
    pub(crate) each: u32,
    pub(crate) queue: Queue<What>,
    /// Events for each other shard, and the earliest time among them.
    pub(crate) outbox: Vec<Mail>,
    /// Events from each other shard.
    pub(crate) inbox: Vec<Mail>,
    pub(crate) notes: Vec<(Instant, u32, N)>,
    pub(crate) stats: Stats,
    /// Members in this shard, by group and segment, each list sorted.
    groups: BTreeMap<(u16, u32), Vec<u32>>,
    /// When the switch of each segment is free.
    switches: Vec<Instant>,
    /// Room for the members a datagram spreads to.
    reached: Vec<u32>,
}

/// Events on their way between two shards.
pub(crate) struct Mail {
    pub(crate) events: Vec<Event<What>>,
    pub(crate) first_at: Instant,
}

impl Mail {
    pub(crate) fn new() -> Self {
        Self { events: Vec::new(), first_at: Instant::NEVER }
    }
}

impl<N> Io<N> {
    pub(crate) fn new(shards: usize, first: u32, each: u32) -> Self {
        let boxes = || (0..shards).map(|_| Mail::new()).collect();
        Self {
            first,
            each,
            queue: Queue::new(),
            outbox: boxes(),
            inbox: boxes(),
            notes: Vec::new(),
            stats: Stats::default(),
            groups: BTreeMap::new(),
            switches: Vec::new(),
            reached: Vec::new(),
        }
    }

    /// When the next event of this shard happens, mail included.
    pub(crate) fn next_at(&self) -> Instant {
        self.inbox.iter().map(|m| m.first_at).fold(self.queue.next_at(), Instant::min)
    }

    /// Takes in what the other shards sent.
    pub(crate) fn take_mail(&mut self) {
        for mail in &mut self.inbox {
            mail.first_at = Instant::NEVER;
            for event in mail.events.drain(..) {
                self.queue.push(event);
            }
        }
    }

    /// Node `me` causes something to happen to `to`.
    #[inline]
    pub(crate) fn cause(&mut self, meta: &mut Meta, me: u32, at: Instant, to: u32, what: What) {
        self.post(Event { at, from: me, number: meta.next_number(), to, what });
    }

    #[inline]
    fn post(&mut self, event: Event<What>) {
        if event.to.wrapping_sub(self.first) < self.each {
            self.queue.push(event);
        } else {
            let mail = &mut self.outbox[(event.to / self.each) as usize];
            mail.first_at = mail.first_at.min(event.at);
            mail.events.push(event);
        }
    }

    /// Sends a stream's signal. Loss is TCP's business and only a cut stops it: then it is tried again.
    pub(crate) fn signal(&mut self, world: &World, meta: &mut Meta, at: Instant, me: u32, to: u32, signal: Signal) {
        if !world.blocked(me, to) {
            let under_way = world.latency(me, to, &mut meta.chance);
            self.cause(meta, me, at + under_way, to, What::Signal(signal));
        } else if signal.tries < RESENDS {
            let again = Signal { tries: signal.tries + 1, ..signal };
            let host = meta.host;
            self.cause(meta, me, at + RESEND * (1 << signal.tries), me, What::Resend { to, host, signal: again });
        }
    }

    pub(crate) fn join(&mut self, world: &World, node: u32, group: u16) {
        let members = self.groups.entry((group, world.topology.segment(node))).or_default();
        if let Err(place) = members.binary_search(&node) {
            members.insert(place, node);
        }
    }

    pub(crate) fn leave(&mut self, world: &World, node: u32, group: u16) {
        if let Some(members) = self.groups.get_mut(&(group, world.topology.segment(node)))
            && let Ok(place) = members.binary_search(&node)
        {
            members.remove(place);
        }
    }

    /// Sends a datagram for a group to the shards where members may be, this one included.
    pub(crate) fn cast(&mut self, world: &World, at: Instant, from: u32, number: u32, group: Group, packet: Buf) {
        let around = world.topology.around(world.topology.segment(from), group.ttl);
        let each = self.each;
        let mut firsts = (0..self.outbox.len() as u32)
            .map(|shard| (shard * each, (shard + 1).saturating_mul(each).min(world.nodes) - 1))
            .filter(|&(first, last)| {
                world.topology.segment(last) >= *around.start() && world.topology.segment(first) <= *around.end()
            })
            .map(|(first, _)| first)
            .peekable();
        while let Some(to) = firsts.next() {
            if firsts.peek().is_none() {
                return self.post(Event { at, from, number, to, what: What::Cast(group, packet) });
            }
            self.post(Event { at, from, number, to, what: What::Cast(group, packet.clone()) });
        }
    }

    /// A datagram for a group spreads to the members in this shard, each with a fate of its own.
    ///
    /// Chance comes from (sender, its count, member): the same whichever shard the member is in.
    pub(crate) fn spread(&mut self, world: &World, event: &Event<What>) {
        let What::Cast(group, packet) = &event.what else {
            return;
        };
        let (from, number) = (event.from, event.number);
        let depart = event.at - world.lookahead;
        let segment = world.topology.segment(from);
        let around = world.topology.around(segment, group.ttl);
        let mut reached = std::mem::take(&mut self.reached);
        for (&(_, s), members) in self.groups.range((group.number, *around.start())..=(group.number, *around.end())) {
            if (1..=u32::from(group.ttl)).contains(&world.topology.distance(segment, s)) {
                reached.extend(members.iter().filter(|&&m| m != from));
            }
        }
        let stream = mix(u64::from(from) << 32 | u64::from(number));
        for to in reached.drain(..) {
            if world.cut(from, to) {
                self.stats.drop(Drop::Partition);
                continue;
            }
            let mut rng = Rng::new(world.seed ^ stream, u64::from(to));
            let arrive = |under_way| Event {
                at: depart + under_way,
                from,
                number,
                to,
                what: What::Packet(Stage::Multicast, packet.clone()),
            };
            match world.fate(from, to, &mut rng) {
                Fate::Lost => self.stats.drop(Drop::Loss),
                Fate::Arrives(under_way) => self.queue.push(arrive(under_way)),
                Fate::Twice(first, second) => {
                    self.stats.duplicated += 1;
                    self.queue.push(arrive(first));
                    self.queue.push(arrive(second));
                }
            }
        }
        self.reached = reached;
    }

    /// When a message that reaches the switch of `node`'s segment now has left it.
    pub(crate) fn switch(&mut self, world: &World, at: Instant, node: u32, per_flow: Duration) -> Instant {
        let place = (world.topology.segment(node) - world.topology.segment(self.first)) as usize;
        if self.switches.len() <= place {
            self.switches.resize(place + 1, Instant::ZERO);
        }
        let free = self.switches[place].max(at);
        self.switches[place] = free + per_flow;
        // The first pays nothing: the latency that was measured alone contains it.
        free
    }
}
