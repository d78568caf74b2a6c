//! What goes into the state, and what comes out of it.

use crate::manager::words::{Answer, Ask, At, Command, Key, Report};
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

/// What an agent reports.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Reported {
    /// Who.
    pub from: Key,
    /// Which start of it.
    pub incarnation: u64,
    /// Which report.
    pub number: u64,
    /// What.
    pub report: Report,
}

/// Something that has happened.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum Fact {
    /// Time has passed, and somebody waits for it.
    Tick,
    /// The zone says that a node is there, or that something about it has changed.
    Seen(NodeInfo),
    /// The zone says that this start of a node's agent is gone. Its ranks may still run, until their lease ends.
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
        /// Which start of its agent.
        incarnation: u64,
        /// Which question.
        number: u64,
        /// What.
        ask: Ask,
    },
    /// Agents report something. Reports of one start of an agent have numbers of their own, 1, 2, 3 and so on without a gap, and are heard in
    /// that order whatever the order in which they come: see [`State::heard`](super::State::heard).
    Reported(Vec<Reported>),
    /// A replica found another one wrong: its state, or what it commands.
    Accused {
        /// Who says so.
        by: Key,
        /// Whom.
        whom: Key,
        /// In which composition of the group.
        epoch: u32,
    },
    /// A replica that began without a state has that of the others.
    Arrived {
        /// Who.
        by: Key,
        /// In which composition of the group.
        epoch: u32,
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
        /// Which start of its agent.
        incarnation: u64,
        /// Which question.
        number: u64,
        /// What.
        answer: Answer,
    },
    /// The group of replicas is to change: `from` gives its seat to `to`. Where no other node is left, both are the same: a new replica starts
    /// there, from the state of the others.
    Move {
        /// Who has it.
        from: Key,
        /// Who gets it.
        to: Key,
    },
    /// A group of one is to become a group of three: these two join it.
    Grow {
        /// Who joins, ascending.
        with: [Key; 2],
    },
}
