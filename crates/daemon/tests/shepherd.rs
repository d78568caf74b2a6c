//! Real shepherds with real processes, told what to do by a test in the place of their daemons (CM-2).

mod shepherds;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use phalanx_api::run::{Program, RankEnd, Stream, ToConsole};
use phalanx_cluster::{PATIENCE, example};
use phalanx_daemon::shepherd::words::{ToDaemon, ToShepherd};
use shepherds::{Shepherds, program, shell};
use std::time::Instant;

/// Output comes whole and in order, also of ranks that write more than anybody keeps; statuses are those of the processes.
#[test]
fn output_is_whole_and_in_order() {
    const LINES: usize = 150_000;
    let script = format!(
        "i=0; while [ $i -lt 3 ]; do echo err $PHALANX_RANK.$i >&2; i=$((i+1)); done; \
         seq 1 {LINES} | sed \"s/^/$PHALANX_RANK:/\"; exit $PHALANX_RANK"
    );
    let mut job = Shepherds::start(4, 8, shell(8, &script));
    let mut console = job.console();
    job.go();
    console.read_until(|c| c.ends.len() == 8);
    let ends = job.wait_for_ends(8);
    job.over(7);
    let status = console.wait_for_over();
    assert_eq!(status, 7);
    for rank in 0..8_u32 {
        assert_eq!(ends[&rank], RankEnd::Exited(rank.cast_signed()));
        let lines = console.text(rank, Stream::Out);
        assert_eq!(lines.lines().count(), LINES, "rank {rank}");
        let in_order = lines.lines().zip(1..).all(|(line, n)| line == format!("{rank}:{n}"));
        assert!(in_order, "rank {rank}");
        assert_eq!(console.text(rank, Stream::Err), (0..3).map(|i| format!("err {rank}.{i}\n")).collect::<String>());
        assert!(console.ends.contains(&(rank, RankEnd::Exited(rank.cast_signed()))));
    }
    assert!(console.words.iter().any(|w| matches!(w, ToConsole::Running { attempt: 0, nodes } if nodes.len() == 8)));
    job.wait_until_gone();
}

/// Who reads slowly makes ranks wait and loses nothing; meanwhile a rank's death is said at once.
#[test]
fn a_console_that_does_not_read_holds_up_ranks_and_nothing_else() {
    let script =
        "if [ $PHALANX_RANK = 3 ]; then sleep 0.2; kill -9 $$; fi; head -c 20000000 /dev/zero | tr '\\0' x; echo end";
    let mut job = Shepherds::start(2, 4, shell(4, script));
    let mut console = job.console();
    job.go();
    // Nothing is read until its end was said.
    job.wait_for(1, |w| matches!(w, ToDaemon::Ended { ranks, .. } if ranks.contains(&(3, RankEnd::Killed(9)))));
    let held: u64 = job.pids().into_iter().map(memory).sum();
    assert!(held < 100 << 20, "{held} bytes");
    console.read_until(|c| c.ends.len() == 4);
    for rank in 0..3 {
        let text = console.text(rank, Stream::Out);
        assert_eq!(text.len(), 20_000_000 + 4, "rank {rank}");
        assert!(text.ends_with("xend\n"));
    }
    job.over(137);
    assert_eq!(console.wait_for_over(), 137);
}

fn memory(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|l| l.strip_prefix("RssAnon:")).unwrap_or("0");
    line.split_whitespace().next().and_then(|n| n.parse::<u64>().ok()).unwrap_or_default() << 10
}

/// What is typed goes to rank 0, wherever it is; the others find the end at once.
#[test]
fn input_goes_to_rank_0() {
    let mut job =
        Shepherds::start_with_home_apart(2, 3, shell(3, "if [ $PHALANX_RANK = 0 ]; then wc -c; else wc -c; fi"));
    let mut console = job.console();
    job.go();
    job.wait_for_ends_of(&[1, 2]);
    let bytes = vec![b'x'; 3_000_000];
    console.type_all(&bytes);
    console.end_input();
    job.wait_for_ends(3);
    job.over(0);
    console.wait_for_over();
    assert_eq!(console.text(0, Stream::Out).trim(), "3000000");
    assert_eq!(console.text(1, Stream::Out).trim(), "0");
}

/// What cannot run is named, and nothing starts.
#[test]
fn who_cannot_run_says_why() {
    let mut job = Shepherds::new(2, 2, vec![program(2, &["phalanx-is-not-here"])]);
    job.prepare();
    let said = job.wait_for(1, |w| matches!(w, ToDaemon::Unfit { .. }));
    assert!(matches!(said, ToDaemon::Unfit { why, .. } if why.contains("`phalanx-is-not-here`")));
    let mut elsewhere = program(2, &["true"]);
    elsewhere.wdir = "/nowhere".to_owned();
    job.programs = vec![elsewhere];
    job.attempt = 1;
    job.prepare();
    let said = job.wait_for(0, |w| matches!(w, ToDaemon::Unfit { attempt: 1, .. }));
    assert!(matches!(said, ToDaemon::Unfit { why, .. } if why.contains("/nowhere")));
}

/// Signals reach all ranks; a program that cannot be started ends as a shell says it.
#[test]
fn signals_reach_all_ranks() {
    let script = "trap 'echo caught; exit 5' USR1; echo ready; while :; do sleep 0.01; done";
    let mut job = Shepherds::start(2, 4, shell(4, script));
    let mut console = job.console();
    job.go();
    console.read_until(|c| (0..4).all(|r| c.text(r, Stream::Out) == "ready\n"));
    console.signal(Signal::SIGUSR1 as i32);
    let home = job.home();
    let said = job.wait_for(home, |w| matches!(w, ToDaemon::Signalled { .. }));
    assert_eq!(said, ToDaemon::Signalled { signal: Signal::SIGUSR1 as i32 });
    job.tell_all(&ToShepherd::Signal { signal: Signal::SIGUSR1 as i32 });
    let ends = job.wait_for_ends(4);
    assert!(ends.values().all(|e| *e == RankEnd::Exited(5)), "{ends:?}");
    job.over(5);
    console.wait_for_over();
    assert_eq!(console.text(2, Stream::Out), "ready\ncaught\n");
}

/// Nothing of a job that is stopped stays, whatever its ranks have started and wherever that hid.
#[test]
fn whoever_descends_from_ranks_ends_with_them() {
    let script =
        "setsid sh -c 'sleep 1000 & sleep 1000' & (trap '' HUP TERM; setsid setsid sleep 1000 &) ; echo up; sleep 1000";
    let mut job = Shepherds::start(2, 4, shell(4, script));
    let mut console = job.console();
    job.go();
    console.read_until(|c| (0..4).all(|r| c.text(r, Stream::Out) == "up\n"));
    job.tell_all(&ToShepherd::Stop { attempt: 0, why: "it is enough".to_owned() });
    (0..2).for_each(|host| _ = job.wait_for(host, |w| *w == ToDaemon::Cleared { attempt: 0 }));
    assert!(job.left().is_empty(), "{:?}", job.left());
    let ends = job.wait_for_ends(4);
    assert!(ends.values().all(|e| *e == RankEnd::Killed(9)));
    console.read_until(|c| c.words.iter().any(|w| matches!(w, ToConsole::Note { text } if text == "it is enough")));
    // The next attempt runs where the first one was.
    job.programs = shell(4, "echo again $PHALANX_ATTEMPT");
    job.attempt = 1;
    job.prepare_and_wait();
    job.go();
    assert!(job.wait_for_ends(4).values().all(|e| *e == RankEnd::Exited(0)));
    job.over(0);
    console.wait_for_over();
    assert_eq!(console.text(3, Stream::Out), "up\nagain 1\n");
}

/// Ranks end with their shepherd, whatever ends it, and the daemon finds what they have left.
#[test]
fn no_rank_outlives_its_shepherd() {
    let script = "(setsid sleep 1000 &) ; echo up; sleep 1000";
    let mut job = Shepherds::start(2, 4, shell(4, script));
    let mut console = job.console();
    job.go();
    console.read_until(|c| (0..4).all(|r| c.text(r, Stream::Out) == "up\n"));
    let victim = 1 - job.home();
    kill(Pid::from_raw(job.pids()[victim].cast_signed()), Signal::SIGKILL).expect("it runs");
    job.wait_until("its ranks are gone", |job| job.ranks_that_run() == 2);
    // The home's shepherd was told nothing by anybody, and knows.
    let home = job.home();
    job.wait_for(home, |w| matches!(w, ToDaemon::Missed { ranks, proven: true, .. } if !ranks.is_empty()));
    job.over(137);
    job.wait_until_gone_but(victim);
    let (count, is_clean) = phalanx_daemon::shepherd::sweep::sweep(&job.cluster, |_, _| true);
    assert!(count >= 2 && is_clean, "{count}");
    assert!(job.left().is_empty());
}

/// Who does not hear the manager for its lease ends its ranks.
#[test]
fn ranks_end_with_their_lease() {
    let mut job = Shepherds::start(1, 2, shell(2, "echo up; sleep 1000"));
    let mut console = job.console();
    job.short_lease(0);
    job.go();
    console.read_until(|c| (0..2).all(|r| c.text(r, Stream::Out) == "up\n"));
    job.wait_for(0, |w| *w == ToDaemon::Cleared { attempt: 0 });
    assert!(job.left().is_empty());
}

/// CM-2: nothing of a dead job stays behind, also where its daemon never comes back: no rank once the lease is over, and then no shepherd.
#[test]
fn a_shepherd_whose_daemon_is_gone_for_good_ends() {
    let mut job = Shepherds::start(1, 2, shell(2, "sleep 1000"));
    job.go();
    job.wait_until("both run", |job| job.ranks_that_run() == 2);
    job.short_lease(0);
    job.desert(0);
    job.wait_until_gone();
    assert!(job.left().is_empty());
}

/// A console that goes away is told of; a daemon that comes anew hears everything again.
#[test]
fn a_job_without_console_or_daemon() {
    let mut job = Shepherds::start(1, 2, shell(2, "[ $PHALANX_RANK = 1 ] && exit 3; sleep 1000"));
    let console = job.console();
    job.go();
    job.wait_for_ends_of(&[1]);
    drop(console);
    job.wait_for(0, |w| *w == ToDaemon::Deserted);
    job.reconnect(0);
    let here = job.wait_for(0, |w| matches!(w, ToDaemon::Here { .. }));
    assert!(matches!(here, ToDaemon::Here { work: Some((_, 0)), .. }), "{here:?}");
    job.wait_for(0, |w| matches!(w, ToDaemon::Ended { ranks, .. } if ranks[..] == [(1, RankEnd::Exited(3))]));
    job.wait_for(0, |w| *w == ToDaemon::Deserted);
    job.over(3);
    job.wait_until_gone();
}

/// Ranks that link the client are in the view that they were started in; one that dies leaves it, and is let in again when it is started
/// again on another host.
#[test]
fn a_rank_that_starts_again_is_in_the_view_that_runs() {
    let program = example("phalanx-client", "rank");
    let program = program.to_str().expect("a path of ours");
    let mut job = Shepherds::start(3, 6, vec![shepherds::program(6, &[program, "stay"])]);
    let mut console = job.console();
    job.go();
    console.read_until(|c| (0..6).all(|r| c.text(r, Stream::Out).contains("add up to 15\n")));
    console.read_until(|c| (0..6).all(|r| c.text(r, Stream::Out).contains(&format!("hello from {}", (r + 5) % 6))));
    let victim = job.process_of(3);
    kill(Pid::from_raw(victim), Signal::SIGKILL).expect("it runs");
    let host = job.host_of(3);
    let said = job.wait_for(host, |w| matches!(w, ToDaemon::Ended { .. }));
    assert!(matches!(said, ToDaemon::Ended { life: 0, ranks, .. } if ranks == [(3, RankEnd::Killed(9))]));
    console.read_until(|c| [0, 1, 2, 4, 5].iter().all(|&r| c.text(r, Stream::Out).contains("[0, 1, 2, 4, 5]")));
    let other = (host + 1) % 3;
    job.respawn(other, 3, 1);
    console.read_until(|c| {
        let text = c.text(3, Stream::Out);
        text.rfind("hello from 2").is_some_and(|at| text[..at].contains("[0, 1, 2, 3, 4, 5]"))
    });
    job.over(0);
    console.wait_for_over();
    job.wait_until_gone();
    assert!(job.left().is_empty());
}

/// A rank that asks for nothing is in the view, too: survivors of a host that is killed hold one view.
#[test]
fn a_host_that_dies_leaves_the_view() {
    let program = example("phalanx-client", "rank");
    let program = program.to_str().expect("a path of ours");
    let mut job = Shepherds::start(4, 8, vec![shepherds::program(8, &[program, "stay"])]);
    let mut console = job.console();
    job.go();
    console.read_until(|c| (0..8).all(|r| c.text(r, Stream::Out).contains("add up to 28\n")));
    let victim = job.host_of(4);
    kill(Pid::from_raw(job.pids()[victim].cast_signed()), Signal::SIGKILL).expect("it runs");
    let gone = job.ranks_of(victim);
    let alive: Vec<u32> = (0..8).filter(|r| !gone.contains(r)).collect();
    let shown = format!("{alive:?}");
    console.read_until(|c| alive.iter().all(|&r| c.text(r, Stream::Out).contains(&shown)));
    let root = job.host_of(0);
    let said = job.wait_for(root, |w| matches!(w, ToDaemon::Missed { .. }));
    assert!(
        matches!(&said, ToDaemon::Missed { ranks, proven: true, .. } if ranks.iter().map(|r| r.0).eq(gone.iter().copied())),
        "{said:?}"
    );
    job.over(137);
    console.wait_for_over();
    assert!(gone.iter().all(|&rank| console.ends.contains(&(rank, RankEnd::Lost))), "{:?}", console.ends);
}

/// A big rank that is killed is missed while the kernel frees its memory: its word told of it, and not its end. How it ended is said then.
#[test]
fn a_big_rank_is_missed_before_its_memory_is_freed() {
    let program = example("phalanx-client", "heap");
    let program = program.to_str().expect("a path of ours");
    let [small, big] = ["1", "256"].map(|mib| shepherds::program(0, &[program, mib]));
    let programs = vec![Program { ranks: 3, ..small }, Program { ranks: 1, ..big }];
    let mut job = Shepherds::start(2, 4, programs);
    let mut console = job.console();
    job.go();
    console.read_until(|c| (0..4).all(|r| c.text(r, Stream::Out).contains("MiB\n")));
    let host = job.host_of(3);
    assert_eq!(job.notices(host), (0, 0, 4));
    kill(Pid::from_raw(job.process_of(3)), Signal::SIGKILL).expect("it runs");
    console.read_until(|c| (0..3).all(|r| c.text(r, Stream::Out).contains("[0, 1, 2]")));
    let said = job.wait_for(host, |w| matches!(w, ToDaemon::Ended { .. }));
    assert!(matches!(said, ToDaemon::Ended { ranks, .. } if ranks == [(3, RankEnd::Killed(9))]));
    assert_eq!(job.notices(host), (1, 0, 3));
    job.over(137);
    console.wait_for_over();
    job.wait_until_gone();
}

/// The kernel lets go of a rank's word at any end and when it becomes another program: neither is a failure unless its status says so.
#[test]
fn a_word_that_is_let_go_is_not_always_a_death() {
    let program = example("phalanx-client", "heap");
    let program = program.to_str().expect("a path of ours");
    let again = format!("sleep 2; exec {program} 256");
    let one = |arguments: &[&str]| shepherds::program(1, &[&[program, "1"], arguments].concat());
    let programs =
        vec![one(&[]), one(&["exit", "0"]), one(&["exec", "sleep", "1000"]), one(&["exec", "sh", "-c", &again])];
    let mut job = Shepherds::start(1, 4, programs);
    let mut console = job.console();
    job.go();
    // It ended well, and leaves the view as it always did.
    job.wait_for(0, |w| matches!(w, ToDaemon::Ended { ranks, .. } if ranks[..] == [(1, RankEnd::Exited(0))]));
    console.read_until(|c| c.text(0, Stream::Out).contains("[0, 2, 3]"));
    console.read_until(|c| c.text(3, Stream::Out).contains("256 MiB"));
    let began = Instant::now();
    while job.notices(0) != (0, 2, 3) {
        assert!(began.elapsed() < PATIENCE, "{:?}", job.notices(0));
    }
    // The second program of rank 3 holds the word again, that of rank 2 does not.
    kill(Pid::from_raw(job.process_of(3)), Signal::SIGKILL).expect("it runs");
    job.wait_for(0, |w| matches!(w, ToDaemon::Ended { ranks, .. } if ranks[..] == [(3, RankEnd::Killed(9))]));
    assert_eq!(job.notices(0).0, 1);
    kill(Pid::from_raw(job.process_of(2)), Signal::SIGKILL).expect("it runs");
    job.wait_for(0, |w| matches!(w, ToDaemon::Ended { ranks, .. } if ranks[..] == [(2, RankEnd::Killed(9))]));
    assert_eq!(job.notices(0).0, 1);
    console.read_until(|c| c.text(0, Stream::Out).ends_with("[0]\n"));
    job.over(137);
    console.wait_for_over();
    job.wait_until_gone();
}
