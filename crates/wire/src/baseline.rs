//! The baselines' packets (BL-1): heartbeats, introductions and gossip.
//!
//! `[version, kind, number ×2]`, a body, and the crc32c of all of it. The seal keeps strangers out; the checksum keeps
//! a bit that flipped inside the seal (FI-3, `plain`) from moving a member's counter far ahead, behind which its true
//! ones would look old.
//!
//! | kind | number | body |
//! |---|---|---|
//! | heartbeat | flags | the view's digest ×8, one entry |
//! | introduction | how many | addresses |
//! | gossip | how many | entries |
//!
//! An entry carries its own length, so that a newer peer may append to it, and an experiment may pad it.

use crate::Malformed;
use crate::addr::{encode_addr, parse_addr};
use crate::bytes::{array_at, crc32c, u16_at, u32_at, u64_at};
use phalanx_core::{Addr, Identity};

/// Layout of these packets.
pub const VERSION: u8 = 1;
/// Bytes in front of a body.
pub const HEADER: usize = 4;
/// Bytes behind a body.
pub const CHECKSUM: usize = 4;
/// The longest name of a member.
pub const NAME_MAX: usize = 63;
/// The longest key of an attribute.
pub const KEY_MAX: usize = 63;
/// The longest value of an attribute.
pub const VALUE_MAX: usize = 255;
/// The most bytes that all attributes of a member take, encoded: they travel in each heartbeat.
pub const ATTRIBUTES_MAX: usize = 512;
/// The largest incarnation or counter: whatever a peer says, adding one to it overflows nothing.
pub const NUMBER_MAX: u64 = 1 << 62;
/// Bytes of the longest entry that nobody padded.
pub const ENTRY_MAX: usize = Entry::FIXED + ADDR_MAX + NAME_MAX + ATTRIBUTES_MAX;

/// The longest address: its kind, IPv6, a port.
const ADDR_MAX: usize = 1 + 16 + 2;
const ASK: u16 = 1;

/// What was read, and the bytes behind it.
type Parsed<'a, T> = Result<(T, &'a [u8]), Malformed>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Kind {
    Heartbeat = 1,
    Introduction = 2,
    Gossip = 3,
}

/// A checked view of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Packet<'a> {
    /// The sender is alive.
    Heartbeat {
        /// Whoever has another digest shall introduce the members it knows.
        ask: bool,
        /// Sum of the sender's view: equal views have equal digests.
        digest: u64,
        /// The sender itself.
        entry: Entry<'a>,
    },
    /// Where members were heard that the asker may not know. Places to knock at, nothing else.
    Introduction {
        /// The places.
        addrs: Addrs<'a>,
    },
    /// A part of the sender's list of members.
    Gossip {
        /// The part.
        entries: Entries<'a>,
    },
}

impl<'a> Packet<'a> {
    /// Checks a packet to its end.
    ///
    /// # Errors
    /// Each reason there is.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let Some((covered, sum)) = bytes.split_last_chunk::<CHECKSUM>().filter(|(c, _)| c.len() >= HEADER) else {
            return Err(Malformed::Truncated);
        };
        if covered[0] != VERSION {
            return Err(Malformed::Version);
        }
        if u32::from_le_bytes(*sum) != crc32c(covered) {
            return Err(Malformed::Checksum);
        }
        let (number, body) = (u16_at(covered, 2), &covered[HEADER..]);
        match covered[1] {
            1 => {
                let (digest, entry) = body.split_first_chunk().ok_or(Malformed::Truncated)?;
                let (entry, _) = Entry::parse(entry)?;
                Ok(Self::Heartbeat { ask: number & ASK != 0, digest: u64::from_le_bytes(*digest), entry })
            }
            2 => Ok(Self::Introduction { addrs: Addrs::parse(number, body)? }),
            3 => Ok(Self::Gossip { entries: Entries::parse(number, body)? }),
            _ => Err(Malformed::Unknown),
        }
    }
}

/// Appends a heartbeat of at least `size` bytes.
pub fn heartbeat(ask: bool, digest: u64, entry: &Entry<'_>, size: usize, out: &mut Vec<u8>) {
    let start = out.len();
    header(Kind::Heartbeat, u16::from(ask) * ASK, out);
    out.extend_from_slice(&digest.to_le_bytes());
    entry.encode(size.saturating_sub(HEADER + 8 + CHECKSUM), out);
    checksum(start, out);
}

fn header(kind: Kind, number: u16, out: &mut Vec<u8>) {
    out.extend_from_slice(&[VERSION, kind as u8]);
    out.extend_from_slice(&number.to_le_bytes());
}

pub(crate) fn checksum(start: usize, out: &mut Vec<u8>) {
    let sum = crc32c(&out[start..]);
    out.extend_from_slice(&sum.to_le_bytes());
}

/// A list under construction: begin, append items while they fit, finish.
#[derive(Debug)]
pub struct List<'o> {
    out: &'o mut Vec<u8>,
    start: usize,
    count: u16,
}

impl<'o> List<'o> {
    /// Begins an introduction at the end of `out`.
    #[must_use]
    pub fn introduction(out: &'o mut Vec<u8>) -> Self {
        Self::begin(Kind::Introduction, out)
    }

    /// Begins gossip at the end of `out`.
    #[must_use]
    pub fn gossip(out: &'o mut Vec<u8>) -> Self {
        Self::begin(Kind::Gossip, out)
    }

    fn begin(kind: Kind, out: &'o mut Vec<u8>) -> Self {
        let start = out.len();
        header(kind, 0, out);
        Self { out, start, count: 0 }
    }

    /// Appends an address; false, and nothing happened, when the finished packet would be longer than `limit`.
    #[must_use]
    pub fn addr(&mut self, addr: Addr, limit: usize) -> bool {
        self.item(limit, |out| encode_addr(addr, out))
    }

    /// Appends an entry of at least `size` bytes; false, and nothing happened, when the finished packet would be longer
    /// than `limit`.
    #[must_use]
    pub fn entry(&mut self, entry: &Entry<'_>, size: usize, limit: usize) -> bool {
        self.item(limit, |out| entry.encode(size, out))
    }

    fn item(&mut self, limit: usize, encode: impl FnOnce(&mut Vec<u8>)) -> bool {
        let before = self.out.len();
        encode(self.out);
        let fits = self.out.len() + CHECKSUM - self.start <= limit && self.count < u16::MAX;
        if fits {
            self.count += 1;
        } else {
            self.out.truncate(before);
        }
        fits
    }

    /// Items so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count.into()
    }

    /// True when it has no items.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The packet is complete.
    pub fn finish(self) {
        self.out[self.start + 2..self.start + HEADER].copy_from_slice(&self.count.to_le_bytes());
        checksum(self.start, self.out);
    }
}

/// What is said about a member: `[length ×2, attributes ×2, name, state, code, 0, minor ×4, age ×4, incarnation ×8,
/// counter ×8, identity ×32]`, then address, name, attributes, padding. The length counts all of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    /// Who it is.
    pub identity: Identity,
    /// Where it listens. Groups are nobody's address: they are sent as an unknown kind.
    pub addr: Addr,
    /// What it is called: 1 to [`NAME_MAX`] bytes.
    pub name: &'a str,
    /// Which life of it.
    pub incarnation: u64,
    /// How often it spoke up for itself in that life.
    pub minor: u32,
    /// How often it was heard in that life.
    pub counter: u64,
    /// Milliseconds since it raised the counter to this, as far as is known.
    pub age_ms: u32,
    /// It left in an orderly way, with this exit code.
    pub departed: Option<u8>,
    /// What it offers.
    pub attributes: Attributes<'a>,
}

impl<'a> Entry<'a> {
    /// Bytes in front of address, name and attributes.
    pub const FIXED: usize = 64;
    const DEPARTED: u8 = 1;

    pub(crate) fn encode(&self, size: usize, out: &mut Vec<u8>) {
        let start = out.len();
        let mut fixed = [0; Self::FIXED];
        fixed[2..4].copy_from_slice(&(self.attributes.0.len() as u16).to_le_bytes());
        fixed[4] = self.name.len() as u8;
        fixed[5] = u8::from(self.departed.is_some()) * Self::DEPARTED;
        fixed[6] = self.departed.unwrap_or(0);
        fixed[8..12].copy_from_slice(&self.minor.to_le_bytes());
        fixed[12..16].copy_from_slice(&self.age_ms.to_le_bytes());
        fixed[16..24].copy_from_slice(&self.incarnation.to_le_bytes());
        fixed[24..32].copy_from_slice(&self.counter.to_le_bytes());
        fixed[32..64].copy_from_slice(&self.identity.0);
        out.extend_from_slice(&fixed);
        encode_addr(self.addr, out);
        out.extend_from_slice(self.name.as_bytes());
        out.extend_from_slice(self.attributes.0);
        let length = (out.len() - start).max(size.min(u16::MAX.into()));
        out.resize(start + length, 0);
        out[start..start + 2].copy_from_slice(&(length as u16).to_le_bytes());
    }

    pub(crate) fn parse(bytes: &'a [u8]) -> Parsed<'a, Self> {
        let length = bytes.first_chunk().map_or(0, |l| usize::from(u16::from_le_bytes(*l)));
        if length < Self::FIXED || bytes.len() < length {
            return Err(Malformed::Truncated);
        }
        let (entry, rest) = bytes.split_at(length);
        let (attributes, name) = (usize::from(u16_at(entry, 2)), usize::from(entry[4]));
        let (incarnation, counter) = (u64_at(entry, 16), u64_at(entry, 24));
        if !(1..=NAME_MAX).contains(&name) || incarnation > NUMBER_MAX || counter > NUMBER_MAX {
            return Err(Malformed::Inconsistent);
        }
        let departed = match entry[5] {
            0 => None,
            Self::DEPARTED => Some(entry[6]),
            _ => return Err(Malformed::Unknown),
        };
        let (addr, tail) = parse_addr(&entry[Self::FIXED..])?;
        if tail.len() < name + attributes {
            return Err(Malformed::Truncated);
        }
        let entry = Self {
            identity: Identity(array_at(entry, 32)),
            addr,
            name: std::str::from_utf8(&tail[..name]).map_err(|_| Malformed::Inconsistent)?,
            incarnation,
            minor: u32_at(entry, 8),
            counter,
            age_ms: u32_at(entry, 12),
            departed,
            attributes: Attributes::parse(&tail[name..name + attributes])?,
        };
        Ok((entry, rest))
    }
}

/// Entries that were checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entries<'a> {
    count: u16,
    bytes: &'a [u8],
}

impl<'a> Entries<'a> {
    fn parse(count: u16, bytes: &'a [u8]) -> Result<Self, Malformed> {
        (0..count).try_fold(bytes, |bytes, _| Entry::parse(bytes).map(|(_, rest)| rest))?;
        Ok(Self { count, bytes })
    }

    /// One after the other.
    pub fn iter(&self) -> impl Iterator<Item = Entry<'a>> + use<'a> {
        items(self.count, self.bytes, Entry::parse)
    }
}

/// Addresses that were checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Addrs<'a> {
    count: u16,
    bytes: &'a [u8],
}

impl<'a> Addrs<'a> {
    fn parse(count: u16, bytes: &'a [u8]) -> Result<Self, Malformed> {
        (0..count).try_fold(bytes, |bytes, _| parse_addr(bytes).map(|(_, rest)| rest))?;
        Ok(Self { count, bytes })
    }

    /// One after the other.
    pub fn iter(&self) -> impl Iterator<Item = Addr> + use<'a> {
        items(self.count, self.bytes, parse_addr)
    }
}

fn items<'a, T: 'a>(
    count: u16,
    mut bytes: &'a [u8],
    parse: fn(&'a [u8]) -> Parsed<'a, T>,
) -> impl Iterator<Item = T> + use<'a, T> {
    (0..count).map_while(move |_| {
        let (item, rest) = parse(bytes).ok()?;
        bytes = rest;
        Some(item)
    })
}

/// A member's attributes: `[key, value ×2]`, the lengths, then both; keys strictly ascend, so that equal maps have equal
/// bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// Checks encoded attributes.
    ///
    /// # Errors
    /// `Truncated`, or `Inconsistent` when a cap is passed or the keys do not ascend.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        if bytes.len() > ATTRIBUTES_MAX {
            return Err(Malformed::Inconsistent);
        }
        let (mut rest, mut last) = (bytes, "");
        while !rest.is_empty() {
            let ((key, _), behind) = Self::pair(rest)?;
            // The empty key is refused with those that do not ascend.
            if key <= last {
                return Err(Malformed::Inconsistent);
            }
            (rest, last) = (behind, key);
        }
        Ok(Self(bytes))
    }

    fn pair(bytes: &'a [u8]) -> Parsed<'a, (&'a str, &'a [u8])> {
        let (lengths, rest) = bytes.split_first_chunk::<3>().ok_or(Malformed::Truncated)?;
        let (key, value) = (usize::from(lengths[0]), usize::from(u16_at(lengths, 1)));
        if key > KEY_MAX || value > VALUE_MAX {
            return Err(Malformed::Inconsistent);
        }
        let (key, rest) = rest.split_at_checked(key).ok_or(Malformed::Truncated)?;
        let (value, rest) = rest.split_at_checked(value).ok_or(Malformed::Truncated)?;
        let key = std::str::from_utf8(key).map_err(|_| Malformed::Inconsistent)?;
        Ok(((key, value), rest))
    }

    /// Appends a pair. The caller keeps the order and the caps.
    pub fn encode_pair(key: &str, value: &[u8], out: &mut Vec<u8>) {
        out.push(key.len() as u8);
        out.extend_from_slice(&(value.len() as u16).to_le_bytes());
        out.extend_from_slice(key.as_bytes());
        out.extend_from_slice(value);
    }

    /// The encoded bytes.
    #[must_use]
    pub fn bytes(&self) -> &'a [u8] {
        self.0
    }

    /// Keys and values, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, &'a [u8])> + use<'a> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (pair, behind) = Self::pair(rest).ok()?;
            rest = behind;
            Some(pair)
        })
    }

    /// What stands under `key`.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&'a [u8]> {
        self.iter().find(|&(k, _)| k == key).map(|(_, v)| v)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn attributes(pairs: &[(&str, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        pairs.iter().for_each(|(k, v)| Attributes::encode_pair(k, v, &mut out));
        out
    }

    fn entry(attributes: &[u8]) -> Entry<'_> {
        Entry {
            identity: Identity([7; 32]),
            addr: Addr::Ip("10.1.2.3:258".parse().unwrap()),
            name: "n7",
            incarnation: 5,
            minor: 1,
            counter: 9,
            age_ms: 3,
            departed: None,
            attributes: Attributes::parse(attributes).unwrap(),
        }
    }

    #[test]
    fn golden_bytes_of_a_heartbeat() {
        let pairs = attributes(&[("a", b"xy")]);
        let mut out = Vec::new();
        heartbeat(true, 0x0102, &entry(&pairs), 0, &mut out);
        assert_eq!(out[..12], [1, 1, 1, 0, 2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(out[12..28], [79, 0, 6, 0, 2, 0, 0, 0, 1, 0, 0, 0, 3, 0, 0, 0]);
        assert_eq!(out[28..44], [5, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((&out[44..76], &out[76..83]), (&[7; 32][..], &[4, 10, 1, 2, 3, 2, 1][..]));
        assert_eq!(out[83..91], *b"n7\x01\x02\0axy");
        assert_eq!(out.len(), 95);
        assert_eq!(out[91..], crc32c(&out[..91]).to_le_bytes());
        assert_eq!(Packet::parse(&out), Ok(Packet::Heartbeat { ask: true, digest: 0x0102, entry: entry(&pairs) }));
    }

    #[test]
    fn golden_bytes_of_lists() {
        let mut out = vec![0xff];
        let mut list = List::introduction(&mut out);
        assert!(list.addr(Addr::Local(3), 18) && list.addr(Addr::Local(4), 18) && !list.addr(Addr::Local(5), 18));
        list.finish();
        assert_eq!(out[1..15], [1, 2, 2, 0, 1, 3, 0, 0, 0, 1, 4, 0, 0, 0]);
        let Ok(Packet::Introduction { addrs }) = Packet::parse(&out[1..]) else { panic!("{out:?}") };
        assert_eq!(addrs.iter().collect::<Vec<_>>(), [Addr::Local(3), Addr::Local(4)]);

        out.clear();
        let mut list = List::gossip(&mut out);
        let gone = Entry { departed: Some(3), ..entry(&[]) };
        assert!(list.entry(&gone, 0, 1_400) && list.entry(&entry(&[]), 228, 1_400));
        list.finish();
        assert_eq!((&out[..4], &out[4..12]), (&[1, 3, 2, 0][..], &[73, 0, 0, 0, 2, 1, 3, 0][..]));
        assert_eq!(out.len(), HEADER + 73 + 228 + CHECKSUM);
        let Ok(Packet::Gossip { entries }) = Packet::parse(&out) else { panic!("{out:?}") };
        assert_eq!(entries.iter().collect::<Vec<_>>(), [gone, entry(&[])]);
    }

    /// BL-2: an experiment says how long a heartbeat is.
    #[test]
    fn bl_2_packets_are_padded_to_the_size_of_an_experiment() {
        for size in [100, 228, 1024] {
            let mut out = Vec::new();
            heartbeat(false, 0, &entry(&[]), size, &mut out);
            assert_eq!(out.len(), size);
            assert!(Packet::parse(&out).is_ok());
        }
    }

    #[test]
    fn the_longest_entry_has_its_length() {
        let mut pairs = Vec::new();
        ["a", "b"].iter().for_each(|k| Attributes::encode_pair(k, &[1; 252], &mut pairs));
        assert_eq!(pairs.len(), ATTRIBUTES_MAX);
        let name = "x".repeat(NAME_MAX);
        let addr = Addr::Ip("[2001:db8::1]:65535".parse().unwrap());
        let mut out = Vec::new();
        Entry { addr, name: &name, ..entry(&pairs) }.encode(0, &mut out);
        assert_eq!(out.len(), ENTRY_MAX);
    }

    #[test]
    fn a_flipped_bit_is_noticed() {
        let mut out = Vec::new();
        heartbeat(true, 7, &entry(&attributes(&[("k", b"v")])), 0, &mut out);
        for bit in 0..out.len() * 8 {
            out[bit / 8] ^= 1 << (bit % 8);
            assert!(Packet::parse(&out).is_err(), "bit {bit}");
            out[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn attributes_in_disorder_are_refused() {
        for bad in [&[("b", &b"1"[..]), ("a", b"2")][..], &[("a", b"1"), ("a", b"2")], &[("", b"1")]] {
            assert_eq!(Attributes::parse(&attributes(bad)), Err(Malformed::Inconsistent), "{bad:?}");
        }
        assert_eq!(Attributes::parse(&attributes(&[("a", &[0; 256])])), Err(Malformed::Inconsistent));
        assert_eq!(Attributes::parse(&[1, 0]), Err(Malformed::Truncated));
    }

    /// What a hostile member can do: a true checksum over anything.
    fn summed(mut body: Vec<u8>) -> Vec<u8> {
        checksum(0, &mut body);
        body
    }

    #[test]
    fn numbers_over_their_cap_and_nameless_entries_are_refused() {
        let mut out = Vec::new();
        heartbeat(false, 0, &Entry { counter: NUMBER_MAX + 1, ..entry(&[]) }, 0, &mut out);
        assert_eq!(Packet::parse(&out), Err(Malformed::Inconsistent));
        out.clear();
        heartbeat(false, 0, &Entry { name: "", ..entry(&[]) }, 0, &mut out);
        assert_eq!(Packet::parse(&out), Err(Malformed::Inconsistent));
        assert_eq!(Packet::parse(&summed(vec![2, 1, 0, 0])), Err(Malformed::Version));
        assert_eq!(Packet::parse(&summed(vec![1, 9, 0, 0])), Err(Malformed::Unknown));
        assert_eq!(Packet::parse(&summed(vec![1, 3, 255, 255])), Err(Malformed::Truncated));
    }

    fn addrs() -> impl Strategy<Value = Addr> {
        prop_oneof![
            any::<u32>().prop_map(Addr::Local),
            any::<([u8; 4], u16)>().prop_map(|(ip, port)| Addr::Ip((ip, port).into())),
            any::<([u8; 16], u16)>().prop_map(|(ip, port)| Addr::Ip((ip, port).into())),
        ]
    }

    proptest! {
        #[test]
        fn decode_inverts_encode(
            identity: [u8; 32], addr in addrs(), name in "[a-z]{1,63}", incarnation in 0..=NUMBER_MAX, minor: u32,
            counter in 0..=NUMBER_MAX, age_ms: u32, departed: Option<u8>, size in 0usize..600, ask: bool, digest: u64,
            map in prop::collection::btree_map("[a-z]{1,8}", prop::collection::vec(any::<u8>(), 0..30), 0..8),
        ) {
            let mut pairs = Vec::new();
            map.iter().for_each(|(k, v)| Attributes::encode_pair(k, v, &mut pairs));
            let attributes = Attributes::parse(&pairs).unwrap();
            prop_assert!(attributes.iter().eq(map.iter().map(|(k, v)| (&**k, &**v))));
            let identity = Identity(identity);
            let entry =
                Entry { identity, addr, name: &name, incarnation, minor, counter, age_ms, departed, attributes };
            let mut out = Vec::new();
            heartbeat(ask, digest, &entry, size, &mut out);
            prop_assert!(out.len() >= size);
            prop_assert_eq!(Packet::parse(&out), Ok(Packet::Heartbeat { ask, digest, entry }));
        }

        #[test]
        fn no_bytes_panic(kind in 0u8..5, body in prop::collection::vec(any::<u8>(), 0..200), cut: prop::sample::Index) {
            let _ = Packet::parse(&body);
            let mut bytes = vec![1, kind];
            bytes.extend(body);
            if let Ok(Packet::Gossip { entries }) = Packet::parse(&summed(bytes)) {
                entries.iter().for_each(drop);
            }
            let mut out = Vec::new();
            heartbeat(false, 0, &entry(&[]), 0, &mut out);
            out.truncate(cut.index(out.len()));
            let _ = Packet::parse(&summed(out));
        }
    }
}
