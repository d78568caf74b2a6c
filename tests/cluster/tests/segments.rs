//! TG, 003 §3: daemons on networks behind routers, which nobody has told of each other. Needs root, `ip`, `nft` and `smcrouted`.

use phalanx_client::api::segments::Level;
use phalanx_client::api::{Member, Offer, Part, State, What};
use phalanx_client::directory::Query;
use phalanx_cluster::net::{Network, Plan};
use phalanx_cluster::{Cluster, Node};
use std::collections::BTreeSet;

const SEGMENT: [&str; 4] = ["--engine", "segment", "--profile", "lan"];
/// Hosts of each leaf network, from one end of the row to the other. There is a router between each and the next.
const LEAVES: [&[usize]; 3] = [&[0, 1, 2], &[3, 4], &[5, 6]];
const HOSTS: usize = 7;
/// The key of another cluster.
const OTHER_KEY: &str = "6f74686572206f74686572206f74686572206f74686572206f74686572206f74";
/// Packets of strangers that must have come, for a test to say that they do no harm.
const MANY: u64 = 8;

/// A daemon on each host of three leaf networks behind two routers in a row; all see all.
fn three_leaves() -> Option<Cluster> {
    let mut plan = Plan::default();
    LEAVES.iter().for_each(|hosts| _ = plan.add_network(hosts.len()));
    plan.add_router(&[0, 1]);
    plan.add_router(&[1, 2]);
    let mut cluster = Cluster::on(Network::of(&plan)?).without_seeds();
    (0..HOSTS).for_each(|_| _ = cluster.add(&SEGMENT));
    cluster.wait_for_one_view();
    LEAVES.iter().for_each(|leaf| _ = leader(&cluster, leaf));
    Some(cluster)
}

fn name(node: usize) -> String {
    format!("n{node}")
}

fn names(nodes: &[usize]) -> Vec<String> {
    nodes.iter().map(|&node| name(node)).collect()
}

fn segment(node: &Node) -> Level {
    node.client().segments().expect("it answers").swap_remove(0)
}

/// Waits until those of a leaf are one group and agree who leads it and who would be next.
fn leader(cluster: &Cluster, leaf: &[usize]) -> (usize, usize) {
    let agreed = |level: &Level| level.members == names(leaf) && level.leader.is_some() && level.backup.is_some();
    let number = |name: Option<String>| name.expect("it was there").trim_start_matches('n').parse().expect("a number");
    for &node in leaf {
        cluster.node(node).wait_until("its segment is led", |node| {
            let level = segment(node);
            agreed(&level) && leaf.iter().all(|&other| segment(cluster.node(other)) == level)
        });
    }
    let Level { leader, backup, .. } = segment(cluster.node(leaf[0]));
    (number(leader), number(backup))
}

/// What a daemon has heard of others since an event: who came, or who went, in the order of the events, with their numbers.
fn heard(node: &Node, after: u64, joined: bool) -> Vec<(u64, String)> {
    let events = node.client().recent(Some(after)).expect("it answers");
    let which = |what| match what {
        What::Joined { member } if joined => Some(member.name),
        What::Left { member } if !joined => Some(member.name),
        _ => None,
    };
    events.into_iter().filter_map(|event| Some((event.id, which(event.what)?))).collect()
}

fn last_event(node: &Node) -> u64 {
    node.client().recent(None).expect("it answers").last().map_or(0, |event| event.id)
}

fn set(names: impl IntoIterator<Item = String>) -> BTreeSet<String> {
    names.into_iter().collect()
}

/// TG-1, 003 §3.2: each leaf is a group with one leader; leaders, and nobody else, climb, to who is as many routers away as their
/// level allows; and everybody sees everybody.
#[test]
fn tg_1_leaves_behind_routers_have_one_leader_each() {
    let Some(cluster) = three_leaves() else { return };
    let leaders = LEAVES.map(|leaf| leader(&cluster, leaf).0);
    for (leaf, led_by) in LEAVES.iter().zip(leaders) {
        assert!(leaf.contains(&led_by), "{led_by} leads {leaf:?}");
        for &node in *leaf {
            let levels = cluster.node(node).client().segments().unwrap();
            assert_eq!(levels.len() > 1, node == led_by, "{node} of {leaf:?}, led by {led_by}: {levels:#?}");
        }
    }
    let [first, middle, last] = leaders;
    // With a TTL of 2 the ends hear the middle and not each other.
    for (node, hears) in [(first, vec![first, middle]), (middle, leaders.to_vec()), (last, vec![middle, last])] {
        cluster.node(node).wait_until("level 1 is who is one router away", |node| {
            let levels = node.client().segments().unwrap();
            levels.get(1).is_some_and(|level| level.ttl == 2 && set(level.members.clone()) == set(names(&hears)))
        });
    }
    assert!((0..HOSTS).all(|node| cluster.node(node).failures().is_empty()), "nobody was lost on the way");
}

/// TG-2, TG-5: who was named to be next leads before anybody beyond the router gives the leaf up: there, one node has left.
#[test]
fn tg_5_a_dead_leader_is_replaced_before_the_level_above_notices() {
    let Some(mut cluster) = three_leaves() else { return };
    let leaf = LEAVES[0];
    let (dead, heir) = leader(&cluster, leaf);
    let began: Vec<u64> = (0..HOSTS).map(|node| last_event(cluster.node(node))).collect();
    cluster.kill(dead);
    cluster.wait_until("it failed", |node| node.state_of(&name(dead)) == Some(State::Failed));
    let rest: Vec<usize> = leaf.iter().copied().filter(|&node| node != dead).collect();
    assert_eq!(leader(&cluster, &rest).0, heir);
    // Beyond the router they have the heir in their midst before they could give up its leaf.
    let (middle, _) = leader(&cluster, LEAVES[1]);
    cluster.node(middle).wait_until("the heir is heard", |node| {
        let levels = node.client().segments().unwrap();
        levels.get(1).is_some_and(|level| level.members.contains(&name(heir)) && !level.members.contains(&name(dead)))
    });
    cluster.wait_for_one_view();
    for node in (0..HOSTS).filter(|&node| node != dead) {
        let left: Vec<String> = heard(cluster.node(node), began[node], false).into_iter().map(|e| e.1).collect();
        assert_eq!(left, [name(dead)], "n{node} has heard of more than one death");
    }
}

/// TG-5, 003 §3.3: the nodes behind a dead switch leave as one, in one go for who is one router away, and are all back when it is back.
#[test]
fn tg_5_a_dead_switch_takes_its_nodes_along_and_brings_them_back() {
    let _ = switch_dies_and_is_back();
}

/// The nodes behind the switch are failed once and join once, and nobody else does, however far away one looks from: neither when it
/// dies, though its leader may lead others and who is farther away gives it up later, nor when it is back, though who comes back has
/// verdicts from when it was alone.
#[test]
#[ignore = "open: failed 5 of 12 times on a busy machine; the cause is mended and holds for 100 seeds in both profiles, and real runs are still to show it"]
fn tg_5_a_dead_switch_fails_nobody_else() {
    let Some((cluster, began)) = switch_dies_and_is_back() else { return };
    for &node in &LEAVES[1..].concat() {
        for joined in [false, true] {
            let events = heard(cluster.node(node), began[node], joined);
            assert_eq!(events.len(), LEAVES[0].len(), "n{node}: {events:?}");
            assert_eq!(set(events.into_iter().map(|e| e.1)), set(names(LEAVES[0])), "n{node}");
        }
    }
}

/// The story of a switch: the cluster, and the last event that each node had seen before.
fn switch_dies_and_is_back() -> Option<(Cluster, Vec<u64>)> {
    let mut cluster = three_leaves()?;
    let (cut, rest) = (LEAVES[0], LEAVES[1..].concat());
    let lives = cluster.node(rest[0]).view();
    let began: Vec<u64> = (0..HOSTS).map(|node| last_event(cluster.node(node))).collect();
    cluster.network().set_switch(0, false);
    for &node in &rest {
        let is_left = |node: &Node| node.view().iter().map(|member| &member.0).eq(&names(&rest));
        cluster.node(node).wait_until("the leaf is gone, and nobody else", is_left);
    }
    for &node in LEAVES[1] {
        let mut left = heard(cluster.node(node), began[node], false);
        left.truncate(cut.len());
        assert_eq!(set(left.iter().map(|e| e.1.clone())), set(names(cut)), "n{node}");
        let numbers: Vec<u64> = left.iter().map(|e| e.0).collect();
        assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1), "n{node}: not in one go: {left:?}");
    }
    cut.iter().for_each(|&node| cluster.node(node).wait_until("it is alone", |node| node.status().alive == 1));
    cluster.network().set_switch(0, true);
    cluster.wait_for_one_view();
    assert_eq!(cluster.node(rest[0]).view(), lives, "all are there again, in the same lives");
    LEAVES.iter().for_each(|leaf| _ = leader(&cluster, leaf));
    Some((cluster, began))
}

/// A host that is plugged in elsewhere is a member of the segment where it is now, in the same life.
#[test]
fn a_host_that_was_moved_is_a_member_where_it_is() {
    let mut plan = Plan::lan(3);
    plan.add_network(2);
    plan.add_router(&[0, 1]);
    let Some(network) = Network::of(&plan) else { return };
    let mut cluster = Cluster::on(network).without_seeds();
    (0..plan.hosts()).for_each(|_| _ = cluster.add(&[&SEGMENT[..], &["--bind", "0.0.0.0:7946"]].concat()));
    cluster.wait_for_one_view();
    let lives = cluster.node(0).view();
    let (leads, next) = leader(&cluster, &[0, 1, 2]);
    let moved = 3 - leads - next;
    cluster.network().move_host(moved, 1);
    leader(&cluster, &[moved, 3, 4]);
    let (one, other) = (leads.min(next), leads.max(next));
    leader(&cluster, &[one, other]);
    cluster.wait_for_one_view();
    assert_eq!(cluster.node(leads).view(), lives);
}

/// Groups of IPv6: daemons that listen there are one segment, and miss a leader that dies.
#[test]
fn tg_1_a_segment_speaks_ipv6() {
    let Some(network) = Network::of(&Plan::lan(3)).filter(|_| std::path::Path::new("/proc/net/if_inet6").exists())
    else {
        eprintln!("skipped: no IPv6 here");
        return;
    };
    let addrs: Vec<String> = (0..3).map(|host| format!("[{}]:7946", network.addr_v6(host))).collect();
    let mut cluster = Cluster::on(network).without_seeds();
    addrs.iter().for_each(|addr| _ = cluster.add(&[&SEGMENT[..], &["--bind", addr]].concat()));
    cluster.wait_for_one_view();
    assert!(cluster.node(0).status().me.addr.is_ipv6());
    let (dead, heir) = leader(&cluster, &[0, 1, 2]);
    cluster.kill(dead);
    cluster.wait_until("it failed", |node| node.state_of(&name(dead)) == Some(State::Failed));
    let rest: Vec<usize> = (0..3).filter(|&node| node != dead).collect();
    assert_eq!(leader(&cluster, &rest).0, heir);
}

/// A forged or foreign heartbeat is dropped and counted: two clusters on one multicast address live side by side.
#[test]
fn two_clusters_on_one_address_live_side_by_side() {
    let Some(network) = Network::new(4) else { return };
    let mut cluster = Cluster::on(network).without_seeds();
    let theirs = [&SEGMENT[..], &["--key", OTHER_KEY]].concat();
    for _ in 0..2 {
        cluster.add(&SEGMENT);
        cluster.add(&theirs);
    }
    let (ours, theirs) = (["n0", "n2"], ["n1", "n3"]);
    let sees = |node: &Node, names: [&str; 2]| node.view().iter().map(|member| member.0.as_str()).eq(names);
    for (number, names) in [(0, ours), (1, theirs), (2, ours), (3, theirs)] {
        cluster.node(number).wait_until("it sees its own cluster", |node| sees(node, names));
    }
    let before: Vec<u64> = (0..4).map(|number| strangers(cluster.node(number))).collect();
    for (number, before) in before.into_iter().enumerate() {
        cluster.node(number).wait_until("strangers are heard", |node| strangers(node) >= before + MANY);
    }
    for (number, names) in [(0, ours), (1, theirs), (2, ours), (3, theirs)] {
        let node = cluster.node(number);
        assert!(sees(node, names), "n{number} sees {:?}", node.view());
        assert_eq!(node.failures(), Vec::<String>::new());
        assert_eq!(segment(node).members, names);
    }
}

/// TG-8: waits until those of each segment are one group with a leader, and the leaders are one above.
fn wait_for_segments(cluster: &Cluster, segments: &[Vec<usize>]) -> Vec<usize> {
    cluster.wait_for_one_view();
    let leaders: Vec<usize> = segments.iter().map(|segment| leader(cluster, segment).0).collect();
    for &node in &leaders {
        cluster.node(node).wait_until("leaders are one group", |node| {
            let levels = node.client().segments().expect("it answers");
            levels.get(1).is_some_and(|level| set(level.members.clone()) == set(names(&leaders)))
        });
    }
    leaders
}

/// TG-8: segments by configuration; a leader is killed, all of its segment too, and started again.
fn segments_without_multicast(cluster: &mut Cluster, segments: &[Vec<usize>], config: &str) {
    let arguments = [&SEGMENT[..], &["--config", config]].concat();
    let start = |cluster: &mut Cluster, node: usize, addr: &str| {
        cluster.run(node, &[&arguments[..], &["--bind", addr]].concat());
    };
    let nodes: Vec<usize> = segments.concat();
    nodes.iter().for_each(|&node| assert_eq!(cluster.place(), node));
    let addrs: Vec<String> = nodes.iter().map(|&node| addr_of(cluster, node)).collect();
    nodes.iter().for_each(|&node| start(cluster, node, &addrs[node]));
    let leaders = wait_for_segments(cluster, segments);
    assert!(nodes.iter().all(|&node| cluster.node(node).failures().is_empty()), "nobody was lost on the way");
    // A leader.
    let dead = leaders[0];
    cluster.kill(dead);
    cluster.wait_until("it failed", |node| node.state_of(&name(dead)) == Some(State::Failed));
    let mut left = segments.to_vec();
    left[0].retain(|&node| node != dead);
    wait_for_segments(cluster, &left);
    // A whole segment.
    let last = left.pop().expect("there are several");
    last.iter().for_each(|&node| cluster.kill(node));
    wait_for_segments(cluster, &left);
    start(cluster, dead, &addrs[dead]);
    last.iter().for_each(|&node| start(cluster, node, &addrs[node]));
    wait_for_segments(cluster, segments);
}

/// Where a node of a story without multicast listens: on its own host, or at a port of its own.
fn addr_of(cluster: &Cluster, node: usize) -> String {
    cluster.node(node).addr().map_or_else(|| format!("{}:{}", cluster.home(), 7946 + node), |addr| addr.to_string())
}

/// TG-8 on one machine: segments are ports.
#[test]
fn tg_8_segments_of_one_machine_are_lists_of_ports() {
    let mut cluster = Cluster::empty().without_seeds();
    let home = cluster.home();
    let config = cluster.write(
        "p.toml",
        &format!(
            "[segments]\na = ['{home}:[7946-7948]']\nb = '{home}:[7949-7950]'\nc = ['{home}:7951', '{home}:7952']\n"
        ),
    );
    segments_without_multicast(&mut cluster, &[vec![0, 1, 2], vec![3, 4], vec![5, 6]], &config);
}

/// TG-8 on networks where no multicast gets anywhere; they are no segments: configuration says what is one.
#[test]
fn tg_8_segments_where_there_is_no_multicast() {
    let Some(mut network) = Network::of(&Plan::star(2, 3)) else { return };
    network.lose_multicast();
    let mut cluster = Cluster::on(network).without_seeds();
    let text = "segments = { a = '10.77.0.[1-3]', b = ['10.77.1.[4-6]:7946'] }";
    let config = cluster.write("p.toml", text);
    segments_without_multicast(&mut cluster, &[vec![0, 1, 2], vec![3, 4, 5]], &config);
}

/// TG-4, 003 §5.1: of each member a node says whether it hears it or has it from a leader, to people and to programs; another leader takes the
/// place of one that dies, and who is moved by nobody stays in its part.
#[test]
fn tg_4_members_of_other_segments_are_told_apart() {
    let mut cluster = Cluster::empty().without_seeds();
    let home = cluster.home();
    let segments = [[0, 1, 2], [3, 4, 5]];
    let config =
        cluster.write("p.toml", &format!("[segments]\na = ['{home}:[7946-7948]']\nb = '{home}:[7949-7951]'\n"));
    for port in 7946..7952 {
        let addr = format!("{home}:{port}");
        cluster.add(&[&SEGMENT[..], &["--config", &config, "--bind", &addr]].concat());
    }
    let mut leaders = wait_for_segments(&cluster, &segments.map(Vec::from));
    for node in 0..6 {
        let offer = Offer { name: "cache".into(), port: Some(80), ..Offer::default() };
        cluster.node(node).client().offer(&offer).expect("there is room");
    }
    // One that follows, and goes on to: what it knows of others, it is told.
    let (leads, next) = leader(&cluster, &segments[0]);
    let watcher = segments[0].iter().sum::<usize>() - leads - next;
    let directory = cluster.node(watcher).client().directory().expect("it answers");
    let query = Query::parse("name == cache").expect("a query");
    for round in 0..2 {
        let parts = |of: &[Member]| -> Vec<(String, Option<Part>)> {
            of.iter().filter(|m| m.state == State::Alive).map(|m| (m.name.clone(), m.part)).collect()
        };
        let living: Vec<usize> = segments.concat().into_iter().filter(|n| round == 0 || *n != leaders[0]).collect();
        let is_external = |node: usize| segments[1].contains(&node);
        let part = |node: usize| if is_external(node) { Part::External } else { Part::Local };
        let expected: Vec<_> = living.iter().map(|&node| (name(node), Some(part(node)))).collect();
        let now = wait_for_segments_of(&cluster, &living, &segments);
        cluster.node(watcher).wait_until("parts are told apart", |node| {
            let members = node.client().members().expect("it answers");
            let teller = |m: &Member| m.part != Some(Part::External) || m.teller == Some(name(now[0]));
            let held: Vec<_> = directory.now().members().map(|e| (e.member.name.clone(), e.member.part)).collect();
            let found: Vec<_> = directory.find(&query).iter().map(|f| (f.node().to_owned(), f.part())).collect();
            parts(&members) == expected && members.iter().all(teller) && held == expected && found == expected
        });
        let (_, table, _) = cluster.command(watcher, &["members"]);
        assert!(table.contains(&format!("external, by {}", name(now[0]))), "{table}");
        let (_, services, _) = cluster.command(watcher, &["service", "find", "name == cache"]);
        assert_eq!(services.matches("  local").count(), living.len() - 3, "{services}");
        if round == 0 {
            leaders = now;
            cluster.kill(leaders[0]);
        }
    }
}

/// The leaders of what is left of segments.
fn wait_for_segments_of(cluster: &Cluster, living: &[usize], segments: &[[usize; 3]]) -> Vec<usize> {
    let left = |segment: &[usize; 3]| segment.iter().copied().filter(|node| living.contains(node)).collect();
    wait_for_segments(cluster, &segments.iter().map(left).collect::<Vec<Vec<usize>>>())
}

/// A node that nobody named is a segment of its own, says so, and is a member all the same.
#[test]
fn tg_8_who_is_in_no_segment_is_one_alone() {
    let mut cluster = Cluster::empty().without_seeds();
    let segment = format!("a={}:[7946-7947]", cluster.home());
    let arguments = [&SEGMENT[..], &["--segment", &segment]].concat();
    for port in [7946, 7947, 8000] {
        let addr = format!("{}:{port}", cluster.home());
        cluster.add(&[&arguments[..], &["--bind", &addr]].concat());
    }
    cluster.wait_for_one_view();
    let said = "this node is in none of `segments`";
    assert_eq!([0, 1, 2].map(|node| cluster.node(node).log().contains(said)), [false, false, true]);
}

/// What makes no sense is refused with what to do.
#[test]
fn tg_8_bad_segments_are_refused() {
    let cluster = Cluster::empty();
    let dir = cluster.write("data", "").replace("/data", "");
    let refusal = |arguments: &[&str]| {
        let mut command = std::process::Command::new(phalanx_cluster::binary());
        command.args(["agent", "--config", "/dev/null", "--bind", "127.0.0.1:0", "--data-dir", &dir]).args(arguments);
        let done = command.output().expect("it runs");
        assert_eq!(done.status.code(), Some(1));
        String::from_utf8_lossy(&done.stderr).into_owned()
    };
    for (arguments, said) in [
        (
            &["--segment", "a=10.0.0.1"][..],
            "option --segments: `segments`: they are for engine segment: set `engine`, or leave them out",
        ),
        (&["--engine", "segment", "--segment", "a"], "`a` is no NAME=HOSTS: write rack1=10.0.0.[1-20] or rack1=a,b,c"),
        (
            &["--engine", "segment", "--segment", "a=10.0.0.1", "--segment", "b=10.0.0.1"],
            "10.0.0.1:7946 is in `a` and in `b`: each node is in one",
        ),
        (&["--engine", "segment", "--segment", "a=::1"], "give IPv4 addresses"),
    ] {
        let text = refusal(arguments);
        assert!(text.contains(said), "{arguments:?}: {text}");
    }
}

/// Packets under keys that a daemon does not have, dropped so far.
fn strangers(node: &Node) -> u64 {
    let metrics = node.client().metrics().expect("it answers");
    let line = metrics.lines().find(|line| line.starts_with("phalanx_packets_dropped") && line.contains("unknownkey"));
    line.and_then(|line| line.rsplit(' ').next()?.parse().ok()).unwrap_or_default()
}
