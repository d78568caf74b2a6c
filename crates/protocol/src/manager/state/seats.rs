//! The replicas, and when one moves.
//!
//! CM-1, CM-3. The state decides that a replica moves, as it decides everything else; the move ends the epoch, and who carries it out tells the
//! state of the next one. There is at most one move in an epoch.
//! - Two replicas accuse the third: it moves at once.
//! - The node of a replica is gone: after [`SEAT_PATIENCE_MS`] it moves. One zone's word is no proof, but nothing is lost by a needless move.
//! - A group of one becomes a group of three when there are three nodes.
//! - While a new replica takes the state from the two others, no seat but its own moves: with one state alone nobody could say whether it is right.

use super::{Decision, Key, State};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Replicas of a full group.
pub const SEATS: usize = 3;
/// How long the node of a replica may be gone before another one takes its place.
pub const SEAT_PATIENCE_MS: u64 = 5_000;

/// The group of replicas.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub(super) struct Seats {
    epoch: u32,
    seats: Vec<Key>,
    /// Those that began without a state, and have not said that they have it.
    fresh: BTreeSet<Key>,
    /// Who accuses whom.
    accused: BTreeMap<Key, BTreeSet<Key>>,
    /// A change was decided: nothing more is in this epoch.
    changes: bool,
}

impl State {
    /// An epoch begins with this group; `fresh` begin without a state.
    pub fn grouped(&mut self, epoch: u32, seats: &[Key], fresh: &[Key]) {
        let fresh = fresh.iter().copied().collect();
        self.seats = Seats { epoch, seats: seats.to_vec(), fresh, ..Seats::default() };
    }

    /// The replicas that began without a state in this epoch, and have not said that they have it.
    #[must_use]
    pub fn fresh(&self) -> &BTreeSet<Key> {
        &self.seats.fresh
    }

    pub(super) fn on_arrived(&mut self, by: Key, epoch: u32) {
        if epoch == self.seats.epoch {
            self.seats.fresh.remove(&by);
        }
    }

    /// Two states at least stay.
    fn may_move(&self, from: &Key) -> bool {
        !self.seats.changes && (self.seats.fresh.is_empty() || self.seats.fresh.contains(from))
    }

    /// The replicas, in the order of their seats.
    #[must_use]
    pub fn seats(&self) -> &[Key] {
        &self.seats.seats
    }

    /// Which composition of the group this is.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.seats.epoch
    }

    pub(super) fn on_accused(&mut self, by: Key, whom: Key, epoch: u32) {
        let sits = |key: &Key| self.seats.seats.contains(key);
        if epoch == self.seats.epoch && by != whom && sits(&by) && sits(&whom) {
            self.seats.accused.entry(whom).or_default().insert(by);
        }
    }

    /// Somebody wants a replica elsewhere.
    pub(super) fn on_move(&mut self, from: &str, to: &str, out: &mut Vec<Decision>) -> Result<(), String> {
        if self.seats.changes {
            return Err(
                "the group of replicas is changing: try again when `phalanx managers` shows the next epoch".into()
            );
        }
        let Some(old) = self.named(from)?.into_iter().find(|key| self.seats.seats.contains(key)) else {
            let names: Vec<String> = self.seats.seats.iter().map(|key| self.name_of(key)).collect();
            return Err(format!("{from} has no replica: they are on {}", names.join(", ")));
        };
        let new = self.named(to)?[0];
        if self.seats.seats.contains(&new) {
            return Err(format!("{to} has a replica already: name a node without one"));
        }
        if self.is_lost(&new) {
            return Err(format!("{to} is not there: name a node that is"));
        }
        if !self.may_move(&old) {
            let names: Vec<String> = self.seats.fresh.iter().map(|key| self.name_of(key)).collect();
            return Err(format!(
                "the replica on {} takes its state from the others still: try again",
                names.join(", ")
            ));
        }
        self.move_seat(old, new, out);
        Ok(())
    }

    /// Decides what the group needs.
    pub(super) fn settle_seats(&mut self, out: &mut Vec<Decision>) {
        if self.seats.changes || self.seats.seats.is_empty() {
            return;
        }
        let most = self.seats.seats.len() / 2;
        let wrong = self.seats.accused.iter().find(|(whom, by)| by.len() > most && self.may_move(whom));
        if let Some(&whom) = wrong.map(|(whom, _)| whom) {
            // Where there is nobody else: a new replica starts at the same node.
            let to = self.next_seat(Some(whom)).unwrap_or(whom);
            return self.move_seat(whom, to, out);
        }
        let is_gone = |key: &&Key| self.seat_due_ms(key).is_some_and(|ms| ms <= self.now_ms) && self.may_move(key);
        if let Some(from) = self.seats.seats.iter().find(is_gone).copied() {
            if let Some(to) = self.next_seat(Some(from)) {
                self.move_seat(from, to, out);
            }
            return;
        }
        if self.seats.seats.len() == 1 && self.nodes.len() >= SEATS {
            let Some(second) = self.next_seat(None) else { return };
            self.seats.seats.push(second);
            let third = self.next_seat(None);
            self.seats.seats.pop();
            let Some(third) = third else { return };
            self.seats.changes = true;
            out.push(Decision::Grow { with: [second.min(third), second.max(third)] });
        }
    }

    /// When somebody has to look after a replica whose node is gone.
    pub(super) fn seats_due_ms(&self) -> Option<u64> {
        let due = self.seats.seats.iter().filter_map(|key| self.seat_due_ms(key));
        // What was due and could not be done waits for a node, not for time.
        due.filter(|&ms| ms > self.now_ms && !self.seats.changes).min()
    }

    fn seat_due_ms(&self, seat: &Key) -> Option<u64> {
        self.nodes.get(seat)?.lost_ms.map(|ms| ms.saturating_add(SEAT_PATIENCE_MS))
    }

    fn move_seat(&mut self, from: Key, to: Key, out: &mut Vec<Decision>) {
        self.seats.changes = true;
        out.push(Decision::Move { from, to });
    }

    /// Who gets a seat when `leaving` goes: in a zone without replica when there is one, not a node that somebody wants empty; then the lowest key.
    fn next_seat(&self, leaving: Option<Key>) -> Option<Key> {
        let stay = self.seats.seats.iter().filter(|&&key| Some(key) != leaving);
        let zones: BTreeSet<&str> = stay.filter_map(|key| Some(&*self.nodes.get(key)?.info.zone)).collect();
        let there = self.nodes.iter().filter(|(key, node)| node.lost_ms.is_none() && !self.seats.seats.contains(key));
        there.min_by_key(|(key, node)| (zones.contains(&*node.info.zone), node.drained, **key)).map(|(key, _)| *key)
    }
}
