//! `PMI_process_mapping`: which ranks share a node, so that they speak through memory.
//!
//! ```text
//! (vector,(first node,nodes,ranks on each),…)      ranks in order; (vector,(0,3,2)) is 0 0 1 1 2 2
//! ```
//! MPICH reads it before anything else. Where ranks are placed around in circles it is long; what does not fit into a value is left out,
//! and then each rank counts as on a node of its own: slower, and right.

use super::wire::VALUE_MAX;
use std::fmt::Write;

/// `nodes`: ranks of each node, as ranges from..to. `None` when it is too long to be told.
#[must_use]
pub(super) fn mapping(nodes: &[Vec<(u32, u32)>]) -> Option<String> {
    let mut runs: Vec<(u32, u32, u32)> = Vec::new();
    for (node, from, to) in
        nodes.iter().enumerate().flat_map(|(n, ranges)| ranges.iter().map(move |r| (n as u32, r.0, r.1)))
    {
        runs.push((from, node, to.saturating_sub(from)));
    }
    runs.retain(|run| run.2 > 0);
    runs.sort_unstable();
    let mut blocks: Vec<(u32, u32, u32)> = Vec::new();
    for (_, node, ranks) in joined(runs) {
        match blocks.last_mut() {
            Some((first, count, each)) if *each == ranks && *first + *count == node => *count += 1,
            _ => blocks.push((node, 1, ranks)),
        }
    }
    let mut text = "(vector".to_owned();
    for (first, count, each) in blocks {
        // Writing to a string does not fail.
        let _ = write!(text, ",({first},{count},{each})");
    }
    text.push(')');
    (text.len() <= VALUE_MAX).then_some(text)
}

/// Ranges of one node that follow each other are one.
fn joined(runs: Vec<(u32, u32, u32)>) -> Vec<(u32, u32, u32)> {
    let mut joined: Vec<(u32, u32, u32)> = Vec::new();
    for (from, node, ranks) in runs {
        match joined.last_mut() {
            Some(last) if last.1 == node && last.0 + last.2 == from => last.2 += ranks,
            _ => joined.push((from, node, ranks)),
        }
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_with_as_many_ranks_are_one_block() {
        let of = |nodes: &[&[(u32, u32)]]| mapping(&nodes.iter().map(|n| n.to_vec()).collect::<Vec<_>>()).unwrap();
        assert_eq!(of(&[&[(0, 2)], &[(2, 4)], &[(4, 6)]]), "(vector,(0,3,2))", "as MPICH's launcher says it");
        assert_eq!(of(&[&[(0, 2)]]), "(vector,(0,1,2))");
        assert_eq!(of(&[&[(0, 2)], &[(2, 3)]]), "(vector,(0,1,2),(1,1,1))");
        assert_eq!(of(&[&[(0, 1), (2, 3)], &[(1, 2), (3, 4)]]), "(vector,(0,2,1),(0,2,1))", "in circles");
        assert_eq!(of(&[&[], &[(0, 1), (1, 4)]]), "(vector,(1,1,4))", "a node without ranks, and ranges in a row");
    }

    #[test]
    fn what_does_not_fit_is_not_said() {
        let uneven: Vec<_> = (0..400)
            .scan(0, |at, n| {
                Some(vec![(*at, {
                    *at += 1 + n % 2;
                    *at
                })])
            })
            .collect();
        assert_eq!(mapping(&uneven), None);
    }
}
