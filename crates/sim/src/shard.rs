//! A part of the nodes and their events: what one thread runs.
//!
//! Inside a window no shard looks at another: everything that crosses is under way for at least the network's
//! shortest latency, and a window is no longer than that.

use crate::disk::{Disk, Outcome};
use crate::event::{Signal, SignalKind, Stage, What};
use crate::io::Io;
use crate::network::World;
use crate::node::{Held, Kind, Node, State, Stream, addr};
use crate::process::{Ctx, Process, StreamEvent};
use crate::queue::Event;
use crate::sim::{Birth, Factory};
use crate::stats::{Drop, HEADERS};
use phalanx_core::buf::Attachment;
use phalanx_core::rng::mix;
use phalanx_core::{Addr, Buf, Instant, Rng};

/// How many events ahead memory is asked for: a node, then its packet, then what its process will need.
const NODE_AHEAD: usize = 5;
const PACKET_AHEAD: usize = 3;
const DEEP_AHEAD: usize = 2;
const PROCESS_AHEAD: usize = 1;
/// How often a process may expire at one and the same time before the engine calls it stuck.
const SPINS: u16 = 10_000;

pub(crate) struct Shard<P: Process> {
    pub(crate) nodes: Vec<Node<P>>,
    pub(crate) io: Io<P::Note>,
}

/// What all shards read.
pub(crate) struct Shared<'a, P> {
    pub(crate) world: &'a World,
    pub(crate) factory: &'a Factory<P>,
}

impl<P> Clone for Shared<'_, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<P> Copy for Shared<'_, P> {}

/// Takes down what an injector delivers.
fn keep(passed: &mut Vec<(Addr, Buf)>) -> impl FnMut(Addr, &mut [u8], Option<&Attachment>) {
    |from, bytes, attached| {
        let mut packet = Buf::new(0, bytes.len());
        let at = attached.map_or(bytes.len(), |a| a.at);
        packet.extend(&bytes[..at]);
        if let Some(a) = attached {
            packet.attach(a.snapshot.clone(), a.range.clone());
            packet.extend(&bytes[at..]);
        }
        passed.push((from, packet));
    }
}

impl<P: Process> Shard<P> {
    /// Runs all events before `end`.
    pub(crate) fn run(&mut self, shared: Shared<'_, P>, end: Instant) {
        self.io.take_mail();
        while let Some(event) = self.io.queue.pop_before(end) {
            // One datagram to a group is an event in each shard: it counts where it is heard.
            self.io.stats.events += u64::from(!matches!(event.what, What::Cast(..)));
            self.look_ahead();
            self.happen(shared, event);
        }
    }

    /// Asks for the memory that coming events will touch, in the order in which one thing leads to the next: the node
    /// and the event, then the packet, then whatever the process will look for because of it.
    #[inline]
    fn look_ahead(&self) {
        let first = self.io.first;
        if let Some((to, _)) = self.io.queue.ahead(NODE_AHEAD)
            && let Some(node) = self.nodes.get(to.wrapping_sub(first) as usize)
        {
            node.fetch();
        }
        if let Some((_, Some(What::Packet(_, packet)))) = self.io.queue.ahead(PACKET_AHEAD) {
            packet.fetch();
        }
        if P::DEEP
            && let Some((to, Some(What::Packet(_, packet)))) = self.io.queue.ahead(DEEP_AHEAD)
            && let Some(Node { process: Some(process), .. }) = self.nodes.get(to.wrapping_sub(first) as usize)
        {
            process.foresee_far(packet);
        }
        if let Some((to, Some(what))) = self.io.queue.ahead(PROCESS_AHEAD)
            && let Some(Node { process: Some(process), .. }) = self.nodes.get(to.wrapping_sub(first) as usize)
        {
            match what {
                What::Packet(_, packet) => process.foresee(Some(packet)),
                What::Timer(_) => process.foresee(None),
                _ => {}
            }
        }
    }

    fn happen(&mut self, shared: Shared<'_, P>, event: Event<What>) {
        let Event { at, from, to, number, what } = event;
        match what {
            What::Packet(stage, packet) => self.on_packet(shared, at, from, number, to, stage, packet),
            What::Timer(version) => self.on_timer(shared, at, to, version),
            What::Cast(..) => self.io.spread(shared.world, &Event { at, from, to, number, what }),
            What::Signal(signal) => self.on_signal(shared, at, from, to, signal),
            What::Resend { to: peer, host, signal } => {
                let meta = &mut self.nodes[(to - self.io.first) as usize].meta;
                if meta.host == host {
                    self.io.signal(shared.world, meta, at, to, peer, signal);
                }
            }
            What::Refused => self.tell(shared, at, to, Held::Refused(from)),
            What::Disk(write) => {
                let meta = &mut self.node(to).meta;
                let (alive, asked) = (meta.host == write.host, meta.boot == write.boot);
                // A write still under way when the process starts anew is lost: the new one has read the disk without it,
                // and no disk brings it in behind its back.
                if alive && asked && write.outcome == Outcome::Kept {
                    meta.extras().disk.write(write.key, write.bytes);
                }
                if alive && asked && write.outcome != Outcome::Lost {
                    self.tell(shared, at, to, Held::Persisted(write.token, write.outcome != Outcome::Failed));
                }
            }
            What::Start => self.on_start(shared, at, to),
        }
    }

    pub(crate) fn node(&mut self, node: u32) -> &mut Node<P> {
        &mut self.nodes[(node - self.io.first) as usize]
    }

    fn on_start(&mut self, shared: Shared<'_, P>, at: Instant, to: u32) {
        let node = self.node(to);
        if node.meta.state != State::Starting {
            return;
        }
        let meta = &mut node.meta;
        meta.state = State::Up;
        meta.boot += 1;
        meta.rng = Rng::new(shared.world.seed ^ mix(u64::from(meta.boot)), u64::from(to));
        let (now, boot, host) = (meta.local(at), meta.boot, meta.host);
        let mut rng = meta.rng.clone();
        let disk = meta.peek_extras().map_or(Disk::EMPTY, |x| &x.disk);
        let birth = Birth { node: to, boot, host, now, disk, rng: &mut rng };
        node.process = Some((shared.factory)(birth));
        node.meta.rng = rng;
        node.meta.mark(at, Kind::Started, to, boot as usize);
        self.call(shared, at, to, |p, now, net| p.start(now, net));
    }

    #[inline]
    #[allow(clippy::too_many_arguments)] // The fields of one event.
    fn on_packet(
        &mut self,
        shared: Shared<'_, P>,
        at: Instant,
        from: u32,
        number: u32,
        to: u32,
        stage: Stage,
        packet: Buf,
    ) {
        let node = &mut self.nodes[(to - self.io.first) as usize];
        let bytes = packet.len() as u64 + HEADERS;
        if stage != Stage::Passed {
            match node.meta.state {
                State::HostDown | State::Starting => return self.io.stats.drop(Drop::DeadHost),
                State::ProcessDown => return self.refuse(shared.world, at, from, to, stage),
                State::Up | State::Paused => {}
            }
            if node.meta.loses_in() {
                return self.io.stats.drop(Drop::NodeLoss);
            }
            let mut through = at;
            if let Some(per_flow) = shared.world.per_flow {
                through = self.io.switch(shared.world, at, to, per_flow);
            }
            if let Some(link) = shared.world.link {
                match link.pass(through, node.meta.in_free, bytes) {
                    Some(time) => (node.meta.in_free, through) = (time, time),
                    None => return self.io.stats.drop(Drop::Queue),
                }
            }
            if through > at {
                let what = What::Packet(Stage::Passed, packet);
                return self.io.queue.push(Event { at: through, from, number, to, what });
            }
        }
        node.meta.bytes_in += bytes;
        if node.meta.state != State::Up {
            return self.tell(shared, at, to, Held::Packet(from, packet));
        }
        self.arrive(shared, at, from, to, packet);
    }

    /// A process reads a datagram, past its injector when it has one.
    #[inline]
    fn arrive(&mut self, shared: Shared<'_, P>, at: Instant, from: u32, to: u32, mut packet: Buf) {
        let Some(injector) = self.node(to).meta.injector() else {
            return self.read(shared, at, from, to, packet);
        };
        let mut passed = Vec::new();
        let (bytes, attached) = packet.parts_mut();
        // A failed receive is repeated by the injector itself, when its deadline comes.
        let _ = injector.receive(at, addr(from), bytes, attached, &mut keep(&mut passed));
        self.read_all(shared, at, to, passed);
    }

    fn read_all(&mut self, shared: Shared<'_, P>, at: Instant, to: u32, packets: Vec<(Addr, Buf)>) {
        for (from, packet) in packets {
            if let Addr::Local(from) = from {
                self.read(shared, at, from, to, packet);
            }
        }
        // The injector may hold something now.
        self.arm(to, at);
    }

    #[inline]
    fn read(&mut self, shared: Shared<'_, P>, at: Instant, from: u32, to: u32, packet: Buf) {
        self.io.stats.delivered += 1;
        self.node(to).meta.mark(at, Kind::Arrived, from, packet.len());
        self.call(shared, at, to, |p, now, net| p.arrived(now, addr(from), packet, net));
    }

    /// A host without our process answers a datagram as ICMP does.
    fn refuse(&mut self, world: &World, at: Instant, from: u32, to: u32, stage: Stage) {
        self.io.stats.drop(Drop::DeadProcess);
        let meta = &mut self.nodes[(to - self.io.first) as usize].meta;
        if stage == Stage::Unicast && !world.blocked(to, from) {
            let under_way = world.latency(to, from, &mut meta.chance);
            self.io.cause(meta, to, at + under_way, from, What::Refused);
        }
    }

    #[inline]
    fn on_timer(&mut self, shared: Shared<'_, P>, at: Instant, to: u32, version: u32) {
        let node = self.node(to);
        if node.meta.timer != version || node.meta.state != State::Up {
            // A paused node is armed again when it resumes.
            self.io.stats.stale_timers += 1;
            return;
        }
        node.meta.armed = Instant::NEVER;
        if let Some(injector) = node.meta.injector()
            && injector.deadline() <= at
        {
            let mut passed = Vec::new();
            injector.expire(at, &mut keep(&mut passed));
            self.read_all(shared, at, to, passed);
        }
        let node = &mut self.nodes[(to - self.io.first) as usize];
        let meta = &mut node.meta;
        let Some(process) = &node.process else {
            return;
        };
        if process.deadline() > meta.local(at) {
            self.io.stats.stale_timers += 1;
            return self.arm(to, at);
        }
        assert!(meta.spin(at) < SPINS, "node {to} is stuck at {at}: its deadline stays in the past when it expires");
        meta.mark(at, Kind::Expired, to, 0);
        self.call(shared, at, to, |p, now, net| p.expire(now, net));
    }

    /// The kernel's part of a stream's life; the process hears of what concerns it.
    fn on_signal(&mut self, shared: Shared<'_, P>, at: Instant, from: u32, to: u32, signal: Signal) {
        let node = &mut self.nodes[(to - self.io.first) as usize];
        if node.meta.state == State::HostDown {
            return;
        }
        let alive = matches!(node.meta.state, State::Up | State::Paused);
        let ours = !signal.from_opener;
        let streams = &mut node.meta.extras().streams;
        let place = streams.iter().position(|s| (s.peer, s.id, s.ours) == (from, signal.id, ours));
        let (event, reply) = match (signal.kind, place) {
            (SignalKind::Open, None) if alive => {
                streams.push(Stream { peer: from, id: signal.id, ours, open: true });
                (Some(StreamEvent::Opened), Some(SignalKind::Accept))
            }
            (SignalKind::Open, None) => (None, Some(SignalKind::Refuse)),
            (SignalKind::Accept, Some(i)) if !streams[i].open => {
                streams[i].open = true;
                (Some(StreamEvent::Opened), None)
            }
            // We died or closed before the peer accepted: it must not hold half a stream for ever.
            (SignalKind::Accept, None) => (None, Some(SignalKind::Close)),
            (SignalKind::Refuse | SignalKind::Close | SignalKind::Reset, Some(i)) => {
                streams.swap_remove(i);
                let event = match signal.kind {
                    SignalKind::Refuse => StreamEvent::Refused,
                    SignalKind::Close => StreamEvent::Closed,
                    _ => StreamEvent::Reset,
                };
                (Some(event), None)
            }
            _ => (None, None),
        };
        if let Some(kind) = reply {
            self.io.signal(shared.world, &mut node.meta, at, to, from, kind.of(signal.id, ours));
        }
        if let Some(event) = event {
            self.tell(shared, at, to, Held::Stream(from, event));
        }
    }

    /// Hands something to a process, or holds it while the node is paused.
    pub(crate) fn tell(&mut self, shared: Shared<'_, P>, at: Instant, to: u32, held: Held<P::Command>) {
        let node = &mut self.nodes[(to - self.io.first) as usize];
        match node.meta.state {
            State::Up => {}
            State::Paused => {
                let waiting = node.held.get_or_insert_default();
                // Only datagrams fill the socket buffer; the rest is kept by the kernel in other places.
                let full = || waiting.iter().filter(|h| matches!(h, Held::Packet(..))).count() >= shared.world.socket;
                if matches!(held, Held::Packet(..)) && full() {
                    self.io.stats.drop(Drop::SocketBuffer);
                } else {
                    waiting.push(held);
                }
                return;
            }
            State::Starting | State::ProcessDown | State::HostDown => {
                if matches!(held, Held::Packet(..)) {
                    self.io.stats.drop(Drop::DeadProcess);
                }
                return;
            }
        }
        let meta = &mut node.meta;
        match held {
            Held::Packet(from, packet) => self.arrive(shared, at, from, to, packet),
            Held::Stream(peer, event) => {
                meta.mark(at, Kind::Stream, peer, event as usize);
                self.call(shared, at, to, |p, now, net| p.stream(now, addr(peer), event, net));
            }
            Held::Refused(peer) => {
                meta.mark(at, Kind::Refused, peer, 0);
                self.call(shared, at, to, |p, now, net| p.refused(now, addr(peer), net));
            }
            Held::Persisted(token, ok) => {
                meta.mark(at, Kind::Persisted, to, usize::from(ok));
                self.call(shared, at, to, |p, now, net| p.persisted(now, token, ok, net));
            }
            Held::Command(command) => {
                meta.mark(at, Kind::Command, to, 0);
                self.call(shared, at, to, |p, now, net| p.command(now, command, net));
            }
        }
    }

    #[inline]
    fn call(&mut self, shared: Shared<'_, P>, at: Instant, to: u32, f: impl FnOnce(&mut P, Instant, &mut Ctx<'_, P>)) {
        let node = &mut self.nodes[(to - self.io.first) as usize];
        let Some(process) = &mut node.process else {
            return;
        };
        let now = node.meta.local(at);
        f(process, now, &mut Ctx { at, me: to, meta: &mut node.meta, io: &mut self.io, world: shared.world });
        self.arm(to, at);
    }

    /// Makes sure that a timer event comes no later than the process's deadline.
    ///
    /// A deadline that moved away leaves the old event in place, which then finds nothing to do and arms again: a
    /// timeout that each message pushes back costs one event for each timeout, not for each message.
    #[inline]
    pub(crate) fn arm(&mut self, to: u32, at: Instant) {
        let node = &mut self.nodes[(to - self.io.first) as usize];
        let Some(process) = &node.process else {
            return;
        };
        let due = node.meta.due(process.deadline()).max(at);
        if due < node.meta.armed {
            node.meta.armed = due;
            node.meta.timer = node.meta.timer.wrapping_add(1);
            let timer = What::Timer(node.meta.timer);
            self.io.cause(&mut node.meta, to, due, to, timer);
        }
    }
}
