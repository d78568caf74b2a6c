//! What tasks ask their shepherd for, and what they are told.

use super::Shepherd;
use super::desk::Caller;
use super::news::Said;
use super::words::Place;
use phalanx_api::jobs::{self, Parcel, Role, ToShepherd, ToTask, ViewName};
use phalanx_core::{Addr, Duration, Instant};
use phalanx_protocol::company::{Gift, Seat};
use phalanx_protocol::view::{self, Change, Refusal, SendError, Task, View, ViewId, Wanted};
use std::collections::BTreeMap;

/// A rank that is taken may be that of somebody who has just died: it is tried again for so long …
const TAKEN_PATIENCE: Duration = Duration::from_secs(3);
/// … so often.
const TAKEN_AGAIN: Duration = Duration::from_millis(100);
/// Messages of a task whose numbers are remembered, should they come back.
const REMEMBERED: usize = 1024;

/// A task that is connected.
pub(super) struct Tasked {
    role: Role,
    pub(super) seat: Option<Seat>,
    /// It wants to be asked before the view changes.
    hooks: bool,
    /// When to try again to be let in, and until when.
    again: Option<(Instant, Instant)>,
    /// Its messages in this view by the member's numbers.
    parcels: BTreeMap<u64, u64>,
    /// The reduction that it waits for, by its own number.
    pub(super) reduces: Option<u64>,
}

pub(super) fn name_of(id: ViewId) -> ViewName {
    ViewName { number: id.number, root: id.root.0, stint: id.stint }
}

fn id_of(name: ViewName) -> ViewId {
    ViewId { number: name.number, root: Task(name.root), stint: name.stint }
}

impl Shepherd {
    pub(super) fn on_task(&mut self, caller: Caller, words: ToShepherd) {
        match words {
            ToShepherd::Attach { role, size, hooks } => {
                if let Err(error) = self.may_attach(caller, role, size) {
                    return self.refuse(caller, error);
                }
                let parcels = BTreeMap::new();
                self.tasks.insert(caller, Tasked { role, seat: None, hooks, again: None, parcels, reduces: None });
                self.enter(caller);
            }
            ToShepherd::Paused => self.tell(caller, view::Input::Paused),
            ToShepherd::Checkpoint => self.tell(caller, view::Input::Checkpoint),
            ToShepherd::Rejoin => {
                if let Some(seat) = self.seat_of(caller) {
                    self.driver.act(|company, now, out| company.rejoin(now, seat, out));
                }
            }
            ToShepherd::Leave => {
                // It has nothing to save for a view without it.
                if let Some(task) = self.tasks.get_mut(&caller) {
                    task.hooks = false;
                }
                self.tell(caller, view::Input::Leave);
            }
            ToShepherd::Barrier { number } => self.on_reduce(caller, number, Gift::Barrier),
            ToShepherd::Sum { number, value } => self.on_reduce(caller, number, Gift::Sum(value)),
            // Said by programs that are newer than we are.
            _ => {}
        }
    }

    fn tell(&mut self, caller: Caller, input: view::Input<'_>) {
        if let Some(seat) = self.seat_of(caller) {
            self.driver.act(|company, now, out| company.tell(now, seat, input, out));
        }
    }

    pub(super) fn seat_of(&self, caller: Caller) -> Option<Seat> {
        self.tasks.get(&caller)?.seat
    }

    fn may_attach(&self, caller: Caller, role: Role, size: u32) -> Result<(), String> {
        let terms = &self.terms;
        if self.tasks.contains_key(&caller) {
            return Err("this connection is a task already: open another one".to_owned());
        }
        if size != terms.size {
            return Err(format!("job `{}` has {} ranks, not {size}: join it with that size", terms.name, terms.size));
        }
        if let Role::Rank(rank) = role {
            if rank >= size {
                let last = size - 1;
                return Err(format!("rank {rank} is out of range: job `{}` has ranks 0 to {last}", terms.name));
            }
            if self.tasks.values().any(|t| t.role == role) {
                return Err(format!("rank {rank} of job `{}` is taken, by a task on this node", terms.name));
            }
        }
        Ok(())
    }

    /// Lets a task in that is not in yet: as the first of its job, or by knocking where others are.
    fn enter(&mut self, caller: Caller) {
        if self.work.is_some() {
            return self.take_place(caller);
        }
        let Some(task) = self.tasks.get(&caller).filter(|t| t.seat.is_none()) else { return };
        let role = task.role;
        if self.instance.is_none() {
            let nobody = self.places.as_ref().is_some_and(Vec::is_empty);
            if role != Role::Rank(0) || !nobody {
                // Whoever holds rank 0 begins; the daemon tells when it did.
                return;
            }
            return self.found(caller);
        }
        let wanted = match role {
            Role::Rank(rank) => Wanted::Again(Task(rank)),
            Role::More => Wanted::More,
            Role::Spare => Wanted::Spare,
        };
        let contacts = self.contacts();
        let seat = self.driver.act(|company, now, out| company.join(now, wanted, &contacts, out));
        self.sit(caller, seat);
    }

    /// A task of a job that the manager runs speaks for a rank that was started here: its seat is there already, and stays when the
    /// connection ends. The rank's process is its life.
    fn take_place(&mut self, caller: Caller) {
        let (Some(task), Some(work)) = (self.tasks.get_mut(&caller), &self.work) else { return };
        let Role::Rank(rank) = task.role else {
            let name = &self.terms.name;
            let error = format!("job `{name}` was started with `phalanx run`, which has as many ranks as it was given");
            return self.refuse(caller, error);
        };
        let here = work.attempt().and_then(|attempt| work.ranks.find(attempt, rank)).filter(|r| r.runs());
        let Some(seat) = here.and_then(|r| r.seat) else {
            let error = format!("rank {rank} of job `{}` does not run on this node", self.terms.name);
            return self.refuse(caller, error);
        };
        self.sit(caller, seat);
        // Who links the client holds its word before it says anything.
        self.watch_notice(seat);
        let view = self.driver.node().member(seat).and_then(|m| m.view()).cloned();
        if let Some(view) = view {
            self.on_installed(caller, &view, None);
        }
    }

    fn found(&mut self, caller: Caller) {
        let mut bytes = [0; 8];
        if let Err(e) = getrandom::fill(&mut bytes) {
            return self.refuse(caller, format!("the system has no random numbers: {e}"));
        }
        let instance = u64::from_le_bytes(bytes);
        let (arity, size) = (self.terms.arity, self.terms.size);
        self.instance = Some(instance);
        let founded = self.driver.act(|company, now, out| {
            company.set_job(instance);
            company.found(now, arity, size, out)
        });
        match founded {
            Ok(seat) => self.sit(caller, seat),
            Err(e) => self.refuse(caller, e.to_string()),
        }
        self.enter_all();
    }

    fn sit(&mut self, caller: Caller, seat: Seat) {
        if let Some(task) = self.tasks.get_mut(&caller) {
            task.seat = Some(seat);
            self.seats.insert(seat, caller);
        }
    }

    fn enter_all(&mut self) {
        for caller in self.tasks.keys().copied().collect::<Vec<_>>() {
            self.enter(caller);
        }
    }

    /// Hosts of this job's other tasks.
    fn contacts(&self) -> Vec<Addr> {
        let places = self.places.iter().flatten().filter(|p| Some(p.instance) == self.instance);
        places.map(|p| Addr::Ip(p.addr)).collect()
    }

    /// The daemon looked where tasks of the job are.
    pub(super) fn on_places(&mut self, places: Vec<Place>) {
        let others: Vec<Place> = places.into_iter().filter(|p| p.addr != self.addr).collect();
        let first = others.iter().map(|p| p.instance).min();
        self.places = Some(others);
        if self.contacts().is_empty() && !self.was_in {
            // Whoever we knocked at is gone, and the job with it. Who was in a view once knows better: others may only be out of reach.
            self.forget_instance();
        }
        match (self.instance, first) {
            (None, Some(instance)) => {
                self.instance = Some(instance);
                self.driver.act(|company, _, _| company.set_job(instance));
            }
            // Two began at once: all stay with the one that everybody would choose.
            (Some(ours), Some(theirs)) if theirs < ours && self.is_young() => return self.give_way(),
            _ => {}
        }
        let contacts = self.contacts();
        self.driver.act(|company, now, out| company.seek(now, &contacts, out));
        self.enter_all();
    }

    fn forget_instance(&mut self) {
        self.instance = None;
        self.seats.clear();
        for seat in self.tasks.values_mut().filter_map(|t| t.seat.take()).collect::<Vec<_>>() {
            self.driver.act(|company, now, out| company.part(now, seat, out));
        }
    }

    /// Nobody but us has come to the job that was founded here.
    fn is_young(&self) -> bool {
        let mut views = self.driver.node().members().filter_map(|(_, m)| m.view());
        views.all(|v| v.tree().tasks().all(|t| v.person(t).is_some_and(|p| p.host == Addr::Ip(self.addr))))
    }

    /// Another job of that name was begun at the same time.
    fn give_way(&mut self) {
        let name = &self.terms.name;
        let error = format!("another job `{name}` was begun at the same time, and this one gives way: join again");
        for caller in self.tasks.keys().copied().collect::<Vec<_>>() {
            self.refuse(caller, error.clone());
        }
    }

    /// A task that is not let in, or not any more.
    fn refuse(&mut self, caller: Caller, error: String) {
        self.desk.say(caller, &ToTask::Refused { error });
        self.desk.show_out(caller);
        self.on_gone(caller);
    }

    /// The task's connection ended: the task is gone.
    pub(super) fn on_gone(&mut self, caller: Caller) {
        if let Some(seat) = self.tasks.remove(&caller).and_then(|t| t.seat) {
            self.seats.remove(&seat);
            if self.work.is_some() {
                // It may have been asked to pause.
                return self.driver.act(|company, now, out| company.tell(now, seat, view::Input::Paused, out));
            }
            self.driver.act(|company, now, out| company.part(now, seat, out));
        }
    }

    pub(super) fn on_parcel(&mut self, caller: Caller, parcel: Parcel, message: &[u8]) {
        let Some(seat) = self.seat_of(caller) else { return };
        let to = (id_of(parcel.view), Task(parcel.peer));
        let sent = self.driver.act(|company, now, out| company.send(now, seat, to, message, out));
        let words = match sent {
            Ok(number) => {
                if let Some(task) = self.tasks.get_mut(&caller) {
                    task.parcels.insert(number, parcel.number);
                    if task.parcels.len() > REMEMBERED {
                        task.parcels.pop_first();
                    }
                }
                ToTask::Sent { parcel: parcel.number }
            }
            Err(e) => ToTask::Unsent { parcel: parcel.number, error: e.to_string(), busy: e == SendError::Busy },
        };
        self.desk.say(caller, &words);
    }

    pub(super) fn on_said(&mut self, seat: Seat, said: Said) {
        let Some(&caller) = self.seats.get(&seat) else { return };
        let words = match said {
            Said::Installed { view, change } => return self.on_installed(caller, &view, change.as_ref()),
            Said::Deliver { from, view, body } => {
                let parcel = Parcel { peer: from.0, number: 0, view: name_of(view) };
                return self.desk.send(caller, parcel.frame(&body));
            }
            Said::Pause if !self.tasks.get(&caller).is_some_and(|t| t.hooks) => {
                return self.tell(caller, view::Input::Paused);
            }
            Said::Pause => ToTask::Pause,
            Said::Undelivered { to, number } => {
                let parcel = self.tasks.get(&caller).and_then(|t| t.parcels.get(&number).copied()).unwrap_or_default();
                ToTask::Undelivered { parcel, to: to.0 }
            }
            Said::Begun(..) | Said::Settled(..) | Said::Mustered(_) => return,
            Said::Host(..) | Said::HostGone(..) | Said::Writable => return,
            Said::Stalled => ToTask::Stalled,
            Said::Excluded(view) => ToTask::Excluded { view: name_of(view) },
            Said::Aborted => ToTask::Aborted,
            Said::Left => ToTask::Left,
            Said::Refused(why) => return self.on_refused(caller, seat, why),
            Said::Reduced(outcome) => return self.on_outcome(caller, outcome),
            Said::Unreduced => return self.on_unreduced(caller),
        };
        self.desk.say(caller, &words);
    }

    fn on_installed(&mut self, caller: Caller, view: &View, change: Option<&Change>) {
        let Some(task) = self.tasks.get_mut(&caller) else { return };
        let Some(me) = task.seat.and_then(|s| self.driver.node().member(s)).map(view::Member::me) else { return };
        self.was_in = true;
        task.parcels.clear();
        task.again = None;
        if let (Role::Rank(rank), None) = (task.role, view.rank_of(me)) {
            let holder = view.holder(rank).map_or(rank, |t| t.0);
            let name = &self.terms.name;
            let error = format!("rank {rank} of job `{name}` is held by task {holder} now: join as a spare");
            return self.refuse(caller, error);
        }
        let numbers = |tasks: &[Task]| tasks.iter().map(|t| t.0).collect::<Vec<_>>();
        let odd = (0..view.ranks()).filter_map(|r| view.holder(r).filter(|t| t.0 != r).map(|t| (r, t.0)));
        self.desk.say(
            caller,
            &ToTask::View(jobs::View {
                view: name_of(view.id()),
                me: me.0,
                rank: view.rank_of(me),
                size: view.ranks(),
                tasks: view.tree().tasks().map(|t| t.0).collect(),
                holders: odd.collect(),
                failed: change.map(|c| numbers(&c.failed)).unwrap_or_default(),
                joined: change.map(|c| c.joined.iter().map(|j| j.task.0).collect()).unwrap_or_default(),
                checkpoint: change.is_some_and(|c| c.checkpoint),
            }),
        );
    }

    fn on_refused(&mut self, caller: Caller, seat: Seat, why: Refusal) {
        let now = self.driver.now();
        let Some(task) = self.tasks.get_mut(&caller) else { return };
        let name = &self.terms.name;
        let role = match task.role {
            Role::Rank(rank) => format!("rank {rank}"),
            Role::More => "one more rank".to_owned(),
            Role::Spare => "a spare".to_owned(),
        };
        if matches!(why, Refusal::Taken | Refusal::Spent) {
            let until = task.again.map_or(now + TAKEN_PATIENCE, |a| a.1);
            if now < until {
                task.again = Some((now + TAKEN_AGAIN, until));
                task.seat = None;
                self.seats.remove(&seat);
                self.driver.act(|company, now, out| company.part(now, seat, out));
                return;
            }
        }
        let error = match why {
            Refusal::Taken => format!("{role} of job `{name}` is taken: its task lives"),
            Refusal::OutOfRange => format!("{role} is out of range: job `{name}` has fewer"),
            Refusal::Full => format!("job `{name}` has as many tasks as it can have"),
            Refusal::Spent => format!("{role} of job `{name}` was given up: join again"),
            Refusal::Over => format!("job `{name}` is over"),
        };
        self.refuse(caller, error);
    }

    /// When [`Shepherd::try_again`] has something to do.
    pub(super) fn next_try(&self) -> Instant {
        self.tasks
            .values()
            .filter_map(|t| t.again.filter(|_| t.seat.is_none()))
            .map(|a| a.0)
            .fold(Instant::NEVER, Instant::min)
    }

    /// Ranks that were taken a moment ago.
    pub(super) fn try_again(&mut self) {
        let now = self.driver.now();
        let due = |t: &Tasked| t.seat.is_none() && t.again.is_some_and(|a| a.0 <= now);
        for caller in self.tasks.iter().filter(|(_, t)| due(t)).map(|(&c, _)| c).collect::<Vec<_>>() {
            self.enter(caller);
        }
    }
}
