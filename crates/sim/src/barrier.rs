//! Where the threads of a run meet between two windows.
//!
//! A window may be microseconds of work, and waking a sleeping core costs more than that: so they spin first, and
//! sleep when the wait gets long. A thread that panics releases the others, so that a red run ends.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

/// Turns of the waiting loop before the thread sleeps: longer than a wake-up takes, about 20 µs.
const SPINS: u32 = 2_000;

pub(crate) struct Barrier {
    threads: usize,
    waiting: AtomicUsize,
    round: AtomicUsize,
    broken: AtomicBool,
    /// Taken by those who go to sleep and those who wake them, so that no wake-up is missed.
    bed: Mutex<()>,
    wake: Condvar,
}

impl Barrier {
    pub(crate) fn new(threads: usize) -> Self {
        Self {
            threads,
            waiting: AtomicUsize::new(0),
            round: AtomicUsize::new(0),
            broken: AtomicBool::new(false),
            bed: Mutex::new(()),
            wake: Condvar::new(),
        }
    }

    /// Returns when all threads are here.
    ///
    /// # Panics
    /// When another thread has panicked.
    pub(crate) fn wait(&self) {
        let round = self.round.load(Ordering::Acquire);
        if self.waiting.fetch_add(1, Ordering::AcqRel) + 1 == self.threads {
            self.waiting.store(0, Ordering::Relaxed);
            self.round.store(round.wrapping_add(1), Ordering::Release);
            self.wake_all();
            return;
        }
        let waits = || self.round.load(Ordering::Acquire) == round && !self.broken.load(Ordering::Acquire);
        for _ in 0..SPINS {
            if !waits() {
                break;
            }
            std::hint::spin_loop();
        }
        let mut bed = self.bed.lock().unwrap_or_else(PoisonError::into_inner);
        while waits() {
            bed = self.wake.wait(bed).unwrap_or_else(PoisonError::into_inner);
        }
        assert!(!self.broken.load(Ordering::Acquire), "another thread of the run has panicked");
    }

    fn wake_all(&self) {
        drop(self.bed.lock().unwrap_or_else(PoisonError::into_inner));
        self.wake.notify_all();
    }

    /// Held by each thread: tells the others when this one panics.
    pub(crate) fn guard(&self) -> Guard<'_> {
        Guard(self)
    }
}

pub(crate) struct Guard<'a>(&'a Barrier);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.broken.store(true, Ordering::Release);
            self.0.wake_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU32;

    #[test]
    fn nobody_leaves_before_all_have_come() {
        let (barrier, count) = (Barrier::new(3), AtomicU32::new(0));
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    for round in 1..=200 {
                        count.fetch_add(1, Ordering::SeqCst);
                        barrier.wait();
                        assert_eq!(count.load(Ordering::SeqCst), 3 * round);
                        barrier.wait();
                    }
                });
            }
        });
    }

    #[test]
    fn a_panic_releases_those_who_wait() {
        let barrier = Barrier::new(2);
        let outcome = std::panic::catch_unwind(|| {
            std::thread::scope(|s| {
                s.spawn(|| {
                    let _guard = barrier.guard();
                    panic!("planted");
                });
                barrier.wait();
            });
        });
        assert!(outcome.is_err());
    }
}
