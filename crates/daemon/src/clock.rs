//! The monotonic clock of a platform, and sleeping that ends when it was asked to.
//!
//! The kernel lets a sleeper oversleep by its *timer slack*, 50 µs unless told otherwise: as much as a whole
//! heartbeat round on a quiet network. [`sharpen`] sets it to one nanosecond for the calling thread.

use phalanx_core::{Duration, Instant};
use std::cell::Cell;

/// Nanoseconds since the clock was started; never steps back, unmoved by the wall clock.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: std::time::Instant,
}

impl Clock {
    /// A clock that reads zero now.
    #[must_use]
    pub fn start() -> Self {
        Self { origin: std::time::Instant::now() }
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Instant {
        // A u64 of nanoseconds lasts 584 years: the cut is never seen.
        Instant(self.origin.elapsed().as_nanos() as u64)
    }

    /// Time left until `until`; zero when it has passed.
    #[must_use]
    pub fn left(&self, until: Instant) -> Duration {
        until.since(self.now())
    }

    /// Sleeps until `until` and returns the time it then is. Never returns early.
    pub fn sleep_until(&self, until: Instant) -> Instant {
        sharpen();
        loop {
            let now = self.now();
            if now >= until {
                return now;
            }
            std::thread::sleep(until.since(now).into());
        }
    }
}

/// What the calling thread's timers may be late by, on purpose.
const TIMER_SLACK_NS: u64 = 1;

thread_local! {
    static SHARP: Cell<bool> = const { Cell::new(false) };
}

/// Makes the timed sleeps and waits of this thread precise. Costs one system call, the first time.
pub fn sharpen() {
    SHARP.with(|sharp| {
        if !sharp.replace(true) {
            // A sandbox may forbid it: then timers are late by up to 50 µs, which is allowed.
            let _ = nix::sys::prctl::set_timerslack(TIMER_SLACK_NS);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeper_wakes_at_its_time_and_not_before() {
        let clock = Clock::start();
        let until = clock.now() + Duration::from_millis(2);
        let woke = clock.sleep_until(until);
        assert!(woke >= until);
        assert_eq!(clock.left(until), Duration::ZERO);
        assert!(clock.sleep_until(Instant::ZERO) >= woke);
    }

    #[test]
    fn a_sharpened_thread_has_no_slack() {
        sharpen();
        assert_eq!(nix::sys::prctl::get_timerslack(), Ok(1));
    }
}
