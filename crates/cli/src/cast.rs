//! `cast`: bytes to all members, to some, or to the tasks of a job; and what others cast.

use crate::ask::{Common, Output, failed, print_json, print_table, told};
use phalanx_client::api::casts::{Reached, Seat};
use phalanx_client::casts::{Piece, To};
use phalanx_daemon::seeds;
use std::io::Write;
use std::process::ExitCode;

/// Casts something to all members, or to some, and says when all who live have it
#[derive(clap::Args)]
#[command(group = clap::ArgGroup::new("instead").args(["listen", "seats", "repair"]).conflicts_with("what"))]
#[command(group = clap::ArgGroup::new("whom").args(["to", "job", "zone"]).conflicts_with("instead"))]
#[command(group = clap::ArgGroup::new("what").args(["file", "text"]))]
pub(crate) struct Args {
    #[command(flatten)]
    common: Common,
    /// What is cast; without it and without --file, what standard input says
    text: Option<String>,
    /// Cast what this file holds; `-` is standard input
    #[arg(long, value_name = "FILE")]
    file: Option<String>,
    /// Only to these members, such as node[001-128],login1
    #[arg(long, value_name = "HOSTLIST")]
    to: Option<String>,
    /// Only to the tasks of this job
    #[arg(long, value_name = "JOB")]
    job: Option<String>,
    /// Only to the members of this zone
    #[arg(long, value_name = "ZONE")]
    zone: Option<String>,
    /// What the cast is called
    #[arg(long, default_value = "", conflicts_with = "job")]
    name: String,
    /// Write what is cast to this node to standard output, until you end it
    #[arg(long)]
    listen: bool,
    /// With --listen: end after so many casts
    #[arg(long, value_name = "N", requires = "listen")]
    count: Option<u64>,
    /// Print who sits where in the tree of casts
    #[arg(long)]
    seats: bool,
    /// Fill the holes of the tree now, whatever the policy says
    #[arg(long)]
    repair: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    let client = args.common.client();
    if args.seats {
        return Ok(told(client.seats(), |seats| print_seats(args, &seats)));
    }
    if args.repair {
        return Ok(told(client.repair(), |()| ()));
    }
    if args.listen {
        return Ok(listen(args));
    }
    let to = match (&args.to, &args.job, &args.zone) {
        (Some(list), ..) => To::Members(seeds::expand(list).map_err(|e| e.to_string())?),
        (None, Some(job), _) => To::Job(job.clone()),
        (None, None, Some(zone)) => To::Zone(zone.clone()),
        (None, None, None) => To::All,
    };
    let reached = match (&args.text, args.file.as_deref()) {
        (Some(text), _) => client.cast(&to, &args.name, text.clone().into_bytes()),
        (None, None | Some("-")) => client.cast_stream(&to, &args.name, tokio::io::stdin()),
        (None, Some(file)) => {
            let opened = std::fs::File::open(file).map_err(|e| format!("cannot read {file}: {e}"))?;
            if opened.metadata().is_ok_and(|m| m.is_dir()) {
                return Err(format!("{file} is a directory: pack it first, such as with tar"));
            }
            client.cast_stream(&to, &args.name, tokio::fs::File::from_std(opened))
        }
    };
    let reached = match reached {
        Ok(reached) => reached,
        Err(e) => return Ok(failed(&e)),
    };
    match args.common.output {
        Output::Json => print_json(&reached),
        Output::Table => eprintln!("phalanx: {}", words(&reached)),
    }
    Ok(if reached.missed.is_empty() { ExitCode::SUCCESS } else { crate::EXIT_NOTHING.into() })
}

fn words(reached: &Reached) -> String {
    let Reached { reached, missed, bytes, us } = reached;
    let members = if *reached == 1 { "member has" } else { "members have" };
    let rate = match *bytes {
        0..1_000_000 => String::new(),
        bytes => format!(", {:.0} MB/s", bytes as f64 / *us as f64),
    };
    let gone = if missed.is_empty() { String::new() } else { format!("; gone before: {}", missed.join(", ")) };
    format!("{reached} {members} {bytes} bytes after {:.1} ms{rate}{gone}", *us as f64 / 1e3)
}

fn print_seats(args: &Args, seats: &[Seat]) {
    match args.common.output {
        Output::Json => print_json(&seats),
        Output::Table => {
            let parent = |s: &Seat| s.parent.map_or_else(|| "-".to_owned(), |p| p.to_string());
            print_table(
                ["SEAT", "NAME", "ABOVE"],
                seats.iter().map(|s| [s.seat.to_string(), s.name.clone(), parent(s)]),
            );
        }
    }
}

fn listen(args: &Args) -> ExitCode {
    let client = args.common.client();
    let pieces = match client.casts() {
        Ok(pieces) => pieces,
        Err(e) => return failed(&e),
    };
    let (mut out, mut whole) = (std::io::stdout().lock(), 0);
    for piece in pieces {
        let Piece { heading, data } = match piece {
            Ok(piece) => piece,
            Err(e) => return failed(&e),
        };
        if heading.lost > 0 {
            eprintln!("phalanx: {} pieces were lost: this reader is too slow", heading.lost);
        }
        let written = match args.common.output {
            Output::Json => {
                serde_json::to_writer(&mut out, &heading).map_err(Into::into).and_then(|()| out.write_all(b"\n"))
            }
            Output::Table => Ok(()),
        };
        if written.and_then(|()| out.write_all(&data)).and_then(|()| out.flush()).is_err() {
            // Nobody reads any more: that is no error.
            return ExitCode::SUCCESS;
        }
        whole += u64::from(heading.last);
        if args.count.is_some_and(|count| whole >= count) {
            return ExitCode::SUCCESS;
        }
    }
    ExitCode::SUCCESS
}
