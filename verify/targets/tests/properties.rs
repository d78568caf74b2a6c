//! The fuzz targets on a few thousand inputs each: a regression shows without a fuzzer.

use phalanx_targets::ALL;
use proptest::collection::vec;
use proptest::prelude::*;

/// Runs `target` on `cases` inputs of up to `longest` bytes, drawn in two ways: any bytes, and bytes that repeat few
/// values, which are scripts of few kinds of steps.
fn try_out(name: &str, cases: u32, longest: usize) {
    let target = ALL.iter().find(|(n, _)| *n == name).expect("a target of that name").1;
    let few = vec(prop::sample::select(vec![0u8, 1, 2, 3, 4, 6, 12, 13, 14, 15, 16, 64, 255]), 0..longest);
    let input = prop_oneof![vec(any::<u8>(), 0..longest), few];
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    proptest::test_runner::TestRunner::new(config)
        .run(&input, |bytes| {
            target(&bytes);
            Ok(())
        })
        .unwrap();
}

#[test]
fn wire_outer() {
    try_out("wire_outer", 5_000, 120);
}

#[test]
fn wire_rcl() {
    try_out("wire_rcl", 5_000, 300);
}

#[test]
fn wire_mml() {
    try_out("wire_mml", 5_000, 200);
}

#[test]
fn link_arrived() {
    try_out("link_arrived", 1_000, 1_500);
}

#[test]
fn rcl_pair() {
    try_out("rcl_pair", 1_000, 1_000);
}

#[test]
fn fault_rules() {
    try_out("fault_rules", 4_000, 200);
}

#[test]
fn order_wire() {
    try_out("order_wire", 5_000, 300);
}

#[test]
fn view_heard() {
    try_out("view_heard", 20_000, 300);
}

#[test]
fn rumour_heard() {
    try_out("rumour_heard", 5_000, 600);
}

#[test]
fn cast_heard() {
    try_out("cast_heard", 20_000, 400);
}

#[test]
fn reduce_heard() {
    try_out("reduce_heard", 20_000, 400);
}

#[test]
fn segment_heard() {
    try_out("segment_heard", 20_000, 600);
}

#[test]
fn federation_heard() {
    try_out("federation_heard", 20_000, 400);
}
