//! Atomic multicast for a fixed group: all correct members deliver the same messages in the same order, also when
//! the sender dies in the middle.
//!
//! MM-3, 004 §3: what active replication (CM-1, CM-4) stands on. A group of three, one of which may crash, restart,
//! pause or be cut off at a time; written for any odd size up to [`MEMBERS_BOUND`].
//!
//! A leader puts messages into a replicated log; an entry is *ordered* once a majority has it on disk. Of the
//! majority protocols (multi-Paxos, viewstamped replication, Raft) this is one of the last kind: logs have no holes
//! and only a member whose log is as complete as a majority's may lead. So one number sums up what a follower has,
//! a new leader fetches nothing before it starts, and a restarted member is an ordinary slow one. Where we differ:
//! - A member first asks whether it would win (`trial`), so one that was cut off does not disturb the others when it
//!   returns; a leader that hears no majority steps down and says so.
//! - 004 §6.1: a leader heard by one peer but not by the other. The peer that hears both takes over (`elect.rs`).
//! - Writes to disk are packets like others: late or lost. Nothing is acknowledged before it is durable (`disk.rs`).
//! - An idle group exchanges a slow beacon only; a member with work to do doubts a silent leader sooner.
//!
//! In the steady state a message submitted at the leader is delivered there after one round trip and everywhere
//! after one and a half; submitted elsewhere it takes one delay more.
//!
//! The epoch in each packet names the group's composition: packets of another one are dropped. Replacing a member
//! is a new epoch with the state of the old one, decided by the manager.
//!
//! Which file does what: `elect` who leads, `lead` and `follow` the two ends of replication, `outbox` our own
//! messages on their way to the leader, `log` the entries, `disk` what is durable, `wire` the packets, `terms` the words.

mod disk;
mod elect;
mod flight;
mod follow;
mod lead;
mod log;
mod outbox;
mod terms;
pub mod wire;

#[cfg(test)]
mod checks;
#[cfg(test)]
mod explore;
#[cfg(test)]
mod net;
#[cfg(test)]
mod tests;

use disk::{Disk, Promise};
use elect::Ballots;
use follow::Following;
use lead::Leading;
pub use log::Expected;
use log::Log;
use outbox::Outbox;
use phalanx_core::{Duration, Fingerprint, Instant, Machine, Rng, Sink};
pub use terms::{Config, Counters, MEMBERS_BOUND, Mark, Member, Origin, Place, Refusal, Seat, StartError};
use wire::{ENTRY_HEAD, PACKET_BOUND, Packet};

/// What has happened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input<'a> {
    /// The application here wants `message` delivered to all. Answered by `Accepted` or `Refused`.
    Submitted {
        /// The message.
        message: &'a [u8],
    },
    /// A packet arrived; MML vouches for `from`.
    Received {
        /// Who sent it.
        from: Member,
        /// Its bytes.
        packet: &'a [u8],
    },
    /// The record of that `Persist` is on disk.
    Persisted {
        /// The token of the record; tokens of an earlier boot do not count.
        token: u64,
    },
    /// The application's state with all messages up to this index is safe: a restart will not ask for them again.
    Saved {
        /// The index.
        up_to: u64,
    },
    /// The application's state holds all up to `mark` and is safe, in answer to `NeedSnapshot`.
    Restored {
        /// What [`Order::mark`] said at the other member when the state was taken.
        mark: Mark,
    },
}

/// What is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Output<'a> {
    /// Send `packet` by MML.
    Send {
        /// To whom.
        to: Member,
        /// Its bytes.
        packet: &'a [u8],
    },
    /// Append `record` to the durable records and answer `Persisted`. A restart reads them in this order; one that was
    /// not confirmed may be missing, but none may be torn.
    Persist {
        /// To name it in the answer.
        token: u64,
        /// Once this record is durable, all before it may be deleted.
        replaces: bool,
        /// Its bytes.
        record: &'a [u8],
    },
    /// The next message in the total order. Indexes grow, not always by one: leaders' barriers take some.
    Deliver {
        /// Its place in the order.
        index: u64,
        /// Whose it is.
        origin: Origin,
        /// The message.
        message: &'a [u8],
    },
    /// The message just submitted will be delivered, unless this member crashes first.
    Accepted {
        /// Its name.
        origin: Origin,
    },
    /// The message just submitted was not taken.
    Refused {
        /// Why.
        reason: Refusal,
    },
    /// No majority: nothing is ordered until `Resumed`.
    Stalled,
    /// A majority is there again.
    Resumed,
    /// This member fell behind the others' logs: fetch the mark and the state of `from`'s application. Install the
    /// state unless the one here reaches as far as the mark, make it safe, then say `Restored`. Repeated until that
    /// happens.
    NeedSnapshot {
        /// Who has it.
        from: Member,
    },
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Role {
    Follower(Following),
    /// Stands for election, or asks whether it should.
    Candidate(Ballots),
    Leader(Box<Leading>),
}

/// One member of the group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Order {
    config: Config,
    seat: Seat,
    promise: Promise,
    role: Role,
    /// When a follower or candidate loses patience.
    election_at: Instant,
    log: Log,
    disk: Disk,
    /// Ordered up to here, and what was seen of each member up to here.
    commit: u64,
    ordered: Expected,
    /// The application has seen all up to here: after a restart that may be more than we know to be ordered.
    delivered: u64,
    saved: u64,
    outbox: Outbox,
    /// A vote that is on its way to the disk and owed to its candidate.
    owed_vote: bool,
    stalled: bool,
    counters: Counters,
    rng: Rng,
    /// For packets and records under construction; empty between calls.
    scratch: Vec<u8>,
}

/// A sink for our outputs.
trait Out: for<'a> Sink<Output<'a>> {}
impl<S: for<'a> Sink<Output<'a>>> Out for S {}

impl Order {
    /// A member that starts for the first time.
    ///
    /// # Panics
    /// When the seat is not in a group of an odd number up to [`MEMBERS_BOUND`].
    #[must_use]
    pub fn new(config: Config, seat: Seat, rng: Rng, now: Instant) -> Self {
        Self::start(config, seat, Promise::default(), Log::new(config.log_entries, config.log_bytes), 0, rng, now)
    }

    /// A member that starts again from its durable `records`, oldest first; its application's state holds all
    /// messages up to `delivered_up_to`.
    ///
    /// # Errors
    /// When a record cannot be read, or the application has lost messages.
    ///
    /// # Panics
    /// As [`Order::new`].
    pub fn recover<R: AsRef<[u8]>>(
        config: Config,
        seat: Seat,
        delivered_up_to: u64,
        records: impl IntoIterator<Item = R>,
        rng: Rng,
        now: Instant,
    ) -> Result<Self, StartError> {
        let mut promise = Promise::default();
        let mut log = Log::new(config.log_entries, config.log_bytes);
        for (i, record) in records.into_iter().enumerate() {
            disk::replay(record.as_ref(), seat.epoch, &mut promise, &mut log)
                .map_err(|why| StartError::Damaged { record: i, why })?;
        }
        let base = log.base().index;
        if delivered_up_to < base {
            return Err(StartError::Behind { have: delivered_up_to, base });
        }
        Ok(Self::start(config, seat, promise, log, delivered_up_to, rng, now))
    }

    fn start(
        mut config: Config,
        seat: Seat,
        promise: Promise,
        log: Log,
        delivered: u64,
        mut rng: Rng,
        now: Instant,
    ) -> Self {
        let n = usize::from(seat.members);
        assert!(n % 2 == 1 && n <= MEMBERS_BOUND && seat.me.0 < seat.members, "no such seat: {seat:?}");
        config.batch_bytes = config.batch_bytes.min(PACKET_BOUND - ENTRY_HEAD);
        let election_at = now + config.patience + Duration(rng.below(config.jitter.0));
        Self {
            config,
            seat,
            promise,
            role: Role::Follower(Following::default()),
            election_at,
            disk: Disk::new(promise, log.last_index()),
            // Not `delivered`: an entry that was delivered before it was durable here may be another one in this log.
            commit: log.base().index,
            ordered: *log.at_base(),
            log,
            delivered,
            saved: delivered,
            outbox: Outbox::new(config.outbox),
            owed_vote: false,
            stalled: false,
            counters: Counters::default(),
            rng,
            scratch: Vec::new(),
        }
    }

    /// This member's seat.
    #[must_use]
    pub fn seat(&self) -> Seat {
        self.seat
    }

    /// Who leads, as far as this member knows.
    #[must_use]
    pub fn leader(&self) -> Option<Member> {
        match &self.role {
            Role::Leader(_) => Some(self.seat.me),
            Role::Follower(f) => f.leader,
            Role::Candidate(_) => None,
        }
    }

    /// The ballot this member is in.
    #[must_use]
    pub fn ballot(&self) -> u64 {
        self.promise.ballot
    }

    /// Ordered up to here, as far as this member knows.
    #[must_use]
    pub fn ordered_up_to(&self) -> u64 {
        self.commit
    }

    /// What was dropped.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Names the state of an application that has seen every `Deliver` so far. `None` for a while after a restart:
    /// the application is ahead of what is known to be ordered, ask again later.
    #[must_use]
    pub fn mark(&self) -> Option<Mark> {
        let ballot = self.log.ballot_at(self.commit)?;
        (self.commit >= self.delivered).then_some(Mark {
            place: Place { index: self.commit, ballot },
            ballot: self.promise.ballot,
            expected: self.ordered,
        })
    }
}

impl Machine for Order {
    type Input<'a> = Input<'a>;
    type Output<'a> = Output<'a>;

    fn handle<S: for<'a> Sink<Output<'a>>>(&mut self, now: Instant, input: Input<'_>, out: &mut S) {
        match input {
            Input::Submitted { message } => self.on_submitted(now, message, out),
            Input::Received { from, packet } => self.on_received(now, from, packet, out),
            Input::Persisted { token } => self.on_persisted(now, token),
            Input::Saved { up_to } => self.saved = self.saved.max(up_to.min(self.delivered)),
            Input::Restored { mark } => self.on_restored(now, mark),
        }
        self.settle(now, out);
    }

    fn expire<S: for<'a> Sink<Output<'a>>>(&mut self, now: Instant, out: &mut S) {
        if now >= self.disk.retry_at {
            self.disk.retry_at = Instant::NEVER;
            self.disk.give_up();
            self.counters.rewrites += 1;
        }
        match &self.role {
            Role::Leader(leading) if now >= leading.beat_at => self.on_beat(now, out),
            Role::Follower(_) | Role::Candidate(_) if now >= self.election_at => self.on_silence(now, out),
            _ => {}
        }
        if now >= self.outbox.retry_at {
            self.on_forward_due(now);
        }
        self.settle(now, out);
    }

    fn deadline(&self) -> Instant {
        let role = match &self.role {
            Role::Leader(leading) => leading.beat_at,
            _ => self.election_at,
        };
        role.min(self.disk.retry_at).min(self.outbox.retry_at)
    }

    fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&self.seat.boot).add(&self.promise).add(&self.commit).add(&self.delivered).add(&self.saved);
        print.add(&self.owed_vote).add(&self.stalled);
        match &self.role {
            Role::Follower(f) => f.fingerprint(print),
            Role::Candidate(b) => {
                print.add(b);
            }
            Role::Leader(l) => l.fingerprint(print),
        }
        if !matches!(self.role, Role::Leader(_)) {
            print.instant(self.election_at);
        }
        self.log.fingerprint(print);
        self.disk.fingerprint(print);
        self.outbox.fingerprint(print);
    }
}

impl Order {
    fn on_submitted(&mut self, now: Instant, message: &[u8], out: &mut impl Out) {
        if message.len() > self.config.message_bound() {
            return out.push(Output::Refused { reason: Refusal::TooLong });
        }
        let Some(seq) = self.outbox.push(message) else {
            self.counters.refused += 1;
            return out.push(Output::Refused { reason: Refusal::Full });
        };
        out.push(Output::Accepted { origin: self.own(seq) });
        self.lose_patience_soon(now);
    }

    fn on_received(&mut self, now: Instant, from: Member, packet: &[u8], out: &mut impl Out) {
        if from.0 >= self.seat.members || from == self.seat.me {
            self.counters.foreign += 1;
            return;
        }
        let packet = match Packet::decode(packet) {
            Ok((epoch, packet)) if epoch == self.seat.epoch => packet,
            Ok(_) => {
                self.counters.foreign += 1;
                return;
            }
            Err(_) => {
                self.counters.malformed += 1;
                return;
            }
        };
        match packet {
            Packet::Append { .. } => self.on_append(now, from, packet, out),
            Packet::Ack { .. } => self.on_ack(now, from, packet),
            Packet::Gone { ballot, round, first } => self.on_gone(now, from, (ballot, round, first), out),
            Packet::Ask { ballot, trial: true, last } => self.on_trial(now, from, ballot, last, out),
            Packet::Ask { ballot, trial: false, last } => self.on_ask(now, from, ballot, last, out),
            Packet::Answer { ballot, asked, trial, granted } => {
                self.on_answer(now, from, ballot, (asked, trial, granted));
            }
            Packet::Forward { boot, first, messages } => self.on_forward(now, from, boot, first, messages),
        }
    }

    fn on_persisted(&mut self, now: Instant, token: u64) {
        if self.disk.confirm(token) {
            let retry_at = if self.disk.is_quiet() { Instant::NEVER } else { now + self.config.disk_patience };
            self.disk.retry_at = retry_at;
        }
    }

    /// Draws the consequences of what changed: writes, packets and deliveries that are possible now.
    fn settle(&mut self, now: Instant, out: &mut impl Out) {
        self.log.make_room(self.commit.min(self.saved).min(self.disk.through()));
        match self.role {
            Role::Leader(_) => self.settle_leader(now, out),
            Role::Follower(_) => self.settle_follower(now, out),
            Role::Candidate(_) => {}
        }
        self.write(now, out);
        self.settle_votes(now, out);
        self.check();
    }

    fn write(&mut self, now: Instant, out: &mut impl Out) {
        if !self.disk.wants(self.promise, self.log.last_index()) {
            return;
        }
        if self.disk.retry_at == Instant::NEVER {
            self.disk.retry_at = now + self.config.disk_patience;
        }
        let rewrite_after = 2 * self.config.log_bytes;
        let (token, replaces) =
            self.disk.issue(self.seat.epoch, self.promise, &self.log, rewrite_after, &mut self.scratch);
        out.push(Output::Persist { token, replaces, record: &self.scratch });
        self.scratch.clear();
    }

    /// All up to `index` is ordered: deliver what the application has not seen.
    fn order_up_to(&mut self, index: u64, out: &mut impl Out) {
        for index in self.commit + 1..=index {
            let Some(entry) = self.log.get(index) else { break };
            self.ordered.note(entry.origin);
            self.commit = index;
            if let Some(origin) = entry.origin {
                if index > self.delivered {
                    out.push(Output::Deliver { index, origin, message: entry.message.bytes() });
                }
                if origin.member == self.seat.me && origin.boot == self.seat.boot {
                    self.outbox.ordered(origin.seq + 1);
                }
            }
            self.delivered = self.delivered.max(index);
        }
    }

    fn send(&mut self, to: Member, packet: Packet<'_>, out: &mut impl Out) {
        packet.encode(self.seat.epoch, &mut self.scratch);
        out.push(Output::Send { to, packet: &self.scratch });
        self.scratch.clear();
    }

    fn send_to_all(&mut self, packet: Packet<'_>, out: &mut impl Out) {
        packet.encode(self.seat.epoch, &mut self.scratch);
        for to in self.peers() {
            out.push(Output::Send { to, packet: &self.scratch });
        }
        self.scratch.clear();
    }

    fn peers(&self) -> impl Iterator<Item = Member> + use<> {
        let me = self.seat.me;
        (0..self.seat.members).map(Member).filter(move |&m| m != me)
    }

    fn majority(&self) -> usize {
        usize::from(self.seat.members) / 2 + 1
    }

    fn own(&self, seq: u64) -> Origin {
        Origin { member: self.seat.me, boot: self.seat.boot, seq }
    }

    fn stall(&mut self, out: &mut impl Out) {
        if !std::mem::replace(&mut self.stalled, true) {
            out.push(Output::Stalled);
        }
    }

    fn resume(&mut self, out: &mut impl Out) {
        if std::mem::replace(&mut self.stalled, false) {
            out.push(Output::Resumed);
        }
    }

    /// What holds after each step, in every build.
    fn check(&self) {
        let (base, last) = (self.log.base().index, self.log.last_index());
        assert!(base <= self.commit && self.commit <= last, "ordered {} outside of {base}..={last}", self.commit);
        assert!(self.disk.through() <= last, "durable beyond the log");
        assert!(self.commit <= self.delivered, "ordered but not delivered");
    }
}
