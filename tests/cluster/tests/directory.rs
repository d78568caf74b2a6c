//! Attributes and services of real daemons.

use phalanx_client::Error;
use phalanx_client::api::{Offer, Service};
use phalanx_cluster::{Cluster, Node};

fn attribute(node: &Node, of: &str, key: &str) -> Option<String> {
    let all = node.client().attributes().unwrap();
    all.into_iter().find(|a| a.name == of).and_then(|a| a.attributes.get(key).cloned())
}

/// AT-1, AT-2: what a member says of itself is everywhere, and goes with it.
#[test]
fn attributes_reach_everybody_and_go_with_their_member() {
    let mut cluster = Cluster::start(5);
    cluster.node(1).client().set_attribute("rack", Some("r7 ü/?")).unwrap();
    cluster.wait_until("rack of n1", |node| attribute(node, "n1", "rack").as_deref() == Some("r7 ü/?"));
    cluster.node(1).client().set_attribute("rack", Some("r8")).unwrap();
    cluster.wait_until("the new rack", |node| attribute(node, "n1", "rack").as_deref() == Some("r8"));
    cluster.node(1).client().set_attribute("rack", None).unwrap();
    cluster.wait_until("no rack", |node| attribute(node, "n1", "rack").is_none());
    cluster.node(1).client().set_attribute("rack", Some("r9")).unwrap();
    cluster.wait_until("rack again", |node| attribute(node, "n1", "rack").is_some());
    cluster.kill(1);
    cluster.wait_until("gone with its member", |node| attribute(node, "n1", "rack").is_none());
}

/// TG-4: services are found by expression, at every node.
#[test]
fn services_are_found_by_expression_everywhere() {
    let mut cluster = Cluster::start(4);
    let cache = Offer { name: "cache".into(), port: Some(6379), partitions: vec![(3, 5)], ..Offer::default() };
    cluster.node(1).client().offer(&cache).unwrap();
    cluster.node(2).client().offer(&Offer { partitions: vec![(6, 9)], ..cache.clone() }).unwrap();
    let find = |node: &Node, expression: &str| -> Vec<Service> { node.client().services(Some(expression)).unwrap() };
    cluster.wait_until("both caches", |node| find(node, "name == cache").len() == 2);
    let found = find(cluster.node(3), "name =~ \"ca.*\" and partition in 4..4");
    assert_eq!((found.len(), found[0].node.as_str(), &found[0].offer), (1, "n1", &cache));
    assert_eq!(found[0].addr.unwrap().port(), 6379);
    cluster.node(2).client().withdraw("cache", Some(6379)).unwrap();
    cluster.wait_until("one cache", |node| find(node, "name == cache").len() == 1);
    cluster.kill(1);
    cluster.wait_until("none", |node| find(node, "name == cache").is_empty());
}

#[test]
fn what_makes_no_sense_is_refused_with_advice() {
    let cluster = Cluster::start(1);
    let client = cluster.node(0).client();
    let said = |e: Error| match e {
        Error::Refused { error, .. } => error,
        e => panic!("{e}"),
    };
    assert!(said(client.set_attribute("phalanx.monitor", Some("1")).unwrap_err()).contains("reserved"));
    assert!(said(client.set_attribute("k", Some(&"x".repeat(5000))).unwrap_err()).contains("a value at most"));
    assert!(said(client.services(Some("name ==")).unwrap_err()).len() > 10);
    assert!(said(client.offer(&Offer { name: "a b".into(), ..Offer::default() }).unwrap_err()).contains("name"));
    assert!(said(client.withdraw("nothing", None).unwrap_err()).contains("does not offer"));
    (0..1000).find_map(|n| client.set_attribute(&format!("k{n}"), Some("v")).err()).map(said).expect("some bound");
}
