//! What the two processes of a run are told: a task, and what goes wrong meanwhile.

use super::party::TURN;
use phalanx_fault::{Call, Delay, Kind, Probability, Recurrence, Rule};
use std::fmt;

/// Messages of a communication-bound run.
const POURED: u64 = 20_000;
/// Turns of a CPU-bound run.
const TURNS: u64 = 12;
/// Words of an order among a child's arguments.
pub(super) const WORDS: usize = 7;

/// The kinds of Table 2, and what they combine to.
pub(super) const KINDS: [(&str, Kind); 9] = [
    ("drop", Kind::Drop),
    ("delay", Kind::Delay(Delay::UntilNext)),
    ("modify", Kind::Modify { bits: 1 }),
    ("reorder", Kind::Reorder),
    ("inject", Kind::Inject { bits: 0 }),
    ("inject+modify", Kind::Inject { bits: 8 }),
    ("invocation-send", Kind::Invocation { call: Call::Send, code: None }),
    ("invocation-receive", Kind::Invocation { call: Call::Receive, code: None }),
    ("operation", Kind::Operation { code: None, deliver: None, after: Kind::OPERATION_FAILS_AFTER }),
];
/// One of the paper's two tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Task {
    Communication,
    Cpu,
}

impl Task {
    pub(super) const ALL: [Self; 2] = [Self::Communication, Self::Cpu];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Communication => "communication",
            Self::Cpu => "cpu",
        }
    }

    /// Messages that each sending process sends.
    pub(super) const fn messages(self) -> u64 {
        match self {
            Self::Communication => POURED,
            Self::Cpu => TURNS * TURN,
        }
    }

    /// Messages that arrive in one run, at both processes.
    pub(super) const fn due(self) -> u64 {
        match self {
            Self::Communication => self.messages(),
            Self::Cpu => 2 * self.messages(),
        }
    }
}

/// Where faults are injected (FI-3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Point {
    Wire,
    Plain,
}

impl Point {
    pub(super) const ALL: [Self; 2] = [Self::Wire, Self::Plain];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Wire => "wire",
            Self::Plain => "plain",
        }
    }
}

/// The two processes. The far one invites, receives what is poured, and has the clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Side {
    Far = 1,
    Near = 2,
}

impl Side {
    pub(super) const fn other(self) -> Self {
        match self {
            Self::Far => Self::Near,
            Self::Near => Self::Far,
        }
    }

    pub(super) const fn role(self) -> &'static str {
        match self {
            Self::Far => "link-faults-far",
            Self::Near => "link-faults-near",
        }
    }
}

/// What both processes of a run are told.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Order {
    /// The task.
    pub(super) task: Task,
    /// What goes wrong, by its name in rows.
    pub(super) kind: (&'static str, Kind),
    /// Where.
    pub(super) point: Point,
    /// With which share of the packets.
    pub(super) rate: f64,
    /// Which of them.
    pub(super) seed: u64,
    /// Messages of each sending process.
    pub(super) messages: u64,
    /// Steps in one slice of the computation.
    pub(super) work: u64,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { task, kind, point, rate, seed, .. } = self;
        write!(f, "{}, {} at {}, rate {rate}, seed {seed}", task.name(), kind.0, point.name())
    }
}

impl Order {
    pub(super) fn rule(&self) -> Rule {
        let chance = Probability::new(self.rate).expect("rates are probabilities");
        Rule::new(self.kind.1.clone()).recurring(Recurrence::Chance(chance))
    }

    /// As arguments of a child.
    pub(super) fn words(&self) -> Vec<String> {
        let Self { task, kind, point, rate, seed, messages, work } = self;
        let numbers = [rate.to_string(), seed.to_string(), messages.to_string(), work.to_string()];
        [task.name(), kind.0, point.name()].map(String::from).into_iter().chain(numbers).collect()
    }

    /// From arguments of a child.
    pub(super) fn read(words: &[String]) -> Option<Self> {
        let [task, kind, point, rate, seed, messages, work] = words else { return None };
        Some(Self {
            task: Task::ALL.into_iter().find(|t| t.name() == task)?,
            kind: KINDS.into_iter().find(|k| k.0 == kind)?,
            point: Point::ALL.into_iter().find(|p| p.name() == point)?,
            rate: rate.parse().ok()?,
            seed: seed.parse().ok()?,
            messages: messages.parse().ok()?,
            work: work.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_survives_the_command_line() {
        for kind in KINDS {
            let (task, point) = (Task::Cpu, Point::Plain);
            let order = Order { task, kind, point, rate: 0.005, seed: 3, messages: 24, work: 1000 };
            assert_eq!(order.words().len(), WORDS);
            assert_eq!(Order::read(&order.words()), Some(order.clone()));
            assert_eq!(Order::read(&order.words()[1..]), None);
            assert!(order.rule().check().is_ok());
        }
    }
}
