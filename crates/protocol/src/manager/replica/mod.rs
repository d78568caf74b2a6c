//! A replica: puts what it hears into the order, applies what comes out, and says to agents what follows.
//!
//! CM-1, CM-3, CM-4. What an agent says is submitted by the leader at once and by the others a little later, so that a leader that keeps it
//! to itself delays it only; whatever comes twice counts once (`core`). What the zone sees is submitted by the leader alone: two views of
//! the zone that differ would contradict each other for ever.
//!
//! | file | idea |
//! |---|---|
//! | `arrive` | what agents and other replicas say |
//! | `round` | what the clock brings |
//! | `submit` | what goes into the order |
//! | `say` | what is said to agents when it comes out |

mod arrive;
mod round;
mod say;
mod submit;

use super::core::{Applied, Core};
use super::group::{Digest, Group, Link};
use super::sheaf::{Sheaf, Slip};
use super::state::NodeInfo;
use super::wire::{Id, Packet, Said, Statement};
use super::words::Key;
use crate::link::sign::Signer;
use crate::order::{self, Mark, Member, Order};
use phalanx_core::{Duration, Instant, Machine, Rng, Sink};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Signs of life among replicas, and how often a replica looks around.
pub const BEAT: Duration = Duration::from_millis(250);
/// A peer that missed two beats.
pub const MISSED: Duration = Duration::from_millis(625);
/// Statements that are remembered.
const RING: usize = 1024;
/// Decisions whose hashes are remembered.
const DECIDED: usize = 4096;
/// The state is written after so many entries, or more when it is large.
const SAVE_EVERY: u64 = 256;
/// It is written after so many bytes in any case: the log is bounded.
const SAVE_BYTES: usize = 2 << 20;
/// A state that was handed out is handed out again for so long.
const COPY: Duration = Duration::from_secs(5);

/// What a replica needs to act.
pub struct Around<'a> {
    /// The time.
    pub now: Instant,
    /// The same, in milliseconds since 1970, by our clock.
    pub unix_ms: u64,
    /// The cluster's name.
    pub cluster: &'a str,
    /// A word for so many agents or more is handed on by them.
    pub relay_min: usize,
    /// Our key.
    pub signer: &'a Signer,
    /// The nodes that the zone shows.
    pub world: &'a BTreeMap<Key, NodeInfo>,
    /// Nodes that the zone said are gone.
    pub gone: &'a BTreeMap<Key, u64>,
    /// Nodes of other zones of which those say nothing any more.
    pub silent: &'a BTreeSet<Key>,
    /// All links of the chain since an epoch.
    pub chain: &'a super::group::Chain,
    /// Where decisions go.
    pub acts: &'a mut Vec<Act>,
    /// What happened so often.
    pub counters: &'a mut Counters,
}

/// What follows for the steward.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Act {
    /// Say this to that node.
    Send(Key, Packet),
    /// Say a word to many, of whom this is the first.
    Pass(Slip, Sheaf),
    /// Keep a record of the order of this epoch.
    Record {
        /// Which.
        epoch: u32,
        /// The order's own.
        token: u64,
        /// All before it are void.
        replaces: bool,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Keep the state after that entry.
    State {
        /// Of which epoch.
        epoch: u32,
        /// Which entry.
        index: u64,
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Doubt a node.
    Suspect(Key),
    /// This replica fell behind: take the state of another.
    Behind,
    /// Something is odd: compare what replicas have after this entry.
    Diagnose(u64),
}

/// What happened, for FI-5 and for people.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Voices sent again.
    pub retransmissions: u64,
    /// What agents said that came twice.
    pub duplicates: u64,
    /// Nodes probed after two misses.
    pub probes: u64,
    /// Of these, such as answered after all.
    pub false_alarms: u64,
    /// Comparisons of states that were begun.
    pub self_diagnoses: u64,
    /// Replicas that we found wrong.
    pub accusations: u64,
    /// Packets that are none.
    pub malformed: u64,
    /// Packets whose sender was not proved.
    pub unproved: u64,
    /// Packets of others than they must be of.
    pub foreign: u64,
    /// What was not taken because too much waits.
    pub refused: u64,
}

/// An agent, as a replica sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Listener {
    incarnation: u64,
    epoch: u32,
    heard_at: Instant,
    /// It was asked whether it is there, then.
    probed_at: Option<Instant>,
    suspected: bool,
    done: Id,
    /// The order was told that it is done up to here.
    done_told: Id,
    told_at: Instant,
    announced_at: Instant,
}

/// Another replica.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Peer {
    heard_at: Instant,
    statement: Option<Statement>,
    /// How far its clock is ahead of ours.
    ahead_ms: i64,
    hears: u8,
    /// It missed two beats, and that was looked into.
    missed: bool,
}

/// What an agent says that is not ordered yet.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Inbox {
    incarnation: u64,
    submitted: u64,
    submitted_at: Instant,
    items: BTreeMap<u64, (Said, Instant)>,
}

impl Inbox {
    fn new(incarnation: u64) -> Self {
        Self { incarnation, submitted: 0, submitted_at: Instant::ZERO, items: BTreeMap::new() }
    }
}

/// A state that is handed out.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Copy {
    index: u64,
    mark: Vec<u8>,
    bytes: Vec<u8>,
    taken_at: Instant,
}

/// Outputs of the order that outlive the call.
enum Owned {
    Send(Member, Vec<u8>),
    Persist(u64, bool, Vec<u8>),
    Deliver(u64, Member, Vec<u8>),
    Stalled(bool),
    Refused,
    NeedSnapshot,
}

#[derive(Default)]
struct Collected(Vec<Owned>);

impl<'a> Sink<order::Output<'a>> for Collected {
    fn push(&mut self, item: order::Output<'a>) {
        use order::Output;
        self.0.push(match item {
            Output::Send { to, packet } => Owned::Send(to, packet.to_vec()),
            Output::Persist { token, replaces, record } => Owned::Persist(token, replaces, record.to_vec()),
            Output::Deliver { index, origin, message } => Owned::Deliver(index, origin.member, message.to_vec()),
            Output::Stalled => Owned::Stalled(true),
            Output::Resumed => Owned::Stalled(false),
            Output::Refused { .. } => Owned::Refused,
            Output::NeedSnapshot { .. } => Owned::NeedSnapshot,
            Output::Accepted { .. } => return,
        });
    }
}

/// An order that has ended, and answers those who have not seen its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Prior {
    /// Of which group.
    pub group: Group,
    order: Order,
}

impl Prior {
    /// The order of an ended epoch, found on disk.
    #[must_use]
    pub fn new(group: Group, order: Order) -> Self {
        Self { group, order }
    }

    /// When it wants to act.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.order.deadline()
    }

    /// It hears, or its time has come.
    pub fn drive(&mut self, now: Instant, input: Option<order::Input<'_>>, acts: &mut Vec<Act>) {
        let mut out = Collected::default();
        match input {
            Some(input) => self.order.handle(now, input, &mut out),
            None => self.order.expire(now, &mut out),
        }
        let epoch = self.group.epoch;
        for owned in out.0 {
            match owned {
                Owned::Send(to, bytes) => send_ordered(&self.group, to, bytes, acts),
                Owned::Persist(token, replaces, bytes) => acts.push(Act::Record { epoch, token, replaces, bytes }),
                _ => {}
            }
        }
    }
}

fn send_ordered(group: &Group, to: Member, bytes: Vec<u8>, acts: &mut Vec<Act>) {
    if let Some(key) = group.key(to) {
        acts.push(Act::Send(key, Packet::Order { epoch: group.epoch, bytes }));
    }
}

/// One of the group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replica {
    key: Key,
    me: Member,
    boot: u64,
    config: order::Config,
    group: Group,
    /// None until the state from which it begins is on disk.
    order: Option<Order>,
    /// Where the order stood when the state after that entry was taken elsewhere.
    mark: Option<(u64, Mark)>,
    records: Vec<Vec<u8>>,
    core: Core,
    rng: Rng,
    began_at: Instant,
    /// The group that follows.
    next: Option<Group>,
    ring: VecDeque<Statement>,
    decided: BTreeMap<Id, Digest>,
    inboxes: BTreeMap<(Key, bool), Inbox>,
    agents: BTreeMap<Key, Listener>,
    peers: Vec<Peer>,
    /// What the zone sees, submitted then.
    facts: BTreeMap<Key, Instant>,
    ticked_at: Option<Instant>,
    /// When it said that it has its state.
    arrived_at: Option<Instant>,
    announce_from: Option<Key>,
    beat_at: Instant,
    /// The state is on disk up to here.
    saved: u64,
    saving: Option<(u64, Instant)>,
    since: usize,
    size: usize,
    copy: Option<Copy>,
    stalled: bool,
    /// The others' logs do not reach back far enough for it.
    behind: bool,
    led_from: Option<Instant>,
    accused: BTreeSet<Key>,
    /// All decisions of entries behind this one are remembered.
    decided_from: u64,
    /// Nobody can say what is true: nothing is decided any more.
    halted: bool,
    /// Tests alone: it says wrong things to agents.
    #[cfg(any(test, feature = "harm"))]
    lies: bool,
}

impl Replica {
    /// Begins with a state that is not on disk yet; `mark` says where the order stood when it was taken elsewhere.
    #[must_use]
    pub fn new(
        (key, boot, config): (Key, u64, order::Config),
        group: Group,
        core: Core,
        mark: Option<Mark>,
        rng: Rng,
        around: &mut Around<'_>,
    ) -> Option<Self> {
        let mut replica = Self::with((key, boot, config), group, core, rng, around.now)?;
        if let Some(mark) = mark {
            replica.core.cover(mark.place.index);
            replica.mark = Some((replica.core.index(), mark));
        }
        replica.save(around);
        Some(replica)
    }

    /// Goes on from what is on disk.
    #[must_use]
    pub fn recover(
        (key, boot, config): (Key, u64, order::Config),
        group: Group,
        core: Core,
        records: &[Vec<u8>],
        rng: Rng,
        now: Instant,
    ) -> Option<Self> {
        let mut replica = Self::with((key, boot, config), group, core, rng, now)?;
        let seat = replica.seat();
        let order = Order::recover(config, seat, replica.core.covered(), records, replica.rng.clone(), now);
        replica.order = Some(order.ok()?);
        replica.saved = replica.core.index();
        Some(replica)
    }

    fn with(
        (key, boot, config): (Key, u64, order::Config),
        group: Group,
        core: Core,
        rng: Rng,
        now: Instant,
    ) -> Option<Self> {
        let me = group.member(key)?;
        let peer = Peer { heard_at: now, statement: None, ahead_ms: 0, hears: 0, missed: false };
        let (peers, statement, decided_from) = (vec![peer; group.seats.len()], core.statement(), core.index());
        Some(Self {
            key,
            me,
            boot,
            config,
            group,
            order: None,
            mark: None,
            records: Vec::new(),
            core,
            rng,
            began_at: now,
            next: None,
            ring: VecDeque::from([statement]),
            decided: BTreeMap::new(),
            inboxes: BTreeMap::new(),
            agents: BTreeMap::new(),
            peers,
            facts: BTreeMap::new(),
            ticked_at: None,
            arrived_at: None,
            announce_from: None,
            beat_at: now,
            saved: 0,
            saving: None,
            since: 0,
            size: 0,
            copy: None,
            stalled: false,
            behind: false,
            led_from: None,
            accused: BTreeSet::new(),
            decided_from,
            halted: false,
            #[cfg(any(test, feature = "harm"))]
            lies: false,
        })
    }

    fn seat(&self) -> order::Seat {
        order::Seat { me: self.me, members: self.group.seats.len() as u8, epoch: self.group.epoch, boot: self.boot }
    }

    /// Whose it is.
    #[must_use]
    pub fn key(&self) -> Key {
        self.key
    }

    /// The group it is in.
    #[must_use]
    pub fn group(&self) -> &Group {
        &self.group
    }

    /// What it has in common with the others.
    #[must_use]
    pub fn core(&self) -> &Core {
        &self.core
    }

    /// Its order, once it has begun.
    #[must_use]
    pub fn order(&self) -> Option<&Order> {
        self.order.as_ref()
    }

    /// Who leads.
    #[must_use]
    pub fn leader(&self) -> Option<Key> {
        self.group.key(self.order.as_ref()?.leader()?)
    }

    /// Too few are there: nothing is decided.
    #[must_use]
    pub fn is_stalled(&self) -> bool {
        self.stalled
    }

    /// It cannot go on without the state of another.
    #[must_use]
    pub fn is_behind(&self) -> bool {
        self.behind
    }

    /// Peers that were heard lately, oneself among them.
    #[must_use]
    pub fn heard_lately(&self, now: Instant) -> Vec<Key> {
        let is_there = |i: &usize| *i == usize::from(self.me.0) || now.since(self.peers[*i].heard_at) < MISSED;
        (0..self.peers.len()).filter(is_there).filter_map(|i| self.group.key(Member(i as u8))).collect()
    }

    /// When it wants to act.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.order.as_ref().map_or(Instant::NEVER, Machine::deadline).min(self.beat_at)
    }

    /// The group that follows, once, and what this replica's order and core become of.
    pub fn take_next(&mut self) -> Option<Group> {
        self.next.take()
    }

    /// What is left of it when its epoch is over.
    #[must_use]
    pub fn retire(self) -> (Core, Option<Prior>) {
        let group = self.group;
        (self.core, self.order.map(|order| Prior { group, order }))
    }

    fn leads(&self) -> bool {
        self.order.as_ref().is_some_and(|o| o.leader() == Some(self.me))
    }

    /// The middle one of all replicas' clocks: one that goes wrong moves nobody.
    fn agreed_ms(&self, around: &Around<'_>) -> u64 {
        let me = usize::from(self.me.0);
        let is_known = |i: usize| i == me || self.peers[i].statement.is_some();
        let mut ahead: Vec<_> = (0..self.peers.len())
            .filter(|&i| is_known(i))
            .map(|i| if i == me { 0 } else { self.peers[i].ahead_ms })
            .collect();
        ahead.sort_unstable();
        let middle = match ahead.len() {
            2 => 0,
            n => ahead[n / 2],
        };
        around.unix_ms.saturating_add_signed(middle)
    }

    fn drive(&mut self, input: Option<order::Input<'_>>, around: &mut Around<'_>) {
        let Some(order) = &mut self.order else { return };
        let led = order.leader() == Some(self.me);
        let mut out = Collected::default();
        match input {
            Some(input) => order.handle(around.now, input, &mut out),
            None => order.expire(around.now, &mut out),
        }
        let leads_now = !led && order.leader() == Some(self.me);
        let epoch = self.group.epoch;
        for owned in out.0 {
            match owned {
                Owned::Send(to, bytes) => send_ordered(&self.group, to, bytes, around.acts),
                Owned::Persist(token, replaces, bytes) => {
                    around.acts.push(Act::Record { epoch, token, replaces, bytes });
                }
                Owned::Deliver(index, member, message) => self.deliver(index, member, &message, around),
                Owned::Stalled(stalled) => self.stalled = stalled,
                Owned::Refused => around.counters.refused += 1,
                Owned::NeedSnapshot => {
                    self.behind = true;
                    around.acts.push(Act::Behind);
                }
            }
        }
        if leads_now {
            // What waited for somebody to lead.
            self.beat_at = self.beat_at.min(around.now);
        }
    }

    fn deliver(&mut self, index: u64, member: Member, message: &[u8], around: &mut Around<'_>) {
        // The epoch ended: what was put behind its end will be said again in the next.
        if self.next.is_some() || index <= self.core.index() {
            return;
        }
        let mut applied = Applied::default();
        self.core.apply(index, member, message, &mut applied);
        self.since += message.len();
        if self.ring.len() == RING {
            self.ring.pop_front();
        }
        self.ring.push_back(self.core.statement());
        for key in applied.heard {
            let incarnation = self.core.desk(key).map_or(0, |d| d.incarnation);
            around.acts.push(Act::Send(key, self.heard_of(key, incarnation, 0)));
        }
        let every = heartbeat(around.world.len());
        for words in applied.words.chunk_by(|a, b| a.1.id == b.1.id) {
            let item = &words[0].1;
            self.decided.insert(item.id, item.body.hash);
            if self.decided.len() > DECIDED
                && let Some((id, _)) = self.decided.pop_first()
            {
                self.decided_from = id.index;
            }
            let together = words.len() >= around.relay_min;
            for (to, item) in words {
                if let Some(listener) = self.agents.get_mut(to) {
                    // Who is told with others says with his next heartbeat that he did it.
                    listener.told_at = if together { around.now + every } else { around.now };
                }
                if !together {
                    self.say(*to, item, false, around);
                }
            }
            if together {
                self.say_to_all(words, around);
            }
        }
        if let Some((seats, fresh)) = applied.next {
            let group = Group { epoch: self.group.epoch + 1, seats, fresh };
            if group.is_sound() {
                self.next = Some(group);
            }
        }
    }

    fn is_save_due(&self) -> bool {
        let entries = self.core.index() - self.saved;
        let much = self.since >= SAVE_BYTES || entries >= SAVE_EVERY * 8;
        self.saving.is_none()
            && self.order.is_some()
            && (much || (entries >= SAVE_EVERY && self.since * 2 >= self.size))
    }

    fn save(&mut self, around: &mut Around<'_>) {
        let bytes = self.core.encode();
        (self.size, self.since) = (bytes.len(), 0);
        let (epoch, index) = (self.group.epoch, self.core.index());
        self.saving = Some((index, around.now));
        around.acts.push(Act::State { epoch, index, bytes });
    }

    /// Tests alone: what its last entries led to, the newest last.
    #[cfg(any(test, feature = "harm"))]
    pub fn statements(&self) -> impl DoubleEndedIterator<Item = &Statement> {
        self.ring.iter()
    }

    /// Tests alone: the words of its last decisions, in their order.
    #[cfg(any(test, feature = "harm"))]
    pub fn decisions(&self) -> impl DoubleEndedIterator<Item = (Id, Digest)> + '_ {
        self.decided.iter().map(|(&id, &digest)| (id, digest))
    }

    /// Tests alone: its memory goes bad.
    #[cfg(any(test, feature = "harm"))]
    pub fn corrupt(&mut self, chance: u64) {
        self.core.corrupt(chance);
    }

    /// Tests alone: see [`Replica::lie`].
    #[cfg(any(test, feature = "harm"))]
    #[must_use]
    pub fn is_lying(&self) -> bool {
        self.lies
    }

    /// Tests alone: from now on it tells agents other things than it decided.
    #[cfg(any(test, feature = "harm"))]
    pub fn lie(&mut self) {
        self.lies = true;
    }
}

/// Heartbeats of an agent among so many: fewer when they are many, but not so few that a lease could end between two.
#[must_use]
pub fn heartbeat(nodes: usize) -> Duration {
    Duration::from_secs((nodes as u64 / 256).clamp(1, 3))
}

/// The link of the group that follows.
#[must_use]
pub fn link_of(group: &Group, signer: &Signer, cluster: &str) -> Link {
    let mut link = Link::new(group.clone());
    link.sign(signer, cluster);
    link
}
