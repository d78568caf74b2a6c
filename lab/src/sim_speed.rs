//! `sim-speed`: the simulator's event queue against the standard library's heap, in the same run, and 10,000 nodes that
//! heartbeat: through their real links (CL, with the simulator's seal), and beside it the bare engine with a toy on it.
//!
//! Nodes beat to their next neighbour, so that half of the events are arrivals and half are timers.
//!
//! The hold model: a fixed number of pending 48-byte events, each one taken is replaced by a later one. Both sides get the
//! same events and must agree on their order, or the race is void.

use crate::error::Error;
use crate::experiment::{Experiment, Run};
use crate::plot::Picture;
use crate::report::{Check, Must, row, significant};
use phalanx_core::Duration;
use phalanx_sim::station::{self, Heartbeat, Options, Workload};
use phalanx_sim::{Setup, heartbeat, race};
use std::fmt;
use std::time::Instant;

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
/// Beats of one node are so far apart.
const INTERVAL_MS: f64 = 10.0;
/// Handshakes are over by then.
const WARM_UP: Duration = Duration::from_millis(200);
/// What the simulator has to reach with real links, events a second.
const ENOUGH: f64 = 5e6;
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
        Picture { x: "pending", y: "events_per_s", series: &["what"], only: None, beside: &[] }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let key = |what: &str, pending: usize| format!("{what}, {pending} pending");
        let variants: Vec<_> = PENDING.into_iter().map(Trial::Race).chain([Trial::Links, Trial::Engine]).collect();
        let ratios: Vec<_> = PENDING.iter().map(|&p| (key("queue", p), key("BinaryHeap", p))).collect();
        let samples = run.rounds(&variants, &ratios, |trial, samples| {
            match *trial {
                Trial::Race(pending) => {
                    let (queue, heap) = race::queue(SEED, pending, EVENTS, race::USUAL);
                    samples.watch(key("queue", pending), queue.rate() * 1e6);
                    samples.watch(key("BinaryHeap", pending), heap.rate() * 1e6);
                }
                Trial::Links => samples.watch(trial.to_string(), links()?),
                Trial::Engine => {
                    let beats =
                        heartbeat::Beats { peers: 1, interval: Duration::from_secs_f64(INTERVAL_MS / 1e3), bytes: 64 };
                    let outcome = heartbeat::run(SEED, NODES, 1, beats, BEATING);
                    samples.watch(trial.to_string(), outcome.map_err(Error::peer("phalanx-sim"))?.rate() * 1e6);
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
        let links = samples.median(&Trial::Links.to_string());
        let engine = samples.median(&Trial::Engine.to_string());
        for (what, rate) in [(Trial::Links, links), (Trial::Engine, engine)] {
            run.row(row! {
                "what": what.to_string(), "nodes": NODES, "pending": (),
                "events_per_s": rate.map(significant), "ratio": (),
            });
        }
        run.check(Check::new(
            "heartbeats over CL, 10,000 nodes ≥ 5 M events/s, one thread",
            links,
            Must::AtLeast,
            ENOUGH,
        ));
        Ok(())
    }
}

/// One measurement of a round.
enum Trial {
    /// Both queues with so many events pending.
    Race(usize),
    /// The cluster, through its links.
    Links,
    /// The cluster with a toy in the place of the link.
    Engine,
}

/// Events a second of a cluster that beats through its links.
fn links() -> Result<f64, Error> {
    let setup = Setup { seed: SEED, nodes: NODES, threads: 1, ..Setup::default() };
    let beats = Heartbeat { interval_ms: INTERVAL_MS, neighbours: 1, ..Heartbeat::default() };
    let options = Options { checked: false, ..Options::default() };
    let mut sim = station::build(&setup, &Workload::Heartbeat(beats), &options).map_err(Error::peer("phalanx-sim"))?;
    sim.run_for(WARM_UP);
    let (before, begin) = (sim.stats().events, Instant::now());
    sim.run_for(BEATING);
    Ok((sim.stats().events - before) as f64 / begin.elapsed().as_secs_f64())
}

impl fmt::Display for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Race(pending) => write!(f, "race, {pending} pending"),
            Self::Links => f.write_str("heartbeats over CL"),
            Self::Engine => f.write_str("heartbeats, bare engine"),
        }
    }
}
