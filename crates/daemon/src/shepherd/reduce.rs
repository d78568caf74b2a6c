//! Reductions of tasks: what they give, and what they are told of it.

use super::Shepherd;
use super::desk::Caller;
use phalanx_api::jobs::{FRAME_MAX, ToTask};
use phalanx_api::reduce::{GATHER_MAX, gather};
use phalanx_protocol::company::{Gift, Outcome, ReduceError};
use phalanx_wire::reduce::{GATHERED_MAX, VALUE_MAX};

// What clients are told is what machines hold, and a task can be told it.
const _: () = assert!(GATHER_MAX == VALUE_MAX && GATHERED_MAX < FRAME_MAX);

impl Shepherd {
    pub(super) fn on_reduce(&mut self, caller: Caller, number: u64, gift: Gift<'_>) {
        let given = match self.seat_of(caller) {
            Some(seat) => self.driver.act(|company, now, out| company.reduce(now, seat, gift, out)),
            None => Err(ReduceError::Outside),
        };
        match (given, self.tasks.get_mut(&caller)) {
            (Ok(()), Some(task)) => task.reduces = Some(number),
            (Ok(()), None) => {}
            (Err(e), _) => self.desk.say(caller, &ToTask::Unreduced { number, error: e.to_string() }),
        }
    }

    pub(super) fn on_outcome(&mut self, caller: Caller, outcome: Outcome) {
        let name = &self.terms.name;
        let error = match outcome {
            Outcome::Barrier => return self.reduced(caller, |number| ToTask::Reduced { number, sum: None }),
            Outcome::Sum(sum) => return self.reduced(caller, |number| ToTask::Reduced { number, sum: Some(sum) }),
            Outcome::Gather(values) => {
                let Some(number) = self.take_reduction(caller) else { return };
                let values = values.iter().map(|(rank, value)| (rank.0, value.as_slice()));
                return self.desk.send(caller, gather(number, values));
            }
            Outcome::Mismatch => format!(
                "the tasks of job `{name}` did not all do the same reduction: have all call barrier, sum and gather in the same order"
            ),
            Outcome::TooLarge => format!(
                "the tasks of job `{name}` gathered more than {GATHERED_MAX} bytes together: gather less, or send it in messages"
            ),
            Outcome::Overflow => "the sum does not fit into 64 bits: sum smaller numbers".to_owned(),
        };
        self.reduced(caller, |number| ToTask::Unreduced { number, error });
    }

    pub(super) fn on_unreduced(&mut self, caller: Caller) {
        let name = &self.terms.name;
        let error = format!("the view of job `{name}` is without this task, which reduces no more: rejoin first");
        self.reduced(caller, |number| ToTask::Unreduced { number, error });
    }

    fn reduced(&mut self, caller: Caller, words: impl FnOnce(u64) -> ToTask) {
        if let Some(number) = self.take_reduction(caller) {
            self.desk.say(caller, &words(number));
        }
    }

    fn take_reduction(&mut self, caller: Caller) -> Option<u64> {
        self.tasks.get_mut(&caller)?.reduces.take()
    }
}
