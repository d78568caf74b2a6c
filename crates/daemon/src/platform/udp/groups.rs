//! Multicast for the UDP platform (TG rests on it): a group's number becomes an address, its TTL the reach.
//!
//! IPv4: 239.77.x.y, the organisation-local block, with the number in the last two bytes. IPv6: ff0s::4d:n, where
//! the scope s follows the TTL. Datagrams leave from the platform's main socket, so that a receiver sees an address
//! it can reply to; they arrive at a socket of their own on a port that the members of a host share.

use super::socket::Wire;
use nix::errno::Errno;
use phalanx_core::{Addr, Code, Group};
use socket2::SockRef;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Groups that one node may be in.
const MAX_GROUPS: usize = 64;
/// IPv6 scopes, narrow to wide, with the largest TTL that stays inside: link, site, organisation, the world.
const SCOPES: [(u16, u8); 4] = [(0x2, 1), (0x5, 32), (0x8, 64), (0xe, 255)];

/// The groups a node has joined, and how it sends to any group.
#[derive(Debug)]
pub(super) struct Groups {
    /// The interface that carries multicast: this address of ours, or the system's choice when unspecified.
    interface: IpAddr,
    /// IPv6 names interfaces by index; zero is the system's choice.
    index: u32,
    port: u16,
    joined: Vec<Group>,
    /// Opened by the first join; closed by the last leave.
    pub(super) wire: Option<Wire>,
    /// What the main socket's TTL is set to, to spare a system call for each datagram.
    ttl: Option<u8>,
}

impl Groups {
    pub(super) fn new(interface: IpAddr, index: u32, port: u16) -> Self {
        Self { interface, index, port, joined: Vec::new(), wire: None, ttl: None }
    }

    /// Where datagrams to `group` go.
    pub(super) fn address(&self, group: Group) -> SocketAddr {
        match self.interface {
            IpAddr::V4(_) => SocketAddr::from((v4(group.number), self.port)),
            IpAddr::V6(_) => SocketAddr::from((v6(group.number, scope(group.ttl)), self.port)),
        }
    }

    /// Makes the next datagram of `main` reach as far as `group` says.
    pub(super) fn aim(&mut self, main: &Wire, group: Group) -> Result<(), Errno> {
        if self.ttl == Some(group.ttl) {
            return Ok(());
        }
        let socket = SockRef::from(&main.socket);
        let hops = u32::from(group.ttl);
        let first = self.ttl.is_none();
        let set = match self.interface {
            IpAddr::V4(own) => {
                if first && !own.is_unspecified() {
                    socket.set_multicast_if_v4(&own).map_err(errno)?;
                }
                socket.set_multicast_ttl_v4(hops)
            }
            IpAddr::V6(_) => {
                if first && self.index != 0 {
                    socket.set_multicast_if_v6(self.index).map_err(errno)?;
                }
                socket.set_multicast_hops_v6(hops)
            }
        };
        set.map_err(errno)?;
        self.ttl = Some(group.ttl);
        Ok(())
    }

    /// Leaves the interface to the system from now on, when the address that named it is gone. False when nothing changed.
    pub(super) fn move_on(&mut self, main: &Wire) -> bool {
        let any = Ipv4Addr::UNSPECIFIED;
        let is_gone = match self.interface {
            IpAddr::V4(own) => own != any && UdpSocket::bind((own, 0)).is_err(),
            // There, interfaces have numbers.
            IpAddr::V6(_) => false,
        };
        let moves = is_gone && SockRef::from(&main.socket).set_multicast_if_v4(&any).is_ok();
        if moves {
            self.interface = any.into();
        }
        moves
    }

    /// Hears `group`.
    pub(super) fn join(&mut self, group: Group) -> Result<(), Code> {
        if self.joined.contains(&group) {
            return Ok(());
        }
        if self.joined.len() >= MAX_GROUPS {
            return Err(Code::LocalResource);
        }
        let wire = match self.wire.take() {
            Some(wire) => wire,
            None => self.open().map_err(|e| super::code_of_io(&e))?,
        };
        let known = self.joined.iter().any(|g| g.number == group.number);
        let outcome = if known { Ok(()) } else { self.membership(&wire, group.number, true) };
        if outcome.is_ok() {
            self.joined.push(group);
        }
        // A socket without a group would be polled for nothing.
        self.wire = (!self.joined.is_empty()).then_some(wire);
        outcome.map_err(|_| Code::InvalidEndpoint)
    }

    /// Stops hearing `group`.
    pub(super) fn leave(&mut self, group: Group) -> Result<(), Code> {
        let place = self.joined.iter().position(|g| *g == group).ok_or(Code::InvalidEndpoint)?;
        self.joined.swap_remove(place);
        if self.joined.is_empty() {
            self.wire = None;
        } else if let Some(wire) = &self.wire
            && !self.joined.iter().any(|g| g.number == group.number)
        {
            // The address of an interface that is gone cannot be left; nothing arrives on it either.
            let _ = self.membership(wire, group.number, false);
        }
        Ok(())
    }

    fn open(&self) -> std::io::Result<Wire> {
        let any = match self.interface {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        };
        let mut wire = Wire::bind((any, self.port).into(), true)?;
        wire.coalesce();
        // Else we would hear the groups that any other process of this host has joined.
        let socket = SockRef::from(&wire.socket);
        match self.interface {
            IpAddr::V4(_) => socket.set_multicast_all_v4(false)?,
            IpAddr::V6(_) => socket.set_multicast_all_v6(false)?,
        }
        Ok(wire)
    }

    fn membership(&self, wire: &Wire, number: u16, member: bool) -> std::io::Result<()> {
        let socket = SockRef::from(&wire.socket);
        match self.interface {
            IpAddr::V4(own) if member => socket.join_multicast_v4(&v4(number), &own),
            IpAddr::V4(own) => socket.leave_multicast_v4(&v4(number), &own),
            // A sender's TTL picks the scope, so a member listens in all of them.
            IpAddr::V6(_) => SCOPES.iter().try_for_each(|&(scope, _)| {
                let group = v6(number, scope);
                if member {
                    socket.join_multicast_v6(&group, self.index)
                } else {
                    socket.leave_multicast_v6(&group, self.index)
                }
            }),
        }
    }
}

/// True when a datagram from `from` is our own, come back.
pub(super) fn is_echo(from: SocketAddr, local: Addr) -> bool {
    Addr::Ip(from) == local
}

fn v4(number: u16) -> Ipv4Addr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(239, 77, high, low)
}

fn v6(number: u16, scope: u16) -> Ipv6Addr {
    Ipv6Addr::new(0xff00 | scope, 0, 0, 0, 0, 0, 0x4d, number)
}

fn scope(ttl: u8) -> u16 {
    SCOPES.iter().find(|s| ttl <= s.1).map_or(SCOPES[3].0, |s| s.0)
}

fn errno(error: std::io::Error) -> Errno {
    error.raw_os_error().map_or(Errno::EINVAL, Errno::from_raw)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// TG: the group's number is the address, its TTL the reach.
    #[test]
    fn a_group_has_an_address_in_both_families() {
        let (near, far) = (Group { number: 0x0102, ttl: 1 }, Group { number: 0x0102, ttl: 40 });
        let four = Groups::new(Ipv4Addr::LOCALHOST.into(), 0, 7946);
        assert_eq!(four.address(near).to_string(), "239.77.1.2:7946");
        assert_eq!(four.address(near), four.address(far));
        let six = Groups::new(Ipv6Addr::LOCALHOST.into(), 0, 7946);
        assert_eq!(six.address(near).to_string(), "[ff02::4d:102]:7946");
        assert_eq!(six.address(far).to_string(), "[ff08::4d:102]:7946");
        assert_eq!(scope(255), 0xe);
    }

    #[test]
    fn only_joined_groups_are_left() {
        let mut groups = Groups::new(Ipv4Addr::LOCALHOST.into(), 0, 0);
        assert_eq!(groups.leave(Group { number: 1, ttl: 1 }).unwrap_err(), Code::InvalidEndpoint);
    }
}
