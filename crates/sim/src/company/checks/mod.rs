//! What must hold of the tasks of a job, whatever befalls them.
//!
//! | checker | promises |
//! |---|---|
//! | [`Views`] | no two memberships under one name; self inclusion; where a majority decides, one chain of views, each made of the one before it; who was excluded or left is in no later view |
//! | [`Messages`] | RV-7: what is delivered was sent, to that task, in the view that both are in, and once |
//! | [`Settled`] | after healing the living tasks, and nobody else, share one view |
//! | [`Ambush`] | nothing: it kills roots in their waves |

mod ambush;
mod messages;
mod settled;
mod views;

pub use ambush::Ambush;
pub use messages::Messages;
pub use settled::{Excuses, Settled};
pub use views::Views;

use super::{Host, Options};
use crate::sim::Sim;
use phalanx_protocol::view::OnPartition;
use std::sync::Arc;

/// Puts all checkers in place, and says where excuses are counted.
pub fn register(sim: &mut Sim<Host>, options: &Options) -> Arc<Excuses> {
    let settled = Settled::default();
    let excuses = settled.excuses();
    sim.check(Views::new(options.view.on_partition != OnPartition::Continue));
    sim.check(Messages::default());
    sim.check(settled);
    if let Some(chain) = options.chain {
        sim.check(Ambush::new(chain));
    }
    excuses
}
