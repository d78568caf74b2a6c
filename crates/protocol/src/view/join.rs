//! Newcomers, those who recover, those who were excluded, those who leave.
//!
//! RV-5, RV-8. Who wants in knocks at anybody it knows; that one passes it on to the root. The root lets it in by a wave and welcomes
//! it with the whole view when that is stable (⚠ Fig. 3c answers before; a newcomer would then believe in a view that may never come).
//! Who hears nothing knocks at the next one. So a root that dies before its welcome costs time only: whoever finds the newcomer in its
//! view welcomes it.

use super::tree::TASKS_MAX;
use super::{Change, Config, Member, OnPartition, Out, Output, Refusal, Standing, Start, Task, View, ViewId, Wanted};
use phalanx_core::{Addr, Instant};
use phalanx_wire::view::{Person, Roster, Words};
use std::collections::BTreeSet;

/// How many places one who was excluded knocks at.
const CONTACTS: usize = 64;
/// How many may wait to be let in.
const KNOCKS: usize = 4096;

/// Somebody wants in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Knock {
    pub(super) wanted: Wanted,
    pub(super) host: Addr,
    pub(super) boot: u32,
}

/// We want in.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Knocking {
    wanted: Wanted,
    contacts: Vec<Addr>,
    next: usize,
    pub(super) again_at: Instant,
}

impl std::hash::Hash for Knocking {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.wanted, &self.contacts, self.next % self.contacts.len().max(1)).hash(state);
    }
}

impl Member {
    /// RV-5: a task that joins a running job. `contacts` are hosts of the job's tasks.
    pub fn join(
        config: Config,
        start: Start,
        wanted: Wanted,
        contacts: Vec<Addr>,
        now: Instant,
        out: &mut impl Out,
    ) -> Self {
        let me = if let Wanted::Again(task) = wanted { task } else { Task::NONE };
        let alone = Person { host: start.host, boot: start.boot, stint: 0 };
        let view = View::first(2, [alone]).expect("one is a good size");
        let mut member = Self::outside(config, start, me, view);
        member.standing = Standing::Knocking(Knocking { wanted, contacts, next: 0, again_at: now });
        member.wanted = wanted;
        member.knock_again(now, out);
        member
    }

    pub(super) fn knock_again(&mut self, now: Instant, out: &mut impl Out) {
        let (host, boot) = (self.start.host, self.start.boot);
        let Standing::Knocking(knocking) = &mut self.standing else { return };
        if knocking.again_at > now {
            return;
        }
        knocking.again_at = now + self.config.patience;
        let Some(&at) = knocking.contacts.get(knocking.next % knocking.contacts.len().max(1)) else { return };
        knocking.next = knocking.next.wrapping_add(1);
        let wanted = knocking.wanted;
        self.say_at(at, Task::NONE, Words::Knock { wanted, host, boot }, out);
    }

    pub(super) fn on_seek(&mut self, now: Instant, contacts: &[Addr], out: &mut impl Out) {
        let Standing::Knocking(knocking) = &mut self.standing else { return };
        let known = knocking.contacts.len();
        let news = contacts.iter().filter(|c| !knocking.contacts.contains(c)).copied().collect::<Vec<_>>();
        knocking.contacts.extend(news.into_iter().take(CONTACTS.saturating_sub(known)));
        if known == 0 && !knocking.contacts.is_empty() {
            knocking.again_at = now;
            self.knock_again(now, out);
        }
    }

    pub(super) fn on_knock(&mut self, now: Instant, knock: Knock, out: &mut impl Out) {
        if let Some(old) = self.predecessor(knock) {
            // A host that starts a task again knows that the old one is dead.
            self.on_gone(now, &[old], true, out);
        }
        if let Some(task) = self.find(knock) {
            // It was let in already, by us or by one who died before its welcome. It may even be the root.
            let roster = self.view.roster();
            return self.say_at(knock.host, task, Words::Welcome { task, boot: knock.boot, roster }, out);
        }
        let root = self.root();
        if root != self.me {
            let Knock { wanted, host, boot } = knock;
            return self.say(root, Words::Knock { wanted, host, boot }, out);
        }
        let again = matches!(knock.wanted, Wanted::Again(_));
        // A later start of the same task knocks already: this knock was long under way.
        let is_later = |k: &Knock| again && k.wanted == knock.wanted && k.boot > knock.boot;
        if self.knocks.iter().any(|k| k.host == knock.host && (k.boot == knock.boot || is_later(k))) {
            return;
        }
        match self.may_enter(knock) {
            Ok(()) => {
                // Of two who want one number the later start is the one that lives.
                self.knocks.retain(|k| k.wanted != knock.wanted || !matches!(k.wanted, Wanted::Again(_)));
                self.knocks.push(knock);
                self.consider(now, out);
            }
            Err(why) => {
                if let Wanted::Again(task) = knock.wanted
                    && why == Refusal::Taken
                {
                    self.inquire(now, task, out);
                }
                self.say_at(knock.host, Task::NONE, Words::Refused { boot: knock.boot, why }, out);
            }
        }
    }

    /// The task that died where this newcomer is.
    fn predecessor(&self, knock: Knock) -> Option<Task> {
        let Wanted::Again(task) = knock.wanted else { return None };
        let person = self.view.person(task).filter(|_| self.view.contains(task))?;
        (person.host == knock.host && person.boot < knock.boot).then_some(task)
    }

    /// The task that this newcomer already is.
    fn find(&self, knock: Knock) -> Option<Task> {
        let is_it = |t: Task| {
            let person = self.view.person(t).filter(|_| self.view.contains(t));
            person.is_some_and(|p| (p.host, p.boot) == (knock.host, knock.boot))
        };
        match knock.wanted {
            Wanted::Again(task) => is_it(task).then_some(task),
            Wanted::More | Wanted::Spare => (0..self.view.next_task().0).rev().map(Task).find(|&t| is_it(t)),
        }
    }

    /// Whether this start was in before: then its knock was long under way, or its welcome was lost and it was taken for dead. A start
    /// is in once: should it still believe in a view, it would miss that it was out.
    fn is_spent(&self, knock: Knock) -> bool {
        let person = |t: Task| self.view.person(t).filter(|p| p.host == knock.host);
        match knock.wanted {
            Wanted::Again(task) => person(task).is_some_and(|p| p.boot >= knock.boot),
            Wanted::More | Wanted::Spare => {
                (0..self.view.next_task().0).map(Task).any(|t| person(t).is_some_and(|p| p.boot == knock.boot))
            }
        }
    }

    fn may_enter(&self, knock: Knock) -> Result<(), Refusal> {
        if self.is_spent(knock) {
            return Err(Refusal::Spent);
        }
        if self.knocks.len() >= KNOCKS {
            return Err(Refusal::Full);
        }
        match knock.wanted {
            Wanted::Again(task) => {
                self.view.person(task).ok_or(Refusal::OutOfRange)?;
                let free = !self.view.contains(task) || self.doubts.gone.contains_key(&task);
                if free { Ok(()) } else { Err(Refusal::Taken) }
            }
            Wanted::More | Wanted::Spare if self.view.next_task().0 + self.knocks.len() as u32 >= TASKS_MAX => {
                Err(Refusal::Full)
            }
            Wanted::More | Wanted::Spare => Ok(()),
        }
    }

    /// A task whose number others wanted is well.
    pub(super) fn refuse_knocks_for(&mut self, task: Task, out: &mut impl Out) {
        let knocks = std::mem::take(&mut self.knocks);
        let (refused, others): (Vec<_>, _) = knocks.into_iter().partition(|k| k.wanted == Wanted::Again(task));
        self.knocks = others;
        for Knock { host, boot, .. } in refused {
            self.say_at(host, Task::NONE, Words::Refused { boot, why: Refusal::Taken }, out);
        }
    }

    /// In a new view: who is in it need not knock (it may have knocked twice, and another root let it in), and who is root no more
    /// gives its newcomers to the next one.
    pub(super) fn sort_out_knocks(&mut self, out: &mut impl Out) {
        let knocks = std::mem::take(&mut self.knocks);
        self.knocks = knocks.into_iter().filter(|&k| self.find(k).is_none() && !self.is_spent(k)).collect();
        let root = self.root();
        if root != self.me {
            for Knock { wanted, host, boot } in std::mem::take(&mut self.knocks) {
                self.say(root, Words::Knock { wanted, host, boot }, out);
            }
        }
    }

    pub(super) fn on_welcome(&mut self, now: Instant, task: Task, boot: u32, roster: &Roster, out: &mut impl Out) {
        if !matches!(self.standing, Standing::Knocking(_)) || boot != self.start.boot {
            return;
        }
        let Ok(view) = View::of(roster) else {
            self.counters.senseless += 1;
            return;
        };
        let is_us = |p: Person| (p.host, p.boot) == (self.start.host, boot);
        if view.contains(task) && view.person(task).is_some_and(is_us) {
            self.me = task;
            self.standing = Standing::In;
            self.doubts.restart(now, &self.config);
            self.seen = view.id().number;
            self.install(now, view, None, out);
            // The view may have changed while the welcome was under way.
            self.ask_around(now, out);
        }
    }

    pub(super) fn on_refused(&mut self, boot: u32, why: Refusal, out: &mut impl Out) {
        if matches!(self.standing, Standing::Knocking(_)) && boot == self.start.boot {
            self.standing = Standing::Out;
            out.push(Output::Refused(why));
        }
    }

    /// RV-8: words from outside the view are ignored, and who speaks them is told so. Unless its view is newer than ours: then it may
    /// be a newcomer of which we have not heard yet.
    pub(super) fn on_outsider(&mut self, now: Instant, task: Task, host: Addr, words: &Words<'_>, out: &mut impl Out) {
        self.counters.outsiders += 1;
        let ours = self.view.id();
        let is_news = |view: &ViewId| view.number > ours.number && self.config.on_partition != OnPartition::Continue;
        match words {
            Words::Excluded { view } => self.on_excluded(*view, out),
            Words::Stable { change } if change.base == ours => self.on_stable(now, task, change.clone(), out),
            Words::State { roster } if is_news(&roster.id) => self.on_state(now, roster, out),
            Words::HowAreYou { nonce, view } if is_news(view) => {
                self.say_at(host, task, Words::Well { nonce: *nonce, view: ours }, out);
                self.say_at(host, task, Words::Behind { view: ours }, out);
            }
            Words::Notice { base: view, .. } | Words::Stable { change: Change { base: view, .. } } if is_news(view) => {
                self.say_at(host, task, Words::Behind { view: ours }, out);
            }
            Words::Stable { .. }
            | Words::State { .. }
            | Words::Stale { .. }
            | Words::Reported { .. }
            | Words::Well { .. } => {}
            _ => self.say_at(host, task, Words::Excluded { view: ours }, out),
        }
    }

    pub(super) fn on_excluded(&mut self, view: ViewId, out: &mut impl Out) {
        let ours = self.view.id();
        let out_we_are = match self.config.on_partition {
            // A lower root, or a later view of our own.
            OnPartition::Continue => {
                let (theirs, own) = ((view.root, view.stint), (ours.root, ours.stint));
                theirs < own || theirs == own && view.number > ours.number
            }
            OnPartition::Primary | OnPartition::Abort => view.number > ours.number,
        };
        if out_we_are {
            self.part(view, out);
        }
    }

    /// In again, under the old number, if there ever was one.
    pub(super) fn on_rejoin(&mut self, now: Instant, boot: u32, out: &mut impl Out) {
        if self.standing != Standing::Out {
            return;
        }
        self.start.boot = boot;
        let others = self.view.tree().tasks().filter(|&t| t != self.me);
        // A host of many tasks is one place to knock at.
        let mut seen = BTreeSet::new();
        let hosts = others.filter_map(|t| self.view.person(t)).map(|p| p.host).filter(|&h| seen.insert(h));
        let contacts = hosts.take(CONTACTS).collect();
        let wanted = if self.me == Task::NONE { self.wanted } else { Wanted::Again(self.me) };
        self.standing = Standing::Knocking(Knocking { wanted, contacts, next: 0, again_at: now });
        self.knock_again(now, out);
    }

    pub(super) fn on_leave(&mut self, now: Instant, out: &mut impl Out) {
        self.standing = Standing::Leaving;
        self.part_if_leaving(now, out);
        self.consider(now, out);
    }

    /// Somebody says good-bye. It votes on the view without it: the living may be too few for one without its vote.
    pub(super) fn on_leaving(&mut self, now: Instant, from: Task, out: &mut impl Out) {
        if self.root() != self.me {
            return self.on_gone(now, &[from], true, out);
        }
        if from != self.me && self.doubts.leaving.insert(from) {
            self.consider(now, out);
        }
    }

    /// Says good-bye to the root, again in each view that still has us.
    pub(super) fn part_if_leaving(&mut self, _now: Instant, out: &mut impl Out) {
        if self.standing != Standing::Leaving {
            return;
        }
        let root = self.root();
        if self.view.tree().len() == 1 {
            return self.part(self.view.id(), out);
        }
        if root != self.me {
            self.say(root, Words::Leaving, out);
        }
    }

    /// RV-6: the job ends here, and all below us must know.
    pub(super) fn abort(&mut self, out: &mut impl Out) {
        let gone = |t: Task| self.doubts.gone.contains_key(&t);
        for child in self.view.tree().children_without(self.me, &gone) {
            self.say(child, Words::Over { view: self.view.id() }, out);
        }
        self.standing = Standing::Out;
        (self.relay, self.accepted) = (None, None);
        self.doubts.end();
        out.push(Output::Aborted);
    }

    pub(super) fn on_over(&mut self, view: ViewId, out: &mut impl Out) {
        if view == self.view.id() {
            self.abort(out);
        }
    }
}
