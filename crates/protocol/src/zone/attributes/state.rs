//! What a node holds of attributes, and how it asks: one neighbour, or all.

use super::map::Map;
use super::notes::Notes;
use super::terms::{Config, Counters, Dropped, VERSION_MAX};
use super::wants::Wants;
use super::{Names, Out, Output};
use crate::member::Slot;
use crate::zone::pace::Pace;
use phalanx_core::{Code, Fingerprint, Identity, Instant, Sorted};
use phalanx_wire::attribute::{RECORDS_MAX, Record, encode_request};
use std::collections::BTreeSet;

/// When and where a handler runs.
pub(super) struct At<'a, N> {
    pub(super) now: Instant,
    pub(super) me: Slot,
    pub(super) config: &'a Config,
    pub(super) neighbours: &'a [Slot],
    pub(super) names: &'a N,
}

impl<N> At<'_, N> {
    pub(super) fn is_neighbour(&self, who: Slot) -> bool {
        self.neighbours.binary_search(&who).is_ok()
    }
}

/// A map, and the life of its owner to which it belongs. That of our own map is the present one, whatever stands here.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Replica {
    pub(super) incarnation: u64,
    pub(super) map: Map,
}

/// What a node knows that has heard of an attribute.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct State {
    /// By owner; our own is one of them. Only maps that have something.
    pub(super) maps: Sorted<Slot, Replica>,
    /// Maps that changed since the last digest (`u > u_sent`).
    pub(super) news: BTreeSet<Slot>,
    pub(super) pace: Pace,
    pub(super) wants: Wants,
    /// What each neighbour has of members that are not in our view.
    notes: Sorted<Slot, Notes>,
    /// What we had of members that left.
    left: Notes,
    /// The number of the last request.
    number: u16,
    pub(super) counters: Counters,
}

impl State {
    pub(super) fn write(
        &mut self,
        now: Instant,
        me: Slot,
        config: &Config,
        key: &str,
        value: Option<&[u8]>,
    ) -> Result<(), Code> {
        let mut own = self.maps.remove(&me).unwrap_or_default();
        let written = own.map.write(key, value);
        if own.map.version() > 0 {
            self.maps.insert(me, own);
        }
        if written? {
            self.has_news(now, me, config);
        }
        Ok(())
    }

    pub(super) fn on_joined<N: Names>(&mut self, at: &At<'_, N>, member: Slot, out: &mut impl Out) {
        let Some((identity, incarnation)) = at.names.identity(member).zip(at.names.incarnation(member)) else { return };
        if member == at.me {
            if self.maps.contains_key(&member) {
                self.has_news(at.now, member, at.config);
            }
            return;
        }
        // After a false alarm all that our neighbours have told us is old, so any of them may have it.
        if let Some(version) = self.left.take(&identity, incarnation) {
            at.neighbours.iter().for_each(|&n| self.offered(at, member, incarnation, n, version));
        }
        let mut noted = Vec::new();
        self.notes.retain(|&neighbour, notes| {
            noted.extend(notes.take(&identity, incarnation).map(|version| (neighbour, version)));
            !notes.is_empty()
        });
        noted.into_iter().for_each(|(neighbour, version)| self.offered(at, member, incarnation, neighbour, version));
        self.ask_all(at, out);
    }

    pub(super) fn on_left<N: Names>(&mut self, at: &At<'_, N>, member: Slot) {
        if member == at.me {
            return;
        }
        let held = self.maps.remove(&member).map(|r| (r.incarnation, r.map.version()));
        let offered = self.wants.forget(member);
        self.news.remove(&member);
        if let Some((identity, claim)) = at.names.identity(member).zip(held.max(offered)) {
            let forgotten = self.left.note(identity, claim);
            self.counters.drop_many(Dropped::Crowded, forgotten);
        }
    }

    pub(super) fn on_neighbour_lost<N: Names>(&mut self, at: &At<'_, N>, neighbour: Slot, out: &mut impl Out) {
        self.notes.remove(&neighbour);
        let dry = self.wants.lost(neighbour);
        self.push(at, &dry, out);
        self.ask_all(at, out);
    }

    pub(super) fn end_patience<N: Names>(&mut self, at: &At<'_, N>, out: &mut impl Out) {
        for neighbour in self.wants.silent(at.now) {
            self.counters.silences += 1;
            let dry = self.wants.silence(neighbour);
            self.push(at, &dry, out);
            self.ask_all(at, out);
        }
    }

    /// The version up to which we have the map of this life of `owner`; zero when we have nothing.
    pub(super) fn known<N>(&self, at: &At<'_, N>, owner: Slot, incarnation: u64) -> u64 {
        let present = |r: &&Replica| owner == at.me || r.incarnation == incarnation;
        self.maps.get(&owner).filter(present).map_or(0, |r| r.map.version())
    }

    /// A neighbour has a map up to `version`.
    pub(super) fn offered<N>(&mut self, at: &At<'_, N>, owner: Slot, incarnation: u64, from: Slot, version: u64) {
        if version > self.known(at, owner, incarnation) {
            self.wants.offer(owner, incarnation, from, version);
        }
    }

    /// A neighbour has a map of a member, or of a life of it, that we do not see.
    pub(super) fn note(&mut self, from: Slot, identity: Identity, incarnation: u64, version: u64) {
        let forgotten = self.notes.or_insert(from, Default::default()).note(identity, (incarnation, version));
        self.counters.drop_many(Dropped::Crowded, forgotten);
    }

    /// Somebody has more of our own map than we ever wrote: what we write must win over it.
    pub(super) fn overtake<N>(&mut self, at: &At<'_, N>, lie: u64) {
        self.counters.drop(Dropped::Lie);
        self.maps.or_insert(at.me, Default::default()).map.overtake(lie.min(VERSION_MAX));
        self.has_news(at.now, at.me, at.config);
    }

    pub(super) fn has_news(&mut self, now: Instant, owner: Slot, config: &Config) {
        self.news.insert(owner);
        self.pace.news(now, &config.paces);
    }

    /// The digest of these maps, by identity.
    pub(super) fn records<N: Names>(&self, at: &At<'_, N>, owners: impl IntoIterator<Item = Slot>) -> Vec<Record> {
        let record = |owner| {
            let (identity, incarnation) = at.names.identity(owner).zip(at.names.incarnation(owner))?;
            Some(Record { identity, incarnation, version: self.known(at, owner, incarnation) })
        };
        let mut records: Vec<_> = owners.into_iter().filter_map(record).collect();
        records.sort_unstable();
        records
    }

    /// Line 6: asks `neighbour` for what it offers and nobody else is asked for.
    pub(super) fn ask<N: Names>(&mut self, at: &At<'_, N>, neighbour: Slot, out: &mut impl Out) {
        let number = self.number.checked_add(1).unwrap_or(1);
        let owners = self.wants.take(neighbour, number, at.now + at.config.patience, RECORDS_MAX);
        if owners.is_empty() {
            return;
        }
        self.number = number;
        let mut bytes = Vec::new();
        encode_request(&self.records(at, owners), false, number, &mut bytes);
        self.counters.requests += 1;
        out.push(Output::Send { to: neighbour, bytes: &bytes });
    }

    /// Asks everybody who has something that we want and nobody is asked for.
    pub(super) fn ask_all<N: Names>(&mut self, at: &At<'_, N>, out: &mut impl Out) {
        at.neighbours.iter().for_each(|&neighbour| self.ask(at, neighbour, out));
    }

    /// Line 22: asks all neighbours for these maps. Nobody has to answer, so nobody is waited for (line 19).
    pub(super) fn push<N: Names>(&mut self, at: &At<'_, N>, owners: &[Slot], out: &mut impl Out) {
        let mut bytes = Vec::new();
        for records in self.records(at, owners.iter().copied()).chunks(RECORDS_MAX) {
            bytes.clear();
            encode_request(records, true, 0, &mut bytes);
            for &to in at.neighbours {
                self.counters.pushes += 1;
                out.push(Output::Send { to, bytes: &bytes });
            }
        }
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        for (owner, replica) in &self.maps {
            print.add(owner).add(&replica.incarnation);
            replica.map.fingerprint(print);
        }
        print.add(&self.news).add(&self.number);
        self.pace.fingerprint(print);
        self.wants.fingerprint(print);
        self.notes.iter().for_each(|(neighbour, notes)| {
            print.add(neighbour);
            notes.fingerprint(print);
        });
        self.left.fingerprint(print);
    }
}
