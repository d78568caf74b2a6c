//! Casts: what nodes of a sibling tree say to each other (001 §3.1, ST-3).
//!
//! ```text
//! 0 1 version   1 1 kind   2 8 tree   10 source   life   number   stable   … by kind   body
//! ```
//! Numbers from `source` on are written in as few bytes as they need. `number` counts the messages of a source, the paper has none: paths
//! overlap, and who gets a message twice must know. `life` tells those apart who had the same place in the tree one after the other. Up to
//! `stable` everybody has the source's casts, and need not remember them. A multicast has its destinations and where it has been:
//!
//! | field | the paper's |
//! |---|---|
//! | `to`, `index` | *DestList*, *#Dest* as its length, *DestInd*; each with the how manieth message it is to that one |
//! | `path`, `seen` | *TranList*: the way back, and where it has been besides |
//! | `dead` | ⚠ none, though its third routing needs them |
//! | `whole` | ⚠ none: whether the body is a broadcast in an envelope, which its destinations send on |
//!
//! A list that names somebody twice, a destination past the end, or a way back that leads where it never was, is not read: a message
//! that believed it could go round for ever.

use crate::codec::{Reader, put_bytes, put_number};
use crate::{Malformed, tomorrow};

/// Layout of these messages.
pub const VERSION: u8 = 1;
/// The longest body.
pub const BODY_MAX: usize = 256 << 10;
/// The most entries of a list.
pub const LIST_MAX: usize = 1 << 16;

const HELLO: u8 = 1;
const MULTICAST: u8 = 2;
const BROADCAST: u8 = 3;
const PROGRESS: u8 = 4;
const RECEIPT: u8 = 5;

/// The logical number of a node in its tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Id(pub u32);

impl std::fmt::Display for Id {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A message, checked to its end.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message<'a> {
    /// Which tree it is for: another one has other numbers.
    pub tree: u64,
    /// Who cast it.
    pub source: Id,
    /// Which life of it.
    pub life: u64,
    /// The how manieth of its casts it is.
    pub number: u64,
    /// Everybody has its casts up to this one.
    pub stable: u64,
    /// How it travels.
    pub kind: Kind,
    /// What is cast.
    pub body: &'a [u8],
}

/// How a message travels.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// ST-2: a neighbour is there.
    Hello,
    /// Down the tree.
    Broadcast,
    /// To one destination after another.
    Multicast(Multicast),
    /// Up the tree: the branch of this one has all casts of the source up to `number`.
    Progress(Id),
    /// Back to the source: this one has the `number`-th message that was sent to it alone.
    Receipt(Id),
}

/// The header of a multicast.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Multicast {
    /// Destinations, in the order of their visits, and the how manieth message of its source to that one it is; 0 for a broadcast.
    pub to: Vec<(Id, u64)>,
    /// The one that it is on its way to.
    pub index: u32,
    /// A broadcast in an envelope.
    pub whole: bool,
    /// The way from its last destination, or its source, to who sends it.
    pub path: Vec<Id>,
    /// Where it has been since.
    pub seen: Vec<Id>,
    /// Dead nodes that it has met.
    pub dead: Vec<Id>,
}

impl<'a> Message<'a> {
    /// Reads a message.
    ///
    /// # Errors
    /// Whatever does not hold together.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        if reader.byte()? != VERSION {
            return Err(Malformed::Version);
        }
        let kind = reader.byte()?;
        let tree = u64::from_le_bytes(reader.bytes(8)?.try_into().map_err(|_| Malformed::Truncated)?);
        let (source, life, number, stable) = (reader.id()?, reader.number()?, reader.number()?, reader.number()?);
        let kind = match kind {
            HELLO => Kind::Hello,
            BROADCAST => Kind::Broadcast,
            MULTICAST => Kind::Multicast(Multicast::read(&mut reader)?),
            PROGRESS => Kind::Progress(reader.id()?),
            RECEIPT => Kind::Receipt(reader.id()?),
            _ => return Err(Malformed::Unknown),
        };
        Ok(Self { tree, source, life, number, stable, kind, body: reader.lengthy(BODY_MAX)? })
    }

    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let kind = match self.kind {
            Kind::Hello => HELLO,
            Kind::Broadcast => BROADCAST,
            Kind::Multicast(_) => MULTICAST,
            Kind::Progress(_) => PROGRESS,
            Kind::Receipt(_) => RECEIPT,
        };
        out.extend([VERSION, kind]);
        out.extend(self.tree.to_le_bytes());
        put_number(self.source.0.into(), out);
        [self.life, self.number, self.stable].into_iter().for_each(|n| put_number(n, out));
        match &self.kind {
            Kind::Hello | Kind::Broadcast => {}
            Kind::Multicast(multicast) => multicast.encode(out),
            Kind::Progress(from) | Kind::Receipt(from) => put_number(from.0.into(), out),
        }
        put_bytes(self.body, out);
        out.extend(tomorrow::FIELD);
    }
}

impl Multicast {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (to, numbers, index) = (reader.ids()?, reader.list(Reader::number)?, reader.u32()?);
        let whole = match reader.byte()? {
            0 => false,
            1 => true,
            _ => return Err(Malformed::Unknown),
        };
        let (path, seen, dead) = (reader.ids()?, reader.ids()?, reader.ids()?);
        // In order first: a list that an enemy made as long as it may be must not be searched for each entry of another.
        let mut known = seen.clone();
        known.sort_unstable();
        let goes_where_it_was = path.iter().all(|p| known.binary_search(p).is_ok());
        if index as usize >= to.len() || numbers.len() != to.len() || !goes_where_it_was {
            return Err(Malformed::Inconsistent);
        }
        let to = to.into_iter().zip(numbers).collect();
        Ok(Self { to, index, whole, path, seen, dead })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        put_ids(self.to.iter().map(|t| t.0), out);
        put_number(self.to.len() as u64, out);
        self.to.iter().for_each(|t| put_number(t.1, out));
        put_number(self.index.into(), out);
        out.push(self.whole.into());
        [&self.path, &self.seen, &self.dead].into_iter().for_each(|ids| put_ids(ids.iter().copied(), out));
    }
}

fn put_ids(ids: impl ExactSizeIterator<Item = Id>, out: &mut Vec<u8>) {
    put_number(ids.len() as u64, out);
    ids.for_each(|id| put_number(id.0.into(), out));
}

impl Reader<'_> {
    fn id(&mut self) -> Result<Id, Malformed> {
        self.u32().map(Id)
    }

    /// Different ones, in any order.
    fn ids(&mut self) -> Result<Vec<Id>, Malformed> {
        let ids = self.list(Self::id)?;
        let mut sorted = ids.clone();
        sorted.sort_unstable();
        let twice = sorted.windows(2).any(|pair| pair[0] == pair[1]);
        if twice || ids.len() > LIST_MAX { Err(Malformed::Inconsistent) } else { Ok(ids) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn multicast() -> Multicast {
        let ids = |ids: &[u32]| ids.iter().copied().map(Id).collect::<Vec<_>>();
        let to = vec![(Id(9), 0), (Id(300), 77)];
        Multicast { to, index: 1, whole: true, path: ids(&[4]), seen: ids(&[4, 2]), dead: ids(&[1]) }
    }

    fn bytes(kind: Kind) -> Vec<u8> {
        let mut out = Vec::new();
        Message { tree: 7, source: Id(4), life: 9, number: 1 << 40, stable: 3, kind, body: b"news" }.encode(&mut out);
        out
    }

    fn refused(change: impl FnOnce(&mut Multicast)) -> Malformed {
        let mut header = multicast();
        change(&mut header);
        Message::parse(&bytes(Kind::Multicast(header))).unwrap_err()
    }

    #[test]
    fn st_3_what_is_written_is_read() {
        for kind in
            [Kind::Hello, Kind::Broadcast, Kind::Multicast(multicast()), Kind::Progress(Id(300)), Kind::Receipt(Id(2))]
        {
            let bytes = bytes(kind.clone());
            let message = Message::parse(&bytes).unwrap();
            assert_eq!((message.kind, message.body, message.source), (kind, &b"news"[..], Id(4)));
            for cut in 0..bytes.len() - tomorrow::FIELD.len() {
                assert_eq!(Message::parse(&bytes[..cut]), Err(Malformed::Truncated), "cut at {cut}");
            }
        }
    }

    #[test]
    fn st_3_lists_that_lie_are_not_read() {
        assert_eq!(refused(|m| m.index = 2), Malformed::Inconsistent, "past the end");
        assert_eq!(refused(|m| m.to.clear()), Malformed::Inconsistent, "nobody");
        assert_eq!(refused(|m| m.seen.push(Id(4))), Malformed::Inconsistent, "a loop");
        assert_eq!(refused(|m| m.path.push(Id(5))), Malformed::Inconsistent, "back to where it never was");
        let mut lie = bytes(Kind::Multicast(multicast()));
        let count = 2 + 8 + 1 + 1 + 6 + 1;
        assert_eq!(lie[count], 2, "two destinations");
        lie[count] = 0x7f;
        assert!(Message::parse(&lie).is_err(), "more destinations than there are bytes");
    }

    #[test]
    fn long_lists_are_read_and_longer_ones_are_not() {
        let long = |n: usize| {
            let ids: Vec<Id> = (0..n as u32).rev().map(Id).collect();
            bytes(Kind::Multicast(Multicast { path: ids.clone(), seen: ids, ..multicast() }))
        };
        assert!(Message::parse(&long(LIST_MAX)).is_ok());
        assert_eq!(Message::parse(&long(LIST_MAX + 1)), Err(Malformed::Inconsistent));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(message) = Message::parse(&bytes) {
                let mut again = Vec::new();
                message.encode(&mut again);
                prop_assert_eq!(Message::parse(&again), Ok(message));
            }
        }
    }
}
