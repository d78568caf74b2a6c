//! Our own messages, from the moment they are accepted until they are ordered.
//!
//! MM-3: a message is named (member, boot, seq) and kept here until it is seen in the order, so whoever leads gets
//! it, again if need be; the name keeps it from being ordered twice. Bounded; the newest message is refused.

use super::flight::Flight;
use super::wire::{ITEMS_BOUND, Messages, Packet, push_message};
use super::{Member, Order, Out, Output, Role};
use phalanx_core::{Buf, Fingerprint, Instant, Ring};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Outbox {
    messages: Ring<Buf>,
    /// The number of the first message.
    first: u64,
    /// The next to forward.
    next: u64,
    flight: Flight,
    /// When the leader should have taken what was forwarded.
    pub(super) retry_at: Instant,
}

impl Outbox {
    pub(super) fn new(bound: usize) -> Self {
        Self { messages: Ring::new(bound), first: 0, next: 0, flight: Flight::default(), retry_at: Instant::NEVER }
    }

    /// Takes a message and returns its number, or nothing when it is full.
    pub(super) fn push(&mut self, message: &[u8]) -> Option<u64> {
        if self.messages.is_full() {
            return None;
        }
        let seq = self.end();
        self.messages.push(Buf::copy_of(message)).ok()?;
        Some(seq)
    }

    pub(super) fn get(&self, seq: u64) -> Option<&[u8]> {
        Some(self.messages.get(usize::try_from(seq.checked_sub(self.first)?).ok()?)?.bytes())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    fn end(&self) -> u64 {
        self.first + self.messages.len() as u64
    }

    /// The first `n` of this boot are ordered.
    pub(super) fn ordered(&mut self, n: u64) {
        while self.first < n && self.messages.pop().is_some() {
            self.first += 1;
        }
    }

    /// Somebody else leads: begin again with what is not ordered.
    pub(super) fn rewind(&mut self) {
        self.next = self.first;
        self.flight.clear();
        self.retry_at = Instant::NEVER;
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.instant(self.retry_at);
        print.add(&(self.first, self.next, self.flight));
        for m in self.messages.iter() {
            print.add(&m.bytes());
        }
    }
}

impl Order {
    /// What was forwarded is not in our log yet: send it again, and doubt a leader that stays silent.
    pub(super) fn on_forward_due(&mut self, now: Instant) {
        self.outbox.rewind();
        self.lose_patience_soon(now);
    }

    /// Sends what the leader has not got, as far as packets may be under way.
    pub(super) fn forward(&mut self, now: Instant, leader: Member, out: &mut impl Out) {
        let in_log = self.log.at_tail().seen(self.own(0)).max(self.outbox.first);
        self.outbox.flight.arrived(in_log);
        self.outbox.next = self.outbox.next.max(in_log);
        while self.outbox.next < self.outbox.end() && !self.outbox.flight.is_full() {
            let packet =
                Packet::Forward { boot: self.seat.boot, first: self.outbox.next, messages: Messages::default() };
            packet.encode(self.seat.epoch, &mut self.scratch);
            let list_at = self.scratch.len() - 2;
            for _ in 0..ITEMS_BOUND {
                let Some(message) = self.outbox.get(self.outbox.next) else { break };
                if self.scratch.len() > list_at + 2 && self.scratch.len() + message.len() > self.config.batch_bytes {
                    break;
                }
                push_message(&mut self.scratch, list_at, message);
                self.outbox.next += 1;
            }
            out.push(Output::Send { to: leader, packet: &self.scratch });
            self.scratch.clear();
            self.outbox.flight.push(self.outbox.next);
        }
        if self.outbox.is_empty() {
            self.outbox.retry_at = Instant::NEVER;
        } else if self.outbox.retry_at == Instant::NEVER {
            self.outbox.retry_at = now + self.config.heartbeat * 2;
        }
    }

    /// Puts our own messages into the log that we lead.
    pub(super) fn admit_own(&mut self, now: Instant) {
        loop {
            let origin = self.own(self.log.at_tail().seen(self.own(0)));
            let Some(message) = self.outbox.get(origin.seq) else { return };
            if !self.log.has_room(Some(message.len())) {
                return;
            }
            let ballot = self.promise.ballot;
            self.log.push(super::wire::EntryView { ballot, origin: Some(origin), message });
            if let Role::Leader(leading) = &mut self.role {
                leading.wake(now, &self.config);
            }
        }
    }
}
