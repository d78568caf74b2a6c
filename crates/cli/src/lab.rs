//! `phalanx lab`: finds the laboratory's own executable, or builds it, and becomes it.
//!
//! The laboratory links the peers it compares us with. Nobody who runs a cluster should have to build those, so it is
//! an executable of its own, and its arguments are understood over there.

use serde_json::Value;
use std::convert::Infallible;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The executable, beside ours.
const EXECUTABLE: &str = "phalanx-lab";
/// Its package, in the source tree.
const PACKAGE: &str = "phalanx-lab";

/// Arguments, passed on as they are.
#[derive(clap::Args)]
#[command(disable_help_flag = true)]
pub(crate) struct Args {
    /// `ls`, `run NAME`, or `--help` for the rest
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
    args: Vec<OsString>,
}

/// Why there is no laboratory to become.
#[derive(Debug)]
pub(crate) enum Error {
    /// Neither the executable nor the source to build it from.
    Missing { beside: PathBuf },
    /// cargo could not be started.
    NoCargo { tree: PathBuf, reason: io::Error },
    /// cargo has said why on stderr.
    NotBuilt { tree: PathBuf },
    /// The executable is there and does not start.
    NotStarted { executable: PathBuf, reason: io::Error },
    /// Not even we know where we are.
    Lost(io::Error),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let build = format_args!("cargo build --release -p {PACKAGE}");
        match self {
            Self::Missing { beside } => write!(
                f,
                "the laboratory, {EXECUTABLE}, is not in {}, and no source tree is above it to build it from: \
                 run `{build}` in the source tree and put target/release/{EXECUTABLE} beside phalanx",
                beside.display()
            ),
            Self::NoCargo { tree, reason } => {
                let tree = tree.display();
                write!(f, "cannot start cargo: {reason}. Install Rust, then run `{build}` in {tree}")
            }
            Self::NotBuilt { tree } => write!(f, "`{build}` failed in {}: see above", tree.display()),
            Self::NotStarted { executable, reason } => write!(f, "cannot start {}: {reason}", executable.display()),
            Self::Lost(reason) => write!(f, "cannot tell where phalanx itself is: {reason}"),
        }
    }
}

/// Becomes the laboratory; returns only when it cannot.
pub(crate) fn run(args: &Args) -> Result<Infallible, Error> {
    let executable = find_or_build()?;
    // In place of this process: signals, the terminal and the exit code are then the laboratory's own.
    let reason = Command::new(&executable).args(&args.args).exec();
    Err(Error::NotStarted { executable, reason })
}

fn find_or_build() -> Result<PathBuf, Error> {
    let ours = std::env::current_exe().map_err(Error::Lost)?;
    let beside = ours.parent().unwrap_or(Path::new("/"));
    let executable = beside.join(EXECUTABLE);
    if executable.is_file() {
        return Ok(executable);
    }
    let tree = beside.ancestors().find(|dir| is_source_tree(dir));
    build(tree.ok_or_else(|| Error::Missing { beside: beside.into() })?)
}

fn is_source_tree(dir: &Path) -> bool {
    dir.join("Cargo.toml").is_file() && dir.join("lab/Cargo.toml").is_file()
}

/// Builds it and asks cargo where it went, which its configuration may have changed.
fn build(tree: &Path) -> Result<PathBuf, Error> {
    eprintln!("phalanx: building {PACKAGE}, which is not beside phalanx yet");
    let built = Command::new("cargo")
        .args(["build", "--release", "-p", PACKAGE, "--message-format", "json-render-diagnostics"])
        .current_dir(tree)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|reason| Error::NoCargo { tree: tree.into(), reason })?;
    let executable = String::from_utf8_lossy(&built.stdout).lines().filter_map(executable_in).next_back();
    executable.filter(|_| built.status.success()).ok_or_else(|| Error::NotBuilt { tree: tree.into() })
}

/// The laboratory's executable, when that is what this message of cargo's is about.
fn executable_in(message: &str) -> Option<PathBuf> {
    let message: Value = serde_json::from_str(message).ok()?;
    let ours = message["target"]["name"] == EXECUTABLE;
    message["executable"].as_str().filter(|_| ours).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_laboratorys_own_artifact_counts() {
        let lab = r#"{"reason":"compiler-artifact","target":{"name":"phalanx-lab"},"executable":"/t/phalanx-lab"}"#;
        let script = r#"{"reason":"compiler-artifact","target":{"name":"build"},"executable":"/t/build"}"#;
        assert_eq!(executable_in(lab), Some(PathBuf::from("/t/phalanx-lab")));
        assert_eq!(executable_in(script), None);
        assert_eq!(executable_in(r#"{"reason":"build-finished","success":true}"#), None);
        assert_eq!(executable_in("not json"), None);
    }
}
