//! Zone membership: letters over reliable links, and notes as datagrams.
//!
//! A *letter* is a head and sections, each with its length: a reader skips sections it does not know.
//! ```text
//! 0  1 layout   1  1 kind   2  2 flags   4 sections:  0  1 tag   1  4 length   5 content
//! ```
//! A *note* is small and may be lost: beats, probes, and suspicions for high-priority monitors.

mod moved;

pub use moved::Moved;

use crate::Malformed;
use crate::bytes::{array_at, u16_at, u32_at, u64_at};
use crate::member::{self, Member};
use crate::tomorrow;
use phalanx_core::Identity;

const LAYOUT: u8 = 1;

/// What a letter is for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum LetterKind {
    /// ZN-3: who is there?
    Discover = 1,
    /// ZN-3: these are.
    Found = 2,
    /// ZN-4: be my neighbour. Carries the base view (ZN-7).
    Connect = 3,
    /// We are neighbours. Carries the base view.
    Accept = 4,
    /// I have neighbours enough.
    Reject = 5,
    /// ZN-7: what is new since the base view.
    Update = 6,
    /// We are neighbours no more.
    Disconnect = 7,
    /// AT-2: a message of attribute replication.
    Attributes = 8,
    /// HI-2: a delegate asks who guards its zone.
    Who = 9,
    /// HI-2: these supervisors do.
    Guards = 10,
    /// HI-3: a delegate tells a guard who is in its zone, or what changed.
    Report = 11,
    /// HI-3: who is in that zone?
    Details = 12,
    /// HI-3: these are.
    Detailed = 13,
    /// HI-1: the sender is not in the receiver's zone; these may be.
    Elsewhere = 14,
    /// HI-1: a member asks a supervisor who is in its zone.
    Seek = 15,
    /// HI-1: these are, or seek it too.
    Sought = 16,
}

impl LetterKind {
    fn of(byte: u8) -> Option<Self> {
        use LetterKind as L;
        const ALL: [LetterKind; 16] = [
            L::Discover,
            L::Found,
            L::Connect,
            L::Accept,
            L::Reject,
            L::Update,
            L::Disconnect,
            L::Attributes,
            L::Who,
            L::Guards,
            L::Report,
            L::Details,
            L::Detailed,
            L::Elsewhere,
            L::Seek,
            L::Sought,
        ];
        ALL.into_iter().find(|&k| k as u8 == byte)
    }
}

/// Flags of letters.
pub mod flag {
    /// Discover, Found: the target was taken from the bootstrap set, not from history.
    pub const BOOT: u16 = 1;
    /// Connect: as a successor on the ring.
    pub const RING: u16 = 2;
    /// Connect: others have refused; take one more than you would. Guards: a report is wanted, be it empty.
    pub const URGENT: u16 = 4;
    /// Connect: the sender has said nothing as a neighbour in this session, and may not have heard what was said to it as one.
    pub const ANEW: u16 = 32;
    /// Report: all members, not what changed. Guards: such a report is wanted.
    pub const BASE: u16 = 8;
    /// Report: the sender is no delegate any more. Detailed: the zone is not known here.
    pub const NONE: u16 = 16;
    /// Report: the delegate's rank, from this bit on.
    pub const RANK_SHIFT: u32 = 8;
    /// Disconnect: in every respect. Whoever sends it does not know the receiver as a neighbour.
    pub const ALL: u16 = 8;
    /// Update: the whole view, because views differ at rest.
    pub const WHOLE: u16 = 16;
}

/// ZN-5: somebody says that a member is gone.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Suspicion {
    /// Who says so.
    pub reporter: Identity,
    /// Whom it is about.
    pub suspect: Identity,
    /// The version that is gone.
    pub incarnation: u64,
    /// The version's second part.
    pub minor: u32,
}

impl Suspicion {
    /// Encoded length.
    pub const LEN: usize = 76;

    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.reporter.0);
        out.extend_from_slice(&self.suspect.0);
        out.extend_from_slice(&self.incarnation.to_le_bytes());
        out.extend_from_slice(&self.minor.to_le_bytes());
    }

    fn read(bytes: &[u8]) -> Self {
        Self {
            reporter: Identity(array_at(bytes, 0)),
            suspect: Identity(array_at(bytes, 32)),
            incarnation: u64_at(bytes, 64),
            minor: u32_at(bytes, 72),
        }
    }
}

/// A member that left in an orderly way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Leave {
    /// Who.
    pub identity: Identity,
    /// Its last version.
    pub incarnation: u64,
    /// The version's second part.
    pub minor: u32,
    /// The exit code it gave.
    pub code: u8,
}

impl Leave {
    /// Encoded length.
    pub const LEN: usize = 45;

    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.identity.0);
        out.extend_from_slice(&self.incarnation.to_le_bytes());
        out.extend_from_slice(&self.minor.to_le_bytes());
        out.push(self.code);
    }

    fn read(bytes: &[u8]) -> Self {
        Self {
            identity: Identity(array_at(bytes, 0)),
            incarnation: u64_at(bytes, 32),
            minor: u32_at(bytes, 40),
            code: bytes[44],
        }
    }
}

/// A letter over a reliable link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Letter<'a> {
    /// What it is for.
    pub kind: LetterKind,
    /// See [`flag`].
    pub flags: u16,
    /// Who sends it.
    pub sender: Option<Member<'a>>,
    left: &'a [u8],
    alive: &'a [u8],
    suspected: &'a [u8],
    moved: &'a [u8],
    /// AT-2: what attribute replication says.
    pub attributes: &'a [u8],
    /// ZN-7: a hash of the sender's whole view; who has the same need not be told.
    pub fingerprint: Option<u64>,
    /// HI-1: which zone it is about, or the sender's own; empty when that has no name.
    pub zone: &'a str,
}

impl<'a> Letter<'a> {
    /// Bytes that [`Letter::begin`] appends.
    #[must_use]
    pub fn begun() -> usize {
        Self::HEAD + tomorrow::section().len()
    }

    /// Bytes before the first section.
    pub const HEAD: usize = 4;
    /// Bytes before the content of a section.
    pub const SECTION: usize = 5;

    const SENDER: u8 = 1;
    const LEFT: u8 = 2;
    const ALIVE: u8 = 3;
    const SUSPECTED: u8 = 4;
    const ATTRIBUTES: u8 = 5;
    const ZONE: u8 = 6;
    const FINGERPRINT: u8 = 7;
    const MOVED: u8 = 8;

    /// Reads a letter and checks every entry of its lists once.
    ///
    /// # Errors
    /// `Truncated` when a length reaches over the end, `Version`, `Unknown` for another kind, `Inconsistent` for lists
    /// that are no lists.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        if bytes.len() < Self::HEAD {
            return Err(Malformed::Truncated);
        }
        if bytes[0] != LAYOUT {
            return Err(Malformed::Version);
        }
        let kind = LetterKind::of(bytes[1]).ok_or(Malformed::Unknown)?;
        let flags = u16_at(bytes, 2);
        let none: &[u8] = &[];
        let mut letter = Self {
            kind,
            flags,
            sender: None,
            left: none,
            alive: none,
            suspected: none,
            moved: none,
            attributes: none,
            fingerprint: None,
            zone: "",
        };
        let mut rest = &bytes[Self::HEAD..];
        while !rest.is_empty() {
            if rest.len() < Self::SECTION {
                return Err(Malformed::Truncated);
            }
            let (tag, length) = (rest[0], u32_at(rest, 1) as usize);
            let content = rest.get(Self::SECTION..Self::SECTION + length).ok_or(Malformed::Truncated)?;
            letter.on_section(tag, content)?;
            rest = &rest[Self::SECTION + length..];
        }
        Ok(letter)
    }

    fn on_section(&mut self, tag: u8, content: &'a [u8]) -> Result<(), Malformed> {
        match tag {
            Self::SENDER => self.sender = Some(Member::parse(content)?.0),
            Self::LEFT if content.len().is_multiple_of(Leave::LEN) => self.left = content,
            Self::SUSPECTED if content.len().is_multiple_of(Suspicion::LEN) => self.suspected = content,
            Self::LEFT | Self::SUSPECTED => return Err(Malformed::Inconsistent),
            Self::ALIVE => {
                let mut rest = content;
                while !rest.is_empty() {
                    rest = Member::parse(rest)?.1;
                }
                self.alive = content;
            }
            Self::MOVED => {
                let mut rest = content;
                while !rest.is_empty() {
                    rest = Moved::parse(rest)?.1;
                }
                self.moved = content;
            }
            Self::ATTRIBUTES => self.attributes = content,
            Self::FINGERPRINT => {
                let print = content.first_chunk().ok_or(Malformed::Truncated)?;
                self.fingerprint = Some(u64::from_le_bytes(*print));
            }
            Self::ZONE => self.zone = member::name(content)?,
            _ => {}
        }
        Ok(())
    }

    /// Members that left.
    pub fn left(&self) -> impl Iterator<Item = Leave> + use<'a> {
        self.left.chunks_exact(Leave::LEN).map(Leave::read)
    }

    /// Members that are there.
    pub fn alive(&self) -> impl Iterator<Item = Member<'a>> + use<'a> {
        let mut rest = self.alive;
        std::iter::from_fn(move || {
            let (member, behind) = Member::parse(rest).ok()?;
            rest = behind;
            Some(member)
        })
    }

    /// Members that are suspected.
    pub fn suspected(&self) -> impl Iterator<Item = Suspicion> + use<'a> {
        self.suspected.chunks_exact(Suspicion::LEN).map(Suspicion::read)
    }

    /// Where members went that left.
    pub fn moved(&self) -> impl Iterator<Item = Moved<'a>> + use<'a> {
        let mut rest = self.moved;
        std::iter::from_fn(move || {
            let (moved, behind) = Moved::parse(rest).ok()?;
            rest = behind;
            Some(moved)
        })
    }

    /// Begins a letter.
    pub fn begin(kind: LetterKind, flags: u16, out: &mut Vec<u8>) {
        out.extend_from_slice(&[LAYOUT, kind as u8]);
        out.extend_from_slice(&flags.to_le_bytes());
        out.extend_from_slice(tomorrow::section());
    }

    /// Appends the sender's own entry.
    pub fn put_sender(member: &Member<'_>, out: &mut Vec<u8>) {
        section(Self::SENDER, out, |out| member.encode(out));
    }

    /// Appends members that left.
    pub fn put_left(left: impl Iterator<Item = Leave>, out: &mut Vec<u8>) {
        section(Self::LEFT, out, |out| left.for_each(|l| l.encode(out)));
    }

    /// Appends members that are there.
    pub fn put_alive<'m>(alive: impl Iterator<Item = Member<'m>>, out: &mut Vec<u8>) {
        section(Self::ALIVE, out, |out| alive.for_each(|m| m.encode(out)));
    }

    /// Appends members that are suspected.
    pub fn put_suspected(suspected: impl Iterator<Item = Suspicion>, out: &mut Vec<u8>) {
        section(Self::SUSPECTED, out, |out| suspected.for_each(|s| s.encode(out)));
    }

    /// Appends where members went that left.
    pub fn put_moved<'m>(moved: impl Iterator<Item = Moved<'m>>, out: &mut Vec<u8>) {
        section(Self::MOVED, out, |out| moved.for_each(|m| m.encode(out)));
    }

    /// Appends a hash of the sender's view.
    pub fn put_fingerprint(fingerprint: u64, out: &mut Vec<u8>) {
        section(Self::FINGERPRINT, out, |out| out.extend_from_slice(&fingerprint.to_le_bytes()));
    }

    /// Appends which zone the letter is about.
    pub fn put_zone(zone: &str, out: &mut Vec<u8>) {
        section(Self::ZONE, out, |out| out.extend_from_slice(zone.as_bytes()));
    }

    /// Appends what attribute replication says.
    pub fn put_attributes(bytes: &[u8], out: &mut Vec<u8>) {
        section(Self::ATTRIBUTES, out, |out| out.extend_from_slice(bytes));
    }
}

/// Appends a section, or nothing when it is empty.
fn section(tag: u8, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    let begin = out.len();
    out.extend_from_slice(&[tag, 0, 0, 0, 0]);
    write(out);
    let length = (out.len() - begin - Letter::SECTION) as u32;
    if length == 0 {
        out.truncate(begin);
    } else {
        out[begin + 1..begin + 5].copy_from_slice(&length.to_le_bytes());
    }
}

/// A datagram between members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// I am here: my count of beats to you, the last of yours that I heard, and what my view looks like.
    Beat {
        /// Counts beats to this neighbour.
        number: u8,
        /// The last number heard from it.
        echo: u8,
        /// A hash of the sender's view: equal views have equal ones.
        digest: u16,
    },
    /// Are you there?
    Probe {
        /// To be repeated in the answer.
        nonce: u32,
    },
    /// I am.
    Answer {
        /// From the probe.
        nonce: u32,
    },
    /// Probe this member for me, and send me its answer.
    Ask {
        /// To be repeated in the answer.
        nonce: u32,
        /// Whom.
        of: Identity,
    },
    /// The member that you asked about is there.
    Vouch {
        /// From the question.
        nonce: u32,
        /// Who is there.
        of: Identity,
    },
    /// The member that you asked about does not answer me either.
    Silent {
        /// From the question.
        nonce: u32,
        /// Who is silent.
        of: Identity,
    },
    /// ZN-8: a suspicion for a high-priority monitor, by the shortest way.
    Alarm(Suspicion),
}

impl Note {
    const BEAT: u8 = 1;
    const PROBE: u8 = 2;
    const ANSWER: u8 = 3;
    const ASK: u8 = 4;
    const VOUCH: u8 = 5;
    const ALARM: u8 = 6;
    const SILENT: u8 = 7;

    /// Appends the note.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut head = |kind| out.extend_from_slice(&[LAYOUT, kind]);
        match self {
            Self::Beat { number, echo, digest } => {
                head(Self::BEAT);
                out.extend_from_slice(&[*number, *echo]);
                out.extend_from_slice(&digest.to_le_bytes());
            }
            Self::Probe { nonce } | Self::Answer { nonce } => {
                head(if matches!(self, Self::Probe { .. }) { Self::PROBE } else { Self::ANSWER });
                out.extend_from_slice(&nonce.to_le_bytes());
            }
            Self::Ask { nonce, of } | Self::Vouch { nonce, of } | Self::Silent { nonce, of } => {
                head(match self {
                    Self::Ask { .. } => Self::ASK,
                    Self::Vouch { .. } => Self::VOUCH,
                    _ => Self::SILENT,
                });
                out.extend_from_slice(&nonce.to_le_bytes());
                out.extend_from_slice(&of.0);
            }
            Self::Alarm(suspicion) => {
                head(Self::ALARM);
                suspicion.encode(out);
            }
        }
        out.extend_from_slice(tomorrow::field());
    }

    /// Reads a note; what is longer comes from a newer peer.
    ///
    /// # Errors
    /// `Truncated`, `Version`, `Unknown`.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let (&[layout, kind], body) = bytes.split_first_chunk().ok_or(Malformed::Truncated)?;
        if layout != LAYOUT {
            return Err(Malformed::Version);
        }
        let length = match kind {
            Self::BEAT | Self::PROBE | Self::ANSWER => 4,
            Self::ASK | Self::VOUCH | Self::SILENT => 36,
            Self::ALARM => Suspicion::LEN,
            _ => return Err(Malformed::Unknown),
        };
        if body.len() < length {
            return Err(Malformed::Truncated);
        }
        Ok(match kind {
            Self::BEAT => Self::Beat { number: body[0], echo: body[1], digest: u16_at(body, 2) },
            Self::PROBE => Self::Probe { nonce: u32_at(body, 0) },
            Self::ANSWER => Self::Answer { nonce: u32_at(body, 0) },
            Self::ASK => Self::Ask { nonce: u32_at(body, 0), of: Identity(array_at(body, 4)) },
            Self::VOUCH => Self::Vouch { nonce: u32_at(body, 0), of: Identity(array_at(body, 4)) },
            Self::SILENT => Self::Silent { nonce: u32_at(body, 0), of: Identity(array_at(body, 4)) },
            _ => Self::Alarm(Suspicion::read(body)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_core::Addr;
    use proptest::prelude::*;

    fn member(n: u8) -> Member<'static> {
        Member { identity: Identity([n; 32]), incarnation: 5, minor: n.into(), addr: Addr::Local(7), name: "m" }
    }

    #[test]
    fn golden_bytes() {
        let mut out = Vec::new();
        Letter::begin(LetterKind::Update, flag::BOOT, &mut out);
        let left = Leave { identity: Identity([1; 32]), incarnation: 2, minor: 3, code: 4 };
        Letter::put_left([left].into_iter(), &mut out);
        Letter::put_alive([].into_iter(), &mut out);
        assert_eq!(out[..9], [1, 6, 1, 0, 2, 45, 0, 0, 0]);
        assert_eq!(out[9..41], [1; 32]);
        assert_eq!(out[41..], [2, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 4]);
        let mut note = Vec::new();
        Note::Beat { number: 2, echo: 3, digest: 0x0102 }.encode(&mut note);
        assert_eq!(note, [1, 1, 2, 3, 2, 1]);
    }

    #[test]
    fn unknown_sections_are_skipped_and_lies_about_lengths_refused() {
        let mut out = Vec::new();
        Letter::begin(LetterKind::Connect, 0, &mut out);
        section(200, &mut out, |out| out.extend_from_slice(b"from a newer peer"));
        Letter::put_alive([member(1), member(2)].into_iter(), &mut out);
        let letter = Letter::parse(&out).unwrap();
        assert!(letter.alive().eq([member(1), member(2)]));
        for cut in Letter::HEAD + 1..out.len() {
            if cut != Letter::HEAD + 22 {
                assert!(Letter::parse(&out[..cut]).is_err(), "{cut}");
            }
        }
        out[Letter::HEAD + 22 + 1] += 1;
        assert!(Letter::parse(&out).is_err());
    }

    fn identity() -> impl Strategy<Value = Identity> {
        any::<[u8; 32]>().prop_map(Identity)
    }

    fn suspicion() -> impl Strategy<Value = Suspicion> {
        (identity(), identity(), any::<u64>(), any::<u32>())
            .prop_map(|(reporter, suspect, incarnation, minor)| Suspicion { reporter, suspect, incarnation, minor })
    }

    fn note() -> impl Strategy<Value = Note> {
        prop_oneof![
            any::<(u8, u8, u16)>().prop_map(|(number, echo, digest)| Note::Beat { number, echo, digest }),
            any::<u32>().prop_map(|nonce| Note::Probe { nonce }),
            any::<u32>().prop_map(|nonce| Note::Answer { nonce }),
            (any::<u32>(), identity()).prop_map(|(nonce, of)| Note::Ask { nonce, of }),
            (any::<u32>(), identity()).prop_map(|(nonce, of)| Note::Vouch { nonce, of }),
            (any::<u32>(), identity()).prop_map(|(nonce, of)| Note::Silent { nonce, of }),
            suspicion().prop_map(Note::Alarm),
        ]
    }

    proptest! {
        #[test]
        fn decode_inverts_encode(
            kind in 1..17u8, zone in "[a-z0-9.-]{0,20}", flags: u16, alive in prop::collection::vec(any::<u8>(), 0..5),
            suspected in prop::collection::vec(suspicion(), 0..4), left in prop::collection::vec((identity(), any::<u64>(), any::<u32>(), any::<u8>()), 0..4),
            attributes in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let mut out = Vec::new();
            let kind = LetterKind::of(kind).unwrap();
            let left: Vec<_> = left.into_iter().map(|(identity, incarnation, minor, code)| Leave { identity, incarnation, minor, code }).collect();
            Letter::begin(kind, flags, &mut out);
            Letter::put_sender(&member(9), &mut out);
            Letter::put_left(left.iter().copied(), &mut out);
            Letter::put_alive(alive.iter().map(|&n| member(n)), &mut out);
            Letter::put_suspected(suspected.iter().copied(), &mut out);
            Letter::put_attributes(&attributes, &mut out);
            Letter::put_zone(&zone, &mut out);
            let moved: Vec<_> = left.iter().map(|l| Moved { identity: l.identity, zone: "z.1" }).collect();
            Letter::put_moved(moved.iter().copied(), &mut out);
            Letter::put_fingerprint(7, &mut out);
            let letter = Letter::parse(&out).unwrap();
            prop_assert_eq!((letter.kind, letter.flags, letter.sender), (kind, flags, Some(member(9))));
            prop_assert!(letter.moved().eq(moved));
            prop_assert!(letter.left().eq(left));
            prop_assert!(letter.alive().eq(alive.iter().map(|&n| member(n))));
            prop_assert!(letter.suspected().eq(suspected));
            prop_assert_eq!(letter.attributes, attributes);
            prop_assert_eq!(letter.zone, zone);
            prop_assert_eq!(letter.fingerprint, Some(7));
        }

        #[test]
        fn notes_survive(note in note(), rest in prop::collection::vec(any::<u8>(), 0..4)) {
            let mut out = Vec::new();
            note.encode(&mut out);
            out.extend_from_slice(&rest);
            prop_assert_eq!(Note::parse(&out), Ok(note));
        }

        #[test]
        fn no_bytes_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (Letter::parse(&bytes).map(|l| l.alive().count() + l.left().count() + l.suspected().count() + l.moved().count()), Note::parse(&bytes));
            // With the right layout the rest is reached.
            if bytes.len() > 4 {
                bytes[0] = LAYOUT;
                bytes[1] = 1 + bytes[1] % 16;
                let _ = (Letter::parse(&bytes).map(|l| l.alive().count()), Note::parse(&bytes));
            }
        }
    }
}
