//! The steward of a node: its agent, its part in founding the group, and, where the group has a seat, the replica.
//!
//! CM-1 to CM-3. Every node runs one; a driver gives it what arrives and what the zone sees, and does what it decides. What a steward says
//! to itself takes the same way as what it says to others, without the network.

use super::agent::{self, Agent};
use super::core::Core;
use super::diagnose::{Doctor, Verdict};
use super::found::{Founder, Founding, Step};
use super::group::{Chain, Group, Link, Proof};
use super::herald::{self, Herald, Place};
use super::regroup::Joining;
use super::replica::{self, Around, Counters, Prior, Replica, heartbeat, link_of};
use super::sheaf::{self, BLOCK_MAX, Sheaf, Slip};
use super::state::NodeInfo;
use super::wire::{Ballot, Id, Look, Packet, Said, Sworn, Telling, Weight, Word};
use super::words::{Answer, Ask, Command, Key, Report, decode, encode};
use crate::link::sign::Signer;
use crate::member::Peer;
use crate::node::Carriage;
use crate::order::{self, Order};
use phalanx_core::{Addr, Duration, Fingerprint, Instant, Machine, Rng, Sink};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Nodes whose address is remembered though the zone does not show them.
const STRANGERS_MAX: usize = 4096;
/// Nodes that are remembered to be gone.
const GONE_MAX: usize = 64 * 1024;
/// Writes under way; past it the oldest counts as lost.
const WRITES_MAX: usize = 4096;
/// Packets to oneself in one step; past it they are lost, as in a network.
const LOOPED_MAX: usize = 4096;
/// What was chosen and not proved is announced, and missing signatures are asked for, so often.
const PROOFS: Duration = Duration::from_millis(500);
/// A word for so many agents is handed on by them, unless the configuration says otherwise.
pub const RELAY_MIN: usize = 12;
/// Statements that are looked at in one packet.
const SWORN_MAX: usize = 8;
/// An ended order answers for so long, when nobody says sooner that all have seen its end.
const LINGER: Duration = Duration::from_secs(600);

/// What a steward is told at its start.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Config {
    /// The cluster's name: signatures of another one do not count.
    pub cluster: String,
    /// Which start of this node: larger than each before, and what the zone says of it.
    pub incarnation: u64,
    /// So many nodes found the first group. None here founds a group without it; one that exists is joined in any case.
    pub expect: Option<u32>,
    /// What the clock shows at [`Instant::ZERO`], in milliseconds since 1970.
    pub unix_ms: u64,
    /// The longest packet that goes signed in a datagram.
    pub signed_max: usize,
    /// A word for so many agents or more is handed on by them; fewer are told by the replicas themselves.
    pub relay_min: usize,
    /// Times and bounds of the order.
    pub order: order::Config,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            cluster: String::new(),
            incarnation: 1,
            expect: None,
            unix_ms: 0,
            signed_max: 1024,
            relay_min: RELAY_MIN,
            order: order::Config::default(),
        }
    }
}

/// What was found on disk.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Stored {
    /// Records of orders, in the order of their writing, with their epochs.
    pub order: Vec<(u32, Vec<u8>)>,
    /// The newest record of each other kind.
    pub group: Option<Vec<u8>>,
    /// See [`Record::Acceptor`].
    pub acceptor: Option<Vec<u8>>,
    /// See [`Record::State`].
    pub state: Option<Vec<u8>>,
    /// See [`Record::Executed`].
    pub executed: Option<Vec<u8>>,
}

/// What has happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input<'a> {
    /// Another node's steward says something.
    Heard {
        /// Who; its session is proved.
        from: Peer,
        /// How it came.
        carriage: Carriage,
        /// What.
        bytes: &'a [u8],
    },
    /// The zone says that this node is there, or changed; the own one too.
    Seen {
        /// The node.
        node: NodeInfo,
        /// How often this start of it had to speak up for itself.
        minor: u32,
    },
    /// The zone says that it is gone.
    Gone {
        /// Which node.
        node: Key,
        /// Which start of it.
        incarnation: u64,
        /// How often that had to speak up for itself.
        minor: u32,
    },
    /// There are several zones, and this node has this place among them from now on.
    Placed {
        /// Which.
        place: Place,
    },
    /// A record is on disk.
    Persisted {
        /// What its `Persist` said.
        token: u64,
    },
    /// A shepherd here reports something.
    Reported {
        /// What.
        report: Report,
    },
}

/// Something for the disk. Of each kind the last one counts, but for orders, of which all do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Record<'a> {
    /// A record of an order: kept in the order of writing.
    Order {
        /// Of which epoch.
        epoch: u32,
        /// Once it is durable, all before it of the same epoch may be deleted.
        replaces: bool,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The group, and the way to it.
    Group(&'a [u8]),
    /// What was promised while a group was being founded.
    Acceptor(&'a [u8]),
    /// The state. Once it is durable, records of orders of epochs before its own need not be kept, but for the one right before.
    State {
        /// Of which epoch.
        epoch: u32,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Which commands were carried out here.
    Executed(&'a [u8]),
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output<'a> {
    /// Say this to another node's steward.
    Send {
        /// Where it is.
        to: Addr,
        /// How.
        carriage: Carriage,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// Keep this, and answer `Persisted`.
    Persist {
        /// To name it in the answer.
        token: u64,
        /// What.
        record: Record<'a>,
    },
    /// Carry this out: most of the group said so. In order; again only after a crash, when the last ones were not yet on disk.
    Do {
        /// What.
        command: &'a Command,
    },
    /// The answer to what somebody here asked.
    Answered {
        /// What [`Steward::ask`] said.
        number: u64,
        /// The answer.
        answer: &'a Answer,
    },
    /// What somebody here wanted to see.
    Shown {
        /// What [`Steward::look`] said.
        number: u64,
        /// The plain structures of the state, as [`encode`] writes them.
        bytes: &'a [u8],
    },
    /// Ranks here may live for so long from now on.
    Lease {
        /// In milliseconds.
        ms: u64,
    },
    /// This node's agent does not answer: the zone is to look into it.
    Suspect {
        /// Which node.
        node: Key,
    },
    /// The group is another one, or what is wrong with it has changed.
    Group {
        /// The group.
        group: &'a Group,
        /// What is wrong, in words; empty when nothing is.
        trouble: &'a str,
    },
}

/// A sink for what stewards decide.
pub trait Out: for<'a> Sink<Output<'a>> {}
impl<S: for<'a> Sink<Output<'a>>> Out for S {}

/// How the manager does, as this node sees it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Status {
    /// Which composition of the group; 0 when none is known.
    pub epoch: u32,
    /// Names and keys of those who have seats.
    pub seats: Vec<(String, Key)>,
    /// This node has one of them, and its replica runs.
    pub replica: bool,
    /// Who leads, as far as a replica here knows.
    pub leader: Option<Key>,
    /// Replicas heard lately, by the replica here.
    pub heard: Vec<Key>,
    /// Something can be decided, as far as the replica here knows.
    pub decides: bool,
    /// The last entry of the order that was applied here.
    pub index: u64,
    /// What is wrong, in words; empty when nothing is.
    pub trouble: String,
    /// What happened how often.
    pub counters: Counters,
    /// What the agent refused.
    pub refused: agent::Refused,
}

/// What a write was for.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Written {
    Order { epoch: u32, token: u64 },
    Group,
    Acceptor(Key, Founding),
    State { epoch: u32, index: u64 },
    Executed(Id),
}

/// Something decided that leaves the steward.
enum Leaving {
    Do(Command),
    Answered(u64, Answer),
    Shown(u64, Vec<u8>),
    Lease(Duration),
    Suspect(Key),
    Persist(Written, Vec<u8>, bool),
    Group,
}

/// The steward of one node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Steward {
    config: Config,
    key: Key,
    signer: Signer,
    rng: Rng,
    world: BTreeMap<Key, NodeInfo>,
    gone: BTreeMap<Key, u64>,
    strangers: BTreeMap<Key, Addr>,
    /// Nodes of other zones of which nothing is heard any more.
    silent: BTreeSet<Key>,
    chain: Chain,
    founder: Founder,
    herald: Herald,
    agent: Agent,
    replica: Option<Replica>,
    prior: Option<(Prior, Instant)>,
    joining: Option<Joining>,
    doctor: Doctor,
    counters: Counters,
    writes: BTreeMap<u64, Written>,
    next_token: u64,
    proofs_at: Instant,
    trouble: String,
    /// No replica begins here in this epoch: one that did has lost what it promised, or was wrong.
    barred: u32,
    /// Why the replica here ended, in words.
    ended: String,
    /// Why the group stopped, in words.
    halted: String,
    looped: VecDeque<(Weight, Packet)>,
    /// Tests alone: what replicas decided that have ended here since somebody asked.
    #[cfg(any(test, feature = "harm"))]
    last_words: Vec<super::group::Digest>,
}

impl Steward {
    /// A steward that goes on from what is on its disk; from nothing at the first start.
    #[must_use]
    pub fn recover(config: Config, signer: Signer, stored: &Stored, rng: Rng, now: Instant) -> Self {
        let key = Key::from(signer.identity());
        let executed = stored.executed.as_deref().and_then(decode).unwrap_or_default();
        let chain = stored.group.as_deref().and_then(Chain::decode).unwrap_or_default();
        let founder = Founder::new(key, config.incarnation, config.expect, stored.acceptor.as_deref());
        let agent = Agent::new(key, config.incarnation, executed, now);
        let mut steward = Self {
            key,
            signer,
            rng,
            world: BTreeMap::new(),
            gone: BTreeMap::new(),
            strangers: BTreeMap::new(),
            silent: BTreeSet::new(),
            chain,
            founder,
            herald: Herald::new(key),
            agent,
            replica: None,
            prior: None,
            joining: None,
            doctor: Doctor::default(),
            counters: Counters::default(),
            writes: BTreeMap::new(),
            next_token: 1,
            proofs_at: now,
            trouble: String::new(),
            barred: 0,
            ended: String::new(),
            halted: String::new(),
            looped: VecDeque::new(),
            #[cfg(any(test, feature = "harm"))]
            last_words: Vec::new(),
            config,
        };
        steward.recover_replica(stored, now);
        steward
    }

    fn recover_replica(&mut self, stored: &Stored, now: Instant) {
        let Some(core) = stored.state.as_deref().and_then(Core::decode) else { return };
        let epoch = core.epoch();
        let records = |e: u32| stored.order.iter().filter(|r| r.0 == e).map(|r| r.1.clone()).collect::<Vec<_>>();
        if let Some(group) = self.chain.group_of(epoch.wrapping_sub(1)).cloned()
            && let Some(me) = group.member(self.key)
        {
            let (seat, began) = (self.seat_of(&group, me), core.began());
            let found = records(group.epoch);
            let order = Order::recover(self.config.order, seat, began, found.iter(), self.stream(), now);
            if !found.is_empty()
                && let Ok(order) = order
            {
                self.prior = Some((Prior::new(group, order), now + LINGER));
            }
        }
        let Some(group) = self.chain.group_of(epoch).cloned() else { return };
        let (seat, rng) = ((self.key, self.config.incarnation, self.config.order), self.stream());
        self.replica = Replica::recover(seat, group, core, &records(epoch), rng, now);
        self.doctor = Doctor::new(epoch);
        self.sign_until(epoch);
        if self.replica.is_none() {
            self.trouble =
                "the replica's records on this disk are damaged: it does not take part until its seat has moved".into();
        }
    }

    fn seat_of(&self, group: &Group, me: order::Member) -> order::Seat {
        order::Seat { me, members: group.seats.len() as u8, epoch: group.epoch, boot: self.config.incarnation }
    }

    fn stream(&mut self) -> Rng {
        Rng::new(self.rng.u64(), self.rng.u64())
    }

    /// Somebody here wants something. The answer comes as [`Output::Answered`] with this number; 0 and a refusal at once when too much waits.
    pub fn ask(&mut self, now: Instant, ask: Ask, out: &mut impl Out) -> u64 {
        let mut acts = Vec::new();
        let number = self.agent.say(now, Said::Ask(ask), self.chain.group(), &mut acts);
        self.settle_agent(now, acts, out);
        self.settle(now, out);
        number.unwrap_or_else(|| {
            let answer = Answer::Refused("too many questions wait for the managers: ask again later".into());
            out.push(Output::Answered { number: 0, answer: &answer });
            0
        })
    }

    /// Somebody here wants to see something. It comes as [`Output::Shown`] with this number, from one replica.
    pub fn look(&mut self, now: Instant, what: Look, out: &mut impl Out) -> u64 {
        let mut acts = Vec::new();
        let number = self.agent.look(now, what, self.chain.group(), &mut acts);
        self.settle_agent(now, acts, out);
        self.settle(now, out);
        number
    }

    /// The group, as far as this node knows.
    #[must_use]
    pub fn group(&self) -> Option<&Group> {
        self.chain.group()
    }

    /// A node that is there, of any zone, as far as this one hears.
    #[must_use]
    pub fn sees(&self, node: Key) -> Option<&NodeInfo> {
        self.world.get(&node)
    }

    /// What is told between zones, to be looked at.
    #[must_use]
    pub fn herald(&self) -> &Herald {
        &self.herald
    }

    /// The replica here: for tests and simulators.
    #[must_use]
    pub fn replica(&self) -> Option<&Replica> {
        self.replica.as_ref()
    }

    /// The replica here, to do it harm: for tests and simulators.
    #[cfg(any(test, feature = "harm"))]
    pub fn replica_mut(&mut self) -> Option<&mut Replica> {
        self.replica.as_mut()
    }

    /// What replicas decided that have ended here since this was asked last: for tests and simulators.
    #[cfg(any(test, feature = "harm"))]
    pub fn take_last_words(&mut self) -> Vec<super::group::Digest> {
        std::mem::take(&mut self.last_words)
    }

    /// The agent here, to do it harm: for tests and simulators.
    #[cfg(any(test, feature = "harm"))]
    pub fn agent_mut(&mut self) -> &mut Agent {
        &mut self.agent
    }

    /// The agent here.
    #[must_use]
    pub fn agent(&self) -> &Agent {
        &self.agent
    }

    /// How the manager does.
    #[must_use]
    pub fn status(&self, now: Instant) -> Status {
        let replica = self.replica.as_ref();
        Status {
            epoch: self.chain.epoch(),
            seats: self.group().map_or(Vec::new(), |g| g.seats.iter().map(|s| (s.name.clone(), s.key)).collect()),
            replica: replica.is_some(),
            leader: replica.and_then(Replica::leader),
            heard: replica.map_or(Vec::new(), |r| r.heard_lately(now)),
            decides: replica.is_some_and(|r| !r.is_stalled() && r.leader().is_some()),
            index: replica.map_or(0, |r| r.core().index()),
            trouble: self.trouble.clone(),
            counters: self.counters,
            refused: self.agent.refused,
        }
    }
}

impl Machine for Steward {
    type Input<'a> = Input<'a>;
    type Output<'a> = Output<'a>;

    fn handle<S: for<'a> Sink<Output<'a>>>(&mut self, now: Instant, input: Input<'_>, out: &mut S) {
        match input {
            Input::Heard { from, carriage, bytes } => self.on_heard(now, from, carriage, bytes, out),
            Input::Seen { node, minor } => {
                self.herald.on_seen(now, &node, minor);
                self.on_seen(now, vec![node], out);
            }
            Input::Gone { node, incarnation, minor } => {
                if self.herald.on_gone(now, node, incarnation, minor) {
                    self.on_gone(now, node, incarnation);
                }
            }
            Input::Placed { place } => self.herald.on_placed(now, place),
            Input::Persisted { token } => self.on_persisted(now, token, out),
            Input::Reported { report } => self.on_reported(now, report, out),
        }
        self.settle(now, out);
    }

    fn expire<S: for<'a> Sink<Output<'a>>>(&mut self, now: Instant, out: &mut S) {
        if now >= self.agent.deadline() {
            let mut acts = Vec::new();
            self.agent.expire(now, self.chain.group(), heartbeat(self.world.len()), &mut acts);
            self.settle_agent(now, acts, out);
        }
        if now >= self.herald.deadline() {
            let mut acts = Vec::new();
            self.herald.expire(now, &mut self.rng, &mut acts);
            self.settle_herald(now, acts, out);
        }
        if now >= self.founder.deadline() {
            let mut steps = Vec::new();
            self.founder.propose(now, &self.world, &mut self.rng, &mut steps);
            self.take_steps(now, steps, out);
        }
        if self.replica.as_ref().is_some_and(|r| now >= r.deadline()) {
            self.with_replica(now, out, Replica::expire);
        }
        if let Some((prior, until)) = &mut self.prior {
            if now >= *until {
                self.prior = None;
            } else if now >= prior.deadline() {
                let mut acts = Vec::new();
                prior.drive(now, None, &mut acts);
                self.settle_replica(now, acts, out);
            }
        }
        if now >= self.proofs_at {
            self.proofs_at = now + PROOFS;
            self.on_proofs_due(now, out);
        }
        if now >= self.doctor.deadline() {
            self.on_case_due(now, out);
        }
        if self.joining.as_ref().is_some_and(|j| now >= j.deadline()) {
            self.ask_to_join(now, out);
        }
        self.settle(now, out);
    }

    fn deadline(&self) -> Instant {
        let replica = self.replica.as_ref().map_or(Instant::NEVER, Replica::deadline);
        let prior = self.prior.as_ref().map_or(Instant::NEVER, |(p, until)| p.deadline().min(*until));
        let joining = self.joining.as_ref().map_or(Instant::NEVER, Joining::deadline);
        let proofs = if self.has_seat() || self.replica.is_some() { self.proofs_at } else { Instant::NEVER };
        self.agent
            .deadline()
            .min(self.herald.deadline())
            .min(self.founder.deadline())
            .min(self.doctor.deadline())
            .min(replica)
            .min(prior)
            .min(joining)
            .min(proofs)
    }

    fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&self.key).add(&self.chain.epoch()).add(&self.agent.handed());
        if let Some(replica) = &self.replica {
            print.add(&replica.core().statement());
        }
        print.instant(self.deadline());
    }
}

impl Steward {
    fn has_seat(&self) -> bool {
        self.group().is_some_and(|g| g.member(self.key).is_some())
    }

    fn on_seen(&mut self, now: Instant, nodes: Vec<NodeInfo>, out: &mut impl Out) {
        if nodes.is_empty() {
            return;
        }
        for node in nodes {
            self.gone.remove(&node.key);
            self.strangers.remove(&node.key);
            self.silent.remove(&node.key);
            self.world.insert(node.key, node);
        }
        if self.chain.epoch() == 0 {
            self.founder.look_around(now, &self.world);
        }
        if self.replica.as_ref().is_some_and(|r| r.leader() == Some(self.key)) {
            self.with_replica(now, out, Replica::on_world);
        }
    }

    fn on_gone(&mut self, now: Instant, node: Key, incarnation: u64) {
        if self.world.get(&node).is_some_and(|n| n.incarnation > incarnation) {
            return;
        }
        if self.gone.len() >= GONE_MAX {
            self.gone.pop_first();
        }
        self.gone.insert(node, incarnation);
        self.silent.remove(&node);
        self.on_unseen(now, node);
    }

    /// A node is not shown any more; it need not be gone.
    fn on_unseen(&mut self, now: Instant, node: Key) {
        if let Some(node) = self.world.remove(&node)
            && self.strangers.len() < STRANGERS_MAX
        {
            // It may live, behind a cut: what it asks is answered.
            self.strangers.insert(node.key, node.at.into());
        }
        if self.chain.epoch() == 0 {
            self.founder.look_around(now, &self.world);
        }
    }

    fn settle_herald(&mut self, now: Instant, acts: Vec<herald::Act>, out: &mut impl Out) {
        let mut seen = Vec::new();
        for act in acts {
            match act {
                herald::Act::Send(to, tidings) => {
                    let packet = Packet::Tidings(tidings);
                    let carriage = if packet.weight() == Weight::Light { Carriage::Light } else { Carriage::Bulk };
                    out.push(Output::Send { to, carriage, bytes: &packet.encode() });
                }
                herald::Act::Seen(node) => seen.push(node),
                herald::Act::Gone(node, incarnation) => {
                    seen.retain(|n| n.key != node);
                    self.on_gone(now, node, incarnation);
                }
                herald::Act::Unseen(node) => {
                    self.silent.insert(node);
                    self.on_unseen(now, node);
                }
            }
        }
        self.on_seen(now, seen, out);
    }

    fn on_reported(&mut self, now: Instant, report: Report, out: &mut impl Out) {
        let mut acts = Vec::new();
        if self.agent.say(now, Said::Report(report), self.chain.group(), &mut acts).is_none() {
            self.counters.refused += 1;
        }
        self.settle_agent(now, acts, out);
    }

    fn on_persisted(&mut self, now: Instant, token: u64, out: &mut impl Out) {
        match self.writes.remove(&token) {
            Some(Written::Order { epoch, token }) => {
                if self.replica.as_ref().is_some_and(|r| r.group().epoch == epoch) {
                    self.with_replica(now, out, |r, around| r.on_recorded(token, around));
                } else if let Some((prior, _)) = self.prior.as_mut().filter(|p| p.0.group.epoch == epoch) {
                    let mut acts = Vec::new();
                    prior.drive(now, Some(order::Input::Persisted { token }), &mut acts);
                    self.settle_replica(now, acts, out);
                }
            }
            Some(Written::State { epoch, index }) => {
                if self.replica.as_ref().is_some_and(|r| r.group().epoch == epoch) {
                    self.with_replica(now, out, |r, around| r.on_saved(index, around));
                    self.sign_for(now, epoch, out);
                }
            }
            Some(Written::Acceptor(to, founding)) => self.send(to, Packet::Found(founding), out),
            Some(Written::Executed(id)) => {
                let mut acts = Vec::new();
                self.agent.on_done(id, self.chain.group(), &mut acts);
                self.settle_agent(now, acts, out);
            }
            Some(Written::Group) | None => {}
        }
    }

    fn on_heard(&mut self, now: Instant, from: Peer, carriage: Carriage, bytes: &[u8], out: &mut impl Out) {
        let key = Key::from(from.identity);
        let Some(packet) = Packet::decode(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        if let Packet::Tidings(tidings) = packet {
            let mut acts = Vec::new();
            self.herald.on_tidings(now, from.addr, tidings, &mut acts);
            return self.settle_herald(now, acts, out);
        }
        let known = self.strangers.contains_key(&key);
        if !self.world.contains_key(&key) && (known || self.strangers.len() < STRANGERS_MAX) {
            self.strangers.insert(key, from.addr);
        }
        let (packet, is_signed) = match packet {
            Packet::Vouched { bytes, proof } => {
                let holds = proof.holds(self.signer.verifier(), key, &self.vouch_context(), &(self.key, &bytes));
                match Packet::decode(&bytes).filter(|p| !matches!(p, Packet::Vouched { .. })) {
                    Some(packet) if holds => (packet, true),
                    Some(_) => {
                        self.counters.unproved += 1;
                        return;
                    }
                    None => {
                        self.counters.malformed += 1;
                        return;
                    }
                }
            }
            packet => (packet, carriage == Carriage::Signed),
        };
        if packet.weight() == Weight::Grave && !is_signed {
            self.counters.unproved += 1;
            return;
        }
        self.on_packet(now, key, packet, out);
    }

    fn on_packet(&mut self, now: Instant, from: Key, packet: Packet, out: &mut impl Out) {
        match packet {
            Packet::Alive { incarnation, epoch, beat, done } => {
                if self.replica.is_some() {
                    self.with_replica(now, out, |r, around| r.on_alive(from, (incarnation, epoch, beat, done), around));
                } else if self.chain.epoch() > epoch || self.group().is_some_and(|g| g.member(self.key).is_none()) {
                    let links = self.chain.since(epoch);
                    self.send(from, Packet::Announce(links), out);
                }
            }
            Packet::Heard { agent, .. } if agent != self.key => self.counters.foreign += 1,
            Packet::Heard { beat, incarnation, noted, granted, .. } => {
                let mut acts = Vec::new();
                if let Some(group) = self.chain.group() {
                    self.agent.on_heard(now, from, (beat, granted), (incarnation, noted), group, &mut acts);
                }
                self.settle_agent(now, acts, out);
            }
            Packet::Beat { statement, unix_ms, hears } => {
                self.with_replica(now, out, |r, around| r.on_beat(from, statement, unix_ms, hears, around));
            }
            Packet::Probe => {
                let alive = self.agent.alive(self.chain.epoch());
                self.send(from, alive, out);
            }
            Packet::Order { epoch, bytes } => self.on_order(now, from, epoch, &bytes, out),
            Packet::Found(founding) => self.on_founding(now, from, founding, out),
            Packet::Told { incarnation, number, said } => {
                self.with_replica(now, out, |r, around| r.on_told(from, incarnation, number, said, around));
            }
            Packet::Vote(ballot, body) => self.on_vote(now, ballot, body, out),
            Packet::Sheaf(sheaf) => self.on_sheaf(now, from, sheaf, out),
            Packet::Gathered { to, id, told } if to == self.key => self.on_gathered(now, id, told, out),
            Packet::Gathered { to, id, told } => {
                let mut acts = Vec::new();
                if self.is_of_group(to) {
                    self.agent.on_gathered(now, (id, to), told, &mut acts);
                }
                self.settle_agent(now, acts, out);
            }
            Packet::Announce(links) => self.on_announced(now, &links, out),
            Packet::Differ(one, other) => self.on_differ(now, &one, &other, out),
            Packet::Declare { epoch, index } => {
                self.with_replica(now, out, |r, around| r.on_declare(from, epoch, index, around));
            }
            Packet::Declared(sworn) => self.on_declared(now, &sworn, out),
            Packet::Fetch { epoch, index, offset } => {
                if self.replica.as_ref().is_some_and(|r| r.group().epoch == epoch) && self.is_of_group(from) {
                    self.with_replica(now, out, |r, around| r.on_fetch(from, index, offset, around));
                }
            }
            Packet::Piece { epoch, index, total, offset, mark, bytes } => {
                if let Some(joining) = &mut self.joining
                    && joining.on_piece((epoch, index), total, offset, &mark, &bytes)
                {
                    self.try_to_join(now, out);
                    self.ask_to_join(now, out);
                }
            }
            Packet::Look { number, what } => {
                self.with_replica(now, out, |r, around| r.on_look(from, number, &what, around));
            }
            Packet::Shown { number, bytes } => {
                let mut acts = Vec::new();
                if self.is_of_group(from) {
                    self.agent.on_shown(number, bytes, &mut acts);
                }
                self.settle_agent(now, acts, out);
            }
            Packet::Vouched { .. } | Packet::Tidings(_) => {}
        }
    }

    fn is_of_group(&self, key: Key) -> bool {
        self.group().is_some_and(|g| g.member(key).is_some())
    }

    fn on_order(&mut self, now: Instant, from: Key, epoch: u32, bytes: &[u8], out: &mut impl Out) {
        if self.replica.as_ref().is_some_and(|r| r.group().epoch == epoch) {
            return self.with_replica(now, out, |r, around| r.on_ordered(from, bytes, around));
        }
        match self.prior.as_mut().filter(|p| p.0.group.epoch == epoch) {
            Some((prior, _)) => {
                let Some(from) = prior.group.member(from) else { return };
                let mut acts = Vec::new();
                prior.drive(now, Some(order::Input::Received { from, packet: bytes }), &mut acts);
                self.settle_replica(now, acts, out);
            }
            // Somebody has not heard that the group is another one.
            None if epoch < self.chain.epoch() => {
                let links = self.chain.since(epoch);
                self.send(from, Packet::Announce(links), out);
            }
            None => {}
        }
    }

    fn on_vote(&mut self, now: Instant, ballot: Ballot, body: Option<Vec<u8>>, out: &mut impl Out) {
        let Some(group) = self.chain.group() else { return };
        let is_ours =
            group.member(ballot.by).is_some() && ballot.vote.to == self.key && ballot.vote.id.epoch <= group.epoch;
        if !is_ours || !ballot.holds(self.signer.verifier(), &self.config.cluster) {
            self.agent.refused.unproved += 1;
            return;
        }
        let mut acts = Vec::new();
        self.agent.on_vote(now, ballot, body, group, &mut acts);
        self.settle_agent(now, acts, out);
    }

    /// A word for us and for those to whom we hand it on.
    fn on_sheaf(&mut self, now: Instant, from: Key, sheaf: Sheaf, out: &mut impl Out) {
        let Some(group) = self.chain.group() else { return };
        let count = sheaf.slips.len();
        let is_ours = sheaf.slips.first().is_some_and(|slip| slip.to == self.key) && count <= BLOCK_MAX;
        let is_ours = is_ours && group.member(sheaf.by).is_some() && sheaf.id.epoch <= group.epoch;
        let (path, branches) = if is_ours { sheaf::branches(&sheaf.leaves(), &sheaf.path) } else { Default::default() };
        let ballot = is_ours.then(|| {
            let Sheaf { by, proof, .. } = sheaf;
            Ballot { vote: sheaf.vote(&sheaf.slips[0]), by, proof, path }
        });
        let Some(ballot) = ballot.filter(|b| b.holds(self.signer.verifier(), &self.config.cluster)) else {
            self.agent.refused.unproved += 1;
            return;
        };
        let mut acts = Vec::new();
        if self.agent.on_sheaf((sheaf.id, sheaf.by), from, count, &mut acts) {
            for block in branches {
                let part = sheaf.part(block);
                self.pass(part.slips[0], part, out);
            }
        }
        if let Some(group) = self.chain.group() {
            self.agent.on_vote(now, ballot, sheaf.body, group, &mut acts);
        }
        self.settle_agent(now, acts, out);
    }

    /// Says a word to the first of many; where that is may be known from the word alone.
    fn pass(&mut self, first: Slip, sheaf: Sheaf, out: &mut impl Out) {
        if self.address_of(first.to).is_none() && self.strangers.len() < STRANGERS_MAX {
            self.strangers.insert(first.to, first.at.into());
        }
        self.send(first.to, Packet::Sheaf(sheaf), out);
    }

    /// Reports of several agents have come to the replica here.
    fn on_gathered(&mut self, now: Instant, _id: Id, mut told: Vec<Telling>, out: &mut impl Out) {
        let (verifier, cluster) = (self.signer.verifier(), &self.config.cluster);
        let before = told.len();
        told.retain(|t| t.holds(verifier, cluster));
        self.counters.unproved += (before - told.len()) as u64;
        self.with_replica(now, out, |r, around| r.on_gathered(told, around));
    }

    // Founding and the group.

    fn on_founding(&mut self, now: Instant, from: Key, founding: Founding, out: &mut impl Out) {
        let is_question = matches!(founding, Founding::Prepare { .. });
        if is_question && self.chain.epoch() > 0 {
            let links = self.chain.since(0);
            self.send(from, Packet::Announce(links), out);
        }
        // Until the group is known to all that are to found it, one that knows it must not keep the others from choosing it, too.
        if self.chain.epoch() > 1 {
            return;
        }
        let mut steps = Vec::new();
        let signed = (&self.signer, self.config.cluster.as_str());
        let chosen = self.founder.on_founding(from, founding, &self.world, signed, &mut steps);
        self.take_steps(now, steps, out);
        if let Some(group) = chosen
            && self.chain.epoch() == 0
            && group.member(self.key).is_some()
        {
            self.enter(now, &group, Core::new(&group), out);
        }
    }

    fn take_steps(&mut self, now: Instant, steps: Vec<Step>, out: &mut impl Out) {
        for step in steps {
            match step {
                Step::Send(to, founding) => self.send(to, Packet::Found(founding), out),
                Step::Keep(to, founding) => {
                    let bytes = self.founder.encode();
                    self.leave(now, Leaving::Persist(Written::Acceptor(to, founding), bytes, false), out);
                }
            }
        }
    }

    fn end_replica(&mut self) -> Option<Replica> {
        let ended = self.replica.take();
        #[cfg(any(test, feature = "harm"))]
        self.last_words.extend(ended.iter().flat_map(Replica::decisions).map(|(_, digest)| digest));
        ended
    }

    /// This node has a seat in that group, and the state with which it begins.
    fn enter(&mut self, now: Instant, group: &Group, core: Core, out: &mut impl Out) {
        if self.chain.epoch() < group.epoch {
            self.chain.push(Link::new(group.clone()));
            self.group_changed(now, out);
        }
        self.begin_replica(now, group.clone(), core, None, out);
    }

    /// The state with which an epoch begins is on disk: now we sign for it. Sooner, the others might let go of the order that led to it while we
    /// could still lose it.
    fn sign_for(&mut self, now: Instant, epoch: u32, out: &mut impl Out) {
        if self.sign_until(epoch) {
            let bytes = self.chain.encode();
            self.leave(now, Leaving::Persist(Written::Group, bytes, false), out);
            self.on_proofs_due(now, out);
        }
    }

    /// Signs for all groups up to one whose state is on disk here: an epoch may be over, or this node have crashed, before the state with which it
    /// began was written. True when there were any.
    fn sign_until(&mut self, epoch: u32) -> bool {
        let unsigned: Vec<Link> = self.chain.unsigned_by(self.key, epoch).cloned().collect();
        for mut link in unsigned.iter().cloned() {
            link.sign(&self.signer, &self.config.cluster);
            self.chain.hear(&link, self.signer.verifier(), &self.config.cluster);
        }
        !unsigned.is_empty()
    }

    fn begin_replica(&mut self, now: Instant, group: Group, core: Core, mark: Option<order::Mark>, out: &mut impl Out) {
        let (seat, rng) = ((self.key, self.config.incarnation, self.config.order), self.stream());
        let mut acts = Vec::new();
        let mut around = Around {
            now,
            unix_ms: self.config.unix_ms + now.0 / 1_000_000,
            cluster: &self.config.cluster,
            relay_min: self.config.relay_min,
            signer: &self.signer,
            world: &self.world,
            gone: &self.gone,
            silent: &self.silent,
            chain: &self.chain,
            acts: &mut acts,
            counters: &mut self.counters,
        };
        self.replica = Replica::new(seat, group, core, mark, rng, &mut around);
        self.doctor = Doctor::new(self.replica.as_ref().map_or(0, |r| r.group().epoch));
        self.settle_replica(now, acts, out);
    }

    fn on_announced(&mut self, now: Instant, links: &[Link], out: &mut impl Out) {
        let before = self.chain.clone();
        let mut changed = false;
        for link in links.iter().take(super::group::TOLD_MAX + 1) {
            changed |= self.chain.hear(link, self.signer.verifier(), &self.config.cluster);
        }
        if changed {
            self.group_changed(now, out);
        } else if self.chain != before {
            let bytes = self.chain.encode();
            self.leave(now, Leaving::Persist(Written::Group, bytes, false), out);
        }
        self.forget_prior();
    }

    /// The group is another one than before.
    fn group_changed(&mut self, now: Instant, out: &mut impl Out) {
        self.founder.rest();
        if !self.has_seat() {
            // Others have seen its end.
            self.end_replica();
        }
        let newest = self.chain.group();
        if let (Some(group), Some(replica)) = (newest, &self.replica)
            && (replica.group().epoch, replica.group() == group) == (group.epoch, false)
        {
            // It has promised things to a group that is none.
            self.barred = group.epoch;
            self.end_replica();
            self.ended =
                "the replica here took another group for the next than both others: it ended, and its seat moves"
                    .into();
        }
        let bytes = self.chain.encode();
        self.leave(now, Leaving::Persist(Written::Group, bytes, false), out);
        let mut acts = Vec::new();
        if let Some(group) = self.chain.group() {
            self.agent.on_group(now, group, &mut acts);
        }
        self.settle_agent(now, acts, out);
        self.leave(now, Leaving::Group, out);
    }

    /// The ended order is of no use once all who stayed have signed for what follows it: they saw its end.
    fn forget_prior(&mut self) {
        if let Some((prior, _)) = &self.prior
            && let Some(link) = self.chain.link_of(prior.group.epoch + 1)
        {
            let stayed = || prior.group.keys().filter(|k| link.group.member(*k).is_some());
            if stayed().all(|key| link.proofs.contains_key(&key)) {
                self.prior = None;
            }
        }
    }

    /// Signatures that are missing are asked for by giving ours; a seat without a state looks for one.
    fn on_proofs_due(&mut self, now: Instant, out: &mut impl Out) {
        let Some(link) = self.chain.last().cloned() else { return };
        if self.replica.is_some() || self.prior.is_some() {
            let electors = self.chain.group_of(link.group.epoch.wrapping_sub(1)).unwrap_or(&link.group);
            let missing = electors.keys().any(|k| !link.proofs.contains_key(&k));
            if missing {
                let mut told: Vec<_> = electors.keys().chain(link.group.keys()).filter(|k| *k != self.key).collect();
                told.sort_unstable();
                told.dedup();
                for key in told {
                    self.send(key, Packet::Announce(vec![link.clone()]), out);
                }
            }
        }
        let epoch = link.group.epoch;
        let lacks = self.replica.as_ref().is_none_or(|r| r.group().epoch < epoch) && self.barred < epoch;
        if self.has_seat() && lacks && self.joining.as_ref().is_none_or(|j| j.epoch() != link.group.epoch) {
            self.joining = Some(Joining::new(link.group.epoch, now));
            self.ask_to_join(now, out);
        }
    }

    fn ask_to_join(&mut self, now: Instant, out: &mut impl Out) {
        let Some(group) = self.chain.group() else { return };
        let lacks = self.replica.as_ref().is_none_or(|r| r.group().epoch < group.epoch || r.is_behind());
        let lacks = lacks && self.barred < group.epoch;
        if !lacks || group.member(self.key).is_none() {
            self.joining = None;
            return;
        }
        let mut sends = Vec::new();
        if let Some(joining) = &mut self.joining {
            joining.ask(now, self.key, group, &mut sends);
        }
        sends.into_iter().for_each(|(to, packet)| self.send(to, packet, out));
    }

    fn try_to_join(&mut self, now: Instant, out: &mut impl Out) {
        let (Some(joining), Some(group)) = (&mut self.joining, self.chain.group()) else { return };
        if joining.epoch() != group.epoch {
            self.joining = None;
            return;
        }
        let Some((core, mark)) = joining.take(self.key, group) else { return };
        let group = group.clone();
        self.joining = None;
        match &self.replica {
            Some(r) if r.group().epoch == group.epoch => {
                self.with_replica(now, out, |r, around| r.install(core, mark, around));
            }
            _ => {
                self.retire(now);
                self.begin_replica(now, group, core, Some(mark), out);
            }
        }
    }

    fn retire(&mut self, now: Instant) -> Option<Core> {
        let (core, prior) = self.end_replica()?.retire();
        if let Some(prior) = prior {
            self.prior = Some((prior, now + LINGER));
        }
        Some(core)
    }

    /// The order has ended with a decision about who comes next.
    fn move_on(&mut self, now: Instant, group: &Group, out: &mut impl Out) {
        let again = group.fresh.contains(&self.key);
        let Some(core) = self.retire(now) else { return };
        if group.member(self.key).is_some() && !again {
            return self.enter(now, group, core.next(group), out);
        }
        if self.chain.epoch() < group.epoch {
            self.chain.push(link_of(group, &self.signer, &self.config.cluster));
            self.group_changed(now, out);
        } else if let Some(mut link) = self.chain.link_of(group.epoch).filter(|l| l.group == *group).cloned() {
            link.sign(&self.signer, &self.config.cluster);
            self.chain.hear(&link, self.signer.verifier(), &self.config.cluster);
        }
        self.on_proofs_due(now, out);
    }

    // Diagnosis.

    fn on_declared(&mut self, now: Instant, sworn: &[Sworn], out: &mut impl Out) {
        let mut news = None;
        for s in sworn.iter().take(SWORN_MAX) {
            if !self.is_of_group(s.by) || !s.holds(self.signer.verifier(), &self.config.cluster) {
                self.counters.unproved += 1;
                continue;
            }
            if let Some(joining) = &mut self.joining {
                joining.on_sworn(s.by, s.statement);
            }
            if self.doctor.on_sworn(*s) {
                news = Some(s.statement.index);
            }
        }
        self.try_to_join(now, out);
        if let Some(index) = news
            && self.replica.is_some()
        {
            // Who is not heard by one of us is heard by way of us.
            self.doctor.open(index, now);
            self.pass_on(index, out);
        }
        self.judge(now, out);
    }

    /// Something is odd: what have the others after this entry?
    fn open_case(&mut self, now: Instant, index: u64) {
        let several = self.group().is_some_and(|g| g.seats.len() > 1);
        if several && self.replica.is_some() && self.doctor.open(index, now) {
            self.counters.self_diagnoses += 1;
        }
    }

    fn on_case_due(&mut self, now: Instant, out: &mut impl Out) {
        let Some(index) = self.doctor.due(now) else { return };
        let Some(replica) = &self.replica else { return };
        let epoch = replica.group().epoch;
        let mut ours = None;
        self.with_replica(now, out, |r, around| ours = r.swear(epoch, index, around));
        ours.into_iter().for_each(|s| _ = self.doctor.on_sworn(s));
        let known = self.doctor.known(index);
        let others: Vec<_> = self.group().map_or(Vec::new(), |g| g.keys().filter(|k| *k != self.key).collect());
        for key in others {
            self.send(key, Packet::Declared(known.clone()), out);
            if !known.iter().any(|s| s.by == key) {
                self.send(key, Packet::Declare { epoch, index }, out);
            }
        }
        self.judge(now, out);
    }

    fn judge(&mut self, now: Instant, out: &mut impl Out) {
        let Some(replica) = &self.replica else { return };
        let group = replica.group().clone();
        match self.doctor.judge(self.key, &group) {
            Some(Verdict::Wrong(key)) => self.with_replica(now, out, |r, around| r.accuse(key, around)),
            Some(Verdict::WeAreWrong) => {
                self.barred = group.epoch;
                self.end_replica();
                self.ended = "the replica here had another state than both others: it ended, and its seat moves".into();
            }
            Some(Verdict::Nobody(why)) => {
                self.halted = why;
                self.with_replica(now, out, |r, _| r.halt());
            }
            None => {}
        }
    }

    fn pass_on(&mut self, index: u64, out: &mut impl Out) {
        let known = self.doctor.known(index);
        let others: Vec<_> = self.group().map_or(Vec::new(), |g| g.keys().filter(|k| *k != self.key).collect());
        others.into_iter().for_each(|key| self.send(key, Packet::Declared(known.clone()), out));
    }

    fn on_differ(&mut self, now: Instant, one: &Ballot, other: &Ballot, out: &mut impl Out) {
        let (verifier, cluster) = (self.signer.verifier(), &self.config.cluster);
        let holds = |b: &Ballot| self.is_of_group(b.by) && b.holds(verifier, cluster);
        let is_one = one.vote.id == other.vote.id && one.vote.to == other.vote.to;
        if is_one && holds(one) && holds(other) {
            self.with_replica(now, out, |r, around| r.on_differ(one, other, around));
        } else {
            self.counters.unproved += 1;
        }
    }

    // What leaves.

    fn with_replica<S: Out>(&mut self, now: Instant, out: &mut S, act: impl FnOnce(&mut Replica, &mut Around<'_>)) {
        let Some(replica) = &mut self.replica else { return };
        let mut acts = Vec::new();
        let mut around = Around {
            now,
            unix_ms: self.config.unix_ms + now.0 / 1_000_000,
            cluster: &self.config.cluster,
            relay_min: self.config.relay_min,
            signer: &self.signer,
            world: &self.world,
            gone: &self.gone,
            silent: &self.silent,
            chain: &self.chain,
            acts: &mut acts,
            counters: &mut self.counters,
        };
        act(replica, &mut around);
        self.settle_replica(now, acts, out);
    }

    fn settle_replica(&mut self, now: Instant, acts: Vec<replica::Act>, out: &mut impl Out) {
        for act in acts {
            match act {
                replica::Act::Send(to, packet) => self.send(to, packet, out),
                replica::Act::Pass(first, sheaf) => self.pass(first, sheaf, out),
                replica::Act::Record { epoch, token, replaces, bytes } => {
                    self.leave(now, Leaving::Persist(Written::Order { epoch, token }, bytes, replaces), out);
                }
                replica::Act::State { epoch, index, bytes } => {
                    self.leave(now, Leaving::Persist(Written::State { epoch, index }, bytes, false), out);
                }
                replica::Act::Suspect(node) => self.leave(now, Leaving::Suspect(node), out),
                replica::Act::Diagnose(index) => self.open_case(now, index),
                replica::Act::Behind => {
                    let epoch = self.replica.as_ref().map_or(0, |r| r.group().epoch);
                    if epoch == self.chain.epoch() && self.joining.is_none() {
                        self.joining = Some(Joining::new(epoch, now));
                    }
                }
            }
        }
    }

    fn settle_agent(&mut self, now: Instant, acts: Vec<agent::Act>, out: &mut impl Out) {
        let mut done = false;
        for act in acts {
            match act {
                agent::Act::Send(to, packet) => self.send(to, packet, out),
                agent::Act::Tell { id, number, report } => {
                    let incarnation = self.config.incarnation;
                    let told = Telling::new(incarnation, number, report, &self.signer, &self.config.cluster);
                    let mut acts = Vec::new();
                    if let Some(group) = self.chain.group() {
                        self.agent.tell(now, id, &told, group, &mut acts);
                    }
                    self.settle_agent(now, acts, out);
                }
                agent::Act::Word(word) => {
                    done = true;
                    match word {
                        Word::Do(command) => self.leave(now, Leaving::Do(command), out),
                        Word::Answer { number, answer, .. } => self.leave(now, Leaving::Answered(number, answer), out),
                    }
                }
                agent::Act::Shown(number, bytes) => self.leave(now, Leaving::Shown(number, bytes), out),
                agent::Act::Lease(lease) => self.leave(now, Leaving::Lease(lease), out),
            }
        }
        if done {
            let id = self.agent.handed();
            self.leave(now, Leaving::Persist(Written::Executed(id), encode(&id), false), out);
        }
    }

    /// What was said to oneself is heard, and an epoch that ended gives way to the next.
    fn settle(&mut self, now: Instant, out: &mut impl Out) {
        let mut left = LOOPED_MAX;
        loop {
            if let Some(group) = self.replica.as_mut().and_then(Replica::take_next) {
                self.move_on(now, &group, out);
            } else if let Some((_, packet)) = self.looped.pop_front()
                && left > 0
            {
                left -= 1;
                self.on_packet(now, self.key, packet, out);
            } else {
                break;
            }
        }
        self.looped.clear();
        let trouble = self.find_trouble();
        if trouble != self.trouble {
            self.trouble = trouble;
            self.leave(now, Leaving::Group, out);
        }
    }

    fn find_trouble(&self) -> String {
        if !self.halted.is_empty() {
            return self.halted.clone();
        }
        if !self.ended.is_empty() && self.replica.is_none() && self.has_seat() {
            return self.ended.clone();
        }
        if self.replica.as_ref().is_some_and(Replica::is_stalled) {
            return "too few replicas are there: nothing is decided until one of the others is back".into();
        }
        if let Some(expect) = self.founder.disagrees.filter(|_| self.chain.epoch() == 0) {
            return format!("another node expects {expect} nodes: give all nodes the same --expect");
        }
        String::new()
    }

    fn vouch_context(&self) -> Vec<u8> {
        [b"phalanx manager ", self.config.cluster.as_bytes()].concat()
    }

    fn address_of(&self, key: Key) -> Option<Addr> {
        let chair = || self.chain.groups().find_map(|g| g.seats.iter().find(|s| s.key == key).map(|s| s.at.into()));
        let seen = self.world.get(&key).map(|n| n.at.into());
        seen.or_else(|| self.strangers.get(&key).copied()).or_else(chair)
    }

    fn send(&mut self, to: Key, packet: Packet, out: &mut impl Out) {
        let weight = packet.weight();
        if to == self.key {
            if self.looped.len() < LOOPED_MAX {
                self.looped.push_back((weight, packet));
            }
            return;
        }
        let Some(to_addr) = self.address_of(to) else { return };
        let bytes = packet.encode();
        let (carriage, bytes) = match weight {
            Weight::Light => (Carriage::Light, bytes),
            Weight::Plain => (Carriage::Bulk, bytes),
            Weight::Grave if bytes.len() <= self.config.signed_max => (Carriage::Signed, bytes),
            Weight::Grave => {
                let proof = Proof::sign(&self.signer, &self.vouch_context(), &(to, &bytes));
                (Carriage::Bulk, Packet::Vouched { bytes, proof }.encode())
            }
        };
        out.push(Output::Send { to: to_addr, carriage, bytes: &bytes });
    }

    fn leave(&mut self, _now: Instant, leaving: Leaving, out: &mut impl Out) {
        match leaving {
            Leaving::Do(command) => out.push(Output::Do { command: &command }),
            Leaving::Answered(number, answer) => out.push(Output::Answered { number, answer: &answer }),
            Leaving::Shown(number, bytes) => out.push(Output::Shown { number, bytes: &bytes }),
            Leaving::Lease(lease) => out.push(Output::Lease { ms: lease.as_millis() }),
            Leaving::Suspect(node) => out.push(Output::Suspect { node }),
            Leaving::Group => {
                if let Some(group) = self.chain.group() {
                    out.push(Output::Group { group, trouble: &self.trouble });
                }
            }
            Leaving::Persist(written, bytes, replaces) => {
                let token = self.next_token;
                self.next_token += 1;
                let record = match &written {
                    Written::Order { epoch, .. } => Record::Order { epoch: *epoch, replaces, bytes: &bytes },
                    Written::Group => Record::Group(&bytes),
                    Written::Acceptor(..) => Record::Acceptor(&bytes),
                    Written::State { epoch, .. } => Record::State { epoch: *epoch, bytes: &bytes },
                    Written::Executed(_) => Record::Executed(&bytes),
                };
                out.push(Output::Persist { token, record });
                if self.writes.len() >= WRITES_MAX {
                    self.writes.pop_first();
                }
                self.writes.insert(token, written);
            }
        }
    }
}
