//! Explores a model, to its end or to a bound.

use stateright::{Checker, HasDiscoveries, Model};
use std::fmt;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// What was explored.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report<A> {
    /// What was.
    pub model: String,
    /// Different states.
    pub states: usize,
    /// States that were reached, those reached twice counted twice.
    pub reached: usize,
    /// How deep.
    pub depth: usize,
    /// Nothing was left out.
    pub complete: bool,
    /// What does not hold, the actions that lead there, and how everybody stands then.
    pub violations: Vec<(&'static str, Vec<A>, String)>,
}

impl<A: fmt::Debug> fmt::Display for Report<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = if self.complete { "all of them" } else { "not all of them" };
        writeln!(f, "{}", self.model)?;
        write!(f, "{} states, {whole}; {} reached; depth {}", self.states, self.reached, self.depth)?;
        for (name, actions, end) in &self.violations {
            write!(f, "\n{name} is violated after {} actions: {actions:?}{end}", actions.len())?;
        }
        Ok(())
    }
}

/// Explores a model.
#[must_use]
pub fn check<M>(model: M, states: Option<usize>, time: Option<Duration>) -> Report<M::Action>
where
    M: Model + fmt::Display + Send + Sync + 'static,
    M::State: Hash + fmt::Display + Send + Sync + fmt::Debug + Clone + PartialEq,
    M::Action: fmt::Debug + Clone + PartialEq,
{
    let name = model.to_string();
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut builder = model.checker().threads(threads).finish_when(HasDiscoveries::Any);
    if let Some(states) = states {
        builder = builder.target_state_count(states);
    }
    if let Some(time) = time {
        builder = builder.timeout(time);
    }
    let started = Instant::now();
    let checker = builder.spawn_bfs().join();
    let in_time = time.is_none_or(|t| started.elapsed() < t);
    let found = checker.discoveries().into_iter();
    let violations: Vec<_> = found
        .map(|(name, path)| {
            let end = path.last_state().to_string();
            (name, path.into_actions(), end)
        })
        .collect();
    Report {
        model: name,
        states: checker.unique_state_count(),
        reached: checker.state_count(),
        depth: checker.max_depth(),
        complete: in_time && states.is_none_or(|s| checker.state_count() < s) && violations.is_empty(),
        violations,
    }
}
