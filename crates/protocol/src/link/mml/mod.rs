//! MML: management messages between two nodes, each signed by its sender (MM-1, MM-2, 004 §3).
//!
//! Three kinds, because the cluster's manager repeats much of the work itself:
//!
//! | kind | for | promise | cost when all goes well |
//! |---|---|---|---|
//! | [`Kind::Unr`] | heartbeats | at most once | the message |
//! | [`Kind::Ack`] | what must arrive, and the sender must know | once, in order, or [`Code::Unreachable`] | the message and a share of an acknowledgement |
//! | [`Kind::Nack`] | requests that are confirmed higher up | once, in order, or a reported [`Gap`] | the message and a few notices when the stream rests |
//!
//! ACK and NACK messages, acknowledgements, requests and notices are signed and bound to their session
//! ([`context`]). What fails is counted by reason and dropped before it changes anything: no acknowledgement, no
//! request. A check costs 37 µs, so what is cheap to see (form, repetition, nothing new) is looked at first, and a
//! packet is counted by the first thing found. UNR messages rely on the seal: it vouches for the cluster, not for
//! the member; a checksum finds bits that flipped inside it.
//!
//! MML stands strictly above CL. The channel is pure: it sees opened packets and gives plain ones. Seal, sockets and
//! the `plain` fault injector are the link's. It exists for every neighbour, so a kind that was never used holds one
//! empty pointer, and an idle one no queues.

mod context;
mod gaps;
mod history;
mod inbox;
mod order;
mod outbox;
mod unreliable;

pub(crate) use context::{Context, End};
use gaps::Gaps;
use history::History;
use inbox::Inbox;
use order::{Look, Order};
use outbox::Outbox;
use phalanx_core::{Buf, Code, Duration, Fingerprint, Instant, Port};
use phalanx_wire::Malformed;
use phalanx_wire::mml::{self as wire, Packet, SIGNATURE};
use unreliable::Unreliable;

use crate::link::sign::Signer;

/// ACK messages under way, and early messages that a receiver keeps: what the bits of one word name.
pub const WINDOW: u64 = 64;
/// No session lives long enough to count so far: a higher number is no number.
const NUMBER_MAX: u64 = u64::MAX / 2;

/// What is promised about a message.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// Unreliable, not signed: heartbeats.
    Unr,
    /// Reliable by positive acknowledgement; signed.
    Ack,
    /// Reliable by negative acknowledgement; signed.
    Nack,
}

/// The limits of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Config {
    /// The most bytes of a packet inside the seal.
    pub(crate) largest_plain: u16,
    /// Messages of a kind that may wait for their first turn; past it `send` is refused.
    pub queue: u16,
    /// NACK messages kept for those who miss them.
    pub history: u16,
    /// Bytes of NACK messages kept.
    pub history_bytes: u32,
    /// How long NACK messages are kept.
    pub history_age: Duration,
    /// How long an acknowledgement may wait for more messages to acknowledge.
    pub ack_delay: Duration,
    /// A peer that answers nothing for so long is half dead.
    pub patience: Duration,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            largest_plain: 1400,
            queue: 256,
            history: 256,
            history_bytes: 256 * 1024,
            history_age: Duration::from_secs(10),
            ack_delay: Duration::from_millis(1),
            patience: Duration::from_secs(5),
        }
    }
}

impl Config {
    /// The largest message: what fits into a datagram with header and signature. Bulk belongs to RCL.
    #[must_use]
    pub fn largest_message(&self) -> usize {
        usize::from(self.largest_plain).saturating_sub(Packet::HEADER + SIGNATURE)
    }

    /// A packet without its proof, and room for that.
    fn packet(&self, kind: wire::Kind, from: Port, to: Port, number: u64, payload: &[u8]) -> Buf {
        let mut packet = Buf::new(0, Packet::HEADER + payload.len() + kind.proof());
        Packet::encode_header(kind, from, to, number, packet.vec_mut());
        packet.extend(payload);
        packet
    }
}

/// What happened in all channels of a link, for FI-5 and for operators.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Sums {
    /// Messages handed on.
    pub delivered: u64,
    /// Packets sent again.
    pub retransmissions: u64,
    /// Messages that had arrived before.
    pub duplicates: u64,
    /// Packets that the peer did not sign for us in this session.
    pub bad_signature: u64,
    /// Packets whose checksum was wrong though their seal was right.
    pub checksum: u64,
    /// Packets that make no sense though their seal was right.
    pub malformed: u64,
    /// Answers and notices that said nothing new.
    pub stale: u64,
    /// Messages too far ahead of a missing one to be kept.
    pub beyond_window: u64,
    /// NACK messages that are missing for good.
    pub gaps: u64,
    /// Requests for missing messages.
    pub lost_requests: u64,
    /// Messages that were not taken for sending.
    pub refused: u64,
}

/// NACK messages that are missing for good: the sender's history no longer held them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Gap {
    /// The first number missing.
    pub first: u64,
    /// Nothing is awaited below this number any more.
    pub below: u64,
    /// How many are missing in between; the others were handed on.
    pub lost: u64,
}

/// What a packet led to, beside messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Progress {
    /// A caller whose ACK message was refused may try again.
    pub(crate) writable: bool,
    /// All ACK messages below this number have arrived; `None` when that is not new.
    pub(crate) acked_below: Option<u64>,
    /// NACK messages are missing for good.
    pub(crate) gap: Option<Gap>,
}

/// Management messages to and from one peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Channel {
    context: Context,
    unreliable: Option<Box<Unreliable>>,
    outbox: Option<Box<Outbox>>,
    inbox: Option<Box<Inbox>>,
    history: Option<Box<History>>,
    gaps: Option<Box<Gaps>>,
}

impl Channel {
    pub(crate) fn new(context: Context) -> Self {
        Self { context, unreliable: None, outbox: None, inbox: None, history: None, gaps: None }
    }

    /// Takes a message for the peer and gives its number among those of its kind. A refused one changes nothing.
    pub(crate) fn send(
        &mut self,
        now: Instant,
        kind: Kind,
        from: Port,
        to: Port,
        message: &[u8],
        config: &Config,
        sums: &mut Sums,
    ) -> Result<u64, Code> {
        let sent = if message.len() > config.largest_message() {
            Err(Code::InvalidArgs)
        } else {
            match kind {
                Kind::Unr => {
                    let unreliable = self.unreliable.get_or_insert_with(|| Box::new(Unreliable::new()));
                    unreliable.push(from, to, message, config)
                }
                Kind::Ack => {
                    let outbox = self.outbox.get_or_insert_with(|| Box::new(Outbox::new()));
                    outbox.push(now, from, to, message, config)
                }
                Kind::Nack => {
                    let history = self.history.get_or_insert_with(|| Box::new(History::new()));
                    history.push(from, to, message, config)
                }
            }
        };
        sums.refused += u64::from(sent.is_err());
        sent
    }

    /// An opened packet arrived.
    pub(crate) fn receive<D>(
        &mut self,
        now: Instant,
        plain: &[u8],
        config: &Config,
        sums: &mut Sums,
        deliver: &mut D,
    ) -> Progress
    where
        D: FnMut(Kind, Port, Port, &[u8]),
    {
        let read = match Packet::parse(plain) {
            Ok(packet) if packet.number > NUMBER_MAX => Err(Malformed::Inconsistent),
            Ok(packet) => self.on_packet(now, &packet, config, sums, deliver),
            Err(why) => Err(why),
        };
        read.unwrap_or_else(|why| {
            if why == Malformed::Checksum {
                sums.checksum += 1;
            } else {
                sums.malformed += 1;
            }
            Progress::default()
        })
    }

    fn on_packet<D>(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        config: &Config,
        sums: &mut Sums,
        deliver: &mut D,
    ) -> Result<Progress, Malformed>
    where
        D: FnMut(Kind, Port, Port, &[u8]),
    {
        match packet.kind {
            wire::Kind::Unreliable => self.on_unreliable(packet, sums, deliver),
            wire::Kind::Acked => self.on_acked(now, packet, config, sums, deliver),
            wire::Kind::Nacked => return Ok(self.on_nacked(now, packet, sums, deliver)),
            wire::Kind::Ack => return self.on_ack(now, packet, config, sums),
            wire::Kind::Lost => self.on_lost(now, packet, config, sums)?,
            wire::Kind::Tail => return self.on_tail(now, packet, sums, deliver),
        }
        Ok(Progress::default())
    }

    fn on_unreliable<D>(&mut self, packet: &Packet<'_>, sums: &mut Sums, deliver: &mut D)
    where
        D: FnMut(Kind, Port, Port, &[u8]),
    {
        if self.unreliable.get_or_insert_with(|| Box::new(Unreliable::new())).admit(packet) {
            sums.delivered += 1;
            deliver(Kind::Unr, packet.from, packet.to, packet.payload);
        } else {
            sums.duplicates += 1;
        }
    }

    fn on_acked<D>(&mut self, now: Instant, packet: &Packet<'_>, config: &Config, sums: &mut Sums, deliver: &mut D)
    where
        D: FnMut(Kind, Port, Port, &[u8]),
    {
        let look = match &self.inbox {
            Some(inbox) => inbox.order.look(packet.number),
            None => Order::default().look(packet.number),
        };
        match look {
            Look::Had => {
                sums.duplicates += 1;
                // The peer repeats itself because our acknowledgement was lost. When one is due anyway, it need not
                // be proved that this is the peer.
                if let Some(inbox) = self.inbox.as_mut().filter(|i| !i.ack_due())
                    && self.context.vouches(packet, sums)
                {
                    inbox.on_repetition();
                }
            }
            Look::Beyond => sums.beyond_window += 1,
            Look::New if self.context.vouches(packet, sums) => {
                let inbox = self.inbox.get_or_insert_with(|| Box::new(Inbox::new()));
                inbox.on_message(now, packet, config, sums, &mut |f, t, p: &[u8]| deliver(Kind::Ack, f, t, p));
            }
            Look::New => {}
        }
    }

    fn on_nacked<D>(&mut self, now: Instant, packet: &Packet<'_>, sums: &mut Sums, deliver: &mut D) -> Progress
    where
        D: FnMut(Kind, Port, Port, &[u8]),
    {
        let deliver = &mut |f: Port, t: Port, p: &[u8]| deliver(Kind::Nack, f, t, p);
        let end = packet.number + 1;
        let (look, news) = match &self.gaps {
            Some(gaps) => (gaps.order.look(packet.number), gaps.is_news(end, 0)),
            None => (Order::default().look(packet.number), true),
        };
        match look {
            Look::Had => sums.duplicates += 1,
            Look::New if self.context.vouches(packet, sums) => {
                self.gaps.get_or_insert_with(|| Box::new(Gaps::new())).on_message(now, packet, sums, deliver);
            }
            // Too early to be kept, but it shows how far the numbers go.
            Look::Beyond if !news => sums.beyond_window += 1,
            Look::Beyond if self.context.vouches(packet, sums) => {
                sums.beyond_window += 1;
                self.gaps.get_or_insert_with(|| Box::new(Gaps::new())).on_tail(now, end, 0, sums, deliver);
            }
            Look::New | Look::Beyond => {}
        }
        Progress::default()
    }

    fn on_ack(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        config: &Config,
        sums: &mut Sums,
    ) -> Result<Progress, Malformed> {
        let bits = bits(packet.payload);
        let outbox = self.outbox.as_mut().filter(|o| o.is_possible(packet.number)).ok_or(Malformed::Inconsistent)?;
        if !outbox.is_news(packet.number, bits) {
            sums.stale += 1;
            return Ok(Progress::default());
        }
        if !self.context.vouches(packet, sums) {
            return Ok(Progress::default());
        }
        let before = outbox.acked_below();
        let writable = outbox.on_ack(now, packet.number, bits, config);
        let below = outbox.acked_below();
        Ok(Progress { writable, acked_below: (below > before).then_some(below), gap: None })
    }

    fn on_lost(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        config: &Config,
        sums: &mut Sums,
    ) -> Result<(), Malformed> {
        let history = self.history.as_mut().filter(|h| h.is_possible(packet.number)).ok_or(Malformed::Inconsistent)?;
        if self.context.vouches(packet, sums) {
            history.on_lost(now, packet.number, bits(packet.payload), config);
        }
        Ok(())
    }

    fn on_tail<D>(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
        sums: &mut Sums,
        deliver: &mut D,
    ) -> Result<Progress, Malformed>
    where
        D: FnMut(Kind, Port, Port, &[u8]),
    {
        let floor = match packet.payload.first_chunk() {
            Some(floor) => u64::from_le_bytes(*floor),
            None if packet.payload.is_empty() => 0,
            None => return Err(Malformed::Truncated),
        };
        if floor > packet.number {
            return Err(Malformed::Inconsistent);
        }
        let news = self.gaps.as_ref().map_or(packet.number > 0, |g| g.is_news(packet.number, floor));
        if !news {
            sums.stale += 1;
            return Ok(Progress::default());
        }
        if !self.context.vouches(packet, sums) {
            return Ok(Progress::default());
        }
        let gaps = self.gaps.get_or_insert_with(|| Box::new(Gaps::new()));
        let mut deliver = |f: Port, t: Port, p: &[u8]| deliver(Kind::Nack, f, t, p);
        let gap = gaps.on_tail(now, packet.number, floor, sums, &mut deliver);
        Ok(Progress { gap, ..Progress::default() })
    }

    /// True when [`Channel::transmit`] would give a packet.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.unreliable.as_ref().is_some_and(|u| u.has_work())
            || self.inbox.as_ref().is_some_and(|i| i.ack_due())
            || self.gaps.as_ref().is_some_and(|g| g.ask_due())
            || self.outbox.as_ref().is_some_and(|o| o.has_work())
            || self.history.as_ref().is_some_and(|h| h.has_work())
    }

    /// Appends the next packet to `out` (which holds nothing but head room); false when there is none to send.
    /// Heartbeats go first: they are how others know that we live. Then answers, then messages.
    pub(crate) fn transmit(
        &mut self,
        now: Instant,
        out: &mut Buf,
        signer: &Signer,
        config: &Config,
        sums: &mut Sums,
    ) -> bool {
        if self.unreliable.as_mut().is_some_and(|u| u.transmit(out)) {
            return true;
        }
        if let Some(inbox) = self.inbox.as_mut().filter(|i| i.ack_due()) {
            let (number, bits) = inbox.acknowledge();
            self.answer(wire::Kind::Ack, number, bits, out, signer);
            return true;
        }
        if let Some(gaps) = self.gaps.as_mut().filter(|g| g.ask_due()) {
            let (number, bits) = gaps.ask(now);
            sums.lost_requests += 1;
            self.answer(wire::Kind::Lost, number, bits, out, signer);
            return true;
        }
        let context = &self.context;
        self.outbox.as_mut().is_some_and(|o| o.transmit(now, out, context, signer, config, sums))
            || self.history.as_mut().is_some_and(|h| h.transmit(now, out, context, signer, config, sums))
    }

    fn answer(&self, kind: wire::Kind, number: u64, bits: u64, out: &mut Buf, signer: &Signer) {
        Packet::encode_header(kind, Port(0), Port(0), number, out.vec_mut());
        if bits != 0 {
            out.extend(&bits.to_le_bytes());
        }
        self.context.sign(out, signer);
    }

    /// Bytes that the next packet may need behind its head room.
    pub(crate) fn room(config: &Config) -> usize {
        usize::from(config.largest_plain).max(Packet::HEADER + 8 + SIGNATURE)
    }

    /// When [`Channel::expire`] wants to be called.
    #[inline]
    pub(crate) fn deadline(&self) -> Instant {
        let answers =
            self.inbox.as_ref().map(|i| i.deadline()).into_iter().chain(self.gaps.as_ref().map(|g| g.deadline()));
        let messages =
            self.outbox.as_ref().map(|o| o.deadline()).into_iter().chain(self.history.as_ref().map(|h| h.deadline()));
        answers.chain(messages).min().unwrap_or(Instant::NEVER)
    }

    /// A deadline passed. `Err` when the peer is half dead: it leaves ACK messages unacknowledged (then
    /// [`Channel::undelivered`] names them, and no ACK message is taken any more), or requests unanswered.
    pub(crate) fn expire(&mut self, now: Instant, config: &Config) -> Result<(), Code> {
        if let Some(inbox) = &mut self.inbox {
            inbox.expire(now);
        }
        if let Some(history) = &mut self.history {
            history.expire(now, config);
        }
        let acked = self.outbox.as_mut().map_or(Ok(()), |o| o.expire(now, config));
        let answered = self.gaps.as_mut().map_or(Ok(()), |g| g.expire(now, config));
        acked.and(answered)
    }

    /// Gives up on all ACK messages, because the session ends: [`Channel::undelivered`] names those that may not
    /// have arrived.
    pub(crate) fn abandon(&mut self) {
        if let Some(outbox) = &mut self.outbox {
            outbox.abandon();
        }
    }

    /// The numbers of the ACK messages that were given up, each once. A message whose acknowledgements were all lost
    /// is among them: nobody here can know.
    pub(crate) fn undelivered(&mut self) -> impl Iterator<Item = u64> + use<> {
        self.outbox.as_mut().map(|o| o.undelivered()).unwrap_or_default().into_iter()
    }

    pub(crate) fn fingerprint(&self, print: &mut Fingerprint) {
        self.context.fingerprint(print);
        print.add(&self.unreliable.is_some());
        self.unreliable.iter().for_each(|u| u.fingerprint(print));
        print.add(&self.outbox.is_some());
        self.outbox.iter().for_each(|o| o.fingerprint(print));
        print.add(&self.inbox.is_some());
        self.inbox.iter().for_each(|i| i.fingerprint(print));
        print.add(&self.history.is_some());
        self.history.iter().for_each(|h| h.fingerprint(print));
        print.add(&self.gaps.is_some());
        self.gaps.iter().for_each(|g| g.fingerprint(print));
    }
}

/// The first word of an answer's payload; a shorter one ends in zeros.
fn bits(payload: &[u8]) -> u64 {
    let mut word = [0; 8];
    let length = payload.len().min(word.len());
    word[..length].copy_from_slice(&payload[..length]);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests;
