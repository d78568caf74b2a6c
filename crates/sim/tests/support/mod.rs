//! A process that does what a test tells it and says all that it sees.
#![allow(dead_code)] // Each test file uses its part.

use phalanx_core::{Addr, Buf, Duration, Group, Instant};
use phalanx_fault::Outcome;
use phalanx_sim::{Birth, Ctx, Network, NetworkError, Process, Setup, Sim, StreamEvent};

/// What a probe is told.
#[derive(Clone, Debug)]
pub(crate) enum Do {
    /// Send that many bytes to a node.
    Send(u32, usize),
    /// Send that many bytes to a group (number, TTL).
    Cast(u16, u8, usize),
    /// Join a group.
    Join(u16),
    /// Leave a group.
    Leave(u16),
    /// Open a stream.
    Open(u32),
    /// Close a stream.
    Close(u32),
    /// Write to the disk (token, key, byte).
    Write(u64, u64, u8),
    /// Ring after a while.
    Ring(Duration),
}

/// What a probe sees.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Saw {
    Started(u32),
    Heard(u32, Vec<u8>),
    /// With the probe's own time.
    Rang(Instant),
    Stream(u32, StreamEvent),
    Refused(u32),
    Written(u64, bool),
    Failed(Outcome),
}

pub(crate) struct Probe {
    rings_at: Instant,
    pub(crate) kept: Option<u8>,
}

/// The key that a probe reads when it is born.
pub(crate) const KEY: u64 = 7;

fn local(addr: Addr) -> u32 {
    match addr {
        Addr::Local(n) => n,
        other => panic!("{other} is not of this network"),
    }
}

impl Process for Probe {
    type Command = Do;
    type Note = Saw;

    fn start(&mut self, _: Instant, net: &mut Ctx<'_, Self>) {
        net.note(Saw::Started(net.boot()));
    }

    fn arrived(&mut self, _: Instant, from: Addr, packet: Buf, net: &mut Ctx<'_, Self>) {
        net.note(Saw::Heard(local(from), packet.bytes().to_vec()));
    }

    fn expire(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        self.rings_at = Instant::NEVER;
        net.note(Saw::Rang(now));
    }

    fn deadline(&self) -> Instant {
        self.rings_at
    }

    fn stream(&mut self, _: Instant, peer: Addr, event: StreamEvent, net: &mut Ctx<'_, Self>) {
        net.note(Saw::Stream(local(peer), event));
    }

    fn refused(&mut self, _: Instant, to: Addr, net: &mut Ctx<'_, Self>) {
        net.note(Saw::Refused(local(to)));
    }

    fn persisted(&mut self, _: Instant, token: u64, ok: bool, net: &mut Ctx<'_, Self>) {
        net.note(Saw::Written(token, ok));
    }

    fn command(&mut self, now: Instant, command: Do, net: &mut Ctx<'_, Self>) {
        match command {
            Do::Send(to, len) => match net.try_send(Addr::Local(to), Buf::copy_of(&vec![7; len])) {
                Outcome::Pass | Outcome::Drop => {}
                failed => net.note(Saw::Failed(failed)),
            },
            Do::Cast(number, ttl, len) => net.send(Addr::Group(Group { number, ttl }), Buf::copy_of(&vec![7; len])),
            Do::Join(number) => net.join_group(number),
            Do::Leave(number) => net.leave_group(number),
            Do::Open(peer) => net.open_stream(Addr::Local(peer)),
            Do::Close(peer) => net.close_stream(Addr::Local(peer)),
            Do::Write(token, key, byte) => net.persist(token, key, &[byte]),
            Do::Ring(after) => self.rings_at = now + after,
        }
    }
}

pub(crate) fn born(birth: Birth<'_>) -> Probe {
    Probe { rings_at: Instant::NEVER, kept: birth.disk.read(KEY).map(|bytes| bytes[0]) }
}

pub(crate) fn probes(nodes: u32, network: Network) -> Sim<Probe> {
    try_probes(nodes, network).expect("the network makes sense")
}

pub(crate) fn try_probes(nodes: u32, network: Network) -> Result<Sim<Probe>, NetworkError> {
    let mut sim = Sim::new(&Setup { nodes, network, ..Setup::default() }, born)?;
    sim.run_until(ms(1));
    sim.keep_notes();
    Ok(sim)
}

pub(crate) fn ms(n: u64) -> Instant {
    Instant::ZERO + Duration::from_millis(n)
}

pub(crate) fn us(n: u64) -> Duration {
    Duration::from_micros(n)
}

/// Messages heard: (when after `since`, by whom), in order.
pub(crate) fn heard(sim: &Sim<Probe>, since: Instant) -> Vec<(Duration, u32)> {
    let hearing = sim.notes().iter().filter(|n| n.0 >= since && matches!(n.2, Saw::Heard(..)));
    hearing.map(|(at, node, _)| (at.since(since), *node)).collect()
}

/// All that `node` saw, with how long after `since`.
pub(crate) fn seen(sim: &Sim<Probe>, node: u32, since: Instant) -> Vec<(Duration, Saw)> {
    let seeing = sim.notes().iter().filter(|n| n.1 == node && n.0 >= since);
    seeing.map(|(at, _, saw)| (at.since(since), saw.clone())).collect()
}

/// A network where each message takes exactly that long.
pub(crate) fn fixed(us: f64) -> Network {
    Network { latency: phalanx_sim::Latency::Fixed { us }, ..Network::default() }
}
