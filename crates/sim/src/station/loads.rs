//! The workloads: what a station sends, to whom, and when.

use super::book::{Book, CLOSING, OPAQUE, ports};
use super::content::{self, Bulk, Layer, Name};
use super::group::Group;
use super::note::Note;
use super::outlet::{Outlet, Tickets};
use super::workload::{BEAT_MAX, Heartbeat, Managed, Reliable, millis};
use super::{Desk, Station};
use crate::process::Ctx;
use phalanx_core::{Addr, Buf, Code, Endpoint, Instant, NodeId, Snapshot};
use phalanx_protocol::link::mml::Kind;
use std::sync::Arc;

/// What the platform says that a datagram may have: an Ethernet frame's worth.
const LARGEST: usize = 1452;

/// What a station keeps beyond bare heartbeats.
pub(super) struct Loads {
    pub(super) book: Book,
    /// What is to be asked of the link once it is no longer busy.
    errands: Vec<Errand>,
    reliable_at: Instant,
    managed_at: Instant,
    /// Whose reliable messages are held up, and until when.
    held: Option<(u32, Instant)>,
    group: Option<Group>,
    /// CL-2: sends whose outcome is awaited.
    pub(super) tickets: Option<Tickets>,
}

/// Something to ask of the link in consequence of what it said.
pub(super) enum Errand {
    /// The peer closes: so do we.
    Close(u32),
    /// Both sides closed.
    Forget(u32),
    /// A packet of an ordered group.
    Order(u32, Buf),
}

impl Loads {
    pub(super) fn new(group: Option<Group>, tickets: Option<Tickets>) -> Self {
        let (reliable_at, managed_at) = (Instant::NEVER, Instant::NEVER);
        Self { book: Book::default(), errands: Vec::new(), reliable_at, managed_at, held: None, group, tickets }
    }

    pub(super) fn push(&mut self, errand: Errand) {
        self.errands.push(errand);
    }

    pub(super) fn has_errands(&self) -> bool {
        !self.errands.is_empty()
    }

    pub(super) fn group_and_errands(&mut self) -> (Option<&mut Group>, &mut Vec<Errand>) {
        (self.group.as_mut(), &mut self.errands)
    }

    pub(super) fn deadline(&self) -> Instant {
        let at = self.reliable_at.min(self.managed_at).min(self.held.map_or(Instant::NEVER, |h| h.1));
        let at = self.group.as_ref().map_or(at, |g| at.min(g.deadline()));
        self.tickets.as_ref().map_or(at, |t| at.min(t.deadline()))
    }
}

impl Station {
    /// The node starts: each part of its work begins at a time of its own.
    pub(super) fn begin(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        let parts = self.shared.parts;
        if let Some(work) = parts.heartbeat {
            let each = work.neighbours.min(self.shared.nodes - 1);
            // As many beat to us.
            self.link.expect_peers(2 * each as usize);
            let peers: Vec<NodeId> =
                (1..=each).filter_map(|n| self.meet((self.desk.me + n) % self.shared.nodes).ok()).collect();
            self.desk.set_neighbours(&peers);
            self.desk.beat_at = now + phalanx_core::Duration(net.rng().below(millis(work.interval_ms).0));
        }
        let checked = self.is_checked();
        let Some(loads) = &mut self.desk.loads else { return };
        if let Some(work) = parts.reliable {
            loads.reliable_at = pause(now, work.interval_ms, net);
        }
        if let Some(work) = parts.managed {
            loads.managed_at = pause(now, work.interval_ms, net);
        }
        if let Some(group) = &mut loads.group {
            group.begin(now, checked, net);
        }
    }

    /// Nothing new from now on; what is held up is let go.
    pub(super) fn rest(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        self.desk.resting = true;
        self.desk.beat_at = Instant::NEVER;
        let Some(loads) = &mut self.desk.loads else { return };
        (loads.reliable_at, loads.managed_at) = (Instant::NEVER, Instant::NEVER);
        if let Some(group) = &mut loads.group {
            group.rest();
        }
        self.let_go(now, net);
    }

    /// The link's number for `peer`.
    fn meet(&mut self, peer: u32) -> Result<NodeId, Code> {
        let Some(loads) = &mut self.desk.loads else { return self.link.peer(Addr::Local(peer), LARGEST) };
        if let Some(node) = loads.book.talk(peer).node {
            return Ok(node);
        }
        let node = self.link.peer(Addr::Local(peer), LARGEST)?;
        loads.book.talk(peer).node = Some(node);
        loads.book.enter(node, peer);
        Ok(node)
    }

    /// A heartbeat to each neighbour.
    pub(super) fn beat(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        let Some(work) = self.shared.parts.heartbeat else { return };
        self.desk.beat_at = now + millis(work.interval_ms);
        self.desk.beats = self.desk.beats.wrapping_add(1);
        if self.desk.loads.is_some() {
            self.look_at_tickets(now, net);
            return self.beat_by_name(now, &work, net);
        }
        // Nobody checks: one content serves all neighbours.
        let Desk { me, boot, beats: number, .. } = self.desk;
        let seed = Name { from: me, boot, to: me, layer: Layer::Datagram, generation: 0, number }.seed();
        let mut room = [0; BEAT_MAX];
        let message = &mut room[..work.bytes];
        content::fill(seed, message);
        let Self { shared, link, desk } = self;
        let mut place = 0;
        while let Some(node) = desk.neighbour(place) {
            place += 1;
            let to = Endpoint { node, port: phalanx_core::Port(0) };
            // Refused is as good as lost: the next beat comes.
            let _ = link.send(now, to.port, to, message, &mut Outlet { now, shared, desk, net });
        }
    }

    /// As above, with each datagram named, and ticketed when the workload says so.
    fn beat_by_name(&mut self, now: Instant, work: &Heartbeat, net: &mut Ctx<'_, Self>) {
        for n in 1..=work.neighbours.min(self.shared.nodes - 1) {
            let peer = (self.desk.me + n) % self.shared.nodes;
            let Ok(node) = self.meet(peer) else { continue };
            let Self { shared, link, desk } = self;
            let Some(loads) = &mut desk.loads else { return };
            let name = loads.book.talk(peer).next(desk.me, desk.boot, Layer::Datagram);
            let (from, port) = ports(&name, 0);
            let to = Endpoint { node, port };
            let Ok(mut buffer) = link.buffer(now, work.bytes) else { continue };
            content::write(name.seed(), work.bytes, buffer.vec_mut());
            // Told before it is sent: with an idle network it could arrive in the same instant.
            let sent = loads.book.talk(peer).sent(&name);
            if shared.options.checked {
                net.note(sent);
            }
            let outlet = &mut Outlet { now, shared, desk, net };
            if work.tickets {
                if let Ok(ticket) = link.send_buffer(now, from, to, buffer, outlet)
                    && let Some(tickets) = desk.tickets()
                {
                    tickets.sent.push_back((now, ticket, node));
                }
            } else {
                let _ = link.send(now, from, to, buffer.bytes(), outlet);
            }
        }
    }

    /// Whatever is due beyond heartbeats.
    pub(super) fn work(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        let checked = self.is_checked();
        let parts = self.shared.parts;
        let Some(loads) = &mut self.desk.loads else { return };
        let held = loads.held.is_some_and(|h| h.1 <= now);
        let (reliable, managed) = (loads.reliable_at <= now, loads.managed_at <= now);
        let (group, errands) = loads.group_and_errands();
        if let Some(group) = group {
            group.expire(now, errands, checked, net);
        }
        if held {
            self.let_go(now, net);
        }
        if let (true, Some(work)) = (reliable, &parts.reliable) {
            self.send_reliable(now, work, net);
        }
        if let (true, Some(work)) = (managed, &parts.managed) {
            self.send_managed(now, work, net);
        }
    }

    fn send_reliable(&mut self, now: Instant, work: &Reliable, net: &mut Ctx<'_, Self>) {
        if let Some(loads) = &mut self.desk.loads {
            loads.reliable_at = pause(now, work.interval_ms, net);
        }
        let (hold, close) = (net.rng().chance(work.hold), net.rng().chance(work.close));
        let Some((peer, node)) = self.somebody(net) else { return };
        let Some(loads) = &mut self.desk.loads else { return };
        let name = loads.book.talk(peer).next(self.desk.me, self.desk.boot, Layer::Reliable);
        let (seed, (from, port)) = (name.seed(), ports(&name, if close { CLOSING } else { 0 }));
        let (length, to) = (work.length(seed), Endpoint { node, port });
        let taken = if work.is_snapshot(seed) {
            let bulk: Arc<dyn Snapshot> = Arc::new(Bulk { seed, length });
            self.link.send_snapshot(now, from, to, &bulk)
        } else {
            let mut bytes = Buf::new(0, length);
            content::write(seed, length, bytes.vec_mut());
            self.link.send_reliable(now, from, to, bytes.bytes())
        };
        if taken.is_ok() {
            self.book_sent(&name, net);
            self.watch_backlog(node, net);
            if close {
                self.close(now, peer, true);
            }
        }
        if hold && self.desk.loads.as_ref().is_some_and(|l| l.held.is_none()) && self.link.hold(now, node).is_ok() {
            let until = now + millis(work.hold_ms);
            self.desk.loads.as_mut().expect("seen above").held = Some((peer, until));
        }
    }

    fn send_managed(&mut self, now: Instant, work: &Managed, net: &mut Ctx<'_, Self>) {
        if let Some(loads) = &mut self.desk.loads {
            loads.managed_at = pause(now, work.interval_ms, net);
        }
        let burst = 1 + net.rng().below(u64::from(work.burst.max(1)));
        let (layer, kind) =
            [(Layer::Unr, Kind::Unr), (Layer::Ack, Kind::Ack), (Layer::Nack, Kind::Nack)][net.rng().index(3)];
        let Some((peer, _)) = self.somebody(net) else { return };
        for _ in 0..burst {
            let Some(loads) = &mut self.desk.loads else { return };
            let name = loads.book.talk(peer).next(self.desk.me, self.desk.boot, layer);
            let length = work.length(name.seed());
            let mut bytes = Buf::new(0, length);
            content::write(name.seed(), length, bytes.vec_mut());
            self.manage(now, kind, &name, 0, bytes.bytes(), net);
        }
    }

    /// Sends a management message of that name.
    fn manage(&mut self, now: Instant, kind: Kind, name: &Name, marks: u16, bytes: &[u8], net: &mut Ctx<'_, Self>) {
        let Ok(node) = self.meet(name.to) else { return };
        let (from, port) = ports(name, marks);
        let Ok(number) = self.link.send_managed(now, kind, from, Endpoint { node, port }, bytes) else { return };
        if number != u64::from(name.number) && self.is_checked() {
            net.note(Note::Misnumbered { layer: name.layer, place: name.number, number });
        }
        self.book_sent(name, net);
    }

    fn book_sent(&mut self, name: &Name, net: &mut Ctx<'_, Self>) {
        let checked = self.is_checked();
        if let Some(loads) = &mut self.desk.loads {
            let sent = loads.book.talk(name.to).sent(name);
            if checked {
                net.note(sent);
            }
        }
    }

    /// A message is taken while there is room for it, or alone: so much at most waits for a peer.
    fn watch_backlog(&self, node: NodeId, net: &mut Ctx<'_, Self>) {
        let rcl = &self.shared.config.rcl;
        // Frames and padding come on top of what is counted when a message is taken.
        let bound = 2 * (rcl.send_buffer.max(rcl.largest_message) as usize);
        let holds = self.link.backlog(node);
        if holds > bound && self.is_checked() {
            net.note(Note::Over { what: "backlog", holds, bound });
        }
    }

    fn somebody(&mut self, net: &mut Ctx<'_, Self>) -> Option<(u32, NodeId)> {
        let others = self.shared.nodes.checked_sub(1).filter(|&n| n > 0)?;
        let peer = (self.desk.me + 1 + net.rng().below(u64::from(others)) as u32) % self.shared.nodes;
        Some((peer, self.meet(peer).ok()?))
    }

    fn close(&mut self, now: Instant, peer: u32, ours: bool) {
        let Some(loads) = &mut self.desk.loads else { return };
        let talk = loads.book.talk(peer);
        talk.closing |= ours;
        if let Some(node) = talk.node {
            // The peer may be gone by now: then there is nothing to close.
            let _ = self.link.close(now, node);
        }
    }

    fn let_go(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        let Self { shared, link, desk } = self;
        let Some(loads) = &mut desk.loads else { return };
        if let Some((peer, _)) = loads.held.take()
            && let Some(node) = loads.book.talk(peer).node
        {
            let _ = link.release(now, node, &mut Outlet { now, shared, desk, net });
        }
    }

    /// Asks of the link what its decisions led to.
    pub(super) fn run_errands(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        let errands = self.desk.loads.as_mut().map(|l| std::mem::take(&mut l.errands)).unwrap_or_default();
        for errand in errands {
            match errand {
                Errand::Close(peer) => {
                    if self.meet(peer).is_ok() {
                        self.close(now, peer, false);
                    }
                }
                Errand::Forget(peer) => self.forget(peer, net),
                Errand::Order(peer, packet) => {
                    let Some(loads) = &mut self.desk.loads else { return };
                    let name = loads.book.talk(peer).next(self.desk.me, self.desk.boot, Layer::Ack);
                    self.manage(now, Kind::Ack, &name, OPAQUE, packet.bytes(), net);
                }
            }
        }
    }

    fn forget(&mut self, peer: u32, net: &mut Ctx<'_, Self>) {
        let checked = self.is_checked();
        let Some(loads) = &mut self.desk.loads else { return };
        if !loads.book.talk(peer).closing {
            return;
        }
        if let Some(node) = loads.book.talk(peer).node.take()
            && self.link.forget(node).is_ok()
        {
            loads.held = loads.held.filter(|h| h.0 != peer);
            loads.book.begin_anew(peer);
            if checked {
                net.note(Note::Forgot { peer });
            }
        }
    }

    pub(super) fn on_persisted(&mut self, now: Instant, token: u64, ok: bool, net: &mut Ctx<'_, Self>) {
        let checked = self.is_checked();
        let Some(loads) = &mut self.desk.loads else { return };
        let (group, errands) = loads.group_and_errands();
        if let (Some(group), true) = (group, ok) {
            group.on_persisted(now, token, errands, checked, net);
        }
    }
}

/// A time to wait, exponential around so many milliseconds.
pub(super) fn pause(now: Instant, mean_ms: f64, net: &mut Ctx<'_, Station>) -> Instant {
    now + millis(net.rng().exponential(mean_ms))
}
