//! `phalanx dev`: a cluster of real daemons on this machine, to play with.
//!
//! Each node is a process with a directory of its own under one that belongs to the user; nothing else of the machine is
//! touched, and `dev down` leaves nothing behind.

use phalanx_client::blocking::Client;
use phalanx_daemon::store::hex;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// How long a daemon may take to answer, and to end.
const PATIENCE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(10);
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
    match args.command {
        Dev::Up { nodes } => up(nodes.into()),
        Dev::Down => down(),
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
    Some(socket(&directory().join("n1"))).filter(|s| s.exists())
}

fn socket(node: &Path) -> PathBuf {
    node.join("phalanx.sock")
}

fn up(nodes: usize) -> Result<ExitCode, String> {
    let dir = directory();
    if dir.exists() {
        return Err(format!("a cluster is there already in {}: end it with `phalanx dev down`", dir.display()));
    }
    fs::create_dir_all(&dir).map_err(|e| format!("cannot create {}: {e}", dir.display()))?;
    let started = start(&dir, nodes);
    if started.is_err() {
        let _ = down();
    }
    let took = started?;
    println!("{nodes} nodes, all views full after {:.2} s", took.as_secs_f64());
    println!("look at them with `phalanx members`, end them with `phalanx dev down`; logs are in {}", dir.display());
    Ok(ExitCode::SUCCESS)
}

/// Starts all daemons; says how long it took from the first start until all see all.
fn start(dir: &Path, nodes: usize) -> Result<Duration, String> {
    let mut key = [0; 32];
    getrandom::fill(&mut key).map_err(|e| format!("the system has no random numbers: {e}"))?;
    let (key, began) = (hex(&key), Instant::now());
    let first = spawn(dir, 1, &key, None)?;
    let seed = answer(&first)?.me.addr.to_string();
    let mut all = vec![first];
    for n in 2..=nodes {
        all.push(spawn(dir, n, &key, Some(&seed))?);
    }
    for node in &all {
        while answer(node)?.alive < nodes {
            if began.elapsed() > PATIENCE * 3 {
                return Err(format!("{} does not see all others: look at its log", node.display()));
            }
            std::thread::sleep(LOOK);
        }
    }
    Ok(began.elapsed())
}

/// Starts a daemon in the background; gives its directory.
fn spawn(dir: &Path, n: usize, key: &str, seed: Option<&str>) -> Result<PathBuf, String> {
    let node = dir.join(format!("n{n}"));
    let fail = |e: std::io::Error| format!("cannot start a daemon in {}: {e}", node.display());
    fs::create_dir_all(&node).map_err(fail)?;
    let log = File::create(node.join("log")).map_err(fail)?;
    let mut command = Command::new(std::env::current_exe().map_err(fail)?);
    command.args(["agent", "--profile", "local", "--bind", "127.0.0.1:0", "--name", &format!("n{n}")]);
    command.arg("--data-dir").arg(&node).arg("--socket").arg(socket(&node)).env("PHALANX_KEY", key);
    command.args(seed.iter().flat_map(|seed| ["--join", seed]));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
    // It outlives the terminal, and an interrupt there is not meant for it.
    let child = command.process_group(0).spawn().map_err(fail)?;
    fs::write(node.join("pid"), format!("{}\n", child.id())).map_err(fail)?;
    Ok(node)
}

/// What a daemon says of itself, as soon as it does.
fn answer(node: &Path) -> Result<phalanx_client::api::Status, String> {
    let (client, began) = (Client::new(socket(node)), Instant::now());
    loop {
        match client.status() {
            Ok(status) => return Ok(status),
            Err(e) if began.elapsed() > PATIENCE => {
                let log = fs::read_to_string(node.join("log")).unwrap_or_default();
                return Err(format!("{e}; its log says: {}", log.trim()));
            }
            Err(_) => std::thread::sleep(LOOK),
        }
    }
}

fn down() -> Result<ExitCode, String> {
    let dir = directory();
    let Ok(nodes) = fs::read_dir(&dir) else {
        return Err(format!("there is no cluster in {}: start one with `phalanx dev up 3`", dir.display()));
    };
    let nodes: Vec<PathBuf> = nodes.filter_map(|n| Some(n.ok()?.path())).collect();
    let running: Vec<(PathBuf, i32)> = nodes.into_iter().filter_map(|n| Some((n.clone(), running(&n)?))).collect();
    for (_, pid) in &running {
        signal(*pid, nix::sys::signal::Signal::SIGTERM);
    }
    let began = Instant::now();
    for (node, pid) in &running {
        while self::running(node).is_some() {
            if began.elapsed() > PATIENCE {
                signal(*pid, nix::sys::signal::Signal::SIGKILL);
            }
            std::thread::sleep(LOOK);
        }
    }
    fs::remove_dir_all(&dir).map_err(|e| format!("cannot remove {}: {e}", dir.display()))?;
    println!("{} nodes ended", running.len());
    Ok(ExitCode::SUCCESS)
}

fn signal(pid: i32, signal: nix::sys::signal::Signal) {
    // It may have ended just now.
    let _ = nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), signal);
}

/// The process of a node, when it runs: numbers are used again, so it must be one that works in this directory.
fn running(node: &Path) -> Option<i32> {
    let pid: i32 = fs::read_to_string(node.join("pid")).ok()?.trim().parse().ok()?;
    let command = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let mut arguments = command.split(|&b| b == 0);
    arguments.any(|a| a == node.as_os_str().as_encoded_bytes()).then_some(pid)
}
