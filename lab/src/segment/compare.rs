//! `segment-compare`: what membership costs and how fast it is, against the number of nodes, for each engine (003 §4 and Figs. 8 to 10).
//!
//! Simulated: groups of 20 behind one router, each group a segment. Bandwidth is what all nodes hear, as in the paper: a heartbeat that is
//! multicast once is heard by many. Its analysis is beside what was measured.

use crate::error::Error;
use crate::experiment::{Experiment, Run};
use crate::plot::Picture;
use crate::report::{Check, Must, row, significant};
use crate::zone::{Befalls, Booted, booted_within};
use phalanx_core::{Duration, Group};
use phalanx_protocol::baselines::{AllToAllConfig, GossipConfig, analysis};
use phalanx_protocol::segment::SegmentConfig;
use phalanx_protocol::zone::Config;
use phalanx_sim::member::{self, Options};
use phalanx_sim::{Latency, Network, Routers, Setup, Shape, Topology};
use std::collections::BTreeMap;

/// The experiment.
pub(crate) struct SegmentCompare;

/// 003 §5.2: 228 bytes for each member, groups of 20, a packet a second, 5 losses.
const BYTES: usize = 228;
const GROUP: u32 = 20;
const PERIOD: Duration = Duration::from_secs(1);
const LOSSES: u64 = 5;
const SIZES: [u32; 7] = [20, 40, 100, 400, 1000, 2000, 4000];
const QUICK: [u32; 3] = [20, 40, 100];
const DELAY_US: f64 = 100.0;
const MAX_TTL: u8 = 2;
/// How often a cluster that boots is looked at.
const LOOK: Duration = Duration::from_secs(5);
/// By then all know who is dead.
const PATIENCE: Duration = Duration::from_secs(15);
const GOSSIP_PATIENCE: Duration = Duration::from_secs(80);

struct Candidate {
    engine: &'static str,
    profile: &'static str,
    /// No larger clusters: the baselines cost n² events each period.
    largest: u32,
}

const CANDIDATES: [Candidate; 6] = [
    Candidate { engine: "all-to-all", profile: "paper", largest: 400 },
    Candidate { engine: "gossip", profile: "paper", largest: 100 },
    Candidate { engine: "segment", profile: "paper", largest: 4000 },
    Candidate { engine: "segment", profile: "lan", largest: 4000 },
    Candidate { engine: "zone", profile: "paper", largest: 1000 },
    Candidate { engine: "zone", profile: "lan", largest: 1000 },
];

/// What a cluster showed.
#[derive(Clone, Copy)]
struct Shown {
    bytes_per_s: f64,
    first_ms: Option<f64>,
    last_ms: Option<f64>,
}

impl Candidate {
    fn boot(&self, nodes: u32, seed: u64) -> Result<Box<dyn Booted>, Error> {
        let topology =
            Topology::Segments { size: GROUP, routers: Routers::Named(Shape::Star), per_router_us: DELAY_US };
        let network = Network { latency: Latency::Fixed { us: DELAY_US }, topology, ..Network::default() };
        let setup = Setup { nodes, seed, network, ..Setup::default() };
        let is_paper = self.profile == "paper";
        let profile = if is_paper { Config::paper() } else { Config::lan() };
        let options = Options { profile, by_reference: true, ..Options::default() };
        let group = Some(Group { number: 1, ttl: MAX_TTL });
        Ok(match self.engine {
            "all-to-all" => {
                let built = member::build_all_to_all(&setup, &options, AllToAllConfig::paper(group));
                Box::new(booted_within(built, nodes, LOOK, PATIENCE)?)
            }
            "gossip" => {
                let built = member::build_gossip(&setup, &options, GossipConfig::paper());
                Box::new(booted_within(built, nodes, LOOK, GOSSIP_PATIENCE)?)
            }
            "segment" => {
                let config = if is_paper { SegmentConfig::paper(1, MAX_TTL) } else { SegmentConfig::lan(1, MAX_TTL) };
                Box::new(booted_within(member::build_segments(&setup, &options, config), nodes, LOOK, PATIENCE)?)
            }
            _ => Box::new(booted_within(member::build(&setup, &options), nodes, LOOK, PATIENCE)?),
        })
    }

    fn show(&self, nodes: u32, seed: u64) -> Result<Shown, Error> {
        let mut cluster = self.boot(nodes, seed)?;
        let bytes_per_s = cluster.heard();
        let known = cluster.suffer(Befalls::Silent, 1);
        Ok(Shown { bytes_per_s, first_ms: known.first_ms, last_ms: known.last_ms })
    }
}

/// 003 §4: bytes a second that all hear, and how many seconds until the first and the last knows.
fn analytic(engine: &str, nodes: u32) -> (f64, f64, f64) {
    let n = nodes as usize;
    let fail = PERIOD.as_secs_f64() * LOSSES as f64;
    match engine {
        "all-to-all" => (n as f64 * analysis::all_to_all_bytes(n, BYTES, PERIOD), fail, fail),
        "gossip" => {
            let config = GossipConfig::paper();
            let fail = config.fail_after(n).as_secs_f64();
            (n as f64 * analysis::gossip_bytes(n, BYTES, 1, PERIOD), fail, fail)
        }
        _ => {
            let (n, k) = (f64::from(nodes), f64::from(GROUP));
            let height = n.ln() / k.ln();
            ((n - 1.0) / (k - 1.0) * k * k * BYTES as f64, fail, fail + 2.0 * DELAY_US * 1e-6 * height)
        }
    }
}

fn product(bytes: f64, ms: Option<f64>) -> Option<f64> {
    ms.map(|ms| significant(bytes * ms / 1e3))
}

impl Experiment for SegmentCompare {
    fn name(&self) -> &'static str {
        "segment-compare"
    }

    fn about(&self) -> &'static str {
        "membership engines side by side: bandwidth, time to detect and to agree, BDP and BCP (003 §4, Figs. 8 to 10)"
    }

    fn picture(&self) -> Picture {
        Picture { x: "nodes", y: "bytes_per_s_total", series: &["engine", "profile"], only: None, beside: &["last_ms"] }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let sizes: &[u32] = if run.options.quick { &QUICK } else { &SIZES };
        let mut all = BTreeMap::new();
        for candidate in &CANDIDATES {
            let &Candidate { engine, profile, largest } = candidate;
            for &nodes in sizes.iter().filter(|&&n| n <= largest) {
                run.progress(&format!("{engine}, {profile}, {nodes} nodes"));
                let shown = candidate.show(nodes, 1)?;
                let Shown { bytes_per_s, first_ms, last_ms } = shown;
                run.row(row! {
                    "engine": engine, "profile": profile, "nodes": nodes, "bytes_per_s_total": significant(bytes_per_s),
                    "first_ms": first_ms.map(significant), "last_ms": last_ms.map(significant),
                    "bdp": product(bytes_per_s, first_ms), "bcp": product(bytes_per_s, last_ms),
                });
                all.insert((engine, profile, nodes), shown);
            }
        }
        for engine in ["all-to-all", "gossip", "segment"] {
            for &nodes in sizes {
                let (bytes, first, last) = analytic(engine, nodes);
                run.row(row! {
                    "engine": engine, "profile": "003 §4", "nodes": nodes, "bytes_per_s_total": significant(bytes),
                    "first_ms": significant(first * 1e3), "last_ms": significant(last * 1e3),
                    "bdp": significant(bytes * first), "bcp": significant(bytes * last),
                });
            }
        }
        check(run, &all, sizes);
        Ok(())
    }
}

fn check(run: &mut Run, all: &BTreeMap<(&'static str, &'static str, u32), Shown>, sizes: &[u32]) {
    let of = |engine, profile, nodes: u32| all.get(&(engine, profile, nodes)).copied();
    let of_segments = |profile| sizes.iter().filter_map(move |&n| of("segment", profile, n));
    let worst = |profile| of_segments(profile).map(|s| s.last_ms.unwrap_or(f64::INFINITY)).fold(0.0, f64::max);
    run.check(Check::new(
        "segment, paper: all know within 5.2 s at each size",
        Some(worst("paper")),
        Must::AtMost,
        5200.0,
    ));
    run.check(Check::new("segment, lan: all know within 1 s at each size", Some(worst("lan")), Must::AtMost, 1000.0));
    let per_node = |engine, profile, n: u32| of(engine, profile, n).map(|s| s.bytes_per_s / f64::from(n));
    let (small, large) = (sizes[1], sizes[sizes.len() - 1]);
    let growth = per_node("segment", "paper", large).zip(per_node("segment", "paper", small)).map(|(a, b)| a / b);
    run.check(Check::new("segment, paper: bytes for each node, largest / 40 nodes", growth, Must::AtMost, 1.5));
    let costs = sizes.iter().filter_map(|&n| Some(per_node("segment", "lan", n)? / per_node("segment", "paper", n)?));
    run.check(Check::new("segment: bytes, lan / paper, at worst", costs.reduce(f64::max), Must::AtMost, 1.0));
    let growth = per_node("all-to-all", "paper", 100).zip(per_node("all-to-all", "paper", 20)).map(|(a, b)| a / b);
    run.check(Check::new("all-to-all: bytes for each node, 100 / 20 nodes", growth, Must::AtLeast, 4.5));
}
