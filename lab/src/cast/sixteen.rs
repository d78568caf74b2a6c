//! `cast-16k`: a broadcast to 16,384 nodes with each single one of them dead (001 §5; the paper: 30 s by rule, 15 minutes breadth first).
//!
//! One dead node changes little: the way around it, and when those send who are on that way. So each case looks at these and at who is
//! above them, node by node; what hangs below them untouched takes as long as it does without damage.

use super::played;
use crate::error::Error;
use crate::experiment::{Experiment, Run};
use crate::plot::Picture;
use crate::report::{Check, Must, row, significant};
use phalanx_core::Rng;
use phalanx_protocol::cast::route::{Router, Rule};
use phalanx_protocol::cast::spread::{self, Message};
use phalanx_protocol::cast::walk::{Hop, Transit};
use phalanx_protocol::cast::{Id, Tree};
use std::time::Instant;

/// The experiment.
pub(crate) struct Cast16k;

const NODES: u32 = 16_384;
const FAN_OUTS: [u32; 4] = [2, 3, 4, 8];
/// Cases that machines play as well.
const PLAYED: usize = 200;
/// Seconds for all cases by rule, and breadth first.
const RULES_S: f64 = 1.0;
const AWARE_S: f64 = 2.0;

impl Experiment for Cast16k {
    fn name(&self) -> &'static str {
        "cast-16k"
    }

    fn about(&self) -> &'static str {
        "a broadcast to 16,384 nodes with each single one dead: steps, and how long all cases take (001 §5)"
    }

    fn picture(&self) -> Picture {
        Picture { x: "k", y: "avg_steps", series: &["routing"], only: None, beside: &[] }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let mut differ = 0;
        for k in FAN_OUTS {
            let tree = Tree::new(k, NODES).map_err(Error::peer("cast"))?;
            for rule in Rule::ALL {
                let begun = Instant::now();
                let undamaged = Undamaged::of(&tree);
                let shares: Vec<_> =
                    (0..64).map(|i| 1 + i * (NODES - 1) / 64..1 + (i + 1) * (NODES - 1) / 64).collect();
                let found = run.in_parallel(
                    &shares,
                    |_| format!("k {k}, {rule}"),
                    |share| {
                        let mut case = Case::new(&undamaged, rule);
                        share.clone().map(|dead| case.steps(Id(dead))).collect::<Vec<_>>()
                    },
                );
                let (steps, orphans): (Vec<u32>, Vec<u32>) = found.into_iter().flatten().unzip();
                let wall_s = begun.elapsed().as_secs_f64();
                let left: u64 = orphans.iter().map(|&o| u64::from(o)).sum();
                let living = u64::from(NODES - 1) * steps.len() as u64;
                let sum: u64 = steps.iter().map(|&s| u64::from(s)).sum();
                run.row(row! {
                    "routing": rule.to_string(), "k": k, "nodes": NODES, "dead": 1,
                    "avg_steps": significant(sum as f64 / steps.len() as f64),
                    "max_steps": steps.iter().max().copied(), "undamaged_steps": undamaged.tails[0],
                    "delivered": (living - left) as f64 / living as f64, "orphans": left, "cases": steps.len(), "wall_s": significant(wall_s),
                });
                let most = if rule == Rule::Aware { AWARE_S } else { RULES_S };
                let claim = format!("k {k}, {rule}, all {} cases: seconds ≤ {most}", steps.len());
                run.check(Check::new(claim, Some(wall_s), Must::AtMost, most));
                let mut rng = Rng::new(16, u64::from(k));
                let drawn: Vec<u32> =
                    (0..PLAYED / FAN_OUTS.len()).map(|_| 1 + rng.below(u64::from(NODES) - 1) as u32).collect();
                let played = run.in_parallel(
                    &drawn,
                    |_| format!("k {k}, {rule}, by machines"),
                    |&dead| played::broadcast(&tree, rule, &[Id(dead)]),
                );
                for (dead, outcome) in drawn.into_iter().zip(played) {
                    let reached = NODES - 1 - orphans[dead as usize - 1];
                    let is_same = (outcome.steps, outcome.reached) == (steps[dead as usize - 1], reached);
                    differ += u32::from(!is_same);
                }
            }
        }
        let claim = format!("cases that differ when machines play them, of {PLAYED} for each routing: 0");
        run.check(Check::new(claim, Some(f64::from(differ)), Must::AtMost, 0.0));
        Ok(())
    }
}

/// A tree in which nobody is dead.
struct Undamaged<'t> {
    tree: &'t Tree,
    /// Steps from when a node has the broadcast until all below it have.
    tails: Vec<u32>,
}

impl<'t> Undamaged<'t> {
    fn of(tree: &'t Tree) -> Self {
        let mut tails = vec![0; tree.len() as usize];
        for id in (0..tree.len()).rev().map(Id) {
            let below = tree.children(id).zip(1..).map(|(child, turn)| turn + tails[child.0 as usize]);
            tails[id.0 as usize] = below.max().unwrap_or(0);
        }
        Self { tree, tails }
    }
}

/// One dead node after another.
struct Case<'u> {
    undamaged: &'u Undamaged<'u>,
    router: Router,
    /// The way around it: from whom to whom, and whether somebody is reached there for whom it is.
    way: Vec<(Id, Id, bool)>,
    /// Those on that way and above it, each with the last step in which it sends something.
    close: Vec<(Id, u32)>,
    /// Living nodes without a living neighbour.
    orphans: u32,
}

impl<'u> Case<'u> {
    fn new(undamaged: &'u Undamaged<'u>, rule: Rule) -> Self {
        Self { undamaged, router: Router::new(rule), way: Vec::new(), close: Vec::new(), orphans: 0 }
    }

    /// Steps until everybody who can has it, and how many are left.
    fn steps(&mut self, dead: Id) -> (u32, u32) {
        let tree = self.undamaged.tree;
        let parent = tree.parent(dead).expect("the source lives");
        self.find_way(tree, parent, dead);
        self.close.clear();
        for at in std::iter::once(parent).chain(self.way.iter().map(|w| w.1)) {
            let line = std::iter::successors(Some(at), |&id| tree.parent(id).filter(|&p| p != dead));
            for id in line {
                if self.close.iter().any(|c| c.0 == id) {
                    break;
                }
                self.close.push((id, 0));
            }
        }
        (self.play(dead), self.orphans)
    }

    fn find_way(&mut self, tree: &Tree, parent: Id, dead: Id) {
        self.way.clear();
        let (mut at, mut transit) = (parent, Transit::new(parent));
        let mut to = spread::in_turn(tree, parent, spread::below(tree, dead));
        self.orphans = 0;
        while let Some(&next_one) = to.last() {
            let next = match transit.hop(&mut self.router, tree, at, next_one, |n| n != dead) {
                Hop::On(next) | Hop::Back(next) => next,
                Hop::Nowhere => {
                    self.orphans += 1;
                    to.pop();
                    to.extend(spread::in_turn(tree, at, spread::below(tree, next_one)));
                    transit.arrive(at);
                    continue;
                }
            };
            let is_there = next == next_one;
            self.way.push((at, next, is_there));
            at = next;
            if is_there {
                transit.arrive(at);
                to.pop();
            }
        }
    }

    /// Plays what those do who are close. Events are few, and in the order of their steps.
    fn play(&mut self, dead: Id) -> u32 {
        let Self { undamaged: Undamaged { tree, tails }, way, close, .. } = self;
        let mut steps = 0;
        // When, in which order it was sent, where, and how far along the way; whole broadcasts are not on it.
        let mut events: Vec<(u32, u32, Id, Option<usize>)> = vec![(0, 0, Id(0), None)];
        let mut sent = 0;
        while let Some(first) = (0..events.len()).min_by_key(|&i| (events[i].0, events[i].1)) {
            let (step, _, at, along) = events.swap_remove(first);
            let place = close.iter().position(|c| c.0 == at).expect("only those who are close have events");
            let mut send = |close: &mut Vec<(Id, u32)>, to: Id, along: Option<usize>, events: &mut Vec<_>| {
                let busy = &mut close[place].1;
                *busy = (*busy).max(step) + 1;
                let arrives = *busy;
                sent += 1;
                if close.iter().any(|c| c.0 == to) {
                    events.push((arrives, sent, to, along));
                } else {
                    steps = steps.max(arrives + tails[to.0 as usize]);
                }
            };
            if let Some(along) = along
                && let Some(&(_, next, _)) = way.get(along + 1)
            {
                send(close, next, Some(along + 1), &mut events);
            }
            let takes = along.is_none_or(|along| way[along].2);
            if !takes {
                continue;
            }
            for message in spread::messages(tree, at, |n| n != dead) {
                match message {
                    Message::Down(child) => send(close, child, None, &mut events),
                    Message::Around(_) => {
                        if let Some(&(_, next, _)) = way.first() {
                            send(close, next, Some(0), &mut events);
                        }
                    }
                }
            }
            steps = steps.max(step);
        }
        steps
    }
}

#[cfg(test)]
mod tests {
    use super::super::steps::broadcast;
    use super::*;

    /// Every single dead node of many trees: what is computed is what happens.
    #[test]
    fn st_8_one_dead_node_is_computed_as_it_is_played() {
        for (k, n) in [(2, 31), (2, 32), (2, 100), (3, 90), (4, 85), (5, 77), (8, 120)] {
            let tree = Tree::new(k, n).unwrap();
            let undamaged = Undamaged::of(&tree);
            assert_eq!(undamaged.tails[0], broadcast(&tree, Id(0), Rule::Variant, |_| true).steps);
            for rule in Rule::ALL {
                let mut case = Case::new(&undamaged, rule);
                for dead in (1..n).map(Id) {
                    let played = broadcast(&tree, Id(0), rule, |id| id != dead);
                    let (steps, orphans) = case.steps(dead);
                    let computed = (steps, n - 1 - orphans);
                    assert_eq!(computed, (played.steps, played.reached), "{rule}, k {k}, n {n}, {dead} dead");
                }
            }
        }
    }
}
