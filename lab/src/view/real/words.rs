//! What the experiment tells the nodes of a tree, and what they answer: as it is to threads, as lines of JSON to processes.

use serde::{Deserialize, Serialize};
use std::net::SocketAddr;

/// An order to one node.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(super) enum Order {
    /// Everybody is at these addresses, by number.
    Meet { arity: u32, all: Vec<SocketAddr> },
    /// Everybody has met: take what others opened.
    Take,
    /// From now on hold each packet that leaves for so long.
    Delay { us: u64 },
    /// To the root: this leaf failed. A wave without it.
    Wave { without: u32 },
    /// To the root: a wave through everybody.
    Warm,
    /// To the one that was left out: come back.
    Rejoin,
    /// Exchange messages with so many of your children, again and again for so long.
    Ping { children: usize, ms: u64 },
    /// End.
    End,
}

/// What a node answers.
#[derive(Clone, Serialize, Deserialize, Debug)]
pub(super) enum Answer {
    /// It is here.
    At(SocketAddr),
    /// Done.
    Done,
    /// The wave took so long, at the root.
    Took { ns: u64 },
    /// It is in again.
    Within,
    /// So long took a message to each child and the answers, on average.
    Round { ns: f64 },
}
