//! The manager in the simulator.

pub(crate) mod faults;
