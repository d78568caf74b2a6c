//! 002 §2: zones are split, merged and changed while the cluster runs (HI-1, HI-7), in simulated clusters of whole nodes.

use phalanx_core::{Duration, Instant, Rng};
use phalanx_protocol::member::{Engine, Name, Why};
use phalanx_protocol::zone::{MONITOR, Zone};
use phalanx_sim::Report;
use phalanx_sim::member::checks::{Accuracy, Events, Hierarchy, wrong_zone};
use phalanx_sim::member::{self, Command, Member, Note, Options, zones_known};
use phalanx_sim::{Fault, Latency, Network, NodeFault, NodeSet, Partition, Setup, Sim};

const DELAY: Duration = Duration::from_micros(500);
/// As for one zone: whoever was removed again and again waits, and discoveries are far apart.
const BOUND: Duration = Duration::from_secs(400);

fn name(zone: &str) -> Name {
    Name::new(zone).expect("a name")
}

fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// Zones `z0`, `z1`, … and the supervisors behind them.
struct Run {
    sim: Sim<Member<Zone>>,
    base: u32,
    nodes: u32,
}

impl Run {
    fn new(zones: u32, zone: u32, supervisors: u32, seed: u64, by_reference: bool) -> Self {
        let (base, nodes) = (zones * zone, zones * zone + supervisors);
        let network = Network { latency: Latency::Fixed { us: 500.0 }, ..Network::default() };
        let setup = Setup { nodes, seed, network, ..Setup::default() };
        let options = Options { zone, supervisors, named: true, by_reference, telling: true, ..Options::default() };
        let (mut sim, _) = member::build(&setup, &options).expect("a network that makes sense");
        sim.check(Events::default());
        sim.check(Accuracy::new(nodes, true));
        sim.check(Hierarchy);
        sim.keep_notes();
        Self { sim, base, nodes }
    }

    /// Booted and at rest.
    fn booted(zones: u32, zone: u32, supervisors: u32, seed: u64) -> Self {
        let mut run = Self::new(zones, zone, supervisors, seed, false);
        run.sim.run_for(secs(5));
        assert_eq!(wrong_zone(&run.sim.cluster()), None, "seed {seed}");
        run
    }

    fn zone(&self, node: u32) -> &Zone {
        self.sim.process(node).expect("a node that lives").engine()
    }

    fn relocate(&mut self, nodes: impl IntoIterator<Item = u32>, zone: &str) {
        nodes.into_iter().for_each(|n| self.sim.command(n, Command::Move(name(zone))));
    }

    /// Runs until views and censuses are right; says how long that took.
    fn settled(&mut self, bound: Duration) -> Duration {
        let begin = self.sim.now();
        loop {
            self.sim.run_for(Duration::from_millis(5));
            let took = self.sim.now().since(begin);
            match wrong_zone(&self.sim.cluster()) {
                None => return took,
                Some(wrong) => assert!(took < bound, "{wrong}"),
            }
        }
    }

    /// Members that each supervisor counts, in all zones.
    fn counted(&self) -> Vec<u32> {
        let cluster = self.sim.cluster();
        cluster.processes().filter(|(n, _)| *n >= self.base).map(|(_, m)| zones_known(m).1).collect()
    }

    fn failures(&self, since: Instant) -> usize {
        let failed = |n: &&(Instant, u32, Note)| matches!(n.2, Note::Left { why: Why::Failed, .. }) && n.0 >= since;
        self.sim.notes().iter().filter(failed).count()
    }

    fn green(&mut self) {
        let report = self.sim.settle(BOUND);
        assert!(report.is_green(), "{report}");
    }
}

/// HI-1, HI-7: half of each of two zones moves to a third; all views and every census follow, and nobody is missed or
/// taken for dead.
#[test]
fn hi_1_zones_are_split_and_merged_while_they_run() {
    for seed in 1..4 {
        let mut run = Run::booted(2, 32, 5, seed);
        for n in 0..64 {
            run.sim.command(n, Command::Set("port".into(), Some(n.to_string().into_bytes())));
        }
        run.sim.run_for(secs(1));
        let at = run.sim.now();
        let steps: [(Vec<u32>, &str); 4] = [
            ((16..48).collect(), "third"),
            ((0..16).collect(), "z1"),
            ((16..48).collect(), "z1"),
            ((0..64).step_by(2).collect(), "z0"),
        ];
        for (movers, zone) in steps {
            run.relocate(movers, zone);
            let took = run.settled(secs(20));
            assert!(took <= secs(2), "seed {seed}: {took} until all are in {zone}");
        }
        run.sim.run_for(secs(5));
        for reader in 0..64 {
            let zone = run.zone(reader);
            for (slot, version) in zone.members() {
                let node = run.sim.process(reader).and_then(|m| m.whereabouts(slot)).expect("a node");
                assert_eq!(zone.attribute(slot, "port"), Some(node.to_string().as_bytes()), "{node} at {reader}");
                assert_eq!(version.incarnation, 1, "in the same life");
            }
        }
        assert_eq!(run.failures(at), 0, "seed {seed}");
        run.green();
    }
}

/// HI-1: one member moves, and the rest of both zones hears of it as of a move, after a few delays.
#[test]
fn hi_1_a_move_is_told_as_a_move() {
    for seed in 1..4 {
        let mut run = Run::booted(2, 16, 3, seed);
        let at = run.sim.now();
        run.relocate([5], "z1");
        let took = run.settled(secs(20));
        assert!(took <= DELAY * 400, "seed {seed}: {took}");
        let of = |n: &&(Instant, u32, Note)| n.0 >= at && matches!(n.2, Note::Left { node: 5, .. });
        let told: Vec<_> = run.sim.notes().iter().filter(of).collect();
        assert!(told.iter().all(|n| matches!(n.2, Note::Left { why: Why::Moved, .. })));
        assert_eq!(told.len(), 15, "each of its old zone hears it once");
        assert!(told.iter().all(|n| n.0.since(at) <= DELAY * 12), "seed {seed}");
        run.green();
    }
}

/// HI-3: while a zone is split, no census counts anybody twice, and none misses anybody for longer than the move.
#[test]
fn hi_3_a_census_follows_those_who_move() {
    for seed in 1..4 {
        let mut run = Run::booted(2, 32, 5, seed);
        run.relocate(16..32, "third");
        let (mut least, mut most) = (64, 0);
        for _ in 0..1000 {
            run.sim.run_for(Duration::from_millis(1));
            for counted in run.counted() {
                (least, most) = (least.min(counted), most.max(counted));
            }
        }
        assert!(most <= 64, "seed {seed}: {most}");
        assert!(least >= 48, "seed {seed}: {least}");
        assert_eq!(run.counted(), [64; 5], "seed {seed}");
    }
}

/// HI-4: the delegates of a zone that has just come to be hear of a crash in it first, and every census soon after.
#[test]
fn hi_4_monitors_follow_those_who_move() {
    for seed in 1..4 {
        let mut run = Run::booted(2, 24, 4, seed);
        run.relocate(12..36, "third");
        run.settled(secs(10));
        run.sim.run_for(secs(2));
        let is_monitor = |run: &Run, n: &u32| run.zone(*n).attribute(run.zone(*n).me(), MONITOR).is_some();
        let monitors: Vec<u32> = (0..48).filter(|n| is_monitor(&run, n)).collect();
        let inside = monitors.iter().filter(|n| (12..36).contains(*n)).count();
        assert_eq!((monitors.len(), inside), (6, 2), "seed {seed}: two for each zone");
        let at = run.sim.now();
        let victim = (12..36).find(|n| !monitors.contains(n)).expect("another");
        run.sim.fault(Fault::crash(victim));
        run.sim.run_for(DELAY * 40);
        for monitor in monitors.iter().filter(|n| (12..36).contains(*n)) {
            let of = |n: &&(Instant, u32, Note)| {
                n.0 >= at
                    && n.1 == *monitor
                    && matches!(n.2, Note::Left { node, why: Why::Failed, .. } if node == victim)
            };
            let known = run.sim.notes().iter().find(of).expect("the monitor knows").0.since(at);
            assert!(known <= DELAY * 6, "seed {seed}: {known}");
        }
        assert_eq!(run.counted(), [47; 4], "seed {seed}");
    }
}

/// HI-1: some members get the new configuration later, some never, some twice and back again.
#[test]
fn hi_1_a_change_that_reaches_only_some_leaves_both_zones_consistent() {
    for seed in 1..4 {
        let mut run = Run::booted(2, 24, 4, seed);
        let at = run.sim.now();
        let mut rng = Rng::new(seed, 1);
        for n in 0..48 {
            for round in 0..rng.below(4) {
                let zone = ["z0", "z1", "new"][rng.index(3)];
                let when = at + secs(round * 2) + Duration(rng.below(2_000_000_000));
                run.sim.command_at(when, n, Command::Move(name(zone)));
            }
        }
        run.sim.run_for(secs(9));
        let took = run.settled(secs(30));
        assert!(took <= secs(10), "seed {seed}: {took}");
        assert_eq!(run.failures(at), 0, "seed {seed}");
        run.green();
    }
}

/// HI-1: those who move together find each other by what their old zone knows: there are no supervisors here, and no seeds.
#[test]
fn hi_1_a_zone_is_split_without_supervisors() {
    for (seed, zone, movers) in [(1, 32, 16), (2, 32, 2), (3, 64, 60), (4, 5, 3), (5, 3, 2), (6, 200, 100)] {
        let mut run = Run::booted(1, zone, 0, seed);
        let at = run.sim.now();
        run.relocate(0..movers, "new");
        let took = run.settled(secs(20));
        assert!(took <= secs(2), "seed {seed}: {took}");
        // One follows later, one goes back.
        run.relocate([zone - 1], "new");
        run.relocate([0], "z0");
        run.settled(secs(20));
        assert_eq!(run.failures(at), 0, "seed {seed}");
        run.green();
    }
}

/// HI-1: whoever is restarted in a zone whose whole bootstrap set has moved away finds it again.
#[test]
fn hi_1_seeds_that_moved_say_who_is_where_they_were() {
    let mut run = Run::booted(1, 24, 3, 1);
    run.relocate(0..12, "new");
    run.settled(secs(10));
    run.sim.fault(Fault::restart(20));
    run.sim.run_for(secs(1));
    run.settled(secs(20));
    run.green();
}

/// Drawn moves, with drawn faults of others and of those who move.
fn swarm(seed: u64) -> Report {
    let mut rng = Rng::new(seed, 0x307e);
    let (zones, zone, supervisors) = (2, 4 + rng.below(13) as u32, 1 + rng.below(5) as u32);
    let mut run = Run::new(zones, zone, supervisors, seed, rng.chance(0.5));
    let at = |rng: &mut Rng| Instant::ZERO + secs(3) + Duration(rng.below(10_000_000_000));
    for _ in 0..1 + rng.below(4) {
        let (when, part) = (at(&mut rng), [0.1, 0.5, 1.0][rng.index(3)]);
        let spread = [1, 5_000_000, 2_000_000_000][rng.index(3)];
        let to = name(["z0", "z1", "new"][rng.index(3)]);
        for n in 0..run.base {
            if rng.chance(part) {
                run.sim.command_at(when + Duration(rng.below(spread)), n, Command::Move(to.clone()));
            }
        }
        // Somebody falls in the middle of it.
        for _ in 0..rng.below(4) {
            let node = rng.below(run.nodes.into()) as u32;
            let then = when + Duration(rng.below(spread + 3_000_000));
            let kind = [NodeFault::CrashProcess, NodeFault::CrashHost, NodeFault::Restart][rng.index(3)];
            run.sim.fault_at(then, Fault::Node(node, kind));
        }
    }
    if rng.chance(0.5) {
        let side: NodeSet = (0..run.nodes).filter(|_| rng.chance(0.4)).collect();
        let other = side.others(run.nodes);
        let when = at(&mut rng);
        run.sim.fault_at(when, Fault::Partition(Partition::between("cut", side, other)));
        run.sim.fault_at(when + Duration(rng.below(6_000_000_000)), Fault::HealPartition("cut".into()));
    }
    run.sim.run_for(secs(20));
    run.sim.heal(true);
    run.sim.settle(BOUND)
}

fn sweep(seeds: std::ops::Range<u64>) {
    let red: Vec<Report> = seeds.map(swarm).filter(|r| !r.is_green()).collect();
    red.iter().take(5).for_each(|report| println!("{report}"));
    assert!(red.is_empty(), "{:?}", red.iter().map(|r| r.seed).collect::<Vec<_>>());
}

/// HI-1, HI-2: members move while others crash and the network is cut: in the end all is consistent.
#[test]
fn hi_1_moves_under_faults_end_in_consistent_zones() {
    sweep(0..40);
}

/// As above, for longer.
#[test]
#[ignore = "takes minutes"]
fn hi_1_moves_under_faults_end_in_consistent_zones_for_many_seeds() {
    sweep(40..440);
}

/// HI-1 at size: two zones of 512, of which a quarter of each makes a third.
#[test]
fn hi_1_zones_of_512_are_split() {
    let mut run = Run::new(2, 512, 4, 1, true);
    run.sim.run_for(secs(5));
    assert_eq!(wrong_zone(&run.sim.cluster()), None);
    let at = run.sim.now();
    run.relocate(384..640, "third");
    let took = run.settled(secs(20));
    assert!(took <= secs(3), "{took}");
    assert_eq!(run.failures(at), 0);
}
