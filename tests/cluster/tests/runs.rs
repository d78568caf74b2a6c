//! Jobs that the cluster runs: `phalanx run` on real daemons, real processes as ranks, and what becomes of them when ranks, daemons, nodes and
//! replicas of the manager die.

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Group, Pid, geteuid};
use phalanx_client::api::manage::{Run, RunState};
use phalanx_cluster::console::{Console, job, kill_node, node_of, run, shepherd, wait_until_over};
use phalanx_cluster::{Cluster, PATIENCE, binary};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Instant;

const SAY: &str = "echo rank $PHALANX_RANK of $PHALANX_SIZE on $PHALANX_NODE";

/// CM-2, CM-5: ranks fill nodes in their order, block by block; their output comes to the console, their largest status is that of the job.
#[test]
fn cm_2_ranks_run_where_there_are_slots() {
    let cluster = Cluster::managed(3, 2);
    let ended = run(&cluster, 1, &["-n", "5", "sh", "-c", SAY]);
    let expected =
        ["rank 0 of 5 on n0", "rank 1 of 5 on n0", "rank 2 of 5 on n1", "rank 3 of 5 on n1", "rank 4 of 5 on n2"];
    assert_eq!((ended.status, ended.sorted()), (Some(0), expected.to_vec()));

    let ended = run(&cluster, 0, &["-n", "3", "-l", "-host", "n2,n1", "sh", "-c", "pwd; exit $PHALANX_RANK"]);
    let here = std::env::current_dir().unwrap();
    let here = here.to_str().unwrap();
    let expected = [format!("[0] {here}"), format!("[1] {here}"), format!("[2] {here}")];
    assert!(expected.iter().all(|line| ended.said.contains(line)), "{:#?}", ended.said);
    assert_eq!(ended.status, Some(2), "the largest status: {:#?}", ended.said);

    let two =
        ["-n", "1", "-wdir", "/", "-x", "COLOUR=red", "sh", "-c", "echo $COLOUR `pwd`", ":", "-n", "2", "echo", "two"];
    assert_eq!(run(&cluster, 2, &two).sorted(), ["red /", "two", "two"]);
}

/// Speaks PMI-1 over the socket that it inherits, and spawns `$1`, if that is named. Needs no MPI library.
const SPEAKER: &str = r#"
ask() { printf "$1\n" >&$PMI_FD; read -r answer <&$PMI_FD; }
ask 'cmd=init pmi_version=1 pmi_subversion=1'
if [ -n "$1" ]; then
    ask "mcmd=spawn\nnprocs=3\nexecname=$1\ntotspawns=1\nspawnssofar=1\nargcnt=1\narg1=$2\npreput_num=1\npreput_key_0=PARENT\npreput_val_0=port#7\ninfo_num=0\nendcmd"
    echo "parent on $PHALANX_NODE is told $answer"
else
    ask 'cmd=get_my_kvsname'
    ask "cmd=get kvsname=${answer##*kvsname=} key=PARENT"
    echo "child $PHALANX_RANK of $PHALANX_SIZE, $PMI_SPAWNED, is told $answer"
fi
[ -z "$WAITS" ] || exec sleep $WAITS
ask 'cmd=finalize'
exit ${STATUS:-0}
"#;

fn speaker(cluster: &Cluster) -> String {
    let script = cluster.node(0).dir().join("speaker.sh");
    std::fs::write(&script, format!("#!/bin/bash\n{SPEAKER}")).expect("a folder of ours");
    std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).expect("our file");
    script.to_str().expect("a path of ours").to_owned()
}

/// CM-2: `MPI_Comm_spawn`: a job of its own, which finds what its parent left for it, writes where its parent does, and is waited for.
#[test]
fn cm_2_ranks_spawn_jobs() {
    let cluster = Cluster::managed(3, 1);
    let script = speaker(&cluster);
    let ended = run(&cluster, 1, &["-n", "2", "-host", "n0,n1", &script, &script, ""]);
    let children = |rank| format!("child {rank} of 3, 1, is told cmd=get_result rc=0 msg=success value=port#7");
    let parents = ["n0", "n1"].map(|node| format!("parent on {node} is told cmd=spawn_result rc=0"));
    let mut expected: Vec<String> = (0..3).flat_map(|rank| [children(rank), children(rank)]).chain(parents).collect();
    expected.sort_unstable();
    assert_eq!((ended.sorted(), ended.status), (expected.iter().map(String::as_str).collect(), Some(0)));

    // What cannot run is said to who spawned it.
    let ended = run(&cluster, 0, &["-n", "1", &script, "/nowhere/solve", ""]);
    let told = |line: &String| line.starts_with("parent on n0 is told cmd=spawn_result rc=1 msg=");
    assert!(ended.status == Some(0) && ended.said.iter().any(told), "{:#?}", ended.said);
}

/// CM-2: a job that was spawned does not outlive a parent that is ended.
#[test]
fn cm_2_what_was_spawned_ends_with_an_ended_parent() {
    let cluster = Cluster::managed(2, 2);
    let script = speaker(&cluster);
    let mut console =
        Console::start(&cluster, 0, &["--name", "parent", "-n", "1", "-x", "WAITS=600", &script, &script, ""]);
    console.wait_for_times("child", 3);
    console.wait_for("parent on");
    let spawned = |run: &Run| run.name != "parent" && run.state == RunState::Running;
    let child = cluster.node(0).client().runs().expect("it answers").into_iter().find(spawned).expect("a job more");
    cluster.node(1).client().end_run("parent").expect("it runs");
    wait_until_over(&cluster, 0, "parent");
    wait_until_over(&cluster, 0, &child.name);
    assert_eq!(console.end().status, Some(137));
}

/// CM-2: what is typed goes to rank 0, the others get the end of their input at once.
#[test]
fn cm_2_input_goes_to_rank_0() {
    let cluster = Cluster::managed(2, 2);
    let mut console = Console::start(&cluster, 0, &["-n", "3", "sh", "-c", "echo $PHALANX_RANK reads `wc -c`"]);
    console.wait_for("1 reads 0");
    console.wait_for("2 reads 0");
    let much = vec![b'x'; 3 << 20];
    console.input().write_all(&much).expect("it is read");
    assert!(console.end().said.contains(&format!("0 reads {}", much.len())));
}

/// What cannot be run is said before anything starts, and names what is wrong.
#[test]
fn cm_5_what_cannot_run_is_refused_with_what_to_do() {
    let cluster = Cluster::managed(2, 2);
    let refused = |arguments: &[&str], words: &[&str]| {
        let ended = run(&cluster, 0, arguments);
        let said = ended.said.join("\n");
        assert!(ended.status != Some(0) && words.iter().all(|w| said.contains(w)), "{arguments:?}: {said}");
    };
    refused(&["-n", "9", "true"], &["9", "4", "--oversubscribe"]);
    refused(&["-n", "1", "-host", "elsewhere", "true"], &["elsewhere"]);
    refused(&["-n", "2", "no-such-program"], &["no-such-program", "n0"]);
    refused(&["-n", "1", "-wdir", "/no/such/place", "true"], &["/no/such/place"]);
    let file = cluster.write("hosts", "n0 slots=2\nn1 slots=many\n");
    refused(&["-n", "2", "-hostfile", &file, "true"], &["line 2", "many"]);
    let file = cluster.write("strangers", "n0 slots=2\n\nn7\n");
    refused(&["-n", "2", "-hostfile", &file, "true"], &["line 3", "n7"]);
    refused(&["-n", "2", "--bogus", "true"], &["--bogus"]);
    refused(&["-n", "1", "true", &"x".repeat(50_000)], &["bytes", "forward less", "in a file"]);
    let _running = Console::start(&cluster, 1, &["--name", "taken", "sleep", "60"]);
    cluster.wait_until("the job runs", |_| cluster.node(0).client().run_detail("taken").is_ok());
    refused(&["--name", "taken", "true"], &["taken", "another name"]);
    for arguments in [["job", "show", "none"], ["job", "log", "none"], ["job", "kill", "none"]] {
        let (status, _, said) = cluster.command(0, &arguments);
        assert!(status == Some(2) && said.contains("phalanx job ls"), "{arguments:?}: {said}");
    }
    let (status, _, said) = cluster.command(0, &["drain", "elsewhere"]);
    assert!(status == Some(1) && said.contains("elsewhere") && said.contains("phalanx drain"), "{said}");
    assert_eq!(run(&cluster, 0, &["-n", "9", "-oversubscribe", "true"]).status, Some(0));
}

/// CM-2: users of the socket's group run jobs of their own, as themselves; others are told how they would get there.
#[test]
fn cm_2_users_of_the_group_run_jobs_as_themselves() {
    const USER: u32 = 65534;
    /// One that each system has, but for root's.
    const GROUP: u32 = 1;
    let group = Group::from_gid(GROUP.into()).ok().flatten().filter(|_| geteuid().is_root());
    let Some(group) = group else {
        return eprintln!("skipped: only root can be somebody else, in a group that has a name");
    };
    let mut cluster = Cluster::empty();
    let config = cluster.write("group.toml", &format!("socket_group = \"{}\"\n", group.name));
    let arguments = ["--expect", "2", "--slots", "2", "--config", &config];
    (0..2).for_each(|_| _ = cluster.add(&arguments));
    cluster.wait_until_managed(2);
    // Somebody else passes through the folders of the story.
    for dir in cluster.node(0).dir().ancestors().take(2) {
        std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o755)).expect("a folder of ours");
    }
    let as_user = |group: u32| {
        let mut command = Command::new(binary());
        command.args(["run", "-n", "4", "sh", "-c", "echo rank of $(id -u)"]).current_dir("/");
        command.env("PHALANX_SOCKET", cluster.node(0).socket()).stdin(Stdio::null()).uid(USER).gid(group);
        let ended = command.output().expect("the command runs");
        (ended.status.code(), String::from_utf8_lossy(&[ended.stdout, ended.stderr].concat()).into_owned())
    };
    assert_eq!(as_user(GROUP), (Some(0), "rank of 65534\n".repeat(4)));
    let (status, said) = as_user(USER);
    assert!(status == Some(69) && said.contains("socket_group"), "{status:?} {said}");
}

/// Signals go to all ranks; the second interrupt kills.
#[test]
fn cm_2_signals_go_to_all_ranks() {
    let cluster = Cluster::managed(2, 2);
    let patient = "trap 'echo caught; exit 3' INT; echo ready; while :; do sleep 0.01; done";
    let mut console = Console::start(&cluster, 0, &["-n", "3", "sh", "-c", patient]);
    console.wait_for_times("ready", 3);
    console.signal(Signal::SIGINT);
    console.wait_for_times("caught", 3);
    assert_eq!(console.end().status, Some(3));

    let stubborn = "trap '' INT TERM; echo ready; while :; do sleep 0.01; done";
    let mut console = Console::start(&cluster, 0, &["-n", "3", "sh", "-c", stubborn]);
    console.wait_for_times("ready", 3);
    console.signal(Signal::SIGINT);
    console.wait_for("once more");
    console.signal(Signal::SIGINT);
    assert_eq!(console.end().status, Some(128 + 9));
}

/// CM-2: a console that is killed takes its job along; nothing stays behind.
#[test]
fn cm_2_nothing_of_a_job_stays_without_its_console() {
    let cluster = Cluster::managed(2, 2);
    let mut console =
        Console::start(&cluster, 0, &["--name", "lonely", "-n", "4", "sh", "-c", "echo pid $$; sleep 600 & wait"]);
    console.wait_for_times("pid", 4);
    let pids: Vec<i32> = console.said().iter().filter_map(|l| l.strip_prefix("pid ")?.parse().ok()).collect();
    assert_eq!(pids.len(), 4);
    let shepherds = [shepherd(&cluster, 0, "lonely"), shepherd(&cluster, 1, "lonely")];
    console.signal(Signal::SIGKILL);
    drop(console);
    wait_until_over(&cluster, 1, "lonely");
    let gone = |pid: Pid| kill(pid, None).is_err();
    let began = Instant::now();
    while !(pids.iter().all(|&p| gone(Pid::from_raw(p))) && shepherds.into_iter().all(gone)) {
        assert!(began.elapsed() < PATIENCE, "something of it still runs");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

/// A rank waits for a file of its own, and says so.
const WAIT: &str = "echo waits $PHALANX_RANK $PHALANX_ATTEMPT $PHALANX_LIFE; while ! test -e $GO; do sleep 0.02; done; echo done $PHALANX_RANK";

fn go(cluster: &Cluster, name: &str) -> String {
    cluster.node(0).dir().join(name).to_str().expect("a path of ours").to_owned()
}

/// `abort`: a node dies, all ranks end, and the job says why.
#[test]
fn cm_1_abort_ends_all_when_a_node_dies() {
    let mut cluster = Cluster::managed(4, 1);
    let file = go(&cluster, "never");
    let mut console =
        Console::start(&cluster, 0, &["--name", "frail", "-n", "4", "-x", &format!("GO={file}"), "sh", "-c", WAIT]);
    console.wait_for_times("waits", 4);
    kill_node(&mut cluster, 3, "frail");
    let ended = console.end();
    assert!(ended.status.is_some_and(|s| s != 0), "{:#?}", ended.said);
    assert!(ended.said.iter().any(|l| l.contains("lost with its node")), "{:#?}", ended.said);
}

/// `restart`: a node dies, all ranks end, and the job starts again on those that are well.
#[test]
fn cm_1_restart_starts_the_job_again() {
    let mut cluster = Cluster::managed(4, 2);
    let file = go(&cluster, "restart");
    let arguments =
        ["--name", "again", "-n", "6", "--on-failure", "restart", "-x", &format!("GO={file}"), "sh", "-c", WAIT];
    let mut console = Console::start(&cluster, 0, &arguments);
    console.wait_for_times("waits", 6);
    let victim = node_of(&cluster, &job(&cluster, 0, "again"), 2);
    kill_node(&mut cluster, victim, "again");
    // Where the dead node is not known to be dead yet, that takes one attempt more.
    (0..6).for_each(|rank| console.wait_for_times(&format!("waits {rank} "), 2));
    std::fs::write(&file, "").unwrap();
    let ended = console.end();
    assert_eq!(ended.status, Some(0), "{:#?}", ended.said);
    assert_eq!(ended.said.iter().filter(|l| l.starts_with("done")).count(), 6);
}

/// `continue`: the others go on without those who died with their node.
#[test]
fn cm_1_continue_goes_on_without_the_dead() {
    let mut cluster = Cluster::managed(4, 1);
    let file = go(&cluster, "continue");
    let arguments =
        ["--name", "on", "-n", "4", "--on-failure", "continue", "-x", &format!("GO={file}"), "sh", "-c", WAIT];
    let mut console = Console::start(&cluster, 0, &arguments);
    console.wait_for_times("waits", 4);
    kill_node(&mut cluster, 2, "on");
    console.wait_for("lost with its node");
    std::fs::write(&file, "").unwrap();
    let ended = console.end();
    assert_eq!(ended.said.iter().filter(|l| l.starts_with("done")).count(), 3, "{:#?}", ended.said);
}

/// `respawn`: a rank that died is started again where there is room, under its old number.
#[test]
fn cm_1_respawn_starts_the_rank_again() {
    let mut cluster = Cluster::managed(4, 1);
    let file = go(&cluster, "respawn");
    let arguments = [
        "--name",
        "back",
        "-n",
        "3",
        "--spares",
        "1",
        "--on-failure",
        "respawn",
        "-x",
        &format!("GO={file}"),
        "sh",
        "-c",
        WAIT,
    ];
    let mut console = Console::start(&cluster, 0, &arguments);
    console.wait_for_times("waits", 3);
    kill_node(&mut cluster, 1, "back");
    console.wait_for("waits 1 0 1");
    std::fs::write(&file, "").unwrap();
    let ended = console.end();
    assert_eq!(ended.status, Some(0), "{:#?}", ended.said);
    (0..3).for_each(|rank| assert!(ended.said.contains(&format!("done {rank}")), "{:#?}", ended.said));
}

/// A daemon that dies alone is a cluster event and leaves the job alone; the next one finds it.
#[test]
fn cm_2_a_daemon_that_dies_alone_leaves_the_job_alone() {
    let mut cluster = Cluster::managed(4, 1);
    let file = go(&cluster, "alone");
    let mut console =
        Console::start(&cluster, 0, &["--name", "calm", "-n", "4", "-x", &format!("GO={file}"), "sh", "-c", WAIT]);
    console.wait_for_times("waits", 4);
    let view = cluster.node(0).client().job("calm").expect("its view").view;
    cluster.kill(2);
    cluster.wait_until("n2 is gone", |n| n.sees("n2").is_some_and(|m| m.state != phalanx_client::api::State::Alive));
    cluster.run(2, &["--expect", "4", "--slots", "1", "--run-as-root"]);
    cluster.wait_until_all_see(4);
    assert_eq!(cluster.node(0).client().job("calm").expect("its view").view, view, "the view is the same");
    std::fs::write(&file, "").unwrap();
    let ended = console.end();
    assert_eq!(ended.status, Some(0), "{:#?}", ended.said);
    assert_eq!(ended.said.iter().filter(|l| l.starts_with("done")).count(), 4);
}

/// CM-1, CM-3: a replica dies while a job runs and another starts: nobody notices, and there are three again.
#[test]
fn cm_3_a_replica_dies_and_another_takes_its_place() {
    let mut cluster = Cluster::managed(5, 2);
    let managers = cluster.node(0).client().managers().unwrap();
    assert_eq!(managers.replicas.len(), 3);
    let seats: Vec<usize> =
        (0..5).filter(|&n| managers.replicas.iter().any(|r| r.node == cluster.node(n).name())).collect();
    // The console is at a node that stays.
    let (home, victim) = ((0..5).find(|n| *n != seats[0]).unwrap(), seats[0]);
    let file = go(&cluster, "replica");
    let others: Vec<String> = (0..5).filter(|n| *n != victim).map(|n| cluster.node(n).name().to_owned()).collect();
    let arguments = ["-n", "4", "-host", &others.join(","), "-x", &format!("GO={file}"), "sh", "-c", WAIT];
    let mut console = Console::start(&cluster, home, &arguments);
    console.wait_for_times("waits", 4);
    cluster.kill(victim);
    let gone = cluster.node(victim).name().to_owned();
    cluster.wait_until("three replicas again", |node| {
        let managers = node.client().managers().unwrap();
        managers.decides && managers.replicas.len() == 3 && managers.replicas.iter().all(|r| r.node != gone)
    });
    assert_eq!(run(&cluster, home, &["-n", "2", "echo", "meanwhile"]).sorted(), ["meanwhile", "meanwhile"]);
    std::fs::write(&file, "").unwrap();
    assert_eq!(console.end().status, Some(0));
}

/// CM-5: what has no room waits; what is drained gets nothing; jobs are listed, shown, logged and ended.
#[test]
fn cm_5_jobs_wait_for_room_and_nodes_are_drained() {
    let cluster = Cluster::managed(2, 1);
    let (first, second) = (go(&cluster, "first"), go(&cluster, "second"));
    let mut one =
        Console::start(&cluster, 0, &["--name", "one", "-n", "2", "-x", &format!("GO={first}"), "sh", "-c", WAIT]);
    one.wait_for_times("waits", 2);
    let mut two =
        Console::start(&cluster, 1, &["--name", "two", "-n", "2", "-x", &format!("GO={second}"), "sh", "-c", WAIT]);
    let began = Instant::now();
    while cluster.node(0).client().run_detail("two").map_or(true, |d| d.run.state != RunState::Queued) {
        assert!(began.elapsed() < PATIENCE, "two waits");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let (status, table, _) = cluster.command(0, &["job", "ls"]);
    assert!(status == Some(0) && table.contains("queued") && table.contains("running"), "{table}");
    std::fs::write(&first, "").unwrap();
    assert_eq!(one.end().status, Some(0));
    two.wait_for_times("waits", 2);
    assert_eq!(cluster.command(0, &["job", "kill", "two"]).0, Some(0));
    assert_eq!(two.end().status, Some(128 + 9));
    let (_, log, _) = cluster.command(1, &["job", "log", "two"]);
    assert!(log.lines().count() >= 3, "{log}");

    assert_eq!(cluster.command(0, &["drain", "n1"]).0, Some(0));
    assert_eq!(run(&cluster, 1, &["-n", "1", "sh", "-c", SAY]).sorted(), ["rank 0 of 1 on n0"]);
    assert_eq!(cluster.command(0, &["drain", "n1", "--undo"]).0, Some(0));
    assert_eq!(run(&cluster, 1, &["-n", "1", "-host", "n1", "sh", "-c", SAY]).sorted(), ["rank 0 of 1 on n1"]);
}

/// The job table survives a power cut of all nodes.
#[test]
fn cm_4_all_daemons_die_at_once_and_know_the_jobs_afterwards() {
    let mut cluster = Cluster::managed(3, 1);
    assert_eq!(run(&cluster, 0, &["--name", "before", "-n", "3", "true"]).status, Some(0));
    (0..3).for_each(|n| cluster.kill(n));
    (0..3).for_each(|n| cluster.run(n, &["--expect", "3", "--slots", "1", "--run-as-root"]));
    cluster.wait_until_all_see(3);
    cluster.wait_until_managed(3);
    assert_eq!(job(&cluster, 1, "before").run.state, RunState::Over);
    assert_eq!(run(&cluster, 2, &["-n", "3", "true"]).status, Some(0));
}

/// Without a manager, who wants to run something is told what to do.
#[test]
fn without_a_manager_one_is_told_what_to_do() {
    let mut cluster = Cluster::start(1);
    let ended = run(&cluster, 0, &["-n", "1", "true"]);
    assert!(ended.status != Some(0) && ended.said.iter().any(|l| l.contains("expect")), "{:#?}", ended.said);
    cluster.kill(0);
    let ended = run(&cluster, 0, &["-n", "1", "true"]);
    assert!(ended.said.iter().any(|l| l.contains("dev up")), "{:#?}", ended.said);
}

/// CM-2: with this many nodes a job is launched and ended by way of the nodes themselves; also while one of them dies.
#[test]
fn cm_2_a_job_on_many_nodes_goes_by_way_of_them() {
    let mut cluster = Cluster::managed(14, 1);
    let everybody: Vec<String> = (0..14).map(|n| format!("on n{n}")).collect();
    for _ in 0..2 {
        let ended = run(&cluster, 3, &["-n", "14", "sh", "-c", "echo on $PHALANX_NODE"]);
        let mut expected: Vec<&str> = everybody.iter().map(String::as_str).collect();
        expected.sort_unstable();
        assert_eq!((ended.status, ended.sorted()), (Some(0), expected));
    }
    let file = go(&cluster, "many");
    let arguments =
        ["--name", "many", "-n", "12", "--on-failure", "restart", "-x", &format!("GO={file}"), "sh", "-c", WAIT];
    let mut console = Console::start(&cluster, 0, &arguments);
    console.wait_for_times("waits", 12);
    let victim = node_of(&cluster, &job(&cluster, 0, "many"), 7);
    kill_node(&mut cluster, victim, "many");
    (0..12).for_each(|rank| console.wait_for_times(&format!("waits {rank} "), 2));
    std::fs::write(&file, "").unwrap();
    let ended = console.end();
    assert_eq!(ended.status, Some(0), "{:#?}", ended.said);
    assert_eq!(ended.said.iter().filter(|l| l.starts_with("done")).count(), 12);
}
