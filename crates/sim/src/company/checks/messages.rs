//! RV-7: messages between tasks.

use crate::check::{Checker, Verdict};
use crate::company::{Host, Note, Who};
use phalanx_core::Instant;
use phalanx_protocol::view::{Task, ViewId};
use std::collections::{BTreeMap, BTreeSet};

/// Watches what is sent and delivered.
#[derive(Default)]
pub struct Messages {
    /// By name: from whom to whom, in which view.
    sent: BTreeMap<u64, (Task, Task, ViewId)>,
    got: BTreeSet<u64>,
    views: BTreeMap<(u32, Who), ViewId>,
}

impl Messages {
    fn on_got(&mut self, node: u32, who: Who, from: Task, view: ViewId, name: Option<u64>, verdict: &mut Verdict) {
        let mut wrong =
            |text: String| verdict.violation(node, format!("{who:?} got {name:x?} of {from:?} in {view}: {text}"));
        let Some((name, sent)) = name.and_then(|n| Some((n, self.sent.get(&n)?))) else {
            return wrong("nobody sent it".to_owned());
        };
        if *sent != (from, who.task, view) {
            wrong(format!("it was sent from, to, in {sent:?}"));
        }
        if !self.got.insert(name) {
            wrong("once more".to_owned());
        }
        if self.views.get(&(node, who)) != Some(&view) {
            wrong(format!("it is in {:?}", self.views.get(&(node, who))));
        }
    }
}

impl Checker<Host> for Messages {
    fn name(&self) -> &'static str {
        "messages"
    }

    fn note(&mut self, _: Instant, node: u32, note: &Note, verdict: &mut Verdict) {
        match *note {
            Note::Installed { who, ref view, .. } => _ = self.views.insert((node, who), view.id()),
            Note::Sent { who, view, to, name } => {
                if self.views.get(&(node, who)) != Some(&view) {
                    verdict.violation(node, format!("{who:?} sent in {view}, and is in another view"));
                }
                self.sent.insert(name, (who.task, to, view));
            }
            Note::Got { who, from, view, name } => self.on_got(node, who, from, view, name, verdict),
            Note::Excluded(who, _) | Note::Aborted(who) | Note::Left(who) => _ = self.views.remove(&(node, who)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_core::Addr;
    use phalanx_protocol::view::{Person, View};

    #[test]
    fn what_was_not_sent_or_not_so_is_caught() {
        let view = View::first(2, (0..2).map(|i| Person { host: Addr::Local(i), boot: 1, stint: 0 })).expect("a view");
        let (id, who) = (view.id(), |task| Who { task: Task(task), boot: 1 });
        let mut messages = Messages::default();
        let mut hear = |node, note| {
            let mut verdict = Verdict::default();
            messages.note(Instant::ZERO, node, &note, &mut verdict);
            verdict.violations.len()
        };
        for task in 0..2 {
            assert_eq!(hear(task, Note::Installed { who: who(task), view: Box::new(view.clone()), base: None }), 0);
        }
        let got = |task, view, name| Note::Got { who: who(task), from: Task(0), view, name: Some(name) };
        assert_eq!(hear(0, Note::Sent { who: who(0), view: id, to: Task(1), name: 7 }), 0);
        assert_eq!(hear(1, got(1, id, 7)), 0);
        assert_eq!(hear(1, got(1, id, 7)), 1, "twice");
        assert_eq!(hear(1, got(1, id, 8)), 1, "nobody sent it");
        assert_eq!(hear(0, Note::Sent { who: who(0), view: id, to: Task(1), name: 9 }), 0);
        let next = ViewId { number: id.number + 1, ..id };
        assert_eq!(hear(1, got(1, next, 9)), 2, "in another view than it was sent in, and than it is in");
        assert_eq!(hear(0, Note::Sent { who: who(0), view: next, to: Task(1), name: 10 }), 1);
    }
}
