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
use super::console::Console;
use super::desk::admit;
use super::frames::{self, Words};
use super::notice::{Notices, Page, placed};
use super::pmi::{Pmi, Setting};
use super::ranks::{Rank, Ranks};
use super::spawn::{self, Fits};
use super::talk::Talk;
use super::watch::Watch;
use super::words::{Crew, ToDaemon, ToShepherd, Work};
use nix::sys::resource::rlim_t;
use nix::sys::signal::Signal;
use phalanx_api::notice;
use phalanx_api::run::{OnFailure, RankEnd, ToConsole};
use phalanx_core::{Addr, Duration, Instant};
use phalanx_protocol::company::Seat;
use phalanx_protocol::view::{Person, Task, View};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};

/// Ranks run so long without word of a lease.
const LEASE: Duration = Duration::from_secs(10);
/// What is left of an attempt is looked for so often until nothing is.
const LOOK: Duration = Duration::from_millis(20);
/// Frames for hosts that have no room are tried again so often.
const RETRY: Duration = Duration::from_millis(100);
/// A rank that starts again knocks so long before it counts as one that could not be started.
const KNOCKS: Duration = Duration::from_secs(10);
/// At the end home is waited for at most so long while it does not answer.
const FAREWELL: Duration = Duration::from_secs(10);
/// Bits of a job's number in its view that tell its attempts apart.
const ATTEMPT_BITS: u32 = 16;

/// How far an attempt is on this node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Nothing was started.
    Ready,
    /// Ranks were started.
    Going,
    /// What is left is killed.
    Stopping,
    /// Nothing of it is left.
    Cleared,
}

/// A rank that is to start again, and knocks at the view.
pub(super) struct Knocking {
    pub(super) rank: u32,
    pub(super) life: u32,
    pub(super) seat: Option<Seat>,
    pub(super) next: Instant,
    pub(super) until: Instant,
}

/// A job that the manager runs.
pub(super) struct Managed {
    pub(super) ranks: Ranks,
    /// What MPI libraries ask for.
    pub(super) pmi: Pmi,
    /// A barrier of theirs waits for a view that this host is in.
    pub(super) musters_again: bool,
    /// What is run, as it was said last.
    pub(super) work: Work,
    pub(super) fits: Option<Fits>,
    pub(super) phase: Phase,
    /// The number that the first task here has in the attempt's view.
    pub(super) first: Seat,
    /// Where the console is.
    pub(super) home: Option<SocketAddr>,
    /// It is gone for sure, or does not answer.
    pub(super) home_is_lost: bool,
    pub(super) crews: Vec<Crew>,
    pub(super) contacts: Vec<SocketAddr>,
    pub(super) knocking: Vec<Knocking>,
    pub(super) lease: Instant,
    /// The console, where it is here.
    pub(super) console: Option<Console>,
    /// Frames for which there was no room.
    pub(super) unsent: VecDeque<(SocketAddr, Vec<u8>)>,
    /// Home was told that we have nothing more to say of this attempt.
    pub(super) drained: Option<u32>,
    /// Home knows it.
    pub(super) dismissed: bool,
    /// The job is over, since when.
    pub(super) over: Option<Instant>,
    /// Hosts that did not answer.
    pub(super) silent: BTreeSet<SocketAddr>,
    /// Hosts of which it was said that their ranks are gone.
    pub(super) missed: BTreeSet<(SocketAddr, bool)>,
    /// The limits of open files as they were.
    pub(super) files: Option<(rlim_t, rlim_t)>,
}

impl Managed {
    fn open(work: Work, now: Instant, watch: Watch, notices: Notices) -> Self {
        Self {
            ranks: Ranks::new(watch, notices),
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
            silent: BTreeSet::new(),
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
    pub(super) fn nodes(&self) -> Vec<String> {
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
}

fn setting(name: &str, work: &Work) -> Setting {
    let programs: Vec<u32> = work.programs.iter().map(|p| p.ranks).collect();
    let size = programs.iter().sum();
    let name = format!("{name}_{}_{}", work.job, work.attempt);
    Setting { name, size, nodes: work.nodes.clone(), programs, universe: size, puts: work.puts.clone() }
}

pub(super) fn ranks_of(crew: &Crew) -> impl Iterator<Item = u32> {
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
            ToShepherd::Attend { rank, job, socket } => self.on_attend(rank, job, &socket),
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
            puts: Vec::new(),
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
            let watched = Watch::open().and_then(|watch| Ok((watch.file()?, watch)));
            let (file, watch) = watched.map_err(|e| format!("cannot watch processes: {e}"))?;
            self.driver.platform_mut().wait_beside(file);
            let notices = Notices::new(self.driver.waker());
            if let Some(user) = work.user {
                admit(&self.socket, user).map_err(|e| format!("cannot let user {} in: {e}", user.0))?;
            }
            self.work = Some(Managed::open(work.clone(), now, watch, notices));
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
        managed.silent.clear();
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
        let now = self.driver.now();
        // One that was prepared a second time, after the first had died, is not meant.
        let is_meant = |w: &Managed| crews.iter().all(|c| c.addr != addr || c.first == w.first);
        let may_go =
            |w: &&mut Managed| w.work.attempt == attempt && w.phase == Phase::Ready && w.lease > now && is_meant(w);
        // One whose lease was over since may have been given up: its ranks start elsewhere.
        let Some(work) = self.work.as_mut().filter(may_go) else { return };
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
        let started: Vec<_> = ours.into_iter().zip((first..).map(Some)).collect();
        self.start(&started, 0);
    }

    /// Starts ranks whose seats are taken.
    pub(super) fn start(&mut self, ranks: &[(u32, Option<Seat>)], life: u32) {
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
            // Without it a death is told later.
            let page = Notices::are_there().then(Page::new).and_then(Result::ok);
            let page = page.and_then(|(page, file)| {
                variables.push((notice::VARIABLE, placed(&file).ok()?));
                Some((page, file))
            });
            let started = talk.and_then(|(ours, theirs)| {
                work.pmi.sit(rank);
                let fits = fits.ok_or_else(missing)?;
                let inherited = [Some(theirs.as_fd()), page.as_ref().map(|p| p.1.as_fd())];
                let inherited: Vec<_> = inherited.into_iter().flatten().collect();
                let started = fits.start(&work.work, rank, &variables, work.files, &inherited)?;
                Ok((started, Some(ours)))
            });
            let started = started.map_err(|e| RankEnd::Missing(e.raw_os_error().unwrap_or(nix::libc::EIO)));
            work.ranks.add((attempt, rank, life), seat, started, page.map(|p| p.0));
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
        if work.lease <= now || work.is_ending() {
            return;
        }
        work.phase = Phase::Going;
        (work.home, work.home_is_lost, work.contacts) = (home, home.is_none(), contacts);
        (work.drained, work.dismissed) = (None, false);
        let again = |rank: &u32| work.ranks.find(attempt, *rank).is_none_or(|r| r.life < life);
        let ranks: Vec<u32> = work.work.ranks.iter().copied().filter(again).collect();
        if work.contacts.is_empty() && self.driver.node().members().all(|(_, m)| m.view().is_none()) {
            // All others have ended: there is no view to be let into.
            let alone: Vec<(u32, Option<Seat>)> = ranks.into_iter().map(|rank| (rank, None)).collect();
            return self.start(&alone, life);
        }
        for rank in ranks {
            work.knocking.push(Knocking { rank, life, seat: None, next: now, until: now + KNOCKS });
        }
        self.knock();
    }

    pub(super) fn on_signal(&mut self, signal: i32) {
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
        work.ranks.spawned.clear();
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
        if status != 0 {
            work.ranks.spawned.clear();
        }
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
