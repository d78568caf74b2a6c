//! The engine's figures in one short run: `cargo run --release -p phalanx-sim --example race`.

use phalanx_core::Duration;
use phalanx_sim::{NetworkError, heartbeat, race};

fn main() -> Result<(), NetworkError> {
    for pending in [1_000, 1_000_000] {
        let (ours, heap) = race::queue(1, pending, 4_000_000, race::USUAL);
        println!(
            "queue, {pending} pending: {:.1} M events/s, BinaryHeap {:.1} M events/s: {:.1} times",
            ours.rate(),
            heap.rate(),
            ours.rate() / heap.rate()
        );
    }
    for (nodes, threads, ms) in [(10_000, 1, 3_000), (10_000, 2, 3_000), (1_000_000, 1, 200), (1_000_000, 2, 200)] {
        let run = heartbeat::run(1, nodes, threads, heartbeat::USUAL, Duration::from_millis(ms))?;
        println!(
            "heartbeats, {nodes} nodes, threads {threads}: {:.1} M events/s, {} events, trace {:016x}",
            run.rate(),
            run.stats.events,
            run.trace
        );
    }
    Ok(())
}
