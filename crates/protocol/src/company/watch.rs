//! Tripwires between hosts of neighbours in the tree, and hosts that are gone.

use super::{Company, Out, Output};
use crate::view::{self, Member, Task};
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
    known: BTreeSet<Addr>,
}

/// The tasks of a member's view that are on a host.
fn tasks_at(member: &Member, addr: Addr) -> Vec<Task> {
    let Some(view) = member.view() else { return Vec::new() };
    view.tree().tasks().filter(|&t| view.person(t).is_some_and(|p| p.host == addr)).collect()
}

impl Company {
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
    pub(super) fn on_view(&mut self, now: Instant, out: &mut impl Out) {
        let (mut near, mut dialled, mut known) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for place in self.members.values() {
            let Some(view) = place.member.view() else { continue };
            let host = |t: Task| view.person(t).map(|p| p.host).filter(|&h| h != self.host);
            let me = place.member.me();
            let parent = view.tree().parent(me).and_then(host);
            dialled.extend(parent);
            near.extend(view.tree().children(me).into_iter().filter_map(host).chain(parent));
            known.extend(view.tree().tasks().filter_map(host));
        }
        let watch = &mut self.watch;
        watch.near.difference(&near).for_each(|&to| out.push(Output::Unwire { to }));
        dialled.difference(&watch.dialled).for_each(|&to| out.push(Output::Wire { to }));
        let gone: Vec<_> = watch.known.difference(&known).copied().collect();
        watch.dead.retain(|a| known.contains(a));
        watch.tripped.retain(|a| known.contains(a));
        (watch.near, watch.dialled, watch.known) = (near, dialled, known);
        for addr in gone {
            self.parting.part_with(&mut self.link, now, addr);
        }
        for addr in self.watch.dead.clone() {
            self.lose(now, addr, true, out);
        }
    }
}
