//! KCP over a raw UDP socket: its fast mode, flushed at once, plain or with one seal and one open for each datagram.
//!
//! As good as we can make it here: stream mode, so that small messages share segments; jumbo datagrams, because
//! their size is for its user to set; acks ride on replies when there are any.

use super::frames::{self, Frames};
use super::seal::Seal;
use super::{Channel, JUMBO, Layer, Listener, Mode, Opened, Tally, udp};
use crate::error::Error;
use ::kcp::{Kcp, KcpResult};
use std::io::{self, Write};
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

/// KCP has no secrecy of its own, our links always do: `kcp-sealed` is the fair comparison. Like `udp-sealed` and ours it
/// names the destination in each call, as a socket that serves many peers must; `kcp-sealed-connected` has its socket
/// for one peer alone, which saves the kernel half a microsecond, and stands beside it for the record.
pub(super) const LAYERS: &[Layer] = &[
    Layer {
        name: "kcp",
        latency: true,
        throughput: true,
        listen: |mode| listen(mode, Kind { sealed: false, connected: false }),
        connect: |mode, to| connect(mode, to, Kind { sealed: false, connected: false }),
    },
    Layer {
        name: "kcp-sealed",
        latency: true,
        throughput: true,
        listen: |mode| listen(mode, Kind { sealed: true, connected: false }),
        connect: |mode, to| connect(mode, to, Kind { sealed: true, connected: false }),
    },
    Layer {
        name: "kcp-sealed-connected",
        latency: true,
        throughput: false,
        listen: |mode| listen(mode, Kind { sealed: true, connected: true }),
        connect: |mode, to| connect(mode, to, Kind { sealed: true, connected: true }),
    },
];

#[derive(Clone, Copy)]
struct Kind {
    sealed: bool,
    connected: bool,
}

/// Both sides must agree on it.
const CONVERSATION: u32 = 1;
/// KCP's timer in ms; it takes no less.
const INTERVAL_MS: i32 = 10;
/// Later segments acknowledged before one counts as lost.
const FAST_RESEND: i32 = 2;
/// Segments on their way. KCP's default of 32 starves a loopback; 256, 512 and 1024 were tried in turns on a busy machine
/// and could not be told apart, the middle one had the best medians.
const WINDOW: u16 = 512;
/// Segments waiting to be sent, beside the window, before a sender waits for acks.
const QUEUE: usize = WINDOW as usize * 2;
/// Datagrams taken in one go before the acks for them leave.
const BATCH: usize = 32;
/// Turns of a spin between looks at the clock, for retransmission.
const SPINS: u32 = 64;

fn listen(mode: Mode, kind: Kind) -> Result<Listener, Error> {
    let (socket, invitation) = udp::invite()?;
    let accept = move || {
        let peer = udp::greeted(&socket)?;
        Ok(Box::new(KcpChannel::new(socket, peer, mode, kind, true)?) as Box<dyn Channel>)
    };
    Ok(Listener { invitation, accept: Box::new(accept) })
}

fn connect(mode: Mode, invitation: &str, kind: Kind) -> Opened {
    let (socket, peer) = udp::greet(invitation)?;
    Ok(Box::new(KcpChannel::new(socket, peer, mode, kind, false)?))
}

/// Where KCP writes its datagrams.
struct Datagrams {
    socket: UdpSocket,
    /// Whom each call names; `None` when the socket is connected.
    peer: Option<SocketAddr>,
    mode: Mode,
    seal: Option<Seal>,
    sealed: Vec<u8>,
}

impl Write for Datagrams {
    fn write(&mut self, datagram: &[u8]) -> io::Result<usize> {
        let bytes = match &mut self.seal {
            Some(seal) => {
                seal.seal(datagram, &mut self.sealed).map_err(io::Error::other)?;
                &self.sealed
            }
            None => datagram,
        };
        self.mode.wait(|| match self.peer {
            Some(peer) => self.socket.send_to(bytes, peer),
            None => self.socket.send(bytes),
        })?;
        Ok(datagram.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

struct KcpChannel {
    kcp: Kcp<Datagrams>,
    socket: UdpSocket,
    peer: Option<SocketAddr>,
    mode: Mode,
    /// Opens; the one that seals belongs to `kcp`'s output.
    opener: Option<Seal>,
    datagram: Vec<u8>,
    out: Vec<u8>,
    frames: Frames,
    epoch: Instant,
}

impl KcpChannel {
    fn new(socket: UdpSocket, peer: SocketAddr, mode: Mode, kind: Kind, listener: bool) -> Result<Self, Error> {
        if kind.connected {
            socket.connect(peer)?;
        }
        let seal = kind.sealed.then(|| Seal::new(listener)).transpose()?;
        let peer = (!kind.connected).then_some(peer);
        match mode {
            Mode::Spin => socket.set_nonblocking(true)?,
            Mode::SameCore => socket.set_read_timeout(Some(Duration::from_millis(INTERVAL_MS as u64)))?,
        }
        let opener = seal.is_some().then(|| Seal::new(true)).transpose()?;
        let output = Datagrams { socket: socket.try_clone()?, peer, mode, seal, sealed: Vec::with_capacity(2 * JUMBO) };
        let mut kcp = Kcp::new_stream(CONVERSATION, output);
        kcp.set_nodelay(true, INTERVAL_MS, FAST_RESEND, true);
        kcp.set_wndsize(WINDOW, WINDOW);
        check(kcp.set_mtu(JUMBO))?;
        check(kcp.update(0))?;
        let (datagram, epoch) = (vec![0; 2 * JUMBO], Instant::now());
        Ok(Self { kcp, socket, peer, mode, opener, datagram, out: Vec::new(), frames: Frames::new(), epoch })
    }

    /// Lets KCP's timers run.
    fn tick(&mut self) -> Result<(), Error> {
        check(self.kcp.update(self.epoch.elapsed().as_millis() as u32))
    }

    /// Takes a datagram if one is there; in [`Mode::SameCore`] sleeps for one, but not past KCP's interval.
    fn take_one(&mut self) -> Result<bool, Error> {
        let Some(len) = udp::would_block(match self.peer {
            Some(_) => self.socket.recv_from(&mut self.datagram).map(|got| got.0),
            None => self.socket.recv(&mut self.datagram),
        })?
        else {
            return Ok(false);
        };
        let bytes = match &self.opener {
            Some(seal) => seal.open(&mut self.datagram[..len])?,
            None => &mut self.datagram[..len],
        };
        check(self.kcp.input(bytes))?;
        Ok(true)
    }

    /// Waits for a datagram and runs the timers meanwhile.
    fn wait(&mut self) -> Result<(), Error> {
        loop {
            for _ in 0..if self.mode == Mode::Spin { SPINS } else { 1 } {
                if self.take_one()? {
                    return Ok(());
                }
            }
            self.tick()?;
        }
    }

    /// Moves what KCP has in order into the frames.
    fn gather(&mut self) -> Result<(), Error> {
        while self.kcp.peeksize().is_ok() {
            let n = check(self.kcp.recv(self.frames.space()))?;
            self.frames.filled(n);
        }
        Ok(())
    }
}

fn check<T>(result: KcpResult<T>) -> Result<T, Error> {
    result.map_err(Error::peer("kcp"))
}

impl Channel for KcpChannel {
    fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        self.out.clear();
        frames::put(&mut self.out, message);
        check(self.kcp.send(&self.out))?;
        self.tick()?;
        check(self.kcp.flush())
    }

    fn recv(&mut self, out: &mut Vec<u8>) -> Result<(), Error> {
        loop {
            if let Some(message) = self.frames.next() {
                out.clear();
                out.extend_from_slice(message);
                return Ok(());
            }
            self.gather()?;
            if let Some(message) = self.frames.next() {
                out.clear();
                out.extend_from_slice(message);
                return Ok(());
            }
            self.wait()?;
        }
    }

    fn pump(&mut self, message: &[u8], times: usize) -> Result<(), Error> {
        for _ in 0..times {
            while self.kcp.wait_snd() >= QUEUE {
                check(self.kcp.flush())?;
                self.wait()?;
            }
            self.out.clear();
            frames::put(&mut self.out, message);
            check(self.kcp.send(&self.out))?;
        }
        self.tick()?;
        check(self.kcp.flush())
    }

    fn drain(&mut self, tally: &mut Tally) -> Result<(), Error> {
        self.wait()?;
        for _ in 1..BATCH {
            if self.mode == Mode::SameCore || !self.take_one()? {
                break;
            }
        }
        check(self.kcp.flush())?;
        // In pieces: a whole window of jumbo segments does not fit into the frames at once.
        while self.kcp.peeksize().is_ok() {
            let n = check(self.kcp.recv(self.frames.space()))?;
            self.frames.filled(n);
            while let Some(message) = self.frames.next() {
                tally.take(message);
            }
        }
        Ok(())
    }
}
