//! What a run counted.

use std::ops::AddAssign;

/// Headers that each datagram pays on the wire: IPv4 (20 bytes) and UDP (8 bytes).
pub const HEADERS: u64 = 28;

/// Why a message did not arrive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Drop {
    /// The network lost it.
    Loss,
    /// A partition stood in its way.
    Partition,
    /// The sender's or the receiver's own loss.
    NodeLoss,
    /// The queue in front of a link was full.
    Queue,
    /// The receiving process was dead.
    DeadProcess,
    /// The receiving host was dead.
    DeadHost,
    /// The receiver was paused and its socket buffer full.
    SocketBuffer,
    /// There is no such node, no way to it, or the address is not of this network.
    NoRoute,
    /// The sender's fault injector took it.
    Injected,
}

impl Drop {
    /// All reasons.
    pub const ALL: [Self; 9] = [
        Self::Loss,
        Self::Partition,
        Self::NodeLoss,
        Self::Queue,
        Self::DeadProcess,
        Self::DeadHost,
        Self::SocketBuffer,
        Self::NoRoute,
        Self::Injected,
    ];

    /// The name of the reason in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Loss => "loss",
            Self::Partition => "partition",
            Self::NodeLoss => "node-loss",
            Self::Queue => "queue",
            Self::DeadProcess => "dead-process",
            Self::DeadHost => "dead-host",
            Self::SocketBuffer => "socket-buffer",
            Self::NoRoute => "no-route",
            Self::Injected => "injected",
        }
    }
}

/// Counters of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Events that befell nodes, timers that were overtaken included.
    pub events: u64,
    /// Timer events that came to nothing, because their node had set an earlier or later deadline since.
    pub stale_timers: u64,
    /// Datagrams handed to the network; one to a group counts once.
    pub sent: u64,
    /// Datagrams handed to a process.
    pub delivered: u64,
    /// Second copies that the network made.
    pub duplicated: u64,
    /// Bytes handed to the network, headers included.
    pub bytes: u64,
    drops: [u64; Drop::ALL.len()],
}

impl Stats {
    /// Messages that did not arrive for this reason.
    #[must_use]
    pub fn dropped(&self, reason: Drop) -> u64 {
        self.drops[reason as usize]
    }

    /// Reasons that came up, with how often.
    pub fn drops(&self) -> impl Iterator<Item = (Drop, u64)> + '_ {
        Drop::ALL.into_iter().map(|d| (d, self.dropped(d))).filter(|d| d.1 > 0)
    }

    pub(crate) fn drop(&mut self, reason: Drop) {
        self.drops[reason as usize] += 1;
    }
}

impl AddAssign for Stats {
    fn add_assign(&mut self, other: Self) {
        self.events += other.events;
        self.stale_timers += other.stale_timers;
        self.sent += other.sent;
        self.delivered += other.delivered;
        self.duplicated += other.duplicated;
        self.bytes += other.bytes;
        for (mine, theirs) in self.drops.iter_mut().zip(other.drops) {
            *mine += theirs;
        }
    }
}
