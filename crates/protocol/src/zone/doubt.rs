//! Doubts: a neighbour may be gone, because its wire broke, it fell silent, or it does not answer. It is probed, directly and
//! through others, and then believed to be gone, or not.
//!
//! ZN-5, 002 §3. See `watch` for what makes a doubt, and for where we differ from the paper.

use super::Zone;
use super::neighbour::{Doubt, Neighbour};
use crate::member::{Engine, Out, Slot, Version};
use phalanx_core::{Addr, Duration, Instant};
use phalanx_wire::zone::Note;

/// Tries before a silent neighbour is suspected, whatever the time.
const TRIES: u32 = 4;
/// Others who must get no answer from a doubted one either, where there are so many.
const SECONDS: usize = 2;
/// Who was vouched for when it was doubted last has so many times as long, in which more others are asked. Where many ways are bad at
/// once a few others may happen to be behind bad ones, too; and a neighbour that we cannot hear is doubted every other second, so what
/// is unlikely each time comes true.
const VOUCHED: u64 = 4;
/// The shortest wait between probes.
const SPACING: Duration = Duration::from_millis(4);
/// For each so many members who hears nobody waits once more as long before it believes that they are gone, not it.
const MANY: u64 = 256;

impl Zone {
    /// When some neighbour is to be doubted, or probed again.
    pub(super) fn doubts_deadline(&self) -> Instant {
        let (patience, connect) = (self.strained(self.config.patience), self.strained(self.config.connect));
        let due = self.neighbours.iter().map(|n| match &n.doubt {
            Some(doubt) => doubt.next_at,
            None if !n.linked => n.since + connect,
            None if n.on_ring() => n.heard_at + patience,
            None => Instant::NEVER,
        });
        due.fold(Instant::NEVER, Instant::min)
    }

    /// A wire broke: the process behind it may be gone.
    pub(super) fn on_tripped(&mut self, now: Instant, addr: Addr, out: &mut impl Out) {
        self.office_lost(now, addr, out);
        let Some(neighbour) = self.neighbours.at(addr) else { return };
        neighbour.wired = false;
        let slot = neighbour.slot;
        self.doubt(now, slot, true, out);
    }

    /// A host says that nobody listens at this address.
    pub(super) fn on_refused(&mut self, now: Instant, addr: Addr, out: &mut impl Out) {
        self.discovery_failed(addr, out);
        self.relays_refused(addr, out);
        let probes = self.config.probes;
        let Some(neighbour) = self.neighbours.at(addr) else { return };
        let slot = neighbour.slot;
        match &mut neighbour.doubt {
            Some(doubt) => {
                doubt.refused += 1;
                // Two kernels agree: nobody is there. One alone may be somebody who forges what hosts say.
                if doubt.tripped || !probes {
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
        let nonce = self.next_nonce();
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
                let doubt = Doubt {
                    since: now,
                    nonce,
                    tries: 0,
                    next_at: now,
                    tripped,
                    refused: 0,
                    asked: 0,
                    ask_at: now,
                    seconds: 0,
                };
                neighbour.doubt = Some(Box::new(doubt));
            }
        }
        self.probe(now, slot, out);
        if tripped {
            self.forewarn(slot, out);
        }
    }

    /// One more probe; from the second on others are asked to try, too.
    fn probe(&mut self, now: Instant, slot: Slot, out: &mut impl Out) {
        let silent = self.strained(self.config.silent);
        let Some(neighbour) = self.neighbours.of(slot) else { return };
        let (addr, spacing) = (neighbour.addr, (neighbour.round_trip * 2).clamp(SPACING, silent / 8));
        let Some(doubt) = &mut neighbour.doubt else { return };
        doubt.tries += 1;
        doubt.next_at = now + spacing * (1 << doubt.tries.min(6));
        // Not past the time at which it can be believed.
        let end = doubt.since + silent;
        if now < end {
            doubt.next_at = doubt.next_at.min(end);
        }
        // Not again before those who were asked have given up: while they try, a second question is not heard.
        let ask = doubt.tries > 1 && now >= doubt.ask_at;
        let (nonce, first) = (doubt.nonce, doubt.asked == 0);
        self.note(addr, &Note::Probe { nonce }, out);
        let Some(of) = self.roster.card(slot).map(|c| c.identity).filter(|_| ask) else { return };
        let others = self.helpers(slot, first);
        let again = now + self.strained(self.config.silent) / 2;
        if let Some(doubt) = self.neighbours.of(slot).and_then(|n| n.doubt.as_mut()) {
            doubt.ask_at = again;
            doubt.asked += others.len() as u16;
        }
        for to in others {
            self.note(to, &Note::Ask { nonce, of }, out);
        }
    }

    /// Who is asked to probe a neighbour as well: at first our other neighbours, then anybody, because they may be behind the
    /// same cut as we.
    fn helpers(&mut self, slot: Slot, first: bool) -> Vec<Addr> {
        let most = self.config.helpers;
        let fit = |n: &Neighbour| n.slot != slot && n.linked && n.doubt.is_none();
        let mut near: Vec<Addr> = self.neighbours.iter().filter(|n| fit(n)).map(|n| n.addr).collect();
        self.rng.shuffle(&mut near);
        near.truncate(most);
        let mut others = Vec::with_capacity(most);
        for _ in if first { near.len() } else { 0 }..most {
            let Some(addr) = self.draw().and_then(|s| self.roster.card(s)).map(|c| c.addr) else { break };
            // In a small view the same one may be drawn twice.
            if !others.contains(&addr) {
                others.push(addr);
            }
        }
        near.truncate(most - others.len());
        others.append(&mut near);
        others
    }

    /// Doubts that are due: probed again, or believed. Neighbours that have been silent for too long: doubted.
    pub(super) fn expire_doubts(&mut self, now: Instant, out: &mut impl Out) {
        let (patience, connect) = (self.strained(self.config.patience), self.strained(self.config.connect));
        let due: Vec<Slot> = self
            .neighbours
            .iter()
            .filter(|n| match &n.doubt {
                Some(doubt) => doubt.next_at <= now,
                None if !n.linked => n.since + connect <= now,
                None => n.on_ring() && n.heard_at + patience <= now,
            })
            .map(|n| n.slot)
            .collect();
        for slot in due {
            let Some(neighbour) = self.neighbours.of(slot) else { continue };
            match &neighbour.doubt {
                None if neighbour.linked || neighbour.ahead || neighbour.random => self.doubt(now, slot, false, out),
                None => self.drop_neighbour(now, slot, out),
                Some(doubt) => {
                    // Of one that slept the wires were cut by those who took it for dead.
                    let quick = (doubt.tripped || doubt.refused > 1) && !self.watch.is_strained();
                    let window = if quick { self.config.tripped } else { self.config.silent };
                    let window = window.max((neighbour.round_trip * 8).min(self.config.silent));
                    let window = if neighbour.vouched { self.config.silent * VOUCHED } else { window };
                    let (since, tries) = (doubt.since, doubt.tries);
                    let (asked, seconds) = (doubt.asked, doubt.seconds);
                    // One opinion is not enough where there are more; with two members there is nobody else to ask.
                    let enough = self.len().saturating_sub(2).min(SECONDS) as u16;
                    let seconded = seconds >= enough && seconds * 2 >= asked;
                    let isolated = since + self.strained(self.config.silent) * self.isolation();
                    let isolated = now >= isolated && self.heard_nobody_since(since);
                    if now >= since + self.strained(window) && tries >= TRIES && seconded {
                        self.suspect(now, slot, out);
                    } else if isolated {
                        self.miss(now, slot, out);
                    } else {
                        self.probe(now, slot, out);
                    }
                }
            }
        }
    }

    /// How often as long as others may be silent who hears nobody at all waits before it believes that they are gone. That
    /// a whole zone falls silent at once is the less likely the larger it is, and those who were taken for dead in error
    /// must each say to all that they live.
    fn isolation(&self) -> u64 {
        self.config.isolated * (1 + self.len() as u64 / MANY)
    }

    /// A neighbour is gone: everybody hears it, and monitors by the shortest way.
    pub(super) fn suspect(&mut self, now: Instant, slot: Slot, out: &mut impl Out) {
        if let Some(version) = self.believe_gone(now, slot, out) {
            self.alarm(slot, version, out);
        }
        self.settle(now, out);
    }

    /// We hear nobody, and take a neighbour for gone: for us alone. Nobody is told, because rather it is we who are out of reach,
    /// and what is said now waits in our links: heard when the cut is over, it would pass for a member's word.
    fn miss(&mut self, now: Instant, slot: Slot, out: &mut impl Out) {
        if self.believe_gone(now, slot, out).is_some() {
            self.book.delta.withhold(slot);
        }
        self.settle(now, out);
    }

    /// Takes a neighbour for gone, and says in which version it was there.
    fn believe_gone(&mut self, now: Instant, slot: Slot, out: &mut impl Out) -> Option<Version> {
        let version = self.book.view.of(slot, &self.roster);
        if let Some(version) = version {
            self.counters.suspected += 1;
            let (me, threshold) = (self.book.me, self.config.threshold);
            self.book.on_suspicion(now, me, slot, version, threshold, &self.roster, out);
        }
        self.drop_neighbour(now, slot, out);
        version
    }
}

#[cfg(test)]
mod tests {
    use super::super::hostile::{Desk, Said};
    use super::super::*;
    use crate::member::Input;
    use phalanx_core::Duration;
    use phalanx_wire::zone::{LetterKind, Note, flag};

    fn asks(said: &Said) -> usize {
        said.notes.iter().filter(|(_, bytes)| matches!(Note::parse(bytes), Ok(Note::Ask { .. }))).count()
    }

    /// Who is late again and again asks others no more often for it: they may well share the processor that is overloaded.
    #[test]
    fn who_is_late_does_not_ask_the_more() {
        let mut desk = Desk::new(Config::lan());
        for n in 1..6 {
            desk.letter(n, LetterKind::Connect, flag::RING, |_| ());
        }
        let mut said = Said::default();
        desk.zone.handle(desk.now, Input::Tripped { addr: Addr::Local(3) }, &mut said);
        let (from, mut asked) = (desk.now, 0);
        while desk.now < from + Duration::from_secs(3) {
            // In time for a while, then late.
            asked += asks(&desk.wait(Duration::from_millis(30)));
            desk.now += Duration::from_millis(130);
            let mut said = Said::default();
            desk.zone.expire(desk.now, &mut said);
            asked += asks(&said);
        }
        assert!(desk.zone.counters().starved > 10, "{:?}", desk.zone.counters());
        assert!((1..=18).contains(&asked), "{asked} questions in three seconds");
    }
}
