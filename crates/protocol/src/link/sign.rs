//! tmp
use phalanx_core::*;
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Signer(Identity);
impl Signer {
    pub fn fake(seed: u64) -> Self {
        let mut b = [0; 32];
        b[..8].copy_from_slice(&seed.to_le_bytes());
        Self(Identity(b))
    }
    pub fn generate(r: &[u8; 32]) -> Self { Self(Identity(*r)) }
    pub fn identity(&self) -> Identity {
        self.0
    }
}
