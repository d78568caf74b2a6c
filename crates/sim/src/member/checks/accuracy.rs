//! No healthy member is evicted by a healthy one.
//!
//! Healthy is who was never faulty in the run so far, and could always talk with three quarters of its zone, both ways.
//! (Where a network is cut in two halves, one way, each half has a right to call the other dead, and both hear it.) A
//! group that is cut off together may second each other's doubts, and is believed when the cut ends before it was found
//! out itself; from then on evictions in that run are only counted. False positives are counted as Lifeguard does: at all members, and at healthy members only (FP−).

use crate::check::{Checker, Verdict};
use crate::fault::{Fault, NodeFault};
use crate::member::{Layout, Member, Note};
use crate::partition::Partition;
use phalanx_core::Instant;
use phalanx_protocol::member::{Engine, Why};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Loss in the network as a whole that members must bear.
const BEARABLE: f64 = 0.05;

/// Evictions of a run.
#[derive(Debug, Default)]
pub struct Tally {
    /// Of healthy members, at any member.
    false_positives: AtomicU64,
    /// Of healthy members, at healthy ones.
    at_healthy: AtomicU64,
    /// Of faulty members, at any member.
    of_faulty: AtomicU64,
}

impl Tally {
    /// False positives at all members, and at healthy ones.
    #[must_use]
    pub fn false_positives(&self) -> (u64, u64) {
        (self.false_positives.load(Relaxed), self.at_healthy.load(Relaxed))
    }

    /// Evictions of faulty members, at any member.
    #[must_use]
    pub fn of_faulty(&self) -> u64 {
        self.of_faulty.load(Relaxed)
    }
}

/// Watches evictions.
pub struct Accuracy {
    nodes: u32,
    /// Who is in which zone; without, all are in one.
    layout: Option<Layout>,
    strict: bool,
    faulty: BTreeSet<u32>,
    started: BTreeSet<u32>,
    partitions: Vec<Partition>,
    tally: Arc<Tally>,
}

impl Accuracy {
    /// For that many nodes. When not `strict`, evictions of healthy members are counted only.
    #[must_use]
    pub fn new(nodes: u32, strict: bool) -> Self {
        Self {
            nodes,
            layout: None,
            strict,
            faulty: BTreeSet::new(),
            started: BTreeSet::new(),
            partitions: Vec::new(),
            tally: Arc::default(),
        }
    }

    /// In zones.
    #[must_use]
    pub fn in_zones(mut self, layout: Layout) -> Self {
        self.layout = Some(layout);
        self
    }

    /// All nodes run already.
    #[must_use]
    pub fn all_started(mut self) -> Self {
        self.started.extend(0..self.nodes);
        self
    }

    /// Where evictions are counted.
    #[must_use]
    pub fn tally(&self) -> Arc<Tally> {
        Arc::clone(&self.tally)
    }

    /// Who cannot talk with three quarters of its zone, itself included, is faulty.
    fn look_at_partitions(&mut self) {
        let mut cut_off = 0;
        for node in 0..self.nodes {
            let zone = self.layout.map_or(0..self.nodes, |l| l.nodes_of(l.zone_of(node)));
            let cut = |peer: &u32| self.partitions.iter().any(|p| p.stops(node, *peer) || p.stops(*peer, node));
            // Only those who run count.
            let there = |peer: &u32| *peer == node || self.started.contains(peer);
            let all = zone.clone().filter(there).count();
            let reached = zone.filter(there).filter(|peer| *peer == node || !cut(peer)).count();
            if reached * 4 < all * 3 {
                self.faulty.insert(node);
                cut_off += 1;
            }
        }
        self.strict &= cut_off < 2;
    }
}

impl<E: Engine + Send> Checker<Member<E>> for Accuracy {
    fn name(&self) -> &'static str {
        "accuracy"
    }

    fn fault(&mut self, _: Instant, fault: &Fault, _: &mut Verdict) {
        match fault {
            // A reset harms nobody: that is what confirmation is for.
            Fault::Node(_, NodeFault::Disk(_) | NodeFault::HealInjector | NodeFault::ResetStream(_))
            | Fault::ResetStream(..) => {}
            Fault::Node(node, fault) => {
                self.faulty.insert(*node);
                if matches!(fault, NodeFault::CrashProcess | NodeFault::CrashHost) {
                    self.started.remove(node);
                    self.look_at_partitions();
                }
            }
            Fault::Inject { node, .. } => _ = self.faulty.insert(*node),
            Fault::Partition(partition) => {
                self.partitions.retain(|p| p.name() != partition.name());
                self.partitions.push(partition.clone());
                self.look_at_partitions();
            }
            Fault::HealPartition(name) => self.partitions.retain(|p| p.name() != name),
            Fault::Weather(weather) if weather.loss > BEARABLE => self.faulty.extend(0..self.nodes),
            Fault::Weather(_) => {}
            Fault::HealAll { .. } => self.partitions.clear(),
        }
    }

    fn note(&mut self, _: Instant, observer: u32, note: &Note, verdict: &mut Verdict) {
        // One that leaves before it has neighbours tells nobody, and is found out as if it had failed.
        if matches!(note, Note::Started { .. }) {
            self.started.insert(observer);
        }
        if matches!(note, Note::Leaving) {
            self.faulty.insert(observer);
            self.started.remove(&observer);
            self.look_at_partitions();
        }
        let Note::Left { node, version, why: Why::Failed } = *note else { return };
        if self.faulty.contains(&node) {
            self.tally.of_faulty.fetch_add(1, Relaxed);
            return;
        }
        self.tally.false_positives.fetch_add(1, Relaxed);
        if !self.faulty.contains(&observer) {
            self.tally.at_healthy.fetch_add(1, Relaxed);
            if self.strict {
                verdict.violation(observer, format!("node {node} is healthy and was evicted as {version}"));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::member::Options;
    use crate::network::Weather;
    use phalanx_protocol::member::Version;
    use phalanx_protocol::zone::Zone;

    fn evicts(checker: &mut Accuracy, observer: u32, node: u32) -> usize {
        let mut verdict = Verdict::default();
        let note = Note::Left { node, version: Version::first(1), why: Why::Failed };
        Checker::<Member<Zone>>::note(checker, Instant::ZERO, observer, &note, &mut verdict);
        verdict.violations.len()
    }

    fn befalls(checker: &mut Accuracy, fault: &Fault) {
        Checker::<Member<Zone>>::fault(checker, Instant::ZERO, fault, &mut Verdict::default());
    }

    #[test]
    fn an_evicted_healthy_member_is_caught_and_others_are_counted() {
        let mut checker = Accuracy::new(5, true);
        befalls(&mut checker, &Fault::ResetStream(1, 2));
        assert_eq!(evicts(&mut checker, 0, 1), 1);
        befalls(&mut checker, &Fault::pause(1));
        assert_eq!((evicts(&mut checker, 0, 1), evicts(&mut checker, 1, 0)), (0, 0));
        assert_eq!(checker.tally.false_positives(), (2, 1));
        assert_eq!(evicts(&mut Accuracy::new(5, false), 0, 1), 0);
    }

    #[test]
    fn who_is_cut_off_is_faulty_and_the_rest_is_not() {
        let mut checker = Accuracy::new(8, true);
        checker.started.extend(0..8);
        befalls(&mut checker, &Fault::Partition(Partition::one_way("cut", [0], [2, 3, 4, 5, 6, 7])));
        assert_eq!((evicts(&mut checker, 2, 0), evicts(&mut checker, 0, 2), evicts(&mut checker, 3, 2)), (0, 0, 1));
        let zones = Options { zone: 2, ..Options::default() };
        let mut apart = Accuracy::new(8, true).in_zones(Layout::new(8, &zones));
        apart.started.extend(0..8);
        befalls(&mut apart, &Fault::Partition(Partition::between("cut", [0, 1], [2, 3, 4, 5, 6, 7])));
        assert_eq!(evicts(&mut apart, 0, 1), 1, "a cut between zones is no excuse inside of one");
        let mut small = Accuracy::new(4, true).all_started();
        befalls(&mut small, &Fault::Partition(Partition::between("cut", [0], [1])));
        assert_eq!(evicts(&mut small, 0, 1), 1);
        befalls(&mut small, &Fault::crash(2));
        assert_eq!(evicts(&mut small, 0, 1), 0, "the dead are no company");
        befalls(&mut checker, &Fault::Weather(Weather { loss: 0.2, ..Weather::default() }));
        assert_eq!(evicts(&mut checker, 3, 2), 0);
    }
}
