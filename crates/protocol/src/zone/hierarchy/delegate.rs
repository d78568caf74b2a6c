//! Delegates: the members that speak for a base zone.
//!
//! HI-2, HI-4. The lowest of the ring are the zone's delegates: all members agree on them as far as they agree on the
//! view, and when one falls the next knows at once. All delegates report to all guards: whichever falls, news still goes
//! up. They declare themselves as monitors, so that suspicions come to them first.

use super::guarded::BEAT;
use super::{DELEGATES, Office, Upward};
use crate::member::{Engine, Name, Out, Output, Slot, Version};
use crate::zone::delta::Delta;
use crate::zone::letter::{Alive, Parcel};
use crate::zone::pace::Pace;
use crate::zone::replicate::{Change, MONITOR};
use crate::zone::view::Standing;
use crate::zone::{Config, Zone};
use phalanx_core::{Addr, Duration, Fingerprint, Instant};
use phalanx_wire::zone::{LetterKind, flag};
use std::sync::Arc;

/// A newly booted member waits until its view has been at rest for so long before it thinks of itself as a delegate.
const REST: Duration = Duration::from_millis(100);
/// Waits between questions for guards.
const ASK_FIRST: Duration = Duration::from_millis(20);
const ASK_LAST: Duration = Duration::from_secs(1);

/// Guards that a delegate reports to, those included that supervisors do not agree on.
const GUARDS_MAX: usize = 3 * super::GUARDS;

/// What a member holds to speak for its zone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::zone) struct Delegate {
    zone: Name,
    supervisors: Arc<[Addr]>,
    /// The delegates, lowest first, as far as known.
    delegates: Vec<Slot>,
    /// When to look who they are.
    look_at: Instant,
    rank: Option<u8>,
    /// The guards that have our base report.
    guards: Vec<Addr>,
    ask_at: Instant,
    wait: Duration,
    /// It came from another zone, and may ask supervisors so often who is in this one.
    moved: bool,
    seeks: u8,
    /// When to say something to the guards though nothing changed: they shall miss us, and we them.
    beat_at: Instant,
    /// What the guards have not heard.
    pace: Pace,
    delta: Delta,
}

impl Delegate {
    pub(super) fn new(zone: Name, supervisors: Arc<[Addr]>) -> Self {
        Self {
            zone,
            supervisors,
            delegates: Vec::new(),
            look_at: Instant::ZERO,
            rank: None,
            guards: Vec::new(),
            ask_at: Instant::NEVER,
            wait: Duration::ZERO,
            moved: false,
            seeks: 0,
            beat_at: Instant::NEVER,
            pace: Pace::new(),
            delta: Delta::default(),
        }
    }

    /// Of a member that comes from another zone.
    pub(super) fn moved(zone: Name, supervisors: Arc<[Addr]>) -> Self {
        Self { moved: true, ..Self::new(zone, supervisors) }
    }

    pub(super) fn has_moved(&self) -> bool {
        self.moved
    }

    pub(super) fn zone(&self) -> &Name {
        &self.zone
    }

    pub(super) fn supervisors(&self) -> Arc<[Addr]> {
        Arc::clone(&self.supervisors)
    }

    /// It speaks for its zone.
    pub(super) fn is_active(&self) -> bool {
        self.rank.is_some()
    }

    /// The last news: it leaves itself.
    pub(super) fn depart(&mut self, me: Slot, version: Version) {
        self.delta.not_alive(me);
        self.delta.leave(me, version, 0);
    }

    /// Answers of supervisors may lead to so many questions.
    pub(super) fn may_seek(&mut self, times: u8) {
        self.seeks = times;
    }

    pub(super) fn seeks_on(&mut self) -> bool {
        let may = self.seeks > 0;
        self.seeks -= u8::from(may);
        may
    }

    pub(super) fn deadline(&self) -> Instant {
        self.look_at.min(self.ask_at).min(self.pace.due_at()).min(self.beat_at)
    }

    pub(in crate::zone) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&(self.zone.as_str(), &self.delegates, self.rank, &self.guards, self.wait));
        print.add(&(self.moved, self.seeks));
        print.instant(self.look_at);
        print.instant(self.ask_at);
        print.instant(self.beat_at);
        self.pace.fingerprint(print);
        self.delta.fingerprint(print);
    }

    pub(super) fn is_guard(&self, addr: Addr) -> bool {
        self.guards.contains(&addr)
    }

    pub(super) fn follow(&mut self, now: Instant, supervisors: Arc<[Addr]>) {
        if self.supervisors != supervisors {
            self.supervisors = supervisors;
            if self.rank.is_some() && self.guards.is_empty() {
                self.ask_soon(now);
            }
        }
    }

    fn ask_soon(&mut self, now: Instant) {
        self.wait = Duration::ZERO;
        self.ask_at = now;
    }
}

impl Zone {
    pub(super) fn delegate(&mut self) -> Option<&mut Delegate> {
        match &mut self.office {
            Office::Delegate(delegate) => Some(delegate),
            Office::None(_) | Office::Supervisor(_) => None,
        }
    }

    /// Members came or went.
    pub(super) fn settle_delegate(&mut self, now: Instant, changes: &[Change], out: &mut impl Out) {
        let paces = self.config.paces;
        let (roster, view) = (&self.roster, &self.book.view);
        let Office::Delegate(delegate) = &mut self.office else { return };
        if changes.is_empty() {
            return;
        }
        if delegate.rank.is_some() {
            for change in changes {
                match *change {
                    Change::Joined(slot) => delegate.delta.alive(slot),
                    Change::Left(slot) => {
                        delegate.delta.not_alive(slot);
                        if let Standing::Gone(version) = view.standing(slot, roster) {
                            delegate.delta.leave(slot, version, 0);
                        }
                    }
                }
            }
            delegate.pace.news(now, &paces);
        }
        // A delegate that fell is replaced at once; who is new to the zone waits until it knows the others.
        if delegate.delegates.iter().any(|&s| !view.contains(s)) {
            self.look_for_delegates(now, out);
        } else {
            // Not all zones of a large system at the same moment.
            delegate.look_at = now + REST + Duration(self.rng.below(REST.0));
        }
    }

    /// Who are the delegates now, and are we one?
    fn look_for_delegates(&mut self, now: Instant, out: &mut impl Out) {
        let view = &self.book.view;
        let lowest: Vec<Slot> = self.roster.in_order().filter(|&s| view.contains(s)).take(DELEGATES).collect();
        let rank = lowest.iter().position(|&s| s == self.book.me).map(|r| r as u8);
        let Some(delegate) = self.delegate() else { return };
        delegate.look_at = Instant::NEVER;
        delegate.delegates = lowest;
        let before = std::mem::replace(&mut delegate.rank, rank);
        match (before, rank) {
            (None, Some(_)) => delegate.ask_soon(now),
            (Some(_), None) => self.resign(out),
            // The guards hear of the new rank with the next report.
            _ => {}
        }
        if before != rank {
            let value = rank.map(|r| [b'0' + r]);
            // Refused when the member's own attributes fill its map: then suspicions come to it as to everybody.
            let _ = self.set(now, MONITOR, value.as_ref().map(|v| &v[..]));
        }
    }

    pub(super) fn resign(&mut self, out: &mut impl Out) {
        let Some(delegate) = self.delegate() else { return };
        let guards = std::mem::take(&mut delegate.guards);
        (delegate.ask_at, delegate.beat_at) = (Instant::NEVER, Instant::NEVER);
        (delegate.pace, delegate.delta) = (Pace::new(), Delta::default());
        for to in guards {
            let report = self.report(flag::NONE, Alive::Nobody);
            self.send_across(to, report, out);
            out.push(Output::Release { addr: to });
        }
    }

    /// HI-2: the guards of our zone, as a supervisor sees them.
    pub(super) fn on_guards(&mut self, now: Instant, from: Addr, zone: &Name, letter: Upward<'_>, out: &mut impl Out) {
        let (tripwires, flags, supervisors) = (self.config.tripwires, letter.flags(), letter.alive());
        if self.name() != Some(zone) {
            // It takes us for a member of a zone that we left.
            let mut report = self.report(flag::NONE, Alive::Nobody);
            report.zone = Some(zone.clone());
            self.send_across(from, report, out);
            return self.release(from, out);
        }
        let Some(delegate) = self.delegate().filter(|d| d.rank.is_some()) else {
            return self.seek_from_guards(from, &supervisors, out);
        };
        let addrs: Vec<Addr> = supervisors.iter().take(super::GUARDS).map(|s| s.0.addr).collect();
        if addrs.is_empty() {
            // It left, and knows nobody who could take its place.
            return self.guard_lost(now, from, out);
        }
        delegate.ask_at = Instant::NEVER;
        let wait = if flags & flag::URGENT != 0 { Duration::ZERO } else { BEAT };
        delegate.beat_at = delegate.beat_at.min(now + wait);
        if !addrs.contains(&from) && !delegate.guards.contains(&from) {
            out.push(Output::Release { addr: from });
        }
        let Some(delegate) = self.delegate() else { return };
        // Supervisors that are cut apart name different guards. Each stays one until it says itself that it is none, or is
        // out of reach: otherwise each side would take us from the other, again and again.
        let mut guards = addrs.clone();
        guards.extend(delegate.guards.iter().filter(|g| !addrs.contains(g) && **g != from));
        guards.truncate(GUARDS_MAX);
        let old = std::mem::replace(&mut delegate.guards, guards.clone());
        for &addr in old.iter().filter(|a| !guards.contains(a)) {
            let report = self.report(flag::NONE, Alive::Nobody);
            self.send_across(addr, report, out);
            out.push(Output::Release { addr });
        }
        // Who lost what it had of us gets it again.
        let again = |addr: Addr| flags & flag::BASE != 0 && addr == from;
        for &addr in addrs.iter().filter(|a| !old.contains(a) || again(**a)) {
            let report = self.report(flag::BASE, Alive::All);
            self.send_across(addr, report, out);
            if tripwires {
                out.push(Output::Wire { to: addr });
            }
        }
    }

    /// A guard is out of reach: another supervisor knows who guards us now.
    pub(super) fn guard_lost(&mut self, now: Instant, addr: Addr, out: &mut impl Out) {
        let Some(delegate) = self.delegate() else { return };
        let before = delegate.guards.len();
        delegate.guards.retain(|&g| g != addr);
        if delegate.guards.len() < before {
            delegate.ask_soon(now);
            out.push(Output::Release { addr });
        }
    }

    pub(super) fn expire_delegate(&mut self, now: Instant, out: &mut impl Out) {
        let settled = self.discovery.is_settled();
        let Some(delegate) = self.delegate() else { return };
        if delegate.look_at <= now {
            if settled {
                self.look_for_delegates(now, out);
            } else {
                delegate.look_at = now + REST;
            }
        }
        let Some(delegate) = self.delegate() else { return };
        if delegate.ask_at <= now {
            self.ask_for_guards(now, out);
        }
        let Some(delegate) = self.delegate() else { return };
        if delegate.pace.due_at() <= now {
            self.report_news(now, out);
        }
        if self.delegate().is_some_and(|d| d.beat_at <= now) {
            self.report_all_well(now, out);
        }
    }

    /// Nothing changed for long, or so we think: guards compare what they hold of our zone, and a guard that is gone is
    /// missed when this does not reach it.
    fn report_all_well(&mut self, now: Instant, out: &mut impl Out) {
        self.report_news(now, out);
        let Some(delegate) = self.delegate() else { return };
        delegate.beat_at = if delegate.guards.is_empty() { Instant::NEVER } else { now + BEAT };
        let guards = delegate.guards.clone();
        let mut report = self.report(0, Alive::Nobody);
        report.fingerprint = Some(self.book.view.full_digest());
        self.send_all_across(&guards, report, out);
    }

    /// Asks a guard that is left, or else any supervisor that we know of.
    fn ask_for_guards(&mut self, now: Instant, out: &mut impl Out) {
        let Office::Delegate(delegate) = &mut self.office else { return };
        delegate.wait = (delegate.wait * 2).clamp(ASK_FIRST, ASK_LAST);
        delegate.ask_at = now + delegate.wait;
        let known = if delegate.guards.is_empty() { &delegate.supervisors[..] } else { &delegate.guards[..] };
        if known.is_empty() {
            delegate.ask_at = Instant::NEVER;
            return;
        }
        let to = known[self.rng.index(known.len())];
        let mut who = self.parcel(LetterKind::Who, 0, false);
        who.zone = self.name().cloned();
        self.send_across(to, who, out);
    }

    pub(super) fn report_news(&mut self, now: Instant, out: &mut impl Out) {
        let paces = self.config.paces;
        let Some(delegate) = self.delegate() else { return };
        delegate.pace.sent(now, &paces);
        if delegate.delta.is_empty() {
            return;
        }
        let (mask, left, _) = delegate.delta.take();
        let guards = delegate.guards.clone();
        let mut report = self.report(0, Alive::These(mask));
        report.left = left;
        self.send_all_across(&guards, report, out);
    }

    fn report(&self, flags: u16, alive: Alive) -> Parcel {
        let rank = match &self.office {
            Office::Delegate(delegate) => delegate.rank.unwrap_or(0),
            Office::None(_) | Office::Supervisor(_) => 0,
        };
        let flags = flags | u16::from(rank) << flag::RANK_SHIFT;
        let sender = (self.book.me, self.book.version());
        let mut report = Parcel::new(LetterKind::Report, flags, sender, &self.roster, &self.book.view, alive);
        report.zone = self.name().cloned();
        report
    }
}

// What a newcomer waits for must be longer than what it takes to hear of the others.
const _: () = assert!(REST.0 > Config::lan().mend.0);
