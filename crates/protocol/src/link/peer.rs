//! A peer: where it is, the session that proves it, and what waits for it.

use super::mml::Channel;
use super::rcl::Connection;
use super::replay::Replay;
use super::seal::{Cipher, KeyRing};
use super::status::Ticket;
use phalanx_core::{Addr, Boot, Buf, Fingerprint, Identity, Instant, Ring};
use phalanx_wire::hello::Hello;
use phalanx_wire::rcl::Header;
use std::hash::Hash;
use std::mem::offset_of;
use std::ops::Range;

/// Datagrams that wait for a handshake; the oldest gives way. CL is unreliable, so a short queue is honest.
const WAITING_MAX: usize = 16;

/// What each packet needs lies together, as in [`Link`](super::Link): a cache line for both directions, one for what
/// arrives, one for what leaves. The fourth has little in it that packets need.
#[derive(Clone, PartialEq, Eq, Debug)]
#[repr(C, align(64))]
pub(crate) struct Peer {
    /// How often its slot in the table was used before.
    pub(crate) generation: u8,
    /// Packets sent since it was last heard.
    pub(crate) unheard: u8,
    /// We asked for it; otherwise it called us and is forgotten when its handshake fails.
    pub(crate) dialed: bool,
    /// It is in the queue of peers that have packets to send.
    pub(crate) queued: bool,
    /// Bytes a datagram to it may have.
    pub(crate) largest: u16,
    /// Packets of that size it may have under way to us.
    pub(crate) credit: u16,
    pub(crate) session: Option<Session>,
    pub(crate) rcl: Option<Box<Connection>>,
    pub(crate) addr: Addr,
    pub(crate) mml: Option<Box<Channel>>,
    pub(crate) attempt: Option<Box<Attempt>>,
    /// Datagrams that wait for a session; `None` when there are none.
    waiting: Option<Box<Waiting>>,
    /// Numbers our sessions with it, so that an old one is not taken for the present one.
    pub(crate) epoch: u8,
}

pub(crate) type Waiting = Ring<(Buf, Option<Ticket>)>;

/// Keys and counters that both sides agreed on and proved.
#[derive(Clone, PartialEq, Eq, Debug)]
#[repr(C)]
pub(crate) struct Session {
    /// The upper byte of the number under which the peer addresses us.
    pub(crate) epoch: u8,
    /// The keys of the ring that `open` and `seal` come from.
    open_key: u8,
    seal_key: u8,
    /// First four bytes of the peer's boot, as its packets carry them.
    pub(crate) tag: u32,
    /// The number under which we address the peer.
    pub(crate) theirs: u32,
    /// The number of the next packet.
    pub(crate) counter: u64,
    open: Cipher,
    seal: Cipher,
    pub(crate) replay: Replay,
    pub(crate) boot: Boot,
    pub(crate) group_floor: u64,
    pub(crate) identity: Identity,
    /// Our nonce and the peer's.
    pub(crate) nonces: (u64, u64),
    /// Key and window of its group datagrams, once one came.
    pub(crate) group: Option<Box<(u8, Cipher, Replay)>>,
}

/// A handshake under way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Attempt {
    pub(crate) nonce: u64,
    pub(crate) epoch: u8,
    /// What becomes the session once the peer proves that it holds our nonce.
    pub(crate) candidate: Option<Session>,
    pub(crate) started_at: Instant,
    pub(crate) again_at: Instant,
    pub(crate) tries: u32,
}

impl Peer {
    /// What a packet from it needs, what a packet to it needs, and where that goes to: bytes from the beginning.
    pub(super) const TO_OPEN: Range<usize> = 0..offset_of!(Self, session) + offset_of!(Session, boot);
    pub(super) const TO_SEAL: Range<usize> = 0..offset_of!(Self, session) + offset_of!(Session, replay);
    pub(super) const TO_SEND: Range<usize> = offset_of!(Self, addr)..offset_of!(Self, addr) + size_of::<Addr>();

    pub(crate) fn new(addr: Addr, largest: u16, credit: u16, dialed: bool) -> Self {
        Self {
            addr,
            largest,
            credit,
            dialed,
            generation: 0,
            unheard: u8::MAX,
            queued: false,
            session: None,
            attempt: None,
            waiting: None,
            rcl: None,
            mml: None,
            epoch: 0,
        }
    }

    /// A datagram waits for a session; the oldest one gives way when there are too many.
    pub(crate) fn wait(&mut self, packet: Buf, ticket: Option<Ticket>) -> Option<(Buf, Option<Ticket>)> {
        self.waiting.get_or_insert_with(|| Box::new(Ring::new(WAITING_MAX))).push_evicting((packet, ticket))
    }

    /// True when a datagram waits for a session.
    #[inline]
    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting.is_some()
    }

    /// Hands out what waited, the oldest first.
    pub(crate) fn take_waiting(&mut self) -> impl Iterator<Item = (Buf, Option<Ticket>)> + use<> {
        let mut waiting = self.waiting.take();
        std::iter::from_fn(move || waiting.as_mut()?.pop())
    }

    /// True when it called us and has not proved itself: all that anybody can make us keep.
    pub(crate) fn is_caller(&self) -> bool {
        !self.dialed && self.session.is_none()
    }

    /// True when the peer that lives as `boot` holds the session that we hold: it named our nonce in it.
    pub(crate) fn shares(&self, boot: &Boot, holds: u64) -> bool {
        self.session.as_ref().is_some_and(|s| s.boot == *boot && s.nonces.0 ^ s.nonces.1 == holds)
    }

    /// True when a reliable or management message could leave now.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.session.is_some()
            && (self.rcl.as_ref().is_some_and(|c| c.has_work()) || self.mml.as_ref().is_some_and(|c| c.has_work()))
    }

    /// The earliest of its deadlines.
    #[inline]
    pub(crate) fn deadline(&self) -> Instant {
        let mut at = self.attempt.as_ref().map_or(Instant::NEVER, |a| a.again_at);
        if self.session.is_some() {
            at = at.min(self.rcl.as_ref().map_or(Instant::NEVER, |c| c.deadline()));
            at = at.min(self.mml.as_ref().map_or(Instant::NEVER, |c| c.deadline()));
        }
        at
    }

    pub(crate) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&(
            self.addr,
            self.largest,
            self.dialed,
            self.queued,
            self.unheard,
            self.epoch,
            self.waiting.as_ref().map_or(0, |w| w.len()),
        ));
        if let Some(session) = &self.session {
            session.fingerprint(print);
        }
        if let Some(attempt) = &self.attempt {
            print.add(&(attempt.nonce, attempt.epoch, attempt.tries));
            print.instant(attempt.started_at);
            print.instant(attempt.again_at);
            if let Some(candidate) = &attempt.candidate {
                candidate.fingerprint(print);
            }
        }
        if let Some(rcl) = &self.rcl {
            rcl.fingerprint(print);
        }
        if let Some(mml) = &self.mml {
            mml.fingerprint(print);
        }
    }
}

impl Session {
    /// What a handshake under `hello` led to. It seals with the key of that hello, which must be in the ring: a peer that
    /// was down while keys were rotated knows no other. See [`Session::meet`].
    pub(crate) fn new(ring: &KeyRing, key: u8, ours: &Boot, boot: Boot, epoch: u8, nonce: u64, hello: &Hello) -> Self {
        let (mine, their) = (nonce, hello.nonce);
        let derive = |from, to, a, b| ring.data(key, from, to, a, b).expect("the hello's key is in the ring");
        Self {
            epoch,
            open_key: key,
            seal_key: key,
            tag: tag(&boot),
            theirs: hello.session,
            counter: 0,
            open: derive(&boot, ours, their, mine),
            seal: derive(ours, &boot, mine, their),
            replay: Replay::default(),
            boot,
            group_floor: hello.group_floor,
            identity: hello.identity,
            nonces: (mine, their),
            group: None,
        }
    }

    /// The cipher that opens a packet sealed with `key`; follows the peer when it moves to another key.
    #[inline]
    pub(crate) fn opener(&mut self, key: u8, ring: &KeyRing, ours: &Boot) -> Option<&Cipher> {
        if self.open_key != key {
            let (mine, their) = self.nonces;
            self.open = ring.data(key, &self.boot, ours, their, mine)?;
            self.open_key = key;
        }
        Some(&self.open)
    }

    /// The cipher that seals, and its key.
    #[inline]
    pub(crate) fn sealer(&self) -> (u8, &Cipher) {
        (self.seal_key, &self.seal)
    }

    /// The peer sealed a packet with `key`. When that is the key we would use, but did not since the peer lagged behind,
    /// we do from now on.
    #[inline]
    pub(crate) fn meet(&mut self, key: u8, ring: &KeyRing, ours: &Boot) {
        if self.seal_key != key && key == ring.sealing() {
            self.seal_with(key, ring, ours);
        }
    }

    /// The peer asked under `key`, which is in the ring: it may not have the one that we use.
    pub(crate) fn lag(&mut self, key: u8, ring: &KeyRing, ours: &Boot) {
        if self.seal_key != key {
            self.seal_with(key, ring, ours);
        }
    }

    fn seal_with(&mut self, key: u8, ring: &KeyRing, ours: &Boot) {
        let (mine, their) = self.nonces;
        self.seal = ring.data(key, ours, &self.boot, mine, their).expect("the sealing key is in the ring");
        self.seal_key = key;
    }

    /// Binds a reliable packet that we send to this session, or undoes it: its checksum is turned by what only this
    /// session has. A packet that an injector above the seal (FI-3) turns to another peer, or holds until the next
    /// session, then fails its check there instead of passing for one that fits by number.
    #[inline]
    pub(crate) fn bind_sent(&self, plain: &mut [u8]) {
        turn(plain, self.nonces.0, self.nonces.1);
    }

    /// As [`Session::bind_sent`], for a packet of the peer.
    #[inline]
    pub(crate) fn bind_received(&self, plain: &mut [u8]) {
        turn(plain, self.nonces.1, self.nonces.0);
    }

    /// The ring moves on from `old`: a session that was sealed with its key is sealed with the new one; `gone` are keys
    /// from which nothing may be derived any more.
    pub(crate) fn follow(&mut self, old: u8, gone: &[u8], ring: &KeyRing, ours: &Boot) {
        let key = ring.sealing();
        let present = "the sealing key is in the ring";
        let (mine, their) = self.nonces;
        if gone.contains(&self.open_key) {
            (self.open_key, self.open) = (key, ring.data(key, &self.boot, ours, their, mine).expect(present));
        }
        let moved = self.seal_key == old && old != key;
        if moved || gone.contains(&self.seal_key) {
            self.seal_with(key, ring, ours);
        }
        if let Some(group) = self.group.as_deref_mut().filter(|g| gone.contains(&g.0)) {
            (group.0, group.1) = (key, ring.group(key, &self.boot).expect(present));
        }
    }

    fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&(self.epoch, self.theirs, self.boot, self.identity, self.nonces, self.counter, self.group_floor));
        self.replay.hash(print);
        self.seal.fingerprint(print);
        self.open.fingerprint(print);
    }
}

/// Turns a packet's checksum by the nonces of its sender and its receiver. Twice is not at all.
fn turn(plain: &mut [u8], from: u64, to: u64) {
    // Nonces are random bits: half of one with half of the other is as good as any mixture of them.
    let by = from as u32 ^ (to >> 32) as u32;
    if let Some(sum) = plain.get_mut(Header::CRC).and_then(|sum| sum.first_chunk_mut::<4>()) {
        *sum = (u32::from_le_bytes(*sum) ^ by).to_le_bytes();
    }
}

/// First four bytes of a boot.
pub(crate) fn tag(boot: &Boot) -> u32 {
    u32::from_le_bytes([boot.0[0], boot.0[1], boot.0[2], boot.0[3]])
}
