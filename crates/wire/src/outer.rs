//! What a network sees: one of two headers, then sealed bytes and their tag.
//!
//! The *short* header is for peers that know each other: the receiver chose the session number, so it finds its
//! state with one index. The *long* header names the sender's boot in full: it stands before hellos and group
//! datagrams, whose receivers may never have heard of the sender. Headers are the seal's associated data.

use crate::Malformed;
use crate::bytes::{array_at, u16_at, u32_at, u64_at};
use crate::tomorrow;
use phalanx_core::Boot;

/// The layout described here.
pub const VERSION: u8 = 1;
/// Bytes of the seal's tag behind each packet.
pub const TAG: usize = 16;

/// What a packet is, beside its version in the first byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Kind {
    /// The exchange of boot nonces (long header).
    Hello = 1,
    /// Between two peers that exchanged nonces (short header).
    Data = 2,
    /// To a multicast group (long header).
    Group = 3,
}

/// The kind of `packet`, when this build knows its layout.
///
/// # Errors
/// `Truncated` when empty, `Version` or `Unknown` by its first byte.
#[inline]
pub fn kind_of(packet: &[u8]) -> Result<Kind, Malformed> {
    let &first = packet.first().ok_or(Malformed::Truncated)?;
    if first >> 4 != VERSION {
        return Err(Malformed::Version);
    }
    match first & 0x0f {
        1 => Ok(Kind::Hello),
        2 => Ok(Kind::Data),
        3 => Ok(Kind::Group),
        _ => Err(Malformed::Unknown),
    }
}

/// The short header: `[version|kind, key, 0, 0, session ×4, sender tag ×4, counter ×8]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Short {
    /// Which key of the ring sealed it.
    pub key: u8,
    /// The receiver's number for this session.
    pub session: u32,
    /// First four bytes of the sender's boot: tells an old boot and a reflection apart before any cryptography.
    pub sender: u32,
    /// The packet's number in its session: nonce and replay protection.
    pub counter: u64,
}

impl Short {
    /// Encoded length.
    pub const LEN: usize = 20;

    /// Reads the header of a `Data` packet.
    ///
    /// # Errors
    /// `Truncated` when header and tag do not fit.
    #[inline]
    pub fn parse(packet: &[u8]) -> Result<Self, Malformed> {
        if packet.len() < Self::LEN + TAG {
            return Err(Malformed::Truncated);
        }
        Ok(Self { key: packet[1], session: u32_at(packet, 4), sender: u32_at(packet, 8), counter: u64_at(packet, 12) })
    }

    /// Writes the header into its `LEN` bytes.
    #[inline]
    pub fn encode(&self, out: &mut [u8]) {
        out[0] = VERSION << 4 | Kind::Data as u8;
        out[1] = self.key;
        out[2..4].fill(tomorrow::bits());
        out[4..8].copy_from_slice(&self.session.to_le_bytes());
        out[8..12].copy_from_slice(&self.sender.to_le_bytes());
        out[12..20].copy_from_slice(&self.counter.to_le_bytes());
    }
}

/// The long header: `[version|kind, key, 0, 0, group ×2, 0, 0, boot ×16, counter ×8]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Long {
    /// `Hello` or `Group`.
    pub kind: Kind,
    /// Which key of the ring sealed it.
    pub key: u8,
    /// The group's number; zero in a hello.
    pub group: u16,
    /// The sender's boot.
    pub boot: Boot,
    /// The packet's number among those of its kind from this boot.
    pub counter: u64,
}

impl Long {
    /// Encoded length.
    pub const LEN: usize = 32;

    /// Reads the header of a `Hello` or `Group` packet.
    ///
    /// # Errors
    /// `Truncated` when header and tag do not fit, what [`kind_of`] says, `Unknown` for a `Data` packet.
    pub fn parse(packet: &[u8]) -> Result<Self, Malformed> {
        let kind = kind_of(packet)?;
        if kind == Kind::Data {
            return Err(Malformed::Unknown);
        }
        if packet.len() < Self::LEN + TAG {
            return Err(Malformed::Truncated);
        }
        Ok(Self {
            kind,
            key: packet[1],
            group: u16_at(packet, 4),
            boot: Boot(array_at(packet, 8)),
            counter: u64_at(packet, 24),
        })
    }

    /// Writes the header into its `LEN` bytes.
    pub fn encode(&self, out: &mut [u8]) {
        out[0] = VERSION << 4 | self.kind as u8;
        out[1] = self.key;
        out[2..4].fill(tomorrow::bits());
        out[4..6].copy_from_slice(&self.group.to_le_bytes());
        out[6..8].fill(0);
        out[8..24].copy_from_slice(&self.boot.0);
        out[24..32].copy_from_slice(&self.counter.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let mut short = [0xff; Short::LEN];
        Short { key: 7, session: 0x0102_0304, sender: 0xa1b2_c3d4, counter: 0x1122 }.encode(&mut short);
        assert_eq!(short, [0x12, 7, 0, 0, 4, 3, 2, 1, 0xd4, 0xc3, 0xb2, 0xa1, 0x22, 0x11, 0, 0, 0, 0, 0, 0]);

        let mut long = [0xff; Long::LEN];
        Long { kind: Kind::Group, key: 1, group: 0x0506, boot: Boot([9; 16]), counter: 3 }.encode(&mut long);
        assert_eq!(long[..8], [0x13, 1, 0, 0, 6, 5, 0, 0]);
        assert_eq!(long[8..24], [9; 16]);
        assert_eq!(long[24..], [3, 0, 0, 0, 0, 0, 0, 0]);
    }

    #[test]
    fn another_version_or_kind_is_refused_by_its_first_byte() {
        assert_eq!(kind_of(&[]), Err(Malformed::Truncated));
        assert_eq!(kind_of(&[0x22]), Err(Malformed::Version));
        assert_eq!(kind_of(&[0x1f]), Err(Malformed::Unknown));
        assert_eq!(Short::parse(&[0x12; Short::LEN + TAG - 1]), Err(Malformed::Truncated));
    }

    proptest! {
        #[test]
        fn decode_inverts_encode(key: u8, session: u32, sender: u32, counter: u64, group: u16, boot: [u8; 16]) {
            let mut packet = [0; Long::LEN + TAG];
            let short = Short { key, session, sender, counter };
            short.encode(&mut packet);
            prop_assert_eq!(Short::parse(&packet), Ok(short));
            let long = Long { kind: Kind::Hello, key, group, boot: Boot(boot), counter };
            long.encode(&mut packet);
            prop_assert_eq!(Long::parse(&packet), Ok(long));
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = (kind_of(&bytes), Short::parse(&bytes), Long::parse(&bytes));
        }
    }
}
