//! How much of the machine was ours: a spin on each core at once that counts the time it lost.
//!
//! A shared machine takes cores away for milliseconds, and a benchmark that does not say so is worth little. Each
//! run probes before and after; figures from a noisy machine are to be read as ratios, if at all.

use crate::cores;
use serde::Serialize;
use std::thread;
use std::time::{Duration, Instant};

/// How long a probe spins: long enough to meet a scheduler tick of another process on each core.
const SPIN: Duration = Duration::from_millis(200);
/// Reading the clock in a loop takes about 25 ns a turn; a longer pause than this was somebody else's.
const LOST: Duration = Duration::from_micros(5);

/// What the spin saw on one core.
#[derive(Clone, Copy, PartialEq, Serialize, Debug)]
pub(crate) struct Core {
    /// Which core.
    pub(crate) core: usize,
    /// The share of the time that the spin had it.
    pub(crate) available: f64,
    /// The longest time that it was away.
    pub(crate) largest_gap_ms: f64,
}

/// The probes around a run.
#[derive(Clone, PartialEq, Serialize, Default, Debug)]
pub(crate) struct Noise {
    /// Before the first trial.
    pub(crate) before: Vec<Core>,
    /// After the last one.
    pub(crate) after: Vec<Core>,
}

/// Spins on all allowed cores at once.
pub(crate) fn probe() -> nix::Result<Vec<Core>> {
    let spins: Vec<_> = cores::allowed()?.into_iter().map(|core| thread::spawn(move || spin(core))).collect();
    spins.into_iter().map(|spin| spin.join().expect("a spin has nothing to panic about")).collect()
}

fn spin(core: usize) -> nix::Result<Core> {
    cores::pin(core)?;
    let start = Instant::now();
    let (mut last, mut lost, mut largest) = (start, Duration::ZERO, Duration::ZERO);
    while last - start < SPIN {
        let now = Instant::now();
        let gap = now - last;
        if gap > LOST {
            lost += gap;
            largest = largest.max(gap);
        }
        last = now;
    }
    let available = 1.0 - lost.as_secs_f64() / (last - start).as_secs_f64();
    Ok(Core { core, available: round(available), largest_gap_ms: round(largest.as_secs_f64() * 1e3) })
}

/// Three decimals: more would pretend.
fn round(x: f64) -> f64 {
    (x * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_core_is_probed_and_the_shares_are_shares() {
        let seen = probe().unwrap();
        assert_eq!(seen.iter().map(|c| c.core).collect::<Vec<_>>(), cores::allowed().unwrap());
        assert!(seen.iter().all(|c| (0.0..=1.0).contains(&c.available) && c.largest_gap_ms >= 0.0), "{seen:?}");
    }
}
