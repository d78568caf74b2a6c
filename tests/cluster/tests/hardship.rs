//! Hosts in trouble: full disks, clocks that are set, too little processor. Most of it needs root.

use nix::sys::signal::Signal;
use phalanx_client::api::What;
use phalanx_cluster::host::{Quota, WallClock};
use phalanx_cluster::{Cluster, KEY, binary};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const NOBODY: [&str; 0] = [];

fn assert_nobody_failed(cluster: &Cluster) {
    for node in cluster.running() {
        assert_eq!(node.failures(), NOBODY, "at {}", node.name());
    }
}

/// Starts a daemon that must not start: its disk is full.
fn assert_full(dir: &Path) {
    let mut command = Command::new(binary());
    command.args(["agent", "--bind", "127.0.0.1:0", "--name", "x", "--data-dir"]).arg(dir);
    let output = command.arg("--socket").arg(dir.join("x.sock")).env("PHALANX_KEY", KEY).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("the disk is full: make room and start again"), "{said}");
}

/// A disk that is full stops no daemon that runs: it says so once, keeps what it has, and writes again when there is room.
#[test]
fn a_full_disk_stops_no_daemon_that_runs() {
    let mut cluster = Cluster::start(2);
    let poor = cluster.place();
    if !cluster.put_on_small_disk(poor) {
        return;
    }
    cluster.run(poor, &[]);
    cluster.wait_for_one_view();
    cluster.node(poor).wait_until("who is there is kept", |node| node.disk().read("members").lines().count() >= 2);
    let kept = |cluster: &Cluster| ["identity", "members"].map(|name| cluster.node(poor).disk().read(name));
    let before = kept(&cluster);
    cluster.node(poor).disk().fill();
    // Each who comes or goes is a reason to write.
    let fourth = cluster.add(&[]);
    cluster.wait_for_one_view();
    let said = |log: &str| log.matches("the disk is full").count();
    cluster.node(poor).wait_until("it says so", |node| said(&node.log()) > 0);
    cluster.kill(fourth);
    cluster.wait_for_one_view();
    cluster.run(fourth, &[]);
    cluster.wait_for_one_view();
    assert_eq!(kept(&cluster), before, "what was kept stays");
    cluster.node(poor).disk().free();
    let newcomer = cluster.node(fourth).status().me.addr.to_string();
    cluster.node(poor).wait_until("it is kept", |node| node.disk().read("members").contains(&newcomer));
    cluster.node(poor).wait_until("it says so", |node| node.log().contains("takes what we write again"));
    assert_eq!(said(&cluster.node(poor).log()), 1, "once");
}

/// A daemon does not start on a full disk, and says why. Nobody's identity is lost, and nobody comes back in an old life.
#[test]
fn nobody_starts_on_a_full_disk() {
    let mut cluster = Cluster::start(2);
    let poor = cluster.place();
    if !cluster.put_on_small_disk(poor) {
        return;
    }
    let dir = cluster.node(poor).dir().to_owned();
    cluster.node(poor).disk().fill();
    assert_full(&dir);
    assert!(!dir.join("identity").exists() && !dir.join("keys").exists(), "nothing is half there");
    cluster.node(poor).disk().free();
    cluster.run(poor, &[]);
    cluster.wait_for_one_view();
    let before = cluster.node(0).sees("n2").unwrap();
    cluster.kill(poor);
    cluster.node(poor).disk().fill();
    assert_full(&dir);
    cluster.node(poor).disk().free();
    cluster.run(poor, &[]);
    cluster.wait_for_one_view();
    let after = cluster.node(0).sees("n2").unwrap();
    assert_eq!(after.id, before.id, "it is who it was");
    assert!(after.incarnation > before.incarnation, "in a new life");
}

/// A clock that was set back across a restart brings no old life back: others would not believe that it is there.
#[test]
fn a_clock_set_back_across_a_restart_brings_no_old_life_back() {
    let mut cluster = Cluster::start(2);
    let third = cluster.place();
    let Some(clock) = WallClock::new(cluster.node(third).dir().join("clock")) else { return };
    cluster.start_by(third, &clock.by());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let mut last = 0;
    for by in ["+10d", "+0", "-10d", "-20y"] {
        clock.set(by);
        cluster.run(third, &[]);
        cluster.wait_for_one_view();
        let incarnation = cluster.node(0).sees("n2").unwrap().incarnation;
        assert!(incarnation > last, "{incarnation} after {last}");
        assert!(incarnation > now + 9 * 24 * 3600, "it begins ten days ahead");
        last = incarnation;
        cluster.kill(third);
    }
}

/// The daemon lives by the monotonic clock: setting the wall clock, by a little or by years, disturbs nobody.
#[test]
fn a_wall_clock_that_is_set_disturbs_nobody() {
    let mut cluster = Cluster::start(3);
    let odd = cluster.place();
    let Some(clock) = WallClock::new(cluster.node(odd).dir().join("clock")) else { return };
    cluster.start_by(odd, &clock.by());
    cluster.run(odd, &[]);
    cluster.wait_for_one_view();
    let before = cluster.node(0).view();
    for by in ["+1h", "-1h", "+3d", "-5s", "-2y", "+5y", "+0"] {
        clock.set(by);
        std::thread::sleep(Duration::from_millis(900));
        let word = format!("at{}", by.replace('+', "-ahead-"));
        cluster.node(odd).client().tell(&word, "").unwrap();
        let told = |what: &What| matches!(what, What::User { name, .. } if *name == word);
        cluster.wait_until(&word, |node| node.client().recent(None).unwrap().iter().any(|e| told(&e.what)));
    }
    cluster.wait_for_one_view();
    assert_eq!(cluster.node(0).view(), before, "nobody had to speak up for itself");
    assert_nobody_failed(&cluster);
    let events = cluster.node(odd).client().recent(None).unwrap();
    let (first, last) = (events.iter().map(|e| e.at_ms).min(), events.iter().map(|e| e.at_ms).max());
    let year = 365 * 24 * 3600 * 1000;
    assert!(last.unwrap() - first.unwrap() > 6 * year, "its clock was set: {first:?} to {last:?}");
}

/// After a reboot the monotonic clock begins anew, and in a container it may be ahead: nobody takes it for more than its own.
#[test]
fn a_monotonic_clock_that_jumps_across_a_restart_is_nobodys_concern() {
    let possible = Command::new("unshare").args(["--time", "--monotonic", "1000000", "true"]).output();
    if !possible.is_ok_and(|o| o.status.success()) {
        eprintln!("skipped: no time namespaces here");
        return;
    }
    let mut cluster = Cluster::start(3);
    for by in [&["unshare", "--time", "--monotonic", "1000000", "--boottime", "1000000"][..], &[]] {
        let before = cluster.node(0).sees("n2").unwrap().incarnation;
        cluster.node(2).client().leave().unwrap();
        cluster.wait_for_end(2);
        cluster.start_by(2, by);
        cluster.run(2, &[]);
        cluster.wait_for_one_view();
        assert!(cluster.node(0).sees("n2").unwrap().incarnation > before);
    }
    assert_nobody_failed(&cluster);
}

/// consul#1212, #916: daemons that get a twentieth of a processor, and lose it for most of each tenth of a second, take nobody for dead,
/// nor are they taken for dead.
#[test]
fn starved_daemons_accuse_nobody() {
    let Some(quota) = Quota::new(5) else { return };
    let cluster = {
        let mut cluster = Cluster::empty();
        (0..6).for_each(|_| _ = cluster.add(&["--profile", "lan"]));
        cluster
    };
    cluster.wait_for_one_view();
    [1, 4].iter().for_each(|&n| quota.take(cluster.node(n).pid()));
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(8) {
        // Whoever asks takes of the little they have.
        [1, 4].iter().for_each(|&n| _ = cluster.node(n).client().members());
    }
    assert!(quota.throttled() > 20, "they were starved {} times", quota.throttled());
    cluster.wait_for_one_view();
    assert_nobody_failed(&cluster);
}

/// flux-core#638: half of the daemons stand still for two thirds of the time, a tenth of a second each time.
#[test]
fn stopping_and_going_on_costs_nobody_anything() {
    let cluster = Cluster::start(6);
    for round in 0..40 {
        // Two of three at a time, in turns.
        let stopped = [round % 3, (round + 1) % 3];
        stopped.iter().for_each(|&n| cluster.node(n).signal(Signal::SIGSTOP));
        std::thread::sleep(Duration::from_millis(100));
        stopped.iter().for_each(|&n| cluster.node(n).signal(Signal::SIGCONT));
        std::thread::sleep(Duration::from_millis(50));
    }
    cluster.wait_for_one_view();
    assert_nobody_failed(&cluster);
}
