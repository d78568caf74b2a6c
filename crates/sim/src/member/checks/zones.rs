//! HI-1 to HI-3: after healing, each member sees exactly the live members of its zone, whichever zone it is in by then,
//! and each supervisor's census counts them: nobody twice, nobody missing.

use super::bounds::apart;
use crate::check::{Checker, Cluster, Verdict};
use crate::member::Member;
use crate::node::State;
use phalanx_core::{Addr, Instant};
use phalanx_protocol::member::{Engine, Name, Version};
use phalanx_protocol::zone::Zone;
use std::collections::{BTreeMap, BTreeSet};

/// The members of each zone by node, in their own versions. Supervisors are those of no name.
type Zones = BTreeMap<Option<Name>, BTreeMap<u32, Version>>;

/// Waits until views and censuses are right.
pub struct Hierarchy;

fn live(cluster: &Cluster<'_, Member<Zone>>) -> Zones {
    let mut zones = Zones::new();
    for (node, member) in cluster.processes() {
        let zone = member.engine();
        if let (Some(State::Up | State::Paused), Some(own)) = (cluster.state(node), zone.version(zone.me())) {
            zones.entry(zone.name().cloned()).or_default().insert(node, own);
        }
    }
    zones
}

fn wrong_census(census: &BTreeMap<Name, u32>, zones: &Zones) -> Option<String> {
    let right: BTreeMap<&Name, u32> = zones.iter().filter_map(|(n, z)| Some((n.as_ref()?, z.len() as u32))).collect();
    let wrong = |(name, &count): (&&Name, &u32)| match census.get(*name) {
        Some(&known) if known == count => None,
        known => Some(format!("counts {known:?} in {name}, which has {count}")),
    };
    let more = || census.keys().find(|n| !right.contains_key(n)).map(|n| format!("counts {n}, which has nobody"));
    right.iter().find_map(wrong).or_else(more)
}

/// What is wrong with some view or census, if anything.
#[must_use]
pub fn wrong_zone(cluster: &Cluster<'_, Member<Zone>>) -> Option<String> {
    let zones = live(cluster);
    cluster.processes().find_map(|(node, member)| {
        let zone = member.engine();
        let right = zones.get(&zone.name().cloned())?;
        right.get(&node)?;
        let ours: BTreeMap<_, _> = zone.members().filter_map(|(s, v)| Some((member.whereabouts(s)?, v))).collect();
        if ours != *right {
            let (more, less): (Vec<_>, Vec<_>) = (
                ours.iter().filter(|m| right.get(m.0) != Some(m.1)).take(3).collect(),
                right.iter().filter(|m| ours.get(m.0) != Some(m.1)).take(3).collect(),
            );
            return Some(format!("node {node} in {:?} sees {more:?}, not {less:?}", zone.name()));
        }
        let census = zone.census().map(|(name, summary)| (name, summary.members)).collect();
        let wrong = wrong_census(&census, &zones).or_else(|| wrong_details(zone, &zones));
        wrong.filter(|_| zone.name().is_none()).map(|text| format!("supervisor {node} {text}"))
    })
}

/// Guards know the members of their zones one by one.
fn wrong_details(supervisor: &Zone, zones: &Zones) -> Option<String> {
    zones.iter().find_map(|(name, members)| {
        let name = name.as_ref()?;
        let known: BTreeSet<_> = supervisor.details(name)?.into_iter().map(|m| m.0.addr).collect();
        let right = members.keys().map(|&n| Addr::Local(n)).collect();
        (known != right).then(|| format!("knows {known:?} in {name}, not {right:?}"))
    })
}

impl Checker<Member<Zone>> for Hierarchy {
    fn name(&self) -> &'static str {
        "hierarchy"
    }

    fn pending(&mut self, _: Instant, cluster: &Cluster<'_, Member<Zone>>) -> Option<String> {
        wrong_zone(cluster)
    }

    fn ended(&mut self, _: Instant, cluster: &Cluster<'_, Member<Zone>>, verdict: &mut Verdict) {
        apart(cluster, verdict);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_missing_from_a_census_or_counted_too_often_is_caught() {
        let name = |n: &str| Name::new(n).unwrap();
        let members: BTreeMap<u32, Version> = (0..3).map(|n| (n, Version::first(1))).collect();
        let zones = Zones::from([(None, members.clone()), (Some(name("a")), members)]);
        let census = |zones: &[(&str, u32)]| zones.iter().map(|&(n, c)| (name(n), c)).collect();
        assert_eq!(wrong_census(&census(&[("a", 3)]), &zones), None);
        let wrong = |census| wrong_census(&census, &zones).unwrap();
        assert_eq!(wrong(census(&[])), "counts None in a, which has 3");
        assert_eq!(wrong(census(&[("a", 4)])), "counts Some(4) in a, which has 3");
        assert_eq!(wrong(census(&[("a", 3), ("b", 0)])), "counts b, which has nobody");
    }
}
