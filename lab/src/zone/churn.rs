//! `zone-churn`: who knows when that members crashed, fell silent or returned, against the size of the zone and how many
//! it are at once (002 §5.2, §5.3, Fig. 3).

use super::{Befalls, CANDIDATES, Candidate, Known, LAN, Runs};
use crate::error::Error;
use crate::experiment::{Experiment, Run};
use crate::plot::Picture;
use crate::report::{Check, Must, row, significant};

/// The experiment.
pub(crate) struct ZoneChurn;

const SIZES: [u32; 4] = [32, 128, 512, 2048];
const LARGEST: u32 = 2048;
const SIMULTANEOUS: [u32; 5] = [1, 4, 16, 64, 256];
const QUICK_SIMULTANEOUS: [u32; 3] = [1, 16, 256];
/// The size at which all engines are compared.
const COMMON: u32 = 128;
/// 002 §5.3: when a high-priority monitor knows, at all sizes.
const PAPER_HPM_MS: f64 = 30.0;
/// Runs of the largest zone, one crash and many.
const SEEDS: u64 = 100;
const QUICK_SEEDS: u64 = 5;
/// What tells one line of a picture from another.
const SERIES: [&str; 3] = ["engine", "profile", "fault"];

impl Experiment for ZoneChurn {
    fn name(&self) -> &'static str {
        "zone-churn"
    }

    fn about(&self) -> &'static str {
        "members crash, fall silent or return: when the first, the last and the monitor know (002 Fig. 3)"
    }

    fn picture(&self) -> Picture {
        Picture { x: "nodes", y: "last_ms", series: &SERIES, only: Some(("simultaneous", 1.0)) }
    }

    fn pictures(&self) -> Vec<Picture> {
        let against = |nodes: u32| Picture {
            x: "simultaneous",
            y: "last_ms",
            series: &SERIES,
            only: Some(("nodes", f64::from(nodes))),
        };
        let monitor = Picture { y: "hpm_ms", ..self.picture() };
        vec![self.picture(), monitor, against(COMMON), against(LARGEST)]
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let simultaneously = if run.options.quick { &QUICK_SIMULTANEOUS[..] } else { &SIMULTANEOUS[..] };
        for candidate in &CANDIDATES {
            let (engine, name) = (candidate.engine(), candidate.profile);
            for nodes in SIZES.into_iter().filter(|&n| n <= candidate.largest) {
                for what in [Befalls::Crash, Befalls::Silent, Befalls::Join] {
                    for simultaneous in simultaneously.iter().copied().filter(|s| s * 4 <= nodes) {
                        run.progress(&format!("{engine}, {name}, {nodes} nodes, {simultaneous} × {}", what.name()));
                        let mut cluster = candidate.boot(nodes, 1)?;
                        let known = cluster.suffer(what, simultaneous);
                        self.row(run, candidate, nodes, what, simultaneous, cluster.boot_s(), &known);
                        if candidate.is(Runs::Zone, "lan") && nodes == LARGEST && simultaneous == 1 {
                            check(run, what, &known);
                        }
                    }
                }
            }
        }
        for nodes in SIZES {
            run.row(row! {
                "engine": "002 §5.3, measured", "profile": "paper", "nodes": nodes, "fault": "crash", "simultaneous": 1,
                "hpm_ms": PAPER_HPM_MS,
            });
        }
        self.many_at_once(run)
    }
}

impl ZoneChurn {
    #[expect(clippy::too_many_arguments, reason = "the columns of a row")]
    fn row(
        &self,
        run: &mut Run,
        candidate: &Candidate,
        nodes: u32,
        what: Befalls,
        simultaneous: u32,
        boot_s: Option<f64>,
        known: &Known,
    ) {
        // Only zones have monitors.
        let hpm_ms = known.hpm_ms.filter(|_| candidate.runs == Runs::Zone);
        run.row(row! {
            "engine": candidate.engine(), "profile": candidate.profile, "nodes": nodes, "fault": what.name(),
            "simultaneous": simultaneous, "boot_s": boot_s.map(significant), "first_ms": known.first_ms.map(significant),
            "last_ms": known.last_ms.map(significant), "hpm_ms": hpm_ms.map(significant),
            "false_positives": known.false_positives,
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
                let known = LAN.boot(LARGEST, seed)?.suffer(Befalls::Crash, simultaneous);
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
