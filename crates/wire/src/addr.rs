//! An address, where it stands alone.

use crate::Malformed;
use crate::bytes::{array_at, u16_at, u32_at};
use phalanx_core::Addr;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// An address: `[4, ip ×4, port ×2]`, `[6, ip ×16, port ×2]` or `[1, place ×4]`. Scopes of IPv6 mean nothing elsewhere
/// and are left out.
pub(crate) fn encode_addr(addr: Addr, out: &mut Vec<u8>) {
    match addr {
        Addr::Ip(SocketAddr::V4(a)) => {
            out.push(4);
            out.extend_from_slice(&a.ip().octets());
            out.extend_from_slice(&a.port().to_le_bytes());
        }
        Addr::Ip(SocketAddr::V6(a)) => {
            out.push(6);
            out.extend_from_slice(&a.ip().octets());
            out.extend_from_slice(&a.port().to_le_bytes());
        }
        Addr::Local(n) => {
            out.push(1);
            out.extend_from_slice(&n.to_le_bytes());
        }
        Addr::Group(_) => out.push(0),
    }
}

/// Reads the address at the beginning of `bytes`; gives what follows it, too.
pub(crate) fn parse_addr(bytes: &[u8]) -> Result<(Addr, &[u8]), Malformed> {
    let (&kind, rest) = bytes.split_first().ok_or(Malformed::Truncated)?;
    let len = match kind {
        1 => 4,
        4 => 6,
        6 => 18,
        _ => return Err(Malformed::Unknown),
    };
    let (addr, rest) = rest.split_at_checked(len).ok_or(Malformed::Truncated)?;
    let addr = match kind {
        1 => Addr::Local(u32_at(addr, 0)),
        4 => Addr::Ip((Ipv4Addr::from(array_at::<4>(addr, 0)), u16_at(addr, 4)).into()),
        _ => Addr::Ip((Ipv6Addr::from(array_at::<16>(addr, 0)), u16_at(addr, 16)).into()),
    };
    Ok((addr, rest))
}
