//! `view-multifail`: many failures at once (000 §3.5): how many waves a stable view needs, and how long they take.
//!
//! The paper needs H − 1 waves for a failure on each level, because each wave stops at the first dead task and is begun anew. Ours goes
//! around it: whoever gets no answer brings the notice to the children itself, and the names of the dead come up with the
//! acknowledgements. So one wave finds all, and one more is without them. When the detector told the root of all, one is enough.

use super::model::BLUEGENE;
use crate::error::Error;
use crate::experiment::{Experiment, Run};
use crate::plot::Picture;
use crate::report::{Check, Must, row, significant};
use phalanx_core::{Duration, Rng};
use phalanx_protocol::view::Task;
use phalanx_protocol::view::tree::Tree;
use phalanx_sim::task::{Job, Outcome, hurt};
use phalanx_sim::{Latency, Network};

/// The experiment.
pub(crate) struct ViewMultifail;

const SIZES: [u32; 3] = [64, 256, 1024];
const ARITIES: [u32; 3] = [2, 4, 8];
const PATIENCE: Duration = Duration::from_micros(500);

impl Experiment for ViewMultifail {
    fn name(&self) -> &'static str {
        "view-multifail"
    }

    fn about(&self) -> &'static str {
        "waves and time until a view is stable after many failures at once (000 §3.5)"
    }

    fn picture(&self) -> Picture {
        Picture { x: "failed", y: "ts_us", series: &["nodes", "arity", "pattern"], only: None, beside: &[] }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let (mut known_most, mut levels_most) = (0, 0);
        for nodes in SIZES {
            for arity in ARITIES {
                run.progress(&format!("{nodes} tasks, arity {arity}"));
                let mut failed = 1;
                while failed <= nodes / 2 {
                    let dead = drawn(nodes, failed);
                    let outcome = note(run, (nodes, arity), "drawn, the root is told of all", &dead, &dead)?;
                    known_most = known_most.max(outcome);
                    note(run, (nodes, arity), "drawn, the root is told of one", &dead, &dead[..1])?;
                    failed *= 2;
                }
                let dead = one_on_each_level(nodes, arity)?;
                let outcome =
                    note(run, (nodes, arity), "one on each level, the root is told of one", &dead, &dead[..1])?;
                levels_most = levels_most.max(outcome);
            }
        }
        let claim = "all failures known: waves ≤ 1";
        run.check(Check::new(claim, Some(f64::from(known_most)), Must::AtMost, 1.0));
        let claim = "a failure on each level: waves ≤ 2 (the paper: H − 1)";
        run.check(Check::new(claim, Some(f64::from(levels_most)), Must::AtMost, 2.0));
        run.note(format!(
            "an answer may take {} µs before somebody is asked how it is, and as long again",
            PATIENCE.0 / 1000
        ));
        Ok(())
    }
}

/// Hurts a job and writes a row; gives the number of waves, or far too many when the view is not stable.
fn note(
    run: &mut Run,
    (nodes, arity): (u32, u32),
    pattern: &'static str,
    dead: &[Task],
    known: &[Task],
) -> Result<u32, Error> {
    let network = Network { latency: Latency::Fixed { us: BLUEGENE.latency_us }, ..Network::default() };
    let compute = Duration((BLUEGENE.compute_us * 1e3) as u64);
    let job = Job { size: nodes, arity, network, compute, patience: PATIENCE };
    let Outcome { took, waves, stable } = hurt(&job, dead, known).map_err(Error::peer("phalanx-sim"))?;
    run.row(row! {
        "nodes": nodes, "arity": arity, "failed": dead.len(), "pattern": pattern, "phases": waves,
        "ts_us": significant(took.0 as f64 / 1e3), "stable": stable,
    });
    Ok(if stable { waves } else { u32::MAX })
}

/// So many of the others, but the root.
fn drawn(nodes: u32, failed: u32) -> Vec<Task> {
    let mut tasks: Vec<_> = (1..nodes).map(Task).collect();
    Rng::new(1, u64::from(nodes)).shuffle(&mut tasks);
    tasks.truncate(failed as usize);
    tasks.sort_unstable();
    tasks
}

/// A dead task on each level below the root, each the child of the one before: no wave gets past them by itself.
fn one_on_each_level(nodes: u32, arity: u32) -> Result<Vec<Task>, Error> {
    let tree = Tree::new(arity, nodes).map_err(Error::peer("view"))?;
    let mut dead: Vec<Task> =
        std::iter::successors(tree.children(Task(0)).first().copied(), |&t| tree.children(t).first().copied())
            .collect();
    // The deepest one is the one that is known.
    dead.reverse();
    Ok(dead)
}
