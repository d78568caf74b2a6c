//! Damping: who is removed again and again waits before it says that it lives.
//!
//! A member that hears that it was removed speaks up with a higher minor and is back in all views (ZN-5). One that comes
//! and goes, because its cable or its host does, would make everybody's view flap. Views stay equal when the member
//! itself holds back: the first time in a while it answers at once, since others err; each further time it must first
//! have been well for twice as long. It is well while those whom it probes answer it: so one that loses most of its
//! packets, or all of them now and then, stays out for as long as it does. The paper has no such rule, nor does profile
//! `paper`.

use super::Zone;
use crate::member::{Engine, Out};
use phalanx_core::{Addr, Duration, Fingerprint, Instant};
use phalanx_wire::zone::Note;

/// Between rounds of probes.
const ROUND: Duration = Duration::from_secs(1);
/// Rounds that must go well after the second removal: more than Rapid's flip-flops are well. And the most.
const FIRST: u32 = 30;
const MOST: u32 = 160;
/// A removal is forgiven to who has not been removed for so long.
const FORGIVEN: Duration = Duration::from_secs(120);
/// Who answered before and misses so many rounds may be gone itself, and is not asked again.
const MISSED: u8 = 3;
/// Rounds in a row without any answer, after which all begins anew.
const SILENT: u32 = 2;
/// A zone of so many, or fewer.
const PAIR: usize = 2;
/// While it waits, a member looks for neighbours no more often than this: most will not have it.
pub(super) const MEND: Duration = Duration::from_secs(1);

/// How often we were removed lately.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Damping {
    removals: u32,
    /// Since when we have been there.
    there_at: Instant,
    /// While we hold back.
    trial: Option<Box<Trial>>,
}

/// Are we well?
#[derive(Clone, PartialEq, Eq, Debug)]
struct Trial {
    round_at: Instant,
    nonce: u32,
    /// Rounds that went well, and that must.
    well: u32,
    rounds: u32,
    /// Rounds in a row in which nobody answered.
    silent: u32,
    asked: Vec<Asked>,
}

/// Somebody who was probed in the present round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Asked {
    addr: Addr,
    /// It has answered in a round before: so it lives, or did until lately.
    known: bool,
    answered: bool,
    missed: u8,
}

impl Trial {
    fn new(now: Instant, rounds: u32) -> Self {
        Self { round_at: now, nonce: 0, well: 0, rounds, silent: 0, asked: Vec::new() }
    }

    /// A round is over. It went well when two thirds of those who live answered; when none did twice in a row, or we slept
    /// through another round, all begins anew. (In a zone of two a round is one packet, and any may be lost.) Who answered is asked again, up to `most` of them.
    fn judge(&mut self, now: Instant, most: usize) {
        let known = self.asked.iter().filter(|a| a.known).count();
        let answered = self.asked.iter().filter(|a| a.known && a.answered).count();
        self.silent = if answered == 0 { self.silent + 1 } else { 0 };
        if self.silent >= SILENT || now >= self.round_at + ROUND {
            self.well = 0;
        } else if answered > 0 && answered * 3 >= known * 2 {
            self.well += 1;
        }
        for asked in &mut self.asked {
            asked.missed = if asked.answered { 0 } else { asked.missed + 1 };
        }
        self.asked.retain(|a| a.answered || (a.known && a.missed < MISSED));
        self.asked.truncate(most);
        self.asked.iter_mut().for_each(|a| (a.known, a.answered) = (true, false));
    }
}

impl Damping {
    pub(super) const fn new() -> Self {
        Self { removals: 0, there_at: Instant::ZERO, trial: None }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.trial.as_ref().map_or(Instant::NEVER, |t| t.round_at)
    }

    /// True while we know that we were removed, and hold back.
    pub(super) fn is_waiting(&self) -> bool {
        self.trial.is_some()
    }

    /// We were removed: how many rounds must go well before we speak up.
    fn removed(&mut self, now: Instant) -> u32 {
        let forgiven = now.since(self.there_at).0 / FORGIVEN.0;
        self.removals = self.removals.saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX)) + 1;
        self.there_at = now;
        match self.removals {
            1 => 0,
            n => (FIRST << (n - 2).min(8)).min(MOST),
        }
    }

    /// A probe was answered.
    pub(super) fn answered(&mut self, addr: Addr, nonce: u32) {
        if let Some(trial) = self.trial.as_mut().filter(|t| t.nonce == nonce)
            && let Some(asked) = trial.asked.iter_mut().find(|a| a.addr == addr)
        {
            asked.answered = true;
        }
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&self.removals);
        print.instant(self.there_at);
        if let Some(trial) = &self.trial {
            print.instant(trial.round_at);
            print.add(&(trial.nonce, trial.well, trial.rounds, trial.silent));
            trial.asked.iter().for_each(|a| _ = print.add(&(a.addr, a.known, a.answered, a.missed)));
        }
    }
}

impl Zone {
    /// Others may hold something against us: answers, now or in its time.
    pub(super) fn answer_accusation(&mut self, now: Instant) {
        let Some(said) = self.book.accused else { return };
        if self.damping.is_waiting() {
            return;
        }
        self.counters.refuted += 1;
        // Where there are but two, nobody else's view flaps, and the other one cannot be told from a cut.
        let rounds = if self.config.probes && self.len() > PAIR { self.damping.removed(now) } else { 0 };
        if rounds == 0 {
            self.book.speak_up(said, &self.roster);
        } else {
            self.counters.held_back += 1;
            self.damping.trial = Some(Box::new(Trial::new(now, rounds)));
        }
    }

    /// The end of a round of probes, and the next; or time to speak up.
    pub(super) fn expire_damping(&mut self, now: Instant, out: &mut impl Out) {
        let Some(trial) = self.damping.trial.as_mut().filter(|t| t.round_at <= now) else { return };
        trial.judge(now, self.config.helpers);
        // Who knows nobody else has nobody to ask.
        if trial.well < trial.rounds && self.len() > PAIR {
            return self.ask_around(now, out);
        }
        self.damping.trial = None;
        self.damping.there_at = now;
        if let Some(said) = self.book.accused {
            self.book.speak_up(said, &self.roster);
        }
        self.mend_at = now;
        self.settle(now, out);
    }

    /// Probes those who answered before, and a few more.
    fn ask_around(&mut self, now: Instant, out: &mut impl Out) {
        let nonce = self.next_nonce();
        let more: Vec<Addr> = (0..self.config.helpers)
            .filter_map(|_| {
                let slot = self.draw_among(|zone, s| s != zone.book.me)?;
                Some(self.roster.card(slot)?.addr)
            })
            .collect();
        // Not in step with others who do something each second.
        let jitter = Duration(self.rng.below(ROUND.0 / 4));
        let Some(trial) = &mut self.damping.trial else { return };
        (trial.round_at, trial.nonce) = (now + ROUND - jitter, nonce);
        for addr in more {
            if trial.asked.iter().all(|a| a.addr != addr) {
                trial.asked.push(Asked { addr, known: false, answered: false, missed: 0 });
            }
        }
        let to: Vec<Addr> = trial.asked.iter().map(|a| a.addr).collect();
        for to in to {
            self.note(to, &Note::Probe { nonce }, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_removal_is_answered_at_once_and_further_ones_ever_later() {
        let mut damping = Damping::new();
        let at = |s: u64| Instant::ZERO + Duration::from_secs(1000 + s);
        let rounds: Vec<_> = (0..6).map(|n| damping.removed(at(n))).collect();
        assert_eq!(rounds, [0, 30, 60, 120, 160, 160]);
        assert_eq!(damping.removed(at(10_000)), 0, "after a while all is forgiven");
    }

    /// Rounds in which, of three who are asked again, so many answer.
    fn well_after(rounds: &[usize]) -> u32 {
        let mut trial = Trial::new(Instant::ZERO, FIRST);
        for &answers in rounds {
            while trial.asked.len() < 3 {
                let addr = Addr::Local(trial.asked.len() as u32);
                trial.asked.push(Asked { addr, known: false, answered: false, missed: 0 });
            }
            trial.asked.iter_mut().take(answers).for_each(|a| a.answered = true);
            trial.judge(trial.round_at, 3);
        }
        trial.well
    }

    #[test]
    fn who_was_blocked_begins_anew() {
        let mut trial = Trial::new(Instant::ZERO, FIRST);
        trial.asked.push(Asked { addr: Addr::Local(1), known: true, answered: true, missed: 0 });
        trial.judge(Instant::ZERO + ROUND / 2, 3);
        assert_eq!(trial.well, 1);
        trial.asked[0].answered = true;
        trial.judge(Instant::ZERO + ROUND * 8, 3);
        assert_eq!(trial.well, 0);
    }

    #[test]
    fn only_who_is_answered_by_most_each_time_is_well() {
        assert_eq!(well_after(&[3, 3, 3, 3]), 3, "the first round finds out who lives");
        assert_eq!(well_after(&[3, 3, 2, 3]), 3, "one may be lost");
        assert_eq!(well_after(&[3, 3, 1, 3]), 2, "two are too many");
        assert_eq!(well_after(&[3, 3, 3, 0, 3]), 3, "one round may be lost");
        assert_eq!(well_after(&[3, 3, 3, 0, 0, 3]), 1, "silence begins anew");
    }

    #[test]
    fn who_dies_meanwhile_is_not_asked_for_ever() {
        // One of three falls silent for good, then another: those who are left suffice.
        assert_eq!(well_after(&[3, 2, 2, 2, 2]), 4);
        assert_eq!(well_after(&[3, 1, 1, 1, 1, 1]), 2);
    }
}
