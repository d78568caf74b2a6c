//! A view: which tasks of a job live, where they are, and who holds which rank.
//!
//! A view is made of another by a [`Change`], the same everywhere, or read whole by those who come or were left behind. Tasks that
//! failed keep their entry: RV-5 wants that a host which recovers gets its old number, and the count of its lives goes on.

use super::tree::{TASKS_MAX, Tree, TreeError};
use phalanx_core::Addr;
use phalanx_wire::view::{Change, Entry, Joined, Person, Roster, Task, ViewId};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV6};
use std::sync::Arc;

/// How far the numbers of a view and its successor may be apart: each attempt that came to nothing costs one.
const STEP_MAX: u64 = 1 << 32;

/// Who has not come yet.
const ABSENT: Person = Person { host: Addr::Local(u32::MAX), boot: 0, stint: 0 };

/// One view of a job. Copies share all that is large.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct View {
    id: ViewId,
    tree: Tree,
    people: Arc<People>,
    /// How many ranks there are. Rank `r` is held by task `r`, but for those in `holders`.
    ranks: u32,
    holders: Arc<BTreeMap<u32, Task>>,
}

/// Everybody who is or was a task, in 16 bytes each.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
struct People {
    packed: Vec<Packed>,
    /// Hosts that need more room.
    six: Vec<SocketAddrV6>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Packed {
    place: u32,
    /// The port, and above it what kind of place it is.
    port: u32,
    boot: u32,
    stint: u32,
}

const LOCAL: u32 = 1 << 16;
const FOUR: u32 = 2 << 16;
const SIX: u32 = 3 << 16;

impl People {
    fn of(people: impl IntoIterator<Item = Person>) -> Self {
        let mut all = Self::default();
        for person in people {
            all.set(all.packed.len(), person);
        }
        all
    }

    fn get(&self, task: Task) -> Option<Person> {
        let packed = self.packed.get(task.0 as usize)?;
        let port = packed.port as u16;
        let host = match packed.port & !0xffff {
            LOCAL => Addr::Local(packed.place),
            FOUR => Addr::Ip((Ipv4Addr::from(packed.place), port).into()),
            _ => Addr::Ip(self.six[packed.place as usize].into()),
        };
        Some(Person { host, boot: packed.boot, stint: packed.stint })
    }

    /// The next one is appended.
    fn set(&mut self, at: usize, person: Person) {
        let (place, port) = match person.host {
            Addr::Ip(SocketAddr::V4(a)) => (u32::from(*a.ip()), FOUR | u32::from(a.port())),
            Addr::Ip(SocketAddr::V6(a)) => {
                let known = self.six.iter().position(|&s| s == a);
                let place = known.unwrap_or_else(|| {
                    self.six.push(a);
                    self.six.len() - 1
                });
                (place as u32, SIX)
            }
            Addr::Local(n) => (n, LOCAL),
            Addr::Group(_) => (u32::MAX, LOCAL),
        };
        let packed = Packed { place, port, boot: person.boot, stint: person.stint };
        match self.packed.get_mut(at) {
            Some(slot) => *slot = packed,
            None => self.packed.push(packed),
        }
    }
}

impl View {
    /// RV-1: the view that a job starts with: everybody.
    ///
    /// # Errors
    /// As [`Tree::new`].
    pub fn first(arity: u32, people: impl IntoIterator<Item = Person>) -> Result<Self, TreeError> {
        let people = People::of(people);
        let size = people.packed.len().try_into().unwrap_or(u32::MAX);
        let tree = Tree::new(arity, size)?;
        Ok(Self { id: ViewId::FIRST, tree, people: Arc::new(people), ranks: size, holders: Arc::default() })
    }

    /// The view that a job starts with whose tasks come one by one: only the first is there, the others are let in as they knock.
    ///
    /// # Errors
    /// As [`Tree::new`].
    pub fn founded(arity: u32, size: u32, first: Person) -> Result<Self, TreeError> {
        let tree = Tree::new(arity, size)?.changed_in_place(&(1..size).map(Task).collect::<Vec<_>>());
        let people = People::of((0..size).map(|i| if i == 0 { first } else { ABSENT }));
        Ok(Self { id: ViewId::FIRST, tree, people: Arc::new(people), ranks: size, holders: Arc::default() })
    }

    /// True of a task that has not come yet.
    #[must_use]
    pub fn is_awaited(&self, task: Task) -> bool {
        self.people.get(task) == Some(ABSENT)
    }

    /// Its name.
    #[must_use]
    pub fn id(&self) -> ViewId {
        self.id
    }

    /// Who lives, and how they are arranged.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// True when this task lives.
    #[must_use]
    pub fn contains(&self, task: Task) -> bool {
        self.tree.contains(task)
    }

    /// Who a task is, or was before it failed.
    #[must_use]
    pub fn person(&self, task: Task) -> Option<Person> {
        self.people.get(task)
    }

    /// The number that the next new task gets: how many there ever were.
    #[must_use]
    pub fn next_task(&self) -> Task {
        Task(self.people.packed.len() as u32)
    }

    /// How many ranks the job has.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// Who holds a rank; it may be dead.
    #[must_use]
    pub fn holder(&self, rank: u32) -> Option<Task> {
        (rank < self.ranks).then(|| self.holders.get(&rank).copied().unwrap_or(Task(rank)))
    }

    /// The rank that a task holds; spares hold none.
    #[must_use]
    pub fn rank_of(&self, task: Task) -> Option<u32> {
        if self.holder(task.0) == Some(task) {
            return Some(task.0);
        }
        self.holders.iter().find(|(_, t)| **t == task).map(|(&rank, _)| rank)
    }

    /// True when the change may follow on this view.
    #[must_use]
    pub fn allows(&self, change: &Change) -> bool {
        let end = self.next_task().0;
        let news = change.joined.iter().filter(|j| j.task.0 >= end);
        let in_line = news.enumerate().all(|(i, j)| j.task.0 == end + i as u32 && j.task.0 < TASKS_MAX);
        let free =
            |j: &Joined| j.task.0 >= end || !self.contains(j.task) || change.failed.binary_search(&j.task).is_ok();
        let known = |t: Task| t.0 < end || change.joined.iter().any(|j| j.task == t);
        let mut ranks = self.ranks;
        let held = change.ranks.iter().all(|&(rank, task)| {
            ranks = ranks.max(rank.saturating_add(u32::from(rank == ranks)));
            rank < ranks && known(task)
        });
        let left = u64::from(self.tree.len()) + change.joined.len() as u64 > change.failed.len() as u64;
        // Numbers that somebody made up must not run out.
        let near = change.id.number - self.id.number.min(change.id.number) <= STEP_MAX;
        change.base == self.id
            && near
            && in_line
            && held
            && left
            && change.joined.iter().all(free)
            && change.failed.iter().all(|&t| self.contains(t))
    }

    /// The view after a change that it [allows](View::allows).
    #[must_use]
    pub fn changed(&self, change: &Change) -> Self {
        debug_assert!(self.allows(change), "{change:?}");
        let mut view = self.clone();
        view.id = change.id;
        if !change.joined.is_empty() {
            let people = Arc::make_mut(&mut view.people);
            change.joined.iter().for_each(|j| people.set(j.task.0 as usize, j.person));
        }
        let joined: Vec<_> = change.joined.iter().map(|j| j.task).collect();
        let failed: Vec<_> = change.failed.iter().copied().filter(|t| !joined.contains(t)).collect();
        view.tree = view.tree.changed(&failed, &joined);
        for &(rank, task) in &change.ranks {
            view.ranks = view.ranks.max(rank + 1);
            let holders = Arc::make_mut(&mut view.holders);
            if task.0 == rank {
                holders.remove(&rank);
            } else {
                holders.insert(rank, task);
            }
        }
        view
    }

    /// The view as it travels.
    #[must_use]
    pub fn roster(&self) -> Roster {
        let seated: Vec<_> = self.tree.ghosts().collect();
        let entries = (0..self.next_task().0).map(Task).filter_map(|task| {
            let lives = self.contains(task);
            let seated = lives || seated.binary_search(&task).is_ok();
            Some(Entry { person: self.person(task)?, lives, seated })
        });
        Roster {
            id: self.id,
            arity: self.tree.arity(),
            ranks: self.ranks,
            entries: entries.collect(),
            holders: self.holders.iter().map(|(&r, &t)| (r, t)).collect(),
        }
    }

    /// Reads a view that travelled.
    ///
    /// # Errors
    /// As [`Tree::new`]; a view without anybody counts as a bad size.
    pub fn of(roster: &Roster) -> Result<Self, TreeError> {
        let tasks = |pick: fn(&Entry) -> bool| {
            let all = roster.entries.iter().enumerate();
            all.filter(move |(_, e)| pick(e)).map(|(i, _)| Task(i as u32)).collect::<Vec<_>>()
        };
        let ghosts = tasks(|e| e.seated && !e.lives);
        let tree = Tree::of(roster.arity, &tasks(|e| e.seated))?.changed_in_place(&ghosts);
        if tree.is_empty() || roster.ranks > TASKS_MAX {
            return Err(TreeError::Size(0));
        }
        let people = Arc::new(People::of(roster.entries.iter().map(|e| e.person)));
        let known = |t: &Task| (t.0 as usize) < roster.entries.len();
        let holders = roster.holders.iter().copied().filter(|(rank, t)| *rank < roster.ranks && known(t)).collect();
        Ok(Self { id: roster.id, tree, people, ranks: roster.ranks, holders: Arc::new(holders) })
    }

    /// Bytes that this view takes, those that it shares included.
    #[must_use]
    pub fn memory(&self) -> usize {
        let people =
            size_of::<Packed>() * self.people.packed.capacity() + size_of::<SocketAddrV6>() * self.people.six.len();
        size_of::<Self>() - size_of::<Tree>() + self.tree.memory() + people + 16 * self.holders.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn person(n: u32) -> Person {
        Person { host: Addr::Local(n), boot: n * 7, stint: 0 }
    }

    fn view(n: u32) -> View {
        View::first(2, (0..n).map(person)).expect("a good view")
    }

    fn change(view: &View) -> Change {
        let id = ViewId { number: view.id().number + 1, ..view.id() };
        Change { id, base: view.id(), failed: vec![], joined: vec![], ranks: vec![], checkpoint: false }
    }

    #[test]
    fn rv_9_a_spare_holds_the_rank_of_who_failed() {
        let v = view(3);
        let spare = Joined { task: Task(3), person: person(3) };
        let with_spare = v.changed(&Change { joined: vec![spare], ..change(&v) });
        assert_eq!((with_spare.ranks(), with_spare.rank_of(Task(3))), (3, None));
        let taken = Change { failed: vec![Task(1)], ranks: vec![(1, Task(3))], ..change(&with_spare) };
        assert!(with_spare.allows(&taken));
        let after = with_spare.changed(&taken);
        assert_eq!((after.holder(1), after.rank_of(Task(3)), after.rank_of(Task(1))), (Some(Task(3)), Some(1), None));
    }

    #[test]
    fn a_view_travels_whole() {
        let v = view(40);
        let failed = vec![Task(0), Task(3), Task(17)];
        let six = Person { host: Addr::Ip("[fd00::1]:70".parse().expect("an address")), boot: 1, stint: 3 };
        let joined = vec![Joined { task: Task(40), person: six }];
        let after = v.changed(&Change { failed, joined, ranks: vec![(3, Task(40))], ..change(&v) });
        assert_eq!(View::of(&after.roster()), Ok(after.clone()));
        assert_eq!(after.person(Task(40)), Some(six));
        let crowded = view(127);
        let anew = crowded.changed(&Change { failed: (1..15).map(Task).collect(), ..change(&crowded) });
        assert_eq!(View::of(&anew.roster()), Ok(anew));
    }

    #[test]
    fn changes_that_make_no_sense_are_not_allowed() {
        let v = view(3);
        let join = |task| Joined { task: Task(task), person: person(9) };
        let bad = [
            Change { failed: vec![Task(7)], ..change(&v) },
            Change { joined: vec![join(5)], ..change(&v) },
            Change { joined: vec![join(1)], ..change(&v) },
            Change { failed: (0..3).map(Task).collect(), ..change(&v) },
            Change { ranks: vec![(4, Task(0))], ..change(&v) },
            Change { ranks: vec![(0, Task(9))], ..change(&v) },
            Change { base: ViewId { number: 9, ..v.id() }, ..change(&v) },
            Change { id: ViewId { number: u64::MAX, ..v.id() }, ..change(&v) },
        ];
        for change in bad {
            assert!(!v.allows(&change), "{change:?}");
        }
        assert!(v.allows(&Change { failed: vec![Task(1)], joined: vec![join(1)], ..change(&v) }), "one replaced");
    }

    /// RV-10: the paper takes up to 1 MB for 1024 nodes.
    #[test]
    fn rv_10_memory() {
        assert!(view(1024).memory() <= 32 << 10, "{}", view(1024).memory());
        assert!(view(1 << 20).memory() <= 32 << 20, "{}", view(1 << 20).memory());
    }
}
