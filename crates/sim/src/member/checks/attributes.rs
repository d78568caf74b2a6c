//! AT-1, AT-3: what a member reads of another's attributes comes in the order of writing, and the last write arrives.

use super::views::live;
use crate::check::{Checker, Cluster, Verdict};
use crate::member::{Member, Note, Written};
use phalanx_core::Instant;
use phalanx_protocol::member::Engine;
use std::collections::{BTreeMap, BTreeSet};

/// How far order goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// AT-3: over all attributes of a source, as in zones.
    Source,
    /// For each attribute alone, as in the baselines, whose entries carry the whole map.
    Key,
}

/// Watches the attributes called [`Written`]. What a member read of another is forgotten when either of them goes: a
/// replica is dropped with its source.
pub struct Attributes {
    order: Order,
    /// After healing all must have the last write; otherwise only order is watched.
    complete: bool,
    /// The highest number read, by reader, source and attribute; under key 0 for [`Order::Source`].
    read: BTreeMap<(u32, u32, u8), u64>,
    /// All that was ever written, by source.
    written: BTreeMap<u32, BTreeSet<Written>>,
    keys: BTreeSet<u8>,
}

impl Attributes {
    /// For engines that promise this order. When not `complete`, nothing is waited for after healing.
    #[must_use]
    pub fn new(order: Order, complete: bool) -> Self {
        let (read, written, keys) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        Self { order, complete, read, written, keys }
    }

    fn on_read(&mut self, reader: u32, source: u32, now: Written) -> Result<(), String> {
        let Written { key, number } = now;
        if !self.written.get(&source).is_some_and(|w| w.contains(&now)) {
            return Err(format!("read w{key} = {number} of node {source}, which never wrote that"));
        }
        let place = if self.order == Order::Source { 0 } else { key };
        match self.read.insert((reader, source, place), number) {
            Some(before) if before >= number => {
                Err(format!("read w{key} = {number} of node {source} after its write {before}"))
            }
            _ => Ok(()),
        }
    }

    fn forget(&mut self, reader: u32, sources: std::ops::RangeInclusive<u32>) {
        let range = (reader, *sources.start(), 0)..=(reader, *sources.end(), u8::MAX);
        let gone: Vec<_> = self.read.range(range).map(|(&k, _)| k).collect();
        gone.iter().for_each(|key| _ = self.read.remove(key));
    }
}

/// What a member holds of another, by attribute.
type Held = BTreeMap<u8, Option<Vec<u8>>>;

/// The first attribute that is not as its source has it.
fn difference(ours: &Held, right: &Held) -> Option<u8> {
    right.iter().find(|(key, value)| ours.get(key) != Some(value)).map(|(&key, _)| key)
}

impl<E: Engine + Send> Checker<Member<E>> for Attributes {
    fn name(&self) -> &'static str {
        "attributes"
    }

    fn note(&mut self, _: Instant, node: u32, note: &Note, verdict: &mut Verdict) {
        let said = match *note {
            Note::Started { .. } => {
                self.forget(node, 0..=u32::MAX);
                Ok(())
            }
            Note::Left { node: source, .. } => {
                self.forget(node, source..=source);
                Ok(())
            }
            Note::Wrote(written) => {
                self.keys.insert(written.key);
                self.written.entry(node).or_default().insert(written);
                Ok(())
            }
            Note::Read { node: source, written } => self.on_read(node, source, written),
            _ => Ok(()),
        };
        if let Err(text) = said {
            verdict.violation(node, text);
        }
    }

    fn pending(&mut self, _: Instant, cluster: &Cluster<'_, Member<E>>) -> Option<String> {
        if !self.complete || self.keys.is_empty() {
            return None;
        }
        let live = live(cluster);
        let held = |member: &Member<E>, slot| -> Held {
            let value = |key| member.engine().attribute(slot, &Written::name(key)).map(<[u8]>::to_vec);
            self.keys.iter().map(|&key| (key, value(key))).collect()
        };
        let own: BTreeMap<u32, Held> =
            live.keys().filter_map(|&n| cluster.process(n).map(|m| (n, held(m, m.engine().me())))).collect();
        cluster.processes().filter(|(n, _)| live.contains_key(n)).find_map(|(node, member)| {
            member.engine().members().find_map(|(slot, _)| {
                let source = member.whereabouts(slot)?;
                let key = difference(&held(member, slot), own.get(&source)?)?;
                Some(format!("node {node} does not have the last w{key} of node {source}"))
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_protocol::member::{Version, Why};
    use phalanx_protocol::zone::Zone;

    fn says(checker: &mut Attributes, node: u32, note: Note) -> String {
        let mut verdict = Verdict::default();
        Checker::<Member<Zone>>::note(checker, Instant::ZERO, node, &note, &mut verdict);
        verdict.violations.pop().map_or_else(String::new, |v| v.1)
    }

    fn wrote(key: u8, number: u64) -> Note {
        Note::Wrote(Written { key, number })
    }

    fn read(key: u8, number: u64) -> Note {
        Note::Read { node: 1, written: Written { key, number } }
    }

    fn checker(order: Order) -> Attributes {
        let mut checker = Attributes::new(order, true);
        for (key, number) in [(0, 1), (1, 2), (0, 3)] {
            assert_eq!(says(&mut checker, 1, wrote(key, number)), "");
        }
        checker
    }

    #[test]
    fn a_write_that_comes_after_a_later_one_is_caught() {
        let mut source = checker(Order::Source);
        assert_eq!(says(&mut source, 0, read(0, 3)), "", "what was overwritten may be skipped");
        assert_eq!(says(&mut source, 0, read(1, 2)), "read w1 = 2 of node 1 after its write 3");
        assert_eq!(says(&mut source, 2, read(1, 2)), "", "another reader");
        let mut key = checker(Order::Key);
        assert_eq!((says(&mut key, 0, read(0, 3)), says(&mut key, 0, read(1, 2))), (String::new(), String::new()));
        assert_eq!(says(&mut key, 0, read(0, 1)), "read w0 = 1 of node 1 after its write 3");
        assert_eq!(says(&mut key, 0, read(1, 2)), "read w1 = 2 of node 1 after its write 2", "twice");
    }

    #[test]
    fn what_nobody_wrote_is_caught() {
        let mut checker = checker(Order::Source);
        assert!(says(&mut checker, 0, read(0, 2)).contains("never wrote that"));
        assert!(
            says(&mut checker, 0, Note::Read { node: 2, written: Written { key: 0, number: 1 } }).contains("never")
        );
    }

    #[test]
    fn a_replica_goes_with_its_source_and_with_its_reader() {
        let mut checker = checker(Order::Source);
        let left = Note::Left { node: 1, version: Version::first(1), why: Why::Failed };
        for gone in [left, Note::Started { incarnation: 2 }] {
            assert_eq!(
                (says(&mut checker, 0, read(0, 3)), says(&mut checker, 0, gone)),
                (String::new(), String::new())
            );
            assert_eq!(
                (says(&mut checker, 0, read(0, 1)), says(&mut checker, 0, left)),
                (String::new(), String::new())
            );
        }
    }

    #[test]
    fn a_last_value_that_is_lost_outdated_or_too_much_is_caught() {
        let held = |values: [Option<u8>; 2]| -> Held { (0..).zip(values.map(|v| v.map(|v| vec![v]))).collect() };
        let right = held([Some(7), None]);
        assert_eq!(difference(&right, &right), None);
        assert_eq!(difference(&held([None, None]), &right), Some(0));
        assert_eq!(difference(&held([Some(6), None]), &right), Some(0));
        assert_eq!(difference(&held([Some(7), Some(1)]), &right), Some(1));
    }
}
