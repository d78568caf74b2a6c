//! Peers by address and by boot: sorted slots, a few bytes for each peer.
//!
//! A tree of a few entries takes hundreds of bytes, and a simulated cluster has two such maps a million times. Inserting
//! moves what lies behind, which for the largest table is no more than sealing a packet.

use super::peer::tag;
use super::table::Table;
use phalanx_core::{Addr, Boot};

/// Slots in the order of their peers' addresses.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct ByAddr(Vec<u32>);

impl ByAddr {
    /// The slot of the peer at `addr`.
    pub(super) fn find(&self, addr: &Addr, peers: &Table) -> Option<usize> {
        self.place(addr, peers).ok().map(|place| self.0[place] as usize)
    }

    /// Adds a peer of the table that is not here yet.
    pub(super) fn insert(&mut self, addr: &Addr, slot: usize, peers: &Table) {
        if let Err(place) = self.place(addr, peers) {
            insert(&mut self.0, place, slot as u32);
        }
    }

    /// Removes a peer that is still in the table.
    pub(super) fn remove(&mut self, addr: &Addr, peers: &Table) {
        if let Ok(place) = self.place(addr, peers) {
            self.0.remove(place);
        }
    }

    fn place(&self, addr: &Addr, peers: &Table) -> Result<usize, usize> {
        self.0.binary_search_by(|&slot| peers.at(slot as usize).expect("indexed peers exist").1.addr.cmp(addr))
    }
}

/// Slots with the tags of their sessions' boots, in the order of the tags: group datagrams are looked up here, so the
/// search stays in one place. Only who holds a key could make tags meet.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct ByBoot(Vec<(u32, u32)>);

impl ByBoot {
    /// The slot of the peer that lives as `boot`.
    pub(super) fn find(&self, boot: &Boot, peers: &Table) -> Option<usize> {
        self.place(boot, peers).ok().map(|place| self.0[place].1 as usize)
    }

    /// `boot` is the peer in `slot` from now on.
    pub(super) fn insert(&mut self, boot: &Boot, slot: usize, peers: &Table) {
        match self.place(boot, peers) {
            Ok(place) => self.0[place].1 = slot as u32,
            Err(place) => insert(&mut self.0, place, (tag(boot), slot as u32)),
        }
    }

    /// Forgets that `boot` is the peer in `slot`; it may be another's by now.
    pub(super) fn remove(&mut self, boot: &Boot, slot: usize) {
        let first = self.0.partition_point(|entry| entry.0 < tag(boot));
        let same = self.0[first..].iter().take_while(|entry| entry.0 == tag(boot));
        if let Some(place) = same.enumerate().find_map(|(i, entry)| (entry.1 as usize == slot).then_some(first + i)) {
            self.0.remove(place);
        }
    }

    fn place(&self, boot: &Boot, peers: &Table) -> Result<usize, usize> {
        let lives_as = |slot: u32| peers.at(slot as usize)?.1.session.as_ref().map(|session| &session.boot);
        let first = self.0.partition_point(|entry| entry.0 < tag(boot));
        let same = self.0[first..].iter().take_while(|entry| entry.0 == tag(boot));
        let found = same.enumerate().find_map(|(i, entry)| (lives_as(entry.1) == Some(boot)).then_some(first + i));
        found.ok_or(first)
    }
}

/// Room comes in small steps, as in the table.
fn insert<T>(items: &mut Vec<T>, place: usize, item: T) {
    if items.len() == items.capacity() {
        items.reserve_exact((items.len() / 4).max(4));
    }
    items.insert(place, item);
}

#[cfg(test)]
mod tests {
    use super::super::peer::{Peer, Session};
    use super::super::seal::KeyRing;
    use super::*;
    use phalanx_core::Identity;
    use phalanx_wire::hello::Hello;

    fn table(addrs: &[u32]) -> (Table, ByAddr) {
        let (mut peers, mut index) = (Table::new(), ByAddr::default());
        for &n in addrs {
            let addr = Addr::Local(n);
            let (slot, _) = peers.insert(100, Peer::new(addr, 1_000, 1, true)).unwrap();
            index.insert(&addr, slot, &peers);
        }
        (peers, index)
    }

    #[test]
    fn a_peer_is_found_by_its_address_until_it_is_removed() {
        let addrs = [7, 3, 9, 1, 8, 2];
        let (mut peers, mut index) = table(&addrs);
        assert_eq!(addrs.map(|n| index.find(&Addr::Local(n), &peers)), [0, 1, 2, 3, 4, 5].map(Some));
        index.remove(&Addr::Local(9), &peers);
        peers.remove(2, 0);
        assert_eq!(index.find(&Addr::Local(9), &peers), None);
        assert_eq!(index.find(&Addr::Local(8), &peers), Some(4));
    }

    /// A node may be met at two addresses: the one proved last counts, and ending the other changes nothing.
    #[test]
    fn a_boot_is_the_peer_that_proved_it_last() {
        let (mut peers, _) = table(&[1, 2, 3]);
        let mut index = ByBoot::default();
        // The first two share a tag, the third lives as the second does.
        let boots = [Boot([1; 16]), Boot([1, 1, 1, 1, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2])];
        for (slot, boot) in [boots[0], boots[1], boots[1]].into_iter().enumerate() {
            let hello = Hello {
                to: Boot::default(),
                identity: Identity::default(),
                nonce: 1,
                echo: 1,
                session: 1,
                largest: 1_000,
                done: true,
                holds: 0,
                group_floor: 0,
            };
            let session = Session::new(&KeyRing::fake(1, 1), 1, &Boot::default(), boot, 1, 1, &hello);
            peers.at_mut(slot).unwrap().1.session = Some(session);
            index.insert(&boot, slot, &peers);
        }
        assert_eq!(boots.map(|b| index.find(&b, &peers)), [Some(0), Some(2)]);
        index.remove(&boots[1], 1);
        assert_eq!(index.find(&boots[1], &peers), Some(2));
        index.remove(&boots[1], 2);
        assert_eq!(boots.map(|b| index.find(&b, &peers)), [Some(0), None]);
    }
}
