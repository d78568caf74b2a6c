//! FI-5: what was injected so far, and what it did to links, agents and replicas (004 §6.3, Fig. 5).

use crate::member::Member;
use crate::sim::Sim;
use phalanx_fault::Effects;
use phalanx_protocol::link::count::Dropped;
use phalanx_protocol::member::Engine;

/// Added up over the processes that run now. Who counts from some time on takes the difference: only a process that dies takes along what it
/// had counted.
#[must_use]
pub fn effects<E: Engine + Send>(sim: &Sim<Member<E>>) -> Effects {
    let cluster = sim.cluster();
    let mut sum = Effects::default();
    for node in cluster.0.iter().flat_map(|shard| &shard.nodes) {
        let injector = node.meta.peek_extras().and_then(|extras| extras.injector.as_ref());
        sum.faults += injector.map_or(0, |injector| injector.counters().injected());
    }
    for (_, member) in cluster.processes() {
        let link = member.node().link();
        let counters = link.counters();
        // The link lends its injector only to be changed; a copy can be asked, too.
        sum += Effects {
            faults: link.clone().tap().counters().injected(),
            retransmissions: counters.rcl.retransmissions + counters.mml.retransmissions,
            duplicates: counters.rcl.duplicates + counters.mml.duplicates,
            rejected: counters.dropped(Dropped::BadSeal)
                + counters.rcl.checksum
                + counters.mml.checksum
                + counters.mml.bad_signature,
            ..Effects::default()
        };
        let Some(office) = member.office() else { continue };
        let (steward, status) = (office.steward(), office.steward().status(sim.now()));
        sum += Effects {
            retransmissions: status.counters.retransmissions + steward.agent().said_again,
            duplicates: status.counters.duplicates + status.refused.duplicates,
            false_alarms: status.counters.false_alarms,
            self_diagnoses: status.counters.self_diagnoses,
            rejected: status.counters.unproved + status.refused.unproved,
            ..Effects::default()
        };
    }
    sum
}
