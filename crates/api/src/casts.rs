//! What is cast to all members, or to some.

use crate::jobs::begin;
use serde::{Deserialize, Serialize};

/// The kind of frames with pieces of casts, from daemon to shepherd to task.
pub const CAST: u8 = 3;

/// What became of a cast.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reached {
    /// How many members have it, this one included when it is among them.
    pub reached: usize,
    /// Those who died before they had it.
    #[serde(default)]
    pub missed: Vec<String>,
    /// How many bytes it has.
    pub bytes: u64,
    /// From its first byte until all had its last one, in microseconds.
    pub us: u64,
}

/// What a piece of a cast is: a line of JSON in front of its bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Heading {
    /// Who cast it.
    pub from: String,
    /// The how manieth cast of that member it belongs to.
    pub stream: u64,
    /// Where in the cast it begins.
    pub offset: u64,
    /// Nothing comes after it.
    pub last: bool,
    /// What the cast is called.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// It is for everybody; otherwise for some.
    pub whole: bool,
    /// How many bytes follow this line.
    pub bytes: u64,
    /// Pieces before this one that were lost because the reader was too slow.
    #[serde(default, skip_serializing_if = "is_none")]
    pub lost: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands references")]
const fn is_none(lost: &u64) -> bool {
    *lost == 0
}

/// A place in the tree of casts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Seat {
    /// Its number.
    pub seat: u32,
    /// Who sits there.
    pub name: String,
    /// The seat above it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<u32>,
}

/// A frame with a piece of a cast: its [`Heading`] as JSON, and its bytes.
#[must_use]
pub fn frame(heading: &[u8], data: &[u8]) -> Vec<u8> {
    let mut frame = begin(CAST, 4 + heading.len() + data.len());
    frame.extend_from_slice(&(heading.len() as u32).to_le_bytes());
    frame.extend_from_slice(heading);
    frame.extend_from_slice(data);
    frame
}

/// What a frame holds behind its kind, its heading as JSON; `None` when it makes no sense.
#[must_use]
pub fn framed(body: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = body.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_read_as_it_was_framed() {
        let frame = frame(b"{json}", b"data");
        assert_eq!((frame[4], framed(&frame[5..])), (CAST, Some((&b"{json}"[..], &b"data"[..]))));
        for cut in 0..10 {
            assert_eq!(framed(&frame[5..5 + cut]), None, "cut at {cut}");
        }
    }
}
