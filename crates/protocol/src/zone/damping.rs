//! Damping: who is removed again and again waits before it says that it lives.
//!
//! A member that hears that it was removed speaks up with a higher minor and is back in all views (ZN-5). One that comes
//! and goes, because its cable or its host does, would make everybody's view flap. Views stay equal when the member
//! itself holds back: the first time in a while it answers at once, since others err; each further time it waits four
//! times as long. The paper has no such rule, nor does profile `paper`.

use super::Zone;
use crate::member::{Engine, Out};
use phalanx_core::{Duration, Fingerprint, Instant};
use phalanx_wire::zone::Note;

/// The wait after the second removal; the longest one.
const FIRST: Duration = Duration::from_secs(10);
const LONGEST: Duration = Duration::from_secs(160);
/// A removal is forgiven after so long.
const FORGIVEN: Duration = Duration::from_secs(120);
/// While it waits, a member looks for neighbours no more often than this: most will not have it.
pub(super) const MEND: Duration = Duration::from_secs(1);

/// How often we were removed lately.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Damping {
    removals: u32,
    last_at: Instant,
    /// When to speak up.
    speak_at: Instant,
}

impl Damping {
    pub(super) const fn new() -> Self {
        Self { removals: 0, last_at: Instant::ZERO, speak_at: Instant::NEVER }
    }

    pub(super) const fn deadline(&self) -> Instant {
        self.speak_at
    }

    /// True while we know that we were removed, and hold back.
    pub(super) fn is_waiting(&self) -> bool {
        self.speak_at != Instant::NEVER
    }

    /// We were removed: how long to wait before we speak up.
    fn removed(&mut self, now: Instant) -> Duration {
        let forgiven = now.since(self.last_at).0 / FORGIVEN.0;
        self.removals = self.removals.saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX)) + 1;
        self.last_at = now;
        match self.removals {
            1 => Duration::ZERO,
            n => (FIRST * (1 << (2 * (n - 2)).min(8))).min(LONGEST),
        }
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&self.removals);
        print.instant(self.last_at);
        print.instant(self.speak_at);
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
        let wait = if self.config.probes { self.damping.removed(now) } else { Duration::ZERO };
        if wait == Duration::ZERO {
            self.book.speak_up(said, &self.roster);
        } else {
            self.counters.held_back += 1;
            self.damping.speak_at = now + wait;
        }
    }

    /// Time to speak up.
    pub(super) fn expire_damping(&mut self, now: Instant, out: &mut impl Out) {
        if self.damping.speak_at > now {
            return;
        }
        if self.hears_nobody(now) && self.len() > 1 {
            // Who speaks up and does not hear is removed again: better to wait until others answer.
            self.damping.speak_at = now + MEND;
            for _ in 0..self.config.helpers {
                let someone = self.draw().and_then(|s| self.roster.card(s)).map(|c| c.addr);
                someone.into_iter().for_each(|to| self.note(to, &Note::Probe { nonce: 0 }, out));
            }
            return;
        }
        self.damping.speak_at = Instant::NEVER;
        if let Some(said) = self.book.accused {
            self.book.speak_up(said, &self.roster);
        }
        self.mend_at = now;
        self.settle(now, out);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_removal_is_answered_at_once_and_further_ones_ever_later() {
        let mut damping = Damping::new();
        let at = |s: u64| Instant::ZERO + Duration::from_secs(1000 + s);
        let waits: Vec<_> = (0..5).map(|n| damping.removed(at(n)).0 / 1_000_000_000).collect();
        assert_eq!(waits, [0, 10, 40, 160, 160]);
        assert_eq!(damping.removed(at(10_000)), Duration::ZERO, "after a while all is forgiven");
    }
}
