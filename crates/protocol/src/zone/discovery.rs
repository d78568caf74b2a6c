//! Discovery: how members find each other, at boot and after a partition.
//!
//! ZN-3, 002 §3: a random target from (B \ View) ∪ H is asked for its whole view. Often at boot, ever more rarely later;
//! never again when there is nobody to ask. Where we differ:
//! - At boot the bootstrap set is asked again until an answer brings little that is new, though its members are in the view by
//!   then: of many that start at once each would know the few that were asked before it, and all would link to the same.
//! - A member that is alone asks at least once a second, for ever. In large zones each asks more rarely, so that a
//!   removed member is not asked by thousands at once.
//! - When somebody comes back in the incarnation in which it was removed, a partition may be over: all ask again soon.
//! - Requests of one peer that come too soon are not answered: a view is much larger than a request.

use super::Zone;
use super::view::Standing;
use crate::member::{Engine, Out, Output, Slot};
use phalanx_core::{Addr, Duration, Fingerprint, Instant};
use phalanx_wire::zone::{LetterKind, flag};
use std::collections::VecDeque;
use std::sync::Arc;

/// An answer that brings less than this part of the view brings nothing new.
const LITTLE: usize = 16;
/// After so many questions at boot a member looks for neighbours among those it knows.
const ROUNDS: u32 = 4;
/// Who is no neighbour keeps its link for so long, should it become one.
const CONTACT: Duration = Duration::from_secs(2);
/// The longest wait of a member that is alone.
const LONELY: Duration = Duration::from_secs(1);
/// Places to ask, those that were learned from others included.
const SEEDS: usize = 64;
/// Of several places that are learned at once so many are asked at once.
const AT_ONCE: usize = 2;
/// Members that ask in each second, about, when somebody was removed.
const ASKING: u64 = 64;

/// Whom to ask, and when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Discovery {
    /// B, without ourselves, and who was found there.
    seeds: Arc<[Addr]>,
    found: Vec<Found>,
    me: Addr,
    at: Instant,
    wait: Duration,
    /// Some answer brought little that was new, or enough were asked.
    settled: bool,
    /// It has others to look for, and has not looked for neighbours yet: it comes to a zone that is there already.
    newcomer: bool,
    rounds: u32,
    /// Whom we asked last.
    asked: Option<Addr>,
    /// Whose links are kept for a while, by the end of that.
    contacts: VecDeque<Contact>,
}

/// Who was found at a seed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Found {
    Nobody,
    Member(Slot),
    /// HI-1: somebody of another zone.
    Away,
}

/// Somebody who is no neighbour.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Contact {
    until: Instant,
    addr: Addr,
    /// When it last got our view.
    answered_at: Option<Instant>,
}

impl Discovery {
    pub(super) fn new(now: Instant, seeds: &Arc<[Addr]>, me: Addr) -> Self {
        let alone = seeds.iter().all(|&s| s == me);
        Self {
            seeds: Arc::clone(seeds),
            found: vec![Found::Nobody; seeds.len()],
            me,
            at: if alone { Instant::NEVER } else { now },
            wait: Duration::ZERO,
            settled: alone,
            newcomer: !alone,
            rounds: 0,
            asked: None,
            contacts: VecDeque::new(),
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.at.min(self.contacts.front().map_or(Instant::NEVER, |c| c.until))
    }

    pub(super) fn contacts(&self) -> usize {
        self.contacts.len()
    }

    /// HI-1: in another zone all begins anew; links that are kept for a while stay.
    pub(super) fn renew(&mut self, now: Instant, seeds: &Arc<[Addr]>) {
        let contacts = std::mem::take(&mut self.contacts);
        *self = Self { contacts, at: now, settled: false, ..Self::new(now, seeds, self.me) };
    }

    /// One more place to ask, instead of one that is in another zone when there are too many. False when it is known.
    fn add(&mut self, seed: Addr) -> bool {
        if seed == self.me || self.seeds.contains(&seed) {
            return false;
        }
        if self.seeds.len() >= SEEDS {
            let Some(i) = self.found.iter().position(|&f| f == Found::Away) else { return false };
            self.seeds = self.seeds.iter().enumerate().filter(|s| s.0 != i).map(|s| *s.1).collect();
            self.found.remove(i);
        }
        self.seeds = self.seeds.iter().copied().chain([seed]).collect();
        self.found.push(Found::Nobody);
        true
    }

    /// True once this member knows what its bootstrap set knows: then it looks for neighbours.
    pub(super) fn is_settled(&self) -> bool {
        self.settled
    }

    /// True for who comes to a zone, the first time it is asked.
    pub(super) const fn take_newcomer(&mut self) -> bool {
        std::mem::replace(&mut self.newcomer, false)
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.instant(self.at);
        print.add(&(self.wait, self.settled, self.newcomer, self.asked, &self.found));
        for contact in &self.contacts {
            print.instant(contact.until);
            print.add(&contact.addr);
            print.instant(contact.answered_at.unwrap_or(Instant::NEVER));
        }
    }
}

impl Zone {
    /// Asks somebody.
    pub(super) fn discover(&mut self, now: Instant, out: &mut impl Out) {
        while let Some(&Contact { until, addr, .. }) = self.discovery.contacts.front()
            && until <= now
        {
            self.discovery.contacts.pop_front();
            self.release(addr, out);
        }
        if self.discovery.at > now {
            return;
        }
        self.book.prune(now, self.config.history_age, self.config.history, &mut self.roster, |s| {
            self.neighbours.contains(s)
        });
        self.discovery.rounds += 1;
        if self.discovery.rounds > ROUNDS && !self.discovery.settled {
            self.discovery.settled = true;
            self.mend_at = now;
        }
        if self.discovery.settled {
            self.recognise_seeds();
        }
        let first = self.config.discover_first;
        let target = self.target();
        let sought = self.seek(self.discovery.rounds > ROUNDS, out);
        let longest = if self.len() == 1 && target.is_some() { LONELY } else { self.config.discover_last };
        self.discovery.wait = (self.discovery.wait * 2).clamp(first, longest);
        // Two who are alone and ask each other in the same moment of each second would break off each other's sessions, for
        // ever: none of their questions would be answered.
        let jitter =
            if self.discovery.wait == LONELY { Duration(self.rng.below(LONELY.0 / 4)) } else { Duration::ZERO };
        self.discovery.at = now + self.discovery.wait - jitter;
        match target {
            Some((target, removed)) => {
                if let Some(before) = self.discovery.asked.replace(target) {
                    self.release(before, out);
                }
                match removed {
                    Some(slot) => self.ask_removed(slot, out),
                    None => {
                        let request = self.parcel(LetterKind::Discover, flag::BOOT, false);
                        self.send(target, request, out);
                    }
                }
            }
            None if sought => {}
            None => self.discovery.at = Instant::NEVER,
        }
    }

    /// How long to wait with a first question about those who were removed.
    fn first_wait(&self) -> Duration {
        (LONELY * (self.len() as u64 / ASKING).max(1)).min(self.config.discover_last)
    }

    /// Seeds that we know from others need not be asked who they are.
    fn recognise_seeds(&mut self) {
        let Discovery { seeds, found, .. } = &mut self.discovery;
        if found.iter().all(|&f| f != Found::Nobody) {
            return;
        }
        for (found, &seed) in found.iter_mut().zip(seeds.iter()).filter(|(found, _)| **found == Found::Nobody) {
            if let Some(slot) = self.roster.at(seed).filter(|&slot| self.book.view.contains(slot)) {
                *found = Found::Member(slot);
            }
        }
    }

    /// A random one of (B \ View) ∪ H; at boot, of B. Says who it is when it is of H.
    fn target(&mut self) -> Option<(Addr, Option<Slot>)> {
        let Discovery { seeds, found, me, settled, .. } = &self.discovery;
        let alone = self.len() == 1;
        let absent = |i: &usize| {
            seeds[*i] != *me
                && match found[*i] {
                    Found::Nobody => true,
                    Found::Member(slot) => !settled || !self.book.view.contains(slot),
                    // It may come to know somebody of our zone.
                    Found::Away => alone,
                }
        };
        let seeds_left: Vec<usize> = (0..seeds.len()).filter(absent).collect();
        // Who is in another zone need not be asked whether it is in ours.
        let removed: Vec<Slot> = self.book.history().filter(|&s| self.book.elsewhere(s).is_none()).collect();
        let count = seeds_left.len() + removed.len();
        if count == 0 {
            return None;
        }
        let chosen = self.rng.index(count);
        match chosen.checked_sub(seeds_left.len()) {
            None => Some((self.discovery.seeds[seeds_left[chosen]], None)),
            Some(i) => Some((self.roster.card(removed[i])?.addr, Some(removed[i]))),
        }
    }

    /// Somebody was removed, or came back: others may be behind a partition, or not any more.
    pub(super) fn arm_discovery(&mut self, now: Instant) {
        let returned = std::mem::take(&mut self.book.returned);
        if self.book.history().len() == 0 || (self.discovery.at != Instant::NEVER && !returned) {
            return;
        }
        let wait = self.first_wait();
        if self.discovery.at == Instant::NEVER || wait < self.discovery.wait {
            self.discovery.wait = wait;
            let soon = now + wait / 2 + Duration(self.rng.below(wait.0));
            self.discovery.at = self.discovery.at.min(soon);
        }
    }

    pub(super) fn on_discover(&mut self, now: Instant, from: Addr, flags: u16, out: &mut impl Out) {
        if !self.may_answer(now, from, out) {
            return;
        }
        let found = self.parcel(LetterKind::Found, flags & flag::BOOT, true);
        self.send(from, found, out);
        // The answer ends the conversation: a seed that thousands ask at once must not hold links to them all.
        self.release(from, out);
    }

    /// A view is much larger than the question for it: who asks too soon again gets no answer.
    pub(super) fn may_answer(&mut self, now: Instant, from: Addr, out: &mut impl Out) -> bool {
        self.keep_contact(now, from, out);
        if let Some(contact) = self.discovery.contacts.iter_mut().rev().find(|c| c.addr == from) {
            let before = contact.answered_at.replace(now);
            if before.is_some_and(|at| now < at + self.config.discover_first / 2) {
                self.counters.discoveries_refused += 1;
                contact.answered_at = before;
                return false;
            }
        }
        true
    }

    /// HI-1: others say who may be in our zone. All are asked in time, some at once: who is known already only when it is
    /// asked for `again`, or two who are wrong about each other would send us to and fro.
    pub(super) fn on_hints(&mut self, now: Instant, mut hints: Vec<Addr>, again: bool, out: &mut impl Out) {
        hints.retain(|&addr| self.discovery.add(addr) || again && addr != self.discovery.me);
        if hints.is_empty() {
            return;
        }
        self.rng.shuffle(&mut hints);
        for &to in hints.iter().take(AT_ONCE) {
            let request = self.parcel(LetterKind::Discover, flag::BOOT, false);
            self.send(to, request, out);
        }
        let first = self.config.discover_first;
        self.discovery.wait = self.discovery.wait.min(first);
        self.discovery.at = self.discovery.at.min(now + first);
    }

    /// HI-1: whoever we asked is in another zone.
    pub(super) fn on_elsewhere(&mut self, from: Addr, out: &mut impl Out) {
        if let Some(i) = self.discovery.seeds.iter().position(|&s| s == from) {
            self.discovery.found[i] = Found::Away;
        }
        self.discovery_failed(from, out);
    }

    /// Keeps a link for a while. The oldest gives way when there are too many.
    fn keep_contact(&mut self, now: Instant, addr: Addr, out: &mut impl Out) {
        let contacts = &mut self.discovery.contacts;
        let mut contact = Contact { until: now + CONTACT, addr, answered_at: None };
        if let Some(i) = contacts.iter().rposition(|c| c.addr == addr) {
            if contacts[i].until >= now + CONTACT / 2 {
                return;
            }
            contact.answered_at = contacts.remove(i).and_then(|c| c.answered_at);
        }
        contacts.push_back(contact);
        if contacts.len() > Self::CONTACTS
            && let Some(oldest) = contacts.pop_front()
        {
            self.counters.discoveries_refused += 1;
            self.release(oldest.addr, out);
        }
    }

    /// Somebody who is no neighbour speaks to us, or we to it: its link is given up after a while. Both sides must, or one keeps it.
    pub(super) fn keep_stranger(&mut self, addr: Addr, out: &mut impl Out) {
        if self.neighbours.at(addr).is_none() && !self.is_colleague(addr) {
            self.keep_contact(self.now, addr, out);
        }
    }

    /// Asks a member which we have removed, so that it speaks up if it is there. It hears in which version it was removed:
    /// that may be one that it has outdone.
    pub(super) fn ask_removed(&mut self, slot: Slot, out: &mut impl Out) {
        let Some(addr) = self.roster.card(slot).map(|c| c.addr) else { return };
        let mut request = self.parcel(LetterKind::Discover, 0, false);
        if let Standing::Gone(removed) = self.book.view.standing(slot, &self.roster) {
            request.suspected.push((self.book.me, slot, removed));
        }
        self.send(addr, request, out);
    }

    pub(super) fn on_found(
        &mut self,
        now: Instant,
        from: Addr,
        sender: Slot,
        members_before: usize,
        out: &mut impl Out,
    ) {
        if let Some(i) = self.discovery.seeds.iter().position(|&s| s == from) {
            self.discovery.found[i] = Found::Member(sender);
        }
        if self.discovery.asked == Some(from) {
            self.discovery.asked = None;
            self.release(from, out);
        }
        // Seeds link at once: what one of them hears all of them shall know when they are asked again.
        let seed = self.discovery.seeds.contains(&self.discovery.me);
        let new = self.book.view.len() - members_before.min(self.book.view.len());
        if !self.discovery.settled && (seed || new * LITTLE <= self.book.view.len()) {
            self.discovery.settled = true;
            self.mend_at = now;
        }
    }

    /// Lets go of a link, unless it is a neighbour's, a guard's or a delegate's.
    pub(super) fn release(&mut self, addr: Addr, out: &mut impl Out) {
        if self.neighbours.at(addr).is_none() && !self.is_colleague(addr) {
            out.push(Output::Release { addr });
        }
    }

    /// Whoever was asked does not answer.
    pub(super) fn discovery_failed(&mut self, addr: Addr, out: &mut impl Out) {
        if self.discovery.asked == Some(addr) {
            self.discovery.asked = None;
            self.release(addr, out);
        }
    }
}
