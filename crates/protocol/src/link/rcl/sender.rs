//! The sending half of a connection: cutting messages into packets, and keeping each packet until it is acknowledged.
//!
//! A packet's frames are fixed when it is first sent; a retransmission is the same frames under a fresh seal with
//! the newest acknowledgement. What may be sent is bounded by the peer's credit and by a congestion window.

use super::{Config, Sums, queue};
use crate::link::rtt::Rtt;
use phalanx_core::{Buf, Code, Duration, Fingerprint, Instant, Port, Snapshot};
use phalanx_wire::rcl::{self, Beginning, Header};
use std::collections::VecDeque;
use std::hash::Hash;
use std::sync::Arc;

/// A packet counts as lost when this many sent after it have arrived: networks reorder, but seldom further.
const REORDERING: u64 = 3;
/// Packets in flight before the network has shown what it bears.
const FIRST_WINDOW: u32 = 32;
/// The least that losses may shrink the window to: with fewer under way one lost acknowledgement would be the only one.
const LEAST_WINDOW: u32 = 32;
/// A packet begins with room for this much, and gets the rest when it is needed: most are small.
const SMALL: usize = 450;
/// No piece of a message is shorter, unless the message ends with it: the rest of the packet is padded.
const LEAST_PIECE: usize = 32;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Sender {
    /// Packets from `base` on: acknowledged out of order, in flight, lost, or waiting for their first turn.
    packets: VecDeque<Packet>,
    base: u64,
    /// The first number that was never sent.
    next: u64,
    /// The packet being filled; it has no number yet.
    open: Option<Buf>,
    /// Bytes in `packets` and `open`.
    queued: usize,
    /// The peer takes nothing from this number on.
    limit: u64,
    in_flight: u32,
    lost: u32,
    /// Transmissions so far, retransmissions included: the order in which packets left.
    transmissions: u64,
    newest_acked: u64,
    window: u32,
    threshold: u32,
    grown: u32,
    /// Losses of packets that left before this transmission shrink the window no further.
    shrunk_at: u64,
    rtt: Rtt,
    backoff: u32,
    /// The first unacknowledged packet was sent again without waiting for a whole timeout; once between two acks.
    probed: bool,
    timeout_at: Instant,
    /// When the peer last acknowledged something new, or had nothing to acknowledge.
    progress_at: Instant,
    /// A message was refused: the caller waits for room.
    starved: bool,
    ping_due: bool,
    fin: Fin,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Packet {
    frames: Buf,
    state: State,
    fin: bool,
    resent: bool,
    /// Its last transmission's place in the order of all.
    pub(super) order: u64,
    sent_at: Instant,
}

impl Packet {
    fn new(frames: Buf, fin: bool) -> Self {
        Self { frames, state: State::Ready, fin, resent: false, order: 0, sent_at: Instant::NEVER }
    }

    #[cfg(test)]
    pub(super) fn nth(order: u64) -> Self {
        Self { order, ..Self::new(Buf::new(0, 0), false) }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum State {
    Ready,
    InFlight,
    Lost,
    Acked,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Fin {
    Open,
    Queued,
    Acked,
}

/// What an acknowledgement or a timeout led to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Progress {
    /// There is room again for a caller that was refused.
    pub(crate) writable: bool,
    /// Everything up to the end was acknowledged.
    pub(crate) finished: bool,
}

impl Sender {
    pub(crate) fn new(now: Instant, credit: u16) -> Self {
        Self {
            packets: VecDeque::new(),
            base: 0,
            next: 0,
            open: None,
            queued: 0,
            limit: u64::from(credit),
            in_flight: 0,
            lost: 0,
            transmissions: 0,
            newest_acked: 0,
            window: FIRST_WINDOW,
            threshold: u32::MAX,
            grown: 0,
            shrunk_at: 0,
            rtt: Rtt::default(),
            backoff: 0,
            probed: false,
            timeout_at: Instant::NEVER,
            progress_at: now,
            starved: false,
            ping_due: false,
            fin: Fin::Open,
        }
    }

    /// True when every message was acknowledged.
    pub(crate) fn is_idle(&self) -> bool {
        self.packets.is_empty() && self.open.is_none()
    }

    /// True when the peer has everything, our last word included.
    pub(crate) fn is_finished(&self) -> bool {
        self.fin == Fin::Acked
    }

    /// The smoothed round trip; zero before the first measurement.
    pub(crate) fn round_trip(&self) -> Duration {
        self.rtt.smoothed()
    }

    /// Bytes waiting or unacknowledged.
    pub(crate) fn queued(&self) -> usize {
        self.queued
    }

    /// Takes a message. Refused messages change nothing.
    #[inline]
    pub(crate) fn push(
        &mut self,
        now: Instant,
        from: Port,
        to: Port,
        message: &[u8],
        config: &Config,
    ) -> Result<(), Code> {
        let capacity = config.frames();
        self.admit(now, message.len(), config)?;
        let whole = Beginning::overhead(true) + message.len();
        if self.filled() + whole <= capacity {
            let out = self.room_for(whole, capacity);
            rcl::put_frame(out, Some(Beginning { from, to, whole: None }), true, message.len());
            out.extend_from_slice(message);
            self.queued += whole;
            return Ok(());
        }
        self.push_pieces(from, to, message, capacity);
        Ok(())
    }

    fn admit(&mut self, now: Instant, length: usize, config: &Config) -> Result<(), Code> {
        if self.fin != Fin::Open {
            return Err(Code::NotInitialized);
        }
        if length > config.largest_message as usize {
            return Err(Code::InvalidArgs);
        }
        if self.queued > 0 && self.queued + length > config.send_buffer as usize {
            self.starved = true;
            // Whose room is it? With credit left it is ours.
            return Err(if self.next >= self.limit { Code::RemoteResource } else { Code::LocalResource });
        }
        if self.is_idle() {
            self.progress_at = now;
        }
        Ok(())
    }

    /// Bytes in the packet being filled.
    #[inline]
    fn filled(&self) -> usize {
        self.open.as_ref().map_or(0, |open| open.bytes().len())
    }

    /// The packet being filled, with room for `more` bytes.
    #[inline]
    fn room_for(&mut self, more: usize, capacity: usize) -> &mut Vec<u8> {
        // A lone message gets a buffer of its own size; when packets are under way more are likely to follow.
        let first = if self.in_flight == 0 || more <= SMALL { more.max(SMALL) } else { capacity };
        let open = self.open.get_or_insert_with(|| Buf::new(0, first));
        if open.vec_mut().capacity() - open.bytes().len() < more {
            let mut larger = Buf::new(0, capacity);
            larger.extend(open.bytes());
            *open = larger;
        }
        open.vec_mut()
    }

    /// Cuts `message` over packets, each filled to the brim.
    fn push_pieces(&mut self, from: Port, to: Port, message: &[u8], capacity: usize) {
        let crc = rcl::message_crc(message);
        let (mut rest, mut begins) = (message, true);
        while begins || !rest.is_empty() {
            let room = capacity - self.filled();
            let fits_whole = begins && rest.len() + Beginning::overhead(true) <= room;
            let overhead = if begins { Beginning::overhead(fits_whole) } else { rcl::CONTINUATION };
            let least = rest.len().min(LEAST_PIECE);
            if room < overhead + least {
                self.close_packet(Some(capacity));
                continue;
            }
            let piece = rest.len().min(room - overhead).min(rcl::FRAME_MAX);
            let ends = piece == rest.len();
            // A first frame that also ends the message has no length of the whole in it.
            let piece = if begins && ends && !fits_whole { piece - 1 } else { piece };
            let ends = piece == rest.len();
            let beginning =
                begins.then(|| Beginning { from, to, whole: (!ends).then_some((message.len() as u32, crc)) });
            let out = self.room_for(overhead + piece, capacity);
            rcl::put_frame(out, beginning, ends, piece);
            out.extend_from_slice(&rest[..piece]);
            self.queued += overhead + piece;
            (rest, begins) = (&rest[piece..], false);
        }
    }

    /// Takes a large immutable message, in packets of its own. By reference nothing is encoded; the packets have
    /// the same number and lengths either way.
    pub(crate) fn push_snapshot(
        &mut self,
        now: Instant,
        from: Port,
        to: Port,
        snapshot: &Arc<dyn Snapshot>,
        config: &Config,
    ) -> Result<(), Code> {
        let total = snapshot.encoded_len();
        self.admit(now, total, config)?;
        self.close_packet(None);
        let capacity = config.frames();
        let mut at = 0;
        let mut encoded = Vec::new();
        if !config.by_reference {
            snapshot.encode(0..total, &mut encoded);
        }
        let crc = if config.by_reference { 0 } else { rcl::message_crc(&encoded) };
        while at < total || at == 0 {
            let whole = at == 0 && total + Beginning::overhead(true) <= capacity;
            let overhead = if at > 0 { rcl::CONTINUATION } else { Beginning::overhead(whole) };
            let piece = (total - at).min(capacity - overhead).min(rcl::FRAME_MAX);
            let ends = at + piece == total;
            let piece = if at == 0 && ends && !whole { piece - 1 } else { piece };
            let ends = at + piece == total;
            let begins = (at == 0).then(|| Beginning { from, to, whole: (!ends).then_some((total as u32, crc)) });
            let mut frames = Buf::new(0, if config.by_reference { overhead } else { overhead + piece });
            rcl::put_frame(frames.vec_mut(), begins, ends, piece);
            if config.by_reference {
                frames.attach(Arc::clone(snapshot), at..at + piece);
            } else {
                frames.extend(&encoded[at..at + piece]);
            }
            self.queued += frames.len();
            self.enqueue(frames, false);
            at += piece;
            if total == 0 {
                break;
            }
        }
        Ok(())
    }

    /// No message follows; the peer is told once everything before was sent.
    pub(crate) fn close(&mut self) {
        if self.fin == Fin::Open {
            self.close_packet(None);
            self.fin = Fin::Queued;
            self.enqueue(Buf::new(0, 0), true);
        }
    }

    fn close_packet(&mut self, pad_to: Option<usize>) {
        if let Some(mut frames) = self.open.take() {
            if let Some(length) = pad_to {
                self.queued += length - frames.bytes().len();
                rcl::pad_frames(frames.vec_mut(), length);
            }
            self.enqueue(frames, false);
        }
    }

    fn enqueue(&mut self, frames: Buf, fin: bool) {
        queue::push(&mut self.packets, Packet::new(frames, fin));
    }

    /// True when [`Sender::transmit`] has something to send now.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        if self.ping_due {
            return true;
        }
        if self.in_flight >= self.window {
            return false;
        }
        self.lost > 0 || (self.next < self.limit && (self.next < self.end() || self.open.is_some()))
    }

    fn end(&self) -> u64 {
        self.base + self.packets.len() as u64
    }

    /// Picks the next packet to send: its frames, with number and marks put into `header`. Lost ones go first.
    pub(crate) fn transmit(
        &mut self,
        now: Instant,
        header: &mut Header,
        config: &Config,
        sums: &mut Sums,
    ) -> Option<&Buf> {
        if self.in_flight < self.window {
            if self.lost > 0 {
                let at = self.packets.iter().position(|p| p.state == State::Lost)?;
                self.lost -= 1;
                sums.retransmissions += 1;
                return Some(self.launch(now, at, header, config));
            }
            if self.next < self.limit {
                if self.next == self.end() {
                    self.close_packet(None);
                }
                if self.next < self.end() {
                    let at = (self.next - self.base) as usize;
                    self.next += 1;
                    return Some(self.launch(now, at, header, config));
                }
            }
        }
        if std::mem::take(&mut self.ping_due) {
            header.ping = true;
        }
        None
    }

    fn launch(&mut self, now: Instant, at: usize, header: &mut Header, config: &Config) -> &Buf {
        self.transmissions += 1;
        self.in_flight += 1;
        if self.timeout_at == Instant::NEVER {
            self.rearm(now, config);
        }
        let packet = &mut self.packets[at];
        if at == 0 && packet.state == State::Ready {
            // The peer owes nothing until now, however long ago the message was taken.
            self.progress_at = now;
        }
        packet.resent = packet.state == State::Lost;
        packet.state = State::InFlight;
        packet.order = self.transmissions;
        packet.sent_at = now;
        header.data = true;
        header.fin = packet.fin;
        header.seq = (self.base + at as u64) as u32;
        &packet.frames
    }

    /// The peer acknowledged.
    pub(crate) fn on_ack(
        &mut self,
        now: Instant,
        header: &Header,
        plain: &[u8],
        config: &Config,
        sums: &mut Sums,
    ) -> Progress {
        let ack = expand(header.ack, self.base);
        if ack > self.next {
            sums.impossible_acks += 1;
            return Progress::default();
        }
        self.limit = self.limit.max(ack.saturating_add(u64::from(header.credit)));
        let mut acked = 0;
        let mut sample = None;
        while self.base < ack {
            let packet = self.packets.pop_front().expect("numbers below `next` are kept until acknowledged");
            acked += self.retire(packet.state, packet.order, packet.resent, packet.sent_at, &mut sample);
            self.queued -= packet.frames.len();
            if packet.fin {
                self.fin = Fin::Acked;
            }
            self.base += 1;
        }
        if header.words > 0 {
            acked += self.on_sack(ack, header.sack(plain), &mut sample);
        }
        if let Some(sent_at) = sample {
            let delay = Duration::from_micros(u64::from(header.delay_us)).min(config.ack_delay * 2);
            self.rtt.sample(now.since(sent_at) - delay);
        }
        if self.is_blocked() {
            // It has no room for us, but it answers: it lives.
            self.progress_at = now;
        }
        if acked > 0 {
            self.backoff = 0;
            self.probed = false;
            self.progress_at = now;
            self.grow(acked, config);
            if header.words > 0 || self.lost > 0 {
                self.find_losses();
            }
            self.rearm(now, config);
        }
        queue::settle(&mut self.packets);
        self.progress(config)
    }

    fn on_sack(&mut self, ack: u64, words: impl Iterator<Item = u64>, sample: &mut Option<Instant>) -> u32 {
        let mut acked = 0;
        for (w, word) in words.enumerate() {
            let mut bits = word;
            while bits != 0 {
                let seq = ack + 1 + 64 * w as u64 + u64::from(bits.trailing_zeros());
                bits &= bits - 1;
                if seq < self.base || seq >= self.next {
                    continue;
                }
                let at = (seq - self.base) as usize;
                let p = &self.packets[at];
                if p.state == State::Acked {
                    continue;
                }
                acked += self.retire(p.state, p.order, p.resent, p.sent_at, sample);
                let packet = &mut self.packets[at];
                packet.state = State::Acked;
                self.queued -= packet.frames.len();
                packet.frames = Buf::new(0, 0);
            }
        }
        acked
    }

    /// Books a packet out of flight. Returns 1 when it was not acknowledged before.
    fn retire(
        &mut self,
        state: State,
        order: u64,
        resent: bool,
        sent_at: Instant,
        sample: &mut Option<Instant>,
    ) -> u32 {
        match state {
            State::InFlight => self.in_flight -= 1,
            State::Lost => self.lost -= 1,
            State::Acked => return 0,
            State::Ready => {}
        }
        if order > self.newest_acked {
            self.newest_acked = order;
            // A retransmitted packet's acknowledgement may be for either copy.
            *sample = (!resent).then_some(sent_at);
        }
        1
    }

    fn grow(&mut self, acked: u32, config: &Config) {
        if self.window < self.threshold {
            self.window += acked;
        } else {
            self.grown += acked;
            if self.grown >= self.window {
                self.grown = 0;
                self.window += 1;
            }
        }
        let credit = u32::from(config.credit);
        // Queues that never empty push what they hold out of the caches: 4 % of the throughput over loopback.
        self.window = self.window.min(if self.rtt.is_near() { credit / 2 } else { credit * 2 });
    }

    fn find_losses(&mut self) {
        let (newest, mut found) = (self.newest_acked, 0);
        let mut oldest_order = u64::MAX;
        let sent = (self.next - self.base) as usize;
        for packet in self.packets.iter_mut().take(sent) {
            if packet.state == State::InFlight && packet.order + REORDERING <= newest {
                packet.state = State::Lost;
                oldest_order = oldest_order.min(packet.order);
                found += 1;
            }
        }
        self.in_flight -= found;
        self.lost += found;
        if found > 0 && oldest_order > self.shrunk_at {
            self.shrink(self.window - self.window / 4);
        }
    }

    fn shrink(&mut self, to: u32) {
        self.window = to.max(LEAST_WINDOW);
        self.threshold = self.window;
        self.shrunk_at = self.transmissions;
        self.grown = 0;
    }

    fn rearm(&mut self, now: Instant, config: &Config) {
        self.timeout_at =
            if self.in_flight > 0 || self.is_blocked() { now + self.patience_for_ack(config) } else { Instant::NEVER };
    }

    /// How long to wait for the next acknowledgement: first for a probe, then for the timeout. A receiver of several
    /// packets acknowledges at once, of a single one only after a while.
    fn patience_for_ack(&self, config: &Config) -> Duration {
        if self.probed || self.backoff > 0 || self.in_flight == 0 {
            return self.rtt.timeout(config.ack_delay, self.backoff);
        }
        self.rtt.probe(if self.in_flight > 1 { Duration::ZERO } else { config.ack_delay })
    }

    /// Data waits for credit and nothing is under way that would bring some.
    fn is_blocked(&self) -> bool {
        self.in_flight == 0
            && self.lost == 0
            && self.next >= self.limit
            && (self.next < self.end() || self.open.is_some())
    }

    /// When [`Sender::expire`] wants to be called.
    #[inline]
    pub(crate) fn deadline(&self) -> Instant {
        self.timeout_at
    }

    /// Starts the clock for a connection that waits for credit alone.
    pub(crate) fn watch(&mut self, now: Instant, config: &Config) {
        if self.timeout_at == Instant::NEVER && self.is_blocked() {
            self.progress_at = now;
            self.rearm(now, config);
        }
    }

    /// No acknowledgement came in time. `Err` when the peer has been silent beyond patience.
    pub(crate) fn expire(&mut self, now: Instant, config: &Config, sums: &mut Sums) -> Result<(), Code> {
        if now < self.timeout_at {
            return Ok(());
        }
        if now.since(self.progress_at) >= config.patience && self.backoff > 1 {
            return Err(Code::Unreachable);
        }
        if !self.probed && self.backoff == 0 && self.in_flight > 0 {
            self.probe(now, config, sums);
            return Ok(());
        }
        sums.timeouts += 1;
        if self.is_blocked() {
            self.ping_due = true;
        }
        let timeout = self.rtt.timeout(config.ack_delay, self.backoff);
        let sent = (self.next - self.base) as usize;
        let mut found = 0;
        for packet in self.packets.iter_mut().take(sent) {
            if packet.state == State::InFlight && packet.sent_at + timeout <= now {
                packet.state = State::Lost;
                found += 1;
            }
        }
        self.in_flight -= found;
        self.lost += found;
        if found > 0 {
            self.shrink(self.window / 2);
        }
        self.backoff += 1;
        self.timeout_at = now + self.rtt.timeout(config.ack_delay, self.backoff);
        Ok(())
    }

    /// Sends the first unacknowledged packet again: if it had arrived, its acknowledgement was lost and comes anew; if
    /// not, the gap is closed. Either way the answer tells how things stand, and nothing is taken for lost but this.
    fn probe(&mut self, now: Instant, config: &Config, sums: &mut Sums) {
        self.probed = true;
        sums.probes += 1;
        if let Some(packet) = self.packets.iter_mut().find(|p| p.state == State::InFlight) {
            packet.state = State::Lost;
            self.in_flight -= 1;
            self.lost += 1;
        }
        self.timeout_at = now + self.rtt.timeout(config.ack_delay, self.backoff);
    }

    fn progress(&mut self, config: &Config) -> Progress {
        let writable = self.starved && self.queued * 2 <= config.send_buffer as usize;
        if writable {
            self.starved = false;
        }
        Progress { writable, finished: self.fin == Fin::Acked }
    }

    pub(crate) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&(
            self.base,
            self.next,
            self.limit,
            self.in_flight,
            self.lost,
            self.window,
            self.threshold,
            self.fin,
        ));
        print.add(&(self.backoff, self.probed, self.starved, self.ping_due, self.queued, self.rtt, self.grown));
        print.instant(self.timeout_at);
        print.instant(self.progress_at);
        for packet in &self.packets {
            print
                .add(&(packet.state, packet.fin, packet.resent, self.transmissions - packet.order))
                .add(&packet.frames.bytes());
            print.instant(packet.sent_at);
        }
        if let Some(open) = &self.open {
            open.bytes().hash(print);
        }
    }
}

/// The full number whose low 32 bits are `low`, nearest to `near`.
pub(crate) fn expand(low: u32, near: u64) -> u64 {
    let distance = low.wrapping_sub(near as u32).cast_signed();
    near.saturating_add_signed(i64::from(distance))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_survive_the_wrap_of_their_32_bits() {
        let near = (1 << 32) - 2;
        assert_eq!(expand(1, near), (1 << 32) + 1);
        assert_eq!(expand(u32::MAX, near), (1 << 32) - 1);
        assert_eq!(expand(u32::MAX - 5, near), (1 << 32) - 6);
        assert_eq!(expand(u32::MAX, 0), 0, "before the beginning there is nothing");
    }
}
