//! Clusters of stations: what they share, which checkers watch them, how a run ends.

use super::Station;
use super::checks;
use super::note::Command;
use super::workload::{Mixed, Workload, WorkloadError};
use crate::check::Report;
use crate::network::NetworkError;
use crate::sim::{Setup, Sim};
use phalanx_core::rng::mix;
use phalanx_core::{Addr, Duration, Identity, Rng};
use phalanx_protocol::link::Config;
use phalanx_protocol::link::seal::KeyRing;
use phalanx_protocol::link::sign::Signer;
use std::sync::Arc;
use thiserror::Error;

/// What kind of cryptography stations use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Seals {
    /// Cheap hashes: the same lengths and the same refusals.
    #[default]
    Fake,
    /// AES-256-GCM and Ed25519, as in the daemon.
    Real,
}

/// How stations are built.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// Their cryptography.
    pub seals: Seals,
    /// Snapshots travel by reference. The run is the same; only its speed changes.
    pub by_reference: bool,
    /// Stations tell checkers what they do. Without, nothing is checked and runs are faster.
    pub checked: bool,
    /// The links' limits.
    pub link: Config,
}

impl Default for Options {
    fn default() -> Self {
        Self { seals: Seals::Fake, by_reference: false, checked: true, link: Config::default() }
    }
}

/// Why a cluster cannot be built.
#[derive(Clone, PartialEq, Debug, Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The network makes no sense.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The workload makes no sense.
    #[error("workload: {0}")]
    Workload(#[from] WorkloadError),
}

/// What all stations of a run share.
pub(crate) struct Shared {
    pub(super) options: Options,
    pub(super) parts: Mixed,
    pub(super) nodes: u32,
    pub(super) config: Arc<Config>,
    pub(super) ring: Arc<KeyRing>,
    seed: u64,
    /// The beginning of each identity, with its node; sorted. Empty when nobody asks.
    directory: Vec<(u64, u32)>,
}

/// A cluster of stations that carry out `workload`, with all checkers in place unless `options` says otherwise.
///
/// # Errors
/// When setup or workload make no sense.
pub fn build(setup: &Setup, workload: &Workload, options: &Options) -> Result<Sim<Station>, BuildError> {
    workload.check()?;
    let mut config = options.link.clone();
    config.rcl.by_reference = options.by_reference;
    let mut key = [0; 32];
    Rng::new(setup.seed, u64::MAX - 1).fill(&mut key);
    let ring = match options.seals {
        Seals::Fake => KeyRing::fake(1, setup.seed),
        Seals::Real => KeyRing::new(1, key),
    };
    let mut shared = Shared {
        options: options.clone(),
        parts: workload.parts(),
        nodes: setup.nodes,
        config: Arc::new(config),
        ring: Arc::new(ring),
        seed: setup.seed,
        directory: Vec::new(),
    };
    if shared.needs_loads() {
        shared.directory = (0..setup.nodes).map(|n| (prefix(&shared.signer(n).identity()), n)).collect();
        shared.directory.sort_unstable();
    }
    let (parts, shared) = (shared.parts, Arc::new(shared));
    let mut sim = Sim::new(setup, move |birth| Station::new(&shared, birth))?;
    if options.checked {
        checks::register(&mut sim, &parts, &options.link);
    }
    Ok(sim)
}

/// Ends a run: heals everything, at both injection points, and starts the dead again; lets stations work for `last`,
/// then rest; and waits, at most for `bound`, until all that was promised came true.
pub fn finish(sim: &mut Sim<Station>, last: Duration, bound: Duration) -> Report {
    sim.heal(true);
    // The dead need a moment to start: they hear no command before.
    sim.run_for(Duration::from_millis(1));
    tell_all(sim, &Command::HealPlain);
    sim.run_for(last);
    tell_all(sim, &Command::Rest);
    sim.settle(bound)
}

fn tell_all(sim: &mut Sim<Station>, command: &Command) {
    let nodes: Vec<u32> = sim.cluster().processes().map(|(node, _)| node).collect();
    for node in nodes {
        sim.command(node, command.clone());
    }
}

impl Shared {
    /// The signer of a node: the same at each start.
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

    /// Who has that identity.
    pub(super) fn who(&self, identity: &Identity) -> Option<Addr> {
        if self.directory.is_empty() {
            return None;
        }
        let at = self.directory.binary_search_by_key(&prefix(identity), |d| d.0).ok()?;
        Some(Addr::Local(self.directory[at].1))
    }

    /// False when stations only beat and nobody checks: then they need not know whom they hear.
    pub(super) fn needs_loads(&self) -> bool {
        let Mixed { heartbeat, reliable, managed, order } = self.parts;
        self.options.checked
            || reliable.is_some()
            || managed.is_some()
            || order.is_some()
            || heartbeat.is_some_and(|h| h.tickets)
    }
}

fn prefix(identity: &Identity) -> u64 {
    identity.0.first_chunk().map_or(0, |c| u64::from_le_bytes(*c))
}
