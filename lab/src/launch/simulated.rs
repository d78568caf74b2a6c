//! Launches over many more nodes than there are machines: the same stewards in the simulator, words and reports by way of the nodes themselves,
//! and beside it the same with replicas that speak with each node. Virtual time: messages and bytes, no processors.

use crate::error::Error;
use crate::experiment::Run;
use crate::report::{Check, Must, row, significant};
use phalanx_sim::manager::crowd::{self, Options};

/// Nodes, a rank on each.
const NODES: [u32; 5] = [64, 256, 1024, 4096, 16_384];
const QUICK: [u32; 3] = [16, 64, 256];
/// Told one by one: past it that takes too long to wait for.
const ALONE_MAX: u32 = 4096;
/// From node to node, in one room.
const LATENCY_US: f64 = 50.0;
/// A node's link.
const MBIT_S: f64 = 25_000.0;

pub(super) fn simulated(run: &mut Run) -> Result<(), Error> {
    let sizes: &[u32] = if run.options.quick { &QUICK } else { &NODES };
    let mut starts = Vec::new();
    for &nodes in sizes {
        for (launcher, relay) in [("simulated", 12), ("simulated, one by one", usize::MAX)] {
            if relay == usize::MAX && nodes > ALONE_MAX {
                continue;
            }
            run.progress(&format!("{nodes} simulated nodes"));
            let options = Options { nodes, relay, latency_us: LATENCY_US, mbit_s: MBIT_S, seed: 1 };
            let took = crowd::launch(options).map_err(crate::daemons::said)?;
            let (start_ms, total_ms) = (took.start.as_secs_f64() * 1e3, took.total.as_secs_f64() * 1e3);
            if relay != usize::MAX {
                starts.push((nodes, start_ms));
            }
            run.row(row! {
                "launcher": launcher, "ranks": nodes, "daemons": nodes, "start_ms": significant(start_ms),
                "total_ms": significant(total_ms), "packets": took.packets, "busiest_mb": significant(took.busiest as f64 / 1e6),
            });
        }
    }
    let both = starts.first().zip(starts.last());
    let grown = both.map(|(&(_, least), &(_, most))| most / least);
    let logarithms = both.map_or(1.0, |(few, many)| f64::from(many.0).log2() / f64::from(few.0).log2());
    let claim = format!("simulated: {} nodes / {} nodes, until all run", sizes[sizes.len() - 1], sizes[0]);
    run.check(Check::new(claim, grown, Must::AtMost, significant(2.0 * logarithms)));
    Ok(())
}
