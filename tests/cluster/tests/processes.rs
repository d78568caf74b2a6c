//! Daemons that are killed, stopped, restarted and told to leave. No rights are needed.

use nix::sys::signal::Signal;
use phalanx_client::api::{Event, State, What};
use phalanx_cluster::Cluster;
use std::time::Duration;

/// ZN-5: a killed daemon is failed everywhere, and nobody else is.
#[test]
fn a_killed_daemon_is_failed_and_nobody_else() {
    let mut cluster = Cluster::start(6);
    cluster.kill(3);
    cluster.wait_until("n3 failed", |node| node.state_of("n3") == Some(State::Failed));
    cluster.wait_until_all_see(5);
    for node in cluster.running() {
        let failed = node.client().members().unwrap().into_iter().filter(|m| m.state == State::Failed).count();
        assert_eq!(failed, 1, "at {}", node.name());
    }
}

/// ZN-1: who restarts is the same node in a new life.
#[test]
fn a_restarted_daemon_is_the_same_node_in_a_new_life() {
    let mut cluster = Cluster::start(4);
    let before = cluster.node(0).sees("n2").unwrap();
    cluster.kill(2);
    cluster.run(2, &[]);
    cluster.wait_until_all_see(4);
    cluster.wait_until("the new life", |node| node.sees("n2").unwrap().incarnation > before.incarnation);
    let after = cluster.node(0).sees("n2").unwrap();
    assert_eq!((after.id, after.addr, after.state), (before.id, before.addr, State::Alive));
}

/// A signal to end is a farewell: the others see a leave, not a failure.
#[test]
fn a_terminated_daemon_leaves_in_good_order() {
    let mut cluster = Cluster::start(4);
    let (client, mut seen) = (cluster.node(0).client(), Vec::new());
    let events = client.events(Some(0));
    cluster.node(1).signal(Signal::SIGTERM);
    assert_eq!(cluster.wait_for_end(1), Some(0));
    cluster.wait_until("n1 left", |node| node.state_of("n1") == Some(State::Left));
    for event in events {
        let Event { what, .. } = event.unwrap();
        if let What::Left { member } = &what {
            seen.push((member.name.clone(), member.state));
            break;
        }
    }
    assert_eq!(seen, [("n1".to_owned(), State::Left)]);
    assert!(!cluster.node(1).dir().join("phalanx.sock").exists(), "it leaves no socket behind");
}

/// Nobody gets in without the key, and nobody inside is disturbed.
#[test]
fn a_daemon_with_another_key_stays_alone() {
    let mut cluster = Cluster::start(3);
    let stranger = cluster.add(&["--key", &"ab".repeat(32)]);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(cluster.node(stranger).status().alive, 1);
    assert!((0..3).all(|n| cluster.node(n).status().alive == 3));
    assert!((0..3).all(|n| cluster.node(n).sees("n3").is_none()));
}

/// The same key, another cluster.
#[test]
fn a_daemon_of_another_cluster_stays_alone() {
    let mut cluster = Cluster::start(2);
    let stranger = cluster.add(&["--cluster", "other"]);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(cluster.node(stranger).status().alive, 1);
    assert!((0..2).all(|n| cluster.node(n).status().alive == 2));
}

/// flux-core#638, consul#1212: a daemon that gets no processor for a while takes nobody for dead, nor is it taken for dead.
#[test]
fn a_short_stop_costs_nobody_anything() {
    let cluster = Cluster::start(5);
    let incarnations = |n: usize| cluster.node(0).sees(&format!("n{n}")).map(|m| (m.incarnation, m.minor));
    let before: Vec<_> = (0..5).map(incarnations).collect();
    for _ in 0..10 {
        cluster.node(2).signal(Signal::SIGSTOP);
        std::thread::sleep(Duration::from_millis(100));
        cluster.node(2).signal(Signal::SIGCONT);
        std::thread::sleep(Duration::from_millis(50));
    }
    cluster.wait_until_all_see(5);
    assert_eq!((0..5).map(incarnations).collect::<Vec<_>>(), before, "nobody had to speak up");
}

/// A daemon that is stopped for long is failed; when it goes on it comes back.
#[test]
fn a_long_stop_ends_with_one_view() {
    let cluster = Cluster::start(5);
    cluster.node(4).signal(Signal::SIGSTOP);
    (0..4).for_each(|n| cluster.node(n).wait_until("n4 failed", |n| n.state_of("n4") == Some(State::Failed)));
    cluster.node(4).signal(Signal::SIGCONT);
    cluster.wait_until_all_see(5);
}

/// memberlist#311: all restart at once, and find each other by what they wrote down.
#[test]
fn all_restart_at_once_and_find_each_other() {
    let mut cluster = Cluster::start(6);
    // Who is there is written down within a second.
    std::thread::sleep(Duration::from_millis(1500));
    (0..6).for_each(|n| cluster.kill(n));
    (0..6).for_each(|n| cluster.run(n, &[]));
    cluster.wait_until_all_see(6);
}

/// Two daemons cannot be one node, and the second one says so.
#[test]
fn a_directory_belongs_to_one_daemon() {
    let cluster = Cluster::start(1);
    let second = std::process::Command::new(phalanx_cluster::binary())
        .args(["agent", "--bind", "127.0.0.1:0", "--name", "twin", "--key", phalanx_cluster::KEY])
        .arg("--data-dir")
        .arg(cluster.node(0).dir())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(1));
    assert!(said.contains("in use by another daemon"), "{said}");
}
