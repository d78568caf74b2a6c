//! The log: the entries behind a base that the application has saved, and who was last heard in them.
//!
//! Bounded in entries and bytes. The policy of a full log: entries go from its front once they are ordered, saved
//! by the application and on disk; when none may go, new messages are refused, and their origin keeps them.

use super::wire::{ENTRY_HEAD, EntryView, Malformed, Reader, put_u64};
use super::{MEMBERS_BOUND, Origin, Place};
use phalanx_core::{Buf, Fingerprint};
use std::collections::VecDeque;

/// Room beyond the bound for the barriers of new leaders: without its barrier a leader orders nothing, so a full
/// log would stay full for ever. Each takes [`ENTRY_HEAD`] bytes.
const BARRIERS: usize = 256;

/// The next message expected of each member, as (boot, seq): what keeps the order of each origin and lets a
/// message that was sent twice be ordered once.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Expected([(u64, u64); MEMBERS_BOUND]);

impl Expected {
    /// True when `origin` is the next message of its member: the next of a boot, or the first of a later boot.
    pub(super) fn is_next(&self, origin: Origin) -> bool {
        let (boot, next) = self.of(origin);
        (origin.boot == boot && origin.seq == next) || (origin.boot > boot && origin.seq == 0)
    }

    /// How many messages of that boot were seen.
    pub(super) fn seen(&self, origin: Origin) -> u64 {
        let (boot, next) = self.of(origin);
        if boot == origin.boot { next } else { 0 }
    }

    fn of(&self, origin: Origin) -> (u64, u64) {
        self.0[usize::from(origin.member.0)]
    }

    pub(super) fn note(&mut self, origin: Option<Origin>) {
        if let Some(o) = origin {
            self.0[usize::from(o.member.0)] = (o.boot, o.seq + 1);
        }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        for &(boot, next) in &self.0 {
            put_u64(out, boot);
            put_u64(out, next);
        }
    }

    pub(super) fn decode(r: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut pairs = [(0, 0); MEMBERS_BOUND];
        for pair in &mut pairs {
            *pair = (r.u64()?, r.u64()?);
        }
        Ok(Self(pairs))
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) ballot: u64,
    pub(super) origin: Option<Origin>,
    pub(super) message: Buf,
}

impl Entry {
    pub(super) fn view(&self) -> EntryView<'_> {
        EntryView { ballot: self.ballot, origin: self.origin, message: self.message.bytes() }
    }

    fn size(&self) -> usize {
        ENTRY_HEAD + self.message.len()
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Log {
    base: Place,
    at_base: Expected,
    at_tail: Expected,
    entries: VecDeque<Entry>,
    bytes: usize,
    bound: (usize, usize),
}

impl Log {
    pub(super) fn new(entries_bound: usize, bytes_bound: usize) -> Self {
        Self::behind(Place::default(), Expected::default(), (entries_bound, bytes_bound))
    }

    fn behind(base: Place, expected: Expected, bound: (usize, usize)) -> Self {
        Self { base, at_base: expected, at_tail: expected, entries: VecDeque::new(), bytes: 0, bound }
    }

    /// The entry before the first one here.
    pub(super) fn base(&self) -> Place {
        self.base
    }

    pub(super) fn at_base(&self) -> &Expected {
        &self.at_base
    }

    /// What was seen of each member, to the end of the log.
    pub(super) fn at_tail(&self) -> &Expected {
        &self.at_tail
    }

    pub(super) fn last(&self) -> Place {
        Place { index: self.last_index(), ballot: self.entries.back().map_or(self.base.ballot, |e| e.ballot) }
    }

    pub(super) fn last_index(&self) -> u64 {
        self.base.index + self.entries.len() as u64
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn get(&self, index: u64) -> Option<&Entry> {
        self.entries.get(usize::try_from(index.checked_sub(self.base.index + 1)?).ok()?)
    }

    /// The ballot of the entry at `index`, the base included.
    pub(super) fn ballot_at(&self, index: u64) -> Option<u64> {
        if index == self.base.index { Some(self.base.ballot) } else { self.get(index).map(|e| e.ballot) }
    }

    /// The entries from `index` on.
    pub(super) fn from(&self, index: u64) -> impl Iterator<Item = &Entry> {
        self.entries.range(index.saturating_sub(self.base.index + 1).min(self.entries.len() as u64) as usize..)
    }

    /// True when a message of `len` bytes finds room; a barrier always may use the reserve.
    pub(super) fn has_room(&self, len: Option<usize>) -> bool {
        match len {
            Some(len) => self.entries.len() < self.bound.0 && self.bytes + ENTRY_HEAD + len <= self.bound.1,
            None => self.entries.len() < self.bound.0 + BARRIERS,
        }
    }

    pub(super) fn push(&mut self, entry: EntryView<'_>) {
        let entry = Entry { ballot: entry.ballot, origin: entry.origin, message: Buf::copy_of(entry.message) };
        self.at_tail.note(entry.origin);
        self.bytes += entry.size();
        self.entries.push_back(entry);
    }

    /// Cuts all behind `index`; `ordered` is what was seen up to `ordered_to`, which is never cut.
    pub(super) fn truncate(&mut self, index: u64, ordered_to: u64, ordered: &Expected) {
        debug_assert!(ordered_to <= index, "what is ordered stays");
        while self.last_index() > index {
            self.bytes -= self.entries.pop_back().map_or(0, |e| e.size());
        }
        self.at_tail = *ordered;
        for i in ordered_to + 1..=index {
            let origin = self.get(i).and_then(|e| e.origin);
            self.at_tail.note(origin);
        }
    }

    /// Makes room in a full log by dropping entries up to `limit`, a quarter of the log at a time; the rest stays
    /// for members that lag.
    pub(super) fn make_room(&mut self, limit: u64) {
        if self.entries.len() * 8 < self.bound.0 * 7 && self.bytes < self.bound.1 / 8 * 7 {
            return;
        }
        let (entries, bytes) = (self.bound.0 * 3 / 4, self.bound.1 / 4 * 3);
        while self.base.index < limit && (self.entries.len() > entries || self.bytes > bytes) {
            let Some(entry) = self.entries.pop_front() else { return };
            self.bytes -= entry.size();
            self.at_base.note(entry.origin);
            self.base = Place { index: self.base.index + 1, ballot: entry.ballot };
        }
    }

    /// Begins anew behind `base`, keeping what follows it when the log holds that very entry.
    pub(super) fn restart_behind(&mut self, base: Place, expected: Expected) {
        if self.ballot_at(base.index) != Some(base.ballot) {
            *self = Self::behind(base, expected, self.bound);
            return;
        }
        while self.base.index < base.index {
            let Some(entry) = self.entries.pop_front() else { return };
            self.bytes -= entry.size();
            self.base = Place { index: self.base.index + 1, ballot: entry.ballot };
        }
        self.at_base = expected;
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&self.base).add(&self.at_base).add(&self.entries.len());
        for e in &self.entries {
            print.add(&e.ballot).add(&e.origin).add(&e.message.bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Member;
    use super::*;

    fn origin(member: u8, boot: u64, seq: u64) -> Origin {
        Origin { member: Member(member), boot, seq }
    }

    fn filled(n: u64) -> Log {
        let mut log = Log::new(16, 100_000);
        for seq in 0..n {
            log.push(EntryView { ballot: 1 + seq / 4, origin: Some(origin(0, 1, seq)), message: &[seq as u8] });
        }
        log
    }

    /// MM-3: an origin's messages enter in order, once; a later boot begins anew and an earlier one is over.
    #[test]
    fn each_origin_is_heard_in_order_and_once() {
        let mut seen = Expected::default();
        for o in [origin(1, 5, 0), origin(1, 5, 1)] {
            assert!(seen.is_next(o));
            seen.note(Some(o));
        }
        assert!(!seen.is_next(origin(1, 5, 1)) && !seen.is_next(origin(1, 5, 3)), "twice, and past a gap");
        assert!(seen.is_next(origin(1, 6, 0)) && !seen.is_next(origin(1, 6, 1)) && !seen.is_next(origin(1, 4, 0)));
        assert_eq!((seen.seen(origin(1, 5, 0)), seen.seen(origin(1, 6, 0))), (2, 0));
    }

    #[test]
    fn cutting_the_tail_forgets_what_it_had_seen() {
        let mut log = filled(8);
        log.truncate(5, 0, &Expected::default());
        assert_eq!(log.last(), Place { index: 5, ballot: 2 });
        assert!(log.at_tail().is_next(origin(0, 1, 5)));
        assert_eq!(log.from(4).map(|e| e.message.bytes()[0]).collect::<Vec<_>>(), [3, 4]);
    }

    #[test]
    fn a_full_log_drops_what_is_saved_and_nothing_else() {
        let mut log = filled(16);
        assert!(!log.has_room(Some(1)) && log.has_room(None));
        log.make_room(2);
        assert_eq!((log.base(), log.ballot_at(2)), (Place { index: 2, ballot: 1 }, Some(1)));
        log.make_room(16);
        assert_eq!(log.base().index, 4, "a quarter goes, the rest stays for members that lag");
        assert!(log.has_room(Some(1)) && log.get(4).is_none() && log.get(5).is_some());
        assert_eq!(log.at_base().seen(origin(0, 1, 0)), 4);
    }

    #[test]
    fn a_handed_over_state_keeps_the_tail_that_it_matches() {
        let (mut same, mut other) = (filled(8), filled(8));
        same.restart_behind(Place { index: 6, ballot: 2 }, Expected::default());
        assert_eq!((same.base().index, same.last_index()), (6, 8));
        other.restart_behind(Place { index: 6, ballot: 9 }, Expected::default());
        assert_eq!((other.base().index, other.last_index(), other.bytes()), (6, 6, 0));
    }
}
