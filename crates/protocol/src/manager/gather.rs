//! Reports of many agents, gathered on their way up.
//!
//! CM-2. Who was told a word by way of others ([`super::sheaf`]) reports what came of it the same way back: to who handed it the word, who waits
//! until all below have said something, or [`PATIENCE`], and hands all of it on as one. So the last one of all, for whom everything waits, waits
//! for nobody on its way up. Each replica is told by way of its own tree: an agent that dies keeps little from one of them only; what no replica
//! heard is said again by who has to say it, without a detour.

use super::wire::{Id, Packet, Telling};
use super::words::Key;
use phalanx_core::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet};

/// How long who is above waits for those who have said nothing yet.
pub const PATIENCE: Duration = Duration::from_millis(20);
/// The same for those who have, and may say more.
const AFTERWARDS: Duration = Duration::from_millis(1);
/// Words of which the way back is remembered.
pub const BOUGHS_MAX: usize = 512;
/// Reports that wait here, of all agents.
pub const WAITING_MAX: usize = 16 * 1024;
/// Reports in one packet: each costs its replica a check of a signature.
pub const PACKED_MAX: usize = 1024;

/// A place in the tree by which a replica's word came.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Bough {
    /// Who handed us the word, once it came.
    parent: Option<Key>,
    /// How many are told by way of us, ourselves included.
    below: usize,
    told: Vec<Telling>,
    /// Who has said something, until all have.
    heard: BTreeSet<Key>,
    complete: bool,
    since: Option<Instant>,
}

impl Bough {
    /// True once: all below have said something.
    fn becomes_complete(&mut self) -> bool {
        let all = self.parent.is_some() && !self.complete && self.heard.len() >= self.below;
        if all {
            (self.complete, self.heard) = (true, BTreeSet::new());
        }
        all
    }

    fn deadline(&self) -> Instant {
        self.since.map_or(Instant::NEVER, |at| at + if self.complete { AFTERWARDS } else { PATIENCE })
    }
}

/// Something to be said.
pub type Send = (Key, Packet);

/// What is gathered at one agent.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Gather {
    /// By decision and replica.
    boughs: BTreeMap<(Id, Key), Bough>,
    /// The ways back of decisions up to here may be forgotten.
    forgotten: Id,
    waiting: usize,
}

impl Gather {
    /// When something waits for long enough.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        if self.waiting == 0 {
            return Instant::NEVER;
        }
        self.boughs.values().map(Bough::deadline).min().unwrap_or(Instant::NEVER)
    }

    /// A replica's word came by way of `parent`, for so many. False when it came before.
    pub fn on_word(&mut self, (id, replica): (Id, Key), parent: Key, below: usize, sends: &mut Vec<Send>) -> bool {
        if id <= self.forgotten {
            return false;
        }
        let bough = self.boughs.entry((id, replica)).or_default();
        if bough.parent.is_some() {
            return false;
        }
        (bough.parent, bough.below) = (Some(parent), below);
        if bough.becomes_complete() {
            self.hand_on((id, replica), sends);
        }
        self.forget(sends);
        true
    }

    /// There is something to say to a replica. Past the bound it is dropped: it will be said again.
    pub fn say(&mut self, now: Instant, which: (Id, Key), told: Vec<Telling>, sends: &mut Vec<Send>) {
        if self.waiting + told.len() > WAITING_MAX || told.is_empty() {
            return;
        }
        self.waiting += told.len();
        let bough = self.boughs.entry(which).or_default();
        if !bough.complete {
            bough.heard.extend(told.iter().map(|t| t.from));
        }
        bough.told.extend(told);
        bough.since.get_or_insert(now);
        if bough.becomes_complete() {
            self.hand_on(which, sends);
        }
        self.forget(sends);
    }

    /// Others below have something to say to a replica. They have its word from us; where we have none of it, nobody has.
    pub fn pass_on(&mut self, now: Instant, which: (Id, Key), told: Vec<Telling>, sends: &mut Vec<Send>) {
        let is_known = self.boughs.get(&which).is_some_and(|bough| bough.parent.is_some());
        if is_known && told.len() <= PACKED_MAX {
            self.say(now, which, told, sends);
        }
    }

    /// What waited for long enough goes up with what there is.
    pub fn expire(&mut self, now: Instant, sends: &mut Vec<Send>) {
        let is_due = |b: &Bough| b.deadline() <= now;
        let due: Vec<_> = self.boughs.iter().filter(|(_, b)| is_due(b)).map(|(&which, _)| which).collect();
        due.into_iter().for_each(|which| self.hand_on(which, sends));
    }

    /// Straight to the replica when nobody handed us its word.
    fn hand_on(&mut self, which: (Id, Key), sends: &mut Vec<Send>) {
        let Some(bough) = self.boughs.get_mut(&which) else { return };
        let (id, replica) = which;
        self.waiting -= bough.told.len();
        for told in bough.told.chunks(PACKED_MAX) {
            let packet = Packet::Gathered { to: replica, id, told: told.to_vec() };
            sends.push((bough.parent.unwrap_or(replica), packet));
        }
        (bough.told, bough.since) = (Vec::new(), None);
    }

    fn forget(&mut self, sends: &mut Vec<Send>) {
        while self.boughs.len() > BOUGHS_MAX
            && let Some(&which) = self.boughs.keys().next()
        {
            self.hand_on(which, sends);
            self.boughs.remove(&which);
            self.forgotten = self.forgotten.max(which.0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::sign::Signer;
    use crate::manager::words::{Attempt, JobId, Report};

    fn telling(n: u64, number: u64) -> Telling {
        let report = Report::Cleared { attempt: Attempt { job: JobId(1), number: 0 }, life: 0 };
        Telling::new(1, number, report, &Signer::fake(n), "test")
    }

    fn key(n: u64) -> Key {
        Signer::fake(n).identity().into()
    }

    fn id(index: u64) -> Id {
        Id { epoch: 1, index, nth: 0 }
    }

    fn told(sends: &[Send]) -> Vec<(Key, usize)> {
        let count = |p: &Packet| if let Packet::Gathered { told, .. } = p { told.len() } else { 0 };
        sends.iter().map(|(to, p)| (*to, count(p))).collect()
    }

    #[test]
    fn what_all_below_said_goes_up_at_once_and_the_rest_in_time() {
        let (mut gather, mut sends, now) = (Gather::default(), Vec::new(), Instant(1));
        assert!(gather.on_word((id(5), key(9)), key(2), 3, &mut sends));
        assert!(!gather.on_word((id(5), key(9)), key(3), 3, &mut sends), "handed on once");
        gather.say(now, (id(5), key(9)), vec![telling(1, 1)], &mut sends);
        gather.say(now, (id(5), key(9)), vec![telling(4, 1), telling(4, 2)], &mut sends);
        assert!(sends.is_empty());
        gather.say(now, (id(5), key(9)), vec![telling(7, 1)], &mut sends);
        assert_eq!(told(&sends), [(key(2), 4)]);
        assert_eq!(gather.deadline(), Instant::NEVER);
        gather.say(now, (id(5), key(9)), vec![telling(7, 2)], &mut sends);
        gather.expire(now + AFTERWARDS, &mut sends);
        assert_eq!(told(&sends[1..]), [(key(2), 1)]);
    }

    #[test]
    fn the_last_one_waits_for_nobody() {
        let (mut gather, mut sends, now) = (Gather::default(), Vec::new(), Instant(1));
        gather.on_word((id(5), key(9)), key(2), 3, &mut sends);
        gather.say(now, (id(5), key(9)), vec![telling(1, 1), telling(4, 1)], &mut sends);
        gather.expire(now + PATIENCE, &mut sends);
        assert_eq!(told(&sends), [(key(2), 2)], "one of them is slow");
        gather.say(now + PATIENCE * 9, (id(5), key(9)), vec![telling(7, 1)], &mut sends);
        assert_eq!(told(&sends[1..]), [(key(2), 1)]);
    }

    #[test]
    fn a_word_that_comes_late_or_never_keeps_nobody_waiting() {
        let (mut gather, mut sends, now) = (Gather::default(), Vec::new(), Instant(1));
        gather.say(now, (id(5), key(9)), vec![telling(1, 1)], &mut sends);
        assert!(gather.on_word((id(5), key(9)), key(2), 1, &mut sends));
        assert_eq!(told(&sends), [(key(2), 1)], "it came while that waited");
        gather.say(now, (id(6), key(9)), vec![telling(1, 2)], &mut sends);
        gather.expire(now + PATIENCE, &mut sends);
        assert_eq!(told(&sends[1..]), [(key(9), 1)], "straight to the replica");
    }

    /// Who makes up words gets nobody to keep reports of them, or to forget the way back of true ones.
    #[test]
    fn reports_of_words_that_nobody_said_are_not_taken() {
        let (mut gather, mut sends) = (Gather::default(), Vec::new());
        assert!(gather.on_word((id(5), key(9)), key(2), 2, &mut sends));
        for n in 0..3 * BOUGHS_MAX as u64 {
            gather.pass_on(Instant(n), (id(1_000_000 + n), key(9)), vec![telling(1, 1)], &mut sends);
        }
        assert_eq!((sends.len(), gather.boughs.len(), gather.waiting), (0, 1, 0));
        assert!(gather.on_word((id(6), key(9)), key(2), 2, &mut sends), "the next is handed on");
        let many = vec![telling(1, 1); PACKED_MAX + 1];
        gather.pass_on(Instant(0), (id(5), key(9)), many, &mut sends);
        assert_eq!(gather.waiting, 0, "longer than anybody of us packs it");
        gather.pass_on(Instant(0), (id(5), key(9)), vec![telling(1, 1), telling(4, 1)], &mut sends);
        assert_eq!(told(&sends), [(key(2), 2)]);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let (mut gather, mut sends) = (Gather::default(), Vec::new());
        for n in 0..3 * BOUGHS_MAX as u64 {
            gather.say(Instant(n), (id(n + 1), key(9)), vec![telling(1, n + 1)], &mut sends);
        }
        assert_eq!((gather.boughs.len(), sends.len()), (BOUGHS_MAX, 2 * BOUGHS_MAX), "the oldest goes as it is");
        assert!(!gather.on_word((id(1), key(9)), key(2), 1, &mut sends), "nobody hands on what is long past");
        let many = vec![telling(1, 1); WAITING_MAX];
        gather.say(Instant(0), (id(9_999), key(9)), many, &mut sends);
        assert!(gather.waiting <= WAITING_MAX);
    }
}
