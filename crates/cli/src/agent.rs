//! `phalanx agent`: the daemon. `phalanx config show`: what it would be started with, and why.

use phalanx_daemon::agent::{Agent, Remote, Settings};
use phalanx_daemon::config::Layers;
use phalanx_daemon::control::Control;
use phalanx_daemon::seeds::{Seeds, addresses};
use phalanx_daemon::store::{Key, Store, hex, unhex};
use phalanx_protocol::member::Name;
use phalanx_protocol::zone::Config;
use phalanx_protocol::zone::hierarchy::Role;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// The configuration file that is read when none is named and it is there.
const FILE: &str = "/etc/phalanx/phalanx.toml";

/// Between two look-ups of seeds.
const LOOK_UP: Duration = Duration::from_secs(30);

/// Runs a node of the cluster until it is told to leave
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    options: Options,
}

/// What can be set on the command line; all of it can stand in the environment (`PHALANX_…`) and in the file, too
#[derive(clap::Args)]
struct Options {
    /// The configuration file
    #[arg(short, long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// What the node is called; the host's name unless set
    #[arg(long)]
    name: Option<String>,
    /// Where it listens, UDP and TCP; port 0 takes any
    #[arg(long, value_name = "ADDR")]
    bind: Option<String>,
    /// Where others reach it, when that is another address
    #[arg(long, value_name = "ADDR")]
    advertise: Option<String>,
    /// Where other members may be: HOST, HOST:PORT, hosts:node[1-9], file:PATH; as often as you like
    #[arg(long, value_name = "SEED")]
    join: Vec<String>,
    /// The cluster's key, 64 hexadecimal digits; others on this machine can see it here: better PHALANX_KEY or --key-file
    #[arg(long, value_name = "HEX")]
    key: Option<String>,
    /// A file that holds the key
    #[arg(long, value_name = "FILE")]
    key_file: Option<String>,
    /// The cluster's name: nodes with another one stay outside
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Where identity, keys and incarnation are kept
    #[arg(long, value_name = "DIR")]
    data_dir: Option<String>,
    /// Where the control API listens
    #[arg(long, value_name = "PATH")]
    socket: Option<String>,
    /// How it watches and speaks: lan, wan, local or paper
    #[arg(long)]
    profile: Option<String>,
}

/// What the daemon would be started with
#[derive(clap::Args)]
pub(crate) struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(clap::Subcommand)]
enum ConfigCommand {
    /// Prints all settings
    Show {
        /// Say where each value comes from
        #[arg(long)]
        origin: bool,
        #[command(flatten)]
        options: Box<Options>,
    },
}

impl Options {
    /// The file, the environment and the command line, laid over each other.
    fn layers(&self) -> Result<Layers, String> {
        let mut layers = Layers::default();
        match &self.config {
            Some(path) => layers.read_file(path),
            None if Path::new(FILE).exists() => layers.read_file(Path::new(FILE)),
            None => Ok(()),
        }
        .map_err(|e| e.to_string())?;
        // A variable that is no text is none of ours.
        let variables = std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
        layers.read_environment(variables).map_err(|e| e.to_string())?;
        let given = [
            ("name", &self.name),
            ("bind", &self.bind),
            ("advertise", &self.advertise),
            ("key", &self.key),
            ("key-file", &self.key_file),
            ("cluster", &self.cluster),
            ("data-dir", &self.data_dir),
            ("socket", &self.socket),
            ("profile", &self.profile),
        ];
        for (option, value) in given {
            if let Some(value) = value {
                layers.read_flag(option, vec![value.clone()]).map_err(|e| e.to_string())?;
            }
        }
        if !self.join.is_empty() {
            layers.read_flag("join", self.join.clone()).map_err(|e| e.to_string())?;
        }
        Ok(layers)
    }
}

pub(crate) fn config(args: &ConfigArgs) -> Result<ExitCode, String> {
    let ConfigCommand::Show { origin, options } = &args.command;
    let layers = options.layers()?;
    let mut out = std::io::stdout().lock();
    for (entry, value, from) in layers.show() {
        // Nobody reads any more: that is no error.
        let _ = match origin {
            true => writeln!(out, "{:14} {:32} {from}", entry.key, value),
            false => writeln!(out, "{:14} {value}", entry.key),
        };
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    let layers = args.options.layers()?;
    let signals = block_signals()?;
    let Plan { settings, fresh, seeds, missing } = plan(&layers)?;
    let socket = PathBuf::from(layers.text("socket").unwrap_or_default());
    let key = hex(&settings.keys[0].key);
    let mut agent = Agent::start(settings).map_err(|e| e.to_string())?;
    if let Some(dir) = socket.parent() {
        std::fs::create_dir_all(dir).map_err(|e| format!("cannot create {}: {e}", dir.display()))?;
    }
    let control = Control::open(&agent, &socket)
        .map_err(|e| format!("cannot listen at {}: {e} (choose another --socket)", socket.display()))?;
    let addr = agent.addr();
    eprintln!("phalanx: listening at {addr}");
    if fresh {
        eprintln!("phalanx: a new cluster. Others join it with:");
        eprintln!("  PHALANX_KEY={key} phalanx agent --join {addr}");
    }
    for (seed, why) in &missing {
        eprintln!("phalanx: seed {seed}: {why} (tried again every {} s)", LOOK_UP.as_secs());
    }
    if !seeds.is_empty() {
        let remote = agent.remote();
        start_thread("seeds", move || look_up(&seeds, &remote))?;
    }
    let remote = agent.remote();
    start_thread("signals", move || {
        while let Ok(signal) = signals.wait() {
            eprintln!("phalanx: {signal}: leaving the cluster");
            remote.tell(|agent| agent.leave(0));
        }
    })?;
    agent.run(|_| ()).map_err(|code| format!("the network failed: {code:?}"))?;
    drop(control);
    Ok(ExitCode::SUCCESS)
}

fn start_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let started = std::thread::Builder::new().name(name.to_owned()).stack_size(128 * 1024).spawn(work);
    started.map(drop).map_err(|e| format!("cannot start a thread: {e}"))
}

/// Names may mean other addresses by now, and seeds that could not be found may be there: the node hears of new ones.
fn look_up(seeds: &Seeds, remote: &Remote) {
    loop {
        std::thread::sleep(LOOK_UP);
        let (found, _) = seeds.resolve();
        remote.tell(move |agent| agent.seek(&found));
    }
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

/// What the layers come to.
struct Plan {
    settings: Settings,
    /// The key was drawn just now.
    fresh: bool,
    seeds: Seeds,
    /// Seeds that were not found, and why.
    missing: Vec<(String, String)>,
}

fn plan(layers: &Layers) -> Result<Plan, String> {
    let wrong = |key: &'static str, why: &dyn std::fmt::Display| layers.wrong(key, why).to_string();
    let name = layers.text("name").map_or_else(host_name, |n| Ok(n.to_owned()))?;
    let name = Name::new(&name).map_err(|e| wrong("name", &e))?;
    let address = |key: &'static str| -> Result<Option<SocketAddr>, String> {
        let found = layers.text(key).map(addresses).transpose().map_err(|e| wrong(key, &e))?;
        Ok(found.map(|addrs| addrs[0]))
    };
    let bind = address("bind")?.ok_or_else(|| wrong("bind", &"give an address"))?;
    let advertise = address("advertise")?;
    let seeds = Seeds::parse(layers.list("join").iter().map(String::as_str)).map_err(|e| wrong("join", &e))?;
    let (found, missing) = seeds.resolve();
    let data = PathBuf::from(layers.text("data_dir").ok_or_else(|| wrong("data_dir", &"give a directory"))?);
    let (keys, fresh) = keys(layers, &data)?;
    let profile = match layers.text("profile") {
        Some("wan") => Config::wan(),
        Some("local") => Config::local(),
        Some("paper") => Config::paper(),
        _ => Config::lan(),
    };
    let settings = Settings {
        name,
        bind,
        advertise,
        keys,
        cluster: layers.text("cluster").unwrap_or_default().to_owned(),
        seeds: found,
        profile: Config { tripwires: layers.flag("tripwires"), ..profile },
        role: Role::Alone,
        leave_timeout: phalanx_core::Duration::from_secs_f64(layers.seconds("leave_timeout").unwrap_or(2.0)),
        data: Some(data),
    };
    Ok(Plan { settings, fresh, seeds, missing })
}

/// The cluster's keys: those on disk, or the one that was given, or a new one. True when it is new.
fn keys(layers: &Layers, data: &Path) -> Result<(Vec<Key>, bool), String> {
    let given = match (layers.text("key"), layers.text("key_file")) {
        (Some(text), _) => Some(("key", text.to_owned())),
        (None, Some(path)) => {
            let text = std::fs::read_to_string(path).map_err(|e| layers.wrong("key_file", e).to_string())?;
            Some(("key_file", text))
        }
        (None, None) => None,
    };
    let given = match given {
        Some((setting, text)) => {
            let why = "a key is 64 hexadecimal digits, as the first node printed it";
            Some((setting, unhex(text.trim()).ok_or_else(|| layers.wrong(setting, why).to_string())?))
        }
        None => None,
    };
    let store = Store::open(data).map_err(|e| e.to_string())?;
    match (store.keys().map_err(|e| e.to_string())?, given) {
        (Some(kept), Some((setting, given))) if kept.iter().all(|k| k.key != given) => Err(format!(
            "`{setting}` is not among the keys in {}: this node belongs to another cluster, or its keys were rotated; \
             leave it out, or move the file `keys` away",
            data.display()
        )),
        (Some(kept), _) => Ok((kept, false)),
        (None, given) => {
            let key = match given {
                Some((_, key)) => key,
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

fn host_name() -> Result<String, String> {
    let name = nix::unistd::gethostname().map_err(|e| format!("the host has no name ({e}): give --name"))?;
    Ok(name.to_string_lossy().into_owned())
}
