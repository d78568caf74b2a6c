//! What is told between zones, and from heralds to the members of theirs.

use crate::manager::atlas::{PARTS, Record};
use serde::{Deserialize, Serialize};

/// Sums in a packet that may be lost.
const LIGHT: usize = 6;

/// What one herald, or member, tells another.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Tidings {
    /// The zone of who speaks; none at a supervisor.
    pub zone: String,
    /// It is a herald.
    pub herald: bool,
    /// What it says.
    pub what: What,
}

/// What is told.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub enum What {
    /// This is what I have.
    Have(Vec<Sum>),
    /// Of this zone I have something else: these are its parts here.
    Parts(String, [u64; PARTS]),
    /// Nodes.
    Nodes {
        /// What is known of them.
        records: Vec<Record>,
        /// Of these parts of a zone nobody else is there, as far as I know; a bit each.
        all: Option<(String, u16)>,
    },
}

/// A zone, in short.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Sum {
    /// Its name.
    pub zone: String,
    /// Of all who are there.
    pub sum: u64,
    /// The last beat of its heralds.
    pub beat: u64,
}

impl Tidings {
    /// It may be lost.
    #[must_use]
    pub const fn is_light(&self) -> bool {
        match &self.what {
            What::Have(sums) => sums.len() <= LIGHT,
            What::Parts(..) => true,
            What::Nodes { .. } => false,
        }
    }
}
