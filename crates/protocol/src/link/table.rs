//! The table of peers: stable slots, reused last-freed-first, each with a generation that tells its tenants apart.
//!
//! As [`Slab`](phalanx_core::Slab), but a peer keeps its slot's generation among its own fields: beside a peer it would
//! cost a cache line. Grows by small steps: a simulated cluster has a million tables of a few peers.

use super::peer::Peer;
use phalanx_core::fetch::fetch_part;

/// Peers by slot.
#[derive(Clone, PartialEq, Eq, Debug)]
#[repr(C)]
pub(super) struct Table {
    entries: Vec<Entry>,
    /// The slot freed last, or [`NONE`].
    free: u32,
    len: u32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(clippy::large_enum_variant)] // Freed slots are few, and soon taken again.
enum Entry {
    Taken(Peer),
    Free(Vacancy),
}

/// What is kept of a slot that nobody is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Vacancy {
    /// The generation of its next tenant.
    generation: u8,
    /// The last session's number of the one before. The next goes on from there: packets of a session that is over come
    /// late where hosts are busy, and would be taken for damaged ones of the first session of a peer that came back.
    epoch: u8,
    /// The slot that was freed before it.
    before: u32,
}

/// No slot: ids have 24 bits for one.
const NONE: u32 = u32::MAX;

impl Table {
    pub(super) const fn new() -> Self {
        Self { entries: Vec::new(), free: NONE, len: 0 }
    }

    /// Makes room for so many peers in all, and no more.
    pub(super) fn reserve(&mut self, peers: usize) {
        self.entries.reserve_exact(peers.saturating_sub(self.entries.len()));
    }

    /// Stores a peer; `None` when there are `bound` already.
    pub(super) fn insert(&mut self, bound: usize, mut peer: Peer) -> Option<(usize, u8)> {
        let slot = match self.free {
            slot if slot != NONE => {
                let entry = &mut self.entries[slot as usize];
                let Entry::Free(vacancy) = *entry else { unreachable!("listed slots are free") };
                let Vacancy { generation, epoch, before } = vacancy;
                (peer.generation, peer.epoch) = (generation, epoch);
                self.free = before;
                *entry = Entry::Taken(peer);
                (slot as usize, generation)
            }
            _ if self.entries.len() < bound => {
                if self.entries.len() == self.entries.capacity() {
                    self.entries.reserve_exact((self.entries.len() / 4).max(4));
                }
                peer.generation = 0;
                self.entries.push(Entry::Taken(peer));
                (self.entries.len() - 1, 0)
            }
            _ => return None,
        };
        self.len += 1;
        Some(slot)
    }

    /// The peer in `slot`, when it is still of that generation.
    #[inline]
    pub(super) fn get(&self, slot: usize, generation: u8) -> Option<&Peer> {
        self.at(slot).filter(|at| at.0 == generation).map(|at| at.1)
    }

    /// The peer in `slot`, when it is still of that generation.
    #[inline]
    pub(super) fn get_mut(&mut self, slot: usize, generation: u8) -> Option<&mut Peer> {
        self.at_mut(slot).filter(|at| at.0 == generation).map(|at| at.1)
    }

    /// The peer in `slot`, of whatever generation, with that generation.
    #[inline]
    pub(super) fn at(&self, slot: usize) -> Option<(u8, &Peer)> {
        match self.entries.get(slot)? {
            Entry::Taken(peer) => Some((peer.generation, peer)),
            Entry::Free(..) => None,
        }
    }

    /// The peer in `slot`, of whatever generation, with that generation.
    #[inline]
    pub(super) fn at_mut(&mut self, slot: usize) -> Option<(u8, &mut Peer)> {
        match self.entries.get_mut(slot)? {
            Entry::Taken(peer) => Some((peer.generation, peer)),
            Entry::Free(..) => None,
        }
    }

    /// Asks the processor for what a packet from the peer in `slot` will need.
    #[inline]
    pub(super) fn fetch_for_arrival(&self, slot: usize) {
        if let Some(entry) = self.entries.get(slot) {
            fetch_part(entry, Peer::TO_OPEN);
        }
    }

    /// Asks the processor for what a packet to the peer in `slot` will need.
    #[inline]
    pub(super) fn fetch_for_departure(&self, slot: usize) {
        if let Some(entry) = self.entries.get(slot) {
            fetch_part(entry, Peer::TO_SEAL);
            fetch_part(entry, Peer::TO_SEND);
        }
    }

    /// Frees `slot` and hands its peer out.
    pub(super) fn remove(&mut self, slot: usize, generation: u8) -> Option<Peer> {
        let epoch = self.get(slot, generation)?.epoch;
        let freed = Entry::Free(Vacancy { generation: generation.wrapping_add(1), epoch, before: self.free });
        let Entry::Taken(peer) = std::mem::replace(&mut self.entries[slot], freed) else { return None };
        self.free = slot as u32;
        self.len -= 1;
        Some(peer)
    }

    /// Peers held.
    pub(super) fn len(&self) -> usize {
        self.len as usize
    }

    /// All peers, by slot.
    pub(super) fn iter(&self) -> impl Iterator<Item = (usize, u8, &Peer)> {
        (0..self.entries.len()).filter_map(|slot| self.at(slot).map(|(generation, peer)| (slot, generation, peer)))
    }

    /// All peers, by slot.
    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.entries.iter_mut().filter_map(|entry| match entry {
            Entry::Taken(peer) => Some(peer),
            Entry::Free(..) => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_core::Addr;

    fn peer(n: u32) -> Peer {
        Peer::new(Addr::Local(n), 1_000, 1, true)
    }

    fn who(table: &Table, (slot, generation): (usize, u8)) -> Option<Addr> {
        table.get(slot, generation).map(|p| p.addr)
    }

    #[test]
    fn a_freed_slot_is_reused_and_its_old_key_finds_nothing() {
        let mut table = Table::new();
        let keys: Vec<_> = (0..3).map(|n| table.insert(3, peer(n)).unwrap()).collect();
        assert_eq!(table.insert(3, peer(9)), None);
        for &(slot, generation) in &keys[..2] {
            assert_eq!(table.remove(slot, generation).unwrap().addr, Addr::Local(slot as u32));
            assert!(table.remove(slot, generation).is_none());
        }
        assert_eq!(table.len(), 1);
        let again = table.insert(3, peer(4)).unwrap();
        assert_eq!(again, (1, 1), "the slot freed last comes first, in its next generation");
        assert_eq!((who(&table, keys[1]), who(&table, again)), (None, Some(Addr::Local(4))));
        assert_eq!(table.insert(3, peer(5)), Some((0, 1)));
        assert_eq!(table.iter().map(|(slot, g, _)| (slot, g)).collect::<Vec<_>>(), [(0, 1), (1, 1), (2, 0)]);
    }

    #[test]
    fn a_peer_is_four_cache_lines() {
        assert_eq!((size_of::<Entry>(), align_of::<Entry>()), (256, 64));
    }
}
