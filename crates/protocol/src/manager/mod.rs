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

pub mod state;
pub mod words;
