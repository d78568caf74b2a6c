//! What the link dropped, by reason. Peers cannot cause errors; this is where their mistakes show.

use super::{mml, rcl};
use phalanx_wire::Malformed;

/// Why a packet was dropped.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Dropped {
    /// Shorter than its headers.
    Truncated,
    /// Of a layout, kind or layer that this build does not know.
    Unknown,
    /// Sealed with a key that is not in the ring.
    UnknownKey,
    /// Its tag does not fit: wrong key, flipped bit, cut off, or forged.
    BadSeal,
    /// Its number was seen before, or is older than the window.
    Replayed,
    /// Our own packet came back.
    Reflected,
    /// From a former start of its sender, or meant for a former start of ours.
    OldBoot,
    /// For a session that we do not hold (any more).
    UnknownSession,
    /// From a group member that has not proved yet that it lives now.
    Unverified,
    /// A hello that answers a nonce we did not send, or no longer wait for.
    StaleHello,
    /// The seal is right and the contents make no sense.
    Malformed,
    /// A table is full, or more hellos came than we are ready to look at.
    Overload,
}

impl Dropped {
    /// All reasons.
    pub const ALL: [Self; 12] = [
        Self::Truncated,
        Self::Unknown,
        Self::UnknownKey,
        Self::BadSeal,
        Self::Replayed,
        Self::Reflected,
        Self::OldBoot,
        Self::UnknownSession,
        Self::Unverified,
        Self::StaleHello,
        Self::Malformed,
        Self::Overload,
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

/// Everything a link counts; first what each packet counts.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
#[repr(C)]
pub struct Counters {
    /// Packets opened and acted upon.
    pub accepted: u64,
    /// Packets sealed and sent.
    pub sent: u64,
    /// Handshakes completed.
    pub sessions: u64,
    /// What reliable connections did.
    pub rcl: rcl::Sums,
    /// What management channels did.
    pub mml: mml::Sums,
    dropped: [u64; Dropped::ALL.len()],
}

impl Counters {
    /// How many packets were dropped for that reason.
    #[must_use]
    pub fn dropped(&self, why: Dropped) -> u64 {
        self.dropped[why as usize]
    }

    /// Reasons with their counts.
    pub fn drops(&self) -> impl Iterator<Item = (Dropped, u64)> + '_ {
        Dropped::ALL.into_iter().map(|why| (why, self.dropped(why)))
    }

    pub(crate) fn drop(&mut self, why: Dropped) {
        self.dropped[why as usize] += 1;
    }
}
