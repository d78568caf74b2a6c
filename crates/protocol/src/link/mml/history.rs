//! NACK, the sending half: messages leave once, and a bounded history answers those who miss some.
//!
//! 004 §3: whoever asks and expects a confirmation must be ready to act when none comes; a positive acknowledgement
//! below would only repeat that. So the sender hears nothing when all goes well. Two notices keep the receiver from
//! being misled by silence: a *tail*, a few times after the last message and ever rarer, says how far the numbers
//! go; a *floor* says that what lies below is gone for good, when somebody asked for it.

use super::context::Context;
use super::{Config, Sums};
use crate::link::sign::Signer;
use phalanx_core::{Buf, Code, Duration, Fingerprint, Instant, Port};
use phalanx_wire::layer::Ports;
use phalanx_wire::mml::{Kind, Packet};
use std::collections::VecDeque;

/// From the last message to the first notice; the next one waits twice as long.
const TAIL_FIRST: Duration = Duration::from_millis(5);
/// Notices after a last message: with four packets of ten lost, one last message in 4000 is missed by nobody. By
/// then 1.3 s have passed: who waits for a confirmation asks again.
pub(super) const TAIL_ROUNDS: u8 = 8;
/// A message is not sent again sooner: receivers ask at longer intervals, so that such a request is a copy.
const AGAIN_SPACING: Duration = Duration::from_millis(1);

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct History {
    /// Messages from number `first` on: the history, then those that were never sent.
    kept: VecDeque<Kept>,
    first: u64,
    /// The first number that was never sent.
    next: u64,
    /// Bytes of the history.
    bytes: usize,
    /// Messages marked to be sent again.
    again: u32,
    /// When all of the history is too old. One timer is enough: while messages go out, they push old ones out.
    forget_at: Instant,
    tail_at: Instant,
    tail_round: u8,
    tail_due: bool,
    floor_due: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Kept {
    /// Header and payload; with the signature once it was sent.
    packet: Buf,
    sent_at: Instant,
    last_at: Instant,
    again: bool,
}

impl History {
    pub(super) fn new() -> Self {
        Self {
            kept: VecDeque::new(),
            first: 0,
            next: 0,
            bytes: 0,
            again: 0,
            forget_at: Instant::NEVER,
            tail_at: Instant::NEVER,
            tail_round: 0,
            tail_due: false,
            floor_due: false,
        }
    }

    pub(super) fn push(&mut self, ports: Ports, payload: &[u8], config: &Config) -> Result<u64, Code> {
        let number = self.end();
        if number - self.next >= u64::from(config.queue) {
            return Err(Code::LocalResource);
        }
        let packet = config.packet(Kind::Nacked, ports, number, payload);
        self.kept.push_back(Kept { packet, sent_at: Instant::NEVER, last_at: Instant::NEVER, again: false });
        Ok(number)
    }

    fn end(&self) -> u64 {
        self.first + self.kept.len() as u64
    }

    pub(super) fn has_work(&self) -> bool {
        self.again > 0 || self.next < self.end() || self.tail_due
    }

    pub(super) fn transmit(
        &mut self,
        now: Instant,
        out: &mut Buf,
        context: &Context,
        signer: &Signer,
        config: &Config,
        sums: &mut Sums,
    ) -> bool {
        if self.again > 0 {
            let kept = self.kept.iter_mut().find(|k| k.again).expect("marked ones are counted");
            kept.again = false;
            kept.last_at = now;
            self.again -= 1;
            sums.retransmissions += 1;
            out.extend(kept.packet.bytes());
        } else if self.next < self.end() {
            let kept = &mut self.kept[(self.next - self.first) as usize];
            context.sign(&mut kept.packet, signer);
            (kept.sent_at, kept.last_at) = (now, now);
            out.extend(kept.packet.bytes());
            self.bytes += kept.packet.len();
            self.next += 1;
            self.tail_round = 0;
            self.tail_at = now + TAIL_FIRST;
            self.tail_due = self.floor_due;
            self.forget_at = now + config.history_age;
            self.forget(now, config);
        } else if self.tail_due {
            Packet::encode_header(Kind::Tail, Port(0), Port(0), self.next, out.vec_mut());
            if std::mem::take(&mut self.floor_due) {
                out.extend(&self.first.to_le_bytes());
            }
            context.sign(out, signer);
            self.tail_due = false;
        } else {
            return false;
        }
        true
    }

    /// Cuts the history to its bounds. The newest message stays until its age takes it.
    fn forget(&mut self, now: Instant, config: &Config) {
        while let Some(oldest) = self.kept.front()
            && self.first < self.next
        {
            let aged = oldest.sent_at + config.history_age <= now;
            let over = self.next - self.first > u64::from(config.history) || self.bytes > config.history_bytes as usize;
            if !aged && (!over || self.next - self.first == 1) {
                return;
            }
            self.bytes -= oldest.packet.len();
            self.again -= u32::from(oldest.again);
            self.kept.pop_front();
            self.first += 1;
        }
        self.forget_at = Instant::NEVER;
        if self.kept.is_empty() {
            self.kept = VecDeque::new();
        }
    }

    /// True when such a request could be one: nobody misses what was never sent.
    pub(super) fn is_possible(&self, number: u64) -> bool {
        number < self.next
    }

    /// The peer misses, from `number` on, what `bits` name.
    pub(super) fn on_lost(&mut self, now: Instant, number: u64, bits: u64, config: &Config) {
        self.forget(now, config);
        for wanted in (0..64).filter(|i| bits >> i & 1 == 1).map(|i| number + i).filter(|&n| n < self.next) {
            let Some(at) = wanted.checked_sub(self.first) else {
                (self.floor_due, self.tail_due) = (true, true);
                continue;
            };
            let kept = &mut self.kept[at as usize];
            if !kept.again && kept.last_at + AGAIN_SPACING <= now {
                kept.again = true;
                self.again += 1;
            }
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.tail_at.min(self.forget_at)
    }

    pub(super) fn expire(&mut self, now: Instant, config: &Config) {
        if now >= self.tail_at {
            self.tail_due = true;
            self.tail_round += 1;
            let wait = TAIL_FIRST * (1 << self.tail_round);
            self.tail_at = if self.tail_round < TAIL_ROUNDS { now + wait } else { Instant::NEVER };
        }
        self.forget(now, config);
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&(self.first, self.next, self.tail_round, self.tail_due, self.floor_due));
        print.instant(self.tail_at);
        print.instant(self.forget_at);
        for kept in &self.kept {
            print.add(&kept.again).add(&kept.packet.bytes());
            print.instant(kept.sent_at);
            print.instant(kept.last_at);
        }
    }
}
