//! `cargo run --release -p phalanx-models -- view --nodes 3 --crashes 2 --joins 1`

use clap::{Parser, Subcommand};
use phalanx_models::cast::{self, Cast};
use phalanx_models::explore::{Report, check};
use phalanx_models::view::{self, View};
use phalanx_protocol::cast::route::Rule;
use std::fmt;
use std::process::ExitCode;
use std::time::Duration;

#[derive(Parser)]
#[command(about = "Explores every order of letters, crashes, verdicts and joins")]
struct Args {
    /// Stop after so many states
    #[arg(long, global = true)]
    states: Option<usize>,
    /// Stop after so many seconds
    #[arg(long, global = true)]
    seconds: Option<u64>,
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
    },
    /// Broadcasts that reach everybody once
    Cast {
        /// Nodes of the tree
        #[arg(long, default_value_t = 7)]
        nodes: u8,
        /// Children of a node
        #[arg(long, default_value_t = 2)]
        fan_out: u32,
        /// How many may crash
        #[arg(long, default_value_t = 1)]
        crashes: u8,
        /// Who casts
        #[arg(long, default_value_t = 0)]
        source: u8,
        /// How often
        #[arg(long, default_value_t = 1)]
        casts: u8,
        /// How ways around the dead are chosen: basic, variant, aware, detour
        #[arg(long, default_value = "detour", value_parser = rule)]
        rule: Rule,
        /// Who has a cast says so
        #[arg(long)]
        receipts: bool,
    },
}

fn rule(name: &str) -> Result<Rule, String> {
    let found = Rule::ALL.into_iter().find(|r| r.to_string() == name);
    found.ok_or_else(|| "choose basic, variant, aware or detour".to_owned())
}

fn main() -> ExitCode {
    let Args { states, seconds, machine } = Args::parse();
    let time = seconds.map(Duration::from_secs);
    let wrong = |why: &dyn fmt::Display| {
        eprintln!("{why}");
        ExitCode::from(64)
    };
    match machine {
        Machine::View { nodes, crashes, joins, silences, arity } => {
            match View::new(view::Bounds { nodes, crashes, joins, silences, arity }) {
                Ok(model) => told(&check(model, states, time)),
                Err(why) => wrong(&why),
            }
        }
        Machine::Cast { nodes, source, .. } if source >= nodes => {
            wrong(&format_args!("there is no node {source} among {nodes} to cast"))
        }
        Machine::Cast { nodes, fan_out, crashes, source, casts, rule, receipts } => {
            match Cast::new(cast::Bounds { nodes, fan_out, crashes, source, casts, rule, receipts }) {
                Ok(model) => told(&check(model, states, time)),
                Err(why) => wrong(&why),
            }
        }
    }
}

fn told<A: fmt::Debug>(report: &Report<A>) -> ExitCode {
    println!("{report}");
    if report.violations.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
