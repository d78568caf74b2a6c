//! Sweeps over drawn faults: `sweep FIRST COUNT [paper]`. Prints red runs, and a summary.

use phalanx_sim::member::sweep::{How, run};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let number = |i: usize, default| args.get(i).and_then(|a| a.parse().ok()).unwrap_or(default);
    let (first, count): (u64, u64) = (number(1, 0), number(2, 100));
    let how = How { paper: args.get(3).is_some_and(|a| a == "paper"), ..How::default() };
    let (mut red, mut events, mut slowest) = (0, 0, None);
    for seed in first..first + count {
        let report = run(seed, how);
        events += report.stats.events;
        slowest = slowest.max(report.settled_in.map(|d| (d, seed)));
        if !report.is_green() {
            red += 1;
            println!("{report}");
        }
    }
    println!("{red} of {count} red, {events} events, slowest to settle {slowest:?}");
}
