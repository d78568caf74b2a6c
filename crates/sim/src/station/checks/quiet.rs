//! After healing and rest: queues drain, links fall silent, tables keep within their bounds.

use crate::check::{Checker, Cluster, Verdict};
use crate::station::Station;
use crate::station::workload::Mixed;
use phalanx_core::Instant;

/// Waits for queues to drain and, where no group goes on beating, for links to fall silent.
pub struct Quiet {
    beats: bool,
}

impl Quiet {
    /// A checker for stations with these parts of a workload.
    #[must_use]
    pub fn new(parts: &Mixed) -> Self {
        Self { beats: parts.order.is_some() }
    }
}

impl Checker<Station> for Quiet {
    fn name(&self) -> &'static str {
        "quiet"
    }

    fn pending(&mut self, _: Instant, cluster: &Cluster<'_, Station>) -> Option<String> {
        cluster.processes().find_map(|(node, station)| {
            let backlog = station.backlog();
            if backlog > 0 {
                return Some(format!("{backlog} bytes wait at node {node}"));
            }
            (!self.beats && !station.is_silent()).then(|| format!("the link of node {node} has something to do"))
        })
    }

    fn ended(&mut self, _: Instant, cluster: &Cluster<'_, Station>, verdict: &mut Verdict) {
        for (node, station) in cluster.processes() {
            let (peers, bound) = (station.link().peers(), station.bound());
            if peers > bound {
                verdict.violation(node, format!("the link knows {peers} peers, over {bound}"));
            }
        }
    }
}
