//! A node's seat in the tree of its zone, and who sits where.
//!
//! ST-2, ST-6. Seats are attributes of members ([`seats`](crate::cast::seats)), so whoever knows the members knows the tree. What the zone
//! says of a member is told to the [`Caster`] at once; seats are looked at again a moment after something changed.

use super::casts::{Casts, Sitter, hash, tree_number};
use super::{Node, Out};
use crate::cast::seats::{ATTRIBUTE, Claim, Seats};
use crate::cast::{Caster, Id, Input, Tree};
use crate::member::{Engine, Slot};
use phalanx_core::{Duration, Identity, Instant, Machine};
use std::collections::BTreeMap;

/// Changes that come together are looked at together.
const LOOK: Duration = Duration::from_millis(20);
/// A hole in the tree is no hurry: casts go around it, and whoever sees somebody die has more urgent things to do.
const LOOK_AT_HOLES: Duration = Duration::from_millis(100);
/// Names of those who sit nowhere any more; past it they are forgotten.
const GONE_MAX: usize = 4096;

impl<E: Engine> Node<E> {
    /// ST-6: holes in the tree are filled now, whatever the policy says.
    pub fn repair(&mut self, now: Instant) {
        if let Some(casts) = &mut self.casts {
            (casts.fill, casts.look_at) = (true, now);
        }
    }

    /// Sits where a directory outside says, since `turn`: a later one is right about a seat that was another's before.
    pub fn take_seat(&mut self, now: Instant, seat: Id, turn: u64) {
        let Self { casts: Some(casts), engine, management, .. } = self else { return };
        let Some(engine) = engine.as_mut().or(management.as_deref_mut()) else { return };
        let Some(who) = casts.who(engine) else { return };
        // Who was given a seat later holds it: whoever had it before lost it there, and does not know yet.
        let claim = Claim { since: u64::MAX - turn, seat, who, tree: casts.tree };
        if engine.set(now, ATTRIBUTE, Some(claim.to_string().as_bytes())).is_ok() {
            casts.mine = Some(claim);
        }
        casts.look_at = now;
    }

    /// The zone is another one now, and so is its tree.
    pub fn replant(&mut self, now: Instant, tree: &str) {
        if let Some(casts) = &mut self.casts {
            casts.tree = tree_number(tree, casts.config.fan_out);
            casts.planted += 1;
            (casts.caster, casts.mine, casts.look_at) = (None, None, now + LOOK);
            casts.sitters.clear();
            casts.names.clear();
            casts.slots.clear();
        }
    }

    /// A member's seat changed, or it is gone.
    pub(super) fn on_sitter(&mut self, now: Instant, member: Slot, is_gone: bool, out: &mut impl Out) {
        let Some(casts) = &mut self.casts else { return };
        casts.look_at = casts.look_at.min(now + if is_gone { LOOK_AT_HOLES } else { LOOK });
        let gone = if is_gone { casts.slots.remove(&member) } else { None };
        if let Some(id) = gone.filter(|id| casts.mine.is_none_or(|m| m.seat != *id)) {
            self.with_caster(now, out, |caster, out| caster.handle(now, Input::Failed { ids: &[id] }, out));
        }
    }

    /// Takes a seat where that is needed, and learns who sits where.
    pub(super) fn look_at_seats(&mut self, now: Instant, out: &mut impl Out) {
        let Self { casts: Some(casts), engine, management, .. } = self else { return };
        let Some(engine) = engine.as_mut().or(management.as_deref_mut()) else { return };
        let me = engine.me();
        let Some((who, version)) = casts.who(engine).zip(engine.version(me)) else { return };
        let mut all: BTreeMap<Identity, (Sitter, Option<Claim>)> = BTreeMap::new();
        for (slot, _) in engine.members() {
            let Some(card) = engine.card(slot) else { continue };
            let claim = match slot == me {
                true => casts.mine,
                false => engine.attribute(slot, ATTRIBUTE).and_then(Claim::read),
            };
            // It has another fan-out: what it casts, and what we do, are nothing to each other.
            if claim.is_some_and(|claim| claim.tree != casts.tree) {
                continue;
            }
            let name = card.name.as_str().to_owned();
            let sitter = Sitter { slot, addr: card.addr, name, who: claim.map_or(0, |c| c.who) };
            all.insert(card.identity, (sitter, claim));
        }
        let Some(identity) = engine.card(me).map(|c| c.identity) else { return };
        let look =
            |all: &BTreeMap<Identity, (Sitter, Option<Claim>)>| Seats::of(all.iter().map(|(w, (_, c))| (*w, *c)));
        let mut seats = look(&all);
        let fill = std::mem::take(&mut casts.fill);
        let wanted = match casts.config.external {
            true => None,
            false => seats.wanted(identity, version.incarnation, casts.config.repair, fill),
        };
        if let Some((seat, since)) = wanted {
            let claim = Claim { since, seat, who, tree: casts.tree };
            // Holes may be left, and when it cannot be said now, it can a moment later.
            (casts.fill, casts.look_at) = (fill, casts.look_at.min(now + LOOK));
            if engine.set(now, ATTRIBUTE, Some(claim.to_string().as_bytes())).is_ok() {
                casts.mine = Some(claim);
                // It sits there at once: whoever hears of it casts to it there.
                if let Some((sitter, old)) = all.get_mut(&identity) {
                    (sitter.who, *old) = (who, Some(claim));
                }
                seats = look(&all);
            }
        }
        let held: Vec<(Claim, Sitter)> =
            seats.iter().filter_map(|(claim, who)| Some((claim, all.remove(&who)?.0))).collect();
        self.seat(now, &held, seats.size(), out);
    }

    /// Tells the caster who sits where.
    fn seat(&mut self, now: Instant, held: &[(Claim, Sitter)], size: u32, out: &mut impl Out) {
        let Some(casts) = &mut self.casts else { return };
        let mine = casts.mine.filter(|mine| held.iter().any(|(claim, _)| claim == mine));
        let before = std::mem::take(&mut casts.sitters);
        casts.sitters = held.iter().map(|(claim, sitter)| (claim.seat, sitter.clone())).collect();
        casts.slots = casts.sitters.iter().map(|(&id, s)| (s.slot, id)).collect();
        casts.note_names();
        let Some(mine) = mine else { return };
        let is_new = casts.caster.is_none();
        if is_new {
            let Ok(tree) = Tree::new(casts.config.fan_out, size.max(mine.seat.0 + 1)) else { return };
            casts.caster = Some(Caster::new(casts.config.caster, tree, casts.tree, mine.seat).called(mine.who));
        }
        let Some(caster) = &casts.caster else { return };
        let sits_anew = is_new || caster.me() != mine.seat;
        // Who was gone and came back before anybody looked sits where it sat; while we had no seat, nobody was told to the caster.
        let is_fresh = |id: &Id, s: &Sitter| {
            sits_anew || !caster.lives(*id) || before.get(id).is_none_or(|b| b.who != s.who || b.addr != s.addr)
        };
        let fresh: Vec<(Id, u64)> =
            casts.sitters.iter().filter(|(id, s)| is_fresh(id, s)).map(|(&id, s)| (id, s.who)).collect();
        let nobody = |id: &Id| !casts.sitters.contains_key(id);
        let empty: Vec<Id> = (0..size).map(Id).chain(before.keys().copied()).filter(nobody).collect();
        self.with_caster(now, out, |caster, out| {
            caster.handle(now, Input::Sized { nodes: size.max(caster.tree().len()) }, out);
            if sits_anew {
                caster.sit(now, mine.seat, out);
            }
            for &(id, who) in &fresh {
                caster.handle(now, Input::Seated { id, who }, out);
            }
            // Nobody answers from seats that were left, also from those that the tree is to lose.
            caster.handle(now, Input::Failed { ids: &empty }, out);
            caster.handle(now, Input::Sized { nodes: size }, out);
            if sits_anew {
                caster.hello(out);
            }
        });
    }
}

impl Casts {
    /// What our casts are known by, in this start of ours and in this tree.
    fn who(&self, engine: &impl Engine) -> Option<u64> {
        let me = engine.me();
        let (identity, version) = (engine.card(me)?.identity, engine.version(me)?);
        match &self.mine {
            Some(mine) => Some(mine.who),
            None => {
                let start = [version.incarnation, self.tree, self.planted].map(u64::to_le_bytes);
                Some(hash(identity.0.into_iter().chain(start.into_iter().flatten())))
            }
        }
    }

    fn note_names(&mut self) {
        for s in self.sitters.values() {
            if self.names.get(&s.who) != Some(&s.name) {
                self.names.insert(s.who, s.name.clone());
            }
        }
        if self.names.len() > self.sitters.len() + GONE_MAX {
            let there: std::collections::BTreeSet<u64> = self.sitters.values().map(|s| s.who).collect();
            self.names.retain(|who, _| there.contains(who));
        }
    }
}
