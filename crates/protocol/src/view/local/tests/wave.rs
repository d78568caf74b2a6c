//! Waves by local views alone.

use super::*;

/// A change on its way down a tree of local views, which only hear of it that way, and the acknowledgements on their way up.
struct Passing {
    locals: BTreeMap<Task, LocalView>,
    change: Change,
    root: Task,
    heirs: Option<Answer>,
    got: BTreeMap<Task, u32>,
    from: BTreeMap<Task, Task>,
    sent: BTreeMap<Task, BTreeSet<Task>>,
    awaited: BTreeMap<Task, BTreeSet<Task>>,
    counts: BTreeMap<Task, u32>,
    /// Who gets the notice of whom, or (with a count) the acknowledgement.
    letters: Vec<(Task, Task, Option<u32>)>,
    /// For one who has no view yet, until somebody below brings it one.
    held: Vec<(Task, Task, Option<u32>)>,
    called: u32,
}

impl Passing {
    fn new(job: &Job, change: Change) -> Self {
        let mut locals = job.locals.clone();
        locals.retain(|t, _| change.failed.binary_search(t).is_err());
        let root = *locals.keys().next().expect("somebody stays");
        let (got, counts, from) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (sent, awaited) = (BTreeMap::new(), BTreeMap::new());
        let mut passing = Self {
            locals,
            change,
            root,
            heirs: None,
            got,
            from,
            sent,
            awaited,
            counts,
            letters: Vec::new(),
            held: Vec::new(),
            called: 0,
        };
        passing.hear(root);
        // Who is back and lower leads from now on.
        passing.root = passing.locals[&root].known().next().expect("it knows itself").task;
        passing.join(passing.root, root);
        passing.begin();
        passing
    }

    fn begin(&mut self) {
        let root = self.root;
        if self.locals.contains_key(&root) && !self.got.contains_key(&root) {
            self.heirs = Some(self.locals[&root].heirs());
            self.got.insert(root, 1);
            self.pass(root);
        }
    }

    fn hear(&mut self, task: Task) {
        if let Some(local) = self.locals.get_mut(&task).filter(|l| l.id() == self.change.base) {
            *local = local.changed(&self.change).expect("it stays");
        }
    }

    /// One who is new gets its view from who gives it the notice, or from who sits below it. True when it has one.
    fn join(&mut self, task: Task, by: Task) -> bool {
        if self.locals.contains_key(&task) {
            return true;
        }
        let joined = self.change.joined.iter().find(|j| j.task == task).expect("who has no view is new");
        let known = Known { task, person: joined.person };
        let below = self.locals[&by].answer(&Question { view: self.change.id, seat: task.0, from: known }).living;
        for host in std::iter::once(by).chain(below.iter().map(|k| k.task)) {
            self.hear(host);
            if let Some(local) = self.locals.get(&host).and_then(|l| l.seen_from(known)) {
                self.locals.insert(task, local);
                return true;
            }
        }
        false
    }

    /// Gives the notice to all below that have not got it from us; answers when they have.
    fn pass(&mut self, task: Task) {
        for Lack { question, ask } in self.locals[&task].lacks() {
            let Ask::These(these) = ask else { continue };
            for who in these {
                // A question brings the change along.
                self.hear(who.task);
                let Some(other) = self.locals.get_mut(&who.task) else { continue };
                other.meet(question.from);
                let answer = other.answer(&question);
                if self.locals.get_mut(&task).expect("it asks").learn(&answer) {
                    return self.pass(task);
                }
            }
        }
        if !self.got.contains_key(&task) {
            return;
        }
        for child in self.locals[&task].children() {
            if self.sent.entry(task).or_default().insert(child) {
                self.awaited.entry(task).or_default().insert(child);
                self.letters.push((task, child, None));
            }
        }
        let waits = self.awaited.get(&task).is_some_and(|a| !a.is_empty());
        if let Some(&from) = self.from.get(&task)
            && !waits
            && self.locals[&task].lacks().is_empty()
        {
            self.letters.push((task, from, Some(1 + self.counts.get(&task).unwrap_or(&0))));
        }
    }

    fn run(&mut self) {
        loop {
            while let Some((from, to, count)) = self.letters.pop() {
                let news = self.locals[&from].news();
                if !self.join(to, from) {
                    self.held.push((from, to, count));
                    continue;
                }
                self.hear(to);
                let local = self.locals.get_mut(&to).expect("who gets letters lives");
                for said in self.heirs.iter().chain([&news]) {
                    local.learn(said);
                }
                match count {
                    None => {
                        *self.got.entry(to).or_default() += 1;
                        self.from.insert(to, from);
                    }
                    Some(count) => {
                        assert!(self.awaited.get_mut(&to).expect("it waits").remove(&from), "{from} answers {to} once");
                        *self.counts.entry(to).or_default() += count;
                    }
                }
                self.pass(to);
            }
            if !self.call() {
                break;
            }
        }
    }

    /// Those without news for long ask all they know, and tell who is their parent now.
    fn call(&mut self) -> bool {
        let mut any = false;
        let waiting: Vec<_> = self.locals.keys().copied().filter(|t| !self.got.contains_key(t)).collect();
        for task in waiting {
            let local = &self.locals[&task];
            let heard = |k: Known| self.locals.get(&k.task).is_some_and(|l| l.id() == self.change.id);
            let hears = local.id() == self.change.base && local.known().any(heard);
            if hears {
                self.hear(task);
                self.called += 1;
                any = true;
            }
            self.pass(task);
            if let Some(parent) = self.locals[&task].parent()
                && self.locals[&task].id() == self.change.id
                && self.join(parent, task)
            {
                self.letters.append(&mut self.held);
                self.begin();
            }
            if let Some(parent) = self.locals[&task].parent().filter(|p| self.got.contains_key(p)) {
                let news = self.locals[&task].news();
                any |= self.locals.get_mut(&parent).expect("a living parent").learn(&news);
                self.pass(parent);
            }
        }
        any || !self.letters.is_empty()
    }
}

/// RV-9, RV-2: a wave that carries the change goes down by local views alone, to everybody once, and is acknowledged by all.
#[test]
fn rv_9_a_wave_reaches_everybody_once() {
    let mut called = 0;
    for seed in 0..30 {
        let mut rng = Rng::new(seed, 2);
        let mut job = Job::new(2 << (seed % 3), 1 + rng.below(400) as u32);
        for _ in 0..5 {
            let (failed, joined) = draw(&mut rng, &job);
            let mut passing = Passing::new(&job, job.next(failed.clone(), &joined));
            passing.run();
            job.change(failed, &joined);
            let missed: Vec<_> = job.locals.keys().filter(|t| !passing.got.contains_key(t)).collect();
            assert!(missed.is_empty(), "all are reached");
            assert!(passing.got.values().all(|&n| n == 1), "once");
            let root = job.view.tree().root().expect("somebody lives");
            assert_eq!(passing.counts.get(&root).unwrap_or(&0) + 1, job.view.tree().len(), "all acknowledge");
            called += passing.called;
        }
    }
    assert!(called <= 40, "{called} had to call");
}
