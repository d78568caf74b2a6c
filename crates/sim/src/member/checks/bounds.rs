//! Tables keep within their bounds, and nobody is both there and gone.

use crate::check::{Checker, Cluster, Verdict};
use crate::member::Member;
use phalanx_core::Instant;
use phalanx_protocol::member::Engine;
use phalanx_protocol::zone::{Config, Tables, Zone};

/// Peers that a link at rest may hold beside neighbours and contacts: those it parts with, and whom it asked.
const OTHERS: usize = 16;

/// Looks at all tables at the end of a run.
pub struct Bounds {
    profile: Config,
}

impl Bounds {
    /// For members of this profile.
    #[must_use]
    pub fn new(profile: &Config) -> Self {
        Self { profile: profile.clone() }
    }

    fn over(&self, tables: &Tables, peers: usize) -> Option<String> {
        let bound = tables.neighbours + tables.contacts + OTHERS;
        [
            ("peers in the link", peers, bound),
            ("members in the roster", tables.roster, self.profile.members),
            ("members in the history", tables.history, self.profile.history),
            ("contacts", tables.contacts, Zone::CONTACTS),
            ("probes for others", tables.relays, Zone::RELAYS),
        ]
        .into_iter()
        .find_map(|(what, count, bound)| (count > bound).then(|| format!("{count} {what}, over {bound}")))
    }
}

/// ZN-2: H ∩ View = ∅, at each member.
pub(super) fn apart(cluster: &Cluster<'_, Member<Zone>>, verdict: &mut Verdict) {
    for (node, member) in cluster.processes() {
        let zone = member.engine();
        if let Some(slot) = zone.history().find(|&s| zone.version(s).is_some()) {
            verdict.violation(node, format!("slot {} is in the view and in the history", slot.0));
        }
    }
}

impl Checker<Member<Zone>> for Bounds {
    fn name(&self) -> &'static str {
        "bounds"
    }

    /// Links that nobody needs are kept for a few seconds.
    fn pending(&mut self, _: Instant, cluster: &Cluster<'_, Member<Zone>>) -> Option<String> {
        // Who left is about to end, and does nothing about its links any more.
        let there = |m: &Member<Zone>| m.engine().version(m.engine().me()).is_some();
        cluster.processes().filter(|(_, m)| there(m)).find_map(|(node, member)| {
            let over = self.over(&member.engine().tables(), member.node().link().peers())?;
            Some(format!("node {node} has {over}"))
        })
    }

    fn ended(&mut self, _: Instant, cluster: &Cluster<'_, Member<Zone>>, verdict: &mut Verdict) {
        apart(cluster, verdict);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_table_that_grows_over_its_bound_is_caught() {
        let checker = Bounds::new(&Config::lan());
        let fine = Tables { neighbours: 6, contacts: 2, ..Tables::default() };
        assert_eq!(checker.over(&fine, 24), None);
        assert!(checker.over(&fine, 25).unwrap().contains("25 peers"));
        let over = |tables: Tables| checker.over(&tables, 0).unwrap();
        assert!(over(Tables { roster: 65_537, ..fine }).contains("roster"));
        assert!(over(Tables { history: 4097, ..fine }).contains("history"));
        assert!(over(Tables { contacts: Zone::CONTACTS + 1, ..fine }).contains("contacts"));
        assert!(over(Tables { relays: Zone::RELAYS + 1, ..fine }).contains("probes"));
    }
}
