//! AES-256-GCM in place with a counter as nonce: the least that any authenticated datagram costs.
//!
//! The yardstick for CL's seal, with the same library. The key is fixed: this measures time, it protects nothing.

use crate::error::Error;
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

/// The counter in front of each sealed datagram.
const COUNTER: usize = 8;
/// Known to both ends of the experiment, and to everybody else.
const KEY: [u8; 32] = [7; 32];

/// Seals what leaves and opens what arrives.
pub(super) struct Seal {
    key: LessSafeKey,
    sent: u64,
}

impl Seal {
    /// The first counter is 1 for one side and far away for the other, so that the two never share a nonce.
    pub(super) fn new(listener: bool) -> Result<Self, Error> {
        let key = UnboundKey::new(&AES_256_GCM, &KEY).map_err(Error::peer("aws-lc-rs"))?;
        Ok(Self { key: LessSafeKey::new(key), sent: if listener { 1 << 63 } else { 0 } })
    }

    /// `message` sealed into `out`, in place of what was there.
    pub(super) fn seal(&mut self, message: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        self.sent += 1;
        out.clear();
        out.extend_from_slice(&self.sent.to_le_bytes());
        out.extend_from_slice(message);
        let body = &mut out[COUNTER..];
        let tag = self.key.seal_in_place_separate_tag(nonce(self.sent), Aad::empty(), body);
        out.extend_from_slice(tag.map_err(Error::peer("aws-lc-rs"))?.as_ref());
        Ok(())
    }

    /// The message in `datagram`, opened in place.
    pub(super) fn open<'a>(&self, datagram: &'a mut [u8]) -> Result<&'a mut [u8], Error> {
        let forged = || Error::Peer { library: "aws-lc-rs", reason: "a datagram does not open".into() };
        let (counter, body) = datagram.split_first_chunk_mut::<COUNTER>().ok_or_else(forged)?;
        self.key.open_in_place(nonce(u64::from_le_bytes(*counter)), Aad::empty(), body).map_err(|_| forged())
    }
}

fn nonce(counter: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[..COUNTER].copy_from_slice(&counter.to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sealed_opens_and_what_was_touched_does_not() {
        let (mut a, b) = (Seal::new(false).unwrap(), Seal::new(true).unwrap());
        let mut sealed = Vec::new();
        a.seal(b"phalanx", &mut sealed).unwrap();
        assert_eq!(b.open(&mut sealed.clone()).unwrap(), b"phalanx");
        let first = sealed.clone();
        a.seal(b"phalanx", &mut sealed).unwrap();
        assert_ne!(first[COUNTER..], sealed[COUNTER..], "a nonce was used twice");
        sealed[COUNTER] ^= 1;
        assert!(b.open(&mut sealed).is_err());
        assert!(b.open(&mut []).is_err());
    }
}
