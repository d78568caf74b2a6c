//! One multicast on its way: where it has been, what it has met, how it turns back.
//!
//! ST-4, 001 §3.1. A message goes to the best valid neighbour: one that lives and that it has not been at. Where there is none it goes
//! back to where it came from. So it searches the living neighbour links depth first, and reaches whatever is connected by them.
//!
//! ⚠ The paper's transit list is one for all destinations: the way to the first one would block the ways to the others. Ours begins anew at
//! each destination. ⚠ Its header has no room for the dead that were met, which its own third routing needs: ours has.

use super::route::{Links, Met, Router};
use super::tree::{Id, Tree};

/// Where a message goes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Hop {
    /// On, to this neighbour.
    On(Id),
    /// Back, to where it came from.
    Back(Id),
    /// Nowhere: all that can be reached has been tried, or all around the destination are dead.
    Nowhere,
}

/// What travels with a message.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Transit {
    /// The way from its last destination, or its source, to where it is; without that itself.
    path: Vec<Id>,
    /// Where it has been on that way, and on those it came back from.
    seen: Vec<Id>,
    /// Dead nodes that it has met.
    dead: Vec<Id>,
}

impl Transit {
    /// A message that starts.
    #[must_use]
    pub fn new(at: Id) -> Self {
        Self { path: Vec::new(), seen: vec![at], dead: Vec::new() }
    }

    /// As it was told by others.
    #[must_use]
    pub fn of(path: Vec<Id>, seen: Vec<Id>, dead: Vec<Id>) -> Self {
        Self { path, seen, dead }
    }

    /// The way to where it is, where it has been, the dead it has met.
    #[must_use]
    pub fn into_parts(self) -> (Vec<Id>, Vec<Id>, Vec<Id>) {
        (self.path, self.seen, self.dead)
    }

    /// The way to where it is.
    #[must_use]
    pub fn path(&self) -> &[Id] {
        &self.path
    }

    /// Where it has been since its last destination.
    #[must_use]
    pub fn seen(&self) -> &[Id] {
        &self.seen
    }

    /// Dead nodes that it has met.
    #[must_use]
    pub fn dead(&self) -> &[Id] {
        &self.dead
    }

    /// A destination was reached: the way to the next one begins here.
    pub fn arrive(&mut self, at: Id) {
        self.path.clear();
        self.seen.clear();
        self.seen.push(at);
    }

    /// Decides the next hop from `at` to `to`, and notes it.
    pub fn hop<L: Links>(
        &mut self,
        router: &mut Router<L>,
        tree: &Tree,
        at: Id,
        to: Id,
        lives: impl Fn(Id) -> bool,
    ) -> Hop {
        if router.rule().wants_the_dead() {
            let dead = tree.neighbours(at).filter(|&n| !lives(n));
            for id in dead {
                if !self.dead.contains(&id) {
                    self.dead.push(id);
                }
            }
        }
        let Self { seen, dead, .. } = &*self;
        // Nobody who lives is linked with it: no need to search all of the tree for it.
        if at != to && tree.neighbours(to).all(|n| dead.contains(&n) || n != at && tree.are_linked(at, n) && !lives(n))
        {
            return Hop::Nowhere;
        }
        let next = router.next(tree, at, to, Met { dead, seen }, |n| lives(n) && !seen.contains(&n));
        match next {
            Some(next) => {
                self.path.push(at);
                self.seen.push(next);
                Hop::On(next)
            }
            None => self.path.pop().map_or(Hop::Nowhere, Hop::Back),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cast::route::Rule;
    use std::collections::BTreeSet;

    /// Hops from one node to another among the living; `None` when it gave up.
    fn walk(tree: &Tree, rule: Rule, from: Id, to: Id, dead: &BTreeSet<Id>) -> Option<u32> {
        let (mut router, mut transit, mut at) = (Router::new(rule), Transit::new(from), from);
        for hops in 0.. {
            if at == to {
                return Some(hops);
            }
            at = match transit.hop(&mut router, tree, at, to, |n| !dead.contains(&n)) {
                Hop::On(next) | Hop::Back(next) => next,
                Hop::Nowhere => return None,
            };
        }
        None
    }

    fn component(tree: &Tree, of: Id, dead: &BTreeSet<Id>) -> BTreeSet<Id> {
        let (mut met, mut edge) = (BTreeSet::from([of]), vec![of]);
        while let Some(at) = edge.pop() {
            edge.extend(tree.neighbours(at).filter(|n| !dead.contains(n) && met.insert(*n)));
        }
        met
    }

    /// Every pair, every set of up to three dead, every rule: whoever is connected is reached, and nobody else.
    #[test]
    fn st_4_a_message_reaches_whatever_neighbour_links_connect() {
        for (k, n) in [(2, 11), (3, 12), (4, 9)] {
            let tree = Tree::new(k, n).unwrap();
            let all: Vec<Id> = tree.ids().collect();
            for a in 0..n {
                for b in a..n {
                    for c in b..n {
                        let dead = BTreeSet::from([Id(a), Id(b), Id(c)]);
                        for &from in all.iter().filter(|i| !dead.contains(i)) {
                            let near = component(&tree, from, &dead);
                            for &to in all.iter().filter(|i| !dead.contains(i)) {
                                for rule in Rule::ALL {
                                    let hops = walk(&tree, rule, from, to, &dead);
                                    assert_eq!(hops.is_some(), near.contains(&to), "{rule}: {from} to {to}, {dead:?}");
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn st_4_a_dead_end_is_left_the_way_it_was_entered() {
        // 3 can only go down to 7 and 8 and on along their ring.
        let tree = Tree::new(2, 15).unwrap();
        let dead = BTreeSet::from([Id(1), Id(4), Id(6)]);
        let hops = walk(&tree, Rule::Variant, Id(3), Id(0), &dead).unwrap();
        assert!(hops > 5, "{hops}");
        assert!(walk(&tree, Rule::Aware, Id(3), Id(0), &dead).unwrap() <= hops);
    }
}
