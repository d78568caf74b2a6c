use phalanx_core::Duration;
use phalanx_protocol::zone::{self, Zone};
use phalanx_sim::member::{self, Options};
use phalanx_sim::{Fault, Latency, Network, NodeFault, Setup};
// tmp NODES BRISK CRASHES FIRST COUNT [host]
fn main() {
    let a: Vec<u64> = std::env::args().skip(1).filter_map(|x| x.parse().ok()).collect();
    let host = std::env::args().any(|x| x == "host");
    println!("size_of Zone {}", size_of::<Zone>());
    let mut times = Vec::new();
    for seed in a[3]..a[3] + a[4] {
        let nodes = a[0] as u32;
        let network = Network { latency: Latency::Fixed { us: 500.0 }, ..Network::default() };
        let setup = Setup { nodes, seed, network, ..Setup::default() };
        let mut profile = zone::Config::lan();
        profile.paces.brisk = a[1] as u32;
        let (mut sim, telling) =
            member::build(&setup, &Options { profile, by_reference: true, ..Options::default() }).unwrap();
        let boot = member::boot(&mut sim, nodes as usize, Duration::from_millis(10), Duration::from_secs(20));
        if seed == a[3] {
            println!("boot {boot:?} events {} MB {}", sim.stats().events, sim.stats().bytes / 1_000_000);
        }
        sim.run_for(Duration::from_secs(5));
        if seed == a[3] {
            let bytes: u64 = (0..nodes).map(|n| sim.bytes(n).0).sum();
            sim.run_for(Duration::from_secs(30));
            let after: u64 = (0..nodes).map(|n| sim.bytes(n).0).sum();
            println!("idle {} B/s", (after - bytes) / 30 / u64::from(nodes));
        }
        sim.keep_notes();
        telling.set(true);
        let at = sim.now() + Duration::from_millis(3);
        let crashes = a[2] as u32;
        let gone: Vec<u32> = (0..crashes).map(|i| nodes / 3 + i).collect();
        for &g in &gone {
            sim.fault_at(at, Fault::Node(g, if host { NodeFault::CrashHost } else { NodeFault::CrashProcess }));
        }
        let e = sim.stats().events;
        sim.run_for(Duration::from_secs(if host { 4 } else { 1 }));
        let (first, last, _) = member::last_known(&sim, at, &gone, (nodes - crashes) as usize);
        let wrong = sim
            .notes()
            .iter()
            .filter(|n| matches!(n.2, member::Note::Left { node, .. } if gone.binary_search(&node).is_err()))
            .count();
        times.push(last.map_or(99_999.0, |d| d.as_secs_f64() * 1e3));
        if seed == a[3] || wrong > 0 {
            println!("first {first:?} last {last:?} wrong {wrong} events {}", sim.stats().events - e);
        }
    }
    times.sort_by(f64::total_cmp);
    println!("median {} ms worst {} ms", times[times.len() / 2], times[times.len() - 1]);
}
