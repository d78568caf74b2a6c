//! What is known of a job that lives.

use super::log::Log;
use super::ranges::{self, Ranges};
use super::summed::{Fixed, Summed};
use crate::manager::words::{Attempt, End, JobId, Key, OnFailure, Post, Share, Wanted};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// What may be due.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Alarm {
    /// The lease of a node that is gone is over.
    Lease(Key),
    /// A job's time is over, or that of its preparation.
    Job(JobId),
}

/// How far a job is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(super) enum Phase {
    /// It waits for slots.
    Queued,
    /// Its nodes look whether they can run it; until then.
    Preparing {
        /// When that has taken too long.
        until_ms: u64,
    },
    /// Its ranks were told to start.
    Running,
    /// What is left of it is killed.
    Stopping {
        /// To start it again.
        again: bool,
    },
    /// It is over, and about to leave the table.
    Over,
}

/// A rank of the attempt.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(super) struct Rank {
    /// Where: its place in the crew.
    pub(super) member: u32,
    /// Which start: 0, or that of the `Respawn`.
    pub(super) life: u32,
    /// How often it was started again alone.
    pub(super) again: u32,
    pub(super) state: RankState,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(super) enum RankState {
    /// It may be alive, or was not told to start yet.
    Live,
    /// It is dead for sure.
    Ended {
        end: End,
        /// It was not meant to end so.
        failed: bool,
    },
}

/// A node that takes part in the attempt.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(super) struct Member {
    pub(super) node: Key,
    pub(super) name: String,
    /// Its ranks, dead ones too; none at a home that runs nothing.
    pub(super) ranks: Ranges,
    /// How many of them may be alive.
    pub(super) live: u32,
    /// Slots that the job holds there for them.
    pub(super) slots: u32,
    /// The last start that it was told of.
    pub(super) life: u32,
    /// Where its shepherd is.
    pub(super) post: Option<Post>,
    /// Starts of which it has not said that they are ready.
    pub(super) pending: BTreeMap<u32, Ranges>,
    /// For each start that is ready: the first start of a task there, and whose tasks they are.
    pub(super) tasks: BTreeMap<u32, (u32, Ranges)>,
    /// It was told alone to kill what it has.
    pub(super) stopped: bool,
}

impl Member {
    pub(super) fn new(node: Key, name: String, ranks: Ranges) -> Self {
        let pending = BTreeMap::from([(0, ranks.clone())]);
        let slots = ranges::count(&ranks);
        Self {
            node,
            name,
            ranks,
            live: slots,
            slots,
            life: 0,
            post: None,
            pending,
            tasks: BTreeMap::new(),
            stopped: false,
        }
    }

    /// The start of a rank's task in its view, when it is known.
    pub(super) fn task(&self, rank: u32, life: u32) -> Option<u32> {
        let (first, ranks) = self.tasks.get(&life)?;
        Some(first + ranges::place(ranks, rank)?)
    }

    pub(super) fn share(&self) -> Share {
        Share { node: self.node, name: self.name.clone(), ranks: self.ranks.clone() }
    }
}

/// A job that lives.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) id: JobId,
    pub(super) name: String,
    pub(super) wanted: Fixed<Wanted>,
    /// The bytes of what is wanted.
    pub(super) weight: u64,
    /// Where the console is.
    pub(super) home: Key,
    /// Nobody is there any more who would hear its output.
    pub(super) deserted: bool,
    pub(super) asked_ms: u64,
    /// When its time is over.
    pub(super) deadline_ms: Option<u64>,
    pub(super) phase: Phase,
    /// Which attempt: grows each time that it is placed.
    pub(super) attempt: u32,
    /// How often its ranks were told to start.
    pub(super) starts: u32,
    /// Nodes of the attempt, in the order of their ranks; then home, when it runs nothing.
    pub(super) crew: Summed<u32, Member>,
    /// The place of each in the crew.
    pub(super) places: Summed<Key, u32>,
    /// Nodes of earlier attempts that were not told that it is over for them.
    pub(super) former: Summed<Key, ()>,
    pub(super) ranks: Summed<u32, Rank>,
    /// Ranks that may be alive.
    pub(super) live: u32,
    /// Members that have not said `Ready` yet.
    pub(super) unready: u32,
    /// Ranks that are to start again alone, and have no place yet.
    pub(super) waiting: Summed<u32, ()>,
    /// The last start of ranks alone.
    pub(super) lives: u32,
    /// Slots that are kept free for them.
    pub(super) spares: Summed<Key, u32>,
    /// Nodes that said that they cannot run it.
    pub(super) unfit: BTreeSet<Key>,
    /// Signals that somebody wanted for it: a bit each.
    pub(super) signals: u64,
    /// What it ends with when it was stopped.
    pub(super) status: i32,
    /// Why it waits, or was stopped.
    pub(super) why: String,
    pub(super) log: Log,
}

impl Job {
    pub(super) fn current(&self) -> Attempt {
        Attempt { job: self.id, number: self.attempt }
    }

    pub(super) fn policy(&self) -> OnFailure {
        self.wanted.on_failure
    }

    pub(super) fn due_ms(&self) -> Option<u64> {
        let prepared = match self.phase {
            Phase::Preparing { until_ms } => Some(until_ms),
            // What is stopped already cannot be stopped for its time.
            Phase::Stopping { again: false } | Phase::Over => return None,
            _ => None,
        };
        prepared.into_iter().chain(self.deadline_ms).min()
    }

    pub(super) fn place_of(&self, node: &Key) -> Option<u32> {
        self.places.get(node).copied()
    }

    pub(super) fn member(&self, node: &Key) -> Option<&Member> {
        self.crew.get(&self.place_of(node)?)
    }

    pub(super) fn enter(&mut self, member: Member) -> u32 {
        let place = self.crew.len() as u32;
        self.places.insert(member.node, place);
        self.crew.insert(place, member);
        place
    }

    /// A rank is dead for sure.
    pub(super) fn end(&mut self, rank: u32, end: End, failed: bool) {
        let ended = self.ranks.edit(&rank, |r| {
            let was_live = std::mem::replace(&mut r.state, RankState::Ended { end, failed }) == RankState::Live;
            was_live.then_some(r.member)
        });
        if let Some(place) = ended.flatten() {
            self.live -= 1;
            self.crew.edit(&place, |member| member.live -= 1);
        }
    }

    /// Ranks of a member that may be alive, of starts up to `life`.
    pub(super) fn alive_at(&self, place: u32, life: u32) -> Vec<u32> {
        let Some(member) = self.crew.get(&place).filter(|member| member.live > 0) else { return Vec::new() };
        let alive = |rank: &u32| {
            self.ranks.get(rank).is_some_and(|r| r.state == RankState::Live && r.life <= life && r.member == place)
        };
        ranges::each(&member.ranks).filter(alive).collect()
    }

    /// The largest status of all ranks that have ended; of those that were not lost on the way when others are there.
    pub(super) fn largest_status(&self) -> i32 {
        let ends = |with_failed: bool| {
            let of = move |rank: &Rank| match rank.state {
                RankState::Ended { end, failed } if with_failed || !failed => Some(end.status()),
                _ => None,
            };
            self.ranks.values().filter_map(of).max()
        };
        let survivors = if self.policy() == OnFailure::Continue { ends(false) } else { None };
        survivors.or_else(|| ends(true)).unwrap_or_default()
    }

    /// All nodes that have, or had, something of it: ascending.
    pub(super) fn everywhere(&self) -> Vec<Key> {
        let all: BTreeSet<Key> = self.places.keys().chain(self.former.keys()).copied().chain([self.home]).collect();
        all.into_iter().collect()
    }
}
