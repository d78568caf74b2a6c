//! What the papers' tests share: worlds to run in, parties that remember, and a stranger on the path.
//!
//! The tests themselves lie in `tests/`, named by the items of the papers. They run whole hosts on real platforms;
//! a machine alone is tested beside its code.

pub mod party;
pub mod relay;
pub mod world;

pub use party::{Party, Said, until, until_with, while_quiet};
pub use relay::{Relay, Side};
pub use world::{Lasting, OverTcp, OverThreads, OverUdp, World};
