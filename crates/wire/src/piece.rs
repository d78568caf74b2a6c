//! Pieces: how what is cast is cut, so that all links of a tree carry at once (large payloads are pipelined down the tree).
//!
//! ```text
//! 0 1 version   1 1 kind   2 1 flags   stream   offset   from   name   data
//! ```
//! A source counts its streams. Its pieces come in their order, so whoever missed the beginning of a stream sees that its offset is not 0.

use crate::codec::{Reader, put_bytes, put_number};
use crate::{Malformed, tomorrow};

/// Layout of these pieces.
pub const VERSION: u8 = 1;
/// The longest name.
pub const NAME_MAX: usize = 128;
/// Data of a piece of something long: small enough to be passed on soon, large enough that headers and wakes cost little,
/// and with all of them it fits into a pooled buffer.
pub const DATA: usize = (64 << 10) - 512;

const LAST: u8 = 1;

/// What is cast.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Something that users cast.
    Cast,
    /// An event.
    Event,
    /// For the tasks of the job of that name.
    Job,
}

/// A piece, checked to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece<'a> {
    /// What is cast.
    pub kind: Kind,
    /// The how manieth stream of its source it belongs to.
    pub stream: u64,
    /// Where in the stream it begins.
    pub offset: u64,
    /// Nothing comes after it.
    pub last: bool,
    /// Whose it is, when somebody else passes it on; empty otherwise.
    pub from: &'a str,
    /// What it is called.
    pub name: &'a str,
    /// The bytes.
    pub data: &'a [u8],
}

impl<'a> Piece<'a> {
    /// Reads a piece.
    ///
    /// # Errors
    /// Whatever does not hold together.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        if reader.byte()? != VERSION {
            return Err(Malformed::Version);
        }
        let kind = match reader.byte()? {
            0 => Kind::Cast,
            1 => Kind::Event,
            2 => Kind::Job,
            _ => return Err(Malformed::Unknown),
        };
        let flags = reader.byte()?;
        let (stream, offset) = (reader.number()?, reader.number()?);
        let mut text = || std::str::from_utf8(reader.lengthy(NAME_MAX)?).map_err(|_| Malformed::Inconsistent);
        let (from, name) = (text()?, text()?);
        let data = reader.lengthy(crate::cast::BODY_MAX)?;
        Ok(Self { kind, stream, offset, last: flags & LAST != 0, from, name, data })
    }

    /// Appends the piece.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let kind = match self.kind {
            Kind::Cast => 0,
            Kind::Event => 1,
            Kind::Job => 2,
        };
        out.extend([VERSION, kind, if self.last { LAST } else { 0 }]);
        put_number(self.stream, out);
        put_number(self.offset, out);
        put_bytes(self.from.as_bytes(), out);
        put_bytes(self.name.as_bytes(), out);
        put_bytes(self.data, out);
        out.extend(tomorrow::field());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn st_3_a_piece_is_read_as_it_is_written() {
        for kind in [Kind::Cast, Kind::Event, Kind::Job] {
            let piece =
                Piece { kind, stream: 300, offset: 1 << 40, last: true, from: "n7", name: "deploy", data: b"v2" };
            let mut bytes = Vec::new();
            piece.encode(&mut bytes);
            assert_eq!(Piece::parse(&bytes), Ok(piece));
            for cut in 0..bytes.len() - tomorrow::field().len() {
                assert!(Piece::parse(&bytes[..cut]).is_err(), "cut at {cut}");
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            if let Ok(piece) = Piece::parse(&bytes) {
                let mut again = Vec::new();
                piece.encode(&mut again);
                prop_assert_eq!(Piece::parse(&again), Ok(piece));
            }
        }
    }
}
