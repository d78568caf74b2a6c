//! One level of a node: who is heard in its multicast group, who leads it, and what we told there (TG-1, TG-2, TG-6).

use super::SegmentConfig;
use crate::member::Slot;
use phalanx_core::{Fingerprint, Instant};
use phalanx_wire::segment::{Pulse, SETS};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What we are in a level.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Role {
    /// There is no leader yet; from then on the lowest of those who have none leads.
    Looks(Instant),
    Follows(Slot),
    Leads,
}

/// Somebody who is heard in a level.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Peer {
    pub(super) heard_at: Instant,
    /// How often it was asked since whether it lives.
    pub(super) asked: u8,
    pub(super) pulse: Pulse,
    /// We have what it told up to this one.
    pub(super) upto: u64,
    /// Updates have come up to this one; an image says who lives, and not who died.
    pub(super) applied: u64,
    /// What it had told when we first heard it.
    pub(super) from: u64,
    /// Since when it has told more than we have; since when it, a leader, sees others than we do.
    pub(super) lags_since: Instant,
    pub(super) differs_since: Instant,
    /// When it was last asked for all it knows, and how often since both saw the same.
    pub(super) polled_at: Instant,
    pub(super) tries: u32,
}

impl Peer {
    pub(super) fn new(now: Instant, pulse: Pulse) -> Self {
        Self {
            heard_at: now,
            asked: 0,
            pulse,
            // The last ones may have been overtaken by the heartbeat.
            upto: pulse.number.saturating_sub(SETS as u64),
            applied: pulse.number.saturating_sub(SETS as u64),
            from: pulse.number,
            lags_since: Instant::NEVER,
            differs_since: Instant::NEVER,
            polled_at: Instant::ZERO,
            tries: 0,
        }
    }

    /// What it told up to this one we have, or had others tell us.
    pub(super) fn known(&self) -> u64 {
        self.upto.max(self.from)
    }
}

/// One of our levels.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Level {
    pub(super) number: u8,
    pub(super) role: Role,
    pub(super) peers: BTreeMap<Slot, Peer>,
    /// Who led until lately, by its short name: who followed it has nobody now.
    pub(super) lost: u64,
    /// Who leads when we are gone.
    pub(super) backup: Option<Slot>,
    /// Change sets that we told here, and the last of them.
    pub(super) told: u64,
    pub(super) last: VecDeque<Vec<u8>>,
    /// The last one is told once more with the next heartbeat: nothing may follow that would carry it.
    pub(super) repeats: bool,
    /// Members whom we told of here though we hear them here ourselves: others do not.
    pub(super) vouched: BTreeSet<Slot>,
    /// Heartbeats that are to say all of us.
    pub(super) introduce: u8,
    /// We have said here that we lead.
    pub(super) is_said: bool,
    /// When we say once more for whom we answer, and whether once more after that: it may have overtaken the heartbeat that says who we are, and who
    /// has no session with us could not read it when we came.
    pub(super) again_at: Instant,
    pub(super) again_later: bool,
    /// We are to lead here when the leader is gone: heartbeats until we greet the level above again.
    pub(super) greets_in: Option<u8>,
}

impl Level {
    /// We have just come here, and listen until then.
    pub(super) fn new(number: u8, until: Instant, introduce: u8) -> Self {
        let (role, peers, last) = (Role::Looks(until), BTreeMap::new(), VecDeque::new());
        Self {
            number,
            role,
            peers,
            lost: 0,
            backup: None,
            told: 0,
            last,
            repeats: false,
            vouched: BTreeSet::new(),
            introduce,
            is_said: false,
            again_at: Instant::NEVER,
            again_later: false,
            greets_in: None,
        }
    }

    /// Notes an encoded change set that we are about to tell.
    pub(super) fn tell(&mut self, set: Vec<u8>) {
        self.told += 1;
        self.repeats = true;
        if self.last.len() == SETS {
            self.last.pop_front();
        }
        self.last.push_back(set);
    }

    pub(super) fn leaders(&self) -> impl Iterator<Item = Slot> {
        self.peers.iter().filter(|(_, p)| p.pulse.leads).map(|(&slot, _)| slot)
    }

    /// Whether somebody has no leader, as far as we know.
    pub(super) fn is_leaderless(&self, peer: &Peer) -> bool {
        peer.pulse.follows == 0 || peer.pulse.follows == self.lost
    }

    pub(super) fn leads(&self) -> bool {
        self.role == Role::Leads
    }

    pub(super) fn follows(&self) -> Option<Slot> {
        if let Role::Follows(leader) = self.role { Some(leader) } else { None }
    }

    /// When somebody has been silent for too long, or is to be asked.
    pub(super) fn due_at(&self, config: &SegmentConfig) -> Instant {
        let looks = if let Role::Looks(until) = self.role { until } else { Instant::NEVER };
        let fail = config.fail_after(self.number);
        let due = |p: &Peer| (p.heard_at + fail).min(config.ask_at(self.number, p.heard_at, p.asked));
        self.peers.values().map(due).fold(looks.min(self.again_at), Instant::min)
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print
            .add(&(self.number, self.lost, self.backup, self.told, self.repeats, self.introduce, self.is_said))
            .add(&self.last)
            .add(&self.vouched)
            .add(&(self.again_later, self.greets_in));
        print.instant(self.again_at);
        match self.role {
            Role::Looks(until) => print.instant(until),
            Role::Follows(leader) => _ = print.add(&(1, leader)),
            Role::Leads => _ = print.add(&2),
        }
        for (slot, peer) in &self.peers {
            print.add(slot).add(&(peer.pulse, peer.upto, peer.applied, peer.from, peer.tries, peer.asked));
            [peer.heard_at, peer.lags_since, peer.differs_since, peer.polled_at]
                .iter()
                .for_each(|&at| print.instant(at));
        }
    }
}
