//! The link on every platform: one suite, a [`World`] for each (CL-1…4, RL-1, MM-1; 004 §3).
//!
//! `crates/daemon` holds each platform to what the link needs of it; this suite holds the two together to what the
//! layers above need of them.

use phalanx_core::{Addr, Buf, Code, Duration, Endpoint, Group, NodeId, Port};
use phalanx_daemon::Platform;
use phalanx_papers::party::{FROM, KEY, TO, config, meet, pattern};
use phalanx_papers::{Lasting, OverTcp, OverThreads, OverUdp, Party, Said, World, until, while_quiet};
use phalanx_protocol::link::DATAGRAM_OVERHEAD;
use phalanx_protocol::link::count::Dropped;
use phalanx_protocol::link::mml::Kind;
use phalanx_protocol::link::seal::KeyRing;
use phalanx_protocol::link::status::{Status, Ticket};

/// How long tests wait for what must not come.
const QUIET: Duration = Duration::from_millis(20);
/// Patience of hosts whose peers are about to die.
const SHORT: Duration = Duration::from_millis(200);

/// CL-1, 004 §3: connectionless datagrams between `(node, port)`, of any size that the path carries.
fn cl_1_datagrams_arrive_as_they_were_at_the_port_they_name<W: World>() {
    let (mut a, mut b, to_b, to_a) = Party::pair(&W::default());
    let at_b = b.host.local();
    let longest = a.host.platform().max_datagram(at_b) - DATAGRAM_OVERHEAD;
    for (i, length) in [1, 4, 64, 1024, longest].into_iter().enumerate() {
        let (payload, port) = (pattern(length, i), Port(100 + i as u16));
        a.host.send(Port(i as u16), Endpoint { port, ..to_b }, &payload).unwrap();
        until(&mut [&mut a, &mut b], "a datagram arrives", |p| !p[1].said.is_empty());
        let from = Endpoint { node: to_a.node, port: Port(i as u16) };
        assert_eq!(std::mem::take(&mut b.said), [Said::Datagram(from, port, false, payload)], "{length} bytes");
    }
    assert_eq!(a.datagram(to_b, &pattern(longest + 1, 0)), Err(Code::InvalidArgs));
}

/// CL-2, 004 §3: a send never blocks; its handle later reads sent, or failed with a code.
fn cl_2_a_ticket_tells_what_became_of_a_send<W: World>() {
    let world = W::default();
    let mut limits = config::<W>();
    limits.dial_patience = SHORT;
    let mut a = Party::with(world.open(), limits, KeyRing::new(1, KEY), 1);
    let mut b = Party::of(&world, 2);
    let (to_b, _) = meet(&mut a, &mut b);
    let gone = world.open().local();
    let nobody = a.peer(gone);
    let there = a.ticketed(to_b, b"you are there").unwrap();
    let lost = a.ticketed(nobody, b"you are not").unwrap();
    assert_eq!(a.host.status(lost), Some(Status::Pending), "it waits for a handshake");
    until(&mut [&mut a, &mut b], "both tickets end", |p| p[0].is_settled(there) && p[0].is_settled(lost));
    assert_eq!(a.host.status(there), Some(Status::Sent));
    assert_eq!(a.host.status(lost), Some(Status::Failed(Code::Unreachable)));
    assert_eq!(a.host.status(Ticket(4711)), None, "never issued");
    until(&mut [&mut a, &mut b], "the datagram arrives", |p| p[1].datagrams() == [b"you are there"]);
}

/// CL-3, 004 Table 1: each misuse has its code, and a refused call leaves the session as it was.
fn cl_3_misuse_is_answered_by_table_1<W: World>() {
    let (mut a, mut b, to_b, _) = Party::pair(&W::default());
    let nobody = Endpoint { node: NodeId::new(99, 0), ..to_b };
    let recycled = Endpoint { node: NodeId::new(to_b.node.slot(), 7), ..to_b };
    let group = Group { number: 9, ttl: 1 };
    for to in [nobody, recycled] {
        assert_eq!(a.datagram(to, b"x"), Err(Code::InvalidEndpoint));
        assert_eq!(a.ticketed(to, b"x"), Err(Code::InvalidEndpoint));
        assert_eq!(a.reliable(to, b"x"), Err(Code::InvalidEndpoint));
        assert_eq!(a.managed(Kind::Ack, to, b"x"), Err(Code::InvalidEndpoint));
        assert_eq!(a.close(to.node), Err(Code::InvalidEndpoint));
        assert_eq!(a.hold(to.node), Err(Code::InvalidEndpoint));
    }
    assert_eq!(a.host.peer(Addr::Group(group)), Err(Code::InvalidEndpoint));
    assert_eq!(a.datagram(to_b, b""), Err(Code::InvalidArgs));
    assert_eq!(a.ticketed(to_b, b""), Err(Code::InvalidArgs));
    assert_eq!(a.ticketed(to_b, &[0; 20_000]), Err(Code::InvalidArgs));
    assert_eq!(a.reliable(to_b, &vec![0; (16 << 20) + 1]), Err(Code::InvalidArgs));
    assert_eq!(a.managed(Kind::Unr, to_b, &[0; 20_000]), Err(Code::InvalidArgs));
    assert_eq!(a.host.send_buffer(FROM, to_b, Buf::copy_of(b"not of this layer")), Err(Code::InvalidBuffer));
    let shouted = a.shout(group, &[0; 1500]);
    assert_eq!(shouted, Err(if W::GROUPS { Code::InvalidArgs } else { Code::InvalidEndpoint }));
    a.reliable(to_b, b"still friends").unwrap();
    until(&mut [&mut a, &mut b], "the session stands", |p| p[1].messages() == [b"still friends"]);
    assert!(!a.heard(|s| matches!(s, Said::Down(..))));
}

/// CL-3, 004 Table 1: who is full says so, and whose room is missing; later it says that there is room.
fn cl_3_a_full_queue_is_refused_by_whose_it_is<W: World>() {
    let (mut a, mut b, to_b, to_a) = Party::pair(&W::default());
    let message = pattern(60_000, 1);
    let fill = |a: &mut Party<W::Platform>| {
        for sent in 0..1000 {
            if let Err(code) = a.reliable(to_b, &message) {
                return (sent, code);
            }
        }
        panic!("the queue never ends");
    };
    let (sent, code) = fill(&mut a);
    assert_eq!(code, Code::LocalResource, "nothing has left yet");
    until(&mut [&mut a, &mut b], "the backlog arrives", |p| p[1].messages_heard() == sent);
    until(&mut [&mut a, &mut b], "there is room", |p| p[0].heard(|s| *s == Said::Writable(to_b.node)));
    a.said.clear();
    b.hold(to_a.node).unwrap();
    let (mut held, mut code) = fill(&mut a);
    until(&mut [&mut a, &mut b], "its credit ends", |p| {
        // What the receiver took makes room in the queue: that is filled too.
        let (more, last) = fill(p[0]);
        (held, code) = (held + more, last);
        code == Code::RemoteResource
    });
    assert_eq!(b.messages_heard(), sent, "held");
    b.release(to_a.node).unwrap();
    until(&mut [&mut a, &mut b], "it flows again", |p| p[1].messages_heard() == sent + held);
    assert!(a.heard(|s| *s == Said::Writable(to_b.node)), "there is room");
}

/// RL-1, 004 §3: reliable messages of every size, up to a megabyte, both ways at once, in order.
fn rl_1_reliable_messages_arrive_in_order<W: World>() {
    let (mut a, mut b, to_b, to_a) = Party::pair(&W::default());
    let sizes = [0, 1, 4, 64, 1_400, 1_500, 16_384, 100_000, 1 << 20, 3];
    let messages: Vec<Vec<u8>> = sizes.into_iter().enumerate().map(|(i, size)| pattern(size, i)).collect();
    for message in &messages {
        a.reliable(to_b, message).unwrap();
        b.reliable(to_a, message).unwrap();
    }
    let all = messages.len();
    until(&mut [&mut a, &mut b], "all arrive", |p| p.iter().all(|p| p.messages_heard() == all));
    assert!(a.messages() == messages && b.messages() == messages);
}

/// MM-1, 004 §3: the three kinds arrive, in order within ACK and NACK, with the number that the sender was told.
fn mm_1_management_messages_of_each_kind_arrive<W: World>() {
    let (mut a, mut b, to_b, to_a) = Party::pair(&W::default());
    for i in 0..8 {
        for kind in [Kind::Unr, Kind::Ack, Kind::Nack] {
            assert_eq!(a.managed(kind, to_b, &pattern(50, i)), Ok(i as u64));
        }
        until(&mut [&mut a, &mut b], "a round arrives", |p| p[1].said.len() == 3 * (i + 1));
    }
    let expected: Vec<_> = (0..8).map(|i| pattern(50, i)).collect();
    for kind in [Kind::Unr, Kind::Ack, Kind::Nack] {
        assert_eq!(b.orders(kind), expected, "{kind:?}");
    }
    assert!(b.said.iter().all(|s| matches!(s, Said::Managed(from, ..) if *from == Endpoint { port: FROM, ..to_a })));
}

/// CL-1: members hear a group once they know its speaker; without multicast there is no such endpoint.
fn cl_1_a_group_reaches_its_members_or_does_not_exist<W: World>() {
    let world = W::default();
    let (mut a, mut b, _, to_a) = Party::pair(&world);
    let (mut outsider, group) = (Party::of(&world, 3), Group { number: 7, ttl: 1 });
    if !W::GROUPS {
        assert_eq!(
            (a.shout(group, b"?"), b.host.join(group)),
            (Err(Code::InvalidEndpoint), Err(Code::InvalidEndpoint))
        );
        return;
    }
    b.host.join(group).unwrap();
    a.shout(group, b"hear me").unwrap();
    let expected = Said::Datagram(Endpoint { port: FROM, ..to_a }, TO, true, b"hear me".to_vec());
    until(&mut [&mut a, &mut b, &mut outsider], "a member hears", |p| p[1].said == [expected.clone()]);
    while_quiet(&mut [&mut a, &mut b, &mut outsider], QUIET);
    assert!(outsider.said.is_empty() && a.said.is_empty());
}

/// RL-1: a close comes after everything before it, and both are told.
fn rl_1_a_close_comes_after_everything_before_it<W: World>() {
    let (mut a, mut b, to_b, to_a) = Party::pair(&W::default());
    (0..20).for_each(|i| a.reliable(to_b, &pattern(5_000, i)).unwrap());
    a.close(to_b.node).unwrap();
    assert_eq!(a.reliable(to_b, b"one more"), Err(Code::NotInitialized));
    until(&mut [&mut a, &mut b], "all arrive", |p| p[1].messages_heard() == 20);
    assert!(!a.heard(|s| matches!(s, Said::Closed(_))), "the other side may still speak");
    b.reliable(to_a, b"last words").unwrap();
    b.close(to_a.node).unwrap();
    until(&mut [&mut a, &mut b], "both know", |p| p.iter().all(|p| p.heard(|s| matches!(s, Said::Closed(_)))));
    assert_eq!(a.messages(), [b"last words"]);
    assert_eq!(a.host.link().backlog(to_b.node) + b.host.link().backlog(to_a.node), 0);
}

/// RL-1: a peer that is gone is down after the patience that was set; what it did not acknowledge is named.
fn rl_1_a_peer_that_went_away_is_down<W: World>() {
    let world = W::default();
    let mut limits = config::<W>();
    limits.rcl.patience = SHORT;
    let mut a = Party::with(world.open(), limits, KeyRing::new(1, KEY), 1);
    let mut b = Party::of(&world, 2);
    let (to_b, _) = meet(&mut a, &mut b);
    drop(b);
    a.reliable(to_b, &pattern(100, 1)).unwrap();
    until(&mut [&mut a], "it is down", |p| p[0].heard(|s| matches!(s, Said::Down(..))));
    let down = |s: &Said| matches!(s, Said::Down(node, Code::Unreachable, left) if *node == to_b.node && *left >= 100);
    assert!(a.heard(down), "{:?}", a.said);
}

/// RL-1: a host that starts anew at the same place is another start of it: the old session ends, a new one begins.
fn rl_1_a_restarted_host_is_met_anew<W: Lasting>() {
    let world = W::default();
    let (mut a, b, to_b, _) = Party::pair(&world);
    let at_b = b.host.local();
    drop(b);
    let mut b = Party::with(world.reopen(at_b), config::<W>(), KeyRing::new(1, KEY), 2);
    let up = Said::Up(to_b.node, b.host.link().boot());
    a.reliable(to_b, b"are you there?").unwrap();
    until(&mut [&mut a, &mut b], "they meet anew", |p| p[0].said.contains(&up));
    let down = a.said.iter().position(|s| matches!(s, Said::Down(_, Code::NotInitialized, _)));
    assert!(down.is_some() && down < a.said.iter().position(|s| *s == up), "{:?}", a.said);
    a.reliable(to_b, b"again").unwrap();
    until(&mut [&mut a, &mut b], "they talk", |p| p[1].messages().last().is_some_and(|m| m == b"again"));
}

/// MM-2, 004 §3: who has another key, or a key under another number, stays outside, and nothing it says is acted upon.
fn mm_2_a_wrong_key_stays_outside<W: World>() {
    let world = W::default();
    let mut a = Party::of(&world, 1);
    for (ring, why) in [(KeyRing::new(1, [8; 32]), Dropped::BadSeal), (KeyRing::new(2, KEY), Dropped::UnknownKey)] {
        let mut limits = config::<W>();
        limits.dial_patience = SHORT;
        let mut thief = Party::with(world.open(), limits, ring, 9);
        let to_a = thief.peer(a.host.local());
        thief.reliable(to_a, b"let me in").unwrap();
        thief.managed(Kind::Unr, to_a, b"beat").unwrap();
        until(&mut [&mut a, &mut thief], "it gives up", |p| p[1].heard(|s| matches!(s, Said::Down(..))));
        assert!(a.dropped(why) > 0);
    }
    assert_eq!(a.said, []);
}

macro_rules! suite {
    ($($world:ident in $name:ident),+; $stories:tt) => { $(suite!(@ $world, $name, $stories);)+ };
    (@ $world:ident, $name:ident, { $($story:ident),+ $(,)? }) => {
        mod $name {
            $(
                #[test]
                fn $story() {
                    super::$story::<super::$world>();
                }
            )+
        }
    };
}

suite!(OverUdp in udp, OverTcp in tcp, OverThreads in in_process; {
    cl_1_datagrams_arrive_as_they_were_at_the_port_they_name,
    cl_2_a_ticket_tells_what_became_of_a_send,
    cl_3_misuse_is_answered_by_table_1,
    cl_3_a_full_queue_is_refused_by_whose_it_is,
    rl_1_reliable_messages_arrive_in_order,
    mm_1_management_messages_of_each_kind_arrive,
    cl_1_a_group_reaches_its_members_or_does_not_exist,
    rl_1_a_close_comes_after_everything_before_it,
    rl_1_a_peer_that_went_away_is_down,
    mm_2_a_wrong_key_stays_outside,
});

suite!(OverUdp in udp_restarts, OverTcp in tcp_restarts; {
    rl_1_a_restarted_host_is_met_anew,
});
