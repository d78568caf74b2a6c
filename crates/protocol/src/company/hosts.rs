//! What hosts of a job say to each other beside their tasks: output, input, ends (CM-2).
//!
//! Frames ride the company's link on a port of their own, are numbered for each peer and kept until it has them. So what was under way
//! when a session broke is sent again in the next one, and comes once and in order: a host that was stopped for a while loses no line of
//! its ranks' output.
//!
//! ```text
//! 0 1 version   1 1 kind: 0 frame, 1 acknowledgement   2 8 stream   10 8 number   18 8 next one expected   26 … frame
//! ```
//! A stream is one start of a host's process. Who hears another stream at an address knows that the process before it is gone.

use super::{Company, Out, Output};
use crate::link::Link;
use crate::node::parting::Parting;
use phalanx_core::{Addr, Code, Duration, Endpoint, Fingerprint, Instant, Port};
use std::collections::{BTreeMap, VecDeque};

/// Where frames are spoken and heard.
pub(super) const HOSTS: Port = Port(5);
const VERSION: u8 = 1;
const HEAD: usize = 26;
/// Bytes of frames that wait for one peer; past it [`Company::tell_host`] refuses.
pub const HOST_BUFFER: usize = 1 << 20;
/// Peers that are remembered; frames of more are dropped and counted. As many as a link holds.
const PEERS: usize = 16 * 1024;
/// A frame is acknowledged within this time …
const ACK_WITHIN: Duration = Duration::from_millis(20);
/// … or when so many bytes were not.
const ACK_BYTES: usize = 64 << 10;
/// Nothing was acknowledged for so long: all is sent again. The link is reliable within a session, so this mends only what was under
/// way when one ended.
const AGAIN: Duration = Duration::from_secs(2);

/// What one peer and we have said to each other.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
struct Peer {
    /// The number of the next frame for it.
    next: u64,
    /// What it has not acknowledged, oldest first, ready to be sent.
    waiting: VecDeque<Vec<u8>>,
    bytes: usize,
    /// How many of these were given to the link's session.
    sent: usize,
    /// When they are sent again.
    again: Option<Instant>,
    /// Its stream, once heard.
    stream: Option<u64>,
    /// The number of the next frame from it.
    heard: u64,
    /// Bytes heard that it does not know of, and when it is told.
    untold: usize,
    tell_at: Option<Instant>,
}

/// Hosts that are spoken with.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(super) struct Hosts {
    peers: BTreeMap<Addr, Peer>,
    /// Frames that made no sense, or came out of order.
    pub(super) odd: u64,
}

struct Head {
    is_ack: bool,
    stream: u64,
    number: u64,
    expected: u64,
}

impl Head {
    fn write(&self, bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD + bytes.len());
        out.extend_from_slice(&[VERSION, u8::from(self.is_ack)]);
        out.extend([self.stream, self.number, self.expected].into_iter().flat_map(u64::to_le_bytes));
        out.extend_from_slice(bytes);
        out
    }

    fn read(bytes: &[u8]) -> Option<(Self, &[u8])> {
        let (head, rest) = bytes.split_first_chunk::<HEAD>()?;
        let eight = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| head[at + i]));
        let is_ack = match (head[0], head[1]) {
            (VERSION, kind @ (0 | 1)) => kind == 1,
            _ => return None,
        };
        Some((Self { is_ack, stream: eight(2), number: eight(10), expected: eight(18) }, rest))
    }
}

impl Peer {
    fn deadline(&self) -> Instant {
        self.again.unwrap_or(Instant::NEVER).min(self.tell_at.unwrap_or(Instant::NEVER))
    }

    /// It has all frames before this number.
    fn on_acknowledged(&mut self, now: Instant, expected: u64) {
        let first = self.next - self.waiting.len() as u64;
        // More than was ever sent is of a stream before ours.
        if expected <= first || expected > self.next {
            return;
        }
        let done = (expected - first) as usize;
        self.bytes -= self.waiting.drain(..done).map(|frame| frame.len()).sum::<usize>();
        self.sent = self.sent.saturating_sub(done);
        self.again = (!self.waiting.is_empty()).then_some(now + AGAIN);
    }

    /// What was under way is lost.
    fn rewind(&mut self) {
        self.sent = 0;
    }
}

impl Hosts {
    pub(super) fn holds(&self, addr: Addr) -> bool {
        self.peers.contains_key(&addr)
    }

    pub(super) fn deadline(&self) -> Instant {
        self.peers.values().map(Peer::deadline).fold(Instant::NEVER, Instant::min)
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(self);
    }
}

/// Gives the link what it has room for.
fn flush(now: Instant, addr: Addr, peer: &mut Peer, link: &mut Link, parting: &mut Parting, largest: u16) {
    while let Some(frame) = peer.waiting.get(peer.sent) {
        let sent = parting
            .reach(link, addr, largest)
            .and_then(|node| link.send_reliable(now, HOSTS, Endpoint { node, port: HOSTS }, frame));
        // The link says when there is room; `again` is for when it cannot.
        if sent.is_err() {
            break;
        }
        peer.sent += 1;
    }
    peer.again = (!peer.waiting.is_empty()).then_some(peer.again.filter(|&at| at > now).unwrap_or(now + AGAIN));
}

impl Company {
    fn stream(&self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|i| self.link.boot().0[i]))
    }

    /// Tells another host of the job something: once and in order, as long as both live. Told of with [`Output::Host`] there.
    ///
    /// # Errors
    /// `LocalResource` when [`HOST_BUFFER`] bytes wait for it already: try again after [`Output::Writable`] or a while. Nothing was sent.
    pub fn tell_host(&mut self, now: Instant, to: Addr, bytes: &[u8], out: &mut impl Out) -> Result<(), Code> {
        let stream = self.stream();
        if self.hosts.peers.len() >= PEERS && !self.hosts.holds(to) {
            return Err(Code::LocalResource);
        }
        let peer = self.hosts.peers.entry(to).or_default();
        // A frame of any size finds room where there is nothing else.
        if peer.bytes + HEAD + bytes.len() > HOST_BUFFER && !peer.waiting.is_empty() {
            return Err(Code::LocalResource);
        }
        let frame = Head { is_ack: false, stream, number: peer.next, expected: peer.heard }.write(bytes);
        peer.next += 1;
        peer.bytes += frame.len();
        peer.waiting.push_back(frame);
        flush(now, to, peer, &mut self.link, &mut self.parting, self.largest);
        self.run(now, out);
        Ok(())
    }

    /// Bytes that wait for a host, or are under way there.
    #[must_use]
    pub fn waits_for_host(&self, addr: Addr) -> usize {
        self.hosts.peers.get(&addr).map_or(0, |p| p.bytes)
    }

    /// Nobody speaks with other hosts any more; what waits for them is dropped.
    pub fn forget_hosts(&mut self) {
        self.hosts.peers.clear();
    }

    pub(super) fn on_frame(&mut self, now: Instant, from: Addr, bytes: &[u8], out: &mut impl Out) {
        let Some((head, rest)) = Head::read(bytes) else {
            self.hosts.odd += 1;
            return;
        };
        if self.hosts.peers.len() >= PEERS && !self.hosts.holds(from) {
            self.hosts.odd += 1;
            return;
        }
        let peer = self.hosts.peers.entry(from).or_default();
        if peer.stream != Some(head.stream) {
            let is_other = peer.stream.is_some();
            if is_other {
                // What waited was for a process that is gone.
                *peer = Peer::default();
                out.push(Output::HostGone { addr: from, certain: true });
            }
            let Some(peer) = self.hosts.peers.get_mut(&from) else { return };
            (peer.stream, peer.heard) = (Some(head.stream), head.number);
        }
        let Some(peer) = self.hosts.peers.get_mut(&from) else { return };
        peer.on_acknowledged(now, head.expected);
        if head.is_ack {
            return flush(now, from, peer, &mut self.link, &mut self.parting, self.largest);
        }
        let is_next = head.number == peer.heard;
        if is_next {
            peer.heard += 1;
        } else if head.number > peer.heard {
            // What is missing was lost with a session, and comes again.
            self.hosts.odd += 1;
        }
        peer.untold += bytes.len();
        let tell_at = if peer.untold >= ACK_BYTES { now } else { now + ACK_WITHIN };
        peer.tell_at = Some(peer.tell_at.map_or(tell_at, |at| at.min(tell_at)));
        if is_next {
            out.push(Output::Host { from, bytes: rest });
        }
    }

    /// The link has room for more, or a session with this host begins.
    pub(super) fn flush_host(&mut self, now: Instant, addr: Addr) {
        if let Some(peer) = self.hosts.peers.get_mut(&addr) {
            flush(now, addr, peer, &mut self.link, &mut self.parting, self.largest);
        }
    }

    /// A session with this host ended.
    pub(super) fn rewind_host(&mut self, now: Instant, addr: Addr) {
        if let Some(peer) = self.hosts.peers.get_mut(&addr) {
            peer.rewind();
            peer.again = (!peer.waiting.is_empty()).then_some(now + AGAIN);
        }
    }

    /// Nobody is there, or nobody answers.
    pub(super) fn lose_host(&mut self, addr: Addr, certain: bool, out: &mut impl Out) {
        if !self.hosts.holds(addr) && !self.watch.known.contains(&addr) {
            return;
        }
        if certain {
            self.hosts.peers.remove(&addr);
        }
        out.push(Output::HostGone { addr, certain });
    }

    pub(super) fn expire_hosts(&mut self, now: Instant) {
        let stream = self.stream();
        let Self { hosts, link, parting, largest, .. } = self;
        for (&addr, peer) in hosts.peers.iter_mut().filter(|(_, p)| p.deadline() <= now) {
            if peer.tell_at.is_some_and(|at| at <= now) {
                (peer.tell_at, peer.untold) = (None, 0);
                let ack = Head { is_ack: true, stream, number: peer.next, expected: peer.heard }.write(&[]);
                // One that is lost is said again when the frame comes again.
                let _ = parting
                    .reach(link, addr, *largest)
                    .and_then(|node| link.send_reliable(now, HOSTS, Endpoint { node, port: HOSTS }, &ack));
            }
            if peer.again.is_some_and(|at| at <= now) {
                peer.rewind();
                peer.again = None;
                flush(now, addr, peer, link, parting, *largest);
            }
        }
    }
}
