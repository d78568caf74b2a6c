//! The exchange of boot nonces: who I am in this life, and the number you gave me to prove that I live now.
//!
//! A hello is sealed under a key that its sender's boot gives, so it proves the cluster; only the echo of a nonce
//! proves that it was not recorded earlier.

use crate::Malformed;
use crate::bytes::{array_at, u16_at, u32_at, u64_at};
use crate::tomorrow;
use phalanx_core::{Boot, Identity};

/// The body of a hello, sealed behind a [`crate::outer::Long`] header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// The boot it is meant for; all zero when the sender does not know it yet.
    pub to: Boot,
    /// Who the sender says it is. The ring vouches for the cluster, not for this: signatures do.
    pub identity: Identity,
    /// The sender's nonce for this exchange; never zero.
    pub nonce: u64,
    /// The nonce that the receiver sent before; zero when there is none yet.
    pub echo: u64,
    /// The number under which the sender wants to be addressed.
    pub session: u32,
    /// The largest datagram the sender takes.
    pub largest: u16,
    /// The sender holds this session already and needs no answer.
    pub done: bool,
    /// Group datagrams below this number are older than this hello.
    pub group_floor: u64,
    /// The receiver's nonce in the session that the sender holds with it; zero when it holds none.
    pub holds: u64,
}

impl Hello {
    /// Encoded length. A longer body comes from a newer peer and is read up to here.
    pub const LEN: usize = 88;

    const DONE: u8 = 1;

    /// Reads a body.
    ///
    /// # Errors
    /// `Truncated` when too short, `Inconsistent` when the nonce is zero.
    pub fn parse(body: &[u8]) -> Result<Self, Malformed> {
        if body.len() < Self::LEN {
            return Err(Malformed::Truncated);
        }
        let hello = Self {
            to: Boot(array_at(body, 0)),
            identity: Identity(array_at(body, 16)),
            nonce: u64_at(body, 48),
            echo: u64_at(body, 56),
            session: u32_at(body, 64),
            largest: u16_at(body, 68),
            done: body[70] & Self::DONE != 0,
            group_floor: u64_at(body, 72),
            holds: u64_at(body, 80),
        };
        if hello.nonce == 0 {
            return Err(Malformed::Inconsistent);
        }
        Ok(hello)
    }

    /// Appends the body to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.to.0);
        out.extend_from_slice(&self.identity.0);
        out.extend_from_slice(&self.nonce.to_le_bytes());
        out.extend_from_slice(&self.echo.to_le_bytes());
        out.extend_from_slice(&self.session.to_le_bytes());
        out.extend_from_slice(&self.largest.to_le_bytes());
        out.extend_from_slice(&[if self.done { Self::DONE } else { 0 }, 0]);
        out.extend_from_slice(&self.group_floor.to_le_bytes());
        out.extend_from_slice(&self.holds.to_le_bytes());
        out.extend_from_slice(tomorrow::field());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let mut out = Vec::new();
        Hello {
            to: Boot([1; 16]),
            identity: Identity([2; 32]),
            nonce: 3,
            echo: 4,
            session: 5,
            largest: 6,
            done: true,
            group_floor: 7,
            holds: 8,
        }
        .encode(&mut out);
        assert_eq!(out[..48], [[1; 16], [2; 16], [2; 16]].concat()[..]);
        assert_eq!(
            out[48..],
            [
                3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 6, 0, 1, 0, 7, 0, 0, 0, 0, 0, 0, 0, 8, 0,
                0, 0, 0, 0, 0, 0
            ]
        );
    }

    proptest! {
        #[test]
        fn decode_inverts_encode_and_skips_what_a_newer_peer_appends(
            to: [u8; 16], identity: [u8; 32], nonce in 1u64.., echo: u64, session: u32, largest: u16, done: bool,
            group_floor: u64, holds: u64, newer in prop::collection::vec(any::<u8>(), 0..9),
        ) {
            let hello = Hello { to: Boot(to), identity: Identity(identity), nonce, echo, session, largest, done, group_floor, holds };
            let mut out = Vec::new();
            hello.encode(&mut out);
            prop_assert_eq!(out.len(), Hello::LEN);
            out.extend(newer);
            prop_assert_eq!(Hello::parse(&out), Ok(hello));
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Hello::parse(&bytes);
        }
    }
}
