//! The seal: AES-256-GCM under keys that last for one session, from a ring that the cluster shares.
//!
//! Each start of a process draws a boot of 128 random bits. Keys derived from the ring:
//!
//! | traffic | derived from | why |
//! |---|---|---|
//! | hello | the sender's boot | the receiver knows nothing but the ring yet |
//! | group | the sender's boot | many receivers |
//! | data | both boots, both nonces of the handshake | a recording fits neither another boot nor another handshake |
//!
//! DESIGN.md asked for one subkey for each sender and start. A key for each session and direction costs one
//! derivation at the handshake and buys a dense counter (so a small replay window is enough), and no counter ever
//! starts again under a used key, not even when a peer was forgotten and met again.
//!
//! The simulator uses [`Suite::Fake`]: the same lengths and the same refusals at the cost of a hash. [`KeyRing::fake`]
//! is the only way to make one; nothing in the daemon calls it.

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf;
use phalanx_core::rng::mix;
use phalanx_core::{Boot, Fingerprint};
use phalanx_wire::outer::TAG;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;

/// Keys a ring holds at most: the old one, the new one, and room for a rotation that was interrupted.
pub const RING_MAX: usize = 8;

/// The cluster's keys. The first one seals; all open.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyRing {
    suite: Suite,
    keys: Vec<(u8, [u8; 32])>,
}

/// Which cryptography a ring uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Suite {
    Aes,
    Fake,
}

/// Why a ring could not be changed; it stays as it was.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RingError {
    /// Key ids are how packets name keys: remove the old one first.
    #[error("key id {0} is in the ring already: remove it first, or choose another id")]
    Taken(u8),
    /// No such key.
    #[error("key id {0} is not in the ring: see the ids with `keys ls`")]
    Missing(u8),
    /// The sealing key cannot go.
    #[error("key id {0} seals: use another key first")]
    InUse(u8),
    /// The ring is full.
    #[error("a ring holds at most {RING_MAX} keys: remove one first")]
    Full,
}

impl KeyRing {
    /// A ring of one key.
    #[must_use]
    pub fn new(id: u8, key: [u8; 32]) -> Self {
        Self { suite: Suite::Aes, keys: vec![(id, key)] }
    }

    /// A ring for simulated networks: seals are cheap hashes. Offers no secrecy at all.
    #[must_use]
    pub fn fake(id: u8, seed: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        Self { suite: Suite::Fake, keys: vec![(id, key)] }
    }

    /// The id of the key that seals.
    #[must_use]
    pub fn sealing(&self) -> u8 {
        self.keys[0].0
    }

    /// All key ids, the sealing one first.
    pub fn ids(&self) -> impl Iterator<Item = u8> + '_ {
        self.keys.iter().map(|k| k.0)
    }

    /// The id of a key, the sealing one first, each once before the first comes again.
    pub(crate) fn by_turns(&self, turn: usize) -> u8 {
        self.keys[turn % self.keys.len()].0
    }

    /// Adds a key that opens but does not seal yet.
    ///
    /// # Errors
    /// `Taken` or `Full`.
    pub fn add(&mut self, id: u8, key: [u8; 32]) -> Result<(), RingError> {
        if self.ids().any(|k| k == id) {
            return Err(RingError::Taken(id));
        }
        if self.keys.len() >= RING_MAX {
            return Err(RingError::Full);
        }
        self.keys.push((id, key));
        Ok(())
    }

    /// Seals with key `id` from now on.
    ///
    /// # Errors
    /// `Missing`.
    pub fn seal_with(&mut self, id: u8) -> Result<(), RingError> {
        let at = self.ids().position(|k| k == id).ok_or(RingError::Missing(id))?;
        self.keys.swap(0, at);
        Ok(())
    }

    /// Removes a key that does not seal.
    ///
    /// # Errors
    /// `Missing` or `InUse`.
    pub fn remove(&mut self, id: u8) -> Result<(), RingError> {
        let at = self.ids().position(|k| k == id);
        match at {
            None => Err(RingError::Missing(id)),
            Some(0) => Err(RingError::InUse(id)),
            Some(at) => {
                self.keys.remove(at);
                Ok(())
            }
        }
    }

    /// True when `other` has the same key under `id`.
    pub(crate) fn agrees(&self, other: &Self, id: u8) -> bool {
        let key = |ring: &Self| ring.keys.iter().find(|k| k.0 == id).map(|k| k.1);
        key(self).is_some() && key(self) == key(other)
    }

    /// The cipher for hellos from `boot` under key `id`.
    pub(crate) fn hello(&self, id: u8, boot: &Boot) -> Option<Cipher> {
        self.derive(id, b"phalanx hello", &[&boot.0])
    }

    /// The cipher for group datagrams from `boot` under key `id`.
    pub(crate) fn group(&self, id: u8, boot: &Boot) -> Option<Cipher> {
        self.derive(id, b"phalanx group", &[&boot.0])
    }

    /// The cipher for one direction of a session under key `id`.
    pub(crate) fn data(&self, id: u8, from: &Boot, to: &Boot, from_nonce: u64, to_nonce: u64) -> Option<Cipher> {
        let (from_nonce, to_nonce) = (from_nonce.to_le_bytes(), to_nonce.to_le_bytes());
        self.derive(id, b"phalanx data", &[&from.0, &to.0, &from_nonce, &to_nonce])
    }

    /// Proves to whoever has the ring that we have its key `id`, and that we speak of `what`, which must hold something
    /// that the other side drew just now. `None` without that key.
    #[must_use]
    pub fn prove(&self, id: u8, what: &[u8]) -> Option<[u8; TAG]> {
        Some(self.derive(id, b"phalanx proof", &[what])?.seal(0, &[], &mut []))
    }

    /// True when `proof` is what [`KeyRing::prove`] says.
    #[must_use]
    pub fn is_proved(&self, id: u8, what: &[u8], proof: &[u8; TAG]) -> bool {
        let mut sealed = *proof;
        self.derive(id, b"phalanx proof", &[what]).is_some_and(|cipher| cipher.open(0, &[], &mut sealed).is_some())
    }

    fn derive(&self, id: u8, label: &[u8], context: &[&[u8]]) -> Option<Cipher> {
        let key = &self.keys.iter().find(|k| k.0 == id)?.1;
        Some(match self.suite {
            Suite::Aes => Cipher::Aes(Arc::new(AesKey::derive(key, label, context))),
            Suite::Fake => {
                let mut state = fake_hash(0, key);
                state = fake_hash(state, label);
                Cipher::Fake(context.iter().fold(state, |s, part| fake_hash(s, part)))
            }
        })
    }
}

/// The key of a cluster with this name: who has the same key and another name stays outside. Without a name, the key itself.
#[must_use]
pub fn cluster_key(key: &[u8; 32], cluster: &str) -> [u8; 32] {
    if cluster.is_empty() { *key } else { AesKey::derive(key, b"phalanx cluster", &[cluster.as_bytes()]).bytes }
}

impl fmt::Debug for KeyRing {
    /// Ids only: keys do not belong into logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ids()).finish()
    }
}

/// A derived key. Cheap to clone; equal when the key is.
///
/// One byte for the tag: with a larger one, the compiler would find in it the best place for the `None` of an optional
/// link, and whoever asks whether there is one would touch a cache line that nobody else needs.
#[derive(Clone, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Cipher {
    Aes(Arc<AesKey>),
    Fake(u64),
}

pub(crate) struct AesKey {
    bytes: [u8; 32],
    key: LessSafeKey,
}

impl PartialEq for AesKey {
    fn eq(&self, other: &Self) -> bool {
        self.bytes == other.bytes
    }
}

impl Eq for AesKey {}

impl AesKey {
    fn derive(key: &[u8; 32], label: &[u8], context: &[&[u8]]) -> Self {
        let mut info = Vec::with_capacity(64);
        info.extend_from_slice(label);
        context.iter().for_each(|part| info.extend_from_slice(part));
        let mut bytes = [0; 32];
        hkdf::Salt::new(hkdf::HKDF_SHA256, &[])
            .extract(key)
            .expand(&[&info], &AES_256_GCM)
            .and_then(|okm| okm.fill(&mut bytes))
            .expect("32 bytes are a valid length for HKDF-SHA256");
        let key = UnboundKey::new(&AES_256_GCM, &bytes).expect("32 bytes are an AES-256 key");
        Self { bytes, key: LessSafeKey::new(key) }
    }
}

impl Cipher {
    /// Encrypts `data` in place and returns the tag. `counter` must never repeat under one cipher.
    pub(crate) fn seal(&self, counter: u64, header: &[u8], data: &mut [u8]) -> [u8; TAG] {
        match self {
            Self::Aes(aes) => {
                let tag = aes
                    .key
                    .seal_in_place_separate_tag(nonce(counter), Aad::from(header), data)
                    .expect("packets are far below the limit of GCM");
                let mut out = [0; TAG];
                out.copy_from_slice(tag.as_ref());
                out
            }
            Self::Fake(key) => {
                #[cfg(test)]
                USED.with_borrow_mut(|used| {
                    assert!(used.insert((*key, counter)), "a counter was used twice under one key");
                });
                fake_tag(*key, counter, header, data)
            }
        }
    }

    /// Opens `sealed` (bytes and tag) in place; `None` when the tag does not fit, and then nothing is revealed.
    pub(crate) fn open<'a>(&self, counter: u64, header: &[u8], sealed: &'a mut [u8]) -> Option<&'a mut [u8]> {
        match self {
            Self::Aes(aes) => aes.key.open_in_place(nonce(counter), Aad::from(header), sealed).ok(),
            Self::Fake(key) => {
                let (data, tag) = sealed.split_at_mut(sealed.len().checked_sub(TAG)?);
                (fake_tag(*key, counter, header, data) == *tag).then_some(data)
            }
        }
    }

    pub(crate) fn fingerprint(&self, print: &mut Fingerprint) {
        match self {
            Self::Aes(aes) => aes.bytes.hash(print),
            Self::Fake(key) => key.hash(print),
        }
    }
}

impl fmt::Debug for Cipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Aes(_) => "Aes(…)",
            Self::Fake(_) => "Fake(…)",
        })
    }
}

#[cfg(test)]
thread_local! {
    /// Every (key, counter) that fake ciphers of this test have sealed with: none may come twice.
    pub(crate) static USED: std::cell::RefCell<std::collections::BTreeSet<(u64, u64)>> =
        const { std::cell::RefCell::new(std::collections::BTreeSet::new()) };
}

fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; 12];
    bytes[4..].copy_from_slice(&counter.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// Never inlined: real seals shall not have to jump over it.
#[inline(never)]
fn fake_tag(key: u64, counter: u64, header: &[u8], data: &[u8]) -> [u8; TAG] {
    let half = fake_hash(fake_hash(key ^ mix(counter), header), data);
    let mut tag = [0; TAG];
    tag[..8].copy_from_slice(&half.to_le_bytes());
    tag[8..].copy_from_slice(&mix(half).to_le_bytes());
    tag
}

/// Four lanes of eight bytes a step. Each step is a bijection of its lane, and the lanes are folded by bijections of each,
/// so a single flipped bit always changes the result.
#[inline]
fn fake_hash(state: u64, bytes: &[u8]) -> u64 {
    const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;
    let step = |lane: u64, word: u64| (lane ^ word).wrapping_mul(MULTIPLIER).rotate_left(29);
    let mut lanes = [state, state ^ 1, state ^ 2, state ^ 3];
    let (blocks, rest) = bytes.as_chunks::<32>();
    for block in blocks {
        for (lane, word) in lanes.iter_mut().zip(block.as_chunks::<8>().0) {
            *lane = step(*lane, u64::from_le_bytes(*word));
        }
    }
    let (words, rest) = rest.as_chunks::<8>();
    for (lane, word) in lanes.iter_mut().zip(words) {
        *lane = step(*lane, u64::from_le_bytes(*word));
    }
    // The rest, with zeros behind it: a part of the last eight bytes when there are so many.
    let last = match bytes.last_chunk() {
        Some(eight) => u64::from_le_bytes(*eight).checked_shr(64 - 8 * rest.len() as u32).unwrap_or(0),
        None => rest.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)),
    };
    lanes[3] = step(lanes[3], last);
    let folded = step(lanes[0], lanes[1].rotate_left(17)) ^ step(lanes[2], lanes[3].rotate_left(31));
    step(folded, bytes.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rings() -> [KeyRing; 2] {
        [KeyRing::new(1, [7; 32]), KeyRing::fake(1, 7)]
    }

    #[test]
    fn what_is_sealed_opens_and_any_flipped_bit_does_not() {
        for ring in rings() {
            let cipher = ring.data(1, &Boot([1; 16]), &Boot([2; 16]), 3, 4).unwrap();
            let (header, mut data) = ([5u8; 20], b"the ranks close".to_vec());
            let tag = cipher.seal(9, &header, &mut data);
            let sealed = [&data[..], &tag].concat();
            assert_eq!(cipher.open(9, &header, &mut sealed.clone()).unwrap(), b"the ranks close");
            for bit in 0..sealed.len() * 8 {
                let mut bad = sealed.clone();
                bad[bit / 8] ^= 1 << (bit % 8);
                assert!(cipher.open(9, &header, &mut bad).is_none(), "bit {bit}");
            }
            let mut other = header;
            other[3] ^= 1;
            assert!(cipher.open(9, &other, &mut sealed.clone()).is_none());
            assert!(cipher.open(8, &header, &mut sealed.clone()).is_none());
            assert!(cipher.open(9, &header, &mut [0; 3]).is_none());
        }
    }

    #[test]
    fn every_ingredient_changes_the_key() {
        for ring in rings() {
            let (a, b) = (Boot([1; 16]), Boot([2; 16]));
            let base = ring.data(1, &a, &b, 3, 4).unwrap();
            for other in [
                ring.data(1, &b, &a, 3, 4).unwrap(),
                ring.data(1, &a, &b, 4, 3).unwrap(),
                ring.data(1, &a, &b, 3, 5).unwrap(),
                ring.hello(1, &a).unwrap(),
                ring.group(1, &a).unwrap(),
            ] {
                assert!(base != other);
            }
            assert!(ring.data(2, &a, &b, 3, 4).is_none(), "an unknown key id derives nothing");
        }
    }

    #[test]
    fn only_who_has_the_key_proves_it() {
        for ring in rings() {
            let proof = ring.prove(1, b"challenge").unwrap();
            assert!(ring.is_proved(1, b"challenge", &proof) && ring.prove(2, b"challenge").is_none());
            assert!(!ring.is_proved(1, b"another", &proof) && !ring.is_proved(2, b"challenge", &proof));
            assert!(!KeyRing::new(1, [8; 32]).is_proved(1, b"challenge", &proof));
        }
    }

    #[test]
    fn clusters_of_one_key_are_apart_by_their_names() {
        let key = [7; 32];
        assert_eq!(cluster_key(&key, ""), key);
        let keys = [cluster_key(&key, "a"), cluster_key(&key, "b"), key];
        assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2]);
    }

    #[test]
    fn a_ring_rotates_in_three_steps() {
        let mut ring = KeyRing::new(1, [1; 32]);
        assert_eq!(ring.add(1, [2; 32]), Err(RingError::Taken(1)));
        ring.add(2, [2; 32]).unwrap();
        assert_eq!(ring.sealing(), 1);
        assert_eq!(ring.remove(1), Err(RingError::InUse(1)));
        ring.seal_with(2).unwrap();
        ring.remove(1).unwrap();
        assert_eq!(ring.ids().collect::<Vec<_>>(), [2]);
        assert_eq!(ring.seal_with(1), Err(RingError::Missing(1)));
        for id in 3..3 + RING_MAX as u8 - 1 {
            ring.add(id, [id; 32]).unwrap();
        }
        assert_eq!(ring.add(99, [9; 32]), Err(RingError::Full));
        assert!(!format!("{ring:?}").contains("32"), "no key material in logs");
    }
}
