//! `cargo run --release -p phalanx-models -- view --nodes 3 --crashes 2 --joins 1`

use clap::{Parser, Subcommand};
use phalanx_models::view::{Bounds, View, check};
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Explores every order of letters, crashes, verdicts and joins")]
struct Args {
    #[command(subcommand)]
    machine: Machine,
}

#[derive(Subcommand)]
enum Machine {
    /// One view for each job
    View {
        /// Tasks of the job
        #[arg(long, default_value_t = 3)]
        nodes: u8,
        /// How many may crash
        #[arg(long, default_value_t = 2)]
        crashes: u8,
        /// How many may join: who crashed first, then others
        #[arg(long, default_value_t = 0)]
        joins: u8,
        /// How often somebody may lose its patience while letters are under way
        #[arg(long, default_value_t = 0)]
        silences: u8,
        /// Children of a task
        #[arg(long, default_value_t = 2)]
        arity: u32,
        /// Stop after so many states
        #[arg(long)]
        states: Option<usize>,
        /// Stop after so many seconds
        #[arg(long)]
        seconds: Option<u64>,
    },
}

fn main() -> ExitCode {
    let Machine::View { nodes, crashes, joins, silences, arity, states, seconds } = Args::parse().machine;
    let model = match View::new(Bounds { nodes, crashes, joins, silences, arity }) {
        Ok(model) => model,
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::from(64);
        }
    };
    let report = check(model, states, seconds.map(std::time::Duration::from_secs));
    println!("{report}");
    if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
