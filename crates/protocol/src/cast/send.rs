//! How a node sends casts on, and around the dead.

use super::machine::{Caster, Out, Output};
use super::recent::{Cast, Sent};
use super::spread::{self, Message as Part};
use super::tree::{Id, Tree};
use super::walk::{Hop, Transit};
use phalanx_core::{Buf, Instant, Shared};
use phalanx_wire::cast::{Kind, Message, Multicast, To};
use std::collections::BTreeSet;

/// Room for what goes before the body of most messages.
const HEAD: usize = 64;

impl Caster {
    /// Sends a broadcast to those next below us.
    pub(super) fn spread(&mut self, now: Instant, cast: &Cast, out: &mut impl Out) {
        let parts = spread::messages(&self.tree, self.me, |id| self.lives(id));
        // Also who sends it to nobody may have to stand in for those above it.
        self.remember(now, cast, None);
        let mut bytes = cast.wire.clone();
        for part in parts {
            match part {
                Part::Around(to) => self.envelop(now, cast, to, out),
                Part::Down(to) if self.cut.contains(&to) => self.envelop(now, cast, vec![to], out),
                Part::Down(to) => {
                    self.remember(now, cast, Some(Sent::Down(to)));
                    let bytes = bytes.get_or_insert_with(|| self.message(cast, Kind::Broadcast));
                    out.push(Output::Send { to, bytes });
                }
            }
        }
    }

    /// Sends a broadcast to these in an envelope.
    pub(super) fn envelop(&mut self, now: Instant, cast: &Cast, to: Vec<Id>, out: &mut impl Out) {
        let to = visits(&self.tree, self.me, to);
        self.go_on(now, cast, Multicast { to, whole: true, seen: vec![self.me], ..Multicast::default() }, out);
    }

    /// Sends a multicast to its next hop, past destinations that are dead.
    pub(super) fn go_on(&mut self, now: Instant, cast: &Cast, mut header: Multicast, out: &mut impl Out) {
        while let Some(&To { seat: to, .. }) = header.to.get(header.index as usize) {
            if to == self.me {
                // Below a dead destination we found ourselves.
                return self.on_multicast(now, cast, header, out);
            }
            // The tree may have become smaller since it left.
            let tree = self.tree;
            for ids in [&mut header.path, &mut header.seen, &mut header.dead] {
                ids.retain(|&id| tree.contains(id));
            }
            let before = header.clone();
            let is_dead = !self.lives(to) || header.dead.contains(&to);
            let Multicast { path, seen, dead, .. } = &mut header;
            let mut transit = Transit::of(std::mem::take(path), std::mem::take(seen), std::mem::take(dead));
            let (known, gone, cut) = (self.known, &self.dead, &self.cut);
            let lives = |id: Id| id.0 < known && !gone.contains(&id) && !cut.contains(&id);
            let hop = match is_dead {
                true => Hop::Nowhere,
                false => transit.hop(&mut self.router, &self.tree, self.me, to, lives),
            };
            (header.path, header.seen, header.dead) = transit.into_parts();
            // Others reach them.
            header.dead.retain(|id| !self.cut.contains(id));
            match hop {
                Hop::On(next) | Hop::Back(next) => {
                    // What is lost of how far others have come is said anew.
                    if before.whole || before.to[before.index as usize].letter > 0 {
                        self.remember(now, cast, Some(Sent::Along(next, before)));
                    }
                    return self.send(next, cast, Kind::Multicast(header), out);
                }
                Hop::Nowhere => {
                    self.give_up(cast, &mut header, to, is_dead, out);
                    (header.path, header.seen) = (Vec::new(), vec![self.me]);
                }
            }
        }
    }

    /// Nobody leads to this destination: it is dead, or an orphan.
    fn give_up(&self, cast: &Cast, header: &mut Multicast, to: Id, is_dead: bool, out: &mut impl Out) {
        let index = header.index as usize;
        if !is_dead {
            let kind = if header.whole { Kind::Broadcast } else { letter(header.to[index]) };
            let bytes = self.message(cast, kind);
            out.push(Output::Reach { to, bytes: &bytes });
        } else if !header.whole {
            out.push(Output::Unreached { to });
        }
        if !header.whole {
            header.index += 1;
            return;
        }
        // Those below it need it all the same. Who has been asked for already is not asked for twice.
        let known: BTreeSet<Id> = header.to.iter().map(|t| t.seat).collect();
        let below = spread::below(&self.tree, to).into_iter().filter(|id| !known.contains(id)).collect();
        header.to.splice(index..=index, visits(&self.tree, self.me, below));
    }

    /// Sends a broadcast to one who lacks it.
    pub(super) fn hand(&mut self, now: Instant, cast: &Cast, to: Id, out: &mut impl Out) {
        if self.cut.contains(&to) {
            return self.envelop(now, cast, vec![to], out);
        }
        let bytes = self.message(cast, Kind::Broadcast);
        out.push(Output::Reach { to, bytes: &bytes });
    }

    /// Sends a message to another one's machine: directly, unless that link does not carry.
    pub(super) fn direct(&mut self, now: Instant, to: Id, bytes: Shared, out: &mut impl Out) {
        if self.cut.contains(&to) {
            let cast = self.own(0, bytes);
            return self.go_on(now, &cast, header(self.me, To::seat(to)), out);
        }
        out.push(match self.tree.are_linked(self.me, to) {
            true => Output::Send { to, bytes: &bytes },
            false => Output::Reach { to, bytes: &bytes },
        });
    }

    pub(super) fn send(&self, to: Id, cast: &Cast, kind: Kind, out: &mut impl Out) {
        let bytes = self.message(cast, kind);
        out.push(Output::Send { to, bytes: &bytes });
    }

    pub(super) fn message(&self, cast: &Cast, kind: Kind) -> Shared {
        let &Cast { source, who, number, stable, ref body, .. } = cast;
        let mut buf = Buf::new(0, body.len() + HEAD);
        Message { tree: self.name, source, who, number, stable, kind, body }.encode(buf.vec_mut());
        Shared::from(buf)
    }

    fn remember(&mut self, now: Instant, cast: &Cast, sent: Option<Sent>) {
        self.memory.note(now + self.config.kept, cast, sent);
        let mut memory = std::mem::take(&mut self.memory);
        self.counters.forgotten += memory.fit(self.config.kept_bytes, |c| self.is_needed(c));
        self.memory = memory;
    }
}

/// A message to one that is here.
pub(super) fn header(at: Id, to: To) -> Multicast {
    Multicast { to: vec![to], seen: vec![at], ..Multicast::default() }
}

/// A message to one, at the end of its way.
pub(super) fn letter(to: To) -> Kind {
    Kind::Multicast(header(to.seat, to))
}

/// Destinations of an envelope, in the order of their visits.
fn visits(tree: &Tree, at: Id, to: Vec<Id>) -> Vec<To> {
    spread::in_turn(tree, at, to).into_iter().rev().map(To::seat).collect()
}
