//! Where attributes meet the zone: who joined, who left, who is near; and letters that carry their messages.
//!
//! ZN-8: high-priority monitors declare themselves by an attribute; a suspicion goes to them by the shortest way.

use super::Zone;
use super::attributes::{Names, Output as Said};
use super::letter::suspicion;
use super::view::View;
use crate::member::{Event, Out, Output, Roster, Slot, Version};
use phalanx_core::{Addr, Identity, Instant, Sink, Snapshot};
use phalanx_wire::zone::{Letter, LetterKind, Note};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

/// The attribute by which a member says that it wants to hear of suspicions at once.
pub const MONITOR: &str = "phalanx.monitor";
/// Monitors that are told directly; the others hear as everybody does.
const MONITORS: usize = 8;

/// The nonce of a probe whose answer nobody waits for.
const NOBODY: u32 = 0;

/// A join or a leave, for those who keep something of each member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    Joined(Slot),
    Left(Slot),
}

impl Change {
    pub(super) const fn slot(self) -> Slot {
        match self {
            Self::Joined(slot) | Self::Left(slot) => slot,
        }
    }
}

/// Names of those who are in the view.
struct Present<'a> {
    roster: &'a Roster,
    view: &'a View,
}

impl Names for Present<'_> {
    fn identity(&self, slot: Slot) -> Option<Identity> {
        self.roster.card(slot).map(|c| c.identity)
    }

    fn slot(&self, identity: &Identity) -> Option<Slot> {
        self.roster.find(identity).filter(|&s| self.view.contains(s))
    }

    fn incarnation(&self, slot: Slot) -> Option<u64> {
        self.view.of(slot, self.roster).map(|v| v.incarnation)
    }
}

/// What attributes decide.
struct Replicated<'a, S> {
    zone: &'a Addresses<'a>,
    sender: &'a [u8],
    /// The last letter, for the next neighbour that is told the same.
    last: Option<Arc<Written>>,
    out: &'a mut S,
}

/// Where members are reached.
struct Addresses<'a> {
    roster: &'a Roster,
    neighbours: &'a super::neighbour::Neighbours,
}

impl Addresses<'_> {
    fn of(&self, slot: Slot) -> Option<Addr> {
        let near = self.neighbours.iter().find(|n| n.slot == slot).map(|n| n.addr);
        near.or_else(|| self.roster.card(slot).map(|c| c.addr))
    }
}

impl<'o, S: Out> Sink<Said<'o>> for Replicated<'_, S> {
    fn push(&mut self, said: Said<'o>) {
        match said {
            Said::Send { to, bytes } => {
                let Some(to) = self.zone.of(to) else { return };
                let same = self.last.take().filter(|l| l.0.ends_with(bytes) && l.0.len() == self.length(bytes));
                let letter = same.unwrap_or_else(|| {
                    let mut letter = Vec::with_capacity(self.length(bytes));
                    letter.extend_from_slice(self.sender);
                    Letter::put_attributes(bytes, &mut letter);
                    Arc::new(Written(letter))
                });
                let message: Arc<dyn Snapshot> = Arc::clone(&letter) as _;
                self.last = Some(letter);
                self.out.push(Output::Message { to, message: &message, across: false });
            }
            Said::Changed { member, key, value } => {
                self.out.push(Output::Event(Event::Attribute { member, key, value }));
            }
        }
    }
}

impl<S> Replicated<'_, S> {
    fn length(&self, bytes: &[u8]) -> usize {
        self.sender.len() + Letter::SECTION + bytes.len()
    }
}

/// A letter that is bytes already.
#[derive(Debug)]
pub(super) struct Written(pub(super) Vec<u8>);

impl Snapshot for Written {
    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn encode(&self, range: Range<usize>, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0[range]);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// What happens to attributes.
pub(super) enum Happening<'a> {
    Changed(Change),
    Near(Slot),
    Far(Slot),
    Message(Slot, &'a [u8]),
    Due,
}

impl Zone {
    /// Tells the attributes what happened.
    pub(super) fn replicate(&mut self, now: Instant, what: Happening<'_>, out: &mut impl Out) {
        if matches!(what, Happening::Changed(_)) && self.attributes.is_unused() {
            return;
        }
        let mut sender = std::mem::take(&mut self.scratch);
        Letter::begin(LetterKind::Attributes, 0, &mut sender);
        if let Some(me) = self.member(self.book.me, self.book.version()) {
            Letter::put_sender(&me, &mut sender);
        }
        if let Some(zone) = self.name() {
            Letter::put_zone(zone.as_str(), &mut sender);
        }
        let names = Present { roster: &self.roster, view: &self.book.view };
        let addresses = Addresses { roster: &self.roster, neighbours: &self.neighbours };
        let out = &mut Replicated { zone: &addresses, sender: &sender, last: None, out };
        match what {
            Happening::Changed(Change::Joined(slot)) => self.attributes.on_joined(now, slot, &names, out),
            Happening::Changed(Change::Left(slot)) => self.attributes.on_left(now, slot, &names),
            Happening::Near(slot) => self.attributes.on_neighbour(now, slot, &names, out),
            Happening::Far(slot) => self.attributes.on_neighbour_lost(now, slot, &names, out),
            Happening::Message(from, bytes) => self.attributes.on_message(now, from, bytes, &names, out),
            Happening::Due => self.attributes.expire(now, &names, out),
        }
        sender.clear();
        self.scratch = sender;
    }

    /// ZN-8: a suspicion of our own goes to the monitors at once.
    pub(super) fn alarm(&mut self, suspect: Slot, version: Version, out: &mut impl Out) {
        let Some(alarm) = suspicion(self.book.me, suspect, version, &self.roster) else { return };
        for to in self.monitors(suspect) {
            self.note(to, &Note::Alarm(alarm), out);
        }
    }

    /// ZN-8: a suspicion may follow. A session with each monitor is begun while the suspect is probed, so that the alarm
    /// need not wait for one; sessions with everybody's monitors all the time would cost memory for nothing.
    pub(super) fn forewarn(&mut self, suspect: Slot, out: &mut impl Out) {
        for to in self.monitors(suspect) {
            if self.neighbours.at(to).is_none() {
                self.note(to, &Note::Probe { nonce: NOBODY }, out);
            }
        }
    }

    fn monitors(&self, suspect: Slot) -> Vec<Addr> {
        let others = self.attributes.with(MONITOR).filter(|&(slot, _)| slot != self.book.me && slot != suspect);
        others.take(MONITORS).filter_map(|(slot, _)| self.roster.card(slot).map(|c| c.addr)).collect()
    }
}
