//! DESIGN: segments give zones and seeds. Daemons that have nothing but the cluster's key find each other by multicast. Needs root,
//! `ip`, `nft` and `smcrouted`.

use phalanx_client::api::State;
use phalanx_cluster::net::{Network, Plan};
use phalanx_cluster::{Cluster, Node};
use std::collections::BTreeSet;

fn zone(node: &Node) -> Option<String> {
    node.status().me.zone
}

/// All zones and how many members each has, as a node says.
fn census(node: &Node) -> Vec<(String, u64)> {
    let mut zones: Vec<_> =
        node.client().zones().unwrap_or_default().into_iter().map(|z| (z.name, z.members)).collect();
    zones.sort();
    zones
}

/// Waits until those of each network are in one zone of their own, all of them see all of it, and all know all zones.
fn wait_for_zones(cluster: &Cluster, networks: &[Vec<usize>]) -> Vec<String> {
    let wanted = |node: usize| networks.iter().find(|n| n.contains(&node)).expect("each is in a network").len();
    let all = || networks.iter().flatten().copied();
    for node in all() {
        cluster.node(node).wait_until("it sees its zone", |n| zone(n).is_some() && n.status().alive == wanted(node));
    }
    let zones: Vec<String> = networks.iter().map(|n| zone(cluster.node(n[0])).expect("it is in a zone")).collect();
    for (network, zone_) in networks.iter().zip(&zones) {
        for &node in network {
            assert_eq!(zone(cluster.node(node)).as_ref(), Some(zone_), "n{node}");
        }
    }
    assert_eq!(zones.iter().collect::<BTreeSet<_>>().len(), networks.len(), "zones have names of their own: {zones:?}");
    let mut known: Vec<(String, u64)> = zones.iter().cloned().zip(networks.iter().map(|n| n.len() as u64)).collect();
    known.sort();
    for node in all() {
        cluster.node(node).wait_until("it knows all zones", |n| census(n) == known);
    }
    zones
}

/// A local network with nothing but the key is one cluster, and its segment is its zone.
#[test]
fn tg_3_a_lan_of_eight_needs_nothing_but_the_key() {
    let Some(network) = Network::of(&Plan::lan(8)) else { return };
    let mut cluster = Cluster::on(network).without_seeds();
    (0..8).for_each(|_| _ = cluster.add(&[]));
    let zones = wait_for_zones(&cluster, &[(0..8).collect()]);
    // A member that dies is missed as fast as in any zone, and the zone keeps its name though it may have led.
    let led_by = cluster.node(1).client().segments().unwrap()[0].leader.clone().expect("it is led");
    let dead: usize = led_by.trim_start_matches('n').parse().unwrap();
    cluster.kill(dead);
    let rest: Vec<usize> = (0..8).filter(|&n| n != dead).collect();
    for &node in &rest {
        cluster.node(node).wait_until("it failed", |n| n.state_of(&led_by) == Some(State::Failed));
    }
    assert_eq!(wait_for_zones(&cluster, &[rest]), zones);
    cluster.run(dead, &[]);
    assert_eq!(wait_for_zones(&cluster, &[(0..8).collect()]), zones);
}

/// Networks behind a router are zones of one cluster, which know of each other; a host that is moved goes over.
#[test]
fn tg_7_networks_behind_a_router_are_zones_of_one_cluster() {
    let Some(network) = Network::of(&Plan::star(2, 2)) else { return };
    let mut cluster = Cluster::on(network).without_seeds();
    (0..4).for_each(|_| _ = cluster.add(&[]));
    wait_for_zones(&cluster, &[vec![0, 1], vec![2, 3]]);
}

/// Who is told whom to join, and nothing else, goes where that one is: into no zone when that is alone, into its zone otherwise.
#[test]
fn who_is_told_whom_to_join_goes_where_that_one_is() {
    let Some(network) = Network::of(&Plan::lan(3)) else { return };
    let mut cluster = Cluster::on(network).without_seeds();
    cluster.add(&[]);
    cluster.node(0).wait_until("it leads its segment", |n| n.client().segments().is_ok_and(|s| s.len() > 1));
    assert_eq!(zone(cluster.node(0)), None, "nobody else looks around");
    cluster.add(&[]);
    let zones = wait_for_zones(&cluster, &[vec![0, 1]]);
    let first = cluster.node(0).status().me.addr.to_string();
    cluster.add(&["--join", &first]);
    cluster.wait_for_one_view();
    assert_eq!(zone(cluster.node(2)).as_ref(), Some(&zones[0]));
}
