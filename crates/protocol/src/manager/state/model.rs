//! A cluster around the state: agents that carry out commands late, shepherds, ranks, a zone that is sometimes wrong, and all that can die.
//!
//! Safety is seen from outside, from the processes that really live: no rank has two, no node more than its slots. Liveness after healing:
//! every job is over, no slot is held, nothing of any job is left anywhere.

use super::checks::Watch;
use super::{Decision, Entry, Fact, LEASE_MS, NodeInfo, State};
use crate::manager::words::{
    Answer, Ask, At, Attempt, Command, End, Ended, JobId, Key, MissedRank, OnFailure, Post, Report, Wanted,
};
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

/// A process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Process {
    life: u32,
    start: u32,
    ends_ms: u64,
}

#[derive(Clone, Debug)]
struct Shepherd {
    attempt: u32,
    /// What was prepared and not started, by its start; and the first task of it.
    prepared: BTreeMap<u32, (Vec<u32>, u32)>,
    /// The first task of each start.
    posts: BTreeMap<u32, u32>,
    /// Killed: what was prepared does not start any more.
    cleared: bool,
    life: u32,
    live: BTreeMap<u32, Process>,
    ended: Vec<Ended>,
    lease_ms: u64,
}

impl Shepherd {
    fn new(attempt: u32, lease_ms: u64) -> Self {
        let (prepared, posts, live) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { attempt, prepared, posts, cleared: false, life: 0, live, ended: Vec::new(), lease_ms }
    }
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
    shepherds: BTreeMap<JobId, Shepherd>,
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
    starts: u32,
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
                shepherds: BTreeMap::new(),
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
            starts: 0,
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
                Event::Fault => self.fault(),
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
        self.nodes.iter().map(|n| (n.info.name.clone(), n.shepherds.keys().copied().collect())).collect()
    }

    fn is_quiet(&self) -> bool {
        let over = self.jobs.keys().all(|id| self.state.jobs.get(id).is_none());
        let empty = self.nodes.iter().all(|n| n.shepherds.is_empty() && n.inbox.is_empty() && n.unheard.is_empty());
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
                    self.regroup(&seats);
                }
                Decision::Grow { with } => {
                    self.tell("grown");
                    let seats: Vec<Key> = self.state.seats().iter().copied().chain(with).collect();
                    self.regroup(&seats);
                }
            }
        }
        Ok(())
    }

    fn regroup(&mut self, seats: &[Key]) {
        let epoch = self.state.epoch() + 1;
        self.state.grouped(epoch, seats);
        self.twin.grouped(epoch, seats);
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
                self.soon(400, Event::Order(Fact::Reported { from, incarnation, number, report }));
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
        self.time_passes(n, reached && !lost);
        if reached {
            // One command at a time, or several.
            while self.rng.chance(0.7) {
                let Some(command) = self.nodes[n].inbox.pop_front() else { break };
                // The agent may die between saying that it has a command and carrying it out.
                if !self.calm && self.rng.chance(0.005) {
                    self.kill_agent(n);
                    break;
                }
                self.carry_out(n, command)?;
            }
            self.say(n);
        }
        if !self.nodes[n].inbox.is_empty() || !self.nodes[n].unheard.is_empty() || !self.nodes[n].shepherds.is_empty() {
            let later = Event::Turn(n);
            let known = self.events.iter().any(|((at, _), event)| *at > now_ms && *event == later);
            if !known {
                self.at(if self.calm { 2_000 } else { 500 }, later);
            }
        }
        Ok(())
    }

    /// Leases end, and ranks.
    fn time_passes(&mut self, n: usize, prolong: bool) {
        let now_ms = self.now_ms;
        if !self.nodes[n].up {
            return;
        }
        let mut reports = Vec::new();
        let (agent, no_leases) = (self.nodes[n].agent, self.spoil.no_leases);
        for (&job, shepherd) in &mut self.nodes[n].shepherds {
            let attempt = Attempt { job, number: shepherd.attempt };
            if shepherd.lease_ms <= now_ms && !shepherd.cleared && !no_leases {
                shepherd.live.clear();
                shepherd.cleared = true;
                reports.push(Report::Cleared { attempt, life: shepherd.life });
                continue;
            }
            if prolong {
                shepherd.lease_ms = now_ms + LEASE_MS;
            }
            let due: Vec<u32> =
                shepherd.live.iter().filter(|(_, p)| p.ends_ms <= now_ms).map(|(&rank, _)| rank).collect();
            let mut ranks = Vec::new();
            for rank in due {
                let Some(process) = shepherd.live.remove(&rank) else { continue };
                let (end, aborted) = match (self.calm, self.rng.below(12)) {
                    (false, 0) => (End::Killed(11), false),
                    (false, 1) => (End::Exited(3), true),
                    (_, 2) => (End::Exited(4), false),
                    _ => (End::Exited(0), false),
                };
                let ended = Ended { rank, life: process.life, end, aborted };
                shepherd.ended.push(ended);
                ranks.push(ended);
            }
            if !ranks.is_empty() {
                reports.push(Report::Ended { attempt, ranks });
            }
        }
        if agent {
            reports.into_iter().for_each(|report| self.report(n, report));
        }
    }

    fn carry_out(&mut self, n: usize, command: Command) -> Result<(), String> {
        let me = self.nodes[n].info.key;
        self.trace(|| format!("n{n} is told {command:?}"));
        let lease_ms = self.now_ms + LEASE_MS;
        let unfit = !self.calm && self.rng.chance(0.01);
        let now_ms = self.now_ms;
        match command {
            Command::Prepare { attempt, shares, .. } => {
                let share = shares.iter().find(|share| share.node == me);
                let share: Vec<u32> = share.map_or(Vec::new(), |s| s.ranks.iter().flat_map(|&(a, b)| a..b).collect());
                if unfit {
                    self.report(n, Report::Unfit { attempt, life: 0, why: "no such program: cg".into() });
                    return Ok(());
                }
                let count = share.len() as u32;
                self.starts += count;
                let first = self.starts - count;
                let old = self.nodes[n].shepherds.get(&attempt.job);
                if old.is_none_or(|old| old.attempt < attempt.number || old.cleared) {
                    if old.is_some_and(|old| !old.live.is_empty()) {
                        return Err(format!("{attempt:?} is prepared where ranks of another live"));
                    }
                    let mut shepherd = Shepherd::new(attempt.number, lease_ms);
                    shepherd.posts.insert(0, first);
                    shepherd.prepared.insert(0, (share, first));
                    self.nodes[n].shepherds.insert(attempt.job, shepherd);
                }
                let Some(&first) = self.nodes[n].shepherds[&attempt.job].posts.get(&0) else { return Ok(()) };
                self.report(n, Report::Ready { attempt, life: 0, post: Post { at: At::Local(n as u32), first } });
            }
            Command::Go { attempt, life, posts, .. } => {
                let Some(shepherd) = self.nodes[n].shepherds.get_mut(&attempt.job) else { return Ok(()) };
                if shepherd.attempt != attempt.number || shepherd.cleared {
                    return Ok(());
                }
                let meant =
                    |post: &Post| post.at == At::Local(n as u32) && shepherd.posts.get(&life) == Some(&post.first);
                if !posts.iter().any(meant) {
                    return Ok(());
                }
                let Some((share, first)) = shepherd.prepared.remove(&life) else { return Ok(()) };
                if life > 0 {
                    self.tell("respawned");
                }
                for (rank, start) in share.into_iter().zip(first..) {
                    self.start(n, attempt, rank, life, start)?;
                }
            }
            Command::Respawn { attempt, life, share, .. } => {
                if unfit {
                    self.report(n, Report::Unfit { attempt, life, why: "no such directory: /tmp/x".into() });
                    return Ok(());
                }
                let ranks: Vec<u32> = share.ranks.iter().flat_map(|&(a, b)| a..b).collect();
                let first = self.starts;
                self.starts += ranks.len() as u32;
                let fresh = Shepherd::new(attempt.number, lease_ms);
                let shepherd = self.nodes[n].shepherds.entry(attempt.job).or_insert_with(|| fresh.clone());
                if shepherd.attempt < attempt.number {
                    *shepherd = fresh;
                }
                // An agent that has started anew is told again.
                if shepherd.life < life {
                    shepherd.life = life;
                    if std::mem::take(&mut shepherd.cleared) {
                        shepherd.lease_ms = lease_ms;
                        shepherd.prepared.clear();
                    }
                    shepherd.posts.insert(life, first);
                    shepherd.prepared.insert(life, (ranks, first));
                }
                let Some(&first) = shepherd.posts.get(&life) else { return Ok(()) };
                self.report(n, Report::Ready { attempt, life, post: Post { at: At::Local(n as u32), first } });
            }
            Command::Signal { attempt, signal } => {
                let Some(shepherd) = self.nodes[n].shepherds.get_mut(&attempt.job) else { return Ok(()) };
                if signal == 15 && shepherd.attempt == attempt.number {
                    shepherd.live.values_mut().for_each(|process| process.ends_ms = now_ms + 50);
                }
            }
            Command::Stop { attempt, life, .. } => {
                let mut last = 0;
                if let Some(shepherd) = self.nodes[n].shepherds.get_mut(&attempt.job)
                    && shepherd.attempt <= attempt.number
                {
                    shepherd.live.clear();
                    shepherd.cleared = true;
                    last = shepherd.life;
                }
                self.report(n, Report::Cleared { attempt, life: last.max(life) });
            }
            Command::Over { job, .. } => {
                let gone = self.nodes[n].shepherds.remove(&job);
                if gone.is_some_and(|shepherd| !shepherd.live.is_empty()) {
                    self.tell("killed at the end");
                }
            }
        }
        Ok(())
    }

    /// A process starts: it must be the only one of its rank, and have a slot.
    fn start(&mut self, n: usize, attempt: Attempt, rank: u32, life: u32, start: u32) -> Result<(), String> {
        let job = attempt.job;
        for node in self.nodes.iter().filter(|node| node.up) {
            let Some(shepherd) = node.shepherds.get(&job) else { continue };
            // A lease ends by itself, whenever somebody looks.
            let leased = shepherd.lease_ms > self.now_ms || self.spoil.no_leases;
            if let Some(process) = shepherd.live.get(&rank).filter(|_| leased) {
                let (name, other, here) = (&node.info.name, shepherd.attempt, &self.nodes[n].info.name);
                return Err(format!(
                    "{job:?} rank {rank} lives twice: attempt {other} life {} on {name}, attempt {} life {life} on {here}",
                    process.life, attempt.number
                ));
            }
        }
        let lasts = if self.rng.chance(0.3) { self.rng.below(1_000) } else { self.rng.below(40_000) };
        let process = Process { life, start, ends_ms: self.now_ms + lasts };
        let Some(shepherd) = self.nodes[n].shepherds.get_mut(&job) else { return Ok(()) };
        shepherd.live.insert(rank, process);
        self.tell("started");
        let live: usize = self.nodes[n].shepherds.values().map(|shepherd| shepherd.live.len()).sum();
        if !self.oversubscribe && live > self.nodes[n].info.slots as usize {
            return Err(format!("{live} ranks live on {:?}", self.nodes[n].info));
        }
        Ok(())
    }

    fn ask(&mut self) {
        let n = self.rng.index(self.nodes.len());
        let user = 1000 + self.rng.below(2) as u32;
        let ask = match self.rng.below(10) {
            0 => Ask::Drain { node: format!("n{}", self.rng.index(self.nodes.len())), drained: self.rng.chance(0.5) },
            1 => Ask::End { job: JobId(1 + self.rng.below(8)), why: "enough".into(), uid: user },
            2 => Ask::Signal { job: JobId(1 + self.rng.below(8)), signal: 15, uid: user },
            _ => {
                let mut hosts: Vec<(String, Option<u32>)> = Vec::new();
                if self.rng.chance(0.3) {
                    let first = self.rng.index(self.nodes.len());
                    let count = 1 + self.rng.index(self.nodes.len() - first);
                    hosts = (first..first + count).map(|n| (format!("n{n}"), None)).collect();
                }
                let policies = [OnFailure::Abort, OnFailure::Restart, OnFailure::Continue, OnFailure::Respawn];
                Ask::Run(Wanted {
                    name: None,
                    ranks: 1 + self.rng.below(8) as u32,
                    hosts,
                    per_node: self.rng.chance(0.2).then_some(2),
                    oversubscribe: self.oversubscribe && self.rng.chance(0.5),
                    on_failure: policies[self.rng.index(4)],
                    spares: self.rng.below(3) as u32,
                    timeout_ms: self.rng.chance(0.2).then(|| 1 + self.rng.below(60_000)),
                    user: (user, user),
                    spec: vec![1; self.rng.index(50)],
                })
            }
        };
        let node = &mut self.nodes[n];
        node.asked += 1;
        let (from, incarnation, number) = (node.info.key, node.info.incarnation, node.asked);
        for _ in 0..1 + self.rng.index(3) {
            let ask = ask.clone();
            self.soon(600, Event::Order(Fact::Asked { from, incarnation, number, ask }));
        }
    }

    fn fault(&mut self) {
        let n = self.rng.index(self.nodes.len());
        match self.rng.below(9) {
            0 | 1 => self.kill_node(n),
            2 | 3 => self.kill_agent(n),
            4 | 5 => self.kill_shepherd(n),
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
        node.shepherds.clear();
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

    fn kill_shepherd(&mut self, n: usize) {
        let jobs: Vec<JobId> = self.nodes[n].shepherds.keys().copied().collect();
        if jobs.is_empty() {
            return;
        }
        self.tell("shepherd killed");
        let job = jobs[self.rng.index(jobs.len())];
        let witnesses: Vec<_> = self.witnesses(n).into_iter().filter(|(attempt, ..)| attempt.job == job).collect();
        let Some(dead) = self.nodes[n].shepherds.remove(&job) else { return };
        self.miss(witnesses, true);
        if self.nodes[n].agent {
            self.report(n, Report::Cleared { attempt: Attempt { job, number: dead.attempt }, life: dead.life });
        }
    }

    /// Somebody's view goes on without ranks that live.
    fn miss_falsely(&mut self, n: usize) {
        self.tell("missed falsely");
        let witnesses = self.witnesses(n);
        self.miss(witnesses, false);
    }

    /// Ranks here, by attempt, and who would miss them.
    fn witnesses(&self, n: usize) -> Vec<(Attempt, Vec<MissedRank>, usize)> {
        let mut all = Vec::new();
        for (&job, shepherd) in &self.nodes[n].shepherds {
            let missed = shepherd.live.iter().map(|(&rank, process)| MissedRank { rank, start: process.start });
            let missed: Vec<MissedRank> = missed.collect();
            let sees = |other: &&Node| {
                other.agent
                    && other.shepherds.get(&job).is_some_and(|s| s.attempt == shepherd.attempt && !s.live.is_empty())
            };
            let root = self.nodes.iter().enumerate().find(|(other, node)| *other != n && sees(node));
            if let Some((root, _)) = root.filter(|_| !missed.is_empty()) {
                all.push((Attempt { job, number: shepherd.attempt }, missed, root));
            }
        }
        all
    }

    fn miss(&mut self, witnesses: Vec<(Attempt, Vec<MissedRank>, usize)>, proven: bool) {
        for (attempt, ranks, root) in witnesses {
            if self.rng.chance(0.7) {
                self.report(root, Report::Missed { attempt, ranks, proven });
            }
        }
    }

    fn inventory(&mut self, n: usize) {
        let attempts =
            self.nodes[n].shepherds.iter().map(|(&job, shepherd)| Attempt { job, number: shepherd.attempt }).collect();
        self.report(n, Report::Inventory { attempts });
        for (job, shepherd) in self.nodes[n].shepherds.clone() {
            let attempt = Attempt { job, number: shepherd.attempt };
            if !shepherd.ended.is_empty() {
                self.report(n, Report::Ended { attempt, ranks: shepherd.ended });
            }
            if shepherd.cleared {
                self.report(n, Report::Cleared { attempt, life: shepherd.life });
            }
        }
    }
}
