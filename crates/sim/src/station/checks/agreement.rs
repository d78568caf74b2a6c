//! MM-3: what must hold of an atomic multicast, for those who see only what applications see.
//!
//! Agreement and total order (an index holds the same message everywhere, across restarts, and nobody skips one), no
//! duplicates, no creation, first-in-first-out for each origin; after healing validity, and everybody has everything.

use crate::check::{Checker, Cluster, Verdict};
use crate::station::Station;
use crate::station::content;
use crate::station::group::{MEMBERS, name};
use crate::station::note::{Note, OrderNote};
use phalanx_core::Instant;
use std::collections::BTreeMap;

/// Names a message: member, start of the member, number.
type Origin = (u8, u64, u64);

/// Watches all groups.
#[derive(Default)]
pub struct Agreement {
    groups: BTreeMap<u32, Group>,
}

#[derive(Default)]
struct Group {
    /// The message at each index.
    order: BTreeMap<u64, Origin>,
    /// The last message of each member in the order, as (start, number).
    latest: [Option<(u64, u64)>; MEMBERS as usize],
    /// Accepted since the present start of each member, and how many starts.
    accepted: [u64; MEMBERS as usize],
    boots: [u64; MEMBERS as usize],
    /// Up to which index each member's application has come.
    position: [u64; MEMBERS as usize],
}

impl Group {
    fn on_delivered(&mut self, member: usize, index: u64, origin: Origin) -> Result<(), String> {
        let before = std::mem::replace(&mut self.position[member], index);
        if index <= before {
            return Err(format!("delivered {index} after {before}"));
        }
        if let Some((skipped, _)) = self.order.range(before + 1..index).next() {
            return Err(format!("delivered {index} and skipped {skipped}"));
        }
        match self.order.get(&index) {
            Some(there) if *there != origin => Err(format!("delivered {origin:?} at {index}, where {there:?} is")),
            Some(_) => Ok(()),
            None => self.enter(index, origin),
        }
    }

    /// Somebody is the first to deliver at `index`.
    fn enter(&mut self, index: u64, origin: Origin) -> Result<(), String> {
        if let Some(member) = self.position.iter().position(|&p| p > index) {
            return Err(format!("delivered {index}, which member {member} skipped"));
        }
        let (member, boot, seq) = origin;
        let latest = self.latest.get_mut(usize::from(member)).ok_or("from nobody in the group")?;
        let follows = match *latest {
            Some((last_boot, last_seq)) => (boot, seq) == (last_boot, last_seq + 1) || (boot > last_boot && seq == 0),
            None => seq == 0,
        };
        if !follows {
            return Err(format!("delivered {origin:?} at {index}, out of its origin's order: the last was {latest:?}"));
        }
        *latest = Some((boot, seq));
        let member = usize::from(member);
        if boot > self.boots[member] || (boot == self.boots[member] && seq >= self.accepted[member]) {
            return Err(format!("delivered {origin:?}, which nobody submitted"));
        }
        self.order.insert(index, origin);
        Ok(())
    }

    fn missing(&self) -> Option<String> {
        let last = self.order.last_key_value().map_or(0, |(&i, _)| i);
        for member in 0..MEMBERS as usize {
            let (boot, accepted) = (self.boots[member], self.accepted[member]);
            let ordered = self.latest[member].filter(|l| l.0 == boot).map_or(0, |l| l.1 + 1);
            if ordered < accepted {
                return Some(format!("{ordered} of {accepted} messages of member {member} are ordered"));
            }
            if self.position[member] < last {
                return Some(format!("member {member} is at {} of {last}", self.position[member]));
            }
        }
        None
    }
}

impl Checker<Station> for Agreement {
    fn name(&self) -> &'static str {
        "agreement"
    }

    fn note(&mut self, _: Instant, node: u32, note: &Note, verdict: &mut Verdict) {
        let (group, member) = (node / MEMBERS, (node % MEMBERS) as usize);
        match note {
            Note::Started { .. } => {
                let group = self.groups.entry(group).or_default();
                group.boots[member] += 1;
                group.accepted[member] = 0;
            }
            Note::Order(OrderNote::Placed { index }) => {
                self.groups.entry(group).or_default().position[member] = *index;
            }
            Note::Order(OrderNote::Accepted { seq }) => {
                let accepted = &mut self.groups.entry(group).or_default().accepted[member];
                if *seq != *accepted {
                    verdict.violation(node, format!("message {seq} was accepted after {accepted} others"));
                }
                *accepted = seq + 1;
            }
            &Note::Order(OrderNote::Delivered { index, member: origin, boot, seq, seed }) => {
                let sender = node - node % MEMBERS + u32::from(origin);
                if seed != Some(content::visible(name(sender, boot as u32, seq).seed(), usize::MAX)) {
                    verdict.violation(node, format!("message {seq} of member {origin} is not what was submitted"));
                }
                let group = self.groups.entry(group).or_default();
                if let Err(text) = group.on_delivered(member, index, (origin, boot, seq)) {
                    verdict.violation(node, text);
                }
            }
            Note::Order(OrderNote::Broken(why)) => verdict.violation(node, format!("cannot start: {why}")),
            _ => {}
        }
    }

    fn pending(&mut self, _: Instant, _: &Cluster<'_, Station>) -> Option<String> {
        self.groups.iter().find_map(|(group, g)| Some(format!("group {group}: {}", g.missing()?)))
    }
}

/// Each promise is broken once, and the checker sees it.
#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_core::Boot;

    fn says(checker: &mut Agreement, node: u32, note: Note) -> Vec<String> {
        let mut verdict = Verdict::default();
        checker.note(Instant::ZERO, node, &note, &mut verdict);
        verdict.violations.into_iter().map(|v| v.1).collect()
    }

    fn delivered(index: u64, member: u8, seq: u64) -> Note {
        let seed = Some(name(u32::from(member), 1, seq).seed());
        Note::Order(OrderNote::Delivered { index, member, boot: 1, seq, seed })
    }

    /// Members 0 and 1 have two messages each accepted, and member 0 has delivered its own first.
    fn begun() -> Agreement {
        let mut checker = Agreement::default();
        for node in 0..3 {
            assert!(says(&mut checker, node, Note::Started { boot: Boot::default() }).is_empty());
        }
        for (node, seq) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            assert!(says(&mut checker, node, Note::Order(OrderNote::Accepted { seq })).is_empty());
        }
        assert!(says(&mut checker, 0, delivered(1, 0, 0)).is_empty());
        checker
    }

    fn caught(node: u32, note: Note, text: &str) {
        let said = says(&mut begun(), node, note);
        assert!(said.len() == 1 && said[0].contains(text), "{said:?}, not `{text}`");
    }

    #[test]
    fn disagreement_disorder_and_skips_are_caught() {
        caught(1, delivered(1, 1, 0), "where (0, 1, 0) is");
        caught(0, delivered(1, 0, 0), "after 1");
        caught(1, delivered(2, 0, 1), "skipped 1");
    }

    #[test]
    fn duplicates_inventions_and_broken_fifo_are_caught() {
        caught(0, delivered(2, 0, 0), "out of its origin's order");
        caught(0, delivered(2, 1, 1), "out of its origin's order");
        caught(0, delivered(2, 2, 0), "nobody submitted");
        let seed = Some(7);
        let changed = Note::Order(OrderNote::Delivered { index: 2, member: 0, boot: 1, seq: 1, seed });
        caught(0, changed, "not what was submitted");
        caught(0, Note::Order(OrderNote::Broken("torn".to_owned())), "cannot start: torn");
    }

    #[test]
    fn after_a_restart_the_same_again_is_right_and_another_is_not() {
        let mut checker = begun();
        assert!(says(&mut checker, 0, Note::Order(OrderNote::Placed { index: 0 })).is_empty());
        assert!(says(&mut checker, 0, delivered(1, 0, 0)).is_empty());
        assert!(says(&mut checker, 0, Note::Order(OrderNote::Placed { index: 0 })).is_empty());
        assert_eq!(says(&mut checker, 0, delivered(1, 1, 0)).len(), 1);
    }

    #[test]
    fn what_is_not_ordered_or_not_known_everywhere_is_missed() {
        let mut checker = begun();
        let group = |checker: &Agreement| checker.groups[&0].missing();
        assert!(group(&checker).is_some_and(|m| m.contains("1 of 2 messages of member 0")));
        for (index, (member, seq)) in [(0, 0), (0, 1), (1, 0), (1, 1)].into_iter().enumerate() {
            for node in u32::from(index == 0)..2 {
                assert!(says(&mut checker, node, delivered(index as u64 + 1, member, seq)).is_empty());
            }
        }
        assert!(group(&checker).is_some_and(|m| m.contains("member 2 is at 0 of 4")));
    }
}
