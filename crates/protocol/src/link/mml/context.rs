//! What a signature is bound to: the two nodes and their session. A recording fits no other.
//!
//! Every member of the cluster can seal, so a member could seal another's signed packet again. Therefore the
//! signature names both identities, both boots, and both nonces of the handshake: numbers start at zero in each
//! session, and two sessions may share their boots when a peer was forgotten and met again.

use super::Sums;
use crate::link::sign::{Signer, Verifier};
use phalanx_core::{Boot, Buf, Fingerprint, Identity};
use phalanx_wire::mml::Packet;

const LABEL: &[u8; 16] = b"phalanx mml v1\0\0";
/// Label, two identities, two boots, two nonces.
const LEN: usize = 16 + 2 * (32 + 16 + 8);

/// One end of a session as its signatures name it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct End {
    pub(crate) identity: Identity,
    pub(crate) boot: Boot,
    pub(crate) nonce: u64,
}

/// Both ends of a session, and how signatures are checked in it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Context {
    us: End,
    peer: End,
    verifier: Verifier,
}

impl Context {
    /// The session between the holder of `signer`, whose boot and nonce are given, and `peer`.
    pub(crate) fn new(signer: &Signer, boot: Boot, nonce: u64, peer: End) -> Self {
        Self { us: End { identity: signer.identity(), boot, nonce }, peer, verifier: signer.verifier() }
    }

    /// Appends our signature to `packet`.
    pub(crate) fn sign(&self, packet: &mut Buf, signer: &Signer) {
        debug_assert_eq!(signer.identity(), self.us.identity, "another node's signer");
        let signature = signer.sign(&bytes(&self.us, &self.peer), packet.bytes());
        packet.extend(&signature);
    }

    /// True when the peer signed `packet` for us in this session. The dear check: everything cheap goes before it.
    pub(super) fn vouches(&self, packet: &Packet<'_>, sums: &mut Sums) -> bool {
        let context = bytes(&self.peer, &self.us);
        let authentic = self.verifier.verify(&self.peer.identity, &context, packet.signed, packet.signature);
        sums.bad_signature += u64::from(!authentic);
        authentic
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(self);
    }
}

fn bytes(from: &End, to: &End) -> [u8; LEN] {
    let mut out = [0; LEN];
    let mut rest = &mut out[..];
    let mut put = |part: &[u8]| {
        let (here, behind) = std::mem::take(&mut rest).split_at_mut(part.len());
        here.copy_from_slice(part);
        rest = behind;
    };
    put(LABEL);
    for end in [from, to] {
        put(&end.identity.0);
        put(&end.boot.0);
        put(&end.nonce.to_le_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_core::Port;
    use phalanx_wire::mml::Kind;

    /// MM-2: a recording fits no other pair of nodes, no other start of either, no other handshake, no way back.
    #[test]
    fn a_signature_fits_its_session_alone() {
        let [a, b, c] = [1, 2, 3].map(Signer::fake);
        let end = |signer: &Signer, boot, nonce| End { identity: signer.identity(), boot: Boot([boot; 16]), nonce };
        let context = |us: &Signer, boot, nonce, peer| Context::new(us, Boot([boot; 16]), nonce, peer);
        let mut packet = Buf::new(0, 100);
        Packet::encode_header(Kind::Nacked, Port(1), Port(2), 0, packet.vec_mut());
        context(&a, 1, 10, end(&b, 2, 20)).sign(&mut packet, &a);
        let packet = Packet::parse(packet.bytes()).expect("just made");
        let accepts = |receiver: Context| receiver.vouches(&packet, &mut Sums::default());
        assert!(accepts(context(&b, 2, 20, end(&a, 1, 10))));
        for other in [
            context(&b, 2, 20, end(&c, 1, 10)),
            context(&c, 2, 20, end(&a, 1, 10)),
            context(&b, 2, 20, end(&a, 3, 10)),
            context(&b, 3, 20, end(&a, 1, 10)),
            context(&b, 2, 20, end(&a, 1, 11)),
            context(&b, 2, 21, end(&a, 1, 10)),
            context(&a, 1, 10, end(&b, 2, 20)),
        ] {
            assert!(!accepts(other), "{other:?}");
        }
    }
}
