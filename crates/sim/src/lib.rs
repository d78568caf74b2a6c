//! The simulator: virtual time, a network with models and faults, and checkers, for three nodes or a million.
//!
//! A [`Process`] runs on each node, driven by events in one fixed order (time, causer, the causer's own count): the
//! same seed gives the same run, to the byte, in each process and on any number of threads. [`Network`] says what
//! lies between the nodes, [`Fault`] what befalls them, [`Checker`] what must hold while it does and after.
//!
//! | file | idea |
//! |---|---|
//! | [`queue`], `calendar` | pending events, in one order |
//! | `process` | what runs on a node, and what it may ask for |
//! | `network`, `latency`, `topology`, `partition` | what lies between nodes |
//! | `event`, `node`, `io`, `shard` | events, and what they do to nodes |
//! | `fault`, `befall`, `disk` | what goes wrong |
//! | `sim`, `director`, `barrier` | windows, and what happens between them |
//! | `check`, `stats` | what must hold, and what was counted |
//! | [`task`] | tasks of a job: the view machine alone |
//! | [`company`] | the same on hosts, with links and everything that goes wrong |
//! | [`member`], [`manager`] | whole nodes of any membership engine; and those with stewards |
//! | [`race`], [`heartbeat`] | the engine's speed, for the lab |
//!
//! ```
//! use phalanx_core::{Addr, Buf, Duration, Instant};
//! use phalanx_sim::{Ctx, Fault, Process, Setup, Sim};
//!
//! /// Says hello to the next node at each start.
//! struct Greeter;
//!
//! impl Process for Greeter {
//!     type Command = ();
//!     type Note = Addr;
//!     fn start(&mut self, _: Instant, net: &mut Ctx<'_, Self>) {
//!         let next = (net.node() + 1) % net.nodes();
//!         net.send(Addr::Local(next), Buf::copy_of(b"hello"));
//!     }
//!     fn arrived(&mut self, _: Instant, from: Addr, _: Buf, net: &mut Ctx<'_, Self>) {
//!         net.note(from);
//!     }
//!     fn expire(&mut self, _: Instant, _: &mut Ctx<'_, Self>) {}
//!     fn deadline(&self) -> Instant {
//!         Instant::NEVER
//!     }
//! }
//!
//! let mut sim = Sim::new(&Setup { nodes: 3, ..Setup::default() }, |_| Greeter)?;
//! sim.keep_notes();
//! sim.fault_at(Instant::ZERO + Duration::from_millis(5), Fault::restart(0));
//! sim.run_for(Duration::from_secs(1));
//! assert_eq!(sim.notes().len(), 4);
//! # Ok::<(), phalanx_sim::NetworkError>(())
//! ```

mod barrier;
mod befall;
mod calendar;
mod check;
pub mod company;
mod director;
mod disk;
mod event;
mod fault;
pub mod heartbeat;
mod io;
mod latency;
pub mod manager;
pub mod member;
mod network;
mod node;
mod partition;
mod process;
pub mod queue;
pub mod race;
pub mod scenario;
mod shard;
mod sim;
pub mod station;
mod stats;
pub mod task;
mod topology;

pub use check::{Checker, Cluster, Report, Verdict, Violation};
pub use disk::{Disk, DiskFault};
pub use fault::{Fault, NodeFault};
pub use latency::Latency;
pub use network::{Link, Network, NetworkError, Switch, Weather};
pub use node::State;
pub use partition::{NodeSet, Partition};
pub use process::{Ctx, Process, StreamEvent};
pub use sim::{Birth, Factory, Setup, Sim};
pub use stats::{Drop, HEADERS, Stats};
pub use topology::{Routers, Shape, Topology};
