//! CM-5: no job is lost, and nothing of one that is over stays; and after healing there is one whole group again.

use crate::check::{Checker, Cluster, Verdict};
use crate::manager::{self, Office};
use crate::member::{Member, Note};
use phalanx_core::Instant;
use phalanx_protocol::manager::state::RunPhase;
use phalanx_protocol::manager::words::JobId;
use phalanx_protocol::member::Engine;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What became of jobs, counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct JobsTally {
    /// Somebody wanted one.
    pub asked: u64,
    /// It was taken.
    pub taken: u64,
    /// It was refused.
    pub refused: u64,
    /// Ranks that started.
    pub started: u64,
    /// Commands that agents carried out.
    pub commands: u64,
    /// The newest epoch of the group.
    pub epoch: u64,
    /// Replicas that were done harm.
    pub harmed: u64,
}

/// The jobs that were taken.
#[derive(Default)]
pub struct Jobs {
    taken: BTreeSet<JobId>,
    tally: Arc<Mutex<JobsTally>>,
}

impl Jobs {
    /// Where they are counted.
    #[must_use]
    pub fn tally(&self) -> Arc<Mutex<JobsTally>> {
        Arc::clone(&self.tally)
    }

    fn count(&self) -> MutexGuard<'_, JobsTally> {
        self.tally.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: Engine + Send> Checker<Member<E>> for Jobs {
    fn name(&self) -> &'static str {
        "jobs"
    }

    fn note(&mut self, _: Instant, _: u32, note: &Note, _: &mut Verdict) {
        let Note::Managed(note) = *note else { return };
        let mut count = self.count();
        match note {
            manager::Note::Asked => count.asked += 1,
            manager::Note::Refused => count.refused += 1,
            manager::Note::Started { .. } => count.started += 1,
            manager::Note::CarriedOut { .. } => count.commands += 1,
            manager::Note::Harmed => count.harmed += 1,
            manager::Note::Group { epoch, .. } => count.epoch = count.epoch.max(epoch.into()),
            manager::Note::Taken(job) => {
                count.taken += 1;
                drop(count);
                self.taken.insert(job);
            }
            _ => {}
        }
    }

    fn pending(&mut self, at: Instant, cluster: &Cluster<'_, Member<E>>) -> Option<String> {
        let offices = || cluster.processes().filter_map(|(n, member)| Some((n, member.office()?)));
        let replica = whole(at, &mut offices().map(|(_, office)| office))?;
        let replica = match replica {
            Ok(replica) => replica,
            Err(text) => return Some(text),
        };
        if let Some((n, _)) = offices().find(|(_, office)| office.waits() > 0) {
            return Some(format!("node {n} waits for an answer of the manager"));
        }
        let state = replica.steward().replica()?.core().state();
        for job in &self.taken {
            match state.run(&job.0.to_string()) {
                None => return Some(format!("job {} was taken, and nobody knows of it", job.0)),
                Some(detail) if detail.run.state != RunPhase::Over => {
                    return Some(format!("job {} is not over: {:?} {}", job.0, detail.run.state, detail.run.why));
                }
                Some(_) => {}
            }
        }
        if let Some(run) = state.runs().iter().find(|run| run.state != RunPhase::Over) {
            return Some(format!("job {} is not over: {:?} {}", run.number, run.state, run.why));
        }
        if let Some(slots) = state.slots().iter().find(|slots| slots.used > 0) {
            return Some(format!("{} slots of {} are held, and no job runs", slots.used, slots.node));
        }
        let (n, _) = offices().find(|(_, office)| !office.is_idle())?;
        Some(format!("something of a job that is over is left on node {n}"))
    }
}

/// A replica of a group that is whole: all seats that live have one, they are the same, and they decide. What is missing otherwise; `None`
/// where nobody runs the manager.
pub(crate) fn whole<'a>(
    now: Instant,
    offices: &mut dyn Iterator<Item = &'a Office>,
) -> Option<Result<&'a Office, String>> {
    let offices: Vec<_> = offices.collect();
    let newest = offices.iter().filter_map(|o| o.steward().group()).max_by_key(|g| g.epoch);
    offices.first()?;
    let Some(group) = newest else { return Some(Err("there is no manager yet".to_owned())) };
    let mut first: Option<&Office> = None;
    for key in group.keys() {
        let Some(office) = offices.iter().find(|o| o.steward().agent().key() == key) else { continue };
        let name = || group.seats.iter().find(|s| s.key == key).map_or("", |s| s.name.as_str());
        let status = office.steward().status(now);
        let Some(replica) = office.steward().replica().filter(|r| r.group().epoch == group.epoch) else {
            return Some(Err(format!("{} has a seat in epoch {} and no replica there", name(), group.epoch)));
        };
        if !status.decides {
            return Some(Err(format!("the replica on {} decides nothing: {}", name(), status.trouble)));
        }
        let statement = replica.core().statement();
        let same = first.and_then(|f| f.steward().replica()).is_none_or(|r| r.core().statement() == statement);
        if !same {
            return Some(Err(format!("the replica on {} is not where the others are", name())));
        }
        first = first.or(Some(office));
    }
    let first = first.ok_or_else(|| "nobody of the group is there".to_owned());
    Some(first.and_then(|first| {
        let heard = first.steward().status(now).heard.len();
        if heard * 2 > group.seats.len() { Ok(first) } else { Err("too few of the group are there".to_owned()) }
    }))
}
