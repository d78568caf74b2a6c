//! The manager: who runs which job where, decided by three active replicas and carried out by an agent on each node.
//!
//! CM-1 to CM-5, 004 §2, §6.3.
//!
//! ```text
//!   people ──▶ agent ──Ask──▶ replica ─┐                        ┌─▶ State ──▶ Command, signed ──▶ agent: two of three say the same
//!   shepherds ▶ agent ─Report▶ replica ─┼─▶ Order: one sequence ─┼─▶ State ──▶ Command, signed ──▶        │
//!   zone ──────────────Fact──▶ replica ─┘                        └─▶ State ──▶ Command, signed ──▶        ▼
//!                                                                                                     shepherd
//! ```
//!
//! | file | idea |
//! |---|---|
//! | [`words`] | what is said about jobs, and its bytes |
//! | [`state`] | nodes, slots, queue and jobs: one deterministic machine, the same at all replicas |
//! | [`core`] | the state, and what agents have not carried out yet: all that replicas have in common |
//! | [`replica`] | what goes into the order, and what is said to agents when it comes out |
//! | [`agent`] | says what happens on a node, carries out what most replicas say alike, holds the lease |
//! | [`sheaf`] | words for many agents, handed on by them |
//! | [`gather`] | reports of many agents, on the same way up |
//! | [`group`] | who the replicas are, and how everybody comes to believe it |
//! | [`found`] | how the first group comes about |
//! | [`atlas`] | which nodes there are, in which zone, and which word about a node is the newest |
//! | [`herald`] | who tells other zones of it, and the own one of others |
//! | [`regroup`] | taking the state of others |
//! | [`diagnose`] | replicas compare what they have |
//! | [`steward`] | all of it as one machine: what each node runs |
//! | [`wire`] | what stewards say to each other |
//! | `flock` | the shepherds of a node without processes, for tests and simulators |

pub mod agent;
pub mod atlas;
pub mod core;
pub mod diagnose;
#[cfg(any(test, feature = "harm"))]
pub mod flock;
pub mod found;
pub mod gather;
pub mod group;
pub mod herald;
pub mod regroup;
pub mod replica;
pub mod sheaf;
pub mod state;
pub mod steward;
pub mod wire;
pub mod words;

#[cfg(test)]
mod net;
#[cfg(test)]
mod tests;
