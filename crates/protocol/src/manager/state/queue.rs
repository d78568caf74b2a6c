//! Whose turn it is: jobs start in the order in which they were asked for.
//!
//! CM-5. A job that has not enough free slots holds up those behind it, or they would overtake it for ever. Two kinds do not:
//! - one that named its nodes holds up only what would use these;
//! - one for which the nodes that are there would not be enough, even if they were free: it waits for nodes, others need not.
//!
//! Jobs that ran already and start again come before all others.

use super::place::Without;
use super::{Decision, JobId, Key, Phase, State};
use crate::manager::words::{RANKS_MAX, Wanted};
use std::collections::BTreeMap;

/// The most jobs that live. More are refused.
pub const QUEUE_MAX: usize = 10_000;
/// The most bytes of what they all want. More are refused.
pub const WANTED_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// What a job takes up while it lives.
pub(super) fn weight(wanted: &Wanted) -> u64 {
    let hosts: usize = wanted.hosts.iter().map(|(name, _)| name.len() + 32).sum();
    (wanted.spec.len() + hosts + 512) as u64
}

impl State {
    /// Starts what can be started.
    pub(super) fn start_those_whose_turn_it_is(&mut self, out: &mut Vec<Decision>) {
        let queue: Vec<JobId> = self.index.queue.iter().map(|&(_, id)| id).collect();
        let mut reserved: BTreeMap<Key, u32> = BTreeMap::new();
        let mut held_up = false;
        for id in queue {
            // Who takes slots that are taken already overtakes nobody.
            if held_up && !self.jobs.get(&id).is_some_and(|job| job.wanted.oversubscribe) {
                if self.jobs.get(&id).is_some_and(|job| job.why.is_empty()) {
                    self.wait(id, "jobs that were asked for before it wait, too".into(), out);
                }
                continue;
            }
            let Some(job) = self.jobs.get(&id) else { continue };
            let plan = if self.index.placed + u64::from(job.wanted.ranks) > super::PLACED_MAX {
                Err("the manager watches as many ranks as it can: it waits for others to end".to_owned())
            } else {
                self.place(&job.wanted, Without { reserved: &reserved, unfit: &job.unfit })
            };
            let why = match plan {
                Ok(plan) => {
                    self.with_job(id, out, |state, job, _, out| state.prepare(job, plan, out));
                    continue;
                }
                Err(why) => why,
            };
            let could = self.could_run(&job.wanted, &job.unfit);
            let pinned: Vec<(Key, u32)> =
                if could.is_err() { Vec::new() } else { self.slots_it_waits_for(&job.wanted) };
            let goes_on = could.is_err() || !pinned.is_empty();
            self.wait(id, could.err().unwrap_or(why), out);
            held_up |= !goes_on;
            for (key, slots) in pinned {
                let all = reserved.entry(key).or_default();
                *all = all.saturating_add(slots);
            }
        }
    }

    /// A job waits, and people are told why.
    pub(super) fn wait(&mut self, id: JobId, why: String, out: &mut Vec<Decision>) {
        if self.jobs.get(&id).is_none_or(|job| job.why == why || job.phase != Phase::Queued) {
            return;
        }
        self.with_job(id, out, |_, job, at_ms, _| {
            // How many slots are free changes all the time: that is no news for the log.
            if job.why.is_empty() {
                job.log.say(at_ms, &*why);
            }
            job.why = why;
        });
    }

    /// Nodes that a job named, and what it will take of each.
    fn slots_it_waits_for(&self, wanted: &Wanted) -> Vec<(Key, u32)> {
        let most = wanted.per_node.unwrap_or(RANKS_MAX);
        let slots = |(name, slots): &(String, Option<u32>)| {
            let key = *self.named(name).ok()?.first()?;
            let all = self.nodes.get(&key)?.info.slots;
            Some((key, slots.unwrap_or(all).min(most)))
        };
        wanted.hosts.iter().filter_map(slots).collect()
    }
}
