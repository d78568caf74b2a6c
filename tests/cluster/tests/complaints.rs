//! What users of other launchers complain of, as stories of ours: real daemons, and ranks that use the client library. Names are those of
//! their issues.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use phalanx_client::api::State;
use phalanx_client::api::run::RankEnd;
use phalanx_cluster::console::{Console, job, kill_nodes, node_of, run, shepherd, wait_until_over};
use phalanx_cluster::{Cluster, PATIENCE, example};
use std::time::{Duration, Instant};

const JOB: &str = "work";

fn program(name: &str) -> String {
    example("phalanx-client", name).to_str().expect("a path of ours").to_owned()
}

/// Daemons whose casts, and so whose commands, go down a binary tree; one slot each.
fn deep(n: usize) -> Cluster {
    let mut cluster = Cluster::empty();
    let config = cluster.write("deep.toml", "cast_fan_out = 2\n");
    let expect = n.to_string();
    let arguments = ["--config", &config, "--expect", &expect, "--slots", "1", "--run-as-root"];
    (0..n).for_each(|_| _ = cluster.add(&arguments));
    cluster.wait_until_all_see(n);
    cluster.wait_until_managed(n);
    cluster.wait_until("all have a seat", |node| node.client().seats().is_ok_and(|seats| seats.len() == n));
    cluster
}

/// Daemons that hand casts on to others and have no replica of the manager: it loses one at a time, and these die in pairs. Without the console's.
fn interior(cluster: &Cluster, nodes: usize, home: usize) -> Vec<usize> {
    let client = cluster.node(home).client();
    let (seats, managers) = (client.seats().expect("it answers"), client.managers().expect("it answers"));
    let inside = seats.iter().filter(|seat| seats.iter().any(|below| below.parent == Some(seat.seat)));
    let inside = inside.filter(|seat| managers.replicas.iter().all(|replica| replica.node != seat.name));
    let numbers = inside.map(|seat| (0..nodes).find(|&n| cluster.node(n).name() == seat.name).expect("a node of ours"));
    numbers.filter(|&n| n != home).collect()
}

/// The names of nodes, as `--host` takes them: these first, then all others.
fn hosts(nodes: usize, first: &[usize]) -> String {
    let order = first.iter().copied().chain((0..nodes).filter(|n| !first.contains(n)));
    order.map(|n| format!("n{n}")).collect::<Vec<_>>().join(",")
}

/// The job's processes on a node and its daemon get a signal.
fn signal_node(cluster: &Cluster, node: usize, shepherd: Pid, signal: Signal) {
    let ranks = std::fs::read_to_string(format!("/proc/{shepherd}/task/{shepherd}/children")).expect("it runs");
    cluster.node(node).signal(signal);
    kill(shepherd, signal).expect("it runs");
    ranks
        .split_whitespace()
        .for_each(|pid| kill(Pid::from_raw(pid.parse().expect("a number")), signal).expect("it runs"));
}

/// prrte#2637: a daemon's death in a deep tree hangs the launcher. prrte#2690: after two interior deaths at once routes are lost. ompi#12227
/// and #10389: survivors that do not talk to the dead are told nothing.
#[test]
fn prrte_2637_2690_two_interior_deaths_in_a_deep_tree() {
    let mut cluster = deep(12);
    let dead = &interior(&cluster, 12, 0)[..2];
    // Ranks 1 and 2 are inside of the job's own tree, too.
    let hosts = hosts(12, &[&[0], dead].concat());
    let arguments = ["--name", JOB, "-n", "12", "-host", &hosts, "--on-failure", "continue", &program("rank"), "stay"];
    let mut console = Console::start(&cluster, 0, &arguments);
    console.wait_for_times("hello from", 12);
    kill_nodes(&mut cluster, dead, JOB);
    console.wait_for_times(": [0, 3, 4, 5, 6, 7, 8, 9, 10, 11]", 10);
    // A signal reaches all who live, and the launcher ends.
    console.signal(Signal::SIGTERM);
    let ended = console.end();
    assert_eq!(ended.status, Some(128 + 15), "{:#?}", ended.said);
    let ends: Vec<Option<RankEnd>> = job(&cluster, 0, JOB).all_ranks.iter().map(|rank| rank.end).collect();
    let lost = [1, 2].map(|rank: usize| ends[rank]);
    assert_eq!(lost, [Some(RankEnd::Lost); 2], "{ends:?}");
    assert_eq!(ends.iter().filter(|end| **end == Some(RankEnd::Killed(15))).count(), 10, "{ends:?}");
    // The next job is started around the holes.
    let next = run(&cluster, 0, &["-n", "10", &program("rank")]);
    assert_eq!((next.status, next.said.len()), (Some(0), 10), "{:#?}", next.said);
}

/// prrte#2637: a launch right after a death that nobody knows of yet ends one way or the other.
#[test]
fn prrte_2637_a_launch_does_not_hang_on_who_just_died() {
    let mut cluster = deep(12);
    let dead = interior(&cluster, 12, 0)[0];
    cluster.kill(dead);
    let arguments = ["-n", "11", "--on-failure", "restart", &program("rank")];
    let ended = run(&cluster, 0, &arguments);
    assert_eq!(ended.status, Some(0), "{:#?}", ended.said);
    assert_eq!(
        ended.said.iter().filter(|l| l.contains("of 11: the ranks add up to 55")).count(),
        11,
        "{:#?}",
        ended.said
    );
}

/// prrte#2528: a node that dies while a fence is in flight kills the job.
#[test]
fn prrte_2528_a_death_while_a_barrier_is_in_flight() {
    let mut cluster = Cluster::managed(6, 1);
    let arguments = ["--name", JOB, "-n", "6", "--on-failure", "continue", &program("rank"), "late"];
    let mut console = Console::start(&cluster, 0, &arguments);
    console.wait_for_times(" waits", 5);
    let late = node_of(&cluster, &job(&cluster, 0, JOB), 5);
    assert!(late != 0, "ranks fill nodes in their order");
    kill_nodes(&mut cluster, &[late], JOB);
    let ended = console.end();
    let passed = ended.said.iter().filter(|l| l.contains("waits no more: those who live add up to 10")).count();
    assert_eq!(passed, 5, "{:#?}", ended.said);
}

/// flux-core#638: SIGSTOP and SIGCONT of nodes cascade into false failures.
#[test]
fn flux_638_stops_and_goes_on_without_false_failures() {
    let cluster = Cluster::managed(5, 1);
    let arguments = ["--name", JOB, "-n", "5", "--on-failure", "continue", &program("rank"), "stay"];
    let mut console = Console::start(&cluster, 0, &arguments);
    console.wait_for_times("hello from", 5);
    let view = cluster.node(0).client().job(JOB).expect("its view").view;
    let shepherds: Vec<Pid> = (0..5).map(|n| shepherd(&cluster, n, JOB)).collect();
    // Two of four at a time, in turns, the whole node: its daemon, its shepherd, its rank.
    for round in 0..24 {
        let stopped = [1 + round % 4, 1 + (round + 1) % 4];
        stopped.iter().for_each(|&n| signal_node(&cluster, n, shepherds[n], Signal::SIGSTOP));
        std::thread::sleep(Duration::from_millis(100));
        stopped.iter().for_each(|&n| signal_node(&cluster, n, shepherds[n], Signal::SIGCONT));
        std::thread::sleep(Duration::from_millis(50));
    }
    cluster.wait_for_one_view();
    assert_eq!(cluster.node(0).client().job(JOB).expect("its view").view, view, "the job's view is the same");
    assert!(job(&cluster, 0, JOB).all_ranks.iter().all(|rank| rank.end.is_none()));

    // One that stands still for so long that it is taken for dead takes nobody along, and is of use again.
    signal_node(&cluster, 4, shepherds[4], Signal::SIGSTOP);
    cluster.node(0).wait_until("n4 is taken for dead", |n| n.state_of("n4") == Some(State::Failed));
    console.wait_for_times(": [0, 1, 2, 3]", 4);
    signal_node(&cluster, 4, shepherds[4], Signal::SIGCONT);
    cluster.wait_until_all_see(5);
    console.signal(Signal::SIGTERM);
    console.end();
    let over = wait_until_over(&cluster, 0, JOB);
    let ends = job(&cluster, 0, JOB).all_ranks;
    let killed = ends.iter().filter(|rank| rank.rank < 4 && rank.end == Some(RankEnd::Killed(15))).count();
    assert_eq!(killed, 4, "{over:?} {ends:#?}");
    cluster.wait_until_managed(5);
    let next = run(&cluster, 0, &["-n", "5", &program("rank")]);
    assert_eq!((next.status, next.said.len()), (Some(0), 5), "{:#?}", next.said);
}

/// prrte#2491: a cluster that shrinks and grows quickly loses its head. Here one of three nodes without ranks is always on its way, also those
/// with replicas of the manager.
#[test]
fn prrte_2491_quick_shrink_and_grow() {
    let mut cluster = Cluster::managed(6, 1);
    let arguments = ["--name", JOB, "-n", "3", "-host", "n0,n1,n2", &program("rank"), "stay"];
    let mut console = Console::start(&cluster, 0, &arguments);
    console.wait_for_times("hello from", 3);
    let view = cluster.node(0).client().job(JOB).expect("its view").view;
    let again = ["--expect", "6", "--slots", "1", "--run-as-root"];
    for round in 0..9 {
        let node = 3 + round % 3;
        if round % 2 == 0 {
            cluster.kill(node);
        } else {
            cluster.node(node).client().leave().expect("it says goodbye");
            cluster.wait_for_end(node);
        }
        cluster.run(node, &again);
    }
    cluster.wait_until_all_see(6);
    cluster.wait_until_managed(6);
    assert_eq!(cluster.node(0).client().job(JOB).expect("its view").view, view, "the job's view is the same");
    let next = run(&cluster, 4, &["-n", "3", &program("rank")]);
    assert_eq!((next.status, next.said.len()), (Some(0), 3), "{:#?}", next.said);
    console.signal(Signal::SIGTERM);
    assert_eq!(console.end().status, Some(128 + 15));
}

/// `respawn` with a program that keeps where it was: a node dies while it counts, the count is right.
#[test]
fn ranks_that_start_again_go_on_where_they_were() {
    let mut cluster = Cluster::managed(5, 2);
    let dir = cluster.node(0).dir().to_str().expect("a path of ours").to_owned();
    let program = program("primes");
    let arguments = ["--name", JOB, "-n", "8", "--spares", "2", "--on-failure", "respawn", "-wdir", &dir, &program];
    let console = Console::start(&cluster, 0, &[&arguments[..], &["1500000000"]].concat());
    let began = Instant::now();
    let notes = |dir: &str| walk(dir.as_ref()).into_iter().filter(|name| name.starts_with("rank-")).count();
    while notes(&dir) < 8 {
        assert!(began.elapsed() < PATIENCE, "they count");
        std::thread::sleep(Duration::from_millis(5));
    }
    let victim = node_of(&cluster, &job(&cluster, 0, JOB), 7);
    kill_nodes(&mut cluster, &[victim], JOB);
    let ended = console.end();
    assert!(ended.said.iter().any(|l| l.ends_with("counted by 8 ranks: right")), "{:#?}", ended.said);
    assert_eq!(ended.status, Some(0), "{:#?}", ended.said);
    let lives: Vec<u32> = job(&cluster, 0, JOB).all_ranks.iter().map(|rank| rank.life).collect();
    assert_eq!(lives.iter().filter(|life| **life > 0).count(), 2, "{lives:?}");
}

/// The names of all files below a directory.
fn walk(dir: &std::path::Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(dir) else { return Vec::new() };
    let paths = entries.filter_map(|e| Some(e.ok()?.path()));
    paths
        .flat_map(|path| match path.is_dir() {
            true => walk(&path),
            false => vec![path.file_name().unwrap_or_default().to_string_lossy().into_owned()],
        })
        .collect()
}
