//! The replay window: each packet number is accepted once, and late ones only for a while.

/// Numbers below the newest that may still arrive. Networks reorder by a few packets, offloads by a batch.
const WINDOW: u64 = 256;

const WORDS: usize = (WINDOW / 64) as usize;

/// Which of the last [`WINDOW`] numbers were seen.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Replay {
    /// One more than the highest number seen; everything from here on is new.
    next: u64,
    /// Bit `n % 64` of word `n / 64 % WORDS` for each number `n` in the window.
    seen: [u64; WORDS],
}

impl Replay {
    /// A window that takes nothing below `floor`.
    pub(crate) fn from(floor: u64) -> Self {
        // As if all below had been seen.
        Self { next: floor, seen: [u64::MAX; WORDS] }
    }

    /// True when `n` may be accepted. Changes nothing: the packet is not authentic yet.
    pub(crate) fn admits(&self, n: u64) -> bool {
        n >= self.next || (n.saturating_add(WINDOW) >= self.next && !self.is_set(n))
    }

    /// Marks `n` as seen: only for authentic packets that were admitted.
    pub(crate) fn mark(&mut self, n: u64) {
        if n >= self.next {
            if n - self.next >= WINDOW {
                self.seen = [0; WORDS];
            } else {
                // The numbers skipped on the way are unseen; their bits are left from a window ago.
                for skipped in self.next..n {
                    self.seen[word(skipped)] &= !bit(skipped);
                }
            }
            self.next = n.saturating_add(1);
        }
        self.seen[word(n)] |= bit(n);
    }

    fn is_set(&self, n: u64) -> bool {
        self.seen[word(n)] & bit(n) != 0
    }
}

fn word(n: u64) -> usize {
    (n / 64) as usize % WORDS
}

fn bit(n: u64) -> u64 {
    1 << (n % 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        /// Against a set that remembers everything: nothing twice, nothing older than the window, all else.
        #[test]
        fn admits_each_number_once(numbers in prop::collection::vec(0u64..2000, 1..600), floor in 0u64..100) {
            let (mut replay, mut seen, mut newest) = (Replay::from(floor), BTreeSet::new(), None::<u64>);
            for n in numbers {
                let too_old = n < floor || newest.is_some_and(|m| n + WINDOW < m + 1);
                let expected = !too_old && !seen.contains(&n);
                prop_assert_eq!(replay.admits(n), expected, "number {}", n);
                if expected {
                    replay.mark(n);
                    seen.insert(n);
                    newest = Some(newest.map_or(n, |m| m.max(n)));
                }
            }
        }
    }

    #[test]
    fn the_last_number_does_not_overflow() {
        let mut replay = Replay::from(0);
        replay.mark(u64::MAX - 1);
        assert!(!replay.admits(u64::MAX - 1));
        assert!(replay.admits(u64::MAX));
        assert!(!replay.admits(5));
    }
}
