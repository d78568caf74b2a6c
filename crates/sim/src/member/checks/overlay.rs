//! ZN-4: the overlay of each zone at rest.

use crate::check::{Checker, Cluster};
use crate::member::Member;
use phalanx_core::Instant;
use phalanx_protocol::member::Engine;
use phalanx_protocol::zone::{Config, Zone};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Random neighbours over K_r that a member may have: those who were refused elsewhere are taken beyond K_r.
const SPARE: usize = 4;

/// Who is linked with whom.
type Graph = BTreeMap<u32, BTreeSet<u32>>;

/// The links as each member sees them, by zone.
#[must_use]
fn overlays(cluster: &Cluster<'_, Member<Zone>>) -> BTreeMap<u32, Graph> {
    let mut zones: BTreeMap<u32, Graph> = BTreeMap::new();
    // Who left in good order sees itself no more.
    for (node, member) in cluster.processes().filter(|(_, m)| m.engine().version(m.engine().me()).is_some()) {
        let links = member.engine().neighbours().filter_map(|s| member.whereabouts(s)).collect();
        zones.entry(member.layout().zone_of(node)).or_default().insert(node, links);
    }
    zones
}

/// The longest way between two members; `None` when some are not connected.
#[must_use]
fn diameter(graph: &Graph) -> Option<usize> {
    graph.keys().map(|&from| reach(graph, from)).try_fold(0, |most, far| Some(most.max(far?)))
}

/// The longest way from one member; `None` when it does not reach all.
fn reach(graph: &Graph, from: u32) -> Option<usize> {
    let mut seen = BTreeMap::from([(from, 0)]);
    let mut queue = VecDeque::from([from]);
    while let Some(at) = queue.pop_front() {
        let next = seen[&at] + 1;
        for &to in &graph[&at] {
            if graph.contains_key(&to) && !seen.contains_key(&to) {
                seen.insert(to, next);
                queue.push_back(to);
            }
        }
    }
    (seen.len() == graph.len()).then(|| seen.into_values().max().unwrap_or(0))
}

/// Waits until the overlay is symmetric, connected and within its bounds.
pub struct Overlay {
    successors: usize,
    randoms: usize,
}

impl Overlay {
    /// For members of this profile.
    #[must_use]
    pub fn new(profile: &Config) -> Self {
        Self { successors: profile.successors, randoms: profile.randoms }
    }

    fn missing(&self, graph: &Graph) -> Option<String> {
        let fewest = self.successors.min(graph.len() - 1);
        let most = 2 * self.successors + self.randoms + SPARE;
        for (node, links) in graph {
            if let Some(peer) = links.iter().find(|p| graph.get(p).is_none_or(|l| !l.contains(node))) {
                return Some(format!("node {node} is linked with {peer}, which does not know it"));
            }
            if !(fewest..=most).contains(&links.len()) {
                return Some(format!("node {node} has {} neighbours, not {fewest} to {most}", links.len()));
            }
        }
        let bound = (graph.len() as f64).ln() / (self.randoms.max(2) as f64).ln() + 2.0;
        match diameter(graph) {
            None => Some("the overlay is not connected".to_owned()),
            Some(d) if d as f64 > bound => Some(format!("the diameter is {d}, over {bound:.1}")),
            Some(_) => None,
        }
    }
}

impl Checker<Member<Zone>> for Overlay {
    fn name(&self) -> &'static str {
        "overlay"
    }

    fn pending(&mut self, _: Instant, cluster: &Cluster<'_, Member<Zone>>) -> Option<String> {
        overlays(cluster).values().find_map(|graph| self.missing(graph))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(links: &[(u32, &[u32])]) -> Graph {
        links.iter().map(|&(n, l)| (n, l.iter().copied().collect())).collect()
    }

    #[test]
    fn one_sided_links_islands_and_long_ways_are_caught() {
        let checker = Overlay { successors: 1, randoms: 2 };
        let missing = |links| checker.missing(&graph(links)).unwrap_or_default();
        assert_eq!(missing(&[(0, &[1]), (1, &[0])]), "");
        assert!(missing(&[(0, &[1]), (1, &[])]).contains("does not know it"));
        assert!(missing(&[(0, &[1]), (1, &[0]), (2, &[3]), (3, &[2])]).contains("not connected"));
        assert!(missing(&[(0, &[]), (1, &[])]).contains("0 neighbours"));
        let line: Vec<(u32, Vec<u32>)> =
            (0..20).map(|n: u32| (n, [n.wrapping_sub(1), n + 1].into_iter().filter(|&p| p < 20).collect())).collect();
        let line: Vec<_> = line.iter().map(|(n, l)| (*n, l.as_slice())).collect();
        assert!(missing(&line).contains("diameter is 19"));
    }
}
