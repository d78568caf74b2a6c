//! Workloads as scenarios see them: their names, and the roles that nodes play in them.
//!
//! A fault can fall on whoever plays a role when it comes. Who leads an ordered group is seen from outside: the leader
//! is the first to know that a message is ordered, because everybody else learns it from the leader. So the member
//! that was first to deliver the group's latest message is the one that led last.

use crate::station::Workload;
use std::collections::BTreeMap;

/// Nodes 0 to 2 are a group, 3 to 5 the next one, and so on: see [`crate::station::Ordered`].
const GROUP: u32 = 3;
/// The roles in an ordered group.
const ROLES: [&str; 2] = ["leader", "follower"];

/// The name of a workload, as scenarios write it.
pub(crate) fn name(workload: &Workload) -> &'static str {
    match workload {
        Workload::Heartbeat(_) => "heartbeat",
        Workload::Reliable(_) => "reliable",
        Workload::Managed(_) => "managed",
        Workload::Order(_) => "order",
        Workload::Mixed(_) => "mixed",
    }
}

/// The roles of a workload.
pub(crate) fn roles(workload: &Workload) -> &'static [&'static str] {
    match workload {
        Workload::Order(_) => &ROLES,
        Workload::Mixed(mixed) if mixed.order.is_some() => &ROLES,
        _ => &[],
    }
}

/// Who led each ordered group last, with the index that shows it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leaders(BTreeMap<u32, (u64, u32)>);

impl Leaders {
    /// `node` delivered the message at `index` of its group.
    pub(crate) fn delivered(&mut self, node: u32, index: u64) {
        let latest = self.0.entry(node / GROUP).or_insert((index, node));
        if index > latest.0 {
            *latest = (index, node);
        }
    }

    /// Whether `node` plays `role`. Nobody does in a group that has not ordered anything yet.
    pub(crate) fn plays(&self, node: u32, role: &str) -> bool {
        let leads = self.0.get(&(node / GROUP)).map(|latest| latest.1 == node);
        match role {
            "leader" => leads == Some(true),
            "follower" => leads == Some(false),
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MM-3: the first to deliver leads; a member that catches up later does not.
    #[test]
    fn whoever_delivers_first_leads() {
        let mut leaders = Leaders::default();
        assert!(!leaders.plays(1, "leader") && !leaders.plays(1, "follower"));
        for (node, index) in [(1, 0), (0, 0), (2, 0), (1, 1), (5, 0)] {
            leaders.delivered(node, index);
        }
        let lead = |leaders: &Leaders| (0..6).filter(|&n| leaders.plays(n, "leader")).collect::<Vec<_>>();
        assert_eq!(lead(&leaders), [1, 5]);
        leaders.delivered(2, 2);
        leaders.delivered(1, 2);
        assert_eq!(lead(&leaders), [2, 5]);
        assert!(leaders.plays(0, "follower") && !leaders.plays(2, "follower"));
    }
}
