//! `job`, `managers`, `drain`: what the manager knows of jobs, nodes and itself, and what it is told to change.

use crate::ask::{Common, Output, print_json, print_table, told};
use phalanx_client::Error;
use phalanx_client::api::manage::{LogLine, Managers, NodeSlots, RankInfo, Run};
use phalanx_client::api::run::RankEnd;
use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Jobs that were started with `run`: those that wait, run, or ended lately
#[derive(clap::Args)]
pub(crate) struct JobArgs {
    #[command(subcommand)]
    command: JobCommand,
}

#[derive(clap::Subcommand)]
enum JobCommand {
    /// Lists them
    Ls {
        #[command(flatten)]
        common: Common,
    },
    /// One of them, and its ranks
    Show {
        /// Its name or number
        job: String,
        #[command(flatten)]
        common: Common,
    },
    /// What happened to it, and why
    Log {
        /// Its name or number
        job: String,
        #[command(flatten)]
        common: Common,
    },
    /// Ends it: its ranks are killed
    Kill {
        /// Its name or number
        job: String,
        /// Send this signal to its ranks instead: a number, TERM, INT, USR1 …
        #[arg(short, long, value_name = "SIGNAL", value_parser = signal)]
        signal: Option<i32>,
        #[command(flatten)]
        common: Common,
    },
}

/// The manager's replicas: who they are, and whether they decide
#[derive(clap::Args)]
pub(crate) struct ManagersArgs {
    #[command(subcommand)]
    command: Option<ManagersCommand>,
    #[command(flatten)]
    common: Common,
}

#[derive(clap::Subcommand)]
enum ManagersCommand {
    /// Moves a replica from one node to another
    Move {
        /// The node that has it
        from: String,
        /// The node that gets it
        to: String,
    },
}

/// No new ranks on a node, for its maintenance; without a node, slots of all nodes
#[derive(clap::Args)]
pub(crate) struct DrainArgs {
    /// The node
    node: Option<String>,
    /// It gets ranks again
    #[arg(long, requires = "node")]
    undo: bool,
    #[command(flatten)]
    common: Common,
}

/// The number of a signal, by its name with or without SIG.
fn signal(text: &str) -> Result<i32, String> {
    if let Ok(number) = text.parse::<i32>() {
        return if (1..=64).contains(&number) { Ok(number) } else { Err("signals have numbers from 1 to 64".into()) };
    }
    let name = text.to_ascii_uppercase();
    let name = if name.starts_with("SIG") { name } else { format!("SIG{name}") };
    let signal: nix::sys::signal::Signal =
        name.parse().map_err(|_| format!("there is no signal {text}: try a number, TERM, INT, KILL, USR1"))?;
    Ok(signal as i32)
}

pub(crate) fn job(args: &JobArgs) -> ExitCode {
    match &args.command {
        JobCommand::Ls { common } => told(common.client().runs(), |runs| match common.output {
            Output::Json => print_json(&runs),
            Output::Table => print_table(
                ["JOB", "NAME", "STATE", "RANKS", "ATTEMPT", "NODES", "STATUS", "WHY"],
                runs.iter().map(|run| {
                    [
                        run.number.to_string(),
                        run.name.clone(),
                        run.state.name().to_owned(),
                        run.ranks.to_string(),
                        run.attempt.to_string(),
                        run.nodes.join(","),
                        run.status.map_or_else(|| "-".to_owned(), |s| s.to_string()),
                        run.why.clone(),
                    ]
                }),
            ),
        }),
        JobCommand::Show { job, common } => shown(common.client().run_detail(job), |detail| match common.output {
            Output::Json => print_json(&detail),
            Output::Table => {
                // Nobody reads any more: that is no error.
                let _ = writeln!(std::io::stdout().lock(), "{}", title(&detail.run));
                print_table(["RANK", "NODE", "LIFE", "END"], detail.all_ranks.iter().map(rank));
            }
        }),
        JobCommand::Log { job, common } => shown(common.client().run_detail(job), |detail| match common.output {
            Output::Json => print_json(&detail.log),
            Output::Table => {
                let mut out = std::io::stdout().lock();
                for LogLine { at_ms, text } in &detail.log {
                    let _ = writeln!(out, "{}  {text}", clock(*at_ms));
                }
            }
        }),
        JobCommand::Kill { job, signal, common } => {
            let client = common.client();
            let done = match signal {
                None => client.end_run(job),
                Some(signal) => client.signal_run(job, *signal),
            };
            shown(done, |()| {})
        }
    }
}

/// What is not there is no error of the command.
fn shown<T>(result: Result<T, Error>, tell: impl FnOnce(T)) -> ExitCode {
    match result {
        Err(Error::Refused { status: 404, error }) => {
            eprintln!("phalanx: {error}");
            crate::EXIT_NOTHING.into()
        }
        result => told(result, tell),
    }
}

fn title(run: &Run) -> String {
    let Run { number, name, state, ranks, attempt, on_failure, .. } = run;
    let status = run.status.map_or_else(String::new, |s| format!(", status {s}"));
    let why = if run.why.is_empty() { String::new() } else { format!(": {}", run.why) };
    format!(
        "{name} (job {number}): {}, {ranks} ranks, attempt {attempt}, {} on failure{status}{why}",
        state.name(),
        on_failure.name()
    )
}

fn rank(info: &RankInfo) -> [String; 4] {
    let end = match info.end {
        None => "runs".to_owned(),
        Some(RankEnd::Exited(status)) => format!("exited {status}"),
        Some(RankEnd::Killed(signal)) => format!("killed by signal {signal}"),
        Some(RankEnd::Missing(errno)) => format!("not started (error {errno})"),
        Some(RankEnd::Lost) => "lost with its node".to_owned(),
    };
    [info.rank.to_string(), info.node.clone(), info.life.to_string(), end]
}

/// The time of day in UTC, to the millisecond; a log of some other day says how many days ago that was.
fn clock(at_ms: u64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_millis() as u64;
    let day = |ms: u64| ms / 86_400_000;
    let of_day = at_ms % 86_400_000;
    let (h, m, s, ms) = (of_day / 3_600_000, of_day / 60_000 % 60, of_day / 1000 % 60, of_day % 1000);
    match day(now).saturating_sub(day(at_ms)) {
        0 => format!("{h:02}:{m:02}:{s:02}.{ms:03}Z"),
        days => format!("{h:02}:{m:02}:{s:02}.{ms:03}Z -{days}d"),
    }
}

pub(crate) fn managers(args: &ManagersArgs) -> ExitCode {
    let client = args.common.client();
    if let Some(ManagersCommand::Move { from, to }) = &args.command {
        return told(client.move_replica(from, to), |()| {});
    }
    told(client.managers(), |managers: Managers| match args.common.output {
        Output::Json => print_json(&managers),
        Output::Table => {
            let decides = if managers.decides { "decides" } else { "does not decide" };
            let note = if managers.note.is_empty() { String::new() } else { format!("; {}", managers.note) };
            let _ = writeln!(std::io::stdout().lock(), "epoch {}, the group {decides}{note}", managers.epoch);
            let yes = |is: bool, word: &str| if is { word.to_owned() } else { "-".to_owned() };
            print_table(
                ["NODE", "ADDR", "ZONE", "HEARD", "LEADS"],
                managers.replicas.iter().map(|r| {
                    [r.node.clone(), r.addr.clone(), r.zone.clone(), yes(r.alive, "yes"), yes(r.leads, "leads")]
                }),
            );
        }
    })
}

pub(crate) fn drain(args: &DrainArgs) -> ExitCode {
    let client = args.common.client();
    match &args.node {
        Some(node) => shown(client.drain(node, !args.undo), |()| {}),
        None => told(client.slots(), |slots: Vec<NodeSlots>| match args.common.output {
            Output::Json => print_json(&slots),
            Output::Table => print_table(
                ["NODE", "SLOTS", "USED", "STATE"],
                slots.iter().map(|n| {
                    let state = match (n.alive, n.drained) {
                        (false, _) => "gone",
                        (true, true) => "drained",
                        (true, false) => "open",
                    };
                    [n.node.clone(), n.slots.to_string(), n.used.to_string(), state.to_owned()]
                }),
            ),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        assert_eq!(signal("TERM"), Ok(15));
        assert_eq!(signal("sigusr1"), Ok(10));
        assert_eq!(signal("9"), Ok(9));
        assert!(signal("0").is_err() && signal("65").is_err());
        assert!(signal("NOPE").unwrap_err().contains("NOPE"));
    }

    #[test]
    fn a_time_of_another_day_says_so() {
        assert_eq!(clock(1_000).split(' ').next(), Some("00:00:01.000Z"));
        assert!(clock(1_000).ends_with('d'));
    }
}
