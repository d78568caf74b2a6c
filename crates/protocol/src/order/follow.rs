//! The follower's end of replication: takes entries that fit, acknowledges them once they are durable, delivers
//! what is ordered, and asks for a state when the leader's log no longer reaches back far enough.

use super::wire::Packet;
use super::{Config, Mark, Member, Order, Out, Output, Role};
use phalanx_core::{Duration, Fingerprint, Instant};

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Following {
    pub(super) leader: Option<Member>,
    /// Our log is the leader's up to here, at least.
    verified: u64,
    /// The leader was told that this much is durable.
    acked: u64,
    /// It wants an answer in any case.
    ack_now: bool,
    round: u32,
    /// The leader was heard, or doubted for the first time, then.
    pub(super) calm_from: Instant,
    /// It said that it may be silent for a beacon interval.
    pub(super) idle: bool,
    /// Who pleaded last that it does not hear the leader, how often in a row, and when.
    pleader: Option<(Member, u8)>,
    plea_at: Instant,
    /// When a state was asked for.
    asked_at: Option<Instant>,
}

impl Following {
    pub(super) fn of(leader: Option<Member>, now: Instant) -> Self {
        Self { leader, calm_from: now, ..Self::default() }
    }

    /// True when the leader is not to be doubted yet.
    pub(super) fn is_content(&self, now: Instant, config: &Config) -> bool {
        let silence = config.patience + if self.idle { config.beacon * 2 } else { Duration::ZERO };
        self.leader.is_some() && now.since(self.calm_from) < silence
    }

    /// How often in a row `member` has pleaded, each time within `window` of the one before.
    pub(super) fn plead(&mut self, member: Member, now: Instant, window: Duration) -> u8 {
        let before = match self.pleader {
            Some((m, n)) if m == member && now.since(self.plea_at) < window => n,
            _ => 0,
        };
        self.plea_at = now;
        self.pleader = Some((member, before.saturating_add(1)));
        before.saturating_add(1)
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&(self.leader, self.verified, self.acked, self.ack_now, self.round, self.idle, self.pleader));
        print.instant(self.calm_from);
        if self.pleader.is_some() {
            print.instant(self.plea_at);
        }
        if let Some(at) = self.asked_at {
            print.instant(at);
        }
    }
}

impl Order {
    pub(super) fn on_append(&mut self, now: Instant, from: Member, packet: Packet<'_>, out: &mut impl Out) {
        let Packet::Append { ballot, round, prev, commit, prompt, idle, heard, entries } = packet else { return };
        if !self.hear_leader(now, from, (ballot, round), (idle, heard), out) {
            return;
        }
        if let Some(have) = self.mismatch(prev.index, prev.ballot) {
            return self.ask_again(from, have, out);
        }
        let (mut end, mut taken) = (prev.index, false);
        for entry in entries.iter() {
            match self.log.ballot_at(end + 1) {
                // Dropped from our log: ordered and saved long ago.
                _ if end < self.log.base().index => {}
                Some(ballot) if ballot == entry.ballot => {}
                other => {
                    if other.is_some() {
                        if end < self.commit {
                            self.counters.contradictions += 1;
                            return;
                        }
                        self.log.truncate(end, self.commit, &self.ordered);
                        self.disk.truncated(end);
                    }
                    if !self.log.has_room(entry.origin.map(|_| entry.message.len())) {
                        self.counters.log_full += 1;
                        break;
                    }
                    self.log.push(entry);
                    taken = true;
                }
            }
            end += 1;
        }
        let Role::Follower(f) = &mut self.role else { return };
        f.verified = f.verified.max(end);
        f.ack_now |= prompt || (!entries.is_empty() && !taken);
        let commit = commit.min(f.verified);
        self.order_up_to(commit, out);
    }

    pub(super) fn on_gone(
        &mut self,
        now: Instant,
        from: Member,
        (ballot, round, first): (u64, u32, u64),
        out: &mut impl Out,
    ) {
        if !self.hear_leader(now, from, (ballot, round), (false, true), out) {
            return;
        }
        if self.commit + 1 >= first {
            return self.ask_again(from, self.commit, out);
        }
        let wait = self.config.patience;
        let Role::Follower(f) = &mut self.role else { return };
        f.ack_now = true;
        if f.asked_at.is_none_or(|at| now.since(at) >= wait) {
            f.asked_at = Some(now);
            out.push(Output::NeedSnapshot { from });
        }
    }

    /// The application has the state up to `mark`: the log begins anew behind it.
    pub(super) fn on_restored(&mut self, now: Instant, mark: Mark) {
        let index = mark.place.index;
        if index <= self.commit || matches!(self.role, Role::Leader(_)) {
            return;
        }
        // Follow no leader from before the state was taken: its log need not hold it.
        let leader = if mark.ballot > self.promise.ballot { None } else { self.leader() };
        self.step_into(now, mark.ballot, leader);
        self.log.restart_behind(mark.place, mark.expected);
        self.disk.restarted();
        self.ordered = mark.expected;
        // After a restart our application may be ahead of the mark: then only the log needed it.
        (self.commit, self.delivered, self.saved) = (index, self.delivered.max(index), self.saved.max(index));
        self.outbox.ordered(self.ordered.seen(self.own(0)));
    }

    pub(super) fn settle_follower(&mut self, now: Instant, out: &mut impl Out) {
        let (ballot, commit, through) = (self.promise.ballot, self.commit, self.disk.through());
        let Role::Follower(f) = &mut self.role else { return };
        let Some(leader) = f.leader else { return };
        let (have, durable) = (f.verified, f.verified.min(through));
        if std::mem::take(&mut f.ack_now) || durable > f.acked {
            f.acked = durable;
            let round = f.round;
            self.send(leader, Packet::Ack { ballot, round, matched: true, have, durable, commit }, out);
        }
        self.forward(now, leader, out);
    }

    /// A packet that only the leader of `ballot` sends. False when it is a leader no more.
    fn hear_leader(
        &mut self,
        now: Instant,
        from: Member,
        (ballot, round): (u64, u32),
        (idle, heard): (bool, bool),
        out: &mut impl Out,
    ) -> bool {
        if ballot < self.promise.ballot {
            let ballot = self.promise.ballot;
            self.send(from, Packet::Ack { ballot, round, matched: false, have: 0, durable: 0, commit: 0 }, out);
            return false;
        }
        if ballot > self.promise.ballot || self.leader().is_none() {
            self.step_into(now, ballot, Some(from));
        }
        let silence = self.draw_patience() + if idle { self.config.beacon * 2 } else { Duration::ZERO };
        match &mut self.role {
            Role::Follower(f) if f.leader == Some(from) => (f.calm_from, f.idle, f.round) = (now, idle, round),
            _ => {
                self.counters.contradictions += 1;
                return false;
            }
        }
        // A leader that does not hear us serves us as little as one that we do not hear.
        if heard {
            self.election_at = now + silence;
        }
        self.resume(out);
        true
    }

    /// When the leader's entry at `index` is not ours: behind which entry it should try next.
    fn mismatch(&self, index: u64, ballot: u64) -> Option<u64> {
        let last = self.log.last_index();
        if index > last {
            return Some(last);
        }
        // Below the base everything is ordered, and the leader has all that is.
        let ours = self.log.ballot_at(index)?;
        if ours == ballot || index <= self.commit {
            return None;
        }
        // All entries of that ballot are as doubtful as this one.
        let mut have = index - 1;
        while have > self.commit && self.log.ballot_at(have) == Some(ours) {
            have -= 1;
        }
        Some(have)
    }

    fn ask_again(&mut self, leader: Member, have: u64, out: &mut impl Out) {
        let Role::Follower(f) = &self.role else { return };
        let (ballot, commit, durable) = (self.promise.ballot, self.commit, f.verified.min(self.disk.through()));
        self.send(leader, Packet::Ack { ballot, round: f.round, matched: false, have, durable, commit }, out);
    }
}
