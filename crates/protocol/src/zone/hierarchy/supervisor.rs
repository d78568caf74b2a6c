//! Supervisors: the members of the management zone. Each guards a few base zones and holds a census of all.

use super::census::{PREFIX, Summary};
use super::guarded::{Guarded, Step, Taken};
use super::moving::NAMED;
use super::replica::Replica;
use super::{GUARDS, Office, Upward, score};
use crate::member::{Card, Engine, Event, Name, Out, Output, Peer, Slot, Version};
use crate::zone::Zone;
use crate::zone::letter::{Alive, Parcel};
use phalanx_core::{Addr, Duration, Fingerprint, Instant};
use phalanx_wire::zone::{LetterKind, flag};
use std::collections::{BTreeMap, VecDeque};

/// Zones that a supervisor guards or holds details of; more are refused.
const ZONES: usize = 4096;
/// Members that look for their zone are remembered for so long, and so many of them.
const SEEKING: Duration = Duration::from_secs(5);
const SEEKERS: usize = 64;

/// What a supervisor holds.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(in crate::zone) struct Supervisor {
    zones: BTreeMap<Name, Guarded>,
    /// Details of zones that others guard.
    details: BTreeMap<Name, Replica>,
    /// HI-1: members that asked lately who else is in their zone, the first ones first.
    seekers: VecDeque<(Instant, Name, (Card, Version))>,
    /// When some zone is to be looked at, or earlier.
    check_at: Option<Instant>,
}

impl Supervisor {
    pub(super) fn details(&self, zone: &Name) -> Option<Vec<(Card, Version)>> {
        let guarded = self.zones.get(zone).filter(|z| z.counts().is_some()).map(Guarded::members);
        guarded.or_else(|| Some(self.details.get(zone)?.members().collect()))
    }

    /// Some members of a zone that we guard, and some who look for it as this one does.
    pub(super) fn seek(&mut self, now: Instant, zone: &Name, seeker: (Card, Version)) -> Vec<(Card, Version)> {
        self.seekers.retain(|s| s.0 + SEEKING > now && s.2.0.identity != seeker.0.identity);
        let mut named: Vec<_> = self.zones.get(zone).map_or_else(Vec::new, |z| z.first(NAMED));
        named.extend(self.seekers.iter().filter(|s| s.1 == *zone).take(NAMED).map(|s| s.2.clone()));
        if self.seekers.len() >= SEEKERS {
            self.seekers.pop_front();
        }
        self.seekers.push_back((now, zone.clone(), seeker));
        named
    }

    pub(super) fn is_reporter(&self, addr: Addr) -> bool {
        self.zones.values().any(|z| z.addrs().any(|a| a == addr))
    }

    pub(super) fn deadline(&self) -> Instant {
        self.check_at.unwrap_or(Instant::NEVER)
    }

    fn check_by(&mut self, at: Instant) {
        self.check_at = Some(at.min(self.deadline()));
    }

    pub(in crate::zone) fn fingerprint(&self, print: &mut Fingerprint) {
        for (zone, guarded) in &self.zones {
            print.add(&zone.as_str());
            guarded.fingerprint(print);
        }
        for (at, zone, seeker) in &self.seekers {
            print.instant(*at);
            print.add(&(zone.as_str(), seeker.0.identity));
        }
    }
}

impl Zone {
    pub(super) fn supervisor(&mut self) -> Option<&mut Supervisor> {
        match &mut self.office {
            Office::Supervisor(supervisor) => Some(supervisor),
            Office::None(_) | Office::Delegate(_) => None,
        }
    }

    /// HI-2: the first supervisors for a zone, by rendezvous hashing: when one falls only its zones move.
    pub(super) fn guards_of(&self, zone: &Name) -> Vec<Slot> {
        let mut first: Vec<(u64, Slot)> = Vec::with_capacity(GUARDS + 1);
        for slot in self.book.view.slots() {
            let score = score(zone, self.roster.place(slot));
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
        self.tell_guards(from.addr, zone, 0, out);
        // Unless it will report to us.
        if !self.is_colleague(from.addr) && !self.guards_of(zone).contains(&self.book.me) {
            out.push(Output::Release { addr: from.addr });
        }
    }

    /// Tells a delegate who guards its zone.
    pub(super) fn tell_guards(&self, to: Addr, zone: &Name, flags: u16, out: &mut impl Out) {
        let mut mask = crate::zone::delta::Mask::default();
        self.guards_of(zone).into_iter().for_each(|slot| mask.insert(slot));
        let sender = (self.book.me, self.book.version());
        let mut guards =
            Parcel::new(LetterKind::Guards, flags, sender, &self.roster, &self.book.view, Alive::These(mask));
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
            return self.tell_guards(from.addr, &zone, 0, out);
        }
        let Some(supervisor) = self.supervisor() else { return };
        if supervisor.zones.len() >= ZONES && !supervisor.zones.contains_key(&zone) {
            self.counters.crowded_out += 1;
            return;
        }
        if leaving {
            if let Some(guarded) = supervisor.zones.get_mut(&zone) {
                guarded.resign(now, &from.identity);
            }
            out.push(Output::Release { addr: from.addr });
        } else {
            let guarded = supervisor.zones.entry(zone.clone()).or_default();
            let new = !guarded.hears(&from.identity);
            let taken = guarded.report(now, from, report);
            let strangers = match taken {
                Taken::Whole if flags & flag::BASE != 0 || report.fingerprint().is_some() => {
                    guarded.strangers_to(&from.identity)
                }
                Taken::Whole => Vec::new(),
                Taken::Baseless => {
                    self.tell_guards(from.addr, &zone, flag::BASE, out);
                    Vec::new()
                }
                Taken::Crowded => {
                    self.counters.crowded_out += 1;
                    Vec::new()
                }
            };
            if new && taken == Taken::Whole {
                // Who told it of us may have seen other supervisors than we do.
                self.tell_guards(from.addr, &zone, 0, out);
            }
            if !strangers.is_empty() {
                self.introduce(from.addr, &zone, &strangers, out);
            }
        }
        self.publish(now, &zone, guards.first() == Some(&self.book.me));
    }

    /// Publishes the summary of a zone, or takes it back when another is its first guard.
    fn publish(&mut self, now: Instant, zone: &Name, first: bool) {
        let Some(supervisor) = self.supervisor() else { return };
        let Some(guarded) = supervisor.zones.get_mut(zone) else { return };
        let (known, check_at) = (guarded.published, guarded.deadline());
        let value = match guarded.counts() {
            Some((members, delegates)) if first => {
                if known.is_some_and(|k| (k.members, k.delegates) == (members, delegates)) {
                    return supervisor.check_by(check_at);
                }
                guarded.revision += 1;
                Some(Summary { members, delegates, revision: guarded.revision })
            }
            _ => None,
        };
        guarded.published = value;
        if guarded.is_empty() {
            supervisor.zones.remove(zone);
        }
        supervisor.check_by(check_at);
        if value == known {
            return;
        }
        let key = format!("{PREFIX}{zone}");
        // A map holds so many keys and no more: zones beyond are missing from the census, and counted.
        let told = self.set(now, &key, value.map(|v| v.encode()).as_ref().map(|v| &v[..]));
        self.counters.crowded_out += u64::from(told.is_err());
    }

    /// We have left: delegates are told who guards their zones now.
    pub(in crate::zone) fn hand_over(&mut self, out: &mut impl Out) {
        let Some(supervisor) = self.supervisor() else { return };
        for (zone, guarded) in std::mem::take(&mut supervisor.zones) {
            guarded.addrs().for_each(|to| self.tell_guards(to, &zone, 0, out));
        }
    }

    /// A letter came after we left. Only delegates must hear that: they may have been told of us just before.
    pub(in crate::zone) fn turn_away(&mut self, from: Peer, letter: Upward<'_>, out: &mut impl Out) {
        if let Some(zone) = letter.zone()
            && self.supervisor().is_some()
            && letter.is_for_guards()
        {
            self.tell_guards(from.addr, &zone, 0, out);
        }
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
            let delegates: Vec<Addr> = guarded.addrs().collect();
            if !mine {
                supervisor.zones.remove(&zone);
            }
            for to in delegates {
                self.tell_guards(to, &zone, 0, out);
            }
        }
    }

    /// A delegate is out of reach.
    pub(super) fn delegate_lost(&mut self, now: Instant, addr: Addr, out: &mut impl Out) {
        let Some(supervisor) = self.supervisor() else { return };
        let lost = supervisor.zones.iter_mut().filter_map(|(zone, z)| z.lose(now, addr).then(|| zone.clone()));
        for zone in lost.collect::<Vec<_>>() {
            let first = self.guards_of(&zone).first() == Some(&self.book.me);
            self.publish(now, &zone, first);
            out.push(Output::Release { addr });
        }
    }

    /// Some zone is to be looked at.
    pub(super) fn expire_supervisor(&mut self, now: Instant, out: &mut impl Out) {
        let answer = self.config.connect;
        let Some(supervisor) = self.supervisor() else { return };
        supervisor.check_at = None;
        let due = supervisor.zones.iter_mut().filter(|(_, z)| z.deadline() <= now);
        let due: Vec<_> = due.map(|(zone, z)| (zone.clone(), z.expire(now, answer))).collect();
        let next = supervisor.zones.values().map(Guarded::deadline).fold(Instant::NEVER, Instant::min);
        supervisor.check_by(next);
        for (zone, steps) in due {
            for step in steps {
                match step {
                    Step::Ask(to) => self.tell_guards(to, &zone, flag::URGENT, out),
                    Step::Poll(to) => self.tell_guards(to, &zone, flag::BASE, out),
                    Step::Forget(addr) => out.push(Output::Release { addr }),
                }
            }
            let first = self.guards_of(&zone).first() == Some(&self.book.me);
            self.publish(now, &zone, first);
        }
    }

    /// True when we are a guard of this zone: what we know of it is what its delegates say.
    #[must_use]
    pub fn is_guard_of(&self, zone: &Name) -> bool {
        self.guards_of(zone).contains(&self.book.me)
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
        let replica = supervisor.zones.get(zone).filter(|z| z.counts().is_some());
        let replica = replica.map(|z| z.whole().cloned().unwrap_or_else(|| Replica::of(&z.members())));
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
