//! What a run counts: named numbers that scenarios print and put bounds on.
//!
//! All of them follow from the seed. Wall time does not and is no measure: a verdict must not depend on the machine.

use super::engine::Engine;
use super::entry::KINDS;
use super::job::JobTold;
use super::load::Leaders;
use super::told::MembersTold;
use crate::check::{Checker, Verdict};
use crate::member::checks::SharedTally;
use crate::station::{Layer, Note, OrderNote, Station};
use crate::stats::{Drop, Stats};
use phalanx_core::Instant;
use phalanx_fault::{Counters as Injected, KindName};
use phalanx_protocol::link::count::{Counters, Dropped};
use phalanx_protocol::manager::steward::Status;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// The measures of a run, by name.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Measures(Vec<(String, u64)>);

impl Measures {
    /// All of them with their names, in a fixed order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.0.iter().map(|(name, value)| (name.as_str(), *value))
    }

    /// The measure of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<u64> {
        self.iter().find(|m| m.0 == name).map(|m| m.1)
    }
}

/// The names of all measures of runs of an engine, in the order of reports.
#[must_use]
pub fn names(engine: Engine) -> Vec<String> {
    Facts::of(engine).measures().0.into_iter().map(|m| m.0).collect()
}

/// All that the measures are made of.
#[derive(Clone, Debug, Default)]
pub(crate) struct Facts {
    pub(crate) stats: Stats,
    /// Of all links that ever lived.
    pub(crate) link: LinkSums,
    /// Of all stewards that ever lived, where there are any.
    pub(crate) stewards: Option<StewardSums>,
    pub(crate) told: WhatWasTold,
    /// Entries of the timeline that were carried out, for each node that they fell on.
    pub(crate) faults: BTreeMap<&'static str, u64>,
    pub(crate) wire: InjectedSums,
    pub(crate) plain: InjectedSums,
    pub(crate) virtual_ms: u64,
    pub(crate) settled_ms: u64,
    pub(crate) violations: u64,
}

/// By whom depends on the engine.
#[derive(Clone, Debug)]
pub(crate) enum WhatWasTold {
    Stations(Told),
    Members(MembersTold),
    Job(JobTold),
}

impl Default for WhatWasTold {
    fn default() -> Self {
        Self::Stations(Told::default())
    }
}

impl Facts {
    /// Those of a run that has not begun.
    pub(crate) fn of(engine: Engine) -> Self {
        let told = match engine {
            Engine::Link => WhatWasTold::default(),
            Engine::Zone | Engine::AllToAll | Engine::Gossip | Engine::Segment => {
                WhatWasTold::Members(MembersTold::default())
            }
            Engine::Cast => WhatWasTold::Members(MembersTold::default().with_casts(SharedTally::default())),
            Engine::Manager => WhatWasTold::Members(MembersTold::default().with_jobs(Arc::default())),
            Engine::View => WhatWasTold::Job(JobTold::default()),
        };
        let stewards = (engine == Engine::Manager).then(StewardSums::default);
        Self { told, stewards, ..Self::default() }
    }

    pub(crate) fn measures(&self) -> Measures {
        let mut all = Vec::new();
        let mut put = |name: &str, value: u64| all.push((name.to_owned(), value));
        put("events", self.stats.events);
        put("stale_timers", self.stats.stale_timers);
        put("packets.sent", self.stats.sent);
        put("packets.delivered", self.stats.delivered);
        put("packets.duplicated", self.stats.duplicated);
        put("packets.bytes", self.stats.bytes);
        put("packets.dropped", Drop::ALL.into_iter().map(|d| self.stats.dropped(d)).sum());
        for reason in Drop::ALL {
            put(&format!("packets.dropped.{}", reason.name()), self.stats.dropped(reason));
        }
        match &self.told {
            WhatWasTold::Stations(told) => told.put(&mut put),
            WhatWasTold::Members(told) => told.put(&mut put),
            WhatWasTold::Job(told) => told.put(&mut put),
        }
        for (name, value) in self.stewards.iter().flat_map(|s| STEWARD_NAMES.into_iter().zip(s.0)) {
            put(name, value);
        }
        for (name, value) in self.link.0.iter().zip(LINK_NAMES).map(|(&value, name)| (name, value)) {
            put(name, value);
        }
        for (reason, value) in Dropped::ALL.into_iter().zip(self.link.1) {
            put(&format!("link.dropped.{}", kebab(&format!("{reason:?}"))), value);
        }
        put("faults", self.faults.values().sum());
        for kind in KINDS {
            put(&format!("faults.{kind}"), self.faults.get(kind).copied().unwrap_or(0));
        }
        put("injected", self.wire.0.iter().chain(&self.plain.0).sum());
        for (point, sums) in [("wire", &self.wire), ("plain", &self.plain)] {
            for (kind, value) in KindName::ALL.into_iter().zip(sums.0) {
                put(&format!("injected.{point}.{kind}"), value);
            }
        }
        put("virtual_ms", self.virtual_ms);
        put("settled_ms", self.settled_ms);
        put("violations", self.violations);
        Measures(all)
    }
}

/// Layers as measures name them.
const LAYERS: [(Layer, &str); Layer::COUNT] = [
    (Layer::Datagram, "datagram"),
    (Layer::Reliable, "reliable"),
    (Layer::Unr, "unr"),
    (Layer::Ack, "ack"),
    (Layer::Nack, "nack"),
    (Layer::Order, "order"),
];

/// What links count, in the order of [`LinkSums`].
const LINK_NAMES: [&str; 16] = [
    "link.accepted",
    "link.sent",
    "link.sessions",
    "link.dropped",
    "retransmissions",
    "duplicates",
    "rcl.retransmissions",
    "rcl.duplicates",
    "rcl.early",
    "rcl.timeouts",
    "rcl.rejected",
    "mml.retransmissions",
    "mml.duplicates",
    "mml.rejected",
    "mml.lost_requests",
    "mml.refused",
];

/// The counters of links, added up over nodes and their starts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct LinkSums([u64; LINK_NAMES.len()], [u64; Dropped::ALL.len()]);

impl LinkSums {
    pub(crate) fn add(&mut self, c: &Counters) {
        let values = [
            c.accepted,
            c.sent,
            c.sessions,
            c.drops().map(|d| d.1).sum(),
            c.rcl.retransmissions + c.mml.retransmissions,
            c.rcl.duplicates + c.mml.duplicates,
            c.rcl.retransmissions,
            c.rcl.duplicates,
            c.rcl.early,
            c.rcl.timeouts,
            c.rcl.checksum + c.rcl.malformed + c.rcl.beyond_credit + c.rcl.impossible_acks,
            c.mml.retransmissions,
            c.mml.duplicates,
            c.mml.bad_signature + c.mml.checksum + c.mml.malformed,
            c.mml.lost_requests,
            c.mml.refused,
        ];
        self.0.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
        self.1.iter_mut().zip(c.drops()).for_each(|(sum, (_, value))| *sum += value);
    }
}

/// What stewards count, in the order of [`StewardSums`].
const STEWARD_NAMES: [&str; 9] = [
    "manager.retransmissions",
    "manager.duplicates",
    "manager.probes",
    "manager.false_alarms",
    "manager.self_diagnoses",
    "manager.accusations",
    "manager.unproved",
    "manager.replayed",
    "manager.differing",
];

/// FI-5: the counters of stewards, added up over nodes and their starts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StewardSums([u64; STEWARD_NAMES.len()]);

impl StewardSums {
    pub(crate) fn add(&mut self, status: &Status, said_again: u64) {
        let (c, refused) = (status.counters, status.refused);
        let values = [
            c.retransmissions + said_again,
            c.duplicates + refused.duplicates,
            c.probes,
            c.false_alarms,
            c.self_diagnoses,
            c.accusations,
            c.unproved + refused.unproved,
            refused.replayed,
            refused.differing,
        ];
        self.0.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    }
}

/// Injected faults by kind, added up over injectors.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct InjectedSums([u64; KindName::ALL.len()]);

impl InjectedSums {
    pub(crate) fn add(&mut self, counters: &Injected) {
        self.0.iter_mut().zip(counters.by_kind()).for_each(|(sum, (_, tally))| *sum += tally.injected);
    }
}

/// What stations told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    pub(crate) leaders: Leaders,
    sent: [u64; Layer::COUNT],
    delivered: [u64; Layer::COUNT],
    ups: u64,
    downs: u64,
    undelivered: u64,
    gaps: u64,
    starts: u64,
}

impl Told {
    fn put(&self, put: &mut impl FnMut(&str, u64)) {
        put("sent", self.sent.iter().sum());
        put("delivered", self.delivered.iter().sum());
        for (layer, name) in LAYERS {
            put(&format!("sent.{name}"), self.sent[layer as usize]);
            put(&format!("delivered.{name}"), self.delivered[layer as usize]);
        }
        put("ups", self.ups);
        put("downs", self.downs);
        put("undelivered", self.undelivered);
        put("gaps", self.gaps);
        put("starts", self.starts);
    }
}

/// Counts what stations tell, for whoever holds the other end.
pub(crate) struct Listener(pub(crate) Arc<Mutex<Told>>);

impl Checker<Station> for Listener {
    fn name(&self) -> &'static str {
        "measures"
    }

    fn note(&mut self, _: Instant, node: u32, note: &Note, _: &mut Verdict) {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match note {
            Note::Started { .. } => told.starts += 1,
            Note::Up { .. } => told.ups += 1,
            Note::Down { .. } => told.downs += 1,
            Note::Sent { layer, .. } => told.sent[*layer as usize] += 1,
            // What belongs to another machine counts when that machine hands it on.
            Note::Got { layer, opaque: false, .. } => told.delivered[*layer as usize] += 1,
            Note::Undelivered { .. } => told.undelivered += 1,
            Note::Gap { gap, .. } => told.gaps += gap.lost,
            Note::Order(OrderNote::Accepted { .. }) => told.sent[Layer::Order as usize] += 1,
            Note::Order(OrderNote::Delivered { index, .. }) => {
                told.delivered[Layer::Order as usize] += 1;
                told.leaders.delivered(node, *index);
            }
            _ => {}
        }
    }
}

/// `BadSeal` as `bad-seal`.
fn kebab(name: &str) -> String {
    let mut text = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.push(c.to_ascii_lowercase());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_measure_has_a_name_of_its_own() {
        for (engine, of_its_own) in [
            (Engine::Link, "delivered"),
            (Engine::Zone, "boot_ms"),
            (Engine::Gossip, "leaves"),
            (Engine::Cast, "casts.excused"),
            (Engine::Manager, "manager.self_diagnoses"),
        ] {
            let mut names = names(engine);
            let all = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), all);
            for wanted in [of_its_own, "retransmissions", "packets.dropped.loss", "link.dropped.bad-seal"] {
                assert!(names.iter().any(|n| n == wanted), "{wanted}");
            }
        }
        assert!(!names(Engine::Zone).contains(&"delivered".to_owned()));
    }

    #[test]
    fn sums_add_up_over_links() {
        let mut sums = LinkSums::default();
        let mut counters = Counters::default();
        counters.accepted = 3;
        counters.rcl.retransmissions = 2;
        counters.mml.retransmissions = 5;
        sums.add(&counters);
        sums.add(&counters);
        let measures = Facts { link: sums, ..Facts::default() }.measures();
        assert_eq!(measures.get("link.accepted"), Some(6));
        assert_eq!(measures.get("retransmissions"), Some(14));
        assert_eq!(measures.get("rcl.retransmissions"), Some(4));
        assert_eq!(measures.get("no such thing"), None);
    }
}
