//! Messages held back on the receive side: delayed for a span, or parked until the next one of their peer (004 §5).
//!
//! What is held is never lost: it comes out when it is due, when its rule is healed, or when room is needed.
//! ⚠ The paper parks until the next message, whoever sent it, and for ever when none comes. Among many peers a
//! swap of two messages of different senders is nothing anybody could notice, so we wait for the same peer; and
//! we wait for [`PATIENCE`] only.

use phalanx_core::buf::Attachment;
use phalanx_core::{Buf, Duration, Fingerprint, Instant};
use std::collections::{BTreeMap, VecDeque};
use std::hash::Hash;

/// Messages that one injector holds. Past it the one that is due first is released early and counted.
pub const MAX_HELD: usize = 4_096;
/// How long a parked message waits for the next one of its peer.
pub const PATIENCE: Duration = Duration::from_millis(100);

/// A message that waits, and for which rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Held<A> {
    pub(crate) from: A,
    pub(crate) packet: Buf,
    pub(crate) rule: u32,
}

impl<A> Held<A> {
    /// A copy of a received packet, with what is attached to it by reference.
    pub(crate) fn new(from: A, bytes: &[u8], attached: Option<&Attachment>, rule: u32) -> Self {
        Self { from, packet: copy(bytes, attached), rule }
    }
}

/// A packet of our own with the same bytes and the same attachment.
pub(crate) fn copy(bytes: &[u8], attached: Option<&Attachment>) -> Buf {
    let Some(a) = attached else {
        return Buf::copy_of(bytes);
    };
    let mut packet = Buf::new(0, bytes.len());
    packet.extend(&bytes[..a.at]);
    packet.attach(a.snapshot.clone(), a.range.clone());
    packet.extend(&bytes[a.at..]);
    packet
}

/// On which side of its peer's next message a parked one is delivered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Side {
    /// Delayed: in front of it.
    Before,
    /// Reordered: behind it.
    Behind,
}

/// Everything that one injector holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Holds<A> {
    /// By when they are due, then by arrival.
    delayed: BTreeMap<(Instant, u64), Held<A>>,
    /// By when their wait ends. At most one for each peer and side.
    parked: VecDeque<Parked<A>>,
    arrivals: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Parked<A> {
    due: Instant,
    arrival: u64,
    side: Side,
    held: Held<A>,
}

impl<A: Copy + Eq> Holds<A> {
    pub(crate) const fn new() -> Self {
        Self { delayed: BTreeMap::new(), parked: VecDeque::new(), arrivals: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.delayed.len() + self.parked.len()
    }

    /// When the next one comes out by itself.
    pub(crate) fn deadline(&self) -> Instant {
        let delayed = self.delayed.first_key_value().map_or(Instant::NEVER, |(key, _)| key.0);
        let parked = self.parked.front().map_or(Instant::NEVER, |p| p.due);
        delayed.min(parked)
    }

    /// Holds a message until `due`. The caller has made room.
    pub(crate) fn delay(&mut self, due: Instant, held: Held<A>) {
        let arrival = self.arrive();
        self.delayed.insert((due, arrival), held);
    }

    /// Holds a message until the next one of its peer, or until `due`. The caller has made room.
    pub(crate) fn park(&mut self, due: Instant, side: Side, held: Held<A>) {
        let arrival = self.arrive();
        let at = self.parked.partition_point(|p| p.due <= due);
        self.parked.insert(at, Parked { due, arrival, side, held });
    }

    fn arrive(&mut self) -> u64 {
        assert!(self.len() < MAX_HELD, "the caller makes room before it holds one more");
        self.arrivals += 1;
        self.arrivals
    }

    /// Takes the parked message of a peer whose next message is here.
    pub(crate) fn take_parked(&mut self, from: A, side: Side) -> Option<Held<A>> {
        let at = self.parked.iter().position(|p| p.side == side && p.held.from == from)?;
        self.parked.remove(at).map(|p| p.held)
    }

    /// Lets go of what a peer's messages wait for: they belong to a conversation that is over.
    pub(crate) fn forget(&mut self, from: A) -> usize {
        let before = self.len();
        self.delayed.retain(|_, held| held.from != from);
        self.parked.retain(|p| p.held.from != from);
        before - self.len()
    }

    /// Whether a message of that peer is parked on that side.
    pub(crate) fn is_parked(&self, from: A, side: Side) -> bool {
        self.parked.iter().any(|p| p.side == side && p.held.from == from)
    }

    /// Takes the earliest message that is due, and whether it waited for a swap in vain.
    pub(crate) fn take_due(&mut self, now: Instant) -> Option<(Held<A>, bool)> {
        if self.deadline() > now { None } else { self.take_first() }
    }

    /// Takes the message that is due first, whenever that is.
    pub(crate) fn take_first(&mut self) -> Option<(Held<A>, bool)> {
        let delayed = self.delayed.first_key_value().map(|(key, _)| *key);
        let parked = self.parked.front().map(|p| (p.due, p.arrival));
        match (delayed, parked) {
            (Some(d), Some(p)) if p < d => self.parked.pop_front().map(|p| (p.held, p.side == Side::Behind)),
            (None, Some(_)) => self.parked.pop_front().map(|p| (p.held, p.side == Side::Behind)),
            _ => self.delayed.pop_first().map(|(_, held)| (held, false)),
        }
    }

    /// Makes everything that `of` names due at once, in the order in which it arrived.
    pub(crate) fn release(&mut self, of: impl Fn(u32) -> bool) {
        let parked = std::mem::take(&mut self.parked);
        for p in parked {
            if of(p.held.rule) {
                self.delayed.insert((Instant::ZERO, p.arrival), p.held);
            } else {
                self.parked.push_back(p);
            }
        }
        let delayed = std::mem::take(&mut self.delayed);
        self.delayed = delayed
            .into_iter()
            .map(|((due, arrival), held)| ((if of(held.rule) { Instant::ZERO } else { due }, arrival), held))
            .collect();
    }
}

impl<A: Copy + Eq + Hash> Holds<A> {
    pub(crate) fn fingerprint(&self, print: &mut Fingerprint) {
        for ((due, _), held) in &self.delayed {
            print.instant(*due);
            held.fingerprint(print);
        }
        for p in &self.parked {
            print.instant(p.due);
            print.add(&p.side);
            p.held.fingerprint(print);
        }
        print.add(&(self.delayed.len(), self.parked.len()));
    }
}

impl<A: Hash> Held<A> {
    fn fingerprint(&self, print: &mut Fingerprint) {
        // Attached messages are immutable and known by their length; their bytes stay where they are.
        print.add(&(&self.from, self.rule, self.packet.bytes(), self.packet.len()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(byte: u8) -> Held<u8> {
        Held::new(byte % 2, &[byte], None, u32::from(byte % 3))
    }

    fn drain(holds: &mut Holds<u8>, now: Instant) -> Vec<u8> {
        std::iter::from_fn(|| holds.take_due(now)).map(|(h, _)| h.packet.bytes()[0]).collect()
    }

    #[test]
    fn messages_come_out_when_they_are_due_and_ties_in_order_of_arrival() {
        let mut holds = Holds::new();
        for (due, byte) in [(30, 1), (10, 2), (30, 3), (20, 4)] {
            holds.delay(Instant(due), held(byte));
        }
        assert_eq!(holds.deadline(), Instant(10));
        assert_eq!(drain(&mut holds, Instant(20)), [2, 4]);
        assert_eq!(drain(&mut holds, Instant(30)), [1, 3]);
        assert_eq!(holds.deadline(), Instant::NEVER);
    }

    /// FI-1: a parked message waits for its own peer, and no longer than its patience.
    #[test]
    fn a_parked_message_waits_for_its_peer_or_runs_out_of_patience() {
        let mut holds = Holds::new();
        holds.park(Instant(5) + PATIENCE, Side::Behind, held(1));
        assert!(holds.take_parked(0, Side::Behind).is_none());
        assert!(holds.take_parked(1, Side::Before).is_none());
        assert!(holds.is_parked(1, Side::Behind));
        assert_eq!(holds.deadline(), Instant(5) + PATIENCE);
        let (late, in_vain) = holds.take_due(Instant(5) + PATIENCE).unwrap();
        assert!(in_vain && late.packet.bytes() == [1]);
    }

    /// Healing one rule lets its messages go, in the order in which they arrived, and keeps the others.
    #[test]
    fn a_release_keeps_the_order_of_arrival() {
        let mut holds = Holds::new();
        holds.delay(Instant(90), held(0));
        holds.park(Instant(60), Side::Behind, held(3));
        holds.delay(Instant(50), held(6));
        holds.delay(Instant(70), held(1));
        holds.release(|rule| rule == 0);
        assert_eq!(drain(&mut holds, Instant::ZERO), [0, 3, 6]);
        assert_eq!(drain(&mut holds, Instant(70)), [1]);
    }
}
