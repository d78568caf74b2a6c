//! Segments (TG): what nodes say in the multicast groups of their levels, and to each other.
//!
//! `[version, kind, level, flags]`, a body, and the crc32c of all of it, as in [`baseline`](crate::baseline). Who speaks is told by the seal.
//!
//! | kind | body |
//! |---|---|
//! | heartbeat | pulse; who the sender is, all of it |
//! | beat | pulse: who the sender is was said before |
//! | update | number of the last change set ×8, how many, then each with its length ×2: changes |
//! | poll | nothing: what is asked for is an image |
//! | image | number of the last change set ×8, how many ×4, members |
//! | who | nothing: what is asked for is a heartbeat |
//! | lead | an address: the sender is not in that level, and who leads it may be |
//! | greet | nothing: the sender may come to that level, and its words shall be opened then |
//!
//! A pulse is `[counter ×8, number of the last change set ×8, digest ×8, whom it follows ×8, backup ×8]`. Nodes are named there by the first eight
//! bytes of their identities.

use crate::Malformed;
use crate::addr::{encode_addr, parse_addr};
use crate::baseline::{Entry, NUMBER_MAX, checksum};
use crate::bytes::{array_at, crc32c, u32_at, u64_at};
use phalanx_core::{Addr, Identity};

/// Layout of these packets.
pub const VERSION: u8 = 1;
/// Bytes in front of a body.
pub const HEADER: usize = 4;
/// Bytes behind a body.
pub const CHECKSUM: usize = 4;
/// Change sets that one packet carries: the last, and the three before it.
pub const SETS: usize = 4;
/// Bytes of a pulse.
pub const PULSE: usize = 40;
/// Bytes of a change but for the member it speaks of.
pub const CHANGE: usize = 2;
/// Bytes of a change that says that somebody is gone.
pub const GONE: usize = CHANGE + 49;

const LEADER: u8 = 1;
const LEAVES: u8 = 2;
const OWN: u8 = 1;
const ALIVE: u8 = 2;
const DEPARTED: u8 = 4;
const LOST: u8 = 8;

/// The first bytes of an identity, in their order.
#[must_use]
pub fn short(identity: &Identity) -> u64 {
    u64::from_be_bytes(array_at(&identity.0, 0))
}

/// What each heartbeat says of its sender's level.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Pulse {
    /// The sender leads its group.
    pub leads: bool,
    /// It will not be heard in this level any more, though it lives.
    pub leaves: bool,
    /// How often it has been heard in its life.
    pub counter: u64,
    /// The last change set that it told in this level.
    pub number: u64,
    /// Sum of its view.
    pub digest: u64,
    /// Whom it follows, by [`short`]; 0 for nobody.
    pub follows: u64,
    /// Who leads when it is gone; 0 for nobody.
    pub backup: u64,
}

impl Pulse {
    fn encode(&self, out: &mut Vec<u8>) {
        for number in [self.counter, self.number, self.digest, self.follows, self.backup] {
            out.extend_from_slice(&number.to_le_bytes());
        }
    }

    fn flags(&self) -> u8 {
        flag(self.leads, LEADER) | flag(self.leaves, LEAVES)
    }

    fn parse(flags: u8, bytes: &[u8]) -> Result<Self, Malformed> {
        if bytes.len() < PULSE {
            return Err(Malformed::Truncated);
        }
        let [counter, number, digest, follows, backup] = [0, 8, 16, 24, 32].map(|at| u64_at(bytes, at));
        if counter > NUMBER_MAX || number > NUMBER_MAX {
            return Err(Malformed::Inconsistent);
        }
        Ok(Self { leads: flags & LEADER != 0, leaves: flags & LEAVES != 0, counter, number, digest, follows, backup })
    }
}

/// A checked view of a packet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// The level that it is about.
    pub level: u8,
    /// What it says.
    pub says: Says<'a>,
}

/// What a packet says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Says<'a> {
    /// The sender lives, and who it is.
    Heartbeat {
        /// Of its level.
        pulse: Pulse,
        /// The sender.
        entry: Entry<'a>,
    },
    /// The sender lives.
    Beat {
        /// Of its level.
        pulse: Pulse,
    },
    /// What changed lately.
    Update {
        /// The number of the last set.
        number: u64,
        /// The sets, the oldest first.
        sets: Sets<'a>,
    },
    /// Asks for an image.
    Poll,
    /// All that the sender knows.
    Image {
        /// The last change set that it holds.
        number: u64,
        /// Members that live.
        changes: Changes<'a>,
    },
    /// Asks for a heartbeat.
    Who,
    /// TG-8: the sender is not in that level; who leads it may be.
    Lead {
        /// Where that one is.
        addr: Addr,
    },
    /// The sender may come to that level. What it asks for is done below: links make a session with who speaks to a group.
    Greet,
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
        let (level, flags, body) = (covered[2], covered[3], &covered[HEADER..]);
        let says = match covered[1] {
            1 => {
                let pulse = Pulse::parse(flags, body)?;
                let (entry, _) = Entry::parse(&body[PULSE..])?;
                Says::Heartbeat { pulse, entry }
            }
            2 => Says::Beat { pulse: Pulse::parse(flags, body)? },
            3 => {
                let (number, count, rest) = counted(body, 1)?;
                Says::Update { number, sets: Sets::parse(count, number, rest)? }
            }
            4 => Says::Poll,
            5 => {
                let (number, count, rest) = counted(body, 4)?;
                let changes = Changes(rest);
                let is_image = |c: Change<'_>| matches!(c, Change::Alive { .. });
                if changes.check()? != count || !changes.iter().all(is_image) {
                    return Err(Malformed::Inconsistent);
                }
                Says::Image { number, changes }
            }
            6 => Says::Who,
            7 => Says::Lead { addr: parse_addr(body)?.0 },
            8 => Says::Greet,
            _ => return Err(Malformed::Unknown),
        };
        Ok(Self { level, says })
    }
}

/// The number of the last change set, a count of so many bytes, and what follows.
fn counted(body: &[u8], width: usize) -> Result<(u64, usize, &[u8]), Malformed> {
    if body.len() < 8 + width {
        return Err(Malformed::Truncated);
    }
    let number = u64_at(body, 0);
    if number > NUMBER_MAX {
        return Err(Malformed::Inconsistent);
    }
    let count = if width == 1 { body[8].into() } else { u32_at(body, 8) as usize };
    Ok((number, count, &body[8 + width..]))
}

/// Change sets that were checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sets<'a> {
    count: usize,
    bytes: &'a [u8],
}

impl<'a> Sets<'a> {
    fn parse(count: usize, number: u64, bytes: &'a [u8]) -> Result<Self, Malformed> {
        if !(1..=SETS).contains(&count) || number < count as u64 {
            return Err(Malformed::Inconsistent);
        }
        let mut rest = bytes;
        for _ in 0..count {
            let (set, behind) = Self::split(rest).ok_or(Malformed::Truncated)?;
            Changes(set).check()?;
            rest = behind;
        }
        Ok(Self { count, bytes })
    }

    fn split(bytes: &'a [u8]) -> Option<(&'a [u8], &'a [u8])> {
        let (length, rest) = bytes.split_first_chunk::<2>()?;
        rest.split_at_checked(u16::from_le_bytes(*length).into())
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Never true.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The oldest first.
    pub fn iter(&self) -> impl Iterator<Item = Changes<'a>> + use<'a> {
        let mut rest = self.bytes;
        (0..self.count).map_while(move |_| {
            let (set, behind) = Self::split(rest)?;
            rest = behind;
            Some(Changes(set))
        })
    }
}

/// Changes that were checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Changes<'a>(&'a [u8]);

impl<'a> Changes<'a> {
    /// How many they are.
    fn check(&self) -> Result<usize, Malformed> {
        let (mut rest, mut count) = (self.0, 0);
        while !rest.is_empty() {
            (_, rest) = Change::parse(rest)?;
            count += 1;
        }
        Ok(count)
    }

    /// One after the other.
    pub fn iter(&self) -> impl Iterator<Item = Change<'a>> + use<'a> {
        let mut rest = self.0;
        std::iter::from_fn(move || {
            let (change, behind) = Change::parse(rest).ok()?;
            rest = behind;
            Some(change)
        })
    }
}

/// What happened to a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change<'a> {
    /// It lives.
    Alive {
        /// The sender answers for it: it is below that one.
        own: bool,
        /// Who it is.
        entry: Entry<'a>,
        /// Whom the sender has it from, by [`short`]; 0 when it hears it itself.
        by: u64,
    },
    /// It is gone.
    Gone {
        /// The sender answered for it.
        own: bool,
        /// Who.
        identity: Identity,
        /// In which life.
        incarnation: u64,
        /// How often it had been heard.
        counter: u64,
        /// It left in an orderly way, with this exit code.
        departed: Option<u8>,
        /// It may live: who answered for it does not.
        lost: bool,
    },
}

impl<'a> Change<'a> {
    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Alive { own, ref entry, by } => {
                out.extend_from_slice(&[flag(own, OWN) | ALIVE, 0]);
                out.extend_from_slice(&by.to_le_bytes());
                entry.encode(0, out);
            }
            Self::Gone { own, identity, incarnation, counter, departed, lost } => {
                let flags = flag(own, OWN) | flag(departed.is_some(), DEPARTED) | flag(lost, LOST);
                out.extend_from_slice(&[flags, departed.unwrap_or(0), 0]);
                out.extend_from_slice(&identity.0);
                out.extend_from_slice(&incarnation.to_le_bytes());
                out.extend_from_slice(&counter.to_le_bytes());
            }
        }
    }

    fn parse(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Malformed> {
        let (&[flags, code], rest) = bytes.split_first_chunk().ok_or(Malformed::Truncated)?;
        let own = flags & OWN != 0;
        if flags & ALIVE != 0 {
            let (by, rest) = rest.split_first_chunk().ok_or(Malformed::Truncated)?;
            let (entry, rest) = Entry::parse(rest)?;
            if entry.departed.is_some() {
                return Err(Malformed::Inconsistent);
            }
            return Ok((Self::Alive { own, entry, by: u64::from_le_bytes(*by) }, rest));
        }
        if rest.len() < GONE - CHANGE {
            return Err(Malformed::Truncated);
        }
        let (incarnation, counter) = (u64_at(rest, 33), u64_at(rest, 41));
        if incarnation > NUMBER_MAX || counter > NUMBER_MAX {
            return Err(Malformed::Inconsistent);
        }
        let departed = (flags & DEPARTED != 0).then_some(code);
        let (identity, lost) = (Identity(array_at(rest, 1)), flags & LOST != 0);
        Ok((Self::Gone { own, identity, incarnation, counter, departed, lost }, &rest[GONE - CHANGE..]))
    }
}

fn flag(is: bool, bit: u8) -> u8 {
    if is { bit } else { 0 }
}

fn begin(kind: u8, level: u8, flags: u8, out: &mut Vec<u8>) -> usize {
    let start = out.len();
    out.extend_from_slice(&[VERSION, kind, level, flags]);
    start
}

/// Appends a heartbeat of at least `size` bytes.
pub fn heartbeat(level: u8, pulse: &Pulse, entry: &Entry<'_>, size: usize, out: &mut Vec<u8>) {
    let start = begin(1, level, pulse.flags(), out);
    pulse.encode(out);
    entry.encode(size.saturating_sub(HEADER + PULSE + CHECKSUM), out);
    checksum(start, out);
}

/// Appends a beat.
pub fn beat(level: u8, pulse: &Pulse, out: &mut Vec<u8>) {
    let start = begin(2, level, pulse.flags(), out);
    pulse.encode(out);
    checksum(start, out);
}

/// Appends an update: encoded change sets, the oldest first, the last of which has this number. At most [`SETS`] of them, none over 65,535 bytes.
pub fn update<'s>(level: u8, number: u64, sets: impl ExactSizeIterator<Item = &'s [u8]>, out: &mut Vec<u8>) {
    let start = begin(3, level, 0, out);
    out.extend_from_slice(&number.to_le_bytes());
    out.push(sets.len() as u8);
    for set in sets {
        out.extend_from_slice(&(set.len() as u16).to_le_bytes());
        out.extend_from_slice(set);
    }
    checksum(start, out);
}

/// Appends a poll.
pub fn poll(level: u8, out: &mut Vec<u8>) {
    let start = begin(4, level, 0, out);
    checksum(start, out);
}

/// Appends an image: members that live.
pub fn image<'c>(level: u8, number: u64, members: impl Iterator<Item = Change<'c>>, out: &mut Vec<u8>) {
    let start = begin(5, level, 0, out);
    out.extend_from_slice(&number.to_le_bytes());
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    let count = members.map(|member| member.encode(out)).count();
    out[at..at + 4].copy_from_slice(&(count as u32).to_le_bytes());
    checksum(start, out);
}

/// Appends a question who somebody is.
pub fn who(level: u8, out: &mut Vec<u8>) {
    let start = begin(6, level, 0, out);
    checksum(start, out);
}

/// Appends a hint where somebody is who may be in a level. Groups are nobody's address: they are sent as an unknown kind.
pub fn lead(level: u8, addr: Addr, out: &mut Vec<u8>) {
    let start = begin(7, level, 0, out);
    encode_addr(addr, out);
    checksum(start, out);
}

/// Appends a greeting.
pub fn greet(level: u8, out: &mut Vec<u8>) {
    let start = begin(8, level, 0, out);
    checksum(start, out);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::baseline::Attributes;
    use proptest::prelude::*;

    const PULSE_OF_2: Pulse =
        Pulse { leads: true, leaves: false, counter: 9, number: 2, digest: 77, follows: 5, backup: 6 };

    fn entry(name: &str) -> Entry<'_> {
        Entry {
            identity: Identity([7; 32]),
            addr: Addr::Ip("10.1.2.3:258".parse().unwrap()),
            name,
            incarnation: 5,
            minor: 1,
            counter: 9,
            age_ms: 3,
            departed: None,
            attributes: Attributes::default(),
        }
    }

    fn gone() -> Change<'static> {
        Change::Gone {
            own: true,
            identity: Identity([8; 32]),
            incarnation: 3,
            counter: 4,
            departed: Some(2),
            lost: false,
        }
    }

    #[test]
    fn golden_bytes() {
        let mut out = Vec::new();
        beat(3, &PULSE_OF_2, &mut out);
        assert_eq!(out[..4], [1, 2, 3, LEADER]);
        assert_eq!(
            (out[4], out[12], out[20], out[28], out[36], out.len()),
            (9, 2, 77, 5, 6, HEADER + PULSE + CHECKSUM)
        );
        assert_eq!(Packet::parse(&out), Ok(Packet { level: 3, says: Says::Beat { pulse: PULSE_OF_2 } }));
        out.clear();
        gone().encode(&mut out);
        assert_eq!((out.len(), &out[..4]), (GONE, &[OWN | DEPARTED, 2, 0, 8][..]));
        assert_eq!(short(&Identity([1; 32])), 0x0101_0101_0101_0101);
    }

    #[test]
    fn tg_6_an_update_carries_the_three_before_it() {
        let alive = Change::Alive { own: false, entry: entry("n7"), by: 4 };
        let sets: Vec<Vec<u8>> = [vec![gone()], vec![alive, gone()], vec![], vec![alive]]
            .iter()
            .map(|set| set.iter().fold(Vec::new(), |mut out, c| (c.encode(&mut out), out).1))
            .collect();
        let mut out = Vec::new();
        update(1, 9, sets.iter().map(|s| &s[..]), &mut out);
        let Ok(Packet { level: 1, says: Says::Update { number: 9, sets } }) = Packet::parse(&out) else { panic!() };
        let read: Vec<Vec<Change<'_>>> = sets.iter().map(|s| s.iter().collect()).collect();
        assert_eq!(read, [vec![gone()], vec![alive, gone()], vec![], vec![alive]]);
        out.clear();
        update(1, 2, [&[][..], &[], &[]].into_iter(), &mut out);
        assert_eq!(Packet::parse(&out), Err(Malformed::Inconsistent), "there were not so many");
    }

    #[test]
    fn images_hold_those_who_live() {
        let mut out = Vec::new();
        let alive = Change::Alive { own: true, entry: entry("n7"), by: 0 };
        image(2, 4, [alive, alive].into_iter(), &mut out);
        let Ok(Packet { says: Says::Image { number: 4, changes }, .. }) = Packet::parse(&out) else { panic!() };
        assert_eq!(changes.iter().count(), 2);
        out.clear();
        image(2, 4, [gone()].into_iter(), &mut out);
        assert_eq!(Packet::parse(&out), Err(Malformed::Inconsistent));
        for (kind, say) in [(poll as fn(u8, &mut Vec<u8>), Says::Poll), (who, Says::Who), (greet, Says::Greet)] {
            out.clear();
            kind(1, &mut out);
            assert_eq!(Packet::parse(&out), Ok(Packet { level: 1, says: say }));
        }
    }

    #[test]
    fn tg_8_a_hint_is_an_address() {
        for addr in
            [Addr::Local(7), Addr::Ip("10.1.2.3:258".parse().unwrap()), Addr::Ip("[fe80::1]:9".parse().unwrap())]
        {
            let mut out = Vec::new();
            lead(1, addr, &mut out);
            assert_eq!(Packet::parse(&out), Ok(Packet { level: 1, says: Says::Lead { addr } }));
            let cut = HEADER + 3;
            out.truncate(cut);
            checksum(0, &mut out);
            assert_eq!(Packet::parse(&out), Err(Malformed::Truncated));
        }
        let mut out = Vec::new();
        lead(1, Addr::Group(phalanx_core::Group { number: 1, ttl: 1 }), &mut out);
        assert_eq!(Packet::parse(&out), Err(Malformed::Unknown), "nobody is there");
    }

    proptest! {
        #[test]
        fn no_bytes_panic(kind in 0u8..10, body in prop::collection::vec(any::<u8>(), 0..300), cut: prop::sample::Index) {
            let _ = Packet::parse(&body);
            let mut bytes = vec![VERSION, kind, 0, 1];
            bytes.extend(body);
            checksum(0, &mut bytes);
            let _ = Packet::parse(&bytes);
            let mut out = Vec::new();
            heartbeat(0, &PULSE_OF_2, &entry("n7"), 228, &mut out);
            prop_assert_eq!(out.len(), 228);
            out.truncate(cut.index(out.len()));
            checksum(0, &mut out);
            let _ = Packet::parse(&out);
        }
    }
}
