//! 002: zone membership, attribute replication and hierarchy, in simulated clusters of whole nodes.
//!
//! Times are the run's own: a seed gives them, not the machine. The figures at full size are experiments (`lab`).

use phalanx_core::{Duration, Instant};
use phalanx_protocol::member::{Engine, Name, Slot};
use phalanx_protocol::zone::{Config, MONITOR, Zone};
use phalanx_sim::member::{self, Command, Member, Note, Options, Telling};
use phalanx_sim::{Fault, Latency, Network, NodeFault, Setup, Sim};
use std::collections::BTreeSet;

const DELAY: Duration = Duration::from_micros(500);

struct Run {
    sim: Sim<Member<Zone>>,
    telling: Telling,
    nodes: u32,
}

impl Run {
    fn of(nodes: u32, seed: u64, profile: Config) -> Self {
        Self::with(nodes, seed, Options { profile, ..Options::default() })
    }

    fn with(nodes: u32, seed: u64, options: Options) -> Self {
        let network = Network { latency: Latency::Fixed { us: 500.0 }, ..Network::default() };
        let setup = Setup { nodes, seed, network, ..Setup::default() };
        let (sim, telling) = member::build(&setup, &options).expect("a network that makes sense");
        Self { sim, telling, nodes }
    }

    /// One zone, booted and at rest.
    fn booted(nodes: u32, seed: u64, profile: Config) -> Self {
        let mut run = Self::of(nodes, seed, profile);
        let boot = member::boot(&mut run.sim, nodes as usize, Duration::from_millis(10), Duration::from_secs(20));
        assert_eq!(boot.behind, 0, "{nodes} nodes, seed {seed}");
        run.sim.run_for(Duration::from_secs(5));
        run
    }

    fn tell(&mut self) -> Instant {
        self.sim.keep_notes();
        self.telling.set(true);
        self.sim.now()
    }

    fn zone(&self, node: u32) -> &Zone {
        self.sim.process(node).expect("a node that lives").engine()
    }

    fn views(&self) -> BTreeSet<Vec<(Slot, phalanx_protocol::member::Version)>> {
        self.sim.cluster().processes().map(|(_, m)| m.engine().members().collect()).collect()
    }

    fn left(&self, who: u32) -> Vec<(Instant, u32)> {
        let of = |n: &&(Instant, u32, Note)| matches!(n.2, Note::Left { node, .. } if node == who);
        self.sim.notes().iter().filter(of).map(|n| (n.0, n.1)).collect()
    }
}

/// ZN-1: views become equal, and joins and leaves are told one by one.
#[test]
fn zn_1_views_of_connected_members_become_equal() {
    for (nodes, seed) in [(1, 1), (2, 2), (3, 3), (17, 4), (64, 5)] {
        for profile in [Config::lan(), Config::paper(), Config::wan(), Config::local()] {
            let run = Run::booted(nodes, seed, profile);
            assert_eq!(run.views().len(), 1, "{nodes} nodes, seed {seed}");
        }
    }
}

/// ZN-3: two halves that started apart, or were cut apart, become one.
#[test]
fn zn_3_discovery_heals_a_partition() {
    use phalanx_sim::{NodeSet, Partition};
    let mut run = Run::booted(24, 7, Config::lan());
    run.sim.fault(Fault::Partition(Partition::between("cut", NodeSet::range(0..12), NodeSet::range(12..24))));
    run.sim.run_for(Duration::from_secs(20));
    assert_eq!(run.views().len(), 2, "each side sees itself");
    assert_eq!(run.zone(3).len(), 12);
    run.sim.fault(Fault::HealPartition("cut".into()));
    run.sim.run_for(Duration::from_secs(70));
    assert_eq!((run.views().len(), run.zone(3).len()), (1, 24));
    let minor = run.zone(3).version(Slot(20)).expect("it is back").minor;
    assert!(minor > 1, "whoever was thought dead has spoken up");
}

/// ZN-4: a ring, and a nearly regular random graph; the diameter is logarithmic.
#[test]
fn zn_4_the_overlay_is_a_ring_and_a_random_graph_of_small_diameter() {
    for (nodes, seed) in [(64, 1), (256, 2), (512, 3)] {
        let profile = Config::paper();
        let mut run =
            Run::with(nodes, seed, Options { profile: profile.clone(), by_reference: true, ..Options::default() });
        assert_eq!(
            member::boot(&mut run.sim, nodes as usize, Duration::from_millis(50), Duration::from_secs(20)).behind,
            0
        );
        run.sim.run_for(Duration::from_secs(10));
        let near: Vec<Vec<u32>> = (0..nodes).map(|n| run.zone(n).neighbours().map(|s| s.0).collect()).collect();
        for (n, neighbours) in near.iter().enumerate() {
            let ring = run.zone(n as u32).roster().behind(Slot(n as u32)).next().expect("others");
            assert!(neighbours.contains(&ring.0), "{n} is linked to its successor");
            assert!(neighbours.len() <= profile.successors * 2 + profile.randoms + 4, "{n}: {neighbours:?}");
        }
        let bound = f64::from(nodes).log(profile.randoms as f64) + 2.0;
        let diameter = (0..nodes as usize).step_by(7).map(|from| eccentricity(&near, from)).max();
        let diameter = diameter.flatten().expect("connected");
        assert!(diameter as f64 <= bound, "{nodes} nodes: {diameter} > {bound}");
    }
}

/// The most hops from one node to any other; `None` when some cannot be reached.
fn eccentricity(near: &[Vec<u32>], from: usize) -> Option<usize> {
    let mut distance = vec![usize::MAX; near.len()];
    let mut wave = vec![from];
    distance[from] = 0;
    for hops in 1.. {
        let next: Vec<usize> = wave.iter().flat_map(|&n| &near[n]).map(|&m| m as usize).collect();
        wave.clear();
        for m in next {
            if distance[m] > hops {
                distance[m] = hops;
                wave.push(m);
            }
        }
        if wave.is_empty() {
            break;
        }
    }
    distance.iter().copied().max().filter(|&d| d < usize::MAX)
}

/// ZN-5: a dead process is known everywhere after a few delays, a dead host after a few missed beats, and nobody else
/// is taken for dead.
#[test]
fn zn_5_a_crash_is_known_to_all_and_nobody_else_is_blamed() {
    for (kind, bound) in [(NodeFault::CrashProcess, DELAY * 16), (NodeFault::CrashHost, Duration::from_secs(2))] {
        for seed in 1..4 {
            let mut run = Run::booted(48, seed, Config::lan());
            let at = run.tell();
            run.sim.fault(Fault::Node(20, kind));
            run.sim.run_for(Duration::from_secs(10));
            let known = run.left(20);
            assert_eq!(known.len(), 47, "seed {seed}, {kind:?}");
            let last = known.iter().map(|k| k.0.since(at)).max().expect("all");
            assert!(last <= bound, "seed {seed}, {kind:?}: {last}");
            let others =
                run.sim.notes().iter().filter(|n| matches!(n.2, Note::Left { node, .. } if node != 20)).count();
            assert_eq!((others, run.views().len()), (0, 1));
        }
    }
}

/// ZN-5: an orderly leave is told with its exit code, and is no failure.
#[test]
fn zn_5_an_orderly_leave_carries_its_code() {
    use phalanx_protocol::member::Why;
    let mut run = Run::booted(16, 1, Config::lan());
    run.tell();
    run.sim.command(5, Command::Leave(7));
    run.sim.run_for(Duration::from_secs(5));
    let why = |n: &(Instant, u32, Note)| match n.2 {
        Note::Left { node: 5, why, .. } if n.1 != 5 => Some(why),
        _ => None,
    };
    let told: Vec<Why> = run.sim.notes().iter().filter_map(why).collect();
    assert_eq!(told, [Why::Departed(7); 15]);
}

/// ZN-1, ZN-2: a restarted member is a new incarnation, everywhere, and its old one never returns.
#[test]
fn zn_2_all_members_restart_at_once_and_no_old_incarnation_returns() {
    let mut run = Run::booted(32, 3, Config::lan());
    run.tell();
    for node in 0..32 {
        run.sim.fault(Fault::restart(node));
    }
    run.sim.run_for(Duration::from_secs(30));
    assert_eq!(run.views().len(), 1);
    assert!(run.zone(9).members().all(|(_, v)| v.incarnation == 2) && run.zone(9).len() == 32);
    let old = run.sim.notes().iter().filter(|n| matches!(n.2, Note::Joined { version, .. } if version.incarnation < 2));
    assert_eq!(old.count(), 0);
}

/// ZN-8: who declares itself a monitor hears of a crash before most.
#[test]
fn zn_8_a_monitor_hears_first() {
    let mut run = Run::booted(200, 2, Config::lan());
    run.sim.command(7, Command::Set(MONITOR.into(), Some(b"1".to_vec())));
    run.sim.run_for(Duration::from_secs(1));
    let at = run.tell();
    run.sim.fault(Fault::Node(100, NodeFault::CrashProcess));
    run.sim.run_for(Duration::from_secs(2));
    let known = run.left(100);
    let mine = known.iter().find(|k| k.1 == 7).expect("the monitor knows").0.since(at);
    // The wire breaks, the host says that nobody listens, the alarm: no session is waited for.
    assert!(mine <= DELAY * 5, "{mine}");
    assert!(known.iter().filter(|k| k.0.since(at) < mine).count() < 100);
}

/// AT-1, AT-2: what a member writes is read by all, in order of writing; an idle zone says nothing about it.
#[test]
fn at_2_attributes_reach_everybody_and_cost_nothing_when_idle() {
    let mut run = Run::booted(40, 6, Config::lan());
    for n in 0..40 {
        run.sim.command(n, Command::Set("port".into(), Some(n.to_string().into_bytes())));
    }
    run.sim.run_for(Duration::from_secs(5));
    for reader in 0..40 {
        for n in 0..40 {
            assert_eq!(run.zone(reader).attribute(Slot(n), "port"), Some(n.to_string().as_bytes()), "{n} at {reader}");
        }
    }
    run.sim.command(3, Command::Set("port".into(), None));
    run.sim.fault(Fault::Node(4, NodeFault::CrashProcess));
    run.sim.run_for(Duration::from_secs(5));
    assert_eq!((run.zone(30).attribute(Slot(3), "port"), run.zone(30).attribute(Slot(4), "port")), (None, None));
    let sent = |run: &Run| (0..run.nodes).map(|n| run.sim.bytes(n).0).sum::<u64>();
    run.sim.run_for(Duration::from_secs(60));
    let before = sent(&run);
    run.sim.run_for(Duration::from_secs(60));
    assert!((sent(&run) - before) / 60 / 40 <= 250, "beats only");
}

/// HI-1 to HI-4: delegates report, supervisors count, and a crash is in every census after a few delays.
#[test]
fn hi_3_every_supervisor_has_a_census_and_hears_of_a_crash() {
    for seed in 1..4 {
        let (zones, zone, supervisors) = (6, 20, 5);
        let options = Options { zone, supervisors, ..Options::default() };
        let mut run = Run::with(zones * zone + supervisors, seed, options);
        run.sim.run_for(Duration::from_secs(5));
        let known = |run: &Run| -> Vec<(usize, u32)> {
            let cluster = run.sim.cluster();
            let all = cluster.processes().filter(|(n, _)| *n >= zones * zone);
            all.map(|(_, m)| member::zones_known(m)).collect()
        };
        assert_eq!(known(&run), vec![(6, 120); 5], "seed {seed}");
        // Neither a seed of its zone nor, in these seeds, one of its delegates.
        run.sim.fault(Fault::Node(zone + 12, NodeFault::CrashProcess));
        run.sim.run_for(DELAY * 40);
        assert_eq!(known(&run), vec![(6, 119); 5], "seed {seed}");
    }
}

/// HI-2: any delegate or supervisor may fail at any time and is replaced.
#[test]
fn hi_2_roles_are_taken_by_others_when_their_holders_die() {
    let (zones, zone, supervisors) = (4, 16, 6);
    for seed in 1..4 {
        let options = Options { zone, supervisors, ..Options::default() };
        let mut run = Run::with(zones * zone + supervisors, seed, options);
        run.sim.run_for(Duration::from_secs(5));
        let delegates: Vec<u32> =
            (0..zones * zone).filter(|&n| run.zone(n).attribute(run.zone(n).me(), MONITOR).is_some()).collect();
        assert_eq!(delegates.len(), 8, "seed {seed}: two for each zone");
        for &d in &delegates {
            run.sim.fault(Fault::Node(d, NodeFault::CrashProcess));
        }
        for s in 0..3 {
            run.sim.fault(Fault::Node(zones * zone + s, NodeFault::CrashHost));
        }
        run.sim.run_for(Duration::from_secs(20));
        let left = zones * zone - 8;
        for s in 3..supervisors {
            let member = run.sim.process(zones * zone + s).expect("it lives");
            assert_eq!(member::zones_known(member), (4, left), "seed {seed}, supervisor {s}");
            let delegates: Vec<u8> = member.engine().census().map(|(_, z)| z.delegates).collect();
            assert_eq!(delegates, [2; 4], "seed {seed}, supervisor {s}");
        }
    }
}

/// HI-3: the members of a zone, by name, at a supervisor that guards it.
#[test]
fn hi_3_a_guard_knows_the_members_of_its_zones() {
    let options = Options { zone: 10, supervisors: 3, ..Options::default() };
    let mut run = Run::with(33, 1, options);
    run.sim.run_for(Duration::from_secs(5));
    for z in 0..3 {
        let name = Name::new(&format!("z{z}")).expect("a name");
        let guards: Vec<_> = (30..33).filter_map(|s| run.zone(s).details(&name)).collect();
        assert_eq!(guards.len(), 2, "two guards of {name}");
        for members in guards {
            let names: BTreeSet<String> = members.iter().map(|m| m.0.name.to_string()).collect();
            assert_eq!(names, (z * 10..z * 10 + 10).map(|n| format!("n{n}")).collect::<BTreeSet<_>>());
        }
    }
}

/// By reference and as bytes, on one thread and on two: the same run.
#[test]
fn a_run_is_the_same_by_reference_and_on_two_threads() {
    let trace = |by_reference, threads| {
        let network = Network { latency: Latency::Fixed { us: 500.0 }, ..Network::default() };
        let setup = Setup { nodes: 84, seed: 9, threads, network, ..Setup::default() };
        let options = Options { by_reference, zone: 40, supervisors: 4, ..Options::default() };
        let (mut sim, _) = member::build(&setup, &options).expect("a network that makes sense");
        sim.run_for(Duration::from_secs(2));
        sim.fault(Fault::Node(50, NodeFault::CrashProcess));
        sim.run_for(Duration::from_secs(2));
        sim.trace()
    };
    let one = trace(false, 1);
    assert_eq!([trace(true, 1), trace(false, 2), trace(true, 2)], [one; 3]);
}

fn named(run: &Run) -> Vec<(u32, u32, Option<u32>)> {
    let named = |n: &(Instant, u32, Note)| match n.2 {
        Note::Name { holder, loser } => Some((n.1, holder, loser)),
        _ => None,
    };
    let mut told: Vec<_> = run.sim.notes().iter().filter_map(named).collect();
    told.sort_unstable();
    told
}

fn holders(run: &Run, name: &str) -> BTreeSet<Option<Slot>> {
    run.sim.cluster().processes().map(|(_, m)| m.engine().holder(name)).collect()
}

/// A name that is taken twice: one holds it, all agree who, both are told once, and nobody is removed for it.
#[test]
fn a_taken_name_is_decided_alike_by_all_and_told_to_both() {
    for (seed, by_reference) in (1..5).flat_map(|s| [(s, false), (s, true)]) {
        let options = Options { namesakes: vec![(20, 11)], by_reference, telling: true, ..Options::default() };
        let mut run = Run::with(32, seed, options);
        run.sim.keep_notes();
        // While they look for each other.
        run.sim.run_for(Duration::from_millis(1));
        for n in [11, 20] {
            run.sim.command(n, Command::Set("k".into(), Some(vec![n as u8])));
        }
        run.sim.run_for(Duration::from_secs(30));
        for n in [11, 20] {
            let values: BTreeSet<_> = (0..32).map(|m| run.zone(m).attribute(Slot(n), "k")).collect();
            assert_eq!(values, BTreeSet::from([Some(&[n as u8][..])]), "seed {seed}: what {n} says in whatever life");
        }
        let told = named(&run);
        let Some(&(_, holder, Some(loser))) = told.first() else { panic!("seed {seed}: {told:?}") };
        assert_eq!(told, [(11, holder, Some(loser)), (20, holder, Some(loser))], "seed {seed}");
        assert_eq!((holder.min(loser), holder.max(loser)), (11, 20));
        assert_eq!(holders(&run, "n11"), BTreeSet::from([Some(Slot(holder))]), "seed {seed}");
        assert_eq!((run.views().len(), run.zone(0).len()), (1, 32), "both live on");
        // The holder dies: the name is the other's. It comes back: no flip-flop, who is there stays.
        run.sim.fault(Fault::Node(holder, NodeFault::CrashProcess));
        run.sim.run_for(Duration::from_secs(10));
        assert!(named(&run).contains(&(loser, loser, None)), "seed {seed}");
        assert_eq!(holders(&run, "n11"), BTreeSet::from([Some(Slot(loser))]), "seed {seed}");
        run.sim.fault(Fault::Node(holder, NodeFault::Restart));
        run.sim.run_for(Duration::from_secs(30));
        assert_eq!(holders(&run, "n11"), BTreeSet::from([Some(Slot(loser))]), "seed {seed}");
        let last = named(&run).into_iter().filter(|n| n.1 == loser && n.2 == Some(holder)).map(|n| n.0);
        assert_eq!(last.collect::<Vec<_>>(), [11, 20], "told to both, once");
        // It does as it was told.
        let name = Name::new("other").expect("letters");
        run.sim.command(holder, Command::Rename(name));
        run.sim.run_for(Duration::from_secs(10));
        assert_eq!(holders(&run, "other"), BTreeSet::from([Some(Slot(holder))]), "seed {seed}");
        assert_eq!((run.views().len(), run.zone(0).len()), (1, 32));
    }
}

/// The same through a partition: each side has a holder, and when they meet all agree on one.
#[test]
fn a_name_taken_on_both_sides_of_a_partition_is_decided_when_they_meet() {
    use phalanx_sim::{NodeSet, Partition};
    for seed in 1..5 {
        let options = Options { namesakes: vec![(20, 11)], telling: true, ..Options::default() };
        let mut run = Run::with(24, seed, options);
        let mut side = NodeSet::range(0..4);
        (12..24).for_each(|n| side.insert(n));
        run.sim.fault(Fault::Partition(Partition::between("cut", side.clone(), side.others(24))));
        run.sim.keep_notes();
        run.sim.run_for(Duration::from_secs(30));
        assert_eq!((run.zone(20).holder("n11"), run.zone(11).holder("n11")), (Some(Slot(20)), Some(Slot(11))));
        assert_eq!(named(&run), [], "nobody knows of the other");
        run.sim.fault(Fault::HealPartition("cut".into()));
        run.sim.run_for(Duration::from_secs(90));
        assert_eq!((run.views().len(), run.zone(3).len()), (1, 24), "seed {seed}");
        let told = named(&run);
        let Some(&(_, holder, Some(loser))) = told.first() else { panic!("seed {seed}: {told:?}") };
        assert_eq!(told, [(11, holder, Some(loser)), (20, holder, Some(loser))], "seed {seed}");
        assert_eq!(holders(&run, "n11"), BTreeSet::from([Some(Slot(holder))]), "seed {seed}");
    }
}

/// TG-4: a load that trembles costs nothing: a cluster that tells its load sends no more than one that does not.
#[test]
fn tg_4_an_idle_cluster_that_tells_its_load_stays_silent() {
    use phalanx_core::Rng;
    use phalanx_protocol::directory::load::{Config as Steps, LOAD, Load};
    let mut run = Run::booted(32, 9, Config::lan());
    let mut loads = vec![Load::new(Steps::default()); 32];
    let mut rng = Rng::new(9, 1);
    let mut measure = |run: &mut Run, around: u32| {
        for (n, load) in (0..).zip(&mut loads) {
            let load = load.observe(run.sim.now(), around + rng.below(140) as u32);
            load.into_iter().for_each(|level| {
                run.sim.command(n, Command::Set(LOAD.into(), Some(level.as_str().into())));
            });
        }
        run.sim.run_for(Duration::from_secs(1));
    };
    let replication = |run: &Run| -> u64 {
        let cluster = run.sim.cluster();
        cluster.processes().map(|(_, m)| m.engine().replication()).map(|c| c.updates + c.requests + c.replies).sum()
    };
    let sent = |run: &Run| (0..run.nodes).map(|n| run.sim.bytes(n).0).sum::<u64>();
    // Around 0.375, the border between two steps.
    for _ in 0..10 {
        measure(&mut run, 305);
    }
    let level = run.zone(7).attribute(Slot(20), LOAD).expect("told");
    assert!(level == b"0.25" || level == b"0.5");
    let (before, bytes) = (replication(&run), sent(&run));
    (0..100).for_each(|_| measure(&mut run, 305));
    assert_eq!(replication(&run), before, "not a word for a hundred seconds");
    let busy = sent(&run) - bytes;
    let bytes = sent(&run);
    run.sim.run_for(Duration::from_secs(100));
    let idle = sent(&run) - bytes;
    assert!(busy.abs_diff(idle) * 100 <= idle, "{busy} bytes with measurements, {idle} without");
    measure(&mut run, 900);
    run.sim.run_for(Duration::from_secs(1));
    assert!(replication(&run) > before, "and what moves is told");
    assert_eq!(run.zone(7).attribute(Slot(20), LOAD), Some(&b"1"[..]));
}

/// TG-4, AT-1: services are found everywhere while their members live, and nowhere afterwards.
#[test]
fn tg_4_services_of_the_living_are_found_by_everybody() {
    use phalanx_protocol::directory::{Directory, Query};
    let mut run = Run::booted(24, 3, Config::lan());
    for n in 0..6u32 {
        // A port in the key, one partition in the value.
        let value = [&[1, 1, 4][..], &n.to_le_bytes()].concat();
        run.sim.command(n, Command::Set(format!("svc/cache-{}:6379", n % 2), Some(value)));
    }
    run.sim.run_for(Duration::from_secs(2));
    let query = Query::parse("name =~ 'cache-.*' and partition in 2..4 and zone == a").expect("a query");
    let found = |run: &Run| -> BTreeSet<Vec<u32>> {
        let find = |zone: &Zone| Directory::of(zone).in_zone("a").find(&query).map(|f| f.member.0).collect();
        run.sim.cluster().processes().map(|(_, m)| find(m.engine())).collect()
    };
    assert_eq!(found(&run), BTreeSet::from([vec![2, 3, 4]]));
    run.sim.fault(Fault::Node(3, NodeFault::CrashProcess));
    run.sim.run_for(Duration::from_secs(2));
    assert_eq!(found(&run), BTreeSet::from([vec![2, 4]]));
    run.sim.fault(Fault::Node(3, NodeFault::Restart));
    run.sim.run_for(Duration::from_secs(2));
    assert_eq!(found(&run), BTreeSet::from([vec![2, 4]]), "what a former life offered is not offered");
}
