//! The command line of `run`. People bring it along from mpiexec, so options of several letters may have one dash (`-np 4`), and `:` stands
//! between programs.

use super::hosts;
use crate::ask::Socket;
use clap::Parser;
use phalanx_client::Client;
use phalanx_client::api::run::{HostSlots, OnFailure, PROGRAMS_MAX, Program, RANKS_MAX, RunWanted};
use std::ffi::OsString;
use std::path::PathBuf;

/// What stands between two programs.
const NEXT: &str = ":";

/// Starts a parallel job, and stays with it: `run -n 4 ./solve : -n 1 ./watch`
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    socket: Socket,
    /// What the job is called; the cluster finds a name otherwise
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Ranks on each node at most (-N, -ppn)
    #[arg(short = 'N', long = "ppn", visible_alias = "npernode", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    per_node: Option<u32>,
    /// Nodes to use, in this order: a,b:2,node[01-16] (NAME:SLOTS)
    #[arg(short = 'H', long, visible_alias = "hosts", value_name = "LIST", conflicts_with = "hostfile")]
    host: Option<String>,
    /// The same from a file, a node in each line: NAME, NAME:SLOTS or NAME slots=N (-f)
    #[arg(short = 'f', long, visible_alias = "machinefile", value_name = "FILE")]
    hostfile: Option<PathBuf>,
    /// For all programs: a variable and its value (-genv)
    #[arg(long, num_args = 2, value_names = ["NAME", "VALUE"])]
    genv: Vec<String>,
    /// Forward nothing of this environment but what is named here
    #[arg(long)]
    genvnone: bool,
    /// Begin each line with the rank that wrote it
    #[arg(short = 'l', long, visible_alias = "prepend-rank")]
    label: bool,
    /// End the job after this time; the exit status is 124 then
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<String>,
    /// Start more ranks than there are slots
    #[arg(long)]
    oversubscribe: bool,
    /// When a rank or its node dies: end the job, start all of it again, go on without it, or start that rank again
    #[arg(long, value_name = "POLICY", default_value = "abort")]
    on_failure: Policy,
    /// Slots that are kept free for ranks that must start again
    #[arg(long, value_name = "K", default_value_t = 0)]
    spares: u32,
    #[command(flatten)]
    first: Local,
}

/// What each program has for itself.
#[derive(clap::Args)]
struct Local {
    /// Ranks of this program (-n, -np); one unless given
    #[arg(short, long = "np", visible_alias = "n", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(RANKS_MAX)))]
    n: Option<u32>,
    /// A variable of this program: NAME=VALUE, or NAME of this environment
    #[arg(short = 'x', value_name = "NAME[=VALUE]")]
    export: Vec<String>,
    /// The same as two words (-env)
    #[arg(long, num_args = 2, value_names = ["NAME", "VALUE"])]
    env: Vec<String>,
    /// Where the program starts; here unless given (-wdir)
    #[arg(long, visible_alias = "wd", value_name = "DIR")]
    wdir: Option<PathBuf>,
    /// The program and its arguments; `:` and another program may follow
    #[arg(trailing_var_arg = true, required = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// A program after a `:`.
#[derive(Parser)]
#[command(no_binary_name = true, name = "phalanx run … :")]
struct Further {
    #[command(flatten)]
    local: Local,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Policy {
    /// All ranks end
    Abort,
    /// All ranks end, and the job starts again
    Restart,
    /// The others go on
    Continue,
    /// The rank starts again elsewhere
    Respawn,
}

/// mpiexec's names of several letters behind one dash, ours, and how many values follow.
const HABITS: [(&str, &str, usize); 17] = [
    ("-np", "--np", 1),
    ("-ppn", "--ppn", 1),
    ("-perhost", "--ppn", 1),
    ("-npernode", "--ppn", 1),
    ("-host", "--host", 1),
    ("-hosts", "--host", 1),
    ("-hostfile", "--hostfile", 1),
    ("-machinefile", "--hostfile", 1),
    ("-genv", "--genv", 2),
    ("-genvnone", "--genvnone", 0),
    ("-env", "--env", 2),
    ("-wdir", "--wdir", 1),
    ("-wd", "--wdir", 1),
    ("-prepend-rank", "--label", 0),
    ("-timeout", "--timeout", 1),
    ("-oversubscribe", "--oversubscribe", 0),
    ("-name", "--name", 1),
];

/// Options whose values are words of their own; all others of ours have none, or bring them along.
const VALUED: [(&str, usize); 21] = [
    ("-n", 1),
    ("-N", 1),
    ("-H", 1),
    ("-f", 1),
    ("-x", 1),
    ("--n", 1),
    ("--np", 1),
    ("--ppn", 1),
    ("--npernode", 1),
    ("--host", 1),
    ("--hosts", 1),
    ("--hostfile", 1),
    ("--machinefile", 1),
    ("--genv", 2),
    ("--env", 2),
    ("--wdir", 1),
    ("--wd", 1),
    ("--timeout", 1),
    ("--on-failure", 1),
    ("--spares", 1),
    ("--name", 1),
];

/// The command line as clap reads it: what mpiexec writes with one dash gets two. Words of programs stay as they are.
pub(crate) fn habits(words: impl IntoIterator<Item = OsString>) -> Vec<OsString> {
    let mut words = words.into_iter();
    let mut plain: Vec<OsString> = words.by_ref().take(2).collect();
    if plain.get(1).is_none_or(|w| w != "run") {
        plain.extend(words);
        return plain;
    }
    let (mut values, mut is_program) = (0, false);
    for word in words {
        let text = word.to_str().unwrap_or_default();
        if text == NEXT {
            (values, is_program) = (0, false);
        } else if values > 0 {
            values -= 1;
        } else if !is_program {
            if let Some(&(_, ours, follow)) = HABITS.iter().find(|h| h.0 == text) {
                values = follow;
                plain.push(ours.into());
                continue;
            }
            let valued = VALUED.iter().find(|v| v.0 == text).map(|v| v.1);
            values = valued.or((text == "--socket").then_some(1)).unwrap_or(0);
            is_program = !text.starts_with('-') || text == "--";
        }
        plain.push(word);
    }
    plain
}

impl Args {
    pub(super) fn client(&self) -> Client {
        Client::new(self.socket.path())
    }

    pub(super) fn tagged(&self) -> bool {
        self.label
    }

    /// The file that names nodes, when one does.
    pub(super) fn hostfile(&self) -> Option<PathBuf> {
        self.hostfile.clone()
    }

    /// What is asked for.
    pub(super) fn wanted(self) -> Result<RunWanted, String> {
        let hosts: Vec<HostSlots> = match (&self.host, &self.hostfile) {
            (Some(list), _) => hosts::listed(list)?,
            (None, Some(file)) => hosts::read(file)?,
            (None, None) => Vec::new(),
        };
        let timeout_ms = self.timeout.as_deref().map(milliseconds).transpose()?;
        let on_failure = match self.on_failure {
            Policy::Abort => OnFailure::Abort,
            Policy::Restart => OnFailure::Restart,
            Policy::Continue => OnFailure::Continue,
            Policy::Respawn => OnFailure::Respawn,
        };
        if self.spares > 0 && matches!(on_failure, OnFailure::Abort | OnFailure::Continue) {
            let policy = on_failure.name();
            return Err(format!("--spares: nothing starts again with --on-failure {policy}: use respawn or restart"));
        }
        let mut base = if self.genvnone { Vec::new() } else { environment() };
        set_pairs(&mut base, "-genv", &self.genv)?;
        let programs = programs(self.first, &base)?;
        let wanted = RunWanted {
            name: self.name,
            programs,
            hosts,
            per_node: self.per_node,
            oversubscribe: self.oversubscribe,
            on_failure,
            spares: self.spares,
            timeout_ms,
        };
        match wanted.ranks() {
            ranks if ranks > RANKS_MAX => Err(format!("{ranks} ranks are too many: at most {RANKS_MAX}")),
            _ => Ok(wanted),
        }
    }
}

fn milliseconds(seconds: &str) -> Result<u64, String> {
    let fine = seconds.parse().ok().filter(|s: &f64| s.is_finite() && *s > 0.0 && *s < 1e9);
    let fine =
        fine.ok_or_else(|| format!("--timeout: `{seconds}` is no number of seconds: more than 0, such as 90 or 0.5"))?;
    Ok((fine * 1e3).ceil() as u64)
}

/// The first program has been read by clap up to its arguments, which hold all others.
fn programs(mut first: Local, base: &[(String, String)]) -> Result<Vec<Program>, String> {
    let command = std::mem::take(&mut first.command);
    let mut parts = command.split(|word| word == NEXT).map(<[OsString]>::to_vec);
    first.command = parts.next().unwrap_or_default();
    let mut programs = vec![first.program(base)?];
    for part in parts {
        if part.is_empty() {
            return Err(format!("nothing follows a `{NEXT}`: give another program, or leave it out"));
        }
        let said = |e: clap::Error| {
            let (said, number) = (e.to_string(), programs.len() + 1);
            format!("program {number}: {}", said.strip_prefix("error: ").unwrap_or(&said).trim())
        };
        let further = Further::try_parse_from(part).map_err(said)?;
        programs.push(further.local.program(base)?);
    }
    if programs.len() > PROGRAMS_MAX {
        return Err(format!("{} programs are too many for one job: at most {PROGRAMS_MAX}", programs.len()));
    }
    Ok(programs)
}

impl Local {
    fn program(self, base: &[(String, String)]) -> Result<Program, String> {
        let mut env = base.to_vec();
        set_pairs(&mut env, "-env", &self.env)?;
        for export in &self.export {
            match export.split_once('=') {
                Some(("", _)) => return Err(format!("-x {export}: a variable has a name: write -x NAME=VALUE")),
                Some((name, value)) => set(&mut env, name, value.to_owned()),
                None => {
                    let value = std::env::var(export)
                        .map_err(|_| format!("-x {export}: there is no such variable here: write -x {export}=VALUE"))?;
                    set(&mut env, export, value);
                }
            }
        }
        let words = self.command.into_iter().map(|word| {
            word.into_string()
                .map_err(|word| format!("{} is not UTF-8 and cannot be sent to other nodes", word.display()))
        });
        let argv = words.collect::<Result<Vec<_>, _>>()?;
        if argv.first().is_none_or(String::is_empty) {
            return Err("no program is given: write it behind the options".to_owned());
        }
        let here = || std::env::current_dir().map_err(|e| format!("this directory cannot be named: {e}"));
        let wdir = match self.wdir {
            Some(dir) if dir.is_absolute() => dir,
            Some(dir) => here()?.join(dir),
            None => here()?,
        };
        let wdir = wdir.into_os_string().into_string();
        let wdir = wdir.map_err(|dir| format!("{} is not UTF-8: choose another -wdir", dir.display()))?;
        Ok(Program { argv, ranks: self.n.unwrap_or(1), env, wdir })
    }
}

/// This environment, less what cannot be sent and what concerns this command alone.
fn environment() -> Vec<(String, String)> {
    let ours = |name: &str| name == phalanx_client::SOCKET_VARIABLE || name.starts_with("PMI_");
    let texts = std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)));
    texts.filter(|(name, _)| !ours(name)).collect()
}

/// Variables that are named with their values behind an option.
fn set_pairs(env: &mut Vec<(String, String)>, option: &str, words: &[String]) -> Result<(), String> {
    for pair in words.chunks_exact(2) {
        let (name, value) = (&pair[0], &pair[1]);
        if name.is_empty() || name.contains('=') {
            return Err(format!(
                "{option}: `{name}` is no name of a variable: write {option} NAME VALUE, or -x NAME=VALUE"
            ));
        }
        set(env, name, value.clone());
    }
    Ok(())
}

fn set(env: &mut Vec<(String, String)>, name: &str, value: String) {
    match env.iter_mut().find(|(known, _)| known == name) {
        Some((_, old)) => *old = value,
        None => env.push((name.to_owned(), value)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Parser)]
    struct Whole {
        #[command(subcommand)]
        command: Command,
    }

    #[derive(clap::Subcommand)]
    enum Command {
        Run(Box<Args>),
    }

    fn wanted(line: &str) -> Result<RunWanted, String> {
        let words = ["phalanx", "run"].into_iter().chain(line.split_whitespace()).map(OsString::from);
        let Command::Run(args) = Whole::try_parse_from(habits(words)).map_err(|e| e.to_string())?.command;
        args.wanted()
    }

    #[test]
    fn habits_of_mpiexec_are_understood() {
        let job = wanted("-np 4 -ppn 2 -genv A 1 -wdir /tmp ./solve -np 9 --fast").unwrap();
        assert_eq!((job.ranks(), job.per_node), (4, Some(2)));
        let program = &job.programs[0];
        assert_eq!(program.argv, ["./solve", "-np", "9", "--fast"], "words of the program are its own");
        assert_eq!(program.wdir, "/tmp");
        assert!(program.env.contains(&("A".to_owned(), "1".to_owned())));
        let job = wanted("-n 2 -N 1 --host a,b:3 --oversubscribe -l true").unwrap();
        assert_eq!(
            job.hosts.iter().map(|h| (h.node.as_str(), h.slots)).collect::<Vec<_>>(),
            [("a", None), ("b", Some(3))]
        );
        assert!(job.oversubscribe && job.programs[0].argv == ["true"]);
        assert_eq!(wanted("true").unwrap().ranks(), 1);
        assert_eq!(wanted("-n 3 -- -odd name").unwrap().programs[0].argv, ["-odd", "name"]);
    }

    #[test]
    fn several_programs_share_a_job() {
        let job =
            wanted("-genvnone -genv A 1 -n 2 ./solve -x : -np 1 -x B=2 -env C 3 -wdir /tmp ./watch -n : cat").unwrap();
        let seen: Vec<_> = job.programs.iter().map(|p| (p.ranks, p.argv.join(" "), p.env.len())).collect();
        assert_eq!(seen, [(2, "./solve -x".into(), 1), (1, "./watch -n".into(), 3), (1, "cat".into(), 1)]);
    }

    #[test]
    fn what_makes_no_sense_is_said_before_anything_starts() {
        for (line, word) in [
            ("-np 0 true", "--np"),
            ("-np x true", "--np"),
            ("-n 2", "PROGRAM"),
            ("-n 1 true :", "nothing follows"),
            ("-n 1 true : -np 2", "PROGRAM"),
            ("-x NO_SUCH_VARIABLE_HERE true", "no such variable"),
            ("--timeout 0 true", "--timeout"),
            ("--timeout nan true", "--timeout"),
            ("--timeout soon true", "`soon` is no number of seconds"),
            ("--timeout=-1 true", "`-1` is no number of seconds"),
            ("-genv A=1 true x", "-genv: `A=1` is no name"),
            ("-n 1 true : -env =1 2 true", "-env: `=1` is no name"),
            ("-x =1 true", "-x NAME=VALUE"),
            ("-n 1 true : -n 1 true : -np many true", "program 3: invalid value 'many'"),
            ("-n 1000000 a : -n 1000000 b", "too many"),
            ("--hostfile /no/such/file true", "/no/such/file"),
            ("--host a[1- true", "a[1-"),
            ("-n 2 --bogus true", "--bogus"),
            ("-n 2 -bogus true", "-b"),
            ("-n 1 true : --bogus 2 true", "--bogus"),
            ("-n 2 --spares 1 true", "respawn or restart"),
            ("-n 2 --spares 1 --on-failure continue true", "respawn or restart"),
        ] {
            let why = wanted(line).unwrap_err();
            assert!(why.contains(word), "{line}: {why}");
        }
    }
}
