//! RV: every order of events in small jobs. Larger ones: `cargo run --release -p phalanx-models -- view --help`.

use phalanx_models::explore::{Report, check};
use phalanx_models::view::{Action, Bounds, View};

fn explore(bounds: Bounds) -> Report<Action> {
    let report = check(View::new(bounds).expect("good bounds"), None, None);
    assert!(report.violations.is_empty() && report.complete, "{report}");
    report
}

const SMALL: Bounds = Bounds { nodes: 3, crashes: 2, joins: 0, silences: 0, arity: 2 };

/// RV-3, RV-4: whoever dies, in whatever order, at whatever moment.
#[test]
fn rv_4_two_crashes_of_three_and_of_four() {
    assert!(explore(SMALL).states > 100);
    assert!(explore(Bounds { nodes: 4, ..SMALL }).states > 3000);
}

/// RV-5: a joiner that dies, a root that dies before its welcome, one that recovers while others fail.
#[test]
fn rv_5_two_crashes_and_a_join_of_three() {
    assert!(explore(Bounds { joins: 1, ..SMALL }).states > 10_000);
}

/// RV-5: a newcomer is let in, and out again, before it heard of it.
#[test]
fn rv_5_a_crash_and_a_join_of_four() {
    assert!(explore(Bounds { nodes: 4, crashes: 1, joins: 1, ..SMALL }).states > 30_000);
}

/// RV-6, RV-8: somebody slow is taken for dead, and comes back.
#[test]
fn rv_8_a_crash_and_a_silence_of_three_and_of_four() {
    explore(Bounds { crashes: 1, silences: 1, ..SMALL });
    explore(Bounds { nodes: 4, crashes: 1, silences: 1, ..SMALL });
}
