//! `sim-speed`: the simulator's event queue against the standard library's heap, in the same run, and the whole engine
//! under a cluster that only heartbeats.
//!
//! The hold model: a fixed number of pending 48-byte events, each one taken is replaced by a later one. Both sides get the
//! same events and must agree on their order, or the race is void.

use crate::error::Error;
use crate::experiment::{Experiment, Run};
use crate::plot::Picture;
use crate::report::{Check, Must, row, significant};
use phalanx_core::Duration;
use phalanx_sim::{heartbeat, race};
use std::fmt;

/// The experiment.
pub(crate) struct SimSpeed;

/// Pending events: a small run, and a million nodes with a timer each.
const PENDING: [usize; 3] = [1_000, 30_000, 1_000_000];
/// Where the queue has to show its worth, and by how much.
const MILLION: usize = 1_000_000;
const LEAD: f64 = 4.0;
/// Events taken in a trial.
const EVENTS: u64 = 1_000_000;
/// The cluster that heartbeats, on one thread, for so long of its own time.
const NODES: u32 = 10_000;
const BEATING: Duration = Duration::from_secs(1);
/// What the engine has to reach under it, events a second.
const ENGINE: f64 = 5e6;
/// The same events in each trial: only the machine differs.
const SEED: u64 = 1;

impl Experiment for SimSpeed {
    fn name(&self) -> &'static str {
        "sim-speed"
    }

    fn about(&self) -> &'static str {
        "events a second: the simulator's queue beside BinaryHeap, and 10,000 nodes that heartbeat"
    }

    fn picture(&self) -> Picture {
        Picture { x: "pending", y: "events_per_s", series: &["what"] }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let key = |what: &str, pending: usize| format!("{what}, {pending} pending");
        let variants: Vec<_> = PENDING.into_iter().map(Trial::Race).chain([Trial::Heartbeats]).collect();
        let ratios: Vec<_> = PENDING.iter().map(|&p| (key("queue", p), key("BinaryHeap", p))).collect();
        let samples = run.rounds(&variants, &ratios, |trial, samples| {
            match *trial {
                Trial::Race(pending) => {
                    let (queue, heap) = race::queue(SEED, pending, EVENTS, race::USUAL);
                    samples.watch(key("queue", pending), queue.rate() * 1e6);
                    samples.watch(key("BinaryHeap", pending), heap.rate() * 1e6);
                }
                Trial::Heartbeats => {
                    let outcome = heartbeat::run(SEED, NODES, 1, heartbeat::USUAL, BEATING);
                    let rate = outcome.map_err(Error::peer("phalanx-sim"))?.rate() * 1e6;
                    samples.watch(trial.to_string(), rate);
                }
            }
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
        let rate = samples.median(&Trial::Heartbeats.to_string());
        run.row(row! {
            "what": "heartbeats", "nodes": NODES, "pending": (),
            "events_per_s": rate.map(significant), "ratio": (),
        });
        run.check(Check::new("heartbeats of 10,000 nodes ≥ 5 M events/s, one thread", rate, Must::AtLeast, ENGINE));
        Ok(())
    }
}

/// One measurement of a round.
enum Trial {
    /// Both queues with so many events pending.
    Race(usize),
    /// The cluster.
    Heartbeats,
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Race(pending) => write!(f, "race, {pending} pending"),
            Self::Heartbeats => f.write_str("heartbeats"),
        }
    }
}
