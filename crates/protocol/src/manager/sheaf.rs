//! A word for many agents: signed once by each replica, and handed on by the agents themselves.
//!
//! CM-2, ST. What an agent may believe is its own [`Vote`]: which decision, behind which one, with which hash. The votes of all who are told a word
//! are leaves of a hash tree, of which a replica signs the root; so each agent gets its leaf and the way from there to the root ([`Path`]), and
//! nobody who hands it on can change it.
//!
//! ```text
//!   0 1 2 3 4 5 6 7     the replica gives the whole block to the first of it: 0
//!   0       4           0 keeps the left half and gives the right one to its first: 4
//!   0   2   4   6       and so on, each for its own block: the last one has it after log2 steps
//! ```
//! Each replica turns the order of agents so that its own node is the first, or by another third; so those who hand on much of one's words hand on
//! little of the others'. Who is not reached because somebody above is dead lacks one voice of three; who lacks two is told by the replicas themselves.

use super::group::{Digest, Proof};
use super::wire::{Id, Vote};
use super::words::{At, Key, encode};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// The longest way to a root.
pub const PATH_MAX: usize = 32;
/// The most agents of one block: longer lists have several.
pub const BLOCK_MAX: usize = 4096;

/// A step on the way to the root.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Step {
    /// We are on the left, that is on the right.
    Right(Digest),
    /// We are on the right, that is on the left.
    Left(Digest),
}

/// From a leaf, or from the top of a block, to the root: empty for a word that was signed for one agent alone.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Path(Vec<Step>);

impl Path {
    /// The root above something of that hash; none above what no list of ours is long enough for.
    #[must_use]
    pub fn root(&self, from: Digest) -> Option<Digest> {
        let up = |at, step: &Step| match step {
            Step::Right(other) => both(at, *other),
            Step::Left(other) => both(*other, at),
        };
        self.may_be().then(|| self.0.iter().fold(from, up))
    }

    /// It is no longer than that of any list of ours.
    #[must_use]
    pub fn may_be(&self) -> bool {
        self.0.len() <= PATH_MAX
    }

    /// A word for one agent alone.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.0.is_empty()
    }

    fn behind(&self, step: Step) -> Self {
        Self(std::iter::once(step).chain(self.0.iter().copied()).collect())
    }
}

/// What stands for a vote in the tree.
#[must_use]
pub fn leaf(vote: &Vote) -> Digest {
    Digest::of(&[&[0], &*encode(vote)].concat())
}

fn both(left: Digest, right: Digest) -> Digest {
    Digest::of(&[&[1], &left.bytes()[..], right.bytes()].concat())
}

/// How many of so many, two at least, are on the left: the largest power of two that leaves somebody on the right.
fn left_of(count: usize) -> usize {
    count.next_power_of_two() / 2
}

/// The hash of a list of leaves, one at least.
fn top(leaves: &[Digest]) -> Digest {
    match leaves {
        [] => Digest::default(),
        [leaf] => *leaf,
        _ => {
            let (left, right) = leaves.split_at(left_of(leaves.len()));
            both(top(left), top(right))
        }
    }
}

/// A part of a list, and its way to the root.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    /// Which part.
    pub range: Range<usize>,
    /// From its top.
    pub path: Path,
}

/// The root above all leaves, and the blocks into which a list is cut that is longer than `most`.
#[must_use]
pub fn blocks(leaves: &[Digest], most: usize) -> (Digest, Vec<Block>) {
    let mut cut = Vec::new();
    let root = cut_up(leaves, 0, most.max(1), &mut cut);
    (root, cut)
}

/// Cuts up what begins at `at`; the paths of the blocks lead to the top of it then.
fn cut_up(leaves: &[Digest], at: usize, most: usize, cut: &mut Vec<Block>) -> Digest {
    if leaves.len() <= most {
        cut.push(Block { range: at..at + leaves.len(), path: Path::default() });
        return top(leaves);
    }
    let (left, right) = leaves.split_at(left_of(leaves.len()));
    let first = cut.len();
    let left_top = cut_up(left, at, most, cut);
    let second = cut.len();
    let right_top = cut_up(right, at + left.len(), most, cut);
    cut[first..second].iter_mut().for_each(|b| b.path.0.push(Step::Right(right_top)));
    cut[second..].iter_mut().for_each(|b| b.path.0.push(Step::Left(left_top)));
    both(left_top, right_top)
}

/// What the first of a block has to do: its own way to the root, and the blocks that it hands on, the largest first.
#[must_use]
pub fn branches(leaves: &[Digest], path: &Path) -> (Path, Vec<Block>) {
    let mut sizes = Vec::new();
    let mut count = leaves.len();
    while count > 1 {
        sizes.push(left_of(count)..count);
        count = left_of(count);
    }
    // From the smallest up: left of each is the top of all before.
    let mut left = leaves.first().copied().unwrap_or_default();
    let mut own = Vec::new();
    let mut found: Vec<(Range<usize>, Digest)> = Vec::new();
    for range in sizes.into_iter().rev() {
        let right = top(&leaves[range.clone()]);
        found.push((range, left));
        own.push(Step::Right(right));
        left = both(left, right);
    }
    let above = |n: usize| Path(own[n..].iter().chain(&path.0).copied().collect());
    let branch = |(n, (range, left)): (usize, &(Range<usize>, Digest))| Block {
        range: range.clone(),
        path: above(n + 1).behind(Step::Left(*left)),
    };
    (above(0), found.iter().enumerate().rev().map(branch).collect())
}

/// Somebody who is told a word with others.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Slip {
    /// Who.
    pub to: Key,
    /// Where it was when the replica said so.
    pub at: At,
    /// The decision for it before this one.
    pub after: Id,
}

/// One replica's voice for a word, for a block of agents: the first of them gets it.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Sheaf {
    /// Which decision.
    pub id: Id,
    /// The hash of the word's bytes.
    pub hash: Digest,
    /// By whom.
    pub by: Key,
    /// Its signature of the root.
    pub proof: Proof,
    /// The way of this block's top to the root.
    pub path: Path,
    /// Those who are told: one at least.
    pub slips: Vec<Slip>,
    /// The word, unless another replica brings it.
    pub body: Option<Vec<u8>>,
}

impl Sheaf {
    /// What is said to one of them.
    #[must_use]
    pub fn vote(&self, slip: &Slip) -> Vote {
        Vote { id: self.id, after: slip.after, to: slip.to, hash: self.hash }
    }

    /// All that is said, as leaves.
    #[must_use]
    pub fn leaves(&self) -> Vec<Digest> {
        self.slips.iter().map(|slip| leaf(&self.vote(slip))).collect()
    }

    /// The part of it that somebody else hands on.
    #[must_use]
    pub fn part(&self, block: Block) -> Self {
        Self { path: block.path, slips: self.slips[block.range].to_vec(), body: self.body.clone(), ..*self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaves(count: usize) -> Vec<Digest> {
        (0..count).map(|n| Digest::of(&n.to_le_bytes())).collect()
    }

    /// Everybody is reached once, in as many steps as there are doublings, and each way leads to the one root.
    #[test]
    fn st_2_all_are_reached_in_few_steps_by_ways_to_one_root() {
        for count in (1..200).chain([255, 256, 257, 4096, 5000]) {
            let leaves = leaves(count);
            for most in [1, 7, 64, usize::MAX] {
                let (root, cut) = blocks(&leaves, most);
                let (mut left, mut reached) = (cut.into_iter().map(|b| (b, 0)).collect::<Vec<_>>(), vec![0; count]);
                while let Some((Block { range, path }, steps)) = left.pop() {
                    assert!(range.len() <= most && (1usize << steps) <= count.next_power_of_two());
                    assert_eq!(path.root(top(&leaves[range.clone()])), Some(root));
                    let (own, further) = branches(&leaves[range.clone()], &path);
                    assert_eq!(own.root(leaves[range.start]), Some(root), "{} of {count}", range.start);
                    reached[range.start] += 1;
                    let moved = |b: Block| Block { range: b.range.start + range.start..b.range.end + range.start, ..b };
                    left.extend(further.into_iter().map(|b| (moved(b), steps + 1)));
                }
                assert!(reached.iter().all(|&times| times == 1), "{count} in blocks of {most}");
            }
        }
    }

    #[test]
    fn a_leaf_is_no_inner_node_and_has_one_place() {
        let leaves = leaves(8);
        let (root, _) = blocks(&leaves, 8);
        let (own, further) = branches(&leaves, &Path::default());
        assert_ne!(own.root(leaves[1]), Some(root), "another leaf in its place");
        assert_ne!(further[0].path.root(leaves[4]), Some(root), "a leaf in place of a block");
        let long = Path(vec![Step::Right(root); PATH_MAX + 1]);
        assert_eq!((long.root(root), long.may_be(), own.may_be()), (None, false, true), "longer than any list's");
    }
}
