//! `members`, `status`, `events`, `leave`: what people ask a daemon.

use phalanx_client::api::{Event, Member, Part, Phase, Status, What};
use phalanx_client::blocking::Client;
use phalanx_client::{Error, SOCKET_VARIABLE};
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Between two looks at a daemon that is waited for.
const LOOK: Duration = Duration::from_millis(20);
/// Nobody answers (`EX_UNAVAILABLE`).
const EXIT_UNREACHABLE: u8 = 69;

/// Which daemon.
#[derive(clap::Args)]
pub(crate) struct Socket {
    /// The daemon's control socket; that of the local `dev` cluster's first node when neither this nor the default is there
    #[arg(long, env = SOCKET_VARIABLE, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// Which daemon, and how to print what it says.
#[derive(clap::Args)]
pub(crate) struct Common {
    #[command(flatten)]
    socket: Socket,
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
    /// Only those in this state
    #[arg(long, value_parser = ["alive", "failed", "left", "moved"])]
    state: Option<String>,
    /// Only these
    names: Vec<String>,
}

/// How the node is
#[derive(clap::Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    common: Common,
    /// Wait for a state: `member`, or `members=N` for a view of N members
    #[arg(long, value_name = "STATE")]
    wait: Option<String>,
    /// How long to wait, in seconds
    #[arg(long, default_value = "30", value_name = "SECONDS", requires = "wait")]
    timeout: f64,
}

/// What happened; with -f also what happens, as it happens
#[derive(clap::Args)]
pub(crate) struct Events {
    #[command(flatten)]
    common: Common,
    /// Go on with what happens from now on
    #[arg(short, long)]
    follow: bool,
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

impl Socket {
    pub(crate) fn path(&self) -> PathBuf {
        self.socket.clone().unwrap_or_else(|| {
            let usual = PathBuf::from(phalanx_client::DEFAULT_SOCKET);
            if usual.exists() { usual } else { crate::dev::first_socket().unwrap_or(usual) }
        })
    }
}

impl Common {
    pub(crate) fn client(&self) -> Client {
        Client::new(self.socket.path())
    }
}

/// An error of a client, with its exit code and advice.
pub(crate) fn failed(error: &Error) -> ExitCode {
    match error {
        Error::Unreachable { why, .. } if why.kind() == std::io::ErrorKind::PermissionDenied => {
            eprintln!("phalanx: {error}");
            eprintln!(
                "phalanx: users other than the daemon's reach it when `socket_group` of its configuration names a group of theirs"
            );
            EXIT_UNREACHABLE.into()
        }
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
    write_json(value);
}

/// JSON on one line. False when nobody reads any more, which is no error.
pub(crate) fn write_json(value: &impl serde::Serialize) -> bool {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, value).is_ok() && writeln!(out).is_ok()
}

pub(crate) fn members(args: &Members) -> ExitCode {
    let mut members = match args.common.client().members() {
        Ok(members) => members,
        Err(e) => return failed(&e),
    };
    members.retain(|m| args.state.as_ref().is_none_or(|s| s == m.state.name()));
    members.retain(|m| args.names.is_empty() || args.names.contains(&m.name));
    match args.common.output {
        Output::Json => print_json(&members),
        Output::Table => print_members(&members),
    }
    if members.is_empty() { crate::EXIT_NOTHING.into() } else { ExitCode::SUCCESS }
}

fn print_members(members: &[Member]) {
    let rows = members.iter().map(|m| {
        let name = if m.me { format!("{} *", m.name) } else { m.name.clone() };
        let zone = m.zone.clone().unwrap_or_else(|| "-".to_owned());
        [name, m.addr.to_string(), m.state.name().to_owned(), zone, format!("{}.{}", m.incarnation, m.minor)]
    });
    if members.iter().all(|m| m.part.is_none()) {
        return print_table(["NAME", "ADDRESS", "STATE", "ZONE", "INCARNATION"], rows);
    }
    let rows = rows.zip(members).map(|([name, addr, state, zone, incarnation], m)| {
        [name, addr, state, zone, incarnation, part(m.part, m.teller.as_deref())]
    });
    print_table(["NAME", "ADDRESS", "STATE", "ZONE", "INCARNATION", "PART"], rows);
}

/// The part of the directory that a member is in, and on whose word.
pub(crate) fn part(part: Option<Part>, teller: Option<&str>) -> String {
    match (part, teller) {
        (None, _) => "-".to_owned(),
        (Some(part), None) => part.name().to_owned(),
        (Some(part), Some(teller)) => format!("{}, by {teller}", part.name()),
    }
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
    let client = args.common.client();
    let status = match &args.wait {
        None => client.status().map_err(|e| failed(&e)),
        Some(state) => wait(&client, state, args.timeout),
    };
    match (status, args.common.output) {
        (Ok(status), Output::Json) => print_json(&status),
        (Ok(status), Output::Table) => print_status(&status),
        (Err(code), _) => return code,
    }
    ExitCode::SUCCESS
}

/// Waits until the node is as somebody wants it to be, and for a daemon that is not there yet.
fn wait(client: &Client, state: &str, seconds: f64) -> Result<Status, ExitCode> {
    let members = state.strip_prefix("members=").map(str::parse::<usize>);
    let holds = |status: &Status| match &members {
        Some(Ok(n)) => status.alive == *n,
        _ => status.phase == Phase::Member,
    };
    if (state != "member" && !matches!(members, Some(Ok(_)))) || !(0.0..1e6).contains(&seconds) {
        eprintln!("phalanx: --wait takes `member` or `members=N`, and --timeout a number of seconds");
        return Err(crate::EXIT_USAGE.into());
    }
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    loop {
        let last = client.status();
        match last {
            Ok(status) if holds(&status) => return Ok(status),
            _ if Instant::now() < until => std::thread::sleep(LOOK),
            Ok(status) => {
                let phase = format!("{:?}", status.phase).to_lowercase();
                eprintln!("phalanx: not {state} after {seconds} s: {phase}, {} members", status.alive);
                return Err(crate::EXIT_TIMEOUT.into());
            }
            Err(e) => {
                eprintln!("phalanx: {e}");
                return Err(crate::EXIT_TIMEOUT.into());
            }
        }
    }
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
    // False when nobody reads any more.
    let print = |event: &Event| match args.common.output {
        Output::Json => write_json(event),
        Output::Table => print_event(event),
    };
    let recent = match client.recent(args.after) {
        Ok(recent) => recent,
        Err(e) => return failed(&e),
    };
    if !recent.iter().all(print) || !args.follow {
        return ExitCode::SUCCESS;
    }
    let last = recent.last().map(|e| e.id).or(args.after);
    for event in client.events(last) {
        match event {
            Ok(event) if print(&event) => {}
            Ok(_) => break,
            Err(e) => return failed(&e),
        }
    }
    ExitCode::SUCCESS
}

fn print_event(event: &Event) -> bool {
    let (seconds, millis) = (event.at_ms / 1000, event.at_ms % 1000);
    let what = match &event.what {
        What::Joined { member } => {
            format!("joined     {} {} {}.{}", member.name, member.addr, member.incarnation, member.minor)
        }
        What::Left { member } => format!("{:10} {} {}", member.state.name(), member.name, member.addr),
        What::Attribute { name, service: Some(offer), .. } => {
            let port = offer.port.map(|port| format!(":{port}")).unwrap_or_default();
            format!("service    {name} offers {}{port}", offer.name)
        }
        What::Attribute { name, key, value: Some(value), .. } => format!("attribute  {name} {key} = {value}"),
        What::Attribute { name, key, value: None, .. } => format!("attribute  {name} {key} removed"),
        What::Name { holder, loser: Some(loser) } => format!("name       taken: {holder} keeps it, {loser} does not"),
        What::Name { holder, loser: None } => format!("name       {holder} alone has it"),
        What::User { from, name, payload } => format!("event      {name} from {from}: {payload}"),
        What::Query { query, from, name, payload } => format!("query      {name} from {from}: {payload} ({query})"),
        What::Keys { epoch } => format!("keys       changed, epoch {epoch}"),
        What::Gap => "gap        events were missed: read the members anew".to_owned(),
        other => format!("{other:?}"),
    };
    let mut out = std::io::stdout().lock();
    writeln!(out, "{seconds}.{millis:03} {:>6}  {what}", event.id).is_ok()
}

pub(crate) fn leave(args: &Leave) -> ExitCode {
    told(args.common.client().leave(), |()| eprintln!("phalanx: the node leaves the cluster"))
}
