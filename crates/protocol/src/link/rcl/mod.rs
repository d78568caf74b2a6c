//! RCL: reliable, ordered messages between two nodes (RL-1…3, 004 §3, §6.2).
//!
//! One connection for each session, shared by all ports. Packets are numbered; acknowledgements are cumulative,
//! selective and delayed; credit bounds what a receiver must keep; timers follow measured round trips.
//!
//! RL-2: the paper merges RCL into CL so that acknowledgements need no polling. Ours is a part of the link machine:
//! an acknowledgement rides on the next packet, or on the driver's one timer.
//!
//! The connection is pure: it sees opened packets and gives plain ones. Seal, sockets and the `plain` fault
//! injector are the link's.

mod queue;
mod receiver;
mod sender;

pub use phalanx_core::Payload;
use phalanx_core::buf::Attachment;
use phalanx_core::{Buf, Code, Duration, Fingerprint, Instant, Port, Snapshot};
use phalanx_wire::Malformed;
use phalanx_wire::rcl::{self, Header, SACK_WORDS};
use receiver::{Data, Receiver};
use sender::Sender;
use std::sync::Arc;

/// The limits of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Config {
    /// The most bytes of a packet inside the seal.
    pub(crate) largest_plain: u16,
    /// Packets a peer may have under way to us.
    pub(crate) credit: u16,
    /// The largest message.
    pub largest_message: u32,
    /// Bytes waiting or unacknowledged for each peer; past it `send` is refused.
    pub send_buffer: u32,
    /// Bytes of packets in flight towards us for each peer.
    pub receive_buffer: u32,
    /// How long an acknowledgement may wait for a message to ride on.
    pub ack_delay: Duration,
    /// A peer that acknowledges nothing for so long is half dead.
    pub patience: Duration,
    /// Simulated networks only: snapshots travel by reference.
    pub by_reference: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            largest_plain: 1400,
            credit: 749,
            largest_message: 16 << 20,
            send_buffer: 4 << 20,
            receive_buffer: 1 << 20,
            ack_delay: Duration::from_millis(1),
            patience: Duration::from_secs(5),
            by_reference: false,
        }
    }
}

impl Config {
    /// Bytes of frames in a full packet: room is left for one word of selective acknowledgement.
    pub(crate) fn frames(&self) -> usize {
        usize::from(self.largest_plain) - Header::WITH_WORD
    }

    /// Packets of `largest_plain` bytes that fit into the receive buffer, within what acknowledgements can name.
    pub(crate) fn credit_for(&self, largest_plain: u16) -> u16 {
        (self.receive_buffer / u32::from(largest_plain)).clamp(32, 64 * SACK_WORDS as u32) as u16
    }
}

/// What happened in all connections of a link, for FI-5 and for operators.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Sums {
    /// Messages handed on.
    pub delivered: u64,
    /// Packets sent again.
    pub retransmissions: u64,
    /// Packets that had arrived before.
    pub duplicates: u64,
    /// Packets that arrived before an earlier one.
    pub early: u64,
    /// Packets sent again early, to ask for a missing acknowledgement.
    pub probes: u64,
    /// Times no acknowledgement came in time.
    pub timeouts: u64,
    /// Packets whose checksum was wrong though their seal was right.
    pub checksum: u64,
    /// Packets that make no sense though their checksum was right.
    pub malformed: u64,
    /// Packets over the credit their sender has.
    pub beyond_credit: u64,
    /// Acknowledgements of what was never sent.
    pub impossible_acks: u64,
}

/// What a call led to, beside messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Progress {
    /// A caller that was refused may try again.
    pub(crate) writable: bool,
    /// Both sides said that nothing follows, and everything was acknowledged.
    pub(crate) closed: bool,
}

/// A connection with one peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Connection {
    sender: Sender,
    receiver: Receiver,
    /// Both sides are done and the owner was told. The connection stays, to answer a peer that missed our last word.
    closed: bool,
}

impl Connection {
    pub(crate) fn new(now: Instant, config: &Config) -> Self {
        // Until its first acknowledgement the peer is trusted with as much as we take ourselves.
        Self { sender: Sender::new(now, config.credit), receiver: Receiver::new(), closed: false }
    }

    /// Takes a message for the peer. A refused one changes nothing.
    #[inline]
    pub(crate) fn send(
        &mut self,
        now: Instant,
        from: Port,
        to: Port,
        message: &[u8],
        config: &Config,
    ) -> Result<(), Code> {
        self.sender.push(now, from, to, message, config)
    }

    /// Takes a large immutable message.
    pub(crate) fn send_snapshot(
        &mut self,
        now: Instant,
        from: Port,
        to: Port,
        snapshot: &Arc<dyn Snapshot>,
        config: &Config,
    ) -> Result<(), Code> {
        self.sender.push_snapshot(now, from, to, snapshot, config)
    }

    /// Nothing follows from our side.
    pub(crate) fn close(&mut self) {
        self.sender.close();
    }

    /// An opened packet arrived.
    pub(crate) fn receive<D>(
        &mut self,
        now: Instant,
        plain: &[u8],
        attached: Option<&Attachment>,
        config: &Config,
        sums: &mut Sums,
        deliver: &mut D,
    ) -> Progress
    where
        D: FnMut(Port, Port, Payload<'_>),
    {
        let header = match Header::parse(plain) {
            Ok(header) => header,
            Err(Malformed::Checksum) => {
                sums.checksum += 1;
                return Progress::default();
            }
            Err(_) => {
                sums.malformed += 1;
                return Progress::default();
            }
        };
        let sent = self.sender.on_ack(now, &header, plain, config, sums);
        if header.ping {
            self.receiver.on_ping();
        }
        if header.data {
            let data = Data { header: &header, frames: &plain[header.len()..], attached };
            self.receiver.on_data(now, data, config, sums, deliver);
        }
        Progress { writable: sent.writable, closed: self.has_just_closed(sent.finished) }
    }

    /// Stops handing messages on until [`Connection::release`].
    pub(crate) fn hold(&mut self) {
        self.receiver.hold();
    }

    /// Hands on what waited. True when that was the last, of both sides.
    pub(crate) fn release<D>(&mut self, config: &Config, sums: &mut Sums, deliver: &mut D) -> bool
    where
        D: FnMut(Port, Port, Payload<'_>),
    {
        self.receiver.release(config, sums, deliver);
        self.has_just_closed(self.sender.is_finished())
    }

    /// True once, when both sides have said their last word and ours has arrived.
    fn has_just_closed(&mut self, sent: bool) -> bool {
        let closed = !self.closed && sent && self.receiver.is_finished();
        self.closed |= closed;
        closed
    }

    /// True when [`Connection::transmit`] would give a packet.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.sender.has_work() || self.receiver.ack_due()
    }

    /// The next packet to send, behind `head` bytes of head room and with `tail` bytes of room after it.
    pub(crate) fn transmit(
        &mut self,
        now: Instant,
        head: usize,
        tail: usize,
        config: &Config,
        sums: &mut Sums,
    ) -> Option<Buf> {
        let mut header = Header::default();
        let due = self.receiver.ack_due();
        let Some(frames) = self.sender.transmit(now, &mut header, config, sums) else {
            if !due && !header.ping {
                return None;
            }
            let mut sack = [0; SACK_WORDS];
            self.receiver.acknowledge(now, &mut header, &mut sack, config);
            let mut packet = Buf::new(head, header.len() + tail);
            header.encode(&sack[..usize::from(header.words)], packet.vec_mut());
            rcl::finish(packet.bytes_mut());
            return Some(packet);
        };
        // A full packet leaves room for one word.
        let mut sack = [0; 1];
        self.receiver.acknowledge(now, &mut header, &mut sack, config);
        let mut packet = Buf::new(head, header.len() + frames.bytes().len() + tail);
        header.encode(&sack[..usize::from(header.words)], packet.vec_mut());
        packet.extend(frames.bytes());
        if let Some(a) = frames.attached() {
            packet.attach(Arc::clone(&a.snapshot), a.range.clone());
        }
        rcl::finish(packet.bytes_mut());
        Some(packet)
    }

    /// Nothing can be sent now: starts the clock when that is for want of credit.
    #[inline]
    pub(crate) fn watch(&mut self, now: Instant, config: &Config) {
        self.sender.watch(now, config);
    }

    /// When [`Connection::expire`] wants to be called.
    #[inline]
    pub(crate) fn deadline(&self) -> Instant {
        self.sender.deadline().min(self.receiver.deadline())
    }

    /// A deadline passed. `Err` when the peer is half dead.
    pub(crate) fn expire(&mut self, now: Instant, config: &Config, sums: &mut Sums) -> Result<(), Code> {
        self.receiver.expire(now);
        self.sender.expire(now, config, sums)
    }

    /// The smoothed round trip; zero before the first measurement.
    pub(crate) fn round_trip(&self) -> Duration {
        self.sender.round_trip()
    }

    /// Bytes waiting or unacknowledged.
    pub(crate) fn queued(&self) -> usize {
        self.sender.queued()
    }

    pub(crate) fn fingerprint(&self, print: &mut Fingerprint) {
        self.sender.fingerprint(print);
        self.receiver.fingerprint(print);
        print.add(&self.closed);
    }
}

#[cfg(test)]
mod tests;
