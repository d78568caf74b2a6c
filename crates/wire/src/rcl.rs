//! Reliable packets (RL-1): a header with sequence number, acknowledgement and credit, then frames.
//!
//! Messages are cut and coalesced into frames so that all packets but the last are full: equal sizes are what the
//! kernel's segmentation offload asks for. The checksum covers header and frames: a flipped length field is caught
//! before it is believed (004 §6.1 tells of a crash by exactly that).

use crate::Malformed;
use crate::bytes::{crc32c, u16_at, u32_at};
use crate::layer::Layer;
use crate::tomorrow;
use phalanx_core::Port;

/// Words of 64 packets that a selective acknowledgement may name.
pub const SACK_WORDS: usize = 16;
/// The most bytes one frame holds.
pub const FRAME_MAX: usize = 0x3fff;

/// The header: `[layer, flags, credit ×2, crc32c ×4, seq ×4, ack ×4, ack delay ×2, words, 0]`, then the words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// The packet has a sequence number and frames; otherwise it only acknowledges.
    pub data: bool,
    /// No data follows this packet.
    pub fin: bool,
    /// The sender waits for credit or for a sign of life: answer with an acknowledgement at once.
    pub ping: bool,
    /// How many packets from `ack` on the sender takes.
    pub credit: u16,
    /// This packet's number, modulo 2³².
    pub seq: u32,
    /// The next number its sender expects.
    pub ack: u32,
    /// Microseconds the newest acknowledged packet waited for this acknowledgement.
    pub delay_us: u16,
    /// How many words of selective acknowledgement follow.
    pub words: u8,
}

impl Header {
    /// Encoded length without selective acknowledgement.
    pub const LEN: usize = 20;
    /// Where the checksum stands.
    pub const CRC: std::ops::Range<usize> = 4..8;
    const DATA: u8 = 1;
    const FIN: u8 = 2;
    const PING: u8 = 4;

    /// Bytes that a header with a single word of selective acknowledgement takes: full packets leave room for it.
    pub const WITH_WORD: usize = Self::LEN + 8;

    /// Bytes of this header with its words.
    #[must_use]
    pub fn len(&self) -> usize {
        Self::LEN + 8 * usize::from(self.words)
    }

    /// Never: a header has at least its fixed part.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Checks and reads a packet; its frames begin at [`Header::len`].
    ///
    /// # Errors
    /// `Truncated`, `Inconsistent` (more words than there can be), or `Checksum`.
    pub fn parse(plain: &[u8]) -> Result<Self, Malformed> {
        if plain.len() < Self::LEN {
            return Err(Malformed::Truncated);
        }
        let words = plain[18];
        if usize::from(words) > SACK_WORDS {
            return Err(Malformed::Inconsistent);
        }
        if plain.len() < Self::LEN + 8 * usize::from(words) {
            return Err(Malformed::Truncated);
        }
        if checksum(plain) != u32_at(plain, Self::CRC.start) {
            return Err(Malformed::Checksum);
        }
        Ok(Self {
            data: plain[1] & Self::DATA != 0,
            fin: plain[1] & Self::FIN != 0,
            ping: plain[1] & Self::PING != 0,
            credit: u16_at(plain, 2),
            seq: u32_at(plain, 8),
            ack: u32_at(plain, 12),
            delay_us: u16_at(plain, 16),
            words,
        })
    }

    /// The words of selective acknowledgement in a packet that was parsed to this header. Bit `i` of word `w` says
    /// that packet `ack + 1 + 64 w + i` has arrived.
    pub fn sack<'a>(&self, plain: &'a [u8]) -> impl Iterator<Item = u64> + use<'a> {
        let words = &plain[Self::LEN..Self::LEN + 8 * usize::from(self.words)];
        words.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word))
    }

    /// Appends the header and its words of selective acknowledgement to `out`; the checksum is filled in by [`finish`] when the frames are there.
    pub fn encode(&self, sack: &[u64], out: &mut Vec<u8>) {
        debug_assert_eq!(sack.len(), usize::from(self.words), "the header says how many words follow");
        let mut fixed = [0; Self::LEN];
        fixed[0] = Layer::Rcl as u8;
        let flag = |set: bool, bit: u8| if set { bit } else { 0 };
        fixed[1] =
            flag(self.data, Self::DATA) | flag(self.fin, Self::FIN) | flag(self.ping, Self::PING) | tomorrow::bits();
        fixed[2..4].copy_from_slice(&self.credit.to_le_bytes());
        fixed[8..12].copy_from_slice(&self.seq.to_le_bytes());
        fixed[12..16].copy_from_slice(&self.ack.to_le_bytes());
        fixed[16..18].copy_from_slice(&self.delay_us.to_le_bytes());
        fixed[18] = self.words;
        out.extend_from_slice(&fixed);
        for word in sack {
            out.extend_from_slice(&word.to_le_bytes());
        }
    }
}

/// Fills in the checksum of a complete packet.
pub fn finish(plain: &mut [u8]) {
    let crc = checksum(plain);
    plain[Header::CRC].copy_from_slice(&crc.to_le_bytes());
}

/// crc32c of what follows the checksum, turned by the four bytes before it: any single change in those changes it, and
/// one call is enough.
fn checksum(plain: &[u8]) -> u32 {
    crc32c(&plain[Header::CRC.end..]) ^ u32_at(plain, 0).wrapping_mul(0x9e37_79b1)
}

/// A whole message or a piece of one.
///
/// `[length and marks ×2]`, in the first piece `[from ×2, to ×2]`, in the first of several `[total ×4, crc32c ×4]`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frame<'a> {
    /// What stands before the payload when a message begins here.
    pub begins: Option<Beginning>,
    /// The message ends with this frame.
    pub ends: bool,
    /// The piece.
    pub payload: &'a [u8],
    /// Length of the piece; more than `payload` holds when the bytes are attached by reference.
    pub length: usize,
}

/// The first frame of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Beginning {
    /// The sender's port.
    pub from: Port,
    /// The receiver's port.
    pub to: Port,
    /// When the message does not end in this frame: its length and crc32c.
    pub whole: Option<(u32, u32)>,
}

const BEGINS: u16 = 1 << 14;
const ENDS: u16 = 1 << 15;

impl Beginning {
    /// Bytes of a frame's header that begins a message, whole in this frame or not.
    #[must_use]
    pub const fn overhead(whole: bool) -> usize {
        if whole { 6 } else { 14 }
    }
}

/// Bytes of the header of a frame that goes on with a message.
pub const CONTINUATION: usize = 2;

/// Appends the header of a frame of `length` payload bytes, which follow.
pub fn put_frame(out: &mut Vec<u8>, begins: Option<Beginning>, ends: bool, length: usize) {
    debug_assert!(length <= FRAME_MAX, "a frame's length has 14 bits");
    let marks = if begins.is_some() { BEGINS } else { 0 } | if ends { ENDS } else { 0 };
    out.extend_from_slice(&(length as u16 | marks).to_le_bytes());
    if let Some(b) = begins {
        let mut ports = [0; 4];
        ports[..2].copy_from_slice(&b.from.0.to_le_bytes());
        ports[2..].copy_from_slice(&b.to.0.to_le_bytes());
        out.extend_from_slice(&ports);
        if let Some((total, crc)) = b.whole {
            out.extend_from_slice(&total.to_le_bytes());
            out.extend_from_slice(&crc.to_le_bytes());
        }
    }
}

/// The frames of a packet whose checksum was right. Stops at the first one that does not fit.
#[derive(Clone, Debug)]
pub struct Frames<'a> {
    rest: &'a [u8],
    /// Bytes of the last frame that are attached by reference instead of being here.
    attached: usize,
}

impl<'a> Frames<'a> {
    /// Frames in `bytes`, the last of which lacks `attached` bytes of its payload here.
    #[must_use]
    pub fn new(bytes: &'a [u8], attached: usize) -> Self {
        Self { rest: bytes, attached }
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = Result<Frame<'a>, Malformed>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        // Zeros, or a lone byte, fill a packet up to the size of its neighbours.
        if self.rest.len() < 2 || self.rest[..2] == [0, 0] {
            self.rest = &[];
            return None;
        }
        let item = self.parse();
        if item.is_err() {
            self.rest = &[];
        }
        Some(item)
    }
}

impl<'a> Frames<'a> {
    #[inline]
    fn parse(&mut self) -> Result<Frame<'a>, Malformed> {
        let bytes = self.rest;
        let mark = u16_at(bytes, 0);
        let length = usize::from(mark) & FRAME_MAX;
        let (begins, ends) = (mark & BEGINS != 0, mark & ENDS != 0);
        let head = if !begins { CONTINUATION } else { Beginning::overhead(ends) };
        if bytes.len() < head {
            return Err(Malformed::Truncated);
        }
        let begins = begins.then(|| Beginning {
            from: Port(u16_at(bytes, 2)),
            to: Port(u16_at(bytes, 4)),
            whole: (!ends).then(|| (u32_at(bytes, 6), u32_at(bytes, 10))),
        });
        let here = if bytes.len() - head < length {
            // Only the last frame may have its payload attached.
            if bytes.len() - head + self.attached != length {
                return Err(Malformed::Truncated);
            }
            bytes.len() - head
        } else {
            length
        };
        self.rest = &bytes[head + here..];
        Ok(Frame { begins, ends, payload: &bytes[head..head + here], length })
    }
}

/// Fills a packet's frames with zeros up to `length`, so that it is as long as its neighbours.
pub fn pad_frames(out: &mut Vec<u8>, length: usize) {
    out.resize(length.max(out.len()), 0);
}

/// crc32c of a message that is cut into pieces.
#[must_use]
pub fn message_crc(message: &[u8]) -> u32 {
    crc32c(message)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn packet(header: &Header, sack: &[u64], frames: &[(Option<Beginning>, bool, &[u8])]) -> Vec<u8> {
        let mut out = Vec::new();
        header.encode(sack, &mut out);
        for (begins, ends, payload) in frames {
            put_frame(&mut out, *begins, *ends, payload.len());
            out.extend_from_slice(payload);
        }
        finish(&mut out);
        out
    }

    #[test]
    fn golden_bytes() {
        let header = Header { data: true, credit: 0x0102, seq: 3, ack: 4, delay_us: 5, ..Header::default() };
        let begins = Some(Beginning { from: Port(6), to: Port(7), whole: None });
        let bytes = packet(&header, &[], &[(begins, true, b"hi")]);
        assert_eq!(bytes[..4], [2, 1, 2, 1]);
        assert_eq!(bytes[4..8], 0xa6dd_b02e_u32.to_le_bytes());
        assert_eq!(bytes[8..], [3, 0, 0, 0, 4, 0, 0, 0, 5, 0, 0, 0, 2, 0xc0, 6, 0, 7, 0, b'h', b'i']);
    }

    #[test]
    fn any_flipped_bit_is_caught_by_the_checksum() {
        let header = Header { data: true, words: 1, ..Header::default() };
        let begins = Some(Beginning { from: Port(1), to: Port(2), whole: None });
        let good = packet(&header, &[7], &[(begins, true, b"payload")]);
        for bit in 8..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::parse(&bad).is_err(), "bit {bit} went unnoticed");
        }
    }

    #[test]
    fn a_frame_longer_than_its_packet_ends_the_iteration() {
        let mut out = Vec::new();
        put_frame(&mut out, None, true, 100);
        out.extend_from_slice(&[0; 99]);
        assert_eq!(Frames::new(&out, 0).collect::<Vec<_>>(), [Err(Malformed::Truncated)]);
        // The same bytes are a whole frame when one byte is attached by reference.
        assert_eq!(Frames::new(&out, 1).next().unwrap().unwrap().length, 100);
    }

    fn beginning() -> impl Strategy<Value = (Option<Beginning>, bool)> {
        prop_oneof![
            Just((None, true)),
            (any::<u16>(), any::<u16>())
                .prop_map(|(f, t)| (Some(Beginning { from: Port(f), to: Port(t), whole: None }), true)),
            (any::<u16>(), any::<u16>(), any::<u32>(), any::<u32>())
                .prop_map(|(f, t, n, c)| (Some(Beginning { from: Port(f), to: Port(t), whole: Some((n, c)) }), false)),
        ]
    }

    proptest! {
        #[test]
        fn decode_inverts_encode(
            data: bool, fin: bool, ping: bool, credit: u16, seq: u32, ack: u32, delay_us: u16,
            words in prop::collection::vec(any::<u64>(), 0..=SACK_WORDS),
            frames in prop::collection::vec((beginning(), prop::collection::vec(any::<u8>(), 0..50)), 0..6),
        ) {
            let header = Header { data, fin, ping, credit, seq, ack, delay_us, words: words.len() as u8 };
            let parts: Vec<_> = frames.iter().map(|((b, e), p)| (*b, *e, &p[..])).collect();
            let bytes = packet(&header, &words, &parts);
            prop_assert_eq!(Header::parse(&bytes), Ok(header));
            prop_assert_eq!(header.sack(&bytes).collect::<Vec<_>>(), words);
            let got: Vec<_> = Frames::new(&bytes[header.len()..], 0).map(|f| f.unwrap()).collect();
            prop_assert_eq!(got.len(), parts.len());
            for (frame, (begins, ends, payload)) in got.iter().zip(parts) {
                prop_assert_eq!((frame.begins, frame.ends, frame.payload), (begins, ends, payload));
            }
        }

        #[test]
        fn no_bytes_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..200), attached in 0usize..20) {
            let _ = Header::parse(&bytes);
            let _ = Frames::new(&bytes, attached).count();
            // With the checksum right, so that what lies behind it is reached too.
            if bytes.len() >= Header::LEN {
                finish(&mut bytes);
                if let Ok(header) = Header::parse(&bytes) {
                    let _ = Frames::new(&bytes[header.len()..], attached).count();
                }
            }
        }
    }
}
