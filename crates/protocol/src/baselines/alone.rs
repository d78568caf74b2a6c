//! One engine alone: facts in, decisions out; and anything that peers may say.

use super::net::{Collected, Owned, Witness, card, peer};
use super::tests::{UNICAST, all_to_all, gossip, s, start};
use super::*;
use crate::member::{Engine, Input, Name, Slot, Version, Why};
use phalanx_core::{Code, Duration, Fingerprint, Instant, Machine, Rng};
use phalanx_wire::baseline::{Attributes, Entry, List, heartbeat};
use proptest::prelude::*;

/// What a member says of itself, or others of it.
struct Said {
    n: usize,
    incarnation: u64,
    counter: u64,
    age_ms: u32,
    departed: Option<u8>,
    attributes: Vec<u8>,
}

fn said(n: usize, incarnation: u64, counter: u64) -> Said {
    Said { n, incarnation, counter, age_ms: 0, departed: None, attributes: Vec::new() }
}

impl Said {
    fn entry<R>(&self, then: impl FnOnce(&Entry<'_>) -> R) -> R {
        let card = card(self.n);
        then(&Entry {
            identity: card.identity,
            addr: card.addr,
            name: card.name.as_str(),
            incarnation: self.incarnation,
            minor: 1,
            counter: self.counter,
            age_ms: self.age_ms,
            departed: self.departed,
            attributes: Attributes::parse(&self.attributes).unwrap(),
        })
    }

    fn heartbeat(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.entry(|entry| heartbeat(false, 0, entry, 0, &mut out));
        out
    }

    fn gossip(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let mut list = List::gossip(&mut out);
        assert!(self.entry(|entry| list.entry(entry, 0, 1_400)));
        list.finish();
        out
    }
}

fn hear<E: Engine>(engine: &mut E, now: Instant, from: usize, bytes: &[u8]) -> Vec<Owned> {
    let mut out = Collected::default();
    engine.handle(now, Input::Datagram { from: peer(from), group: false, bytes }, &mut out);
    out.0
}

fn expire<E: Engine>(engine: &mut E, now: Instant) -> Vec<Owned> {
    let mut out = Collected::default();
    engine.expire(now, &mut out);
    out.0.retain(|o| matches!(o, Owned::Joined(..) | Owned::Left(..) | Owned::Release(_)));
    out.0
}

fn alone() -> Start {
    Start { bootstrap: Vec::new(), ..start(0, 1) }
}

fn quiet_gossip() -> Gossip {
    Gossip::new(GossipConfig::paper(), alone(), Rng::new(1, 1), Instant::ZERO)
}

/// The same story for both engines, which differ in how bytes look.
fn a_member_comes_and_goes<E: Engine>(mut engine: E, bytes: fn(&Said) -> Vec<u8>, fail: Duration) {
    let (a, one, two) = (Slot(1), Version::first(5), Version::first(6));
    let t = Instant::ZERO;
    assert_eq!(hear(&mut engine, t, 4, &bytes(&said(4, 5, 10))), [Owned::Joined(a, one)]);
    assert_eq!(hear(&mut engine, t, 4, &bytes(&said(4, 5, 10))), []);
    let with = |pairs: &[(&str, &str)], counter| {
        let mut attributes = Vec::new();
        pairs.iter().for_each(|(k, v)| Attributes::encode_pair(k, v.as_bytes(), &mut attributes));
        Said { attributes, ..said(4, 5, counter) }
    };
    let changed = |k: &str, v: Option<&str>| Owned::Attribute(a, k.into(), v.map(|v| v.into()));
    let told = hear(&mut engine, t, 4, &bytes(&with(&[("a", "1"), ("b", "2")], 11)));
    assert_eq!(told, [changed("a", Some("1")), changed("b", Some("2"))]);
    assert_eq!(hear(&mut engine, t, 4, &bytes(&with(&[("a", "1")], 9))), [], "older");
    assert_eq!(
        hear(&mut engine, t, 4, &bytes(&with(&[("b", "3")], 12))),
        [changed("a", None), changed("b", Some("3"))]
    );
    assert_eq!(engine.attribute(a, "b"), Some(&b"3"[..]));

    // It restarts, and what its old life said is not heard any more.
    let told = hear(&mut engine, t, 4, &bytes(&said(4, 6, 1)));
    assert_eq!(told, [Owned::Left(a, one, Why::Replaced), Owned::Joined(a, two)]);
    assert_eq!(engine.attribute(a, "b"), None);
    assert_eq!(hear(&mut engine, t, 4, &bytes(&said(4, 5, 99))), []);

    // Silence.
    assert_eq!(expire(&mut engine, t + fail - Duration(1)), []);
    let gone = Owned::Release(card(4).addr);
    assert_eq!(expire(&mut engine, t + fail), [Owned::Left(a, two, Why::Failed), gone.clone()]);
    assert_eq!((engine.version(a), engine.len(), engine.card(a)), (None, 1, Some(&card(4))));
    let t = t + fail;
    assert_eq!(hear(&mut engine, t, 4, &bytes(&said(4, 6, 1))), [], "nothing new of it");
    assert_eq!(hear(&mut engine, t, 4, &bytes(&said(4, 6, 2))), [Owned::Joined(a, two)], "it was alive");

    // It leaves, and a heartbeat that was under way changes nothing.
    let bye = Said { departed: Some(3), ..said(4, 6, 3) };
    assert_eq!(hear(&mut engine, t, 4, &bytes(&bye)), [Owned::Left(a, two, Why::Departed(3)), gone]);
    assert_eq!(hear(&mut engine, t, 4, &bytes(&said(4, 6, 99))), []);
    let t = t + fail * 2;
    assert_eq!((expire(&mut engine, t - Duration(1)), engine.card(a).is_some()), (vec![], true));
    assert_eq!((expire(&mut engine, t), engine.card(a)), (vec![], None), "forgotten");
    assert_eq!(hear(&mut engine, t, 4, &bytes(&Said { departed: Some(3), ..said(4, 6, 3) })), [], "no news");
    assert_eq!(hear(&mut engine, t, 6, &bytes(&said(6, 1, 1))), [Owned::Joined(a, Version::first(1))], "slot reused");

    // We leave.
    let mut out = Collected::default();
    engine.leave(t, 9, &mut out);
    assert!(!out.0.is_empty() && engine.is_empty() && engine.members().count() == 0);
    assert_eq!((engine.deadline(), engine.version(engine.me())), (Instant::NEVER, None));
    assert_eq!(hear(&mut engine, t, 6, &bytes(&said(6, 1, 2))), []);
    assert_eq!(engine.set(t, "k", None), Err(Code::NotInitialized));
}

#[test]
fn all_to_all_members_come_and_go() {
    let engine = AllToAll::new(UNICAST, alone(), Rng::new(1, 1), Instant::ZERO);
    a_member_comes_and_goes(engine, Said::heartbeat, UNICAST.fail_after());
}

#[test]
fn gossip_members_come_and_go() {
    a_member_comes_and_goes(quiet_gossip(), Said::gossip, GossipConfig::paper().fail_after(2));
}

/// News as old as T_fail is no sign of life: not of a stranger, not of who failed, not of who is about to.
#[test]
fn old_counters_are_no_sign_of_life() {
    let mut engine = quiet_gossip();
    let (t, fail) = (Instant::ZERO, GossipConfig::paper().fail_after(2));
    let old = |n, incarnation, counter| Said { age_ms: fail.as_millis() as u32 + 1, ..said(n, incarnation, counter) };
    assert_eq!(hear(&mut engine, t, 4, &old(4, 1, 9).gossip()), []);
    assert_eq!(hear(&mut engine, t, 4, &said(4, 1, 1).gossip()), [Owned::Joined(Slot(1), Version::first(1))]);
    assert_eq!(hear(&mut engine, t + s(5), 4, &old(4, 1, 2).gossip()), []);
    let told = expire(&mut engine, t + fail);
    assert_eq!(told[0], Owned::Left(Slot(1), Version::first(1), Why::Failed));
    assert_eq!(hear(&mut engine, t + fail, 4, &old(4, 1, 3).gossip()), []);
    assert_eq!(hear(&mut engine, t + fail, 4, &said(4, 1, 4).gossip()), [Owned::Joined(Slot(1), Version::first(1))]);
    let told = hear(&mut engine, t + fail, 4, &old(4, 2, 1).gossip());
    assert_eq!(told, [Owned::Left(Slot(1), Version::first(1), Why::Replaced), Owned::Release(Addr::Local(4))]);
    assert_eq!(hear(&mut engine, t + fail, 4, &said(4, 1, 99).gossip()), []);
    assert_eq!(hear(&mut engine, t + fail, 4, &said(4, 2, 2).gossip()), [Owned::Joined(Slot(1), Version::first(2))]);
}

#[test]
fn what_others_may_not_say_is_counted() {
    let mut all = AllToAll::new(UNICAST, start(0, 5), Rng::new(1, 1), Instant::ZERO);
    let now = Instant::ZERO;
    assert_eq!(hear(&mut all, now, 3, &said(4, 1, 1).heartbeat()), []);
    assert_eq!(hear(&mut all, now, 4, &said(4, 1, 1).gossip()), []);
    assert_eq!(hear(&mut all, now, 4, b"nonsense"), []);
    assert_eq!(hear(&mut all, now, 0, &said(0, 9, 1).heartbeat()), []);
    let counters = all.counters();
    assert_eq!((counters.forged, counters.foreign, counters.malformed, counters.ghosts), (1, 1, 1, 1));

    let mut gossip = quiet_gossip();
    let mut odd = Vec::new();
    let mut list = List::gossip(&mut odd);
    assert!(said(4, 1, 1).entry(|e| list.entry(&Entry { name: "no name", ..*e }, 0, 1_400)));
    list.finish();
    assert_eq!(hear(&mut gossip, now, 4, &odd), []);
    assert_eq!(hear(&mut gossip, now, 4, &said(4, 1, 1).heartbeat()), []);
    assert_eq!((gossip.counters().malformed, gossip.counters().foreign, gossip.len()), (1, 1, 1));
}

#[test]
fn a_full_table_takes_nobody() {
    let config = GossipConfig { members: 3, ..GossipConfig::paper() };
    let mut engine = Gossip::new(config, alone(), Rng::new(1, 1), Instant::ZERO);
    for n in 1..5 {
        hear(&mut engine, Instant::ZERO, n, &said(n, 1, 1).gossip());
    }
    assert_eq!((engine.len(), engine.counters().crowded), (3, 2));
    let late = Instant::ZERO + engine.fail_after();
    expire(&mut engine, late);
    assert_eq!(engine.len(), 1);
    hear(&mut engine, late, 4, &said(4, 1, 2).gossip());
    assert_eq!(engine.counters().crowded, 3, "the dead are remembered");
    let later = late + engine.fail_after();
    expire(&mut engine, later);
    hear(&mut engine, later, 4, &said(4, 1, 3).gossip());
    assert_eq!(engine.len(), 2);
}

/// Whoever asks with another view is told places; not more often than the bound allows.
#[test]
fn introductions_are_bounded_and_followed() {
    let config = AllToAllConfig { introductions: 2, datagram_bytes: 0, ..UNICAST };
    let mut engine = AllToAll::new(config, alone(), Rng::new(1, 1), Instant::ZERO);
    for n in 1..=200 {
        hear(&mut engine, Instant::ZERO, n, &said(n, 1, 1).heartbeat());
    }
    let mut ask = Vec::new();
    said(1, 1, 2).entry(|e| heartbeat(true, 0, e, 0, &mut ask));
    let told = hear(&mut engine, Instant::ZERO, 1, &ask);
    assert_eq!(told.len(), 2, "199 places of 5 bytes in datagrams of 670");
    let mut asker =
        AllToAll::new(config, Start { bootstrap: Vec::new(), ..start(1, 1) }, Rng::new(1, 2), Instant::ZERO);
    for datagram in &told {
        let Owned::Datagram(to, bytes) = datagram else { panic!("{datagram:?}") };
        assert_eq!(*to, card(1).addr);
        assert_eq!(hear(&mut asker, Instant::ZERO, 0, bytes), [], "places are no members");
    }
    for round in 1..=7 {
        let mut out = Collected::default();
        asker.expire(Instant::ZERO + UNICAST.period * round, &mut out);
        let (sent, released): (Vec<_>, Vec<_>) = out.0.iter().partition(|o| matches!(o, Owned::Datagram(..)));
        let knocks = if round <= 5 { 199 } else { 0 };
        assert_eq!((sent.len(), released.len()), (knocks, if round == 5 { 199 } else { 0 }), "round {round}");
    }
    assert_eq!(hear(&mut engine, Instant::ZERO, 1, &ask).len(), 2);
    assert_eq!((hear(&mut engine, Instant::ZERO, 1, &ask), engine.counters().unanswered), (vec![], 1));
}

/// A member that moves is followed.
#[test]
fn a_new_address_is_no_new_member() {
    let mut engine = quiet_gossip();
    hear(&mut engine, Instant::ZERO, 4, &said(4, 1, 1).gossip());
    let mut moved = Vec::new();
    let mut list = List::gossip(&mut moved);
    assert!(said(4, 1, 2).entry(|e| list.entry(&Entry { addr: Addr::Local(77), name: "new", ..*e }, 0, 1_400)));
    list.finish();
    assert_eq!(hear(&mut engine, Instant::ZERO, 4, &moved), [Owned::Release(Addr::Local(4))]);
    let card = engine.card(Slot(1)).unwrap();
    assert_eq!((card.addr, &card.name), (Addr::Local(77), &Name::new("new").unwrap()));
}

/// Two engines that differ only in when they live are one to a model checker.
#[test]
fn fingerprints_do_not_depend_on_when() {
    fn print<E: Engine>(make: &dyn Fn(usize, u64, Rng, Instant) -> E, bytes: Vec<u8>, at: Instant, after: u64) -> u64 {
        let mut engine = make(0, 1, Rng::new(1, 1), at);
        hear(&mut engine, at, 4, &bytes);
        Fingerprint::of(&engine, at + Duration(after))
    }
    let (early, late) = (Instant(5), Instant(777_777));
    let (make_all, make_gossip) = (all_to_all(UNICAST), gossip(GossipConfig::paper()));
    let all = |at, after| print(&make_all, said(4, 1, 1).heartbeat(), at, after);
    assert!(all(early, 0) == all(late, 0) && all(early, 0) != all(early, 1));
    let gossip = |at, after| print(&make_gossip, said(4, 1, 1).gossip(), at, after);
    assert!(gossip(early, 0) == gossip(late, 0) && gossip(early, 0) != gossip(early, 1));
}

/// Lists longer than a datagram are cut between entries; attributes at their cap still fit.
#[test]
fn lists_are_cut_to_datagrams() {
    let mut engine = quiet_gossip();
    engine.set(Instant::ZERO, "a", Some(&[1; 250])).unwrap();
    engine.set(Instant::ZERO, "b", Some(&[1; 250])).unwrap();
    (1..100).for_each(|n| drop(hear(&mut engine, Instant::ZERO, n, &said(n, 1, 1).gossip())));
    let mut out = Collected::default();
    engine.expire(Instant::ZERO + s(1), &mut out);
    let mut other = Gossip::new(GossipConfig::paper(), start(200, 1), Rng::new(1, 2), Instant::ZERO);
    for datagram in &out.0 {
        let Owned::Datagram(_, bytes) = datagram else { panic!("{datagram:?}") };
        assert!(bytes.len() <= 1_400);
        hear(&mut other, Instant::ZERO, 0, bytes);
    }
    assert_eq!((other.len(), out.0.len()), (101, 17), "6 entries of 228 bytes in each");
}

/// Anything that peers may say, in any order and at any time.
#[derive(Clone, Debug)]
enum Step {
    Hear { n: usize, incarnation: u64, counter: u64, age_ms: u32, departed: Option<u8>, value: u8, addr: u32 },
    Bytes(Vec<u8>),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let departed = prop::option::weighted(0.15, any::<u8>());
    let age = prop_oneof![3 => Just(0), 1 => 0u32..40_000];
    let hear = (0usize..6, 1u64..4, 0u64..8, age, departed, 0u8..3, 0u32..8);
    let step = prop_oneof![
        8 => hear.prop_map(|(n, incarnation, counter, age_ms, departed, value, addr)| {
            Step::Hear { n, incarnation, counter, age_ms, departed, value, addr }
        }),
        1 => prop::collection::vec(any::<u8>(), 0..80).prop_map(Step::Bytes),
        3 => (1u64..4_000).prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 0..120)
}

fn any_story<E: Engine>(mut engine: E, steps: &[Step], bytes: impl Fn(&Entry<'_>) -> Vec<u8>) -> Result<(), String> {
    let (mut witness, mut now) = (Witness::default(), Instant::ZERO);
    for step in steps {
        let mut out = Collected::default();
        match step {
            Step::Hear { n, incarnation, counter, age_ms, departed, value, addr } => {
                let mut attributes = Vec::new();
                (0..*value).for_each(|k| Attributes::encode_pair(&k.to_string(), &[*value], &mut attributes));
                let said =
                    Said { age_ms: *age_ms, departed: *departed, attributes, ..said(*n, *incarnation, *counter) };
                let bytes = said.entry(|e| bytes(&Entry { addr: Addr::Local(*addr), ..*e }));
                engine.handle(now, Input::Datagram { from: peer(*n), group: false, bytes: &bytes }, &mut out);
            }
            Step::Bytes(bytes) => {
                engine.handle(now, Input::Datagram { from: peer(3), group: false, bytes }, &mut out);
            }
            Step::Wait(ms) => {
                let until = now + Duration::from_millis(*ms);
                while engine.deadline() <= until {
                    now = now.max(engine.deadline());
                    engine.expire(now, &mut out);
                }
                now = until;
            }
        }
        for event in &out.0 {
            if let Owned::Joined(slot, _) | Owned::Left(slot, ..) | Owned::Attribute(slot, ..) = event {
                witness.hear(event, engine.card(*slot).ok_or("a card stays known")?.identity)?;
            }
        }
        witness.agree(&engine)?;
        let known: Vec<_> = (0..20).filter_map(|slot| Some(engine.card(Slot(slot))?.identity)).collect();
        witness.retain(|who| known.contains(&who));
    }
    Ok(())
}

proptest! {
    #[test]
    fn all_to_all_tells_true_differences_whatever_is_said(steps in steps()) {
        let engine = AllToAll::new(UNICAST, start(0, 2), Rng::new(1, 1), Instant::ZERO);
        let told = any_story(engine, &steps, |entry| {
            let mut out = Vec::new();
            heartbeat(true, 0, entry, 0, &mut out);
            out
        });
        prop_assert_eq!(told, Ok(()));
    }

    #[test]
    fn gossip_tells_true_differences_whatever_is_said(steps in steps()) {
        let engine = Gossip::new(GossipConfig::paper(), start(0, 2), Rng::new(1, 1), Instant::ZERO);
        let told = any_story(engine, &steps, |entry| {
            let mut out = Vec::new();
            let mut list = List::gossip(&mut out);
            assert!(list.entry(entry, 0, 1_400));
            list.finish();
            out
        });
        prop_assert_eq!(told, Ok(()));
    }
}
