//! One wave, as one member sees it: whom it sent the notice, who has answered, what came up.
//!
//! RV-3: who is found to be gone is crossed: its children get the notice from us, and what it may still say is not counted, so
//! each member counts once, whatever way its agreement took.

use phalanx_core::{Fingerprint, Instant};
use phalanx_wire::view::{Ballot, Change, Task, ViewId, Wave};
use std::collections::BTreeSet;

/// A wave on its way down, as it was heard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Notice {
    pub(super) wave: Wave,
    pub(super) base: ViewId,
    pub(super) ballot: Ballot,
    pub(super) gone: Vec<Task>,
    pub(super) change: Option<Change>,
}

/// A wave on its way up, as it was heard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Ack {
    pub(super) wave: Wave,
    pub(super) base: ViewId,
    pub(super) ballot: Ballot,
    pub(super) count: u32,
    pub(super) gone: Vec<Task>,
    pub(super) best: Option<(Ballot, Change)>,
}

/// The wave that passes here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Relay {
    pub(super) wave: Wave,
    pub(super) ballot: Ballot,
    pub(super) change: Option<Change>,
    /// Who gave it to us last; nobody when it is our own.
    pub(super) upstream: Option<Task>,
    /// Who is crossed.
    pub(super) gone: BTreeSet<Task>,
    /// Those of them that whoever sent the notice did not know.
    pub(super) found: BTreeSet<Task>,
    /// Whom we sent it.
    pub(super) asked: BTreeSet<Task>,
    /// Those who have not answered.
    pub(super) awaited: BTreeSet<Task>,
    /// How many agree, ourselves included.
    pub(super) count: u32,
    /// The latest proposal that anybody here or below agreed to before.
    pub(super) best: Option<(Ballot, Change)>,
    /// RV-9: the application is saving its state.
    pub(super) pausing: bool,
    /// When to ask those who have not answered how they are.
    pub(super) ask_at: Instant,
    /// When the application must be done.
    pub(super) pause_ends: Instant,
}

impl Relay {
    /// All have answered.
    pub(super) fn is_complete(&self) -> bool {
        self.awaited.is_empty() && !self.pausing
    }

    pub(super) fn is_of(&self, wave: Wave, ballot: Ballot) -> bool {
        (self.wave, self.ballot) == (wave, ballot)
    }

    /// Takes an acknowledgement; false when nobody waits for it.
    pub(super) fn take(&mut self, from: Task, ack: Ack) -> bool {
        if !self.is_of(ack.wave, ack.ballot) || !self.awaited.remove(&from) {
            return false;
        }
        self.count = self.count.saturating_add(ack.count);
        self.found.extend(ack.gone);
        if let Some(best) = ack.best {
            self.consider(best);
        }
        true
    }

    /// Keeps the later of two proposals.
    pub(super) fn consider(&mut self, other: (Ballot, Change)) {
        if self.best.as_ref().is_none_or(|best| best.0 < other.0) {
            self.best = Some(other);
        }
    }

    pub(super) fn memory(&self) -> usize {
        16 * (self.gone.len() + self.found.len() + self.asked.len() + self.awaited.len())
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&self.wave).add(&self.ballot).add(&self.change).add(&self.upstream).add(&self.gone).add(&self.found);
        print.add(&self.asked).add(&self.awaited).add(&self.count).add(&self.best).add(&self.pausing);
        print.instant(self.ask_at);
        // It means nothing any more when the application has paused.
        print.instant(if self.pausing { self.pause_ends } else { Instant::NEVER });
    }
}
