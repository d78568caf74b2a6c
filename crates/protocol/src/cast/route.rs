//! Which neighbour is nearest to a destination: four rules behind one interface.
//!
//! ST-5, 001 §3.2. A message goes to the valid neighbour from which the rest of the way seems shortest. The rules differ in how they estimate
//! that:
//! - [`Rule::Basic`] (Algorithm 1): always towards the destination. First to its level, then along the ring; or along the ring to its
//!   ancestor, then down.
//! - [`Rule::Variant`]: may climb first, where the ring is shorter. That is the shortest way through a tree that is complete and undamaged:
//!   two nodes that are neighbours in a ring have parents that are the same or neighbours, so a step along a ring is never cheaper below.
//!   ⚠ In an incomplete tree it is not: the ring of the last level closes early, and that link is a short cut between branches.
//! - [`Rule::Aware`]: breadth first, around the dead nodes that the message has met. O(n).
//! - [`Rule::Detour`], our own: the ways of the variant rule and the short cut, each with what it costs to get around the nodes on it that are
//!   known to be dead, or where the message has been. It knows what the header says and no more, at O((d + log n) · k) for d such nodes.
//!
//! **Link costs** (ST-9). The link to the neighbour counts with its cost, the rest of the way in hops; `Aware` counts all links with theirs.

use super::tree::{Id, Tree};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// What a step around a node costs that stands in a ring: up, along, down is one more than through it.
const AROUND: u32 = 1;
/// Levels of the deepest tree.
const LEVELS: usize = 26;
const FAR: u32 = u32::MAX;

/// How the rest of the way is estimated.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Rule {
    /// Always in the destination's direction.
    Basic,
    /// By the shortest way of an undamaged tree.
    Variant,
    /// By the shortest way around the dead that were met.
    Aware,
    /// By the shortest of the variant's ways, with what the dead that were met cost on each.
    Detour,
}

impl Rule {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Basic, Self::Variant, Self::Aware, Self::Detour];

    /// Whether it wants to know of the dead that a message has met: they travel in its header.
    #[must_use]
    pub fn wants_the_dead(self) -> bool {
        matches!(self, Self::Aware | Self::Detour)
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Basic => "basic",
            Self::Variant => "variant",
            Self::Aware => "aware",
            Self::Detour => "detour",
        })
    }
}

/// What links cost.
pub trait Links {
    /// The cost of the link between two neighbours, at least 1.
    fn cost(&self, one: Id, other: Id) -> u32;
}

/// All the same.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Even;

impl Links for Even {
    fn cost(&self, _: Id, _: Id) -> u32 {
        1
    }
}

/// What a message has met.
#[derive(Clone, Copy, Debug)]
pub struct Met<'m> {
    /// Nodes that are dead.
    pub dead: &'m [Id],
    /// Where it has been since its last destination.
    pub seen: &'m [Id],
}

/// Chooses the next hop of messages. Two that go by the same rule over the same links are equal: the rest is scratch.
#[derive(Clone, Debug)]
pub struct Router<L = Even> {
    rule: Rule,
    links: L,
    /// For `Aware`: the distance of each node from the destination; who has one; the edge of the search.
    distance: Vec<u32>,
    touched: Vec<u32>,
    edge: BinaryHeap<Reverse<(u32, u32)>>,
    /// For `Detour`: nodes to get around, with their levels.
    blocks: Vec<(Id, u32)>,
}

impl<L: PartialEq> PartialEq for Router<L> {
    fn eq(&self, other: &Self) -> bool {
        (self.rule, &self.links) == (other.rule, &other.links)
    }
}

impl<L: Eq> Eq for Router<L> {}

impl Router {
    /// A router by this rule, where all links cost the same.
    #[must_use]
    pub fn new(rule: Rule) -> Self {
        Self::over(rule, Even)
    }
}

impl<L: Links> Router<L> {
    /// A router by this rule over links of these costs.
    #[must_use]
    pub fn over(rule: Rule, links: L) -> Self {
        let (distance, touched, edge, blocks) = (Vec::new(), Vec::new(), BinaryHeap::new(), Vec::new());
        Self { rule, links, distance, touched, edge, blocks }
    }

    /// Its rule.
    #[must_use]
    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// The valid neighbour of `at` from which the way to `to` seems shortest. Of equal ones the first: parent, left, right, children
    /// from left to right.
    pub fn next(&mut self, tree: &Tree, at: Id, to: Id, met: Met<'_>, mut valid: impl FnMut(Id) -> bool) -> Option<Id> {
        let near = tree.neighbours(at).filter(|&n| valid(n));
        match self.rule {
            Rule::Basic => near.min_by_key(|&n| self.links.cost(at, n) + basic(tree, n, to)),
            Rule::Variant => near.min_by_key(|&n| self.links.cost(at, n) + variant(tree, n, to)),
            Rule::Aware => {
                let near: Vec<_> = near.collect();
                self.search(tree, to, &near, met.dead);
                let Self { links, distance, .. } = self;
                near.into_iter().min_by_key(|&n| distance[n.0 as usize].saturating_add(links.cost(at, n)))
            }
            Rule::Detour => {
                self.blocks.clear();
                let known = met.dead.iter().chain(met.seen).filter(|&&b| b != to);
                self.blocks.extend(known.map(|&b| (b, tree.level(b))));
                let ways = Ways::to(tree, to, &self.blocks);
                near.min_by_key(|&n| self.links.cost(at, n) + ways.from(n))
            }
        }
    }

    /// Distances from `to`, around the dead, until all of `near` have theirs.
    fn search(&mut self, tree: &Tree, to: Id, near: &[Id], dead: &[Id]) {
        let Self { links, distance, touched, edge, .. } = self;
        distance.resize(tree.len() as usize, FAR);
        touched.drain(..).for_each(|t| distance[t as usize] = FAR);
        edge.clear();
        let mut left = near.len();
        distance[to.0 as usize] = 0;
        touched.push(to.0);
        edge.push(Reverse((0, to.0)));
        while let Some(Reverse((so_far, id))) = edge.pop() {
            if so_far > distance[id as usize] {
                continue;
            }
            if near.contains(&Id(id)) {
                left -= 1;
                if left == 0 {
                    return;
                }
            }
            for next in tree.neighbours(Id(id)) {
                let there = so_far + links.cost(Id(id), next);
                if there < distance[next.0 as usize] && !dead.contains(&next) {
                    if distance[next.0 as usize] == FAR {
                        touched.push(next.0);
                    }
                    distance[next.0 as usize] = there;
                    edge.push(Reverse((there, next.0)));
                }
            }
        }
    }
}

/// Hops by Algorithm 1: on the higher of the two levels along the ring, the rest up or down.
#[must_use]
pub fn basic(tree: &Tree, from: Id, to: Id) -> u32 {
    let (above, below) = (tree.level(from), tree.level(to));
    let turn = above.min(below);
    let (left, right) = tree.arcs(tree.ancestor(from, turn), tree.ancestor(to, turn));
    above.abs_diff(below) + left.min(right)
}

/// Hops by the shortest way of an undamaged tree: on whichever level the ring is best.
#[must_use]
pub fn variant(tree: &Tree, from: Id, to: Id) -> u32 {
    let (above, below) = (tree.level(from), tree.level(to));
    let mut turn = above.min(below);
    let (mut one, mut other) = (tree.ancestor(from, turn), tree.ancestor(to, turn));
    let (mut best, mut climbs) = (FAR, above.abs_diff(below));
    loop {
        let (left, right) = tree.arcs(one, other);
        best = best.min(climbs + left.min(right));
        climbs += 2;
        if turn == 0 || climbs >= best {
            return best;
        }
        turn -= 1;
        (one, other) = (Id((one.0 - 1) / tree.fan_out()), Id((other.0 - 1) / tree.fan_out()));
    }
}

/// A node and all above it.
struct Line {
    level: u32,
    ids: [Id; LEVELS],
}

impl Line {
    fn of(tree: &Tree, id: Id) -> Self {
        let level = tree.level(id);
        let mut line = Self { level, ids: [id; LEVELS] };
        for above in (0..level as usize).rev() {
            line.ids[above] = Id((line.ids[above + 1].0 - 1) / tree.fan_out());
        }
        line
    }

    fn at(&self, level: u32) -> Id {
        self.ids[level as usize]
    }

    /// What it costs to climb past a node that stands above us: along the ring below it, to somebody else's child.
    fn past(&self, tree: &Tree, (block, level): (Id, u32)) -> Option<u32> {
        (level < self.level && self.at(level) == block).then(|| {
            let place = (self.at(level + 1).0 - 1) % tree.fan_out();
            (place + 1).min(tree.fan_out() - place)
        })
    }
}

/// The ways to a destination among nodes to get around.
struct Ways<'w> {
    tree: &'w Tree,
    to: Line,
    blocks: &'w [(Id, u32)],
    /// The two ends of an incomplete last level, each with the way from the other one on.
    ends: Option<[(Line, u32); 2]>,
}

impl<'w> Ways<'w> {
    fn to(tree: &'w Tree, to: Id, blocks: &'w [(Id, u32)]) -> Self {
        let (to, last) = (Line::of(tree, to), tree.level(Id(tree.len() - 1)));
        let ring = tree.span(last);
        let full = (ring.start - tree.span(last.saturating_sub(1)).start) as u64 * u64::from(tree.fan_out());
        let lives = |end: u32| !blocks.iter().any(|b| b.0 == Id(end));
        let is_short_cut = ring.len() > 2 && (ring.len() as u64) < full && lives(ring.start) && lives(ring.end - 1);
        let ends = is_short_cut.then(|| {
            let [first, last] = [ring.start, ring.end - 1].map(|end| Line::of(tree, Id(end)));
            let (from_first, from_last) = (detour(tree, &first, &to, blocks), detour(tree, &last, &to, blocks));
            [(first, from_last), (last, from_first)]
        });
        Self { tree, to, blocks, ends }
    }

    fn from(&self, from: Id) -> u32 {
        let from = Line::of(self.tree, from);
        let direct = detour(self.tree, &from, &self.to, self.blocks);
        let ends = self.ends.iter().flatten().filter(|end| end.1 + 1 < direct);
        ends.map(|(end, rest)| detour(self.tree, &from, end, self.blocks) + 1 + rest).fold(direct, u32::min)
    }
}

/// Hops by the best of the variant's ways, with what it costs to get around these nodes.
fn detour(tree: &Tree, from: &Line, to: &Line, blocks: &[(Id, u32)]) -> u32 {
    let mut best = FAR;
    for turn in (0..=from.level.min(to.level)).rev() {
        let climbs = from.level + to.level - 2 * turn;
        if climbs >= best {
            break;
        }
        let (one, other) = (from.at(turn), to.at(turn));
        let (left, right) = tree.arcs(one, other);
        let (mut up, mut leftwards, mut rightwards) = (0, 0, 0);
        for &(block, level) in blocks.iter().filter(|b| b.1 >= turn) {
            let (climb, descend) = (from.past(tree, (block, level)), to.past(tree, (block, level)));
            // The top of both lines is passed once.
            up += climb.or(descend).unwrap_or(0);
            if level == turn && climb.is_none() && descend.is_none() {
                let (before, after) = tree.arcs(one, block);
                leftwards += if before < left { AROUND } else { 0 };
                rightwards += if after < right { AROUND } else { 0 };
            }
        }
        best = best.min(climbs + up + (left + leftwards).min(right + rightwards));
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: Met<'_> = Met { dead: &[], seen: &[] };

    fn truth(tree: &Tree, to: Id) -> Vec<u32> {
        let mut router = Router::new(Rule::Aware);
        let all: Vec<_> = tree.ids().collect();
        router.search(tree, to, &all, &[]);
        router.distance.clone()
    }

    /// All pairs of all small trees.
    #[test]
    fn st_5_estimates_are_the_shortest_ways_where_nobody_died() {
        for k in 2..=8 {
            for n in 1..=60 {
                let tree = Tree::new(k, n).unwrap();
                let last = tree.level(Id(n - 1));
                let is_complete = tree.span(last).len() as u64 == u64::from(k).pow(last);
                for to in tree.ids() {
                    let (distance, ways) = (truth(&tree, to), Ways::to(&tree, to, &[]));
                    for from in tree.ids() {
                        let (way, shortest) = (variant(&tree, from, to), distance[from.0 as usize]);
                        assert!(way == shortest || way > shortest && !is_complete, "k {k}, n {n}, {from} to {to}");
                        assert!(basic(&tree, from, to) >= way);
                        assert_eq!(ways.from(from), shortest, "k {k}, n {n}, {from} to {to}");
                    }
                }
            }
        }
    }

    #[test]
    fn st_5_the_basic_rule_keeps_its_direction() {
        let tree = Tree::new(2, 31).unwrap();
        // Half way around the last ring are 8 steps; two levels up, along and down 6.
        assert_eq!((basic(&tree, Id(15), Id(23)), variant(&tree, Id(15), Id(23))), (8, 6));
        // 7 is a level higher: Algorithm 1 stays there, the variant rule climbs on.
        assert_eq!((basic(&tree, Id(7), Id(23)), variant(&tree, Id(7), Id(23))), (5, 5));
        assert_eq!((basic(&tree, Id(7), Id(10)), variant(&tree, Id(7), Id(10))), (3, 3));
    }

    #[test]
    fn st_5_who_knows_of_the_dead_goes_around_them_from_the_start() {
        let tree = Tree::new(2, 15).unwrap();
        let met = Met { dead: &[Id(1)], seen: &[Id(3)] };
        // From 3 to 0 without 1: along the ring to a child of 2, not to the other child of 1.
        for rule in [Rule::Aware, Rule::Detour] {
            let next = Router::new(rule).next(&tree, Id(3), Id(0), met, |n| n != Id(1));
            assert_eq!(next, Some(Id(6)), "{rule}");
        }
    }

    #[test]
    fn st_9_a_dear_link_is_left_for_a_cheap_way() {
        /// Between the two halves of the tree only the ring's end is cheap.
        struct Wan;
        impl Links for Wan {
            fn cost(&self, one: Id, other: Id) -> u32 {
                if (one, other) == (Id(1), Id(0)) || (one, other) == (Id(0), Id(1)) { 10 } else { 1 }
            }
        }
        let tree = Tree::new(2, 7).unwrap();
        for rule in Rule::ALL {
            let next = Router::over(rule, Wan).next(&tree, Id(1), Id(0), NOTHING, |_| true);
            assert_eq!(next, Some(Id(2)), "{rule}");
            assert_eq!(Router::new(rule).next(&tree, Id(1), Id(0), NOTHING, |_| true), Some(Id(0)), "{rule}");
        }
    }
}
