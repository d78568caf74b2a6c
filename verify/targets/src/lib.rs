//! One function for each fuzz target. Each takes any bytes and panics when Phalanx does something wrong with them.
//!
//! `verify/fuzz` searches for such bytes for as long as one likes; `tests/properties.rs` tries a few thousand in
//! ordinary test runs, so that a regression shows without a fuzzer.

mod cast;
mod fault;
mod order;
mod pair;
mod reduce;
mod rumour;
mod script;
mod segment;
mod view;
mod wire;
mod world;

pub use cast::cast_heard;
pub use fault::fault_rules;
pub use order::order_wire;
pub use pair::{link_arrived, rcl_pair};
pub use reduce::reduce_heard;
pub use rumour::rumour_heard;
pub use segment::{federation_heard, segment_heard};
pub use view::view_heard;
pub use wire::{wire_mml, wire_outer, wire_rcl};

/// Takes any bytes; panics when something is wrong.
pub type Target = fn(&[u8]);

/// All targets by name.
pub const ALL: [(&str, Target); 13] = [
    ("wire_outer", wire_outer),
    ("wire_rcl", wire_rcl),
    ("wire_mml", wire_mml),
    ("link_arrived", link_arrived),
    ("rcl_pair", rcl_pair),
    ("fault_rules", fault_rules),
    ("order_wire", order_wire),
    ("rumour_heard", rumour_heard),
    ("view_heard", view_heard),
    ("cast_heard", cast_heard),
    ("reduce_heard", reduce_heard),
    ("segment_heard", segment_heard),
    ("federation_heard", federation_heard),
];
