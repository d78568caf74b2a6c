//! From neighbour to neighbour, to each once.
//!
//! What was passed on lately is kept for a while, and given to neighbours that are new.

use super::{Heard, Id, Out, Output};
use phalanx_core::{Addr, Duration, Fingerprint, Instant};
use phalanx_wire::rumour::Letter;
use std::collections::{BTreeSet, VecDeque};

/// How long a rumour is kept for new neighbours, how often they are looked for, and how many rumours are kept; the oldest goes.
pub(super) const KEPT: Duration = Duration::from_secs(5);
pub(super) const AGAIN: Duration = Duration::from_millis(100);
const KEPT_MAX: usize = 64;
/// Rumours that are remembered, so that they are heard once; the oldest is forgotten.
pub(super) const SEEN_MAX: usize = 4096;

/// What goes around, and what was heard of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Flood {
    pub(super) seen: BTreeSet<Id>,
    pub(super) order: VecDeque<Id>,
    recent: VecDeque<Recent>,
    /// When new neighbours are looked for.
    pub(super) again_at: Instant,
}

/// A rumour that was passed on lately.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Recent {
    id: Id,
    until: Instant,
    letter: Vec<u8>,
    /// Those who have it from us, or we from them.
    known: Vec<Addr>,
}

/// How a letter goes on.
#[derive(Clone, Copy)]
pub(super) struct Going<'a> {
    /// It is over then.
    pub(super) until: Instant,
    /// Who has it.
    pub(super) but: Option<Addr>,
    /// All neighbours, and those of them who hear it from us.
    pub(super) neighbours: &'a [Addr],
    pub(super) to: &'a [Addr],
}

impl Default for Flood {
    fn default() -> Self {
        Self { seen: BTreeSet::new(), order: VecDeque::new(), recent: VecDeque::new(), again_at: Instant::NEVER }
    }
}

impl Flood {
    /// False when it is known already.
    pub(super) fn note(&mut self, id: Id) -> bool {
        if !self.seen.insert(id) {
            return false;
        }
        self.order.push_back(id);
        if self.order.len() > SEEN_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.seen.remove(&oldest);
        }
        true
    }

    /// A neighbour has it, too.
    pub(super) fn hear_again(&mut self, id: Id, from: Addr) {
        if let Some(recent) = self.recent.iter_mut().find(|r| r.id == id) {
            recent.known.push(from);
        }
    }

    /// A letter goes on to all but the one it came from.
    pub(super) fn pass_on(&mut self, now: Instant, heard: Heard<'_>, until: Instant, out: &mut impl Out) {
        let Heard { from, letter, neighbours } = heard;
        if let Some(hops) = letter.hops.checked_sub(1) {
            self.spread(
                now,
                &Letter { hops, ..letter },
                Going { until, but: Some(from), neighbours, to: neighbours },
                out,
            );
        }
    }

    pub(super) fn spread(&mut self, now: Instant, letter: &Letter<'_>, going: Going<'_>, out: &mut impl Out) {
        let Going { until, but, neighbours, to } = going;
        let mut bytes = Vec::new();
        letter.encode(&mut bytes);
        for &to in to.iter().filter(|&&n| Some(n) != but) {
            out.push(Output::Send { to, bytes: &bytes });
        }
        let known = neighbours.iter().copied().chain(but).collect();
        if self.recent.len() >= KEPT_MAX {
            self.recent.pop_front();
        }
        let id = Id { boot: letter.boot, number: letter.number };
        self.recent.push_back(Recent { id, until: until.min(now + KEPT), letter: bytes, known });
        self.again_at = self.again_at.min(now + AGAIN);
    }

    /// Neighbours that are new hear what was told lately.
    pub(super) fn on_round(&mut self, now: Instant, neighbours: &[Addr], out: &mut impl Out) {
        if self.again_at > now {
            return;
        }
        self.recent.retain(|r| r.until > now);
        for recent in &mut self.recent {
            for &to in neighbours.iter().filter(|n| !recent.known.contains(n)) {
                out.push(Output::Send { to, bytes: &recent.letter });
            }
            recent.known = neighbours.to_vec();
        }
        self.again_at = if self.recent.is_empty() { Instant::NEVER } else { now + AGAIN };
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&self.order);
        for r in &self.recent {
            print.instant(r.until);
            print.add(&(r.id, &r.known));
        }
        print.instant(self.again_at);
    }
}
