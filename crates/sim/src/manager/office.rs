//! A member's steward, what its disk keeps, and the shepherds of its machine.

use super::{Command, Common, Machine, Note};
use crate::sim::Birth;
use phalanx_core::{Addr, Duration, Instant, Machine as _, Rng, Sink};
use phalanx_protocol::link::sign::Signer;
use phalanx_protocol::manager::flock::{Did, Luck};
use phalanx_protocol::manager::group::Digest;
use phalanx_protocol::manager::replica::Replica;
use phalanx_protocol::manager::state::NodeInfo;
use phalanx_protocol::manager::steward::{Config, Input, Output, Record, Steward, Stored};
use phalanx_protocol::manager::wire::{Id, Word};
use phalanx_protocol::manager::words::{self, Answer, Ask, At, Attempt, Key, MissedRank, Report, encode};
use phalanx_protocol::member::{Card, Peer, Version};
use phalanx_protocol::node::Carriage;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, MutexGuard};

/// The attribute that says how many ranks a node takes.
pub const SLOTS: &str = "phalanx.slots";
/// The name of the simulated cluster.
const CLUSTER: &str = "sim";
/// What clocks on walls show when a run begins, in milliseconds since 1970.
const SINCE_1970_MS: u64 = 1_700_000_000_000;
/// Where the disk keeps what counts in its last version.
const PAGES: [u64; 4] = [0, 1, 2, 3];
/// Where the records of orders begin.
const RECORDS: u64 = 16;
/// Views take so long at most to go on without somebody.
const GRIEF: Duration = Duration::from_millis(800);
/// The part of those who share a job with the dead that say so: in a view it is the root.
const WITNESSES: f64 = 0.5;
/// After everything was healed a node says that it is not drained.
const UNDRAIN: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(30), Duration::from_secs(300)];
/// Nanoseconds of a millisecond.
const MS: u64 = 1_000_000;

/// What is wrong with the manager, to see that it is noticed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Spoil {
    /// Agents carry out what a single replica says.
    OneVoice,
    /// Ranks live on when their lease is over.
    NoLeases,
    /// Disks keep nothing of what replicas promise.
    NoDisk,
    /// Shepherds that die are not reported.
    NoInventory,
}

/// What an office wants of its member.
pub(crate) enum Deed {
    /// Say this.
    Send(Addr, Carriage, Vec<u8>),
    /// Keep this: token, key, bytes.
    Persist(u64, u64, Vec<u8>),
    /// Tell the checkers.
    Note(Note),
    /// Doubt the node at this address.
    Doubt(Addr),
}

/// A view goes on without a node's ranks, and says so then.
struct Grief {
    at: Instant,
    attempt: Attempt,
    from: At,
    ranks: Vec<MissedRank>,
    proven: bool,
}

/// A member's part of the manager.
pub(crate) struct Office {
    steward: Steward,
    common: Arc<Common>,
    node: u32,
    host: u16,
    calm: bool,
    ask_at: Instant,
    griefs: Vec<Grief>,
    /// When all is over its node is not to be drained; what was asked before may come later.
    undrain_at: Vec<Instant>,
    next_record: u64,
    /// What the replica here was heard to apply and decide.
    applied: (u32, u64),
    decided: Id,
    /// The epoch of the replica here.
    began: u32,
    group: u32,
    /// Questions without an answer; true when a job is wanted.
    open: BTreeMap<u64, bool>,
    deeds: VecDeque<Deed>,
}

/// What a steward decided, until the office has seen to it.
#[derive(Default)]
struct Decided(Vec<Decision>);

enum Decision {
    Send(Addr, Carriage, Vec<u8>),
    Persist(u64, Page, Vec<u8>),
    Do(words::Command),
    Answered(u64, Answer),
    Lease(u64),
    Suspect(Key),
}

/// Where a record goes.
enum Page {
    Order(u32, bool),
    Newest(u64),
}

impl<'a> Sink<Output<'a>> for Decided {
    fn push(&mut self, output: Output<'a>) {
        self.0.push(match output {
            Output::Send { to, carriage, bytes } => Decision::Send(to, carriage, bytes.to_vec()),
            Output::Persist { token, record } => {
                let (page, bytes) = match record {
                    Record::Order { epoch, replaces, bytes } => (Page::Order(epoch, replaces), bytes),
                    Record::Group(bytes) => (Page::Newest(PAGES[0]), bytes),
                    Record::Acceptor(bytes) => (Page::Newest(PAGES[1]), bytes),
                    Record::State { bytes, .. } => (Page::Newest(PAGES[2]), bytes),
                    Record::Executed(bytes) => (Page::Newest(PAGES[3]), bytes),
                };
                Decision::Persist(token, page, bytes.to_vec())
            }
            Output::Do { command } => Decision::Do(command.clone()),
            Output::Answered { number, answer } => Decision::Answered(number, answer.clone()),
            Output::Lease { ms } => Decision::Lease(ms),
            Output::Suspect { node } => Decision::Suspect(node),
            Output::Shown { .. } | Output::Group { .. } => return,
        });
    }
}

fn stored(birth: &Birth<'_>) -> (Stored, u64) {
    let page = |key| birth.disk.read(key).map(<[u8]>::to_vec);
    let [group, acceptor, state, executed] = PAGES.map(page);
    let (mut order, mut next) = (Vec::<(u32, Vec<u8>)>::new(), RECORDS);
    for (key, bytes) in birth.disk.iter().filter(|(key, _)| *key >= RECORDS) {
        next = key + 1;
        let Some((epoch, rest)) = bytes.split_first_chunk() else { continue };
        let Some((&replaces, record)) = rest.split_first() else { continue };
        let epoch = u32::from_le_bytes(*epoch);
        if replaces != 0 {
            order.retain(|r| r.0 != epoch);
        }
        order.push((epoch, record.to_vec()));
    }
    (Stored { order, group, acceptor, state, executed }, next)
}

impl Office {
    pub(crate) fn new(common: &Arc<Common>, birth: &mut Birth<'_>, signer: Signer) -> Self {
        let (options, now) = (&common.options, birth.now);
        let (stored, next_record) = stored(birth);
        let config = Config {
            cluster: CLUSTER.to_owned(),
            incarnation: birth.boot.into(),
            expect: Some(options.expect.unwrap_or(common.keys.len() as u32)),
            unix_ms: SINCE_1970_MS,
            relay_min: options.relay,
            order: options.order,
            ..Config::default()
        };
        let rng = Rng::new(birth.rng.u64(), 2);
        let mut steward = Steward::recover(config, signer, &stored, rng, now);
        steward.agent_mut().gullible = options.spoil == Some(Spoil::OneVoice);
        let ask_at = next_ask(now, options.asks, birth.rng);
        Self {
            steward,
            common: Arc::clone(common),
            node: birth.node,
            host: birth.host,
            calm: false,
            ask_at,
            griefs: Vec::new(),
            undrain_at: Vec::new(),
            next_record,
            applied: (0, 0),
            decided: Id::default(),
            began: 0,
            group: 0,
            open: BTreeMap::new(),
            deeds: VecDeque::new(),
        }
    }

    /// The steward, to be looked at.
    pub(crate) fn steward(&self) -> &Steward {
        &self.steward
    }

    /// Nothing of any job is on its machine.
    pub(crate) fn is_idle(&self) -> bool {
        self.machine().flock.is_empty()
    }

    /// Questions without an answer.
    pub(crate) fn waits(&self) -> usize {
        self.open.len()
    }

    /// The replica here lies, or its memory was made bad.
    pub(crate) fn is_harmed(&self) -> bool {
        let machine = self.machine();
        machine.corrupt || machine.lies
    }

    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.common.machine(self.node, self.host)
    }

    pub(crate) fn next_deed(&mut self) -> Option<Deed> {
        self.deeds.pop_front()
    }

    pub(crate) fn deadline(&self) -> Instant {
        let grief = self.griefs.iter().map(|g| g.at).min().unwrap_or(Instant::NEVER);
        let shepherds = self.machine().flock.due_ms().checked_mul(MS).map_or(Instant::NEVER, Instant);
        let undrain = self.undrain_at.iter().copied().min().unwrap_or(Instant::NEVER);
        self.steward.deadline().min(self.ask_at).min(grief).min(undrain).min(shepherds)
    }

    /// The member begins.
    pub(crate) fn start(&mut self, now: Instant, rng: &mut Rng) {
        let mut did = Vec::new();
        let inform = self.common.options.spoil != Some(Spoil::NoInventory);
        {
            let mut machine = self.machine();
            machine.flock.pass(now.0 / MS, &mut Luck { rng, calm: false }, &mut did);
            did.retain(|did| !matches!(did, Did::Report(_)));
            if inform {
                machine.flock.inventory(&mut did);
            } else {
                did.push(Did::Report(Report::Inventory { attempts: Vec::new() }));
            }
        }
        self.follow(now, did, rng);
    }

    /// The zone shows a member.
    pub(crate) fn on_seen(&mut self, now: Instant, (card, version, zone): (&Card, Version, &str), rng: &mut Rng) {
        let Ok(at) = At::try_from(card.addr) else { return };
        let node = NodeInfo {
            key: card.identity.into(),
            name: card.name.as_str().to_owned(),
            at,
            zone: zone.to_owned(),
            incarnation: version.incarnation,
            slots: self.common.options.slots,
        };
        self.tell(now, Input::Seen { node, minor: version.minor }, rng);
    }

    /// The zone says that a member is gone.
    pub(crate) fn on_gone(&mut self, now: Instant, card: &Card, version: Version, rng: &mut Rng) {
        let (node, Version { incarnation, minor }) = (card.identity.into(), version);
        self.tell(now, Input::Gone { node, incarnation, minor }, rng);
    }

    /// Another steward says something.
    pub(crate) fn on_heard(&mut self, now: Instant, (from, carriage): (Peer, Carriage), bytes: &[u8], rng: &mut Rng) {
        self.tell(now, Input::Heard { from, carriage, bytes }, rng);
    }

    /// A write is on the disk.
    pub(crate) fn on_persisted(&mut self, now: Instant, token: u64, rng: &mut Rng) {
        self.tell(now, Input::Persisted { token }, rng);
    }

    /// A scenario wants something.
    pub(crate) fn command(&mut self, now: Instant, command: Command, rng: &mut Rng) {
        match command {
            Command::KillShepherds => {
                let mut did = Vec::new();
                {
                    let flock = &mut self.machine().flock;
                    let jobs: Vec<_> = flock.jobs().collect();
                    jobs.into_iter().for_each(|job| flock.kill(job, &mut did));
                }
                self.follow(now, did, rng);
            }
            Command::Lie => {
                let replica = self.steward.replica_mut().map(Replica::lie);
                self.machine().lies |= replica.is_some();
                self.deeds.extend(replica.map(|()| Deed::Note(Note::Harmed)));
            }
            Command::Corrupt(chance) => {
                let replica = self.steward.replica_mut().map(|r| r.corrupt(chance));
                self.machine().corrupt |= replica.is_some();
                self.deeds.extend(replica.map(|()| Deed::Note(Note::Harmed)));
            }
            Command::Bereave { node, proven } => {
                if node != self.node && rng.chance(WITNESSES) {
                    let missed = self.machine().flock.misses(self.common.keys[node as usize]);
                    let at = now + Duration(rng.below(GRIEF.0));
                    let grief = |(attempt, from, ranks)| Grief { at, attempt, from, ranks, proven };
                    self.griefs.extend(missed.into_iter().map(grief));
                }
            }
            Command::Rest => {
                (self.calm, self.ask_at) = (true, Instant::NEVER);
                self.undrain_at = UNDRAIN.iter().map(|&after| now + after).collect();
            }
        }
    }

    /// Does what is due.
    pub(crate) fn expire(&mut self, now: Instant, rng: &mut Rng) {
        if self.machine().flock.due_ms() <= now.0 / MS {
            let mut did = Vec::new();
            let calm = self.calm;
            self.machine().flock.pass(now.0 / MS, &mut Luck { rng, calm }, &mut did);
            self.follow(now, did, rng);
        }
        while let Some(i) = self.griefs.iter().position(|g| g.at <= now) {
            let Grief { attempt, from: at, ranks, proven, .. } = self.griefs.swap_remove(i);
            self.report(now, Report::Missed { attempt, at, ranks, proven }, rng);
        }
        while let Some(i) = self.undrain_at.iter().position(|at| *at <= now) {
            self.undrain_at.swap_remove(i);
            let undrain = Ask::Drain { node: format!("n{}", self.node), drained: false };
            self.ask(now, undrain, rng);
        }
        if self.ask_at <= now {
            self.ask_at = next_ask(now, self.common.options.asks, rng);
            let (nodes, oversubscribe) = (self.common.keys.len(), self.common.options.oversubscribe);
            let ask = Luck { rng, calm: self.calm }.ask(nodes, oversubscribe);
            self.ask(now, ask, rng);
        }
        if self.steward.deadline() <= now {
            self.drive(now, |steward, out| steward.expire(now, out), rng);
        }
    }

    fn ask(&mut self, now: Instant, ask: Ask, rng: &mut Rng) {
        let wants_job = matches!(ask, Ask::Run(_));
        if wants_job {
            self.deeds.push_back(Deed::Note(Note::Asked));
        }
        let mut out = Decided::default();
        let number = self.steward.ask(now, ask, &mut out);
        if number != 0 {
            self.open.insert(number, wants_job);
        }
        self.see_to(now, out, rng);
    }

    fn report(&mut self, now: Instant, report: Report, rng: &mut Rng) {
        self.tell(now, Input::Reported { report }, rng);
    }

    fn tell(&mut self, now: Instant, input: Input<'_>, rng: &mut Rng) {
        self.drive(now, |steward, out| steward.handle(now, input, out), rng);
    }

    fn drive(&mut self, now: Instant, act: impl FnOnce(&mut Steward, &mut Decided), rng: &mut Rng) {
        let mut out = Decided::default();
        act(&mut self.steward, &mut out);
        self.see_to(now, out, rng);
    }

    fn see_to(&mut self, now: Instant, out: Decided, rng: &mut Rng) {
        self.tell_progress();
        for decision in out.0 {
            match decision {
                Decision::Send(to, carriage, bytes) => self.deeds.push_back(Deed::Send(to, carriage, bytes)),
                Decision::Persist(token, page, bytes) => self.persist(token, &page, bytes),
                Decision::Do(command) => self.carry_out(now, command, rng),
                Decision::Answered(number, answer) => {
                    let wanted = self.open.remove(&number) == Some(true);
                    match answer {
                        Answer::Taken { job, .. } => self.deeds.push_back(Deed::Note(Note::Taken(job))),
                        Answer::Refused(_) if wanted => self.deeds.push_back(Deed::Note(Note::Refused)),
                        Answer::Refused(_) | Answer::Done => {}
                    }
                }
                Decision::Lease(ms) => {
                    self.machine().flock.lease(now.0 / MS + ms);
                    self.deeds.push_back(Deed::Note(Note::Leased(now + Duration::from_millis(ms))));
                }
                Decision::Suspect(key) => {
                    let node = self.common.keys.iter().position(|k| *k == key);
                    self.deeds.extend(node.map(|n| Deed::Doubt(Addr::Local(n as u32))));
                }
            }
        }
    }

    fn persist(&mut self, token: u64, page: &Page, bytes: Vec<u8>) {
        let (key, bytes) = match *page {
            Page::Newest(key) => (key, bytes),
            Page::Order(epoch, replaces) => {
                self.next_record += 1;
                let head = [&epoch.to_le_bytes()[..], &[u8::from(replaces)]].concat();
                (self.next_record - 1, [head, bytes].concat())
            }
        };
        let bytes = if self.common.options.spoil == Some(Spoil::NoDisk) { Vec::new() } else { bytes };
        self.deeds.push_back(Deed::Persist(token, key, bytes));
    }

    fn carry_out(&mut self, now: Instant, command: words::Command, rng: &mut Rng) {
        let word = Word::Do(command);
        let majority = self.steward.group().map_or(u32::MAX, |g| g.majority() as u32);
        let digest = Digest::of(&encode(&word)).short();
        self.deeds.push_back(Deed::Note(Note::CarriedOut { word: digest, majority }));
        let Word::Do(command) = word else { return };
        let (mut did, calm) = (Vec::new(), self.calm);
        let now_ms = now.0 / MS;
        // A shepherd that starts has what is left of its agent's lease at most: that is told with the next heartbeat.
        let times = (now_ms, now_ms + phalanx_protocol::manager::state::LEASE_MS);
        self.machine().flock.carry_out(times, &command, &mut Luck { rng, calm }, &mut did);
        self.follow(now, did, rng);
    }

    /// What shepherds did is reported, and told.
    fn follow(&mut self, now: Instant, did: Vec<Did>, rng: &mut Rng) {
        for did in did {
            let note = match did {
                Did::Report(report) => {
                    self.report(now, report, rng);
                    continue;
                }
                Did::Started { attempt, rank, life } => {
                    let living = self.machine().flock.living(attempt.job, rank);
                    let until = living.and_then(|l| l.2.checked_mul(MS)).map_or(Instant::NEVER, Instant);
                    Note::Started { attempt, rank, life, until }
                }
                Did::Ended { attempt, rank } => Note::Ended { attempt, rank },
                Did::Wrong(_) => Note::Wrong,
            };
            self.deeds.push_back(Deed::Note(note));
        }
    }

    /// What the replica here has applied and decided since, and which group the node knows.
    fn tell_progress(&mut self) {
        let group = self.steward.group().map(|g| (g.epoch, g.digest().short()));
        if let Some((epoch, digest)) = group.filter(|(epoch, _)| *epoch != self.group) {
            self.group = epoch;
            let corrupt = self.machine().corrupt;
            self.deeds.push_back(Deed::Note(Note::Group { epoch, digest, corrupt }));
        }
        let last = self.steward.take_last_words().into_iter();
        self.deeds.extend(last.map(|word| Deed::Note(Note::Decided(word.short()))));
        let mut machine = self.common.machine(self.node, self.host);
        let Some(replica) = self.steward.replica_mut() else {
            (machine.corrupt, machine.lies, self.began) = (false, false, 0);
            return;
        };
        // Who lies does so in the next epoch, too, and when it starts again.
        if machine.lies && !replica.is_lying() {
            replica.lie();
        }
        let corrupt = machine.corrupt;
        drop(machine);
        let last = self.applied;
        let is_new = |s: &&_| -> bool {
            let s: &phalanx_protocol::manager::wire::Statement = s;
            (s.epoch, s.index) > last
        };
        let statements: Vec<_> = replica.statements().rev().take_while(is_new).copied().collect();
        let decisions: Vec<_> = replica.decisions().rev().take_while(|(id, _)| *id > self.decided).collect();
        if replica.group().epoch != self.began {
            // What was decided with the last entry before it began, or elsewhere, it says as well.
            self.began = replica.group().epoch;
            let waiting = replica.core().desks().flat_map(|(_, desk)| &desk.waiting);
            let words: Vec<_> = waiting.map(|item| item.body.hash.short()).collect();
            self.deeds.extend(words.into_iter().map(|word| Deed::Note(Note::Decided(word))));
        }
        for s in statements.into_iter().rev() {
            self.applied = (s.epoch, s.index);
            let digest = s.digest ^ s.chain.rotate_left(32);
            self.deeds.push_back(Deed::Note(Note::Applied { epoch: s.epoch, index: s.index, digest, corrupt }));
        }
        for (id, digest) in decisions.into_iter().rev() {
            self.decided = id;
            self.deeds.push_back(Deed::Note(Note::Decided(digest.short())));
        }
    }
}

fn next_ask(now: Instant, mean: Duration, rng: &mut Rng) -> Instant {
    if mean == Duration::ZERO { Instant::NEVER } else { now + Duration(1 + rng.below(2 * mean.0)) }
}
