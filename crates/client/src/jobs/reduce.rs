//! Barriers, sums and gathers: all tasks of a job that hold a rank do the same in the same order, and all have one result.
//!
//! They complete over the tasks that live: one that dies meanwhile is waited for until there is a view without it. Who has not come to the
//! job yet is not waited for: call [`Task::wait_full`] before the first. Who comes to a running job takes part in what the others do next. Each task does one at a time. Events that come meanwhile are not
//! lost; a task with hooks that waits in a reduction does not see [`Event::Pause`](super::Event::Pause), and holds up the change of the view
//! for as long as hooks may take.

use super::{Answer, Task};
use crate::Error;
use phalanx_api::jobs::{ToShepherd, words};
use phalanx_api::reduce::{GATHER_MAX, Gathered, give};

impl Task {
    /// Waits until all tasks that live have come so far.
    ///
    /// # Errors
    /// [`Error::Refused`] when the tasks did not all do the same, or we are not in the view; it says what to do.
    pub async fn barrier(&self) -> Result<(), Error> {
        self.reduce(|number| said(&ToShepherd::Barrier { number })).await.map(drop)
    }

    /// The sum of what all tasks that live give.
    ///
    /// # Errors
    /// As [`Task::barrier`]; and for all, when the sum is out of range.
    pub async fn sum(&self, value: i64) -> Result<i64, Error> {
        match self.reduce(|number| said(&ToShepherd::Sum { number, value })).await? {
            Answer::Sum(sum) => Ok(sum),
            other => Err(Error::Answer(format!("{other:?} is no sum"))),
        }
    }

    /// What each task that lives gives, with its rank, in the order of ranks.
    ///
    /// # Errors
    /// As [`Task::barrier`]; when the value is too long; and for all, when all values together are.
    pub async fn gather(&self, value: &[u8]) -> Result<Gathered, Error> {
        if value.len() > GATHER_MAX {
            let need = value.len();
            let error = format!("a task gathers up to {GATHER_MAX} bytes, not {need}: send the rest in messages");
            return Err(Error::Refused { status: 413, error });
        }
        match self.reduce(|number| give(number, value)).await? {
            Answer::Gathered(values) => Ok(values),
            other => Err(Error::Answer(format!("{other:?} was not gathered"))),
        }
    }

    async fn reduce(&self, frame: impl FnOnce(u64) -> Vec<u8>) -> Result<Answer, Error> {
        match self.ask(frame).await? {
            Answer::Refused(error, _) => Err(Error::Refused { status: 409, error }),
            answer => Ok(answer),
        }
    }
}

fn said(what: &ToShepherd) -> Vec<u8> {
    words(&serde_json::to_vec(what).unwrap_or_default())
}
