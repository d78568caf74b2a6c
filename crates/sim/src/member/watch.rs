//! What a run of members is asked: have all booted, who knew of a fault when.

use super::{Member, Note};
use crate::sim::Sim;
use phalanx_core::{Duration, Instant};
use phalanx_protocol::member::Engine;
use phalanx_protocol::zone::Zone;

/// How a cluster booted.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Boot {
    /// From the start until all views were full; `None` when it did not come to that in time.
    pub took: Option<Duration>,
    /// Members whose view was not full at the end.
    pub behind: usize,
}

/// True when each live member sees as many members as `zone` has live ones.
pub fn all_views_full<E: Engine + Send>(sim: &Sim<Member<E>>, expected: usize) -> usize {
    sim.cluster().processes().filter(|(_, m)| m.engine().len() != expected).count()
}

/// Runs until all views have `expected` members, at most for `bound`, looking each `step`.
pub fn boot<E: Engine + Send>(sim: &mut Sim<Member<E>>, expected: usize, step: Duration, bound: Duration) -> Boot {
    let begin = sim.now();
    loop {
        sim.run_for(step);
        let behind = all_views_full(sim, expected);
        let took = sim.now().since(begin);
        if behind == 0 || took >= bound {
            return Boot { took: (behind == 0).then_some(took), behind };
        }
    }
}

/// Of what was told since `since`: when the first and the last of `survivors` knew that all of `gone` had left, and how
/// many of them know it.
pub fn last_known<E: Engine + Send>(
    sim: &Sim<Member<E>>,
    since: Instant,
    gone: &[u32],
    survivors: usize,
) -> (Option<Duration>, Option<Duration>, usize) {
    let nodes = sim.cluster().processes().map(|(n, _)| n).max().map_or(0, |n| n as usize + 1);
    let mut left = vec![0usize; nodes];
    let (mut first, mut last, mut know) = (None, None, 0);
    for &(at, node, note) in sim.notes().iter().filter(|n| n.0 >= since) {
        if let Note::Left { node: who, .. } = note
            && gone.binary_search(&who).is_ok()
            && let Some(count) = left.get_mut(node as usize)
        {
            *count += 1;
            first = first.or(Some(at.since(since)));
            if *count == gone.len() {
                know += 1;
                last = Some(at.since(since));
            }
        }
    }
    (first, last.filter(|_| know >= survivors), know)
}

/// HI-3: the zones that a supervisor knows of, and the members in all of them.
pub fn zones_known(member: &Member<Zone>) -> (usize, u32) {
    member.engine().census().fold((0, 0), |(zones, members), (_, zone)| (zones + 1, members + zone.members))
}
