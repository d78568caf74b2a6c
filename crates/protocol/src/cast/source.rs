//! What a node knows of somebody who casts: what came of it, and how far those have come whom the node looks after.

use super::tree::Id;
use super::window::Window;
use phalanx_core::{Fingerprint, Instant};
use std::collections::BTreeMap;

/// How far a branch of the tree has come with the casts of a source.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(super) struct Branch {
    /// All in it have casts up to this one.
    pub(super) upto: u64,
    /// Its top has them up to this one.
    pub(super) own: u64,
    /// Who is in it.
    pub(super) crowd: Crowd,
}

/// Some nodes, told from others by the sum of their numbers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub(super) struct Crowd {
    pub(super) count: u64,
    pub(super) sum: u64,
}

impl Crowd {
    pub(super) fn one(who: u64) -> Self {
        Self { count: 1, sum: who }
    }

    /// Both.
    pub(super) fn with(self, Self { count, sum }: Self) -> Self {
        Self { count: self.count.wrapping_add(count), sum: self.sum.wrapping_add(sum) }
    }
}

/// Somebody who casts.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Source {
    /// Broadcasts, and messages to us.
    pub(super) windows: [Window; 2],
    /// Everybody has its casts up to this one.
    pub(super) stable: u64,
    /// Whom we look after were told so up to this one.
    pub(super) announced: u64,
    /// What others say of their branches: where they sit, and who they are.
    heard: BTreeMap<Id, (u64, Branch)>,
    /// Who was told how far ours has come.
    pub(super) told: Option<(Id, Branch)>,
    /// Since when nothing moves, and how often others were asked since.
    pub(super) since: Instant,
    pub(super) tries: u32,
}

impl Source {
    /// Of which everybody has casts up to this one.
    pub(super) fn new(now: Instant, stable: u64) -> Self {
        Self { windows: [Window::after(stable), Window::default()], stable, since: now, ..Self::default() }
    }

    /// We have its casts up to this one.
    pub(super) fn own(&self) -> u64 {
        self.windows[0].upto()
    }

    /// Not everybody is known to have all that has come of it.
    pub(super) fn is_open(&self) -> bool {
        self.own() > self.stable || self.windows[0].waits_since() != Instant::NEVER
    }

    /// Somebody says how far its branch has come; whether that is news.
    pub(super) fn hear(&mut self, from: Id, by: u64, branch: Branch) -> bool {
        self.heard.insert(from, (by, branch)) != Some((by, branch))
    }

    /// What who sits there says.
    pub(super) fn heard(&self, from: Id, by: Option<u64>) -> Option<Branch> {
        self.heard.get(&from).filter(|h| Some(h.0) == by).map(|h| h.1)
    }

    pub(super) fn waits_since(&self) -> Instant {
        self.windows.iter().map(Window::waits_since).fold(Instant::NEVER, Instant::min)
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&(self.stable, self.announced, &self.heard, self.told, self.tries));
        print.instant(self.since);
        self.windows.iter().for_each(|w| w.fingerprint(print));
    }
}
