//! One round of the demo: a cluster, a job, a worker's node that is killed, the node of the view's root, and that of a replica of the manager.
//!
//! Killed is the whole node at once: daemon, shepherd, ranks. What is measured was written down where it happened: by each daemon's stream of
//! events, and by the ranks themselves.

use super::rank::{self, Line, now_us};
use super::table::{Kill, Round};
use crate::local::Local;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use phalanx_client::api::run::{HostSlots, OnFailure, RunWanted, ToConsole};
use phalanx_client::api::{State, What};
use phalanx_client::blocking::Client;
use phalanx_client::run::Word;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Nothing that is waited for takes longer than this.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(5);
/// By then neighbours are chosen, and wires are up: who dies before is missed by its silence alone, after a second or two.
const SETTLED: Duration = Duration::from_millis(300);
/// What a job leaves must be gone by then.
const GONE: Duration = Duration::from_secs(5);
const JOB: &str = "primes";
/// Ranks on each of the nodes that are used first.
const SLOTS: u32 = 2;
/// The node of the console, which stays.
const HOME: usize = 1;

/// Why a round did not come to its end.
pub(super) enum Stop {
    /// Somebody has seen enough.
    Interrupted,
    Failed(String),
}

impl From<String> for Stop {
    fn from(why: String) -> Self {
        Self::Failed(why)
    }
}

/// Something happened, as it comes from the threads that listen.
enum News {
    /// A daemon took somebody for gone.
    Gone {
        at: usize,
        who: String,
        state: State,
        at_us: u64,
    },
    Running,
    Line {
        rank: u32,
        line: Line,
    },
    /// The job said it to people.
    Words(String),
    Over(i32),
    /// The manager is whole again.
    Replaced(u64),
    /// There is nothing to listen to.
    Broken(String),
}

/// A view that a rank was told.
struct Told {
    rank: u32,
    at_us: u64,
    number: u64,
    ranks: Vec<u32>,
}

/// What has happened so far.
#[derive(Default)]
struct Seen {
    gone: Vec<(usize, String, State, u64)>,
    views: Vec<Told>,
    is_running: bool,
    primes: Option<u64>,
    over: Option<i32>,
    replaced: Option<u64>,
    words: Vec<String>,
}

struct Story<'a> {
    cluster: &'a Local,
    nodes: usize,
    news: mpsc::Receiver<News>,
    tell: mpsc::Sender<News>,
    interrupts: &'a mpsc::Receiver<()>,
    seen: Seen,
    /// Those that live.
    alive: BTreeSet<usize>,
    talks: bool,
}

/// Tells it all; the cluster is still there afterwards, and some of the job may be, when it fails.
pub(super) fn tell(
    cluster: &Local,
    nodes: usize,
    limit: u64,
    talks: bool,
    interrupts: &mpsc::Receiver<()>,
) -> Result<Round, Stop> {
    let began = Instant::now();
    if talks {
        println!("Starting {nodes} daemons, one process each, on loopback …");
    }
    let up = cluster.up_with(nodes, 1, &["--slots", &SLOTS.to_string()])?;
    cluster.wait_until_managed(nodes)?;
    let managed = began.elapsed();
    let (tell, news) = mpsc::channel();
    listen(cluster, nodes, &tell)?;
    let alive = (1..=nodes).collect();
    let mut story = Story { cluster, nodes, news, tell, interrupts, seen: Seen::default(), alive, talks };
    let (root, worker, replica, replicas) = story.cast()?;
    if talks {
        let (up, managed) = (up.as_secs_f64() * 1e3, managed.as_secs_f64() * 1e3);
        println!(
            "  all {nodes} see all {nodes} after {up:.0} ms; the manager decides after {managed:.0} ms, on {replicas}."
        );
    }

    let ranks = u32::try_from(nodes).map_err(|e| e.to_string())?;
    let asked = Instant::now();
    // The console's node is the last to get ranks at first: those who die shall have some.
    let first = [root, worker, replica, HOME];
    let order = first.into_iter().chain((1..=nodes).filter(|n| !first.contains(n)));
    let hosts = order.map(|n| HostSlots { node: format!("n{n}"), slots: Some(SLOTS) }).collect();
    let program = rank::program(ranks, limit, cluster.dir().to_string_lossy().into_owned());
    let program = program.map_err(|e| format!("this program cannot be named: {e}"))?;
    let name = Some(JOB.to_owned());
    let wanted = RunWanted { name, hosts, on_failure: OnFailure::Respawn, ..RunWanted::of(vec![program]) };
    attend(phalanx_client::Client::new(cluster.node(HOME).socket()), wanted, story.tell.clone());
    let all: Vec<u32> = (0..ranks).collect();
    story.wait("all ranks run in one view", |seen| {
        seen.is_running && all.iter().all(|&r| seen.view(r, 0, &all).is_some())
    })?;
    let launch = asked.elapsed();
    if talks {
        println!("\n$ phalanx run -n {ranks} --on-failure respawn {JOB} {limit}");
        println!(
            "  {ranks} ranks run in one view after {:.0} ms, two on each of n{root} n{worker} n{replica} n{HOME}.\n",
            launch.as_secs_f64() * 1e3
        );
    }

    let mut kills = vec![story.kill("worker", worker, &all)?];
    let root = story.root()?;
    kills.push(story.kill("root", root, &all)?);
    let killed = now_us();
    watch_managers(story.home(), format!("n{replica}"), story.tell.clone());
    kills.push(story.kill("replica", replica, &all)?);
    // Nobody is waited for any more: what is left is counted without a breath.
    story.home().signal_run(JOB, Signal::SIGUSR1 as i32).map_err(|e| e.to_string())?;
    story.wait("the job ends", |seen| seen.over.is_some())?;
    let job = asked.elapsed();
    if talks {
        println!("\nThe job is over after {:.1} s; the manager finds itself a third replica …", job.as_secs_f64());
    }
    // The job needs none; it has ended before there is one again.
    story.wait("the manager has three replicas again", |seen| seen.replaced.is_some())?;
    if let (Some(kill), Some(at)) = (kills.last_mut(), story.seen.replaced) {
        kill.replaced_ms = Some(after(killed, at));
    }
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    Ok(Round {
        ranks,
        up_ms: ms(up),
        managed_ms: ms(managed),
        launch_ms: ms(launch),
        mistakes: story.mistakes(),
        kills,
        primes: story.seen.primes,
        status: story.seen.over.unwrap_or(-1),
        job_ms: ms(job),
    })
}

impl Story<'_> {
    fn home(&self) -> Client {
        Client::new(self.cluster.node(HOME).socket())
    }

    /// Who plays what: the root and the worker have no replica, the last one has; and in words, where the replicas are.
    fn cast(&self) -> Result<(usize, usize, usize, String), String> {
        let managers = self.home().managers().map_err(|e| e.to_string())?;
        let replicas: Vec<&str> = managers.replicas.iter().map(|r| r.node.as_str()).collect();
        let (with, mut without): (Vec<usize>, Vec<usize>) =
            (1..=self.nodes).filter(|n| *n != HOME).partition(|n| replicas.contains(&format!("n{n}").as_str()));
        match (with.first(), without.pop(), without.pop()) {
            (Some(&replica), Some(root), Some(worker)) => Ok((root, worker, replica, replicas.join(" "))),
            _ => Err(format!("the manager's replicas are on {}, and nobody is left to be killed", replicas.join(" "))),
        }
    }

    /// The node of the view's root, as it is now.
    fn root(&self) -> Result<usize, String> {
        let (view, detail) = (self.home().job(JOB), self.home().run_detail(JOB));
        let (view, detail) = (view.map_err(|e| e.to_string())?, detail.map_err(|e| e.to_string())?);
        let rank = view.tasks.iter().find(|t| t.task == view.view.root).and_then(|t| t.rank);
        let node = detail.all_ranks.iter().find(|r| Some(r.rank) == rank).map(|r| r.node.as_str());
        let number = node.and_then(|n| n.strip_prefix('n')?.parse().ok()).filter(|n| *n != HOME);
        number.ok_or_else(|| format!("the view's root is on {}, where the console is", node.unwrap_or("no node")))
    }

    /// Kills a node, and waits until everybody knows, those who live have a view of their own, and all ranks are back.
    fn kill(&mut self, what: &'static str, node: usize, all: &[u32]) -> Result<Kill, Stop> {
        self.pause(SETTLED)?;
        let name = format!("n{node}");
        let detail = self.home().run_detail(JOB).map_err(|e| e.to_string())?;
        let dead: Vec<u32> = detail.all_ranks.iter().filter(|r| r.node == name).map(|r| r.rank).collect();
        if dead.is_empty() {
            return Err(Stop::Failed(format!("{name} has no ranks: {:?}", detail.run.nodes)));
        }
        let living: Vec<u32> = all.iter().copied().filter(|r| !dead.contains(r)).collect();
        let before = self.seen.views.iter().map(|v| v.number).max().unwrap_or(0);
        let processes = Processes::of(self.cluster, node)?;
        let killed = now_us();
        processes.kill();
        self.alive.remove(&node);
        let others = self.alive.len();
        self.wait(&format!("all know that {name} is dead"), |seen| seen.knowers(&name).len() == others)?;
        // Those who were slow find the dead ranks back already in their next view.
        let without = |seen: &Seen, rank| seen.view(rank, before + 1, &living).or(seen.view(rank, before + 1, all));
        self.wait("all who live have a view without the dead", |seen| {
            living.iter().all(|&r| without(seen, r).is_some())
        })?;
        self.wait("all ranks are back", |seen| all.iter().all(|&r| seen.view(r, before + 1, all).is_some()))?;
        let ends = |mut times: Vec<u64>| {
            times.sort_unstable();
            (after(killed, times[0]), after(killed, times[times.len() - 1]))
        };
        let (known_first_ms, known_last_ms) = ends(self.seen.knowers(&name));
        let (view_first_ms, view_last_ms) = ends(living.iter().filter_map(|&r| without(&self.seen, r)).collect());
        let (_, back_ms) = ends(all.iter().filter_map(|&r| self.seen.view(r, before + 1, all)).collect());
        if self.talks {
            let count = processes.ranks.len();
            println!(
                "kill -9 {name} ({what}: its daemon, its shepherd, {count} ranks): known to all after {known_last_ms:.1} ms, all ranks back after {back_ms:.0} ms"
            );
        }
        let replaced_ms = None;
        Ok(Kill {
            what,
            node: name,
            ranks: dead,
            known_first_ms,
            known_last_ms,
            view_first_ms,
            view_last_ms,
            back_ms,
            replaced_ms,
        })
    }

    /// Who was taken for dead and lives.
    fn mistakes(&self) -> Vec<String> {
        let alive = |name: &str| self.alive.iter().any(|n| format!("n{n}") == name);
        let wrong = self.seen.gone.iter().filter(|(at, who, ..)| self.alive.contains(at) && alive(who));
        wrong.map(|(at, who, state, _)| format!("n{at} took {who} for {}", state.name())).collect()
    }

    fn pause(&mut self, time: Duration) -> Result<(), Stop> {
        let began = Instant::now();
        while began.elapsed() < time {
            self.listen()?;
        }
        Ok(())
    }

    fn wait(&mut self, what: &str, holds: impl Fn(&Seen) -> bool) -> Result<(), Stop> {
        let began = Instant::now();
        while !holds(&self.seen) {
            self.listen()?;
            let told = || self.seen.words.join("; ");
            // A job that has answered may be over; the manager may have to be waited for.
            if let Some(status) = self.seen.over.filter(|_| self.seen.primes.is_none() && !holds(&self.seen)) {
                return Err(Stop::Failed(format!("the job ended with status {status} before {what}: {}", told())));
            }
            if began.elapsed() > PATIENCE {
                return Err(Stop::Failed(format!("not so within {} s: {what}; {}", PATIENCE.as_secs(), told())));
            }
        }
        Ok(())
    }

    /// Takes up what is there, or waits a moment.
    fn listen(&mut self) -> Result<(), Stop> {
        if self.interrupts.try_recv().is_ok() {
            return Err(Stop::Interrupted);
        }
        let Ok(news) = self.news.recv_timeout(LOOK) else { return Ok(()) };
        match news {
            News::Gone { at, who, state, at_us } => self.seen.gone.push((at, who, state, at_us)),
            News::Running => self.seen.is_running = true,
            News::Line { rank, line: Line::View { at_us, number, ranks } } => {
                self.seen.views.push(Told { rank, at_us, number, ranks });
            }
            News::Line { rank, line: Line::Resumed(percent) } => {
                if self.talks {
                    println!("  rank {rank} goes on where it was: at {percent} % of its share");
                }
            }
            News::Line { line: Line::Primes(primes), .. } => self.seen.primes = Some(primes),
            News::Words(words) => self.seen.words.push(words),
            News::Over(status) => self.seen.over = Some(status),
            News::Replaced(at_us) => self.seen.replaced = Some(at_us),
            News::Broken(why) => return Err(Stop::Failed(why)),
        }
        Ok(())
    }
}

impl Seen {
    /// When each daemon learned that somebody failed.
    fn knowers(&self, name: &str) -> Vec<u64> {
        let gone = self.gone.iter().filter(|(_, who, state, _)| who == name && *state == State::Failed);
        let mut first: BTreeMap<usize, u64> = BTreeMap::new();
        gone.for_each(|&(at, _, _, at_us)| _ = first.entry(at).or_insert(at_us));
        first.into_values().collect()
    }

    /// When a rank was first told a view of exactly these, from this number on.
    fn view(&self, rank: u32, from: u64, ranks: &[u32]) -> Option<u64> {
        let told = self.views.iter().find(|v| v.rank == rank && v.number >= from && v.ranks == ranks);
        told.map(|v| v.at_us)
    }
}

/// Milliseconds between two moments.
fn after(earlier: u64, later: u64) -> f64 {
    later.saturating_sub(earlier) as f64 / 1e3
}

/// All that runs on a node: they die together, as with a power switch.
struct Processes {
    daemon: Option<i32>,
    shepherds: Vec<Pid>,
    ranks: Vec<Pid>,
}

impl Processes {
    fn of(cluster: &Local, node: usize) -> Result<Self, String> {
        let node = cluster.node(node);
        let jobs = Client::new(node.socket()).jobs().map_err(|e| e.to_string())?;
        let shepherds: Vec<Pid> = jobs.iter().filter_map(|j| Some(Pid::from_raw(j.shepherd?.cast_signed()))).collect();
        let ranks = shepherds.iter().flat_map(|s| children(*s)).collect();
        Ok(Self { daemon: node.running(), shepherds, ranks })
    }

    fn kill(&self) {
        // Some have ended meanwhile.
        let send = |pids: &[Pid], signal: Signal| pids.iter().for_each(|pid| _ = kill(*pid, signal));
        // Nobody tells of another's death.
        send(&self.shepherds, Signal::SIGSTOP);
        send(&self.ranks, Signal::SIGKILL);
        send(&self.daemon.map(Pid::from_raw).into_iter().collect::<Vec<_>>(), Signal::SIGKILL);
        send(&self.shepherds, Signal::SIGKILL);
    }

    fn are_gone(&self) -> bool {
        self.shepherds.iter().chain(&self.ranks).all(|pid| !runs(*pid))
    }
}

/// Processes whose parent this is.
fn children(parent: Pid) -> Vec<Pid> {
    let Ok(all) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = all.filter_map(|e| e.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.map(Pid::from_raw).filter(|pid| stat(*pid).is_some_and(|(_, of)| of == parent.as_raw())).collect()
}

fn runs(pid: Pid) -> bool {
    stat(pid).is_some_and(|(state, _)| state != "Z")
}

/// The state of a process and its parent. Its name, which comes before, may hold anything.
fn stat(pid: Pid) -> Option<(String, i32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut words = stat.rsplit_once(')')?.1.split_whitespace();
    Some((words.next()?.to_owned(), words.next()?.parse().ok()?))
}

/// Ends what is there: the job first, then the daemons; says how many of them ran.
pub(super) fn end(cluster: &Local, nodes: usize) -> Result<usize, String> {
    if !cluster.exists() {
        return Ok(0);
    }
    let living = (1..=nodes).filter(|&n| cluster.node(n).running().is_some());
    let left: Vec<Processes> = living.filter_map(|n| Processes::of(cluster, n).ok()).collect();
    if left.iter().any(|p| !p.are_gone()) {
        // It is over already when this is refused.
        let _ = Client::new(cluster.node(HOME).socket()).end_run(JOB);
    }
    let began = Instant::now();
    while left.iter().any(|p| !p.are_gone()) && began.elapsed() < GONE {
        std::thread::sleep(LOOK);
    }
    let ended = cluster.down();
    left.iter().filter(|p| !p.are_gone()).for_each(Processes::kill);
    ended
}

/// Hears of all daemons who is gone. Each listens before this returns.
fn listen(cluster: &Local, nodes: usize, tell: &mpsc::Sender<News>) -> Result<(), String> {
    for at in 1..=nodes {
        let (client, tell) = (Client::new(cluster.node(at).socket()), tell.clone());
        let (ready, is_ready) = mpsc::channel();
        std::thread::spawn(move || {
            // From the first event on: the ones before the kill show that the stream runs.
            for event in client.events(Some(0)).map_while(Result::ok) {
                let at_us = now_us();
                let _ = ready.send(());
                if let What::Left { member } = event.what {
                    let gone = News::Gone { at, who: member.name, state: member.state, at_us };
                    if tell.send(gone).is_err() {
                        return;
                    }
                }
            }
        });
        is_ready.recv_timeout(PATIENCE).map_err(|_| format!("n{at} tells no events"))?;
    }
    Ok(())
}

/// Looks until the manager has three replicas without the dead one.
fn watch_managers(client: Client, dead: String, tell: mpsc::Sender<News>) {
    std::thread::spawn(move || {
        let began = Instant::now();
        while began.elapsed() < PATIENCE * 2 {
            let is_whole = client.managers().is_ok_and(|managers| {
                managers.decides && managers.replicas.len() == 3 && managers.replicas.iter().all(|r| r.node != dead)
            });
            if is_whole {
                // Who listens may be gone.
                let _ = tell.send(News::Replaced(now_us()));
                return;
            }
            std::thread::sleep(LOOK);
        }
    });
}

/// Begins the job, and is its console, on a thread of its own.
fn attend(client: phalanx_client::Client, wanted: RunWanted, tell: mpsc::Sender<News>) {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let attended = match &runtime {
            Ok(runtime) => runtime.block_on(console(&client, &wanted, &tell)).map_err(|e| e.to_string()),
            Err(e) => Err(e.to_string()),
        };
        if let Err(why) = attended {
            // Who listens may be gone.
            let _ = tell.send(News::Broken(why));
        }
    });
}

async fn console(
    client: &phalanx_client::Client,
    wanted: &RunWanted,
    tell: &mpsc::Sender<News>,
) -> Result<(), phalanx_client::Error> {
    let mut job = client.run(wanted).await?;
    let mut begun: BTreeMap<u32, Vec<u8>> = BTreeMap::new();
    loop {
        let news = match job.next().await? {
            Word::Output { rank, bytes, .. } => {
                let line = begun.entry(rank).or_default();
                line.extend_from_slice(&bytes);
                while let Some(end) = line.iter().position(|b| *b == b'\n') {
                    let rest = line.split_off(end + 1);
                    let news = match serde_json::from_slice(line) {
                        Ok(line) => News::Line { rank, line },
                        Err(_) => News::Words(format!("rank {rank}: {}", String::from_utf8_lossy(line).trim())),
                    };
                    *line = rest;
                    if tell.send(news).is_err() {
                        return Ok(());
                    }
                }
                continue;
            }
            Word::Told(ToConsole::Running { .. }) => News::Running,
            Word::Told(ToConsole::Note { text }) => News::Words(text),
            Word::Told(ToConsole::Ended { rank, end }) if end.status() != 0 => {
                // What it had begun to say is not gone on with by the next of its number.
                begun.remove(&rank);
                News::Words(format!("rank {rank} ended with status {}", end.status()))
            }
            Word::Told(ToConsole::Over { status }) => News::Over(status),
            _ => continue,
        };
        let is_over = matches!(news, News::Over(_));
        if tell.send(news).is_err() || is_over {
            return Ok(());
        }
    }
}
