//! Topology: who becomes a neighbour of whom.
//!
//! ZN-4, 002 §3: a ring by SHA-1 of the identity, on which each member links to its K_s successors, so that everybody is
//! watched; and a random graph of degree K_r, nearly regular as Araneola keeps it: who has fewer neighbours asks, who
//! has K_r + 1 refuses, and who was refused a few times is taken by anybody.

use super::Zone;
use super::neighbour::Neighbour;
use super::replicate::Happening;
use crate::member::{Out, Output, Peer, Slot, Version};
use phalanx_core::{Addr, Code, Instant};
use phalanx_wire::zone::{LetterKind, flag};

/// Random neighbours over K_r that a member takes, and over K_r for those who were refused elsewhere.
const SPARE: usize = 1;
pub(super) const SPARE_URGENT: usize = 3;
/// After so many refusals in a row a request is urgent.
const REFUSALS: u32 = 3;
/// After so many it is given up.
const GIVE_UP: u32 = 10;
/// Draws for one random neighbour: most of a roster's slots are in the view.
const DRAWS: usize = 64;

impl Zone {
    /// Looks for the neighbours that are missing, and lets go of those that are not wanted any more.
    pub(super) fn mend(&mut self, now: Instant, out: &mut impl Out) {
        self.mend_at = Instant::NEVER;
        self.mended = self.book.view.full_digest();
        self.discovery.take_newcomer();
        // Nobody has us as long as we hold back.
        if self.damping.is_waiting() && self.neighbours.iter().all(|n| !n.linked) {
            return;
        }
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
    pub(super) fn draw(&mut self) -> Option<Slot> {
        // In a small view there may be nobody left.
        if self.book.view.len() <= self.neighbours.iter().count() + 1 {
            return None;
        }
        self.draw_among(|zone, slot| slot != zone.book.me && !zone.neighbours.contains(slot))
    }

    /// A random member of the view that fits.
    pub(super) fn draw_among(&mut self, fits: impl Fn(&Self, Slot) -> bool) -> Option<Slot> {
        let slots = self.roster.len();
        let fits = |zone: &Self, slot| zone.book.view.contains(slot) && fits(zone, slot);
        for _ in 0..DRAWS {
            let slot = Slot(self.rng.index(slots) as u32);
            if fits(self, slot) {
                return Some(slot);
            }
        }
        let rest: Vec<Slot> = self.book.view.slots().filter(|&s| fits(self, s)).collect();
        (!rest.is_empty()).then(|| rest[self.rng.index(rest.len())])
    }

    /// Asks a member to be our neighbour, with our whole view unless that is with it.
    pub(super) fn ask(&mut self, now: Instant, slot: Slot, flags: u16, out: &mut impl Out) {
        let Some(addr) = self.roster.card(slot).map(|c| c.addr) else { return };
        let neighbour = self.neighbours.enter(now, slot, addr);
        if flags & flag::RING != 0 {
            neighbour.ahead = true;
        } else {
            neighbour.random = true;
        }
        if !neighbour.linked {
            neighbour.since = now;
        }
        let anew = if std::mem::replace(&mut neighbour.ours, true) { 0 } else { flag::ANEW };
        let connect = self.parcel(LetterKind::Connect, flags | anew, false);
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
        let Some(life) = self.life(sender) else { return };
        let (ring, tripwires) = (flags & flag::RING != 0, self.config.tripwires);
        let spare = if flags & flag::URGENT != 0 { SPARE_URGENT } else { SPARE };
        let full = self.neighbours.randoms() >= self.config.randoms + spare;
        let known = self.neighbours.of(sender).map(|n| (n.linked, n.random));
        if !ring && full && !known.is_some_and(|k| k.1) {
            let reject = self.parcel(LetterKind::Reject, 0, false);
            return self.send(from, reject, out);
        }
        // Our view goes to it, unless it is the same or with it already; what we lack follows.
        let same = fingerprint == Some(self.book.view.full_digest());
        let neighbour = self.neighbours.enter(now, sender, from);
        neighbour.addr = from;
        if ring {
            neighbour.behind = true;
        } else {
            neighbour.random = true;
        }
        // What we said to it as a neighbour it may have dropped, when it did not take us for one.
        let new = !neighbour.linked || flags & flag::ANEW != 0;
        if link(neighbour, now, life) && tripwires {
            out.push(Output::Unwire { to: from });
        }
        neighbour.ours = true;
        let whole = !std::mem::replace(&mut neighbour.viewed, true) && !same;
        let accept = self.parcel(LetterKind::Accept, flags & flag::RING, whole);
        self.send(from, accept, out);
        if new {
            self.replicate(now, Happening::Near(sender), out);
        }
    }

    pub(super) fn on_accept(&mut self, now: Instant, from: Addr, sender: Slot, flags: u16, out: &mut impl Out) {
        let Some(life) = self.life(sender) else { return };
        let tripwires = self.config.tripwires;
        // We may have given up meanwhile. It has not: to part again would cross with its next letter, and so on. Who is
        // not wanted on the ring is let go of in good order later.
        let neighbour = self.neighbours.enter(now, sender, from);
        if !neighbour.is_wanted() {
            neighbour.ahead = flags & flag::RING != 0;
            neighbour.random = !neighbour.ahead;
            self.mend_at = self.mend_at.min(now + self.config.mend);
        }
        let new = !neighbour.linked;
        if new {
            neighbour.round_trip = now.since(neighbour.since);
            if link(neighbour, now, life) && tripwires {
                out.push(Output::Unwire { to: neighbour.addr });
            }
        }
        neighbour.ours = true;
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

    /// The incarnation of a member that is there.
    fn life(&self, slot: Slot) -> Option<u64> {
        self.book.view.of(slot, &self.roster).map(|v| v.incarnation)
    }

    pub(super) fn on_reject(&mut self, now: Instant, sender: Slot, out: &mut impl Out) {
        let Some(neighbour) = self.neighbours.of(sender) else { return };
        neighbour.random = false;
        if !neighbour.is_wanted() {
            self.drop_neighbour(now, sender, out);
        }
        // Where all have enough, one may be left with fewer; it tries again when something changes.
        self.refusals += 1;
        self.mend_at = Instant::NEVER;
        if self.refusals < GIVE_UP {
            self.mend_at = now + self.config.mend / 4 * (1 << self.refusals.saturating_sub(REFUSALS));
        }
    }

    /// Tells a neighbour that we are neighbours no more, on the ring or by chance.
    fn part(&mut self, now: Instant, slot: Slot, flags: u16, out: &mut impl Out) {
        let Some(neighbour) = self.neighbours.of(slot) else { return };
        if flags & flag::RING != 0 {
            neighbour.ahead = false;
        } else {
            neighbour.random = false;
        }
        let (addr, wanted) = (neighbour.addr, neighbour.is_wanted());
        // Both sides must agree what they are to each other: who is nothing to us is told so.
        let part = self.parcel(LetterKind::Disconnect, if wanted { flags } else { flag::ALL }, false);
        self.send(addr, part, out);
        if !wanted {
            // The other side closes the wire, when it has read this: a wire that breaks before would alarm it.
            self.neighbours.remove(slot);
            self.replicate(now, Happening::Far(slot), out);
            out.push(Output::Release { addr });
        }
    }

    /// Parts with a random neighbour, not with `spared`, to make room for another. False when there is none to part with.
    pub(super) fn give_way(&mut self, now: Instant, spared: Slot, out: &mut impl Out) -> bool {
        let fits = |n: &&Neighbour| n.random && n.linked && !n.on_ring() && n.slot != spared;
        let slot = self.neighbours.iter().find(fits).map(|n| n.slot);
        slot.into_iter().for_each(|slot| self.part(now, slot, 0, out));
        slot.is_some()
    }

    pub(super) fn on_disconnect(&mut self, now: Instant, sender: Slot, flags: u16, out: &mut impl Out) {
        let Some(neighbour) = self.neighbours.of(sender) else { return };
        if flags & flag::ALL != 0 {
            // It does not know us: whatever we were to each other begins anew.
            return self.drop_neighbour(now, sender, out);
        }
        if flags & flag::RING != 0 {
            neighbour.behind = false;
        } else {
            neighbour.random = false;
        }
        self.drop_unwanted(now, sender, out);
    }

    /// Tells somebody who takes us for its neighbour that we are not, or even that we have removed it in this version.
    pub(super) fn disown(&mut self, addr: Addr, removed: Option<(Slot, Version)>, out: &mut impl Out) {
        if !self.watch.may_tell() {
            return;
        }
        let mut part = self.parcel(LetterKind::Disconnect, flag::ALL, false);
        if let Some((slot, version)) = removed {
            self.counters.told += 1;
            part.suspected.push((self.book.me, slot, version));
        }
        self.send(addr, part, out);
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
        if neighbour.linked {
            self.refusals = 0;
        }
        if neighbour.ahead || neighbour.random {
            self.mend_soon(now);
        }
    }

    /// A neighbour is missing: others are looked for at once, but those who are gone together are missed together.
    pub(super) fn mend_soon(&mut self, now: Instant) {
        let wait = if self.damping.is_waiting() { super::damping::MEND } else { self.config.mend / 4 };
        self.mend_at = self.mend_at.min(now + wait);
    }

    /// A session began. If what we told this neighbour was lost with the one before, it gets our whole view again.
    pub(super) fn on_up(&mut self, now: Instant, peer: Peer, out: &mut impl Out) {
        self.keep_stranger(peer.addr, out);
        let Some(neighbour) = self.neighbours.at(peer.addr).filter(|n| !n.ours) else { return };
        let slot = neighbour.slot;
        neighbour.linked = false;
        neighbour.since = now;
        self.replicate(now, Happening::Far(slot), out);
        self.resume(now, slot, out);
    }

    /// The link gave a peer up, or began a new session with it, or could not take a message.
    pub(super) fn on_down(&mut self, now: Instant, addr: Addr, code: Code, out: &mut impl Out) {
        self.discovery_failed(addr, out);
        self.office_lost(now, addr, out);
        let Some(neighbour) = self.neighbours.at(addr) else { return };
        (neighbour.ours, neighbour.viewed) = (false, false);
        // A new session follows, and `on_up` with it.
        if code == Code::NotInitialized {
            return;
        }
        let (slot, on_ring) = (neighbour.slot, neighbour.on_ring());
        // Whoever is asked to be a neighbour because others know nothing of it may be gone: that is to be found out.
        let missing = self.config.probes && code == Code::Unreachable;
        if on_ring || neighbour.linked || missing {
            self.doubt(now, slot, false, out);
        } else {
            self.drop_neighbour(now, slot, out);
        }
    }

    /// A neighbour is there that our view may not have reached: asks it again to be one. Who has chosen us will ask.
    pub(super) fn resume(&mut self, now: Instant, slot: Slot, out: &mut impl Out) {
        let Some(neighbour) = self.neighbours.of(slot) else { return };
        let (ahead, random) = (neighbour.ahead, neighbour.random);
        // It must know all that it is to us, or the two sides will part differently.
        for (wanted, flags) in [(ahead, flag::RING), (random, flag::URGENT)] {
            if wanted && self.book.view.contains(slot) {
                self.ask(now, slot, flags, out);
            }
        }
    }
}

/// Both have said that they are neighbours. True when they were in a former life of the other, and our wires lead there: a cut may
/// have kept that from us. Such a wire watches nobody, and its end, which kernels repeat until it arrives, would be taken for the
/// end of the new life.
fn link(neighbour: &mut Neighbour, now: Instant, life: u64) -> bool {
    let outlived = neighbour.life.replace(life).is_some_and(|former| former != life);
    neighbour.wired &= !outlived;
    neighbour.linked = true;
    neighbour.since = now;
    neighbour.heard_at = now;
    neighbour.vouched = false;
    neighbour.misses = 0;
    neighbour.beaten = false;
    neighbour.differs = 0;
    outlived
}

#[cfg(test)]
mod tests {
    use super::super::hostile::Desk;
    use super::super::*;
    use phalanx_wire::zone::{LetterKind, flag};

    /// Links made anew in the same life keep their wires; those to a former life are let go of, whoever holds them, before there
    /// are any to the new one.
    #[test]
    fn wires_end_with_the_life_they_lead_to() {
        const PEER: u32 = 3;
        let to = Addr::Local(PEER);
        let mut desk = Desk::new(Config::lan());
        let (connect, accept) = ((LetterKind::Connect, flag::RING), (LetterKind::Accept, flag::RING));
        let mut wires = |life, what| desk.letter_as(PEER, (life, 1), what, |_| ()).wires;
        assert_eq!(wires(5, connect), [], "who asks for the link holds the wire");
        assert_eq!(wires(5, connect), []);
        assert_eq!(wires(6, connect), [(to, false)]);
        assert_eq!(wires(6, accept), [(to, true)], "we had asked, too");
        assert_eq!(wires(6, accept), []);
        assert_eq!(wires(7, connect), [(to, false)]);
        assert_eq!(wires(7, accept), [(to, true)]);
    }
}
