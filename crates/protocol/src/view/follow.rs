//! What everybody does with a wave: pass it on, wait for the branch, answer; and install what was decided.

use super::lead::Lead;
use super::relay::{Ack, Notice, Relay};
use super::{Ballot, Change, Member, Out, Output, Standing, Task, View, ViewId, Wave};
use phalanx_core::Instant;
use phalanx_wire::view::{Roster, Words};
use std::collections::BTreeSet;

impl Member {
    pub(super) fn on_notice(&mut self, now: Instant, from: Task, notice: Notice, out: &mut impl Out) {
        if let Some((_, change)) = self.accepted.take_if(|(_, c)| c.id == notice.base && c.base == self.view.id()) {
            // Nobody builds on a view that was not decided.
            let after = self.view.changed(&change);
            self.install(now, after, Some(change), out);
            if !self.is_in() {
                return;
            }
        }
        if notice.base != self.view.id() {
            return self.on_other_base(from, notice.base, out);
        }
        if notice.change.as_ref().is_some_and(|c| !self.view.allows(c)) {
            self.counters.senseless += 1;
            return;
        }
        if notice.ballot < self.promised {
            let words = Words::Nack { base: notice.base, ballot: self.promised };
            return self.say(notice.ballot.owner, words, out);
        }
        match &mut self.relay {
            Some(relay) if relay.is_of(notice.wave, notice.ballot) => {
                if relay.upstream.is_none() {
                    return;
                }
                // Whoever gave it to us first is gone, or thought to be.
                relay.upstream = Some(from);
                let more: Vec<_> = notice.gone.into_iter().filter(|t| !relay.gone.contains(t)).collect();
                let was_complete = relay.is_complete();
                self.cross(now, &more, false, out);
                if was_complete {
                    self.answer(out);
                }
            }
            // What is asked before a proposal comes too late after it.
            Some(relay) if relay.ballot == notice.ballot && notice.wave == Wave::RootDead => {}
            _ => self.take_part(now, Some(from), notice, out),
        }
    }

    /// A wave from another view than ours: one of the two was left behind.
    fn on_other_base(&mut self, from: Task, base: ViewId, out: &mut impl Out) {
        if base.number > self.view.id().number {
            self.say(from, Words::Behind { view: self.view.id() }, out);
        } else {
            self.inform(from, base, out);
        }
    }

    /// Agrees to a wave, passes it on and waits for the branch.
    pub(super) fn take_part(&mut self, now: Instant, from: Option<Task>, notice: Notice, out: &mut impl Out) {
        let Notice { wave, ballot, gone, change, .. } = notice;
        self.promised = ballot;
        if from.is_some() {
            // Another root leads.
            self.lead = Lead::Idle;
        }
        let best = if change.is_none() { self.accepted.clone() } else { None };
        let pausing = change.as_ref().is_some_and(|_| self.config.hooks);
        if let Some(change) = &change {
            self.seen = self.seen.max(change.id.number);
            self.accepted = Some((ballot, change.clone()));
            self.late_at = now + self.config.patience + self.config.patience;
            if pausing {
                out.push(Output::Pause { change });
            }
        }
        let mut gone: BTreeSet<_> = gone.into_iter().filter(|&t| t != self.me).collect();
        // Who was only silent may answer now.
        let certain = self.doubts.gone.iter().filter(|(t, certain)| **certain && !gone.contains(t));
        let found: BTreeSet<_> = certain.map(|(&t, _)| t).collect();
        gone.extend(&found);
        let (ask_at, pause_ends) = (now + self.config.patience, now + self.config.hook_patience);
        self.relay = Some(Relay {
            wave,
            ballot,
            change,
            upstream: from,
            gone,
            found,
            asked: BTreeSet::new(),
            awaited: BTreeSet::new(),
            count: 1,
            best,
            pausing,
            ask_at,
            pause_ends,
        });
        self.pass_down(out);
        self.finish(now, out);
    }

    /// Gives the wave to all below us that have not got it from us.
    fn pass_down(&mut self, out: &mut impl Out) {
        let Some(relay) = &mut self.relay else { return };
        let children = self.view.tree().children_without(self.me, &|t| relay.gone.contains(&t));
        let news: Vec<_> = children.into_iter().filter(|&t| relay.asked.insert(t)).collect();
        relay.awaited.extend(&news);
        for child in news {
            self.give(child, out);
        }
    }

    fn give(&self, child: Task, out: &mut impl Out) {
        let Some(relay) = &self.relay else { return };
        let (gone, change) = (relay.gone.iter().copied().collect(), relay.change.clone());
        let words = Words::Notice { wave: relay.wave, base: self.view.id(), ballot: relay.ballot, gone, change };
        self.say(child, words, out);
    }

    /// RV-3: the wave goes around these.
    pub(super) fn cross(&mut self, now: Instant, tasks: &[Task], found: bool, out: &mut impl Out) {
        let Some(relay) = &mut self.relay else { return };
        let (me, was_complete) = (self.me, relay.is_complete());
        let mut any = false;
        for &task in tasks.iter().filter(|&&t| t != me) {
            if relay.gone.insert(task) {
                any = true;
                relay.awaited.remove(&task);
                if found {
                    relay.found.insert(task);
                }
            }
        }
        if any && !was_complete {
            self.pass_down(out);
            self.finish(now, out);
        }
    }

    /// Answers when the branch has.
    fn finish(&mut self, now: Instant, out: &mut impl Out) {
        let Some(relay) = self.relay.take_if(|r| r.is_complete()) else { return };
        if relay.upstream.is_none() {
            return self.on_wave_done(now, relay, out);
        }
        self.relay = Some(Relay { ask_at: Instant::NEVER, ..relay });
        self.answer(out);
    }

    fn answer(&self, out: &mut impl Out) {
        let Some(Relay { wave, ballot, count, found, best, upstream: Some(upstream), .. }) = &self.relay else {
            return;
        };
        let gone = found.iter().copied().collect();
        let (base, best) = (self.view.id(), best.clone());
        let words = Words::Ack { wave: *wave, base, ballot: *ballot, count: *count, gone, best };
        self.say(*upstream, words, out);
    }

    pub(super) fn on_ack(&mut self, now: Instant, from: Task, ack: Ack, out: &mut impl Out) {
        let ours = self.relay.as_mut().filter(|_| ack.base == self.view.id());
        if ours.is_some_and(|relay| relay.take(from, ack)) {
            self.finish(now, out);
        } else {
            self.counters.late_acks += 1;
        }
    }

    /// RV-9: the application saved its state.
    pub(super) fn on_paused(&mut self, now: Instant, out: &mut impl Out) {
        if let Some(relay) = &mut self.relay
            && relay.pausing
        {
            relay.pausing = false;
            self.finish(now, out);
        }
    }

    pub(super) fn on_checkpoint(&mut self, now: Instant, out: &mut impl Out) {
        let root = self.root();
        if root == self.me {
            self.wants_checkpoint = true;
            self.consider(now, out);
        } else {
            self.say(root, Words::Checkpoint, out);
        }
    }

    pub(super) fn on_stable(&mut self, now: Instant, from: Task, change: Change, out: &mut impl Out) {
        if change.base == self.view.id() {
            if !self.view.allows(&change) {
                self.counters.senseless += 1;
                return;
            }
            let after = self.view.changed(&change);
            self.spread(&after, &change, out);
            self.install(now, after, Some(change), out);
            self.consider(now, out);
        } else if change.base.number >= self.view.id().number && change.id != self.view.id() {
            self.say(from, Words::Behind { view: self.view.id() }, out);
        }
    }

    /// There is a new view.
    pub(super) fn install(&mut self, now: Instant, view: View, change: Option<Change>, out: &mut impl Out) {
        self.relay = None;
        self.lead = Lead::Idle;
        self.accepted = None;
        self.late_at = Instant::NEVER;
        let is_us = |v: &View| v.contains(self.me) && v.person(self.me).is_some_and(|p| p.boot == self.start.boot);
        if !is_us(&view) {
            // Self inclusion: a view without us is none of ours.
            return self.part(view.id(), out);
        }
        self.counters.views += 1;
        self.seen = self.seen.max(view.id().number);
        self.promised = Ballot::first(view.tree().root().unwrap_or(self.me));
        let replaced = |t: Task| view.person(t) != self.view.person(t);
        self.doubts.gone.retain(|&t, _| view.contains(t) && !replaced(t));
        self.doubts.leaving.retain(|&t| view.contains(t) && !replaced(t));
        self.doubts.on_view(&view);
        self.view = view;
        self.last = change;
        out.push(Output::Installed { view: &self.view, change: self.last.as_ref() });
        self.talk.on_view(self.view.id(), &mut self.counters, out);
        self.sort_out_knocks(out);
        self.part_if_leaving(now, out);
        // Who was thought to be gone and is in the view may have been slow.
        for task in self.gone().collect::<Vec<_>>() {
            self.inquire(now, task, out);
        }
    }

    /// We are in no view any more.
    pub(super) fn part(&mut self, view: ViewId, out: &mut impl Out) {
        let left = self.standing == Standing::Leaving;
        self.standing = Standing::Out;
        self.relay = None;
        self.lead = Lead::Idle;
        self.accepted = None;
        self.late_at = Instant::NEVER;
        self.doubts.end();
        self.knocks.clear();
        out.push(if left { Output::Left } else { Output::Excluded { view } });
    }

    /// Tells somebody what became of its view.
    pub(super) fn inform(&mut self, to: Task, has: ViewId, out: &mut impl Out) {
        match &self.last {
            Some(change) if change.base == has => {
                let change = change.clone();
                self.say(to, Words::Stable { change }, out);
            }
            _ if has.number < self.view.id().number => self.say(to, Words::State { roster: self.view.roster() }, out),
            _ => {}
        }
    }

    pub(super) fn on_behind(&mut self, from: Task, view: ViewId, out: &mut impl Out) {
        self.inform(from, view, out);
        self.give_again(from, out);
    }

    /// The notice once more, to one that has not answered it.
    pub(super) fn give_again(&self, to: Task, out: &mut impl Out) {
        if self.relay.as_ref().is_some_and(|r| r.awaited.contains(&to)) {
            self.give(to, out);
        }
    }

    pub(super) fn on_state(&mut self, now: Instant, roster: &Roster, out: &mut impl Out) {
        if roster.id.number <= self.view.id().number {
            return;
        }
        match View::of(roster) {
            Ok(view) => {
                self.install(now, view, None, out);
                self.consider(now, out);
            }
            Err(_) => self.counters.senseless += 1,
        }
    }

    pub(super) fn expire_relay(&mut self, now: Instant, out: &mut impl Out) {
        let Some(relay) = self.relay.as_mut().filter(|r| r.ask_at <= now) else { return };
        relay.ask_at = now + self.config.patience;
        if relay.pausing && relay.pause_ends <= now {
            self.counters.hooks_late += 1;
            relay.pausing = false;
        }
        for task in relay.awaited.clone() {
            self.inquire(now, task, out);
        }
        self.finish(now, out);
    }

    /// We agreed to something, and do not hear what became of it.
    pub(super) fn expire_accepted(&mut self, now: Instant, out: &mut impl Out) {
        if self.late_at > now {
            return;
        }
        self.late_at = Instant::NEVER;
        let Some((ballot, _)) = &self.accepted else { return };
        self.late_at = now + self.config.patience + self.config.patience;
        let (owner, root) = (ballot.owner, self.root());
        if owner != self.me {
            self.say(owner, Words::Behind { view: self.view.id() }, out);
        }
        if root == self.me {
            self.consider(now, out);
        } else {
            self.inquire(now, root, out);
        }
    }
}
