//! Casts that are under way, and what a node made of each.
//!
//! What was sent to somebody who dies may be lost with it, so it is remembered until everybody has it, or for a while.

use super::tree::Id;
use phalanx_core::{Fingerprint, Instant, Shared};
use phalanx_wire::cast::{Multicast, To};
use std::collections::{BTreeMap, VecDeque};

/// One message of a source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Cast {
    /// Where it was cast.
    pub(super) source: Id,
    /// By whom.
    pub(super) who: u64,
    /// The how manieth; 0 for a message to some.
    pub(super) number: u64,
    pub(super) stable: u64,
    pub(super) body: Shared,
    /// All of the message, as it goes down the tree.
    pub(super) wire: Option<Shared>,
}

/// A cast that we have had lately.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Recent {
    pub(super) cast: Cast,
    pub(super) until: Instant,
    pub(super) sent: Vec<Sent>,
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
                32 * to.len() + 4 * (path.len() + seen.len() + dead.len())
            }
        }
    }

    pub(super) fn to(&self) -> Id {
        match self {
            Self::Down(to) | Self::Along(to, _) => *to,
        }
    }

    /// Where it is to go yet.
    fn ahead(&self) -> &[To] {
        match self {
            Self::Down(_) => &[],
            Self::Along(_, header) => header.to.get(header.index as usize..).unwrap_or_default(),
        }
    }
}

impl Recent {
    fn bytes(&self) -> usize {
        self.cast.body.len() + self.sent.iter().map(Sent::bytes).sum::<usize>()
    }
}

/// Who cast it, and the how manieth it is; a message to some is told by whom it goes to next, and the how manieth it is to that one.
type Key = (u64, u64, (u64, u64));

/// What tells casts to everybody from each other.
const WHOLE: (u64, u64) = (0, 0);

/// All of them.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Memory {
    recent: BTreeMap<Key, Recent>,
    /// When each is to be forgotten, the oldest first; some are forgotten already.
    order: VecDeque<(Instant, Key)>,
    bytes: usize,
}

impl Memory {
    /// Notes what we made of a cast. What comes by again on its way to the same ones counts once: a message that turns back where others are
    /// dead would leave again for each time that it was here, and each of those likewise elsewhere.
    pub(super) fn note(&mut self, until: Instant, cast: &Cast, sent: Option<Sent>) {
        let next = sent.as_ref().and_then(|s| s.ahead().first()).map_or(WHOLE, |to| (to.who, to.letter));
        let key = (cast.who, cast.number, if cast.number == 0 { next } else { WHOLE });
        if let Some(recent) = self.recent.get_mut(&key) {
            self.bytes -= recent.bytes();
            if let Some(sent) = sent {
                recent.sent.retain(|s| s.ahead().is_empty() || s.ahead() != sent.ahead());
                recent.sent.push(sent);
            }
            self.bytes += recent.bytes();
            return;
        }
        let recent = Recent { cast: cast.clone(), until, sent: sent.into_iter().collect() };
        self.bytes += recent.bytes();
        self.recent.insert(key, recent);
        self.order.push_back((until, key));
    }

    /// Takes back what was sent to some of those who are dead, of casts that are to be looked at: to be sent another way.
    pub(super) fn lost(&mut self, to: &[Id]) -> Vec<(Cast, Sent)> {
        let mut all = Vec::new();
        for recent in self.recent.values_mut() {
            let lost = recent.sent.extract_if(.., |s| to.contains(&s.to()));
            all.extend(lost.map(|sent| (recent.cast.clone(), sent)));
        }
        self.bytes -= all.iter().map(|(_, sent)| sent.bytes()).sum::<usize>();
        all
    }

    /// Casts to everybody, those of one source after the other.
    pub(super) fn casts(&self) -> Vec<Cast> {
        self.recent.values().map(|r| &r.cast).filter(|c| c.number > 0).cloned().collect()
    }

    /// Casts of a source to everybody, from one number to another.
    pub(super) fn of(&self, who: u64, first: u64, last: u64) -> impl Iterator<Item = &Cast> {
        let range = (first <= last).then(|| self.recent.range((who, first, WHOLE)..=(who, last, WHOLE)));
        range.into_iter().flatten().map(|(_, r)| &r.cast)
    }

    /// Forgets the oldest ones past so many bytes, but never the last, nor those that are needed; how many.
    pub(super) fn fit(&mut self, bytes: usize, is_needed: impl Fn(&Cast) -> bool) -> u64 {
        let mut forgotten = 0;
        for _ in 0..self.order.len() {
            if self.bytes <= bytes || self.recent.len() <= 1 {
                break;
            }
            let Some((until, key)) = self.order.pop_front() else { break };
            if self.recent.get(&key).is_some_and(|r| is_needed(&r.cast)) {
                self.order.push_back((until, key));
            } else {
                forgotten += u64::from(self.forget(&key));
            }
        }
        forgotten
    }

    /// Forgets those whose time is over, unless they are still needed: then it begins anew.
    pub(super) fn expire(&mut self, now: Instant, until: Instant, is_needed: impl Fn(&Cast) -> bool) {
        while let Some(&(_, key)) = self.order.front().filter(|o| o.0 <= now) {
            self.order.pop_front();
            match self.recent.get_mut(&key) {
                Some(recent) if is_needed(&recent.cast) => {
                    recent.until = until;
                    self.order.push_back((until, key));
                }
                _ => _ = self.forget(&key),
            }
        }
        self.tidy();
    }

    fn forget(&mut self, key: &Key) -> bool {
        let recent = self.recent.remove(key);
        self.bytes -= recent.as_ref().map_or(0, Recent::bytes);
        recent.is_some()
    }

    fn tidy(&mut self) {
        while self.order.front().is_some_and(|o| !self.recent.contains_key(&o.1)) {
            self.order.pop_front();
        }
        if self.order.len() > 2 * self.recent.len() + 64 {
            self.order.retain(|o| self.recent.contains_key(&o.1));
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.order.front().map_or(Instant::NEVER, |o| o.0)
    }

    /// Everybody has the casts of a source up to this one.
    pub(super) fn stable(&mut self, who: u64, upto: u64) {
        while let Some((&key, _)) = self.recent.range((who, 1, WHOLE)..=(who, upto, WHOLE)).next() {
            self.forget(&key);
        }
        self.tidy();
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        for (key, recent) in &self.recent {
            print.add(key).add(&recent.cast.body);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn cast(who: u64, number: u64) -> Cast {
        Cast { source: Id(1), who, number, stable: 0, body: Shared::from(&[7; 10]), wire: None }
    }

    #[test]
    fn what_is_stable_or_old_or_too_much_is_forgotten() {
        let mut memory = Memory::default();
        for number in 1..=6 {
            memory.note(Instant(10 * number), &cast(5, number), Some(Sent::Down(Id(3))));
            memory.note(Instant(99), &cast(5, number), Some(Sent::Down(Id(4))));
        }
        memory.note(Instant(70), &cast(4, 1), None);
        assert_eq!((memory.bytes, memory.deadline()), (70, Instant(10)));
        memory.stable(5, 2);
        assert_eq!((memory.bytes, memory.deadline()), (50, Instant(30)));
        assert_eq!(memory.of(5, 1, 4).map(|c| c.number).collect::<Vec<_>>(), [3, 4]);
        assert_eq!(memory.of(5, 4, 3).count(), 0);
        memory.expire(Instant(40), Instant(100), |c| c.number == 4);
        assert_eq!((memory.bytes, memory.deadline()), (40, Instant(50)));
        assert_eq!(memory.fit(25, |_| false), 2);
        assert_eq!(
            memory.of(5, 1, 9).map(|c| c.number).collect::<Vec<_>>(),
            [4],
            "the one that began anew is the last"
        );
        assert_eq!(memory.fit(0, |_| true), 0, "both are needed");
        assert_eq!(memory.fit(0, |_| false), 1, "the last is kept");
    }

    #[test]
    fn what_was_sent_to_the_dead_is_taken_back() {
        let mut memory = Memory::default();
        let along = |next, letter| {
            let to = vec![To { letter, ..To::seat(Id(7)) }];
            Sent::Along(Id(next), Multicast { to, seen: vec![Id(1)], ..Multicast::default() })
        };
        memory.note(Instant(9), &cast(5, 1), Some(Sent::Down(Id(3))));
        memory.note(Instant(9), &cast(5, 1), Some(Sent::Down(Id(4))));
        memory.note(Instant(9), &cast(5, 1), Some(along(3, 0)));
        for letter in [1, 2, 2] {
            memory.note(Instant(9), &cast(5, 0), Some(along(3, letter)));
        }
        // It came back, and went on elsewhere.
        memory.note(Instant(9), &cast(5, 1), Some(along(9, 0)));
        assert_eq!(memory.lost(&[Id(3), Id(8)]).len(), 3);
        assert_eq!((memory.lost(&[Id(3)]).len(), memory.lost(&[Id(9)]).len(), memory.bytes), (0, 1, 30));
        assert_eq!((memory.lost(&[Id(4)]).len(), memory.casts().len()), (1, 1));
    }
}
