//! Elsewhere: those who are known to be in another zone. Some moved away, others were left behind when we did (HI-1).

use crate::member::{Name, Slot};
use phalanx_core::{Duration, Fingerprint, Instant};
use std::collections::BTreeMap;

/// Who is where, and since when. Boxed, because most members know of nobody.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[allow(clippy::box_collection)] // Eight bytes instead of 24, a million times.
pub(super) struct Elsewhere(Option<Box<BTreeMap<Slot, (Name, Instant)>>>);

impl Elsewhere {
    fn iter(&self) -> impl Iterator<Item = (Slot, &Name, Instant)> {
        self.0.iter().flat_map(|e| e.iter()).map(|(&slot, (zone, since))| (slot, zone, *since))
    }

    /// The zone in which a member is.
    pub(super) fn of(&self, p: Slot) -> Option<&Name> {
        self.0.as_ref()?.get(&p).map(|e| &e.0)
    }

    /// All who are in this zone, by slot.
    pub(super) fn in_zone(&self, zone: &Name) -> impl Iterator<Item = Slot> {
        self.iter().filter(move |e| e.1 == zone).map(|e| e.0)
    }

    pub(super) fn insert(&mut self, now: Instant, p: Slot, zone: &Name) {
        self.0.get_or_insert_default().insert(p, (zone.clone(), now));
    }

    pub(super) fn remove(&mut self, p: Slot) {
        self.0.as_mut().and_then(|e| e.remove(&p));
        self.0.take_if(|e| e.is_empty());
    }

    /// Who has been there for too long to be remembered, or is over the bound.
    pub(super) fn old(&self, now: Instant, age: Duration, bound: usize) -> Vec<Slot> {
        let mut old: Vec<(Instant, Slot)> = self.iter().map(|e| (e.2, e.0)).collect();
        old.sort_unstable();
        let over = old.len().saturating_sub(bound);
        let forgotten = old.into_iter().enumerate().filter(|&(i, (since, _))| i < over || since + age <= now);
        forgotten.map(|(_, (_, slot))| slot).collect()
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        for (slot, zone, since) in self.iter() {
            print.add(&(slot, zone.as_str()));
            print.instant(since);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_are_forgotten_first() {
        let (a, b) = (Name::new("a").unwrap(), Name::new("b").unwrap());
        let mut elsewhere = Elsewhere::default();
        for n in 0..4 {
            elsewhere.insert(Instant(n), Slot(9 - n as u32), if n < 3 { &a } else { &b });
        }
        assert_eq!(elsewhere.in_zone(&a).collect::<Vec<_>>(), [Slot(7), Slot(8), Slot(9)]);
        assert_eq!(elsewhere.old(Instant(5), Duration(10), 4), []);
        assert_eq!(elsewhere.old(Instant(11), Duration(10), 4), [Slot(9), Slot(8)]);
        assert_eq!(elsewhere.old(Instant(5), Duration(10), 1), [Slot(9), Slot(8), Slot(7)]);
        (0..4).for_each(|n| elsewhere.remove(Slot(9 - n)));
        assert_eq!(elsewhere, Elsewhere::default());
    }
}
