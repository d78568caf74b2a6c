//! Stories of whole groups (MM-3): many seeds of bad weather, and single faults one by one.

use super::net::{Net, Weather};
use super::{Config, Input, Member, Order};
use phalanx_core::{Duration, Machine};

const MS: u64 = 1_000_000;

/// After healing, everything is everywhere within this time.
const SETTLED_WITHIN: Duration = Duration::from_secs(4);

fn ms(n: u64) -> Duration {
    Duration(n * MS)
}

/// Short logs and outboxes, so that every bound is met.
fn tight() -> Config {
    Config { log_entries: 24, log_bytes: 4_000, outbox: 12, batch_bytes: 300, ..Config::default() }
}

fn chaos(seed: u64, members: u8) -> Net {
    let weather = Weather { delay: (ms(1), ms(2)), disk: (ms(0), ms(2)), ..Weather::FAIR };
    let mut net = Net::new(members, tight(), weather, seed);
    net.weather.loss = net.rng.unit() * 0.3;
    net.weather.duplication = net.rng.unit() * 0.2;
    net.weather.delay.1 = ms(2 + net.rng.below(40));
    net.weather.disk.1 = ms(1 + net.rng.below(20));
    net.weather.disk_loss = if net.rng.chance(0.5) { 0.05 } else { 0.0 };
    let end = net.now + ms(2_500);
    while net.now < end {
        let pause = Duration(net.rng.below(40 * MS));
        net.run_for(pause).unwrap_or_else(|v| panic!("seed {seed}: {v:?}"));
        let m = Member(net.rng.index(net.hosts.len()) as u8);
        let other = Member(net.rng.index(net.hosts.len()) as u8);
        let (leader, nap) = (net.leader(), Duration(net.rng.below(700 * MS)));
        let mut step = Ok(());
        match net.rng.below(40) {
            0..=19 => step = net.submit(m),
            20..=24 => step = net.save(m),
            25..=26 => net.crash(m),
            27..=31 => net.restart(m),
            32 => net.isolate(m, true),
            33 => net.cut_one_way(m, other, true),
            34..=36 => net.cut.iter_mut().flatten().for_each(|c| *c = false),
            37 => net.pause(m, net.now + nap),
            _ if leader.is_some() && net.rng.chance(0.3) => net.crash(leader.unwrap_or(m)),
            _ => step = net.submit(leader.unwrap_or(m)),
        }
        step.unwrap_or_else(|v| panic!("seed {seed}: {v:?}"));
    }
    net
}

fn settle(net: &mut Net, seed: u64) {
    net.heal();
    let end = net.now + SETTLED_WITHIN;
    let mut outcome = Ok(());
    while net.now < end {
        net.run_for(ms(50)).unwrap_or_else(|v| panic!("seed {seed}: {v:?}"));
        for m in net.members() {
            net.save(m).unwrap_or_else(|v| panic!("seed {seed}: {v:?}"));
        }
        outcome = net.checks.complete(&net.boots());
        if outcome.is_ok() && net.hosts.iter().all(|h| !h.stalled) {
            return;
        }
    }
    panic!("seed {seed}: not settled: {outcome:?}");
}

/// MM-3: whatever happens, all deliver the same in the same order; after healing all of it, soon.
#[test]
fn members_agree_whatever_happens_and_go_on_after_healing() {
    let (mut messages, mut restored, mut refused) = (0, 0, 0);
    // Once in 100,000 seeds a group restarted with its applications ahead of a leader that had dropped entries.
    for seed in (0..2_000).chain([95_329]) {
        let mut net = chaos(seed, 3);
        settle(&mut net, seed);
        messages += net.checks.messages();
        restored += net.hosts.iter().map(|h| h.restored).sum::<usize>();
        refused += net.hosts.iter().map(|h| h.refused).sum::<usize>();
    }
    // The weather must not be so bad that nothing is tested, nor so good that no bound is met.
    assert!(messages > 30_000 && restored > 100 && refused > 100, "{messages} {restored} {refused}");
}

#[test]
fn five_members_agree_too() {
    for seed in 10_000..10_100 {
        let mut net = chaos(seed, 5);
        settle(&mut net, seed);
    }
}

#[test]
fn groups_of_any_odd_size_order() {
    for members in [1, 3, 5, 7] {
        let mut net = Net::new(members, Config::default(), Weather::FAIR, 14);
        net.run_for(ms(2_000)).unwrap();
        for m in net.members() {
            net.submit(m).unwrap();
        }
        settle(&mut net, 14);
        assert_eq!(net.deliveries.len(), usize::from(members).pow(2));
    }
}

/// CM-1: with at most one member faulty at a time the others go on, through the fault.
#[test]
fn one_faulty_member_stops_nobody() {
    for seed in 20_000..20_300 {
        let mut net = elected(seed);
        for _ in 0..3 {
            let bad = Member(net.rng.index(3) as u8);
            match net.rng.below(3) {
                0 => net.crash(bad),
                1 => net.isolate(bad, true),
                _ => net.pause(bad, net.now + ms(3_000)),
            }
            let good = Member((bad.0 + 1 + net.rng.index(2) as u8) % 3);
            let before = net.checks.messages();
            net.submit(good).unwrap();
            net.run_for(ms(2_500)).unwrap_or_else(|v| panic!("seed {seed}: {v:?}"));
            assert!(net.checks.messages() > before, "seed {seed}: {good:?} was not heard while {bad:?} was gone");
            settle(&mut net, seed);
        }
    }
}

/// A group in fair weather that has a leader and nothing to do.
fn elected(seed: u64) -> Net {
    let mut net = Net::new(3, Config::default(), Weather::FAIR, seed);
    net.run_for(ms(2_000)).unwrap();
    assert!(net.leader().is_some());
    net
}

fn followers(net: &Net) -> [Member; 2] {
    let leader = net.leader().unwrap().0;
    [Member((leader + 1) % 3), Member((leader + 2) % 3)]
}

/// When `member` delivered its last message, in message delays since `start` (each takes a millisecond).
fn delays(net: &Net, member: Member, start: phalanx_core::Instant) -> u64 {
    let at = net.deliveries.iter().rfind(|d| d.1 == member).unwrap().0;
    at.since(start).as_millis()
}

/// MM-3: from the leader a message is delivered after one round trip there and one and a half everywhere.
#[test]
fn a_message_takes_three_delays_from_the_leader_and_four_from_a_follower() {
    let mut net = elected(1);
    let (leader, [a, b]) = (net.leader().unwrap(), followers(&net));
    let start = net.now;
    net.submit(leader).unwrap();
    net.run_for(ms(10)).unwrap();
    assert_eq!([leader, a, b].map(|m| delays(&net, m, start)), [2, 3, 3]);
    let start = net.now;
    net.submit(a).unwrap();
    net.run_for(ms(10)).unwrap();
    assert_eq!([leader, a, b].map(|m| delays(&net, m, start)), [3, 4, 4]);
}

/// MM-3: "also when the sender dies in the middle". One member got the message: all deliver it, the sender too.
#[test]
fn the_sender_dies_in_the_middle() {
    let mut net = elected(2);
    let (leader, [a, b]) = (net.leader().unwrap(), followers(&net));
    net.cut_one_way(leader, b, true);
    net.submit(leader).unwrap();
    net.run_for(ms(1)).unwrap();
    net.crash(leader);
    net.run_for(ms(3_000)).unwrap();
    let who: Vec<_> = net.deliveries.iter().map(|d| d.1).collect();
    assert!(who.len() == 2 && who.contains(&a) && who.contains(&b), "{who:?}");
    settle(&mut net, 2);
    assert_eq!((net.deliveries.len(), net.checks.messages()), (3, 1));
}

/// The same, but nobody got it: nobody delivers it, ever.
#[test]
fn a_message_that_only_the_dead_sender_had_is_gone_everywhere() {
    let mut net = elected(3);
    let leader = net.leader().unwrap();
    net.isolate(leader, true);
    net.submit(leader).unwrap();
    net.crash(leader);
    net.run_for(ms(3_000)).unwrap();
    settle(&mut net, 3);
    let other = followers(&net)[0];
    net.submit(other).unwrap();
    settle(&mut net, 3);
    assert_eq!(net.checks.messages(), 1, "only the later one");
}

#[test]
fn the_majority_goes_on_and_the_minority_stops_and_says_so() {
    let mut net = elected(4);
    let (leader, [a, b]) = (net.leader().unwrap(), followers(&net));
    net.isolate(leader, true);
    net.submit(leader).unwrap();
    net.submit(a).unwrap();
    net.run_for(ms(3_000)).unwrap();
    assert!(net.host(leader).stalled && !net.host(a).stalled && !net.host(b).stalled);
    assert_eq!(net.checks.messages(), 1);
    assert_eq!((net.checks.position(leader), net.order(leader).leader()), (0, None));
    settle(&mut net, 4);
    assert_eq!(net.checks.messages(), 2, "the minority's message is ordered after healing");
}

#[test]
fn the_last_member_stops_ordering_and_resumes_with_a_second() {
    let mut net = elected(5);
    let (leader, [a, b]) = (net.leader().unwrap(), followers(&net));
    net.crash(a);
    net.crash(b);
    net.submit(leader).unwrap();
    net.run_for(ms(3_000)).unwrap();
    assert!(net.host(leader).stalled && net.deliveries.is_empty());
    net.restart(b);
    net.run_for(ms(3_000)).unwrap();
    assert!(!net.host(leader).stalled);
    assert_eq!((net.checks.messages(), net.deliveries.len()), (1, 2));
}

/// 004 §6.1, CM-3: a leader heard by one peer but not by the other. Every cut of one link, in one or both directions:
/// the member behind it goes on delivering and being heard.
#[test]
fn a_leader_heard_by_one_peer_only_is_replaced_by_the_one_who_hears_all() {
    let cuts = [(true, true), (true, false), (false, true)];
    for ((out, back), busy) in cuts.into_iter().flat_map(|cut| [(cut, false), (cut, true)]) {
        let mut net = elected(6);
        let (leader, [a, b]) = (net.leader().unwrap(), followers(&net));
        net.cut_one_way(leader, a, out);
        net.cut_one_way(a, leader, back);
        net.submit(a).unwrap();
        for n in 0..60 {
            net.run_for(ms(100)).unwrap();
            if n == 0 || (busy && n < 59) {
                net.submit(leader).unwrap();
            }
        }
        assert_eq!(net.checks.complete(&net.boots()), Ok(()), "out {out}, back {back}, busy {busy}");
        assert_eq!(net.order(a).leader(), Some(b), "out {out}, back {back}");
        let ballot = net.order(b).ballot();
        net.run_for(ms(10_000)).unwrap();
        assert_eq!(net.order(b).ballot(), ballot, "and it stays so");
    }
}

#[test]
fn an_idle_group_exchanges_beacons_only() {
    let mut net = elected(7);
    let before = net.packets;
    net.run_for(ms(10_000)).unwrap();
    // Twenty beacons to two followers, each answered.
    assert!(net.packets - before <= 84, "{} packets", net.packets - before);
    assert!(net.order(followers(&net)[0]).deadline() > net.now + ms(400));
}

#[test]
fn an_idle_leaders_death_is_noticed_early_by_a_member_with_work() {
    let mut net = elected(8);
    let (leader, [a, _]) = (net.leader().unwrap(), followers(&net));
    net.crash(leader);
    net.submit(a).unwrap();
    let start = net.now;
    net.run_for(ms(3_000)).unwrap();
    assert!(delays(&net, a, start) < 1_000, "{} ms, less than two beacons", delays(&net, a, start));
}

/// A member that returns from a long cut leaves the others' ballot alone.
#[test]
fn a_returning_member_disturbs_nobody() {
    let mut net = elected(9);
    let (leader, [a, _]) = (net.leader().unwrap(), followers(&net));
    let ballot = net.order(leader).ballot();
    net.isolate(a, true);
    net.run_for(ms(20_000)).unwrap();
    net.isolate(a, false);
    net.run_for(ms(2_000)).unwrap();
    assert_eq!((net.leader(), net.order(a).ballot()), (Some(leader), ballot));
}

#[test]
fn a_member_behind_the_log_gets_a_state_and_goes_on() {
    let mut net = elected(10);
    (net.config.log_entries, net.config.log_bytes) = (24, 4_000);
    for m in net.members() {
        net.crash(m);
        net.restart(m);
    }
    net.run_for(ms(2_000)).unwrap();
    let (leader, [a, _]) = (net.leader().unwrap(), followers(&net));
    net.isolate(a, true);
    for _ in 0..100 {
        net.submit(leader).unwrap();
        net.run_for(ms(5)).unwrap();
        net.members().for_each(|m| net.save(m).unwrap());
    }
    net.isolate(a, false);
    settle(&mut net, 10);
    assert_eq!((net.host(a).restored, net.checks.messages()), (1, 100));
    net.crash(a);
    settle(&mut net, 10);
    net.submit(a).unwrap();
    settle(&mut net, 10);
    assert_eq!(net.host(a).restored, 1, "it restarts from its own records");
}

#[test]
fn what_is_submitted_together_travels_together() {
    let mut net = elected(11);
    let leader = net.leader().unwrap();
    let before = net.packets;
    for _ in 0..1_000 {
        net.submit(leader).unwrap();
    }
    net.run_for(ms(30)).unwrap();
    assert_eq!(net.deliveries.len(), 3_000);
    assert!(net.packets - before < 100, "{} packets for 1000 messages", net.packets - before);
}

/// Disks that take longer than anybody's patience make ordering slow, not impossible.
#[test]
fn slow_disks_get_there() {
    let mut net = elected(15);
    net.weather.disk = (ms(1_700), ms(1_700));
    let leader = net.leader().unwrap();
    for _ in 0..3 {
        net.submit(leader).unwrap();
        net.run_for(ms(300)).unwrap();
    }
    net.run_for(ms(6_000)).unwrap();
    assert_eq!(net.deliveries.len(), 9);
}

#[test]
fn a_full_outbox_refuses_the_newest_and_keeps_the_rest() {
    let mut net = elected(12);
    let [a, _] = followers(&net);
    net.isolate(a, true);
    for _ in 0..Config::default().outbox + 7 {
        net.submit(a).unwrap();
    }
    assert_eq!((net.host(a).refused, net.order(a).counters().refused), (7, 7));
    settle(&mut net, 12);
    assert_eq!(net.checks.messages(), Config::default().outbox);
}

/// A run is its seed: the same deliveries at the same times.
#[test]
fn a_seed_replays() {
    let run = |seed| {
        let net = chaos(seed, 3);
        (net.deliveries, net.packets)
    };
    assert_eq!(run(77), run(77));
    assert_ne!(run(77).1, run(78).1);
}

/// CM-4: equal histories are equal machines, for the model checker and for comparing states.
#[test]
fn a_copy_given_the_same_facts_stays_equal() {
    let net = elected(13);
    let mut one: Order = net.order(Member(0)).clone();
    let mut two = one.clone();
    for order in [&mut one, &mut two] {
        order.handle(net.now, Input::Submitted { message: b"x" }, &mut super::net::Collected::default());
    }
    assert_eq!(one, two);
    let print = |o| phalanx_core::Fingerprint::of(o, net.now);
    assert!(print(&one) == print(&two) && print(&one) != print(net.order(Member(0))));
}
