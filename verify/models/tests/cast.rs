//! ST-4, ST-7: every order of events in small trees. Larger ones: `cargo run --release -p phalanx-models -- cast --help`.

use phalanx_models::cast::{Action, Bounds, Cast};
use phalanx_models::explore::{Report, check};
use phalanx_protocol::cast::route::Rule;

fn explore(bounds: Bounds) -> Report<Action> {
    let report = check(Cast::new(bounds).expect("a good tree"), None, None);
    assert!(report.violations.is_empty() && report.complete, "{report}");
    report
}

const SMALL: Bounds =
    Bounds { nodes: 4, fan_out: 2, crashes: 1, source: 0, casts: 1, rule: Rule::Detour, receipts: false };

#[test]
fn st_7_a_crash_at_any_moment_by_any_rule() {
    for rule in Rule::ALL {
        for source in 0..4 {
            explore(Bounds { source, rule, ..SMALL });
        }
    }
}

#[test]
fn st_7_two_crashes_and_two_casts() {
    explore(Bounds { crashes: 2, ..SMALL });
    // Nobody is left around it: it finds itself below dead destinations, and sent to itself for ever.
    explore(Bounds { crashes: 2, source: 3, ..SMALL });
    explore(Bounds { casts: 2, ..SMALL });
}

/// Whoever casts and lives is told that all have it, and never before they have.
#[test]
fn st_7_what_is_told_to_have_settled_has() {
    let told = Bounds { receipts: true, ..SMALL };
    for source in [0, 1, 3] {
        explore(Bounds { source, ..told });
    }
    explore(Bounds { nodes: 3, casts: 2, ..told });
    explore(Bounds { nodes: 3, crashes: 2, source: 1, ..told });
}
