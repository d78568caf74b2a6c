//! A view as one member needs it, in 4 KiB at any size.
//!
//! RV-9; 000 §5 names it as future work. A [`View`] takes 16 bytes for each task. To take part in waves a member has to know
//! whom it answers and who answers it, and who that will be when some of them fail. Everybody sits on the seat of its own number
//! for ever, so who sits above and below whom is arithmetic ([`Tree`](super::tree::Tree)). A member knows
//! - its *line*: which seats above it live, and where they are;
//! - of each *branch* below it and beside its line, how many live there, and the lowest of them: all below a mark.
//!
//! A [`Change`] names all who come and go, so line, counts and marks are kept exact by everybody alone. There are at most
//! a + (a − 1) · levels branches, whoever dies. Near branches are known deeper than far ones: a parent knows its children's children
//! as far as there is room.
//!
//! **The tree differs from the full one where somebody died.** That one gives a dead task's children to its parent, and past 4 a of them
//! the living sit down anew. The first needs room without bound; the second needs to know who is how many-th of all the living,
//! which no member can. Here *the lowest living task at or below a seat holds it*. The parent of a task is who holds the seat above
//! the highest one that it holds. So
//! - the tree follows from who lives, not from the order of the changes; where nobody died it is the full one;
//! - the lowest living task is the root (RV-1, RV-4), and all parents are lower than their children: there are no cycles;
//! - it never gets deeper, nobody has more than a + (a − 1) · levels children, and nobody ever sits down anew;
//! - one failure changes the parent of the dead one's children, and of nobody else.
//!
//! Rejected: that the root decides when to sit down anew and tells each its new seat (a wave that says something else to each).
//!
//! **What a member cannot know it says.** When all die at once that it knew of a branch, the lowest of the others is unknown to it:
//! [`LocalView::lacks`] names the branch and whom to ask (`ask`).
//!
//! Arities above 8 are refused. Who holds all seats of its line may have 15 · 6 children in a tree of arity 16, too many for the bound.
//! Ranks are not kept: who holds which one is a question to those who have the [`View`].

mod ask;
mod seats;
#[cfg(test)]
mod tests;

use super::View;
use super::tree::TASKS_MAX;
pub use ask::{Answer, Ask, Lack, Question};
use phalanx_wire::view::{Change, Joined, Person, Task, ViewId};
use seats::Seats;
use thiserror::Error;

/// The largest arity whose members fit.
pub const ARITY_MAX: u32 = 8;
/// How many others a member knows by place. With it 4 KiB are enough, and at arity 8 a line and one of each branch need 65.
const KNOWN_MAX: usize = 76;
/// The mark of a branch in which everybody is known.
const ALL: u32 = u32::MAX;

/// Why there can be no such view.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
pub enum LocalError {
    /// A member would have more children than the bound allows.
    #[error("a local view needs an arity of at most {ARITY_MAX}, not {0}: choose 2, 4 or 8, or use whole views")]
    Arity(u32),
    /// Nobody can look from there.
    #[error("task {0} does not live in this view")]
    Absent(Task),
}

/// A living task, and where it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Known {
    /// The task.
    pub task: Task,
    /// Who it is.
    pub person: Person,
}

/// What is known of a branch.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Branch {
    /// How many live there.
    count: u32,
    /// All living there that are lower are known. Of the others some may be.
    mark: u32,
}

/// Who holds the top of a branch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Held {
    Empty,
    By(Task),
    /// Somebody that is not lower.
    From(u32),
}

/// What a member knows of a view.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct LocalView {
    id: ViewId,
    seats: Seats,
    /// How many seats there are.
    size: u32,
    /// By their numbers in [`Seats`].
    branches: Box<[Branch]>,
    /// Some of the living, in order: all on our line, we too, and some in branches.
    known: Vec<Known>,
}

/// Where a member is in the tree.
struct Place {
    /// The highest seat that it holds, as far as it knows.
    top: u32,
    parent: Option<Task>,
    children: Vec<Task>,
    /// Branches of which it has to know more.
    lacks: Vec<usize>,
}

impl LocalView {
    /// What `me` needs of a whole view.
    ///
    /// # Errors
    /// Too large an arity; somebody who does not live.
    pub fn of(view: &View, me: Task) -> Result<Self, LocalError> {
        let living = |t: Task| view.person(t).filter(|_| view.contains(t));
        let size = view.next_task().0;
        let mut local = Self::first(view.tree().arity(), size, me, |t| view.person(t).expect("a task has a person"))?;
        if !view.contains(me) {
            return Err(LocalError::Absent(me));
        }
        local.id = view.id();
        if view.tree().len() < size {
            for dead in (0..size).map(Task).filter(|&t| !view.contains(t)) {
                local.lose(dead);
            }
            local.look_around(&living);
        }
        Ok(local)
    }

    /// RV-1: what `me` knows of the view that a job starts with, from its arity, its size and where some are.
    ///
    /// # Errors
    /// Too large an arity; a task that is not one of them.
    pub fn first(arity: u32, size: u32, me: Task, person: impl Fn(Task) -> Person) -> Result<Self, LocalError> {
        if !arity.is_power_of_two() || !(2..=ARITY_MAX).contains(&arity) {
            return Err(LocalError::Arity(arity));
        }
        if me.0 >= size {
            return Err(LocalError::Absent(me));
        }
        let seats = Seats { shift: arity.trailing_zeros() as u8, me: me.0 };
        let count = |b| seats.population(seats.top(b), size);
        let branches = (0..seats.branches()).map(|b| Branch { count: count(b), mark: ALL }).collect();
        let mut local = Self { id: ViewId::FIRST, seats, size, branches, known: Vec::new() };
        local.look_around(&|t| (t.0 < size).then(|| person(t)));
        Ok(local)
    }

    /// Takes in who is near, counts being right.
    fn look_around(&mut self, living: &impl Fn(Task) -> Option<Person>) {
        let seats = self.seats;
        let find = |seat: u32| living(Task(seat)).map(|person| Known { task: Task(seat), person });
        self.known = std::iter::once(seats.me).chain(seats.line(seats.me)).filter_map(find).collect();
        for b in 0..self.branches.len() {
            let depth = if seats.distance(b) < 2 { 1 + seats.arity() } else { 3 };
            let levels = seats.levels(seats.top(b)).take_while(|l| l.0 < u64::from(self.size));
            let all = levels.flat_map(|(first, last)| first..=last.min(u64::from(self.size) - 1));
            let count = depth.min(self.branches[b].count as usize);
            self.known.extend(all.filter_map(|seat| find(seat as u32)).take(count));
            self.branches[b].mark = 0;
        }
        self.known.sort_unstable_by_key(|k| k.task);
        for b in 0..self.branches.len() {
            let last = self.known.iter().rfind(|k| seats.branch(k.task.0) == Some(b));
            self.branches[b].mark = last.map_or(0, |k| k.task.0 + 1);
        }
        self.settle();
    }

    /// The name of the view.
    #[must_use]
    pub fn id(&self) -> ViewId {
        self.id
    }

    /// Whose view it is.
    #[must_use]
    pub fn me(&self) -> Task {
        Task(self.seats.me)
    }

    /// How many children a task has where nobody died.
    #[must_use]
    pub fn arity(&self) -> u32 {
        self.seats.arity() as u32
    }

    /// The number that the next new task gets: how many there ever were.
    #[must_use]
    pub fn next_task(&self) -> Task {
        Task(self.size)
    }

    /// How many tasks live.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.count(0).unwrap_or(0)
    }

    /// True when nobody lives, not even we.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Who a living task is, if we know it.
    #[must_use]
    pub fn person(&self, task: Task) -> Option<Person> {
        self.find(task).ok().map(|i| self.known[i].person)
    }

    /// Those living that we know, in order. The first is the root, unless the top of a branch is [lacking](LocalView::lacks); the next
    /// are its heirs.
    pub fn known(&self) -> impl Iterator<Item = Known> + '_ {
        self.known.iter().copied()
    }

    /// Whom we answer; nobody when we are the root, or cannot tell.
    #[must_use]
    pub fn parent(&self) -> Option<Task> {
        self.place().parent
    }

    /// Who answers us, as far as we can tell.
    #[must_use]
    pub fn children(&self) -> Vec<Task> {
        self.place().children
    }

    /// True when the change may follow on this view, as far as we can tell.
    #[must_use]
    pub fn allows(&self, change: &Change) -> bool {
        let mut news = change.joined.iter().filter(|j| j.task.0 >= self.size).zip(self.size..);
        let left = u64::from(self.len()) + change.joined.len() as u64 > change.failed.len() as u64;
        change.base == self.id && left && news.all(|(j, next)| j.task.0 == next && next < TASKS_MAX)
    }

    /// The view after a change that it [allows](LocalView::allows); none when we are not in it any more.
    #[must_use]
    pub fn changed(&self, change: &Change) -> Option<Self> {
        debug_assert!(self.allows(change), "{change:?}");
        if change.failed.binary_search(&self.me()).is_ok() {
            return None;
        }
        let is_new = |t: &Task| change.joined.iter().any(|j| j.task == *t);
        let mut local = self.without(change.failed.iter().copied().filter(|t| !is_new(t)));
        local.id = change.id;
        for joined in &change.joined {
            let replaced = change.failed.binary_search(&joined.task).is_ok();
            local.gain(joined, replaced);
        }
        local.settle();
        Some(local)
    }

    /// The same view, as if those that are gone were dead: who is crossed in a wave. It is for that wave, not to answer others from.
    #[must_use]
    pub fn without(&self, gone: impl IntoIterator<Item = Task>) -> Self {
        let mut local = self.clone();
        for task in gone.into_iter().filter(|&t| t != self.me()) {
            local.lose(task);
        }
        local.settle();
        local
    }

    fn lose(&mut self, task: Task) {
        if let Ok(i) = self.find(task) {
            self.known.remove(i);
        }
        if let Some(b) = self.seats.branch(task.0) {
            self.branches[b].count = self.branches[b].count.saturating_sub(1);
        }
    }

    fn gain(&mut self, joined: &Joined, replaced: bool) {
        let Joined { task, person } = *joined;
        self.size = self.size.max(task.0.saturating_add(1));
        if let Ok(i) = self.find(task) {
            self.known[i].person = person;
            return;
        }
        let Some(b) = self.seats.branch(task.0) else { return self.add(Known { task, person }) };
        self.branches[b].count += u32::from(!replaced);
        let is_first = self.known.iter().all(|k| self.seats.branch(k.task.0) != Some(b));
        if is_first || task.0 < self.branches[b].mark {
            self.add(Known { task, person });
            // One by one: who comes may not fit.
            self.trim();
        }
    }

    /// Adds one that is known to live.
    fn add(&mut self, known: Known) {
        if let Err(i) = self.find(known.task) {
            self.known.reserve_exact(1);
            self.known.insert(i, known);
        }
    }

    fn find(&self, task: Task) -> Result<usize, usize> {
        self.known.binary_search_by_key(&task, |k| k.task)
    }

    /// Moves the marks as far as is certain, and forgets who does not fit.
    fn settle(&mut self) {
        let mut known = vec![0; self.branches.len()];
        for b in self.known.iter().filter_map(|k| self.seats.branch(k.task.0)) {
            known[b] += 1;
        }
        for (b, branch) in self.branches.iter_mut().enumerate() {
            if known[b] >= branch.count {
                branch.mark = ALL;
            } else {
                branch.mark = self.seats.next(self.seats.top(b), branch.mark);
            }
        }
        self.trim();
    }

    /// Forgets who does not fit: those with many others before them in their branch, the sooner the farther away it is, from us and
    /// from the top.
    fn trim(&mut self) {
        let excess = self.known.len().saturating_sub(KNOWN_MAX);
        if excess > 0 {
            let mut before = vec![0; self.branches.len()];
            let mut costs = Vec::new();
            let levels = self.seats.line(self.seats.me).count();
            for k in &self.known {
                if let Some(b) = self.seats.branch(k.task.0) {
                    let distance = self.seats.distance(b);
                    costs.push((before[b] * (1 + distance).min(2 + levels - distance), k.task, b));
                    before[b] += 1;
                }
            }
            costs.sort_unstable();
            for &(_, task, b) in costs.iter().rev().take(excess) {
                self.branches[b].mark = self.branches[b].mark.min(task.0);
                self.known.retain(|k| k.task != task);
            }
        }
        self.known.shrink_to(KNOWN_MAX + 1);
    }

    /// All living at or below a seat that are lower than this are known.
    fn mark(&self, seat: u32) -> u32 {
        let seats = self.seats;
        let touches = |&b: &usize| seats.is_within(seat, seats.top(b)) || seats.is_within(seats.top(b), seat);
        (0..self.branches.len()).filter(touches).map(|b| self.branches[b].mark).min().unwrap_or(ALL)
    }

    /// How many live at or below a seat, where that is known.
    fn count(&self, seat: u32) -> Option<u32> {
        let seats = self.seats;
        let known = self.known.iter().filter(|k| seats.is_within(seat, k.task.0));
        match seats.branch(seat) {
            None => {
                let on_line = known.filter(|k| seats.branch(k.task.0).is_none()).count() as u32;
                let inside = (0..self.branches.len()).filter(|&b| seats.is_within(seat, seats.top(b)));
                Some(on_line + inside.map(|b| self.branches[b].count).sum::<u32>())
            }
            Some(b) if seats.top(b) == seat => Some(self.branches[b].count),
            Some(b) => (self.branches[b].mark == ALL).then(|| known.count() as u32),
        }
    }

    fn held(&self) -> Vec<Held> {
        let held = |b: &Branch| if b.count == 0 { Held::Empty } else { Held::From(b.mark) };
        let mut all: Vec<_> = self.branches.iter().map(held).collect();
        for k in &self.known {
            if let Some(b) = self.seats.branch(k.task.0)
                && matches!(all[b], Held::From(mark) if k.task.0 < mark)
            {
                all[b] = Held::By(k.task);
            }
        }
        all
    }

    fn place(&self) -> Place {
        let (held, me) = (self.held(), self.me());
        let mut place = Place { top: me.0, parent: None, children: Vec::new(), lacks: Vec::new() };
        place.hold(&held, 0..self.seats.arity());
        for (level, above) in self.seats.line(me.0).enumerate() {
            if self.find(Task(above)).is_ok() {
                place.parent = Some(Task(above));
                break;
            }
            let beside = self.seats.beside(level);
            let by = |b| if let Held::By(task) = held[b] { Some(task) } else { None };
            let lowest = beside.clone().filter_map(by).min().map_or(me, |t| t.min(me));
            let unsure = |&b: &usize| matches!(held[b], Held::From(mark) if mark < lowest.0);
            if beside.clone().any(|b| unsure(&b)) {
                place.lacks.extend(beside.filter(unsure));
                break;
            }
            if lowest != me {
                place.parent = Some(lowest);
                break;
            }
            place.hold(&held, beside);
            place.top = above;
        }
        place.children.sort_unstable();
        place
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn memory(&self) -> usize {
        size_of::<Self>() + size_of::<Branch>() * self.branches.len() + size_of::<Known>() * self.known.capacity()
    }
}

impl Place {
    /// Who holds these branches answers us.
    fn hold(&mut self, held: &[Held], branches: std::ops::Range<usize>) {
        for b in branches {
            match held[b] {
                Held::Empty => {}
                Held::By(task) => self.children.push(task),
                Held::From(_) => self.lacks.push(b),
            }
        }
    }
}
