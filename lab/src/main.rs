//! The laboratory: experiments by name, measured in ratio, with the machine's noise beside each figure.
//!
//! Started by `phalanx lab`. Data goes to stdout, messages and progress to stderr. Exit codes: 0 good, 1 an error or a
//! check that does not hold, 64 usage.

mod cast;
mod child;
mod cores;
mod daemons;
mod death;
mod directory;
mod error;
mod experiment;
mod launch;
mod link;
mod manager;
mod noise;
mod parallel;
mod peers;
mod plot;
mod report;
mod segment;
mod sim_speed;
mod soak;
mod stats;
mod timer;
mod trials;
mod view;
mod zone;

use clap::{Parser, Subcommand, ValueEnum};
use error::Error;
use experiment::{ALL, Options, Run};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// A check does not hold, or something failed.
const EXIT_ERROR: u8 = 1;
/// The command line cannot be understood (`EX_USAGE`).
const EXIT_USAGE: u8 = 64;

/// Experiments: figures of the papers, comparisons with peers, plots.
#[derive(Parser)]
#[command(name = "phalanx lab", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Names the experiments
    Ls,
    /// Runs an experiment
    Run {
        /// Which one: see `ls`
        name: String,
        /// How to print what it found
        #[arg(short, long, value_enum, default_value = "table")]
        output: Output,
        /// Also draws the rows into this SVG file
        #[arg(long, value_name = "FILE.svg")]
        plot: Option<PathBuf>,
        /// A first look: few rounds
        #[arg(long)]
        quick: bool,
        /// Measures until each interval is this narrow, ± percent
        #[arg(long, value_name = "PERCENT", default_value_t = 3.0)]
        width: f64,
        /// Most rounds of trials
        #[arg(long, value_name = "N", default_value_t = 40, value_parser = clap::value_parser!(u16).range(1..))]
        rounds: u16,
        /// Begins no round after so many seconds: 180, or what the experiment needs
        #[arg(long, value_name = "SECONDS")]
        budget: Option<f64>,
        /// Seeds of each simulated case whose bounds must hold
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
        seeds: Option<u64>,
    },
    /// Plays a part of an experiment, for its parent
    #[command(hide = true)]
    Child {
        /// Which part
        role: String,
        /// What the parent has to say
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    /// For people
    Table,
    /// For programs
    Json,
}

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(e) => {
            // Help and version are no errors and go to stdout; a closed pipe there is nobody's fault.
            let _ = e.print();
            return if e.use_stderr() { EXIT_USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    match obey(args.command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => EXIT_ERROR.into(),
        Err(e) => {
            eprintln!("phalanx lab: {e}");
            EXIT_ERROR.into()
        }
    }
}

/// True when everything that had to hold does.
fn obey(command: Command) -> Result<bool, Error> {
    match command {
        Command::Ls => {
            let width = ALL.iter().map(|e| e.name().len()).max().unwrap_or(0);
            let lines = ALL.iter().map(|e| format!("{:width$}  {}\n", e.name(), e.about()));
            print(&lines.collect::<String>())?;
            Ok(true)
        }
        Command::Run { name, output, plot, quick, width, rounds, budget, seeds } => {
            let experiment = experiment::find(&name)?;
            let budget_s = budget.unwrap_or_else(|| experiment.budget_s());
            let options = Options { quick, width: width / 100.0, max_rounds: rounds.into(), budget_s, seeds };
            let report = Run::of(experiment, options)?;
            print(&match output {
                Output::Table => report.table(),
                Output::Json => report.json(),
            })?;
            for note in &report.notes {
                eprintln!("note: {note}");
            }
            if let Some(path) = plot {
                plot::write(&report, &experiment.pictures(), &path)?;
            }
            Ok(report.holds())
        }
        Command::Child { role, args } => {
            child::end_with_parent()?;
            // To the parent, which knows whether it matters: a child often fails because the other one was ended.
            experiment::play(&role, &args).or_else(|e| print(&format!("{e}\n")))?;
            Ok(true)
        }
    }
}

/// Data to stdout. A reader that has seen enough (`| head`) is no error.
fn print(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}
