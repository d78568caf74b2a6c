//! FI-1…6, 004 §4–5: the functional fault model on running hosts over real sockets, at both injection points.
//!
//! `crates/fault` tests the injector alone. Here it sits where users switch it on: under a link that runs.

use phalanx_core::{Code, Duration, Endpoint, NodeId};
use phalanx_daemon::Udp;
use phalanx_fault::{
    After, Call, Delay, Distribution, Effects, Injector, Kind, KindName, Lasts, Probability, Recurrence, Rule,
};
use phalanx_papers::party::pattern;
use phalanx_papers::{OverTcp, OverThreads, OverUdp, Party, Said, World, until, while_quiet};
use phalanx_protocol::link::count::Dropped;
use phalanx_protocol::link::status::Status;

/// How long tests wait for what must not come.
const QUIET: Duration = Duration::from_millis(20);

/// Where a rule is switched on (FI-3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Point {
    Wire,
    Plain,
}

fn inject(party: &mut Party<Udp>, point: Point, rule: Rule) {
    let now = party.host.now();
    match point {
        Point::Wire => party.host.wire().add(now, rule).map(drop),
        Point::Plain => party.host.link().tap().add(now, rule).map(drop),
    }
    .expect("a rule that makes sense");
    // A host reads its clock once a turn: the rule is in force from the next one on.
    party.turn();
}

fn heal(party: &mut Party<Udp>) {
    party.host.wire().heal_all();
    party.host.link().tap().heal_all();
}

fn injected(party: &mut Party<Udp>) -> u64 {
    party.host.wire().counters().injected() + party.host.link().tap().counters().injected()
}

fn often(kind: Kind) -> Rule {
    Rule::new(kind).recurring(Recurrence::Chance(Probability::new(0.2).expect("a probability")))
}

fn once(kind: Kind) -> Rule {
    Rule { times: 1, ..Rule::new(kind) }
}

/// Table 2 and its combinations.
fn every_kind() -> Vec<Kind> {
    let mut kinds = vec![
        Kind::Drop,
        Kind::Delay(Delay::Lasting(Distribution::Fixed(Duration::from_millis(2)))),
        Kind::Delay(Delay::UntilNext),
        Kind::Modify { bits: 1 },
        Kind::Modify { bits: 40 },
        Kind::Reorder,
        Kind::Inject { bits: 0 },
        Kind::Inject { bits: 3 },
        Kind::Operation { code: None, deliver: None, after: Kind::OPERATION_FAILS_AFTER },
    ];
    kinds.extend(Call::ALL.map(|call| Kind::Invocation { call, code: None }));
    kinds
}

/// FI-1, §4.1 "drop": the message is gone, and the send reports success.
#[test]
fn fi_1_a_dropped_message_counts_as_sent() {
    for point in [Point::Wire, Point::Plain] {
        let (mut a, mut b, to_b, _) = Party::pair(&OverUdp::default());
        inject(&mut a, point, once(Kind::Drop));
        let ticket = a.ticketed(to_b, b"dropped").unwrap();
        a.datagram(to_b, b"next").unwrap();
        until(&mut [&mut a, &mut b], "the next one arrives", |p| p[1].datagrams() == [b"next"]);
        assert_eq!(a.host.status(ticket), Some(Status::Sent), "{point:?}");
    }
}

/// FI-1, §4.1 "delay" and "reorder": at the receiver; late is not lost, and the next one comes first.
#[test]
fn fi_1_a_message_comes_late_or_behind_the_next() {
    for point in [Point::Wire, Point::Plain] {
        let (mut a, mut b, to_b, _) = Party::pair(&OverUdp::default());
        let span = Duration::from_millis(15);
        inject(&mut b, point, once(Kind::Delay(Delay::Lasting(Distribution::Fixed(span)))));
        let sent = b.host.now();
        a.datagram(to_b, b"late").unwrap();
        until(&mut [&mut a, &mut b], "it arrives late", |p| p[1].datagrams() == [b"late"]);
        assert!(b.host.now().since(sent) >= span, "{point:?}");
        b.said.clear();
        inject(&mut b, point, once(Kind::Reorder));
        a.datagram(to_b, b"first").unwrap();
        a.datagram(to_b, b"second").unwrap();
        until(&mut [&mut a, &mut b], "both arrive", |p| p[1].datagrams().len() == 2);
        assert_eq!(b.datagrams(), [b"second".to_vec(), b"first".to_vec()], "{point:?}");
    }
}

/// FI-1, §4.1 "modify": below the seal a changed packet dies at its tag; above it exactly the asked bits are changed.
#[test]
fn fi_1_a_modified_message_has_other_bits_or_dies_at_its_seal() {
    let (mut a, mut b, to_b, _) = Party::pair(&OverUdp::default());
    let payload = pattern(1000, 3);
    inject(&mut b, Point::Wire, once(Kind::Modify { bits: 1 }));
    a.datagram(to_b, &payload).unwrap();
    // The flipped bit may lie in any part of the packet: each has its own reason to be refused.
    let refused = |b: &mut Party<Udp>| b.host.link().counters().drops().map(|(_, n)| n).sum::<u64>();
    until(&mut [&mut a, &mut b], "it is refused", |p| refused(p[1]) == 1);
    assert_eq!(b.datagrams(), [] as [Vec<u8>; 0]);
    let mut changed = 0;
    for _ in 0..20 {
        inject(&mut b, Point::Plain, once(Kind::Modify { bits: 1 }));
        let before = (b.said.len(), refused(&mut b));
        a.datagram(to_b, &payload).unwrap();
        until(&mut [&mut a, &mut b], "it is heard or refused", |p| (p[1].said.len(), refused(p[1])) != before);
        if let Some(Said::Datagram(.., got)) = b.said.pop() {
            let bits: u32 = got.iter().zip(&payload).map(|(x, y)| (x ^ y).count_ones()).sum();
            assert!(bits <= 1 && got.len() == payload.len(), "{bits} bits");
            changed += bits;
        }
    }
    assert!(changed > 15, "six bytes of ports in front of a thousand: {changed} of 20 hit the payload");
}

/// FI-1, §4.1 "inject": a copy of an earlier message, to anybody. Above the seal CL's user sees it twice; below it
/// nobody does: the number was used, and to anybody else the packet is a stranger's.
#[test]
fn fi_1_an_injected_copy_reaches_only_those_without_a_seal_above() {
    let world = OverUdp::default();
    let (mut a, mut b, to_b, _) = Party::pair(&world);
    inject(&mut a, Point::Plain, once(Kind::Inject { bits: 0 }));
    a.datagram(to_b, b"twice").unwrap();
    until(&mut [&mut a, &mut b], "the copy arrives", |p| p[1].datagrams() == [b"twice", b"twice"]);
    inject(&mut a, Point::Wire, once(Kind::Inject { bits: 0 }));
    a.datagram(to_b, b"once").unwrap();
    until(&mut [&mut a, &mut b], "the copy is refused", |p| p[1].dropped(Dropped::Replayed) == 1);
    assert_eq!(b.datagrams().len(), 3);

    let mut c = Party::of(&world, 3);
    let at_c = c.host.local();
    a.host.wire().set_targets(&[at_c]);
    inject(&mut a, Point::Wire, once(Kind::Inject { bits: 0 }));
    a.datagram(to_b, b"for b alone").unwrap();
    until(&mut [&mut a, &mut b, &mut c], "it reaches c", |p| p[2].dropped(Dropped::UnknownSession) == 1);
    assert!(c.datagrams().is_empty() && b.datagrams().last().is_some_and(|d| d == b"for b alone"));
}

/// FI-1, §4.1 invocation and operation faults, CL-3: a call fails with any code of Table 1 and does nothing; a send
/// is accepted, and its status turns to the error later.
#[test]
fn fi_1_calls_fail_at_once_and_operations_later_with_every_code_of_table_1() {
    let (mut a, mut b, to_b, _) = Party::pair(&OverUdp::default());
    for code in Code::ALL {
        inject(&mut a, Point::Plain, once(Kind::Invocation { call: Call::Send, code: Some(code) }));
        assert_eq!(a.datagram(to_b, b"refused"), Err(code));
        inject(&mut a, Point::Plain, once(Kind::Invocation { call: Call::Allocate, code: Some(code) }));
        assert_eq!(a.ticketed(to_b, b"no buffer"), Err(code));
        let refused = Kind::Invocation { call: Call::Send, code: Some(code) };
        inject(&mut a, Point::Wire, once(refused));
        let ticket = a.ticketed(to_b, b"refused below").unwrap();
        until(&mut [&mut a, &mut b], "the platform's answer", |p| p[0].is_settled(ticket));
        assert_eq!(a.host.status(ticket), Some(Status::Failed(code)));
        for (point, deliver) in [(Point::Wire, true), (Point::Plain, true), (Point::Wire, false), (Point::Plain, false)]
        {
            let kind = Kind::Operation { code: Some(code), deliver: Some(deliver), after: Kind::OPERATION_FAILS_AFTER };
            inject(&mut a, point, once(kind));
            let ticket = a.ticketed(to_b, if deliver { b"arrives" } else { b"is lost" }).unwrap();
            assert_eq!(a.host.status(ticket), Some(Status::Pending));
            until(&mut [&mut a, &mut b], "its status turns", |p| p[0].is_settled(ticket));
            assert_eq!(a.host.status(ticket), Some(Status::Failed(code)), "{point:?} {deliver}");
        }
    }
    let arrived = 2 * Code::ALL.len();
    until(&mut [&mut a, &mut b], "what was delivered arrives", |p| p[1].datagrams().len() == arrived);
    assert!(b.datagrams().iter().all(|d| d == b"arrives"));
}

/// FI-1, Table 4: a receive that fails loses nothing.
#[test]
fn fi_1_a_failed_receive_is_asked_again() {
    for point in [Point::Wire, Point::Plain] {
        let (mut a, mut b, to_b, _) = Party::pair(&OverUdp::default());
        inject(&mut b, point, often(Kind::Invocation { call: Call::Receive, code: None }));
        for i in 0..50 {
            a.datagram(to_b, &[i]).unwrap();
        }
        until(&mut [&mut a, &mut b], "all arrive", |p| p[1].datagrams().len() == 50);
        assert!(injected(&mut b) > 0, "{point:?}");
    }
}

/// Which of 200 datagrams pass a rule that drops, on any platform.
fn passed<W: World>(seed: u64, recurrence: &Recurrence) -> Vec<u8> {
    let (mut a, mut b, to_b, _) = Party::pair(&W::default());
    *a.host.wire() = Injector::new(seed);
    let now = a.host.now();
    a.host.wire().add(now, Rule::new(Kind::Drop).recurring(recurrence.clone())).unwrap();
    a.turn();
    for i in 0..200 {
        a.datagram(to_b, &[i]).unwrap();
        a.turn();
        b.turn();
    }
    a.host.wire().heal_all();
    a.datagram(to_b, &[255]).unwrap();
    until(&mut [&mut a, &mut b], "the last arrives", |p| p[1].datagrams().last() == Some(&vec![255]));
    b.datagrams().concat()
}

/// FI-2, §4.1: each kind has a distribution of its recurrence interval; the same seed gives the same faults, on
/// every platform, and another seed others.
#[test]
fn fi_2_the_same_seed_gives_the_same_faults_on_every_platform() {
    let recurrences = [
        Recurrence::Messages(Distribution::Fixed(7)),
        Recurrence::Messages(Distribution::Exponential { mean: 7 }),
        Recurrence::Messages(Distribution::Uniform { from: 3, to: 11 }),
        Recurrence::Messages(Distribution::Empirical(vec![1, 1, 20])),
        Recurrence::Chance(Probability::new(0.15).unwrap()),
    ];
    for recurrence in recurrences {
        let reference = passed::<OverThreads>(42, &recurrence);
        assert!((140..190).contains(&reference.len()), "{recurrence:?}: {} of 200 passed", reference.len());
        assert_eq!(passed::<OverUdp>(42, &recurrence), reference, "{recurrence:?}");
        assert_eq!(passed::<OverTcp>(42, &recurrence), reference, "{recurrence:?}");
        let fixed = matches!(recurrence, Recurrence::Messages(Distribution::Fixed(_)));
        assert_eq!(passed::<OverThreads>(43, &recurrence) == reference, fixed, "{recurrence:?}");
    }
}

/// Reliable messages both ways under a fault that comes and goes while everything runs.
fn survives(point: Point, kind: &Kind) {
    let (mut a, mut b, to_b, to_a) = Party::pair(&OverUdp::default());
    let sizes = [0, 10, 100, 1_000, 3_000, 10_000, 60_000];
    let mut sent = 0;
    for faulty in [false, true, false] {
        for (party, to) in [(&mut a, to_b), (&mut b, to_a)] {
            if faulty {
                // A copy for the other is addressed as each addresses it.
                party.host.link().tap().set_targets(&[to.node]);
                inject(party, point, often(kind.clone()));
            } else {
                heal(party);
            }
        }
        let before = injected(&mut a) + injected(&mut b);
        for i in 0..40 {
            let message = pattern(sizes[i % sizes.len()], sent + i);
            for (party, to) in [(&mut a, to_b), (&mut b, to_a)] {
                // A call that fails has done nothing: it is made again.
                while party.reliable(to, &message).is_err() {}
            }
            a.turn();
            b.turn();
        }
        sent += 40;
        let story = format!("all arrive under {kind:?} at {point:?}");
        until(&mut [&mut a, &mut b], &story, |p| p.iter().all(|p| p.messages_heard() == sent));
        let during = injected(&mut a) + injected(&mut b) - before;
        assert_eq!(during > 0, faulty, "{kind:?} at {point:?}: {during} faults");
    }
    for party in [&a, &b] {
        let whole = party.messages().iter().enumerate().all(|(i, m)| *m == pattern(sizes[i % 40 % sizes.len()], i));
        assert!(whole, "{kind:?} at {point:?}: in order and intact");
        assert!(!party.heard(|s| matches!(s, Said::Down(..))), "{kind:?} at {point:?}");
    }
}

/// FI-3, §5: below all reliability, on real sockets, switched on and off at run time. What a network does.
#[test]
fn fi_3_every_kind_on_the_wire_of_running_hosts_is_survived() {
    // A wire allocates nothing: that call is the layers' own.
    let on_the_wire = |k: &Kind| !matches!(k, Kind::Invocation { call: Call::Allocate, .. } | Kind::Modify { .. });
    every_kind().iter().filter(|k| on_the_wire(k)).for_each(|kind| survives(Point::Wire, kind));
}

/// FI-3, §5: a flipped bit that the network's own checksums missed is a lost packet, and no more than that.
#[test]
fn fi_3_flipped_bits_on_the_wire_of_running_hosts_are_survived() {
    [1, 40].into_iter().for_each(|bits| survives(Point::Wire, &Kind::Modify { bits }));
}

/// FI-3, §5: above the seal, what RCL's own checks are for.
#[test]
fn fi_3_every_kind_above_the_seal_of_running_hosts_is_survived() {
    every_kind().iter().for_each(|kind| survives(Point::Plain, kind));
}

/// FI-4, Table 3: what the platform itself answers comes out as the code that the table of failures says.
#[test]
fn fi_4_a_closed_port_comes_out_as_the_code_of_its_errno() {
    let refused = phalanx_fault::FAILURES.iter().find(|f| f.name == "ECONNREFUSED").expect("it is in the table").code;
    let world = OverUdp::default();
    let (mut a, b, to_b, _) = Party::pair(&world);
    drop(b);
    a.datagram(to_b, b"anybody there?").unwrap();
    until(&mut [&mut a], "the hint comes", |p| p[0].heard(|s| matches!(s, Said::Refused(..))));
    assert!(a.said.contains(&Said::Refused(to_b.node, refused)), "{:?}", a.said);
    assert!(!a.heard(|s| matches!(s, Said::Down(..))), "a hint, not a verdict");

    let (mut a, b, to_b, _) = Party::pair(&OverTcp);
    drop(b);
    until(&mut [&mut a], "the hint comes", |p| {
        p[0].datagram(to_b, b"anybody there?").unwrap();
        p[0].heard(|s| matches!(s, Said::Refused(..)))
    });
    assert!(a.said.contains(&Said::Refused(to_b.node, refused)), "{:?}", a.said);
}

/// FI-5, Fig. 5: consequences are counted, and each kind has the one that it must have.
#[test]
fn fi_5_the_effects_of_faults_are_counted() {
    let effects = |point, kind: Kind| {
        let (mut a, mut b, to_b, _) = Party::pair(&OverUdp::default());
        [&mut a, &mut b].into_iter().for_each(|p| inject(p, point, often(kind.clone())));
        for i in 0..150 {
            a.reliable(to_b, &pattern(200, i)).unwrap();
            let story = format!("one by one under {kind:?} at {point:?}");
            until(&mut [&mut a, &mut b], &story, |p| p[1].messages_heard() == i + 1);
        }
        let mut all = Effects::default();
        for party in [&mut a, &mut b] {
            let faults = injected(party);
            let counters = party.host.link().counters();
            let (rcl, seals) = (counters.rcl, counters.dropped(Dropped::BadSeal));
            all += Effects {
                faults,
                retransmissions: rcl.retransmissions,
                duplicates: rcl.duplicates,
                rejected: rcl.checksum + rcl.malformed + seals,
                ..Effects::default()
            };
        }
        assert!(all.faults > 10);
        all
    };
    for point in [Point::Wire, Point::Plain] {
        let drops = effects(point, Kind::Drop);
        assert!(drops.retransmissions > 5 && drops.rejected == 0, "{drops:?}");
        let [(name, rate), ..] = drops.per_fault();
        assert!(name == "retransmissions" && (0.1..5.0).contains(&rate), "{rate}");
    }
    let changes = effects(Point::Plain, Kind::Modify { bits: 1 });
    assert!(changes.rejected > 5 && changes.retransmissions > 0, "{changes:?}");
    let copies = effects(Point::Plain, Kind::Inject { bits: 0 });
    assert!(copies.duplicates > 5 && copies.retransmissions <= copies.faults / 2, "{copies:?}");
}

/// FI-6, §7: bursts, correlated faults, and faults that wait for a state of the protocol.
#[test]
fn fi_6_bursts_followers_and_triggers_hit_what_they_say() {
    let (mut a, mut b, to_b, _) = Party::pair(&OverUdp::default());
    let burst = Rule { burst: 3, times: 3, name: Some("storm".into()), ..Rule::new(Kind::Drop) };
    let every_tenth = Recurrence::Messages(Distribution::Fixed(10));
    inject(&mut a, Point::Wire, burst.recurring(every_tenth));
    (0..30).for_each(|i| a.datagram(to_b, &[i]).unwrap());
    until(&mut [&mut a, &mut b], "the rest arrives", |p| p[1].datagrams().len() == 27);
    let lost: Vec<u8> = (0..30).filter(|i| !b.datagrams().contains(&vec![*i])).collect();
    assert!(lost.len() == 3 && lost.windows(2).all(|w| w[1] == w[0] + 1), "three in a row: {lost:?}");
    a.host.wire().heal_all();
    b.said.clear();

    let after = Some(After { signal: "wave-started".into(), lasts: Lasts::Messages(2) });
    inject(&mut a, Point::Plain, Rule { after, ..Rule::new(Kind::Drop) });
    (0..3).for_each(|i| a.datagram(to_b, &[i]).unwrap());
    let now = a.host.now();
    a.host.link().tap().signal(now, "wave-started");
    (3..8).for_each(|i| a.datagram(to_b, &[i]).unwrap());
    until(&mut [&mut a, &mut b], "the others arrive", |p| p[1].datagrams().len() == 6);
    assert_eq!(b.datagrams().concat(), [0, 1, 2, 5, 6, 7]);
    heal(&mut a);
    b.said.clear();

    let storm = Rule { name: Some("storm".into()), ..Rule::new(Kind::Drop) };
    inject(&mut a, Point::Plain, storm.recurring(Recurrence::Messages(Distribution::Fixed(5))));
    let fails = Kind::Invocation { call: Call::Allocate, code: Some(Code::LocalResource) };
    inject(&mut a, Point::Plain, Rule::new(fails).recurring(Recurrence::With("storm".into())));
    let refused = (0..50).filter(|&i| a.ticketed(to_b, &[i]) == Err(Code::LocalResource)).count() as u64;
    let led = a.host.link().tap().counters().of(KindName::Drop).injected;
    assert!(refused >= 5, "buffers run out when packets vanish: {refused} refused, {led} dropped in all");
    while_quiet(&mut [&mut a, &mut b], QUIET);
    assert!(b.datagrams().len() < 50 - refused as usize);
}

/// FI-3: a rule for some peers leaves the others alone.
#[test]
fn fi_3_a_rule_for_one_peer_spares_the_others() {
    let world = OverUdp::default();
    let (mut a, mut b, to_b, _) = Party::pair(&world);
    let mut c = Party::of(&world, 3);
    let (to_c, _) = phalanx_papers::party::meet(&mut a, &mut c);
    let (now, at_b) = (a.host.now(), b.host.local());
    let only: fn(Endpoint) -> NodeId = |to| to.node;
    for point in [Point::Wire, Point::Plain] {
        let rule = Rule { only: Some(vec!["b".into()]), ..Rule::new(Kind::Drop) };
        let added = match point {
            Point::Wire => a.host.wire().add_for(now, rule, &[at_b]).map(drop),
            Point::Plain => a.host.link().tap().add_for(now, rule, &[only(to_b)]).map(drop),
        };
        added.expect("a rule that makes sense");
        a.turn();
        a.datagram(to_b, b"cut off").unwrap();
        a.datagram(to_c, b"connected").unwrap();
        until(&mut [&mut a, &mut b, &mut c], "c hears", |p| p[2].datagrams() == [b"connected"]);
        while_quiet(&mut [&mut a, &mut b, &mut c], QUIET);
        assert!(b.said.is_empty(), "{point:?}");
        heal(&mut a);
        c.said.clear();
    }
}
