//! `cast-unicast`: hops of a message to one destination among dead nodes (001 Fig. 2a), for each routing.

use super::{DEAD_MOST, FAN_OUTS, Mean, NODES, pair, sets};
use crate::error::Error;
use crate::experiment::{Experiment, Run};
use crate::plot::{Is, Picture};
use crate::report::{Check, Must, row, significant};
use phalanx_core::Rng;
use phalanx_protocol::cast::route::{Router, Rule};
use phalanx_protocol::cast::walk::{Hop, Transit};
use phalanx_protocol::cast::{Id, Tree};
use std::time::Instant;

/// The experiment.
pub(crate) struct CastUnicast;

/// So many dead, and each living pair is looked at; with more of them some are drawn for each set.
const ALL_PAIRS: usize = 2;
const DRAWN_PAIRS: [usize; DEAD_MOST + 1] = [0, 0, 0, 48, 12];

impl Experiment for CastUnicast {
    fn name(&self) -> &'static str {
        "cast-unicast"
    }

    fn about(&self) -> &'static str {
        "hops of a message among dead nodes, by routing and fan-out (001 Fig. 2a)"
    }

    fn picture(&self) -> Picture {
        let only = Some(("dead", Is::Number(DEAD_MOST as f64)));
        Picture { x: "k", y: "avg_hops", series: &["routing"], only, beside: &[] }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let most = if run.options.quick { 2 } else { DEAD_MOST };
        let mut lost = 0;
        // Sums over all k, by how many are dead and by rule.
        let mut totals = vec![[Mean::default(); Rule::ALL.len()]; most + 1];
        let mut at_high_k = [0.0; Rule::ALL.len()];
        for k in FAN_OUTS {
            let tree = Tree::new(k, NODES).map_err(Error::peer("cast"))?;
            for (dead, totals) in totals.iter_mut().enumerate() {
                let sets = sets(0, NODES, dead);
                for (number, rule) in Rule::ALL.into_iter().enumerate() {
                    let begun = Instant::now();
                    let shares: Vec<_> = sets.chunks(sets.len().div_ceil(64)).collect();
                    let found = run.in_parallel(
                        &shares,
                        |_| format!("k {k}, {dead} dead, {rule}"),
                        |sets| sets.iter().fold(Walks::default(), |walks, set| walks.among(&tree, rule, set)),
                    );
                    let walks = found.into_iter().fold(Walks::default(), Walks::join);
                    let Walks { hops, connected, asked, .. } = walks;
                    lost += connected - hops.cases;
                    run.row(row! {
                        "routing": rule.to_string(), "k": k, "nodes": NODES, "dead": dead,
                        "avg_hops": significant(hops.value()),
                        "half_width": (dead > ALL_PAIRS).then(|| significant(hops.half_width())),
                        "delivered": hops.cases as f64 / connected as f64,
                        "connected": significant(connected as f64 / asked as f64), "cases": hops.cases,
                        "wall_s": significant(begun.elapsed().as_secs_f64()),
                    });
                    totals[number] = totals[number].join(hops);
                    if k == *FAN_OUTS.end() && dead == most {
                        at_high_k[number] = hops.value();
                    }
                }
            }
        }
        run.check(Check::new("connected and not reached: 0", Some(lost as f64), Must::AtMost, 0.0));
        let [basic, variant, aware, detour] = [0, 1, 2, 3];
        for (dead, totals) in totals.iter().enumerate().skip(1) {
            let claim = format!("{dead} dead: hops of detour / variant < 1");
            let ratio = totals[detour].value() / totals[variant].value();
            run.check(Check::new(claim, Some(ratio), Must::AtMost, 0.9999));
            run.note(format!(
                "{dead} dead, all k: basic {:.3}, variant {:.3}, aware {:.3}, detour {:.3} hops",
                totals[basic].value(),
                totals[variant].value(),
                totals[aware].value(),
                totals[detour].value(),
            ));
        }
        run.note(format!(
            "k {}, {most} dead: basic {:.3}, variant {:.3} hops (the paper: basic is the worst there)",
            FAN_OUTS.end(),
            at_high_k[basic],
            at_high_k[variant],
        ));
        let claim = format!("k {}, {most} dead: hops of aware / variant ≤ 1", FAN_OUTS.end());
        run.check(Check::new(claim, Some(at_high_k[aware] / at_high_k[variant]), Must::AtMost, 1.0));
        Ok(())
    }
}

/// Walks among dead nodes.
#[derive(Clone, Copy, Default)]
struct Walks {
    hops: Mean,
    /// Pairs with a way between them, and all pairs.
    connected: u64,
    asked: u64,
}

impl Walks {
    fn join(self, other: Self) -> Self {
        let (connected, asked) = (self.connected + other.connected, self.asked + other.asked);
        Self { hops: self.hops.join(other.hops), connected, asked }
    }

    fn among(mut self, tree: &Tree, rule: Rule, dead: &[Id]) -> Self {
        let living: Vec<Id> = tree.ids().filter(|i| !dead.contains(i)).collect();
        let parts = parts(tree, dead);
        let mut router = Router::new(rule);
        if dead.len() <= ALL_PAIRS {
            for &from in &living {
                for &to in living.iter().filter(|&&to| to != from) {
                    self.walk(tree, &mut router, (from, to), dead, &parts);
                }
            }
        } else {
            // The same pairs for each rule.
            let mut rng = Rng::new(7, dead.iter().fold(0, |sum, d| sum << 8 | u64::from(d.0)));
            for _ in 0..DRAWN_PAIRS[dead.len()] {
                self.walk(tree, &mut router, pair(&mut rng, &living), dead, &parts);
            }
        }
        self
    }

    fn walk(&mut self, tree: &Tree, router: &mut Router, (from, to): (Id, Id), dead: &[Id], parts: &[u32]) {
        self.asked += 1;
        self.connected += u64::from(parts[from.0 as usize] == parts[to.0 as usize]);
        let (mut transit, mut at, mut hops) = (Transit::new(from), from, 0);
        while at != to {
            hops += 1;
            at = match transit.hop(router, tree, at, to, |n| !dead.contains(&n)) {
                Hop::On(next) | Hop::Back(next) => next,
                Hop::Nowhere => return,
            };
        }
        self.hops.add(f64::from(hops));
    }
}

/// Which part of the tree each living node is in.
pub(super) fn parts(tree: &Tree, dead: &[Id]) -> Vec<u32> {
    let mut parts = vec![u32::MAX; tree.len() as usize];
    for id in tree.ids().filter(|i| !dead.contains(i)) {
        let mut edge = vec![id];
        while let Some(at) = edge.pop() {
            if parts[at.0 as usize] == u32::MAX {
                parts[at.0 as usize] = id.0;
                edge.extend(tree.neighbours(at).filter(|n| !dead.contains(n)));
            }
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_what_links_connect() {
        let tree = Tree::new(2, 31).unwrap();
        let parts = parts(&tree, &[Id(1), Id(2)]);
        assert!(parts[0] == 0 && parts[3] == 3 && parts[3..].iter().all(|&p| p == 3), "the root is alone");
    }

    #[test]
    fn without_damage_all_but_basic_take_the_shortest_ways() {
        let tree = Tree::new(2, 31).unwrap();
        let mean = |rule| Walks::default().among(&tree, rule, &[]).hops.value();
        assert!((mean(Rule::Variant) - mean(Rule::Aware)).abs() < 1e-9);
        assert!((mean(Rule::Detour) - mean(Rule::Aware)).abs() < 1e-9);
        assert!(mean(Rule::Basic) >= mean(Rule::Aware));
    }
}
