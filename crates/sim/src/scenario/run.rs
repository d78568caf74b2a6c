//! Carries a scenario out: the timeline, and the verdict.
//!
//! Who is meant by `random` or by a role is decided when the fault comes, from what is true then. Each entry of the
//! timeline draws from a generator of its own, so that one more entry does not change whom the others hit.

use super::entry::{Direction, Entry, Point, What};
use super::expect::Bound;
use super::measure::{Facts, Measures};
use super::subject::{Subject, Writer};
use super::text::Scenario;
use crate::check::{Report, Violation};
use crate::disk::DiskFault;
use crate::fault::{Fault, NodeFault};
use crate::manager;
use crate::network::Weather;
use crate::node::State;
use crate::partition::{NodeSet, Partition};
use crate::sim::Sim;
use crate::stats::Stats;
use phalanx_core::{Duration, Instant, Rng};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The generators of timelines, apart from those of nodes and of drawn configurations.
const STREAM: u64 = 0x71e1_0000_0000_0000;

/// Nodes that start at once have started by then: before, nobody is there to be hit.
const STARTED: Duration = Duration::from_nanos(1);

/// What a scenario came to.
#[derive(Clone, PartialEq, Debug)]
pub struct Outcome {
    /// The engine's report: violations, trace, counters. A panic of the code under test is a violation too.
    pub report: Report,
    /// What was measured.
    pub measures: Measures,
    /// Bounds of `[expect]` that do not hold.
    pub missed: Vec<Missed>,
    /// How long it took, by the clock on the wall.
    pub wall: std::time::Duration,
}

/// A bound that does not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missed {
    /// What was expected.
    pub bound: Bound,
    /// What was measured.
    pub value: u64,
}

impl Outcome {
    /// True when no checker complains and every bound holds.
    #[must_use]
    pub fn is_green(&self) -> bool {
        self.report.is_green() && self.missed.is_empty()
    }
}

impl Scenario {
    /// What a run comes to.
    pub(super) fn outcome(&self, run: impl FnOnce() -> (Report, Facts)) -> Outcome {
        let begin = std::time::Instant::now();
        // A panic in a machine is what a simulator is there to find: a red run like others, with a seed to replay it.
        let ran = catch_unwind(AssertUnwindSafe(run));
        let wall = begin.elapsed();
        let nothing = || Facts::of(self.engine());
        let (report, facts) = ran.unwrap_or_else(|panic| (panicked(self.setup.seed, panic.as_ref()), nothing()));
        let measures = facts.measures();
        let missed = self.expect.iter().filter_map(|bound| {
            let value = measures.get(&bound.measure)?;
            (!bound.holds(value)).then(|| Missed { bound: bound.clone(), value })
        });
        Outcome { missed: missed.collect(), report, measures, wall }
    }
}

fn panicked(seed: u64, panic: &(dyn std::any::Any + Send)) -> Report {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref().copied());
    let text = format!("the code under test panicked: {}", text.unwrap_or("(no message)"));
    Report {
        seed,
        ended: Instant::ZERO,
        settled_in: None,
        trace: 0,
        stats: Stats::default(),
        violations: vec![Violation { checker: "panic", at: Instant::ZERO, node: None, text }],
        more: 0,
        replay: String::new(),
    }
}

/// How often a run is looked at.
pub(super) const LOOK: Duration = Duration::from_millis(10);

/// Whether a process, on that node, plays a role.
type Plays<'a, P> = Box<dyn Fn(&P, &str, u32) -> bool + 'a>;
/// Whether a node is spared something.
pub(super) type Spares<'a> = Box<dyn FnMut(&What, u32) -> bool + 'a>;
/// Looks at a run, and says when it has seen enough.
type Look<'a, P> = Box<dyn FnMut(&Sim<P>) -> bool + 'a>;

/// A scenario under way.
pub(super) struct Runner<'a, P: Subject> {
    scenario: &'a Scenario,
    pub(super) sim: Sim<P>,
    plays: Plays<'a, P>,
    facts: Facts,
    /// What comes when; things of one time in the order in which they were planned.
    agenda: BTreeMap<(Instant, u64), Due>,
    planned: u64,
    rngs: Vec<Rng>,
    /// Some entry of the timeline has a rule above the seal.
    uses_plain: bool,
    /// Members write attributes.
    pub(super) writer: Option<Writer>,
    /// Whom nothing of that kind shall befall now.
    pub(super) spares: Option<Spares<'a>>,
    /// Somebody looks at the run now and then.
    pub(super) look: Option<Look<'a, P>>,
}

/// Something to do at its time.
enum Due {
    /// An entry's turn, counted from zero.
    Begin { entry: usize, turn: u64 },
    /// What an entry began ends by itself.
    End(End),
}

enum End {
    /// Those that are still dead start again.
    Death(Vec<u32>),
    Faults(Vec<Fault>),
}

impl<'a, P: Subject> Runner<'a, P> {
    pub(super) fn new(scenario: &'a Scenario, sim: Sim<P>, plays: Plays<'a, P>) -> Self {
        let rngs = (0..scenario.timeline.len() as u64).map(|n| Rng::new(scenario.setup.seed, STREAM | n)).collect();
        let facts = Facts::of(scenario.engine());
        let plain = |e: &Entry| matches!(e.what, What::Inject { point: Point::Plain, .. });
        let uses_plain = scenario.timeline.iter().any(plain);
        let (agenda, planned, writer, spares, look) = (BTreeMap::new(), 0, None, None, None);
        let mut runner = Self { scenario, sim, plays, facts, agenda, planned, rngs, uses_plain, writer, spares, look };
        for (entry, line) in scenario.timeline.iter().enumerate() {
            runner.plan(Instant::ZERO + line.at.max(STARTED), Due::Begin { entry, turn: 0 });
        }
        runner
    }

    fn plan(&mut self, at: Instant, due: Due) {
        self.agenda.insert((at, self.planned), due);
        self.planned += 1;
    }

    /// The first phase.
    pub(super) fn carry_out(&mut self) {
        let healing = Instant::ZERO + self.scenario.phases.safety;
        while let Some(((at, _), due)) = self.agenda.pop_first() {
            if at >= healing {
                break;
            }
            self.advance(at);
            match due {
                Due::Begin { entry, turn } => self.begin(at, entry, turn),
                Due::End(End::Faults(faults)) => faults.into_iter().for_each(|f| self.sim.fault(f)),
                Due::End(End::Death(nodes)) => {
                    let dead = nodes.into_iter().filter(|&n| is_dead(self.sim.state(n)));
                    dead.collect::<Vec<_>>().into_iter().for_each(|n| self.sim.fault(Fault::restart(n)));
                }
            }
        }
        self.advance(healing);
    }

    /// Runs until then, with whoever writes and looks on the way.
    pub(super) fn advance(&mut self, until: Instant) {
        loop {
            let now = self.sim.now();
            let written = self.writer.as_ref().map_or(until, |w| w.at.max(now));
            let looked = if self.look.is_some() { now + LOOK } else { until };
            self.sim.run_until(until.min(written).min(looked));
            let now = self.sim.now();
            self.look.take_if(|look| look(&self.sim));
            if now >= until {
                return;
            }
            if let Some(writer) = self.writer.as_mut().filter(|w| w.at <= now) {
                let (node, written) = writer.next();
                P::write(written).into_iter().for_each(|command| self.sim.command(node, command));
            }
        }
    }

    fn begin(&mut self, at: Instant, entry: usize, turn: u64) {
        let line = &self.scenario.timeline[entry];
        if let Some(every) = line.every
            && at + every < Instant::ZERO + line.until
        {
            self.plan(at + every, Due::Begin { entry, turn: turn + 1 });
        }
        let nodes = self.pick(entry, line);
        let end = self.inflict(entry, turn, line, &nodes);
        if let (Some(lasts), Some(end)) = (line.lasts, end) {
            self.plan(at + lasts, Due::End(end));
        }
    }

    fn pick(&mut self, entry: usize, line: &Entry) -> Vec<u32> {
        let sim = &self.sim;
        let fits = |n: u32| match (&line.what, sim.state(n)) {
            (What::Restart, state) if line.on.is_open() => is_dead(state),
            (what, state) => befalls(what, state),
        };
        let role = |role: &str, n: u32| sim.process(n).is_some_and(|p| (self.plays)(p, role, n));
        let mut nodes = line.on.pick(self.scenario.setup.nodes, &mut self.rngs[entry], fits, role);
        // A list may name nodes that the fault leaves as they are: they do not count as hit.
        nodes.retain(|&n| befalls(&line.what, sim.state(n)));
        nodes.retain(|&n| !P::is_spared(sim, &line.what, n));
        if let Some(spares) = &mut self.spares {
            nodes.retain(|&n| !spares(&line.what, n));
        }
        nodes
    }

    /// Does what an entry says, and tells how it ends.
    fn inflict(&mut self, entry: usize, turn: u64, line: &Entry, nodes: &[u32]) -> Option<End> {
        let each = |fault: NodeFault| nodes.iter().map(|&n| Fault::Node(n, fault)).collect::<Vec<_>>();
        let all = self.scenario.setup.nodes;
        let mut hit = nodes.len() as u64;
        let (faults, end) = match &line.what {
            What::Crash => (each(NodeFault::CrashProcess), Some(End::Death(nodes.to_vec()))),
            What::CrashHost => (each(NodeFault::CrashHost), Some(End::Death(nodes.to_vec()))),
            What::Restart => (each(NodeFault::Restart), None),
            What::Pause => (each(NodeFault::Pause), Some(End::Faults(each(NodeFault::Resume)))),
            What::Resume => (each(NodeFault::Resume), None),
            &What::Clock { rate, step_ns } => {
                let right = NodeFault::Clock { rate: 1.0, step_ns: 0 };
                (each(NodeFault::Clock { rate, step_ns }), Some(End::Faults(each(right))))
            }
            What::Disk(fault) => {
                (each(NodeFault::Disk(*fault)), Some(End::Faults(each(NodeFault::Disk(DiskFault::default())))))
            }
            &What::Loss { inward, outward } => {
                let none = NodeFault::Loss { inward: 0.0, outward: 0.0 };
                (each(NodeFault::Loss { inward, outward }), Some(End::Faults(each(none))))
            }
            What::StreamReset { against } => {
                let others = |n: u32| (0..all).filter(move |&m| m != n);
                let resets = nodes.iter().flat_map(|&n| {
                    let peers = against.clone().unwrap_or_else(|| others(n).collect());
                    peers.into_iter().filter(move |&m| m != n).map(move |m| Fault::ResetStream(n, m))
                });
                (resets.collect(), None)
            }
            What::Partition { name, direction, against } => {
                hit = 1;
                // Without a name each turn is a cut of its own, so that its end does not end the next one.
                let name = name.clone().unwrap_or_else(|| format!("fault.{entry}.{turn}"));
                let cut = partition(&name, *direction, nodes, against.as_deref(), all);
                (vec![Fault::Partition(cut)], Some(End::Faults(vec![Fault::HealPartition(name)])))
            }
            What::Heal { name: Some(name) } => {
                hit = 1;
                (vec![Fault::HealPartition(name.clone())], None)
            }
            What::Heal { name: None } => {
                hit = 1;
                self.heal_plain();
                (vec![Fault::HealAll { restart: false }], None)
            }
            What::Weather(weather) => {
                hit = 1;
                (vec![Fault::Weather(*weather)], Some(End::Faults(vec![Fault::Weather(Weather::default())])))
            }
            What::Inject { point: Point::Wire, rule, peers } => {
                let inject = |&node: &u32| Fault::Inject { node, rule: rule.clone(), peers: peers.clone() };
                (nodes.iter().map(inject).collect(), None)
            }
            What::Inject { point: Point::Plain, rule, .. } => {
                nodes.iter().for_each(|&n| self.sim.command(n, P::plain(rule.clone())));
                (Vec::new(), None)
            }
            &What::Join { spare } => {
                let join = |&n: &u32| P::join(spare).into_iter().for_each(|command| self.sim.command(n, command));
                nodes.iter().for_each(join);
                (Vec::new(), None)
            }
            What::Doubt { against } => {
                let doubt = |&n: &u32| P::doubt(against).into_iter().for_each(|command| self.sim.command(n, command));
                nodes.iter().for_each(doubt);
                (Vec::new(), None)
            }
            &What::Cast { bytes } => {
                let cast = |&n: &u32| P::cast(bytes).into_iter().for_each(|command| self.sim.command(n, command));
                nodes.iter().for_each(cast);
                (Vec::new(), None)
            }
            What::KillShepherds => self.command_all(nodes, &manager::Command::KillShepherds),
            What::Lie => self.command_all(nodes, &manager::Command::Lie),
            What::Corrupt => {
                let chance = self.rngs[entry].u64();
                self.command_all(nodes, &manager::Command::Corrupt(chance))
            }
            &What::Leave { code } => {
                let leave = |&n: &u32| P::leave(code).into_iter().for_each(|command| self.sim.command(n, command));
                nodes.iter().for_each(leave);
                (Vec::new(), None)
            }
        };
        if matches!(line.what, What::Crash | What::CrashHost | What::Restart) {
            nodes.iter().for_each(|&n| self.count_link(n));
        }
        *self.facts.faults.entry(line.what.name()).or_default() += hit;
        faults.into_iter().for_each(|f| self.sim.fault(f));
        self.bereave(&line.what, nodes);
        end
    }

    fn command_all(&mut self, nodes: &[u32], command: &manager::Command) -> (Vec<Fault>, Option<End>) {
        for &n in nodes {
            P::manage(command.clone()).into_iter().for_each(|command| self.sim.command(n, command));
        }
        (Vec::new(), None)
    }

    /// CM-2: the views of jobs go on without shepherds that fell, or that somebody takes for fallen.
    fn bereave(&mut self, what: &What, nodes: &[u32]) {
        let (fallen, proven) = match what {
            What::CrashHost => (nodes, false),
            What::KillShepherds => (nodes, true),
            What::Doubt { against } => (against.as_slice(), false),
            _ => return,
        };
        for &node in fallen {
            for n in 0..self.scenario.setup.nodes {
                let command = P::manage(manager::Command::Bereave { node, proven });
                command.into_iter().for_each(|command| self.sim.command(n, command));
            }
        }
    }

    pub(super) fn heal_plain(&mut self) {
        (0..self.scenario.setup.nodes).for_each(|n| self.sim.command(n, P::heal_plain()));
    }

    /// Adds what a link has counted, before its process dies or when the run is over.
    fn count_link(&mut self, node: u32) {
        if let Some(process) = self.sim.process(node) {
            self.facts.link.add(process.link().counters());
            if let (Some(sums), Some((status, again))) = (&mut self.facts.stewards, process.steward(self.sim.now())) {
                sums.add(&status, again);
            }
            // The link lends its injector only to be changed; a copy can be asked too, where there is anything to ask.
            if self.uses_plain {
                self.facts.plain.add(process.link().clone().tap().counters());
            }
        }
    }

    /// All that a run came to but what its processes told.
    pub(super) fn count(mut self, report: &Report) -> Facts {
        (0..self.scenario.setup.nodes).for_each(|n| self.count_link(n));
        for node in self.sim.cluster().0.iter().flat_map(|shard| &shard.nodes) {
            if let Some(injector) = node.meta.peek_extras().and_then(|x| x.injector.as_ref()) {
                self.facts.wire.add(injector.counters());
            }
        }
        self.facts.stats = report.stats;
        self.facts.virtual_ms = report.ended.since(Instant::ZERO).as_millis();
        self.facts.settled_ms = report.settled_in.map_or(0, Duration::as_millis);
        self.facts.violations = report.violations.len() as u64 + report.more;
        self.facts
    }
}

/// Whether something happens to a node in that state.
fn befalls(what: &What, state: State) -> bool {
    match what {
        What::Crash => matches!(state, State::Up | State::Paused),
        What::CrashHost => matches!(state, State::Up | State::Paused | State::ProcessDown),
        What::Pause
        | What::Leave { .. }
        | What::Join { .. }
        | What::Doubt { .. }
        | What::Cast { .. }
        | What::KillShepherds
        | What::Lie
        | What::Corrupt => state == State::Up,
        What::Resume => state == State::Paused,
        _ => true,
    }
}

fn is_dead(state: State) -> bool {
    matches!(state, State::ProcessDown | State::HostDown)
}

fn partition(name: &str, direction: Direction, nodes: &[u32], against: Option<&[u32]>, all: u32) -> Partition {
    let side: NodeSet = nodes.iter().copied().collect();
    let other = against.map_or_else(|| side.others(all), |nodes| nodes.iter().copied().collect());
    match direction {
        Direction::Both => Partition::between(name, side, other),
        Direction::Out => Partition::one_way(name, side, other),
        Direction::In => Partition::one_way(name, other, side),
    }
}
