//! Cast: messages that reach everybody around damage, while it is not repaired yet.
//!
//! ST, 001. Nodes of a job or of the cluster sit in a k-ary tree whose levels are closed to rings. A broadcast goes down the tree; a
//! branch whose top is dead is reached by a multicast that walks around it, along whatever neighbour links live.
//!
//! | file | idea |
//! |---|---|
//! | [`tree`] | the k-ary sibling tree: neighbours, computed by everybody alone |
//! | [`seats`] | who sits where in it: the directory that the cluster is itself |
//! | [`route`] | which neighbour is nearest: four rules behind one interface |
//! | [`walk`] | one multicast on its way: its transit list, its way back |
//! | [`spread`] | whom a node sends a broadcast: children, and who is below dead ones |
//! | `window` | messages of a source, once and in order |
//! | `recent` | casts that are under way, and what was made of them |
//! | `source` | what a node knows of somebody who casts |
//! | `pending` | our own casts that not everybody is known to have: the window of a source |
//! | `machine` | a node: what it is told and what it decides |
//! | `hear` | what it makes of messages |
//! | `send` | how it sends on, and around the dead |
//! | `damage` | what leaves again when somebody dies meanwhile |
//! | `status` | receipts and repair: who has come how far, and who lacks what |
//! | [`report`] | the way up: to whom a node reports while some are dead |
//! | `fold` | what several give, as one value |
//! | [`reduce`] | barrier, sum and gather: one result for all who live |

mod damage;
mod fold;
mod hear;
mod machine;
mod pending;
mod recent;
pub mod reduce;
pub mod report;
pub mod route;
pub mod seats;
mod send;
mod source;
pub mod spread;
mod status;
pub mod tree;
pub mod walk;
mod window;

#[cfg(test)]
mod tests;

pub use machine::{CastError, Caster, Config, Counters, Input, Out, Output};
pub use tree::{Id, Tree, TreeError};
