//! Neighbours: the few members that a member is linked with, and what it holds of each.

use crate::member::Slot;
use phalanx_core::{Addr, Duration, Fingerprint, Instant};

/// A member that we are linked with, or have asked to be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Neighbour {
    pub(super) slot: Slot,
    pub(super) addr: Addr,
    /// It is one of our successors on the ring.
    pub(super) ahead: bool,
    /// We are one of its successors.
    pub(super) behind: bool,
    /// It is one of our random neighbours.
    pub(super) random: bool,
    /// Both sides have said so.
    pub(super) linked: bool,
    /// In the present session we have spoken to it as a neighbour.
    pub(super) ours: bool,
    /// Our view is with it, or on its way.
    pub(super) viewed: bool,
    /// When we asked, or when it was linked.
    pub(super) since: Instant,
    /// The incarnation in which it was linked: wires with it lead to that life.
    pub(super) life: Option<u64>,
    /// A tripwire was asked for, or is up.
    pub(super) wired: bool,
    /// Beats sent to it, the last that it echoed, and the last heard from it.
    pub(super) beats: u8,
    pub(super) echoed: u8,
    pub(super) heard: u8,
    /// Some beat was heard since it was linked: `heard` means something.
    pub(super) beaten: bool,
    /// Beats that came though it is none of our neighbours on the ring.
    pub(super) strays: u8,
    /// Beats in a row that spoke of another view than ours.
    pub(super) differs: u8,
    pub(super) heard_at: Instant,
    /// Others hear it, and we do not: the way between us is bad.
    pub(super) vouched: bool,
    /// A bit for each of its last beats: it was lost, or said that ours were.
    pub(super) misses: u16,
    /// The last measured round trip.
    pub(super) round_trip: Duration,
    pub(super) doubt: Option<Box<Doubt>>,
}

/// A neighbour may be gone: it is being probed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Doubt {
    pub(super) since: Instant,
    pub(super) nonce: u32,
    pub(super) tries: u32,
    pub(super) next_at: Instant,
    /// Its tripwire broke; otherwise it was silent.
    pub(super) tripped: bool,
    /// How often its host said that nobody listens.
    pub(super) refused: u32,
    /// Others who were asked for their opinion, and those of them who get no answer from it either.
    pub(super) asked: u16,
    pub(super) seconds: u16,
    /// When others may be asked next.
    pub(super) ask_at: Instant,
}

impl Neighbour {
    pub(super) fn new(now: Instant, slot: Slot, addr: Addr) -> Self {
        Self {
            slot,
            addr,
            ahead: false,
            behind: false,
            random: false,
            linked: false,
            ours: false,
            viewed: false,
            since: now,
            life: None,
            wired: false,
            beats: 0,
            echoed: 0,
            heard: 0,
            beaten: false,
            strays: 0,
            differs: 0,
            heard_at: now,
            vouched: false,
            misses: 0,
            round_trip: Duration::ZERO,
            doubt: None,
        }
    }

    /// Beats that [`Neighbour::lost`] looks at.
    const BEATS: u32 = 12;

    /// How many of its last beats were lost, or said that ours were.
    pub(super) fn lost(&self) -> u32 {
        (self.misses & ((1 << Self::BEATS) - 1)).count_ones()
    }

    /// Neighbours on the ring exchange beats.
    pub(super) fn on_ring(&self) -> bool {
        self.ahead || self.behind
    }

    pub(super) fn is_wanted(&self) -> bool {
        self.ahead || self.behind || self.random
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&(self.slot, self.addr, self.ahead, self.behind, self.random, self.linked, self.ours, self.wired));
        print.add(&(self.viewed, self.life, self.vouched));
        print.add(&(self.beats, self.echoed, self.heard, self.beaten, self.strays, self.differs, self.misses));
        print.add(&(self.round_trip, self.doubt.is_some()));
        print.instant(self.since);
        print.instant(self.heard_at);
        if let Some(doubt) = &self.doubt {
            print.instant(doubt.since);
            print.instant(doubt.next_at);
            print.instant(doubt.ask_at);
            print.add(&(doubt.nonce, doubt.tries, doubt.tripped, doubt.refused, doubt.asked, doubt.seconds));
        }
    }
}

/// All neighbours, by slot.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Neighbours(Vec<Neighbour>);

impl Neighbours {
    pub(super) fn iter(&self) -> std::slice::Iter<'_, Neighbour> {
        self.0.iter()
    }

    pub(super) fn iter_mut(&mut self) -> std::slice::IterMut<'_, Neighbour> {
        self.0.iter_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn nth(&mut self, at: usize) -> &mut Neighbour {
        &mut self.0[at]
    }

    pub(super) fn of(&mut self, slot: Slot) -> Option<&mut Neighbour> {
        let at = self.0.binary_search_by_key(&slot, |n| n.slot).ok()?;
        Some(&mut self.0[at])
    }

    pub(super) fn at(&mut self, addr: Addr) -> Option<&mut Neighbour> {
        self.0.iter_mut().find(|n| n.addr == addr)
    }

    /// The neighbour in `slot`, known or new.
    pub(super) fn enter(&mut self, now: Instant, slot: Slot, addr: Addr) -> &mut Neighbour {
        let at = self.0.binary_search_by_key(&slot, |n| n.slot).unwrap_or_else(|at| {
            if self.0.len() == self.0.capacity() {
                self.0.reserve_exact(2);
            }
            self.0.insert(at, Neighbour::new(now, slot, addr));
            at
        });
        &mut self.0[at]
    }

    pub(super) fn remove(&mut self, slot: Slot) -> Option<Neighbour> {
        let at = self.0.binary_search_by_key(&slot, |n| n.slot).ok()?;
        Some(self.0.remove(at))
    }

    pub(super) fn contains(&self, slot: Slot) -> bool {
        self.0.binary_search_by_key(&slot, |n| n.slot).is_ok()
    }

    pub(super) fn randoms(&self) -> usize {
        self.0.iter().filter(|n| n.random).count()
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        self.0.iter().for_each(|n| n.fingerprint(print));
    }
}
