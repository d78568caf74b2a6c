//! The words of attribute replication: its bounds, its configuration, and what it counts.

use crate::zone::pace::Paces;
use phalanx_core::Duration;
use phalanx_wire::Malformed;
pub use phalanx_wire::attribute::{ENTRIES_MAX, KEY_MAX, MAP_MAX, VALUE_MAX, VERSION_MAX};

/// The most keys of a map that have a value.
pub const KEYS_MAX: usize = 256;
/// The most death certificates of a map; past them the older half is forgotten.
pub const CERTIFICATES_MAX: usize = ENTRIES_MAX - KEYS_MAX;
/// The most maps of members outside the view that we remember for one source; past them the oldest half or more of
/// them is forgotten.
pub const NOTES_MAX: usize = 4096;

/// How attributes are replicated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Config {
    /// When digests leave.
    pub paces: Paces,
    /// How long a neighbour may take to answer a request before others are asked. Not for loss, which the link
    /// repairs, but for neighbours that promise and do not deliver.
    pub patience: Duration,
}

/// Why something that came was not taken.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Dropped {
    /// A message shorter than it says.
    Truncated,
    /// A message of a layout or kind that this build does not know.
    Unknown,
    /// A message over a cap, or one that contradicts itself.
    Malformed,
    /// An update or reply of a node that is no neighbour (any more).
    NotNeighbour,
    /// About a former life of a member, or data about nobody in the view.
    Stale,
    /// Data that would leave a hole behind what we have.
    Gap,
    /// Data that would make a map larger than maps are.
    OverCap,
    /// Something about our own map that we never wrote.
    Lie,
    /// A note about a member outside the view that had to make room.
    Crowded,
}

impl Dropped {
    /// All reasons.
    pub const ALL: [Self; 9] = [
        Self::Truncated,
        Self::Unknown,
        Self::Malformed,
        Self::NotNeighbour,
        Self::Stale,
        Self::Gap,
        Self::OverCap,
        Self::Lie,
        Self::Crowded,
    ];
}

impl From<Malformed> for Dropped {
    fn from(m: Malformed) -> Self {
        match m {
            Malformed::Truncated => Self::Truncated,
            Malformed::Version | Malformed::Unknown => Self::Unknown,
            Malformed::Inconsistent | Malformed::Checksum => Self::Malformed,
        }
    }
}

/// What replication has done.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Counters {
    /// Digests sent, one for each neighbour and message.
    pub updates: u64,
    /// Requests sent to a single neighbour.
    pub requests: u64,
    /// Requests sent to all neighbours (`push`), one for each neighbour.
    pub pushes: u64,
    /// Replies sent.
    pub replies: u64,
    /// Entries that came in replies.
    pub entries: u64,
    /// Those among them that we had already: AT-2 wants them few.
    pub duplicates: u64,
    /// Times a neighbour did not answer within our patience.
    pub silences: u64,
    dropped: [u64; Dropped::ALL.len()],
}

impl Counters {
    /// All zero: what a node has counted that never saw an attribute.
    pub(super) const NONE: &'static Self = &Self {
        updates: 0,
        requests: 0,
        pushes: 0,
        replies: 0,
        entries: 0,
        duplicates: 0,
        silences: 0,
        dropped: [0; Dropped::ALL.len()],
    };

    /// How much was dropped for that reason.
    #[must_use]
    pub fn dropped(&self, why: Dropped) -> u64 {
        self.dropped[why as usize]
    }

    /// Reasons with their counts.
    pub fn drops(&self) -> impl Iterator<Item = (Dropped, u64)> + '_ {
        Dropped::ALL.into_iter().map(|why| (why, self.dropped(why)))
    }

    pub(super) fn drop(&mut self, why: Dropped) {
        self.drop_many(why, 1);
    }

    pub(super) fn drop_many(&mut self, why: Dropped, count: usize) {
        self.dropped[why as usize] += count as u64;
    }
}
