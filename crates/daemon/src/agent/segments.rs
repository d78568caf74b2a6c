//! Segments of the network, in the API's words.

use super::Agent;
use phalanx_api::segments::Level;
use phalanx_protocol::member::{Engine, Slot};
use phalanx_protocol::node::scout::Scout;
use phalanx_protocol::segment::Standing;

impl Agent {
    /// The groups that this node takes part in, from its own segment up; none without segments.
    #[must_use]
    pub fn segments(&self) -> Vec<Level> {
        let node = self.driver().node();
        let Some(segment) = self.engine().segment().or(node.scout().map(Scout::segment)) else { return Vec::new() };
        let name = |slot: Slot| segment.card(slot).map(|card| card.name.as_str().to_owned());
        let level = |Standing { level, leader, backup, members }: Standing| {
            let mut members: Vec<String> = members.into_iter().filter_map(name).collect();
            members.sort();
            Level { level, ttl: level + 1, leader: leader.and_then(name), backup: backup.and_then(name), members }
        };
        segment.levels().into_iter().map(level).collect()
    }

    /// The node takes its zone from what is around it.
    pub(super) fn look_around(&mut self) {
        if self.leaving.is_some() || !self.driver.node().is_curious(self.driver.now()) {
            return;
        }
        let Some(zone) = self.driver.act(|node, now, out| node.look_around(now, out)) else { return };
        tracing::info!(zone = zone.as_str(), "in this zone now");
        if let Some(scribe) = &self.scribe {
            scribe.keep_zone(zone.as_str().to_owned());
        }
    }
}
