//! Views (RV-2 to RV-6): agreement in every state, and one agreed view wherever nothing more can happen.
//!
//! The network keeps the order within a pair and nothing else. What a crashed task had under way is lost from that moment; each
//! survivor hears the detector's verdict at any time later, each for itself. Timers run out when nothing else can happen, and a bounded
//! number of times before (`silences`): that is how somebody slow is taken for dead.

use phalanx_core::{Addr, Duration, Each, Fingerprint, Instant, Machine};
use phalanx_protocol::view::roster;
use phalanx_protocol::view::{Config, Input, Member, Output, Person, Refusal, Start, Task, ViewId, Wanted};
use phalanx_wire::view::{Letter, Words};
use stateright::{Model, Property};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// A root without a majority tries again for ever: so many attempts are looked at.
const ATTEMPTS: u32 = 4;
/// So often all ask each other how they are, until they must agree; and so much may happen each time.
const ROUNDS: usize = 4;
const ROUND: usize = 1000;

/// How much may happen.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Tasks of the job.
    pub nodes: u8,
    /// How many may crash.
    pub crashes: u8,
    /// How many may join.
    pub joins: u8,
    /// How often somebody may lose its patience while letters are under way.
    pub silences: u8,
    /// Children of a task.
    pub arity: u32,
}

/// The model.
#[derive(Clone, Debug)]
pub struct View {
    bounds: Bounds,
    config: Config,
    first: roster::View,
}

impl View {
    /// A job that starts.
    ///
    /// # Errors
    /// As `phalanx_protocol::view::tree::Tree::new`.
    pub fn new(bounds: Bounds) -> Result<Self, phalanx_protocol::view::tree::TreeError> {
        let person = |i: u8| Person { host: Addr::Local(i.into()), boot: 1, stint: 0 };
        let first = roster::View::first(bounds.arity, (0..bounds.nodes).map(person))?;
        // Equal times: who waits for a majority then goes through few different moments.
        let unit = Duration::from_millis(1);
        let config = Config { inquiry: Duration::ZERO, patience: unit, retry: unit, ..Config::default() };
        Ok(Self { bounds, config, first })
    }
}

/// A host: its task, by its own clock.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Place {
    member: Member,
    now: Instant,
}

/// A moment of the job.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct State {
    places: BTreeMap<u8, Arc<Place>>,
    letters: BTreeMap<(u8, u8), VecDeque<Arc<[u8]>>>,
    /// Verdicts: (who heard it, of whom).
    verdicts: BTreeSet<(u8, u8)>,
    dead: BTreeSet<u8>,
    crashes: u8,
    joins: u8,
    silences: u8,
    /// Whoever installed what: the members of each view.
    views: Arc<BTreeMap<ViewId, Vec<(Task, u32)>>>,
    broken: Option<&'static str>,
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        for (host, place) in &self.places {
            host.hash(state);
            Fingerprint::of(&place.member, place.now).hash(state);
        }
        for (pair, letters) in &self.letters {
            pair.hash(state);
            letters.len().hash(state);
            letters.iter().for_each(|l| self.hash_letter(*pair, l, state));
        }
        (&self.verdicts, &self.dead, self.crashes, self.joins, self.silences, &self.views, self.broken).hash(state);
    }
}

impl State {
    /// Inquiries are numbered without end: what counts is how long ago one was asked.
    fn hash_letter<H: Hasher>(&self, (from, to): (u8, u8), bytes: &[u8], state: &mut H) {
        let asker = |letter: &Letter<'_>| match letter.words {
            Words::HowAreYou { nonce, .. } => Some((from, nonce)),
            Words::Well { nonce, .. } => Some((to, nonce)),
            _ => None,
        };
        match Letter::parse(bytes) {
            Ok(letter) if asker(&letter).is_some() => {
                let (asker, nonce) = asker(&letter).expect("just seen");
                let ago = self.places.get(&asker).map(|p| p.member.inquiries().wrapping_sub(nonce));
                let view = match letter.words {
                    Words::HowAreYou { view, .. } => (true, view),
                    Words::Well { view, .. } => (false, view),
                    _ => unreachable!("it is an inquiry or its answer"),
                };
                (letter.from, letter.to, ago, view).hash(state);
            }
            _ => bytes.hash(state),
        }
    }

    /// The host hears something, or its timer runs out.
    fn act(&mut self, host: u8, input: Option<Input<'_>>) {
        let Some(place) = self.places.get(&host) else { return };
        let mut place = Place::clone(place);
        let (mut installed, mut excluded, mut spent) = (false, false, false);
        let mut out = Each(|output: Output<'_>| match output {
            Output::Send { to: Addr::Local(to), bytes } if !self.dead.contains(&(to as u8)) => {
                self.letters.entry((host, to as u8)).or_default().push_back(bytes.into());
            }
            Output::Installed { view, .. } => {
                installed = true;
                let members = view.tree().tasks().filter_map(|t| Some((t, view.person(t)?.boot))).collect();
                self.note(view.id(), members);
            }
            Output::Excluded { .. } => excluded = true,
            Output::Refused(Refusal::Spent) => spent = true,
            _ => {}
        });
        match input {
            Some(input) => place.member.handle(place.now, input, &mut out),
            None => place.member.expire(place.now, &mut out),
        }
        // The detector says again what it knows of those in the new view.
        let view = place.member.view().filter(|_| installed);
        let failed = view.map(|v| self.failed_in(host, v)).unwrap_or_default();
        self.places.insert(host, Arc::new(place));
        if excluded || spent {
            // RV-8: an application that was only slow comes back; and so does one that was let in and out before it heard of it.
            let boot = self.places[&host].member.boot() + 1;
            self.act(host, Some(Input::Rejoin { boot }));
        }
        if spent {
            let others: Vec<_> = self.places.keys().filter(|&&h| h != host).map(|&h| Addr::Local(h.into())).collect();
            self.act(host, Some(Input::Seek { contacts: &others }));
        }
        if !failed.is_empty() {
            self.act(host, Some(Input::Failed { tasks: &failed }));
        }
    }

    fn failed_in(&self, host: u8, view: &roster::View) -> Vec<Task> {
        let heard = |h: Addr| matches!(h, Addr::Local(of) if self.verdicts.contains(&(host, of as u8)));
        view.tree().tasks().filter(|&t| view.person(t).is_some_and(|p| heard(p.host))).collect()
    }

    /// Agreement, and one chain: no two memberships under one name, no two names under one number.
    fn note(&mut self, id: ViewId, members: Vec<(Task, u32)>) {
        if let Some(known) = self.views.get(&id) {
            if *known != members {
                self.broken = Some("two memberships under one name");
            }
            return;
        }
        if self.views.keys().any(|v| v.number == id.number) {
            self.broken = Some("two views with one number");
        }
        Arc::make_mut(&mut self.views).insert(id, members);
    }

    fn is_quiet(&self) -> bool {
        self.letters.is_empty()
            && self.places.keys().all(|&h| self.dead.iter().all(|&d| self.verdicts.contains(&(h, d))))
    }

    /// All who live are in one view, and nobody else is.
    fn agrees(&self) -> bool {
        let mut views = self.places.values().map(|p| p.member.view());
        let Some(Some(first)) = views.next() else { return false };
        let living = first.tree().tasks().all(|t| {
            first.person(t).is_some_and(|p| matches!(p.host, Addr::Local(h) if self.places.contains_key(&(h as u8))))
        });
        living
            && first.tree().len() as usize == self.places.len()
            && views.all(|v| v.is_some_and(|v| v.id() == first.id()))
    }

    /// Fewer than a majority of the latest view remember it: nothing may change any more.
    fn is_stuck_for_good(&self) -> bool {
        let Some(latest) = self.places.values().filter_map(|p| p.member.view()).max_by_key(|v| v.id()) else {
            return true;
        };
        let is_in = |t: Task| {
            let place = latest.person(t).and_then(|p| match p.host {
                Addr::Local(h) => self.places.get(&(h as u8)).filter(|at| at.member.boot() == p.boot),
                _ => None,
            });
            place.is_some_and(|at| at.member.view().is_some())
        };
        let members: Vec<_> = latest.tree().tasks().collect();
        let count = members.iter().filter(|&&t| is_in(t)).count();
        let tie = usize::from(latest.tree().root().is_some_and(is_in));
        2 * count + tie <= members.len()
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (host, place) in &self.places {
            let member = &place.member;
            let view = member.view().map(|v| (v.id().to_string(), v.tree().tasks().map(|t| t.0).collect::<Vec<_>>()));
            let gone: Vec<_> = member.gone().map(|t| t.0).collect();
            write!(f, "\n{host}: task {}, view {view:?}, gone {gone:?}, at rest {}", member.me(), member.is_at_rest())?;
        }
        write!(f, "\nviews {:?}", self.views.keys().map(ToString::to_string).collect::<Vec<_>>())
    }
}

/// What may happen next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// The next letter of a pair arrives.
    Deliver(u8, u8),
    /// A host dies.
    Crash(u8),
    /// One hears the verdict of another.
    Verdict(u8, u8),
    /// A timer runs out.
    Expire(u8),
    /// Somebody joins.
    Join(u8),
}

impl Model for View {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let now = Instant(1_000_000_000);
        let member = |i: u8| {
            let start = Start { job: 1, host: Addr::Local(i.into()), boot: 1 };
            let member = Member::new(self.config, start, Task(i.into()), self.first.clone(), now);
            (i, Arc::new(Place { member, now }))
        };
        let Bounds { nodes, crashes, joins, silences, .. } = self.bounds;
        vec![State {
            places: (0..nodes).map(member).collect(),
            letters: BTreeMap::new(),
            verdicts: BTreeSet::new(),
            dead: BTreeSet::new(),
            crashes,
            joins,
            silences,
            views: Arc::default(),
            broken: None,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.extend(state.letters.keys().map(|&(from, to)| Action::Deliver(from, to)));
        for &host in state.places.keys() {
            if state.crashes > 0 && host < self.bounds.nodes {
                actions.push(Action::Crash(host));
            }
            actions.extend(
                state.dead.iter().filter(|&&d| !state.verdicts.contains(&(host, d))).map(|&d| Action::Verdict(host, d)),
            );
            let due = state.places[&host].member.deadline() != Instant::NEVER;
            if due && (state.silences > 0 || state.is_quiet()) {
                actions.push(Action::Expire(host));
            }
        }
        if state.joins > 0 {
            let newcomer = self.bounds.nodes + self.bounds.joins - state.joins;
            actions.push(Action::Join(state.dead.first().copied().unwrap_or(newcomer)));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Deliver(from, to) => {
                let queue = state.letters.get_mut(&(from, to))?;
                let bytes = queue.pop_front()?;
                if queue.is_empty() {
                    state.letters.remove(&(from, to));
                }
                state.act(to, Some(Input::Heard { from: Addr::Local(from.into()), bytes: &bytes }));
            }
            Action::Crash(host) => {
                state.crashes -= 1;
                state.places.remove(&host);
                state.dead.insert(host);
                state.verdicts.retain(|v| v.0 != host);
                state.letters.retain(|&(from, to), _| from != host && to != host);
            }
            Action::Verdict(host, of) => {
                state.verdicts.insert((host, of));
                let view = state.places.get(&host)?.member.view().cloned();
                let failed = view.map(|v| state.failed_in(host, &v)).unwrap_or_default();
                state.act(host, Some(Input::Failed { tasks: &failed }));
            }
            Action::Expire(host) => {
                if !state.is_quiet() {
                    state.silences -= 1;
                }
                let place = Arc::make_mut(state.places.get_mut(&host)?);
                place.now = place.now.max(place.member.deadline());
                state.act(host, None);
            }
            Action::Join(host) => self.join(&mut state, host),
        }
        Some(state)
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.places.values().all(|p| p.member.ballot().counter <= ATTEMPTS && p.member.boot() <= 2 * ATTEMPTS)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("agreement", |_, state: &State| state.broken.is_none()),
            // Beyond the boundary nothing is looked at.
            Property::always("termination", |model: &Self, state: &State| {
                !model.within_boundary(state)
                    || !model.is_over(state)
                    || state.agrees()
                    || state.is_stuck_for_good()
                    || model.settles(state.clone())
            }),
        ]
    }
}

impl View {
    /// Nothing is under way, nobody has anything to do, and no timer runs.
    fn is_over(&self, state: &State) -> bool {
        let mut actions = Vec::new();
        self.actions(state, &mut actions);
        actions.iter().all(|a| matches!(a, Action::Crash(_) | Action::Join(_)))
    }

    /// All come to be in one view when they ask each other how they are, as they do all the time (RV-11). One order of events is looked
    /// at: that they ask at any time, each for itself, would be more than can be.
    fn settles(&self, mut state: State) -> bool {
        (0..ROUNDS).any(|_| {
            for host in state.places.keys().copied().collect::<Vec<_>>() {
                let member = &state.places[&host].member;
                let Some(view) = member.view() else { continue };
                let (tree, gone) = (view.tree(), member.gone().collect::<BTreeSet<_>>());
                let mut near = tree.children_without(member.me(), &|t| gone.contains(&t));
                near.extend(tree.parent_without(member.me(), &|t| gone.contains(&t)));
                state.act(host, Some(Input::Lost { tasks: &near, certain: false }));
            }
            for _ in 0..ROUND {
                let mut actions = Vec::new();
                self.actions(&state, &mut actions);
                let next = actions.into_iter().find(|a| !matches!(a, Action::Crash(_) | Action::Join(_)));
                let Some(after) = next.and_then(|action| self.next_state(&state, action)) else { break };
                state = after;
            }
            state.agrees()
        })
    }

    fn join(&self, state: &mut State, host: u8) {
        state.joins -= 1;
        let again = state.dead.remove(&host);
        state.verdicts.retain(|v| v.1 != host);
        let contacts = state.places.keys().map(|&h| Addr::Local(h.into())).collect();
        let wanted = if again { Wanted::Again(Task(host.into())) } else { Wanted::More };
        // Each start on a host has a higher number.
        let boot = 2 + u32::from(self.bounds.joins - state.joins);
        let (start, now) = (Start { job: 1, host: Addr::Local(host.into()), boot }, Instant(1_000_000_000));
        let mut letters = Vec::new();
        let mut out = Each(|output: Output<'_>| {
            if let Output::Send { to: Addr::Local(to), bytes } = output {
                letters.push((to as u8, Arc::<[u8]>::from(bytes)));
            }
        });
        let member = Member::join(self.config, start, wanted, contacts, now, &mut out);
        state.places.insert(host, Arc::new(Place { member, now }));
        for (to, bytes) in letters {
            state.letters.entry((host, to)).or_default().push_back(bytes);
        }
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Bounds { nodes, crashes, joins, silences, arity } = self.bounds;
        write!(f, "{nodes} tasks, arity {arity}, {crashes} crashes, {joins} joins, {silences} silences")?;
        write!(f, ", to {ATTEMPTS} attempts for a view")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state() -> State {
        let bounds = Bounds { nodes: 3, crashes: 0, joins: 0, silences: 0, arity: 2 };
        View::new(bounds).expect("good bounds").init_states().remove(0)
    }

    /// The letter that told it so was lost with the root that sent it; the others have forgotten it.
    #[test]
    fn one_who_was_taken_for_dead_and_never_told_so_hears_it_when_it_asks() {
        use Action::{Crash, Deliver, Expire, Join, Verdict};
        let bounds = Bounds { nodes: 5, crashes: 2, joins: 1, silences: 0, arity: 2 };
        let model = View::new(bounds).expect("good bounds");
        let mut state = model.init_states().remove(0);
        let mut play = |actions: &[Action]| {
            for &action in actions {
                state = model.next_state(&state, action).expect("it can happen");
            }
        };
        let let_in = [(5, 0), (0, 1), (0, 2), (1, 3), (1, 4), (2, 0), (3, 1), (4, 1), (1, 0), (0, 1), (1, 3), (1, 4)];
        play(&[Join(5)]);
        play(&let_in.map(|(from, to)| Deliver(from, to)));
        play(&[Crash(0), Verdict(1, 0)]);
        play(&[(1, 2), (1, 3), (1, 4), (2, 5), (3, 1), (4, 1)].map(|(from, to)| Deliver(from, to)));
        play(&[2, 3, 4, 5].map(|host| Verdict(host, 0)));
        play(&[Expire(2), Deliver(2, 1), Deliver(1, 2), Deliver(2, 5), Expire(5)]);
        play(&[(5, 1), (1, 5), (5, 2), (2, 5)].map(|(from, to)| Deliver(from, to)));
        let without_5 = [(2, 1), (1, 2), (1, 3), (1, 4), (2, 1), (1, 2), (2, 1), (3, 1), (4, 1), (1, 2)];
        play(&[Expire(2)]);
        play(&without_5.map(|(from, to)| Deliver(from, to)));
        play(&[Crash(1), Verdict(2, 1)]);
        let without_1 = [(2, 3), (2, 4), (3, 2), (4, 2), (2, 3), (2, 4), (3, 2), (4, 2), (2, 3), (2, 4)];
        play(&without_1.map(|(from, to)| Deliver(from, to)));
        play(&[3, 4, 5].map(|host| Verdict(host, 1)));
        assert!(model.is_over(&state) && !state.agrees() && !state.is_stuck_for_good(), "{state}");
        assert!(model.settles(state));
    }

    #[test]
    fn planted_disagreement_is_caught() {
        let id = ViewId { number: 1, root: Task(0), stint: 0 };
        let mut state = state();
        state.note(id, vec![(Task(0), 1)]);
        assert_eq!(state.broken, None);
        state.note(id, vec![(Task(1), 1)]);
        assert_eq!(state.broken, Some("two memberships under one name"));
        state.broken = None;
        state.note(ViewId { root: Task(1), ..id }, vec![(Task(1), 1)]);
        assert_eq!(state.broken, Some("two views with one number"));
    }

    #[test]
    fn a_planted_ghost_is_caught() {
        let mut state = state();
        assert!(state.agrees() && !state.is_stuck_for_good());
        state.places.remove(&2);
        assert!(!state.agrees() && !state.is_stuck_for_good(), "two of three could agree");
        state.places.remove(&0);
        assert!(state.is_stuck_for_good());
    }
}
