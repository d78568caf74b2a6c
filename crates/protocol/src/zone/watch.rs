//! The watch: neighbours on the ring hear each other's beats, and all neighbours hold tripwires. Who is silent, or whose
//! wire breaks, is doubted; who is doubted is probed; who does not answer is suspected.
//!
//! ZN-5, 002 §3: a broken link, a heartbeat timeout, or a failed connect to a successor makes a suspicion. Where we
//! differ (profile `paper` does not):
//! - A doubt is not a suspicion yet. The doubted one is probed, directly and through others, because the way between
//!   two members may be cut while both are well. A broken wire together with a host that says that nobody listens is
//!   proof enough: that is how a crash is known after one and a half round trips.
//! - A member that was starved, or to whom most of its neighbours seem gone at once, doubts itself first.
//! - A neighbour that is silent before too many beats is suspected though it answers now and then: to be hardly there
//!   is worse than to be gone.
//! - A beat says which beat of ours its sender heard last, so that a member that hears nothing is found out, too.

use super::neighbour::Doubt;
use super::{Config, Zone};
use crate::member::{Engine, Out, Peer, Slot};
use phalanx_core::{Addr, Duration, Fingerprint, Identity, Instant, Rng};
use phalanx_wire::zone::Note;
use std::collections::VecDeque;

/// Probes for others that are under way; more are refused.
const RELAYS: usize = 64;
/// How long such a probe is waited for.
const RELAY: Duration = Duration::from_secs(2);
/// Tries before a silent neighbour is suspected, whatever the time.
const TRIES: u32 = 4;
/// Who seems isolated waits so many times as long before it believes that all others are gone.
const ISOLATED: u64 = 10;
/// Of the last beats so many ...
const BEATS: u32 = 10;
/// ... must be preceded by silence to make a neighbour hardly there.
const SILENT_BEATS: u32 = 4;
/// Beats of ours that a neighbour may not have heard.
const DEAF: u16 = 3;
/// The shortest wait between probes.
const SPACING: Duration = Duration::from_millis(4);

/// What concerns no single neighbour.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Watch {
    beat_at: Instant,
    nonce: u32,
    /// When anything was last heard from anybody.
    heard_at: Instant,
    /// Raised each time our driver is late, lowered by each beat in time.
    strain: u32,
    /// Probes for others: when it ends, whom, for whom, and their nonce.
    relays: VecDeque<(Instant, Slot, Addr, u32)>,
}

impl Watch {
    pub(super) fn new(now: Instant, config: &Config, rng: &mut Rng) -> Self {
        let beat_at = now + Duration(rng.below(config.beat.0.max(1)));
        Self { beat_at, nonce: rng.u32(), heard_at: now, strain: 0, relays: VecDeque::new() }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.beat_at
    }

    pub(super) fn relays(&self) -> usize {
        self.relays.len()
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.instant(self.beat_at);
        print.instant(self.heard_at);
        print.add(&(self.nonce, self.strain));
        for &(until, slot, addr, nonce) in &self.relays {
            print.instant(until);
            print.add(&(slot, addr, nonce));
        }
    }
}

impl Zone {
    /// When some neighbour is to be doubted, or probed again.
    pub(super) fn doubts_deadline(&self) -> Instant {
        let patience = self.strained(self.config.patience);
        let due = self.neighbours.iter().map(|n| match &n.doubt {
            Some(doubt) => doubt.next_at,
            None if !n.linked => n.since + self.config.connect,
            None if n.on_ring() => n.heard_at + patience,
            None => Instant::NEVER,
        });
        due.fold(Instant::NEVER, Instant::min)
    }

    /// Timeouts of a member that was starved are longer.
    fn strained(&self, timeout: Duration) -> Duration {
        timeout * u64::from(1 + self.watch.strain)
    }

    /// Our driver called too late: nobody is blamed for what we did not hear.
    pub(super) fn on_starved(&mut self, now: Instant) {
        self.watch.strain = (self.watch.strain + 1).min(7);
        for neighbour in self.neighbours.iter_mut() {
            neighbour.heard_at = now;
            neighbour.misses = 0;
            if !neighbour.linked {
                neighbour.since = now;
            }
            if let Some(doubt) = &mut neighbour.doubt {
                doubt.since = now;
                doubt.tries = 0;
            }
        }
        self.watch.heard_at = now;
        self.watch.beat_at = self.watch.beat_at.max(now);
    }

    /// Time for a beat to all neighbours on the ring.
    pub(super) fn beat(&mut self, now: Instant, out: &mut impl Out) {
        let last = self.watch.beat_at - self.config.beat;
        self.watch.beat_at = (self.watch.beat_at + self.config.beat).max(now);
        self.watch.strain = self.watch.strain.saturating_sub(1);
        let mut beats = Vec::new();
        for neighbour in self.neighbours.iter_mut().filter(|n| n.linked && n.on_ring()) {
            neighbour.beats = neighbour.beats.wrapping_add(1);
            neighbour.misses = neighbour.misses << 1 | u16::from(neighbour.heard_at < last);
            beats.push((neighbour.addr, Note::Beat { number: neighbour.beats, echo: neighbour.heard }));
        }
        for (to, beat) in beats {
            self.note(to, &beat, out);
        }
        if self.config.probes {
            self.suspect_the_absent(now, out);
        }
    }

    /// Who was silent before too many of the last beats, while others were not.
    fn suspect_the_absent(&mut self, now: Instant, out: &mut impl Out) {
        let silences = |misses: u16| (misses & ((1 << BEATS) - 1)).count_ones();
        let ring = || self.neighbours.iter().filter(|n| n.linked && n.on_ring());
        let well = ring().filter(|n| silences(n.misses) <= 1).count();
        let absent: Vec<Slot> = ring().filter(|n| silences(n.misses) >= SILENT_BEATS).map(|n| n.slot).collect();
        if well > absent.len() {
            for slot in absent {
                self.suspect(now, slot, out);
            }
        }
    }

    pub(super) fn on_note(&mut self, now: Instant, from: Peer, bytes: &[u8], out: &mut impl Out) {
        let Ok(note) = Note::parse(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        self.watch.heard_at = now;
        match note {
            Note::Beat { number, echo } => self.on_beat(now, from, number, echo, out),
            Note::Probe { nonce } => self.note(from.addr, &Note::Answer { nonce }, out),
            Note::Answer { nonce } => self.on_answer(now, from, nonce, out),
            Note::Ask { nonce, of } => self.on_ask(now, from, nonce, &of, out),
            Note::Vouch { nonce, of } => {
                if let Some(slot) = self.roster.find(&of) {
                    self.dispel(now, slot, nonce);
                }
            }
            Note::Alarm(alarm) => self.on_alarm(now, &alarm, out),
        }
    }

    fn on_beat(&mut self, now: Instant, from: Peer, number: u16, echo: u16, out: &mut impl Out) {
        let Some(slot) = self.roster.find(&from.identity) else { return };
        let Some(neighbour) = self.neighbours.of(slot) else { return };
        neighbour.heard_at = now;
        neighbour.heard = number;
        // Silence is over; a broken wire is another matter.
        if neighbour.doubt.as_ref().is_some_and(|d| !d.tripped) && neighbour.beats.wrapping_sub(echo) <= DEAF {
            neighbour.doubt = None;
        }
        if self.config.probes && neighbour.linked && neighbour.beats.wrapping_sub(echo) > DEAF && neighbour.echoed == echo
        {
            self.doubt(now, slot, false, out);
        } else {
            neighbour.echoed = echo;
        }
    }

    fn on_answer(&mut self, now: Instant, from: Peer, nonce: u32, out: &mut impl Out) {
        let Some(slot) = self.roster.find(&from.identity) else { return };
        if let Some(i) = self.watch.relays.iter().position(|r| r.1 == slot) {
            let (_, _, to, nonce) = self.watch.relays.remove(i).unwrap_or((now, slot, from.addr, nonce));
            self.note(to, &Note::Vouch { nonce, of: from.identity }, out);
        }
        self.dispel(now, slot, nonce);
    }

    /// A probe of ours was answered, by whatever way.
    fn dispel(&mut self, now: Instant, slot: Slot, nonce: u32) {
        let Some(neighbour) = self.neighbours.of(slot) else { return };
        if neighbour.doubt.as_ref().is_some_and(|d| d.nonce == nonce) {
            neighbour.doubt = None;
            neighbour.heard_at = now;
            if !neighbour.linked {
                neighbour.since = now;
            }
            self.counters.dispelled += 1;
        }
    }

    /// Somebody wants to know whether a member is there.
    fn on_ask(&mut self, now: Instant, from: Peer, nonce: u32, of: &Identity, out: &mut impl Out) {
        let Some(slot) = self.roster.find(of) else { return };
        let Some(addr) = self.roster.card(slot).map(|c| c.addr) else { return };
        while self.watch.relays.front().is_some_and(|r| r.0 <= now) {
            self.watch.relays.pop_front();
        }
        if self.watch.relays.len() >= RELAYS {
            self.counters.relays_refused += 1;
            return;
        }
        self.watch.relays.push_back((now + RELAY, slot, from.addr, nonce));
        self.note(addr, &Note::Probe { nonce }, out);
    }

    /// ZN-8: a suspicion came by the shortest way.
    fn on_alarm(&mut self, now: Instant, alarm: &phalanx_wire::zone::Suspicion, out: &mut impl Out) {
        let v = crate::member::Version { incarnation: alarm.incarnation, minor: alarm.minor };
        if let (Some(r), Some(s)) = (self.roster.find(&alarm.reporter), self.roster.find(&alarm.suspect))
            && self.book.on_suspicion(now, r, s, v, self.config.threshold, &self.roster, out)
        {
            self.settle(now, out);
        }
    }

    pub(super) fn on_tripped(&mut self, now: Instant, addr: Addr, out: &mut impl Out) {
        let Some(neighbour) = self.neighbours.at(addr) else { return };
        neighbour.wired = false;
        let slot = neighbour.slot;
        self.doubt(now, slot, true, out);
    }

    pub(super) fn on_refused(&mut self, now: Instant, addr: Addr, out: &mut impl Out) {
        self.discovery_failed(addr, out);
        let Some(neighbour) = self.neighbours.at(addr) else { return };
        let slot = neighbour.slot;
        match &mut neighbour.doubt {
            Some(doubt) => {
                doubt.refused += 1;
                // Two kernels agree, or one says so again: nobody is there.
                if doubt.tripped || doubt.refused > 1 {
                    self.suspect(now, slot, out);
                }
            }
            None => self.doubt(now, slot, false, out),
        }
    }

    /// A neighbour may be gone.
    pub(super) fn doubt(&mut self, now: Instant, slot: Slot, tripped: bool, out: &mut impl Out) {
        if !self.config.probes {
            return self.suspect(now, slot, out);
        }
        let nonce = self.watch.nonce.wrapping_add(1);
        let Some(neighbour) = self.neighbours.of(slot) else { return };
        match &mut neighbour.doubt {
            Some(doubt) if !tripped || doubt.tripped => return,
            Some(doubt) => {
                (doubt.tripped, doubt.since) = (true, now);
                if doubt.refused > 0 {
                    return self.suspect(now, slot, out);
                }
            }
            None => {
                self.watch.nonce = nonce;
                let doubt = Doubt { since: now, nonce, tries: 0, next_at: now, tripped, refused: 0 };
                neighbour.doubt = Some(Box::new(doubt));
            }
        }
        self.probe(now, slot, out);
    }

    /// One more probe; from the second on others are asked to try, too.
    fn probe(&mut self, now: Instant, slot: Slot, out: &mut impl Out) {
        let helpers = self.config.helpers;
        let Some(neighbour) = self.neighbours.of(slot) else { return };
        let (addr, spacing) = (neighbour.addr, (neighbour.round_trip * 2).max(SPACING));
        let Some(doubt) = &mut neighbour.doubt else { return };
        doubt.tries += 1;
        doubt.next_at = now + spacing * (1 << doubt.tries.min(6));
        let (nonce, again) = (doubt.nonce, doubt.tries > 1);
        self.note(addr, &Note::Probe { nonce }, out);
        let Some(of) = self.roster.card(slot).map(|c| c.identity).filter(|_| again) else { return };
        let mut others: Vec<Addr> =
            self.neighbours.iter().filter(|n| n.slot != slot && n.linked && n.doubt.is_none()).map(|n| n.addr).collect();
        self.rng.shuffle(&mut others);
        for to in others.into_iter().take(helpers) {
            self.note(to, &Note::Ask { nonce, of }, out);
        }
    }

    /// Doubts that are due: probed again, or believed. Neighbours that have been silent for too long: doubted.
    pub(super) fn expire_doubts(&mut self, now: Instant, out: &mut impl Out) {
        let patience = self.strained(self.config.patience);
        let due: Vec<Slot> = self
            .neighbours
            .iter()
            .filter(|n| match &n.doubt {
                Some(doubt) => doubt.next_at <= now,
                None if !n.linked => n.since + self.config.connect <= now,
                None => n.on_ring() && n.heard_at + patience <= now,
            })
            .map(|n| n.slot)
            .collect();
        for slot in due {
            let Some(neighbour) = self.neighbours.of(slot) else { continue };
            match &neighbour.doubt {
                None if neighbour.linked || neighbour.on_ring() => self.doubt(now, slot, false, out),
                None => self.drop_neighbour(now, slot, out),
                Some(doubt) => {
                    let window = if doubt.tripped { self.config.tripped } else { self.config.silent };
                    let window = window.max(neighbour.round_trip * 8);
                    let (since, tries) = (doubt.since, doubt.tries);
                    let alone = self.seems_alone(since);
                    let window = self.strained(window) * if alone { ISOLATED } else { 1 };
                    if now >= since + window && tries >= TRIES {
                        self.suspect(now, slot, out);
                    } else {
                        self.probe(now, slot, out);
                    }
                }
            }
        }
    }

    /// Most neighbours are doubted and nobody was heard since: then rather we are out of reach.
    fn seems_alone(&self, since: Instant) -> bool {
        let (mut watched, mut doubted) = (0, 0);
        for neighbour in self.neighbours.iter().filter(|n| n.on_ring() || n.doubt.is_some()) {
            watched += 1;
            doubted += usize::from(neighbour.doubt.is_some());
        }
        self.len() > 2 && doubted >= 2.min(watched) && doubted * 2 > watched && self.watch.heard_at < since
    }

    /// A neighbour is gone: everybody hears it.
    fn suspect(&mut self, now: Instant, slot: Slot, out: &mut impl Out) {
        let Some(version) = self.book.view.of(slot, &self.roster) else {
            return self.drop_neighbour(now, slot, out);
        };
        self.counters.suspected += 1;
        let (me, threshold) = (self.book.me, self.config.threshold);
        self.book.on_suspicion(now, me, slot, version, threshold, &self.roster, out);
        self.drop_neighbour(now, slot, out);
        self.settle(now, out);
    }
}
