//! Cuts in the network: who cannot reach whom, under a name by which the cut is healed.

use std::ops::Range;

/// A set of nodes with a fast test of membership.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct NodeSet(Vec<u64>);

impl NodeSet {
    /// The nodes of a range.
    #[must_use]
    pub fn range(nodes: Range<u32>) -> Self {
        nodes.collect()
    }

    /// Those of `0..nodes` that are not in this set.
    #[must_use]
    pub fn others(&self, nodes: u32) -> Self {
        (0..nodes).filter(|&n| !self.contains(n)).collect()
    }

    /// Adds a node.
    pub fn insert(&mut self, node: u32) {
        let word = node as usize / 64;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (node % 64);
    }

    /// The nodes, ascending.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..self.0.len() as u32 * 64).filter(|&n| self.contains(n))
    }

    /// True when `node` is in it.
    #[inline]
    #[must_use]
    pub fn contains(&self, node: u32) -> bool {
        self.0.get(node as usize / 64).is_some_and(|word| word >> (node % 64) & 1 == 1)
    }
}

impl FromIterator<u32> for NodeSet {
    fn from_iter<I: IntoIterator<Item = u32>>(nodes: I) -> Self {
        let mut set = Self::default();
        for node in nodes {
            set.insert(node);
        }
        set
    }
}

impl<const N: usize> From<[u32; N]> for NodeSet {
    fn from(nodes: [u32; N]) -> Self {
        nodes.into_iter().collect()
    }
}

/// A named cut: nothing passes from the first set of a pair to the second.
///
/// It works where a message is sent: what is under way already still arrives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Partition {
    name: String,
    cuts: Vec<(NodeSet, NodeSet)>,
}

impl Partition {
    /// Nothing passes between `a` and `b`, in either direction.
    #[must_use]
    pub fn between(name: &str, a: impl Into<NodeSet>, b: impl Into<NodeSet>) -> Self {
        let (a, b) = (a.into(), b.into());
        Self::one_way(name, a.clone(), b.clone()).and(b, a)
    }

    /// Nothing passes from `from` to `to`; the way back is open.
    #[must_use]
    pub fn one_way(name: &str, from: impl Into<NodeSet>, to: impl Into<NodeSet>) -> Self {
        Self { name: name.to_owned(), cuts: vec![(from.into(), to.into())] }
    }

    /// From whom nothing passes to whom.
    pub(crate) fn cuts(&self) -> &[(NodeSet, NodeSet)] {
        &self.cuts
    }

    /// Also nothing from `from` to `to`: with this, any partial partition can be drawn.
    #[must_use]
    pub fn and(mut self, from: impl Into<NodeSet>, to: impl Into<NodeSet>) -> Self {
        self.cuts.push((from.into(), to.into()));
        self
    }

    /// The name by which it is healed.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// True when it stops what `from` sends to `to`.
    #[inline]
    #[must_use]
    pub fn stops(&self, from: u32, to: u32) -> bool {
        self.cuts.iter().any(|(a, b)| a.contains(from) && b.contains(to))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partial_partition_stops_exactly_its_pairs() {
        let cut = Partition::one_way("cable", [1], [2, 3]).and([70], [1]);
        let stopped: Vec<_> =
            (0..80).flat_map(|a| (0..80).map(move |b| (a, b))).filter(|&(a, b)| cut.stops(a, b)).collect();
        assert_eq!(stopped, [(1, 2), (1, 3), (70, 1)]);
        let both = Partition::between("room", NodeSet::range(0..2), NodeSet::range(0..2).others(4));
        assert!(both.stops(0, 3) && both.stops(3, 0) && !both.stops(0, 1) && !both.stops(2, 3));
    }
}
