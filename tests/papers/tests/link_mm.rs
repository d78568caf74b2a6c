//! MM-1 and MM-2, 004 §3: management messages over real sockets: three kinds, each with its promise, none believed
//! unproved.

use phalanx_core::{Code, Duration, Endpoint};
use phalanx_daemon::Udp;
use phalanx_fault::{Kind as Fault, Probability, Recurrence, Rule};
use phalanx_papers::party::{KEY, config, meet, pattern};
use phalanx_papers::{OverUdp, Party, Said, World, until};
use phalanx_protocol::link::mml::Kind;
use phalanx_protocol::link::seal::KeyRing;

const KINDS: [Kind; 3] = [Kind::Unr, Kind::Ack, Kind::Nack];

fn torment(party: &mut Party<Udp>, fault: Fault) {
    let rule = Rule::new(fault).recurring(Recurrence::Chance(Probability::new(0.2).expect("a probability")));
    let now = party.host.now();
    party.host.link().tap().add(now, rule).expect("a rule that makes sense");
}

/// Sends `count` messages of each kind, one of each a turn, and waits for what was promised.
fn deliver_under(fault: &Fault, count: usize) -> (Party<Udp>, Party<Udp>, Endpoint) {
    let (mut a, mut b, to_b, _) = Party::pair(&OverUdp::default());
    [&mut a, &mut b].into_iter().for_each(|party| torment(party, fault.clone()));
    for i in 0..count {
        for kind in KINDS {
            a.managed(kind, to_b, &pattern(80, i)).unwrap();
        }
        a.turn();
        b.turn();
    }
    let story = format!("ACK and NACK arrive under {fault:?}");
    until(&mut [&mut a, &mut b], &story, |p| {
        [Kind::Ack, Kind::Nack].into_iter().all(|kind| p[1].orders(kind).len() == count)
    });
    (a, b, to_b)
}

/// Sends one message of each kind at a time until a heartbeat got lost: how many share a datagram, and so the fate of all
/// of them, depends on how fast the machine is.
fn lose_a_heartbeat(a: &mut Party<Udp>, b: &mut Party<Udp>, to_b: Endpoint) {
    for sent in b.orders(Kind::Ack).len()..1000 {
        if b.orders(Kind::Unr).len() < sent {
            return;
        }
        for kind in KINDS {
            a.managed(kind, to_b, &pattern(80, sent)).unwrap();
        }
        until(&mut [a, b], "one more of each arrives", |p| {
            [Kind::Ack, Kind::Nack].into_iter().all(|kind| p[1].orders(kind).len() > sent)
        });
    }
    panic!("a fifth of all datagrams is dropped and no heartbeat is lost");
}

/// MM-1: ACK and NACK arrive once and in order whatever the network does; UNR at most once, and needs no repetition.
#[test]
fn mm_1_each_kind_keeps_its_promise_under_loss_copies_and_disorder() {
    for fault in [Fault::Drop, Fault::Inject { bits: 0 }, Fault::Reorder] {
        let (mut a, mut b, to_b) = deliver_under(&fault, 50);
        if fault == Fault::Drop {
            lose_a_heartbeat(&mut a, &mut b, to_b);
        }
        let sent = b.orders(Kind::Ack).len();
        let expected: Vec<_> = (0..sent).map(|i| pattern(80, i)).collect();
        assert_eq!(b.orders(Kind::Ack), expected, "{fault:?}");
        assert_eq!(b.orders(Kind::Nack), expected, "{fault:?}");
        let mut beats = b.orders(Kind::Unr);
        let heard = beats.len();
        beats.sort();
        beats.dedup();
        assert!(beats.len() == heard && beats.iter().all(|beat| expected.contains(beat)), "{fault:?}: at most once");
        if fault == Fault::Drop {
            assert!(heard < sent && a.host.link().counters().mml.retransmissions > 0, "{heard} of {sent} heartbeats");
        } else {
            assert_eq!(heard, sent, "{fault:?}");
        }
    }
}

/// MM-1: an ACK message that nobody acknowledges is told to its sender by number, once each.
#[test]
fn mm_1_what_is_not_acknowledged_is_told_undelivered() {
    let world = OverUdp::default();
    let mut limits = config::<OverUdp>();
    limits.mml.patience = Duration::from_millis(200);
    let mut a = Party::with(world.open(), limits, KeyRing::new(1, KEY), 1);
    let mut b = Party::of(&world, 2);
    let (to_b, _) = meet(&mut a, &mut b);
    assert_eq!(a.managed(Kind::Ack, to_b, b"heard"), Ok(0));
    until(&mut [&mut a, &mut b], "it arrives", |p| p[1].orders(Kind::Ack) == [b"heard"]);
    let end = a.host.now() + Duration::from_millis(10);
    until(&mut [&mut a, &mut b], "its acknowledgement too", |p| p[0].host.now() >= end);
    drop(b);
    let numbers: Vec<u64> = (0..5).map(|i| a.managed(Kind::Ack, to_b, &[i]).unwrap()).collect();
    until(&mut [&mut a], "the peer is down", |p| p[0].heard(|s| matches!(s, Said::Down(_, Code::Unreachable, _))));
    let told = |s: &Said| if let Said::Undelivered(_, number) = s { Some(*number) } else { None };
    assert_eq!(a.said.iter().filter_map(told).collect::<Vec<_>>(), numbers);
}

/// MM-2: a packet changed above the seal fails its signature or checksum, is counted, and never acted upon.
#[test]
fn mm_2_what_was_changed_is_counted_and_never_acted_upon() {
    for fault in [Fault::Modify { bits: 1 }, Fault::Inject { bits: 2 }] {
        let (mut a, mut b, _) = deliver_under(&fault, 50);
        let expected: Vec<_> = (0..50).map(|i| pattern(80, i)).collect();
        assert_eq!((b.orders(Kind::Ack), b.orders(Kind::Nack)), (expected.clone(), expected.clone()), "{fault:?}");
        assert!(b.orders(Kind::Unr).iter().all(|beat| expected.contains(beat)), "{fault:?}");
        assert!(!b.heard(|s| matches!(s, Said::Gap(..))) && !a.heard(|s| matches!(s, Said::Undelivered(..))));
        let (ours, theirs) = (a.host.link().counters().mml, b.host.link().counters().mml);
        let refused = |sums: phalanx_protocol::link::mml::Sums| sums.bad_signature + sums.checksum + sums.malformed;
        assert!(refused(theirs) > 0 && refused(ours) + refused(theirs) > 5, "{fault:?}: {ours:?} {theirs:?}");
    }
}

/// MM-2: who a message is from is proved by its signature, whatever its address; both ends know the same identity.
#[test]
fn mm_2_a_peer_is_known_by_its_key() {
    let (mut a, mut b, to_b, to_a) = Party::pair(&OverUdp::default());
    let [ours, theirs] = [&mut a, &mut b].map(|p| p.host.link().identity());
    assert_ne!(ours, theirs);
    let known = |p: &mut Party<Udp>, node| p.host.link().whereabouts(node).and_then(|w| w.1).map(|w| w.0);
    assert_eq!((known(&mut a, to_b.node), known(&mut b, to_a.node)), (Some(theirs), Some(ours)));
}
