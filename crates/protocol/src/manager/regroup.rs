//! Taking the state of others: a replica that joins a group, or that fell behind.
//!
//! CM-3, 004 §2: "a new manager replica is restarted using the states of the remaining two". The bytes come from one of them; they are
//! believed when two have signed what these bytes hold. The one that asks has the initiative: it asks for the next piece until it has all,
//! elsewhere when nothing comes, and from the beginning when what it got is not what the others have.

use super::core::Core;
use super::group::Group;
use super::wire::{Packet, STATE_MAX, Statement};
use super::words::Key;
use crate::order::Mark;
use phalanx_core::{Duration, Instant};
use std::collections::BTreeMap;

/// A piece that did not come is asked for again.
pub const PATIENCE: Duration = Duration::from_millis(300);
/// Questions without an answer until somebody else is asked.
const TRIES: u8 = 4;

/// A state on its way here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Joining {
    epoch: u32,
    /// Where in the list of the others the bytes come from.
    from: usize,
    tries: u8,
    index: Option<u64>,
    total: u32,
    bytes: Vec<u8>,
    mark: Option<Mark>,
    sworn: BTreeMap<Key, Statement>,
    ask_at: Instant,
}

impl Joining {
    /// Nothing is here yet.
    #[must_use]
    pub fn new(epoch: u32, now: Instant) -> Self {
        Self {
            epoch,
            from: 0,
            tries: 0,
            index: None,
            total: 0,
            bytes: Vec::new(),
            mark: None,
            sworn: BTreeMap::new(),
            ask_at: now,
        }
    }

    /// Of which epoch.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// When it asks again.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.ask_at
    }

    /// Asks for what is missing.
    pub fn ask(&mut self, now: Instant, me: Key, group: &Group, sends: &mut Vec<(Key, Packet)>) {
        self.ask_at = now + PATIENCE;
        self.tries += 1;
        if self.tries > TRIES {
            self.begin_again();
        }
        let others: Vec<_> = group.keys().filter(|k| *k != me).collect();
        let Some(&from) = others.get(self.from % others.len().max(1)) else { return };
        let (epoch, index) = (self.epoch, self.index.unwrap_or(0));
        if self.index.is_none() || self.bytes.len() < self.total as usize {
            sends.push((from, Packet::Fetch { epoch, index, offset: self.bytes.len() as u32 }));
        }
        if let Some(index) = self.index {
            let silent = others.iter().filter(|k| !self.sworn.contains_key(k));
            sends.extend(silent.map(|&k| (k, Packet::Declare { epoch, index })));
        }
    }

    /// From the beginning, elsewhere.
    fn begin_again(&mut self) {
        let (from, ask_at) = (self.from + 1, self.ask_at);
        *self = Self { from, ask_at, ..Self::new(self.epoch, ask_at) };
    }

    /// A piece came. True when it was one that is missing.
    pub fn on_piece(&mut self, (epoch, index): (u32, u64), total: u32, offset: u32, mark: &[u8], bytes: &[u8]) -> bool {
        let fits = match self.index {
            None => offset == 0,
            Some(ours) => ours == index && offset as usize == self.bytes.len() && total == self.total,
        };
        let room = (total as usize).min(STATE_MAX).saturating_sub(self.bytes.len());
        if epoch != self.epoch || !fits || bytes.is_empty() || bytes.len() > room {
            return false;
        }
        let Ok(mark) = Mark::decode(mark) else { return false };
        if self.index.is_none() {
            self.sworn.retain(|_, s| s.index == index);
        }
        (self.index, self.total, self.mark) = (Some(index), total, Some(mark));
        self.bytes.extend_from_slice(bytes);
        self.tries = 0;
        // The next piece, at once.
        self.ask_at = Instant::ZERO;
        true
    }

    /// A replica says what it has; its signature was checked.
    pub fn on_sworn(&mut self, by: Key, statement: Statement) {
        if statement.epoch == self.epoch && self.index.is_none_or(|i| i == statement.index) {
            self.sworn.insert(by, statement);
        }
    }

    /// The state, when it is all here and enough others have the same.
    pub fn take(&mut self, me: Key, group: &Group) -> Option<(Core, Mark)> {
        if self.index.is_none() || self.bytes.len() < self.total as usize {
            return None;
        }
        let (Some(core), Some(mark)) = (Core::decode(&self.bytes), self.mark) else {
            self.begin_again();
            return None;
        };
        let statement = core.statement();
        let others = group.seats.len() - 1;
        let same = |key: &Key| *key != me && self.sworn.get(key) == Some(&statement);
        let witnesses = group.keys().filter(same).count();
        // Between the last entry in the state and the mark there are barriers of leaders only.
        let is_whole = Some(statement.index) == self.index && mark.place.index >= statement.index;
        if is_whole && witnesses >= group.witnesses().min(others) {
            return Some((core, mark));
        }
        if self.sworn.len() >= others || !is_whole {
            self.begin_again();
        }
        None
    }
}
