//! What is told and asked among all members of a zone.

use serde::{Deserialize, Serialize};

/// Names that begin like this are the daemon's own.
pub const RESERVED: &str = "phalanx.";
/// How long answers are waited for unless somebody says otherwise, in milliseconds.
pub const TIMEOUT_MS: u64 = 2000;

/// Something to tell all members.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Tale {
    /// What it is called.
    pub name: String,
    /// What is said.
    #[serde(default)]
    pub payload: String,
}

/// Something to ask all members.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Question {
    /// What it is called.
    pub name: String,
    /// What is asked.
    #[serde(default)]
    pub payload: String,
    /// Names of the members that shall answer; all when there are none.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub only: Vec<String>,
    /// How long answers are waited for, in milliseconds.
    #[serde(default = "timeout_ms")]
    pub timeout_ms: u64,
}

const fn timeout_ms() -> u64 {
    TIMEOUT_MS
}

/// A member heard the question, or answers it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Answer {
    /// The member.
    pub from: String,
    /// The answer; absent when it has only heard the question.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub payload: Option<String>,
}
