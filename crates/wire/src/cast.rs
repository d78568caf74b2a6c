//! Casts: what nodes of a sibling tree say to each other (001 §3.1, ST-3).
//!
//! ```text
//! 0 1 version   1 1 kind   2 8 tree   10 source   who   number   stable   … by kind   body
//! ```
//! Numbers from `source` on are written in as few bytes as they need. `number` counts the messages of a source, the paper has none: paths
//! overlap, and who gets a message twice must know. `source` is a place in the tree, `who` is who cast it: nodes may take other places.
//! Up to `stable` everybody has the source's casts, and need not remember them. A multicast has its destinations and where it has been:
//!
//! | field | the paper's |
//! |---|---|
//! | `to`, `index` | *DestList*, *#Dest* as its length, *DestInd*; each with who is meant, and the how manieth message to that one it is |
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
const STATUS: u8 = 4;
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
    /// Where it was cast.
    pub source: Id,
    /// Who cast it: nobody else ever has this number, wherever it sits.
    pub who: u64,
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
    /// How far somebody has come with the casts of the source; up to `number` all of its branch of the tree have them.
    Status(Status),
    /// Back to the source: this one has the `number`-th message that was sent to it alone.
    Receipt {
        /// Who says so.
        by: u64,
    },
}

/// How far a node has come with the casts of a source.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Status {
    /// Where it sits.
    pub from: Id,
    /// Who it is.
    pub by: u64,
    /// It has all casts up to this one.
    pub own: u64,
    /// It can give all that it has from this one on.
    pub first: u64,
    /// How many are in its branch, itself included …
    pub count: u64,
    /// … and the sum of their numbers: who counts another branch with the same sum counts the same nodes.
    pub sum: u64,
    /// What it wants.
    pub says: Says,
}

/// What a status is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Says {
    /// It is news.
    Tell,
    /// The other one is to say how far it has come.
    Ask,
    /// It was asked for; what is lacking may be sent.
    Answer,
}

/// A destination of a multicast.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct To {
    /// Where.
    pub seat: Id,
    /// Who, if that matters; 0 in a broadcast, which is for whoever sits there.
    pub who: u64,
    /// The how manieth message of the source to that one; 0 in a broadcast, and when the body is a message to this node's machine.
    pub letter: u64,
    /// Messages up to this one have come, or never will.
    pub after: u64,
}

impl To {
    /// Whoever sits there.
    #[must_use]
    pub fn seat(seat: Id) -> Self {
        Self { seat, who: 0, letter: 0, after: 0 }
    }
}

/// The header of a multicast.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub struct Multicast {
    /// Destinations, in the order of their visits.
    pub to: Vec<To>,
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
        let (source, who, number, stable) = (reader.id()?, reader.number()?, reader.number()?, reader.number()?);
        let kind = match kind {
            HELLO => Kind::Hello,
            BROADCAST => Kind::Broadcast,
            MULTICAST => Kind::Multicast(Multicast::read(&mut reader)?),
            STATUS => Kind::Status(Status::read(&mut reader)?),
            RECEIPT => Kind::Receipt { by: reader.number()? },
            _ => return Err(Malformed::Unknown),
        };
        Ok(Self { tree, source, who, number, stable, kind, body: reader.lengthy(BODY_MAX)? })
    }

    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let kind = match self.kind {
            Kind::Hello => HELLO,
            Kind::Broadcast => BROADCAST,
            Kind::Multicast(_) => MULTICAST,
            Kind::Status(_) => STATUS,
            Kind::Receipt { .. } => RECEIPT,
        };
        out.extend([VERSION, kind]);
        out.extend(self.tree.to_le_bytes());
        put_number(self.source.0.into(), out);
        [self.who, self.number, self.stable].into_iter().for_each(|n| put_number(n, out));
        match &self.kind {
            Kind::Hello | Kind::Broadcast => {}
            Kind::Multicast(multicast) => multicast.encode(out),
            Kind::Status(status) => status.encode(out),
            Kind::Receipt { by } => put_number(*by, out),
        }
        put_bytes(self.body, out);
        out.extend(tomorrow::field());
    }
}

impl Multicast {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let (seats, index) = (reader.ids()?, reader.u32()?);
        let mut to: Vec<To> = seats.into_iter().map(To::seat).collect();
        let whole = match reader.byte()? {
            0 => false,
            1 => true,
            _ => return Err(Malformed::Unknown),
        };
        if !whole {
            for to in &mut to {
                (to.who, to.letter, to.after) = (reader.number()?, reader.number()?, reader.number()?);
            }
        }
        let (path, seen, dead) = (reader.ids()?, reader.ids()?, reader.ids()?);
        // In order first: a list that an enemy made as long as it may be must not be searched for each entry of another.
        let mut known = seen.clone();
        known.sort_unstable();
        let goes_where_it_was = path.iter().all(|p| known.binary_search(p).is_ok());
        let skips = to.iter().any(|t| t.after > 0 && t.after >= t.letter);
        if index as usize >= to.len() || skips || !goes_where_it_was {
            return Err(Malformed::Inconsistent);
        }
        Ok(Self { to, index, whole, path, seen, dead })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        put_ids(self.to.iter().map(|t| t.seat), out);
        put_number(self.index.into(), out);
        out.push(self.whole.into());
        if !self.whole {
            self.to.iter().flat_map(|t| [t.who, t.letter, t.after]).for_each(|n| put_number(n, out));
        }
        [&self.path, &self.seen, &self.dead].into_iter().for_each(|ids| put_ids(ids.iter().copied(), out));
    }
}

impl Status {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let says = match reader.byte()? {
            0 => Says::Tell,
            1 => Says::Ask,
            2 => Says::Answer,
            _ => return Err(Malformed::Unknown),
        };
        let (from, by) = (reader.id()?, reader.number()?);
        let (own, first) = (reader.number()?, reader.number()?);
        Ok(Self { from, by, own, first, count: reader.number()?, sum: reader.number()?, says })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let Self { from, by, own, first, count, sum, says } = *self;
        out.push(match says {
            Says::Tell => 0,
            Says::Ask => 1,
            Says::Answer => 2,
        });
        put_number(from.0.into(), out);
        [by, own, first, count, sum].into_iter().for_each(|n| put_number(n, out));
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
        let to = vec![To::seat(Id(9)), To { seat: Id(300), who: 1 << 60, letter: 77, after: 70 }];
        Multicast { to, index: 1, whole: false, path: ids(&[4]), seen: ids(&[4, 2]), dead: ids(&[1]) }
    }

    fn bytes(kind: Kind) -> Vec<u8> {
        let mut out = Vec::new();
        Message { tree: 7, source: Id(4), who: 9, number: 1 << 40, stable: 3, kind, body: b"news" }.encode(&mut out);
        out
    }

    fn refused(change: impl FnOnce(&mut Multicast)) -> Malformed {
        let mut header = multicast();
        change(&mut header);
        Message::parse(&bytes(Kind::Multicast(header))).unwrap_err()
    }

    #[test]
    fn st_3_what_is_written_is_read() {
        let status = |says| {
            Kind::Status(Status { from: Id(300), by: u64::MAX, own: 7, first: 5, count: 4, sum: u64::MAX - 1, says })
        };
        let envelope = Multicast { to: vec![To::seat(Id(3)), To::seat(Id(4))], whole: true, ..multicast() };
        for kind in [
            Kind::Hello,
            Kind::Broadcast,
            Kind::Multicast(multicast()),
            Kind::Multicast(envelope),
            status(Says::Tell),
            status(Says::Ask),
            status(Says::Answer),
            Kind::Receipt { by: 1 << 50 },
        ] {
            let bytes = bytes(kind.clone());
            let message = Message::parse(&bytes).unwrap();
            assert_eq!((message.kind, message.body, message.source), (kind, &b"news"[..], Id(4)));
            for cut in 0..bytes.len() - tomorrow::field().len() {
                assert_eq!(Message::parse(&bytes[..cut]), Err(Malformed::Truncated), "cut at {cut}");
            }
        }
    }

    #[test]
    fn st_3_lists_that_lie_are_not_read() {
        assert_eq!(refused(|m| m.index = 2), Malformed::Inconsistent, "past the end");
        assert_eq!(refused(|m| m.to.clear()), Malformed::Inconsistent, "nobody");
        assert_eq!(refused(|m| m.to[1].after = 77), Malformed::Inconsistent, "later ones cannot have come");
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
