//! The k-ary sibling tree: a tree whose levels are closed to rings.
//!
//! ST-1, 001 §3, Fig. 1. Nodes are numbered level by level, the children of `i` are `k·i + 1 … k·i + k`. Everything here is arithmetic
//! on two numbers, `k` and how many nodes there are: nobody needs a message to know its neighbours, of which it has at most k + 3:
//! parent, left, right, children. The last level may be incomplete; its ring closes over those who are there. A level of one node has
//! no ring, and in a level of two left and right are the same.

pub use phalanx_wire::cast::Id;
use std::ops::Range;
use thiserror::Error;

/// The most nodes of a tree.
pub const NODES_MAX: u32 = 1 << 24;

/// Why there can be no such tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum TreeError {
    /// A chain is no tree.
    #[error("a sibling tree needs a fan-out of at least 2, not {0}: choose 2, 3 or 4")]
    FanOut(u32),
    /// Nobody, or too many.
    #[error("a sibling tree has 1 to {NODES_MAX} nodes, not {0}")]
    Size(u32),
}

/// A tree of so many nodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Tree {
    k: u32,
    nodes: u32,
}

impl Tree {
    /// The tree of `nodes` nodes, each with `k` children.
    ///
    /// # Errors
    /// A fan-out below 2, no nodes or too many.
    pub fn new(k: u32, nodes: u32) -> Result<Self, TreeError> {
        if k < 2 {
            return Err(TreeError::FanOut(k));
        }
        if !(1..=NODES_MAX).contains(&nodes) {
            return Err(TreeError::Size(nodes));
        }
        Ok(Self { k, nodes })
    }

    /// Children of a node that is not at the bottom.
    #[must_use]
    pub fn fan_out(&self) -> u32 {
        self.k
    }

    /// How many nodes there are.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.nodes
    }

    /// Never: there is a root.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// All nodes.
    pub fn ids(&self) -> impl Iterator<Item = Id> + use<> {
        (0..self.nodes).map(Id)
    }

    /// Whether there is such a node.
    #[must_use]
    pub fn contains(&self, id: Id) -> bool {
        id.0 < self.nodes
    }

    /// How far below the root a node is.
    #[must_use]
    pub fn level(&self, id: Id) -> u32 {
        let (mut level, mut last) = (0, 0u64);
        while u64::from(id.0) > last {
            last = last * u64::from(self.k) + u64::from(self.k);
            level += 1;
        }
        level
    }

    /// The nodes of a level; empty below the last one.
    #[must_use]
    pub fn span(&self, level: u32) -> Range<u32> {
        let k = u64::from(self.k);
        let (mut first, mut width) = (0u64, 1u64);
        for _ in 0..level {
            if first >= u64::from(self.nodes) {
                break;
            }
            first += width;
            width *= k;
        }
        let clip = |n: u64| n.min(u64::from(self.nodes)) as u32;
        clip(first)..clip(first + width)
    }

    /// Whose child it is; the root is nobody's.
    #[must_use]
    pub fn parent(&self, id: Id) -> Option<Id> {
        (id.0 > 0).then(|| Id((id.0 - 1) / self.k))
    }

    /// Who is above it, the nearest first.
    pub fn above(&self, id: Id) -> impl Iterator<Item = Id> + use<> {
        let tree = *self;
        std::iter::successors(self.parent(id), move |&id| tree.parent(id))
    }

    /// Its children, from left to right.
    pub fn children(&self, id: Id) -> impl DoubleEndedIterator<Item = Id> + ExactSizeIterator + use<> {
        let first = u64::from(id.0) * u64::from(self.k) + 1;
        let clip = |n: u64| n.min(u64::from(self.nodes)) as u32;
        (clip(first)..clip(first + u64::from(self.k))).map(Id)
    }

    /// The next in the ring of its level to the left.
    #[must_use]
    pub fn left(&self, id: Id) -> Option<Id> {
        let ring = self.span(self.level(id));
        (ring.len() > 1).then(|| if id.0 == ring.start { Id(ring.end - 1) } else { Id(id.0 - 1) })
    }

    /// The next in the ring of its level to the right.
    #[must_use]
    pub fn right(&self, id: Id) -> Option<Id> {
        let ring = self.span(self.level(id));
        (ring.len() > 1).then(|| if id.0 + 1 == ring.end { Id(ring.start) } else { Id(id.0 + 1) })
    }

    /// Everybody it is linked with, each once: parent, left, right, children.
    pub fn neighbours(&self, id: Id) -> impl Iterator<Item = Id> + use<> {
        let (left, right) = (self.left(id), self.right(id));
        let ring = left.into_iter().chain(right.filter(|&r| Some(r) != left));
        self.parent(id).into_iter().chain(ring).chain(self.children(id))
    }

    /// Whether two nodes are neighbours.
    #[must_use]
    pub fn are_linked(&self, one: Id, other: Id) -> bool {
        self.neighbours(one).any(|n| n == other)
    }

    /// Who is above it on a level that is not below its own; itself on its own.
    #[must_use]
    pub fn ancestor(&self, id: Id, level: u32) -> Id {
        let climbs = self.level(id).saturating_sub(level);
        Id((0..climbs).fold(id.0, |id, _| (id - 1) / self.k))
    }

    /// Steps along the ring of their level between two nodes, to the left and to the right.
    #[must_use]
    pub fn arcs(&self, from: Id, to: Id) -> (u32, u32) {
        let ring = self.span(self.level(from)).len() as u32;
        let right = if to >= from { to.0 - from.0 } else { ring - (from.0 - to.0) };
        ((ring - right) % ring, right)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn ids(of: impl Iterator<Item = Id>) -> Vec<u32> {
        of.map(|i| i.0).collect()
    }

    #[test]
    fn st_1_the_papers_figure() {
        let tree = Tree::new(2, 15).unwrap();
        assert_eq!(ids(tree.neighbours(Id(0))), [1, 2]);
        assert_eq!(ids(tree.neighbours(Id(1))), [0, 2, 3, 4]);
        assert_eq!(ids(tree.neighbours(Id(4))), [1, 3, 5, 9, 10]);
        assert_eq!(ids(tree.neighbours(Id(7))), [3, 14, 8]);
        assert_eq!(ids(tree.neighbours(Id(14))), [6, 13, 7]);
        assert_eq!((tree.level(Id(6)), tree.span(3)), (2, 7..15));
    }

    #[test]
    fn an_incomplete_level_is_a_ring_of_those_who_are_there() {
        let tree = Tree::new(3, 7).unwrap();
        assert_eq!(tree.span(2), 4..7);
        assert_eq!(ids(tree.neighbours(Id(6))), [1, 5, 4]);
        assert_eq!((ids(tree.children(Id(2))), tree.span(3)), (vec![], 7..7));
        let alone = Tree::new(2, 4).unwrap();
        assert_eq!(ids(alone.neighbours(Id(3))), [1], "a level of one has no ring");
        assert_eq!(ids(Tree::new(5, 1).unwrap().neighbours(Id(0))), [0; 0]);
    }

    /// Every k and N that can be looked at: neighbours are mutual, few, and connect everybody.
    #[test]
    fn st_1_all_small_trees() {
        for k in 2..=9 {
            for n in 1..=90 {
                let tree = Tree::new(k, n).unwrap();
                let mut met = BTreeSet::from([Id(0)]);
                for id in tree.ids() {
                    let near: Vec<_> = tree.neighbours(id).collect();
                    assert!(near.len() <= k as usize + 3 && !near.contains(&id), "k {k}, n {n}, {id}");
                    assert_eq!(near.iter().collect::<BTreeSet<_>>().len(), near.len(), "k {k}, n {n}, {id}: each once");
                    assert!(
                        near.iter().all(|&other| tree.neighbours(other).any(|i| i == id)),
                        "k {k}, n {n}, {id}: mutual"
                    );
                    assert!(tree.span(tree.level(id)).contains(&id.0));
                    assert!(
                        tree.children(id).all(|c| tree.parent(c) == Some(id) && tree.level(c) == tree.level(id) + 1)
                    );
                    assert_eq!(tree.ancestor(id, 0), Id(0));
                    if id.0 > 0 {
                        assert!(met.contains(&tree.parent(id).unwrap()));
                        met.insert(id);
                    }
                }
                let levels: u32 = (0..32).map(|l| tree.span(l).len() as u32).sum();
                assert_eq!((met.len() as u32, levels), (n, n));
            }
        }
    }

    #[test]
    fn what_is_no_tree_is_refused() {
        assert_eq!(Tree::new(1, 5), Err(TreeError::FanOut(1)));
        assert_eq!(Tree::new(2, 0), Err(TreeError::Size(0)));
        assert!(Tree::new(u32::MAX, 9).is_ok(), "everybody below the root");
    }

    proptest! {
        #[test]
        fn st_1_arcs_close_the_ring(k in 2u32..12, n in 2u32..100_000, a: u32, b: u32) {
            let tree = Tree::new(k, n).unwrap();
            let from = Id(a % n);
            let ring = tree.span(tree.level(from));
            let to = Id(ring.start + b % ring.len() as u32);
            let (left, right) = tree.arcs(from, to);
            prop_assert_eq!((left + right) % ring.len() as u32, 0);
            let walked = (0..right.min(50)).fold(from, |at, _| tree.right(at).unwrap());
            prop_assert!(right > 50 || walked == to);
            let walked = (0..left.min(50)).fold(from, |at, _| tree.left(at).unwrap());
            prop_assert!(left > 50 || walked == to);
        }
    }
}
