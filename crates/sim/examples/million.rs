//! throwaway
use phalanx_core::Duration;
use phalanx_protocol::zone;
use phalanx_sim::member::{self, Options};
use phalanx_sim::{Fault, Latency, Network, NodeFault, Setup};
fn rss() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    status.lines().filter(|l| l.starts_with("VmRSS") || l.starts_with("VmHWM")).collect::<Vec<_>>().join(" ")
}
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let zones: u32 = args[1].parse().unwrap();
    let zone: u32 = args[2].parse().unwrap();
    let threads: usize = args.get(3).map_or(1, |t| t.parse().unwrap());
    let supervisors: u32 = args.get(4).map_or(zones, |t| t.parse().unwrap());
    let nodes = zones * zone + supervisors;
    let network = Network { latency: Latency::Fixed { us: 500.0 }, ..Network::default() };
    let within: u64 = args.get(5).map_or(0, |t| t.parse().unwrap());
    let setup =
        Setup { nodes, seed: 1, network, threads, start_within: Duration::from_millis(within), ..Setup::default() };
    let randoms: usize = args.get(6).map_or(4, |t| t.parse().unwrap());
    let options = Options {
        profile: zone::Config { randoms, ..zone::Config::lan() },
        by_reference: true,
        zone,
        supervisors,
        ..Options::default()
    };
    let wall = std::time::Instant::now();
    let (mut sim, _) = member::build(&setup, &options).unwrap();
    println!(
        "zone {} link {} node {}",
        size_of::<zone::Zone>(),
        size_of::<phalanx_protocol::link::Link>(),
        size_of::<phalanx_protocol::node::Node<zone::Zone>>()
    );
    println!("built {:?} {}", wall.elapsed(), rss());
    for _ in 0..40 {
        sim.run_for(Duration::from_millis(50));
        let full = sim
            .cluster()
            .processes()
            .filter(|(n, m)| {
                use phalanx_protocol::member::Engine;
                m.engine().len() as u32 == if *n < zones * zone { zone } else { supervisors }
            })
            .count();
        let census: Vec<(usize, u32, u32)> = sim
            .cluster()
            .processes()
            .filter(|(n, _)| *n >= zones * zone)
            .map(|(_, m)| {
                let c: Vec<_> = m.engine().census().collect();
                (c.len(), c.iter().map(|z| z.1.members).sum(), c.iter().map(|z| u32::from(z.1.delegates)).sum())
            })
            .collect();
        let done = census.iter().filter(|c| c.0 as u32 == zones && c.1 == zones * zone).count();
        println!(
            "{} full {full} census {done} e.g. {:?} wall {:?} events {} {}",
            sim.now(),
            census.first(),
            wall.elapsed(),
            sim.stats().events,
            rss()
        );
        if full as u32 == nodes && done as u32 == supervisors {
            break;
        }
    }
    let gone = zone / 2;
    sim.fault(Fault::Node(gone, NodeFault::CrashProcess));
    for _ in 0..60 {
        sim.run_for(Duration::from_micros(500));
        let know = sim
            .cluster()
            .processes()
            .filter(|(n, _)| *n >= zones * zone)
            .filter(|(_, m)| m.engine().census().map(|z| z.1.members).sum::<u32>() == zones * zone - 1)
            .count();
        println!("{} know {know}", sim.now());
        if know as u32 == supervisors {
            break;
        }
    }
    println!("wall {:?}", wall.elapsed());
}
#[test]
fn sizes() {}
