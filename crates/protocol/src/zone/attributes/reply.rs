//! Reply: what we asked for arrives (Algorithm 2, lines 14 to 24).

use super::state::{At, Replica, State};
use super::terms::Dropped;
use super::{Names, Out, Output};
use crate::member::Slot;
use phalanx_wire::attribute::{Piece, Pieces, Span};

impl State {
    /// Lines 14 to 24: takes the data, tells the application, and asks others for what is still missing.
    pub(super) fn on_reply<N: Names>(
        &mut self,
        at: &At<'_, N>,
        from: Slot,
        pieces: Pieces<'_>,
        more: bool,
        number: u16,
        out: &mut impl Out,
    ) {
        if !at.is_neighbour(from) {
            return self.counters.drop(Dropped::NotNeighbour);
        }
        let mut mentioned = Vec::new();
        for piece in pieces.iter() {
            let owner = at.names.slot(&piece.identity).and_then(|slot| Some((slot, at.names.incarnation(slot)?)));
            match (owner, piece.span) {
                (Some((owner, present)), span) if present == piece.incarnation => {
                    mentioned.push(owner);
                    if let Some(span) = span {
                        self.on_piece(at, owner, span, &piece, out);
                    }
                }
                (Some((_, present)), Some(span)) if present < piece.incarnation => {
                    self.note(from, piece.identity, piece.incarnation, span.through);
                }
                (None, Some(span)) => self.note(from, piece.identity, piece.incarnation, span.through),
                (_, Some(_)) => self.counters.drop(Dropped::Stale),
                (_, None) => {}
            }
        }
        mentioned.sort_unstable();
        // Lines 17 to 19 and 22: who does not have it after all is not waited for.
        if let Some(dry) = self.wants.answered(from, number, &mentioned, more) {
            self.push(at, &dry, out);
            self.ask_all(at, out);
        }
    }

    /// Lines 20, 21, 23 and 24, for one map of a member in the view.
    fn on_piece<N: Names>(&mut self, at: &At<'_, N>, owner: Slot, span: Span, piece: &Piece<'_>, out: &mut impl Out) {
        let known = self.known(at, owner, piece.incarnation);
        if owner == at.me {
            if span.through > known {
                self.overtake(at, span.through);
            }
            return;
        }
        let count = piece.entries().count() as u64;
        self.counters.entries += count;
        if span.through <= known {
            self.counters.duplicates += count;
            return;
        }
        let fresh = Replica { incarnation: piece.incarnation, ..Replica::default() };
        let mut replica = self.maps.remove(&owner).filter(|r| r.incarnation == piece.incarnation).unwrap_or(fresh);
        let merged = replica.map.merge(span, piece);
        if replica.map.version() > 0 {
            self.maps.insert(owner, replica);
        }
        match merged {
            Err(why) => self.counters.drop(why),
            Ok(merged) => {
                self.counters.duplicates += merged.duplicates;
                self.wants.hold(owner, span.through);
                self.has_news(at.now, owner, at.config);
                for (key, value) in &merged.changes {
                    out.push(Output::Changed { member: owner, key, value: value.as_deref() });
                }
            }
        }
    }
}
