//! CL: unreliable datagrams between endpoints and to groups (CL-1, CL-2).

use super::count::Dropped;
use super::peer::Peer;
use super::replay::Replay;
use super::status::Ticket;
use super::{DATAGRAM_OVERHEAD, LARGEST_DATAGRAM, Link, Output, local};
use phalanx_core::buf::Attachment;
use phalanx_core::{Addr, Buf, Code, Endpoint, Group, Instant, NodeId, Port, Sink};
use phalanx_wire::layer::{Layer, Ports, layer_of};
use phalanx_wire::outer::{Kind, Long, Short, TAG};

/// Head room that a buffer needs to be sent without a copy.
const HEAD_ROOM: usize = Short::LEN + Ports::LEN;

impl Link {
    /// CL-2: a buffer for a payload of up to `capacity` bytes, to be filled and given to [`Link::send_buffer`].
    ///
    /// # Errors
    /// `InvalidArgs` when no datagram is that large; `LocalResource` when the fault injector says so.
    pub fn buffer(&mut self, now: Instant, capacity: usize) -> Result<Buf, Code> {
        self.tap.allocate(now)?;
        if capacity + DATAGRAM_OVERHEAD > usize::from(LARGEST_DATAGRAM) {
            return Err(Code::InvalidArgs);
        }
        Ok(Buf::new(HEAD_ROOM, capacity + TAG))
    }

    /// Sends a datagram. It may be lost; it is never changed, doubled or forged.
    ///
    /// # Errors
    /// `InvalidEndpoint` (no such peer), `InvalidArgs` (empty, or larger than the path carries), or what the fault
    /// injector says. Nothing changed then.
    #[inline]
    pub fn send<S>(&mut self, now: Instant, from: Port, to: Endpoint, payload: &[u8], out: &mut S) -> Result<(), Code>
    where
        S: for<'a> Sink<Output<'a>>,
    {
        let mut packet = Buf::new(HEAD_ROOM, payload.len() + TAG);
        packet.extend(payload);
        self.send_packet(now, from, to, packet, None, out)
    }

    /// CL-2: sends a buffer from [`Link::buffer`] without copying it; the ticket tells later what became of it.
    ///
    /// # Errors
    /// As [`Link::send`]; `InvalidBuffer` when the buffer has no room for our headers; `LocalResource` when too many
    /// ticketed sends are under way.
    pub fn send_buffer<S>(
        &mut self,
        now: Instant,
        from: Port,
        to: Endpoint,
        buffer: Buf,
        out: &mut S,
    ) -> Result<Ticket, Code>
    where
        S: for<'a> Sink<Output<'a>>,
    {
        if buffer.head_room() < HEAD_ROOM {
            return Err(Code::InvalidBuffer);
        }
        check_length(self.peers.get(to.node.slot(), to.node.generation()), buffer.len())?;
        let ticket = self.statuses.issue()?;
        self.send_packet(now, from, to, buffer, Some(ticket), out)
            .inspect_err(|&code| self.statuses.complete(ticket, Err(code)))?;
        Ok(ticket)
    }

    #[inline]
    fn send_packet<S>(
        &mut self,
        now: Instant,
        from: Port,
        to: Endpoint,
        mut packet: Buf,
        ticket: Option<Ticket>,
        out: &mut S,
    ) -> Result<(), Code>
    where
        S: for<'a> Sink<Output<'a>>,
    {
        let (slot, generation) = (to.node.slot(), to.node.generation());
        check_length(self.peers.get(slot, generation), packet.len())?;
        Ports { from, to: to.port }.encode(packet.prepend(Ports::LEN));
        let peer = self.peers.get_mut(slot, generation).ok_or(Code::InvalidEndpoint)?;
        if peer.session.is_some() {
            return self.transmit_plain(now, to.node, packet, ticket, out);
        }
        if let Some((_, Some(old))) = peer.wait(packet, ticket) {
            self.statuses.complete(old, Err(Code::LocalResource));
        }
        self.wake(now, slot);
        Ok(())
    }

    /// Sends a datagram to everybody in a group within its scope.
    ///
    /// # Errors
    /// `InvalidEndpoint` when the platform has no groups, `InvalidArgs` (empty, or too large for any path).
    pub fn send_group<S>(&mut self, from: Port, group: Group, to: Port, payload: &[u8], out: &mut S) -> Result<(), Code>
    where
        S: for<'a> Sink<Output<'a>>,
    {
        if !self.config.groups {
            return Err(Code::InvalidEndpoint);
        }
        if payload.is_empty() || payload.len() + Long::LEN + Ports::LEN + TAG > GROUP_DATAGRAM {
            return Err(Code::InvalidArgs);
        }
        let mut packet = Buf::new(Long::LEN + Ports::LEN, payload.len() + TAG);
        packet.extend(payload);
        Ports { from, to }.encode(packet.prepend(Ports::LEN));
        let counter = self.group_counter;
        self.group_counter += 1;
        let long = Long { kind: Kind::Group, key: self.group.0, group: group.number, boot: self.boot, counter };
        long.encode(packet.prepend(Long::LEN));
        let (header, body) = packet.bytes_mut().split_at_mut(Long::LEN);
        let seal = self.group.1.seal(counter, header, body);
        packet.extend(&seal);
        self.counters.sent += 1;
        out.push(Output::Transmit { to: Addr::Group(group), packet, ticket: None, answer: false });
        Ok(())
    }

    pub(crate) fn on_group<S>(
        &mut self,
        now: Instant,
        from: Addr,
        bytes: &mut [u8],
        attached: Option<&Attachment>,
        out: &mut S,
    ) -> Result<(), Dropped>
    where
        S: for<'a> Sink<Output<'a>>,
    {
        let long = Long::parse(bytes)?;
        if long.boot == self.boot {
            return Err(Dropped::Reflected);
        }
        let Some(slot) = self.by_boot.find(&long.boot, &self.peers) else {
            self.challenge(now, from, out);
            return Err(Dropped::Unverified);
        };
        let (generation, peer) = self.peers.at_mut(slot).expect("indexed peers exist");
        let session = peer.session.as_mut().expect("only proved boots are indexed");
        let (floor, ring) = (session.group_floor, &self.ring);
        if session.group.as_ref().is_none_or(|g| g.0 != long.key) {
            let cipher = ring.group(long.key, &long.boot).ok_or(Dropped::UnknownKey)?;
            let replay = session.group.take().map_or_else(|| Replay::from(floor), |g| g.2);
            session.group = Some(Box::new((long.key, cipher, replay)));
        }
        let (_, cipher, replay) = &mut **session.group.as_mut().expect("made above");
        if !replay.admits(long.counter) {
            return Err(Dropped::Replayed);
        }
        let (header, sealed) = bytes.split_at_mut(Long::LEN);
        let body = cipher.open(long.counter, header, sealed).ok_or(Dropped::BadSeal)?;
        replay.mark(long.counter);
        let node = NodeId::new(slot, generation);
        if attached.is_some() || layer_of(body) != Ok(Layer::Cl) {
            return Err(Dropped::Malformed);
        }
        self.tapped(now, node, body, out);
        Ok(())
    }

    /// Group datagrams pass the `plain` injector on the way in, like all others; on the way out they have no peer that a
    /// rule could name.
    fn tapped<S>(&mut self, now: Instant, node: NodeId, body: &mut [u8], out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        if self.tap.is_idle() {
            return self.on_datagram(node, body, true, out);
        }
        let mut tap = std::mem::replace(&mut self.tap, phalanx_fault::Injector::new(0));
        tap.receive(now, node, body, None, &mut |node, body, _| self.on_datagram(node, body, true, out));
        self.tap = tap;
    }

    #[inline]
    pub(crate) fn on_datagram<S>(&mut self, node: NodeId, plain: &[u8], group: bool, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        match Ports::parse(plain) {
            Ok(ports) => out.push(Output::Datagram {
                from: Endpoint { node, port: ports.from },
                to: ports.to,
                group,
                payload: &plain[Ports::LEN..],
            }),
            Err(malformed) => self.counters.drop(malformed.into()),
        }
    }
}

/// What an Ethernet frame carries: group datagrams have no path to be measured.
const GROUP_DATAGRAM: usize = 1452;

#[inline]
fn check_length(peer: Option<&Peer>, length: usize) -> Result<(), Code> {
    let peer = peer.ok_or(Code::InvalidEndpoint)?;
    if length == 0 || length + Ports::LEN > usize::from(local::plain_length(peer.largest)) {
        return Err(Code::InvalidArgs);
    }
    Ok(())
}
