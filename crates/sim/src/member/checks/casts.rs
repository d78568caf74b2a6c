//! ST-4: casts come once, in the order of their source, and to all who are there.
//!
//! *There* is who has lived since before the cast, seen by the others who have in the tree all the time, wherever in it. A tree goes
//! around whoever the zone takes for dead, and nobody keeps for it what it misses meanwhile: such nodes are excused, and counted when it cost
//! them a cast. Whoever a source sees all the time has a cast when the source is told that all have it. Of a source that dies before it is
//! told so, all who see each other all the time have a cast, or none.
//!
//! After healing each node must sit in a place that all know, and sources must be told that their casts have settled, but those that
//! went to another zone: that is another tree.

use super::views::live;
use crate::check::{Checker, Cluster, Verdict};
use crate::fault::{Fault, NodeFault};
use crate::member::desk::{Cast, Place};
use crate::member::{Member, Note};
use phalanx_core::{Duration, Instant};
use phalanx_protocol::member::Engine;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Places that are younger than this are not known to everybody, those included who die afterwards.
const KNOWN: Duration = Duration::from_secs(1);

/// What casts came to.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct CastTally {
    /// Casts.
    pub sent: u64,
    /// Nodes that had no place yet, or too much under way.
    pub refused: u64,
    /// Deliveries, at all nodes.
    pub delivered: u64,
    /// Casts whose source went to another zone before they had settled.
    pub moved: u64,
    /// Deliveries that were missed by nodes who lived, but were not seen by all others all the time.
    pub excused: u64,
}

/// Where casts are counted.
#[derive(Clone, Default, Debug)]
pub struct SharedTally(Arc<Mutex<CastTally>>);

impl SharedTally {
    /// As it is now.
    #[must_use]
    pub fn get(&self) -> CastTally {
        *self.lock()
    }

    fn lock(&self) -> MutexGuard<'_, CastTally> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Watches casts.
#[derive(Default)]
pub struct Casts {
    tally: SharedTally,
    /// When each cast was made.
    sent: BTreeMap<Cast, Instant>,
    /// What each node was handed since it started.
    got: BTreeMap<u32, BTreeSet<Cast>>,
    /// Casts that their sources were not told about, by number.
    open: BTreeMap<u32, BTreeMap<u64, Cast>>,
    /// Casts that nobody answers for any more.
    moved: BTreeSet<Cast>,
    /// Casts that all had whom their sources saw, as they were told.
    settled: BTreeSet<Cast>,
    /// Which start each living node is in, and since when.
    lives: BTreeMap<u32, (u32, Instant)>,
    /// Whom each node sees where, and since when without a break.
    sees: BTreeMap<(u32, u32), (Place, Instant)>,
}

impl Casts {
    /// Where casts are counted.
    #[must_use]
    pub fn tally(&self) -> SharedTally {
        self.tally.clone()
    }

    fn dies(&mut self, node: u32) {
        self.lives.remove(&node);
        self.open.remove(&node);
        self.sees.retain(|&(by, _), _| by != node);
    }

    fn on_delivered(&mut self, by: u32, cast: Option<Cast>, from: Option<u32>) -> Result<(), String> {
        let cast = cast.ok_or("was handed something that nobody cast")?;
        let Cast { source, boot, number } = cast;
        if !self.sent.contains_key(&cast) {
            return Err(format!("was handed cast {number} of node {source}, start {boot}, which never cast that"));
        }
        if from.is_some_and(|from| from != source) {
            return Err(format!("takes node {from:?} for the source of a cast of node {source}"));
        }
        self.tally.lock().delivered += 1;
        let got = self.got.entry(by).or_default();
        if !got.insert(cast) {
            return Err(format!("was handed cast {number} of node {source}, start {boot}, twice"));
        }
        let last = got.range(Cast { source, boot, number: 0 }..=Cast { source, boot, number: u64::MAX });
        match last.last() {
            Some(&later) if later != cast => {
                Err(format!("was handed cast {number} of node {source}, start {boot}, after {later:?}"))
            }
            _ => Ok(()),
        }
    }

    fn on_settled(&mut self, by: u32, upto: u64) -> Result<(), String> {
        let Some(open) = self.open.get_mut(&by) else { return Ok(()) };
        let left = open.split_off(&(upto + 1));
        for cast in std::mem::replace(open, left).into_values() {
            // Who leaves is alone, and casts to itself.
            let Some(&then) = self.sent.get(&cast).filter(|_| self.lives_on(cast)) else { continue };
            self.settled.insert(cast);
            let mut owed = self.groups(cast, then).0.into_iter().flatten();
            if let Some(lacks) = owed.find(|&n| !self.has(n, &cast)) {
                return Err(format!("was told that all have {cast:?} of {then}, which node {lacks} does not have"));
            }
        }
        Ok(())
    }

    fn on_sees(&mut self, at: Instant, by: u32, node: u32, place: Option<Place>) {
        let before = self.sees.get(&(by, node)).copied();
        let is_same = before.map(|(place, _)| place.who) == place.map(|place| place.who);
        if node == by && !is_same {
            let open = self.open.remove(&by).unwrap_or_default();
            self.tally.lock().moved += open.len() as u64;
            self.moved.extend(open.into_values());
        }
        match place {
            // Whoever takes another place is the same one.
            Some(place) => {
                let since = before.filter(|_| is_same).map_or(at, |(_, since)| since);
                self.sees.insert((by, node), (place, since));
            }
            None => _ = self.sees.remove(&(by, node)),
        }
    }

    /// Whether one has seen the other since before then.
    fn has_seen(&self, by: u32, node: u32, then: Instant) -> bool {
        let own = self.sees.get(&(node, node)).map(|s| s.0.who);
        self.sees.get(&(by, node)).is_some_and(|&(place, since)| own == Some(place.who) && since + KNOWN <= then)
    }

    /// Those who were there when a cast was made and see each other all the time, in groups that do not; and all others who live.
    fn groups(&self, cast: Cast, then: Instant) -> (Vec<Vec<u32>>, Vec<u32>) {
        let lived = |n: &u32| self.lives.get(n).is_some_and(|l| l.1 + KNOWN <= then) && self.has_seen(*n, *n, then);
        let (mut left, mut excused): (Vec<u32>, Vec<u32>) = self.lives.keys().partition(|n| lived(n));
        let both = |a: u32, b: u32| self.has_seen(a, b, then) && self.has_seen(b, a, then);
        if self.lives_on(cast) {
            let (mut with, without): (Vec<u32>, Vec<u32>) = left.iter().partition(|&&n| both(n, cast.source));
            // Who does not see somebody that the source sees may be one that a cast does not come by.
            let torn: Vec<u32> = with.iter().copied().filter(|&a| with.iter().any(|&b| !both(a, b))).collect();
            with.retain(|n| *n == cast.source || !torn.contains(n));
            excused.extend(without.into_iter().chain(torn).filter(|&n| n != cast.source));
            return (vec![with], excused);
        }
        let mut groups = Vec::new();
        while let Some(first) = left.pop() {
            let mut group = vec![first];
            let mut at = 0;
            while let Some(&one) = group.get(at) {
                let (near, far): (Vec<u32>, Vec<u32>) = left.iter().partition(|&&n| both(n, one));
                group.extend(near);
                (left, at) = (far, at + 1);
            }
            let whole = group.iter().all(|&a| group.iter().all(|&b| both(a, b)));
            if whole { groups.push(group) } else { excused.extend(group) }
        }
        (groups, excused)
    }

    fn lives_on(&self, cast: Cast) -> bool {
        self.lives.get(&cast.source).is_some_and(|l| l.0 == cast.boot)
    }

    fn has(&self, node: u32, cast: &Cast) -> bool {
        self.got.get(&node).is_some_and(|got| got.contains(cast))
    }

    /// A cast that somebody misses; and how often that is excused.
    fn missed(&self) -> (Option<String>, u64) {
        let (mut missed, mut excuses) = (None, 0);
        for (cast, &then) in self.sent.iter().filter(|c| !self.moved.contains(c.0)) {
            let (groups, excused) = self.groups(*cast, then);
            // Who came later was not there at all.
            let lived = |n: &u32| self.lives.get(n).is_some_and(|l| l.1 <= then);
            excuses += excused.iter().filter(|n| lived(n) && !self.has(**n, cast)).count() as u64;
            let owed = self.lives_on(*cast);
            for group in groups {
                // All others were taken for dead by their source.
                if !owed && self.settled.contains(cast) {
                    excuses += group.iter().filter(|&&n| !self.has(n, cast)).count() as u64;
                    continue;
                }
                let lacks = group.iter().find(|&&n| !self.has(n, cast));
                let having = group.iter().find(|&&n| self.has(n, cast));
                if let Some(lacks) = lacks.filter(|_| owed || having.is_some()) {
                    let text =
                        format!("node {lacks} does not have {cast:?} of {then}, node {having:?} of {group:?} has it");
                    missed = missed.or(Some(text));
                }
            }
        }
        (missed, excuses)
    }
}

/// What is wrong with the place of somebody, if anything: each living node sits in one, all of its zone know that, and cast there.
fn misplaced<E: Engine + Send>(cluster: &Cluster<'_, Member<E>>) -> Option<String> {
    let live = live(cluster);
    let living = || cluster.processes().filter(|(n, _)| live.contains_key(n));
    let own = |member: &Member<E>, node: u32| {
        let caster = member.node().caster()?;
        let mut sitters = member.node().sitters();
        sitters.find(|s| s.0 == caster.me() && member.whereabouts(s.1) == Some(node)).map(|(id, _, who)| (id, who))
    };
    for (node, member) in living() {
        let Some((seat, who)) = own(member, node) else { return Some(format!("node {node} sits nowhere")) };
        let zone = member.layout().zone_of(node);
        for (other, observer) in living().filter(|(n, m)| m.layout().zone_of(*n) == zone) {
            let seen = observer.node().sitters().find(|s| s.0 == seat);
            if seen.is_none_or(|s| observer.whereabouts(s.1) != Some(node) || s.2 != who) {
                return Some(format!("node {other} does not see node {node} in seat {seat}"));
            }
            if !observer.node().caster().is_some_and(|c| c.lives(seat)) {
                return Some(format!("node {other} takes seat {seat} of node {node} for empty"));
            }
        }
    }
    None
}

impl<E: Engine + Send> Checker<Member<E>> for Casts {
    fn name(&self) -> &'static str {
        "casts"
    }

    fn fault(&mut self, _: Instant, fault: &Fault, _: &mut Verdict) {
        if let Fault::Node(node, NodeFault::CrashProcess | NodeFault::CrashHost | NodeFault::Restart) = *fault {
            self.dies(node);
        }
    }

    fn note(&mut self, at: Instant, by: u32, note: &Note, verdict: &mut Verdict) {
        match *note {
            Note::Started { incarnation } => {
                self.dies(by);
                self.got.remove(&by);
                self.lives.insert(by, (incarnation as u32, at));
            }
            Note::Leaving => self.dies(by),
            // It may be back before anybody looks.
            Note::Left { node, .. } => {
                if let Some(sees) = self.sees.get_mut(&(by, node)) {
                    sees.1 = at;
                }
            }
            Note::Mute => self.tally.lock().refused += 1,
            Note::Cast { cast, number } => {
                self.tally.lock().sent += 1;
                self.sent.insert(cast, at);
                self.open.entry(by).or_default().insert(number, cast);
            }
            Note::Delivered { cast, from } => {
                if let Err(text) = self.on_delivered(by, cast, from) {
                    verdict.violation(by, text);
                }
            }
            Note::Settled(number) => {
                if let Err(text) = self.on_settled(by, number) {
                    verdict.violation(by, text);
                }
            }
            Note::Sees { node, place } => self.on_sees(at, by, node, place),
            _ => {}
        }
    }

    fn pending(&mut self, _: Instant, cluster: &Cluster<'_, Member<E>>) -> Option<String> {
        let unsettled = || {
            let open = self.open.iter().find(|(n, open)| self.lives.contains_key(n) && !open.is_empty());
            open.map(|(node, open)| format!("node {node} was not told of {:?}", open.values().next()))
        };
        misplaced(cluster).or_else(unsettled).or_else(|| self.missed().0)
    }

    fn ended(&mut self, _: Instant, _: &Cluster<'_, Member<E>>, _: &mut Verdict) {
        let excused = self.missed().1;
        self.tally.lock().excused = excused;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_protocol::cast::Id;
    use phalanx_protocol::zone::Zone;

    const CAST: Cast = Cast { source: 0, boot: 1, number: 1 };
    const LATER: Cast = Cast { number: 2, ..CAST };

    fn place(node: u32) -> Option<Place> {
        Some(Place { seat: Id(node), who: u64::from(node) + 1 })
    }

    /// Nodes that have seen each other for long.
    fn checker(nodes: u32) -> Casts {
        let mut checker = Casts::default();
        for by in 0..nodes {
            assert_eq!(says(&mut checker, 0, by, Note::Started { incarnation: 1 }), [""; 0]);
            (0..nodes).for_each(|node| _ = says(&mut checker, 0, by, Note::Sees { node, place: place(node) }));
        }
        checker
    }

    fn says(checker: &mut Casts, s: u64, by: u32, note: Note) -> Vec<String> {
        let mut verdict = Verdict::default();
        Checker::<Member<Zone>>::note(checker, Instant::ZERO + Duration::from_secs(s), by, &note, &mut verdict);
        verdict.violations.into_iter().map(|v| v.1).collect()
    }

    fn casts(checker: &mut Casts, s: u64, cast: Cast) {
        assert_eq!(says(checker, s, cast.source, Note::Cast { cast, number: cast.number }), [""; 0]);
    }

    fn handed(checker: &mut Casts, by: u32, cast: Cast) -> Vec<String> {
        says(checker, 20, by, Note::Delivered { cast: Some(cast), from: Some(cast.source) })
    }

    #[test]
    fn what_is_handed_over_twice_or_too_late_or_was_never_cast_is_caught() {
        let mut checker = checker(2);
        assert!(handed(&mut checker, 1, CAST)[0].contains("never cast that"));
        casts(&mut checker, 10, CAST);
        casts(&mut checker, 10, LATER);
        assert_eq!(handed(&mut checker, 1, LATER), [""; 0]);
        assert!(handed(&mut checker, 1, CAST)[0].contains("after"));
        assert!(handed(&mut checker, 1, LATER)[0].contains("twice"));
        let forged = Note::Delivered { cast: Some(LATER), from: Some(1) };
        assert!(says(&mut checker, 20, 0, forged)[0].contains("for the source"));
        assert!(says(&mut checker, 20, 0, Note::Delivered { cast: None, from: None })[0].contains("nobody cast"));
        assert_eq!(says(&mut checker, 21, 1, Note::Started { incarnation: 2 }), [""; 0]);
        assert_eq!(handed(&mut checker, 1, LATER), [""; 0], "who starts again may have it again");
    }

    #[test]
    fn what_somebody_misses_is_caught_unless_it_is_excused() {
        let mut checker = checker(3);
        casts(&mut checker, 10, CAST);
        [0, 1].into_iter().for_each(|by| assert_eq!(handed(&mut checker, by, CAST), [""; 0]));
        assert!(checker.missed().0.unwrap().contains("node 2 does not have"));
        // A move does not excuse it.
        let elsewhere = Some(Place { seat: Id(7), who: 3 });
        for by in 0..3 {
            says(&mut checker, 12, by, Note::Sees { node: 2, place: elsewhere });
        }
        assert!(checker.missed().0.is_some());
        // Somebody took it for dead for a moment.
        says(&mut checker, 13, 0, Note::Sees { node: 2, place: None });
        says(&mut checker, 13, 0, Note::Sees { node: 2, place: elsewhere });
        assert_eq!(checker.missed(), (None, 1));
        // It started again since: it was not there.
        says(&mut checker, 14, 2, Note::Started { incarnation: 2 });
        assert_eq!(checker.missed(), (None, 0));
    }

    #[test]
    fn of_a_source_that_died_all_have_it_or_none() {
        let mut checker = checker(4);
        casts(&mut checker, 10, CAST);
        checker.dies(0);
        assert_eq!(checker.missed(), (None, 0), "it took it with it");
        handed(&mut checker, 2, CAST);
        assert!(checker.missed().0.unwrap().contains("Some(2)"));
        [1, 3].into_iter().for_each(|by| assert_eq!(handed(&mut checker, by, CAST), [""; 0]));
        assert_eq!(checker.missed(), (None, 0));
    }

    #[test]
    fn what_is_told_too_early_is_caught() {
        let mut checker = checker(4);
        casts(&mut checker, 10, CAST);
        [0, 1, 2].into_iter().for_each(|by| assert_eq!(handed(&mut checker, by, CAST), [""; 0]));
        assert!(says(&mut checker, 11, 0, Note::Settled(1))[0].contains("node 3 does not have"));
        casts(&mut checker, 12, LATER);
        [0, 1, 2].into_iter().for_each(|by| assert_eq!(handed(&mut checker, by, LATER), [""; 0]));
        says(&mut checker, 13, 0, Note::Sees { node: 3, place: None });
        assert_eq!(says(&mut checker, 14, 0, Note::Settled(2)), [""; 0], "it takes that one for dead");
        checker.dies(0);
        assert_eq!(checker.missed(), (None, 2));
    }

    #[test]
    fn who_is_not_told_waits() {
        let mut checker = checker(2);
        casts(&mut checker, 10, CAST);
        casts(&mut checker, 10, LATER);
        [0, 1].into_iter().for_each(|by| assert_eq!(handed(&mut checker, by, CAST), [""; 0]));
        assert_eq!(says(&mut checker, 11, 0, Note::Settled(1)), [""; 0]);
        assert_eq!(checker.open[&0].len(), 1);
        // In another tree it has another number, and nobody answers there.
        says(&mut checker, 12, 0, Note::Sees { node: 0, place: Some(Place { seat: Id(0), who: 99 }) });
        assert!(!checker.open.contains_key(&0) && checker.tally().get().moved == 1);
    }
}
