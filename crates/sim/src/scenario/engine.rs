//! Membership engines in scenarios: which one, in which profile, in what zones, and what its members write.

use super::problem::{Problem, unknown};
use crate::manager;
use crate::member::Options;
use phalanx_core::{Duration, Group};
use phalanx_protocol::baselines::{AllToAllConfig, GossipConfig};
use phalanx_protocol::cast::seats::RepairError;
use phalanx_protocol::node::casts;
use phalanx_protocol::segment::{LEVELS_MAX, SegmentConfig};
use phalanx_protocol::zone::Config;
use serde::Deserialize;

/// What the nodes of a scenario run.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// The link layer alone, under a workload.
    #[default]
    Link,
    /// Whole nodes with zone membership.
    Zone,
    /// Whole nodes with all-to-all heartbeats (BL-1).
    AllToAll,
    /// Whole nodes that gossip (BL-1).
    Gossip,
    /// Whole nodes in segments: membership in the shape of the network (TG).
    Segment,
    /// The tasks of a job, which share a view (RV).
    View,
    /// Whole nodes with zone membership that cast over the tree of their zone (ST).
    Cast,
    /// Whole nodes with zone membership that run the manager and its jobs (CM).
    Manager,
}

impl Engine {
    /// All of them.
    pub const ALL: [Self; 8] =
        [Self::Link, Self::Zone, Self::AllToAll, Self::Gossip, Self::Segment, Self::View, Self::Cast, Self::Manager];

    /// As scenarios write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Link => "link",
            Self::Zone => "zone",
            Self::AllToAll => "all-to-all",
            Self::Gossip => "gossip",
            Self::Segment => "segment",
            Self::View => "view",
            Self::Cast => "cast",
            Self::Manager => "manager",
        }
    }
}

/// A membership engine and its parameters; those of zones are in [`Options`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Membership {
    /// Zones.
    Zone,
    /// All-to-all heartbeats.
    AllToAll(AllToAllConfig),
    /// Gossip.
    Gossip(GossipConfig),
    /// Segments.
    Segment(SegmentConfig),
    /// TG-8: segments without multicast.
    SegmentUnicast(SegmentConfig),
}

/// Nodes that run a membership engine.
#[derive(Clone, PartialEq, Debug)]
pub struct Members {
    /// Which.
    pub membership: Membership,
    /// Their zones, and the profile of the zone engine.
    pub options: Options,
    /// The attributes that they write.
    pub writes: Option<Writes>,
}

/// AT-1: members write attributes.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Writes {
    /// The mean time between two writes of a member.
    pub interval: Duration,
    /// Attributes of each member.
    pub keys: u8,
}

impl Members {
    /// The engine.
    #[must_use]
    pub const fn engine(&self) -> Engine {
        match self.membership {
            Membership::Zone if self.options.casts.is_some() => Engine::Cast,
            Membership::Zone if self.options.manager.is_some() => Engine::Manager,
            Membership::Zone => Engine::Zone,
            Membership::AllToAll(_) => Engine::AllToAll,
            Membership::Gossip(_) => Engine::Gossip,
            Membership::Segment(_) | Membership::SegmentUnicast(_) => Engine::Segment,
        }
    }

    /// The roles that a fault can fall on.
    pub(super) fn roles(&self) -> &'static [&'static str] {
        match self.engine() {
            Engine::Cast => &["seed", "root", "inner"],
            Engine::Manager => &["seed", "replica", "leader"],
            _ if self.options.supervisors > 0 => &["seed", "delegate", "supervisor"],
            _ => &["seed"],
        }
    }
}

/// The fields that only mean something for a membership engine.
#[derive(Default)]
pub(super) struct MembersText {
    pub(super) profile: Option<String>,
    pub(super) multicast: Option<bool>,
    pub(super) zones: Option<ZonesText>,
    pub(super) attributes: Option<AttributesText>,
    pub(super) casts: Option<CastsText>,
    pub(super) manager: Option<ManagerText>,
}

/// `[manager]`.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ManagerText {
    expect: Option<u32>,
    slots: Option<u32>,
    asks_ms: Option<u64>,
    oversubscribe: bool,
    relay: Option<usize>,
}

impl ManagerText {
    fn options(self, nodes: u32) -> Result<manager::Options, Problem> {
        let usual = manager::Options::default();
        if let Some(expect) = self.expect.filter(|e| !(1..=nodes).contains(e)) {
            return Err(Problem::new("expect", format!("{expect}: from 1 to {nodes}, the nodes of this run")));
        }
        if let Some(slots) = self.slots.filter(|s| !(1..=SLOTS_MAX).contains(s)) {
            return Err(Problem::new("slots", format!("{slots}: from 1 to {SLOTS_MAX} ranks for each node")));
        }
        if let Some(relay) = self.relay.filter(|r| *r < 2) {
            return Err(Problem::new("relay", format!("{relay}: one node hands on nothing: at least 2")));
        }
        Ok(manager::Options {
            expect: self.expect,
            slots: self.slots.unwrap_or(usual.slots),
            asks: self.asks_ms.map_or(usual.asks, Duration::from_millis),
            oversubscribe: self.oversubscribe,
            relay: self.relay.unwrap_or(usual.relay),
            ..usual
        })
    }
}

/// `[casts]`.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct CastsText {
    fan_out: Option<u32>,
    repair: Option<String>,
}

impl CastsText {
    fn config(self) -> Result<casts::Config, Problem> {
        let usual = casts::Config::default();
        let fan_out = self.fan_out.unwrap_or(usual.fan_out);
        if fan_out < 2 {
            return Err(Problem::new("fan_out", format!("{fan_out} children make no tree: at least 2")));
        }
        let repair = self.repair.map(|text| text.parse()).transpose();
        let repair = repair.map_err(|e: RepairError| Problem::new("repair", e.to_string()))?;
        Ok(casts::Config { fan_out, repair: repair.unwrap_or(usual.repair), ..usual })
    }
}

/// `[zones]`.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct ZonesText {
    size: Option<u32>,
    seeds: Option<u32>,
    supervisors: Option<u32>,
}

/// `[attributes]`.
#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct AttributesText {
    interval_ms: f64,
    keys: u32,
}

impl Default for AttributesText {
    fn default() -> Self {
        Self { interval_ms: 1000.0, keys: 4 }
    }
}

/// Profiles of zones.
const ZONE_PROFILES: [&str; 4] = ["lan", "paper", "wan", "local"];
/// Profiles of baselines.
const PROFILES: [&str; 2] = ["lan", "paper"];
/// Multicast reaches so far, in routers and one.
const TTL: u8 = 64;
/// TG-1: segments climb so far.
const SEGMENT_TTL: u8 = if LEVELS_MAX < 4 { LEVELS_MAX } else { 4 };

impl MembersText {
    /// The first field that is there: it means nothing without a membership engine.
    pub(super) fn first(&self) -> Option<&'static str> {
        let fields = [
            (self.profile.is_some(), "profile"),
            (self.multicast.is_some(), "multicast"),
            (self.zones.is_some(), "zones"),
            (self.attributes.is_some(), "attributes"),
            (self.casts.is_some(), "casts"),
            (self.manager.is_some(), "manager"),
        ];
        fields.into_iter().find(|f| f.0).map(|f| f.1)
    }

    pub(super) fn members(self, engine: Engine, nodes: u32, by_reference: bool) -> Result<Members, Problem> {
        let baseline = !matches!(engine, Engine::Zone | Engine::Cast | Engine::Manager);
        if self.casts.is_some() && engine != Engine::Cast {
            return Err(Problem::new("casts", format!("does not apply to engine `{}`", engine.name())));
        }
        if self.manager.is_some() && engine != Engine::Manager {
            return Err(Problem::new("manager", format!("does not apply to engine `{}`", engine.name())));
        }
        let profile = self.profile.as_deref().unwrap_or("lan");
        let known: &[&str] = if baseline { &PROFILES } else { &ZONE_PROFILES };
        if !known.contains(&profile) {
            return Err(Problem::new("profile", unknown(profile, known)));
        }
        if self.multicast.is_some() && !matches!(engine, Engine::AllToAll | Engine::Segment) {
            return Err(Problem::new("multicast", format!("does not apply to engine `{}`", engine.name())));
        }
        let paper = profile == "paper";
        let group = self.multicast.unwrap_or(true).then_some(Group { number: 1, ttl: TTL });
        let membership = match engine {
            Engine::AllToAll if paper => Membership::AllToAll(AllToAllConfig::paper(group)),
            Engine::AllToAll => Membership::AllToAll(AllToAllConfig::lan(group)),
            Engine::Gossip if paper => Membership::Gossip(GossipConfig::paper()),
            Engine::Gossip => Membership::Gossip(GossipConfig::lan()),
            Engine::Segment => {
                let config = if paper { SegmentConfig::paper } else { SegmentConfig::lan }(1, SEGMENT_TTL);
                if group.is_some() { Membership::Segment(config) } else { Membership::SegmentUnicast(config) }
            }
            Engine::Zone | Engine::Cast | Engine::Manager | Engine::Link | Engine::View => Membership::Zone,
        };
        let config = match profile {
            "paper" => Config::paper(),
            "wan" => Config::wan(),
            "local" => Config::local(),
            _ => Config::lan(),
        };
        let usual = Options::default();
        let zones = self.zones.unwrap_or_default();
        let casts = self.casts.unwrap_or_default().config().map_err(|p| p.inside("casts"))?;
        let manager = self.manager.unwrap_or_default().options(nodes).map_err(|p| p.inside("manager"))?;
        let options = Options {
            zone: zones.size.unwrap_or(usual.zone),
            seeds: zones.seeds.unwrap_or(usual.seeds),
            supervisors: zones.supervisors.unwrap_or(0),
            profile: config,
            by_reference,
            casts: (engine == Engine::Cast).then_some(casts),
            manager: (engine == Engine::Manager).then_some(manager),
            telling: true,
            ..usual
        };
        check_zones(&options, engine, nodes).map_err(|p| p.inside("zones"))?;
        let writes = self.attributes.map(AttributesText::writes).transpose().map_err(|p| p.inside("attributes"))?;
        Ok(Members { membership, options, writes })
    }
}

fn check_zones(options: &Options, engine: Engine, nodes: u32) -> Result<(), Problem> {
    if options.zone == 0 {
        return Err(Problem::new("size", "0 members make no zone: at least 1"));
    }
    if options.seeds == 0 {
        return Err(Problem::new("seeds", "without a seed nobody finds anybody: at least 1"));
    }
    if options.supervisors > 0 && engine != Engine::Zone {
        return Err(Problem::new("supervisors", format!("does not apply to engine `{}`", engine.name())));
    }
    if options.supervisors >= nodes {
        let text = format!("{} of {nodes} nodes: somebody must be left to be supervised", options.supervisors);
        return Err(Problem::new("supervisors", text));
    }
    Ok(())
}

impl AttributesText {
    fn writes(self) -> Result<Writes, Problem> {
        if !(1.0..=1e9).contains(&self.interval_ms) {
            let text = format!("{} is no pace: from 1 to 1000000000 milliseconds", self.interval_ms);
            return Err(Problem::new("interval_ms", text));
        }
        let keys = u8::try_from(self.keys).ok().filter(|&k| (1..=KEYS_MAX).contains(&k));
        let keys = keys.ok_or_else(|| Problem::new("keys", format!("{}: from 1 to {KEYS_MAX}", self.keys)))?;
        Ok(Writes { interval: Duration::from_secs_f64(self.interval_ms / 1e3), keys })
    }
}

/// Ranks of a node at most.
const SLOTS_MAX: u32 = 4096;
/// Attributes of a member at most: those of a baseline must fit into its heartbeat.
const KEYS_MAX: u8 = 16;
