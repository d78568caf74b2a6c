//! CL over TCP, for networks that drop or forbid UDP: datagrams above, connections managed beneath.
//!
//! The first packet to an address connects; idle connections end. Two nodes that connect to each other at the same
//! time keep the connection that the smaller address opened; what waits on the other moves over, what was begun
//! is finished, so nothing is lost. Each queue and the table of connections are bounded. There is no multicast.

mod connection;

use super::errno::code_of_io;
use super::poller::Poller;
use super::{LARGEST_DATAGRAM, Platform, TROUBLE_KEPT, Waker, Woke, checked_len};
use crate::clock::Clock;
use connection::{Arrival, Connection, End, SCRATCH, Unsent};
use nix::errno::Errno;
use nix::sys::epoll::EpollFlags;
use nix::sys::eventfd::{EfdFlags, EventFd};
use phalanx_core::{Addr, Buf, Code, Duration, Group, Instant, Ring, Slab};
use socket2::{Domain, Protocol, Socket, Type};
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Connections accepted in one receive.
const ACCEPTS: usize = 16;
/// A connection is idle when it was quiet for that many sweeps.
const SWEEPS: u32 = 4;
/// Receives between two looks at the clock, for hosts that spin and never wait.
const CLOCK_EVERY: u32 = 256;
/// Connections that may wait to be accepted.
const BACKLOG: i32 = 1024;
/// Marks in the poller that are no connection.
const LISTENER: u64 = u64::MAX - 1;
const BELL: u64 = u64::MAX - 2;

/// How to open the platform. `Options::at(address)` has the usual values.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Where to listen; port 0 takes any.
    pub bind: SocketAddr,
    /// The address peers reach us at, when it is not the bound one.
    pub advertise: Option<SocketAddr>,
    /// Connections at the same time, both ways together.
    pub max_connections: usize,
    /// A connection without traffic for so long is closed.
    pub idle: Duration,
}

impl Options {
    /// Listens at `bind`, all else as usual.
    #[must_use]
    pub fn at(bind: SocketAddr) -> Self {
        Self { bind, advertise: None, max_connections: 4096, idle: Duration::from_secs(120) }
    }
}

/// What happened, for metrics.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Packets dropped because too much waited for their peer.
    pub dropped: u64,
    /// Connections we opened.
    pub opened: u64,
    /// Connections we took.
    pub accepted: u64,
    /// Connections turned away because the table was full.
    pub turned_away: u64,
    /// Peers cut off for not speaking the protocol.
    pub nonsense: u64,
    /// Connections lost: reset, refused, ended without goodbye.
    pub lost: u64,
    /// Connections closed because nothing was said for a while.
    pub idle: u64,
    /// Second connections between the same two nodes, closed.
    pub doubles: u64,
}

/// A connection's place in the table, with the place's generation.
type Key = (usize, u8);

/// The TCP platform.
pub struct Tcp {
    listener: TcpListener,
    local: SocketAddr,
    advertised: Addr,
    clock: Clock,
    poller: Poller,
    bell: Arc<EventFd>,
    /// The bell was heard by a receive; the next wait ends at once.
    called: bool,
    connections: Slab<Connection>,
    /// Where packets to an address go. Looked up, never walked: the order of a hash map is nobody's business.
    routes: HashMap<SocketAddr, Key>,
    /// Told by the poller, not handled yet.
    ready: Vec<(u64, EpollFlags)>,
    /// Connections with something to write.
    dirty: Vec<Key>,
    /// Tickets that ended outside a flush.
    ended: Vec<(u32, Result<(), Code>)>,
    unsent: Vec<Unsent>,
    scratch: Box<[u8]>,
    sweep_at: Instant,
    sweep_every: Duration,
    receives: u32,
    troubles: Ring<(Addr, Code)>,
    counts: Counts,
}

impl Tcp {
    /// Opens the platform.
    ///
    /// # Errors
    /// What the system said; nothing stays open.
    pub fn open(options: Options) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(options.bind), Type::STREAM, Some(Protocol::TCP))?;
        if options.bind.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        // A restarted daemon takes its port back at once.
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&options.bind.into())?;
        socket.listen(BACKLOG)?;
        let listener = TcpListener::from(socket);
        let local = listener.local_addr()?;
        let bell = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        let poller = Poller::new()?;
        poller.add(&listener, LISTENER, EpollFlags::EPOLLIN)?;
        poller.add(&bell, BELL, EpollFlags::EPOLLIN)?;
        let sweep_every = options.idle / u64::from(SWEEPS);
        Ok(Self {
            listener,
            local,
            advertised: Addr::Ip(options.advertise.unwrap_or(local)),
            clock: Clock::start(),
            poller,
            bell: Arc::new(bell),
            called: false,
            connections: Slab::new(options.max_connections),
            routes: HashMap::new(),
            ready: Vec::new(),
            dirty: Vec::new(),
            ended: Vec::new(),
            unsent: Vec::new(),
            scratch: vec![0; SCRATCH].into_boxed_slice(),
            sweep_at: Instant::ZERO + sweep_every,
            sweep_every,
            receives: 0,
            troubles: Ring::new(TROUBLE_KEPT),
            counts: Counts::default(),
        })
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Connections at the moment, those that are being opened or closed included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }
}

/// Readable when there is something to receive or to flush: for one who waits for many at once, and not in [`Platform::wait`].
impl AsFd for Tcp {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.poller.as_fd()
    }
}

impl Platform for Tcp {
    fn local(&self) -> Addr {
        self.advertised
    }

    fn max_datagram(&mut self, _: Addr) -> usize {
        LARGEST_DATAGRAM
    }

    fn send(&mut self, to: Addr, mut packet: Buf, ticket: Option<u32>) -> Result<(), Code> {
        let Addr::Ip(to) = to else {
            return Err(Code::InvalidEndpoint);
        };
        if to.is_ipv4() != self.local.is_ipv4() {
            return Err(Code::InvalidEndpoint);
        }
        checked_len(&packet, LARGEST_DATAGRAM)?;
        packet.materialize();
        let key = match self.routes.get(&to) {
            Some(&key) => key,
            None => self.connect(to)?,
        };
        self.queue(key, Unsent { packet, ticket });
        Ok(())
    }

    fn flush(&mut self, done: &mut impl FnMut(u32, Result<(), Code>)) {
        while let Some(key) = self.dirty.pop() {
            let Some(connection) = self.connections.get_mut(key.0, key.1) else {
                continue;
            };
            connection.dirty = false;
            if !connection.can_write() {
                continue;
            }
            let outcome = connection.write(&mut |ticket| done(ticket, Ok(())));
            let (choked, over) = (connection.choked, connection.is_over());
            match outcome {
                Err(end) => self.close(key, end),
                Ok(()) if over => self.close(key, End::Agreed),
                Ok(()) if choked => self.watch(key),
                Ok(()) => {}
            }
        }
        self.ended.drain(..).for_each(|(ticket, outcome)| done(ticket, outcome));
    }

    fn receive(&mut self, each: &mut impl FnMut(Addr, &mut [u8])) -> Result<usize, Code> {
        self.receives += 1;
        if self.receives >= CLOCK_EVERY {
            self.receives = 0;
            self.sweep(self.clock.now());
        }
        if self.ready.is_empty() {
            let ready = &mut self.ready;
            self.poller.poll(&mut |mark, what| ready.push((mark, what)));
        }
        let mut count = 0;
        while let Some((mark, what)) = self.ready.pop() {
            match mark {
                LISTENER => self.accept(),
                BELL => self.called |= self.bell.read().is_ok(),
                mark => count += self.serve(key_of(mark), what, each),
            }
        }
        Ok(count)
    }

    fn wait(&mut self, until: Instant) -> Woke {
        loop {
            if !self.ready.is_empty() {
                return Woke::Ready;
            }
            if std::mem::take(&mut self.called) {
                return Woke::Called;
            }
            let ready = &mut self.ready;
            let told =
                self.poller.wait(&self.clock, until.min(self.sweep_at), &mut |mark, what| ready.push((mark, what)));
            self.ready.retain(|&(mark, _)| mark != BELL);
            match told {
                Err(_) => return Woke::Called,
                // Only the bell was told, and it was taken out.
                Ok(n) if n > self.ready.len() => {
                    let _ = self.bell.read();
                    return Woke::Called;
                }
                Ok(0) => {
                    let now = self.clock.now();
                    if now >= until {
                        return Woke::Deadline;
                    }
                    if self.sweep(now) {
                        return Woke::Ready;
                    }
                }
                Ok(_) => return Woke::Ready,
            }
        }
    }

    fn waker(&self) -> Waker {
        let bell = Arc::clone(&self.bell);
        Waker::new(move || {
            // Fails only when 2⁶⁴ calls wait already.
            let _ = bell.write(1);
        })
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn join(&mut self, _: Group) -> Result<(), Code> {
        Err(Code::InvalidEndpoint)
    }

    fn leave(&mut self, _: Group) -> Result<(), Code> {
        Err(Code::InvalidEndpoint)
    }

    fn trouble(&mut self) -> Option<(Addr, Code)> {
        self.troubles.pop()
    }
}

/// Opening and routing.
impl Tcp {
    fn connect(&mut self, to: SocketAddr) -> Result<Key, Code> {
        let stream = open_stream(self.local, to).map_err(|e| code_of_io(&e))?;
        let connection = Connection::opened(stream, to, self.local.port());
        let key = self.connections.insert(connection).ok_or(Code::LocalResource)?;
        if let Some(connection) = self.connections.get(key.0, key.1)
            && self.poller.add(&connection.stream, mark_of(key), EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT).is_err()
        {
            self.connections.remove(key.0, key.1);
            return Err(Code::LocalResource);
        }
        self.counts.opened += 1;
        self.routes.insert(to, key);
        Ok(key)
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS {
            let Ok((stream, _)) = self.listener.accept() else {
                return;
            };
            if stream.set_nonblocking(true).is_err() || stream.set_nodelay(true).is_err() {
                continue;
            }
            let Some(key) = self.connections.insert(Connection::accepted(stream)) else {
                self.counts.turned_away += 1;
                continue;
            };
            self.counts.accepted += 1;
            if let Some(connection) = self.connections.get(key.0, key.1)
                && self.poller.add(&connection.stream, mark_of(key), EpollFlags::EPOLLIN).is_err()
            {
                self.connections.remove(key.0, key.1);
            }
        }
    }

    /// Queues a packet on a connection; past its bound the packet is dropped and its ticket fails.
    fn queue(&mut self, key: Key, Unsent { packet, ticket }: Unsent) {
        let Some(connection) = self.connections.get_mut(key.0, key.1) else {
            self.ended.extend(ticket.map(|t| (t, Err(Code::Unreachable))));
            return;
        };
        if let Err(refused) = connection.send(packet, ticket) {
            self.counts.dropped += 1;
            self.ended.extend(refused.ticket.map(|t| (t, Err(Code::RemoteResource))));
            return;
        }
        self.soil(key);
    }

    fn soil(&mut self, key: Key) {
        if let Some(connection) = self.connections.get_mut(key.0, key.1)
            && !connection.dirty
        {
            connection.dirty = true;
            self.dirty.push(key);
        }
    }

    /// Tells the poller what we wait for on a connection.
    fn watch(&mut self, key: Key) {
        if let Some(connection) = self.connections.get(key.0, key.1) {
            let mut interest = EpollFlags::EPOLLIN;
            interest.set(EpollFlags::EPOLLOUT, connection.choked);
            if self.poller.change(&connection.stream, mark_of(key), interest).is_err() {
                self.close(key, End::Lost(Code::LocalResource));
            }
        }
    }

    /// A connection's peer said where it listens: packets there take it, unless a better one exists.
    fn on_hello(&mut self, key: Key) {
        let Some(connection) = self.connections.get(key.0, key.1) else {
            return;
        };
        let (Some(peer), Ok(own)) = (connection.peer, connection.stream.local_addr()) else {
            return;
        };
        let own = SocketAddr::new(own.ip(), self.local.port());
        let Some(&other) = self.routes.get(&peer) else {
            self.routes.insert(peer, key);
            return;
        };
        let ours = self.connections.get(other.0, other.1).is_some_and(|c| c.initiated);
        if ours && own < peer {
            // Ours stays. The peer sees the same two connections, decides alike, and ends its own.
            return;
        }
        // Theirs stays; or the peer came back, and what we had leads nowhere.
        self.counts.doubles += 1;
        self.routes.insert(peer, key);
        self.retire(other);
    }

    /// Ends a connection on purpose: what was begun is finished, the rest finds another way.
    fn retire(&mut self, key: Key) {
        let Some(connection) = self.connections.get_mut(key.0, key.1) else {
            return;
        };
        let mut unsent = std::mem::take(&mut self.unsent);
        connection.leave(&mut unsent);
        let peer = connection.peer;
        let unused = connection.connecting;
        if let Some(peer) = peer {
            if self.routes.get(&peer) == Some(&key) {
                self.routes.remove(&peer);
            }
            self.reroute(peer, &mut unsent);
        }
        self.unsent = unsent;
        if unused {
            self.close(key, End::Agreed);
        } else {
            self.soil(key);
        }
    }

    fn reroute(&mut self, peer: SocketAddr, unsent: &mut Vec<Unsent>) {
        for unsent in unsent.drain(..) {
            let key = self.routes.get(&peer).copied().map_or_else(|| self.connect(peer), Ok);
            match key {
                Ok(key) => self.queue(key, unsent),
                Err(code) => self.ended.extend(unsent.ticket.map(|t| (t, Err(code)))),
            }
        }
    }

    /// A connection is over. What it still held fails, unless another leads to the same peer.
    fn close(&mut self, key: Key, end: End) {
        let Some(mut connection) = self.connections.remove(key.0, key.1) else {
            return;
        };
        self.poller.remove(&connection.stream);
        let code = match end {
            End::Agreed => None,
            End::Lost(code) => {
                self.counts.lost += 1;
                Some(code)
            }
            End::Nonsense => {
                self.counts.nonsense += 1;
                Some(Code::Unreachable)
            }
        };
        let Some(peer) = connection.peer else {
            return;
        };
        let mut unsent = std::mem::take(&mut self.unsent);
        connection.abandon(&mut unsent);
        if self.routes.get(&peer) == Some(&key) {
            self.routes.remove(&peer);
            let spare = self.connections.iter().find(|(_, _, c)| c.peer == Some(peer) && !c.leaving);
            if let Some((slot, generation, _)) = spare {
                self.routes.insert(peer, (slot, generation));
            }
        }
        if self.routes.contains_key(&peer) {
            self.reroute(peer, &mut unsent);
        } else {
            let code = code.unwrap_or(Code::Unreachable);
            self.ended.extend(unsent.drain(..).filter_map(|u| Some((u.ticket?, Err(code)))));
        }
        self.unsent = unsent;
        if let Some(code) = code {
            self.troubles.push_evicting((Addr::Ip(peer), code));
        }
    }
}

/// Serving.
impl Tcp {
    fn serve(&mut self, key: Key, what: EpollFlags, each: &mut impl FnMut(Addr, &mut [u8])) -> usize {
        let Some(connection) = self.connections.get_mut(key.0, key.1) else {
            return 0;
        };
        if what.intersects(EpollFlags::EPOLLOUT | EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP) && connection.choked {
            if let Err(end) = connection.finish_connect() {
                self.close(key, end);
                return 0;
            }
            self.watch(key);
            self.soil(key);
        }
        let Some(connection) = self.connections.get_mut(key.0, key.1) else {
            return 0;
        };
        if !what.intersects(EpollFlags::EPOLLIN | EpollFlags::EPOLLERR | EpollFlags::EPOLLHUP) {
            return 0;
        }
        let (mut count, mut hello, mut goodbye) = (0, false, false);
        let known = connection.peer;
        // The hello's address is known only inside the connection until the read is over.
        let from = known.map(Addr::Ip).or_else(|| connection.stream.peer_addr().ok().map(Addr::Ip));
        let mut from = from.unwrap_or(self.advertised);
        let outcome = connection.read(&mut self.scratch, &mut |arrival| match arrival {
            Arrival::Packet(bytes) => {
                each(from, bytes);
                count += 1;
            }
            Arrival::Hello(port) => {
                if let Addr::Ip(address) = &mut from {
                    address.set_port(port);
                }
                hello = true;
            }
            Arrival::Goodbye => goodbye = true,
        });
        if hello {
            self.on_hello(key);
        }
        if goodbye {
            self.retire(key);
        }
        if let Err(end) = outcome {
            self.close(key, end);
        } else if self.connections.get(key.0, key.1).is_some_and(Connection::is_over) {
            self.close(key, End::Agreed);
        }
        count
    }

    /// Ends idle connections, and cuts off those that take too long to end. True when there is something to flush.
    fn sweep(&mut self, now: Instant) -> bool {
        if now < self.sweep_at {
            return false;
        }
        self.sweep_at = now + self.sweep_every;
        let mut idle = Vec::new();
        for (slot, generation, connection) in self.connections.iter_mut() {
            connection.quiet += 1;
            if connection.quiet > SWEEPS {
                idle.push((slot, generation));
            }
        }
        for key in idle {
            let Some(connection) = self.connections.get_mut(key.0, key.1) else {
                continue;
            };
            connection.quiet = 0;
            // No hello, no connect, no goodbye in all that time: it does not deserve another.
            if connection.peer.is_none() || connection.connecting || connection.leaving {
                self.close(key, End::Lost(Code::Unreachable));
            } else {
                self.counts.idle += 1;
                self.retire(key);
            }
        }
        !self.dirty.is_empty() || !self.ended.is_empty()
    }
}

fn open_stream(local: SocketAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    if !local.ip().is_unspecified() {
        // The peer takes the address it sees for ours.
        socket.bind(&SocketAddr::new(local.ip(), 0).into())?;
    }
    match socket.connect(&to.into()) {
        Ok(()) => {}
        Err(e) if e.raw_os_error() == Some(Errno::EINPROGRESS as i32) => {}
        Err(e) => return Err(e),
    }
    Ok(socket.into())
}

fn mark_of(key: Key) -> u64 {
    key.0 as u64 | u64::from(key.1) << 32
}

fn key_of(mark: u64) -> Key {
    ((mark & u64::from(u32::MAX)) as usize, (mark >> 32) as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open_with(change: impl FnOnce(&mut Options)) -> Tcp {
        let mut options = Options::at("127.0.0.1:0".parse().unwrap());
        change(&mut options);
        Tcp::open(options).unwrap()
    }

    fn open() -> Tcp {
        open_with(|_| {})
    }

    fn send(from: &mut Tcp, to: Addr, byte: u8) {
        from.send(to, Buf::copy_of(&[byte; 50]), None).unwrap();
    }

    /// Lets all of them work until `enough`, at most five seconds; returns what each received.
    fn work(nodes: &mut [&mut Tcp], enough: impl Fn(&[&mut Tcp], &[Vec<u8>]) -> bool) -> Vec<Vec<u8>> {
        let mut got = vec![Vec::new(); nodes.len()];
        for _ in 0..5000 {
            for (node, got) in nodes.iter_mut().zip(&mut got) {
                node.flush(&mut |_, _| {});
                node.wait(node.now() + Duration::from_micros(500));
                node.receive(&mut |_, bytes| got.push(bytes[0])).unwrap();
                node.flush(&mut |_, _| {});
            }
            if enough(nodes, &got) {
                return got;
            }
        }
        panic!("not enough: {got:?}");
    }

    /// CL-1: replies take the same address, over the same connection.
    #[test]
    fn a_reply_uses_the_connection_it_answers() {
        let (mut a, mut b) = (open(), open());
        let to_b = b.local();
        send(&mut a, to_b, 1);
        let mut from = None;
        while from.is_none() {
            a.flush(&mut |_, _| {});
            a.wait(a.now() + Duration::from_millis(1));
            a.receive(&mut |_, _| {}).unwrap();
            b.wait(b.now() + Duration::from_millis(1));
            b.receive(&mut |addr, _| from = Some(addr)).unwrap();
        }
        assert_eq!(from, Some(a.local()));
        send(&mut b, a.local(), 2);
        assert_eq!(work(&mut [&mut a, &mut b], |_, got| got[0].len() == 1)[0], [2]);
        assert_eq!((a.counts().accepted, b.counts().accepted, b.counts().opened), (0, 1, 0));
    }

    /// CL-1: whoever connects first, one connection stays and every packet arrives.
    #[test]
    fn simultaneous_connects_end_as_one_and_lose_nothing() {
        let (mut a, mut b) = (open(), open());
        let (at_a, at_b) = (a.local(), b.local());
        for i in 0..100 {
            send(&mut a, at_b, i);
            send(&mut b, at_a, i);
        }
        let mut got = work(&mut [&mut a, &mut b], |nodes, got| {
            got.iter().all(|g| g.len() >= 100) && nodes.iter().all(|n| n.connections() == 1)
        });
        for got in &mut got {
            got.sort_unstable();
            assert_eq!(*got, (0..100).collect::<Vec<u8>>());
        }
        assert_eq!((a.counts().lost, b.counts().lost), (0, 0));
        assert_eq!(a.counts().doubles + b.counts().doubles, 1);
    }

    #[test]
    fn an_idle_connection_ends_quietly_and_the_next_packet_opens_another() {
        let mut a = open_with(|o| o.idle = Duration::from_millis(20));
        let mut b = open();
        let to_b = b.local();
        send(&mut a, to_b, 1);
        work(&mut [&mut a, &mut b], |nodes, got| got[1].len() == 1 && nodes.iter().all(|n| n.connections() == 0));
        assert_eq!((a.counts().idle, a.counts().lost, b.counts().lost, b.trouble()), (1, 0, 0, None));
        send(&mut a, to_b, 2);
        assert_eq!(work(&mut [&mut a, &mut b], |_, got| got[1].len() == 1)[1], [2]);
    }

    #[test]
    fn a_full_table_refuses_ours_and_turns_theirs_away() {
        let mut a = open_with(|o| o.max_connections = 1);
        let (mut b, mut c) = (open(), open());
        send(&mut a, b.local(), 1);
        assert_eq!(a.send(c.local(), Buf::copy_of(&[1]), None), Err(Code::LocalResource));
        send(&mut c, a.local(), 1);
        work(&mut [&mut a, &mut b, &mut c], |nodes, got| got[1].len() == 1 && nodes[0].counts().turned_away == 1);
    }

    #[test]
    fn a_peer_that_dies_is_trouble() {
        let (mut a, mut b) = (open(), open());
        let to_b = b.local();
        send(&mut a, to_b, 1);
        work(&mut [&mut a, &mut b], |_, got| got[1].len() == 1);
        drop(b);
        work(&mut [&mut a], |nodes, _| nodes[0].counts().lost == 1);
        assert_eq!(a.trouble(), Some((to_b, Code::Unreachable)));
    }
}
