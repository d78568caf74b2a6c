//! The protocol machines of Phalanx, a folder each.

pub mod order;
