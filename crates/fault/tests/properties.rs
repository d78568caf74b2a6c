//! What holds for every rule and every stream of messages (FI-1, FI-2, FI-6).

use phalanx_core::buf::Attachment;
use phalanx_core::{Buf, Code, Duration, Instant};
use phalanx_fault::{Call, Delay, Distribution, Injector, Kind, KindName, Outcome, Probability, Recurrence, Rule};
use proptest::prelude::*;

fn spans() -> impl Strategy<Value = Distribution<Duration>> {
    let span = || (0u64..20_000).prop_map(Duration::from_micros);
    prop_oneof![
        span().prop_map(Distribution::Fixed),
        span().prop_map(|mean| Distribution::Exponential { mean }),
        (span(), span()).prop_map(|(a, b)| Distribution::Uniform { from: a.min(b), to: a.max(b) }),
        prop::collection::vec(span(), 1..5).prop_map(Distribution::Empirical),
    ]
}

fn gaps() -> impl Strategy<Value = Distribution<u64>> {
    let gap = || 1u64..12;
    prop_oneof![
        gap().prop_map(Distribution::Fixed),
        gap().prop_map(|mean| Distribution::Exponential { mean }),
        (gap(), gap()).prop_map(|(a, b)| Distribution::Uniform { from: a.min(b), to: a.max(b) }),
        prop::collection::vec(gap(), 1..5).prop_map(Distribution::Empirical),
    ]
}

fn recurrences() -> impl Strategy<Value = Recurrence> {
    prop_oneof![
        gaps().prop_map(Recurrence::Messages),
        spans().prop_map(Recurrence::Time),
        (0.0..=1.0).prop_map(|p| Recurrence::Chance(Probability::new(p).unwrap())),
    ]
}

/// Kinds that hold messages back, and lose none.
fn holding() -> impl Strategy<Value = Kind> {
    prop_oneof![
        spans().prop_map(|d| Kind::Delay(Delay::Lasting(d))),
        Just(Kind::Delay(Delay::UntilNext)),
        Just(Kind::Reorder),
        Just(Kind::Invocation { call: Call::Receive, code: Some(Code::Interrupted) }),
    ]
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        holding(),
        Just(Kind::Drop),
        (1u32..9).prop_map(|bits| Kind::Modify { bits }),
        (0u32..9).prop_map(|bits| Kind::Inject { bits }),
        spans().prop_map(|after| Kind::Operation { code: None, deliver: None, after }),
        Just(Kind::Invocation { call: Call::Send, code: None }),
    ]
}

fn rules(kind: impl Strategy<Value = Kind>) -> impl Strategy<Value = Rule> {
    (kind, recurrences(), 1u32..4)
        .prop_map(|(kind, recurrence, burst)| Rule { burst, ..Rule::new(kind).recurring(recurrence) })
}

/// Messages as (microseconds since the last one, peer).
fn streams() -> impl Strategy<Value = Vec<(u64, u8)>> {
    prop::collection::vec((0u64..3_000, 0u8..3), 1..300)
}

fn injector(seed: u64, rules: &[Rule]) -> Injector<u8> {
    let mut injector = Injector::new(seed);
    injector.set_targets(&[0, 1, 2]);
    for rule in rules {
        injector.add(Instant::ZERO, rule.clone()).unwrap();
    }
    injector
}

/// Everything that can be seen from outside while a stream passes: in, out, and expiring on time.
fn observe(injector: &mut Injector<u8>, stream: &[(u64, u8)]) -> Vec<String> {
    let mut seen = Vec::new();
    let mut now = Instant::ZERO;
    for (n, &(gap, peer)) in stream.iter().enumerate() {
        now += Duration::from_micros(gap);
        let bytes = (n as u64).to_le_bytes();
        seen.push(format!("{:?}", injector.send(now, peer, &Buf::copy_of(&bytes))));
        while let Some((to, packet)) = injector.take_injected() {
            seen.push(format!("copy to {to}: {:?}", packet.bytes()));
        }
        let mut got = Vec::new();
        let mut deliver = |from: u8, bytes: &mut [u8], _: Option<&Attachment>| got.push(format!("{from}: {bytes:?}"));
        if injector.deadline() <= now {
            injector.expire(now, &mut deliver);
        }
        injector.receive(now, peer, &mut bytes.clone(), None, &mut deliver);
        seen.append(&mut got);
    }
    seen
}

proptest! {
    /// FI-2: the same seed and the same messages give the same faults, to the bit.
    #[test]
    fn a_seed_replays(seed: u64, rules in prop::collection::vec(rules(kinds()), 1..5), stream in streams()) {
        let (mut one, mut two) = (injector(seed, &rules), injector(seed, &rules));
        prop_assert_eq!(observe(&mut one, &stream), observe(&mut two, &stream));
        prop_assert_eq!(one, two);
    }

    /// FI-1, FI-3: what is held comes out again, each message once, when its time comes or its rule is healed.
    #[test]
    fn nothing_is_lost_by_holding(
        seed: u64,
        rules in prop::collection::vec(rules(holding()), 1..5),
        stream in streams(),
        heal: bool,
    ) {
        let mut injector = injector(seed, &rules);
        let mut out: Vec<(u8, u64)> = Vec::new();
        let mut deliver = |from, bytes: &mut [u8], _: Option<&Attachment>| {
            out.push((from, u64::from_le_bytes((&*bytes).try_into().unwrap())));
        };
        let mut now = Instant::ZERO;
        let mut sent = Vec::new();
        for (n, &(gap, peer)) in stream.iter().enumerate() {
            now += Duration::from_micros(gap);
            sent.push((peer, n as u64));
            injector.receive(now, peer, &mut (n as u64).to_le_bytes(), None, &mut deliver);
        }
        if heal {
            injector.heal_all();
        } else {
            let mut expiries = 0;
            while injector.deadline() != Instant::NEVER {
                now = now.max(injector.deadline());
                injector.expire(now, &mut deliver);
                expiries += 1;
                prop_assert!(expiries <= stream.len(), "expiring brings nothing out");
            }
        }
        injector.expire(now, &mut deliver);
        prop_assert_eq!(injector.deadline(), Instant::NEVER);
        out.sort_unstable_by_key(|m| m.1);
        prop_assert_eq!(out, sent);
    }

    /// FI-2: another rule on the same injector leaves the faults of the first as they were.
    #[test]
    fn rules_do_not_disturb_each_other(seed: u64, p in 0.05..0.9f64, other in rules(Just(Kind::Inject { bits: 1 }))) {
        let drop = Rule::new(Kind::Drop).recurring(Recurrence::Chance(Probability::new(p).unwrap()));
        let dropped = |rules: &[Rule]| {
            let mut injector = injector(seed, rules);
            (0..200).map(|_| injector.send(Instant::ZERO, 0, &Buf::copy_of(&[1]))).collect::<Vec<_>>()
        };
        prop_assert_eq!(dropped(std::slice::from_ref(&drop)), dropped(&[drop.clone(), other]));
    }
}

const MESSAGES: u64 = 20_000;

/// Faults per message over a long run with a message each millisecond.
fn rate(seed: u64, recurrence: Recurrence) -> f64 {
    let mut injector = injector(seed, &[Rule::new(Kind::Drop).recurring(recurrence)]);
    let packet = Buf::copy_of(&[1]);
    let mut dropped = 0u64;
    for n in 0..MESSAGES {
        let outcome = injector.send(Instant::ZERO + Duration::from_millis(n), 0, &packet);
        dropped += u64::from(outcome == Outcome::Drop);
    }
    assert_eq!(injector.counters().of(KindName::Drop).considered, MESSAGES);
    assert_eq!(injector.counters().of(KindName::Drop).injected, dropped);
    dropped as f64 / MESSAGES as f64
}

/// FI-2: over many messages each recurrence has the mean that was configured, in messages and in time.
#[test]
fn rates_are_the_configured_ones() {
    let ms = Duration::from_millis;
    for (recurrence, expected) in [
        (Recurrence::Chance(Probability::new(0.01).unwrap()), 0.01),
        (Recurrence::Chance(Probability::new(0.3).unwrap()), 0.3),
        (Recurrence::Messages(Distribution::Fixed(50)), 1.0 / 50.0),
        (Recurrence::Messages(Distribution::Exponential { mean: 20 }), 1.0 / 20.0),
        (Recurrence::Messages(Distribution::Uniform { from: 10, to: 30 }), 1.0 / 20.0),
        (Recurrence::Messages(Distribution::Empirical(vec![1, 9, 20])), 1.0 / 10.0),
        (Recurrence::Time(Distribution::Fixed(ms(40))), 1.0 / 40.0),
        (Recurrence::Time(Distribution::Exponential { mean: ms(50) }), 1.0 / 50.0),
        (Recurrence::Time(Distribution::Uniform { from: ms(10), to: ms(50) }), 1.0 / 30.0),
        (Recurrence::Time(Distribution::Empirical(vec![ms(5), ms(15)])), 1.0 / 10.0),
    ] {
        for seed in 0..4 {
            let rate = rate(seed, recurrence.clone());
            // Five standard deviations of a Poisson count; the regular ones are far inside.
            let tolerance = 5.0 * (expected / MESSAGES as f64).sqrt();
            assert!((rate - expected).abs() <= tolerance, "{recurrence:?}, seed {seed}: {rate}, not {expected}");
        }
    }
}
