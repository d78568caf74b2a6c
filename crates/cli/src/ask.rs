//! `members`, `status`, `events`, `leave`: what people ask a daemon.

use phalanx_client::api::{Event, Member, Status, What};
use phalanx_client::blocking::Client;
use phalanx_client::{Error, SOCKET_VARIABLE};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

/// Nobody answers (`EX_UNAVAILABLE`).
const EXIT_UNREACHABLE: u8 = 69;

/// Which daemon, and how to print what it says.
#[derive(clap::Args)]
pub(crate) struct Common {
    /// The daemon's control socket; that of the local `dev` cluster's first node when neither this nor the default is there
    #[arg(long, env = SOCKET_VARIABLE, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// How to print
    #[arg(short, long, default_value = "table")]
    pub(crate) output: Output,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    /// For people
    Table,
    /// For programs
    Json,
}

/// Who is there, and who is gone
#[derive(clap::Args)]
pub(crate) struct Members {
    #[command(flatten)]
    common: Common,
}

/// How the node is
#[derive(clap::Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    common: Common,
}

/// What happens, as it happens
#[derive(clap::Args)]
pub(crate) struct Events {
    #[command(flatten)]
    common: Common,
    /// Go on with what follows this event
    #[arg(long, value_name = "ID")]
    after: Option<u64>,
}

/// Leaves the cluster in an orderly way; the daemon ends
#[derive(clap::Args)]
pub(crate) struct Leave {
    #[command(flatten)]
    common: Common,
}

impl Common {
    pub(crate) fn client(&self) -> Client {
        let socket = self.socket.clone().unwrap_or_else(|| {
            let usual = PathBuf::from(phalanx_client::DEFAULT_SOCKET);
            if usual.exists() { usual } else { crate::dev::first_socket().unwrap_or(usual) }
        });
        Client::new(socket)
    }
}

/// An error of a client, with its exit code and advice.
pub(crate) fn failed(error: &Error) -> ExitCode {
    match error {
        Error::Unreachable { .. } => {
            eprintln!("phalanx: {error}");
            eprintln!("phalanx: start one with `phalanx agent`, or a cluster on this machine with `phalanx dev up 3`");
            EXIT_UNREACHABLE.into()
        }
        error => {
            eprintln!("phalanx: {error}");
            crate::EXIT_ERROR.into()
        }
    }
}

pub(crate) fn told<T>(result: Result<T, Error>, tell: impl FnOnce(T)) -> ExitCode {
    match result {
        Ok(value) => {
            tell(value);
            ExitCode::SUCCESS
        }
        Err(e) => failed(&e),
    }
}

/// JSON on one line, or nothing when nobody reads.
pub(crate) fn print_json(value: &impl serde::Serialize) {
    let mut out = std::io::stdout().lock();
    let _ = serde_json::to_writer(&mut out, value);
    let _ = writeln!(out);
}

pub(crate) fn members(args: &Members) -> ExitCode {
    told(args.common.client().members(), |members| match args.common.output {
        Output::Json => print_json(&members),
        Output::Table => print_members(&members),
    })
}

fn print_members(members: &[Member]) {
    let rows = members.iter().map(|m| {
        let name = if m.me { format!("{} *", m.name) } else { m.name.clone() };
        let zone = m.zone.clone().unwrap_or_else(|| "-".to_owned());
        [name, m.addr.to_string(), m.state.name().to_owned(), zone, format!("{}.{}", m.incarnation, m.minor)]
    });
    print_table(["NAME", "ADDRESS", "STATE", "ZONE", "INCARNATION"], rows);
}

/// Columns as wide as they must be.
pub(crate) fn print_table<const N: usize>(head: [&str; N], rows: impl Iterator<Item = [String; N]>) {
    let rows: Vec<[String; N]> = std::iter::once(head.map(str::to_owned)).chain(rows).collect();
    let width = |column: usize| rows.iter().map(|r| r[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; N] = std::array::from_fn(width);
    let mut out = std::io::stdout().lock();
    for row in &rows {
        let cells = row.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}"));
        let line = cells.collect::<Vec<_>>().join("  ");
        // Nobody reads any more: that is no error.
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

pub(crate) fn status(args: &StatusArgs) -> ExitCode {
    told(args.common.client().status(), |status| match args.common.output {
        Output::Json => print_json(&status),
        Output::Table => print_status(&status),
    })
}

fn print_status(status: &Status) {
    let Status { me, phase, alive, neighbours, uptime_ms, version, pid } = status;
    let mut out = std::io::stdout().lock();
    let phase = format!("{phase:?}").to_lowercase();
    let _ = writeln!(out, "node        {} ({})", me.name, me.addr);
    let _ = writeln!(out, "phase       {phase}");
    let _ = writeln!(out, "members     {alive}");
    let _ = writeln!(out, "neighbours  {neighbours}");
    let _ = writeln!(out, "id          {}", me.id);
    let _ = writeln!(out, "up          {}.{:03} s", uptime_ms / 1000, uptime_ms % 1000);
    let _ = writeln!(out, "daemon      {version}, pid {pid}");
}

pub(crate) fn events(args: &Events) -> ExitCode {
    let client = args.common.client();
    for event in client.events(args.after) {
        match event {
            Ok(event) if args.common.output == Output::Json => print_json(&event),
            Ok(event) => print_event(&event),
            Err(e) => return failed(&e),
        }
    }
    ExitCode::SUCCESS
}

fn print_event(event: &Event) {
    let (seconds, millis) = (event.at_ms / 1000, event.at_ms % 1000);
    let what = match &event.what {
        What::Joined { member } => {
            format!("joined     {} {} {}.{}", member.name, member.addr, member.incarnation, member.minor)
        }
        What::Left { member } => format!("{:10} {} {}", member.state.name(), member.name, member.addr),
        What::Attribute { name, key, value: Some(value) } => format!("attribute  {name} {key} = {value}"),
        What::Attribute { name, key, value: None } => format!("attribute  {name} {key} removed"),
        What::Name { holder, loser: Some(loser) } => format!("name       taken: {holder} keeps it, {loser} does not"),
        What::Name { holder, loser: None } => format!("name       {holder} alone has it"),
        What::Gap => "gap        events were missed: read the members anew".to_owned(),
        other => format!("{other:?}"),
    };
    println!("{seconds}.{millis:03} {:>6}  {what}", event.id);
}

pub(crate) fn leave(args: &Leave) -> ExitCode {
    told(args.common.client().leave(), |()| eprintln!("phalanx: the node leaves the cluster"))
}
