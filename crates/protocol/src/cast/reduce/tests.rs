//! Trees of machines on a network that keeps the order within a pair and nothing else. Views come to each at its own time; people die, are
//! put out though they live, and come anew, at any time.

use super::{Gift, Input, Outcome, Output, ReduceError, Reducer};
use crate::cast::report::Line;
use crate::cast::{Id, Tree};
use phalanx_core::{Duration, Each, Instant, Machine, Rng};
use phalanx_wire::view::{Task, ViewId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Somebody who is or was a node of the tree.
type Person = usize;

/// Who is which node.
type View = BTreeMap<Id, Person>;

struct Node {
    id: Id,
    machine: Reducer,
    /// Which view it has.
    at: usize,
    since: u64,
    lives: bool,
    /// Rounds in which it took part.
    gave: BTreeSet<u64>,
    results: BTreeMap<u64, Outcome>,
}

/// A tree of people over several views.
struct Net {
    tree: Tree,
    now: Instant,
    views: Vec<View>,
    people: Vec<Node>,
    letters: BTreeMap<(Person, Person), VecDeque<Vec<u8>>>,
    rng: Rng,
    rounds: u64,
    /// What all do: who comes late does not know how far the others are.
    kind: u64,
    /// How often a letter is lost.
    loss: f64,
    sent: u64,
}

fn name(number: usize) -> ViewId {
    ViewId { number: number as u64, root: Task(0), stint: 0 }
}

/// Twice in a sum it would be seen.
fn summand(id: Id) -> i64 {
    1 << (2 * id.0)
}

impl Net {
    fn new(k: u32, nodes: u32, rounds: u64, seed: u64) -> Self {
        let tree = Tree::new(k, nodes).unwrap();
        let mut net = Self {
            tree,
            now: Instant(1_000_000_000),
            views: vec![tree.ids().map(|id| (id, id.0 as usize)).collect()],
            people: Vec::new(),
            letters: BTreeMap::new(),
            rng: Rng::new(seed, 9),
            rounds,
            kind: seed,
            loss: 0.0,
            sent: 0,
        };
        for id in tree.ids() {
            net.add(id, 0);
        }
        (0..nodes as usize).for_each(|p| net.install(p, 0));
        net
    }

    fn add(&mut self, id: Id, since: usize) -> Person {
        let machine = Reducer::default();
        let (gave, results) = (BTreeSet::new(), BTreeMap::new());
        self.people.push(Node { id, machine, at: since, since: since as u64, lives: true, gave, results });
        self.people.len() - 1
    }

    fn act(&mut self, who: Person, act: impl FnOnce(&mut Reducer, Instant, &mut dyn FnMut(Output<'_>))) {
        let (mut sent, mut done) = (Vec::new(), Vec::new());
        let node = &mut self.people[who];
        if !node.lives {
            return;
        }
        act(&mut node.machine, self.now, &mut |output| match output {
            Output::Send { to, bytes } => sent.push((to, bytes.to_vec())),
            Output::Done(outcome) => done.push(outcome.clone()),
        });
        let (round, at) = (node.machine.done, node.at);
        for outcome in done {
            assert_eq!(self.people[who].results.insert(round, outcome), None, "one result of a round");
            self.assert_all_came(who, round);
        }
        for (to, bytes) in sent {
            self.sent += 1;
            let to = *self.views[at].get(&to).expect("only to those who are in the view");
            self.letters.entry((who, to)).or_default().push_back(bytes);
        }
    }

    /// Nobody gets a result before all who are in its view, and were there from the beginning, have come so far.
    fn assert_all_came(&self, who: Person, round: u64) {
        let view = &self.views[self.people[who].at];
        let late = view.values().map(|&p| &self.people[p]).find(|n| n.since == 0 && n.machine.done + 1 < round);
        assert!(late.is_none(), "round {round} is over and {} has not come", late.unwrap().id);
    }

    fn install(&mut self, who: Person, at: usize) {
        let (view, node) = (&self.views[at], &mut self.people[who]);
        node.at = at;
        let (id, since) = (node.id, node.since);
        let line = Line::of(&self.tree, id, |i| view.contains_key(&i));
        self.act(who, |m, now, out| m.handle(now, Input::View { view: name(at), since, me: id, line }, &mut Each(out)));
    }

    /// All do the same.
    fn give(&mut self, who: Person) {
        let node = &mut self.people[who];
        let (id, round) = (node.id, node.machine.done + 1);
        if !node.lives || node.machine.waits() || round > self.rounds {
            return;
        }
        node.gave.insert(round);
        let bytes = [id.0 as u8, who as u8];
        let gift = match self.kind % 3 {
            0 => Gift::Barrier,
            1 => Gift::Sum(summand(id)),
            _ => Gift::Gather(&bytes),
        };
        self.act(who, |m, now, out| m.give(now, gift, &mut Each(out)).unwrap());
    }

    /// The next view: without those who do not live, without `out`, with new people in some of the free places.
    fn change(&mut self, out: Option<Person>, join: bool) {
        let mut view = self.views.last().unwrap().clone();
        view.retain(|_, p| self.people[*p].lives && Some(*p) != out);
        if view.is_empty() {
            return;
        }
        let number = self.views.len();
        if join && let Some(id) = self.tree.ids().find(|id| !view.contains_key(id)) {
            let person = self.add(id, number);
            view.insert(id, person);
            self.views.push(view);
            return self.install(person, number);
        }
        self.views.push(view);
    }

    /// One letter of a pair, or none.
    fn deliver(&mut self) -> bool {
        let open: Vec<_> = self.letters.iter().filter(|(_, l)| !l.is_empty()).map(|(&pair, _)| pair).collect();
        if open.is_empty() {
            return false;
        }
        let pair = open[self.rng.index(open.len())];
        let bytes = self.letters.get_mut(&pair).unwrap().pop_front().unwrap();
        if !self.rng.chance(self.loss) {
            // What was for somebody who is gone may come to who is there now.
            let id = self.people[pair.1].id;
            let now_there = self.views.last().unwrap().get(&id).copied();
            let to = now_there.filter(|_| !self.people[pair.1].lives && self.rng.chance(0.5)).unwrap_or(pair.1);
            self.act(to, |m, now, out| m.handle(now, Input::Heard { bytes: &bytes }, &mut Each(out)));
        }
        true
    }

    /// Somebody learns of a later view, or of none in which it is.
    fn move_on(&mut self, who: Person) {
        let (id, at) = (self.people[who].id, self.people[who].at);
        let later: Vec<usize> =
            (at + 1..self.views.len()).filter(|&v| self.views[v].get(&id).is_some_and(|&p| p == who)).collect();
        if !later.is_empty() {
            let next = later[self.rng.index(later.len())];
            self.install(who, next);
        }
    }

    fn members(&self) -> Vec<Person> {
        self.views.last().unwrap().values().copied().filter(|&p| self.people[p].lives).collect()
    }

    /// Anything may happen; no more than so many die, are put out, or come.
    fn rage(&mut self, steps: u32, [mut deaths, mut outs, mut joins]: [u32; 3]) {
        for _ in 0..steps {
            let who = self.rng.index(self.people.len());
            match self.rng.below(100) {
                0..55 => _ = self.deliver(),
                55..80 => self.give(who),
                80..92 => self.move_on(who),
                92..95 if deaths > 0 && self.members().len() > 1 => {
                    // Those who collect die most often.
                    let members = self.members();
                    let at = if self.rng.chance(0.5) { 0 } else { self.rng.index(members.len()) };
                    self.people[members[at]].lives = false;
                    deaths -= 1;
                }
                95..97 => self.change(None, false),
                97 if outs > 0 && self.members().len() > 1 => {
                    let members = self.members();
                    let at = self.rng.index(members.len().min(3));
                    self.change(Some(members[at]), false);
                    outs -= 1;
                }
                98 if joins > 0 => {
                    self.change(None, true);
                    joins -= 1;
                }
                _ if self.loss > 0.0 => {
                    self.now += Duration::from_millis(700);
                    self.act(who, |m, now, out| m.expire(now, &mut Each(out)));
                }
                _ => {}
            }
        }
    }

    /// Nobody dies any more: all come into one view, and through all rounds.
    fn settle(&mut self) -> Result<(), String> {
        self.change(None, false);
        let last = self.views.len() - 1;
        let members = self.members();
        for who in 0..self.people.len() {
            self.people[who].lives &= members.contains(&who);
        }
        let mut order = members.clone();
        self.rng.shuffle(&mut order);
        for who in order {
            self.install(who, last);
            (0..self.rng.below(20)).for_each(|_| _ = self.deliver());
        }
        for _ in 0..200 {
            for _ in 0..2 * self.rounds {
                while self.deliver() {}
                members.iter().for_each(|&who| self.give(who));
            }
            while self.deliver() {}
            if members.iter().all(|&p| self.people[p].machine.done >= self.rounds) {
                return check(&members.iter().map(|&p| &self.people[p]).collect::<Vec<_>>(), &self.people, self.rounds);
            }
            // Where nothing is lost nobody needs its timer.
            if self.loss == 0.0 {
                break;
            }
            self.now += Duration::from_secs(10);
            members.iter().for_each(|&who| self.act(who, |m, now, out| m.expire(now, &mut Each(out))));
        }
        let rounds: Vec<_> = members.iter().map(|&p| (self.people[p].id.0, self.people[p].machine.done)).collect();
        Err(format!("not all come through: {rounds:?}"))
    }
}

/// What all who live to the end must have in common, and what must be in it.
fn check(living: &[&Node], people: &[Node], rounds: u64) -> Result<(), String> {
    for round in 1..=rounds {
        let mut results = living.iter().filter_map(|n| Some((n, n.results.get(&round)?)));
        let Some((_, first)) = results.clone().next() else { continue };
        if let Some((node, other)) = results.find(|(_, r)| *r != first) {
            return Err(format!("round {round}: {first:?}, and for {} {other:?}", node.id));
        }
        let gave = |id: Id, round: u64| {
            // What somebody gave who came late may go to a later round.
            let may = |p: &Node| p.gave.contains(&round) || p.since > 0 && p.gave.first().is_some_and(|&g| g <= round);
            people.iter().any(|p| p.id == id && may(p))
        };
        let is_in = |node: &Node| match first {
            Outcome::Barrier => true,
            Outcome::Sum(sum) => sum >> (2 * node.id.0) & 3 == 1,
            Outcome::Gather(values) => {
                values.iter().any(|(id, bytes)| *id == node.id && people[bytes[1] as usize].id == *id)
            }
            _ => false,
        };
        for node in living.iter().filter(|n| n.results.contains_key(&round)) {
            if !is_in(node) {
                return Err(format!("round {round}: {} is not in {first:?}", node.id));
            }
        }
        let counted: Vec<Id> = match first {
            Outcome::Sum(sum) => (0..31).map(Id).filter(|id| sum >> (2 * id.0) & 3 != 0).collect(),
            Outcome::Gather(values) => values.iter().map(|v| v.0).collect(),
            _ => Vec::new(),
        };
        if let Some(id) = counted.into_iter().find(|&id| !gave(id, round)) {
            return Err(format!("round {round}: {id} is counted, and gave nothing"));
        }
        if let Outcome::Sum(sum) = first
            && (0..31).any(|at| sum >> (2 * at) & 3 > 1)
        {
            return Err(format!("round {round}: somebody is counted twice in {sum:b}"));
        }
    }
    let all: BTreeSet<u64> = (1..=rounds).collect();
    let short = living.iter().find(|n| n.since == 0 && !n.results.keys().eq(all.iter()));
    short.map_or(Ok(()), |n| Err(format!("{} was there all the time and missed a round", n.id)))
}

fn ids(ids: &[u32]) -> Vec<Id> {
    ids.iter().copied().map(Id).collect()
}

#[test]
fn st_4_undamaged_each_node_sends_once_up_and_is_told_once() {
    for (k, n) in [(2, 1), (2, 15), (3, 13), (4, 21)] {
        let mut net = Net::new(k, n, 1, 1);
        (0..n as usize).for_each(|who| net.give(who));
        while net.deliver() {}
        assert_eq!(net.sent, 2 * u64::from(n - 1), "k {k}, n {n}");
        let whole = Outcome::Sum(net.tree.ids().map(summand).sum());
        assert!(net.people.iter().all(|p| p.results[&1] == whole));
    }
}

/// All sets of up to three dead in small trees, before anything was said and in its midst.
#[test]
fn st_4_any_three_may_die() {
    for (k, n) in [(2, 7), (2, 12), (3, 9)] {
        for dead in (0u32..1 << n).filter(|d| d.count_ones() <= 3) {
            for said in [0, n, 2 * n - 3] {
                let mut net = Net::new(k, n, 3, u64::from(dead));
                (0..n as usize).for_each(|who| net.give(who));
                (0..said).for_each(|_| _ = net.deliver());
                (0..n).filter(|id| dead >> id & 1 == 1).for_each(|id| net.people[id as usize].lives = false);
                net.settle().unwrap_or_else(|e| panic!("k {k}, n {n}, dead {dead:b} after {said}: {e}"));
            }
        }
    }
}

fn sweep(seeds: std::ops::Range<u64>, loss: f64, faults: [u32; 3]) {
    let (mut decided, mut late) = (0, 0);
    for seed in seeds {
        let (k, n) = [(2, 7), (2, 15), (3, 13), (4, 9), (2, 3)][seed as usize % 5];
        let mut net = Net::new(k, n, 5, seed);
        net.loss = loss;
        net.rage(400 + 100 * (seed % 7) as u32, faults);
        net.settle().unwrap_or_else(|e| panic!("seed {seed}, loss {loss}, {faults:?}: {e}"));
        decided += net.people.iter().map(|p| p.machine.counters().decided).sum::<u64>();
        late += net.people.iter().filter(|p| p.gave.len() > p.results.len() && p.machine.done >= 5).count();
    }
    assert!(decided > 0 && (late > 0) == (faults[2] > 0), "{decided} rounds, {late} came late to one");
}

#[test]
fn st_4_survivors_have_one_result_whoever_dies() {
    sweep(0..4000, 0.0, [4, 0, 0]);
}

#[test]
fn st_4_survivors_have_one_result_though_the_slow_are_put_out() {
    sweep(4000..7000, 0.0, [2, 2, 0]);
}

#[test]
fn st_4_newcomers_hold_nobody_up() {
    sweep(7000..11000, 0.0, [4, 1, 4]);
}

#[test]
fn st_4_what_is_lost_is_said_again() {
    sweep(11000..13000, 0.2, [3, 1, 2]);
}

/// The root decides, tells one branch, and dies with all but one who heard it; that one has gone on, and the others learn it from it.
#[test]
fn st_4_a_result_of_which_one_knows_is_the_result() {
    let mut net = Net::new(2, 7, 2, 1);
    (0..7).for_each(|who| net.give(who));
    let pairs = [(3, 1), (4, 1), (5, 2), (6, 2), (1, 0), (2, 0), (0, 2), (2, 6)];
    for pair in pairs {
        let bytes = net.letters.get_mut(&pair).unwrap().pop_front().unwrap();
        net.act(pair.1, |m, now, out| m.handle(now, Input::Heard { bytes: &bytes }, &mut Each(out)));
    }
    let told: Vec<Id> = net.people.iter().filter(|p| p.results.contains_key(&1)).map(|p| p.id).collect();
    assert_eq!(told, ids(&[0, 2, 6]));
    [0, 2].into_iter().for_each(|dead| net.people[dead].lives = false);
    net.settle().unwrap();
    let whole = Outcome::Sum(net.tree.ids().map(summand).sum());
    assert_eq!(net.people[1].results[&1], whole, "the dead are in it, too");
    // Where nobody heard it, there is another one.
    let mut net = Net::new(2, 7, 1, 1);
    (0..7).for_each(|who| net.give(who));
    pairs[..6].iter().for_each(|_| _ = net.deliver());
    assert!(net.people[0].results.contains_key(&1));
    net.people[0].lives = false;
    net.letters.retain(|pair, _| pair.0 != 0);
    net.settle().unwrap();
    assert_eq!(net.people[1].results[&1], Outcome::Sum((1..7).map(Id).map(summand).sum()));
}

/// Who comes anew, and gives something before it knows where the others are, gives it to what they do next.
#[test]
fn st_4_who_comes_late_takes_part_in_what_is_next() {
    let mut net = Net::new(2, 7, 4, 1);
    for _ in 0..3 {
        (0..7).for_each(|who| net.give(who));
        while net.deliver() {}
    }
    net.people[0].lives = false;
    net.change(None, true);
    let (root, last) = (net.people.len() - 1, net.views.len() - 1);
    (1..7).for_each(|who| net.install(who, last));
    net.give(root);
    while net.deliver() {}
    assert!(net.people[root].machine.waits() && net.people[root].machine.done == 3);
    net.settle().unwrap();
    assert_eq!(net.people[root].results.keys().collect::<Vec<_>>(), [&4]);
}

#[test]
fn st_4_who_does_something_else_spoils_the_round_for_all() {
    let mut net = Net::new(2, 7, 2, 1);
    (0..6).for_each(|who| net.give(who));
    net.act(6, |m, now, out| m.give(now, Gift::Barrier, &mut Each(out)).unwrap());
    while net.deliver() {}
    assert!(net.people.iter().all(|p| p.results[&1] == Outcome::Mismatch));
    // The next one is not spoilt.
    (0..7).for_each(|who| net.give(who));
    while net.deliver() {}
    assert!(net.people.iter().all(|p| matches!(p.results[&2], Outcome::Sum(0b01_0101_0101_0101))));
}

#[test]
fn st_4_what_cannot_be_given_is_refused() {
    let mut nobody = |_: Output<'_>| panic!("nothing is said");
    let mut out = Each(&mut nobody);
    let mut lone = Reducer::default();
    assert_eq!(lone.give(Instant(1), Gift::Barrier, &mut out), Err(ReduceError::Outside));
    let line = Line { above: Some(Id(0)), below: vec![Id(2)] };
    lone.handle(Instant(1), Input::View { view: name(0), since: 0, me: Id(1), line }, &mut out);
    assert_eq!(lone.give(Instant(1), Gift::Gather(&[0; (64 << 10) + 1]), &mut out), Err(ReduceError::TooLarge(65537)));
    lone.give(Instant(1), Gift::Gather(&[0; 64 << 10]), &mut out).unwrap();
    assert_eq!(lone.give(Instant(1), Gift::Barrier, &mut out), Err(ReduceError::Busy));
    // Bytes of nobody, and of somebody who is not next to us.
    lone.handle(Instant(1), Input::Heard { bytes: b"?" }, &mut out);
    assert_eq!(lone.counters().malformed, 1);
}

/// The checker sees what it is there for.
#[test]
fn each_violation_is_caught() {
    let spoilt = |spoil: &dyn Fn(&mut [Node])| {
        let mut net = Net::new(2, 7, 3, 1);
        net.settle().unwrap();
        spoil(&mut net.people);
        check(&net.people.iter().collect::<Vec<_>>(), &net.people, 3).unwrap_err()
    };
    let set = |nodes: &mut [Node], round, to: &Outcome| {
        nodes.iter_mut().for_each(|n| _ = n.results.insert(round, to.clone()));
    };
    assert!(spoilt(&|n| set(&mut n[3..4], 1, &Outcome::Sum(1))).contains("and for 3"));
    assert!(spoilt(&|n| set(n, 1, &Outcome::Sum(summand(Id(3))))).contains("is not in"));
    let whole: i64 = (0..7).map(Id).map(summand).sum();
    assert!(spoilt(&|n| set(n, 1, &Outcome::Sum(whole + summand(Id(9))))).contains("gave nothing"));
    assert!(spoilt(&|n| set(n, 1, &Outcome::Sum(whole + summand(Id(2))))).contains("is not in"));
    assert!(spoilt(&|n| _ = n[5].results.remove(&3)).contains("missed a round"));
}
