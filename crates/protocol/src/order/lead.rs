//! The leader's end of replication: entries out, acknowledgements in, and what a majority has on disk is ordered.
//!
//! Each follower is sent up to a few packets ahead; what is submitted while these are under way shares the next one. A
//! lost packet is found by the next one or by the next sign of life, whose predecessor then does not match.

use super::flight::Flight;
use super::wire::{Entries, EntryView, ITEMS_BOUND, Messages, Packet, push_entry};
use super::{Config, MEMBERS_BOUND, Member, Order, Origin, Out, Output, Place, Role};
use phalanx_core::{Duration, Fingerprint, Instant};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Peer {
    /// The next entry to send.
    next: u64,
    /// What it acknowledged: durable, and ordered as far as it knows.
    durable: u64,
    commit: u64,
    /// The latest it was told to be ordered.
    told: u64,
    round: u32,
    flight: Flight,
    heard: Instant,
    /// It needs a sign of life, now.
    poke: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Leading {
    peers: [Peer; MEMBERS_BOUND],
    /// The barrier: once it is ordered, so is all that earlier leaders left.
    first: u64,
    /// Followers were told to expect beacons only.
    idle: bool,
    /// Since when they are expected to answer quickly.
    busy_from: Instant,
    pub(super) beat_at: Instant,
}

impl Leading {
    pub(super) fn new(now: Instant, next: u64, config: &Config) -> Self {
        let peer =
            Peer { next, durable: 0, commit: 0, told: 0, round: 0, flight: Flight::default(), heard: now, poke: false };
        Self { peers: [peer; MEMBERS_BOUND], first: next, idle: false, busy_from: now, beat_at: now + config.heartbeat }
    }

    /// Something is under way: followers answer quickly from now on.
    pub(super) fn wake(&mut self, now: Instant, config: &Config) {
        if std::mem::replace(&mut self.idle, false) {
            self.busy_from = now;
            self.beat_at = self.beat_at.min(now + config.heartbeat);
        }
    }

    pub(super) fn poke(&mut self, member: Member, now: Instant, config: &Config) {
        self.wake(now, config);
        self.peer(member).poke = true;
    }

    fn peer(&mut self, member: Member) -> &mut Peer {
        &mut self.peers[usize::from(member.0)]
    }

    /// True when the peer answered lately.
    fn is_live(&self, peer: &Peer, now: Instant, config: &Config) -> bool {
        let silence = config.patience * 2 + if self.idle { config.beacon * 2 } else { Duration::ZERO };
        now.since(peer.heard.max(self.busy_from)) < silence
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&(self.first, self.idle));
        print.instant(self.busy_from);
        print.instant(self.beat_at);
        for p in &self.peers {
            print.add(&(p.next, p.durable, p.commit, p.told, p.round, p.flight, p.poke));
            print.instant(p.heard);
        }
    }
}

impl Order {
    pub(super) fn on_ack(&mut self, now: Instant, from: Member, packet: Packet<'_>) {
        let Packet::Ack { ballot, round, matched, have, durable, commit } = packet else { return };
        if ballot > self.promise.ballot {
            return self.step_into(now, ballot, None);
        }
        let last = self.log.last_index();
        let Role::Leader(leading) = &mut self.role else { return };
        if ballot < self.promise.ballot {
            return;
        }
        let peer = leading.peer(from);
        peer.heard = now;
        if matched {
            if have.max(durable) > last {
                self.counters.contradictions += 1;
                return;
            }
            peer.durable = peer.durable.max(durable);
            peer.commit = peer.commit.max(commit);
            peer.next = peer.next.max(have + 1);
            peer.flight.arrived(have);
        } else if round == peer.round {
            peer.round = peer.round.wrapping_add(1);
            peer.next = have.saturating_add(1).clamp(peer.durable + 1, last + 1);
            peer.flight.clear();
        }
    }

    pub(super) fn on_forward(&mut self, now: Instant, from: Member, boot: u64, first: u64, messages: Messages<'_>) {
        let Role::Leader(leading) = &mut self.role else { return };
        leading.wake(now, &self.config);
        for (seq, message) in (first..).zip(messages.iter()) {
            let origin = Origin { member: from, boot, seq };
            if self.log.at_tail().is_next(origin) {
                if !self.log.has_room(Some(message.len())) {
                    self.counters.log_full += 1;
                    break;
                }
                self.log.push(EntryView { ballot: self.promise.ballot, origin: Some(origin), message });
            } else {
                // Twice, or behind a lost one. A sign of life shows the origin what we have.
                leading.peer(from).poke = true;
            }
        }
    }

    /// The leader's signs of life; without a majority's answers it stops leading.
    pub(super) fn on_beat(&mut self, now: Instant, out: &mut impl Out) {
        let (last, commit, members) = (self.log.last_index(), self.commit, usize::from(self.seat.members));
        let me = usize::from(self.seat.me.0);
        let all_here = commit == last && self.disk.through() == last;
        let majority = self.majority();
        let Role::Leader(leading) = &mut self.role else { return };
        let is_live = |p: &Peer| leading.is_live(p, now, &self.config);
        let others = || (0..members).filter(|&m| m != me).map(|m| &leading.peers[m]);
        if others().filter(|p| is_live(p)).count() + 1 < majority {
            self.step_into(now, self.promise.ballot, None);
            return self.stall(out);
        }
        let idle = all_here && others().all(|p| !is_live(p) || (p.durable == last && p.commit == commit));
        if !idle {
            leading.wake(now, &self.config);
        }
        leading.idle = idle;
        leading.beat_at = now + if idle { self.config.beacon } else { self.config.heartbeat };
        for to in self.peers() {
            self.send_append(to, true, false, out);
        }
    }

    pub(super) fn settle_leader(&mut self, now: Instant, out: &mut impl Out) {
        // What the application saw before a restart is ordered, and a leader's log holds all that is. Without this
        // a full group that restarts could neither drop entries nor hand a state over before its barrier is
        // ordered, and not order the barrier before that.
        self.order_up_to(self.delivered, out);
        self.admit_own(now);
        self.order_by_majority(out);
        // The application may have saved meanwhile, and what is ordered has left the outbox.
        let last = self.log.last_index();
        for to in self.peers() {
            loop {
                let Role::Leader(leading) = &self.role else { return };
                let peer = &leading.peers[usize::from(to.0)];
                let more = peer.next <= last && peer.next > self.log.base().index && !peer.flight.is_full();
                let news = peer.told < self.commit && leading.is_live(peer, now, &self.config);
                if !more && !news && !peer.poke {
                    break;
                }
                self.send_append(to, peer.poke, more, out);
            }
        }
    }

    fn order_by_majority(&mut self, out: &mut impl Out) {
        let Role::Leader(leading) = &self.role else { return };
        let mut durable = [0; MEMBERS_BOUND];
        for to in self.peers() {
            durable[usize::from(to.0)] = leading.peers[usize::from(to.0)].durable;
        }
        durable[usize::from(self.seat.me.0)] = self.disk.through();
        let durable = &mut durable[..usize::from(self.seat.members)];
        durable.sort_unstable_by(|a, b| b.cmp(a));
        let index = durable[self.majority() - 1];
        // An earlier leader's entry, even on a majority, may still lose against a log with a later ballot; our own
        // barrier in front of it cannot.
        if index > self.commit && index >= leading.first {
            self.order_up_to(index, out);
            self.resume(out);
        }
    }

    /// Sends what comes next for `to`: entries when `more`, else a sign of life.
    fn send_append(&mut self, to: Member, prompt: bool, more: bool, out: &mut impl Out) {
        let Role::Leader(leading) = &mut self.role else { return };
        let (ballot, idle) = (self.promise.ballot, leading.idle);
        let peer = leading.peer(to);
        peer.poke = false;
        peer.told = self.commit;
        let round = peer.round;
        let Some(before) = self.log.ballot_at(peer.next - 1) else {
            let first = self.log.base().index + 1;
            return self.send(to, Packet::Gone { ballot, round, first }, out);
        };
        let prev = Place { index: peer.next - 1, ballot: before };
        let (commit, entries) = (self.commit, Entries::default());
        Packet::Append { ballot, round, prev, commit, prompt, idle, entries }
            .encode(self.seat.epoch, &mut self.scratch);
        if more {
            let list_at = self.scratch.len() - 2;
            for entry in self.log.from(peer.next).take(ITEMS_BOUND) {
                let len = self.scratch.len() + entry.message.len();
                if self.scratch.len() > list_at + 2 && len > self.config.batch_bytes {
                    break;
                }
                push_entry(&mut self.scratch, list_at, entry.view());
                peer.next += 1;
            }
            peer.flight.push(peer.next - 1);
        }
        out.push(Output::Send { to, packet: &self.scratch });
        self.scratch.clear();
    }
}
