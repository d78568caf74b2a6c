//! The `phalanx` command: one file for each subcommand.
//!
//! Data goes to stdout, messages to stderr. Exit codes: 0 good, 1 an error or a check that does not hold, 2 nothing
//! found, 64 usage, 69 no daemon answers.

mod agent;
mod ask;
mod demo;
mod dev;
mod directory;
mod lab;
mod local;
mod sim;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Something failed, or a check does not hold.
const EXIT_ERROR: u8 = 1;
/// The command line cannot be understood (`EX_USAGE`; clap's own 2 means "condition false" here).
const EXIT_USAGE: u8 = 64;

/// A fault-tolerant cluster runtime: when a node falls, the ranks close.
#[derive(Parser)]
#[command(name = "phalanx", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Agent(agent::Args),
    Config(agent::ConfigArgs),
    Members(ask::Members),
    Status(ask::StatusArgs),
    Attr(directory::Attr),
    Service(directory::ServiceArgs),
    Events(ask::Events),
    Leave(ask::Leave),
    Dev(dev::Args),
    Demo(demo::Args),
    /// Experiments: figures of the papers, comparisons with peers, plots
    Lab(lab::Args),
    /// The simulator: runs a scenario, or a swarm of drawn ones, and says whether everything held
    Sim(sim::Args),
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
    let done = match args.command {
        Command::Agent(args) => agent::run(&args),
        Command::Config(args) => agent::config(&args),
        Command::Members(args) => Ok(ask::members(&args)),
        Command::Status(args) => Ok(ask::status(&args)),
        Command::Attr(args) => Ok(directory::attr(&args)),
        Command::Service(args) => Ok(directory::service(&args)),
        Command::Events(args) => Ok(ask::events(&args)),
        Command::Leave(args) => Ok(ask::leave(&args)),
        Command::Demo(args) => demo::run(&args),
        Command::Dev(args) => dev::run(&args),
        Command::Lab(args) => lab::run(&args).map(|never| match never {}).map_err(|e| e.to_string()),
        Command::Sim(args) => sim::run(&args).map_err(|e| e.to_string()),
    };
    done.unwrap_or_else(|error| {
        eprintln!("phalanx: {error}");
        EXIT_ERROR.into()
    })
}
