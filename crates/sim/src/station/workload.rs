//! What stations do all day, as a scenario writes it.
//!
//! ```toml
//! kind = "reliable"
//! interval_ms = 5
//! largest = 20_000
//! ```

use phalanx_core::{Duration, Rng};
use serde::Deserialize;
use thiserror::Error;

/// What every station does until it is told to rest.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Workload {
    /// CL: datagrams to neighbours.
    Heartbeat(Heartbeat),
    /// RCL: reliable messages between random pairs.
    Reliable(Reliable),
    /// MML: management messages of all three kinds between random pairs.
    Managed(Managed),
    /// MM-3: atomic multicast in groups of three.
    Order(Ordered),
    /// All of them at once on one link.
    Mixed(Mixed),
}

/// Datagrams at a steady pace.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Heartbeat {
    /// Between two beats of a node.
    pub interval_ms: f64,
    /// Neighbours that each beat goes to: the next ones by number.
    pub neighbours: u32,
    /// Bytes of a beat, at least 8.
    pub bytes: usize,
    /// CL-2: beats are sent as buffers with a ticket, whose status is read at the next beat.
    pub tickets: bool,
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self { interval_ms: 100.0, neighbours: 10, bytes: 64, tickets: false }
    }
}

/// Reliable messages of mixed sizes.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Reliable {
    /// Between two messages of a node, on average.
    pub interval_ms: f64,
    /// The largest message. Most are small, some empty, a few as large as this.
    pub largest: usize,
    /// Part of the messages that are immutable snapshots.
    pub snapshots: f64,
    /// Part of the messages after which the sender stops taking in what its peer sends, for a while.
    pub hold: f64,
    /// For how long.
    pub hold_ms: f64,
    /// Part of the messages after which both sides close and the sender forgets the peer.
    pub close: f64,
}

impl Default for Reliable {
    fn default() -> Self {
        Self { interval_ms: 20.0, largest: 100_000, snapshots: 0.1, hold: 0.01, hold_ms: 100.0, close: 0.002 }
    }
}

/// Management messages, each of a kind drawn at random.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Managed {
    /// Between two messages of a node, on average.
    pub interval_ms: f64,
    /// Messages at once, at most: bursts are what fills windows.
    pub burst: u32,
    /// The largest message.
    pub largest: usize,
}

impl Default for Managed {
    fn default() -> Self {
        Self { interval_ms: 20.0, burst: 4, largest: 300 }
    }
}

/// Messages to a group of three: nodes 0 to 2, 3 to 5, and so on. Nodes of an incomplete group only listen.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Ordered {
    /// Between two messages of a node, on average.
    pub interval_ms: f64,
    /// Deliveries after which a member makes its state safe.
    pub save_every: u32,
}

impl Default for Ordered {
    fn default() -> Self {
        Self { interval_ms: 50.0, save_every: 16 }
    }
}

/// Parts that share a link. One that is left out takes no part.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mixed {
    /// Datagrams.
    pub heartbeat: Option<Heartbeat>,
    /// Reliable messages.
    pub reliable: Option<Reliable>,
    /// Management messages.
    pub managed: Option<Managed>,
    /// Atomic multicast.
    pub order: Option<Ordered>,
}

impl Default for Mixed {
    /// Everything, at the usual pace.
    fn default() -> Self {
        Self {
            heartbeat: Some(Heartbeat { neighbours: 3, ..Heartbeat::default() }),
            reliable: Some(Reliable::default()),
            managed: Some(Managed::default()),
            order: Some(Ordered::default()),
        }
    }
}

/// Why a workload cannot be carried out.
#[derive(Clone, PartialEq, Debug, Error)]
#[non_exhaustive]
pub enum WorkloadError {
    /// A pace that is none.
    #[error("{field} = {value} is no pace: write milliseconds above zero")]
    Pace {
        /// The field.
        field: &'static str,
        /// What it holds.
        value: f64,
    },
    /// A probability outside of 0 to 1.
    #[error("{field} = {value} is not a probability: write a number from 0 to 1")]
    Probability {
        /// The field.
        field: &'static str,
        /// What it holds.
        value: f64,
    },
    /// A length that no message has.
    #[error("{field} = {value} bytes: write {least} to {most}")]
    Length {
        /// The field.
        field: &'static str,
        /// What it holds.
        value: usize,
        /// The least.
        least: usize,
        /// The most.
        most: usize,
    },
}

/// The longest beat and management message: what fits into the shortest datagram with all headers.
pub const MANAGED_MAX: usize = 320;
/// The longest beat.
pub const BEAT_MAX: usize = 400;
/// The longest reliable message.
pub const RELIABLE_MAX: usize = 1 << 20;

impl Workload {
    /// All workloads are carried out as a mix of four parts.
    pub(super) fn parts(&self) -> Mixed {
        let none = Mixed { heartbeat: None, reliable: None, managed: None, order: None };
        match *self {
            Self::Heartbeat(h) => Mixed { heartbeat: Some(h), ..none },
            Self::Reliable(r) => Mixed { reliable: Some(r), ..none },
            Self::Managed(m) => Mixed { managed: Some(m), ..none },
            Self::Order(o) => Mixed { order: Some(o), ..none },
            Self::Mixed(mixed) => mixed,
        }
    }

    /// Checks what the types leave open.
    ///
    /// # Errors
    /// The first field that makes no sense, and what it takes.
    pub fn check(&self) -> Result<(), WorkloadError> {
        let pace = |field, value: f64| {
            let ok = value > 0.0 && value.is_finite();
            ok.then_some(()).ok_or(WorkloadError::Pace { field, value })
        };
        let chance = |field, value| {
            (0.0..=1.0).contains(&value).then_some(()).ok_or(WorkloadError::Probability { field, value })
        };
        let length = |field, value: usize, least: usize, most: usize| {
            let ok = (least..=most).contains(&value);
            ok.then_some(()).ok_or(WorkloadError::Length { field, value, least, most })
        };
        let Mixed { heartbeat, reliable, managed, order } = self.parts();
        if let Some(h) = heartbeat {
            pace("interval_ms", h.interval_ms)?;
            length("bytes", h.bytes, 8, BEAT_MAX)?;
        }
        if let Some(r) = reliable {
            pace("interval_ms", r.interval_ms)?;
            pace("hold_ms", r.hold_ms)?;
            length("largest", r.largest, 0, RELIABLE_MAX)?;
            for (field, value) in [("snapshots", r.snapshots), ("hold", r.hold), ("close", r.close)] {
                chance(field, value)?;
            }
        }
        if let Some(m) = managed {
            pace("interval_ms", m.interval_ms)?;
            length("largest", m.largest, 8, MANAGED_MAX)?;
        }
        order.map_or(Ok(()), |o| pace("interval_ms", o.interval_ms))
    }
}

impl Reliable {
    /// The length of the message with that seed: the checker computes it too.
    pub(super) fn length(&self, seed: u64) -> usize {
        let mut rng = Rng::new(seed, 0);
        let most = match rng.below(20) {
            0 => 0,
            1..=9 => 64,
            10..=15 => 1_500,
            16..=18 => 16_000,
            _ => self.largest,
        };
        rng.below(most.min(self.largest) as u64 + 1) as usize
    }

    /// Whether the message with that seed is a snapshot.
    pub(super) fn is_snapshot(&self, seed: u64) -> bool {
        Rng::new(seed, 1).chance(self.snapshots)
    }
}

impl Managed {
    /// The length of the message with that seed.
    pub(super) fn length(&self, seed: u64) -> usize {
        8 + Rng::new(seed, 0).below(self.largest as u64 - 7) as usize
    }
}

/// Milliseconds as a scenario writes them.
pub(super) fn millis(ms: f64) -> Duration {
    Duration::from_secs_f64(ms / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_workload_is_written_by_kind_and_says_only_what_differs() {
        let read = |text: &str| toml::from_str::<Workload>(text);
        let reliable = Reliable { largest: 9, ..Reliable::default() };
        assert_eq!(read("kind = 'reliable'\nlargest = 9").unwrap(), Workload::Reliable(reliable));
        assert_eq!(read("kind = 'mixed'").unwrap(), Workload::Mixed(Mixed::default()));
        let beats = Heartbeat { tickets: true, ..Heartbeat::default() };
        let mixed = Mixed { heartbeat: Some(beats), ..Mixed::default() };
        assert_eq!(read("kind = 'mixed'\nheartbeat = { tickets = true }").unwrap(), Workload::Mixed(mixed));
        assert!(read("kind = 'order'\nlargest = 9").is_err(), "unknown fields are mistakes");
        assert!(read("kind = 'gossip'").is_err());
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let wrong = Workload::Reliable(Reliable { close: 1.5, ..Reliable::default() });
        assert_eq!(wrong.check(), Err(WorkloadError::Probability { field: "close", value: 1.5 }));
        let wrong = Workload::Heartbeat(Heartbeat { interval_ms: 0.0, ..Heartbeat::default() });
        assert_eq!(wrong.check(), Err(WorkloadError::Pace { field: "interval_ms", value: 0.0 }));
        let wrong = Workload::Managed(Managed { largest: 5_000, ..Managed::default() });
        assert!(matches!(wrong.check(), Err(WorkloadError::Length { value: 5_000, .. })));
        assert_eq!(Workload::Mixed(Mixed::default()).check(), Ok(()));
    }

    #[test]
    fn reliable_messages_are_empty_small_and_large() {
        let work = Reliable::default();
        let lengths: Vec<_> = (0..1_000).map(|n| work.length(phalanx_core::rng::mix(n))).collect();
        assert!(lengths.contains(&0) && lengths.iter().any(|&l| l > 50_000));
        assert!(lengths.iter().all(|&l| l <= work.largest));
    }
}
