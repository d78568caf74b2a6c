//! A steward compares what replicas have, and draws the consequence.

use super::{Out, Steward};
use crate::manager::diagnose::Verdict;
use crate::manager::wire::{Ballot, Packet, Sworn};
use phalanx_core::Instant;

/// Statements that are looked at in one packet.
const SWORN_MAX: usize = 8;

impl Steward {
    pub(super) fn on_declared(&mut self, now: Instant, sworn: &[Sworn], out: &mut impl Out) {
        let mut news = None;
        for s in sworn.iter().take(SWORN_MAX) {
            if !self.is_of_group(s.by) || !s.holds(self.signer.verifier(), &self.config.cluster) {
                self.counters.unproved += 1;
                continue;
            }
            if let Some(joining) = &mut self.joining {
                joining.on_sworn(s.by, s.statement);
            }
            if self.doctor.on_sworn(*s) {
                news = Some(s.statement.index);
            }
        }
        self.try_to_join(now, out);
        if let Some(index) = news
            && self.replica.is_some()
        {
            // Who is not heard by one of us is heard by way of us.
            self.doctor.open(index, now);
            self.pass_on(index, out);
        }
        self.judge(now, out);
    }

    /// Something is odd: what have the others after this entry?
    pub(super) fn open_case(&mut self, now: Instant, index: u64) {
        let several = self.group().is_some_and(|g| g.seats.len() > 1);
        if several && self.replica.is_some() && self.doctor.open(index, now) {
            self.counters.self_diagnoses += 1;
        }
    }

    pub(super) fn on_case_due(&mut self, now: Instant, out: &mut impl Out) {
        let Some(index) = self.doctor.due(now) else { return };
        let Some(replica) = &self.replica else { return };
        let epoch = replica.group().epoch;
        let mut ours = None;
        self.with_replica(now, out, |r, around| ours = r.swear(epoch, index, around));
        ours.into_iter().for_each(|s| _ = self.doctor.on_sworn(s));
        let known = self.doctor.known(index);
        let others: Vec<_> = self.group().map_or(Vec::new(), |g| g.keys().filter(|k| *k != self.key).collect());
        for key in others {
            self.send(key, Packet::Declared(known.clone()), out);
            if !known.iter().any(|s| s.by == key) {
                self.send(key, Packet::Declare { epoch, index }, out);
            }
        }
        self.judge(now, out);
    }

    fn judge(&mut self, now: Instant, out: &mut impl Out) {
        let Some(replica) = &self.replica else { return };
        let group = replica.group().clone();
        match self.doctor.judge(self.key, &group) {
            Some(Verdict::Wrong(key)) => self.with_replica(now, out, |r, around| r.accuse(key, around)),
            Some(Verdict::WeAreWrong) => {
                self.barred = group.epoch;
                self.end_replica();
                self.ended = "the replica here had another state than both others: it ended, and its seat moves".into();
            }
            Some(Verdict::Nobody(why)) => {
                self.halted = why;
                self.with_replica(now, out, |r, _| r.halt());
            }
            None => {}
        }
    }

    fn pass_on(&mut self, index: u64, out: &mut impl Out) {
        let known = self.doctor.known(index);
        let others: Vec<_> = self.group().map_or(Vec::new(), |g| g.keys().filter(|k| *k != self.key).collect());
        others.into_iter().for_each(|key| self.send(key, Packet::Declared(known.clone()), out));
    }

    pub(super) fn on_differ(&mut self, now: Instant, one: &Ballot, other: &Ballot, out: &mut impl Out) {
        let (verifier, cluster) = (self.signer.verifier(), &self.config.cluster);
        let holds = |b: &Ballot| self.is_of_group(b.by) && b.holds(verifier, cluster);
        let is_one = one.vote.id == other.vote.id && one.vote.to == other.vote.to;
        if is_one && holds(one) && holds(other) {
            self.with_replica(now, out, |r, around| r.on_differ(one, other, around));
        } else {
            self.counters.unproved += 1;
        }
    }
}
