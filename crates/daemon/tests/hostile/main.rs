//! TG: what strangers and liars do to real daemons on segments. What they say is dropped and counted, costs so much and no more, and
//! changes nobody's view: who lives stays, who is dead stays dead.

mod liar;
mod stranger;

use liar::Liar;
use phalanx_api::{State, What};
use phalanx_cluster::{Cluster, KEY, Node};
use phalanx_daemon::store::{Key, key_id, ring, unhex};
use phalanx_protocol::link::seal::KeyRing;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use stranger::{Echo, Flood, Stranger};

/// The first group of segments and the port of groups, as daemons have them unless they are told otherwise.
const GROUP: u16 = 4096;
const GROUP_PORT: u16 = 7947;
/// The key of another cluster.
const OTHER_KEY: &str = "6f74686572206f74686572206f74686572206f74686572206f74686572206f74";
/// How long somebody does what he can; and the dead are called.
const LASTS: Duration = Duration::from_secs(6);
const CALLS: Duration = Duration::from_secs(4);
/// A daemon answers within this time, flood or not.
const ANSWERS: Duration = Duration::from_secs(5);
/// Peers and questions that thousands of packets may cost.
const FEW: u64 = 10;
/// Memory that a daemon may take for all of it.
const MEMORY_KIB: u64 = 64 << 10;

fn keys(key: &str, cluster: &str) -> KeyRing {
    let key: [u8; 32] = unhex(key).expect("64 digits");
    ring(&[Key { id: key_id(&key), key }], cluster).expect("one key")
}

/// `n` daemons on one segment, in a cluster of this name: stories on the same groups do not hear each other.
fn segment(name: &str, n: usize) -> Cluster {
    let mut cluster = Cluster::empty().without_seeds();
    (0..n).for_each(|_| _ = cluster.add(&["--engine", "segment", "--profile", "lan", "--cluster", name]));
    cluster.wait_for_one_view();
    cluster
}

fn unique(story: &str) -> String {
    format!("{story}-{}", std::process::id())
}

fn addrs(cluster: &Cluster) -> Vec<SocketAddr> {
    cluster.running().filter_map(Node::addr).collect()
}

/// The sum of a figure over its labels that contain this.
fn figure(node: &Node, name: &str, label: &str) -> u64 {
    let metrics = node.client().metrics().expect("it answers");
    let is_meant = |line: &&str| {
        let rest = line.strip_prefix("phalanx_").and_then(|line| line.strip_prefix(name));
        rest.is_some_and(|rest| rest.trim_start_matches("_total").starts_with([' ', '{'])) && line.contains(label)
    };
    metrics.lines().filter(is_meant).filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum()
}

fn dropped(node: &Node, reason: &str) -> u64 {
    figure(node, "packets_dropped", reason)
}

fn memory_kib(node: &Node) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid())).expect("it runs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("it has memory");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// While something goes on, each daemon answers in time and has lost nobody.
fn all_is_well_for(cluster: &Cluster, lasts: Duration) {
    let began = Instant::now();
    while began.elapsed() < lasts {
        for node in cluster.running() {
            let asked = Instant::now();
            let status = node.status();
            assert!(asked.elapsed() < ANSWERS, "{} took {:?} to answer", status.me.name, asked.elapsed());
            assert_eq!(node.failures(), Vec::<String>::new(), "{} lost somebody", status.me.name);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn wait_until_dead(cluster: &Cluster, name: &str) {
    cluster.wait_until("it failed", |node| node.state_of(name) == Some(State::Failed));
}

/// Who is dead is not heard of again.
fn nobody_joins_for(cluster: &Cluster, lasts: Duration) {
    let last = |node: &Node| node.client().recent(None).expect("it answers").last().map_or(0, |event| event.id);
    let since: Vec<u64> = cluster.running().map(last).collect();
    std::thread::sleep(lasts);
    for (node, since) in cluster.running().zip(since) {
        let events = node.client().recent(Some(since)).expect("it answers");
        let joined: Vec<_> = events.iter().filter(|e| matches!(e.what, What::Joined { .. })).collect();
        assert!(joined.is_empty(), "{}: {joined:?}", node.status().me.name);
    }
}

/// Garbage, packets that were heard and come again, whole or bent, and true heartbeats under another key or of another cluster, which have the
/// name of a member. Then a member dies, and its last words are said again and again.
#[test]
fn strangers_change_nothing_and_call_nobody_back() {
    let name = unique("strangers");
    let mut cluster = segment(&name, 3);
    let before: Vec<(u64, u64, u64)> = cluster
        .running()
        .map(|node| (figure(node, "peers", ""), figure(node, "segment_polls", ""), memory_kib(node)))
        .collect();
    let echo = Echo::hear(Duration::from_secs(2));
    assert!(echo.len() > 6, "heartbeats are heard: {}", echo.len());
    let others = [
        Stranger::start(cluster.home(), keys(OTHER_KEY, &name), "n1"),
        Stranger::start(cluster.home(), keys(KEY, "another"), "n2"),
    ];
    let flood = Flood::start(&echo, &addrs(&cluster));
    all_is_well_for(&cluster, LASTS);
    let sent = flood.stop();
    drop(others);
    assert!(sent > 10_000, "only {sent} packets in {LASTS:?}");
    for (node, (peers, polls, memory)) in cluster.running().zip(before) {
        let name = node.status().me.name;
        assert_eq!(node.view().len(), 3, "{name}");
        for reason in ["truncated", "unknownkey", "badseal", "replayed"] {
            assert!(dropped(node, reason) > 0, "{name} has dropped nothing as {reason}");
        }
        // Each of them gets a tenth of it at least, though a socket that is full loses some.
        assert!(dropped(node, "") > sent / 10, "{name} has counted {} of {sent}", dropped(node, ""));
        // What a member said and another address says again may come from a member that moved: a few are asked to prove it, not one for each packet.
        let now = figure(node, "peers", "");
        assert!(now <= peers + FEW, "{name} keeps strangers: {now} peers, {peers} before");
        assert!(figure(node, "segment_polls", "") <= polls + FEW, "{name} asks for what strangers say");
        assert!(memory_kib(node) < memory + MEMORY_KIB, "{name} has grown");
    }
    // Its last words, whole or bent.
    let echo = Echo::hear(Duration::from_secs(2));
    cluster.kill(2);
    wait_until_dead(&cluster, "n2");
    let flood = Flood::start(&echo, &addrs(&cluster));
    nobody_joins_for(&cluster, CALLS);
    flood.stop();
    cluster.wait_for_one_view();
    // It can come back all the same, in another life.
    cluster.run(2, &["--engine", "segment", "--profile", "lan", "--cluster", &name]);
    cluster.wait_for_one_view();
}

/// One who has the key lies about leaders, numbers, members and levels. Nobody who lives goes, nobody comes back who is dead, and what
/// only the liar knows goes with it.
#[test]
fn a_liar_with_the_key_is_counted_and_its_lies_go_with_it() {
    let name = unique("liar");
    let mut cluster = segment(&name, 4);
    // The dead one was heard by the liar, which has its last words.
    let liar = Liar::start(cluster.home(), keys(KEY, &name));
    cluster.wait_until("the liar is a member", |node| node.state_of(liar::NAME) == Some(State::Alive));
    liar.wait_until_heard(5);
    cluster.kill(3);
    wait_until_dead(&cluster, "n3");
    let expected: Vec<(String, u64, u32)> =
        cluster.node(0).view().into_iter().filter(|member| member.0 != liar::NAME).collect();
    let before: Vec<(u64, u64)> =
        cluster.running().map(|node| (figure(node, "segment_polls", ""), memory_kib(node))).collect();
    liar.lie(true);
    let began = Instant::now();
    while began.elapsed() < LASTS {
        for node in cluster.running() {
            let asked = Instant::now();
            let lost: Vec<String> = node.failures().into_iter().filter(|name| name != "n3").collect();
            assert!(asked.elapsed() < ANSWERS, "{} took {:?}", node.status().me.name, asked.elapsed());
            let real = lost.iter().filter(|name| name.starts_with('n')).count();
            assert_eq!(real, 0, "{} lost {lost:?}", node.status().me.name);
            assert_ne!(node.state_of("n3"), Some(State::Alive), "n3 is dead");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let told = liar.told();
    assert!(told > 5_000, "only {told} lies in {LASTS:?}");
    for (node, (polls, memory)) in cluster.running().zip(before) {
        let name = node.status().me.name;
        for lies in ["segment_forged", "segment_strays", "segment_unanswered", "malformed"] {
            assert!(figure(node, lies, "") > 0, "{name} has counted none as {lies}");
        }
        assert!(figure(node, "segment_polls", "") - polls <= told, "{name} asks more than it is told");
        assert!(memory_kib(node) < memory + MEMORY_KIB, "{name} has grown");
    }
    liar.stop();
    cluster.wait_until("the liar is gone, and its lies", |node| node.view() == expected);
}
