//! What a replica puts into the order.

use super::{Around, Replica};
use crate::manager::core::Ordered;
use crate::manager::state::{Entry, Fact, Reported};
use crate::manager::wire::Said;
use crate::manager::words::{Key, encode};
use crate::order;
use phalanx_core::Duration;
use std::collections::BTreeSet;

/// An agent's word waits so long for the leader to submit it.
const LEADERS_TURN: Duration = Duration::from_millis(300);
/// The next try to submit what the zone sees.
const FACT_AGAIN: Duration = Duration::from_secs(1);
/// A node that the zone does not show is lost, though nobody said so, after such a time.
const UNSEEN: Duration = Duration::from_secs(15);
/// The same for one whose whole zone is silent: longer than two heartbeats, and shorter than it takes to move a replica from one dead node to the next.
const SILENT_ALIKE: Duration = Duration::from_secs(7);
/// Facts of the zone submitted at once.
const FACTS_MAX: usize = 256;
/// Agents in one message that says what was carried out.
const DONE_MAX: usize = 512;
/// Longest part of a message in the order.
const PART: usize = 32 * 1024;
/// Reports that go into the order as one.
const REPORTED_MAX: usize = 256;

impl Replica {
    pub(super) fn submit_waiting(&mut self, around: &mut Around<'_>) {
        let (core, now) = (&self.core, around.now);
        self.inboxes.retain(|&(key, ask), inbox| {
            let desk = core.desk(key);
            if desk.is_some_and(|d| d.incarnation > inbox.incarnation) {
                return false;
            }
            let heard =
                desk.filter(|d| d.incarnation == inbox.incarnation).map_or(0, |d| if ask { d.asks } else { d.reports });
            inbox.items = inbox.items.split_off(&(heard + 1));
            if now >= inbox.submitted_at + FACT_AGAIN {
                // What was ordered too soon, or lost with a leader, is put there again; twice is once.
                inbox.submitted = heard;
            }
            !inbox.items.is_empty()
        });
        for which in self.inboxes.keys().copied().collect::<Vec<_>>() {
            self.submit_said(which, around);
        }
    }

    /// In the order of numbers, so that each is the next when it is applied.
    pub(super) fn submit_said(&mut self, which: (Key, bool), around: &mut Around<'_>) {
        let (key, ask) = which;
        let leads = self.leads();
        loop {
            let Some(inbox) = self.inboxes.get_mut(&which) else { return };
            let desk = self.core.desk(key).filter(|d| d.incarnation == inbox.incarnation);
            let heard = desk.map_or(0, |d| if ask { d.asks } else { d.reports });
            let number = heard.max(inbox.submitted) + 1;
            let Some((said, came_at)) = inbox.items.get(&number) else { return };
            if !leads && around.now < *came_at + LEADERS_TURN {
                return;
            }
            // The zone's word that it is there goes first.
            if !self.core.knows(key, inbox.incarnation) {
                return;
            }
            let (from, incarnation) = (key, inbox.incarnation);
            let fact = match said.clone() {
                Said::Ask(ask) => Fact::Asked { from, incarnation, number, ask },
                Said::Report(report) => Fact::Reported(vec![Reported { from, incarnation, number, report }]),
            };
            if !self.submit(fact, around) {
                return;
            }
            if let Some(inbox) = self.inboxes.get_mut(&which) {
                (inbox.submitted, inbox.submitted_at) = (inbox.submitted.max(number), around.now);
            }
        }
    }

    /// The next reports of several agents, as few entries as can be.
    pub(super) fn submit_reports(&mut self, from: BTreeSet<Key>, around: &mut Around<'_>) {
        let mut reports = Vec::new();
        for from in from {
            let Some(inbox) = self.inboxes.get_mut(&(from, false)) else { continue };
            let incarnation = inbox.incarnation;
            if !self.core.knows(from, incarnation) {
                continue;
            }
            let desk = self.core.desk(from).filter(|d| d.incarnation == incarnation);
            let first = desk.map_or(0, |d| d.reports).max(inbox.submitted) + 1;
            for number in first.. {
                let Some((Said::Report(report), _)) = inbox.items.get(&number) else { break };
                (inbox.submitted, inbox.submitted_at) = (number, around.now);
                reports.push(Reported { from, incarnation, number, report: report.clone() });
            }
        }
        for some in reports.chunks(REPORTED_MAX) {
            // What the order does not take now is submitted again when its time has come.
            self.submit(Fact::Reported(some.to_vec()), around);
        }
    }

    /// What the zone sees and the state does not know.
    pub(super) fn submit_world(&mut self, around: &mut Around<'_>) {
        let now = around.now;
        self.facts.retain(|_, at| now < *at + FACT_AGAIN);
        let state = self.core.state();
        let led_for = self.led_from.map_or(Duration::ZERO, |at| now.since(at).min(now.since(self.began_at)));
        let mut facts = Vec::new();
        for (key, node) in around.world {
            let is_known = state.node(key) == Some(node) && !state.is_lost(key);
            let is_older = state.node(key).is_some_and(|n| n.incarnation > node.incarnation);
            if !is_known && !is_older && !self.facts.contains_key(key) {
                facts.push((*key, Fact::Seen(node.clone())));
            }
        }
        for (node, there) in state.nodes() {
            let (key, incarnation) = (node.key, node.incarnation);
            if !there || around.world.contains_key(&key) || self.facts.contains_key(&key) {
                continue;
            }
            let was_told = around.gone.get(&key).is_some_and(|&gone| gone >= incarnation);
            let patience = if around.silent.contains(&key) { SILENT_ALIKE } else { UNSEEN };
            let is_heard = self.agents.get(&key).is_some_and(|l| now.since(l.heard_at) < patience);
            if was_told || (led_for >= patience && !is_heard) {
                facts.push((key, Fact::Lost { node: key, incarnation }));
            }
        }
        for (key, fact) in facts.into_iter().take(FACTS_MAX) {
            if !self.submit(fact, around) {
                return;
            }
            self.facts.insert(key, now);
        }
    }

    pub(super) fn submit_done(&mut self, around: &mut Around<'_>) {
        let mut done = Vec::new();
        for (&key, listener) in &mut self.agents {
            let is_due = listener.done > listener.done_told
                && self.core.desk(key).and_then(|d| d.waiting.front()).is_some_and(|i| i.id <= listener.done);
            if is_due && done.len() < DONE_MAX {
                listener.done_told = listener.done;
                done.push((key, listener.done));
            }
        }
        if !done.is_empty() {
            self.put(&Ordered::Done(done), around);
        }
    }

    pub(super) fn submit_tick(&mut self, around: &mut Around<'_>) {
        let Some(due) = self.core.state().wakes_at_ms() else { return };
        let late = self.agreed_ms(around).checked_sub(due);
        let turn = if self.leads() { 0 } else { 1000 };
        let waits = self.ticked_at.is_some_and(|at| around.now < at + FACT_AGAIN / 2);
        if late.is_some_and(|late| late >= turn) && !waits {
            self.ticked_at = Some(around.now);
            self.submit(Fact::Tick, around);
        }
    }

    /// This replica has the state that it lacked.
    pub(super) fn submit_arrival(&mut self, around: &mut Around<'_>) {
        let waits = self.arrived_at.is_some_and(|at| around.now < at + FACT_AGAIN);
        if self.core.state().fresh().contains(&self.key) && !waits {
            self.arrived_at = Some(around.now);
            self.submit(Fact::Arrived { by: self.key, epoch: self.group.epoch }, around);
        }
    }

    /// Another one is wrong.
    pub fn accuse(&mut self, whom: Key, around: &mut Around<'_>) {
        if whom != self.key && self.group.member(whom).is_some() && self.accused.insert(whom) {
            around.counters.accusations += 1;
            let (by, epoch) = (self.key, self.group.epoch);
            if !self.submit(Fact::Accused { by, whom, epoch }, around) {
                self.accused.remove(&whom);
            }
        }
    }

    /// True when the order took it.
    pub(super) fn submit(&mut self, fact: Fact, around: &mut Around<'_>) -> bool {
        let entry = Entry { at_ms: self.agreed_ms(around), fact };
        let whole = Ordered::Entry(entry);
        let bytes = encode(&whole);
        let bound = self.config.message_bound();
        if bytes.len() <= bound {
            return self.submit_bytes(&bytes, around);
        }
        let Ordered::Entry(entry) = whole else { return false };
        let bytes = encode(&entry);
        let count = bytes.len().div_ceil(PART);
        for (i, part) in bytes.chunks(PART).enumerate() {
            let part = Ordered::Part { first: i == 0, last: i + 1 == count, bytes: part.to_vec() };
            if !self.put(&part, around) {
                return false;
            }
        }
        true
    }

    pub(super) fn put(&mut self, what: &Ordered, around: &mut Around<'_>) -> bool {
        self.submit_bytes(&encode(what), around)
    }

    fn submit_bytes(&mut self, message: &[u8], around: &mut Around<'_>) -> bool {
        if self.order.is_none() || self.next.is_some() || self.halted {
            return false;
        }
        let refused = around.counters.refused;
        self.drive(Some(order::Input::Submitted { message }), around);
        around.counters.refused == refused
    }
}
