//! Ranks that start again alone: on their node when it lives, else on a slot that was kept free for them, else on any free one.

use super::job::{Job, Member, Phase, Rank, RankState};
use super::nodes::Node;
use super::ranges::{Ranges, each, ranges, written};
use super::{Decision, JobId, Key, State};
use crate::manager::words::{Command, End, Share};
use std::collections::{BTreeMap, BTreeSet};

/// How often a rank starts again alone.
pub const LIVES_MAX: u32 = 16;

impl State {
    /// Starts what waits to start again, as far as there is room.
    pub(super) fn mend(&mut self, out: &mut Vec<Decision>) {
        for id in self.index.mending.iter().copied().collect::<Vec<JobId>>() {
            self.with_job(id, out, |state, job, _, out| {
                if job.phase == Phase::Running {
                    state.mend_job(job, out);
                }
            });
        }
    }

    fn mend_job(&mut self, job: &mut Job, out: &mut Vec<Decision>) {
        let waiting: Vec<u32> = job.waiting.keys().copied().collect();
        let mut by_node: BTreeMap<Key, Vec<u32>> = BTreeMap::new();
        let mut others = None;
        for rank in waiting {
            let Some(old) = job.ranks.get(&rank).map(|r| r.member) else { continue };
            let Some(key) = self.slot_for(job, old, &mut others) else { break };
            self.settle_at(job, rank, old, key);
            by_node.entry(key).or_default().push(rank);
        }
        for (key, ranks_here) in by_node {
            self.start_again(job, key, &ranges(ranks_here), out);
        }
        if job.waiting.is_empty() {
            return job.why.clear();
        }
        let which = written(&ranges(job.waiting.keys().copied()));
        let why = format!("for {which} there is no free slot to start again");
        if job.why != why {
            job.log.say(self.now_ms, &*why);
            job.why = why;
        }
    }

    /// Whether ranks of this job may start at a node.
    fn may_take(&self, job: &Job, key: &Key) -> bool {
        !job.unfit.contains(key) && self.nodes.get(key).is_some_and(Node::is_usable)
    }

    /// Nodes that a job may use.
    fn allowed(&self, job: &Job) -> Vec<Key> {
        let named = |name: &String| self.named(name).ok().and_then(|keys| keys.first().copied());
        match &*job.wanted.hosts {
            [] => self.nodes.keys().copied().collect(),
            hosts => hosts.iter().filter_map(|(name, _)| named(name)).collect(),
        }
    }

    /// Whether there is a node that could take a rank of this job, if it had free slots.
    pub(super) fn may_mend(&self, job: &Job) -> bool {
        self.allowed(job).iter().any(|key| !job.unfit.contains(key))
    }

    /// A node for a rank that was at `old`, with a slot that the job holds there.
    fn slot_for(&mut self, job: &mut Job, old: u32, others: &mut Option<Vec<Key>>) -> Option<Key> {
        let member = job.crew.get(&old)?;
        // The dead leave their slots to those that follow.
        let own = (member.live < member.slots && self.may_take(job, &member.node)).then_some(member.node);
        own.or_else(|| self.slot_elsewhere(job, others))
    }

    fn slot_elsewhere(&mut self, job: &mut Job, others: &mut Option<Vec<Key>>) -> Option<Key> {
        let spare = job.spares.iter().find(|&(key, &count)| count > 0 && self.may_take(job, key)).map(|(key, _)| *key);
        if let Some(key) = spare {
            job.spares.edit(&key, |count| *count -= 1);
            self.slot_at(job, key);
            return Some(key);
        }
        let others = others.get_or_insert_with(|| {
            let most = job.wanted.per_node.unwrap_or(u32::MAX);
            let has_room = |key: &Key| job.member(key).is_none_or(|member| member.live < most);
            // Taken from the end: first what the job has already.
            let mut all = self.allowed(job);
            all.reverse();
            all.extend(job.crew.values().filter(|member| member.live < member.slots).map(|member| member.node));
            all.retain(|key| self.may_take(job, key) && has_room(key));
            all
        });
        let own = |key: &Key| job.member(key).is_some_and(|member| member.live < member.slots);
        let free = |key: &Key| self.nodes.get(key).is_some_and(|node| node.free() > 0);
        let key = if job.wanted.oversubscribe {
            let load = |key: &&Key| self.nodes.get(key).map(|node| node.used.saturating_sub(node.info.slots));
            let fits = others.iter().rev().find(|key| own(key) || free(key));
            fits.or_else(|| others.iter().rev().min_by_key(load)).copied()?
        } else {
            while others.last().is_some_and(|key| !own(key) && !free(key)) {
                others.pop();
            }
            *others.last()?
        };
        if !own(&key) {
            self.hold(&key, job.id, 1);
            self.slot_at(job, key);
        }
        Some(key)
    }

    /// The job has one slot more for ranks at this node.
    fn slot_at(&self, job: &mut Job, key: Key) {
        let place = job.place_of(&key).unwrap_or_else(|| {
            let mut member = Member::new(key, self.name_of(&key), Vec::new());
            member.pending.clear();
            job.enter(member)
        });
        job.crew.edit(&place, |member| member.slots += 1);
    }

    /// The rank is at that node from now on, and may be alive.
    fn settle_at(&mut self, job: &mut Job, rank: u32, old: u32, key: Key) {
        job.waiting.remove(&rank);
        job.live += 1;
        let Some(place) = job.place_of(&key) else { return };
        if place != old {
            let left = job.crew.edit(&old, |member| {
                member.ranks = ranges(each(&member.ranks).filter(|&r| r != rank));
                // A node that takes no ranks any more, but is there: it gets its slot back.
                let gives = member.slots > member.live;
                member.slots -= u32::from(gives);
                gives.then_some(member.node)
            });
            if let Some(left) = left.flatten() {
                self.release(&left, job.id, 1);
            }
        }
        job.crew.edit(&place, |member| {
            member.live += 1;
            if place != old {
                let all: BTreeSet<u32> = each(&member.ranks).chain([rank]).collect();
                member.ranks = ranges(all);
            }
        });
        job.ranks.edit(&rank, |r| {
            *r = Rank { member: place, again: r.again + 1, state: RankState::Live, ..*r };
        });
    }

    fn start_again(&mut self, job: &mut Job, key: Key, share: &Ranges, out: &mut Vec<Decision>) {
        let Some(place) = job.place_of(&key) else { return };
        job.lives += 1;
        let life = job.lives;
        for rank in each(share) {
            job.ranks.edit(&rank, |r| r.life = life);
        }
        job.crew.edit(&place, |member| {
            member.life = life;
            member.pending.insert(life, share.clone());
            // Starts of which nobody is left are of no use.
            let ranks = &job.ranks;
            let lives: BTreeSet<u32> =
                each(&member.ranks).filter_map(|rank| ranks.get(&rank)).map(|r| r.life).collect();
            member.tasks.retain(|start, _| lives.contains(start));
        });
        let name = self.name_of(&key);
        job.log.say(self.now_ms, format!("{} start again on {name}", written(share)));
        out.push(Decision::Command { to: vec![key], command: respawn_command(job, &key, life, share) });
    }

    /// A node could not start ranks again: they never were.
    pub(super) fn unstarted(&mut self, job: &mut Job, place: u32, life: u32, out: &mut Vec<Decision>) {
        let these =
            job.alive_at(place, life).into_iter().filter(|rank| job.ranks.get(rank).is_some_and(|r| r.life == life));
        let these: Vec<u32> = these.collect();
        for &rank in &these {
            job.end(rank, End::Lost, true);
        }
        let which = written(&ranges(these.iter().copied()));
        self.failed(job, &these, &format!("{which} were not started"), out);
        self.settle(job, out);
    }
}

/// How a node is told to start ranks again.
pub(super) fn respawn_command(job: &Job, key: &Key, life: u32, share: &Ranges) -> Command {
    let name = job.member(key).map_or_else(String::new, |member| member.name.clone());
    Command::Respawn {
        attempt: job.current(),
        life,
        name: job.name.clone(),
        home: job.home,
        user: job.wanted.user,
        ranks: job.wanted.ranks,
        on_failure: job.policy(),
        share: Share { node: *key, name, ranks: share.clone() },
        spec: job.wanted.spec.clone(),
    }
}
