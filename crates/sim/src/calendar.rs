//! One level of the event queue's calendar: slots of keys, and a bit for each that holds something.

/// Where an event stands in the order, and where it lies in the slab.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) at: u64,
    /// Causer and its count in one comparison.
    pub(crate) order: u64,
    pub(crate) to: u32,
    pub(crate) slot: u32,
}

/// Keys that a slot keeps room for when it is emptied.
pub(crate) const KEPT: usize = 64;

/// One level of the calendar: a ring of slots and a bit for each that holds something.
pub(crate) struct Level {
    /// Width of a slot, as a power of two of nanoseconds.
    pub(crate) shift: u32,
    /// Width of the whole level, likewise.
    pub(crate) span: u32,
    pub(crate) slots: Vec<Vec<Key>>,
    occupied: Vec<u64>,
    /// A bit for each word of `occupied`.
    summary: u64,
}

impl Level {
    pub(crate) fn new(shift: u32, bits: u32) -> Self {
        let slots = 1usize << bits;
        Self { shift, span: shift + bits, slots: vec![Vec::new(); slots], occupied: vec![0; slots / 64], summary: 0 }
    }

    #[inline]
    pub(crate) fn insert(&mut self, key: Key) {
        let slot = (key.at >> self.shift) as usize & (self.slots.len() - 1);
        self.slots[slot].push(key);
        self.occupied[slot / 64] |= 1 << (slot % 64);
        self.summary |= 1 << (slot / 64);
    }

    #[inline]
    pub(crate) fn first(&self) -> Option<usize> {
        if self.summary == 0 {
            return None;
        }
        let word = self.summary.trailing_zeros() as usize;
        Some(word * 64 + self.occupied[word].trailing_zeros() as usize)
    }

    pub(crate) fn empty_into(&mut self, slot: usize, keys: &mut Vec<Key>) {
        let from = &mut self.slots[slot];
        if let [only] = from[..] {
            keys.push(only);
            from.clear();
        } else if keys.is_empty() && from.len() > KEPT {
            std::mem::swap(keys, from);
        } else {
            keys.append(from);
        }
        if from.capacity() > KEPT {
            *from = Vec::new();
        }
        let word = slot / 64;
        self.occupied[word] &= !(1 << (slot % 64));
        if self.occupied[word] == 0 {
            self.summary &= !(1 << word);
        }
    }
}
