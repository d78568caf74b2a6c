//! One herald: what it hears of zones, and what it believes.

use super::super::words::At;
use super::*;

fn node(n: u8, zone: &str) -> NodeInfo {
    let (key, at) = (Key([n; 32]), At::Local(n.into()));
    NodeInfo { key, name: format!("n{n}"), at, zone: zone.into(), incarnation: 1, slots: 1 }
}

fn place(zone: &str, rank: Option<u8>) -> Place {
    Place { zone: zone.into(), rank, heralds: Vec::new(), supervisors: vec![Addr::Local(99)] }
}

/// The first herald of a zone with these members.
fn herald(zone: &str, members: &[u8]) -> Herald {
    let mut herald = Herald::new(Key([members[0]; 32]));
    herald.on_placed(Instant::ZERO, place(zone, Some(0)));
    members.iter().for_each(|&n| herald.on_seen(Instant::ZERO, &node(n, zone), 0));
    herald
}

fn wait(herald: &mut Herald, until: Instant) -> Vec<Act> {
    let (mut acts, mut rng) = (Vec::new(), Rng::new(1, 1));
    while herald.deadline() <= until {
        herald.expire(herald.deadline(), &mut rng, &mut acts);
    }
    acts
}

fn hear(herald: &mut Herald, now: Instant, zone: &str, record: Record) -> Vec<Act> {
    let mut acts = Vec::new();
    let what = What::Nodes { records: vec![record], all: None };
    herald.on_tidings(now, Addr::Local(50), Tidings { zone: zone.into(), herald: true, what }, &mut acts);
    acts
}

fn at(seconds: u64) -> Instant {
    Instant::ZERO + Duration::from_secs(seconds)
}

fn is_there(herald: &Herald, n: u8) -> bool {
    herald.atlas.record(&Key([n; 32])).is_some_and(|r| r.there)
}

fn said(there: bool, edition: u32, node: NodeInfo) -> Record {
    Record { node, minor: 0, edition, there }
}

/// One part of a zone says of the other that it is gone: who lives says so again, and once is enough.
#[test]
fn who_lives_in_a_part_of_its_zone_counts() {
    let mut herald = herald("a", &[1, 2]);
    let acts = hear(&mut herald, at(1), "b", said(false, 0, node(2, "a")));
    assert!(acts.is_empty() && !is_there(&herald, 2), "our own zone tells the steward itself");
    wait(&mut herald, at(3));
    assert!(!is_there(&herald, 2));
    wait(&mut herald, at(8));
    assert_eq!(herald.atlas.record(&Key([2; 32])), Some(&said(true, 1, node(2, "a"))));
    // The other part saw it die before; that is older now.
    hear(&mut herald, at(9), "b", said(false, 0, node(2, "a")));
    assert!(is_there(&herald, 2));
    // When it does die, that counts.
    assert!(herald.on_gone(at(10), Key([2; 32]), 1, 0));
    assert!(!is_there(&herald, 2));
}

/// Who died when nobody was left to say so: the zone's next heralds do, after a while.
#[test]
fn who_is_not_in_its_zone_is_said_to_be_gone() {
    let mut herald = herald("a", &[1]);
    hear(&mut herald, at(1), "b", said(true, 0, node(3, "a")));
    wait(&mut herald, at(10));
    assert!(is_there(&herald, 3));
    wait(&mut herald, at(20));
    assert!(!is_there(&herald, 3));
}

/// A member moves to another zone: its old one says that it left, in whatever order both are heard.
#[test]
fn who_moves_is_not_gone() {
    let moved = || Record { minor: 1, ..said(true, 0, node(2, "b")) };
    let mut one = herald("a", &[1, 2]);
    assert!(one.on_gone(at(1), Key([2; 32]), 1, 0));
    assert_eq!(hear(&mut one, at(2), "b", moved()), [Act::Seen(node(2, "b"))]);
    let mut other = herald("a", &[1, 2]);
    assert_eq!(hear(&mut other, at(1), "b", moved()), [Act::Seen(node(2, "b"))]);
    assert!(!other.on_gone(at(2), Key([2; 32]), 1, 0));
    assert!(is_there(&one, 2) && is_there(&other, 2));
    assert_eq!(one.atlas.sum("b"), other.atlas.sum("b"));
}

/// A zone is silent when its beats do not grow, and is back when they do.
#[test]
fn a_zone_without_beats_is_silent() {
    let mut herald = herald("a", &[1]);
    hear(&mut herald, at(1), "b", said(true, 0, node(5, "b")));
    assert!(!wait(&mut herald, at(20)).contains(&Act::Unseen(Key([5; 32]))));
    assert!(wait(&mut herald, at(24)).contains(&Act::Unseen(Key([5; 32]))));
    let sum = |beat| Sum { zone: "b".into(), sum: herald.atlas.sum("b"), beat };
    let (old, new) = (sum(0), sum(1));
    for (sum, is_back) in [(old, false), (new, true)] {
        let mut acts = Vec::new();
        let tidings = Tidings { zone: "b".into(), herald: true, what: What::Have(vec![sum]) };
        herald.on_tidings(at(25), Addr::Local(50), tidings, &mut acts);
        assert_eq!(acts.contains(&Act::Seen(node(5, "b"))), is_back);
    }
}

/// Without a place among zones nobody says or hears anything.
#[test]
fn where_there_is_one_zone_nothing_is_said() {
    let mut herald = Herald::new(Key([1; 32]));
    herald.on_seen(at(0), &node(1, ""), 0);
    assert!(hear(&mut herald, at(1), "b", said(true, 0, node(5, "b"))).is_empty());
    assert!(herald.on_gone(at(2), Key([1; 32]), 1, 0));
    assert_eq!((herald.deadline(), herald.atlas.zones().count()), (Instant::NEVER, 0));
}
