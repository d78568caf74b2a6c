//! `sim-speed`: the simulator's event queue against the standard library's heap, in the same run.
//!
//! The hold model: a fixed number of pending 48-byte events, each one taken is replaced by a later one. Both sides get the
//! same events and must agree on their order, or the race is void.

use crate::error::Error;
use crate::experiment::{Experiment, Run};
use crate::plot::Picture;
use crate::report::{Check, Must, row, significant};
use phalanx_sim::race;

/// The experiment.
pub(crate) struct SimSpeed;

/// Pending events: a small run, and a million nodes with a timer each.
const PENDING: [usize; 3] = [1_000, 30_000, 1_000_000];
/// Where the queue has to show its worth, and by how much.
const MILLION: usize = 1_000_000;
const LEAD: f64 = 4.0;
/// Events taken in a trial.
const EVENTS: u64 = 1_000_000;
/// The same events in each trial: only the machine differs.
const SEED: u64 = 1;

impl Experiment for SimSpeed {
    fn name(&self) -> &'static str {
        "sim-speed"
    }

    fn about(&self) -> &'static str {
        "events a second: the simulator's queue beside BinaryHeap"
    }

    fn picture(&self) -> Picture {
        Picture { x: "pending", y: "events_per_s", series: &["what"] }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let key = |what: &str, pending: usize| format!("{what}, {pending} pending");
        let ratios: Vec<_> = PENDING.iter().map(|&p| (key("queue", p), key("BinaryHeap", p))).collect();
        let samples = run.rounds(&PENDING, &ratios, |&pending, samples| {
            let (queue, heap) = race::queue(SEED, pending, EVENTS, race::USUAL);
            samples.watch(key("queue", pending), queue.rate() * 1e6);
            samples.watch(key("BinaryHeap", pending), heap.rate() * 1e6);
            Ok(())
        });
        for pending in PENDING {
            let lead = samples.ratio(&key("queue", pending), &key("BinaryHeap", pending)).map(|r| r.value);
            for (what, ratio) in [("BinaryHeap", Some(1.0)), ("queue", lead)] {
                let rate = samples.median(&key(what, pending));
                run.row(row! {
                    "what": what, "nodes": (), "pending": pending,
                    "events_per_s": rate.map(significant), "ratio": ratio.map(significant),
                });
            }
            if pending == MILLION {
                run.check(Check::new("queue / BinaryHeap ≥ 4, a million pending", lead, Must::AtLeast, LEAD));
            }
        }
        Ok(())
    }
}
