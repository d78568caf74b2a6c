//! Checkers see what they must, in the order they must, and a planted violation is caught.

mod gossip;

use gossip::{Gossip, NODES, Said, cluster, storm};
use phalanx_core::{Duration, Instant};
use phalanx_sim::{Checker, Cluster, Fault, State, Verdict};
use std::sync::{Arc, Mutex};

/// Safety: what a node learns only grows, as long as its process lives. Liveness: all live nodes know the same.
#[derive(Default)]
struct Grows {
    best: Vec<u64>,
    planted: Option<u64>,
}

impl Checker<Gossip> for Grows {
    fn name(&self) -> &'static str {
        "grows"
    }

    fn note(&mut self, _: Instant, node: u32, note: &Said, verdict: &mut Verdict) {
        self.best.resize(NODES as usize, 0);
        let Said::Learned(number) = *note else {
            return;
        };
        let best = &mut self.best[node as usize];
        if number <= *best || Some(number) == self.planted {
            verdict.violation(node, format!("learned {number} after {best}"));
        }
        *best = number;
    }

    fn fault(&mut self, _: Instant, fault: &Fault, _: &mut Verdict) {
        if let Fault::Node(node, _) = *fault {
            self.best.resize(NODES as usize, 0);
            self.best[node as usize] = 0;
        }
    }

    fn healed(&mut self, _: Instant, _: &Cluster<'_, Gossip>, _: &mut Verdict) {
        self.best.clear();
    }

    fn pending(&mut self, _: Instant, cluster: &Cluster<'_, Gossip>) -> Option<String> {
        let all: Vec<u64> = cluster.processes().map(|(_, p)| p.best).collect();
        let best = *all.iter().max()?;
        let behind = all.iter().filter(|&&b| b != best).count() + NODES as usize - all.len();
        (behind > 0).then(|| format!("{behind} nodes do not know {best}"))
    }
}

/// What the number is that one run spreads in the end.
const LARGEST: u64 = 900_000;

fn stormy(seed: u64, threads: usize, planted: Option<u64>) -> phalanx_sim::Sim<Gossip> {
    let mut sim = cluster(seed, threads);
    sim.replay_with(format!("phalanx sim gossip.toml --seed {seed}"));
    sim.check(Grows { planted, ..Grows::default() });
    storm(&mut sim, seed);
    sim.run_for(Duration::from_millis(350));
    sim
}

#[test]
fn safety_under_faults_then_liveness_after_healing() {
    for seed in 0..5 {
        let mut sim = stormy(seed, 1, None);
        sim.heal(true);
        sim.command(0, LARGEST);
        sim.run_for(Duration::from_millis(1));
        let report = sim.settle(Duration::from_secs(5)).expect_green();
        assert!(report.settled_in.is_some_and(|d| d < Duration::from_secs(2)), "{:?}", report.settled_in);
        assert!((0..NODES).all(|n| sim.state(n) == State::Up && sim.process(n).unwrap().best == LARGEST));
    }
}

#[test]
fn a_planted_violation_is_caught_with_its_time_node_seed_and_replay_line() {
    let mut sim = stormy(4, 1, Some(LARGEST));
    sim.heal(true);
    sim.command(7, LARGEST);
    sim.run_for(Duration::from_millis(1));
    let report = sim.settle(Duration::from_secs(5));
    let first = &report.violations[0];
    assert_eq!((first.checker, first.node, first.at), ("grows", Some(7), Instant(350_000_000)));
    assert!(report.violations.len() as u64 + report.more == u64::from(NODES));
    let text = report.to_string();
    assert!(text.starts_with("red: seed 4") && text.ends_with("replay: phalanx sim gossip.toml --seed 4"), "{text}");
}

#[test]
fn what_does_not_get_well_in_time_is_a_violation() {
    let mut sim = stormy(2, 1, None);
    sim.fault(Fault::crash(3));
    sim.heal(false);
    let report = sim.settle(Duration::from_secs(1));
    assert_eq!(report.settled_in, None);
    assert!(report.violations.iter().any(|v| v.text.contains("not within 1s of healing")), "{report}");
}

/// FI-6: whoever learns the largest number from node 11 or another is killed for it, ten in all.
struct Assassin(Arc<Mutex<Vec<(Instant, u32)>>>);

impl Checker<Gossip> for Assassin {
    fn name(&self) -> &'static str {
        "assassin"
    }

    fn note(&mut self, at: Instant, node: u32, note: &Said, verdict: &mut Verdict) {
        let mut hits = self.0.lock().unwrap();
        if *note == Said::Learned(LARGEST) && node != 11 && hits.len() < 10 {
            hits.push((at, node));
            verdict.inflict(Fault::crash(node));
        }
    }
}

#[test]
fn a_fault_in_answer_to_what_was_seen_comes_at_the_same_time_on_any_number_of_threads() {
    let run = |threads| {
        let mut sim = cluster(6, threads);
        let hits = Arc::default();
        sim.check(Assassin(Arc::clone(&hits)));
        sim.command_at(Instant(100_000_000), 11, LARGEST);
        sim.run_for(Duration::from_millis(300));
        let dead = (0..NODES).filter(|&n| sim.state(n) == State::ProcessDown).count();
        let hits = hits.lock().unwrap().clone();
        (sim.trace(), dead, hits)
    };
    let one = run(1);
    assert_eq!((one.1, one.2.len()), (10, 10));
    assert_eq!(one, run(2));
    assert_eq!(one, run(3));
}

/// Keeps the order in which it hears.
struct Order(Arc<Mutex<Vec<(Instant, u32)>>>);

impl Checker<Gossip> for Order {
    fn name(&self) -> &'static str {
        "order"
    }

    fn note(&mut self, at: Instant, node: u32, _: &Said, _: &mut Verdict) {
        self.0.lock().unwrap().push((at, node));
    }
}

#[test]
fn notes_are_heard_by_time_and_node_whatever_the_threads() {
    for threads in [1, 3] {
        let mut sim = cluster(8, threads);
        let heard = Arc::default();
        sim.check(Order(Arc::clone(&heard)));
        storm(&mut sim, 8);
        sim.run_for(Duration::from_millis(400));
        let heard = heard.lock().unwrap();
        assert!(heard.len() > 100 && heard.is_sorted(), "{} notes", heard.len());
    }
}
