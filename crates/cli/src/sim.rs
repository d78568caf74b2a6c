//! `phalanx sim`: runs a scenario, or a swarm of drawn ones, and says whether everything held.
//!
//! The same seed gives the same run, so a red run ends with the command that replays it.

mod print;

use clap::ValueEnum;
use phalanx_sim::scenario::{Engine, Scenario, ScenarioError, Swarm, WORKLOADS, drawn, swarm};
use phalanx_sim::station::BuildError;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// The seed of a swarm when none is given: the same for everybody, so that two people talk about the same runs.
const FIRST_SEED: u64 = 1;
/// How often progress is shown.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// What to simulate.
#[derive(clap::Args)]
#[command(after_help = "Exit codes: 0 everything held, 1 something did not or cannot be run, 64 usage.\n\
                        docs/scenarios.md describes scenarios, docs/faults.md the rules of the fault injector.")]
pub(crate) struct Args {
    /// A scenario; `-` reads it from stdin
    #[arg(required_unless_present = "swarm", conflicts_with = "swarm")]
    file: Option<PathBuf>,
    /// Draw and run N whole scenarios, with the seeds S, S+1, …
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    swarm: Option<u64>,
    /// The seed, instead of the scenario's own
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(..=i64::MAX as u64))]
    seed: Option<u64>,
    /// Change a field: network.loss=0.1, fault.0.at=3s
    #[arg(long, value_name = "KEY=VALUE", conflicts_with = "swarm", value_parser = key_and_value)]
    set: Vec<String>,
    /// Threads that share a run (the run stays the same); with --swarm, runs at once
    #[arg(long, visible_alias = "jobs", value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
    /// What the nodes of drawn scenarios run
    #[arg(long, value_name = "E", default_value = "link", conflicts_with_all = ["file", "workload"], value_parser = engine())]
    engine: String,
    /// Only this workload of engine `link`
    #[arg(long, value_name = "W", conflicts_with = "file", value_parser = clap::builder::PossibleValuesParser::new(WORKLOADS))]
    workload: Option<String>,
    /// Do not stop at the first red run
    #[arg(long, conflicts_with = "file")]
    keep_going: bool,
    /// Print the drawn scenarios instead of running them
    #[arg(long, conflicts_with = "file")]
    show: bool,
    /// How to print what came out
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
}

/// How to print.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people
    Table,
    /// For programs
    Json,
}

/// Why nothing was run, or nothing could be printed.
#[derive(Debug)]
pub(crate) enum Error {
    /// The file cannot be read.
    Unreadable { file: String, reason: io::Error },
    /// The scenario is wrong.
    Scenario(ScenarioError),
    /// The cluster cannot be built.
    Build { file: String, reason: BuildError },
    /// Whoever reads our output has gone.
    Unwritable(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { file, reason } => write!(f, "cannot read {file}: {reason}"),
            Self::Scenario(error) => error.fmt(f),
            Self::Build { file, reason } => write!(f, "{file}: {reason}"),
            Self::Unwritable(reason) => write!(f, "cannot write what came out: {reason}"),
        }
    }
}

fn engine() -> clap::builder::PossibleValuesParser {
    clap::builder::PossibleValuesParser::new(Engine::ALL.map(Engine::name))
}

impl Args {
    fn engine(&self) -> Engine {
        Engine::ALL.into_iter().find(|e| e.name() == self.engine).unwrap_or_default()
    }
}

/// Simulates, prints, and says whether everything held.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    let green = match (&args.file, args.swarm) {
        (_, Some(runs)) => run_swarm(args, runs)?,
        (Some(file), None) => run_scenario(args, file)?,
        (None, None) => unreachable!("clap asks for one of the two"),
    };
    Ok(if green { ExitCode::SUCCESS } else { crate::EXIT_ERROR.into() })
}

fn run_scenario(args: &Args, file: &PathBuf) -> Result<bool, Error> {
    let name = file.display().to_string();
    let text = if name == "-" { io::read_to_string(io::stdin()) } else { std::fs::read_to_string(file) };
    let text = text.map_err(|reason| Error::Unreadable { file: name.clone(), reason })?;
    let mut changes = args.set.clone();
    if let Some(threads) = args.threads {
        changes.push(format!("threads={threads}"));
    }
    let mut scenario = Scenario::parse(&name, &text, &changes).map_err(Error::Scenario)?;
    if let Some(seed) = args.seed {
        scenario.setup.seed = seed;
    }
    let outcome = scenario.run().map_err(|reason| Error::Build { file: name.clone(), reason })?;
    let replay = replay_scenario(&name, scenario.setup.seed, &args.set);
    let mut out = io::stdout().lock();
    match args.output {
        Format::Table => print::scenario_table(&mut out, &scenario, &outcome, &replay),
        Format::Json => print::json(&mut out, &print::scenario_json(&scenario, &outcome, &replay)),
    }
    .map_err(Error::Unwritable)?;
    Ok(outcome.is_green())
}

fn run_swarm(args: &Args, runs: u64) -> Result<bool, Error> {
    let first = args.seed.unwrap_or(FIRST_SEED);
    let mut out = io::stdout().lock();
    if args.show {
        for number in 0..runs {
            let gap = if number == 0 { "" } else { "\n" };
            write!(out, "{gap}{}", drawn(first.saturating_add(number), args.engine(), args.workload.as_deref()))
                .map_err(Error::Unwritable)?;
        }
        return Ok(true);
    }
    let cores = || std::thread::available_parallelism().map_or(1, usize::from);
    let plan = Swarm {
        first,
        runs,
        jobs: args.threads.map_or_else(cores, usize::from),
        engine: args.engine(),
        workload: args.workload.clone(),
        keep_going: args.keep_going,
    };
    let progress = Progress::new(runs);
    let summary = swarm(&plan, |done, run| progress.show(done, run.seed));
    progress.clear();
    match args.output {
        Format::Table => print::swarm_table(&mut out, &plan, &summary),
        Format::Json => print::json(&mut out, &print::swarm_json(&plan, &summary)),
    }
    .map_err(Error::Unwritable)?;
    Ok(summary.is_green())
}

/// The command that gives the same run again.
fn replay_scenario(file: &str, seed: u64, set: &[String]) -> String {
    let mut line = format!("phalanx sim {} --seed {seed}", quoted(file));
    for change in set {
        line.push_str(" --set ");
        line.push_str(&quoted(change));
    }
    line
}

/// The command that gives one run of a swarm again.
fn replay_swarm(seed: u64, engine: Engine, workload: Option<&str>) -> String {
    let engine = if engine == Engine::Link { String::new() } else { format!(" --engine {}", engine.name()) };
    let workload = workload.map_or_else(String::new, |w| format!(" --workload {w}"));
    format!("phalanx sim --swarm 1 --seed {seed}{engine}{workload}")
}

/// A word as a shell reads it back.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=+:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

fn key_and_value(text: &str) -> Result<String, String> {
    match text.split_once('=') {
        Some((key, _)) if !key.trim().is_empty() => Ok(text.to_owned()),
        _ => Err("write a field's path and its value, such as network.loss=0.1".to_owned()),
    }
}

/// A line on the terminal that says how far a swarm is; nothing elsewhere.
struct Progress {
    runs: u64,
    begin: Instant,
    shown: Option<Mutex<Instant>>,
}

impl Progress {
    fn new(runs: u64) -> Self {
        let begin = Instant::now();
        Self { runs, begin, shown: io::stderr().is_terminal().then(|| Mutex::new(begin)) }
    }

    fn show(&self, done: u64, seed: u64) {
        let Some(Ok(mut shown)) = self.shown.as_ref().map(Mutex::lock) else {
            return;
        };
        if shown.elapsed() >= PROGRESS_EVERY {
            *shown = Instant::now();
            let left = self.begin.elapsed().as_secs_f64() / done as f64 * (self.runs - done) as f64;
            eprint!("\r\x1b[K{done} of {} runs, seed {seed}, about {left:.0} s left", self.runs);
        }
    }

    fn clear(&self) {
        if self.shown.is_some() {
            eprint!("\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replay_survives_the_shell() {
        let line = replay_scenario("my runs/a.toml", 7, &["network.loss=0.1".into(), "expect.gaps=< 'x'".into()]);
        assert_eq!(
            line,
            r"phalanx sim 'my runs/a.toml' --seed 7 --set network.loss=0.1 --set 'expect.gaps=< '\''x'\'''"
        );
        assert_eq!(replay_swarm(9, Engine::Link, Some("order")), "phalanx sim --swarm 1 --seed 9 --workload order");
        assert_eq!(replay_swarm(9, Engine::Zone, None), "phalanx sim --swarm 1 --seed 9 --engine zone");
    }
}
