//! tmp
pub mod rcl;
mod replay;
pub mod seal;
