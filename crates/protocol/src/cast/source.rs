//! What a node knows of somebody who casts: what came of it, and how far those have come whom the node looks after.

use super::tree::Id;
use super::window::Window;
use phalanx_core::{Duration, Fingerprint, Instant};
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
    /// What others say of their branches, by where they sit.
    heard: BTreeMap<Id, Word>,
    /// Who was told how far ours has come.
    pub(super) told: Option<(Id, Branch)>,
    /// Since when nothing moves.
    pub(super) since: Instant,
    /// Since when not everybody is known to have everything.
    pub(super) open_since: Instant,
}

/// What somebody says of its branch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Word {
    /// Who sits there.
    by: u64,
    branch: Branch,
    /// Since when it has said nothing new or was asked, and how often it was since its last news.
    since: Instant,
    tries: u32,
    /// What was handed to it: after which cast, up to which, and when it last moved on.
    handed: Option<(u64, u64, Instant)>,
}

impl Source {
    /// Of which everybody has casts up to this one.
    pub(super) fn new(now: Instant, stable: u64) -> Self {
        let windows = [Window::after(stable), Window::default()];
        Self { windows, stable, since: now, open_since: now, ..Self::default() }
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
    pub(super) fn hear(&mut self, now: Instant, from: Id, by: u64, branch: Branch) -> bool {
        let is_news = self.heard.get(&from).is_none_or(|w| (w.by, w.branch) != (by, branch));
        if is_news {
            let before = self.heard.get(&from).filter(|w| w.by == by);
            let handed = before.and_then(|w| w.handed);
            self.heard.insert(from, Word { by, branch, since: now, tries: 0, handed });
        }
        is_news
    }

    /// Whether one who has casts up to `own` is to be handed later ones, up to `last`: not while what it was handed is still coming.
    pub(super) fn hand(&mut self, now: Instant, from: Id, own: u64, last: u64, patience: Duration) -> bool {
        let Some(word) = self.heard.get_mut(&from) else { return false };
        match &mut word.handed {
            Some((after, upto, at)) if own < *upto => {
                if own > *after {
                    (*after, *at) = (own, now);
                    return false;
                }
                if now < *at + patience {
                    return false;
                }
            }
            _ => {}
        }
        word.handed = Some((own, last, now));
        true
    }

    /// What who sits there says.
    pub(super) fn heard(&self, from: Id, by: Option<u64>) -> Option<Branch> {
        self.heard.get(&from).filter(|w| Some(w.by) == by).map(|w| w.branch)
    }

    /// Since when who sits there has said nothing new or was asked, and how often it was since.
    pub(super) fn silent(&self, from: Id, by: Option<u64>) -> (Instant, u32) {
        let word = self.heard.get(&from).filter(|w| Some(w.by) == by);
        word.map_or((self.open_since, 0), |w| (w.since, w.tries))
    }

    /// Who sits there is asked.
    pub(super) fn ask(&mut self, now: Instant, from: Id, by: u64) {
        let unheard = Word { by, branch: Branch::default(), since: now, tries: 0, handed: None };
        let word = self.heard.entry(from).or_insert(unheard);
        if word.by != by {
            *word = unheard;
        }
        (word.since, word.tries) = (now, word.tries + 1);
    }

    /// Whom we look after may have changed: they are asked soon.
    pub(super) fn hurry(&mut self) {
        self.heard.values_mut().for_each(|word| word.tries = word.tries.min(1));
    }

    pub(super) fn waits_since(&self) -> Instant {
        self.windows.iter().map(Window::waits_since).fold(Instant::NEVER, Instant::min)
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&(self.stable, self.announced, self.told));
        for (id, word) in &self.heard {
            print.add(&(id, word.by, word.branch, word.tries));
            print.instant(word.since);
            if let Some((after, upto, at)) = word.handed {
                print.add(&(after, upto));
                print.instant(at);
            }
        }
        print.instant(self.since);
        print.instant(self.open_since);
        self.windows.iter().for_each(|w| w.fingerprint(print));
    }
}
