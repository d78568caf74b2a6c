//! The roster: identities as small numbers, for tables of two bytes a member.
//!
//! A daemon's roster is its own and grows with the members it meets. In a simulated run of a million nodes all members
//! of a zone share a [`Frozen`] one, made before the run; what a member meets beyond it goes into a part of its own.
//! So a slot means the same to all who share, no lock is needed, and a run does not depend on who met whom first.

use super::Card;
use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use phalanx_core::{Addr, Identity};
use phalanx_wire::member::Member;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A member as its roster numbers it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot(pub u32);

impl Slot {
    /// Index into tables.
    #[must_use]
    pub const fn at(self) -> usize {
        self.0 as usize
    }
}

/// What a roster keeps of a member.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    card: Card,
    vitals: Vitals,
}

/// What tables of members ask for all the time. Members that share a roster keep them apart from cards, so that a walk
/// over a whole zone reads three members to a cache line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Vitals {
    /// The incarnation in which it was first met: tables hold minors of that one in two bytes.
    pub incarnation: u64,
    /// Its place on the ring.
    pub place: u64,
    /// Bytes that it has in a list of members.
    pub length: u32,
}

impl Entry {
    fn new(card: Card, incarnation: u64) -> Self {
        let vitals = Vitals { incarnation, place: place(&card.identity), length: length(&card) };
        Self { card, vitals }
    }
}

fn length(card: &Card) -> u32 {
    Member::length(&card.addr, card.name.as_str()) as u32
}

/// ZN-4: the place of an identity on the ring, the beginning of its SHA-1.
fn place(identity: &Identity) -> u64 {
    let hash = digest(&SHA1_FOR_LEGACY_USE_ONLY, &identity.0);
    hash.as_ref().first_chunk().map_or(0, |c| u64::from_be_bytes(*c))
}

/// A free place of an index: no slot is as high.
const NOBODY: u32 = u32::MAX;

/// Where to begin to look for an identity. Identities are public keys: any bits of them are as good as a hash.
fn first_place(identity: &Identity, places: usize) -> usize {
    identity.0.first_chunk().map_or(0, |c| u64::from_le_bytes(*c) as usize) % places
}

/// A roster that many members of one simulated zone share.
#[derive(PartialEq, Eq, Debug, Default)]
pub struct Frozen {
    entries: Vec<Entry>,
    vitals: Vec<Vitals>,
    /// Slots by identity: a table of which at most half is in use, each at the first free place from where the first bits of
    /// its identity point to. A letter with a whole view asks for thousands of them: to search a sorted list took a
    /// quarter of the time of a boot. Only a run's own nodes are in it, so nobody can choose where it lies.
    index: Vec<u32>,
    /// Slots by address, and by place on the ring.
    by_addr: Vec<u32>,
    ring: Vec<(u64, u32)>,
    /// No two have the same name.
    distinct: bool,
}

impl Frozen {
    /// These members, each with the incarnation in which it will start; slots in this order.
    #[must_use]
    pub fn new(members: impl IntoIterator<Item = (Card, u64)>) -> Self {
        let entries: Vec<_> = members.into_iter().map(|(card, incarnation)| Entry::new(card, incarnation)).collect();
        let mut index = vec![NOBODY; (entries.len() * 2).next_power_of_two()];
        for (slot, entry) in (0..).zip(&entries) {
            let mut at = first_place(&entry.card.identity, index.len());
            // Should two have one identity, the first is found.
            while index[at] != NOBODY {
                at = (at + 1) % index.len();
            }
            index[at] = slot;
        }
        let mut by_addr: Vec<u32> = (0..entries.len() as u32).collect();
        by_addr.sort_by_key(|&s| entries[s as usize].card.addr);
        let vitals: Vec<_> = entries.iter().map(|e| e.vitals).collect();
        let mut ring: Vec<_> = vitals.iter().zip(0..).map(|(v, s)| (v.place, s)).collect();
        ring.sort_unstable();
        let names: BTreeSet<&str> = entries.iter().map(|e| e.card.name.as_str()).collect();
        let distinct = names.len() == entries.len();
        Self { entries, vitals, index, by_addr, ring, distinct }
    }

    /// How many they are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True when it holds nobody.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    fn find(&self, identity: &Identity) -> Option<u32> {
        let mut at = first_place(identity, self.index.len().max(1));
        loop {
            let slot = *self.index.get(at)?;
            if self.entries.get(slot as usize)?.card.identity == *identity {
                return Some(slot);
            }
            at = (at + 1) % self.index.len();
        }
    }

    fn at(&self, addr: Addr) -> Option<u32> {
        let found = self.by_addr.binary_search_by(|&s| self.entries[s as usize].card.addr.cmp(&addr));
        found.ok().map(|i| self.by_addr[i])
    }
}

/// Everybody a member knows of, or knew until lately.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Roster {
    shared: Arc<Frozen>,
    /// Nothing, in most members of a large simulated run: then a copy is cheap.
    own: Option<Box<Own>>,
    /// Entries it may hold, the shared ones included.
    bound: u32,
}

/// What one member alone has met.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Own {
    /// Slots behind the shared ones. An empty one waits to be used again.
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    by_identity: BTreeMap<Identity, u32>,
    ring: Vec<(u64, u32)>,
    /// Shared members whose card has changed.
    changed: BTreeMap<u32, Entry>,
}

impl Roster {
    /// A roster over a shared one (an empty one in a daemon), with room for `bound` members in all.
    #[must_use]
    pub fn new(shared: Arc<Frozen>, bound: usize) -> Self {
        Self { shared, own: None, bound: u32::try_from(bound).unwrap_or(u32::MAX) }
    }

    /// The slot of an identity.
    #[must_use]
    pub fn find(&self, identity: &Identity) -> Option<Slot> {
        let own = || self.own.as_ref()?.by_identity.get(identity).copied();
        self.shared.find(identity).or_else(own).map(Slot)
    }

    /// The slot of an identity, known or new; `None` when the roster is full.
    pub fn enter(&mut self, card: &Card, incarnation: u64) -> Option<Slot> {
        if let Some(slot) = self.find(&card.identity) {
            return Some(slot);
        }
        let behind = self.shared.len() as u32;
        let entry = Entry::new(card.clone(), incarnation);
        let full = self.len() >= self.bound as usize;
        let own = self.own.get_or_insert_default();
        let slot = match own.free.pop() {
            Some(slot) => slot,
            None if full => return None,
            None => {
                own.entries.push(None);
                behind + own.entries.len() as u32 - 1
            }
        };
        let at = (entry.vitals.place, slot);
        let to = own.ring.partition_point(|&e| e < at);
        own.ring.insert(to, at);
        own.by_identity.insert(card.identity, slot);
        own.entries[(slot - behind) as usize] = Some(entry);
        Some(Slot(slot))
    }

    /// The member's name or address changed.
    pub fn change(&mut self, slot: Slot, card: &Card) {
        let Some(entry) = self.entry(slot).filter(|e| e.card != *card && e.card.identity == card.identity) else {
            return;
        };
        let entry = Entry { card: card.clone(), vitals: Vitals { length: length(card), ..entry.vitals } };
        let own = self.own.get_or_insert_default();
        match slot.at().checked_sub(self.shared.len()) {
            Some(at) => own.entries[at] = Some(entry),
            None => _ = own.changed.insert(slot.0, entry),
        }
    }

    /// Nobody refers to this slot any more: it may become another's. Shared slots stay.
    pub fn remove(&mut self, slot: Slot) {
        let (Some(at), Some(own)) = (slot.at().checked_sub(self.shared.len()), &mut self.own) else { return };
        if let Some(entry) = own.entries.get_mut(at).and_then(Option::take) {
            own.by_identity.remove(&entry.card.identity);
            own.ring.retain(|&(_, s)| s != slot.0);
            own.free.push(slot.0);
        }
    }

    fn entry(&self, slot: Slot) -> Option<&Entry> {
        match (slot.at().checked_sub(self.shared.len()), &self.own) {
            (Some(at), own) => own.as_ref()?.entries.get(at)?.as_ref(),
            (None, None) => self.shared.entries.get(slot.at()),
            (None, Some(own)) => own.changed.get(&slot.0).or_else(|| self.shared.entries.get(slot.at())),
        }
    }

    /// Who is behind a number.
    #[must_use]
    pub fn card(&self, slot: Slot) -> Option<&Card> {
        self.entry(slot).map(|e| &e.card)
    }

    /// A member that listens there.
    #[must_use]
    pub fn at(&self, addr: Addr) -> Option<Slot> {
        let here = |&slot: &Slot| self.card(slot).is_some_and(|c| c.addr == addr);
        let shared = self.shared.at(addr).map(Slot).filter(here);
        shared.or_else(|| {
            let own = self.own.as_ref()?;
            let behind = self.shared.len() as u32;
            let moved = own.changed.keys().copied();
            moved.chain(behind..behind + own.entries.len() as u32).map(Slot).find(here)
        })
    }

    /// What tables ask for; zeros when the slot is empty.
    #[inline]
    #[must_use]
    pub fn vitals(&self, slot: Slot) -> Vitals {
        match &self.own {
            None => self.shared.vitals.get(slot.at()).copied().unwrap_or_default(),
            Some(_) => self.entry(slot).map_or_else(Vitals::default, |e| e.vitals),
        }
    }

    /// The incarnation in which a member was first met; zero when the slot is empty.
    #[must_use]
    pub fn incarnation(&self, slot: Slot) -> u64 {
        self.vitals(slot).incarnation
    }

    /// Slots in use and waiting: no slot is as high.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.len() + self.own.as_ref().map_or(0, |o| o.entries.len())
    }

    /// True when it holds nobody.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The part that all members of a simulated zone share, when this one has nothing but that: then slots mean the
    /// same to both sides of a message.
    #[must_use]
    pub fn shared(&self) -> Option<&Arc<Frozen>> {
        self.own.is_none().then_some(&self.shared)
    }

    /// True when nobody can have the name of another: all are of the shared part, where names differ.
    #[must_use]
    pub fn names_are_distinct(&self) -> bool {
        self.own.is_none() && self.shared.distinct
    }

    /// The place of a member on the ring.
    #[must_use]
    pub fn place(&self, slot: Slot) -> u64 {
        self.vitals(slot).place
    }

    fn own_ring(&self) -> &[(u64, u32)] {
        self.own.as_ref().map_or(&[], |o| &o.ring)
    }

    /// Everybody in the order of the ring, from its lowest place on.
    pub fn in_order(&self) -> impl Iterator<Item = Slot> {
        let (shared, own) = (self.shared.ring.iter().copied(), self.own_ring().iter().copied());
        merge(shared, own, |&e| e).map(|e| Slot(e.1))
    }

    /// ZN-4: everybody in the order of the ring, beginning behind `slot` and without it.
    pub fn behind(&self, slot: Slot) -> impl Iterator<Item = Slot> {
        let from = (self.place(slot), slot.0);
        let (shared, own) = (around(&self.shared.ring, from), around(self.own_ring(), from));
        let distance = move |e: &(u64, u32)| (e.0.wrapping_sub(from.0), e.1.wrapping_sub(from.1));
        merge(shared, own, distance).map(|e| Slot(e.1)).filter(move |&s| s != slot)
    }

    /// As [`Roster::behind`], the other way round.
    pub fn before(&self, slot: Slot) -> impl Iterator<Item = Slot> {
        let from = (self.place(slot), slot.0);
        let (shared, own) = (around(&self.shared.ring, from).rev(), around(self.own_ring(), from).rev());
        let distance = move |e: &(u64, u32)| (from.0.wrapping_sub(e.0), from.1.wrapping_sub(e.1));
        merge(shared, own, distance).map(|e| Slot(e.1)).filter(move |&s| s != slot)
    }
}

/// A sorted ring from a place on, once around.
fn around(ring: &[(u64, u32)], from: (u64, u32)) -> impl DoubleEndedIterator<Item = (u64, u32)> {
    let (before, behind) = ring.split_at(ring.partition_point(|&e| e < from));
    behind.iter().chain(before).copied()
}

/// Two walks around the ring as one, by distance.
fn merge<T: Copy, D: Ord>(
    one: impl Iterator<Item = T>,
    other: impl Iterator<Item = T>,
    distance: impl Fn(&T) -> D,
) -> impl Iterator<Item = T> {
    let (mut one, mut other) = (one.peekable(), other.peekable());
    std::iter::from_fn(move || match (one.peek(), other.peek()) {
        (Some(a), Some(b)) if distance(a) <= distance(b) => one.next(),
        (Some(_), None) => one.next(),
        _ => other.next(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::Name;
    use super::*;

    fn card(n: u8) -> Card {
        Card { identity: Identity([n; 32]), addr: Addr::Local(n.into()), name: Name::new(&format!("n{n}")).unwrap() }
    }

    /// Members 0 to 9 shared, 10 to 19 met later.
    fn roster() -> Roster {
        let mut roster = Roster::new(Arc::new(Frozen::new((0..10).map(|n| (card(n), 1)))), 24);
        (10..20).for_each(|n| assert_eq!(roster.enter(&card(n), 2), Some(Slot(n.into()))));
        roster
    }

    #[test]
    fn a_member_keeps_its_slot() {
        let mut roster = roster();
        for n in 0..20 {
            assert_eq!(roster.enter(&card(n), 7), Some(Slot(n.into())));
            assert_eq!(roster.find(&card(n).identity), Some(Slot(n.into())));
            assert_eq!(roster.card(Slot(n.into())), Some(&card(n)));
            assert_eq!(roster.incarnation(Slot(n.into())), if n < 10 { 1 } else { 2 });
        }
        assert_eq!((roster.find(&card(20).identity), roster.shared()), (None, None));
    }

    /// ZN-4: the ring is by SHA-1 of the identity, whoever holds the entry.
    #[test]
    fn the_ring_visits_everybody_in_order() {
        let roster = roster();
        for start in 0..20 {
            let ahead: Vec<_> = roster.behind(Slot(start)).collect();
            let mut back: Vec<_> = roster.before(Slot(start)).collect();
            back.reverse();
            assert_eq!((ahead.len(), &ahead), (19, &back));
            let places: Vec<_> =
                ahead.iter().map(|&s| roster.place(s).wrapping_sub(roster.place(Slot(start)))).collect();
            assert!(places.is_sorted(), "{places:?}");
        }
    }

    #[test]
    fn slots_are_used_again_and_the_bound_holds() {
        let mut roster = roster();
        (20..24).for_each(|n| assert!(roster.enter(&card(n), 1).is_some()));
        assert_eq!(roster.enter(&card(24), 1), None);
        roster.remove(Slot(15));
        roster.remove(Slot(3));
        assert_eq!((roster.find(&card(15).identity), roster.card(Slot(15))), (None, None));
        assert_eq!(roster.card(Slot(3)), Some(&card(3)), "shared slots stay");
        assert_eq!(roster.enter(&card(24), 1), Some(Slot(15)));
        assert_eq!(roster.behind(Slot(0)).count(), 23);
    }

    #[test]
    fn a_changed_card_is_this_members_own_business() {
        let (mut roster, other) = (roster(), roster());
        for n in [3, 13] {
            let moved = Card { addr: Addr::Local(99), ..card(n) };
            roster.change(Slot(n.into()), &moved);
            assert_eq!(roster.card(Slot(n.into())), Some(&moved));
            assert_eq!(other.card(Slot(n.into())), Some(&card(n)));
            assert_eq!(roster.at(Addr::Local(n.into())), None);
            assert_eq!(other.at(Addr::Local(n.into())), Some(Slot(n.into())));
        }
        assert_eq!(roster.at(Addr::Local(99)), Some(Slot(3)));
        assert_eq!(roster.at(Addr::Local(4)), Some(Slot(4)));
        assert_eq!(roster.at(Addr::Local(14)), Some(Slot(14)));
    }
}
