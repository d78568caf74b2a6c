//! The handshake: nothing is acted on before both sides have proved that they live now.
//!
//! ```text
//!   A                                                        B
//!   │ hello { boot a, nonce x }                          ──▶ │  may be a recording: B only answers
//!   │ ◀── hello { boot b, to a, nonce y, echo x }            │  A knows: B lives, it saw x
//!   │ hello { boot a, to b, nonce x, echo y, done }      ──▶ │  B knows: A lives, it saw y
//!   │ data sealed by (a, b, x, y) …                      ──▶ │  proves the same as the third hello, if that is lost
//! ```
//!
//! Both may begin at once: each answers with the nonce it sent before, and the two exchanges become one. A recorded
//! hello gets an answer at most: what it would prove was proved for a nonce that nobody waits for any more. A session
//! in use stays until another is *proved*, so a recording cannot tear it down; and when two find in a handshake that
//! they hold the same session already, they keep it, so neither can a forged packet that makes one ask. A group member whose datagram comes
//! before its hello is challenged the same way.

use super::count::Dropped;
use super::mml::{Context, End};
use super::peer::{Attempt, Peer, Session};
use super::{LARGEST_DATAGRAM, Link, Output, SMALLEST_DATAGRAM, states};
use phalanx_core::{Addr, Boot, Buf, Code, Duration, Fingerprint, Instant, NodeId, Sink};
use phalanx_wire::hello::Hello;
use phalanx_wire::outer::{Kind, Long, TAG};
use phalanx_wire::tomorrow;

/// The first hello is repeated after this long, then at doubling intervals.
const FIRST_RETRY: Duration = Duration::from_millis(20);
/// Hellos to a silent peer come no further apart.
const LONGEST_RETRY: Duration = Duration::from_millis(500);
/// Hellos we look at (each costs a key derivation, some microseconds) in a burst, and for each second.
const HELLOS: u32 = 8192;
/// Challenges to strangers in a burst, and for each second: a forged source address must not make us shout.
const CHALLENGES: u32 = 256;

/// Hellos to one that called and has proved nothing, and how long it is kept: a forged source address must not be
/// flooded, nor fill our table.
const CALLER_HELLOS: u32 = 2;
/// Hellos under one key before the next one has its turn; whoever is only asked once is asked under the sealing one.
const KEY_HELLOS: u32 = 2;
const CALLER_PATIENCE: Duration = Duration::from_secs(1);

/// How much work strangers may cause: two buckets that fill with time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Budget {
    hellos: u32,
    challenges: u32,
    filled_at: Instant,
}

impl Default for Budget {
    fn default() -> Self {
        Self { hellos: HELLOS, challenges: CHALLENGES, filled_at: Instant::ZERO }
    }
}

impl Budget {
    fn fill(&mut self, now: Instant) {
        let share =
            |rate: u32| (now.since(self.filled_at).as_micros().min(1_000_000) * u64::from(rate) / 1_000_000) as u32;
        let (hellos, challenges) = (share(HELLOS), share(CHALLENGES));
        if challenges > 0 {
            self.hellos = (self.hellos + hellos).min(HELLOS);
            self.challenges = (self.challenges + challenges).min(CHALLENGES);
            self.filled_at = now;
        }
    }

    fn take_hello(&mut self, now: Instant) -> bool {
        self.fill(now);
        self.hellos.checked_sub(1).inspect(|left| self.hellos = *left).is_some()
    }

    fn take_challenge(&mut self, now: Instant) -> bool {
        self.fill(now);
        self.challenges.checked_sub(1).inspect(|left| self.challenges = *left).is_some()
    }

    pub(crate) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&(self.hellos, self.challenges));
        print.instant(self.filled_at);
    }
}

impl Link {
    /// Begins a handshake; its first hello leaves when the driver next expires the link.
    pub(crate) fn dial(&mut self, now: Instant, slot: usize) {
        let nonce = self.nonce();
        let Some((_, peer)) = self.peers.at_mut(slot) else { return };
        begin(peer, now, nonce);
        self.deadlines.arm_by(slot, now);
    }

    /// Somebody at `from` speaks as if we knew it: ask who it is. Rare by budget, and by the handshake's own pace.
    pub(crate) fn challenge<S>(&mut self, now: Instant, from: Addr, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        let known = self.by_addr.find(&from, &self.peers);
        let asked = known.and_then(|slot| self.peers.at(slot)).is_some_and(|(_, p)| p.attempt.is_some());
        if asked || !self.budget.take_challenge(now) {
            return;
        }
        let Some(slot) = known.or_else(|| Some(self.insert_peer(from, SMALLEST_DATAGRAM, false)?.slot())) else {
            return;
        };
        self.dial(now, slot);
        if known.is_none()
            && let Some((_, peer)) = self.peers.at_mut(slot)
            && let Some(attempt) = &mut peer.attempt
        {
            // A stranger is asked once: it said less than a hello.
            (attempt.tries, attempt.started_at) = (CALLER_HELLOS - 1, now);
        }
        self.expire_attempt(now, slot, out);
        self.wake(now, slot);
    }

    pub(crate) fn on_hello<S>(&mut self, now: Instant, from: Addr, bytes: &mut [u8], out: &mut S) -> Result<(), Dropped>
    where
        S: for<'a> Sink<Output<'a>>,
    {
        let long = Long::parse(bytes)?;
        if long.boot == self.boot {
            return Err(Dropped::Reflected);
        }
        if !self.budget.take_hello(now) {
            return Err(Dropped::Overload);
        }
        let cipher = self.ring.hello(long.key, &long.boot).ok_or(Dropped::UnknownKey)?;
        let (header, sealed) = bytes.split_at_mut(Long::LEN);
        let body = cipher.open(long.counter, header, sealed).ok_or(Dropped::BadSeal)?;
        let mut hello = Hello::parse(body)?;
        if hello.to != Boot::default() && hello.to != self.boot {
            if hello.done {
                return Err(Dropped::OldBoot);
            }
            hello.echo = 0;
        }
        match self.by_addr.find(&from, &self.peers) {
            Some(slot) => self.on_hello_from(now, slot, &long, &hello, out),
            // An answer to a question that we did not ask, or no longer remember.
            None if hello.done => Err(Dropped::StaleHello),
            None => {
                let node = self
                    .insert_peer(from, hello.largest.clamp(SMALLEST_DATAGRAM, LARGEST_DATAGRAM), false)
                    .ok_or(Dropped::Overload)?;
                self.on_hello_from(now, node.slot(), &long, &hello, out)
            }
        }
    }

    fn on_hello_from<S>(
        &mut self,
        now: Instant,
        slot: usize,
        long: &Long,
        hello: &Hello,
        out: &mut S,
    ) -> Result<(), Dropped>
    where
        S: for<'a> Sink<Output<'a>>,
    {
        let fresh = self.nonce();
        let (_, peer) = self.peers.at_mut(slot).expect("indexed peers exist");
        // The third hello of the present session was lost, or this is a copy of its second.
        if let Some(session) = &peer.session
            && session.boot == long.boot
            && session.nonces.1 == hello.nonce
        {
            if !hello.done {
                self.send_hello(slot, Word::Last, out);
            }
            return Ok(());
        }
        let answers = hello.echo != 0 && peer.attempt.as_ref().is_some_and(|a| a.nonce == hello.echo);
        // It answers what we do not ask now. From the start that our session is with it is an old copy. From any other
        // it is a question all the same: a recording of ours may have reached a peer that just started.
        let shared = peer.shares(&long.boot, hello.holds);
        if hello.echo != 0
            && !answers
            && (shared || hello.done)
            && peer.session.as_ref().is_some_and(|s| s.boot == long.boot)
        {
            return Err(Dropped::StaleHello);
        }
        if peer.attempt.is_none() {
            begin(peer, now, fresh);
        }
        let attempt = peer.attempt.as_mut().expect("begun above");
        let known = attempt.candidate.as_ref().is_some_and(|c| c.boot == long.boot && c.nonces.1 == hello.nonce);
        if !known {
            let (epoch, nonce) = (attempt.epoch, attempt.nonce);
            attempt.candidate = Some(Session::new(&self.ring, long.key, &self.boot, long.boot, epoch, nonce, hello));
        }
        if answers && shared {
            // A damaged or forged packet made one of us ask. Nothing is to be replaced, and nothing gets lost.
            if !hello.done {
                self.send_hello(slot, Word::Agreed, out);
            }
            let peer = self.peers.at_mut(slot).expect("seen above").1;
            peer.attempt = None;
            if let Some(session) = &mut peer.session {
                session.lag(long.key, &self.ring, &self.boot);
            }
        } else if answers {
            self.establish(now, slot, out);
            if !hello.done {
                self.send_hello(slot, Word::Last, out);
            }
        } else {
            // Our answer is the first hello of our own side: it is repeated like one.
            if attempt.tries == 0 {
                (attempt.tries, attempt.started_at, attempt.again_at) = (1, now, now + FIRST_RETRY);
            }
            let again_at = attempt.again_at;
            self.send_hello(slot, Word::Open, out);
            self.deadlines.arm_by(slot, again_at);
        }
        Ok(())
    }

    /// The candidate is proved: it becomes the session, and what waited for it leaves.
    pub(crate) fn establish<S>(&mut self, now: Instant, slot: usize, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        let Some((_, peer)) = self.peers.at_mut(slot) else { return };
        let called = peer.is_caller();
        let Some(mut session) = peer.attempt.take().and_then(|a| a.candidate) else { return };
        if let Some(old) = peer.session.as_mut().filter(|s| s.boot == session.boot) {
            session.group = old.group.take();
            session.group_floor = session.group_floor.max(old.group_floor);
        }
        if peer.session.is_some() {
            self.tear_down(now, slot, Code::NotInitialized, out);
        }
        let (generation, peer) = self.peers.at_mut(slot).expect("seen above");
        let node = NodeId::new(slot, generation);
        let (identity, boot) = (session.identity, session.boot);
        if let Some(mml) = &mut peer.mml {
            let end = End { identity, boot, nonce: session.nonces.1 };
            mml.bind(Context::new(&self.signer, self.boot, session.nonces.0, end));
        }
        peer.session = Some(session);
        self.callers -= usize::from(called);
        let waiting = peer.take_waiting();
        self.by_boot.insert(&boot, slot, &self.peers);
        self.counters.sessions += 1;
        self.tap.signal(now, states::SESSION_UP);
        out.push(Output::Up { node, identity, boot });
        for (packet, ticket) in waiting {
            if let Err(code) = self.transmit_plain(now, node, packet, ticket, out)
                && let Some(ticket) = ticket
            {
                self.statuses.complete(ticket, Err(code));
            }
        }
        self.wake(now, slot);
    }

    /// Repeats a hello that was not answered, or gives the peer up.
    pub(crate) fn expire_attempt<S>(&mut self, now: Instant, slot: usize, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        let Some((generation, peer)) = self.peers.at_mut(slot) else { return };
        let Some(attempt) = &mut peer.attempt else { return };
        if attempt.again_at > now {
            return;
        }
        if attempt.tries == 0 {
            // Not when it was asked for: that clock may have been read long before, and patience would be short.
            attempt.started_at = now;
        }
        let caller = !peer.dialed && peer.session.is_none();
        if caller && attempt.tries >= CALLER_HELLOS && now.since(attempt.started_at) < CALLER_PATIENCE {
            // Its own hellos will be answered; ours may go to somebody who never called.
            attempt.again_at = attempt.started_at + CALLER_PATIENCE;
            return;
        }
        let patience = if caller { CALLER_PATIENCE } else { self.config.dial_patience };
        if now.since(attempt.started_at) < patience {
            let wait = (FIRST_RETRY * (1 << attempt.tries.min(10))).min(LONGEST_RETRY);
            attempt.tries += 1;
            attempt.again_at = now + wait;
            self.send_hello(slot, Word::Open, out);
            return;
        }
        // A session in use outlives an attempt to replace it.
        peer.attempt = None;
        if peer.session.is_some() {
            return;
        }
        let dialed = peer.dialed;
        let tickets = peer.take_waiting().filter_map(|(_, ticket)| ticket);
        tickets.for_each(|ticket| self.statuses.complete(ticket, Err(Code::Unreachable)));
        if dialed {
            self.tear_down(now, slot, Code::Unreachable, out);
        } else {
            // Somebody may have written to it meanwhile, and must hear that this is lost.
            if peer.rcl.is_some() || peer.mml.is_some() {
                self.tear_down(now, slot, Code::Unreachable, out);
            }
            let _ = self.forget(NodeId::new(slot, generation));
        }
    }

    fn send_hello<S>(&mut self, slot: usize, word: Word, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        let Some((_, peer)) = self.peers.at(slot) else { return };
        // In a handshake we speak for the attempt; afterwards for the session it led to.
        let (nonce, epoch, other) = match (&peer.attempt, &peer.session) {
            (Some(attempt), _) if word != Word::Last => (attempt.nonce, attempt.epoch, attempt.candidate.as_ref()),
            (_, Some(session)) => (session.nonces.0, session.epoch, Some(session)),
            _ => return,
        };
        let hello = Hello {
            to: other.map_or(Boot::default(), |s| s.boot),
            identity: self.signer.identity(),
            nonce,
            echo: other.map_or(0, |s| s.nonces.1),
            session: slot as u32 | u32::from(epoch) << 24,
            largest: peer.largest,
            done: word != Word::Open,
            holds: peer.session.as_ref().map_or(0, |s| s.nonces.0 ^ s.nonces.1),
            group_floor: self.group_counter,
        };
        // Who was down when the sealing key came must be able to read this. Who does not answer may have a sealing key of its
        // own, as when both halves of a partition changed theirs: all keys have their turn.
        let turn = peer.attempt.as_ref().map_or(0, |a| a.tries.saturating_sub(1) / KEY_HELLOS) as usize;
        let key = other.map_or_else(|| self.ring.by_turns(turn), |s| s.sealer().0);
        let lagging = if key == self.hello.0 { None } else { self.ring.hello(key, &self.boot) };
        let (key, cipher) = lagging.as_ref().map_or((self.hello.0, &self.hello.1), |cipher| (key, cipher));
        let addr = peer.addr;
        let mut packet = Buf::new(Long::LEN, Hello::LEN + tomorrow::field().len() + TAG);
        hello.encode(packet.vec_mut());
        let counter = self.hello_counter;
        self.hello_counter += 1;
        let long = Long { kind: Kind::Hello, key, group: 0, boot: self.boot, counter };
        long.encode(packet.prepend(Long::LEN));
        let (header, body) = packet.bytes_mut().split_at_mut(Long::LEN);
        let seal = cipher.seal(counter, header, body);
        packet.extend(&seal);
        self.counters.sent += 1;
        out.push(Output::Transmit { to: addr, packet, ticket: None, answer: false });
        if let Some(bytes) = tomorrow::packet() {
            out.push(Output::Transmit { to: addr, packet: Buf::copy_of(bytes), ticket: None, answer: false });
        }
    }

    /// A nonce: never zero, never used before by this boot (the chance is one in 2⁶⁴ for each pair).
    fn nonce(&mut self) -> u64 {
        self.rng.u64().max(1)
    }
}

/// What a hello is to its sender.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Word {
    /// A question, or an answer that asks for one.
    Open,
    /// The last of a handshake: it led to a session.
    Last,
    /// The last of one that led to nothing new: both hold the same session already.
    Agreed,
}

fn begin(peer: &mut Peer, now: Instant, nonce: u64) {
    peer.epoch = peer.epoch.wrapping_add(1);
    if peer.session.as_ref().is_some_and(|s| s.epoch == peer.epoch) {
        peer.epoch = peer.epoch.wrapping_add(1);
    }
    peer.attempt =
        Some(Box::new(Attempt { nonce, epoch: peer.epoch, candidate: None, started_at: now, again_at: now, tries: 0 }));
}
