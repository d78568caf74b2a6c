//! A member as engines write it: identity, version, address, name.
//!
//! ```text
//! 0   32 identity   32  8 incarnation   40  4 minor   44  1 kind of address   45  1 length of name   46  address, name
//! ```

use crate::Malformed;
use crate::bytes::{array_at, u16_at, u32_at, u64_at};
use phalanx_core::{Addr, Identity};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// The longest name on the wire.
pub const NAME_MAX: usize = 63;

/// One member of a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Member<'a> {
    /// Its key.
    pub identity: Identity,
    /// Which life of it.
    pub incarnation: u64,
    /// How often it spoke up for itself in that life.
    pub minor: u32,
    /// Where it listens.
    pub addr: Addr,
    /// What people call it.
    pub name: &'a str,
}

impl<'a> Member<'a> {
    const HEAD: usize = 46;
    const LOCAL: u8 = 0;
    const V4: u8 = 4;
    const V6: u8 = 6;
    /// The most bytes that a member needs.
    pub const LONGEST: usize = Self::HEAD + 18 + NAME_MAX;

    /// Bytes that a member with this address and name needs.
    #[must_use]
    pub fn length(addr: &Addr, name: &str) -> usize {
        let place = match addr {
            Addr::Ip(SocketAddr::V4(_)) => 6,
            Addr::Ip(SocketAddr::V6(_)) => 18,
            Addr::Local(_) | Addr::Group(_) => 4,
        };
        Self::HEAD + place + name.len()
    }

    /// Appends the member. A group is no place to listen and counts as nowhere.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.identity.0);
        out.extend_from_slice(&self.incarnation.to_le_bytes());
        out.extend_from_slice(&self.minor.to_le_bytes());
        let kind = match self.addr {
            Addr::Ip(SocketAddr::V4(_)) => Self::V4,
            Addr::Ip(SocketAddr::V6(_)) => Self::V6,
            Addr::Local(_) | Addr::Group(_) => Self::LOCAL,
        };
        out.extend_from_slice(&[kind, self.name.len() as u8]);
        match self.addr {
            Addr::Ip(SocketAddr::V4(a)) => {
                out.extend_from_slice(&a.ip().octets());
                out.extend_from_slice(&a.port().to_le_bytes());
            }
            Addr::Ip(SocketAddr::V6(a)) => {
                out.extend_from_slice(&a.ip().octets());
                out.extend_from_slice(&a.port().to_le_bytes());
            }
            Addr::Local(n) => out.extend_from_slice(&n.to_le_bytes()),
            Addr::Group(_) => out.extend_from_slice(&u32::MAX.to_le_bytes()),
        }
        out.extend_from_slice(self.name.as_bytes());
    }

    /// Reads the member at the beginning of `bytes`; gives what follows it, too.
    ///
    /// # Errors
    /// `Truncated`, `Unknown` for another kind of address, `Inconsistent` for a name that is none.
    pub fn parse(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Malformed> {
        if bytes.len() < Self::HEAD {
            return Err(Malformed::Truncated);
        }
        let place = match bytes[44] {
            Self::LOCAL => 4,
            Self::V4 => 6,
            Self::V6 => 18,
            _ => return Err(Malformed::Unknown),
        };
        let (named, end) = (Self::HEAD + place, Self::HEAD + place + usize::from(bytes[45]));
        if bytes.len() < end {
            return Err(Malformed::Truncated);
        }
        let at = Self::HEAD;
        let addr = match bytes[44] {
            Self::V4 => Addr::Ip((Ipv4Addr::from(array_at::<4>(bytes, at)), u16_at(bytes, at + 4)).into()),
            Self::V6 => Addr::Ip((Ipv6Addr::from(array_at::<16>(bytes, at)), u16_at(bytes, at + 16)).into()),
            _ => Addr::Local(u32_at(bytes, at)),
        };
        let member = Self {
            identity: Identity(array_at(bytes, 0)),
            incarnation: u64_at(bytes, 32),
            minor: u32_at(bytes, 40),
            addr,
            name: name(&bytes[named..end])?,
        };
        Ok((member, &bytes[end..]))
    }
}

pub(crate) fn name(bytes: &[u8]) -> Result<&str, Malformed> {
    let fine = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_');
    if bytes.is_empty() || bytes.len() > NAME_MAX || !bytes.iter().all(fine) {
        return Err(Malformed::Inconsistent);
    }
    std::str::from_utf8(bytes).map_err(|_| Malformed::Inconsistent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let addr = Addr::Ip("10.0.0.7:7946".parse().unwrap());
        let member = Member { identity: Identity([9; 32]), incarnation: 0x0102, minor: 3, addr, name: "n7" };
        let mut out = Vec::new();
        member.encode(&mut out);
        assert_eq!(out[..32], [9; 32]);
        assert_eq!(out[32..], [2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 4, 2, 10, 0, 0, 7, 0x0a, 0x1f, b'n', b'7']);
        assert_eq!(out.len(), Member::length(&addr, "n7"));
    }

    fn addr() -> impl Strategy<Value = Addr> {
        prop_oneof![
            any::<u32>().prop_map(Addr::Local),
            any::<([u8; 4], u16)>().prop_map(|(ip, port)| Addr::Ip((Ipv4Addr::from(ip), port).into())),
            any::<([u8; 16], u16)>().prop_map(|(ip, port)| Addr::Ip((Ipv6Addr::from(ip), port).into())),
        ]
    }

    proptest! {
        #[test]
        fn decode_inverts_encode(
            identity: [u8; 32], incarnation: u64, minor: u32, addr in addr(), name in "[a-zA-Z0-9._-]{1,63}",
            rest in prop::collection::vec(any::<u8>(), 0..9),
        ) {
            let member = Member { identity: Identity(identity), incarnation, minor, addr, name: &name };
            let mut out = Vec::new();
            member.encode(&mut out);
            prop_assert_eq!(out.len(), Member::length(&addr, &name));
            prop_assert!(out.len() <= Member::LONGEST);
            out.extend_from_slice(&rest);
            prop_assert_eq!(Member::parse(&out), Ok((member, &rest[..])));
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..160)) {
            let _ = Member::parse(&bytes);
        }
    }
}
