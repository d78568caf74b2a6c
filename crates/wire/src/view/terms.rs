//! The words of views.

use super::codec::{Reader, put_number, put_tasks};
use crate::Malformed;
use crate::addr::encode_addr;
use phalanx_core::Addr;
use std::fmt;

/// A task of a job, by its number: the paper's node id.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Task(pub u32);

impl Task {
    /// Who has no number yet.
    pub const NONE: Self = Self(u32::MAX);
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The name of a view: no two have the same, and none is ever made twice.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ViewId {
    /// One more than that of the view it came from, or more.
    pub number: u64,
    /// The root that proposed it.
    pub root: Task,
    /// Which life of that root it was.
    pub stint: u32,
}

impl ViewId {
    /// The view that a job starts with.
    pub const FIRST: Self = Self { number: 0, root: Task(0), stint: 0 };

    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        put_number(self.number, out);
        put_number(self.root.0.into(), out);
        put_number(self.stint.into(), out);
    }
}

impl fmt::Display for ViewId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.number, self.root, self.stint)
    }
}

/// An attempt to find the successor of a view. The root of a view has the first one for itself.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ballot {
    /// Counts attempts.
    pub counter: u32,
    /// Whose it is.
    pub owner: Task,
}

impl Ballot {
    /// The first attempt, of the root of a view.
    #[must_use]
    pub const fn first(root: Task) -> Self {
        Self { counter: 0, owner: root }
    }

    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        put_number(self.counter.into(), out);
        put_number(self.owner.0.into(), out);
    }
}

/// Where a task is, and which life of it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Person {
    /// Its host, where letters for it go.
    pub host: Addr,
    /// Drawn at its start.
    pub boot: u32,
    /// How often the task was somebody else before.
    pub stint: u32,
}

impl Person {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        encode_addr(self.host, out);
        put_number(self.boot.into(), out);
        put_number(self.stint.into(), out);
    }
}

/// Somebody who is new in a view.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Joined {
    /// The task.
    pub task: Task,
    /// Who is it now.
    pub person: Person,
}

/// What makes one view of another.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Change {
    /// The view that it makes.
    pub id: ViewId,
    /// The view that it starts from.
    pub base: ViewId,
    /// Who is not in it any more, in order.
    pub failed: Vec<Task>,
    /// Who is new in it, in order. One that failed and joined was replaced.
    pub joined: Vec<Joined>,
    /// RV-9: ranks that have another holder, in order.
    pub ranks: Vec<(u32, Task)>,
    /// Tasks save their state before they agree.
    pub checkpoint: bool,
}

impl Change {
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        self.id.encode(out);
        self.base.encode(out);
        out.push(self.checkpoint.into());
        put_tasks(&self.failed, out);
        put_number(self.joined.len() as u64, out);
        for joined in &self.joined {
            put_number(joined.task.0.into(), out);
            joined.person.encode(out);
        }
        put_ranks(&self.ranks, out);
    }
}

pub(super) fn put_ranks(ranks: &[(u32, Task)], out: &mut Vec<u8>) {
    put_number(ranks.len() as u64, out);
    for (rank, task) in ranks {
        put_number((*rank).into(), out);
        put_number(task.0.into(), out);
    }
}

impl Reader<'_> {
    pub(crate) fn view(&mut self) -> Result<ViewId, Malformed> {
        Ok(ViewId { number: self.number()?, root: self.task()?, stint: self.u32()? })
    }

    pub(super) fn ballot(&mut self) -> Result<Ballot, Malformed> {
        Ok(Ballot { counter: self.u32()?, owner: self.task()? })
    }

    pub(super) fn person(&mut self) -> Result<Person, Malformed> {
        Ok(Person { host: self.addr()?, boot: self.u32()?, stint: self.u32()? })
    }

    pub(super) fn change(&mut self) -> Result<Change, Malformed> {
        let (id, base, checkpoint, failed) = (self.view()?, self.view()?, self.byte()? & 1 != 0, self.tasks()?);
        let joined = self.list(|r| Ok(Joined { task: r.task()?, person: r.person()? }))?;
        let ranks = self.ranks()?;
        let in_order = joined.is_sorted_by(|a, b| a.task < b.task) && ranks.is_sorted_by(|a, b| a.0 < b.0);
        if !in_order || id.number <= base.number {
            return Err(Malformed::Inconsistent);
        }
        Ok(Change { id, base, failed, joined, ranks, checkpoint })
    }

    pub(super) fn ranks(&mut self) -> Result<Vec<(u32, Task)>, Malformed> {
        self.list(|r| Ok((r.u32()?, r.task()?)))
    }
}
