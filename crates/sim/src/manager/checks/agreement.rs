//! CM-4: replicas have the same after each entry, and there is one group.

use crate::check::{Checker, Verdict};
use crate::manager;
use crate::member::{Member, Note};
use phalanx_core::Instant;
use phalanx_protocol::member::Engine;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// What was first said of each entry and of each group.
#[derive(Default)]
pub struct Agreement {
    entries: BTreeMap<(u32, u64), (u32, u64)>,
    groups: BTreeMap<u32, (u32, u64)>,
}

fn compare<K: Ord>(table: &mut BTreeMap<K, (u32, u64)>, key: K, node: u32, digest: u64) -> Option<u32> {
    match table.entry(key) {
        Entry::Vacant(entry) => {
            entry.insert((node, digest));
            None
        }
        Entry::Occupied(entry) => Some(entry.get().0).filter(|_| entry.get().1 != digest),
    }
}

impl<E: Engine + Send> Checker<Member<E>> for Agreement {
    fn name(&self) -> &'static str {
        "agreement"
    }

    fn note(&mut self, _: Instant, node: u32, note: &Note, verdict: &mut Verdict) {
        match *note {
            Note::Managed(manager::Note::Applied { epoch, index, digest, corrupt: false }) => {
                if let Some(other) = compare(&mut self.entries, (epoch, index), node, digest) {
                    let text = format!("has another state than node {other} after entry {index} of epoch {epoch}");
                    verdict.violation(node, text);
                }
            }
            Note::Managed(manager::Note::Group { epoch, digest, corrupt: false }) => {
                if let Some(other) = compare(&mut self.groups, epoch, node, digest) {
                    verdict.violation(node, format!("knows another group of epoch {epoch} than node {other}"));
                }
            }
            _ => {}
        }
    }
}
