//! Who hears whom: what the link hands on goes to the machine that cares, and what machines decide goes to the link.

use super::casts::CASTS;
use super::federation::FEDERATION;
use super::managed::{Carriage, MANAGER};
use super::{Node, Out, Output, Plane, RUMOURS};
use crate::cast::seats;
use crate::link::{self, states};
use crate::member::{self, Engine, Event, Peer, Slot};
use phalanx_core::{
    Addr, Boot, Buf, Code, Endpoint, Group, Identity, Instant, Machine, NodeId, Payload, Shared, Sink, Snapshot,
};
use std::sync::Arc;

/// Something the link said, kept until the link can be asked about its peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Heard {
    Datagram { from: NodeId, to: Plane, group: bool, bytes: Buf },
    Message { from: NodeId, to: Plane, bytes: Owned },
    Rumour { from: NodeId, bytes: Buf },
    Cast { from: NodeId, bytes: Buf },
    Managed { from: NodeId, carriage: Carriage, bytes: Buf },
    Federation { from: NodeId, bytes: Buf },
    Writable { node: NodeId },
    Up { node: NodeId, identity: Identity, boot: Boot },
    Down { node: NodeId, code: Code },
    Refused { node: NodeId },
    Closed { node: NodeId },
}

/// A message that is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Owned {
    Bytes(Buf),
    Snapshot(Letter),
}

/// A message by reference.
#[derive(Clone, Debug)]
pub(super) struct Letter(pub(super) Arc<dyn Snapshot>);

impl PartialEq for Letter {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Letter {}

/// Something the engine wants done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Errand {
    Datagram { plane: Plane, to: Addr, bytes: Buf },
    Cast { plane: Plane, group: Group, bytes: Buf },
    Message { from: Plane, plane: Plane, to: Addr, message: Letter },
    Rumour { to: Addr, bytes: Buf },
    Sitter { plane: Plane, member: Slot, is_gone: bool },
    Release { addr: Addr },
    Abroad { to: Addr, bytes: Buf },
    Inside { to: Addr, bytes: Buf },
}

/// Errands for which room is kept between calls.
const KEPT: usize = 4;

/// The link's decisions.
pub(super) struct LinkOut<'n> {
    pub(super) heard: &'n mut Vec<Heard>,
    pub(super) out: &'n mut dyn Out,
}

impl<'o> Sink<link::Output<'o>> for LinkOut<'_> {
    fn push(&mut self, output: link::Output<'o>) {
        match output {
            link::Output::Transmit { to, packet, ticket, answer } => {
                self.out.push(Output::Transmit { to, packet, ticket, answer });
            }
            link::Output::Datagram { from, to: FEDERATION, group: false, payload } => {
                self.heard.push(Heard::Federation { from: from.node, bytes: Buf::copy_of(payload) });
            }
            link::Output::Datagram { from, to, group, payload } => {
                if let Some(to) = Plane::of(to) {
                    self.heard.push(Heard::Datagram { from: from.node, to, group, bytes: Buf::copy_of(payload) });
                }
            }
            link::Output::Message { from, to: RUMOURS, payload: Payload::Bytes(bytes) } => {
                self.heard.push(Heard::Rumour { from: from.node, bytes: Buf::copy_of(bytes) });
            }
            link::Output::Message { from, to: FEDERATION, payload: Payload::Bytes(bytes) } => {
                self.heard.push(Heard::Federation { from: from.node, bytes: Buf::copy_of(bytes) });
            }
            link::Output::Message { from, to: CASTS, payload: Payload::Bytes(bytes) } => {
                self.heard.push(Heard::Cast { from: from.node, bytes: Buf::copy_of(bytes) });
            }
            link::Output::Message { from, to: MANAGER, payload: Payload::Bytes(bytes) } => {
                let carriage = Carriage::Bulk;
                self.heard.push(Heard::Managed { from: from.node, carriage, bytes: Buf::copy_of(bytes) });
            }
            link::Output::Managed { from, to: MANAGER, kind, payload } => {
                let carriage = Carriage::of(kind);
                self.heard.push(Heard::Managed { from: from.node, carriage, bytes: Buf::copy_of(payload) });
            }
            link::Output::Message { from, to, payload } => {
                let Some(to) = Plane::of(to) else { return };
                let bytes = match payload {
                    Payload::Bytes(bytes) => Owned::Bytes(Buf::copy_of(bytes)),
                    Payload::Snapshot(snapshot) => Owned::Snapshot(Letter(Arc::clone(snapshot))),
                };
                self.heard.push(Heard::Message { from: from.node, to, bytes });
            }
            link::Output::Up { node, identity, boot } => {
                self.out.push(Output::Reached(states::SESSION_UP));
                self.heard.push(Heard::Up { node, identity, boot });
            }
            link::Output::Down { node, code, .. } => {
                self.out.push(Output::Reached(states::SESSION_DOWN));
                self.heard.push(Heard::Down { node, code });
            }
            link::Output::Refused { node, .. } => self.heard.push(Heard::Refused { node }),
            link::Output::Closed { node } => self.heard.push(Heard::Closed { node }),
            link::Output::Writable { node } => self.heard.push(Heard::Writable { node }),
            // Who manages says what matters again by itself; at other ports nobody listens.
            link::Output::Managed { .. } | link::Output::Undelivered { .. } | link::Output::Gap { .. } => {}
        }
    }
}

/// The engine's decisions.
pub(super) struct EngineOut<'n> {
    pub(super) plane: Plane,
    pub(super) errands: &'n mut Vec<Errand>,
    pub(super) out: &'n mut dyn Out,
}

impl<'o> Sink<member::Output<'o>> for EngineOut<'_> {
    fn push(&mut self, output: member::Output<'o>) {
        match output {
            member::Output::Datagram { to, bytes } => {
                self.errands.push(Errand::Datagram { plane: self.plane, to, bytes: Buf::copy_of(bytes) });
            }
            member::Output::Cast { group, bytes } => {
                self.errands.push(Errand::Cast { plane: self.plane, group, bytes: Buf::copy_of(bytes) });
            }
            member::Output::Message { to, message, across } => {
                let plane = if across { self.plane.other() } else { self.plane };
                let message = Letter(Arc::clone(message));
                self.errands.push(Errand::Message { from: self.plane, plane, to, message });
            }
            member::Output::Release { addr } => self.errands.push(Errand::Release { addr }),
            member::Output::Wire { to } => self.out.push(Output::Wire { to }),
            member::Output::Unwire { to } => self.out.push(Output::Unwire { to }),
            member::Output::Hear { group } => self.out.push(Output::Hear { group }),
            member::Output::Event(event) => {
                let sitter = match event {
                    Event::Left { member, .. } => Some((member, true)),
                    Event::Attribute { member, key: seats::ATTRIBUTE, .. } => Some((member, false)),
                    _ => None,
                };
                let plane = self.plane;
                self.errands.extend(sitter.map(|(member, is_gone)| Errand::Sitter { plane, member, is_gone }));
                self.out.push(Output::Event(event));
            }
        }
    }
}

impl<E: Engine> Node<E> {
    pub(super) fn tell_link(&mut self, now: Instant, input: link::Input<'_>, out: &mut impl Out) {
        self.link.handle(now, input, &mut LinkOut { heard: &mut self.heard, out });
        self.pass_on(now, out);
    }

    /// Tells the engine of one plane, when there is one.
    pub(super) fn tell_engine(&mut self, now: Instant, plane: Plane, input: member::Input<'_>, out: &mut impl Out) {
        let engine = match plane {
            Plane::Base => self.engine.as_mut(),
            Plane::Management => self.management.as_deref_mut(),
            Plane::Scout => return self.tell_scout(now, input, out),
        };
        if let Some(engine) = engine {
            engine.handle(now, input, &mut EngineOut { plane, errands: &mut self.errands, out });
        }
    }

    /// Tells the engines of both planes what concerns a peer as a whole.
    pub(super) fn tell_engines(
        &mut self,
        now: Instant,
        input: impl Fn() -> member::Input<'static>,
        out: &mut impl Out,
    ) {
        self.tell_engine(now, Plane::Base, input(), out);
        self.tell_engine(now, Plane::Management, input(), out);
    }

    /// What the link handed on goes to the engine.
    pub(super) fn pass_on(&mut self, now: Instant, out: &mut impl Out) {
        if self.heard.is_empty() {
            return;
        }
        let mut heard = std::mem::take(&mut self.heard);
        for heard in heard.drain(..) {
            self.on_heard(now, heard, out);
        }
        if heard.capacity() <= KEPT {
            self.heard = heard;
        }
    }

    fn on_heard(&mut self, now: Instant, heard: Heard, out: &mut impl Out) {
        use member::Input;
        match heard {
            Heard::Datagram { from, to, group, bytes } => {
                if let Some(from) = self.peer(from) {
                    self.tell_engine(now, to, Input::Datagram { from, group, bytes: bytes.bytes() }, out);
                }
            }
            Heard::Message { from, to, bytes } => {
                let Some(from) = self.peer(from) else { return };
                let payload = match &bytes {
                    Owned::Bytes(bytes) => Payload::Bytes(bytes.bytes()),
                    Owned::Snapshot(letter) => Payload::Snapshot(&letter.0),
                };
                self.tell_engine(now, to, Input::Message { from, payload }, out);
            }
            Heard::Rumour { from, bytes } => {
                if let Some(from) = self.peer(from) {
                    self.on_rumour(now, from.addr, bytes.bytes(), out);
                }
            }
            Heard::Cast { from, bytes } => {
                if self.peer(from).is_some() {
                    self.on_cast(now, &Shared::from(bytes), out);
                }
            }
            Heard::Managed { from, carriage, bytes } => {
                if let Some(from) = self.peer(from) {
                    out.push(Output::Managed { from, carriage, bytes: bytes.bytes() });
                }
            }
            Heard::Federation { from, bytes } => {
                if let Some(from) = self.peer(from) {
                    self.tell_federation(now, from.addr, bytes.bytes());
                }
            }
            Heard::Writable { node } => {
                if let Some((addr, _)) = self.link.whereabouts(node) {
                    self.on_writable(now, addr);
                }
            }
            Heard::Up { node, identity, boot } => {
                if let Some((addr, _)) = self.link.whereabouts(node) {
                    self.tell_engines(now, || Input::Up { peer: Peer { addr, identity, boot } }, out);
                    self.rumours_up(now, addr, out);
                    self.on_session(now, addr, true, out);
                }
            }
            Heard::Down { node, code } => {
                if let Some((addr, _)) = self.link.whereabouts(node) {
                    self.tell_engines(now, || Input::Down { addr, code }, out);
                    self.on_session(now, addr, false, out);
                }
            }
            Heard::Refused { node } => {
                if let Some((addr, _)) = self.link.whereabouts(node) {
                    self.tell_engines(now, || Input::Refused { addr }, out);
                }
            }
            Heard::Closed { node } => self.parting.on_closed(&mut self.link, node),
        }
    }

    /// A peer whose session is proved.
    fn peer(&self, node: NodeId) -> Option<Peer> {
        let (addr, who) = self.link.whereabouts(node)?;
        let (identity, boot) = who?;
        Some(Peer { addr, identity, boot })
    }

    /// What machines decided goes to the link, which sends when it next expires.
    pub(super) fn run_errands(&mut self, now: Instant, out: &mut impl Out) {
        // Errands may lead to others: a peer that cannot take a message is down.
        while !self.errands.is_empty() {
            let mut errands = std::mem::take(&mut self.errands);
            for errand in errands.drain(..) {
                self.run(now, errand, out);
            }
            if self.errands.is_empty() {
                // A burst's room is given back: a simulated cluster has a million of these lists.
                if errands.capacity() <= KEPT {
                    self.errands = errands;
                }
                return;
            }
        }
    }

    fn run(&mut self, now: Instant, errand: Errand, out: &mut impl Out) {
        match errand {
            Errand::Datagram { plane, to, bytes } => {
                if let Ok(node) = self.reach(to) {
                    let to = Endpoint { node, port: plane.port() };
                    // Datagrams may be lost, and so may this one.
                    let _ = self.link.send(
                        now,
                        plane.port(),
                        to,
                        bytes.bytes(),
                        &mut LinkOut { heard: &mut self.heard, out },
                    );
                }
            }
            Errand::Cast { plane, group, bytes } => self.cast(plane, group, &bytes, out),
            // Who speaks for its zone and guards it: from one plane to the other.
            Errand::Message { from, plane, to, message } if from != plane && self.is_here(to) => {
                let peer = Peer { addr: to, identity: self.link.identity(), boot: self.link.boot() };
                let payload = Payload::Snapshot(&message.0);
                self.tell_engine(now, plane, member::Input::Message { from: peer, payload }, out);
            }
            Errand::Message { from, plane, to, message } => {
                let sent = self.reach(to).and_then(|node| {
                    let to = Endpoint { node, port: plane.port() };
                    self.link.send_snapshot(now, from.port(), to, &message.0)
                });
                if let Err(code) = sent {
                    self.tell_engine(now, from, member::Input::Down { addr: to, code }, out);
                }
            }
            Errand::Rumour { to, bytes } => {
                let sent = self.reach(to).and_then(|node| {
                    self.link.send_reliable(now, RUMOURS, Endpoint { node, port: RUMOURS }, bytes.bytes())
                });
                // A neighbour that cannot take it is about to be one no more; others pass the rumour on.
                let _ = sent;
            }
            Errand::Abroad { to, bytes } => self.run_federation(now, to, &bytes, false, out),
            Errand::Inside { to, bytes } => self.run_federation(now, to, &bytes, true, out),
            Errand::Sitter { plane, member, is_gone } => {
                if plane == self.own_engine().0 {
                    self.on_sitter(now, member, is_gone, out);
                }
            }
            // Casts go there all the same.
            Errand::Release { addr } if self.casts_to(addr) => {}
            Errand::Release { addr } => self.parting.part_with(&mut self.link, now, addr),
        }
    }

    /// Whether this is our own address.
    fn is_here(&self, addr: Addr) -> bool {
        let engine = self.engine();
        engine.card(engine.me()).is_some_and(|card| card.addr == addr)
    }

    fn cast(&mut self, plane: Plane, group: Group, bytes: &Buf, out: &mut impl Out) {
        // As other datagrams.
        let mut out = LinkOut { heard: &mut self.heard, out };
        let _ = self.link.send_group(plane.port(), group, plane.port(), bytes.bytes(), &mut out);
    }

    pub(super) fn reach(&mut self, addr: Addr) -> Result<NodeId, Code> {
        self.parting.reach(&mut self.link, addr, self.largest)
    }
}
