//! Wants: which maps are to be had newer than we hold them, who offers that, and who was asked.
//!
//! Algorithm 2 keeps one target and one version for each map (`trg_pend`, `u_pend`) and forgets all other offers. Here
//! every neighbour's latest offer stays until we hold what it offers, and at any time at most one neighbour is asked
//! for a map, and each neighbour has at most one request to answer. That closes several holes at once:
//!
//! - A newer digest during a request made the paper ask a second neighbour for all of it again (line 4): most of a
//!   storm's data came twice. Now the second neighbour is asked for the rest, after the first has answered.
//! - A lower one was ignored (line 4). When the target had promised more than it had, the honest offer was lost.
//! - A neighbour that promises and stays silent is asked no more for what it did not deliver, and others come first from
//!   then on: [`Wants::take`].
//! - Maps that are offered while their neighbour is busy gather, and leave in one request.
//!
//! A want for which nobody is left to ask is *dry*: then all neighbours are asked at once with `push`, as in lines 18
//! and 22.

use phalanx_core::{Fingerprint, Instant, Sorted};

use crate::member::Slot;

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Want {
    incarnation: u64,
    /// Neighbours and the versions up to which they have the map.
    offers: Vec<(Slot, u64)>,
    /// Who has been asked and has not answered.
    asked: Option<Slot>,
}

/// What a neighbour has to answer, and how well it has kept its promises.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Desk {
    number: u16,
    /// Our patience with its answer; [`Instant::NEVER`] when it has nothing to answer.
    until: Instant,
    /// How often it was silent, less how often it answered.
    strikes: u8,
}

/// All that we want and all that was offered. Empty while nothing changes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Wants {
    /// By the map's owner.
    wants: Sorted<Slot, Want>,
    /// Only of neighbours that are asked, or were silent.
    desks: Sorted<Slot, Desk>,
}

impl Wants {
    /// `from` has the map of `owner` up to `version`, which is more than we hold.
    pub(super) fn offer(&mut self, owner: Slot, incarnation: u64, from: Slot, version: u64) {
        let want = self.wants.or_insert(owner, Want { incarnation, offers: Vec::new(), asked: None });
        if want.incarnation != incarnation {
            *want = Want { incarnation, offers: Vec::new(), asked: None };
        }
        match want.offers.iter_mut().find(|(who, _)| *who == from) {
            // The link keeps the order: the latest word counts.
            Some(offer) => offer.1 = version,
            None => want.offers.push((from, version)),
        }
    }

    /// We hold the map of `owner` up to `version`.
    pub(super) fn hold(&mut self, owner: Slot, version: u64) {
        if let Some(want) = self.wants.get_mut(&owner) {
            want.offers.retain(|o| o.1 > version);
            // While somebody is asked the want stays: the answer is under way, and nobody else shall send it too.
            if want.offers.is_empty() && want.asked.is_none() {
                self.wants.remove(&owner);
            }
        }
    }

    /// The owner left: its life, and the highest version that was offered of its map.
    pub(super) fn forget(&mut self, owner: Slot) -> Option<(u64, u64)> {
        let want = self.wants.remove(&owner)?;
        want.offers.iter().map(|o| (want.incarnation, o.1)).max()
    }

    /// What `neighbour` is to be asked for now, at most `most` maps. Nothing while it has a request to answer. A map
    /// waits when somebody with fewer strikes offers it too, so a liar cannot keep it from us by offering more.
    pub(super) fn take(&mut self, neighbour: Slot, number: u16, until: Instant, most: usize) -> Vec<Slot> {
        let strikes = |who: Slot| self.desks.get(&who).map_or(0, |d| d.strikes);
        if self.desks.get(&neighbour).is_some_and(|d| d.until != Instant::NEVER) {
            return Vec::new();
        }
        let may = |want: &Want| {
            want.asked.is_none()
                && want.offers.iter().any(|o| o.0 == neighbour)
                && want.offers.iter().all(|o| strikes(o.0) >= strikes(neighbour))
        };
        let taken: Vec<Slot> = self.wants.iter().filter(|(_, w)| may(w)).map(|(&owner, _)| owner).take(most).collect();
        if !taken.is_empty() {
            let strikes = strikes(neighbour);
            self.desks.insert(neighbour, Desk { number, until, strikes });
        }
        for owner in &taken {
            if let Some(want) = self.wants.get_mut(owner) {
                want.asked = Some(neighbour);
            }
        }
        taken
    }

    /// `neighbour` answered request `number`, with something about each map in `mentioned` (sorted). Where it has not delivered
    /// what it offered, the offer is void, unless it says that there is `more` and has made progress. Says whether
    /// this was the answer we waited for, and which maps are dry.
    pub(super) fn answered(
        &mut self,
        neighbour: Slot,
        number: u16,
        mentioned: &[Slot],
        more: bool,
    ) -> Option<Vec<Slot>> {
        let desk = self.desks.get_mut(&neighbour).filter(|d| d.until != Instant::NEVER && d.number == number)?;
        (desk.until, desk.strikes) = (Instant::NEVER, desk.strikes.saturating_sub(1));
        if desk.strikes == 0 {
            self.desks.remove(&neighbour);
        }
        let asked = |owner: &Slot| self.wants.get(owner).is_some_and(|w| w.asked == Some(neighbour));
        let later = more && mentioned.iter().any(asked);
        Some(self.void(neighbour, |owner, want| {
            want.asked == Some(neighbour) && (!later || mentioned.binary_search(&owner).is_ok())
        }))
    }

    /// `neighbour` is no neighbour any more: its offers are void, and it answers nothing.
    pub(super) fn lost(&mut self, neighbour: Slot) -> Vec<Slot> {
        self.desks.remove(&neighbour);
        self.void(neighbour, |_, _| true)
    }

    /// Neighbours with whom our patience is over.
    pub(super) fn silent(&self, now: Instant) -> Vec<Slot> {
        self.desks.iter().filter(|(_, d)| d.until <= now).map(|(&who, _)| who).collect()
    }

    /// `neighbour` did not answer: what it was asked for others may give. Says which maps are dry.
    pub(super) fn silence(&mut self, neighbour: Slot) -> Vec<Slot> {
        if let Some(desk) = self.desks.get_mut(&neighbour) {
            (desk.until, desk.strikes) = (Instant::NEVER, desk.strikes.saturating_add(1));
        }
        self.void(neighbour, |_, want| want.asked == Some(neighbour))
    }

    /// Makes void what `neighbour` offered of some maps; nobody waits for it any more. Says which maps are dry.
    fn void(&mut self, neighbour: Slot, which: impl Fn(Slot, &Want) -> bool) -> Vec<Slot> {
        let mut dry = Vec::new();
        self.wants.retain(|&owner, want| {
            let had = !want.offers.is_empty();
            if which(owner, want) {
                want.offers.retain(|o| o.0 != neighbour);
            }
            if want.asked == Some(neighbour) {
                want.asked = None;
            }
            let keep = want.asked.is_some() || !want.offers.is_empty();
            if !keep && had {
                dry.push(owner);
            }
            keep
        });
        dry
    }

    /// When patience with somebody ends.
    pub(super) fn deadline(&self) -> Instant {
        self.desks.values().map(|d| d.until).min().unwrap_or(Instant::NEVER)
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&self.wants);
        for (who, desk) in &self.desks {
            print.add(who).add(&desk.number).add(&desk.strikes);
            print.instant(desk.until);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Instant = Instant(9);
    const P: Slot = Slot(100);
    const Q: Slot = Slot(101);
    const A: Slot = Slot(1);
    const B: Slot = Slot(2);
    const C: Slot = Slot(3);

    fn offered(offers: &[(Slot, Slot, u64)]) -> Wants {
        let mut wants = Wants::default();
        offers.iter().for_each(|&(owner, from, version)| wants.offer(owner, 1, from, version));
        wants
    }

    #[test]
    fn a_map_is_asked_for_once_and_a_neighbour_answers_one_request() {
        let mut wants = offered(&[(P, A, 5), (P, B, 7)]);
        assert_eq!(wants.take(A, 1, SOON, 9), [P]);
        assert!(wants.take(B, 2, SOON, 9).is_empty(), "A is asked");
        wants.offer(Q, 1, A, 1);
        assert!(wants.take(A, 2, SOON, 9).is_empty(), "A has something to answer");
        wants.hold(P, 5);
        assert_eq!(wants.answered(A, 1, &[P], false), Some(vec![]));
        assert_eq!((wants.take(A, 2, SOON, 9), wants.take(B, 3, SOON, 9)), (vec![Q], vec![P]));
    }

    #[test]
    fn who_does_not_have_it_is_not_asked_again_and_the_last_one_leaves_the_map_dry() {
        let mut wants = offered(&[(P, A, 5), (P, B, 7)]);
        wants.take(B, 1, SOON, 9);
        assert_eq!(wants.answered(B, 1, &[P], false), Some(vec![]), "A is left");
        assert!(wants.take(B, 2, SOON, 9).is_empty());
        assert_eq!(wants.take(A, 2, SOON, 9), [P]);
        assert_eq!(wants.lost(A), [P]);
        assert_eq!((wants, Wants::default().deadline()), (Wants::default(), Instant::NEVER));
    }

    #[test]
    fn an_answer_to_something_else_changes_nothing() {
        let mut wants = offered(&[(P, A, 5)]);
        wants.take(A, 7, SOON, 9);
        let before = wants.clone();
        assert_eq!((wants.answered(A, 6, &[P], false), wants.answered(B, 7, &[P], false)), (None, None));
        assert_eq!(wants, before);
    }

    #[test]
    fn a_full_answer_is_continued_while_it_makes_progress() {
        let mut wants = offered(&[(P, A, 5), (Q, A, 5)]);
        assert_eq!(wants.take(A, 1, SOON, 9), [P, Q]);
        wants.hold(P, 5);
        assert_eq!(wants.answered(A, 1, &[P], true), Some(vec![]));
        assert_eq!(wants.take(A, 2, SOON, 9), [Q]);
        assert_eq!(wants.answered(A, 2, &[], true), Some(vec![Q]), "more, it says, and gives nothing");
    }

    #[test]
    fn who_is_silent_comes_last_until_it_answers() {
        let mut wants = offered(&[(P, A, 1 << 60), (P, B, 7)]);
        wants.take(A, 1, SOON, 9);
        assert_eq!((wants.deadline(), wants.silent(SOON)), (SOON, vec![A]));
        assert!(wants.silence(A).is_empty(), "B is left");
        wants.offer(P, 1, A, 1 << 61);
        assert!(wants.take(A, 2, SOON, 9).is_empty(), "B offers it too");
        assert_eq!(wants.take(B, 2, SOON, 9), [P]);
        wants.hold(P, 7);
        wants.answered(B, 2, &[P], false);
        assert_eq!(wants.take(A, 3, SOON, 9), [P], "nobody else has more");
        assert_eq!(wants.answered(A, 3, &[P], false), Some(vec![P]));
        assert_eq!(wants, Wants::default());
    }

    #[test]
    fn what_we_have_is_not_wanted() {
        let mut wants = offered(&[(P, A, 5), (P, B, 7), (P, C, 6)]);
        wants.hold(P, 6);
        assert!(wants.take(A, 1, SOON, 9).is_empty() && wants.take(C, 1, SOON, 9).is_empty());
        wants.hold(P, 7);
        assert_eq!(wants, Wants::default());
        let mut wants = offered(&[(P, A, 5)]);
        wants.take(A, 1, SOON, 9);
        wants.hold(P, 9);
        wants.offer(P, 1, B, 10);
        assert!(wants.take(B, 2, SOON, 9).is_empty(), "the answer of A is under way");
        assert_eq!(wants.forget(P), Some((1, 10)));
    }

    #[test]
    fn a_new_life_wants_anew() {
        let mut wants = offered(&[(P, A, 5)]);
        wants.take(A, 1, SOON, 9);
        wants.offer(P, 2, B, 1);
        assert_eq!(wants.take(B, 2, SOON, 9), [P]);
        assert_eq!(wants.answered(A, 1, &[], false), Some(vec![]));
    }
}
