//! The radix tree of a job: who speaks with whom in a wave, computed by everybody alone.
//!
//! RV-1, 000 §3.1. Seats are numbered level by level: the children of seat `s` are `a·s + 1 … a·s + a`. So the digits of a
//! seat to the base `a` (a power of two) say which branch to take at each level on the way from the root, no message is
//! needed to build the tree, and the array of seats gives any task in constant time.
//!
//! - **A dead seat stays and is crossed** (§3.4: children of the dead go to its parent): the parent of a task is its nearest
//!   living ancestor, its children are the first living ones below it on each branch. A digit route skips the dead seats on it.
//! - **The lowest living task is the root.** Whoever has no living ancestor is its child (§3.6 leaves open what becomes of the
//!   other children of a dead root).
//! - ⚠ Merging lists of children makes some long: a parent of many would do a wave's work alone. Past [`FAN_OUT`]` · a` children
//!   the living sit down anew, in their order, and the dead have no seat any more. It is a function of the tree and the change
//!   alone, so everybody does it in the same view. A task that recovers later takes its place in the order again.
//!
//! Trees share their seats and differ in a short list of changed ones, so a simulated job of many thousands holds one.

use phalanx_wire::view::Task;
use std::collections::BTreeSet;
use std::sync::Arc;
use thiserror::Error;

/// How many times its arity a task may have children before the living sit down anew.
pub const FAN_OUT: u32 = 4;
/// The largest arity.
pub const ARITY_MAX: u32 = 256;
/// The most tasks of a job.
pub const TASKS_MAX: u32 = 1 << 24;
/// Changed seats that a tree remembers beside the shared ones.
const FLIPS: usize = 128;

/// Why there can be no such tree.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum TreeError {
    /// Digits need it.
    #[error("the arity of a tree must be a power of two from 2 to {ARITY_MAX}, and {0} is not: choose 2, 4 or 8")]
    Arity(u32),
    /// Nobody, or too many.
    #[error("a job has 1 to {TASKS_MAX} tasks, not {0}")]
    Size(u32),
}

/// Which tasks of a job live, and how they are arranged.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Tree {
    /// log₂ of the arity.
    shift: u8,
    seating: Seating,
    /// A bit for each seat: its task lives.
    live: Arc<Vec<u64>>,
    /// Seats whose bit is the other way round, in order.
    flips: Vec<u32>,
    /// How many live.
    count: u32,
    /// The seat of the lowest living task.
    root: u32,
}

/// Who sits where. Seats are in the order of the tasks, always.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Seating {
    /// Everybody on the seat of its own number.
    Own(u32),
    /// After the living sat down anew: the task on each seat, and the seat of each task (or none).
    Anew { tasks: Arc<Vec<u32>>, seats: Arc<Vec<u32>> },
}

const NOBODY: u32 = u32::MAX;

impl Seating {
    fn len(&self) -> u32 {
        match self {
            Self::Own(n) => *n,
            Self::Anew { tasks, .. } => tasks.len() as u32,
        }
    }

    fn seat(&self, task: Task) -> Option<u32> {
        match self {
            Self::Own(n) => (task.0 < *n).then_some(task.0),
            Self::Anew { seats, .. } => seats.get(task.0 as usize).copied().filter(|&s| s != NOBODY),
        }
    }

    fn task(&self, seat: u32) -> Task {
        match self {
            Self::Own(_) => Task(seat),
            Self::Anew { tasks, .. } => Task(tasks[seat as usize]),
        }
    }

    fn of(tasks: Vec<u32>) -> Self {
        let last = tasks.last().map_or(0, |&t| t + 1);
        let mut seats = vec![NOBODY; last as usize];
        for (seat, &task) in tasks.iter().enumerate() {
            seats[task as usize] = seat as u32;
        }
        Self::Anew { tasks: Arc::new(tasks), seats: Arc::new(seats) }
    }
}

impl Tree {
    /// RV-1: the tree of a new job, known to everybody who knows the two numbers.
    ///
    /// # Errors
    /// An arity that is no power of two, a job without tasks or with too many.
    pub fn new(arity: u32, size: u32) -> Result<Self, TreeError> {
        if !arity.is_power_of_two() || !(2..=ARITY_MAX).contains(&arity) {
            return Err(TreeError::Arity(arity));
        }
        if !(1..=TASKS_MAX).contains(&size) {
            return Err(TreeError::Size(size));
        }
        let live = Arc::new(full(size));
        let shift = arity.trailing_zeros() as u8;
        Ok(Self { shift, seating: Seating::Own(size), live, flips: Vec::new(), count: size, root: 0 })
    }

    /// The tree of these living tasks, which sit in their order and without gaps.
    ///
    /// # Errors
    /// As [`Tree::new`].
    pub fn of(arity: u32, tasks: &[Task]) -> Result<Self, TreeError> {
        let mut tree = Self::new(arity, tasks.len().try_into().unwrap_or(u32::MAX))?;
        debug_assert!(tasks.is_sorted(), "tasks sit in their order");
        if tasks.last().is_some_and(|t| t.0 as usize + 1 != tasks.len()) {
            tree.seating = Seating::of(tasks.iter().map(|t| t.0).collect());
        }
        Ok(tree)
    }

    /// How many children a task has where nobody died.
    #[must_use]
    pub fn arity(&self) -> u32 {
        1 << self.shift
    }

    /// How many tasks live.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.count
    }

    /// True when nobody lives.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// True when this task lives.
    #[must_use]
    pub fn contains(&self, task: Task) -> bool {
        self.seating.seat(task).is_some_and(|s| self.lives(s))
    }

    /// The lowest living task.
    #[must_use]
    pub fn root(&self) -> Option<Task> {
        (self.count > 0).then(|| self.seating.task(self.root))
    }

    /// The living, from the lowest on.
    pub fn tasks(&self) -> impl Iterator<Item = Task> + '_ {
        (0..self.seating.len()).filter(|&s| self.lives(s)).map(|s| self.seating.task(s))
    }

    /// RV-4: the living after `task`, in the linear order.
    pub fn after(&self, task: Task) -> impl Iterator<Item = Task> + '_ {
        let from = match self.seating.seat(task) {
            Some(seat) => seat + 1,
            // It lost its seat, or never had one: whoever is higher.
            None => (0..self.seating.len()).find(|&s| self.seating.task(s) > task).unwrap_or(self.seating.len()),
        };
        (from..self.seating.len()).filter(|&s| self.lives(s)).map(|s| self.seating.task(s))
    }

    /// Dead tasks that still have a seat, which others cross.
    pub fn ghosts(&self) -> impl Iterator<Item = Task> + '_ {
        (0..self.seating.len()).filter(|&s| !self.lives(s)).map(|s| self.seating.task(s))
    }

    /// Whom a task answers: its nearest living ancestor, or the root. Nobody for the root and the dead.
    #[must_use]
    pub fn parent(&self, task: Task) -> Option<Task> {
        self.parent_without(task, &|_| false)
    }

    /// As [`Tree::parent`], as if those that are `gone` were dead.
    #[must_use]
    pub fn parent_without(&self, task: Task, gone: &impl Fn(Task) -> bool) -> Option<Task> {
        let mut seat = self.seating.seat(task).filter(|&s| self.lives(s))?;
        while seat > 0 {
            seat = (seat - 1) >> self.shift;
            let above = self.seating.task(seat);
            if self.lives(seat) && !gone(above) {
                return Some(above);
            }
        }
        self.root_without(gone).filter(|&root| root != task)
    }

    /// The lowest living task that is not gone.
    #[must_use]
    pub fn root_without(&self, gone: &impl Fn(Task) -> bool) -> Option<Task> {
        if self.count == 0 {
            return None;
        }
        (self.root..self.seating.len()).filter(|&s| self.lives(s)).map(|s| self.seating.task(s)).find(|&t| !gone(t))
    }

    /// Who answers a task: the first living ones below it on each branch; the root has those without a living ancestor, too.
    #[must_use]
    pub fn children(&self, task: Task) -> Vec<Task> {
        self.children_without(task, &|_| false)
    }

    /// As [`Tree::children`], as if those that are `gone` were dead. `task` itself counts as living.
    #[must_use]
    pub fn children_without(&self, task: Task, gone: &impl Fn(Task) -> bool) -> Vec<Task> {
        let Some(seat) = self.seating.seat(task) else { return Vec::new() };
        let mut found = Vec::new();
        if self.root_without(&|t| t != task && gone(t)) == Some(task) {
            // From the top: all above it are dead.
            let mut crossed = vec![0];
            while let Some(s) = crossed.pop() {
                let here = self.seating.task(s);
                if s == seat || !self.lives(s) || gone(here) {
                    self.below(s, &mut crossed);
                } else {
                    found.push(here);
                }
            }
        } else {
            let mut crossed = Vec::new();
            self.below(seat, &mut crossed);
            while let Some(s) = crossed.pop() {
                let here = self.seating.task(s);
                if !self.lives(s) || gone(here) {
                    self.below(s, &mut crossed);
                } else {
                    found.push(here);
                }
            }
        }
        found.sort_unstable();
        found
    }

    /// Appends the seats right below one.
    fn below(&self, seat: u32, seats: &mut Vec<u32>) {
        let first = (u64::from(seat) << self.shift) + 1;
        let end = (first + u64::from(self.arity())).min(u64::from(self.seating.len()));
        seats.extend((first..end).map(|s| s as u32));
    }

    /// The digits of a task's seat to the base of the arity: which branch to take at each level from the top.
    #[must_use]
    pub fn digits(&self, task: Task) -> Option<Vec<u32>> {
        let mut seat = self.seating.seat(task)?;
        let mut digits = Vec::new();
        while seat > 0 {
            digits.push((seat - 1) & (self.arity() - 1));
            seat = (seat - 1) >> self.shift;
        }
        digits.reverse();
        Some(digits)
    }

    /// The next task on the way from `at` down to `to`: the highest living one on `to`'s digit route that is below `at`. Nobody
    /// when `to` is not below `at`.
    #[must_use]
    pub fn toward(&self, at: Task, to: Task) -> Option<Task> {
        let mut hop = to;
        loop {
            let above = self.parent(hop)?;
            if above == at {
                return Some(hop);
            }
            hop = above;
        }
    }

    /// How far below the root a living task is.
    #[must_use]
    pub fn depth(&self, task: Task) -> Option<u32> {
        self.contains(task).then(|| std::iter::successors(self.parent(task), |&t| self.parent(t)).count() as u32)
    }

    /// Levels of the tree: H of PM-1.
    #[must_use]
    pub fn height(&self) -> u32 {
        self.tasks().filter_map(|t| self.depth(t)).max().map_or(0, |d| d + 1)
    }

    /// The tree after a view change: without the `failed`, with the `joined`. Those that were not there, or were there
    /// already, change nothing.
    #[must_use]
    pub fn changed(&self, failed: &[Task], joined: &[Task]) -> Self {
        let mut tree = self.clone();
        for &task in joined {
            tree.admit(task);
        }
        for &task in failed {
            if let Some(seat) = tree.seating.seat(task)
                && tree.lives(seat)
            {
                tree.flip(seat);
                tree.count -= 1;
            }
        }
        tree.find_root();
        let heirs: BTreeSet<_> = failed.iter().filter_map(|&t| tree.heir(t)).collect();
        if heirs.into_iter().any(|heir| tree.children(heir).len() as u32 > FAN_OUT * tree.arity()) {
            tree.sit_down_anew();
        }
        tree
    }

    /// As it was told: these seats are of the dead.
    pub(super) fn changed_in_place(mut self, dead: &[Task]) -> Self {
        for seat in dead.iter().filter_map(|&t| self.seating.seat(t)).collect::<Vec<_>>() {
            self.flip(seat);
            self.count -= 1;
        }
        self.find_root();
        self
    }

    /// Who has the children of a dead task.
    fn heir(&self, task: Task) -> Option<Task> {
        let mut seat = self.seating.seat(task)?;
        while seat > 0 && !self.lives(seat) {
            seat = (seat - 1) >> self.shift;
        }
        if self.lives(seat) { Some(self.seating.task(seat)) } else { self.root() }
    }

    fn sit_down_anew(&mut self) {
        let tasks: Vec<_> = self.tasks().collect();
        *self = Self::of(self.arity(), &tasks).expect("the living are fewer than before, and not none");
    }

    fn admit(&mut self, task: Task) {
        match self.seating.seat(task) {
            Some(seat) if self.lives(seat) => {}
            Some(seat) => {
                self.flip(seat);
                self.count += 1;
            }
            None => self.make_room(task),
        }
        self.find_root();
    }

    /// RV-5: a new task sits at the bottom; one that had lost its seat takes its place in the order.
    fn make_room(&mut self, task: Task) {
        let alive: Vec<_> = self.tasks().map(|t| t.0).collect();
        match &mut self.seating {
            Seating::Own(n) if task.0 == *n => {
                *n += 1;
                self.fold();
                let live = Arc::make_mut(&mut self.live);
                if task.0.is_multiple_of(64) {
                    live.push(0);
                }
                live[task.0 as usize / 64] |= 1 << (task.0 % 64);
                self.count += 1;
            }
            _ => {
                let mut tasks = alive;
                let at = tasks.partition_point(|&t| t < task.0);
                tasks.insert(at, task.0);
                let tasks: Vec<_> = tasks.into_iter().map(Task).collect();
                *self = Self::of(self.arity(), &tasks).expect("there is room for one more");
            }
        }
    }

    fn lives(&self, seat: u32) -> bool {
        let bit = self.live[seat as usize / 64] >> (seat % 64) & 1 == 1;
        bit != self.flips.binary_search(&seat).is_ok()
    }

    fn flip(&mut self, seat: u32) {
        match self.flips.binary_search(&seat) {
            Ok(i) => {
                self.flips.remove(i);
            }
            Err(i) => self.flips.insert(i, seat),
        }
        if self.flips.len() > FLIPS {
            self.fold();
        }
    }

    /// The remembered changes go into the array.
    fn fold(&mut self) {
        if !self.flips.is_empty() {
            let live = Arc::make_mut(&mut self.live);
            for seat in self.flips.drain(..) {
                live[seat as usize / 64] ^= 1 << (seat % 64);
            }
        }
    }

    fn find_root(&mut self) {
        self.root = (0..self.seating.len()).find(|&s| self.lives(s)).unwrap_or(0);
    }

    /// Bytes that this tree takes, those that it shares included.
    #[must_use]
    pub fn memory(&self) -> usize {
        let seating = match &self.seating {
            Seating::Own(_) => 0,
            Seating::Anew { tasks, seats } => 4 * (tasks.len() + seats.len()),
        };
        size_of::<Self>() + seating + 8 * self.live.len() + 4 * self.flips.capacity()
    }
}

/// A bit for each of `n`.
fn full(n: u32) -> Vec<u64> {
    let mut words = vec![u64::MAX; n.div_ceil(64) as usize];
    if !n.is_multiple_of(64)
        && let Some(last) = words.last_mut()
    {
        *last = (1 << (n % 64)) - 1;
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tree(arity: u32, size: u32) -> Tree {
        Tree::new(arity, size).expect("a good tree")
    }

    fn tasks(ids: &[u32]) -> Vec<Task> {
        ids.iter().copied().map(Task).collect()
    }

    /// RV-1, Fig. 1: the paper counts from 1, we from 0.
    #[test]
    fn rv_1_a_tree_of_four_children() {
        let t = tree(4, 21);
        assert_eq!(t.root(), Some(Task(0)));
        assert_eq!(t.children(Task(0)), tasks(&[1, 2, 3, 4]));
        assert_eq!(t.children(Task(4)), tasks(&[17, 18, 19, 20]));
        assert_eq!(t.parent(Task(10)), Some(Task(2)));
        assert_eq!((t.parent(Task(0)), t.height(), t.depth(Task(20))), (None, 3, Some(2)));
    }

    /// RV-1: two bits say which branch to take in a tree of four children.
    #[test]
    fn rv_1_digits_are_the_route() {
        let t = tree(4, 100);
        for task in t.tasks() {
            let digits = t.digits(task).expect("it has a seat");
            let end = digits.iter().fold(Task(0), |at, &d| t.children(at)[d as usize]);
            assert_eq!(end, task);
        }
    }

    /// RV-1, 000 §3.4, Fig. 2: children of the dead go to its parent.
    #[test]
    fn rv_1_the_parent_of_the_dead_takes_its_children() {
        let t = tree(4, 21).changed(&tasks(&[3]), &[]);
        assert_eq!(t.children(Task(0)), tasks(&[1, 2, 4, 13, 14, 15, 16]));
        assert_eq!(t.parent(Task(13)), Some(Task(0)));
        assert_eq!(t.toward(Task(0), Task(16)), Some(Task(16)), "the route skips the dead");
        assert_eq!(t.ghosts().collect::<Vec<_>>(), tasks(&[3]));
    }

    #[test]
    fn rv_4_the_next_in_line_is_root_and_takes_all_orphans() {
        let t = tree(2, 7).changed(&tasks(&[0, 1]), &[]);
        assert_eq!(t.root(), Some(Task(2)));
        assert_eq!(t.children(Task(2)), tasks(&[3, 4, 5, 6]));
        assert_eq!(t.parent(Task(4)), Some(Task(2)));
        assert_eq!(t.after(Task(0)).next(), Some(Task(2)));
    }

    #[test]
    fn rv_5_newcomers_sit_at_the_bottom_and_the_recovered_on_their_old_seats() {
        let t = tree(2, 6).changed(&[], &tasks(&[6]));
        assert_eq!(t.parent(Task(6)), Some(Task(2)));
        let hurt = t.changed(&tasks(&[1]), &[]);
        assert_eq!(hurt.children(Task(0)), tasks(&[2, 3, 4]));
        assert_eq!(hurt.changed(&[], &tasks(&[1])), t);
        // One that had been root is root again.
        assert_eq!(t.changed(&tasks(&[0]), &[]).changed(&[], &tasks(&[0])).root(), Some(Task(0)));
    }

    #[test]
    fn rv_1_too_many_children_make_the_living_sit_down_anew() {
        let top: Vec<_> = (1..15).map(Task).collect();
        let t = tree(2, 127).changed(&top, &[]);
        assert!(t.children(Task(0)).len() <= 2, "{:?}", t.children(Task(0)));
        assert_eq!((t.len(), t.height()), (113, 7));
        assert_eq!(t.ghosts().count(), 0);
        let back = t.changed(&[], &tasks(&[5]));
        assert_eq!(back.children(Task(0)), tasks(&[5, 15]), "it took its place in the order");
    }

    #[test]
    fn bad_numbers_are_refused() {
        for arity in [0, 1, 3, 6, 512] {
            assert_eq!(Tree::new(arity, 5), Err(TreeError::Arity(arity)));
        }
        assert_eq!(Tree::new(2, 0), Err(TreeError::Size(0)));
        assert_eq!(Tree::new(2, TASKS_MAX + 1), Err(TreeError::Size(TASKS_MAX + 1)));
        assert!(TreeError::Arity(3).to_string().contains("choose 2, 4 or 8"));
    }

    #[test]
    fn rv_10_a_member_takes_less_than_16_bytes() {
        let dead: Vec<_> = (0..1 << 19).map(|i| Task(i * 2 + 1)).collect();
        let t = tree(2, 1 << 20);
        assert!(t.memory() < 1 << 18, "{}", t.memory());
        let anew = t.changed(&dead, &[]);
        assert!(anew.memory() <= 16 * anew.len() as usize, "{}", anew.memory());
    }

    proptest! {
        /// Whatever dies and joins: one tree, all in it, with the root on top and nobody twice.
        #[test]
        fn rv_1_always_one_tree(shift in 1u32..4, size in 1u32..200, steps in prop::collection::vec((any::<bool>(), prop::collection::vec(0u32..220, 0..40)), 0..8)) {
            let mut t = tree(1 << shift, size);
            let mut alive: BTreeSet<_> = (0..size).map(Task).collect();
            for (die, ids) in steps {
                let ids = tasks(&ids);
                let next = if die { t.changed(&ids, &[]) } else { t.changed(&[], &ids) };
                if next.is_empty() {
                    continue;
                }
                t = next;
                for id in ids {
                    if die { alive.remove(&id); } else { alive.insert(id); }
                }
                prop_assert_eq!(t.tasks().collect::<BTreeSet<_>>(), alive.clone());
                let root = t.root().expect("somebody lives");
                prop_assert_eq!(Some(&root), alive.first());
                let mut reached = BTreeSet::from([root]);
                let mut edge = vec![root];
                while let Some(at) = edge.pop() {
                    let children = t.children(at);
                    prop_assert!(children.len() as u32 <= (FAN_OUT + 1) * t.arity() + alive.len() as u32 / 2);
                    for child in children {
                        prop_assert_eq!(t.parent(child), Some(at));
                        prop_assert!(reached.insert(child));
                        prop_assert_eq!(t.toward(root, child).map(|hop| t.parent(hop)), Some(Some(root)));
                        edge.push(child);
                    }
                }
                prop_assert_eq!(reached, alive.clone());
            }
        }

        /// Those that are gone but still in the view are crossed as the dead are.
        #[test]
        fn rv_3_waves_go_around_the_gone(shift in 1u32..4, size in 2u32..120, dead in prop::collection::btree_set(0u32..120, 0..40)) {
            let t = tree(1 << shift, size);
            let gone = |task: Task| dead.contains(&task.0);
            let living: BTreeSet<_> = t.tasks().filter(|&x| !gone(x)).collect();
            let Some(root) = t.root_without(&gone) else { return Ok(()) };
            let (mut reached, mut edge) = (BTreeSet::from([root]), vec![root]);
            while let Some(at) = edge.pop() {
                for child in t.children_without(at, &gone) {
                    prop_assert_eq!(t.parent_without(child, &gone), Some(at));
                    prop_assert!(reached.insert(child));
                    edge.push(child);
                }
            }
            prop_assert_eq!(reached, living);
        }
    }
}
