//! Stations under each workload: green when they should be, the same on any number of threads, by reference or not.

use super::*;
use crate::check::Report;
use crate::fault::Fault;
use crate::network::Network;
use crate::partition::Partition;
use crate::sim::{Setup, Sim};
use phalanx_core::Duration;
use phalanx_fault::{Distribution, Recurrence, Rule};
use phalanx_protocol::link::count::Dropped;

fn setup(seed: u64, nodes: u32) -> Setup {
    Setup { seed, nodes, start_within: Duration::from_millis(20), ..Setup::default() }
}

/// Runs for `ms`, with a restart on the way, and to the end.
fn run(setup: &Setup, workload: &Workload, options: &Options, ms: u64) -> Report {
    let mut sim = build(setup, workload, options).unwrap();
    let middle = Instant::ZERO + Duration::from_millis(ms / 2);
    sim.fault_at(middle, Fault::restart(1));
    sim.run_for(Duration::from_millis(ms));
    finish(&mut sim, Duration::from_millis(ms / 2), Duration::from_secs(60))
}

fn all() -> [Workload; 5] {
    [
        Workload::Heartbeat(Heartbeat { neighbours: 2, tickets: true, ..Heartbeat::default() }),
        Workload::Reliable(Reliable::default()),
        Workload::Managed(Managed::default()),
        Workload::Order(Ordered::default()),
        Workload::Mixed(Mixed::default()),
    ]
}

/// A simulated cluster waits for memory more than for anything else.
#[test]
fn what_each_event_needs_of_a_station_is_three_cache_lines() {
    assert_eq!((align_of::<Station>(), <Station as Process>::HOT), (64, 3 * 64));
}

#[test]
fn each_workload_is_green_over_a_restart() {
    for workload in all() {
        let report = run(&setup(7, 6), &workload, &Options::default(), 2_000).expect_green();
        assert!(report.stats.delivered > 100, "{workload:?}: {:?}", report.stats);
    }
}

/// CL-4: nothing above the network changes when snapshots travel by reference, and nobody counts threads.
#[test]
fn by_reference_and_on_two_threads_the_run_is_the_same() {
    let work = Workload::Reliable(Reliable { snapshots: 0.6, close: 0.01, ..Reliable::default() });
    let rough = Network { loss: 0.05, duplication: 0.05, reorder: 0.1, reorder_us: 400.0, ..Network::default() };
    for seed in 0..3 {
        let one = Setup { network: rough.clone(), ..setup(seed, 5) };
        let bytes = run(&one, &work, &Options::default(), 1_000).expect_green();
        let by_reference = Options { by_reference: true, ..Options::default() };
        let reference = run(&one, &work, &by_reference, 1_000).expect_green();
        assert_eq!(bytes.trace, reference.trace, "seed {seed}");
        let two = Setup { threads: 2, alone_below: 0, ..one };
        assert_eq!(run(&two, &work, &by_reference, 1_000).expect_green().trace, bytes.trace, "seed {seed}");
    }
}

#[test]
fn real_seals_carry_the_same_workload() {
    let real = Options { seals: Seals::Real, ..Options::default() };
    for seed in 0..2 {
        let work = Workload::Mixed(Mixed::default());
        let report = run(&setup(seed, 3), &work, &real, 500).expect_green();
        assert!(report.stats.delivered > 100);
    }
}

/// Liveness has teeth: when the network is cut after healing and stays so, the run is red, and each checker says why.
#[test]
fn what_never_gets_well_is_red() {
    let work = Workload::Mixed(Mixed { heartbeat: None, ..Mixed::default() });
    let mut sim = build(&setup(3, 3), &work, &Options::default()).unwrap();
    sim.run_for(Duration::from_millis(500));
    sim.heal(true);
    sim.fault(Fault::Partition(Partition::between("for ever", [0], [1, 2])));
    sim.run_for(Duration::from_millis(300));
    let report = sim.settle(Duration::from_millis(200));
    for checker in ["messages", "quiet", "agreement"] {
        assert!(report.violations.iter().any(|v| v.checker == checker), "{checker} is content: {report}");
    }
}

/// FI-3: both points are at work, and what they do is counted.
#[test]
fn rules_above_the_seal_are_added_and_healed_by_command() {
    let work = Workload::Reliable(Reliable { largest: 500, ..Reliable::default() });
    let mut sim = build(&setup(5, 3), &work, &Options::default()).unwrap();
    let often = || Recurrence::Messages(Distribution::Fixed(5));
    sim.command_at(
        Instant(50_000_000),
        0,
        Command::Plain(Box::new(Rule::new(Kind::Modify { bits: 1 }).recurring(often()))),
    );
    sim.fault_at(Instant(50_000_000), Fault::inject(0, Rule::new(Kind::Modify { bits: 1 }).recurring(often())));
    sim.run_for(Duration::from_secs(1));
    let counters = |sim: &Sim<Station>| sim.process(0).unwrap().link().counters().clone();
    assert!(counters(&sim).rcl.checksum > 0, "`plain`: the seal is right, the checksum is not");
    assert!(counters(&sim).dropped(Dropped::BadSeal) > 0, "`wire`: the seal is broken");
    sim.command(0, Command::HealPlain);
    sim.run_for(Duration::from_millis(10));
    let healed = counters(&sim);
    sim.run_for(Duration::from_secs(1));
    assert_eq!(counters(&sim).rcl.checksum, healed.rcl.checksum, "`plain` is healed");
    assert!(counters(&sim).dropped(Dropped::BadSeal) > healed.dropped(Dropped::BadSeal), "`wire` is not");
    let _ = finish(&mut sim, Duration::from_millis(300), Duration::from_secs(60)).expect_green();
}
