//! Real MPI programs under the PMI server alone: its nodes are in this process, and their gathers go by hand.
//!
//! Needs `mpicc` and `mpiexec`'s library (Debian: `libmpich-dev`); where it is missing the tests say so and are skipped. All ranks are on this machine,
//! so UCX is kept to its loopback: `UCX_NET_DEVICES=lo`. Where memory must not be shared `UCX_TLS=tcp,self` does it, but with that MPICH 4.0.2
//! stays in `MPI_Finalize` for ever, under its own launcher too, when there are ranks that never spoke to each other.

use phalanx_daemon::shepherd::pmi::{Answer, Errand, Met, Output, Pmi, Setting};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

/// More than enough on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/mpi")
}

/// A program of `tests/mpi`, or of `source`; `None` where there is no compiler for it.
fn compile(name: &str, source: Option<&str>) -> Option<PathBuf> {
    let out = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    let file = source.map_or_else(|| folder().join(format!("{name}.c")), |_| out.with_extension("c"));
    if let Some(source) = source {
        std::fs::write(&file, source).expect("a folder of ours");
    }
    let Ok(built) = Command::new("mpicc").arg(&file).arg("-O2").arg("-o").arg(&out).arg("-lm").output() else {
        eprintln!("skipped: there is no mpicc here (Debian: apt-get install mpich libmpich-dev)");
        return None;
    };
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    Some(out)
}

/// How ranks come to their server.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    /// Over a socket that they inherit.
    Inherited,
    /// Over a port, where they say who they are.
    Port,
}

enum News {
    Came(u32, Box<dyn Write + Send>),
    Said(u32, Vec<u8>),
    /// It speaks no more.
    Silent(u32),
    /// It writes no more; what it wrote.
    Ended(u32, String),
}

/// Ranks; those that are left are killed.
struct Ranks(BTreeMap<u32, Child>);

impl Drop for Ranks {
    fn drop(&mut self) {
        for child in self.0.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What became of a job.
struct Over {
    /// What ranks wrote, rank by rank.
    out: String,
    statuses: BTreeMap<u32, i32>,
    /// Gathers that there were.
    gathers: usize,
    /// Who wanted to abort it, and with which status.
    aborts: Vec<(u32, i32)>,
    asked: Vec<Errand>,
}

fn listen(rank: u32, mut from: impl Read, tell: &Sender<News>) {
    let mut bytes = [0; 4096];
    while let Ok(length) = from.read(&mut bytes) {
        if length == 0 || tell.send(News::Said(rank, bytes[..length].to_vec())).is_err() {
            break;
        }
    }
    let _ = tell.send(News::Silent(rank));
}

/// Of a connection that was made: its first line says whose it is.
fn welcome(stream: TcpStream, tell: &Sender<News>) {
    let mut from = BufReader::new(stream.try_clone().expect("a socket"));
    let mut line = String::new();
    from.read_line(&mut line).expect("a first line");
    let rank = line.trim().rsplit_once("pmiid=").and_then(|(_, id)| id.parse().ok()).expect("who it is");
    let _ = tell.send(News::Came(rank, Box::new(stream)));
    let _ = tell.send(News::Said(rank, line.into_bytes()));
    listen(rank, from, tell);
}

/// Runs a program: `ranks` of each node.
fn run(program: &Path, args: &[&str], ranks: &[u32], way: Way) -> Over {
    let size: u32 = ranks.iter().sum();
    let mut next = 0;
    let nodes: Vec<Vec<(u32, u32)>> = ranks
        .iter()
        .map(|n| {
            next += n;
            vec![(next - n, next)]
        })
        .collect();
    let node_of = |rank: u32| nodes.iter().position(|n| n[0].1 > rank).expect("a rank of the job");
    let name = "test_1_0".to_owned();
    let setting = Setting { name, size, nodes: nodes.clone(), programs: vec![size], universe: size, puts: Vec::new() };
    let mut servers = vec![Pmi::new(setting); nodes.len()];
    let (tell, news) = channel();
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let port = listener.local_addr().expect("bound").to_string();
    if way == Way::Port {
        let tell = tell.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().take(size as usize).flatten() {
                let tell = tell.clone();
                std::thread::spawn(move || welcome(stream, &tell));
            }
        });
    }
    let mut sockets: BTreeMap<u32, Box<dyn Write + Send>> = BTreeMap::new();
    let mut ranks_left = Ranks(BTreeMap::new());
    for rank in 0..size {
        servers[node_of(rank)].sit(rank);
        let mut command = Command::new(program);
        command.args(args).stdout(Stdio::piped()).env("UCX_NET_DEVICES", "lo");
        if way == Way::Inherited {
            let (ours, theirs) = UnixStream::pair().expect("a socket");
            command.stdin(OwnedFd::from(theirs)).env("PMI_FD", "0");
            command.env("PMI_RANK", rank.to_string()).env("PMI_SIZE", size.to_string());
            let (from, tell) = (ours.try_clone().expect("a socket"), tell.clone());
            std::thread::spawn(move || listen(rank, from, &tell));
            sockets.insert(rank, Box::new(ours));
        } else {
            command.stdin(Stdio::null()).env("PMI_PORT", &port).env("PMI_ID", rank.to_string());
        }
        let mut child = command.spawn().expect("it was compiled");
        let mut out = child.stdout.take().expect("it is piped");
        let tell = tell.clone();
        std::thread::spawn(move || {
            let mut text = String::new();
            let _ = out.read_to_string(&mut text);
            let _ = tell.send(News::Ended(rank, text));
        });
        ranks_left.0.insert(rank, child);
    }
    let mut over =
        Over { out: String::new(), statuses: BTreeMap::new(), gathers: 0, aborts: Vec::new(), asked: Vec::new() };
    let mut ports: BTreeMap<String, String> = BTreeMap::new();
    let mut given: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
    let (mut silent, mut texts) = (BTreeSet::new(), BTreeMap::new());
    while over.statuses.len() < size as usize {
        let mut out = Vec::new();
        match news.recv_timeout(PATIENCE).unwrap_or_else(|e| panic!("{e}: {servers:?} {given:?}")) {
            News::Came(rank, socket) => drop(sockets.insert(rank, socket)),
            News::Said(rank, bytes) => servers[node_of(rank)].on_bytes(rank, &bytes, &mut out),
            News::Silent(rank) => drop(silent.insert(rank)),
            News::Ended(rank, text) => drop(texts.insert(rank, text)),
        }
        // What a rank said last is heard before its end.
        for rank in silent.iter().copied().filter(|r| texts.contains_key(r)).collect::<Vec<_>>() {
            if let Some(mut child) = ranks_left.0.remove(&rank) {
                over.statuses.insert(rank, child.wait().expect("a child").code().unwrap_or(-1));
                servers[node_of(rank)].on_gone(rank, &mut out);
            }
        }
        let mut node = None;
        while let Some(output) = (!out.is_empty()).then(|| out.remove(0)) {
            match output {
                // One that has just ended reads nothing.
                Output::Say { rank, bytes } => drop(sockets.get_mut(&rank).map(|s| s.write_all(&bytes))),
                Output::Gather { value } => {
                    // Whose it is can be told from the value: its lowest rank.
                    let lowest = u32::from_le_bytes(value[2..6].try_into().expect("four bytes"));
                    node = Some(node_of(lowest));
                    given.insert(node_of(lowest), value);
                }
                Output::Abort { rank, status } => {
                    over.aborts.push((rank, status));
                    // Who aborts waits for that, too; newer ones end by themselves.
                    ranks_left.0.values_mut().for_each(|child| drop(child.kill()));
                }
                Output::HangUp { rank, why } => panic!("rank {rank}: {why}"),
                Output::Ask { rank, errand } => {
                    let refused = |why: &str| Answer::Refused { why: why.to_owned() };
                    let answer = match &errand {
                        Errand::Publish { service, port } => {
                            ports.insert(service.clone(), port.clone());
                            Answer::Done
                        }
                        Errand::Lookup { service } => Answer::Port { port: ports.get(service).cloned() },
                        Errand::Unpublish { service } => {
                            ports.remove(service).map_or_else(|| refused("no such name"), |_| Answer::Done)
                        }
                        Errand::Spawn { .. } => refused("not here"),
                    };
                    over.asked.push(errand);
                    servers[node_of(rank)].on_answer(rank, answer, &mut out);
                }
            }
            if node.take().is_some() && given.len() == nodes.len() {
                over.gathers += 1;
                let values: Vec<_> = std::mem::take(&mut given).into_iter().map(|(n, v)| (n as u32, v)).collect();
                servers.iter_mut().for_each(|pmi| pmi.on_gathered(Met::All(&values), &mut out));
            }
        }
    }
    over.out = texts.into_values().collect();
    over
}

impl Over {
    fn is_right(&self, line: &str) {
        assert!(self.statuses.values().all(|&s| s == 0), "{:?}: {}", self.statuses, self.out);
        assert!(self.out.contains(line), "{}", self.out);
    }
}

#[test]
fn a_ring_goes_around_over_nodes_of_any_size() {
    let Some(ring) = compile("ring", None) else { return };
    for way in [Way::Inherited, Way::Port] {
        for (ranks, line) in [
            (&[1][..], "ring 1 ranks token 10 right"),
            (&[4], "ring 4 ranks token 40 right"),
            (&[2, 1, 2], "ring 5 ranks token 50 right"),
        ] {
            let over = run(&ring, &[], ranks, way);
            over.is_right(line);
            assert!(over.gathers > 0);
        }
    }
}

#[test]
fn sums_and_a_solver_are_right() {
    let (Some(allreduce), Some(cg)) = (compile("allreduce", None), compile("cg", None)) else { return };
    run(&allreduce, &[], &[2, 1, 2], Way::Inherited).is_right("allreduce 5 ranks right");
    run(&cg, &["24"], &[2, 2], Way::Inherited).is_right("right");
}

#[test]
fn ports_have_names_and_aborts_have_a_status() {
    let source = r#"
#include <mpi.h>
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv) {
    char port[MPI_MAX_PORT_NAME] = "";
    MPI_Comm more;
    MPI_Init(&argc, &argv);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (rank == 1) MPI_Barrier(MPI_COMM_WORLD);
    int wrong = MPI_Publish_name("solver", MPI_INFO_NULL, "tag#0") != 0;
    wrong += MPI_Lookup_name("solver", MPI_INFO_NULL, port) != 0 || strcmp(port, "tag#0");
    wrong += MPI_Lookup_name("other", MPI_INFO_NULL, port) == 0;
    wrong += MPI_Unpublish_name("solver", MPI_INFO_NULL, "tag#0") != 0;
    wrong += MPI_Lookup_name("solver", MPI_INFO_NULL, port) == 0;
    wrong += MPI_Comm_spawn("/bin/true", MPI_ARGV_NULL, 1, MPI_INFO_NULL, 0, MPI_COMM_SELF, &more, MPI_ERRCODES_IGNORE) == 0;
    printf("%d wrong\n", wrong);
    fflush(stdout);
    MPI_Abort(MPI_COMM_WORLD, 7);
}
"#;
    let Some(names) = compile("names", Some(source)) else { return };
    let over = run(&names, &[], &[2], Way::Inherited);
    assert!(over.out.contains("0 wrong"), "{}", over.out);
    assert_eq!(over.aborts, [(0, 7)]);
    assert!(over.asked.iter().any(|e| matches!(e, Errand::Publish { service, .. } if service == "solver")));
}
