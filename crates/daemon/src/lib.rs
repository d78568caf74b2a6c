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
pub mod ledger;
mod outbox;
pub mod places;
pub mod platform;
pub mod seating;
pub mod seeds;
pub mod shepherd;
pub mod store;
pub mod wires;

/// Of this build.
#[must_use]
pub fn version() -> &'static str {
    if phalanx_wire::tomorrow::is_on() {
        concat!(env!("CARGO_PKG_VERSION"), "+tomorrow")
    } else {
        env!("CARGO_PKG_VERSION")
    }
}

/// The command is called so where it speaks as a later build may; in debug builds only.
const TOMORROW: &str = "phalanx-tomorrow";

/// Speaks as a later build may, when that is what the command is called.
pub fn speak_as_called() {
    let called = std::env::args_os().next().map(std::path::PathBuf::from);
    if called.is_some_and(|path| path.file_name().is_some_and(|name| name == TOMORROW)) {
        phalanx_wire::tomorrow::speak();
    }
}

pub use clock::Clock;
pub use driver::Driver;
pub use host::Host;
pub use platform::in_process::{Hub, InProcess};
pub use platform::tcp::Tcp;
pub use platform::udp::Udp;
pub use platform::{Platform, Waker, Woke};
