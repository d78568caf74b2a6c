//! A host with a memory: everything its link said, owned, for tests to look at.
//!
//! Tests drive all parties from one thread: [`until`] gives each its turns until something is so, and fails when that
//! takes too long. Nothing sleeps to make something probable.

use crate::world::World;
use phalanx_core::{Addr, Boot, Code, Duration, Endpoint, Group, NodeId, Port, Sink};
use phalanx_daemon::Host;
use phalanx_daemon::platform::Platform;
use phalanx_protocol::link::count::Dropped;
use phalanx_protocol::link::mml;
use phalanx_protocol::link::rcl::Payload;
use phalanx_protocol::link::seal::KeyRing;
use phalanx_protocol::link::sign::Signer;
use phalanx_protocol::link::status::{Status, Ticket};
use phalanx_protocol::link::{Config, Output};

/// The port that tests send from.
pub const FROM: Port = Port(4);
/// The port that tests send to.
pub const TO: Port = Port(5);
/// The key of the cluster in tests.
pub const KEY: [u8; 32] = [0x50; 32];

/// How long something that must happen may take: tests share their cores with compilers.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a party sleeps when nobody had anything to do.
const NAP: Duration = Duration::from_micros(100);

/// What a link said, owned. A message's ports are [`FROM`] and [`TO`] unless a test looks at them itself.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Said {
    /// A datagram: from whom, for which port, through a group, what.
    Datagram(Endpoint, Port, bool, Vec<u8>),
    /// A reliable message.
    Message(Endpoint, Port, Vec<u8>),
    /// A management message.
    Managed(Endpoint, Port, mml::Kind, Vec<u8>),
    /// A peer proved itself.
    Up(NodeId, Boot),
    /// A session ended, with so many bytes unacknowledged.
    Down(NodeId, Code, usize),
    /// There is room again.
    Writable(NodeId),
    /// Closed by both.
    Closed(NodeId),
    /// The platform says that nobody is there.
    Refused(NodeId, Code),
    /// An ACK message was given up.
    Undelivered(NodeId, u64),
    /// NACK messages are missing for good.
    Gap(NodeId, mml::Gap),
}

impl Said {
    /// Owns what a link said; `None` for a packet, which is the driver's business.
    #[must_use]
    pub fn of(output: Output<'_>) -> Option<Self> {
        Some(match output {
            Output::Transmit { .. } => return None,
            Output::Datagram { from, to, group, payload } => Self::Datagram(from, to, group, payload.to_vec()),
            Output::Message { from, to, payload: Payload::Bytes(bytes) } => Self::Message(from, to, bytes.to_vec()),
            Output::Message { payload: Payload::Snapshot(_), .. } => {
                unreachable!("no real platform carries references")
            }
            Output::Managed { from, to, kind, payload } => Self::Managed(from, to, kind, payload.to_vec()),
            Output::Up { node, boot, .. } => Self::Up(node, boot),
            Output::Down { node, code, unacknowledged } => Self::Down(node, code, unacknowledged),
            Output::Writable { node } => Self::Writable(node),
            Output::Closed { node } => Self::Closed(node),
            Output::Refused { node, code } => Self::Refused(node, code),
            Output::Undelivered { node, number } => Self::Undelivered(node, number),
            Output::Gap { node, gap } => Self::Gap(node, gap),
        })
    }
}

/// Takes down what a link says outside a poll.
struct Ear<'p>(&'p mut Vec<Said>);

impl<'a> Sink<Output<'a>> for Ear<'_> {
    fn push(&mut self, output: Output<'a>) {
        self.0.extend(Said::of(output));
    }
}

/// A host and what it heard.
pub struct Party<P> {
    /// The host.
    pub host: Host<P>,
    /// Everything its link said, in order.
    pub said: Vec<Said>,
}

impl<P: Platform> Party<P> {
    /// A party at a new place of `world`, with the cluster's key and an identity of its own.
    pub fn of<W: World<Platform = P>>(world: &W, number: u8) -> Self {
        Self::with(world.open(), config::<W>(), KeyRing::new(1, KEY), number)
    }

    /// A party on a platform, all chosen.
    pub fn with(platform: P, config: Config, ring: KeyRing, number: u8) -> Self {
        Self { host: Host::new(platform, config, ring, Signer::generate(&[number; 32])), said: Vec::new() }
    }

    /// Two parties of a world that have met.
    pub fn pair<W: World<Platform = P>>(world: &W) -> (Self, Self, Endpoint, Endpoint) {
        let (mut a, mut b) = (Self::of(world, 1), Self::of(world, 2));
        let (to_b, to_a) = meet(&mut a, &mut b);
        (a, b, to_b, to_a)
    }

    /// Our endpoint for port [`TO`] of the peer at `addr`.
    pub fn peer(&mut self, addr: Addr) -> Endpoint {
        Endpoint { node: self.host.peer(addr).expect("the table of peers has room"), port: TO }
    }

    /// Sends a datagram from [`FROM`].
    ///
    /// # Errors
    /// As [`Host::send`].
    pub fn datagram(&mut self, to: Endpoint, payload: &[u8]) -> Result<(), Code> {
        self.host.send(FROM, to, payload)
    }

    /// Sends a datagram with a ticket, in a buffer of the layer.
    ///
    /// # Errors
    /// As [`Host::send_buffer`].
    pub fn ticketed(&mut self, to: Endpoint, payload: &[u8]) -> Result<Ticket, Code> {
        let now = self.host.now();
        let mut buffer = self.host.link().buffer(now, payload.len())?;
        buffer.extend(payload);
        self.host.send_buffer(FROM, to, buffer)
    }

    /// Sends a reliable message from [`FROM`].
    ///
    /// # Errors
    /// As [`Host::send_reliable`].
    pub fn reliable(&mut self, to: Endpoint, message: &[u8]) -> Result<(), Code> {
        self.host.send_reliable(FROM, to, message)
    }

    /// Sends a management message from [`FROM`].
    ///
    /// # Errors
    /// As [`Host::send_managed`].
    pub fn managed(&mut self, kind: mml::Kind, to: Endpoint, message: &[u8]) -> Result<u64, Code> {
        self.host.send_managed(kind, FROM, to, message)
    }

    /// Sends a datagram to a group, from [`FROM`] to [`TO`].
    ///
    /// # Errors
    /// As [`Host::send_group`].
    pub fn shout(&mut self, group: Group, payload: &[u8]) -> Result<(), Code> {
        self.host.send_group(FROM, group, TO, payload)
    }

    /// Ends reliable traffic with a peer.
    ///
    /// # Errors
    /// As [`phalanx_protocol::link::Link::close`].
    pub fn close(&mut self, node: NodeId) -> Result<(), Code> {
        let now = self.host.now();
        self.host.link().close(now, node)
    }

    /// One turn of the host's loop; true when packets came.
    pub fn turn(&mut self) -> bool {
        let said = &mut self.said;
        let came = self.host.poll(&mut |output| said.extend(Said::of(output)));
        came.expect("the platform works") > 0
    }

    /// Datagrams heard so far.
    #[must_use]
    pub fn datagrams(&self) -> Vec<Vec<u8>> {
        self.said.iter().filter_map(|s| if let Said::Datagram(.., p) = s { Some(p.clone()) } else { None }).collect()
    }

    /// Reliable messages heard so far.
    #[must_use]
    pub fn messages(&self) -> Vec<Vec<u8>> {
        self.said.iter().filter_map(|s| if let Said::Message(.., p) = s { Some(p.clone()) } else { None }).collect()
    }

    /// Management messages of a kind heard so far.
    #[must_use]
    pub fn orders(&self, kind: mml::Kind) -> Vec<Vec<u8>> {
        let of_kind = |s: &Said| matches!(s, Said::Managed(_, _, k, p) if *k == kind && !p.is_empty());
        let payload = |s: &Said| if let Said::Managed(.., p) = s { p.clone() } else { Vec::new() };
        self.said.iter().filter(|s| of_kind(s)).map(payload).collect()
    }

    /// How many reliable messages were heard so far.
    #[must_use]
    pub fn messages_heard(&self) -> usize {
        self.said.iter().filter(|s| matches!(s, Said::Message(..))).count()
    }

    /// Stops taking reliable messages from a peer.
    ///
    /// # Errors
    /// As [`phalanx_protocol::link::Link::hold`].
    pub fn hold(&mut self, node: NodeId) -> Result<(), Code> {
        let now = self.host.now();
        self.host.link().hold(now, node)
    }

    /// Takes them again, those that waited first.
    ///
    /// # Errors
    /// As [`phalanx_protocol::link::Link::release`].
    pub fn release(&mut self, node: NodeId) -> Result<(), Code> {
        let now = self.host.now();
        self.host.link().release(now, node, &mut Ear(&mut self.said))
    }

    /// True when `what` was said.
    pub fn heard(&self, what: impl Fn(&Said) -> bool) -> bool {
        self.said.iter().any(what)
    }

    /// Packets dropped for that reason.
    pub fn dropped(&mut self, why: Dropped) -> u64 {
        self.host.link().counters().dropped(why)
    }

    /// Whether a ticketed send has been answered for.
    #[must_use]
    pub fn is_settled(&self, ticket: Ticket) -> bool {
        self.host.status(ticket) != Some(Status::Pending)
    }
}

/// `length` bytes that differ from those of another seed.
#[must_use]
pub fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 31 + i / 251 + seed * 7) as u8).collect()
}

/// The usual limits, with groups where the world has them.
#[must_use]
pub fn config<W: World>() -> Config {
    Config { groups: W::GROUPS, ..Config::default() }
}

/// Makes two parties meet; returns how each addresses the other.
pub fn meet<P: Platform>(a: &mut Party<P>, b: &mut Party<P>) -> (Endpoint, Endpoint) {
    let (to_b, to_a) = (a.peer(b.host.local()), b.peer(a.host.local()));
    // A lone datagram to a port that no test listens on: it makes them exchange their nonces.
    a.datagram(Endpoint { port: Port(0), ..to_b }, b"well met").expect("the peer was just made");
    let counts = |party: &mut Party<P>| (party.host.link().counters().sent, party.host.link().counters().accepted);
    let before = (counts(a), counts(b));
    // All that was sent has arrived: what a test does next is the first thing that its faults meet.
    until(&mut [a, b], "two parties meet", |p| {
        let (at_a, at_b) = (counts(p[0]), counts(p[1]));
        let met = p.iter().all(|p| p.heard(|s| matches!(s, Said::Up(..)))) && !p[1].datagrams().is_empty();
        let there = at_a.0 - before.0.0 == at_b.1 - before.1.1;
        met && there && at_b.0 - before.1.0 == at_a.1 - before.0.1
    });
    a.said.clear();
    b.said.clear();
    (to_b, to_a)
}

/// Gives each party its turns until `so` holds.
///
/// # Panics
/// When it does not come to hold; `story` says what was waited for.
pub fn until<P: Platform>(parties: &mut [&mut Party<P>], story: &str, so: impl FnMut(&mut [&mut Party<P>]) -> bool) {
    until_with(parties, story, || false, so);
}

/// As [`until`], with somebody else who has something to do: `also` returns whether it had.
///
/// # Panics
/// As [`until`].
pub fn until_with<P: Platform>(
    parties: &mut [&mut Party<P>],
    story: &str,
    mut also: impl FnMut() -> bool,
    mut so: impl FnMut(&mut [&mut Party<P>]) -> bool,
) {
    let end = parties[0].host.now() + PATIENCE;
    loop {
        let mut busy = also();
        for party in parties.iter_mut() {
            busy |= party.turn();
        }
        if so(parties) {
            return;
        }
        let now = parties[0].host.now();
        assert!(now < end, "{story}: not within {PATIENCE}");
        if !busy {
            // Packets to the others wake nobody, so the nap is short.
            parties[0].host.wait(now + NAP);
        }
    }
}

/// Gives each party turns for `span`, in which the test says that something does *not* happen.
pub fn while_quiet<P: Platform>(parties: &mut [&mut Party<P>], span: Duration) {
    let end = parties[0].host.now() + span;
    until(parties, "time passes", |p| p[0].host.now() >= end);
}
