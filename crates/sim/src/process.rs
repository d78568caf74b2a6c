//! What runs on a node, and what it may ask of the simulated machine beneath it.
//!
//! A [`Process`] is what the daemon is on a real host: it holds the machines and drives them. The simulator gives it
//! what an operating system would: datagrams, groups, streams, a disk, one timer. Everything is monomorphised: no
//! virtual call and no allocation between the queue and the process.

use crate::event::{SignalKind, Stage, What};
use crate::io::Io;
use crate::network::{Fate, World};
use crate::node::{Meta, Stream};
use crate::stats::{Drop, HEADERS};
use phalanx_core::{Addr, Buf, Group, Instant, Rng};
use phalanx_fault::{Injector, Outcome};

/// What runs on a node. Built anew by a factory at each start, from what the node's disk kept.
///
/// `now` is the node's own clock, which a fault may set wrong. After each call the engine reads
/// [`Process::deadline`] again: that is the node's one armed timer.
pub trait Process: Send + Sized {
    /// What a scenario or a test asks of it.
    type Command: Send;
    /// What it tells the checkers.
    type Note: Send;

    /// Bytes at its beginning that nearly every call touches: the engine asks for them ahead of time.
    const HOT: usize = usize::MAX;
    /// What a packet needs is so far from there that it must be asked for in two steps.
    const DEEP: bool = false;

    /// The process begins.
    fn start(&mut self, now: Instant, net: &mut Ctx<'_, Self>);
    /// A datagram came.
    fn arrived(&mut self, now: Instant, from: Addr, packet: Buf, net: &mut Ctx<'_, Self>);
    /// [`Process::deadline`] has passed.
    fn expire(&mut self, now: Instant, net: &mut Ctx<'_, Self>);
    /// When to call [`Process::expire`] next; [`Instant::NEVER`] when idle.
    fn deadline(&self) -> Instant;

    /// A packet, or the timer when there is none, will come soon: a process may ask for the memory it will touch then
    /// ([`phalanx_core::fetch`]). Nothing else; it may never come.
    #[inline]
    fn foresee(&self, _packet: Option<&Buf>) {}

    /// The same, sooner still, for what [`Process::foresee`] will look into; only asked for when [`Process::DEEP`].
    #[inline]
    fn foresee_far(&self, _packet: &Buf) {}

    /// Something happened to a stream with `peer`.
    fn stream(&mut self, _now: Instant, _peer: Addr, _event: StreamEvent, _net: &mut Ctx<'_, Self>) {}
    /// The host of `to` answered that nobody listens there (ICMP): its process is dead.
    fn refused(&mut self, _now: Instant, _to: Addr, _net: &mut Ctx<'_, Self>) {}
    /// The write of that token is on the disk, or failed.
    fn persisted(&mut self, _now: Instant, _token: u64, _ok: bool, _net: &mut Ctx<'_, Self>) {}
    /// A scenario or a test asks for something.
    fn command(&mut self, _now: Instant, _command: Self::Command, _net: &mut Ctx<'_, Self>) {}
}

/// What happens to an idle stream, a *tripwire*.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamEvent {
    /// It is open: the peer accepted ours, or we accepted the peer's.
    Opened,
    /// The peer's host is there, and no process listens.
    Refused,
    /// The peer closed it, or its process died and the kernel did.
    Closed,
    /// Something on the way broke it.
    Reset,
}

/// The machine beneath a process, for the length of one call.
pub struct Ctx<'a, P: Process> {
    pub(crate) at: Instant,
    pub(crate) me: u32,
    pub(crate) meta: &'a mut Meta,
    pub(crate) io: &'a mut Io<P::Note>,
    pub(crate) world: &'a World,
}

impl<P: Process> Ctx<'_, P> {
    /// The number of this node.
    #[must_use]
    pub fn node(&self) -> u32 {
        self.me
    }

    /// The number of nodes in the run.
    #[must_use]
    pub fn nodes(&self) -> u32 {
        self.world.nodes
    }

    /// How often this node has started, this time included.
    #[must_use]
    pub fn boot(&self) -> u32 {
        self.meta.boot
    }

    /// The process's own generator, seeded from (run, node, boot). The network draws from another one.
    pub fn rng(&mut self) -> &mut Rng {
        &mut self.meta.rng
    }

    /// Tells the checkers something.
    pub fn note(&mut self, note: P::Note) {
        self.io.notes.push((self.at, self.me, note));
    }

    /// Sends a datagram to a node, or to all members of a group within its TTL (the sender left out).
    #[inline]
    pub fn send(&mut self, to: Addr, packet: Buf) {
        // Who does not watch the outcome sees what a network shows: nothing.
        let _ = self.try_send(to, packet);
    }

    /// As [`Ctx::send`], with what the node's fault injector made of it (FI-1): a call may fail at once or later, and
    /// the caller plays the platform's part in that. Without an injector it is always [`Outcome::Pass`].
    #[inline]
    pub fn try_send(&mut self, to: Addr, packet: Buf) -> Outcome {
        let Some(injector) = self.meta.injector() else {
            self.transmit(to, packet);
            return Outcome::Pass;
        };
        let outcome = injector.send(self.at, to, &packet);
        match outcome {
            Outcome::Pass | Outcome::FailLater { deliver: true, .. } => self.transmit(to, packet),
            Outcome::Drop | Outcome::Refuse(_) | Outcome::FailLater { .. } => self.io.stats.drop(Drop::Injected),
        }
        while let Some((to, copy)) = self.meta.injector().and_then(Injector::take_injected) {
            self.transmit(to, copy);
        }
        outcome
    }

    /// The protocol has reached a state of that name: wakes the injector's rules that wait for it (FI-6).
    pub fn reached(&mut self, state: &str) {
        let at = self.at;
        if let Some(injector) = self.meta.injector() {
            injector.signal(at, state);
        }
    }

    #[inline]
    fn transmit(&mut self, to: Addr, packet: Buf) {
        let bytes = packet.len() as u64 + HEADERS;
        self.io.stats.sent += 1;
        self.io.stats.bytes += bytes;
        self.meta.bytes_out += bytes;
        let mut depart = self.at;
        if let Some(link) = self.world.link {
            let Some(through) = link.pass(self.at, self.meta.out_free, bytes) else {
                return self.io.stats.drop(Drop::Queue);
            };
            self.meta.out_free = through;
            depart = through;
        }
        if self.meta.loses_out() {
            return self.io.stats.drop(Drop::NodeLoss);
        }
        match to {
            Addr::Local(node) => self.unicast(depart, node, packet),
            Addr::Group(group) => self.multicast(depart, group, packet),
            Addr::Ip(_) => self.io.stats.drop(Drop::NoRoute),
        }
    }

    #[inline]
    fn unicast(&mut self, depart: Instant, to: u32, packet: Buf) {
        if to >= self.world.nodes || self.world.distance(self.me, to) == 0 {
            return self.io.stats.drop(Drop::NoRoute);
        }
        if self.world.cut(self.me, to) {
            return self.io.stats.drop(Drop::Partition);
        }
        match self.world.fate(self.me, to, &mut self.meta.chance) {
            Fate::Lost => self.io.stats.drop(Drop::Loss),
            Fate::Arrives(under_way) => {
                self.io.cause(self.meta, self.me, depart + under_way, to, What::Packet(Stage::Unicast, packet));
            }
            Fate::Twice(first, second) => {
                self.io.stats.duplicated += 1;
                let copy = What::Packet(Stage::Unicast, packet.clone());
                self.io.cause(self.meta, self.me, depart + second, to, copy);
                self.io.cause(self.meta, self.me, depart + first, to, What::Packet(Stage::Unicast, packet));
            }
        }
    }

    /// A datagram to a group goes to each shard that may hold a member, and spreads there: who is a member is known
    /// to the member's shard alone.
    fn multicast(&mut self, depart: Instant, group: Group, packet: Buf) {
        let number = self.meta.next_number();
        let at = depart + self.world.lookahead;
        self.io.cast(self.world, at, self.me, number, group, packet);
    }

    /// Becomes a member of group `number`.
    pub fn join_group(&mut self, number: u16) {
        let groups = &mut self.meta.extras().groups;
        if !groups.contains(&number) {
            groups.push(number);
            self.io.join(self.world, self.me, number);
        }
    }

    /// Is no longer a member of group `number`.
    pub fn leave_group(&mut self, number: u16) {
        let groups = &mut self.meta.extras().groups;
        if let Some(i) = groups.iter().position(|&g| g == number) {
            groups.swap_remove(i);
            self.io.leave(self.world, self.me, number);
        }
    }

    /// Opens a stream to `peer`, unless one that we opened is there already. [`Process::stream`] tells how it went;
    /// a dead host and a cut never answer.
    pub fn open_stream(&mut self, peer: Addr) {
        let Addr::Local(peer) = peer else {
            return;
        };
        if peer >= self.world.nodes || self.meta.extras().streams.iter().any(|s| s.peer == peer && s.ours) {
            return;
        }
        let id = self.meta.number;
        self.meta.extras().streams.push(Stream { peer, id, ours: true, open: false });
        self.io.signal(self.world, self.meta, self.at, self.me, peer, SignalKind::Open.of(id, true));
    }

    /// Closes the streams with `peer`, whoever opened them. The peer hears of it, this process does not.
    pub fn close_stream(&mut self, peer: Addr) {
        let Addr::Local(peer) = peer else {
            return;
        };
        while let Some(i) = self.meta.extras().streams.iter().position(|s| s.peer == peer) {
            let stream = self.meta.extras().streams.swap_remove(i);
            let close = SignalKind::Close.of(stream.id, stream.ours);
            self.io.signal(self.world, self.meta, self.at, self.me, peer, close);
        }
    }

    /// Writes `bytes` under `key` to the node's disk; [`Process::persisted`] says when it is there. Writes of one
    /// node are carried out in order. A process that dies first leaves the write to its host.
    pub fn persist(&mut self, token: u64, key: u64, bytes: &[u8]) {
        let (done, write) = self.meta.write(self.at, self.world.disk, token, key, bytes);
        self.io.cause(self.meta, self.me, done, self.me, What::Disk(Box::new(write)));
    }
}
