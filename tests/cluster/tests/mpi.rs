//! Real MPI programs, unmodified, across real daemons. The programs are those of `tests/mpi`.
//!
//! Needs `mpicc` (Debian: `mpich`, `libmpich-dev`), and for one story Python's `mpi4py`; what is missing is said, and its story skipped.
//! All daemons are on this machine, so ranks share memory; UCX is kept to the loopback.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use phalanx_cluster::{Cluster, PATIENCE, binary};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Instant;

fn compiled(cluster: &Cluster, name: &str) -> Option<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../mpi").join(format!("{name}.c"));
    let out = cluster.node(0).dir().join(name);
    let Ok(built) = Command::new("mpicc").arg(source).arg("-O2").arg("-o").arg(&out).arg("-lm").output() else {
        eprintln!("skipped: there is no mpicc here (Debian: apt-get install mpich libmpich-dev)");
        return None;
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(out)
}

/// A `phalanx run`, and what it says.
struct Console {
    process: Child,
    lines: mpsc::Receiver<String>,
    said: Vec<String>,
}

impl Console {
    fn start(cluster: &Cluster, arguments: &[&str]) -> Self {
        let mut command = Command::new(binary());
        command.arg("run").args(arguments).env("PHALANX_SOCKET", cluster.node(0).socket()).env("UCX_NET_DEVICES", "lo");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().expect("the command runs");
        let (tell, lines) = mpsc::channel();
        let (out, err) = (process.stdout.take().expect("piped"), process.stderr.take().expect("piped"));
        for from in [Box::new(out) as Box<dyn std::io::Read + Send>, Box::new(err)] {
            let tell = tell.clone();
            std::thread::spawn(move || {
                BufReader::new(from).lines().map_while(Result::ok).all(|line| tell.send(line).is_ok())
            });
        }
        Self { process, lines, said: Vec::new() }
    }

    fn next(&mut self, began: Instant) -> bool {
        match self.lines.recv_timeout(PATIENCE.saturating_sub(began.elapsed())) {
            Ok(line) => self.said.push(line),
            Err(mpsc::RecvTimeoutError::Disconnected) => return false,
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("it goes on and on: {:#?}", self.said),
        }
        true
    }

    fn wait_for(&mut self, text: &str) {
        let began = Instant::now();
        while !self.said.iter().any(|line| line.contains(text)) {
            assert!(self.next(began), "not said: {text}; but {:#?}", self.said);
        }
    }

    /// Waits for its end.
    fn end(mut self) -> (Option<i32>, Vec<String>) {
        let began = Instant::now();
        while self.next(began) {}
        (self.process.wait().expect("our child").code(), std::mem::take(&mut self.said))
    }

    fn ends_well_with(self, text: &str) {
        let (status, said) = self.end();
        assert!(status == Some(0) && said.iter().any(|l| l.contains(text)), "{status:?} {said:#?}");
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// CM-2: rings and sums over four daemons.
#[test]
fn cm_2_mpi_programs_run_across_daemons() {
    let cluster = Cluster::managed(4, 2);
    let (Some(ring), Some(allreduce)) = (compiled(&cluster, "ring"), compiled(&cluster, "allreduce")) else { return };
    let (ring, allreduce) = (ring.to_str().expect("a path of ours"), allreduce.to_str().expect("a path of ours"));
    Console::start(&cluster, &["-n", "5", ring]).ends_well_with("ring 5 ranks token 50 right");
    Console::start(&cluster, &["-n", "4", "-ppn", "1", allreduce]).ends_well_with("allreduce 4 ranks right");
    // Two programs are one world.
    Console::start(&cluster, &["-n", "1", ring, ":", "-n", "2", ring]).ends_well_with("ring 3 ranks token 30 right");
}

/// CM-2: a rank that calls `MPI_Abort` ends the job with its status.
#[test]
fn cm_2_an_abort_ends_all_with_its_status() {
    let cluster = Cluster::managed(2, 2);
    let path = cluster.write(
        "abort.c",
        "#include <mpi.h>\nint main(int c, char **v) { int r; MPI_Init(&c, &v); MPI_Comm_rank(MPI_COMM_WORLD, &r);\n\
         if (r == 2) MPI_Abort(MPI_COMM_WORLD, 7); MPI_Barrier(MPI_COMM_WORLD); MPI_Finalize(); return 0; }\n",
    );
    let out = cluster.node(0).dir().join("abort");
    let Ok(built) = Command::new("mpicc").arg(&path).arg("-o").arg(&out).status() else {
        return eprintln!("skipped: there is no mpicc here");
    };
    assert!(built.success());
    let (status, said) = Console::start(&cluster, &["-n", "4", out.to_str().expect("a path of ours")]).end();
    assert_eq!(status, Some(7), "{said:#?}");
}

/// CM-1: a solver whose node dies starts again on the others, goes on from its checkpoint, and is right.
#[test]
fn cm_1_a_solver_resumes_from_its_checkpoint_when_its_node_dies() {
    let mut cluster = Cluster::managed(4, 2);
    let Some(cg) = compiled(&cluster, "cg") else { return };
    let dir = cluster.node(0).dir().to_owned();
    let arguments = ["--name", "cg", "-n", "4", "-ppn", "2", "--on-failure", "restart", "-wdir"];
    let arguments =
        [&arguments[..], &[dir.to_str().expect("a path of ours"), cg.to_str().expect("a path of ours")]].concat();
    // So slow that somebody can die in between.
    let arguments = [&arguments[..], &["24", "25", "5"]].concat();
    let mut console = Console::start(&cluster, &arguments);
    console.wait_for("cg iteration 10");
    let job = cluster.node(0).client().run_detail("cg").expect("the manager knows it");
    let name = &job.all_ranks.iter().find(|r| r.rank == 3).expect("a rank").node;
    let victim = (0..4).find(|&n| cluster.node(n).name() == name).expect("a node of ours");
    let jobs = cluster.node(victim).client().jobs().expect("it answers");
    let shepherd = jobs.iter().find(|j| j.name == "cg").and_then(|j| j.shepherd).expect("a shepherd");
    let shepherd = Pid::from_raw(shepherd.cast_signed());
    kill(shepherd, Signal::SIGSTOP).expect("it runs");
    cluster.kill(victim);
    kill(shepherd, Signal::SIGKILL).expect("it runs");
    console.wait_for("cg attempt 1 resumes at iteration");
    let resumed =
        console.said.iter().find_map(|l| l.split_once("resumes at iteration ")).map(|(_, n)| n.parse::<u32>());
    assert!(resumed.is_some_and(|n| n.is_ok_and(|n| n >= 5)), "{:#?}", console.said);
    console.ends_well_with("right");
}

/// The interpreter: one of an environment of its own, when there is one.
fn python() -> String {
    std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned())
}

/// CM-2: Python's MPI.
#[test]
fn cm_2_mpi4py_runs_across_daemons() {
    let has_it = Command::new(python()).args(["-c", "from mpi4py import MPI"]).stderr(Stdio::null()).status();
    if !has_it.is_ok_and(|s| s.success()) {
        return eprintln!("skipped: there is no mpi4py here (pip install mpi4py mpich)");
    }
    let cluster = Cluster::managed(3, 2);
    let bench = |ranks: &str, what: &[&str]| {
        Console::start(&cluster, &[&["-n", ranks, &python(), "-m", "mpi4py.bench"], what].concat())
    };
    let hello = bench("4", &["helloworld"]);
    let (status, said) = hello.end();
    assert_eq!(status, Some(0), "{said:#?}");
    (0..4).for_each(|r| assert!(said.iter().any(|l| l.contains(&format!("process {r} of 4"))), "{said:#?}"));
    bench("4", &["ringtest", "-l", "2", "-n", "64"]).ends_well_with("time for 2 loops");
    // Ranks that poll for each other take turns on a busy machine: 10,000 of each size would take a minute, under any launcher.
    bench("2", &["pingpong", "-m", "1", "-n", "1024", "-l", "100", "-s", "10"]).ends_well_with("1024");
}

/// CM-2: `MPI_Comm_spawn` with a real library: parents and children speak to each other.
#[test]
fn cm_2_mpi_programs_spawn_others() {
    // Whether the library can do it at all: under its own launcher.
    const FAMILY: &str = "
import sys
from mpi4py import MPI
parent = MPI.Comm.Get_parent()
if parent == MPI.COMM_NULL:
    family = MPI.COMM_WORLD.Spawn(sys.executable, args=sys.argv, maxprocs=3).Merge()
else:
    family = parent.Merge(high=True)
print('family of', family.size, 'sum', family.allreduce(family.rank), flush=True)
";
    let cluster = Cluster::managed(4, 2);
    let script = cluster.node(0).dir().join("family.py");
    std::fs::write(&script, FAMILY).expect("a folder of ours");
    let (python, script) = (python(), script.to_str().expect("a path of ours"));
    let launcher = Path::new(&python).with_file_name("mpiexec");
    let probe = Command::new(launcher).args(["-n", "2", &python, script]).stderr(Stdio::null()).output();
    if !probe.is_ok_and(|o| String::from_utf8_lossy(&o.stdout).contains("family of 5 sum 10")) {
        return eprintln!("skipped: no MPI library here can spawn (pip install mpi4py mpich, and PYTHON=…/bin/python)");
    }
    let (status, said) = Console::start(&cluster, &["-n", "2", &python, script]).end();
    assert_eq!((status, said), (Some(0), vec!["family of 5 sum 10".to_owned(); 5]));
}
