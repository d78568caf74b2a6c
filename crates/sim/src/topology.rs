//! Where nodes stand: flat, on a 3D torus, or in segments behind routers.
//!
//! The torus gives PM-1 its distances in hops; segments give TG-1 its distances in TTL.

use crate::latency::nanos;
use crate::network::NetworkError;
use phalanx_core::Duration;
use serde::Deserialize;
use std::ops::RangeInclusive;

/// Who is how far from whom.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Topology {
    /// Everybody is next to everybody, in one segment.
    #[default]
    Flat,
    /// A 3D torus: node n stands at (n mod x, n/x mod y, n/xy), and each hop takes its time.
    Torus {
        /// Nodes along the first axis.
        x: u32,
        /// Nodes along the second axis.
        y: u32,
        /// Nodes along the third axis.
        z: u32,
        /// What each hop adds to the latency.
        per_hop_us: f64,
    },
    /// Segments (racks) of equal size, in the order of node numbers, joined by routers.
    Segments {
        /// Nodes in a segment.
        size: u32,
        /// How the segments are joined.
        routers: Routers,
        /// What each router on the way adds to the latency.
        #[serde(default)]
        per_router_us: f64,
    },
}

/// How segments are joined: a name, or the TTL distance of each pair.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(untagged)]
pub enum Routers {
    /// A shape with a name.
    Named(Shape),
    /// `matrix[a][b]` is the TTL that gets a datagram from segment a to b: 1 inside, 2 across one router; 0 says
    /// that there is no way. It need not be symmetric nor transitive (003 Fig. 5).
    Matrix(Vec<Vec<u8>>),
}

/// The shapes with a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Shape {
    /// One router between all segments.
    Star,
    /// Segment i is joined to i+1 by a router.
    Chain,
}

impl Topology {
    /// The number of the segment that `node` is in.
    #[must_use]
    pub fn segment(&self, node: u32) -> u32 {
        match self {
            Self::Segments { size, .. } => node / size,
            Self::Flat | Self::Torus { .. } => 0,
        }
    }

    /// The TTL that gets a datagram from segment `a` to segment `b`; 0 when there is no way.
    #[must_use]
    pub fn distance(&self, a: u32, b: u32) -> u32 {
        match self {
            Self::Flat | Self::Torus { .. } => 1,
            Self::Segments { routers: Routers::Named(Shape::Star), .. } => 1 + u32::from(a != b),
            Self::Segments { routers: Routers::Named(Shape::Chain), .. } => a.abs_diff(b) + 1,
            Self::Segments { routers: Routers::Matrix(m), .. } => u32::from(m[a as usize][b as usize]),
        }
    }

    /// Segments among which those within `ttl` of `segment` are: a bound for loops, not the answer.
    pub(crate) fn around(&self, segment: u32, ttl: u8) -> RangeInclusive<u32> {
        let reach = u32::from(ttl.saturating_sub(1));
        match self {
            Self::Segments { routers: Routers::Named(Shape::Chain), .. } => {
                segment.saturating_sub(reach)..=segment.saturating_add(reach)
            }
            Self::Segments { .. } if reach > 0 => 0..=u32::MAX,
            _ => segment..=segment,
        }
    }

    /// Hops on the torus.
    #[must_use]
    pub fn hops(&self, a: u32, b: u32) -> u32 {
        let Self::Torus { x, y, z, .. } = *self else {
            return 0;
        };
        let axis = |a: u32, b: u32, n: u32| {
            let d = (a % n).abs_diff(b % n);
            d.min(n - d)
        };
        axis(a, b, x) + axis(a / x, b / x, y) + axis(a / x / y, b / x / y, z)
    }

    pub(crate) fn compile(&self, nodes: u32) -> Result<Extra, NetworkError> {
        match self {
            Self::Flat => Ok(Extra::None),
            Self::Torus { x, y, z, per_hop_us } => {
                let room = [x, y, z].iter().try_fold(1u32, |all, &&n| all.checked_mul(n)).unwrap_or(u32::MAX);
                if room < nodes {
                    return Err(NetworkError::Topology(format!("a torus of {x} × {y} × {z} has no room for {nodes}")));
                }
                Ok(Extra::PerHop(Duration(nanos(*per_hop_us)?)))
            }
            Self::Segments { size, routers, per_router_us } => {
                if *size == 0 {
                    return Err(NetworkError::Topology("a segment of no nodes".to_owned()));
                }
                let segments = nodes.div_ceil(*size) as usize;
                if let Routers::Matrix(m) = routers
                    && (m.len() < segments || m.iter().any(|row| row.len() < segments))
                {
                    return Err(NetworkError::Topology(format!("{segments} segments need as many rows and columns")));
                }
                Ok(Extra::PerRouter(Duration(nanos(*per_router_us)?)))
            }
        }
    }
}

/// What distance adds to the latency.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Extra {
    None,
    PerHop(Duration),
    PerRouter(Duration),
}

#[cfg(test)]
mod tests {
    use super::*;

    /// PM-1: hops on a torus go around the shorter way.
    #[test]
    fn a_torus_is_crossed_the_shorter_way() {
        let torus = Topology::Torus { x: 4, y: 4, z: 4, per_hop_us: 1.0 };
        let at = |x: u32, y: u32, z: u32| x + 4 * y + 16 * z;
        assert_eq!(torus.hops(at(0, 0, 0), at(3, 0, 0)), 1);
        assert_eq!(torus.hops(at(0, 0, 0), at(2, 2, 2)), 6);
        assert_eq!(torus.hops(at(1, 2, 3), at(1, 2, 3)), 0);
        assert!(torus.compile(65).is_err());
    }

    /// TG-1: the TTL distance is the number of routers plus one.
    #[test]
    fn segments_are_as_far_apart_as_their_routers_say() {
        let of = |routers| Topology::Segments { size: 10, routers, per_router_us: 0.0 };
        let chain = of(Routers::Named(Shape::Chain));
        assert_eq!((chain.segment(9), chain.segment(10), chain.distance(0, 3)), (0, 1, 4));
        assert_eq!(chain.around(5, 3), 3..=7);
        assert_eq!(of(Routers::Named(Shape::Star)).distance(0, 3), 2);
        let matrix = of(Routers::Matrix(vec![vec![1, 3], vec![0, 1]]));
        assert_eq!((matrix.distance(0, 1), matrix.distance(1, 0)), (3, 0));
        assert!(matrix.compile(21).is_err());
    }
}
