//! The protocol machines of Phalanx, a folder each. Only `node` knows its siblings.

pub mod link;
pub mod order;
