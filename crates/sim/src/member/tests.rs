//! BL-1: the baselines run in whole nodes, as zones do.

use super::{Member, Options, Telling, boot, build_all_to_all, build_gossip, checks, last_known};
use crate::fault::Fault;
use crate::scenario::{Engine as Scenarios, Swarm, swarm};
use crate::sim::{Setup, Sim};
use phalanx_core::{Duration, Group};
use phalanx_protocol::baselines::{AllToAllConfig, GossipConfig};
use phalanx_protocol::member::Engine;

const NODES: u32 = 12;
const LOOK: Duration = Duration::from_millis(10);

fn setup(seed: u64, threads: usize) -> Setup {
    Setup { seed, threads, nodes: NODES, ..Setup::default() }
}

fn all_to_all(setup: &Setup, group: bool) -> (Sim<Member<phalanx_protocol::baselines::AllToAll>>, Telling) {
    let group = group.then_some(Group { number: 1, ttl: 8 });
    build_all_to_all(setup, &Options::default(), AllToAllConfig::paper(group)).unwrap()
}

fn gossip(setup: &Setup) -> (Sim<Member<phalanx_protocol::baselines::Gossip>>, Telling) {
    build_gossip(setup, &Options::default(), GossipConfig::paper()).unwrap()
}

/// Boots, and lets two nodes die, one of them with its host: all others know it, not before `soonest` and by `latest`.
fn boots_and_notices<E: Engine + Send>(
    (mut sim, telling): (Sim<Member<E>>, Telling),
    (soonest, latest): (Duration, Duration),
) {
    let booted = boot(&mut sim, NODES as usize, LOOK, Duration::from_secs(20));
    assert!(booted.took.is_some(), "{} are behind", booted.behind);
    sim.keep_notes();
    telling.set(true);
    sim.run_for(Duration::from_secs(10));
    assert_eq!(sim.notes().len(), 0, "nothing happens, nothing is said");
    let at = sim.now();
    sim.fault(Fault::crash(3));
    sim.fault(Fault::crash_host(9));
    sim.run_for(Duration::from_secs(60));
    let (first, last, know) = last_known(&sim, at, &[3, 9], NODES as usize - 2);
    assert_eq!(know, NODES as usize - 2);
    assert!(first.unwrap() >= soonest && last.unwrap() <= latest, "{first:?} to {last:?}");
    assert_eq!(checks::wrong_view(&sim.cluster()), None);
}

/// 003 §4.1: the dead are known after `losses` periods, whatever the way of dying.
#[test]
fn all_to_all_boots_and_notices_crashes() {
    let config = AllToAllConfig::paper(None);
    let fail_after = config.fail_after();
    for group in [false, true] {
        // The last heartbeat came up to a period before the crash.
        let times = (fail_after - config.period, fail_after + config.period);
        boots_and_notices(all_to_all(&setup(1, 1), group), times);
    }
}

/// van Renesse: a counter that grew reaches all within `T_fail`, so the last one knows after two of them. The first may
/// know earlier than after one: what it heard last was old already.
#[test]
fn gossip_boots_and_notices_crashes() {
    let fail_after = GossipConfig::paper().fail_after(NODES as usize);
    boots_and_notices(gossip(&setup(1, 1)), (Duration(fail_after.0 / 2), fail_after * 2));
}

/// A list of 128 entries is longer than what a link holds for a peer that it has yet to meet.
#[test]
fn gossip_boots_though_a_list_takes_many_datagrams() {
    let many = 160;
    let (mut sim, _) = gossip(&Setup { nodes: many, ..setup(1, 2) });
    let booted = boot(&mut sim, many as usize, LOOK, Duration::from_secs(60));
    assert!(booted.took.is_some(), "{} are behind", booted.behind);
}

#[test]
fn baselines_are_the_same_for_the_same_seed_on_any_number_of_threads() {
    fn trace<E: Engine + Send>((mut sim, _): (Sim<Member<E>>, Telling)) -> u64 {
        sim.fault_at(sim.now() + Duration::from_secs(5), Fault::restart(2));
        sim.run_for(Duration::from_secs(15));
        sim.trace()
    }
    let of_all_to_all = |seed, threads| trace(all_to_all(&setup(seed, threads), true));
    let of_gossip = |seed, threads| trace(gossip(&setup(seed, threads)));
    assert_eq!(of_all_to_all(1, 1), of_all_to_all(1, 2));
    assert_eq!(of_gossip(1, 1), of_gossip(1, 2));
    assert_ne!(of_all_to_all(1, 1), of_all_to_all(2, 1));
    assert_ne!(of_gossip(1, 1), of_gossip(2, 1));
}

fn casts(seeds: impl Iterator<Item = u64>) {
    for seed in seeds {
        let plan = Swarm { first: seed, runs: 1, jobs: 1, engine: Scenarios::Cast, workload: None, keep_going: false };
        let red = swarm(&plan, |_, _| ()).red;
        assert!(red.is_empty(), "seed {seed}: {}", red[0].outcome.report);
    }
}

/// ST-4: whatever befalls members, casts come once, in order and to all who are there.
#[test]
fn st_4_casts_come_to_all_who_are_there() {
    casts(0..20);
}

/// Seeds that were red once. 279: a source that was taken for dead for a while was never told that all have its cast. 358: ways around the
/// dead were remembered for each time that a message came by, and left again twice as often with each who died.
#[test]
fn st_4_casts_settle_and_do_not_multiply() {
    casts([279, 358].into_iter());
}
