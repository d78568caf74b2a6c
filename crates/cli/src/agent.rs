//! `phalanx agent`: the daemon. `phalanx config show`: what it would be started with, and why.

pub(crate) mod log;
mod plan;

use log::Log;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use phalanx_daemon::agent::handlers::Handlers;
use phalanx_daemon::agent::{Agent, Remote};
use phalanx_daemon::config::Layers;
use phalanx_daemon::control::Control;
use phalanx_daemon::seeds::Seeds;
use phalanx_daemon::store::hex;
use plan::{Live, Plan};
use sd_notify::NotifyState;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc;
use std::time::Duration;

/// The configuration file that is read when none is named and it is there.
const FILE: &str = "/etc/phalanx/phalanx.toml";

/// Between two look-ups of seeds.
const LOOK_UP: Duration = Duration::from_secs(30);
/// Between two looks at how busy the machine is.
const LOAD: Duration = Duration::from_secs(5);
/// A daemon with fewer descriptors may have to turn neighbours or clients away.
const DESCRIPTORS: u64 = 1024;

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
    /// Where other members may be: HOST, HOST:PORT, hosts:node[1-9], srv:NAME, file:PATH; as often as you like
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
    /// Find others on the local network by multicast: auto, on or off
    #[arg(long, value_name = "WHEN")]
    discover: Option<String>,
    /// How members find and watch each other: zone or segment
    #[arg(long)]
    engine: Option<String>,
    /// Engine segment without multicast: the hosts of a segment, NAME=HOSTS such as rack1=10.0.0.[1-20]; once for each segment
    #[arg(long, value_name = "NAME=HOSTS")]
    segment: Vec<String>,
    /// How it watches and speaks: lan, wan, local or paper
    #[arg(long)]
    profile: Option<String>,
    /// Where the control API is served over TCP, too, such as 127.0.0.1:7947
    #[arg(long, value_name = "ADDR")]
    http: Option<String>,
    /// The zone it is in, where there are several
    #[arg(long, value_name = "NAME")]
    zone: Option<String>,
    /// Where supervisors are, for members of a zone; as --join
    #[arg(long, value_name = "SEED")]
    supervisor: Vec<String>,
    /// member or supervisor
    #[arg(long)]
    role: Option<String>,
    /// What the node says of itself from its start: KEY=VALUE; as often as you like
    #[arg(long, value_name = "KEY=VALUE")]
    attribute: Vec<String>,
    /// Jobs are managed once so many nodes are there: more than half of all, the same everywhere
    #[arg(long, value_name = "N")]
    expect: Option<String>,
    /// Ranks of jobs that the node takes; one for each processor unless set
    #[arg(long, value_name = "N")]
    slots: Option<String>,
    /// Jobs of root run here, as root
    #[arg(long)]
    run_as_root: bool,
    /// A script to run when something happens: WHAT=COMMAND; as often as you like
    #[arg(long, value_name = "WHAT=COMMAND")]
    on: Vec<String>,
    /// The name of the cluster's data centre, in a federation
    #[arg(long, value_name = "NAME")]
    data_centre: Option<String>,
    /// Another data centre, and a few of its nodes
    #[arg(long, value_name = "NAME=HOSTS")]
    federation: Vec<String>,
    /// What to do when another member has the name: refuse or rename
    #[arg(long, value_name = "POLICY")]
    name_conflict: Option<String>,
    /// How much is logged: error, warn, info, debug or trace
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
    /// How the log is written: text or json
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
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
            ("data-centre", &self.data_centre),
            ("data-dir", &self.data_dir),
            ("socket", &self.socket),
            ("discover", &self.discover),
            ("engine", &self.engine),
            ("profile", &self.profile),
            ("http", &self.http),
            ("zone", &self.zone),
            ("role", &self.role),
            ("expect", &self.expect),
            ("slots", &self.slots),
            ("name-conflict", &self.name_conflict),
            ("log", &self.log),
            ("log-format", &self.log_format),
        ];
        for (option, value) in given {
            if let Some(value) = value {
                layers.read_flag(option, vec![value.clone()]).map_err(|e| e.to_string())?;
            }
        }
        if self.run_as_root {
            layers.read_flag("run-as-root", vec!["true".to_owned()]).map_err(|e| e.to_string())?;
        }
        let lists = [
            ("join", &self.join),
            ("supervisors", &self.supervisor),
            ("attributes", &self.attribute),
            ("on", &self.on),
            ("segments", &self.segment),
            ("federation", &self.federation),
        ];
        for (option, values) in lists.into_iter().filter(|l| !l.1.is_empty()) {
            layers.read_flag(option, values.clone()).map_err(|e| e.to_string())?;
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
            true => writeln!(out, "{:16} {:32} {from}", entry.key, value),
            false => writeln!(out, "{:16} {value}", entry.key),
        };
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn run(args: Args) -> Result<ExitCode, String> {
    let layers = args.options.layers()?;
    let log = Log::start(layers.text("log").unwrap_or_default(), layers.text("log_format").unwrap_or_default());
    look_at_descriptors();
    let Plan { settings, fresh, seeds, missing, http, socket, socket_group, live } = plan::plan(&layers)?;
    let key = hex(&settings.keys[0].key);
    let mut agent = Agent::start(settings).map_err(|e| e.to_string())?;
    if let Some(dir) = socket.parent() {
        std::fs::create_dir_all(dir).map_err(|e| format!("cannot create {}: {e}", dir.display()))?;
    }
    let control = Control::open(&agent, &socket, socket_group, http).map_err(|e| {
        format!("cannot serve the control API at {}: {e} (choose another --socket or --http)", socket.display())
    })?;
    let addr = agent.addr();
    tracing::info!(%addr, name = agent.name(), version = phalanx_daemon::version(), "listening");
    if let Some(http) = control.http() {
        tracing::info!(addr = %http, "serving HTTP");
    }
    if fresh {
        let cluster = layers.text("cluster").map_or_else(String::new, |name| format!(" --cluster {name}"));
        // A journal keeps for ever what it is told.
        let key = if std::env::var_os("JOURNAL_STREAM").is_some() { "(see the file `keys` in data_dir)" } else { &key };
        eprintln!("phalanx: a new cluster. Others join it with:");
        eprintln!("  PHALANX_KEY={key} phalanx agent --join {addr}{cluster}");
    }
    for (seed, why) in &missing {
        tracing::warn!(seed, "{why} (tried again every {} s)", LOOK_UP.as_secs());
    }
    let (remote, handlers) = (agent.remote(), Handlers::default());
    let (tell_seeds, told_seeds) = mpsc::channel();
    let running = Running { options: args.options, layers, log, seeds: tell_seeds, handlers, live, remote };
    running.begin(&mut agent, seeds, told_seeds)?;
    // Before anybody is told that we are ready, and may say that we shall reload.
    let signals = Signals::take()?;
    notify(&[NotifyState::Ready]);
    start_thread("signals", move || running.obey(signals))?;
    let verdict =
        agent.run(|_| notify(&[NotifyState::Watchdog])).map_err(|code| format!("the network failed: {code}"))?;
    drop(control);
    Ok(verdict.into())
}

/// What can be changed while the daemon runs.
struct Running {
    options: Options,
    layers: Layers,
    log: Log,
    seeds: mpsc::Sender<Seeds>,
    handlers: Handlers,
    live: Live,
    remote: Remote,
}

impl Running {
    /// Everything that runs beside the loop begins.
    fn begin(&self, agent: &mut Agent, seeds: Seeds, told: mpsc::Receiver<Seeds>) -> Result<(), String> {
        for (key, value) in &self.live.attributes {
            let set = agent.set_attribute(key, Some(value));
            set.map_err(|e| self.layers.wrong("attributes", e).to_string())?;
        }
        self.handlers.set(self.live.handlers.clone());
        let started = self.handlers.start(agent.journal(), self.remote.clone());
        started.map_err(|e| format!("cannot start a thread: {e}"))?;
        let remote = self.remote.clone();
        start_thread("seeds", move || look_up(seeds, &told, &remote))?;
        if self.layers.flag("load") {
            let remote = self.remote.clone();
            start_thread("load", move || tell_load(&remote))?;
        }
        Ok(())
    }

    /// Does what signals say, for ever.
    fn obey(mut self, mut signals: Signals) {
        loop {
            match signals.next() {
                Word::Reload => {
                    match self.reload() {
                        Ok(()) => tracing::info!("the configuration was read again"),
                        Err(why) => tracing::error!("the configuration stays as it was: {why}"),
                    }
                    notify(&[NotifyState::Ready]);
                }
                Word::End => {
                    tracing::info!("told to end: leaving the cluster");
                    notify(&[NotifyState::Stopping]);
                    self.remote.tell(|agent| agent.leave(0));
                }
            }
        }
    }

    /// Reads the configuration again. What can be changed is; what cannot is named.
    fn reload(&mut self) -> Result<(), String> {
        let layers = self.options.layers()?;
        let (live, seeds) = (Live::of(&layers)?, plan::seeds(&layers)?);
        for (entry, value, _) in layers.show() {
            let before = self.layers.show().find(|(e, ..)| e.key == entry.key).map(|(_, v, _)| v);
            if before.as_ref() != Some(&value) && !RELOADED.contains(&entry.key) {
                tracing::warn!("`{}` was changed: restart the daemon for it", entry.key);
            }
        }
        self.log.set(layers.text("log").unwrap_or_default());
        self.handlers.set(live.handlers.clone());
        let removed = self.live.attributes.keys().filter(|k| !live.attributes.contains_key(*k));
        let mut changes: Vec<(String, Option<String>)> = removed.map(|k| (k.clone(), None)).collect();
        changes.extend(live.attributes.iter().map(|(k, v)| (k.clone(), Some(v.clone()))));
        self.remote.tell(move |agent| {
            for (key, value) in &changes {
                if let Err(why) = agent.set_attribute(key, value.as_deref()) {
                    tracing::error!(key, "{why}");
                }
            }
        });
        // Names are looked up where that may take its time. The thread ends only with us.
        let _ = self.seeds.send(seeds);
        (self.layers, self.live) = (layers, live);
        Ok(())
    }
}

/// What SIGHUP changes.
const RELOADED: [&str; 4] = ["attributes", "join", "log", "on"];

/// Tells systemd, when it wants to know.
fn notify(states: &[NotifyState<'_>]) {
    let _ = sd_notify::notify(states);
}

/// As many descriptors as we may have; few are named.
fn look_at_descriptors() {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    let raised = soft >= hard || setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok();
    let have = if raised { hard } else { soft };
    if have < DESCRIPTORS {
        tracing::warn!(
            "only {have} files may be open: tripwires and clients may be turned away; raise the limit to {DESCRIPTORS} \
             (LimitNOFILE in the unit, or ulimit -n)"
        );
    }
}

fn start_thread(name: &str, work: impl FnOnce() + Send + 'static) -> Result<(), String> {
    let started = std::thread::Builder::new().name(name.to_owned()).stack_size(1 << 20).spawn(work);
    started.map(drop).map_err(|e| format!("cannot start a thread: {e}"))
}

/// Names may mean other addresses by now, and seeds that could not be found may be there: the node hears of new ones.
fn look_up(mut seeds: Seeds, told: &mpsc::Receiver<Seeds>, remote: &Remote) {
    loop {
        match told.recv_timeout(LOOK_UP) {
            Ok(others) => seeds = others,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
        if !seeds.is_empty() {
            let (found, _) = seeds.resolve();
            remote.tell(move |agent| agent.seek(&found));
        }
    }
}

/// The run queue over the number of processors.
fn tell_load(remote: &Remote) {
    let processors = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    loop {
        let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        if let Some(load) = text.split(' ').next().and_then(|l| l.parse::<f64>().ok()) {
            let thousandths = (load / processors * 1000.0) as u32;
            remote.tell(move |agent| agent.observe_load(thousandths));
        }
        std::thread::sleep(LOAD);
    }
}

/// What a signal says.
enum Word {
    Reload,
    End,
}

/// Signals are taken by handlers and not by a mask: scripts that the daemon starts would inherit that.
struct Signals {
    runtime: tokio::runtime::Runtime,
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl Signals {
    fn take() -> Result<Self, String> {
        use tokio::signal::unix::{SignalKind, signal};
        let fail = |e: std::io::Error| format!("cannot take signals: {e}");
        let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().map_err(fail)?;
        let entered = runtime.enter();
        let (terminate, interrupt) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()));
        let hangup = signal(SignalKind::hangup());
        drop(entered);
        let (terminate, interrupt) = (terminate.map_err(fail)?, interrupt.map_err(fail)?);
        Ok(Self { runtime, terminate, interrupt, hangup: hangup.map_err(fail)? })
    }

    /// Waits for the next.
    fn next(&mut self) -> Word {
        let Self { runtime, terminate, interrupt, hangup } = self;
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => Word::End,
                _ = interrupt.recv() => Word::End,
                _ = hangup.recv() => Word::Reload,
            }
        })
    }
}
