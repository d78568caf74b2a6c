//! Every interleaving up to a depth, and random ones far beyond: messages, crashes with restarts, losses of patience,
//! any packet late, lost or overtaken, unconfirmed writes lost (MM-3). The very machine that runs in the daemon.

use super::net::{Collected, Owned};
use super::{Config, Input, Member, Order, Origin, Seat};
use phalanx_core::{Duration, Fingerprint, Instant, Machine, Rng};
use std::collections::{BTreeMap, HashMap};

/// Steps of the exhaustive walk, from a leader with a message on its way.
const DEPTH: usize = 7;
/// Random walks for what lies deeper, and the steps of each.
const WALKS: u64 = 4_000;
const WALK_STEPS: usize = 120;

/// Records that are there, and writes under way with their tokens.
type Disk = (Vec<Vec<u8>>, Vec<(u64, Vec<u8>)>);

#[derive(Clone)]
struct Group {
    now: Instant,
    members: [Order; 3],
    disks: [Disk; 3],
    packets: Vec<(Member, Member, Vec<u8>)>,
    /// What was delivered anywhere, ever.
    history: BTreeMap<u64, Origin>,
    /// Starts so far.
    boots: u64,
    /// How many of each may still happen.
    submits: u8,
    crashes: u8,
    silences: u8,
}

#[derive(Clone, Copy)]
enum Step {
    Submit(u8),
    Arrive(usize),
    Written(u8),
    Silence(u8),
    /// Dies and starts again; its unconfirmed writes are there or not.
    Crash(u8, bool),
}

fn config() -> Config {
    Config { jitter: Duration(1), ..Config::default() }
}

fn seat(m: u8, boot: u64) -> Seat {
    Seat { me: Member(m), members: 3, epoch: 1, boot }
}

impl Group {
    fn new() -> Self {
        let now = Instant(1_000_000_000);
        let members = [0, 1, 2].map(|m| Order::new(config(), seat(m, 1), Rng::new(0, u64::from(m)), now));
        let (disks, packets, history) = (Default::default(), Vec::new(), BTreeMap::new());
        Self { now, members, disks, packets, history, boots: 1, submits: 0, crashes: 0, silences: 1 }
    }

    fn steps(&self) -> Vec<Step> {
        let mut steps: Vec<_> = (0..self.packets.len()).map(Step::Arrive).collect();
        for m in 0..3 {
            if !self.disks[usize::from(m)].1.is_empty() {
                steps.push(Step::Written(m));
            }
            if self.submits > 0 && m < 2 {
                steps.push(Step::Submit(m));
            }
            if self.crashes > 0 {
                steps.extend([Step::Crash(m, false), Step::Crash(m, true)]);
            }
            if self.silences > 0 && self.members[usize::from(m)].leader() != Some(Member(m)) {
                steps.push(Step::Silence(m));
            }
        }
        steps
    }

    /// False when two members disagree.
    fn take(&mut self, step: Step) -> bool {
        let mut out = Collected::default();
        let now = self.now;
        let m = match step {
            Step::Submit(m) => {
                self.submits -= 1;
                self.members[usize::from(m)].handle(now, Input::Submitted { message: &[m] }, &mut out);
                m
            }
            Step::Arrive(i) => {
                let (from, to, packet) = self.packets.remove(i);
                self.members[usize::from(to.0)].handle(now, Input::Received { from, packet: &packet }, &mut out);
                to.0
            }
            Step::Written(m) => {
                let (records, writes) = &mut self.disks[usize::from(m)];
                let (token, record) = writes.remove(0);
                records.push(record);
                self.members[usize::from(m)].handle(now, Input::Persisted { token }, &mut out);
                m
            }
            Step::Silence(m) => {
                self.silences -= 1;
                let member = &mut self.members[usize::from(m)];
                self.now = member.deadline().max(now);
                member.expire(self.now, &mut out);
                m
            }
            Step::Crash(m, written) => {
                self.crashes -= 1;
                self.boots += 1;
                let (records, writes) = &mut self.disks[usize::from(m)];
                let writes = std::mem::take(writes);
                if written {
                    records.extend(writes.into_iter().map(|w| w.1));
                }
                let rng = Rng::new(1, u64::from(m));
                let started = Order::recover(config(), seat(m, self.boots), 0, records.iter(), rng, now);
                self.members[usize::from(m)] = started.expect("whole records");
                m
            }
        };
        let mut agreed = true;
        for output in out.0 {
            match output {
                Owned::Send(to, packet) => self.packets.push((Member(m), to, packet)),
                Owned::Persist(token, _, record) => self.disks[usize::from(m)].1.push((token, record)),
                Owned::Deliver(index, origin, _) => agreed &= *self.history.entry(index).or_insert(origin) == origin,
                _ => {}
            }
        }
        // The network is a set: a packet that is there twice could only arrive twice.
        self.packets.sort_unstable();
        self.packets.dedup();
        agreed && self.history.values().collect::<std::collections::BTreeSet<_>>().len() == self.history.len()
    }

    fn print(&self) -> u64 {
        let mut print = Fingerprint::at(self.now);
        self.members.iter().for_each(|m| m.fingerprint(&mut print));
        print.add(&(self.submits, self.crashes, self.silences)).add(&self.packets).add(&self.history).add(&self.disks);
        std::hash::Hasher::finish(&print)
    }

    /// Member 0 leads, all is quiet, and a message of the leader is on its way.
    fn led() -> Self {
        let mut group = Self::new();
        assert!(group.take(Step::Silence(0)));
        loop {
            let written = (0..3).find(|&m| !group.disks[usize::from(m)].1.is_empty()).map(Step::Written);
            let Some(step) = written.or((!group.packets.is_empty()).then_some(Step::Arrive(0))) else { break };
            assert!(group.take(step));
        }
        assert!(group.members.iter().all(|m| m.leader() == Some(Member(0)) && m.ordered_up_to() == 1));
        group.submits = 1;
        assert!(group.take(Step::Submit(0)));
        group
    }
}

/// Walks all states within `depth` steps that `seen` does not hold, with the steps that were left there. False when
/// two members disagree.
fn walk(group: &Group, depth: usize, seen: &mut HashMap<u64, usize>, delivered: &mut usize) -> bool {
    if seen.insert(group.print(), depth).is_none() {
        *delivered += usize::from(!group.history.is_empty());
    }
    depth == 0
        || group.steps().into_iter().all(|step| {
            let mut after = group.clone();
            after.take(step)
                && (seen.get(&after.print()).is_some_and(|&d| d >= depth - 1)
                    || walk(&after, depth - 1, seen, delivered))
        })
}

#[test]
fn no_interleaving_makes_members_disagree() {
    let (mut seen, mut delivered) = (HashMap::new(), 0);
    let start = Group { submits: 1, crashes: 1, silences: 1, ..Group::led() };
    assert!(walk(&start, DEPTH, &mut seen, &mut delivered), "disagreement");
    assert!(seen.len() > 10_000 && delivered > 100, "{} states, {delivered} with a delivery", seen.len());
}

/// One walk that takes any step at any time.
fn wander(mut group: Group, seed: u64) -> Result<Group, usize> {
    let mut rng = Rng::new(seed, 9);
    for n in 0..WALK_STEPS {
        let steps = group.steps();
        if steps.is_empty() {
            break;
        }
        // Packets outnumber all else: writes get their chance too.
        let writes = || steps.iter().filter(|s| matches!(s, Step::Written(_)));
        let step = match writes().count() {
            0 => steps[rng.index(steps.len())],
            _ if rng.chance(0.7) => steps[rng.index(steps.len())],
            n => *writes().nth(rng.index(n)).expect("counted"),
        };
        if !group.take(step) {
            return Err(n);
        }
    }
    Ok(group)
}

#[test]
fn no_long_walk_makes_members_disagree() {
    let start = Group { submits: 6, crashes: 3, silences: 8, ..Group::led() };
    let mut ballots = 0;
    for seed in 0..WALKS {
        let end = wander(start.clone(), seed).unwrap_or_else(|n| panic!("seed {seed}: disagreement at step {n}"));
        ballots =
            ballots.max(end.members.iter().filter(|m| m.leader().is_some()).map(Order::ballot).max().unwrap_or(0));
    }
    assert!(ballots > 3, "leaders changed in the walks: {ballots}");
}

/// The explorers see a disagreement when there is one: here somebody has delivered another message at each index.
#[test]
fn a_planted_disagreement_is_found() {
    let history = (1..9).map(|i| (i, Origin { member: Member(2), boot: 9, seq: i })).collect();
    let start = Group { submits: 1, history, ..Group::led() };
    assert!(!walk(&start, DEPTH, &mut HashMap::new(), &mut 0));
    assert!((0..100).any(|seed| wander(start.clone(), seed).is_err()));
}
