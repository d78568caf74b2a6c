//! Companies: the process that runs all tasks of a job on one host in the simulator, over a real link, as a daemon does.
//!
//! [`build`] makes the hosts of one job. What befalls them comes from a scenario (`engine = "view"`), what they decide is told as
//! [`Note`]s to the [`checks`].
//!
//! A host that starts again starts its tasks again: it remembers their numbers on its disk, and nothing else. Who was excluded or
//! refused knocks again after a while. Who aborted is over.
//!
//! | file | idea |
//! |---|---|
//! | `build` | the hosts of a job |
//! | `outlet` | where a company's decisions go |
//! | [`checks`] | what must hold of them |

mod build;
pub mod checks;
mod outlet;
#[cfg(test)]
mod tests;

pub use build::{Chain, Moment, Options, build};

use crate::process::{Ctx, Process, StreamEvent};
use crate::sim::Birth;
use build::Shared;
use outlet::{Desk, Outlet, Told};
use phalanx_core::{Addr, Boot, Buf, Code, Duration, Instant, Machine, Rng};
use phalanx_fault::Rule;
use phalanx_protocol::company::{Company, Input, Seat};
use phalanx_protocol::link::Link;
use phalanx_protocol::view::{self, Refusal, Task, View, ViewId, Wanted, Wave};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Rounds of expiry in one call, as in the daemon.
const ROUNDS: usize = 4;
/// Seats of one start of a host, in bits: more than it ever gives away.
const SEATS: u32 = 12;
/// Where the disk keeps the numbers of the host's tasks.
const TASKS: u64 = 0;
/// One in so many turns of a talker asks for a checkpoint instead.
const CHECKPOINTS: u64 = 40;
/// A task that has to pause takes so long at most.
const PAUSE: Duration = Duration::from_millis(300);
/// A leave with this code or a higher one is a crash: the task starts again.
const COMES_BACK: u8 = 128;

/// A task in one of its lives, on the node that says so.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Who {
    /// Its number.
    pub task: Task,
    /// Which start of it.
    pub boot: u32,
}

/// What hosts say.
#[derive(Clone, PartialEq, Debug)]
pub enum Note {
    /// A task has a new view.
    Installed {
        /// Who.
        who: Who,
        /// Which.
        view: Box<View>,
        /// The view that it was made of, unless it was told whole.
        base: Option<ViewId>,
    },
    /// A task sends a message of this name.
    Sent {
        /// Who.
        who: Who,
        /// In which view.
        view: ViewId,
        /// To whom.
        to: Task,
        /// Its name: no other message of the run has it.
        name: u64,
    },
    /// A task is handed a message.
    Got {
        /// Who.
        who: Who,
        /// From whom.
        from: Task,
        /// In which view.
        view: ViewId,
        /// Its name; nothing when it cannot be read.
        name: Option<u64>,
    },
    /// A root begins a wave.
    Begun(Who, Wave),
    /// It has all answers.
    Settled(Who, Wave),
    /// Too few answer.
    Stalled(Who),
    /// The others have this view without it.
    Excluded(Who, ViewId),
    /// The job is over for it.
    Aborted(Who),
    /// It is not let in.
    Refused(Who, Refusal),
    /// It left.
    Left(Who),
    /// A message of its came too late.
    Undelivered(Who),
    /// It knocks.
    Knocks(Who),
    /// It dies alone, or leaves.
    Parts(Who),
    /// The zone says that hosts failed.
    Doubts(u32),
}

/// What hosts are asked to do.
#[derive(Clone, Debug)]
pub enum Command {
    /// The link's `plain` injector gets a rule.
    Plain(Box<Rule>),
    /// All rules of the `plain` injector end.
    HealPlain,
    /// One of the tasks is gone, chosen by this number.
    Part(u8),
    /// One task more; a spare, or with a rank of its own.
    Join {
        /// A spare.
        spare: bool,
    },
    /// The zone says that these hosts failed.
    Doubt(Vec<u32>),
    /// Nobody sends messages or wants checkpoints any more.
    Rest,
}

/// One task of the host.
#[derive(Clone, Copy, Debug)]
struct Life {
    who: Who,
    /// When it knocks again.
    back_at: Instant,
    /// When it has saved its state.
    paused_at: Instant,
}

/// A host with its tasks.
pub struct Host {
    company: Company,
    shared: Arc<Shared>,
    node: u32,
    boot: u32,
    desk: Desk,
    /// The tasks that live.
    lives: BTreeMap<Seat, Life>,
    /// Those that died alone and start again.
    reborn: Vec<(Instant, Wanted)>,
    /// What the disk has.
    kept: Vec<Task>,
    talk_at: Instant,
    names: u64,
}

impl Host {
    pub(crate) fn new(shared: &Arc<Shared>, birth: Birth<'_>) -> Self {
        let mut boot = Boot::default();
        birth.rng.fill(&mut boot.0);
        let signer = shared.signer(birth.node);
        let link = Link::new(Arc::clone(&shared.link), Arc::clone(&shared.ring), signer, boot, birth.rng.u64());
        let Options { largest, view, .. } = shared.options;
        let first = birth.boot << SEATS;
        let company = Company::new(link, largest, Addr::Local(birth.node), shared.job, view, first);
        let number = |c: &[u8]| c.try_into().map(u32::from_le_bytes).map(Task).ok();
        let kept = birth.disk.read(TASKS).map(|bytes| bytes.chunks(4).filter_map(number).collect());
        Self {
            company,
            shared: Arc::clone(shared),
            node: birth.node,
            boot: birth.boot,
            desk: Desk::default(),
            lives: BTreeMap::new(),
            reborn: Vec::new(),
            kept: kept.unwrap_or_else(|| shared.tasks_of(birth.node)),
            talk_at: Instant::NEVER,
            names: 0,
        }
    }

    /// The company, to be looked at.
    #[must_use]
    pub fn company(&self) -> &Company {
        &self.company
    }

    /// What becomes of tasks that cannot reach most of their view.
    #[must_use]
    pub fn policy(&self) -> view::OnPartition {
        self.shared.options.view.on_partition
    }

    /// The members of tasks that live: not of those that say good-bye.
    pub fn living(&self) -> impl Iterator<Item = &view::Member> {
        self.lives.keys().filter_map(|&seat| self.company.member(seat))
    }

    /// True while a task that died alone has not started again.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        !self.reborn.is_empty()
    }

    /// How one of its tasks stands in the order of its view: the root is 0.
    pub(crate) fn leads(&self, place: usize) -> bool {
        self.living().any(|m| m.view().is_some_and(|v| v.tree().tasks().nth(place) == Some(m.me())))
    }

    /// Lets the company do something, and sees to what follows.
    fn with(&mut self, now: Instant, net: &mut Ctx<'_, Self>, act: impl FnOnce(&mut Company, &mut Outlet<'_, '_>)) {
        let Self { company, desk, .. } = self;
        act(company, &mut Outlet { now, desk, net });
        while let Some((seat, told)) = self.desk.told.pop_front() {
            self.on_told(now, seat, told, net);
        }
    }

    fn on_told(&mut self, now: Instant, seat: Seat, told: Told, net: &mut Ctx<'_, Self>) {
        if let (Some(member), Some(life)) = (self.company.member(seat), self.lives.get_mut(&seat)) {
            life.who = Who { task: member.me(), boot: member.boot() };
        }
        let who = self.lives.get(&seat).or_else(|| self.desk.parting.get(&seat)).map(|l| l.who);
        let Some(who) = who else { return };
        let back_at = now + self.shared.options.rejoin;
        net.note(match told {
            Told::Installed(view, base) => Note::Installed { who, view, base },
            Told::Got { from, view, name } => Note::Got { who, from, view, name },
            Told::Begun(wave) => Note::Begun(who, wave),
            Told::Settled(wave) => Note::Settled(who, wave),
            Told::Stalled => Note::Stalled(who),
            Told::Excluded(view) => {
                self.come_back(seat, back_at);
                Note::Excluded(who, view)
            }
            Told::Refused(why) => {
                net.note(Note::Refused(who, why));
                // RV-6: a number of one part may be nobody's in another, or somebody else's.
                let elsewhere = self.policy() == view::OnPartition::Continue && why == Refusal::Taken;
                if why != Refusal::OutOfRange && !elsewhere {
                    return self.come_back(seat, back_at);
                }
                self.lives.remove(&seat);
                self.reborn.push((back_at, Wanted::More));
                self.keep(net);
                return self.with(now, net, |company, out| company.part(now, seat, out));
            }
            Told::Aborted => {
                net.note(Note::Aborted(who));
                self.lives.remove(&seat);
                self.keep(net);
                return self.with(now, net, |company, out| company.part(now, seat, out));
            }
            Told::Left => Note::Left(who),
            Told::Undelivered => Note::Undelivered(who),
            Told::Pause => {
                let takes = Duration(net.rng().below(PAUSE.0));
                if let Some(life) = self.lives.get_mut(&seat) {
                    life.paused_at = now + takes;
                }
                return;
            }
        });
        self.keep(net);
    }

    fn come_back(&mut self, seat: Seat, at: Instant) {
        if let Some(life) = self.lives.get_mut(&seat) {
            life.back_at = at;
        }
    }

    /// The disk remembers which tasks are here.
    fn keep(&mut self, net: &mut Ctx<'_, Self>) {
        let lives = self.lives.values().map(|l| l.who.task).filter(|&t| t != Task::NONE);
        let mut tasks: Vec<_> = lives.chain(self.reborn.iter().filter_map(|r| number(r.1))).collect();
        tasks.sort_unstable();
        if tasks != self.kept {
            let bytes: Vec<u8> = tasks.iter().flat_map(|t| t.0.to_le_bytes()).collect();
            net.persist(0, TASKS, &bytes);
            self.kept = tasks;
        }
    }

    fn settle_in(&mut self, seat: Seat, task: Task) {
        let who = Who { task, boot: seat };
        self.lives.insert(seat, Life { who, back_at: Instant::NEVER, paused_at: Instant::NEVER });
    }

    /// All other hosts, in an order of its own.
    fn contacts(&self, net: &mut Ctx<'_, Self>) -> Vec<Addr> {
        let mut all: Vec<_> = (0..net.nodes()).filter(|&n| n != self.node).map(Addr::Local).collect();
        net.rng().shuffle(&mut all);
        all
    }

    fn join(&mut self, now: Instant, wanted: Wanted, net: &mut Ctx<'_, Self>) {
        let contacts = self.contacts(net);
        let task = number(wanted).unwrap_or(Task::NONE);
        let Self { company, desk, .. } = self;
        let seat = company.join(now, wanted, &contacts, &mut Outlet { now, desk, net });
        self.settle_in(seat, task);
        net.note(Note::Knocks(Who { task, boot: seat }));
        self.with(now, net, |_, _| ());
    }

    fn rejoin(&mut self, now: Instant, seat: Seat, net: &mut Ctx<'_, Self>) {
        let contacts = self.contacts(net);
        self.with(now, net, |company, out| {
            company.rejoin(now, seat, out);
            company.seek(now, &contacts, out);
        });
        if let Some(member) = self.company.member(seat) {
            net.note(Note::Knocks(Who { task: member.me(), boot: member.boot() }));
        }
    }

    fn part(&mut self, now: Instant, which: u8, net: &mut Ctx<'_, Self>) {
        let Some((&seat, &life)) = self.lives.iter().nth(usize::from(which) % self.lives.len().max(1)) else { return };
        net.note(Note::Parts(life.who));
        self.lives.remove(&seat);
        self.desk.parting.insert(seat, life);
        if which >= COMES_BACK && life.who.task != Task::NONE {
            self.reborn.push((now + self.shared.options.rejoin, Wanted::Again(life.who.task)));
        }
        self.with(now, net, |company, out| company.part(now, seat, out));
        self.keep(net);
    }

    /// One of the tasks says something to one of its view.
    fn talk(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        let speakers: Vec<_> = self.lives.iter().filter(|(s, _)| self.view_of(**s).is_some()).collect();
        let Some(&(&seat, &Life { who, .. })) = speakers.get(net.rng().index(speakers.len().max(1))) else { return };
        if net.rng().below(CHECKPOINTS) == 0 {
            return self.with(now, net, |company, out| company.tell(now, seat, view::Input::Checkpoint, out));
        }
        let Some(view) = self.view_of(seat) else { return };
        let (id, tree) = (view.id(), view.tree());
        let Some(to) = tree.tasks().nth(net.rng().index(tree.len() as usize)) else { return };
        self.names += 1;
        let name = u64::from(self.node) << 48 | u64::from(self.boot) << 32 | self.names;
        // Some are longer than a packet.
        let length = 8 + if net.rng().chance(0.1) { net.rng().index(20_000) } else { net.rng().index(64) };
        let mut body = vec![0; length];
        body[..8].copy_from_slice(&name.to_le_bytes());
        net.note(Note::Sent { who, view: id, to, name });
        // One that is refused was not sent, and shall not come.
        self.with(now, net, |company, out| _ = company.send(now, seat, (id, to), &body, out));
    }

    fn view_of(&self, seat: Seat) -> Option<&View> {
        self.company.member(seat)?.view()
    }

    fn next_turn(&self, now: Instant, rng: &mut Rng) -> Instant {
        let mean = self.shared.options.talk;
        if mean == Duration::ZERO { Instant::NEVER } else { now + Duration(1 + rng.below(2 * mean.0)) }
    }

    /// Does what is due.
    fn act(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        while let Some((ticket, result)) = self.desk.settled(now) {
            self.with(now, net, |c, out| c.handle(now, Input::Completed { ticket, result }, out));
        }
        while let Some(i) = self.reborn.iter().position(|r| r.0 <= now) {
            let (_, wanted) = self.reborn.swap_remove(i);
            self.join(now, wanted, net);
        }
        while let Some((&seat, life)) = self.lives.iter_mut().find(|(_, l)| l.back_at <= now) {
            life.back_at = Instant::NEVER;
            self.rejoin(now, seat, net);
        }
        while let Some((&seat, life)) = self.lives.iter_mut().find(|(_, l)| l.paused_at <= now) {
            life.paused_at = Instant::NEVER;
            self.with(now, net, |company, out| company.tell(now, seat, view::Input::Paused, out));
        }
        if self.talk_at <= now {
            self.talk_at = self.next_turn(now, net.rng());
            self.talk(now, net);
        }
        for _ in 0..ROUNDS {
            if self.company.deadline() > now {
                break;
            }
            self.with(now, net, |company, out| company.expire(now, out));
        }
    }

    fn tell(&mut self, now: Instant, input: Input<'_>, net: &mut Ctx<'_, Self>) {
        self.with(now, net, |company, out| company.handle(now, input, out));
        self.act(now, net);
    }
}

fn number(wanted: Wanted) -> Option<Task> {
    if let Wanted::Again(task) = wanted { Some(task) } else { None }
}

impl Process for Host {
    type Command = Command;
    type Note = Note;

    fn start(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        let shared = Arc::clone(&self.shared);
        let is_first = self.boot == 1;
        for task in self.kept.clone() {
            if is_first && !shared.options.founded {
                self.settle_in(shared.seat_of(task), task);
                let view = shared.first.clone();
                self.with(now, net, |company, out| _ = company.enter(now, task, view, out));
            } else if is_first && task == Task(0) {
                self.settle_in(shared.seat_of(task), task);
                let size = shared.options.places.len() as u32;
                // What is drawn makes sense.
                self.with(now, net, |c, out| _ = c.found(now, shared.options.arity, size, out));
            } else {
                self.join(now, Wanted::Again(task), net);
            }
        }
        self.talk_at = self.next_turn(now, net.rng());
        self.act(now, net);
    }

    fn arrived(&mut self, now: Instant, from: Addr, mut packet: Buf, net: &mut Ctx<'_, Self>) {
        let (bytes, attached) = packet.parts_mut();
        self.tell(now, Input::Arrived { from, bytes, attached }, net);
    }

    fn expire(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        self.act(now, net);
    }

    fn deadline(&self) -> Instant {
        let lives = self.lives.values().flat_map(|l| [l.back_at, l.paused_at]);
        let own = lives.chain(self.reborn.iter().map(|r| r.0)).fold(self.talk_at, Instant::min);
        own.min(self.company.deadline()).min(self.desk.deadline())
    }

    fn stream(&mut self, now: Instant, addr: Addr, event: StreamEvent, net: &mut Ctx<'_, Self>) {
        let input = match event {
            StreamEvent::Opened => Input::Wired { addr },
            StreamEvent::Refused | StreamEvent::Closed | StreamEvent::Reset => Input::Tripped { addr },
        };
        self.tell(now, input, net);
    }

    fn refused(&mut self, now: Instant, addr: Addr, net: &mut Ctx<'_, Self>) {
        self.tell(now, Input::Refused { addr, code: Code::Unreachable }, net);
    }

    fn command(&mut self, now: Instant, command: Command, net: &mut Ctx<'_, Self>) {
        match command {
            // One that the injector refuses is a mistake of the scenario, and shows as a fault that does nothing.
            Command::Plain(rule) => _ = self.company.link_mut().tap().add(now, *rule),
            Command::HealPlain => self.company.link_mut().tap().heal_all(),
            Command::Part(which) => self.part(now, which, net),
            Command::Join { spare } => self.join(now, if spare { Wanted::Spare } else { Wanted::More }, net),
            Command::Doubt(hosts) => {
                let others = hosts.into_iter().filter(|&h| h != self.node).collect::<Vec<_>>();
                net.note(Note::Doubts(others.len() as u32));
                for host in others {
                    self.with(now, net, |company, out| company.doubt(now, Addr::Local(host), out));
                }
            }
            Command::Rest => self.talk_at = Instant::NEVER,
        }
        self.act(now, net);
    }
}
