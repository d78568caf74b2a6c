//! `manager-faults`: what communication faults do to a manager group and its agents (004 §6.3, Fig. 5; CM-3, FI-5).
//!
//! Whole nodes in the simulator, all of them with an agent and three with a replica, run jobs that people ask for. Once the group is whole, each
//! node's injector hits packets of all that it says and hears: a rate is a share of them, as in `link-faults`. Consequences are counted from then
//! until the faults end; after that everything is healed, and must get well.
//!
//! | of the figure | here |
//! |---|---|
//! | (R) retransmissions | packets that a link sent again, words that an agent or a replica said again |
//! | (D) duplicates | those of them that had arrived before |
//! | (A) false alarms | nodes that a replica probed after two missed heartbeats, and that answered |
//! | (S) self-diagnoses | comparisons of states that a replica began |
//!
//! Each is normalised as in the figure: what faults added to it in all seeds, for each fault injected in them. What they added is more than in as
//! many runs without any: zones let go of sessions that the manager then opens again, and what was on its way is sent once more, also without
//! faults. False alarms and self-diagnoses are not there then. Replicas and nodes count each for itself: a node that three replicas probed is three false alarms.
//!
//! ⚠ The paper does not say which kinds its figure mixes: `all` are the seven together, each with a seventh of the rate.
//! ⚠ Above the seal (`plain`) an injected copy comes to a session of somebody else, and nothing tells it from that session's own: its number makes
//! the true messages look old for a while. That is what the seal is for, and what rows of `inject` at `plain` show; they and `all` there are
//! held to no bound but that the manager stays right.

use crate::error::Error;
use crate::experiment::{Experiment, Run};
use crate::plot::{Is, Picture};
use crate::report::{Check, Must, Row, row, significant};
use phalanx_core::Duration;
use phalanx_fault::{Call, Delay, Effects, Kind, Probability, Recurrence, Rule};
use phalanx_sim::manager::{self, effects};
use phalanx_sim::member::{self, Command, Options, checks};
use phalanx_sim::{Fault, Setup};
use std::fmt;
use std::sync::PoisonError;

/// The experiment.
pub(crate) struct ManagerFaults;

/// Shares of the packets that are hit.
const RATES: [f64; 5] = [0.005, 0.01, 0.02, 0.05, 0.1];
/// For a first look.
const QUICK_RATES: [f64; 2] = [0.02, HIGHEST];
/// The highest of all.
const HIGHEST: f64 = 0.1;
/// Runs of each kind, rate and point.
const SEEDS: u64 = 10;
/// For a first look.
const QUICK_SEEDS: u64 = 2;
/// Nodes, three of them with a replica.
const NODES: u32 = 8;
/// The group is whole by then, and what its boot had to say again is said.
const BOOT: Duration = Duration::from_secs(30);
/// Faults last so long …
const FAULTS: Duration = Duration::from_secs(600);
/// … and at a first look.
const QUICK_FAULTS: Duration = Duration::from_secs(300);
/// After that somebody may still ask for a job.
const WORK: Duration = Duration::from_secs(1);
/// By then all jobs are over, and the group is well.
const PATIENCE: Duration = Duration::from_secs(3600);
/// The paper's retransmissions and duplicates for each fault are constant: at no rate so many times as at another.
const CONSTANT: f64 = 2.0;
/// False alarms and self-diagnoses for each fault: most are masked.
const MASKED: f64 = 0.02;
/// Without faults: retransmissions and duplicates of a node in a second, for sessions that its zone let go.
const UPKEEP: [f64; 2] = [0.2, 0.001];

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

/// The kinds of Table 2.
const KINDS: [(&str, Kind); 7] = [
    ("drop", Kind::Drop),
    ("delay", Kind::Delay(Delay::UntilNext)),
    ("modify", Kind::Modify { bits: 1 }),
    ("reorder", Kind::Reorder),
    (INJECT, Kind::Inject { bits: 0 }),
    ("invocation", Kind::Invocation { call: Call::Send, code: None }),
    ("operation", Kind::Operation { code: None, deliver: None, after: Kind::OPERATION_FAILS_AFTER }),
];
/// The one that adds messages, where the others lose, spoil or delay some.
const INJECT: &str = "inject";
/// All of them at once.
const ALL: &str = "all";
/// Without faults.
const NONE: &str = "none";

impl Experiment for ManagerFaults {
    fn name(&self) -> &'static str {
        "manager-faults"
    }

    fn about(&self) -> &'static str {
        "faults injected into the manager: retransmissions, duplicates, false alarms, self-diagnoses (004 Fig. 5)"
    }

    fn picture(&self) -> Picture {
        let beside = &["per_fault_duplicates", "per_fault_false_alarms", "per_fault_self_diagnoses"];
        let only = Some(("kind", Is::Text(ALL)));
        Picture { x: "rate", y: "per_fault_retransmissions", series: &["point"], only, beside }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let (seeds, quick) = (run.seeds(QUICK_SEEDS, SEEDS), run.options.quick);
        let rates = if quick { &QUICK_RATES[..] } else { &RATES[..] };
        let mut cells = vec![Cell::new(NONE, Point::Wire, 0.0)];
        for point in Point::ALL {
            for kind in KINDS.iter().map(|k| k.0).chain([ALL]) {
                cells.extend(rates.iter().map(|&rate| Cell::new(kind, point, rate)));
            }
        }
        let lasting = if quick { QUICK_FAULTS } else { FAULTS };
        let items: Vec<_> = (1..=seeds).flat_map(|seed| (0..cells.len()).map(move |at| (at, seed))).collect();
        let name = |&(at, seed): &(usize, u64)| format!("{}, seed {seed}", cells[at]);
        let found = run.in_parallel(&items, name, |&(at, seed)| cells[at].suffer(seed, lasting));
        for (&(at, seed), found) in items.iter().zip(found) {
            let found = found?;
            if let Some(trouble) = &found.trouble {
                run.note(format!("{}, seed {seed}: {trouble}", cells[at]));
            }
            cells[at].found.push(found);
        }
        let Some(calm) = cells.iter().find(|c| c.kind == NONE) else { return Ok(()) };
        cells.iter().for_each(|cell| run.row(cell.row(calm)));
        verdicts(run, &cells, calm, lasting);
        run.note(format!(
            "{NODES} nodes, {} s of faults in each run; counts are those of all seeds, per_fault_… what faults added for each of them, as in Fig. 5",
            lasting.as_secs_f64()
        ));
        Ok(())
    }
}

/// What must hold.
fn verdicts(run: &mut Run, cells: &[Cell], calm: &Cell, lasting: Duration) {
    let red = cells.iter().flat_map(|c| &c.found).filter(|f| f.trouble.is_some()).count();
    run.check(Check::new("runs in which something did not hold", Some(red as f64), Must::AtMost, 0.0));
    let open: u64 = cells.iter().map(|c| c.sum(|f| f.asked.abs_diff(f.answered))).sum();
    run.check(Check::new("jobs that were asked for and not answered", Some(open as f64), Must::AtMost, 0.0));
    let alarms = |cell: &Cell| EFFECTS[2..].iter().map(|(_, of)| cell.effect(*of)).sum::<u64>();
    let name = "without faults: false alarms, self-diagnoses";
    run.check(Check::new(name, Some(alarms(calm) as f64), Must::AtMost, 0.0));
    let node_seconds = lasting.as_secs_f64() * f64::from(NODES) * calm.found.len() as f64;
    for ((name, of), bound) in EFFECTS.into_iter().zip(UPKEEP) {
        let upkeep = calm.effect(of) as f64 / node_seconds;
        let name = format!("without faults: {name} of a node in a second ≤ {bound}");
        run.check(Check::new(name, Some(upkeep), Must::AtMost, bound));
    }
    let idle = cells.iter().filter(|c| c.rate > 0.0 && c.effect(|e| e.faults) == 0).count();
    run.check(Check::new("rates at which a kind never struck", Some(idle as f64), Must::AtMost, 0.0));
    let harm = cells.iter().filter(|c| c.kind == INJECT && c.point == Point::Wire);
    let harm: u64 = harm.map(alarms).sum();
    run.check(Check::new("inject, wire: false alarms, self-diagnoses", Some(harm as f64), Must::AtMost, 0.0));
    for point in Point::ALL {
        // Each with its rates, from the lowest on.
        let kinds = KINDS.iter().map(|k| k.0).chain([ALL]).filter(|&kind| is_bound(kind, point));
        let series: Vec<Vec<&Cell>> =
            kinds.map(|kind| cells.iter().filter(|c| c.kind == kind && c.point == point).collect()).collect();
        let worst = |of: &dyn Fn(&[&Cell]) -> Option<f64>| {
            series.iter().map(|cells| of(cells)).reduce(|a, b| Some(f64::max(a?, b?))).flatten()
        };
        let point = point.name();
        for (name, of) in EFFECTS {
            let falls = |cells: &[&Cell]| {
                let (first, last) = (cells.first()?.effect(of), cells.last()?.effect(of));
                Some(f64::from(u8::from(last < first)))
            };
            let name = format!("{point}: kinds with fewer {name} at 10 % than at the lowest rate");
            run.check(Check::new(name, worst(&falls), Must::AtMost, 0.0));
        }
        for (name, of) in EFFECTS {
            let lost = cells.iter().find(|c| c.kind == KINDS[0].0 && c.rate == HIGHEST && c.point.name() == point);
            let name = format!("drop, {point}: {name} at 10 % > 0");
            run.check(Check::new(name, lost.map(|c| c.effect(of) as f64), Must::Above, 0.0));
        }
        for (name, of) in &EFFECTS[..2] {
            let ratio = |cells: &[&Cell]| {
                let all: Option<Vec<f64>> = cells.iter().map(|c| c.per_fault(*of, calm)).collect();
                let (least, most) =
                    all?.into_iter().fold((f64::MAX, 0.0), |(a, b), x| (f64::min(a, x), f64::max(b, x)));
                (least > 0.0).then(|| most / least)
            };
            let name = format!("{point}: {name} for each fault, most / least of all rates, worst kind ≤ {CONSTANT}");
            run.check(Check::new(name, worst(&ratio), Must::AtMost, CONSTANT));
        }
        for (name, of) in &EFFECTS[2..] {
            let most =
                |cells: &[&Cell]| cells.iter().map(|c| c.per_fault(*of, calm)).reduce(|a, b| Some(f64::max(a?, b?)))?;
            let name = format!("{point}: {name} for each fault, worst kind and rate ≤ {MASKED}");
            run.check(Check::new(name, worst(&most), Must::AtMost, MASKED));
        }
    }
}

/// Where the figure's words are held to bounds: what an injected copy does is another matter.
fn is_bound(kind: &str, point: Point) -> bool {
    kind != INJECT && (kind != ALL || point == Point::Wire)
}

/// A count out of all that are counted.
type Of = fn(&Effects) -> u64;

/// The four of the figure.
const EFFECTS: [(&str, Of); 4] = [
    ("retransmissions", |e| e.retransmissions),
    ("duplicates", |e| e.duplicates),
    ("false alarms", |e| e.false_alarms),
    ("self-diagnoses", |e| e.self_diagnoses),
];

/// One kind at one point and rate.
struct Cell {
    kind: &'static str,
    point: Point,
    rate: f64,
    /// A run for each seed.
    found: Vec<Found>,
}

/// What came of one run.
struct Found {
    effects: Effects,
    asked: u64,
    answered: u64,
    /// What did not hold.
    trouble: Option<String>,
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {}, rate {}", self.kind, self.point.name(), self.rate)
    }
}

impl Cell {
    fn new(kind: &'static str, point: Point, rate: f64) -> Self {
        Self { kind, point, rate, found: Vec::new() }
    }

    fn rules(&self) -> Vec<Rule> {
        let kinds: Vec<_> = KINDS.iter().filter(|k| self.kind == ALL || self.kind == k.0).collect();
        let chance = Probability::new(self.rate / kinds.len().max(1) as f64);
        let rule = |kind: &(&str, Kind)| Some(Rule::new(kind.1.clone()).recurring(Recurrence::Chance(chance?)));
        kinds.into_iter().filter_map(rule).collect()
    }

    fn suffer(&self, seed: u64, lasting: Duration) -> Result<Found, Error> {
        let setup = Setup { nodes: NODES, seed, ..Setup::default() };
        let options = Options { manager: Some(manager::Options::default()), telling: true, ..Options::default() };
        let (mut sim, _) = member::build(&setup, &options).map_err(Error::peer("phalanx-sim"))?;
        checks::register(&mut sim, NODES, &options);
        let jobs = manager::checks::register(&mut sim);
        sim.run_for(BOOT);
        let before = effects(&sim);
        for node in 0..NODES {
            for rule in self.rules() {
                match self.point {
                    Point::Wire => sim.fault(Fault::inject(node, rule)),
                    Point::Plain => sim.command(node, Command::Plain(Box::new(rule))),
                }
            }
        }
        sim.run_for(lasting);
        let effects = since(effects(&sim), before);
        sim.heal(true);
        for node in 0..NODES {
            sim.command(node, Command::HealPlain);
            sim.command(node, Command::Manage(manager::Command::Rest));
        }
        sim.run_for(WORK);
        let report = sim.settle(PATIENCE);
        let trouble = (!report.is_green()).then(|| report.to_string());
        let jobs = *jobs.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Found { effects, asked: jobs.asked, answered: jobs.taken + jobs.refused, trouble })
    }

    fn sum(&self, of: impl Fn(&Found) -> u64) -> u64 {
        self.found.iter().map(of).sum()
    }

    fn effect(&self, of: Of) -> u64 {
        self.sum(|f| of(&f.effects))
    }

    /// As Fig. 5 has it: what faults added, for each; nothing where none was injected.
    fn per_fault(&self, of: Of, calm: &Self) -> Option<f64> {
        let faults = self.effect(|e| e.faults);
        (faults > 0).then(|| (self.effect(of) as f64 - calm.effect(of) as f64) / faults as f64)
    }

    fn row(&self, calm: &Self) -> Row {
        let both = |(_, of): (&str, Of)| (self.effect(of), self.per_fault(of, calm).map(significant));
        let [again, twice, alarms, diagnoses] = EFFECTS.map(both);
        row! {
            "rate": self.rate, "kind": self.kind, "injected": self.effect(|e| e.faults),
            "retransmissions": again.0, "duplicates": twice.0, "false_alarms": alarms.0, "self_diagnoses": diagnoses.0,
            "point": self.point.name(), "seeds": self.found.len(),
            "per_fault_retransmissions": again.1, "per_fault_duplicates": twice.1,
            "per_fault_false_alarms": alarms.1, "per_fault_self_diagnoses": diagnoses.1,
            "rejected": self.effect(|e| e.rejected),
            "jobs_asked": self.sum(|f| f.asked), "jobs_answered": self.sum(|f| f.answered),
        }
    }
}

/// What came after `before`.
fn since(now: Effects, before: Effects) -> Effects {
    Effects {
        faults: now.faults - before.faults,
        retransmissions: now.retransmissions - before.retransmissions,
        duplicates: now.duplicates - before.duplicates,
        false_alarms: now.false_alarms - before.false_alarms,
        self_diagnoses: now.self_diagnoses - before.self_diagnoses,
        rejected: now.rejected - before.rejected,
    }
}
