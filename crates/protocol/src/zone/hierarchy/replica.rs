//! A zone as its delegate tells it: all members, then what changes.

use super::Upward;
use crate::member::{Card, Frozen, Roster, Version};
use crate::zone::letter::{Alive, Parcel};
use crate::zone::view::{Standing, View};
use phalanx_core::Identity;
use phalanx_wire::zone::flag;
use std::sync::Arc;

/// Members of a zone that a supervisor keeps; more are not counted.
const MEMBERS: usize = 65_536;

/// Who is in another zone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Replica {
    roster: Roster,
    view: View,
}

impl Default for Replica {
    fn default() -> Self {
        Self { roster: Roster::new(Arc::new(Frozen::default()), MEMBERS), view: View::default() }
    }
}

impl Replica {
    pub(super) fn of(members: &[(Card, Version)]) -> Self {
        let mut replica = Self::default();
        for (card, version) in members {
            replica.put(card, *version);
        }
        replica
    }

    fn put(&mut self, card: &Card, version: Version) {
        if let Some(slot) = self.roster.enter(card, version.incarnation) {
            self.view.set(slot, Standing::In(version), &self.roster);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.view.len()
    }

    /// A hash of who is there, and in which version.
    pub(super) fn digest(&self) -> u64 {
        self.view.full_digest()
    }

    pub(super) fn contains(&self, identity: &Identity) -> bool {
        self.roster.find(identity).is_some_and(|slot| self.view.contains(slot))
    }

    /// A member's card and version.
    pub(super) fn entry(&self, identity: &Identity) -> Option<(Card, Version)> {
        let slot = self.roster.find(identity)?;
        Some((self.roster.card(slot)?.clone(), self.view.of(slot, &self.roster)?))
    }

    /// Takes a member out. False when it was not there.
    pub(super) fn remove(&mut self, identity: &Identity) -> bool {
        let Some((slot, v)) = self.roster.find(identity).and_then(|s| Some((s, self.view.of(s, &self.roster)?))) else {
            return false;
        };
        self.view.set(slot, Standing::Gone(v), &self.roster);
        true
    }

    /// Takes a report.
    pub(super) fn apply(&mut self, report: Upward<'_>) {
        if report.flags() & flag::BASE != 0 {
            *self = Self::default();
        }
        match report {
            Upward::Parcel(parcel) => self.apply_parcel(parcel),
            Upward::Letter(letter) => {
                for left in letter.left() {
                    if let Some(slot) = self.roster.find(&left.identity) {
                        let version = Version { incarnation: left.incarnation, minor: left.minor };
                        self.view.set(slot, Standing::Gone(version), &self.roster);
                    }
                }
                report.alive().iter().for_each(|(card, version)| self.put(card, *version));
            }
        }
    }

    fn apply_parcel(&mut self, parcel: &Parcel) {
        if matches!(parcel.alive, Alive::All) {
            // By reference: the delegate's own pages.
            (self.roster, self.view) = (parcel.roster.clone(), parcel.view.clone());
            return;
        }
        let theirs = |s| parcel.roster.card(s);
        for &(p, version, _) in &parcel.left {
            if let Some(slot) = theirs(p).and_then(|c| self.roster.find(&c.identity)) {
                self.view.set(slot, Standing::Gone(version), &self.roster);
            }
        }
        parcel.members().for_each(|(card, version)| self.put(&card, version));
    }

    pub(super) fn members(&self) -> impl Iterator<Item = (Card, Version)> {
        self.view.members(&self.roster).filter_map(|(slot, version)| Some((self.roster.card(slot)?.clone(), version)))
    }

    /// The first members on the ring.
    pub(super) fn first(&self, count: usize) -> Vec<(Card, Version)> {
        let there = self.roster.in_order().filter_map(|slot| Some((slot, self.view.of(slot, &self.roster)?)));
        there.take(count).filter_map(|(slot, v)| Some((self.roster.card(slot)?.clone(), v))).collect()
    }

    /// A letter with all members, as ours.
    pub(super) fn parts(&self) -> (&Roster, &View) {
        (&self.roster, &self.view)
    }
}
