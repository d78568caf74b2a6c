//! Zone membership.

pub mod attributes;
pub mod pace;
