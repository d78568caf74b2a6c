//! Gathers over the hosts of the job's view: each gives one value for all its tasks (ST-4).
//!
//! What a shepherd has to say for sixteen ranks need not travel sixteen times, nor come back so often: with 1024 ranks on 64 hosts a
//! reduction of [ranks](super::reduce) sends 1023 values up and as many results down, this one 63.
//!
//! The machine is the same. In its tree hosts stand in the place of ranks: those that hold living ranks, in the order of their lowest ones.
//! So a host's number is another one in another view, and all agree on it within one. A host has the newest view that one of its members has.

use super::letters::Letter;
use super::{Company, Out, Output, Reduced, Seat};
use crate::cast::reduce::{self, Gift, Input, ReduceError, Reducer};
use crate::cast::report::Line;
use crate::cast::{Id, Tree};
use crate::view::{Task, View};
use phalanx_core::{Addr, Fingerprint, Instant, Machine, Sink};
use phalanx_wire::reduce::Message;
use phalanx_wire::view::{Letter as Written, ViewId, Words};
use std::collections::{BTreeSet, VecDeque};

/// The host's part.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Muster {
    /// The number of the first view in which it held a rank.
    since: Option<u64>,
    machine: Option<Box<Reducer>>,
    /// The view that the machine knows, and its hosts with the lowest rank's task of each.
    view: Option<ViewId>,
    hosts: Vec<(Addr, Task)>,
}

impl Muster {
    pub(super) fn deadline(&self) -> Instant {
        self.machine.as_ref().map_or(Instant::NEVER, |m| m.deadline())
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&(self.since, self.view, &self.hosts));
        if let Some(machine) = &self.machine {
            machine.fingerprint(print);
        }
    }
}

/// Hosts that hold living ranks, in the order of their lowest ones.
fn hosts(view: &View) -> Vec<(Addr, Task)> {
    let mut seen = BTreeSet::new();
    let living = (0..view.ranks()).filter_map(|rank| view.holder(rank)).filter(|&t| view.contains(t));
    let hosts = living.filter_map(|t| Some((view.person(t)?.host, t)));
    hosts.filter(|&(host, _)| seen.insert(host)).collect()
}

/// The machine's decisions.
struct MusterOut<'n> {
    job: u64,
    me: Task,
    hosts: &'n [(Addr, Task)],
    letters: &'n mut VecDeque<Letter>,
    out: &'n mut dyn Out,
}

impl<'o> Sink<reduce::Output<'o>> for MusterOut<'_> {
    fn push(&mut self, output: reduce::Output<'o>) {
        match output {
            reduce::Output::Send { to, bytes } => {
                if let Some(&(host, to)) = self.hosts.get(to.0 as usize) {
                    let mut letter = Vec::new();
                    Written { job: self.job, from: self.me, to, words: Words::Muster { bytes } }.encode(&mut letter);
                    self.letters.push_back(Letter { to: host, bytes: letter });
                }
            }
            reduce::Output::Done(outcome) => self.out.push(Output::Mustered { what: Reduced::Done(outcome) }),
        }
    }
}

impl Company {
    /// ST-4: this host takes part in the next gather over the hosts of the job; [`Output::Mustered`] says what came out of it. Values
    /// are numbered by the place of their host in the view.
    ///
    /// # Errors
    /// As [`ReduceError`]. Nothing has changed then.
    pub fn muster(&mut self, now: Instant, value: &[u8], out: &mut impl Out) -> Result<(), ReduceError> {
        let given = self.muster_with(now, out, |machine, sink| machine.give(now, Gift::Gather(value), sink));
        self.run(now, out);
        given.unwrap_or(Err(ReduceError::Outside))
    }

    /// How many hosts hold living ranks; none while no task here is in a view.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.newest_view().map_or(0, |view| hosts(view).len())
    }

    fn newest_view(&self) -> Option<&View> {
        let views = self.members.values().filter_map(|p| p.member.view());
        views.max_by_key(|v| v.id().number)
    }

    /// Has the machine do something; makes it when there is none yet, and this host holds a rank.
    fn muster_with<S: Out, T>(
        &mut self,
        now: Instant,
        out: &mut S,
        act: impl FnOnce(&mut Reducer, &mut MusterOut<'_>) -> T,
    ) -> Option<T> {
        self.muster.since?;
        if self.muster.machine.is_none() {
            let view = self.newest_view()?;
            let (id, arity, hosts) = (view.id(), view.tree().arity(), hosts(view));
            self.muster.machine = Some(Box::default());
            self.seat_muster(now, (id, arity, hosts), out);
        }
        let Muster { machine, hosts, .. } = &mut self.muster;
        let me = hosts.iter().find(|h| h.0 == self.host)?.1;
        let mut sink = MusterOut { job: self.job, me, hosts, letters: &mut self.letters, out };
        Some(act(machine.as_mut()?, &mut sink))
    }

    /// Tells the machine which view there is.
    fn seat_muster(&mut self, now: Instant, view: (ViewId, u32, Vec<(Addr, Task)>), out: &mut impl Out) {
        let (id, arity, hosts) = view;
        let Some(me) = hosts.iter().position(|h| h.0 == self.host) else { return };
        let (me, size) = (Id(me as u32), hosts.len() as u32);
        let (Some(since), Ok(tree)) = (self.muster.since, Tree::new(arity, size)) else { return };
        (self.muster.view, self.muster.hosts) = (Some(id), hosts);
        let line = Line::of(&tree, me, |_| true);
        self.muster_with(now, out, |machine, sink| {
            machine.handle(now, Input::View { view: id, since, me, line }, sink);
        });
    }

    /// A member has a new view: so has the host, when it is newer than all that others here have.
    pub(super) fn muster_in_view(&mut self, now: Instant, seat: Seat, out: &mut impl Out) {
        let Some(view) = self.members.get(&seat).and_then(|p| p.member.view()) else { return };
        let id = view.id();
        if self.muster.machine.is_none() {
            // It is made when it is needed first.
            let holds = self.muster.since.is_some() || view.rank_of(self.members[&seat].member.me()).is_some();
            self.muster.since = self.muster.since.or(holds.then_some(id.number));
            return;
        }
        if self.muster.view.is_some_and(|ours| id.number <= ours.number) {
            return;
        }
        let (arity, hosts) = (view.tree().arity(), hosts(view));
        if hosts.iter().any(|h| h.0 == self.host) {
            self.seat_muster(now, (id, arity, hosts), out);
        } else {
            self.drop_muster(out);
        }
    }

    /// A task is in no view any more: nor is the host, when it was the last one.
    pub(super) fn end_muster(&mut self, out: &mut impl Out) {
        if self.members.values().all(|p| p.member.view().is_none()) {
            self.drop_muster(out);
        }
    }

    fn drop_muster(&mut self, out: &mut impl Out) {
        if std::mem::take(&mut self.muster).machine.is_some_and(|m| m.waits()) {
            out.push(Output::Mustered { what: Reduced::Excluded });
        }
    }

    /// A letter for the host.
    pub(super) fn on_muster(&mut self, now: Instant, from: Addr, bytes: &[u8], out: &mut impl Out) {
        let Ok(Written { words: Words::Muster { bytes }, .. }) = Written::parse(bytes) else {
            self.strays += 1;
            return;
        };
        let heard = self.muster_with(now, out, |machine, sink| {
            // One of another view is sorted out by the machine, which waits for it or drops it.
            let is_so = match Message::head(bytes) {
                Ok((of, speaker)) => {
                    machine.view() != Some(of) || sink.hosts.get(speaker.0 as usize).is_some_and(|h| h.0 == from)
                }
                Err(_) => false,
            };
            if is_so {
                machine.handle(now, Input::Heard { bytes }, sink);
            }
            is_so
        });
        if heard != Some(true) {
            self.strays += 1;
        }
    }

    pub(super) fn expire_muster(&mut self, now: Instant, out: &mut impl Out) {
        if self.muster.deadline() <= now {
            self.muster_with(now, out, |machine, sink| machine.expire(now, sink));
        }
    }
}

#[cfg(test)]
mod tests;
