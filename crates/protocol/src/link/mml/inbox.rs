//! ACK, the receiving half: order, and when to acknowledge.
//!
//! An acknowledgement is signed and its signature checked, which costs both ends more than the packet does: it waits
//! a moment for more messages to acknowledge, unless something is missing.

use super::order::Order;
use super::{Config, Sums};
use phalanx_core::{Fingerprint, Instant, Port};
use phalanx_wire::mml::Packet;

/// So many messages may arrive before they are acknowledged without waiting for more.
const ACK_EVERY: u32 = 8;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Inbox {
    pub(super) order: Order,
    unacked: u32,
    ack_due: bool,
    ack_at: Instant,
}

impl Inbox {
    pub(super) fn new() -> Self {
        Self { order: Order::default(), unacked: 0, ack_due: false, ack_at: Instant::NEVER }
    }

    /// An authentic message arrived that was awaited.
    pub(super) fn on_message<D: FnMut(Port, Port, &[u8])>(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        config: &Config,
        sums: &mut Sums,
        deliver: &mut D,
    ) {
        sums.delivered += self.order.take(packet, deliver);
        self.unacked += 1;
        if self.order.has_early() || self.unacked >= ACK_EVERY {
            self.ack_due = true;
        } else if self.ack_at == Instant::NEVER {
            self.ack_at = now + config.ack_delay;
        }
    }

    /// An authentic message arrived again: our acknowledgement was lost.
    pub(super) fn on_repetition(&mut self) {
        self.ack_due = true;
    }

    pub(super) fn ack_due(&self) -> bool {
        self.ack_due
    }

    /// The acknowledgement that leaves now: everything below a number, and bits beyond it.
    pub(super) fn acknowledge(&mut self) -> (u64, u64) {
        self.unacked = 0;
        self.ack_due = false;
        self.ack_at = Instant::NEVER;
        (self.order.next(), self.order.early())
    }

    pub(super) fn deadline(&self) -> Instant {
        self.ack_at
    }

    pub(super) fn expire(&mut self, now: Instant) {
        if now >= self.ack_at {
            self.ack_due = true;
            self.ack_at = Instant::NEVER;
        }
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&(self.unacked, self.ack_due));
        print.instant(self.ack_at);
        self.order.fingerprint(print);
    }
}
