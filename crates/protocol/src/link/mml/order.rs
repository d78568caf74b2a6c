//! Order: messages are handed on by number, each once. What comes early waits, up to [`WINDOW`].

use super::WINDOW;
use phalanx_core::{Buf, Fingerprint, Port};
use phalanx_wire::mml::Packet;
use std::collections::VecDeque;

/// What has arrived of a numbered stream.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Order {
    /// All messages below were handed on, or given up.
    next: u64,
    /// Place `i` is for number `next + i`. Not empty only while a gap keeps early messages waiting: the first
    /// place is then free, the last taken.
    held: VecDeque<Option<Early>>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Early {
    from: Port,
    to: Port,
    payload: Buf,
}

/// What a number means before anything is known about who sent it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Look {
    /// It had come before.
    Had,
    /// It is awaited.
    New,
    /// It is too far ahead to be kept.
    Beyond,
}

impl Order {
    /// The first number that has not arrived.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// What message `n` would be. Changes nothing.
    pub(super) fn look(&self, n: u64) -> Look {
        match n.checked_sub(self.next) {
            None => Look::Had,
            Some(ahead) if ahead >= WINDOW => Look::Beyond,
            Some(ahead) if self.held.get(ahead as usize).is_some_and(Option::is_some) => Look::Had,
            Some(_) => Look::New,
        }
    }

    /// Takes an authentic message that looked [`Look::New`]; returns how many were handed on.
    pub(super) fn take<D: FnMut(Port, Port, &[u8])>(&mut self, packet: &Packet<'_>, deliver: &mut D) -> u64 {
        let ahead = (packet.number - self.next) as usize;
        if ahead > 0 {
            if self.held.len() <= ahead {
                self.held.resize(ahead + 1, None);
            }
            self.held[ahead] = Some(Early { from: packet.from, to: packet.to, payload: Buf::copy_of(packet.payload) });
            return 0;
        }
        deliver(packet.from, packet.to, packet.payload);
        self.next += 1;
        self.held.pop_front();
        1 + self.drain(deliver)
    }

    /// Gives up what is missing below `floor`; returns how many were handed on and how many are missing for good.
    pub(super) fn skip<D: FnMut(Port, Port, &[u8])>(&mut self, floor: u64, deliver: &mut D) -> (u64, u64) {
        let (mut delivered, mut lost) = (0, 0);
        while self.next < floor {
            match self.held.pop_front() {
                Some(Some(early)) => {
                    deliver(early.from, early.to, early.payload.bytes());
                    delivered += 1;
                    self.next += 1;
                }
                Some(None) => {
                    lost += 1;
                    self.next += 1;
                }
                // Nothing waits beyond: one step, however far the floor is.
                None => {
                    lost += floor - self.next;
                    self.next = floor;
                }
            }
        }
        (delivered + self.drain(deliver), lost)
    }

    fn drain<D: FnMut(Port, Port, &[u8])>(&mut self, deliver: &mut D) -> u64 {
        let mut delivered = 0;
        while let Some(early) = self.held.front_mut().and_then(Option::take) {
            self.held.pop_front();
            self.next += 1;
            delivered += 1;
            deliver(early.from, early.to, early.payload.bytes());
        }
        if self.held.is_empty() {
            self.held = VecDeque::new();
        }
        delivered
    }

    /// True when early messages wait for a missing one.
    pub(super) fn has_early(&self) -> bool {
        !self.held.is_empty()
    }

    /// Bit `i`: number `next + 1 + i` waits here.
    pub(super) fn early(&self) -> u64 {
        let taken = self.held.iter().skip(1).enumerate().filter(|(_, early)| early.is_some());
        taken.fold(0, |bits, (i, _)| bits | 1 << i)
    }

    /// Bit `i`: number `next + i` is missing, of all numbers below `end`.
    pub(super) fn missing(&self, end: u64) -> u64 {
        let places = (end - self.next).min(WINDOW) as usize;
        let absent = (0..places).filter(|&i| !matches!(self.held.get(i), Some(Some(_))));
        absent.fold(0, |bits, i| bits | 1 << i)
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&self.next).add(&self.held.len());
        for early in &self.held {
            print.add(&early.as_ref().map(|e| (e.from, e.to, e.payload.bytes())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_wire::mml::Kind;

    fn packet(number: u64, payload: &[u8]) -> Packet<'_> {
        Packet { kind: Kind::Nacked, from: Port(1), to: Port(2), number, payload, signed: &[], signature: &[] }
    }

    #[test]
    fn early_messages_wait_and_the_missing_one_frees_them() {
        let (mut order, mut got) = (Order::default(), Vec::new());
        let mut deliver = |_: Port, _: Port, p: &[u8]| got.push(p[0]);
        for n in [2u8, 1, 4] {
            assert_eq!(order.look(n.into()), Look::New);
            assert_eq!(order.take(&packet(n.into(), &[n]), &mut deliver), 0);
            assert_eq!(order.look(n.into()), Look::Had);
        }
        assert_eq!((order.early(), order.missing(6)), (0b1011, 0b10_1001));
        assert_eq!(order.take(&packet(0, &[0]), &mut deliver), 3);
        assert_eq!((order.next(), order.missing(6), order.has_early()), (3, 0b101, true));
        assert_eq!(order.look(3 + WINDOW), Look::Beyond);
        assert_eq!(order.skip(4, &mut deliver), (1, 1));
        assert_eq!((order.next(), order.has_early()), (5, false));
        assert_eq!(order.skip(1 << 60, &mut deliver), (0, (1 << 60) - 5));
        assert_eq!(got, [0, 1, 2, 4]);
    }
}
