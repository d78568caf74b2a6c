//! Notes: what is known of maps whose owners are not in the view, not yet or not any more.
//!
//! Algorithm 2 has no words for a digest about a member that its receiver does not know. It happens all the time: news
//! of a member and news of its map leave at their own pace, and a neighbour may learn of a new incarnation before we
//! do. Digests are differential, so one that is thrown away is never repeated, and the map would be missing for as long
//! as its owner writes nothing. So it is noted and taken up when the member joins.
//!
//! Most notes are about members that are gone for good, and a hostile neighbour can make up any number. So notes are of
//! two generations: when the young ones are half of [`NOTES_MAX`], the old ones are forgotten and the young are the old.

use super::terms::NOTES_MAX;
use phalanx_core::{Fingerprint, Identity};
use std::collections::BTreeMap;

/// A life of a member, and the version up to which its map is to be had.
pub(super) type Claim = (u64, u64);

/// Claims about maps, by owner.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Notes {
    young: BTreeMap<Identity, Claim>,
    old: BTreeMap<Identity, Claim>,
}

impl Notes {
    /// Notes a claim; the later life, then the higher version wins. Says how many others were forgotten for it.
    pub(super) fn note(&mut self, identity: Identity, claim: Claim) -> usize {
        let claim = claim.max(self.old.remove(&identity).unwrap_or_default());
        let noted = self.young.entry(identity).or_default();
        *noted = claim.max(*noted);
        if self.young.len() < NOTES_MAX / 2 {
            return 0;
        }
        let forgotten = self.old.len();
        self.old = std::mem::take(&mut self.young);
        forgotten
    }

    /// The member is there, in this life: takes what is claimed of its map. Claims about later lives stay.
    pub(super) fn take(&mut self, identity: &Identity, incarnation: u64) -> Option<u64> {
        let generation = if self.young.contains_key(identity) { &mut self.young } else { &mut self.old };
        let claim = generation.get(identity).filter(|c| c.0 <= incarnation).copied()?;
        generation.remove(identity);
        (claim.0 == incarnation).then_some(claim.1)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.young.is_empty() && self.old.is_empty()
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&self.young).add(&self.old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(n: u32) -> Identity {
        let mut bytes = [0; 32];
        bytes[..4].copy_from_slice(&n.to_le_bytes());
        Identity(bytes)
    }

    #[test]
    fn the_latest_claim_of_the_present_life_is_taken_once() {
        let mut notes = Notes::default();
        for claim in [(1, 9), (2, 3), (2, 5), (2, 4)] {
            notes.note(identity(1), claim);
        }
        assert_eq!(notes.take(&identity(1), 1), None, "of a life that we do not see yet");
        assert_eq!((notes.take(&identity(1), 2), notes.take(&identity(1), 2)), (Some(5), None));
        notes.note(identity(1), (2, 5));
        assert_eq!(notes.take(&identity(1), 3), None, "a life that is over");
        assert!(notes.is_empty());
    }

    #[test]
    fn the_oldest_make_room() {
        let mut notes = Notes::default();
        let forgotten: usize = (0..10 * NOTES_MAX as u32).map(|n| notes.note(identity(n), (1, 1))).sum();
        let kept = notes.young.len() + notes.old.len();
        assert_eq!(kept + forgotten, 10 * NOTES_MAX);
        assert!((NOTES_MAX / 2..=NOTES_MAX).contains(&kept));
        assert_eq!(notes.take(&identity(10 * NOTES_MAX as u32 - 1), 1), Some(1), "the newest is there");
        assert_eq!(notes.take(&identity(0), 1), None);
    }
}
