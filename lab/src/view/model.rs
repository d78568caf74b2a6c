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

/// What was measured of a tree on a machine where its tasks share wires and cores.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Shared {
    /// For each level that has children: a message to each of them and the answers, while all parents of the level do so at once.
    pub(crate) rounds_us: Vec<f64>,
    /// O_cp.
    pub(crate) compute_us: f64,
    /// How many tasks can compute at once.
    pub(crate) cores: u32,
}

/// Contention model (000 §7.2): each level costs what its messages take while the whole level talks; and where tasks outnumber the
/// cores, their work adds up.
pub(crate) fn contention(shared: &Shared, tree: &Tree) -> f64 {
    let work: f64 = levels(tree).iter().map(|l| (l.len() as f64 / f64::from(shared.cores)).max(1.0)).sum();
    shared.rounds_us.iter().sum::<f64>() + shared.compute_us * work
}

/// The tasks of each level, from the root down.
pub(crate) fn levels(tree: &Tree) -> Vec<Vec<Task>> {
    let mut levels = Vec::new();
    let mut level: Vec<Task> = tree.root().into_iter().collect();
    while !level.is_empty() {
        let next = level.iter().flat_map(|&p| tree.children(p)).collect();
        levels.push(std::mem::replace(&mut level, next));
    }
    levels
}

/// The longest way between a task and its parent on each level, summed over the levels; and how many levels there are.
fn longest(tree: &Tree, topology: &Topology) -> (u32, u32) {
    let levels = levels(tree);
    let ways = |p: Task| tree.children(p).into_iter().map(move |c| topology.hops(p.0, c.0));
    let hops = levels.iter().map(|level| level.iter().flat_map(|&p| ways(p)).max().unwrap_or(0)).sum();
    (hops, levels.len() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 1, 2 and 4 tasks on two cores: their work counts once, once and twice.
    #[test]
    fn pm_1_who_shares_wires_and_cores_waits() {
        let tree = Tree::new(2, 7).expect("a good tree");
        assert_eq!(levels(&tree).iter().map(Vec::len).collect::<Vec<_>>(), [1, 2, 4]);
        let shared = Shared { rounds_us: vec![10.0, 30.0], compute_us: 5.0, cores: 2 };
        assert!((contention(&shared, &tree) - (40.0 + 20.0)).abs() < 1e-9);
    }

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
