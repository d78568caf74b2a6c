//! Segments on a simulated network with routers (TG-1 to TG-7).

mod unicast;

use super::*;
use crate::baselines::net::{Net, Packet, Told, Way, Weather, card};
use crate::member::Why;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

const PAPER: SegmentConfig = SegmentConfig::paper(20, 4);
const LAN: SegmentConfig = SegmentConfig::lan(20, 4);

fn s(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn start(n: usize, incarnation: u64) -> Start {
    Start { card: card(n), incarnation, bootstrap: Vec::new(), shared: Arc::default() }
}

fn segments(config: SegmentConfig) -> impl Fn(usize, u64, Rng, Instant) -> Segment {
    move |n, incarnation, rng, now| {
        let mut node = Segment::new(config, start(n, incarnation), rng, now);
        node.set(now, "service", Some(format!("{n}").as_bytes())).unwrap();
        node
    }
}

type World<'m> = Net<'m, Segment>;

/// Segments of equal size with one router between all.
fn star(size: usize) -> Box<dyn Fn(usize, usize) -> u8> {
    Box::new(move |a, b| 1 + u8::from(a / size != b / size))
}

fn with<'m>(
    n: usize,
    weather: Weather,
    seed: u64,
    make: &'m dyn Fn(usize, u64, Rng, Instant) -> Segment,
    size: usize,
) -> World<'m> {
    let mut net = Net::new(n, weather, seed, make);
    net.distance = star(size);
    net
}

/// Who leads each group, by level: who of all running nodes thinks so of itself.
fn leaders(net: &World<'_>, level: usize) -> BTreeSet<usize> {
    let leads = |i: &usize| net.hosts[*i].engine.as_ref().is_some_and(|e| e.leaders().nth(level) == Some(Some(e.me())));
    net.running().filter(leads).collect()
}

/// The lowest identity of some.
fn lowest(of: impl Iterator<Item = usize>) -> usize {
    of.min_by_key(|&i| card(i).identity).unwrap()
}

fn backup_of(net: &World<'_>, leader: usize) -> usize {
    let engine = net.hosts[leader].engine.as_ref().unwrap();
    let backup = engine.level(0).unwrap().backup.unwrap();
    (0..net.hosts.len()).find(|&i| engine.card(backup) == Some(&card(i))).unwrap()
}

fn polls(net: &World<'_>) -> u64 {
    net.running().map(|i| net.hosts[i].engine.as_ref().unwrap().counters().polls).sum()
}

fn left(net: &World<'_>, from: usize) -> Vec<Told> {
    net.told[from..].iter().filter(|t| t.why.is_some()).copied().collect()
}

/// Why a node has another in its view.
fn why(net: &World<'_>, observer: usize, subject: usize, depth: u8) -> String {
    let engine = net.hosts[observer].engine.as_ref().unwrap();
    let name = |slot: Slot| engine.card(slot).map(|c| c.name.as_str().to_owned());
    let slot = engine.book.find(&card(subject).identity).unwrap();
    let teller = engine.book.teller(slot).map(|t| (t.level, name(t.by), t.own));
    let heard: Vec<u8> = (0..8).filter(|&l| engine.book.is_heard(slot, l)).collect();
    let leaders: Vec<_> = engine.leaders().map(|l| l.and_then(name)).collect();
    let by = engine.book.teller(slot).and_then(|t| engine.card(t.by)).map(|c| c.identity);
    let next = (0..net.hosts.len()).find(|&i| Some(card(i).identity) == by && net.hosts[i].engine.is_some());
    let next = next
        .filter(|&i| net.views()[&i].contains_key(&subject))
        .filter(|_| depth > 0)
        .map(|i| why(net, i, subject, depth - 1));
    format!(
        "{subject} at {observer}: heard {heard:?}, told by {teller:?}; leaders {leaders:?}\n{}",
        next.unwrap_or_default()
    )
}

/// How long it takes two who hear of each other for the first time to make a session.
const HANDSHAKE: Duration = Duration::from_millis(5);

/// Casts are lost between two until they have a session, which the first of them asks for.
fn strangers() -> impl FnMut(&Packet) -> bool {
    let mut met = BTreeMap::new();
    move |p| {
        let met_at: Instant = *met.entry((p.from.min(p.to), p.from.max(p.to))).or_insert(p.at);
        p.way == Way::Cast && p.at < met_at + HANDSHAKE
    }
}

#[test]
fn tg_1_groups_take_the_shape_of_the_network() {
    for seed in 0..20 {
        let make = segments(PAPER);
        let mut net = with(15, Weather::FAIR, seed, &make, 5);
        net.settle(s(20));
        net.run(s(10));
        let tops = (0..3).map(|g| lowest(g * 5..g * 5 + 5)).collect::<BTreeSet<_>>();
        assert_eq!(leaders(&net, 0), tops, "seed {seed}");
        assert_eq!(leaders(&net, 1), BTreeSet::from([lowest(0..15)]), "seed {seed}");
        // Up to the largest TTL, and not beyond.
        assert_eq!(leaders(&net, 3), BTreeSet::from([lowest(0..15)]), "seed {seed}");
        for i in net.running().collect::<Vec<_>>() {
            let levels = net.engine(i).levels.len();
            assert_eq!(levels, if i == lowest(0..15) { 4 } else { 1 + usize::from(tops.contains(&i)) }, "seed {seed}");
            assert_eq!(net.engine(i).group(0).count(), 4);
        }
    }
}

/// 003 Fig. 5: A and B reach each other with a TTL of 3, and so do B and C; A and C do not.
#[test]
fn tg_1_groups_overlap_where_reachability_is_not_transitive() {
    for seed in 0..20 {
        for size in [1, 3] {
            let make = segments(SegmentConfig::paper(20, 3));
            let mut net = Net::new(3 * size, Weather::FAIR, seed, &make);
            net.distance = Box::new(move |a, b| [1, 3, 9][(a / size).abs_diff(b / size)]);
            net.settle(s(60));
            net.crash(3 * size - 1);
            net.settle(s(30));
            net.crash(0);
            net.settle(s(30));
            net.start(0);
            net.settle(s(60));
        }
    }
}

#[test]
fn tg_2_a_leader_that_is_there_is_kept() {
    let make = segments(PAPER);
    let mut net = Net::new(6, Weather::FAIR, 3, &make);
    let first = lowest(0..6);
    net.crash(first);
    net.settle(s(20));
    net.run(s(5));
    let leader = leaders(&net, 0);
    net.start(first);
    net.settle(s(20));
    net.run(s(20));
    assert_eq!(leaders(&net, 0), leader, "also of one with a lower number");
}

/// TG-2, TG-5: the backup is in charge before those above notice; nobody but the leader is ever gone.
#[test]
fn tg_2_the_backup_takes_over_before_the_higher_level_notices() {
    for seed in 0..100 {
        let make = segments(PAPER);
        let mut net = with(15, Weather::FAIR, seed, &make, 5);
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

/// The same where two who have not spoken yet cannot open each other's casts, as links have it: a first one is lost, and all that come while
/// they make a session.
#[test]
fn tg_2_the_backup_is_no_stranger_above() {
    for config in [PAPER, LAN] {
        for seed in 0..100 {
            let make = segments(config);
            let mut net = with(15, Weather::FAIR, seed, &make, 5);
            net.loses = Box::new(strangers());
            net.settle(s(30));
            net.run(s(15));
            for victim in [lowest(if seed % 2 == 0 { 0..5 } else { 5..10 }), lowest(10..15)] {
                let (from, crashed_at, alive) = (net.told.len(), net.now, net.running().count() - 1);
                net.crash(victim);
                net.settle(s(12));
                let gone = left(&net, from);
                assert!(gone.iter().all(|t| t.subject == victim), "{seed}: {gone:?}");
                assert_eq!(gone.len(), alive, "seed {seed}");
                let took = gone.iter().map(|t| t.at.since(crashed_at)).max().unwrap();
                // The first words of the backup may have overtaken each other: they are said twice.
                let at_most = config.fail_after(0) + config.grace + Duration::from_millis(10);
                assert!(took <= at_most, "seed {seed}: {took:?}");
                net.run(s(15));
                assert_eq!(left(&net, from).len(), alive, "seed {seed}: nobody else is ever gone");
            }
        }
    }
}

/// A leader that leaves in an orderly way takes nobody along.
#[test]
fn tg_2_a_leader_that_leaves_takes_nobody_along() {
    for seed in 0..100 {
        let make = segments(PAPER);
        let mut net = with(15, Weather::FAIR, seed, &make, 5);
        net.settle(s(20));
        net.run(s(10));
        let (victim, from) = (lowest(if seed % 2 == 0 { 0..15 } else { 5..10 }), net.told.len());
        net.leave(victim, 0);
        net.settle(s(12));
        net.run(s(30));
        let gone = left(&net, from);
        assert!(gone.iter().all(|t| t.subject == victim), "seed {seed}: {gone:?}");
    }
}

#[test]
fn tg_2_leader_and_backup_killed_together() {
    for seed in 0..100 {
        let make = segments(PAPER);
        let mut net = with(15, Weather::FAIR, seed, &make, 5);
        net.settle(s(20));
        net.run(s(10));
        let victim = lowest(0..15);
        let backup = backup_of(&net, victim);
        net.crash(victim);
        net.crash(backup);
        net.settle(s(30));
        net.run(s(20));
        assert!(net.is_settled(), "seed {seed}");
        let group = victim / 5 * 5..victim / 5 * 5 + 5;
        let next = lowest(group.filter(|i| ![victim, backup].contains(i)));
        assert!(leaders(&net, 0).contains(&next), "seed {seed}");
    }
}

/// TG-3: who comes has everybody as soon as it has a leader, and all have it.
#[test]
fn tg_3_who_comes_gets_all_from_its_leader() {
    for seed in 0..20 {
        let make = segments(PAPER);
        let mut net = with(20, Weather::FAIR, seed, &make, 5);
        net.crash(7);
        net.settle(s(20));
        net.run(s(10));
        net.start(7);
        let took = net.settle(s(10));
        assert!(took <= s(3), "seed {seed}: {took:?}");
        let engine = net.engine(7);
        for (slot, _) in engine.members().collect::<Vec<_>>() {
            let name = engine.card(slot).unwrap().name.as_str().to_owned();
            let n: usize = name["node-".len()..].parse().unwrap();
            assert_eq!(engine.attribute(slot, "service"), Some(format!("{n}").as_bytes()));
        }
    }
}

/// TG-4: what a node says of itself comes to all, however far.
#[test]
fn tg_4_attributes_come_to_all() {
    for config in [PAPER, LAN] {
        for seed in 0..20 {
            let make = segments(config);
            let mut net = with(15, Weather::losing(0.05), seed, &make, 5);
            net.settle(s(30));
            let now = net.now;
            net.engine(4).set(now, "load", Some(b"high")).unwrap();
            net.run(config.period * 20);
            for i in 0..15 {
                let engine = net.engine(i);
                let slot = engine.members().map(|m| m.0).find(|&s| engine.card(s) == Some(&card(4))).unwrap();
                assert_eq!(engine.attribute(slot, "load"), Some(&b"high"[..]), "seed {seed}: {i}");
            }
        }
    }
}

/// TG-4, 003 §5.1: whom a node hears is local to it, and it has all others on the word of a leader: who follows one on that one's, who leads on
/// the word of those who lead them. When that leader dies it is its heir's.
#[test]
fn tg_4_whom_one_hears_and_of_whom_one_is_told_are_told_apart() {
    for config in [PAPER, LAN] {
        for seed in 0..20 {
            let make = segments(config);
            let mut net = with(15, Weather::FAIR, seed, &make, 5);
            net.settle(s(30));
            net.run(s(20));
            for has_died in [false, true] {
                if has_died {
                    let dead = lowest(leaders(&net, 0).into_iter());
                    net.crash(dead);
                    net.settle(s(60));
                    net.run(s(30));
                }
                let (leads, running) = (leaders(&net, 0), net.running().collect::<Vec<_>>());
                let leader_of = |n: usize| leads.iter().copied().find(|&l| l / 5 == n / 5);
                for (&i, &j) in running.iter().flat_map(|i| running.iter().map(move |j| (i, j))) {
                    let engine = net.hosts[i].engine.as_ref().unwrap();
                    let slot_of = |n: usize| engine.members().map(|m| m.0).find(|&s| engine.card(s) == Some(&card(n)));
                    let is_heard = i / 5 == j / 5 || leads.contains(&i) && leads.contains(&j);
                    let by = match engine.origin(slot_of(j).unwrap()) {
                        Some(Origin::Told(by)) => by.map(|by| engine.card(by).unwrap().clone()),
                        origin => {
                            assert!(is_heard && origin == Some(Origin::Heard), "seed {seed}: {j} for {i}: {origin:?}");
                            continue;
                        }
                    };
                    // Above, the leader of all passes on what another one says.
                    let is_theirs =
                        |l: usize| by == Some(card(l)) && (l == leader_of(i).unwrap()) != leads.contains(&i);
                    assert!(!is_heard && leads.iter().any(|&l| is_theirs(l)), "seed {seed}: {j} for {i} by {by:?}");
                }
            }
        }
    }
}

/// TG-5: a dead switch takes its nodes with it as one, and they come back as one.
#[test]
fn tg_5_a_switch_dies_and_comes_back() {
    for seed in 0..100 {
        let make = segments(PAPER);
        let mut net = with(15, Weather::FAIR, seed, &make, 5);
        net.settle(s(20));
        net.run(s(10));
        let from = net.told.len();
        net.partition(&[5, 6, 7, 8, 9]);
        net.run(s(40));
        for (i, view) in net.views() {
            let side = |i: usize| i / 5 == 1;
            assert!(view.keys().all(|&j| side(j) == side(i)), "seed {seed}: {i} sees {view:?}");
        }
        // Each observer loses all of them in one moment.
        let mut spans: BTreeMap<usize, Vec<Instant>> = BTreeMap::new();
        left(&net, from)
            .iter()
            .filter(|t| t.subject / 5 == 1 && t.observer / 5 != 1)
            .for_each(|t| spans.entry(t.observer).or_default().push(t.at));
        assert!(spans.values().all(|at| at.len() == 5 && at[4].since(at[0]) < PAPER.period), "seed {seed}: {spans:?}");
        net.heal();
        net.settle(s(30));
    }
}

/// Three leaves behind two routers in a row, as in tests/cluster: the switch of one end dies and is back. Its nodes go once and come once, and
/// nobody else does, however far away one looks from: neither when it dies, though its leader may lead others and who is farther away gives it
/// up later, nor when it is back, though who comes back has verdicts from when it was alone.
#[test]
fn tg_5_a_dead_switch_fails_nobody_else() {
    const LEAF: [usize; 7] = [0, 0, 0, 1, 1, 2, 2];
    for config in [PAPER, LAN] {
        for seed in 0..100 {
            let make = segments(config);
            let mut net = Net::new(LEAF.len(), Weather::FAIR, seed, &make);
            // The cable to the router is cut, or the switch is dead: then its nodes do not hear each other either.
            let (dead, are_alone) = (if seed % 2 == 0 { 0 } else { 2 }, seed % 8 < 4);
            let cut: Vec<usize> = (0..LEAF.len()).filter(|&i| LEAF[i] == dead).collect();
            let is_cut = Rc::new(Cell::new(false));
            let (now_cut, of_it) = (Rc::clone(&is_cut), cut.clone());
            let hear = move |a: usize, b: usize| {
                let (a, b) = (of_it.contains(&a), of_it.contains(&b));
                !now_cut.get() || a == b && !(a && are_alone)
            };
            net.distance = Box::new(move |a, b| if hear(a, b) { 1 + LEAF[a].abs_diff(LEAF[b]) as u8 } else { 0 });
            net.settle(s(60));
            net.run(s(20));
            let from = net.told.len();
            is_cut.set(true);
            // It is back after a while, or as soon as all have noticed.
            let side = |i: usize| cut.contains(&i);
            let is_mine = |i: usize, j: usize| i == j || side(i) == side(j) && !(side(i) && are_alone);
            let mine = |i: usize| (0..LEAF.len()).filter(move |&j| is_mine(i, j));
            while net.views().iter().any(|(&i, view)| !view.keys().copied().eq(mine(i))) {
                net.run(Duration::from_millis(20));
            }
            net.run(if seed % 4 < 2 { Duration::ZERO } else { s(60) });
            let healed = net.told.len();
            // Links have let go of each other meanwhile.
            net.loses = Box::new(strangers());
            is_cut.set(false);
            net.settle(s(60));
            net.run(s(60));
            for observer in (0..LEAF.len()).filter(|i| !cut.contains(i)) {
                let of = |told: &[Told]| {
                    let mut of: Vec<_> = told.iter().filter(|t| t.observer == observer).copied().collect();
                    of.sort_by_key(|t| t.subject);
                    of
                };
                let (went, came) = (of(&net.told[from..healed]), of(&net.told[healed..]));
                for (told, left) in [(&went, true), (&came, false)] {
                    let is_right = told.iter().map(|t| (t.subject, t.why.is_some())).eq(cut.iter().map(|&i| (i, left)));
                    assert!(is_right, "seed {seed}, {dead} dead, {:?}, {observer}: {told:#?}", config.period);
                }
            }
        }
    }
}

/// One update is lost on the way to one node, and then some more: how often it polls.
fn lost_updates(lost: u64) -> u64 {
    let make = segments(PAPER);
    let mut net = Net::new(4, Weather::FAIR, 5, &make);
    // 3 is alone in its segment; the others are in one.
    net.distance = Box::new(|a, b| 1 + u8::from((a == 3) != (b == 3)));
    net.settle(s(20));
    net.run(s(20));
    let leader = lowest(0..3);
    let before = net.engine(3).counters();
    // The first so many, each also when it is told once more.
    let seen = Rc::new(RefCell::new(BTreeSet::new()));
    let lose = Rc::clone(&seen);
    net.loses = Box::new(move |p| {
        if p.way != Way::Cast || p.bytes[1] != 3 || (p.from, p.to) != (leader, 3) {
            return false;
        }
        let number = u64::from_le_bytes(*p.bytes[4..].first_chunk().unwrap());
        lose.borrow_mut().insert(number);
        lose.borrow().iter().position(|&n| n == number).unwrap() < lost as usize
    });
    // Each heartbeat of it that says something new is an update to those far away.
    let subject = (0..3).find(|&i| i != leader).unwrap();
    for n in 0..=lost {
        let now = net.now;
        net.engine(subject).set(now, "n", Some(format!("{n}").as_bytes())).unwrap();
        net.run(s(1));
    }
    net.run(s(1));
    assert_eq!(seen.borrow().len() as u64, lost + 1);
    let engine = net.engine(3);
    let slot = engine.members().map(|m| m.0).find(|&s| engine.card(s) == Some(&card(subject))).unwrap();
    assert_eq!(engine.attribute(slot, "n"), Some(format!("{lost}").as_bytes()));
    let after = engine.counters();
    assert_eq!(after.gaps - before.gaps, after.polls - before.polls);
    after.polls - before.polls
}

#[test]
fn tg_6_three_lost_updates_cost_nothing_and_four_cost_a_poll() {
    assert_eq!([1, 2, 3, 4].map(lost_updates), [0, 0, 0, 1]);
}

/// TG-7: a partition gives a forest, and it heals; with losses meanwhile.
#[test]
fn tg_7_partitions_give_a_forest_and_it_heals() {
    for seed in 0..100 {
        let make = segments(PAPER);
        let mut net = with(15, Weather::losing(0.05), seed, &make, 5);
        net.settle(s(60));
        net.partition(&[0, 1, 5, 6, 7, 8, 9]);
        net.run(s(60));
        for (i, view) in net.views() {
            let side = |i: usize| [0, 1, 5, 6, 7, 8, 9].contains(&i);
            let wrong = view.keys().find(|&&j| side(j) != side(i));
            assert!(wrong.is_none(), "seed {seed}: {}", why(&net, i, *wrong.unwrap(), 4));
        }
        net.heal();
        net.settle(s(60));
    }
}

/// With 40 % of all packets lost nodes err; what is true wins: who is dead stays dead, and views agree as soon as packets come.
#[test]
fn tg_7_forty_percent_loss() {
    for seed in 0..100 {
        let make = segments(SegmentConfig { losses: 10, ..PAPER });
        let mut net = with(15, Weather::losing(0.4), seed, &make, 5);
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
        net.run(s(30));
        assert!(net.is_settled(), "seed {seed}: {:?}", net.views());
    }
}

/// What one node says is heard by none but one: it is still in all views.
#[test]
fn one_way_loss() {
    for seed in 0..20 {
        let make = segments(PAPER);
        let mut net = Net::new(6, Weather::FAIR, seed, &make);
        let (leader, subject) = (lowest(0..6), (0..6).find(|&i| i != lowest(0..6)).unwrap());
        net.loses = Box::new(move |p| p.way == Way::Cast && (p.from, p.to) == (subject, leader));
        net.settle(s(60));
        net.crash(subject);
        net.settle(s(30));
    }
}

/// The highest level has a leader that says so once.
#[test]
fn a_leader_beats_as_often_as_others() {
    for ttl in [1, 2] {
        let make = segments(SegmentConfig::paper(20, ttl));
        let mut net = with(10, Weather::FAIR, 1, &make, 5);
        net.run(s(20));
        let before: u64 = net.hosts.iter().map(|h| h.packets).sum();
        net.run(s(10));
        let heard = net.hosts.iter().map(|h| h.packets).sum::<u64>() - before;
        // Each period 10 nodes are heard by 4 others, and two leaders by each other.
        // Once in ten periods each backup greets the two leaders, who are the level above.
        assert_eq!(heard, 10 * (10 * 4) + if ttl > 1 { 10 * 2 + 2 * 2 } else { 0 });
    }
}

/// Who is asked and answers is not dead, whatever heartbeats were lost; who does not answer is, as soon as without questions.
#[test]
fn lost_heartbeats_are_asked_for() {
    for seed in 0..100 {
        for asks in [LAN.asks, 0] {
            let make = segments(SegmentConfig { asks, ..LAN });
            let mut net = with(12, Weather::FAIR, seed, &make, 4);
            net.settle(s(30));
            net.run(s(5));
            let subject = (0..4).find(|i| !leaders(&net, 0).contains(i)).unwrap();
            let from = net.told.len();
            net.loses = Box::new(move |p| p.way == Way::Cast && p.from == subject);
            net.run(s(10));
            assert_eq!(left(&net, from).is_empty(), asks > 0, "seed {seed}, {asks} asks");
            net.loses = Box::new(|_| false);
            net.settle(s(30));
            net.run(s(5));
            let asked = |net: &World<'_>| -> u64 {
                net.running().map(|i| net.hosts[i].engine.as_ref().unwrap().counters().asks).sum()
            };
            let before = asked(&net);
            net.run(s(5));
            assert_eq!(asked(&net), before, "nobody asks who is heard");
            let (from, crashed_at) = (net.told.len(), net.now);
            net.crash(subject);
            net.settle(s(10));
            let took = left(&net, from).iter().map(|t| t.at.since(crashed_at)).max().unwrap();
            assert!(took <= LAN.fail_after(0) + Duration::from_millis(10), "seed {seed}: {took:?}");
            assert_eq!(asked(&net) - before, 3 * u64::from(asks), "seed {seed}: each of its three neighbours asks");
        }
    }
}

/// The life of a cluster, as the baselines live it.
#[test]
fn crashes_restarts_and_leaves() {
    for config in [PAPER, LAN] {
        for seed in 0..50 {
            let make = segments(config);
            let mut net = with(12, Weather::losing(0.03), seed, &make, 4);
            net.settle(s(60));
            net.crash(3);
            net.crash(0);
            net.settle(s(40));
            // Who has no leader meanwhile finds out later, and cannot tell why.
            net.run(s(10));
            let from = net.told.len();
            net.leave(5, 42);
            net.settle(s(40));
            let departed =
                net.told[from..].iter().filter(|t| t.subject == 5 && t.why == Some(Why::Departed(42))).count();
            assert!(departed >= 8, "seed {seed}: {departed} {:?}", &net.told[from..]);
            net.crash(7);
            net.start(7);
            net.start(0);
            net.settle(s(40));
            for longer in [1, 8] {
                net.pause(1);
                net.run(config.fail_after(1) * longer + s(2));
                assert!((6..12).all(|i| !net.views()[&i].contains_key(&1)), "seed {seed}");
                net.resume(1);
                net.settle(s(60));
            }
        }
    }
}

/// What a datagram to a group has around it: seal, link and IP headers.
const AROUND: u64 = 82;

/// BL-2: bytes grow with the nodes, not with their square; the fast profile detects in less than a second for no more.
#[test]
fn bl_2_bytes_are_linear_and_the_fast_profile_costs_no_more() {
    let mut bytes = BTreeMap::new();
    for (profile, config) in [("paper", PAPER), ("lan", LAN)] {
        for n in [40, 80] {
            let make = segments(config);
            let mut net = with(n, Weather::FAIR, 1, &make, 20);
            net.settle(s(60));
            net.run(s(10));
            let total = |net: &World<'_>| net.hosts.iter().map(|h| h.received + h.packets * AROUND).sum::<u64>();
            let (before, asked) = (total(&net), polls(&net));
            net.run(s(20));
            assert_eq!(polls(&net), asked, "{profile}: nobody asks while nothing happens");
            bytes.insert((profile, n), total(&net) - before);
            let victim = (0..n).find(|i| !leaders(&net, 0).contains(i)).unwrap();
            let from = net.told.len();
            let crashed_at = net.now;
            net.crash(victim);
            net.settle(s(10));
            let took = left(&net, from).iter().map(|t| t.at.since(crashed_at)).max().unwrap();
            assert!(took <= config.fail_after(0) + Duration::from_millis(10), "{profile}: {took:?}");
        }
    }
    let ratio = |profile| bytes[&(profile, 80)] as f64 / bytes[&(profile, 40)] as f64;
    assert!(ratio("paper") < 2.2 && ratio("lan") < 2.2, "{bytes:?}");
    assert!(bytes[&("lan", 80)] <= bytes[&("paper", 80)], "{bytes:?}");
    assert!(LAN.fail_after(0) <= s(1));
}
