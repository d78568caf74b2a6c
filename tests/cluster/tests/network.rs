//! Daemons on hosts of their own, whose network is cut, lossy, or open in one direction only. Needs root, `ip` and `nft`.

use phalanx_client::api::{State, What};
use phalanx_cluster::Cluster;
use std::time::Duration;

/// Longer than it takes to doubt a silent neighbour and to be sure, in profile `lan`: 1.4 s, 0.3 s, and some.
const LONG: Duration = Duration::from_secs(4);

fn hosts(n: usize) -> Option<Cluster> {
    Cluster::on_hosts(n, &["--profile", "lan"])
}

/// Nobody of these has heard that anybody failed but those.
fn assert_failed_at_most(cluster: &Cluster, healthy: &[usize], failed: &[&str]) {
    for &n in healthy {
        let heard = cluster.node(n).failures();
        assert!(heard.iter().all(|name| failed.contains(&name.as_str())), "n{n} heard that {heard:?} failed");
    }
}

/// Rapid R5, ZN-5: a host that falls silent is failed, nobody else is; when it is back there is one view.
#[test]
fn a_silent_host_is_failed_and_nobody_else() {
    let Some(mut cluster) = hosts(6) else { return };
    cluster.network().blackhole(&[4]);
    let rest = [0, 1, 2, 3, 5];
    rest.iter().for_each(|&n| cluster.node(n).wait_until("n4 failed", |n| n.state_of("n4") == Some(State::Failed)));
    std::thread::sleep(LONG);
    assert!(rest.iter().all(|&n| cluster.node(n).status().alive == 5));
    cluster.network().heal();
    cluster.wait_for_one_view();
    assert_failed_at_most(&cluster, &rest, &["n4"]);
}

/// corosync#760: who can be heard and hears nobody must not take the others down with it.
#[test]
fn a_host_that_hears_nobody_accuses_nobody() {
    let Some(mut cluster) = hosts(6) else { return };
    let rest = [0, 1, 3, 4, 5];
    cluster.network().cut_one_way(&rest, &[2]);
    std::thread::sleep(2 * LONG);
    assert_failed_at_most(&cluster, &rest, &["n2"]);
    cluster.network().heal();
    cluster.wait_for_one_view();
    assert_failed_at_most(&cluster, &rest, &["n2"]);
}

/// corosync#760, the other direction: who hears all and is heard by nobody is failed alone.
#[test]
fn a_host_that_is_heard_by_nobody_is_failed_alone() {
    let Some(mut cluster) = hosts(6) else { return };
    let rest = [0, 1, 3, 4, 5];
    cluster.network().cut_one_way(&[2], &rest);
    rest.iter().for_each(|&n| cluster.node(n).wait_until("n2 failed", |n| n.state_of("n2") == Some(State::Failed)));
    std::thread::sleep(LONG);
    assert_failed_at_most(&cluster, &rest, &["n2"]);
    cluster.network().heal();
    cluster.wait_for_one_view();
    assert_failed_at_most(&cluster, &rest, &["n2"]);
}

/// corosync#760, Rapid R5: two hosts that cannot speak with each other, and can with all others, evict nobody.
#[test]
fn a_cut_between_two_hosts_evicts_nobody() {
    let Some(mut cluster) = hosts(6) else { return };
    let all = [0, 1, 2, 3, 4, 5];
    cluster.network().cut_one_way(&[1], &[4]);
    std::thread::sleep(LONG);
    cluster.network().heal();
    cluster.network().cut(&[1], &[4]);
    std::thread::sleep(2 * LONG);
    assert_failed_at_most(&cluster, &all, &[]);
    cluster.wait_for_one_view();
    cluster.network().heal();
    std::thread::sleep(LONG);
    assert_failed_at_most(&cluster, &all, &[]);
    cluster.wait_for_one_view();
}

/// serf#605, foca#15: halves that were apart are one cluster again, and nobody is missing.
#[test]
fn halves_become_one_again() {
    let Some(mut cluster) = hosts(6) else { return };
    cluster.network().cut(&[0, 1, 2], &[3, 4, 5]);
    cluster.wait_until_all_see(3);
    std::thread::sleep(LONG);
    for n in 0..6 {
        let own = if n < 3 { ["n0", "n1", "n2"] } else { ["n3", "n4", "n5"] };
        assert!(cluster.node(n).view().iter().map(|m| m.0.as_str()).eq(own), "each half is whole");
    }
    cluster.network().heal();
    cluster.wait_for_one_view();
}

/// serf#605: the half without any seed finds the other one, too, and so does who was alone.
#[test]
fn three_parts_become_one_again() {
    let Some(mut cluster) = hosts(6) else { return };
    cluster.network().cut(&[0], &[1, 2, 3, 4, 5]);
    cluster.network().cut(&[1, 2], &[3, 4, 5]);
    [(0, 1), (1, 2), (2, 2), (3, 3), (4, 3), (5, 3)].iter().for_each(|&(n, size)| {
        cluster.node(n).wait_until("its part", |n| n.status().alive == size);
    });
    cluster.network().heal();
    cluster.wait_for_one_view();
}

/// Rapid R3: a cable that comes and goes. Whoever hangs on it may be removed, and holds back; nobody else is, and once the cable
/// is good there is one view.
#[test]
fn a_cable_that_comes_and_goes_harms_its_host_alone() {
    let Some(mut cluster) = hosts(6) else { return };
    let rest = [0, 1, 2, 4, 5];
    for _ in 0..4 {
        cluster.network().blackhole(&[3]);
        std::thread::sleep(Duration::from_millis(2500));
        cluster.network().heal();
        std::thread::sleep(Duration::from_millis(500));
    }
    assert_failed_at_most(&cluster, &rest, &["n3"]);
    for n in rest {
        let flaps = cluster.node(n).failures().len();
        assert!(flaps <= 3, "n{n} heard {flaps} times that n3 failed");
        assert_eq!(cluster.node(n).view().iter().filter(|m| m.0 != "n3").count(), 5);
    }
    cluster.wait_for_one_view();
}

/// 40 % of all packets are lost, to and from everybody. Somebody may be doubted, but beats, probes and second opinions are more than
/// one packet each: at the end nobody is missing.
#[test]
fn heavy_loss_everywhere_loses_nobody_for_long() {
    let Some(mut cluster) = hosts(6) else { return };
    cluster.network().lose(40);
    std::thread::sleep(LONG);
    cluster.node(2).client().tell("still-here", "").unwrap();
    let told = |what: &What| matches!(what, What::User { name, .. } if name == "still-here");
    cluster.wait_until("the event", |node| node.client().recent(None).unwrap().iter().any(|e| told(&e.what)));
    std::thread::sleep(LONG);
    cluster.network().heal();
    cluster.wait_for_one_view();
}

/// memberlist#311, serf#605: all restart while they are cut in two, and are one when the cut is healed.
#[test]
fn all_restart_while_cut_and_become_one() {
    let Some(mut cluster) = hosts(6) else { return };
    // Who is there is written down within a second.
    std::thread::sleep(Duration::from_millis(1500));
    cluster.network().cut(&[0, 1, 2], &[3, 4, 5]);
    (0..6).for_each(|n| cluster.kill(n));
    (0..6).for_each(|n| cluster.run(n, &["--profile", "lan"]));
    cluster.wait_until_all_see(3);
    cluster.network().heal();
    cluster.wait_for_one_view();
}

/// A daemon that starts while no seed can be reached goes on asking, and is in as soon as one answers.
#[test]
fn a_daemon_whose_seeds_are_out_of_reach_joins_later() {
    let Some(network) = phalanx_cluster::net::Network::new(4) else { return };
    let mut cluster = Cluster::on(network);
    (0..3).for_each(|_| _ = cluster.add(&["--profile", "lan"]));
    cluster.wait_for_one_view();
    cluster.network().blackhole(&[3]);
    let late = cluster.add(&["--profile", "lan"]);
    std::thread::sleep(LONG);
    assert_eq!(cluster.node(late).status().alive, 1);
    cluster.network().heal();
    cluster.wait_for_one_view();
}

/// serf#579: keys that one half changed while it was alone are the other half's, too, when they meet.
#[test]
fn keys_of_one_half_are_given_to_the_other() {
    let Some(mut cluster) = hosts(4) else { return };
    cluster.network().cut(&[0, 1], &[2, 3]);
    cluster.wait_until_all_see(2);
    let (code, said, error) = cluster.command(0, &["keys", "rotate"]);
    assert_eq!(code, Some(0), "{said}{error}");
    cluster.network().heal();
    cluster.wait_for_one_view();
    let keys = cluster.node(0).client().keys().unwrap();
    cluster.wait_until("the new keys", |node| node.client().keys().unwrap() == keys);
}

/// serf#579: both halves changed the keys while they were apart. They meet under the one that both still have, and agree.
#[test]
fn halves_that_both_changed_the_keys_become_one() {
    let Some(mut cluster) = hosts(4) else { return };
    cluster.network().cut(&[0, 1], &[2, 3]);
    cluster.wait_until_all_see(2);
    for half in [0, 2] {
        let (code, said, error) = cluster.command(half, &["keys", "rotate"]);
        assert_eq!(code, Some(0), "{said}{error}");
    }
    cluster.network().heal();
    cluster.wait_for_one_view();
    let keys = cluster.node(0).client().keys().unwrap();
    cluster.wait_until("the same keys", |node| node.client().keys().unwrap() == keys);
}
