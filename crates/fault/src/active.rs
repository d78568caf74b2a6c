//! An injector with rules: which of them hit a packet, and what then happens to it (FI-1, Table 4).
//!
//! Each call asks every rule once, in the order in which they were switched on, and then carries out what they
//! decided. A call that fails does nothing else, so an invocation fault hides the others that hit the same packet.

use crate::count::{Counters, Tally};
use crate::hold::{Held, Holds, MAX_HELD, PATIENCE, Side, copy};
use crate::injector::Outcome;
use crate::rule::{Call, Delay, Kind, MAX_BITS, Recurrence, Rule, RuleError};
use crate::schedule::Schedule;
use phalanx_core::buf::Attachment;
use phalanx_core::{Buf, Code, Duration, Fingerprint, Instant, Ring, Rng};
use std::fmt::Debug;
use std::hash::Hash;

/// Rules switched on at a time: one bit of a word for each.
pub const MAX_RULES: usize = 64;
/// Earlier messages from which injected copies are drawn; kept only while a rule injects.
pub const MAX_PAST: usize = 16;
/// Injected copies that wait to be fetched. Past it the oldest is lost and counted.
pub const MAX_COPIES: usize = 64;
/// Destinations that injected copies are drawn from; those past it are never hit.
pub const MAX_TARGETS: usize = 4_096;
/// Peers that one rule may be limited to: they are searched for each packet.
pub const MAX_PEERS: usize = 1_024;
/// When a failed receive is repeated, unless another packet of the same peer comes first.
pub const RETRY_AFTER: Duration = Duration::from_millis(1);

/// What stands behind an injector that ever had a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Active<A> {
    slots: Vec<Slot<A>>,
    next_id: u32,
    holds: Holds<A>,
    past: Ring<Buf>,
    copies: Ring<(A, Buf)>,
    targets: Vec<A>,
    counters: Counters,
}

/// A rule that is switched on.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Slot<A> {
    id: u32,
    rule: Rule,
    peers: Option<Vec<A>>,
    /// The rule that this one follows; it was added earlier, so it is asked earlier.
    leader: Option<u32>,
    schedule: Schedule,
    tally: Tally,
}

/// Which rules looked at a packet and which hit it, by slot.
#[derive(Clone, Copy)]
struct Decided {
    considered: u64,
    struck: u64,
}

impl<A: Copy + Eq + Debug> Default for Active<A> {
    fn default() -> Self {
        Self {
            slots: Vec::new(),
            next_id: 1,
            holds: Holds::new(),
            past: Ring::new(MAX_PAST),
            copies: Ring::new(MAX_COPIES),
            targets: Vec::new(),
            counters: Counters::NONE,
        }
    }
}

impl<A: Copy + Eq + Debug> Active<A> {
    pub(crate) fn is_idle(&self) -> bool {
        self.slots.is_empty() && self.holds.is_empty() && self.copies.is_empty()
    }

    pub(crate) fn add(&mut self, now: Instant, seed: u64, rule: Rule, peers: Option<Vec<A>>) -> Result<u32, RuleError> {
        if self.slots.len() >= MAX_RULES {
            return Err(RuleError::TooMany { limit: MAX_RULES });
        }
        if peers.as_ref().is_some_and(|p| !(1..=MAX_PEERS).contains(&p.len())) {
            return Err(RuleError::OutOfRange { field: "only", accepted: "1 to 1024 peers" });
        }
        if let Some(name) = rule.name.as_ref().filter(|n| self.named(n).is_some()) {
            return Err(RuleError::NameTaken { name: name.clone() });
        }
        let leader = match &rule.recurrence {
            Recurrence::With(name) => {
                Some(self.named(name).ok_or_else(|| RuleError::NobodyToFollow { name: name.clone() })?)
            }
            _ => None,
        };
        let id = self.next_id;
        self.next_id += 1;
        // A generator for each rule: adding or healing one leaves the faults of the others as they were.
        let schedule = Schedule::new(now, &rule, Rng::new(seed, u64::from(id)));
        self.slots.push(Slot { id, rule, peers, leader, schedule, tally: Tally::default() });
        Ok(id)
    }

    fn named(&self, name: &str) -> Option<u32> {
        self.slots.iter().find(|s| s.rule.name.as_deref() == Some(name)).map(|s| s.id)
    }

    pub(crate) fn heal(&mut self, id: u32) -> bool {
        let Some(at) = self.slots.iter().position(|s| s.id == id) else {
            return false;
        };
        self.slots.remove(at);
        self.holds.release(|rule| rule == id);
        if !self.slots.iter().any(|s| matches!(s.rule.kind, Kind::Inject { .. })) {
            self.past = Ring::new(MAX_PAST);
        }
        true
    }

    pub(crate) fn heal_all(&mut self) {
        self.slots.clear();
        self.holds.release(|_| true);
        self.past = Ring::new(MAX_PAST);
    }

    pub(crate) fn rules(&self) -> impl Iterator<Item = (u32, &Rule, &Tally)> {
        self.slots.iter().map(|s| (s.id, &s.rule, &s.tally))
    }

    pub(crate) fn set_targets(&mut self, targets: &[A]) {
        self.targets.clear();
        self.targets.extend_from_slice(&targets[..targets.len().min(MAX_TARGETS)]);
    }

    pub(crate) fn signal(&mut self, now: Instant, name: &str) {
        for slot in &mut self.slots {
            if slot.rule.after.as_ref().is_some_and(|a| a.signal == name) {
                slot.schedule.signalled(now, &slot.rule);
            }
        }
    }

    pub(crate) fn send(&mut self, now: Instant, to: A, packet: &Buf) -> Outcome {
        let decided = self.decide(now, Call::Send, Some(to), packet.len());
        if bits(decided.considered).any(|i| matches!(self.slots[i].rule.kind, Kind::Inject { .. })) {
            self.past.push_evicting(packet.clone());
        }
        let refused = self.refusal(decided.struck);
        let (mut dropped, mut fails) = (false, None);
        for i in bits(decided.struck) {
            let slot = &mut self.slots[i];
            let done = match &slot.rule.kind {
                Kind::Inject { bits } => {
                    let bits = *bits;
                    self.inject(i, bits, to)
                }
                Kind::Invocation { .. } => refused.is_some_and(|(by, _)| by == i),
                _ if refused.is_some() => false,
                Kind::Drop => !std::mem::replace(&mut dropped, true),
                Kind::Operation { code, deliver, after } if fails.is_none() => {
                    let rng = slot.schedule.rng();
                    let code = code.unwrap_or_else(|| any_code(rng));
                    fails = Some((code, deliver.unwrap_or_else(|| rng.chance(0.5)), after.draw(rng)));
                    true
                }
                _ => false,
            };
            self.count(i, done);
        }
        match (refused, fails, dropped) {
            (Some((_, code)), _, _) => Outcome::Refuse(code),
            (None, Some((code, deliver, after)), _) => Outcome::FailLater { code, deliver: deliver && !dropped, after },
            (None, None, true) => Outcome::Drop,
            (None, None, false) => Outcome::Pass,
        }
    }

    /// Queues a copy of one of the last messages, perhaps with flipped bits, for somebody.
    fn inject(&mut self, i: usize, bits: u32, to: A) -> bool {
        let rng = self.slots[i].schedule.rng();
        if self.past.is_empty() {
            return false;
        }
        let mut packet = self.past[rng.index(self.past.len())].clone();
        let target = if self.targets.is_empty() { to } else { self.targets[rng.index(self.targets.len())] };
        if bits > 0 {
            packet.materialize();
            flip(rng, packet.bytes_mut(), bits);
        }
        if self.copies.push_evicting((target, packet)).is_some() {
            self.counters.copies_lost += 1;
        }
        true
    }

    pub(crate) fn take_injected(&mut self) -> Option<(A, Buf)> {
        self.copies.pop()
    }

    pub(crate) fn receive(
        &mut self,
        now: Instant,
        from: A,
        bytes: &mut [u8],
        attached: Option<&Attachment>,
        deliver: &mut impl FnMut(A, &mut [u8], Option<&Attachment>),
    ) -> Option<Code> {
        self.expire(now, deliver);
        if let Some(earlier) = self.holds.take_parked(from, Side::Before) {
            hand_over(earlier, deliver);
        }
        let len = bytes.len() + attached.map_or(0, |a| a.range.len());
        let struck = self.decide(now, Call::Receive, Some(from), len).struck;
        if let Some((by, code)) = self.refusal(struck) {
            bits(struck).for_each(|i| self.count(i, i == by));
            self.make_room(deliver);
            let held = Held::new(from, bytes, attached, self.slots[by].id);
            self.holds.park(now + RETRY_AFTER, Side::Before, held);
            return Some(code);
        }
        let mut changed = None;
        let mut waits = None;
        for i in bits(struck) {
            let slot = &mut self.slots[i];
            let done = match &slot.rule.kind {
                Kind::Modify { bits } if attached.is_some() => {
                    let packet: &mut Buf = changed.get_or_insert_with(|| materialized(bytes, attached));
                    flip(slot.schedule.rng(), packet.bytes_mut(), *bits)
                }
                Kind::Modify { bits } => flip(slot.schedule.rng(), bytes, *bits),
                _ if waits.is_some() => false,
                Kind::Delay(Delay::Lasting(span)) => {
                    waits = Some((slot.id, now + span.draw(slot.schedule.rng()), None));
                    true
                }
                Kind::Delay(Delay::UntilNext) => {
                    waits = Some((slot.id, now + PATIENCE, Some(Side::Before)));
                    true
                }
                // One of this peer waits to be overtaken already: this one overtakes it.
                Kind::Reorder if self.holds.is_parked(from, Side::Behind) => false,
                Kind::Reorder => {
                    waits = Some((slot.id, now + PATIENCE, Some(Side::Behind)));
                    true
                }
                _ => false,
            };
            self.count(i, done);
        }
        if let Some((rule, due, side)) = waits {
            self.make_room(deliver);
            let packet = changed.unwrap_or_else(|| copy(bytes, attached));
            let held = Held { from, packet, rule };
            match side {
                None => self.holds.delay(due, held),
                Some(side) => self.holds.park(due, side, held),
            }
            return None;
        }
        match &mut changed {
            Some(packet) => deliver(from, packet.bytes_mut(), None),
            None => deliver(from, bytes, attached),
        }
        if let Some(overtaken) = self.holds.take_parked(from, Side::Behind) {
            hand_over(overtaken, deliver);
        }
        None
    }

    /// Past the bound, what is due first goes early rather than never.
    fn make_room(&mut self, deliver: &mut impl FnMut(A, &mut [u8], Option<&Attachment>)) {
        while self.holds.len() >= MAX_HELD {
            let Some((held, _)) = self.holds.take_first() else {
                return;
            };
            self.counters.released_early += 1;
            hand_over(held, deliver);
        }
    }

    pub(crate) fn allocate(&mut self, now: Instant) -> Result<(), Code> {
        let struck = self.decide(now, Call::Allocate, None, 0).struck;
        let refused = self.refusal(struck);
        bits(struck).for_each(|i| self.count(i, refused.is_some_and(|(by, _)| by == i)));
        refused.map_or(Ok(()), |(_, code)| Err(code))
    }

    pub(crate) fn expire(&mut self, now: Instant, deliver: &mut impl FnMut(A, &mut [u8], Option<&Attachment>)) {
        while let Some((held, in_vain)) = self.holds.take_due(now) {
            self.counters.not_swapped += u64::from(in_vain);
            hand_over(held, deliver);
        }
    }

    pub(crate) fn forget(&mut self, from: A) -> usize {
        self.holds.forget(from)
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.holds.deadline()
    }

    pub(crate) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Asks each rule whether it hits this packet. A rule that strikes takes its followers along.
    fn decide(&mut self, now: Instant, call: Call, peer: Option<A>, len: usize) -> Decided {
        let mut decided = Decided { considered: 0, struck: 0 };
        for i in 0..self.slots.len() {
            let slot = &mut self.slots[i];
            if !slot.considers(now, call, peer, len) {
                continue;
            }
            decided.considered |= 1 << i;
            slot.tally.considered += 1;
            self.counters.kinds[slot.rule.kind.name() as usize].considered += 1;
            if slot.schedule.strikes(now, &slot.rule) {
                decided.struck |= 1 << i;
                let leader = Some(slot.id);
                for follower in self.slots[i + 1..].iter_mut().filter(|f| f.leader == leader) {
                    if follower.schedule.is_open(now) {
                        follower.schedule.leader_struck();
                    }
                }
            }
        }
        decided
    }

    /// The first invocation fault among those that struck, and its code.
    fn refusal(&mut self, struck: u64) -> Option<(usize, Code)> {
        bits(struck).find_map(|i| {
            let slot = &mut self.slots[i];
            let Kind::Invocation { code, .. } = &slot.rule.kind else {
                return None;
            };
            Some((i, code.unwrap_or_else(|| any_code(slot.schedule.rng()))))
        })
    }

    fn count(&mut self, i: usize, done: bool) {
        let slot = &mut self.slots[i];
        let one = Tally { considered: 0, injected: u64::from(done), missed: u64::from(!done) };
        slot.tally += one;
        self.counters.kinds[slot.rule.kind.name() as usize] += one;
    }
}

impl<A: Copy + Eq + Debug + Hash> Active<A> {
    pub(crate) fn fingerprint(&self, print: &mut Fingerprint) {
        for slot in &self.slots {
            print.add(&(slot.id, &slot.rule, &slot.peers, slot.leader));
            slot.schedule.fingerprint(print);
        }
        self.holds.fingerprint(print);
        for packet in self.past.iter().chain(self.copies.iter().map(|c| &c.1)) {
            print.add(&(packet.bytes(), packet.len()));
        }
        self.copies.iter().for_each(|(to, _)| {
            print.add(to);
        });
        print.add(&(self.slots.len(), self.past.len(), self.copies.len(), &self.targets, self.next_id));
    }
}

impl<A: Copy + Eq> Slot<A> {
    fn considers(&self, now: Instant, call: Call, peer: Option<A>, len: usize) -> bool {
        self.rule.kind.call() == call
            && (self.rule.min_len..=self.rule.max_len).contains(&len)
            && self.schedule.is_open(now)
            && match (&self.peers, peer) {
                (Some(only), Some(peer)) => only.contains(&peer),
                _ => true,
            }
    }
}

fn hand_over<A: Copy>(mut held: Held<A>, deliver: &mut impl FnMut(A, &mut [u8], Option<&Attachment>)) {
    let (bytes, attached) = held.packet.parts_mut();
    deliver(held.from, bytes, attached);
}

fn materialized(bytes: &[u8], attached: Option<&Attachment>) -> Buf {
    let mut packet = copy(bytes, attached);
    packet.materialize();
    packet
}

fn any_code(rng: &mut Rng) -> Code {
    Code::ALL[rng.index(Code::ALL.len())]
}

/// Flips `n` different bits, or all of a shorter packet; false when there are none.
fn flip(rng: &mut Rng, bytes: &mut [u8], n: u32) -> bool {
    let total = bytes.len() as u64 * 8;
    let n = u64::from(n).min(total);
    let mut flipped = [0; MAX_BITS as usize];
    // Floyd's sampling: each set of n bits is as likely as any other, and no flip undoes another.
    for k in 0..n {
        let last = total - n + k;
        let drawn = rng.below(last + 1);
        let bit = if flipped[..k as usize].contains(&drawn) { last } else { drawn };
        flipped[k as usize] = bit;
        bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
    }
    n > 0
}

fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let i = word.trailing_zeros() as usize;
        word &= word.wrapping_sub(1);
        (i < 64).then_some(i)
    })
}
