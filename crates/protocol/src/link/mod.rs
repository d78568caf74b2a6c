//! tmp
pub mod mml;
pub mod rcl;
mod replay;
pub mod seal;
pub mod sign;
