//! The watch: neighbours on the ring hear each other's beats, and all neighbours hold tripwires. Who is silent, or whose
//! wire breaks, is doubted; who is doubted is probed; who does not answer is suspected.
//!
//! ZN-5, 002 §3: a broken link, a heartbeat timeout, or a failed connect to a successor makes a suspicion. Where we
//! differ (profile `paper` does not):
//! - A doubt is not a suspicion yet. The doubted one is probed, directly and through others, because the way between
//!   two members may be cut while both are well. A broken wire together with a host that says that nobody listens is
//!   proof enough: that is how a crash is known after one and a half round trips.
//! - Otherwise it takes second opinions: others are asked to probe the doubted one, and half of them must say that they
//!   get no answer either. A member that hears badly, or is not heard, does not get these, and so cannot take others for
//!   dead; unless it hears nobody at all for so long that others must have found *it* out
//!   ([`Config::isolated`](super::Config::isolated)).
//! - Whom others hear while we do not is behind a bad way: our next doubt about it needs longer, and more opinions.
//! - A member that was starved blames nobody for what it did not hear.
//! - A beat says which number it has, and which beat of ours its sender heard last. So a member that hears nothing is
//!   found out, too; and so is one that is hardly there ([`absence`](super::absence)).
//! - A beat says what its sender's view looks like. Views that stay different are exchanged: whatever got lost between
//!   two members is made good so.
//! - Who is removed and speaks to us is told so.

use super::absence::{ABSENT, Inquiry};
use super::post::speak_of_tomorrow;
use super::relay::Relays;
use super::view::Standing;
use super::{Config, Zone};
use crate::member::{Out, Peer, Slot, Version};
use phalanx_core::{Addr, Duration, Fingerprint, Identity, Instant, Rng};
use phalanx_wire::zone::Note;

/// Beats in a row that speak of another view, before views are exchanged; then after twice as many, and so on.
const DIFFER: u8 = 4;
/// Beats of a neighbour that is none on the ring, before it is told that.
const STRAYS: u8 = 2;
/// Letters to those who take us for a neighbour, or do not know that they were removed, between two beats.
const TELLS: u16 = 64;
/// Timeouts of a member that was late become no longer than this and one times as long.
const STRAIN_MAX: u32 = 7;
/// Beats of ours that a neighbour may not have heard.
const DEAF: u8 = 3;

/// What concerns no single neighbour.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Watch {
    beat_at: Instant,
    nonce: u32,
    /// When anything was last heard from anybody.
    heard_at: Instant,
    /// Raised each time our driver is late, lowered by each beat in time.
    strain: u32,
    /// Letters of [`TELLS`] that are left.
    tells: u16,
    pub(super) relays: Relays,
    /// What we want to know of a member that is hardly there.
    pub(super) inquiry: Inquiry,
}

impl Watch {
    pub(super) fn new(now: Instant, config: &Config, rng: &mut Rng) -> Self {
        let beat_at = now + Duration(rng.below(config.beat.0.max(1)));
        Self {
            beat_at,
            nonce: rng.u32(),
            heard_at: now,
            strain: 0,
            tells: TELLS,
            relays: Relays::default(),
            inquiry: Inquiry::NONE,
        }
    }

    pub(super) fn beat_at(&self) -> Instant {
        self.beat_at
    }

    pub(super) fn deadline(&self) -> Instant {
        self.relays.deadline().min(self.beat_at)
    }

    /// Our driver was late lately.
    pub(super) fn is_strained(&self) -> bool {
        self.strain > 0
    }

    /// Takes one of the letters that may be spent on those who are mistaken about us.
    pub(super) fn may_tell(&mut self) -> bool {
        let may = self.tells > 0;
        self.tells -= u16::from(may);
        may
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.instant(self.beat_at);
        print.instant(self.heard_at);
        print.add(&(self.nonce, self.strain, self.tells));
        self.relays.fingerprint(print);
        self.inquiry.fingerprint(print);
    }
}

impl Zone {
    /// Timeouts of a member that was starved are longer.
    pub(super) fn strained(&self, timeout: Duration) -> Duration {
        timeout * u64::from(1 + self.watch.strain)
    }

    /// Our driver called `late`: nobody is blamed for what we did not hear. The later it was, the longer we wait from now on:
    /// at once, because by the next time somebody may have been taken for dead.
    pub(super) fn on_starved(&mut self, now: Instant, late: Duration) {
        let by = (late.0 / self.config.late.0.max(1)).clamp(1, STRAIN_MAX.into()) as u32;
        self.watch.strain = (self.watch.strain + by).min(STRAIN_MAX);
        self.relays_starved(now);
        for neighbour in self.neighbours.iter_mut() {
            neighbour.heard_at = now;
            neighbour.misses = 0;
            if !neighbour.linked {
                neighbour.since = now;
            }
            if let Some(doubt) = &mut neighbour.doubt {
                doubt.since = now;
                doubt.tries = 0;
                // Nor are others asked the sooner: who is late would ask each time it is, and make all of them late.
                (doubt.asked, doubt.seconds) = (0, 0);
            }
        }
        self.watch.heard_at = now;
        self.watch.beat_at = self.watch.beat_at.max(now);
    }

    /// Time for a beat to all neighbours on the ring.
    pub(super) fn beat(&mut self, now: Instant, out: &mut impl Out) {
        self.watch.beat_at = (self.watch.beat_at + self.config.beat).max(now);
        self.watch.strain = self.watch.strain.saturating_sub(1);
        self.watch.tells = TELLS;
        let digest = self.book.view.digest();
        for i in 0..self.neighbours.len() {
            let neighbour = self.neighbours.nth(i);
            if neighbour.linked && neighbour.on_ring() {
                neighbour.beats = neighbour.beats.wrapping_add(1);
                let beat = Note::Beat { number: neighbour.beats, echo: neighbour.heard, digest };
                let to = neighbour.addr;
                self.note(to, &beat, out);
                speak_of_tomorrow(to, out);
            }
        }
    }

    /// True when nobody was heard since then.
    pub(super) fn heard_nobody_since(&self, then: Instant) -> bool {
        self.watch.heard_at <= then
    }

    /// For the next probes.
    pub(super) fn next_nonce(&mut self) -> u32 {
        self.watch.nonce = self.watch.nonce.wrapping_add(1).max(ABSENT + 1);
        self.watch.nonce
    }

    /// Somebody of our zone was heard: we are not out of reach. Others do not count: who hears only delegates must be able
    /// to find that all its colleagues are gone.
    pub(super) fn heard(&mut self, now: Instant) {
        self.watch.heard_at = now;
    }

    pub(super) fn on_note(&mut self, now: Instant, from: Peer, bytes: &[u8], out: &mut impl Out) {
        let Ok(note) = Note::parse(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        self.watch.heard_at = now;
        self.keep_stranger(from.addr, out);
        match note {
            Note::Beat { number, echo, digest } => self.on_beat(now, from, number, echo, digest, out),
            Note::Probe { nonce } => self.on_probe(from, nonce, out),
            Note::Answer { nonce } => self.on_answer(now, from, nonce, out),
            Note::Ask { nonce, of } => self.on_ask(now, from, nonce, &of, out),
            Note::Vouch { nonce, of } => {
                if let Some(slot) = self.roster.find(&of) {
                    self.dispel(now, slot, nonce, true, out);
                }
            }
            Note::Silent { nonce, of } => self.on_silent(now, from, nonce, &of, out),
            Note::Alarm(alarm) => self.on_alarm(now, &alarm, out),
        }
    }

    fn on_beat(&mut self, now: Instant, from: Peer, number: u8, echo: u8, digest: u16, out: &mut impl Out) {
        let Some(slot) = self.roster.find(&from.identity) else { return };
        let (same, probes) = (digest == self.book.view.digest(), self.config.probes);
        let at_rest = self.book.delta.is_empty();
        let Some(neighbour) = self.neighbours.of(slot) else {
            return self.tell(slot, from.addr, true, out);
        };
        (neighbour.heard_at, neighbour.vouched) = (now, false);
        if !neighbour.on_ring() {
            // One may have been under way when we parted.
            neighbour.strays += 1;
            if neighbour.strays >= STRAYS {
                self.drop_neighbour(now, slot, out);
                self.disown(from.addr, None, out);
            }
            return;
        }
        neighbour.strays = 0;
        let gap = number.wrapping_sub(neighbour.heard);
        if neighbour.beaten && (gap == 0 || gap > u8::MAX / 2) {
            // An old one, overtaken.
            return;
        }
        let behind = neighbour.beats.wrapping_sub(echo);
        // Of our last beat it may not have heard yet; nor of any, when it has just been linked.
        let unheard = behind > 1 && (echo != 0 || behind > DEAF);
        let lost = if neighbour.beaten { u32::from(gap) - 1 } else { 0 };
        let lost_bits = ((1u32 << lost.min(15)) - 1) << 1;
        neighbour.misses =
            ((u32::from(neighbour.misses) << (lost + 1).min(16)) | lost_bits | u32::from(unheard)) as u16;
        (neighbour.heard, neighbour.beaten) = (number, true);
        let addr = neighbour.addr;
        neighbour.differs = if same { 0 } else { neighbour.differs.saturating_add(1) };
        let differs = neighbour.linked && at_rest && neighbour.differs >= DIFFER && neighbour.differs.is_power_of_two();
        let deaf = neighbour.linked && behind > DEAF && neighbour.echoed == echo;
        neighbour.echoed = echo;
        if !deaf && neighbour.doubt.as_ref().is_some_and(|d| !d.tripped) {
            // Silence is over; a broken wire is another matter.
            neighbour.doubt = None;
        }
        if differs {
            self.resync(addr, out);
        }
        if probes && deaf {
            self.doubt(now, slot, false, out);
        }
        if probes {
            self.look_for_the_absent(now, slot, out);
        }
    }

    /// Somebody takes us for its neighbour, and we do not; or we have even removed it.
    pub(super) fn tell(&mut self, slot: Slot, addr: Addr, neighbour: bool, out: &mut impl Out) {
        match self.book.view.standing(slot, &self.roster) {
            Standing::Gone(removed) => self.disown(addr, Some((slot, removed)), out),
            Standing::In(_) if neighbour => self.disown(addr, None, out),
            // It is in the zone that we left, and does not know.
            Standing::Unknown if self.book.elsewhere(slot).is_some() => self.tell_elsewhere(addr, None, out),
            Standing::In(_) | Standing::Unknown => {}
        }
    }

    fn on_probe(&mut self, from: Peer, nonce: u32, out: &mut impl Out) {
        self.note(from.addr, &Note::Answer { nonce }, out);
        if let Some(slot) = self.roster.find(&from.identity) {
            self.tell(slot, from.addr, false, out);
        }
    }

    fn on_answer(&mut self, now: Instant, from: Peer, nonce: u32, out: &mut impl Out) {
        let Some(slot) = self.roster.find(&from.identity) else { return };
        self.relays_answered(slot, from.identity, nonce, out);
        self.damping.answered(from.addr, nonce);
        self.dispel(now, slot, nonce, false, out);
    }

    /// A probe of ours was answered: by the doubted one, or by somebody who vouches for it.
    fn dispel(&mut self, now: Instant, slot: Slot, nonce: u32, vouched: bool, out: &mut impl Out) {
        let Some(neighbour) = self.neighbours.of(slot) else { return };
        if let Some(doubt) = neighbour.doubt.take_if(|d| d.nonce == nonce) {
            // Its wire broke: perhaps it let go of us. If not, it needs a new one; unless it has asked for a new link since.
            neighbour.linked &= !doubt.tripped || neighbour.since > doubt.since;
            (neighbour.heard_at, neighbour.vouched) = (now, vouched);
            self.counters.dispelled += 1;
            let (addr, linked, chosen) = (neighbour.addr, neighbour.linked, neighbour.ahead || neighbour.random);
            if !linked && !chosen {
                // It chose us and may know nothing of this: it asks again when it hears that we are neighbours no more.
                self.drop_neighbour(now, slot, out);
                self.disown(addr, None, out);
            } else if !linked || !neighbour.ours {
                neighbour.since = now;
                self.resume(now, slot, out);
            }
        }
    }

    /// Somebody else gets no answer either.
    fn on_silent(&mut self, now: Instant, from: Peer, nonce: u32, of: &Identity, out: &mut impl Out) {
        let (Some(slot), Some(witness)) = (self.roster.find(of), self.roster.find(&from.identity)) else { return };
        let known = self.book.view.contains(witness);
        if nonce == ABSENT {
            if known {
                self.on_absent(now, slot, out);
            }
            return;
        }
        if let Some(doubt) = self.neighbours.of(slot).and_then(|n| n.doubt.as_mut()) {
            doubt.seconds += u16::from(known && doubt.nonce == nonce && doubt.seconds < doubt.asked);
        }
    }

    /// Somebody wants to know whether a member is there.
    fn on_ask(&mut self, now: Instant, from: Peer, nonce: u32, of: &Identity, out: &mut impl Out) {
        let Some(slot) = self.roster.find(of) else { return };
        let watched = if nonce == ABSENT { self.seems_absent(slot) } else { None };
        match watched {
            Some(true) => self.note(from.addr, &Note::Silent { nonce, of: *of }, out),
            Some(false) => {}
            None => self.relay(now, from, nonce, slot, out),
        }
    }

    /// ZN-8: a suspicion came by the shortest way.
    fn on_alarm(&mut self, now: Instant, alarm: &phalanx_wire::zone::Suspicion, out: &mut impl Out) {
        let v = Version { incarnation: alarm.incarnation, minor: alarm.minor };
        if let (Some(r), Some(s)) = (self.roster.find(&alarm.reporter), self.roster.find(&alarm.suspect))
            && self.plausible(s, v)
            && self.suspicion(now, r, s, v, out)
        {
            self.settle(now, out);
        }
    }
}
