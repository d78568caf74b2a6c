//! Messages between tasks, in one view.
//!
//! RV-7. A message carries the view it was sent in and is delivered in that view or not at all. One for a view to come waits for it,
//! one for a view that is over is refused, and its sender is told. Reliable sessions deliver once; the numbers see to it that a
//! session which begins anew does not deliver twice. (The paper asks that no two messages have the same content: we go by numbers,
//! a program may say a thing twice.)

use super::{Counters, Member, Out, Output, SendError, Task, ViewId};
use phalanx_wire::view::{BODY_MAX, Words};
use std::collections::BTreeMap;

/// How much may wait for a view to come.
const EARLY_BYTES: usize = 1 << 20;
/// How many messages may.
const EARLY: usize = 1024;

/// What tasks say to each other.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(super) struct Talk {
    /// How many messages we sent in this view.
    sent: u64,
    /// The last number from each task in this view.
    heard: BTreeMap<Task, u64>,
    /// Messages for a view to come.
    early: Vec<(ViewId, Task, u64, Vec<u8>)>,
}

impl Talk {
    pub(super) fn memory(&self) -> usize {
        16 * self.heard.len() + self.early.iter().map(|e| 48 + e.3.len()).sum::<usize>()
    }

    fn deliver(
        &mut self,
        from: Task,
        view: ViewId,
        number: u64,
        body: &[u8],
        counters: &mut Counters,
        out: &mut impl Out,
    ) {
        let last = self.heard.entry(from).or_default();
        if number <= *last {
            counters.duplicates += 1;
            return;
        }
        *last = number;
        out.push(Output::Deliver { from, view, body });
    }

    pub(super) fn on_view(&mut self, view: ViewId, counters: &mut Counters, out: &mut impl Out) {
        self.sent = 0;
        self.heard.clear();
        for (of, from, number, body) in std::mem::take(&mut self.early) {
            if of == view {
                self.deliver(from, of, number, &body, counters, out);
            } else if of.number > view.number {
                self.early.push((of, from, number, body));
            } else {
                counters.stale += 1;
            }
        }
    }
}

impl Member {
    /// RV-7: sends a message to a task, in the view that the caller knows. Gives the number under which it may come back.
    ///
    /// # Errors
    /// As [`SendError`]. Nothing has changed then.
    pub fn send(&mut self, view: ViewId, to: Task, body: &[u8], out: &mut impl Out) -> Result<u64, SendError> {
        let ours = self.view().ok_or(SendError::Outside)?.id();
        if view != ours {
            return Err(SendError::StaleView { asked: view, view: ours });
        }
        if !self.view.contains(to) {
            return Err(SendError::NotInView(to.0));
        }
        if body.len() > BODY_MAX {
            return Err(SendError::TooLarge { need: body.len(), limit: BODY_MAX });
        }
        self.talk.sent += 1;
        let number = self.talk.sent;
        if to == self.me {
            self.talk.deliver(to, view, number, body, &mut self.counters, out);
        } else {
            self.say(to, Words::Data { view, number, body }, out);
        }
        Ok(number)
    }

    pub(super) fn on_data(&mut self, from: Task, view: ViewId, number: u64, body: &[u8], out: &mut impl Out) {
        let ours = self.view.id();
        if view == ours {
            self.talk.deliver(from, view, number, body, &mut self.counters, out);
        } else if view.number > ours.number {
            let waiting: usize = self.talk.early.iter().map(|e| e.3.len()).sum();
            if self.talk.early.len() < EARLY && waiting + body.len() <= EARLY_BYTES {
                self.talk.early.push((view, from, number, body.to_vec()));
            } else {
                self.counters.overflow += 1;
                self.say(from, Words::Stale { view: ours, number }, out);
            }
        } else {
            self.counters.stale += 1;
            self.say(from, Words::Stale { view: ours, number }, out);
        }
    }
}
