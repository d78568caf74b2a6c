//! What a root does: it makes one change of all it has heard, and brings it down the tree and back.
//!
//! RV-2 to RV-4. The lowest task that is not gone leads. It proposes nothing while a majority of the view is out of reach, because
//! a proposal that somebody may have agreed to cannot be taken back.

use super::join::Knock;
use super::relay::{Notice, Relay};
use super::{Change, Joined, Member, OnPartition, Out, Output, Standing, Task, ViewId, Wanted, Wave};
use phalanx_core::rng::mix;
use phalanx_core::{Addr, Fingerprint, Instant};
use phalanx_wire::view::{Ballot, Person, Words};
use std::collections::BTreeSet;
use std::net::SocketAddr;

/// Whether we lead a wave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lead {
    Idle,
    Waving,
    /// It did not succeed.
    Waiting {
        again_at: Instant,
        /// For a majority. Otherwise for another root.
        stalled: bool,
    },
}

impl Lead {
    pub(super) fn again_at(self) -> Instant {
        match self {
            Self::Waiting { again_at, .. } => again_at,
            Self::Idle | Self::Waving => Instant::NEVER,
        }
    }

    pub(super) fn fingerprint(self, print: &mut Fingerprint) {
        print.add(&std::mem::discriminant(&self));
        print.instant(self.again_at());
    }
}

impl Member {
    /// Starts a wave when it is our turn and there is something to do.
    pub(super) fn consider(&mut self, now: Instant, out: &mut impl Out) {
        if self.lead != Lead::Idle || !self.is_in() || self.root() != self.me || self.has_nothing_to_do() {
            return;
        }
        let alive = self.view.tree().len() - self.doubts.gone.len() as u32;
        if !self.is_majority(alive) {
            return self.stall(now, out);
        }
        let first = Ballot::first(self.me);
        let is_ours = self.view.tree().root() == Some(self.me) && self.promised == first && self.accepted.is_none();
        match self.build() {
            Some(change) if is_ours => self.begin(now, wave_of(&change, &self.view), first, Some(change), out),
            _ => {
                let ballot = Ballot { counter: self.promised.counter.saturating_add(1), owner: self.me };
                self.begin(now, Wave::RootDead, ballot, None, out);
            }
        }
    }

    fn has_nothing_to_do(&self) -> bool {
        let rests = self.is_at_rest() && self.standing != Standing::Leaving;
        rests && !self.wants_checkpoint
    }

    /// RV-6: enough of the view, so that no other part of it has enough. Of two halves the one with the view's root has it.
    fn is_majority(&self, count: u32) -> bool {
        let tree = self.view.tree();
        let tie = u64::from(tree.root() == Some(self.me));
        self.config.on_partition == OnPartition::Continue || 2 * u64::from(count) + tie > u64::from(tree.len())
    }

    /// One change of all that we have heard; none when that is nothing.
    fn build(&self) -> Option<Change> {
        // Who speaks in our own name does not make us leave.
        let leaving = self.doubts.leaving.iter().copied().filter(|&t| t != self.me);
        let mut failed: BTreeSet<_> = self.gone().chain(leaving).filter(|&t| self.view.contains(t)).collect();
        // Who is left alone ends the job by leaving: a view without anybody is none.
        if self.standing == Standing::Leaving && failed.len() as u32 + 1 < self.view.tree().len() {
            failed.insert(self.me);
        }
        let (mut joined, mut ranks) = (Vec::new(), Vec::new());
        let (mut next, mut more) = (self.view.next_task().0, self.view.ranks());
        for knock in &self.knocks {
            let task = match knock.wanted {
                Wanted::Again(task) => task,
                Wanted::More | Wanted::Spare => Task(next),
            };
            let stint = self.stint(task, knock);
            if self.view.contains(task) {
                failed.insert(task);
            }
            if task.0 == next {
                next += 1;
            }
            if knock.wanted == Wanted::More {
                ranks.push((more, task));
                more += 1;
            }
            joined.push(Joined { task, person: Person { host: knock.host, boot: knock.boot, stint } });
        }
        joined.sort_unstable_by_key(|j| j.task);
        joined.dedup_by_key(|j| j.task);
        self.fill_ranks(&failed, &joined, &mut ranks);
        let checkpoint = self.wants_checkpoint;
        let empty = failed.is_empty() && joined.is_empty() && ranks.is_empty() && !checkpoint;
        let id = ViewId { number: self.seen.saturating_add(1), root: self.me, stint: self.view.person(self.me)?.stint };
        let failed = failed.into_iter().collect();
        (!empty).then(|| Change { id, base: self.view.id(), failed, joined, ranks, checkpoint })
    }

    /// Which life of its number a newcomer is.
    ///
    /// ⚠ RV-6: parts that go on by themselves count apart, and give one number to two. Should both become roots, their views must not have one
    /// name: so it is drawn there from who they are.
    fn stint(&self, task: Task, knock: &Knock) -> u32 {
        if self.config.on_partition != OnPartition::Continue {
            return self.view.person(task).map_or(0, |p| p.stint.saturating_add(1));
        }
        let place = match knock.host {
            Addr::Local(n) => mix(n.into()),
            Addr::Ip(SocketAddr::V4(a)) => mix(u64::from(u32::from(*a.ip())) << 16 | u64::from(a.port())),
            Addr::Ip(SocketAddr::V6(a)) => {
                a.ip().segments().into_iter().chain([a.port()]).fold(0, |hash, part| mix(hash ^ u64::from(part)))
            }
            Addr::Group(_) => 0,
        };
        // The first life of everybody who was there from the start is 0.
        (mix(place ^ u64::from(knock.boot)) as u32).max(1)
    }

    /// RV-9: spares take the ranks of those who failed, where a majority of the view is.
    fn fill_ranks(&self, failed: &BTreeSet<Task>, joined: &[Joined], ranks: &mut Vec<(u32, Task)>) {
        let tree = self.view.tree();
        let stay = tree.len() - failed.len() as u32;
        let lives = |t: Task| tree.contains(t) && !failed.contains(&t) || joined.iter().any(|j| j.task == t);
        // Cheap first: jobs without spares have as many tasks as ranks.
        let end = self.view.next_task().0 + joined.len() as u32;
        if 2 * stay <= tree.len() || end <= self.view.ranks() + ranks.len() as u32 {
            return;
        }
        let given: BTreeSet<_> = ranks.iter().map(|r| r.1).collect();
        let mut spares = (0..end)
            .map(Task)
            .filter(|&t| lives(t) && !given.contains(&t) && self.view.rank_of(t).is_none())
            .collect::<Vec<_>>()
            .into_iter();
        for rank in 0..self.view.ranks() {
            if self.view.holder(rank).is_some_and(|t| !lives(t) && !self.view.is_awaited(t)) {
                let Some(spare) = spares.next() else { break };
                ranks.push((rank, spare));
            }
        }
        ranks.sort_unstable();
    }

    fn begin(&mut self, now: Instant, wave: Wave, ballot: Ballot, change: Option<Change>, out: &mut impl Out) {
        self.lead = Lead::Waving;
        self.counters.waves += 1;
        out.push(Output::Begun(wave));
        let gone = self.gone().collect();
        self.take_part(now, None, Notice { wave, base: self.view.id(), ballot, gone, change }, out);
    }

    /// All have answered, or are gone.
    pub(super) fn on_wave_done(&mut self, now: Instant, relay: Relay, out: &mut impl Out) {
        out.push(Output::Settled { wave: relay.wave, count: relay.count });
        self.lead = Lead::Idle;
        let found = relay.found.iter().copied().filter(|&t| t != self.me && self.view.contains(t));
        for task in found {
            self.doubts.gone.entry(task).or_insert(false);
        }
        if !self.is_majority(relay.count) {
            return self.stall(now, out);
        }
        match (relay.change, relay.best) {
            (Some(change), _) => self.decide(now, change, out),
            (None, Some((_, begun))) => {
                self.begin(now, Wave::RootAndNodeFailure, relay.ballot, Some(begun), out);
            }
            (None, None) => {
                if let Some(change) = self.build() {
                    self.begin(now, Wave::RootAndNodeFailure, relay.ballot, Some(change), out);
                }
            }
        }
    }

    /// The change is agreed to, by a majority of the view it starts from: nothing can undo it.
    fn decide(&mut self, now: Instant, change: Change, out: &mut impl Out) {
        self.wants_checkpoint &= !change.checkpoint;
        self.knocks.retain(|k| !change.joined.iter().any(|j| (j.person.host, j.person.boot) == (k.host, k.boot)));
        let after = self.view.changed(&change);
        self.spread(&after, &change, out);
        let roster = (!change.joined.is_empty()).then(|| after.roster());
        for joined in &change.joined {
            let (task, boot) = (joined.task, joined.person.boot);
            let roster = roster.clone().expect("somebody joined");
            self.say_at(joined.person.host, task, Words::Welcome { task, boot, roster }, out);
        }
        for &task in &change.failed {
            if task != self.me && after.person(task) == self.view.person(task) {
                // RV-8: in case that it lives.
                self.say(task, Words::Excluded { view: change.id }, out);
            }
        }
        self.install(now, after, Some(change), out);
        self.consider(now, out);
    }

    /// The last notice of a wave, down the new tree.
    pub(super) fn spread(&self, after: &super::View, change: &Change, out: &mut impl Out) {
        // Newcomers are welcomed with the whole view; who is below them hears it from us.
        let skip = |t: Task| self.doubts.gone.contains_key(&t) || change.joined.iter().any(|j| j.task == t);
        let targets = if after.contains(self.me) {
            after.tree().children_without(self.me, &skip)
        } else {
            after.tree().root_without(&skip).into_iter().collect()
        };
        for task in targets {
            if let Some(person) = after.person(task) {
                self.say_at(person.host, task, Words::Stable { change: change.clone() }, out);
            }
        }
    }

    fn stall(&mut self, now: Instant, out: &mut impl Out) {
        if self.config.on_partition == OnPartition::Abort {
            return self.abort(out);
        }
        let again_at = now + self.config.retry + self.config.patience;
        if !matches!(self.lead, Lead::Waiting { stalled: true, .. }) {
            out.push(Output::Stalled);
        }
        self.lead = Lead::Waiting { again_at, stalled: true };
    }

    /// Somebody is back: perhaps they are enough now. Others may come back with it, so not at once.
    pub(super) fn lead_soon(&mut self, now: Instant) {
        let alive = self.view.tree().len() - self.doubts.gone.len() as u32;
        let is_enough = self.is_majority(alive);
        if let Lead::Waiting { again_at, stalled: true } = &mut self.lead
            && is_enough
        {
            *again_at = (now + self.config.retry).min(*again_at);
        }
    }

    /// Another root is ahead of us.
    pub(super) fn on_nack(&mut self, now: Instant, base: ViewId, ballot: Ballot) {
        if base == self.view.id() && ballot > self.promised {
            self.promised = ballot;
            if self.lead == Lead::Waving {
                self.relay = None;
                self.lead = Lead::Waiting { again_at: now + self.config.retry, stalled: false };
            }
        }
    }

    pub(super) fn expire_lead(&mut self, now: Instant, out: &mut impl Out) {
        let Lead::Waiting { again_at, stalled } = self.lead else { return };
        if again_at > now {
            return;
        }
        if stalled {
            // Perhaps they are back.
            for task in self.gone().collect::<Vec<_>>() {
                self.inquire(now, task, out);
            }
            let gone = self.doubts.gone.len() as u32;
            if !self.is_majority(self.view.tree().len() - gone) {
                self.lead = Lead::Waiting { again_at: now + self.config.retry + self.config.patience, stalled };
                return;
            }
        }
        self.lead = Lead::Idle;
        self.consider(now, out);
    }
}

fn wave_of(change: &Change, view: &super::View) -> Wave {
    if change.joined.iter().any(|j| j.task >= view.next_task()) {
        Wave::NewNodeJoin
    } else if !change.joined.is_empty() {
        Wave::AliveNodeJoin
    } else if change.failed.is_empty() && change.checkpoint {
        Wave::Checkpoint
    } else {
        Wave::FailedNode
    }
}
