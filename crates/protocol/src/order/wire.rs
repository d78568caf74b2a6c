//! The packets among the members of a group, and the entries that packets and durable records share.
//!
//! Little-endian, the version first: `version u8, kind u8, epoch u32`, then the fields in the order of [`Packet`].
//! Lists come last in a packet as `count u16` and the items, so that a sender appends them in place. Decoding
//! borrows: it walks the list once, checks every length, and allocates nothing.

use super::{MEMBERS_BOUND, Member, Origin, Place};
use thiserror::Error;

/// Version of packets and records. Another one is refused: a group is upgraded through a new epoch.
pub const VERSION: u8 = 1;
/// Longest message of an application. With its header it fits into the largest datagram.
pub const MESSAGE_BOUND: usize = 48 * 1024;
/// Longest packet taken from a peer.
pub const PACKET_BOUND: usize = 64 * 1024;
/// Most items in one packet's list.
pub const ITEMS_BOUND: usize = 1024;
/// Largest number in a packet or record: whatever a peer says, adding one to it overflows nothing.
pub const NUMBER_BOUND: u64 = 1 << 62;
/// Bytes of an entry beside its message.
pub(super) const ENTRY_HEAD: usize = 8 + 1 + 8 + 8 + 4;

/// In place of a member: no vote, or an entry of nobody.
const NOBODY: u8 = 0xff;

/// What one member says to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packet<'a> {
    /// The leader of `ballot`: here are the entries behind `prev`. Without entries it is a sign of life.
    Append {
        /// The leader's ballot.
        ballot: u64,
        /// Which attempt at this member; a refusal names it, so that a late one is ignored.
        round: u32,
        /// The entry before the first one here.
        prev: Place,
        /// All up to here is ordered for good.
        commit: u64,
        /// Answer at once, with whatever is durable.
        prompt: bool,
        /// Nothing is under way: the next word may take a whole beacon interval.
        idle: bool,
        /// The leader hears the member's answers.
        heard: bool,
        /// The entries.
        entries: Entries<'a>,
    },
    /// A follower of `ballot`: its log agrees with the leader's up to `have`, and is durable up to `durable`.
    Ack {
        /// The answering member's ballot; above the leader's it deposes the leader.
        ballot: u64,
        /// The attempt that is answered.
        round: u32,
        /// False when the entry before the first did not match: try again behind `have`.
        matched: bool,
        /// Agrees up to here, in memory.
        have: u64,
        /// Agrees up to here, on disk.
        durable: u64,
        /// Knows to be ordered up to here.
        commit: u64,
    },
    /// The leader of `ballot` has dropped what the member lacks: its log begins with `first`.
    Gone {
        /// The leader's ballot.
        ballot: u64,
        /// The attempt, as in `Append`.
        round: u32,
        /// First entry still there.
        first: u64,
    },
    /// Would (`trial`) or does the member vote for the sender in `ballot`?
    Ask {
        /// The ballot stood for.
        ballot: u64,
        /// Only asking: nobody's ballot changes.
        trial: bool,
        /// The last entry of the sender's log.
        last: Place,
    },
    /// The answer to `Ask`.
    Answer {
        /// The answering member's own ballot.
        ballot: u64,
        /// The ballot that was asked for.
        asked: u64,
        /// The answer to a trial.
        trial: bool,
        /// Yes.
        granted: bool,
    },
    /// Messages of the sender for the leader to order, `first` and the following of `boot`.
    Forward {
        /// The sender's boot.
        boot: u64,
        /// Number of the first message.
        first: u64,
        /// The messages.
        messages: Messages<'a>,
    },
}

/// An entry of the log as it travels.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct EntryView<'a> {
    /// The ballot in which a leader put it there.
    pub ballot: u64,
    /// Whose message it is; `None` is a new leader's barrier.
    pub origin: Option<Origin>,
    /// The message.
    pub message: &'a [u8],
}

/// A checked list of entries.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Entries<'a> {
    count: u16,
    bytes: &'a [u8],
}

/// A checked list of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Messages<'a> {
    count: u16,
    bytes: &'a [u8],
}

/// Why a packet was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum Malformed {
    /// Shorter or longer than its fields say, or past a bound.
    #[error("a length is wrong")]
    Length,
    /// Another version.
    #[error("the version is another")]
    Version,
    /// A kind, a flag or a member that does not exist.
    #[error("a value does not exist")]
    Value,
}

impl<'a> Packet<'a> {
    /// Reads a packet: its epoch and what it says.
    ///
    /// # Errors
    /// Why it is not one.
    pub fn decode(bytes: &'a [u8]) -> Result<(u32, Self), Malformed> {
        if bytes.len() > PACKET_BOUND {
            return Err(Malformed::Length);
        }
        let mut r = Reader(bytes);
        if r.u8()? != VERSION {
            return Err(Malformed::Version);
        }
        let (kind, epoch) = (r.u8()?, r.u32()?);
        let packet = match kind {
            0 => Self::Append {
                ballot: r.u64()?,
                round: r.u32()?,
                prev: r.place()?,
                commit: r.u64()?,
                prompt: r.flag()?,
                idle: r.flag()?,
                heard: r.flag()?,
                entries: r.packed_entries()?,
            },
            1 => Self::Ack {
                ballot: r.u64()?,
                round: r.u32()?,
                matched: r.flag()?,
                have: r.u64()?,
                durable: r.u64()?,
                commit: r.u64()?,
            },
            2 => Self::Gone { ballot: r.u64()?, round: r.u32()?, first: r.u64()? },
            3 => Self::Ask { ballot: r.u64()?, trial: r.flag()?, last: r.place()? },
            4 => Self::Answer { ballot: r.u64()?, asked: r.u64()?, trial: r.flag()?, granted: r.flag()? },
            5 => Self::Forward { boot: r.u64()?, first: r.u64()?, messages: r.packed_messages()? },
            _ => return Err(Malformed::Value),
        };
        r.end()?;
        Ok((epoch, packet))
    }

    /// Writes the packet of a group's `epoch` behind what `out` holds. A list that is empty may be
    /// filled afterwards by `push_entry` or `push_message`.
    pub fn encode(&self, epoch: u32, out: &mut Vec<u8>) {
        let kind = match self {
            Self::Append { .. } => 0,
            Self::Ack { .. } => 1,
            Self::Gone { .. } => 2,
            Self::Ask { .. } => 3,
            Self::Answer { .. } => 4,
            Self::Forward { .. } => 5,
        };
        out.extend_from_slice(&[VERSION, kind]);
        out.extend_from_slice(&epoch.to_le_bytes());
        match *self {
            Self::Append { ballot, round, prev, commit, prompt, idle, heard, entries } => {
                put_u64(out, ballot);
                out.extend_from_slice(&round.to_le_bytes());
                put_place(out, prev);
                put_u64(out, commit);
                out.extend_from_slice(&[u8::from(prompt), u8::from(idle), u8::from(heard)]);
                out.extend_from_slice(&entries.count.to_le_bytes());
                out.extend_from_slice(entries.bytes);
            }
            Self::Ack { ballot, round, matched, have, durable, commit } => {
                put_u64(out, ballot);
                out.extend_from_slice(&round.to_le_bytes());
                out.push(u8::from(matched));
                put_u64(out, have);
                put_u64(out, durable);
                put_u64(out, commit);
            }
            Self::Gone { ballot, round, first } => {
                put_u64(out, ballot);
                out.extend_from_slice(&round.to_le_bytes());
                put_u64(out, first);
            }
            Self::Ask { ballot, trial, last } => {
                put_u64(out, ballot);
                out.push(u8::from(trial));
                put_place(out, last);
            }
            Self::Answer { ballot, asked, trial, granted } => {
                put_u64(out, ballot);
                put_u64(out, asked);
                out.extend_from_slice(&[u8::from(trial), u8::from(granted)]);
            }
            Self::Forward { boot, first, messages } => {
                put_u64(out, boot);
                put_u64(out, first);
                out.extend_from_slice(&messages.count.to_le_bytes());
                out.extend_from_slice(messages.bytes);
            }
        }
    }
}

impl<'a> Entries<'a> {
    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// True when there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The entries, in order.
    pub fn iter(&self) -> impl Iterator<Item = EntryView<'a>> + use<'a> {
        let mut r = Reader(self.bytes);
        (0..self.count).map_while(move |_| r.entry().ok())
    }
}

impl<'a> Messages<'a> {
    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// True when there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The messages, in order.
    pub fn iter(&self) -> impl Iterator<Item = &'a [u8]> + use<'a> {
        let mut r = Reader(self.bytes);
        (0..self.count).map_while(move |_| r.message().ok())
    }
}

/// Appends an entry to a packet whose list began empty; the list's count stands at `list_at`.
pub(super) fn push_entry(out: &mut Vec<u8>, list_at: usize, entry: EntryView<'_>) {
    put_entry(out, entry);
    count_one_more(out, list_at);
}

/// Appends a message to a packet whose list began empty.
pub(super) fn push_message(out: &mut Vec<u8>, list_at: usize, message: &[u8]) {
    out.extend_from_slice(&(message.len() as u32).to_le_bytes());
    out.extend_from_slice(message);
    count_one_more(out, list_at);
}

fn count_one_more(out: &mut [u8], list_at: usize) {
    let count = u16::from_le_bytes([out[list_at], out[list_at + 1]]) + 1;
    out[list_at..list_at + 2].copy_from_slice(&count.to_le_bytes());
}

pub(super) fn put_entry(out: &mut Vec<u8>, entry: EntryView<'_>) {
    put_u64(out, entry.ballot);
    let origin = entry.origin.unwrap_or(Origin { member: Member(NOBODY), boot: 0, seq: 0 });
    out.push(origin.member.0);
    put_u64(out, origin.boot);
    put_u64(out, origin.seq);
    out.extend_from_slice(&(entry.message.len() as u32).to_le_bytes());
    out.extend_from_slice(entry.message);
}

pub(super) fn put_u64(out: &mut Vec<u8>, n: u64) {
    out.extend_from_slice(&n.to_le_bytes());
}

pub(super) fn put_place(out: &mut Vec<u8>, place: Place) {
    put_u64(out, place.index);
    put_u64(out, place.ballot);
}

pub(super) fn put_vote(out: &mut Vec<u8>, vote: Option<Member>) {
    out.push(vote.map_or(NOBODY, |m| m.0));
}

/// Takes fields from the front; never reads past the end.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.0.split_at_checked(n).ok_or(Malformed::Length)?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (head, rest) = self.0.split_first_chunk().ok_or(Malformed::Length)?;
        self.0 = rest;
        Ok(*head)
    }

    pub(super) fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_le_bytes)
    }

    pub(super) fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    /// Ballots, indexes, boots and counts alike.
    pub(super) fn u64(&mut self) -> Result<u64, Malformed> {
        let n = u64::from_le_bytes(self.array()?);
        if n > NUMBER_BOUND { Err(Malformed::Value) } else { Ok(n) }
    }

    pub(super) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed::Value),
        }
    }

    pub(super) fn place(&mut self) -> Result<Place, Malformed> {
        Ok(Place { index: self.u64()?, ballot: self.u64()? })
    }

    pub(super) fn member(&mut self) -> Result<Option<Member>, Malformed> {
        match self.u8()? {
            NOBODY => Ok(None),
            m if usize::from(m) < MEMBERS_BOUND => Ok(Some(Member(m))),
            _ => Err(Malformed::Value),
        }
    }

    pub(super) fn message(&mut self) -> Result<&'a [u8], Malformed> {
        let len = self.u32()? as usize;
        if len > MESSAGE_BOUND {
            return Err(Malformed::Length);
        }
        self.take(len)
    }

    pub(super) fn entry(&mut self) -> Result<EntryView<'a>, Malformed> {
        let (ballot, member) = (self.u64()?, self.member()?);
        let (boot, seq) = (self.u64()?, self.u64()?);
        let origin = member.map(|member| Origin { member, boot, seq });
        let message = self.message()?;
        // A barrier has one form only, so that equal entries are equal bytes.
        if origin.is_none() && (boot, seq, message.len()) != (0, 0, 0) {
            return Err(Malformed::Value);
        }
        Ok(EntryView { ballot, origin, message })
    }

    fn count(&mut self) -> Result<u16, Malformed> {
        let count = u16::from_le_bytes(self.array()?);
        if usize::from(count) > ITEMS_BOUND { Err(Malformed::Length) } else { Ok(count) }
    }

    fn packed_entries(&mut self) -> Result<Entries<'a>, Malformed> {
        let (count, bytes) = (self.count()?, self.0);
        for _ in 0..count {
            self.entry()?;
        }
        Ok(Entries { count, bytes: &bytes[..bytes.len() - self.0.len()] })
    }

    fn packed_messages(&mut self) -> Result<Messages<'a>, Malformed> {
        let (count, bytes) = (self.count()?, self.0);
        for _ in 0..count {
            self.message()?;
        }
        Ok(Messages { count, bytes: &bytes[..bytes.len() - self.0.len()] })
    }

    pub(super) fn end(&self) -> Result<(), Malformed> {
        if self.0.is_empty() { Ok(()) } else { Err(Malformed::Length) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_core::Rng;
    use proptest::prelude::*;

    type Parts = (u64, Option<(u8, u64, u64)>, Vec<u8>);

    fn view((ballot, origin, message): &Parts) -> EntryView<'_> {
        let origin = origin.map(|(member, boot, seq)| Origin { member: Member(member), boot, seq });
        EntryView { ballot: *ballot, origin, message: if origin.is_some() { message } else { &[] } }
    }

    fn entry() -> impl Strategy<Value = Parts> {
        (
            0..=NUMBER_BOUND,
            prop::option::of((0u8..7, 0..=NUMBER_BOUND, 0..=NUMBER_BOUND)),
            prop::collection::vec(any::<u8>(), 0..40),
        )
    }

    fn round_trip(epoch: u32, packet: Packet<'_>) {
        let mut bytes = vec![];
        packet.encode(epoch, &mut bytes);
        assert_eq!(Packet::decode(&bytes), Ok((epoch, packet)));
        for cut in 0..bytes.len() {
            assert!(Packet::decode(&bytes[..cut]).is_err(), "{cut} of {} bytes were taken for a packet", bytes.len());
        }
        bytes.push(0);
        assert_eq!(Packet::decode(&bytes), Err(Malformed::Length));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn what_is_written_is_read(
            epoch: u32, n in prop::array::uniform6(0..=NUMBER_BOUND), round: u32, flags: [bool; 2],
            items in prop::collection::vec(entry(), 0..6),
        ) {
            let (place, [yes, no]) = (Place { index: n[1], ballot: n[2] }, flags);
            round_trip(epoch, Packet::Ack { ballot: n[0], round, matched: yes, have: n[1], durable: n[2], commit: n[3] });
            round_trip(epoch, Packet::Gone { ballot: n[0], round, first: n[1] });
            round_trip(epoch, Packet::Ask { ballot: n[0], trial: yes, last: place });
            round_trip(epoch, Packet::Answer { ballot: n[0], asked: n[1], trial: no, granted: yes });

            let (mut entries, mut messages) = (vec![0, 0], vec![0, 0]);
            for item in &items {
                push_entry(&mut entries, 0, view(item));
                push_message(&mut messages, 0, &item.2);
            }
            let entries = Reader(&entries).packed_entries().unwrap();
            prop_assert!(entries.iter().eq(items.iter().map(view)) && entries.len() == items.len());
            round_trip(epoch, Packet::Append {
                ballot: n[0], round, prev: place, commit: n[3], prompt: yes, idle: no, heard: yes, entries,
            });
            let messages = Reader(&messages).packed_messages().unwrap();
            prop_assert!(messages.iter().eq(items.iter().map(|i| &i.2[..])) && messages.len() == items.len());
            round_trip(epoch, Packet::Forward { boot: n[4], first: n[5], messages });
        }
    }

    /// The bytes are a promise to every other build of this version.
    #[test]
    fn golden_bytes() {
        let mut bytes = vec![];
        Packet::Append {
            ballot: 3,
            round: 1,
            prev: Place { index: 8, ballot: 2 },
            commit: 7,
            prompt: true,
            idle: false,
            heard: true,
            entries: Entries::default(),
        }
        .encode(5, &mut bytes);
        let at = bytes.len() - 2;
        let origin = Some(Origin { member: Member(2), boot: 9, seq: 4 });
        push_entry(&mut bytes, at, EntryView { ballot: 3, origin, message: b"hi" });
        #[rustfmt::skip]
        assert_eq!(bytes, [
            1, 0, 5, 0, 0, 0,
            3, 0, 0, 0, 0, 0, 0, 0,  1, 0, 0, 0,
            8, 0, 0, 0, 0, 0, 0, 0,  2, 0, 0, 0, 0, 0, 0, 0,
            7, 0, 0, 0, 0, 0, 0, 0,  1, 0, 1,  1, 0,
            3, 0, 0, 0, 0, 0, 0, 0,  2,  9, 0, 0, 0, 0, 0, 0, 0,  4, 0, 0, 0, 0, 0, 0, 0,
            2, 0, 0, 0,  b'h', b'i',
        ]);
        bytes.clear();
        Packet::Answer { ballot: 4, asked: 5, trial: true, granted: false }.encode(1, &mut bytes);
        assert_eq!(bytes, [1, 4, 1, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    }

    /// Random bytes behind a true header, changed bits and huge lengths: an answer each time, never a panic.
    #[test]
    fn hostile_bytes_are_refused() {
        let mut rng = Rng::new(11, 0);
        let mut taken = 0;
        for _ in 0..50_000 {
            let mut bytes = vec![0; rng.index(120)];
            rng.fill(&mut bytes);
            if let [version, kind, ..] = &mut bytes[..] {
                (*version, *kind) = (VERSION, *kind % 6);
            }
            if let Ok((_, packet)) = Packet::decode(&bytes) {
                taken += 1;
                if let Packet::Append { entries, .. } = packet {
                    assert_eq!(entries.iter().count(), entries.len());
                }
            }
        }
        assert!(taken < 500, "{taken} of 50,000 random strings looked like packets");

        let mut huge = vec![];
        Packet::Forward { boot: 1, first: 0, messages: Messages::default() }.encode(0, &mut huge);
        let at = huge.len() - 2;
        push_message(&mut huge, at, b"x");
        huge[at + 2..at + 6].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Packet::decode(&huge), Err(Malformed::Length));
        huge[at..at + 2].copy_from_slice(&u16::MAX.to_le_bytes());
        assert_eq!(Packet::decode(&huge), Err(Malformed::Length));
        assert_eq!(Packet::decode(&vec![1; PACKET_BOUND + 1]), Err(Malformed::Length));
        assert_eq!(Packet::decode(&[2, 0, 0, 0, 0, 0]), Err(Malformed::Version));
        assert_eq!(Packet::decode(&[1, 6, 0, 0, 0, 0]), Err(Malformed::Value));
        huge.clear();
        Packet::Gone { ballot: NUMBER_BOUND + 1, round: 0, first: 0 }.encode(0, &mut huge);
        assert_eq!(Packet::decode(&huge), Err(Malformed::Value));
    }
}
