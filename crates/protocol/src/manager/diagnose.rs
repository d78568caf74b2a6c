//! Self-diagnosis: replicas compare what they have, and the one that differs goes.
//!
//! CM-3, 004 §2, §6.3. It begins when a replica missed two beats of another, when a beat or an agent shows a difference. Each signs what it
//! has after the same entry, and each passes on what the others signed: 004 §6.1, a replica that is heard by one and not by the other is
//! heard all the same. Then
//!
//! | we and the two others | verdict |
//! |---|---|
//! | all the same | nobody is wrong |
//! | one other is like us, one is not | that one is: we accuse it |
//! | the two others are alike, we are not | we are: we end |
//! | no two are alike | more than one is wrong: the group stops |
//! | one start of a replica signed two things, we and the other are the same | it is wrong |
//! | the same, and we and the other are not | it lied to both in the order, and nobody can say what is true: the group stops |
//!
//! Two conflicting signatures alone would not have to stop anything: a memory that goes bad while nothing happens signs two things, too.
//! ⚠ A replica may sign other things after it started again: what was wrong in its memory may be right on its disk. That is no lie.

use super::group::{Group, Proof};
use super::wire::{Statement, Sworn};
use super::words::Key;
use crate::link::sign::{Signer, Verifier};
use phalanx_core::{Duration, Instant};
use std::collections::BTreeMap;

/// Entries after which statements are remembered.
const CASES_MAX: usize = 16;
/// Who has not said what it has is asked again, so often.
const ASK: Duration = Duration::from_millis(250);
/// And no more after so many questions: it is silent, which is another matter.
const ASKS_MAX: u8 = 20;

/// What comes of a comparison.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// That one differs from us and the third.
    Wrong(Key),
    /// We differ from both others.
    WeAreWrong,
    /// Nobody can say what is true; in words.
    Nobody(String),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Case {
    index: u64,
    asks: u8,
    ask_at: Instant,
}

/// What was sworn lately, and what is being looked into.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Doctor {
    epoch: u32,
    sworn: BTreeMap<u64, BTreeMap<Key, Sworn>>,
    case: Option<Case>,
    /// What contradicts itself, by who signed it.
    lies: BTreeMap<Key, (Sworn, Sworn)>,
}

impl Doctor {
    /// Nothing is known of an epoch yet.
    #[must_use]
    pub fn new(epoch: u32) -> Self {
        Self { epoch, ..Self::default() }
    }

    /// When it asks again.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.case.map_or(Instant::NEVER, |c| c.ask_at)
    }

    /// Something is odd: what is there after that entry? True when that is not being looked into already.
    pub fn open(&mut self, index: u64, now: Instant) -> bool {
        let is_new = self.case.is_none();
        if is_new {
            self.case = Some(Case { index, asks: 0, ask_at: now });
        }
        is_new
    }

    /// The entry after which all are compared, when it is time to ask.
    pub fn due(&mut self, now: Instant) -> Option<u64> {
        let case = self.case.as_mut().filter(|c| now >= c.ask_at)?;
        case.asks += 1;
        case.ask_at = now + ASK;
        let index = case.index;
        if case.asks > ASKS_MAX {
            self.case = None;
            return None;
        }
        Some(index)
    }

    /// What is known of the entry, and who lied about any.
    #[must_use]
    pub fn known(&self, index: u64) -> Vec<Sworn> {
        let sworn = self.sworn.get(&index).into_iter().flat_map(|all| all.values().copied());
        sworn.chain(self.lies.values().flat_map(|(one, other)| [*one, *other])).collect()
    }

    /// A replica says what it has; its signature was checked. True when that is new. What contradicts an earlier word is kept beside it.
    pub fn on_sworn(&mut self, sworn: Sworn) -> bool {
        if sworn.statement.epoch != self.epoch {
            return false;
        }
        let all = self.sworn.entry(sworn.statement.index).or_default();
        let is_new = match all.get(&sworn.by) {
            Some(first) if first.boot == sworn.boot && first.statement != sworn.statement => {
                let lie = (*first, sworn);
                self.lies.insert(sworn.by, lie).is_none()
            }
            // What it signed before it started again is on its way still, and would be news for ever.
            Some(later) if later.boot > sworn.boot => false,
            _ => all.insert(sworn.by, sworn) != Some(sworn),
        };
        while self.sworn.len() > CASES_MAX {
            // The one that is looked into stays.
            let case = self.case.map(|c| c.index);
            let Some(&oldest) = self.sworn.keys().find(|k| Some(**k) != case) else { break };
            self.sworn.remove(&oldest);
        }
        is_new
    }

    /// Compares all that was sworn about the entry that is looked into.
    pub fn judge(&mut self, me: Key, group: &Group) -> Option<Verdict> {
        let index = self.case?.index;
        let all = self.sworn.get(&index)?;
        let ours = all.get(&me)?.statement;
        let (mut others, mut liars) = (Vec::new(), Vec::new());
        for key in group.keys().filter(|k| *k != me) {
            match all.get(&key) {
                _ if self.lies.contains_key(&key) => liars.push(key),
                Some(sworn) => others.push((key, sworn.statement)),
                None => {}
            }
        }
        if others.len() + liars.len() + 1 < group.seats.len() {
            return None;
        }
        self.case = None;
        let like_us = others.iter().filter(|(_, s)| *s == ours).count() + 1;
        if like_us == group.seats.len() {
            return None;
        }
        if like_us >= group.majority() {
            let wrong = others.iter().find(|(_, s)| *s != ours).map(|(key, _)| *key);
            return wrong.or(liars.first().copied()).map(Verdict::Wrong);
        }
        let agree = |(_, s): &&(Key, Statement)| others.iter().filter(|(_, o)| o == s).count() >= group.majority();
        if others.iter().any(|o| agree(&o)) {
            return Some(Verdict::WeAreWrong);
        }
        let liar = liars.first().and_then(|liar| group.seats.iter().find(|s| s.key == *liar));
        Some(Verdict::Nobody(match liar {
            Some(liar) => format!(
                "the replica on {} signed two different states after one entry, and the others differ: nothing is decided any more; stop all \
                 daemons, keep the state directory of one replica that you trust, and start anew",
                liar.name
            ),
            None => format!(
                "no two replicas have the same state after entry {index}: nothing is decided any more; stop all daemons, keep the state \
                 directory of one replica that you trust, and start anew"
            ),
        }))
    }
}

impl Sworn {
    /// Signs what a replica has.
    #[must_use]
    pub fn new(statement: Statement, boot: u64, signer: &Signer, cluster: &str) -> Self {
        let proof = Proof::sign(signer, &context(cluster), &(statement, boot));
        Self { statement, boot, by: signer.identity().into(), proof }
    }

    /// True when who is named there signed it.
    #[must_use]
    pub fn holds(&self, verifier: Verifier, cluster: &str) -> bool {
        self.proof.holds(verifier, self.by, &context(cluster), &(self.statement, self.boot))
    }
}

fn context(cluster: &str) -> Vec<u8> {
    [b"phalanx statement ", cluster.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a replica signed before and after it started again goes round between the others, and comes to an end.
    #[test]
    fn what_was_signed_before_a_new_start_is_no_news() {
        let signer = Signer::fake(7);
        let sworn = |boot, digest| Sworn::new(Statement { epoch: 1, index: 6, digest, chain: 0 }, boot, &signer, "lab");
        let (before, after) = (sworn(1, 10), sworn(2, 20));
        let mut doctor = Doctor::new(1);
        assert!(doctor.on_sworn(before) && !doctor.on_sworn(before));
        assert!(doctor.on_sworn(after) && !doctor.on_sworn(after));
        assert!(!doctor.on_sworn(before), "older");
        assert_eq!(doctor.known(6), [after]);
    }
}
