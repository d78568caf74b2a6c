//! The system calls of the UDP platform, each the cheapest that does its work.
//!
//! Measured on loopback, there and back on one core, µs: `recv_from` 11.9; `recvmsg` with GRO 12.3; a poll before
//! it 13.8 (epoll) or 14.7 (`ppoll`). So the blocking wait *is* a receive, and a plain one while traffic is light. `quinn-udp` would ask the kernel for a
//! time stamp, the service class and the interface of each datagram, and wants a socket that never blocks: we
//! speak to the kernel through `nix` instead.

use nix::cmsg_space;
use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, MultiHeaders, SockaddrIn, SockaddrIn6, SockaddrLike,
    SockaddrStorage, recvmsg, sendmmsg, sendto, setsockopt, sockopt,
};
use nix::time::{ClockId, clock_getres};
use phalanx_core::Duration;
use socket2::{Domain, Protocol, SockRef, Socket, Type};
use std::cell::RefCell;
use std::io::{IoSlice, IoSliceMut};
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::OnceLock;

/// Kernel buffers, each way: 10,000 small datagrams that wait while we are descheduled.
const KERNEL_BUFFER: usize = 4 << 20;
/// What one receive may bring: a datagram or a coalesced run of them.
const RECEIVE_BUFFER: usize = 1 << 16;
/// Datagrams in one run; the kernel takes 64 at least.
pub(super) const RUN_DATAGRAMS: usize = 64;
/// Bytes in one run, below the 65,507 that fit in an IPv4 packet.
pub(super) const RUN_BYTES: usize = 65_000;

thread_local! {
    /// The header of a run. `sendmsg` would allocate room for the control message each time; `sendmmsg` takes
    /// headers that were made before. They hold pointers, and a platform that held one could not change threads.
    static RUN_HEADER: RefCell<MultiHeaders<SockaddrStorage>> =
        RefCell::new(MultiHeaders::preallocate(1, Some(cmsg_space!(u16))));
}

/// What one receive brought: `len` bytes in the buffer, cut into datagrams of `stride` (the last may be shorter).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Received {
    pub(super) from: SocketAddr,
    pub(super) len: usize,
    pub(super) stride: usize,
}

/// Something the kernel learned about a datagram after it was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Late {
    /// Where the datagram was going.
    pub(super) to: SocketAddr,
    pub(super) errno: Errno,
}

/// A UDP socket in blocking mode (the wait is a receive) with its receive buffer.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) socket: UdpSocket,
    v4: bool,
    buffer: Box<[u8]>,
    control: Vec<u8>,
    coalescing: Coalescing,
    /// Receives in a row that nobody waited for; a host that spins gets a socket that never blocks.
    spins: u32,
    never_blocks: bool,
    patience: Patience,
    tick: Duration,
}

/// The kernel's tick: what its coarse clock goes by.
fn tick() -> Duration {
    static TICK: OnceLock<Duration> = OnceLock::new();
    *TICK.get_or_init(|| {
        let tick = clock_getres(ClockId::CLOCK_MONOTONIC_COARSE);
        tick.map_or(LONG, |t| std::time::Duration::from(t).into()).max(Duration::from_millis(1))
    })
}

/// So many, and we take it for spinning: a plain `recv_from` is then 0.1 µs cheaper than `recvmsg` with its flag.
const SPINNING: u32 = 256;

/// Whether the kernel joins datagrams of one sender (GRO). Only `recvmsg` tells where to cut them.
///
/// There is no way back from `On`: a run that was joined before the switch would come out in one piece, uncut.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Coalescing {
    /// This kernel cannot.
    Never,
    Off,
    On,
}

/// How long a receive may block. The kernel counts that in its ticks: cheaply, and not precisely.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Patience {
    /// A tick, while packets come and go: the next one is most likely here before.
    Tick,
    /// So long that a call is late when the datagram that carries it is lost: bells ring through the socket's own address, which may vanish
    /// with its interface.
    Long,
}

const LONG: Duration = Duration::from_millis(250);

impl Wire {
    /// Binds `at`; `shared` lets several sockets of a host bind the same port, as multicast needs.
    pub(super) fn bind(at: SocketAddr, shared: bool) -> std::io::Result<Self> {
        let socket = Socket::new(Domain::for_address(at), Type::DGRAM, Some(Protocol::UDP))?;
        if at.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.set_reuse_address(shared)?;
        enlarge(&socket)?;
        socket.bind(&at.into())?;
        let socket = UdpSocket::from(socket);
        // Without it a refused datagram to one of many peers would never be told.
        if at.is_ipv4() {
            setsockopt(&socket, sockopt::Ipv4RecvErr, &true)?;
        } else {
            setsockopt(&socket, sockopt::Ipv6RecvErr, &true)?;
        }
        socket.set_read_timeout(Some(LONG.into()))?;
        let buffer = vec![0; RECEIVE_BUFFER].into_boxed_slice();
        Ok(Self {
            socket,
            v4: at.is_ipv4(),
            buffer,
            control: cmsg_space!(i32),
            coalescing: Coalescing::Off,
            spins: 0,
            never_blocks: false,
            patience: Patience::Long,
            tick: tick(),
        })
    }

    /// What it had last.
    pub(super) fn patience(&self) -> Patience {
        self.patience
    }

    /// The most patience that ends before a deadline so far away.
    pub(super) fn patience_for(&self, left: Duration) -> Option<Patience> {
        // A tick has begun already, and another one ends it.
        let ends_by = |patience: Duration| patience + self.tick + self.tick <= left;
        if ends_by(LONG) { Some(Patience::Long) } else { ends_by(Duration::ZERO).then_some(Patience::Tick) }
    }

    /// Sends one datagram, without blocking.
    #[inline]
    pub(super) fn send(&self, to: SocketAddr, bytes: &[u8]) -> Result<(), Errno> {
        let fd = self.socket.as_raw_fd();
        match to {
            SocketAddr::V4(to) => sendto(fd, bytes, &SockaddrIn::from(to), MsgFlags::MSG_DONTWAIT)?,
            SocketAddr::V6(to) => sendto(fd, bytes, &SockaddrIn6::from(to), MsgFlags::MSG_DONTWAIT)?,
        };
        Ok(())
    }

    /// Sends a run of datagrams of `stride` bytes (the last may be shorter) in one call, without blocking or copying.
    pub(super) fn send_run(&self, to: SocketAddr, run: &[IoSlice<'_>], stride: usize) -> Result<(), Errno> {
        let stride = u16::try_from(stride).map_err(|_| Errno::EMSGSIZE)?;
        let segments = [ControlMessage::UdpGsoSegments(&stride)];
        let to = [Some(SockaddrStorage::from(to))];
        RUN_HEADER.with_borrow_mut(|header| {
            sendmmsg(self.socket.as_raw_fd(), header, &[run], to, segments, MsgFlags::MSG_DONTWAIT).map(drop)
        })
    }

    /// Lets the kernel join datagrams from now on, for bulk.
    pub(super) fn coalesce(&mut self) {
        if self.coalescing == Coalescing::Off {
            let on = setsockopt(&self.socket, sockopt::UdpGroSegment, &true).is_ok();
            self.coalescing = if on { Coalescing::On } else { Coalescing::Never };
        }
    }

    /// True when the kernel joins what it receives.
    pub(super) fn coalesces(&self) -> bool {
        self.coalescing == Coalescing::On
    }

    /// Receives a datagram or a coalesced run, without blocking.
    #[inline]
    pub(super) fn receive(&mut self) -> Result<Received, Errno> {
        if self.coalesces() {
            return self.receive_with(MsgFlags::MSG_DONTWAIT);
        }
        if self.never_blocks {
            return self.receive_plainly();
        }
        self.spins += 1;
        if self.spins >= SPINNING {
            self.never_blocks = self.socket.set_nonblocking(true).is_ok();
            self.spins = 0;
        }
        self.receive_with(MsgFlags::MSG_DONTWAIT)
    }

    /// Blocks until something is received, or until its patience ends (`EAGAIN`).
    #[inline]
    pub(super) fn receive_blocking(&mut self, patience: Patience) -> Result<Received, Errno> {
        self.spins = 0;
        if self.patience != patience {
            let most = if patience == Patience::Tick { self.tick } else { LONG };
            self.socket.set_read_timeout(Some(most.into())).map_err(errno)?;
            self.patience = patience;
        }
        if self.never_blocks {
            self.socket.set_nonblocking(false).map_err(errno)?;
            self.never_blocks = false;
        }
        if self.coalesces() {
            return self.receive_with(MsgFlags::empty());
        }
        self.receive_plainly()
    }

    #[inline]
    fn receive_plainly(&mut self) -> Result<Received, Errno> {
        match self.socket.recv_from(&mut self.buffer) {
            Ok((len, from)) => Ok(Received { from, len, stride: len.max(1) }),
            Err(e) => Err(errno(e)),
        }
    }

    #[inline]
    fn receive_with(&mut self, flags: MsgFlags) -> Result<Received, Errno> {
        if self.v4 { self.receive_as::<SockaddrIn>(flags) } else { self.receive_as::<SockaddrIn6>(flags) }
    }

    #[inline]
    fn receive_as<S: SockaddrLike + Into<SocketAddr>>(&mut self, flags: MsgFlags) -> Result<Received, Errno> {
        let mut slices = [IoSliceMut::new(&mut self.buffer)];
        let got = recvmsg::<S>(self.socket.as_raw_fd(), &mut slices, Some(&mut self.control), flags)?;
        let coalesced = got.cmsgs()?.find_map(|c| match c {
            ControlMessageOwned::UdpGroSegments(stride) => usize::try_from(stride).ok(),
            _ => None,
        });
        let len = got.bytes;
        let from = got.address.ok_or(Errno::EDESTADDRREQ)?.into();
        // Never zero: the buffer is cut by it.
        let stride = coalesced.unwrap_or(len).max(1);
        Ok(Received { from, len, stride })
    }

    /// The bytes of what was received last.
    pub(super) fn bytes(&mut self, received: Received) -> &mut [u8] {
        &mut self.buffer[..received.len]
    }

    /// Takes the next entry of the socket's error queue.
    pub(super) fn late(&self) -> Option<Late> {
        let mut control = cmsg_space!(nix::libc::sock_extended_err, nix::libc::sockaddr_in6);
        // Of the datagram that failed we want to know only where it went.
        let mut ignored = [0; 1];
        let mut slices = [IoSliceMut::new(&mut ignored)];
        let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
        let got = recvmsg::<SockaddrStorage>(self.socket.as_raw_fd(), &mut slices, Some(&mut control), flags).ok()?;
        let error = got.cmsgs().ok()?.find_map(|c| match c {
            ControlMessageOwned::Ipv4RecvErr(e, _) | ControlMessageOwned::Ipv6RecvErr(e, _) => Some(e),
            _ => None,
        })?;
        let errno = Errno::from_raw(i32::try_from(error.ee_errno).ok()?);
        let to = socket_addr(got.address.as_ref()?)?;
        Some(Late { to, errno })
    }
}

/// The MTU of the path from `local` to `to`, as the kernel knows it.
pub(super) fn path_mtu(local: SocketAddr, to: SocketAddr) -> Option<usize> {
    let socket = UdpSocket::bind(SocketAddr::new(local.ip(), 0)).ok()?;
    socket.connect(to).ok()?;
    // IP_MTU also answers for IPv6 sockets: it reads the route's entry.
    let mtu = nix::sys::socket::getsockopt(&socket, sockopt::IpMtu).ok()?;
    usize::try_from(mtu).ok()
}

fn errno(e: std::io::Error) -> Errno {
    e.raw_os_error().map_or(Errno::EIO, Errno::from_raw)
}

fn enlarge(socket: &Socket) -> std::io::Result<()> {
    // The forced variants pass the system's limit, and need a privilege.
    if setsockopt(socket, sockopt::RcvBufForce, &KERNEL_BUFFER).is_err() {
        SockRef::from(socket).set_recv_buffer_size(KERNEL_BUFFER)?;
    }
    if setsockopt(socket, sockopt::SndBufForce, &KERNEL_BUFFER).is_err() {
        SockRef::from(socket).set_send_buffer_size(KERNEL_BUFFER)?;
    }
    Ok(())
}

fn socket_addr(storage: &SockaddrStorage) -> Option<SocketAddr> {
    match storage.family()? {
        AddressFamily::Inet => storage.as_sockaddr_in().map(|a| SocketAddr::from(*a)),
        AddressFamily::Inet6 => storage.as_sockaddr_in6().map(|a| SocketAddr::from(*a)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    fn wire() -> Wire {
        Wire::bind((Ipv4Addr::LOCALHOST, 0).into(), false).unwrap()
    }

    fn run_to(sender: &Wire, receiver: &Wire) -> Vec<Vec<u8>> {
        let parts: Vec<Vec<u8>> = (0..5).map(|i| vec![i; if i == 4 { 60 } else { 100 }]).collect();
        let slices: Vec<_> = parts.iter().map(|p| IoSlice::new(p)).collect();
        sender.send_run(receiver.socket.local_addr().unwrap(), &slices, 100).unwrap();
        parts
    }

    /// CL-1: without coalescing the kernel cuts a run before we see it.
    #[test]
    fn a_run_arrives_cut_while_nothing_is_joined() {
        let (sender, mut receiver) = (wire(), wire());
        for part in run_to(&sender, &receiver) {
            let got = receiver.receive_blocking(Patience::Long).unwrap();
            assert_eq!((got.len, receiver.bytes(got).to_vec()), (part.len(), part));
        }
    }

    /// CL-2: many datagrams to one peer are one call out and one call in, and arrive as they were.
    #[test]
    fn a_run_goes_out_and_comes_in_as_one() {
        let (sender, mut receiver) = (wire(), wire());
        receiver.coalesce();
        let parts = run_to(&sender, &receiver);
        let got = receiver.receive().unwrap();
        assert_eq!((got.from, got.len, got.stride), (sender.socket.local_addr().unwrap(), 460, 100));
        let cut: Vec<Vec<u8>> = receiver.bytes(got).chunks(100).map(<[u8]>::to_vec).collect();
        assert_eq!(cut, parts);
    }

    #[test]
    fn a_refused_datagram_is_told_with_the_place_it_went_to() {
        let sender = wire();
        let closed = wire().socket.local_addr().unwrap();
        sender.send(closed, b"anybody there?").unwrap();
        assert_eq!(sender.late(), Some(Late { to: closed, errno: Errno::ECONNREFUSED }));
        assert_eq!(sender.late(), None);
    }

    #[test]
    fn loopback_has_a_large_mtu() {
        let local = wire().socket.local_addr().unwrap();
        assert!(path_mtu(local, local).unwrap() >= 16_384);
    }
}
