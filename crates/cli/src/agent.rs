//! `phalanx agent`: the daemon.

use phalanx_daemon::agent::{Agent, Settings};
use phalanx_daemon::control::Control;
use phalanx_daemon::store::{Key, Store, hex, unhex};
use phalanx_protocol::member::Name;
use phalanx_protocol::zone::Config;
use phalanx_protocol::zone::hierarchy::Role;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;

/// The port unless another is named.
const PORT: u16 = 7946;

/// Runs a node of the cluster until it is told to leave
#[derive(clap::Args)]
pub(crate) struct Args {
    /// What the node is called; the host's name unless given
    #[arg(long)]
    name: Option<String>,
    /// Where it listens, UDP and TCP; port 0 takes any
    #[arg(long, default_value = "0.0.0.0:7946", value_name = "ADDR")]
    bind: String,
    /// Where others reach it, when that is another address
    #[arg(long, value_name = "ADDR")]
    advertise: Option<String>,
    /// Where other members may be: HOST or HOST:PORT, as often as you like
    #[arg(long, value_name = "SEED")]
    join: Vec<String>,
    /// The cluster's key, 64 hexadecimal digits; drawn and printed when there is none
    #[arg(long, env = "PHALANX_KEY", hide_env_values = true, value_name = "HEX")]
    key: Option<String>,
    /// Where identity, keys and incarnation are kept
    #[arg(long, default_value = "/var/lib/phalanx", value_name = "DIR")]
    data_dir: PathBuf,
    /// Where the control API listens
    #[arg(long, env = phalanx_client::SOCKET_VARIABLE, default_value = phalanx_client::DEFAULT_SOCKET, value_name = "PATH")]
    socket: PathBuf,
    /// How it watches and speaks
    #[arg(long, default_value = "lan")]
    profile: Profile,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Profile {
    Lan,
    Wan,
    Local,
    Paper,
}

impl Profile {
    fn config(self) -> Config {
        match self {
            Self::Lan => Config::lan(),
            Self::Wan => Config::wan(),
            Self::Local => Config::local(),
            Self::Paper => Config::paper(),
        }
    }
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    let signals = block_signals()?;
    let name = args.name.clone().map_or_else(host_name, Ok)?;
    let name = Name::new(&name).map_err(|e| format!("--name: {e}"))?;
    let (keys, fresh) = keys(args)?;
    let mut seeds = Vec::new();
    for seed in &args.join {
        seeds.extend(resolve(seed).map_err(|e| format!("--join {seed}: {e}"))?);
    }
    let one =
        |text: &str, option: &str| resolve(text).map_err(|e| format!("{option} {text}: {e}")).map(|addrs| addrs[0]);
    let settings = Settings {
        name,
        bind: one(&args.bind, "--bind")?,
        advertise: args.advertise.as_deref().map(|a| one(a, "--advertise")).transpose()?,
        keys: keys.clone(),
        seeds,
        profile: args.profile.config(),
        role: Role::Alone,
        data: Some(args.data_dir.clone()),
    };
    let mut agent = Agent::start(settings).map_err(|e| e.to_string())?;
    if let Some(dir) = args.socket.parent() {
        std::fs::create_dir_all(dir).map_err(|e| format!("cannot create {}: {e}", dir.display()))?;
    }
    let control = Control::open(&agent, &args.socket)
        .map_err(|e| format!("cannot listen at {}: {e} (choose another --socket)", args.socket.display()))?;
    let addr = agent.addr();
    eprintln!("phalanx: listening at {addr}");
    if fresh {
        eprintln!("phalanx: a new cluster. Others join it with:");
        eprintln!("  PHALANX_KEY={} phalanx agent --join {addr}", hex(&keys[0].key));
    }
    let remote = agent.remote();
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(move || {
            while let Ok(signal) = signals.wait() {
                eprintln!("phalanx: {signal}: leaving the cluster");
                remote.tell(|agent| agent.leave(0));
            }
        })
        .map_err(|e| e.to_string())?;
    agent.run(|_| ()).map_err(|code| format!("the network failed: {code:?}"))?;
    drop(control);
    Ok(ExitCode::SUCCESS)
}

/// Signals are taken by one thread, so all others must not get them.
fn block_signals() -> Result<nix::sys::signal::SigSet, String> {
    use nix::sys::signal::{SigSet, Signal};
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    signals.thread_block().map_err(|e| format!("cannot take signals: {e}"))?;
    Ok(signals)
}

/// The cluster's keys: those on disk, or the one that was given, or a new one. True when it is new.
fn keys(args: &Args) -> Result<(Vec<Key>, bool), String> {
    let given = match &args.key {
        Some(text) => {
            Some(unhex(text.trim()).ok_or("--key: a key is 64 hexadecimal digits, as the first node printed it")?)
        }
        None => None,
    };
    let store = Store::open(&args.data_dir).map_err(|e| e.to_string())?;
    match (store.keys().map_err(|e| e.to_string())?, given) {
        (Some(kept), Some(given)) if kept.iter().all(|k| k.key != given) => Err(format!(
            "--key is not among the keys in {}: this node belongs to another cluster, or its keys were rotated; \
             leave --key out, or move the file `keys` away",
            args.data_dir.display()
        )),
        (Some(kept), _) => Ok((kept, false)),
        (None, given) => {
            let key = match given {
                Some(key) => key,
                None => {
                    let mut key = [0; 32];
                    getrandom::fill(&mut key).map_err(|e| format!("the system has no random numbers: {e}"))?;
                    key
                }
            };
            let keys = vec![Key { id: 1, key }];
            store.keep_keys(&keys).map_err(|e| e.to_string())?;
            Ok((keys, given.is_none()))
        }
    }
}

/// The addresses that a text names; at least one.
fn resolve(text: &str) -> Result<Vec<SocketAddr>, String> {
    let found = match text.to_socket_addrs() {
        Ok(addrs) => addrs.collect::<Vec<_>>(),
        Err(_) => {
            let host = text.trim_start_matches('[').trim_end_matches(']');
            (host, PORT).to_socket_addrs().map_err(|e| e.to_string())?.collect()
        }
    };
    if found.is_empty() { Err("no such host".to_owned()) } else { Ok(found) }
}

fn host_name() -> Result<String, String> {
    let name = nix::unistd::gethostname().map_err(|e| format!("the host has no name ({e}): give --name"))?;
    Ok(name.to_string_lossy().into_owned())
}
