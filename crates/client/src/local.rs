//! A daemon of this machine in a directory of its own: how it is started and where it answers.
//!
//! For who runs whole clusters on one machine: `phalanx dev`, tests, experiments. They differ in who ends the process and
//! when; what is started, and where its parts lie, is the same.

use crate::api::Status;
use crate::blocking::Client;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Between two tries to reach a daemon that starts.
const LOOK: Duration = Duration::from_millis(10);

/// A daemon, by its directory.
#[derive(Clone, Debug)]
pub struct Daemon {
    dir: PathBuf,
}

/// What it is started with.
#[derive(Clone, Copy, Debug)]
pub struct Start<'a> {
    /// The command `phalanx`.
    pub binary: &'a Path,
    /// What stands before it: a program that starts others, and its arguments.
    pub launcher: &'a [String],
    /// What the node is called.
    pub name: &'a str,
    /// Where it listens; port 0 takes any.
    pub bind: &'a str,
    /// Where others are.
    pub join: &'a [String],
    /// The cluster's key; without, it has one already, or draws one.
    pub key: Option<&'a str>,
    /// How it watches and speaks; the daemon's own choice unless set.
    pub profile: Option<&'a str>,
    /// Its configuration file; without, none: that of the machine's own daemon is not meant for it.
    pub config: Option<&'a str>,
}

impl Daemon {
    /// The daemon that is, or will be, in this directory.
    #[must_use]
    pub fn at(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// Where all of it is.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Where its control API listens.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.dir.join("phalanx.sock")
    }

    /// What it wrote to stderr so far, in all of its lives.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("log")).unwrap_or_default()
    }

    /// The command that starts it. Directory and log are there from now on.
    ///
    /// # Errors
    /// When they cannot be made.
    pub fn command(&self, start: &Start<'_>) -> io::Result<Command> {
        fs::create_dir_all(&self.dir)?;
        let log = OpenOptions::new().create(true).append(true).open(self.dir.join("log"))?;
        let mut command = match start.launcher {
            [] => Command::new(start.binary),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(start.binary);
                command
            }
        };
        // Nor is what the environment says to that one.
        let variables =
            std::env::vars_os().map(|v| v.0).filter(|name| name.as_encoded_bytes().starts_with(b"PHALANX_"));
        variables.for_each(|name| _ = command.env_remove(name));
        command.args(["agent", "--config", start.config.unwrap_or("/dev/null")]);
        command.args(["--name", start.name, "--bind", start.bind]);
        command.args(start.profile.iter().flat_map(|profile| ["--profile", profile]));
        command.arg("--data-dir").arg(&self.dir).arg("--socket").arg(self.socket());
        command.args(start.join.iter().flat_map(|seed| ["--join", seed]));
        start.key.iter().for_each(|key| _ = command.env("PHALANX_KEY", key));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Ok(command)
    }

    /// What it says of itself, as soon as it does.
    ///
    /// # Errors
    /// When it does not answer for so long: with its log, which says why.
    pub fn answer(&self, patience: Duration) -> Result<Status, String> {
        let (client, began) = (Client::new(self.socket()), Instant::now());
        loop {
            match client.status() {
                Ok(status) => return Ok(status),
                Err(e) if began.elapsed() > patience => {
                    return Err(format!("{e}; its log says: {}", self.log().trim()));
                }
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsStr;

    #[test]
    fn a_launcher_stands_before_the_command_and_the_key_is_nobody_elses_business() {
        let dir = std::env::temp_dir().join(format!("phalanx-local-{}", std::process::id()));
        let join = ["10.0.0.1:7946".to_owned(), "10.0.0.2:7946".to_owned()];
        let start = Start {
            binary: Path::new("/bin/phalanx"),
            launcher: &["nice", "-n", "5"].map(str::to_owned),
            name: "n3",
            bind: "10.0.0.3:7946",
            join: &join,
            key: Some("secret"),
            profile: None,
            config: None,
        };
        let command = Daemon::at(dir.clone()).command(&start).unwrap();
        let arguments: Vec<_> = command.get_args().filter_map(OsStr::to_str).collect();
        assert_eq!(
            (command.get_program(), &arguments[..4]),
            (OsStr::new("nice"), &["-n", "5", "/bin/phalanx", "agent"][..])
        );
        assert_eq!(arguments.iter().filter(|a| **a == "--join").count(), 2);
        assert!(!arguments.contains(&"--profile") && !arguments.contains(&"secret"));
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn who_does_not_answer_is_told_with_its_log() {
        let dir = std::env::temp_dir().join(format!("phalanx-local-silent-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("log"), "no such address\n").unwrap();
        let why = Daemon::at(dir.clone()).answer(Duration::ZERO).unwrap_err();
        assert!(why.ends_with("its log says: no such address"), "{why}");
        fs::remove_dir_all(dir).unwrap();
    }
}
