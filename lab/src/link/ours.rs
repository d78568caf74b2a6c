//! Our own layers, `cl` and `rcl`, beside the peers: the daemon's host over UDP.
//!
//! CL-1, RL-2, RL-3. Everything is on: handshake, seal, replay window, counters; only the fault injectors are idle.

use super::{ANY_PORT, Channel, Layer, Listener, Mode, Tally, address};
use crate::error::Error;
use phalanx_core::{Addr, Code, Endpoint, Instant, NodeId, Port};
use phalanx_daemon::platform::udp::Options;
use phalanx_daemon::{Host, Udp};
use phalanx_protocol::link::rcl::Payload;
use phalanx_protocol::link::seal::KeyRing;
use phalanx_protocol::link::sign::Signer;
use phalanx_protocol::link::{Config, Output};
use std::hint;

/// `cl` and `rcl`.
pub(super) const LAYERS: &[Layer] = &[
    Layer {
        name: "cl",
        latency: true,
        throughput: true,
        listen: |m| listen(m, false),
        connect: |m, to| connect(m, to, false),
    },
    Layer {
        name: "rcl",
        latency: true,
        throughput: true,
        listen: |m| listen(m, true),
        connect: |m, to| connect(m, to, true),
    },
];

/// The key that both processes of an experiment share.
const KEY: [u8; 32] = [0x50; 32];
/// The port both ends use.
pub(super) const PORT: Port = Port(1);
/// Datagrams handed over before the platform is told to send: what one segmentation run takes.
const RUN: usize = 32;

/// A host on any port of this machine.
pub(super) fn host() -> Result<Host<Udp>, Error> {
    let udp = Udp::open(Options::at(ANY_PORT))?;
    let mut random = [0; 32];
    random[..4].copy_from_slice(&std::process::id().to_le_bytes());
    Ok(Host::new(udp, Config::default(), KeyRing::new(1, KEY), Signer::generate(&random)))
}

fn listen(mode: Mode, reliable: bool) -> Result<Listener, Error> {
    let host = host()?;
    Ok(Listener {
        invitation: invitation(&host),
        accept: Box::new(move || Ok(Box::new(Ours::met(host, mode, reliable)?))),
    })
}

fn connect(mode: Mode, invitation: &str, reliable: bool) -> Result<Box<dyn Channel>, Error> {
    let mut host = host()?;
    let node = host.peer(Addr::Ip(address(invitation)?)).map_err(refused)?;
    greet(&mut host, node)?;
    Ok(Box::new(Ours::met(host, mode, reliable)?))
}

/// How the other side finds `host`.
pub(super) fn invitation(host: &Host<Udp>) -> String {
    let Addr::Ip(at) = host.local() else { unreachable!("a UDP platform has an IP address") };
    at.to_string()
}

/// A lone datagram to a port that nobody reads: it makes the two exchange their nonces.
pub(super) fn greet(host: &mut Host<Udp>, node: NodeId) -> Result<(), Error> {
    host.send(PORT, Endpoint { node, port: Port(0) }, b"hello").map_err(refused)?;
    host.flush();
    Ok(())
}

/// The link's own word on why it could not.
pub(super) fn refused(code: Code) -> Error {
    Error::Peer { library: "phalanx", reason: code.to_string() }
}

struct Ours {
    host: Host<Udp>,
    peer: Endpoint,
    mode: Mode,
    reliable: bool,
}

impl Ours {
    /// Waits until both sides have proved themselves.
    fn met(mut host: Host<Udp>, mode: Mode, reliable: bool) -> Result<Self, Error> {
        let mut peer: Option<NodeId> = None;
        while peer.is_none() {
            host.wait(Instant::NEVER);
            host.poll(&mut |output| {
                if let Output::Up { node, .. } = output {
                    peer = Some(node);
                }
            })
            .map_err(refused)?;
        }
        let peer = Endpoint { node: peer.expect("just met"), port: PORT };
        Ok(Self { host, peer, mode, reliable })
    }

    /// Polls until `each` has seen at least one message.
    fn until_one(&mut self, mut each: impl FnMut(&[u8])) -> Result<(), Error> {
        let mut seen = false;
        loop {
            let mut sort = |output: Output<'_>| match output {
                Output::Datagram { to: PORT, payload, .. }
                | Output::Message { to: PORT, payload: Payload::Bytes(payload), .. } => {
                    seen = true;
                    each(payload);
                }
                _ => {}
            };
            if self.mode == Mode::SameCore {
                self.host.wait(Instant::NEVER);
                self.host.poll(&mut sort).map_err(refused)?;
            } else {
                self.host.spin(&mut sort).map_err(refused)?;
            }
            if seen {
                return Ok(());
            }
            hint::spin_loop();
        }
    }
}

impl Channel for Ours {
    fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        if self.reliable {
            self.host.send_reliable(PORT, self.peer, message).map_err(refused)?;
        } else {
            self.host.send(PORT, self.peer, message).map_err(refused)?;
        }
        self.host.flush();
        Ok(())
    }

    fn recv(&mut self, out: &mut Vec<u8>) -> Result<(), Error> {
        self.until_one(|message| {
            out.clear();
            out.extend_from_slice(message);
        })
    }

    fn pump(&mut self, message: &[u8], times: usize) -> Result<(), Error> {
        let mut left = times;
        while left > 0 {
            if self.reliable {
                match self.host.send_reliable(PORT, self.peer, message) {
                    Ok(()) => {
                        left -= 1;
                        continue;
                    }
                    Err(Code::LocalResource | Code::RemoteResource) => {}
                    Err(code) => return Err(refused(code)),
                }
            } else {
                let run = left.min(RUN);
                for _ in 0..run {
                    self.host.send(PORT, self.peer, message).map_err(refused)?;
                }
                left -= run;
            }
            self.host.poll(&mut |_| {}).map_err(refused)?;
        }
        self.host.poll(&mut |_| {}).map_err(refused)?;
        Ok(())
    }

    fn drain(&mut self, tally: &mut Tally) -> Result<(), Error> {
        self.until_one(|message| tally.take(message))
    }
}
