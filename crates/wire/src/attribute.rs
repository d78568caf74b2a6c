//! Attribute replication (AT-2, 002 §4): updates and requests hold a digest, replies hold pieces of maps.
//!
//! Every message begins `[layout, kind, flags, 0, count ×2, number ×2]`. Identities within a message ascend strictly:
//! nobody can ask twice for one map in a message, and equal contents are equal bytes.
//!
//! A piece says from where to where it leads: with all of a map up to `since`, its entries give all up to `through`
//! (the paper's reply lacks both, so a late one may leave a hole that nobody sees). A map never needs more than one
//! message ([`MAP_MAX`]), so a piece is whole or not there.

use crate::Malformed;
use crate::bytes::{array_at, u16_at, u32_at, u64_at};
use crate::tomorrow;
use phalanx_core::Identity;

/// The longest message. Longer digests and replies become several.
pub const MESSAGE_MAX: usize = 64 * 1024;
/// The most bytes that the entries of one map take in a message: a whole map fits behind the heads.
pub const MAP_MAX: usize = 60 * 1024;
/// The longest key, in bytes of UTF-8; the shortest has one.
pub const KEY_MAX: usize = 128;
/// The longest value.
pub const VALUE_MAX: usize = 4 * 1024;
/// The most entries of a map, death certificates included.
pub const ENTRIES_MAX: usize = 512;
/// The highest version. Honest maps never come near it; above it nothing is believed, so there is always a next number.
pub const VERSION_MAX: u64 = 1 << 63;
/// The most records of one digest.
pub const RECORDS_MAX: usize = (MESSAGE_MAX - HEADER - tomorrow::LONGEST) / Record::LEN;

const LAYOUT: u8 = 1;
const HEADER: usize = 8;
const PUSH: u8 = 1;
const MORE: u8 = 1;
/// The length that stands for a death certificate.
const DEAD: u16 = u16::MAX;

/// What a message is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Kind {
    Update = 1,
    Request = 2,
    Reply = 3,
}

/// A checked message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packet<'a> {
    /// What the sender has.
    Update(Digest<'a>),
    /// What the sender has of maps that it wants.
    Request {
        /// The maps, with the versions up to which the sender has them.
        digest: Digest<'a>,
        /// Answer only with what you have; say nothing of what you lack.
        push: bool,
        /// Tells its answer from others; zero when nobody waits for one.
        number: u16,
    },
    /// Answers to a request.
    Reply {
        /// One for each map, in the order of the request.
        pieces: Pieces<'a>,
        /// The message was full: ask again for what is not mentioned.
        more: bool,
        /// The number of the request.
        number: u16,
    },
}

impl<'a> Packet<'a> {
    /// Reads a message and checks everything in it.
    ///
    /// # Errors
    /// `Truncated`, `Version`, `Unknown`, or `Inconsistent` for anything over its cap or out of order.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        if bytes.len() < HEADER {
            return Err(Malformed::Truncated);
        }
        if bytes.len() > MESSAGE_MAX {
            return Err(Malformed::Inconsistent);
        }
        if bytes[0] != LAYOUT {
            return Err(Malformed::Version);
        }
        let (flags, count, number, body) =
            (bytes[2], usize::from(u16_at(bytes, 4)), u16_at(bytes, 6), &bytes[HEADER..]);
        match bytes[1] {
            1 => Ok(Self::Update(Digest::parse(count, body)?)),
            2 => Ok(Self::Request { digest: Digest::parse(count, body)?, push: flags & PUSH != 0, number }),
            3 => Ok(Self::Reply { pieces: Pieces::parse(count, body)?, more: flags & MORE != 0, number }),
            _ => Err(Malformed::Unknown),
        }
    }
}

/// A map and a version of it: `[identity ×32, incarnation ×8, version ×8]`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Record {
    /// Whose map.
    pub identity: Identity,
    /// In which life of its owner: another life, another map.
    pub incarnation: u64,
    /// All up to this version is there.
    pub version: u64,
}

impl Record {
    /// Encoded length.
    pub const LEN: usize = 48;

    fn at(bytes: &[u8; Self::LEN]) -> Self {
        Self { identity: Identity(array_at(bytes, 0)), incarnation: u64_at(bytes, 32), version: u64_at(bytes, 40) }
    }
}

/// A list of maps and versions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Digest<'a>(&'a [[u8; Record::LEN]]);

impl<'a> Digest<'a> {
    fn parse(count: usize, body: &'a [u8]) -> Result<Self, Malformed> {
        let records = body.as_chunks().0.get(..count).ok_or(Malformed::Truncated)?;
        let digest = Self(records);
        let ascending = digest.iter().zip(digest.iter().skip(1)).all(|(a, b)| a.identity < b.identity);
        let possible = digest.iter().all(|r| r.version <= VERSION_MAX);
        if ascending && possible { Ok(digest) } else { Err(Malformed::Inconsistent) }
    }

    /// The records, by identity.
    pub fn iter(&self) -> impl Iterator<Item = Record> + use<'a> {
        self.0.iter().map(Record::at)
    }
}

/// Which part of a map a piece is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// Where it begins: for those who have all up to here. From zero on, it is the whole map, and a key that is not
    /// in it does not exist.
    pub since: u64,
    /// Where it leads.
    pub through: u64,
    /// Death certificates up to here are forgotten: who has less needs the whole map.
    pub floor: u64,
}

/// An answer about one map: `[identity ×32, incarnation ×8, since ×8, through ×8, floor ×8, length ×4, entries ×2, 0, 0]`,
/// then entries. All versions are zero in "I have nothing newer".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece<'a> {
    /// Whose map.
    pub identity: Identity,
    /// In which life of its owner.
    pub incarnation: u64,
    /// Which part; `None` says that the sender has nothing newer than what it was asked for (line 12 of Algorithm 2).
    pub span: Option<Span>,
    count: u16,
    entries: &'a [u8],
}

impl<'a> Piece<'a> {
    const HEAD: usize = 72;

    fn parse(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Malformed> {
        if bytes.len() < Self::HEAD {
            return Err(Malformed::Truncated);
        }
        let (head, rest) = bytes.split_at(Self::HEAD);
        let length = usize::try_from(u32_at(head, 64)).map_err(|_| Malformed::Truncated)?;
        let (entries, rest) = rest.split_at_checked(length).ok_or(Malformed::Truncated)?;
        let span = Span { since: u64_at(head, 40), through: u64_at(head, 48), floor: u64_at(head, 56) };
        let count = u16_at(head, 68);
        let nothing = span == Span { since: 0, through: 0, floor: 0 } && count == 0 && length == 0;
        let piece = Self {
            identity: Identity(array_at(head, 0)),
            incarnation: u64_at(head, 32),
            span: (!nothing).then_some(span),
            count,
            entries,
        };
        let forward = span.since < span.through && span.floor <= span.through && span.through <= VERSION_MAX;
        let complete = span.since == 0 || span.since >= span.floor;
        if !nothing && (!forward || !complete || usize::from(count) > ENTRIES_MAX || length > MAP_MAX) {
            return Err(Malformed::Inconsistent);
        }
        piece.check(span)?;
        Ok((piece, rest))
    }

    /// Entries fill their length exactly, ascend in version, and stay inside the span.
    fn check(&self, span: Span) -> Result<(), Malformed> {
        let (mut rest, mut last) = (self.entries, span.since);
        for _ in 0..self.count {
            let (entry, behind) = Entry::parse(rest)?;
            if entry.version <= last || entry.version > span.through {
                return Err(Malformed::Inconsistent);
            }
            (rest, last) = (behind, entry.version);
        }
        if rest.is_empty() { Ok(()) } else { Err(Malformed::Inconsistent) }
    }

    /// The entries, by version.
    pub fn entries(&self) -> impl Iterator<Item = Entry<'a>> + use<'a> {
        let mut rest = self.entries;
        // Parsed once already: this cannot fail.
        std::iter::from_fn(move || {
            let (entry, behind) = Entry::parse(rest).ok()?;
            rest = behind;
            Some(entry)
        })
    }
}

/// Answers about several maps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pieces<'a> {
    count: u16,
    bytes: &'a [u8],
}

impl<'a> Pieces<'a> {
    fn parse(count: usize, body: &'a [u8]) -> Result<Self, Malformed> {
        let (mut rest, mut last) = (body, None);
        for _ in 0..count {
            let (piece, behind) = Piece::parse(rest)?;
            if last.is_some_and(|l| l >= piece.identity) {
                return Err(Malformed::Inconsistent);
            }
            (rest, last) = (behind, Some(piece.identity));
        }
        Ok(Self { count: count as u16, bytes: &body[..body.len() - rest.len()] })
    }

    /// The answers, by identity.
    pub fn iter(&self) -> impl Iterator<Item = Piece<'a>> + use<'a> {
        let mut rest = self.bytes;
        (0..self.count).map_while(move |_| {
            let (piece, behind) = Piece::parse(rest).ok()?;
            rest = behind;
            Some(piece)
        })
    }
}

/// One key of a map: `[version ×8, value length ×2, key length, 0]`, key, value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// The version that wrote it.
    pub version: u64,
    /// The key.
    pub key: &'a str,
    /// The value; `None` is a death certificate.
    pub value: Option<&'a [u8]>,
}

impl<'a> Entry<'a> {
    const HEAD: usize = 12;

    /// Bytes that such an entry takes.
    #[must_use]
    pub fn len(key: &str, value: Option<&[u8]>) -> usize {
        Self::HEAD + key.len() + value.map_or(0, <[u8]>::len)
    }

    fn parse(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Malformed> {
        if bytes.len() < Self::HEAD {
            return Err(Malformed::Truncated);
        }
        let (version, length, key) = (u64_at(bytes, 0), u16_at(bytes, 8), usize::from(bytes[10]));
        let value = if length == DEAD { 0 } else { usize::from(length) };
        if key == 0 || key > KEY_MAX || value > VALUE_MAX {
            return Err(Malformed::Inconsistent);
        }
        let (key, rest) = bytes[Self::HEAD..].split_at_checked(key).ok_or(Malformed::Truncated)?;
        let (value, rest) = rest.split_at_checked(value).ok_or(Malformed::Truncated)?;
        let key = std::str::from_utf8(key).map_err(|_| Malformed::Inconsistent)?;
        Ok((Self { version, key, value: (length != DEAD).then_some(value) }, rest))
    }
}

fn header(kind: Kind, flags: u8, count: usize, number: u16, out: &mut Vec<u8>) {
    let ([c, d], [n, m]) = ((count as u16).to_le_bytes(), number.to_le_bytes());
    out.extend_from_slice(&[LAYOUT, kind as u8, flags, 0, c, d, n, m]);
}

/// Appends an update for these records, at most [`RECORDS_MAX`], in ascending order.
pub fn encode_update(records: &[Record], out: &mut Vec<u8>) {
    header(Kind::Update, 0, records.len(), 0, out);
    encode_records(records, out);
}

/// Appends a request for these records, at most [`RECORDS_MAX`], in ascending order.
pub fn encode_request(records: &[Record], push: bool, number: u16, out: &mut Vec<u8>) {
    header(Kind::Request, if push { PUSH } else { 0 }, records.len(), number, out);
    encode_records(records, out);
}

fn encode_records(records: &[Record], out: &mut Vec<u8>) {
    debug_assert!(records.len() <= RECORDS_MAX && records.is_sorted_by(|a, b| a.identity < b.identity));
    for record in records {
        out.extend_from_slice(&record.identity.0);
        out.extend_from_slice(&record.incarnation.to_le_bytes());
        out.extend_from_slice(&record.version.to_le_bytes());
    }
    out.extend_from_slice(tomorrow::field());
}

/// A reply under construction, at the end of the caller's buffer.
#[derive(Debug)]
pub struct ReplyWriter<'a> {
    out: &'a mut Vec<u8>,
    start: usize,
    count: u16,
}

impl<'a> ReplyWriter<'a> {
    /// Begins the reply to the request of that number.
    pub fn new(number: u16, out: &'a mut Vec<u8>) -> Self {
        let start = out.len();
        header(Kind::Reply, 0, 0, number, out);
        Self { out, start, count: 0 }
    }

    /// Appends one answer; entries by ascending version. False when it does not fit: then nothing was appended.
    pub fn piece<'e>(
        &mut self,
        identity: &Identity,
        incarnation: u64,
        span: Option<Span>,
        entries: impl IntoIterator<Item = Entry<'e>>,
    ) -> bool {
        let head = self.out.len();
        let span = span.unwrap_or(Span { since: 0, through: 0, floor: 0 });
        self.out.extend_from_slice(&identity.0);
        for number in [incarnation, span.since, span.through, span.floor, 0] {
            self.out.extend_from_slice(&number.to_le_bytes());
        }
        let mut count: u16 = 0;
        for entry in entries {
            let length = entry.value.map_or(DEAD, |v| v.len() as u16);
            self.out.extend_from_slice(&entry.version.to_le_bytes());
            self.out.extend_from_slice(&length.to_le_bytes());
            self.out.extend_from_slice(&[entry.key.len() as u8, 0]);
            self.out.extend_from_slice(entry.key.as_bytes());
            self.out.extend_from_slice(entry.value.unwrap_or_default());
            count += 1;
        }
        if self.out.len() - self.start + tomorrow::field().len() > MESSAGE_MAX {
            self.out.truncate(head);
            return false;
        }
        let length = (self.out.len() - head - Piece::HEAD) as u32;
        self.out[head + 64..head + 68].copy_from_slice(&length.to_le_bytes());
        self.out[head + 68..head + 70].copy_from_slice(&count.to_le_bytes());
        self.count += 1;
        true
    }

    /// How many answers it holds.
    #[must_use]
    pub fn len(&self) -> usize {
        usize::from(self.count)
    }

    /// True while it answers nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Fills in the header.
    pub fn finish(self, more: bool) {
        self.out[self.start + 2] = if more { MORE } else { 0 };
        self.out[self.start + 4..self.start + 6].copy_from_slice(&self.count.to_le_bytes());
        self.out.extend_from_slice(tomorrow::field());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::{btree_map, vec};
    use proptest::prelude::*;

    fn record(n: u8, incarnation: u64, version: u64) -> Record {
        Record { identity: Identity([n; 32]), incarnation, version }
    }

    #[test]
    fn golden_bytes_of_a_request() {
        let mut out = Vec::new();
        encode_request(&[record(7, 0x0102, 3)], true, 0x0304, &mut out);
        let mut golden = vec![1, 2, 1, 0, 1, 0, 4, 3];
        golden.extend([7; 32]);
        golden.extend([2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(out, golden);
        out.clear();
        encode_update(&[], &mut out);
        assert_eq!(out, [1, 1, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn golden_bytes_of_a_reply() {
        let mut out = Vec::new();
        let mut reply = ReplyWriter::new(0x0506, &mut out);
        let span = Span { since: 4, through: 6, floor: 2 };
        let live = Entry { version: 5, key: "k", value: Some(b"val") };
        let dead = Entry { version: 6, key: "gone", value: None };
        assert!(reply.piece(&Identity([1; 32]), 9, Some(span), [live, dead]));
        assert!(reply.piece(&Identity([2; 32]), 9, None, []));
        assert_eq!(reply.len(), 2);
        reply.finish(true);
        let mut golden = vec![1, 3, 1, 0, 2, 0, 6, 5];
        golden.extend([1; 32]);
        golden.extend([9, 4, 6, 2].iter().flat_map(|n: &u64| n.to_le_bytes()));
        golden.extend([32, 0, 0, 0, 2, 0, 0, 0]);
        golden.extend(b"\x05\0\0\0\0\0\0\0\x03\0\x01\0kval\x06\0\0\0\0\0\0\0\xff\xff\x04\0gone");
        golden.extend([2; 32]);
        golden.extend([9, 0, 0, 0, 0, 0, 0, 0]);
        golden.extend([0; 32]);
        assert_eq!(out, golden);
        let Ok(Packet::Reply { pieces, more: true, number: 0x0506 }) = Packet::parse(&out) else { panic!() };
        let pieces: Vec<_> = pieces.iter().collect();
        assert_eq!(pieces[0].entries().collect::<Vec<_>>(), [live, dead]);
        assert_eq!((pieces[0].span, pieces[1].span), (Some(span), None));
    }

    /// Each is one byte away from a message that is taken.
    #[test]
    fn what_contradicts_itself_is_refused() {
        let reply = |span, entries: &[Entry<'_>]| {
            let mut out = Vec::new();
            let mut reply = ReplyWriter::new(0x0506, &mut out);
            reply.piece(&Identity([1; 32]), 1, Some(span), entries.iter().copied());
            reply.finish(false);
            Packet::parse(&out).map(|_| ())
        };
        let span = |since, through, floor| Span { since, through, floor };
        let entry = |version| Entry { version, key: "k", value: None };
        assert_eq!(reply(span(4, 9, 4), &[entry(5), entry(9)]), Ok(()));
        let bad = Err(Malformed::Inconsistent);
        assert_eq!(reply(span(4, 9, 5), &[entry(5)]), bad, "certificates that the receiver needs are gone");
        assert_eq!(reply(span(0, 9, 5), &[entry(5)]), Ok(()), "but not for the whole map");
        assert_eq!(reply(span(4, 4, 4), &[]), bad, "it leads nowhere");
        assert_eq!(reply(span(4, 9, 4), &[entry(4)]), bad, "an entry before it begins");
        assert_eq!(reply(span(4, 9, 4), &[entry(10)]), bad, "an entry behind its end");
        assert_eq!(reply(span(4, 9, 4), &[entry(6), entry(6)]), bad, "no two entries share a version");
        assert_eq!(reply(span(4, VERSION_MAX + 1, 4), &[]), bad);
        assert_eq!(reply(span(4, 9, 4), &[Entry { version: 5, key: "", value: None }]), bad);
        assert_eq!(reply(span(4, 9, 4), &[Entry { version: 5, key: "k", value: Some(&[0; VALUE_MAX + 1]) }]), bad);
        for records in [[record(1, 1, 1), record(1, 2, 1)], [record(1, 1, 1), record(2, 1, u64::MAX)]] {
            let mut out = Vec::new();
            encode_update(&records[..1], &mut out);
            out.extend(&records[1].identity.0);
            out.extend(records[1].incarnation.to_le_bytes().iter().chain(&records[1].version.to_le_bytes()));
            assert!(Packet::parse(&out).is_ok(), "what follows the last record is a newer peer's");
            out[4] = 2;
            assert_eq!(Packet::parse(&out), Err(Malformed::Inconsistent));
            out[4] = 3;
            assert_eq!(Packet::parse(&out), Err(Malformed::Truncated));
        }
        assert_eq!(Packet::parse(&[2, 1, 0, 0, 0, 0, 0, 0]), Err(Malformed::Version));
        assert_eq!(Packet::parse(&[1, 9, 0, 0, 0, 0, 0, 0]), Err(Malformed::Unknown));
        assert_eq!(Packet::parse(&vec![1; MESSAGE_MAX + 1]), Err(Malformed::Inconsistent));
    }

    #[test]
    fn the_largest_map_fits_and_a_second_one_waits() {
        let (mut out, value) = (Vec::new(), [7; VALUE_MAX]);
        let mut reply = ReplyWriter::new(0x0506, &mut out);
        let key = "k".repeat(KEY_MAX);
        let most = (MAP_MAX / Entry::len(&key, Some(&value))) as u64;
        let entries = || (1..=most).map(|version| Entry { version, key: &key, value: Some(&value) });
        let span = Span { since: 0, through: most, floor: 0 };
        assert!(reply.piece(&Identity([1; 32]), 1, Some(span), entries()));
        assert!(!reply.piece(&Identity([2; 32]), 1, Some(span), entries()));
        assert!(reply.piece(&Identity([3; 32]), 1, None, []), "a small one still fits");
        reply.finish(true);
        assert!(
            matches!(Packet::parse(&out), Ok(Packet::Reply { pieces, more: true, number: 0x0506 }) if pieces.iter().count() == 2)
        );
    }

    type Content = (Span, Vec<(u64, String, Option<Vec<u8>>)>);

    /// A span and entries inside it; without entries an answer that there is nothing.
    fn content() -> impl Strategy<Value = Content> {
        let entry = (1u64..1000, "[a-zäß.-]{1,40}", prop::option::of(vec(any::<u8>(), 0..50)));
        (0u64..1000, 0u64..1000, vec(entry, 0..6)).prop_map(|(since, floor, steps)| {
            let mut through = since;
            let entries = steps.into_iter().map(|(step, key, value)| {
                through += step;
                (through, key, value)
            });
            let entries: Vec<_> = entries.collect();
            match entries.is_empty() {
                true => (Span { since: 0, through: 0, floor: 0 }, entries),
                false => (Span { since, through, floor: floor.min(since) }, entries),
            }
        })
    }

    proptest! {
        #[test]
        fn digests_decode_to_what_was_encoded(
            records in btree_map(any::<[u8; 32]>(), (any::<u64>(), 0..=VERSION_MAX), 0..40), push: bool, number: u16,
        ) {
            let records: Vec<_> = records.into_iter()
                .map(|(id, (incarnation, version))| Record { identity: Identity(id), incarnation, version }).collect();
            let (mut update, mut request) = (Vec::new(), Vec::new());
            encode_update(&records, &mut update);
            encode_request(&records, push, number, &mut request);
            let Ok(Packet::Update(digest)) = Packet::parse(&update) else { panic!() };
            prop_assert_eq!(digest.iter().collect::<Vec<_>>(), &records[..]);
            let Ok(Packet::Request { digest, push: flag, number: echo }) = Packet::parse(&request) else { panic!() };
            prop_assert_eq!((digest.iter().collect::<Vec<_>>(), flag, echo), (records, push, number));
        }

        #[test]
        fn replies_decode_to_what_was_encoded(
            pieces in btree_map(any::<[u8; 32]>(), (any::<u64>(), content()), 0..8), more: bool,
        ) {
            let mut out = Vec::new();
            let mut reply = ReplyWriter::new(0x0506, &mut out);
            for (id, (incarnation, (span, entries))) in &pieces {
                let entries = entries.iter().map(|(v, k, t)| Entry { version: *v, key: k, value: t.as_deref() });
                reply.piece(&Identity(*id), *incarnation, Some(*span), entries);
            }
            reply.finish(more);
            let Ok(Packet::Reply { pieces: read, more: flag, .. }) = Packet::parse(&out) else { panic!() };
            prop_assert_eq!(flag, more);
            let read: std::collections::BTreeMap<_, _> = read.iter().map(|p| {
                let entries = p.entries().map(|e| (e.version, e.key.to_owned(), e.value.map(<[u8]>::to_vec))).collect();
                (p.identity.0, (p.incarnation, (p.span.unwrap_or(Span { since: 0, through: 0, floor: 0 }), entries)))
            }).collect();
            prop_assert_eq!(read, pieces);
        }

        #[test]
        fn no_bytes_panic(kind in 0u8..5, count in 0u8..4, bytes in vec(any::<u8>(), 0..400)) {
            let _ = Packet::parse(&bytes);
            let framed: Vec<u8> = [1, kind, 0, 0, count, 0, 0, 0].into_iter().chain(bytes).collect();
            let _ = Packet::parse(&framed);
        }

        /// Lying lengths: a true reply with one byte changed is refused, or reads without a panic.
        #[test]
        fn no_changed_byte_panics(at: prop::sample::Index, byte: u8, content in content()) {
            let mut out = Vec::new();
            let mut reply = ReplyWriter::new(0x0506, &mut out);
            let entries = content.1.iter().map(|(v, k, t)| Entry { version: *v, key: k, value: t.as_deref() });
            reply.piece(&Identity([1; 32]), 1, Some(content.0), entries);
            reply.finish(false);
            let at = at.index(out.len());
            out[at] = byte;
            if let Ok(Packet::Reply { pieces, .. }) = Packet::parse(&out) {
                prop_assert!(pieces.iter().map(|p| p.entries().count()).sum::<usize>() <= ENTRIES_MAX);
            }
        }
    }
}
