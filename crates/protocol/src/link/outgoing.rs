//! The way out: peers get their turns, packets get number and seal.

use super::mml::Channel;
use super::status::Ticket;
use super::{FAILING_MAX, Link, Output, local, mml};
use phalanx_core::{Buf, Code, Instant, NodeId, Sink};
use phalanx_fault::Outcome;
use phalanx_wire::outer::{Short, TAG};
use std::sync::Arc;

/// Packets that one peer may send before the next has its turn: fairness among peers.
const TURN: usize = 64;
/// Packets that count as answers to what was heard last.
const ANSWERS: u8 = 2;
/// Packets handed to the driver at one go.
const BURST: usize = 256;

impl Link {
    /// True when packets wait for [`Link::transmit`].
    #[must_use]
    #[inline]
    pub fn has_packets(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Sends what waits, without letting any other timer act: for a driver that has a message to get out at once.
    pub fn transmit<S>(&mut self, now: Instant, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        self.transmit_ready(now, out);
    }

    /// A peer has something to do: it gets its turn to send, a handshake, or its timer.
    #[inline]
    pub(super) fn wake(&mut self, now: Instant, slot: usize) {
        let Some((_, peer)) = self.peers.at_mut(slot) else { return };
        if peer.session.is_none() && peer.attempt.is_none() {
            if peer.rcl.is_some() || peer.mml.is_some() || peer.has_waiting() {
                self.dial(now, slot);
            }
        } else if !peer.queued && peer.has_work() {
            peer.queued = true;
            self.ready.push_back(slot as u32);
        } else {
            self.rest(now, slot);
        }
    }

    /// A peer has nothing to send now: its timers say when to look again.
    #[inline]
    fn rest(&mut self, now: Instant, slot: usize) {
        let Some((_, peer)) = self.peers.at_mut(slot) else { return };
        let config = local::rcl_config(&self.config, peer);
        if let Some(rcl) = &mut peer.rcl {
            rcl.watch(now, &config);
        }
        self.deadlines.arm(slot, peer.deadline());
    }

    /// Each peer that has packets gets its turn, until the burst is full.
    pub(super) fn transmit_ready<S>(&mut self, now: Instant, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        let mut left = BURST;
        while left > 0
            && let Some(slot) = self.ready.pop_front()
        {
            let slot = slot as usize;
            let sent = self.take_turn(now, slot, left.min(TURN), out);
            left -= sent.min(left);
            let Some((_, peer)) = self.peers.at_mut(slot) else { continue };
            peer.queued = false;
            if sent > 0 && peer.has_work() {
                peer.queued = true;
                self.ready.push_back(slot as u32);
            } else {
                self.rest(now, slot);
            }
        }
    }

    pub(super) fn take_turn<S>(&mut self, now: Instant, slot: usize, most: usize, out: &mut S) -> usize
    where
        S: for<'a> Sink<Output<'a>>,
    {
        let mut sent = 0;
        while sent < most {
            let Some((generation, peer)) = self.peers.at_mut(slot) else { break };
            if peer.session.is_none() {
                break;
            }
            let config = local::rcl_config(&self.config, peer);
            let mut made = None;
            if let Some(mml) = peer.mml.as_mut().filter(|c| c.has_work()) {
                let config = mml::Config { largest_plain: config.largest_plain, ..self.config.mml };
                let mut packet = Buf::new(Short::LEN, Channel::room(&config) + TAG);
                if mml.transmit(now, &mut packet, &self.signer, &config, &mut self.counters.mml) {
                    made = Some(packet);
                }
            }
            if made.is_none() {
                let rcl = peer.rcl.as_mut().filter(|c| c.has_work());
                made = rcl.and_then(|c| c.transmit(now, Short::LEN, TAG, &config, &mut self.counters.rcl));
                if let (Some(packet), Some(session)) = (&mut made, &peer.session) {
                    session.bind_sent(packet.bytes_mut());
                }
            }
            let Some(packet) = made else { break };
            sent += 1;
            // What the injector refuses here is as good as lost: the layers above repeat it.
            let _ = self.transmit_plain(now, NodeId::new(slot, generation), packet, None, out);
        }
        sent
    }

    /// A plain packet with head room for its header is on its way out: injector, number, seal, platform.
    #[inline]
    pub(super) fn transmit_plain<S>(
        &mut self,
        now: Instant,
        to: NodeId,
        packet: Buf,
        ticket: Option<Ticket>,
        out: &mut S,
    ) -> Result<(), Code>
    where
        S: for<'a> Sink<Output<'a>>,
    {
        if self.tap.is_idle() {
            self.seal_and_send(to, packet, ticket, out);
            return Ok(());
        }
        match self.tap.send(now, to, &packet) {
            Outcome::Pass => self.seal_and_send(to, packet, ticket, out),
            Outcome::Drop => {
                if let Some(ticket) = ticket {
                    self.statuses.complete(ticket, Ok(()));
                }
            }
            Outcome::Refuse(code) => return Err(code),
            Outcome::FailLater { code, deliver, after } => {
                match ticket {
                    Some(ticket) if self.failing.len() < FAILING_MAX => self.failing.push((now + after, ticket, code)),
                    Some(ticket) => self.statuses.complete(ticket, Err(code)),
                    None => {}
                }
                if deliver {
                    self.seal_and_send(to, packet, None, out);
                }
            }
        }
        while let Some((to, copy)) = self.tap.take_injected() {
            // The injector's copy has no head room of its own.
            let mut packet = Buf::new(Short::LEN, copy.len() + TAG);
            packet.extend(copy.bytes());
            if let Some(a) = copy.attached() {
                packet.attach(Arc::clone(&a.snapshot), a.range.clone());
            }
            self.seal_and_send(to, packet, None, out);
        }
        Ok(())
    }

    #[inline]
    fn seal_and_send<S>(&mut self, to: NodeId, mut packet: Buf, ticket: Option<Ticket>, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        let Some(peer) = self.peers.get_mut(to.slot(), to.generation()) else { return };
        let Some(session) = &mut peer.session else { return };
        let counter = session.counter;
        session.counter += 1;
        let theirs = session.theirs;
        let (key, cipher) = session.sealer();
        Short { key, session: theirs, sender: self.tag, counter }.encode(packet.prepend(Short::LEN));
        let (header, plain) = packet.bytes_mut().split_at_mut(Short::LEN);
        let tag = cipher.seal(counter, header, plain);
        packet.extend(&tag);
        self.counters.sent += 1;
        let answer = peer.unheard < ANSWERS;
        peer.unheard = peer.unheard.saturating_add(1);
        out.push(Output::Transmit { to: peer.addr, packet, ticket, answer });
    }
}
