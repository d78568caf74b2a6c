//! `link-faults`: how much longer two tasks take while the fault injector hits their messages.
//!
//! RL-3, FI-5; 004 §6.2, Figs. 3 and 4. The communication-bound task sends and receives as fast as it can; the CPU-bound
//! one makes 12 sends, computes long enough for the acknowledgements to come, and makes 12 receives. Each run is two
//! processes with hosts over UDP and one kind of fault on both of them; each message is checked as it arrives, and one
//! that is changed, missing, doubled or out of its turn ends the experiment.
//!
//! A rate is a share of the packets, which is what the paper's CL calls messages. Delay and reorder last until the next
//! packet of the peer, as in the paper. ⚠ Where it compares with a run without injector, ours compares with a silent one.

mod party;
mod script;

use super::{Mode, places};
use crate::child::Child;
use crate::cores;
use crate::error::Error;
use crate::experiment::{Experiment, Role, Run};
use crate::plot::Picture;
use crate::report::{Check, Must, Row, row, significant};
use crate::stats::median;
use party::{Found, SLICES, TURN};
use phalanx_fault::{Call, Delay, Kind, Probability, Recurrence, Rule};
use std::fmt;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// The experiment.
pub(crate) struct LinkFaults;

/// The kinds of Table 2, and what they combine to.
const KINDS: [(&str, Kind); 9] = [
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
/// Shares of the packets that are hit. The first is the baseline.
const RATES: [f64; 6] = [0.0, 0.001, 0.005, 0.01, 0.02, 0.05];
/// For a first look: the baseline and the rates that have checks.
const QUICK_RATES: [f64; 3] = [0.0, CHECKED, HIGHEST];
/// The rate at which slowdowns have bounds …
const CHECKED: f64 = 0.01;
/// … and the one at which each kind must have struck.
const HIGHEST: f64 = 0.05;
/// Runs of each kind and rate, as in the paper.
const SEEDS: u64 = 5;
/// For a first look.
const QUICK_SEEDS: u64 = 3;
/// Messages of a communication-bound run.
const POURED: u64 = 20_000;
/// Turns of a CPU-bound run …
const TURNS: u64 = 16;
/// … and how long each computes: two retransmission timeouts of a fast network.
const COMPUTE: Duration = Duration::from_millis(6);
/// Most that faults may slow the CPU-bound task, and injected copies the other one, at [`CHECKED`].
const SMALL: f64 = 1.15;
/// A process that has said nothing by then never will: it gives up earlier by itself and says why.
const PATIENCE: Duration = Duration::from_secs(15);
/// Once one of them has spoken, the other has little left to do.
const AFTERWARDS: Duration = Duration::from_secs(5);

impl Experiment for LinkFaults {
    fn name(&self) -> &'static str {
        "link-faults"
    }

    fn about(&self) -> &'static str {
        "time of a communication-bound and a CPU-bound task against the rate of each kind of fault"
    }

    fn roles(&self) -> &'static [Role] {
        const ROLES: &[Role] =
            &[Role { name: Side::Far.role(), play: far }, Role { name: Side::Near.role(), play: near }];
        ROLES
    }

    fn picture(&self) -> Picture {
        Picture { x: "rate", y: "slowdown", series: &["task", "kind", "point"] }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let Some(cores) = places(Mode::Spin)? else {
            run.note("nothing was measured: the two processes need a core each");
            return Ok(());
        };
        let (rates, seeds): (&[f64], u64) =
            if run.options.quick { (&QUICK_RATES, QUICK_SEEDS) } else { (&RATES, SEEDS) };
        let mut series = all_series(rates);
        let (start, work, n) = (Instant::now(), calibrated(), series.len());
        let mut done = 0;
        for seed in 1..=seeds {
            if start.elapsed().as_secs_f64() >= run.options.budget_s {
                run.note(format!("only {done} of {seeds} seeds: the time is up"));
                break;
            }
            for (i, one) in series.iter_mut().enumerate() {
                run.progress(&format!("seed {seed} of {seeds}: {} of {n}, {}", i + 1, one.order(0.0, seed, work)));
                // The baseline and all rates within a second or two: a shared machine drifts.
                for (at, &rate) in rates.iter().enumerate() {
                    let found = carry_out(&one.order(rate, seed, work), cores)?;
                    one.cells[at].runs.push(found);
                }
            }
            done = seed;
        }
        for one in &series {
            one.cells.iter().for_each(|cell| run.row(one.row(cell)));
        }
        checks(run, &series);
        Ok(())
    }
}

/// What must hold.
fn checks(run: &mut Run, series: &[Series]) {
    let all = || series.iter().flat_map(|s| s.cells.iter().map(move |c| (s, c)));
    let due: u64 = all().map(|(s, c)| s.task.due() * c.runs.len() as u64).sum();
    let verified: u64 = all().map(|(_, c)| c.sum(|f| f.verified)).sum();
    let name = format!("messages intact, in order, each once ≥ {due}");
    run.check(Check::new(name, Some(verified as f64), Must::AtLeast, due as f64));
    for (one, cell) in all().filter(|(_, c)| c.rate == CHECKED) {
        let (task, kind, point) = (one.task.name(), one.kind.0, one.point.name());
        if one.task == Task::Cpu || kind == "inject" {
            let name = format!("{task}, {kind}, {point}: slowdown at 1 % ≤ {SMALL}");
            run.check(Check::new(name, one.slowdown(cell), Must::AtMost, SMALL));
        }
    }
    for (one, cell) in all().filter(|(_, c)| c.rate == HIGHEST) {
        let (task, kind, point) = (one.task.name(), one.kind.0, one.point.name());
        let name = format!("{task}, {kind}, {point}: faults at 5 % > 0");
        run.check(Check::new(name, Some(cell.sum(|f| f.faults) as f64), Must::Above, 0.0));
    }
}

/// One of the paper's two tasks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Task {
    Communication,
    Cpu,
}

impl Task {
    const ALL: [Self; 2] = [Self::Communication, Self::Cpu];

    const fn name(self) -> &'static str {
        match self {
            Self::Communication => "communication",
            Self::Cpu => "cpu",
        }
    }

    /// Messages that each sending process sends.
    const fn messages(self) -> u64 {
        match self {
            Self::Communication => POURED,
            Self::Cpu => TURNS * TURN,
        }
    }

    /// Messages that arrive in one run, at both processes.
    const fn due(self) -> u64 {
        match self {
            Self::Communication => self.messages(),
            Self::Cpu => 2 * self.messages(),
        }
    }
}

/// Where faults are injected (FI-3).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Point {
    Wire,
    Plain,
}

impl Point {
    const ALL: [Self; 2] = [Self::Wire, Self::Plain];

    const fn name(self) -> &'static str {
        match self {
            Self::Wire => "wire",
            Self::Plain => "plain",
        }
    }
}

/// The two processes. The far one invites, receives what is poured, and has the clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Side {
    Far = 1,
    Near = 2,
}

impl Side {
    const fn other(self) -> Self {
        match self {
            Self::Far => Self::Near,
            Self::Near => Self::Far,
        }
    }

    const fn role(self) -> &'static str {
        match self {
            Self::Far => "link-faults-far",
            Self::Near => "link-faults-near",
        }
    }
}

/// What both processes of a run are told.
#[derive(Clone, PartialEq, Debug)]
struct Order {
    task: Task,
    kind: (&'static str, Kind),
    point: Point,
    rate: f64,
    seed: u64,
    messages: u64,
    /// Steps in one slice of the computation.
    work: u64,
}

impl fmt::Display for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { task, kind, point, rate, seed, .. } = self;
        write!(f, "{}, {} at {}, rate {rate}, seed {seed}", task.name(), kind.0, point.name())
    }
}

impl Order {
    fn rule(&self) -> Rule {
        let chance = Probability::new(self.rate).expect("rates are probabilities");
        Rule::new(self.kind.1.clone()).recurring(Recurrence::Chance(chance))
    }

    /// As arguments of a child.
    fn words(&self) -> Vec<String> {
        let Self { task, kind, point, rate, seed, messages, work } = self;
        let numbers = [rate.to_string(), seed.to_string(), messages.to_string(), work.to_string()];
        [task.name(), kind.0, point.name()].map(String::from).into_iter().chain(numbers).collect()
    }

    /// From arguments of a child.
    fn read(words: &[String]) -> Option<Self> {
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

/// All rates of one kind, at one point, on one task.
struct Series {
    task: Task,
    kind: (&'static str, Kind),
    point: Point,
    cells: Vec<Cell>,
}

/// One rate of a series: what both processes found, far and near, a pair for each seed.
struct Cell {
    rate: f64,
    runs: Vec<(Found, Found)>,
}

fn all_series(rates: &[f64]) -> Vec<Series> {
    let cells = || rates.iter().map(|&rate| Cell { rate, runs: Vec::new() }).collect();
    let places = Task::ALL.into_iter().flat_map(|task| Point::ALL.map(|point| (task, point)));
    places.flat_map(|(task, point)| KINDS.map(|kind| Series { task, kind, point, cells: cells() })).collect()
}

impl Series {
    fn order(&self, rate: f64, seed: u64, work: u64) -> Order {
        let (task, kind, point) = (self.task, self.kind.clone(), self.point);
        Order { task, kind, point, rate, seed, messages: task.messages(), work }
    }

    fn baseline_s(&self) -> Option<f64> {
        self.cells.iter().find(|c| c.rate == 0.0)?.time_s()
    }

    fn slowdown(&self, cell: &Cell) -> Option<f64> {
        Some(cell.time_s()? / self.baseline_s()?)
    }

    fn row(&self, cell: &Cell) -> Row {
        let (faults, runs) = (cell.sum(|f| f.faults) as f64, cell.runs.len() as f64);
        let (again, twice) = (cell.sum(|f| f.retransmissions) as f64, cell.sum(|f| f.duplicates) as f64);
        let per = |n: f64, of: f64| (of > 0.0).then(|| significant(n / of));
        // The baseline is what others are compared with, so it is no point of the plot.
        let slowdown = self.slowdown(cell).filter(|_| cell.rate > 0.0);
        row! {
            "task": self.task.name(), "kind": self.kind.0, "rate": cell.rate,
            "time_s": cell.time_s().map(significant), "baseline_s": self.baseline_s().map(significant),
            "retransmissions": per(again, runs), "duplicates": per(twice, runs),
            "point": self.point.name(), "seeds": cell.runs.len(), "messages": self.task.due(),
            "slowdown": slowdown.map(significant),
            "per_fault_retransmissions": per(again, faults), "per_fault_duplicates": per(twice, faults),
        }
    }
}

impl Cell {
    /// The median of all seeds.
    fn time_s(&self) -> Option<f64> {
        median(&self.runs.iter().map(|(far, _)| far.seconds).collect::<Vec<_>>())
    }

    /// Both processes, all seeds.
    fn sum(&self, count: impl Fn(&Found) -> u64) -> u64 {
        self.runs.iter().flat_map(|(far, near)| [far, near]).map(count).sum()
    }
}

/// One run: two processes, until both have said what they found. Whatever goes wrong is told with its order.
fn carry_out(order: &Order, cores: (usize, usize)) -> Result<(Found, Found), Error> {
    let child = |side: Side, core: usize, invitation: Option<String>| {
        Child::start(side.role(), &[vec![core.to_string()], order.words(), invitation.into_iter().collect()].concat())
    };
    let found = |child: &Child, patience| {
        let line = child.line(patience)?;
        line.parse::<Found>().map_err(|()| child.said(&line))
    };
    let both = || {
        let far = child(Side::Far, cores.0, None)?;
        let near = child(Side::Near, cores.1, Some(far.line(PATIENCE)?))?;
        match (found(&far, PATIENCE), found(&near, AFTERWARDS)) {
            (Ok(far), Ok(near)) => Ok((far, near)),
            // A far process that waits in vain waits for a near one that has gone, which knows why.
            (_, Err(e)) | (Err(e), _) => Err(e),
        }
    };
    both().map_err(|e| match e {
        Error::Child { role, said } => Error::Child { role: format!("{role}: {order}"), said },
        Error::Silent { role, seconds } => Error::Silent { role: format!("{role}: {order}"), seconds },
        other => other,
    })
}

fn far(args: &[String]) -> Result<(), Error> {
    let (order, _) = understood(args)?;
    party::play(&order, Side::Far, None)
}

fn near(args: &[String]) -> Result<(), Error> {
    let (order, rest) = understood(args)?;
    let invitation = rest.first().ok_or_else(|| Error::UnknownRole(args.join(" ")))?;
    party::play(&order, Side::Near, Some(invitation))
}

/// The order and the rest of a role's arguments; this process is on its core from here on.
fn understood(args: &[String]) -> Result<(Order, &[String]), Error> {
    const WORDS: usize = 7;
    let unfit = || Error::UnknownRole(args.join(" "));
    let (core, rest) = args.split_first().ok_or_else(unfit)?;
    let (words, rest) = rest.split_at_checked(WORDS).ok_or_else(unfit)?;
    cores::pin(core.parse().map_err(|_| unfit())?)?;
    Ok((Order::read(words).ok_or_else(unfit)?, rest))
}

/// Work that nothing can leave out and nothing can speed up.
fn compute(steps: u64) {
    let mut x = black_box(steps | 1);
    for _ in 0..steps {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    black_box(x);
}

/// Steps in one slice, so that a turn computes for [`COMPUTE`]. All runs get the same: time lost to the link shows.
fn calibrated() -> u64 {
    const STEPS: u64 = 100_000;
    const TRIES: u32 = 20;
    let once = || {
        let start = Instant::now();
        compute(STEPS);
        start.elapsed()
    };
    // The fastest of some: whatever interrupted the others is not the work.
    let fastest = (0..TRIES).map(|_| once()).min().unwrap_or_default().as_secs_f64().max(1e-9);
    (STEPS as f64 * (COMPUTE / SLICES).as_secs_f64() / fastest) as u64
}
