//! `zone-hierarchy`: supervisors with stub zones, as the paper measured them: the time to a full census at every
//! supervisor (002 §5.1, Fig. 2 left, second curve), and what the best split of a system is (Fig. 2 right).

use super::{CANDIDATES, Runs, seconds};
use crate::error::Error;
use crate::experiment::{Experiment, Run};
use crate::plot::Picture;
use crate::report::{Check, Must, row, significant};
use phalanx_core::Duration;
use phalanx_protocol::zone::Config;
use phalanx_protocol::zone::hierarchy::split::{Model, best};
use phalanx_sim::member::{self, Options};
use phalanx_sim::{Latency, Network, Setup};

/// The experiment.
pub(crate) struct ZoneHierarchy;

const SIZES: [u32; 4] = [16, 64, 256, 1024];
const LARGEST: u32 = 1024;
const PAPER_S: f64 = 9.7;
const PAPER_MILLION_S: f64 = 10.3;
const PAPER_ZONE_S: f64 = 5.7;
const OURS_S: f64 = 2.0;
const LOOK: Duration = Duration::from_millis(10);
const BOUND_S: f64 = 20.0;

impl Experiment for ZoneHierarchy {
    fn name(&self) -> &'static str {
        "zone-hierarchy"
    }

    fn about(&self) -> &'static str {
        "supervisors with a stub zone each: time to a full census everywhere (002 Fig. 2)"
    }

    fn picture(&self) -> Picture {
        Picture { x: "nodes", y: "boot_s", series: &["what", "profile"], only: None, beside: &[] }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        // The baselines have no hierarchy.
        for candidate in CANDIDATES.iter().filter(|c| c.runs == Runs::Zone) {
            for supervisors in SIZES {
                run.progress(&format!("{}, {supervisors} supervisors", candidate.profile));
                let took = census(supervisors, candidate.config())?;
                run.row(row! {
                    "what": "stub zones", "engine": "zone", "profile": candidate.profile, "nodes": supervisors,
                    "boot_s": took.map(significant), "zone": 1,
                });
                if supervisors == LARGEST {
                    let (name, bound) = if candidate.profile == "lan" { ("lan", OURS_S) } else { ("paper", PAPER_S) };
                    let claim = format!("{name}: 1024 supervisors with 1024 stub zones, full census in ≤ {bound} s");
                    run.check(Check::new(claim, took, Must::AtMost, bound));
                }
            }
        }
        // 002 §5.1: what it measured, what it projected for a million, and what that leaves for 512 supervisors.
        for (what, nodes, boot_s, zone) in [
            ("002 §5.1, measured", 1024u64, PAPER_S, 1),
            ("002 §5.1, projected − zone", 512, PAPER_MILLION_S - PAPER_ZONE_S, 1),
            ("002 §5.1, projected", 1 << 20, PAPER_MILLION_S, 2048),
        ] {
            run.row(row! {
                "what": what, "engine": "zone", "profile": "paper", "nodes": nodes, "boot_s": significant(boot_s),
                "zone": zone,
            });
        }
        for bits in 10..=20 {
            if let Some(split) = best(1 << bits, &Model::paper()) {
                run.row(row! {
                    "what": "the paper's model, best split", "engine": "zone", "profile": "paper", "nodes": 1u64 << bits,
                    "boot_s": significant(split.boot_s), "zone": split.members,
                });
            }
        }
        Ok(())
    }
}

/// Seconds until every supervisor knows of every stub zone.
fn census(supervisors: u32, profile: Config) -> Result<Option<f64>, Error> {
    let network = Network { latency: Latency::Fixed { us: 500.0 }, ..Network::default() };
    let setup = Setup { nodes: supervisors * 2, seed: 1, network, ..Setup::default() };
    let options = Options { profile, by_reference: true, zone: 1, supervisors, ..Options::default() };
    let (mut sim, _) = member::build(&setup, &options).map_err(Error::peer("phalanx-sim"))?;
    loop {
        sim.run_for(LOOK);
        let full = |m: &phalanx_sim::member::Member<_>| member::zones_known(m) == (supervisors as usize, supervisors);
        if sim.cluster().processes().filter(|(n, _)| *n >= supervisors).all(|(_, m)| full(m)) {
            return Ok(Some(seconds(&sim)));
        }
        if seconds(&sim) > BOUND_S {
            return Ok(None);
        }
    }
}
