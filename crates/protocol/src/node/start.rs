//! A member, ready to be driven: what most programs need to begin with.

use super::scout::{Scout, ScoutConfig};
use super::{Membership, Node};
use crate::baselines;
use crate::link::seal::KeyRing;
use crate::link::sign::Signer;
use crate::link::{self, Link};
use crate::member::{Card, Engine, Frozen, Name, Roster};
use crate::segment::{Segment, SegmentConfig, SegmentMap};
use crate::zone::hierarchy::Role;
use crate::zone::{Config, Zone};
use phalanx_core::{Addr, Boot, Instant, Rng};
use std::sync::Arc;

/// On which engine a cluster runs, and how.
#[derive(Clone, Debug)]
pub enum Profile {
    /// Zones.
    Zone(Config),
    /// Segments of the network.
    Segment(SegmentConfig),
    /// TG-8: segments without multicast: who may be where is configured.
    Unicast(SegmentConfig, Arc<SegmentMap>),
}

/// What a member starts with.
#[derive(Clone, Debug)]
pub struct Start {
    /// What people call it.
    pub name: Name,
    /// Where it listens, as others reach it.
    pub addr: Addr,
    /// The cluster's keys: who does not have one of them is not heard.
    pub ring: Arc<KeyRing>,
    /// Where other members may be.
    pub seeds: Vec<Addr>,
    /// This life of it: higher than any before. Seconds since 1970 do, when the clock is never set back.
    pub incarnation: u64,
    /// Fresh random bits: 32 bytes become its identity, the rest this start's boot and seed.
    pub entropy: [u8; 64],
    /// HI-1: its place in a hierarchy. A member of a named zone can be moved to another (`Node::relocate`).
    pub role: Role,
    /// How it watches and speaks.
    pub profile: Config,
    /// The largest datagram that the network carries.
    pub largest: u16,
    /// Members that are known beforehand: nodes of one process share what they know of each other. Empty for all others.
    pub known: Arc<Frozen>,
}

impl Start {
    /// A member with the default profile, without tripwires (a driver that holds streams switches them on), that knows
    /// nobody yet, in its first life.
    #[must_use]
    pub fn new(name: Name, addr: Addr, key: [u8; 32], entropy: [u8; 64]) -> Self {
        let profile = Config { tripwires: false, ..Config::lan() };
        let ring = Arc::new(KeyRing::new(1, key));
        Self {
            name,
            addr,
            ring,
            seeds: Vec::new(),
            incarnation: 1,
            entropy,
            role: Role::Alone,
            profile,
            largest: 1400,
            known: Arc::default(),
        }
    }

    fn signer(&self) -> Signer {
        Signer::generate(&std::array::from_fn(|i| self.entropy[i]))
    }

    /// Who it will be.
    #[must_use]
    pub fn card(&self) -> Card {
        Card { identity: self.signer().identity(), addr: self.addr, name: self.name.clone() }
    }

    /// The node, of zones; nothing is sent before its first `expire`.
    #[must_use]
    pub fn node(&self, now: Instant) -> Node<Zone> {
        self.around(self.zone(&self.profile, now))
    }

    /// The node, on whichever engine; `profile` says how instead of [`Start::profile`].
    #[must_use]
    pub fn member(&self, profile: &Profile, now: Instant) -> Node<Membership> {
        match profile {
            Profile::Zone(config) => self.around(self.zone(config, now).into()),
            Profile::Segment(config) => self.segments(|start, rng| Segment::new(*config, start, rng, now)),
            Profile::Unicast(config, map) => {
                self.segments(|start, rng| Segment::unicast(*config, map, start, rng, now))
            }
        }
    }

    fn segments(&self, segment: impl FnOnce(baselines::Start, Rng) -> Segment) -> Node<Membership> {
        let start = baselines::Start {
            card: self.card(),
            incarnation: self.incarnation,
            bootstrap: self.seeds.clone(),
            shared: Arc::clone(&self.known),
        };
        Node::new(self.link(), segment(start, Rng::new(self.seed(), 1)).into(), self.largest)
    }

    /// What looks around for this member, see [`scout`](super::scout).
    #[must_use]
    pub fn scout(&self, config: ScoutConfig, profile: &Config, now: Instant) -> Scout {
        Scout::new(config, profile.clone(), &self.card(), self.incarnation, self.seed(), now)
    }

    fn seed(&self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|i| self.entropy[48 + i]))
    }

    fn link(&self) -> Link {
        let boot = Boot(std::array::from_fn(|i| self.entropy[32 + i]));
        let config = link::Config { groups: true, ..link::Config::default() };
        Link::new(Arc::new(config), Arc::clone(&self.ring), self.signer(), boot, self.seed())
    }

    fn zone(&self, profile: &Config, now: Instant) -> Zone {
        let profile = Arc::new(profile.clone());
        let roster = Roster::new(Arc::clone(&self.known), profile.members);
        let seeds: Arc<[Addr]> = self.seeds.iter().copied().collect();
        let rng = Rng::new(self.seed(), 1);
        Zone::new(&profile, roster, &self.card(), self.incarnation, &seeds, rng, now).with_role(self.role.clone())
    }

    fn around<E: Engine>(&self, zone: E) -> Node<E> {
        match &self.role {
            Role::Management => Node::supervisor(self.link(), zone, self.largest),
            Role::Alone | Role::Base { .. } => Node::new(self.link(), zone, self.largest),
        }
    }
}
