//! `zone-churn`: who knows when that members crashed, fell silent or returned, against the size of the zone and how many
//! it are at once (002 §5.2, §5.3, Fig. 3).

use super::{Befalls, CANDIDATES, Candidate, Known, LAN, Runs};
use crate::error::Error;
use crate::experiment::{Experiment, Run};
use crate::plot::{Is, Picture};
use crate::report::{Check, Must, row, significant};
use std::fmt;

/// The experiment.
pub(crate) struct ZoneChurn;

const SIZES: [u32; 4] = [32, 128, 512, 2048];
const LARGEST: u32 = 2048;
const MANY: u32 = 256;
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
        Picture {
            x: "nodes",
            y: "last_ms",
            series: &SERIES,
            only: Some(("simultaneous", Is::Number(1.0))),
            beside: &[],
        }
    }

    fn pictures(&self) -> Vec<Picture> {
        let against = |nodes: u32| Picture {
            x: "simultaneous",
            y: "last_ms",
            series: &SERIES,
            only: Some(("nodes", Is::Number(f64::from(nodes)))),
            beside: &[],
        };
        let monitor = Picture { y: "hpm_ms", ..self.picture() };
        vec![self.picture(), monitor, against(COMMON), against(LARGEST)]
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let simultaneously = if run.options.quick { &QUICK_SIMULTANEOUS[..] } else { &SIMULTANEOUS[..] };
        let mut cases = Vec::new();
        for candidate in CANDIDATES {
            for nodes in SIZES.into_iter().filter(|&n| n <= candidate.largest) {
                for what in [Befalls::Crash, Befalls::Silent, Befalls::Join] {
                    let simultaneously = simultaneously.iter().copied().filter(|s| s * 4 <= nodes);
                    cases.extend(simultaneously.map(|s| Case { candidate, nodes, what, simultaneous: s, seed: 1 }));
                }
            }
        }
        let found = run.in_parallel(&cases, Case::to_string, Case::suffer);
        for (case, found) in cases.iter().zip(found) {
            let (boot_s, known) = found?;
            case.row(run, boot_s, &known);
            if case.candidate.is(Runs::Zone, "lan") && case.nodes == LARGEST && case.simultaneous == 1 {
                check(run, case.what, &known);
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

/// One run.
struct Case {
    candidate: Candidate,
    nodes: u32,
    what: Befalls,
    simultaneous: u32,
    seed: u64,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { candidate, nodes, what, simultaneous, seed } = self;
        let (engine, profile, what) = (candidate.engine(), candidate.profile, what.name());
        write!(f, "{engine}, {profile}, {nodes} nodes, {simultaneous} × {what}, seed {seed}")
    }
}

impl Case {
    /// How long the boot took, and who knew when.
    fn suffer(&self) -> Result<(Option<f64>, Known), Error> {
        let mut cluster = self.candidate.boot(self.nodes, self.seed)?;
        let known = cluster.suffer(self.what, self.simultaneous);
        Ok((cluster.boot_s(), known))
    }

    fn row(&self, run: &mut Run, boot_s: Option<f64>, known: &Known) {
        let candidate = &self.candidate;
        // Only zones have monitors.
        let hpm_ms = known.hpm_ms.filter(|_| candidate.runs == Runs::Zone);
        run.row(row! {
            "engine": candidate.engine(), "profile": candidate.profile, "nodes": self.nodes, "fault": self.what.name(),
            "simultaneous": self.simultaneous, "boot_s": boot_s.map(significant),
            "first_ms": known.first_ms.map(significant), "last_ms": known.last_ms.map(significant),
            "hpm_ms": hpm_ms.map(significant), "bytes_per_node_s": significant(known.bytes_per_node_s),
            "false_positives": known.false_positives,
        });
    }
}

impl ZoneChurn {
    /// 256 of 2048 crash at once, over many seeds, beside one of 2048 with the same seeds.
    fn many_at_once(&self, run: &mut Run) -> Result<(), Error> {
        let seeds = run.seeds(QUICK_SEEDS, SEEDS);
        let case =
            |(seed, simultaneous)| Case { candidate: LAN, nodes: LARGEST, what: Befalls::Crash, simultaneous, seed };
        let cases: Vec<Case> = (1..=seeds).flat_map(|seed| [(seed, 1), (seed, MANY)]).map(case).collect();
        let found = run.in_parallel(&cases, Case::to_string, Case::suffer);
        let (mut one, mut many) = (Vec::new(), Vec::new());
        let mut wrong = 0;
        for (case, found) in cases.iter().zip(found) {
            let (_, known) = found?;
            wrong += known.false_positives;
            if known.false_positives > 0 || known.last_ms.is_none() {
                run.note(format!("{case}: {known:?}"));
            }
            let times = if case.simultaneous == 1 { &mut one } else { &mut many };
            times.push(known.last_ms.unwrap_or(f64::INFINITY));
        }
        let of_one = summary(run, 1, &mut one);
        let of_many = summary(run, MANY, &mut many);
        let ratio = |value: f64| of_one.map(|(median, _)| value / median);
        let (median, worst) = (of_many.and_then(|m| ratio(m.0)), of_many.and_then(|m| ratio(m.1)));
        run.check(Check::new("lan: 256 crashes / one, median ≤ 2", median, Must::AtMost, 2.0));
        run.check(Check::new("lan: 256 crashes, worst / one, median ≤ 5", worst, Must::AtMost, 5.0));
        run.check(Check::new("lan: false positives in all seeds", Some(wrong as f64), Must::AtMost, 0.0));
        Ok(())
    }
}

/// Notes of all seeds when the last one knew, by how many seeds; gives back the median and the worst.
fn summary(run: &mut Run, simultaneous: u32, times: &mut [f64]) -> Option<(f64, f64)> {
    times.sort_by(f64::total_cmp);
    let counts: Vec<String> =
        times.chunk_by(|a, b| a == b).map(|same| format!("{} × {} ms", same.len(), same[0])).collect();
    run.note(format!("{simultaneous} of 2048 crash, known to the last, {} seeds: {}", times.len(), counts.join(", ")));
    Some((*times.get(times.len() / 2)?, *times.last()?))
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
