//! Keeps a majority alive: RV-6 lets a job that lost it wait for ever, and a run in which it does tests little.

use crate::check::{Checker, Verdict};
use crate::company::{Host, Note, Who};
use crate::fault::{Fault, NodeFault};
use phalanx_core::{Addr, Instant};
use phalanx_protocol::view::View;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Who may be killed. Its copies are one.
#[derive(Clone, Default)]
pub struct Guard(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    newest: Option<View>,
    /// The highest start of a task that each node told of.
    seen: BTreeMap<u32, u32>,
    /// Those up to this one are dead.
    killed: BTreeMap<u32, u32>,
    /// The job is over for them.
    out: BTreeSet<(u32, Who)>,
}

impl Guard {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a majority of the newest view lives on without this node; if so, it counts as dead.
    #[must_use]
    pub fn kill(&self, node: u32) -> bool {
        let mut state = self.lock();
        let may = state.outlives(node);
        if may {
            state.bury(node);
        }
        may
    }

    /// Whether one of many may leave: the last ones end the job.
    #[must_use]
    pub fn part(&self) -> bool {
        self.lock().newest.as_ref().is_some_and(|v| v.tree().len() > 2)
    }
}

impl State {
    fn outlives(&self, node: u32) -> bool {
        let Some(view) = &self.newest else { return false };
        let lives = |task| {
            let Some(person) = view.person(task) else { return false };
            let Addr::Local(host) = person.host else { return false };
            let is_dead = self.killed.get(&host).is_some_and(|&boot| person.boot <= boot);
            host != node && !is_dead && !self.out.contains(&(host, Who { task, boot: person.boot }))
        };
        let left = view.tree().tasks().filter(|&t| lives(t)).count();
        let root = view.tree().root().is_some_and(lives);
        2 * left + usize::from(root) > view.tree().len() as usize
    }

    fn bury(&mut self, node: u32) {
        let seen = self.seen.get(&node).copied().unwrap_or(0);
        self.killed.insert(node, seen);
    }
}

impl Checker<Host> for Guard {
    fn name(&self) -> &'static str {
        "guard"
    }

    fn note(&mut self, _: Instant, node: u32, note: &Note, _: &mut Verdict) {
        let mut state = self.lock();
        match note {
            Note::Installed { who, view, .. } => {
                let seen = state.seen.entry(node).or_default();
                *seen = who.boot.max(*seen);
                if state.newest.as_ref().is_none_or(|n| n.id().number < view.id().number) {
                    state.newest = Some(View::clone(view));
                }
            }
            Note::Knocks(who) => {
                let seen = state.seen.entry(node).or_default();
                *seen = who.boot.max(*seen);
            }
            Note::Aborted(who) => _ = state.out.insert((node, *who)),
            _ => {}
        }
    }

    fn fault(&mut self, _: Instant, fault: &Fault, _: &mut Verdict) {
        if let Fault::Node(node, NodeFault::CrashProcess | NodeFault::CrashHost) = *fault {
            self.lock().bury(node);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_protocol::view::{Person, Task};

    #[test]
    fn so_many_may_die_that_a_majority_remembers() {
        let view = View::first(2, (0..5).map(|i| Person { host: Addr::Local(i), boot: 7, stint: 0 })).expect("a view");
        let guard = Guard::default();
        assert!(!guard.kill(4), "nobody is in a view yet");
        for node in 0..5 {
            let who = Who { task: Task(node), boot: 7 };
            let note = Note::Installed { who, view: Box::new(view.clone()), base: None };
            guard.clone().note(Instant::ZERO, node, &note, &mut Verdict::default());
        }
        let may: Vec<_> = [4, 4, 1, 0, 2].into_iter().map(|n| guard.kill(n)).collect();
        assert_eq!(may, [true, true, true, false, false]);
    }
}
