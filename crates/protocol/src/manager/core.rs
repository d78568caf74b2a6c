//! What replicas have in common: the state, what agents have not carried out yet, and what was heard of them.
//!
//! CM-1, CM-4. Everything here follows from the order alone, so it is the same at all replicas, and has a digest. What has to be said to an
//! agent stays here until the order knows that it was carried out: a replica that joins says it, too.

use super::group::{Chair, Digest, Group};
use super::state::{Decision, Entry, Fact, Reported, State};
use super::wire::{Id, Said, Statement, Word};
use super::words::{Key, decode, encode};
use crate::order::{MEMBERS_BOUND, Member};
use phalanx_core::rng::mix;
use phalanx_core::{Fingerprint, Instant};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Words that wait for an agent; past it the oldest is dropped. An agent that is away for that long is told the rest.
pub const WAITING_MAX: usize = 1024;
/// Agents of which the desk of one that is unknown to the state and owed nothing is kept.
pub const DESKS_MAX: usize = 128 * 1024;
/// The longest message that is put together from parts.
const ASSEMBLED_MAX: usize = 1 << 20;

/// A message of the order.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Ordered {
    /// Something has happened.
    Entry(Entry),
    /// A part of a message that is too long for one; the last makes it whole.
    Part {
        /// The first one: what came before it of an unfinished message is void.
        first: bool,
        /// The last one.
        last: bool,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// These agents have carried out all up to there.
    Done(Vec<(Key, Id)>),
}

/// The bytes of a [`Word`], shared by all who are told it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Body {
    /// Their hash.
    pub hash: Digest,
    /// Themselves.
    pub bytes: Vec<u8>,
}

/// A word for an agent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Item {
    /// Which decision.
    pub id: Id,
    /// Which one comes before it for the same agent.
    pub after: Id,
    /// What.
    pub body: Arc<Body>,
}

impl Item {
    /// Tests alone: another one in its place, as a liar would say it.
    #[cfg(any(test, feature = "harm"))]
    #[must_use]
    pub fn bent(&self) -> Self {
        let mut bytes = self.body.bytes.clone();
        bytes.iter_mut().next_back().into_iter().for_each(|b| *b ^= 1);
        Self { body: Arc::new(Body { hash: Digest::of(&bytes), bytes }), ..self.clone() }
    }
}

/// What concerns one agent.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Desk {
    /// The newest word for it.
    pub last: Id,
    /// Those of which the order does not know yet that they were carried out.
    pub waiting: VecDeque<Item>,
    /// The newest start of it that said something.
    pub incarnation: u64,
    /// How many questions of that start were ordered.
    pub asks: u64,
    /// How many reports.
    pub reports: u64,
}

impl Desk {
    fn print(&self, key: Key) -> u64 {
        let mut print = Fingerprint::at(Instant::ZERO);
        print.add(&key).add(&self.last).add(&(self.incarnation, self.asks, self.reports));
        for item in &self.waiting {
            print.add(&(item.id, item.after, item.body.hash));
        }
        mix(print.finish())
    }

    /// The number up to which all was heard of one kind.
    #[must_use]
    pub fn heard(&self, said: &Said) -> u64 {
        match said {
            Said::Ask(_) => self.asks,
            Said::Report(_) => self.reports,
        }
    }
}

/// What an entry led to.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Applied {
    /// Words, and for whom.
    pub words: Vec<(Key, Item)>,
    /// Agents of whom something was heard.
    pub heard: Vec<Key>,
    /// The group ends with this entry, and these have the seats of the next; the second ones begin without a state.
    pub next: Option<(Vec<Chair>, Vec<Key>)>,
}

/// The replicated part of a replica.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Core {
    epoch: u32,
    index: u64,
    /// Up to here the order has nothing more for this state, where it is known: what follows `index` are barriers of its leaders.
    covered: u64,
    /// The entry that ended the epoch before.
    began: u64,
    chain: u64,
    state: State,
    desks: BTreeMap<Key, Desk>,
    /// The sum of all desks' prints.
    desk_sum: u64,
    /// Of each member, what has come of an unfinished message.
    parts: [Vec<u8>; MEMBERS_BOUND],
    decided: Vec<Decision>,
}

#[derive(Serialize, Deserialize)]
struct Saved {
    epoch: u32,
    index: u64,
    covered: u64,
    began: u64,
    chain: u64,
    state: Vec<u8>,
    bodies: Vec<Vec<u8>>,
    desks: Vec<SavedDesk>,
    parts: Vec<Vec<u8>>,
}

#[derive(Serialize, Deserialize)]
struct SavedDesk {
    key: Key,
    last: Id,
    heard: (u64, u64, u64),
    waiting: Vec<(Id, Id, u32)>,
}

impl Core {
    /// Of the first group, before anything happened.
    #[must_use]
    pub fn new(group: &Group) -> Self {
        let mut core = Self {
            epoch: group.epoch,
            index: 0,
            covered: 0,
            began: 0,
            chain: 0,
            state: State::default(),
            desks: BTreeMap::new(),
            desk_sum: 0,
            parts: Default::default(),
            decided: Vec::new(),
        };
        core.begin(group);
        core
    }

    /// The state begins to be that of another group.
    fn begin(&mut self, group: &Group) {
        (self.epoch, self.began, self.index, self.covered) = (group.epoch, self.index, 0, 0);
        self.parts = Default::default();
        self.state.grouped(group.epoch, &group.keys().collect::<Vec<_>>(), &group.fresh);
    }

    /// The same in the next group: its order begins anew.
    #[must_use]
    pub fn next(mut self, group: &Group) -> Self {
        self.begin(group);
        self
    }

    /// In which epoch.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// All up to this entry was applied.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.index
    }

    /// The place in the order from which it goes on.
    #[must_use]
    pub fn covered(&self) -> u64 {
        self.covered.max(self.index)
    }

    /// The order stands at `index`, and had nothing more for this state until there.
    pub fn cover(&mut self, index: u64) {
        self.covered = index;
    }

    /// The entry that ended the epoch before.
    #[must_use]
    pub fn began(&self) -> u64 {
        self.began
    }

    /// Nodes, slots, queue and jobs.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What concerns an agent.
    #[must_use]
    pub fn desk(&self, key: Key) -> Option<&Desk> {
        self.desks.get(&key)
    }

    /// All agents that ever were told something, or said something.
    pub fn desks(&self) -> impl Iterator<Item = (Key, &Desk)> {
        self.desks.iter().map(|(&key, desk)| (key, desk))
    }

    /// What can be compared with other replicas.
    #[must_use]
    pub fn statement(&self) -> Statement {
        let digest = mix(self.state.digest()) ^ self.desk_sum;
        Statement { epoch: self.epoch, index: self.index, digest, chain: self.chain }
    }

    /// Applies what a member put at `index`.
    pub fn apply(&mut self, index: u64, member: Member, message: &[u8], out: &mut Applied) {
        self.index = index;
        let mut print = Fingerprint::at(Instant::ZERO);
        print.add(&(self.chain, index, member)).add(&message);
        match decode(message) {
            Some(Ordered::Entry(entry)) => self.on_entry(entry, out),
            Some(Ordered::Part { first, last, bytes }) => {
                let parts = &mut self.parts[usize::from(member.0) % MEMBERS_BOUND];
                if first {
                    parts.clear();
                }
                if parts.len() + bytes.len() <= ASSEMBLED_MAX {
                    parts.extend(bytes);
                }
                if last && let Some(entry) = decode(&std::mem::take(parts)) {
                    self.on_entry(entry, out);
                }
            }
            Some(Ordered::Done(done)) => done.into_iter().for_each(|(key, id)| self.on_done(key, id)),
            // Members are replicas of ours; one that is wrong is found out otherwise.
            None => {}
        }
        for (to, item) in &out.words {
            print.add(&(to, item.id, item.body.hash));
        }
        self.chain = print.finish();
    }

    fn on_entry(&mut self, mut entry: Entry, out: &mut Applied) {
        match &mut entry.fact {
            Fact::Asked { from, incarnation, number, .. } => {
                out.heard.push(*from);
                if !self.hear(*from, *incarnation, *number, true) {
                    return;
                }
            }
            Fact::Reported(reports) => {
                // Of many at once nobody is told that he was heard: his heartbeats bring it.
                if let [Reported { from, .. }] = reports[..] {
                    out.heard.push(from);
                }
                reports.retain(|r| self.hear(r.from, r.incarnation, r.number, false));
                if reports.is_empty() {
                    return;
                }
            }
            _ => {}
        }
        let mut decided = std::mem::take(&mut self.decided);
        self.state.apply(&entry, &mut decided);
        let mut nth = 0;
        for decision in decided.drain(..) {
            match decision {
                Decision::Command { to, command } => self.tell(&to, &Word::Do(command), &mut nth, out),
                Decision::Answer { to, incarnation, number, answer } => {
                    self.tell(&[to], &Word::Answer { incarnation, number, answer }, &mut nth, out);
                }
                Decision::Move { from, to } => out.next = self.seats_after(from, to).or(out.next.take()),
                Decision::Grow { with } => out.next = self.seats_with(&with).or(out.next.take()),
            }
        }
        self.decided = decided;
    }

    /// Tests alone: something has happened before the order began, and nobody needs to be told.
    #[cfg(any(test, feature = "harm"))]
    pub fn assume(&mut self, entry: Entry) {
        self.on_entry(entry, &mut Applied::default());
    }

    /// True when the state knows this start of the agent, as it must to understand what that says.
    #[must_use]
    pub fn knows(&self, agent: Key, incarnation: u64) -> bool {
        self.state.node(&agent).is_some_and(|node| node.incarnation == incarnation)
    }

    /// True when this is the next of its kind from that agent.
    fn hear(&mut self, from: Key, incarnation: u64, number: u64, ask: bool) -> bool {
        if !self.knows(from, incarnation) {
            return false;
        }
        self.change(from, |desk| {
            if incarnation > desk.incarnation {
                (desk.incarnation, desk.asks, desk.reports) = (incarnation, 0, 0);
            }
            let last = if ask { &mut desk.asks } else { &mut desk.reports };
            let is_next = incarnation == desk.incarnation && number == *last + 1;
            if is_next {
                *last = number;
            }
            is_next
        })
    }

    fn tell(&mut self, to: &[Key], word: &Word, nth: &mut u32, out: &mut Applied) {
        let id = Id { epoch: self.epoch, index: self.index, nth: *nth };
        *nth += 1;
        let bytes = encode(word);
        let body = Arc::new(Body { hash: Digest::of(&bytes), bytes });
        for &key in to {
            let item = self.change(key, |desk| {
                let item = Item { id, after: desk.last, body: Arc::clone(&body) };
                desk.last = id;
                desk.waiting.push_back(item.clone());
                if desk.waiting.len() > WAITING_MAX {
                    desk.waiting.pop_front();
                    // The agent need not wait for what is gone.
                    if let Some(front) = desk.waiting.front_mut() {
                        front.after = Id::default();
                    }
                }
                item
            });
            out.words.push((key, item));
        }
    }

    fn on_done(&mut self, key: Key, id: Id) {
        if self.desks.contains_key(&key) {
            self.change(key, |desk| {
                while desk.waiting.front().is_some_and(|item| item.id <= id) {
                    desk.waiting.pop_front();
                }
            });
        }
    }

    fn change<T>(&mut self, key: Key, act: impl FnOnce(&mut Desk) -> T) -> T {
        if self.desks.len() >= DESKS_MAX && !self.desks.contains_key(&key) {
            self.tidy();
        }
        let before = self.desks.get(&key).map_or(0, |desk| desk.print(key));
        let desk = self.desks.entry(key).or_default();
        let result = act(desk);
        self.desk_sum = self.desk_sum.wrapping_sub(before).wrapping_add(desk.print(key));
        result
    }

    fn tidy(&mut self) {
        let Self { desks, state, desk_sum, .. } = self;
        desks.retain(|&key, desk| {
            let stays = !desk.waiting.is_empty() || state.node(&key).is_some();
            if !stays {
                *desk_sum = desk_sum.wrapping_sub(desk.print(key));
            }
            stays
        });
    }

    /// The seats after one has changed hands.
    fn seats_after(&self, from: Key, to: Key) -> Option<(Vec<Chair>, Vec<Key>)> {
        let keys = self.state.seats().iter().copied().map(|key| if key == from { to } else { key });
        // Who has no state yet has none in the next epoch, either.
        let fresh = self.state.fresh().iter().copied().filter(|key| *key != from).chain([to]);
        Some((
            keys.map(|key| self.chair(key)).collect::<Option<_>>()?,
            fresh.collect::<BTreeSet<_>>().into_iter().collect(),
        ))
    }

    fn seats_with(&self, more: &[Key]) -> Option<(Vec<Chair>, Vec<Key>)> {
        let keys = self.state.seats().iter().copied().chain(more.iter().copied());
        Some((keys.map(|key| self.chair(key)).collect::<Option<_>>()?, more.to_vec()))
    }

    fn chair(&self, key: Key) -> Option<Chair> {
        let node = self.state.node(&key)?;
        Some(Chair { key, name: node.name.clone(), zone: node.zone.clone(), at: node.at })
    }

    /// All of it, as bytes: the same at all replicas.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let (mut bodies, mut numbers) = (Vec::new(), BTreeMap::new());
        let mut desks = Vec::with_capacity(self.desks.len());
        for (&key, desk) in &self.desks {
            let mut waiting = Vec::with_capacity(desk.waiting.len());
            for item in &desk.waiting {
                let number = *numbers.entry(item.body.hash).or_insert_with(|| {
                    bodies.push(item.body.bytes.clone());
                    bodies.len() as u32 - 1
                });
                waiting.push((item.id, item.after, number));
            }
            let heard = (desk.incarnation, desk.asks, desk.reports);
            desks.push(SavedDesk { key, last: desk.last, heard, waiting });
        }
        let (epoch, index, began, chain) = (self.epoch, self.index, self.began, self.chain);
        encode(&Saved {
            epoch,
            index,
            covered: self.covered,
            began,
            chain,
            state: self.state.encode(),
            bodies,
            desks,
            parts: self.parts.to_vec(),
        })
    }

    /// From these bytes.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let saved: Saved = decode(bytes)?;
        let bodies: Vec<_> =
            saved.bodies.into_iter().map(|bytes| Arc::new(Body { hash: Digest::of(&bytes), bytes })).collect();
        let (mut desks, mut desk_sum) = (BTreeMap::new(), 0u64);
        for s in saved.desks {
            let mut waiting = VecDeque::with_capacity(s.waiting.len());
            for (id, after, body) in s.waiting {
                waiting.push_back(Item { id, after, body: Arc::clone(bodies.get(body as usize)?) });
            }
            let (incarnation, asks, reports) = s.heard;
            let desk = Desk { last: s.last, waiting, incarnation, asks, reports };
            desk_sum = desk_sum.wrapping_add(desk.print(s.key));
            desks.insert(s.key, desk);
        }
        Some(Self {
            epoch: saved.epoch,
            index: saved.index,
            covered: saved.covered,
            began: saved.began,
            chain: saved.chain,
            state: State::decode(&saved.state)?,
            desks,
            desk_sum,
            parts: saved.parts.try_into().ok()?,
            decided: Vec::new(),
        })
    }

    /// Tests alone: the memory of this replica goes bad: it believes in something that nobody put into the order, or has lost a word.
    #[cfg(any(test, feature = "harm"))]
    pub fn corrupt(&mut self, chance: u64) {
        if chance.is_multiple_of(3)
            && let Some(key) = self.desks.iter().find(|(_, d)| !d.waiting.is_empty()).map(|(key, _)| *key)
        {
            self.change(key, |desk| desk.waiting.clear());
            return;
        }
        let seats = self.state.seats();
        let (by, whom) = (seats[0], seats[(1 + chance as usize % 2) % seats.len()]);
        let fact = Fact::Accused { by, whom, epoch: self.epoch };
        let entry = Entry { at_ms: self.state.now_ms(), fact };
        self.state.apply(&entry, &mut Vec::new());
    }
}
