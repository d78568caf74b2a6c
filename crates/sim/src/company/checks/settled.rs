//! Liveness: after healing the living tasks, and nobody else, share one view.
//!
//! Where a majority decides, that is excused only when it cannot be: when of the newest view that any living task is in no majority
//! remembers it (RV-6: members remember nothing across a restart). Exactly: `2 · m + r ≤ n`, where `n` tasks are in it, `m` of them
//! run in the very life that is in it (and hold it, an earlier one, or knock for it), and `r` is 1 when its root is one of those.
//! When nobody at all is in a view, the job is over. Both are counted, and so is who aborted: under `abort` that is the policy.
//!
//! Where each part goes on by itself, each part must be whole: everybody is in a view, and all who are in it hold it.

use crate::check::{Checker, Cluster};
use crate::company::Host;
use crate::node::State;
use phalanx_core::{Addr, Instant};
use phalanx_protocol::view::{Member, OnPartition, Task, View, ViewId};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often what was excused.
#[derive(Debug, Default)]
pub struct Excuses {
    /// No majority of the newest view remembers it.
    pub forgotten: AtomicU64,
    /// Nobody is in any view, and somebody lives.
    pub over: AtomicU64,
}

/// Waits until all is well.
#[derive(Default)]
pub struct Settled {
    excuses: Arc<Excuses>,
}

/// A task that runs.
struct Running<'a> {
    node: u32,
    member: &'a Member,
    /// It does not say good-bye.
    lives: bool,
}

impl Running<'_> {
    fn is_in(&self, view: &View) -> bool {
        self.is_person_of(view) == Some(self.member.me())
    }

    /// A newcomer may not know its number yet.
    fn is_person_of(&self, view: &View) -> Option<Task> {
        let is_it = |t: &Task| {
            view.person(*t).is_some_and(|p| (p.host, p.boot) == (Addr::Local(self.node), self.member.boot()))
        };
        view.tree().tasks().find(is_it)
    }
}

fn running<'a>(cluster: &Cluster<'a, Host>) -> Vec<Running<'a>> {
    let up = cluster.processes().filter(|(n, _)| matches!(cluster.state(*n), Some(State::Up | State::Paused)));
    let of_host = |(node, host): (u32, &'a Host)| {
        let living: Vec<_> = host.living().map(|m| (m.me(), m.boot())).collect();
        host.company().members().map(move |(_, member)| {
            let lives = living.contains(&(member.me(), member.boot()));
            Running { node, member, lives }
        })
    };
    up.flat_map(of_host).collect()
}

/// True when nothing that is left can decide on a successor of this view.
fn is_forgotten(view: &View, running: &[Running<'_>]) -> bool {
    let remembers = |r: &Running<'_>| {
        let held = r.member.view().map_or(r.member.is_knocking(), |v| v.id().number <= view.id().number);
        r.is_person_of(view).filter(|_| held)
    };
    let them: Vec<_> = running.iter().filter_map(remembers).collect();
    let root = view.tree().root().is_some_and(|root| them.contains(&root));
    2 * them.len() + usize::from(root) <= view.tree().len() as usize
}

/// What is wrong with a view, if anything: all who are in it must run and hold it, and say no good-bye.
fn wrong(view: &View, running: &[Running<'_>]) -> Option<String> {
    let id = view.id();
    let holders = || running.iter().filter(|r| r.member.view().is_some_and(|v| v.id() == id));
    let held = |t: Task| holders().any(|r| r.member.me() == t && r.is_in(view) && r.lives);
    let missing = view.tree().tasks().find(|&t| !held(t))?;
    let person = view.person(missing);
    Some(format!("{id} has {missing:?}, {person:?}, who does not hold it"))
}

impl Settled {
    /// Where excuses are counted.
    #[must_use]
    pub fn excuses(&self) -> Arc<Excuses> {
        Arc::clone(&self.excuses)
    }
}

impl Checker<Host> for Settled {
    fn name(&self) -> &'static str {
        "settled"
    }

    fn pending(&mut self, _: Instant, cluster: &Cluster<'_, Host>) -> Option<String> {
        let (_, host) = cluster.processes().next()?;
        let policy = host.policy();
        let running = running(cluster);
        let views: BTreeMap<ViewId, &View> =
            running.iter().filter_map(|r| r.member.view()).map(|v| (v.id(), v)).collect();
        let waits = cluster.processes().any(|(_, h)| h.is_waiting());
        let Some(newest) = views.values().copied().max_by_key(|v| v.id().number) else {
            if running.iter().any(|r| r.lives) || waits {
                self.excuses.over.fetch_add(1, Ordering::Relaxed);
            }
            return None;
        };
        if policy != OnPartition::Continue && is_forgotten(newest, &running) {
            self.excuses.forgotten.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        if waits {
            return Some("a task has not started again".to_owned());
        }
        if let Some(outside) = running.iter().find(|r| r.lives && r.member.view().is_none()) {
            let (me, boot) = (outside.member.me(), outside.member.boot());
            return Some(format!("{me:?} of node {}, life {boot:x}, is in no view", outside.node));
        }
        if policy != OnPartition::Continue && views.len() > 1 {
            let names: Vec<_> = views.keys().map(ToString::to_string).collect();
            return Some(format!("there are several views: {}", names.join(", ")));
        }
        views.values().find_map(|view| wrong(view, &running))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_protocol::view::{Config, Person, Start};

    #[test]
    fn who_is_missing_and_what_is_forgotten_is_seen() {
        let view = View::first(2, (0..4).map(|i| Person { host: Addr::Local(i), boot: 7, stint: 0 })).expect("a view");
        let member = |i, boot| {
            let start = Start { job: 1, host: Addr::Local(i), boot };
            Member::new(Config::default(), start, Task(i), view.clone(), Instant::ZERO)
        };
        let members: Vec<_> = (0..4).map(|i| member(i, 7)).chain([member(3, 8)]).collect();
        let pick = |which: &[usize]| -> Vec<Running<'_>> {
            which.iter().map(|&i| Running { node: i.min(3) as u32, member: &members[i], lives: true }).collect()
        };
        assert_eq!(wrong(&view, &pick(&[0, 1, 2, 3])), None);
        assert!(wrong(&view, &pick(&[0, 1, 2])).is_some(), "one is dead");
        assert!(wrong(&view, &pick(&[0, 1, 2, 4])).is_some(), "one is another start");
        let mut leaving = pick(&[0, 1, 2, 3]);
        leaving[1].lives = false;
        assert!(wrong(&view, &leaving).is_some(), "one says good-bye");
        assert!(!is_forgotten(&view, &pick(&[0, 3])), "half of them, with the root");
        assert!(is_forgotten(&view, &pick(&[1, 3])), "half of them");
        assert!(is_forgotten(&view, &pick(&[0, 4])), "another start remembers nothing");
    }
}
