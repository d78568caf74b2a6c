//! PM-1: the paper's models of T_s (000 §4, §7). Times in µs.

use phalanx_protocol::view::Task;
use phalanx_protocol::view::tree::Tree;
use phalanx_sim::Topology;

/// What a model is fed with.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Costs {
    /// L: one hop, one way.
    pub(crate) latency_us: f64,
    /// O_cp: what a notice costs a task.
    pub(crate) compute_us: f64,
}

/// On BlueGene/L over MPI (000 §7.1).
pub(crate) const BLUEGENE: Costs = Costs { latency_us: 4.6, compute_us: 2.0 };

/// Base model: T_s = 2·L·(H − 1) + O_cp·H. H counts levels.
pub(crate) fn base(costs: Costs, height: u32) -> f64 {
    2.0 * costs.latency_us * f64::from(height.saturating_sub(1)) + costs.compute_us * f64::from(height)
}

/// Distance model: each level costs its longest way, in hops. ⚠ The printed formula multiplies by H − 1 once more; see [`printed`].
pub(crate) fn distance(costs: Costs, tree: &Tree, topology: &Topology) -> f64 {
    let (hops, height) = longest(tree, topology);
    2.0 * f64::from(hops) * costs.latency_us + costs.compute_us * f64::from(height)
}

/// The distance model as 000 §7.1 prints it.
pub(crate) fn printed(costs: Costs, tree: &Tree, topology: &Topology) -> f64 {
    let (hops, height) = longest(tree, topology);
    2.0 * f64::from(hops) * costs.latency_us * f64::from(height.saturating_sub(1))
        + costs.compute_us * f64::from(height)
}

/// The longest way between a task and its parent on each level, summed over the levels; and how many levels there are.
fn longest(tree: &Tree, topology: &Topology) -> (u32, u32) {
    let (mut hops, mut height) = (0, 0);
    let mut level: Vec<Task> = tree.root().into_iter().collect();
    while !level.is_empty() {
        height += 1;
        let pairs: Vec<_> = level.iter().flat_map(|&p| tree.children(p).into_iter().map(move |c| (p, c))).collect();
        hops += pairs.iter().map(|(p, c)| topology.hops(p.0, c.0)).max().unwrap_or(0);
        level = pairs.into_iter().map(|(_, c)| c).collect();
    }
    (hops, height)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pm_1_a_chain_of_levels() {
        let tree = Tree::new(2, 7).expect("a good tree");
        assert!((base(BLUEGENE, tree.height()) - (2.0 * 4.6 * 2.0 + 6.0)).abs() < 1e-9);
        // On a line of 8: 0 to 2 is two hops; 2 to 6 is four.
        let line = Topology::Torus { x: 100, y: 1, z: 1, per_hop_us: 4.6 };
        assert!((distance(BLUEGENE, &tree, &line) - (2.0 * 6.0 * 4.6 + 6.0)).abs() < 1e-9);
        assert!((printed(BLUEGENE, &tree, &line) - (2.0 * 6.0 * 4.6 * 2.0 + 6.0)).abs() < 1e-9);
    }
}
