//! `peers`: what users would pick instead, measured beside ours in one run: serf, foca, chitchat.
//!
//! Each cluster runs in a private network namespace, driven by a child process of its own ([`measure`]). A process for each
//! member is compared with serf, many members in one process with foca and chitchat; everybody as it comes, and a second
//! time with the profiles for one machine. `docs/comparisons.md` says what is compared and how to read it.

mod chitchat;
mod daemons;
mod fleet;
mod foca;
mod gate;
pub(crate) mod ground;
mod measure;
pub(crate) mod process;
mod serf;
pub(crate) mod sight;
mod verdict;

use crate::child::Child;
use crate::error::Error;
use crate::experiment::{Experiment, Role, Run};
use crate::plot::Picture;
use crate::report::{Row, row};
use ground::{Ground, Homes};
use measure::{Measurement, System, Told};
use nix::unistd::Uid;
use serde_json::{Map, Value};
use sight::Watch;
use std::fmt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The experiment.
pub(crate) struct Peers;

/// What happens to a cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// All start.
    Join,
    /// Nothing.
    Idle,
    /// A member ends without a word.
    Crash,
    /// A member's packets are lost, all of them.
    Blackhole,
    /// Some members are stopped again and again.
    Duty,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Join => "join",
            Self::Idle => "idle",
            Self::Crash => "crash",
            Self::Blackhole => "blackhole",
            Self::Duty => "duty",
        })
    }
}

/// What runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Daemons,
    DaemonsLocal,
    Fleet,
    Serf,
    SerfLocal,
    Foca,
    Chitchat,
}

/// A system at a size.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Case {
    kind: Kind,
    nodes: usize,
}

const fn case(kind: Kind, nodes: usize) -> Case {
    Case { kind, nodes }
}

/// All that are measured, ours first.
const CASES: [Case; 8] = [
    case(Kind::Daemons, 30),
    case(Kind::Daemons, 100),
    case(Kind::Fleet, 100),
    case(Kind::Serf, 30),
    case(Kind::Foca, 100),
    case(Kind::Chitchat, 100),
    case(Kind::DaemonsLocal, 30),
    case(Kind::SerfLocal, 30),
];

/// Everything, as far as its trials go; the whole run takes less than this.
const BUDGET_S: f64 = 1_500.0;
/// A child says something at least so often: a trial, or a minute of rest.
const PATIENCE: Duration = Duration::from_secs(180);
/// What a package takes to be installed, at most, in seconds.
const INSTALLATION_S: &str = "300";
/// Programs of others that the run needs, and the packages that have them.
const SERF: &str = "serf";
const NFT: (&str, &str) = ("nft", "nftables");

impl Kind {
    const ALL: [Self; 7] =
        [Self::Daemons, Self::DaemonsLocal, Self::Fleet, Self::Serf, Self::SerfLocal, Self::Foca, Self::Chitchat];

    /// Its name in rows and arguments.
    const fn name(self) -> &'static str {
        match self {
            Self::Daemons => "phalanx",
            Self::DaemonsLocal => "phalanx-local",
            Self::Fleet => "phalanx-in-process",
            Self::Serf => "serf",
            Self::SerfLocal => "serf-local",
            Self::Foca => "foca",
            Self::Chitchat => "chitchat",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    const fn is_ours(self) -> bool {
        matches!(self, Self::Daemons | Self::DaemonsLocal | Self::Fleet)
    }

    /// Runs as others would not by default: for the second table.
    const fn is_tuned(self) -> bool {
        matches!(self, Self::DaemonsLocal | Self::SerfLocal)
    }

    const fn homes(self) -> Homes {
        match self {
            Self::Fleet | Self::Foca | Self::Chitchat => Homes::Process,
            Self::Daemons | Self::DaemonsLocal | Self::Serf | Self::SerfLocal => Homes::Hosts,
        }
    }

    const fn needs_serf(self) -> bool {
        matches!(self, Self::Serf | Self::SerfLocal)
    }
}

impl Case {
    /// A cluster of it, on this ground from now on.
    fn system(self, tell: std::sync::mpsc::Sender<sight::Sighting>) -> Result<Box<dyn System>, Error> {
        Ok(match self.kind {
            Kind::Daemons => Box::new(daemons::Daemons::new(self.nodes, None, tell)?),
            Kind::DaemonsLocal => Box::new(daemons::Daemons::new(self.nodes, Some("local"), tell)?),
            Kind::Fleet => Box::new(fleet::InProcess::new(self.nodes, tell)),
            Kind::Serf => Box::new(serf::Serf::new(self.nodes, "lan", tell)),
            Kind::SerfLocal => Box::new(serf::Serf::new(self.nodes, "local", tell)),
            Kind::Foca => Box::new(foca::Cluster::new(self.nodes, tell)?),
            Kind::Chitchat => Box::new(chitchat::Cluster::new(self.nodes, tell)?),
        })
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {} nodes", self.kind.name(), self.nodes)
    }
}

/// How much of everything.
#[derive(Clone, Copy, Debug)]
struct Plan {
    /// From full views to the first measurement.
    settle: Duration,
    idle: Duration,
    crashes: usize,
    cuts: usize,
    duty: Duration,
}

impl Plan {
    /// Detection of others takes seconds, and ours does not: they get fewer trials of what needs no tail.
    fn of(case: Case, quick: bool) -> Self {
        let plan = |settle, idle, crashes, cuts, duty| Self {
            settle: Duration::from_secs(settle),
            idle: Duration::from_secs(idle),
            crashes,
            cuts,
            duty: Duration::from_secs(duty),
        };
        match (quick, case.kind) {
            (true, kind) if kind.is_tuned() => plan(1, 0, 0, 0, 0),
            (true, kind) if kind.is_ours() => plan(10, 10, 3, 1, 5),
            (true, _) => plan(4, 10, 1, 1, 5),
            (false, kind) if kind.is_tuned() => plan(4, 0, 10, 3, 0),
            (false, kind) if kind.is_ours() => plan(10, 60, 20, 10, 30),
            (false, _) => plan(10, 60, 20, 5, 30),
        }
    }

    fn is_empty(&self) -> bool {
        self.idle.is_zero() && self.crashes == 0
    }
}

impl Experiment for Peers {
    fn name(&self) -> &'static str {
        "peers"
    }

    fn about(&self) -> &'static str {
        "real daemons beside serf, foca and chitchat: crash, blackhole, idle bytes, join, memory, false alarms"
    }

    fn roles(&self) -> &'static [Role] {
        &[Role { name: "peers-cluster", play }]
    }

    fn picture(&self) -> Picture {
        Picture { x: "nodes", y: "last_ms", series: &["system", "fault"], only: None, beside: &[] }
    }

    fn budget_s(&self) -> f64 {
        BUDGET_S
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let quick = run.options.quick;
        let can_cut = installed(run, NFT.0, NFT.1);
        let has_serf = installed(run, SERF, SERF);
        if !can_cut {
            run.note("no blackholes, and no bytes of processes: they need `nft`, of the package nftables");
        }
        let cases: Vec<Case> = CASES
            .into_iter()
            .filter(|case| (has_serf || !case.kind.needs_serf()) && !Plan::of(*case, quick).is_empty())
            .collect();
        // Times of peers are those of their timers, and take minutes: they wait beside each other, ours runs alone.
        let (ours, peers): (Vec<Case>, Vec<Case>) = cases.iter().partition(|case| case.kind.is_ours());
        let mut rows = Vec::new();
        let (began, budget_s) = (Instant::now(), run.options.budget_s);
        let left = |parts: usize| (budget_s - began.elapsed().as_secs_f64()).max(0.0) / parts as f64;
        for (i, &case) in ours.iter().enumerate() {
            // What one does not need is there for those after it.
            let child = start(case, quick, left(ours.len() - i + 1), can_cut);
            rows.extend(hear(run, case, child));
        }
        let children: Vec<_> = peers.iter().map(|&case| (case, start(case, quick, left(1), can_cut))).collect();
        for (case, child) in children {
            rows.extend(hear(run, case, child));
        }
        verdict::check(run, &rows);
        rows.into_iter().for_each(|row| run.row(row));
        Ok(())
    }
}

/// True when a program is there; who may do so installs it.
fn installed(run: &mut Run, program: &str, package: &str) -> bool {
    let is_there = || {
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).stdout(Stdio::null()).status();
        found.is_ok_and(|status| status.success())
    };
    if is_there() {
        return true;
    }
    if Uid::effective().is_root() {
        run.progress(&format!("installing {package}"));
        let mut apt = Command::new("timeout");
        apt.args([INSTALLATION_S, "apt-get", "install", "--yes", "--quiet", package]);
        // Whether it worked is seen by whether the program is there.
        let _ = apt.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()).output();
    }
    if !is_there() {
        run.note(format!("`{program}` is left out: it is not installed (`apt-get install {package}` as root)"));
        return false;
    }
    true
}

fn start(case: Case, quick: bool, share_s: f64, can_cut: bool) -> Result<Child, Error> {
    let arguments = [
        case.kind.name().to_string(),
        case.nodes.to_string(),
        quick.to_string(),
        share_s.to_string(),
        can_cut.to_string(),
    ];
    Child::start("peers-cluster", &arguments)
}

/// All rows of a case; what goes wrong is a note, and the rows before it stay.
fn hear(run: &mut Run, case: Case, child: Result<Child, Error>) -> Vec<Row> {
    let mut rows = Vec::new();
    let child = match child {
        Ok(child) => child,
        Err(e) => {
            run.note(format!("{case}: {e}"));
            return rows;
        }
    };
    loop {
        let line = match child.line(PATIENCE) {
            Ok(line) => line,
            Err(e) => {
                run.note(format!("{case}: {e}"));
                return rows;
            }
        };
        match line.split_once(' ') {
            Some(("row", text)) => rows.extend(serde_json::from_str::<Map<String, Value>>(text)),
            Some(("note", text)) => run.note(text),
            Some(("progress", text)) => run.progress(&format!("{case}: {text}")),
            _ if line == "done" => return rows,
            _ => {
                run.note(format!("{case}: {line}"));
                return rows;
            }
        }
    }
}

/// A child: one cluster on a ground of its own, all rows to stdout.
fn play(args: &[String]) -> Result<(), Error> {
    let unfit = || Error::UnknownRole(args.join(" "));
    let [kind, nodes, quick, share_s, can_cut] = args else { return Err(unfit()) };
    let case = Case { kind: Kind::named(kind).ok_or_else(unfit)?, nodes: nodes.parse().map_err(|_| unfit())? };
    let (quick, can_cut): (bool, bool) = (quick.parse().map_err(|_| unfit())?, can_cut.parse().map_err(|_| unfit())?);
    let share_s: f64 = share_s.parse().map_err(|_| unfit())?;
    let mut plan = Plan::of(case, quick);
    if !can_cut && case.kind != Kind::Fleet {
        plan.cuts = 0;
    }
    let until = Instant::now() + Duration::try_from_secs_f64(share_s).map_err(|_| unfit())?;
    let ground = Ground::enter(case.nodes, case.kind.homes(), can_cut)?;
    let (tell, watch) = Watch::new(case.nodes);
    let mut system = case.system(tell)?;
    let measurement = Measurement {
        name: case.kind.name(),
        nodes: case.nodes,
        plan,
        ground: &ground,
        system: system.as_mut(),
        watch,
        until,
    };
    measurement.run(&mut |told| match told {
        Told::Row(row) => println!("row {}", Value::Object(row)),
        Told::Note(note) => println!("note {note}"),
        Told::Progress(what) => println!("progress {what}"),
    })?;
    // Who hears this ends us: by then members and their directories are gone.
    drop(system);
    println!("done");
    Ok(())
}

/// An empty row: its columns, in their order, for each fault.
fn row(system: &str, nodes: usize, fault: Fault) -> Row {
    row! {
        "system": system, "nodes": nodes, "fault": fault.to_string(),
        "first_ms": (), "last_ms": (), "p95_last_ms": (), "bytes_per_node_s": (), "join_s": (), "rss_mb": (),
        "false_positives": (),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn each_kind_is_found_by_its_name_and_each_case_is_one_of_its_own() {
        assert!(Kind::ALL.into_iter().all(|kind| Kind::named(kind.name()) == Some(kind)));
        assert_eq!(CASES.map(|case| case.to_string()).into_iter().collect::<BTreeSet<_>>().len(), CASES.len());
        assert!(CASES.iter().all(|case| case.nodes <= ground::MEMBERS_MAX));
    }

    #[test]
    fn a_full_run_crashes_twenty_of_everybody_as_it_comes_and_a_first_look_leaves_the_tuned_out() {
        for case in CASES {
            let (full, quick) = (Plan::of(case, false), Plan::of(case, true));
            assert!(case.kind.is_tuned() || full.crashes >= 20 && full.idle == Duration::from_secs(60), "{case}");
            assert_eq!(quick.is_empty(), case.kind.is_tuned(), "{case}");
        }
    }

    /// Others parse these.
    #[test]
    fn rows_begin_with_their_columns_in_their_order() {
        let columns = [
            "system",
            "nodes",
            "fault",
            "first_ms",
            "last_ms",
            "p95_last_ms",
            "bytes_per_node_s",
            "join_s",
            "rss_mb",
            "false_positives",
        ];
        assert!(row("serf", 30, Fault::Crash).keys().eq(columns));
    }
}
