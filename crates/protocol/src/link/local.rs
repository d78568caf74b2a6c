//! What the node itself asks of its link: peers, reliable and managed messages, flow control.

use super::mml::{Channel, Context, End};
use super::peer::Peer;
use super::rcl::Connection;
use super::sign::Signer;
use super::status::{Status, Ticket};
use super::{Config, LARGEST_DATAGRAM, Link, Output, SMALLEST_DATAGRAM, mml, rcl};
use phalanx_core::fetch::fetch;
use phalanx_core::{Addr, Boot, Code, Duration, Endpoint, Identity, Instant, NodeId, Port, Sink, Snapshot};
use phalanx_wire::layer::Ports;
use phalanx_wire::outer::{Short, TAG};
use std::sync::Arc;

/// The part of the table that callers may fill before they have proved themselves: one in so many.
const CALLERS_SHARE: usize = 4;

impl Link {
    /// The peer at `addr`, known or new; a handshake begins when something is sent. `largest` is what the platform
    /// says a datagram to it may have.
    ///
    /// # Errors
    /// `LocalResource` when the table of peers is full, `InvalidEndpoint` for a group.
    pub fn peer(&mut self, addr: Addr, largest: usize) -> Result<NodeId, Code> {
        if matches!(addr, Addr::Group(_)) {
            return Err(Code::InvalidEndpoint);
        }
        if let Some(slot) = self.by_addr.find(&addr, &self.peers) {
            let (generation, peer) = self.peers.at_mut(slot).expect("indexed peers exist");
            self.callers -= usize::from(peer.is_caller());
            peer.dialed = true;
            // One that called us first was met with a guess; the platform knows its path.
            if clamp(largest) > peer.largest {
                peer.largest = clamp(largest);
                peer.credit = self.config.rcl.credit_for(plain_length(peer.largest));
            }
            return Ok(NodeId::new(slot, generation));
        }
        self.insert_peer(addr, clamp(largest), true).ok_or(Code::LocalResource)
    }

    /// Makes room for so many peers in all: for who knows how many there will be, and has many links. More still fit.
    pub fn expect_peers(&mut self, peers: usize) {
        self.peers.reserve(peers.min(self.config.peers));
    }

    pub(super) fn insert_peer(&mut self, addr: Addr, largest: u16, dialed: bool) -> Option<NodeId> {
        // Who proves nothing must not keep others out, those we call ourselves least of all.
        if !dialed && self.callers >= self.config.peers / CALLERS_SHARE {
            return None;
        }
        let credit = self.config.rcl.credit_for(plain_length(largest));
        let bound = self.config.peers.min(NodeId::MAX_SLOTS);
        let (slot, generation) = self.peers.insert(bound, Peer::new(addr, largest, credit, dialed))?;
        self.by_addr.insert(&addr, slot, &self.peers);
        self.callers += usize::from(!dialed);
        Some(NodeId::new(slot, generation))
    }

    /// A packet will arrive soon: asks the processor for what is kept about its sender.
    #[inline]
    pub fn foresee(&self, packet: &[u8]) {
        if let Ok(short) = Short::parse(packet) {
            self.peers.fetch_for_arrival((short.session & 0x00ff_ffff) as usize);
        }
    }

    /// As [`Link::foresee`] a little later, when what that asked for is there: the connection behind it.
    #[inline]
    pub fn foresee_stream(&self, packet: &[u8]) {
        if let Ok(short) = Short::parse(packet)
            && let Some((_, peer)) = self.peers.at((short.session & 0x00ff_ffff) as usize)
            && let Some(rcl) = &peer.rcl
        {
            fetch(&**rcl);
        }
    }

    /// Something will be sent to `node` soon: asks the processor for what is kept about it.
    #[inline]
    pub fn foresee_peer(&self, node: NodeId) {
        self.peers.fetch_for_departure(node.slot());
    }

    /// Forgets a peer with everything that waits for it.
    ///
    /// # Errors
    /// `InvalidEndpoint` when there is no such peer.
    pub fn forget(&mut self, node: NodeId) -> Result<(), Code> {
        let addr = self.peers.get(node.slot(), node.generation()).ok_or(Code::InvalidEndpoint)?.addr;
        self.by_addr.remove(&addr, &self.peers);
        let mut peer = self.peers.remove(node.slot(), node.generation()).expect("seen above");
        self.tap.forget(node);
        self.callers -= usize::from(peer.is_caller());
        if let Some(session) = &peer.session {
            self.by_boot.remove(&session.boot, node.slot());
        }
        self.deadlines.arm(node.slot(), Instant::NEVER);
        self.ready.retain(|&slot| slot as usize != node.slot());
        for ticket in peer.take_waiting().filter_map(|(_, ticket)| ticket) {
            self.statuses.complete(ticket, Err(Code::InvalidEndpoint));
        }
        Ok(())
    }

    /// Where the peers are that sessions are held with.
    #[must_use]
    pub fn proved(&self) -> Vec<Addr> {
        self.peers.iter().filter(|p| p.2.session.is_some()).map(|p| p.2.addr).collect()
    }

    /// The peer at `addr`, when it is known.
    #[must_use]
    pub fn find(&self, addr: Addr) -> Option<NodeId> {
        let slot = self.by_addr.find(&addr, &self.peers)?;
        self.peers.at(slot).map(|(generation, _)| NodeId::new(slot, generation))
    }

    /// Peers held now, at most as many as [`Config::peers`].
    #[must_use]
    pub fn peers(&self) -> usize {
        self.peers.len()
    }

    /// Where a peer is, who it is and which start of it; identity and boot only when its session is proved.
    #[must_use]
    pub fn whereabouts(&self, node: NodeId) -> Option<(Addr, Option<(Identity, Boot)>)> {
        let peer = self.peers.get(node.slot(), node.generation())?;
        Some((peer.addr, peer.session.as_ref().map(|s| (s.identity, s.boot))))
    }

    /// The smoothed round trip to a peer, once measured by reliable traffic.
    #[must_use]
    pub fn round_trip(&self, node: NodeId) -> Option<Duration> {
        let rtt = self.peers.get(node.slot(), node.generation())?.rcl.as_ref()?.round_trip();
        (rtt > Duration::ZERO).then_some(rtt)
    }

    /// Sends a reliable message; it leaves when the driver next expires the link.
    ///
    /// # Errors
    /// `InvalidEndpoint`, `InvalidArgs` (over the cap), `LocalResource` or `RemoteResource` (wait for
    /// [`Output::Writable`]), `NotInitialized` (closed), or what the fault injector says. Nothing changed then.
    #[inline]
    pub fn send_reliable(&mut self, now: Instant, from: Port, to: Endpoint, message: &[u8]) -> Result<(), Code> {
        self.reliable(now, to.node, |rcl, config| rcl.send(now, from, to.port, message, config))
    }

    /// Sends a large immutable message reliably; in simulated networks by reference when so configured.
    ///
    /// # Errors
    /// As [`Link::send_reliable`].
    pub fn send_snapshot(
        &mut self,
        now: Instant,
        from: Port,
        to: Endpoint,
        snapshot: &Arc<dyn Snapshot>,
    ) -> Result<(), Code> {
        self.reliable(now, to.node, |rcl, config| rcl.send_snapshot(now, from, to.port, snapshot, config))
    }

    /// Ends reliable traffic to a peer once everything before has arrived.
    ///
    /// # Errors
    /// `InvalidEndpoint` when there is no such peer.
    pub fn close(&mut self, now: Instant, node: NodeId) -> Result<(), Code> {
        self.reliable(now, node, |rcl, _| {
            rcl.close();
            Ok(())
        })
    }

    #[inline]
    fn reliable<F>(&mut self, now: Instant, node: NodeId, act: F) -> Result<(), Code>
    where
        F: FnOnce(&mut Connection, &rcl::Config) -> Result<(), Code>,
    {
        if !self.tap.is_idle() {
            self.tap.allocate(now)?;
        }
        let peer = self.peers.get_mut(node.slot(), node.generation()).ok_or(Code::InvalidEndpoint)?;
        let config = rcl_config(&self.config, peer);
        let rcl = peer.rcl.get_or_insert_with(|| Box::new(Connection::new(now, &config)));
        act(rcl, &config)?;
        self.wake(now, node.slot());
        Ok(())
    }

    /// Sends a management message of that kind; returns its number.
    ///
    /// # Errors
    /// `InvalidEndpoint`, `InvalidArgs` (larger than a datagram holds), `LocalResource` (too many under way).
    pub fn send_managed(
        &mut self,
        now: Instant,
        kind: mml::Kind,
        from: Port,
        to: Endpoint,
        message: &[u8],
    ) -> Result<u64, Code> {
        if !self.tap.is_idle() {
            self.tap.allocate(now)?;
        }
        let peer = self.peers.get_mut(to.node.slot(), to.node.generation()).ok_or(Code::InvalidEndpoint)?;
        let config = mml::Config { largest_plain: plain_length(peer.largest), ..self.config.mml };
        let mml = channel(peer, &self.signer, self.boot);
        let number = mml.send(now, kind, Ports { from, to: to.port }, message, &config, &mut self.counters.mml)?;
        self.wake(now, to.node.slot());
        Ok(number)
    }

    /// Stops handing on reliable messages from a peer: its credit runs out and it waits.
    ///
    /// # Errors
    /// `InvalidEndpoint` when there is no such peer.
    pub fn hold(&mut self, now: Instant, node: NodeId) -> Result<(), Code> {
        self.reliable(now, node, |rcl, _| {
            rcl.hold();
            Ok(())
        })
    }

    /// Hands on what waited since [`Link::hold`].
    ///
    /// # Errors
    /// `InvalidEndpoint` when there is no such peer.
    pub fn release<S>(&mut self, now: Instant, node: NodeId, out: &mut S) -> Result<(), Code>
    where
        S: for<'a> Sink<Output<'a>>,
    {
        let peer = self.peers.get_mut(node.slot(), node.generation()).ok_or(Code::InvalidEndpoint)?;
        let config = rcl_config(&self.config, peer);
        if let Some(rcl) = &mut peer.rcl {
            let closed = rcl.release(&config, &mut self.counters.rcl, &mut |from, to, payload| {
                out.push(Output::Message { from: Endpoint { node, port: from }, to, payload });
            });
            if closed {
                out.push(Output::Closed { node });
            }
        }
        self.wake(now, node.slot());
        Ok(())
    }

    /// Bytes of reliable messages to a peer that wait or are unacknowledged.
    #[must_use]
    pub fn backlog(&self, node: NodeId) -> usize {
        self.peers.get(node.slot(), node.generation()).and_then(|p| p.rcl.as_ref()).map_or(0, |c| c.queued())
    }

    /// What became of a ticketed send; `None` when that was too long ago.
    #[must_use]
    pub fn status(&self, ticket: Ticket) -> Option<Status> {
        self.statuses.of(ticket)
    }
}

fn clamp(largest: usize) -> u16 {
    largest.clamp(usize::from(SMALLEST_DATAGRAM), usize::from(LARGEST_DATAGRAM)) as u16
}

/// Bytes inside the seal of a datagram of that length.
pub(super) fn plain_length(largest: u16) -> u16 {
    largest - (Short::LEN + TAG) as u16
}

/// The peer's management channel, bound to its session once there is one.
pub(super) fn channel<'p>(peer: &'p mut Peer, signer: &Signer, boot: Boot) -> &'p mut Channel {
    let session = peer.session.as_ref();
    peer.mml.get_or_insert_with(|| {
        let (nonce, end) = session.map_or((0, End::default()), |s| {
            (s.nonces.0, End { identity: s.identity, boot: s.boot, nonce: s.nonces.1 })
        });
        Box::new(Channel::new(Context::new(signer, boot, nonce, end)))
    })
}

#[inline]
pub(super) fn rcl_config(config: &Config, peer: &Peer) -> rcl::Config {
    rcl::Config { largest_plain: plain_length(peer.largest), credit: peer.credit, ..config.rcl }
}
