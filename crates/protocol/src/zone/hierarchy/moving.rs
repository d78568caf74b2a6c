//! Moves: a running member leaves its zone for another. So zones are split and merged while the cluster runs.
//!
//! HI-1. Each member has the name of its zone, and may be given another at any time; whoever is not told stays where it
//! is. Letters carry their sender's zone: what is said in one zone is not believed in another. A move is
//!
//! 1. a leave that names the new zone: no failure, nobody looks for the member, and what it left knows where it is;
//! 2. a boot in the new zone, in the same life and with the same attributes, in a higher version: what the old zone
//!    remembers does not stand against a return.
//!
//! ```text
//!   mover ── Update: I left for B ──▶ neighbours in A
//!         ── Discover, of B ────────▶ those whom A knows: ── Found ──▶ when they have moved, too
//!                                                         ── Elsewhere: these went to B ──▶ when they have not
//!         ── Seek B ────────────────▶ a supervisor: ── Guards ──▶, then a guard: ── Sought: these are in B ──▶
//! ```
//!
//! So those who move together find each other: all ask the same few first, who have moved or know who has. A zone whose
//! members nobody in the old one knows is found through the supervisors, or by seeds that come with the order to move.
//!
//! Words get lost. Who speaks as a member of another zone has left ours, whether its leave was heard or not; who is
//! taken for a member of a zone that it left says where it is.

use super::{Delegate, Office, Upward, score};
use crate::member::{Card, Engine, Name, Out, Output, Peer, Roster, Slot, Version};
use crate::zone::Zone;
use crate::zone::book::Parting;
use crate::zone::damping::Damping;
use crate::zone::delta::Mask;
use crate::zone::letter::{Alive, Parcel};
use crate::zone::neighbour::Neighbours;
use crate::zone::pace::Pace;
use crate::zone::replicate::MONITOR;
use crate::zone::view::{Standing, View};
use phalanx_core::{Addr, Code, Identity, Instant};
use phalanx_wire::zone::LetterKind;
use std::sync::Arc;

/// Members that are named to somebody who looks for a zone, and those of its old zone whom a mover asks.
pub(super) const NAMED: usize = 8;
/// Questions that answers of supervisors may lead to, until the next discovery.
const SEEKS: u8 = 4;

impl Upward<'_> {
    /// True when the letter says that this one left; and for which zone.
    fn parting(&self, of: &Identity) -> (bool, Option<Name>) {
        match self {
            Self::Parcel(p) => {
                let to = p.moved.iter().find(|m| m.0 == p.sender).map(|m| m.1.clone());
                (p.left.iter().any(|l| l.0 == p.sender), to)
            }
            Self::Letter(l) => {
                let to = l.moved().find(|m| m.identity == *of).and_then(|m| Name::new(m.zone).ok());
                (l.left().any(|l| l.identity == *of), to)
            }
        }
    }
}

impl Zone {
    /// HI-1: the name of our zone; none without a hierarchy, and in the management zone.
    #[must_use]
    pub fn name(&self) -> Option<&Name> {
        match &self.office {
            Office::Delegate(delegate) => Some(delegate.zone()),
            Office::None(_) | Office::Supervisor(_) => None,
        }
    }

    /// See [`Engine::relocate`].
    pub(in crate::zone) fn move_to(
        &mut self,
        now: Instant,
        zone: &Name,
        seeds: &[Addr],
        out: &mut impl Out,
    ) -> Result<bool, Code> {
        if self.book.has_left() {
            return Err(Code::NotInitialized);
        }
        let delegate = match &self.office {
            Office::Delegate(delegate) => delegate,
            Office::None(_) if self.is_free() => {
                self.settle_in(now, zone, seeds, out);
                return Ok(true);
            }
            Office::None(_) | Office::Supervisor(_) => return Err(Code::InvalidArgs),
        };
        let (left, supervisors) = (delegate.zone().clone(), delegate.supervisors());
        if left == *zone {
            return Ok(false);
        }
        self.now = now;
        let there: Vec<Addr> = self.known_in(zone).into_iter().map(|c| c.0.addr).collect();
        let asked = self.first_by(zone, self.book.view.slots().filter(|&s| s != self.book.me));
        let asked = asked.into_iter().filter_map(|s| Some(self.roster.card(s)?.addr));
        let asked: Arc<[Addr]> = seeds.iter().copied().chain(asked).collect();
        self.abdicate(now, out);
        self.book.set_out(now, zone, &self.roster);
        self.send_news(now, out);
        // Their links stay for a while: some come with us. Wires are closed by those who read that we left.
        for neighbour in std::mem::take(&mut self.neighbours).iter() {
            self.keep_stranger(neighbour.addr, out);
        }
        self.book.arrive(now, &left, &mut self.roster, out);
        self.discovery.renew(now, &asked);
        self.watch.relays.clear();
        self.office = Office::Delegate(Box::new(Delegate::moved(zone.clone(), supervisors)));
        (self.damping, self.pace, self.neighbours) = (Damping::new(), Pace::new(), Neighbours::default());
        (self.mend_at, self.mended, self.refusals) = (Instant::NEVER, 0, 0);
        self.settle(now, out);
        self.on_hints(now, there, false, out);
        self.rearm();
        Ok(true)
    }

    /// Whoever is in no zone and alone has nobody to take leave of.
    fn settle_in(&mut self, now: Instant, zone: &Name, seeds: &[Addr], out: &mut impl Out) {
        self.now = now;
        self.discovery.renew(now, &seeds.iter().copied().collect());
        self.office = Office::Delegate(Box::new(Delegate::moved(zone.clone(), Arc::default())));
        self.book.speak_up(self.book.version(), &self.roster);
        self.settle(now, out);
        self.rearm();
    }

    /// While we are free: who answered us, and from which zone. To be where others are is why we asked.
    #[must_use]
    pub fn invitation(&self) -> Option<&(Name, Addr)> {
        match &self.office {
            Office::None(invitation) if self.is_free() => invitation.as_deref(),
            _ => None,
        }
    }

    /// True while we are in no zone, and have not met anybody: one that was cut off from others goes back to them.
    #[must_use]
    pub fn is_free(&self) -> bool {
        matches!(self.office, Office::None(_)) && !self.has_met
    }

    /// Where supervisors are looked for; none without a hierarchy.
    #[must_use]
    pub fn supervisors(&self) -> Arc<[Addr]> {
        match &self.office {
            Office::Delegate(delegate) => delegate.supervisors(),
            Office::None(_) | Office::Supervisor(_) => Arc::default(),
        }
    }

    /// Supervisors are at these places from now on. Those that guard our zone go on doing so.
    pub fn follow(&mut self, now: Instant, supervisors: Arc<[Addr]>) {
        if let Some(delegate) = self.delegate() {
            delegate.follow(now, supervisors);
            self.rearm();
        }
    }

    /// Whoever speaks for its zone and leaves it says so, and speaks for it no more.
    pub(in crate::zone) fn abdicate(&mut self, now: Instant, out: &mut impl Out) {
        let (me, version) = (self.book.me, self.book.version());
        if let Some(delegate) = self.delegate().filter(|d| d.is_active()) {
            delegate.depart(me, version);
            self.report_news(now, out);
            self.resign(out);
            // It cannot fail: nothing is added.
            let _ = self.set(now, MONITOR, None);
        }
    }

    /// A letter from another zone.
    pub(in crate::zone) fn on_foreign(&mut self, now: Instant, from: Peer, letter: Upward<'_>, out: &mut impl Out) {
        let Some((author, version)) = letter.sender() else {
            self.counters.malformed += 1;
            return;
        };
        let zone = letter.zone();
        let (leaves, to) = letter.parting(&author.identity);
        if leaves {
            // It was our neighbour where we both were. Its wire is closed by us, unless it is our neighbour here.
            if self.config.tripwires && self.neighbours.at(from.addr).is_none() {
                out.push(Output::Unwire { to: from.addr });
            }
            if to.as_ref() == self.name() {
                self.on_hints(now, vec![from.addr], false, out);
            }
            return;
        }
        let known = self.roster.find(&author.identity).filter(|&slot| self.plausible(slot, version));
        let parting = Parting { code: 0, to: zone.as_ref() };
        let changed = zone.is_some()
            && known.is_some_and(|slot| self.book.on_leave(now, slot, version, parting, &self.roster, out));
        match letter.kind() {
            LetterKind::Elsewhere => {
                self.on_elsewhere(from.addr, out);
                if let (Some(zone), true, Office::None(invitation)) = (zone, self.is_free(), &mut self.office) {
                    *invitation = Some(Box::new((zone, from.addr)));
                }
                let hints = letter.alive().into_iter().map(|m| m.0.addr).collect();
                self.on_hints(now, hints, false, out);
            }
            LetterKind::Discover => {
                if self.may_answer(now, from.addr, out) {
                    self.say_elsewhere(from.addr, zone.as_ref(), out);
                }
            }
            _ => self.tell_elsewhere(from.addr, zone.as_ref(), out),
        }
        if changed {
            self.settle(now, out);
        }
    }

    /// Somebody takes us for a member of a zone in which we are not.
    pub(in crate::zone) fn tell_elsewhere(&mut self, to: Addr, zone: Option<&Name>, out: &mut impl Out) {
        if self.watch.may_tell() {
            self.say_elsewhere(to, zone, out);
        }
    }

    fn say_elsewhere(&mut self, to: Addr, zone: Option<&Name>, out: &mut impl Out) {
        let there = zone.map_or_else(Vec::new, |zone| self.known_in(zone));
        let elsewhere = self.slip(LetterKind::Elsewhere, &there);
        self.send(to, elsewhere, out);
        self.release(to, out);
    }

    /// Some of those whom we know to be in another zone: all who know the same name the same.
    fn known_in(&self, zone: &Name) -> Vec<(Card, Version)> {
        let first = self.first_by(zone, self.book.in_zone(zone));
        let entry = |s| Some((self.roster.card(s)?.clone(), Version::first(self.roster.incarnation(s))));
        first.into_iter().filter_map(entry).collect()
    }

    /// The first of these, in an order that a zone's name gives.
    fn first_by(&self, zone: &Name, slots: impl Iterator<Item = Slot>) -> Vec<Slot> {
        let mut all: Vec<(u64, Slot)> = slots.map(|s| (score(zone, self.roster.place(s)), s)).collect();
        all.sort_unstable_by(|a, b| b.cmp(a));
        all.into_iter().take(NAMED).map(|s| s.1).collect()
    }

    /// A letter that names members who need not be in our view.
    pub(super) fn slip(&self, kind: LetterKind, named: &[(Card, Version)]) -> Parcel {
        let mut roster = Roster::new(Arc::default(), named.len() + 1);
        let (mut view, mut mask) = (View::default(), Mask::default());
        let version = self.book.version();
        let me = self.roster.card(self.book.me).and_then(|card| roster.enter(card, version.incarnation));
        for (card, version) in named {
            if let Some(slot) = roster.enter(card, version.incarnation).filter(|&s| Some(s) != me) {
                view.set(slot, Standing::In(*version), &roster);
                mask.insert(slot);
            }
        }
        let sender = (me.unwrap_or(Slot(u32::MAX)), version);
        Parcel::new(kind, 0, sender, &roster, &view, Alive::These(mask))
    }

    /// Where those are of these who left for another zone.
    pub(in crate::zone) fn destinations(&self, left: &[(Slot, Version, u8)]) -> Vec<(Slot, Name)> {
        left.iter().filter_map(|l| Some((l.0, self.book.elsewhere(l.0)?.clone()))).collect()
    }

    /// Asks a supervisor for members of our zone: when we have just moved, and when we find nobody. False when there is
    /// nobody to ask, or nothing.
    pub(in crate::zone) fn seek(&mut self, patient: bool, out: &mut impl Out) -> bool {
        let (alone, settled) = (self.len() == 1, self.discovery.is_settled());
        let Office::Delegate(delegate) = &mut self.office else { return false };
        if !(alone && patient || delegate.has_moved() && (alone || !settled)) {
            return false;
        }
        let places = delegate.supervisors();
        if places.is_empty() {
            return false;
        }
        delegate.may_seek(SEEKS);
        let to = places[self.rng.index(places.len())];
        self.ask_for_members(to, out);
        true
    }

    fn ask_for_members(&self, to: Addr, out: &mut impl Out) {
        let mut seek = self.parcel(LetterKind::Seek, 0, false);
        seek.zone = self.name().cloned();
        self.send_across(to, seek, out);
    }

    /// Supervisors that guard our zone: they know who is in it.
    pub(super) fn seek_from_guards(&mut self, from: Addr, guards: &[(Card, Version)], out: &mut impl Out) {
        for (card, _) in guards.iter().filter(|g| g.0.addr != from) {
            if self.delegate().is_some_and(Delegate::seeks_on) {
                self.ask_for_members(card.addr, out);
            }
        }
    }

    /// At a supervisor: who is in that zone?
    pub(super) fn on_seek(&mut self, now: Instant, from: Peer, zone: &Name, letter: Upward<'_>, out: &mut impl Out) {
        let Some(author) = letter.sender().filter(|a| a.0.identity == from.identity) else {
            self.counters.impostors += 1;
            return;
        };
        let guards = self.guards_of(zone);
        let me = self.book.me;
        if self.supervisor().is_none() {
            return;
        }
        if !guards.contains(&me) {
            return self.tell_guards(from.addr, zone, 0, out);
        }
        let Some(supervisor) = self.supervisor() else { return };
        let named = supervisor.seek(now, zone, author);
        self.introduce(from.addr, zone, &named, out);
    }

    /// Names members of its zone to somebody.
    pub(super) fn introduce(&mut self, to: Addr, zone: &Name, named: &[(Card, Version)], out: &mut impl Out) {
        let mut sought = self.slip(LetterKind::Sought, named);
        sought.zone = Some(zone.clone());
        self.send_across(to, sought, out);
    }

    pub(super) fn on_sought(&mut self, now: Instant, zone: &Name, letter: Upward<'_>, out: &mut impl Out) {
        if self.name() != Some(zone) {
            return;
        }
        let unknown =
            |m: &(Card, Version)| self.roster.find(&m.0.identity).is_none_or(|slot| !self.book.view.contains(slot));
        let hints: Vec<Addr> = letter.alive().into_iter().filter(unknown).map(|m| m.0.addr).collect();
        self.on_hints(now, hints, true, out);
    }
}
