//! A small network for tests: nodes with views of their own, links that keep the order, and a history of every write
//! against which each reader is checked after each step.

use super::{Attributes, Config, Counters, Names, Output};
use crate::member::Slot;
use crate::zone::pace::Paces;
use phalanx_core::{Duration, Identity, Instant, Rng, Sink};
use std::collections::{BTreeMap, BTreeSet};

pub(super) const CONFIG: Config = Config {
    paces: Paces { lone: true, brisk: 0, shortest: Duration::from_millis(1), longest: Duration::from_millis(16) },
    patience: Duration::from_secs(2),
};

/// Identities in another order than nodes.
pub(super) fn identity(node: usize) -> Identity {
    let mut bytes = [node as u8; 32];
    bytes[0] = (node as u8).wrapping_mul(151);
    Identity(bytes)
}

type Map = BTreeMap<String, Vec<u8>>;

/// Who one node sees. Every node numbers the others differently, so that a slot that leaks is a wrong slot.
#[derive(Clone, Debug)]
pub(super) struct View {
    me: usize,
    /// The incarnation in which each node is seen, and the highest that was ever seen.
    seen: Vec<(Option<u64>, u64)>,
}

impl View {
    pub(super) fn slot_of(&self, node: usize) -> Slot {
        Slot(((node + self.me * 3) % self.seen.len()) as u32)
    }

    pub(super) fn node(&self, slot: Slot) -> usize {
        (slot.at() + self.seen.len() * 3 - self.me * 3 % self.seen.len()) % self.seen.len()
    }
}

impl Names for View {
    fn identity(&self, slot: Slot) -> Option<Identity> {
        Some(identity(self.node(slot)))
    }
    fn slot(&self, id: &Identity) -> Option<Slot> {
        let node = (0..self.seen.len()).find(|&n| identity(n) == *id)?;
        self.seen[node].0.map(|_| self.slot_of(node))
    }
    fn incarnation(&self, slot: Slot) -> Option<u64> {
        self.seen[self.node(slot)].0
    }
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) attributes: Attributes,
    pub(super) view: View,
    pub(super) alive: bool,
    incarnation: u64,
    /// What the application was told, by member.
    told: BTreeMap<usize, Map>,
    /// The version of each member's map when it was last looked at.
    read: BTreeMap<usize, u64>,
}

#[derive(Debug)]
enum Event {
    Message {
        from: usize,
        to: usize,
        session: u64,
        bytes: Vec<u8>,
    },
    /// `at` learns that `who` is there in this life, or that this life is over.
    Seen {
        at: usize,
        who: usize,
        incarnation: u64,
        there: bool,
    },
    /// `at` learns that its link to `who` is gone.
    Lost {
        at: usize,
        who: usize,
        session: u64,
    },
}

/// Everything that happens in one run.
#[derive(Debug)]
pub(super) struct Net {
    pub(super) nodes: Vec<Node>,
    pub(super) now: Instant,
    pub(super) rng: Rng,
    /// By time, then in the order of scheduling.
    events: BTreeMap<(Instant, u64), Event>,
    scheduled: u64,
    /// Sessions of links that are up.
    links: BTreeMap<(usize, usize), u64>,
    sessions: BTreeMap<(usize, usize), u64>,
    /// When the last message of each direction arrives: the next comes later.
    arrival: BTreeMap<(usize, usize), Instant>,
    /// All states of all maps, by owner and life; the place is the version.
    history: BTreeMap<(usize, u64), Vec<Map>>,
    /// Counters of nodes that are gone.
    past: Vec<Counters>,
    pub(super) messages: u64,
    pub(super) slowest: Duration,
}

/// What a node puts out while it runs.
#[derive(Default)]
struct Outputs {
    sent: Vec<(Slot, Vec<u8>)>,
    changed: Vec<(Slot, String, Option<Vec<u8>>)>,
}

impl<'a> Sink<Output<'a>> for Outputs {
    fn push(&mut self, item: Output<'a>) {
        match item {
            Output::Send { to, bytes } => self.sent.push((to, bytes.to_vec())),
            Output::Changed { member, key, value } => {
                self.changed.push((member, key.to_owned(), value.map(<[u8]>::to_vec)));
            }
        }
    }
}

impl Net {
    /// `n` nodes that all see each other, without links.
    pub(super) fn new(n: usize, config: Config, seed: u64) -> Self {
        let node = |me| Node {
            attributes: Attributes::new(Slot(((me + me * 3) % n) as u32), config),
            view: View { me, seen: vec![(Some(1), 1); n] },
            alive: true,
            incarnation: 1,
            told: BTreeMap::new(),
            read: BTreeMap::new(),
        };
        Self {
            nodes: (0..n).map(node).collect(),
            now: Instant::ZERO,
            rng: Rng::new(seed, 0),
            events: BTreeMap::new(),
            scheduled: 0,
            links: BTreeMap::new(),
            sessions: BTreeMap::new(),
            arrival: BTreeMap::new(),
            history: (0..n).map(|node| ((node, 1), vec![Map::new()])).collect(),
            past: Vec::new(),
            messages: 0,
            slowest: Duration::from_millis(5),
        }
    }

    fn schedule(&mut self, after: Duration, event: Event) {
        self.scheduled += 1;
        self.events.insert((self.now + after, self.scheduled), event);
    }

    fn delay(&mut self) -> Duration {
        Duration(self.rng.below(self.slowest.0) + 1000)
    }

    /// Lets a node run, carries what it sends, notes what it tells, and checks what it reads.
    pub(super) fn run(&mut self, at: usize, act: impl FnOnce(&mut Attributes, &View, &mut dyn Act)) {
        let mut outputs = Outputs::default();
        let node = &mut self.nodes[at];
        act(&mut node.attributes, &node.view, &mut outputs);
        for (member, key, value) in outputs.changed {
            let told = node.told.entry(node.view.node(member)).or_default();
            let before = match value.clone() {
                Some(value) => told.insert(key, value),
                None => told.remove(&key),
            };
            assert_ne!(before, value, "told of a change that is none");
        }
        let sent: Vec<_> = outputs.sent.into_iter().map(|(to, bytes)| (node.view.node(to), bytes)).collect();
        for (to, bytes) in sent {
            self.messages += 1;
            let (after, session) = (self.delay(), self.session(at, to));
            let due = (self.now + after).max(self.arrival.get(&(at, to)).copied().unwrap_or(self.now) + Duration(1));
            self.arrival.insert((at, to), due);
            self.schedule(due.since(self.now), Event::Message { from: at, to, session, bytes });
        }
        self.check_reader(at);
    }

    /// AT-1, AT-3: a reader sees states that the owner had in its present life, in their order, and was told of each.
    fn check_reader(&mut self, at: usize) {
        let Node { attributes, view, told, read, .. } = &mut self.nodes[at];
        for owner in (0..view.seen.len()).filter(|&owner| owner != at) {
            let slot = view.slot_of(owner);
            let version = attributes.version(slot);
            let Some(incarnation) = view.seen[owner].0 else {
                assert_eq!((version, attributes.map(slot).count()), (0, 0), "{at} holds a map of {owner}, who left");
                continue;
            };
            let before = read.insert(owner, version).unwrap_or_default();
            assert!(before <= version, "{at} went back in the map of {owner}");
            if before == version {
                continue;
            }
            let map: Map = attributes.map(slot).map(|(k, v)| (k.to_owned(), v.to_vec())).collect();
            let state = self.history.get(&(owner, incarnation)).and_then(|h| h.get(version as usize));
            assert_eq!(Some(&map), state, "{at} reads what {owner} never was");
            assert_eq!(Some(&map).filter(|m| !m.is_empty()), told.get(&owner).filter(|m| !m.is_empty()));
        }
    }

    fn session(&self, a: usize, b: usize) -> u64 {
        self.sessions.get(&(a.min(b), a.max(b))).copied().unwrap_or(0)
    }

    pub(super) fn is_linked(&self, a: usize, b: usize) -> bool {
        self.links.contains_key(&(a.min(b), a.max(b)))
    }

    /// Two nodes become neighbours; what was under way between them is lost.
    pub(super) fn link(&mut self, a: usize, b: usize) {
        let pair = (a.min(b), a.max(b));
        let sees = |net: &Self, a: usize, b: usize| net.nodes[a].view.seen[b].0 == Some(net.nodes[b].incarnation);
        let both = self.nodes[a].alive && self.nodes[b].alive && sees(self, a, b) && sees(self, b, a);
        if a == b || !both || self.links.contains_key(&pair) {
            return;
        }
        *self.sessions.entry(pair).or_default() += 1;
        self.links.insert(pair, self.sessions[&pair]);
        let now = self.now;
        self.run(a, |x, view, out| x.on_neighbour(now, view.slot_of(b), view, &mut { out }));
        self.run(b, |x, view, out| x.on_neighbour(now, view.slot_of(a), view, &mut { out }));
    }

    /// `a` lets go of `b`, which notices later; what is under way may still arrive.
    pub(super) fn unlink(&mut self, a: usize, b: usize) {
        let Some(session) = self.links.remove(&(a.min(b), a.max(b))) else { return };
        let (now, after) = (self.now, self.delay());
        if self.nodes[a].alive {
            self.run(a, |x, view, out| x.on_neighbour_lost(now, view.slot_of(b), view, &mut { out }));
        }
        self.schedule(after, Event::Lost { at: b, who: a, session });
    }

    /// A node writes, and its history with it.
    pub(super) fn write(&mut self, at: usize, key: &str, value: Option<&[u8]>) {
        let node = &mut self.nodes[at];
        if !node.alive || node.attributes.get(node.view.slot_of(at), key) == value {
            return;
        }
        let states = self.history.get_mut(&(at, node.incarnation)).unwrap();
        let mut next = states.last().unwrap().clone();
        match value {
            Some(value) => _ = next.insert(key.to_owned(), value.to_vec()),
            None => _ = next.remove(key),
        }
        states.push(next);
        let now = self.now;
        self.run(at, |x, _, _| x.set(now, key, value).unwrap());
    }

    /// A node dies; the others notice one by one.
    pub(super) fn crash(&mut self, who: usize) {
        self.nodes[who].alive = false;
        self.past.push(self.nodes[who].attributes.counters().clone());
        for other in 0..self.nodes.len() {
            self.unlink(who, other);
            self.announce(other, who, self.nodes[who].incarnation, false);
        }
    }

    /// A dead node starts again, in a new life and with a fresh view of those who live.
    pub(super) fn restart(&mut self, who: usize) {
        let n = self.nodes.len();
        let seen = self.nodes.iter().map(|o| (o.alive.then_some(o.incarnation), o.incarnation)).collect();
        let node = &mut self.nodes[who];
        node.incarnation += 1;
        let incarnation = node.incarnation;
        let mut view = View { me: who, seen };
        view.seen[who] = (Some(incarnation), incarnation);
        let attributes = Attributes::new(view.slot_of(who), CONFIG);
        *node = Node { attributes, view, alive: true, incarnation, told: BTreeMap::new(), read: BTreeMap::new() };
        self.history.insert((who, incarnation), vec![Map::new()]);
        (0..n).filter(|&o| o != who).for_each(|o| self.announce(o, who, incarnation, true));
    }

    /// `at` takes `who` for dead, and learns later that it is not.
    pub(super) fn false_alarm(&mut self, at: usize, who: usize) {
        let incarnation = self.nodes[who].incarnation;
        self.see(at, who, incarnation, false);
        let after = self.delay() * 3;
        self.schedule(after, Event::Seen { at, who, incarnation, there: true });
    }

    fn announce(&mut self, at: usize, who: usize, incarnation: u64, there: bool) {
        // Slower than digests: who hears of a map often does not see its owner yet.
        let after = self.delay() * 20;
        self.schedule(after, Event::Seen { at, who, incarnation, there });
    }

    /// What zone does when its view changes.
    fn see(&mut self, at: usize, who: usize, incarnation: u64, there: bool) {
        let now = self.now;
        let (present, highest) = self.nodes[at].view.seen[who];
        // An end that comes before the beginning, or a beginning that comes after the end.
        let over = there && !(self.nodes[who].alive && self.nodes[who].incarnation == incarnation);
        if !self.nodes[at].alive || at == who || incarnation < highest || over || present == Some(incarnation) && there
        {
            return;
        }
        if present.is_some() {
            self.links.retain(|&pair, _| pair != (at.min(who), at.max(who)));
            self.nodes[at].told.remove(&who);
            self.nodes[at].read.remove(&who);
            self.nodes[at].view.seen[who].0 = None;
            self.run(at, |x, view, out| {
                x.on_left(now, view.slot_of(who), view);
                x.on_neighbour_lost(now, view.slot_of(who), view, &mut { out });
            });
            if self.nodes[who].alive {
                let session = self.session(at, who);
                self.schedule(Duration::from_millis(1), Event::Lost { at: who, who: at, session });
            }
        }
        self.nodes[at].view.seen[who] = (there.then_some(incarnation), incarnation);
        if there {
            self.run(at, |x, view, out| x.on_joined(now, view.slot_of(who), view, &mut { out }));
        }
    }

    /// Runs until `until`, or until nothing is left to happen.
    pub(super) fn run_until(&mut self, until: Instant) {
        loop {
            let alarms = self.nodes.iter().enumerate().filter(|(_, n)| n.alive);
            let alarm = alarms.map(|(i, n)| (n.attributes.deadline(), i)).min().unwrap_or((Instant::NEVER, 0));
            let event = self.events.first_key_value().map_or(Instant::NEVER, |(k, _)| k.0);
            let next = alarm.0.min(event);
            if next > until || next == Instant::NEVER {
                self.now = if until == Instant::NEVER { self.now } else { until };
                return;
            }
            self.now = self.now.max(next);
            let now = self.now;
            if alarm.0 <= event {
                self.run(alarm.1, |x, view, out| x.expire(now, view, &mut { out }));
            } else if let Some((_, event)) = self.events.pop_first() {
                self.happen(event);
            }
        }
    }

    pub(super) fn run_for(&mut self, span: Duration) {
        self.run_until(self.now + span);
    }

    fn happen(&mut self, event: Event) {
        let now = self.now;
        match event {
            Event::Message { from, to, session, bytes } => {
                if self.nodes[to].alive && self.session(from, to) == session {
                    self.run(to, |x, view, out| x.on_message(now, view.slot_of(from), &bytes, view, &mut { out }));
                }
            }
            Event::Seen { at, who, incarnation, there } => self.see(at, who, incarnation, there),
            Event::Lost { at, who, session } => {
                if self.nodes[at].alive && self.session(at, who) == session && !self.is_linked(at, who) {
                    self.run(at, |x, view, out| x.on_neighbour_lost(now, view.slot_of(who), view, &mut { out }));
                }
            }
        }
    }

    /// Links the living in a ring where they are not connected otherwise.
    pub(super) fn connect(&mut self) {
        let alive: Vec<usize> = (0..self.nodes.len()).filter(|&n| self.nodes[n].alive).collect();
        let mut reached = BTreeSet::from([alive[0]]);
        loop {
            let next = self.links.keys().find_map(|&(a, b)| match (reached.contains(&a), reached.contains(&b)) {
                (true, false) => Some(b),
                (false, true) => Some(a),
                _ => None,
            });
            match next.or_else(|| alive.iter().copied().find(|n| !reached.contains(n))) {
                None => return,
                Some(n) => {
                    if next.is_none() {
                        self.link(alive[0], n);
                        assert!(self.is_linked(alive[0], n), "all who live see each other by now");
                    }
                    reached.insert(n);
                }
            }
        }
    }

    /// Runs until nothing happens any more; checks that this is soon, and that all replicas are equal then.
    pub(super) fn settle(&mut self) {
        self.run_until(self.now + Duration::from_secs(30));
        assert!(self.events.is_empty(), "not silent after half a minute: {} under way", self.events.len());
        let alive = || self.nodes.iter().enumerate().filter(|(_, n)| n.alive);
        for ((at, node), (owner, other)) in alive().flat_map(|x| alive().map(move |y| (x, y))) {
            let slot = node.view.slot_of(owner);
            let map: Map = node.attributes.map(slot).map(|(k, v)| (k.to_owned(), v.to_vec())).collect();
            let truth = self.history[&(owner, other.incarnation)].last();
            assert_eq!(Some(&map), truth, "{at} reads {owner}");
            assert_eq!(node.attributes.deadline(), Instant::NEVER);
        }
    }

    /// Entries that came, and those that were there already.
    pub(super) fn duplicates(&self) -> (u64, u64) {
        let present = self.nodes.iter().filter(|n| n.alive).map(|n| n.attributes.counters());
        present.chain(&self.past).fold((0, 0), |sum, c| (sum.0 + c.entries, sum.1 + c.duplicates))
    }
}

/// A sink behind a reference, so that closures need no type parameter.
pub(super) trait Act: for<'a> Sink<Output<'a>> {}
impl<S: for<'a> Sink<Output<'a>>> Act for S {}

impl<'a> Sink<Output<'a>> for &mut dyn Act {
    fn push(&mut self, item: Output<'a>) {
        (**self).push(item);
    }
}
