//! What must hold of the members of a zone, whatever befalls them.
//!
//! | checker | promises |
//! |---|---|
//! | [`Events`] | Joined and Left alternate for each pair of observer and member; no version comes back that was removed, no incarnation after a newer one, none that never started |
//! | [`Accuracy`] | no healthy member is evicted by a healthy one; evictions are counted as Lifeguard counts them |
//! | [`Views`] | after healing each live member's view is exactly the live members, in their newest versions: equality and completeness |
//! | [`Overlay`] | after healing the overlay is symmetric, connected, of bounded degree, and of diameter ≤ log N + 2 |
//! | [`Hierarchy`] | the same for each of several zones, and each census counts everybody once |
//! | [`Bounds`] | tables keep within their bounds; H ∩ View = ∅ |
//!
//! Most checkers see one zone; [`register`] puts them in place.

mod accuracy;
mod bounds;
mod events;
mod overlay;
mod views;
mod zones;

pub use accuracy::{Accuracy, Tally};
pub use bounds::Bounds;
pub use events::Events;
pub use overlay::Overlay;
pub use views::{Views, wrong_view};
pub use zones::{Hierarchy, wrong_zone};

use super::Member;
use crate::sim::Sim;
use phalanx_protocol::zone::{Config, Zone};
use std::sync::Arc;

/// Puts all checkers in place, and says where evictions are counted. Members must tell from the start.
pub fn register(sim: &mut Sim<Member<Zone>>, nodes: u32, profile: &Config) -> Arc<Tally> {
    let accuracy = Accuracy::new(nodes, profile.probes);
    let tally = accuracy.tally();
    sim.check(Events::default());
    sim.check(accuracy);
    // ⚠ The paper's profile takes each broken link for a death, also one that a living neighbour let go of: under faults
    // its members go on removing each other, and only what must never happen is checked.
    if !profile.probes {
        return tally;
    }
    sim.check(Views);
    sim.check(Overlay::new(profile));
    sim.check(Bounds::new(profile));
    tally
}
