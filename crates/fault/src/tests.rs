//! The injector's story, fault by fault: packets in, what happens to them out.

use crate::*;
use phalanx_core::buf::Attachment;
use phalanx_core::{Buf, Code, Duration, Fingerprint, Instant, Snapshot};
use std::any::Any;
use std::ops::Range;
use std::sync::Arc;

const PEER: u8 = 1;
const OTHER: u8 = 2;
const NOTHING: [u8; 0] = [];

fn ms(n: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(n)
}

fn every(n: u64, kind: Kind) -> Rule {
    Rule::new(kind).recurring(Recurrence::Messages(Distribution::Fixed(n)))
}

fn with(rules: impl IntoIterator<Item = Rule>) -> Injector<u8> {
    let mut injector = Injector::new(7);
    for rule in rules {
        injector.add(Instant::ZERO, rule).unwrap();
    }
    injector
}

/// Sends packets of one byte, `0..n`, to the peer.
fn send(injector: &mut Injector<u8>, n: u8) -> Vec<Outcome> {
    (0..n).map(|byte| injector.send(Instant::ZERO, PEER, &Buf::copy_of(&[byte]))).collect()
}

/// Receives a packet and tells what is delivered: the first byte of each.
fn receive(injector: &mut Injector<u8>, now: Instant, from: u8, byte: u8) -> Vec<u8> {
    let mut out = Vec::new();
    injector.receive(now, from, &mut [byte], None, &mut |_, bytes: &mut [u8], _: Option<&Attachment>| {
        out.push(bytes[0]);
    });
    out
}

fn expire(injector: &mut Injector<u8>, now: Instant) -> Vec<u8> {
    let mut out = Vec::new();
    injector.expire(now, &mut |_, bytes: &mut [u8], _: Option<&Attachment>| out.push(bytes[0]));
    out
}

/// FI-3: a node that nobody tortures pays for nothing, not even memory.
#[test]
fn without_rules_every_call_is_the_identity() {
    let mut injector = Injector::new(1);
    assert!(size_of::<Injector<u8>>() <= 16);
    assert_eq!(send(&mut injector, 1), [Outcome::Pass]);
    assert_eq!(receive(&mut injector, ms(0), PEER, 9), [9]);
    assert_eq!(injector.allocate(ms(0)), Ok(()));
    assert_eq!((injector.deadline(), injector.take_injected()), (Instant::NEVER, None));
    assert!(injector.is_idle());
    assert_eq!(injector, Injector::new(1));
}

/// FI-1: drop acts on the send side alone, and the rule's peers and lengths decide who is hit.
#[test]
fn drop_hits_what_its_filter_lets_through() {
    let mut injector = Injector::new(7);
    let rule = Rule { min_len: 2, max_len: 3, ..Rule::new(Kind::Drop) };
    let id = injector.add_for(ms(0), rule, &[PEER]).unwrap();
    let mut sent = |to, len| injector.send(ms(0), to, &Buf::copy_of(&vec![0; len]));
    assert_eq!(
        [sent(PEER, 1), sent(PEER, 2), sent(PEER, 3), sent(PEER, 4)].map(|o| o == Outcome::Drop),
        [false, true, true, false]
    );
    assert_eq!(sent(OTHER, 2), Outcome::Pass);
    assert_eq!(receive(&mut injector, ms(0), PEER, 5), [5]);
    let (rule_id, _, tally) = injector.rules().next().unwrap();
    assert_eq!((rule_id, *tally), (id, Tally { considered: 2, injected: 2, missed: 0 }));
    assert_eq!(injector.counters().of(KindName::Drop), *tally);
}

/// FI-1: a delayed message comes when its span is over, and later ones overtake it.
#[test]
fn delay_holds_for_a_span() {
    let span = Distribution::Fixed(Duration::from_millis(5));
    let mut injector = with([Rule { times: 2, ..every(1, Kind::Delay(Delay::Lasting(span))) }]);
    assert_eq!(receive(&mut injector, ms(0), PEER, 1), NOTHING);
    assert_eq!(receive(&mut injector, ms(1), PEER, 2), NOTHING);
    assert_eq!(receive(&mut injector, ms(2), PEER, 3), [3]);
    assert_eq!(injector.deadline(), ms(5));
    assert_eq!(expire(&mut injector, ms(4)), NOTHING);
    assert_eq!(expire(&mut injector, ms(5)), [1]);
    // The next arrival brings out what is due, even when nobody called in between.
    assert_eq!(receive(&mut injector, ms(9), PEER, 4), [2, 4]);
}

/// What is held of a conversation that is over does not turn up in the next one; other peers' messages do.
#[test]
fn a_forgotten_peers_messages_are_let_go() {
    let span = Distribution::Fixed(Duration::from_millis(5));
    let mut injector = with([every(1, Kind::Delay(Delay::Lasting(span)))]);
    assert_eq!(receive(&mut injector, ms(0), PEER, 1), NOTHING);
    assert_eq!(receive(&mut injector, ms(0), PEER + 1, 2), NOTHING);
    assert_eq!(injector.forget(PEER), 1);
    assert_eq!(expire(&mut injector, ms(9)), [2]);
}

/// FI-1, 004 §5: the variant without timers delivers the held message in front of its peer's next one.
#[test]
fn delay_until_the_next_message_keeps_the_order() {
    let mut injector = with([every(1, Kind::Delay(Delay::UntilNext))]);
    assert_eq!(receive(&mut injector, ms(0), PEER, 1), NOTHING);
    assert_eq!(receive(&mut injector, ms(1), OTHER, 7), NOTHING);
    assert_eq!(receive(&mut injector, ms(2), PEER, 2), [1]);
    assert_eq!(receive(&mut injector, ms(3), PEER, 3), [2]);
    assert_eq!(expire(&mut injector, ms(500)), [7, 3]);
    assert_eq!(injector.counters().not_swapped, 0);
}

/// FI-1: the next message of the same peer first; when none comes, patience ends.
#[test]
fn reorder_swaps_two_messages_of_one_peer() {
    let mut injector = with([every(1, Kind::Reorder)]);
    assert_eq!(receive(&mut injector, ms(0), PEER, 1), NOTHING);
    assert_eq!(receive(&mut injector, ms(0), OTHER, 8), NOTHING);
    assert_eq!(receive(&mut injector, ms(1), PEER, 2), [2, 1]);
    assert_eq!(injector.deadline(), ms(0) + PATIENCE);
    assert_eq!(expire(&mut injector, ms(100)), [8]);
    assert_eq!(injector.counters().not_swapped, 1);
    assert_eq!(injector.counters().of(KindName::Reorder), Tally { considered: 3, injected: 2, missed: 1 });
}

/// FI-1: exactly as many bits as the rule says, and never two flips of one bit.
#[test]
fn modify_flips_as_many_bits_as_it_says() {
    for bits in [1, 7, MAX_BITS] {
        let mut injector = with([every(1, Kind::Modify { bits })]);
        for _ in 0..200 {
            let mut packet = [0u8; 9];
            let mut flipped = 0;
            injector.receive(ms(0), PEER, &mut packet, None, &mut |_, bytes: &mut [u8], _: Option<&Attachment>| {
                flipped = bytes.iter().map(|b| b.count_ones()).sum();
            });
            assert_eq!(flipped, bits);
        }
    }
    let mut injector = with([every(1, Kind::Modify { bits: 1 })]);
    injector.receive(ms(0), PEER, &mut [], None, &mut |_, _: &mut [u8], _: Option<&Attachment>| ());
    assert_eq!(injector.counters().of(KindName::Modify), Tally { considered: 1, injected: 0, missed: 1 });
}

#[derive(Debug)]
struct Digits;

impl Snapshot for Digits {
    fn encoded_len(&self) -> usize {
        10
    }
    fn encode(&self, range: Range<usize>, out: &mut Vec<u8>) {
        out.extend(range.map(|i| b'0' + i as u8));
    }
    fn as_any(&self) -> &dyn Any {
        self
    }
}

/// FI-1: a message by reference stays one when it is held, and becomes bytes before its bits are flipped.
#[test]
fn messages_by_reference_are_held_as_they_are_and_modified_as_bytes() {
    let mut packet = Buf::copy_of(b"<");
    packet.attach(Arc::new(Digits), 0..10);
    packet.extend(b">");
    let through = |injector: &mut Injector<u8>| {
        let mut out = Vec::new();
        let mut deliver = |_, bytes: &mut [u8], attached: Option<&Attachment>| {
            out.push((bytes.to_vec(), attached.map(|a| (a.at, a.range.clone()))));
        };
        let mut copy = packet.clone();
        let (bytes, attached) = copy.parts_mut();
        injector.receive(ms(0), PEER, bytes, attached, &mut deliver);
        injector.expire(ms(1_000), &mut deliver);
        out
    };
    let held = through(&mut with([every(1, Kind::Reorder)]));
    assert_eq!(held, [(b"<>".to_vec(), Some((1, 0..10)))]);
    for rules in
        [vec![every(1, Kind::Modify { bits: 1 })], vec![every(1, Kind::Modify { bits: 1 }), every(1, Kind::Reorder)]]
    {
        let changed = through(&mut with(rules));
        let [(bytes, None)] = changed.as_slice() else { panic!("{changed:?}") };
        let differ: u32 = bytes.iter().zip(b"<0123456789>").map(|(a, b)| (a ^ b).count_ones()).sum();
        assert_eq!((bytes.len(), differ), (12, 1));
    }
    // An injected copy with flipped bits is bytes as well.
    let mut injector = with([every(1, Kind::Inject { bits: 1 })]);
    let _ = injector.send(ms(0), PEER, &packet);
    let (_, copy) = injector.take_injected().unwrap();
    assert!(copy.attached().is_none() && copy.bytes().len() == 12);
}

/// FI-1: copies of earlier messages go to targets drawn from all; with bits they are arbitrary messages.
#[test]
fn inject_sends_an_earlier_message_to_somebody() {
    let mut injector = with([every(2, Kind::Inject { bits: 0 })]);
    injector.set_targets(&[3, 4, 5]);
    assert!(send(&mut injector, 100).iter().all(|o| *o == Outcome::Pass));
    let copies: Vec<(u8, Buf)> = std::iter::from_fn(|| injector.take_injected()).collect();
    assert_eq!(copies.len(), 50);
    for target in [3, 4, 5] {
        assert!(copies.iter().any(|c| c.0 == target));
    }
    // The n-th copy was made after message 2n + 1, from that one or one of the fifteen before it.
    assert!(copies.iter().enumerate().all(|(n, (_, packet))| {
        let newest = 2 * n + 1;
        (newest.saturating_sub(MAX_PAST - 1)..=newest).contains(&usize::from(packet.bytes()[0]))
    }));

    let mut injector = with([every(1, Kind::Inject { bits: 2 })]);
    let _ = injector.send(ms(0), PEER, &Buf::copy_of(&[0; 8]));
    let (to, packet) = injector.take_injected().unwrap();
    assert_eq!((to, packet.bytes().iter().map(|b| b.count_ones()).sum::<u32>()), (PEER, 2));
}

/// Copies that nobody fetches are bounded, and counted when they are lost.
#[test]
fn copies_that_nobody_fetches_make_room() {
    let mut injector = with([every(1, Kind::Inject { bits: 0 })]);
    let _ = send(&mut injector, MAX_COPIES as u8 + 3);
    assert_eq!(injector.counters().copies_lost, 3);
    assert_eq!(std::iter::from_fn(|| injector.take_injected()).count(), MAX_COPIES);
}

/// FI-1: a call fails with the code that was asked for, or with any of Table 1.
#[test]
fn invocation_refuses_a_call() {
    let fails = |call, code| every(2, Kind::Invocation { call, code });
    let mut injector = with([fails(Call::Send, Some(Code::Unreachable))]);
    assert_eq!(send(&mut injector, 2), [Outcome::Pass, Outcome::Refuse(Code::Unreachable)]);
    let mut injector = with([fails(Call::Allocate, Some(Code::LocalResource))]);
    assert_eq!([injector.allocate(ms(0)), injector.allocate(ms(0))], [Ok(()), Err(Code::LocalResource)]);

    let mut injector = with([every(1, Kind::Invocation { call: Call::Send, code: None })]);
    let outcomes = send(&mut injector, 200);
    for code in Code::ALL {
        assert!(outcomes.contains(&Outcome::Refuse(code)), "{code:?} never came up");
    }
}

/// FI-1: a failed receive takes nothing in and loses nothing: the packet comes with the next, or after a while.
#[test]
fn a_failed_receive_is_repeated() {
    let code = Some(Code::Interrupted);
    let mut injector = with([every(2, Kind::Invocation { call: Call::Receive, code })]);
    assert_eq!(receive(&mut injector, ms(0), PEER, 1), [1]);
    let mut nothing = |_, _: &mut [u8], _: Option<&Attachment>| panic!("a failed call delivers nothing");
    assert_eq!(injector.receive(ms(0), PEER, &mut [2], None, &mut nothing), code);
    assert_eq!(receive(&mut injector, ms(0), PEER, 3), [2, 3]);
    assert_eq!(injector.receive(ms(0), PEER, &mut [4], None, &mut nothing), code);
    assert_eq!(injector.deadline(), ms(0) + RETRY_AFTER);
    assert_eq!(expire(&mut injector, ms(1)), [4]);
}

/// A failed receive waits shorter than a swap that began earlier, and comes out first.
#[test]
fn a_short_wait_is_not_stuck_behind_a_long_one() {
    let code = Some(Code::Interrupted);
    let swap = Rule { times: 1, ..every(1, Kind::Reorder) };
    let mut injector = with([swap, every(2, Kind::Invocation { call: Call::Receive, code })]);
    assert_eq!(receive(&mut injector, ms(0), PEER, 1), NOTHING);
    assert_eq!(receive(&mut injector, ms(0), OTHER, 2), NOTHING);
    assert_eq!(injector.deadline(), ms(0) + RETRY_AFTER);
    assert_eq!(expire(&mut injector, ms(1)), [2]);
    assert_eq!(expire(&mut injector, ms(100)), [1]);
}

/// FI-1: a send that was accepted fails later, delivered or not; together with a drop it never arrives.
#[test]
fn operation_fails_later() {
    let operation = |deliver| {
        let after = Distribution::Fixed(Duration::from_millis(3));
        every(1, Kind::Operation { code: Some(Code::RemoteResource), deliver, after })
    };
    let fails = |deliver| Outcome::FailLater { code: Code::RemoteResource, deliver, after: Duration::from_millis(3) };
    assert_eq!(send(&mut with([operation(Some(true))]), 1), [fails(true)]);
    assert_eq!(send(&mut with([operation(Some(true)), every(1, Kind::Drop)]), 1), [fails(false)]);
    let tossed = send(&mut with([operation(None)]), 50);
    assert!(tossed.contains(&fails(true)) && tossed.contains(&fails(false)));
}

/// A call that fails does nothing else: faults that hit the same packet are counted as missed.
#[test]
fn a_refused_call_hides_other_faults() {
    let refuse = every(1, Kind::Invocation { call: Call::Send, code: Some(Code::LocalResource) });
    let mut injector = with([every(1, Kind::Drop), refuse]);
    assert_eq!(send(&mut injector, 1), [Outcome::Refuse(Code::LocalResource)]);
    assert_eq!(injector.counters().of(KindName::Drop), Tally { considered: 1, injected: 0, missed: 1 });
    assert_eq!(injector.counters().injected(), 1);
}

/// FI-6: one draw, several faults: on the same message where they act on the same call, else on the next.
#[test]
fn followers_strike_with_their_leader() {
    let follow = |kind| Rule::new(kind).recurring(Recurrence::With("storm".into()));
    let leader = Rule { name: Some("storm".into()), ..every(3, Kind::Drop) };
    let after = Distribution::Fixed(Duration::ZERO);
    let operation = Kind::Operation { code: Some(Code::Unreachable), deliver: Some(true), after };
    let mut injector = with([
        leader,
        follow(operation),
        follow(Kind::Invocation { call: Call::Allocate, code: Some(Code::LocalResource) }),
    ]);
    let dropped = Outcome::FailLater { code: Code::Unreachable, deliver: false, after: Duration::ZERO };
    assert_eq!(send(&mut injector, 4), [Outcome::Pass, Outcome::Pass, dropped, Outcome::Pass]);
    assert_eq!([injector.allocate(ms(0)), injector.allocate(ms(0))], [Err(Code::LocalResource), Ok(())]);
    // Without its leader a follower does nothing.
    let leader = injector.rules().next().unwrap().0;
    injector.heal(leader);
    assert!(send(&mut injector, 9).iter().all(|o| *o == Outcome::Pass));
}

/// FI-6: a strike of the leader while a follower sleeps is not kept for when it wakes.
#[test]
fn a_sleeping_follower_is_not_woken_by_its_leader() {
    let leader = Rule { name: Some("storm".into()), times: 1, ..every(1, Kind::Drop) };
    let fails = Kind::Invocation { call: Call::Send, code: Some(Code::LocalResource) };
    let sleeps = Rule { from: Duration::from_millis(10), ..Rule::new(fails) };
    let mut injector = with([leader, sleeps.recurring(Recurrence::With("storm".into()))]);
    let packet = Buf::copy_of(&[0]);
    assert_eq!(injector.send(ms(0), PEER, &packet), Outcome::Drop);
    assert_eq!(injector.send(ms(20), PEER, &packet), Outcome::Pass);
}

/// FI-2: each rule draws from a stream of its own, so two rules of one probability hit different messages.
#[test]
fn rules_draw_independently() {
    let half = Recurrence::Chance(Probability::new(0.5).unwrap());
    let after = Distribution::Fixed(Duration::ZERO);
    let fails = Kind::Operation { code: Some(Code::Unreachable), deliver: Some(true), after };
    let mut injector = with([Kind::Drop, fails].map(|kind| Rule::new(kind).recurring(half.clone())));
    let outcomes = send(&mut injector, 200);
    let both = |deliver| Outcome::FailLater { code: Code::Unreachable, deliver, after: Duration::ZERO };
    for outcome in [Outcome::Pass, Outcome::Drop, both(true), both(false)] {
        let times = outcomes.iter().filter(|o| **o == outcome).count();
        assert!((25..75).contains(&times), "{outcome:?} {times} times of 200");
    }
}

/// FI-6: a rule that waits for a state of the protocol hits only after that state was reached.
#[test]
fn a_rule_wakes_on_its_signal() {
    let lasts = Lasts::Messages(2);
    let rule = Rule { after: Some(After { signal: "wave-started".into(), lasts }), ..Rule::new(Kind::Drop) };
    let mut injector = with([rule]);
    assert_eq!(send(&mut injector, 1), [Outcome::Pass]);
    injector.signal(ms(0), "view-installed");
    assert_eq!(send(&mut injector, 1), [Outcome::Pass]);
    injector.signal(ms(0), "wave-started");
    assert_eq!(send(&mut injector, 3), [Outcome::Drop, Outcome::Drop, Outcome::Pass]);
}

/// FI-3: rules are switched off at run time, and what they hold comes out in order.
#[test]
fn healing_releases_what_is_held() {
    let span = Distribution::Empirical(vec![Duration::from_secs(9), Duration::from_secs(1)]);
    let mut injector = with([every(1, Kind::Delay(Delay::Lasting(span)))]);
    for byte in 0..20 {
        assert_eq!(receive(&mut injector, ms(0), PEER, byte), NOTHING);
    }
    let id = injector.rules().next().unwrap().0;
    assert!(injector.heal(id) && !injector.heal(id));
    assert!(!injector.is_idle());
    assert_eq!(injector.deadline(), Instant::ZERO);
    assert_eq!(expire(&mut injector, ms(0)), (0..20).collect::<Vec<_>>());
    assert!(injector.is_idle());
    assert_eq!(injector.counters().of(KindName::Delay).injected, 20);
}

/// Holding is bounded: past the bound the one that is due first goes early.
#[test]
fn past_the_bound_a_held_message_goes_early() {
    let span = Distribution::Fixed(Duration::from_secs(1));
    let mut injector = with([every(1, Kind::Delay(Delay::Lasting(span)))]);
    for n in 0..MAX_HELD {
        assert_eq!(receive(&mut injector, ms(0), PEER, n as u8), NOTHING);
    }
    assert_eq!(receive(&mut injector, ms(0), PEER, 77), [0]);
    assert_eq!(receive(&mut injector, ms(0), PEER, 78), [1]);
    assert_eq!(injector.counters().released_early, 2);
    assert_eq!(expire(&mut injector, ms(1_000)).len(), MAX_HELD);
}

#[test]
fn rules_are_refused_without_harm() {
    let mut injector = Injector::<u8>::new(1);
    let named = |name: &str| Rule { name: Some(name.into()), ..Rule::new(Kind::Drop) };
    injector.add(ms(0), named("storm")).unwrap();
    let before = injector.clone();
    let follows = Rule::new(Kind::Drop).recurring(Recurrence::With("calm".into()));
    for (rule, says) in [
        (named("storm"), "a rule named `storm` is switched on already"),
        (follows, "no rule of that name is switched on: add that one first"),
        (Rule { burst: 0, ..Rule::new(Kind::Drop) }, "`burst` must be at least 1"),
        (Rule { only: Some(vec!["n1".into()]), ..Rule::new(Kind::Drop) }, "use `add_for`"),
    ] {
        let error = injector.add(ms(0), rule).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
    for peers in [0, MAX_PEERS + 1] {
        let error = injector.add_for(ms(0), Rule::new(Kind::Drop), &vec![PEER; peers]).unwrap_err();
        assert_eq!(error.to_string(), "`only` must be 1 to 1024 peers");
    }
    assert_eq!(injector, before);
    for _ in 1..MAX_RULES {
        injector.add(ms(0), Rule::new(Kind::Drop)).unwrap();
    }
    assert_eq!(injector.add(ms(0), Rule::new(Kind::Drop)), Err(RuleError::TooMany { limit: MAX_RULES }));
    injector.heal_all();
    assert!(injector.is_idle());
}

/// Two states that differ only in when they happen are one to a model checker; a held message makes a difference.
#[test]
fn fingerprints_tell_states_apart_and_not_times() {
    let delayed_at = |t: Instant| {
        let span = Distribution::Fixed(Duration::from_millis(5));
        let mut injector = Injector::new(3);
        injector.add(t, Rule { until: Duration::from_secs(1), ..every(1, Kind::Delay(Delay::Lasting(span))) }).unwrap();
        receive(&mut injector, t, PEER, 1);
        injector
    };
    let print = |injector: &Injector<u8>, now| {
        let mut print = Fingerprint::at(now);
        injector.fingerprint(&mut print);
        std::hash::Hasher::finish(&print)
    };
    let (early, mut late) = (delayed_at(ms(1)), delayed_at(ms(50)));
    assert_eq!(print(&early, ms(1)), print(&late, ms(50)));
    assert_ne!(print(&early, ms(1)), print(&early, ms(2)));
    let before = print(&late, ms(55));
    expire(&mut late, ms(55));
    assert_ne!(print(&late, ms(55)), before);
}
