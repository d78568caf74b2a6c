//! The computation of the CPU-bound task: the same work in each run, so that time lost to the link shows.

use std::hint::black_box;
use std::time::{Duration, Instant};

/// How long a turn computes: two retransmission timeouts of a fast network.
const COMPUTE: Duration = Duration::from_millis(6);
/// Parts that the computation of a turn is cut into; the process looks at its link after each.
pub(super) const SLICES: u32 = 120;

/// Work that nothing can leave out and nothing can speed up.
pub(super) fn compute(steps: u64) {
    let mut x = black_box(steps | 1);
    for _ in 0..steps {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    black_box(x);
}

/// Steps in one slice, so that a turn computes for [`COMPUTE`] on this machine.
pub(super) fn calibrated() -> u64 {
    pub(super) const STEPS: u64 = 100_000;
    pub(super) const TRIES: u32 = 20;
    let once = || {
        let start = Instant::now();
        compute(STEPS);
        start.elapsed()
    };
    // The fastest of some: whatever interrupted the others is not the work.
    let fastest = (0..TRIES).map(|_| once()).min().unwrap_or_default().as_secs_f64().max(1e-9);
    (STEPS as f64 * (COMPUTE / SLICES).as_secs_f64() / fastest) as u64
}
