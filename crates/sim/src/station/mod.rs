//! Stations: the process that runs our real link in the simulator.
//!
//! A [`Station`] drives the very `Link` machine that a daemon drives (CL-4), in the same way: hand it what arrived,
//! expire it while something is due, send what it asks for. On top it carries out a [`Workload`] and tells the
//! checkers what it sent and what it was handed. [`build`] makes a cluster of them with all checkers in place,
//! [`finish`] heals it, lets it come to rest and reports.
//!
//! ```
//! use phalanx_core::Duration;
//! use phalanx_sim::Setup;
//! use phalanx_sim::station::{self, Managed, Options, Workload};
//!
//! let setup = Setup { nodes: 4, ..Setup::default() };
//! let mut sim = station::build(&setup, &Workload::Managed(Managed::default()), &Options::default())?;
//! sim.run_for(Duration::from_secs(1));
//! station::finish(&mut sim, Duration::from_secs(1), Duration::from_secs(30)).expect_green();
//! # Ok::<(), station::BuildError>(())
//! ```
//!
//! Faults come in at both points (FI-3): `wire` is the engine's, by [`crate::Fault::Inject`]; `plain` is the link's,
//! by [`Command::Plain`].
//!
//! | file | idea |
//! |---|---|
//! | `workload` | what stations do, as scenarios write it |
//! | `content` | what messages hold: all follows from their names |
//! | `note` | what stations say and hear |
//! | `book` | whom a station talks with |
//! | `outlet` | where the link's decisions go |
//! | `loads` | the workloads on top of the link |
//! | `group` | a member of an ordered group on top of MML |
//! | `build` | clusters of stations |
//! | [`checks`] | what must hold |

mod book;
mod build;
pub mod checks;
mod content;
mod group;
mod loads;
mod note;
mod outlet;
mod workload;

#[cfg(test)]
mod sweep;
#[cfg(test)]
mod tests;

pub use build::{BuildError, Options, Seals, build, finish};
pub use content::{Layer, Name};
pub use note::{Command, Note, OrderNote};
pub use workload::{
    BEAT_MAX, Heartbeat, MANAGED_MAX, Managed, Mixed, Ordered, RELIABLE_MAX, Reliable, Workload, WorkloadError,
};

use crate::process::{Ctx, Process};
use crate::sim::Birth;
use build::Shared;
use group::Group;
use loads::Loads;
use outlet::{Outlet, Tickets};
use phalanx_core::{Addr, Boot, Buf, Code, Instant, Machine, NodeId};
use phalanx_fault::{Call, Kind};
use phalanx_protocol::link::{Input, Link};
use std::mem::offset_of;
use std::sync::Arc;

/// Rounds of expiry in one call, as in the daemon: a link that always has more to send must let time go on.
const ROUNDS: usize = 4;

/// A node that runs the link.
///
/// Desk and shared part are one cache line, the beginning of the link is two.
#[repr(C, align(64))]
pub struct Station {
    desk: Desk,
    shared: Arc<Shared>,
    link: Link,
}

/// Neighbours that need no memory of their own.
const NEAR: usize = 2;

/// All of a station but its link, so that the link's decisions can change it.
struct Desk {
    me: u32,
    /// Which start of the node.
    boot: u32,
    beats: u32,
    /// Told to rest: nothing new is sent.
    resting: bool,
    /// How many of `near` there are.
    nears: u8,
    /// When the next heartbeat leaves.
    beat_at: Instant,
    /// Datagrams heard.
    heard: u64,
    /// What only workloads beyond bare heartbeats need: a million nodes that do no more shall fit.
    loads: Option<Box<Loads>>,
    /// The link's numbers for the neighbours that heartbeats go to: the first ones, and the others.
    near: [NodeId; NEAR],
    #[allow(clippy::box_collection)] // Often none: one word for the cache line that the desk has.
    far: Option<Box<Vec<NodeId>>>,
}

impl Station {
    /// A start of a node, from what its disk kept. Its identity stays, its boot is new.
    pub(crate) fn new(shared: &Arc<Shared>, birth: Birth<'_>) -> Self {
        let mut boot = Boot::default();
        birth.rng.fill(&mut boot.0);
        let seed = birth.rng.u64();
        let signer = shared.signer(birth.node);
        let link = Link::new(Arc::clone(&shared.config), Arc::clone(&shared.ring), signer, boot, seed);
        let parts = &shared.parts;
        let loads = shared.needs_loads().then(|| {
            let group = parts.order.and_then(|work| Group::new(birth.node, shared.nodes, work, &birth));
            let tickets = parts.heartbeat.is_some_and(|h| h.tickets).then(Tickets::default);
            Box::new(Loads::new(group, tickets))
        });
        let desk = Desk {
            me: birth.node,
            boot: birth.boot,
            beats: 0,
            resting: false,
            nears: 0,
            beat_at: Instant::NEVER,
            heard: 0,
            loads,
            near: [NodeId::default(); NEAR],
            far: None,
        };
        Self { shared: Arc::clone(shared), link, desk }
    }

    /// The link, to be looked at.
    #[must_use]
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// Datagrams heard since the start.
    #[must_use]
    pub fn heard(&self) -> u64 {
        self.desk.heard
    }

    /// Bytes of reliable messages that wait or are unacknowledged, for all peers.
    #[must_use]
    pub fn backlog(&self) -> usize {
        let loads = self.desk.loads.as_deref();
        loads.map_or(0, |l| l.book.talks().filter_map(|t| t.node).map(|node| self.link.backlog(node)).sum())
    }

    /// True when the link waits for nothing any more.
    #[must_use]
    pub fn is_silent(&self) -> bool {
        self.link.deadline() == Instant::NEVER
    }

    /// Peers that the link may hold.
    #[must_use]
    pub fn bound(&self) -> usize {
        self.shared.config.peers
    }

    fn is_checked(&self) -> bool {
        self.shared.options.checked
    }

    /// Tells the link something.
    #[inline]
    fn tell(&mut self, now: Instant, input: Input<'_>, net: &mut Ctx<'_, Self>) {
        let Self { shared, link, desk } = self;
        link.handle(now, input, &mut Outlet { now, shared, desk, net });
    }

    /// Lets the link do what is due, and what its decisions led to.
    #[inline]
    fn act(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        for _ in 0..ROUNDS {
            if let Some(loads) = &self.desk.loads {
                let (errands, tickets) = (loads.has_errands(), loads.tickets.is_some());
                if errands {
                    self.run_errands(now, net);
                }
                if tickets {
                    self.settle_tickets(now, net);
                }
            }
            if self.link.deadline() > now {
                break;
            }
            let Self { shared, link, desk } = self;
            link.expire(now, &mut Outlet { now, shared, desk, net });
        }
    }
}

impl Desk {
    /// Heartbeats go to these.
    fn set_neighbours(&mut self, neighbours: &[NodeId]) {
        let (near, far) = neighbours.split_at(neighbours.len().min(NEAR));
        self.nears = near.len() as u8;
        self.near[..near.len()].copy_from_slice(near);
        self.far = (!far.is_empty()).then(|| Box::new(far.to_vec()));
    }

    /// The first neighbours.
    #[inline]
    fn nears(&self) -> &[NodeId] {
        &self.near[..usize::from(self.nears)]
    }

    /// The neighbour at that place.
    #[inline]
    fn neighbour(&self, place: usize) -> Option<NodeId> {
        let near = self.nears().get(place);
        near.or_else(|| self.far.as_ref()?.get(place.checked_sub(NEAR)?)).copied()
    }
}

impl Process for Station {
    type Command = Command;
    type Note = Note;
    const HOT: usize = offset_of!(Self, link) + Link::HOT;

    fn start(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        if self.is_checked() {
            net.note(Note::Started { boot: self.link.boot() });
        }
        self.begin(now, net);
        self.act(now, net);
    }

    #[inline]
    fn arrived(&mut self, now: Instant, from: Addr, mut packet: Buf, net: &mut Ctx<'_, Self>) {
        let (bytes, attached) = packet.parts_mut();
        self.tell(now, Input::Arrived { from, bytes, attached }, net);
        self.act(now, net);
    }

    #[inline]
    fn expire(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        if self.desk.beat_at <= now {
            self.beat(now, net);
        }
        if self.desk.loads.is_some() {
            self.work(now, net);
        }
        self.act(now, net);
    }

    #[inline]
    fn deadline(&self) -> Instant {
        let mut at = self.link.deadline().min(self.desk.beat_at);
        if let Some(loads) = &self.desk.loads {
            at = at.min(loads.deadline());
        }
        at
    }

    #[inline]
    fn foresee(&self, packet: Option<&Buf>) {
        match packet {
            Some(packet) => self.link.foresee(packet.bytes()),
            None => self.desk.nears().iter().for_each(|&node| self.link.foresee_peer(node)),
        }
    }

    fn refused(&mut self, now: Instant, addr: Addr, net: &mut Ctx<'_, Self>) {
        self.tell(now, Input::Refused { addr, code: Code::Unreachable }, net);
        self.act(now, net);
    }

    fn persisted(&mut self, now: Instant, token: u64, ok: bool, net: &mut Ctx<'_, Self>) {
        self.on_persisted(now, token, ok, net);
        self.act(now, net);
    }

    fn command(&mut self, now: Instant, command: Command, net: &mut Ctx<'_, Self>) {
        match command {
            Command::Plain(rule) => {
                if self.is_checked() && exposes(&rule.kind) {
                    net.note(Note::Tainted);
                }
                // One that the injector refuses is a mistake of the scenario, and shows as a fault that does nothing.
                let _ = self.link.tap().add(now, *rule);
            }
            Command::HealPlain => self.link.tap().heal_all(),
            Command::Rest => self.rest(now, net),
        }
        self.act(now, net);
    }
}

/// True when such a fault above the seal can double, damage, misdirect or hold back over the end of a session what only
/// the seal protects: datagrams and UNR messages, which have no proof of their own.
fn exposes(kind: &Kind) -> bool {
    match kind {
        Kind::Drop | Kind::Operation { .. } => false,
        Kind::Invocation { call, .. } => *call == Call::Receive,
        Kind::Modify { .. } | Kind::Inject { .. } | Kind::Delay(_) | Kind::Reorder => true,
    }
}
