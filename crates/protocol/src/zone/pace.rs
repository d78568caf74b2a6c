//! Pace: when gathered news leaves.
//!
//! ZN-7, 002 §3: news is aggregated for τ and leaves in one message. We differ (profile `paper` does not): a lone
//! change leaves at once, because on each of the overlay's hops the paper waits τ. What follows is aggregated for a
//! wait that begins short and, after a few messages, doubles while news keeps coming, up to τ. So a short storm, such as
//! the crash of a rack, passes nearly as fast as a lone change; a long one is never delayed by more than it has lasted;
//! and a boot costs few messages.

use phalanx_core::{Duration, Fingerprint, Instant};

/// How news is aggregated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Paces {
    /// A change that comes after quiet leaves at once.
    pub lone: bool,
    /// The first wait.
    pub shortest: Duration,
    /// Messages in a row that wait no longer than that; then waits double.
    pub brisk: u32,
    /// The longest wait: the paper's τ.
    pub longest: Duration,
}

/// When the next message with news leaves.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pace {
    /// Before this, what comes is aggregated.
    open_at: Instant,
    wait: Duration,
    /// Messages of this storm so far.
    sent: u32,
    due_at: Instant,
}

impl Pace {
    /// Nothing was ever sent.
    #[must_use]
    pub const fn new() -> Self {
        Self { open_at: Instant::ZERO, wait: Duration::ZERO, sent: 0, due_at: Instant::NEVER }
    }

    /// There is something to send. Says nothing new when something waits already.
    pub fn news(&mut self, now: Instant, paces: &Paces) {
        if self.due_at != Instant::NEVER {
            return;
        }
        // As long as the last wait without news: the storm is over.
        if now >= self.open_at + self.wait {
            (self.wait, self.sent) = (Duration::ZERO, 0);
        }
        self.due_at = if paces.lone { now.max(self.open_at) } else { now + paces.shortest };
    }

    /// When to send; [`Instant::NEVER`] when there is nothing.
    #[must_use]
    pub const fn due_at(&self) -> Instant {
        self.due_at
    }

    /// All news is being sent.
    pub fn sent(&mut self, now: Instant, paces: &Paces) {
        let next = if self.sent < paces.brisk { self.wait } else { self.wait * 2 };
        self.wait = next.clamp(paces.shortest, paces.longest);
        self.sent = self.sent.saturating_add(1);
        self.open_at = now + self.wait;
        self.due_at = Instant::NEVER;
    }

    /// Adds the state to `print`.
    pub fn fingerprint(&self, print: &mut Fingerprint) {
        print.instant(self.open_at);
        print.instant(self.due_at);
        print.add(&(self.wait, self.sent));
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    const OURS: Paces = Paces { lone: true, shortest: ms(1), brisk: 0, longest: ms(16) };
    const PAPER: Paces = Paces { lone: false, shortest: ms(200), brisk: 0, longest: ms(200) };

    /// When messages leave while news comes at each millisecond from `from` on.
    fn storm(pace: &mut Pace, paces: &Paces, from: u64, to: u64) -> Vec<u64> {
        let at = |n| Instant::ZERO + ms(n);
        let mut left = Vec::new();
        for n in from..to {
            pace.news(at(n), paces);
            if pace.due_at() <= at(n) {
                pace.sent(at(n), paces);
                left.push(n);
            }
        }
        left
    }

    #[test]
    fn a_lone_change_leaves_at_once_and_a_storm_ever_more_rarely() {
        let mut pace = Pace::new();
        assert_eq!(storm(&mut pace, &OURS, 100, 101), [100]);
        assert_eq!(storm(&mut pace, &OURS, 1000, 1080), [1000, 1001, 1003, 1007, 1015, 1031, 1047, 1063, 1079]);
        assert_eq!(storm(&mut pace, &OURS, 1200, 1203), [1200, 1201], "after quiet it begins anew");
    }

    #[test]
    fn the_first_messages_of_a_storm_are_brisk() {
        let brisk = Paces { brisk: 3, ..OURS };
        let mut pace = Pace::new();
        assert_eq!(storm(&mut pace, &brisk, 100, 118), [100, 101, 102, 103, 105, 109, 117]);
        assert_eq!(storm(&mut pace, &brisk, 200, 203), [200, 201, 202], "after quiet it begins anew");
    }

    /// ZN-7: a message leaves τ after the first event that hits an empty Δ.
    #[test]
    fn the_papers_pace_waits_for_tau_each_time() {
        assert_eq!(storm(&mut Pace::new(), &PAPER, 0, 700), [200, 401, 602]);
    }
}
