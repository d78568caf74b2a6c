//! A cluster around the state: agents that carry out commands late, shepherds, ranks, a zone that is sometimes wrong, and all that can die.
//!
//! Safety is seen from outside, from the processes that really live: no rank has two, no node more than its slots. Liveness after healing:
//! every job is over, no slot is held, nothing of any job is left anywhere.

use super::checks::Watch;
use super::{Decision, Entry, Fact, LEASE_MS, NodeInfo, Reported, State};
use crate::manager::flock::{Did, Flock, Luck};
use crate::manager::words::{Answer, Ask, At, Attempt, Command, JobId, Key, MissedRank, Report, Wanted};
use phalanx_core::Rng;
use std::collections::{BTreeMap, VecDeque};

/// How long faults happen.
const STORM_MS: u64 = 90_000;
/// Time for all to end afterwards: each job may run several times.
const CALM_MS: u64 = 3_600_000;
/// A check of everything is dear: not after each entry.
const CHECK_EVERY: u64 = 16;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
/// What is wrong with this cluster, to see that it is noticed.
pub(super) struct Spoil {
    /// Shepherds that hear of nobody let their ranks run on.
    pub(super) no_leases: bool,
    /// Some reports are lost, and never said again.
    pub(super) forgetful: bool,
    /// One of the replicas has another clock.
    pub(super) liar: bool,
}

/// Ranks of a node that a view goes on without, and who would say so.
struct Missing {
    attempt: Attempt,
    at: At,
    ranks: Vec<MissedRank>,
    root: usize,
}

#[derive(Clone, Debug)]
struct Node {
    info: NodeInfo,
    /// Its machine runs.
    up: bool,
    /// Its agent runs.
    agent: bool,
    /// Nobody reaches it before that.
    cut_ms: u64,
    /// Commands that it has not carried out yet.
    inbox: VecDeque<Command>,
    number: u64,
    asked: u64,
    unheard: VecDeque<(u64, Report)>,
    flock: Flock,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Event {
    /// An entry gets its place in the order.
    Order(Fact),
    /// An agent carries out what it was told, and says again what nobody has heard.
    Turn(usize),
    /// Something happens.
    Fault,
    Ask,
    Back(usize),
}

pub(super) struct World {
    rng: Rng,
    now_ms: u64,
    state: State,
    twin: State,
    watch: Watch,
    nodes: Vec<Node>,
    of: BTreeMap<Key, usize>,
    events: BTreeMap<(u64, u64), Event>,
    events_ever: u64,
    entries: u64,
    oversubscribe: bool,
    jobs: BTreeMap<JobId, Wanted>,
    calm: bool,
    traced: bool,
    spoil: Spoil,
    pub(super) told: BTreeMap<&'static str, u64>,
}

pub(super) fn key(n: usize) -> Key {
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&(n as u64 + 1).to_be_bytes());
    Key(bytes)
}

impl World {
    pub(super) fn new(seed: u64, spoil: Spoil) -> Self {
        let mut rng = Rng::new(seed, 8);
        let count = 2 + rng.index(7);
        let nodes: Vec<Node> = (0..count)
            .map(|n| Node {
                info: NodeInfo {
                    key: key(n),
                    name: format!("n{n}"),
                    at: At::Local(n as u32),
                    zone: format!("z{}", n % 3),
                    incarnation: 1,
                    slots: 1 + rng.below(4) as u32,
                },
                up: true,
                agent: true,
                cut_ms: 0,
                inbox: VecDeque::new(),
                number: 0,
                asked: 0,
                unheard: VecDeque::new(),
                flock: Flock::new(key(n), At::Local(n as u32)).without_leases(spoil.no_leases),
            })
            .collect();
        let state = State::new(1, &[key(0)]);
        let of = nodes.iter().enumerate().map(|(n, node)| (node.info.key, n)).collect();
        let mut world = Self {
            oversubscribe: rng.chance(0.2),
            rng,
            now_ms: 1_000_000,
            twin: state.clone(),
            state,
            watch: Watch::default(),
            nodes,
            of,
            events: BTreeMap::new(),
            events_ever: 0,
            entries: 0,
            jobs: BTreeMap::new(),
            calm: false,
            traced: std::env::var_os("TRACE").is_some(),
            spoil,
            told: BTreeMap::new(),
        };
        for n in 0..count {
            let info = world.nodes[n].info.clone();
            world.soon(200, Event::Order(Fact::Seen(info)));
            world.inventory(n);
            world.soon(200, Event::Turn(n));
        }
        for _ in 0..3 + world.rng.index(12) {
            let at = world.rng.below(STORM_MS);
            world.at(at, Event::Ask);
        }
        // The storm ends at its time, also when nothing is left to happen.
        world.at(STORM_MS + 1, Event::Turn(0));
        let faults = world.rng.index(25);
        for _ in 0..faults {
            let at = world.rng.below(STORM_MS);
            world.at(at, Event::Fault);
        }
        world
    }

    /// Runs to the end.
    pub(super) fn run(mut self) -> Result<BTreeMap<&'static str, u64>, String> {
        let (storm, end) = (self.now_ms + STORM_MS, self.now_ms + STORM_MS + CALM_MS);
        while let Some((&(at_ms, number), _)) = self.events.first_key_value() {
            let wake = self.state.wakes_at_ms().unwrap_or(u64::MAX);
            if wake < at_ms {
                self.now_ms = self.now_ms.max(wake);
                self.order(Fact::Tick)?;
                continue;
            }
            if !self.calm && at_ms > storm {
                self.heal();
                continue;
            }
            if at_ms > end || (self.calm && self.is_quiet()) {
                break;
            }
            let Some(event) = self.events.remove(&(at_ms, number)) else { continue };
            self.now_ms = at_ms;
            match event {
                Event::Order(fact) => self.order(fact)?,
                Event::Turn(n) => self.turn(n)?,
                Event::Fault => self.fault()?,
                Event::Ask => self.ask(),
                Event::Back(n) => self.back(n),
            }
        }
        self.state.violation()?;
        match self.is_quiet() {
            true => Ok(self.told),
            false => {
                Err(format!("after healing: {:?}, {:?}, left {:?}", self.state.runs(), self.state.slots(), self.left()))
            }
        }
    }

    fn at(&mut self, in_ms: u64, event: Event) {
        self.events_ever += 1;
        self.events.insert((self.now_ms + in_ms, self.events_ever), event);
    }

    fn soon(&mut self, most_ms: u64, event: Event) {
        let in_ms = self.rng.below(most_ms);
        self.at(in_ms, event);
    }

    /// With `TRACE` in the environment: what happens, to see why.
    fn trace(&self, what: impl FnOnce() -> String) {
        if self.traced {
            println!("{} {}", self.now_ms, what());
        }
    }

    fn tell(&mut self, what: &'static str) {
        *self.told.entry(what).or_default() += 1;
    }

    fn left(&self) -> Vec<(String, Vec<JobId>)> {
        self.nodes.iter().map(|n| (n.info.name.clone(), n.flock.jobs().collect())).collect()
    }

    fn is_quiet(&self) -> bool {
        let over = self.jobs.keys().all(|id| self.state.jobs.get(id).is_none());
        let empty = self.nodes.iter().all(|n| n.flock.is_empty() && n.inbox.is_empty() && n.unheard.is_empty());
        let free = self.state.nodes.values().all(|node| node.used == 0 && node.jobs.is_empty());
        let asked = !self.events.values().any(|event| matches!(event, Event::Ask | Event::Order(Fact::Asked { .. })));
        over && empty && free && asked
    }

    /// An entry gets its place; two replicas apply it.
    fn order(&mut self, fact: Fact) -> Result<(), String> {
        // The clock of whoever puts it there may be slow.
        let entry = Entry { at_ms: self.now_ms - self.rng.below(50), fact };
        let (mut out, mut other) = (Vec::new(), Vec::new());
        self.trace(|| format!("{entry:?}"));
        self.state.apply(&entry, &mut out);
        let late = u64::from(self.spoil.liar && self.entries == 100);
        self.twin.apply(&Entry { at_ms: entry.at_ms + late, ..entry.clone() }, &mut other);
        self.entries += 1;
        if out != other || self.state.digest() != self.twin.digest() {
            return Err(format!("replicas differ after {entry:?}: {out:?}, {other:?}"));
        }
        if self.entries.is_multiple_of(CHECK_EVERY) {
            self.state.violation().map_err(|what| format!("after {entry:?}: {what}"))?;
            let bytes = self.state.encode();
            self.twin = State::decode(&bytes).ok_or("it cannot be read")?;
            if self.twin != self.state || self.twin.encode() != bytes {
                return Err(format!("it is not what it was, when written and read after {entry:?}"));
            }
        }
        for decision in out {
            self.watch.saw(&decision)?;
            match decision {
                Decision::Command { to, command } => {
                    for to in to {
                        let n = self.of[&to];
                        self.nodes[n].inbox.push_back(command.clone());
                        self.soon(30, Event::Turn(n));
                    }
                }
                Decision::Answer { answer: Answer::Taken { job, .. }, .. } => {
                    self.tell("taken");
                    let wanted = self.state.jobs.get(&job).map(|job| (*job.wanted).clone());
                    if let Some(wanted) = wanted {
                        self.jobs.insert(job, wanted);
                    }
                }
                Decision::Answer { answer: Answer::Refused(_), .. } => self.tell("refused"),
                Decision::Answer { .. } => self.tell("done"),
                Decision::Move { from, to } => {
                    self.tell("moved");
                    let seats: Vec<Key> = self.state.seats().iter().map(|&k| if k == from { to } else { k }).collect();
                    let mut fresh: Vec<Key> = self.state.fresh().iter().copied().filter(|key| *key != from).collect();
                    fresh.push(to);
                    self.regroup(&seats, &fresh);
                }
                Decision::Grow { with } => {
                    self.tell("grown");
                    let seats: Vec<Key> = self.state.seats().iter().copied().chain(with).collect();
                    self.regroup(&seats, &with);
                }
            }
        }
        Ok(())
    }

    fn regroup(&mut self, seats: &[Key], fresh: &[Key]) {
        let epoch = self.state.epoch() + 1;
        self.state.grouped(epoch, seats, fresh);
        self.twin.grouped(epoch, seats, fresh);
        for &by in fresh {
            self.soon(3_000, Event::Order(Fact::Arrived { by, epoch }));
        }
    }

    fn report(&mut self, n: usize, report: Report) {
        let node = &mut self.nodes[n];
        node.number += 1;
        node.unheard.push_back((node.number, report));
        self.say(n);
    }

    /// What nobody has heard yet is said again: each by its own way, so in any order, or twice.
    fn say(&mut self, n: usize) {
        let node = &self.nodes[n];
        if !node.agent || node.cut_ms > self.now_ms {
            return;
        }
        let (from, incarnation) = (node.info.key, node.info.incarnation);
        for (number, report) in node.unheard.clone() {
            if self.calm || self.rng.chance(0.8) {
                self.soon(400, Event::Order(Fact::Reported(vec![Reported { from, incarnation, number, report }])));
            }
        }
    }

    fn turn(&mut self, n: usize) -> Result<(), String> {
        let now_ms = self.now_ms;
        let heard = self.state.heard(&self.nodes[n].info.key);
        let lost = self.state.is_lost(&self.nodes[n].info.key);
        let node = &mut self.nodes[n];
        let reached = node.agent && node.cut_ms <= now_ms;
        if let Some((_, through)) = heard.filter(|(incarnation, _)| reached && *incarnation == node.info.incarnation) {
            node.unheard.retain(|&(number, _)| number > through);
        }
        if self.spoil.forgetful && self.rng.chance(0.1) {
            let node = &mut self.nodes[n];
            if let Some((number, _)) = node.unheard.pop_front() {
                // Whoever loses a report must not leave a gap: the next one gets its number.
                node.unheard.iter_mut().zip(number..).for_each(|(report, number)| report.0 = number);
                node.number -= 1;
            }
        }
        self.time_passes(n, reached && !lost)?;
        if reached {
            // One command at a time, or several.
            while self.rng.chance(0.7) {
                let Some(command) = self.nodes[n].inbox.pop_front() else { break };
                // The agent may die between saying that it has a command and carrying it out.
                if !self.calm && self.rng.chance(0.005) {
                    self.kill_agent(n);
                    break;
                }
                self.carry_out(n, &command)?;
            }
            self.say(n);
        }
        if !self.nodes[n].inbox.is_empty() || !self.nodes[n].unheard.is_empty() || !self.nodes[n].flock.is_empty() {
            let later = Event::Turn(n);
            let known = self.events.iter().any(|((at, _), event)| *at > now_ms && *event == later);
            if !known {
                self.at(if self.calm { 2_000 } else { 500 }, later);
            }
        }
        Ok(())
    }

    /// Leases end, and ranks.
    fn time_passes(&mut self, n: usize, prolong: bool) -> Result<(), String> {
        let node = &mut self.nodes[n];
        if !node.up {
            return Ok(());
        }
        let mut did = Vec::new();
        node.flock.pass(self.now_ms, &mut Luck { rng: &mut self.rng, calm: self.calm }, &mut did);
        if prolong {
            node.flock.lease(self.now_ms + LEASE_MS);
        }
        self.follow(n, did)
    }

    fn carry_out(&mut self, n: usize, command: &Command) -> Result<(), String> {
        self.trace(|| format!("n{n} is told {command:?}"));
        if matches!(command, Command::Go { life: 1.., .. }) {
            self.tell("respawned");
        }
        let (mut did, times) = (Vec::new(), (self.now_ms, self.now_ms + LEASE_MS));
        let luck = &mut Luck { rng: &mut self.rng, calm: self.calm };
        self.nodes[n].flock.carry_out(times, command, luck, &mut did);
        self.follow(n, did)
    }

    /// What shepherds did is reported, while their agent lives.
    fn follow(&mut self, n: usize, did: Vec<Did>) -> Result<(), String> {
        for did in did {
            match did {
                Did::Report(report) if self.nodes[n].agent => self.report(n, report),
                Did::Report(_) | Did::Ended { .. } => {}
                Did::Started { attempt, rank, life } => self.started(n, attempt, rank, life)?,
                Did::Wrong(what) => return Err(what),
            }
        }
        Ok(())
    }

    /// A process started: it must be the only one of its rank, and have a slot.
    fn started(&mut self, n: usize, attempt: Attempt, rank: u32, life: u32) -> Result<(), String> {
        self.tell("started");
        for (other, node) in self.nodes.iter().enumerate().filter(|(other, node)| *other != n && node.up) {
            // A lease ends by itself, whenever somebody looks.
            let lives = node.flock.living(attempt.job, rank).filter(|(_, _, until_ms)| *until_ms > self.now_ms);
            if let Some((old, old_life, _)) = lives {
                return Err(format!(
                    "rank {rank} lives twice: {old:?} life {old_life} on n{other}, {attempt:?} life {life} on n{n}"
                ));
            }
        }
        let node = &self.nodes[n];
        let live = node.flock.count();
        if !self.oversubscribe && live > node.info.slots as usize {
            return Err(format!("{live} ranks live on {:?}", node.info));
        }
        Ok(())
    }

    fn ask(&mut self) {
        let n = self.rng.index(self.nodes.len());
        let ask = Luck { rng: &mut self.rng, calm: self.calm }.ask(self.nodes.len(), self.oversubscribe);
        let node = &mut self.nodes[n];
        node.asked += 1;
        let (from, incarnation, number) = (node.info.key, node.info.incarnation, node.asked);
        for _ in 0..1 + self.rng.index(3) {
            let ask = ask.clone();
            self.soon(600, Event::Order(Fact::Asked { from, incarnation, number, ask }));
        }
    }

    fn fault(&mut self) -> Result<(), String> {
        let n = self.rng.index(self.nodes.len());
        match self.rng.below(9) {
            0 | 1 => self.kill_node(n),
            2 | 3 => self.kill_agent(n),
            4 | 5 => return self.kill_shepherd(n),
            6 => {
                let ms = self.rng.below(30_000);
                self.nodes[n].cut_ms = self.now_ms + ms;
                self.zone_loses(n);
                self.at(ms + 1, Event::Order(Fact::Seen(self.nodes[n].info.clone())));
                self.at(ms + 1, Event::Turn(n));
            }
            7 => {
                // The zone is wrong for a moment.
                let info = self.nodes[n].info.clone();
                self.tell("false alarm");
                self.soon(100, Event::Order(Fact::Lost { node: info.key, incarnation: info.incarnation }));
                let ms = 100 + self.rng.below(20_000);
                self.at(ms, Event::Order(Fact::Seen(info)));
                self.at(ms, Event::Turn(n));
            }
            _ => self.miss_falsely(n),
        }
        Ok(())
    }

    fn zone_loses(&mut self, n: usize) {
        let (node, incarnation) = (self.nodes[n].info.key, self.nodes[n].info.incarnation);
        if self.rng.chance(0.7) || !self.nodes[n].up {
            let ms = 30 + self.rng.below(900);
            self.at(ms, Event::Order(Fact::Lost { node, incarnation }));
        }
    }

    fn kill_node(&mut self, n: usize) {
        if !self.nodes[n].up {
            return;
        }
        self.tell("node killed");
        let witnesses = self.witnesses(n);
        let node = &mut self.nodes[n];
        (node.up, node.agent) = (false, false);
        node.flock = node.flock.anew();
        node.unheard.clear();
        self.zone_loses(n);
        // A host that is gone proves nothing: its shepherd does not answer.
        self.miss(witnesses, false);
        let ms = 1_000 + self.rng.below(40_000);
        self.at(ms, Event::Back(n));
    }

    fn kill_agent(&mut self, n: usize) {
        if !self.nodes[n].agent {
            return;
        }
        self.tell("agent killed");
        self.nodes[n].agent = false;
        self.nodes[n].unheard.clear();
        self.zone_loses(n);
        let ms = self.rng.below(25_000);
        self.at(ms, Event::Back(n));
    }

    /// Its agent starts anew; what its shepherds do meanwhile, nobody hears.
    fn back(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        if node.agent {
            return;
        }
        (node.up, node.agent, node.number, node.asked) = (true, true, 0, 0);
        node.info.incarnation += 1;
        let info = node.info.clone();
        self.soon(300, Event::Order(Fact::Seen(info)));
        self.inventory(n);
        self.soon(300, Event::Turn(n));
    }

    /// No more faults, and all are back.
    fn heal(&mut self) {
        self.calm = true;
        self.events.retain(|_, event| !matches!(event, Event::Fault | Event::Ask | Event::Order(Fact::Lost { .. })));
        for n in 0..self.nodes.len() {
            self.nodes[n].cut_ms = 0;
            self.back(n);
            let info = self.nodes[n].info.clone();
            self.at(1_000, Event::Order(Fact::Seen(info.clone())));
            self.nodes[n].asked += 1;
            let (from, incarnation, number) = (info.key, info.incarnation, self.nodes[n].asked);
            let ask = Ask::Drain { node: info.name, drained: false };
            self.at(2_000, Event::Order(Fact::Asked { from, incarnation, number, ask }));
            self.at(2_000, Event::Turn(n));
        }
    }

    fn kill_shepherd(&mut self, n: usize) -> Result<(), String> {
        let jobs: Vec<JobId> = self.nodes[n].flock.jobs().collect();
        if jobs.is_empty() {
            return Ok(());
        }
        self.tell("shepherd killed");
        let job = jobs[self.rng.index(jobs.len())];
        let witnesses: Vec<_> = self.witnesses(n).into_iter().filter(|m| m.attempt.job == job).collect();
        let mut did = Vec::new();
        self.nodes[n].flock.kill(job, &mut did);
        self.miss(witnesses, true);
        self.follow(n, did)
    }

    /// Somebody's view goes on without ranks that live.
    fn miss_falsely(&mut self, n: usize) {
        self.tell("missed falsely");
        let witnesses = self.witnesses(n);
        self.miss(witnesses, false);
    }

    /// Ranks here, by attempt, and who would miss them.
    fn witnesses(&self, n: usize) -> Vec<Missing> {
        let mut all = Vec::new();
        for (attempt, missed) in self.nodes[n].flock.ranks() {
            let sees = |other: &Node| other.agent && other.flock.runs(attempt);
            let root = self.nodes.iter().enumerate().find(|&(other, node)| other != n && sees(node));
            if let Some((root, _)) = root.filter(|_| !missed.is_empty()) {
                all.push(Missing { attempt, at: At::Local(n as u32), ranks: missed, root });
            }
        }
        all
    }

    fn miss(&mut self, witnesses: Vec<Missing>, proven: bool) {
        for Missing { attempt, at, ranks, root } in witnesses {
            if self.rng.chance(0.7) {
                self.report(root, Report::Missed { attempt, at, ranks, proven });
            }
        }
    }

    fn inventory(&mut self, n: usize) {
        let mut did = Vec::new();
        self.nodes[n].flock.inventory(&mut did);
        for did in did {
            if let Did::Report(report) = did {
                self.report(n, report);
            }
        }
    }
}
