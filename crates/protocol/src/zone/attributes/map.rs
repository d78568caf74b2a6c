//! One map: the owner's, or a replica of it.
//!
//! AT-1, 002 §4: each write raises the map's version by one and leaves it on the entry; a deletion is a write that
//! leaves a death certificate. A map is always a state that its owner had: pieces of it are merged whole or not at all.
//!
//! The paper keeps death certificates for ever, so that a node that names its keys by job or time fills its map with
//! them. Here the owner forgets the older half of them when there are [`CERTIFICATES_MAX`], or when a value needs their
//! room, and remembers the newest forgotten version: the *floor*. Who has all up to the floor has seen those deletions;
//! who has less gets the whole map, in which a key that is not mentioned does not exist. The floor travels with the
//! pieces, so that replicas forget as well.

use super::terms::{CERTIFICATES_MAX, Dropped, ENTRIES_MAX, KEY_MAX, KEYS_MAX, MAP_MAX, VALUE_MAX, VERSION_MAX};
use phalanx_core::{Code, Fingerprint};
use phalanx_wire::attribute::{Entry, Piece, Span};
use std::sync::Arc;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Held {
    key: Arc<str>,
    version: u64,
    /// `None` is a death certificate.
    value: Option<Arc<[u8]>>,
}

impl Held {
    fn len(&self) -> usize {
        Entry::len(&self.key, self.value.as_deref())
    }
}

/// A change to tell the application: the key, and its value when it has one.
pub(super) type Change = (Arc<str>, Option<Arc<[u8]>>);

/// What a merge did.
#[derive(Debug)]
pub(super) struct Merged {
    /// In the order of versions.
    pub(super) changes: Vec<Change>,
    /// Entries that were there already.
    pub(super) duplicates: u64,
}

/// A map with all that was written up to its version.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Map {
    version: u64,
    floor: u64,
    /// By key.
    entries: Vec<Held>,
}

impl Map {
    pub(super) fn version(&self) -> u64 {
        self.version
    }

    pub(super) fn get(&self, key: &str) -> Option<&[u8]> {
        self.held(key)?.value.as_deref()
    }

    /// Keys that have a value, in their order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.entries.iter().filter_map(|e| Some((&*e.key, e.value.as_deref()?)))
    }

    /// The owner writes. False when that changes nothing.
    pub(super) fn write(&mut self, key: &str, value: Option<&[u8]>) -> Result<bool, Code> {
        if key.is_empty() || key.len() > KEY_MAX || value.is_some_and(|v| v.len() > VALUE_MAX) {
            return Err(Code::InvalidArgs);
        }
        if self.get(key) == value {
            return Ok(false);
        }
        let others = self.entries.iter().filter(|e| &*e.key != key && e.value.is_some());
        let (keys, bytes) = others.fold((0, 0), |(keys, bytes), e| (keys + 1, bytes + e.len()));
        let full = value.is_some() && (keys >= KEYS_MAX || bytes + Entry::len(key, value) > MAP_MAX);
        if full || self.version >= VERSION_MAX {
            return Err(Code::LocalResource);
        }
        self.version += 1;
        self.put(Held { key: key.into(), version: self.version, value: value.map(Into::into) });
        // Ends: all that has a value fits, as was seen above.
        while self.certificates() > CERTIFICATES_MAX || self.bytes() > MAP_MAX {
            self.forget_older_half();
        }
        Ok(true)
    }

    /// Somebody claimed version `lie` of our own map: our next digest must win, and who took the lie's entries must
    /// get the whole map.
    pub(super) fn overtake(&mut self, lie: u64) {
        self.version = lie.saturating_add(1).min(VERSION_MAX);
        self.floor = self.version;
        self.entries.retain(|e| e.value.is_some());
    }

    /// What leads from `since` to here, by ascending version. The whole map when `since` is below the floor.
    pub(super) fn piece(&self, since: u64) -> (Span, impl Iterator<Item = Entry<'_>>) {
        let since = if since < self.floor { 0 } else { since };
        let mut newer: Vec<_> = self.entries.iter().filter(|e| e.version > since).collect();
        newer.sort_unstable_by_key(|e| e.version);
        let entries = newer.into_iter().map(|e| Entry { version: e.version, key: &e.key, value: e.value.as_deref() });
        (Span { since, through: self.version, floor: self.floor }, entries)
    }

    /// Takes a piece that leads further than this map.
    ///
    /// # Errors
    /// `Gap` when the piece begins later than this map ends, `OverCap` when no honest map looks like this. The map is as
    /// it was then.
    pub(super) fn merge(&mut self, span: Span, piece: &Piece<'_>) -> Result<Merged, Dropped> {
        if span.since > self.version {
            return Err(Dropped::Gap);
        }
        let whole = span.since == 0;
        let mut next = Self { version: span.through, floor: self.floor.max(span.floor), entries: Vec::new() };
        if !whole {
            next.entries.clone_from(&self.entries);
        }
        let (mut duplicates, mut fresh) = (0, Vec::new());
        for entry in piece.entries() {
            let held = self.held(entry.key).filter(|h| h.version == entry.version && h.value.as_deref() == entry.value);
            if held.is_some() || (!whole && entry.version <= self.version) {
                duplicates += 1;
                if let Some(held) = held.filter(|_| whole) {
                    next.put(held.clone());
                }
                continue;
            }
            let held = Held { key: entry.key.into(), version: entry.version, value: entry.value.map(Into::into) };
            fresh.push((Arc::clone(&held.key), held.value.clone()));
            next.put(held);
        }
        next.entries.retain(|e| e.value.is_some() || e.version > next.floor);
        if !next.is_lawful() {
            return Err(Dropped::OverCap);
        }
        // Deleted by a certificate that is forgotten by now, so before everything that follows.
        let vanished = self.entries.iter().filter(|e| e.value.is_some() && next.held(&e.key).is_none());
        let mut changes: Vec<Change> = vanished.map(|e| (Arc::clone(&e.key), None)).collect();
        changes.retain(|(key, _)| fresh.iter().all(|(k, _)| k != key));
        changes.extend(fresh.into_iter().filter(|(key, value)| self.get(key) != value.as_deref()));
        *self = next;
        Ok(Merged { changes, duplicates })
    }

    /// Bounds that every map keeps.
    fn is_lawful(&self) -> bool {
        let live = self.entries.iter().filter(|e| e.value.is_some()).count();
        live <= KEYS_MAX && self.entries.len() <= ENTRIES_MAX && self.bytes() <= MAP_MAX
    }

    fn forget_older_half(&mut self) {
        let mut dead: Vec<u64> = self.entries.iter().filter(|e| e.value.is_none()).map(|e| e.version).collect();
        dead.sort_unstable();
        if let Some(&last) = dead.get(dead.len().saturating_sub(1) / 2) {
            self.floor = self.floor.max(last);
            self.entries.retain(|e| e.value.is_some() || e.version > last);
        }
    }

    fn certificates(&self) -> usize {
        self.entries.iter().filter(|e| e.value.is_none()).count()
    }

    fn bytes(&self) -> usize {
        self.entries.iter().map(Held::len).sum()
    }

    fn at(&self, key: &str) -> Result<usize, usize> {
        self.entries.binary_search_by(|e| (*e.key).cmp(key))
    }

    fn held(&self, key: &str) -> Option<&Held> {
        self.at(key).ok().map(|at| &self.entries[at])
    }

    fn put(&mut self, held: Held) {
        match self.at(&held.key) {
            Ok(at) => self.entries[at] = held,
            Err(at) => self.entries.insert(at, held),
        }
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&self.version).add(&self.floor).add(&self.entries);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_core::Identity;
    use phalanx_wire::attribute::{MESSAGE_MAX, Packet, ReplyWriter};

    /// What leads from `since` to where `from` is, over the wire and into `to`.
    fn carry(from: &Map, since: u64, to: &mut Map) -> Result<Merged, Dropped> {
        let (mut out, (span, entries)) = (Vec::new(), from.piece(since));
        let mut reply = ReplyWriter::new(1, &mut out);
        assert!(reply.piece(&Identity([1; 32]), 1, Some(span), entries), "every map fits");
        reply.finish(false);
        assert!(out.len() <= MESSAGE_MAX);
        let Ok(Packet::Reply { pieces, .. }) = Packet::parse(&out) else { panic!("what we write is read") };
        to.merge(span, &pieces.iter().next().unwrap())
    }

    fn written(writes: &[(&str, Option<&str>)]) -> Map {
        let mut map = Map::default();
        writes.iter().for_each(|(k, v)| assert_eq!(map.write(k, v.map(str::as_bytes)), Ok(true)));
        map
    }

    /// AT-1: one version for each write, and the map's is the highest.
    #[test]
    fn at_1_a_write_raises_the_version_and_the_same_value_does_not() {
        let mut map = written(&[("a", Some("1")), ("b", Some("2")), ("a", Some("3"))]);
        assert_eq!((map.version(), map.get("a"), map.iter().count()), (3, Some(&b"3"[..]), 2));
        assert_eq!(map.write("a", Some(b"3")), Ok(false));
        assert_eq!(map.write("nobody", None), Ok(false), "no certificate for what never lived");
        assert_eq!(map.version(), 3);
        assert_eq!(map.write("a", None), Ok(true));
        assert_eq!((map.version(), map.get("a"), map.iter().count()), (4, None, 1));
        assert_eq!(map.write("a", None), Ok(false));
        let empty = map.write("e", Some(b""));
        assert_eq!((empty, map.get("e")), (Ok(true), Some(&b""[..])), "an empty value is a value");
    }

    #[test]
    fn what_is_over_a_cap_is_refused_and_changes_nothing() {
        let mut map = Map::default();
        let long = "k".repeat(KEY_MAX + 1);
        for (key, value) in [("", &b""[..]), (&long, b""), ("k", &[0; VALUE_MAX + 1])] {
            assert_eq!(map.write(key, Some(value)), Err(Code::InvalidArgs));
        }
        (0..KEYS_MAX).for_each(|n| assert_eq!(map.write(&n.to_string(), Some(b"v")), Ok(true)));
        let before = map.clone();
        assert_eq!(map.write("one more", Some(b"v")), Err(Code::LocalResource));
        assert_eq!(map, before);
        assert_eq!(map.write("7", Some(b"w")), Ok(true), "a key that is there may change");
        assert_eq!((map.write("7", None), map.write("one more", Some(b"v"))), (Ok(true), Ok(true)));
        let (mut fat, value) = (Map::default(), [0; VALUE_MAX]);
        let fits = (0..100).take_while(|n| fat.write(&n.to_string(), Some(&value)).is_ok()).count();
        assert_eq!(fits, MAP_MAX / (VALUE_MAX + 14));
        assert!(fat.is_lawful() && fat.write("small", Some(b"v")).is_ok());
    }

    /// AT-3: changes come in the order of versions; one that was overwritten is skipped.
    #[test]
    fn at_3_changes_come_in_version_order_and_overwritten_ones_are_skipped() {
        let map = written(&[("b", Some("1")), ("a", Some("2")), ("b", Some("3")), ("c", Some("4")), ("c", None)]);
        let mut replica = Map::default();
        let merged = carry(&map, 0, &mut replica).unwrap();
        let changes: Vec<_> = merged.changes.iter().map(|(k, v)| (&**k, v.as_deref())).collect();
        assert_eq!(changes, [("a", Some(&b"2"[..])), ("b", Some(&b"3"[..]))]);
        assert_eq!((replica, merged.duplicates), (map, 0));
    }

    #[test]
    fn a_late_piece_is_no_harm_and_one_that_comes_too_early_is_refused() {
        let mut map = written(&[("a", Some("1")), ("b", Some("2"))]);
        let mut replica = Map::default();
        carry(&map, 0, &mut replica).unwrap();
        map.write("c", Some(b"3")).unwrap();
        let merged = carry(&map, 1, &mut replica).unwrap();
        assert_eq!((merged.duplicates, merged.changes.len()), (1, 1), "what overlaps is counted");
        assert_eq!(replica, map);
        let mut behind = Map::default();
        assert_eq!(carry(&map, 2, &mut behind).unwrap_err(), Dropped::Gap);
        assert_eq!(behind, Map::default());
    }

    #[test]
    fn certificates_are_forgotten_and_nobody_keeps_what_they_deleted() {
        let mut map = written(&[("stays", Some("1")), ("goes", Some("2"))]);
        let (mut late, mut current) = (map.clone(), map.clone());
        map.write("goes", None).unwrap();
        for n in 0..2000 {
            map.write(&format!("job {n}"), Some(b"runs")).unwrap();
            map.write(&format!("job {n}"), None).unwrap();
            if n % 50 == 0 {
                let merged = carry(&map, current.version(), &mut current).unwrap();
                assert_eq!(merged.duplicates, 0, "who keeps up never needs the whole map");
            }
            assert!(map.is_lawful() && map.certificates() <= CERTIFICATES_MAX);
        }
        assert!(map.floor > late.version());
        let merged = carry(&map, late.version(), &mut late).unwrap();
        assert_eq!(merged.changes, [("goes".into(), None)]);
        carry(&map, current.version(), &mut current).unwrap();
        assert_eq!((late.iter().count(), &late, &current), (1, &map, &map));
    }

    #[test]
    fn certificates_make_room_for_values() {
        let (mut map, value) = (Map::default(), [0; VALUE_MAX]);
        for n in 0..CERTIFICATES_MAX {
            let key = format!("{n:0>128}");
            assert!(map.write(&key, Some(b"")).is_ok() && map.write(&key, None).is_ok());
        }
        let fits = (0..100).take_while(|n| map.write(&n.to_string(), Some(&value)).is_ok()).count();
        assert_eq!(fits, MAP_MAX / (VALUE_MAX + 14));
        assert!(map.is_lawful() && map.floor > 0);
    }

    #[test]
    fn a_lie_is_overtaken_by_the_whole_map() {
        let mut map = written(&[("a", Some("1")), ("b", Some("2")), ("c", Some("3")), ("c", None)]);
        let mut forged = map.clone();
        (0..9).for_each(|n| assert_eq!(forged.write("a", Some(&[n])), Ok(true)));
        assert!(forged.write("evil", Some(b"!")).is_ok() && forged.write("b", None).is_ok());
        map.overtake(forged.version());
        assert!(map.version() > forged.version());
        let merged = carry(&map, forged.version(), &mut forged).unwrap();
        assert_eq!(forged, map);
        let told: Vec<_> = merged.changes.iter().map(|(k, v)| (&**k, v.is_some())).collect();
        assert_eq!(told, [("evil", false), ("a", true), ("b", true)]);
        map.overtake(VERSION_MAX);
        assert_eq!(map.write("a", None), Err(Code::LocalResource), "no number is left for it");
    }

    #[test]
    fn a_map_larger_than_maps_are_is_not_taken() {
        let mut huge = Map::default();
        let held = |n: u64| Held { key: n.to_string().into(), version: n, value: Some([].into()) };
        (1..=KEYS_MAX as u64 + 1).for_each(|n| huge.put(held(n)));
        huge.version = KEYS_MAX as u64 + 1;
        let mut replica = written(&[("a", Some("1"))]);
        assert_eq!(carry(&huge, 0, &mut replica).unwrap_err(), Dropped::OverCap);
        assert_eq!(replica, written(&[("a", Some("1"))]));
    }
}
