//! Zone membership in the simulator: boot, churn, hierarchy, a million nodes (002 §5, Figs. 2 and 3), beside the baselines
//! of 003 (BL-2) at the sizes that they can bear; and the robustness recipes of others.
//!
//! One-way delay 0.5 ms. Each figure comes from whole nodes, link and engine, and from real letters; what a run finds
//! depends on its seed alone, never on the machine.

pub(crate) mod attributes;
pub(crate) mod boot;
pub(crate) mod churn;
pub(crate) mod hierarchy;
pub(crate) mod million;
pub(crate) mod recipes;

use crate::error::Error;
use phalanx_core::{Duration, Group, Instant};
use phalanx_protocol::baselines::{AllToAllConfig, GossipConfig};
use phalanx_protocol::member::{Engine, Slot};
use phalanx_protocol::zone::{Config, MONITOR, Zone};
use phalanx_sim::member::{self, Command, Member, Note, Options, Telling};
use phalanx_sim::{Fault, Latency, Network, NetworkError, NodeFault, Setup, Sim};

/// One way.
const DELAY_US: f64 = 500.0;
/// Views are looked at so often while a cluster boots.
const LOOK: Duration = Duration::from_millis(10);
/// No cluster boots longer.
const BOOT: Duration = Duration::from_secs(30);
/// After boot a cluster comes to rest.
const REST: Duration = Duration::from_secs(5);
/// Idle bytes are counted for so long; those of a baseline, which is never idle, for less.
const IDLE: Duration = Duration::from_secs(60);
const IDLE_BASELINE: Duration = Duration::from_secs(10);

/// What a cluster runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Runs {
    Zone,
    AllToAll,
    Gossip,
}

/// An engine in a profile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub(crate) runs: Runs,
    pub(crate) profile: &'static str,
    /// No larger clusters: all-to-all costs n² events each period, and so do lists that name everybody.
    pub(crate) largest: u32,
    /// By then all know what happened.
    pub(crate) patience: Duration,
}

const fn candidate(runs: Runs, profile: &'static str, largest: u32, patience_s: u64) -> Candidate {
    Candidate { runs, profile, largest, patience: Duration::from_secs(patience_s) }
}

/// All that are compared.
pub(crate) const CANDIDATES: [Candidate; 6] = [
    candidate(Runs::Zone, "paper", 2048, 10),
    candidate(Runs::Zone, "lan", 2048, 10),
    candidate(Runs::AllToAll, "paper", 256, 10),
    candidate(Runs::AllToAll, "lan", 128, 5),
    candidate(Runs::Gossip, "paper", 256, 80),
    candidate(Runs::Gossip, "lan", 128, 10),
];

/// The product's own engine as it is meant to run.
pub(crate) const LAN: Candidate = CANDIDATES[1];

impl Candidate {
    pub(crate) const fn engine(&self) -> &'static str {
        match self.runs {
            Runs::Zone => "zone",
            Runs::AllToAll => "all-to-all",
            Runs::Gossip => "gossip",
        }
    }

    pub(crate) fn is(&self, runs: Runs, profile: &str) -> bool {
        self.runs == runs && self.profile == profile
    }

    /// The zone's parameters.
    pub(crate) fn config(&self) -> Config {
        if self.profile == "paper" { Config::paper() } else { Config::lan() }
    }

    /// A cluster, booted and at rest.
    pub(crate) fn boot(&self, nodes: u32, seed: u64) -> Result<Box<dyn Booted>, Error> {
        let (setup, options) = self.cluster_of(nodes, seed);
        Ok(match self.runs {
            Runs::Zone => Box::new(self.boot_zone(nodes, seed)?),
            Runs::AllToAll => {
                Box::new(booted(member::build_all_to_all(&setup, &options, self.all_to_all()), nodes, self)?)
            }
            Runs::Gossip => Box::new(booted(member::build_gossip(&setup, &options, self.gossip()), nodes, self)?),
        })
    }

    /// BL-1: a baseline's parameters.
    pub(crate) fn all_to_all(&self) -> AllToAllConfig {
        let group = Some(Group { number: 1, ttl: 1 });
        if self.profile == "paper" { AllToAllConfig::paper(group) } else { AllToAllConfig::lan(group) }
    }

    /// BL-1: a baseline's parameters.
    pub(crate) fn gossip(&self) -> GossipConfig {
        if self.profile == "paper" { GossipConfig::paper() } else { GossipConfig::lan() }
    }

    /// A zone, booted and at rest.
    pub(crate) fn boot_zone(&self, nodes: u32, seed: u64) -> Result<Cluster<Zone>, Error> {
        let (setup, options) = self.cluster_of(nodes, seed);
        booted(member::build(&setup, &options), nodes, self)
    }

    fn cluster_of(&self, nodes: u32, seed: u64) -> (Setup, Options) {
        let network = Network { latency: Latency::Fixed { us: DELAY_US }, ..Network::default() };
        let setup = Setup { nodes, seed, network, ..Setup::default() };
        (setup, Options { profile: self.config(), by_reference: true, ..Options::default() })
    }
}

fn booted<E: Engine + Send + 'static>(
    built: Result<(Sim<Member<E>>, Telling), NetworkError>,
    nodes: u32,
    candidate: &Candidate,
) -> Result<Cluster<E>, Error> {
    let idle = if candidate.runs == Runs::Zone { IDLE } else { IDLE_BASELINE };
    Ok(Cluster { idle, ..booted_within(built, nodes, LOOK, candidate.patience)? })
}

/// A cluster of any engine, booted and at rest, looked at each `look` until then: to look takes as long as members squared. All of it know of what
/// happens within `patience`.
pub(crate) fn booted_within<E: Engine + Send + 'static>(
    built: Result<(Sim<Member<E>>, Telling), NetworkError>,
    nodes: u32,
    look: Duration,
    patience: Duration,
) -> Result<Cluster<E>, Error> {
    let (mut sim, telling) = built.map_err(Error::peer("phalanx-sim"))?;
    let boot = member::boot(&mut sim, nodes as usize, look, BOOT).took;
    sim.run_for(REST);
    Ok(Cluster { sim, nodes, telling, boot, idle: IDLE_BASELINE, patience })
}

/// How far a run's own time is.
fn seconds(sim: &Sim<Member<Zone>>) -> f64 {
    sim.now().since(Instant::ZERO).as_secs_f64()
}

/// A cluster that has booted, whatever its engine.
pub(crate) trait Booted {
    /// From the start until all views were full.
    fn boot_s(&self) -> Option<f64>;
    /// Nothing happens: IP bytes that a node sends in a second, and members that left all the same.
    fn idle(&mut self) -> (f64, usize);
    /// Something befalls `simultaneous` members at once, not the first, which is the high-priority monitor.
    fn suffer(&mut self, what: Befalls, simultaneous: u32) -> Known;
    /// True when the members that live see exactly each other.
    fn agrees(&self) -> bool;
}

/// One zone, or one cluster of a baseline.
pub(crate) struct Cluster<E: Engine + Send + 'static> {
    sim: Sim<Member<E>>,
    nodes: u32,
    telling: Telling,
    boot: Option<Duration>,
    idle: Duration,
    patience: Duration,
}

/// What befalls members.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Befalls {
    /// The process dies: its host says so.
    Crash,
    /// The host dies: silence.
    Silent,
    /// They start again, after a crash that all know of.
    Join,
}

impl Befalls {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Crash => "crash",
            Self::Silent => "silent",
            Self::Join => "join",
        }
    }
}

/// Who knew when.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Known {
    pub(crate) first_ms: Option<f64>,
    pub(crate) last_ms: Option<f64>,
    pub(crate) hpm_ms: Option<f64>,
    /// Members that left though nothing befell them, counted at each observer.
    pub(crate) false_positives: usize,
    /// IP bytes that a node sent in a second, from what befell them until nobody waited any longer.
    pub(crate) bytes_per_node_s: f64,
}

impl<E: Engine + Send> Booted for Cluster<E> {
    fn boot_s(&self) -> Option<f64> {
        self.boot.map(Duration::as_secs_f64)
    }

    fn idle(&mut self) -> (f64, usize) {
        let before = self.sent();
        self.sim.keep_notes();
        self.telling.set(true);
        self.sim.run_for(self.idle);
        self.telling.set(false);
        let left = self.sim.notes().iter().filter(|n| matches!(n.2, Note::Left { .. })).count();
        (self.rate(before, self.idle), left)
    }

    fn suffer(&mut self, what: Befalls, simultaneous: u32) -> Known {
        let monitor = 0;
        self.sim.command(monitor, Command::Set(MONITOR.into(), Some(b"1".to_vec())));
        self.sim.run_for(REST);
        // Spread over the zone: neighbours by number are no neighbours on the ring.
        let step = (self.nodes - 1) / simultaneous;
        let victims: Vec<u32> = (0..simultaneous).map(|i| 1 + i * step).collect();
        self.befall(what, &victims, monitor)
    }

    fn agrees(&self) -> bool {
        let live: Vec<u32> = self.sim.cluster().processes().map(|(n, _)| n).collect();
        self.sim.cluster().processes().all(|(_, m)| {
            let engine = m.engine();
            engine.len() == live.len() && live.iter().all(|&n| engine.version(Slot(n)).is_some())
        })
    }
}

impl<E: Engine + Send> Cluster<E> {
    /// The run, to be looked at.
    pub(crate) fn sim(&self) -> &Sim<Member<E>> {
        &self.sim
    }

    /// Nothing happens for so long: IP bytes that all nodes hear in a second.
    pub(crate) fn heard(&mut self, during: Duration) -> f64 {
        let all = |sim: &Sim<Member<E>>| (0..self.nodes).map(|n| sim.bytes(n).1).sum::<u64>();
        let before = all(&self.sim);
        self.sim.run_for(during);
        (all(&self.sim) - before) as f64 / during.as_secs_f64()
    }

    /// Something befalls these, in the order of their numbers, at once.
    pub(crate) fn befall(&mut self, what: Befalls, victims: &[u32], monitor: u32) -> Known {
        let kind = if what == Befalls::Silent { NodeFault::CrashHost } else { NodeFault::CrashProcess };
        if what == Befalls::Join {
            for &v in victims {
                self.sim.fault(Fault::Node(v, kind));
            }
            self.sim.run_for(self.patience);
        }
        self.sim.keep_notes();
        self.telling.set(true);
        let (at, before) = (self.sim.now(), self.sent());
        for &v in victims {
            self.sim.fault(Fault::Node(v, if what == Befalls::Join { NodeFault::Restart } else { kind }));
        }
        self.sim.run_for(self.patience);
        self.telling.set(false);
        let bytes_per_node_s = self.rate(before, self.patience);
        Known { bytes_per_node_s, ..self.known(at, what, victims, monitor) }
    }

    /// IP bytes that all nodes sent so far.
    fn sent(&self) -> u64 {
        (0..self.nodes).map(|n| self.sim.bytes(n).0).sum()
    }

    /// Of all that was sent since it was `before`, what one node sent in a second.
    fn rate(&self, before: u64, during: Duration) -> f64 {
        (self.sent() - before) as f64 / during.as_secs_f64() / f64::from(self.nodes)
    }

    fn known(&self, at: Instant, what: Befalls, victims: &[u32], monitor: u32) -> Known {
        let mut known = Known::default();
        let mut counts = vec![0usize; self.nodes as usize];
        // Others may have died before.
        let live = self.sim.cluster();
        let survivors = live.processes().filter(|(n, _)| victims.binary_search(n).is_err()).count();
        let mut told = 0;
        for &(when, observer, note) in self.sim.notes().iter().filter(|n| n.0 >= at) {
            let (about, joined) = match note {
                Note::Joined { node, .. } => (node, true),
                Note::Left { node, .. } => (node, false),
                _ => continue,
            };
            let hit = victims.binary_search(&about).is_ok();
            known.false_positives += usize::from(!joined && !hit);
            if !hit || joined != (what == Befalls::Join) || victims.binary_search(&observer).is_ok() {
                continue;
            }
            let ms = when.since(at).as_secs_f64() * 1e3;
            let count = &mut counts[observer as usize];
            *count += 1;
            known.first_ms = known.first_ms.or(Some(ms));
            if *count == victims.len() {
                told += 1;
                known.last_ms = Some(ms);
                if observer == monitor {
                    known.hpm_ms = Some(ms);
                }
            }
        }
        known.last_ms = known.last_ms.filter(|_| told == survivors);
        known
    }
}
