//! How a job begins and ends.
//!
//! ```text
//!   Queued ──▶ Preparing ──▶ Running ──▶ Over
//!     ▲            │            │          ▲
//!     └────────────┴─ Stopping ◀┘──────────┘
//! ```
//! Nothing starts before all nodes of the attempt have said that they can run their share: a program that is missing on one of them is found
//! out before a rank was started anywhere. What is stopped is over, or starts again, when no rank of it can be alive any more.

use super::job::{Job, Member, Phase, Rank, RankState};
use super::place::Plan;
use super::ranges::ranges;
use super::summed::Summed;
use super::{Decision, Key, State};
use crate::manager::words::{Command, End, Post, Share, TEXT_MAX};
use std::collections::BTreeSet;

/// How long nodes of a job may look whether they can run it.
pub const PREPARE_MS: u64 = 60_000;
/// How often a job is started, all of it.
pub const ATTEMPTS_MAX: u32 = 16;
/// How often a job is placed: also when a node falls before anything was started.
const PLACINGS_MAX: u32 = 64;
/// Shepherds that one is told of whose ranks start again: enough to find the view.
const POSTS_MAX: usize = 16;
/// The most ranks of all jobs that have a place.
pub const PLACED_MAX: u64 = 4 << 20;

/// What a job ends with whose nodes cannot run it: a shell's word for a program that is not there.
pub(super) const UNFIT: i32 = 127;
/// What a job ends with that ran out of time: that of `timeout`.
const TIMED_OUT: i32 = 124;
/// What a job ends with that somebody ended.
pub(super) const KILLED: i32 = End::Killed(9).status();

impl State {
    /// Its nodes are told to look whether they can run it.
    pub(super) fn prepare(&mut self, job: &mut Job, plan: Plan, out: &mut Vec<Decision>) {
        let mut next = 0;
        job.crew = Summed::default();
        job.places = Summed::default();
        let mut ranks: Vec<(u32, Rank)> = Vec::with_capacity(job.wanted.ranks as usize);
        for &(key, count) in &plan.shares {
            let share = ranges(next..next + count);
            let place = job.enter(Member::new(key, self.name_of(&key), share));
            let rank = Rank { member: place, life: 0, again: 0, state: RankState::Live };
            ranks.extend((next..next + count).map(|number| (number, rank)));
            next += count;
            self.hold(&key, job.id, count);
        }
        for &(key, count) in &plan.spares {
            self.hold(&key, job.id, count);
        }
        job.ranks = ranks.into_iter().collect();
        job.spares = plan.spares.iter().copied().collect();
        job.live = next;
        if !job.deserted && job.place_of(&job.home).is_none() {
            job.enter(Member::new(job.home, self.name_of(&job.home), Vec::new()));
        }
        job.unready = job.crew.len() as u32;
        job.phase = Phase::Preparing { until_ms: self.now_ms.saturating_add(PREPARE_MS) };
        job.lives = 0;
        job.signals = 0;
        job.why.clear();
        self.leave_behind(job, out);
        let names = job.crew.values().filter(|m| !m.ranks.is_empty()).map(|m| &*m.name);
        job.log.say(self.now_ms, format!("attempt {}: asks {} whether they can run it", job.attempt, listed(names)));
        let to = keys(job);
        out.push(Decision::Command { to, command: prepare_command(job) });
    }

    /// Nodes of earlier attempts that have no part in this one: it is over for them.
    fn leave_behind(&mut self, job: &mut Job, out: &mut Vec<Decision>) {
        let former = std::mem::take(&mut job.former);
        let to: Vec<Key> =
            former.keys().copied().filter(|key| job.place_of(key).is_none() && *key != job.home).collect();
        if !to.is_empty() {
            let why = "the job goes on elsewhere".to_owned();
            out.push(Decision::Command { to, command: Command::Over { job: job.id, status: 0, why } });
        }
        if job.place_of(&job.home).is_none() && former.get(&job.home).is_some() {
            job.former.insert(job.home, ());
        }
    }

    /// All are ready: ranks start.
    pub(super) fn go(&mut self, job: &mut Job, out: &mut Vec<Decision>) {
        job.starts += 1;
        job.phase = Phase::Running;
        if job.deadline_ms.is_none() {
            job.deadline_ms = job.wanted.timeout_ms.map(|ms| self.now_ms.saturating_add(ms));
        }
        let nodes = job.crew.values().filter(|member| !member.ranks.is_empty()).count();
        let (ranks, n) = (job.ranks.len(), if nodes == 1 { "node" } else { "nodes" });
        job.log.say(self.now_ms, format!("attempt {}: starts {ranks} ranks on {nodes} {n}", job.attempt));
        out.push(Decision::Command { to: keys(job), command: go_command(job, 0, None) });
    }

    /// What is left of it is killed; it ends with this, or starts again.
    pub(super) fn stop(&mut self, job: &mut Job, status: i32, why: &str, again: bool, out: &mut Vec<Decision>) {
        let why = super::log::cut(why.to_owned(), TEXT_MAX);
        job.status = status;
        job.why.clone_from(&why);
        job.waiting = Summed::default();
        job.log.say(
            self.now_ms,
            format!("{why}: {}", if again { "ends all ranks, to start again" } else { "ends all ranks" }),
        );
        if matches!(job.phase, Phase::Preparing { .. }) {
            // Nothing was started.
            job.live = 0;
        }
        job.phase = Phase::Stopping { again };
        out.push(Decision::Command {
            to: keys(job),
            command: Command::Stop { attempt: job.current(), life: job.lives, why },
        });
        self.settle(job, out);
    }

    /// Draws the consequences of ranks that are dead.
    pub(super) fn settle(&mut self, job: &mut Job, out: &mut Vec<Decision>) {
        if job.live > 0 || !job.waiting.is_empty() {
            return;
        }
        match job.phase {
            Phase::Running => {
                let status = job.largest_status();
                self.finish(job, status, String::new(), out);
            }
            Phase::Stopping { again: true } => self.queue_again(job),
            Phase::Stopping { again: false } => {
                let (status, why) = (job.status, std::mem::take(&mut job.why));
                self.finish(job, status, why, out);
            }
            Phase::Queued | Phase::Preparing { .. } | Phase::Over => {}
        }
    }

    /// It waits for its next attempt.
    pub(super) fn queue_again(&mut self, job: &mut Job) {
        self.leave_nodes(job);
        job.former =
            job.crew.values().map(|member| (member.node, ())).chain(job.former.keys().map(|key| (*key, ()))).collect();
        job.crew = Summed::default();
        job.places = Summed::default();
        job.ranks = Summed::default();
        job.spares = Summed::default();
        (job.live, job.unready) = (0, 0);
        self.hold_home(job);
        job.attempt += 1;
        job.phase = Phase::Queued;
        job.why.clear();
        self.index.room = true;
    }

    /// A node fell before anything was started: the others forget this attempt, and the job is placed anew.
    pub(super) fn place_anew(&mut self, job: &mut Job, why: &str, out: &mut Vec<Decision>) {
        if job.attempt >= PLACINGS_MAX {
            return self.stop(job, UNFIT, &format!("{why}; it was placed {PLACINGS_MAX} times"), false, out);
        }
        job.log.say(self.now_ms, format!("{why}: it is placed anew, nothing was started yet"));
        let command = Command::Stop { attempt: job.current(), life: job.lives, why: why.to_owned() };
        out.push(Decision::Command { to: keys(job), command });
        self.queue_again(job);
    }

    /// It is over.
    pub(super) fn finish(&mut self, job: &mut Job, status: i32, why: String, out: &mut Vec<Decision>) {
        self.leave_nodes(job);
        let said = if why.is_empty() { String::new() } else { format!(": {why}") };
        job.log.say(self.now_ms, format!("it is over with status {status}{said}"));
        job.status = status;
        job.why.clone_from(&why);
        job.phase = Phase::Over;
        out.push(Decision::Command { to: job.everywhere(), command: Command::Over { job: job.id, status, why } });
    }

    /// Its home counts among the nodes of a job from the beginning: with it goes the console.
    pub(super) fn hold_home(&mut self, job: &Job) {
        if !job.deserted {
            self.hold(&job.home, job.id, 0);
        }
    }

    fn leave_nodes(&mut self, job: &mut Job) {
        let all: BTreeSet<Key> = job.places.keys().chain(job.spares.keys()).copied().chain([job.home]).collect();
        for key in all {
            self.leave(&key, job.id);
        }
    }

    /// Its time is over, or that of its nodes to get ready.
    pub(super) fn on_job_due(&mut self, job: &mut Job, out: &mut Vec<Decision>) {
        if job.deadline_ms.is_some_and(|ms| ms <= self.now_ms) {
            job.deadline_ms = None;
            let ms = job.wanted.timeout_ms.unwrap_or_default();
            let why = format!("its time of {}.{:03} s is over", ms / 1000, ms % 1000);
            return match job.phase {
                Phase::Queued => self.finish(job, TIMED_OUT, why, out),
                _ => self.stop(job, TIMED_OUT, &why, false, out),
            };
        }
        if matches!(job.phase, Phase::Preparing { until_ms } if until_ms <= self.now_ms) {
            let silent = job.crew.values().filter(|member| member.pending.contains_key(&0)).map(|member| &*member.name);
            let seconds = PREPARE_MS / 1000;
            let why = format!("{} did not say within {seconds} s whether it can run it", listed(silent));
            self.stop(job, UNFIT, &why, false, out);
        }
    }
}

/// Nodes of the attempt, ascending.
pub(super) fn keys(job: &Job) -> Vec<Key> {
    job.places.keys().copied().collect()
}

pub(super) fn prepare_command(job: &Job) -> Command {
    Command::Prepare {
        attempt: job.current(),
        name: job.name.clone(),
        home: job.home,
        user: job.wanted.user,
        ranks: job.wanted.ranks,
        on_failure: job.policy(),
        shares: job.crew.values().filter(|member| !member.ranks.is_empty()).map(Member::share).collect::<Vec<Share>>(),
        spec: job.wanted.spec.clone(),
    }
}

/// How ranks are told to start: all of them, or those at one node that start again.
pub(super) fn go_command(job: &Job, life: u32, at: Option<Key>) -> Command {
    let ready = |member: &Member| {
        let first = member.tasks.get(&life)?.0;
        member.post.map(|post| Post { first, ..post })
    };
    let own = at.and_then(|key| ready(job.member(&key)?));
    let others = job.crew.values().filter_map(|member| match at {
        None => ready(member),
        Some(key) => member.post.filter(|_| member.live > 0 && member.node != key),
    });
    let most = if at.is_none() { usize::MAX } else { POSTS_MAX };
    let posts: Vec<Post> = own.into_iter().chain(others.take(most)).collect();
    let console = if job.deserted { None } else { job.member(&job.home).and_then(|member| member.post) };
    Command::Go { attempt: job.current(), life, posts, console }
}

/// Names in words: some of them, when there are many.
pub(super) fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    const SHOWN: usize = 6;
    let names: Vec<&str> = names.collect();
    let more = if names.len() > SHOWN { format!(" and {} more", names.len() - SHOWN) } else { String::new() };
    format!("{}{more}", names[..names.len().min(SHOWN)].join(", "))
}
