//! `phalanx sim` as a user meets it: exit codes, what it prints, and that the same command gives the same run.

use serde_json::Value;
use std::io::Write;
use std::process::{Command, Output, Stdio};

const GREEN: &str = "name = 'small'\nnodes = 4\nworkload = { kind = 'reliable', largest = 2000 }\n\
                     phases = { safety = '1s' }\n[[fault]]\nat = '300ms'\nkind = 'crash'\nrandom = 1\nfor = '200ms'\n";

/// Runs `phalanx sim` with a scenario on stdin.
fn sim(text: &str, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx"));
    command.arg("sim").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A command that refuses its arguments does not read.
    let _ = child.stdin.take().unwrap().write_all(text.as_bytes());
    child.wait_with_output().unwrap()
}

fn said(output: &Output) -> (Option<i32>, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

fn json(text: &str, args: &[&str]) -> (Option<i32>, Value) {
    let (code, out, err) = said(&sim(text, &[args, &["-o", "json"]].concat()));
    (code, serde_json::from_str(&out).unwrap_or_else(|e| panic!("{e}\n{out}\n{err}")))
}

#[test]
fn a_green_run_says_so() {
    let (code, out, err) = said(&sim(GREEN, &["-"]));
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(out.starts_with("scenario  small, 4 nodes, workload reliable, seed 1\n"), "{out}");
    for wanted in ["virtual time", "events/s", "trace     ", "packets.sent", "faults.crash", "\ngreen: everything held"]
    {
        assert!(out.contains(wanted), "{wanted}\n{out}");
    }
}

#[test]
fn json_has_the_whole_story() {
    let (code, run) = json(GREEN, &["-", "--seed", "7"]);
    assert_eq!((code, &run["green"], &run["seed"], &run["nodes"]), (Some(0), &true.into(), &7.into(), &4.into()));
    assert_eq!((run["scenario"].as_str(), run["workload"].as_str()), (Some("small"), Some("reliable")));
    assert_eq!(run["measures"]["faults.crash"], 1);
    assert_eq!(run["measures"]["starts"], 5);
    for number in ["virtual_s", "settled_s", "wall_s", "events_per_s"] {
        assert!(run[number].is_f64(), "{number}: {}", run[number]);
    }
    assert_eq!(run["trace"].as_str().map(str::len), Some(16));
    for empty in ["violations", "missed"] {
        assert_eq!(run[empty].as_array().map(Vec::len), Some(0));
    }
}

#[test]
fn the_same_command_is_the_same_run_in_another_process() {
    let trace = |args: &[&str]| json(GREEN, &[&["-"], args].concat()).1["trace"].clone();
    let first = trace(&["--seed", "3"]);
    assert_eq!(first, trace(&["--seed", "3"]));
    assert_eq!(first, trace(&["--seed", "3", "--threads", "2"]), "threads change the speed alone");
    assert_ne!(first, trace(&["--seed", "4"]));
    assert_ne!(first, trace(&["--seed", "3", "--set", "network.loss=0.1"]));
}

#[test]
fn a_red_run_prints_the_command_that_replays_it() {
    let folder = std::env::temp_dir().join(format!("phalanx sim {}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = folder.join("red.toml");
    std::fs::write(&file, GREEN).unwrap();
    let args = ["--seed", "5", "--set", "expect.delivered=< 10", file.to_str().unwrap()];
    let (code, out, _) = said(&sim("", &args));
    assert_eq!(code, Some(1));
    assert!(out.contains("red: expected delivered < 10, measured "), "{out}");
    let replay = out.lines().find_map(|l| l.strip_prefix("replay: phalanx ")).unwrap_or_else(|| panic!("{out}"));
    let shell = format!("'{}' {replay} -o json", env!("CARGO_BIN_EXE_phalanx"));
    let again = Command::new("sh").args(["-c", &shell]).output().unwrap();
    let again: Value = serde_json::from_slice(&again.stdout).unwrap();
    let trace = out.lines().find_map(|l| l.strip_prefix("trace     ")).unwrap();
    assert_eq!((again["trace"].as_str(), &again["green"]), (Some(trace), &false.into()));
    assert_eq!(again["missed"][0]["expected"], "delivered < 10");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn only_what_is_asked_for_is_shown() {
    let (_, run) = json(GREEN, &["-", "--set", "measure.show=['delivered', 'gaps']"]);
    let shown: Vec<_> = run["measures"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(shown, ["delivered", "gaps"]);
}

#[test]
fn mistakes_in_a_scenario_are_errors_with_their_place() {
    for (text, args, wanted) in [
        (GREEN.replace("nodes = 4", "nodes = 4\nlos = 1").as_str(), &["-"][..], "phalanx: -:3: `los`: unknown field"),
        (GREEN, &["-", "--set", "network.los=1"], "phalanx: --set network.los=1: `network.los`: unknown field `los`"),
        (GREEN, &["-", "--set", "fault.3.at=1s"], "`fault.3.at`: `3` is unknown; known: 0"),
        (GREEN, &["/nowhere/at/all.toml"], "phalanx: cannot read /nowhere/at/all.toml: "),
        ("nodes = [", &["-"], "phalanx: -:1: "),
    ] {
        let (code, out, err) = said(&sim(text, args));
        assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
        assert!(err.contains(wanted), "{err}\nshould say {wanted}");
    }
}

#[test]
fn a_command_line_that_makes_no_sense_is_usage() {
    for args in [
        &[][..],
        &["-", "--swarm", "3"],
        &["--swarm", "0"],
        &["--swarm", "some"],
        &["--swarm", "1", "--workload", "gossip"],
        &["--swarm", "1", "--engine", "zoo"],
        &["--swarm", "1", "--engine", "zone", "--workload", "order"],
        &["--swarm", "1", "--set", "nodes=3"],
        &["-", "--keep-going"],
        &["--keep-going"],
        &["-", "--workload", "order"],
        &["-", "--show"],
        &["-", "--set", "nodes"],
        &["-", "--seed", "-1"],
        &["-", "--threads", "0"],
        &["-", "-o", "xml"],
    ] {
        let (code, out, err) = said(&sim(GREEN, args));
        assert_eq!((code, out.as_str()), (Some(64), ""), "{args:?}: {err}");
        assert!(err.contains("Usage:") || err.contains("--help"), "{args:?}: {err}");
    }
}

#[test]
fn a_swarm_counts_and_replays() {
    let plan = ["--swarm", "4", "--seed", "20", "--workload", "reliable", "--keep-going"];
    let (code, first) = json("", &plan);
    assert_eq!(code, Some(i32::from(first["green"] == false)));
    assert_eq!((&first["runs"], &first["first_seed"]), (&4.into(), &20.into()));
    assert_eq!(first["workloads"]["reliable"], 4);
    assert!(first["events"].as_u64() > Some(1_000) && first["slowest"]["seed"].as_u64() >= Some(20));
    assert!(first["red"].is_array() && first["faults"].is_object());
    let (_, second) = json("", &[&plan[..], &["--jobs", "1"]].concat());
    assert_eq!((&first["trace"], &first["events"]), (&second["trace"], &second["events"]));
    let (_, out, _) = said(&sim("", &plan));
    assert!(out.contains("swarm     4 runs, seeds 20 to 23") && out.contains("runs.reliable"), "{out}");
}

/// ZN, BL-1: members are drawn as links are, for each engine; what is drawn is a scenario of that engine.
#[test]
fn a_swarm_of_members_replays_and_can_be_saved() {
    for engine in ["zone", "all-to-all", "gossip", "view"] {
        let plan = ["--swarm", "2", "--seed", "40", "--engine", engine];
        let (code, first) = json("", &plan);
        let (_, second) = json("", &[&plan[..], &["--jobs", "1"]].concat());
        assert_eq!((code, first["engine"].as_str()), (Some(0), Some(engine)));
        assert_eq!((&first["trace"], &first["workloads"][engine]), (&second["trace"], &2.into()));
        let (_, text, _) = said(&sim("", &["--swarm", "1", "--seed", "40", "--engine", engine, "--show"]));
        let (code, saved) = json(&text, &["-"]);
        assert_eq!((code, saved["engine"].as_str(), saved["seed"].as_u64()), (Some(0), Some(engine), Some(40)));
    }
}

/// What never came to pass is said so.
#[test]
fn a_cluster_that_does_not_boot_never_did() {
    let text = "name = 'x'\nengine = 'zone'\nnodes = 3\nphases = { safety = '2s', restart = false }\n\
                [[fault]]\nkind = 'crash'\nnodes = [2]\n[expect]\nboot_ms = '<= 100'\n";
    let (code, out, _) = said(&sim(text, &["-"]));
    assert_eq!(code, Some(1), "{out}");
    assert!(out.starts_with("scenario  x, 3 nodes, engine zone, seed 1\n"), "{out}");
    assert!(out.contains("red: expected boot_ms <= 100, measured never"), "{out}");
    assert_eq!(json(text, &["-"]).1["measures"]["boot_ms"], Value::Null);
}

/// What a swarm draws is a scenario: saved, it is the same run.
#[test]
fn a_drawn_scenario_can_be_saved_and_run() {
    let (code, text, _) = said(&sim("", &["--swarm", "1", "--seed", "33", "--workload", "reliable", "--show"]));
    assert_eq!(code, Some(0));
    let (_, drawn) = json("", &["--swarm", "1", "--seed", "33", "--workload", "reliable"]);
    let (_, saved) = json(&text, &["-"]);
    assert_eq!(saved["measures"]["events"], drawn["events"]);
    assert_eq!(saved["measures"]["delivered"], drawn["delivered"]);
}
