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
//! | [`Attributes`] | what is read of a source comes in the order of its writes; after healing all have its last ones |
//! | [`Casts`] | casts come once, in order, to all who are there; after healing all have a place in the tree, and casts have settled |
//! | [`Census`] | after healing each supervisor knows of all zones and how many live in each |
//!
//! Most checkers see one zone; [`register`] puts them in place for zones, [`register_baseline`] those that mean something for other
//! engines.

mod accuracy;
mod attributes;
mod bounds;
mod casts;
mod census;
mod events;
mod overlay;
mod views;
mod zones;

pub use accuracy::{Accuracy, Tally};
pub use attributes::{Attributes, Order};
pub use bounds::Bounds;
pub use casts::{CastTally, Casts, SharedTally};
pub use census::Census;
pub use events::Events;
pub use overlay::Overlay;
pub use views::{Views, wrong_view};
pub use zones::{Hierarchy, wrong_zone};

use super::{Layout, Member, Options};
use crate::sim::Sim;
use phalanx_protocol::member::Engine;
use phalanx_protocol::zone::Zone;
use std::sync::Arc;

/// Puts all checkers in place, and says where evictions are counted. Members must tell from the start.
pub fn register(sim: &mut Sim<Member<Zone>>, nodes: u32, options: &Options) -> Arc<Tally> {
    let profile = &options.profile;
    // Packets that are spoilt everywhere, as swarms of managers have it, make nobody faulty.
    let strict = profile.probes && options.manager.is_none();
    let accuracy = Accuracy::new(nodes, strict).in_zones(Layout::new(nodes, options));
    let tally = accuracy.tally();
    sim.check(Events::default());
    sim.check(accuracy);
    // ⚠ The paper's profile takes each broken link for a death, also one that a living neighbour let go of: under faults
    // its members go on removing each other, and only what must never happen is checked.
    sim.check(Attributes::new(Order::Source, profile.probes));
    if !profile.probes {
        return tally;
    }
    sim.check(Views);
    sim.check(Overlay::new(profile));
    sim.check(Bounds::new(profile));
    if options.supervisors > 0 {
        sim.check(Census);
    }
    tally
}

/// The same for a baseline: evictions of healthy members are counted only, because it promises nothing there.
pub fn register_baseline<E: Engine + Send>(sim: &mut Sim<Member<E>>, nodes: u32, options: &Options) -> Arc<Tally> {
    let accuracy = Accuracy::new(nodes, false).in_zones(Layout::new(nodes, options));
    let tally = accuracy.tally();
    sim.check(Events::forgetful());
    sim.check(accuracy);
    sim.check(Attributes::new(Order::Key, true));
    sim.check(Views);
    tally
}
