//! What messages hold: everything follows from a name, so that nobody needs to remember what was sent.
//!
//! A [`Name`] says which message of which stream this is. Its hash, the *seed*, stands in the first eight bytes; the
//! rest is a pattern that follows from the seed. A receiver sees by itself whether a message is whole, and a checker
//! that knows which message must come next computes what it must hold: streams are two counters, however long.

use phalanx_core::buf::Snapshot;
use phalanx_core::rng::mix;
use std::any::Any;
use std::ops::Range;

/// The layers whose messages are told apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Layer {
    /// CL: datagrams.
    Datagram,
    /// RCL: reliable messages.
    Reliable,
    /// MML: UNR messages.
    Unr,
    /// MML: ACK messages.
    Ack,
    /// MML: NACK messages.
    Nack,
    /// Messages of an ordered group.
    Order,
}

impl Layer {
    /// How many there are.
    pub const COUNT: usize = 6;
}

/// Which message this is: the `number`-th of a layer from one start of a node to another node, since the sender's
/// link last gave the receiver up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Name {
    /// Who sent it.
    pub from: u32,
    /// Which start of the sender.
    pub boot: u32,
    /// To whom.
    pub to: u32,
    /// By which layer.
    pub layer: Layer,
    /// How often the sender had to begin anew with the receiver.
    pub generation: u32,
    /// Its place in that generation.
    pub number: u32,
}

impl Name {
    /// The first eight bytes of the message.
    #[must_use]
    pub fn seed(&self) -> u64 {
        let ends = u64::from(self.from) << 32 | u64::from(self.to);
        let life = u64::from(self.boot) << 32 | u64::from(self.generation) << 3 | self.layer as u64;
        mix(mix(mix(ends) ^ life) ^ u64::from(self.number))
    }
}

/// Bytes of the seed.
const SEED: usize = 8;

/// Appends a message of `length` bytes that begins with `seed`. Never asks for more room than that.
pub(super) fn write(seed: u64, length: usize, out: &mut Vec<u8>) {
    let begin = out.len();
    out.resize(begin + length, 0);
    fill(seed, &mut out[begin..]);
}

/// Makes `message` one that begins with `seed`.
#[inline]
pub(super) fn fill(seed: u64, message: &mut [u8]) {
    let mut word = seed;
    let (words, tail) = message.as_chunks_mut();
    for there in words {
        *there = word.to_le_bytes();
        word = next(word);
    }
    tail.iter_mut().zip(word.to_le_bytes()).for_each(|(there, b)| *there = b);
}

/// The seed of a whole message, or as much of it as there is; `None` when a byte is not what the seed makes of it.
pub(super) fn read(bytes: &[u8]) -> Option<u64> {
    let Some((first, rest)) = bytes.split_first_chunk() else {
        return Some(bytes.iter().rev().fold(0, |seed, &b| seed << 8 | u64::from(b)));
    };
    let seed = u64::from_le_bytes(*first);
    let mut word = seed;
    let (words, tail) = rest.as_chunks();
    for &there in words {
        word = next(word);
        if u64::from_le_bytes(there) != word {
            return None;
        }
    }
    tail.iter().zip(next(word).to_le_bytes()).all(|(&there, b)| there == b).then_some(seed)
}

/// What [`read`] gives for a message of `length` bytes.
pub(super) fn visible(seed: u64, length: usize) -> u64 {
    if length >= SEED { seed } else { seed & ((1 << (8 * length)) - 1) }
}

/// Each word of the pattern follows from the one before: one multiplication for eight bytes.
fn next(word: u64) -> u64 {
    word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f)
}

/// A message that may travel by reference.
#[derive(Debug)]
pub(super) struct Bulk {
    pub(super) seed: u64,
    pub(super) length: usize,
}

impl Snapshot for Bulk {
    fn encoded_len(&self) -> usize {
        self.length
    }

    fn encode(&self, range: Range<usize>, out: &mut Vec<u8>) {
        let mut all = Vec::new();
        write(self.seed, self.length, &mut all);
        out.extend_from_slice(&all[range]);
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: Name = Name { from: 3, boot: 1, to: 4, layer: Layer::Ack, generation: 2, number: 9 };

    #[test]
    fn messages_of_any_length_are_read_back_and_broken_ones_are_not() {
        for length in (0..40).chain([1_000, 4_099]) {
            let mut bytes = Vec::new();
            write(NAME.seed(), length, &mut bytes);
            assert_eq!(bytes.len(), length);
            assert_eq!(read(&bytes), Some(visible(NAME.seed(), length)), "{length} bytes");
            for at in (SEED..length).step_by(7) {
                bytes[at] ^= 0x10;
                assert_eq!(read(&bytes), None, "byte {at} of {length}");
                bytes[at] ^= 0x10;
            }
        }
    }

    #[test]
    fn each_part_of_a_name_shows() {
        let others = [
            Name { from: 4, to: 3, ..NAME },
            Name { boot: 2, ..NAME },
            Name { layer: Layer::Nack, ..NAME },
            Name { generation: 3, ..NAME },
            Name { number: 10, ..NAME },
        ];
        assert!(others.iter().all(|n| n.seed() != NAME.seed()));
    }

    #[test]
    fn a_bulk_encodes_to_the_bytes_it_stands_for() {
        let (bulk, mut whole, mut parts) = (Bulk { seed: 77, length: 1_000 }, Vec::new(), Vec::new());
        write(77, 1_000, &mut whole);
        bulk.encode(0..300, &mut parts);
        bulk.encode(300..1_000, &mut parts);
        assert_eq!(whole, parts);
    }
}
