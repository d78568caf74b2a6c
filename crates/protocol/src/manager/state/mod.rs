//! Nodes, slots, queue and jobs: what the replicas agree on.
//!
//! CM-4, CM-5, 004 §2: deterministic. Everything it knows comes as an [`Entry`] of the one order; what is to be done comes out as [`Decision`]s,
//! the same at all replicas. Its only clock is the largest time that an entry brought.
//!
//! What holds at any time, whatever is reported, lost or said twice (`checks`):
//! - A rank has at most one start that may be alive: it starts again only after proof that it is dead, or after its node's lease.
//! - No node has more ranks than slots, but for jobs that were asked for with `oversubscribe`.
//! - A job that was taken ends, once its nodes are back or their leases over: it never just disappears.
//!
//! | file | idea |
//! |---|---|
//! | `facts` | what goes in, what comes out |
//! | `summed` | a digest that is there at any time |
//! | `nodes` | who is there, and what each is taken up by |
//! | `place` | which nodes take which ranks |
//! | `queue` | whose turn it is |
//! | `job` | what is known of a job that lives |
//! | `life` | how a job begins and ends |
//! | `reports` | what agents say, and what it changes |
//! | `policy` | what becomes of a job when a part of it dies |
//! | `mend` | ranks that start again alone |
//! | `asks` | what people want |
//! | `seats` | the replicas, and when one moves |
//! | `show` | what people are told |
//! | `log` | what happened to a job and why |

mod asks;
mod facts;
mod job;
mod life;
mod log;
mod mend;
mod nodes;
mod place;
mod policy;
mod queue;
mod ranges;
mod reports;
mod seats;
mod show;
mod summed;

#[cfg(test)]
mod checks;
#[cfg(test)]
mod model;
#[cfg(test)]
mod tests;

pub use asks::NAME_MAX;
pub use facts::{Decision, Entry, Fact, NodeInfo, Reported};
use job::{Alarm, Job, Phase};
pub use life::{ATTEMPTS_MAX, PLACED_MAX, PREPARE_MS};
pub use log::{LINES_MAX, Line};
pub use mend::LIVES_MAX;
pub use nodes::{ASKED_MAX, EARLY_MAX, LEASE_MS, MARGIN_MS, NODES_MAX};
pub use queue::{QUEUE_MAX, WANTED_BYTES_MAX};
pub use seats::{SEAT_PATIENCE_MS, SEATS};
pub use show::{NODES_SHOWN, OVER_MAX, RunDetail, RunPhase, Shown, ShownRank, Slots};

use super::words::{self, JobId, Key};
use seats::Seats;
use serde::{Deserialize, Serialize};
use show::Old;
use std::collections::{BTreeMap, BTreeSet};
use summed::{Summed, print};

/// What the replicas agree on.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct State {
    now_ms: u64,
    /// The number of the last job.
    last_job: u64,
    nodes: Summed<Key, nodes::Node>,
    jobs: Summed<JobId, Job>,
    /// Jobs that are over, for people who ask.
    over: Summed<JobId, Old>,
    seats: Seats,
    #[serde(skip)]
    index: Index,
}

/// What can be found in the rest of the state, and is kept to be found sooner.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Index {
    names: BTreeMap<String, BTreeSet<Key>>,
    /// Jobs that are not over.
    runs: BTreeMap<String, JobId>,
    /// When something is due.
    alarms: BTreeSet<(u64, Alarm)>,
    /// Jobs that wait for slots, those first that ran already.
    queue: BTreeSet<(bool, JobId)>,
    /// Jobs with ranks that wait to start again.
    mending: BTreeSet<JobId>,
    /// Slots that can be given away.
    free: u64,
    /// Ranks of jobs that have a place.
    placed: u64,
    /// Bytes of all jobs' wants.
    bytes: u64,
    /// While an entry is applied: who waits for slots should look again.
    room: bool,
}

impl State {
    /// A cluster of which nothing is known yet, with these replicas.
    #[must_use]
    pub fn new(epoch: u32, seats: &[Key]) -> Self {
        let mut state = Self::default();
        state.grouped(epoch, seats, &[]);
        state
    }

    /// Takes the next entry of the order; `out` gets what is to be done.
    pub fn apply(&mut self, entry: &Entry, out: &mut Vec<Decision>) {
        self.now_ms = self.now_ms.max(entry.at_ms);
        self.on_time(out);
        match &entry.fact {
            Fact::Tick => {}
            Fact::Seen(info) => self.on_seen(info.clone(), out),
            Fact::Lost { node, incarnation } => self.on_lost(*node, *incarnation, out),
            Fact::Asked { from, incarnation, number, ask } => {
                if self.is_new_question(*from, *incarnation, *number) {
                    let answer = self.on_asked(*from, ask, out);
                    out.push(Decision::Answer { to: *from, incarnation: *incarnation, number: *number, answer });
                }
            }
            Fact::Reported(reports) => {
                for Reported { from, incarnation, number, report } in reports {
                    for report in self.due_reports(*from, *incarnation, *number, report.clone()) {
                        self.on_reported(*from, report, out);
                    }
                }
            }
            Fact::Accused { by, whom, epoch } => self.on_accused(*by, *whom, *epoch),
            Fact::Arrived { by, epoch } => self.on_arrived(*by, *epoch),
        }
        if std::mem::take(&mut self.index.room) {
            self.mend(out);
            self.start_those_whose_turn_it_is(out);
            self.index.room = false;
        }
        self.settle_seats(out);
    }

    /// What time brings.
    fn on_time(&mut self, out: &mut Vec<Decision>) {
        while let Some(&(at_ms, alarm)) = self.index.alarms.first() {
            if at_ms > self.now_ms {
                break;
            }
            match alarm {
                Alarm::Lease(node) => self.on_lease_over(node, out),
                Alarm::Job(id) => {
                    self.with_job(id, out, |state, job, _, out| state.on_job_due(job, out));
                }
            }
            // Whatever rang is not due any more: it would ring for ever.
            self.index.alarms.remove(&(at_ms, alarm));
        }
    }

    /// When somebody must put a `Tick` into the order, if nothing else comes before.
    #[must_use]
    pub fn wakes_at_ms(&self) -> Option<u64> {
        let first = self.index.alarms.first().map(|&(at_ms, _)| at_ms);
        first.into_iter().chain(self.seats_due_ms()).min()
    }

    /// The time of the last entry, or of a later one before it.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// The same at all replicas that applied the same entries, and at no other. Costs the same whatever there is.
    #[must_use]
    pub fn digest(&self) -> u64 {
        print(&(self.now_ms, self.last_job, &self.nodes, &self.jobs, &self.over, &self.seats))
    }

    /// All of it as bytes. At most [`NODES_MAX`] nodes, [`WANTED_BYTES_MAX`] bytes of wants, [`PLACED_MAX`] ranks and [`OVER_MAX`] jobs that are
    /// over are in there.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        words::encode(self)
    }

    /// What [`State::encode`] wrote.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut state: Self = words::decode(bytes)?;
        for key in state.nodes.keys().copied().collect::<Vec<_>>() {
            state.list_node(&key);
        }
        let mut index = std::mem::take(&mut state.index);
        state.jobs.values().for_each(|job| index.list_job(job));
        index.room = false;
        state.index = index;
        Some(state)
    }

    /// Does something with a job that lives. While it does, the job is not in the table.
    fn with_job<R>(
        &mut self,
        id: JobId,
        out: &mut Vec<Decision>,
        what: impl FnOnce(&mut Self, &mut Job, u64, &mut Vec<Decision>) -> R,
    ) -> Option<R> {
        let mut job = self.jobs.remove(&id)?;
        self.index.unlist_job(&job);
        let now_ms = self.now_ms;
        let result = what(self, &mut job, now_ms, out);
        if job.phase == Phase::Over {
            self.bury(job);
        } else {
            self.index.list_job(&job);
            self.jobs.insert(id, job);
        }
        Some(result)
    }
}

impl Index {
    fn list_job(&mut self, job: &Job) {
        self.runs.insert(job.name.clone(), job.id);
        self.bytes += job.weight;
        self.placed += job.ranks.len() as u64;
        if let Some(at_ms) = job.due_ms() {
            self.alarms.insert((at_ms, Alarm::Job(job.id)));
        }
        if job.phase == Phase::Queued {
            self.queue.insert((job.starts == 0, job.id));
        }
        if !job.waiting.is_empty() {
            self.mending.insert(job.id);
        }
    }

    fn unlist_job(&mut self, job: &Job) {
        self.runs.remove(&job.name);
        self.bytes -= job.weight;
        self.placed -= job.ranks.len() as u64;
        if let Some(at_ms) = job.due_ms() {
            self.alarms.remove(&(at_ms, Alarm::Job(job.id)));
        }
        self.queue.remove(&(job.starts == 0, job.id));
        self.mending.remove(&job.id);
    }
}
