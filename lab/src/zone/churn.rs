//! `zone-churn`: who knows when that members crashed, fell silent or returned, against the size of the zone and how many
//! it are at once (002 §5.2, §5.3, Fig. 3).

use super::{Befalls, Cluster, Known, PROFILES};
use crate::error::Error;
use crate::experiment::{Experiment, Run};
use crate::plot::Picture;
use crate::report::{Check, Must, row, significant};
use phalanx_core::Duration;

/// The experiment.
pub(crate) struct ZoneChurn;

const SIZES: [u32; 4] = [32, 128, 512, 2048];
const LARGEST: u32 = 2048;
const SIMULTANEOUS: [u32; 3] = [1, 16, 256];
/// Runs of the largest zone, one crash and many.
const SEEDS: u64 = 100;
const QUICK_SEEDS: u64 = 5;
const BOUND: Duration = Duration::from_secs(10);

impl Experiment for ZoneChurn {
    fn name(&self) -> &'static str {
        "zone-churn"
    }

    fn about(&self) -> &'static str {
        "members crash, fall silent or return: when the first, the last and the monitor know (002 Fig. 3)"
    }

    fn picture(&self) -> Picture {
        Picture { x: "nodes", y: "last_ms", series: &["profile", "fault", "simultaneous"] }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        for (name, profile) in &PROFILES {
            for nodes in SIZES {
                for what in [Befalls::Crash, Befalls::Silent, Befalls::Join] {
                    for simultaneous in SIMULTANEOUS.into_iter().filter(|&s| s * 4 <= nodes) {
                        run.progress(&format!("{name}, {nodes} nodes, {simultaneous} × {}", what.name()));
                        let mut cluster = Cluster::boot(profile, nodes, 1)?;
                        let known = cluster.suffer(what, simultaneous, BOUND);
                        self.row(run, name, nodes, what, simultaneous, &known);
                        if *name == "lan" && nodes == LARGEST && simultaneous == 1 {
                            check(run, what, &known);
                        }
                    }
                }
            }
        }
        self.many_at_once(run)
    }
}

impl ZoneChurn {
    fn row(&self, run: &mut Run, profile: &str, nodes: u32, what: Befalls, simultaneous: u32, known: &Known) {
        run.row(row! {
            "engine": "zone", "profile": profile, "nodes": nodes, "fault": what.name(), "simultaneous": simultaneous,
            "first_ms": known.first_ms.map(significant), "last_ms": known.last_ms.map(significant),
            "hpm_ms": known.hpm_ms.map(significant), "false_positives": known.false_positives,
        });
    }

    /// 256 of 2048 crash at once, over many seeds, beside one of 2048 with the same seeds.
    fn many_at_once(&self, run: &mut Run) -> Result<(), Error> {
        let seeds = if run.options.quick { QUICK_SEEDS } else { SEEDS };
        let (mut one, mut many) = (Vec::new(), Vec::new());
        let mut wrong = 0;
        for seed in 1..=seeds {
            run.progress(&format!("256 of 2048 at once: seed {seed} of {seeds}"));
            for (simultaneous, times) in [(1, &mut one), (256, &mut many)] {
                let known = Cluster::boot(&PROFILES[1].1, LARGEST, seed)?.suffer(Befalls::Crash, simultaneous, BOUND);
                wrong += known.false_positives;
                times.push(known.last_ms.unwrap_or(f64::INFINITY));
            }
        }
        one.sort_by(f64::total_cmp);
        many.sort_by(f64::total_cmp);
        let median = |times: &[f64]| times.get(times.len() / 2).copied();
        let of_one = median(&one);
        let ratio = |value: Option<f64>| value.zip(of_one).map(|(v, one)| v / one);
        run.check(Check::new("lan: 256 crashes / one, median ≤ 2", ratio(median(&many)), Must::AtMost, 2.0));
        run.check(Check::new(
            "lan: 256 crashes, worst / one, median ≤ 5",
            ratio(many.last().copied()),
            Must::AtMost,
            5.0,
        ));
        run.check(Check::new("lan: false positives in all seeds", Some(wrong as f64), Must::AtMost, 0.0));
        run.note(format!(
            "{seeds} seeds; one crash: {:?} ms, 256: median {:?}, worst {:?} ms",
            of_one,
            median(&many),
            many.last()
        ));
        Ok(())
    }
}

fn check(run: &mut Run, what: Befalls, known: &Known) {
    match what {
        Befalls::Crash => {
            run.check(Check::new("lan: a crash known to all 2048 in ≤ 8 ms", known.last_ms, Must::AtMost, 8.0));
            run.check(Check::new("lan: a crash known to the monitor in ≤ 3 ms", known.hpm_ms, Must::AtMost, 3.0));
        }
        Befalls::Silent => {
            run.check(Check::new("lan: a silent host known to all 2048 in ≤ 2 s", known.last_ms, Must::AtMost, 2000.0));
        }
        Befalls::Join => {}
    }
}
