//! What the manager's commands mean here: shepherds are started and told, and what they say goes back as reports.
//!
//! CM-2. Commands of one job are carried out in their order, those of different jobs side by side: a shepherd that starts slowly holds up
//! its own job only.

use super::spec::{self, Runs};
use super::{Jobs, Order};
use crate::shepherd::words::{Crew, Terms, ToDaemon, ToShepherd, Work};
use phalanx_api::jobs::{ARITY, OnPartition};
use phalanx_api::run::{OnFailure, RankEnd, RunWanted};
use phalanx_protocol::manager::words::{
    self, At, Attempt, Command, End, Ended, JobId, Key, MissedRank, Post, Report, Share, Wanted,
};
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use tokio::sync::mpsc;

/// The shepherd of a job that was taken listens within this time.
const START_PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

/// A job of the manager's with something here.
pub(super) struct Managed {
    job: JobId,
    /// Which attempt its shepherd was told of last, and which start of ranks alone.
    attempt: u32,
    life: u32,
    /// Names that its ranks have published here.
    pub(super) published: BTreeSet<String>,
    commands: mpsc::UnboundedSender<Command>,
}

/// Jobs of the manager's with something here, by name.
#[derive(Default)]
pub(super) struct Table {
    pub(super) by_name: BTreeMap<String, Managed>,
    /// Names by number.
    names: BTreeMap<JobId, String>,
    /// What is to be reported once it was said what runs here.
    early: Vec<Report>,
    /// It was.
    is_told: bool,
}

/// One job's commands, one after the other.
struct Carrier {
    jobs: Jobs,
    name: String,
    job: JobId,
    /// Who runs what in the attempt that was prepared last, and which of them is home.
    shares: Vec<Share>,
    home: Option<Key>,
}

impl Jobs {
    /// Two of three replicas said it: it is done. For a job of which nothing is here there is nothing to end.
    pub(crate) fn carry(&self, command: Command) {
        let (job, name) = match &command {
            Command::Prepare { attempt, name, .. } | Command::Respawn { attempt, name, .. } => {
                (attempt.job, Some(name.clone()))
            }
            Command::Go { attempt, .. } | Command::Signal { attempt, .. } | Command::Stop { attempt, .. } => {
                (attempt.job, None)
            }
            Command::Over { job, .. } => (*job, None),
        };
        let is_over = matches!(command, Command::Over { .. });
        let mut table = self.managed();
        let name = name.or_else(|| table.names.get(&job).cloned());
        let Some(name) = name else {
            drop(table);
            return self.nothing_here(&command);
        };
        let commands = match table.by_name.get(&name) {
            Some(managed) => managed.commands.clone(),
            None => self.begin(&mut table, name, job, 0),
        };
        if is_over
            && let Some(name) = table.names.remove(&job)
            && let Some(mut gone) = table.by_name.remove(&name)
        {
            self.withdraw_names(&mut gone);
        }
        // The carrier ends with the last sender.
        let _ = commands.send(command);
    }

    /// A job was taken that has its console here: its shepherd starts at once, so that there is somebody to wait at.
    pub(crate) async fn open_console(
        &self,
        job: JobId,
        name: &str,
        ranks: u32,
        user: Option<(u32, u32)>,
    ) -> Result<std::path::PathBuf, String> {
        {
            let mut table = self.managed();
            if !table.by_name.contains_key(name) {
                self.begin(&mut table, name.to_owned(), job, 0);
            }
        }
        let socket = self.socket(name);
        let started = tokio::time::timeout(START_PATIENCE, self.shepherd(terms(name, ranks))).await;
        match started {
            Ok(Ok(())) => {
                // Its user may speak to it, too: at once, for the console comes as soon as it knows where.
                let user = user.filter(|u| u.0 != nix::unistd::geteuid().as_raw());
                if let Some(user) = user {
                    crate::shepherd::admit(&socket, user).map_err(|e| format!("cannot let user {} in: {e}", user.0))?;
                }
                self.order(name, Order::Say(ToShepherd::Await { job: job.0, user }));
                Ok(socket)
            }
            Ok(Err(why)) => Err(format!("cannot start the shepherd of job `{name}`: {why}")),
            Err(_) => Err(format!("the shepherd of job `{name}` does not answer")),
        }
    }

    /// True when the manager runs it.
    pub(super) fn is_managed(&self, name: &str) -> bool {
        self.managed().by_name.contains_key(name)
    }

    fn begin(&self, table: &mut Table, name: String, job: JobId, attempt: u32) -> mpsc::UnboundedSender<Command> {
        let (commands, heard) = mpsc::unbounded_channel();
        let carrier = Carrier { jobs: self.clone(), name: name.clone(), job, shares: Vec::new(), home: None };
        self.0.runtime.spawn(carrier.carry(heard));
        table.names.insert(job, name.clone());
        table
            .by_name
            .insert(name, Managed { job, attempt, life: 0, published: BTreeSet::new(), commands: commands.clone() });
        commands
    }

    /// A shepherd that an earlier daemon left runs a job of the manager's.
    pub(super) fn found(&self, name: &str, job: u64, attempt: u32) {
        let mut table = self.managed();
        match table.by_name.get_mut(name) {
            Some(managed) => managed.attempt = attempt,
            None => _ = self.begin(&mut table, name.to_owned(), JobId(job), attempt),
        }
    }

    /// Says what runs here, first of all: once all shepherds that an earlier daemon left are known.
    pub(super) fn report_inventory(&self) {
        let (attempts, early) = {
            let mut table = self.managed();
            let attempts = table.by_name.values().map(|m| Attempt { job: m.job, number: m.attempt }).collect();
            table.is_told = true;
            (attempts, std::mem::take(&mut table.early))
        };
        for report in std::iter::once(Report::Inventory { attempts }).chain(early) {
            self.0.remote.tell(move |agent| agent.report(report));
        }
    }

    /// Says it to a new group, too.
    pub(crate) fn repeat_inventory(&self) {
        if self.managed().is_told {
            self.report_inventory();
        }
    }

    /// A majority of the manager was heard: ranks here may run on.
    pub(crate) fn lease(&self, ms: u64) {
        let names: Vec<String> = self.managed().by_name.keys().cloned().collect();
        names.iter().for_each(|name| _ = self.order(name, Order::Say(ToShepherd::Lease { ms })));
    }

    fn nothing_here(&self, command: &Command) {
        if let Command::Stop { attempt, life, .. } = command {
            self.report(Report::Cleared { attempt: *attempt, life: *life });
        }
    }

    /// Whatever of these starts comes late is not carried out any more.
    fn note_stop(&self, name: &str, attempt: Attempt, life: u32) {
        if let Some(managed) = self.managed().by_name.get_mut(name).filter(|m| m.attempt == attempt.number) {
            managed.life = managed.life.max(life);
        }
    }

    /// Nothing of an attempt is left here of all that was carried out so far.
    fn report_cleared(&self, name: &str, attempt: Attempt) {
        let life = self.managed().by_name.get(name).filter(|m| m.attempt == attempt.number).map_or(0, |m| m.life);
        self.report(Report::Cleared { attempt, life });
    }

    fn report(&self, report: Report) {
        let mut table = self.managed();
        if !table.is_told {
            return table.early.push(report);
        }
        drop(table);
        self.0.remote.tell(move |agent| agent.report(report));
    }

    /// What a shepherd of the manager's says; false when it says something else.
    pub(super) fn on_managed(&self, name: &str, words: ToDaemon) {
        let Some(job) = self.managed().by_name.get(name).map(|m| m.job) else { return };
        let attempt = |number| Attempt { job, number };
        let report = match words {
            ToDaemon::Ready { attempt: number, life, addr, first } => {
                Report::Ready { attempt: attempt(number), life, post: Post { at: At::Ip(addr), first } }
            }
            ToDaemon::Unfit { attempt: number, life, why } => Report::Unfit { attempt: attempt(number), life, why },
            ToDaemon::Ended { attempt: number, life, ranks, aborted } => Report::Ended {
                attempt: attempt(number),
                ranks: ranks
                    .into_iter()
                    .map(|(rank, ended)| Ended { rank, life, end: end(ended), aborted: aborted.contains(&rank) })
                    .collect(),
            },
            ToDaemon::Cleared { attempt: number } => return self.report_cleared(name, attempt(number)),
            ToDaemon::Missed { attempt: number, host, ranks, proven } => {
                let ranks = ranks.into_iter().map(|(rank, start)| MissedRank { rank, start }).collect();
                Report::Missed { attempt: attempt(number), at: At::Ip(host), ranks, proven }
            }
            ToDaemon::Signalled { signal } => {
                return self.0.remote.tell(move |agent| agent.signal_job(job, signal));
            }
            ToDaemon::Errand { rank, errand, .. } => return self.on_errand(name, rank, errand),
            ToDaemon::Spawn { rank, wanted, puts, user } => return self.on_spawn(name, rank, wanted, puts, user),
            ToDaemon::Deserted => return self.0.remote.tell(move |agent| agent.desert_job(job)),
            ToDaemon::Here { .. } | ToDaemon::At { .. } | ToDaemon::Shown { .. } => return,
        };
        self.report(report);
    }

    /// A shepherd is gone: so are its ranks.
    pub(super) fn on_shepherd_gone(&self, name: &str) {
        let attempt = self.managed().by_name.get(name).map(|m| Attempt { job: m.job, number: m.attempt });
        if let Some(attempt) = attempt {
            self.report_cleared(name, attempt);
        }
    }
}

impl Carrier {
    async fn carry(mut self, mut commands: mpsc::UnboundedReceiver<Command>) {
        while let Some(command) = commands.recv().await {
            self.on_command(command).await;
        }
    }

    async fn on_command(&mut self, command: Command) {
        match command {
            Command::Prepare { attempt, home, user, ranks, on_failure, shares, spec, .. } => {
                let here = self.here().await;
                let share = shares.iter().find(|s| s.node == here);
                let ours = share.map(|s| s.ranks.clone()).unwrap_or_default();
                (self.shares, self.home) = (shares, Some(home));
                let job = Prepared { attempt, life: 0, user, on_failure, ours, spec };
                if let Err(why) = self.prepare(job, ranks, home == here).await {
                    self.jobs.report(Report::Unfit { attempt, life: 0, why });
                }
            }
            Command::Go { attempt, life, posts, console } => {
                let (attempt, home) = (attempt.number, console.as_ref().and_then(address));
                let others = self.shares.iter().zip(&posts).filter_map(|(s, p)| Some((s.name.clone(), address(p)?)));
                if life == 0 {
                    self.jobs.order(&self.name, Order::Know(others.collect()));
                }
                self.say(if life == 0 {
                    let crews = self.shares.iter().zip(&posts).filter_map(|(s, p)| crew(p, &s.ranks)).collect();
                    ToShepherd::Go { attempt, home, crews }
                } else {
                    // The first is its own.
                    let contacts = posts.iter().skip(1).filter_map(address).collect();
                    ToShepherd::Respawn { attempt, life, home, contacts }
                });
            }
            Command::Respawn { attempt, life, home, user, ranks, on_failure, share, spec, .. } => {
                let here = self.here().await;
                self.shares = moved(std::mem::take(&mut self.shares), &share);
                let job = Prepared { attempt, life, user, on_failure, ours: share.ranks, spec };
                if let Err(why) = self.prepare(job, ranks, home == here).await {
                    self.jobs.report(Report::Unfit { attempt, life, why });
                }
            }
            Command::Signal { signal, .. } => self.say(ToShepherd::Signal { signal }),
            Command::Stop { attempt, life, why } => {
                self.jobs.note_stop(&self.name, attempt, life);
                if !self.order(ToShepherd::Stop { attempt: attempt.number, why }) {
                    self.jobs.report_cleared(&self.name, attempt);
                }
            }
            Command::Over { status, why, .. } => self.say(ToShepherd::Over { status, why }),
        }
    }

    /// Who this node is.
    async fn here(&self) -> Key {
        self.jobs.0.remote.ask(|agent| agent.key()).await.unwrap_or(Key([0; 32]))
    }

    async fn prepare(&mut self, job: Prepared, ranks: u32, is_home: bool) -> Result<(), String> {
        let Prepared { attempt, life, user, on_failure, ours, spec } = job;
        let Runs { programs, puts } =
            spec::decode(&spec).map_err(|e| format!("what is to be run cannot be read here: {e}"))?;
        let may = self.jobs.0.remote.ask(move |agent| agent.may_run_as(user)).await.map_err(|e| e.to_string())?;
        let user = may?;
        let started = self.jobs.shepherd(terms(&self.name, ranks)).await;
        started.map_err(|e| format!("its shepherd cannot be started: {e}"))?;
        if let Some(managed) = self.jobs.managed().by_name.get_mut(&self.name) {
            (managed.attempt, managed.life) = (attempt.number, life);
        }
        let work = Work {
            job: self.job.0,
            attempt: attempt.number,
            life,
            home: is_home,
            user,
            ranks: ours.iter().flat_map(|&(from, to)| from..to).collect(),
            nodes: self.shares.iter().map(|s| s.ranks.clone()).collect(),
            names: self.shares.iter().map(|s| s.name.clone()).collect(),
            programs,
            puts,
            on_failure: policy(on_failure),
        };
        self.say(ToShepherd::Prepare { work });
        Ok(())
    }

    fn say(&self, words: ToShepherd) {
        self.order(words);
    }

    /// False when there is no shepherd.
    fn order(&self, words: ToShepherd) -> bool {
        self.jobs.order(&self.name, Order::Say(words))
    }
}

/// Who runs what when these ranks run at that node.
fn moved(shares: Vec<Share>, share: &Share) -> Vec<Share> {
    let ours = |rank: &u32| share.ranks.iter().any(|(from, to)| (from..to).contains(&rank));
    let others = shares.into_iter().map(|other| {
        let ranks = other.ranks.iter().flat_map(|&(from, to)| from..to);
        let ranks = ranks.filter(|rank| !ours(rank)).map(|rank| (rank, rank + 1)).collect();
        Share { ranks, ..other }
    });
    let mut all: Vec<Share> = others.collect();
    match all.iter_mut().find(|other| other.node == share.node) {
        Some(own) => {
            own.ranks.extend(&share.ranks);
            own.ranks.sort_unstable();
        }
        None => all.push(share.clone()),
    }
    all
}

/// What a node is to run.
struct Prepared {
    attempt: Attempt,
    life: u32,
    user: (u32, u32),
    on_failure: words::OnFailure,
    ours: Vec<(u32, u32)>,
    spec: Vec<u8>,
}

fn terms(name: &str, ranks: u32) -> Terms {
    Terms { name: name.to_owned(), size: ranks, arity: ARITY, on_partition: OnPartition::Primary }
}

fn address(post: &Post) -> Option<SocketAddr> {
    match post.at {
        At::Ip(addr) => Some(addr),
        At::Local(_) => None,
    }
}

fn crew(post: &Post, ranks: &[(u32, u32)]) -> Option<Crew> {
    Some(Crew { addr: address(post)?, first: post.first, ranks: ranks.to_vec() })
}

fn end(end: RankEnd) -> End {
    match end {
        RankEnd::Exited(status) => End::Exited(status),
        RankEnd::Killed(signal) => End::Killed(signal),
        RankEnd::Missing(errno) => End::Missing(errno),
        RankEnd::Lost => End::Lost,
    }
}

/// How a rank ended, in people's words.
pub(super) fn ended(end: End) -> RankEnd {
    match end {
        End::Exited(status) => RankEnd::Exited(status),
        End::Killed(signal) => RankEnd::Killed(signal),
        End::Missing(errno) => RankEnd::Missing(errno),
        End::Lost => RankEnd::Lost,
    }
}

/// What somebody wants, in the manager's words.
///
/// # Errors
/// How long it is, when that is too long.
pub(crate) fn asked(wanted: RunWanted, user: (u32, u32), puts: Vec<(String, String)>) -> Result<Wanted, usize> {
    Ok(Wanted {
        ranks: wanted.ranks(),
        name: wanted.name,
        hosts: wanted.hosts.into_iter().map(|h| (h.node, h.slots)).collect(),
        per_node: wanted.per_node,
        oversubscribe: wanted.oversubscribe,
        on_failure: asked_policy(wanted.on_failure),
        spares: wanted.spares,
        timeout_ms: wanted.timeout_ms,
        user,
        spec: spec::encode(&Runs { programs: wanted.programs, puts })?,
    })
}

/// What becomes of a job when a part of it dies, in the manager's words.
fn asked_policy(policy: OnFailure) -> words::OnFailure {
    match policy {
        OnFailure::Abort => words::OnFailure::Abort,
        OnFailure::Restart => words::OnFailure::Restart,
        OnFailure::Continue => words::OnFailure::Continue,
        OnFailure::Respawn => words::OnFailure::Respawn,
    }
}

/// The same in people's words.
#[must_use]
pub fn policy(policy: words::OnFailure) -> OnFailure {
    match policy {
        words::OnFailure::Abort => OnFailure::Abort,
        words::OnFailure::Restart => OnFailure::Restart,
        words::OnFailure::Continue => OnFailure::Continue,
        words::OnFailure::Respawn => OnFailure::Respawn,
    }
}
