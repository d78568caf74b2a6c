//! MM-2, RL-1, 004 §3: a stranger sits on the path between two hosts, hears everything, and may say anything.
//!
//! Nothing that it repeats, cuts, turns around or keeps for later is acted upon, and the session that it meddles with
//! goes on.

use phalanx_core::{Duration, Endpoint};
use phalanx_daemon::Udp;
use phalanx_papers::party::{KEY, config, pattern};
use phalanx_papers::{Lasting, OverUdp, Party, Relay, Said, Side, until_with};
use phalanx_protocol::link::count::Dropped;
use phalanx_protocol::link::mml::Kind;
use phalanx_protocol::link::seal::KeyRing;

/// How long tests wait for what must not come.
const QUIET: Duration = Duration::from_millis(60);

struct Scene {
    world: OverUdp,
    a: Party<Udp>,
    b: Party<Udp>,
    relay: Relay,
    /// How A addresses B: as the stranger's front.
    to_b: Endpoint,
}

impl Scene {
    /// Two hosts that know each other through a stranger and have exchanged something of every kind.
    fn open() -> Self {
        let world = OverUdp::default();
        let (mut a, mut b) = (Party::of(&world, 1), Party::of(&world, 2));
        let at_b = b.host.local();
        let mut relay = Relay::to(at_b);
        let to_b = a.peer(relay.front());
        a.datagram(to_b, b"a datagram").unwrap();
        a.reliable(to_b, b"a message").unwrap();
        a.reliable(to_b, &pattern(40_000, 1)).unwrap();
        for kind in [Kind::Unr, Kind::Ack, Kind::Nack] {
            a.managed(kind, to_b, b"order").unwrap();
        }
        let all = |p: &mut [&mut Party<Udp>]| p[1].said.len() == 7;
        until_with(&mut [&mut a, &mut b], "all arrive through the relay", || relay.pump(), all);
        let mut scene = Self { world, a, b, relay, to_b };
        scene.quiet();
        scene.a.said.clear();
        scene.b.said.clear();
        scene
    }

    fn until(&mut self, story: &str, so: impl FnMut(&mut [&mut Party<Udp>]) -> bool) {
        let Self { a, b, relay, .. } = self;
        until_with(&mut [a, b], story, || relay.pump(), so);
    }

    /// Lets time pass, in which nothing should happen.
    fn quiet(&mut self) {
        let end = self.a.host.now() + QUIET;
        self.until("time passes", |p| p[0].host.now() >= end);
    }

    /// The session still works, and nobody heard anything that was not said.
    fn assert_undisturbed(&mut self, what: &str) {
        self.quiet();
        assert_eq!((&self.a.said, &self.b.said), (&Vec::new(), &Vec::new()), "{what}");
        self.a.reliable(self.to_b, b"all is well").unwrap();
        self.until("the session works", |p| p[1].messages() == [b"all is well"]);
        self.b.said.clear();
    }

    fn drops(party: &mut Party<Udp>) -> u64 {
        party.host.link().counters().drops().map(|(_, n)| n).sum()
    }
}

#[test]
fn mm_2_replayed_packets_are_refused_on_both_sides() {
    let mut scene = Scene::open();
    let tape = scene.relay.tape.clone();
    for (from, packet) in &tape {
        scene.relay.say(if *from == Side::A { Side::B } else { Side::A }, packet);
    }
    let to_b = tape.iter().filter(|t| t.0 == Side::A).count() as u64;
    scene.until("all replays are seen", |p| Scene::drops(p[1]) + 2 >= to_b);
    assert!(scene.b.dropped(Dropped::Replayed) > 0 && scene.a.dropped(Dropped::Replayed) > 0);
    scene.assert_undisturbed("replayed");
}

#[test]
fn mm_2_truncated_packets_are_refused() {
    let mut scene = Scene::open();
    let packet = scene.relay.recorded(Side::A).pop().expect("something was sent");
    for length in 1..packet.len() {
        scene.relay.say(Side::B, &packet[..length]);
    }
    let cut = packet.len() as u64 - 1;
    scene.until("all pieces are seen", |p| Scene::drops(p[1]) == cut);
    assert!(scene.b.dropped(Dropped::Truncated) > 0);
    scene.assert_undisturbed("truncated");
}

#[test]
fn mm_2_reflected_packets_are_refused_as_ones_own() {
    let mut scene = Scene::open();
    let own = scene.relay.recorded(Side::A);
    own.iter().for_each(|packet| scene.relay.say(Side::A, packet));
    scene.until("all come back", |p| p[0].dropped(Dropped::Reflected) == own.len() as u64);
    scene.assert_undisturbed("reflected");
}

/// Any bit of any header: what the seal covers dies at it, and no forged field makes anybody forget a peer.
#[test]
fn mm_2_packets_with_forged_headers_are_refused() {
    let mut scene = Scene::open();
    let packets = scene.relay.recorded(Side::A);
    let mut said = 0;
    for packet in [packets.first(), packets.last()].into_iter().flatten() {
        for bit in 0..32 * 8 {
            let mut forged = packet.clone();
            forged[bit / 8] ^= 1 << (bit % 8);
            scene.relay.say(Side::B, &forged);
            said += 1;
        }
    }
    scene.until("all are seen", |p| Scene::drops(p[1]) + 20 >= said);
    scene.assert_undisturbed("forged");
}

/// What was recorded from a former start of B is nothing to its next, nor is what B said then to A.
#[test]
fn mm_2_recordings_of_a_former_start_are_refused() {
    let scene = Scene::open();
    let tape = scene.relay.tape.clone();
    let at_b = scene.b.host.local();
    let Scene { world, mut a, b, mut relay, to_b } = scene;
    drop(b);
    let mut b = Party::with(world.reopen(at_b), config::<OverUdp>(), KeyRing::new(1, KEY), 2);
    for (from, packet) in &tape {
        if *from == Side::A {
            relay.say(Side::B, packet);
        }
    }
    // Its own questions to the recordings stay unanswered: A is not asked, the stranger keeps them.
    relay.forwards = false;
    let end = b.host.now() + QUIET;
    until_with(&mut [&mut b], "time passes", || relay.pump(), |p| p[0].host.now() >= end);
    assert_eq!(b.said, [], "a recording is no proof of life");
    assert!(b.dropped(Dropped::UnknownSession) + b.dropped(Dropped::OldBoot) > 0);

    relay.forwards = true;
    a.reliable(to_b, b"are you there?").unwrap();
    let up = Said::Up(to_b.node, b.host.link().boot());
    until_with(&mut [&mut a, &mut b], "they meet anew", || relay.pump(), |p| p[0].said.contains(&up));
    let mut scene = Scene { world, a, b, relay, to_b };
    scene.quiet();
    scene.a.said.clear();
    scene.b.said.clear();
    for (from, packet) in &tape {
        scene.relay.say(if *from == Side::A { Side::B } else { Side::A }, packet);
    }
    scene.assert_undisturbed("of a former start");
}

/// A stranger that lets nothing through makes a peer silent, and no more: when it gives way, all arrives.
#[test]
fn rl_1_a_cut_and_healed_path_loses_nothing() {
    let mut scene = Scene::open();
    scene.relay.forwards = false;
    (0..20).for_each(|i| scene.a.reliable(scene.to_b, &pattern(3_000, i)).unwrap());
    scene.quiet();
    assert!(scene.b.said.is_empty());
    scene.relay.forwards = true;
    scene.until("all arrive", |p| p[1].messages_heard() == 20);
    assert!(scene.b.messages().iter().enumerate().all(|(i, m)| *m == pattern(3_000, i)));
    assert_eq!(scene.b.said.len(), 20);
    assert!(!scene.a.heard(|s| matches!(s, Said::Down(..))));
}
