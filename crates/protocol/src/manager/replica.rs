//! A replica: puts what it hears into the order, applies what comes out, and says to agents what follows.
//!
//! CM-1, CM-3, CM-4. What an agent says is submitted by the leader at once and by the others a little later, so that a leader that keeps it
//! to itself delays it only; whatever comes twice counts once (`core`). What the zone sees is submitted by the leader alone: two views of
//! the zone that differ would contradict each other for ever.

use super::agent::{AGAIN, LEASE};
use super::core::{Applied, Core, Item, Ordered};
use super::group::{Digest, Group, Link, Proof};
use super::sheaf::{self, BLOCK_MAX, Sheaf, Slip};
use super::state::{Entry, Fact, NodeInfo, Reported};
use super::wire::{Ballot, Id, Look, PIECE_MAX, Packet, Said, Statement, Sworn, Telling, Vote, vote_context};
use super::words::{Key, encode};
use crate::link::sign::Signer;
use crate::order::{self, Mark, Member, Order};
use phalanx_core::{Duration, Instant, Machine, Rng, Sink};
use std::collections::{BTreeMap, BTreeSet, VecDeque, btree_map};

/// Signs of life among replicas, and how often a replica looks around.
pub const BEAT: Duration = Duration::from_millis(250);
/// A peer that missed two beats.
pub const MISSED: Duration = Duration::from_millis(625);
/// A peer that nobody heard for so long has lost its seat.
const SILENT: Duration = Duration::from_secs(10);
/// An agent's word waits so long for the leader to submit it.
const LEADERS_TURN: Duration = Duration::from_millis(300);
/// The next try to submit what the zone sees.
const FACT_AGAIN: Duration = Duration::from_secs(1);
/// A node that the zone does not show is lost, though nobody said so, after such a time.
const UNSEEN: Duration = Duration::from_secs(15);
/// The same for one whose whole zone is silent: longer than two heartbeats, and shorter than it takes to move a replica from one dead node to the next.
const SILENT_ALIKE: Duration = Duration::from_secs(7);
/// Statements that are remembered.
const RING: usize = 1024;
/// Decisions whose hashes are remembered.
const DECIDED: usize = 4096;
/// Words of one agent that a replica keeps until they are ordered.
const INBOX_MAX: usize = 256;
/// Agents that are remembered.
const AGENTS_MAX: usize = 128 * 1024;
/// Words said again to one agent at once.
const AGAIN_MAX: usize = 16;
/// Bodies up to this length come with every voice; longer ones from one replica at first.
const BODY_SHARED: usize = 512;
/// Facts of the zone submitted at once.
const FACTS_MAX: usize = 256;
/// Agents in one message that says what was carried out.
const DONE_MAX: usize = 512;
/// Announcements in one round.
const ANNOUNCED_MAX: usize = 256;
/// The state is written after so many entries, or more when it is large.
const SAVE_EVERY: u64 = 256;
/// It is written after so many bytes in any case: the log is bounded.
const SAVE_BYTES: usize = 2 << 20;
/// A state that was handed out is handed out again for so long.
const COPY: Duration = Duration::from_secs(5);
/// Writes that were not confirmed are repeated.
const WRITE_PATIENCE: Duration = Duration::from_secs(5);
/// Longest part of a message in the order.
const PART: usize = 32 * 1024;
/// Reports that go into the order as one.
const REPORTED_MAX: usize = 256;

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
#[expect(
    clippy::large_enum_variant,
    reason = "these lists live for one call; a box would cost each packet an allocation"
)]
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

    // What arrives.

    /// A packet of the order.
    pub fn on_ordered(&mut self, from: Key, packet: &[u8], around: &mut Around<'_>) {
        match self.group.member(from) {
            Some(from) => self.drive(Some(order::Input::Received { from, packet }), around),
            None => around.counters.foreign += 1,
        }
    }

    /// A record of the order is on disk.
    pub fn on_recorded(&mut self, token: u64, around: &mut Around<'_>) {
        self.drive(Some(order::Input::Persisted { token }), around);
    }

    /// The state after `index` is on disk.
    pub fn on_saved(&mut self, index: u64, around: &mut Around<'_>) {
        self.saved = self.saved.max(index);
        if self.saving.is_some_and(|s| s.0 <= index) {
            self.saving = None;
        }
        if self.order.is_none() {
            let seat = self.seat();
            let records = std::mem::take(&mut self.records);
            let now = around.now;
            self.order = Order::recover(self.config, seat, index, records, self.rng.clone(), now).ok();
        }
        if let Some((_, mark)) = self.mark.take_if(|m| m.0 <= index) {
            self.drive(Some(order::Input::Restored { mark }), around);
        }
        self.drive(Some(order::Input::Saved { up_to: index }), around);
    }

    /// An agent lives.
    pub fn on_alive(
        &mut self,
        from: Key,
        (incarnation, epoch, beat, done): (u64, u32, u64, Id),
        around: &mut Around<'_>,
    ) {
        let now = around.now;
        if self.agents.len() >= AGENTS_MAX && !self.agents.contains_key(&from) {
            around.counters.refused += 1;
            return;
        }
        let long_ago = Instant::ZERO;
        let listener = self.agents.entry(from).or_insert(Listener {
            incarnation,
            epoch,
            heard_at: now,
            probed_at: None,
            suspected: false,
            done: Id::default(),
            done_told: Id::default(),
            told_at: long_ago,
            announced_at: long_ago,
        });
        if incarnation < listener.incarnation {
            return;
        }
        if listener.probed_at.take().is_some() {
            around.counters.false_alarms += 1;
        }
        if incarnation > listener.incarnation {
            listener.done = done;
        }
        (listener.incarnation, listener.epoch, listener.heard_at, listener.suspected) =
            (incarnation, epoch, now, false);
        listener.done = listener.done.max(done);
        if epoch < around.chain.epoch() && now >= listener.announced_at + AGAIN {
            listener.announced_at = now;
            around.acts.push(Act::Send(from, Packet::Announce(around.chain.since(epoch))));
        }
        let packet = self.heard_of(from, incarnation, beat);
        around.acts.push(Act::Send(from, packet));
    }

    fn heard_of(&self, agent: Key, incarnation: u64, beat: u64) -> Packet {
        let state = self.core.state();
        let known = state.node(&agent).is_some_and(|n| n.incarnation == incarnation) && !state.is_lost(&agent);
        // Without a leader nobody knows whether the others have given the agent up.
        let decides = !self.stalled && !self.halted && self.order.as_ref().is_some_and(|o| o.leader().is_some());
        let noted =
            self.core.desk(agent).filter(|d| d.incarnation == incarnation).map_or((0, 0), |d| (d.asks, d.reports));
        Packet::Heard { agent, epoch: self.group.epoch, beat, incarnation, noted, granted: known && decides }
    }

    /// An agent has something to say.
    pub fn on_told(&mut self, from: Key, incarnation: u64, number: u64, said: Said, around: &mut Around<'_>) {
        let which = (from, matches!(said, Said::Ask(_)));
        if self.take_in(from, incarnation, number, said, around) && self.leads() {
            self.submit_said(which, around);
        }
    }

    /// Several agents have something to report; their signatures were checked.
    pub fn on_gathered(&mut self, told: Vec<Telling>, around: &mut Around<'_>) {
        let mut froms = BTreeSet::new();
        for Telling { from, incarnation, number, report, .. } in told {
            if self.take_in(from, incarnation, number, Said::Report(report), around) {
                froms.insert(from);
            }
        }
        if self.leads() {
            self.submit_reports(froms, around);
        }
    }

    /// Remembers what an agent says until it is ordered. False when it is of no use.
    fn take_in(&mut self, from: Key, incarnation: u64, number: u64, said: Said, around: &mut Around<'_>) -> bool {
        let ask = matches!(said, Said::Ask(_));
        let heard = match self.core.desk(from) {
            Some(desk) if desk.incarnation > incarnation => return false,
            Some(desk) if desk.incarnation == incarnation => desk.heard(&said),
            _ => 0,
        };
        if number <= heard {
            around.counters.duplicates += 1;
            around.acts.push(Act::Send(from, self.heard_of(from, incarnation, 0)));
            return false;
        }
        if self.inboxes.len() >= AGENTS_MAX && !self.inboxes.contains_key(&(from, ask)) {
            around.counters.refused += 1;
            return false;
        }
        let inbox = self.inboxes.entry((from, ask)).or_insert_with(|| Inbox::new(incarnation));
        if incarnation < inbox.incarnation {
            return false;
        }
        if incarnation > inbox.incarnation {
            *inbox = Inbox::new(incarnation);
        }
        if number > heard + INBOX_MAX as u64 {
            around.counters.refused += 1;
            return false;
        }
        match inbox.items.entry(number) {
            btree_map::Entry::Occupied(_) => around.counters.duplicates += 1,
            btree_map::Entry::Vacant(place) => _ = place.insert((said, around.now)),
        }
        true
    }

    /// Another replica lives.
    pub fn on_beat(&mut self, from: Key, statement: Statement, unix_ms: u64, hears: u8, around: &mut Around<'_>) {
        let Some(member) = self.group.member(from).filter(|m| *m != self.me) else {
            around.counters.foreign += 1;
            return;
        };
        if statement.epoch < self.group.epoch {
            around.acts.push(Act::Send(from, Packet::Announce(around.chain.since(statement.epoch))));
        }
        let peer = &mut self.peers[usize::from(member.0)];
        peer.heard_at = around.now;
        peer.hears = hears;
        peer.ahead_ms = i64::try_from(unix_ms).unwrap_or(i64::MAX).saturating_sub_unsigned(around.unix_ms);
        if statement.epoch == self.group.epoch {
            peer.statement = Some(statement);
        }
    }

    /// Somebody wants to see something.
    pub fn on_look(&self, from: Key, number: u64, what: &Look, around: &mut Around<'_>) {
        let state = self.core.state();
        let bytes = match what {
            Look::Runs => encode(&state.runs()),
            Look::Run(name) => encode(&state.run(name)),
            Look::Slots => encode(&state.slots()),
        };
        around.acts.push(Act::Send(from, Packet::Shown { number, bytes }));
    }

    /// Somebody needs the state.
    pub fn on_fetch(&mut self, from: Key, index: u64, offset: u32, around: &mut Around<'_>) {
        let now = around.now;
        let fits = |c: &Copy| if index == 0 { now.since(c.taken_at) < COPY } else { c.index == index };
        if !self.copy.as_ref().is_some_and(fits) {
            if index != 0 {
                return;
            }
            let Some(mark) = self.order.as_ref().and_then(Order::mark) else { return };
            let mut bytes = Vec::new();
            mark.encode(&mut bytes);
            let copy = Copy { index: self.core.index(), mark: bytes, bytes: self.core.encode(), taken_at: now };
            self.copy = Some(copy);
        }
        let Some(copy) = &self.copy else { return };
        let piece = copy.bytes.iter().skip(offset as usize).take(PIECE_MAX).copied().collect();
        around.acts.push(Act::Send(
            from,
            Packet::Piece {
                epoch: self.group.epoch,
                index: copy.index,
                total: copy.bytes.len() as u32,
                offset,
                mark: copy.mark.clone(),
                bytes: piece,
            },
        ));
        self.on_declare(from, self.group.epoch, copy.index, around);
    }

    /// What we have, or had, after an entry; signed.
    #[must_use]
    pub fn swear(&self, epoch: u32, index: u64, around: &Around<'_>) -> Option<Sworn> {
        // What is here now, not what was: memories go bad between entries, too.
        let now = Some(self.core.statement()).filter(|s| s.index == index && s.epoch == epoch);
        let statement =
            now.or_else(|| self.ring.iter().rev().find(|s| s.index == index && s.epoch == epoch).copied())?;
        Some(Sworn::new(statement, self.boot, around.signer, around.cluster))
    }

    /// Somebody wants to know what we had after an entry.
    pub fn on_declare(&self, from: Key, epoch: u32, index: u64, around: &mut Around<'_>) {
        if let Some(sworn) = self.swear(epoch, index, around) {
            around.acts.push(Act::Send(from, Packet::Declared(vec![sworn])));
        }
    }

    /// An agent shows two voices that differ, or one that is alone; their signatures were checked.
    pub fn on_differ(&mut self, one: &Ballot, other: &Ballot, around: &mut Around<'_>) {
        let id = one.vote.id;
        if id.epoch != self.group.epoch || id.index > self.core.index() || id.index <= self.decided_from {
            return;
        }
        // One of them says what we decided, or we are the odd one.
        let ours = self.decided.get(&id).copied();
        let is_right = |b: &Ballot| ours == Some(b.vote.hash);
        let lies = [one, other].into_iter().filter(|b| !is_right(b) && b.by != self.key);
        lies.map(|b| b.by).collect::<BTreeSet<_>>().into_iter().for_each(|whom| self.accuse(whom, around));
        around.acts.push(Act::Diagnose(self.core.index()));
    }

    /// Nobody can say what is true.
    pub fn halt(&mut self) {
        self.halted = true;
    }

    /// Takes a state that two others have, when it is newer.
    pub fn install(&mut self, core: Core, mark: Mark, around: &mut Around<'_>) {
        if core.epoch() == self.group.epoch && core.index() > self.core.index() && self.order.is_some() {
            self.core = core;
            self.core.cover(mark.place.index);
            (self.mark, self.behind) = (Some((self.core.index(), mark)), false);
            self.ring = VecDeque::from([self.core.statement()]);
            (self.decided_from, self.decided) = (self.core.index(), BTreeMap::new());
            self.save(around);
        }
    }

    /// The zone sees something new.
    pub fn on_world(&mut self, around: &mut Around<'_>) {
        if self.leads() {
            self.submit_world(around);
        }
    }

    // Time.

    /// Its deadline has passed.
    pub fn expire(&mut self, around: &mut Around<'_>) {
        if self.order.as_ref().is_some_and(|o| o.deadline() <= around.now) {
            self.drive(None, around);
        }
        if around.now >= self.beat_at {
            self.beat_at = around.now + BEAT;
            self.on_round(around);
        }
    }

    fn on_round(&mut self, around: &mut Around<'_>) {
        let now = around.now;
        self.led_from = if self.leads() { self.led_from.or(Some(now)) } else { None };
        self.beat(around);
        self.submit_waiting(around);
        if self.leads() {
            self.submit_world(around);
            self.submit_done(around);
        }
        self.submit_tick(around);
        self.submit_arrival(around);
        self.watch_peers(around);
        self.watch_agents(around);
        self.announce(around);
        self.say_again(around);
        if self.saving.is_some_and(|s| now >= s.1 + WRITE_PATIENCE) || self.is_save_due() {
            self.save(around);
        }
        if self.copy.as_ref().is_some_and(|c| now.since(c.taken_at) > COPY * 6) {
            self.copy = None;
        }
    }

    /// CM-3: a peer that missed two beats, or shows something else than we had, is looked into; one that nobody has heard for long has lost
    /// its seat.
    fn watch_peers(&mut self, around: &mut Around<'_>) {
        let now = around.now;
        let me = usize::from(self.me.0);
        for i in (0..self.peers.len()).filter(|&i| i != me) {
            let silence = now.since(self.peers[i].heard_at);
            let differs = self.peers[i].statement.is_some_and(|theirs| {
                self.ring.iter().rev().find(|s| s.index == theirs.index).is_some_and(|ours| *ours != theirs)
            });
            let missed = silence >= MISSED && !self.peers[i].missed;
            self.peers[i].missed = silence >= MISSED;
            if missed || differs {
                around.acts.push(Act::Diagnose(self.core.index()));
            }
            let others_hear = (0..self.peers.len())
                .filter(|&o| o != i && now.since(self.peers[o].heard_at) < MISSED)
                .any(|o| self.peers[o].hears & 1 << i != 0);
            if silence >= SILENT && !others_hear && now.since(self.began_at) >= SILENT && !self.stalled {
                let whom = self.group.key(Member(i as u8));
                whom.into_iter().for_each(|whom| self.accuse(whom, around));
            }
        }
    }

    fn beat(&mut self, around: &mut Around<'_>) {
        let hears = (0..self.peers.len())
            .filter(|&i| around.now.since(self.peers[i].heard_at) < MISSED)
            .fold(1 << self.me.0, |bits, i| bits | 1 << i);
        let packet = Packet::Beat { statement: self.core.statement(), unix_ms: around.unix_ms, hears };
        for key in self.group.keys().filter(|k| *k != self.key) {
            around.acts.push(Act::Send(key, packet.clone()));
        }
    }

    /// CM-3: two consecutive misses, then a probe, then a doubt. The zone alone says that a node is gone.
    fn watch_agents(&mut self, around: &mut Around<'_>) {
        let (now, every) = (around.now, heartbeat(around.world.len()));
        for (&key, listener) in &mut self.agents {
            if !around.world.contains_key(&key) || now.since(listener.heard_at) < every * 2 + BEAT {
                continue;
            }
            match listener.probed_at {
                None if !listener.suspected => {
                    listener.probed_at = Some(now);
                    around.counters.probes += 1;
                    around.acts.push(Act::Send(key, Packet::Probe));
                }
                Some(at) if now.since(at) >= every => {
                    (listener.probed_at, listener.suspected) = (None, true);
                    around.acts.push(Act::Suspect(key));
                }
                _ => {}
            }
        }
    }

    /// Nodes that know no group, or an older one, are told.
    fn announce(&mut self, around: &mut Around<'_>) {
        let (now, epoch) = (around.now, around.chain.epoch());
        let links = around.chain.since(0);
        let from = self.announce_from.take();
        let mut left = ANNOUNCED_MAX;
        for &key in around
            .world
            .range((from.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded), std::ops::Bound::Unbounded))
            .map(|(k, _)| k)
        {
            if left == 0 {
                break;
            }
            self.announce_from = Some(key);
            if key == self.key
                || self.agents.get(&key).is_some_and(|l| l.epoch >= epoch || now < l.announced_at + AGAIN)
            {
                continue;
            }
            left -= 1;
            around.acts.push(Act::Send(key, Packet::Announce(links.clone())));
        }
        if left > 0 {
            self.announce_from = None;
        }
    }

    /// What agents that are there have not carried out is said again.
    fn say_again(&mut self, around: &mut Around<'_>) {
        let now = around.now;
        let mut due = Vec::new();
        for (&key, listener) in &mut self.agents {
            if now.since(listener.heard_at) > LEASE || now < listener.told_at + AGAIN {
                continue;
            }
            let Some(desk) = self.core.desk(key) else { continue };
            let items: Vec<_> = desk.waiting.iter().filter(|i| i.id > listener.done).take(AGAIN_MAX).cloned().collect();
            if !items.is_empty() {
                listener.told_at = now;
                due.extend(items.into_iter().map(|item| (key, item)));
            }
        }
        for (key, item) in due {
            around.counters.retransmissions += 1;
            self.say(key, &item, true, around);
        }
    }

    fn say(&self, to: Key, item: &Item, whole: bool, around: &mut Around<'_>) {
        if self.halted {
            return;
        }
        #[cfg(any(test, feature = "harm"))]
        let item = &if self.lies { item.bent() } else { item.clone() };
        let vote = Vote { id: item.id, after: item.after, to, hash: item.body.hash };
        let ballot = Ballot::direct(vote, self.key, around.signer, around.cluster);
        let turn = usize::from(to.0[0]).wrapping_add(item.id.index as usize) % self.group.seats.len();
        let whole = whole || item.body.bytes.len() <= BODY_SHARED || turn == usize::from(self.me.0);
        let body = whole.then(|| item.body.bytes.clone());
        around.acts.push(Act::Send(to, Packet::Vote(ballot, body)));
    }

    /// Says a word to many: those to whom it goes first hand it on.
    fn say_to_all(&self, words: &[(Key, Item)], around: &mut Around<'_>) {
        let Some((_, item)) = words.first().filter(|_| !self.halted) else { return };
        #[cfg(any(test, feature = "harm"))]
        let item = &if self.lies { item.bent() } else { item.clone() };
        let (seats, me) = (self.group.seats.len(), usize::from(self.me.0));
        let (front, back) = words.split_at(words.len() * me / seats);
        let slip = |(to, item): &(Key, Item)| {
            let at = self.core.state().node(to)?.at;
            Some(Slip { to: *to, at, after: item.after })
        };
        let slips: Vec<_> = back.iter().chain(front).filter_map(slip).collect();
        if slips.is_empty() {
            return;
        }
        // Two of three bring the word itself.
        let brings = seats < 3 || item.body.bytes.len() <= BODY_SHARED || item.id.index as usize % seats != me;
        let body = brings.then(|| item.body.bytes.clone());
        let (id, hash, by) = (item.id, item.body.hash, self.key);
        let unsigned = Proof::default();
        let whole = Sheaf { id, hash, by, proof: unsigned, path: sheaf::Path::default(), slips, body };
        let (root, blocks) = sheaf::blocks(&whole.leaves(), BLOCK_MAX);
        let proof = Proof::sign(around.signer, &vote_context(around.cluster), &root);
        for block in blocks {
            let part = Sheaf { proof, ..whole.part(block) };
            around.acts.push(Act::Pass(part.slips[0], part));
        }
    }

    // What goes into the order.

    fn submit_waiting(&mut self, around: &mut Around<'_>) {
        let (core, now) = (&self.core, around.now);
        self.inboxes.retain(|&(key, ask), inbox| {
            let desk = core.desk(key);
            if desk.is_some_and(|d| d.incarnation > inbox.incarnation) {
                return false;
            }
            let heard =
                desk.filter(|d| d.incarnation == inbox.incarnation).map_or(0, |d| if ask { d.asks } else { d.reports });
            inbox.items = inbox.items.split_off(&(heard + 1));
            if now >= inbox.submitted_at + FACT_AGAIN {
                // What was ordered too soon, or lost with a leader, is put there again; twice is once.
                inbox.submitted = heard;
            }
            !inbox.items.is_empty()
        });
        for which in self.inboxes.keys().copied().collect::<Vec<_>>() {
            self.submit_said(which, around);
        }
    }

    /// In the order of numbers, so that each is the next when it is applied.
    fn submit_said(&mut self, which: (Key, bool), around: &mut Around<'_>) {
        let (key, ask) = which;
        let leads = self.leads();
        loop {
            let Some(inbox) = self.inboxes.get_mut(&which) else { return };
            let desk = self.core.desk(key).filter(|d| d.incarnation == inbox.incarnation);
            let heard = desk.map_or(0, |d| if ask { d.asks } else { d.reports });
            let number = heard.max(inbox.submitted) + 1;
            let Some((said, came_at)) = inbox.items.get(&number) else { return };
            if !leads && around.now < *came_at + LEADERS_TURN {
                return;
            }
            // The zone's word that it is there goes first.
            if !self.core.knows(key, inbox.incarnation) {
                return;
            }
            let (from, incarnation) = (key, inbox.incarnation);
            let fact = match said.clone() {
                Said::Ask(ask) => Fact::Asked { from, incarnation, number, ask },
                Said::Report(report) => Fact::Reported(vec![Reported { from, incarnation, number, report }]),
            };
            if !self.submit(fact, around) {
                return;
            }
            if let Some(inbox) = self.inboxes.get_mut(&which) {
                (inbox.submitted, inbox.submitted_at) = (inbox.submitted.max(number), around.now);
            }
        }
    }

    /// The next reports of several agents, as few entries as can be.
    fn submit_reports(&mut self, from: BTreeSet<Key>, around: &mut Around<'_>) {
        let mut reports = Vec::new();
        for from in from {
            let Some(inbox) = self.inboxes.get_mut(&(from, false)) else { continue };
            let incarnation = inbox.incarnation;
            if !self.core.knows(from, incarnation) {
                continue;
            }
            let desk = self.core.desk(from).filter(|d| d.incarnation == incarnation);
            let first = desk.map_or(0, |d| d.reports).max(inbox.submitted) + 1;
            for number in first.. {
                let Some((Said::Report(report), _)) = inbox.items.get(&number) else { break };
                (inbox.submitted, inbox.submitted_at) = (number, around.now);
                reports.push(Reported { from, incarnation, number, report: report.clone() });
            }
        }
        for some in reports.chunks(REPORTED_MAX) {
            // What the order does not take now is submitted again when its time has come.
            self.submit(Fact::Reported(some.to_vec()), around);
        }
    }

    /// What the zone sees and the state does not know.
    fn submit_world(&mut self, around: &mut Around<'_>) {
        let now = around.now;
        self.facts.retain(|_, at| now < *at + FACT_AGAIN);
        let state = self.core.state();
        let led_for = self.led_from.map_or(Duration::ZERO, |at| now.since(at).min(now.since(self.began_at)));
        let mut facts = Vec::new();
        for (key, node) in around.world {
            let is_known = state.node(key) == Some(node) && !state.is_lost(key);
            let is_older = state.node(key).is_some_and(|n| n.incarnation > node.incarnation);
            if !is_known && !is_older && !self.facts.contains_key(key) {
                facts.push((*key, Fact::Seen(node.clone())));
            }
        }
        for (node, there) in state.nodes() {
            let (key, incarnation) = (node.key, node.incarnation);
            if !there || around.world.contains_key(&key) || self.facts.contains_key(&key) {
                continue;
            }
            let was_told = around.gone.get(&key).is_some_and(|&gone| gone >= incarnation);
            let patience = if around.silent.contains(&key) { SILENT_ALIKE } else { UNSEEN };
            let is_heard = self.agents.get(&key).is_some_and(|l| now.since(l.heard_at) < patience);
            if was_told || (led_for >= patience && !is_heard) {
                facts.push((key, Fact::Lost { node: key, incarnation }));
            }
        }
        for (key, fact) in facts.into_iter().take(FACTS_MAX) {
            if !self.submit(fact, around) {
                return;
            }
            self.facts.insert(key, now);
        }
    }

    fn submit_done(&mut self, around: &mut Around<'_>) {
        let mut done = Vec::new();
        for (&key, listener) in &mut self.agents {
            let is_due = listener.done > listener.done_told
                && self.core.desk(key).and_then(|d| d.waiting.front()).is_some_and(|i| i.id <= listener.done);
            if is_due && done.len() < DONE_MAX {
                listener.done_told = listener.done;
                done.push((key, listener.done));
            }
        }
        if !done.is_empty() {
            self.put(&Ordered::Done(done), around);
        }
    }

    fn submit_tick(&mut self, around: &mut Around<'_>) {
        let Some(due) = self.core.state().wakes_at_ms() else { return };
        let late = self.agreed_ms(around).checked_sub(due);
        let turn = if self.leads() { 0 } else { 1000 };
        let waits = self.ticked_at.is_some_and(|at| around.now < at + FACT_AGAIN / 2);
        if late.is_some_and(|late| late >= turn) && !waits {
            self.ticked_at = Some(around.now);
            self.submit(Fact::Tick, around);
        }
    }

    /// This replica has the state that it lacked.
    fn submit_arrival(&mut self, around: &mut Around<'_>) {
        let waits = self.arrived_at.is_some_and(|at| around.now < at + FACT_AGAIN);
        if self.core.state().fresh().contains(&self.key) && !waits {
            self.arrived_at = Some(around.now);
            self.submit(Fact::Arrived { by: self.key, epoch: self.group.epoch }, around);
        }
    }

    /// Another one is wrong.
    pub fn accuse(&mut self, whom: Key, around: &mut Around<'_>) {
        if whom != self.key && self.group.member(whom).is_some() && self.accused.insert(whom) {
            around.counters.accusations += 1;
            let (by, epoch) = (self.key, self.group.epoch);
            if !self.submit(Fact::Accused { by, whom, epoch }, around) {
                self.accused.remove(&whom);
            }
        }
    }

    /// True when the order took it.
    fn submit(&mut self, fact: Fact, around: &mut Around<'_>) -> bool {
        let entry = Entry { at_ms: self.agreed_ms(around), fact };
        let whole = Ordered::Entry(entry);
        let bytes = encode(&whole);
        let bound = self.config.message_bound();
        if bytes.len() <= bound {
            return self.submit_bytes(&bytes, around);
        }
        let Ordered::Entry(entry) = whole else { return false };
        let bytes = encode(&entry);
        let count = bytes.len().div_ceil(PART);
        for (i, part) in bytes.chunks(PART).enumerate() {
            let part = Ordered::Part { first: i == 0, last: i + 1 == count, bytes: part.to_vec() };
            if !self.put(&part, around) {
                return false;
            }
        }
        true
    }

    fn put(&mut self, what: &Ordered, around: &mut Around<'_>) -> bool {
        self.submit_bytes(&encode(what), around)
    }

    fn submit_bytes(&mut self, message: &[u8], around: &mut Around<'_>) -> bool {
        if self.order.is_none() || self.next.is_some() || self.halted {
            return false;
        }
        let refused = around.counters.refused;
        self.drive(Some(order::Input::Submitted { message }), around);
        around.counters.refused == refused
    }

    // What comes out of it.

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
