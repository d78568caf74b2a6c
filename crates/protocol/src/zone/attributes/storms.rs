//! Storms over many seeds: writes while links, members and views change, then quiet.

use super::net::{CONFIG, Net};
use phalanx_core::Duration;

const fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// What goes wrong in a run.
#[derive(Clone, Copy, Debug, Default)]
struct Weather {
    links: bool,
    crashes: bool,
    alarms: bool,
}

/// A random graph of 4 to 13 nodes, a storm of writes, the weather; then everyone alive is equal and silent. Says how
/// many entries came and how many of them were there already.
fn storm(seed: u64, weather: Weather) -> (u64, u64) {
    let mut net = Net::new(4 + seed as usize % 10, CONFIG, seed);
    let n = net.nodes.len();
    net.slowest = ms([1, 5, 40][seed as usize % 3]);
    net.connect();
    for _ in 0..2 * n {
        let (a, b) = (net.rng.index(n), net.rng.index(n));
        net.link(a, b);
    }
    for step in 0..150u32 {
        let (a, b) = (net.rng.index(n), net.rng.index(n));
        let key = format!("k{}", net.rng.below(6));
        match net.rng.below(20) {
            0..3 => net.write(a, &key, None),
            3..13 => net.write(a, &key, Some(&[&step.to_le_bytes()[..], &[a as u8]].concat())),
            13..15 if weather.links => net.unlink(a, b),
            15..17 if weather.links || weather.crashes => net.link(a, b),
            17 if weather.crashes && !net.nodes[a].alive => net.restart(a),
            17 if weather.crashes && net.nodes.iter().filter(|n| n.alive).count() > 3 => net.crash(a),
            18 if weather.alarms && net.nodes[a].alive && net.nodes[b].alive && a != b => net.false_alarm(a, b),
            _ => {
                let pause = Duration(net.rng.below(4 * net.slowest.0));
                net.run_for(pause);
            }
        }
    }
    // All views are right again, and those who live are connected; nothing else helps.
    net.run_for(net.slowest * 24);
    net.connect();
    net.settle();
    let quiet = net.messages;
    net.run_for(Duration::from_secs(3600));
    assert_eq!(net.messages, quiet, "somebody spoke though nothing happened");
    net.duplicates()
}

fn storms(weather: Weather) -> f64 {
    let sum = (0..200).map(|seed| storm(seed, weather)).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    assert!(sum.0 > 10_000, "a storm is more than {} entries", sum.0);
    let share = sum.1 as f64 / sum.0 as f64;
    eprintln!("{weather:?}: {} of {} entries came twice, {:.2} %", sum.1, sum.0, 100.0 * share);
    share
}

/// AT-2: with stable links no entry comes twice.
#[test]
fn at_2_replicas_become_equal_and_silent() {
    assert!(storms(Weather::default()) == 0.0);
}

#[test]
fn at_2_replicas_become_equal_while_links_come_and_go() {
    assert!(storms(Weather { links: true, ..Weather::default() }) <= 0.1);
}

#[test]
fn at_1_replicas_of_the_dead_are_gone_and_their_next_life_begins_anew() {
    assert!(storms(Weather { crashes: true, ..Weather::default() }) <= 0.1);
}

#[test]
fn at_2_a_false_alarm_costs_no_map() {
    assert!(storms(Weather { alarms: true, ..Weather::default() }) <= 0.1);
}

#[test]
fn at_2_all_weathers_at_once() {
    assert!(storms(Weather { links: true, crashes: true, alarms: true }) <= 0.1);
}

/// Maps of 48 KiB: a node that comes late gets all of them, a message at a time, each entry once.
#[test]
fn at_2_large_maps_come_in_several_replies() {
    let mut net = Net::new(12, CONFIG, 1);
    (1..11).for_each(|n| net.link(n, n - 1));
    for (node, key) in (0..11).flat_map(|n| (0..12).map(move |k| (n, k))) {
        net.write(node, &format!("k{key}"), Some(&[node as u8; 4096]));
    }
    net.run_for(Duration::from_secs(5));
    let before = net.messages;
    (0..3).for_each(|n| net.link(11, n));
    net.settle();
    assert!(net.messages - before > 2 * 11, "one map for each reply at most");
    let counters = net.nodes[11].attributes.counters();
    assert_eq!((counters.entries, counters.duplicates, counters.pushes), (11 * 12, 0, 0));
}

/// Deletions without end: certificates are forgotten, and a reader that was away for long resurrects nothing.
#[test]
fn at_1_no_key_returns_from_the_dead() {
    for seed in 0..6 {
        let mut net = Net::new(5, CONFIG, seed);
        (1..5).for_each(|n| net.link(n, n - 1));
        (0..200).for_each(|n| net.write(0, &format!("job {n}"), Some(b"runs")));
        net.run_for(ms(100));
        let away = 1 + net.rng.index(3);
        net.unlink(away, away + 1);
        for n in 0..800 {
            net.write(0, &format!("job {n}"), None);
            net.write(0, &format!("job {}", n + 200), Some(b"runs"));
            let pause = Duration(net.rng.below(2_000_000));
            net.run_for(pause);
        }
        net.link(away, away + 1);
        net.settle();
        let (entries, duplicates) = net.duplicates();
        assert!(duplicates * 10 <= entries, "{duplicates} of {entries}");
    }
}

/// The paper's rounds give the same result, later.
#[test]
fn at_2_the_papers_rounds_reach_everybody_too() {
    let paces = crate::zone::pace::Paces { lone: false, brisk: 0, shortest: ms(200), longest: ms(200) };
    let mut net = Net::new(9, super::Config { paces, ..CONFIG }, 3);
    (1..9).for_each(|n| net.link(n, n - 1));
    net.write(0, "k", Some(b"v"));
    let slot = net.nodes[8].view.slot_of(0);
    net.run_for(ms(7 * 200));
    assert_eq!(net.nodes[8].attributes.get(slot, "k"), None, "seven rounds for eight hops");
    net.run_for(ms(200 + 200));
    assert_eq!(net.nodes[8].attributes.get(slot, "k"), Some(&b"v"[..]));
    net.settle();
}
