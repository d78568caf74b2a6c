//! MML: management messages between two nodes, signed by their sender (MM-1, MM-2, 004 §3).
//!
//! Three kinds, because the cluster's manager repeats much of the work itself:
//!
//! | kind | for | promise | cost when all goes well |
//! |---|---|---|---|
//! | [`Kind::Unr`] | heartbeats | at most once | the message |
//! | [`Kind::Ack`] | what must arrive, and the sender must know | once, in order, or `Unreachable` | the message and a share of an acknowledgement |
//! | [`Kind::Nack`] | requests that are confirmed higher up | once, in order, or a reported [`Gap`] | the message and a few notices when the stream rests |
//!
//! ⚠ NACK promises nothing about a last message whose notices are all lost too: the sender hears no silence. Its
//! confirmation does not come then, and whoever waits for it acts, as 004 §3 demands anyway.
//!
//! ACK and NACK messages, acknowledgements, requests and notices are signed and bound to their session
//! (`context.rs`). What fails is counted by reason and dropped before it changes anything: no acknowledgement, no
//! request. A check costs 37 µs, so what is cheap to see (form, repetition, nothing new) is looked at first, and a
//! packet is counted by the first thing found. UNR messages rely on the seal: it vouches for the cluster, not for
//! the member; a checksum finds bits that flipped inside it.
//!
//! MML stands strictly above CL. The channel is pure: it sees opened packets and gives plain ones. Seal, sockets and
//! the `plain` fault injector are the link's. It exists for every neighbour, so a kind that was never used holds one
//! empty pointer, and an idle one no queues.

mod channel;
mod context;
mod gaps;
mod history;
mod inbox;
mod order;
mod outbox;
mod unreliable;

pub(crate) use channel::Channel;
pub(crate) use context::{Context, End};
use phalanx_core::{Buf, Duration};
use phalanx_wire::layer::Ports;
use phalanx_wire::mml::{self as wire, Packet, SIGNATURE};

/// ACK messages under way, and early messages that a receiver keeps: what the bits of one word name.
pub const WINDOW: u64 = 64;

/// What is promised about a message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// Unreliable, not signed: heartbeats.
    Unr,
    /// Reliable by positive acknowledgement; signed.
    Ack,
    /// Reliable by negative acknowledgement; signed.
    Nack,
}

/// The limits of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Config {
    /// The most bytes of a packet inside the seal.
    pub(crate) largest_plain: u16,
    /// Messages of a kind that may wait for their first turn; past it `send` is refused.
    pub queue: u16,
    /// NACK messages kept for those who miss them.
    pub history: u16,
    /// Bytes of NACK messages kept.
    pub history_bytes: u32,
    /// How long NACK messages are kept.
    pub history_age: Duration,
    /// How long an acknowledgement may wait for more messages to acknowledge.
    pub ack_delay: Duration,
    /// A peer that answers nothing for so long is half dead.
    pub patience: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            largest_plain: 1400,
            queue: 256,
            history: 256,
            history_bytes: 256 * 1024,
            history_age: Duration::from_secs(10),
            ack_delay: Duration::from_millis(1),
            patience: Duration::from_secs(5),
        }
    }
}

impl Config {
    /// The largest message: what fits into a datagram with header and signature. Bulk belongs to RCL.
    #[must_use]
    pub fn largest_message(&self) -> usize {
        usize::from(self.largest_plain).saturating_sub(Packet::HEADER + SIGNATURE)
    }

    /// A packet without its proof, and room for that.
    fn packet(&self, kind: wire::Kind, ports: Ports, number: u64, payload: &[u8]) -> Buf {
        let mut packet = Buf::new(0, Packet::HEADER + payload.len() + kind.proof());
        Packet::encode_header(kind, ports.from, ports.to, number, packet.vec_mut());
        packet.extend(payload);
        packet
    }
}

/// What happened in all channels of a link, for FI-5 and for operators.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Sums {
    /// Messages handed on.
    pub delivered: u64,
    /// Packets sent again.
    pub retransmissions: u64,
    /// Messages that had arrived before.
    pub duplicates: u64,
    /// Packets that the peer did not sign for us in this session.
    pub bad_signature: u64,
    /// Packets whose checksum was wrong though their seal was right.
    pub checksum: u64,
    /// Packets that make no sense though their seal was right.
    pub malformed: u64,
    /// Answers and notices that said nothing new.
    pub stale: u64,
    /// Messages too far ahead of a missing one to be kept.
    pub beyond_window: u64,
    /// NACK messages that are missing for good.
    pub gaps: u64,
    /// Requests for missing messages.
    pub lost_requests: u64,
    /// Messages that were not taken for sending.
    pub refused: u64,
}

/// NACK messages that are missing for good: the sender's history no longer held them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Gap {
    /// The first number missing.
    pub first: u64,
    /// Nothing is awaited below this number any more.
    pub below: u64,
    /// How many are missing in between; the others were handed on.
    pub lost: u64,
}

/// What a packet led to, beside messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Progress {
    /// A caller whose ACK message was refused may try again.
    pub(crate) writable: bool,
    /// All ACK messages below this number have arrived; `None` when that is not new.
    pub(crate) acked_below: Option<u64>,
    /// NACK messages are missing for good.
    pub(crate) gap: Option<Gap>,
}

#[cfg(test)]
mod tests;
