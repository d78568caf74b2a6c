//! Segments beside the baselines and zones, as 003 compares them (§2, §4 and §5; BL-2).
//!
//! | file | question |
//! |---|---|
//! | `compare` | Figs. 8 to 10, BDP and BCP: what each engine costs and how fast it is, to 4000 simulated nodes |
//! | `sockets` | the same on real sockets, to 100 nodes |
//! | `heartbeats` | Fig. 3: what all-to-all heartbeats come to at each node |
//! | `service` | Fig. 2: what a service loses until it is known that one of its nodes is dead |
//!
//! The setting is that of 003 §5.2 throughout: networks of 20, a packet a second, 5 losses, 228 bytes for each member.

pub(crate) mod compare;
mod crowd;
pub(crate) mod heartbeats;
pub(crate) mod service;
pub(crate) mod sockets;

use crate::plot::Picture;
use crate::report::{Row, row, significant};
use phalanx_core::{Duration, Group};
use phalanx_protocol::baselines::{AllToAllConfig, GossipConfig, analysis};
use phalanx_protocol::member::Engine;
use phalanx_protocol::segment::{Segment, SegmentConfig};
use phalanx_protocol::zone;

/// 003 §5.2: bytes for each member, nodes of a network, time between packets, losses by which a node is dead.
const BYTES: usize = 228;
const GROUP: u32 = 20;
const PERIOD: Duration = Duration::from_secs(1);
const LOSSES: u64 = 5;
/// One way inside a network; each router adds as much.
const DELAY_US: f64 = 100.0;
/// The group of level 0 of segments; each level has the next one. All-to-all heartbeats have one of their own.
const GROUP_NUMBER: u16 = 1;
const ALL_NUMBER: u16 = 100;

/// What a cluster runs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Runs {
    AllToAll,
    Gossip,
    Segment,
    Zone,
}

impl Runs {
    const fn name(self) -> &'static str {
        match self {
            Self::AllToAll => "all-to-all",
            Self::Gossip => "gossip",
            Self::Segment => "segment",
            Self::Zone => "zone",
        }
    }
}

/// Its numbers: those of its paper, or those for a local network.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Profile {
    Paper,
    Lan,
}

impl Profile {
    const fn name(self) -> &'static str {
        match self {
            Self::Paper => "paper",
            Self::Lan => "lan",
        }
    }
}

/// An engine in a profile.
type Candidate = (Runs, Profile);

const SEGMENT: Candidate = (Runs::Segment, Profile::Paper);
const SEGMENT_LAN: Candidate = (Runs::Segment, Profile::Lan);
const ALL_TO_ALL: Candidate = (Runs::AllToAll, Profile::Paper);
const GOSSIP: Candidate = (Runs::Gossip, Profile::Paper);
const ZONE: Candidate = (Runs::Zone, Profile::Paper);
const ZONE_LAN: Candidate = (Runs::Zone, Profile::Lan);

/// TTLs that get from any network to any other, where at most [`GROUP`] of anything share a router: 1 for 20 nodes, 2 for 400, 3 for 8000.
fn ttl(nodes: u32) -> u8 {
    let mut reach = GROUP;
    let mut ttl = 1;
    while reach < nodes {
        (reach, ttl) = (reach.saturating_mul(GROUP), ttl + 1);
    }
    ttl
}

fn all_to_all(nodes: u32) -> AllToAllConfig {
    AllToAllConfig::paper(Some(Group { number: ALL_NUMBER, ttl: ttl(nodes) }))
}

fn segment(profile: Profile, nodes: u32) -> SegmentConfig {
    match profile {
        Profile::Paper => SegmentConfig::paper(GROUP_NUMBER, ttl(nodes)),
        Profile::Lan => SegmentConfig::lan(GROUP_NUMBER, ttl(nodes)),
    }
}

fn zone(profile: Profile) -> zone::Config {
    match profile {
        Profile::Paper => zone::Config::paper(),
        Profile::Lan => zone::Config::lan(),
    }
}

/// How many levels a node leads.
fn leads(engine: &Segment) -> usize {
    engine.leaders().filter(|&leader| leader == Some(engine.me())).count()
}

/// By then all know who died.
fn patience((runs, profile): Candidate, nodes: u32) -> Duration {
    match (runs, profile) {
        // Nobody keeps a dead one for longer.
        (Runs::Gossip, _) => GossipConfig::paper().fail_after(nodes as usize) * 2,
        (Runs::Zone, _) => Duration::from_secs(12),
        (_, Profile::Paper) => Duration::from_secs(8),
        (_, Profile::Lan) => Duration::from_secs(3),
    }
}

/// What a cluster showed.
#[derive(Clone, Default, Debug)]
struct Shown {
    /// IP bytes that all nodes hear in a second.
    bytes_per_s: f64,
    /// Nodes that lead nobody die, one after the other: when the first and the last of the others knew.
    deaths: Vec<(Option<f64>, Option<f64>)>,
    /// Leaders die, one after the other: when the last of the others knew.
    leaders: Vec<Option<f64>>,
    /// How often somebody took somebody for dead who lived; the same when it was a leader that died.
    mistakes: usize,
    leader_mistakes: usize,
}

impl Shown {
    /// Milliseconds until the first knew, on average.
    fn first_ms(&self) -> Option<f64> {
        mean(self.deaths.iter().map(|d| d.0))
    }

    /// Milliseconds until the last knew, on average.
    fn last_ms(&self) -> Option<f64> {
        mean(self.deaths.iter().map(|d| d.1))
    }

    /// The longest that it took until the last knew.
    fn worst_ms(&self) -> Option<f64> {
        worst(self.deaths.iter().map(|d| d.1))
    }

    /// The same of leaders.
    fn leader_ms(&self) -> Option<f64> {
        worst(self.leaders.iter().copied())
    }

    fn row(&self, ground: &str, (runs, profile): Candidate, nodes: u32) -> Row {
        let product = |ms: Option<f64>| ms.map(|ms| significant(self.bytes_per_s * ms / 1e3));
        row! {
            "ground": ground, "engine": runs.name(), "profile": profile.name(), "nodes": nodes,
            "bytes_per_s_total": significant(self.bytes_per_s),
            "first_ms": self.first_ms().map(significant), "last_ms": self.last_ms().map(significant),
            "bdp": product(self.first_ms()), "bcp": product(self.last_ms()),
            "mistakes": self.mistakes, "leader_ms": self.leader_ms().map(significant),
            "leader_mistakes": (!self.leaders.is_empty()).then_some(self.leader_mistakes),
        }
    }
}

/// Unknown as soon as one of them is.
fn mean(all: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    let all = all.collect::<Option<Vec<f64>>>().filter(|v| !v.is_empty())?;
    Some(all.iter().sum::<f64>() / all.len() as f64)
}

/// Unknown as soon as one of them is.
fn worst(all: impl Iterator<Item = Option<f64>>) -> Option<f64> {
    all.reduce(|a, b| Some(a?.max(b?))).flatten()
}

/// What 003 §4 says of a cluster.
#[derive(Clone, Copy, Debug)]
struct Analytic {
    bytes_per_s: f64,
    fail_s: f64,
    converge_s: f64,
}

/// 003 §4. Zones are not in it. ⚠ §4.1 counts k² heartbeats in a group of k, though nobody hears its own: kept.
fn analytic(runs: Runs, nodes: u32) -> Option<Analytic> {
    let (n, k) = (f64::from(nodes), f64::from(GROUP));
    let fail_s = PERIOD.as_secs_f64() * LOSSES as f64;
    Some(match runs {
        Runs::AllToAll => {
            let bytes_per_s = n * analysis::all_to_all_bytes(nodes as usize, BYTES, PERIOD);
            Analytic { bytes_per_s, fail_s, converge_s: fail_s }
        }
        Runs::Gossip => {
            let bytes_per_s = n * analysis::gossip_bytes(nodes as usize, BYTES, 1, PERIOD);
            let fail_s = GossipConfig::paper().fail_after(nodes as usize).as_secs_f64();
            Analytic { bytes_per_s, fail_s, converge_s: fail_s }
        }
        Runs::Segment => {
            let groups = (n - 1.0) / (k - 1.0);
            let bytes_per_s = groups * k * k * BYTES as f64 / PERIOD.as_secs_f64();
            let up_and_down = 2.0 * DELAY_US * 1e-6 * (n.ln() / k.ln());
            Analytic { bytes_per_s, fail_s, converge_s: fail_s + up_and_down }
        }
        Runs::Zone => return None,
    })
}

impl Analytic {
    fn row(&self, runs: Runs, nodes: u32) -> Row {
        let Self { bytes_per_s, fail_s, converge_s } = *self;
        row! {
            "ground": "analytic", "engine": runs.name(), "profile": "003 §4", "nodes": nodes,
            "bytes_per_s_total": significant(bytes_per_s),
            "first_ms": significant(fail_s * 1e3), "last_ms": significant(converge_s * 1e3),
            "bdp": significant(bytes_per_s * fail_s), "bcp": significant(bytes_per_s * converge_s),
        }
    }
}

/// Figs. 8, 9 and 10, and the products of §4: measured beside analytic.
fn figures() -> Vec<Picture> {
    let of = |y| Picture { x: "nodes", y, series: &["engine", "profile", "ground"], only: None, beside: &[] };
    ["bytes_per_s_total", "first_ms", "last_ms", "bdp", "bcp"].into_iter().map(of).collect()
}

/// By which power of x y grows: the slope of a line through the logarithms.
fn power(points: &[(f64, f64)]) -> Option<f64> {
    let n = points.len() as f64;
    let logs: Vec<_> = points.iter().map(|&(x, y)| (x.ln(), y.ln())).collect();
    let (mx, my) = (logs.iter().map(|p| p.0).sum::<f64>() / n, logs.iter().map(|p| p.1).sum::<f64>() / n);
    let sxy: f64 = logs.iter().map(|p| (p.0 - mx) * (p.1 - my)).sum();
    let sxx: f64 = logs.iter().map(|p| (p.0 - mx).powi(2)).sum();
    (points.len() > 1).then(|| sxy / sxx)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_of_twenty_need_a_router_for_each_power() {
        assert_eq!([1, 20, 21, 400, 401, 4000, 8000].map(ttl), [1, 1, 2, 2, 3, 3, 3]);
    }

    #[test]
    fn a_power_is_found_and_one_point_has_none() {
        let squares: Vec<_> = [20.0, 100.0, 4000.0].map(|n| (n, 3.0 * n * n)).into();
        assert!((power(&squares).unwrap() - 2.0).abs() < 1e-9);
        assert_eq!(power(&squares[..1]), None);
    }

    /// 003 §4: quadratic, quadratic and linear; and who does not know of a death is not left out of the average.
    #[test]
    fn bl_2_the_analysis_grows_as_the_paper_says() {
        let grows = |runs| {
            let at = |n: u32| Some((f64::from(n), analytic(runs, n)?.bytes_per_s));
            power(&[at(100)?, at(4000)?])
        };
        let is = |runs, by: f64| assert!((grows(runs).unwrap() - by).abs() < 0.01, "{runs:?}: {:?}", grows(runs));
        is(Runs::AllToAll, 2.0);
        is(Runs::Gossip, 2.0);
        is(Runs::Segment, 1.0);
        assert!(analytic(Runs::Zone, 20).is_none());
        let known = |last| Shown { deaths: vec![(Some(1.0), Some(2.0)), (Some(3.0), last)], ..Shown::default() };
        assert_eq!((known(Some(4.0)).last_ms(), known(Some(4.0)).worst_ms()), (Some(3.0), Some(4.0)));
        assert_eq!((known(None).first_ms(), known(None).last_ms(), known(None).worst_ms()), (Some(2.0), None, None));
    }
}
