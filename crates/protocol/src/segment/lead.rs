//! Who leads each level (TG-2), who climbs to the next (TG-1), and what follows when somebody is silent (TG-5).

use super::Segment;
use super::level::{Level, Role};
use crate::member::{Out, Slot};
use phalanx_core::{Identity, Instant};
use phalanx_wire::segment::short;

/// Heartbeats from one greeting of the level above to the next: who came there meanwhile does not know us.
const GREETS: u8 = 10;

impl Segment {
    /// Finds who has been silent for too long.
    pub(super) fn look_for_silent(&mut self, now: Instant, out: &mut impl Out) {
        // From below: whoever takes over a level climbs before those above it give up.
        for level in 0..self.levels.len() as u8 {
            let fail = self.config.fail_after(level);
            let Some(own) = self.level(level) else { return };
            let silent: Vec<Slot> =
                own.peers.iter().filter(|(_, p)| p.heard_at + fail <= now).map(|(&s, _)| s).collect();
            for slot in silent {
                self.on_silent(now, level, slot, out);
            }
            self.ask_late(now, level, out);
        }
    }

    /// Asks those whose heartbeats were missed whether they live.
    fn ask_late(&mut self, now: Instant, level: u8, out: &mut impl Out) {
        let config = self.config;
        let Some(own) = self.levels.get_mut(usize::from(level)) else { return };
        let mut late = Vec::new();
        for (&slot, peer) in &mut own.peers {
            let before = peer.asked;
            // Who comes late itself asks once for all the times it should have.
            while config.ask_at(level, peer.heard_at, peer.asked) <= now {
                peer.asked += 1;
            }
            if peer.asked > before {
                late.push(slot);
            }
        }
        for slot in late {
            let Some(to) = self.book.card(slot).map(|c| c.addr) else { continue };
            self.counters.asks += 1;
            self.ask_who(level, to, out);
        }
    }

    fn on_silent(&mut self, now: Instant, level: u8, slot: Slot, out: &mut impl Out) {
        self.drop_peer(now, level, slot);
        self.book.unhear(now, slot, level, None, out);
        let until = self.orphans_until(now, level);
        self.book.untell(now, level, slot, until, true, out);
        if self.book.version(slot).is_none() {
            self.forget(now, slot, true, out);
        }
    }

    /// Somebody lives, and is not in this level any more: another leads below it.
    pub(super) fn on_leaves(&mut self, now: Instant, level: u8, slot: Slot, out: &mut impl Out) {
        self.drop_peer(now, level, slot);
        let until = self.orphans_until(now, level);
        self.book.unhear(now, slot, level, Some(until), out);
        let is_bereft = !self.book.told_by(level, slot).is_empty();
        self.book.untell(now, level, slot, until, false, out);
        // It may answer for them where it still is.
        let still = self.levels.iter().find(|own| own.peers.contains_key(&slot)).map(|own| own.number);
        if let Some(level) = still.filter(|_| is_bereft) {
            self.poll(now, level, slot, out);
        }
    }

    /// Somebody is gone from the view, by whatever way: it is in none of our levels. `is_silent`: nothing comes from there any more, and its switch
    /// may be dead. Otherwise somebody who lives there has told us, and will say who answers for those that it answered for.
    pub(super) fn forget(&mut self, now: Instant, slot: Slot, is_silent: bool, out: &mut impl Out) {
        for level in 0..self.levels.len() as u8 {
            if self.level(level).is_some_and(|l| l.peers.contains_key(&slot)) {
                self.drop_peer(now, level, slot);
            }
            let until = self.orphans_until(now, level);
            self.book.untell(now, level, slot, until, is_silent, out);
        }
    }

    fn drop_peer(&mut self, now: Instant, level: u8, slot: Slot) {
        let (me, listening) = (self.identity(self.book.me()), self.listening());
        let Some(own) = self.levels.get_mut(usize::from(level)) else { return };
        let Some(peer) = own.peers.remove(&slot) else { return };
        if own.backup == Some(slot) {
            own.backup = None;
        }
        if own.role != Role::Follows(slot) {
            return;
        }
        own.lost = self.book.identity(slot).map_or(0, |i| short(&i));
        // TG-2: the backup takes over at once, the others give it time; where there is none they elect at once.
        let backup = peer.pulse.backup;
        let names = own.peers.keys().filter_map(|&s| self.book.identity(s)).map(|i| short(&i));
        own.role = match () {
            () if backup == short(&me) => Role::Leads,
            () if backup != 0 && names.into_iter().any(|name| name == backup) => Role::Looks(now + listening),
            () => Role::Looks(now),
        };
    }

    fn identity(&self, slot: Slot) -> Identity {
        self.book.identity(slot).unwrap_or(Identity([0xff; 32]))
    }

    /// Looks at the leaders of all our levels.
    pub(super) fn look_for_leaders(&mut self, now: Instant, out: &mut impl Out) {
        let mut level = 0;
        while usize::from(level) < self.levels.len() {
            self.look_for_leader(now, level, out);
            level += 1;
        }
    }

    /// Looks who leads a level, and climbs to the next one when we do.
    pub(super) fn look_for_leader(&mut self, now: Instant, level: u8, out: &mut impl Out) {
        let Some(own) = self.level(level) else { return };
        let before = own.role;
        let me = self.identity(self.book.me());
        let first = own.leaders().min_by_key(|&slot| self.identity(slot));
        let is_lower = |slot: Slot| self.identity(slot) < me;
        let role = match before {
            Role::Leads => match first.filter(|&slot| is_lower(slot)) {
                Some(leader) => Role::Follows(leader),
                None => Role::Leads,
            },
            Role::Follows(leader) if own.leaders().any(|slot| slot == leader) => before,
            Role::Follows(_) => first.map_or(Role::Looks(now + self.listening()), Role::Follows),
            Role::Looks(until) => match first {
                Some(leader) => Role::Follows(leader),
                None if now >= until && !own.peers.iter().any(|(&s, p)| own.is_leaderless(p) && is_lower(s)) => {
                    Role::Leads
                }
                // The lowest will say so within a period, or die.
                None if now >= until => Role::Looks(now + self.config.period),
                None => before,
            },
        };
        let leads_above = usize::from(level) + 1 < self.levels.len();
        if let Some(own) = self.level_mut(level) {
            own.role = role;
            own.is_said &= role == Role::Leads;
        }
        if role != before {
            self.revise(now, level);
        }
        match role {
            Role::Leads if !leads_above => self.climb(now, level, out),
            Role::Follows(leader) if role != before => {
                self.descend(now, level, out);
                self.poll(now, level, leader, out);
            }
            Role::Looks(_) if leads_above => self.descend(now, level, out),
            _ => {}
        }
    }

    /// We lead this level: all in it hear so, and we come to the next one.
    fn climb(&mut self, now: Instant, level: u8, out: &mut impl Out) {
        // At the highest level nothing else shows that it has been said.
        if self.level_mut(level).is_some_and(|own| !std::mem::replace(&mut own.is_said, true)) {
            self.revise(now, level);
            self.beat_in(now, level, out);
        }
        let next = level + 1;
        if next >= self.config.max_ttl {
            return;
        }
        let (until, introduce) = (now + self.listening(), self.config.losses);
        if self.level(next).is_none() {
            self.levels.push(Level::new(next, until, introduce));
            self.beat_in(now, next, out);
            // Those there have them from who led before us, if anybody did.
            self.announce(next, out);
            let again_at = now + self.config.grace;
            self.level_mut(next).into_iter().for_each(|own| (own.again_at, own.again_later) = (again_at, true));
        }
    }

    /// Says once more for whom we answer, in levels to which we have just come.
    pub(super) fn announce_again(&mut self, now: Instant, out: &mut impl Out) {
        let later = now + self.config.period / 4;
        for level in 1..self.levels.len() as u8 {
            if let Some(own) = self.level_mut(level).filter(|own| own.again_at <= now) {
                own.again_at = if std::mem::take(&mut own.again_later) { later } else { Instant::NEVER };
                self.beat_in(now, level, out);
                self.announce(level, out);
            }
        }
    }

    /// We do not lead this level any more, and are in none above it.
    fn descend(&mut self, now: Instant, level: u8, out: &mut impl Out) {
        while self.levels.len() > usize::from(level) + 1 {
            let top = self.levels.len() as u8 - 1;
            let mut pulse = self.pulse(top);
            (pulse.leaves, pulse.leads) = (true, false);
            self.scratch.clear();
            phalanx_wire::segment::beat(top, &pulse, &mut self.scratch);
            self.cast(top, out);
            self.levels.pop();
            let until = self.orphans_until(now, top);
            self.book.unhear_all(now, top, until, out);
        }
    }

    /// Who takes over is no stranger in the level above by then: nobody there can open what a stranger says first, and those who hear that a leader
    /// is dead shall hear at once who answers for its nodes.
    pub(super) fn greet_above(&mut self, level: u8, out: &mut impl Out) {
        let (me, is_unicast, above) = (short(&self.identity(self.book.me())), self.fan.is_some(), level + 1);
        if is_unicast || above >= self.config.max_ttl {
            return;
        }
        let Some(own) = self.level_mut(level) else { return };
        let leader = own.follows().and_then(|leader| own.peers.get(&leader));
        if leader.is_none_or(|leader| leader.pulse.backup != me) {
            own.greets_in = None;
            return;
        }
        let left = own.greets_in.unwrap_or(0);
        own.greets_in = Some(left.checked_sub(1).unwrap_or(GREETS - 1));
        if left == 0 {
            self.scratch.clear();
            phalanx_wire::segment::greet(above, &mut self.scratch);
            self.cast(above, out);
        }
    }

    /// TG-2: a leader chooses at random who takes over.
    pub(super) fn choose_backup(&mut self, level: u8) {
        let Some(own) = self.levels.get_mut(usize::from(level)) else { return };
        if !own.leads() {
            own.backup = None;
            return;
        }
        if own.backup.is_some_and(|b| own.peers.contains_key(&b)) {
            return;
        }
        let all: Vec<Slot> = own.peers.keys().copied().collect();
        own.backup = if all.is_empty() { None } else { Some(all[self.rng.index(all.len())]) };
    }
}
