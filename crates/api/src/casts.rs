//! What is cast to all members, or to some.

use serde::{Deserialize, Serialize};

/// What became of a cast.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Reached {
    /// How many members have it, this one included when it is among them.
    pub reached: usize,
    /// Those who died before they had it.
    #[serde(default)]
    pub missed: Vec<String>,
    /// How many bytes it has.
    pub bytes: u64,
    /// From its first byte until all had its last one, in microseconds.
    pub us: u64,
}

/// What a piece of a cast is: a line of JSON in front of its bytes.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Heading {
    /// Who cast it.
    pub from: String,
    /// The how manieth cast of that member it belongs to.
    pub stream: u64,
    /// Where in the cast it begins.
    pub offset: u64,
    /// Nothing comes after it.
    pub last: bool,
    /// What the cast is called.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// It is for everybody; otherwise for some.
    pub whole: bool,
    /// How many bytes follow this line.
    pub bytes: u64,
    /// Pieces before this one that were lost because the reader was too slow.
    #[serde(default, skip_serializing_if = "is_none")]
    pub lost: u64,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands references")]
const fn is_none(lost: &u64) -> bool {
    *lost == 0
}

/// A place in the tree of casts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Seat {
    /// Its number.
    pub seat: u32,
    /// Who sits there.
    pub name: String,
    /// The seat above it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<u32>,
}
