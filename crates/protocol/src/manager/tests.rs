//! Stewards together: what people and nodes see of the group, whatever befalls it.

mod relays;
mod zones;

use super::net::{Net, Told, Weather};
use super::wire::{Look, Packet, Said};
use super::words::{Answer, Ask, Key};
use crate::node::Carriage;
use phalanx_core::{Duration, Instant, Rng};

const S: Duration = Duration::from_secs(1);

fn drain(n: usize) -> Ask {
    Ask::Drain { node: format!("n{n}"), drained: true }
}

/// A group of three in different zones, with a leader, known to all nodes.
fn founded(nodes: usize, weather: Weather, seed: u64) -> Net {
    let mut net = Net::new(nodes, nodes as u32, weather, seed);
    let all_know = |net: &mut Net| (0..nodes).all(|n| net.steward(n).group().is_some());
    assert!(net.run_until(net.now + S * 60, all_know), "seed {seed}: no group");
    let seats = if nodes < 3 { 1 } else { 3 };
    let leads = |net: &mut Net| {
        let all_in = net.steward(0).group().is_some();
        all_in && replicas(net).iter().filter(|&&n| decides(net, n)).count() == seats
    };
    assert!(net.run_until(net.now + S * 30, leads), "seed {seed}: no leader");
    net
}

fn decides(net: &Net, n: usize) -> bool {
    net.is_up(n) && net.steward(n).status(net.now).decides
}

/// The nodes with a replica of the newest epoch.
fn replicas(net: &Net) -> Vec<usize> {
    let epoch = newest(net);
    (0..net.hosts.len())
        .filter(|&n| net.is_up(n) && net.steward(n).replica().is_some_and(|r| r.group().epoch == epoch))
        .collect()
}

fn newest(net: &Net) -> u32 {
    let up = (0..net.hosts.len()).filter(|&n| net.is_up(n));
    up.filter_map(|n| net.steward(n).group()).map(|g| g.epoch).max().unwrap_or(0)
}

/// All replicas of the newest group are there, the same, and decide.
fn settled(net: &mut Net, epoch: u32) -> bool {
    let all = replicas(net);
    newest(net) >= epoch && all.len() == 3 && all.iter().all(|&n| decides(net, n)) && {
        let statements: Vec<_> = all.iter().map(|&n| net.steward(n).replica().unwrap().core().statement()).collect();
        statements.windows(2).all(|w| w[0] == w[1])
    }
}

fn settle(net: &mut Net, epoch: u32) {
    let until = net.now + S * 60;
    let done = net.run_until(until, |net| settled(net, epoch));
    assert!(done, "not settled: epoch {}, replicas {:?}", newest(net), replicas(net));
}

/// Somebody asks, and gets that answer.
fn answered(net: &mut Net, n: usize, ask: Ask, within: Duration) -> Option<Answer> {
    let number = net.ask(n, ask);
    let is_it = |t: &Told| matches!(t, Told::Answered(m, _) if *m == number);
    net.run_until(net.now + within, |net| net.hosts[n].told.iter().any(|(_, t)| is_it(t)));
    net.hosts[n].told.iter().find_map(|(_, t)| match t {
        Told::Answered(m, answer) if *m == number => Some(answer.clone()),
        _ => None,
    })
}

fn zones(net: &Net) -> std::collections::BTreeSet<String> {
    let group = net.steward(0).group().expect("there is a group").clone();
    group.seats.iter().map(|s| s.zone.clone()).collect()
}

/// CM-1: three replicas in three zones, founded once; what people ask is decided and answered, and leases reach all.
#[test]
fn nodes_found_one_group_and_carry_out_what_it_decides() {
    let mut net = founded(9, Weather::FAIR, 1);
    assert_eq!(zones(&net).len(), 3);
    assert_eq!(answered(&mut net, 8, drain(3), S), Some(Answer::Done));
    assert!(matches!(answered(&mut net, 7, drain(99), S), Some(Answer::Refused(_))));
    net.run_for(S * 5);
    assert!(net.hosts.iter().all(|h| h.told.iter().any(|(_, t)| matches!(t, Told::Lease(_)))));
    let number = net.look(5, Look::Slots);
    net.run_for(S);
    assert!(net.hosts[5].told.iter().any(|(_, t)| matches!(t, Told::Shown(m, _) if *m == number)));
}

/// CM-1: two halves never make two groups, whichever starts first; nor do nodes that were told different numbers.
#[test]
fn halves_do_not_found_groups() {
    for seed in 0..20 {
        let mut net = Net::new(6, 4, Weather::FAIR, seed);
        net.isolate(&[0, 1, 2], true);
        net.run_for(S * 20);
        assert!((0..6).all(|n| net.steward(n).group().is_none()));
        net.isolate(&[0, 1, 2], false);
        (0..6).for_each(|n| net.remeet(n));
        net.run_for(S * 20);
        let groups: std::collections::BTreeSet<_> =
            (0..6).filter_map(|n| net.steward(n).group()).map(|g| g.digest()).collect();
        assert_eq!(groups.len(), 1, "seed {seed}");
    }
}

/// CM-3: a dead replica is replaced, in its zone's place; and the service goes on meanwhile.
#[test]
fn a_dead_replica_is_replaced() {
    for seed in 0..10 {
        let mut net = founded(7, Weather::FAIR, seed);
        let dead = replicas(&net)[seed as usize % 3];
        net.crash(dead);
        let other = (0..7).find(|n| !replicas(&net).contains(n) && *n != dead).unwrap();
        assert_eq!(answered(&mut net, other, drain(3), S * 4), Some(Answer::Done), "seed {seed}");
        settle(&mut net, 2);
        assert!(!replicas(&net).contains(&dead));
        assert_eq!(answered(&mut net, other, drain(2), S * 3), Some(Answer::Done), "seed {seed}");
        net.start(dead);
        net.run_for(S * 5);
        assert_eq!((newest(&net), net.steward(dead).replica().is_none()), (2, true), "who comes back is no replica");
    }
}

/// CM-1: one replica below three nodes; three when there are.
#[test]
fn a_group_of_one_grows() {
    let mut net = Net::new(3, 1, Weather::FAIR, 5);
    net.crash(1);
    net.crash(2);
    net.run_for(S * 5);
    assert_eq!(answered(&mut net, 0, drain(0), S * 2), Some(Answer::Done));
    assert_eq!(net.steward(0).group().unwrap().seats.len(), 1);
    net.expect = None;
    net.start(1);
    net.run_for(S * 3);
    assert_eq!(newest(&net), 1);
    net.start(2);
    settle(&mut net, 2);
    assert_eq!(answered(&mut net, 2, drain(1), S * 2), Some(Answer::Done));
}

/// CM-3: a new replica that starts again before anything was decided after it came goes on from its disk.
#[test]
fn a_new_replica_goes_on_from_its_disk() {
    for seed in 0..10 {
        let mut net = founded(6, Weather::FAIR, seed);
        let before = replicas(&net);
        net.crash(before[0]);
        let has_begun = |net: &Net| {
            let all = (0..6).filter(|n| !before.contains(n));
            all.into_iter().find(|&n| net.steward(n).replica().is_some() && decides(net, n))
        };
        let new = loop {
            net.run_for(Duration::from_millis(1));
            if let Some(new) = has_begun(&net) {
                break new;
            }
        };
        net.crash(new);
        net.run_for(Duration::from_millis(50));
        net.start(new);
        assert!(net.steward(new).replica().is_some(), "seed {seed}");
        settle(&mut net, 2);
    }
}

/// Who crashes before it has signed for the group that it decided signs when it is back: the others believe in no group that one alone signed.
#[test]
fn a_group_is_signed_for_after_a_crash_as_well() {
    for seed in 0..40 {
        let mut net = founded(6, Weather::FAIR, seed);
        let all = replicas(&net);
        net.crash(all[0]);
        let until = net.now + S * 30;
        let knows = |net: &mut Net| net.steward(all[1]).group().is_some_and(|g| g.epoch == 2);
        assert!(net.run_until(until, knows));
        net.run_for(Duration::from_micros(500 * seed));
        net.crash(all[1]);
        net.run_for(Duration::from_millis(100));
        net.start(all[1]);
        settle(&mut net, 2);
        net.run_for(S * 20);
        let newest = newest(&net);
        assert!(
            (0..6).filter(|n| *n != all[0]).all(|n| net.steward(n).group().unwrap().epoch == newest),
            "seed {seed}"
        );
    }
}

/// What replicas heard of another agent makes nobody forget a question.
#[test]
fn an_answer_to_another_agent_is_nobody_elses() {
    let mut net = founded(6, Weather::FAIR, 4);
    let all = replicas(&net);
    let n = (0..6).find(|n| !all.contains(n)).unwrap();
    let incarnation = net.info(n).incarnation;
    net.isolate(&[n], true);
    let number = net.ask(n, drain(1));
    for &replica in &all {
        let agent = net.key(replica);
        let noted = (number, 9);
        let heard = Packet::Heard { agent, epoch: 1, beat: 1, incarnation, noted, granted: true };
        net.inject(replica, n, Carriage::Light, &heard.encode());
    }
    net.isolate(&[n], false);
    assert_eq!(answered(&mut net, n, drain(2), S * 10), Some(Answer::Done));
}

/// A replica moves where people want it.
#[test]
fn people_move_a_replica() {
    let mut net = founded(6, Weather::FAIR, 3);
    let from = replicas(&net)[0];
    let to = (0..6).find(|n| !replicas(&net).contains(n)).unwrap();
    let ask = Ask::Move { from: format!("n{from}"), to: format!("n{to}") };
    assert_eq!(answered(&mut net, to, ask, S * 3), Some(Answer::Done));
    settle(&mut net, 2);
    assert!(replicas(&net).contains(&to) && !replicas(&net).contains(&from));
}

/// CM-3: those that started again from disk tell who is wrong as well as those that never did.
#[test]
fn a_replica_with_wrong_state_is_replaced_by_those_that_started_again() {
    let mut net = founded(6, Weather::FAIR, 3);
    // A rolling upgrade of all daemons, one after the other.
    for n in replicas(&net) {
        net.crash(n);
        net.run_for(Duration::from_millis(100));
        net.start(n);
        settle(&mut net, 1);
    }
    let bad = replicas(&net)[1];
    net.hosts[bad].steward.as_mut().unwrap().replica_mut().unwrap().corrupt(1);
    settle(&mut net, 2);
    assert!(!replicas(&net).contains(&bad));
}

/// CM-3, 004 §2: a replica whose state has gone bad is outvoted, ends and is replaced, with no interruption.
#[test]
fn a_replica_with_wrong_state_is_replaced() {
    for seed in 0..20 {
        let mut net = founded(6, Weather::FAIR, seed);
        let bad = replicas(&net)[seed as usize % 3];
        net.hosts[bad].steward.as_mut().unwrap().replica_mut().unwrap().corrupt(1 + seed);
        settle(&mut net, 2);
        assert!(!replicas(&net).contains(&bad), "seed {seed}");
        assert_eq!(answered(&mut net, bad, drain(1), S * 3), Some(Answer::Done), "seed {seed}");
        assert!((0..6).any(|n| net.steward(n).status(net.now).counters.self_diagnoses > 0));
    }
}

/// CM-1: a replica that tells agents other things than it decided is found out by them; nothing that it says is done.
#[test]
fn a_replica_that_says_wrong_things_is_replaced() {
    for seed in 0..10 {
        let mut net = founded(6, Weather::FAIR, seed);
        let bad = replicas(&net)[seed as usize % 3];
        net.hosts[bad].steward.as_mut().unwrap().replica_mut().unwrap().lie();
        assert_eq!(answered(&mut net, 5, drain(1), S * 3), Some(Answer::Done));
        settle(&mut net, 2);
        assert!(!replicas(&net).contains(&bad), "seed {seed}");
    }
}

/// Where no other node is left, the wrong replica starts anew where it was.
#[test]
fn with_three_nodes_a_wrong_replica_starts_anew() {
    for seed in 0..10 {
        let mut net = founded(3, Weather::FAIR, seed);
        net.hosts[1].steward.as_mut().unwrap().replica_mut().unwrap().corrupt(1 + seed);
        settle(&mut net, 2);
        assert_eq!(replicas(&net), [0, 1, 2]);
        assert_eq!(answered(&mut net, 1, drain(1), S * 3), Some(Answer::Done), "seed {seed}");
    }
}

/// Two of three are lost: the third says so, and decides nothing.
#[test]
fn the_last_replica_says_that_nothing_is_decided() {
    let mut net = founded(6, Weather::FAIR, 2);
    let [left, a, b] = replicas(&net)[..] else { panic!("three") };
    net.crash(a);
    net.crash(b);
    net.run_for(S * 20);
    assert_eq!(answered(&mut net, left, drain(1), S * 5), None);
    let status = net.steward(left).status(net.now);
    assert!(!status.decides && status.trouble.contains("too few replicas"), "{status:?}");
    net.start(a);
    assert_eq!(answered(&mut net, left, drain(2), S * 5), Some(Answer::Done));
    assert!(net.steward(left).status(net.now).trouble.is_empty());
}

/// The table survives a power cut of all nodes.
#[test]
fn all_start_again_from_their_disks() {
    for seed in 0..10 {
        let mut net = founded(5, Weather::FAIR, seed);
        assert_eq!(answered(&mut net, 4, drain(1), S), Some(Answer::Done));
        let before = net.steward(replicas(&net)[0]).replica().unwrap().core().state().slots();
        (0..5).for_each(|n| net.crash(n));
        net.run_for(S);
        (0..5).for_each(|n| net.start(n));
        settle(&mut net, 1);
        let is_there = |net: &mut Net| {
            replicas(net).first().is_some_and(|&n| net.steward(n).replica().unwrap().core().state().slots().len() == 5)
        };
        assert!(net.run_until(net.now + S * 5, is_there), "seed {seed}: the table is gone");
        let after = net.steward(replicas(&net)[0]).replica().unwrap().core().state().slots();
        assert_eq!(
            before.iter().map(|s| s.drained).collect::<Vec<_>>(),
            after.iter().map(|s| s.drained).collect::<Vec<_>>()
        );
        assert_eq!(answered(&mut net, 4, drain(2), S * 3), Some(Answer::Done));
    }
}

/// 004 §6.1: a replica that is heard by one of the others and not by the other is no dead one.
#[test]
fn a_replica_heard_by_one_peer_only_stays() {
    for seed in 0..9 {
        let mut net = founded(6, Weather::FAIR, seed);
        let all = replicas(&net);
        let (a, b) = (all[seed as usize % 3], all[(seed as usize + 1) % 3]);
        (net.cut[a][b], net.cut[b][a]) = (true, true);
        net.run_for(S * 30);
        assert_eq!(answered(&mut net, 5, drain(1), S * 3), Some(Answer::Done), "seed {seed}");
        assert_eq!(newest(&net), 1, "seed {seed}");
        assert!(all.iter().any(|&n| net.steward(n).status(net.now).counters.self_diagnoses > 0));
        (net.cut[a][b], net.cut[b][a]) = (false, false);
        settle(&mut net, 1);
    }
}

/// A replica that says one thing here and another there is found out as soon as the others compare, and replaced: they are alike.
#[test]
fn a_replica_that_signs_two_states_is_replaced() {
    let mut net = founded(6, Weather::FAIR, 4);
    let [liar, a, b] = replicas(&net)[..] else { panic!("three") };
    for (to, digest) in [(a, 1), (b, 2)] {
        let sworn = net.forge(liar, digest);
        net.inject(liar, to, Carriage::Bulk, &Packet::Declared(vec![sworn]).encode());
    }
    settle(&mut net, 2);
    assert!(!replicas(&net).contains(&liar));
}

/// One that equivocates in the order has both others differ, and signs what each of them has: two conflicting signatures stop the group,
/// which says so.
#[test]
fn two_conflicting_signatures_stop_a_group_that_differs() {
    let mut net = founded(6, Weather::FAIR, 4);
    let [liar, a, b] = replicas(&net)[..] else { panic!("three") };
    net.run_for(S);
    net.hosts[b].steward.as_mut().unwrap().replica_mut().unwrap().corrupt(1);
    let theirs = net.steward(b).replica().unwrap().core().statement().digest;
    let ours = net.steward(a).replica().unwrap().core().statement().digest;
    for (to, digest) in [(a, ours), (b, theirs)] {
        let sworn = net.forge(liar, digest);
        net.inject(liar, to, Carriage::Bulk, &Packet::Declared(vec![sworn]).encode());
    }
    net.run_for(S * 3);
    for n in [a, b] {
        let trouble = net.steward(n).status(net.now).trouble;
        assert!(trouble.contains("signed two different states"), "{trouble}");
    }
    assert_eq!(answered(&mut net, 5, drain(1), S * 3), None);
}

/// What was carried out is refused when it is said again; what nobody of the group signed is refused, too.
#[test]
fn old_and_forged_commands_are_refused() {
    let mut net = founded(6, Weather::FAIR, 6);
    net.tapped = Some(Vec::new());
    assert_eq!(answered(&mut net, 5, drain(1), S * 3), Some(Answer::Done));
    net.run_for(S);
    let tapped = net.tapped.take().unwrap();
    let votes: Vec<_> =
        tapped.iter().filter(|p| p.1 == 5 && matches!(Packet::decode(&p.3), Some(Packet::Vote(..)))).collect();
    assert!(!votes.is_empty());
    let before = (net.steward(5).agent().refused, net.hosts[5].told.len());
    for (from, to, carriage, bytes) in &votes {
        net.inject(*from, *to, *carriage, bytes);
        let Some(Packet::Vote(mut ballot, body)) = Packet::decode(bytes) else { continue };
        ballot.vote.id.index += 1_000;
        net.inject(*from, *to, *carriage, &Packet::Vote(ballot, body).encode());
    }
    let after = net.steward(5).agent().refused;
    assert_eq!(after.replayed - before.0.replayed, votes.len() as u64);
    assert_eq!(after.unproved - before.0.unproved, votes.len() as u64);
    assert_eq!(net.hosts[5].told.len(), before.1);
}

/// MM-2: what must be signed and is not, is refused; noise is counted; nothing of it panics.
#[test]
fn hostile_packets_change_nothing() {
    let mut net = founded(6, Weather::FAIR, 7);
    net.tapped = Some(Vec::new());
    for n in 0..6 {
        answered(&mut net, n, drain(n), S * 3);
    }
    let tapped = net.tapped.take().unwrap();
    settle(&mut net, 1);
    let told = Packet::Told { incarnation: 1, number: 99, said: Said::Ask(drain(2)) }.encode();
    let before = net.steward(1).status(net.now).counters;
    net.inject(5, 1, Carriage::Bulk, &told);
    net.inject(5, 1, Carriage::Light, &told);
    assert_eq!(net.steward(1).status(net.now).counters.unproved, before.unproved + 2);
    let mut rng = Rng::new(1, 1);
    for _ in 0..20_000 {
        let (_, to, carriage, mut bytes) = tapped[rng.index(tapped.len())].clone();
        for _ in 0..1 + rng.index(3) {
            let at = rng.index(bytes.len());
            bytes[at] ^= 1 << rng.below(8);
        }
        if rng.chance(0.3) {
            bytes.truncate(rng.index(bytes.len()));
        }
        let from = rng.index(6);
        if from != to {
            // What is signed by the link below cannot be changed on the way, only by its signer.
            let carriage = if carriage == Carriage::Signed { Carriage::Bulk } else { carriage };
            net.inject(from, to, carriage, &bytes);
        }
    }
    net.run_for(S * 30);
    assert!((0..6).any(|n| net.steward(n).status(net.now).counters.malformed > 0));
    assert!(matches!(answered(&mut net, 5, drain(1), S * 5), Some(Answer::Done)));
    let _: Key = net.key(0);
}

/// CM-3: an agent that misses two heartbeats is probed before it is doubted; one that answers was a false alarm.
#[test]
fn a_silent_agent_is_probed_before_it_is_doubted() {
    let mut net = founded(6, Weather::FAIR, 8);
    net.run_for(S * 3);
    let agent = (0..6).find(|n| !replicas(&net).contains(n)).unwrap();
    net.pause(agent, S * 3);
    net.run_for(S * 6);
    let sum = |net: &Net| {
        let all = replicas(net).into_iter().map(|n| net.steward(n).status(net.now).counters);
        all.fold((0, 0), |(p, f), c| (p + c.probes, f + c.false_alarms))
    };
    let (probes, false_alarms) = sum(&net);
    assert!(probes >= 3 && false_alarms > 0, "{probes} {false_alarms}");
    let key = net.key(agent);
    net.isolate(&[agent], true);
    net.run_for(S * 6);
    assert!(replicas(&net).iter().all(|&n| net.hosts[n].told.iter().any(|(_, t)| *t == Told::Suspect(key))));
}
