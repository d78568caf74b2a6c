//! What people are told of nodes and jobs.

use super::job::{Job, Phase, RankState};
use super::log::{Line, Log};
use super::summed::Fixed;
use super::{JobId, State};
use crate::manager::words::{End, OnFailure};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Jobs that are over and still known. Past that, the first that was asked for is forgotten.
pub const OVER_MAX: usize = 1_000;
/// The most nodes of a job that a list of jobs names.
pub const NODES_SHOWN: usize = 64;
/// The most nodes, and pieces of ranks that ended alike, that are kept of a job that is over.
const PIECES_MAX: usize = 4096;

/// How far a job is, as people see it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum RunPhase {
    /// It waits for free slots.
    Queued,
    /// Its nodes look whether they can run it.
    Preparing,
    /// It runs.
    Running,
    /// What is left of it is ended.
    Stopping,
    /// It has ended.
    Over,
}

/// A job, as people see it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Shown {
    /// Its number.
    pub number: u64,
    /// What it is called.
    pub name: String,
    /// How far it is.
    pub state: RunPhase,
    /// Whose it is.
    pub user: u32,
    /// How many ranks it has.
    pub ranks: u32,
    /// Which start of it this is, from 0.
    pub attempt: u32,
    /// What becomes of it when a part of it dies.
    pub on_failure: OnFailure,
    /// Nodes that run it, or ran it last.
    pub nodes: Vec<String>,
    /// What it ended with.
    pub status: Option<i32>,
    /// Why it waits, or why it ended.
    pub why: String,
    /// When it was asked for, in milliseconds since 1970.
    pub asked_ms: u64,
    /// When it ended.
    pub over_ms: Option<u64>,
}

/// A rank, as people see it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct ShownRank {
    /// Which.
    pub rank: u32,
    /// Where it runs, or ran last.
    pub node: String,
    /// How often it was started again alone.
    pub life: u32,
    /// How it ended.
    pub end: Option<End>,
}

/// A job, its ranks, and what happened to it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct RunDetail {
    /// The job.
    pub run: Shown,
    /// Its ranks; of a large job that is over maybe not all.
    pub all_ranks: Vec<ShownRank>,
    /// What happened to it.
    pub log: Vec<Line>,
}

/// A node and its slots, as people see them.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Slots {
    /// Its name.
    pub node: String,
    /// Ranks that it takes.
    pub slots: u32,
    /// Slots that jobs hold.
    pub used: u32,
    /// It gets no new ranks.
    pub drained: bool,
    /// It is there.
    pub alive: bool,
}

/// Neighbouring ranks that ended alike on one node.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
struct Piece {
    from: u32,
    to: u32,
    node: u32,
    life: u32,
    end: Option<End>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
struct Remains {
    run: Shown,
    pieces: Vec<Piece>,
    log: Log,
}

/// A job that is over.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(super) struct Old(Fixed<Remains>);

impl Old {
    pub(super) fn user(&self) -> u32 {
        self.0.run.user
    }
}

impl State {
    /// All jobs, by number: those that live, and the last ones that are over. Each with at most [`NODES_SHOWN`] of its nodes.
    #[must_use]
    pub fn runs(&self) -> Vec<Shown> {
        let over = self.over.iter().map(|(id, old)| (*id, Shown { nodes: few(&old.0.run.nodes), ..old.0.run.clone() }));
        let live = self.jobs.iter().map(|(id, job)| (*id, shown(job, NODES_SHOWN)));
        over.chain(live).collect::<BTreeMap<JobId, Shown>>().into_values().collect()
    }

    /// One job, by name or number: of those with that name one that lives, or else the last one.
    #[must_use]
    pub fn run(&self, name: &str) -> Option<RunDetail> {
        let number = || name.parse().ok().map(JobId);
        let live = self.index.runs.get(name).copied().or_else(number).and_then(|id| self.jobs.get(&id));
        if let Some(job) = live {
            return Some(RunDetail { run: shown(job, usize::MAX), all_ranks: ranks(job), log: job.log.lines() });
        }
        let by_name = self.over.iter().rev().find(|(_, old)| old.0.run.name == name).map(|(_, old)| old);
        let old = &*by_name.or_else(|| self.over.get(&number()?))?.0;
        let all_ranks = old.pieces.iter().flat_map(|piece| {
            let node = old.run.nodes.get(piece.node as usize).cloned().unwrap_or_default();
            (piece.from..piece.to).map(move |rank| ShownRank {
                rank,
                node: node.clone(),
                life: piece.life,
                end: piece.end,
            })
        });
        Some(RunDetail { run: old.run.clone(), all_ranks: all_ranks.collect(), log: old.log.lines() })
    }

    /// The job of that name or number that lives.
    #[must_use]
    pub fn live_run(&self, name: &str) -> Option<JobId> {
        let number = || name.parse().ok().map(JobId);
        self.index.runs.get(name).copied().or_else(number).filter(|id| self.jobs.get(id).is_some())
    }

    /// All nodes by name, and what they are taken up by.
    #[must_use]
    pub fn slots(&self) -> Vec<Slots> {
        let keys = self.index.names.values().flatten();
        let slots = keys.filter_map(|key| self.nodes.get(key)).map(|node| Slots {
            node: node.info.name.clone(),
            slots: node.info.slots,
            used: node.used,
            drained: node.drained,
            alive: node.lost_ms.is_none() && node.known,
        });
        slots.collect()
    }

    /// Nobody needs to do anything for a job any more: it is kept for those who ask.
    pub(super) fn bury(&mut self, job: Job) {
        let mut run = shown(&job, PIECES_MAX);
        run.over_ms = Some(self.now_ms);
        run.status = Some(job.status);
        // Nodes of the list by their place in the crew.
        let listed = job.crew.iter().filter(|(_, member)| !member.ranks.is_empty()).zip(0..);
        let listed: BTreeMap<u32, u32> = listed.map(|((&place, _), at)| (place, at)).collect();
        let mut pieces: Vec<Piece> = Vec::new();
        for (&rank, r) in job.ranks.iter() {
            let node = listed.get(&r.member).copied().unwrap_or_default();
            let piece = Piece { from: rank, to: rank + 1, node, life: r.again, end: ended(r.state) };
            let last = pieces.last_mut().filter(|last| last.to == rank);
            match last.filter(|last| (last.node, last.life, last.end) == (piece.node, piece.life, piece.end)) {
                Some(last) => last.to += 1,
                None => pieces.push(piece),
            }
            if pieces.len() > PIECES_MAX {
                pieces.pop();
                break;
            }
        }
        self.over.insert(job.id, Old(Remains { run, pieces, log: job.log }.into()));
        while self.over.len() > OVER_MAX {
            let Some(first) = self.over.keys().next().copied() else { break };
            self.over.remove(&first);
        }
    }
}

fn shown(job: &Job, nodes: usize) -> Shown {
    Shown {
        number: job.id.0,
        name: job.name.clone(),
        state: match job.phase {
            Phase::Queued => RunPhase::Queued,
            Phase::Preparing { .. } => RunPhase::Preparing,
            Phase::Running => RunPhase::Running,
            Phase::Stopping { .. } => RunPhase::Stopping,
            Phase::Over => RunPhase::Over,
        },
        user: job.wanted.user.0,
        ranks: job.wanted.ranks,
        attempt: job.attempt,
        on_failure: job.policy(),
        nodes: job.crew.values().filter(|m| !m.ranks.is_empty()).take(nodes).map(|m| m.name.clone()).collect(),
        status: None,
        why: job.why.clone(),
        asked_ms: job.asked_ms,
        over_ms: None,
    }
}

fn few(nodes: &[String]) -> Vec<String> {
    nodes[..nodes.len().min(NODES_SHOWN)].to_vec()
}

fn ended(state: RankState) -> Option<End> {
    match state {
        RankState::Live => None,
        RankState::Ended { end, .. } => Some(end),
    }
}

fn ranks(job: &Job) -> Vec<ShownRank> {
    let name = |place: u32| job.crew.get(&place).map_or_else(String::new, |member| member.name.clone());
    let one = |(&rank, r): (&u32, &super::job::Rank)| {
        let (node, end) = (name(r.member), ended(r.state));
        ShownRank { rank, node, life: r.again, end }
    };
    job.ranks.iter().map(one).collect()
}
