//! Checkers: what must hold, watched while faults rage, and asked for once they are over.
//!
//! Two phases, as TigerBeetle does it. First safety under faults: a checker sees each note of each process, in the
//! order of (time, node), and each fault, and says what must never have happened. Then everything is healed and the
//! run goes on until no checker waits for anything, or a bound has passed: that is liveness.

use crate::fault::Fault;
use crate::node::State;
use crate::process::Process;
use crate::shard::Shard;
use crate::stats::Stats;
use phalanx_core::{Duration, Instant};
use std::fmt;

/// Something that must hold. All methods are called on one thread, in an order that a seed replays.
pub trait Checker<P: Process>: Send {
    /// Its name in reports.
    fn name(&self) -> &'static str;
    /// A process said something.
    fn note(&mut self, _at: Instant, _node: u32, _note: &P::Note, _verdict: &mut Verdict) {}
    /// A fault was inflicted.
    fn fault(&mut self, _at: Instant, _fault: &Fault, _verdict: &mut Verdict) {}
    /// Everything is healed; from now on things must get well.
    fn healed(&mut self, _at: Instant, _cluster: &Cluster<'_, P>, _verdict: &mut Verdict) {}
    /// What must still come true, asked again and again after healing; `None` when nothing is missing.
    fn pending(&mut self, _at: Instant, _cluster: &Cluster<'_, P>) -> Option<String> {
        None
    }
    /// The run is over.
    fn ended(&mut self, _at: Instant, _cluster: &Cluster<'_, P>, _verdict: &mut Verdict) {}
}

/// What a checker decides.
#[derive(Default)]
pub struct Verdict {
    pub(crate) violations: Vec<(Option<u32>, String)>,
    pub(crate) faults: Vec<Fault>,
}

impl Verdict {
    /// Something happened, at `node` if it is one node's doing, that must not happen.
    pub fn violation(&mut self, node: impl Into<Option<u32>>, text: impl Into<String>) {
        self.violations.push((node.into(), text.into()));
    }

    /// FI-6: a fault in answer to what was seen. It comes within one network delay, at the same time in each replay.
    pub fn inflict(&mut self, fault: Fault) {
        self.faults.push(fault);
    }
}

/// All nodes of a run, to be looked at.
pub struct Cluster<'a, P: Process>(pub(crate) &'a [Shard<P>]);

impl<'a, P: Process> Cluster<'a, P> {
    /// The process of `node`; `None` while it is dead.
    #[must_use]
    pub fn process(&self, node: u32) -> Option<&'a P> {
        let shard = self.0.get((node / self.0[0].io.each) as usize)?;
        shard.nodes.get((node - shard.io.first) as usize)?.process.as_ref()
    }

    /// How `node` is.
    #[must_use]
    pub fn state(&self, node: u32) -> Option<State> {
        let shard = self.0.get((node / self.0[0].io.each) as usize)?;
        Some(shard.nodes.get((node - shard.io.first) as usize)?.meta.state)
    }

    /// All live processes with their nodes, by node.
    pub fn processes(&self) -> impl Iterator<Item = (u32, &'a P)> {
        self.0
            .iter()
            .flat_map(|s| (s.io.first..).zip(&s.nodes))
            .filter_map(|(n, node)| Some((n, node.process.as_ref()?)))
    }
}

/// Something that happened and must not have.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Violation {
    /// The checker that saw it.
    pub checker: &'static str,
    /// When.
    pub at: Instant,
    /// Where, if it is one node's doing.
    pub node: Option<u32>,
    /// What.
    pub text: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}", self.checker, self.at)?;
        if let Some(node) = self.node {
            write!(f, ", node {node}")?;
        }
        write!(f, ": {}", self.text)
    }
}

/// What a run came to.
#[derive(Clone, PartialEq, Debug)]
pub struct Report {
    /// The seed that replays it.
    pub seed: u64,
    /// How long it was, in virtual time.
    pub ended: Instant,
    /// From healing until nothing was missing; `None` when it never came to that, or healing was not asked for.
    pub settled_in: Option<Duration>,
    /// The chain of all that happened in all nodes.
    pub trace: u64,
    /// Counters.
    pub stats: Stats,
    /// What must not have happened, the first ones.
    pub violations: Vec<Violation>,
    /// Violations beyond those.
    pub more: u64,
    /// The line that replays the run.
    pub replay: String,
}

impl Report {
    /// True when nothing happened that must not.
    #[must_use]
    pub fn is_green(&self) -> bool {
        self.violations.is_empty()
    }

    /// The report itself when it is green.
    ///
    /// # Panics
    /// With the violations and the line that replays them, when it is red.
    #[must_use]
    pub fn expect_green(self) -> Self {
        assert!(self.is_green(), "{self}");
        self
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let colour = if self.is_green() { "green" } else { "red" };
        writeln!(f, "{colour}: seed {}, ended {}, trace {:016x}", self.seed, self.ended, self.trace)?;
        for violation in &self.violations {
            writeln!(f, "  {violation}")?;
        }
        if self.more > 0 {
            writeln!(f, "  and {} more", self.more)?;
        }
        write!(f, "replay: {}", self.replay)
    }
}
