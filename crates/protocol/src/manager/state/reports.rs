//! What agents say, and what it changes.
//!
//! Reports of one agent are heard in the order in which they were said (`nodes`), so that an inventory without an attempt that was `Ready`
//! before means that its shepherd is gone. What a report says of ranks counts only for the start that it means: a new start of a rank is not
//! ended by late news of the old one.

use super::job::{Job, Phase, RankState};
use super::life::{UNFIT, go_command, prepare_command};
use super::ranges::{ranges, written};
use super::{Decision, JobId, Key, State};
use crate::manager::words::{At, Attempt, Command, End, Ended, MissedRank, Post, Report, TEXT_MAX};
use std::collections::{BTreeMap, BTreeSet};

impl State {
    pub(super) fn on_reported(&mut self, from: Key, report: Report, out: &mut Vec<Decision>) {
        match report {
            Report::Inventory { attempts } => self.on_inventory(from, &attempts, out),
            Report::Ready { attempt, life, post } => {
                self.of_current(attempt, out, |state, job, out| state.on_ready(job, from, life, post, out));
            }
            Report::Unfit { attempt, life, why } => {
                let why = super::log::cut(why, TEXT_MAX);
                self.of_current(attempt, out, |state, job, out| state.on_unfit(job, from, life, &why, out));
            }
            Report::Ended { attempt, ranks } => {
                self.of_current(attempt, out, |state, job, out| state.on_ended(job, from, &ranks, out));
            }
            Report::Cleared { attempt, life } => {
                self.of_current(attempt, out, |state, job, out| {
                    state.on_cleared(job, from, life, "its shepherd ended", out);
                });
            }
            Report::Missed { attempt, at, ranks, proven } => {
                self.of_current(attempt, out, |state, job, out| state.on_missed(job, from, (at, &ranks), proven, out));
            }
        }
    }

    /// What was said of an attempt that is not the job's present one is of no interest.
    fn of_current(
        &mut self,
        attempt: Attempt,
        out: &mut Vec<Decision>,
        what: impl FnOnce(&mut Self, &mut Job, &mut Vec<Decision>),
    ) {
        if self.jobs.get(&attempt.job).is_some_and(|job| job.attempt == attempt.number) {
            self.with_job(attempt.job, out, |state, job, _, out| what(state, job, out));
        }
    }

    fn on_ready(&mut self, job: &mut Job, from: Key, life: u32, post: Post, out: &mut Vec<Decision>) {
        let Some(place) = job.place_of(&from) else { return };
        let ready = job.crew.edit(&place, |member| {
            let Some(share) = member.pending.remove(&life) else { return false };
            member.post = Some(post);
            member.tasks.insert(life, (post.first, share));
            true
        });
        if ready != Some(true) {
            return;
        }
        match job.phase {
            Phase::Preparing { .. } => {
                job.unready -= 1;
                if job.unready == 0 {
                    self.go(job, out);
                }
            }
            Phase::Running => {
                let command = go_command(job, life, Some(from));
                out.push(Decision::Command { to: vec![from], command });
            }
            _ => {}
        }
    }

    fn on_unfit(&mut self, job: &mut Job, from: Key, life: u32, why: &str, out: &mut Vec<Decision>) {
        let Some(place) = job.place_of(&from) else { return };
        let name = self.name_of(&from);
        if !job.crew.get(&place).is_some_and(|member| member.pending.contains_key(&life)) {
            return;
        }
        if matches!(job.phase, Phase::Preparing { .. }) {
            return self.stop(job, UNFIT, &format!("{name}: {why}"), false, out);
        }
        // Ranks that were to start again there: nothing of them was started.
        let share = job.crew.edit(&place, |member| member.pending.remove(&life)).flatten().unwrap_or_default();
        job.log.say(self.now_ms, format!("{name}: {why}; {} start elsewhere", written(&share)));
        job.unfit.insert(from);
        if !self.may_mend(job) {
            let status = UNFIT;
            return self.stop(
                job,
                status,
                &format!("{name}: {why}; no other node is left for {}", written(&share)),
                false,
                out,
            );
        }
        self.unstarted(job, place, life, out);
    }

    fn on_ended(&mut self, job: &mut Job, from: Key, ended: &[Ended], out: &mut Vec<Decision>) {
        if !matches!(job.phase, Phase::Running | Phase::Stopping { .. }) {
            return;
        }
        let Some(place) = job.place_of(&from) else { return };
        let mut failed: BTreeMap<End, Vec<u32>> = BTreeMap::new();
        for &Ended { rank, life, end, aborted } in ended {
            let known =
                job.ranks.get(&rank).filter(|r| r.member == place && r.life == life && r.state == RankState::Live);
            if known.is_none() {
                continue;
            }
            let fails = job.phase == Phase::Running && job.is_failure(end, aborted);
            job.end(rank, end, fails);
            // Who waits to start again may have its slot.
            self.index.room |= !job.waiting.is_empty();
            if fails {
                failed.entry(end).or_default().push(rank);
            }
        }
        let name = self.name_of(&from);
        for (end, mut ranks_failed) in failed {
            ranks_failed.sort_unstable();
            let ranks = written(&ranges(ranks_failed.iter().copied()));
            self.failed(job, &ranks_failed, &format!("{ranks} on {name} {}", told(end)), out);
        }
        self.settle(job, out);
    }

    /// Nothing of the starts up to `life` is left at a node.
    pub(super) fn on_cleared(&mut self, job: &mut Job, from: Key, life: u32, how: &str, out: &mut Vec<Decision>) {
        let Some(place) = job.place_of(&from) else { return };
        let stopped = job.crew.edit(&place, |member| {
            member.pending.retain(|&start, _| start == 0 || start > life);
            std::mem::take(&mut member.stopped)
        });
        match job.phase {
            Phase::Running => {
                if from == job.home && stopped != Some(true) {
                    self.desert(job, how, out);
                }
                let how = if stopped == Some(true) { "they were killed" } else { how };
                self.lose(job, place, life, how, out);
            }
            Phase::Stopping { .. } => {
                for rank in job.alive_at(place, life) {
                    job.end(rank, End::Killed(9), false);
                }
                self.settle(job, out);
            }
            Phase::Preparing { .. } => {
                // The shepherd died before it had anything to do. It is asked again.
                let was_ready = job.crew.edit(&place, |member| {
                    let ranks = member.ranks.clone();
                    member.pending.insert(0, ranks).is_none()
                });
                job.unready += u32::from(was_ready == Some(true));
                out.push(Decision::Command { to: vec![from], command: prepare_command(job) });
            }
            Phase::Queued | Phase::Over => {}
        }
    }

    fn on_missed(
        &mut self,
        job: &mut Job,
        from: Key,
        (at, missed): (At, &[MissedRank]),
        proven: bool,
        out: &mut Vec<Decision>,
    ) {
        // Who was missed itself speaks for no view.
        let Some(witness) = job.member(&from).filter(|member| member.live > 0 && !member.stopped) else { return };
        if job.phase != Phase::Running {
            return;
        }
        let witness = witness.name.clone();
        let mut by_place: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
        for &MissedRank { rank, start } in missed {
            let Some(r) = job.ranks.get(&rank).filter(|r| r.state == RankState::Live) else { continue };
            let Some(member) = job.crew.get(&r.member).filter(|member| member.node != from) else { continue };
            if member.post.is_some_and(|p| p.at == at) && member.task(rank, r.life) == Some(start) {
                by_place.entry(r.member).or_default().insert(rank);
            }
        }
        for (place, ranks_missed) in by_place {
            let Some(member) = job.crew.get(&place) else { continue };
            let (node, name, stopped) = (member.node, member.name.clone(), member.stopped);
            let ranks_missed: Vec<u32> = ranks_missed.into_iter().collect();
            let which = written(&ranges(ranks_missed.iter().copied()));
            if proven {
                self.edit_node(&node, |node| node.doubtful = node.lost_ms.is_none());
                ranks_missed.iter().for_each(|&rank| job.end(rank, End::Lost, true));
                self.failed(
                    job,
                    &ranks_missed,
                    &format!("{which} died with the shepherd on {name}, as {witness} says"),
                    out,
                );
            } else if !stopped {
                self.doubted(job, place, node, &format!("{which} on {name} cannot be reached from {witness}"), out);
            }
            if job.phase != Phase::Running {
                break;
            }
        }
        self.settle(job, out);
    }

    /// What runs at a node. An agent that has started anew is told again what it must know; what should not be there goes.
    fn on_inventory(&mut self, from: Key, attempts: &[Attempt], out: &mut Vec<Decision>) {
        let there: BTreeSet<Attempt> = attempts.iter().copied().collect();
        let Some(node) = self.nodes.get(&from) else { return };
        let anew = !node.known;
        let jobs: Vec<JobId> = node.jobs.keys().copied().collect();
        self.edit_node(&from, |node| node.known = true);
        for id in jobs {
            self.with_job(id, out, |state, job, _, out| {
                let there = there.contains(&job.current());
                state.compare(job, from, there, anew, out);
            });
        }
        for attempt in there {
            let job = self.jobs.get(&attempt.job);
            let held = self.nodes.get(&from).is_some_and(|node| node.jobs.contains_key(&attempt.job));
            let current = job.filter(|job| job.attempt == attempt.number);
            if held && current.is_some_and(|job| job.place_of(&from).is_some()) {
                continue;
            }
            let why = "it is not meant to run here any more".to_owned();
            let life = current.map_or(0, |job| job.lives);
            let stop = Command::Stop { attempt, life, why: why.clone() };
            out.push(Decision::Command { to: vec![from], command: stop });
            if !held && job.is_none_or(|job| job.home != from) {
                let over = Command::Over { job: attempt.job, status: 0, why };
                out.push(Decision::Command { to: vec![from], command: over });
            }
        }
    }

    /// What should be at a node of a job against what is there.
    fn compare(&mut self, job: &mut Job, from: Key, there: bool, anew: bool, out: &mut Vec<Decision>) {
        let Some(member) = job.member(&from) else { return };
        let (life, pending) = (member.life, member.pending.clone());
        let lives: Vec<u32> = member.tasks.keys().copied().collect();
        let first_was_ready = !pending.contains_key(&0);
        let ready_up_to = pending.keys().next().map_or(life, |next| next.saturating_sub(1));
        let mut say = |command: Command| out.push(Decision::Command { to: vec![from], command });
        match job.phase {
            Phase::Preparing { .. } => {
                if !there && first_was_ready {
                    return self.on_cleared(job, from, 0, "", out);
                }
                if anew && !first_was_ready {
                    say(prepare_command(job));
                }
            }
            Phase::Running => {
                if anew {
                    let at = |life: u32| if life == 0 { None } else { Some(from) };
                    for life in lives.into_iter().filter(|_| there) {
                        say(go_command(job, life, at(life)));
                    }
                    for (&start, share) in pending.iter().filter(|&(&start, _)| start > 0) {
                        say(super::mend::respawn_command(job, &from, start, share));
                    }
                    if job.member(&from).is_some_and(|member| member.stopped) {
                        say(Command::Stop {
                            attempt: job.current(),
                            life: job.lives,
                            why: "it cannot be reached by the others".into(),
                        });
                    }
                }
                if !there && first_was_ready {
                    self.on_cleared_here(job, from, ready_up_to, out);
                }
            }
            Phase::Stopping { .. } => {
                if anew {
                    say(Command::Stop { attempt: job.current(), life: job.lives, why: job.why.clone() });
                }
                if !there {
                    self.on_cleared_here(job, from, ready_up_to, out);
                }
            }
            Phase::Queued | Phase::Over => {}
        }
    }

    /// An inventory says that nothing of the starts up to this one is left; of those that are on their way it says nothing.
    fn on_cleared_here(&mut self, job: &mut Job, from: Key, life: u32, out: &mut Vec<Decision>) {
        self.on_cleared(job, from, life, "nothing of it was left there", out);
    }
}

/// An end in words.
pub(super) fn told(end: End) -> String {
    match end {
        End::Exited(status) => format!("ended with status {status} before MPI_Finalize"),
        End::Killed(signal) => format!("died of signal {signal}"),
        End::Missing(errno) => format!("could not be started: error {errno} of the system"),
        End::Lost => "died with its shepherd".into(),
    }
}
