//! Which nodes take which ranks.
//!
//! CM-5. Ranks are numbered in the order of the hosts that were named, a block for each, as mpiexec does; without names, nodes with most free
//! slots come first, so that a job is on few nodes. With `oversubscribe`, what does not fit goes round by round: each node gets as many more as
//! it has slots.

use super::nodes::Node;
use super::{Key, State};
use crate::manager::words::Wanted;
use std::collections::{BTreeMap, BTreeSet};

/// Who takes how many ranks of a job.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Plan {
    /// In the order of ranks; none takes 0.
    pub(super) shares: Vec<(Key, u32)>,
    /// Slots that are kept free.
    pub(super) spares: Vec<(Key, u32)>,
}

/// A node that may be used, and for how many ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Candidate {
    key: Key,
    /// Ranks of this job that may go there at all.
    most: u32,
    /// Slots that this job may count on when nothing else runs.
    slots: u32,
    /// Slots that are free for it.
    free: u32,
}

/// What does not count for a job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Without<'a> {
    /// Slots that jobs before it in the queue wait for.
    pub(super) reserved: &'a BTreeMap<Key, u32>,
    /// Nodes that cannot run it.
    pub(super) unfit: &'a BTreeSet<Key>,
}

impl State {
    /// A place for a job now; otherwise why there is none.
    pub(super) fn place(&self, wanted: &Wanted, without: Without<'_>) -> Result<Plan, String> {
        // The quick way out of a full cluster: everybody who waits is asked again whenever a slot gets free.
        if !wanted.oversubscribe && self.index.free < u64::from(wanted.ranks) + u64::from(wanted.spares) {
            let wants = wants(wanted);
            return Err(format!("{wants} wanted, {} slots are free: it waits for others to end", self.index.free));
        }
        let mut candidates = self.candidates(wanted, without)?;
        if wanted.hosts.is_empty() {
            let name = |key: &Key| self.nodes.get(key).map(|node| &*node.info.name);
            candidates.sort_by(|a, b| {
                b.free.cmp(&a.free).then_with(|| name(&a.key).cmp(&name(&b.key))).then(a.key.cmp(&b.key))
            });
        }
        candidates.retain(|one| self.nodes.get(&one.key).is_some_and(|node| !node.doubtful));
        let free: u64 = candidates.iter().map(|c| u64::from(c.free)).sum();
        if free >= u64::from(wanted.ranks) + u64::from(wanted.spares) {
            return Ok(fill(&candidates, wanted));
        }
        if wanted.oversubscribe && candidates.iter().map(|c| u64::from(c.most)).sum::<u64>() >= u64::from(wanted.ranks)
        {
            return Ok(go_round(&candidates, wanted));
        }
        let at = self.where_it_may_run(wanted);
        Err(format!("{} wanted, {free} slots are free {at}: it waits for others to end", wants(wanted)))
    }

    /// Whether a job could ever run on the nodes that are there, if it had them for itself. In words when it could not.
    pub(super) fn could_run(&self, wanted: &Wanted, unfit: &BTreeSet<Key>) -> Result<(), String> {
        let candidates = self.candidates(wanted, Without { reserved: &BTreeMap::new(), unfit })?;
        let slots: u64 = candidates.iter().map(|c| u64::from(c.slots)).sum();
        let most: u64 = candidates.iter().map(|c| u64::from(c.most)).sum();
        if slots >= u64::from(wanted.ranks) + u64::from(wanted.spares)
            || (wanted.oversubscribe && most >= u64::from(wanted.ranks))
        {
            return Ok(());
        }
        let (wants, at) = (wants(wanted), self.where_it_may_run(wanted));
        let limit = wanted.per_node.map_or(String::new(), |most| format!(" with at most {most} on each"));
        let more = if wanted.oversubscribe { "allow more on each node" } else { "--oversubscribe" };
        Err(format!("{wants} wanted, there are {slots} slots {at}{limit}: use fewer, or {more}"))
    }

    fn where_it_may_run(&self, wanted: &Wanted) -> String {
        const SHOWN: usize = 8;
        if wanted.hosts.is_empty() {
            let there = self.nodes.values().filter(|node| node.takes_ranks()).count();
            return format!("on {there} nodes");
        }
        let mut names: Vec<&str> = wanted.hosts.iter().map(|(name, _)| &**name).collect();
        names.dedup();
        let more = if names.len() > SHOWN { format!(" and {} more", names.len() - SHOWN) } else { String::new() };
        names.truncate(SHOWN);
        format!("on {}{more}", names.join(", "))
    }

    /// Nodes that may run it, those first that were named first. An error when one of them cannot.
    fn candidates(&self, wanted: &Wanted, without: Without<'_>) -> Result<Vec<Candidate>, String> {
        let mut all: Vec<Candidate> = Vec::new();
        let most = wanted.per_node.unwrap_or(u32::MAX);
        let candidate = |node: &Node, most: u32| {
            let reserved = without.reserved.get(&node.info.key).copied().unwrap_or_default();
            let free = node.free().saturating_sub(reserved).min(most);
            Candidate { key: node.info.key, most, slots: node.info.slots.min(most), free }
        };
        if wanted.hosts.is_empty() {
            let fit = self.nodes.values().filter(|node| node.takes_ranks() && !without.unfit.contains(&node.info.key));
            all.extend(fit.map(|node| candidate(node, most)));
            return if all.is_empty() { Err(NOBODY.into()) } else { Ok(all) };
        }
        let mut limits: BTreeMap<Key, (usize, Option<u32>)> = BTreeMap::new();
        for (at, (name, slots)) in wanted.hosts.iter().enumerate() {
            let keys = self.named(name)?;
            // Named again: that many more.
            let (_, limit) = limits.entry(keys[0]).or_insert((at, Some(0)));
            *limit = limit.zip(*slots).map(|(before, more)| before.saturating_add(more));
        }
        let mut order: Vec<(usize, Key, Option<u32>)> = limits.into_iter().map(|(key, (at, n))| (at, key, n)).collect();
        order.sort_unstable_by_key(|&(at, ..)| at);
        for (_, key, limit) in order {
            let Some(node) = self.nodes.get(&key) else { continue };
            let name = &node.info.name;
            if node.lost_ms.is_some() {
                return Err(format!("{name} is not there: leave it out, or wait until it is back"));
            }
            if node.drained {
                return Err(format!("{name} is drained: leave it out, or say `phalanx drain --undo {name}`"));
            }
            if without.unfit.contains(&key) {
                return Err(format!("{name} cannot run it"));
            }
            if node.info.slots == 0 {
                return Err(format!("{name} runs no ranks: it has no slots"));
            }
            if let Some(wants) = limit.filter(|&n| n > node.info.slots && !wanted.oversubscribe) {
                let slots = node.info.slots;
                return Err(format!(
                    "{name} has {slots} slots, {wants} were asked of it: ask for {name}:{slots}, or --oversubscribe"
                ));
            }
            let mut one = candidate(node, most.min(limit.unwrap_or(u32::MAX)));
            if wanted.oversubscribe {
                one.most = most;
                one.slots = limit.unwrap_or(node.info.slots).min(most);
            }
            all.push(one);
        }
        Ok(all)
    }
}

const NOBODY: &str = "no node is there that runs ranks: `phalanx drain` shows slots of all nodes";

/// What a job needs, in words.
fn wants(wanted: &Wanted) -> String {
    let ranks = if wanted.ranks == 1 { "1 rank".into() } else { format!("{} ranks", wanted.ranks) };
    match wanted.spares {
        0 => ranks,
        1 => format!("{ranks} and 1 spare"),
        spares => format!("{ranks} and {spares} spares"),
    }
}

/// One after the other, each as full as it gets. Spares are kept where no rank is, when that can be: a node that falls takes none with it.
fn fill(candidates: &[Candidate], wanted: &Wanted) -> Plan {
    let mut left = wanted.ranks;
    let mut plan = Plan::default();
    let mut spare: Vec<(Key, u32)> = Vec::new();
    for one in candidates {
        let take = one.free.min(left);
        left -= take;
        if take > 0 {
            plan.shares.push((one.key, take));
        }
        if one.free > take {
            spare.push((one.key, one.free - take));
        }
    }
    // Only the last share may have room beside it: it comes first in the list, and last to be taken.
    let shared = plan.shares.last().map(|&(key, _)| key);
    spare.sort_by_key(|&(key, _)| Some(key) == shared);
    let mut left = wanted.spares;
    for (key, free) in spare {
        let keep = free.min(left);
        left -= keep;
        if keep > 0 {
            plan.spares.push((key, keep));
        }
    }
    plan
}

/// More ranks than slots: round by round. Spares mean nothing where slots do not count.
fn go_round(candidates: &[Candidate], wanted: &Wanted) -> Plan {
    let mut left = wanted.ranks;
    let mut takes = vec![0u32; candidates.len()];
    while left > 0 {
        let before = left;
        for (one, take) in candidates.iter().zip(&mut takes) {
            let more = one.slots.max(1).min(one.most - *take).min(left);
            *take += more;
            left -= more;
        }
        if left == before {
            break;
        }
    }
    let shares = candidates.iter().zip(takes).map(|(one, take)| (one.key, take)).filter(|&(_, take)| take > 0);
    Plan { shares: shares.collect(), spares: Vec::new() }
}
