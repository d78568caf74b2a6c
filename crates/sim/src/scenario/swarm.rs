//! A swarm: many drawn scenarios, run on all cores, until one of them is red.
//!
//! Run number n has the seed `first + n`, so any of them is replayed alone. What is reported does not depend on which
//! core was faster: runs behind the first red one do not count, those before it are finished first.

use super::draw::draw;
use super::draw_casts::draw_casts;
use super::draw_jobs::draw_jobs;
use super::draw_managers::draw_managers;
use super::draw_members::draw_members;
use super::engine::Engine;
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
    /// What the nodes run.
    pub engine: Engine,
    /// Only this workload of links; all of them when absent.
    pub workload: Option<String>,
    /// Goes on after a red run.
    pub keep_going: bool,
}

/// One run of a swarm.
#[derive(Clone, PartialEq, Debug)]
pub struct Run {
    /// Its seed.
    pub seed: u64,
    /// Its workload, or its membership engine.
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
    /// What jobs and casts told: views, waves, tasks, casts, excuses.
    pub told: BTreeMap<String, u64>,
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
pub fn swarm(plan: &Swarm, progress: impl Fn(u64, &Run) + Sync) -> Summary {
    carry_out(plan, progress, |seed| one(seed, plan.engine, plan.workload.as_deref()))
}

fn carry_out(plan: &Swarm, progress: impl Fn(u64, &Run) + Sync, one: impl Fn(u64) -> (Run, Outcome) + Sync) -> Summary {
    let begin = std::time::Instant::now();
    let next = AtomicU64::new(0);
    // Runs from this one on do not count, and are not begun any more.
    let limit = AtomicU64::new(plan.runs);
    let done = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..plan.jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= limit.load(Ordering::Acquire) {
                        return;
                    }
                    let (run, outcome) = one(plan.first + number);
                    if !run.green && !plan.keep_going {
                        limit.fetch_min(number + 1, Ordering::AcqRel);
                    }
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    progress(done.len() as u64 + 1, &run);
                    done.insert(number, (run, outcome));
                }
            });
        }
    });
    let mut summary = Summary { trace: plan.first, ..Summary::default() };
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    let _behind = done.split_off(&limit.into_inner());
    for (run, outcome) in done.into_values() {
        summary.add(run, outcome);
    }
    summary.wall = begin.elapsed();
    summary
}

/// The run of one seed.
fn one(seed: u64, engine: Engine, workload: Option<&str>) -> (Run, Outcome) {
    let text = drawn(seed, engine, workload);
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

/// The text of the scenario that `seed` stands for.
#[must_use]
pub fn drawn(seed: u64, engine: Engine, workload: Option<&str>) -> String {
    match engine {
        Engine::Link => draw(seed, workload),
        Engine::Zone | Engine::AllToAll | Engine::Gossip | Engine::Segment => draw_members(seed, engine),
        Engine::View => draw_jobs(seed),
        Engine::Cast => draw_casts(seed),
        Engine::Manager => draw_managers(seed),
    }
}

impl Summary {
    fn add(&mut self, run: Run, outcome: Outcome) {
        self.runs += 1;
        self.events += run.events;
        *self.workloads.entry(run.workload).or_default() += 1;
        self.trace = fold(self.trace, run.trace);
        for (name, value) in outcome.measures.iter().filter(|m| m.1 > 0) {
            let counts = name.starts_with("faults.") || name.starts_with("injected.");
            let told = ["tasks.", "views.", "waves.", "excuses.", "casts.", "manager."].iter().any(|p| name.starts_with(p));
            if told {
                *self.told.entry(name.to_owned()).or_default() += value;
            } else if counts {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{Report, Violation};
    use crate::scenario::Measures;
    use crate::stats::Stats;
    use phalanx_core::Instant;

    /// A run that is red for some seeds, and takes longer the earlier it is: later ones overtake it.
    fn fake(seed: u64, red: &[u64]) -> (Run, Outcome) {
        std::thread::sleep(Duration::from_millis(20_u64.saturating_sub(seed)));
        let green = !red.contains(&seed);
        let wrong = Violation { checker: "planted", at: Instant::ZERO, node: None, text: "red".into() };
        let violations = if green { vec![] } else { vec![wrong] };
        let report = Report {
            seed,
            ended: Instant::ZERO,
            settled_in: None,
            trace: seed * 77,
            stats: Stats::default(),
            violations,
            more: 0,
            replay: String::new(),
        };
        let outcome = Outcome { report, measures: Measures::default(), missed: vec![], wall: Duration::ZERO };
        let run = Run { seed, workload: "order", nodes: 3, events: 10, trace: seed * 77, wall: Duration::ZERO, green };
        (run, outcome)
    }

    fn plan(jobs: usize, keep_going: bool) -> Swarm {
        Swarm { first: 5, runs: 20, jobs, engine: Engine::Link, workload: None, keep_going }
    }

    #[test]
    fn the_first_red_run_ends_a_swarm_whoever_is_faster() {
        let mut seen = Vec::new();
        for jobs in [1, 2, 5] {
            let summary = carry_out(&plan(jobs, false), |_, _| (), |seed| fake(seed, &[9, 11]));
            let red: Vec<u64> = summary.red.iter().map(|r| r.run.seed).collect();
            assert_eq!((red, summary.runs, summary.events), (vec![9], 5, 50), "{jobs} jobs");
            seen.push(summary.trace);
        }
        assert!(seen.iter().all(|t| *t == seen[0]), "{seen:x?}");
    }

    #[test]
    fn a_swarm_that_keeps_going_reports_all() {
        let heard = AtomicU64::new(0);
        let count = |_, _: &Run| {
            heard.fetch_add(1, Ordering::Relaxed);
        };
        let summary = carry_out(&plan(3, true), count, |seed| fake(seed, &[11, 9]));
        assert_eq!(summary.red.iter().map(|r| r.run.seed).collect::<Vec<_>>(), [9, 11]);
        assert_eq!((summary.runs, heard.into_inner(), summary.workloads["order"]), (20, 20, 20));
        assert!(!summary.is_green());
    }
}
