//! CM-2: a rank lives once, wherever its shepherds are and whoever hears of them.

use crate::check::{Checker, Verdict};
use crate::fault::{Fault, NodeFault};
use crate::manager;
use crate::member::{Member, Note};
use phalanx_core::Instant;
use phalanx_protocol::manager::words::{Attempt, JobId};
use phalanx_protocol::member::Engine;
use std::collections::BTreeMap;

/// A life of a rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Life {
    node: u32,
    attempt: Attempt,
    life: u32,
    /// Its lease is over then, whether or not anybody has looked.
    until: Instant,
}

/// The ranks that live.
#[derive(Default)]
pub struct Lives(BTreeMap<(JobId, u32), Vec<Life>>);

impl<E: Engine + Send> Checker<Member<E>> for Lives {
    fn name(&self) -> &'static str {
        "lives"
    }

    fn fault(&mut self, _: Instant, fault: &Fault, _: &mut Verdict) {
        // Whose host falls, falls with it. A process that falls leaves them as they are.
        if let Fault::Node(node, NodeFault::CrashHost) = *fault {
            self.0.values_mut().for_each(|lives| lives.retain(|l| l.node != node));
        }
    }

    fn note(&mut self, at: Instant, node: u32, note: &Note, verdict: &mut Verdict) {
        let Note::Managed(note) = *note else { return };
        match note {
            manager::Note::Started { attempt, rank, life, until } => {
                let lives = self.0.entry((attempt.job, rank)).or_default();
                lives.retain(|l| l.until > at);
                if let Some(other) = lives.first() {
                    let text = format!(
                        "job {} rank {rank} lives twice: attempt {} life {} on node {}, attempt {} life {life} here",
                        attempt.job.0, other.attempt.number, other.life, other.node, attempt.number
                    );
                    verdict.violation(node, text);
                }
                lives.push(Life { node, attempt, life, until });
            }
            manager::Note::Ended { attempt, rank } => {
                if let Some(lives) = self.0.get_mut(&(attempt.job, rank)) {
                    lives.retain(|l| l.node != node || l.attempt != attempt);
                }
            }
            manager::Note::Leased(until) => {
                let here = self.0.values_mut().flatten().filter(|l| l.node == node);
                // A lease that was over is not prolonged: its ranks are dead.
                here.filter(|l| l.until > at).for_each(|l| l.until = l.until.max(until));
            }
            manager::Note::Wrong => verdict.violation(node, "a shepherd was told what makes no sense where it is"),
            _ => {}
        }
    }
}
