//! Casts (ST-4, ST-7): never twice and never out of order; and wherever nothing more can happen, all who live have everything, or nobody has
//! what its source took with it. With receipts, whoever casts and lives is told that everybody has it, never too early, and what timers do is
//! tried wherever nothing else can happen.
//!
//! The network keeps the order within a pair and nothing else. What a crashed node had under way is lost from that moment; each survivor
//! hears of it at any time later, each for itself. Nothing is forgotten: what is remembered outlives each story.

use phalanx_core::{Each, Fingerprint, Instant, Machine, Shared};
use phalanx_protocol::cast::route::Rule;
use phalanx_protocol::cast::{Caster, Config, Id, Input, Output, Tree, TreeError};
use stateright::{Model, Property};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

const NOW: Instant = Instant(1_000_000_000);
/// Timers that ring before we look whether everybody has everything.
const ROUNDS: usize = 40;

/// How much may happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Nodes of the tree.
    pub nodes: u8,
    /// Children of a node.
    pub fan_out: u32,
    /// How many may crash.
    pub crashes: u8,
    /// Who casts.
    pub source: u8,
    /// How often.
    pub casts: u8,
    /// By which rule.
    pub rule: Rule,
    /// Who has a cast says so.
    pub receipts: bool,
}

/// The model.
#[derive(Clone, Debug)]
pub struct Cast {
    bounds: Bounds,
    tree: Tree,
}

impl Cast {
    /// A tree in which nobody is dead.
    ///
    /// # Errors
    /// As [`Tree::new`].
    pub fn new(bounds: Bounds) -> Result<Self, TreeError> {
        Ok(Self { bounds, tree: Tree::new(bounds.fan_out, bounds.nodes.into())? })
    }
}

impl fmt::Display for Cast {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bounds { nodes, fan_out, crashes, source, casts, rule, receipts } = self.bounds;
        write!(f, "{nodes} nodes, fan-out {fan_out}, {crashes} crashes, {casts} casts of {source}, {rule}")?;
        if receipts { write!(f, ", with receipts") } else { Ok(()) }
    }
}

/// From whom to whom letters are under way, and whether through the directory.
type Way = (u8, u8, bool);

/// A moment of the tree.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct State {
    nodes: BTreeMap<u8, Arc<Caster>>,
    letters: BTreeMap<Way, VecDeque<Arc<[u8]>>>,
    /// Verdicts: (who heard it, of whom).
    verdicts: BTreeSet<(u8, u8)>,
    dead: BTreeSet<u8>,
    crashes: u8,
    casts: u8,
    /// How many casts each has delivered.
    got: BTreeMap<u8, u8>,
    /// How many the source was told that everybody has.
    settled: u8,
    broken: Option<&'static str>,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for (host, node) in &self.nodes {
            host.hash(state);
            Fingerprint::of(&**node, NOW).hash(state);
        }
        (&self.letters, &self.verdicts, &self.dead, self.crashes, self.casts, &self.got, self.settled, self.broken)
            .hash(state);
    }
}

impl State {
    fn act(&mut self, host: u8, act: impl FnOnce(&mut Caster, &mut Each<&mut dyn FnMut(Output<'_>)>)) {
        let Some(node) = self.nodes.get(&host) else { return };
        let mut node = Caster::clone(node);
        let Self { letters, dead, got, settled, broken, nodes, .. } = self;
        let mut take = |output: Output<'_>| match output {
            Output::Send { to, bytes } if !dead.contains(&(to.0 as u8)) => {
                letters.entry((host, to.0 as u8, false)).or_default().push_back(bytes.into());
            }
            Output::Reach { to, bytes } if !dead.contains(&(to.0 as u8)) => {
                letters.entry((host, to.0 as u8, true)).or_default().push_back(bytes.into());
            }
            Output::Deliver { body, .. } => {
                let count = got.entry(host).or_default();
                *count += 1;
                if body[..] != [*count] {
                    *broken = Some("twice, or out of order");
                }
            }
            Output::Settled { whole: true, number, .. } => {
                *settled = number as u8;
                if nodes.keys().any(|host| got.get(host).is_none_or(|&count| count < *settled)) {
                    *broken = Some("settled too early");
                }
            }
            _ => {}
        };
        act(&mut node, &mut Each(&mut take));
        self.nodes.insert(host, Arc::new(node));
    }

    /// All who live have the same; everything, unless their source is gone.
    fn agrees(&self, Bounds { source, casts, receipts, .. }: Bounds) -> bool {
        if receipts && !self.dead.contains(&source) && self.settled != casts {
            return false;
        }
        let mut counts = self.nodes.keys().map(|host| self.got.get(host).copied().unwrap_or(0));
        let first = counts.next().unwrap_or(0);
        counts.all(|c| c == first) && (self.dead.contains(&source) || first == casts)
    }

    fn deliver(&mut self, way: Way, now: Instant) -> Option<()> {
        let queue = self.letters.get_mut(&way)?;
        let bytes = queue.pop_front()?;
        if queue.is_empty() {
            self.letters.remove(&way);
        }
        let bytes = Shared::from(&bytes[..]);
        self.act(way.1, |node, out| node.handle(now, Input::Heard { bytes: &bytes }, out));
        Some(())
    }

    /// Nothing but timers can happen: those ring, one after the other, until nobody is waiting for anything.
    fn rest(&mut self) {
        let mut now = NOW;
        for _ in 0..ROUNDS {
            while let Some(&way) = self.letters.keys().next() {
                self.deliver(way, now);
            }
            let next = self.nodes.values().map(|n| n.deadline()).min();
            let Some(next) = next.filter(|&d| d != Instant::NEVER) else { return };
            now = now.max(next);
            for host in self.nodes.keys().copied().collect::<Vec<_>>() {
                self.act(host, |node, out| node.expire(now, out));
            }
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\nliving {:?}, got {:?}, dead {:?}", self.nodes.keys().collect::<Vec<_>>(), self.got, self.dead)
    }
}

/// What may happen next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The source casts.
    Cast,
    /// The next letter of a pair arrives.
    Deliver(u8, u8, bool),
    /// A node dies.
    Crash(u8),
    /// One hears the verdict of another.
    Verdict(u8, u8),
}

impl Model for Cast {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let config = Config { rule: self.bounds.rule, receipts: self.bounds.receipts, ..Config::default() };
        let node = |i: u8| (i, Arc::new(Caster::new(config, self.tree, 1, Id(i.into()))));
        vec![State {
            nodes: (0..self.bounds.nodes).map(node).collect(),
            letters: BTreeMap::new(),
            verdicts: BTreeSet::new(),
            dead: BTreeSet::new(),
            crashes: self.bounds.crashes,
            casts: self.bounds.casts,
            got: BTreeMap::new(),
            settled: 0,
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.casts > 0 && state.nodes.contains_key(&self.bounds.source) {
            actions.push(Action::Cast);
        }
        actions.extend(state.letters.keys().map(|&(from, to, direct)| Action::Deliver(from, to, direct)));
        for &host in state.nodes.keys() {
            if state.crashes > 0 {
                actions.push(Action::Crash(host));
            }
            let unheard = state.dead.iter().filter(|&&d| !state.verdicts.contains(&(host, d)));
            actions.extend(unheard.map(|&d| Action::Verdict(host, d)));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Cast => {
                let number = self.bounds.casts - state.casts + 1;
                state.casts -= 1;
                state.act(self.bounds.source, |node, out| {
                    node.broadcast(NOW, &[number], out).expect("it is short");
                });
            }
            Action::Deliver(from, to, direct) => state.deliver((from, to, direct), NOW)?,
            Action::Crash(host) => {
                state.crashes -= 1;
                state.nodes.remove(&host);
                state.got.remove(&host);
                state.dead.insert(host);
                state.verdicts.retain(|v| v.0 != host);
                state.letters.retain(|&(from, to, _), _| from != host && to != host);
            }
            Action::Verdict(host, of) => {
                state.verdicts.insert((host, of));
                state.act(host, |node, out| node.handle(NOW, Input::Failed { ids: &[Id(of.into())] }, out));
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("once and in order", |_, state: &State| state.broken.is_none()),
            Property::always("delivery", |model: &Self, state: &State| {
                let mut actions = Vec::new();
                model.actions(state, &mut actions);
                let is_over = actions.iter().all(|a| matches!(a, Action::Crash(_)));
                if !is_over || state.agrees(model.bounds) {
                    return true;
                }
                let mut state = state.clone();
                if model.bounds.receipts {
                    state.rest();
                }
                state.agrees(model.bounds) && state.broken.is_none()
            }),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planted_losses_and_copies_are_caught() {
        let bounds =
            Bounds { nodes: 3, fan_out: 2, crashes: 0, source: 0, casts: 1, rule: Rule::Variant, receipts: false };
        let model = Cast::new(bounds).expect("a good tree");
        let mut state = model.next_state(&model.init_states()[0], Action::Cast).expect("it can");
        assert!(!state.agrees(bounds), "nobody else has it");
        let bytes = Arc::clone(&state.letters[&(0, 1, false)][0]);
        state = model.next_state(&state, Action::Deliver(0, 1, false)).expect("it can");
        state = model.next_state(&state, Action::Deliver(0, 2, false)).expect("it can");
        assert!(state.agrees(bounds) && state.broken.is_none());
        state.letters.entry((0, 1, false)).or_default().push_back(bytes);
        state = model.next_state(&state, Action::Deliver(0, 1, false)).expect("it can");
        assert_eq!(state.broken, None, "the node knows that it had it");
        state.act(1, |_, out| {
            phalanx_core::Sink::push(out, Output::Deliver { who: 1, whole: true, body: &Shared::from(&[1]) });
        });
        assert!(state.broken.is_some());
    }

    #[test]
    fn who_is_told_too_early_is_caught() {
        let bounds =
            Bounds { nodes: 3, fan_out: 2, crashes: 0, source: 0, casts: 1, rule: Rule::Variant, receipts: true };
        let model = Cast::new(bounds).expect("a good tree");
        let mut state = model.next_state(&model.init_states()[0], Action::Cast).expect("it can");
        let settled = Output::Settled { whole: true, number: 1, missed: &[] };
        state.act(0, |_, out| phalanx_core::Sink::push(out, settled));
        assert_eq!(state.broken, Some("settled too early"));
    }

    #[test]
    fn what_is_lost_comes_when_timers_ring() {
        let bounds =
            Bounds { nodes: 4, fan_out: 2, crashes: 0, source: 2, casts: 1, rule: Rule::Detour, receipts: true };
        let model = Cast::new(bounds).expect("a good tree");
        let mut state = model.next_state(&model.init_states()[0], Action::Cast).expect("it can");
        state.letters.clear();
        assert!(!state.agrees(bounds));
        state.rest();
        assert!(state.agrees(bounds) && state.broken.is_none(), "{state}");
    }
}
