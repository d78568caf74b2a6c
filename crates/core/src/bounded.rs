//! Collections with a bound that has a name: past it there is an answer, never growth.

use crate::fetch::fetch;
use std::collections::VecDeque;

/// A queue of at most `bound` items. Grows as needed up to there; an idle one holds no memory.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Ring<T> {
    items: VecDeque<T>,
    bound: usize,
}

impl<T> Ring<T> {
    /// An empty queue for at most `bound` items.
    #[must_use]
    pub const fn new(bound: usize) -> Self {
        Self { items: VecDeque::new(), bound }
    }

    /// Appends `item`, or hands it back when the queue is full: the caller has the drop policy.
    ///
    /// # Errors
    /// The item itself, when `bound` items wait already.
    pub fn push(&mut self, item: T) -> Result<(), T> {
        if self.items.len() >= self.bound {
            return Err(item);
        }
        self.items.push_back(item);
        Ok(())
    }

    /// Appends `item` and returns the oldest one when that was needed to make room.
    pub fn push_evicting(&mut self, item: T) -> Option<T> {
        let evicted = if self.is_full() { self.items.pop_front() } else { None };
        if self.bound > 0 {
            self.items.push_back(item);
            evicted
        } else {
            Some(item)
        }
    }

    /// Takes the oldest item.
    pub fn pop(&mut self) -> Option<T> {
        self.items.pop_front()
    }

    /// True when the next push would be refused.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.items.len() >= self.bound
    }

    /// The most items it holds.
    #[must_use]
    pub fn bound(&self) -> usize {
        self.bound
    }

    /// Gives the memory back when nothing waits.
    pub fn release(&mut self) {
        if self.items.is_empty() {
            self.items = VecDeque::new();
        }
    }
}

impl<T> std::ops::Deref for Ring<T> {
    type Target = VecDeque<T>;
    fn deref(&self) -> &VecDeque<T> {
        &self.items
    }
}

/// A table of at most `bound` entries with stable slots; freed slots are reused, lowest first.
///
/// Keys carry the slot's generation, so that a key kept too long finds nothing instead of a stranger.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Slab<T> {
    entries: Vec<(u8, Option<T>)>,
    /// Freed slots, unordered. Slots come back last-freed-first: cheap, and deterministic.
    free: Vec<u32>,
    bound: usize,
}

impl<T> Slab<T> {
    /// An empty table for at most `bound` entries.
    #[must_use]
    pub const fn new(bound: usize) -> Self {
        Self { entries: Vec::new(), free: Vec::new(), bound }
    }

    /// Stores `value`; `None` hands nothing back because the table is full.
    pub fn insert(&mut self, value: T) -> Option<(usize, u8)> {
        if let Some(slot) = self.free.pop() {
            let entry = &mut self.entries[slot as usize];
            entry.1 = Some(value);
            return Some((slot as usize, entry.0));
        }
        if self.entries.len() >= self.bound {
            return None;
        }
        // Doubling would leave a third of all tables empty, and a simulated cluster has a million of them.
        if self.entries.len() == self.entries.capacity() {
            self.entries.reserve_exact(self.entries.len() / 4 + 4);
        }
        self.entries.push((0, Some(value)));
        Some((self.entries.len() - 1, 0))
    }

    /// The entry in `slot`, when it is still of that generation.
    #[must_use]
    pub fn get(&self, slot: usize, generation: u8) -> Option<&T> {
        self.entries.get(slot).filter(|e| e.0 == generation)?.1.as_ref()
    }

    /// The entry in `slot`, when it is still of that generation.
    pub fn get_mut(&mut self, slot: usize, generation: u8) -> Option<&mut T> {
        self.entries.get_mut(slot).filter(|e| e.0 == generation)?.1.as_mut()
    }

    /// The entry in `slot`, of whatever generation, with that generation.
    pub fn at_mut(&mut self, slot: usize) -> Option<(u8, &mut T)> {
        let (generation, value) = self.entries.get_mut(slot)?;
        Some((*generation, value.as_mut()?))
    }

    /// The entry in `slot`, of whatever generation, with that generation.
    #[must_use]
    pub fn at(&self, slot: usize) -> Option<(u8, &T)> {
        let (generation, value) = self.entries.get(slot)?;
        Some((*generation, value.as_ref()?))
    }

    /// Asks the processor for the entry in `slot`, which will be needed soon.
    #[inline]
    pub fn fetch(&self, slot: usize) {
        if let Some(entry) = self.entries.get(slot) {
            fetch(entry);
        }
    }

    /// Frees `slot` and hands its entry out.
    pub fn remove(&mut self, slot: usize, generation: u8) -> Option<T> {
        let entry = self.entries.get_mut(slot).filter(|e| e.0 == generation)?;
        let value = entry.1.take()?;
        entry.0 = entry.0.wrapping_add(1);
        self.free.push(slot as u32);
        Some(value)
    }

    /// Entries in use.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len() - self.free.len()
    }

    /// True when no entry is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All entries in use, by slot.
    pub fn iter(&self) -> impl Iterator<Item = (usize, u8, &T)> {
        self.entries.iter().enumerate().filter_map(|(slot, (g, v))| Some((slot, *g, v.as_ref()?)))
    }

    /// All entries in use, by slot.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, u8, &mut T)> {
        self.entries.iter_mut().enumerate().filter_map(|(slot, (g, v))| Some((slot, *g, v.as_mut()?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_ring_hands_the_item_back_or_evicts_the_oldest() {
        let mut ring = Ring::new(2);
        assert_eq!((ring.push(1), ring.push(2), ring.push(3)), (Ok(()), Ok(()), Err(3)));
        assert_eq!(ring.push_evicting(4), Some(1));
        assert_eq!((ring.pop(), ring.pop(), ring.pop()), (Some(2), Some(4), None));
        assert_eq!(Ring::new(0).push_evicting(9), Some(9));
    }

    #[test]
    fn a_freed_slot_is_reused_and_its_old_key_finds_nothing() {
        let mut slab = Slab::new(2);
        let (a, ga) = slab.insert("a").unwrap();
        slab.insert("b").unwrap();
        assert_eq!(slab.insert("c"), None);
        assert_eq!(slab.remove(a, ga), Some("a"));
        let (c, gc) = slab.insert("c").unwrap();
        assert_eq!(c, a);
        assert_eq!((slab.get(a, ga), slab.get(c, gc)), (None, Some(&"c")));
        assert_eq!(slab.len(), 2);
    }
}
