//! Signatures: proof of who said it (MM-2, CM-1).
//!
//! The seal proves that a packet comes from the cluster: every member holds the ring. Only a signature proves which
//! member it comes from, so what orders processes to be started and stopped is signed with Ed25519.
//!
//! A signature covers a *context* (what kind of statement this is, between whom, in which session) and bytes. The
//! context's length goes first: no statement can be read as one of another context.
//!
//! The simulator uses [`Signer::fake`]: the same lengths and the same refusals at the cost of a hash. A signature is
//! checked by the [`Verifier`] that one's own signer gives, never by what the packet or its sender says: a daemon,
//! whose signer is real, accepts no fake.

use aws_lc_rs::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use phalanx_core::rng::mix;
use phalanx_core::{Buf, Fingerprint, Identity, Instant};
use phalanx_wire::mml::SIGNATURE;
use std::fmt;
use std::hash::Hasher;
use std::sync::Arc;

/// A node's signing key. Cheap to clone; equal when its identity is.
#[derive(Clone)]
pub struct Signer {
    identity: Identity,
    key: Key,
}

#[derive(Clone)]
enum Key {
    Ed25519(Arc<Ed25519KeyPair>),
    Fake,
}

/// Checks signatures made under the same kind of cryptography as the signer it came from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Verifier(Suite);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Suite {
    Ed25519,
    Fake,
}

impl Signer {
    /// The key that 32 random bytes give: the same bytes, the same key.
    #[must_use]
    pub fn generate(random: &[u8; 32]) -> Self {
        let pair = Ed25519KeyPair::from_seed_unchecked(random).expect("any 32 bytes are an Ed25519 seed");
        let mut identity = Identity::default();
        identity.0.copy_from_slice(pair.public_key().as_ref());
        Self { identity, key: Key::Ed25519(Arc::new(pair)) }
    }

    /// A signer for simulated networks: signatures are cheap hashes. Proves nothing at all.
    #[must_use]
    pub fn fake(seed: u64) -> Self {
        let mut identity = Identity::default();
        for (i, word) in identity.0.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            *word = mix(mix(seed).wrapping_add(i as u64 + 1)).to_le_bytes();
        }
        Self { identity, key: Key::Fake }
    }

    /// Who signs: the public key.
    #[must_use]
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// What checks the signatures of this signer and its peers.
    #[must_use]
    pub fn verifier(&self) -> Verifier {
        Verifier(match self.key {
            Key::Ed25519(_) => Suite::Ed25519,
            Key::Fake => Suite::Fake,
        })
    }

    /// Signs `bytes` in their `context`.
    #[must_use]
    pub fn sign(&self, context: &[u8], bytes: &[u8]) -> [u8; SIGNATURE] {
        match &self.key {
            Key::Ed25519(pair) => {
                let mut signature = [0; SIGNATURE];
                signature.copy_from_slice(pair.sign(statement(context, bytes).bytes()).as_ref());
                signature
            }
            Key::Fake => fake_signature(&self.identity, context, bytes),
        }
    }
}

impl Verifier {
    /// True when the holder of `identity` signed `bytes` in this `context`.
    #[must_use]
    pub fn verify(self, identity: &Identity, context: &[u8], bytes: &[u8], signature: &[u8]) -> bool {
        match self.0 {
            Suite::Ed25519 => {
                let key = UnparsedPublicKey::new(&ED25519, &identity.0);
                key.verify(statement(context, bytes).bytes(), signature).is_ok()
            }
            Suite::Fake => fake_signature(identity, context, bytes) == signature,
        }
    }
}

impl PartialEq for Signer {
    fn eq(&self, other: &Self) -> bool {
        self.identity == other.identity && self.verifier() == other.verifier()
    }
}

impl Eq for Signer {}

impl fmt::Debug for Signer {
    /// The identity only: secrets do not belong into logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Signer({:?})", self.identity)
    }
}

/// What is really signed, in a pooled buffer: Ed25519 wants it in one piece.
fn statement(context: &[u8], bytes: &[u8]) -> Buf {
    let mut all = Buf::new(0, 8 + context.len() + bytes.len());
    all.extend(&(context.len() as u64).to_le_bytes());
    all.extend(context);
    all.extend(bytes);
    all
}

/// Each step of the hash is a bijection of its state, so a single flipped bit always changes the result.
fn fake_signature(identity: &Identity, context: &[u8], bytes: &[u8]) -> [u8; SIGNATURE] {
    let mut hash = Fingerprint::at(Instant::ZERO);
    for part in [&identity.0[..], context, bytes] {
        hash.write_u64(part.len() as u64);
        hash.write(part);
    }
    let mut signature = [0; SIGNATURE];
    for (i, word) in signature.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = mix(hash.finish().wrapping_add(i as u64)).to_le_bytes();
    }
    signature
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signers() -> [[Signer; 2]; 2] {
        [[1, 2].map(|n| Signer::generate(&[n; 32])), [1, 2].map(Signer::fake)]
    }

    /// MM-2: one bit anywhere, another context or another name, and it is no proof.
    #[test]
    fn what_was_signed_verifies_and_nothing_else_does() {
        for [signer, other] in signers() {
            let (verifier, identity) = (signer.verifier(), signer.identity());
            let (context, bytes) = (b"orders".to_vec(), b"start rank 7".to_vec());
            let signature = signer.sign(&context, &bytes);
            assert!(verifier.verify(&identity, &context, &bytes, &signature));
            let refuses_flips = |part: &[u8], verify: &dyn Fn(&[u8]) -> bool| {
                for bit in 0..part.len() * 8 {
                    let mut bad = part.to_vec();
                    bad[bit / 8] ^= 1 << (bit % 8);
                    assert!(!verify(&bad), "bit {bit}");
                }
            };
            refuses_flips(&bytes, &|bad| verifier.verify(&identity, &context, bad, &signature));
            refuses_flips(&context, &|bad| verifier.verify(&identity, bad, &bytes, &signature));
            refuses_flips(&signature, &|bad| verifier.verify(&identity, &context, &bytes, bad));
            refuses_flips(&identity.0, &|bad| {
                let name = Identity(bad.try_into().expect("as long as before"));
                verifier.verify(&name, &context, &bytes, &signature)
            });
            assert!(!verifier.verify(&other.identity(), &context, &bytes, &signature));
            assert!(!verifier.verify(&identity, b"order", b"sstart rank 7", &signature), "the border moved");
            assert!(!verifier.verify(&identity, &context, &bytes, &signature[..63]));
            assert!(!verifier.verify(&identity, &context, &bytes, &[]));
        }
    }

    #[test]
    fn a_key_comes_from_its_bytes_and_a_real_verifier_takes_no_fake() {
        for [signer, other] in signers() {
            assert_eq!(signer, signer.clone());
            assert_ne!(signer, other);
        }
        assert_eq!(Signer::generate(&[3; 32]), Signer::generate(&[3; 32]));
        assert_eq!(Signer::fake(3), Signer::fake(3));
        let (real, fake) = (Signer::generate(&[3; 32]), Signer::fake(3));
        let forged = fake_signature(&real.identity(), b"c", b"b");
        assert!(!real.verifier().verify(&real.identity(), b"c", b"b", &forged));
        assert!(!real.verifier().verify(&fake.identity(), b"c", b"b", &fake.sign(b"c", b"b")));
    }

    #[test]
    fn logs_hold_no_secret() {
        let signer = Signer::generate(&[0x41; 32]);
        assert_eq!(format!("{signer:?}"), format!("Signer({:?})", signer.identity()));
    }

    /// RFC 8032 §7.1, test 1: our keys are everybody's Ed25519 keys.
    #[test]
    fn the_identity_is_the_public_key_of_the_standard() {
        let seed = hex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60");
        let identity = Signer::generate(&seed).identity();
        assert_eq!(identity.0, hex("d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"));
    }

    fn hex(text: &str) -> [u8; 32] {
        std::array::from_fn(|i| u8::from_str_radix(&text[2 * i..2 * i + 2], 16).expect("two hex digits"))
    }
}
