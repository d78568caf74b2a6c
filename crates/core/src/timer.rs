//! The timer helper: many deadlines, one armed timer.
//!
//! A machine with many peers keeps one deadline for each in [`Deadlines`] and tells its driver the earliest. An
//! indexed 4-ary heap: re-arming allocates nothing, and a peer is found by its slot. The earliest is beside it, so that
//! asking for it touches no other memory; a machine that never arms anything has no heap.

use crate::time::Instant;

/// One deadline for each slot `0..n`; the earliest in O(1), a change in O(log n), no allocation once grown.
#[derive(Clone, Debug)]
pub struct Deadlines {
    next: Instant,
    heap: Option<Box<Heap>>,
}

/// The deadlines in the order of a heap.
#[derive(Clone, Debug, Default)]
struct Heap {
    heap: Vec<(Instant, u32)>,
    /// Where each slot sits in `heap`; `ABSENT` when it is not armed.
    place: Vec<u32>,
}

const ABSENT: u32 = u32::MAX;
const ARITY: usize = 4;

impl Deadlines {
    /// No deadlines.
    #[must_use]
    pub const fn new() -> Self {
        Self { next: Instant::NEVER, heap: None }
    }

    /// The earliest deadline, or [`Instant::NEVER`].
    #[inline]
    #[must_use]
    pub fn next(&self) -> Instant {
        self.next
    }

    /// The deadline of `slot`, or [`Instant::NEVER`].
    #[must_use]
    pub fn of(&self, slot: usize) -> Instant {
        self.heap.as_ref().map_or(Instant::NEVER, |heap| heap.of(slot))
    }

    /// Sets the deadline of `slot`; [`Instant::NEVER`] disarms it.
    pub fn arm(&mut self, slot: usize, at: Instant) {
        if at != Instant::NEVER || self.heap.is_some() {
            let heap = self.heap.get_or_insert_default();
            heap.arm(slot, at);
            self.next = heap.next();
        }
    }

    /// Arms `slot` for `at` unless it is armed for an earlier time already.
    ///
    /// The cheap way on hot paths: the owner looks at its real deadline when the earlier one passes.
    pub fn arm_by(&mut self, slot: usize, at: Instant) {
        if at < self.of(slot) {
            self.arm(slot, at);
        }
    }

    /// Takes a slot whose deadline is not after `now`, the earliest first (ties: the lowest slot).
    #[inline]
    pub fn take_due(&mut self, now: Instant) -> Option<usize> {
        if self.next > now {
            return None;
        }
        let heap = self.heap.as_mut()?;
        let slot = heap.take_due(now);
        self.next = heap.next();
        slot
    }

    /// The armed slots with their deadlines, by slot: the canonical form for comparing and hashing.
    pub fn armed(&self) -> impl Iterator<Item = (usize, Instant)> + '_ {
        self.heap.iter().flat_map(|heap| heap.armed())
    }
}

impl Default for Deadlines {
    fn default() -> Self {
        Self::new()
    }
}

impl PartialEq for Deadlines {
    /// Equal when the same slots are armed for the same times, however the heap got there.
    fn eq(&self, other: &Self) -> bool {
        self.armed().eq(other.armed())
    }
}

impl Eq for Deadlines {}

impl Heap {
    fn next(&self) -> Instant {
        self.heap.first().map_or(Instant::NEVER, |e| e.0)
    }

    fn of(&self, slot: usize) -> Instant {
        match self.place.get(slot) {
            Some(&at) if at != ABSENT => self.heap[at as usize].0,
            _ => Instant::NEVER,
        }
    }

    fn arm(&mut self, slot: usize, at: Instant) {
        if self.place.len() <= slot {
            if at == Instant::NEVER {
                return;
            }
            self.place.resize(slot + 1, ABSENT);
        }
        match (self.place[slot], at) {
            (ABSENT, Instant::NEVER) => {}
            (ABSENT, _) => {
                self.heap.push((at, slot as u32));
                self.place[slot] = self.heap.len() as u32 - 1;
                self.up(self.heap.len() - 1);
            }
            (i, Instant::NEVER) => self.remove(i as usize),
            (i, _) => {
                let i = i as usize;
                let before = std::mem::replace(&mut self.heap[i].0, at);
                if at < before {
                    self.up(i);
                } else if at > before {
                    self.down(i);
                }
            }
        }
    }

    fn take_due(&mut self, now: Instant) -> Option<usize> {
        let &(at, slot) = self.heap.first()?;
        if at > now {
            return None;
        }
        self.remove(0);
        Some(slot as usize)
    }

    fn remove(&mut self, i: usize) {
        let (_, slot) = self.heap.swap_remove(i);
        self.place[slot as usize] = ABSENT;
        if i < self.heap.len() {
            self.place[self.heap[i].1 as usize] = i as u32;
            self.up(i);
            self.down(i);
        }
    }

    fn up(&mut self, mut i: usize) {
        while i > 0 {
            let parent = (i - 1) / ARITY;
            if self.heap[parent] <= self.heap[i] {
                break;
            }
            self.swap(i, parent);
            i = parent;
        }
    }

    fn down(&mut self, mut i: usize) {
        loop {
            let first = i * ARITY + 1;
            let end = (first + ARITY).min(self.heap.len());
            let Some(least) = (first..end).min_by_key(|&c| self.heap[c]) else {
                return;
            };
            if self.heap[i] <= self.heap[least] {
                return;
            }
            self.swap(i, least);
            i = least;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.heap.swap(a, b);
        self.place[self.heap[a].1 as usize] = a as u32;
        self.place[self.heap[b].1 as usize] = b as u32;
    }

    fn armed(&self) -> impl Iterator<Item = (usize, Instant)> + '_ {
        (0..self.place.len()).map(|s| (s, self.of(s))).filter(|&(_, t)| t != Instant::NEVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// Against a plain map: the same earliest deadline after each step, and the same order of expiry.
        #[test]
        fn behaves_like_a_sorted_map(steps in prop::collection::vec((0usize..20, 0u64..50, 0u8..4), 1..200)) {
            let (mut ours, mut model) = (Deadlines::new(), BTreeMap::new());
            for (slot, at, what) in steps {
                match what {
                    0 => { ours.arm(slot, Instant::NEVER); model.remove(&slot); }
                    1 => {
                        ours.arm_by(slot, Instant(at));
                        let e = model.entry(slot).or_insert(at);
                        *e = (*e).min(at);
                    }
                    _ => { ours.arm(slot, Instant(at)); model.insert(slot, at); }
                }
                prop_assert_eq!(ours.next().0, model.values().copied().min().unwrap_or(u64::MAX));
            }
            let mut expected: Vec<_> = model.into_iter().map(|(s, t)| (t, s)).collect();
            expected.sort_unstable();
            let mut got = Vec::new();
            while let Some(slot) = ours.take_due(Instant(1_000)) {
                got.push(slot);
            }
            prop_assert_eq!(got, expected.into_iter().map(|e| e.1).collect::<Vec<_>>());
        }
    }

    #[test]
    fn nothing_is_due_before_its_time() {
        let mut d = Deadlines::new();
        d.arm(3, Instant(10));
        assert_eq!(d.take_due(Instant(9)), None);
        assert_eq!(d.take_due(Instant(10)), Some(3));
        assert_eq!(d.next(), Instant::NEVER);
    }
}
