//! Reductions: what the tasks of a job say to each other on the way up and down their sibling tree (ST-4).
//!
//! ```text
//! 0 1 version   1 1 kind   2 view   from   last round   last view   … by kind
//! ```
//! Numbers are written in as few bytes as they need. Each message says in which view it is meant, and which round was the last that its
//! speaker knows to be decided, and in which view that was. The paper has broadcasts and multicasts only.

use crate::cast::Id;
use crate::codec::{Reader, put_number};
use crate::view::ViewId;
use crate::{Malformed, tomorrow};

/// Layout of these messages.
pub const VERSION: u8 = 1;
/// The longest value that one task gives to a gather.
pub const VALUE_MAX: usize = 64 << 10;
/// The most that all values of a gather take together, with [`VALUE_HEAD`] for each.
pub const GATHERED_MAX: usize = 4 << 20;
/// What a gathered value takes besides its bytes.
pub const VALUE_HEAD: usize = 16;

/// Rounds that somebody made up must not run out.
pub const ROUND_MAX: u64 = 1 << 62;

const TELL: u8 = 1;
const ASK: u8 = 2;
const UP: u8 = 3;
const DOWN: u8 = 4;

/// The last round that is decided, as far as somebody knows. Round 0 is before the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug)]
pub struct Last {
    /// Which.
    pub round: u64,
    /// The number of the view in which it was decided.
    pub view: u64,
}

/// A message, checked to its end.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Message {
    /// The view in which it is meant: in another one it means nothing.
    pub view: ViewId,
    /// Who speaks.
    pub from: Id,
    /// What it knows to be decided.
    pub last: Last,
    /// What it says.
    pub words: Words,
}

/// What a message says.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Words {
    /// Only what is decided.
    Tell,
    /// From above: what is your word on this round?
    Ask {
        /// Which.
        round: u64,
    },
    /// A whole branch has spoken, and nobody in it has a result of this round.
    Up {
        /// Which.
        round: u64,
        /// What it gives.
        value: Value,
    },
    /// The result of the last round.
    Down {
        /// It.
        outcome: Outcome,
    },
}

/// What a branch gives to a round.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Value {
    /// Nothing: all in it have come after that round.
    Nothing,
    /// That it has come so far.
    Barrier,
    /// A sum. It cannot overflow on its way, in whatever order it is made.
    Sum(i128),
    /// What each gave, in order.
    Gather(Vec<(Id, Vec<u8>)>),
    /// Not all do the same.
    Mismatch,
    /// More was gathered than fits.
    TooLarge,
}

/// What came out of a round: the same for all.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// All have come so far.
    Barrier,
    /// Their sum.
    Sum(i64),
    /// What each gave, in order.
    Gather(Vec<(Id, Vec<u8>)>),
    /// Not all did the same.
    Mismatch,
    /// More was gathered than fits.
    TooLarge,
    /// The sum is out of range.
    Overflow,
}

/// What gathered values take.
#[must_use]
pub fn gathered(values: &[(Id, Vec<u8>)]) -> usize {
    values.iter().map(|v| VALUE_HEAD + v.1.len()).sum()
}

/// The kind, the view, who speaks, and what follows.
fn head(bytes: &[u8]) -> Result<(u8, ViewId, Id, Reader<'_>), Malformed> {
    let mut reader = Reader(bytes);
    if reader.byte()? != VERSION {
        return Err(Malformed::Version);
    }
    Ok((reader.byte()?, reader.view()?, Id(reader.u32()?), reader))
}

impl Message {
    /// Reads no more than the view and who speaks.
    ///
    /// # Errors
    /// Whatever does not hold together so far.
    pub fn head(bytes: &[u8]) -> Result<(ViewId, Id), Malformed> {
        head(bytes).map(|(_, view, from, _)| (view, from))
    }

    /// Reads a message.
    ///
    /// # Errors
    /// Whatever does not hold together.
    pub fn parse(bytes: &[u8]) -> Result<Self, Malformed> {
        let (kind, view, from, mut reader) = head(bytes)?;
        let last = Last { round: reader.number()?, view: reader.number()? };
        // What is decided is decided in some view before, or in this one.
        if last.view > view.number || last.round > ROUND_MAX {
            return Err(Malformed::Inconsistent);
        }
        let words = match kind {
            TELL => Words::Tell,
            ASK => Words::Ask { round: reader.number()? },
            UP => Words::Up { round: reader.number()?, value: Value::read(&mut reader)? },
            DOWN if last.round > 0 => Words::Down { outcome: Outcome::read(&mut reader)? },
            DOWN => return Err(Malformed::Inconsistent),
            _ => return Err(Malformed::Unknown),
        };
        Ok(Self { view, from, last, words })
    }

    /// Appends the message.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let kind = match self.words {
            Words::Tell => TELL,
            Words::Ask { .. } => ASK,
            Words::Up { .. } => UP,
            Words::Down { .. } => DOWN,
        };
        out.extend([VERSION, kind]);
        self.view.encode(out);
        put_number(self.from.0.into(), out);
        put_number(self.last.round, out);
        put_number(self.last.view, out);
        match &self.words {
            Words::Tell => {}
            Words::Ask { round } => put_number(*round, out),
            Words::Up { round, value } => {
                put_number(*round, out);
                value.encode(out);
            }
            Words::Down { outcome } => outcome.encode(out),
        }
        out.extend(tomorrow::field());
    }
}

impl Value {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match reader.byte()? {
            0 => Self::Nothing,
            1 => Self::Barrier,
            2 => Self::Sum(i128::from_le_bytes(reader.array()?)),
            3 => Self::Gather(reader.gathered()?),
            4 => Self::Mismatch,
            5 => Self::TooLarge,
            _ => return Err(Malformed::Unknown),
        })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Nothing => out.push(0),
            Self::Barrier => out.push(1),
            Self::Sum(sum) => {
                out.push(2);
                out.extend(sum.to_le_bytes());
            }
            Self::Gather(values) => {
                out.push(3);
                put_gathered(values, out);
            }
            Self::Mismatch => out.push(4),
            Self::TooLarge => out.push(5),
        }
    }
}

impl Outcome {
    fn read(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(match reader.byte()? {
            1 => Self::Barrier,
            2 => Self::Sum(i64::from_le_bytes(reader.array()?)),
            3 => Self::Gather(reader.gathered()?),
            4 => Self::Mismatch,
            5 => Self::TooLarge,
            6 => Self::Overflow,
            _ => return Err(Malformed::Unknown),
        })
    }

    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Barrier => out.push(1),
            Self::Sum(sum) => {
                out.push(2);
                out.extend(sum.to_le_bytes());
            }
            Self::Gather(values) => {
                out.push(3);
                put_gathered(values, out);
            }
            Self::Mismatch => out.push(4),
            Self::TooLarge => out.push(5),
            Self::Overflow => out.push(6),
        }
    }
}

fn put_gathered(values: &[(Id, Vec<u8>)], out: &mut Vec<u8>) {
    put_number(values.len() as u64, out);
    for (id, bytes) in values {
        put_number(id.0.into(), out);
        put_number(bytes.len() as u64, out);
        out.extend(bytes);
    }
}

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        self.bytes(N)?.try_into().map_err(|_| Malformed::Truncated)
    }

    /// Each once and in order, none too long, nor all together.
    fn gathered(&mut self) -> Result<Vec<(Id, Vec<u8>)>, Malformed> {
        let mut room = GATHERED_MAX;
        let values = self.list(|reader| {
            let (id, length) = (Id(reader.u32()?), reader.u32()? as usize);
            let left = room.checked_sub(VALUE_HEAD + length).filter(|_| length <= VALUE_MAX);
            room = left.ok_or(Malformed::Inconsistent)?;
            Ok((id, reader.bytes(length)?.to_vec()))
        })?;
        if values.is_sorted_by(|a, b| a.0 < b.0) { Ok(values) } else { Err(Malformed::Inconsistent) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::Task;
    use proptest::prelude::*;

    const VIEW: ViewId = ViewId { number: 300, root: Task(2), stint: 1 };

    fn message(words: Words) -> Message {
        Message { view: VIEW, from: Id(4), last: Last { round: 1 << 40, view: 299 }, words }
    }

    fn bytes(message: &Message) -> Vec<u8> {
        let mut out = Vec::new();
        message.encode(&mut out);
        out
    }

    fn up(value: Value) -> Words {
        Words::Up { round: 7, value }
    }

    fn down(outcome: Outcome) -> Words {
        Words::Down { outcome }
    }

    #[test]
    fn st_4_what_is_written_is_read() {
        let gathered = vec![(Id(1), b"one".to_vec()), (Id(300), Vec::new())];
        let all = [
            Words::Tell,
            Words::Ask { round: 1 << 50 },
            up(Value::Nothing),
            up(Value::Barrier),
            up(Value::Sum(i128::MIN)),
            up(Value::Gather(gathered.clone())),
            up(Value::Mismatch),
            up(Value::TooLarge),
            down(Outcome::Barrier),
            down(Outcome::Sum(i64::MIN)),
            down(Outcome::Gather(gathered)),
            down(Outcome::Mismatch),
            down(Outcome::TooLarge),
            down(Outcome::Overflow),
        ];
        for words in all {
            let message = message(words);
            let bytes = bytes(&message);
            assert_eq!(Message::parse(&bytes).as_ref(), Ok(&message));
            assert_eq!(Message::head(&bytes), Ok((VIEW, Id(4))));
            for cut in 0..bytes.len() - tomorrow::field().len() {
                assert!(Message::parse(&bytes[..cut]).is_err(), "{message:?} cut at {cut}");
            }
        }
    }

    #[test]
    fn st_4_what_does_not_hold_together_is_not_read() {
        let refused = |message: &Message| Message::parse(&bytes(message)).unwrap_err();
        let of = |values: &[(u32, usize)]| values.iter().map(|&(id, n)| (Id(id), vec![7; n])).collect::<Vec<_>>();
        for lie in [of(&[(1, 1), (1, 1)]), of(&[(2, 1), (1, 1)]), of(&[(1, VALUE_MAX + 1)])] {
            assert_eq!(refused(&message(up(Value::Gather(lie.clone())))), Malformed::Inconsistent);
            assert_eq!(refused(&message(down(Outcome::Gather(lie)))), Malformed::Inconsistent);
        }
        let each = GATHERED_MAX / 100 - VALUE_HEAD;
        let many = |n: u32| message(up(Value::Gather((0..n).map(|id| (Id(id), vec![0; each])).collect())));
        assert!(Message::parse(&bytes(&many(100))).is_ok());
        assert_eq!(refused(&many(101)), Malformed::Inconsistent, "together");
        let later = Last { round: 1, view: 301 };
        assert_eq!(refused(&Message { last: later, ..message(Words::Tell) }), Malformed::Inconsistent);
        let last = Last { round: ROUND_MAX + 1, view: 300 };
        assert_eq!(refused(&Message { last, ..message(Words::Tell) }), Malformed::Inconsistent);
        let nothing = Message { last: Last::default(), ..message(down(Outcome::Barrier)) };
        assert_eq!(refused(&nothing), Malformed::Inconsistent, "a result of no round");
        assert_eq!(Message::parse(&[2; 30]), Err(Malformed::Version));
        assert_eq!(Message::parse(&[1, 9, 0, 0, 0, 0, 0, 0]), Err(Malformed::Unknown));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), kind in 0u8..6) {
            if let [version, of, number, ..] = &mut bytes[..] {
                (*version, *of, *number) = (VERSION, kind, *number | 0x80);
            }
            if let Ok(message) = Message::parse(&bytes) {
                let mut again = Vec::new();
                message.encode(&mut again);
                prop_assert_eq!(Message::parse(&again), Ok(message));
            }
        }
    }
}
