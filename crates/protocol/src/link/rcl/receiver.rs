//! The receiving half of a connection: order, duplicates, reassembly, and when to acknowledge.
//!
//! A packet that comes in its turn is read where it lies and its messages are handed on without a copy. Only what
//! comes early is copied, into pooled buffers, at most one credit's worth.

use super::sender::expand;
use super::{Config, Payload, Sums};
use phalanx_core::buf::Attachment;
use phalanx_core::{Buf, Fingerprint, Instant, Port, Snapshot};
use phalanx_wire::Malformed;
use phalanx_wire::rcl::{self, Beginning, Frame, Frames, Header};
use std::collections::VecDeque;
use std::sync::Arc;

/// So many packets may arrive before they are acknowledged without waiting for a message to go along.
const ACK_EVERY: u32 = 2;
/// An empty stash with room for more is given back.
const KEPT_PACKETS: usize = 8;
/// A reassembly buffer larger than this is given back after use.
const KEPT_BUFFER: usize = 256 * 1024;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Receiver {
    /// All packets below have arrived.
    next: u64,
    /// All packets below were handed on; behind `next` only while held.
    delivered: u64,
    /// Packets from `delivered` on that wait: for an earlier one, or for release.
    stash: VecDeque<Option<Early>>,
    early: u32,
    held: bool,
    partial: Partial,
    unacked: u32,
    ack_now: bool,
    ack_at: Instant,
    newest_at: Instant,
    finished: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Early {
    frames: Buf,
    fin: bool,
}

/// A packet with frames, its checksum seen to.
#[derive(Clone, Copy)]
pub(crate) struct Data<'a> {
    pub(crate) header: &'a Header,
    /// Its bytes behind the header.
    pub(crate) frames: &'a [u8],
    pub(crate) attached: Option<&'a Attachment>,
}

/// A message of which not all pieces are here.
#[derive(Clone, Debug, Default)]
struct Partial {
    /// Ports, length and crc32c of the whole; `None` between messages.
    of: Option<(Port, Port, u32, u32)>,
    bytes: Vec<u8>,
    snapshot: Option<(Arc<dyn Snapshot>, usize)>,
}

impl PartialEq for Partial {
    fn eq(&self, other: &Self) -> bool {
        let reference = |p: &Self| p.snapshot.as_ref().map(|(s, at)| (Arc::as_ptr(s).cast::<()>(), *at));
        self.of == other.of && self.bytes == other.bytes && reference(self) == reference(other)
    }
}

impl Eq for Partial {}

impl Receiver {
    pub(crate) fn new() -> Self {
        Self {
            next: 0,
            delivered: 0,
            stash: VecDeque::new(),
            early: 0,
            held: false,
            partial: Partial::default(),
            unacked: 0,
            ack_now: false,
            ack_at: Instant::NEVER,
            newest_at: Instant::ZERO,
            finished: false,
        }
    }

    /// True when the peer said that nothing follows, and all before it was handed on.
    pub(crate) fn is_finished(&self) -> bool {
        self.finished
    }

    /// A data packet arrived whose checksum is right.
    pub(crate) fn on_data<D>(&mut self, now: Instant, data: Data<'_>, config: &Config, sums: &mut Sums, deliver: &mut D)
    where
        D: FnMut(Port, Port, Payload<'_>),
    {
        let Data { header, frames, attached } = data;
        let seq = expand(header.seq, self.next);
        if seq < self.next || self.has(seq) {
            sums.duplicates += 1;
            // The peer repeats itself because our acknowledgement was lost.
            self.ack_now = true;
            return;
        }
        if seq >= self.delivered + u64::from(config.credit) {
            sums.beyond_credit += 1;
            self.ack_now = true;
            return;
        }
        self.newest_at = now;
        if seq == self.next && !self.held && self.early == 0 {
            self.read(frames, attached, config, sums, deliver);
            self.next += 1;
            self.delivered += 1;
            self.finished |= header.fin;
            self.unacked += 1;
            if header.fin || self.unacked >= ACK_EVERY {
                self.ack_now = true;
            } else if self.ack_at == Instant::NEVER {
                self.ack_at = now + config.ack_delay;
            }
            return;
        }
        // Early, or held: keep a copy. A gap is told at once, so that its filling comes soon.
        sums.early += 1;
        self.keep(seq, header.fin, frames, attached);
        self.ack_now = true;
        while self.has(self.next) {
            self.next += 1;
            self.early -= 1;
        }
        self.drain(config, sums, deliver);
    }

    fn has(&self, seq: u64) -> bool {
        seq.checked_sub(self.delivered).and_then(|i| self.stash.get(i as usize)).is_some_and(Option::is_some)
    }

    fn keep(&mut self, seq: u64, fin: bool, bytes: &[u8], attached: Option<&Attachment>) {
        let at = (seq - self.delivered) as usize;
        while self.stash.len() <= at {
            self.stash.push_back(None);
        }
        let mut frames = Buf::copy_of(bytes);
        if let Some(a) = attached {
            frames.attach(Arc::clone(&a.snapshot), a.range.clone());
        }
        self.stash[at] = Some(Early { frames, fin });
        self.early += 1;
    }

    /// Hands on what waits in order, unless held.
    pub(crate) fn drain<D>(&mut self, config: &Config, sums: &mut Sums, deliver: &mut D)
    where
        D: FnMut(Port, Port, Payload<'_>),
    {
        while !self.held && self.delivered < self.next {
            let Some(Some(early)) = self.stash.pop_front() else { unreachable_gap() };
            self.delivered += 1;
            self.finished |= early.fin;
            self.read(early.frames.bytes(), early.frames.attached(), config, sums, deliver);
        }
        if self.stash.is_empty() && self.stash.capacity() > KEPT_PACKETS {
            self.stash = VecDeque::new();
        }
    }

    /// Stops handing on: credit runs out, and the peer waits.
    pub(crate) fn hold(&mut self) {
        self.held = true;
    }

    /// Hands on again. The peer learns of its new credit at once.
    pub(crate) fn release<D>(&mut self, config: &Config, sums: &mut Sums, deliver: &mut D)
    where
        D: FnMut(Port, Port, Payload<'_>),
    {
        if std::mem::take(&mut self.held) {
            self.ack_now = true;
            self.drain(config, sums, deliver);
        }
    }

    /// Reads the frames of a packet whose turn has come.
    fn read<D>(
        &mut self,
        frames: &[u8],
        attached: Option<&Attachment>,
        config: &Config,
        sums: &mut Sums,
        deliver: &mut D,
    ) where
        D: FnMut(Port, Port, Payload<'_>),
    {
        for frame in Frames::new(frames, attached.map_or(0, |a| a.range.len())) {
            let Ok(frame) = frame else {
                sums.malformed += 1;
                return;
            };
            let read = match (frame.begins, self.partial.of) {
                (Some(Beginning { from, to, whole: None }), None) if frame.length == frame.payload.len() => {
                    sums.delivered += 1;
                    deliver(from, to, Payload::Bytes(frame.payload));
                    Ok(())
                }
                (Some(begins), None) => self.begin(begins, &frame, attached, config, sums, deliver),
                (None, Some(_)) => self.go_on(&frame, attached, sums, deliver),
                _ => Err(Malformed::Inconsistent),
            };
            if read.is_err() {
                sums.malformed += 1;
                self.partial = Partial::default();
                return;
            }
        }
    }

    fn begin<D>(
        &mut self,
        begins: Beginning,
        frame: &Frame<'_>,
        attached: Option<&Attachment>,
        config: &Config,
        sums: &mut Sums,
        deliver: &mut D,
    ) -> Result<(), Malformed>
    where
        D: FnMut(Port, Port, Payload<'_>),
    {
        let (total, crc) = begins.whole.unwrap_or((frame.length as u32, 0));
        if total > config.largest_message {
            return Err(Malformed::Inconsistent);
        }
        self.partial.of = Some((begins.from, begins.to, total, crc));
        self.go_on(frame, attached, sums, deliver)
    }

    fn go_on<D>(
        &mut self,
        frame: &Frame<'_>,
        attached: Option<&Attachment>,
        sums: &mut Sums,
        deliver: &mut D,
    ) -> Result<(), Malformed>
    where
        D: FnMut(Port, Port, Payload<'_>),
    {
        let (from, to, total, crc) = self.partial.of.ok_or(Malformed::Inconsistent)?;
        let total = total as usize;
        match attached {
            Some(a) if frame.length > frame.payload.len() => {
                let (snapshot, at) = self.partial.snapshot.get_or_insert_with(|| (Arc::clone(&a.snapshot), 0));
                if *at != a.range.start || !Arc::ptr_eq(snapshot, &a.snapshot) || a.range.end > total {
                    return Err(Malformed::Inconsistent);
                }
                *at = a.range.end;
                if frame.ends {
                    if *at != total {
                        return Err(Malformed::Inconsistent);
                    }
                    let done = std::mem::take(&mut self.partial);
                    sums.delivered += 1;
                    deliver(from, to, Payload::Snapshot(&done.snapshot.expect("set above").0));
                }
            }
            _ => {
                // Memory grows with what has arrived, never with what a length field promises.
                if self.partial.bytes.len() + frame.payload.len() > total {
                    return Err(Malformed::Inconsistent);
                }
                self.partial.bytes.extend_from_slice(frame.payload);
                if frame.ends {
                    if self.partial.bytes.len() != total {
                        return Err(Malformed::Inconsistent);
                    }
                    if rcl::message_crc(&self.partial.bytes) != crc {
                        return Err(Malformed::Checksum);
                    }
                    sums.delivered += 1;
                    deliver(from, to, Payload::Bytes(&self.partial.bytes));
                    self.partial.of = None;
                    self.partial.bytes.clear();
                    if self.partial.bytes.capacity() > KEPT_BUFFER {
                        self.partial.bytes = Vec::new();
                    }
                }
            }
        }
        Ok(())
    }

    /// The peer asked for an acknowledgement.
    pub(crate) fn on_ping(&mut self) {
        self.ack_now = true;
    }

    /// True when an acknowledgement should leave even if no message goes along.
    #[inline]
    pub(crate) fn ack_due(&self) -> bool {
        self.ack_now
    }

    /// When a delayed acknowledgement must leave.
    #[inline]
    pub(crate) fn deadline(&self) -> Instant {
        self.ack_at
    }

    /// The delayed acknowledgement waited long enough.
    pub(crate) fn expire(&mut self, now: Instant) {
        if now >= self.ack_at {
            self.ack_at = Instant::NEVER;
            self.ack_now = true;
        }
    }

    /// Puts the acknowledgement into a header that leaves now, and as many selective words as `sack` has room for.
    #[inline]
    pub(crate) fn acknowledge(&mut self, now: Instant, header: &mut Header, sack: &mut [u64], config: &Config) {
        header.ack = self.next as u32;
        let waiting = (self.next - self.delivered).min(u64::from(config.credit)) as u16;
        header.credit = config.credit - waiting;
        header.delay_us = u16::try_from(now.since(self.newest_at).as_micros()).unwrap_or(u16::MAX);
        if self.early > 0 {
            self.select(header, sack);
        }
        self.unacked = 0;
        self.ack_now = false;
        self.ack_at = Instant::NEVER;
    }

    fn select(&self, header: &mut Header, sack: &mut [u64]) {
        sack.fill(0);
        let first = (self.next + 1 - self.delivered) as usize;
        for (i, _) in self.stash.iter().skip(first).enumerate().filter(|(_, e)| e.is_some()) {
            let Some(word) = sack.get_mut(i / 64) else { break };
            *word |= 1 << (i % 64);
            header.words = (i / 64) as u8 + 1;
        }
    }

    pub(crate) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&(self.next, self.delivered, self.early, self.held, self.unacked, self.ack_now, self.finished));
        print.add(&self.partial.of).add(&self.partial.bytes);
        print.instant(self.ack_at);
        for early in &self.stash {
            print.add(&early.as_ref().map(|e| (e.fin, e.frames.bytes())));
        }
    }
}

/// Everything between `delivered` and `next` is in the stash: `on_data` counts `next` up only over kept packets.
#[cold]
fn unreachable_gap() -> ! {
    panic!("a gap below `next`: the receiver's bookkeeping is broken")
}
