//! UDP in bursts: the kernel cuts one buffer into datagrams (GSO) and hands them over joined (GRO), by `quinn-udp`.
//!
//! The ceiling of what datagrams can carry on this machine, unreliable and in clear.

use super::{Channel, Layer, Listener, Mode, Tally, udp};
use crate::error::Error;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use std::io::IoSliceMut;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

/// Only bursts: for a single message it is `udp`.
pub(super) const LAYERS: &[Layer] = &[Layer {
    name: "udp-gso",
    latency: false,
    throughput: true,
    listen: |mode| {
        let (socket, invitation) = udp::invite()?;
        let accept = move || {
            let peer = udp::greeted(&socket)?;
            Ok(Box::new(Gso::new(socket, peer, mode)?) as Box<dyn Channel>)
        };
        Ok(Listener { invitation, accept: Box::new(accept) })
    },
    connect: |mode, to| {
        let (socket, peer) = udp::greet(to)?;
        Ok(Box::new(Gso::new(socket, peer, mode)?))
    },
}];

/// The most bytes one call may carry: a UDP payload's limit.
const BURST: usize = 65_507;
/// Joined runs taken by one call. More would leave the nearest caches.
const BATCH: usize = 2;
/// What the kernel may hand over joined.
const JOINED: usize = 65_536;

struct Gso {
    socket: UdpSocket,
    state: UdpSocketState,
    peer: SocketAddr,
    mode: Mode,
    burst: Vec<u8>,
    buffers: Vec<Vec<u8>>,
    meta: [RecvMeta; BATCH],
}

impl Gso {
    fn new(socket: UdpSocket, peer: SocketAddr, mode: Mode) -> Result<Self, Error> {
        let state = UdpSocketState::new((&socket).into())?;
        let buffers = vec![vec![0; JOINED]; BATCH];
        let meta = [RecvMeta::default(); BATCH];
        Ok(Self { socket, state, peer, mode, burst: Vec::with_capacity(BURST), buffers, meta })
    }

    fn transmit(&self, contents: &[u8], segment: usize) -> Result<(), Error> {
        let segment_size = (contents.len() > segment).then_some(segment);
        let transmit = Transmit { destination: self.peer, ecn: None, contents, segment_size, src_ip: None };
        loop {
            // The state keeps the socket non-blocking whatever the mode; a full buffer empties within microseconds.
            match udp::would_block(self.state.try_send((&self.socket).into(), &transmit))? {
                Some(()) => return Ok(()),
                None => self.pause(PollFlags::POLLOUT)?,
            }
        }
    }

    /// Receives a batch and hands each datagram to `take`.
    fn receive(&mut self, mut take: impl FnMut(&[u8])) -> Result<(), Error> {
        let batch = loop {
            let mut slices = self.buffers.iter_mut().map(|b| IoSliceMut::new(b));
            let mut slices: [IoSliceMut<'_>; BATCH] =
                std::array::from_fn(|_| slices.next().expect("one for each of the batch"));
            let got = self.state.recv((&self.socket).into(), &mut slices, &mut self.meta);
            match udp::would_block(got)? {
                Some(batch) => break batch,
                None => self.pause(PollFlags::POLLIN)?,
            }
        };
        for (meta, bytes) in self.meta[..batch].iter().zip(&self.buffers) {
            bytes[..meta.len].chunks(meta.stride.max(1)).for_each(&mut take);
        }
        Ok(())
    }

    fn pause(&self, until: PollFlags) -> Result<(), Error> {
        match self.mode {
            Mode::Spin => std::hint::spin_loop(),
            Mode::SameCore => {
                poll(&mut [PollFd::new(self.socket.as_fd(), until)], PollTimeout::NONE)?;
            }
        }
        Ok(())
    }
}

impl Channel for Gso {
    fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        self.transmit(message, message.len())
    }

    fn recv(&mut self, out: &mut Vec<u8>) -> Result<(), Error> {
        // The last of a batch: this layer takes part in throughput only, where nobody asks for single messages.
        self.receive(|message| {
            out.clear();
            out.extend_from_slice(message);
        })
    }

    fn pump(&mut self, message: &[u8], times: usize) -> Result<(), Error> {
        let most = self.state.max_gso_segments().min(BURST / message.len()).max(1);
        let mut burst = std::mem::take(&mut self.burst);
        let mut left = times;
        while left > 0 {
            let now = left.min(most);
            // Copied each time: a real sender has different bytes in each message.
            burst.clear();
            (0..now).for_each(|_| burst.extend_from_slice(message));
            self.transmit(&burst, message.len())?;
            left -= now;
        }
        self.burst = burst;
        Ok(())
    }

    fn drain(&mut self, tally: &mut Tally) -> Result<(), Error> {
        self.receive(|message| tally.take(message))
    }
}
