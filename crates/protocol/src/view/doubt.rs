//! Who is gone: verdicts of the failure detector, inquiries that nobody answers, and who reports what to whom.
//!
//! RV-2, RV-11. All tasks hear the detector's verdict, and the root must not hear of it from all of them: the parent of the dead
//! reports it at once, its children when nothing has happened for a while. Who finds out by itself reports it at once.
//! A silence that was reported is verified by the root: a broken wire between two tasks kills neither.

use super::{Config, Member, Out, Task, View};
use phalanx_core::{Duration, Fingerprint, Instant};
use phalanx_wire::view::{ViewId, Words};
use std::collections::{BTreeMap, BTreeSet};

/// Doubts about others.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Doubts {
    /// In the view, and thought to be dead; whether that is certain, or they were only silent.
    pub(super) gone: BTreeMap<Task, bool>,
    /// Those who said good-bye to us. They are in the view, and vote, until there is one without them.
    pub(super) leaving: BTreeSet<Task>,
    inquiries: Vec<Inquiry>,
    /// How many we made.
    pub(super) nonce: u32,
    /// What the root has not acknowledged yet, and whether it is certain.
    reports: BTreeMap<Task, bool>,
    report_at: Instant,
    /// Dead parents, whom we report if nobody else does.
    second: Vec<(Instant, Task)>,
    /// When we next ask how others are, and which of our children's turn it is.
    round_at: Instant,
    turn: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Inquiry {
    task: Task,
    nonce: u32,
    until: Instant,
}

impl Default for Doubts {
    fn default() -> Self {
        Self {
            gone: BTreeMap::new(),
            leaving: BTreeSet::new(),
            inquiries: Vec::new(),
            nonce: 0,
            reports: BTreeMap::new(),
            report_at: Instant::NEVER,
            second: Vec::new(),
            round_at: Instant::NEVER,
            turn: 0,
        }
    }
}

impl Doubts {
    /// Who is in no view doubts nobody.
    pub(super) fn end(&mut self) {
        *self = Self { nonce: self.nonce, ..Self::default() };
    }

    pub(super) fn restart(&mut self, now: Instant, config: &Config) {
        self.end();
        if config.inquiry > Duration::ZERO {
            self.round_at = now + config.inquiry;
        }
    }

    pub(super) fn deadline(&self) -> Instant {
        let inquiries = self.inquiries.iter().map(|i| i.until);
        inquiries.chain(self.second.iter().map(|s| s.0)).fold(self.report_at.min(self.round_at), Instant::min)
    }

    pub(super) fn on_view(&mut self, view: &View) {
        self.inquiries.retain(|i| view.contains(i.task));
        self.reports.retain(|t, _| view.contains(*t));
        self.second.retain(|(_, t)| view.contains(*t));
        if self.reports.is_empty() {
            self.report_at = Instant::NEVER;
        }
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&self.gone).add(&self.leaving).add(&self.reports).add(&self.turn);
        for inquiry in &self.inquiries {
            print.add(&inquiry.task).add(&self.nonce.wrapping_sub(inquiry.nonce));
            print.instant(inquiry.until);
        }
        for (at, task) in &self.second {
            print.add(task);
            print.instant(*at);
        }
        print.instant(self.report_at);
        print.instant(self.round_at);
    }
}

impl Member {
    /// The detector's verdict; see [`super::Input::Failed`].
    pub(super) fn on_failed(&mut self, now: Instant, tasks: &[Task], out: &mut impl Out) {
        let news = self.note_gone(tasks, true);
        if news.is_empty() {
            return;
        }
        self.cross(now, &news, true, out);
        if !self.is_in() || self.root() == self.me {
            return self.consider(now, out);
        }
        let gone = &self.doubts.gone;
        let ours = |t: &Task| self.view.tree().parent_without(*t, &|t| gone.contains_key(&t)) == Some(self.me);
        let duty: Vec<_> = news.iter().copied().filter(ours).collect();
        let parent = self.view.tree().parent(self.me).filter(|p| news.contains(p));
        self.doubts.second.extend(parent.map(|p| (now + self.config.patience, p)));
        self.report(now, &duty, true, out);
    }

    /// We found out ourselves; see [`super::Input::Lost`].
    pub(super) fn on_lost(&mut self, now: Instant, tasks: &[Task], certain: bool, out: &mut impl Out) {
        if certain {
            return self.on_gone(now, tasks, true, out);
        }
        for &task in tasks {
            if self.view.contains(task) {
                self.inquire(now, task, out);
            }
        }
    }

    /// These are gone, and the root should know.
    pub(super) fn on_gone(&mut self, now: Instant, tasks: &[Task], certain: bool, out: &mut impl Out) {
        let news = self.note_gone(tasks, certain);
        // Also those of whom it is no news: a wave asks once more who was only silent.
        let gone: Vec<_> = tasks.iter().copied().filter(|t| self.doubts.gone.contains_key(t)).collect();
        self.cross(now, &gone, true, out);
        if news.is_empty() {
            return;
        }
        if !self.is_in() || self.root() == self.me {
            self.consider(now, out);
        } else {
            self.report(now, &news, certain, out);
        }
    }

    /// Those of them that are news, or are certain now.
    fn note_gone(&mut self, tasks: &[Task], certain: bool) -> Vec<Task> {
        let (me, view, doubts) = (self.me, &self.view, &mut self.doubts);
        let mut is_news = |t: Task| match doubts.gone.insert(t, certain) {
            None => true,
            Some(was) => {
                doubts.gone.insert(t, was || certain);
                certain && !was
            }
        };
        let news = tasks.iter().copied().filter(|&t| t != me && view.contains(t) && is_news(t)).collect();
        // Others that are gone may be asked once more just now, by a wave that waits for them.
        doubts.inquiries.retain(|i| !tasks.contains(&i.task));
        news
    }

    /// `NODE_FAILURE` to the root, or `ROOT_FAILURE` to who should be it.
    fn report(&mut self, now: Instant, tasks: &[Task], certain: bool, out: &mut impl Out) {
        if tasks.is_empty() {
            return;
        }
        for &task in tasks {
            *self.doubts.reports.entry(task).or_default() |= certain;
        }
        self.doubts.report_at = now + self.config.patience;
        self.send_reports(out);
    }

    fn send_reports(&self, out: &mut impl Out) {
        let root = self.root();
        for certain in [true, false] {
            let failed: Vec<_> = self.doubts.reports.iter().filter(|r| *r.1 == certain).map(|r| *r.0).collect();
            if !failed.is_empty() && root != self.me {
                self.say(root, Words::Report { view: self.view.id(), failed, certain }, out);
            }
        }
    }

    pub(super) fn on_report(&mut self, now: Instant, from: Task, failed: Vec<Task>, certain: bool, out: &mut impl Out) {
        self.say(from, Words::Reported { failed: failed.clone() }, out);
        if certain {
            self.on_gone(now, &failed, true, out);
        } else {
            for task in failed {
                if self.view.contains(task) && !self.doubts.gone.contains_key(&task) {
                    self.inquire(now, task, out);
                }
            }
        }
    }

    pub(super) fn on_reported(&mut self, failed: &[Task]) {
        self.doubts.reports.retain(|t, _| !failed.contains(t));
        if self.doubts.reports.is_empty() {
            self.doubts.report_at = Instant::NEVER;
        }
    }

    /// `HOW_ARE_YOU`, unless we asked already.
    pub(super) fn inquire(&mut self, now: Instant, task: Task, out: &mut impl Out) {
        if task == self.me || self.doubts.inquiries.iter().any(|i| i.task == task) {
            return;
        }
        self.doubts.nonce = self.doubts.nonce.wrapping_add(1);
        let nonce = self.doubts.nonce;
        self.doubts.inquiries.push(Inquiry { task, nonce, until: now + self.config.patience });
        self.say(task, Words::HowAreYou { nonce, view: self.view.id() }, out);
    }

    pub(super) fn on_how_are_you(&mut self, from: Task, nonce: u32, view: ViewId, out: &mut impl Out) {
        self.say(from, Words::Well { nonce, view: self.view.id() }, out);
        self.compare(from, view, out);
    }

    pub(super) fn on_well(&mut self, now: Instant, from: Task, nonce: u32, view: ViewId, out: &mut impl Out) {
        let asked = self.doubts.inquiries.len();
        self.doubts.inquiries.retain(|i| (i.task, i.nonce) != (from, nonce));
        if self.doubts.inquiries.len() < asked && self.doubts.gone.remove(&from).is_some() {
            // It lives after all, and its number is not free.
            self.doubts.reports.remove(&from);
            self.refuse_knocks_for(from, out);
            if self.root() != self.me && self.lead != super::lead::Lead::Idle {
                self.relay.take_if(|r| r.upstream.is_none());
                self.lead = super::lead::Lead::Idle;
            }
            self.lead_soon(now);
        }
        self.compare(from, view, out);
        // It may have had no view yet when the notice came.
        self.give_again(from, out);
        self.consider(now, out);
    }

    /// One of two tasks may have been left behind.
    pub(super) fn compare(&mut self, other: Task, view: ViewId, out: &mut impl Out) {
        let ours = self.view.id();
        if view.number > ours.number {
            self.say(other, Words::Behind { view: ours }, out);
        } else if view.number < ours.number {
            self.inform(other, view, out);
        }
    }

    /// Somebody speaks who is thought to be gone. Its words may be old, so it is asked.
    pub(super) fn hear(&mut self, now: Instant, from: Task, out: &mut impl Out) {
        if self.doubts.gone.contains_key(&from) {
            self.inquire(now, from, out);
        }
    }

    pub(super) fn expire_doubts(&mut self, now: Instant, out: &mut impl Out) {
        let due = |i: &Inquiry| i.until <= now;
        let silent: Vec<_> = self.doubts.inquiries.iter().filter(|i| due(i)).map(|i| i.task).collect();
        self.doubts.inquiries.retain(|i| !due(i));
        self.on_gone(now, &silent, false, out);
        if self.doubts.report_at <= now {
            // Who does not acknowledge a report may be gone, too.
            self.doubts.report_at = now + self.config.patience;
            let root = self.root();
            self.inquire(now, root, out);
            self.send_reports(out);
        }
        let second: Vec<_> = self.doubts.second.iter().filter(|s| s.0 <= now).map(|s| s.1).collect();
        self.doubts.second.retain(|s| s.0 > now);
        let second: Vec<_> = second.into_iter().filter(|t| self.doubts.gone.contains_key(t)).collect();
        self.report(now, &second, true, out);
        if self.doubts.round_at <= now {
            self.doubts.round_at = now + self.config.inquiry;
            self.ask_around(now, out);
            // A good-bye may have been lost.
            self.part_if_leaving(now, out);
        }
    }

    /// RV-11: our parent, and one of our children.
    pub(super) fn ask_around(&mut self, now: Instant, out: &mut impl Out) {
        let gone = |t: Task| self.doubts.gone.contains_key(&t);
        let parent = self.view.tree().parent_without(self.me, &gone);
        let children = self.view.tree().children_without(self.me, &gone);
        self.doubts.turn = self.doubts.turn.wrapping_add(1);
        let child = children.get(self.doubts.turn as usize % children.len().max(1)).copied();
        for task in parent.into_iter().chain(child) {
            self.inquire(now, task, out);
        }
    }
}
