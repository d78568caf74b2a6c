//! What must hold of the manager, whatever befalls it.
//!
//! | checker | promises |
//! |---|---|
//! | [`Voices`] | no command is carried out that fewer replicas decided than make a majority |
//! | [`Lives`] | no rank lives twice |
//! | [`Agreement`] | replicas that nobody harmed have the same after each entry, and there is one group for each epoch |
//! | [`Jobs`] | after healing there is one whole group again, all that was asked is answered, each job that was taken is over and known, and nothing of any is left |

mod agreement;
mod jobs;
mod lives;
mod voices;

pub use agreement::Agreement;
pub(crate) use jobs::whole;
pub use jobs::{Jobs, JobsTally};
pub use lives::Lives;
pub use voices::Voices;

use crate::member::Member;
use crate::sim::Sim;
use phalanx_protocol::member::Engine;
use std::sync::{Arc, Mutex};

/// Puts all checkers in place, and says where jobs are counted.
pub fn register<E: Engine + Send>(sim: &mut Sim<Member<E>>) -> Arc<Mutex<JobsTally>> {
    let jobs = Jobs::default();
    let tally = jobs.tally();
    sim.check(Voices::default());
    sim.check(Lives::default());
    sim.check(Agreement::default());
    sim.check(jobs);
    tally
}
