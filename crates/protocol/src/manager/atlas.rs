//! The atlas: which nodes there are, in which zone, and which word about a node is the newest.
//!
//! CM-1, 004 §2; 002 §2 has the zones. A zone sees its own members only; the manager reaches over all of them. So each zone's word about
//! its members becomes a *record*, which can be carried anywhere, twice or in any order: of two records of one node the one of the later
//! age counts, everywhere the same. An age is the version in which the zone saw the member, and of the same version its end is the later
//! word.
//!
//! ⚠ Two parts of a zone that is cut say of each other that they are gone. Whoever lives in one of them says so again, in the next *edition* of
//! the same version: as with the census (`zone/hierarchy/guarded.rs`) everybody counts whom one part knows.
//!
//! Two atlases compare themselves by sums over the nodes that are there: one for each zone, then one for each of [`PARTS`] parts of a zone.
//! Those that are gone are not in the sums, or they would have to be remembered for ever: a record of them is the answer to one that says
//! otherwise.

use super::group::Digest;
use super::state::{NODES_MAX, NodeInfo};
use super::words::{Key, encode};
use phalanx_core::{Duration, Instant};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// Parts of a zone that are compared by themselves.
pub const PARTS: usize = 16;
/// Zones in an atlas; nodes of others are not taken.
pub const ZONES_MAX: usize = 256;
/// The longest name of a node or a zone; whoever has a longer one is not taken.
const NAME_MAX: usize = 255;
/// Nodes that are gone and remembered, and for how long: all have heard by then.
const GONE_MAX: usize = 16 * 1024;
const GONE_FOR: Duration = Duration::from_secs(600);

/// The newest word about a node.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The node, as its zone saw it.
    pub node: NodeInfo,
    /// How often this start of it had to speak up for itself.
    pub minor: u32,
    /// How often this was said against others of the same version.
    pub edition: u32,
    /// It is there; otherwise it is gone.
    pub there: bool,
}

impl Record {
    /// Which word is the later one: of one version its end.
    fn age(&self) -> (u64, u32, u32, bool) {
        (self.node.incarnation, self.minor, self.edition, !self.there)
    }

    fn sum(&self) -> u64 {
        Digest::of(&encode(self)).short()
    }

    fn is_newer(&self, other: &Self) -> bool {
        let order = self.age().cmp(&other.age());
        // Two of one age are the same, or somebody is wrong: then all choose the same one.
        order.then_with(|| if self == other { std::cmp::Ordering::Equal } else { self.sum().cmp(&other.sum()) }).is_gt()
    }
}

/// Which part of its zone a node is in.
fn part(key: &Key) -> usize {
    usize::from(key.0[0]) % PARTS
}

/// A zone in an atlas.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Sums {
    parts: [u64; PARTS],
    there: usize,
}

/// What became of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Taken {
    /// It was known.
    Known,
    /// It says something new of the node: where it is, what it takes, or that it is gone.
    News,
    /// It is newer, and says the same.
    Newer,
    /// We know better.
    Older,
    /// There is no room, or it is none that could be.
    Crowded,
}

/// What is known of all zones.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Atlas {
    records: BTreeMap<Key, Record>,
    zones: BTreeMap<String, Sums>,
    gone: VecDeque<(Instant, Key)>,
}

impl Atlas {
    /// A word about a node, ours or of others.
    pub fn take(&mut self, now: Instant, record: Record) -> Taken {
        let key = record.node.key;
        let old = self.records.get(&key);
        if old == Some(&record) {
            return Taken::Known;
        }
        if old.is_some_and(|old| !record.is_newer(old)) {
            return Taken::Older;
        }
        let is_odd = |name: &str| name.is_empty() || name.len() > NAME_MAX;
        let is_full = old.is_none() && self.records.len() >= NODES_MAX;
        let is_far = self.zones.len() >= ZONES_MAX && !self.zones.contains_key(&record.node.zone);
        if is_full || is_far || is_odd(&record.node.zone) || is_odd(&record.node.name) {
            return Taken::Crowded;
        }
        let taken = match old {
            Some(old) if old.there == record.there && old.node == record.node => Taken::Newer,
            // Who was not known is not missed.
            None if !record.there => Taken::Newer,
            _ => Taken::News,
        };
        self.unlist(&key);
        if record.there {
            let sums = self.zones.entry(record.node.zone.clone()).or_default();
            sums.parts[part(&key)] ^= record.sum();
            sums.there += 1;
        } else {
            self.gone.push_back((now, key));
        }
        self.records.insert(key, record);
        self.forget(now);
        taken
    }

    fn unlist(&mut self, key: &Key) {
        let Some(old) = self.records.get(key).filter(|r| r.there) else { return };
        if let Some(sums) = self.zones.get_mut(&old.node.zone) {
            sums.parts[part(key)] ^= old.sum();
            sums.there -= 1;
            if sums.there == 0 {
                self.zones.remove(&old.node.zone);
            }
        }
    }

    fn forget(&mut self, now: Instant) {
        while let Some(&(at, key)) = self.gone.front()
            && (self.gone.len() > GONE_MAX || now.since(at) >= GONE_FOR)
        {
            self.gone.pop_front();
            // It may be back.
            if self.records.get(&key).is_some_and(|r| !r.there) {
                self.records.remove(&key);
            }
        }
    }

    /// The newest word about a node.
    #[must_use]
    pub fn record(&self, key: &Key) -> Option<&Record> {
        self.records.get(key)
    }

    /// Zones with somebody in them, by name, and the sum of each.
    pub fn zones(&self) -> impl Iterator<Item = (&str, u64)> {
        self.zones.iter().map(|(zone, sums)| (zone.as_str(), whole(&sums.parts)))
    }

    /// The sum of a zone; 0 of one in which nobody is.
    #[must_use]
    pub fn sum(&self, zone: &str) -> u64 {
        self.zones.get(zone).map_or(0, |sums| whole(&sums.parts))
    }

    /// The sums of its parts.
    #[must_use]
    pub fn parts(&self, zone: &str) -> [u64; PARTS] {
        self.zones.get(zone).map_or([0; PARTS], |sums| sums.parts)
    }

    /// Who is there in these parts of a zone, a bit for each part.
    pub fn nodes_in<'a>(&'a self, zone: &'a str, parts: u16) -> impl Iterator<Item = &'a Record> {
        let there = self.records.values().filter(|r| r.there);
        there.filter(move |r| r.node.zone == zone && parts & 1 << part(&r.node.key) != 0)
    }

    /// Who is there in a zone.
    pub fn nodes_of<'a>(&'a self, zone: &'a str) -> impl Iterator<Item = &'a Record> {
        self.nodes_in(zone, u16::MAX)
    }
}

fn whole(parts: &[u64; PARTS]) -> u64 {
    // Two parts with one sum must not cancel each other.
    parts.iter().fold(0, |sum, part| phalanx_core::rng::mix(sum ^ part))
}

#[cfg(test)]
mod tests {
    use super::super::words::At;
    use super::*;

    fn record(n: u8, zone: &str, (incarnation, minor, edition): (u64, u32, u32), there: bool) -> Record {
        let node = NodeInfo {
            key: Key([n; 32]),
            name: format!("n{n}"),
            at: At::Local(n.into()),
            zone: zone.into(),
            incarnation,
            slots: 1,
        };
        Record { node, minor, edition, there }
    }

    /// Whatever comes first: the same records give the same atlas.
    #[test]
    fn the_latest_word_counts_in_any_order() {
        let words = [
            record(1, "a", (1, 0, 0), true),
            record(1, "a", (1, 0, 0), false),
            record(1, "a", (1, 1, 0), true),
            record(1, "a", (1, 1, 0), false),
            record(1, "a", (1, 1, 1), true),
            record(1, "b", (1, 2, 0), true),
        ];
        let now = Instant::ZERO;
        for turn in 0..words.len() {
            let mut atlas = Atlas::default();
            let mut turned = words.to_vec();
            turned.rotate_left(turn);
            for word in turned {
                atlas.take(now, word);
            }
            assert_eq!(atlas.record(&Key([1; 32])), Some(&words[5]), "turn {turn}");
            assert_eq!(atlas.zones().map(|z| z.0).collect::<Vec<_>>(), ["b"]);
        }
    }

    #[test]
    fn sums_are_of_those_who_are_there() {
        let (mut one, mut other, now) = (Atlas::default(), Atlas::default(), Instant::ZERO);
        assert_eq!(one.take(now, record(1, "a", (1, 0, 0), true)), Taken::News);
        assert_eq!(one.take(now, record(2, "a", (1, 0, 0), true)), Taken::News);
        assert_eq!(one.take(now, record(2, "a", (1, 0, 0), false)), Taken::News);
        assert_eq!(one.take(now, record(2, "a", (1, 0, 0), true)), Taken::Older);
        assert_eq!(other.take(now, record(1, "a", (1, 0, 0), true)), Taken::News);
        assert_eq!(other.take(now, record(1, "a", (1, 0, 0), true)), Taken::Known);
        assert_eq!((one.sum("a"), one.parts("a")), (other.sum("a"), other.parts("a")));
        assert_ne!(one.sum("a"), one.sum("b"));
        one.take(now, record(1, "a", (1, 0, 0), false));
        assert_eq!((one.sum("a"), one.zones().count()), (0, 0));
    }

    /// Who is gone is forgotten after a while; who came back is not.
    #[test]
    fn the_gone_are_forgotten() {
        let (mut atlas, now) = (Atlas::default(), Instant::ZERO);
        for n in 1..=2 {
            atlas.take(now, record(n, "a", (1, 0, 0), true));
            atlas.take(now, record(n, "a", (1, 0, 0), false));
        }
        atlas.take(now, record(1, "a", (1, 1, 0), true));
        atlas.take(now + GONE_FOR, record(3, "a", (1, 0, 0), true));
        assert!(atlas.record(&Key([1; 32])).is_some() && atlas.record(&Key([2; 32])).is_none());
    }

    #[test]
    fn zones_have_a_bound() {
        let mut atlas = Atlas::default();
        for n in 0..=ZONES_MAX {
            let mut record = record(1, &format!("z{n}"), (1, 0, 0), true);
            record.node.key.0[..8].copy_from_slice(&n.to_le_bytes());
            let taken = atlas.take(Instant::ZERO, record);
            assert_eq!(taken, if n < ZONES_MAX { Taken::News } else { Taken::Crowded });
        }
    }
}
