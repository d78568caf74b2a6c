//! `view-crash`: a job of real tasks on real daemons whose root's node and heir's node are killed at once: when do all survivors hold one
//! view? And a daemon that is killed alone: does anybody notice?

use crate::daemons::{Daemons, said, wait};
use crate::error::Error;
use crate::experiment::{Experiment, Run};
use crate::peers::process::Process;
use crate::peers::sight::now_ms;
use crate::plot::Picture;
use crate::report::{Check, Must, row, significant};
use crate::stats::median;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use phalanx_client::api::jobs::View;
use std::collections::BTreeSet;
use std::fs::File;
use std::process::{Command, Stdio};
use std::time::Duration;

/// The experiment.
pub(crate) struct ViewCrash;

const NODES: u32 = 16;
/// Tasks on each node.
const EACH: u32 = 4;
const SIZE: u32 = NODES * EACH;
const ARITY: u32 = 4;
/// Nodes that are killed: the root's, and that of the task which should be root next.
const KILLED: u32 = 2;
const TRIALS: u64 = 20;
const QUICK: u64 = 3;
/// Before the kill, and after it until we look who saw what.
const REST: Duration = Duration::from_secs(1);
const AFTERWARDS: Duration = Duration::from_secs(2);
/// A daemon that is missed is missed within this time.
const DOUBT: Duration = Duration::from_secs(4);
const JOB: &str = "lab";

impl Experiment for ViewCrash {
    fn name(&self) -> &'static str {
        "view-crash"
    }

    fn about(&self) -> &'static str {
        "64 real tasks on 16 daemons, the nodes of root and heir killed at once: when survivors hold one view"
    }

    fn picture(&self) -> Picture {
        Picture { x: "trial", y: "last_ms", series: &["what"], only: None, beside: &[] }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let trials = run.seeds(QUICK, TRIALS);
        let (mut last, mut torn) = (Vec::new(), 0);
        for trial in 0..trials {
            run.progress(&format!("trial {} of {trials}", trial + 1));
            let mut cluster = Cluster::start()?;
            cluster.fill()?;
            let seen = cluster.kill_first()?;
            let times: Vec<f64> = seen.iter().filter_map(|s| s.after_ms).collect();
            let views: BTreeSet<_> = seen.iter().map(|s| s.view.clone()).collect();
            let whole = times.len() == seen.len() && views.len() == 1;
            torn += u32::from(!whole);
            let worst = times.iter().copied().fold(0.0, f64::max);
            if whole {
                last.push(worst);
            }
            run.row(row! {
                "what": "root and heir", "trial": trial, "tasks": SIZE, "daemons": NODES,
                "first_ms": significant(times.iter().copied().fold(f64::INFINITY, f64::min)),
                "median_ms": median(&times).map(significant), "last_ms": significant(worst), "one_view": whole,
            });
        }
        run.check(Check::new("survivors without one view", Some(f64::from(torn)), Must::AtMost, 0.0));
        let claim = format!("last survivor, median of {trials}: ms ≤ 20");
        run.check(Check::new(claim, median(&last), Must::AtMost, 20.0));
        run.progress("a daemon alone");
        let mut cluster = Cluster::start()?;
        cluster.fill()?;
        let changes = cluster.kill_daemon(1)?;
        run.row(row! { "what": "a daemon alone", "trial": 0, "tasks": SIZE, "daemons": NODES, "changes": changes });
        run.check(Check::new("a daemon dies alone: views that change", Some(changes as f64), Must::AtMost, 0.0));
        Ok(())
    }
}

/// What a survivor saw.
struct Seen {
    /// From the kill to its first view without the dead.
    after_ms: Option<f64>,
    /// Its last view.
    view: Option<String>,
}

struct Cluster {
    daemons: Daemons,
    tasks: Vec<Option<Process>>,
}

impl Cluster {
    fn start() -> Result<Self, Error> {
        Ok(Self { daemons: Daemons::start("view", NODES as usize)?, tasks: Vec::new() })
    }

    /// Starts the job, and waits until everybody is in one view of all.
    fn fill(&mut self) -> Result<(), Error> {
        for rank in 0..SIZE {
            let mut command = Command::new(self.daemons.binary());
            let [rank_text, size, arity] = [rank, SIZE, ARITY].map(|n| n.to_string());
            command.args(["task", JOB, "-o", "json", "--rank", &rank_text, "--size", &size, "--arity", &arity]);
            command.env("PHALANX_SOCKET", self.daemons.daemon((rank / EACH) as usize).socket());
            let out = File::create(self.daemons.dir().join(format!("task-{rank}")))?;
            // What they say when their shepherd is killed is no news.
            command.stdin(Stdio::null()).stdout(out).stderr(Stdio::null());
            self.tasks.push(Some(Process::new(command.spawn()?)));
        }
        let whole = |rank: u32| self.views(rank).last().is_some_and(|v| v.1.tasks.len() == SIZE as usize);
        wait("all tasks are in one view", || (0..SIZE).all(whole))?;
        std::thread::sleep(REST);
        Ok(())
    }

    /// The views that a task was told of, and when.
    fn views(&self, rank: u32) -> Vec<(f64, View)> {
        let text = std::fs::read_to_string(self.daemons.dir().join(format!("task-{rank}"))).unwrap_or_default();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        lines.filter_map(|l| Some((l["at_ms"].as_f64()?, serde_json::from_value(l["view"].clone()).ok()?))).collect()
    }

    fn shepherd(&self, node: u32) -> Result<Pid, Error> {
        let jobs = self.daemons.client(node as usize).jobs().map_err(said)?;
        let pid = jobs.iter().find_map(|j| j.shepherd).ok_or_else(|| said("there is no shepherd"))?;
        Ok(Pid::from_raw(pid.cast_signed()))
    }

    /// Kills the first nodes with all that runs on them; says what the others saw.
    fn kill_first(&mut self) -> Result<Vec<Seen>, Error> {
        let shepherds = (0..KILLED).map(|n| self.shepherd(n)).collect::<Result<Vec<_>, _>>()?;
        let doomed = |all: &mut Vec<Option<Process>>, n: u32| {
            all.iter_mut().take(n as usize).filter_map(Option::take).collect::<Vec<_>>()
        };
        let mut dying = self.daemons.take(&(0..KILLED as usize).collect::<Vec<_>>());
        dying.extend(doomed(&mut self.tasks, KILLED * EACH));
        let at = now_ms();
        for pid in shepherds {
            kill(pid, Signal::SIGKILL)?;
        }
        dying.iter().try_for_each(Process::kill)?;
        std::thread::sleep(AFTERWARDS);
        drop(dying);
        let seen = |rank: u32| {
            let views = self.views(rank);
            let without = |v: &View| v.tasks.iter().all(|&t| t >= KILLED * EACH);
            let after_ms = views.iter().find(|(_, v)| without(v)).map(|(when, _)| when - at);
            Seen { after_ms, view: views.last().filter(|(_, v)| without(v)).map(|(_, v)| v.view.to_string()) }
        };
        Ok((KILLED * EACH..SIZE).map(seen).collect())
    }

    /// Kills a daemon and nothing else; says how many tasks were told of another view.
    fn kill_daemon(&mut self, node: u32) -> Result<usize, Error> {
        let before: Vec<usize> = (0..SIZE).map(|rank| self.views(rank).len()).collect();
        drop(self.daemons.take(&[node as usize]));
        std::thread::sleep(DOUBT);
        Ok((0..SIZE).zip(before).filter(|&(rank, n)| self.views(rank).len() > n).count())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Shepherds end by themselves when their tasks are gone.
        self.tasks.clear();
    }
}
