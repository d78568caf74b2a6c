//! What must hold: ours ahead of each peer, and within its own bounds.

use super::{Fault, Kind};
use crate::experiment::Run;
use crate::report::{Check, Must, Row};

/// A bound on ours alone: which, at how many nodes, under what, which column, how much.
const BOUNDS: [(Kind, usize, Fault, &str, f64); 11] = [
    (Kind::Daemons, 30, Fault::Crash, "last_ms", 15.0),
    (Kind::Daemons, 100, Fault::Crash, "last_ms", 30.0),
    (Kind::Daemons, 30, Fault::Blackhole, "last_ms", 3_000.0),
    (Kind::Daemons, 100, Fault::Blackhole, "last_ms", 3_000.0),
    (Kind::Daemons, 30, Fault::Idle, "bytes_per_node_s", 250.0),
    (Kind::Daemons, 100, Fault::Idle, "bytes_per_node_s", 250.0),
    (Kind::Fleet, 100, Fault::Idle, "bytes_per_node_s", 250.0),
    (Kind::Daemons, 100, Fault::Idle, "rss_mb", 15.0),
    (Kind::Daemons, 30, Fault::Duty, "false_positives", 0.0),
    (Kind::Daemons, 100, Fault::Duty, "false_positives", 0.0),
    (Kind::Fleet, 100, Fault::Duty, "false_positives", 0.0),
];

/// Ours, a peer, and how many nodes each has: processes against processes, one process against one process.
const PAIRS: [(Kind, Kind, usize); 3] =
    [(Kind::Daemons, Kind::Serf, 30), (Kind::Fleet, Kind::Foca, 100), (Kind::Fleet, Kind::Chitchat, 100)];
/// Where ours has to be ahead of each of them.
const AHEAD: [(Fault, &str); 3] = [(Fault::Crash, "last_ms"), (Fault::Blackhole, "last_ms"), (Fault::Join, "join_s")];

/// Checks all of it. A peer that was not measured is not compared with: the notes say why it is missing.
pub(super) fn check(run: &mut Run, rows: &[Row]) {
    for (kind, nodes, fault, column, bound) in BOUNDS {
        let name = format!("{}, {nodes} nodes, {fault}: {column} ≤ {bound}", kind.name());
        run.check(Check::new(name, value(rows, kind, nodes, fault, column), Must::AtMost, bound));
    }
    for (ours, peer, nodes) in PAIRS {
        for (fault, column) in AHEAD {
            let must = if fault == Fault::Join { Must::AtMost } else { Must::Below };
            compare(run, rows, (ours, peer, nodes), (fault, column), must);
        }
        if peer == Kind::Serf {
            compare(run, rows, (ours, peer, nodes), (Fault::Idle, "bytes_per_node_s"), Must::AtMost);
        }
    }
}

/// Ours by the peer's.
fn compare(
    run: &mut Run,
    rows: &[Row],
    (ours, peer, nodes): (Kind, Kind, usize),
    (fault, column): (Fault, &str),
    must: Must,
) {
    let Some(theirs) = value(rows, peer, nodes, fault, column) else { return };
    let ratio = value(rows, ours, nodes, fault, column).map(|ours| ours / theirs);
    let name = format!("{} / {}, {nodes} nodes, {fault}: {column} {must} 1", ours.name(), peer.name());
    run.check(Check::new(name, ratio, must, 1.0));
}

fn value(rows: &[Row], kind: Kind, nodes: usize, fault: Fault, column: &str) -> Option<f64> {
    let row = rows.iter().find(|row| {
        row["system"] == kind.name() && row["nodes"] == nodes && row["fault"].as_str() == Some(&fault.to_string())
    })?;
    row.get(column)?.as_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Options;
    use crate::peers::row;

    fn run() -> Run {
        Run::for_test(Options { quick: false, width: 0.03, max_rounds: 1, budget_s: 1.0, seeds: None })
    }

    fn crash(kind: Kind, nodes: usize, last_ms: f64) -> Row {
        let mut row = row(kind.name(), nodes, Fault::Crash);
        row.insert("last_ms".into(), last_ms.into());
        row
    }

    fn held(rows: &[Row], name: &str) -> Option<bool> {
        let mut run = run();
        check(&mut run, rows);
        run.checks().iter().find(|c| c.name.starts_with(name)).map(|c| c.holds)
    }

    #[test]
    fn ours_is_ahead_or_not() {
        let rows = [crash(Kind::Daemons, 30, 9.0), crash(Kind::Serf, 30, 7_700.0)];
        assert_eq!(held(&rows, "phalanx / serf, 30 nodes, crash"), Some(true));
        assert_eq!(held(&rows, "phalanx, 30 nodes, crash: last_ms"), Some(true));
        let rows = [crash(Kind::Daemons, 30, 16.0), crash(Kind::Serf, 30, 16.0)];
        assert_eq!(held(&rows, "phalanx / serf, 30 nodes, crash"), Some(false));
        assert_eq!(held(&rows, "phalanx, 30 nodes, crash: last_ms"), Some(false));
    }

    /// A peer may be missing; ours may not.
    #[test]
    fn what_was_not_measured_does_not_hold_for_ours_and_is_left_out_for_peers() {
        assert_eq!(held(&[], "phalanx, 30 nodes, crash: last_ms"), Some(false));
        assert_eq!(held(&[], "phalanx / serf, 30 nodes, crash"), None);
        assert_eq!(held(&[crash(Kind::Serf, 30, 1.0)], "phalanx / serf, 30 nodes, crash"), Some(false));
    }
}
