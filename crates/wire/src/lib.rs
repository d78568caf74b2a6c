//! Every packet of Phalanx: checked views over bytes, encoded in place.
//!
//! A view is made by `parse`, which checks every length once; its accessors cannot fail. Encoders append to, or
//! write into, the caller's buffer. Nothing here allocates, but what
//! [`view`], [`cast`], [`reduce`] and [`federation`] read. All numbers are little-endian.
//!
//! Versions: the first byte of a packet carries the version of its *layout*; a higher one is not understood and
//! dropped. Within a version the format grows by appending: a body may be longer than its reader knows, and what
//! a reader does not know (a flag, a layer, the rest of a body) it skips.
//!
//! | module | packets |
//! |---|---|
//! | [`outer`] | what a network sees: the two headers in front of sealed bytes |
//! | [`hello`] | the exchange of boot nonces |
//! | [`layer`] | the first byte inside the seal: which layer a packet is for; CL datagrams |
//! | [`rcl`] | reliable messages: sequence numbers, acknowledgements, frames |
//! | [`mml`] | management messages: kinds, numbers, signatures |
//! | [`member`] | a member of a cluster, as engines write it |
//! | [`zone`] | zone membership: letters and notes |
//! | [`attribute`] | replication of attributes: digests, requests, pieces of maps |
//! | [`service`] | a service, as an attribute tells of it |
//! | [`rumour`] | what people tell a whole zone, questions and replies, the cluster's keys |
//! | [`view`] | what the tasks of a job say to each other |
//! | [`cast`] | broadcasts and multicasts on their way through the sibling tree |
//! | [`piece`] | what is cast, cut into pieces |
//! | [`reduce`] | reductions on their way up and down that tree |
//! | [`tripwire`] | what two nodes say over a tripwire |
//! | [`tomorrow`] | what later builds may say, for tests of upgrades |
//! | [`baseline`] | the baselines' heartbeats, introductions and gossip |
//! | [`segment`] | heartbeats and updates of segments |
//! | [`federation`] | what data centres say of themselves to each other |

mod addr;
pub mod attribute;
pub mod baseline;
mod bytes;
pub mod cast;
mod codec;
pub mod federation;
pub mod hello;
pub mod layer;
pub mod member;
pub mod mml;
pub mod outer;
pub mod piece;
pub mod rcl;
pub mod reduce;
pub mod rumour;
pub mod segment;
pub mod service;
pub mod tomorrow;
pub mod tripwire;
pub mod view;
pub mod zone;

pub use bytes::crc32c;

/// Why bytes were not accepted. Counted by the link; never answered.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Malformed {
    /// Shorter than its fixed part, or than a length inside it says.
    Truncated,
    /// A layout this build does not know.
    Version,
    /// A kind, layer or flag combination this build does not know.
    Unknown,
    /// A length or count over its cap, or fields that contradict each other.
    Inconsistent,
    /// The checksum does not fit the bytes.
    Checksum,
}
