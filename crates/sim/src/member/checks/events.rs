//! What one member says of another makes sense: it comes, then it goes, and what is gone stays gone.

use crate::check::{Checker, Verdict};
use crate::member::{Member, Note};
use phalanx_core::Instant;
use phalanx_protocol::member::{Engine, Version};
use std::collections::BTreeMap;

/// ZN-1: Joined and Left alternate exactly, for each observer and member, in each life of the observer; versions only
/// grow. ZN-2: what was removed never comes back in the same version.
#[derive(Default)]
pub struct Events {
    /// Baselines have no history: who is heard again is there again, in the version that it has.
    forgets: bool,
    /// What an observer last said of a member: it is in, and the highest version seen so far.
    said: BTreeMap<(u32, u32), (bool, Version)>,
    /// The newest incarnation that a node really had.
    started: BTreeMap<u32, u64>,
}

impl Events {
    /// For baselines: a version that was removed may come back, an older one may not.
    #[must_use]
    pub fn forgetful() -> Self {
        Self { forgets: true, ..Self::default() }
    }

    fn seen_by(&self, observer: u32) -> impl Iterator<Item = ((u32, u32), (bool, Version))> {
        self.said.range((observer, 0)..=(observer, u32::MAX)).map(|(&key, &said)| (key, said))
    }

    fn begin_anew(&mut self, observer: u32) {
        let gone: Vec<_> = self.seen_by(observer).map(|s| s.0).collect();
        gone.iter().for_each(|key| _ = self.said.remove(key));
    }

    fn on_joined(&mut self, observer: u32, node: u32, version: Version) -> Result<(), String> {
        if version.incarnation > self.started.get(&node).copied().unwrap_or(0) {
            return Err(format!("node {node} joined in version {version}, which it never had"));
        }
        match self.said.insert((observer, node), (true, version)) {
            Some((true, before)) => Err(format!("node {node} joined in version {version}, and was in as {before}")),
            Some((false, before)) if version < before || (version == before && !self.forgets) => {
                Err(format!("node {node} joined in version {version}, and was removed as {before}"))
            }
            _ => Ok(()),
        }
    }

    fn on_left(&mut self, observer: u32, node: u32, version: Version) -> Result<(), String> {
        match self.said.insert((observer, node), (false, version)) {
            Some((true, before)) if version < before => {
                Err(format!("node {node} left as {version}, and was in as {before}"))
            }
            Some((true, _)) => Ok(()),
            _ => Err(format!("node {node} left as {version}, and was not there")),
        }
    }
}

impl<E: Engine + Send> Checker<Member<E>> for Events {
    fn name(&self) -> &'static str {
        "events"
    }

    fn note(&mut self, _: Instant, observer: u32, note: &Note, verdict: &mut Verdict) {
        let said = match *note {
            Note::Started { incarnation } => {
                let before = self.started.insert(observer, incarnation);
                self.begin_anew(observer);
                match before {
                    Some(before) if before >= incarnation => Err(format!("started as {incarnation} after {before}")),
                    _ => Ok(()),
                }
            }
            // Should it come back, it meets there whom it left, as they were.
            Note::Moved => {
                let seen = self.seen_by(observer).find(|(_, said)| said.0).map(|((_, node), _)| node);
                self.begin_anew(observer);
                seen.map_or(Ok(()), |node| Err(format!("moved, and still sees node {node}")))
            }
            Note::Joined { node, version } => self.on_joined(observer, node, version),
            Note::Left { node, version, .. } => self.on_left(observer, node, version),
            _ => Ok(()),
        };
        if let Err(text) = said {
            verdict.violation(observer, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_protocol::member::Why;
    use phalanx_protocol::zone::Zone;

    fn says(checker: &mut Events, note: Note) -> Vec<String> {
        let mut verdict = Verdict::default();
        Checker::<Member<Zone>>::note(checker, Instant::ZERO, 0, &note, &mut verdict);
        verdict.violations.into_iter().map(|v| v.1).collect()
    }

    fn v(incarnation: u64, minor: u32) -> Version {
        Version { incarnation, minor }
    }

    fn joined(version: Version) -> Note {
        Note::Joined { node: 1, version }
    }

    fn left(version: Version) -> Note {
        Note::Left { node: 1, version, why: Why::Failed }
    }

    fn after(notes: &[Note], last: Note) -> Vec<String> {
        let mut checker = Events::default();
        checker.started.insert(1, 9);
        for &note in notes {
            assert_eq!(says(&mut checker, note), [""; 0]);
        }
        says(&mut checker, last)
    }

    #[test]
    fn what_makes_no_sense_is_caught() {
        assert!(after(&[joined(v(1, 1))], joined(v(1, 2)))[0].contains("was in as 1.1"));
        assert!(after(&[], left(v(1, 1)))[0].contains("was not there"));
        assert!(after(&[joined(v(1, 1)), left(v(1, 1))], left(v(1, 2)))[0].contains("was not there"));
        assert!(after(&[joined(v(2, 1)), left(v(2, 1))], joined(v(1, 7)))[0].contains("was removed as 2.1"));
        assert!(after(&[joined(v(2, 1)), left(v(2, 1))], joined(v(2, 1)))[0].contains("was removed as 2.1"));
        assert!(after(&[], joined(v(10, 1)))[0].contains("never had"));
        assert!(after(&[Note::Started { incarnation: 3 }], Note::Started { incarnation: 3 })[0].contains("after 3"));
    }

    #[test]
    fn a_baseline_may_take_back_the_same_version_and_no_older_one() {
        let mut checker = Events::forgetful();
        checker.started.insert(1, 9);
        for note in [joined(v(2, 1)), left(v(2, 1)), joined(v(2, 1)), left(v(2, 1))] {
            assert_eq!(says(&mut checker, note), [""; 0]);
        }
        assert!(says(&mut checker, joined(v(1, 1)))[0].contains("was removed as 2.1"));
    }

    #[test]
    fn who_moves_sees_all_leave_and_begins_anew() {
        assert!(after(&[joined(v(1, 1))], Note::Moved)[0].contains("still sees node 1"));
        assert_eq!(after(&[joined(v(1, 1)), left(v(1, 1)), Note::Moved], joined(v(1, 1))), [""; 0]);
    }

    #[test]
    fn a_new_life_of_the_observer_begins_anew() {
        let notes = [joined(v(2, 1)), left(v(2, 1)), joined(v(2, 2)), Note::Started { incarnation: 2 }];
        assert_eq!(after(&notes, joined(v(1, 1))), [""; 0]);
    }
}
