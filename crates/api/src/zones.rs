//! Zones, and who is in them.

use crate::Member;
use serde::{Deserialize, Serialize};

/// A zone as the census knows it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Zone {
    /// What it is called; empty where there is no hierarchy.
    pub name: String,
    /// How many members it has.
    pub members: u64,
    /// How many of them speak for it. With none, the number of members is the last that was heard.
    pub delegates: u64,
    /// True for the zone of the node that was asked.
    #[serde(default)]
    pub mine: bool,
}

/// All zones.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Census {
    /// By name.
    pub zones: Vec<Zone>,
    /// Members of all zones together.
    pub members: u64,
    /// Supervisors, which are in no zone.
    pub supervisors: u64,
    /// Who counted: a supervisor, or the node that was asked when there is none.
    pub source: String,
    /// The list goes on in another part.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub more: bool,
}

/// The members of a zone.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ZoneMembers {
    /// The zone.
    pub name: String,
    /// Who is there.
    pub members: Vec<Member>,
    /// The list goes on in another part.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub more: bool,
}
