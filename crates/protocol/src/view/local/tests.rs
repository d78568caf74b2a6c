//! Jobs of local views beside the whole view that they were cut from.

use super::*;
use phalanx_core::{Addr, Rng};
use std::collections::{BTreeMap, BTreeSet};

/// All members of a job, each with its local view, and what they say to each other.
struct Job {
    view: View,
    locals: BTreeMap<Task, LocalView>,
    /// Its parent and children, which each has told its news.
    told: BTreeMap<Task, BTreeSet<Task>>,
    tally: Tally,
}

/// What one change cost.
#[derive(Clone, Copy, Default, Debug)]
struct Tally {
    questions: u32,
    /// Members that asked.
    asking: u32,
    news: u32,
    outside: u32,
    rounds: u32,
}

fn person(task: Task, stint: u32) -> Person {
    let v6 = std::net::SocketAddrV6::new((0xfd00_0000_0000_u128 + u128::from(task.0)).into(), 7, 0, 0);
    Person { host: Addr::Ip(v6.into()), boot: task.0 ^ stint, stint }
}

fn tasks(ids: impl IntoIterator<Item = u32>) -> Vec<Task> {
    ids.into_iter().map(Task).collect()
}

impl LocalView {
    fn relatives(&self) -> BTreeSet<Task> {
        let place = self.place();
        place.children.into_iter().chain(place.parent).collect()
    }
}

impl Job {
    fn new(arity: u32, size: u32) -> Self {
        let view = View::first(arity, (0..size).map(|t| person(Task(t), 0))).expect("a good view");
        let local = |t| (t, LocalView::of(&view, t).expect("a good local view"));
        let locals: BTreeMap<_, _> = view.tree().tasks().map(local).collect();
        let told = locals.iter().map(|(&t, l)| (t, l.relatives())).collect();
        Self { view, locals, told, tally: Tally::default() }
    }

    fn next(&self, failed: Vec<Task>, joined: &[Task]) -> Change {
        let stint = |t| self.view.person(t).map_or(0, |p| p.stint + 1);
        let joined = joined.iter().map(|&task| Joined { task, person: person(task, stint(task)) }).collect();
        let base = self.view.id();
        let id = ViewId { number: base.number + 1, ..base };
        Change { id, base, failed, joined, ranks: Vec::new(), checkpoint: false }
    }

    /// All hear of the change; who is new is told by who sat below it, or its parent.
    fn change(&mut self, failed: Vec<Task>, joined: &[Task]) {
        self.tally = Tally::default();
        let change = self.next(failed, joined);
        assert!(self.view.allows(&change), "{change:?}");
        self.view = self.view.changed(&change);
        for task in &change.failed {
            self.locals.remove(task);
            self.told.remove(task);
        }
        for local in self.locals.values_mut() {
            assert!(local.allows(&change));
            *local = local.changed(&change);
        }
        let old: Vec<_> = self.locals.keys().copied().collect();
        for &Joined { task, person } in &change.joined {
            let seats = Seats { shift: self.view.tree().arity().trailing_zeros() as u8, me: task.0 };
            let line = std::iter::once(task.0).chain(seats.line(task.0));
            let host = line.filter_map(|s| old.iter().find(|t| seats.is_within(s, t.0))).next();
            let known = Known { task, person };
            let cut = host.and_then(|t| self.locals[t].seen_from(known));
            let cut = cut.unwrap_or_else(|| {
                self.tally.outside += 1;
                LocalView::of(&self.view, task).expect("it lives")
            });
            self.locals.insert(task, cut);
        }
        self.settle();
    }

    /// They ask and tell until nobody lacks anything.
    fn settle(&mut self) {
        let mut asked = BTreeSet::new();
        loop {
            let mut moved = false;
            let mut lacking = Vec::new();
            for task in self.locals.keys().copied().collect::<Vec<_>>() {
                let relatives = self.locals[&task].relatives();
                let told = self.told.insert(task, relatives.clone()).unwrap_or_default();
                for new in relatives.difference(&told) {
                    let news = self.locals[&task].news();
                    self.tally.news += 1;
                    moved |= self.locals.get_mut(new).expect("who is known lives").learn(&news);
                }
                if !self.locals[&task].lacks().is_empty() {
                    lacking.push(task);
                }
            }
            if lacking.is_empty() {
                break;
            }
            self.tally.rounds += 1;
            for &task in &lacking {
                for Lack { question, ask } in self.locals[&task].lacks() {
                    let Ask::These(these) = ask else { continue };
                    asked.insert(task);
                    for who in these {
                        let other = self.locals.get_mut(&who.task).expect("who is known lives");
                        other.meet(question.from);
                        let answer = other.answer(&question);
                        self.tally.questions += 1;
                        if self.locals.get_mut(&task).expect("it asks").learn(&answer) {
                            moved = true;
                            break;
                        }
                    }
                }
            }
            if !moved {
                let task = lacking[0];
                for Lack { question, .. } in self.locals[&task].lacks() {
                    let inside = |t: &Task| self.locals[&task].seats.is_within(question.seat, t.0);
                    let knows = self.view.tree().tasks().find(inside).expect("a branch that is not empty");
                    let answer = LocalView::of(&self.view, knows).expect("it lives").answer(&question);
                    self.tally.outside += 1;
                    assert!(self.locals.get_mut(&task).expect("it asks").learn(&answer));
                }
            }
            assert!(self.tally.rounds < 200, "{:?}", self.tally);
        }
        self.tally.asking = asked.len() as u32;
    }

    /// The tree as it is defined: who holds each seat, from all the living.
    fn tree(&self) -> BTreeMap<Task, (Option<Task>, Vec<Task>)> {
        let (size, arity) = (self.view.next_task().0, self.view.tree().arity());
        let mut held = vec![None; size as usize];
        for seat in (0..size).rev() {
            let below = (seat * arity + 1..=seat * arity + arity).take_while(|&s| s < size);
            let lowest = below.filter_map(|s| held[s as usize]).min();
            held[seat as usize] = if self.view.contains(Task(seat)) { Some(Task(seat)) } else { lowest };
        }
        let mut tree: BTreeMap<_, _> = self.view.tree().tasks().map(|t| (t, (None, Vec::new()))).collect();
        for seat in 1..size {
            let (above, here) = (held[((seat - 1) / arity) as usize], held[seat as usize]);
            if let (Some(above), Some(here)) = (above, here)
                && above != here
            {
                tree.get_mut(&here).expect("it lives").0 = Some(above);
                tree.get_mut(&above).expect("it lives").1.push(here);
            }
        }
        tree.values_mut().for_each(|(_, children)| children.sort_unstable());
        tree
    }

    fn check(&self) {
        let tree = self.tree();
        assert!(tree.keys().eq(self.locals.keys()));
        let root = self.view.tree().root().expect("somebody lives");
        let levels = Seats { shift: 1, me: 0 }.line(self.view.next_task().0).count();
        let mut reached = BTreeSet::from([root]);
        for (task, local) in &self.locals {
            let place = local.place();
            assert_eq!((place.parent, &place.children), (tree[task].0, &tree[task].1), "{task} {local:?}");
            assert!(place.lacks.is_empty());
            assert_eq!(place.parent.is_none(), *task == root);
            assert!(place.parent.is_none_or(|p| p < *task), "no cycles");
            assert!(place.children.iter().all(|&c| reached.insert(c)), "one parent");
            assert!(place.children.len() <= local.seats.arity() * (1 + levels));
            assert!(local.memory() <= 4096, "{}", local.memory());
            assert_eq!((local.id(), local.len()), (self.view.id(), self.view.tree().len()));
        }
        assert_eq!(reached.len(), self.locals.len());
    }

    /// What is held to be certain is true.
    fn check_marks(&self, task: Task) {
        let local = &self.locals[&task];
        for k in &local.known {
            assert!(self.view.contains(k.task) && self.view.person(k.task) == Some(k.person));
        }
        let mut counts = vec![0; local.branches.len()];
        for t in self.view.tree().tasks() {
            match local.seats.branch(t.0) {
                Some(b) => {
                    counts[b] += 1;
                    assert!(t.0 >= local.branches[b].mark || local.person(t).is_some(), "{t} {local:?}");
                }
                None => assert!(local.person(t).is_some(), "the line is known"),
            }
        }
        assert!(counts.iter().eq(local.branches.iter().map(|b| &b.count)), "{counts:?} {local:?}");
    }
}

/// Draws a change of one of the kinds that happen.
fn draw(rng: &mut Rng, job: &Job) -> (Vec<Task>, Vec<Task>) {
    let living: Vec<_> = job.view.tree().tasks().collect();
    let end = job.view.next_task();
    let dead: Vec<_> = (0..end.0).map(Task).filter(|&t| !job.view.contains(t)).collect();
    let pick = |rng: &mut Rng, from: &[Task]| from[rng.below(from.len() as u64) as usize];
    let some = |rng: &mut Rng, from: &[Task], n: u64| {
        let count = rng.below(n) + 1;
        (0..count).map(|_| pick(rng, from)).collect::<BTreeSet<_>>().into_iter().collect::<Vec<_>>()
    };
    let mut failed = match rng.below(9) {
        0 | 1 => vec![pick(rng, &living)],
        2 => some(rng, &living, 8),
        3 => some(rng, &living, 1 + living.len() as u64 / 4),
        4 => living[..living.len().min(1 + rng.below(4) as usize)].to_vec(),
        5 => {
            let seats = Seats { shift: job.view.tree().arity().trailing_zeros() as u8, me: 0 };
            let top = pick(rng, &living);
            living.iter().copied().filter(|t| top.0 > 0 && seats.is_within(top.0, t.0)).collect()
        }
        6 => {
            let top = pick(rng, &living);
            let mut near = job.locals[&top].children();
            near.push(top);
            near
        }
        _ => Vec::new(),
    };
    failed.sort_unstable();
    if failed.len() >= living.len() {
        failed.clear();
    }
    let mut joined = match rng.below(4) {
        0 => tasks(end.0..=end.0 + rng.below(3) as u32),
        1 if !dead.is_empty() => some(rng, &dead, 4),
        2 if !failed.is_empty() => vec![failed[0]],
        _ => Vec::new(),
    };
    joined.sort_unstable();
    (failed, joined)
}

/// RV-9: local views give one tree of all the living, the same for all, after each change and what they ask.
#[test]
fn rv_9_local_views_make_one_tree() {
    let mut worst = Tally::default();
    for seed in 0..60 {
        let mut rng = Rng::new(seed, 9);
        let size = if seed % 20 == 0 { 3000 } else { 1 + rng.below(300) as u32 };
        let mut job = Job::new(2 << (seed % 3), size);
        job.check();
        for _ in 0..if size == 3000 { 4 } else { 12 } {
            let (failed, joined) = draw(&mut rng, &job);
            let n = failed.len();
            job.change(failed, &joined);
            job.check();
            let some = job.view.tree().tasks().step_by(1 + size as usize / 20).collect::<Vec<_>>();
            some.into_iter().for_each(|t| job.check_marks(t));
            eprintln!("{seed} {size} failed {n} {:?}", job.tally);
            worst.outside = worst.outside.max(job.tally.outside);
        }
    }
    eprintln!("{worst:?}");
}

/// RV-9: of whole levels and most of the job at once, what is left finds itself again.
#[test]
fn rv_9_what_is_left_of_a_job_finds_itself() {
    for (arity, size) in [(2, 255), (4, 341), (8, 585), (2, 1000)] {
        for (from, to) in [(0, size / 2), (1, size / 2), (1, size / 4), (3, size / 8)] {
            let mut job = Job::new(arity, size);
            job.change(tasks(from..to), &[]);
            job.check();
            eprintln!("{arity} {size} {from}..{to} {:?}", job.tally);
        }
        for seed in 0..4 {
            let mut rng = Rng::new(seed, 1);
            let mut job = Job::new(arity, size);
            let share = 0.4 + 0.15 * seed as f64;
            job.change(tasks((0..size).filter(|_| rng.chance(share))), &[]);
            job.check();
            eprintln!("{arity} {size} {share} {:?}", job.tally);
        }
    }
}
