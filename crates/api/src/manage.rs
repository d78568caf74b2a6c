//! What the manager knows: jobs that were started with `phalanx run`, slots of nodes, and the manager's own replicas.

use crate::run::{OnFailure, RankEnd};
use serde::{Deserialize, Serialize};

/// How far a job is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum RunState {
    /// It waits for free slots.
    Queued,
    /// Its nodes look whether they can run it.
    Preparing,
    /// It runs.
    Running,
    /// What is left of it is ended.
    Stopping,
    /// It has ended.
    Over,
}

impl RunState {
    /// As people and JSON write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Preparing => "preparing",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Over => "over",
        }
    }
}

/// A job that the manager knows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Run {
    /// Its number.
    pub number: u64,
    /// What it is called.
    pub name: String,
    /// How far it is.
    pub state: RunState,
    /// Whose it is.
    pub user: u32,
    /// How many ranks it has.
    pub ranks: u32,
    /// Which start of it this is, from 0.
    pub attempt: u32,
    /// What becomes of it when a part of it dies.
    pub on_failure: OnFailure,
    /// Nodes that run it, or ran it last.
    pub nodes: Vec<String>,
    /// The largest status of all ranks, when it is over.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub status: Option<i32>,
    /// Why it waits, or why it ended.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub why: String,
    /// When it was asked for, in milliseconds since 1970.
    pub asked_ms: u64,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub over_ms: Option<u64>,
}

/// A rank of a job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RankInfo {
    /// Which.
    pub rank: u32,
    /// Where it runs, or ran last.
    pub node: String,
    /// How often it was started again alone.
    pub life: u32,
    /// How it ended; none while it runs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub end: Option<RankEnd>,
}

/// Something that happened to a job.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LogLine {
    /// When, in milliseconds since 1970.
    pub at_ms: u64,
    /// What, and why.
    pub text: String,
}

/// A job, its ranks, and what happened to it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RunDetail {
    /// The job.
    #[serde(flatten)]
    pub run: Run,
    /// Its ranks.
    pub all_ranks: Vec<RankInfo>,
    /// What happened to it, in order.
    pub log: Vec<LogLine>,
}

/// A node that runs ranks.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeSlots {
    /// Its name.
    pub node: String,
    /// Ranks that it takes.
    pub slots: u32,
    /// Ranks that it has.
    pub used: u32,
    /// It gets no new ones.
    pub drained: bool,
    /// It is there, and has told the manager what runs on it.
    pub alive: bool,
}

/// A replica of the manager.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Replica {
    /// The node that has it.
    pub node: String,
    /// Where.
    pub addr: String,
    /// Its zone; empty where there are none.
    pub zone: String,
    /// It puts entries into the order.
    pub leads: bool,
    /// It was heard lately.
    pub alive: bool,
}

/// The manager, as this node knows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Managers {
    /// Which composition of the group; 0 when there is none.
    pub epoch: u32,
    /// Its replicas.
    pub replicas: Vec<Replica>,
    /// A majority of them decides.
    pub decides: bool,
    /// What is wrong, and what to do; empty when all is well.
    pub note: String,
}

/// A replica is to move.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ReplicaMove {
    /// The node that has it.
    pub from: String,
    /// The node that gets it.
    pub to: String,
}

/// A signal for all ranks of a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SignalWanted {
    /// Its number.
    pub signal: i32,
}
