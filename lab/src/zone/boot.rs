//! `zone-boot`: the time until all views are full when all members start at once, against the size of the zone, and what
//! an idle zone costs (002 §5.1, Fig. 2 left).

use super::{Cluster, PROFILES};
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
        Picture { x: "nodes", y: "boot_s", series: &["engine", "profile"] }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let seeds = if run.options.quick { 1 } else { SEEDS };
        for (name, profile) in &PROFILES {
            for nodes in SIZES {
                run.progress(&format!("{name}, {nodes} nodes"));
                let (mut slowest, mut idle): (Option<f64>, f64) = (Some(0.0), 0.0);
                for seed in 1..=seeds {
                    let mut cluster = Cluster::boot(profile, nodes, seed)?;
                    let took = cluster.boot.map(|b| b.as_secs_f64());
                    slowest = slowest.zip(took).map(|(a, b)| a.max(b));
                    idle = idle.max(cluster.idle_bytes());
                    if !cluster.agrees() {
                        run.note(format!("{name}, {nodes} nodes, seed {seed}: views differ"));
                    }
                }
                run.row(row! {
                    "engine": "zone", "profile": *name, "nodes": nodes, "boot_s": slowest.map(significant),
                    "bytes_per_node_s": significant(idle), "false_positives": (),
                });
                if nodes == LARGEST {
                    let bound = if *name == "paper" { PAPER_S } else { LAN_S };
                    let claim = format!("{name}: 2048 nodes boot in ≤ {bound} s");
                    run.check(Check::new(claim, slowest, Must::AtMost, bound));
                    if *name == "lan" {
                        run.check(Check::new(
                            "lan: idle ≤ 250 B/s for each node",
                            Some(idle),
                            Must::AtMost,
                            IDLE_BYTES,
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}
