//! FI-5: what was injected, and what it did to the layers above (004 §6.3, Fig. 5).
//!
//! The injector counts its own side. The layers count retransmissions, duplicates and alarms, and add them up
//! in [`Effects`], which normalises them to the number of faults as Fig. 5 does.

use crate::rule::KindName;
use serde::{Serialize, Serializer};
use std::ops::AddAssign;

/// What one rule, or all rules of one kind, have done.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize)]
pub struct Tally {
    /// Messages or calls that passed the filter while the rule was awake.
    pub considered: u64,
    /// Faults that happened.
    pub injected: u64,
    /// Faults that fell due and had nothing left to act on: the call was refused already, the packet is empty,
    /// or a message of that peer is being swapped.
    pub missed: u64,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.considered += other.considered;
        self.injected += other.injected;
        self.missed += other.missed;
    }
}

/// What an injector has done since it was made, healed rules included.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize)]
pub struct Counters {
    /// By kind, in the order of Table 2; reports name each.
    #[serde(serialize_with = "by_name")]
    pub(crate) kinds: [Tally; KindName::ALL.len()],
    /// Messages released before their time because [`MAX_HELD`](crate::MAX_HELD) were held.
    pub released_early: u64,
    /// Messages held for reordering that no other of their peer followed within [`PATIENCE`](crate::PATIENCE):
    /// delayed, but not reordered.
    pub not_swapped: u64,
    /// Injected copies that nobody fetched and that made room for newer ones.
    pub copies_lost: u64,
}

impl Counters {
    pub(crate) const NONE: Self = Self {
        kinds: [Tally { considered: 0, injected: 0, missed: 0 }; KindName::ALL.len()],
        released_early: 0,
        not_swapped: 0,
        copies_lost: 0,
    };

    /// The tally of one kind.
    #[must_use]
    pub fn of(&self, kind: KindName) -> Tally {
        self.kinds[kind as usize]
    }

    /// All kinds with their tallies, in the order of Table 2.
    pub fn by_kind(&self) -> impl Iterator<Item = (KindName, Tally)> + '_ {
        KindName::ALL.into_iter().map(|k| (k, self.of(k)))
    }

    /// Faults of all kinds.
    #[must_use]
    pub fn injected(&self) -> u64 {
        self.kinds.iter().map(|t| t.injected).sum()
    }
}

fn by_name<S: Serializer>(kinds: &[Tally; KindName::ALL.len()], s: S) -> Result<S::Ok, S::Error> {
    s.collect_map(KindName::ALL.into_iter().map(|k| k.name()).zip(kinds))
}

/// The consequences of faults, added up over nodes and layers (Fig. 5).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize)]
pub struct Effects {
    /// Faults injected: [`Counters::injected`] of every injector of the run.
    pub faults: u64,
    /// (R) Messages that were sent again.
    pub retransmissions: u64,
    /// (D) Messages that arrived more than once and were discarded.
    pub duplicates: u64,
    /// (A) Nodes suspected that were alive.
    pub false_alarms: u64,
    /// (S) Times a manager group diagnosed itself.
    pub self_diagnoses: u64,
    /// Packets refused by a checksum, a seal or a signature; not in the figure, but where modified ones end.
    pub rejected: u64,
}

impl Effects {
    /// Each consequence for each injected fault, named as in reports; all zero when nothing was injected.
    #[must_use]
    pub fn per_fault(&self) -> [(&'static str, f64); 5] {
        let rate = |n: u64| if self.faults == 0 { 0.0 } else { n as f64 / self.faults as f64 };
        [
            ("retransmissions", rate(self.retransmissions)),
            ("duplicates", rate(self.duplicates)),
            ("false_alarms", rate(self.false_alarms)),
            ("self_diagnoses", rate(self.self_diagnoses)),
            ("rejected", rate(self.rejected)),
        ]
    }
}

impl AddAssign for Effects {
    fn add_assign(&mut self, other: Self) {
        self.faults += other.faults;
        self.retransmissions += other.retransmissions;
        self.duplicates += other.duplicates;
        self.false_alarms += other.false_alarms;
        self.self_diagnoses += other.self_diagnoses;
        self.rejected += other.rejected;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// FI-5: consequences of many nodes add up and are normalised to the faults of all of them.
    #[test]
    fn effects_are_counted_for_each_fault() {
        let node = Effects { faults: 4, retransmissions: 6, duplicates: 2, false_alarms: 1, ..Effects::default() };
        let mut all = Effects::default();
        assert_eq!(all.per_fault()[0], ("retransmissions", 0.0));
        all += node;
        all += Effects { self_diagnoses: 2, rejected: 8, ..node };
        assert_eq!(all.per_fault().map(|(_, rate)| rate), [12.0 / 8.0, 4.0 / 8.0, 2.0 / 8.0, 2.0 / 8.0, 1.0]);
    }

    #[test]
    fn every_kind_has_a_tally_of_its_own() {
        let mut counters = Counters::NONE;
        assert_eq!(counters, Counters::default());
        for (n, kind) in KindName::ALL.into_iter().enumerate() {
            counters.kinds[kind as usize] += Tally { considered: 9, injected: n as u64, missed: 0 };
        }
        let injected: Vec<u64> = counters.by_kind().map(|(_, t)| t.injected).collect();
        assert_eq!(injected, [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(counters.injected(), 21);
        let report = serde_json::to_value(counters).unwrap();
        assert_eq!(report["kinds"]["operation"]["injected"], 6);
    }
}
