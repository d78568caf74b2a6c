//! The book: Algorithm 1 of 002, to the letter. Who is alive, who left, who is suspected, and what is new.
//!
//! ZN-1, ZN-2, ZN-5, ZN-6. Three procedures change the view; each says what others must hear of it (Δ). Where the paper
//! is silent:
//! - What is said about ourselves. A version of ours that we never had is outdone, as a suspicion is: somebody holds it
//!   against us (a clock that was set back, a lie). So is a leave of ourselves that we did not say. When to answer is not
//!   the book's business: it notes the accusation.
//! - The correction for small views that Algorithm 1 omits (line 22): never more reporters are asked for than there are
//!   members beside the suspect.
//! - ⚠ The text says "exceeds Θ", line 22 says ≥ Θ. We follow the algorithm: with K_s = Θ the text's rule might never
//!   fire.

use super::delta::{Delta, Mask};
use super::elsewhere::Elsewhere;
use super::replicate::Change;
use super::view::{Standing, View};
use crate::member::{Event, Name, Out, Output, Roster, Slot, Version, Why};
use phalanx_core::{Duration, Fingerprint, Instant};
use std::collections::BTreeMap;

/// Reports kept about one suspect; more add nothing, because the threshold is lower.
const REPORTS_MAX: usize = 16;

/// How a member of the history was removed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Removed {
    at: Instant,
    /// The exit code with which it departed; `None` when it failed.
    departed: Option<u8>,
}

/// How a member departs: with an exit code, and perhaps to another zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Parting<'a> {
    pub(super) code: u8,
    pub(super) to: Option<&'a Name>,
}

/// What a member knows of all others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Book {
    pub(super) me: Slot,
    /// Our own version; the view holds it too, until we leave.
    version: Version,
    pub(super) view: View,
    /// ZN-2, H: when the members that the view says are gone were removed.
    history: BTreeMap<Slot, Removed>,
    /// S: the reports about members in the view.
    suspicions: BTreeMap<Slot, Vec<(Slot, Version)>>,
    /// What others have not heard from us yet.
    pub(super) delta: Delta,
    /// Joins and leaves that those who keep something of each member have not heard of; nobody does while it is empty.
    pub(super) changes: Vec<Change>,
    /// The highest version of ours that others hold against us, and that we have not outdone.
    pub(super) accused: Option<Version>,
    /// Somebody came back in the incarnation in which it was removed: perhaps a partition is over.
    pub(super) returned: bool,
    left: bool,
    /// HI-1: who is known to be in another zone.
    elsewhere: Elsewhere,
}

impl Book {
    pub(super) fn new(me: Slot, version: Version, roster: &Roster) -> Self {
        let mut view = View::default();
        view.set(me, Standing::In(version), roster);
        let mut delta = Delta::default();
        delta.alive(me);
        Self {
            me,
            version,
            view,
            history: BTreeMap::new(),
            suspicions: BTreeMap::new(),
            delta,
            changes: Vec::new(),
            accused: None,
            returned: false,
            left: false,
            elsewhere: Elsewhere::default(),
        }
    }

    pub(super) fn version(&self) -> Version {
        self.version
    }

    pub(super) fn has_left(&self) -> bool {
        self.left
    }

    /// Algorithm 1, line 1. True when it changed anything.
    pub(super) fn on_alive(&mut self, p: Slot, v: Version, roster: &Roster, out: &mut impl Out) -> bool {
        if p == self.me {
            return v > self.version && self.accuse(v);
        }
        match self.view.standing(p, roster) {
            Standing::Gone(removed) if v <= removed => false,
            standing @ (Standing::Unknown | Standing::Gone(_)) => {
                self.returned |= matches!(standing, Standing::Gone(gone) if gone.incarnation == v.incarnation);
                self.view.set(p, Standing::In(v), roster);
                self.history.remove(&p);
                self.joined(p, v, out);
                true
            }
            Standing::In(known) if v > known => {
                self.delta.alive(p);
                if let Some(reports) = self.suspicions.get_mut(&p) {
                    reports.retain(|&(_, about)| about >= v);
                    if reports.is_empty() {
                        self.suspicions.remove(&p);
                    }
                }
                self.view.set(p, Standing::In(v), roster);
                if known.incarnation != v.incarnation {
                    self.changes.extend([Change::Left(p), Change::Joined(p)]);
                    out.push(Output::Event(Event::Left { member: p, version: known, why: Why::Replaced }));
                    out.push(Output::Event(Event::Joined { member: p, version: v }));
                }
                true
            }
            Standing::In(_) => false,
        }
    }

    /// Algorithm 1, line 1, for all of another view over the same shared roster, or those of `mask`.
    pub(super) fn on_view(&mut self, theirs: &View, mask: Option<&Mask>, roster: &Roster, out: &mut impl Out) -> bool {
        let (mut changed, mut found) = (false, Vec::new());
        for page in 0..theirs.pages() {
            self.view.differing(theirs, page, mask, &mut found);
            if found.is_empty() && mask.is_some() {
                continue;
            }
            for p in found.drain(..) {
                if let Some(version) = self.view.join(p, theirs, roster) {
                    self.joined(p, version, out);
                    changed = true;
                } else if let Some(v) = theirs.of(p, roster) {
                    changed |= self.on_alive(p, v, roster, out);
                }
            }
            self.view.share(theirs, page);
        }
        changed
    }

    fn joined(&mut self, p: Slot, version: Version, out: &mut impl Out) {
        self.elsewhere.remove(p);
        self.delta.alive(p);
        self.changes.push(Change::Joined(p));
        out.push(Output::Event(Event::Joined { member: p, version }));
    }

    /// Algorithm 1, line 10.
    pub(super) fn on_leave(
        &mut self,
        now: Instant,
        p: Slot,
        v: Version,
        Parting { code, to }: Parting<'_>,
        roster: &Roster,
        out: &mut impl Out,
    ) -> bool {
        if p == self.me {
            return v >= self.version && self.accuse(v);
        }
        match self.view.standing(p, roster) {
            Standing::In(known) if v >= known => {
                self.remove(now, p, v, Some(code), roster);
                self.delta.leave(p, v, code);
                to.into_iter().for_each(|zone| self.elsewhere.insert(now, p, zone));
                let why = to.map_or(Why::Departed(code), |_| Why::Moved);
                out.push(Output::Event(Event::Left { member: p, version: v, why }));
                true
            }
            Standing::Gone(removed) if v > removed => {
                self.remove(now, p, v, Some(code), roster);
                self.delta.leave(p, v, code);
                to.into_iter().for_each(|zone| self.elsewhere.insert(now, p, zone));
                true
            }
            Standing::In(_) | Standing::Gone(_) | Standing::Unknown => false,
        }
    }

    /// Algorithm 1, line 16. True when it changed anything.
    #[allow(clippy::too_many_arguments)] // ⟨r, s, v⟩ and what a step needs.
    pub(super) fn on_suspicion(
        &mut self,
        now: Instant,
        r: Slot,
        s: Slot,
        v: Version,
        threshold: usize,
        roster: &Roster,
        out: &mut impl Out,
    ) -> bool {
        if s == self.me {
            // Reports about a version that we have outdone already need no further answer.
            return v >= self.version && self.accuse(v);
        }
        let Some(known) = self.view.of(s, roster).filter(|&known| v >= known) else { return false };
        let reports = self.suspicions.entry(s).or_default();
        match reports.iter().position(|report| report.0 == r) {
            Some(i) if reports[i].1 >= v => return false,
            Some(i) => reports[i].1 = v,
            None if reports.len() >= REPORTS_MAX => return false,
            None => reports.push((r, v)),
        }
        let enough = reports.len() >= threshold.min(self.view.len() - 1).max(1);
        self.delta.suspicion(r, s, v);
        if enough {
            self.remove(now, s, v.max(known), None, roster);
            out.push(Output::Event(Event::Left { member: s, version: v, why: Why::Failed }));
        }
        true
    }

    fn remove(&mut self, now: Instant, p: Slot, v: Version, departed: Option<u8>, roster: &Roster) {
        if self.view.contains(p) {
            self.changes.push(Change::Left(p));
        }
        self.view.set(p, Standing::Gone(v), roster);
        self.suspicions.remove(&p);
        self.history.insert(p, Removed { at: now, departed });
        self.delta.not_alive(p);
    }

    /// Something is held against us.
    fn accuse(&mut self, v: Version) -> bool {
        if !self.left {
            self.accused = self.accused.max(Some(v));
        }
        !self.left
    }

    /// We are here, whatever was said about that version of ours.
    pub(super) fn speak_up(&mut self, said: Version, roster: &Roster) {
        let before = self.version;
        self.version = before.max(said).next();
        if before.incarnation != self.version.incarnation {
            // Others dropped what they had of us, and must hear of it in this life.
            self.changes.push(Change::Joined(self.me));
        }
        self.accused = None;
        self.view.set(self.me, Standing::In(self.version), roster);
        self.delta.alive(self.me);
    }

    /// ZN-5: an orderly leave, to be told to all neighbours.
    pub(super) fn leave(&mut self, now: Instant, code: u8, roster: &Roster) {
        let v = self.version;
        self.left = true;
        self.remove(now, self.me, v, Some(code), roster);
        self.delta.leave(self.me, v, code);
    }

    /// HI-1: the zone in which a member is that is not in ours.
    pub(super) fn elsewhere(&self, p: Slot) -> Option<&Name> {
        self.elsewhere.of(p)
    }

    /// HI-1: those who are known to be in another zone, by slot.
    pub(super) fn in_zone(&self, zone: &Name) -> impl Iterator<Item = Slot> {
        self.elsewhere.in_zone(zone)
    }

    /// HI-1: we leave for another zone, in the same life: to be told to all neighbours, then [`Book::arrive`].
    pub(super) fn set_out(&mut self, now: Instant, to: &Name, roster: &Roster) {
        self.leave(now, 0, roster);
        self.elsewhere.insert(now, self.me, to);
    }

    /// HI-1: nobody is with us yet, and those of the zone that we left are there. What else was held against others held
    /// in that zone: should we come back, we hear it anew.
    pub(super) fn arrive(&mut self, now: Instant, left: &Name, roster: &mut Roster, out: &mut impl Out) {
        let others: Vec<(Slot, Version)> = self.view.members(roster).collect();
        self.changes.clear();
        for (p, version) in others {
            self.view.set(p, Standing::Unknown, roster);
            self.elsewhere.insert(now, p, left);
            self.changes.push(Change::Left(p));
            out.push(Output::Event(Event::Left { member: p, version, why: Why::Moved }));
        }
        for p in std::mem::take(&mut self.history).into_keys() {
            self.view.set(p, Standing::Unknown, roster);
            if p != self.me && self.elsewhere(p).is_none() {
                roster.remove(p);
            }
        }
        self.elsewhere.remove(self.me);
        self.suspicions.clear();
        (self.delta, self.returned, self.left) = (Delta::default(), false, false);
        self.speak_up(self.version, roster);
    }

    /// All reports: they go to each new neighbour (ZN-7).
    pub(super) fn suspicions(&self) -> impl Iterator<Item = (Slot, Slot, Version)> {
        self.suspicions.iter().flat_map(|(&s, reports)| reports.iter().map(move |&(r, v)| (r, s, v)))
    }

    /// The leave of a member of the history that departed in order: its last version and its exit code.
    pub(super) fn departed(&self, p: Slot, roster: &Roster) -> Option<(Slot, Version, u8)> {
        match self.view.standing(p, roster) {
            Standing::Gone(v) => Some((p, v, self.history.get(&p)?.departed?)),
            Standing::In(_) | Standing::Unknown => None,
        }
    }

    /// Members of the history, by slot.
    pub(super) fn history(&self) -> impl ExactSizeIterator<Item = Slot> {
        self.history.keys().copied()
    }

    /// ZN-2: forgets who was removed too long ago, and the oldest when there are too many. `keep` says who is still
    /// referred to.
    pub(super) fn prune(
        &mut self,
        now: Instant,
        age: Duration,
        bound: usize,
        roster: &mut Roster,
        keep: impl Fn(Slot) -> bool,
    ) {
        let mut old: Vec<(Instant, Slot)> = self.history.iter().map(|(&slot, removed)| (removed.at, slot)).collect();
        old.sort_unstable();
        let over = old.len().saturating_sub(bound);
        for (i, (at, slot)) in old.into_iter().enumerate() {
            if (i < over || at + age <= now) && slot != self.me && !keep(slot) {
                self.history.remove(&slot);
                self.elsewhere.remove(slot);
                self.view.set(slot, Standing::Unknown, roster);
                self.delta.forget(slot);
                roster.remove(slot);
            }
        }
        // Those who are in neither list have no slot any more.
        for slot in self.elsewhere.old(now, age, bound) {
            self.elsewhere.remove(slot);
            if self.view.standing(slot, roster) == Standing::Unknown {
                self.delta.forget(slot);
                roster.remove(slot);
            }
        }
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint, roster: &Roster) {
        print.add(&(self.me, self.version, self.accused, self.returned, self.left));
        for (slot, version) in self.view.members(roster) {
            print.add(&(slot, version));
        }
        for (slot, removed) in &self.history {
            print.add(slot).add(&removed.departed);
            print.instant(removed.at);
        }
        self.elsewhere.fingerprint(print);
        print.add(&self.suspicions);
        self.delta.fingerprint(print);
    }
}

/// ZN-6: each line of Algorithm 1.
#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::{Card, Frozen, Name};
    use phalanx_core::{Addr, Identity, Sink};
    use std::sync::Arc;

    const ME: Slot = Slot(0);
    const P: Slot = Slot(1);
    const R: Slot = Slot(2);
    const Q: Slot = Slot(3);
    const CODE: Parting<'_> = Parting { code: 3, to: None };

    const fn v(minor: u32) -> Version {
        Version { incarnation: 7, minor }
    }

    #[derive(Default)]
    struct Heard(Vec<String>);

    impl<'a> Sink<Output<'a>> for Heard {
        fn push(&mut self, output: Output<'a>) {
            if let Output::Event(event) = output {
                self.0.push(match event {
                    Event::Joined { member, version } => format!("+{} {version}", member.0),
                    Event::Left { member, version, why } => format!("-{} {version} {why:?}", member.0),
                    Event::Attribute { .. } | Event::Name { .. } | Event::Details { .. } => "other".into(),
                });
            }
        }
    }

    struct Desk {
        book: Book,
        roster: Roster,
        heard: Heard,
        threshold: usize,
    }

    impl Desk {
        fn new(threshold: usize) -> Self {
            let name = Name::new("x").unwrap();
            let card = |n: u8| Card { identity: Identity([n; 32]), addr: Addr::Local(n.into()), name: name.clone() };
            let roster = Roster::new(Arc::new(Frozen::new((0..8).map(|n| (card(n), 7)))), 8);
            let mut book = Book::new(ME, v(1), &roster);
            book.delta = Delta::default();
            Self { book, roster, heard: Heard::default(), threshold }
        }

        fn alive(&mut self, p: Slot, v: Version) -> bool {
            self.book.on_alive(p, v, &self.roster, &mut self.heard)
        }

        fn leave(&mut self, p: Slot, v: Version) -> bool {
            self.book.on_leave(Instant(1), p, v, CODE, &self.roster, &mut self.heard)
        }

        fn suspect(&mut self, r: Slot, s: Slot, v: Version) -> bool {
            self.book.on_suspicion(Instant(1), r, s, v, self.threshold, &self.roster, &mut self.heard)
        }

        fn speak_up(&mut self) {
            let accused = self.book.accused.expect("something is held against us");
            self.book.speak_up(accused, &self.roster);
        }

        fn heard(&mut self) -> Vec<String> {
            std::mem::take(&mut self.heard.0)
        }

        fn standing(&self, p: Slot) -> Standing {
            self.book.view.standing(p, &self.roster)
        }
    }

    /// Line 2: a member joins that is new, or newer than when it was removed.
    #[test]
    fn zn_6_alive_joins_the_new_and_the_returning() {
        let mut desk = Desk::new(1);
        assert!(desk.alive(P, v(1)));
        assert_eq!(desk.heard(), ["+1 7.1"]);
        assert!(desk.leave(P, v(2)) && !desk.alive(P, v(2)) && !desk.alive(P, v(1)));
        assert_eq!(desk.heard(), ["-1 7.2 Departed(3)"]);
        assert!(desk.alive(P, v(3)));
        assert_eq!(desk.heard(), ["+1 7.3"]);
        assert_eq!(desk.book.history().len(), 0, "H ∩ View = ∅");
    }

    /// Lines 4 to 9: a newer version is news; a new incarnation is a leave and a join.
    #[test]
    fn zn_6_alive_raises_versions_and_replaces_incarnations() {
        let mut desk = Desk::new(3);
        for p in [P, R, Q] {
            desk.alive(p, v(1));
        }
        desk.heard();
        desk.suspect(R, P, v(1));
        desk.suspect(Q, P, v(2));
        desk.book.delta = Delta::default();
        assert!(desk.alive(P, v(2)) && !desk.alive(P, v(2)));
        assert!(desk.book.delta.has_alive(P));
        assert_eq!(desk.book.suspicions().collect::<Vec<_>>(), [(Q, P, v(2))], "refuted ones are pruned");
        let reborn = Version::first(8);
        assert!(desk.alive(P, reborn));
        assert_eq!(desk.heard(), ["-1 7.2 Replaced", "+1 8.1"]);
        assert!(!desk.alive(P, v(9)), "no old incarnation comes back");
    }

    /// Lines 11 to 15: leaves in and out of the view.
    #[test]
    fn zn_6_leave_removes_and_marks_the_history() {
        let mut desk = Desk::new(1);
        assert!(!desk.leave(P, v(5)), "of whom nothing is known");
        desk.alive(P, v(2));
        assert!(!desk.leave(P, v(1)), "stale");
        assert!(desk.leave(P, v(2)));
        assert_eq!(desk.standing(P), Standing::Gone(v(2)));
        assert!(desk.leave(P, v(4)) && !desk.leave(P, v(3)));
        assert_eq!(desk.standing(P), Standing::Gone(v(4)));
        assert!(!desk.alive(P, v(4)) && desk.alive(P, v(5)));
    }

    /// Lines 19 to 23: Θ different reporters, of this version or a later one, make it failed.
    #[test]
    fn zn_5_as_many_reporters_as_the_threshold_make_it_failed() {
        let mut desk = Desk::new(2);
        for p in [P, R, Q] {
            desk.alive(p, v(2));
        }
        desk.heard();
        assert!(!desk.suspect(R, P, v(1)), "of a version that it has outdone");
        assert!(desk.suspect(R, P, v(2)) && !desk.suspect(R, P, v(2)), "each reporter counts once");
        assert_eq!(desk.heard(), [""; 0]);
        assert!(desk.suspect(Q, P, v(2)));
        assert_eq!(desk.heard(), ["-1 7.2 Failed"]);
        assert_eq!((desk.standing(P), desk.book.suspicions().count()), (Standing::Gone(v(2)), 0));
        assert!(!desk.suspect(ME, P, v(2)), "it is not in the view any more");
    }

    /// Line 22: "correction for small views omitted".
    #[test]
    fn zn_5_small_views_need_fewer_reporters() {
        let mut desk = Desk::new(3);
        desk.alive(P, v(1));
        assert!(desk.suspect(ME, P, v(1)));
        assert_eq!(desk.heard(), ["+1 7.1", "-1 7.1 Failed"]);
    }

    /// Line 17: whoever is suspected says that it lives.
    #[test]
    fn zn_5_a_suspicion_about_oneself_is_refuted() {
        let mut desk = Desk::new(1);
        assert!(desk.suspect(R, ME, v(1)));
        desk.speak_up();
        assert!(!desk.suspect(R, ME, v(1)));
        assert_eq!(desk.book.version(), v(2));
        assert!(desk.book.delta.has_alive(ME));
        assert!(desk.leave(ME, v(6)) && desk.alive(ME, v(20)));
        desk.speak_up();
        assert_eq!((desk.book.version(), desk.standing(ME)), (v(21), Standing::In(v(21))));
    }

    /// Others dropped our attributes with the life that was outdone: we are told as one who joined.
    #[test]
    fn who_outdoes_another_life_of_its_own_joins_anew() {
        let mut desk = Desk::new(1);
        assert!(desk.alive(ME, v(5)));
        desk.speak_up();
        assert_eq!(desk.book.changes, []);
        assert!(desk.alive(ME, Version::first(9)));
        desk.speak_up();
        assert_eq!(
            (desk.book.version(), &desk.book.changes[..]),
            (Version { incarnation: 9, minor: 2 }, &[Change::Joined(ME)][..])
        );
    }

    #[test]
    fn zn_2_history_is_pruned_by_age_and_by_size() {
        let mut desk = Desk::new(1);
        for (at, p) in [P, R, Q].into_iter().enumerate() {
            desk.alive(p, v(1));
            desk.book.on_leave(Instant(10 * at as u64), p, v(1), CODE, &desk.roster, &mut desk.heard);
        }
        let Desk { book, roster, .. } = &mut desk;
        book.prune(Instant(100), Duration(95), 8, roster, |_| false);
        assert_eq!(book.history().collect::<Vec<_>>(), [R, Q]);
        book.prune(Instant(100), Duration(1000), 1, roster, |_| false);
        assert_eq!(book.history().collect::<Vec<_>>(), [Q]);
        assert_eq!(desk.standing(R), Standing::Unknown);
    }

    /// HI-1: a move is told as one, and is no obstacle to a return.
    #[test]
    fn hi_1_who_moves_is_remembered_where_it_is() {
        let mut desk = Desk::new(1);
        let away = Name::new("away").unwrap();
        desk.alive(P, v(1));
        let to = Parting { code: 0, to: Some(&away) };
        assert!(desk.book.on_leave(Instant(1), P, v(1), to, &desk.roster, &mut desk.heard));
        assert_eq!(desk.heard(), ["+1 7.1", "-1 7.1 Moved"]);
        assert_eq!((desk.book.elsewhere(P), desk.book.in_zone(&away).collect()), (Some(&away), vec![P]));
        assert!(!desk.alive(P, v(1)) && desk.alive(P, v(2)));
        assert_eq!(desk.book.elsewhere(P), None);
    }

    /// HI-1: whoever moves begins with an empty view and a higher version, and forgets what it held against others.
    #[test]
    fn hi_1_who_arrives_is_alone_and_may_return() {
        let mut desk = Desk::new(1);
        let (here, there) = (Name::new("here").unwrap(), Name::new("there").unwrap());
        desk.alive(P, v(1));
        desk.alive(R, v(2));
        desk.suspect(P, R, v(2));
        desk.heard();
        desk.book.set_out(Instant(5), &there, &desk.roster);
        assert_eq!(desk.book.delta.left().collect::<Vec<_>>(), [(ME, v(1), 0)]);
        assert_eq!(desk.book.elsewhere(ME), Some(&there));
        let Desk { book, roster, heard, .. } = &mut desk;
        book.arrive(Instant(5), &here, roster, heard);
        assert_eq!(desk.heard(), ["-1 7.1 Moved"]);
        assert_eq!((desk.book.version(), desk.book.view.len(), desk.book.history().len()), (v(2), 1, 0));
        assert_eq!((desk.book.elsewhere(ME), desk.book.in_zone(&here).collect()), (None, vec![P]));
        assert!(desk.alive(P, v(1)) && desk.alive(R, v(1)), "in the zone that it left nobody has changed");
        desk.book.set_out(Instant(6), &here, &desk.roster);
        let Desk { book, roster, heard, .. } = &mut desk;
        book.arrive(Instant(6), &there, roster, heard);
        assert_eq!(book.in_zone(&there).collect::<Vec<_>>(), [P, R]);
        book.prune(Instant(2000), Duration(1000), 8, roster, |_| false);
        assert_eq!(book.in_zone(&there).count(), 0);
    }

    #[test]
    fn who_has_left_says_nothing_more() {
        let mut desk = Desk::new(1);
        desk.book.leave(Instant(1), 9, &desk.roster);
        assert_eq!(desk.book.delta.left().collect::<Vec<_>>(), [(ME, v(1), 9)]);
        assert!(!desk.suspect(R, ME, v(1)) && !desk.alive(ME, v(9)));
        assert_eq!(desk.book.view.len(), 0);
    }
}
