//! A job that the manager runs, on this node: what the shepherd is told to do with ranks, and what it says of them (CM-2).
//!
//! ```text
//!   Prepare ──▶ Ready or Unfit     Go ──▶ view, ranks, Ended …     Stop ──▶ Cleared     Over ──▶ the end
//! ```
//! Nothing is started before all nodes of the job can start their share. The first view is made by each shepherd for itself, of what all
//! said when they were ready, so it costs no message.
//!
//! **The lease.** Ranks run as long as a majority of the manager's replicas was heard lately. Where it was not, the manager may start them
//! elsewhere, so they are killed here first.

use super::Shepherd;
use super::console::{Console, Feed};
use super::desk::{Caller, Desk};
use super::frames::{self, Frame, Words};
use super::news::Said;
use super::pmi::{Pmi, Setting};
use super::ranks::{Rank, Ranks};
use super::spawn::{self, Fits};
use super::talk::Talk;
use super::watch::Watch;
use super::words::{Crew, ToDaemon, ToShepherd, Work};
use nix::sys::resource::rlim_t;
use nix::sys::signal::Signal;
use phalanx_api::run::{OnFailure, RankEnd, ToConsole, ToConsoleShepherd};
use phalanx_core::{Addr, Duration, Instant};
use phalanx_protocol::company::Seat;
use phalanx_protocol::view::{Change, Person, Task, View, Wanted};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use tokio::sync::OwnedSemaphorePermit;

/// Ranks run so long without word of a lease.
const LEASE: Duration = Duration::from_secs(10);
/// What is left of an attempt is looked for so often until nothing is.
const LOOK: Duration = Duration::from_millis(20);
/// Frames for hosts that have no room are tried again so often.
const RETRY: Duration = Duration::from_millis(100);
/// A rank that starts again knocks so often …
const KNOCK: Duration = Duration::from_millis(100);
/// … and so long, before it counts as one that could not be started.
const KNOCKS: Duration = Duration::from_secs(10);
/// At the end home is waited for at most so long while it does not answer.
const FAREWELL: Duration = Duration::from_secs(10);
/// Bits of a job's number in its view that tell its attempts apart.
const ATTEMPT_BITS: u32 = 16;

/// How far an attempt is on this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Nothing was started.
    Ready,
    /// Ranks were started.
    Going,
    /// What is left is killed.
    Stopping,
    /// Nothing of it is left.
    Cleared,
}

/// A console that came before the daemon said that one may, and what was typed there.
pub(super) struct Early {
    caller: Caller,
    typed: Vec<(Vec<u8>, Option<OwnedSemaphorePermit>)>,
}

/// A rank that is to start again, and knocks at the view.
struct Knocking {
    rank: u32,
    life: u32,
    seat: Option<Seat>,
    next: Instant,
    until: Instant,
}

/// A job that the manager runs.
pub(super) struct Managed {
    pub(super) ranks: Ranks,
    /// What MPI libraries ask for.
    pub(super) pmi: Pmi,
    /// A barrier of theirs waits for a view that this host is in.
    pub(super) musters_again: bool,
    /// What is run, as it was said last.
    work: Work,
    fits: Option<Fits>,
    phase: Phase,
    /// The number that the first task here has in the attempt's view.
    first: Seat,
    /// Where the console is.
    home: Option<SocketAddr>,
    /// It is gone for sure, or does not answer.
    home_is_lost: bool,
    crews: Vec<Crew>,
    contacts: Vec<SocketAddr>,
    knocking: Vec<Knocking>,
    lease: Instant,
    /// The console, where it is here.
    pub(super) console: Option<Console>,
    /// Frames for which there was no room.
    unsent: VecDeque<(SocketAddr, Vec<u8>)>,
    /// Home was told that we have nothing more to say of this attempt.
    drained: Option<u32>,
    /// Home knows it.
    dismissed: bool,
    /// The job is over, since when.
    over: Option<Instant>,
    /// Hosts of which it was said that their ranks are gone.
    missed: BTreeSet<(SocketAddr, bool)>,
    /// The limits of open files as they were.
    files: Option<(rlim_t, rlim_t)>,
}

impl Managed {
    fn open(work: Work, now: Instant, watch: Watch) -> Self {
        Self {
            ranks: Ranks::new(watch),
            pmi: Pmi::new(setting("", &work)),
            musters_again: false,
            work,
            fits: None,
            phase: Phase::Cleared,
            first: 0,
            home: None,
            home_is_lost: false,
            crews: Vec::new(),
            contacts: Vec::new(),
            knocking: Vec::new(),
            lease: now + LEASE,
            console: None,
            unsent: VecDeque::new(),
            drained: None,
            dismissed: false,
            over: None,
            missed: BTreeSet::new(),
            files: spawn::open_many_files(),
        }
    }

    /// A rank of this attempt that was started here, and the number of its start.
    pub(super) fn here(&mut self, rank: u32) -> Option<(u64, &mut Rank)> {
        let attempt = self.work.attempt;
        let found = self.ranks.all.iter_mut().rfind(|(_, r)| r.rank == rank && r.attempt == attempt);
        found.map(|(&number, rank)| (number, rank))
    }

    /// Which attempt runs, or ran last.
    pub(super) fn attempt(&self) -> Option<u32> {
        Some(self.work.attempt)
    }

    /// Which job, and which attempt of it.
    pub(super) fn name(&self) -> (u64, u32) {
        (self.work.job, self.work.attempt)
    }

    /// Nothing of it goes on.
    pub(super) fn is_ending(&self) -> bool {
        self.over.is_some() || matches!(self.phase, Phase::Stopping | Phase::Cleared)
    }

    /// The name of each rank's node.
    fn nodes(&self) -> Vec<String> {
        let size = self.work.nodes.iter().flatten().map(|r| r.1).max().unwrap_or_default();
        (0..size).map(|rank| self.node_of(rank)).collect()
    }

    /// The place of a rank among those of its node, and how many there are.
    fn local(&self, rank: u32) -> (u32, u32) {
        let holds = |ranges: &&Vec<(u32, u32)>| ranges.iter().any(|&(from, to)| (from..to).contains(&rank));
        let ranges = self.work.nodes.iter().find(holds).map_or(&[][..], Vec::as_slice);
        let before = ranges.iter().map(|&(from, to)| rank.clamp(from, to) - from).sum();
        (before, ranges.iter().map(|&(from, to)| to - from).sum())
    }

    fn node_of(&self, rank: u32) -> String {
        let holds = |ranges: &Vec<(u32, u32)>| ranges.iter().any(|&(from, to)| (from..to).contains(&rank));
        let at = self.work.nodes.iter().position(holds);
        at.and_then(|at| self.work.names.get(at)).cloned().unwrap_or_default()
    }

    /// Ranks of the shepherd at an address as the attempt began, and the start of each.
    fn began_at(&self, addr: SocketAddr) -> BTreeMap<u32, Seat> {
        let crews = self.crews.iter().filter(|c| c.addr == addr);
        crews.flat_map(|c| ranks_of(c).zip(c.first..)).collect()
    }
}

fn setting(name: &str, work: &Work) -> Setting {
    let programs: Vec<u32> = work.programs.iter().map(|p| p.ranks).collect();
    let size = programs.iter().sum();
    let name = format!("{name}_{}_{}", work.job, work.attempt);
    Setting { name, size, nodes: work.nodes.clone(), programs, universe: size }
}

fn ranks_of(crew: &Crew) -> impl Iterator<Item = u32> {
    crew.ranks.iter().flat_map(|&(from, to)| from..to)
}

/// The view that all begin with.
fn first_view(arity: u32, crews: &[Crew]) -> Option<View> {
    let mut people = BTreeMap::new();
    for crew in crews {
        for (rank, boot) in ranks_of(crew).zip(crew.first..) {
            people.insert(rank, Person { host: Addr::Ip(crew.addr), boot, stint: 0 });
        }
    }
    let is_whole = people.keys().copied().eq(0..people.len() as u32);
    View::first(arity, people.into_values()).ok().filter(|_| is_whole)
}

/// What the daemon says.
impl Shepherd {
    pub(super) fn on_work(&mut self, words: ToShepherd) {
        match words {
            ToShepherd::Await { job, user } => self.on_await(job, user),
            ToShepherd::Prepare { work } => self.on_prepare(work),
            ToShepherd::Go { attempt, home, crews } => self.on_go(attempt, home, crews),
            ToShepherd::Respawn { attempt, life, home, contacts } => self.on_respawn(attempt, life, home, contacts),
            ToShepherd::Signal { signal } => self.on_signal(signal),
            ToShepherd::Lease { ms } => {
                let until = self.driver.now() + Duration::from_millis(ms);
                if let Some(work) = &mut self.work {
                    work.lease = until;
                }
            }
            ToShepherd::Stop { attempt, why } => self.on_stop(attempt, why),
            ToShepherd::Over { status, why } => self.on_over(status, why),
            ToShepherd::Answer { rank, answer } => self.on_answer(rank, answer),
            ToShepherd::Note { text } => self.note(text),
            _ => {}
        }
    }

    /// The console may come before the job's turn.
    fn on_await(&mut self, job: u64, user: Option<(u32, u32)>) {
        let now = self.driver.now();
        let nothing = Work {
            job,
            attempt: 0,
            life: 0,
            home: true,
            user,
            ranks: Vec::new(),
            nodes: Vec::new(),
            names: Vec::new(),
            programs: Vec::new(),
            on_failure: OnFailure::default(),
        };
        match self.take_up(&nothing, now) {
            Ok(managed) => {
                managed.console.get_or_insert_with(|| Console::new(now));
                self.admit_console();
            }
            Err(why) => tracing::error!(job = self.terms.name, "nobody can wait here for the job: {why}"),
        }
    }

    /// It is a job of the manager's from now on.
    fn take_up(&mut self, work: &Work, now: Instant) -> Result<&mut Managed, String> {
        if self.work.is_none() {
            let watch = Watch::open().map_err(|e| format!("cannot watch processes: {e}"))?;
            watch.wakes(self.driver.waker());
            if let Some(user) = work.user {
                Desk::admit(&self.socket, user).map_err(|e| format!("cannot let user {} in: {e}", user.0))?;
            }
            self.work = Some(Managed::open(work.clone(), now, watch));
        }
        self.work.as_mut().ok_or_else(|| "the shepherd has no work".to_owned())
    }

    fn on_prepare(&mut self, work: Work) {
        let (attempt, life, now) = (work.attempt, work.life, self.driver.now());
        match self.prepare(work, now) {
            Ok(first) => self.tell_daemons(&ToDaemon::Ready { attempt, life, addr: self.addr, first }),
            Err(why) => self.tell_daemons(&ToDaemon::Unfit { attempt, life, why }),
        }
        if self.work.as_ref().is_some_and(|w| w.console.is_some()) {
            self.admit_console();
        }
    }

    /// Looks whether the work can be done here; gives the number of the first task.
    fn prepare(&mut self, work: Work, now: Instant) -> Result<Seat, String> {
        let fits = spawn::fit(&work)?;
        let name = self.terms.name.clone();
        let managed = self.take_up(&work, now)?;
        let (is_same, is_first) = (managed.work.attempt == work.attempt, managed.fits.is_none());
        if is_same && !is_first && work.life == 0 {
            // Said by a daemon that has started anew.
            return Ok(managed.first);
        }
        if managed.ranks.are_any() && !is_same {
            return Err(format!("attempt {} of the job is not cleared here yet", managed.work.attempt));
        }
        if work.home && managed.console.is_none() {
            managed.console = Some(Console::new(now));
        }
        managed.fits = Some(fits);
        managed.lease = managed.lease.max(now + LEASE);
        if is_same && !is_first {
            managed.work = work;
            return Ok(self.driver.node().next_seat());
        }
        managed.ranks.forget(work.attempt);
        managed.phase = Phase::Ready;
        (managed.drained, managed.dismissed) = (None, false);
        managed.missed.clear();
        managed.knocking.clear();
        managed.crews.clear();
        if let Some(console) = &mut managed.console {
            console.begin();
        }
        // Two attempts of a job never hear each other.
        let instance = work.job << ATTEMPT_BITS | u64::from(work.attempt);
        (managed.pmi, managed.musters_again) = (Pmi::new(setting(&name, &work)), false);
        managed.work = work;
        self.instance = Some(instance);
        self.seats.clear();
        self.tasks.values_mut().for_each(|t| t.seat = None);
        let first = self.driver.act(|company, _, out| company.begin(instance, out));
        if let Some(managed) = &mut self.work {
            managed.first = first;
        }
        Ok(first)
    }

    fn on_go(&mut self, attempt: u32, home: Option<SocketAddr>, crews: Vec<Crew>) {
        let addr = self.addr;
        let Some(work) = self.work.as_mut().filter(|w| w.work.attempt == attempt && w.phase == Phase::Ready) else {
            return;
        };
        work.phase = Phase::Going;
        (work.home, work.home_is_lost) = (home, home.is_none());
        if let Some(console) = &mut work.console {
            console.hosts.extend(crews.iter().filter(|c| !c.ranks.is_empty()).map(|c| c.addr));
        }
        let ours = crews.iter().find(|c| c.addr == addr).map(|c| ranks_of(c).collect::<Vec<_>>()).unwrap_or_default();
        work.crews = crews;
        if ours.is_empty() {
            return;
        }
        let Some(view) = first_view(self.terms.arity, &work.crews) else {
            tracing::warn!(job = self.terms.name, "the manager's crews make no view");
            return;
        };
        let tasks: Vec<Task> = ours.iter().map(|&r| Task(r)).collect();
        let first = self.driver.act(|company, now, out| company.enter_all(now, &tasks, &view, out));
        let started: Vec<_> = ours.into_iter().zip(first..).collect();
        self.start(&started, 0);
    }

    /// Starts ranks whose seats are taken.
    fn start(&mut self, ranks: &[(u32, Seat)], life: u32) {
        let socket = self.socket.display().to_string();
        let Some(work) = &mut self.work else { return };
        let attempt = work.work.attempt;
        let mark = spawn::mark(&work.work, &self.cluster);
        for &(rank, seat) in ranks {
            let (here, beside) = work.local(rank);
            let wdir = work.work.programs.first().map_or("/", |p| p.wdir.as_str());
            let mut variables = vec![
                mark.clone(),
                ("MPI_LOCALRANKID", here.to_string()),
                ("MPI_LOCALNRANKS", beside.to_string()),
                ("PHALANX_JOB", self.terms.name.clone()),
                ("PHALANX_RANK", rank.to_string()),
                ("PHALANX_SIZE", self.terms.size.to_string()),
                ("PHALANX_ATTEMPT", attempt.to_string()),
                ("PHALANX_LIFE", life.to_string()),
                ("PHALANX_NODE", work.node_of(rank)),
                ("PHALANX_SHEPHERD", socket.clone()),
                ("PHALANX_CHECKPOINT_DIR", format!("{wdir}/phalanx-{}-{}", self.terms.name, work.work.job)),
            ];
            let fits = work.fits.as_ref();
            let missing = || std::io::Error::from(std::io::ErrorKind::NotFound);
            let talk = Talk::pair();
            if let Ok((_, theirs)) = &talk {
                variables.push(("PMI_FD", theirs.as_raw_fd().to_string()));
                variables.push(("PMI_RANK", rank.to_string()));
                variables.push(("PMI_SIZE", self.terms.size.to_string()));
            }
            let started = talk.and_then(|(ours, theirs)| {
                work.pmi.sit(rank);
                let fits = fits.ok_or_else(missing)?;
                let started = fits.start(&work.work, rank, &variables, work.files, Some(&theirs))?;
                Ok((started, Some(ours)))
            });
            let started = started.map_err(|e| RankEnd::Missing(e.raw_os_error().unwrap_or(nix::libc::EIO)));
            work.ranks.add((attempt, rank, life), Some(seat), started);
        }
        let ranks = ranks.iter().map(|r| r.0).collect();
        self.tell_home(&Words::Started { attempt, ranks });
        // Some may not have been started.
        self.on_deaths();
    }

    fn on_respawn(&mut self, attempt: u32, life: u32, home: Option<SocketAddr>, contacts: Vec<SocketAddr>) {
        let now = self.driver.now();
        let Some(work) = self.work.as_mut().filter(|w| w.work.attempt == attempt && w.work.life == life) else {
            return;
        };
        if work.is_ending() {
            return;
        }
        work.phase = Phase::Going;
        (work.home, work.home_is_lost, work.contacts) = (home, home.is_none(), contacts);
        (work.drained, work.dismissed) = (None, false);
        for &rank in &work.work.ranks {
            if work.ranks.find(attempt, rank).is_some_and(|r| r.life >= life) {
                continue;
            }
            work.knocking.push(Knocking { rank, life, seat: None, next: now, until: now + KNOCKS });
        }
        self.knock();
    }

    /// Ranks that are to start again are let into the view first.
    fn knock(&mut self) {
        let now = self.driver.now();
        let Some(work) = &mut self.work else { return };
        let contacts: Vec<Addr> = work.contacts.iter().copied().map(Addr::Ip).collect();
        let mut late = Vec::new();
        work.knocking.retain_mut(|k| {
            if k.until <= now {
                late.push((k.rank, k.life, k.seat));
                return false;
            }
            if k.seat.is_none() && k.next <= now {
                let wanted = Wanted::Again(Task(k.rank));
                k.seat = Some(self.driver.act(|company, now, out| company.join(now, wanted, &contacts, out)));
            }
            true
        });
        for (rank, life, seat) in late {
            let attempt = work.work.attempt;
            work.ranks.add((attempt, rank, life), None, Err(RankEnd::Missing(nix::libc::ETIMEDOUT)));
            if let Some(seat) = seat {
                self.driver.act(|company, now, out| company.part(now, seat, out));
            }
        }
        self.say_ends();
    }

    fn on_signal(&mut self, signal: i32) {
        if let (Some(work), Ok(signal)) = (&self.work, Signal::try_from(signal)) {
            work.ranks.signal(signal);
        }
    }

    fn on_stop(&mut self, attempt: u32, why: String) {
        let Some(work) = &mut self.work else { return self.tell_daemons(&ToDaemon::Cleared { attempt }) };
        if work.work.attempt != attempt || work.phase == Phase::Cleared {
            if work.work.attempt == attempt && work.fits.is_some() {
                work.phase = Phase::Cleared;
            }
            return self.tell_daemons(&ToDaemon::Cleared { attempt });
        }
        let is_news = work.phase != Phase::Stopping;
        work.phase = Phase::Stopping;
        work.knocking.clear();
        work.ranks.kill();
        if is_news && !why.is_empty() {
            self.note(why);
        }
        self.clear();
    }

    fn on_over(&mut self, status: i32, why: String) {
        let now = self.driver.now();
        let Some(work) = &mut self.work else {
            // Nothing was ever prepared.
            self.is_done = true;
            return;
        };
        if work.over.is_some() {
            return;
        }
        work.over = Some(now);
        work.knocking.clear();
        work.ranks.kill();
        if work.phase != Phase::Cleared {
            work.phase = Phase::Stopping;
        }
        if !why.is_empty() {
            self.note(why);
        }
        let Some(console) = self.work.as_mut().and_then(|w| w.console.as_mut()) else { return self.clear() };
        console.over(status);
        // Who has said everything goes; who is dead is found out.
        for host in console.hosts.iter().copied().filter(|&h| h != self.addr).collect::<Vec<_>>() {
            self.tell_host(host, frames::words(&Words::Finish));
        }
        self.clear();
    }

    pub(super) fn note(&mut self, text: String) {
        if let Some(console) = self.work.as_mut().and_then(|w| w.console.as_mut()) {
            console.say(&ToConsole::Note { text }, &mut self.desk);
        }
    }

    pub(super) fn tell_daemons(&mut self, words: &ToDaemon) {
        for &daemon in &self.daemons {
            self.desk.say(daemon, words);
        }
    }

    /// A daemon that has started anew is told how things are.
    pub(super) fn greet_again(&mut self) {
        let Some(work) = &self.work else { return };
        let (attempt, life) = (work.work.attempt, work.work.life);
        let (phase, first, fits) = (work.phase, work.first, work.fits.is_some());
        let is_deserted = work.console.as_ref().is_some_and(Console::is_deserted);
        if phase == Phase::Ready && fits && life == 0 {
            self.tell_daemons(&ToDaemon::Ready { attempt, life, addr: self.addr, first });
        }
        self.say_all_ends();
        if phase == Phase::Cleared && fits {
            self.tell_daemons(&ToDaemon::Cleared { attempt });
        }
        if is_deserted {
            self.tell_daemons(&ToDaemon::Deserted);
        }
    }
}

/// What has to be done in time.
impl Shepherd {
    /// When [`Shepherd::tend_work`] has something to do.
    pub(super) fn next_deed(&self) -> Instant {
        let Some(work) = &self.work else { return Instant::NEVER };
        let mut next = work.ranks.deadline();
        if work.phase == Phase::Going && work.ranks.are_any() {
            next = next.min(work.lease);
        }
        if work.phase == Phase::Stopping {
            next = next.min(self.driver.now() + LOOK);
        }
        if !work.unsent.is_empty() {
            next = next.min(self.driver.now() + RETRY);
        }
        for k in &work.knocking {
            next = next.min(k.until).min(if k.seat.is_none() { k.next } else { Instant::NEVER });
        }
        if let Some(end) = work.over.map(|over| over + FAREWELL).filter(|&end| end > self.driver.now()) {
            next = next.min(end);
        }
        next.min(work.console.as_ref().map_or(Instant::NEVER, Console::deadline))
    }

    pub(super) fn tend_work(&mut self) {
        self.tend_ranks();
        let now = self.driver.now();
        let Some(work) = &mut self.work else { return };
        let is_running = work.phase == Phase::Going && work.ranks.are_any();
        if is_running && work.lease <= now {
            tracing::warn!(job = self.terms.name, "the manager was not heard for its lease: the ranks here are ended");
            work.phase = Phase::Stopping;
            work.ranks.kill();
        }
        if work.console.as_mut().is_some_and(|c| c.expire(now)) {
            self.tell_daemons(&ToDaemon::Deserted);
        }
        self.let_go();
        self.knock();
        self.clear();
        self.send_again();
        self.serve_console();
        self.say_drained();
        self.is_done |= self.is_over();
    }

    /// Nothing is left of an attempt that was stopped: says so once it is true.
    fn clear(&mut self) {
        let Some(work) = self.work.as_mut().filter(|w| w.phase == Phase::Stopping) else { return };
        if work.ranks.are_any() {
            work.ranks.kill();
            self.on_deaths();
        }
        let Some(work) = self.work.as_mut().filter(|w| !w.ranks.are_any()) else { return };
        work.phase = Phase::Cleared;
        let attempt = work.work.attempt;
        work.ranks.all.values_mut().for_each(|r| r.seat = None);
        self.seats.clear();
        // Nobody is left here to speak for.
        for seat in self.driver.node().members().map(|(seat, _)| seat).collect::<Vec<_>>() {
            self.driver.act(|company, now, out| company.part(now, seat, out));
        }
        self.say_ends();
        self.tell_daemons(&ToDaemon::Cleared { attempt });
    }

    /// The job is over, and nobody here has anything to say.
    fn is_over(&mut self) -> bool {
        let now = self.driver.now();
        let Some(work) = self.work.as_mut().filter(|w| w.phase == Phase::Cleared) else { return false };
        let Some(over) = work.over else { return false };
        match &mut work.console {
            Some(console) => console.is_done(&mut self.desk) && work.unsent.is_empty(),
            None => {
                let is_heard = work.dismissed || work.home.is_none() || work.home_is_lost;
                // Home may wait for a console that reads slowly, so silence alone is no reason to go.
                is_heard || (work.ranks.are_drained() && over + FAREWELL <= now)
            }
        }
    }
}

/// The console, and what shepherds say to each other.
impl Shepherd {
    /// A console that came before the daemon's word.
    fn admit_console(&mut self) {
        if let Some(Early { caller, typed }) = self.early_console.take() {
            self.on_console(caller, ToConsoleShepherd::Attach);
            typed.into_iter().for_each(|(bytes, place)| self.on_typed(caller, bytes, place));
        }
    }

    pub(super) fn on_console(&mut self, caller: Caller, words: ToConsoleShepherd) {
        if self.work.as_ref().is_none_or(|w| w.console.is_none()) && words == ToConsoleShepherd::Attach {
            self.early_console = Some(Early { caller, typed: Vec::new() });
        }
        let Some(console) = self.work.as_mut().and_then(|w| w.console.as_mut()) else { return };
        match words {
            ToConsoleShepherd::Attach => {
                if !console.attach(caller, &mut self.desk) {
                    let text = "the job has a console already".to_owned();
                    self.desk.say(caller, &ToConsole::Note { text });
                    self.desk.show_out(caller);
                }
            }
            ToConsoleShepherd::Signal { signal } if console.is(caller) => {
                if !self.daemons.is_empty() {
                    return self.tell_daemons(&ToDaemon::Signalled { signal });
                }
                // Nobody is there to ask the manager; whoever typed it wants it now.
                for host in console.hosts.clone() {
                    self.tell_host(host, frames::words(&Words::Signal { signal }));
                }
            }
            ToConsoleShepherd::Signal { .. } => {}
        }
    }

    pub(super) fn on_typed(&mut self, caller: Caller, bytes: Vec<u8>, place: Option<OwnedSemaphorePermit>) {
        // How much waits is bounded by the places that its caller has.
        if let Some(early) = self.early_console.as_mut().filter(|e| e.caller == caller) {
            return early.typed.push((bytes, place));
        }
        if let Some(console) = self.work.as_mut().and_then(|w| w.console.as_mut()).filter(|c| c.is(caller)) {
            console.on_input(bytes, place);
        }
    }

    pub(super) fn on_took(&mut self, caller: Caller) {
        if let Some(console) = self.work.as_mut().and_then(|w| w.console.as_mut()).filter(|c| c.is(caller)) {
            console.on_took(&mut self.desk);
        }
    }

    /// True when it was the console.
    pub(super) fn on_console_gone(&mut self, caller: Caller) -> bool {
        if self.early_console.take_if(|e| e.caller == caller).is_some() {
            return true;
        }
        let Some(work) = &mut self.work else { return false };
        let Some(console) = work.console.as_mut().filter(|c| c.is(caller)) else { return false };
        if console.on_gone() {
            self.tell_daemons(&ToDaemon::Deserted);
        }
        true
    }

    /// What was taken is told to whose it was, what was typed to rank 0.
    fn serve_console(&mut self) {
        loop {
            let Some(console) = self.work.as_mut().and_then(|w| w.console.as_mut()) else { return };
            let taken = console.taken();
            let feeds = console.feed(&mut self.desk);
            if taken.is_empty() && feeds.is_empty() {
                return;
            }
            for (host, bytes) in taken {
                self.tell_host(host, frames::words(&Words::Taken { bytes }));
            }
            for feed in feeds {
                match feed {
                    Feed::Bytes(host, bytes) => self.tell_host(host, frames::input(&bytes)),
                    Feed::End(host) => self.tell_host(host, frames::words(&Words::InputEnd)),
                }
            }
        }
    }

    pub(super) fn tell_home(&mut self, words: &Words) {
        self.tell_home_frame(frames::words(words));
    }

    pub(super) fn tell_home_frame(&mut self, frame: Vec<u8>) {
        let Some(work) = &mut self.work else { return };
        match work.home.filter(|_| !work.home_is_lost) {
            Some(home) => self.tell_host(home, frame),
            // Nobody is there to be told.
            None => work.ranks.unacknowledged = 0,
        }
    }

    fn tell_host(&mut self, host: SocketAddr, frame: Vec<u8>) {
        if host == self.addr {
            return self.on_frame(host, &frame);
        }
        let Some(work) = &mut self.work else { return };
        // What waits goes first.
        if !work.unsent.iter().any(|(to, _)| *to == host) {
            let sent = self.driver.act(|company, now, out| company.tell_host(now, Addr::Ip(host), &frame, out));
            if sent.is_ok() {
                return;
            }
        }
        work.unsent.push_back((host, frame));
    }

    fn send_again(&mut self) {
        let Some(work) = &mut self.work else { return };
        let mut full = BTreeSet::new();
        work.unsent.retain(|(host, frame)| {
            let is_sent = !full.contains(host)
                && self.driver.act(|company, now, out| company.tell_host(now, Addr::Ip(*host), frame, out)).is_ok();
            if !is_sent {
                full.insert(*host);
            }
            !is_sent
        });
    }

    pub(super) fn on_frame(&mut self, from: SocketAddr, frame: &[u8]) {
        let Some(frame) = frames::read(frame) else {
            tracing::warn!(%from, "a frame that makes no sense");
            return;
        };
        match frame {
            Frame::Output { rank, stream, bytes } => {
                if let Some(console) = self.work.as_mut().and_then(|w| w.console.as_mut()) {
                    console.on_output(from, rank, stream, bytes, &mut self.desk);
                }
            }
            Frame::Input(bytes) => self.on_input(bytes, false),
            Frame::Words(words) => self.on_words(from, words),
        }
    }

    fn on_words(&mut self, from: SocketAddr, words: Words) {
        match words {
            Words::InputEnd => return self.on_input(&[], true),
            Words::Taken { bytes } => return self.on_taken(bytes),
            Words::Signal { signal } => return self.on_signal(signal),
            Words::Finish => {
                if let Some(work) = &mut self.work {
                    work.drained = None;
                }
                return;
            }
            Words::Dismissed { attempt } => {
                if let Some(work) = self.work.as_mut().filter(|w| w.work.attempt == attempt) {
                    work.dismissed = true;
                }
                return;
            }
            _ => {}
        }
        let Some(work) = &mut self.work else { return };
        let nodes = work.nodes();
        let Some(console) = &mut work.console else { return };
        match words {
            Words::Started { attempt, ranks } => console.on_started(from, attempt, &ranks, &nodes, &mut self.desk),
            Words::Ended { rank, end } => console.on_ended(rank, end, &mut self.desk),
            Words::Fed { bytes } => console.on_fed(bytes),
            Words::Drained { attempt } => {
                // Of one that has ranks of a later attempt this is not the last word.
                if attempt == work.work.attempt || !work.crews.iter().any(|c| c.addr == from) {
                    console.hosts.remove(&from);
                }
                self.tell_host(from, frames::words(&Words::Dismissed { attempt }));
            }
            _ => {}
        }
    }

    /// No rank is left here and home has all that they wrote: said once, and again when home asks.
    fn say_drained(&mut self) {
        let Some(work) = &mut self.work else { return };
        let attempt = work.work.attempt;
        let is_idle = matches!(work.phase, Phase::Going | Phase::Cleared) && work.knocking.is_empty();
        if is_idle && work.home.is_some() && work.ranks.are_drained() && work.drained != Some(attempt) {
            work.drained = Some(attempt);
            self.tell_home(&Words::Drained { attempt });
        }
    }
}

/// The view.
impl Shepherd {
    /// What a member decided whose task is a rank that was started here, or is about to be. True when nobody else needs to hear it.
    pub(super) fn on_rank_said(&mut self, seat: Seat, said: &Said) -> bool {
        match said {
            Said::Host(Addr::Ip(from), bytes) => self.on_frame(*from, bytes),
            Said::HostGone(Addr::Ip(addr), certain) => self.on_host_gone(*addr, *certain),
            Said::Host(..) | Said::HostGone(..) => {}
            Said::Writable => self.send_again(),
            Said::Mustered(outcome) => self.on_mustered(outcome.as_ref()),
            Said::Installed { view, change } => {
                self.on_let_in(seat);
                self.muster_again();
                if let Some(change) = change {
                    self.look_for_missed(seat, view, change);
                }
                return false;
            }
            Said::Refused(_) => return self.on_not_let_in(seat),
            Said::Pause => {
                let is_alone = self.work.is_some() && !self.seats.contains_key(&seat);
                if is_alone {
                    self.driver.act(|company, now, out| {
                        company.tell(now, seat, phalanx_protocol::view::Input::Paused, out);
                    });
                }
                return is_alone;
            }
            Said::Excluded(_) => {
                // It was only slow. A task that is there decides by itself.
                let is_alone = self.work.is_some() && !self.seats.contains_key(&seat);
                if is_alone {
                    self.driver.act(|company, now, out| company.rejoin(now, seat, out));
                }
                return is_alone;
            }
            Said::Aborted => {
                let Some(work) = &mut self.work else { return false };
                if let Some(pid) = work.ranks.by_seat(seat).filter(|r| r.runs()).and_then(|r| r.pid) {
                    // The part of the job that it is in ends.
                    let _ = nix::sys::signal::killpg(pid, Signal::SIGKILL);
                }
                return false;
            }
            _ => return false,
        }
        true
    }

    fn on_let_in(&mut self, seat: Seat) {
        let Some(work) = &mut self.work else { return };
        let Some(at) = work.knocking.iter().position(|k| k.seat == Some(seat)) else { return };
        let Knocking { rank, life, .. } = work.knocking.swap_remove(at);
        self.start(&[(rank, seat)], life);
    }

    fn on_not_let_in(&mut self, seat: Seat) -> bool {
        let now = self.driver.now();
        let Some(knocking) = self.work.as_mut().and_then(|w| w.knocking.iter_mut().find(|k| k.seat == Some(seat)))
        else {
            return false;
        };
        (knocking.seat, knocking.next) = (None, now + KNOCK);
        self.driver.act(|company, now, out| company.part(now, seat, out));
        true
    }

    /// The root of a view says who is not in it any more though nobody said that it ended.
    fn look_for_missed(&mut self, seat: Seat, view: &View, change: &Change) {
        if self.work.is_none() {
            return;
        }
        let company = self.driver.node();
        let Some(me) = company.member(seat).map(|m| m.me()) else { return };
        if view.tree().root() != Some(me) {
            return;
        }
        let mut missed: BTreeMap<(SocketAddr, bool), Vec<(u32, Seat)>> = BTreeMap::new();
        for &task in &change.failed {
            let Some(person) = view.person(task).filter(|p| p.host != Addr::Ip(self.addr)) else { continue };
            let Addr::Ip(host) = person.host else { continue };
            let proven = company.dead().contains(&Addr::Ip(host));
            let proved = company.link().find(Addr::Ip(host)).and_then(|node| company.link().whereabouts(node)?.1);
            // Where its host is heard a rank has ended by itself, and its shepherd says how.
            if proven || proved.is_none() {
                missed.entry((host, proven)).or_default().push((task.0, person.boot));
            }
        }
        for ((host, proven), ranks) in missed {
            self.miss(host, ranks, proven);
        }
    }

    fn miss(&mut self, host: SocketAddr, ranks: Vec<(u32, Seat)>, proven: bool) {
        let Some(work) = &mut self.work else { return };
        if work.is_ending() || ranks.is_empty() || !work.missed.insert((host, proven)) {
            return;
        }
        let attempt = work.work.attempt;
        self.tell_daemons(&ToDaemon::Missed { attempt, ranks, proven });
    }

    fn on_host_gone(&mut self, host: SocketAddr, certain: bool) {
        let Some(work) = &mut self.work else { return };
        let is_over = work.over.is_some();
        if work.home == Some(host) && (certain || is_over) {
            work.home_is_lost = true;
            work.ranks.unacknowledged = 0;
            self.on_taken(0);
        }
        let Some(work) = &mut self.work else { return };
        if certain {
            work.unsent.retain(|(to, _)| *to != host);
        }
        let began = work.began_at(host);
        if let Some(console) = &mut work.console
            && (certain || is_over)
        {
            console.hosts.remove(&host);
        }
        if certain {
            let ranks = self.starts_at(host, began);
            self.miss(host, ranks, true);
        }
    }

    /// Ranks at a host, and the start of each: as the newest view here knows them, else as the attempt began.
    fn starts_at(&self, host: SocketAddr, mut starts: BTreeMap<u32, Seat>) -> Vec<(u32, Seat)> {
        let views = self.driver.node().members().filter_map(|(_, m)| m.view());
        if let Some(view) = views.max_by_key(|v| v.id().number) {
            let tasks = (0..view.next_task().0).filter_map(|t| Some((t, view.person(Task(t))?)));
            starts.extend(tasks.filter(|(_, p)| p.host == Addr::Ip(host)).map(|(t, p)| (t, p.boot)));
        }
        starts.into_iter().collect()
    }
}
