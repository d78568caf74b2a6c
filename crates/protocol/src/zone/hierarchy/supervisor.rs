//! Supervisors: the members of the management zone. Each guards a few base zones and holds a census of all.

use super::census::{PREFIX, Summary};
use super::replica::Replica;
use super::{GUARDS, Office, Upward};
use crate::member::{Card, Engine, Event, Name, Out, Output, Peer, Slot, Version};
use crate::zone::Zone;
use crate::zone::letter::{Alive, Parcel};
use phalanx_core::rng::mix;
use phalanx_core::{Addr, Fingerprint, Identity, Instant};
use phalanx_wire::zone::{LetterKind, flag};
use std::collections::BTreeMap;

/// Zones that a supervisor guards or holds details of; more are refused.
const ZONES: usize = 4096;
/// Delegates of one zone that are heard: during an election there may be more than there should be.
const REPORTERS: usize = 8;

/// What a supervisor holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(in crate::zone) struct Supervisor {
    zones: BTreeMap<Name, Guarded>,
    /// Details of zones that others guard.
    details: BTreeMap<Name, Replica>,
}

/// A zone that we guard.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Guarded {
    reporters: Vec<Reporter>,
    /// What we published of it, when we are its first guard.
    published: Option<Summary>,
    revision: u32,
}

/// A delegate of a zone that we guard.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Reporter {
    identity: Identity,
    addr: Addr,
    rank: u8,
    replica: Replica,
    /// Another delegate has said since that this one is not in the zone any more. A host that died says nothing itself.
    gone: bool,
}

impl Guarded {
    /// What the delegate of the lowest rank says, of those who are there.
    fn replica(&self) -> Option<&Replica> {
        self.reporters.iter().min_by_key(|r| (r.gone, r.rank)).map(|r| &r.replica)
    }

    fn delegates(&self) -> u8 {
        self.reporters.iter().filter(|r| !r.gone).count() as u8
    }

    /// `by` has reported: it is there, and whoever it does not see is not.
    fn compare(&mut self, by: &Identity) {
        let Some(at) = self.reporters.iter().position(|r| r.identity == *by) else { return };
        let mut gone = [false; REPORTERS];
        for (gone, reporter) in gone.iter_mut().zip(&self.reporters) {
            *gone = reporter.identity != *by && !self.reporters[at].replica.contains(&reporter.identity);
        }
        self.reporters.iter_mut().zip(gone).for_each(|(reporter, gone)| reporter.gone = gone);
    }

    /// Makes room for a delegate, at the cost of one that is gone.
    fn make_room(&mut self) -> bool {
        if self.reporters.len() >= REPORTERS
            && let Some(gone) = self.reporters.iter().position(|r| r.gone)
        {
            self.reporters.remove(gone);
        }
        self.reporters.len() < REPORTERS
    }
}

impl Supervisor {
    pub(super) fn details(&self, zone: &Name) -> Option<Vec<(Card, Version)>> {
        let guarded = self.zones.get(zone).and_then(Guarded::replica);
        Some(guarded.or_else(|| self.details.get(zone))?.members().collect())
    }

    pub(super) fn is_reporter(&self, addr: Addr) -> bool {
        self.zones.values().any(|z| z.reporters.iter().any(|r| r.addr == addr))
    }

    pub(in crate::zone) fn fingerprint(&self, print: &mut Fingerprint) {
        for (zone, guarded) in &self.zones {
            print.add(&zone.as_str()).add(&guarded.revision);
            for reporter in &guarded.reporters {
                print.add(&(reporter.identity, reporter.rank, reporter.replica.len(), reporter.gone));
            }
        }
    }
}

impl Zone {
    fn supervisor(&mut self) -> Option<&mut Supervisor> {
        match &mut self.office {
            Office::Supervisor(supervisor) => Some(supervisor),
            Office::None | Office::Delegate(_) => None,
        }
    }

    /// HI-2: the first supervisors for a zone, by rendezvous hashing: when one falls only its zones move.
    fn guards_of(&self, zone: &Name) -> Vec<Slot> {
        let name = zone.as_str().bytes().fold(0, |hash, b| mix(hash ^ u64::from(b)));
        let mut first: Vec<(u64, Slot)> = Vec::with_capacity(GUARDS + 1);
        for slot in self.book.view.slots() {
            let score = mix(name ^ self.roster.place(slot));
            let at = first.partition_point(|f| f.0 > score);
            if at < GUARDS {
                first.insert(at, (score, slot));
                first.truncate(GUARDS);
            }
        }
        first.into_iter().map(|f| f.1).collect()
    }

    pub(super) fn on_who(&mut self, from: Peer, zone: &Name, out: &mut impl Out) {
        if self.supervisor().is_none() {
            return;
        }
        self.tell_guards(from.addr, zone, out);
        // Unless it will report to us.
        if !self.is_colleague(from.addr) && !self.guards_of(zone).contains(&self.book.me) {
            out.push(Output::Release { addr: from.addr });
        }
    }

    /// Tells a delegate who guards its zone.
    fn tell_guards(&self, to: Addr, zone: &Name, out: &mut impl Out) {
        let mut mask = crate::zone::delta::Mask::default();
        self.guards_of(zone).into_iter().for_each(|slot| mask.insert(slot));
        let sender = (self.book.me, self.book.version());
        let mut guards = Parcel::new(LetterKind::Guards, 0, sender, &self.roster, &self.book.view, Alive::These(mask));
        guards.zone = Some(zone.clone());
        self.send_across(to, guards, out);
    }

    /// HI-3: a delegate says who is in its zone.
    pub(super) fn on_report(&mut self, now: Instant, from: Peer, zone: Name, report: Upward<'_>, out: &mut impl Out) {
        if self.supervisor().is_none() {
            return;
        }
        let guards = self.guards_of(&zone);
        let flags = report.flags();
        let leaving = flags & flag::NONE != 0;
        if !guards.contains(&self.book.me) && !leaving {
            return self.tell_guards(from.addr, &zone, out);
        }
        let Some(supervisor) = self.supervisor() else { return };
        if supervisor.zones.len() >= ZONES && !supervisor.zones.contains_key(&zone) {
            self.counters.crowded_out += 1;
            return;
        }
        let guarded = supervisor.zones.entry(zone.clone()).or_default();
        let rank = (flags >> flag::RANK_SHIFT) as u8;
        let known = guarded.reporters.iter().position(|r| r.identity == from.identity);
        match known {
            Some(i) if leaving => _ = guarded.reporters.remove(i),
            Some(i) => {
                let reporter = &mut guarded.reporters[i];
                (reporter.rank, reporter.addr) = (rank, from.addr);
                reporter.replica.apply(report);
            }
            None if leaving => {}
            // Changes of something that we do not have: its base report was lost with an older session.
            None if flags & flag::BASE == 0 => return self.tell_guards(from.addr, &zone, out),
            None if !guarded.make_room() => self.counters.crowded_out += 1,
            None => {
                let mut replica = Replica::default();
                replica.apply(report);
                let (identity, addr) = (from.identity, from.addr);
                guarded.reporters.push(Reporter { identity, addr, rank, replica, gone: false });
            }
        }
        if let Some(guarded) = self.supervisor().and_then(|s| s.zones.get_mut(&zone)) {
            guarded.compare(&from.identity);
        }
        if leaving {
            out.push(Output::Release { addr: from.addr });
        }
        self.publish(now, &zone, guards.first() == Some(&self.book.me));
    }

    /// Publishes the summary of a zone, or takes it back when another is its first guard.
    fn publish(&mut self, now: Instant, zone: &Name, first: bool) {
        let Some(guarded) = self.supervisor().and_then(|s| s.zones.get_mut(zone)) else { return };
        let known = guarded.published;
        let members = guarded.replica().map(|r| r.len() as u32).or_else(|| known.map(|k| k.members));
        let delegates = guarded.delegates();
        let value = match members {
            Some(members) if first => {
                if known.is_some_and(|k| (k.members, k.delegates) == (members, delegates)) {
                    return;
                }
                guarded.revision += 1;
                Some(Summary { members, delegates, revision: guarded.revision })
            }
            _ if known.is_none() => return,
            _ => None,
        };
        guarded.published = value;
        let key = format!("{PREFIX}{zone}");
        // A map holds so many keys and no more: zones beyond are missing from the census, and counted.
        let told = self.set(now, &key, value.map(|v| v.encode()).as_ref().map(|v| &v[..]));
        self.counters.crowded_out += u64::from(told.is_err());
    }

    /// Supervisors came or went: zones may have other guards now, and their delegates are told.
    pub(super) fn settle_supervisor(&mut self, now: Instant, out: &mut impl Out) {
        let Some(supervisor) = self.supervisor() else { return };
        let zones: Vec<Name> = supervisor.zones.keys().cloned().collect();
        for zone in zones {
            let guards = self.guards_of(&zone);
            let (mine, first) = (guards.contains(&self.book.me), guards.first() == Some(&self.book.me));
            self.publish(now, &zone, first);
            let Some(supervisor) = self.supervisor() else { return };
            let Some(guarded) = supervisor.zones.get(&zone) else { continue };
            let delegates: Vec<Addr> = guarded.reporters.iter().map(|r| r.addr).collect();
            if !mine {
                supervisor.zones.remove(&zone);
            }
            for to in delegates {
                self.tell_guards(to, &zone, out);
            }
        }
    }

    /// A delegate is out of reach.
    pub(super) fn delegate_lost(&mut self, now: Instant, addr: Addr, out: &mut impl Out) {
        let Some(supervisor) = self.supervisor() else { return };
        let mut hit = Vec::new();
        for (zone, guarded) in &mut supervisor.zones {
            let before = guarded.reporters.len();
            guarded.reporters.retain(|r| r.addr != addr);
            if guarded.reporters.len() < before {
                hit.push(zone.clone());
            }
        }
        for zone in hit {
            let first = self.guards_of(&zone).first() == Some(&self.book.me);
            self.publish(now, &zone, first);
            out.push(Output::Release { addr });
        }
    }

    /// HI-3: asks for the full membership of a zone. `Event::Details` says when it is there; at once when we guard the
    /// zone. False when no supervisor is known to guard it.
    pub fn inquire(&mut self, zone: &Name, out: &mut impl Out) -> bool {
        let guards = self.guards_of(zone);
        if self.supervisor().is_none() || guards.is_empty() {
            return false;
        }
        if guards.contains(&self.book.me) {
            out.push(Output::Event(Event::Details { zone: zone.as_str() }));
            return true;
        }
        let Some(to) = self.roster.card(guards[0]).map(|c| c.addr) else { return false };
        let mut details = self.parcel(LetterKind::Details, 0, false);
        details.zone = Some(zone.clone());
        self.send(to, details, out);
        true
    }

    pub(super) fn on_details(&mut self, from: Peer, zone: &Name, out: &mut impl Out) {
        let sender = (self.book.me, self.book.version());
        let Some(supervisor) = self.supervisor() else { return };
        let replica = supervisor.zones.get(zone).and_then(Guarded::replica).cloned();
        let flags = if replica.is_some() { 0 } else { flag::NONE };
        let replica = replica.unwrap_or_default();
        let (roster, view) = replica.parts();
        let mut detailed = Parcel::new(LetterKind::Detailed, flags, sender, roster, view, Alive::All);
        // Our own slot means somebody else in that roster.
        detailed.conceal_sender();
        detailed.zone = Some(zone.clone());
        self.send(from.addr, detailed, out);
        self.release(from.addr, out);
    }

    pub(super) fn on_detailed(&mut self, zone: Name, letter: Upward<'_>, out: &mut impl Out) {
        let Some(supervisor) = self.supervisor() else { return };
        if letter.flags() & flag::NONE == 0
            && (supervisor.details.len() < ZONES || supervisor.details.contains_key(&zone))
        {
            let replica = supervisor.details.entry(zone.clone()).or_default();
            *replica = Replica::default();
            replica.apply(letter);
        }
        out.push(Output::Event(Event::Details { zone: zone.as_str() }));
    }
}
