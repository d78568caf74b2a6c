//! Companies in the simulator: a quiet job, and sweeps of drawn ones.

use crate::scenario::{Engine, Scenario, Swarm, drawn, swarm};

fn sweep(seeds: impl Iterator<Item = u64>) {
    let mut red = Vec::new();
    for seed in seeds {
        let plan = Swarm { first: seed, runs: 1, jobs: 1, engine: Engine::View, workload: None, keep_going: false };
        red.extend(swarm(&plan, |_, _| ()).red);
    }
    for run in red.iter().take(10) {
        println!("seed {}: {}", run.run.seed, run.outcome.report);
    }
    assert!(red.is_empty(), "{} runs are red", red.len());
}

/// RV-1 to RV-8: whatever befalls them, tasks keep their promises.
#[test]
fn tasks_keep_their_promises_whatever_befalls_them() {
    sweep(0..60);
}

/// A seed is a run: threads change nothing.
#[test]
fn on_two_threads_a_run_is_the_same() {
    for seed in 0..8 {
        let trace = |threads: usize| {
            let mut scenario = Scenario::parse("drawn", &drawn(seed, Engine::View, None), &[] as &[&str]).unwrap();
            scenario.setup.threads = threads;
            let outcome = scenario.run().unwrap();
            (outcome.report.trace, outcome.measures)
        };
        assert_eq!(trace(1), trace(2), "seed {seed}");
    }
}
