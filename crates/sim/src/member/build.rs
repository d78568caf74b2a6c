//! Clusters of members: zones of equal size, one roster for each, a few seeds in each.

use super::Member;
use super::desk::Desk;
use crate::manager::{self, Common, Office};
use crate::network::NetworkError;
use crate::sim::{Birth, Setup, Sim};
use phalanx_core::rng::mix;
use phalanx_core::{Addr, Boot, Group, Instant, Rng};
use phalanx_protocol::baselines::{AllToAll, AllToAllConfig, Gossip, GossipConfig, Start};
use phalanx_protocol::link::seal::KeyRing;
use phalanx_protocol::link::sign::Signer;
use phalanx_protocol::link::{self, Link};
use phalanx_protocol::member::{Card, Engine, Frozen, Name, Roster};
use phalanx_protocol::node::{Node, casts};
use phalanx_protocol::segment::{LEVELS_MAX, Segment, SegmentConfig, SegmentMap};
use phalanx_protocol::zone::hierarchy::Role;
use phalanx_protocol::zone::{self, Zone};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How members are built.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// Members of each zone; the last one may be smaller.
    pub zone: u32,
    /// The first so many members of a zone are everybody's bootstrap set.
    pub seeds: u32,
    /// HI-1: so many of the nodes, the last ones, are supervisors of the zones that the others make.
    pub supervisors: u32,
    /// HI-1: zones have names without supervisors, too, so that members can move.
    pub named: bool,
    /// The parameters of zones.
    pub profile: zone::Config,
    /// The links' limits.
    pub link: link::Config,
    /// Letters travel by reference. The run is the same; only its speed changes.
    pub by_reference: bool,
    /// The largest datagram.
    pub largest: u16,
    /// Nodes that have the name of another one.
    pub namesakes: Vec<(u32, u32)>,
    /// ST-2: members sit in the tree of their zone, and cast.
    pub casts: Option<casts::Config>,
    /// CM-1: members run the manager. They tell what they see then.
    pub manager: Option<manager::Options>,
    /// Members tell what they see from the start, as checkers need it.
    pub telling: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            zone: u32::MAX,
            seeds: 8,
            supervisors: 0,
            named: false,
            profile: zone::Config::lan(),
            link: link::Config::default(),
            by_reference: false,
            largest: link::LARGEST_DATAGRAM,
            namesakes: Vec::new(),
            casts: None,
            manager: None,
            telling: false,
        }
    }
}

/// Who is in which zone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    nodes: u32,
    zone: u32,
    /// Nodes in base zones; those behind are supervisors.
    base: u32,
}

impl Layout {
    /// That of so many nodes.
    #[must_use]
    pub fn new(nodes: u32, options: &Options) -> Self {
        let base = nodes.saturating_sub(options.supervisors);
        Self { nodes, zone: options.zone.min(base).max(1), base }
    }

    /// Base zones.
    #[must_use]
    pub fn zones(&self) -> u32 {
        self.base.div_ceil(self.zone)
    }

    /// The number of a node's zone; the management zone is the last, behind all base zones.
    #[must_use]
    pub fn zone_of(&self, node: u32) -> u32 {
        if node < self.base { node / self.zone } else { self.zones() }
    }

    /// The nodes of a zone.
    #[must_use]
    pub fn nodes_of(&self, zone: u32) -> Range<u32> {
        if zone < self.zones() {
            zone * self.zone..((zone + 1) * self.zone).min(self.base)
        } else {
            self.base..self.nodes
        }
    }

    /// HI-1: true for members of the management zone.
    #[must_use]
    pub fn is_supervisor(&self, node: u32) -> bool {
        node >= self.base
    }
}

/// The name of a base zone.
pub(super) fn zone_name(zone: u32) -> Name {
    Name::new(&format!("z{zone}")).expect("a letter and digits")
}

/// What all members of a run share.
pub(super) struct Shared {
    seed: u64,
    pub(super) layout: Layout,
    config: Arc<link::Config>,
    profile: Arc<zone::Config>,
    ring: Arc<KeyRing>,
    largest: u16,
    /// One for each base zone, then that of the management zone.
    rosters: Vec<Arc<Frozen>>,
    seeds: Vec<Arc<[Addr]>>,
    namesakes: Vec<(u32, u32)>,
    named: bool,
    casts: Option<casts::Config>,
    manager: Option<Arc<Common>>,
    telling: AtomicBool,
}

impl Shared {
    pub(super) fn is_telling(&self) -> bool {
        self.telling.load(Ordering::Relaxed)
    }

    fn role(&self, zone: u32) -> Role {
        let management = self.rosters.len() as u32 - 1;
        match self.seeds.get(management as usize) {
            Some(supervisors) if zone < management && (self.named || !supervisors.is_empty()) => {
                Role::Base { zone: zone_name(zone), supervisors: Arc::clone(supervisors) }
            }
            Some(supervisors) if !supervisors.is_empty() => Role::Management,
            _ => Role::Alone,
        }
    }

    /// What a baseline begins with.
    fn start(&self, birth: &Birth<'_>) -> Start {
        let zone = self.layout.zone_of(birth.node) as usize;
        Start {
            card: self.card(birth.node),
            incarnation: birth.boot.into(),
            bootstrap: self.seeds[zone].to_vec(),
            shared: Arc::clone(&self.rosters[zone]),
        }
    }

    fn signer(&self, node: u32) -> Signer {
        signer(self.seed, node)
    }

    fn card(&self, node: u32) -> Card {
        card(self.seed, node, &self.namesakes)
    }
}

fn signer(seed: u64, node: u32) -> Signer {
    Signer::fake(mix(seed ^ mix(u64::from(node) + 1)))
}

fn card(seed: u64, node: u32, namesakes: &[(u32, u32)]) -> Card {
    let named = namesakes.iter().find(|n| n.0 == node).map_or(node, |n| n.1);
    let name = Name::new(&format!("n{named}")).expect("a letter and digits");
    Card { identity: signer(seed, node).identity(), addr: Addr::Local(node), name }
}

/// A switch for what members tell: at boot each of them sees all others join, and nobody needs to hear that.
#[derive(Clone)]
pub struct Telling(Arc<Shared>);

impl Telling {
    /// Members tell what they see, from now on, or no more.
    pub fn set(&self, on: bool) {
        self.0.telling.store(on, Ordering::Relaxed);
    }
}

/// A cluster of zones.
///
/// # Errors
/// When setup makes no sense.
pub fn build(setup: &Setup, options: &Options) -> Result<(Sim<Member<Zone>>, Telling), NetworkError> {
    build_with(setup, options, |shared, birth| {
        let zone = shared.layout.zone_of(birth.node);
        let roster = Roster::new(Arc::clone(&shared.rosters[zone as usize]), shared.profile.members);
        let rng = Rng::new(birth.rng.u64(), 1);
        let card = shared.card(birth.node);
        let seeds = &shared.seeds[zone as usize];
        Zone::new(&shared.profile, roster, &card, birth.boot.into(), seeds, rng, birth.now).with_role(shared.role(zone))
    })
}

/// BL-1: a cluster of all-to-all heartbeats. Where the configuration names a multicast group, each zone has one of its own,
/// numbered from there on.
///
/// # Errors
/// When setup makes no sense.
pub fn build_all_to_all(
    setup: &Setup,
    options: &Options,
    config: AllToAllConfig,
) -> Result<(Sim<Member<AllToAll>>, Telling), NetworkError> {
    build_with(setup, options, move |shared, birth| {
        let zone = shared.layout.zone_of(birth.node) as u16;
        let group = config.group.map(|g| Group { number: g.number.wrapping_add(zone), ..g });
        let rng = Rng::new(birth.rng.u64(), 1);
        AllToAll::new(AllToAllConfig { group, ..config }, shared.start(birth), rng, birth.now)
    })
}

/// BL-1: a cluster that gossips.
///
/// # Errors
/// When setup makes no sense.
pub fn build_gossip(
    setup: &Setup,
    options: &Options,
    config: GossipConfig,
) -> Result<(Sim<Member<Gossip>>, Telling), NetworkError> {
    build_with(setup, options, move |shared, birth| {
        let rng = Rng::new(birth.rng.u64(), 1);
        Gossip::new(config, shared.start(birth), rng, birth.now)
    })
}

/// TG: a cluster in segments, as the network's topology has them. Each zone is one of its own, with groups of its own.
///
/// # Errors
/// When setup makes no sense.
pub fn build_segments(
    setup: &Setup,
    options: &Options,
    config: SegmentConfig,
) -> Result<(Sim<Member<Segment>>, Telling), NetworkError> {
    build_with(setup, options, move |shared, birth| {
        let zone = shared.layout.zone_of(birth.node) as u16;
        let group = config.group.wrapping_add(zone.wrapping_mul(LEVELS_MAX.into()));
        let rng = Rng::new(birth.rng.u64(), 1);
        Segment::new(SegmentConfig { group, ..config }, shared.start(birth), rng, birth.now)
    })
}

/// TG-8: the same without multicast: each zone's segments are configured, as the network's topology has them.
///
/// # Errors
/// When setup makes no sense.
pub fn build_segments_unicast(
    setup: &Setup,
    options: &Options,
    config: SegmentConfig,
) -> Result<(Sim<Member<Segment>>, Telling), NetworkError> {
    let (layout, topology) = (Layout::new(setup.nodes, options), &setup.network.topology);
    // Segments of no size are refused before they are counted.
    topology.compile(setup.nodes)?;
    let map = |zone: u32| {
        let mut segments: BTreeMap<u32, Vec<Addr>> = BTreeMap::new();
        layout.nodes_of(zone).for_each(|n| segments.entry(topology.segment(n)).or_default().push(Addr::Local(n)));
        Arc::new(SegmentMap::new(segments.into_values()))
    };
    let maps: Vec<Arc<SegmentMap>> = (0..=layout.zones()).map(map).collect();
    build_with(setup, options, move |shared, birth| {
        let map = &maps[shared.layout.zone_of(birth.node) as usize];
        let rng = Rng::new(birth.rng.u64(), 1);
        Segment::unicast(config, map, shared.start(birth), rng, birth.now)
    })
}

fn build_with<E: Engine + Send + 'static>(
    setup: &Setup,
    options: &Options,
    engine: impl Fn(&Shared, &mut Birth<'_>) -> E + Send + Sync + 'static,
) -> Result<(Sim<Member<E>>, Telling), NetworkError> {
    let layout = Layout::new(setup.nodes, options);
    let (zones, nodes) = (layout.zones(), |z: u32| layout.nodes_of(z));
    let mut config = options.link.clone();
    config.rcl.by_reference = options.by_reference;
    // The simulated network carries them; zones need none.
    config.groups = true;
    let shared = Arc::new(Shared {
        seed: setup.seed,
        layout,
        config: Arc::new(config),
        profile: Arc::new(options.profile.clone()),
        ring: Arc::new(KeyRing::fake(1, setup.seed)),
        largest: options.largest,
        rosters: (0..=zones)
            .map(|z| Arc::new(Frozen::new(nodes(z).map(|n| (card(setup.seed, n, &options.namesakes), 1)))))
            .collect(),
        seeds: (0..=zones).map(|z| nodes(z).take(options.seeds as usize).map(Addr::Local).collect()).collect(),
        namesakes: options.namesakes.clone(),
        named: options.named,
        casts: options.casts,
        manager: options.manager.as_ref().map(|options| {
            let keys = (0..setup.nodes).map(|n| signer(setup.seed, n).identity().into());
            Common::new(options, keys.collect())
        }),
        telling: AtomicBool::new(options.telling || options.manager.is_some()),
    });
    let telling = Telling(Arc::clone(&shared));
    let sim = Sim::new(setup, move |mut birth| {
        let mut boot = Boot::default();
        birth.rng.fill(&mut boot.0);
        let (config, ring) = (Arc::clone(&shared.config), Arc::clone(&shared.ring));
        let link = Link::new(config, ring, shared.signer(birth.node), boot, birth.rng.u64());
        let engine = engine(&shared, &mut birth);
        let node = if shared.layout.is_supervisor(birth.node) {
            Node::supervisor(link, engine, shared.largest)
        } else {
            Node::new(link, engine, shared.largest)
        };
        let zone = shared.layout.zone_of(birth.node);
        let (node, desk) = match shared.casts {
            Some(config) => (
                node.with_casts(birth.now, config, zone_name(zone).as_str()).expect("the fan-out was checked"),
                Some(Box::new(Desk::new(birth.node, birth.boot))),
            ),
            None => (node, None),
        };
        let office = shared.manager.as_ref().map(|common| {
            let signer = shared.signer(birth.node);
            Box::new(Office::new(common, &mut birth, signer))
        });
        Member { node, shared: Arc::clone(&shared), desk, office }
    })?;
    debug_assert_eq!(sim.now(), Instant::ZERO);
    Ok((sim, telling))
}
