//! Other data centres, as one node knows them.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a node knows of the federation that its cluster is part of.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Federation {
    /// Our own data centre; nothing where the cluster is in no federation.
    pub name: Option<String>,
    /// This node speaks for it.
    pub speaks: bool,
    /// The others, by name.
    pub centres: Vec<Centre>,
}

/// How a data centre is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "lowercase")]
pub enum Reach {
    /// It is configured, and was never heard.
    Unheard,
    /// It is heard, and nothing says that it does not hear us.
    Well,
    /// It is heard, and does not hear us.
    Deaf,
    /// Nothing new came for too long: the link is down, or it is. What it said last is kept.
    Silent,
}

impl Reach {
    /// As it is written.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unheard => "unheard",
            Self::Well => "well",
            Self::Deaf => "deaf",
            Self::Silent => "silent",
        }
    }
}

/// A data centre as it was last heard.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Centre {
    /// What it is called.
    pub name: String,
    /// How it is reached.
    pub reach: Reach,
    /// How long ago it was last heard; nothing when it never was.
    pub age_ms: Option<u64>,
    /// How many members it has.
    pub members: u32,
    /// How often each service is offered there.
    pub services: BTreeMap<String, u32>,
    /// Services that it does not name: they are too many.
    pub more: u32,
}
