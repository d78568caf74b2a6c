//! ZN-1: after healing, the views of connected members become equal, and hold exactly the live ones of their zone.

use crate::check::{Checker, Cluster};
use crate::member::Member;
use crate::node::State;
use phalanx_core::Instant;
use phalanx_protocol::member::{Engine, Version};
use std::collections::BTreeMap;

/// Waits until each view is right.
pub struct Views;

/// The live members and their own versions. A member that left in good order is none.
pub(super) fn live<E: Engine + Send>(cluster: &Cluster<'_, Member<E>>) -> BTreeMap<u32, Version> {
    let own = |m: &Member<E>| m.engine().version(m.engine().me());
    let up = |n: &u32| matches!(cluster.state(*n), Some(State::Up | State::Paused));
    cluster.processes().filter(|(n, _)| up(n)).filter_map(|(n, m)| Some((n, own(m)?))).collect()
}

fn difference(ours: &BTreeMap<u32, Version>, right: &BTreeMap<u32, Version>) -> Option<String> {
    if let Some((node, version)) = ours.iter().find(|(n, _)| !right.contains_key(n)) {
        return Some(format!("still sees node {node} as {version}"));
    }
    right.iter().find_map(|(node, version)| match ours.get(node) {
        None => Some(format!("does not see node {node}, which is {version}")),
        Some(seen) if seen != version => Some(format!("sees node {node} as {seen}, which is {version}")),
        Some(_) => None,
    })
}

/// What is wrong with some view, if anything: each must hold exactly the live members of its zone, in their own versions.
pub fn wrong_view<E: Engine + Send>(cluster: &Cluster<'_, Member<E>>) -> Option<String> {
    let mut zones: BTreeMap<u32, BTreeMap<u32, Version>> = BTreeMap::new();
    let zone = |node| cluster.process(node).map_or(0, |m| m.layout().zone_of(node));
    for (node, version) in live(cluster) {
        zones.entry(zone(node)).or_default().insert(node, version);
    }
    cluster.processes().find_map(|(node, member)| {
        let right = zones.get(&zone(node)).filter(|z| z.contains_key(&node))?;
        let engine = member.engine();
        let ours = engine.members().filter_map(|(s, v)| Some((member.whereabouts(s)?, v))).collect();
        difference(&ours, right).map(|text| format!("node {node} {text}"))
    })
}

impl<E: Engine + Send> Checker<Member<E>> for Views {
    fn name(&self) -> &'static str {
        "views"
    }

    fn pending(&mut self, _: Instant, cluster: &Cluster<'_, Member<E>>) -> Option<String> {
        wrong_view(cluster)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zombies_the_missing_and_the_outdated_are_caught() {
        let view = |nodes: &[(u32, u32)]| -> BTreeMap<u32, Version> {
            nodes.iter().map(|&(n, minor)| (n, Version { incarnation: 1, minor })).collect()
        };
        let right = view(&[(0, 1), (1, 2)]);
        assert_eq!(difference(&right, &right), None);
        let text = |ours| difference(&view(ours), &right).unwrap();
        assert_eq!(text(&[(0, 1), (1, 2), (2, 1)]), "still sees node 2 as 1.1");
        assert_eq!(text(&[(0, 1)]), "does not see node 1, which is 1.2");
        assert_eq!(text(&[(0, 1), (1, 1)]), "sees node 1 as 1.1, which is 1.2");
    }
}
