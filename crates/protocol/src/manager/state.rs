//! Nodes, slots, queue and jobs: what the replicas agree on.
//!
//! CM-4, CM-5: deterministic. Everything it knows comes as an [`Entry`] of the one order; what is to be done comes out as [`Decision`]s, the
//! same at all replicas.

use super::words::{Answer, Ask, At, Command, Key, Report};
use serde::{Deserialize, Serialize};

/// A node that can run ranks.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct NodeInfo {
    /// Who it is.
    pub key: Key,
    /// Its name.
    pub name: String,
    /// Where its agent is.
    pub at: At,
    /// Its zone.
    pub zone: String,
    /// Which start of its agent.
    pub incarnation: u64,
    /// Ranks that it takes.
    pub slots: u32,
}

/// Something that has happened.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Fact {
    /// Time has passed, and somebody waits for it.
    Tick,
    /// The zone says that a node is there, or that something about it has changed.
    Seen(NodeInfo),
    /// The zone says that this start of a node's agent is gone.
    Lost {
        /// Who.
        node: Key,
        /// Which start.
        incarnation: u64,
    },
    /// Somebody at a node asks for something. `number` grows with each question of that start of the agent: one that comes twice counts once.
    Asked {
        /// At which node.
        from: Key,
        /// Which question.
        number: u64,
        /// What.
        ask: Ask,
    },
    /// An agent reports something; `number` as for `Asked`.
    Reported {
        /// Who.
        from: Key,
        /// Which report.
        number: u64,
        /// What.
        report: Report,
    },
}

/// A fact in its place in the order.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Entry {
    /// When, by the clock of the replica that put it there, in milliseconds since 1970. The state's own time is the largest so far.
    pub at_ms: u64,
    /// What.
    pub fact: Fact,
}

/// What is to be done.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Decision {
    /// The agents of these nodes are to do this.
    Command {
        /// Which nodes, ascending.
        to: Vec<Key>,
        /// What.
        command: Command,
    },
    /// Who asked is told what came of it.
    Answer {
        /// At which node.
        to: Key,
        /// Which question.
        number: u64,
        /// What.
        answer: Answer,
    },
    /// The group of replicas is to change: `from` gives its seat to `to`.
    Move {
        /// Who has it.
        from: Key,
        /// Who gets it.
        to: Key,
    },
}
