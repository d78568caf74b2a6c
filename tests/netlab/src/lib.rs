//! Networks on one machine, for tests and experiments: hosts, switches, multicast routers, and what befalls them.
//!
//! Each host, switch and router is a network namespace, so nothing of it touches the machine's network, and networks of tests that
//! run at the same time may use the same addresses.
//!
//! ```text
//!   host  eth0 ─── h0 ┐                     ┌ h2 ─── eth0  host
//!                     switch r0 ─── n0  router  n1 ─── r0 switch
//!   host  eth0 ─── h1 ┘                     └ h3 ─── eth0  host
//! ```
//!
//! | file | idea |
//! |---|---|
//! | `plan` | what a network looks like, and which way leads where |
//! | `network` | namespaces and cables: built, changed, removed |
//! | `router` | `smcrouted`, which takes multicast across, as far as its TTL reaches |
//! | `fault` | what is lost on the way |
//! | `plumbing` | `ip`, `nft`, and what is left of processes that were killed |

mod fault;
mod network;
mod plan;
mod plumbing;
mod router;

pub use network::Network;
pub use plan::{HOSTS_MAX, NETWORKS_MAX, Plan, ROUTERS_MAX};
pub use plumbing::{Error, NAMES, inside, obey, on, sweep};
pub use router::{GROUPS, GROUPS_V6};
