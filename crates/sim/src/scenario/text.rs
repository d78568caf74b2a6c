//! The fields of a scenario, and the scenario they make.

use super::entry::{Entry, EntryText, Frame};
use super::expect::{Bound, ExpectText, bounds};
use super::load::{name, roles};
use super::measure::names;
use super::problem::{Problem, ScenarioError, line_of, read, syntax, unknown};
use super::set::Change;
use super::span::Span;
use crate::network::{Network, NetworkError, World};
use crate::sim::Setup;
use crate::station::{Options, Seals, Workload, WorkloadError};
use phalanx_core::{Duration, NodeId};
use serde::Deserialize;

/// A run, written down.
#[derive(Clone, PartialEq, Debug)]
pub struct Scenario {
    /// What it is called.
    pub name: String,
    /// The cluster: size, seed, threads, network.
    pub setup: Setup,
    /// What the nodes do.
    pub workload: Workload,
    /// How they do it.
    pub options: Options,
    /// How long.
    pub phases: Phases,
    /// Measures to print; all that came up when empty.
    pub measure: Vec<String>,
    /// What must hold beyond the checkers.
    pub expect: Vec<Bound>,
    pub(crate) timeline: Vec<Entry>,
}

/// First safety under faults; then everything is healed, and things must get well.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Phases {
    /// How long faults last.
    pub safety: Duration,
    /// How long nodes go on working after that, before they rest.
    pub work: Duration,
    /// How long the cluster then has to get well.
    pub liveness: Duration,
}

/// The fields, in the order in which they are listed to those who misspell one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    name: String,
    nodes: u32,
    seed: Option<u64>,
    threads: Option<usize>,
    #[serde(default)]
    seals: SealsText,
    #[serde(default)]
    by_reference: bool,
    start_within: Option<Span>,
    disk: Option<Span>,
    socket_packets: Option<usize>,
    #[serde(default)]
    network: Network,
    workload: Workload,
    #[serde(default)]
    fault: Vec<EntryText>,
    #[serde(default)]
    phases: PhasesText,
    #[serde(default)]
    measure: MeasureText,
    #[serde(default)]
    expect: ExpectText,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SealsText {
    #[default]
    Fake,
    Real,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PhasesText {
    safety: Span,
    work: Span,
    liveness: Span,
}

impl Default for PhasesText {
    fn default() -> Self {
        let seconds = |n| Span(Duration::from_secs(n));
        Self { safety: seconds(10), work: seconds(1), liveness: seconds(60) }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct MeasureText {
    show: Vec<String>,
}

impl Scenario {
    /// The name of its workload, as scenarios write it.
    #[must_use]
    pub fn workload_name(&self) -> &'static str {
        name(&self.workload)
    }

    /// Reads the text of a scenario. `source` is what to call it in errors; `changes` are `key=value` pairs made to it
    /// first, in order.
    ///
    /// # Errors
    /// The first thing that is wrong: where, and what is accepted.
    pub fn parse(source: &str, text: &str, changes: &[impl AsRef<str>]) -> Result<Self, ScenarioError> {
        if let Err((line, text)) = syntax(text) {
            return Err(ScenarioError { source_name: source.to_owned(), line, field: String::new(), text });
        }
        let mut changed = toml::from_str::<toml::Table>(text).unwrap_or_default();
        // After each change the text as it is then; a mistake is told to whoever brought it in.
        let mut stages = vec![text.to_owned()];
        for written in changes {
            let written = written.as_ref();
            let made = Change::parse(written).and_then(|change| change.apply(&mut changed));
            made.map_err(|p| set_error(written, p))?;
            stages.push(toml::to_string(&changed).unwrap_or_default());
        }
        let read = |stage: &String| read::<Text>(stage).and_then(Text::scenario);
        let last = stages.last().map_or_else(|| read(&stages[0]), read);
        last.map_err(|problem| {
            let first = stages.iter().position(|stage| read(stage).as_ref() == Err(&problem)).unwrap_or(0);
            match first.checked_sub(1) {
                Some(change) => set_error(changes[change].as_ref(), problem),
                None => ScenarioError {
                    source_name: source.to_owned(),
                    line: line_of(text, &problem.path).or(Some(1)),
                    field: problem.path,
                    text: problem.text,
                },
            }
        })
    }
}

fn set_error(written: &str, problem: Problem) -> ScenarioError {
    ScenarioError { source_name: format!("--set {written}"), line: None, field: problem.path, text: problem.text }
}

impl Text {
    fn scenario(self) -> Result<Scenario, Problem> {
        let usual = Setup::default();
        if self.nodes == 0 || self.nodes as usize > NodeId::MAX_SLOTS {
            let text = format!("{} nodes: at least 1, at most {}", self.nodes, NodeId::MAX_SLOTS);
            return Err(Problem::new("nodes", text));
        }
        let setup = Setup {
            seed: self.seed.unwrap_or(usual.seed),
            nodes: self.nodes,
            threads: self.threads.unwrap_or(usual.threads),
            network: self.network,
            start_within: self.start_within.map_or(usual.start_within, |s| s.0),
            disk: self.disk.map_or(usual.disk, |s| s.0),
            socket_packets: self.socket_packets.unwrap_or(usual.socket_packets),
            ..usual
        };
        check_network(&setup)?;
        self.workload.check().map_err(|e| Problem::new(format!("workload.{}", workload_field(&e)), e.to_string()))?;
        let PhasesText { safety: Span(safety), work: Span(work), liveness: Span(liveness) } = self.phases;
        if safety == Duration::ZERO {
            return Err(Problem::new("phases.safety", "must be longer than nothing"));
        }
        let mut timeline = Vec::new();
        for (number, entry) in self.fault.into_iter().enumerate() {
            let frame = Frame { nodes: self.nodes, safety, roles: roles(&self.workload) };
            timeline.push(entry.entry(&frame).map_err(|p| p.inside(&format!("fault.{number}")))?);
        }
        let names = names();
        let known: Vec<&str> = names.iter().map(String::as_str).collect();
        for (n, shown) in self.measure.show.iter().enumerate() {
            if !known.contains(&shown.as_str()) {
                return Err(Problem::new(format!("measure.show.{n}"), unknown(shown, &known)));
            }
        }
        let expect = bounds(self.expect, &known).map_err(|p| p.inside("expect"))?;
        let seals = match self.seals {
            SealsText::Fake => Seals::Fake,
            SealsText::Real => Seals::Real,
        };
        let options = Options { seals, by_reference: self.by_reference, ..Options::default() };
        let phases = Phases { safety, work, liveness };
        let measure = self.measure.show;
        Ok(Scenario { name: self.name, setup, workload: self.workload, options, phases, measure, expect, timeline })
    }
}

/// Says which field the engine will not take.
fn check_network(setup: &Setup) -> Result<(), Problem> {
    let threads = setup.threads;
    if threads == 0 {
        return Err(Problem::new("threads", "0 threads run nothing: at least 1"));
    }
    let error = match World::new(setup.seed, setup.nodes, &setup.network) {
        Ok(world) if threads > 1 && world.lookahead == Duration::ZERO => NetworkError::NoLookahead(threads),
        Ok(_) => return Ok(()),
        Err(error) => error,
    };
    let field = match &error {
        NetworkError::Latency(_) => "network.latency".to_owned(),
        NetworkError::Topology(_) => "network.topology".to_owned(),
        NetworkError::Probability { name, .. } => format!("network.{name}"),
        NetworkError::Link(_) => "network.link".to_owned(),
        NetworkError::NoLookahead(_) => "threads".to_owned(),
        _ => "network".to_owned(),
    };
    Err(Problem::new(field, error.to_string()))
}

fn workload_field(error: &WorkloadError) -> &'static str {
    match error {
        WorkloadError::Pace { field, .. }
        | WorkloadError::Probability { field, .. }
        | WorkloadError::Length { field, .. } => field,
    }
}
