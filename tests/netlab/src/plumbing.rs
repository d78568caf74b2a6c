//! The system's own tools, and what is left of processes that were killed.
//!
//! All that we make is named by our process. What has the name of a process that is no more is removed by the next one that
//! makes a network.

use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fmt::{self, Display, Formatter};
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

/// Where `ip` keeps the names of namespaces.
pub const NAMES: &str = "/run/netns";
/// What all our namespaces and directories begin with; the number of the process follows.
pub(crate) const PREFIX: &str = "plx";

/// Why there is no network.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Error {
    /// This machine has none to give: something is not installed, or not allowed.
    Unavailable(&'static str),
    /// A program would not do what it was told. What was made so far is removed.
    Refused {
        /// The program.
        program: &'static str,
        /// What it was told, and what it said.
        reason: String,
    },
}

impl Display for Error {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(why) => f.write_str(why),
            Self::Refused { program, reason } => write!(f, "{program}: {reason}"),
        }
    }
}

impl std::error::Error for Error {}

/// What a program prints, when it does what it is told by its arguments and on its standard input.
///
/// # Errors
/// What the program said, or why it did not run.
pub fn obey(program: &'static str, arguments: &[&str], input: &str) -> Result<String, Error> {
    let refused = |reason: String| Error::Refused { program, reason };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(|e| refused(e.to_string()))?;
    if let Some(mut stdin) = child.stdin.take() {
        // Who does not read it says why on its standard error.
        let _ = stdin.write_all(input.as_bytes());
    }
    let done = child.wait_with_output().map_err(|e| refused(e.to_string()))?;
    if done.status.success() {
        return Ok(String::from_utf8_lossy(&done.stdout).into_owned());
    }
    Err(refused(format!("{}: {}", arguments.join(" "), String::from_utf8_lossy(&done.stderr).trim())))
}

/// What a command that shall run in a namespace is put behind.
#[must_use]
pub fn on(namespace: &str) -> Vec<String> {
    ["ip", "netns", "exec", namespace].map(str::to_owned).into()
}

/// Does something in a namespace. Sockets that are opened there stay there, whoever uses them.
///
/// # Panics
/// When there is no such namespace, or `what` panics.
pub fn inside<T: Send>(namespace: &str, what: impl FnOnce() -> T + Send) -> T {
    let path = Path::new(NAMES).join(namespace);
    let entered = || {
        // A namespace belongs to a thread: this one ends with what it was made for.
        let file = File::open(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        setns(file, CloneFlags::CLONE_NEWNET).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        what()
    };
    std::thread::scope(|scope| scope.spawn(entered).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Commands of `ip`, in a namespace.
pub(crate) fn batch(namespace: &str, lines: &str) -> Result<(), Error> {
    obey("ip", &["-n", namespace, "-batch", "-"], lines).map(drop)
}

/// Sets what `/proc/sys/net` has, in a namespace.
pub(crate) fn set(namespace: &str, settings: &[(&str, &str)]) -> Result<(), Error> {
    let write = |(name, value): &(&str, &str)| {
        let path = Path::new("/proc/sys/net").join(name);
        fs::write(&path, value).map_err(|e| Error::Refused { program: "sysctl", reason: format!("{name}: {e}") })
    };
    inside(namespace, || settings.iter().try_for_each(write))
}

/// Removes namespaces, as far as they are there.
pub(crate) fn remove(namespaces: &[String]) {
    let lines: String = namespaces.iter().map(|name| format!("netns del {name}\n")).collect();
    let _ = obey("ip", &["-force", "-batch", "-"], &lines);
}

/// True when this machine has the second family.
pub(crate) fn has_ipv6() -> bool {
    Path::new("/proc/sys/net/ipv6").exists()
}

/// Whether networks can be made here, with routers when there shall be some, and why not.
pub(crate) fn possible(routers: bool) -> Result<(), Error> {
    if !nix::unistd::geteuid().is_root() {
        return Err(Error::Unavailable("only root makes networks"));
    }
    let mut programs =
        vec![("ip", "-V", "there is no `ip`: install iproute2"), ("nft", "-V", "there is no `nft`: install nftables")];
    programs.extend(routers.then_some(("smcrouted", "-v", "there is no `smcrouted`: install smcroute")));
    for (program, version, why) in programs {
        let found = Command::new(program).arg(version).stdout(Stdio::null()).stderr(Stdio::null()).status();
        found.map_err(|_| Error::Unavailable(why))?;
    }
    if routers && !Path::new("/proc/self/net/ip_mr_vif").exists() {
        return Err(Error::Unavailable("this kernel routes no multicast"));
    }
    // A container's root may have no right to do so.
    static MAY: OnceLock<bool> = OnceLock::new();
    let may = *MAY.get_or_init(|| {
        let name = format!("{PREFIX}{}-try", std::process::id());
        let tried = obey("ip", &["netns", "add", &name], "")
            .and_then(|_| obey("ip", &["netns", "exec", &name, "nft", "add", "table", "bridge", "faults"], ""));
        remove(&[name]);
        tried.is_ok()
    });
    if may { Ok(()) } else { Err(Error::Unavailable("this kernel gives no namespaces, or no bridge filters")) }
}

/// A directory of ours.
pub(crate) fn directory(name: &str) -> PathBuf {
    std::env::temp_dir().join(name)
}

/// Removes what processes left behind that were killed: namespaces, who lives there, directories.
pub fn sweep() {
    let list = obey("ip", &["netns", "list"], "").unwrap_or_default();
    let left: Vec<String> =
        list.lines().filter_map(|line| line.split(' ').next()).filter(|n| is_left(n)).map(Into::into).collect();
    for name in &left {
        // Whoever lives there was started by that process.
        let pids = obey("ip", &["netns", "pids", name], "").unwrap_or_default();
        for pid in pids.lines().filter_map(|pid| pid.trim().parse().ok()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
    if !left.is_empty() {
        remove(&left);
    }
    let entries = fs::read_dir(std::env::temp_dir()).into_iter().flatten().filter_map(Result::ok);
    for entry in entries.filter(|entry| entry.file_name().to_str().is_some_and(is_left)) {
        let _ = fs::remove_dir_all(entry.path());
    }
}

/// True for the name of something whose process is no more.
fn is_left(name: &str) -> bool {
    let owner =
        name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')).and_then(|(pid, _)| pid.parse::<u32>().ok());
    owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_refuses_says_why() {
        assert_eq!(obey("cat", &[], "so be it").as_deref(), Ok("so be it"));
        let Err(Error::Refused { program: "cat", reason }) = obey("cat", &["/nowhere"], "") else {
            panic!("it cannot")
        };
        assert!(reason.contains("/nowhere"), "{reason}");
        assert!(matches!(obey("no-such-program", &[], ""), Err(Error::Refused { .. })));
    }

    #[test]
    fn only_what_dead_processes_named_is_left() {
        assert!(!is_left(&format!("{PREFIX}{}-0-h0", std::process::id())));
        // No process has this number: it is above all that there can be.
        assert!(is_left(&format!("{PREFIX}4294967295-0-h0")));
        assert!(!is_left("4294967295-0-h0") && !is_left(&format!("{PREFIX}x-0")) && !is_left(PREFIX));
    }
}
