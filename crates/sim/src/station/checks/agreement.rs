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
