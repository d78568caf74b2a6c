//! Many clusters in which everything that can go wrong does (`model`).

use crate::manager::state::model::{Spoil, World};
use std::collections::BTreeMap;

/// `SEEDS` and `FIRST` in the environment try others.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let told = |name: &str| std::env::var(name).ok().and_then(|n| n.parse().ok());
    let first = told("FIRST").unwrap_or(0);
    first..first + told("SEEDS").unwrap_or(usual)
}

/// CM-4, CM-5: whatever dies, is late or comes twice.
#[test]
fn cm_5_no_job_is_lost_and_no_rank_lives_twice() {
    let mut told: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in seeds(2_000) {
        match World::new(seed, Spoil::default()).run() {
            Ok(what) => what.into_iter().for_each(|(what, n)| *told.entry(what).or_default() += n),
            Err(what) => panic!("FIRST={seed} SEEDS=1: {what}"),
        }
    }
    // What never happened was not tried.
    let happened = [
        "taken",
        "refused",
        "started",
        "respawned",
        "node killed",
        "agent killed",
        "shepherd killed",
        "moved",
        "grown",
    ];
    for what in happened {
        assert!(told.contains_key(what), "{what}: never, in {told:?}");
    }
    println!("{told:?}");
}

fn caught(spoil: Spoil, by: &str) {
    let all: Vec<String> = (0..400).filter_map(|seed| World::new(seed, spoil).run().err()).collect();
    assert!(all.iter().any(|what| what.contains(by)), "nobody noticed: {all:?}");
}

#[test]
fn a_shepherd_without_lease_is_caught() {
    caught(Spoil { no_leases: true, ..Spoil::default() }, "lives twice");
}

#[test]
fn reports_that_are_never_said_again_are_caught() {
    caught(Spoil { forgetful: true, ..Spoil::default() }, "after healing");
}

#[test]
fn a_replica_that_differs_is_caught() {
    caught(Spoil { liar: true, ..Spoil::default() }, "replicas differ");
}
