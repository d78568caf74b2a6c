//! HI-3: after healing, each supervisor's census is true.

use super::views::live;
use crate::check::{Checker, Cluster};
use crate::member::Member;
use crate::member::build::zone_name;
use phalanx_core::Instant;
use phalanx_protocol::member::Name;
use phalanx_protocol::zone::Zone;
use std::collections::BTreeMap;

/// Waits until all supervisors know of all zones and of the live members in them.
pub struct Census;

/// Members by zone.
type Zones = BTreeMap<Name, u32>;

/// A zone without anybody has nobody who speaks for it: the last that was known of it stands.
fn difference(ours: &Zones, right: &Zones) -> Option<String> {
    right.iter().find_map(|(zone, members)| match ours.get(zone) {
        None => Some(format!("does not know of zone {zone}")),
        Some(seen) if seen != members => Some(format!("counts {seen} members in zone {zone}, which has {members}")),
        Some(_) => None,
    })
}

impl Checker<Member<Zone>> for Census {
    fn name(&self) -> &'static str {
        "census"
    }

    fn pending(&mut self, _: Instant, cluster: &Cluster<'_, Member<Zone>>) -> Option<String> {
        let (mut right, mut supervisors) = (Zones::new(), Vec::new());
        for (node, _) in live(cluster) {
            let Some(member) = cluster.process(node) else { continue };
            if member.layout().is_supervisor(node) {
                supervisors.push((node, member));
            } else {
                *right.entry(zone_name(member.layout().zone_of(node))).or_default() += 1;
            }
        }
        supervisors.into_iter().find_map(|(node, member)| {
            let ours = member.engine().census().map(|(zone, summary)| (zone, summary.members)).collect();
            difference(&ours, &right).map(|text| format!("node {node} {text}"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_zone_that_is_missing_or_miscounted_is_caught() {
        let zones = |all: &[(u32, u32)]| -> Zones { all.iter().map(|&(z, n)| (zone_name(z), n)).collect() };
        let right = zones(&[(0, 5), (1, 4)]);
        assert_eq!(difference(&zones(&[(0, 5), (1, 4), (2, 3)]), &right), None, "zone 2 has died out");
        assert_eq!(difference(&zones(&[(0, 5)]), &right).unwrap(), "does not know of zone z1");
        assert_eq!(difference(&zones(&[(0, 5), (1, 5)]), &right).unwrap(), "counts 5 members in zone z1, which has 4");
    }
}
