//! The event queue: made for millions of pending events, in one fixed order.
//!
//! Events come out by (time, sender, the sender's own count, receiver): an order that does not depend on who
//! pushed first, so it is the same however the nodes are spread over threads.
//!
//! A hierarchical calendar: 4096 slots of 256 ns, 1024 of about a millisecond, 1024 of about a second, and a heap
//! of rest. What is in the slots are 24-byte keys; the event itself is written once into a slab whose slot was
//! freed a moment ago (so it is still in the cache) and read once. Slots are taken in small batches, sorted, and
//! the slab is fetched ahead of the reader. What arrives for a time inside the batch goes to a small binary heap:
//! a queue with few events is just that heap.
//!
//! Far timers beside dense traffic cost two moves of a key. Memory follows the pending events: a slot gives its
//! room back once it held many.

use crate::calendar::{KEPT, Key, Level};
use phalanx_core::Instant;
use phalanx_core::fetch::fetch;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Something that happens to node `to` at a time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Event<T> {
    /// When.
    pub at: Instant,
    /// Who caused it.
    pub from: u32,
    /// How many events its causer had caused before: two events of one causer keep their order.
    pub number: u32,
    /// Whom it happens to.
    pub to: u32,
    /// What happens.
    pub what: T,
}

/// Width of the finest slots: 2⁸ ns.
const FINEST: u32 = 8;
/// Slots of each level as a power of two, from the finest up.
const LEVELS: [u32; 3] = [12, 10, 10];
/// Keys taken from the calendar at once: enough to fetch ahead, few enough for the late heap to stay small.
const BATCH: usize = 64;
/// How far ahead of the reader the slab is fetched.
const AHEAD: usize = 12;

/// Pending events in the order of (time, causer, causer's count, receiver).
pub struct Queue<T> {
    /// The next keys, sorted; those before `head` are done.
    batch: Vec<Key>,
    head: usize,
    /// Keys that came for a time before `horizon`.
    late: BinaryHeap<Reverse<Key>>,
    /// Everything earlier is in `batch` or `late`, everything else in the calendar.
    horizon: u64,
    /// Where the calendar stands: each level holds the slots that share its higher bits.
    base: u64,
    levels: [Level; LEVELS.len()],
    /// Past the last level (18 minutes), unordered.
    far: Vec<Key>,
    items: Vec<Option<T>>,
    free: Vec<u32>,
    len: usize,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Queue<T> {
    /// An empty queue.
    #[must_use]
    pub fn new() -> Self {
        let mut shift = FINEST;
        let levels = LEVELS.map(|bits| {
            let level = Level::new(shift, bits);
            shift += bits;
            level
        });
        Self {
            batch: Vec::new(),
            head: 0,
            late: BinaryHeap::new(),
            horizon: 0,
            base: 0,
            levels,
            far: Vec::new(),
            items: Vec::new(),
            free: Vec::new(),
            len: 0,
        }
    }

    /// Pending events.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// True when nothing is pending.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds an event. Its time may be in the past: then it is the next one.
    #[inline]
    pub fn push(&mut self, event: Event<T>) {
        let slot = match self.free.pop() {
            Some(slot) => {
                // Forgotten, not dropped: a free slot holds nothing, and to look would be a read of what is only written.
                std::mem::forget(self.items[slot as usize].replace(event.what));
                slot
            }
            None => {
                self.items.push(Some(event.what));
                self.items.len() as u32 - 1
            }
        };
        let order = u64::from(event.from) << 32 | u64::from(event.number);
        let key = Key { at: event.at.0, order, to: event.to, slot };
        self.len += 1;
        if key.at < self.horizon {
            self.late.push(Reverse(key));
        } else {
            self.place(key);
        }
    }

    /// Takes the next event when it happens before `limit`.
    #[inline]
    pub fn pop_before(&mut self, limit: Instant) -> Option<Event<T>> {
        loop {
            let batched = self.batch.get(self.head);
            let key = match (batched, self.late.peek()) {
                (Some(&b), Some(&Reverse(l))) if l < b => l,
                (Some(&b), _) => {
                    if b.at >= limit.0 {
                        return None;
                    }
                    self.head += 1;
                    return Some(self.take(b));
                }
                (None, Some(&Reverse(l))) => l,
                (None, None) => {
                    if self.refill(limit.0) {
                        continue;
                    }
                    return None;
                }
            };
            if key.at >= limit.0 {
                return None;
            }
            self.late.pop();
            return Some(self.take(key));
        }
    }

    /// Takes the next event.
    pub fn pop(&mut self) -> Option<Event<T>> {
        self.pop_before(Instant::NEVER)
    }

    /// The event `steps` from now, as far as that is known: its receiver, and what it is. The caller may fetch ahead.
    #[inline]
    #[must_use]
    pub fn ahead(&self, steps: usize) -> Option<(u32, Option<&T>)> {
        let key = self.batch.get(self.head + steps)?;
        Some((key.to, self.items[key.slot as usize].as_ref()))
    }

    /// When the next event happens; [`Instant::NEVER`] when nothing is pending.
    #[must_use]
    pub fn next_at(&self) -> Instant {
        let batched = self.batch.get(self.head).map_or(u64::MAX, |k| k.at);
        let late = self.late.peek().map_or(u64::MAX, |k| k.0.at);
        let near = batched.min(late);
        if near < self.horizon {
            return Instant(near);
        }
        // Slots behind the present one are empty, so the first that holds anything is the next.
        let slot = self.levels.iter().find_map(|level| Some(&level.slots[level.first()?]));
        Instant(slot.unwrap_or(&self.far).iter().map(|k| k.at).min().unwrap_or(u64::MAX))
    }

    fn take(&mut self, key: Key) -> Event<T> {
        if let Some(next) = self.batch.get(self.head + AHEAD) {
            fetch(&self.items[next.slot as usize]);
        }
        let what = self.items[key.slot as usize].take().expect("a key stands for one item");
        self.free.push(key.slot);
        self.len -= 1;
        Event { at: Instant(key.at), from: (key.order >> 32) as u32, number: key.order as u32, to: key.to, what }
    }

    /// Puts a key into the finest level that reaches it.
    #[inline]
    fn place(&mut self, key: Key) {
        for level in &mut self.levels {
            if key.at >> level.span == self.base >> level.span {
                level.insert(key);
                return;
            }
        }
        self.far.push(key);
    }

    /// Makes the next batch from slots that begin before `limit`; false when there is none.
    ///
    /// It never looks past `limit`: what is pushed until then still finds its place in the calendar.
    fn refill(&mut self, limit: u64) -> bool {
        self.batch.clear();
        self.head = 0;
        if self.batch.capacity() > KEPT * BATCH {
            self.batch = Vec::new();
        }
        loop {
            while let Some(first) = self.levels[0].first() {
                let start = (self.base >> self.levels[0].span << self.levels[0].span) + ((first as u64) << FINEST);
                if start >= limit || self.batch.len() >= BATCH {
                    break;
                }
                let sorted = self.batch.len();
                self.levels[0].empty_into(first, &mut self.batch);
                // Slots follow each other: nothing before has to move. Mostly there is one key, and nothing to sort.
                if self.batch.len() > sorted + 1 {
                    self.batch[sorted..].sort_unstable();
                }
                self.horizon = start.saturating_add(1 << FINEST);
            }
            if !self.batch.is_empty() {
                for key in &self.batch[..AHEAD.min(self.batch.len())] {
                    fetch(&self.items[key.slot as usize]);
                }
                return true;
            }
            if self.levels[0].first().is_some() || !self.advance(limit) {
                return false;
            }
        }
    }

    /// Spreads the next coarse slot over the finer levels; false when none begins before `limit`.
    fn advance(&mut self, limit: u64) -> bool {
        let mut keys = Vec::new();
        let coarse = (1..LEVELS.len()).find_map(|l| Some((l, self.levels[l].first()?)));
        let start = match coarse {
            Some((l, first)) => {
                let level = &self.levels[l];
                (self.base >> level.span << level.span) + ((first as u64) << level.shift)
            }
            None => {
                let last = self.levels[LEVELS.len() - 1].span;
                match self.far.iter().map(|k| k.at >> last << last).min() {
                    Some(start) => start,
                    None => return false,
                }
            }
        };
        if start >= limit {
            return false;
        }
        self.base = start;
        self.horizon = self.horizon.max(start);
        match coarse {
            Some((l, first)) => self.levels[l].empty_into(first, &mut keys),
            None => keys = std::mem::take(&mut self.far),
        }
        for key in keys {
            self.place(key);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    type Plain = (u64, u32, u32, u32);

    fn push(queue: &mut Queue<u64>, heap: &mut BinaryHeap<Reverse<Plain>>, at: u64, from: u32, number: u32) {
        queue.push(Event { at: Instant(at), from, number, to: from ^ 1, what: at ^ u64::from(number) });
        heap.push(Reverse((at, from, number, from ^ 1)));
    }

    /// The delays of a run: none, inside a slot, a network's, a timer's, an hour's, and no time at all left.
    fn delay() -> impl Strategy<Value = u64> {
        prop_oneof![
            Just(0),
            1u64..300,
            1_000u64..2_000_000,
            1_000_000u64..3_000_000_000,
            1u64 << 38..1 << 43,
            Just(u64::MAX)
        ]
    }

    proptest! {
        /// Against `BinaryHeap`: the same events in the same order, whatever the mix of near and far.
        #[test]
        fn pops_what_a_binary_heap_pops(
            steps in prop::collection::vec((delay(), 0u32..5, 0u8..5, 0u64..5_000_000), 1..400),
        ) {
            let (mut queue, mut heap) = (Queue::new(), BinaryHeap::new());
            let mut now = 0u64;
            for (number, (delay, from, what, window)) in steps.into_iter().enumerate() {
                if what < 3 {
                    push(&mut queue, &mut heap, now.saturating_add(delay), from, number as u32);
                } else {
                    let limit = now.saturating_add(window);
                    while let Some(e) = queue.pop_before(Instant(limit)) {
                        let Reverse(expected) = heap.pop().expect("the queue gave one event too many");
                        prop_assert_eq!((e.at.0, e.from, e.number, e.to), expected);
                        prop_assert_eq!(e.what, e.at.0 ^ u64::from(e.number));
                        now = now.max(e.at.0);
                    }
                    now = limit.max(now).min(u64::MAX - 1);
                    prop_assert!(heap.peek().is_none_or(|e| e.0.0 >= limit));
                }
                prop_assert_eq!(queue.next_at().0, heap.peek().map_or(u64::MAX, |e| e.0.0));
                prop_assert_eq!(queue.len(), heap.len());
            }
            while let Some(Reverse(expected)) = heap.pop() {
                if expected.0 == u64::MAX {
                    break;
                }
                let e = queue.pop().expect("the queue lost an event");
                prop_assert_eq!((e.at.0, e.from, e.number, e.to), expected);
            }
        }
    }

    #[test]
    fn a_burst_leaves_no_memory_behind_in_its_slot() {
        let mut queue = Queue::new();
        for burst in 0..50u64 {
            for n in 0..10_000 {
                queue.push(Event { at: Instant(burst * 10_000_000), from: 0, number: n, to: 0, what: () });
            }
            while queue.pop_before(Instant(burst * 10_000_000 + 1)).is_some() {}
        }
        let room: usize = queue.levels.iter().flat_map(|l| &l.slots).map(Vec::capacity).sum();
        assert!(room < 50_000 && queue.is_empty(), "room for {room} keys is still held");
    }

    #[test]
    fn ties_are_broken_by_causer_and_its_count_not_by_who_pushed_first() {
        let mut queue = Queue::new();
        for (from, number) in [(2, 0), (1, 7), (1, 3)] {
            queue.push(Event { at: Instant(5), from, number, to: 9, what: () });
        }
        let order: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|e| (e.from, e.number)).collect();
        assert_eq!(order, [(1, 3), (1, 7), (2, 0)]);
    }
}
