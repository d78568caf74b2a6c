//! CM-1: agents carry out what a majority of replicas decided, and nothing else.

use crate::check::{Checker, Verdict};
use crate::manager;
use crate::member::{Member, Note};
use phalanx_core::Instant;
use phalanx_protocol::member::Engine;
use std::collections::{BTreeMap, BTreeSet};

/// Who decided which word.
#[derive(Default)]
pub struct Voices(BTreeMap<u64, BTreeSet<u32>>);

impl<E: Engine + Send> Checker<Member<E>> for Voices {
    fn name(&self) -> &'static str {
        "voices"
    }

    fn note(&mut self, _: Instant, node: u32, note: &Note, verdict: &mut Verdict) {
        match *note {
            Note::Managed(manager::Note::Decided(word)) => _ = self.0.entry(word).or_default().insert(node),
            Note::Managed(manager::Note::CarriedOut { word, majority }) => {
                let voices = self.0.get(&word).map_or(0, BTreeSet::len);
                if voices < majority as usize {
                    let text = format!("carried out a command that {voices} replicas decided, {majority} must have");
                    verdict.violation(node, text);
                }
            }
            _ => {}
        }
    }
}
