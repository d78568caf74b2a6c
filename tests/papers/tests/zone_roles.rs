//! 002 §2: every role of the hierarchy is redundant and replaced (HI-2), whoever falls, and however many at once.

use phalanx_core::Duration;
use phalanx_protocol::member::Engine;
use phalanx_protocol::zone::{MONITOR, Zone};
use phalanx_sim::member::checks::{Hierarchy, wrong_zone};
use phalanx_sim::member::{self, Member, Options, zones_known};
use phalanx_sim::{Fault, Latency, Network, NodeFault, NodeSet, Partition, Setup, Sim};

const ZONES: u32 = 4;
const ZONE: u32 = 12;
const BASE: u32 = ZONES * ZONE;
const SUPERVISORS: u32 = 6;
/// A silent host is known by then: beats, patience, probes.
const DETECTION: Duration = Duration::from_secs(3);
const KINDS: [NodeFault; 2] = [NodeFault::CrashProcess, NodeFault::CrashHost];

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn booted(seed: u64) -> Sim<Member<Zone>> {
    let network = Network { latency: Latency::Fixed { us: 500.0 }, ..Network::default() };
    let setup = Setup { nodes: BASE + SUPERVISORS, seed, network, ..Setup::default() };
    let options = Options { zone: ZONE, supervisors: SUPERVISORS, telling: true, ..Options::default() };
    let (mut sim, _) = member::build(&setup, &options).expect("a network that makes sense");
    sim.check(Hierarchy);
    sim.run_for(secs(5));
    assert_eq!(wrong_zone(&sim.cluster()), None, "seed {seed}");
    sim
}

fn delegates(sim: &Sim<Member<Zone>>) -> Vec<u32> {
    let is_one = |zone: &Zone| zone.attribute(zone.me(), MONITOR).is_some();
    sim.cluster().processes().filter(|(n, m)| *n < BASE && is_one(m.engine())).map(|(n, _)| n).collect()
}

/// The fewest members that a living supervisor counts.
fn least(sim: &Sim<Member<Zone>>) -> u32 {
    let cluster = sim.cluster();
    let counts = cluster.processes().filter(|(n, _)| *n >= BASE).map(|(_, m)| zones_known(m).1);
    counts.min().unwrap_or(0)
}

/// Strikes them all at once. Nobody who lives may be missed after `blind`, and all must be right after `bound`.
fn strike(sim: &mut Sim<Member<Zone>>, victims: &[u32], kind: NodeFault, blind: Duration, bound: Duration, what: &str) {
    victims.iter().for_each(|&v| sim.fault(Fault::Node(v, kind)));
    let living = BASE - victims.iter().filter(|&&v| v < BASE).count() as u32;
    let begin = sim.now();
    loop {
        sim.run_for(Duration::from_millis(10));
        let took = sim.now().since(begin);
        let known = least(sim);
        assert!(took <= blind || known >= living, "{what}, {kind:?}, after {took}: {known} of {living}");
        match wrong_zone(&sim.cluster()) {
            None => return,
            Some(wrong) => assert!(took < bound, "{what}, {kind:?}, after {took}: {wrong}"),
        }
    }
}

/// HI-2: all delegates of all zones at once; then those who took their place.
#[test]
fn hi_2_all_delegates_fall_at_once() {
    for (seed, kind) in [(1, KINDS[0]), (2, KINDS[1]), (3, KINDS[1])] {
        let mut sim = booted(seed);
        for _ in 0..2 {
            let fallen = delegates(&sim);
            assert_eq!(fallen.len() as u32, ZONES * 2, "seed {seed}");
            strike(&mut sim, &fallen, kind, DETECTION, DETECTION + secs(2), "delegates");
            for s in BASE..BASE + SUPERVISORS {
                let census = sim.process(s).expect("it lives").engine().census();
                assert!(census.into_iter().all(|z| z.1.delegates >= 1), "seed {seed}");
            }
            // The second round falls on those who have taken over, not on an election.
            sim.run_for(secs(2));
            // Who fell is not in later counts.
            let living: u32 = BASE - fallen.len() as u32;
            assert_eq!(least(&sim), living, "seed {seed}");
            if seed != 1 {
                break;
            }
            fallen.iter().for_each(|&n| sim.fault(Fault::restart(n)));
            sim.run_for(secs(5));
            assert_eq!(wrong_zone(&sim.cluster()), None, "seed {seed}");
        }
    }
}

/// HI-2: all supervisors but one. The last one finds all zones again, or they it.
#[test]
fn hi_2_all_supervisors_but_one_fall_at_once() {
    for (seed, kind) in [(1, KINDS[0]), (2, KINDS[1]), (3, KINDS[0]), (4, KINDS[1])] {
        let mut sim = booted(seed);
        let last = BASE + seed as u32 % SUPERVISORS;
        let fallen: Vec<u32> = (BASE..BASE + SUPERVISORS).filter(|&s| s != last).collect();
        strike(&mut sim, &fallen, kind, secs(40), secs(40), "supervisors");
    }
}

/// HI-2: delegates and supervisors together.
#[test]
fn hi_2_delegates_and_guards_fall_together() {
    for (seed, kind) in [(1, KINDS[0]), (2, KINDS[1]), (3, KINDS[0]), (4, KINDS[1])] {
        let mut sim = booted(seed);
        let mut fallen = delegates(&sim);
        fallen.extend(BASE..BASE + SUPERVISORS / 2);
        strike(&mut sim, &fallen, kind, secs(20), secs(20), "delegates and supervisors");
    }
}

/// HI-2: everybody starts again at once.
#[test]
fn hi_2_all_nodes_restart_at_once() {
    for seed in 1..4 {
        let mut sim = booted(seed);
        let all: Vec<u32> = (0..BASE + SUPERVISORS).collect();
        all.iter().for_each(|&n| sim.fault(Fault::restart(n)));
        sim.run_for(secs(10));
        assert_eq!(wrong_zone(&sim.cluster()), None, "seed {seed}");
    }
}

/// HI-2: all supervisors are gone for a while, and come back as new ones.
#[test]
fn hi_2_all_supervisors_fall_and_return() {
    for (seed, kind, away) in [(1, KINDS[0], 0), (2, KINDS[1], 2), (3, KINDS[1], 30), (4, KINDS[0], 60)] {
        let mut sim = booted(seed);
        (BASE..BASE + SUPERVISORS).for_each(|s| sim.fault(Fault::Node(s, kind)));
        sim.run_for(secs(away));
        (BASE..BASE + SUPERVISORS).for_each(|s| sim.fault(Fault::restart(s)));
        sim.run_for(secs(20));
        assert_eq!(wrong_zone(&sim.cluster()), None, "seed {seed}");
    }
}

/// HI-2: a supervisor is cut from its colleagues, not from the zones: the others' census stays right.
#[test]
fn hi_2_a_supervisor_that_is_cut_off_takes_no_zone_with_it() {
    for seed in 1..=u64::from(SUPERVISORS) {
        let mut sim = booted(seed);
        let one = BASE + seed as u32 - 1;
        let others: NodeSet = (BASE..BASE + SUPERVISORS).filter(|&s| s != one).collect();
        sim.fault(Fault::Partition(Partition::between("cut", [one], others)));
        sim.run_for(secs(30));
        let victim = (0..ZONE).find(|n| !delegates(&sim).contains(n)).expect("no delegate");
        sim.fault(Fault::crash(victim));
        sim.run_for(secs(1));
        for _ in 0..40 {
            sim.run_for(Duration::from_millis(100));
            for s in BASE..BASE + SUPERVISORS {
                let supervisor = sim.process(s).expect("it lives");
                let count = BASE - 1;
                assert!(s == one || zones_known(supervisor) == (ZONES as usize, count), "seed {seed}, supervisor {s}");
                let census: Vec<u8> = supervisor.engine().census().map(|z| z.1.delegates).collect();
                assert!(census.iter().all(|&d| d == 2), "seed {seed}, supervisor {s}: {census:?}");
            }
        }
        sim.fault(Fault::HealPartition("cut".into()));
        sim.run_for(secs(60));
        assert_eq!(wrong_zone(&sim.cluster()), None, "seed {seed}");
    }
}

/// HI-2: a zone is cut from the supervisors and loses a member meanwhile. The others are not given up, and after the cut
/// the census is right.
#[test]
fn hi_2_a_zone_out_of_reach_keeps_its_last_count() {
    for (seed, lasts) in [(1, 3), (2, 30), (3, 90)] {
        let mut sim = booted(seed);
        let (zone, supervisors) = (NodeSet::range(0..ZONE), NodeSet::range(BASE..BASE + SUPERVISORS));
        sim.fault(Fault::Partition(Partition::between("cut", zone, supervisors)));
        sim.run_for(secs(1));
        sim.fault(Fault::crash(5));
        sim.run_for(secs(lasts));
        assert_eq!(least(&sim), BASE, "seed {seed}: the last that was known");
        sim.fault(Fault::HealPartition("cut".into()));
        sim.run_for(secs(10));
        assert_eq!((wrong_zone(&sim.cluster()), least(&sim)), (None, BASE - 1), "seed {seed}");
    }
}

/// HI-3: a zone is cut in two, and both halves reach the supervisors: everybody counts.
#[test]
fn hi_3_both_halves_of_a_divided_zone_count() {
    for seed in 1..4 {
        let mut sim = booted(seed);
        let halves = (NodeSet::range(0..ZONE / 2), NodeSet::range(ZONE / 2..ZONE));
        sim.fault(Fault::Partition(Partition::between("cut", halves.0, halves.1)));
        for second in 0..40 {
            sim.run_for(secs(1));
            assert!(second < 20 || least(&sim) == BASE, "seed {seed}, after {second} s: {}", least(&sim));
        }
        sim.fault(Fault::HealPartition("cut".into()));
        sim.run_for(secs(60));
        assert_eq!(wrong_zone(&sim.cluster()), None, "seed {seed}");
    }
}

/// HI-2: a supervisor and a delegate lose each other though both live, on one side only or on both.
#[test]
fn hi_2_a_broken_wire_costs_no_role() {
    for seed in 1..4 {
        let mut sim = booted(seed);
        for d in delegates(&sim) {
            (BASE..BASE + SUPERVISORS).for_each(|s| sim.fault(Fault::ResetStream(d, s)));
        }
        sim.run_for(secs(12));
        assert_eq!(wrong_zone(&sim.cluster()), None, "seed {seed}");
        for s in BASE..BASE + SUPERVISORS {
            let census: Vec<u8> = sim.process(s).expect("it lives").engine().census().map(|z| z.1.delegates).collect();
            assert_eq!(census, [2; ZONES as usize], "seed {seed}");
        }
    }
}

/// HI-2: roles cost little at rest: a delegate and its guards send some more than other members, and nothing else happens.
#[test]
fn hi_2_roles_cost_little_at_rest() {
    let mut sim = booted(1);
    sim.run_for(secs(20));
    let sent = |sim: &Sim<Member<Zone>>, n: u32| sim.bytes(n).0;
    let before: Vec<u64> = (0..BASE + SUPERVISORS).map(|n| sent(&sim, n)).collect();
    sim.run_for(secs(60));
    let each: Vec<u64> = (0..BASE + SUPERVISORS).map(|n| (sent(&sim, n) - before[n as usize]) / 60).collect();
    let roles = delegates(&sim);
    for (n, &bytes) in (0..).zip(&each) {
        let bound = if roles.contains(&n) || n >= BASE { 350 } else { 250 };
        assert!(bytes <= bound, "node {n} sends {bytes} B/s; all: {each:?}");
    }
}
