//! The laboratory as `phalanx lab` starts it: exit codes, the JSON that others parse, and no child left behind.

use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

fn lab(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_phalanx-lab"));
    command.args(args);
    command
}

fn output(args: &[&str]) -> Output {
    lab(args).output().unwrap()
}

#[test]
fn ls_names_each_experiment_on_a_line() {
    let ls = output(&["ls"]);
    assert_eq!(ls.status.code(), Some(0));
    let text = String::from_utf8(ls.stdout).unwrap();
    let names: Vec<_> = text.lines().filter_map(|line| line.split_whitespace().next()).collect();
    let all = [
        "link-latency",
        "link-throughput",
        "link-faults",
        "timer-resolution",
        "sim-speed",
        "zone-boot",
        "zone-churn",
        "zone-attributes",
        "zone-hierarchy",
        "zone-million",
        "zone-recipes",
        "zone-lifeguard",
        "zone-lifeguard-grid",
        "view-stabilization",
        "view-multifail",
        "view-crash",
        "cast-unicast",
        "cast-broadcast",
        "cast-16k",
        "cast-crash",
        "cast-rate",
        "segment-compare",
        "directory-lookup",
        "segment-sockets",
        "segment-heartbeats",
        "segment-service",
        "launch",
        "death-notice",
        "manager-faults",
        "peers",
        "soak",
    ];
    assert_eq!(names, all);
    assert!(text.lines().all(|line| line.split_whitespace().count() > 1), "each says what it is about: {text}");
}

#[test]
fn exit_codes_tell_usage_from_failure() {
    for args in [&[][..], &["run"], &["run", "sim-speed", "-o", "yaml"], &["run", "sim-speed", "--rounds", "0"]] {
        assert_eq!(output(args).status.code(), Some(64), "{args:?}");
    }
    let unknown = output(&["run", "sim-sped"]);
    assert_eq!(unknown.status.code(), Some(1));
    assert!(unknown.stdout.is_empty() && String::from_utf8_lossy(&unknown.stderr).contains("phalanx lab ls"));
    assert_eq!(output(&["--help"]).status.code(), Some(0));
}

/// Real processes on real sockets: each layer that raw sockets and peers offer, in each mode this machine can run.
#[test]
fn a_run_gives_its_json_its_plot_and_its_noise() {
    let plot = std::env::temp_dir().join(format!("phalanx-lab-{}.svg", std::process::id()));
    let run = output(&["run", "link-latency", "--rounds", "1", "-o", "json", "--plot", plot.to_str().unwrap()]);
    let stderr = String::from_utf8_lossy(&run.stderr);
    let report: Value = serde_json::from_slice(&run.stdout).unwrap_or_else(|e| panic!("{e}: {stderr}"));
    assert_eq!(report.as_object().unwrap().keys().collect::<Vec<_>>(), ["name", "rows", "checks", "noise", "notes"]);
    let rows = report["rows"].as_array().unwrap();
    for layer in ["udp", "udp-connected", "udp-sealed", "tcp", "quinn", "quinn-jumbo", "kcp", "kcp-sealed"] {
        let same_core: Vec<_> = rows.iter().filter(|r| r["layer"] == layer && r["mode"] == "same-core").collect();
        assert_eq!(same_core.iter().map(|r| r["bytes"].as_u64().unwrap()).collect::<Vec<_>>(), [4, 64, 1024, 4096]);
        let ordered = |r: &Value| {
            let [p50, p99] = ["p50_us", "p99_us"].map(|column| r[column].as_f64().unwrap_or(f64::NAN));
            0.0 < p50 && p50 <= p99
        };
        assert!(same_core.iter().all(|r| ordered(r)), "{layer}: {same_core:?}");
    }
    assert_eq!(report["noise"]["before"].as_array().unwrap().len(), report["noise"]["after"].as_array().unwrap().len());
    assert!(stderr.contains("noise before: core"), "{stderr}");
    assert!(!stderr.contains("round 1"), "progress is for terminals: {stderr}");
    assert!(fs::read_to_string(&plot).unwrap().contains("udp-sealed"));
    fs::remove_file(plot).unwrap();
}

/// BL-2: the rows that 003's figures are drawn from, and all that must hold of them.
#[test]
fn segment_compare_gives_the_rows_of_its_figures() {
    let plot = std::env::temp_dir().join(format!("phalanx-lab-segments-{}.svg", std::process::id()));
    let run = output(&["run", "segment-compare", "--quick", "-o", "json", "--plot", plot.to_str().unwrap()]);
    let report: Value = serde_json::from_slice(&run.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.len() > 10 && checks.iter().all(|c| c["holds"] == true), "{:#}", report["checks"]);
    let rows = report["rows"].as_array().unwrap();
    for (engine, profile) in [("all-to-all", "paper"), ("gossip", "paper"), ("segment", "lan"), ("zone", "lan")] {
        let of: Vec<_> = rows.iter().filter(|r| r["engine"] == engine && r["profile"] == profile).collect();
        assert_eq!(of.iter().map(|r| r["nodes"].as_u64().unwrap()).collect::<Vec<_>>(), [20, 40, 100]);
    }
    for row in rows {
        let columns = ["bytes_per_s_total", "first_ms", "last_ms", "bdp", "bcp"];
        assert!(columns.iter().all(|&c| row[c].as_f64().is_some_and(|v| v > 0.0)), "{row}");
    }
    let svg = fs::read_to_string(&plot).unwrap();
    assert!(svg.contains("segment, 003 §4, analytic") && svg.contains("bcp"));
    fs::remove_file(plot).unwrap();
}

/// BL-2, 003 Fig. 2: a service under load loses a node. The times are those of the daemons' own build and of this machine: the report holds
/// them to bounds, and here only what they come to counts.
#[test]
fn segment_service_loses_less_when_it_knows_sooner() {
    assert_eq!(phalanx_cluster::binary().parent(), Path::new(env!("CARGO_BIN_EXE_phalanx-lab")).parent());
    let plot = std::env::temp_dir().join(format!("phalanx-lab-service-{}.svg", std::process::id()));
    let run = output(&["run", "segment-service", "--quick", "-o", "json", "--plot", plot.to_str().unwrap()]);
    let stderr = String::from_utf8_lossy(&run.stderr);
    let report: Value = serde_json::from_slice(&run.stdout).unwrap_or_else(|e| panic!("{e}: {stderr}"));
    let rows = report["rows"].as_array().unwrap();
    let of = |profile: &str| rows.iter().find(|r| r["profile"] == profile && r["failed"].is_number()).unwrap();
    let number = |profile: &str, column: &str| of(profile)[column].as_f64().unwrap_or_else(|| panic!("{report:#}"));
    let fewer = number("paper", "failed") / number("lan", "failed").max(1.0);
    assert!(fewer >= 2.0, "{report:#}");
    assert!(number("lan", "detected_ms") < number("paper", "detected_ms"), "{report:#}");
    assert!(number("lan", "failed") > 0.0 && number("lan", "requests") > 2000.0, "{report:#}");
    // The course that Fig. 2 is drawn from: all is well, then it is not, and in the end it is again.
    for profile in ["lan", "paper"] {
        let course: Vec<_> = rows.iter().filter(|r| r["profile"] == profile && r["at_s"].is_number()).collect();
        let percent = |row: &Value| row["answered_percent"].as_f64().unwrap();
        let ends = [course[0], course[course.len() - 1]];
        assert!(ends.iter().all(|r| percent(r) == 100.0) && course.iter().any(|r| percent(r) < 90.0), "{report:#}");
    }
    assert!(fs::read_to_string(&plot).unwrap().contains("answered_percent"));
    fs::remove_file(plot).unwrap();
}

/// CM-3, FI-5: the rows of 004's Fig. 5, and all that must hold of them.
#[test]
fn manager_faults_gives_the_rows_of_its_figure() {
    let run = output(&["run", "manager-faults", "--quick", "-o", "json"]);
    let report: Value = serde_json::from_slice(&run.stdout).unwrap();
    let checks = report["checks"].as_array().unwrap();
    assert!(checks.len() > 10 && checks.iter().all(|c| c["holds"] == true), "{report:#}");
    let rows = report["rows"].as_array().unwrap();
    let columns = ["rate", "kind", "injected", "retransmissions", "duplicates", "false_alarms", "self_diagnoses"];
    for row in rows {
        assert!(row.as_object().unwrap().keys().zip(columns).all(|(is, ought)| is == ought), "{row}");
        assert_eq!(row["jobs_asked"], row["jobs_answered"], "{row}");
        assert_eq!(row["injected"].as_u64() == Some(0), row["kind"] == "none", "{row}");
    }
    for kind in ["drop", "delay", "modify", "reorder", "inject", "invocation", "operation", "all"] {
        assert!(["wire", "plain"].iter().all(|p| rows.iter().any(|r| r["kind"] == kind && r["point"] == *p)), "{kind}");
    }
}

/// A killed parent cannot end its children; the kernel does.
#[test]
fn children_end_with_a_killed_parent() {
    let mut parent =
        lab(&["run", "link-throughput", "--rounds", "1"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let children = until(|| Some(children_of(&parent)).filter(|c| c.len() == 2));
    parent.kill().unwrap();
    parent.wait().unwrap();
    until(|| children.iter().all(|&child| has_ended(child)).then_some(()));
}

/// Looks again and again, and gives up after a while.
fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(start.elapsed() < Duration::from_secs(20), "it did not come to that");
        sleep(Duration::from_millis(2));
    }
}

fn children_of(parent: &Child) -> Vec<u32> {
    let id = parent.id();
    let list = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap_or_default();
    list.split_whitespace().map(|id| id.parse().unwrap()).collect()
}

/// Gone, or dead and waiting for somebody to ask how.
fn has_ended(id: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{id}/stat"));
    status.map_or(true, |s| s.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z')))
}
