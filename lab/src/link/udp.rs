//! Raw UDP, the yardstick: a system call for each message, plain or with one seal and one open.

use super::seal::Seal;
use super::{ANY_PORT, Channel, Layer, Listener, Mode, Opened, SOCKET_BUFFER, Tally, address};
use crate::error::Error;
use nix::sys::socket::{setsockopt, sockopt};
use std::io;
use std::net::{SocketAddr, UdpSocket};

/// `udp` names the destination in each call; `udp-connected` leaves it to the kernel; `udp-sealed` is `udp` with a seal.
pub(super) const LAYERS: &[Layer] = &[
    Layer {
        name: "udp",
        latency: true,
        throughput: true,
        listen: |mode| listen(mode, Kind { connected: false, sealed: false }),
        connect: |mode, to| connect(mode, to, Kind { connected: false, sealed: false }),
    },
    Layer {
        name: "udp-connected",
        latency: true,
        throughput: false,
        listen: |mode| listen(mode, Kind { connected: true, sealed: false }),
        connect: |mode, to| connect(mode, to, Kind { connected: true, sealed: false }),
    },
    Layer {
        name: "udp-sealed",
        latency: true,
        throughput: false,
        listen: |mode| listen(mode, Kind { connected: false, sealed: true }),
        connect: |mode, to| connect(mode, to, Kind { connected: false, sealed: true }),
    },
];

/// The largest datagram.
const DATAGRAM: usize = 65_535;

#[derive(Clone, Copy)]
struct Kind {
    connected: bool,
    sealed: bool,
}

fn listen(mode: Mode, kind: Kind) -> Result<Listener, Error> {
    let (socket, invitation) = invite()?;
    Ok(Listener {
        invitation,
        accept: Box::new(move || {
            let peer = greeted(&socket)?;
            Ok(Box::new(Udp::new(socket, peer, mode, kind, true)?))
        }),
    })
}

fn connect(mode: Mode, invitation: &str, kind: Kind) -> Opened {
    let (socket, peer) = greet(invitation)?;
    Ok(Box::new(Udp::new(socket, peer, mode, kind, false)?))
}

/// A socket and its address, for the other side.
pub(super) fn invite() -> Result<(UdpSocket, String), Error> {
    let socket = bind()?;
    let invitation = socket.local_addr()?.to_string();
    Ok((socket, invitation))
}

/// Waits for the datagram of [`greet`]: a socket that nobody has spoken to does not know whom to answer.
pub(super) fn greeted(socket: &UdpSocket) -> Result<SocketAddr, Error> {
    Ok(socket.recv_from(&mut [])?.1)
}

/// A socket that has said hello to whoever invited.
pub(super) fn greet(invitation: &str) -> Result<(UdpSocket, SocketAddr), Error> {
    let (socket, peer) = (bind()?, address(invitation)?);
    socket.send_to(&[], peer)?;
    Ok((socket, peer))
}

/// A socket with wide buffers.
pub(super) fn bind() -> Result<UdpSocket, Error> {
    let socket = UdpSocket::bind(ANY_PORT)?;
    // Above the system's limit only where we may; otherwise as much as the limit allows.
    if setsockopt(&socket, sockopt::RcvBufForce, &SOCKET_BUFFER).is_err() {
        setsockopt(&socket, sockopt::RcvBuf, &SOCKET_BUFFER)?;
    }
    if setsockopt(&socket, sockopt::SndBufForce, &SOCKET_BUFFER).is_err() {
        setsockopt(&socket, sockopt::SndBuf, &SOCKET_BUFFER)?;
    }
    Ok(socket)
}

struct Udp {
    socket: UdpSocket,
    peer: SocketAddr,
    mode: Mode,
    connected: bool,
    seal: Option<Seal>,
    sealed: Vec<u8>,
    got: Vec<u8>,
}

impl Udp {
    fn new(socket: UdpSocket, peer: SocketAddr, mode: Mode, kind: Kind, listener: bool) -> Result<Self, Error> {
        if kind.connected {
            socket.connect(peer)?;
        }
        socket.set_nonblocking(mode == Mode::Spin)?;
        let seal = kind.sealed.then(|| Seal::new(listener)).transpose()?;
        let (sealed, got) = (Vec::with_capacity(DATAGRAM), vec![0; DATAGRAM]);
        Ok(Self { socket, peer, mode, connected: kind.connected, seal, sealed, got })
    }

    /// Receives a datagram and hands out the message in it.
    fn receive(&mut self) -> Result<&[u8], Error> {
        let Self { socket, got, mode, connected, .. } = self;
        let len = mode.wait(|| if *connected { socket.recv(got) } else { socket.recv_from(got).map(|r| r.0) })?;
        match &self.seal {
            Some(seal) => Ok(seal.open(&mut self.got[..len])?),
            None => Ok(&self.got[..len]),
        }
    }
}

impl Channel for Udp {
    fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        let datagram = match &mut self.seal {
            Some(seal) => {
                seal.seal(message, &mut self.sealed)?;
                &self.sealed
            }
            None => message,
        };
        let Self { socket, peer, mode, connected, .. } = self;
        mode.wait(|| if *connected { socket.send(datagram) } else { socket.send_to(datagram, *peer) })?;
        Ok(())
    }

    fn recv(&mut self, out: &mut Vec<u8>) -> Result<(), Error> {
        let message = self.receive()?;
        out.clear();
        out.extend_from_slice(message);
        Ok(())
    }

    fn drain(&mut self, tally: &mut Tally) -> Result<(), Error> {
        tally.take(self.receive()?);
        Ok(())
    }
}

/// The kernel's word for "not now", for layers that poll by themselves.
pub(super) fn would_block<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(None),
        Err(e) => Err(e),
    }
}
