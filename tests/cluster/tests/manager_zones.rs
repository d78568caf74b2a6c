//! One manager over several zones: daemons that do not see each other are managed by three that sit in different ones.

use phalanx_cluster::console::{Console, job, kill_node, node_of, run};
use phalanx_cluster::net::{Network, Plan};
use phalanx_cluster::{Cluster, Node};
use std::collections::BTreeSet;

/// The first is a supervisor; nodes 1 to 6 are in two zones in turn.
const ZONES: [&str; 2] = ["red", "blue"];
const NODES: std::ops::RangeInclusive<usize> = 1..=6;
const WAIT: &str = "echo waits $PHALANX_RANK; while ! test -e $GO; do sleep 0.02; done; echo done $PHALANX_RANK";

fn zone_of(node: usize) -> &'static str {
    ZONES[node % 2]
}

/// Three replicas on nodes that live, in both zones, as this node sees it.
fn is_managed(node: &Node, gone: &[&str]) -> bool {
    let managers = node.client().managers().expect("it answers");
    let zones: BTreeSet<&str> = managers.replicas.iter().map(|r| r.zone.as_str()).collect();
    let live = managers.replicas.iter().all(|r| !gone.contains(&r.node.as_str()));
    managers.decides && managers.replicas.len() == 3 && zones.len() == 2 && live
}

fn start() -> Cluster {
    let mut cluster = Cluster::empty();
    let supervisor = cluster.add(&["--role", "supervisor"]);
    let place = cluster.node(supervisor).status().me.addr.to_string();
    for node in NODES {
        let zone = zone_of(node);
        cluster.add(&["--zone", zone, "--supervisor", &place, "--expect", "6", "--slots", "2", "--run-as-root"]);
    }
    for node in NODES {
        cluster.node(node).wait_until("a manager in both zones", |n| is_managed(n, &[]));
    }
    let slots = |n: &Node| n.client().slots().map_or(0, |slots| slots.iter().filter(|s| s.alive).count());
    cluster.node(1).wait_until("it knows all nodes", |n| slots(n) == NODES.count());
    cluster
}

/// CM-1, CM-2, CM-3: replicas sit in different zones and agents are in all; a job runs on nodes of both. Without the supervisor, a node that dies with
/// ranks in one zone is replaced for a console in the other, and so is a replica that dies there.
#[test]
fn cm_1_one_manager_serves_several_zones() {
    let mut cluster = start();
    let here = cluster.node(1).client().members().expect("it answers");
    assert!(here.iter().all(|m| m.zone.as_deref() == Some("blue")), "membership is as it was: {here:#?}");
    for node in [1, 2] {
        let ended = run(&cluster, node, &["-n", "6", "-N", "1", "sh", "-c", "echo $PHALANX_NODE"]);
        assert_eq!((ended.status, ended.sorted()), (Some(0), vec!["n1", "n2", "n3", "n4", "n5", "n6"]));
    }

    // Who introduced the zones to each other is not needed any more.
    cluster.kill(0);
    let replicas = cluster.node(1).client().managers().expect("it answers").replicas;
    let seat = |node: usize| replicas.iter().any(|r| r.node == cluster.node(node).name());
    let (home, plain) = (1, [2, 4, 6].into_iter().find(|&n| !seat(n)).expect("at most two of them have seats"));
    let replica = [2, 4, 6].into_iter().find(|&n| seat(n)).expect("one of the zone has a seat");
    let file = cluster.node(home).dir().join("go").to_str().expect("a path of ours").to_owned();
    let variable = format!("GO={file}");
    let arguments =
        ["--name", "back", "-n", "5", "-N", "1", "--on-failure", "respawn", "-x", &variable, "sh", "-c", WAIT];
    let mut others: Vec<String> = NODES.filter(|n| *n != plain).map(|n| format!("n{n}")).collect();
    others.insert(0, format!("n{plain}"));
    let hosts = others.join(",");
    let mut console = Console::start(&cluster, home, &[&["-host", &hosts][..], &arguments].concat());
    console.wait_for_times("waits", 5);
    let victim = node_of(&cluster, &job(&cluster, home, "back"), 0);
    assert_eq!(victim, plain);
    kill_node(&mut cluster, victim, "back");
    console.wait_for_times("waits 0", 2);
    let (_, log, _) = cluster.command(home, &["job", "log", "back"]);
    assert!(log.contains(&format!("n{plain}")), "{log}");
    let gone = |node: &Node| node.client().slots().is_ok_and(|s| s.iter().filter(|s| !s.alive).count() == 1);
    cluster.node(home).wait_until("the node is given up", gone);
    std::fs::write(&file, "").expect("a file of ours");
    let ended = console.end();
    assert_eq!((ended.status, ended.said.iter().filter(|l| l.starts_with("done")).count()), (Some(0), 5));

    // A shepherd that has not heard of the end would wait for the next daemon there.
    cluster
        .node(replica)
        .wait_until("nothing of the job is left", |n| n.client().jobs().is_ok_and(|jobs| jobs.is_empty()));
    cluster.kill(replica);
    let gone = [format!("n{plain}"), format!("n{replica}")];
    let gone = [gone[0].as_str(), gone[1].as_str()];
    let last = [2, 4, 6].into_iter().find(|n| *n != plain && *n != replica).expect("one is left");
    for node in [home, last] {
        cluster.node(node).wait_until("three replicas again", |n| is_managed(n, &gone));
    }
    assert_eq!(run(&cluster, last, &["-n", "4", "-N", "1", "echo", "on"]).sorted(), ["on"; 4]);
}

/// Zones that were told nothing, and come from segments of the network, have one manager, too. Needs root, and a router; skipped where none can be.
#[test]
fn cm_1_zones_that_come_from_segments_have_one_manager() {
    let Some(network) = Network::of(&Plan::star(2, 2)) else { return };
    let mut cluster = Cluster::on(network).without_seeds();
    (0..4).for_each(|_| _ = cluster.add(&["--expect", "4", "--slots", "1", "--run-as-root"]));
    cluster.wait_until("a manager in both zones", |node| is_managed(node, &[]));
    cluster.wait_until_managed(4);
    for node in [0, 3] {
        assert_eq!(
            run(&cluster, node, &["-n", "4", "sh", "-c", "echo $PHALANX_NODE"]).sorted(),
            ["n0", "n1", "n2", "n3"]
        );
    }
}
