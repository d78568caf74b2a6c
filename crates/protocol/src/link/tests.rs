//! Links over a wire held in the test's hands: handshakes, what is refused and why, CL's calls.

use super::count::Dropped;
use super::status::Status;
use super::*;
use phalanx_core::Group;
use phalanx_fault::{Call, Delay, Distribution, Kind as Fault, Probability, Recurrence, Rule};
use phalanx_wire::outer::{Kind, kind_of};

/// What a link said, owned.
#[derive(Debug, PartialEq, Eq, Clone)]
pub(super) enum Said {
    Datagram(NodeId, Vec<u8>),
    Message(NodeId, Vec<u8>),
    Managed(NodeId, mml::Kind, Vec<u8>),
    Up(NodeId, Boot),
    Down(NodeId, Code),
    Other(String),
}

/// Some links on one network. Packets wait on `wire` until the test moves them.
pub(super) struct World {
    pub(super) now: Instant,
    pub(super) links: Vec<Link>,
    pub(super) wire: VecDeque<(Addr, Addr, Buf, usize)>,
    pub(super) said: Vec<Vec<Said>>,
    /// Every packet that ever left, for replays.
    pub(super) tape: Vec<(Addr, Addr, Buf)>,
}

/// Sorts what a link says: packets to the wire, the rest to the record.
pub(super) struct Ear<'w> {
    from: usize,
    wire: &'w mut VecDeque<(Addr, Addr, Buf, usize)>,
    tape: &'w mut Vec<(Addr, Addr, Buf)>,
    said: &'w mut Vec<Said>,
}

impl<'a> Sink<Output<'a>> for Ear<'_> {
    fn push(&mut self, output: Output<'a>) {
        self.said.push(match output {
            Output::Transmit { to, packet, .. } => {
                let from = Addr::Local(self.from as u32);
                self.tape.push((from, to, packet.clone()));
                self.wire.push_back((from, to, packet, self.from));
                return;
            }
            Output::Datagram { from, payload, .. } => Said::Datagram(from.node, payload.to_vec()),
            Output::Message { from, payload: Payload::Bytes(b), .. } => Said::Message(from.node, b.to_vec()),
            Output::Managed { from, kind, payload, .. } => Said::Managed(from.node, kind, payload.to_vec()),
            Output::Up { node, boot, .. } => Said::Up(node, boot),
            Output::Down { node, code, .. } => Said::Down(node, code),
            other => Said::Other(format!("{other:?}")),
        });
    }
}

pub(super) fn boot(n: u8) -> Boot {
    Boot([n; 16])
}

pub(super) fn link(ring: &KeyRing, n: u8, groups: bool) -> Link {
    let config = Arc::new(Config { groups, ..Config::default() });
    Link::new(config, Arc::new(ring.clone()), Signer::fake(u64::from(n)), boot(n), u64::from(n))
}

impl World {
    pub(super) fn with_rings(rings: &[KeyRing]) -> Self {
        super::seal::USED.with_borrow_mut(std::collections::BTreeSet::clear);
        Self {
            now: Instant(1_000_000),
            links: rings.iter().enumerate().map(|(i, r)| link(r, i as u8 + 1, true)).collect(),
            wire: VecDeque::new(),
            said: vec![Vec::new(); rings.len()],
            tape: Vec::new(),
        }
    }

    pub(super) fn new(n: usize) -> Self {
        Self::with_rings(&vec![KeyRing::new(1, [9; 32]); n])
    }

    pub(super) fn call<R>(&mut self, at: usize, f: impl FnOnce(&mut Link, Instant, &mut Ear<'_>) -> R) -> R {
        let mut ear = Ear { from: at, wire: &mut self.wire, tape: &mut self.tape, said: &mut self.said[at] };
        f(&mut self.links[at], self.now, &mut ear)
    }

    pub(super) fn know(&mut self, at: usize, other: usize) -> NodeId {
        self.links[at].peer(Addr::Local(other as u32), 1400).unwrap()
    }

    pub(super) fn arrive(&mut self, at: usize, from: Addr, packet: &Buf) {
        let mut packet = packet.clone();
        self.call(at, |link, now, out| {
            let (bytes, attached) = packet.parts_mut();
            link.handle(now, Input::Arrived { from, bytes, attached }, out);
        });
    }

    pub(super) fn expire_due(&mut self) {
        for at in 0..self.links.len() {
            for _ in 0..100 {
                if self.links[at].deadline() > self.now {
                    break;
                }
                self.call(at, |link, now, out| link.expire(now, out));
            }
        }
    }

    /// Moves packets until the wire is empty; time stands still.
    pub(super) fn deliver_all(&mut self) {
        for _ in 0..10_000 {
            self.expire_due();
            let Some((from, to, packet, sender)) = self.wire.pop_front() else { return };
            match to {
                Addr::Local(n) if n as usize >= self.links.len() => {}
                Addr::Local(n) => self.arrive(n as usize, from, &packet),
                _ => (0..self.links.len()).filter(|&i| i != sender).for_each(|i| self.arrive(i, from, &packet)),
            }
        }
        panic!("the wire never falls silent");
    }

    /// Lets time pass to the next deadline, as long as there is one before `until`.
    pub(super) fn run_until(&mut self, until: Instant) {
        loop {
            self.deliver_all();
            let next = self.links.iter().map(Machine::deadline).min().unwrap();
            if next > until {
                self.now = until;
                return;
            }
            self.now = self.now.max(next);
        }
    }

    pub(super) fn dropped(&self, at: usize, why: Dropped) -> u64 {
        self.links[at].counters().dropped(why)
    }

    /// Two links that have exchanged a reliable message each way.
    pub(super) fn acquainted() -> (Self, NodeId, NodeId) {
        let mut world = Self::new(2);
        let (b, a) = (world.know(0, 1), world.know(1, 0));
        world.reliable(0, b, b"hello b");
        world.reliable(1, a, b"hello a");
        world.run_until(world.now + Duration::from_secs(1));
        assert!(world.said[1].contains(&Said::Message(a, b"hello b".to_vec())));
        world.said.iter_mut().for_each(Vec::clear);
        (world, b, a)
    }

    pub(super) fn reliable(&mut self, at: usize, to: NodeId, message: &[u8]) {
        let to = Endpoint { node: to, port: Port(5) };
        self.links[at].send_reliable(self.now, Port(4), to, message).unwrap();
    }

    pub(super) fn datagram(&mut self, at: usize, to: NodeId, payload: &[u8]) -> Result<(), Code> {
        let to = Endpoint { node: to, port: Port(5) };
        self.call(at, |link, now, out| link.send(now, Port(4), to, payload, out))
    }
}

#[test]
fn three_hellos_then_everything_that_waited_arrives() {
    let mut world = World::new(2);
    let b = world.know(0, 1);
    world.datagram(0, b, b"datagram").unwrap();
    world.reliable(0, b, b"message");
    world.deliver_all();
    let a = NodeId::new(0, 0);
    assert_eq!(world.said[0], [Said::Up(b, boot(2))]);
    assert_eq!(
        world.said[1],
        [Said::Up(a, boot(1)), Said::Datagram(a, b"datagram".to_vec()), Said::Message(a, b"message".to_vec())]
    );
    let hellos = world.tape.iter().filter(|(_, _, p)| kind_of(p.bytes()) == Ok(Kind::Hello)).count();
    assert_eq!(hellos, 3);
}

#[test]
fn both_may_begin_at_once() {
    let mut world = World::new(2);
    let (b, a) = (world.know(0, 1), world.know(1, 0));
    world.reliable(0, b, b"from a");
    world.reliable(1, a, b"from b");
    world.deliver_all();
    assert!(world.said[0].contains(&Said::Message(b, b"from b".to_vec())));
    assert!(world.said[1].contains(&Said::Message(a, b"from a".to_vec())));
    assert_eq!((world.links[0].counters().sessions, world.links[1].counters().sessions), (1, 1));
}

/// Each of the three hellos may be lost; data stands in for the last one.
#[test]
fn a_handshake_survives_any_lost_packet() {
    for lost in 0..8 {
        let mut world = World::new(2);
        let b = world.know(0, 1);
        world.reliable(0, b, b"message");
        let mut count = 0;
        for _ in 0..200 {
            world.expire_due();
            while let Some((from, Addr::Local(to), packet, _)) = world.wire.pop_front() {
                if count != lost {
                    world.arrive(to as usize, from, &packet);
                }
                count += 1;
                world.expire_due();
            }
            world.now += Duration::from_millis(5);
        }
        assert!(world.said[1].contains(&Said::Message(NodeId::new(0, 0), b"message".to_vec())), "packet {lost} lost");
        assert!(!world.said.concat().iter().any(|s| matches!(s, Said::Down(..))), "packet {lost} lost");
    }
}

/// A driver reads its clock once a turn and may sleep between: a message taken long ago has all its patience still.
#[test]
fn patience_begins_when_a_packet_leaves() {
    let mut world = World::new(2);
    let b = world.know(0, 1);
    world.reliable(0, b, b"taken before a long sleep");
    world.now += Duration::from_secs(60);
    world.run_until(world.now + Duration::from_secs(1));
    assert_eq!(world.said[0], [Said::Up(b, boot(2))]);
    world.reliable(0, b, b"and another");
    world.now += Duration::from_secs(60);
    // Three times nothing comes through, which is a matter of milliseconds.
    for _ in 0..3 {
        world.expire_due();
        world.wire.clear();
        world.now = world.links[0].deadline();
    }
    world.run_until(world.now + Duration::from_secs(1));
    assert_eq!(world.said[0], [Said::Up(b, boot(2))]);
    assert!(matches!(&world.said[1][..], [.., Said::Message(_, m)] if m == b"and another"));
}

#[test]
fn a_wrong_key_stays_outside() {
    let mut world = World::with_rings(&[KeyRing::new(1, [9; 32]), KeyRing::new(1, [8; 32]), KeyRing::new(2, [9; 32])]);
    for other in [1, 2] {
        let node = world.know(other, 0);
        world.reliable(other, node, b"let me in");
    }
    world.run_until(world.now + Duration::from_secs(8));
    assert!(world.said[0].is_empty());
    assert!(world.dropped(0, Dropped::BadSeal) > 0 && world.dropped(0, Dropped::UnknownKey) > 0);
    assert_eq!(world.said[1], [Said::Down(NodeId::new(0, 0), Code::Unreachable)]);
}

#[test]
fn every_recorded_packet_is_refused_by_a_receiver_that_runs_and_by_one_that_starts_anew() {
    let (mut world, ..) = World::acquainted();
    let tape = world.tape.clone();
    for restart in [false, true] {
        if restart {
            world.links[1] = link(&KeyRing::new(1, [9; 32]), 7, true);
        }
        for (from, to, packet) in &tape {
            if *to == Addr::Local(1) {
                world.arrive(1, *from, packet);
            }
        }
        let heard: Vec<_> = world.said[1].iter().filter(|s| matches!(s, Said::Message(..) | Said::Up(..))).collect();
        assert!(heard.is_empty(), "restart {restart}: {heard:?}");
        // Its answers to the recordings must not shake the sender's own session either.
        world.run_until(world.now + Duration::from_secs(10));
        assert!(restart || world.said[0].is_empty());
        world.said.iter_mut().for_each(Vec::clear);
    }
    assert!(world.dropped(1, Dropped::UnknownSession) + world.dropped(1, Dropped::OldBoot) > 0);
}

#[test]
fn reflected_truncated_and_flipped_packets_are_counted_by_reason() {
    let (mut world, b, _) = World::acquainted();
    let tape = world.tape.clone();
    for (_, to, packet) in tape.iter().filter(|(from, ..)| *from == Addr::Local(0)) {
        world.arrive(0, *to, packet);
    }
    let sent = tape.iter().filter(|(from, ..)| *from == Addr::Local(0)).count() as u64;
    assert_eq!(world.dropped(0, Dropped::Reflected), sent);

    world.datagram(0, b, b"precious").unwrap();
    let (from, _, packet, _) = world.wire.pop_front().unwrap();
    for length in 0..packet.len() {
        let mut cut = packet.clone();
        cut.truncate(length);
        world.arrive(1, from, &cut);
    }
    for bit in 0..packet.len() * 8 {
        let mut flipped = packet.clone();
        flipped.bytes_mut()[bit / 8] ^= 1 << (bit % 8);
        world.arrive(1, from, &flipped);
    }
    assert!(world.said[1].iter().all(|s| !matches!(s, Said::Datagram(..))), "{:?}", world.said[1]);
    assert!(world.dropped(1, Dropped::BadSeal) > 100 && world.dropped(1, Dropped::Truncated) > 30);
    world.arrive(1, from, &packet);
    assert!(matches!(&world.said[1][..], [.., Said::Datagram(_, p)] if p == b"precious"), "the real one still arrives");
    let before = world.dropped(1, Dropped::Replayed);
    world.arrive(1, from, &packet);
    assert_eq!(world.dropped(1, Dropped::Replayed), before + 1, "once");
}

/// FI-3, RL-1: what anybody on the path can forge does not end a session that works.
#[test]
fn damaged_headers_do_not_replace_a_session_that_works() {
    let (mut world, b, a) = World::acquainted();
    for bit in 0..Short::LEN * 8 {
        world.reliable(0, b, b"unacknowledged");
        world.expire_due();
        let (from, _, packet, _) = world.wire.pop_front().unwrap();
        let mut flipped = packet.clone();
        flipped.bytes_mut()[bit / 8] ^= 1 << (bit % 8);
        world.arrive(1, from, &flipped);
        world.arrive(1, from, &packet);
        world.deliver_all();
        // After a long silence too.
        world.run_until(world.now + Duration::from_secs(7));
    }
    assert_eq!(world.said[0], []);
    assert_eq!(world.said[1], vec![Said::Message(a, b"unacknowledged".to_vec()); Short::LEN * 8]);
}

#[test]
fn a_restarted_peer_is_met_anew_and_its_old_packets_are_refused() {
    let (mut world, b, a) = World::acquainted();
    let tape = world.tape.clone();
    world.links[1] = link(&KeyRing::new(1, [9; 32]), 7, true);
    world.reliable(0, b, b"are you there?");
    world.run_until(world.now + Duration::from_secs(2));
    assert_eq!(world.said[0], [Said::Down(b, Code::NotInitialized), Said::Up(b, boot(7))]);
    world.reliable(0, b, b"again");
    world.run_until(world.now + Duration::from_secs(1));
    assert!(world.said[1].contains(&Said::Message(a, b"again".to_vec())));
    world.said[0].clear();
    for (from, to, packet) in tape.iter().filter(|(from, ..)| *from == Addr::Local(1)) {
        assert_eq!(*to, Addr::Local(0));
        world.arrive(0, *from, packet);
    }
    world.run_until(world.now + Duration::from_secs(10));
    assert_eq!(world.said[0], []);
}

/// A recording that reaches a peer right after its start does not keep it from being met.
#[test]
fn a_recorded_hello_does_not_delay_a_restarted_peer() {
    let (mut world, b, a) = World::acquainted();
    let recorded = world.tape.iter().find(|(from, ..)| *from == Addr::Local(0)).unwrap().2.clone();
    world.links[1] = link(&KeyRing::new(1, [9; 32]), 7, true);
    world.arrive(1, Addr::Local(0), &recorded);
    world.wire.clear();
    world.reliable(0, b, b"are you there?");
    world.run_until(world.now + Duration::from_millis(500));
    assert_eq!(world.said[0], [Said::Down(b, Code::NotInitialized), Said::Up(b, boot(7))]);
    assert_eq!(world.said[1], [Said::Up(a, boot(1))]);
}

#[test]
fn keys_rotate_under_a_running_session() {
    let (mut world, b, a) = World::acquainted();
    let mut ring = KeyRing::new(1, [9; 32]);
    ring.add(2, [7; 32]).unwrap();
    world.links.iter_mut().for_each(|l| l.set_ring(Arc::new(ring.clone())));
    ring.seal_with(2).unwrap();
    world.links[0].set_ring(Arc::new(ring.clone()));
    world.reliable(0, b, b"new key");
    world.reliable(1, a, b"old key");
    world.deliver_all();
    ring.remove(1).unwrap();
    world.links.iter_mut().for_each(|l| l.set_ring(Arc::new(ring.clone())));
    world.reliable(1, a, b"new key too");
    world.run_until(world.now + Duration::from_secs(1));
    let expected = [Said::Message(b, b"old key".to_vec()), Said::Message(b, b"new key too".to_vec())];
    assert_eq!(world.said[0], expected);
    assert_eq!(world.said[1], [Said::Message(a, b"new key".to_vec())]);
}

/// A peer that was down while keys were rotated is answered with the key that it has, and follows once it is told.
#[test]
fn who_was_away_during_a_rotation_comes_back() {
    let mut world = World::new(2);
    let mut ring = KeyRing::new(1, [9; 32]);
    ring.add(2, [7; 32]).unwrap();
    ring.seal_with(2).unwrap();
    world.links[0].set_ring(Arc::new(ring.clone()));
    let (b, a) = (world.know(0, 1), world.know(1, 0));
    world.reliable(1, a, b"I know the old key");
    world.run_until(world.now + Duration::from_secs(1));
    world.reliable(0, b, b"so I use it");
    world.run_until(world.now + Duration::from_secs(1));
    assert!(world.said[0].contains(&Said::Message(b, b"I know the old key".to_vec())));
    assert!(world.said[1].contains(&Said::Message(a, b"so I use it".to_vec())));
    world.links[1].set_ring(Arc::new(ring.clone()));
    world.reliable(1, a, b"now I have the new one");
    world.run_until(world.now + Duration::from_secs(1));
    ring.remove(1).unwrap();
    world.links.iter_mut().for_each(|l| l.set_ring(Arc::new(ring.clone())));
    world.reliable(0, b, b"the old one is gone");
    world.run_until(world.now + Duration::from_secs(1));
    assert_eq!(world.said[1].last(), Some(&Said::Message(a, b"the old one is gone".to_vec())));
    assert!(world.said.iter().flatten().all(|s| !matches!(s, Said::Down(..))), "one session throughout");
}

/// Two halves of a partition changed their keys, each for itself: they meet under the key that both still have.
#[test]
fn who_seals_with_different_keys_meets_under_a_third() {
    let ring = |key: u8| {
        let mut ring = KeyRing::new(2, [key; 32]);
        ring.add(1, [9; 32]).unwrap();
        ring
    };
    let mut world = World::with_rings(&[ring(5), ring(6)]);
    let (b, a) = (world.know(0, 1), world.know(1, 0));
    world.reliable(0, b, b"from one half");
    world.reliable(1, a, b"from the other");
    world.run_until(world.now + Duration::from_secs(1));
    assert!(world.said[0].contains(&Said::Message(b, b"from the other".to_vec())));
    assert!(world.said[1].contains(&Said::Message(a, b"from one half".to_vec())));
    // One of them takes the other's keys.
    world.links[1].set_ring(Arc::new(ring(5)));
    world.reliable(0, b, b"ours");
    world.run_until(world.now + Duration::from_secs(1));
    assert_eq!(world.said[1].last(), Some(&Said::Message(a, b"ours".to_vec())));
}

/// An unknown group member is challenged once, and then heard.
#[test]
fn a_group_is_heard_once_its_sender_has_proved_itself() {
    let mut world = World::new(4);
    let group = Group { number: 3, ttl: 1 };
    let shout = |world: &mut World, text: &[u8]| {
        world.call(0, |link, _, out| link.send_group(Port(1), group, Port(2), text, out)).unwrap();
    };
    shout(&mut world, b"first");
    let recorded = world.tape[0].2.clone();
    world.deliver_all();
    let heard = |world: &World, text: &[u8]| {
        let is = |s: &&Said| matches!(s, Said::Datagram(_, p) if p == text);
        world.said.iter().filter(|s| s.iter().any(|s| is(&s))).count()
    };
    assert_eq!(heard(&world, b"first"), 0);
    assert_eq!(world.dropped(1, Dropped::Unverified), 1);
    shout(&mut world, b"second");
    world.deliver_all();
    assert_eq!(heard(&world, b"second"), 3);
    world.arrive(1, Addr::Local(0), &recorded);
    assert_eq!(heard(&world, b"first"), 0, "older than the handshake");
    assert_eq!(world.dropped(1, Dropped::Replayed), 1);
    assert_eq!(
        link(&KeyRing::fake(1, 1), 1, false).send_group(Port(1), group, Port(2), b"x", &mut Null),
        Err(Code::InvalidEndpoint)
    );
}

struct Null;

impl<'a> Sink<Output<'a>> for Null {
    fn push(&mut self, _: Output<'a>) {}
}

/// CL-2 and CL-3: misuse is refused with its code and changes nothing; a ticket ends as the platform says.
#[test]
fn calls_answer_with_the_codes_of_table_1() {
    let (mut world, b, _) = World::acquainted();
    let nobody = NodeId::new(99, 0);
    let before = world.links[0].clone();
    assert_eq!(world.datagram(0, nobody, b"x"), Err(Code::InvalidEndpoint));
    assert_eq!(world.datagram(0, b, b""), Err(Code::InvalidArgs));
    assert_eq!(world.datagram(0, b, &[0; 1400]), Err(Code::InvalidArgs));
    let to = Endpoint { node: b, port: Port(1) };
    let foreign = Buf::copy_of(b"not from the pool of this layer");
    assert_eq!(world.call(0, |l, now, out| l.send_buffer(now, Port(1), to, foreign, out)), Err(Code::InvalidBuffer));
    assert_eq!(world.links[0].peer(Addr::Group(Group { number: 1, ttl: 1 }), 1400), Err(Code::InvalidEndpoint));
    assert_eq!(world.links[0].send_reliable(world.now, Port(1), to, &vec![0; 17 << 20]), Err(Code::InvalidArgs));
    assert!(world.links[0].buffer(world.now, 100_000).is_err());
    assert!(before == world.links[0], "refused calls change nothing");

    let now = world.now;
    let mut buffer = world.links[0].buffer(now, 100).unwrap();
    buffer.extend(b"in place");
    let place = buffer.bytes().as_ptr();
    let ticket = world.call(0, |l, now, out| l.send_buffer(now, Port(1), to, buffer, out)).unwrap();
    let sent = &world.wire.back().unwrap().2;
    assert_eq!(sent.bytes()[Short::LEN + Ports::LEN..].as_ptr(), place, "sealed where it was written");
    assert_eq!(world.links[0].status(ticket), Some(Status::Pending));
    world.call(0, |l, now, out| l.handle(now, Input::Completed { ticket, result: Err(Code::Unreachable) }, out));
    assert_eq!(world.links[0].status(ticket), Some(Status::Failed(Code::Unreachable)));
}

#[test]
fn a_flood_of_hellos_costs_a_bounded_amount_of_work() {
    let mut world = World::new(1);
    let ring = KeyRing::new(1, [9; 32]);
    let (mut stranger, mut out) = (link(&ring, 50, false), Vec::<Buf>::new());
    struct Packets<'v>(&'v mut Vec<Buf>);
    impl<'a> Sink<Output<'a>> for Packets<'_> {
        fn push(&mut self, output: Output<'a>) {
            if let Output::Transmit { packet, .. } = output {
                self.0.push(packet);
            }
        }
    }
    stranger.peer(Addr::Local(0), 1400).unwrap();
    stranger.dial(Instant(1), 0);
    stranger.expire(Instant(1), &mut Packets(&mut out));
    for i in 0..20_000u32 {
        world.arrive(0, Addr::Local(1000 + i), &out[0]);
    }
    assert!(world.dropped(0, Dropped::Overload) > 10_000);
    world.wire.clear();
    world.run_until(world.now + Duration::from_secs(20));
    assert_eq!(world.links[0].peers.len(), 0, "callers that prove nothing are forgotten");
}

/// FI-3 `plain`: above the seal a modified packet reaches the layers' own checks, and they hold.
#[test]
fn faults_above_the_seal_are_survived_by_reliable_messages() {
    let kinds = [
        Fault::Drop,
        Fault::Delay(Delay::Lasting(Distribution::Fixed(Duration::from_millis(3)))),
        Fault::Delay(Delay::UntilNext),
        Fault::Modify { bits: 1 },
        Fault::Reorder,
        Fault::Inject { bits: 0 },
        Fault::Inject { bits: 3 },
        Fault::Invocation { call: Call::Receive, code: None },
        Fault::Invocation { call: Call::Send, code: None },
        Fault::Operation { code: None, deliver: None, after: Fault::OPERATION_FAILS_AFTER },
    ];
    for kind in kinds {
        let (mut world, b, a) = World::acquainted();
        let rule = Rule::new(kind.clone()).recurring(Recurrence::Chance(Probability::new(0.2).unwrap()));
        world.links.iter_mut().for_each(|l| {
            l.tap().set_targets(&[NodeId::new(0, 0)]);
            l.tap().add(Instant(1), rule.clone()).unwrap();
        });
        let expected: Vec<_> = (0..200u32).map(|i| Said::Message(a, i.to_le_bytes().to_vec())).collect();
        for i in 0..200u32 {
            world.reliable(0, b, &i.to_le_bytes());
            world.deliver_all();
        }
        world.run_until(world.now + Duration::from_secs(4));
        assert_eq!(world.said[1], expected, "{kind:?}");
        assert!(
            world.links[0].tap().counters().injected() + world.links[1].tap().counters().injected() > 10,
            "{kind:?}"
        );
    }
}

#[test]
fn an_idle_link_is_silent_and_its_fingerprint_does_not_age() {
    let (mut world, ..) = World::acquainted();
    world.run_until(world.now + Duration::from_secs(30));
    assert_eq!(world.links[0].deadline(), Instant::NEVER);
    let print = Fingerprint::of(&world.links[0], world.now);
    let copy = world.links[0].clone();
    assert!(copy == world.links[0]);
    assert_eq!(print, Fingerprint::of(&copy, world.now));
}

/// A message for a peer that has granted no credit for long is asked about, not forgotten.
#[test]
fn a_message_that_finds_no_credit_asks_for_some() {
    let (mut world, b, a) = World::acquainted();
    world.links[1].hold(world.now, a).unwrap();
    let mut sent = 0u32;
    while world.links[0].send_reliable(world.now, Port(4), Endpoint { node: b, port: Port(5) }, &[7; 1000]).is_ok() {
        sent += 1;
        world.deliver_all();
    }
    world.run_until(world.now + Duration::from_secs(2));
    world.call(1, |link, now, out| link.release(now, a, out)).unwrap();
    // The news of the new credit is lost.
    world.expire_due();
    world.wire.clear();
    world.run_until(world.now + Duration::from_secs(3));
    assert_eq!(world.said[1].iter().filter(|s| matches!(s, Said::Message(..))).count() as u32, sent);
}

/// A host that is busy reads packets late: of a session that is over, when its peer has come back to the same slot.
#[test]
fn a_packet_of_a_forgotten_session_is_not_taken_for_a_damaged_one_of_the_next() {
    let (mut world, _, a) = World::acquainted();
    let late =
        world.tape.iter().rev().find(|(from, _, p)| *from == Addr::Local(0) && kind_of(p.bytes()) == Ok(Kind::Data));
    let late = late.unwrap().2.clone();
    world.links[1].forget(a).unwrap();
    let again = world.know(1, 0);
    world.reliable(1, again, b"anew");
    world.run_until(world.now + Duration::from_secs(1));
    assert_eq!(again.slot(), a.slot());
    let before = world.dropped(1, Dropped::UnknownSession);
    world.arrive(1, Addr::Local(0), &late);
    assert_eq!((world.dropped(1, Dropped::UnknownSession), world.dropped(1, Dropped::BadSeal)), (before + 1, 0));
}
