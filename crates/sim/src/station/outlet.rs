//! Where the link's decisions go: packets to the network, everything else to the station's desk.

use super::book::{CLOSING, OPAQUE};
use super::build::Shared;
use super::content::{self, Bulk, Layer};
use super::loads::Errand;
use super::note::Note;
use super::{Desk, Station};
use crate::process::Ctx;
use phalanx_core::{Addr, Code, Duration, Endpoint, Instant, NodeId, Port, Sink};
use phalanx_fault::Outcome;
use phalanx_protocol::link::mml;
use phalanx_protocol::link::rcl::Payload;
use phalanx_protocol::link::status::{Status, Ticket};
use phalanx_protocol::link::{Input, Output, states};
use std::collections::VecDeque;

/// Operation faults waiting to show; past it they show at once.
const FAILING_MAX: usize = 256;

/// No operation fault hides for longer, in any scenario that makes sense.
const SETTLED: Duration = Duration::from_secs(1);

/// Ticketed sends of a station (CL-2).
#[derive(Default)]
pub(super) struct Tickets {
    /// What the network made of them, for the link.
    done: Vec<(Ticket, Result<(), Code>)>,
    /// Operation faults that will show.
    failing: Vec<(Instant, Ticket, Code)>,
    /// Sends that are looked at once they are old enough.
    pub(super) sent: VecDeque<(Instant, Ticket, NodeId)>,
}

impl Tickets {
    pub(super) fn deadline(&self) -> Instant {
        self.failing.iter().map(|f| f.0).fold(Instant::NEVER, Instant::min)
    }
}

/// The sink of one call of the link.
pub(super) struct Outlet<'a, 'n> {
    pub(super) now: Instant,
    pub(super) shared: &'a Shared,
    pub(super) desk: &'a mut Desk,
    pub(super) net: &'a mut Ctx<'n, Station>,
}

impl<'o> Sink<Output<'o>> for Outlet<'_, '_> {
    #[inline]
    fn push(&mut self, output: Output<'o>) {
        match output {
            Output::Transmit { to, packet, ticket, .. } => {
                let outcome = self.net.try_send(to, packet);
                if let Some(ticket) = ticket {
                    self.on_outcome(ticket, outcome);
                }
            }
            Output::Datagram { from, to, payload, .. } => {
                self.desk.heard += 1;
                if self.shared.options.checked {
                    self.note_got(from, to, Layer::Datagram, content::read(payload), payload.len());
                }
            }
            Output::Message { from, to, payload } => self.on_message(from, to, payload),
            Output::Managed { from, to, kind, payload } => self.on_managed(from, to, kind, payload),
            Output::Up { node, identity, boot } => {
                self.net.reached(states::SESSION_UP);
                match self.shared.who(&identity) {
                    Some(Addr::Local(peer)) => self.note_peer(node, peer, Note::Up { peer, boot }),
                    _ => self.note(Note::Stranger(identity)),
                }
            }
            Output::Down { node, .. } => {
                self.net.reached(states::SESSION_DOWN);
                if let Some(peer) = self.peer(node) {
                    self.begin_anew(peer);
                    self.note(Note::Down { peer });
                }
            }
            Output::Undelivered { node, number } => {
                if let Some(peer) = self.peer(node) {
                    self.note(Note::Undelivered { peer, number });
                }
            }
            Output::Gap { node, gap } => {
                if let Some(peer) = self.peer(node) {
                    self.note(Note::Gap { peer, gap });
                }
            }
            Output::Closed { node } => self.on_closed(node),
            // Refused sends are given up, and hints about the dead are not needed: the link finds out by itself.
            Output::Writable { .. } | Output::Refused { .. } => {}
        }
    }
}

impl Outlet<'_, '_> {
    fn note(&mut self, note: Note) {
        if self.shared.options.checked {
            self.net.note(note);
        }
    }

    fn peer(&self, node: NodeId) -> Option<u32> {
        self.desk.loads.as_ref()?.book.peer(node)
    }

    fn note_peer(&mut self, node: NodeId, peer: u32, note: Note) {
        if let Some(loads) = &mut self.desk.loads {
            loads.book.enter(node, peer);
        }
        self.note(note);
    }

    fn begin_anew(&mut self, peer: u32) {
        if let Some(loads) = &mut self.desk.loads {
            loads.book.begin_anew(peer);
        }
    }

    fn note_got(&mut self, from: Endpoint, to: Port, layer: Layer, seed: Option<u64>, length: usize) {
        // A message from a slot that never was up is from nobody: the checkers will say so.
        let peer = self.peer(from.node).unwrap_or(u32::MAX);
        let (generation, number, opaque) = (to.0 as u8, from.port.0, to.0 & OPAQUE != 0);
        self.note(Note::Got { peer, layer, generation, number, seed, length: length as u32, opaque });
    }

    fn on_message(&mut self, from: Endpoint, to: Port, payload: Payload<'_>) {
        let (seed, length) = match payload {
            Payload::Bytes(bytes) => (content::read(bytes), bytes.len()),
            Payload::Snapshot(snapshot) => {
                let bulk = snapshot.as_any().downcast_ref::<Bulk>();
                (bulk.map(|b| content::visible(b.seed, b.length)), snapshot.encoded_len())
            }
        };
        self.note_got(from, to, Layer::Reliable, seed, length);
        if to.0 & CLOSING != 0
            && let Some(peer) = self.peer(from.node)
        {
            self.errand(Errand::Close(peer));
        }
    }

    fn on_managed(&mut self, from: Endpoint, to: Port, kind: mml::Kind, payload: &[u8]) {
        let layer = match kind {
            mml::Kind::Unr => Layer::Unr,
            mml::Kind::Ack => Layer::Ack,
            mml::Kind::Nack => Layer::Nack,
        };
        let opaque = to.0 & OPAQUE != 0;
        let seed = if opaque { None } else { content::read(payload) };
        self.note_got(from, to, layer, seed, payload.len());
        if opaque && let Some(peer) = self.peer(from.node) {
            self.on_group_packet(peer, payload);
        }
    }

    fn on_closed(&mut self, node: NodeId) {
        let Some(peer) = self.peer(node) else { return };
        if let Some(loads) = &mut self.desk.loads
            && loads.book.talk(peer).closing
        {
            loads.push(Errand::Forget(peer));
        }
    }

    fn errand(&mut self, errand: Errand) {
        if let Some(loads) = &mut self.desk.loads {
            loads.push(errand);
        }
    }

    /// A packet for the ordered group goes straight to it; what it wants to send becomes errands.
    fn on_group_packet(&mut self, peer: u32, payload: &[u8]) {
        let checked = self.shared.options.checked;
        if let Some(loads) = &mut self.desk.loads {
            let (group, errands) = loads.group_and_errands();
            if let Some(group) = group {
                group.on_packet(self.now, peer, payload, errands, checked, self.net);
            }
        }
    }

    fn on_outcome(&mut self, ticket: Ticket, outcome: Outcome) {
        let Some(tickets) = self.desk.tickets() else { return };
        let result = match outcome {
            Outcome::Pass | Outcome::Drop => Ok(()),
            Outcome::Refuse(code) => Err(code),
            Outcome::FailLater { code, after, .. } => {
                if tickets.failing.len() < FAILING_MAX {
                    tickets.failing.push((self.now + after, ticket, code));
                    return;
                }
                Err(code)
            }
        };
        tickets.done.push((ticket, result));
    }
}

impl Desk {
    pub(super) fn tickets(&mut self) -> Option<&mut Tickets> {
        self.loads.as_mut()?.tickets.as_mut()
    }
}

impl Station {
    /// Tells the link what became of ticketed sends.
    pub(super) fn settle_tickets(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        loop {
            let Some(tickets) = self.desk.tickets() else { return };
            if let Some(due) = tickets.failing.iter().position(|f| f.0 <= now) {
                let (_, ticket, code) = tickets.failing.remove(due);
                tickets.done.push((ticket, Err(code)));
            }
            let Some((ticket, result)) = tickets.done.pop() else { return };
            self.tell(now, Input::Completed { ticket, result }, net);
        }
    }

    /// CL-2: a send that is long past must be settled, unless it still waits for a session with its peer.
    pub(super) fn look_at_tickets(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        let Self { shared, link, desk } = self;
        let Some(tickets) = desk.tickets() else { return };
        while let Some(&(at, ticket, node)) = tickets.sent.front()
            && now.since(at) >= SETTLED
        {
            tickets.sent.pop_front();
            let met = link.whereabouts(node).is_some_and(|(_, session)| session.is_some());
            if met && link.status(ticket) == Some(Status::Pending) && shared.options.checked {
                net.note(Note::Unsettled);
            }
        }
    }
}
