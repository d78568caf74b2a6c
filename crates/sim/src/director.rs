//! What happens between two windows: mail is exchanged, checkers hear what was said, and what is planned is done.

use crate::check::{Checker, Verdict, Violation};
use crate::fault::{Fault, NodeFault};
use crate::io::Mail;
use crate::network::{Weather, World};
use crate::node::Held;
use crate::process::Process;
use crate::shard::{Shard, Shared};
use crate::sim::Factory;
use phalanx_core::{Duration, Instant};
use std::collections::BTreeMap;
use std::sync::MutexGuard;

/// Violations that a report holds; more are only counted.
const VIOLATIONS: usize = 32;

/// The part of a run that lies between the windows.
pub(crate) struct Director<P: Process> {
    pub(crate) now: Instant,
    /// What is planned, by time and then in the order of planning.
    pub(crate) actions: BTreeMap<(Instant, u64), Action<P::Command>>,
    pub(crate) planned: u64,
    pub(crate) checkers: Vec<Box<dyn Checker<P>>>,
    pub(crate) notes: Vec<(Instant, u32, P::Note)>,
    pub(crate) keep_notes: bool,
    pub(crate) violations: Vec<Violation>,
    pub(crate) more: u64,
    pub(crate) healed: Option<Instant>,
    pub(crate) settled_in: Option<Duration>,
    pub(crate) replay: String,
    pub(crate) alone_below: u64,
    /// Events until the last window, and in it.
    pub(crate) events: (u64, u64),
}

pub(crate) enum Action<C> {
    Fault(Fault),
    Command(u32, C),
}

impl<P: Process> Director<P> {
    pub(crate) fn new(seed: u64, alone_below: u64) -> Self {
        Self {
            now: Instant::ZERO,
            actions: BTreeMap::new(),
            planned: 0,
            checkers: Vec::new(),
            notes: Vec::new(),
            keep_notes: false,
            violations: Vec::new(),
            more: 0,
            healed: None,
            settled_in: None,
            replay: format!("seed {seed}"),
            alone_below,
            events: (0, 0),
        }
    }

    pub(crate) fn plan(&mut self, at: Instant, action: Action<P::Command>) {
        self.actions.insert((at.max(self.now), self.planned), action);
        self.planned += 1;
    }

    /// Exchanges mail, hears notes, inflicts what is due, and says where the next window ends; `None` at `limit`.
    pub(crate) fn next(
        &mut self,
        shards: &mut [MutexGuard<'_, &mut Shard<P>>],
        world: &mut World,
        factory: &Factory<P>,
        window: Duration,
        limit: Instant,
    ) -> Option<Instant> {
        loop {
            exchange(shards);
            self.hear(shards);
            let next = shards.iter().map(|s| s.io.next_at()).fold(Instant::NEVER, Instant::min);
            let due = self.actions.first_key_value().map_or(Instant::NEVER, |(key, _)| key.0);
            if due <= next && due <= limit {
                self.now = self.now.max(due);
                let (_, action) = self.actions.pop_first().expect("an action is due");
                self.act(shards, world, factory, action);
                continue;
            }
            if next >= limit {
                self.now = self.now.max(limit);
                return None;
            }
            let events = shards.iter().map(|s| s.io.stats.events).sum();
            self.events = (events, events - self.events.0);
            let end = (next + window).min(due).min(limit);
            self.now = end;
            return Some(end);
        }
    }

    fn act(
        &mut self,
        shards: &mut [MutexGuard<'_, &mut Shard<P>>],
        world: &mut World,
        factory: &Factory<P>,
        action: Action<P::Command>,
    ) {
        let at = self.now;
        let each = shards[0].io.each;
        match action {
            Action::Command(node, command) => {
                if node < world.nodes {
                    let shard = &mut shards[(node / each) as usize];
                    shard.tell(Shared { world, factory }, at, node, Held::Command(command));
                }
            }
            Action::Fault(fault) => {
                self.judge(at, |checker, verdict| checker.fault(at, &fault, verdict));
                let mut befall = |world: &World, node: u32, fault| {
                    if node < world.nodes {
                        shards[(node / each) as usize].befall(Shared { world, factory }, at, node, fault);
                    }
                };
                match fault {
                    Fault::Node(node, fault) => befall(world, node, fault),
                    Fault::ResetStream(a, b) => {
                        befall(world, a, NodeFault::ResetStream(b));
                        befall(world, b, NodeFault::ResetStream(a));
                    }
                    Fault::Partition(partition) => {
                        world.partitions.retain(|p| p.name() != partition.name());
                        world.partitions.push(partition);
                    }
                    Fault::HealPartition(name) => world.partitions.retain(|p| p.name() != name),
                    Fault::Inject { node, rule, peers } => {
                        let shard = shards.get_mut((node / each) as usize).filter(|_| node < world.nodes);
                        let added = shard.map(|s| s.inject(Shared { world, factory }, at, node, *rule, &peers));
                        if let Some(Err(error)) = added {
                            self.record("injector", at, Some(node), error.to_string());
                        }
                    }
                    Fault::Weather(weather) => world.set_weather(weather),
                    Fault::HealAll { restart } => {
                        world.partitions.clear();
                        world.set_weather(Weather::default());
                        for shard in shards {
                            shard.heal(Shared { world, factory }, at, restart);
                        }
                    }
                }
            }
        }
    }

    /// Checkers hear what was said in the last window, by (time, node).
    fn hear(&mut self, shards: &mut [MutexGuard<'_, &mut Shard<P>>]) {
        if shards.iter().all(|s| s.io.notes.is_empty()) {
            return;
        }
        let mut notes: Vec<_> = shards.iter_mut().flat_map(|s| std::mem::take(&mut s.io.notes)).collect();
        // Stable: what one node said at one time keeps its order.
        notes.sort_by_key(|&(at, node, _)| (at, node));
        for (at, node, note) in &notes {
            self.judge(*at, |checker, verdict| checker.note(*at, *node, note, verdict));
        }
        if self.keep_notes {
            self.notes.append(&mut notes);
        }
    }

    /// Puts a question about what happened at `at` to each checker. Faults in answer come now.
    pub(crate) fn judge(&mut self, at: Instant, mut question: impl FnMut(&mut dyn Checker<P>, &mut Verdict)) {
        let mut checkers = std::mem::take(&mut self.checkers);
        for checker in &mut checkers {
            let mut verdict = Verdict::default();
            question(checker.as_mut(), &mut verdict);
            for (node, text) in verdict.violations {
                self.record(checker.name(), at, node, text);
            }
            for fault in verdict.faults {
                self.plan(self.now, Action::Fault(fault));
            }
        }
        self.checkers = checkers;
    }

    pub(crate) fn record(&mut self, checker: &'static str, at: Instant, node: Option<u32>, text: String) {
        if self.violations.len() < VIOLATIONS {
            self.violations.push(Violation { checker, at, node, text });
        } else {
            self.more += 1;
        }
    }
}

/// Each shard's mail goes to the shards it is for.
fn exchange<P: Process>(shards: &mut [MutexGuard<'_, &mut Shard<P>>]) {
    for from in 0..shards.len() {
        for to in 0..shards.len() {
            if shards[from].io.outbox[to].events.is_empty() {
                continue;
            }
            let mut mail = std::mem::replace(&mut shards[from].io.outbox[to], Mail::new());
            let inbox = &mut shards[to].io.inbox[from];
            inbox.first_at = inbox.first_at.min(mail.first_at);
            if inbox.events.is_empty() {
                std::mem::swap(&mut inbox.events, &mut mail.events);
            } else {
                inbox.events.append(&mut mail.events);
            }
            // The emptied one goes back, with its room.
            shards[from].io.outbox[to].events = mail.events;
        }
    }
}
