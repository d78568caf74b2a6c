//! Our own casts that not everybody is known to have: the window of a source.
//!
//! Beyond 001. A source knows when everybody has a cast ([`status`](super::status)), and does not send more than its window holds.

use super::tree::Id;
use phalanx_core::{Duration, Instant, Shared};
use phalanx_wire::cast::To;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What each message counts besides its body: others remember it, and wait for it.
const EACH: usize = 256;
/// Messages to one that leave again together, and the bytes that do in all: what is slow is not made slower.
const AGAIN_EACH: usize = 8;
const AGAIN_BYTES: usize = 1 << 20;

/// What is under way.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(super) struct Pending {
    casts: VecDeque<(u64, usize)>,
    bytes: usize,
    posts: BTreeMap<u64, Post>,
    /// For each one, its messages that are under way, and in which post.
    left: BTreeMap<u64, BTreeMap<u64, u64>>,
    count: u64,
}

/// A message to some.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Post {
    /// How many do not have it yet.
    left: usize,
    missed: Vec<u64>,
    body: Shared,
    since: Instant,
    /// When it leaves again, and how often it has.
    again: Instant,
    tries: u32,
}

/// A message to some that came to its end.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Posted {
    pub(super) number: u64,
    pub(super) missed: Vec<u64>,
}

impl Pending {
    /// Whether so many more bytes fit into a window; one message always does.
    pub(super) fn fits(&self, len: usize, window: usize) -> bool {
        self.bytes == 0 || self.bytes + len + EACH <= window
    }

    pub(super) fn cast(&mut self, number: u64, len: usize) {
        self.casts.push_back((number, len + EACH));
        self.bytes += len + EACH;
    }

    /// Messages to some are under way.
    pub(super) fn has_posts(&self) -> bool {
        !self.posts.is_empty()
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

    /// A message to some leaves, `missed` do not get it; its number.
    pub(super) fn post(&mut self, now: Instant, to: &[To], missed: Vec<u64>, body: &Shared) -> u64 {
        self.count += 1;
        self.bytes += body.len() + EACH;
        for to in to {
            self.left.entry(to.who).or_default().insert(to.letter, self.count);
        }
        let post = Post { left: to.len(), missed, body: body.clone(), since: now, again: now, tries: 0 };
        self.posts.insert(self.count, post);
        self.count
    }

    /// The last message before this one that has come to this one with all before it, or never will.
    pub(super) fn after(&self, who: u64, letter: u64) -> u64 {
        let first = self.left.get(&who).and_then(|letters| letters.first_key_value()).map_or(letter, |l| *l.0);
        first.min(letter) - 1
    }

    /// One of them has it.
    pub(super) fn received(&mut self, by: u64, letter: u64) -> Option<Posted> {
        let letters = self.left.get_mut(&by)?;
        let number = letters.remove(&letter)?;
        if letters.is_empty() {
            self.left.remove(&by);
        }
        self.posts.get_mut(&number)?.left -= 1;
        self.end(number)
    }

    /// One died: those that came to their end with that.
    pub(super) fn failed(&mut self, who: u64) -> Vec<Posted> {
        let mut over = Vec::new();
        for number in self.left.remove(&who).into_iter().flat_map(BTreeMap::into_values) {
            let Some(post) = self.posts.get_mut(&number) else { continue };
            post.left -= 1;
            post.missed.push(who);
            over.extend(self.end(number));
        }
        over
    }

    /// The message has come to its end when nobody is left.
    pub(super) fn end(&mut self, number: u64) -> Option<Posted> {
        let post = self.posts.get(&number).filter(|p| p.left == 0)?;
        self.bytes -= post.body.len() + EACH;
        let missed = self.posts.remove(&number)?.missed;
        Some(Posted { number, missed })
    }

    /// Messages that have been under way for too long, and where to: they are to leave again.
    pub(super) fn late(
        &mut self,
        now: Instant,
        wait: impl Fn(u32) -> Duration,
        seat: impl Fn(u64) -> Option<Id>,
    ) -> Vec<(To, Shared)> {
        // Those with many destinations visit them one after the other.
        let is_due = |p: &Post| p.again + wait(p.tries) * (1 + p.left as u64 / 16) <= now;
        let due: BTreeSet<u64> = self.posts.iter().filter(|(_, p)| is_due(p)).map(|(&n, _)| n).collect();
        let (mut all, mut bytes) = (Vec::new(), 0);
        for (&who, letters) in &self.left {
            let Some(seat) = seat(who) else { continue };
            for (&letter, number) in letters.iter().filter(|(_, number)| due.contains(number)).take(AGAIN_EACH) {
                let Some(post) = self.posts.get(number).filter(|_| bytes < AGAIN_BYTES) else { continue };
                bytes += post.body.len();
                all.push((To { seat, who, letter, after: self.after(who, letter) }, post.body.clone()));
            }
        }
        for number in due {
            let Some(post) = self.posts.get_mut(&number) else { continue };
            (post.again, post.tries) = (now, post.tries + 1);
        }
        all
    }

    /// To whom something is under way that left before then.
    pub(super) fn waits_for(&self, then: Instant) -> Vec<u64> {
        let is_late = |n: &u64| self.posts.get(n).is_some_and(|p| p.since <= then);
        self.left.iter().filter(|(_, letters)| letters.values().any(is_late)).map(|(&who, _)| who).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_moves_on_when_all_have_it() {
        let body = Shared::from(&[0; 6]);
        let mut pending = Pending::default();
        let window = 10 + 2 * EACH;
        assert!(pending.fits(9999, window), "one message always fits");
        pending.cast(1, 6);
        assert!(pending.fits(4, window) && !pending.fits(5, window));
        pending.cast(2, 4);
        assert!(pending.settle(1) && !pending.settle(1));
        assert!(pending.fits(6, window));
        let to = |who, letter| To { seat: Id(0), who, letter, after: 0 };
        let post = pending.post(Instant(5), &[to(3, 1), to(4, 9)], vec![7], &body);
        assert!(!pending.fits(1, window) && pending.has_posts());
        assert_eq!(pending.received(4, 1), None, "another message");
        assert_eq!((pending.after(4, 12), pending.after(3, 1), pending.after(8, 5)), (8, 0, 4));
        assert_eq!(pending.received(4, 9), None);
        assert_eq!(pending.after(4, 12), 11);
        assert_eq!((pending.waits_for(Instant(4)), pending.waits_for(Instant(5))), (vec![], vec![3]));
        let mut late = |now| pending.late(Instant(now), |tries| Duration(10 << tries), |_| Some(Id(9))).len();
        assert_eq!([14, 15, 16, 34, 35].map(&mut late), [0, 1, 0, 0, 1]);
        assert_eq!(pending.failed(3), [Posted { number: post, missed: vec![7, 3] }]);
        assert!(pending.fits(6, window) && !pending.has_posts());
    }
}
