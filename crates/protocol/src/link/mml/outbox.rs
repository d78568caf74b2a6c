//! ACK, the sending half: every message is kept and sent again until it is acknowledged, or patience ends.
//!
//! A message is signed once, when it first leaves; what is sent again are the same bytes. At most [`WINDOW`] numbers
//! are under way, so that the receiver can keep whatever comes early. There is no other congestion control: these
//! are orders, not streams (bulk belongs to RCL).

use super::context::Context;
use super::{Config, Sums, WINDOW};
use crate::link::rtt::Rtt;
use crate::link::sign::Signer;
use phalanx_core::{Buf, Code, Fingerprint, Instant};
use phalanx_wire::layer::Ports;
use phalanx_wire::mml::Kind;
use std::collections::VecDeque;

/// Messages that one timeout sends again, the oldest first: enough to find out whether anybody is there. The
/// acknowledgement of these draws the next ones.
const AGAIN_MAX: usize = 8;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Outbox {
    /// Messages from number `base` on.
    messages: VecDeque<Message>,
    base: u64,
    /// The first number that was never sent.
    next: u64,
    lost: u32,
    rtt: Rtt,
    backoff: u32,
    timeout_at: Instant,
    /// When the peer last acknowledged something new, or had nothing to acknowledge.
    progress_at: Instant,
    /// A message was refused: the caller waits for room.
    starved: bool,
    /// Patience ended: the peer misses numbers that never come, so nothing can follow them.
    failed: bool,
    undelivered: Vec<u64>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Message {
    /// Header and payload; with the signature once it was sent.
    packet: Buf,
    state: State,
    resent: bool,
    sent_at: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum State {
    Ready,
    InFlight,
    Lost,
    Acked,
}

impl Outbox {
    pub(super) fn new() -> Self {
        Self {
            messages: VecDeque::new(),
            base: 0,
            next: 0,
            lost: 0,
            rtt: Rtt::default(),
            backoff: 0,
            timeout_at: Instant::NEVER,
            progress_at: Instant::NEVER,
            starved: false,
            failed: false,
            undelivered: Vec::new(),
        }
    }

    pub(super) fn push(&mut self, now: Instant, ports: Ports, payload: &[u8], config: &Config) -> Result<u64, Code> {
        if self.failed {
            return Err(Code::Unreachable);
        }
        if self.messages.len() >= WINDOW as usize + usize::from(config.queue) {
            self.starved = true;
            return Err(Code::LocalResource);
        }
        if self.messages.is_empty() {
            self.progress_at = now;
        }
        let number = self.end();
        let packet = config.packet(Kind::Acked, ports, number, payload);
        self.messages.push_back(Message { packet, state: State::Ready, resent: false, sent_at: Instant::NEVER });
        Ok(number)
    }

    fn end(&self) -> u64 {
        self.base + self.messages.len() as u64
    }

    pub(super) fn has_work(&self) -> bool {
        self.lost > 0 || (self.next < self.end() && self.next < self.base + WINDOW)
    }

    pub(super) fn transmit(
        &mut self,
        now: Instant,
        out: &mut Buf,
        context: &Context,
        signer: &Signer,
        config: &Config,
        sums: &mut Sums,
    ) -> bool {
        if !self.has_work() {
            return false;
        }
        let at = if self.lost > 0 {
            let at = self.messages.iter().position(|m| m.state == State::Lost).expect("lost ones are counted");
            self.lost -= 1;
            sums.retransmissions += 1;
            self.messages[at].resent = true;
            at
        } else {
            let at = (self.next - self.base) as usize;
            context.sign(&mut self.messages[at].packet, signer);
            self.next += 1;
            at
        };
        let message = &mut self.messages[at];
        message.state = State::InFlight;
        message.sent_at = now;
        out.extend(message.packet.bytes());
        if self.timeout_at == Instant::NEVER {
            self.timeout_at = now + self.rtt.timeout(config.ack_delay, self.backoff);
        }
        true
    }

    /// True when such an acknowledgement could be one: nobody acknowledges what was never sent.
    pub(super) fn is_possible(&self, number: u64) -> bool {
        number <= self.next
    }

    /// True when the acknowledgement says something new. Changes nothing: it is not authentic yet.
    pub(super) fn is_news(&self, number: u64, bits: u64) -> bool {
        number > self.base || self.selected(number, bits).any(|at| self.messages[at].state != State::Acked)
    }

    /// The messages that `bits` name, of those that were sent.
    fn selected(&self, number: u64, bits: u64) -> impl Iterator<Item = usize> + use<> {
        let (base, next) = (self.base, self.next);
        let named = (0..64).filter(move |i| bits >> i & 1 == 1).map(move |i| number + 1 + i);
        named.filter(move |&n| n >= base && n < next).map(move |n| (n - base) as usize)
    }

    /// An authentic acknowledgement came. True when a caller that was refused may try again.
    pub(super) fn on_ack(&mut self, now: Instant, number: u64, bits: u64, config: &Config) -> bool {
        let mut newest = None;
        for at in self.selected(number, bits) {
            self.retire(at, &mut newest);
            self.messages[at].packet = Buf::new(0, 0);
        }
        while self.base < number {
            self.retire(0, &mut newest);
            self.messages.pop_front();
            self.base += 1;
        }
        if let Some(sent_at) = newest {
            self.rtt.sample(now.since(sent_at));
        }
        self.backoff = 0;
        self.progress_at = now;
        let oldest = self.messages.iter().filter(|m| m.state == State::InFlight).map(|m| m.sent_at).min();
        self.timeout_at = oldest.map_or(Instant::NEVER, |sent| sent + self.rtt.timeout(config.ack_delay, 0));
        if self.messages.is_empty() {
            self.messages = VecDeque::new();
            self.progress_at = Instant::NEVER;
        }
        let writable = self.starved && self.messages.len() <= usize::from(config.queue) / 2;
        self.starved &= !writable;
        writable
    }

    /// Books a message as acknowledged; the last one sent of those gives the round trip.
    fn retire(&mut self, at: usize, newest: &mut Option<Instant>) {
        let message = &mut self.messages[at];
        match message.state {
            State::Acked => return,
            State::Lost => self.lost -= 1,
            State::InFlight | State::Ready => {}
        }
        message.state = State::Acked;
        // The acknowledgement of a message sent twice may be for either copy.
        if !message.resent {
            *newest = (*newest).max(Some(message.sent_at));
        }
    }

    /// Everything below has been acknowledged.
    pub(super) fn acked_below(&self) -> u64 {
        self.base
    }

    pub(super) fn deadline(&self) -> Instant {
        self.timeout_at
    }

    /// No acknowledgement came in time. `Err` when the peer has been silent beyond patience.
    pub(super) fn expire(&mut self, now: Instant, config: &Config) -> Result<(), Code> {
        if now < self.timeout_at {
            return Ok(());
        }
        if now.since(self.progress_at) >= config.patience && self.backoff > 1 {
            self.abandon();
            return Err(Code::Unreachable);
        }
        let timeout = self.rtt.timeout(config.ack_delay, self.backoff);
        let late = |m: &&mut Message| m.state == State::InFlight && m.sent_at + timeout <= now;
        for message in self.messages.iter_mut().filter(late).take(AGAIN_MAX) {
            message.state = State::Lost;
            self.lost += 1;
        }
        self.backoff += 1;
        self.timeout_at = now + self.rtt.timeout(config.ack_delay, self.backoff);
        Ok(())
    }

    /// Gives up: what was not acknowledged in order is undelivered, as far as anybody can know. That a message
    /// arrived early is no delivery: it waits over there for the missing one, and dies with the session.
    pub(super) fn abandon(&mut self) {
        self.undelivered.extend(self.base..self.end());
        self.base = self.end();
        self.next = self.base;
        self.messages = VecDeque::new();
        self.lost = 0;
        self.failed = true;
        self.timeout_at = Instant::NEVER;
        self.progress_at = Instant::NEVER;
    }

    /// The numbers that were given up, once.
    pub(super) fn undelivered(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.undelivered)
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&(self.base, self.next, self.rtt, self.backoff, self.starved, self.failed)).add(&self.undelivered);
        print.instant(self.timeout_at);
        print.instant(self.progress_at);
        for message in &self.messages {
            print.add(&(message.state, message.resent)).add(&message.packet.bytes());
            print.instant(message.sent_at);
        }
    }
}
