//! The words of reductions.

use crate::cast::report::Line;
use crate::cast::tree::Id;
use phalanx_core::Sink;
use phalanx_wire::reduce::{Outcome, VALUE_MAX};
use phalanx_wire::view::ViewId;
use thiserror::Error;

/// Why a node does not take part. Nothing has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum ReduceError {
    /// One value of a gather.
    #[error("a task gathers up to {VALUE_MAX} bytes, not {0}: send the rest in messages")]
    TooLarge(usize),
    /// Its last reduction is not over.
    #[error("a reduction of this task is under way: wait for its result")]
    Busy,
    /// It is in no view, or a spare.
    #[error("only tasks that hold a rank in the view reduce: wait for a view, or for a rank")]
    Outside,
}

/// What a node gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gift<'a> {
    /// That it has come so far.
    Barrier,
    /// A summand.
    Sum(i64),
    /// Bytes, for all to have.
    Gather(&'a [u8]),
}

/// What a node is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input<'a> {
    /// There is a new view, and we are in it.
    View {
        /// Its name.
        view: ViewId,
        /// The number of the first view that we were in.
        since: u64,
        /// Our number in the tree.
        me: Id,
        /// Who is next to us.
        line: Line,
    },
    /// A message came.
    Heard {
        /// Its bytes.
        bytes: &'a [u8],
    },
}

/// What a node decides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output<'a> {
    /// Send this, in order.
    Send {
        /// To whom.
        to: Id,
        /// The message.
        bytes: &'a [u8],
    },
    /// What came out of the reduction in which we took part.
    Done(&'a Outcome),
}

/// A sink for what nodes decide.
pub trait Out: for<'a> Sink<Output<'a>> {}
impl<S: for<'a> Sink<Output<'a>>> Out for S {}

/// What was dropped, and what happened how often.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct Counters {
    /// Rounds that were decided here.
    pub decided: u64,
    /// Messages that could not be read.
    pub malformed: u64,
    /// Messages of a view that was over.
    pub stale: u64,
    /// Messages for a view to come for which there was no room.
    pub overflow: u64,
    /// Messages from who is not next to us, or of rounds that there cannot be.
    pub strays: u64,
    /// Results that had come before.
    pub twice: u64,
}
