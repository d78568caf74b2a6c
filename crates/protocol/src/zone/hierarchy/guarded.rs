//! A zone that a supervisor guards: what its delegates say of it, and which of them are believed.
//!
//! HI-2, HI-3. Delegates of one zone know each other, and say the same: the lowest in rank is believed. Two who do not
//! know each other speak for two parts of a zone, cut apart or not yet grown together: then everybody counts of whom one
//! of them knows, and they are introduced to each other. So whoever is no member of a zone can add to its census, and
//! never take away.
//!
//! A delegate that another does not know may also be dead: it is asked, and forgotten when it does not answer. When
//! nobody reports any more, the last that was known stands, with no delegates; its members are asked whether they are
//! elsewhere, because all may have moved at once.

use super::Upward;
use super::census::Summary;
use super::replica::Replica;
use crate::member::{Card, Peer, Version};
use phalanx_core::{Addr, Duration, Fingerprint, Identity, Instant};
use phalanx_wire::zone::flag;
use std::collections::BTreeMap;

/// Delegates of one zone that are heard: during an election there may be more than there should be.
const REPORTERS: usize = 8;
/// A delegate that another does not know is not asked sooner than so long after its last word.
const PATIENCE: Duration = Duration::from_secs(1);
/// Delegates report at least so often, see `delegate`; who misses three is asked.
pub(super) const BEAT: Duration = Duration::from_secs(5);
/// After the last delegate its members are asked, so many at once; ever more rarely when nobody answers.
const POLLED: usize = 32;
const POLL_FIRST: Duration = Duration::from_millis(250);
const POLL_LAST: Duration = Duration::from_secs(8);

/// What is known of a guarded zone.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Guarded {
    reporters: Vec<Reporter>,
    last: Option<Box<Last>>,
    /// What we published of it, when we are its first guard.
    pub(super) published: Option<Summary>,
    pub(super) revision: u32,
}

/// A delegate.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Reporter {
    identity: Identity,
    addr: Addr,
    rank: u8,
    replica: Replica,
    heard_at: Instant,
    /// When to ask it, or when to forget it because it was asked.
    check_at: Instant,
    asked: bool,
}

impl Reporter {
    fn knows(&self, other: &Self) -> bool {
        self.replica.contains(&other.identity)
    }
}

/// What was last known, since nobody reports.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Last {
    replica: Replica,
    poll_at: Instant,
    wait: Duration,
    /// Members that were asked.
    polled: usize,
    /// Somebody said that it is elsewhere, or went in order: the zone may be empty. Otherwise it may be out of reach.
    dissolved: bool,
}

/// What became of a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Taken {
    /// We have all that it says.
    Whole,
    /// It says what changed, and we do not have what it was before.
    Baseless,
    /// There are too many delegates.
    Crowded,
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// Ask a delegate for a word.
    Ask(Addr),
    /// Ask a member whether it is still there.
    Poll(Addr),
    /// A delegate is given up.
    Forget(Addr),
}

impl Guarded {
    /// A delegate reports.
    pub(super) fn report(&mut self, now: Instant, from: Peer, report: Upward<'_>) -> Taken {
        let (flags, base) = (report.flags(), report.flags() & flag::BASE != 0);
        let at = match self.reporters.iter().position(|r| r.identity == from.identity) {
            Some(at) => at,
            None if !base => return Taken::Baseless,
            None if self.reporters.len() >= REPORTERS => return Taken::Crowded,
            None => {
                let (identity, addr, replica) = (from.identity, from.addr, Replica::default());
                let (heard_at, check_at) = (now, Instant::NEVER);
                self.reporters.push(Reporter { identity, addr, rank: 0, replica, heard_at, check_at, asked: false });
                self.reporters.len() - 1
            }
        };
        self.last = None;
        let reporter = &mut self.reporters[at];
        (reporter.rank, reporter.addr) = ((flags >> flag::RANK_SHIFT) as u8, from.addr);
        (reporter.heard_at, reporter.check_at, reporter.asked) = (now, now + BEAT * 3, false);
        reporter.replica.apply(report);
        let differs = report.fingerprint().is_some_and(|print| print != reporter.replica.digest());
        // Those whom it does not know may be dead.
        let unknown: Vec<bool> = self.reporters.iter().map(|other| !self.reporters[at].knows(other)).collect();
        for (other, unknown) in self.reporters.iter_mut().zip(unknown) {
            if unknown && !other.asked {
                other.check_at = other.check_at.min((other.heard_at + PATIENCE).max(now));
            }
        }
        if differs { Taken::Baseless } else { Taken::Whole }
    }

    /// Somebody is no delegate any more, or not even a member. It speaks for itself alone.
    pub(super) fn resign(&mut self, now: Instant, identity: &Identity) {
        self.forget(now, |r| r.identity == *identity);
        if let Some(last) = &mut self.last {
            last.dissolved = true;
            if last.replica.remove(identity) {
                (last.wait, last.polled) = (POLL_FIRST, 0);
                last.poll_at = last.poll_at.min(now + POLL_FIRST);
            }
        }
    }

    /// A delegate is out of reach. False when it is none.
    pub(super) fn lose(&mut self, now: Instant, addr: Addr) -> bool {
        let before = self.reporters.len();
        self.forget(now, |r| r.addr == addr);
        self.reporters.len() < before
    }

    fn forget(&mut self, now: Instant, which: impl Fn(&Reporter) -> bool) {
        if self.reporters.is_empty() || !self.reporters.iter().all(&which) {
            return self.reporters.retain(|r| !which(r));
        }
        self.reporters.sort_by_key(|r| r.rank);
        let (replica, poll_at, wait) = (self.reporters.remove(0).replica, now + PATIENCE, POLL_FIRST);
        self.last = Some(Box::new(Last { replica, poll_at, wait, polled: 0, dissolved: false }));
        self.reporters.clear();
    }

    /// Who speaks for the parts of the zone: of those who know each other the lowest in rank.
    fn voices(&self) -> Vec<&Reporter> {
        let mut by_rank: Vec<&Reporter> = self.reporters.iter().collect();
        by_rank.sort_by_key(|r| r.rank);
        let mut voices: Vec<&Reporter> = Vec::with_capacity(1);
        for reporter in by_rank {
            if !voices.iter().any(|v| v.knows(reporter) && reporter.knows(v)) {
                voices.push(reporter);
            }
        }
        voices
    }

    /// The zone, when one delegate speaks for all of it, or as it was when the last one did.
    pub(super) fn whole(&self) -> Option<&Replica> {
        match self.voices()[..] {
            [] => self.last.as_ref().map(|l| &l.replica),
            [one] => Some(&one.replica),
            _ => None,
        }
    }

    /// Everybody of whom somebody knows.
    pub(super) fn members(&self) -> Vec<(Card, Version)> {
        if let Some(whole) = self.whole() {
            return whole.members().collect();
        }
        let mut all: BTreeMap<Identity, (Card, Version)> = BTreeMap::new();
        for (card, version) in self.voices().into_iter().flat_map(|v| v.replica.members()) {
            let known = all.entry(card.identity).or_insert_with(|| (card.clone(), version));
            if known.1 < version {
                *known = (card, version);
            }
        }
        all.into_values().collect()
    }

    /// Members, and delegates that report; `None` when there are neither, and nothing was known.
    pub(super) fn counts(&self) -> Option<(u32, u8)> {
        let members = self.whole().map_or_else(|| self.members().len(), Replica::len) as u32;
        (members > 0).then_some((members, self.reporters.len() as u8))
    }

    /// The first members on the zone's ring; of each part, when there are several.
    pub(super) fn first(&self, count: usize) -> Vec<(Card, Version)> {
        self.voices().into_iter().flat_map(|v| v.replica.first(count)).collect()
    }

    /// Delegates that do not know this one, nor it them.
    pub(super) fn strangers_to(&self, identity: &Identity) -> Vec<(Card, Version)> {
        let Some(one) = self.reporters.iter().find(|r| r.identity == *identity) else { return Vec::new() };
        let strange = self.reporters.iter().filter(|other| !one.knows(other) && !other.knows(one) && !other.asked);
        strange.filter_map(|other| other.replica.entry(&other.identity)).collect()
    }

    /// This delegate has reported.
    pub(super) fn hears(&self, identity: &Identity) -> bool {
        self.reporters.iter().any(|r| r.identity == *identity)
    }

    pub(super) fn addrs(&self) -> impl Iterator<Item = Addr> {
        self.reporters.iter().map(|r| r.addr)
    }

    pub(super) fn deadline(&self) -> Instant {
        let last = self.last.as_ref().map_or(Instant::NEVER, |l| l.poll_at);
        self.reporters.iter().map(|r| r.check_at).fold(last, Instant::min)
    }

    /// Checks that are due. A delegate has `answer` to answer.
    pub(super) fn expire(&mut self, now: Instant, answer: Duration) -> Vec<Step> {
        let mut steps = Vec::new();
        for reporter in self.reporters.iter_mut().filter(|r| r.check_at <= now) {
            if reporter.asked {
                steps.push(Step::Forget(reporter.addr));
            } else {
                (reporter.asked, reporter.check_at) = (true, now + answer);
                steps.push(Step::Ask(reporter.addr));
            }
        }
        self.forget(now, |r| steps.contains(&Step::Forget(r.addr)));
        if let Some(last) = self.last.as_deref_mut().filter(|l| l.poll_at <= now) {
            let asked = last.replica.members().skip(last.polled).take(POLLED).map(|m| Step::Poll(m.0.addr));
            let before = steps.len();
            steps.extend(asked);
            last.polled += POLLED;
            last.poll_at = now + last.wait;
            if steps.len() - before < POLLED {
                // All were asked: once more, later.
                (last.polled, last.wait) = (0, (last.wait * 2).min(POLL_LAST));
            }
            if last.dissolved && last.wait >= POLL_LAST {
                self.last = None;
            }
        }
        steps
    }

    /// True when nothing is known of it any more.
    pub(super) fn is_empty(&self) -> bool {
        self.reporters.is_empty() && self.last.is_none() && self.published.is_none()
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&self.revision);
        for reporter in &self.reporters {
            print.add(&(reporter.identity, reporter.rank, reporter.replica.digest(), reporter.asked));
            print.instant(reporter.heard_at);
            print.instant(reporter.check_at);
        }
        if let Some(last) = &self.last {
            print.add(&(last.replica.digest(), last.wait, last.polled, last.dissolved));
            print.instant(last.poll_at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::{Name, Roster};
    use crate::zone::delta::Mask;
    use crate::zone::letter::{Alive, Parcel};
    use crate::zone::view::{Standing, View};
    use phalanx_core::Boot;
    use phalanx_wire::zone::LetterKind;
    use std::sync::Arc;

    const ANSWER: Duration = Duration::from_secs(1);

    fn at(ms: u64) -> Instant {
        Instant::ZERO + Duration::from_millis(ms)
    }

    fn card(n: u8) -> Card {
        Card { identity: Identity([n; 32]), addr: Addr::Local(n.into()), name: Name::new(&format!("n{n}")).unwrap() }
    }

    fn peer(n: u8) -> Peer {
        Peer { addr: Addr::Local(n.into()), identity: Identity([n; 32]), boot: Boot::default() }
    }

    /// A report of delegate `n` in this rank: these are there, those left.
    fn parcel(n: u8, rank: u16, flags: u16, alive: &[u8], left: &[u8]) -> Parcel {
        let mut roster = Roster::new(Arc::default(), 64);
        let (mut view, mut mask) = (View::default(), Mask::default());
        let me = roster.enter(&card(n), 1).unwrap();
        for &m in alive {
            let slot = roster.enter(&card(m), 1).unwrap();
            view.set(slot, Standing::In(Version::first(1)), &roster);
            mask.insert(slot);
        }
        let flags = flags | rank << flag::RANK_SHIFT;
        let gone: Vec<_> = left.iter().map(|&m| roster.enter(&card(m), 1).unwrap()).collect();
        let sender = (me, Version::first(1));
        let mut parcel = Parcel::new(LetterKind::Report, flags, sender, &roster, &view, Alive::These(mask));
        parcel.left = gone.into_iter().map(|slot| (slot, Version::first(1), 0)).collect();
        parcel
    }

    fn base(zone: &mut Guarded, now: Instant, n: u8, rank: u16, alive: &[u8]) -> Taken {
        zone.report(now, peer(n), Upward::Parcel(&parcel(n, rank, flag::BASE, alive, &[])))
    }

    fn news(zone: &mut Guarded, now: Instant, n: u8, rank: u16, alive: &[u8], left: &[u8]) -> Taken {
        zone.report(now, peer(n), Upward::Parcel(&parcel(n, rank, 0, alive, left)))
    }

    #[test]
    fn the_lowest_in_rank_is_believed_of_those_who_know_each_other() {
        let mut zone = Guarded::default();
        assert_eq!(news(&mut zone, at(0), 1, 0, &[4], &[]), Taken::Baseless);
        base(&mut zone, at(0), 2, 1, &[1, 2, 3]);
        base(&mut zone, at(0), 1, 0, &[1, 2, 3, 4]);
        assert_eq!(zone.counts(), Some((4, 2)));
        news(&mut zone, at(5), 1, 0, &[], &[3]);
        assert_eq!((zone.counts(), zone.strangers_to(&Identity([1; 32]))), (Some((3, 2)), vec![]));
    }

    /// A stranger adds, and never takes away, whatever it says of those who do not know it.
    #[test]
    fn who_is_not_known_in_a_zone_takes_nobody_out_of_its_census() {
        let mut zone = Guarded::default();
        base(&mut zone, at(0), 1, 0, &[1, 2, 3, 4]);
        base(&mut zone, at(1), 9, 0, &[9, 1]);
        assert_eq!(zone.counts(), Some((5, 2)));
        assert_eq!(zone.members().len(), 5);
    }

    #[test]
    fn two_parts_of_a_zone_both_count_and_hear_of_each_other() {
        let mut zone = Guarded::default();
        base(&mut zone, at(0), 1, 0, &[1, 2, 3]);
        base(&mut zone, at(0), 7, 0, &[7, 8]);
        assert_eq!(zone.counts(), Some((5, 2)));
        let strangers: Vec<_> = zone.strangers_to(&Identity([7; 32])).into_iter().map(|s| s.0).collect();
        assert_eq!(strangers, [card(1)]);
        news(&mut zone, at(1), 1, 0, &[7, 8], &[]);
        news(&mut zone, at(1), 7, 1, &[1, 2, 3], &[]);
        assert_eq!((zone.counts(), zone.strangers_to(&Identity([7; 32])).len()), (Some((5, 2)), 0));
    }

    /// A delegate died in silence: another took its place, and does not know it.
    #[test]
    fn a_delegate_that_another_does_not_know_is_asked_and_forgotten() {
        let mut zone = Guarded::default();
        base(&mut zone, at(0), 1, 0, &[1, 2, 3]);
        base(&mut zone, at(2000), 2, 0, &[2, 3]);
        assert_eq!(zone.deadline(), at(2000));
        assert_eq!(zone.expire(at(2000), ANSWER), [Step::Ask(Addr::Local(1))]);
        assert_eq!(zone.deadline(), at(3000));
        let mut alive = zone.clone();
        assert_eq!(zone.expire(at(3000), ANSWER), [Step::Forget(Addr::Local(1))]);
        assert_eq!(zone.counts(), Some((2, 1)));
        base(&mut alive, at(2001), 1, 0, &[1]);
        assert_eq!(alive.counts(), Some((3, 2)), "it lives");
        assert_eq!(alive.expire(at(3000), ANSWER), [Step::Ask(Addr::Local(2))], "and does not know the other");
    }

    #[test]
    fn a_silent_delegate_is_asked_and_its_zone_keeps_the_last_count() {
        let mut zone = Guarded::default();
        base(&mut zone, at(0), 1, 0, &[1, 2, 3]);
        assert_eq!(zone.expire(at(15_000), ANSWER), [Step::Ask(Addr::Local(1))]);
        assert_eq!(zone.expire(at(16_000), ANSWER), [Step::Forget(Addr::Local(1))]);
        assert_eq!(zone.counts(), Some((3, 0)));
        // It may be out of reach: its members are asked, and nobody is given up.
        for minute in 1..100 {
            zone.expire(at(60_000 * minute), ANSWER);
        }
        assert_eq!(zone.counts(), Some((3, 0)));
        base(&mut zone, at(6_000_001), 2, 0, &[2, 3]);
        assert_eq!(zone.counts(), Some((2, 1)));
    }

    /// All moved at once: nobody is left to say so but they themselves.
    #[test]
    fn a_zone_that_all_have_left_is_empty() {
        let mut zone = Guarded::default();
        base(&mut zone, at(0), 1, 0, &[1, 2, 3, 4]);
        news(&mut zone, at(10), 1, 0, &[], &[1]);
        zone.resign(at(10), &Identity([1; 32]));
        assert_eq!(zone.counts(), Some((3, 0)));
        let asked = zone.expire(zone.deadline(), ANSWER);
        assert_eq!(asked, [2, 3, 4].map(|n| Step::Poll(Addr::Local(n))));
        zone.resign(at(1100), &Identity([2; 32]));
        zone.resign(at(1100), &Identity([4; 32]));
        assert_eq!(zone.counts(), Some((1, 0)), "one does not answer");
        while zone.deadline() < at(30_000) {
            zone.expire(zone.deadline(), ANSWER);
        }
        assert_eq!((zone.counts(), zone.is_empty()), (None, true));
    }
}
