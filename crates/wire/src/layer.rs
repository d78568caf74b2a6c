//! The first byte inside the seal says which layer a packet is for; CL's own datagrams.

use crate::Malformed;
use crate::bytes::u16_at;
use crate::tomorrow;
use phalanx_core::Port;

/// Who reads a packet once its seal is open.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Layer {
    /// An unreliable datagram between ports.
    Cl = 1,
    /// Reliable, ordered messages.
    Rcl = 2,
    /// Management messages.
    Mml = 3,
}

/// The layer of an opened packet. A newer peer may use layers this build does not know: those are skipped.
///
/// # Errors
/// `Truncated` when empty, `Unknown` for a layer of a newer peer.
pub fn layer_of(plain: &[u8]) -> Result<Layer, Malformed> {
    match plain.first() {
        None => Err(Malformed::Truncated),
        Some(1) => Ok(Layer::Cl),
        Some(2) => Ok(Layer::Rcl),
        Some(3) => Ok(Layer::Mml),
        Some(_) => Err(Malformed::Unknown),
    }
}

/// The ports in front of a CL datagram's payload: `[layer, 0, from ×2, to ×2]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ports {
    /// The sender's port.
    pub from: Port,
    /// The receiver's port.
    pub to: Port,
}

impl Ports {
    /// Encoded length.
    pub const LEN: usize = 6;

    /// Reads the ports; the payload follows them.
    ///
    /// # Errors
    /// `Truncated` when they do not fit.
    pub fn parse(plain: &[u8]) -> Result<Self, Malformed> {
        if plain.len() < Self::LEN {
            return Err(Malformed::Truncated);
        }
        Ok(Self { from: Port(u16_at(plain, 2)), to: Port(u16_at(plain, 4)) })
    }

    /// Writes layer and ports into their `LEN` bytes.
    pub fn encode(&self, out: &mut [u8]) {
        out[..2].copy_from_slice(&[Layer::Cl as u8, tomorrow::bits()]);
        out[2..4].copy_from_slice(&self.from.0.to_le_bytes());
        out[4..6].copy_from_slice(&self.to.0.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn golden_bytes() {
        let mut out = [0xff; Ports::LEN];
        Ports { from: Port(0x0102), to: Port(3) }.encode(&mut out);
        assert_eq!(out, [1, 0, 2, 1, 3, 0]);
        assert_eq!(layer_of(&[9]), Err(Malformed::Unknown));
        assert_eq!(layer_of(&[]), Err(Malformed::Truncated));
    }

    proptest! {
        #[test]
        fn decode_inverts_encode(from: u16, to: u16) {
            let ports = Ports { from: Port(from), to: Port(to) };
            let mut out = [0; Ports::LEN];
            ports.encode(&mut out);
            prop_assert_eq!((layer_of(&out), Ports::parse(&out)), (Ok(Layer::Cl), Ok(ports)));
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..10)) {
            let _ = (layer_of(&bytes), Ports::parse(&bytes));
        }
    }
}
