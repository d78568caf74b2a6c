//! The agent: one node of the cluster as a process. Its loop owns the node; others ask it to do something.
//!
//! ```text
//!   sockets, tripwires ─▶ Driver ─▶ News ─▶ journal ─▶ readers of events
//!   control API ─▶ Remote::ask ─▶ the loop ─▶ answer
//! ```
//!
//! | file | idea |
//! |---|---|
//! | [`casts`] | what is cast to all members, or to some |
//! | `directory` | attributes and services |
//! | `faults` | faults that are injected |
//! | `federation` | other data centres |
//! | [`handlers`] | scripts that are run when something happens |
//! | [`jobs`] | where tasks of jobs are |
//! | `keys` | the cluster's keys |
//! | [`manager`] | its part of the manager |
//! | [`rumours`] | what is told and asked among all members |
//! | `scribe` | who is there, on disk |
//! | `segments` | segments of the network |
//! | `settings` | what an agent starts with |
//! | [`journal`] | what happened lately |
//! | `words` | members and news in the API's words |
//! | [`zones`] | zones and their census |

pub mod casts;
mod directory;
mod faults;
mod federation;
pub mod handlers;
pub mod jobs;
pub mod journal;
mod keys;
pub mod manager;
pub mod rumours;
mod scribe;
mod segments;
pub(crate) mod settings;
mod words;
pub mod zones;

pub use directory::WriteError;
pub use faults::FaultError;
pub use keys::KeyError;
pub use rumours::RumourError;
pub use settings::{Conflict, Running, Settings, StartError};

use crate::driver::News;
use crate::platform::{Platform, Waker};
use crate::seating::{Keeping, Sitter};
use crate::wires::Wires;
use crate::{Driver, Udp};
use journal::Journal;
use phalanx_api::{Member, Phase, Status};
use phalanx_core::{Addr, Duration, Instant};
use phalanx_protocol::cast::seats;
use phalanx_protocol::member::{Engine, Name};
use phalanx_protocol::node::{Membership, Node};
use scribe::Scribe;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::mpsc;
use tokio::sync::oneshot;

/// The loop comes round at least so often: to write down who is there, to feed a watchdog.
const ROUND: Duration = Duration::from_secs(1);
/// Requests that are carried out before the node is looked at again.
const REQUESTS: usize = 64;
/// Members that are gone and still shown; past it one of them is forgotten.
const GONE_MAX: usize = 1024;
/// After an orderly leave the loop runs on until all is delivered, and at least so long, so that all have heard it before our wires break: otherwise somebody might take us for dead.
const LINGER: Duration = Duration::from_millis(300);

/// The exit code of a daemon whose name is taken (`EX_CONFIG`): to start it again would not help.
const REFUSED: u8 = 78;
/// Digits of the key in a name that was taken instead of another.
const SUFFIX: usize = 6;

/// Something to do in the loop.
type Request = Box<dyn FnOnce(&mut Agent) + Send>;

/// A node of the cluster.
pub struct Agent {
    driver: Driver<Udp, Node<Membership>>,
    wires: Wires,
    scribe: Option<Scribe>,
    journal: Journal,
    requests: mpsc::Receiver<Request>,
    remote: Remote,
    /// Members that are gone, by key.
    gone: BTreeMap<String, Member>,
    /// The members changed since they were written down.
    unwritten: bool,
    /// How long a farewell may take.
    farewell: Duration,
    /// Since when.
    leaving: Option<Instant>,
    /// Questions and pings that are under way.
    waiting: rumours::Waiting,
    /// Casts that are under way, and who listens.
    casting: casts::Casting,
    /// Questions of others about zones that wait for a guard.
    inquiries: Vec<zones::Inquiry>,
    /// The cluster's name.
    cluster: String,
    conflict: Conflict,
    /// The process's verdict on its end: 0 unless something went wrong.
    verdict: u8,
    /// Strangers were met, and it was said.
    strangers: bool,
    /// Where it listens.
    bind: SocketAddr,
    /// Jobs with tasks here.
    jobs: Option<crate::jobs::Jobs>,
    /// Where tasks of jobs are, as other nodes told us.
    posts: jobs::Posts,
    /// How busy the machine is, where that is told.
    load: Option<phalanx_protocol::directory::load::Load>,
    /// Its seat, when that comes from outside.
    seat: Option<Keeping>,
    /// Its part of the manager.
    managing: manager::Managing,
}

/// Asks the loop of an agent, from anywhere.
#[derive(Clone)]
pub struct Remote {
    requests: mpsc::Sender<Request>,
    waker: Waker,
}

/// The agent has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the daemon is ending")]
pub struct Ended;

impl Remote {
    /// Has the agent do something, and waits for what it says.
    ///
    /// # Errors
    /// When the agent ends before it came to that.
    pub async fn ask<R: Send + 'static>(&self, act: impl FnOnce(&mut Agent) -> R + Send + 'static) -> Result<R, Ended> {
        let (tell, told) = oneshot::channel();
        let request: Request = Box::new(move |agent| _ = tell.send(act(agent)));
        self.requests.send(request).map_err(|_| Ended)?;
        self.waker.wake();
        told.await.map_err(|_| Ended)
    }

    /// Has the agent do something, and waits for nothing.
    pub fn tell(&self, act: impl FnOnce(&mut Agent) + Send + 'static) {
        if self.requests.send(Box::new(act)).is_ok() {
            self.waker.wake();
        }
    }
}

impl Agent {
    /// Starts a node: its sockets are open, nothing is sent yet.
    ///
    /// # Errors
    /// When its state cannot be read, or its sockets not be opened.
    pub fn start(settings: Settings) -> Result<Self, StartError> {
        let (farewell, bind) = (settings.leave_timeout, settings.bind);
        let (cluster, conflict) = (settings.cluster.clone(), settings.conflict);
        let (directory, repair) = (settings.directory.clone(), settings.casts.repair);
        let (name, zone) = (settings.name.as_str().to_owned(), casts::tree(&settings.role).to_owned());
        let running = settings.running;
        let settings::Ground { driver, wires, store } = settings.ground()?;
        let dir = store.as_ref().map(|store| store.dir().to_owned());
        let scribe = store.map(Scribe::new).transpose().map_err(StartError::Thread)?;
        let engine = driver.node().engine();
        let incarnation = engine.version(engine.me()).map_or(0, |v| v.incarnation);
        let (sender, requests) = mpsc::channel();
        let remote = Remote { requests: sender, waker: driver.waker() };
        let managing =
            manager::Managing::start(running, dir.as_deref(), driver.node(), &cluster, driver.now(), &remote)?;
        let identity = crate::store::hex(&driver.node().link().identity().0);
        let seat = match driver.platform().local() {
            Addr::Ip(addr) => {
                let sitter = Sitter { cluster: cluster.clone(), zone, identity, name, addr, repair };
                directory.keep(sitter, remote.clone())?
            }
            Addr::Local(_) | Addr::Group(_) => None,
        };
        let mut agent = Self {
            driver,
            wires,
            scribe,
            journal: Journal::of(incarnation),
            requests,
            remote,
            gone: BTreeMap::new(),
            unwritten: true,
            farewell,
            leaving: None,
            waiting: rumours::Waiting::default(),
            casting: casts::Casting::default(),
            inquiries: Vec::new(),
            cluster,
            conflict,
            verdict: 0,
            strangers: false,
            bind,
            jobs: None,
            posts: jobs::Posts::new(),
            load: None,
            seat,
            managing,
        };
        agent.offer_slots();
        Ok(agent)
    }

    /// Asks this agent from other threads.
    #[must_use]
    pub fn remote(&self) -> Remote {
        self.remote.clone()
    }

    /// What happens at this node.
    #[must_use]
    pub fn journal(&self) -> Journal {
        self.journal.clone()
    }

    /// The membership engine.
    #[must_use]
    pub fn engine(&self) -> &Membership {
        self.driver.node().engine()
    }

    /// The tripwires.
    #[must_use]
    pub fn wires(&self) -> &Wires {
        &self.wires
    }

    /// Where peers reach it.
    #[must_use]
    pub fn addr(&self) -> Addr {
        self.driver.platform().local()
    }

    /// Where it listens, as it was told.
    #[must_use]
    pub fn bind(&self) -> SocketAddr {
        self.bind
    }

    /// Jobs with tasks here are kept by `jobs`.
    pub(crate) fn keep_jobs(&mut self, jobs: crate::jobs::Jobs) {
        self.jobs = Some(jobs);
    }

    /// The driver, to be looked at.
    pub(crate) fn driver(&self) -> &Driver<Udp, Node<Membership>> {
        &self.driver
    }

    /// Runs until the node has left; says with which exit code the process should end. `each_round` is called about once a
    /// second.
    ///
    /// # Errors
    /// When the network itself fails.
    pub fn run(&mut self, mut each_round: impl FnMut(&Self)) -> Result<u8, phalanx_core::Code> {
        let mut round_at = self.driver.now();
        loop {
            self.driver.poll()?;
            self.look_around();
            self.write_news();
            self.look_after_steward();
            for _ in 0..REQUESTS {
                let Ok(request) = self.requests.try_recv() else { break };
                request(self);
            }
            let now = self.driver.now();
            if round_at <= now {
                round_at = now + ROUND;
                self.write_members();
                self.look_for_strangers();
                self.place_among_zones();
                each_round(self);
            }
            let mut until = round_at.min(self.steward_deadline());
            if let Some(since) = self.leaving {
                let delivered = self.driver.deadline() == Instant::NEVER;
                let end = since + if delivered { LINGER.min(self.farewell) } else { self.farewell };
                if end <= now {
                    self.seat.take().into_iter().for_each(Keeping::release);
                    return Ok(self.verdict);
                }
                until = until.min(end);
            }
            self.driver.wait(until);
        }
    }

    /// Members may be at these places, too.
    pub fn seek(&mut self, seeds: &[SocketAddr]) {
        let seeds: Vec<Addr> = seeds.iter().copied().map(Addr::Ip).collect();
        self.driver.act(|node, now, out| node.seek(now, &seeds, out));
    }

    /// Leaves the cluster in an orderly way: everybody hears it, then [`Agent::run`] ends.
    pub fn leave(&mut self, code: u8) {
        if self.leaving.is_none() {
            self.driver.act(|node, now, out| node.leave(now, code, out));
            self.write_members();
            self.leaving = Some(self.driver.now());
        }
    }

    /// Everybody whom this node sees, and those who are gone lately; by name.
    #[must_use]
    pub fn members(&self) -> Vec<Member> {
        let engine = self.engine();
        let mut members: Vec<Member> =
            engine.members().filter_map(|(slot, version)| words::member(engine, slot, version)).collect();
        let there: std::collections::BTreeSet<&str> = members.iter().map(|m| m.id.as_str()).collect();
        let gone: Vec<Member> = self.gone.values().filter(|m| !there.contains(m.id.as_str())).cloned().collect();
        members.extend(gone);
        members.sort_by(|a, b| (&a.name, &a.id).cmp(&(&b.name, &b.id)));
        members
    }

    /// Where the member with this name is.
    #[must_use]
    pub fn addr_of(&self, name: &str) -> Option<Addr> {
        let engine = self.engine();
        let mut cards = engine.members().filter_map(|(slot, _)| engine.card(slot));
        cards.find(|c| c.name.as_str() == name).map(|c| c.addr)
    }

    /// How this node is; `None` when it has left.
    #[must_use]
    pub fn status(&self) -> Option<Status> {
        let engine = self.engine();
        let version = engine.version(engine.me())?;
        let phase = match self.leaving {
            Some(_) => Phase::Leaving,
            None if engine.is_settled() => Phase::Member,
            None => Phase::Starting,
        };
        Some(Status {
            me: words::member(engine, engine.me(), version)?,
            phase,
            alive: engine.len(),
            neighbours: engine.neighbours().count(),
            uptime_ms: self.driver.now().since(Instant::ZERO).as_millis(),
            version: crate::version().to_owned(),
            pid: std::process::id(),
        })
    }

    /// News becomes events.
    fn write_news(&mut self) {
        let all = self.driver.news();
        if !all.is_empty() {
            // Who is in another zone now says of nobody that it is gone from the old one.
            self.place_among_zones();
        }
        for news in all {
            self.on_member_news(&news);
            let news = match news {
                News::Managed { from, carriage, bytes } => {
                    self.on_managed(from, carriage, &bytes);
                    continue;
                }
                News::Cast { from, whole, body } => {
                    self.on_cast(from, whole, &body);
                    continue;
                }
                News::Settled { whole, number, missed } => {
                    self.on_settled(whole, number, &missed);
                    continue;
                }
                // Where members sit in the tree is nobody's news.
                News::Attribute { key, .. } if key == seats::ATTRIBUTE => continue,
                news => news,
            };
            let engine = self.driver.node().engine();
            let Some(what) = words::what(engine, &news) else {
                self.on_rumour(news);
                continue;
            };
            match (&news, &what) {
                (News::Left { .. }, phalanx_api::What::Left { member }) => {
                    tracing::info!(name = member.name, addr = %member.addr, "{}", member.state.name());
                    if self.gone.len() >= GONE_MAX {
                        self.gone.pop_first();
                    }
                    self.gone.insert(member.id.clone(), member.clone());
                    self.unwritten = true;
                }
                (News::Joined { .. }, phalanx_api::What::Joined { member }) => {
                    tracing::info!(name = member.name, addr = %member.addr, "joined");
                    self.gone.remove(&member.id);
                    self.unwritten = true;
                }
                (News::Name { loser, .. }, _) => self.on_name(*loser == Some(engine.me())),
                _ => {}
            }
            self.journal.add(what);
        }
    }

    /// Our name is taken, or not any more.
    fn on_name(&mut self, lost: bool) {
        let name = self.name();
        if !lost || self.leaving.is_some() {
            return;
        }
        match self.conflict {
            Conflict::Refuse => {
                tracing::error!(
                    name,
                    "another member has this name: leaving; choose another --name, or set name_conflict to rename"
                );
                self.verdict = REFUSED;
                self.leave(1);
            }
            Conflict::Rename => {
                let other = self.free_name(&name);
                tracing::warn!(name, other = other.as_str(), "another member has this name: taking another");
                if let Err(code) = self.driver.act(|node, now, _| node.rename(now, &other)) {
                    tracing::error!(%code, "cannot take another name");
                }
            }
        }
    }

    /// A name like ours that nobody has: with a few digits of our key behind it.
    fn free_name(&self, name: &str) -> Name {
        let identity = crate::store::hex(&self.driver.node().link().identity().0);
        let room = phalanx_wire::member::NAME_MAX - 1 - SUFFIX;
        let stem = &name[..name.len().min(room)];
        Name::new(&format!("{stem}-{}", &identity[..SUFFIX])).expect("a name with letters and digits behind it")
    }

    /// Says once that somebody without our key, or of another cluster, speaks to us; metrics have the numbers.
    fn look_for_strangers(&mut self) {
        use phalanx_protocol::link::count::Dropped;
        let counters = self.driver.node().link().counters();
        let packets = counters.dropped(Dropped::BadSeal) + counters.dropped(Dropped::UnknownKey);
        let streams = self.wires.counts().strangers.load(std::sync::atomic::Ordering::Relaxed);
        if packets + streams > 0 && !std::mem::replace(&mut self.strangers, true) {
            tracing::warn!(
                packets,
                streams,
                "somebody with another key or another cluster name speaks to us, and is kept out"
            );
        }
    }

    /// Writes down who is there, for the next start.
    fn write_members(&mut self) {
        if !std::mem::take(&mut self.unwritten) {
            return;
        }
        let (engine, Some(scribe)) = (self.driver.node().engine(), &self.scribe) else { return };
        let me = engine.me();
        let others = engine.members().filter(|m| m.0 != me);
        let addrs = others.filter_map(|(slot, _)| match engine.card(slot)?.addr {
            Addr::Ip(addr) => Some(addr),
            Addr::Local(_) | Addr::Group(_) => None,
        });
        // Somebody who was alone at last must not forget whom it knew.
        let addrs: Vec<SocketAddr> = addrs.collect();
        if !addrs.is_empty() {
            scribe.keep(addrs);
        }
    }
}
