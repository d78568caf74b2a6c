//! What managers and agents say to each other: carried by the node, understood by others.
//!
//! MM-1: heartbeats may be lost; what fits into a datagram is signed by the layer itself; what is longer goes as a reliable message and
//! brings its own signatures.

use super::{Node, Out};
use crate::link::mml;
use crate::member::{self, Engine};
use phalanx_core::{Addr, Code, Endpoint, Instant, Port};

/// Where managers and agents speak and listen.
pub(super) const MANAGER: Port = Port(6);

/// How a word travels.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Carriage {
    /// It may be lost, and proves nothing but the cluster: heartbeats.
    Light,
    /// Once, in order, signed by who sends it; no longer than a datagram.
    Signed,
    /// Once, in order, of any length; proves nothing but the cluster.
    Bulk,
}

impl Carriage {
    pub(super) const fn of(kind: mml::Kind) -> Self {
        match kind {
            mml::Kind::Unr => Self::Light,
            mml::Kind::Ack | mml::Kind::Nack => Self::Signed,
        }
    }
}

impl<E: Engine> Node<E> {
    /// Says something to the manager or agent at another node. It leaves when the node next expires.
    ///
    /// # Errors
    /// `InvalidArgs` for what is too long, `LocalResource` when too much is under way. Nothing was sent then.
    pub fn manage(&mut self, now: Instant, to: Addr, carriage: Carriage, bytes: &[u8]) -> Result<(), Code> {
        let to = Endpoint { node: self.reach(to)?, port: MANAGER };
        match carriage {
            Carriage::Light => self.link.send_managed(now, mml::Kind::Unr, MANAGER, to, bytes).map(drop),
            Carriage::Signed => self.link.send_managed(now, mml::Kind::Ack, MANAGER, to, bytes).map(drop),
            Carriage::Bulk => self.link.send_reliable(now, MANAGER, to, bytes),
        }
    }

    /// CM-3: the manager's probing found nobody at this address. A reason to ask, no verdict: that is the zone's. Those who watch that node
    /// ask it now; where we are none of them, they will find out by themselves.
    pub fn doubt(&mut self, now: Instant, addr: Addr, out: &mut impl Out) {
        self.tell_engines(now, || member::Input::Down { addr, code: Code::Unreachable }, out);
        self.run_errands(now, out);
    }
}
