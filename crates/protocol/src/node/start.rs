//! A member of a zone, ready to be driven: what most programs need to begin with.

use super::Node;
use crate::link::seal::KeyRing;
use crate::link::sign::Signer;
use crate::link::{self, Link};
use crate::member::{Card, Frozen, Name, Roster};
use crate::zone::hierarchy::Role;
use crate::zone::{Config, Zone};
use phalanx_core::{Addr, Boot, Instant, Rng};
use std::sync::Arc;

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

    /// The node; nothing is sent before its first `expire`.
    #[must_use]
    pub fn node(&self, now: Instant) -> Node<Zone> {
        let part = |at: usize| -> [u8; 16] { std::array::from_fn(|i| self.entropy[at + i]) };
        let seed = u64::from_le_bytes(std::array::from_fn(|i| self.entropy[48 + i]));
        let (signer, card) = (self.signer(), self.card());
        let link = Link::new(Arc::new(link::Config::default()), Arc::clone(&self.ring), signer, Boot(part(32)), seed);
        let profile = Arc::new(self.profile.clone());
        let roster = Roster::new(Arc::clone(&self.known), profile.members);
        let seeds: Arc<[Addr]> = self.seeds.iter().copied().collect();
        let zone = Zone::new(&profile, roster, &card, self.incarnation, &seeds, Rng::new(seed, 1), now);
        match &self.role {
            Role::Management => Node::supervisor(link, zone.with_role(Role::Management), self.largest),
            role => Node::new(link, zone.with_role(role.clone()), self.largest),
        }
    }
}
