//! Zone membership.

pub mod pace;
mod view;
