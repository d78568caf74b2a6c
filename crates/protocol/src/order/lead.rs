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
    /// It refused a packet: until one fits, a single one is under way.
    probing: bool,
    /// The first question that it has not answered, and when it counts as gone for that.
    asked_at: Instant,
    gone_at: Instant,
    /// It needs a sign of life, now.
    poke: bool,
}

impl Peer {
    /// True unless it owes an answer for too long.
    fn is_live(&self, now: Instant) -> bool {
        now < self.gone_at
    }

    /// A packet that wants an answer leaves. When all is idle the next one leaves a beacon later, and then they follow
    /// quickly, so a lost packet or two make nobody gone.
    fn ask(&mut self, now: Instant, idle: bool, config: &Config) {
        if self.asked_at == Instant::NEVER {
            self.asked_at = now;
            self.gone_at = now + config.patience * 2 + if idle { config.beacon } else { Duration::ZERO };
        }
    }

    fn answered(&mut self) {
        (self.asked_at, self.gone_at) = (Instant::NEVER, Instant::NEVER);
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Leading {
    peers: [Peer; MEMBERS_BOUND],
    /// The barrier: once it is ordered, so is all that earlier leaders left.
    first: u64,
    /// Followers were told to expect beacons only.
    idle: bool,
    pub(super) beat_at: Instant,
}

impl Leading {
    pub(super) fn new(now: Instant, next: u64, config: &Config) -> Self {
        let peer = Peer {
            next,
            durable: 0,
            commit: 0,
            told: 0,
            round: 0,
            flight: Flight::default(),
            probing: false,
            asked_at: Instant::NEVER,
            gone_at: Instant::NEVER,
            poke: false,
        };
        Self { peers: [peer; MEMBERS_BOUND], first: next, idle: false, beat_at: now + config.heartbeat }
    }

    /// Something is under way: followers answer quickly from now on.
    pub(super) fn wake(&mut self, now: Instant, config: &Config) {
        if std::mem::replace(&mut self.idle, false) {
            self.beat_at = self.beat_at.min(now + config.heartbeat);
            for peer in self.peers.iter_mut().filter(|p| p.asked_at != Instant::NEVER) {
                peer.gone_at = peer.gone_at.min(now + config.patience * 2);
            }
        }
    }

    pub(super) fn poke(&mut self, member: Member, now: Instant, config: &Config) {
        self.wake(now, config);
        self.peer(member).poke = true;
    }

    fn peer(&mut self, member: Member) -> &mut Peer {
        &mut self.peers[usize::from(member.0)]
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&(self.first, self.idle));
        print.instant(self.beat_at);
        for p in &self.peers {
            print.add(&(p.next, p.durable, p.commit, p.told, p.round, p.flight, p.probing, p.poke));
            print.instant(p.asked_at);
            print.instant(p.gone_at);
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
        peer.answered();
        if matched {
            if have.max(durable) > last {
                self.counters.contradictions += 1;
                return;
            }
            peer.durable = peer.durable.max(durable);
            peer.commit = peer.commit.max(commit);
            peer.next = peer.next.max(have + 1);
            peer.flight.arrived(have);
            peer.probing &= !peer.flight.is_empty();
        } else if round == peer.round {
            peer.round = peer.round.wrapping_add(1);
            peer.next = have.saturating_add(1).clamp(peer.durable + 1, last + 1);
            peer.flight.clear();
            peer.probing = true;
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
        let others = || (0..members).filter(|&m| m != me).map(|m| &leading.peers[m]);
        if others().filter(|p| p.is_live(now)).count() + 1 < majority {
            self.step_into(now, self.promise.ballot, None);
            return self.stall(out);
        }
        let is_slow = |p: &Peer| p.asked_at != Instant::NEVER && now.since(p.asked_at) >= self.config.patience;
        let is_done = |p: &Peer| p.durable == last && p.commit == commit && !is_slow(p);
        let idle = all_here && others().all(|p| !p.is_live(now) || is_done(p));
        if !idle {
            leading.wake(now, &self.config);
        }
        leading.idle = idle;
        leading.beat_at = now + if idle { self.config.beacon } else { self.config.heartbeat };
        for to in self.peers() {
            self.send_append(now, to, true, false, out);
        }
    }

    pub(super) fn settle_leader(&mut self, now: Instant, out: &mut impl Out) {
        // What the application saw before a restart is ordered, and a leader's log holds all that is. Without this
        // a full group that restarts could neither drop entries nor hand a state over before its barrier is
        // ordered, and not order the barrier before that.
        self.order_up_to(self.delivered, out);
        self.admit_own(now);
        self.order_by_majority(out);
        let last = self.log.last_index();
        for to in self.peers() {
            loop {
                let Role::Leader(leading) = &self.role else { return };
                let peer = &leading.peers[usize::from(to.0)];
                let has_window = if peer.probing { peer.flight.is_empty() } else { !peer.flight.is_full() };
                let more = peer.next <= last && peer.next > self.log.base().index && has_window;
                let news = peer.told < self.commit && peer.is_live(now);
                if !more && !news && !peer.poke {
                    break;
                }
                self.send_append(now, to, peer.poke, more, out);
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
    fn send_append(&mut self, now: Instant, to: Member, prompt: bool, more: bool, out: &mut impl Out) {
        let Role::Leader(leading) = &mut self.role else { return };
        let (ballot, idle) = (self.promise.ballot, leading.idle);
        let peer = leading.peer(to);
        let heard = peer.is_live(now);
        if prompt {
            peer.ask(now, idle, &self.config);
        }
        peer.poke = false;
        peer.told = self.commit;
        let round = peer.round;
        let Some(before) = self.log.ballot_at(peer.next - 1) else {
            let first = self.log.base().index + 1;
            return self.send(to, Packet::Gone { ballot, round, first }, out);
        };
        let prev = Place { index: peer.next - 1, ballot: before };
        let (commit, entries) = (self.commit, Entries::default());
        Packet::Append { ballot, round, prev, commit, prompt, idle, heard, entries }
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
