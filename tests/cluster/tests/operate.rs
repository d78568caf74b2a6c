//! What operators do: events and queries, keys, zones, faults, reloading.

use nix::sys::signal::Signal;
use phalanx_client::api::operate::KeyChange;
use phalanx_client::api::rumours::Question;
use phalanx_client::api::{State, What};
use phalanx_cluster::{Cluster, KEY, Node};
use std::collections::BTreeSet;
use std::time::Duration;

fn told(node: &Node, wanted: &str) -> usize {
    let recent = node.client().recent(None).expect("it answers");
    recent.iter().filter(|e| matches!(&e.what, What::User { name, .. } if name == wanted)).count()
}

fn question(name: &str) -> Question {
    Question { name: name.into(), payload: String::new(), only: Vec::new(), timeout_ms: 10_000 }
}

/// memberlist#299: what users tell arrives, once at each.
#[test]
fn an_event_reaches_everybody_once() {
    let cluster = Cluster::start(6);
    cluster.node(2).client().tell("deploy", "v2").unwrap();
    cluster.wait_until("the event", |node| told(node, "deploy") > 0);
    std::thread::sleep(Duration::from_millis(200));
    assert!(cluster.running().all(|node| told(node, "deploy") == 1));
    let reserved = cluster.node(0).client().tell("phalanx.forget", "n1").unwrap_err().to_string();
    assert!(reserved.contains("reserved"), "{reserved}");
}

/// A question is answered by the scripts of all members, and by programs.
#[test]
fn a_query_is_answered_by_scripts_and_programs() {
    let mut cluster = Cluster::empty();
    (0..3).for_each(|_| _ = cluster.add(&["--on", "query:disk=echo $PHALANX_FROM asks; cat"]));
    let program = cluster.add(&[]);
    cluster.wait_until_all_see(4);
    let (asker, answerer) = (cluster.node(0).client(), cluster.node(program).client());
    let answering = std::thread::spawn(move || {
        for event in answerer.events(Some(0)) {
            if let What::Query { query, .. } = event.unwrap().what {
                return answerer.reply(&query, "from a program").unwrap();
            }
        }
    });
    let mut answers = BTreeSet::new();
    for answer in asker.ask(&Question { payload: "please".into(), ..question("disk") }).unwrap() {
        let answer = answer.unwrap();
        answers.extend(answer.payload.map(|text| (answer.from, text)));
        if answers.len() == 4 {
            break;
        }
    }
    answering.join().unwrap();
    let by_script = "n0 asks\nplease";
    let expected = [("n0", by_script), ("n1", by_script), ("n2", by_script), ("n3", "from a program")];
    assert_eq!(answers, expected.map(|(n, t)| (n.to_owned(), t.to_owned())).into());
}

/// serf#579: keys are rotated while a node is down, and it comes back with its old key and gets the new one.
#[test]
fn keys_are_rotated_with_a_node_down() {
    let mut cluster = Cluster::start(5);
    cluster.kill(3);
    cluster.wait_until("n3 failed", |node| node.state_of("n3") == Some(State::Failed));
    let (code, said, error) = cluster.command(0, &["keys", "rotate"]);
    assert_eq!(code, Some(0), "{said}{error}");
    assert!(said.contains("seals now") && said.contains("n3"), "{said}");
    let [new, old] = &cluster.node(0).client().keys().unwrap().keys[..] else { panic!("two keys") };
    let old = old.id;
    assert_ne!(new.id, old);
    cluster.run(3, &[]);
    cluster.wait_until_all_see(5);
    let epoch = cluster.node(0).client().keys().unwrap().epoch;
    cluster.wait_until("the new keys", |node| node.client().keys().unwrap().epoch == epoch);
    let removed = cluster.node(1).client().change_keys(&KeyChange::Remove { id: old }).unwrap();
    cluster.wait_until("one key", |node| node.client().keys().unwrap() == removed);
    // A newcomer with the key that is gone stays outside, and nobody is lost.
    let stranger = cluster.add(&["--key", KEY]);
    std::thread::sleep(Duration::from_secs(2));
    assert_eq!(cluster.node(stranger).status().alive, 1);
    (0..5).for_each(|n| assert_eq!(cluster.node(n).status().alive, 5));
    // One with the new key, as it lies in the file of each node, gets in.
    let kept = std::fs::read_to_string(cluster.node(0).dir().join("keys")).unwrap();
    let new = kept.lines().nth(1).and_then(|l| l.split(' ').nth(1)).unwrap().to_owned();
    let newcomer = cluster.add(&["--key", &new]);
    (0..5).for_each(|n| cluster.node(n).wait_until("the newcomer", |node| node.status().alive == 6));
    cluster.node(newcomer).client().leave().unwrap();
    assert_eq!(cluster.wait_for_end(newcomer), Some(0));
    // Keys are kept: all restart with them.
    (0..5).for_each(|n| cluster.kill(n));
    (0..5).for_each(|n| cluster.run(n, &[]));
    (0..5).for_each(|n| cluster.node(n).wait_until("all are back", |node| node.status().alive == 5));
}

/// What was wrong with a change of keys is said, and nothing changes.
#[test]
fn wrong_changes_of_keys_are_refused() {
    let cluster = Cluster::start(2);
    let before = cluster.node(0).client().keys().unwrap();
    let (used, other) = (before.keys[0].id.to_string(), before.keys[0].id.wrapping_add(1).to_string());
    for (arguments, said) in [
        (&["keys", "rm", &used][..], "is in use"),
        (&["keys", "rm", &other], "there is no key"),
        (&["keys", "use", &other], "there is no key"),
        (&["keys", "add", "--key-file", "/nonexistent"], "cannot read"),
    ] {
        let (code, _, error) = cluster.command(0, arguments);
        assert_eq!(code, Some(1), "{arguments:?}");
        assert!(error.contains(said), "{error}");
    }
    assert_eq!(cluster.node(0).client().keys().unwrap(), before);
}

/// foca#31, chitchat#161: who will not come back is forgotten everywhere.
#[test]
fn who_will_not_come_back_is_forgotten_by_all() {
    let mut cluster = Cluster::start(4);
    cluster.kill(3);
    cluster.wait_until("n3 failed", |node| node.state_of("n3") == Some(State::Failed));
    let alive = cluster.node(0).client().force_leave("n1").unwrap_err().to_string();
    assert!(alive.contains("alive"), "{alive}");
    cluster.node(0).client().force_leave("n3").unwrap();
    cluster.wait_until("n3 forgotten", |node| node.sees("n3").is_none());
    assert!(cluster.node(0).client().force_leave("n3").is_err());
}

/// memberlist#157: of two nodes with one name the second is refused, or takes another, as it is configured.
#[test]
fn a_taken_name_is_refused_or_changed() {
    let mut cluster = Cluster::start(3);
    let second = cluster.add(&["--name", "n1"]);
    assert_eq!(cluster.wait_for_end(second), Some(78));
    assert!(cluster.node(second).log().contains("another member has this name"));
    cluster.wait_until_all_see(3);
    let third = cluster.add(&["--name", "n1", "--name-conflict", "rename"]);
    cluster.wait_until_all_see(4);
    let renamed = |m: &phalanx_client::api::Member| m.name.starts_with("n1-") && m.state == State::Alive;
    cluster.wait_until("another name", |node| node.client().members().unwrap().iter().any(renamed));
    assert!(cluster.node(third).status().me.name.starts_with("n1-"));
    let holder = cluster.node(1).status().me;
    let keeps = |m: &phalanx_client::api::Member| m.name == "n1" && m.id == holder.id && m.state == State::Alive;
    assert!(cluster.node(0).client().members().unwrap().iter().any(keeps), "who had the name keeps it");
}

/// HI-3: a supervisor knows all zones; members ask it, and draw the tree.
#[test]
fn zones_are_seen_from_everywhere() {
    let mut cluster = Cluster::empty();
    let supervisor = cluster.add(&["--role", "supervisor"]);
    let place = cluster.node(supervisor).status().me.addr.to_string();
    for (zone, _) in ["red", "red", "blue", "blue", "blue"].iter().zip(0..) {
        // Each zone has its own seeds: members of other zones cannot be members here.
        cluster.add(&["--zone", zone, "--supervisor", &place]);
    }
    let sizes = |node: &Node| -> Vec<(String, u64)> {
        let zones = node.client().zones().unwrap_or_default();
        zones.into_iter().map(|z| (z.name, z.members)).collect()
    };
    let all = vec![("blue".to_owned(), 3), ("red".to_owned(), 2)];
    cluster.wait_until("the census", |node| sizes(node) == all);
    let (code, tree, _) = cluster.command(1, &["tree"]);
    assert_eq!(code, Some(0));
    assert!(tree.starts_with("cluster: 2 zones, 5 members, 1 supervisor\n"), "{tree}");
    assert!((1..=5).all(|n| tree.contains(&format!("n{n}"))), "{tree}");
    cluster.kill(5);
    cluster.wait_until("one is gone", |node| sizes(node) == [("blue".to_owned(), 2), ("red".to_owned(), 2)]);
    let (_, tree, _) = cluster.command(4, &["tree"]);
    assert!(tree.contains("n5 ✝ failed"), "{tree}");
    let (_, tree, _) = cluster.command(supervisor, &["tree"]);
    assert!(tree.contains("├─ supervisors\n") && tree.contains("red (2 members"), "{tree}");
}

/// Keys are the whole cluster's: they pass from one zone to supervisors and to other zones, and nobody is lost.
#[test]
fn keys_are_rotated_in_all_zones() {
    let mut cluster = Cluster::empty();
    (0..2).for_each(|_| _ = cluster.add(&["--role", "supervisor"]));
    let place = cluster.node(0).status().me.addr.to_string();
    for zone in ["red", "red", "blue", "blue"] {
        cluster.add(&["--zone", zone, "--supervisor", &place]);
    }
    let members = |node: &Node| node.client().census().map_or(0, |c| c.members);
    cluster.wait_until("the census", |node| members(node) == 4);
    let (code, said, error) = cluster.command(2, &["keys", "rotate"]);
    assert_eq!(code, Some(0), "{said}{error}");
    let ring = cluster.node(2).client().keys().unwrap();
    cluster.wait_until("the new keys", |node| node.client().keys().unwrap() == ring);
    let old = ring.keys[1].id;
    let removed = cluster.node(5).client().change_keys(&KeyChange::Remove { id: old }).unwrap();
    cluster.wait_until("one key", |node| node.client().keys().unwrap() == removed);
    std::thread::sleep(Duration::from_secs(1));
    cluster.wait_until("the census still", |node| members(node) == 4);
    let failed = |node: &Node| node.client().members().unwrap().iter().any(|m| m.state == State::Failed);
    assert!(!cluster.running().any(failed), "nobody is lost");
}

/// FI-3: faults are injected into a running daemon, seen, and healed.
#[test]
fn faults_are_injected_and_healed() {
    let cluster = Cluster::start(4);
    let client = cluster.node(1).client();
    assert!(client.inject("kind = \"dorp\"").unwrap_err().to_string().contains("no rule"));
    assert!(client.inject("kind = \"drop\"\nonly = [\"n9\"]").unwrap_err().to_string().contains("n9"));
    client.inject("kind = \"drop\"").unwrap();
    // All that it sends is lost: the others miss it.
    cluster.node(0).wait_until("n1 failed", |node| node.state_of("n1") == Some(State::Failed));
    assert!(client.faults().unwrap()[0].hits > 0);
    client.heal(None).unwrap();
    cluster.wait_until_all_see(4);
}

/// A change of the file is taken with SIGHUP; what needs a restart is named.
#[test]
fn a_changed_file_is_read_again() {
    let mut cluster = Cluster::start(2);
    let file = cluster.node(0).dir().join("phalanx.toml");
    let write = |text: &str| std::fs::write(&file, text).unwrap();
    write("attributes = ['rack=r1', 'disk=ssd']\n");
    let node = cluster.add(&["--config", file.to_str().unwrap()]);
    let says = |cluster: &Cluster, key: &str| -> Option<String> {
        let all = cluster.node(0).client().attributes().unwrap();
        all.iter().find(|a| a.name == "n2").and_then(|a| a.attributes.get(key).cloned())
    };
    cluster.node(0).wait_until("the rack", |_| says(&cluster, "rack").as_deref() == Some("r1"));
    let done = cluster.node(0).dir().join("done");
    write(&format!("attributes = ['rack=r2']\ncluster = 'other'\non = ['user:go=touch {}']\n", done.display()));
    cluster.node(node).signal(Signal::SIGHUP);
    cluster.node(0).wait_until("the new rack", |_| says(&cluster, "rack").as_deref() == Some("r2"));
    assert_eq!(says(&cluster, "disk"), None);
    cluster.node(node).wait_until("what needs a restart", |n| n.log().contains("`cluster` was changed: restart"));
    cluster.node(0).client().tell("go", "").unwrap();
    cluster.node(node).wait_until("the script", |_| done.exists());
    write("attributes = 3\nnonsense = 1\n");
    cluster.node(node).signal(Signal::SIGHUP);
    cluster.node(node).wait_until("what is wrong", |n| n.log().contains("stays as it was"));
    assert_eq!(says(&cluster, "rack").as_deref(), Some("r2"));
}

/// Readers of events outlive a daemon's restart, and are told that they missed something.
#[test]
fn readers_of_events_reconnect() {
    let mut cluster = Cluster::start(3);
    let client = cluster.node(0).client();
    let mut events = client.events(Some(0));
    // From the beginning of time: a gap, and then what is kept.
    let first: Vec<What> = events.by_ref().take(2).map(|e| e.unwrap().what).collect();
    assert!(matches!(&first[..], [What::Gap, What::Joined { .. }]), "{first:?}");
    cluster.kill(0);
    cluster.run(0, &[]);
    cluster.wait_until_all_see(3);
    cluster.node(1).client().tell("after", "").unwrap();
    let mut seen = BTreeSet::new();
    for event in events {
        let what = event.unwrap().what;
        seen.insert(what.name());
        if matches!(&what, What::User { name, .. } if name == "after") {
            break;
        }
    }
    assert!(seen.contains("gap"), "{seen:?}");
}
