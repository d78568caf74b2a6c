//! Absence: a member that answers now and then, and is hardly there, because most of its packets or of ours to it are lost.
//!
//! Probes never find it dead, and those who rely on it wait. Beats carry numbers, so its watchers see how many were lost.
//! When most of them were, while all is well with our other neighbours, others are asked: those who watch it what they
//! have seen, and a few whom chance picks to probe it. The watchers alone do not do: they may all be behind one cut, while
//! the member is well with everybody else. Half of all who were asked must see what we see.

use super::Zone;
use crate::member::{Out, Slot};
use phalanx_core::{Addr, Fingerprint, Instant};
use phalanx_wire::zone::Note;

/// In place of a nonce: how well does it answer?
pub(super) const ABSENT: u32 = 0;
/// Of the last `Neighbour::BEATS` so many must be lost to make a neighbour hardly there, while our others miss at most
/// so many.
const LOST: u32 = 8;
const FINE: u32 = 2;
/// Others who must see the same, where there are so many.
const SECONDS: u16 = 2;

/// What others say about the member that we last asked about; over when its time is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Inquiry {
    slot: Slot,
    until: Instant,
    asked: u16,
    seconds: u16,
}

impl Inquiry {
    /// Nobody was asked about.
    pub(super) const NONE: Self = Self { slot: Slot(0), until: Instant::ZERO, asked: 0, seconds: 0 };

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.instant(self.until);
        print.add(&(self.slot, self.asked, self.seconds));
    }
}

impl Zone {
    /// Of a neighbour, or at it, at least so many of the last beats were lost, while most of our others are fine: otherwise it
    /// is rather we who hear badly. `None` when we do not watch it.
    fn is_absent(&self, slot: Slot, lost: u32) -> Option<bool> {
        let (mut absent, mut others, mut fine) = (None, 0, 0);
        for neighbour in self.neighbours.iter().filter(|n| n.linked && n.on_ring()) {
            if neighbour.slot == slot {
                absent = Some(neighbour.lost() >= lost);
            } else {
                others += 1;
                fine += usize::from(neighbour.lost() <= FINE && neighbour.doubt.is_none());
            }
        }
        absent.map(|absent| absent && fine > 0 && fine * 2 > others)
    }

    /// A beat came of a neighbour: if too many did not, others are asked what they see of it.
    pub(super) fn look_for_the_absent(&mut self, now: Instant, slot: Slot, out: &mut impl Out) {
        if now < self.watch.inquiry.until || self.is_absent(slot, LOST) != Some(true) {
            return;
        }
        let Some(of) = self.roster.card(slot).map(|c| c.identity) else { return };
        let (view, me, many) = (&self.book.view, self.book.me, self.config.successors);
        let there = |s: &Slot| view.contains(*s) && *s != me;
        let watchers = self.roster.behind(slot).filter(there).take(many);
        let mut asked: Vec<Slot> = watchers.chain(self.roster.before(slot).filter(there).take(many)).collect();
        // On a small ring the same ones are on both sides.
        asked.sort_unstable();
        asked.dedup();
        for _ in 0..self.config.helpers {
            asked.extend(self.draw_among(|_, s| s != me && s != slot && !asked.contains(&s)));
        }
        let until = now + self.config.beat;
        self.watch.inquiry = Inquiry { slot, until, asked: asked.len() as u16, seconds: 0 };
        let addrs: Vec<Addr> = asked.into_iter().filter_map(|s| Some(self.roster.card(s)?.addr)).collect();
        for to in addrs {
            self.note(to, &Note::Ask { nonce: ABSENT, of }, out);
        }
    }

    /// What our own beats say of a member that somebody else finds hardly there: nothing when we do not watch it.
    pub(super) fn seems_absent(&self, slot: Slot) -> Option<bool> {
        self.is_absent(slot, LOST / 2)
    }

    /// Somebody sees the same.
    pub(super) fn on_absent(&mut self, now: Instant, slot: Slot, out: &mut impl Out) {
        let inquiry = &mut self.watch.inquiry;
        if inquiry.slot != slot || now >= inquiry.until {
            return;
        }
        inquiry.seconds += 1;
        let Inquiry { asked, seconds, .. } = *inquiry;
        if seconds * 2 >= asked && seconds >= SECONDS.min(asked) && self.is_absent(slot, LOST) == Some(true) {
            self.watch.inquiry = Inquiry::NONE;
            self.suspect(now, slot, out);
        }
    }
}
