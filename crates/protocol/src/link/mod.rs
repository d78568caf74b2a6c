//! The link: sealed datagrams, reliable messages and management messages between nodes (CL, RL, MM; 004 §3).
//!
//! One machine for all of a node's peers. The driver gives it what a platform received and sends what it asks for;
//! UDP, TCP, in-process and simulated networks all look the same from here (CL-4).
//!
//! ```text
//!   send / send_reliable / send_managed            Datagram / Message / Managed
//!            │                                                ▲
//!     cl · rcl · mml  plain packets                    cl · rcl · mml
//!            │                                                ▲
//!         `plain` fault injector (FI-3)                `plain` fault injector
//!            │                                                ▲
//!       session: number and seal                 session: find, check number, open
//!            ▼                                                │
//!       Output::Transmit ───────── platform ─────────▶ Input::Arrived
//! ```
//!
//! | file | idea |
//! |---|---|
//! | [`seal`] | keys, and what they seal |
//! | [`sign`] | who a management message is from |
//! | `rtt` | round trips and timeouts |
//! | `replay` | each packet number once |
//! | `local` | what the node asks of its link |
//! | `outgoing` | turns, numbers, seals |
//! | `incoming` | sessions, seals opened, layers |
//! | `handshake` | boots and nonces, until a session is proved |
//! | `peer` | a peer's address, session and queues |
//! | `table` | peers by slot |
//! | `index` | peers by address and by boot |
//! | `datagram` | CL: unreliable datagrams and groups, tickets |
//! | [`status`] | what became of a send |
//! | [`rcl`] | reliable, ordered messages |
//! | [`mml`] | management messages |
//! | [`count`] | what was dropped, and why |

#[cfg(test)]
mod attacks;
pub mod count;
mod datagram;
#[cfg(feature = "forge")]
mod forge;
mod handshake;
mod incoming;
mod index;
mod local;
pub mod mml;
mod outgoing;
mod peer;
pub mod rcl;
mod replay;
mod rtt;
pub mod seal;
pub mod sign;
pub mod status;
mod table;
#[cfg(test)]
mod tests;

use count::Counters;
use handshake::Budget;
use index::{ByAddr, ByBoot};
use peer::tag;
use phalanx_core::buf::Attachment;
use phalanx_core::{
    Addr, Boot, Buf, Code, Deadlines, Duration, Endpoint, Fingerprint, Identity, Instant, Machine, NodeId, Port, Rng,
    Sink,
};
use phalanx_fault::Injector;
use phalanx_wire::layer::Ports;
use phalanx_wire::outer::{Short, TAG};
use rcl::Payload;
use seal::{Cipher, KeyRing};
use sign::Signer;
use status::{Statuses, Ticket};
use std::collections::VecDeque;
use std::mem::offset_of;
use std::sync::Arc;
use table::Table;

/// The longest datagram any platform carries.
pub const LARGEST_DATAGRAM: u16 = 16 * 1024;
/// The shortest datagram a path must carry: hellos and acknowledgements fit with room to spare.
pub const SMALLEST_DATAGRAM: u16 = 512;
/// Bytes that seal, session and layer add to a datagram's payload.
pub const DATAGRAM_OVERHEAD: usize = Short::LEN + Ports::LEN + TAG;
/// FI-6: the states of the link that rules of a fault injector can wait for.
pub mod states {
    /// A peer has proved itself, and traffic with it begins.
    pub const SESSION_UP: &str = "session-up";
    /// The session with a peer is over.
    pub const SESSION_DOWN: &str = "session-down";
}
/// Operation faults (FI-1) waiting to show.
const FAILING_MAX: usize = 256;

/// The limits of a link.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Config {
    /// Peers held at once, dialled and calling.
    pub peers: usize,
    /// How long a handshake is tried.
    pub dial_patience: Duration,
    /// The platform carries multicast groups.
    pub groups: bool,
    /// Reliable messages.
    pub rcl: rcl::Config,
    /// Management messages.
    pub mml: mml::Config,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            peers: 16 * 1024,
            dial_patience: Duration::from_secs(5),
            groups: false,
            rcl: rcl::Config::default(),
            mml: mml::Config::default(),
        }
    }
}

/// What a driver tells the link.
#[derive(Debug)]
pub enum Input<'a> {
    /// The platform received a packet. It is opened in place.
    Arrived {
        /// Where it came from: an address that answers reach.
        from: Addr,
        /// Its bytes.
        bytes: &'a mut [u8],
        /// In simulated networks: the part of it that travels by reference.
        attached: Option<&'a Attachment>,
    },
    /// The platform answered for a ticketed packet.
    Completed {
        /// The ticket it was sent with.
        ticket: Ticket,
        /// Taken, or why not.
        result: Result<(), Code>,
    },
    /// The platform learned that nobody is at `addr` (ICMP refused, connection reset).
    Refused {
        /// Where nobody is.
        addr: Addr,
        /// What the platform said.
        code: Code,
    },
}

/// What the link asks of its driver.
#[derive(Debug)]
pub enum Output<'a> {
    /// Send this packet.
    Transmit {
        /// Where to.
        to: Addr,
        /// The sealed packet.
        packet: Buf,
        /// Answer with [`Input::Completed`] when there is one.
        ticket: Option<Ticket>,
        /// The peer was heard since the packet before last: it holds our session. A platform may use a faster way
        /// then, on which questions from a peer that has restarted would not reach us.
        answer: bool,
    },
    /// A datagram for a local port; it may have been lost, but not changed, doubled or forged.
    Datagram {
        /// Who sent it.
        from: Endpoint,
        /// For which port.
        to: Port,
        /// It came through a group.
        group: bool,
        /// The payload.
        payload: &'a [u8],
    },
    /// A reliable message, in the order of sending.
    Message {
        /// Who sent it.
        from: Endpoint,
        /// For which port.
        to: Port,
        /// The message.
        payload: Payload<'a>,
    },
    /// A management message.
    Managed {
        /// Who sent it.
        from: Endpoint,
        /// For which port.
        to: Port,
        /// How it was sent.
        kind: mml::Kind,
        /// The message.
        payload: &'a [u8],
    },
    /// A peer proved that it lives now. Reliable traffic with it begins anew.
    Up {
        /// Our number for it.
        node: NodeId,
        /// Who it says it is.
        identity: Identity,
        /// This start of it.
        boot: Boot,
    },
    /// What was not acknowledged may be lost: the peer restarted, forgot us, or does not answer.
    Down {
        /// Our number for it.
        node: NodeId,
        /// `Unreachable` when it is silent or refused; `NotInitialized` when a new session replaced the old one.
        code: Code,
        /// Bytes of reliable messages that were not acknowledged.
        unacknowledged: usize,
    },
    /// A reliable send was refused before; now there is room.
    Writable {
        /// For this peer.
        node: NodeId,
    },
    /// Both sides closed, and everything arrived.
    Closed {
        /// With this peer.
        node: NodeId,
    },
    /// The platform says that nobody is at this peer's address. A hint, not a verdict: it may be forged.
    Refused {
        /// The peer.
        node: NodeId,
        /// What the platform said.
        code: Code,
    },
    /// An ACK management message was given up.
    Undelivered {
        /// For this peer.
        node: NodeId,
        /// What [`Link::send_managed`] returned for it.
        number: u64,
    },
    /// NACK management messages from a peer are missing for good.
    Gap {
        /// From this peer.
        node: NodeId,
        /// Which.
        gap: mml::Gap,
    },
}

/// The link of one node.
///
/// What each packet needs comes first and in this order, a few cache lines in all: a simulated cluster has more links
/// than any cache holds.
#[derive(Clone, PartialEq, Eq)]
#[repr(C)]
pub struct Link {
    tap: Injector<NodeId>,
    peers: Table,
    deadlines: Deadlines,
    /// Peers with packets to send, in the order in which they get their turn.
    ready: VecDeque<u32>,
    ring: Arc<KeyRing>,
    /// First four bytes of our boot.
    tag: u32,
    counters: Counters,
    boot: Boot,
    config: Arc<Config>,
    /// Operation faults that will show: the ticket's send turns out to have failed. Only the tap makes them.
    failing: Vec<(Instant, Ticket, Code)>,
    signer: Signer,
    hello: (u8, Cipher),
    hello_counter: u64,
    group: (u8, Cipher),
    group_counter: u64,
    by_addr: ByAddr,
    by_boot: ByBoot,
    statuses: Statuses,
    rng: Rng,
    budget: Budget,
    /// Peers that called us and have not proved themselves.
    callers: usize,
}

impl Machine for Link {
    type Input<'a> = Input<'a>;
    type Output<'a> = Output<'a>;

    fn handle<S>(&mut self, now: Instant, input: Input<'_>, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        match input {
            Input::Arrived { from, bytes, attached } => self.on_arrived(now, from, bytes, attached, out),
            Input::Completed { ticket, result } => self.statuses.complete(ticket, result),
            Input::Refused { addr, code } => self.on_refused(addr, code, out),
        }
    }

    fn expire<S>(&mut self, now: Instant, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        self.transmit_ready(now, out);
        while let Some(slot) = self.deadlines.take_due(now) {
            self.expire_peer(now, slot, out);
        }
        if self.tap.deadline() <= now {
            let mut tap = std::mem::replace(&mut self.tap, Injector::new(0));
            tap.expire(now, &mut |node, bytes, attached| self.dispatch(now, node, bytes, attached, out));
            self.tap = tap;
        }
        while let Some(due) = self.failing.iter().position(|f| f.0 <= now) {
            let (_, ticket, code) = self.failing.swap_remove(due);
            self.statuses.complete(ticket, Err(code));
        }
        self.transmit_ready(now, out);
    }

    /// Past when packets wait to be sent: a driver that handles a batch of inputs, then expires what is due, then
    /// flushes its platform, sends as few packets as can be.
    #[inline]
    fn deadline(&self) -> Instant {
        if !self.ready.is_empty() {
            return Instant::ZERO;
        }
        let next = self.deadlines.next();
        if self.tap.is_untouched() {
            return next;
        }
        self.failing.iter().map(|f| f.0).fold(next.min(self.tap.deadline()), Instant::min)
    }

    fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&(self.boot, self.hello_counter, self.group_counter, &self.ready, &self.statuses));
        for (slot, generation, peer) in self.peers.iter() {
            print.add(&(slot, generation));
            peer.fingerprint(print);
            print.instant(self.deadlines.of(slot));
        }
        self.tap.fingerprint(print);
        self.budget.fingerprint(print);
        for &(at, ticket, code) in &self.failing {
            print.instant(at);
            print.add(&(ticket, code));
        }
    }
}

impl Link {
    /// Bytes at its beginning that every packet needs: a driver with many links may ask for them ahead of time.
    pub const HOT: usize = offset_of!(Self, counters) + 2 * size_of::<u64>();

    /// A link for one start of a node. `boot` must be fresh random bits; `seed` feeds the nonces.
    #[must_use]
    pub fn new(config: Arc<Config>, ring: Arc<KeyRing>, signer: Signer, boot: Boot, seed: u64) -> Self {
        let key = ring.sealing();
        let cipher = |c: Option<Cipher>| (key, c.expect("the sealing key is in the ring"));
        Self {
            hello: cipher(ring.hello(key, &boot)),
            group: cipher(ring.group(key, &boot)),
            peers: Table::new(),
            tag: tag(&boot),
            config,
            ring,
            signer,
            boot,
            hello_counter: 0,
            group_counter: 0,
            by_addr: ByAddr::default(),
            by_boot: ByBoot::default(),
            deadlines: Deadlines::new(),
            ready: VecDeque::new(),
            tap: Injector::new(seed),
            statuses: Statuses::default(),
            failing: Vec::new(),
            counters: Counters::default(),
            rng: Rng::new(seed, u64::from(tag(&boot))),
            budget: Budget::default(),
            callers: 0,
        }
    }

    /// Who we are.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.signer.identity()
    }

    /// What signs for us.
    #[must_use]
    pub fn signer(&self) -> &Signer {
        &self.signer
    }

    /// This start of ours.
    #[must_use]
    pub fn boot(&self) -> Boot {
        self.boot
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The fault injector above the seal (FI-3 `plain`).
    pub fn tap(&mut self) -> &mut Injector<NodeId> {
        &mut self.tap
    }

    /// Replaces the key ring. Sessions follow, but for those with peers that were down when the key came that seals now: they
    /// follow as soon as the peer has it. What was derived from a key that is gone, or is another one now, is forgotten.
    pub fn set_ring(&mut self, ring: Arc<KeyRing>) {
        let key = ring.sealing();
        if key != self.hello.0 || !ring.agrees(&self.ring, key) {
            self.hello = (key, ring.hello(key, &self.boot).expect("the sealing key is in the ring"));
            self.group = (key, ring.group(key, &self.boot).expect("the sealing key is in the ring"));
        }
        let changed: Vec<u8> = self.ring.ids().filter(|&id| !ring.agrees(&self.ring, id)).collect();
        let old = self.ring.sealing();
        if !changed.is_empty() || old != key {
            for peer in self.peers.iter_mut() {
                let candidate = peer.attempt.as_mut().and_then(|a| a.candidate.as_mut());
                peer.session.iter_mut().chain(candidate).for_each(|s| s.follow(old, &changed, &ring, &self.boot));
            }
        }
        self.ring = ring;
    }
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Link({:?} {:?}, {} peers)", self.identity(), self.boot, self.peers.len())
    }
}
