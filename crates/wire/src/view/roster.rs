//! A whole view, for newcomers and for those who were left behind.

use super::codec::{Reader, put_number};
use super::terms::{Person, Task, ViewId, put_ranks};
use crate::Malformed;

/// A task in a whole view.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Entry {
    /// Who it is, or was.
    pub person: Person,
    /// In the view.
    pub lives: bool,
    /// On a seat of the tree: all that live, and the dead whose seats are crossed.
    pub seated: bool,
}

/// A whole view.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Roster {
    /// Its name.
    pub id: ViewId,
    /// The arity of its tree.
    pub arity: u32,
    /// How many ranks the job has.
    pub ranks: u32,
    /// The tasks, from 0 on.
    pub entries: Vec<Entry>,
    /// Ranks whose holder has another number, in order.
    pub holders: Vec<(u32, Task)>,
}

impl Roster {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        self.id.encode(out);
        put_number(self.arity.into(), out);
        put_number(self.ranks.into(), out);
        put_number(self.entries.len() as u64, out);
        for entry in &self.entries {
            out.push(u8::from(entry.lives) | u8::from(entry.seated) << 1);
            entry.person.encode(out);
        }
        put_ranks(&self.holders, out);
    }
}

impl Reader<'_> {
    pub(super) fn roster(&mut self) -> Result<Roster, Malformed> {
        let (id, arity, ranks) = (self.view()?, self.u32()?, self.u32()?);
        let entries = self.list(|r| {
            let flags = r.byte()?;
            let (lives, seated) = (flags & 1 != 0, flags & 2 != 0);
            if lives && !seated {
                return Err(Malformed::Inconsistent);
            }
            Ok(Entry { person: r.person()?, lives, seated })
        })?;
        let holders = self.ranks()?;
        if !holders.is_sorted_by(|a, b| a.0 < b.0) {
            return Err(Malformed::Inconsistent);
        }
        Ok(Roster { id, arity, ranks, entries, holders })
    }
}
