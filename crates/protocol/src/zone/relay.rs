//! Relays: probes for others, who get no answer from a member and want to know whether we do.
//!
//! Usually one answer is enough: the member is there, and the way between the two is bad. About a member that is hardly there
//! ([`absence`](super::absence)) one answer says little: then it is asked several times, and must answer more often than
//! not.

use super::Zone;
use super::absence::ABSENT;
use crate::member::{Out, Peer, Slot};
use phalanx_core::{Addr, Duration, Fingerprint, Identity, Instant};
use phalanx_wire::zone::Note;

/// Tries before we say that there is no answer.
const TRIES: u8 = 3;
/// Tries to see how well somebody answers, and answers of one who is hardly there, at most.
const ABSENT_TRIES: u8 = 4;
const ABSENT_ANSWERS: u8 = 1;

/// A probe for somebody else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Relay {
    next_at: Instant,
    /// Whom, for whom, and their nonce.
    slot: Slot,
    to: Addr,
    nonce: u32,
    /// The nonce of our own probes.
    probe: u32,
    tries: u8,
    answers: u8,
}

impl Relay {
    const fn is_of_the_absent(&self) -> bool {
        self.nonce == ABSENT
    }

    const fn most(&self) -> u8 {
        if self.is_of_the_absent() { ABSENT_TRIES } else { TRIES }
    }

    /// All was tried: what we have to say is that it is silent.
    const fn is_silent(&self) -> bool {
        self.answers <= if self.is_of_the_absent() { ABSENT_ANSWERS } else { 0 }
    }
}

/// All probes for others.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Relays(Vec<Relay>);

impl Relays {
    pub(super) fn deadline(&self) -> Instant {
        self.0.iter().map(|r| r.next_at).fold(Instant::NEVER, Instant::min)
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        for relay in &self.0 {
            print.instant(relay.next_at);
            print.add(&(relay.slot, relay.to, relay.nonce, relay.probe, relay.tries, relay.answers));
        }
    }
}

impl Zone {
    /// Somebody wants to know whether a member is there, or how well it answers.
    pub(super) fn relay(&mut self, now: Instant, from: Peer, nonce: u32, slot: Slot, out: &mut impl Out) {
        let Some(addr) = self.roster.card(slot).map(|c| c.addr) else { return };
        if self.watch.relays.0.iter().any(|r| r.slot == slot && r.to == from.addr && r.nonce == nonce) {
            return;
        }
        if self.watch.relays.len() >= Self::RELAYS {
            self.counters.relays_refused += 1;
            return;
        }
        let (next_at, probe) = (now + self.relay_spacing(), self.next_nonce());
        self.watch.relays.0.push(Relay { next_at, slot, to: from.addr, nonce, probe, tries: 1, answers: 0 });
        self.note(addr, &Note::Probe { nonce: probe }, out);
    }

    /// A member answered: those who asked whether it is there hear that.
    pub(super) fn relays_answered(&mut self, slot: Slot, of: Identity, nonce: u32, out: &mut impl Out) {
        let mut i = 0;
        while let Some(relay) = self.watch.relays.0.get_mut(i) {
            match relay.slot == slot {
                true if !relay.is_of_the_absent() => {
                    let Relay { to, nonce, .. } = self.watch.relays.0.swap_remove(i);
                    self.note(to, &Note::Vouch { nonce, of }, out);
                }
                true => {
                    relay.answers += u8::from(relay.probe == nonce);
                    i += 1;
                }
                false => i += 1,
            }
        }
    }

    /// All tries fit in a third of the time in which a silent neighbour must answer; unless we are late ourselves.
    fn relay_spacing(&self) -> Duration {
        self.strained(self.config.silent) / (3 * u64::from(TRIES))
    }

    /// We were late: what we have not heard so far says nothing to those who asked us.
    pub(super) fn relays_starved(&mut self, now: Instant) {
        let next_at = now + self.relay_spacing();
        for relay in &mut self.watch.relays.0 {
            (relay.next_at, relay.tries) = (next_at, 1);
        }
    }

    /// Probes for others that were not answered: once more, or given up.
    pub(super) fn expire_relays(&mut self, now: Instant, out: &mut impl Out) {
        while let Some(i) = self.watch.relays.0.iter().position(|r| r.next_at <= now) {
            let spacing = self.relay_spacing();
            let relay = &mut self.watch.relays.0[i];
            relay.tries += 1;
            relay.next_at = now + spacing;
            let relay = *relay;
            let Some((addr, of)) = self.roster.card(relay.slot).map(|c| (c.addr, c.identity)) else {
                self.watch.relays.0.swap_remove(i);
                continue;
            };
            if relay.tries <= relay.most() {
                self.note(addr, &Note::Probe { nonce: relay.probe }, out);
                continue;
            }
            self.watch.relays.0.swap_remove(i);
            if relay.is_silent() {
                self.note(relay.to, &Note::Silent { nonce: relay.nonce, of }, out);
            }
        }
    }

    /// The host of this address says that nobody listens: those who asked about it need not wait.
    pub(super) fn relays_refused(&mut self, addr: Addr, out: &mut impl Out) {
        let mut i = 0;
        while let Some(&relay) = self.watch.relays.0.get(i) {
            match self.roster.card(relay.slot).filter(|c| c.addr == addr).map(|c| c.identity) {
                Some(of) => {
                    self.watch.relays.0.swap_remove(i);
                    self.note(relay.to, &Note::Silent { nonce: relay.nonce, of }, out);
                }
                None => i += 1,
            }
        }
    }
}
