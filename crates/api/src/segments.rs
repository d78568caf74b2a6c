//! Segments of the network, as one node sees them.

use serde::{Deserialize, Serialize};

/// A multicast group that a node takes part in.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Level {
    /// Its number: 0 is the segment itself, each higher one is among the leaders of the one below.
    pub level: u8,
    /// How far its packets go: routers that may be between its members, and one.
    pub ttl: u8,
    /// Who leads it; nobody while it has none.
    pub leader: Option<String>,
    /// Who takes over when the leader is gone.
    pub backup: Option<String>,
    /// Who is heard there, the node itself included; by name.
    pub members: Vec<String>,
}
