//! MPI programs start here: what their libraries ask whoever started them.
//!
//! Each rank has a socket, over which it asks in the words of PMI-1. The ranks of a node are served by its shepherd alone; only what they
//! put for others, and their barriers, go to other nodes: one value for each node, however many ranks it has.
//!
//! ```text
//!   rank ─┐ bytes                  Say, HangUp ─▶ ranks
//!   rank ─┼──────▶ Pmi ──▶ Outputs Gather ─▶ all shepherds of the job ─▶ on_gathered
//!   rank ─┘                        Abort, Ask ─▶ the manager
//! ```
//!
//! | file | idea |
//! |---|---|
//! | `wire` | the lines |
//! | `kvs` | what ranks tell each other |
//! | `meeting` | a barrier of all, and what travels with it |
//! | `mapping` | who shares a node |
//! | `server` | who asks what, and is answered |
//!
//! Another language (PMIx) goes beside this folder, not into it: its ranks get other sockets and other words, and need of the shepherd what
//! is needed here: to be told of bytes and deaths, one gather over the job's nodes, and a way to the manager.

mod kvs;
mod mapping;
mod meeting;
mod server;
mod wire;

pub use meeting::Met;
pub use server::{Answer, Errand, Output, Pmi, Setting};
pub use wire::Spawn;
