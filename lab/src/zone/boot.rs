//! `zone-boot`: the time until all views are full when all members start at once, against the size of the zone, and what
//! an idle zone costs (002 §5.1, Fig. 2 left).

use super::{CANDIDATES, Runs};
use crate::error::Error;
use crate::experiment::{Experiment, Run};
use crate::plot::Picture;
use crate::report::{Check, Must, row, significant};

/// The experiment.
pub(crate) struct ZoneBoot;

const SIZES: [u32; 7] = [32, 64, 128, 256, 512, 1024, 2048];
/// What the paper's zone of 2048 took, and what ours may.
const LARGEST: u32 = 2048;
const PAPER_S: f64 = 5.7;
const LAN_S: f64 = 1.5;
const IDLE_BYTES: f64 = 250.0;
const SEEDS: u64 = 3;

impl Experiment for ZoneBoot {
    fn name(&self) -> &'static str {
        "zone-boot"
    }

    fn about(&self) -> &'static str {
        "a zone whose members start at once: time until all views are full, and idle traffic (002 Fig. 2 left)"
    }

    fn picture(&self) -> Picture {
        Picture { x: "nodes", y: "boot_s", series: &["engine", "profile"], only: None, beside: &[] }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let seeds = if run.options.quick { 1 } else { SEEDS };
        for candidate in &CANDIDATES {
            let (engine, name) = (candidate.engine(), candidate.profile);
            // Runs of the baselines hardly differ, and take long.
            let seeds = if candidate.runs == Runs::Zone { seeds } else { 1 };
            for nodes in SIZES.into_iter().filter(|&n| n <= candidate.largest) {
                run.progress(&format!("{engine}, {name}, {nodes} nodes"));
                let (mut slowest, mut idle, mut wrong): (Option<f64>, f64, usize) = (Some(0.0), 0.0, 0);
                for seed in 1..=seeds {
                    let mut cluster = candidate.boot(nodes, seed)?;
                    slowest = slowest.zip(cluster.boot_s()).map(|(a, b)| a.max(b));
                    let (bytes, left) = cluster.idle();
                    (idle, wrong) = (idle.max(bytes), wrong + left);
                    if !cluster.agrees() {
                        run.note(format!("{engine}, {name}, {nodes} nodes, seed {seed}: views differ"));
                    }
                }
                run.row(row! {
                    "engine": engine, "profile": name, "nodes": nodes, "boot_s": slowest.map(significant),
                    "bytes_per_node_s": significant(idle), "false_positives": wrong,
                });
                if candidate.runs == Runs::Zone && nodes == LARGEST {
                    let bound = if name == "paper" { PAPER_S } else { LAN_S };
                    let claim = format!("{name}: 2048 nodes boot in ≤ {bound} s");
                    run.check(Check::new(claim, slowest, Must::AtMost, bound));
                }
                if candidate.is(Runs::Zone, "lan") && nodes == LARGEST {
                    run.check(Check::new("lan: idle ≤ 250 B/s for each node", Some(idle), Must::AtMost, IDLE_BYTES));
                }
            }
        }
        // 002 §5.1 states this point of Fig. 2, and that the curve is a line.
        run.row(row! { "engine": "002 §5.1, measured", "profile": "paper", "nodes": LARGEST, "boot_s": PAPER_S });
        Ok(())
    }
}
