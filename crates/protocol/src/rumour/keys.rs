//! The cluster's keys as replicated state: the ring with the higher epoch is the newer one.
//!
//! Whoever changes the ring raises the epoch. Two changes at the same time have the same epoch; the higher digest wins at
//! all members alike, and whoever made the other change sees that its own is not there.
//!
//! ```text
//! 0  8 epoch   8  1 count   each: 1 id, 32 key
//! ```

use phalanx_core::Fingerprint;
use phalanx_core::rng::mix;

/// The epoch of keys that were never changed.
pub const FIRST: u64 = 1;
/// No epoch is higher: whatever a peer says, the next one can still be written and read.
const EPOCH_MAX: u64 = 1 << 62;
const KEY: usize = 33;

/// The keys of a cluster, as people gave them: the first one seals.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Keys {
    /// Grows with each change.
    pub epoch: u64,
    /// Id and key.
    pub keys: Vec<(u8, [u8; 32])>,
}

impl std::fmt::Debug for Keys {
    /// Keys are nobody's business.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Keys(epoch {}, ids {:?})", self.epoch, self.keys.iter().map(|k| k.0).collect::<Vec<_>>())
    }
}

/// Why a change of keys was refused. They are as they were.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ChangeError {
    /// There is no such key.
    #[error("there is no key {0}: see `phalanx keys ls`")]
    Missing(u8),
    /// It is the one that seals.
    #[error("key {0} is in use: let another one seal first, with `phalanx keys use ID`")]
    InUse(u8),
    /// That id is there.
    #[error("key {0} is there already")]
    Taken(u8),
    /// The epoch cannot grow any more: a member with a key set it so.
    #[error("the keys cannot be changed any more: start the cluster with new ones")]
    Worn,
    /// There are too many.
    #[error(
        "a ring holds at most {} keys: remove an old one first, with `phalanx keys rm ID`",
        crate::link::seal::RING_MAX
    )]
    Full,
}

impl Keys {
    /// A cluster's first key.
    #[must_use]
    pub fn first(id: u8, key: [u8; 32]) -> Self {
        Self { epoch: FIRST, keys: vec![(id, key)] }
    }

    /// True when these replace `other`.
    #[must_use]
    pub fn is_newer_than(&self, other: &Self) -> bool {
        (self.epoch, self.digest()) > (other.epoch, other.digest())
    }

    /// Equal keys have equal digests. It says nothing about them.
    #[must_use]
    pub fn digest(&self) -> u64 {
        // Ids and their order; of each key a few mixed bits, which cannot be undone.
        self.keys.iter().fold(0, |digest, (id, key)| {
            let (chunks, _) = key.as_chunks::<8>();
            let folded = chunks.iter().fold(u64::from(*id), |h, c| mix(h ^ u64::from_le_bytes(*c)));
            mix(digest ^ (folded >> 40))
        })
    }

    /// With another key, that opens and does not seal yet.
    ///
    /// # Errors
    /// `Taken` or `Full`.
    pub fn with(&self, id: u8, key: [u8; 32]) -> Result<Self, ChangeError> {
        if self.keys.iter().any(|k| k.0 == id) {
            return Err(ChangeError::Taken(id));
        }
        if self.keys.len() >= crate::link::seal::RING_MAX {
            return Err(ChangeError::Full);
        }
        let mut keys = self.keys.clone();
        keys.push((id, key));
        self.changed(keys)
    }

    /// Sealed with key `id`.
    ///
    /// # Errors
    /// `Missing`.
    pub fn sealing(&self, id: u8) -> Result<Self, ChangeError> {
        let at = self.keys.iter().position(|k| k.0 == id).ok_or(ChangeError::Missing(id))?;
        let mut keys = self.keys.clone();
        keys[..=at].rotate_right(1);
        self.changed(keys)
    }

    /// Without key `id`.
    ///
    /// # Errors
    /// `Missing` or `InUse`.
    pub fn without(&self, id: u8) -> Result<Self, ChangeError> {
        match self.keys.iter().position(|k| k.0 == id) {
            None => Err(ChangeError::Missing(id)),
            Some(0) => Err(ChangeError::InUse(id)),
            Some(at) => {
                let mut keys = self.keys.clone();
                keys.remove(at);
                self.changed(keys)
            }
        }
    }

    fn changed(&self, keys: Vec<(u8, [u8; 32])>) -> Result<Self, ChangeError> {
        let epoch = self.epoch + 1;
        if epoch > EPOCH_MAX { Err(ChangeError::Worn) } else { Ok(Self { epoch, keys }) }
    }

    pub(super) fn write(&self) -> Vec<u8> {
        let mut bytes = self.epoch.to_le_bytes().to_vec();
        bytes.push(self.keys.len() as u8);
        for (id, key) in &self.keys {
            bytes.push(*id);
            bytes.extend_from_slice(key);
        }
        bytes
    }

    /// `None` when there are none, too many, or two with one id: such a ring would lock us out; or after the last epoch.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let (epoch, rest) = bytes.split_first_chunk()?;
        let (&count, rest) = rest.split_first()?;
        let count = usize::from(count);
        let (keys, _) = rest.get(..count * KEY)?.as_chunks::<KEY>();
        let keys: Vec<(u8, [u8; 32])> = keys.iter().map(|k| (k[0], std::array::from_fn(|i| k[1 + i]))).collect();
        let distinct = keys.iter().enumerate().all(|(i, k)| keys[..i].iter().all(|other| other.0 != k.0));
        let fits = (1..=crate::link::seal::RING_MAX).contains(&count);
        let epoch = u64::from_le_bytes(*epoch);
        (fits && distinct && epoch <= EPOCH_MAX).then_some(Self { epoch, keys })
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&(self.epoch, &self.keys));
    }
}

pub(super) fn write_epoch(epoch: u64, digest: u64) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&epoch.to_le_bytes());
    bytes[8..].copy_from_slice(&digest.to_le_bytes());
    bytes
}

pub(super) fn read_epoch(bytes: &[u8]) -> Option<(u64, u64)> {
    let (epoch, rest) = bytes.split_first_chunk()?;
    Some((u64::from_le_bytes(*epoch), u64::from_le_bytes(*rest.first_chunk()?))).filter(|e| e.0 <= EPOCH_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        Keys::first(1, [1; 32])
    }

    #[test]
    fn each_change_is_newer_and_is_read_as_it_was_written() {
        let two = keys().with(2, [2; 32]).unwrap();
        let other = two.sealing(2).unwrap();
        let last = other.without(1).unwrap();
        assert_eq!(last.keys, [(2, [2; 32])]);
        for pair in [keys(), two, other, last].windows(2) {
            assert!(pair[1].is_newer_than(&pair[0]) && !pair[0].is_newer_than(&pair[1]));
            assert_eq!(Keys::read(&pair[1].write()).as_ref(), Some(&pair[1]));
        }
        assert_eq!(read_epoch(&write_epoch(3, 4)), Some((3, 4)));
    }

    #[test]
    fn of_two_changes_at_once_everybody_takes_the_same() {
        let (a, b) = (keys().with(2, [2; 32]).unwrap(), keys().with(2, [3; 32]).unwrap());
        assert!(a.is_newer_than(&b) != b.is_newer_than(&a));
        assert!(!a.is_newer_than(&a.clone()));
    }

    #[test]
    fn changes_that_would_lock_somebody_out_are_refused() {
        assert_eq!(keys().without(1), Err(ChangeError::InUse(1)));
        assert_eq!(keys().without(7), Err(ChangeError::Missing(7)));
        assert_eq!(keys().sealing(7), Err(ChangeError::Missing(7)));
        assert_eq!(keys().with(1, [0; 32]), Err(ChangeError::Taken(1)));
        let full = (2..=8).fold(keys(), |k, id| k.with(id, [id; 32]).unwrap());
        assert_eq!(full.with(9, [9; 32]), Err(ChangeError::Full));
        let worn = Keys { epoch: EPOCH_MAX, ..keys() };
        assert_eq!(worn.with(2, [2; 32]), Err(ChangeError::Worn));
    }

    #[test]
    fn rings_that_make_no_sense_are_not_read() {
        let twice = Keys { epoch: 2, keys: vec![(1, [1; 32]), (1, [2; 32])] };
        assert_eq!(Keys::read(&twice.write()), None);
        assert_eq!(Keys::read(&Keys { epoch: 2, keys: Vec::new() }.write()), None);
        let many = Keys { epoch: 2, keys: (1..=9).map(|id| (id, [id; 32])).collect() };
        assert_eq!(Keys::read(&many.write()), None);
        let whole = keys().write();
        assert!((0..whole.len()).all(|end| Keys::read(&whole[..end]).is_none()));
    }
}
