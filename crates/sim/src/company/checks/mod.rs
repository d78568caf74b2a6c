//! What must hold of the tasks of a job, whatever befalls them.
//!
//! | checker | promises |
//! |---|---|
//! | [`Views`] | no two memberships under one name; self inclusion; where a majority decides, one chain of views, each made of the one before it; who was excluded or left is in no later view |
//! | [`Messages`] | RV-7: what is delivered was sent, to that task, in the view that both are in, and once |
//! | [`Settled`] | after healing the living tasks, and nobody else, share one view |
//! | [`Ambush`] | nothing: it kills roots in their waves |
//! | [`Guard`] | nothing: it knows who may be killed |

mod ambush;
mod guard;
mod messages;
mod settled;
mod views;

pub use ambush::Ambush;
pub use guard::Guard;
pub use messages::Messages;
pub use settled::{Excuses, Settled};
pub use views::Views;

use super::{Host, Options};
use crate::sim::Sim;
use phalanx_protocol::view::OnPartition;
use std::sync::Arc;

/// Puts all checkers in place, and says where excuses are counted, and whom to ask before somebody is killed.
pub fn register(sim: &mut Sim<Host>, options: &Options) -> (Arc<Excuses>, Option<Guard>) {
    let settled = Settled::default();
    let excuses = settled.excuses();
    sim.check(Views::new(options.view.on_partition != OnPartition::Continue));
    sim.check(Messages::default());
    sim.check(settled);
    let guard = options.keep_majority.then(Guard::default);
    if let Some(guard) = &guard {
        sim.check(guard.clone());
    }
    if let Some(chain) = options.chain {
        sim.check(Ambush::new(chain, guard.clone()));
    }
    (excuses, guard)
}
