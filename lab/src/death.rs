//! `death-notice`: a process that is killed, and who knows it when: by the word that it shared with us, by the proof that it is
//! dead which the word makes us look for (this is what counts in a job), by its pidfd, by a socket. All wait for the same death. And a rank of a real job: when a rank on another node is told of a view without
//! it, with its word and without.

use crate::daemons::{Daemons, said, wait};
use crate::error::Error;
use crate::experiment::{Experiment, Role, Run};
use crate::peers::sight::now_ms;
use crate::plot::Picture;
use crate::report::{Check, Must, row, significant};
use crate::stats::{median, quantile};
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use phalanx_client::Client;
use phalanx_client::api::notice::VARIABLE;
use phalanx_client::api::run::{OnFailure, Program, RunWanted, ToConsole};
use phalanx_client::jobs::Event;
use phalanx_client::run::Word;
use phalanx_daemon::Waker;
use phalanx_daemon::shepherd::notice::{Notice, Notices, Page, placed};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};

/// The experiment.
pub(crate) struct DeathNotice;

/// What the process that is killed holds.
const RSS_MIB: [u64; 4] = [1, 64, 512, 2048];
/// What the rank that is killed holds.
const RANK_MIB: u64 = 1024;
const TRIALS: u64 = 40;
const QUICK: u64 = 5;
/// Of the memory that is free so much is taken at most: 1 of 2.
const SHARE: u64 = 2;
/// Before the kill.
const REST: Duration = Duration::from_millis(20);
/// Ranks of the job, and who is killed: the last one. They fill two nodes.
const RANKS: u32 = 4;
const NODES: usize = 2;
const VICTIM: u32 = RANKS - 1;
/// Whose view is waited for: it is on the other node.
const WITNESS: u32 = 0;
/// How who is killed ends.
const KILLED: i32 = Signal::SIGKILL as i32;
const DOOMED: &str = "death-doomed";
const RANK: &str = "death-rank";
/// A word must be known in this part of the time that a pidfd takes at the largest size, and in this part of the job's time without it.
const PART: f64 = 0.25;

impl Experiment for DeathNotice {
    fn name(&self) -> &'static str {
        "death-notice"
    }

    fn about(&self) -> &'static str {
        "big processes that are killed: known by a robust futex, a pidfd, a socket; and when another rank of a real job is told"
    }

    fn roles(&self) -> &'static [Role] {
        &[Role { name: DOOMED, play: doomed }, Role { name: RANK, play: rank }]
    }

    fn picture(&self) -> Picture {
        Picture { x: "rss_mib", y: "median_us", series: &["notice"], only: None, beside: &[] }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let trials = run.seeds(QUICK, TRIALS);
        let free = free_mib()? / SHARE;
        let mut last = None;
        for mib in RSS_MIB.into_iter().filter(|&mib| mib <= free) {
            let mut took = Took::default();
            for trial in 0..trials {
                run.progress(&format!("{mib} MiB, trial {} of {trials}", trial + 1));
                took.add(&killed(mib)?);
            }
            took.tell(run, mib);
            last = Some((mib, took));
        }
        if let Some((mib, took)) = last {
            let claim = format!("{mib} MiB: futex / pidfd, medians of {trials}");
            run.check(Check::new(claim, took.ratio("futex", "pidfd"), Must::AtMost, PART));
        }
        let mib = RANK_MIB.min(free);
        let daemons = Daemons::managed("death", NODES, RANKS as usize / NODES)?;
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let client = Client::new(daemons.daemon(0).socket());
        let mut took = Took::default();
        for trial in 0..trials {
            run.progress(&format!("a rank of {mib} MiB, trial {} of {trials}", trial + 1));
            took.add(&[("view, futex", missed(&runtime, &client, mib, true)?)]);
            took.add(&[("view, pidfd", missed(&runtime, &client, mib, false)?)]);
        }
        // A shepherd outlives its daemon: each must have heard that its job is over.
        let none = |n| daemons.client(n).jobs().is_ok_and(|jobs| jobs.iter().all(|j| j.shepherd.is_none()));
        wait("all shepherds have ended", || (0..NODES).all(none))?;
        took.tell(run, mib);
        let claim =
            format!("a rank of {mib} MiB until another one's view: with the word / without, medians of {trials}");
        run.check(Check::new(claim, took.ratio("view, futex", "view, pidfd"), Must::AtMost, PART));
        Ok(())
    }
}

/// Microseconds, by what told.
#[derive(Default)]
struct Took(BTreeMap<&'static str, Vec<f64>>);

impl Took {
    fn add(&mut self, took: &[(&'static str, f64)]) {
        took.iter().for_each(|&(notice, us)| self.0.entry(notice).or_default().push(us));
    }

    fn tell(&self, run: &mut Run, mib: u64) {
        for (notice, took) in &self.0 {
            let mut sorted = took.clone();
            sorted.sort_unstable_by(f64::total_cmp);
            run.row(row! {
                "notice": *notice, "rss_mib": mib, "median_us": quantile(&sorted, 0.5).map(significant),
                "p99_us": quantile(&sorted, 0.99).map(significant), "trials": sorted.len(),
            });
        }
    }

    fn ratio(&self, over: &str, under: &str) -> Option<f64> {
        Some(median(self.0.get(over)?)? / median(self.0.get(under)?)?)
    }
}

fn free_mib() -> Result<u64, Error> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|l| l.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok());
    Ok(kib.ok_or_else(|| said("/proc/meminfo does not say what is free"))? >> 10)
}

fn mib_of(args: &[String]) -> Result<usize, Error> {
    args.first().and_then(|a| a.parse().ok()).ok_or_else(|| Error::UnknownRole(DOOMED.into()))
}

/// The process that is killed.
fn doomed(args: &[String]) -> Result<(), Error> {
    let heap = vec![1_u8; mib_of(args)? << 20];
    println!("{}", phalanx_client::notice::hold());
    std::hint::black_box(&heap);
    loop {
        std::thread::park();
    }
}

/// Kills a process of this size. Three threads wait for it.
fn killed(mib: u64) -> Result<[(&'static str, f64); 4], Error> {
    let (page, file) = Page::new()?;
    let (mut ours, theirs) = UnixStream::pair()?;
    fcntl(&file, FcntlArg::F_SETFD(FdFlag::empty()))?;
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["child", DOOMED, &mib.to_string()]).env(VARIABLE, placed(&file)?);
    let mut child = command.stdin(OwnedFd::from(theirs)).stdout(Stdio::piped()).spawn()?;
    drop((command, file));
    let mut line = String::new();
    BufReader::new(child.stdout.take().expect("it was asked for")).read_line(&mut line)?;
    if line.trim() != "true" {
        return Err(Error::Child { role: DOOMED.into(), said: line });
    }
    let pid = Pid::from_raw(child.id().cast_signed());
    let (wake, woken) = mpsc::channel();
    let mut notices = Notices::new(Waker::new(move || _ = wake.send(())));
    notices.watch(0, pid.as_raw(), Arc::new(page))?;
    let life = pidfd(pid)?;
    let by_futex = std::thread::spawn(move || {
        loop {
            // The waker goes with `notices`, which is ours.
            let _ = woken.recv();
            if let Some(notice) = notices.next() {
                let Notice::Dead { status: KILLED, since, .. } = notice else { return None };
                return Some((since, Instant::now()));
            }
        }
    });
    let by_pidfd = std::thread::spawn(move || {
        poll(&mut [PollFd::new(life.as_fd(), PollFlags::POLLIN)], PollTimeout::NONE).ok().map(|_| Instant::now())
    });
    let by_socket = std::thread::spawn(move || ours.read(&mut [0]).ok().map(|_| Instant::now()));
    std::thread::sleep(REST);
    let began = Instant::now();
    kill(pid, Signal::SIGKILL)?;
    let by_futex = by_futex.join().ok().flatten();
    let [by_pidfd, by_socket] = [by_pidfd, by_socket].map(|thread| thread.join().ok().flatten());
    child.wait()?;
    let all = || Some([("word", by_futex?.0), ("futex", by_futex?.1), ("pidfd", by_pidfd?), ("socket", by_socket?)]);
    let all = all().ok_or_else(|| said("a death was not told as one"))?;
    Ok(all.map(|(notice, at)| (notice, (at - began).as_secs_f64() * 1e6)))
}

fn pidfd(pid: Pid) -> Result<OwnedFd, Error> {
    use nix::libc;
    // SAFETY: a new file, which is nobody else's; neither `nix` nor the standard library can open one.
    #[allow(unsafe_code)]
    let file = unsafe {
        let file = libc::syscall(libc::SYS_pidfd_open, pid.as_raw(), 0);
        OwnedFd::from_raw_fd(nix::errno::Errno::result(file)? as i32)
    };
    Ok(file)
}

/// A rank: says which process it is, stays until somebody is missed, and says when it was told.
fn rank(args: &[String]) -> Result<(), Error> {
    let client = phalanx_client::blocking::Client::from_environment();
    let mut task = client.task().map_err(said)?;
    let heap = vec![1_u8; mib_of(args)? << 20];
    task.wait_full().map_err(said)?;
    println!("pid {}", std::process::id());
    loop {
        if let Event::View(view) = task.event().map_err(said)?
            && !view.tasks.contains(&VICTIM)
        {
            println!("gone {}", now_ms());
            std::hint::black_box(&heap);
            return Ok(());
        }
    }
}

/// Starts a job, kills its last rank, and waits until another one is told of a view without it.
fn missed(runtime: &Runtime, client: &Client, mib: u64, by_word: bool) -> Result<f64, Error> {
    let env: Vec<_> = std::env::vars().collect();
    let lab = std::env::current_exe()?.display().to_string();
    let program = |ranks: u32, mib: u64| {
        // Without its word a rank is a program as any other.
        let before: &[&str] = if by_word { &[] } else { &["env", "-u", VARIABLE] };
        let mib = mib.to_string();
        let argv = before.iter().copied().chain([lab.as_str(), "child", RANK, &mib]).map(str::to_owned).collect();
        Program { argv, ranks, env: env.clone(), wdir: "/".to_owned() }
    };
    let programs = vec![program(RANKS - 1, 1), program(1, mib)];
    let wanted = RunWanted { on_failure: OnFailure::Continue, ..RunWanted::of(programs) };
    runtime.block_on(async {
        let mut job = client.run(&wanted).await.map_err(said)?;
        let mut lines = vec![String::new(); RANKS as usize];
        let mut killed_ms = None;
        loop {
            match job.next().await.map_err(said)? {
                Word::Output { rank, bytes, .. } => lines[rank as usize].push_str(&String::from_utf8_lossy(&bytes)),
                Word::Told(ToConsole::Over { status }) => {
                    let told = number(&lines[WITNESS as usize], "gone ");
                    let us = told.zip(killed_ms).map(|(told, killed): (f64, f64)| (told - killed) * 1e3);
                    return us.ok_or_else(|| said(format!("the job ended with {status}: {lines:?}")));
                }
                _ => {}
            }
            if killed_ms.is_none() && lines.iter().all(|text| number(text, "pid ").is_some()) {
                tokio::time::sleep(REST).await;
                let pid = number(&lines[VICTIM as usize], "pid ").unwrap_or_default();
                killed_ms = Some(now_ms());
                kill(Pid::from_raw(pid as i32), Signal::SIGKILL)?;
            }
        }
    })
}

/// The number on the line that begins so, once it is whole.
fn number(text: &str, begin: &str) -> Option<f64> {
    text.split_inclusive('\n').filter(|l| l.ends_with('\n')).find_map(|l| l.strip_prefix(begin)?.trim().parse().ok())
}
