//! The `phalanx` command: one file for each subcommand.
//!
//! Data goes to stdout, messages to stderr. Exit codes: 0 good, 1 an error or a check that does not hold, 2 nothing
//! found, 64 usage, 69 no daemon answers, 124 out of time.

mod agent;
mod ask;
mod cast;
mod demo;
mod dev;
mod directory;
mod doctor;
mod fault;
mod jobs;
mod keys;
mod lab;
mod local;
mod manage;
mod manual;
mod rumours;
mod run;
mod sim;
mod zones;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// Something failed, or a check does not hold.
const EXIT_ERROR: u8 = 1;
/// Nothing was found, or a condition is false.
const EXIT_NOTHING: u8 = 2;
/// What was waited for did not come.
const EXIT_TIMEOUT: u8 = 124;
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
    Agent(Box<agent::Args>),
    Config(agent::ConfigArgs),
    Members(ask::Members),
    Status(ask::StatusArgs),
    Attr(directory::Attr),
    Service(directory::ServiceArgs),
    Events(ask::Events),
    Event(rumours::EventArgs),
    Query(rumours::QueryArgs),
    Cast(cast::Args),
    Rtt(rumours::RttArgs),
    Zones(zones::ZonesArgs),
    Segments(zones::SegmentsArgs),
    Federation(zones::FederationArgs),
    Census(zones::CensusArgs),
    Tree(zones::TreeArgs),
    Run(Box<run::Args>),
    Job(manage::JobArgs),
    Managers(manage::ManagersArgs),
    Drain(manage::DrainArgs),
    View(jobs::ViewArgs),
    Task(jobs::TaskArgs),
    #[command(hide = true)]
    Shepherd(jobs::ShepherdArgs),
    Leave(ask::Leave),
    ForceLeave(rumours::ForceLeave),
    Keys(keys::Args),
    Fault(fault::Args),
    Doctor(doctor::Args),
    Dev(dev::Args),
    Demo(demo::Args),
    #[command(hide = true)]
    DemoRank(demo::rank::Args),
    /// Experiments: figures of the papers, comparisons with peers, plots
    Lab(lab::Args),
    /// The simulator: runs a scenario, or a swarm of drawn ones, and says whether everything held
    Sim(sim::Args),
    Completions(manual::Completions),
    Man(manual::Man),
}

fn main() -> ExitCode {
    phalanx_daemon::speak_as_called();
    let args = match Args::try_parse_from(run::habits(std::env::args_os())) {
        Ok(args) => args,
        Err(e) => {
            // Help and version are no errors and go to stdout; a closed pipe there is nobody's fault.
            let _ = e.print();
            return if e.use_stderr() { EXIT_USAGE.into() } else { ExitCode::SUCCESS };
        }
    };
    let done = match args.command {
        Command::Agent(args) => agent::run(*args),
        Command::Config(args) => agent::config(&args),
        Command::Members(args) => Ok(ask::members(&args)),
        Command::Status(args) => Ok(ask::status(&args)),
        Command::Attr(args) => Ok(directory::attr(&args)),
        Command::Service(args) => Ok(directory::service(&args)),
        Command::Events(args) => Ok(ask::events(&args)),
        Command::Event(args) => Ok(rumours::event(&args)),
        Command::Cast(args) => cast::run(&args),
        Command::Query(args) => Ok(rumours::query(&args)),
        Command::Rtt(args) => Ok(rumours::rtt(&args)),
        Command::Zones(args) => Ok(zones::zones(&args)),
        Command::Segments(args) => Ok(zones::segments(&args)),
        Command::Federation(args) => Ok(zones::federation(&args)),
        Command::Census(args) => Ok(zones::census(&args)),
        Command::Tree(args) => Ok(zones::tree(&args)),
        Command::Run(args) => run::run(*args),
        Command::Job(args) => Ok(manage::job(&args)),
        Command::Managers(args) => Ok(manage::managers(&args)),
        Command::Drain(args) => Ok(manage::drain(&args)),
        Command::View(args) => Ok(jobs::view(&args)),
        Command::Task(args) => Ok(jobs::task(&args)),
        Command::Shepherd(args) => jobs::shepherd(&args),
        Command::Leave(args) => Ok(ask::leave(&args)),
        Command::ForceLeave(args) => Ok(rumours::force_leave(&args)),
        Command::Keys(args) => keys::run(&args),
        Command::Fault(args) => fault::run(&args),
        Command::Doctor(args) => Ok(doctor::run(&args)),
        Command::Completions(args) => manual::completions(&args, Args::command()),
        Command::Man(args) => manual::man(&args, Args::command()),
        Command::Demo(args) => demo::run(&args),
        Command::DemoRank(args) => demo::rank::run(&args),
        Command::Dev(args) => dev::run(&args),
        Command::Lab(args) => lab::run(&args).map(|never| match never {}).map_err(|e| e.to_string()),
        Command::Sim(args) => sim::run(&args).map_err(|e| e.to_string()),
    };
    done.unwrap_or_else(|error| {
        eprintln!("phalanx: {error}");
        EXIT_ERROR.into()
    })
}
