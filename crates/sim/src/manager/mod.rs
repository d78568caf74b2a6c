//! The manager in the simulator: what members do beside their zone when they run stewards, and the shepherds on their machines.
//!
//! CM-1 to CM-5. A member with an [`Office`](office) runs the very steward that a daemon runs, over its link and its disk, and is told by its zone
//! who is there. Shepherds and ranks are a model (`phalanx_protocol::manager::flock`): they belong to the machine, and outlive the member's
//! process. What a job's view would find out about fallen shepherds, the run tells those who share a job with them ([`Command::Bereave`]).
//!
//! | file | idea |
//! |---|---|
//! | `office` | a member's steward, what its disk keeps, its shepherds |
//! | [`checks`] | what must hold of all of it |
//! | [`crowd`] | very many stewards alone, and a job on all of them |
//! | `effects` | what faults did to it, counted |

pub mod checks;
pub mod crowd;
mod effects;
mod office;
#[cfg(test)]
mod tests;

pub use effects::effects;
pub(crate) use office::{Deed, Office};
pub use office::{SLOTS, Spoil};

use phalanx_core::{Duration, Instant};
use phalanx_protocol::manager::flock::Flock;
use phalanx_protocol::manager::steward::RELAY_MIN;
use phalanx_protocol::manager::words::{At, Attempt, JobId, Key};
use phalanx_protocol::order;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How members run the manager.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// So many nodes found the first group; all when absent.
    pub expect: Option<u32>,
    /// Ranks that each node takes.
    pub slots: u32,
    /// The mean time between two things that somebody at a node asks for; nobody asks when zero.
    pub asks: Duration,
    /// Some jobs may have more ranks than there are slots.
    pub oversubscribe: bool,
    /// A word for so many nodes or more is handed on by them.
    pub relay: usize,
    /// Times and bounds of the order.
    pub order: order::Config,
    /// What is wrong with it, to see that it is noticed.
    pub spoil: Option<Spoil>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            expect: None,
            slots: 4,
            asks: Duration::from_secs(60),
            oversubscribe: false,
            relay: RELAY_MIN,
            order: order::Config::default(),
            spoil: None,
        }
    }
}

/// What offices say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// A replica has applied an entry, and stands here then.
    Applied {
        /// In which epoch.
        epoch: u32,
        /// Which entry.
        index: u64,
        /// What it has then.
        digest: u64,
        /// Its memory was made bad since it began.
        corrupt: bool,
    },
    /// A replica decided to say a word of this digest.
    Decided(u64),
    /// An agent carried out a word of this digest, and takes so many voices for enough.
    CarriedOut {
        /// The digest.
        word: u64,
        /// A majority of the group that it knows.
        majority: u32,
    },
    /// The group, as a node knows it.
    Group {
        /// Which composition.
        epoch: u32,
        /// Who is in it.
        digest: u64,
        /// The memory of the replica there was made bad.
        corrupt: bool,
    },
    /// A rank lives here from now on.
    Started {
        /// Of which start of which job.
        attempt: Attempt,
        /// Which.
        rank: u32,
        /// 0, or which respawn.
        life: u32,
        /// Not longer than this.
        until: Instant,
    },
    /// It lives no more.
    Ended {
        /// Of which start of which job.
        attempt: Attempt,
        /// Which.
        rank: u32,
    },
    /// All ranks here may live until then.
    Leased(Instant),
    /// Somebody here wants a job.
    Asked,
    /// It was taken.
    Taken(JobId),
    /// It was refused.
    Refused,
    /// A shepherd here was told what makes no sense.
    Wrong,
    /// The replica here lies from now on, or its memory is bad.
    Harmed,
}

/// What offices are asked to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Command {
    /// All shepherds here die, and their ranks.
    KillShepherds,
    /// The replica here tells agents what was not decided.
    Lie,
    /// The replica's memory goes bad, somewhere.
    Corrupt(u64),
    /// Views go on without the ranks of that node.
    Bereave {
        /// The node.
        node: u32,
        /// They are dead for sure.
        proven: bool,
    },
    /// Nobody asks for anything any more, nothing fails any more, and no node is drained.
    Rest,
}

/// What all offices of a run share.
pub(crate) struct Common {
    pub(super) options: Options,
    pub(super) keys: Vec<Key>,
    machines: Vec<Mutex<Machine>>,
}

/// What outlives a member's process.
pub(super) struct Machine {
    /// Which start of its host this is.
    host: u16,
    pub(super) flock: Flock,
    /// Its replica has a bad memory, also when it starts again from disk.
    pub(super) corrupt: bool,
    /// Its replica lies to agents.
    pub(super) lies: bool,
}

impl Common {
    pub(crate) fn new(options: &Options, keys: Vec<Key>) -> Arc<Self> {
        let without = options.spoil == Some(Spoil::NoLeases);
        let machine = |(&key, n)| {
            let flock = Flock::new(key, At::Local(n)).without_leases(without);
            Mutex::new(Machine { host: 0, flock, corrupt: false, lies: false })
        };
        let machines = keys.iter().zip(0..).map(machine).collect();
        Arc::new(Self { options: options.clone(), keys, machines })
    }

    /// The machine of a node, in this start of its host: the first to ask in a new one finds nothing there.
    pub(super) fn machine(&self, node: u32, host: u16) -> MutexGuard<'_, Machine> {
        let mut machine = self.machines[node as usize].lock().unwrap_or_else(PoisonError::into_inner);
        if machine.host != host {
            (machine.host, machine.flock) = (host, machine.flock.anew());
        }
        machine
    }
}
