//! `event`, `query`, `rtt`, `force-leave`: what concerns all members.

use crate::ask::{Common, Output, failed, print_json, print_table, told, write_json};
use phalanx_client::api::operate::RoundTrip;
use phalanx_client::api::rumours::Question;
use std::io::Write;
use std::process::ExitCode;

/// Pings of one command.
const PINGS_MAX: i64 = 1000;

/// Tells all members of the zone something
#[derive(clap::Args)]
pub(crate) struct EventArgs {
    #[command(flatten)]
    common: Common,
    /// What it is called
    name: String,
    /// What is said; `-` reads it from standard input
    #[arg(default_value = "")]
    payload: String,
}

/// Asks all members of the zone something, and prints their answers
#[derive(clap::Args)]
pub(crate) struct QueryArgs {
    #[command(flatten)]
    common: Common,
    /// What it is called
    name: String,
    /// What is asked; `-` reads it from standard input
    #[arg(default_value = "")]
    payload: String,
    /// Only these members shall answer; as often as you like
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// How long answers are waited for, in milliseconds
    #[arg(long, default_value_t = phalanx_client::api::rumours::TIMEOUT_MS, value_name = "MS")]
    timeout: u64,
}

/// How far away members are
#[derive(clap::Args)]
pub(crate) struct RttArgs {
    #[command(flatten)]
    common: Common,
    /// Measured now; without, what the traffic with neighbours shows
    name: Option<String>,
    /// How often it is measured
    #[arg(short, long, default_value = "3", value_parser = clap::value_parser!(u32).range(1..=PINGS_MAX), requires = "name")]
    count: u32,
}

/// Forgets a member that is gone, at all members
#[derive(clap::Args)]
pub(crate) struct ForceLeave {
    #[command(flatten)]
    common: Common,
    /// Which
    name: String,
}

/// What is said, or what standard input says.
fn payload(text: &str) -> Result<String, ExitCode> {
    if text != "-" {
        return Ok(text.to_owned());
    }
    std::io::read_to_string(std::io::stdin()).map_err(|e| {
        eprintln!("phalanx: cannot read standard input: {e}");
        crate::EXIT_ERROR.into()
    })
}

pub(crate) fn event(args: &EventArgs) -> ExitCode {
    match payload(&args.payload) {
        Ok(payload) => told(args.common.client().tell(&args.name, &payload), |()| ()),
        Err(code) => code,
    }
}

pub(crate) fn query(args: &QueryArgs) -> ExitCode {
    let payload = match payload(&args.payload) {
        Ok(payload) => payload,
        Err(code) => return code,
    };
    let question = Question { name: args.name.clone(), payload, only: args.only.clone(), timeout_ms: args.timeout };
    let client = args.common.client();
    let answers = match client.ask(&question) {
        Ok(answers) => answers,
        Err(e) => return failed(&e),
    };
    let (mut heard, mut answered) = (0, 0);
    for answer in answers {
        let answer = match answer {
            Ok(answer) => answer,
            Err(e) => return failed(&e),
        };
        let read = match (&answer.payload, args.common.output) {
            (_, Output::Json) => write_json(&answer),
            (Some(text), Output::Table) => {
                writeln!(std::io::stdout().lock(), "{}: {}", answer.from, text.trim_end()).is_ok()
            }
            (None, Output::Table) => true,
        };
        if !read {
            // Nobody reads any more: that is no error.
            return ExitCode::SUCCESS;
        }
        *(if answer.payload.is_some() { &mut answered } else { &mut heard }) += 1;
    }
    if args.common.output == Output::Table {
        eprintln!("phalanx: {heard} members heard it, {answered} answered");
    }
    if answered == 0 { crate::EXIT_NOTHING.into() } else { ExitCode::SUCCESS }
}

pub(crate) fn rtt(args: &RttArgs) -> ExitCode {
    let client = args.common.client();
    let Some(name) = &args.name else {
        return told(client.round_trips(), |trips| print(args, &trips));
    };
    let trips: Result<Vec<RoundTrip>, _> = (0..args.count).map(|_| client.round_trip(name)).collect();
    match trips {
        Err(e) => failed(&e),
        Ok(trips) => {
            print(args, &trips);
            if trips.iter().all(|t| t.ms.is_none()) { crate::EXIT_NOTHING.into() } else { ExitCode::SUCCESS }
        }
    }
}

fn print(args: &RttArgs, trips: &[RoundTrip]) {
    match args.common.output {
        Output::Json => print_json(&trips),
        Output::Table => {
            let ms = |t: &RoundTrip| t.ms.map_or_else(|| "no answer".to_owned(), |ms| format!("{ms:.3}"));
            print_table(["NAME", "MS"], trips.iter().map(|t| [t.name.clone(), ms(t)]));
        }
    }
}

pub(crate) fn force_leave(args: &ForceLeave) -> ExitCode {
    told(args.common.client().force_leave(&args.name), |()| eprintln!("phalanx: {} is forgotten", args.name))
}
