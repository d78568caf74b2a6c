//! What must hold of an atomic multicast, as checkers that see only what applications see.
//!
//! MM-3: agreement and total order (an index holds the same message everywhere, across restarts, and nobody skips
//! one), no duplicates, no creation, first-in-first-out for each origin, validity, durability.

use super::{MEMBERS_BOUND, Member, Origin};
use std::collections::BTreeMap;

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Violation {
    /// Two messages at one index.
    Disagreement { index: u64 },
    /// A member delivered backwards, or the same index twice.
    Disorder { member: Member, index: u64 },
    /// A member went past an index that holds a message.
    Skipped { member: Member, index: u64 },
    /// One message at two indexes.
    Duplicate { origin: Origin },
    /// A message that nobody submitted, or with other bytes.
    Created { origin: Origin },
    /// A message out of its origin's order.
    NotFifo { origin: Origin },
    /// A message of a member that never crashed since is nowhere.
    Lost { origin: Origin },
    /// A member lacks what was delivered elsewhere.
    Behind { member: Member, at: u64, of: u64 },
}

#[derive(Clone, Default)]
pub(super) struct Checks {
    submitted: BTreeMap<Origin, Vec<u8>>,
    order: BTreeMap<u64, Origin>,
    index_of: BTreeMap<Origin, u64>,
    latest: BTreeMap<Member, Origin>,
    position: [u64; MEMBERS_BOUND],
}

impl Checks {
    pub(super) fn submitted(&mut self, origin: Origin, message: &[u8]) {
        self.submitted.insert(origin, message.to_vec());
    }

    /// A member's application starts from the state that holds all up to `index`.
    pub(super) fn placed(&mut self, member: Member, index: u64) {
        self.position[usize::from(member.0)] = index;
    }

    pub(super) fn position(&self, member: Member) -> u64 {
        self.position[usize::from(member.0)]
    }

    pub(super) fn delivered(&mut self, m: Member, index: u64, origin: Origin, message: &[u8]) -> Result<(), Violation> {
        let before = self.position(m);
        if index <= before {
            return Err(Violation::Disorder { member: m, index });
        }
        if let Some((&index, _)) = self.order.range(before + 1..index).next() {
            return Err(Violation::Skipped { member: m, index });
        }
        self.placed(m, index);
        match self.order.get(&index) {
            Some(&there) if there != origin => return Err(Violation::Disagreement { index }),
            Some(_) => {}
            None => self.entered(index, origin)?,
        }
        if self.submitted.get(&origin).map(Vec::as_slice) != Some(message) {
            return Err(Violation::Created { origin });
        }
        Ok(())
    }

    /// Somebody is the first to deliver at `index`.
    fn entered(&mut self, index: u64, origin: Origin) -> Result<(), Violation> {
        if let Some(m) = (0..MEMBERS_BOUND).find(|&m| self.position[m] > index) {
            return Err(Violation::Skipped { member: Member(m as u8), index });
        }
        if self.index_of.insert(origin, index).is_some() {
            return Err(Violation::Duplicate { origin });
        }
        let follows = |last: &Origin| (origin.boot, origin.seq) == (last.boot, last.seq + 1);
        let begins = |last: Option<&Origin>| origin.seq == 0 && last.is_none_or(|l| l.boot < origin.boot);
        let last = self.latest.get(&origin.member);
        if !(last.is_some_and(follows) || begins(last)) {
            return Err(Violation::NotFifo { origin });
        }
        self.latest.insert(origin.member, origin);
        self.order.insert(index, origin);
        Ok(())
    }

    /// After healing: each member, with the boot it is in, has everything, and nothing of these boots is missing.
    pub(super) fn complete(&self, boots: &[u64]) -> Result<(), Violation> {
        for &origin in self.submitted.keys() {
            if boots[usize::from(origin.member.0)] == origin.boot && !self.index_of.contains_key(&origin) {
                return Err(Violation::Lost { origin });
            }
        }
        let of = self.order.last_key_value().map_or(0, |(&i, _)| i);
        for m in 0..boots.len() {
            if self.position[m] < of {
                return Err(Violation::Behind { member: Member(m as u8), at: self.position[m], of });
            }
        }
        Ok(())
    }

    pub(super) fn messages(&self) -> usize {
        self.order.len()
    }
}

/// Each checker sees the violation planted for it.
mod tests {
    use super::*;

    fn origin(member: u8, boot: u64, seq: u64) -> Origin {
        Origin { member: Member(member), boot, seq }
    }

    /// Submitted: `a0 a1` by member 0, `b0` by member 1. Delivered by member 0: `a0` at 1.
    fn begun() -> Checks {
        let mut checks = Checks::default();
        for (o, m) in [(origin(0, 1, 0), b"a0"), (origin(0, 1, 1), b"a1"), (origin(1, 1, 0), b"b0")] {
            checks.submitted(o, m);
        }
        assert_eq!(checks.delivered(Member(0), 1, origin(0, 1, 0), b"a0"), Ok(()));
        checks
    }

    #[test]
    fn disagreement_is_caught() {
        let caught = begun().delivered(Member(1), 1, origin(1, 1, 0), b"b0");
        assert_eq!(caught, Err(Violation::Disagreement { index: 1 }));
        let mut restarted = begun();
        restarted.placed(Member(0), 0);
        assert_eq!(restarted.delivered(Member(0), 1, origin(0, 1, 0), b"a0"), Ok(()), "the same again is right");
        restarted.placed(Member(0), 0);
        assert!(restarted.delivered(Member(0), 1, origin(1, 1, 0), b"b0").is_err(), "another is not");
    }

    #[test]
    fn disorder_is_caught() {
        let again = begun().delivered(Member(0), 1, origin(0, 1, 0), b"a0");
        assert_eq!(again, Err(Violation::Disorder { member: Member(0), index: 1 }));
    }

    #[test]
    fn skipping_is_caught_on_both_sides() {
        let mut checks = begun();
        let over = checks.delivered(Member(1), 2, origin(0, 1, 1), b"a1");
        assert_eq!(over, Err(Violation::Skipped { member: Member(1), index: 1 }));
        let mut checks = begun();
        assert_eq!(checks.delivered(Member(0), 5, origin(0, 1, 1), b"a1"), Ok(()));
        assert_eq!(checks.delivered(Member(1), 1, origin(0, 1, 0), b"a0"), Ok(()));
        let between = checks.delivered(Member(1), 3, origin(1, 1, 0), b"b0");
        assert_eq!(between, Err(Violation::Skipped { member: Member(0), index: 3 }));
    }

    #[test]
    fn duplicates_and_inventions_are_caught() {
        let twice = begun().delivered(Member(0), 2, origin(0, 1, 0), b"a0");
        assert_eq!(twice, Err(Violation::Duplicate { origin: origin(0, 1, 0) }));
        let nobodys = begun().delivered(Member(0), 2, origin(2, 1, 0), b"c0");
        assert_eq!(nobodys, Err(Violation::Created { origin: origin(2, 1, 0) }));
        let altered = begun().delivered(Member(0), 2, origin(1, 1, 0), b"b9");
        assert_eq!(altered, Err(Violation::Created { origin: origin(1, 1, 0) }));
    }

    #[test]
    fn an_origins_order_is_watched() {
        let mut gap = Checks::default();
        gap.submitted(origin(0, 1, 1), b"a1");
        let first = gap.delivered(Member(0), 1, origin(0, 1, 1), b"a1");
        assert_eq!(first, Err(Violation::NotFifo { origin: origin(0, 1, 1) }));
        let mut old = Checks::default();
        old.submitted(origin(0, 2, 0), b"new");
        assert_eq!(old.delivered(Member(0), 1, origin(0, 2, 0), b"new"), Ok(()));
        let dead = old.delivered(Member(0), 2, origin(0, 1, 0), b"old");
        assert_eq!(dead, Err(Violation::NotFifo { origin: origin(0, 1, 0) }));
    }

    #[test]
    fn what_is_missing_at_the_end_is_caught() {
        let mut checks = begun();
        assert_eq!(checks.complete(&[1, 1]), Err(Violation::Lost { origin: origin(0, 1, 1) }));
        assert_eq!(checks.complete(&[2, 2]), Err(Violation::Behind { member: Member(1), at: 0, of: 1 }));
        assert_eq!(checks.delivered(Member(1), 1, origin(0, 1, 0), b"a0"), Ok(()));
        assert_eq!(checks.complete(&[2, 2]), Ok(()), "messages of a boot that crashed may be lost");
    }
}
