//! What must hold of the state after each entry, whatever it was.

use super::job::{Job, Phase, RankState};
use super::ranges::each;
use super::{Decision, Index, JobId, Key, State};
use std::collections::BTreeMap;

impl State {
    /// What does not hold; in words.
    pub(super) fn violation(&self) -> Result<(), String> {
        let must = |holds: bool, what: &dyn Fn() -> String| if holds { Ok(()) } else { Err(what()) };
        for (key, node) in self.nodes.iter() {
            let used: u32 = node.jobs.values().sum();
            must(used == node.used, &|| format!("{key:?} counts {} slots, its jobs hold {used}", node.used))?;
            let normal: u32 = node.jobs.iter().filter(|(id, _)| !self.oversubscribes(id)).map(|(_, slots)| slots).sum();
            must(normal <= node.info.slots, &|| format!("{key:?} gave {normal} of {} slots", node.info.slots))?;
            for (id, &slots) in &node.jobs {
                let job = self.jobs.get(id).ok_or_else(|| format!("{key:?} is held by {id:?}, which is over"))?;
                let held = job.member(key).map_or(0, |m| m.slots) + job.spares.get(key).copied().unwrap_or_default();
                must(held == slots, &|| format!("{key:?} gave {slots} slots to {id:?}, which knows of {held}"))?;
            }
        }
        for (id, job) in self.jobs.iter() {
            must(*id == job.id && job.phase != Phase::Over, &|| format!("{id:?} is not what it should be"))?;
            job.violation().map_err(|what| format!("{id:?}: {what}"))?;
        }
        let sums = [
            (self.nodes.sum(), self.nodes.counted()),
            (self.jobs.sum(), self.jobs.counted()),
            (self.over.sum(), self.over.counted()),
        ];
        must(sums.iter().all(|(kept, counted)| kept == counted), &|| "a sum is not that of its table".into())?;
        let index = self.index_from_scratch();
        must(index == self.index, &|| format!("the index is {:?}, it should be {index:?}", self.index))
    }

    fn oversubscribes(&self, id: &JobId) -> bool {
        self.jobs.get(id).is_some_and(|job| job.wanted.oversubscribe)
    }

    fn index_from_scratch(&self) -> Index {
        Self::decode(&self.encode()).map(|state| state.index).unwrap_or_default()
    }
}

impl Job {
    fn violation(&self) -> Result<(), String> {
        let must = |holds: bool, what: &dyn Fn() -> String| if holds { Ok(()) } else { Err(what()) };
        let mut live: BTreeMap<u32, u32> = BTreeMap::new();
        for (rank, r) in self.ranks.iter() {
            let member = self.crew.get(&r.member).ok_or_else(|| format!("rank {rank} is nowhere"))?;
            must(each(&member.ranks).any(|other| other == *rank), &|| {
                format!("rank {rank} is not listed where it is")
            })?;
            if r.state == RankState::Live {
                *live.entry(r.member).or_default() += 1;
                must(self.waiting.get(rank).is_none(), &|| format!("rank {rank} lives and waits"))?;
            }
        }
        let sum: u32 = live.values().sum();
        must(sum == self.live, &|| format!("{} ranks are counted alive, {sum} are", self.live))?;
        let mut listed = 0;
        for (place, member) in self.crew.iter() {
            let counted = live.get(place).copied().unwrap_or_default();
            must(counted == member.live, &|| format!("{} counts {} ranks, {counted} live", member.name, member.live))?;
            must(self.place_of(&member.node) == Some(*place), &|| format!("{} is not found", member.name))?;
            listed += each(&member.ranks).count();
        }
        must(listed == self.ranks.len(), &|| format!("{listed} ranks are listed, {} are there", self.ranks.len()))?;
        let unready = self.crew.values().filter(|member| member.pending.contains_key(&0)).count() as u32;
        let preparing = matches!(self.phase, Phase::Preparing { .. });
        must(!preparing || unready == self.unready, &|| format!("{} are not ready, {unready} are not", self.unready))?;
        must(self.phase != Phase::Running || self.live > 0 || !self.waiting.is_empty(), &|| {
            "it runs, and has ended".into()
        })?;
        must(self.phase == Phase::Running || self.waiting.is_empty(), &|| "ranks wait that never start".into())
    }
}

/// What must hold of decisions, as somebody sees it who knows nothing but them.
#[derive(Clone, Debug, Default)]
pub(super) struct Watch {
    /// Answers that were given.
    answered: std::collections::BTreeSet<(Key, u64, u64)>,
}

impl Watch {
    pub(super) fn saw(&mut self, decision: &Decision) -> Result<(), String> {
        match decision {
            Decision::Answer { to, incarnation, number, .. } => {
                let new = self.answered.insert((*to, *incarnation, *number));
                if new { Ok(()) } else { Err(format!("{to:?} is answered {number} twice")) }
            }
            Decision::Command { to, command } => {
                let ascending = to.is_sorted() && to.windows(2).all(|pair| pair[0] != pair[1]);
                if ascending && !to.is_empty() { Ok(()) } else { Err(format!("to {to:?}: {command:?}")) }
            }
            Decision::Move { .. } | Decision::Grow { .. } => Ok(()),
        }
    }
}
