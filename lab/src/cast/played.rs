//! A broadcast in steps, played by the machines themselves: what [`steps`](super::steps) says of it must be so.

use super::steps::Outcome;
use phalanx_core::{Each, Instant, Machine, Shared};
use phalanx_protocol::cast::route::Rule;
use phalanx_protocol::cast::{Caster, Config, Id, Input, Output, Tree};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Casts from the root among these dead, whose neighbours know of them.
pub(super) fn broadcast(tree: &Tree, rule: Rule, dead: &[Id]) -> Outcome {
    let config = Config { rule, ..Config::default() };
    let mut nodes: Vec<Caster> = tree.ids().map(|id| Caster::new(config, *tree, 0, id)).collect();
    for &id in dead {
        for near in tree.neighbours(id) {
            nodes[near.0 as usize].handle(Instant::ZERO, Input::Failed { ids: &[id] }, &mut Each(|_: Output<'_>| {}));
        }
    }
    let (mut arrivals, mut messages) = (BinaryHeap::new(), Vec::<Vec<u8>>::new());
    let mut busy = vec![0u32; tree.len() as usize];
    let mut outcome = Outcome { steps: 0, reached: 0, twice: 0, messages: 0 };
    let mut act = |step: u32, at: Id, bytes: Option<Vec<u8>>, arrivals: &mut BinaryHeap<_>, messages: &mut Vec<_>| {
        let busy = &mut busy[at.0 as usize];
        let mut out = Each(|output: Output<'_>| match output {
            Output::Send { to, bytes } => {
                *busy = (*busy).max(step) + 1;
                outcome.messages += 1;
                arrivals.push(Reverse((*busy, messages.len(), to)));
                messages.push(bytes.to_vec());
            }
            Output::Deliver { .. } => {
                outcome.reached += 1;
                outcome.steps = outcome.steps.max(step);
            }
            // Orphans are not part of the steps.
            Output::Reach { .. } | Output::Unreached { .. } | Output::Settled { .. } => {}
        });
        let node = &mut nodes[at.0 as usize];
        match bytes {
            Some(bytes) => node.handle(Instant::ZERO, Input::Heard { bytes: &Shared::from(&bytes[..]) }, &mut out),
            None => _ = node.broadcast(Instant::ZERO, b"go", &mut out).expect("it is short"),
        }
    };
    act(0, Id(0), None, &mut arrivals, &mut messages);
    while let Some(Reverse((step, number, at))) = arrivals.pop() {
        let bytes = std::mem::take(&mut messages[number]);
        act(step, at, Some(bytes), &mut arrivals, &mut messages);
    }
    outcome.twice = nodes.iter().map(|n| n.counters().twice as u32).sum();
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cast::{sets, steps};

    #[test]
    fn st_8_machines_take_the_steps_that_are_computed() {
        for (k, n) in [(2, 15), (3, 14), (4, 22)] {
            let tree = Tree::new(k, n).unwrap();
            for dead in (0..=2).flat_map(|dead| sets(1, n, dead)) {
                for rule in Rule::ALL {
                    let computed = steps::broadcast(&tree, Id(0), rule, |id| !dead.contains(&id));
                    assert_eq!(broadcast(&tree, rule, &dead), computed, "{rule}, k {k}, {dead:?}");
                }
            }
        }
    }
}
