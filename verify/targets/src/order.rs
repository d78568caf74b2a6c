//! Packets of the atomic multicast: what decodes encodes to the same bytes.

use phalanx_protocol::order::wire::{PACKET_BOUND, Packet};

/// Any bytes as a packet.
pub fn order_wire(bytes: &[u8]) {
    let Ok((epoch, packet)) = Packet::decode(bytes) else { return };
    assert!(bytes.len() <= PACKET_BOUND);
    let mut out = Vec::new();
    packet.encode(epoch, &mut out);
    assert_eq!(out, bytes, "two forms of one packet");
}
