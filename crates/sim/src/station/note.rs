//! What stations tell the checkers, and what they can be told.

use super::content::Layer;
use phalanx_core::{Boot, Identity};
use phalanx_fault::Rule;
use phalanx_protocol::link::mml::Gap;

/// What a station says. Checkers compute the rest from the names of messages.
#[derive(Clone, Debug)]
pub enum Note {
    /// A start of the node, with the link's boot.
    Started {
        /// Its link's boot.
        boot: Boot,
    },
    /// The link proved that `peer` lives, in that start of it: streams from it begin anew.
    Up {
        /// The peer.
        peer: u32,
        /// Which start of it.
        boot: Boot,
    },
    /// The link proved somebody that nobody knows.
    Stranger(Identity),
    /// The link gave the peer up: what was not acknowledged may be lost, and numbers begin anew.
    Down {
        /// The peer.
        peer: u32,
    },
    /// The station itself forgot the peer, with all that was under way.
    Forgot {
        /// The peer.
        peer: u32,
    },
    /// The link took a message.
    Sent {
        /// For whom.
        peer: u32,
        /// By which layer.
        layer: Layer,
        /// The sender's generation with that peer.
        generation: u32,
        /// Its place in that generation.
        number: u32,
    },
    /// The link numbered a management message otherwise than by its place.
    Misnumbered {
        /// By which layer.
        layer: Layer,
        /// Its place.
        place: u32,
        /// The link's number.
        number: u64,
    },
    /// The link handed a message on.
    Got {
        /// From whom.
        peer: u32,
        /// By which layer.
        layer: Layer,
        /// The low bits of the sender's generation, from the port it was sent to.
        generation: u8,
        /// The low bits of its number, from the port it was sent from.
        number: u16,
        /// What its bytes say that it is; `None` when they are damaged, or another machine's.
        seed: Option<u64>,
        /// Its length.
        length: u32,
        /// Its bytes belong to another machine, which checks them itself.
        opaque: bool,
    },
    /// The link gave an ACK message up.
    Undelivered {
        /// For whom it was.
        peer: u32,
        /// Its number.
        number: u64,
    },
    /// The link says that NACK messages are missing for good.
    Gap {
        /// From whom.
        peer: u32,
        /// Which.
        gap: Gap,
    },
    /// CL-2: a ticket's status was still pending long after the send.
    Unsettled,
    /// The `plain` injector may copy, modify or hold packets from now on: what only the seal protects is exposed.
    Tainted,
    /// Something holds more than its bound.
    Over {
        /// What.
        what: &'static str,
        /// How much it holds.
        holds: usize,
        /// How much it may.
        bound: usize,
    },
    /// Something happened in an ordered group.
    Order(OrderNote),
}

/// What happened to a member of an ordered group.
#[derive(Clone, Debug)]
pub enum OrderNote {
    /// Its application's state holds all up to `index`.
    Placed {
        /// The index.
        index: u64,
    },
    /// Its message number `seq` was accepted.
    Accepted {
        /// Counts from zero at each start.
        seq: u64,
    },
    /// A message was delivered.
    Delivered {
        /// Its place in the total order.
        index: u64,
        /// The member that submitted it.
        member: u8,
        /// Which start of it.
        boot: u64,
        /// Its number.
        seq: u64,
        /// What its bytes say that it is.
        seed: Option<u64>,
    },
    /// The member could not start from what its disk kept.
    Broken(String),
}

/// What a scenario or a test asks of a station.
#[derive(Clone, Debug)]
pub enum Command {
    /// FI-3: the `plain` injector, above the seal, gets a rule.
    Plain(Box<Rule>),
    /// All rules of the `plain` injector end.
    HealPlain,
    /// Send nothing new from now on.
    Rest,
}
