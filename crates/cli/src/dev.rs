//! `phalanx dev`: a cluster of real daemons on this machine, to play with.
//!
//! Each node is a process with a directory of its own under one that belongs to the user; nothing else of the machine is
//! touched, and `dev down` leaves nothing behind.

use crate::local::Local;
use std::path::PathBuf;
use std::process::ExitCode;

/// Daemons on one machine: beyond, each of them is a process too many.
const NODES_MAX: usize = 512;

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
        #[arg(value_parser = clap::value_parser!(u16).range(1..=NODES_MAX as i64))]
        nodes: u16,
    },
    /// Ends them
    Down,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    let cluster = Local::at(directory());
    match args.command {
        Dev::Up { nodes } => up(&cluster, nodes.into()),
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

fn up(cluster: &Local, nodes: usize) -> Result<ExitCode, String> {
    let dir = cluster.dir().display();
    if cluster.exists() {
        return Err(format!("a cluster is there already in {dir}: end it with `phalanx dev down`"));
    }
    let took = cluster.up(nodes)?;
    println!("{nodes} nodes, all views full after {:.2} s", took.as_secs_f64());
    println!("look at them with `phalanx members`, end them with `phalanx dev down`; logs are in {dir}");
    Ok(ExitCode::SUCCESS)
}
