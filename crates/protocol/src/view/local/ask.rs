//! What a local view lacks, whom to ask, and what the others answer.
//!
//! All who live at or below a seat know its whole line. So of a branch of which nobody is known, whoever lives in it knows who sits
//! above, and asks there, too: both sides meet at the nearest living seat above them, or else at the lowest that they know.
//! - Two that become parent and child tell each other their [news](LocalView::news), on the notice and on the acknowledgement
//!   (another life of a task is another parent). So a parent that knows nobody in a branch below it only has to wait.
//! - The root sends its [heirs](LocalView::heirs) along with each wave, so everybody knows some of whom all have heard.
//! - Who hears nothing for long asks those it knows, from the lowest on, what became of the view.
//!
//! An answer is certain below its mark, and certain that those in it live: it counts only in the view that it was given in. What is
//! beyond a mark says whom to ask next. Where all die at once that anybody on one side knew of another, no constant can help:
//! [`Ask::Outside`] (or no news from any that were asked) means a host list, or a directory.

use super::seats::Seats;
use super::{Branch, Held, Known, LocalView};
use phalanx_wire::view::{Task, ViewId};

/// How many of a branch one answer names.
const ANSWER_MAX: usize = 9;

/// Something that a member lacks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lack {
    /// What to ask.
    pub question: Question,
    /// Whom.
    pub ask: Ask,
}

/// Who may know.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Ask {
    /// These, until one of them says something new. They should hear who asks, too ([`LocalView::meet`]).
    These(Vec<Known>),
    /// Nobody: we sit above all who know, and they will tell their news.
    Nobody,
    /// Nobody that we know lives.
    Outside,
}

/// Who are the lowest living tasks at or below a seat?
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Question {
    /// In this view.
    pub view: ViewId,
    /// The seat.
    pub seat: u32,
    /// Who asks.
    pub from: Known,
}

/// These are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// In this view.
    pub view: ViewId,
    /// The seat.
    pub seat: u32,
    /// Some who live there, in order. Others near it, when nobody there is known.
    pub living: Vec<Known>,
    /// All that are lower are among them.
    pub mark: u32,
}

impl LocalView {
    /// What we must know to tell who our parent and all our children are.
    #[must_use]
    pub fn lacks(&self) -> Vec<Lack> {
        self.place().lacks.into_iter().map(|b| self.lack(b)).collect()
    }

    fn lack(&self, branch: usize) -> Lack {
        let (seats, seat) = (self.seats, self.seats.top(branch));
        let others = || self.known.iter().filter(|k| k.task != self.me());
        let inside = others().find(|k| seats.branch(k.task.0) == Some(branch));
        // Those who sit there have the same line above it, so they ask the same ones about us.
        let above = seats.line(seat).find_map(|s| self.find(Task(s)).ok()).map(|i| &self.known[i]);
        let farther =
            |k: &&Known| seats.branch(k.task.0).map(|b| seats.distance(b)).filter(|&d| d > seats.distance(branch));
        let beside = others().filter(|k| farther(k).is_some()).min_by_key(|k| (farther(k), k.task));
        let mut ask = Vec::with_capacity(4);
        for known in [inside, above, beside, others().next()].into_iter().flatten() {
            if known.task != self.me() && !ask.contains(known) {
                ask.push(*known);
            }
        }
        let waits = inside.is_none() && above.is_some_and(|k| k.task == self.me());
        let ask = if waits {
            Ask::Nobody
        } else if ask.is_empty() {
            Ask::Outside
        } else {
            Ask::These(ask)
        };
        Lack { question: Question { view: self.id, seat, from: self.ourselves() }, ask }
    }

    fn ourselves(&self) -> Known {
        self.known[self.find(self.me()).expect("who looks around lives")]
    }

    /// What we know of a question.
    #[must_use]
    pub fn answer(&self, question: &Question) -> Answer {
        let (seats, seat) = (self.seats, question.seat);
        let inside = |k: &&Known| seats.is_within(seat, k.task.0);
        let mut living: Vec<_> = self.known.iter().filter(inside).take(ANSWER_MAX + 1).copied().collect();
        let mut mark = self.mark(seat);
        if living.len() > ANSWER_MAX {
            mark = mark.min(living[ANSWER_MAX].task.0);
        } else if living.is_empty() {
            let near = |k: &&Known| seats.branch(k.task.0) == seats.branch(seat);
            living = self.known.iter().filter(near).take(ANSWER_MAX).copied().collect();
        }
        living.truncate(ANSWER_MAX);
        Answer { view: self.id, seat, living, mark }
    }

    /// What the root sends along with each wave: who comes after it. So everybody always knows somebody whom all others know.
    #[must_use]
    pub fn heirs(&self) -> Answer {
        self.answer(&Question { view: self.id, seat: 0, from: self.ourselves() })
    }

    /// What a new parent or child should hear of us: the answer about all that we hold.
    #[must_use]
    pub fn news(&self) -> Answer {
        self.answer(&Question { view: self.id, seat: self.place().top, from: self.ourselves() })
    }

    /// Takes in what somebody in the same view answered. True when it was new.
    pub fn learn(&mut self, answer: &Answer) -> bool {
        if answer.view != self.id {
            return false;
        }
        let before = self.clone();
        // Our line is known for certain.
        let is_new = |k: &&Known| k.task.0 < self.size && self.seats.branch(k.task.0).is_some();
        for &known in answer.living.iter().filter(is_new).collect::<Vec<_>>() {
            self.add(known);
        }
        for b in 0..self.branches.len() {
            if self.seats.is_within(answer.seat, self.seats.top(b)) {
                self.branches[b].mark = self.branches[b].mark.max(answer.mark);
            }
        }
        self.settle();
        *self != before
    }

    /// Takes note of somebody in the same view who asks, if nobody is known for certain where it sits.
    pub fn meet(&mut self, who: Known) {
        if let Some(b) = self.seats.branch(who.task.0)
            && matches!(self.held()[b], Held::From(_))
        {
            self.add(who);
            self.settle();
        }
    }

    /// What somebody knows who is new in this view, told by the lowest who sat below it, or else by its parent. Nothing when we sit too
    /// far away.
    #[must_use]
    pub fn seen_from(&self, who: Known) -> Option<Self> {
        if who.task.0 >= self.size {
            return None;
        }
        let seats = Seats { me: who.task.0, ..self.seats };
        let branch = |b: usize| Some(Branch { count: self.count(seats.top(b))?, mark: self.mark(seats.top(b)) });
        let branches = (0..seats.branches()).map(branch).collect::<Option<Vec<_>>>()?.into_boxed_slice();
        let mut local = Self { seats, branches, ..self.clone() };
        let line: Vec<_> = seats.line(seats.me).collect();
        let unsure = |s: &u32| self.seats.branch(*s).is_some() && *s >= self.mark(*s);
        if line.iter().any(unsure) || self.find(who.task).is_err() && self.seats.branch(seats.me).is_none() {
            return None;
        }
        local.add(who);
        local.settle();
        Some(local)
    }
}
