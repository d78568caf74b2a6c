//! The functional fault model and its injector (FI-1 … FI-6, 004 §4–5, Tables 2–4).
//!
//! A [`Rule`] says what goes wrong, how often, when, and to whom. An [`Injector`] holds the rules that are
//! switched on and sits in the way of each packet: [`Injector::send`] on the way out, [`Injector::receive`] on
//! the way in, [`Injector::allocate`] beside them. Without rules it is the identity. It owns no clock, socket or
//! thread, so the daemon and the simulator inject the same faults with the same code, and a seed replays them.
//!
//! FI-3: there are two points. `wire` lies below the seal and does what networks do; there a modified packet
//! dies at its tag. `plain` lies above the seal and below RCL and MML, and exercises their own checks.
//!
//! `docs/faults.md` is the guide for those who write rules.

mod active;
mod amount;
mod count;
mod distribution;
mod hold;
mod injector;
mod platform;
mod rule;
mod schedule;
#[cfg(test)]
mod tests;
mod text;

pub use active::{MAX_COPIES, MAX_PAST, MAX_PEERS, MAX_RULES, MAX_TARGETS, RETRY_AFTER};
pub use count::{Counters, Effects, Tally};
pub use distribution::{Distribution, Probability};
pub use hold::{MAX_HELD, PATIENCE};
pub use injector::{Injector, Outcome, RuleId};
pub use platform::{FAILURES, Failure, code_of};
pub use rule::{
    After, Call, Delay, Kind, KindName, Lasts, MAX_BITS, MAX_NAME, MAX_SAMPLES, Recurrence, Rule, RuleError,
};
