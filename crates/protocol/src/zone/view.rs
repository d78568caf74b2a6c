//! The view: two bytes for each member, in pages that equal views share.
//!
//! ZN-1, ZN-2: the map ID → version, and the history of those who were removed, in one table; so H ∩ View = ∅ holds by
//! construction. Most members are in the incarnation in which they were first met and have spoken up for themselves a
//! few times: their minor fits in 15 bits, and one bit says that they are gone. All others are in a table of exceptions.
//!
//! Pages are shared until somebody writes: a snapshot of 2048 members is eight references, and a member that takes over
//! a neighbour's whole page holds it in common with it. A million simulated views of 2048 fit into memory so.

use super::delta::Mask;
use crate::member::{Roster, Slot, Version, Vitals};
use phalanx_core::rng::mix;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Members of a page.
pub(super) const PAGE: usize = 256;
/// Members that are compared at once.
const CHUNK: usize = 16;
/// The bit that says: removed.
const GONE: u16 = 0x8000;
/// In place of a minor: look among the exceptions.
const ODD: u16 = 0x7fff;

/// What a view says of a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// Nothing.
    Unknown,
    /// It is in the view, in this version.
    In(Version),
    /// It was removed, in this version.
    Gone(Version),
}

/// Minors of the members of a page; zero when nothing is known of one.
pub(super) type Page = [u16; PAGE];

/// Who is there, and who was until lately.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct View {
    pages: Vec<Arc<Page>>,
    /// Versions that do not fit; boxed, because most views have none.
    #[allow(clippy::box_collection)] // Eight bytes instead of 24, a million times.
    odd: Option<Box<BTreeMap<Slot, Version>>>,
    members: u32,
    /// Bytes that a list of all members has on the wire.
    bytes: u32,
    /// A hash of who is in the view, and in which version; of the order in which that came about it says nothing.
    digest: u64,
}

impl View {
    /// Bytes that a list of all members has on the wire.
    pub(super) fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// A member's card has changed, and with it the room that it takes in a letter.
    pub(super) fn changed(&mut self, slot: Slot, before: u32, after: u32) {
        if self.contains(slot) {
            self.bytes = self.bytes - before + after;
        }
    }

    /// Equal views have equal digests, and others hardly ever.
    pub(super) fn digest(&self) -> u16 {
        (self.digest >> 48) as u16
    }

    /// The same, in full.
    pub(super) fn full_digest(&self) -> u64 {
        self.digest
    }

    /// Members in the view.
    pub(super) fn len(&self) -> usize {
        self.members as usize
    }

    fn cell(&self, slot: Slot) -> u16 {
        self.pages.get(slot.at() / PAGE).map_or(0, |p| p[slot.at() % PAGE])
    }

    fn version(&self, slot: Slot, cell: u16, roster: &Roster) -> Version {
        match cell & !GONE {
            ODD => self.odd.as_ref().and_then(|o| o.get(&slot).copied()).unwrap_or_default(),
            minor => Version { incarnation: roster.incarnation(slot), minor: minor.into() },
        }
    }

    /// What is known of a member.
    pub(super) fn standing(&self, slot: Slot, roster: &Roster) -> Standing {
        match self.cell(slot) {
            0 => Standing::Unknown,
            cell if cell & GONE == 0 => Standing::In(self.version(slot, cell, roster)),
            cell => Standing::Gone(self.version(slot, cell, roster)),
        }
    }

    /// True when the member is in the view.
    pub(super) fn contains(&self, slot: Slot) -> bool {
        is_in(self.cell(slot))
    }

    /// The version of a member that is in the view.
    pub(super) fn of(&self, slot: Slot, roster: &Roster) -> Option<Version> {
        match self.standing(slot, roster) {
            Standing::In(version) => Some(version),
            Standing::Gone(_) | Standing::Unknown => None,
        }
    }

    /// Writes what is known of a member.
    pub(super) fn set(&mut self, slot: Slot, standing: Standing, roster: &Roster) {
        let (before, vitals) = (self.cell(slot), roster.vitals(slot));
        if is_in(before) {
            self.digest ^= trait_of(&vitals, self.version(slot, before, roster));
        }
        if let Standing::In(version) = standing {
            self.digest ^= trait_of(&vitals, version);
        }
        let (version, gone) = match standing {
            Standing::Unknown => (None, 0),
            Standing::In(version) => (Some(version), 0),
            Standing::Gone(version) => (Some(version), GONE),
        };
        let small = |v: &Version| v.incarnation == vitals.incarnation && (1..u32::from(ODD)).contains(&v.minor);
        let cell = version.map_or(0, |v| gone | if small(&v) { v.minor as u16 } else { ODD });
        if cell & !GONE == ODD {
            self.odd.get_or_insert_default().insert(slot, version.unwrap_or_default());
        } else if before & !GONE == ODD
            && let Some(odd) = &mut self.odd
        {
            odd.remove(&slot);
            if odd.is_empty() {
                self.odd = None;
            }
        }
        if cell != before {
            if is_in(cell) != is_in(before) {
                if is_in(cell) {
                    (self.members, self.bytes) = (self.members + 1, self.bytes + vitals.length);
                } else {
                    (self.members, self.bytes) = (self.members - 1, self.bytes.saturating_sub(vitals.length));
                }
            }
            self.page_mut(slot.at() / PAGE)[slot.at() % PAGE] = cell;
        }
    }

    fn page_mut(&mut self, page: usize) -> &mut Page {
        while self.pages.len() <= page {
            self.pages.push(Arc::new([0; PAGE]));
        }
        Arc::make_mut(&mut self.pages[page])
    }

    /// The first slot, of `page` on, that is in the view; then the next ones. By slot.
    pub(super) fn slots(&self) -> impl Iterator<Item = Slot> {
        self.pages.iter().enumerate().flat_map(|(p, page)| {
            let cells = page.iter().enumerate();
            cells.filter(|&(_, &cell)| is_in(cell)).map(move |(i, _)| Slot((p * PAGE + i) as u32))
        })
    }

    /// All members in the view with their versions, by slot.
    pub(super) fn members<'a>(&'a self, roster: &'a Roster) -> impl Iterator<Item = (Slot, Version)> + 'a {
        self.slots().map(|slot| (slot, self.version(slot, self.cell(slot), roster)))
    }

    /// Takes a member that another view over the same shared roster has, when nothing was known of it here and its version
    /// is nothing odd. That is nearly every word of a boot. Otherwise nothing is done.
    #[inline]
    pub(super) fn join(&mut self, slot: Slot, other: &Self, roster: &Roster) -> Option<Version> {
        let cell = other.cell(slot);
        if !is_in(cell) || cell == ODD || self.cell(slot) != 0 {
            return None;
        }
        let vitals = roster.vitals(slot);
        let version = Version { incarnation: vitals.incarnation, minor: cell.into() };
        self.digest ^= trait_of(&vitals, version);
        (self.members, self.bytes) = (self.members + 1, self.bytes + vitals.length);
        self.page_mut(slot.at() / PAGE)[slot.at() % PAGE] = cell;
        Some(version)
    }

    /// Slots of another view that is over the same shared roster, in which it says something else than this one: that a
    /// member is there, in a version that may be newer. Only those of `mask`, when there is one. Equal pages are passed over
    /// as a whole.
    pub(super) fn differing(&self, other: &Self, page: usize, mask: Option<&Mask>, found: &mut Vec<Slot>) {
        let Some(theirs) = other.pages.get(page) else { return };
        let ours = self.pages.get(page);
        if ours.is_some_and(|ours| Arc::ptr_eq(ours, theirs)) && self.odd.is_none() && other.odd.is_none() {
            return;
        }
        let empty = &[0; PAGE];
        let ours = ours.map_or(empty, |p| &**p);
        for (i, (ours, theirs)) in ours.as_chunks::<CHUNK>().0.iter().zip(theirs.as_chunks::<CHUNK>().0).enumerate() {
            let first = page * PAGE + i * CHUNK;
            let named = mask.map_or(u16::MAX, |m| m.chunk(first));
            // Most chunks are equal: one comparison of 32 bytes.
            if named == 0 || (ours == theirs && !theirs.contains(&ODD)) {
                continue;
            }
            for (j, (&a, &b)) in ours.iter().zip(theirs).enumerate() {
                if is_in(b) && (a != b || b == ODD) && named >> j & 1 == 1 {
                    found.push(Slot((first + j) as u32));
                }
            }
        }
    }

    /// Takes over another view's page, whose cells are all ours already: from now on both share it.
    pub(super) fn share(&mut self, other: &Self, page: usize) {
        if let (Some(ours), Some(theirs)) = (self.pages.get_mut(page), other.pages.get(page))
            && !Arc::ptr_eq(ours, theirs)
            && ours == theirs
        {
            *ours = Arc::clone(theirs);
        }
    }

    /// Pages in use.
    pub(super) fn pages(&self) -> usize {
        self.pages.len()
    }
}

/// What a member adds to the digest of a view.
fn trait_of(vitals: &Vitals, version: Version) -> u64 {
    mix(vitals.place ^ mix(version.incarnation ^ u64::from(version.minor) << 40))
}

fn is_in(cell: u16) -> bool {
    cell != 0 && cell & GONE == 0
}

#[cfg(test)]
mod tests {
    use super::super::super::member::{Card, Frozen, Name};
    use super::*;
    use phalanx_core::{Addr, Identity};
    use proptest::prelude::*;

    fn roster(members: u32) -> Roster {
        let card = |n: u32| {
            let mut key = [0; 32];
            key[..4].copy_from_slice(&n.to_le_bytes());
            Card { identity: Identity(key), addr: Addr::Local(n), name: Name::new("x").unwrap() }
        };
        Roster::new(Arc::new(Frozen::new((0..members).map(|n| (card(n), 7)))), 4096)
    }

    fn standing() -> impl Strategy<Value = Standing> {
        let version = (prop_oneof![Just(7u64), any::<u64>()], prop_oneof![1..4u32, any::<u32>()])
            .prop_map(|(incarnation, minor)| Version { incarnation, minor });
        prop_oneof![Just(Standing::Unknown), version.clone().prop_map(Standing::In), version.prop_map(Standing::Gone),]
    }

    proptest! {
        /// ZN-1, ZN-2: whatever is written is read, in any order, at any size of version.
        #[test]
        fn a_view_is_a_map(writes in prop::collection::vec((0..700u32, standing()), 0..200)) {
            let roster = roster(700);
            let (mut view, mut model) = (View::default(), BTreeMap::new());
            for (slot, standing) in writes {
                view.set(Slot(slot), standing, &roster);
                model.insert(slot, standing);
            }
            for slot in 0..800 {
                let expected = model.get(&slot).copied().unwrap_or(Standing::Unknown);
                prop_assert_eq!(view.standing(Slot(slot), &roster), expected);
            }
            let members: Vec<_> = model.iter().filter_map(|(&slot, standing)| match standing {
                Standing::In(version) => Some((Slot(slot), *version)),
                _ => None,
            }).collect();
            let mut again = View::default();
            members.iter().rev().for_each(|&(slot, version)| again.set(slot, Standing::In(version), &roster));
            prop_assert_eq!(view.digest, again.digest);
            prop_assert_eq!(view.len(), members.len());
            prop_assert_eq!(view.members(&roster).collect::<Vec<_>>(), members);
        }

        /// What one view has and another has not, or not so, is found; nothing else.
        #[test]
        fn differences_are_found(
            ours in prop::collection::vec((0..600u32, standing()), 0..100), theirs in prop::collection::vec((0..600u32, standing()), 0..100),
        ) {
            let roster = roster(600);
            let (mut a, mut b) = (View::default(), View::default());
            ours.iter().for_each(|&(s, to)| a.set(Slot(s), to, &roster));
            theirs.iter().for_each(|&(s, to)| b.set(Slot(s), to, &roster));
            let mut found = Vec::new();
            (0..b.pages()).for_each(|p| a.differing(&b, p, None, &mut found));
            for (slot, version) in b.members(&roster) {
                let same = a.standing(slot, &roster) == Standing::In(version);
                prop_assert!(same || found.contains(&slot), "{:?}", slot);
            }
            prop_assert!(found.iter().all(|&s| b.contains(s)));
        }
    }

    #[test]
    fn equal_pages_are_shared_until_one_is_written() {
        let roster = roster(512);
        let mut a = View::default();
        (0..512).for_each(|n| a.set(Slot(n), Standing::In(Version::first(7)), &roster));
        let mut b = a.clone();
        b.set(Slot(300), Standing::In(Version { incarnation: 7, minor: 2 }), &roster);
        assert!(Arc::ptr_eq(&a.pages[0], &b.pages[0]) && !Arc::ptr_eq(&a.pages[1], &b.pages[1]));
        a.set(Slot(300), Standing::In(Version { incarnation: 7, minor: 2 }), &roster);
        a.share(&b, 1);
        assert!(Arc::ptr_eq(&a.pages[1], &b.pages[1]));
    }
}
