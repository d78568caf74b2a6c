//! For fuzzers and their property tests: a packet of a real session with anything inside its seal.
//!
//! What lies behind the seal comes from a member of the cluster, and a member may be broken. Only the feature `forge`
//! compiles this, and no crate of the runtime asks for it.

use super::{Link, Output};
use phalanx_core::{Buf, Code, Instant, NodeId, Sink};
use phalanx_wire::layer::{Layer, layer_of};
use phalanx_wire::outer::{Short, TAG};

impl Link {
    /// Seals `plain` as it is and sends it to a peer.
    ///
    /// # Errors
    /// `InvalidEndpoint` when there is no session with that peer.
    pub fn forge<S>(&mut self, now: Instant, to: NodeId, plain: &[u8], out: &mut S) -> Result<(), Code>
    where
        S: for<'a> Sink<Output<'a>>,
    {
        let peer = self.peers.get(to.slot(), to.generation()).ok_or(Code::InvalidEndpoint)?;
        let session = peer.session.as_ref().ok_or(Code::InvalidEndpoint)?;
        let mut packet = Buf::new(Short::LEN, plain.len() + TAG);
        packet.extend(plain);
        if layer_of(plain) == Ok(Layer::Rcl) {
            session.bind_sent(packet.bytes_mut());
        }
        self.transmit_plain(now, to, packet, None, out)
    }
}
