//! `view-stabilization`: T_s of a single failure against the number of tasks (000 Figs. 4 and 5), simulated and on real sockets, beside
//! the models.

use super::model::{self, BLUEGENE};
use super::real;
use crate::error::Error;
use crate::experiment::{Experiment, Role, Run};
use crate::plot::{Is, Picture};
use crate::report::{Check, Must, row, significant};
use phalanx_core::Duration;
use phalanx_protocol::view::Task;
use phalanx_protocol::view::tree::Tree;
use phalanx_sim::task::{Job, hurt};
use phalanx_sim::{Latency, Network, Topology};

/// The experiment.
pub(crate) struct ViewStabilization;

const SIZES: [u32; 12] = [3, 7, 15, 31, 64, 127, 256, 512, 1024, 4096, 16_384, 65_536];
const ARITIES: [u32; 3] = [2, 4, 8];
/// A midplane of BlueGene/L and two of them.
const MIDPLANE: u32 = 512;
const TWO: u32 = 1024;

/// The model does not apply.
const NONE: Option<f64> = None;

impl Experiment for ViewStabilization {
    fn name(&self) -> &'static str {
        "view-stabilization"
    }

    fn about(&self) -> &'static str {
        "time to a stable view after one failure, beside the paper's models (000 Figs. 4, 5)"
    }

    fn roles(&self) -> &'static [Role] {
        real::ROLES
    }

    fn picture(&self) -> Picture {
        Picture { x: "nodes", y: "ts_us", series: &["transport", "arity"], only: None, beside: &[] }
    }

    fn pictures(&self) -> Vec<Picture> {
        let all = self.picture();
        let of = |transport| Picture {
            series: &["arity"],
            only: Some(("transport", Is::Text(transport))),
            beside: &["base_us", "distance_us", "contention_us", "bare_us"],
            ..all
        };
        let simulated = ["simulated, flat", "simulated, torus"];
        std::iter::once(all).chain(simulated.into_iter().chain(real::NAMES.iter().copied()).map(of)).collect()
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let mut furthest: f64 = 0.0;
        for arity in ARITIES {
            let mut flat = Vec::new();
            for nodes in SIZES {
                run.progress(&format!("{nodes} tasks, arity {arity}"));
                let tree = Tree::new(arity, nodes).map_err(Error::peer("view"))?;
                let base = model::base(BLUEGENE, tree.height());
                let ts = stabilize(nodes, arity, Topology::Flat)?;
                furthest = furthest.max(ts.map_or(f64::INFINITY, |ts| (ts / base - 1.0).abs()));
                flat.push((nodes, ts.unwrap_or(f64::NAN)));
                run.row(row! {
                    "transport": "simulated, flat", "nodes": nodes, "arity": arity, "ts_us": ts.map(significant),
                    "base_us": significant(base), "distance_us": NONE, "contention_us": NONE,
                });
                if nodes > TWO {
                    continue;
                }
                let z = if nodes > MIDPLANE { 16 } else { 8 };
                let torus = Topology::Torus { x: 8, y: 8, z, per_hop_us: BLUEGENE.latency_us };
                let ts = stabilize(nodes, arity, torus.clone())?;
                let distance = model::distance(BLUEGENE, &tree, &torus);
                run.row(row! {
                    "transport": "simulated, torus", "nodes": nodes, "arity": arity, "ts_us": ts.map(significant),
                    "base_us": significant(base), "distance_us": significant(distance), "contention_us": NONE,
                    "printed_us": significant(model::printed(BLUEGENE, &tree, &torus)),
                });
                if nodes == TWO {
                    let claim = format!("torus, 1024 tasks, arity {arity}: ts_us ≤ 999 (the paper: hundreds)");
                    run.check(Check::new(claim, ts, Must::AtMost, 999.0));
                    let claim = format!("torus, 1024 tasks, arity {arity}: ts_us / distance model ≤ 1");
                    run.check(Check::new(claim, ts.map(|ts| ts / distance), Must::AtMost, 1.0));
                }
            }
            let (slope, fit) = logarithmic(&flat);
            run.note(format!("arity {arity}: T_s grows by {slope:.1} µs for each doubling, R² = {fit:.3}"));
            run.check(Check::new(
                format!("arity {arity}: R² of T_s against log₂ N ≥ 0.95"),
                Some(fit),
                Must::AtLeast,
                0.95,
            ));
        }
        run.check(Check::new("flat: |ts_us / base model − 1| ≤ 0.001", Some(furthest), Must::AtMost, 0.001));
        real::measure(run)
    }
}

/// T_s in µs after the death of the last task, whose parent still has to hear of it; `None` when the view did not become stable.
fn stabilize(nodes: u32, arity: u32, topology: Topology) -> Result<Option<f64>, Error> {
    // A hop is what the latency of a torus is made of.
    let us = if topology == Topology::Flat { BLUEGENE.latency_us } else { 0.0 };
    let network = Network { latency: Latency::Fixed { us }, topology, ..Network::default() };
    let compute = Duration((BLUEGENE.compute_us * 1e3) as u64);
    let job = Job { size: nodes, arity, network, compute, patience: Duration::from_millis(50) };
    // One whose death does not take a level away.
    let dead = [Task(if nodes > 3 { nodes / 2 } else { nodes - 1 })];
    let outcome = hurt(&job, &dead, &dead).map_err(Error::peer("phalanx-sim"))?;
    Ok((outcome.stable && outcome.waves == 1).then(|| outcome.took.0 as f64 / 1e3))
}

/// Least squares of T_s against log₂ N: the slope, and R².
pub(super) fn logarithmic(points: &[(u32, f64)]) -> (f64, f64) {
    let n = points.len() as f64;
    let (xs, ys): (Vec<_>, Vec<_>) = points.iter().map(|&(nodes, ts)| (f64::from(nodes).log2(), ts)).unzip();
    let mean = |v: &[f64]| v.iter().sum::<f64>() / n;
    let (mx, my) = (mean(&xs), mean(&ys));
    let sxy: f64 = xs.iter().zip(&ys).map(|(x, y)| (x - mx) * (y - my)).sum();
    let sxx: f64 = xs.iter().map(|x| (x - mx).powi(2)).sum();
    let syy: f64 = ys.iter().map(|y| (y - my).powi(2)).sum();
    (sxy / sxx, sxy * sxy / (sxx * syy))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_logarithm_fits_itself() {
        let points: Vec<_> = (1..12).map(|i| (1 << i, 3.0 + 5.0 * f64::from(i))).collect();
        let (slope, fit) = logarithmic(&points);
        assert!((slope - 5.0).abs() < 1e-9 && (fit - 1.0).abs() < 1e-9);
        assert!(logarithmic(&[(2, 2.0), (4, 4.0), (256, 256.0), (1024, 1024.0)]).1 < 0.9);
    }
}
