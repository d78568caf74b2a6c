//! Tripwires between hosts of neighbours in the tree, and hosts that are gone.

use super::{Company, Out, Output};
use crate::view::{self, Change, Member, Task, View};
use phalanx_core::{Addr, Instant, NodeId};
use std::collections::BTreeSet;

/// What a company knows of other hosts.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(super) struct Watch {
    /// Hosts of neighbours in the tree: wires with them are held, whoever made them.
    near: BTreeSet<Addr>,
    /// Those of parents: wires that we make.
    dialled: BTreeSet<Addr>,
    /// Hosts whose wire broke, until they are heard.
    tripped: BTreeSet<Addr>,
    /// Hosts that are gone, as long as a view has tasks of theirs.
    pub(super) dead: BTreeSet<Addr>,
    /// Hosts that any view here has had tasks on.
    pub(super) known: BTreeSet<Addr>,
}

/// So many hosts that tasks have left are looked for in the views one by one; more are found by looking at all.
const FEW: usize = 16;

/// Members here that have another view since wires were last looked at.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Moved {
    any: bool,
    /// Anybody may have gone or come. Otherwise only those below.
    all: bool,
    gone: Vec<Addr>,
    come: Vec<Addr>,
}

impl Moved {
    pub(super) fn all() -> Self {
        Self { any: true, all: true, ..Self::default() }
    }

    pub(super) fn on_view(&mut self, view: &View, change: Option<&Change>) {
        // Whose number was given to another one at once is not in the view any more.
        match change.filter(|c| !c.joined.iter().any(|j| c.failed.contains(&j.task))) {
            None => *self = Self::all(),
            Some(change) => {
                self.any = true;
                self.gone.extend(change.failed.iter().filter_map(|&t| view.person(t)).map(|p| p.host));
                self.come.extend(change.joined.iter().map(|j| j.person.host));
            }
        }
    }

    /// And these.
    pub(super) fn and(&mut self, more: Self) {
        self.any |= more.any;
        self.all |= more.all;
        self.gone.extend(more.gone);
        self.come.extend(more.come);
    }

    pub(super) fn take(&mut self) -> Option<Self> {
        self.any.then(|| std::mem::take(self))
    }
}

/// The tasks of a member's view that are on a host.
fn tasks_at(member: &Member, addr: Addr) -> Vec<Task> {
    let Some(view) = member.view() else { return Vec::new() };
    view.tree().tasks().filter(|&t| view.person(t).is_some_and(|p| p.host == addr)).collect()
}

impl Company {
    /// Nobody is here any more.
    pub(super) fn unwatch(&mut self, out: &mut impl Out) {
        std::mem::take(&mut self.watch).near.into_iter().for_each(|to| out.push(Output::Unwire { to }));
    }

    pub(super) fn on_wired(&mut self, addr: Addr) {
        self.watch.tripped.remove(&addr);
    }

    pub(super) fn on_tripped(&mut self, now: Instant, addr: Addr, out: &mut impl Out) {
        self.watch.tripped.insert(addr);
        // One of its tasks is enough: what the host says of one it says of all.
        let asked = self.members.iter().find_map(|(&s, p)| Some((s, *tasks_at(&p.member, addr).first()?)));
        if let Some((seat, task)) = asked {
            self.tell_one(now, seat, view::Input::Lost { tasks: &[task], certain: false }, out);
        }
    }

    /// Somebody at this address lives.
    pub(super) fn on_alive(&mut self, addr: Addr) {
        self.watch.tripped.remove(&addr);
        self.watch.dead.remove(&addr);
    }

    /// Nobody is there, says the platform. It may be forged, so it must fit what else is known.
    pub(super) fn on_refused(&mut self, now: Instant, node: NodeId, out: &mut impl Out) {
        let Some((addr, proved)) = self.link.whereabouts(node) else { return };
        let certain = proved.is_none() || self.watch.tripped.contains(&addr);
        if certain {
            self.watch.dead.insert(addr);
        }
        self.lose_host(addr, certain, out);
        self.lose(now, addr, certain, out);
    }

    /// All tasks on a host are gone, or silent.
    pub(super) fn lose(&mut self, now: Instant, addr: Addr, certain: bool, out: &mut impl Out) {
        if addr == self.host {
            return;
        }
        for seat in self.members.keys().copied().collect::<Vec<_>>() {
            let tasks = self.members.get(&seat).map(|p| tasks_at(&p.member, addr)).unwrap_or_default();
            if !tasks.is_empty() {
                self.tell_one(now, seat, view::Input::Lost { tasks: &tasks, certain }, out);
            }
        }
    }

    /// Somebody here has another view: other neighbours, other hosts. A verdict names tasks of a view, so it is said again.
    pub(super) fn on_view(&mut self, now: Instant, moved: Moved, out: &mut impl Out) {
        let (mut near, mut dialled) = (BTreeSet::new(), BTreeSet::new());
        for place in self.members.values() {
            let Some(view) = place.member.view() else { continue };
            let host = |t: Task| view.person(t).map(|p| p.host).filter(|&h| h != self.host);
            let me = place.member.me();
            let parent = view.tree().parent(me).and_then(host);
            dialled.extend(parent);
            near.extend(view.tree().children(me).into_iter().filter_map(host).chain(parent));
        }
        self.watch.near.difference(&near).for_each(|&to| out.push(Output::Unwire { to }));
        dialled.difference(&self.watch.dialled).for_each(|&to| out.push(Output::Wire { to }));
        (self.watch.near, self.watch.dialled) = (near, dialled);
        // Where somebody has come the verdict was of who was there before.
        moved.come.iter().for_each(|&addr| self.on_alive(addr));
        // Hosts have more to say to each other than tasks: what a rank wrote last.
        for addr in self.left(moved).into_iter().filter(|&a| !self.hosts.holds(a)).collect::<Vec<_>>() {
            self.parting.part_with(&mut self.link, now, addr);
        }
        let Watch { dead, tripped, known, .. } = &mut self.watch;
        dead.retain(|a| known.contains(a));
        tripped.retain(|a| known.contains(a));
        for addr in self.watch.dead.clone() {
            self.lose(now, addr, true, out);
        }
    }

    /// Hosts that no view here has tasks on any more.
    fn left(&mut self, moved: Moved) -> Vec<Addr> {
        let Moved { all, gone, come, .. } = moved;
        // Members here mostly have one and the same view.
        let mut views: Vec<&View> = Vec::new();
        for view in self.members.values().filter_map(|p| p.member.view()) {
            if views.iter().all(|other| other.id() != view.id()) {
                views.push(view);
            }
        }
        if all || gone.len() > FEW {
            let people = views.into_iter().flat_map(|v| v.tree().tasks().filter_map(|t| v.person(t)));
            let known = people.map(|p| p.host).filter(|&h| h != self.host).collect();
            let before = std::mem::replace(&mut self.watch.known, known);
            return before.difference(&self.watch.known).copied().collect();
        }
        // Of a host that a task has left others are mostly there.
        let is_on = |v: &View, a: Addr| v.tree().tasks().any(|t| v.person(t).is_some_and(|p| p.host == a));
        let is_there = |a: Addr| views.iter().any(|view| is_on(view, a));
        let left: Vec<_> = gone.into_iter().collect::<BTreeSet<_>>().into_iter().filter(|&a| !is_there(a)).collect();
        self.watch.known.extend(come.into_iter().filter(|&a| a != self.host));
        left.into_iter().filter(|a| self.watch.known.remove(a)).collect()
    }
}
