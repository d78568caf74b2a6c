//! Who and where: identities, interned node numbers, ports, endpoints and platform addresses.

use std::fmt;
use std::net::SocketAddr;

/// A node's lasting identity: its Ed25519 public key. Name and addresses belong to it and may change.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Identity(pub [u8; 32]);

/// 128 random bits drawn at each start of a process. Two starts never share one, so neither do their keys.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Boot(pub [u8; 16]);

/// A node as this process numbers it: a dense slot (24 bits) and the slot's generation (8 bits).
///
/// Never on the wire: each process interns the identities it meets. The generation tells a recycled slot from
/// its former tenant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NodeId(u32);

impl NodeId {
    /// Slots that fit in an id.
    pub const MAX_SLOTS: usize = 1 << 24;

    /// The id of `slot` in its `generation`.
    ///
    /// # Panics
    /// When `slot` needs more than 24 bits: tables are bounded by [`NodeId::MAX_SLOTS`].
    #[must_use]
    pub const fn new(slot: usize, generation: u8) -> Self {
        assert!(slot < Self::MAX_SLOTS, "a node slot has 24 bits");
        Self(slot as u32 | (generation as u32) << 24)
    }

    /// Index into tables of this process.
    #[must_use]
    pub const fn slot(self) -> usize {
        (self.0 & 0x00ff_ffff) as usize
    }

    /// How often the slot was reused before.
    #[must_use]
    pub const fn generation(self) -> u8 {
        (self.0 >> 24) as u8
    }

    /// Slot and generation in one number, for hashing and logs.
    #[must_use]
    pub const fn raw(self) -> u32 {
        self.0
    }
}

/// Where in a node a message goes: each layer above the link listens on ports of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Port(pub u16);

/// CL-1: a communication endpoint, `(node, port)`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Endpoint {
    /// The node.
    pub node: NodeId,
    /// The port in it.
    pub port: Port,
}

/// A multicast group and how far its datagrams travel.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Group {
    /// The group's number; platforms map it to an address of theirs.
    pub number: u16,
    /// Router hops a datagram may cross plus one, as IP's TTL: 1 stays in the segment.
    pub ttl: u8,
}

/// Where a platform sends: opaque above the link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Addr {
    /// A socket of an IP platform.
    Ip(SocketAddr),
    /// A place in an in-process or simulated network.
    Local(u32),
    /// Everybody in a multicast group.
    Group(Group),
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(a) => write!(f, "{a}"),
            Self::Local(n) => write!(f, "local:{n}"),
            Self::Group(g) => write!(f, "group:{}/{}", g.number, g.ttl),
        }
    }
}

fn hex(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    bytes.iter().try_for_each(|b| write!(f, "{b:02x}"))
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0[..6], f)
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0, f)
    }
}

impl fmt::Debug for Boot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        hex(&self.0[..4], f)
    }
}

impl fmt::Debug for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.generation() {
            0 => write!(f, "n{}", self.slot()),
            g => write!(f, "n{}.{g}", self.slot()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recycled_slot_is_another_node() {
        let (old, new) = (NodeId::new(7, 0), NodeId::new(7, 1));
        assert_ne!(old, new);
        assert_eq!((old.slot(), new.slot()), (7, 7));
        assert_eq!(NodeId::new(NodeId::MAX_SLOTS - 1, 255).generation(), 255);
        assert_eq!(new.to_string(), "n7.1");
    }

    #[test]
    #[should_panic(expected = "24 bits")]
    fn a_slot_past_the_table_is_refused() {
        let _ = NodeId::new(NodeId::MAX_SLOTS, 0);
    }
}
