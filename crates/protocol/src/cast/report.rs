//! Who reports to whom while some are dead: each to its nearest living ancestor.
//!
//! ST-4. The mirror of [`spread`](super::spread): who is sent to by somebody reports to it. Those above whom nobody lives report to the
//! lowest living node, which collects: its own ancestors have lower numbers, so nobody lives above it either.

use super::tree::{Id, Tree};

/// A node's place in the living part of a tree.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Line {
    /// To whom it reports; who collects reports to nobody.
    pub above: Option<Id>,
    /// Who reports to it, in order.
    pub below: Vec<Id>,
}

impl Line {
    /// The place of `me`, who lives.
    #[must_use]
    pub fn of(tree: &Tree, me: Id, lives: impl Fn(Id) -> bool) -> Self {
        let ancestor = std::iter::successors(tree.parent(me), |&id| tree.parent(id)).find(|&id| lives(id));
        let mut below = Vec::new();
        next_living(tree, me, &lives, &mut below);
        let above = ancestor.or_else(|| (0..me.0).map(Id).find(|&id| lives(id)));
        // Who collects in the place of a dead root has the tops of all other branches below it.
        if above.is_none() && me != Id(0) {
            next_living(tree, Id(0), &lives, &mut below);
            below.retain(|&id| id != me);
        }
        below.sort_unstable();
        Self { above, below }
    }

    /// Whether somebody is next above or below.
    #[must_use]
    pub fn has(&self, id: Id) -> bool {
        self.above == Some(id) || self.is_above(id)
    }

    /// Whether somebody reports to it.
    #[must_use]
    pub fn is_above(&self, id: Id) -> bool {
        self.below.binary_search(&id).is_ok()
    }

    /// Everybody next above and below.
    pub fn all(&self) -> impl Iterator<Item = Id> + '_ {
        self.above.into_iter().chain(self.below.iter().copied())
    }
}

/// Children, and in the place of dead ones whoever is next below them.
fn next_living(tree: &Tree, of: Id, lives: &impl Fn(Id) -> bool, found: &mut Vec<Id>) {
    let mut open: Vec<Id> = tree.children(of).collect();
    while let Some(id) = open.pop() {
        if lives(id) {
            found.push(id);
        } else {
            open.extend(tree.children(id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// All sets of up to three dead in small trees: one collects, and everybody else is below exactly one, without loops.
    #[test]
    fn st_4_everybody_reports_to_one_and_one_collects() {
        for (k, n) in [(2, 1), (2, 4), (2, 15), (3, 13), (4, 21)] {
            let tree = Tree::new(k, n).unwrap();
            let mut sets = BTreeSet::from([BTreeSet::new()]);
            for _ in 0..3 {
                let more = sets.iter().flat_map(|s| tree.ids().map(|id| s.iter().copied().chain([id]).collect()));
                sets = more.chain(sets.iter().cloned()).collect();
            }
            for dead in sets.iter().filter(|d| d.len() < n as usize) {
                let lives = |id: Id| !dead.contains(&id);
                let living: Vec<Id> = tree.ids().filter(|&id| lives(id)).collect();
                let lines: Vec<Line> = living.iter().map(|&id| Line::of(&tree, id, lives)).collect();
                let mut below = Vec::new();
                for (id, line) in living.iter().zip(&lines) {
                    assert_eq!(line.above.is_none(), *id == living[0], "k {k}, {dead:?}: the lowest collects");
                    assert!(line.above.is_none_or(|a| a < *id && lives(a)), "k {k}, {dead:?}: no loops");
                    below.extend(line.below.iter().map(|&b| (b, *id)));
                }
                below.sort_unstable();
                let above: Vec<_> = living.iter().zip(&lines).filter_map(|(&id, l)| Some((id, l.above?))).collect();
                assert_eq!(below, above, "k {k}, {dead:?}: who is above knows who is below");
            }
        }
    }

    #[test]
    fn st_4_a_branch_whose_top_is_dead_reports_above_it() {
        let tree = Tree::new(2, 15).unwrap();
        let line = |me: u32, dead: &[u32]| Line::of(&tree, Id(me), |id| !dead.contains(&id.0));
        assert_eq!(line(4, &[1]).above, Some(Id(0)));
        assert_eq!(line(2, &[0]).above, Some(Id(1)), "nobody is above it: the lowest collects");
        assert_eq!(line(2, &[0, 1]).below, [Id(3), Id(4), Id(5), Id(6)]);
        assert!(line(2, &[0, 1]).has(Id(3)) && !line(5, &[0, 1]).has(Id(3)));
    }
}
