//! The shepherds of a node without processes behind them: what they are told and report, as real ones do. For tests and simulators.
//!
//! CM-2. A flock lives as long as its machine: an agent that starts again finds it as it is. Time is that of the machine: leases and ranks
//! end when somebody looks, at the time that was theirs.

use super::words::{
    Ask, At, Attempt, Command, End, Ended, JobId, Key, MissedRank, OnFailure, Post, Report, Wanted,
};
use phalanx_core::Rng;
use std::collections::BTreeMap;

/// What is left to chance.
pub struct Luck<'a> {
    /// Where it comes from.
    pub rng: &'a mut Rng,
    /// Nothing fails any more.
    pub calm: bool,
}

impl Luck<'_> {
    /// Programs and directories are missing now and then.
    fn is_unfit(&mut self) -> bool {
        !self.calm && self.rng.chance(0.01)
    }

    fn lasts_ms(&mut self) -> u64 {
        if self.rng.chance(0.3) { self.rng.below(1_000) } else { self.rng.below(40_000) }
    }

    /// How a rank ends, and whether it should have finalised.
    fn end(&mut self) -> (End, bool) {
        match (self.calm, self.rng.below(12)) {
            (false, 0) => (End::Killed(11), false),
            (false, 1) => (End::Exited(3), true),
            (_, 2) => (End::Exited(4), false),
            _ => (End::Exited(0), false),
        }
    }

    /// Something that people may want of a cluster of so many nodes, called n0, n1 and so on.
    pub fn ask(&mut self, nodes: usize, oversubscribe: bool) -> Ask {
        let rng = &mut *self.rng;
        let user = 1000 + rng.below(2) as u32;
        match rng.below(10) {
            0 => Ask::Drain { node: format!("n{}", rng.index(nodes)), drained: rng.chance(0.5) },
            1 => Ask::End { job: JobId(1 + rng.below(8)), why: "enough".into(), uid: user },
            2 => Ask::Signal { job: JobId(1 + rng.below(8)), signal: 15, uid: user },
            _ => {
                let mut hosts: Vec<(String, Option<u32>)> = Vec::new();
                if rng.chance(0.3) {
                    let first = rng.index(nodes);
                    let count = 1 + rng.index(nodes - first);
                    hosts = (first..first + count).map(|n| (format!("n{n}"), None)).collect();
                }
                let policies = [OnFailure::Abort, OnFailure::Restart, OnFailure::Continue, OnFailure::Respawn];
                Ask::Run(Wanted {
                    name: None,
                    ranks: 1 + rng.below(8) as u32,
                    hosts,
                    per_node: rng.chance(0.2).then_some(2),
                    oversubscribe: oversubscribe && rng.chance(0.5),
                    on_failure: policies[rng.index(4)],
                    spares: rng.below(3) as u32,
                    timeout_ms: rng.chance(0.2).then(|| 1 + rng.below(60_000)),
                    user: (user, user),
                    spec: vec![1; rng.index(50)],
                })
            }
        }
    }
}

/// What shepherds did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Did {
    /// The agent is told.
    Report(Report),
    /// A rank lives from now on.
    Started {
        /// Of which start of which job.
        attempt: Attempt,
        /// Which.
        rank: u32,
        /// 0, or which respawn.
        life: u32,
    },
    /// A rank lives no more.
    Ended {
        /// Of which start of which job.
        attempt: Attempt,
        /// Which.
        rank: u32,
    },
    /// What was told makes no sense here.
    Wrong(String),
}

/// A rank that lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Rank {
    life: u32,
    start: u32,
    ends_ms: u64,
}

/// Ranks of a node, and its shepherd's first task once it is known.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Crew {
    node: Key,
    ranks: Vec<u32>,
    first: Option<u32>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Shepherd {
    attempt: u32,
    /// What was prepared and not started, by its start; and the first task of it.
    prepared: BTreeMap<u32, (Vec<u32>, u32)>,
    /// The first task of each start.
    posts: BTreeMap<u32, u32>,
    /// Killed: what was prepared does not start any more.
    cleared: bool,
    life: u32,
    live: BTreeMap<u32, Rank>,
    ended: Vec<Ended>,
    lease_ms: u64,
    /// Who runs what, as it was at first.
    crews: Vec<Crew>,
}

impl Shepherd {
    fn new(attempt: u32, lease_ms: u64) -> Self {
        let (prepared, posts, live) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (ended, crews) = (Vec::new(), Vec::new());
        Self { attempt, prepared, posts, cleared: false, life: 0, live, ended, lease_ms, crews }
    }

    fn clear(&mut self, job: JobId, did: &mut Vec<Did>) {
        let attempt = Attempt { job, number: self.attempt };
        did.extend(std::mem::take(&mut self.live).into_keys().map(|rank| Did::Ended { attempt, rank }));
        self.cleared = true;
    }
}

fn each(ranks: &[(u32, u32)]) -> Vec<u32> {
    ranks.iter().flat_map(|&(from, to)| from..to).collect()
}

/// All shepherds of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Flock {
    node: Key,
    at: At,
    shepherds: BTreeMap<JobId, Shepherd>,
    /// Numbers of tasks that were given away.
    starts: u32,
    /// Ranks end when their lease is over.
    leases: bool,
}

impl Flock {
    /// Of a node where nothing runs.
    #[must_use]
    pub fn new(node: Key, at: At) -> Self {
        Self { node, at, shepherds: BTreeMap::new(), starts: 0, leases: true }
    }

    /// Something is wrong with it, to see that it is noticed: ranks that hear of nobody live on.
    #[must_use]
    pub fn without_leases(self, without: bool) -> Self {
        Self { leases: !without, ..self }
    }

    /// As a machine that has just started.
    #[must_use]
    pub fn anew(&self) -> Self {
        Self { leases: self.leases, ..Self::new(self.node, self.at) }
    }

    /// Nothing of any job is here.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.shepherds.is_empty()
    }

    /// The jobs that have a shepherd here.
    pub fn jobs(&self) -> impl Iterator<Item = JobId> {
        self.shepherds.keys().copied()
    }

    /// Until when a rank lives here at most, by the machine's clock; with its attempt and life.
    #[must_use]
    pub fn living(&self, job: JobId, rank: u32) -> Option<(Attempt, u32, u64)> {
        let shepherd = self.shepherds.get(&job)?;
        let process = shepherd.live.get(&rank)?;
        let until = if self.leases { shepherd.lease_ms } else { u64::MAX };
        Some((Attempt { job, number: shepherd.attempt }, process.life, until))
    }

    /// How many ranks live here.
    #[must_use]
    pub fn count(&self) -> usize {
        self.shepherds.values().map(|s| s.live.len()).sum()
    }

    /// When something happens by itself.
    #[must_use]
    pub fn due_ms(&self) -> u64 {
        let own = |s: &Shepherd| {
            let lease = if s.cleared || !self.leases { u64::MAX } else { s.lease_ms };
            s.live.values().map(|p| p.ends_ms).fold(lease, u64::min)
        };
        self.shepherds.values().map(own).min().unwrap_or(u64::MAX)
    }

    /// All ranks here may live until then.
    pub fn lease(&mut self, until_ms: u64) {
        self.shepherds.values_mut().for_each(|s| s.lease_ms = s.lease_ms.max(until_ms));
    }

    /// Leases end, and ranks.
    pub fn pass(&mut self, now_ms: u64, luck: &mut Luck<'_>, did: &mut Vec<Did>) {
        for (&job, shepherd) in &mut self.shepherds {
            let attempt = Attempt { job, number: shepherd.attempt };
            if shepherd.lease_ms <= now_ms && !shepherd.cleared && self.leases {
                shepherd.clear(job, did);
                did.push(Did::Report(Report::Cleared { attempt, life: shepherd.life }));
                continue;
            }
            let due = shepherd.live.iter().filter(|(_, p)| p.ends_ms <= now_ms).map(|(&rank, _)| rank);
            let mut ranks = Vec::new();
            for rank in due.collect::<Vec<_>>() {
                let Some(process) = shepherd.live.remove(&rank) else { continue };
                let (end, aborted) = luck.end();
                let ended = Ended { rank, life: process.life, end, aborted };
                did.push(Did::Ended { attempt, rank });
                shepherd.ended.push(ended);
                ranks.push(ended);
            }
            if !ranks.is_empty() {
                did.push(Did::Report(Report::Ended { attempt, ranks }));
            }
        }
    }

    /// What the agent hands on. New shepherds have a lease until `lease_ms`.
    pub fn carry_out(
        &mut self,
        (now_ms, lease_ms): (u64, u64),
        command: &Command,
        luck: &mut Luck<'_>,
        did: &mut Vec<Did>,
    ) {
        match command {
            Command::Prepare { attempt, shares, .. } => {
                let crew = |s: &super::words::Share| Crew { node: s.node, ranks: each(&s.ranks), first: None };
                self.prepare(*attempt, shares.iter().map(crew).collect(), lease_ms, luck, did);
            }
            Command::Go { attempt, life, posts, .. } => self.go(now_ms, *attempt, *life, posts, luck, did),
            Command::Respawn { attempt, life, share, .. } => {
                self.respawn(*attempt, *life, each(&share.ranks), lease_ms, luck, did);
            }
            Command::Signal { attempt, signal } => {
                let meant = self.shepherds.get_mut(&attempt.job).filter(|s| s.attempt == attempt.number);
                if let Some(shepherd) = meant.filter(|_| *signal == 15) {
                    shepherd.live.values_mut().for_each(|process| process.ends_ms = now_ms + 50);
                }
            }
            Command::Stop { attempt, life, .. } => {
                let mut last = 0;
                if let Some(shepherd) = self.shepherds.get_mut(&attempt.job)
                    && shepherd.attempt <= attempt.number
                {
                    shepherd.clear(attempt.job, did);
                    last = shepherd.life;
                }
                did.push(Did::Report(Report::Cleared { attempt: *attempt, life: last.max(*life) }));
            }
            Command::Over { job, .. } => {
                if let Some(mut shepherd) = self.shepherds.remove(job) {
                    shepherd.clear(*job, did);
                }
            }
        }
    }

    fn next_starts(&mut self, count: usize) -> u32 {
        self.starts += count as u32;
        self.starts - count as u32
    }

    fn prepare(
        &mut self,
        attempt: Attempt,
        crews: Vec<Crew>,
        lease_ms: u64,
        luck: &mut Luck<'_>,
        did: &mut Vec<Did>,
    ) {
        if luck.is_unfit() {
            did.push(Did::Report(Report::Unfit { attempt, life: 0, why: "no such program: cg".into() }));
            return;
        }
        let share = crews.iter().find(|c| c.node == self.node).map_or(Vec::new(), |c| c.ranks.clone());
        let first = self.next_starts(share.len());
        let old = self.shepherds.get(&attempt.job);
        if old.is_none_or(|old| old.attempt < attempt.number || old.cleared) {
            if old.is_some_and(|old| !old.live.is_empty()) {
                did.push(Did::Wrong(format!("{attempt:?} is prepared where ranks of another live")));
            }
            let mut shepherd = Shepherd::new(attempt.number, lease_ms);
            shepherd.posts.insert(0, first);
            shepherd.prepared.insert(0, (share, first));
            shepherd.crews = crews;
            self.shepherds.insert(attempt.job, shepherd);
        }
        let Some(&first) = self.shepherds[&attempt.job].posts.get(&0) else { return };
        did.push(Did::Report(Report::Ready { attempt, life: 0, post: Post { at: self.at, first } }));
    }

    fn go(
        &mut self,
        now_ms: u64,
        attempt: Attempt,
        life: u32,
        posts: &[Post],
        luck: &mut Luck<'_>,
        did: &mut Vec<Did>,
    ) {
        let at = self.at;
        let Some(shepherd) = self.shepherds.get_mut(&attempt.job) else { return };
        if shepherd.attempt != attempt.number || shepherd.cleared {
            return;
        }
        let meant = |post: &Post| post.at == at && shepherd.posts.get(&life) == Some(&post.first);
        if !posts.iter().any(meant) {
            return;
        }
        if life == 0 {
            shepherd.crews.iter_mut().zip(posts).for_each(|(crew, post)| crew.first = Some(post.first));
        }
        let Some((share, first)) = shepherd.prepared.remove(&life) else { return };
        for (rank, start) in share.into_iter().zip(first..) {
            shepherd.live.insert(rank, Rank { life, start, ends_ms: now_ms + luck.lasts_ms() });
            did.push(Did::Started { attempt, rank, life });
        }
    }

    fn respawn(
        &mut self,
        attempt: Attempt,
        life: u32,
        ranks: Vec<u32>,
        lease_ms: u64,
        luck: &mut Luck<'_>,
        did: &mut Vec<Did>,
    ) {
        if luck.is_unfit() {
            did.push(Did::Report(Report::Unfit { attempt, life, why: "no such directory: /tmp/x".into() }));
            return;
        }
        let first = self.next_starts(ranks.len());
        let fresh = Shepherd::new(attempt.number, lease_ms);
        let shepherd = self.shepherds.entry(attempt.job).or_insert_with(|| fresh.clone());
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
        let Some(&first) = shepherd.posts.get(&life) else { return };
        did.push(Did::Report(Report::Ready { attempt, life, post: Post { at: self.at, first } }));
    }

    /// What an agent that has started says first.
    pub fn inventory(&self, did: &mut Vec<Did>) {
        let attempts = self.shepherds.iter().map(|(&job, s)| Attempt { job, number: s.attempt }).collect();
        did.push(Did::Report(Report::Inventory { attempts }));
        for (&job, shepherd) in &self.shepherds {
            let attempt = Attempt { job, number: shepherd.attempt };
            if !shepherd.ended.is_empty() {
                did.push(Did::Report(Report::Ended { attempt, ranks: shepherd.ended.clone() }));
            }
            if shepherd.cleared {
                did.push(Did::Report(Report::Cleared { attempt, life: shepherd.life }));
            }
        }
    }

    /// A shepherd dies, and its ranks with it; its agent notices.
    pub fn kill(&mut self, job: JobId, did: &mut Vec<Did>) {
        if let Some(mut dead) = self.shepherds.remove(&job) {
            dead.clear(job, did);
            let attempt = Attempt { job, number: dead.attempt };
            did.push(Did::Report(Report::Cleared { attempt, life: dead.life }));
        }
    }

    /// The ranks that live here, by attempt.
    #[must_use]
    pub fn ranks(&self) -> Vec<(Attempt, Vec<MissedRank>)> {
        let missed = |s: &Shepherd| s.live.iter().map(|(&rank, p)| MissedRank { rank, start: p.start }).collect();
        self.shepherds.iter().map(|(&job, s)| (Attempt { job, number: s.attempt }, missed(s))).collect()
    }

    /// Ranks of this attempt live here.
    #[must_use]
    pub fn runs(&self, attempt: Attempt) -> bool {
        self.shepherds.get(&attempt.job).is_some_and(|s| s.attempt == attempt.number && !s.live.is_empty())
    }

    /// What views here go on without when the shepherds of that node fall: its ranks, as they were when their attempts began.
    #[must_use]
    pub fn misses(&self, node: Key) -> Vec<(Attempt, Vec<MissedRank>)> {
        let mut missed = Vec::new();
        for (&job, shepherd) in self.shepherds.iter().filter(|(_, s)| !s.live.is_empty()) {
            let Some(crew) = shepherd.crews.iter().find(|c| c.node == node) else { continue };
            let Some(first) = crew.first else { continue };
            let ranks = crew.ranks.iter().zip(first..).map(|(&rank, start)| MissedRank { rank, start }).collect();
            missed.push((Attempt { job, number: shepherd.attempt }, ranks));
        }
        missed
    }
}
