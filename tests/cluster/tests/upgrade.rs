//! Upgrades while the cluster runs: a build that says more than today's knows, beside today's.
//!
//! Tomorrow's build (today's, told so by its name) appends a field to hellos, notes, digests, rumours and tripwires, a section to letters,
//! sets bits that today nobody reads, and sends packets, notes, letters and rumours of unknown kinds.

use phalanx_client::api::What;
use phalanx_cluster::{Cluster, Node, binary, tomorrow};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

const NODES: usize = 5;

/// One node after the other is replaced by tomorrow's build, and back: at each step there is one view, nobody is failed, and what is
/// said on either side is heard on the other.
#[test]
fn an_upgrade_and_its_undoing_are_not_noticed() {
    let mut cluster = Cluster::start(NODES);
    let mut step = 0;
    for (build, version) in [(tomorrow(), "+tomorrow"), (binary(), "")] {
        for number in 0..NODES {
            replace(&mut cluster, number, build);
            assert_eq!(cluster.node(number).status().version.ends_with("+tomorrow"), !version.is_empty());
            step += 1;
            let (new, old) = (cluster.node(number), cluster.node((number + 1) % NODES));
            all_hear(&cluster, new, &format!("from-{number}-in-step-{step}"));
            all_hear(&cluster, old, &format!("beside-{number}-in-step-{step}"));
            for node in cluster.running() {
                assert_eq!(node.failures(), [""; 0], "at {} in step {step}", node.name());
            }
        }
    }
}

/// What an old build does not know it skips and counts; links, wires and views stay as they are.
#[test]
fn what_is_not_known_yet_is_skipped_and_counted() {
    let mut cluster = Cluster::start(NODES);
    (3..NODES).for_each(|number| replace(&mut cluster, number, tomorrow()));
    let before: Vec<_> = cluster.running().map(figures).collect();
    std::thread::sleep(Duration::from_secs(3));
    let names = ["phalanx_tripwires_broken_total", "phalanx_suspicions_total", "phalanx_resyncs_total"];
    for (node, before) in cluster.running().zip(&before) {
        let now = figures(node);
        for name in names {
            assert_eq!(now[name], before[name], "{name} at {}", node.name());
        }
        assert!(now["phalanx_tripwires"] > 0, "{} holds wires", node.name());
        assert_eq!(now["phalanx_members"], NODES as u64);
    }
    let of_today: Vec<_> = (0..3).map(|n| figures(cluster.node(n))).collect();
    assert!(of_today.iter().any(|f| f["phalanx_malformed_total"] > 0), "notes and letters of an unknown kind");
    let unknown = "phalanx_packets_dropped_total{reason=\"unknown\"}";
    assert!(of_today.iter().all(|f| f[unknown] > 0), "packets of an unknown kind");
}

/// As an operator does it: an orderly stop, and a start with the new build.
fn replace(cluster: &mut Cluster, number: usize, build: &Path) {
    cluster.node(number).client().leave().expect("it is told");
    assert_eq!(cluster.wait_for_end(number), Some(0));
    cluster.install(number, build);
    cluster.run(number, &[]);
    cluster.wait_for_one_view();
}

/// What a node says of itself, and what its users tell, gets everywhere.
fn all_hear(cluster: &Cluster, from: &Node, word: &str) {
    from.client().set_attribute("word", Some(word)).expect("it may be set");
    from.client().tell(word, "payload").expect("it may be told");
    cluster.wait_until(word, |node| {
        let attributes = node.client().attributes().expect("it answers");
        let said = attributes.iter().find(|a| a.name == from.name()).and_then(|a| a.attributes.get("word"));
        let events = node.client().recent(None).expect("it answers");
        let told =
            |what: &What| matches!(what, What::User { name, payload, .. } if name == word && payload == "payload");
        said.is_some_and(|said| said == word) && events.iter().any(|e| told(&e.what))
    });
}

/// All figures of a node, by name and labels.
fn figures(node: &Node) -> BTreeMap<String, u64> {
    let text = node.client().metrics().expect("it answers");
    let figure = |line: &str| {
        let (name, value) = line.rsplit_once(' ')?;
        Some((name.to_owned(), value.parse().ok()?))
    };
    text.lines().filter_map(figure).collect()
}
