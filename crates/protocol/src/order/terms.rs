//! The words of an ordered group: seats, names of messages, places in the order, settings, refusals, counters.

use super::log::Expected;
use super::wire::{ENTRY_HEAD, MESSAGE_BOUND, Malformed, Reader, VERSION, put_place, put_u64};
use phalanx_core::Duration;
use thiserror::Error;

/// Most members of a group.
pub const MEMBERS_BOUND: usize = 7;

/// A member of the group, by its seat.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Member(pub u8);

/// Names a message: the `seq`-th that `member` submitted since it started for the `boot`-th time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Origin {
    /// Who submitted it.
    pub member: Member,
    /// Which start of the member; grows with each.
    pub boot: u64,
    /// Counts from zero in each boot.
    pub seq: u64,
}

/// An entry of the log: equal places mean equal logs up to there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Place {
    /// Position in the total order, from 1.
    pub index: u64,
    /// The ballot in which a leader put it there.
    pub ballot: u64,
}

/// Names a prefix of the order, to go with the application's state when that is handed to another member.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Mark {
    /// The last entry in the state.
    pub place: Place,
    /// The ballot of the member that took it.
    pub ballot: u64,
    /// What was seen of each member up to there.
    pub expected: Expected,
}

impl Mark {
    /// Appends the bytes that travel with the state: version, place, ballot, and a pair for each seat.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(VERSION);
        put_place(out, self.place);
        put_u64(out, self.ballot);
        self.expected.encode(out);
    }

    /// Reads what [`Mark::encode`] wrote.
    ///
    /// # Errors
    /// When it is not a mark.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut r = Reader(bytes);
        if r.u8()? != VERSION {
            return Err(Malformed::Version);
        }
        let mark = Self { place: r.place()?, ballot: r.u64()?, expected: Expected::decode(&mut r)? };
        r.end()?;
        Ok(mark)
    }
}

/// Where a member sits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seat {
    /// This member.
    pub me: Member,
    /// How many there are, an odd number.
    pub members: u8,
    /// Which composition of the group.
    pub epoch: u32,
    /// Which start of this member: larger than at each start before.
    pub boot: u64,
}

/// Times and bounds. All members of a group share them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Between the leader's signs of life while something is under way.
    pub heartbeat: Duration,
    /// The same when nothing is.
    pub beacon: Duration,
    /// How long a busy leader may be silent; up to `jitter` more is drawn, so that members do not stand together.
    /// A leader that announced to be idle may miss two beacons more (CM-3).
    pub patience: Duration,
    /// See `patience`.
    pub jitter: Duration,
    /// When a write that was not confirmed is repeated.
    pub disk_patience: Duration,
    /// Entries go into one packet until it holds this many bytes; one always does.
    pub batch_bytes: usize,
    /// Entries in the log.
    pub log_entries: usize,
    /// Bytes in the log.
    pub log_bytes: usize,
    /// Own messages that are not ordered yet; more are refused.
    pub outbox: usize,
}

impl Config {
    /// Longest message that is taken: an eighth of the log, so that a log that has dropped what it may takes it.
    #[must_use]
    pub fn message_bound(&self) -> usize {
        MESSAGE_BOUND.min((self.log_bytes / 8).saturating_sub(ENTRY_HEAD))
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(40),
            beacon: Duration::from_millis(500),
            patience: Duration::from_millis(200),
            jitter: Duration::from_millis(200),
            disk_patience: Duration::from_millis(500),
            batch_bytes: 8 * 1024,
            log_entries: 8 * 1024,
            log_bytes: 8 << 20,
            outbox: 1024,
        }
    }
}

/// Why a message was not taken. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// Longer than [`Config::message_bound`]: split it.
    TooLong,
    /// [`Config::outbox`] messages wait to be ordered: submit again after the next `Deliver`.
    Full,
}

/// Why a member must not start from what it has. It needs a new seat, in a new epoch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum StartError {
    /// A record cannot be read: the member may have promised what it no longer knows.
    #[error("durable record {record} is damaged: {why}")]
    Damaged {
        /// Which record, counted from zero.
        record: usize,
        /// What is wrong with it.
        why: Malformed,
    },
    /// The application said that more was saved than it has now, and the log dropped it.
    #[error("the application has messages up to {have}, the log begins behind {base}")]
    Behind {
        /// The last message in the application's state.
        have: u64,
        /// The last message that the log has dropped.
        base: u64,
    },
}

/// What was dropped, and how often.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Packets that are none.
    pub malformed: u64,
    /// Packets of another epoch, or from nobody in the group.
    pub foreign: u64,
    /// Messages refused because the outbox was full.
    pub refused: u64,
    /// Forwarded messages and entries left to be sent again because the log was full.
    pub log_full: u64,
    /// Packets that contradict what is ordered already. Anything but zero is a bug in some member.
    pub contradictions: u64,
    /// Writes repeated because they were not confirmed in time.
    pub rewrites: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_travels_with_the_state() {
        let mut expected = Expected::default();
        expected.note(Some(Origin { member: Member(6), boot: 3, seq: 8 }));
        let mark = Mark { place: Place { index: 5, ballot: 2 }, ballot: 4, expected };
        let mut bytes = vec![];
        mark.encode(&mut bytes);
        assert_eq!(Mark::decode(&bytes), Ok(mark));
        assert_eq!(bytes[..25], [1, 5, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(bytes[bytes.len() - 16..], [3, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        for cut in 0..bytes.len() {
            assert_eq!(Mark::decode(&bytes[..cut]), Err(Malformed::Length));
        }
    }
}
