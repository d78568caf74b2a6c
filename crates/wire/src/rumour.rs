//! Rumours: what people and programs tell a whole zone, questions and their replies, and the cluster's keys.
//!
//! ```text
//! 0  1 version   1  1 kind   2  1 hops left   3  1 flags   4  16 boot   20  4 number   24  4 amount
//! 28 address of who asks   1+n from    1+n name    2+n only    2+n body
//! ```
//! Boot and number name a rumour: the start that told it, and its count there. All kinds have all fields; those that a kind
//! does not need are empty. Letters ride reliable messages, which have checksums of their own.

use crate::Malformed;
use crate::addr::{encode_addr, parse_addr};
use crate::bytes::{array_at, u16_at, u32_at};
use crate::tomorrow;
use phalanx_core::{Addr, Boot};

/// Layout of these letters.
pub const VERSION: u8 = 1;
/// The longest name of a rumour, and of a member.
pub const NAME_MAX: usize = 63;
/// The longest list of names that a question is for.
pub const ONLY_MAX: usize = 4096;
/// The longest body.
pub const BODY_MAX: usize = 16 * 1024;

const FIXED: usize = 28;

/// What a letter is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// Something to know, for everybody.
    Tell = 1,
    /// Something to answer; `amount` is for how many milliseconds answers are waited for.
    Ask = 2,
    /// A question arrived, and nobody has answered it there yet.
    Heard = 3,
    /// An answer to a question.
    Reply = 4,
    /// How new the sender's keys are.
    Epoch = 5,
    /// The sender's keys.
    Keys = 6,
    /// Answer at once.
    Ping = 7,
    /// The answer.
    Pong = 8,
}

impl Kind {
    const fn of(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Tell,
            2 => Self::Ask,
            3 => Self::Heard,
            4 => Self::Reply,
            5 => Self::Epoch,
            6 => Self::Keys,
            7 => Self::Ping,
            8 => Self::Pong,
            _ => return None,
        })
    }
}

/// A checked view of a letter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Letter<'a> {
    /// What it is.
    pub kind: Kind,
    /// How often it may be passed on.
    pub hops: u8,
    /// The start that told or asked.
    pub boot: Boot,
    /// Its count there.
    pub number: u32,
    /// Depends on the kind.
    pub amount: u32,
    /// Where replies may be sent when the way back is broken; nowhere for all but questions.
    pub asker: Addr,
    /// The member that speaks.
    pub from: &'a str,
    /// What the rumour is called.
    pub name: &'a str,
    /// Whom a question is for, with commas between; everybody when it is empty.
    pub only: &'a str,
    /// What is said.
    pub body: &'a [u8],
}

impl<'a> Letter<'a> {
    /// Checks a letter to its end.
    ///
    /// # Errors
    /// Each reason but `Checksum`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let Some((fixed, rest)) = bytes.split_at_checked(FIXED) else { return Err(Malformed::Truncated) };
        if fixed[0] != VERSION {
            return Err(Malformed::Version);
        }
        let kind = Kind::of(fixed[1]).ok_or(Malformed::Unknown)?;
        let (asker, rest) = parse_addr(rest)?;
        let (from, rest) = short(rest)?;
        let (name, rest) = short(rest)?;
        let (only, rest) = long(rest, ONLY_MAX)?;
        let (body, _) = long(rest, BODY_MAX)?;
        let text = |bytes: &'a [u8]| std::str::from_utf8(bytes).map_err(|_| Malformed::Inconsistent);
        Ok(Self {
            kind,
            hops: fixed[2],
            boot: Boot(array_at(fixed, 4)),
            number: u32_at(fixed, 20),
            amount: u32_at(fixed, 24),
            asker,
            from: text(from)?,
            name: text(name)?,
            only: text(only)?,
            body,
        })
    }

    /// Appends the letter. Fields over their caps are an error of the caller.
    ///
    /// # Panics
    /// When a field is over its cap.
    pub fn encode(&self, out: &mut Vec<u8>) {
        assert!(self.from.len() <= NAME_MAX && self.name.len() <= NAME_MAX, "names are checked before");
        assert!(self.only.len() <= ONLY_MAX && self.body.len() <= BODY_MAX, "lengths are checked before");
        out.extend_from_slice(&[VERSION, self.kind as u8, self.hops, 0]);
        out.extend_from_slice(&self.boot.0);
        out.extend_from_slice(&self.number.to_le_bytes());
        out.extend_from_slice(&self.amount.to_le_bytes());
        encode_addr(self.asker, out);
        for name in [self.from, self.name] {
            out.push(name.len() as u8);
            out.extend_from_slice(name.as_bytes());
        }
        for part in [self.only.as_bytes(), self.body] {
            out.extend_from_slice(&(part.len() as u16).to_le_bytes());
            out.extend_from_slice(part);
        }
        out.extend_from_slice(tomorrow::field());
    }
}

fn short(bytes: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let (&length, rest) = bytes.split_first().ok_or(Malformed::Truncated)?;
    if usize::from(length) > NAME_MAX {
        return Err(Malformed::Inconsistent);
    }
    rest.split_at_checked(length.into()).ok_or(Malformed::Truncated)
}

fn long(bytes: &[u8], most: usize) -> Result<(&[u8], &[u8]), Malformed> {
    let (length, rest) = bytes.split_at_checked(2).ok_or(Malformed::Truncated)?;
    let length = usize::from(u16_at(length, 0));
    if length > most {
        return Err(Malformed::Inconsistent);
    }
    rest.split_at_checked(length).ok_or(Malformed::Truncated)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn letter() -> Letter<'static> {
        Letter {
            kind: Kind::Ask,
            hops: 9,
            boot: Boot([7; 16]),
            number: 0x0102_0304,
            amount: 1500,
            asker: Addr::Local(5),
            from: "n1",
            name: "disk",
            only: "n2,n3",
            body: b"free?",
        }
    }

    #[test]
    fn golden_bytes() {
        let mut bytes = Vec::new();
        letter().encode(&mut bytes);
        let mut expected = vec![1, 2, 9, 0];
        expected.extend_from_slice(&[7; 16]);
        expected.extend_from_slice(&[4, 3, 2, 1, 0xdc, 5, 0, 0]);
        expected.extend_from_slice(b"\x01\x05\0\0\0\x02n1\x04disk\x05\0n2,n3\x05\0free?");
        assert_eq!(bytes, expected);
        assert_eq!(Letter::parse(&bytes), Ok(letter()));
    }

    #[test]
    fn a_newer_peer_may_append() {
        let mut bytes = Vec::new();
        letter().encode(&mut bytes);
        bytes.extend_from_slice(b"something new");
        assert_eq!(Letter::parse(&bytes), Ok(letter()));
    }

    #[test]
    fn what_is_cut_or_contradicts_itself_is_refused() {
        let mut bytes = Vec::new();
        letter().encode(&mut bytes);
        for end in 0..bytes.len() {
            assert_eq!(Letter::parse(&bytes[..end]), Err(Malformed::Truncated), "{end}");
        }
        let with = |at: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            Letter::parse(&bytes).map(drop)
        };
        assert_eq!(with(0, 2), Err(Malformed::Version));
        assert_eq!(with(1, 99), Err(Malformed::Unknown));
        assert_eq!(with(33, 64), Err(Malformed::Inconsistent));
        assert_eq!(with(34, 0xff), Err(Malformed::Inconsistent));
        assert_eq!(with(42, 0x7f), Err(Malformed::Inconsistent));
    }
}
