//! The shepherd: one process for each job and node. It holds the job's sockets and tripwires and speaks in the view for the tasks of its node.
//!
//! ```text
//!   task ─┐                         ┌─▶ other shepherds
//!   task ─┼─▶ desk ─▶ Shepherd ─▶ Driver<Company>
//!   daemon ┘                        └─▶ tripwires
//! ```
//!
//! The daemon starts it, tells it the cluster's keys and where other tasks of the job are, and may die: the job does not notice. A daemon
//! that starts anew finds its shepherds by their sockets. A shepherd without tasks ends.
//!
//! | file | idea |
//! |---|---|
//! | `desk` | the Unix socket |
//! | [`news`] | what the company decides |
//! | [`notice`] | deaths that are known before they are over |
//! | [`pmi`] | what MPI programs ask for |
//! | [`words`] | what daemon and shepherd say to each other |
//! | `tasks` | what tasks ask for, and are told |
//! | `reduce` | their barriers, sums and gathers |
//! | `work` | a job that the manager runs: what is to be done, and what came of it |
//! | `ranks` | its processes here, their pipes and ends |
//! | `spawn` | how they are started |
//! | `exec` | without a copy of us |
//! | `spawned` | jobs that they have started themselves |
//! | [`sweep`] | how nothing of them stays |
//! | `talk` | what their MPI libraries ask for, over sockets |
//! | `watch` | waiting for their files and deaths |
//! | `console` | home: what all ranks write, and what rank 0 reads |
//! | `home` | what the shepherds of a job tell each other, and home the console |
//! | `frames` | the bytes of it |
//! | `seats` | ranks in the job's view |

mod console;
mod desk;
mod exec;
mod frames;
mod home;
pub mod news;
pub mod notice;
pub mod pmi;
mod ranks;
mod reduce;
mod seats;
mod spawn;
mod spawned;
pub mod sweep;
mod talk;
mod tasks;
mod watch;
pub mod words;
mod work;

use crate::agent::StartError;
use crate::agent::settings::listen;
use crate::store::{self, Key, unhex};
use crate::wires::Wires;
use crate::{Driver, Platform, Udp};
use desk::{Caller, Desk, Heard, Spoken};
pub(crate) use desk::{admit, bind};
use news::News;
use nix::sys::prctl::set_child_subreaper;
use nix::unistd::{geteuid, setsid};
use phalanx_api::jobs::{JobCounts, JobView, TaskInfo, TaskState};
use phalanx_core::{Addr, Boot, Duration, Instant};
use phalanx_protocol::company::{Company, Gift, Seat};
use phalanx_protocol::link::Link;
use phalanx_protocol::link::seal::KeyRing;
use phalanx_protocol::link::sign::Signer;
use phalanx_protocol::view::tree::Tree;
use phalanx_protocol::view::{self, OnPartition, View};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tasks::Tasked;
use words::{Place, Terms, ToDaemon, ToShepherd};
use work::Managed;

/// The largest datagram between shepherds.
const LARGEST: u16 = 1400;
/// A shepherd without tasks waits so long for one, and for what it said last to arrive.
const LINGER: Duration = Duration::from_secs(3);
/// Where nobody is left to say good-bye to, or most of the job cannot be reached, it goes after this time.
const FAREWELL: Duration = Duration::from_secs(10);
/// One that nobody has told anything.
const FORLORN: std::time::Duration = std::time::Duration::from_secs(30);
/// One whose daemon is gone, and where nothing runs or waits to be read: the manager has given up what was here when its lease was over.
const ORPHANED: Duration = Duration::from_secs(20);
/// What is heard before the network is looked at again.
const REQUESTS: usize = 64;
/// What was said last is written within this time, where somebody reads it.
const LAST_WORDS: std::time::Duration = std::time::Duration::from_secs(1);
/// Between two looks whether it is.
const LOOK: std::time::Duration = std::time::Duration::from_millis(1);
/// Starts of tasks on one host that are told apart by a second.
const EACH_SECOND: u64 = 16;

/// Why a shepherd ended before its time.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShepherdError {
    /// Its socket.
    #[error("cannot listen at {0}: {1}")]
    Socket(String, std::io::Error),
    /// Its network.
    #[error(transparent)]
    Start(#[from] StartError),
    /// What the daemon said makes no sense.
    #[error("the daemon gave no keys that make sense")]
    Keys,
    /// Its processes.
    #[error("cannot be the parent of processes: {0}")]
    Processes(std::io::Error),
    /// The network itself.
    #[error("the network failed: {0}")]
    Network(phalanx_core::Code),
}

/// A job's tasks on this node.
struct Shepherd {
    desk: Desk,
    socket: PathBuf,
    terms: Terms,
    cluster: String,
    driver: Driver<Udp, Company>,
    wires: Wires,
    addr: SocketAddr,
    daemons: Vec<Caller>,
    /// Which job of that name: known once one of its tasks was found, or it was founded here.
    instance: Option<u64>,
    /// Somebody here has been in a view of it.
    was_in: bool,
    /// Where other tasks are. `None` until the daemon has looked.
    places: Option<Vec<Place>>,
    tasks: BTreeMap<Caller, Tasked>,
    seats: BTreeMap<Seat, Caller>,
    /// What the daemons were told last.
    told_place: Option<Place>,
    /// Since when there are no tasks.
    alone_since: Option<Instant>,
    orphaned_since: Option<Instant>,
    /// What the manager wants to be run here.
    work: Option<Managed>,
    /// The manager's job is over, and nothing of it is left here.
    is_done: bool,
    /// A console that came before the daemon said that one may.
    early_console: Option<console::Early>,
}

/// Runs a shepherd until its job has no tasks here any more.
///
/// # Errors
/// See [`ShepherdError`].
pub fn run(socket: &Path) -> Result<(), ShepherdError> {
    // Neither what is typed at the daemon's terminal is meant for it, nor what that shares with others. One that leads a group stays there.
    let _ = setsid();
    // Before there is another thread.
    watch::hold_deaths().map_err(|e| ShepherdError::Processes(e.into()))?;
    // What ranks leave behind is ours.
    set_child_subreaper(true).map_err(|e| ShepherdError::Processes(e.into()))?;
    let mut desk = Desk::open(socket).map_err(|e| ShepherdError::Socket(socket.display().to_string(), e))?;
    let mut early = Vec::new();
    // Nothing can be done before a daemon has said what the job is.
    let Some((daemon, begin)) = wait_for_daemon(&mut desk, &mut early) else { return Ok(()) };
    let mut shepherd = Shepherd::begin(desk, socket, daemon, begin)?;
    early.into_iter().for_each(|spoken| shepherd.hear(spoken));
    let done = shepherd.tend();
    shepherd.take_leave();
    // A daemon that starts anew must not find it.
    let _ = std::fs::remove_file(socket);
    done
}

/// The first daemon that says what the job is; what others say meanwhile is kept.
fn wait_for_daemon(desk: &mut Desk, early: &mut Vec<Spoken>) -> Option<(Caller, ToShepherd)> {
    loop {
        match desk.spoken.recv_timeout(FORLORN).ok()? {
            Spoken { caller, heard: Heard::Came(line), .. } => desk.came(caller, line),
            Spoken { caller, heard: Heard::Daemon(begin @ ToShepherd::Begin { .. }), .. } => {
                return Some((caller, begin));
            }
            other => early.push(other),
        }
    }
}

fn ring(keys: &[(u8, String)], cluster: &str) -> Option<Arc<KeyRing>> {
    let keys: Option<Vec<Key>> = keys.iter().map(|(id, hex)| Some(Key { id: *id, key: unhex(hex)? })).collect();
    store::ring(&keys?, cluster).map(Arc::new)
}

impl Shepherd {
    fn begin(desk: Desk, socket: &Path, daemon: Caller, begin: ToShepherd) -> Result<Self, ShepherdError> {
        let ToShepherd::Begin { terms, bind, advertise, keys, cluster } = begin else {
            return Err(ShepherdError::Keys);
        };
        let ring = ring(&keys, &cluster).ok_or(ShepherdError::Keys)?;
        let (udp, wires, addr) = listen(bind, advertise, &ring)?;
        let mut entropy = [0u8; 64];
        getrandom::fill(&mut entropy).map_err(StartError::Random)?;
        let signer = Signer::generate(&std::array::from_fn(|i| entropy[i]));
        let boot = Boot(std::array::from_fn(|i| entropy[32 + i]));
        let seed = u64::from_le_bytes(std::array::from_fn(|i| entropy[48 + i]));
        let link = Link::new(Arc::new(Company::link_config()), ring, signer, boot, seed);
        let config = view::Config { on_partition: policy(terms.on_partition), hooks: true, ..view::Config::default() };
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        let company = Company::new(link, LARGEST, Addr::Ip(addr), 0, config, (seconds * EACH_SECOND) as Seat);
        desk.wakes(udp.waker());
        let handle = wires.enter(addr, udp.waker());
        let driver = Driver::new(udp, company, Some(handle), seed);
        let mut shepherd = Self {
            desk,
            socket: std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned()),
            terms,
            cluster,
            driver,
            wires,
            addr,
            daemons: Vec::new(),
            instance: None,
            was_in: false,
            places: None,
            tasks: BTreeMap::new(),
            seats: BTreeMap::new(),
            told_place: None,
            alone_since: None,
            orphaned_since: None,
            work: None,
            is_done: false,
            early_console: None,
        };
        shepherd.greet(daemon);
        Ok(shepherd)
    }

    /// The loop.
    fn tend(&mut self) -> Result<(), ShepherdError> {
        loop {
            self.driver.poll().map_err(ShepherdError::Network)?;
            let mut more = true;
            for _ in 0..REQUESTS {
                let Ok(spoken) = self.desk.spoken.try_recv() else {
                    more = false;
                    break;
                };
                self.hear(spoken);
            }
            self.try_again();
            self.tell_news();
            self.tend_work();
            self.tell_news();
            self.show_out_the_deaf();
            if self.is_done {
                return Ok(());
            }
            if more {
                continue;
            }
            let now = self.driver.now();
            let is_alone = self.tasks.is_empty() && self.work.is_none();
            self.alone_since = if is_alone { self.alone_since.or(Some(now)) } else { None };
            let mut until = self.next_try().min(self.next_deed());
            if let Some(since) = self.alone_since {
                let said_goodbye = self.driver.node().members().next().is_none();
                let end = since + if said_goodbye { LINGER } else { FAREWELL };
                if end <= now {
                    return Ok(());
                }
                until = until.min(end);
            }
            self.orphaned_since = if self.is_orphaned() { self.orphaned_since.or(Some(now)) } else { None };
            if let Some(since) = self.orphaned_since {
                if since + ORPHANED <= now {
                    tracing::warn!(job = self.terms.name, "no daemon came back, and nothing runs here: it ends");
                    return Ok(());
                }
                until = until.min(since + ORPHANED);
            }
            self.driver.wait(until);
        }
    }

    /// It keeps what nobody will ask for: a daemon that comes later finds nothing, and says so to the manager.
    fn is_orphaned(&self) -> bool {
        let is_empty = |work: &Managed| {
            let is_read = match &work.console {
                Some(console) => console.is_attended(),
                None => !work.home_is_lost && !work.ranks.are_drained(),
            };
            !work.ranks.are_any() && !is_read
        };
        self.daemons.is_empty() && self.work.as_ref().is_some_and(is_empty)
    }

    /// What was said last may still be read.
    fn take_leave(&self) {
        let end = std::time::Instant::now() + LAST_WORDS;
        while !self.desk.is_quiet() && std::time::Instant::now() < end {
            std::thread::sleep(LOOK);
        }
    }

    fn hear(&mut self, spoken: Spoken) {
        let Spoken { caller, heard, place } = spoken;
        match heard {
            Heard::Came(line) => self.desk.came(caller, line),
            Heard::Task(words) => self.on_task(caller, words),
            Heard::Parcel(parcel, message) => self.on_parcel(caller, parcel, &message),
            Heard::Gather(number, value) => self.on_reduce(caller, number, Gift::Gather(&value)),
            // Only daemons cast; a task sends messages to others.
            Heard::Cast(frame) if self.daemons.contains(&caller) => {
                let tasks: Vec<Caller> = self.tasks.keys().copied().collect();
                tasks.into_iter().for_each(|task| self.desk.send(task, frame.clone()));
            }
            Heard::Cast(_) => {}
            // Ranks of another user know the socket, too.
            Heard::Daemon(words) if self.is_daemon(caller) => self.on_daemon(caller, words),
            Heard::Daemon(_) => self.desk.show_out(caller),
            Heard::Console(words) => self.on_console(caller, words),
            Heard::Input(bytes) => self.on_typed(caller, bytes, place),
            Heard::Took => self.on_took(caller),
            Heard::Gone => {
                self.daemons.retain(|&d| d != caller);
                self.desk.show_out(caller);
                if !self.on_console_gone(caller) {
                    self.on_gone(caller);
                }
            }
        }
    }

    /// Nothing of what a task is told may be left out, and it cannot be kept for ever.
    fn show_out_the_deaf(&mut self) {
        for caller in std::mem::take(&mut self.desk.deaf) {
            tracing::warn!(job = self.terms.name, "a task does not read what it is told, and is taken for dead");
            self.desk.show_out(caller);
            self.on_gone(caller);
        }
    }

    /// Daemons run as we do; anybody else here is a rank, or a console.
    fn is_daemon(&self, caller: Caller) -> bool {
        self.desk.user(caller).is_some_and(|user| user == 0 || user == geteuid().as_raw())
    }

    fn greet(&mut self, daemon: Caller) {
        if !self.daemons.contains(&daemon) {
            self.daemons.push(daemon);
            let (terms, work) = (Some(self.terms.clone()), self.work.as_ref().map(Managed::name));
            self.desk.say(daemon, &ToDaemon::Here { pid: std::process::id(), terms, work });
            self.desk.say(daemon, &ToDaemon::At { place: self.told_place.clone() });
            self.greet_again();
        }
    }

    fn on_daemon(&mut self, daemon: Caller, words: ToShepherd) {
        self.greet(daemon);
        match words {
            ToShepherd::Begin { keys, cluster, .. } | ToShepherd::Keys { keys, cluster } => {
                if let Some(ring) = ring(&keys, &cluster) {
                    self.wires.set_ring(Arc::clone(&ring));
                    self.driver.act(|company, _, _| company.link_mut().set_ring(ring));
                }
            }
            // All tasks of a job that the manager runs are where it says.
            ToShepherd::Places { .. } if self.work.is_some() => {}
            ToShepherd::Places { places } => self.on_places(places),
            ToShepherd::Doubt { addr } => {
                self.driver.act(|company, now, out| company.doubt(now, Addr::Ip(addr), out));
            }
            ToShepherd::Show { ticket } => {
                let view = self.shown();
                self.desk.say(daemon, &ToDaemon::Shown { ticket, view });
            }
            words => self.on_work(words),
        }
    }

    /// Tells the daemons whether others may knock here.
    fn tell_place(&mut self) {
        let is_in = self.driver.node().members().any(|(_, m)| m.view().is_some());
        let place = self.instance.filter(|_| is_in).map(|instance| Place { instance, addr: self.addr });
        if place != self.told_place {
            self.told_place.clone_from(&place);
            for &daemon in &self.daemons {
                self.desk.say(daemon, &ToDaemon::At { place: place.clone() });
            }
        }
    }

    fn tell_news(&mut self) {
        // What is said to members makes news, too.
        loop {
            let news = self.driver.news();
            if news.is_empty() {
                return self.tell_place();
            }
            for News { seat, said } in news {
                if !self.on_rank_said(seat, &said) {
                    self.on_said(seat, said);
                }
            }
        }
    }

    /// The view of the job, as a task here has it.
    fn shown(&self) -> Option<JobView> {
        let company = self.driver.node();
        let newest = company.members().filter_map(|(_, m)| m.view()).max_by_key(|v| v.id().number)?;
        let here = Addr::Ip(self.addr);
        Some(JobView { counts: self.counts(), ..show(newest, &self.terms, self.instance?, here) })
    }

    fn counts(&self) -> JobCounts {
        let company = self.driver.node();
        let (notices, alarms) = self.work.as_ref().map_or((0, 0), |w| (w.ranks.noticed, w.ranks.alarms));
        let none = JobCounts { strays: company.strays(), notices, alarms, ..JobCounts::default() };
        company.members().map(|(_, m)| m.counters()).fold(none, |sum, c| JobCounts {
            views: sum.views + c.views,
            waves: sum.waves + c.waves,
            outsiders: sum.outsiders + c.outsiders,
            strays: sum.strays + c.strays,
            stale: sum.stale + c.stale,
            duplicates: sum.duplicates + c.duplicates,
            overflow: sum.overflow + c.overflow,
            malformed: sum.malformed + c.malformed + c.senseless,
            hooks_late: sum.hooks_late + c.hooks_late,
            ..sum
        })
    }
}

fn policy(said: phalanx_api::jobs::OnPartition) -> OnPartition {
    match said {
        phalanx_api::jobs::OnPartition::Primary => OnPartition::Primary,
        phalanx_api::jobs::OnPartition::Continue => OnPartition::Continue,
        phalanx_api::jobs::OnPartition::Abort => OnPartition::Abort,
    }
}

/// A view in the API's words.
fn show(view: &View, terms: &Terms, instance: u64, here: Addr) -> JobView {
    let tree: &Tree = view.tree();
    let task = |t: view::Task| {
        let state = match (view.contains(t), view.is_awaited(t)) {
            (true, _) => TaskState::Alive,
            (false, true) => TaskState::Awaited,
            (false, false) => TaskState::Gone,
        };
        let host = view.person(t).map(|p| p.host);
        TaskInfo {
            task: t.0,
            rank: view.rank_of(t),
            state,
            parent: tree.parent(t).map(|p| p.0),
            host: match host {
                Some(Addr::Ip(addr)) => Some(addr),
                _ => None,
            },
            here: host == Some(here) && state == TaskState::Alive,
        }
    };
    JobView {
        job: terms.name.clone(),
        instance: format!("{instance:016x}"),
        view: tasks::name_of(view.id()),
        size: view.ranks(),
        arity: tree.arity(),
        on_partition: terms.on_partition,
        alive: tree.len(),
        tasks: (0..view.next_task().0).map(view::Task).map(task).collect(),
        more: false,
        counts: JobCounts::default(),
    }
}
