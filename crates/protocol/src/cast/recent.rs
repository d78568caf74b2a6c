//! Casts that are under way: what a node made of each, and whose branches are not known to have it.
//!
//! What was sent to somebody who dies may be lost with it, so it is remembered until everybody has it, or for a while.

use super::tree::Id;
use phalanx_core::{Fingerprint, Instant};
use phalanx_wire::cast::Multicast;
use std::collections::VecDeque;
use std::sync::Arc;

/// Among so many of the latest a cast is looked for that is sent on: it was taken just now, most likely.
const LATEST: usize = 4;

/// One message of a source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Cast {
    pub(super) source: Id,
    pub(super) life: u64,
    /// The how manieth; 0 for a message to some.
    pub(super) number: u64,
    pub(super) stable: u64,
    pub(super) body: Arc<[u8]>,
}

/// A cast that we have had lately.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Recent {
    pub(super) cast: Cast,
    pub(super) until: Instant,
    pub(super) sent: Vec<Sent>,
    /// Whose branches are not known to have it.
    pub(super) awaits: Vec<Id>,
}

/// What we made of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Sent {
    Down(Id),
    /// To whom, as it was before.
    Along(Id, Multicast),
}

impl Sent {
    fn bytes(&self) -> usize {
        match self {
            Self::Down(_) => 0,
            Self::Along(_, Multicast { to, path, seen, dead, .. }) => {
                16 * to.len() + 4 * (path.len() + seen.len() + dead.len())
            }
        }
    }

    pub(super) fn to(&self) -> Id {
        match self {
            Self::Down(to) | Self::Along(to, _) => *to,
        }
    }
}

impl Recent {
    fn bytes(&self) -> usize {
        self.cast.body.len() + self.sent.iter().map(Sent::bytes).sum::<usize>()
    }

    fn is_of(&self, source: Id, life: u64) -> bool {
        (self.cast.source, self.cast.life) == (source, life) && self.cast.number > 0
    }
}

/// All of them, the oldest first.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Memory {
    recent: VecDeque<Recent>,
    bytes: usize,
}

impl Memory {
    /// Notes what we made of a cast, and whose branches are to have it.
    pub(super) fn note(&mut self, until: Instant, cast: &Cast, sent: Option<Sent>, awaits: Vec<Id>) {
        let is_it = |r: &Recent| {
            (r.cast.source, r.cast.number) == (cast.source, cast.number) && Arc::ptr_eq(&r.cast.body, &cast.body)
        };
        if let Some(recent) = self.recent.iter_mut().rev().take(LATEST).find(|r| is_it(r)) {
            self.bytes += sent.as_ref().map_or(0, Sent::bytes);
            recent.sent.extend(sent);
            recent.awaits.extend(awaits);
            return;
        }
        self.keep(Recent { cast: cast.clone(), until, sent: sent.into_iter().collect(), awaits });
    }

    pub(super) fn keep(&mut self, recent: Recent) {
        self.bytes += recent.bytes();
        self.recent.push_back(recent);
    }

    /// All of them, to be kept again or not.
    pub(super) fn take(&mut self) -> VecDeque<Recent> {
        self.bytes = 0;
        std::mem::take(&mut self.recent)
    }

    /// Forgets the oldest ones past so many bytes, but never the last; how many.
    pub(super) fn fit(&mut self, bytes: usize) -> u64 {
        let mut forgotten = 0;
        while self.bytes > bytes && self.recent.len() > 1 {
            self.forget();
            forgotten += 1;
        }
        forgotten
    }

    /// Forgets those whose time is over.
    pub(super) fn expire(&mut self, now: Instant) {
        while self.recent.front().is_some_and(|r| r.until <= now) {
            self.forget();
        }
    }

    fn forget(&mut self) {
        if let Some(recent) = self.recent.pop_front() {
            self.bytes -= recent.bytes();
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.recent.front().map_or(Instant::NEVER, |r| r.until)
    }

    /// Some branches have all casts of a source up to a number; those that nobody is awaited for any more.
    pub(super) fn progress(&mut self, of: (Id, u64), upto: u64, has: impl Fn(Id) -> bool) -> Vec<u64> {
        let mut done = Vec::new();
        for recent in self.recent.iter_mut().filter(|r| r.is_of(of.0, of.1) && r.cast.number <= upto) {
            if !recent.awaits.is_empty() {
                recent.awaits.retain(|&id| !has(id));
                done.extend(recent.awaits.is_empty().then_some(recent.cast.number));
            }
        }
        done
    }

    /// Everybody has the casts of a source up to this one.
    pub(super) fn stable(&mut self, source: Id, life: u64, upto: u64) {
        let is_stable = |r: &Recent| r.is_of(source, life) && r.cast.number <= upto;
        // They are at the front, most of the time.
        if !self.recent.iter().take(LATEST).any(is_stable) {
            return;
        }
        self.recent.retain(|r| !is_stable(r));
        self.bytes = self.recent.iter().map(Recent::bytes).sum();
    }

    /// The first cast of a source that is remembered.
    pub(super) fn first_of(&self, source: Id, life: u64) -> Option<u64> {
        self.recent.iter().filter(|r| r.is_of(source, life)).map(|r| r.cast.number).min()
    }

    /// Whether this cast is remembered.
    pub(super) fn has(&self, source: Id, life: u64, number: u64) -> bool {
        self.recent.iter().rev().any(|r| r.is_of(source, life) && r.cast.number == number)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Recent> {
        self.recent.iter()
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        for recent in &self.recent {
            let Cast { source, life, number, body, .. } = &recent.cast;
            print.add(&(source, life, number, body)).add(&recent.awaits);
            print.instant(recent.until);
            for sent in &recent.sent {
                match sent {
                    Sent::Down(to) => print.add(&(to, None::<&Multicast>)),
                    Sent::Along(to, header) => print.add(&(to, Some(header))),
                };
            }
        }
    }
}
