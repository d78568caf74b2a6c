//! TG-8: segments without multicast.

use super::*;

/// Nothing of it can be cast: these nodes have no groups.
fn unicast(config: SegmentConfig, map: SegmentMap) -> impl Fn(usize, u64, Rng, Instant) -> Segment {
    let map = Arc::new(map);
    move |n, incarnation, rng, now| {
        let mut node = Segment::unicast(config, &map, start(n, incarnation), rng, now);
        node.set(now, "service", Some(format!("{n}").as_bytes())).unwrap();
        node
    }
}

/// Segments of equal size.
fn even(n: usize, size: usize) -> SegmentMap {
    let addrs: Vec<Addr> = (0..n).map(|i| card(i).addr).collect();
    SegmentMap::new(addrs.chunks(size).map(<[Addr]>::to_vec))
}

fn knocks(net: &World<'_>) -> u64 {
    net.running().map(|i| net.hosts[i].engine.as_ref().unwrap().counters().knocks).sum()
}

#[test]
fn tg_8_groups_form_as_they_are_configured() {
    for config in [PAPER, LAN] {
        for seed in 0..100 {
            let make = unicast(config, even(15, 5));
            let mut net = Net::new(15, Weather::FAIR, seed, &make);
            net.loses = Box::new(|p| {
                assert_ne!(p.way, Way::Cast, "there is no multicast");
                false
            });
            net.settle(config.period * 10);
            net.run(config.period * 10);
            assert!(net.is_settled(), "seed {seed}");
            let tops = (0..3).map(|g| lowest(g * 5..g * 5 + 5)).collect::<BTreeSet<_>>();
            assert_eq!(leaders(&net, 0), tops, "seed {seed}");
            assert_eq!(leaders(&net, 1), BTreeSet::from([lowest(0..15)]), "seed {seed}");
            for i in 0..15 {
                assert_eq!(net.engine(i).levels.len(), 1 + usize::from(tops.contains(&i)), "seed {seed}");
                assert_eq!(net.engine(i).group(0).count(), 4, "seed {seed}");
                assert_eq!(net.engine(i).is_top(), i == lowest(0..15), "seed {seed}");
            }
        }
    }
}

/// Blocks of three segments, three levels; and who is in no segment meets the others all the same.
#[test]
fn tg_8_levels_nest_and_strangers_to_the_map_come_in() {
    for seed in 0..100 {
        let (listed, all) = (36, 38);
        let make = unicast(LAN, even(listed, 4).with_width(3));
        let mut net = Net::new(all, Weather::losing(0.02), seed, &make);
        net.settle(s(15));
        net.run(s(5));
        assert!(net.is_settled(), "seed {seed}");
        assert_eq!(leaders(&net, 0).len(), 9 + 2, "seed {seed}");
        assert_eq!(leaders(&net, 2).len(), 1, "seed {seed}");
        let top = *leaders(&net, 2).first().unwrap();
        net.crash(top);
        net.crash(all - 1);
        net.settle(s(15));
    }
}

/// TG-2, TG-5: as with multicast, the backup is in charge before those above notice, and nobody but the leader is ever gone.
#[test]
fn tg_8_a_leader_is_killed() {
    for seed in 0..100 {
        let make = unicast(PAPER, even(15, 5));
        let mut net = Net::new(15, Weather::FAIR, seed, &make);
        net.settle(s(20));
        net.run(s(10));
        let victim = lowest(if seed % 2 == 0 { 0..5 } else { 5..10 });
        let (backup, from) = (backup_of(&net, victim), net.told.len());
        net.crash(victim);
        net.settle(s(12));
        net.run(s(30));
        assert!(leaders(&net, 0).contains(&backup), "seed {seed}");
        let gone = left(&net, from);
        assert!(gone.iter().all(|t| t.subject == victim), "seed {seed}: {gone:?}");
        assert_eq!(gone.len(), 14, "seed {seed}");
    }
}

#[test]
fn tg_8_leader_and_backup_are_killed_together() {
    for seed in 0..100 {
        let make = unicast(PAPER, even(15, 5));
        let mut net = Net::new(15, Weather::FAIR, seed, &make);
        net.settle(s(20));
        net.run(s(10));
        let victim = lowest(0..15);
        let backup = backup_of(&net, victim);
        net.crash(victim);
        net.crash(backup);
        net.settle(s(20));
        net.run(s(20));
        assert!(net.is_settled(), "seed {seed}");
        let group = victim / 5 * 5..victim / 5 * 5 + 5;
        let next = lowest(group.filter(|i| ![victim, backup].contains(i)));
        assert!(leaders(&net, 0).contains(&next), "seed {seed}");
    }
}

/// A segment is cut off, or a cut goes through one; both heal, with losses meanwhile.
#[test]
fn tg_8_partitions_give_a_forest_and_it_heals() {
    for seed in 0..100 {
        for side in [&[5, 6, 7, 8, 9][..], &[0, 1, 5, 6, 7, 8, 9]] {
            let make = unicast(PAPER, even(15, 5));
            let mut net = Net::new(15, Weather::losing(0.05), seed, &make);
            net.settle(s(60));
            net.partition(side);
            net.run(s(60));
            for (i, view) in net.views() {
                let wrong = view.keys().find(|&j| side.contains(j) != side.contains(&i));
                assert!(wrong.is_none(), "seed {seed}: {}", why(&net, i, *wrong.unwrap(), 4));
            }
            net.heal();
            net.settle(s(30));
        }
    }
}

/// Without losses leaders meet again within a few periods of healing.
#[test]
fn tg_8_leaders_meet_within_a_few_periods_of_healing() {
    for seed in 0..100 {
        let make = unicast(PAPER, even(40, 10));
        let mut net = Net::new(40, Weather::FAIR, seed, &make);
        net.settle(s(30));
        net.partition(&(10..20).collect::<Vec<_>>());
        net.run(s(40));
        net.heal();
        let took = net.settle(s(20));
        assert!(took <= PAPER.period * 5, "seed {seed}: {took:?}");
    }
}

#[test]
fn tg_8_forty_percent_loss() {
    for seed in 0..100 {
        let make = unicast(SegmentConfig { losses: 10, ..PAPER }, even(15, 5));
        let mut net = Net::new(15, Weather::losing(0.4), seed, &make);
        net.settle(s(120));
        net.crash(6);
        net.run(s(60));
        let from = net.told.len();
        net.run(s(60));
        assert!(net.told[from..].iter().all(|t| t.subject != 6), "seed {seed}: it rose again");
        for (i, view) in net.views() {
            assert!(!view.contains_key(&6), "seed {seed}: {}", why(&net, i, 6, 4));
        }
        net.settle(s(60));
        net.weather = Weather::FAIR;
        // A death that was believed at the last moment takes 12 s to be told above, and who differs polls after 10 s, 20 s when that was in vain before.
        net.run(s(60));
        assert!(net.is_settled(), "seed {seed}: {:?}", net.views());
    }
}

/// A whole segment starts again, at once or after it was found dead; and then all of them.
#[test]
fn tg_8_a_whole_segment_starts_again() {
    for seed in 0..100 {
        for down in [0, 1, 30] {
            let make = unicast(PAPER, even(15, 5));
            let mut net = Net::new(15, Weather::losing(0.05), seed, &make);
            net.settle(s(60));
            (5..10).for_each(|i| net.crash(i));
            net.run(s(down));
            (5..10).for_each(|i| net.start(i));
            net.settle(s(30));
            (0..15).for_each(|i| net.crash(i));
            net.run(s(down));
            (0..15).for_each(|i| net.start(i));
            net.settle(s(30));
        }
    }
}

/// The life of a cluster, as with multicast.
#[test]
fn tg_8_crashes_restarts_leaves_and_pauses() {
    for config in [PAPER, LAN] {
        for seed in 0..100 {
            let make = unicast(config, even(12, 4));
            let mut net = Net::new(12, Weather::losing(0.03), seed, &make);
            net.settle(s(60));
            net.crash(3);
            net.crash(0);
            net.settle(s(40));
            net.run(s(10));
            net.leave(5, 42);
            net.settle(s(40));
            net.crash(7);
            net.start(7);
            net.start(0);
            net.settle(s(40));
            net.pause(1);
            // An update may be lost, and so may be its second copy: the next heartbeat shows it.
            net.run(config.fail_after(1) + config.fail_after(0) * 2);
            assert!((6..12).all(|i| !net.views()[&i].contains_key(&1)), "seed {seed}");
            net.resume(1);
            net.settle(s(60));
        }
    }
}

/// Bytes grow with the nodes: no group grows with the cluster. A cluster at rest knocks at hardly anybody and polls nobody.
#[test]
fn tg_8_bytes_are_linear() {
    let mut bytes = BTreeMap::new();
    for (profile, config) in [("paper", PAPER), ("lan", LAN)] {
        for n in [72, 288] {
            let make = unicast(config, even(n, 6).with_width(4));
            let mut net = Net::new(n, Weather::FAIR, 1, &make);
            net.settle(s(60));
            net.run(s(20));
            let total = |net: &World<'_>| net.hosts.iter().map(|h| h.received).sum::<u64>();
            let (before, asked, knocked) = (total(&net), polls(&net), knocks(&net));
            let periods = 12;
            net.run(config.period * periods);
            assert_eq!(polls(&net), asked, "{profile}: nobody asks while nothing happens");
            let each = (knocks(&net) - knocked) as f64 / (periods as usize * n) as f64;
            assert!(each < 0.3, "{profile}: {each} knocks of a node in a period");
            bytes.insert((profile, n), total(&net) - before);
        }
    }
    let ratio = |profile| bytes[&(profile, 288)] as f64 / bytes[&(profile, 72)] as f64;
    assert!(ratio("paper") < 4.4 && ratio("lan") < 4.4, "{bytes:?}");
}

/// An insider says where leaders are: we speak to nobody who is not ours, and to few.
#[test]
fn tg_8_hints_are_bounded() {
    let make = unicast(PAPER, even(10, 5));
    let mut net = Net::new(10, Weather::FAIR, 1, &make);
    net.settle(s(20));
    let top = lowest(0..10);
    let (now, from) = (net.now, crate::baselines::net::peer(top ^ 1));
    let mut sent = Vec::new();
    for n in 0..1_000u32 {
        let mut bytes = Vec::new();
        phalanx_wire::segment::lead(1, Addr::Local(if n % 2 == 0 { n % 10 } else { 77 }), &mut bytes);
        let mut out = crate::baselines::net::Collected::default();
        net.engine(top).handle(now, Input::Datagram { from, group: false, bytes: &bytes }, &mut out);
        sent.extend(out.0);
    }
    let is_ours = |to: &Addr| (0..10).any(|i| card(i).addr == *to);
    assert!((1..=64).contains(&sent.len()), "{}", sent.len());
    for owned in &sent {
        assert!(matches!(owned, crate::baselines::net::Owned::Datagram(to, _) if is_ours(to)), "{owned:?}");
    }
    assert!(net.engine(top).counters().hints >= 500);
}
