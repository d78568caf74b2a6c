//! Zone membership.

pub mod pace;
