//! Zone membership in the simulator: boot, churn, hierarchy, a million nodes (002 §5, Figs. 2 and 3).
//!
//! One-way delay 0.5 ms. Each figure comes from whole nodes, link and engine, and from real letters; what a run finds
//! depends on its seed alone, never on the machine.

pub(crate) mod boot;
pub(crate) mod churn;
pub(crate) mod hierarchy;
pub(crate) mod million;

use crate::error::Error;
use phalanx_core::{Duration, Instant};
use phalanx_protocol::member::{Engine, Slot};
use phalanx_protocol::zone::{Config, MONITOR, Zone};
use phalanx_sim::member::{self, Command, Member, Note, Options, Telling};
use phalanx_sim::{Fault, Latency, Network, NodeFault, Setup, Sim};

/// One way.
const DELAY_US: f64 = 500.0;
/// Views are looked at so often while a cluster boots.
const LOOK: Duration = Duration::from_millis(10);
/// No cluster boots longer.
const BOOT: Duration = Duration::from_secs(30);
/// After boot a cluster comes to rest.
const REST: Duration = Duration::from_secs(5);
/// Idle bytes are counted for so long.
const IDLE: Duration = Duration::from_secs(60);

/// The profiles that are compared.
pub(crate) const PROFILES: [(&str, Config); 2] = [("paper", Config::paper()), ("lan", Config::lan())];

/// How far a run's own time is.
fn seconds(sim: &Sim<Member<Zone>>) -> f64 {
    sim.now().since(Instant::ZERO).as_secs_f64()
}

/// A zone that has booted.
pub(crate) struct Cluster {
    pub(crate) sim: Sim<Member<Zone>>,
    pub(crate) nodes: u32,
    telling: Telling,
    /// From the start until all views were full.
    pub(crate) boot: Option<Duration>,
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
}

impl Cluster {
    /// One zone, booted and at rest.
    pub(crate) fn boot(profile: &Config, nodes: u32, seed: u64) -> Result<Self, Error> {
        let network = Network { latency: Latency::Fixed { us: DELAY_US }, ..Network::default() };
        let setup = Setup { nodes, seed, network, ..Setup::default() };
        let options = Options { profile: profile.clone(), by_reference: true, ..Options::default() };
        let (mut sim, telling) = member::build(&setup, &options).map_err(Error::peer("phalanx-sim"))?;
        let boot = member::boot(&mut sim, nodes as usize, LOOK, BOOT).took;
        sim.run_for(REST);
        Ok(Self { sim, nodes, telling, boot })
    }

    /// IP bytes that a node sends in a second when nothing happens.
    pub(crate) fn idle_bytes(&mut self) -> f64 {
        let sent = |sim: &Sim<Member<Zone>>, nodes| (0..nodes).map(|n| sim.bytes(n).0).sum::<u64>();
        let before = sent(&self.sim, self.nodes);
        self.sim.run_for(IDLE);
        (sent(&self.sim, self.nodes) - before) as f64 / IDLE.as_secs_f64() / f64::from(self.nodes)
    }

    /// Something befalls `simultaneous` members at once, not the first, which is the high-priority monitor.
    pub(crate) fn suffer(&mut self, what: Befalls, simultaneous: u32, bound: Duration) -> Known {
        let monitor = 0;
        self.sim.command(monitor, Command::Set(MONITOR.into(), Some(b"1".to_vec())));
        self.sim.run_for(REST);
        // Spread over the zone: neighbours by number are no neighbours on the ring.
        let step = (self.nodes - 1) / simultaneous;
        let victims: Vec<u32> = (0..simultaneous).map(|i| 1 + i * step).collect();
        let kind = if what == Befalls::Silent { NodeFault::CrashHost } else { NodeFault::CrashProcess };
        if what == Befalls::Join {
            for &v in &victims {
                self.sim.fault(Fault::Node(v, kind));
            }
            self.sim.run_for(REST);
        }
        self.sim.keep_notes();
        self.telling.set(true);
        let at = self.sim.now();
        for &v in &victims {
            self.sim.fault(Fault::Node(v, if what == Befalls::Join { NodeFault::Restart } else { kind }));
        }
        self.sim.run_for(bound);
        self.telling.set(false);
        self.known(at, what, &victims, monitor)
    }

    fn known(&self, at: Instant, what: Befalls, victims: &[u32], monitor: u32) -> Known {
        let mut known = Known::default();
        let mut counts = vec![0usize; self.nodes as usize];
        let survivors = self.nodes as usize - victims.len();
        let mut told = 0;
        for &(when, observer, note) in self.sim.notes() {
            let (about, joined) = match note {
                Note::Joined { node, .. } => (node, true),
                Note::Left { node, .. } => (node, false),
                Note::Started { .. } | Note::Leaving | Note::Moved => continue,
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

    /// True when the members that live see exactly each other.
    pub(crate) fn agrees(&self) -> bool {
        let live: Vec<u32> = self.sim.cluster().processes().map(|(n, _)| n).collect();
        self.sim.cluster().processes().all(|(_, m)| {
            let zone = m.engine();
            zone.len() == live.len() && live.iter().all(|&n| zone.version(Slot(n)).is_some())
        })
    }
}
