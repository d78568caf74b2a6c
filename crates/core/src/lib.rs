//! The ground of Phalanx: time, identities, the contract of machines, buffers, and collections with a bound.
//!
//! Nothing here reads a clock, opens a socket, starts a thread or draws a random number of its own. Each
//! protocol is a [`Machine`]: facts go in, decisions come out through a [`Sink`] that belongs to the driver.
//! The daemon, the simulator, the model checker and the fuzzers drive the very same code.

pub mod bounded;
pub mod buf;
pub mod code;
pub mod fetch;
pub mod id;
pub mod machine;
pub mod rng;
pub mod shared;
pub mod sorted;
pub mod time;
pub mod timer;

pub use bounded::{Ring, Slab};
pub use buf::{Buf, Payload, Snapshot};
pub use code::Code;
pub use id::{Addr, Boot, Endpoint, Group, Identity, NodeId, Port};
pub use machine::{Each, Fingerprint, Machine, Sink};
pub use rng::Rng;
pub use shared::Shared;
pub use sorted::Sorted;
pub use time::{Duration, Instant, ParseDurationError};
pub use timer::Deadlines;
