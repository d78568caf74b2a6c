//! The baselines (BL-1): all-to-all heartbeats and gossip, as engines like any other.
//!
//! 003 §2 compares its hierarchy with two simple schemes, and so do we with `zone`: [`AllToAll`], where everybody tells
//! everybody that it lives, and [`Gossip`], where everybody tells somebody all it knows (van Renesse, Minsky, Hayden:
//! *A Gossip-Style Failure Detection Service*, 1998, its reference 24). They implement [`Engine`](crate::member::Engine), so
//! that they run in the simulator and on sockets as they are.
//!
//! | | all-to-all | gossip |
//! |---|---|---|
//! | each period | own heartbeat to all | whole list to one at random |
//! | known from | its own heartbeat only | anybody's list |
//! | failed after | `losses` heartbeats missed | a counter that did not grow for `T_fail`, which grows with ln n |
//! | bytes in, each node | n·m | n·m |
//!
//! What both do:
//! - Events are differences and alternate for each member: `Joined`, `Left`, `Joined`, … Between them attributes are
//!   told: all of them after `Joined`, then each change; `Left` takes them away without a word for each. Nothing is
//!   told about ourselves: a view begins with us alone, and is empty after we left.
//! - A new incarnation is `Left { Replaced }` and `Joined`. Who left is remembered for `T_cleanup`, so that what is
//!   still under way does not bring it back; an older incarnation than the one remembered is never heard.
//! - Attributes travel with each heartbeat or entry: few and small, [`ATTRIBUTES_MAX`] bytes in all.
//! - Bootstrap addresses are knocked at for ever while nobody there is in the view, so partitions heal.
//! - A node that stood still finds everybody overdue when it wakes, and says so: baselines do not doubt themselves.
//!
//! | file | idea |
//! |---|---|
//! | `analysis` | what 003 §4 and van Renesse predict: bandwidth, `T_fail` |
//! | `attributes` | a small map as its encoded bytes |
//! | `table` | everybody known, when they were last heard, and what follows from that |
//! | `all_to_all`, `gossip` | the engines |

mod all_to_all;
#[cfg(test)]
mod alone;
pub mod analysis;
pub(crate) mod attributes;
mod gossip;
#[cfg(test)]
pub(crate) mod net;
mod table;
#[cfg(test)]
mod tests;

pub use all_to_all::{AllToAll, AllToAllConfig};
pub use gossip::{Gossip, GossipConfig};
pub use phalanx_wire::baseline::{ATTRIBUTES_MAX, KEY_MAX, VALUE_MAX};

use crate::member::{Card, Frozen};
use phalanx_core::{Addr, Duration};
use std::sync::Arc;
use table::Note;

/// Who starts, and where it begins to look for others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Start {
    /// We.
    pub card: Card,
    /// This life of ours: above all earlier ones.
    pub incarnation: u64,
    /// Where others may be. Our own address may be among them. Those past [`BOOTSTRAP_MAX`] are left out.
    pub bootstrap: Vec<Addr>,
    /// In simulated runs: the members that all share. Empty otherwise.
    pub shared: Arc<Frozen>,
}

/// Bootstrap addresses that are used.
pub const BOOTSTRAP_MAX: usize = 64;
/// The shortest period: a configured zero must not keep a node busy for ever.
pub const PERIOD_LEAST: Duration = Duration::from_millis(1);
/// van Renesse: who failed is forgotten after `T_cleanup` = 2·`T_fail`. A counter that reached us reaches all within
/// `T_fail`, and is believed there for another one.
const CLEANUP_FACTOR: u64 = 2;

/// What was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Bytes that are no packet of the baselines, or a member that cannot be.
    pub malformed: u64,
    /// Packets of another engine.
    pub foreign: u64,
    /// Heartbeats in another's name.
    pub forged: u64,
    /// Members that found no room in the table.
    pub crowded: u64,
    /// Somebody knows a later life of ours than this one. Until it is forgotten there, we are not heard.
    pub ghosts: u64,
    /// All-to-all: who asked for introductions beyond the bound of a period, and addresses beyond the bound of places.
    pub unanswered: u64,
}

impl Counters {
    fn note(&mut self, note: Note) {
        match note {
            Note::Malformed => self.malformed += 1,
            Note::Crowded => self.crowded += 1,
            Note::Ghost => self.ghosts += 1,
            Note::Old | Note::Grown | Note::Joined | Note::Left => {}
        }
    }
}
