//! What operators look at and change: keys, faults, round trips.

use serde::{Deserialize, Serialize};

/// The cluster's keys, as one node has them. The keys themselves are not told.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeyRing {
    /// Grows with each change.
    pub epoch: u64,
    /// The key that seals first.
    pub keys: Vec<KeyInfo>,
}

/// A key of the cluster.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct KeyInfo {
    /// Its number.
    pub id: u8,
    /// The beginning of its hash: equal keys have equal ones.
    pub fingerprint: String,
    /// True for the one that seals; all others open only.
    pub seals: bool,
}

/// A change of the cluster's keys.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "change", rename_all = "lowercase")]
pub enum KeyChange {
    /// Another key, that opens and does not seal yet.
    Add {
        /// 64 hexadecimal digits; drawn when it is absent.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        key: Option<String>,
    },
    /// This key seals from now on.
    Use {
        /// Its number.
        id: u8,
    },
    /// This key is gone.
    Remove {
        /// Its number.
        id: u8,
    },
}

/// A fault that is injected.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Fault {
    /// Its number.
    pub id: u32,
    /// What it does, as TOML.
    pub rule: String,
    /// How often it has hit.
    pub hits: u64,
}

/// How far away a member is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RoundTrip {
    /// The member.
    pub name: String,
    /// Milliseconds there and back; absent when it did not answer.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ms: Option<f64>,
}
