//! The part of `view-stabilization` on real sockets: UDP and TCP, tasks as processes and many in one, beside models that are fed with what
//! is measured on the spot, and beside a bare wave of the same shape.
//!
//! RV-10, PM-1. On bare loopback a wave is bound by work, not by latency: the yardstick there is the bare wave, in the same run and in
//! turn with ours. Where each hop takes a millisecond the base model must hold.
//!
//! | file | idea |
//! |---|---|
//! | `words` | what nodes are told, and answer |
//! | `serve` | the loops they run in |
//! | `task` | a task of a job |
//! | `bare` | a node without a protocol |
//! | `team` | all nodes of a tree, as processes or threads |
//! | `compute` | O_cp |

mod bare;
mod compute;
mod far;
mod serve;
mod task;
mod team;
mod words;

use super::model::{self, Costs, Shared};
use crate::error::Error;
use crate::experiment::{Role, Run};
use crate::report::{Check, Must, row, significant};
use crate::stats::{Interval, median, median_interval, ratio_interval};
use nix::sys::personality::{self, Persona};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use phalanx_daemon::{Tcp, Udp};
use phalanx_protocol::view::Task;
use phalanx_protocol::view::tree::Tree;
use std::thread;
use std::time::Duration;
use team::{Layout, Side, Team, Transport};
use words::{Answer, Order};

/// What the experiment's child processes play.
pub(super) const ROLES: &[Role] = &[team::ROLE];

/// How the rows are called.
pub(super) const NAMES: &[&str] = &[
    "UDP, in-process",
    "UDP, in-process, 5 ms a hop",
    "TCP, in-process",
    "TCP, in-process, 5 ms a hop",
    "UDP, processes",
    "UDP, processes, 1 ms a hop",
    "TCP, processes",
    "TCP, processes, 1 ms a hop",
];

const ARITIES: [u32; 3] = [2, 4, 8];
/// Tasks as processes; the last is that of the bounds.
const PROCESSES: [usize; 5] = [3, 7, 15, 31, 47];
const QUICK_PROCESSES: [usize; 3] = [3, 15, 47];
/// Tasks in one process.
const IN_PROCESS: [usize; 5] = [15, 47, 128, 512, 1024];
const QUICK_IN_PROCESS: [usize; 3] = [15, 47, 256];
/// What is injected on each hop, where latency is to dominate.
const HOP_MS: u64 = 1;
/// Waits of which the median is what such a hop takes.
const HOPS: usize = 50;
/// The same for up to 1024 tasks on a few cores: the work of a level must be small beside it.
const LONG_HOP_MS: u64 = 5;
/// Trials of a case on bare loopback, and of one whose hops are slow.
const TRIALS: usize = 15;
const SLOW_TRIALS: usize = 7;
const QUICK_TRIALS: usize = 5;
/// Waves before the clock runs: each pair of neighbours has spoken.
const WARM_UP: usize = 3;
/// How long nodes ping each other for one figure, and how often: a machine that is taken away for a moment spoils one of them.
const PING_MS: u64 = 8;
const PINGS: usize = 3;
/// Waves behind O_cp.
const COMPUTED: usize = 101;
/// Between two waves the last one's good news arrive and are acknowledged: `Company` lets an acknowledgement wait for 10 ms.
const REST: Duration = Duration::from_millis(15);
/// Descriptors for each node: TCP has a listener, a poller, its timer, its bell, and streams.
const DESCRIPTORS: u64 = 16;
const SEED: u64 = 0x7a57;

/// One tree on one ground.
#[derive(Clone, Copy)]
struct Case {
    layout: Layout,
    transport: Transport,
    nodes: usize,
    arity: u32,
    /// No larger one follows: the bounds are for this one.
    is_largest: bool,
}

fn sizes(layout: Layout, quick: bool) -> &'static [usize] {
    match (layout, quick) {
        (Layout::Processes, false) => &PROCESSES,
        (Layout::Processes, true) => &QUICK_PROCESSES,
        (Layout::InProcess, false) => &IN_PROCESS,
        (Layout::InProcess, true) => &QUICK_IN_PROCESS,
    }
}

impl Case {
    fn name(self, hop_ms: Option<u64>) -> String {
        let Self { layout, transport, .. } = self;
        hop_ms.map_or_else(|| format!("{transport}, {layout}"), |ms| format!("{transport}, {layout}, {ms} ms a hop"))
    }
}

/// T_s of each trial, of the tasks and of the bare nodes.
#[derive(Default)]
struct Waves {
    tasks_us: Vec<f64>,
    bare_us: Vec<f64>,
}

/// Measures all of it.
///
/// Child processes have their code at one address, those of both sides. Processors learn branches by address. Hosts of a job each run it
/// for themselves; here 47 of them take turns on a few cores, and at 47 random addresses each finds what the others have learned to
/// be wrong: that alone makes a task's wave 1.4 times as long, and a bare one, which is hardly any code, 1.1 times.
pub(super) fn measure(run: &mut Run) -> Result<(), Error> {
    // Where this is forbidden the figures are higher, and everything works.
    let usual = personality::get().unwrap_or(Persona::empty());
    let _ = personality::set(usual | Persona::ADDR_NO_RANDOMIZE);
    let measured = measure_all(run);
    let _ = personality::set(usual);
    measured
}

fn measure_all(run: &mut Run) -> Result<(), Error> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    let wanted = (IN_PROCESS[IN_PROCESS.len() - 1] as u64 * DESCRIPTORS).min(hard);
    if soft < wanted {
        setrlimit(Resource::RLIMIT_NOFILE, wanted, hard)?;
    }
    let mut computed = Vec::new();
    for arity in ARITIES {
        computed.push(compute::per_task_us(arity, COMPUTED)?);
        let cost = computed[computed.len() - 1];
        run.note(format!("arity {arity}: a wave is {cost:.1} µs of work for a task (O_cp)"));
    }
    for layout in [Layout::InProcess, Layout::Processes] {
        for transport in [Transport::Udp, Transport::Tcp] {
            for (arity, &compute_us) in ARITIES.into_iter().zip(&computed) {
                let sizes = sizes(layout, run.options.quick);
                let (mut slow, mut base) = (Vec::new(), Vec::new());
                for &nodes in sizes {
                    let case = Case { layout, transport, nodes, arity, is_largest: sizes.last() == Some(&nodes) };
                    let (ts_us, base_us) = case.measure(run, compute_us)?;
                    slow.push((nodes as u32, ts_us));
                    base.push((nodes as u32, base_us));
                }
                let hop_ms = if layout == Layout::Processes { HOP_MS } else { LONG_HOP_MS };
                let (slope, fit) = super::stabilization::logarithmic(&slow);
                let what = format!("{transport}, {layout}, {hop_ms} ms a hop, arity {arity}");
                run.note(format!("{what}: T_s grows by {slope:.0} µs for each doubling, R² = {fit:.3}"));
                // H grows in steps, so that the model itself is no straight line either.
                let steps = super::stabilization::logarithmic(&base).1;
                let claim = format!("{what}: R² of T_s against log₂ N / that of the base model ≥ 0.95");
                run.check(Check::new(claim, Some(fit / steps), Must::AtLeast, 0.95));
            }
        }
    }
    Ok(())
}

impl Case {
    /// Writes the rows of a tree; gives T_s where hops are slow, and what the base model says of it.
    fn measure(self, run: &mut Run, compute_us: f64) -> Result<(f64, f64), Error> {
        let Self { layout, transport, nodes, arity, .. } = self;
        run.progress(&format!("{}: {nodes} tasks, arity {arity}", self.name(None)));
        let tree = Tree::new(arity, nodes as u32).map_err(Error::peer("view"))?;
        let mut bare = Team::start(layout, transport, Side::Bare, nodes, arity)?;
        let mut tasks = Team::start(layout, transport, Side::Tasks, nodes, arity)?;
        for _ in 0..WARM_UP {
            tasks.took(&Order::Warm)?;
            bare.took(&Order::Warm)?;
        }
        let trials = if run.options.quick { QUICK_TRIALS } else { TRIALS };
        let waves = trial(&mut tasks, &mut bare, &tree, trials)?;
        let (latency_us, rounds_us) = talk(run, self, &mut bare, &tree)?;
        let cores = thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let shared = Shared { rounds_us, compute_us, cores };
        let costs = Costs { latency_us, compute_us };
        self.note(run, None, &waves, model::base(costs, tree.height()), Some(model::contention(&shared, &tree)));

        let hop_ms = if layout == Layout::Processes { HOP_MS } else { LONG_HOP_MS };
        let trials = if run.options.quick { QUICK_TRIALS } else { SLOW_TRIALS };
        tasks.all(&Order::Delay { us: hop_ms * 1000 })?;
        bare.all(&Order::Delay { us: hop_ms * 1000 })?;
        let waves = trial(&mut tasks, &mut bare, &tree, trials)?;
        let hop_us = self.hop_us(hop_ms)?;
        let costs = Costs { latency_us: latency_us + hop_us, compute_us };
        let base_us = model::base(costs, tree.height());
        self.note(run, Some(hop_ms), &waves, base_us, None);
        Ok((median(&waves.tasks_us).unwrap_or(f64::NAN), base_us))
    }

    /// What a hop that is to take so long takes: the model is fed with what is measured, as everywhere.
    fn hop_us(self, hop_ms: u64) -> Result<f64, Error> {
        let hop = phalanx_core::Duration::from_millis(hop_ms);
        match self.transport {
            Transport::Udp => far::measured_us::<Udp>(hop, HOPS),
            Transport::Tcp => far::measured_us::<Tcp>(hop, HOPS),
        }
    }

    fn note(self, run: &mut Run, hop_ms: Option<u64>, waves: &Waves, base_us: f64, contention_us: Option<f64>) {
        let Self { nodes, arity, layout, .. } = self;
        let ts = median_interval(&waves.tasks_us, SEED);
        let of = |pick: fn(Interval) -> f64| ts.map(|i| significant(pick(i)));
        run.row(row! {
            "transport": self.name(hop_ms), "nodes": nodes, "arity": arity, "ts_us": of(|i| i.value),
            "base_us": significant(base_us), "distance_us": None::<f64>,
            "contention_us": contention_us.map(significant), "bare_us": median(&waves.bare_us).map(significant),
            "low_us": of(|i| i.low), "high_us": of(|i| i.high),
        });
        if !self.is_largest {
            return;
        }
        let what = format!("{}, {nodes} tasks, arity {arity}", self.name(hop_ms));
        let pairs: Vec<_> = waves.tasks_us.iter().copied().zip(waves.bare_us.iter().copied()).collect();
        let ratio = ratio_interval(&pairs, SEED);
        if let Some(r) = ratio {
            run.note(format!("{what}: {:.2} × a bare wave ({:.2} to {:.2})", r.value, r.low, r.high));
        }
        if hop_ms.is_some() {
            let bare = median(&waves.bare_us).map_or(f64::NAN, |us| us / base_us);
            run.note(format!("{what}: a bare wave is {bare:.3} × the base model"));
            if layout == Layout::Processes {
                let value = ts.map(|i| i.value / base_us);
                run.check(Check::new(format!("{what}: ts_us / base model ≤ 1.2"), value, Must::AtMost, 1.2));
            }
        } else {
            let value = ratio.map(|r| r.value);
            run.check(Check::new(format!("{what}: ts_us / bare wave ≤ 1.3"), value, Must::AtMost, 1.3));
        }
    }
}

/// Waves of both sides in turn, each without another leaf. Before each its own side has had another one: whose code and memory the
/// other side has driven from the caches would pay for that, and not for what it does.
fn trial(tasks: &mut Team, bare: &mut Team, tree: &Tree, trials: usize) -> Result<Waves, Error> {
    let mut waves = Waves::default();
    for &victim in victims(tree).iter().cycle().take(trials) {
        warm(tasks)?;
        waves.tasks_us.push(fail(tasks, victim)?);
        warm(bare)?;
        waves.bare_us.push(bare.took(&Order::Wave { without: victim.0 })?);
    }
    Ok(waves)
}

/// A wave through all, and what comes after it.
fn warm(team: &mut Team) -> Result<(), Error> {
    let whole_us = team.took(&Order::Warm)?;
    thread::sleep(REST + Duration::from_secs_f64(2e-6 * whole_us));
    Ok(())
}

/// A leaf fails, T_s is what that took; it comes back, and a wave through all makes its sessions.
fn fail(tasks: &mut Team, victim: Task) -> Result<f64, Error> {
    let took = tasks.took(&Order::Wave { without: victim.0 })?;
    let node = victim.0 as usize;
    tasks.tell(node, &Order::Rejoin)?;
    match tasks.hear(node)? {
        Answer::Within => {}
        other => return Err(Error::Child { role: team::ROLE.name.into(), said: format!("{other:?}") }),
    }
    warm(tasks)?;
    Ok(took)
}

/// Leaves whose death takes no level away, in an order that jumps about.
fn victims(tree: &Tree) -> Vec<Task> {
    let levels = model::levels(tree);
    let deepest = levels.last().map_or(0, Vec::len);
    let keeps = |&(level, _): &(usize, Task)| level + 1 < levels.len() || deepest > 1;
    let leaves = levels.iter().enumerate().flat_map(|(i, level)| level.iter().map(move |&t| (i, t)));
    let leaves: Vec<Task> = leaves.filter(|l| tree.children(l.1).is_empty()).filter(keeps).map(|l| l.1).collect();
    let step = leaves.len() * 5 / 13 + 1;
    (0..leaves.len()).map(|i| leaves[i * step % leaves.len()]).collect()
}

/// L alone, and for each level the rounds of all its parents at once.
fn talk(run: &mut Run, case: Case, bare: &mut Team, tree: &Tree) -> Result<(f64, Vec<f64>), Error> {
    let latency_us = ping(bare, &[Task(0)], 1)? / 2.0;
    let (mut rounds_us, mut pairs, mut branches) = (Vec::new(), Vec::new(), Vec::new());
    for level in model::levels(tree) {
        let parents: Vec<Task> = level.into_iter().filter(|&t| !tree.children(t).is_empty()).collect();
        if parents.is_empty() {
            continue;
        }
        let round = ping(bare, &parents, usize::MAX)?;
        rounds_us.push(round);
        if case.is_largest {
            pairs.push(format!("{} {:.1}", parents.len(), ping(bare, &parents, 1)? / 2.0));
            branches.push(format!("{} {:.1}", parents.len(), round / 2.0));
        }
    }
    if case.is_largest {
        let (pairs, branches) = (pairs.join(", "), branches.join(", "));
        run.note(format!(
            "{}, arity {}: L {latency_us:.1} µs alone; pairs at once and L in µs: {pairs}; parents with their children: {branches}",
            case.name(None),
            case.arity,
        ));
    }
    Ok((latency_us, rounds_us))
}

/// The average round of these parents with so many of their children each, all at once, in µs.
fn ping(bare: &mut Team, parents: &[Task], children: usize) -> Result<f64, Error> {
    let rounds_us = (0..PINGS).map(|_| ping_once(bare, parents, children)).collect::<Result<Vec<_>, _>>()?;
    Ok(median(&rounds_us).unwrap_or(f64::NAN))
}

fn ping_once(bare: &mut Team, parents: &[Task], children: usize) -> Result<f64, Error> {
    for parent in parents {
        bare.tell(parent.0 as usize, &Order::Ping { children, ms: PING_MS })?;
    }
    let mut sum_us = 0.0;
    for parent in parents {
        match bare.hear(parent.0 as usize)? {
            Answer::Round { ns } => sum_us += ns / 1e3,
            other => return Err(Error::Child { role: team::ROLE.name.into(), said: format!("{other:?}") }),
        }
    }
    Ok(sum_us / parents.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_pictures() {
        let mut names = Vec::new();
        for (layout, hop_ms) in [(Layout::InProcess, LONG_HOP_MS), (Layout::Processes, HOP_MS)] {
            for transport in [Transport::Udp, Transport::Tcp] {
                let case = Case { layout, transport, nodes: 3, arity: 2, is_largest: false };
                names.extend([case.name(None), case.name(Some(hop_ms))]);
            }
        }
        assert_eq!(names, NAMES);
    }

    #[test]
    fn victims_are_leaves_and_leave_all_levels() {
        for (arity, nodes) in [(2, 3), (2, 47), (4, 15), (8, 128), (2, 1024)] {
            let tree = Tree::new(arity, nodes).unwrap();
            let victims = victims(&tree);
            assert!(!victims.is_empty() && victims.iter().all(|&v| tree.children(v).is_empty() && v != Task(0)));
            let last = model::levels(&tree).pop().unwrap();
            assert!(last.len() > 1 || !victims.contains(&last[0]), "{arity}, {nodes}");
        }
    }

    /// Both sides over both transports: a leaf is out and in again, and pings come back.
    #[test]
    fn waves_run_over_real_sockets() {
        let tree = Tree::new(2, 7).unwrap();
        for transport in [Transport::Udp, Transport::Tcp] {
            let [mut tasks, mut bare] =
                [Side::Tasks, Side::Bare].map(|side| Team::start(Layout::InProcess, transport, side, 7, 2).unwrap());
            tasks.took(&Order::Warm).unwrap();
            let hop = Order::Delay { us: 1000 };
            for slow in [false, true] {
                if slow {
                    tasks.all(&hop).unwrap();
                    bare.all(&hop).unwrap();
                }
                let waves = trial(&mut tasks, &mut bare, &tree, 3).unwrap();
                let least = if slow { 4000.0 } else { 0.0 };
                assert!(waves.tasks_us.iter().chain(&waves.bare_us).all(|&us| us > least));
            }
            bare.all(&Order::Delay { us: 0 }).unwrap();
            assert!(ping(&mut bare, &[Task(0)], 1).unwrap() > 0.0);
        }
    }
}
