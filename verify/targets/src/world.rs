//! Two links with fake seals on a wire that a script holds in its hands.

use phalanx_core::{Addr, Boot, Buf, Code, Duration, Endpoint, Instant, Machine, NodeId, Port, Sink};
use phalanx_protocol::link::rcl::Payload;
use phalanx_protocol::link::seal::KeyRing;
use phalanx_protocol::link::sign::Signer;
use phalanx_protocol::link::{Config, Input, Link, Output};
use std::collections::VecDeque;
use std::sync::Arc;

/// Peers that a link holds at most here: strangers must not get beyond.
pub(crate) const PEERS: usize = 8;
/// Expiries at one instant before the link counts as spinning.
const SPINS: usize = 2_000;
/// Packets on the wire at most; the oldest are lost, as in any network.
const WIRE: usize = 4_096;

/// Two links, and the packets between them.
pub(crate) struct World {
    pub(crate) now: Instant,
    pub(crate) links: [Link; 2],
    /// To whom, and what.
    pub(crate) wire: VecDeque<(usize, Buf)>,
    /// Reliable messages that each heard.
    pub(crate) heard: [Vec<Vec<u8>>; 2],
    /// Sessions that each saw end.
    pub(crate) downs: [usize; 2],
}

struct Ear<'w> {
    at: usize,
    wire: &'w mut VecDeque<(usize, Buf)>,
    heard: &'w mut Vec<Vec<u8>>,
    downs: &'w mut usize,
}

impl<'a> Sink<Output<'a>> for Ear<'_> {
    fn push(&mut self, output: Output<'a>) {
        match output {
            Output::Transmit { to: Addr::Local(to), packet, .. } if to < 2 && to as usize != self.at => {
                if self.wire.len() >= WIRE {
                    self.wire.pop_front();
                }
                self.wire.push_back((to as usize, packet));
            }
            Output::Message { payload: Payload::Bytes(bytes), .. } => self.heard.push(bytes.to_vec()),
            Output::Down { .. } => *self.downs += 1,
            _ => {}
        }
    }
}

impl World {
    /// Two links that have met.
    pub(crate) fn met() -> Self {
        let link = |n: u8| {
            let config = Arc::new(Config { peers: PEERS, groups: true, ..Config::default() });
            Link::new(config, Arc::new(KeyRing::fake(1, 9)), Signer::fake(u64::from(n)), Boot([n; 16]), u64::from(n))
        };
        let mut world = Self {
            now: Instant(1_000_000),
            links: [link(1), link(2)],
            wire: VecDeque::new(),
            heard: Default::default(),
            downs: [0; 2],
        };
        world.links[1].peer(Addr::Local(0), 1400).expect("room");
        let b = world.links[0].peer(Addr::Local(1), 1400).expect("room");
        world.send(0, b, b"hello").expect("a first message is taken");
        world.settle();
        assert_eq!(world.heard[1].len(), 1, "they met");
        world.heard[1].clear();
        world
    }

    /// How each addresses the other: the first peer it knew.
    pub(crate) fn peer() -> NodeId {
        NodeId::new(0, 0)
    }

    pub(crate) fn send(&mut self, at: usize, to: NodeId, message: &[u8]) -> Result<(), Code> {
        self.links[at].send_reliable(self.now, Port(1), Endpoint { node: to, port: Port(2) }, message)
    }

    pub(crate) fn call<R>(
        &mut self,
        at: usize,
        f: impl FnOnce(&mut Link, Instant, &mut dyn FnMut(Output<'_>)) -> R,
    ) -> R {
        let mut ear = Ear { at, wire: &mut self.wire, heard: &mut self.heard[at], downs: &mut self.downs[at] };
        f(&mut self.links[at], self.now, &mut |output| ear.push(output))
    }

    /// Bytes arrive at a link, from anywhere.
    pub(crate) fn arrive(&mut self, at: usize, from: Addr, bytes: &mut [u8]) {
        self.call(at, |link, now, out| {
            link.handle(now, Input::Arrived { from, bytes, attached: None }, &mut Out(out));
        });
    }

    /// A link sends anything under a true seal.
    pub(crate) fn forge(&mut self, at: usize, plain: &[u8]) {
        // Without a session there is nothing to seal with: that is an answer too.
        let _ = self.call(at, |link, now, out| link.forge(now, Self::peer(), plain, &mut Out(out)));
    }

    /// Lets both links act until neither is due.
    pub(crate) fn expire(&mut self) {
        for at in 0..2 {
            for spin in 0.. {
                assert!(spin < SPINS, "a link is due again and again at one instant");
                if self.links[at].deadline() > self.now {
                    break;
                }
                self.call(at, |link, now, out| link.expire(now, &mut Out(out)));
            }
        }
    }

    /// Delivers the packet at `place` of the wire.
    pub(crate) fn deliver(&mut self, place: usize) {
        if let Some((to, mut packet)) = self.wire.remove(place) {
            self.arrive(to, Addr::Local(1 - to as u32), packet.bytes_mut());
        }
    }

    /// Lets time pass to the next deadline, at most by `most`.
    pub(crate) fn pass(&mut self, most: Duration) {
        let next = self.links.iter().map(Machine::deadline).min().expect("two links");
        self.now = self.now.max(next.min(self.now + most));
    }

    /// A good network from now on, until all is said or `SETTLED` has passed.
    pub(crate) fn settle(&mut self) {
        let end = self.now + SETTLED;
        loop {
            self.expire();
            if !self.wire.is_empty() {
                self.deliver(0);
            } else if self.now < end {
                self.pass(end.since(self.now));
            } else {
                return;
            }
        }
    }
}

/// In this time a healthy pair has repeated everything that was lost.
const SETTLED: Duration = Duration::from_secs(20);

/// A closure as a sink.
pub(crate) struct Out<'o>(pub(crate) &'o mut dyn FnMut(Output<'_>));

impl<'a> Sink<Output<'a>> for Out<'_> {
    fn push(&mut self, output: Output<'a>) {
        (self.0)(output);
    }
}
