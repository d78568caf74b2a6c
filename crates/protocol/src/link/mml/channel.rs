//! A channel: the three kinds of one session behind one interface.
//!
//! Each packet goes through the same steps: form, what is cheap to see, signature, and only then the half that it
//! concerns.

use super::context::Context;
use super::gaps::Gaps;
use super::history::History;
use super::inbox::Inbox;
use super::order::{Look, Order};
use super::outbox::Outbox;
use super::unreliable::Unreliable;
use super::{Config, Kind, Progress, Sums};
use crate::link::sign::Signer;
use phalanx_core::{Buf, Code, Fingerprint, Instant, Port};
use phalanx_wire::Malformed;
use phalanx_wire::layer::Ports;
use phalanx_wire::mml::{self as wire, Packet, SIGNATURE};

/// No session lives long enough to count so far: a higher number is no number.
const NUMBER_MAX: u64 = u64::MAX / 2;

/// Management messages to and from one peer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Channel {
    pub(super) context: Context,
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

    /// The session is proved: what waited can be signed for it.
    pub(crate) fn bind(&mut self, context: Context) {
        self.context = context;
    }

    /// Takes a message for the peer and gives its number among those of its kind. A refused one changes nothing.
    pub(crate) fn send(
        &mut self,
        now: Instant,
        kind: Kind,
        ports: Ports,
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
                    unreliable.push(ports, message, config)
                }
                Kind::Ack => {
                    let outbox = self.outbox.get_or_insert_with(|| Box::new(Outbox::new()));
                    outbox.push(now, ports, message, config)
                }
                Kind::Nack => {
                    let history = self.history.get_or_insert_with(|| Box::new(History::new()));
                    history.push(ports, message, config)
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
