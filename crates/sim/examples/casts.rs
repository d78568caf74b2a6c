//! `cargo run --release -p phalanx-sim --example casts -- <first seed> <count>`: many runs of casts, with the first red ones.

use phalanx_sim::scenario::{Engine, Swarm, swarm};

fn main() {
    let mut numbers = std::env::args().skip(1).map(|a| a.parse().expect("a number"));
    let (first, runs) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(1_000));
    let plan = Swarm { first, runs, jobs: 2, engine: Engine::Cast, workload: None, keep_going: true };
    let summary = swarm(&plan, |_, _| ());
    for red in summary.red.iter().take(20) {
        println!("seed {}: {}", red.run.seed, red.outcome.report);
    }
    let told: Vec<String> = summary.told.iter().map(|(name, count)| format!("{name} {count}")).collect();
    let seeds: Vec<u64> = summary.red.iter().map(|r| r.run.seed).collect();
    println!("{} runs, {} events, {}", summary.runs, summary.events, told.join(", "));
    println!("trace {:016x}, {} red: {seeds:?}, {:.1} s", summary.trace, seeds.len(), summary.wall.as_secs_f64());
}
