//! Nobody means harm, and it goes wrong all the same.

use super::*;

/// Infinite loop.
#[test]
fn a_queued_peer_whose_ack_is_due_does_not_spin() {
    let n = 14;
    let mut world = World::new(n);
    let ids: Vec<_> = (1..n).map(|i| world.know(0, i)).collect();
    for &id in &ids {
        world.reliable(0, id, b"x");
    }
    for i in 1..n {
        let a = world.know(i, 0);
        world.reliable(i, a, b"y");
    }
    world.run_until(world.now + Duration::from_secs(1));
    // The last peer sends one message: its acknowledgement may wait.
    let a = world.know(n - 1, 0);
    world.reliable(n - 1, a, b"one");
    world.call(n - 1, |l, now, out| l.expire(now, out));
    let (from, _, p, _) = world.wire.pop_front().unwrap();
    world.arrive(0, from, &p);
    // Others have a lot to send, then there is something for it too.
    for _ in 0..60 {
        for &id in &ids[..n - 2] {
            world.reliable(0, id, &[7; 1300]);
        }
    }
    world.reliable(0, ids[n - 2], b"answer");
    world.now += Duration::from_millis(2);
    let (tx, rx) = std::sync::mpsc::channel();
    let mut l = world.links.remove(0);
    let now = world.now;
    std::thread::spawn(move || {
        struct N;
        impl<'a> Sink<Output<'a>> for N {
            fn push(&mut self, _: Output<'a>) {}
        }
        l.expire(now, &mut N);
        let _ = tx.send(());
    });
    assert!(rx.recv_timeout(std::time::Duration::from_secs(3)).is_ok(), "expire never returns");
}

/// By_boot.
#[test]
fn a_group_member_that_changed_its_address_is_still_heard() {
    let mut world = World::new(2);
    let b = world.know(0, 1);
    world.reliable(0, b, b"x");
    world.run_until(world.now + Duration::from_secs(1));
    shout(&mut world, 1, b"one");
    world.deliver_all();
    assert_eq!(heard(&world, 0, b"one"), 1);
    // Node 1 moves to address 9: it gives node 0 up and calls anew.
    let a = NodeId::new(0, 0);
    world.links[1].forget(a).unwrap();
    let a = world.know(1, 0);
    world.reliable(1, a, b"I moved");
    for _ in 0..50 {
        world.expire_due();
        while let Some((from, to, p, s)) = world.wire.pop_front() {
            match (s, to) {
                (1, _) => world.arrive(0, Addr::Local(9), &p),
                (_, Addr::Local(9)) => world.arrive(1, from, &p),
                _ => {}
            }
            world.expire_due();
        }
        world.now += Duration::from_millis(5);
    }
    // Somebody above forgets the old address.
    world.links[0].forget(b).unwrap();
    world.said[0].clear();
    for _ in 0..20 {
        shout(&mut world, 1, b"two");
        for _ in 0..10 {
            world.expire_due();
            while let Some((from, to, p, s)) = world.wire.pop_front() {
                match (s, to) {
                    (1, _) => world.arrive(0, Addr::Local(9), &p),
                    (_, Addr::Local(9)) => world.arrive(1, from, &p),
                    _ => {}
                }
                world.expire_due();
            }
            world.now += Duration::from_millis(100);
        }
    }
    assert!(heard(&world, 0, b"two") > 0, "unverified {}: {:?}", world.dropped(0, Dropped::Unverified), world.said[0]);
}

/// Closed never told when release reads the fin.
#[test]
fn closed_is_told_when_the_end_was_held() {
    let (mut world, b, a) = World::acquainted();
    world.links[1].hold(world.now, a).unwrap();
    world.reliable(0, b, b"last words");
    world.links[0].close(world.now, b).unwrap();
    world.links[1].close(world.now, a).unwrap();
    world.run_until(world.now + Duration::from_secs(1));
    world.call(1, |l, now, out| l.release(now, a, out)).unwrap();
    world.run_until(world.now + Duration::from_secs(10));
    assert!(world.said[1].iter().any(|s| matches!(s, Said::Other(o) if o.contains("Closed"))), "{:?}", world.said[1]);
}

/// Hold longer than patience.
#[test]
fn a_held_peer_that_answers_every_ping_is_not_dead() {
    let (mut world, b, a) = World::acquainted();
    world.links[1].hold(world.now, a).unwrap();
    while world.links[0].send_reliable(world.now, Port(4), Endpoint { node: b, port: Port(5) }, &[7; 1000]).is_ok() {
        world.deliver_all();
    }
    world.run_until(world.now + Duration::from_secs(20));
    assert_eq!(world.said[0], []);
}

/// MML starved by bulk.
#[test]
fn orders_are_not_starved_by_bulk() {
    let (mut world, b, a) = World::acquainted();
    let to = Endpoint { node: b, port: Port(5) };
    let feed = |world: &mut World| {
        while world.links[0].send_reliable(world.now, Port(4), to, &[7; 1300]).is_ok() {}
    };
    for _ in 0..40 {
        feed(&mut world);
        world.deliver_all();
        world.now += Duration::from_micros(100);
    }
    feed(&mut world);
    world.said[1].clear();
    world.links[0].send_managed(world.now, mml::Kind::Ack, Port(4), to, b"order").unwrap();
    let mut turns = None;
    for turn in 0..200 {
        feed(&mut world);
        world.call(0, |l, now, out| l.expire(now, out));
        while let Some((from, to, p, _)) = world.wire.pop_front() {
            let Addr::Local(n) = to else { unreachable!() };
            world.arrive(n as usize, from, &p);
            if n == 1 {
                world.call(1, |l, now, out| l.expire(now, out));
            }
        }
        world.now += Duration::from_micros(100);
        if world.said[1].iter().any(|s| matches!(s, Said::Managed(..))) {
            turns = Some(turn);
            break;
        }
    }
    let bulk = world.said[1].iter().filter(|s| matches!(s, Said::Message(..))).count();
    let _ = a;
    assert!(turns.is_some_and(|t| t < 10), "order after {turns:?} turns and {bulk} bulk messages");
}

/// Epoch wrap.
#[test]
fn an_epoch_is_not_reused_while_its_session_lives() {
    let (mut world, ..) = World::acquainted();
    let mut junk = Buf::new(0, 64);
    junk.extend(&[
        0x12, 1, 0, 0, 9, 9, 9, 1, 1, 2, 3, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ]);
    for _ in 0..600 {
        world.arrive(1, Addr::Local(0), &junk);
        if let Some((_, p)) = world.links[1].peers.at(0)
            && let (Some(s), Some(t)) = (&p.session, &p.attempt)
        {
            assert_ne!(s.epoch, t.epoch);
        }
        world.deliver_all();
        world.now += Duration::from_millis(20);
    }
}

#[test]
fn a_dead_peer_is_given_up_once() {
    let mut world = World::new(1);
    let b = world.links[0].peer(Addr::Local(7), 1400).unwrap();
    world.reliable(0, b, b"anybody?");
    world.run_until(world.now + Duration::from_secs(120));
    assert_eq!(world.said[0], [Said::Down(b, Code::Unreachable)], "{} hellos", world.tape.len());
}

#[test]
fn a_caller_that_is_gone_gives_its_place_back() {
    let mut world = World::new(2);
    let b = world.know(0, 1);
    world.reliable(0, b, b"x");
    world.run_until(world.now + Duration::from_secs(1));
    let Said::Up(a, _) = world.said[1][0].clone() else { panic!() };
    world.reliable(1, a, b"first");
    for _ in 0..6000 {
        if world.links[1].deadline() <= world.now {
            world.call(1, |l, now, out| l.expire(now, out));
        }
        world.wire.clear();
        world.now += Duration::from_millis(10);
    }
    assert!(world.said[1].contains(&Said::Down(a, Code::Unreachable)));
    assert_eq!(world.links[1].peers(), 0, "{:?}", world.said[1]);
}

/// One pause, then one loss.
#[test]
fn a_pause_does_not_make_later_losses_slow() {
    let (mut world, b, _a) = World::acquainted();
    for _ in 0..50 {
        world.reliable(0, b, b"steady");
        world.run_until(world.now + Duration::from_millis(10));
    }
    // The peer sleeps 4 s: everything sent to it waits in its socket.
    world.reliable(0, b, b"before the pause");
    let until = world.now + Duration::from_secs(4);
    let mut socket = Vec::new();
    while world.now < until {
        if world.links[0].deadline() <= world.now {
            world.call(0, |l, now, out| l.expire(now, out));
        }
        socket.extend(world.wire.drain(..));
        world.now += Duration::from_millis(1);
    }
    for (from, _, p, _) in socket {
        world.arrive(1, from, &p);
    }
    world.run_until(world.now + Duration::from_millis(100));
    world.said[1].clear();
    // All is well again. One packet is lost.
    let start = world.now;
    world.reliable(0, b, b"after");
    world.expire_due();
    world.wire.clear();
    while world.said[1].is_empty() && world.now.since(start) < Duration::from_secs(30) {
        world.run_until(world.now + Duration::from_millis(10));
    }
    let took = world.now.since(start);
    assert!(
        took < Duration::from_millis(500),
        "repeated after {took}; round trip {:?}; {:?}",
        world.links[0].round_trip(b),
        world.said[0]
    );
}

/// As 26, but the pause falls on a packet that was never repeated (samples count).
#[test]
fn a_delayed_ack_does_not_make_later_losses_slow() {
    let (mut world, b, _) = World::acquainted();
    for _ in 0..50 {
        world.reliable(0, b, b"steady");
        world.run_until(world.now + Duration::from_millis(10));
    }
    world.reliable(0, b, b"x");
    world.expire_due();
    // Our own process sleeps 4 s; the acknowledgement waits in our socket.
    let (from, _, p, _) = world.wire.pop_front().unwrap();
    world.arrive(1, from, &p);
    world.now += Duration::from_millis(2);
    world.call(1, |l, now, out| l.expire(now, out));
    let (from, _, ack, _) = world.wire.pop_front().unwrap();
    world.now += Duration::from_secs(4);
    world.arrive(0, from, &ack);
    world.run_until(world.now + Duration::from_millis(100));
    world.said[1].clear();
    let start = world.now;
    world.reliable(0, b, b"after");
    world.expire_due();
    world.wire.clear();
    while world.said[1].is_empty() && world.now.since(start) < Duration::from_secs(30) {
        world.run_until(world.now + Duration::from_millis(10));
    }
    let took = world.now.since(start);
    assert!(
        took < Duration::from_millis(500),
        "repeated after {took}; round trip {:?}; {:?}",
        world.links[0].round_trip(b),
        world.said[0]
    );
}

/// Operation faults show in their order of time.
#[test]
fn a_failure_that_shows_later_does_not_hide_an_earlier_one() {
    use phalanx_fault::{Kind as Fault, Rule};
    let (mut world, b, _) = World::acquainted();
    let to = Endpoint { node: b, port: Port(1) };
    let mut tickets = Vec::new();
    for after in [Duration::from_secs(60), Duration::from_millis(1)] {
        let now = world.now;
        let tap = world.links[0].tap();
        tap.set_targets(&[b]);
        let rule = tap
            .add(
                now,
                Rule::new(Fault::Operation {
                    code: None,
                    deliver: None,
                    after: phalanx_fault::Distribution::Fixed(after),
                }),
            )
            .unwrap();
        let mut buffer = world.links[0].buffer(now, 100).unwrap();
        buffer.extend(b"x");
        tickets.push(world.call(0, |l, now, out| l.send_buffer(now, Port(1), to, buffer, out)).unwrap());
        world.links[0].tap().heal(rule);
    }
    world.run_until(world.now + Duration::from_secs(10));
    assert!(
        !matches!(world.links[0].status(tickets[1]), Some(super::status::Status::Pending)),
        "due after 1 ms, hidden behind one due in 60 s"
    );
}

/// One that only called us is forgotten with its session: who writes to it later is told at once.
#[test]
fn a_message_to_a_caller_that_is_gone_is_refused() {
    let mut world = World::new(2);
    let b = world.know(0, 1);
    world.reliable(0, b, b"x");
    world.run_until(world.now + Duration::from_secs(1));
    let Said::Up(a, _) = world.said[1][0].clone() else { panic!("nobody called") };
    world.reliable(1, a, b"first");
    for _ in 0..800 {
        if world.links[1].deadline() <= world.now {
            world.call(1, |l, now, out| l.expire(now, out));
        }
        world.wire.clear();
        world.now += Duration::from_millis(10);
    }
    assert!(world.said[1].contains(&Said::Down(a, Code::Unreachable)));
    let to = Endpoint { node: a, port: Port(5) };
    assert_eq!(world.links[1].send_reliable(world.now, Port(4), to, b"second"), Err(Code::InvalidEndpoint));
    assert_eq!(world.links[1].peers.len(), 0);
}

/// FI-3: what the injector above the seal holds of a peer does not come out when the peer is forgotten.
#[test]
fn a_forgotten_peers_held_datagrams_are_not_handed_on() {
    use phalanx_fault::{Delay, Distribution, Kind as Fault, Rule};
    let (mut world, b, a) = World::acquainted();
    let late = Distribution::Fixed(Duration::from_millis(5));
    world.links[1].tap().add(world.now, Rule::new(Fault::Delay(Delay::Lasting(late)))).unwrap();
    world.datagram(0, b, b"held").unwrap();
    world.deliver_all();
    world.links[1].forget(a).unwrap();
    world.run_until(world.now + Duration::from_secs(1));
    assert!(world.said[1].is_empty(), "{:?}", world.said[1]);
}
