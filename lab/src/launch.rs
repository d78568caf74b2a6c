//! `launch`: how long it takes until the ranks of a job run, and until all have ended: ours beside hydra, and beside a bare loop that starts
//! and reaps as many processes. Both sides in turns, in the same run. And how it grows, in the simulator.

mod simulated;

use crate::daemons::{Daemons, said};
use crate::error::Error;
use crate::experiment::{Experiment, Run};
use crate::plot::Picture;
use crate::report::{Check, Must, row, significant};
use crate::stats::median;
use phalanx_client::Client;
use phalanx_client::api::run::{Program, RunWanted, ToConsole};
use phalanx_client::run::Word;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;
use tokio::runtime::{Builder, Runtime};

/// The experiment.
pub(crate) struct Launch;

/// Ranks of programs that call `MPI_Init`, on one daemon: hydra has one host, too.
const RANKS: [u32; 4] = [1, 2, 4, 8];
/// No-ops over many daemons.
const MANY: (u32, usize) = (1024, 64);
const QUICK_MANY: (u32, usize) = (128, 8);
const ROUNDS: u64 = 20;
const QUICK: u64 = 3;
/// What hydra takes may be exceeded by so much.
const SLACK_MS: f64 = 5.0;
/// A program that is done as soon as MPI runs.
const INIT: &str = "#include <mpi.h>\nint main(int c, char **v) { MPI_Init(&c, &v); MPI_Finalize(); return 0; }\n";

impl Experiment for Launch {
    fn name(&self) -> &'static str {
        "launch"
    }

    fn about(&self) -> &'static str {
        "parallel jobs on real daemons: until they run and until they have ended, beside hydra and beside a bare spawn-and-reap loop"
    }

    fn picture(&self) -> Picture {
        Picture { x: "ranks", y: "total_ms", series: &["launcher"], only: None, beside: &[] }
    }

    fn run(&self, run: &mut Run) -> Result<(), Error> {
        let rounds = run.seeds(QUICK, ROUNDS);
        simulated::simulated(run)?;
        mpi(run, rounds)?;
        many(run, rounds)
    }
}

/// Until a job runs, and until it is over.
#[derive(Clone, Copy)]
struct Took {
    start_ms: f64,
    total_ms: f64,
}

/// Programs that call `MPI_Init`, ours and hydra in turns.
fn mpi(run: &mut Run, rounds: u64) -> Result<(), Error> {
    let most = RANKS[RANKS.len() - 1];
    let daemons = Daemons::managed("launch", 1, most as usize)?;
    let Some(program) = compiled(daemons.dir())? else {
        run.note("no mpicc here (apt-get install libmpich-dev mpich): hydra is left out");
        return Ok(());
    };
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let client = Client::new(daemons.daemon(0).socket());
    for ranks in RANKS {
        let (mut ours, mut hydra) = (Vec::new(), Vec::new());
        for round in 0..rounds {
            run.progress(&format!("{ranks} ranks, round {} of {rounds}", round + 1));
            ours.push(started(&runtime, &client, &program, ranks)?);
            hydra.push(by_hydra(&program, ranks)?);
        }
        let both = told(run, ("phalanx", ranks, 1), &ours).zip(told(run, ("hydra", ranks, 1), &hydra));
        let claim = format!("{ranks} ranks with MPI_Init: ours − hydra, medians of {rounds}, ms");
        run.check(Check::new(claim, both.map(|(o, h)| o - h), Must::AtMost, SLACK_MS));
    }
    Ok(())
}

/// No-ops over many daemons, ours and a bare loop in turns.
fn many(run: &mut Run, rounds: u64) -> Result<(), Error> {
    let (ranks, nodes) = if run.options.quick { QUICK_MANY } else { MANY };
    let daemons = Daemons::managed("launch", nodes, ranks as usize / nodes)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let client = Client::new(daemons.daemon(0).socket());
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        run.progress(&format!("{ranks} no-ops over {nodes} daemons, round {} of {rounds}", round + 1));
        ours.push(started(&runtime, &client, Path::new("/bin/true"), ranks)?);
        bare.push(by_hand(ranks)?);
    }
    let both = told(run, ("phalanx", ranks, nodes), &ours).zip(told(run, ("spawn and reap", ranks, 1), &bare));
    let claim = format!("{ranks} no-ops over {nodes} daemons / a bare spawn-and-reap loop, medians of {rounds}");
    run.check(Check::new(claim, both.map(|(o, b)| o / b), Must::AtMost, 1.5));
    Ok(())
}

/// A row of medians; gives that of the whole.
fn told(run: &mut Run, (launcher, ranks, daemons): (&str, u32, usize), took: &[Took]) -> Option<f64> {
    let start_ms = median(&took.iter().map(|t| t.start_ms).collect::<Vec<_>>())?;
    let total_ms = median(&took.iter().map(|t| t.total_ms).collect::<Vec<_>>())?;
    run.row(row! {
        "launcher": launcher, "ranks": ranks, "daemons": daemons, "start_ms": significant(start_ms),
        "total_ms": significant(total_ms), "rounds": took.len(),
    });
    Some(total_ms)
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}

fn started(runtime: &Runtime, client: &Client, program: &Path, ranks: u32) -> Result<Took, Error> {
    let env = std::env::vars().collect();
    let program = Program { argv: vec![program.display().to_string()], ranks, env, wdir: "/".to_owned() };
    runtime.block_on(async {
        let (began, mut start_ms) = (Instant::now(), 0.0);
        let mut job = client.run(&RunWanted::of(vec![program])).await.map_err(said)?;
        loop {
            match job.next().await.map_err(said)? {
                Word::Told(ToConsole::Running { .. }) => start_ms = milliseconds(began),
                Word::Told(ToConsole::Over { status: 0 }) => {
                    return Ok(Took { start_ms, total_ms: milliseconds(began) });
                }
                Word::Told(ToConsole::Over { status }) => return Err(said(format!("the job ended with {status}"))),
                Word::Told(ToConsole::Note { text }) => return Err(said(text)),
                _ => {}
            }
        }
    })
}

/// When its ranks run hydra does not say.
fn by_hydra(program: &Path, ranks: u32) -> Result<Took, Error> {
    let mut command = Command::new("mpiexec");
    command.args(["-launcher", "fork", "-n", &ranks.to_string()]).arg(program);
    let began = Instant::now();
    let status = command.stdin(Stdio::null()).status()?;
    let total_ms = milliseconds(began);
    if status.success() { Ok(Took { start_ms: f64::NAN, total_ms }) } else { Err(said(format!("mpiexec: {status}"))) }
}

/// As many processes, started and reaped by nobody but us.
fn by_hand(processes: u32) -> Result<Took, Error> {
    let began = Instant::now();
    let mut children = Vec::with_capacity(processes as usize);
    for _ in 0..processes {
        children.push(Command::new("/bin/true").stdin(Stdio::null()).spawn()?);
    }
    let start_ms = milliseconds(began);
    for mut child in children {
        child.wait()?;
    }
    Ok(Took { start_ms, total_ms: milliseconds(began) })
}

/// The program that calls `MPI_Init`; `None` where there is no MPI.
fn compiled(dir: &Path) -> Result<Option<PathBuf>, Error> {
    let (source, program) = (dir.join("init.c"), dir.join("init"));
    std::fs::write(&source, INIT)?;
    match Command::new("mpicc").arg(&source).arg("-o").arg(&program).status() {
        Ok(status) if status.success() => Ok(Some(program)),
        Ok(status) => Err(said(format!("mpicc: {status}"))),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e.into()),
    }
}
