//! The README's first command, as cargo understands it.

use std::process::Command;

use serde_json::Value;

/// Packages for tests and for models have programs too; `cargo run` from the root must still mean ours.
#[test]
fn cargo_run_from_the_root_runs_phalanx() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    let asked = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--offline", "--format-version", "1"])
        .current_dir(root)
        .output()
        .expect("cargo runs");
    let workspace: Value = serde_json::from_slice(&asked.stdout).expect("cargo describes the workspace");
    let list = |key: &str| workspace[key].as_array().expect("a list").iter();
    let runs: Vec<&Value> = list("packages")
        .filter(|package| list("workspace_default_members").any(|member| *member == package["id"]))
        .map(|package| &package["default_run"])
        .filter(|name| !name.is_null())
        .collect();
    assert_eq!(runs, ["phalanx"]);
}
