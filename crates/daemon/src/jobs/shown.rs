//! What the manager shows, in the API's words.

use super::managed::{ended, policy};
use phalanx_api::manage::{LogLine, NodeSlots, RankInfo, Run, RunDetail, RunState};
use phalanx_protocol::manager::state::{self, RunPhase, Shown, Slots};
use phalanx_protocol::manager::words::decode;

/// All jobs.
pub(crate) fn runs(bytes: &[u8]) -> Option<Vec<Run>> {
    Some(decode::<Vec<Shown>>(bytes)?.into_iter().map(run).collect())
}

/// One of them; none when the manager does not know it.
pub(crate) fn detail(bytes: &[u8]) -> Option<Option<RunDetail>> {
    let shown: Option<state::RunDetail> = decode(bytes)?;
    Some(shown.map(|detail| {
        RunDetail {
            run: run(detail.run),
            all_ranks: detail
                .all_ranks
                .into_iter()
                .map(|r| RankInfo { rank: r.rank, node: r.node, life: r.life, end: r.end.map(ended) })
                .collect(),
            log: detail.log.into_iter().map(|line| LogLine { at_ms: line.at_ms, text: line.text }).collect(),
        }
    }))
}

/// Nodes and their slots.
pub(crate) fn slots(bytes: &[u8]) -> Option<Vec<NodeSlots>> {
    let slots = |s: Slots| {
        let Slots { node, slots, used, drained, alive } = s;
        NodeSlots { node, slots, used, drained, alive }
    };
    Some(decode::<Vec<Slots>>(bytes)?.into_iter().map(slots).collect())
}

fn run(shown: Shown) -> Run {
    let Shown { number, name, user, ranks, attempt, nodes, status, why, asked_ms, over_ms, .. } = shown;
    let state = match shown.state {
        RunPhase::Queued => RunState::Queued,
        RunPhase::Preparing => RunState::Preparing,
        RunPhase::Running => RunState::Running,
        RunPhase::Stopping => RunState::Stopping,
        RunPhase::Over => RunState::Over,
    };
    let on_failure = policy(shown.on_failure);
    Run { number, name, state, user, ranks, attempt, on_failure, nodes, status, why, asked_ms, over_ms }
}
