//! throwaway
use phalanx_core::Duration;
use phalanx_protocol::zone;
use phalanx_sim::member::{self, Options};
use phalanx_sim::{Latency, Network, Setup};
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let zones: u32 = args[1].parse().unwrap();
    let zone: u32 = args[2].parse().unwrap();
    let threads: usize = args.get(3).map_or(1, |t| t.parse().unwrap());
    let nodes = zones * zone;
    let network = Network { latency: Latency::Fixed { us: 500.0 }, ..Network::default() };
    let setup = Setup { nodes, seed: 1, network, threads, ..Setup::default() };
    let options = Options { profile: zone::Config::lan(), by_reference: true, zone, ..Options::default() };
    let wall = std::time::Instant::now();
    let (mut sim, _) = member::build(&setup, &options).unwrap();
    println!("built {:?}", wall.elapsed());
    let boot = member::boot(&mut sim, zone as usize, Duration::from_millis(10), Duration::from_secs(3));
    println!("boot {boot:?} wall {:?} events {}", wall.elapsed(), sim.stats().events);
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    for line in status.lines().filter(|l| l.starts_with("VmRSS") || l.starts_with("VmHWM")) {
        println!("{line}");
    }
    sim.run_for(Duration::from_secs(5));
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    for line in status.lines().filter(|l| l.starts_with("VmRSS") || l.starts_with("VmHWM")) {
        println!("{line}");
    }
    println!("wall {:?} events {}", wall.elapsed(), sim.stats().events);
}
