//! Each model of the network does what it says.

mod support;

use phalanx_core::{Duration, Instant};
use phalanx_sim::{
    Drop, Fault, HEADERS, Latency, Link, Network, NetworkError, NodeFault, NodeSet, Partition, Routers, Setup, Shape,
    Sim, Switch, Topology, Weather,
};
use support::{Do, born, fixed, heard, ms, probes, try_probes, us};

/// Sends `count` messages of 100 bytes from 0 to 1, one a millisecond, and says how many were heard.
fn heard_of(count: u64, network: Network, faults: impl IntoIterator<Item = Fault>) -> (usize, phalanx_sim::Stats) {
    let mut sim = probes(2, network);
    for fault in faults {
        sim.fault(fault);
    }
    for n in 0..count {
        sim.command_at(ms(10 + n), 0, Do::Send(1, 100));
    }
    sim.run_until(ms(20 + count));
    (heard(&sim, Instant::ZERO).len(), sim.stats())
}

#[test]
fn a_message_takes_its_latency_and_is_charged_with_its_headers() {
    let mut sim = probes(2, fixed(250.0));
    sim.command(0, Do::Send(1, 100));
    sim.run_until(ms(2));
    assert_eq!(heard(&sim, ms(1)), [(us(250), 1)]);
    assert_eq!((sim.stats().bytes, sim.bytes(0), sim.bytes(1)), (100 + HEADERS, (128, 0), (0, 128)));
}

#[test]
fn loss_loses_its_part_and_weather_comes_on_top_and_goes() {
    let (heard, stats) = heard_of(2_000, Network { loss: 0.3, ..fixed(100.0) }, []);
    assert!((1_300..1_500).contains(&heard), "{heard}");
    assert_eq!(stats.dropped(Drop::Loss) as usize, 2_000 - heard);
    let storm = Fault::Weather(Weather { loss: 0.5, ..Weather::default() });
    let (heard, _) = heard_of(2_000, Network { loss: 0.3, ..fixed(100.0) }, [storm.clone()]);
    assert!((620..780).contains(&heard), "{heard}");
    let healed = [storm, Fault::HealAll { restart: false }];
    assert_eq!(heard_of(100, fixed(100.0), healed).0, 100, "healing ends the weather");
}

#[test]
fn a_doubled_message_is_heard_twice() {
    let (heard, stats) = heard_of(1_000, Network { duplication: 0.2, ..fixed(100.0) }, []);
    assert!((1_150..1_250).contains(&heard), "{heard}");
    assert_eq!(stats.duplicated as usize, heard - 1_000);
}

#[test]
fn held_up_messages_are_overtaken() {
    let overtaken = |network| {
        let mut sim = probes(2, network);
        for n in 0..200 {
            sim.command_at(ms(2) + us(10 * n), 0, Do::Send(1, 1 + n as usize));
        }
        sim.run_until(ms(20));
        let lengths: Vec<_> = sim
            .notes()
            .iter()
            .filter_map(|n| if let support::Saw::Heard(_, bytes) = &n.2 { Some(bytes.len()) } else { None })
            .collect();
        assert_eq!(lengths.len(), 200);
        lengths.windows(2).filter(|w| w[0] > w[1]).count()
    };
    assert_eq!(overtaken(fixed(100.0)), 0);
    assert!(overtaken(Network { reorder: 0.1, reorder_us: 500.0, ..fixed(100.0) }) > 5);
}

#[test]
fn slow_weather_adds_to_each_latency() {
    let mut sim = probes(2, fixed(100.0));
    sim.fault(Fault::Weather(Weather { slower: us(700), ..Weather::default() }));
    sim.command(0, Do::Send(1, 10));
    sim.run_until(ms(3));
    assert_eq!(heard(&sim, ms(1)), [(us(800), 1)]);
}

/// A link of 8 Mbit/s moves a byte in a microsecond, on both sides; what finds its queue full is dropped.
#[test]
fn a_link_takes_time_for_each_byte_and_drops_what_does_not_fit_its_queue() {
    let link = Link { mbit_s: 8.0, queue_bytes: 2_500 };
    let mut sim = probes(2, Network { link: Some(link), ..fixed(100.0) });
    for _ in 0..4 {
        sim.command(0, Do::Send(1, 1_000 - HEADERS as usize));
    }
    sim.run_until(ms(20));
    let times: Vec<_> = heard(&sim, ms(1)).into_iter().map(|h| h.0).collect();
    assert_eq!(times, [us(2_100), us(3_100), us(4_100)]);
    assert_eq!(sim.stats().dropped(Drop::Queue), 1);
}

/// PM-1, 000 §7: the more nodes talk to one switch at once, the longer it takes.
#[test]
fn latency_grows_with_the_number_of_nodes_that_talk_at_once() {
    let mut sim = probes(5, Network { switch: Some(Switch { per_flow_us: 20.0 }), ..fixed(100.0) });
    for node in 1..5 {
        sim.command(node, Do::Send(0, 10));
    }
    sim.run_until(ms(2));
    let times: Vec<_> = heard(&sim, ms(1)).into_iter().map(|h| h.0).collect();
    assert_eq!(times, [us(100), us(120), us(140), us(160)]);
    sim.command_at(ms(3), 1, Do::Send(0, 10));
    sim.run_until(ms(4));
    assert_eq!(heard(&sim, ms(3)), [(us(100), 0)]);
}

/// PM-1: the distance on a 3D torus counts.
#[test]
fn each_hop_on_the_torus_takes_its_time() {
    let topology = Topology::Torus { x: 4, y: 4, z: 4, per_hop_us: 7.0 };
    let mut sim = probes(64, Network { topology, ..fixed(100.0) });
    for to in [1, 3, 2 + 4 * 2 + 16 * 2] {
        sim.command(0, Do::Send(to, 10));
    }
    sim.run_until(ms(2));
    assert_eq!(heard(&sim, ms(1)), [(us(107), 1), (us(107), 3), (us(142), 42)]);
}

fn segments(routers: Routers) -> Network {
    let topology = Topology::Segments { size: 2, routers, per_router_us: 50.0 };
    Network { topology, ..fixed(100.0) }
}

/// TG-1: a datagram to a group crosses TTL−1 routers, and no more.
#[test]
fn a_group_is_heard_as_far_as_its_ttl_reaches() {
    let mut sim = probes(8, segments(Routers::Named(Shape::Chain)));
    for node in [0, 1, 2, 4, 5, 6] {
        sim.command(node, Do::Join(9));
    }
    for (ttl, at) in [(1, 10), (2, 20), (3, 30)] {
        sim.command_at(ms(at), 2, Do::Cast(9, ttl, 10));
    }
    sim.command_at(ms(35), 4, Do::Leave(9));
    sim.command_at(ms(40), 2, Do::Cast(9, 2, 10));
    sim.run_until(ms(50));
    let within = |from: u64| heard(&sim, ms(from)).into_iter().filter(|h| h.0 < us(5_000)).collect::<Vec<_>>();
    assert_eq!(within(10), []);
    assert_eq!(within(20), [(us(150), 0), (us(150), 1), (us(150), 4), (us(150), 5)]);
    assert_eq!(within(30), [(us(150), 0), (us(150), 1), (us(150), 4), (us(150), 5), (us(200), 6)]);
    assert_eq!(within(40), [(us(150), 0), (us(150), 1), (us(150), 5)]);
    assert_eq!(sim.stats().sent, 4, "a datagram to a group is sent once");
}

/// TG-1, 003 Fig. 5: reachability need be neither symmetric nor transitive.
#[test]
fn a_matrix_says_who_reaches_whom() {
    let matrix = vec![vec![1, 2, 0], vec![2, 1, 2], vec![0, 2, 1]];
    let mut sim = probes(6, segments(Routers::Matrix(matrix)));
    for node in 0..6 {
        sim.command(node, Do::Join(1));
    }
    sim.command(0, Do::Cast(1, 8, 10));
    sim.command(0, Do::Send(4, 10));
    sim.command(0, Do::Open(4));
    sim.run_until(ms(5));
    assert_eq!(sim.notes().iter().filter(|n| matches!(n.2, support::Saw::Stream(..))).count(), 0);
    assert_eq!(heard(&sim, ms(1)).into_iter().map(|h| h.1).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(sim.stats().dropped(Drop::NoRoute), 1);
}

#[test]
fn messages_between_segments_may_have_a_latency_of_their_own() {
    let network =
        Network { inter_latency: Some(Latency::Fixed { us: 900.0 }), ..segments(Routers::Named(Shape::Star)) };
    let mut sim = probes(4, network);
    sim.command(0, Do::Send(1, 10));
    sim.command(0, Do::Send(2, 10));
    sim.run_until(ms(3));
    assert_eq!(heard(&sim, ms(1)), [(us(100), 1), (us(950), 2)]);
}

/// Who hears whom under a partition, as (from, to).
fn reach(fault: Fault) -> Vec<(u32, u32)> {
    let mut sim = probes(4, fixed(100.0));
    let name = if let Fault::Partition(p) = &fault { p.name().to_owned() } else { String::new() };
    sim.fault(fault);
    let all = |sim: &mut Sim<_>, at: u64| {
        for from in 0..4 {
            for to in (0..4).filter(|&to| to != from) {
                sim.command_at(ms(at), from, Do::Send(to, 10));
            }
        }
        sim.run_until(ms(at + 1));
        let mut pairs: Vec<_> = sim
            .notes()
            .iter()
            .filter(|n| n.0 >= ms(at))
            .filter_map(|n| if let support::Saw::Heard(from, _) = n.2 { Some((from, n.1)) } else { None })
            .collect();
        pairs.sort_unstable();
        pairs
    };
    let cut = all(&mut sim, 10);
    sim.fault(Fault::HealPartition(name));
    assert_eq!(all(&mut sim, 20).len(), 12, "healed by its name");
    cut
}

#[test]
fn partitions_are_symmetric_one_way_or_partial_and_healed_by_name() {
    let (left, right) = (NodeSet::range(0..2), NodeSet::range(2..4));
    let both = reach(Fault::Partition(Partition::between("room", left.clone(), right.clone())));
    assert_eq!(both, [(0, 1), (1, 0), (2, 3), (3, 2)]);
    let one = reach(Fault::Partition(Partition::one_way("half", left, right)));
    assert_eq!(one, [(0, 1), (1, 0), (2, 0), (2, 1), (2, 3), (3, 0), (3, 1), (3, 2)]);
    let partial = reach(Fault::Partition(Partition::between("pair", [0], [1]).and([3], [2])));
    assert_eq!(partial, [(0, 2), (0, 3), (1, 2), (1, 3), (2, 0), (2, 1), (2, 3), (3, 0), (3, 1)]);
}

#[test]
fn what_is_under_way_passes_a_cut_that_comes_later() {
    let mut sim = probes(2, fixed(500.0));
    sim.command(0, Do::Send(1, 10));
    sim.fault_at(ms(1) + us(100), Fault::Partition(Partition::between("late", [0], [1])));
    sim.command_at(ms(1) + us(200), 0, Do::Send(1, 10));
    sim.run_until(ms(5));
    assert_eq!(heard(&sim, ms(1)), [(us(500), 1)]);
    assert_eq!(sim.stats().dropped(Drop::Partition), 1);
}

#[test]
fn a_node_loses_what_it_sends_or_what_it_receives() {
    for (node, loss) in
        [(0, NodeFault::Loss { inward: 0.0, outward: 0.4 }), (1, NodeFault::Loss { inward: 0.4, outward: 0.0 })]
    {
        let (heard, stats) = heard_of(1_000, fixed(100.0), [Fault::Node(node, loss)]);
        assert!((540..660).contains(&heard), "{heard}");
        assert_eq!(stats.dropped(Drop::NodeLoss) as usize, 1_000 - heard);
    }
    let deaf = Fault::Node(0, NodeFault::Loss { inward: 1.0, outward: 0.0 });
    assert_eq!(heard_of(100, fixed(100.0), [deaf]).0, 100, "a deaf node still speaks");
}

#[test]
fn threads_need_a_shortest_latency_and_a_switch_stays_on_one_of_them() {
    let wild = Network { latency: Latency::Uniform { min_us: 0.0, max_us: 10.0 }, ..Network::default() };
    let setup = Setup { nodes: 4, threads: 2, network: wild, ..Setup::default() };
    assert_eq!(Sim::new(&setup, born).err(), Some(NetworkError::NoLookahead(2)));
    assert!(try_probes(0, Network::default()).is_err());
    let network = Network { switch: Some(Switch { per_flow_us: 20.0 }), ..segments(Routers::Named(Shape::Star)) };
    let traces: Vec<_> = [1, 2, 3]
        .into_iter()
        .map(|threads| {
            let setup = Setup { nodes: 10, threads, network: network.clone(), ..Setup::default() };
            let mut sim = Sim::new(&setup, born).unwrap();
            for node in 0..10 {
                sim.command_at(ms(1), node, Do::Send((node + 5) % 10, 10));
            }
            sim.run_for(Duration::from_millis(5));
            (sim.trace(), sim.stats().delivered)
        })
        .collect();
    assert!(traces.iter().all(|t| *t == traces[0] && t.1 == 10), "{traces:?}");
}
