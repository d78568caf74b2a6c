//! Topology: who becomes a neighbour of whom.
//!
//! ZN-4, 002 §3: a ring by SHA-1 of the identity, on which each member links to its K_s successors, so that everybody is
//! watched; and a random graph of degree K_r, nearly regular as Araneola keeps it: who has fewer neighbours asks, who
//! has K_r + 1 refuses, and who was refused a few times is taken by anybody.

use super::Zone;
use super::neighbour::Neighbour;
use super::replicate::Happening;
use crate::member::{Out, Output, Peer, Slot};
use phalanx_core::{Addr, Code, Instant};
use phalanx_wire::zone::{LetterKind, flag};

/// Random neighbours over K_r that a member takes, and over K_r for those who were refused elsewhere.
const SPARE: usize = 1;
const SPARE_URGENT: usize = 3;
/// After so many refusals in a row a request is urgent.
const REFUSALS: u32 = 3;
/// Each refusal doubles the wait for the next request, up to so often.
const LONGEST_WAIT: u32 = 12;
/// Draws for one random neighbour: most of a roster's slots are in the view.
const DRAWS: usize = 64;

impl Zone {
    /// Looks for the neighbours that are missing, and lets go of those that are not wanted any more.
    pub(super) fn mend(&mut self, now: Instant, out: &mut impl Out) {
        self.mend_at = Instant::NEVER;
        let view = &self.book.view;
        let ring = self.roster.behind(self.book.me).filter(|&s| view.contains(s));
        let wanted: Vec<Slot> = ring.take(self.config.successors).collect();
        let passed: Vec<Slot> =
            self.neighbours.iter().filter(|n| n.ahead && !wanted.contains(&n.slot)).map(|n| n.slot).collect();
        for slot in passed {
            self.part(now, slot, flag::RING, out);
        }
        for slot in wanted {
            if self.neighbours.of(slot).is_none_or(|n| !n.ahead) {
                self.ask(now, slot, flag::RING, out);
            }
        }
        let missing = self.config.randoms.saturating_sub(self.neighbours.randoms());
        for _ in 0..missing {
            let Some(slot) = self.draw() else { break };
            let urgent = if self.refusals >= REFUSALS { flag::URGENT } else { 0 };
            self.ask(now, slot, urgent, out);
        }
    }

    /// A random member that is no neighbour.
    fn draw(&mut self) -> Option<Slot> {
        // In a small view there may be nobody left.
        if self.book.view.len() <= self.neighbours.iter().count() + 1 {
            return None;
        }
        let slots = self.roster.len();
        let fits = |zone: &Self, slot| {
            zone.book.view.contains(slot) && slot != zone.book.me && !zone.neighbours.contains(slot)
        };
        for _ in 0..DRAWS {
            let slot = Slot(self.rng.index(slots) as u32);
            if fits(self, slot) {
                return Some(slot);
            }
        }
        let rest: Vec<Slot> = self.book.view.slots().filter(|&s| fits(self, s)).collect();
        (!rest.is_empty()).then(|| rest[self.rng.index(rest.len())])
    }

    /// Asks a member to be our neighbour. One that is linked already has our view.
    fn ask(&mut self, now: Instant, slot: Slot, flags: u16, out: &mut impl Out) {
        let Some(addr) = self.roster.card(slot).map(|c| c.addr) else { return };
        let neighbour = self.neighbours.enter(now, slot, addr);
        if flags & flag::RING != 0 {
            neighbour.ahead = true;
        } else {
            neighbour.random = true;
        }
        let linked = neighbour.linked;
        if !linked {
            neighbour.since = now;
        }
        let connect = self.parcel(LetterKind::Connect, flags, false);
        self.send(addr, connect, out);
    }

    pub(super) fn on_connect(
        &mut self,
        now: Instant,
        from: Addr,
        sender: Slot,
        (flags, fingerprint): (u16, Option<u64>),
        out: &mut impl Out,
    ) {
        if !self.book.view.contains(sender) {
            return;
        }
        let ring = flags & flag::RING != 0;
        let spare = if flags & flag::URGENT != 0 { SPARE_URGENT } else { SPARE };
        let full = self.neighbours.randoms() >= self.config.randoms + spare;
        let known = self.neighbours.of(sender).map(|n| (n.linked, n.random));
        if !ring && full && !known.is_some_and(|k| k.1) {
            let reject = self.parcel(LetterKind::Reject, 0, false);
            return self.send(from, reject, out);
        }
        // Our view goes to it, unless it is the same; what we lack follows.
        let same = fingerprint == Some(self.book.view.fingerprint());
        let neighbour = self.neighbours.enter(now, sender, from);
        neighbour.addr = from;
        if ring {
            neighbour.behind = true;
        } else {
            neighbour.random = true;
        }
        let new = !neighbour.linked;
        link(neighbour, now);
        let accept = self.parcel(LetterKind::Accept, 0, !same);
        self.send(from, accept, out);
        if new {
            self.replicate(now, Happening::Near(sender), out);
        }
    }

    pub(super) fn on_accept(&mut self, now: Instant, from: Addr, sender: Slot, out: &mut impl Out) {
        let tripwires = self.config.tripwires;
        let Some(neighbour) = self.neighbours.of(sender) else {
            let part = self.parcel(LetterKind::Disconnect, flag::RING, false);
            return self.send(from, part, out);
        };
        let new = !neighbour.linked;
        if new {
            neighbour.round_trip = now.since(neighbour.since);
            link(neighbour, now);
        }
        if neighbour.random {
            self.refusals = 0;
        }
        // A tripwire for each link, held by whoever asked for the link.
        if tripwires && !neighbour.wired {
            neighbour.wired = true;
            out.push(Output::Wire { to: neighbour.addr });
        }
        if new {
            self.replicate(now, Happening::Near(sender), out);
        }
    }

    pub(super) fn on_reject(&mut self, now: Instant, sender: Slot, out: &mut impl Out) {
        let Some(neighbour) = self.neighbours.of(sender) else { return };
        neighbour.random = false;
        self.refusals += 1;
        if !neighbour.is_wanted() {
            self.drop_neighbour(now, sender, out);
        }
        // Where nearly all are neighbours already there may be nobody left to take us.
        let wait = self.config.mend / 4 * (1 << self.refusals.min(LONGEST_WAIT));
        self.mend_at = self.mend_at.max(now + wait);
    }

    /// Tells a neighbour that we are neighbours no more, on the ring or by chance.
    fn part(&mut self, now: Instant, slot: Slot, flags: u16, out: &mut impl Out) {
        let Some(neighbour) = self.neighbours.of(slot) else { return };
        if flags & flag::RING != 0 {
            neighbour.ahead = false;
        } else {
            neighbour.random = false;
        }
        let addr = neighbour.addr;
        let part = self.parcel(LetterKind::Disconnect, flags, false);
        self.send(addr, part, out);
        if self.neighbours.of(slot).is_some_and(|n| !n.is_wanted()) {
            // The other side closes the wire, when it has read this: a wire that breaks before would alarm it.
            self.neighbours.remove(slot);
            self.replicate(now, Happening::Far(slot), out);
            out.push(Output::Release { addr });
        }
    }

    pub(super) fn on_disconnect(&mut self, now: Instant, sender: Slot, flags: u16, out: &mut impl Out) {
        let Some(neighbour) = self.neighbours.of(sender) else { return };
        if flags & flag::RING != 0 {
            neighbour.behind = false;
        } else {
            neighbour.random = false;
        }
        self.drop_unwanted(now, sender, out);
    }

    fn drop_unwanted(&mut self, now: Instant, slot: Slot, out: &mut impl Out) {
        if self.neighbours.of(slot).is_some_and(|n| !n.is_wanted()) {
            self.drop_neighbour(now, slot, out);
        }
    }

    /// Forgets a neighbour, with its tripwire and its link.
    pub(super) fn drop_neighbour(&mut self, now: Instant, slot: Slot, out: &mut impl Out) {
        let Some(neighbour) = self.neighbours.remove(slot) else { return };
        self.replicate(now, Happening::Far(slot), out);
        if self.config.tripwires {
            out.push(Output::Unwire { to: neighbour.addr });
        }
        out.push(Output::Release { addr: neighbour.addr });
        if neighbour.ahead || neighbour.random {
            self.mend_soon(now);
        }
    }

    /// A neighbour is missing: others are looked for at once, but those who are gone together are missed together.
    pub(super) fn mend_soon(&mut self, now: Instant) {
        self.mend_at = self.mend_at.min(now + self.config.mend / 4);
    }

    /// A session began anew: what was under way is lost. A neighbour gets our whole view again.
    pub(super) fn on_up(&mut self, now: Instant, peer: Peer, out: &mut impl Out) {
        let Some(neighbour) = self.neighbours.at(peer.addr).filter(|n| n.linked) else { return };
        let slot = neighbour.slot;
        let flags = match (neighbour.ahead, neighbour.random) {
            (true, _) => flag::RING,
            (false, true) => 0,
            // It has chosen us, and will ask again.
            (false, false) => return,
        };
        neighbour.linked = false;
        self.replicate(now, Happening::Far(slot), out);
        if self.book.view.contains(slot) {
            self.ask(now, slot, flags, out);
        }
    }

    /// The link gave a peer up.
    pub(super) fn on_down(&mut self, now: Instant, addr: Addr, code: Code, out: &mut impl Out) {
        self.discovery_failed(addr, out);
        self.office_lost(now, addr, out);
        let Some(neighbour) = self.neighbours.at(addr) else { return };
        // A new session follows, and `on_up` with it.
        if code == Code::NotInitialized {
            return;
        }
        let (slot, on_ring) = (neighbour.slot, neighbour.on_ring());
        if on_ring || neighbour.linked {
            self.doubt(now, slot, false, out);
        } else {
            self.drop_neighbour(now, slot, out);
        }
    }
}

fn link(neighbour: &mut Neighbour, now: Instant) {
    neighbour.linked = true;
    neighbour.since = now;
    neighbour.heard_at = now;
    neighbour.misses = 0;
}
