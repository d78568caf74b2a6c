//! A swarm: many drawn scenarios, run on all cores, until one of them is red.
//!
//! Run number n has the seed `first + n`, so any of them is replayed alone. What is reported does not depend on which
//! core was faster: runs behind the first red one do not count, those before it are finished first.

use super::draw::draw;
use super::run::Outcome;
use super::text::Scenario;
use crate::node::fold;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Which runs, and how.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Swarm {
    /// The seed of the first run.
    pub first: u64,
    /// How many.
    pub runs: u64,
    /// How many at once.
    pub jobs: usize,
    /// Only this workload; all of them when absent.
    pub workload: Option<String>,
    /// Goes on after a red run.
    pub keep_going: bool,
}

/// One run of a swarm.
#[derive(Clone, PartialEq, Debug)]
pub struct Run {
    /// Its seed.
    pub seed: u64,
    /// Its workload.
    pub workload: &'static str,
    /// Its number of nodes.
    pub nodes: u32,
    /// Its events.
    pub events: u64,
    /// Its trace.
    pub trace: u64,
    /// How long it took.
    pub wall: Duration,
    /// No violation.
    pub green: bool,
}

/// A red run, with what it says.
#[derive(Clone, PartialEq, Debug)]
pub struct Red {
    /// Which.
    pub run: Run,
    /// What it came to.
    pub outcome: Outcome,
}

/// What a swarm came to.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Summary {
    /// Runs that count.
    pub runs: u64,
    /// Their events.
    pub events: u64,
    /// Runs by workload.
    pub workloads: BTreeMap<&'static str, u64>,
    /// Faults of timelines and of injectors, by name of their measure.
    pub faults: BTreeMap<String, u64>,
    /// Messages delivered.
    pub delivered: u64,
    /// The run that took longest.
    pub slowest: Option<Run>,
    /// Red runs, by seed.
    pub red: Vec<Red>,
    /// Of all traces: the same for the same seeds.
    pub trace: u64,
    /// How long all took.
    pub wall: Duration,
}

/// Draws and runs a swarm. `progress` hears of each run as it ends, with how many have.
#[must_use]
pub fn swarm(swarm: &Swarm, progress: impl Fn(u64, &Run) + Sync) -> Summary {
    let begin = std::time::Instant::now();
    let next = AtomicU64::new(0);
    // Runs from this one on are not begun any more.
    let limit = AtomicU64::new(swarm.runs);
    let done = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..swarm.jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= limit.load(Ordering::Acquire) {
                        return;
                    }
                    let (run, outcome) = one(swarm.first.wrapping_add(number), swarm.workload.as_deref());
                    if !run.green && !swarm.keep_going {
                        limit.fetch_min(number + 1, Ordering::AcqRel);
                    }
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    progress(done.len() as u64 + 1, &run);
                    done.insert(number, (run, outcome));
                }
            });
        }
    });
    let mut summary = Summary { trace: swarm.first, ..Summary::default() };
    let count = limit.into_inner();
    for (run, outcome) in
        done.into_inner().unwrap_or_else(PoisonError::into_inner).into_iter().map(|d| d.1).take(count as usize)
    {
        summary.add(run, outcome);
    }
    summary.wall = begin.elapsed();
    summary
}

/// The run of one seed.
fn one(seed: u64, workload: Option<&str>) -> (Run, Outcome) {
    let text = draw(seed, workload);
    let name = format!("swarm-{seed}");
    let mut scenario = Scenario::parse(&name, &text, &[] as &[&str]).expect("what is drawn makes sense");
    scenario.setup.seed = seed;
    let outcome = scenario.run().expect("what is drawn can be built");
    let run = Run {
        seed,
        workload: scenario.workload_name(),
        nodes: scenario.setup.nodes,
        events: outcome.report.stats.events,
        trace: outcome.report.trace,
        wall: outcome.wall,
        green: outcome.is_green(),
    };
    (run, outcome)
}

impl Summary {
    fn add(&mut self, run: Run, outcome: Outcome) {
        self.runs += 1;
        self.events += run.events;
        *self.workloads.entry(run.workload).or_default() += 1;
        self.trace = fold(self.trace, run.trace);
        for (name, value) in outcome.measures.iter().filter(|m| m.1 > 0) {
            let counts = name.starts_with("faults.") || name.starts_with("injected.");
            if counts {
                *self.faults.entry(name.to_owned()).or_default() += value;
            } else if name == "delivered" {
                self.delivered += value;
            }
        }
        if self.slowest.as_ref().is_none_or(|s| run.wall > s.wall) {
            self.slowest = Some(run.clone());
        }
        if !run.green {
            self.red.push(Red { run, outcome });
        }
    }

    /// True when no run was red.
    #[must_use]
    pub fn is_green(&self) -> bool {
        self.red.is_empty()
    }
}
