//! What two nodes say over a tripwire, once, before it falls silent.
//!
//! Whoever accepted the stream sends [`CHALLENGE`] random bytes; whoever opened it answers with a hello, which proves
//! that it knows a key of the cluster; one byte [`TAKEN`] says that the wire is up. Nothing follows,
//! but later builds may append to both: readers skip it.
//!
//! ```text
//! 0  4 magic   4  1 version   5  1 id of the key   6  18 from   24  18 to   42  16 tag
//! ```
//! An address is 16 bytes of IPv6 (IPv4 mapped) and a port. The tag is a MAC over [`Hello::covered`].

use crate::Malformed;
use crate::bytes::{array_at, u16_at};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Random bytes of a challenge.
pub const CHALLENGE: usize = 16;
/// Bytes of a tag.
pub const TAG: usize = 16;
/// The answer to a hello that was taken.
pub const TAKEN: u8 = 1;

const MAGIC: [u8; 4] = *b"PLXT";
const VERSION: u8 = 1;
const PLACE: usize = 18;
const COVERED: usize = 6 + 2 * PLACE;

/// Who opens a tripwire, and to whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hello {
    /// Where the node that opens it is known to be.
    pub from: SocketAddr,
    /// Whom it wants to reach: several nodes may share a listener.
    pub to: SocketAddr,
    /// The key of its tag.
    pub key: u8,
    /// Proves that it knows the key and heard the challenge.
    pub tag: [u8; TAG],
}

impl Hello {
    /// Bytes of a hello.
    pub const LENGTH: usize = COVERED + TAG;

    /// What the tag is made of, without the tag itself.
    #[must_use]
    pub fn covered(&self, challenge: &[u8; CHALLENGE]) -> [u8; COVERED + CHALLENGE] {
        let mut bytes = [0; COVERED + CHALLENGE];
        bytes[..COVERED].copy_from_slice(&self.encode()[..COVERED]);
        bytes[COVERED..].copy_from_slice(challenge);
        bytes
    }

    /// The bytes that go over the wire.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LENGTH] {
        let mut bytes = [0; Self::LENGTH];
        bytes[..4].copy_from_slice(&MAGIC);
        (bytes[4], bytes[5]) = (VERSION, self.key);
        for (at, place) in [(6, self.from), (6 + PLACE, self.to)] {
            let ip = match place.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            bytes[at..at + 16].copy_from_slice(&ip.octets());
            bytes[at + 16..at + PLACE].copy_from_slice(&place.port().to_le_bytes());
        }
        bytes[COVERED..].copy_from_slice(&self.tag);
        bytes
    }

    /// Reads a hello.
    ///
    /// # Errors
    /// `Unknown` when it is none, or of another version.
    pub fn parse(bytes: &[u8; Self::LENGTH]) -> Result<Self, Malformed> {
        if bytes[..4] != MAGIC || bytes[4] != VERSION {
            return Err(Malformed::Unknown);
        }
        let place = |at: usize| {
            let ip = Ipv6Addr::from(array_at::<16>(bytes, at));
            SocketAddr::new(ip.to_ipv4_mapped().map_or(IpAddr::V6(ip), IpAddr::V4), u16_at(bytes, at + 16))
        };
        Ok(Self { from: place(6), to: place(6 + PLACE), key: bytes[5], tag: array_at(bytes, COVERED) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_is_read_as_it_was_written() {
        for (from, to) in [("10.0.0.1:7946", "10.0.0.2:7947"), ("[fd00::1]:7946", "127.0.0.1:1")] {
            let hello = Hello { from: from.parse().unwrap(), to: to.parse().unwrap(), key: 3, tag: [9; TAG] };
            assert_eq!(Hello::parse(&hello.encode()), Ok(hello));
        }
    }

    #[test]
    fn what_is_no_hello_is_refused() {
        let hello =
            Hello { from: "1.2.3.4:5".parse().unwrap(), to: "5.4.3.2:1".parse().unwrap(), key: 1, tag: [0; TAG] };
        for at in 0..5 {
            let mut bytes = hello.encode();
            bytes[at] ^= 1;
            assert_eq!(Hello::parse(&bytes), Err(Malformed::Unknown));
        }
    }

    #[test]
    fn the_tag_covers_all_but_itself_and_the_challenge() {
        let hello =
            Hello { from: "1.2.3.4:5".parse().unwrap(), to: "5.4.3.2:1".parse().unwrap(), key: 1, tag: [7; TAG] };
        let other = Hello { tag: [8; TAG], ..hello };
        assert_eq!(hello.covered(&[1; CHALLENGE]), other.covered(&[1; CHALLENGE]));
        assert_ne!(hello.covered(&[1; CHALLENGE]), hello.covered(&[2; CHALLENGE]));
        assert_ne!(hello.covered(&[1; CHALLENGE]), Hello { key: 2, ..hello }.covered(&[1; CHALLENGE]));
    }
}
