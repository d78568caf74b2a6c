//! `cast-broadcast`: steps until everybody has a broadcast, among dead nodes (001 Fig. 2b) and without any.

use super::steps::{Outcome, broadcast};
use super::{DEAD_MOST, FAN_OUTS, Mean, NODES, sets};
use crate::error::Error;
use crate::experiment::{Experiment, Run};
use crate::plot::{Is, Picture};
use crate::report::{Check, Must, row, significant};
use phalanx_protocol::cast::route::Rule;
use phalanx_protocol::cast::{Id, Tree};
use std::time::Instant;

/// The experiment.
pub(crate) struct CastBroadcast;

/// Trees without damage.
const SIZES: [u32; 5] = [31, 127, 1023, 16_383, 131_071];
const ROOT: Id = Id(0);

impl Experiment for CastBroadcast {
    fn name(&self) -> &'static str {
        "cast-broadcast"
    }

    fn about(&self) -> &'static str {
        "steps of a broadcast among dead nodes, by routing and fan-out (001 Fig. 2b)"
    }

    fn picture(&self) -> Picture {
        let only = Some(("routing", Is::Text("variant")));
        Picture { x: "k", y: "avg_steps", series: &["nodes", "dead"], only, beside: &[] }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let most = if run.options.quick { 2 } else { DEAD_MOST };
        let (mut lost, mut twice) = (0, 0);
        let mut slowest: f64 = 0.0;
        let mut undamaged = Vec::new();
        for k in FAN_OUTS {
            for nodes in SIZES {
                let tree = Tree::new(k, nodes).map_err(Error::peer("cast"))?;
                let begun = Instant::now();
                let Outcome { steps, reached, .. } = broadcast(&tree, ROOT, Rule::Variant, |_| true);
                undamaged.push((nodes, k, steps));
                if nodes != NODES {
                    run.row(row! {
                        "routing": Rule::Variant.to_string(), "k": k, "nodes": nodes, "dead": 0, "avg_steps": steps,
                        "delivered": f64::from(reached) / f64::from(nodes), "cases": 1,
                        "wall_s": significant(begun.elapsed().as_secs_f64()),
                    });
                }
            }
            let tree = Tree::new(k, NODES).map_err(Error::peer("cast"))?;
            let whole = broadcast(&tree, ROOT, Rule::Variant, |_| true).steps;
            for dead in 0..=most {
                // The source lives.
                let sets = sets(1, NODES, dead);
                for rule in Rule::ALL {
                    let begun = Instant::now();
                    let shares: Vec<_> = sets.chunks(sets.len().div_ceil(64)).collect();
                    let found = run.in_parallel(
                        &shares,
                        |_| format!("k {k}, {dead} dead, {rule}"),
                        |sets| sets.iter().fold(Casts::default(), |casts, set| casts.among(&tree, rule, set)),
                    );
                    let casts = found.into_iter().fold(Casts::default(), Casts::join);
                    lost += casts.connected - casts.reached;
                    twice += casts.twice;
                    run.row(row! {
                        "routing": rule.to_string(), "k": k, "nodes": NODES, "dead": dead,
                        "avg_steps": significant(casts.steps.value()),
                        "delivered": casts.reached as f64 / casts.connected as f64, "cases": casts.steps.cases,
                        "avg_messages": significant(casts.messages.value()),
                        "wall_s": significant(begun.elapsed().as_secs_f64()),
                    });
                    if dead == 1 && rule == Rule::Variant {
                        slowest = slowest.max(casts.steps.value() / f64::from(whole));
                    }
                }
            }
        }
        run.check(Check::new("connected and not reached: 0", Some(lost as f64), Must::AtMost, 0.0));
        run.check(Check::new("reached twice: 0", Some(twice as f64), Must::AtMost, 0.0));
        let claim = "one dead, variant, worst k: steps / those without damage ≤ 1.25";
        run.check(Check::new(claim, Some(slowest), Must::AtMost, 1.25));
        for nodes in SIZES {
            let steps: Vec<_> =
                undamaged.iter().filter(|u| u.0 == nodes).map(|u| format!("{}: {}", u.1, u.2)).collect();
            run.note(format!("{nodes} nodes without damage, k and steps: {}", steps.join(", ")));
        }
        Ok(())
    }
}

/// Broadcasts among dead nodes.
#[derive(Clone, Copy, Default)]
struct Casts {
    steps: Mean,
    messages: Mean,
    /// Living nodes with a way to the source, and those of them that got it.
    connected: u64,
    reached: u64,
    twice: u64,
}

impl Casts {
    fn join(self, other: Self) -> Self {
        Self {
            steps: self.steps.join(other.steps),
            messages: self.messages.join(other.messages),
            connected: self.connected + other.connected,
            reached: self.reached + other.reached,
            twice: self.twice + other.twice,
        }
    }

    fn among(mut self, tree: &Tree, rule: Rule, dead: &[Id]) -> Self {
        let outcome = broadcast(tree, ROOT, rule, |n| !dead.contains(&n));
        let parts = super::unicast::parts(tree, dead);
        self.connected += parts.iter().filter(|&&p| p == parts[ROOT.0 as usize]).count() as u64;
        self.reached += u64::from(outcome.reached);
        self.twice += u64::from(outcome.twice);
        self.steps.add(f64::from(outcome.steps));
        self.messages.add(outcome.messages as f64);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The paper: 3-ary beats 2-ary, then it gets worse with k.
    #[test]
    fn st_8_three_children_are_best_without_damage() {
        let steps = |k| broadcast(&Tree::new(k, 16_383).unwrap(), ROOT, Rule::Variant, |_| true).steps;
        assert!(
            steps(3) <= steps(2) && steps(3) <= steps(4) && steps(4) <= steps(8),
            "{:?}",
            FAN_OUTS.map(steps).collect::<Vec<_>>()
        );
        assert_eq!(broadcast(&Tree::new(2, 7).unwrap(), ROOT, Rule::Variant, |_| true).steps, 4);
    }

    #[test]
    fn st_4_all_connected_nodes_get_it_once_with_any_three_dead() {
        for (k, n) in [(2, 15), (3, 14), (5, 13)] {
            let tree = Tree::new(k, n).unwrap();
            for set in (0..=3).flat_map(|dead| sets(1, n, dead)) {
                for rule in Rule::ALL {
                    let casts = Casts::default().among(&tree, rule, &set);
                    assert_eq!((casts.reached, casts.twice), (casts.connected, 0), "{rule}, k {k}, {set:?}");
                }
            }
        }
    }
}
