//! Δ, the update database: what happened since the last message to the neighbours (ZN-7).

use crate::member::{Slot, Version};
use phalanx_core::Fingerprint;

/// News for the neighbours.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Delta {
    alive: Mask,
    left: Vec<(Slot, Version, u8)>,
    suspected: Vec<(Slot, Slot, Version)>,
}

/// A set of members, a bit each.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Mask {
    words: Vec<u64>,
    count: u32,
}

impl Mask {
    pub(super) fn insert(&mut self, slot: Slot) {
        let (word, bit) = (slot.at() / 64, 1 << (slot.at() % 64));
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.count += u32::from(self.words[word] & bit == 0);
        self.words[word] |= bit;
    }

    fn remove(&mut self, slot: Slot) {
        if self.contains(slot) {
            self.words[slot.at() / 64] &= !(1 << (slot.at() % 64));
            self.count -= 1;
        }
    }

    pub(super) fn contains(&self, slot: Slot) -> bool {
        self.words.get(slot.at() / 64).is_some_and(|w| w >> (slot.at() % 64) & 1 == 1)
    }

    /// Sixteen of them from `first` on, a multiple of that, a bit each.
    pub(super) fn chunk(&self, first: usize) -> u16 {
        self.words.get(first / 64).map_or(0, |w| (w >> (first % 64)) as u16)
    }

    pub(super) fn len(&self) -> usize {
        self.count as usize
    }

    /// By slot.
    pub(super) fn iter(&self) -> impl Iterator<Item = Slot> {
        self.words.iter().enumerate().flat_map(|(i, &word)| {
            let mut rest = word;
            std::iter::from_fn(move || {
                let bit = rest.trailing_zeros();
                rest &= rest.wrapping_sub(1);
                (bit < 64).then_some(Slot(i as u32 * 64 + bit))
            })
        })
    }
}

impl Delta {
    pub(super) fn alive(&mut self, p: Slot) {
        self.alive.insert(p);
    }

    /// It has left since: that it is alive is no news any more.
    pub(super) fn not_alive(&mut self, p: Slot) {
        self.alive.remove(p);
    }

    /// One entry for each member: what it said last.
    pub(super) fn leave(&mut self, p: Slot, v: Version, code: u8) {
        match self.left.iter_mut().find(|l| l.0 == p) {
            Some(left) => *left = (p, v, code),
            None => self.left.push((p, v, code)),
        }
    }

    pub(super) fn suspicion(&mut self, r: Slot, s: Slot, v: Version) {
        self.suspected.push((r, s, v));
    }

    /// Nobody is to hear that this member is suspected.
    pub(super) fn withhold(&mut self, s: Slot) {
        self.suspected.retain(|&(_, suspect, _)| suspect != s);
    }

    /// A slot becomes another's: nothing may be said about it any more.
    pub(super) fn forget(&mut self, p: Slot) {
        self.alive.remove(p);
        self.left.retain(|l| l.0 != p);
        self.suspected.retain(|s| s.0 != p && s.1 != p);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.alive.len() == 0 && self.left.is_empty() && self.suspected.is_empty()
    }

    #[cfg(test)]
    pub(super) fn has_alive(&self, p: Slot) -> bool {
        self.alive.contains(p)
    }

    #[cfg(test)]
    pub(super) fn left(&self) -> impl Iterator<Item = (Slot, Version, u8)> {
        self.left.iter().copied()
    }

    /// Everything, to be sent now.
    #[allow(clippy::type_complexity)] // Read once, taken apart at once.
    pub(super) fn take(&mut self) -> (Mask, Vec<(Slot, Version, u8)>, Vec<(Slot, Slot, Version)>) {
        let Self { alive, left, suspected } = std::mem::take(self);
        (alive, left, suspected)
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&self.alive.words);
        print.add(&(&self.left, &self.suspected));
    }
}
