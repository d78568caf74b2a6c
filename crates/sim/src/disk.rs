//! A node's virtual disk: what survives its crashes, and how writes go wrong.

use phalanx_core::{Duration, Rng};
use std::collections::BTreeMap;

/// What a node wrote and kept, by key.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Disk(BTreeMap<u64, Vec<u8>>);

impl Disk {
    /// Of a node that never wrote.
    pub(crate) const EMPTY: &Self = &Self(BTreeMap::new());

    /// What was last written under `key`.
    #[must_use]
    pub fn read(&self, key: u64) -> Option<&[u8]> {
        self.0.get(&key).map(Vec::as_slice)
    }

    /// Everything, by key.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[u8])> {
        self.0.iter().map(|(&k, v)| (k, v.as_slice()))
    }

    pub(crate) fn write(&mut self, key: u64, bytes: Vec<u8>) {
        self.0.insert(key, bytes);
    }
}

/// How a node's disk misbehaves. Each chance is taken for each write, in this order.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct DiskFault {
    /// Added to the time of each write.
    pub delay: Duration,
    /// Part of the writes that fail: answered with `ok = false`, nothing kept.
    pub fail: f64,
    /// Part of the writes that are lost: neither kept nor answered.
    pub lose: f64,
    /// Part of the writes that the disk lies about: answered with `ok = true`, nothing kept.
    pub forget: f64,
}

/// How one write will end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    Kept,
    Failed,
    Lost,
    Forgotten,
}

impl DiskFault {
    pub(crate) fn outcome(&self, rng: &mut Rng) -> Outcome {
        if rng.chance(self.fail) {
            Outcome::Failed
        } else if rng.chance(self.lose) {
            Outcome::Lost
        } else if rng.chance(self.forget) {
            Outcome::Forgotten
        } else {
            Outcome::Kept
        }
    }
}

/// A write under way.
pub(crate) struct Write {
    pub(crate) token: u64,
    pub(crate) key: u64,
    pub(crate) bytes: Vec<u8>,
    pub(crate) outcome: Outcome,
    /// The start of the process that asked: a later one is not answered.
    pub(crate) boot: u32,
    /// The start of the host: a crash of the host loses what was not on the disk.
    pub(crate) host: u16,
}
