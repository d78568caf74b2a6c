//! Without a key: recordings, forged addresses, flipped bits, floods.

use super::*;

#[test]
fn group_replay_window_survives_a_forged_key_id() {
    let mut world = World::new(2);
    shout(&mut world, 0, b"hi");
    world.deliver_all();
    shout(&mut world, 0, b"fire");
    let recorded = world.tape.last().unwrap().2.clone();
    world.deliver_all();
    assert_eq!(heard(&world, 1, b"fire"), 1);
    let mut forged = recorded.clone();
    forged.bytes_mut()[1] = 77;
    world.arrive(1, Addr::Local(0), &forged);
    world.arrive(1, Addr::Local(0), &recorded);
    assert_eq!(heard(&world, 1, b"fire"), 1, "a recording was acted on twice");
}

/// Poisoned attempt: recorded hello of current life.
#[test]
fn a_recorded_hello_does_not_keep_us_from_meeting_its_sender() {
    let mut world = World::new(2);
    let recorded = recording(&mut world.links[0]);
    world.arrive(1, Addr::Local(0), &recorded);
    world.wire.clear(); // even delivered, node 0 says StaleHello; see 3b
    let a = world.know(1, 0);
    world.reliable(1, a, b"hello");
    world.run_until(world.now + Duration::from_secs(8));
    assert!(
        world.said[1].starts_with(&[Said::Up(a, boot(1))]),
        "{:?} stale {}",
        world.said[1],
        world.dropped(0, Dropped::StaleHello)
    );
}

#[test]
fn a_recorded_hello_does_not_keep_us_from_meeting_its_sender_nothing_lost() {
    let mut world = World::new(2);
    let recorded = recording(&mut world.links[0]);
    world.arrive(1, Addr::Local(0), &recorded);
    let a = world.know(1, 0);
    world.reliable(1, a, b"hello");
    world.run_until(world.now + Duration::from_secs(8));
    assert!(
        world.said[1].starts_with(&[Said::Up(a, boot(1))]),
        "{:?} stale {}",
        world.said[1],
        world.dropped(0, Dropped::StaleHello)
    );
}

#[test]
fn a_recorded_hello_of_a_former_life_does_not_keep_us_from_meeting() {
    let mut world = World::new(2);
    let recorded = recording(&mut link(&ring(), 99, true));
    world.arrive(1, Addr::Local(0), &recorded);
    let a = world.know(1, 0);
    world.reliable(1, a, b"hello");
    world.run_until(world.now + Duration::from_secs(8));
    assert!(
        world.said[1].starts_with(&[Said::Up(a, boot(1))]),
        "{:?} oldboot {}",
        world.said[1],
        world.dropped(0, Dropped::OldBoot)
    );
}

/// Again_at pushed for ever.
#[test]
fn replayed_hellos_do_not_keep_a_dead_peer_undecided() {
    let mut world = World::new(1);
    let recorded = recording(&mut link(&ring(), 99, true));
    let b = world.links[0].peer(Addr::Local(7), 1400).unwrap();
    world.reliable(0, b, b"anybody?");
    for _ in 0..6000 {
        world.expire_due();
        world.wire.clear();
        world.arrive(0, Addr::Local(7), &recorded);
        world.now += Duration::from_millis(10);
    }
    assert!(world.said[0].contains(&Said::Down(b, Code::Unreachable)), "after 60 s of nothing: {:?}", world.said[0]);
}

/// Table filled by one recorded hello from forged addresses; amplification.
#[test]
fn forged_callers_do_not_fill_the_table() {
    let mut world = World::new(1);
    let recorded = recording(&mut link(&ring(), 99, true));
    let mut replays = 0;
    for i in 0..3000u32 {
        for j in 0..8 {
            world.arrive(0, Addr::Local(1000 + i * 8 + j), &recorded);
            replays += 1;
        }
        world.now += Duration::from_millis(1);
        world.expire_due();
    }
    let held = world.links[0].peers();
    let sent = world.tape.len();
    assert!(
        world.links[0].peer(Addr::Local(5), 1400).is_ok(),
        "table full: {held} peers after {replays} replays, {sent} packets sent"
    );
}

#[test]
fn one_replay_is_answered_about_once() {
    let mut world = World::new(1);
    let recorded = recording(&mut link(&ring(), 99, true));
    world.arrive(0, Addr::Local(1000), &recorded);
    world.run_until(world.now + Duration::from_secs(10));
    assert!(world.tape.len() <= 3, "{} packets of {} bytes for one", world.tape.len(), recorded.len());
}

#[test]
fn one_junk_byte_string_is_not_amplified() {
    let mut world = World::new(1);
    let mut junk = Buf::new(0, 64);
    junk.extend(&[
        0x12, 1, 0, 0, 9, 9, 9, 1, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ]);
    world.arrive(0, Addr::Local(1000), &junk);
    world.run_until(world.now + Duration::from_secs(10));
    let bytes: usize = world.tape.iter().map(|t| t.2.len()).sum();
    assert!(bytes <= 4 * junk.len(), "{bytes} bytes sent to a forged address for {}", junk.len());
}

/// Revoked key.
#[test]
fn a_removed_key_opens_nothing() {
    let (mut world, b, _) = World::acquainted();
    // The datagram is sealed with key 1 by somebody who holds it; then key 1 is removed.
    world.datagram(0, b, b"by the leaked key").unwrap();
    let (from, _, p, _) = world.wire.pop_front().unwrap();
    let mut ring = ring();
    ring.add(2, [7; 32]).unwrap();
    ring.seal_with(2).unwrap();
    ring.remove(1).unwrap();
    world.links[1].set_ring(Arc::new(ring.clone()));
    world.arrive(1, from, &p);
    assert_eq!(heard(&world, 1, b"by the leaked key"), 0);
}

#[test]
fn a_removed_key_opens_no_group_datagram() {
    let mut world = World::new(2);
    shout(&mut world, 0, b"hi");
    world.deliver_all();
    shout(&mut world, 0, b"hi");
    world.deliver_all();
    shout(&mut world, 0, b"leaked");
    let p = world.wire.pop_front().unwrap().2;
    let mut ring = ring();
    ring.add(2, [7; 32]).unwrap();
    ring.seal_with(2).unwrap();
    ring.remove(1).unwrap();
    world.links[1].set_ring(Arc::new(ring.clone()));
    world.arrive(1, Addr::Local(0), &p);
    assert_eq!(heard(&world, 1, b"leaked"), 0);
}

#[test]
fn a_key_id_used_again_for_another_key_takes_effect() {
    let (mut world, b, _) = World::acquainted();
    let other = KeyRing::new(1, [5; 32]);
    let mut between = KeyRing::new(2, [7; 32]);
    between.add(3, [1; 32]).unwrap();
    for l in &mut world.links {
        l.set_ring(Arc::new(between.clone()));
        l.set_ring(Arc::new(other.clone()));
    }
    world.datagram(0, b, b"x").unwrap();
    let p = world.wire.pop_front().unwrap().2;
    let s = world.links[0].peers.at(0).unwrap().1.session.as_ref().unwrap();
    let old = ring().data(1, &boot(1), &boot(2), s.nonces.0, s.nonces.1).unwrap();
    let short = Short::parse(p.bytes()).unwrap();
    let mut bytes = p.bytes().to_vec();
    let (h, sealed) = bytes.split_at_mut(Short::LEN);
    assert!(old.open(short.counter, h, sealed).is_none(), "still sealed with the key that was removed");
}

/// Spoofed packet decides what a path carries.
#[test]
fn a_forged_packet_does_not_shrink_a_path() {
    let mut world = World::new(2);
    let mut junk = Buf::new(0, 64);
    junk.extend(&[
        0x12, 1, 0, 0, 9, 9, 9, 1, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ]);
    world.arrive(0, Addr::Local(1), &junk);
    let b = world.know(0, 1);
    assert_eq!(world.datagram(0, b, &[1; 1000]), Ok(()));
}

/// Dropped third hello + replay = 5 s.
#[test]
fn a_replayed_hello_and_one_loss_do_not_split_a_session() {
    let mut world = World::new(2);
    let recorded = recording(&mut world.links[0]);
    let b = world.know(0, 1);
    world.reliable(0, b, b"message");
    let (mut hellos, start) = (0, world.now);
    for _ in 0..400 {
        world.expire_due();
        while let Some((from, Addr::Local(to), packet, _)) = world.wire.pop_front() {
            let third = kind_of(packet.bytes()) == Ok(Kind::Hello) && from == Addr::Local(0) && {
                hellos += 1;
                hellos == 2
            };
            if third {
                world.arrive(1, Addr::Local(0), &recorded);
            } else {
                world.arrive(to as usize, from, &packet);
            }
            world.expire_due();
        }
        world.now += Duration::from_millis(5);
        if world.said[1].iter().any(|s| matches!(s, Said::Message(..))) {
            break;
        }
    }
    let took = world.now.since(start);
    assert!(took < Duration::from_millis(500), "took {took}, {:?} {:?}", world.said[0], world.said[1]);
}

/// Group floor.
#[test]
fn a_delayed_handshake_does_not_open_the_group_window_again() {
    let mut world = World::new(2);
    let b = world.know(0, 1);
    world.reliable(0, b, b"x");
    world.run_until(world.now + Duration::from_secs(1));
    shout(&mut world, 0, b"warm");
    world.deliver_all();
    // Node 0 forgets its session and asks anew; its question is delayed on the way.
    world.links[0].forget(b).unwrap();
    let b = world.know(0, 1);
    world.reliable(0, b, b"y");
    world.expire_due();
    let (from, _, question, _) = world.wire.pop_front().unwrap();
    shout(&mut world, 0, b"fire");
    let recorded = world.wire.pop_front().unwrap().2;
    world.arrive(1, from, &recorded);
    assert_eq!(heard(&world, 1, b"fire"), 1);
    world.arrive(1, from, &question);
    world.deliver_all();
    world.arrive(1, from, &recorded);
    assert_eq!(heard(&world, 1, b"fire"), 1, "twice");
}

/// Two sessions under one number.
#[test]
fn a_late_last_hello_does_not_split_a_session_for_ever() {
    let mut world = World::new(2);
    let pop = |world: &mut World| {
        world.expire_due();
        world.wire.pop_front().expect("a packet").2
    };
    let (a_at, b_at) = (Addr::Local(0), Addr::Local(1));
    // Node 1 calls node 0 and has its answer; its last word is late.
    let a = world.know(1, 0);
    world.datagram(1, a, b"x").unwrap();
    let first = pop(&mut world);
    world.arrive(0, b_at, &first);
    let answer = pop(&mut world);
    world.arrive(1, a_at, &answer);
    let datagram = pop(&mut world);
    let last = pop(&mut world);
    let last = if kind_of(last.bytes()) == Ok(Kind::Hello) { last } else { datagram };
    world.wire.clear();
    // It forgets, calls again, and this time its last word is lost.
    world.links[1].forget(a).unwrap();
    let a = world.know(1, 0);
    world.datagram(1, a, b"x").unwrap();
    let second = pop(&mut world);
    world.arrive(0, b_at, &second);
    let answer = pop(&mut world);
    world.arrive(1, a_at, &answer);
    world.wire.clear();
    // Now the late one arrives.
    world.arrive(0, b_at, &last);
    world.said.iter_mut().for_each(Vec::clear);
    let b = world.know(0, 1);
    for _ in 0..600 {
        world.datagram(0, b, b"to b").unwrap();
        world.datagram(1, a, b"to a").unwrap();
        world.run_until(world.now + Duration::from_millis(100));
    }
    assert!(
        heard(&world, 0, b"to a") > 500 && heard(&world, 1, b"to b") > 500,
        "60 s of heartbeats: {} and {} of 600 heard, bad seals {} {}, said {:?}",
        heard(&world, 0, b"to a"),
        heard(&world, 1, b"to b"),
        world.dropped(0, Dropped::BadSeal),
        world.dropped(1, Dropped::BadSeal),
        world.said[0].len()
    );
}

#[test]
fn a_poisoned_dial_ends_some_day() {
    for every in [10u64, 1000] {
        let mut world = World::new(2);
        let recorded = recording(&mut world.links[0]);
        world.arrive(1, Addr::Local(0), &recorded);
        let a = world.know(1, 0);
        world.reliable(1, a, b"hello");
        let mut up = None;
        for ms in (0..60_000).step_by(10) {
            if ms % every == 0 {
                world.arrive(1, Addr::Local(0), &recorded);
            }
            world.deliver_all();
            if up.is_none() && world.said[1].iter().any(|s| matches!(s, Said::Up(..))) {
                up = Some(ms);
            }
            world.now += Duration::from_millis(10);
        }
        println!(
            "replay every {every} ms: up after {up:?} ms; said {:?}",
            &world.said[1][..world.said[1].len().min(3)]
        );
    }
}
