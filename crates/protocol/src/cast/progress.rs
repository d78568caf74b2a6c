//! How far casts have come: in a node's branch of the tree, and for those who cast.
//!
//! Beyond 001. A node tells who is above it how far its whole branch has come, so that the source learns when everybody has a cast: it can say
//! so, its window moves on (back-pressure), and others may forget the cast.

use super::tree::Id;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// How far the branch of a node has come with the casts of one source.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(super) struct Branch {
    /// It has all up to this one …
    pub(super) upto: u64,
    /// … and these.
    beyond: BTreeSet<u64>,
    /// Who was told, and what.
    pub(super) told: Option<(Id, u64)>,
    /// How far those below say that their own branches have come: they may have a cast before us.
    heard: BTreeMap<Id, u64>,
}

impl Branch {
    /// It has one more; whether that changes how far it has come.
    pub(super) fn finish(&mut self, number: u64) -> bool {
        if number <= self.upto {
            return false;
        }
        self.beyond.insert(number);
        let before = self.upto;
        while self.beyond.remove(&(self.upto + 1)) {
            self.upto += 1;
        }
        self.upto > before
    }

    /// Somebody below says how far its own branch has come.
    pub(super) fn hear(&mut self, from: Id, upto: u64) {
        let known = self.heard.entry(from).or_default();
        *known = upto.max(*known);
    }

    /// Whether the branch of one of these is known to have it.
    pub(super) fn has(&self, number: u64, mut line: impl Iterator<Item = Id>) -> bool {
        line.any(|id| self.heard.get(&id).is_some_and(|&upto| upto >= number))
    }

    /// Its node sits elsewhere, above others, who are known to have all before this one.
    pub(super) fn replant(&mut self, first: Option<u64>) {
        let upto = first.map_or(self.upto, |first| self.upto.min(first - 1));
        // Those below may have told it before it sat down.
        *self = Self { upto, heard: std::mem::take(&mut self.heard), ..Self::default() };
    }

    /// It has all up to this one, says somebody who knows.
    pub(super) fn reach(&mut self, upto: u64) {
        if upto > self.upto {
            self.upto = upto;
            self.beyond = self.beyond.split_off(&(upto + 1));
            while self.beyond.remove(&(self.upto + 1)) {
                self.upto += 1;
            }
        }
    }
}

/// Our own casts that not everybody is known to have.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(super) struct Pending {
    casts: VecDeque<(u64, usize)>,
    bytes: usize,
    /// How far the branches of those have come who have nobody above them.
    pub(super) tops: BTreeMap<Id, u64>,
    posts: BTreeMap<u64, Post>,
    count: u64,
}

/// A message to some.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Post {
    /// To whom it is under way, and the how manieth message to that one it is.
    left: BTreeMap<Id, u64>,
    missed: Vec<Id>,
    len: usize,
}

/// A message to some that came to its end.
pub(super) struct Posted {
    pub(super) number: u64,
    pub(super) missed: Vec<Id>,
}

impl Pending {
    /// Whether so many more bytes fit into a window; one message always does.
    pub(super) fn fits(&self, len: usize, window: usize) -> bool {
        self.bytes == 0 || self.bytes + len <= window
    }

    pub(super) fn cast(&mut self, number: u64, len: usize) {
        self.casts.push_back((number, len));
        self.bytes += len;
    }

    /// Nothing is under way.
    pub(super) fn is_empty(&self) -> bool {
        self.casts.is_empty() && self.posts.is_empty()
    }

    /// Ends messages to some: who does not have them yet missed them.
    pub(super) fn give_up(&mut self) -> Vec<Posted> {
        let left: BTreeSet<Id> = self.posts.values().flat_map(|p| p.left.keys().copied()).collect();
        self.failed(&left.into_iter().collect::<Vec<_>>())
    }

    /// Everybody has our casts up to this one; whether that is news.
    pub(super) fn settle(&mut self, upto: u64) -> bool {
        let before = self.casts.len();
        while let Some(&(_, len)) = self.casts.front().filter(|c| c.0 <= upto) {
            self.casts.pop_front();
            self.bytes -= len;
        }
        self.casts.len() < before
    }

    /// A message to some leaves; its number.
    pub(super) fn post(&mut self, left: BTreeMap<Id, u64>, missed: Vec<Id>, len: usize) -> u64 {
        self.count += 1;
        self.bytes += len;
        self.posts.insert(self.count, Post { left, missed, len });
        self.count
    }

    /// One of them has it.
    pub(super) fn received(&mut self, by: Id, letter: u64) -> Option<Posted> {
        let (&number, post) = self.posts.iter_mut().find(|(_, p)| p.left.get(&by) == Some(&letter))?;
        post.left.remove(&by);
        self.end(number)
    }

    /// One died: those that came to their end with that.
    pub(super) fn failed(&mut self, ids: &[Id]) -> Vec<Posted> {
        for post in self.posts.values_mut() {
            let gone = ids.iter().filter(|id| post.left.remove(id).is_some());
            post.missed.extend(gone);
        }
        let over: Vec<u64> = self.posts.iter().filter(|(_, p)| p.left.is_empty()).map(|(&n, _)| n).collect();
        over.into_iter().filter_map(|number| self.end(number)).collect()
    }

    /// The message has come to its end when nobody is left.
    pub(super) fn end(&mut self, number: u64) -> Option<Posted> {
        let post = self.posts.get(&number).filter(|p| p.left.is_empty())?;
        self.bytes -= post.len;
        let missed = self.posts.remove(&number)?.missed;
        Some(Posted { number, missed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_has_come_as_far_as_nothing_is_missing() {
        let mut branch = Branch::default();
        assert!(!branch.finish(2));
        assert!(branch.finish(1));
        assert_eq!(branch.upto, 2);
        assert!(!branch.finish(1));
        assert!(!branch.finish(7) && !branch.finish(5));
        branch.reach(4);
        assert_eq!(branch.upto, 5);
        assert!(branch.finish(6));
        assert_eq!(branch.upto, 7);
    }

    #[test]
    fn a_window_moves_on_when_all_have_it() {
        let mut pending = Pending::default();
        assert!(pending.fits(100, 10), "one message always fits");
        pending.cast(1, 6);
        assert!(pending.fits(4, 10) && !pending.fits(5, 10));
        pending.cast(2, 4);
        assert!(pending.settle(1) && !pending.settle(1));
        assert!(pending.fits(6, 10));
        let post = pending.post(BTreeMap::from([(Id(3), 1), (Id(4), 9)]), vec![Id(7)], 6);
        assert!(!pending.fits(1, 10));
        assert!(pending.received(Id(4), 1).is_none(), "another message");
        assert!(pending.received(Id(4), 9).is_none());
        let posted = pending.failed(&[Id(3)]).pop().unwrap();
        assert_eq!((posted.number, posted.missed), (post, vec![Id(7), Id(3)]));
        assert!(pending.fits(6, 10));
    }
}
