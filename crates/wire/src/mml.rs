//! Management messages (MM-1, MM-2): a kind, a number, a payload, and a proof: a signature, or a checksum where the
//! kind has none.

use crate::Malformed;
use crate::bytes::{crc32c, u16_at, u32_at, u64_at};
use crate::layer::Layer;
use phalanx_core::Port;

/// Bytes of an Ed25519 signature.
pub const SIGNATURE: usize = 64;
/// Bytes of the crc32c behind a packet without a signature.
pub const CHECKSUM: usize = 4;
/// The most numbers one [`Kind::Lost`] asks for.
pub const LOST_MAX: usize = 64;

/// What a management packet is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Kind {
    /// UNR: no acknowledgement; sealed, not signed (heartbeats). Its checksum keeps a bit that flipped inside the
    /// seal (FI-3, `plain`) from moving its number far ahead, which would make all that follow look old.
    Unreliable = 1,
    /// ACK: sent again until acknowledged; signed.
    Acked = 2,
    /// NACK: the receiver asks for what it misses; signed.
    Nacked = 3,
    /// Answer to `Acked`: everything below `number` arrived, and the bits of the payload beyond it; signed.
    Ack = 4,
    /// Answer to a gap among `Nacked`: from `number` on, the bits of the payload are missing; signed.
    Lost = 5,
    /// How far the sender's `Nacked` numbers go (`number` is the next one), so that a lost last one is missed;
    /// with a payload of eight bytes: what lies below that number is gone for good; signed.
    Tail = 6,
}

impl Kind {
    /// True when a packet of this kind ends with a signature.
    #[must_use]
    pub fn is_signed(self) -> bool {
        self != Self::Unreliable
    }

    /// Bytes of the proof at the end of a packet of this kind.
    #[must_use]
    pub fn proof(self) -> usize {
        if self.is_signed() { SIGNATURE } else { CHECKSUM }
    }
}

/// A checked view of a management packet: `[layer, kind, from ×2, to ×2, 0, 0, number ×8]`, payload, proof.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Packet<'a> {
    /// What it is.
    pub kind: Kind,
    /// The sender's port.
    pub from: Port,
    /// The receiver's port.
    pub to: Port,
    /// The message's number among those of its kind in this session.
    pub number: u64,
    /// The message.
    pub payload: &'a [u8],
    /// All bytes that the proof covers.
    pub signed: &'a [u8],
    /// The signature; empty when the kind has none.
    pub signature: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Encoded length of the header.
    pub const HEADER: usize = 16;

    /// Reads a packet. A checksum is verified here, a signature is not.
    ///
    /// # Errors
    /// `Truncated`, `Checksum`, or `Unknown` for a kind of a newer peer.
    pub fn parse(plain: &'a [u8]) -> Result<Self, Malformed> {
        if plain.len() < Self::HEADER {
            return Err(Malformed::Truncated);
        }
        let kind = match plain[1] {
            1 => Kind::Unreliable,
            2 => Kind::Acked,
            3 => Kind::Nacked,
            4 => Kind::Ack,
            5 => Kind::Lost,
            6 => Kind::Tail,
            _ => return Err(Malformed::Unknown),
        };
        if plain.len() < Self::HEADER + kind.proof() {
            return Err(Malformed::Truncated);
        }
        let (signed, proof) = plain.split_at(plain.len() - kind.proof());
        if !kind.is_signed() && u32_at(proof, 0) != crc32c(signed) {
            return Err(Malformed::Checksum);
        }
        let signature = if kind.is_signed() { proof } else { &[] };
        Ok(Self {
            kind,
            from: Port(u16_at(plain, 2)),
            to: Port(u16_at(plain, 4)),
            number: u64_at(plain, 8),
            payload: &signed[Self::HEADER..],
            signed,
            signature,
        })
    }

    /// Appends the header; payload and proof are the caller's to append.
    pub fn encode_header(kind: Kind, from: Port, to: Port, number: u64, out: &mut Vec<u8>) {
        let mut header = [0; Self::HEADER];
        header[..2].copy_from_slice(&[Layer::Mml as u8, kind as u8]);
        header[2..4].copy_from_slice(&from.0.to_le_bytes());
        header[4..6].copy_from_slice(&to.0.to_le_bytes());
        header[8..16].copy_from_slice(&number.to_le_bytes());
        out.extend_from_slice(&header);
    }
}

/// What goes behind the bytes of a packet whose kind has no signature.
#[must_use]
pub fn checksum(packet: &[u8]) -> [u8; CHECKSUM] {
    crc32c(packet).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let mut out = Vec::new();
        Packet::encode_header(Kind::Nacked, Port(0x0102), Port(3), 4, &mut out);
        assert_eq!(out, [3, 3, 2, 1, 3, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(Packet::parse(&out), Err(Malformed::Truncated), "its signature is missing");
    }

    #[test]
    fn golden_bytes_of_a_heartbeat() {
        let mut out = Vec::new();
        Packet::encode_header(Kind::Unreliable, Port(1), Port(2), 9, &mut out);
        out.extend_from_slice(b"beat");
        let sum = checksum(&out);
        out.extend_from_slice(&sum);
        assert_eq!(out[..16], [3, 1, 1, 0, 2, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(out[16..], *b"beat\x5e\x35\xd2\xf6");
        for bit in 0..out.len() * 8 {
            let mut bad = out.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!matches!(Packet::parse(&bad), Ok(p) if p.kind == Kind::Unreliable), "bit {bit}");
        }
    }

    proptest! {
        #[test]
        fn decode_inverts_encode(
            kind in prop::sample::select(vec![Kind::Unreliable, Kind::Acked, Kind::Nacked, Kind::Ack, Kind::Lost, Kind::Tail]),
            from: u16, to: u16, number: u64, payload in prop::collection::vec(any::<u8>(), 0..100), signature in prop::collection::vec(any::<u8>(), 64),
        ) {
            let mut out = Vec::new();
            Packet::encode_header(kind, Port(from), Port(to), number, &mut out);
            out.extend_from_slice(&payload);
            let signed = out.clone();
            let sum = checksum(&out);
            let signature = if kind.is_signed() { &signature[..] } else { &[] };
            out.extend_from_slice(if kind.is_signed() { signature } else { &sum });
            let expected = Packet { kind, from: Port(from), to: Port(to), number, payload: &payload, signed: &signed, signature };
            prop_assert_eq!(Packet::parse(&out), Ok(expected));
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..120)) {
            let _ = Packet::parse(&bytes);
        }
    }
}
