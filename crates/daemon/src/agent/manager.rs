//! A node's part of the manager in the daemon's loop: its steward is told what happens, and what that decides is done.
//!
//! CM-1, CM-2, CM-3.
//!
//! ```text
//!   people ─▶ control/runs ─▶ ask_manager ─▶ Steward ──Send──▶ Node::manage ─▶ other nodes
//!   shepherds ─▶ jobs/managed ─▶ report ──▶    │  ───Persist─▶ ledger
//!   zone ─▶ News ─▶ Seen, Gone ───────────▶    └───Do──▶ jobs/managed ─▶ shepherds
//!   roles ─▶ place_among_zones ─▶ Placed ──▶
//! ```

use super::settings::{Running, StartError};
use super::{Agent, Remote};
use crate::driver::News;
use crate::jobs::shown;
use crate::jobs::spec::SPEC_MAX;
use crate::ledger::{Entry, Kept, Ledger};
use phalanx_api::manage::{Managers, NodeSlots, Replica, Run, RunDetail};
use phalanx_core::{Addr, Duration, Instant, Machine, Rng, Sink};
use phalanx_protocol::manager::herald::Place;
use phalanx_protocol::manager::state::NodeInfo;
use phalanx_protocol::manager::steward::{self, Config, Output, Record, Steward, Stored};
use phalanx_protocol::manager::wire::Look;
use phalanx_protocol::manager::words::{Answer, Ask, At, Command, JobId, Key, Report};
use phalanx_protocol::member::{Engine, Peer, Slot};
use phalanx_protocol::node::{Carriage, Membership, Node, Plane};
use phalanx_protocol::zone::replicate::MONITOR;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::sync::oneshot;

/// The attribute that says how many ranks a node takes.
pub(super) const SLOTS: &str = "phalanx.slots";
/// A majority of the manager that was heard so long ago is taken to be there.
const FRESH: Duration = Duration::from_secs(5);
/// Questions that wait for an answer; more are refused.
const ASKED_MAX: usize = 1024;
/// A majority of the manager answers within this time, or it is not there.
pub(crate) const ANSWER_PATIENCE: std::time::Duration = std::time::Duration::from_secs(8);

/// Why the manager was not asked. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ManagerError {
    /// There is none that this node knows.
    #[error("{0}")]
    Nobody(String),
    /// It does not answer.
    #[error("no majority of the manager answers: see `phalanx managers`")]
    Silent,
    /// Too many questions are under way.
    #[error("too many questions to the manager are under way: ask again in a moment")]
    Busy,
    /// What is to be run takes too much room.
    #[error(
        "programs, arguments and environment take {0} bytes, and a job holds {SPEC_MAX}: forward less of the environment \
         (--genvnone, -x NAME), and give what is long in a file"
    )]
    TooLong(usize),
}

/// What an agent knows of the manager.
pub(super) struct Managing {
    steward: Steward,
    ledger: Option<Ledger>,
    running: Running,
    /// Who waits for an answer, by the question's number.
    asked: BTreeMap<u64, oneshot::Sender<Answer>>,
    /// Who waits to be shown something.
    looked: BTreeMap<u64, Looked>,
    /// When a majority of the manager was heard last.
    heard_at: Option<Instant>,
    /// Where this node is among several zones, as the steward was told.
    place: Option<Place>,
}

/// Pages of the ledger.
const PAGES: [&str; 4] = ["group", "acceptor", "state", "executed"];

/// What of a record goes into the ledger.
fn entries(record: Record<'_>) -> Vec<Entry> {
    let page = |name, bytes: &[u8]| Entry::Page { name, bytes: bytes.to_vec() };
    match record {
        Record::Order { epoch, replaces, bytes } => vec![Entry::Record { epoch, replaces, bytes: bytes.to_vec() }],
        Record::Group(bytes) => vec![page("group", bytes)],
        Record::Acceptor(bytes) => vec![page("acceptor", bytes)],
        Record::Executed(bytes) => vec![Entry::Mark { name: "executed", bytes: bytes.to_vec() }],
        Record::State { epoch, bytes } => vec![page("state", bytes), Entry::Forget { before: epoch.saturating_sub(1) }],
    }
}

fn stored(kept: Kept) -> Stored {
    let mut pages = kept.pages.into_iter().map(|page| Some(page).filter(|p| !p.is_empty()));
    let mut next = || pages.next().flatten();
    Stored { order: kept.records, group: next(), acceptor: next(), state: next(), executed: next() }
}

impl Managing {
    /// The part that a node has had before, or none yet. `dir` is where its state is kept; without, it forgets all of it.
    pub(super) fn start(
        running: Running,
        dir: Option<&Path>,
        node: &Node<Membership>,
        cluster: &str,
        now: Instant,
        remote: &Remote,
    ) -> Result<Self, StartError> {
        let (mut ledger, mut kept) = (None, Kept::default());
        if let Some(dir) = dir {
            let remote = remote.clone();
            let told = move |tokens: Vec<u64>| remote.tell(move |agent| agent.on_kept(&tokens));
            let (opened, found) = Ledger::open(&dir.join("manager"), &PAGES, told)?;
            (ledger, kept) = (Some(opened), found);
        }
        let engine = node.engine();
        let since = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
        let config = Config {
            cluster: cluster.to_owned(),
            incarnation: engine.version(engine.me()).map_or(1, |v| v.incarnation),
            expect: Some(running.expect).filter(|&n| n > 0),
            unix_ms: since.saturating_sub(now.since(Instant::ZERO).as_millis()),
            ..Config::default()
        };
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).map_err(StartError::Random)?;
        let rng = Rng::new(u64::from_le_bytes(seed), 1);
        let steward = Steward::recover(config, node.link().signer().clone(), &stored(kept), rng, now);
        Ok(Self {
            steward,
            ledger,
            running,
            asked: BTreeMap::new(),
            looked: BTreeMap::new(),
            heard_at: None,
            place: None,
        })
    }
}

/// Somebody who waits to be shown something.
type Looked = Box<dyn FnOnce(&[u8]) + Send>;

/// What a steward decided, until the loop has done it.
#[derive(Default)]
struct Decided(Vec<Decision>);

enum Decision {
    Send { to: Addr, carriage: Carriage, bytes: Vec<u8> },
    Persist { token: u64, entries: Vec<Entry> },
    Do(Command),
    Answered { number: u64, answer: Answer },
    Shown { number: u64, bytes: Vec<u8> },
    Lease { ms: u64 },
    Suspect { node: Key },
    Group { trouble: String },
}

impl<'o> Sink<Output<'o>> for Decided {
    fn push(&mut self, output: Output<'o>) {
        self.0.push(match output {
            Output::Send { to, carriage, bytes } => Decision::Send { to, carriage, bytes: bytes.to_vec() },
            Output::Persist { token, record } => Decision::Persist { token, entries: entries(record) },
            Output::Do { command } => Decision::Do(command.clone()),
            Output::Answered { number, answer } => Decision::Answered { number, answer: answer.clone() },
            Output::Shown { number, bytes } => Decision::Shown { number, bytes: bytes.to_vec() },
            Output::Lease { ms } => Decision::Lease { ms },
            Output::Suspect { node } => Decision::Suspect { node },
            Output::Group { trouble, .. } => Decision::Group { trouble: trouble.to_owned() },
        });
    }
}

impl Agent {
    /// Has the steward do something, and does what it decides.
    fn steer(&mut self, act: impl FnOnce(&mut Steward, Instant, &mut Decided)) {
        self.steer_managing(|managing, now, decided| act(&mut managing.steward, now, decided));
    }

    fn steer_managing(&mut self, act: impl FnOnce(&mut Managing, Instant, &mut Decided)) {
        let (now, mut decided) = (self.driver.now(), Decided::default());
        act(&mut self.managing, now, &mut decided);
        for decision in decided.0 {
            self.carry_out(decision);
        }
    }

    fn carry_out(&mut self, decision: Decision) {
        match decision {
            Decision::Send { to, carriage, bytes } => {
                // What is lost is said again.
                let _ = self.driver.act(|node, now, _| node.manage(now, to, carriage, &bytes));
            }
            Decision::Persist { token, entries } => match &self.managing.ledger {
                Some(ledger) => entries.into_iter().for_each(|entry| ledger.keep(token, entry)),
                None => self.remote.tell(move |agent| agent.on_kept(&[token])),
            },
            Decision::Do(command) => {
                if let Some(jobs) = &self.jobs {
                    jobs.carry(command);
                }
            }
            Decision::Answered { number, answer } => {
                if let Some(tell) = self.managing.asked.remove(&number) {
                    // Who asked may not wait any more.
                    let _ = tell.send(answer);
                }
            }
            Decision::Shown { number, bytes } => {
                if let Some(tell) = self.managing.looked.remove(&number) {
                    tell(&bytes);
                }
            }
            Decision::Lease { ms } => {
                self.managing.heard_at = Some(self.driver.now());
                if let Some(jobs) = &self.jobs {
                    jobs.lease(ms);
                }
            }
            Decision::Suspect { node } => {
                if let Some(addr) = self.whereabouts(node) {
                    self.driver.act(|node, now, out| node.doubt(now, addr, out));
                }
            }
            Decision::Group { trouble } => {
                if let Some(jobs) = &self.jobs {
                    jobs.repeat_inventory();
                }
                let managers = self.managers();
                let names: Vec<&str> = managers.replicas.iter().map(|r| r.node.as_str()).collect();
                let (epoch, replicas) = (managers.epoch, names.join(","));
                if trouble.is_empty() {
                    tracing::info!(epoch, replicas, "the manager");
                } else {
                    tracing::error!(epoch, replicas, "the manager: {trouble}");
                }
            }
        }
    }

    /// These tokens are on the disk.
    pub(super) fn on_kept(&mut self, tokens: &[u64]) {
        for &token in tokens {
            self.steer(|steward, now, out| steward.handle(now, steward::Input::Persisted { token }, out));
        }
    }

    /// When the steward wants to be woken.
    pub(super) fn steward_deadline(&self) -> Instant {
        self.managing.steward.deadline()
    }

    /// What has come is heard, and timers act.
    pub(super) fn look_after_steward(&mut self) {
        if self.managing.place.as_ref().is_some_and(|place| place.rank != self.rank()) {
            self.place_among_zones();
        }
        if self.managing.steward.deadline() <= self.driver.now() {
            self.steer(|steward, now, out| steward.expire(now, out));
        }
    }

    /// Word from another steward.
    pub(super) fn on_managed(&mut self, from: Peer, carriage: Carriage, bytes: &[u8]) {
        self.steer(|steward, now, out| steward.handle(now, steward::Input::Heard { from, carriage, bytes }, out));
    }

    /// Members come and go, and say how many ranks they take.
    pub(super) fn on_member_news(&mut self, news: &News) {
        match news {
            News::Joined { member, .. } => self.tell_of(*member),
            News::Attribute { member, key, .. } if key == SLOTS => self.tell_of(*member),
            // Who is there all the same is back already.
            News::Left { member, .. } if self.engine().version(*member).is_some() => {}
            News::Left { member, version, .. } => {
                let Some(card) = self.engine().card(*member) else { return };
                let (node, incarnation, minor) = (Key::from(card.identity), version.incarnation, version.minor);
                self.steer(|steward, now, out| {
                    steward.handle(now, steward::Input::Gone { node, incarnation, minor }, out);
                });
            }
            _ => {}
        }
    }

    /// Who speaks for our zone may be another one, or we may be in another zone: tells the steward.
    pub(super) fn place_among_zones(&mut self) {
        let place = self.place();
        if place.is_none() || place == self.managing.place {
            return;
        }
        let has_moved = place.as_ref().map(|p| &p.zone) != self.managing.place.as_ref().map(|p| &p.zone);
        self.managing.place.clone_from(&place);
        if let Some(place) = place {
            self.steer(|steward, now, out| steward.handle(now, steward::Input::Placed { place }, out));
        }
        if has_moved {
            let members: Vec<Slot> = self.engine().members().map(|m| m.0).collect();
            members.into_iter().for_each(|member| self.tell_of(member));
        }
    }

    /// Where this node is among several zones; nowhere when there is one.
    fn place(&self) -> Option<Place> {
        let node = self.driver.node();
        let guards = node.plane(Plane::Management).into_iter().flat_map(|management| {
            let me = management.me();
            let others = management.members().filter(move |m| m.0 != me);
            others.filter_map(|(slot, _)| Some(management.card(slot)?.addr))
        });
        let mut supervisors: Vec<Addr> = guards.collect();
        let Some(base) = node.plane(Plane::Base) else {
            return Some(Place { zone: String::new(), rank: Some(0), heralds: Vec::new(), supervisors });
        };
        if supervisors.is_empty() {
            supervisors = self.supervisors().to_vec();
        }
        let zone = base.name()?.as_str().to_owned();
        let others = base.members().filter(|m| m.0 != base.me() && base.attribute(m.0, MONITOR).is_some());
        let heralds = others.filter_map(|(slot, _)| Some(base.card(slot)?.addr)).collect();
        Some(Place { zone, rank: self.rank(), heralds, supervisors })
    }

    /// Our rank among those who speak for our zone. A supervisor speaks to all: a mere one for nobody, one that is in a zone after others.
    fn rank(&self) -> Option<u8> {
        let node = self.driver.node();
        let Some(base) = node.plane(Plane::Base) else { return Some(0) };
        let rank = base.attribute(base.me(), MONITOR).and_then(<[u8]>::first);
        let last = node.plane(Plane::Management).map(|_| u8::MAX);
        rank.map(|rank| rank.saturating_sub(b'0')).or(last)
    }

    /// Says how many ranks this node takes. A mere supervisor takes none.
    pub(super) fn offer_slots(&mut self) {
        if self.driver.node().plane(Plane::Base).is_none() {
            return;
        }
        let slots = self.managing.running.slots.to_string();
        let said = self.driver.act(|node, now, _| node.set(now, SLOTS, Some(slots.as_bytes())));
        if let Err(code) = said {
            tracing::error!(%code, "cannot say how many ranks this node takes: it gets none");
        }
        self.tell_of(self.engine().me());
    }

    /// Tells the steward of a member, once it says how many ranks it takes.
    fn tell_of(&mut self, member: Slot) {
        if let Some((node, minor)) = self.node_info(member) {
            self.steer(|steward, now, out| steward.handle(now, steward::Input::Seen { node, minor }, out));
        }
    }

    fn node_info(&self, member: Slot) -> Option<(NodeInfo, u32)> {
        let engine = self.engine();
        let (card, version) = (engine.card(member)?, engine.version(member)?);
        let slots = std::str::from_utf8(engine.attribute(member, SLOTS)?).ok()?.parse().ok()?;
        let node = NodeInfo {
            key: card.identity.into(),
            name: card.name.as_str().to_owned(),
            at: At::try_from(card.addr).ok()?,
            zone: engine.name().map_or(String::new(), |z| z.as_str().to_owned()),
            incarnation: version.incarnation,
            slots,
        };
        Some((node, version.minor))
    }

    fn whereabouts(&self, node: Key) -> Option<Addr> {
        let engine = self.engine();
        let mut cards = engine.members().filter_map(|(slot, _)| engine.card(slot));
        cards.find(|c| Key::from(c.identity) == node).map(|c| c.addr)
    }

    /// Who we are.
    #[must_use]
    pub fn key(&self) -> Key {
        self.driver.node().link().identity().into()
    }

    /// Asks the manager; the answer comes when a majority has given it.
    ///
    /// # Errors
    /// See [`ManagerError`].
    pub fn ask_manager(&mut self, ask: Ask) -> Result<oneshot::Receiver<Answer>, ManagerError> {
        self.may_ask()?;
        self.managing.asked.retain(|_, tell| !tell.is_closed());
        if self.managing.asked.len() >= ASKED_MAX {
            return Err(ManagerError::Busy);
        }
        let (tell, told) = oneshot::channel();
        self.steer_managing(|managing, now, out| {
            let number = managing.steward.ask(now, ask, out);
            managing.asked.insert(number, tell);
        });
        Ok(told)
    }

    fn look_at<T: Send + 'static>(
        &mut self,
        what: Look,
        read: impl FnOnce(&[u8]) -> Option<T> + Send + 'static,
    ) -> Result<oneshot::Receiver<T>, ManagerError> {
        self.may_ask()?;
        if self.managing.looked.len() >= ASKED_MAX {
            self.managing.looked.pop_first();
        }
        let (tell, told) = oneshot::channel();
        let tell = move |bytes: &[u8]| {
            if let Some(seen) = read(bytes) {
                // Who asked may not wait any more.
                let _ = tell.send(seen);
            }
        };
        self.steer_managing(|managing, now, out| {
            let number = managing.steward.look(now, what, out);
            managing.looked.insert(number, Box::new(tell));
        });
        Ok(told)
    }

    fn may_ask(&self) -> Result<(), ManagerError> {
        match self.managing.steward.group() {
            Some(_) => Ok(()),
            None => Err(ManagerError::Nobody(self.managers().note)),
        }
    }

    /// A shepherd here reports something.
    pub(crate) fn report(&mut self, report: Report) {
        self.steer(|steward, now, out| steward.handle(now, steward::Input::Reported { report }, out));
    }

    /// The console of a job here wants a signal for its ranks.
    pub(crate) fn signal_job(&mut self, job: JobId, signal: i32) {
        self.steer(|steward, now, out| _ = steward.ask(now, Ask::Signal { job, signal, uid: 0 }, out));
    }

    /// Nobody waits for a job any more whose console was here.
    pub(crate) fn desert_job(&mut self, job: JobId) {
        let why = "its console is gone".to_owned();
        self.steer(|steward, now, out| _ = steward.ask(now, Ask::End { job, uid: 0, why }, out));
    }

    /// Under which user ranks run here; as the daemon's own when that is all it can.
    pub(crate) fn may_run_as(&self, (user, group): (u32, u32)) -> Result<Option<(u32, u32)>, String> {
        let own = nix::unistd::geteuid().as_raw();
        match (own, user) {
            (0, 0) if !self.managing.running.as_root => Err("it runs no ranks of root: ask as another user, or set \
                 run_as_root there"
                .to_owned()),
            (0, 0) => Ok(None),
            (0, _) => Ok(Some((user, group))),
            _ if own == user => Ok(None),
            _ => Err(format!("its daemon is not root's, and runs jobs of user {own} only, not of {user}")),
        }
    }
}

/// What people look at.
impl Agent {
    /// All jobs that the manager knows.
    ///
    /// # Errors
    /// See [`ManagerError`].
    pub fn look_at_runs(&mut self) -> Result<oneshot::Receiver<Vec<Run>>, ManagerError> {
        self.look_at(Look::Runs, shown::runs)
    }

    /// One of them, by name or number.
    ///
    /// # Errors
    /// See [`ManagerError`].
    pub fn look_at_run(&mut self, job: &str) -> Result<oneshot::Receiver<Option<RunDetail>>, ManagerError> {
        self.look_at(Look::Run(job.to_owned()), shown::detail)
    }

    /// Nodes and their slots.
    ///
    /// # Errors
    /// See [`ManagerError`].
    pub fn look_at_slots(&mut self) -> Result<oneshot::Receiver<Vec<NodeSlots>>, ManagerError> {
        self.look_at(Look::Slots, shown::slots)
    }
}

impl Agent {
    /// The manager, as this node knows it.
    #[must_use]
    pub fn managers(&self) -> Managers {
        let status = self.managing.steward.status(self.driver.now());
        let Some(group) = self.managing.steward.group() else {
            let expect = self.managing.running.expect;
            let note = match expect {
                _ if self.driver.node().plane(Plane::Base).is_none() => {
                    "this node is a supervisor, and in no zone: ask one of a zone".to_owned()
                }
                0 => "no manager is known here: jobs need one; start nodes with --expect N, N more than half of them"
                    .to_owned(),
                _ => format!(
                    "no manager yet: one is founded when {expect} nodes are there that expect so many (--expect)"
                ),
            };
            return Managers { epoch: 0, replicas: Vec::new(), decides: false, note };
        };
        let replicas = group.seats.iter().map(|seat| Replica {
            node: seat.name.clone(),
            addr: Addr::from(seat.at).to_string(),
            zone: seat.zone.clone(),
            leads: status.leader == Some(seat.key),
            // Where no replica is, the zones say who is there.
            alive: match status.replica {
                true => status.heard.contains(&seat.key),
                false => self.managing.steward.sees(seat.key).is_some(),
            },
        });
        let is_heard = self.managing.heard_at.is_some_and(|at| self.driver.now().since(at) < FRESH);
        let decides = if status.replica { status.decides } else { is_heard };
        let few = (group.seats.len() == 1).then(|| "one replica, since there are fewer than three nodes".to_owned());
        let note = if status.trouble.is_empty() { few.unwrap_or_default() } else { status.trouble };
        Managers { epoch: group.epoch, replicas: replicas.collect(), decides, note }
    }
}
