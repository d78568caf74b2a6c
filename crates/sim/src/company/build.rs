//! The hosts of a job: what all of them know, and how they start.

use super::Host;
use crate::network::NetworkError;
use crate::sim::{Setup, Sim};
use crate::station::Seals;
use phalanx_core::rng::mix;
use phalanx_core::{Addr, Duration, Rng};
use phalanx_protocol::link::seal::KeyRing;
use phalanx_protocol::link::sign::Signer;
use phalanx_protocol::link::{self, LARGEST_DATAGRAM};
use phalanx_protocol::view::{Config, Person, Task, View};
use std::sync::Arc;

/// How a job is built.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// The host of each task.
    pub places: Vec<u32>,
    /// Children of each task.
    pub arity: u32,
    /// The job begins with task 0, and all others knock. Otherwise everybody begins with the same view.
    pub founded: bool,
    /// How views are kept.
    pub view: Config,
    /// Who was excluded or refused knocks again after so long, and tasks that died alone start again.
    pub rejoin: Duration,
    /// The mean time between two messages of a host; none when zero.
    pub talk: Duration,
    /// FI-6: roots that die in their waves.
    pub chain: Option<Chain>,
    /// Crashes that would leave no majority of the newest view do not come.
    pub keep_majority: bool,
    /// The links' cryptography.
    pub seals: Seals,
    /// The links' limits.
    pub link: link::Config,
    /// The largest datagram.
    pub largest: u16,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            places: vec![0],
            arity: 2,
            founded: false,
            view: Config::default(),
            rejoin: Duration::from_secs(1),
            talk: Duration::from_millis(100),
            chain: None,
            keep_majority: false,
            seals: Seals::Fake,
            link: link::Config::default(),
            largest: LARGEST_DATAGRAM,
        }
    }
}

/// RV-3, RV-4, FI-6: the hosts of roots die one after the other, each while it leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chain {
    /// After so many waves of the run.
    pub after: u32,
    /// So many.
    pub deaths: u32,
    /// When in the wave.
    pub moment: Moment,
    /// The whole host, in silence; otherwise its process.
    pub host: bool,
}

/// A moment of a wave.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Moment {
    /// The first notice has left.
    Begun,
    /// All answers are there, and the last notice has left.
    Settled,
    /// The first one beside the root has the new view.
    Installed,
}

impl Moment {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Begun, Self::Settled, Self::Installed];

    /// As scenarios write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Begun => "begun",
            Self::Settled => "settled",
            Self::Installed => "installed",
        }
    }
}

/// What all hosts of a run share.
pub(crate) struct Shared {
    pub(super) options: Options,
    pub(super) job: u64,
    /// RV-1: the view that everybody begins with.
    pub(super) first: View,
    pub(super) link: Arc<link::Config>,
    pub(super) ring: Arc<KeyRing>,
    seed: u64,
}

impl Shared {
    /// The tasks that begin on a host.
    pub(super) fn tasks_of(&self, node: u32) -> Vec<Task> {
        let places = self.options.places.iter().enumerate();
        places.filter(|(_, host)| **host == node).map(|(task, _)| Task(task as u32)).collect()
    }

    /// The seat that a task has at the first start of its host.
    pub(super) fn seat_of(&self, task: Task) -> u32 {
        seat_of(&self.options.places, task)
    }

    pub(super) fn signer(&self, node: u32) -> Signer {
        let seed = mix(self.seed ^ mix(u64::from(node) + 1));
        match self.options.seals {
            Seals::Fake => Signer::fake(seed),
            Seals::Real => {
                let mut random = [0; 32];
                Rng::new(seed, 0).fill(&mut random);
                Signer::generate(&random)
            }
        }
    }
}

fn seat_of(places: &[u32], task: Task) -> u32 {
    let host = places[task.0 as usize];
    let before = places[..task.0 as usize].iter().filter(|&&h| h == host).count();
    (1 << super::SEATS) + before as u32
}

/// The hosts of a job, without checkers.
///
/// # Errors
/// When setup makes no sense.
///
/// # Panics
/// When there are no tasks, or the arity is no power of two.
pub fn build(setup: &Setup, options: &Options) -> Result<Sim<Host>, NetworkError> {
    let person = |(task, &host): (usize, &u32)| {
        let boot = seat_of(&options.places, Task(task as u32));
        Person { host: Addr::Local(host), boot, stint: 0 }
    };
    let people = options.places.iter().enumerate().map(person);
    let mut key = [0; 32];
    Rng::new(setup.seed, u64::MAX - 1).fill(&mut key);
    let ring = match options.seals {
        Seals::Fake => KeyRing::fake(1, setup.seed),
        Seals::Real => KeyRing::new(1, key),
    };
    let shared = Arc::new(Shared {
        first: View::first(options.arity, people).expect("a job of a good size and arity"),
        job: mix(setup.seed),
        link: Arc::new(options.link.clone()),
        ring: Arc::new(ring),
        seed: setup.seed,
        options: options.clone(),
    });
    Sim::new(setup, move |birth| Host::new(&shared, birth))
}
