//! The network between the nodes: what a scenario writes down, and what a message meets.
//!
//! A message leaves through its sender's link (bandwidth, queue), is lost or doubled, is under way for a while
//! (distribution, distance), and enters through the switch of the receiver's segment and the receiver's link.
//!
//! **Contention** (PM-1, 000 §7): a switch handles one message each `per_flow_us`. So n messages that meet in it
//! leave one by one, and the last waits (n−1)·per_flow longer than alone: latency grows with the number of nodes
//! that talk at once, as the paper measured. Only the receiving side's switch counts: it is where a tree's
//! acknowledgements meet.

use crate::latency::{Latency, Sampler, nanos};
use crate::partition::Partition;
use crate::topology::{Extra, Topology};
use phalanx_core::{Duration, Instant, Rng};
use serde::Deserialize;
use thiserror::Error;

/// The network of a run, as a scenario writes it. The default is flat, 100 to 200 µs, and loses nothing.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Network {
    /// How long a message is under way.
    pub latency: Latency,
    /// The same for messages that cross a router, when it differs.
    pub inter_latency: Option<Latency>,
    /// Who is how far from whom.
    pub topology: Topology,
    /// Part of the messages that are lost.
    pub loss: f64,
    /// Part of the messages that arrive twice.
    pub duplication: f64,
    /// Part of the messages that are held up, so that later ones overtake them.
    pub reorder: f64,
    /// How long at most these are held up.
    pub reorder_us: f64,
    /// The link of each node; unlimited when absent.
    pub link: Option<Link>,
    /// The switch of each segment; infinitely fast when absent.
    pub switch: Option<Switch>,
}

/// A node's link to the network, the same in both directions.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Its speed.
    pub mbit_s: f64,
    /// Bytes that wait in front of it; a message that finds more is dropped.
    pub queue_bytes: u64,
}

/// The switch of a segment.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Switch {
    /// Time it needs for each message.
    pub per_flow_us: f64,
}

/// Why a network cannot be built. Nothing was changed.
#[derive(Clone, PartialEq, Debug, Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// A latency makes no sense.
    #[error("latency: {0}")]
    Latency(String),
    /// The topology does not fit the nodes.
    #[error("topology: {0}")]
    Topology(String),
    /// A probability lies outside of 0 to 1.
    #[error("{name} = {value} is not a probability: write a number from 0 to 1")]
    Probability {
        /// The field.
        name: &'static str,
        /// What it holds.
        value: f64,
    },
    /// A link without speed moves nothing.
    #[error("link: mbit_s = {0} moves nothing: write a positive number, or leave the link out")]
    Link(f64),
    /// Threads need a minimum latency: it is how far each may run ahead of the others.
    #[error("{0} threads need a network whose shortest latency is above zero: raise it, or use one thread")]
    NoLookahead(usize),
    /// A run needs nodes and threads.
    #[error("a run needs at least one node and one thread, and at most 2^24 nodes")]
    Size,
}

/// Faults of the network as a whole that come and go, on top of what its model always does.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Weather {
    /// Part of the messages that are lost.
    pub loss: f64,
    /// Part of the messages that arrive twice.
    pub duplication: f64,
    /// Part of the messages that are held up.
    pub reorder: f64,
    /// How long at most these are held up.
    pub reorder_by: Duration,
    /// Added to each latency.
    pub slower: Duration,
}

/// The network of a run, made ready, with the faults that are on it now. Read by all, changed between windows.
pub(crate) struct World {
    pub(crate) seed: u64,
    pub(crate) nodes: u32,
    pub(crate) topology: Topology,
    pub(crate) weather: Weather,
    pub(crate) partitions: Vec<Partition>,
    /// Time a message needs in a switch.
    pub(crate) per_flow: Option<Duration>,
    pub(crate) link: Option<Pipe>,
    /// No message between two nodes is under way for less: how far threads may run ahead of each other.
    pub(crate) lookahead: Duration,
    /// Time a write to disk takes.
    pub(crate) disk: Duration,
    /// Datagrams that wait in the socket of a paused node.
    pub(crate) socket: usize,
    calm: Weather,
    latency: Sampler,
    inter: Option<Sampler>,
    extra: Extra,
    /// Loss, duplication or held-up messages are on: the slow way.
    rough: bool,
}

/// A link made ready.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pipe {
    /// Nanoseconds for each byte, as a 32.32 fixed-point number.
    per_byte: u64,
    queue: u64,
}

impl Pipe {
    /// When `bytes` that come at `now` are through, given when the link is free; `None` when its queue is full.
    pub(crate) fn pass(self, now: Instant, free: Instant, bytes: u64) -> Option<Instant> {
        if free.since(now) > self.time(self.queue) {
            return None;
        }
        Some(now.max(free) + self.time(bytes))
    }

    fn time(self, bytes: u64) -> Duration {
        Duration(((u128::from(bytes) * u128::from(self.per_byte)) >> 32) as u64)
    }
}

/// What the network does to one message.
pub(crate) enum Fate {
    Lost,
    Arrives(Duration),
    Twice(Duration, Duration),
}

impl World {
    pub(crate) fn new(seed: u64, nodes: u32, network: &Network) -> Result<Self, NetworkError> {
        for (name, value) in
            [("loss", network.loss), ("duplication", network.duplication), ("reorder", network.reorder)]
        {
            if !(0.0..=1.0).contains(&value) {
                return Err(NetworkError::Probability { name, value });
            }
        }
        let link = match network.link {
            Some(Link { mbit_s, queue_bytes }) if mbit_s > 0.0 => {
                Some(Pipe { per_byte: (8_000.0 / mbit_s * (1u64 << 32) as f64) as u64, queue: queue_bytes })
            }
            Some(Link { mbit_s, .. }) => return Err(NetworkError::Link(mbit_s)),
            None => None,
        };
        if network.switch.is_some() && matches!(network.topology, Topology::Torus { .. }) {
            return Err(NetworkError::Topology("a torus has no switches".to_owned()));
        }
        let calm = Weather {
            loss: network.loss,
            duplication: network.duplication,
            reorder: network.reorder,
            reorder_by: Duration(nanos(network.reorder_us)?),
            slower: Duration::ZERO,
        };
        let mut world = Self {
            seed,
            nodes,
            topology: network.topology.clone(),
            weather: Weather::default(),
            partitions: Vec::new(),
            per_flow: network.switch.map(|s| nanos(s.per_flow_us)).transpose()?.map(Duration),
            link,
            lookahead: Duration::ZERO,
            disk: Duration::ZERO,
            socket: usize::MAX,
            calm,
            latency: network.latency.compile()?,
            inter: network.inter_latency.as_ref().map(Latency::compile).transpose()?,
            extra: network.topology.compile(nodes)?,
            rough: false,
        };
        world.set_weather(Weather::default());
        world.lookahead = world.shortest();
        Ok(world)
    }

    pub(crate) fn set_weather(&mut self, weather: Weather) {
        self.weather = weather;
        self.rough = [&self.calm, &weather].iter().any(|w| w.loss > 0.0 || w.duplication > 0.0 || w.reorder > 0.0);
    }

    fn shortest(&self) -> Duration {
        let far = self.inter.as_ref().unwrap_or(&self.latency).min();
        match self.extra {
            Extra::None => self.latency.min(),
            Extra::PerHop(hop) => self.latency.min() + hop,
            Extra::PerRouter(router) => self.latency.min().min(far + router),
        }
    }

    /// True when a partition stops what `from` sends to `to`.
    #[inline]
    pub(crate) fn cut(&self, from: u32, to: u32) -> bool {
        !self.partitions.is_empty() && self.partitions.iter().any(|p| p.stops(from, to))
    }

    /// True when nothing gets from `from` to `to`: a partition, or no way at all.
    pub(crate) fn blocked(&self, from: u32, to: u32) -> bool {
        self.cut(from, to) || self.distance(from, to) == 0
    }

    /// TTL distance between the segments of two nodes; 0 when there is no way.
    #[inline]
    pub(crate) fn distance(&self, from: u32, to: u32) -> u32 {
        match self.extra {
            Extra::PerRouter(_) => self.topology.distance(self.topology.segment(from), self.topology.segment(to)),
            Extra::None | Extra::PerHop(_) => 1,
        }
    }

    /// How long one message from `from` to `to` is under way.
    #[inline]
    pub(crate) fn latency(&self, from: u32, to: u32, rng: &mut Rng) -> Duration {
        let way = match self.extra {
            Extra::None => self.latency.draw(rng),
            Extra::PerHop(hop) => self.latency.draw(rng) + hop * u64::from(self.topology.hops(from, to)),
            Extra::PerRouter(router) => {
                let routers = self.distance(from, to).saturating_sub(1);
                let sampler = if routers == 0 { &self.latency } else { self.inter.as_ref().unwrap_or(&self.latency) };
                sampler.draw(rng) + router * u64::from(routers)
            }
        };
        way + self.weather.slower
    }

    /// What happens to one message from `from` to `to`. All chance is drawn from `rng`, the sender's.
    #[inline]
    pub(crate) fn fate(&self, from: u32, to: u32, rng: &mut Rng) -> Fate {
        if !self.rough {
            return Fate::Arrives(self.latency(from, to, rng));
        }
        let layers = [self.calm, self.weather];
        if layers.iter().any(|w| rng.chance(w.loss)) {
            return Fate::Lost;
        }
        let mut under_way = self.latency(from, to, rng);
        for w in layers {
            if rng.chance(w.reorder) {
                under_way = under_way + Duration(rng.below(w.reorder_by.0));
            }
        }
        if layers.iter().any(|w| rng.chance(w.duplication)) {
            return Fate::Twice(under_way, self.latency(from, to, rng));
        }
        Fate::Arrives(under_way)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_names_its_network_and_a_slip_of_the_pen_is_refused() {
        let text = r#"
            latency = { kind = "lognormal", median_us = 120, sigma = 0.4, min_us = 50 }
            inter_latency = { kind = "fixed", us = 900 }
            topology = { kind = "segments", size = 20, routers = "chain", per_router_us = 30 }
            loss = 0.01
            link = { mbit_s = 1000, queue_bytes = 100_000 }
            switch = { per_flow_us = 1.5 }
        "#;
        let network: Network = toml::from_str(text).unwrap();
        let world = World::new(1, 100, &network).unwrap();
        assert_eq!(world.lookahead, Duration::from_micros(50));
        assert_eq!(world.distance(0, 99), 5);
        let matrix = "topology = { kind = 'segments', size = 2, routers = [[1, 2], [2, 1]] }";
        assert!(World::new(1, 4, &toml::from_str(matrix).unwrap()).is_ok());
        assert!(toml::from_str::<Network>("losss = 0.1").is_err());
        assert!(toml::from_str::<Network>("latency = { kind = 'fixed', us = 1, ms = 2 }").is_err());
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_name() {
        let broken = Network { loss: 1.5, ..Network::default() };
        assert_eq!(World::new(1, 2, &broken).err(), Some(NetworkError::Probability { name: "loss", value: 1.5 }));
        let still = Network { link: Some(Link { mbit_s: 0.0, queue_bytes: 1 }), ..Network::default() };
        assert_eq!(World::new(1, 2, &still).err(), Some(NetworkError::Link(0.0)));
    }

    #[test]
    fn a_full_link_drops_and_an_idle_one_only_takes_its_time() {
        let network = Network { link: Some(Link { mbit_s: 8.0, queue_bytes: 1_500 }), ..Network::default() };
        let pipe = World::new(1, 2, &network).unwrap().link.unwrap();
        let first = pipe.pass(Instant(0), Instant(0), 1_000).unwrap();
        assert_eq!(first, Instant(1_000_000));
        let second = pipe.pass(Instant(0), first, 1_000).unwrap();
        assert_eq!(pipe.pass(Instant(0), second, 1_000), None);
        assert!(pipe.pass(Instant(600_000), second, 1_000).is_some());
    }
}
