//! What must hold of stations, whatever befalls them.
//!
//! | checker | promises |
//! |---|---|
//! | [`Messages`] | CL: intact, never doubled, never from a stranger. RCL: once, intact, in order for each pair of boots and session; lost only when the sender was told. MML: ACK once in order or reported undelivered, NACK in order or a reported gap, UNR at most once. After healing all that was sent arrives |
//! | [`Agreement`] | MM-3: one message for each index at all members, in one order, each once, in its origin's order; after healing everybody has everything |
//! | [`Quiet`] | after healing queues drain and links fall silent; tables stay within their bounds |
//!
//! All are O(1) for each note, but for the look-up of a pair.

mod agreement;
mod messages;
mod quiet;
mod stream;

pub use agreement::Agreement;
pub use messages::Messages;
pub use quiet::Quiet;

use super::Station;
use super::workload::Mixed;
use crate::sim::Sim;
use phalanx_protocol::link::Config;

/// Puts all checkers in place that concern these parts of a workload.
pub(super) fn register(sim: &mut Sim<Station>, parts: &Mixed, link: &Config) {
    sim.check(Messages::new(parts, link));
    sim.check(Quiet::new(parts));
    if parts.order.is_some() {
        sim.check(Agreement::default());
    }
}
