//! Many seeds, each with its own workload, network and faults of every kind at both injection points (FI-1, FI-3).
//!
//! RL-1, MM-1, MM-3: whatever befalls them, stations keep their promises; and once it is over, all that was sent
//! arrives and links fall silent.

use super::*;
use crate::check::Report;
use crate::disk::DiskFault;
use crate::fault::{Fault, NodeFault};
use crate::network::{Network, Weather};
use crate::partition::{NodeSet, Partition};
use crate::sim::{Setup, Sim};
use phalanx_core::{Duration, Rng};
use phalanx_fault::{Delay, Distribution, Probability, Recurrence, Rule};

/// Seeds of the sweep that always runs.
const SEEDS: u64 = 100;
/// How long faults rage.
const ROUGH: Duration = Duration::from_millis(1_500);
/// How long stations work on after healing.
const LAST: Duration = Duration::from_millis(300);
/// By then all must be well: patience and the longest timeouts of the link, several times over.
const BOUND: Duration = Duration::from_secs(120);

fn ms(rng: &mut Rng, most: u64) -> Duration {
    Duration(rng.below(Duration::from_millis(most).0))
}

fn workload(rng: &mut Rng) -> Workload {
    let largest = [200, 5_000, 100_000][rng.index(3)];
    let reliable = Reliable { interval_ms: 8.0, largest, snapshots: 0.2, hold: 0.05, hold_ms: 60.0, close: 0.02 };
    let managed = Managed { interval_ms: 8.0, burst: 8, ..Managed::default() };
    let order = Ordered { interval_ms: 15.0, save_every: 4 };
    let heartbeat = Heartbeat { interval_ms: 10.0, neighbours: 2, tickets: rng.chance(0.5), ..Heartbeat::default() };
    match rng.below(6) {
        0 => Workload::Heartbeat(heartbeat),
        1 => Workload::Reliable(reliable),
        2 => Workload::Managed(managed),
        3 => Workload::Order(order),
        _ => Workload::Mixed(Mixed {
            heartbeat: Some(heartbeat),
            reliable: Some(reliable),
            managed: Some(managed),
            order: Some(order),
        }),
    }
}

/// A rule of any kind of Table 2.
fn rule(rng: &mut Rng) -> Rule {
    let span = Distribution::Exponential { mean: Duration::from_millis(5) };
    let kind = match rng.below(11) {
        0 => Kind::Drop,
        1 => Kind::Delay(Delay::Lasting(span)),
        2 => Kind::Delay(Delay::UntilNext),
        3 => Kind::Modify { bits: 1 + rng.below(8) as u32 },
        4 => Kind::Reorder,
        5 => Kind::Inject { bits: 0 },
        6 => Kind::Inject { bits: 3 },
        7 => Kind::Operation { code: None, deliver: None, after: span },
        n => Kind::Invocation { call: Call::ALL[n as usize - 8], code: None },
    };
    let recurrence = if rng.chance(0.5) {
        Recurrence::Chance(Probability::new(0.3 * rng.unit()).expect("a part of one"))
    } else {
        Recurrence::Messages(Distribution::Exponential { mean: 2 + rng.below(20) })
    };
    Rule {
        until: ms(rng, 1_000) + Duration(1),
        burst: 1 + rng.below(3) as u32,
        ..Rule::new(kind).recurring(recurrence)
    }
}

/// Plans one fault and, where it does not end by itself, its end.
fn plan(sim: &mut Sim<Station>, rng: &mut Rng, nodes: u32) {
    let at = Instant::ZERO + ms(rng, 1_400);
    let node = rng.below(u64::from(nodes)) as u32;
    let over = at + ms(rng, 400);
    let fault = |f| Fault::Node(node, f);
    let (begin, end) = match rng.below(12) {
        0 => (Fault::crash(node), Some(Fault::restart(node))),
        1 => (Fault::crash_host(node), Some(Fault::restart(node))),
        2 => (Fault::restart(node), None),
        3 => (Fault::pause(node), Some(Fault::resume(node))),
        4 => {
            let side: NodeSet = (0..nodes).filter(|_| rng.chance(0.5)).collect();
            let other = side.others(nodes);
            let cut = if rng.chance(0.5) {
                Partition::between("cut", side, other)
            } else {
                Partition::one_way("cut", side, other)
            };
            (Fault::Partition(cut), Some(Fault::HealPartition("cut".to_owned())))
        }
        5 => {
            let weather = Weather {
                loss: 0.3 * rng.unit(),
                duplication: 0.3 * rng.unit(),
                reorder: 0.5 * rng.unit(),
                reorder_by: ms(rng, 5),
                slower: ms(rng, 2),
            };
            (Fault::Weather(weather), Some(Fault::Weather(Weather::default())))
        }
        6 => {
            let rate = 0.3 + 2.0 * rng.unit();
            let step_ns = rng.below(100_000_000) as i64;
            (fault(NodeFault::Clock { rate, step_ns }), None)
        }
        7 => {
            let bad = DiskFault { delay: ms(rng, 20), fail: 0.2 * rng.unit(), lose: 0.2 * rng.unit(), forget: 0.0 };
            (fault(NodeFault::Disk(bad)), None)
        }
        8 => (fault(NodeFault::Loss { inward: 0.5 * rng.unit(), outward: 0.5 * rng.unit() }), None),
        9 | 10 => (Fault::inject(node, rule(rng)), None),
        _ => {
            sim.command_at(at, node, Command::Plain(Box::new(rule(rng))));
            return;
        }
    };
    sim.fault_at(at, begin);
    if let Some(end) = end {
        sim.fault_at(over, end);
    }
}

/// One run, all drawn from its seed.
fn run(seed: u64) -> Report {
    let mut rng = Rng::new(seed, 0x5eed);
    let nodes = 3 + rng.below(4) as u32;
    let network = Network {
        loss: if rng.chance(0.5) { 0.1 * rng.unit() } else { 0.0 },
        duplication: if rng.chance(0.5) { 0.1 * rng.unit() } else { 0.0 },
        reorder: if rng.chance(0.5) { 0.2 * rng.unit() } else { 0.0 },
        reorder_us: 1_000.0,
        ..Network::default()
    };
    let setup = Setup { seed, nodes, network, start_within: Duration::from_millis(50), ..Setup::default() };
    let seals = if rng.chance(0.05) { Seals::Real } else { Seals::Fake };
    let options = Options { seals, by_reference: rng.chance(0.3), ..Options::default() };
    let workload = workload(&mut rng);
    let mut sim = build(&setup, &workload, &options).expect("what is drawn makes sense");
    for _ in 0..rng.below(12) {
        plan(&mut sim, &mut rng, nodes);
    }
    sim.run_for(ROUGH);
    finish(&mut sim, LAST, BOUND)
}

fn sweep(seeds: impl Iterator<Item = u64>) {
    let (mut runs, mut events, mut red) = (0, 0, Vec::new());
    for seed in seeds {
        let report = run(seed);
        runs += 1;
        events += report.stats.events;
        if !report.is_green() {
            red.push(report);
        }
    }
    for report in red.iter().take(20) {
        println!("{report}");
    }
    assert!(red.is_empty(), "{} of {runs} runs are red ({events} events)", red.len());
    println!("{runs} runs, {events} events");
}

#[test]
fn stations_keep_their_promises_whatever_befalls_them() {
    sweep(0..SEEDS);
}

/// As above, for an afternoon.
#[test]
#[ignore = "takes minutes"]
fn stations_keep_their_promises_for_thousands_of_seeds() {
    sweep(SEEDS..5_000);
}
