//! What touches the real world: sockets, the clock, the event loop.
//!
//! Everything above speaks to a [`Platform`] (CL-1): UDP, TCP, threads of one process, or a simulated network.
//! Nothing above changes when the platform does (CL-4); the [`conformance`] suite holds each of them to that.

pub mod agent;
pub mod clock;
pub mod config;
#[cfg(any(test, feature = "conformance"))]
pub mod conformance;
pub mod control;
pub mod driver;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod fleet;
pub mod host;
pub mod jobs;
mod outbox;
pub mod places;
pub mod platform;
pub mod seating;
pub mod seeds;
pub mod shepherd;
pub mod store;
pub mod wires;

/// Of this build.
pub const VERSION: &str = if phalanx_wire::tomorrow::ON {
    concat!(env!("CARGO_PKG_VERSION"), "+tomorrow")
} else {
    env!("CARGO_PKG_VERSION")
};

pub use clock::Clock;
pub use driver::Driver;
pub use host::Host;
pub use platform::in_process::{Hub, InProcess};
pub use platform::tcp::Tcp;
pub use platform::udp::Udp;
pub use platform::{Platform, Waker, Woke};
