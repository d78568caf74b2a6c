//! RV-4, RV-6, RV-7, RV-8: which views there may be.

use crate::check::{Checker, Verdict};
use crate::company::{Host, Note, Who};
use phalanx_core::{Addr, Instant};
use phalanx_protocol::view::{Task, View, ViewId};
use std::collections::BTreeMap;

/// What makes a view: everybody who is in it, whose child they are, who holds which rank.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Members {
    tasks: BTreeMap<Task, (Addr, u32, Option<Task>)>,
    ranks: Vec<Option<Task>>,
}

impl Members {
    fn of(view: &View) -> Self {
        let tree = view.tree();
        let entry = |t: Task| Some((t, view.person(t).map(|p| (p.host, p.boot, tree.parent(t)))?));
        Self {
            tasks: tree.tasks().filter_map(entry).collect(),
            ranks: (0..view.ranks()).map(|r| view.holder(r)).collect(),
        }
    }

    fn has(&self, node: u32, who: Who) -> bool {
        self.tasks.get(&who.task).is_some_and(|m| (m.0, m.1) == (Addr::Local(node), who.boot))
    }

    fn names(&self) -> String {
        let task = |(t, (host, boot, _)): (&Task, &(Addr, u32, Option<Task>))| format!("{}@{host}#{boot:x}", t.0);
        self.tasks.iter().map(task).collect::<Vec<_>>().join(" ")
    }
}

/// Watches all views of a run.
pub struct Views {
    /// A majority decides: there is one chain of views.
    one_chain: bool,
    known: BTreeMap<ViewId, Members>,
    /// In order, with the view that each was made of, where somebody has said so.
    chain: BTreeMap<u64, (ViewId, Option<ViewId>)>,
    /// The last view of each task in each life.
    last: BTreeMap<(u32, Who), ViewId>,
    /// Who is out, since which view.
    out: BTreeMap<(u32, Who), u64>,
}

impl Views {
    /// Of a job in which a majority decides, or each part for itself.
    #[must_use]
    pub fn new(one_chain: bool) -> Self {
        let (known, chain, last, out) = Default::default();
        Self { one_chain, known, chain, last, out }
    }

    fn on_installed(&mut self, node: u32, who: Who, view: &View, base: Option<ViewId>, verdict: &mut Verdict) {
        let (id, members) = (view.id(), Members::of(view));
        if !members.has(node, who) {
            verdict.violation(node, format!("{who:?} installed {id} without itself: {}", members.names()));
        }
        if self.out.contains_key(&(node, who)) {
            verdict.violation(node, format!("{who:?} installed {id} though it was out"));
        }
        let before = self.last.insert((node, who), id);
        if before.is_some_and(|b| b.number >= id.number) {
            verdict.violation(node, format!("{who:?} went from {before:?} back to {id}"));
        }
        match self.known.get(&id) {
            Some(other) if *other != members => {
                let (ours, theirs) = (members.names(), other.names());
                verdict.violation(node, format!("two views under {id}: {ours} and {theirs}"));
            }
            Some(_) => {}
            None => {
                for ((n, w), _) in self.out.iter().filter(|((n, w), since)| **since <= id.number && members.has(*n, *w))
                {
                    verdict.violation(*n, format!("{w:?} is out, and in the later view {id}"));
                }
                self.known.insert(id, members);
            }
        }
        if self.one_chain {
            self.link(node, id, base, verdict);
        }
    }

    /// RV-6: there is one chain.
    fn link(&mut self, node: u32, id: ViewId, base: Option<ViewId>, verdict: &mut Verdict) {
        let entry = self.chain.entry(id.number).or_insert((id, base));
        if entry.0 != id {
            verdict.violation(node, format!("{id} and {} have one number", entry.0));
        }
        if entry.1.is_some() && base.is_some() && entry.1 != base {
            verdict.violation(node, format!("{id} was made of {base:?} and of {:?}", entry.1));
        }
        entry.1 = entry.1.or(base);
        // Its neighbours may have come to light later than itself.
        let next = self.chain.range(id.number + 1..).next().map(|n| *n.0);
        for number in [Some(id.number), next].into_iter().flatten() {
            let (this, base) = self.chain[&number];
            let before = self.chain.range(..number).next_back().map(|b| b.1.0);
            if let (Some(base), Some(before)) = (base, before)
                && base.number <= before.number
                && base != before
            {
                verdict.violation(node, format!("{this} was made of {base}, and there is {before} between them"));
            }
        }
    }

    fn on_out(&mut self, node: u32, who: Who, since: u64, verdict: &mut Verdict) {
        self.out.insert((node, who), since);
        if let Some((id, _)) =
            self.known.iter().find(|(id, m)| self.one_chain && id.number >= since && m.has(node, who))
        {
            verdict.violation(node, format!("{who:?} was put out by view {since}, and is in {id}"));
        }
    }

    /// Views that anybody installed.
    #[cfg(test)]
    fn count(&self) -> usize {
        self.known.len()
    }

    /// Somebody who is in no view any more, without a view that says so.
    fn on_end(&mut self, node: u32, who: Who) {
        // The others need not know yet: no view of its own may follow, theirs may.
        self.out.insert((node, who), u64::MAX);
    }
}

impl Checker<Host> for Views {
    fn name(&self) -> &'static str {
        "views"
    }

    fn note(&mut self, _: Instant, node: u32, note: &Note, verdict: &mut Verdict) {
        match note {
            Note::Installed { who, view, base } => self.on_installed(node, *who, view, *base, verdict),
            Note::Excluded(who, view) => {
                let since = if self.one_chain { view.number } else { u64::MAX };
                self.on_out(node, *who, since, verdict);
            }
            Note::Aborted(who) | Note::Left(who) => self.on_end(node, *who),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_protocol::view::{Change, Person};

    fn first(n: u32) -> View {
        View::first(2, (0..n).map(|i| Person { host: Addr::Local(i), boot: 1, stint: 0 })).expect("a good view")
    }

    fn without(view: &View, task: u32, number: u64) -> View {
        let id = ViewId { number, ..view.id() };
        let failed = vec![Task(task)];
        view.changed(&Change { id, base: view.id(), failed, joined: vec![], ranks: vec![], checkpoint: false })
    }

    fn hear(checker: &mut Views, node: u32, note: &Note) -> Vec<String> {
        let mut verdict = Verdict::default();
        checker.note(Instant::ZERO, node, note, &mut verdict);
        verdict.violations.into_iter().map(|v| v.1).collect()
    }

    fn who(task: u32) -> Who {
        Who { task: Task(task), boot: 1 }
    }

    fn installed(task: u32, view: &View, base: Option<&View>) -> Note {
        Note::Installed { who: who(task), view: Box::new(view.clone()), base: base.map(View::id) }
    }

    #[test]
    fn what_must_not_be_is_caught() {
        let (a, mut all) = (first(4), Views::new(true));
        let (b, other_b) = (without(&a, 3, 2), without(&a, 2, 2));
        for task in 0..4 {
            assert_eq!(hear(&mut all, task, &installed(task, &a, None)), [""; 0]);
        }
        assert_eq!(hear(&mut all, 0, &installed(0, &b, Some(&a))), [""; 0]);
        let wrong = hear(&mut all, 1, &installed(1, &other_b, Some(&a)));
        assert!(wrong[0].contains("two views under"), "{wrong:?}");
        let wrong = hear(&mut all, 3, &installed(3, &b, None));
        assert!(wrong[0].contains("without itself"), "{wrong:?}");
        // Made of the first one, though there was one between them.
        let c = without(&a, 1, 3);
        let wrong = hear(&mut all, 2, &installed(2, &c, Some(&a)));
        assert!(wrong[0].contains("between them"), "{wrong:?}");
        assert_eq!(all.count(), 3);
        let wrong = hear(&mut all, 2, &installed(2, &b, None));
        assert!(wrong[0].contains("back to"), "{wrong:?}");
    }

    #[test]
    fn who_is_out_stays_out() {
        let (a, mut all) = (first(4), Views::new(true));
        let b = without(&a, 3, 2);
        let _ = hear(&mut all, 2, &installed(2, &a, None));
        assert_eq!(hear(&mut all, 3, &Note::Excluded(who(3), b.id())), [""; 0]);
        assert_eq!(hear(&mut all, 0, &installed(0, &b, Some(&a))), [""; 0]);
        assert_eq!(hear(&mut all, 2, &Note::Excluded(who(2), b.id())).len(), 1, "it is in that view");
        assert_eq!(
            hear(&mut all, 2, &installed(2, &without(&b, 1, 3), None)).len(),
            2,
            "it was out, and is in a later one"
        );
    }
}
