//! The steward of a node: its agent, its part in founding the group, and, where the group has a seat, the replica.
//!
//! CM-1 to CM-3. Every node runs one; a driver gives it what arrives and what the zone sees, and does what it decides. What a steward says
//! to itself takes the same way as what it says to others, without the network.
//!
//! | file | idea |
//! |---|---|
//! | `terms` | what it is told, and what it decides |
//! | `hear` | what others say to it |
//! | `seat` | founding the group, following it, having a seat in it |
//! | `compare` | self-diagnosis, and what follows |

mod compare;
mod hear;
mod seat;
mod terms;

pub use terms::{Config, Input, Out, Output, Record, Status, Stored};

use super::agent::{self, Agent};
use super::core::Core;
use super::diagnose::Doctor;
use super::found::{Founder, Founding};
use super::group::{Chain, Group, Proof};
use super::herald::{self, Herald};
use super::regroup::Joining;
use super::replica::{self, Around, Counters, Prior, Replica, heartbeat};
use super::state::NodeInfo;
use super::wire::{Id, Look, Packet, Said, Telling, Weight, Word};
use super::words::{Answer, Ask, Command, Key, Report, decode, encode};
use crate::link::sign::Signer;
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
/// An ended order answers for so long, when nobody says sooner that all have seen its end.
const LINGER: Duration = Duration::from_secs(600);

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
