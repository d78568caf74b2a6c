//! What may befall a run: nodes, pairs of nodes, and the network.

use crate::disk::DiskFault;
use crate::network::Weather;
use crate::partition::Partition;
use phalanx_fault::Rule;

/// A fault, or its end. The same enum serves scenarios, tests and checkers that react to what they see.
#[derive(Clone, PartialEq, Debug)]
pub enum Fault {
    /// Something befalls one node.
    Node(u32, NodeFault),
    /// The streams between two nodes break; both are told after a network delay.
    ResetStream(u32, u32),
    /// The network is cut. A partition of the same name is replaced.
    Partition(Partition),
    /// The partition of that name is over.
    HealPartition(String),
    /// The node's fault injector, at the `wire` point, gets a rule (FI-3).
    Inject {
        /// The node.
        node: u32,
        /// What goes wrong there. One that the injector refuses is reported as a violation.
        rule: Box<Rule>,
        /// With whom, in place of the names in `rule.only`; with everybody when empty.
        peers: Vec<u32>,
    },
    /// The network as a whole gets worse, or better.
    Weather(Weather),
    /// Every fault ends: partitions, weather, pauses, clocks, disks, losses, injectors.
    HealAll {
        /// Dead nodes start again; otherwise they stay dead.
        restart: bool,
    },
}

/// What may befall one node. What makes no sense in its state (pausing the dead) does nothing.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum NodeFault {
    /// The process dies. Its host closes its streams and refuses its datagrams; what it sent still arrives.
    CrashProcess,
    /// The host dies: silence. Writes that were not on the disk are lost.
    CrashHost,
    /// The process starts (again), from what its disk kept. One that still runs dies first.
    Restart,
    /// The process stops running. What comes waits in its socket, up to the buffer's bound; its timers are late.
    Pause,
    /// It goes on.
    Resume,
    /// The clock runs at a rate (1 is right, 0.5 slow) from now on, after a step.
    Clock {
        /// How fast it runs.
        rate: f64,
        /// How far it jumps now, forward or back.
        step_ns: i64,
    },
    /// The disk gets worse, or better.
    Disk(DiskFault),
    /// The node loses part of what it receives and of what it sends.
    Loss {
        /// Part of what it receives.
        inward: f64,
        /// Part of what it sends.
        outward: f64,
    },
    /// All rules of its injector end; what they hold is delivered.
    HealInjector,
    /// Its half of [`Fault::ResetStream`]: the peer is told.
    ResetStream(u32),
}

impl Fault {
    /// The process of `node` dies.
    #[must_use]
    pub fn crash(node: u32) -> Self {
        Self::Node(node, NodeFault::CrashProcess)
    }

    /// The host of `node` dies.
    #[must_use]
    pub fn crash_host(node: u32) -> Self {
        Self::Node(node, NodeFault::CrashHost)
    }

    /// `node` starts again.
    #[must_use]
    pub fn restart(node: u32) -> Self {
        Self::Node(node, NodeFault::Restart)
    }

    /// `node` stops running.
    #[must_use]
    pub fn pause(node: u32) -> Self {
        Self::Node(node, NodeFault::Pause)
    }

    /// `node` goes on.
    #[must_use]
    pub fn resume(node: u32) -> Self {
        Self::Node(node, NodeFault::Resume)
    }

    /// The injector of `node` gets a rule, for all its peers.
    #[must_use]
    pub fn inject(node: u32, rule: Rule) -> Self {
        Self::Inject { node, rule: Box::new(rule), peers: Vec::new() }
    }
}
