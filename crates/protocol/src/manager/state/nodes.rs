//! Nodes that can run ranks: who is there, and what each is taken up by.
//!
//! One arbiter says that a node is gone: the zone. That alone ends no rank: the daemon may have died alone, and its shepherds go on under their
//! lease. Ranks of a node are taken for dead when somebody proves it, or [`LEASE_MS`] and [`MARGIN_MS`] after the zone's word: until then their
//! shepherd may run them, later it has killed them.

use super::facts::NodeInfo;
use super::{Decision, JobId, Key, State, job};
use crate::manager::words::Report;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// How long ranks of a node may run that hears no majority of the manager's replicas.
pub const LEASE_MS: u64 = 10_000;
/// How much longer the manager waits, for clocks that differ and for words that were on their way.
pub const MARGIN_MS: u64 = 2_000;
/// The most nodes. Past that, the one that is gone for longest and runs nothing is forgotten.
pub const NODES_MAX: usize = 128 * 1024;
/// Reports of one agent that came before their turn and wait for it. Others are not taken; their agent says them again.
pub const EARLY_MAX: usize = 64;
/// Questions of one agent that are remembered, so as not to be counted twice.
pub const ASKED_MAX: usize = 256;
/// The longest name of a node or a zone.
pub(super) const NODE_NAME_MAX: usize = 255;

/// A node.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub(super) struct Node {
    pub(super) info: NodeInfo,
    /// Since when the zone says that it is gone.
    pub(super) lost_ms: Option<u64>,
    /// Gone for so long that nothing runs there.
    pub(super) expired: bool,
    pub(super) drained: bool,
    /// This start of its agent has said what runs there.
    pub(super) known: bool,
    /// A shepherd died there, as others say, and its agent has said nothing since: likely the whole node is gone, and the zone will say so.
    pub(super) doubtful: bool,
    /// Jobs with a part here, and how many slots each holds; none for the home of a job that runs nothing here.
    pub(super) jobs: BTreeMap<JobId, u32>,
    /// The sum of these.
    pub(super) used: u32,
    /// The last report that was heard of this start. None: it begins with the first inventory, whatever its number.
    through: Option<u64>,
    early: BTreeMap<u64, Report>,
    /// Questions up to here were asked, or are forgotten.
    asked_through: u64,
    asked: BTreeSet<u64>,
}

impl Node {
    fn new(info: NodeInfo) -> Self {
        Self {
            info,
            lost_ms: None,
            expired: false,
            drained: false,
            known: false,
            doubtful: false,
            jobs: BTreeMap::new(),
            used: 0,
            through: None,
            early: BTreeMap::new(),
            asked_through: 0,
            asked: BTreeSet::new(),
        }
    }

    /// It is there, and takes new ranks.
    pub(super) fn takes_ranks(&self) -> bool {
        self.lost_ms.is_none() && !self.drained && self.info.slots > 0
    }

    /// It can be told to run something: what runs there is known, and somebody will hear it.
    pub(super) fn is_usable(&self) -> bool {
        self.takes_ranks() && self.known && !self.doubtful
    }

    /// Slots that can be given away now.
    pub(super) fn free(&self) -> u32 {
        if self.is_usable() { self.info.slots.saturating_sub(self.used) } else { 0 }
    }

    /// When nothing runs here any more, for sure.
    pub(super) fn lease_over_ms(&self) -> Option<u64> {
        self.lost_ms.filter(|_| !self.expired).map(|ms| ms.saturating_add(LEASE_MS + MARGIN_MS))
    }

    /// The reports whose turn has come, now that this one is there.
    fn take_report(&mut self, number: u64, report: Report) -> Vec<Report> {
        let through = match (self.through, &report) {
            (Some(through), _) => through,
            (None, Report::Inventory { .. }) => number.saturating_sub(1),
            (None, _) if number == 1 => 0,
            (None, _) => return Vec::new(),
        };
        self.doubtful = false;
        if number <= through || (number > through + 1 && self.early.len() >= EARLY_MAX) {
            return Vec::new();
        }
        self.early.insert(number, report);
        let mut due = Vec::new();
        let mut through = through;
        while let Some(report) = self.early.remove(&(through + 1)) {
            through += 1;
            due.push(report);
        }
        self.through = Some(through);
        due
    }

    /// False when that was asked before.
    fn take_question(&mut self, number: u64) -> bool {
        if number <= self.asked_through || !self.asked.insert(number) {
            return false;
        }
        while self.asked.len() > ASKED_MAX {
            self.asked_through = self.asked.pop_first().unwrap_or_default();
        }
        true
    }

    fn begins_anew(&mut self, info: NodeInfo) {
        self.info = info;
        self.known = false;
        self.doubtful = false;
        self.through = Some(0);
        self.early.clear();
        self.asked_through = 0;
        self.asked.clear();
    }
}

impl State {
    pub(super) fn on_seen(&mut self, mut info: NodeInfo, out: &mut Vec<Decision>) {
        let key = info.key;
        if info.name.len() > NODE_NAME_MAX || info.zone.len() > NODE_NAME_MAX {
            info.name = super::log::cut(info.name, NODE_NAME_MAX);
            info.zone = super::log::cut(info.zone, NODE_NAME_MAX);
        }
        let Some(node) = self.nodes.get(&key) else {
            self.make_room_for_a_node();
            return self.put_node(key, Node::new(info));
        };
        if info.incarnation < node.info.incarnation {
            return;
        }
        let anew = info.incarnation > node.info.incarnation;
        let (was_lost, jobs) = (node.lost_ms.is_some(), node.jobs.keys().copied().collect::<Vec<_>>());
        let name = info.name.clone();
        self.edit_node(&key, |node| {
            node.lost_ms = None;
            node.expired = false;
            if anew { node.begins_anew(info) } else { node.info = info }
        });
        let news = match (was_lost, anew) {
            (true, false) => format!("{name} is back: its ranks went on"),
            (_, true) => format!("the agent of {name} has started anew; what runs there goes on"),
            (false, false) => return,
        };
        for id in jobs {
            self.with_job(id, out, |_, job, at_ms, _| job.log.say(at_ms, &*news));
        }
    }

    pub(super) fn on_lost(&mut self, key: Key, incarnation: u64, out: &mut Vec<Decision>) {
        let Some(node) = self.nodes.get(&key) else { return };
        if node.info.incarnation != incarnation || node.lost_ms.is_some() {
            return;
        }
        let now_ms = self.now_ms;
        let jobs: Vec<JobId> = node.jobs.keys().copied().collect();
        self.edit_node(&key, |node| {
            node.lost_ms = Some(now_ms);
            node.doubtful = false;
        });
        for id in jobs {
            self.with_job(id, out, |state, job, _, out| state.node_lost(job, key, out));
        }
    }

    /// The lease of a node that is gone is over: whatever ran there is dead.
    pub(super) fn on_lease_over(&mut self, key: Key, out: &mut Vec<Decision>) {
        let Some(node) = self.nodes.get(&key) else { return };
        let jobs: Vec<JobId> = node.jobs.keys().copied().collect();
        self.edit_node(&key, |node| node.expired = true);
        for id in jobs {
            self.with_job(id, out, |state, job, _, out| state.node_expired(job, key, out));
        }
    }

    pub(super) fn on_drain(&mut self, name: &str, drained: bool) -> Result<(), String> {
        let keys = self.named(name)?;
        for key in keys {
            self.edit_node(&key, |node| node.drained = drained);
        }
        Ok(())
    }

    /// The reports of this agent whose turn has come.
    pub(super) fn due_reports(&mut self, from: Key, incarnation: u64, number: u64, report: Report) -> Vec<Report> {
        match self.nodes.get(&from) {
            Some(node) if node.info.incarnation == incarnation => {}
            // Of a start that is over, or that the zone has not told of yet: then its agent says it again.
            _ => return Vec::new(),
        }
        self.edit_node(&from, |node| node.take_report(number, report)).unwrap_or_default()
    }

    /// True when a question of this agent is new.
    pub(super) fn is_new_question(&mut self, from: Key, incarnation: u64, number: u64) -> bool {
        match self.nodes.get(&from) {
            Some(node) if node.info.incarnation == incarnation => {}
            _ => return false,
        }
        self.edit_node(&from, |node| node.take_question(number)).unwrap_or_default()
    }

    /// Which start of this agent is known, and the last of its reports that was heard: all before it were, too. Reports past it have to be said
    /// again. An agent that is not known has to wait until the zone has told of it.
    #[must_use]
    pub fn heard(&self, agent: &Key) -> Option<(u64, u64)> {
        self.nodes.get(agent).map(|node| (node.info.incarnation, node.through.unwrap_or_default()))
    }

    /// The zone says that this node is gone: its agent is owed no sign of life that would prolong the lease of its shepherds.
    #[must_use]
    pub fn is_lost(&self, agent: &Key) -> bool {
        self.nodes.get(agent).is_none_or(|node| node.lost_ms.is_some())
    }

    /// What is known of a node.
    #[must_use]
    pub fn node(&self, key: &Key) -> Option<&NodeInfo> {
        self.nodes.get(key).map(|node| &node.info)
    }

    /// All nodes, with whether they are there.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeInfo, bool)> {
        self.nodes.values().map(|node| (&node.info, node.lost_ms.is_none()))
    }

    pub(super) fn name_of(&self, key: &Key) -> String {
        self.nodes.get(key).map_or_else(|| format!("{key:?}"), |node| node.info.name.clone())
    }

    /// The nodes of that name: one, unless a machine came back with another key. One that is there goes before those that are not.
    pub(super) fn named(&self, name: &str) -> Result<Vec<Key>, String> {
        let mut keys: Vec<Key> = self.index.names.get(name).into_iter().flatten().copied().collect();
        keys.sort_by_key(|key| (self.nodes.get(key).is_none_or(|node| node.lost_ms.is_some()), *key));
        if keys.is_empty() {
            Err(format!("no node is called {name}: `phalanx drain` lists them all"))
        } else {
            Ok(keys)
        }
    }

    /// Slots of a node that a job takes or gives back.
    pub(super) fn hold(&mut self, key: &Key, job: JobId, slots: u32) {
        self.edit_node(key, |node| {
            *node.jobs.entry(job).or_default() += slots;
            node.used = node.used.saturating_add(slots);
        });
    }

    /// A job takes less of a node.
    pub(super) fn release(&mut self, key: &Key, job: JobId, slots: u32) {
        self.edit_node(key, |node| {
            if let Some(held) = node.jobs.get_mut(&job) {
                let slots = slots.min(*held);
                *held -= slots;
                node.used -= slots;
            }
        });
    }

    /// A job leaves a node.
    pub(super) fn leave(&mut self, key: &Key, job: JobId) {
        self.edit_node(key, |node| node.used -= node.jobs.remove(&job).unwrap_or_default());
    }

    fn make_room_for_a_node(&mut self) {
        if self.nodes.len() < NODES_MAX {
            return;
        }
        let idle = self.nodes.iter().filter(|(key, node)| node.jobs.is_empty() && !self.seats().contains(key));
        let oldest = idle.filter_map(|(key, node)| node.lost_ms.map(|ms| (ms, *key))).min();
        if let Some((_, key)) = oldest {
            self.unlist_node(&key);
            self.nodes.remove(&key);
        }
    }

    fn put_node(&mut self, key: Key, node: Node) {
        if self.nodes.len() < NODES_MAX {
            self.nodes.insert(key, node);
            self.list_node(&key);
            // One that waits for this very node is told something else from now on.
            self.index.room = true;
        }
    }

    /// Changes a node, and what is indexed of it.
    pub(super) fn edit_node<R>(&mut self, key: &Key, change: impl FnOnce(&mut Node) -> R) -> Option<R> {
        let before = self.nodes.get(key).map(|node| (node.is_usable(), node.free()))?;
        self.unlist_node(key);
        let result = self.nodes.edit(key, change);
        self.list_node(key);
        // Whoever waits for slots may look again; also for those that a job holds there already.
        let after = self.nodes.get(key).map(|node| (node.is_usable(), node.free()))?;
        self.index.room |= (after.0 && !before.0) || after.1 > before.1;
        result
    }

    fn unlist_node(&mut self, key: &Key) {
        let Some(node) = self.nodes.get(key) else { return };
        self.index.free -= u64::from(node.free());
        if let Some(at_ms) = node.lease_over_ms() {
            self.index.alarms.remove(&(at_ms, job::Alarm::Lease(*key)));
        }
        if let Some(keys) = self.index.names.get_mut(&node.info.name) {
            keys.remove(key);
            if keys.is_empty() {
                self.index.names.remove(&node.info.name);
            }
        }
    }

    pub(super) fn list_node(&mut self, key: &Key) {
        let Some(node) = self.nodes.get(key) else { return };
        self.index.free += u64::from(node.free());
        if let Some(at_ms) = node.lease_over_ms() {
            self.index.alarms.insert((at_ms, job::Alarm::Lease(*key)));
        }
        self.index.names.entry(node.info.name.clone()).or_default().insert(*key);
    }
}
