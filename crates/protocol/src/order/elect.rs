//! Who leads: ballots, votes, and patience.
//!
//! A member votes once in a ballot, for a log at least as complete as its own, and says so after the vote is on
//! disk. Any two majorities share a member, so a ballot has one leader, and that has everything that was ordered.
//!
//! Before it stands, a member asks for a *trial* vote, which changes nobody's ballot and is refused while a leader is
//! heard. 004 §6.1, CM-3: a member that cannot hear a leader whom the others hear would plead for ever. The one
//! that refuses it and hears both sides takes the lead itself after [`PLEAS`] of them: it reaches everybody.

use super::disk::Promise;
use super::follow::Following;
use super::lead::Leading;
use super::wire::{EntryView, Packet};
use super::{Member, Order, Out, Place, Role};
use phalanx_core::{Duration, Instant};

/// Pleas of one member, each within four patiences of the one before, until their hearer stands itself.
pub(super) const PLEAS: u8 = 3;

/// An election of ours under way.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Ballots {
    /// Only asking.
    trial: bool,
    /// Our own vote is on disk and the others were asked.
    asked: bool,
    /// Who said yes, a bit each.
    granted: u8,
}

impl Order {
    /// A follower or candidate lost patience.
    pub(super) fn on_silence(&mut self, now: Instant, out: &mut impl Out) {
        if matches!(self.role, Role::Candidate(_)) {
            self.stall(out);
        }
        self.election_at = now + self.draw_patience();
        self.outbox.rewind();
        self.role = Role::Candidate(Ballots { trial: true, asked: true, granted: 0 });
        self.send_to_all(Packet::Ask { ballot: self.promise.ballot + 1, trial: true, last: self.log.last() }, out);
        self.count_vote(now, self.seat.me);
    }

    pub(super) fn on_trial(&mut self, now: Instant, from: Member, ballot: u64, last: Place, out: &mut impl Out) {
        let content = match &mut self.role {
            Role::Leader(leading) => {
                // It does not hear us: let it.
                leading.poke(from, now, &self.config);
                true
            }
            Role::Follower(f) => f.is_content(now, &self.config),
            Role::Candidate(_) => false,
        };
        let granted = !content && ballot > self.promise.ballot && self.is_as_complete(last);
        self.send(from, Packet::Answer { ballot: self.promise.ballot, asked: ballot, trial: true, granted }, out);
        if content && matches!(self.role, Role::Follower(_)) {
            self.lose_patience_soon(now);
            if let Role::Follower(f) = &mut self.role
                && f.leader != Some(from)
                && f.plead(from, now, self.config.patience * 4) >= PLEAS
            {
                self.stand(now);
            }
        }
    }

    pub(super) fn on_ask(&mut self, now: Instant, from: Member, ballot: u64, last: Place, out: &mut impl Out) {
        if ballot > self.promise.ballot {
            self.step_into(now, ballot, None);
        }
        let free = self.promise.vote.is_none_or(|m| m == from) && !matches!(self.role, Role::Leader(_));
        if ballot == self.promise.ballot && free && self.is_as_complete(last) {
            self.promise.vote = Some(from);
            self.owed_vote = true;
            self.election_at = now + self.draw_patience();
        } else {
            let ballot_here = self.promise.ballot;
            self.send(from, Packet::Answer { ballot: ballot_here, asked: ballot, trial: false, granted: false }, out);
        }
    }

    pub(super) fn on_answer(
        &mut self,
        now: Instant,
        from: Member,
        ballot: u64,
        (asked, trial, granted): (u64, bool, bool),
        _: &mut impl Out,
    ) {
        if ballot > self.promise.ballot {
            return self.step_into(now, ballot, None);
        }
        if let Role::Candidate(b) = &self.role
            && b.trial == trial
            && asked == self.promise.ballot + u64::from(trial)
            && granted
        {
            self.count_vote(now, from);
        }
    }

    fn count_vote(&mut self, now: Instant, from: Member) {
        let Role::Candidate(b) = &mut self.role else { return };
        b.granted |= 1 << from.0;
        let (trial, votes) = (b.trial, b.granted.count_ones() as usize);
        if votes >= self.majority() {
            if trial { self.stand(now) } else { self.lead(now) }
        }
    }

    fn stand(&mut self, now: Instant) {
        self.promise = Promise { ballot: self.promise.ballot + 1, vote: Some(self.seat.me) };
        self.owed_vote = false;
        self.outbox.rewind();
        self.role = Role::Candidate(Ballots::default());
        self.election_at = now + self.draw_patience();
    }

    /// Votes that have reached the disk: our own makes us ask for the others', another's is told to its candidate.
    pub(super) fn settle_votes(&mut self, now: Instant, out: &mut impl Out) {
        if !self.disk.promised(self.promise) {
            return;
        }
        let Promise { ballot, vote } = self.promise;
        if let (true, Some(candidate)) = (self.owed_vote, vote) {
            self.owed_vote = false;
            self.send(candidate, Packet::Answer { ballot, asked: ballot, trial: false, granted: true }, out);
        }
        if let Role::Candidate(b) = &mut self.role
            && !b.asked
        {
            b.asked = true;
            self.send_to_all(Packet::Ask { ballot, trial: false, last: self.log.last() }, out);
            self.count_vote(now, self.seat.me);
        }
    }

    /// A majority voted for us. The barrier makes all that came before us ordered once it is.
    fn lead(&mut self, now: Instant) {
        self.outbox.rewind();
        let next = self.log.last_index() + 1;
        self.role = Role::Leader(Box::new(Leading::new(now, next, &self.config)));
        if self.log.has_room(None) {
            self.log.push(EntryView { ballot: self.promise.ballot, origin: None, message: &[] });
        } else {
            self.counters.log_full += 1;
        }
    }

    /// Follows `leader`, or nobody yet, in `ballot`.
    pub(super) fn step_into(&mut self, now: Instant, ballot: u64, leader: Option<Member>) {
        if ballot > self.promise.ballot {
            self.promise = Promise { ballot, vote: None };
            self.owed_vote = false;
        }
        // Only a leader had no election to wait for; anybody else's patience goes on.
        if matches!(self.role, Role::Leader(_)) {
            self.election_at = now + self.draw_patience();
        }
        self.outbox.rewind();
        self.role = Role::Follower(Following::of(leader, now));
    }

    /// There is work: a leader that said it would be silent for long is no longer given that long.
    pub(super) fn lose_patience_soon(&mut self, now: Instant) {
        let patience = self.draw_patience();
        if let Role::Follower(f) = &mut self.role
            && std::mem::replace(&mut f.idle, false)
        {
            f.calm_from = now;
            self.election_at = self.election_at.min(now + patience);
        }
    }

    pub(super) fn draw_patience(&mut self) -> Duration {
        self.config.patience + Duration(self.rng.below(self.config.jitter.0))
    }

    fn is_as_complete(&self, last: Place) -> bool {
        let ours = self.log.last();
        (last.ballot, last.index) >= (ours.ballot, ours.index)
    }
}
