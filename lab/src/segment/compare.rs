//! `segment-compare`: what membership costs and how fast it is, against the number of nodes, for each engine (003 §4 and Figs. 8 to 10).
//!
//! Simulated: networks of 20, at most 20 of them behind a router, and at most 20 of those behind the next, so that no group of segments has more
//! than 20 nodes, as 003 §4.1 assumes. Bandwidth is what all nodes hear, as in §5.3: a heartbeat that is multicast once is heard by many. It
//! is in IP bytes, with seal and headers, of which the analysis beside it knows nothing.
//!
//! A death is that of a host: nobody hears it any more, and nothing says so. It comes at any time between two heartbeats, so that all is known
//! up to a period sooner than in the analysis.

use super::{
    ALL_TO_ALL, Candidate, GOSSIP, GROUP, Profile, Runs, SEGMENT, SEGMENT_LAN, Shown, ZONE, ZONE_LAN, analytic,
    figures, power,
};
use crate::error::Error;
use crate::experiment::{Experiment, Run};
use crate::plot::Picture;
use crate::report::{Check, Must};
use crate::zone::{Befalls, Booted, Cluster, booted_within};
use phalanx_core::Duration;
use phalanx_protocol::baselines::GossipConfig;
use phalanx_protocol::member::Engine;
use phalanx_sim::member::{self, Member, Options};
use phalanx_sim::{Latency, Network, Routers, Setup, Topology};
use std::collections::BTreeMap;

/// The experiment.
pub(crate) struct SegmentCompare;

const SIZES: [u32; 9] = [20, 40, 60, 80, 100, 400, 1000, 2000, 4000];
const QUICK: [u32; 3] = [20, 40, 100];
/// All that are compared, and no larger clusters than so: the baselines cost n² events each period.
const CANDIDATES: [(Candidate, u32); 6] =
    [(ALL_TO_ALL, 1000), (GOSSIP, 1000), (SEGMENT, 4000), (SEGMENT_LAN, 4000), (ZONE, 4000), (ZONE_LAN, 4000)];
/// How often a cluster that boots is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Bytes are counted for so long.
const COUNTED: Duration = Duration::from_secs(5);
/// Members that die, one after the other, and then leaders; of large baselines, which take n² events a second, one.
const DEATHS: u32 = 3;
const LARGE: u32 = 100;
const SEED: u64 = 1;
/// 003 §5.4: "around 5 seconds": 5 periods, less what had passed of one, and what is allowed for delay.
const DETECTS_MS: (f64, f64) = (4000.0, 5200.0);
/// The goal for a local network.
const LAN_MS: f64 = 1000.0;

/// TTLs between networks of 20: behind one router, or behind as many as it takes.
fn routers(nodes: u32) -> Routers {
    let networks = nodes.div_ceil(GROUP);
    let distance = |a: u32, b: u32| {
        let (mut a, mut b, mut ttl) = (a, b, 1);
        while a != b {
            (a, b, ttl) = (a / GROUP, b / GROUP, ttl + 1);
        }
        ttl
    };
    Routers::Matrix((0..networks).map(|a| (0..networks).map(|b| distance(a, b)).collect()).collect())
}

/// Boots a cluster and shows what it costs, and who knows of deaths when. `None` when it did not boot.
fn show(candidate: Candidate, nodes: u32) -> Result<Option<Shown>, Error> {
    let (runs, profile) = candidate;
    let topology = Topology::Segments { size: GROUP, routers: routers(nodes), per_router_us: super::DELAY_US };
    let network = Network { latency: Latency::Fixed { us: super::DELAY_US }, topology, ..Network::default() };
    let setup = Setup { nodes, seed: SEED, network, ..Setup::default() };
    let options = Options { profile: super::zone(profile), by_reference: true, ..Options::default() };
    let patience = super::patience(candidate, nodes);
    let few = if nodes > LARGE { 1 } else { DEATHS };
    Ok(match runs {
        Runs::AllToAll => {
            let built = member::build_all_to_all(&setup, &options, super::all_to_all(nodes));
            measured(booted_within(built, nodes, LOOK, patience)?, nodes, few, |_| 0)
        }
        Runs::Gossip => {
            let built = member::build_gossip(&setup, &options, GossipConfig::paper());
            measured(booted_within(built, nodes, LOOK, patience)?, nodes, few, |_| 0)
        }
        Runs::Segment => {
            let built = member::build_segments(&setup, &options, super::segment(profile, nodes));
            measured(booted_within(built, nodes, LOOK, patience)?, nodes, DEATHS, super::leads)
        }
        Runs::Zone => {
            let built = member::build(&setup, &options);
            measured(booted_within(built, nodes, LOOK, patience)?, nodes, DEATHS, |_| 0)
        }
    })
}

fn measured<E: Engine + Send + 'static>(
    mut cluster: Cluster<E>,
    nodes: u32,
    deaths: u32,
    leads: impl Fn(&E) -> usize,
) -> Option<Shown> {
    cluster.boot_s()?;
    let mut shown = Shown { bytes_per_s: cluster.heard(COUNTED), ..Shown::default() };
    for death in 0..deaths {
        // All over the networks.
        let from = death * nodes / deaths + 1;
        let victim = live(&cluster, |n, engine| n >= from && leads(engine) == 0)?;
        let known = cluster.befall(Befalls::Silent, &[victim], 0);
        shown.deaths.push((known.first_ms, known.last_ms));
        shown.mistakes += known.false_positives;
    }
    // One that leads a network and nothing else, where there are several; then the one that leads all.
    let most = cluster.sim().cluster().processes().map(|(_, m)| leads(m.engine())).max()?;
    for levels in [1, most] {
        if let Some(victim) = live(&cluster, |_, engine| levels > 0 && leads(engine) == levels) {
            let known = cluster.befall(Befalls::Silent, &[victim], 0);
            shown.leaders.push(known.last_ms);
            shown.leader_mistakes += known.false_positives;
        }
    }
    Some(shown)
}

/// The first node that lives and is so.
fn live<E: Engine + Send>(cluster: &Cluster<E>, is: impl Fn(u32, &E) -> bool) -> Option<u32> {
    let sim = cluster.sim().cluster();
    sim.processes().find(|&(n, m): &(u32, &Member<E>)| is(n, m.engine())).map(|(n, _)| n)
}

impl Experiment for SegmentCompare {
    fn name(&self) -> &'static str {
        "segment-compare"
    }

    fn about(&self) -> &'static str {
        "membership engines side by side: bandwidth, time to detect and to agree, BDP and BCP (003 §4, Figs. 8 to 10)"
    }

    fn picture(&self) -> Picture {
        figures()[0]
    }

    fn pictures(&self) -> Vec<Picture> {
        figures()
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let sizes: &[u32] = if run.options.quick { &QUICK } else { &SIZES };
        let of = |(candidate, largest)| sizes.iter().filter(move |&&n| n <= largest).map(move |&n| (candidate, n));
        let mut cases: Vec<(Candidate, u32)> = CANDIDATES.into_iter().flat_map(of).collect();
        // Those that take longest begin first, so that no core is idle at the end.
        cases.sort_by_key(|&(_, nodes)| std::cmp::Reverse(nodes));
        let name = |&((runs, profile), nodes): &(Candidate, u32)| {
            format!("{}, {}, {nodes} nodes", runs.name(), profile.name())
        };
        let shown = run.in_parallel(&cases, name, |&(candidate, nodes)| show(candidate, nodes));
        let mut all = BTreeMap::new();
        for (case, shown) in cases.iter().zip(shown) {
            match shown? {
                Some(shown) => _ = all.insert(*case, shown),
                None => run.note(format!("{}: did not boot", name(case))),
            }
        }
        for ((candidate, nodes), shown) in &all {
            run.row(shown.row("simulated", *candidate, *nodes));
        }
        for runs in [Runs::AllToAll, Runs::Gossip, Runs::Segment] {
            for &nodes in sizes {
                if let Some(analytic) = analytic(runs, nodes) {
                    run.row(analytic.row(runs, nodes));
                }
            }
        }
        for (candidate, largest) in CANDIDATES.iter().filter(|c| c.1 < sizes[sizes.len() - 1]) {
            let (engine, profile) = (candidate.0.name(), candidate.1.name());
            run.note(format!("{engine}, {profile}: up to {largest} nodes; more cost n² events each second"));
        }
        check(run, &Found { all, cases });
        Ok(())
    }
}

/// What all clusters showed.
struct Found {
    all: BTreeMap<(Candidate, u32), Shown>,
    cases: Vec<(Candidate, u32)>,
}

impl Found {
    /// Of each size that was to be measured; those that were not are unknown.
    fn of(&self, candidate: Candidate) -> impl Iterator<Item = (f64, Option<&Shown>)> {
        let cases = self.cases.iter().filter(move |c| c.0 == candidate);
        cases.map(|c| (f64::from(c.1), self.all.get(c)))
    }

    fn worst(
        &self,
        candidate: Candidate,
        of: impl Fn(&Shown) -> Option<f64>,
        pick: fn(f64, f64) -> f64,
    ) -> Option<f64> {
        let all = self.of(candidate).map(|(_, shown)| of(shown?)).collect::<Option<Vec<f64>>>()?;
        all.into_iter().reduce(pick)
    }

    fn power(&self, candidate: Candidate, of: impl Fn(&Shown) -> Option<f64>) -> Option<f64> {
        let points = self.of(candidate).map(|(n, shown)| Some((n, of(shown?)?))).collect::<Option<Vec<_>>>()?;
        power(&points)
    }

    /// The largest ratio of bytes at any size.
    fn dearest(&self, a: Candidate, b: Candidate) -> Option<f64> {
        let pairs = self.of(a).zip(self.of(b));
        let ratios =
            pairs.map(|((_, a), (_, b))| Some(a?.bytes_per_s / b?.bytes_per_s)).collect::<Option<Vec<f64>>>()?;
        ratios.into_iter().reduce(f64::max)
    }

    fn at(&self, candidate: Candidate, nodes: u32, of: impl Fn(&Shown) -> Option<f64>) -> Option<f64> {
        self.all.get(&(candidate, nodes)).and_then(of)
    }
}

fn bytes(shown: &Shown) -> Option<f64> {
    Some(shown.bytes_per_s)
}

fn bdp(shown: &Shown) -> Option<f64> {
    shown.first_ms().map(|ms| shown.bytes_per_s * ms / 1e3)
}

fn bcp(shown: &Shown) -> Option<f64> {
    shown.last_ms().map(|ms| shown.bytes_per_s * ms / 1e3)
}

fn check(run: &mut Run, found: &Found) {
    let (least, most) = DETECTS_MS;
    let mut check = |name: &str, value, must, bound| run.check(Check::new(name, value, must, bound));
    let first = found.worst(SEGMENT, Shown::first_ms, f64::min);
    check("segment, paper: the first knows after ≥ 4 s at each size", first, Must::AtLeast, least);
    let worst = found.worst(SEGMENT, Shown::worst_ms, f64::max);
    check("segment, paper: all know within 5.2 s at each size", worst, Must::AtMost, most);
    let worst = found.worst(SEGMENT_LAN, Shown::worst_ms, f64::max);
    check("segment, lan: all know within 1 s at each size", worst, Must::AtMost, LAN_MS);
    let dearest = found.dearest(SEGMENT_LAN, SEGMENT);
    check("segment: bytes, lan / paper, at worst", dearest, Must::AtMost, 1.0);
    check("segment, paper: bytes grow by this power of n", found.power(SEGMENT, bytes), Must::AtMost, 1.1);
    check("all-to-all: bytes grow by this power of n", found.power(ALL_TO_ALL, bytes), Must::AtLeast, 1.9);
    check("gossip: bytes grow by this power of n", found.power(GOSSIP, bytes), Must::AtLeast, 1.9);
    check("segment, paper: BDP grows by this power of n", found.power(SEGMENT, bdp), Must::AtMost, 1.1);
    check("segment, paper: BCP grows by this power of n", found.power(SEGMENT, bcp), Must::AtMost, 1.1);
    let (all, gossip) = (found.power(ALL_TO_ALL, bcp), found.power(GOSSIP, bcp));
    check("all-to-all: BCP grows by this power of n", all, Must::AtLeast, 1.9);
    // ⚠ §4.2 has it the other way round.
    let faster = gossip.zip(all).map(|(gossip, all)| gossip - all);
    check("BCP: power of n, gossip − all-to-all", faster, Must::Above, 0.0);
    let by = |candidate, of: fn(&Shown) -> Option<f64>| found.at(candidate, 100, of);
    let ratio = |a, b, of| Some(by(a, of)? / by(b, of)?);
    check("BDP at 100 nodes: segment / all-to-all", ratio(SEGMENT, ALL_TO_ALL, bdp), Must::Below, 1.0);
    check("BDP at 100 nodes: all-to-all / gossip", ratio(ALL_TO_ALL, GOSSIP, bdp), Must::Below, 1.0);
    let mistakes: usize = found.all.values().map(|s| s.mistakes).sum();
    check("living nodes that were taken for dead", Some(mistakes as f64), Must::AtMost, 0.0);
    let worst = found.worst(SEGMENT, Shown::leader_ms, f64::max);
    check("segment, paper: all know within 5.2 s that a leader is dead", worst, Must::AtMost, most);
    let worst = found.worst(SEGMENT_LAN, Shown::leader_ms, f64::max);
    check("segment, lan: all know within 1 s that a leader is dead", worst, Must::AtMost, LAN_MS);
    let mistakes: usize = found.all.values().map(|s| s.leader_mistakes).sum();
    check("living nodes that were taken for dead with their leader", Some(mistakes as f64), Must::AtMost, 0.0);
    for (runs, candidate) in [(Runs::AllToAll, ALL_TO_ALL), (Runs::Gossip, GOSSIP), (Runs::Segment, SEGMENT)] {
        let ratio = |n: f64, shown: &Shown| Some(shown.bytes_per_s / analytic(runs, n as u32)?.bytes_per_s);
        let ratios = found.of(candidate).map(|(n, shown)| ratio(n, shown?)).collect::<Option<Vec<f64>>>();
        let off = ratios.and_then(|r| r.into_iter().map(|r| r.max(1.0 / r)).reduce(f64::max));
        check(&format!("{}: bytes, measured and analytic, apart by a factor of", runs.name()), off, Must::AtMost, 1.5);
    }
    let dead = found.worst((Runs::Zone, Profile::Lan), Shown::worst_ms, f64::max);
    check("zone, lan: all know within 5.2 s at each size", dead, Must::AtMost, most);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 003 §4.1: no group is larger than 20.
    #[test]
    fn networks_are_as_far_apart_as_their_routers() {
        let Routers::Matrix(ttl) = routers(4000) else { panic!("a matrix") };
        assert_eq!((ttl.len(), ttl[3][3], ttl[0][19], ttl[0][20], ttl[199][180]), (200, 1, 2, 3, 2));
        assert_eq!(ttl[0].iter().filter(|&&t| t <= 2).count(), 20);
    }
}
