//! `phalanx lab` as a user meets it: exit codes, and where the laboratory comes from.
//!
//! The real laboratory takes minutes to build; small scripts stand for it and for cargo.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A process started while another test still writes an executable inherits that open file until it executes, and the
/// kernel then refuses to run what was written ("text file busy").
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    // A test that failed has poisoned nothing but itself.
    ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A place of its own for a copy of `phalanx`, gone with the test.
struct Place(PathBuf, #[expect(dead_code, reason = "held")] MutexGuard<'static, ()>);

impl Place {
    fn new(name: &str) -> Self {
        let turn = alone();
        let place = std::env::temp_dir().join(format!("phalanx-cli-{name}-{}", std::process::id()));
        fs::create_dir_all(place.join("bin")).unwrap();
        fs::copy(env!("CARGO_BIN_EXE_phalanx"), place.join("bin/phalanx")).unwrap();
        Self(place, turn)
    }

    fn script(&self, path: &str, text: &str) -> PathBuf {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    fn source_tree(&self) {
        fs::create_dir_all(self.0.join("lab")).unwrap();
        fs::write(self.0.join("Cargo.toml"), "").unwrap();
        fs::write(self.0.join("lab/Cargo.toml"), "").unwrap();
    }

    fn phalanx(&self, args: &[&str]) -> Output {
        let path = format!("{}:/usr/bin:/bin", self.0.join("fake").display());
        Command::new(self.0.join("bin/phalanx")).args(args).env("PATH", path).output().unwrap()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn plain(args: &[&str]) -> (Option<i32>, String, String) {
    let _turn = alone();
    said(&Command::new(env!("CARGO_BIN_EXE_phalanx")).args(args).output().unwrap())
}

#[test]
fn help_and_version_are_good_and_go_to_stdout() {
    for args in [["--help"], ["--version"]] {
        let (code, out, err) = plain(&args);
        assert_eq!(code, Some(0), "{args:?}");
        assert!(out.contains("phalanx") && err.is_empty(), "{out} {err}");
    }
}

#[test]
fn what_cannot_be_understood_is_64_and_leaves_stdout_alone() {
    for args in [&[][..], &["phalank"], &["--colour"], &["lab"]] {
        let (code, out, err) = plain(args);
        assert_eq!(code, Some(64), "{args:?}: {err}");
        assert!(out.is_empty() && !err.is_empty(), "{args:?}");
    }
}

#[test]
fn the_laboratory_beside_gets_the_arguments_and_gives_the_exit_code() {
    let place = Place::new("beside");
    place.script("bin/phalanx-lab", r#"printf '%s|' "$@"; echo told >&2; exit "$CODE""#);
    for code in [0, 1, 64] {
        let mut command = Command::new(place.0.join("bin/phalanx"));
        let args = ["lab", "run", "link-latency", "-o", "json", "--plot", "a b.svg", "--quick"];
        let output = command.args(args).env("CODE", code.to_string()).output().unwrap();
        let said = said(&output);
        assert_eq!(said, (Some(code), "run|link-latency|-o|json|--plot|a b.svg|--quick|".into(), "told\n".into()));
    }
    let (_, out, _) = said(&place.phalanx(&["lab", "--help"]));
    assert_eq!(out, "--help|", "help is the laboratory's to give");
}

#[test]
fn without_laboratory_and_source_the_error_says_what_to_do() {
    let place = Place::new("alone");
    let (code, out, err) = said(&place.phalanx(&["lab", "ls"]));
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(
        err.contains("cargo build --release -p phalanx-lab") && err.contains("phalanx-lab beside phalanx"),
        "{err}"
    );
}

#[test]
fn from_a_source_tree_it_is_built_where_cargo_says_and_run() {
    let place = Place::new("tree");
    place.source_tree();
    let lab = place.script("elsewhere/phalanx-lab", r#"echo "lab: $*""#);
    let artifact = format!(
        r#"{{"reason":"compiler-artifact","target":{{"name":"phalanx-lab"}},"executable":"{}"}}"#,
        lab.display()
    );
    place.script("fake/cargo", &format!("echo \"cargo $*\" >&2\npwd >&2\necho '{artifact}'"));
    let (code, out, err) = said(&place.phalanx(&["lab", "ls"]));
    assert_eq!((code, out.as_str()), (Some(0), "lab: ls\n"), "{err}");
    assert!(err.contains("cargo build --release -p phalanx-lab"), "{err}");
    assert!(err.contains(&*place.0.to_string_lossy()), "built in the source tree: {err}");
}

#[test]
fn a_failed_build_is_an_error_and_nothing_runs() {
    let place = Place::new("broken");
    place.source_tree();
    place.script("fake/cargo", "echo 'error: it does not compile' >&2; exit 101");
    let (code, out, err) = said(&place.phalanx(&["lab", "ls"]));
    assert_eq!((code, out.as_str()), (Some(1), ""));
    assert!(err.contains("it does not compile") && err.contains("failed in"), "{err}");
}
