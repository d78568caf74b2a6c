//! Boots a zone and lets members crash: a throwaway driver.
use phalanx_core::{Duration, Instant};
use phalanx_protocol::zone;
use phalanx_sim::member::{self, Options};
use phalanx_sim::{Fault, Latency, Network, NodeFault, Setup};
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let nodes: u32 = args[1].parse().unwrap();
    let profile = match args[2].as_str() {
        "paper" => zone::Config::paper(),
        _ => zone::Config::lan(),
    };
    let by_reference = args[3] == "ref";
    let seed: u64 = args[4].parse().unwrap();
    let crashes: u32 = args[5].parse().unwrap();
    let network = Network { latency: Latency::Fixed { us: 500.0 }, ..Network::default() };
    let setup = Setup { nodes, seed, network, threads: 1, ..Setup::default() };
    let options = Options { profile, by_reference, ..Options::default() };
    let wall = std::time::Instant::now();
    let (mut sim, telling) = member::build(&setup, &options).unwrap();
    let boot = member::boot(&mut sim, nodes as usize, Duration::from_millis(10), Duration::from_secs(20));
    println!("trace {:x}", sim.trace());
    println!(
        "boot {boot:?} wall {:?} events {} MB {}",
        wall.elapsed(),
        sim.stats().events,
        sim.stats().bytes / 1_000_000
    );
    sim.run_for(Duration::from_secs(5));
    let bytes: u64 = (0..nodes).map(|n| sim.bytes(n).0).sum();
    sim.run_for(Duration::from_secs(60));
    let after: u64 = (0..nodes).map(|n| sim.bytes(n).0).sum();
    println!(
        "idle {} B/s  behind {}",
        (after - bytes) / 60 / u64::from(nodes),
        member::all_views_full(&sim, nodes as usize)
    );
    let degrees: Vec<usize> = sim.cluster().processes().map(|(_, m)| m.engine().neighbours().count()).collect();
    println!(
        "degree min {:?} max {:?} mean {}",
        degrees.iter().min(),
        degrees.iter().max(),
        degrees.iter().sum::<usize>() as f64 / degrees.len() as f64
    );
    sim.command(0, member::Command::Set(zone::MONITOR.into(), Some(b"1".to_vec())));
    sim.run_for(Duration::from_millis(100));
    let have = sim
        .cluster()
        .processes()
        .filter(|(_, m)| {
            use phalanx_protocol::member::Engine;
            let e = m.engine();
            e.attribute(phalanx_protocol::member::Slot(0), zone::MONITOR).is_some()
        })
        .count();
    println!("know the monitor: {have}");
    sim.keep_notes();
    telling.set(true);
    let at = sim.now() + Duration::from_millis(3);
    let gone: Vec<u32> = (0..crashes).map(|i| nodes / 3 + i).collect();
    let kind = if args.get(6).is_some() { NodeFault::CrashHost } else { NodeFault::CrashProcess };
    for &g in &gone {
        sim.fault_at(at, Fault::Node(g, kind));
    }
    sim.run_for(Duration::from_secs(10));
    println!("crash {:?}", member::last_known(&sim, at, &gone, (nodes - crashes) as usize));
    let hpm = sim
        .notes()
        .iter()
        .filter(|n| n.1 == 0 && matches!(n.2, member::Note::Left { .. }))
        .map(|n| n.0.since(at))
        .max();
    println!("hpm {hpm:?}");
    let wrong = sim
        .notes()
        .iter()
        .filter(|n| matches!(n.2, member::Note::Left { node, .. } if gone.binary_search(&node).is_err()))
        .count();
    println!(
        "wrong {wrong} views wrong {} wall {:?}",
        member::all_views_full(&sim, (nodes - crashes) as usize),
        wall.elapsed()
    );
    let _ = Instant::ZERO;
}
