//! Reductions of the tasks here, over the ranks of the job's view (ST-4).
//!
//! The tree is that of [`cast`](crate::cast) over the ranks, with the fan-out of the view's own tree; a rank whose holder is not in the view
//! is dead. Spares hold no rank and take part in nothing until they do. A task that nobody reduces with costs nothing: its machine is
//! made when it is needed first.

use super::letters::Letter;
use super::{Company, Out, Output, Seat};
use crate::cast::reduce::{self, Gift, Input, Reducer};
use crate::cast::report::Line;
use crate::cast::{Id, Tree};
use crate::view::{Member, Task, View};
use phalanx_core::{Addr, Fingerprint, Instant, Machine, Sink};
use phalanx_wire::reduce::Message;
use phalanx_wire::view::{Letter as Written, Words};
use std::collections::VecDeque;

pub use crate::cast::reduce::{Outcome, ReduceError};

/// What became of a reduction in which a task took part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reduced<'a> {
    /// What came out of it.
    Done(&'a Outcome),
    /// The task is not in the view any more.
    Excluded,
}

/// A task's part in reductions.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct Part {
    /// The number of the first view in which it held a rank.
    since: Option<u64>,
    machine: Option<Box<Reducer>>,
}

impl Part {
    pub(super) fn deadline(&self) -> Instant {
        self.machine.as_ref().map_or(Instant::NEVER, |m| m.deadline())
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&self.since);
        if let Some(machine) = &self.machine {
            machine.fingerprint(print);
        }
    }
}

/// A machine's decisions.
struct ReduceOut<'n> {
    seat: Seat,
    job: u64,
    me: Task,
    view: Option<&'n View>,
    letters: &'n mut VecDeque<Letter>,
    out: &'n mut dyn Out,
}

impl<'o> Sink<reduce::Output<'o>> for ReduceOut<'_> {
    fn push(&mut self, output: reduce::Output<'o>) {
        let what = match output {
            reduce::Output::Send { to, bytes } => {
                let holder = self.view.and_then(|v| Some((v, v.holder(to.0)?)));
                if let Some((to, person)) = holder.and_then(|(v, task)| Some((task, v.person(task)?))) {
                    let mut letter = Vec::new();
                    Written { job: self.job, from: self.me, to, words: Words::Reduce { bytes } }.encode(&mut letter);
                    self.letters.push_back(Letter { to: person.host, bytes: letter });
                }
                return;
            }
            reduce::Output::Done(outcome) => Reduced::Done(outcome),
        };
        self.out.push(Output::Reduced { seat: self.seat, what });
    }
}

/// The rank of a member in its view.
fn rank(member: &Member) -> Option<Id> {
    member.view()?.rank_of(member.me()).map(Id)
}

/// What a machine must know of the view that its member has.
fn seated(member: &Member, since: u64) -> Option<Input<'static>> {
    let (view, me) = (member.view()?, rank(member)?);
    let tree = Tree::new(view.tree().arity(), view.ranks()).ok()?;
    let lives = |id: Id| view.holder(id.0).is_some_and(|t| view.contains(t));
    Some(Input::View { view: view.id(), since, me, line: Line::of(&tree, me, lives) })
}

impl Company {
    /// ST-4: a task takes part in the next reduction of its job; [`Output::Reduced`] says what came out of it.
    ///
    /// # Errors
    /// As [`ReduceError`]. Nothing has changed then.
    pub fn reduce(&mut self, now: Instant, seat: Seat, gift: Gift<'_>, out: &mut impl Out) -> Result<(), ReduceError> {
        let takes_part = self.members.get(&seat).is_some_and(|p| rank(&p.member).is_some());
        if !takes_part {
            return Err(ReduceError::Outside);
        }
        let given = self.with(now, seat, out, |machine, sink| machine.give(now, gift, sink));
        self.run(now, out);
        given.unwrap_or(Err(ReduceError::Outside))
    }

    /// Has a machine do something; makes it when there is none yet.
    fn with<S: Out, T>(
        &mut self,
        now: Instant,
        seat: Seat,
        out: &mut S,
        act: impl FnOnce(&mut Reducer, &mut ReduceOut<'_>) -> T,
    ) -> Option<T> {
        let place = self.members.get_mut(&seat)?;
        let (me, view) = (place.member.me(), place.member.view());
        let mut sink = ReduceOut { seat, job: self.job, me, view, letters: &mut self.letters, out };
        let machine = match &mut place.part.machine {
            Some(machine) => machine,
            none => {
                let machine = none.insert(Box::default());
                if let Some(input) = place.part.since.and_then(|since| seated(&place.member, since)) {
                    machine.handle(now, input, &mut sink);
                }
                machine
            }
        };
        Some(act(machine, &mut sink))
    }

    /// A member has a new view.
    pub(super) fn reduce_in_view(&mut self, now: Instant, seat: Seat, out: &mut impl Out) {
        let Some(place) = self.members.get_mut(&seat) else { return };
        let number = place.member.view().map_or(0, |v| v.id().number);
        if rank(&place.member).is_none() {
            return self.end_part(seat, out);
        }
        let since = *place.part.since.get_or_insert(number);
        if place.part.machine.is_some()
            && let Some(input) = seated(&place.member, since)
        {
            self.with(now, seat, out, |machine, sink| machine.handle(now, input, sink));
        }
    }

    /// A task is in no view any more, or holds no rank in it.
    pub(super) fn end_part(&mut self, seat: Seat, out: &mut impl Out) {
        let Some(place) = self.members.get_mut(&seat) else { return };
        if std::mem::take(&mut place.part).machine.is_some_and(|m| m.waits()) {
            out.push(Output::Reduced { seat, what: Reduced::Excluded });
        }
    }

    /// A letter for who reduces.
    pub(super) fn on_reduction(&mut self, now: Instant, seat: Seat, from: Addr, bytes: &[u8], out: &mut impl Out) {
        let Some(place) = self.members.get(&seat) else { return };
        let Ok(Written { from: task, words: Words::Reduce { bytes }, .. }) = Written::parse(bytes) else {
            self.strays += 1;
            return;
        };
        // One of another view is sorted out by the machine, which waits for it or drops it.
        let is_so = |view: &View| match Message::head(bytes) {
            Ok((of, speaker)) if of == view.id() => {
                view.contains(task)
                    && view.holder(speaker.0) == Some(task)
                    && view.person(task).is_some_and(|p| p.host == from)
            }
            head => head.is_ok(),
        };
        if place.member.view().is_none_or(is_so) {
            self.with(now, seat, out, |machine, sink| machine.handle(now, Input::Heard { bytes }, sink));
        } else {
            self.strays += 1;
        }
    }

    pub(super) fn expire_parts(&mut self, now: Instant, out: &mut impl Out) {
        let due = self.members.iter().filter(|(_, p)| p.part.deadline() <= now).map(|(&s, _)| s);
        for seat in due.collect::<Vec<_>>() {
            self.with(now, seat, out, |machine, sink| machine.expire(now, sink));
        }
    }
}
