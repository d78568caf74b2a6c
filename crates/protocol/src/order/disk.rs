//! What a member keeps across restarts, and which of it is on disk by now.
//!
//! A record carries ballot and vote, and the entries behind a place. The driver appends records in the order in which they were
//! issued; after a crash each unconfirmed one is there or not, whole. Replay therefore checks the entry before the
//! first: a record whose predecessor was lost attaches to nothing and is passed over. Only one that says
//! `replaces` stands alone, and lets the driver forget all before it.
//!
//! Writes may be late or lost like packets. Records count as durable from the front only: when the first of them
//! stays unconfirmed for too long, all behind it are written again.
//!
//! A ballot without a vote needs no write of its own. What a member promises by acknowledging entries of a ballot,
//! these entries remember; a ballot it merely heard of, it may forget.

use super::log::{Expected, Log};
use super::wire::{Malformed, Reader, VERSION, put_entry, put_place, put_u64, put_vote};
use super::{Member, Place};
use phalanx_core::{Fingerprint, Instant};
use std::collections::VecDeque;

/// Writes under way at once. Entries that come meanwhile wait and share the next one.
const WRITES_BOUND: usize = 4;

/// Ballot and vote: what must never be taken back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Promise {
    pub(super) ballot: u64,
    pub(super) vote: Option<Member>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Write {
    token: u64,
    promise: Promise,
    through: u64,
    replaces: bool,
    /// Holds all that was not durable when it was issued: it stands for the writes before it.
    afresh: bool,
    done: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Disk {
    next_token: u64,
    writes: VecDeque<Write>,
    /// On disk for sure.
    durable: Promise,
    durable_through: u64,
    /// On disk or under way.
    issued: Promise,
    issued_through: u64,
    /// The log began anew, or holds more records than it is worth: the next record replaces.
    replace: bool,
    /// Writes were given up: the next record begins afresh.
    afresh: bool,
    /// Bytes of records since the last one that replaced.
    grown: usize,
    /// When the first write is given up.
    pub(super) retry_at: Instant,
}

impl Disk {
    pub(super) fn new(promise: Promise, through: u64) -> Self {
        Self {
            next_token: 0,
            writes: VecDeque::with_capacity(WRITES_BOUND),
            durable: promise,
            durable_through: through,
            issued: promise,
            issued_through: through,
            replace: false,
            afresh: false,
            grown: 0,
            retry_at: Instant::NEVER,
        }
    }

    pub(super) fn promised(&self, promise: Promise) -> bool {
        self.durable == promise
    }

    pub(super) fn through(&self) -> u64 {
        self.durable_through
    }

    /// True when something waits that may be written now.
    pub(super) fn wants(&self, promise: Promise, last: u64) -> bool {
        let vote = promise.vote.is_some() && promise != self.issued;
        self.writes.len() < WRITES_BOUND && (vote || last > self.issued_through || (self.replace && !self.replacing()))
    }

    fn replacing(&self) -> bool {
        self.writes.iter().any(|w| w.replaces)
    }

    /// Encodes the record of all that is not yet issued and returns its token and whether it replaces.
    pub(super) fn issue(
        &mut self,
        epoch: u32,
        promise: Promise,
        log: &Log,
        rewrite_after: usize,
        out: &mut Vec<u8>,
    ) -> (u64, bool) {
        let replaces = self.replace || self.grown > rewrite_after.max(2 * log.bytes());
        let behind = if replaces { log.base().index } else { self.issued_through };
        out.extend_from_slice(&[VERSION, u8::from(replaces)]);
        out.extend_from_slice(&epoch.to_le_bytes());
        put_u64(out, promise.ballot);
        put_vote(out, promise.vote);
        put_place(out, Place { index: behind, ballot: log.ballot_at(behind).unwrap_or_default() });
        if replaces {
            log.at_base().encode(out);
        }
        put_u64(out, log.last_index() - behind);
        for entry in log.from(behind + 1) {
            put_entry(out, entry.view());
        }
        self.grown = if replaces { 0 } else { self.grown + out.len() };
        let (token, afresh) = (self.next_token, std::mem::take(&mut self.afresh));
        self.next_token += 1;
        (self.issued, self.issued_through) = (promise, log.last_index());
        self.writes.push_back(Write { token, promise, through: log.last_index(), replaces, afresh, done: false });
        (token, replaces)
    }

    /// A write is confirmed. True when more is durable than before.
    pub(super) fn confirm(&mut self, token: u64) -> bool {
        let Some(write) = self.writes.iter_mut().find(|w| w.token == token) else {
            return false;
        };
        write.done = true;
        if let Some(at) = self.writes.iter().rposition(|w| w.afresh && w.done) {
            self.writes.drain(..at);
        }
        let mut progress = false;
        while self.writes.front().is_some_and(|w| w.done) {
            let Some(write) = self.writes.pop_front() else { break };
            progress = true;
            self.durable = write.promise;
            self.durable_through = self.durable_through.max(write.through);
            self.replace &= !write.replaces;
        }
        progress
    }

    /// Issues again what is under way. The first write stays valid, so that a disk slower than our patience gets
    /// there too.
    pub(super) fn give_up(&mut self) {
        self.writes.truncate(1);
        self.afresh = true;
        (self.issued, self.issued_through) = (self.durable, self.durable_through);
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.writes.is_empty()
    }

    /// The log was cut behind `index`.
    pub(super) fn truncated(&mut self, index: u64) {
        self.durable_through = self.durable_through.min(index);
        self.issued_through = self.issued_through.min(index);
        for write in &mut self.writes {
            write.through = write.through.min(index);
        }
    }

    /// The log began anew: nothing of it counts as durable until a record has replaced the others.
    pub(super) fn restarted(&mut self) {
        self.replace = true;
        self.writes.clear();
        (self.durable_through, self.issued_through) = (0, 0);
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.instant(self.retry_at);
        print.add(&(self.durable, self.durable_through, self.issued, self.issued_through, self.replace, self.afresh));
        // Tokens by age: how many were used before makes no difference to what follows.
        for w in &self.writes {
            print.add(&(self.next_token - w.token, w.promise, w.through, w.replaces, w.afresh, w.done));
        }
    }
}

/// Applies one record to what the records before it gave.
pub(super) fn replay(record: &[u8], epoch: u32, promise: &mut Promise, log: &mut Log) -> Result<(), Malformed> {
    let mut r = Reader(record);
    if r.u8()? != VERSION {
        return Err(Malformed::Version);
    }
    let replaces = r.flag()?;
    if r.u32()? != epoch {
        return Err(Malformed::Value);
    }
    let said = Promise { ballot: r.u64()?, vote: r.member()? };
    if said.ballot > promise.ballot || (said.ballot == promise.ballot && promise.vote.is_none()) {
        *promise = said;
    }
    let behind = r.place()?;
    if replaces {
        let expected = Expected::decode(&mut r)?;
        // The very same entries follow in this record: nothing of the old log is worth keeping.
        log.restart_behind(Place { index: behind.index, ballot: u64::MAX }, Expected::default());
        log.restart_behind(behind, expected);
    } else if log.ballot_at(behind.index) == Some(behind.ballot) {
        let (base, expected) = (log.base().index, *log.at_base());
        log.truncate(behind.index, base, &expected);
    } else {
        return Ok(());
    }
    for _ in 0..r.u64()? {
        let entry = r.entry()?;
        promise_at_least(promise, entry.ballot);
        log.push(entry);
    }
    r.end()
}

fn promise_at_least(promise: &mut Promise, ballot: u64) {
    if ballot > promise.ballot {
        *promise = Promise { ballot, vote: None };
    }
}

#[cfg(test)]
mod tests {
    use super::super::wire::EntryView;
    use super::*;

    fn push(log: &mut Log, ballot: u64, messages: &[&[u8]]) {
        for message in messages {
            let seq = log.last_index();
            let origin = Some(super::super::Origin { member: Member(0), boot: 1, seq });
            log.push(EntryView { ballot, origin, message });
        }
    }

    fn issue(disk: &mut Disk, promise: Promise, log: &Log) -> (u64, Vec<u8>) {
        let mut record = vec![];
        let (token, _) = disk.issue(7, promise, log, 1 << 20, &mut record);
        (token, record)
    }

    fn replayed(records: &[&[u8]]) -> (Promise, Log) {
        let (mut promise, mut log) = (Promise::default(), Log::new(100, 10_000));
        for record in records {
            replay(record, 7, &mut promise, &mut log).unwrap();
        }
        (promise, log)
    }

    /// Log, disk and two records: entries 1–2 of ballot 1, then 2 replaced by 2–3 of ballot 2, in records of their own.
    fn rewritten() -> (Disk, Log, [Vec<u8>; 3]) {
        let (mut disk, mut log) = (Disk::new(Promise::default(), 0), Log::new(100, 10_000));
        let first = Promise { ballot: 1, vote: Some(Member(2)) };
        push(&mut log, 1, &[b"a", b"b"]);
        let (_, a) = issue(&mut disk, first, &log);
        log.truncate(1, 0, &Expected::default());
        disk.truncated(1);
        let second = Promise { ballot: 2, vote: None };
        push(&mut log, 2, &[b"c"]);
        let (_, b) = issue(&mut disk, second, &log);
        push(&mut log, 2, &[b"d"]);
        let (_, c) = issue(&mut disk, second, &log);
        (disk, log, [a, b, c])
    }

    #[test]
    fn records_replay_to_the_state_that_wrote_them() {
        let (_, log, [a, b, c]) = rewritten();
        let (promise, read) = replayed(&[&a, &b, &c]);
        assert_eq!((promise, read), (Promise { ballot: 2, vote: None }, log));
        assert_eq!(replayed(&[&a]).0, Promise { ballot: 1, vote: Some(Member(2)) });
    }

    /// MM-3: a lost write must not leave a log that nobody ever had. Here `d` of ballot 2 would follow `b` of ballot 1.
    #[test]
    fn a_record_behind_a_lost_one_attaches_to_nothing() {
        let (_, _, [a, _, c]) = rewritten();
        let (_, read) = replayed(&[&a, &c]);
        assert_eq!(read.from(1).map(|e| (e.ballot, e.message.bytes()[0])).collect::<Vec<_>>(), [(1, b'a'), (1, b'b')]);
        assert_eq!(replayed(&[&c]).1.last_index(), 0);
    }

    #[test]
    fn writes_count_from_the_front_only_and_are_repeated_behind_a_gap() {
        let (mut disk, log, _) = rewritten();
        assert!(!disk.confirm(1) && !disk.confirm(2), "the first is still open");
        assert_eq!(disk.through(), 0);
        disk.give_up();
        let (token, record) = issue(&mut disk, Promise { ballot: 2, vote: None }, &log);
        assert!(!disk.confirm(1) && !disk.confirm(2), "given up");
        let mut late = disk.clone();
        assert!(late.confirm(0) && late.through() == 1, "a late word about the first counts, up to where it was cut");
        assert!(disk.confirm(token) && disk.is_quiet(), "what begins afresh stands for the first");
        assert_eq!((disk.through(), replayed(&[&record]).1), (3, log));
    }

    #[test]
    fn a_replacing_record_stands_alone() {
        let (mut disk, mut log, [a, ..]) = rewritten();
        let mut ordered = Expected::default();
        log.from(1).take(2).for_each(|e| ordered.note(e.origin));
        log.restart_behind(Place { index: 2, ballot: 2 }, ordered);
        disk.restarted();
        let promise = Promise { ballot: 2, vote: None };
        let (token, record) = issue(&mut disk, promise, &log);
        assert_eq!(replayed(&[&a, &record]), (promise, log.clone()));
        assert_eq!(replayed(&[&record]), (promise, log));
        assert!(disk.confirm(token) && !disk.wants(promise, 3));
    }

    #[test]
    fn a_damaged_record_is_refused() {
        let (_, _, [a, ..]) = rewritten();
        for cut in 0..a.len() {
            let result = replay(&a[..cut], 7, &mut Promise::default(), &mut Log::new(100, 10_000));
            assert!(result.is_err(), "cut at {cut}");
        }
        assert!(replay(&a, 8, &mut Promise::default(), &mut Log::new(100, 10_000)).is_err(), "of another epoch");
    }
}
