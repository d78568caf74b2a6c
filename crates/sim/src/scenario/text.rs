//! The fields of a scenario, and the scenario they make.

use super::engine::{AttributesText, CastsText, Engine, ManagerText, Members, MembersText, ZonesText};
use super::entry::{Entry, EntryText, Frame};
use super::expect::{Bound, ExpectText, bounds};
use super::job::{JobText, ROLES};
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
    /// What the nodes run.
    pub runs: Runs,
    /// How long.
    pub phases: Phases,
    /// Measures to print; all that came up when empty.
    pub measure: Vec<String>,
    /// What must hold beyond the checkers.
    pub expect: Vec<Bound>,
    pub(crate) timeline: Vec<Entry>,
}

/// What nodes run.
#[derive(Clone, PartialEq, Debug)]
pub enum Runs {
    /// Links alone.
    Stations {
        /// What they do.
        workload: Workload,
        /// How they do it.
        options: Box<Options>,
    },
    /// Whole nodes with a membership engine.
    Members(Box<Members>),
    /// Hosts of the tasks of a job.
    Job(Box<crate::company::Options>),
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
    /// Dead members start again when faults end.
    pub restart: bool,
}

/// The fields, in the order in which they are listed to those who misspell one.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    name: String,
    nodes: u32,
    #[serde(default)]
    engine: Engine,
    profile: Option<String>,
    multicast: Option<bool>,
    zones: Option<ZonesText>,
    attributes: Option<AttributesText>,
    casts: Option<CastsText>,
    manager: Option<ManagerText>,
    job: Option<JobText>,
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
    workload: Option<Workload>,
    #[serde(default)]
    fault: Vec<EntryText>,
    #[serde(default)]
    phases: PhasesText,
    #[serde(default)]
    measure: MeasureText,
    #[serde(default)]
    expect: ExpectText,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SealsText {
    #[default]
    Fake,
    Real,
}

impl SealsText {
    fn seals(self) -> Seals {
        match self {
            Self::Fake => Seals::Fake,
            Self::Real => Seals::Real,
        }
    }
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct PhasesText {
    safety: Span,
    work: Span,
    liveness: Option<Span>,
    restart: Option<bool>,
}

/// How long links may take to get well.
const LIVENESS: Duration = Duration::from_secs(60);
/// How long members may: those who were removed again and again wait before they speak up.
const MEMBERS_LIVENESS: Duration = crate::member::sweep::BOUND;
/// How long jobs may take to end: each may start again many times.
const MANAGER_LIVENESS: Duration = Duration::from_secs(3600);
/// How long tasks may: see [`super::job::BOUND`].
const JOB_LIVENESS: Duration = super::job::BOUND;

impl Default for PhasesText {
    fn default() -> Self {
        let seconds = |n| Span(Duration::from_secs(n));
        Self { safety: seconds(10), work: seconds(1), liveness: None, restart: None }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct MeasureText {
    show: Vec<String>,
}

impl Scenario {
    /// The name of its workload, or of its membership engine, as scenarios write it.
    #[must_use]
    pub fn workload_name(&self) -> &'static str {
        match &self.runs {
            Runs::Stations { workload, .. } => name(workload),
            Runs::Members(members) => members.engine().name(),
            Runs::Job(_) => Engine::View.name(),
        }
    }

    /// What its nodes run.
    #[must_use]
    pub fn engine(&self) -> Engine {
        match &self.runs {
            Runs::Stations { .. } => Engine::Link,
            Runs::Members(members) => members.engine(),
            Runs::Job(_) => Engine::View,
        }
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
        let Self { engine, profile, multicast, zones, attributes, casts, manager, .. } = self;
        let only_members = MembersText { profile, multicast, zones, attributes, casts, manager };
        let runs = match engine {
            _ if engine != Engine::View && self.job.is_some() => {
                let text = format!("does not apply to engine `{}`: it needs engine = \"view\"", engine.name());
                return Err(Problem::new("job", text));
            }
            Engine::Link => stations(only_members, self.workload, self.seals, self.by_reference)?,
            Engine::View => job(only_members, self.workload, self.seals, (self.job, self.nodes))?,
            engine => members(engine, only_members, self.workload, self.seals, (self.nodes, self.by_reference))?,
        };
        let roles = match &runs {
            Runs::Stations { workload, .. } => roles(workload),
            Runs::Members(members) => members.roles(),
            Runs::Job(_) => &ROLES,
        };
        let phases = self.phases.phases(engine).map_err(|p| p.inside("phases"))?;
        let mut timeline = Vec::new();
        for (number, entry) in self.fault.into_iter().enumerate() {
            let frame = Frame { nodes: self.nodes, safety: phases.safety, roles, engine };
            timeline.push(entry.entry(&frame).map_err(|p| p.inside(&format!("fault.{number}")))?);
        }
        let names = names(engine);
        let known: Vec<&str> = names.iter().map(String::as_str).collect();
        for (n, shown) in self.measure.show.iter().enumerate() {
            if !known.contains(&shown.as_str()) {
                return Err(Problem::new(format!("measure.show.{n}"), unknown(shown, &known)));
            }
        }
        let expect = bounds(self.expect, &known).map_err(|p| p.inside("expect"))?;
        Ok(Scenario { name: self.name, setup, runs, phases, measure: self.measure.show, expect, timeline })
    }
}

impl PhasesText {
    fn phases(self, engine: Engine) -> Result<Phases, Problem> {
        let Self { safety: Span(safety), work: Span(work), liveness, restart } = self;
        if safety == Duration::ZERO {
            return Err(Problem::new("safety", "must be longer than nothing"));
        }
        if engine == Engine::Link && restart == Some(false) {
            return Err(Problem::new(
                "restart",
                "links are owed what was promised them: with engine `link` all return",
            ));
        }
        let usual = match engine {
            Engine::Link => LIVENESS,
            Engine::View => JOB_LIVENESS,
            Engine::Zone | Engine::AllToAll | Engine::Gossip | Engine::Segment | Engine::Cast => MEMBERS_LIVENESS,
            Engine::Manager => MANAGER_LIVENESS,
        };
        Ok(Phases { safety, work, liveness: liveness.map_or(usual, |s| s.0), restart: restart.unwrap_or(true) })
    }
}

fn stations(
    members: MembersText,
    workload: Option<Workload>,
    seals: SealsText,
    by_reference: bool,
) -> Result<Runs, Problem> {
    if let Some(field) = members.first() {
        let text = "does not apply to engine `link`: it needs engine = \"zone\", \"all-to-all\" or \"gossip\"";
        return Err(Problem::new(field, text));
    }
    let workload = workload.ok_or_else(|| Problem::new("", "missing field `workload`"))?;
    workload.check().map_err(|e| Problem::new(format!("workload.{}", workload_field(&e)), e.to_string()))?;
    let seals = seals.seals();
    let options = Box::new(Options { seals, by_reference, ..Options::default() });
    Ok(Runs::Stations { workload, options })
}

fn members(
    engine: Engine,
    text: MembersText,
    workload: Option<Workload>,
    seals: SealsText,
    (nodes, by_reference): (u32, bool),
) -> Result<Runs, Problem> {
    let name = engine.name();
    if workload.is_some() {
        let text =
            format!("does not apply to engine `{name}`: its members watch each other; [attributes] lets them write");
        return Err(Problem::new("workload", text));
    }
    if seals == SealsText::Real {
        return Err(Problem::new("seals", format!("engine `{name}` runs with \"fake\" ones only")));
    }
    Ok(Runs::Members(Box::new(text.members(engine, nodes, by_reference)?)))
}

fn job(
    members: MembersText,
    workload: Option<Workload>,
    seals: SealsText,
    (job, nodes): (Option<JobText>, u32),
) -> Result<Runs, Problem> {
    if let Some(field) = members.first().or(workload.map(|_| "workload")) {
        return Err(Problem::new(field, "does not apply to engine `view`: [job] says what its hosts run"));
    }
    let mut options = job.unwrap_or_default().options(nodes).map_err(|p| p.inside("job"))?;
    options.seals = seals.seals();
    Ok(Runs::Job(Box::new(options)))
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

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "name = 'x'\nnodes = 4\n\n[network]\nloss = 0.1\n\n[workload]\nkind = 'order'\n\n\
                        [[fault]]\nat = '1s'\nkind = 'crash'\nnodes = [3]\n";

    fn refused(text: &str, changes: &[&str]) -> String {
        Scenario::parse("x.toml", text, changes).map(|s| s.name).expect_err(text).to_string()
    }

    #[test]
    fn defaults_are_those_of_the_guide() {
        let scenario = Scenario::parse("x.toml", GOOD, &[] as &[&str]).unwrap();
        assert_eq!((scenario.setup.seed, scenario.setup.threads), (1, 1));
        let Runs::Stations { options, .. } = &scenario.runs else { panic!("links are the default") };
        assert_eq!((options.seals, options.by_reference), (Seals::Fake, false));
        let [safety, work, liveness] = [10, 1, 60].map(Duration::from_secs);
        assert_eq!(scenario.phases, Phases { safety, work, liveness, restart: true });
        assert_eq!((scenario.timeline.len(), scenario.workload_name()), (1, "order"));
    }

    #[test]
    fn errors_name_the_file_the_line_the_field_and_what_is_accepted() {
        for (from, to, wanted) in [
            ("nodes = 4", "nods = 4", "x.toml:2: `nods`: unknown field `nods`; known: nodes, "),
            ("nodes = 4", "nodes = 0", "x.toml:2: `nodes`: 0 nodes: at least 1"),
            ("nodes = 4", "nodes = 'many'", "x.toml:2: `nodes`: invalid type: string \"many\""),
            ("nodes = 4", "nodes = ", "x.toml:2: "),
            ("name = 'x'\n", "", "missing field `name`"),
            ("loss = 0.1", "loss = 1.1", "x.toml:5: `network.loss`: loss = 1.1 is not a probability"),
            ("loss = 0.1", "lost = 0.1", "x.toml:5: `network.lost`: unknown field `lost`; known: loss, "),
            (
                "loss = 0.1",
                "latency = { kind = 'fxed', us = 1 }",
                "x.toml:5: `network.latency.kind`: unknown variant `fxed`; known: fixed, ",
            ),
            (
                "loss = 0.1",
                "topology = { kind = 'torus', x = 1, y = 1, z = 1, per_hop_us = 1 }",
                "`network.topology`: ",
            ),
            ("kind = 'order'", "kind = 'oder'", "unknown variant `oder`; known: order, "),
            ("kind = 'order'", "kind = 'order'\ninterval_ms = 0", "x.toml:9: `workload.interval_ms`: interval_ms = 0"),
            ("at = '1s'", "at = 1", "x.toml:11: `fault.0.at`: invalid type: integer `1`, expected a duration"),
            ("at = '1s'", "at = '1s'\nuntl = '2s'", "x.toml:12: `fault.0.untl`: unknown field `untl`; known: until, "),
            ("nodes = [3]", "nodes = [4]", "x.toml:13: `fault.0.nodes`: there is no node 4"),
            ("nodes = [3]", "role = 'boss'", "x.toml:13: `fault.0.role`: `boss` is unknown; known: "),
            ("nodes = [3]\n", "", "x.toml:10: `fault.0`: kind `crash` needs `nodes`, `role` or `random`"),
            (
                "[[fault]]",
                "[expect]\ndelivred = 3\n[[fault]]",
                "`expect.delivred`: `delivred` is unknown; known: delivered,",
            ),
            (
                "[[fault]]",
                "[measure]\nshow = ['evnts']\n[[fault]]",
                "`measure.show.0`: `evnts` is unknown; known: events,",
            ),
            ("[[fault]]", "[phases]\nsafety = '0s'\n[[fault]]", "`phases.safety`: must be longer than nothing"),
            ("nodes = 4", "nodes = 4\nseals = 'wax'", "x.toml:3: `seals`: unknown variant `wax`; known: "),
            ("nodes = 4", "nodes = 4\nthreads = 0", "x.toml:3: `threads`: 0 threads run nothing"),
        ] {
            assert!(GOOD.contains(from), "{from}");
            let error = refused(&GOOD.replacen(from, to, 1), &[]);
            assert!(error.contains(wanted), "{to}\n{error}\nshould say {wanted}");
        }
    }

    #[test]
    fn engines_have_fields_of_their_own_and_say_which() {
        let zone = "name = 'x'\nengine = 'zone'\nnodes = 9\n\n[zones]\nsize = 4\nsupervisors = 1\n\n[attributes]\nkeys = 2\n\n\
                    [[fault]]\nkind = 'leave'\nnodes = [3]\ncode = 7\n";
        let scenario = Scenario::parse("x.toml", zone, &[] as &[&str]).unwrap();
        let Runs::Members(members) = &scenario.runs else { panic!("not members") };
        assert_eq!((members.engine(), members.options.zone, members.options.supervisors), (Engine::Zone, 4, 1));
        assert_eq!(scenario.phases.liveness, Duration::from_secs(400));
        for (from, to, wanted) in [
            ("'zone'", "'zoo'", "x.toml:2: `engine`: unknown variant `zoo`; known: zone, "),
            ("'zone'", "'link'", "x.toml:5: `zones`: does not apply to engine `link`: it needs engine = \"zone\""),
            ("'zone'", "'gossip'", "x.toml:7: `zones.supervisors`: does not apply to engine `gossip`"),
            ("'zone'", "'zone'\nprofile = 'lam'", "x.toml:3: `profile`: `lam` is unknown; known: lan, "),
            ("'zone'", "'zone'\nmulticast = true", "x.toml:3: `multicast`: does not apply to engine `zone`"),
            ("'zone'", "'zone'\nseals = 'real'", "x.toml:3: `seals`: engine `zone` runs with \"fake\" ones only"),
            (
                "'zone'",
                "'zone'\nworkload = { kind = 'order' }",
                "x.toml:3: `workload`: does not apply to engine `zone`",
            ),
            ("size = 4", "size = 0", "x.toml:6: `zones.size`: 0 members make no zone"),
            ("size = 4", "seeds = 0", "x.toml:6: `zones.seeds`: without a seed"),
            ("size = 4", "siz = 4", "x.toml:6: `zones.siz`: unknown field `siz`; known: size, "),
            ("supervisors = 1", "supervisors = 9", "x.toml:7: `zones.supervisors`: 9 of 9 nodes"),
            ("keys = 2", "keys = 17", "x.toml:10: `attributes.keys`: 17: from 1 to 16"),
            ("keys = 2", "interval_ms = 0", "x.toml:10: `attributes.interval_ms`: 0 is no pace"),
            ("code = 7", "code = 256", "x.toml:15: `fault.0.code`: invalid value"),
            ("nodes = [3]", "role = 'leader'", "`fault.0.role`: `leader` is unknown; known: seed, "),
            ("'leave'", "'disk'", "`fault.0.kind`: `disk` needs engine `link`"),
            ("[[fault]]", "[expect]\ndelivered = 1\n[[fault]]", "`expect.delivered`: `delivered` is unknown"),
        ] {
            assert!(zone.contains(from), "{from}");
            let error = refused(&zone.replacen(from, to, 1), &[]);
            assert!(error.contains(wanted), "{to}\n{error}\nshould say {wanted}");
        }
        let leave = GOOD.replace("kind = 'crash'", "kind = 'leave'");
        assert!(refused(&leave, &[]).contains("`fault.0.kind`: `leave` needs an engine with members"));
        assert!(refused(GOOD, &["phases.restart=false"]).contains("with engine `link` all return"));
        let without = GOOD.replace("[workload]\nkind = 'order'\n", "");
        assert!(refused(&without, &[]).contains("missing field `workload`"));
    }

    #[test]
    fn what_is_set_is_checked_like_the_file_and_blamed_alone() {
        let scenario = Scenario::parse("x.toml", GOOD, &["network.loss=0.2", "phases.safety=3s", "seed=9"]).unwrap();
        assert_eq!((scenario.setup.network.loss, scenario.setup.seed), (0.2, 9));
        for (changes, wanted) in [
            (&["network.los=1"][..], "--set network.los=1: `network.los`: unknown field `los`; known: loss, "),
            (&["seed=2", "network.loss=2"], "--set network.loss=2: `network.loss`: loss = 2 is not a probability"),
            (&["nodes=3", "seed=2"], "--set nodes=3: `fault.0.nodes`: there is no node 3"),
            (&["fault.0.at=later"], "--set fault.0.at=later: `fault.0.at`: `later` is not a duration"),
            (&["fault.1.at=2s"], "--set fault.1.at=2s: `fault.1.at`: `1` is unknown; known: 0"),
            (&["phases.safety=500ms"], "--set phases.safety=500ms: `fault.0.at`: 1s comes after the first phase"),
            (&["seed"], "--set seed: write a field's path"),
        ] {
            let error = refused(GOOD, changes);
            assert!(error.starts_with(wanted), "{error}\nshould say {wanted}");
        }
        let broken = GOOD.replace("loss", "lost");
        assert!(
            refused(&broken, &["seed=2"]).starts_with("x.toml:5: `network.lost`"),
            "the file's own mistake stays its own"
        );
    }
}
