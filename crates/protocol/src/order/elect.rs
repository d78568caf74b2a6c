//! Who leads: ballots, votes, and patience.
//!
//! A member votes once in a ballot, for a log at least as complete as its own, and says so after the vote is on
//! disk. Any two majorities share a member, so a ballot has one leader, and that has everything that was ordered.
//!
//! Before it stands, a member asks for a *trial* vote, which changes nobody's ballot and is refused while a leader is
//! heard. 004 §6.1, CM-3: a member that cannot hear a leader whom the others hear, or is not heard by it, would plead
//! for ever. The one that refuses it and hears both sides takes the lead itself after [`PLEAS`] of them: it reaches
//! everybody.

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

#[cfg(test)]
mod tests {
    use super::super::net::{Collected, Owned};
    use super::super::wire::{Entries, push_entry};
    use super::super::{Config, Input, Origin, Seat};
    use super::*;
    use phalanx_core::{Machine, Rng};

    const NOW: Instant = Instant(1_000);

    fn member(records: &[Vec<u8>]) -> Order {
        let seat = Seat { me: Member(0), members: 3, epoch: 1, boot: 1 };
        Order::recover(Config::default(), seat, 0, records, Rng::new(1, 0), NOW).unwrap()
    }

    fn bytes(packet: Packet<'_>) -> Vec<u8> {
        let mut bytes = vec![];
        packet.encode(1, &mut bytes);
        bytes
    }

    fn receive(order: &mut Order, from: u8, packet: Packet<'_>) -> Vec<Owned> {
        let mut out = Collected::default();
        order.handle(NOW, Input::Received { from: Member(from), packet: &bytes(packet) }, &mut out);
        out.0
    }

    fn persisted(order: &mut Order, token: u64) -> Vec<Owned> {
        let mut out = Collected::default();
        order.handle(NOW, Input::Persisted { token }, &mut out);
        out.0
    }

    fn answer(ballot: u64, granted: bool) -> Vec<u8> {
        bytes(Packet::Answer { ballot, asked: ballot, trial: false, granted })
    }

    /// MM-3: a vote is told after it is on disk, once in a ballot, and a restart does not forget it.
    #[test]
    fn a_vote_is_durable_before_it_is_told() {
        let mut order = member(&[]);
        let ask = Packet::Ask { ballot: 4, trial: false, last: Place::default() };
        let [Owned::Persist(token, false, record)] = &receive(&mut order, 1, ask)[..] else {
            panic!("not just a write")
        };
        assert_eq!(receive(&mut order, 2, ask), [Owned::Send(Member(2), answer(4, false))], "one vote in a ballot");
        assert_eq!(persisted(&mut order, *token), [Owned::Send(Member(1), answer(4, true))]);
        assert_eq!(receive(&mut order, 1, ask), [Owned::Send(Member(1), answer(4, true))], "asked again, told again");

        let mut restarted = member(std::slice::from_ref(record));
        assert_eq!(receive(&mut restarted, 2, ask), [Owned::Send(Member(2), answer(4, false))]);
        assert_eq!(receive(&mut restarted, 1, ask), [Owned::Send(Member(1), answer(4, true))]);
    }

    /// MM-3: an earlier leader's entry on a majority is not ordered before our own barrier is: a log that ends with
    /// a later ballot could still win over it.
    #[test]
    fn an_inherited_entry_is_ordered_with_the_barrier_only() {
        let mut order = member(&[]);
        let mut entry = bytes(Packet::Append {
            ballot: 1,
            round: 0,
            prev: Place::default(),
            commit: 0,
            prompt: false,
            idle: false,
            heard: true,
            entries: Entries::default(),
        });
        let list_at = entry.len() - 2;
        let origin = Some(Origin { member: Member(2), boot: 1, seq: 0 });
        push_entry(&mut entry, list_at, EntryView { ballot: 1, origin, message: b"inherited" });
        let mut out = Collected::default();
        order.handle(NOW, Input::Received { from: Member(2), packet: &entry }, &mut out);
        assert!(matches!(out.0[..], [Owned::Persist(0, ..)]), "nothing is acknowledged before it is durable");
        assert!(matches!(persisted(&mut order, 0)[..], [Owned::Send(Member(2), _)]));

        // The leader falls silent; member 1 grants first the trial, then the vote in ballot 2.
        order.expire(order.deadline(), &mut Collected::default());
        receive(&mut order, 1, Packet::Answer { ballot: 1, asked: 2, trial: true, granted: true });
        assert_eq!(persisted(&mut order, 1).len(), 2, "both others are asked once our own vote is durable");
        receive(&mut order, 1, Packet::Answer { ballot: 2, asked: 2, trial: false, granted: true });
        assert_eq!(order.leader(), Some(Member(0)));
        persisted(&mut order, 2);
        let ack = |durable| Packet::Ack { ballot: 2, round: 0, matched: true, have: durable, durable, commit: 0 };
        let delivers = |o: &Owned| matches!(o, Owned::Deliver(1, ..));
        assert!(!receive(&mut order, 1, ack(1)).iter().any(delivers), "it may still lose");
        assert!(receive(&mut order, 1, ack(2)).iter().any(delivers));
    }

    /// MM-2: what is no packet of this group changes nothing and is counted.
    #[test]
    fn strangers_and_noise_change_nothing() {
        let mut order = member(&[]);
        let before = order.clone();
        let mut other_epoch = vec![];
        Packet::Ask { ballot: 9, trial: false, last: Place::default() }.encode(2, &mut other_epoch);
        let ours = bytes(Packet::Ask { ballot: 9, trial: false, last: Place::default() });
        for (from, packet) in [(1, &other_epoch[..]), (0, &ours[..]), (3, &ours[..]), (1, &ours[..9])] {
            let mut out = Collected::default();
            order.handle(NOW, Input::Received { from: Member(from), packet }, &mut out);
            assert_eq!(out.0, []);
        }
        assert_eq!((order.counters().foreign, order.counters().malformed), (3, 1));
        order.counters = before.counters;
        assert_eq!(order, before);
    }

    /// MM-3: a message may be delivered before it is durable here, so after a restart the log may hold another one in
    /// its place. The leader's replaces it, and is not delivered again.
    #[test]
    fn what_was_delivered_but_not_durable_is_fetched_again() {
        let (mut promise, mut log) = (Promise::default(), super::super::Log::new(9, 999));
        let origin = |seq| Some(Origin { member: Member(2), boot: 1, seq });
        log.push(EntryView { ballot: 1, origin: origin(0), message: b"stale" });
        let mut record = vec![];
        promise.ballot = 1;
        super::super::Disk::new(promise, 0).issue(1, promise, &log, 999, &mut record);
        let seat = Seat { me: Member(0), members: 3, epoch: 1, boot: 2 };
        let mut order = Order::recover(Config::default(), seat, 1, [record], Rng::new(1, 0), NOW).unwrap();
        assert_eq!((order.ordered_up_to(), order.mark()), (0, None));

        let (prev, entries) = (Place::default(), Entries::default());
        let head =
            Packet::Append { ballot: 2, round: 0, prev, commit: 2, prompt: false, idle: false, heard: true, entries };
        let mut packet = bytes(head);
        let list_at = packet.len() - 2;
        push_entry(&mut packet, list_at, EntryView { ballot: 2, origin: origin(0), message: b"true" });
        push_entry(&mut packet, list_at, EntryView { ballot: 2, origin: origin(1), message: b"next" });
        let mut out = Collected::default();
        order.handle(NOW, Input::Received { from: Member(1), packet: &packet }, &mut out);
        let delivered: Vec<_> = out.0.iter().filter(|o| matches!(o, Owned::Deliver(..))).collect();
        assert_eq!(delivered, [&Owned::Deliver(2, origin(1).unwrap(), b"next".to_vec())]);
        assert_eq!((order.counters().contradictions, order.mark().unwrap().place.index), (0, 2));
    }

    /// Peers cannot cause errors: well-formed nonsense from both of them, in any role, and every invariant holds.
    #[test]
    fn lying_peers_break_no_invariant() {
        for seed in 0..300 {
            let (mut order, mut rng) = (member(&[]), Rng::new(seed, 3));
            for _ in 0..200 {
                let mut n = || rng.below(6);
                let (round, prev, entries) = (0, Place { index: n(), ballot: n() }, Entries::default());
                let (yes, no, ballot, commit) = (n() > 2, n() > 4, n(), n());
                let mut packet = bytes(match n() {
                    0 | 1 => Packet::Append { ballot, round, prev, commit, prompt: yes, idle: no, heard: yes, entries },
                    2 => Packet::Ack { ballot, round, matched: yes, have: n(), durable: n(), commit },
                    3 => Packet::Gone { ballot, round, first: n() },
                    4 => Packet::Ask { ballot, trial: no, last: prev },
                    _ => Packet::Answer { ballot, asked: n(), trial: no, granted: true },
                });
                if packet[1] == 0 {
                    let list_at = packet.len() - 2;
                    for _ in 0..n() {
                        let origin = Some(Origin { member: Member(n() as u8), boot: n(), seq: n() });
                        push_entry(&mut packet, list_at, EntryView { ballot: n(), origin, message: b"?" });
                    }
                }
                let (from, token, out) = (Member(1 + (n() % 2) as u8), n(), &mut Collected::default());
                order.handle(NOW, Input::Received { from, packet: &packet }, out);
                order.handle(NOW, Input::Persisted { token }, out);
                if yes && no {
                    order.expire(order.deadline(), out);
                    order.handle(NOW, Input::Submitted { message: b"!" }, out);
                }
            }
        }
    }

    #[test]
    fn a_message_past_the_bound_is_refused() {
        let (mut order, mut out) = (member(&[]), Collected::default());
        let message = vec![0; super::super::wire::MESSAGE_BOUND + 1];
        order.handle(NOW, Input::Submitted { message: &message }, &mut out);
        assert_eq!(out.0, [Owned::Refused]);
    }
}
