//! What becomes of a job when a part of it dies.
//!
//! A rank *fails* when a signal ends it that nobody wanted for the job, when it could not be started, when it is lost with its shepherd or its
//! node, or when it ends with a status other than 0 before MPI_Finalize. Other ends only count for the job's status. Ranks are taken for dead
//! here only after proof, or after their lease: those that a view merely misses are killed first.

use super::job::Job;
use super::life::{ATTEMPTS_MAX, KILLED};
use super::mend::LIVES_MAX;
use super::nodes::{LEASE_MS, MARGIN_MS};
use super::ranges::{ranges, written};
use super::{Decision, Key, Phase, State};
use crate::manager::words::{Command, End, OnFailure};

impl Job {
    /// Whether it fails that ends so.
    pub(super) fn is_failure(&self, end: End, aborted: bool) -> bool {
        match end {
            End::Exited(status) => aborted && status != 0,
            End::Killed(signal) => !signal_bit(signal).is_some_and(|bit| self.signals & bit != 0),
            End::Missing(_) | End::Lost => true,
        }
    }
}

/// The place of a signal among those that were wanted.
pub(super) fn signal_bit(signal: i32) -> Option<u64> {
    (1..=64).contains(&signal).then(|| 1 << (signal - 1))
}

impl State {
    /// These ranks have failed; they are dead.
    pub(super) fn failed(&mut self, job: &mut Job, ranks: &[u32], why: &str, out: &mut Vec<Decision>) {
        if ranks.is_empty() || job.phase != Phase::Running {
            return;
        }
        match job.policy() {
            OnFailure::Abort => {
                let status = job.largest_status();
                self.stop(job, status, why, false, out);
            }
            OnFailure::Restart => self.restart(job, why, out),
            OnFailure::Continue => job.log.say(self.now_ms, format!("{why}: the others go on")),
            OnFailure::Respawn => {
                let worn = ranks.iter().find(|rank| job.ranks.get(rank).is_some_and(|r| r.again >= LIVES_MAX));
                if let Some(rank) = worn {
                    let status = job.largest_status();
                    let why = format!("{why}; rank {rank} was started again {LIVES_MAX} times");
                    return self.stop(job, status, &why, false, out);
                }
                job.log.say(self.now_ms, format!("{why}: starts again alone"));
                ranks.iter().for_each(|&rank| job.waiting.insert(rank, ()));
                self.index.room = true;
            }
        }
    }

    fn restart(&mut self, job: &mut Job, why: &str, out: &mut Vec<Decision>) {
        if job.starts < ATTEMPTS_MAX {
            return self.stop(job, 0, why, true, out);
        }
        let status = job.largest_status().max(1);
        self.stop(job, status, &format!("{why}; it was started {ATTEMPTS_MAX} times"), false, out);
    }

    /// The job goes on without ranks that may be alive.
    pub(super) fn doubted(&mut self, job: &mut Job, place: u32, node: Key, why: &str, out: &mut Vec<Decision>) {
        match job.policy() {
            OnFailure::Abort => self.stop(job, End::Lost.status(), why, false, out),
            OnFailure::Restart => self.restart(job, why, out),
            OnFailure::Continue | OnFailure::Respawn => {
                job.log.say(self.now_ms, format!("{why}: they are killed"));
                job.crew.edit(&place, |member| member.stopped = true);
                let command = Command::Stop { attempt: job.current(), life: job.lives, why: why.to_owned() };
                out.push(Decision::Command { to: vec![node], command });
            }
        }
    }

    /// What a member had up to this start is dead, and was not meant to be.
    pub(super) fn lose(&mut self, job: &mut Job, place: u32, life: u32, how: &str, out: &mut Vec<Decision>) {
        let lost = job.alive_at(place, life);
        if !lost.is_empty() && job.phase == Phase::Running {
            lost.iter().for_each(|&rank| job.end(rank, End::Lost, true));
            let name = job.crew.get(&place).map_or_else(String::new, |member| member.name.clone());
            let ranks = written(&ranges(lost.iter().copied()));
            self.failed(job, &lost, &format!("{ranks} on {name} are lost: {how}"), out);
        } else {
            lost.iter().for_each(|&rank| job.end(rank, End::Lost, false));
        }
        self.settle(job, out);
    }

    /// The zone says that a node of a job is gone: that ends no rank yet.
    pub(super) fn node_lost(&mut self, job: &mut Job, key: Key, out: &mut Vec<Decision>) {
        let Some(member) = job.member(&key) else { return };
        let (name, live) = (member.name.clone(), member.live);
        if live > 0 && matches!(job.phase, Phase::Preparing { .. }) {
            return self.place_anew(job, &format!("{name} is gone, as its zone says"), out);
        }
        let seconds = (LEASE_MS + MARGIN_MS) / 1000;
        let more = if live > 0 { format!("; its ranks may run for {seconds} s more") } else { String::new() };
        job.log.say(self.now_ms, format!("{name} is gone, as its zone says{more}"));
    }

    /// Nothing can run any more at a node that is gone.
    pub(super) fn node_expired(&mut self, job: &mut Job, key: Key, out: &mut Vec<Decision>) {
        self.leave(&key, job.id);
        job.spares.remove(&key);
        let name = self.name_of(&key);
        let Some(place) = job.place_of(&key) else {
            if key == job.home {
                self.desert(job, &format!("{name} is gone"), out);
            }
            return;
        };
        let was_pending = job.crew.edit(&place, |member| {
            member.post = None;
            member.slots = 0;
            std::mem::take(&mut member.pending).contains_key(&0)
        });
        if matches!(job.phase, Phase::Preparing { .. }) {
            // Home, and nothing else: those with ranks were given up at once.
            self.desert(job, &format!("{name} is gone"), out);
            if was_pending == Some(true) && matches!(job.phase, Phase::Preparing { .. }) {
                job.unready -= 1;
                if job.unready == 0 {
                    self.go(job, out);
                }
            }
            return;
        }
        if job.phase == Phase::Running {
            // Whatever is there when it comes back was given up.
            let why = format!("{name} was gone for too long");
            out.push(Decision::Command {
                to: vec![key],
                command: Command::Stop { attempt: job.current(), life: job.lives, why },
            });
        }
        self.lose(job, place, u32::MAX, "the node is gone and its lease over", out);
        if key == job.home {
            self.desert(job, &format!("{name} is gone"), out);
        }
    }

    /// Nobody is there any more who would hear what a job says: with `abort` it ends, as mpiexec's jobs do; otherwise it goes on.
    pub(super) fn desert(&mut self, job: &mut Job, how: &str, out: &mut Vec<Decision>) {
        if job.deserted || job.phase == Phase::Over {
            return;
        }
        job.deserted = true;
        let home = self.name_of(&job.home);
        if job.policy() != OnFailure::Abort {
            return job.log.say(
                self.now_ms,
                format!("its console on {home} is gone ({how}): it goes on, and what it says is dropped"),
            );
        }
        let why = format!("its console on {home} is gone ({how})");
        match job.phase {
            Phase::Queued => self.finish(job, KILLED, why, out),
            Phase::Preparing { .. } | Phase::Running => self.stop(job, KILLED, &why, false, out),
            Phase::Stopping { .. } | Phase::Over => {}
        }
    }
}
