//! What the events of the engine are.

use crate::disk::Write;
use phalanx_core::{Buf, Group};

/// What happens to a node (or, for a datagram to a group, to a shard).
pub(crate) enum What {
    /// The node's process begins.
    Start,
    /// A datagram is at the receiver's segment, or past it.
    Packet(Stage, Buf),
    /// A datagram to a group reaches a shard, and spreads among the members there.
    Cast(Group, Buf),
    /// The timer of that version: overtaken when the node has a newer one.
    Timer(u32),
    /// A stream's life, between two kernels.
    Signal(Signal),
    /// A signal that a cut held back is tried again by its sender, on that start of its host.
    Resend { to: u32, host: u16, signal: Signal },
    /// The sender of a datagram learns that nobody listens.
    Refused,
    /// A write reaches the disk.
    Disk(Box<Write>),
}

/// How far a datagram has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Stage {
    Unicast,
    /// As above, from a group: nobody is told when nobody listens.
    Multicast,
    /// Through the switch and the receiver's link.
    Passed,
}

/// What one kernel tells another about a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Signal {
    pub(crate) kind: SignalKind,
    /// The opener's number for the stream.
    pub(crate) id: u32,
    /// The sender of the signal is the opener of the stream.
    pub(crate) from_opener: bool,
    pub(crate) tries: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SignalKind {
    Open,
    Accept,
    Refuse,
    Close,
    Reset,
}

impl SignalKind {
    pub(crate) fn of(self, id: u32, from_opener: bool) -> Signal {
        Signal { kind: self, id, from_opener, tries: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pending event is a 24-byte key and this: a million of them must stay small.
    #[test]
    fn an_event_is_hardly_larger_than_its_packet() {
        assert!(size_of::<Option<What>>() <= size_of::<Buf>() + 8);
    }
}
