//! Where the threads of a run meet between two windows.
//!
//! A window may be microseconds of work, and waking a sleeping core costs more than that: so they spin, and give the
//! core away when the wait gets long. A thread that panics releases the others, so that a red run ends.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Turns of the waiting loop before the core is offered to others.
const SPINS: u32 = 2_000;

pub(crate) struct Barrier {
    threads: usize,
    waiting: AtomicUsize,
    round: AtomicUsize,
    broken: AtomicBool,
}

impl Barrier {
    pub(crate) fn new(threads: usize) -> Self {
        Self { threads, waiting: AtomicUsize::new(0), round: AtomicUsize::new(0), broken: AtomicBool::new(false) }
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
            return;
        }
        let mut spins = 0;
        while self.round.load(Ordering::Acquire) == round {
            assert!(!self.broken.load(Ordering::Relaxed), "another thread of the run has panicked");
            spins += 1;
            if spins < SPINS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
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
            self.0.broken.store(true, Ordering::Relaxed);
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
