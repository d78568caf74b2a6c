//! Jobs of local views beside the whole view that they were cut from.

mod wave;

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
        // Another life of a task has heard nothing.
        self.told.values_mut().for_each(|told| told.retain(|t| change.failed.binary_search(t).is_err()));
        for local in self.locals.values_mut() {
            assert!(local.allows(&change));
            *local = local.changed(&change).expect("it stays");
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
        // Only now: there may have been some whom the wave did not find at first.
        let heirs = self.locals.values().next().expect("somebody lives").heirs();
        self.locals.values_mut().for_each(|l| _ = l.learn(&heirs));
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
        let cut = LocalView::of(&self.view, task).expect("it lives");
        assert_eq!((cut.parent(), cut.children()), (local.parent(), local.children()), "the whole view may sit anew");
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
    for seed in 0..45 {
        let mut rng = Rng::new(seed, 9);
        let size = if seed % 20 == 0 { 3000 } else { 1 + rng.below(300) as u32 };
        let mut job = Job::new(2 << (seed % 3), size);
        job.check();
        for _ in 0..if size == 3000 { 3 } else { 10 } {
            let (failed, joined) = draw(&mut rng, &job);
            let bound = failed.len() as u32;
            job.change(failed, &joined);
            job.check();
            let some = job.view.tree().tasks().step_by(1 + size as usize / 20).collect::<Vec<_>>();
            some.into_iter().for_each(|t| job.check_marks(t));
            assert!(job.tally.questions <= bound && job.tally.outside == 0, "{seed}: {:?}", job.tally);
        }
    }
}

/// RV-9: nobody has to ask when one fails, whoever it is; hardly anybody when one after the other does, down to the last.
#[test]
fn rv_9_one_failure_needs_no_question() {
    for arity in [2, 4, 8] {
        for size in [2, 3, 20, 90] {
            let fresh = Job::new(arity, size);
            for task in tasks(0..size) {
                let mut job = Job { view: fresh.view.clone(), locals: fresh.locals.clone(), ..Job::new(arity, 1) };
                job.told.clone_from(&fresh.told);
                let orphans = fresh.locals[&task].children();
                job.change(vec![task], &[]);
                job.check();
                assert_eq!(job.tally.questions + job.tally.outside, 0);
                assert!(job.tally.news <= 4 * orphans.len() as u32, "{:?}", job.tally);
                let crossed = |t: &Task| fresh.locals[t].without([task]).relatives();
                assert!(job.locals.iter().all(|(t, l)| crossed(t) == l.relatives()));
                let moved = |t: &Task| fresh.locals[t].parent() != job.locals[t].parent();
                assert!(job.locals.keys().filter(|t| moved(t)).all(|t| orphans.contains(t)));
            }
        }
        let (mut rng, mut job, mut questions) = (Rng::new(4, u64::from(arity)), Job::new(arity, 200), 0);
        for left in (1..200).rev() {
            let task = job.view.tree().tasks().nth(rng.index(left as usize + 1)).expect("so many live");
            job.change(vec![task], &[]);
            assert_eq!(job.tally.outside, 0, "{left} left");
            questions += job.tally.questions;
        }
        assert!(questions <= 4, "{questions} in all");
        job.check();
    }
}

/// RV-9: whole levels and most of a job at once. While the root lives, or somebody on each line, nobody has to ask outside.
#[test]
fn rv_9_what_is_left_of_a_job_finds_itself() {
    for (arity, size) in [(2, 255), (4, 341), (8, 585), (2, 1000)] {
        for (from, to) in [(1, size / 2), (1, size / 4), (3, size / 8)] {
            let mut job = Job::new(arity, size);
            job.change(tasks(from..to), &[]);
            job.check();
            assert!(job.tally.outside == 0 && job.tally.questions <= 2 * size, "{:?}", job.tally);
        }
        for share in [0.2, 0.4, 0.5] {
            let (mut rng, mut job) = (Rng::new(u64::from(size), 1), Job::new(arity, size));
            job.change(tasks((0..size).filter(|_| rng.chance(share))), &[]);
            job.check();
            assert!(job.tally.outside == 0 && job.tally.questions <= size, "{share} {:?}", job.tally);
        }
    }
    // All that the leaves of one half know of the other are dead.
    let mut job = Job::new(2, 255);
    job.change(tasks(0..127), &[]);
    job.check();
    assert!(job.tally.outside > 0);
}

/// What a member knows in a job that is too large to hold whole.
fn cut(arity: u32, size: u32, dead: &BTreeSet<Task>, me: Task) -> LocalView {
    let mut local = LocalView::first(arity, size, me, |t| person(t, 0)).expect("a good local view");
    dead.iter().for_each(|&t| local.lose(t));
    local.look_around(&|t| (t.0 < size && !dead.contains(&t)).then(|| person(t, 0)));
    local
}

/// RV-9: 4 KiB in jobs of up to 2^24 tasks, all of them at IPv6 addresses, whatever happened.
#[test]
fn rv_9_memory_is_constant() {
    let (mut most, mut asked) = (0, 0);
    for (arity, bits) in [(2, 10), (4, 10), (8, 10), (2, 20), (4, 20), (8, 20), (2, 24), (4, 24), (8, 24)] {
        let (mut rng, end) = (Rng::new(bits, u64::from(arity)), 1 << bits);
        let (mut size, mut dead) = (end - 60, BTreeSet::new());
        let mut mine: Vec<_> = [0, 1, size / arity / 2, size / 2, size - 1].map(Task).to_vec();
        mine.extend((0..2).map(|_| Task(rng.below(u64::from(size)) as u32)));
        let mut locals: Vec<_> = mine.iter().map(|&t| cut(arity, size, &dead, t)).collect();
        for step in 0..20 {
            let relatives = locals[step % locals.len()].known().map(|k| k.task).collect::<Vec<_>>();
            let others = (0..10).map(|_| Task(rng.below(u64::from(size)) as u32));
            let failed: BTreeSet<_> = others.chain(relatives.into_iter().step_by(1 + step % 3)).collect();
            let failed: Vec<_> = failed.into_iter().filter(|t| !dead.contains(t) && !mine.contains(t)).collect();
            let mut joined: Vec<_> = dead.iter().copied().filter(|_| rng.chance(0.3)).collect();
            joined.extend(tasks(size..size + 3));
            size += 3;
            dead.retain(|t| !joined.contains(t));
            dead.extend(&failed);
            let joined = joined.into_iter().map(|task| Joined { task, person: person(task, 0) }).collect();
            let base = locals[0].id();
            let id = ViewId { number: base.number + 1, ..base };
            let change = Change { id, base, failed, joined, ranks: Vec::new(), checkpoint: false };
            for local in &mut locals {
                *local = local.changed(&change).expect("it stays");
                while let Some(Lack { question, .. }) = local.lacks().first() {
                    let levels = local.seats.levels(question.seat).flat_map(|(first, last)| first..=last);
                    let inside =
                        levels.map(|s| Task(s as u32)).find(|t| !dead.contains(t)).expect("a branch with somebody");
                    let answer = LocalView { id, ..cut(arity, size, &dead, inside) }.answer(question);
                    assert!(local.learn(&answer));
                    asked += 1;
                }
                assert!(local.memory() <= 4096, "{}", local.memory());
                most = most.max(local.memory());
                let whole = cut(arity, size, &dead, local.me());
                assert_eq!((local.parent(), local.children()), (whole.parent(), whole.children()));
                assert_eq!(local.len(), size - dead.len() as u32);
            }
        }
    }
    println!("at most {most} bytes");
    assert!(asked <= 400, "{asked} questions");
    let sixteen = LocalView::first(16, 100, Task(0), |t| person(t, 0));
    assert_eq!(sixteen, Err(LocalError::Arity(16)));
}
