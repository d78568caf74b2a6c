//! QUIC by `quinn`: one bidirectional stream, messages with a length, TLS by rustls and a certificate of its own.
//!
//! As good as we can make it here: wide windows and socket buffers, one thread with nothing else on it, and in
//! [`Mode::Spin`] a runtime that asks its sockets on each turn instead of sleeping. `quinn` finds its datagram size by
//! itself, as everywhere (1452 bytes at most); `quinn-jumbo` is told what the loopback can carry.

use super::frames::{self, Frames, PREFIX};
use super::{Channel, Layer, Listener, Mode, Opened, Tally, address, udp};
use crate::error::Error;
use quinn::rustls::RootCertStore;
use quinn::rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use quinn::{ClientConfig, Connection, Endpoint, EndpointConfig, RecvStream, SendStream, ServerConfig, TokioRuntime};
use quinn::{TransportConfig, VarInt};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use tokio::runtime::{Builder, Runtime};

/// The stream; quinn's own datagrams are unreliable and would be compared with CL.
pub(super) const LAYERS: &[Layer] = &[
    Layer {
        name: "quinn",
        latency: true,
        throughput: true,
        listen: |mode| listen(mode, None),
        connect: |mode, to| connect(mode, to, None),
    },
    Layer {
        name: "quinn-jumbo",
        latency: true,
        throughput: true,
        listen: |mode| listen(mode, Some(LARGEST_DATAGRAM)),
        connect: |mode, to| connect(mode, to, Some(LARGEST_DATAGRAM)),
    },
];

/// The name in the certificate.
const NAME: &str = "localhost";
/// quinn sends up to ten datagrams in one call and does not look whether they fit into the 65,507 bytes that the kernel
/// takes: with larger ones such bursts are silently lost, and the stream crawls at 5 MB/s.
const LARGEST_DATAGRAM: u16 = 6_500;
/// Flow control must not be what we measure.
const WINDOW: u32 = 16 << 20;
/// Bytes collected before a write.
const BUFFER: usize = 64 << 10;

fn listen(mode: Mode, datagram: Option<u16>) -> Result<Listener, Error> {
    let certified = rcgen::generate_simple_self_signed([NAME.to_string()]).map_err(Error::peer("rcgen"))?;
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(certified.signing_key.serialize_der()));
    let certificate = certified.cert.der().clone();
    let socket = udp::bind()?;
    let invitation = format!("{} {}", socket.local_addr()?, hex(&certificate));
    let accept = move || {
        let mut config = ServerConfig::with_single_cert(vec![certificate], key).map_err(Error::peer("rustls"))?;
        config.transport_config(transport(datagram));
        let runtime = runtime(mode)?;
        let (endpoint, connection, mut streams) = runtime.block_on(async {
            let endpoint = Endpoint::new(endpoint_config(datagram)?, Some(config), socket, Arc::new(TokioRuntime))?;
            let incoming = endpoint.accept().await.ok_or_else(|| Error::peer("quinn")("the endpoint closed"))?;
            let connection = incoming.await.map_err(Error::peer("quinn"))?;
            let streams = connection.accept_bi().await.map_err(Error::peer("quinn"))?;
            Ok::<_, Error>((endpoint, connection, streams))
        })?;
        runtime.block_on(streams.1.read_exact(&mut [0; PREFIX])).map_err(Error::peer("quinn"))?;
        Ok(Box::new(Quic::new(runtime, mode, endpoint, connection, streams)) as Box<dyn Channel>)
    };
    Ok(Listener { invitation, accept: Box::new(accept) })
}

fn connect(mode: Mode, invitation: &str, datagram: Option<u16>) -> Opened {
    let unfit = || Error::UnknownRole(format!("invitation {invitation}"));
    let certificate = invitation.split_whitespace().nth(1).and_then(unhex).ok_or_else(unfit)?;
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(certificate)).map_err(Error::peer("rustls"))?;
    let mut config = ClientConfig::with_root_certificates(Arc::new(roots)).map_err(Error::peer("rustls"))?;
    config.transport_config(transport(datagram));
    let (peer, runtime) = (address(invitation)?, runtime(mode)?);
    let (endpoint, connection, streams) = runtime.block_on(async {
        let socket = udp::bind()?;
        let mut endpoint = Endpoint::new(endpoint_config(datagram)?, None, socket, Arc::new(TokioRuntime))?;
        endpoint.set_default_client_config(config);
        let connecting = endpoint.connect(peer, NAME).map_err(Error::peer("quinn"))?;
        let connection = connecting.await.map_err(Error::peer("quinn"))?;
        let mut streams = connection.open_bi().await.map_err(Error::peer("quinn"))?;
        // A stream exists for the other side with its first bytes.
        streams.0.write_all(&[0; PREFIX]).await.map_err(Error::peer("quinn"))?;
        Ok::<_, Error>((endpoint, connection, streams))
    })?;
    Ok(Box::new(Quic::new(runtime, mode, endpoint, connection, streams)))
}

fn endpoint_config(datagram: Option<u16>) -> Result<EndpointConfig, Error> {
    let mut config = EndpointConfig::default();
    if let Some(datagram) = datagram {
        config.max_udp_payload_size(datagram).map_err(Error::peer("quinn"))?;
    }
    Ok(config)
}

fn transport(datagram: Option<u16>) -> Arc<TransportConfig> {
    let mut config = TransportConfig::default();
    config
        .stream_receive_window(VarInt::from_u32(WINDOW))
        .receive_window(VarInt::from_u32(WINDOW))
        .send_window(u64::from(WINDOW));
    if let Some(datagram) = datagram {
        config.initial_mtu(datagram).min_mtu(datagram).mtu_discovery_config(None);
    }
    Arc::new(config)
}

fn runtime(mode: Mode) -> Result<Runtime, Error> {
    let mut builder = Builder::new_current_thread();
    builder.enable_all();
    if mode == Mode::Spin {
        builder.event_interval(1);
    }
    Ok(builder.build()?)
}

struct Quic {
    runtime: Runtime,
    mode: Mode,
    outgoing: SendStream,
    incoming: RecvStream,
    out: Vec<u8>,
    frames: Frames,
    /// Held, not used: the streams live as long as these.
    _alive: (Endpoint, Connection),
}

impl Quic {
    fn new(
        runtime: Runtime,
        mode: Mode,
        endpoint: Endpoint,
        connection: Connection,
        (outgoing, incoming): (SendStream, RecvStream),
    ) -> Self {
        let out = Vec::with_capacity(2 * BUFFER);
        Self { runtime, mode, outgoing, incoming, out, frames: Frames::new(), _alive: (endpoint, connection) }
    }

    fn flush(&mut self) -> Result<(), Error> {
        let write = self.outgoing.write_all(&self.out);
        self.runtime.block_on(waiting(self.mode, write)).map_err(Error::peer("quinn"))?;
        self.out.clear();
        Ok(())
    }

    fn read(&mut self) -> Result<(), Error> {
        let read = self.incoming.read(self.frames.space());
        let read = self.runtime.block_on(waiting(self.mode, read)).map_err(Error::peer("quinn"))?;
        self.frames.filled(read.ok_or_else(|| Error::peer("quinn")("the stream ended"))?);
        Ok(())
    }
}

/// In [`Mode::Spin`] a future that wakes itself on each turn, so that the runtime never sleeps.
async fn waiting<F: Future>(mode: Mode, future: F) -> F::Output {
    let mut future = pin!(future);
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Pending if mode == Mode::Spin => {
            context.waker().wake_by_ref();
            Poll::Pending
        }
        other => other,
    })
    .await
}

impl Channel for Quic {
    fn send(&mut self, message: &[u8]) -> Result<(), Error> {
        frames::put(&mut self.out, message);
        self.flush()
    }

    fn recv(&mut self, out: &mut Vec<u8>) -> Result<(), Error> {
        loop {
            if let Some(message) = self.frames.next() {
                out.clear();
                out.extend_from_slice(message);
                return Ok(());
            }
            self.read()?;
        }
    }

    fn pump(&mut self, message: &[u8], times: usize) -> Result<(), Error> {
        for _ in 0..times {
            frames::put(&mut self.out, message);
            if self.out.len() >= BUFFER {
                self.flush()?;
            }
        }
        self.flush()?;
        // A write only fills quinn's queue; its driver runs when this task steps back.
        self.runtime.block_on(tokio::task::yield_now());
        Ok(())
    }

    fn drain(&mut self, tally: &mut Tally) -> Result<(), Error> {
        self.read()?;
        while let Some(message) = self.frames.next() {
            tally.take(message);
        }
        Ok(())
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> = text.chars().map(|c| c.to_digit(16).map(|d| d as u8)).collect();
    digits.filter(|d| d.len() % 2 == 0).map(|d| d.chunks_exact(2).map(|p| p[0] << 4 | p[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_survives_the_invitation() {
        assert_eq!(unhex(&hex(&[0, 1, 0xab, 0xff])), Some(vec![0, 1, 0xab, 0xff]));
        assert_eq!((unhex("0"), unhex("0g")), (None, None));
    }
}
