//! `soak`: fifty real daemons for half an hour, killed, stopped, cut off and restarted at random. No healthy member may be
//! lost, nothing may leak, and in the end there is one view.
//!
//! A member is *healthy* while nothing befalls it, and after [`GRACE`] since something did. A failure of a healthy member that
//! a healthy one reports is a mistake; what the afflicted see and suffer is not counted. The few that are never killed show
//! whether memory and descriptors stay as they are.

use crate::error::Error;
use crate::experiment::{Experiment, Run};
use crate::peers::process::Process;
use crate::plot::Picture;
use crate::report::{Check, Must, row, significant};
use crate::stats::median;
use phalanx_client::api::{State, What};
use phalanx_client::blocking::Client;
use phalanx_client::local::{Daemon, Start};
use phalanx_core::Rng;
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

/// The experiment.
pub(crate) struct Soak;

const NODES: usize = 50;
/// Half an hour.
const LONG_S: f64 = 1800.0;
const QUICK_S: f64 = 60.0;
/// Those that are stopped and cut off, and never killed.
const KEPT: usize = 10;
/// Something befalls this many at a time, at most.
const AFFLICTED_MAX: usize = 5;
/// Between two afflictions, at most.
const PAUSE_MS: u64 = 2500;
/// After an affliction a member may still be blamed for it.
const GRACE: Duration = Duration::from_secs(15);
const PATIENCE: Duration = Duration::from_secs(60);
/// In the end those that fell again and again must have been well for some minutes before they come back (damping).
const SETTLE: Duration = Duration::from_secs(420);
const LOOK: Duration = Duration::from_millis(20);
const SAMPLE: Duration = Duration::from_secs(5);
/// At the end memory and descriptors are at most so much higher than after the first minutes.
const GROWTH: f64 = 1.15;
const KEY: &str = "7068616c616e78207068616c616e78207068616c616e78207068616c616e7821";

/// What befalls a member.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Affliction {
    /// Killed, and started again later.
    Killed,
    /// Stopped, and let go on later.
    Stopped,
    /// What it sends is lost, to all or to some.
    Cut,
}

/// A daemon, and how it fares.
struct Member {
    daemon: Daemon,
    bind: String,
    process: Option<Process>,
    pid: u32,
    /// What befalls it, and until when.
    afflicted: Option<(Affliction, Instant)>,
    /// Healthy from then on.
    well_at: Instant,
}

/// Somebody said that somebody failed.
struct Blame {
    observer: usize,
    subject: usize,
    at: Instant,
}

struct Cluster {
    binary: PathBuf,
    dir: PathBuf,
    members: Vec<Member>,
    tell: Sender<Blame>,
    heard: Receiver<Blame>,
    rng: Rng,
    counts: [u64; 3],
    mistakes: Vec<String>,
}

impl Experiment for Soak {
    fn name(&self) -> &'static str {
        "soak"
    }

    fn about(&self) -> &'static str {
        "fifty daemons under random kills, stops, cuts and restarts for half an hour: mistakes, leaks, one view"
    }

    fn picture(&self) -> Picture {
        Picture { x: "at_s", y: "rss_mb", series: &["what"], only: None, beside: &[] }
    }

    fn budget_s(&self) -> f64 {
        LONG_S
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let lasts = if run.options.quick { QUICK_S.min(run.options.budget_s) } else { run.options.budget_s };
        let seed = run.options.seeds.unwrap_or(1);
        let mut cluster = Cluster::start(seed)?;
        if cluster.wait_until_whole(PATIENCE).is_none() {
            return Err(Error::Child { role: "phalanx".into(), said: "not all see all".into() });
        }
        let began = Instant::now();
        let (mut sample_at, mut strike_at) = (began, began + GRACE);
        let mut samples: Vec<(f64, f64)> = Vec::new();
        while began.elapsed().as_secs_f64() < lasts {
            let now = Instant::now();
            cluster.relieve(now)?;
            cluster.judge();
            if strike_at <= now {
                cluster.strike(now)?;
                strike_at = now + Duration::from_millis(cluster.rng.below(PAUSE_MS));
            }
            if sample_at <= now {
                sample_at = now + SAMPLE;
                if let (Some(rss), Some(files)) = cluster.held() {
                    let at_s = significant(began.elapsed().as_secs_f64());
                    run.row(row! { "what": "kept", "at_s": at_s, "rss_mb": significant(rss), "files": files });
                    samples.push((rss, files));
                }
                let [kills, stops, cuts] = cluster.counts;
                let mistakes = cluster.mistakes.len();
                run.progress(&format!(
                    "{:.0} s: {kills} kills, {stops} stops, {cuts} cuts, {mistakes} mistakes",
                    began.elapsed().as_secs_f64()
                ));
            }
            std::thread::sleep(LOOK);
        }
        cluster.end_afflictions()?;
        let settle = cluster.wait_until_whole(SETTLE);
        cluster.judge();
        cluster.report(run, lasts, settle, &samples);
        Ok(())
    }
}

impl Cluster {
    fn start(seed: u64) -> Result<Self, Error> {
        let binary = std::env::current_exe()?.with_file_name("phalanx");
        if !binary.is_file() {
            let reason = format!("{} is not there: cargo build --release -p phalanx", binary.display());
            return Err(Error::Peer { library: "phalanx", reason });
        }
        let dir = std::env::temp_dir().join(format!("phalanx-soak-{}", std::process::id()));
        let (tell, heard) = mpsc::channel();
        let (rng, counts) = (Rng::new(seed, 1), [0; 3]);
        let mut cluster = Self { binary, dir, members: Vec::new(), tell, heard, rng, counts, mistakes: Vec::new() };
        for n in 0..NODES {
            let daemon = Daemon::at(cluster.dir.join(format!("n{n}")));
            let bind = "127.0.0.1:0".to_owned();
            let well_at = Instant::now() + GRACE;
            cluster.members.push(Member { daemon, bind, process: None, pid: 0, afflicted: None, well_at });
            cluster.run(n)?;
            let status = cluster.members[n].daemon.answer(PATIENCE);
            let status = status.map_err(|said| Error::Child { role: "phalanx".into(), said })?;
            // It comes back where it was.
            cluster.members[n].bind = status.me.addr.to_string();
            cluster.listen(n);
        }
        Ok(cluster)
    }

    fn run(&mut self, n: usize) -> Result<(), Error> {
        let join: Vec<String> =
            self.members.iter().take(3).map(|m| m.bind.clone()).filter(|b| !b.ends_with(":0")).collect();
        let member = &mut self.members[n];
        let start = Start {
            binary: &self.binary,
            launcher: &[],
            name: &format!("n{n}"),
            bind: &member.bind,
            join: &join,
            key: Some(KEY),
            profile: None,
            config: None,
        };
        let child = member.daemon.command(&start)?.spawn()?;
        member.pid = child.id();
        member.process = Some(Process::new(child));
        Ok(())
    }

    /// Hears for ever whom a member takes for failed.
    fn listen(&self, observer: usize) {
        let (client, tell) = (Client::new(self.members[observer].daemon.socket()), self.tell.clone());
        std::thread::spawn(move || {
            for event in client.events(Some(0)).flatten() {
                let What::Left { member } = event.what else { continue };
                let subject = member.name.strip_prefix('n').and_then(|n| n.parse().ok());
                if let Some(subject) = subject.filter(|_| member.state == State::Failed)
                    && tell.send(Blame { observer, subject, at: Instant::now() }).is_err()
                {
                    return;
                }
            }
        });
    }

    /// Something befalls somebody.
    fn strike(&mut self, now: Instant) -> Result<(), Error> {
        if self.members.iter().filter(|m| m.afflicted.is_some()).count() >= AFFLICTED_MAX {
            return Ok(());
        }
        let n = self.rng.below(NODES as u64) as usize;
        if self.members[n].afflicted.is_some() {
            return Ok(());
        }
        let kind = match self.rng.below(3) {
            0 if n >= KEPT => Affliction::Killed,
            1 => Affliction::Stopped,
            _ => Affliction::Cut,
        };
        let lasts = Duration::from_millis(match kind {
            Affliction::Killed => 200 + self.rng.below(8000),
            Affliction::Stopped => 50 + self.rng.below(4000),
            Affliction::Cut => 500 + self.rng.below(6000),
        });
        match kind {
            Affliction::Killed => self.members[n].process = None,
            Affliction::Stopped => {
                self.members[n].process.as_ref().map_or(Ok(()), |p| p.stop(true))?;
            }
            Affliction::Cut => {
                // Half of the time all is lost, otherwise what goes to one other.
                let other = (n + 1 + self.rng.below(NODES as u64 - 1) as usize) % NODES;
                let rule = match self.rng.below(2) {
                    0 => "kind = \"drop\"".to_owned(),
                    _ => format!("kind = \"drop\"\nonly = [\"n{other}\"]"),
                };
                // The other one may be gone just now.
                let _ = Client::new(self.members[n].daemon.socket()).inject(&rule);
            }
        }
        self.counts[kind as usize] += 1;
        self.members[n].afflicted = Some((kind, now + lasts));
        Ok(())
    }

    /// Ends what has lasted long enough.
    fn relieve(&mut self, now: Instant) -> Result<(), Error> {
        for n in 0..NODES {
            let Some((kind, _)) = self.members[n].afflicted.filter(|a| a.1 <= now) else { continue };
            match kind {
                Affliction::Killed => self.run(n)?,
                Affliction::Stopped => {
                    self.members[n].process.as_ref().map_or(Ok(()), |p| p.stop(false))?;
                }
                Affliction::Cut => {
                    let _ = Client::new(self.members[n].daemon.socket()).heal(None);
                }
            }
            (self.members[n].afflicted, self.members[n].well_at) = (None, now + GRACE);
        }
        Ok(())
    }

    fn end_afflictions(&mut self) -> Result<(), Error> {
        self.relieve(Instant::now() + Duration::from_secs(3600))
    }

    /// Who was healthy and was blamed by a healthy one?
    fn judge(&mut self) {
        while let Ok(Blame { observer, subject, at }) = self.heard.try_recv() {
            let well = |n: usize| self.members.get(n).is_some_and(|m| m.afflicted.is_none() && m.well_at <= at);
            if well(observer) && well(subject) {
                self.mistakes.push(format!("n{observer} took n{subject} for failed"));
            }
        }
    }

    /// Memory and descriptors of those that were never killed: medians.
    fn held(&self) -> (Option<f64>, Option<f64>) {
        let kept = || self.members[..KEPT].iter();
        let rss: Vec<f64> = kept().filter_map(|m| crate::peers::ground::rss_mb(m.pid)).collect();
        let files = |pid: u32| std::fs::read_dir(format!("/proc/{pid}/fd")).ok().map(|d| d.count() as f64);
        let files: Vec<f64> = kept().filter_map(|m| files(m.pid)).collect();
        (median(&rss), median(&files))
    }

    /// Waits until all see all; says how long it took, or `None` when that was not enough.
    fn wait_until_whole(&self, patience: Duration) -> Option<f64> {
        let began = Instant::now();
        for member in &self.members {
            let client = Client::new(member.daemon.socket());
            while client.status().map_or(0, |s| s.alive) != NODES {
                if began.elapsed() > patience {
                    return None;
                }
                std::thread::sleep(LOOK);
            }
        }
        Some(began.elapsed().as_secs_f64())
    }

    fn report(&self, run: &mut Run, lasts: f64, settle_s: Option<f64>, samples: &[(f64, f64)]) {
        let [kills, stops, cuts] = self.counts;
        let quarter = samples.len() / 4;
        let part = |from: usize, to: usize, of: fn(&(f64, f64)) -> f64| {
            median(&samples[from..to].iter().map(of).collect::<Vec<_>>())
        };
        let grown = |of: fn(&(f64, f64)) -> f64| {
            // The first quarter warms up.
            let before = part(quarter, 2 * quarter, of)?;
            let after = part(samples.len() - quarter, samples.len(), of)?;
            Some(after / before)
        };
        let (rss, files) = (grown(|s| s.0), grown(|s| s.1));
        run.row(row! {
            "what": "whole", "nodes": NODES, "minutes": significant(lasts / 60.0), "kills": kills, "stops": stops,
            "cuts": cuts, "false_positives": self.mistakes.len(), "rss_growth": rss.map(significant),
            "files_growth": files.map(significant), "settle_s": settle_s.map(significant),
        });
        self.mistakes.iter().take(10).for_each(|m| run.note(m.clone()));
        run.check(Check::new("no healthy member was lost", Some(self.mistakes.len() as f64), Must::AtMost, 0.0));
        run.check(Check::new("memory is flat", rss, Must::AtMost, GROWTH));
        run.check(Check::new("descriptors are flat", files, Must::AtMost, GROWTH));
        run.check(Check::new("one view in the end", settle_s, Must::AtMost, SETTLE.as_secs_f64()));
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.members.iter_mut().for_each(|m| m.process = None);
        // What cannot be removed lies in a directory for such things.
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
