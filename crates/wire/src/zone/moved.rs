//! Where members went that left one zone for another.
//!
//! ```text
//! 0   32 identity   32  1 length of name   33  name of the zone
//! ```

use super::member;
use crate::Malformed;
use crate::bytes::array_at;
use phalanx_core::Identity;

/// HI-1: a member that left, and the zone that it is in now. It is among those who left, too: readers that know nothing
/// of moves see a departure.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Moved<'a> {
    /// Who.
    pub identity: Identity,
    /// Where to.
    pub zone: &'a str,
}

impl<'a> Moved<'a> {
    const HEAD: usize = 33;

    /// Encoded length of a move to this zone.
    #[must_use]
    pub const fn length(zone: &str) -> usize {
        Self::HEAD + zone.len()
    }

    /// Appends it.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.identity.0);
        out.push(self.zone.len() as u8);
        out.extend_from_slice(self.zone.as_bytes());
    }

    /// Reads the move at the beginning of `bytes`; gives what follows it, too.
    pub(super) fn parse(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Malformed> {
        if bytes.len() < Self::HEAD {
            return Err(Malformed::Truncated);
        }
        let end = Self::HEAD + usize::from(bytes[32]);
        let zone = member::name(bytes.get(Self::HEAD..end).ok_or(Malformed::Truncated)?)?;
        Ok((Self { identity: Identity(array_at(bytes, 0)), zone }, &bytes[end..]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let moved = Moved { identity: Identity([7; 32]), zone: "b" };
        let mut out = Vec::new();
        moved.encode(&mut out);
        assert_eq!((out.len(), &out[..32], &out[32..]), (Moved::length("b"), &[7; 32][..], &[1, b'b'][..]));
        out.push(9);
        assert_eq!(Moved::parse(&out), Ok((moved, &[9][..])));
        for cut in 0..34 {
            assert_eq!(Moved::parse(&out[..cut]), Err(Malformed::Truncated));
        }
        out[33] = b'/';
        assert!(Moved::parse(&out).is_err());
    }
}
