//! `link-faults`: how much longer two tasks take while the fault injector hits their messages.
//!
//! RL-3, FI-5; 004 §6.2, Figs. 3 and 4. The communication-bound task sends and receives as fast as it can; the CPU-bound
//! one makes 12 sends, computes long enough for the acknowledgements to come, and makes 12 receives. Each run is two
//! processes with hosts over UDP and one kind of fault on both of them; each message is checked as it arrives, and one
//! that is changed, missing, doubled or out of its turn ends the experiment.
//!
//! A rate is a share of the packets, which is what the paper's CL calls messages. Delay and reorder last until the next
//! packet of the peer, as in the paper. ⚠ Where it compares with a run without injector, ours compares with a silent one.

mod order;
mod party;
mod script;
mod work;

use super::{Mode, places};
use crate::child::Child;
use crate::cores;
use crate::error::Error;
use crate::experiment::{Experiment, Role, Run};
use crate::plot::Picture;
use crate::report::{Check, Must, Row, row, significant};
use crate::stats::median;
use order::{KINDS, Order, Point, Side, Task, WORDS};
use party::Found;
use phalanx_fault::Kind;
use std::time::{Duration, Instant};

/// The experiment.
pub(crate) struct LinkFaults;

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
/// A first look begins no seed that would not end within so many seconds: a busy machine shows one seed instead of three.
const QUICK_BUDGET_S: f64 = 25.0;
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
        Picture { x: "rate", y: "slowdown", series: &["task", "kind", "point"], only: None, beside: &[] }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let Some(cores) = places(Mode::Spin)? else {
            run.note("nothing was measured: the two processes need a core each");
            return Ok(());
        };
        let options = run.options;
        let (rates, seeds, budget_s): (&[f64], u64, f64) = if options.quick {
            (&QUICK_RATES, QUICK_SEEDS, options.budget_s.min(QUICK_BUDGET_S))
        } else {
            (&RATES, SEEDS, options.budget_s)
        };
        let mut series = all_series(rates, options.quick);
        let (start, work, n) = (Instant::now(), work::calibrated(), series.len());
        for seed in 1..=seeds {
            let next_ends_s = start.elapsed().as_secs_f64() / (seed - 1).max(1) as f64 * seed as f64;
            if seed > 1 && next_ends_s >= budget_s {
                run.note(format!("only {} of {seeds} seeds: the time is up", seed - 1));
                break;
            }
            for (i, one) in series.iter_mut().enumerate() {
                run.progress(&format!("seed {seed} of {seeds}: {} of {n}, {}", i + 1, one.order(0.0, seed, work)));
                one.play(seed, work, cores)?;
            }
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
    // One that is missing in each run that went wrong is enough to say so.
    let due: u64 = all().map(|(s, c)| s.task.due() * c.runs.len() as u64).sum::<u64>()
        + series.iter().filter(|s| s.deviation.is_some()).count() as u64;
    let verified: u64 = all().map(|(_, c)| c.sum(|f| f.verified)).sum();
    let name = format!("messages intact, in order, each once ≥ {due}");
    run.check(Check::new(name, Some(verified as f64), Must::AtLeast, due as f64));
    for deviation in series.iter().filter_map(|s| s.deviation.as_ref()) {
        run.check(Check::new(deviation.to_string(), None, Must::AtLeast, 0.0));
    }
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

/// All rates of one kind, at one point, on one task.
struct Series {
    task: Task,
    kind: (&'static str, Kind),
    point: Point,
    cells: Vec<Cell>,
    /// A run in which messages did not arrive as they were sent. The series ends with it.
    deviation: Option<Error>,
}

/// One rate of a series: what both processes found, far and near, a pair for each seed.
struct Cell {
    rate: f64,
    runs: Vec<(Found, Found)>,
}

fn all_series(rates: &[f64], quick: bool) -> Vec<Series> {
    let cells = || rates.iter().map(|&rate| Cell { rate, runs: Vec::new() }).collect();
    let places = Task::ALL.into_iter().flat_map(|task| Point::ALL.map(|point| (task, point)));
    let all = places
        .flat_map(|(task, point)| KINDS.map(|kind| Series { task, kind, point, cells: cells(), deviation: None }));
    // What the seal does not stop is the same at both points: a first look is content with one.
    let differs = |s: &Series| matches!(s.kind.1, Kind::Modify { .. } | Kind::Inject { .. });
    all.filter(|s| !quick || s.point == Point::Wire || differs(s)).collect()
}

impl Series {
    fn order(&self, rate: f64, seed: u64, work: u64) -> Order {
        let (task, kind, point) = (self.task, self.kind.clone(), self.point);
        Order { task, kind, point, rate, seed, messages: task.messages(), work }
    }

    /// The baseline and all rates within a second or two, because a shared machine drifts.
    fn play(&mut self, seed: u64, work: u64, cores: (usize, usize)) -> Result<(), Error> {
        for at in 0..self.cells.len() {
            if self.deviation.is_some() {
                break;
            }
            let order = self.order(self.cells[at].rate, seed, work);
            match carry_out(&order, cores) {
                Ok(found) => self.cells[at].runs.push(found),
                Err(e @ (Error::Child { .. } | Error::Silent { .. })) => self.deviation = Some(e),
                Err(e) => return Err(e),
            }
        }
        Ok(())
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
    let unfit = || Error::UnknownRole(args.join(" "));
    let (core, rest) = args.split_first().ok_or_else(unfit)?;
    let (words, rest) = rest.split_at_checked(WORDS).ok_or_else(unfit)?;
    cores::pin(core.parse().map_err(|_| unfit())?)?;
    Ok((Order::read(words).ok_or_else(unfit)?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(seconds: f64, faults: u64, retransmissions: u64, duplicates: u64) -> (Found, Found) {
        let far = Found { seconds, verified: Task::Communication.due(), faults, ..Found::default() };
        (far, Found { seconds: 9.0, retransmissions, duplicates, ..Found::default() })
    }

    fn sample() -> Vec<Series> {
        let mut all = all_series(&QUICK_RATES, true);
        all.truncate(1);
        for (cell, seconds) in all[0].cells.iter_mut().zip([0.02, 0.03, 0.08]) {
            let faults = (cell.rate * 1000.0) as u64;
            cell.runs = [0.9, 1.0, 5.0].map(|x| found(seconds * x, faults, faults * 2, faults / 2)).into();
        }
        all
    }

    fn checked(series: &[Series]) -> Vec<Check> {
        let options =
            crate::experiment::Options { quick: true, width: 0.03, max_rounds: 1, budget_s: 1.0, seeds: None };
        let mut run = Run::for_test(options);
        checks(&mut run, series);
        run.checks().to_vec()
    }

    /// FI-5: medians of the far clock, effects of both processes, normalised to faults as in Fig. 5.
    #[test]
    fn rows_hold_medians_and_effects_for_each_fault() {
        let series = &sample()[0];
        let [baseline, _, highest] = [0, 1, 2].map(|at| series.row(&series.cells[at]));
        assert_eq!((&highest["time_s"], &highest["baseline_s"]), (&0.08.into(), &0.02.into()));
        assert_eq!((&highest["slowdown"], &highest["retransmissions"]), (&4.0.into(), &100.0.into()));
        assert_eq!(highest["per_fault_retransmissions"], 2.0);
        assert_eq!(highest["per_fault_duplicates"], 0.5);
        assert!(baseline["slowdown"].is_null() && baseline["per_fault_duplicates"].is_null());
        let columns = ["task", "kind", "rate", "time_s", "baseline_s", "retransmissions", "duplicates"];
        assert!(highest.keys().zip(columns).all(|(is, ought)| is == ought), "{highest:?}");
    }

    /// RL-3: a run in which a message went wrong fails the experiment and is named.
    #[test]
    fn a_deviation_fails_its_check_and_is_named() {
        let mut series = sample();
        assert!(checked(&series).iter().all(|c| c.holds), "{:?}", checked(&series));
        let order = series[0].order(0.05, 4, 0).to_string();
        series[0].deviation = Some(Error::Child { role: order, said: "rcl: changed contents".into() });
        let failed: Vec<Check> = checked(&series).into_iter().filter(|c| !c.holds).collect();
        assert_eq!(failed.len(), 2, "the sum and the run: {failed:?}");
        assert!(["drop at wire", "rate 0.05", "seed 4", "changed"].iter().all(|w| failed[1].name.contains(w)));
    }

    #[test]
    fn a_kind_that_never_struck_fails() {
        let mut series = sample();
        series[0].cells[2].runs.iter_mut().for_each(|r| r.0.faults = 0);
        assert_eq!(checked(&series).iter().filter(|c| !c.holds).count(), 1);
    }

    /// A first look leaves out what the points have in common, and nothing else.
    #[test]
    fn quick_series_are_a_part_of_all() {
        assert_eq!(all_series(&RATES, false).len(), 2 * 2 * KINDS.len());
        assert_eq!(all_series(&RATES, true).len(), 2 * (KINDS.len() + 3));
    }
}
