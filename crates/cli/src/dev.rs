//! `phalanx dev`: a cluster of real daemons on this machine, to play with.
//!
//! Each node is a process with a directory of its own under one that belongs to the user; nothing else of the machine is
//! touched, and `dev down` leaves nothing behind.

use crate::local::Local;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use phalanx_daemon::fleet::Fleet;
use phalanx_protocol::zone::Config;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Daemons on one machine: beyond, each of them is a process too many.
const NODES_MAX: usize = 512;
/// Nodes in one process.
const FLEET_MAX: i64 = 8192;
/// Descriptors for each node in one process: its socket, and both ends of about four tripwires; and for the process itself.
const DESCRIPTORS: usize = 9;
const DESCRIPTORS_BESIDES: usize = 128;
/// How long a fleet may take for anything.
const PATIENCE: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(2);

/// A cluster of real daemons on this machine
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Dev,
}

#[derive(clap::Subcommand)]
enum Dev {
    /// Starts N daemons that know each other
    Up {
        /// How many
        #[arg(value_parser = clap::value_parser!(u16).range(1..=FLEET_MAX))]
        nodes: u16,
        /// In so many zones, beneath two supervisors
        #[arg(long, default_value = "1", value_name = "K", conflicts_with = "in_process", value_parser = clap::value_parser!(u16).range(1..))]
        zones: u16,
        /// All in this process, each with its own sockets; it runs until it is interrupted
        #[arg(long)]
        in_process: bool,
        /// With --in-process: kill so many at once, say what the others saw, and end
        #[arg(long, requires = "in_process", value_name = "K")]
        kill: Option<u16>,
    },
    /// Ends them
    Down,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    let cluster = Local::at(directory());
    match args.command {
        Dev::Up { nodes, in_process: true, kill, .. } => fleet(nodes.into(), kill.map(usize::from)),
        Dev::Up { nodes, .. } if usize::from(nodes) > NODES_MAX => {
            Err(format!("{nodes} processes are too many for one machine: at most {NODES_MAX}, or use --in-process"))
        }
        Dev::Up { nodes, zones, .. } if zones > nodes => Err(format!("{nodes} nodes cannot fill {zones} zones")),
        Dev::Up { nodes, zones, .. } => up(&cluster, nodes.into(), zones.into()),
        Dev::Down => {
            println!("{} nodes ended", cluster.down()?);
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Where the user's cluster lives.
fn directory() -> PathBuf {
    match std::env::var_os("PHALANX_DEV_DIR") {
        Some(dir) => dir.into(),
        None => std::env::temp_dir().join(format!("phalanx-dev-{}", nix::unistd::getuid())),
    }
}

/// The control socket of the first node, when there is a cluster.
pub(crate) fn first_socket() -> Option<PathBuf> {
    Some(Local::at(directory()).node(1).socket()).filter(|s| s.exists())
}

fn up(cluster: &Local, nodes: usize, zones: usize) -> Result<ExitCode, String> {
    let dir = cluster.dir().display();
    if cluster.exists() {
        return Err(format!("a cluster is there already in {dir}: end it with `phalanx dev down`"));
    }
    let took = cluster.up(nodes, zones)?;
    // The first thing that somebody types may be `run`.
    if let Err(why) = cluster.wait_until_managed(nodes) {
        eprintln!("phalanx: no jobs can be run yet: {why}");
    }
    println!("{nodes} nodes, all views full after {:.2} s", took.as_secs_f64());
    println!("look at them with `phalanx members`, end them with `phalanx dev down`; logs are in {dir}");
    Ok(ExitCode::SUCCESS)
}

/// A whole cluster in this process.
fn fleet(nodes: usize, kill: Option<usize>) -> Result<ExitCode, String> {
    if kill.is_some_and(|k| k == 0 || k >= nodes) {
        return Err(format!("--kill: of {nodes} nodes 1 to {} can be killed", nodes.saturating_sub(1)));
    }
    allow_descriptors(nodes)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let began = Instant::now();
    let fleet = Fleet::start(nodes, threads, &Config::lan()).map_err(|e| format!("cannot start {nodes} nodes: {e}"))?;
    let opened = began.elapsed();
    wait(&fleet, nodes)?;
    println!(
        "{nodes} nodes in one process: sockets open after {:.2} s, all views full after {:.2} s",
        opened.as_secs_f64(),
        began.elapsed().as_secs_f64()
    );
    let Some(kill) = kill else {
        println!("end them with Ctrl-C");
        loop {
            std::thread::park();
        }
    };
    let victims: Vec<usize> = (0..kill).map(|i| i * nodes / kill).collect();
    let killed_at = fleet.now();
    fleet.kill(&victims);
    wait(&fleet, nodes - kill)?;
    let took = fleet.changed_at().since(killed_at);
    // Whoever was taken for dead before anybody was killed counts as well.
    let (failures, mistakes) = (fleet.failures(), fleet.mistakes());
    println!(
        "{kill} killed at once: the last of {} others knew all of it after {:.1} ms",
        nodes - kill,
        took.as_secs_f64() * 1e3
    );
    println!("{failures} verdicts, {mistakes} of them about nodes that live");
    Ok(if mistakes == 0 { ExitCode::SUCCESS } else { crate::EXIT_ERROR.into() })
}

fn wait(fleet: &Fleet, alive: usize) -> Result<(), String> {
    let began = Instant::now();
    while fleet.that_see(alive) != (alive, alive) {
        if began.elapsed() > PATIENCE {
            let (right, all) = fleet.that_see(alive);
            return Err(format!("only {right} of {all} nodes see {alive} members after {} s", PATIENCE.as_secs()));
        }
        std::thread::sleep(LOOK);
    }
    Ok(())
}

/// Raises the limit of open files as far as it may be raised, which must be far enough.
fn allow_descriptors(nodes: usize) -> Result<(), String> {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).map_err(|e| e.to_string())?;
    let needed = descriptors(nodes);
    // Beyond the hard limit only who may do anything can go.
    if soft < hard.max(needed) && setrlimit(Resource::RLIMIT_NOFILE, hard.max(needed), hard.max(needed)).is_err() {
        setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_err(|e| e.to_string())?;
    }
    if needed <= hard { Ok(()) } else { fits(nodes, getrlimit(Resource::RLIMIT_NOFILE).map_err(|e| e.to_string())?.0) }
}

const fn descriptors(nodes: usize) -> u64 {
    (nodes * DESCRIPTORS + DESCRIPTORS_BESIDES) as u64
}

/// Refuses what would run out of open files halfway.
fn fits(nodes: usize, available: u64) -> Result<(), String> {
    let (needed, most) =
        (descriptors(nodes), available.saturating_sub(DESCRIPTORS_BESIDES as u64) / DESCRIPTORS as u64);
    if needed <= available {
        return Ok(());
    }
    Err(format!(
        "{nodes} nodes need {needed} open files, and {available} are available: start at most {most} nodes, or raise the \
         hard limit (`ulimit -Hn`, LimitNOFILE= in systemd)"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fleet_that_does_not_fit_is_refused_with_what_would() {
        assert_eq!(fits(2048, 20_000), Ok(()));
        let told = fits(4096, 20_000).unwrap_err();
        assert!(told.contains("need 36992") && told.contains("20000 are available"), "{told}");
        assert!(told.contains("at most 2208 nodes"), "{told}");
        assert_eq!(fits(2208, 20_000), Ok(()));
    }
}
