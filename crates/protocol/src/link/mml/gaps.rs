//! NACK, the receiving half: order, what is missing, and when to ask for it.
//!
//! A gap is seen when a later message or a tail arrives. It is asked for after a moment, because a network that
//! reorders fills it by itself; then at the pace of measured answers, slower each time; and after patience no more,
//! until the peer is heard again. One request names up to 64 numbers, however many packets showed the gap.

use super::order::Order;
use super::{Config, Gap, Sums};
use crate::link::rtt::Rtt;
use phalanx_core::{Code, Duration, Fingerprint, Instant, Port};
use phalanx_wire::mml::Packet;

/// How long a gap may be mere reordering.
const GRACE: Duration = Duration::from_millis(1);

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Gaps {
    pub(super) order: Order,
    /// The peer has sent all numbers below; what is missing of them is a gap.
    end: u64,
    /// From a request to its answer: a message or a floor.
    rtt: Rtt,
    backoff: u32,
    ask_due: bool,
    ask_at: Instant,
    /// When the only request for the first missing message left; `NEVER` when there were none or several.
    asked_at: Instant,
    /// Since when the first missing message is missing.
    stuck_since: Instant,
}

impl Gaps {
    pub(super) fn new() -> Self {
        Self {
            order: Order::default(),
            end: 0,
            rtt: Rtt::default(),
            backoff: 0,
            ask_due: false,
            ask_at: Instant::NEVER,
            asked_at: Instant::NEVER,
            stuck_since: Instant::NEVER,
        }
    }

    /// An authentic message arrived that was awaited.
    pub(super) fn on_message<D: FnMut(Port, Port, &[u8])>(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        sums: &mut Sums,
        deliver: &mut D,
    ) {
        let before = self.order.next();
        sums.delivered += self.order.take(packet, deliver);
        self.see(now, packet.number + 1, before);
    }

    /// True when a notice, or a message too far ahead, says something new. Changes nothing.
    pub(super) fn is_news(&self, end: u64, floor: u64) -> bool {
        end > self.end || floor > self.order.next() || self.has_given_up()
    }

    /// The peer says, authentically, that it has sent everything below `end`, and that what lies below `floor` is gone.
    pub(super) fn on_tail<D: FnMut(Port, Port, &[u8])>(
        &mut self,
        now: Instant,
        end: u64,
        floor: u64,
        sums: &mut Sums,
        deliver: &mut D,
    ) -> Option<Gap> {
        let first = self.order.next();
        let (delivered, lost) = self.order.skip(floor, deliver);
        sums.delivered += delivered;
        sums.gaps = sums.gaps.saturating_add(lost);
        self.see(now, end, first);
        (lost > 0).then_some(Gap { first, below: floor, lost })
    }

    /// Books what is known now: numbers go up to `end`, and before this packet all was there below `before`.
    fn see(&mut self, now: Instant, end: u64, before: u64) {
        let next = self.order.next();
        if next > before && self.asked_at != Instant::NEVER {
            self.rtt.sample(now.since(self.asked_at));
        }
        self.end = self.end.max(end).max(next);
        if self.end == next {
            self.rest();
        } else if self.stuck_since == Instant::NEVER || self.has_given_up() {
            self.stuck_since = now;
            self.ask_at = now + GRACE;
        } else if next > before {
            // Answers are coming: the rest of them may be under way.
            self.backoff = 0;
            self.stuck_since = now;
            self.asked_at = Instant::NEVER;
            self.ask_at = now + self.rtt.timeout(Duration::ZERO, 0);
        }
    }

    /// Nothing is missing.
    fn rest(&mut self) {
        self.backoff = 0;
        self.ask_due = false;
        self.ask_at = Instant::NEVER;
        self.asked_at = Instant::NEVER;
        self.stuck_since = Instant::NEVER;
    }

    fn has_given_up(&self) -> bool {
        self.stuck_since != Instant::NEVER && self.ask_at == Instant::NEVER
    }

    pub(super) fn ask_due(&self) -> bool {
        self.ask_due
    }

    /// The request that leaves now: from a number on, the bits that are missing.
    pub(super) fn ask(&mut self, now: Instant) -> (u64, u64) {
        self.ask_due = false;
        self.asked_at = if self.backoff == 1 { now } else { Instant::NEVER };
        (self.order.next(), self.order.missing(self.end))
    }

    pub(super) fn deadline(&self) -> Instant {
        self.ask_at
    }

    /// Time to ask, or to ask again. `Err` when no answer came for all of patience.
    pub(super) fn expire(&mut self, now: Instant, config: &Config) -> Result<(), Code> {
        if now < self.ask_at {
            return Ok(());
        }
        if now.since(self.stuck_since) >= config.patience && self.backoff > 1 {
            self.ask_at = Instant::NEVER;
            self.ask_due = false;
            self.backoff = 0;
            return Err(Code::Unreachable);
        }
        self.ask_due = true;
        self.ask_at = now + self.rtt.timeout(Duration::ZERO, self.backoff);
        self.backoff += 1;
        Ok(())
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&(self.end, self.rtt, self.backoff, self.ask_due));
        print.instant(self.ask_at);
        print.instant(self.asked_at);
        print.instant(self.stuck_since);
        self.order.fingerprint(print);
    }
}
