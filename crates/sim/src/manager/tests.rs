//! Managers under everything that goes wrong; and that what is wrong with them is noticed.

use super::Spoil;
use crate::scenario::{Engine, Runs, Scenario, Swarm, drawn, swarm};

/// CM-1 to CM-5: some seeds of the swarm; `phalanx sim --swarm N --engine manager` has the others.
#[test]
fn cm_5_no_job_is_lost_whatever_befalls_its_managers() {
    let plan = Swarm { first: 0, runs: 12, jobs: 1, engine: Engine::Manager, workload: None, keep_going: false };
    let summary = swarm(&plan, |_, _| ());
    for red in &summary.red {
        println!("{}", red.outcome.report);
    }
    assert!(summary.is_green());
    assert!(summary.told["manager.ranks.started"] > 100, "{:?}", summary.told);
}

/// Seeds that were red: what was sworn before a new start went round for ever; a seat moved while a new replica had no state; a replica that had
/// just begun could not go on from its disk; an answer came astray; a group was signed for by one alone.
#[test]
fn cm_3_what_swarms_have_found_stays_found() {
    for seed in [20, 441, 575, 1550, 3960, 4274] {
        let scenario = Scenario::parse("drawn", &drawn(seed, Engine::Manager, None), &[] as &[&str]).unwrap();
        let report = scenario.run().expect("it can be built").report;
        assert!(report.violations.is_empty(), "{report}");
    }
}

fn found(spoil: Spoil, seeds: std::ops::Range<u64>) -> Option<(u64, String)> {
    for seed in seeds {
        let mut scenario = Scenario::parse("drawn", &drawn(seed, Engine::Manager, None), &[] as &[&str]).unwrap();
        let Runs::Members(members) = &mut scenario.runs else { panic!("no members") };
        members.options.manager.as_mut().expect("a manager").spoil = Some(spoil);
        let report = scenario.run().expect("it can be built").report;
        if let Some(violation) = report.violations.first() {
            return Some((seed, violation.checker.to_owned()));
        }
    }
    None
}

/// What each part is there for: without it the checkers find what goes wrong, and so do they when it breaks one day.
#[test]
fn what_is_wrong_with_managers_is_found() {
    let cases = [
        (Spoil::OneVoice, "voices"),
        (Spoil::NoLeases, "lives"),
        (Spoil::NoDisk, "jobs"),
        (Spoil::NoInventory, "lives"),
    ];
    for (spoil, checker) in cases {
        let (seed, first) = found(spoil, 0..300).unwrap_or_else(|| panic!("{spoil:?} was not found"));
        println!("{spoil:?}: {first} at seed {seed}");
        assert_eq!(first, checker, "{spoil:?} at seed {seed}");
    }
}
