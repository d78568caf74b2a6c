//! TG-9, 003 §2: clusters that tell each other what they have, over a link that fails. Needs root, `ip`, `nft` and `smcrouted`.

use phalanx_client::api::Offer;
use phalanx_client::api::federation::{Centre, Reach};
use phalanx_cluster::net::{Network, Plan};
use phalanx_cluster::{Cluster, Node};

/// Hosts of each data centre.
const EAST: [usize; 3] = [0, 1, 2];
const WEST: [usize; 3] = [3, 4, 5];

/// What a node knows of the only other data centre.
fn other(node: &Node) -> Centre {
    let mut centres = node.client().federation().expect("it answers").centres;
    assert_eq!(centres.len(), 1, "{centres:?}");
    centres.remove(0)
}

fn is(centre: &Centre, reach: Reach, members: u32, web: u32) -> bool {
    (centre.reach, centre.members, centre.services.get("web").copied().unwrap_or(0)) == (reach, members, web)
}

fn wait(cluster: &Cluster, nodes: &[usize], what: &str, reach: Reach, members: u32, web: u32) {
    for &node in nodes {
        cluster.node(node).wait_until(what, |node| is(&other(node), reach, members, web));
    }
}

fn offers_web(cluster: &Cluster, node: usize) {
    let offer = Offer { name: "web".to_owned(), port: Some(80), ..Offer::default() };
    cluster.node(node).client().offer(&offer).expect("it takes it");
}

/// One data centre runs on segments, the other is a zone. Each knows what the other has; when the link between them fails neither side loses
/// anybody, and what was known stays, marked; when it is back, and a speaker dies, the next one goes on.
#[test]
fn tg_9_a_link_that_fails_disturbs_neither_side() {
    let Some(network) = Network::of(&Plan::star(2, 3)) else { return };
    let mut cluster = Cluster::on(network).without_seeds();
    let east = cluster.write(
        "east.toml",
        "data_centre = 'east'\nfederation_period = 0.5\nengine = 'segment'\n[federation]\nwest = '10.77.1.[4-6]'\n",
    );
    let west = cluster.write(
        "west.toml",
        "data_centre = 'west'\nfederation_period = 0.5\njoin = ['10.77.1.4']\n[federation]\neast = '10.77.0.[1-3]'\n",
    );
    for node in EAST.into_iter().chain(WEST) {
        let (config, profile) = if EAST.contains(&node) { (&east, "lan") } else { (&west, "local") };
        assert_eq!(cluster.add(&["--config", config, "--profile", profile]), node);
    }
    for node in EAST.into_iter().chain(WEST) {
        cluster.node(node).wait_until("it sees its own data centre", |node| node.status().alive == 3);
    }
    [1, 4, 5].into_iter().for_each(|node| offers_web(&cluster, node));
    wait(&cluster, &EAST, "it knows the west", Reach::Well, 3, 2);
    wait(&cluster, &WEST, "it knows the east", Reach::Well, 3, 1);
    let said = cluster.command(0, &["federation"]);
    assert!(said.0 == Some(0) && said.1.contains("web:2"), "{said:?}");
    // The link fails. Who is alone may offer something new meanwhile.
    let views: Vec<_> = (0..6).map(|node| cluster.node(node).view()).collect();
    cluster.network().cut(&EAST, &WEST);
    wait(&cluster, &EAST, "the west is silent, and kept", Reach::Silent, 3, 2);
    wait(&cluster, &WEST, "the east is silent, and kept", Reach::Silent, 3, 1);
    offers_web(&cluster, 2);
    for (node, view) in views.iter().enumerate() {
        let ids = |view: &[(String, u64, u32)]| view.iter().map(|m| (m.0.clone(), m.1)).collect::<Vec<_>>();
        assert_eq!(ids(&cluster.node(node).view()), ids(view), "n{node} is as it was");
        assert_eq!(cluster.node(node).failures(), Vec::<String>::new(), "n{node}");
    }
    cluster.network().heal();
    wait(&cluster, &EAST, "the west is back", Reach::Well, 3, 2);
    wait(&cluster, &WEST, "the east is back, with what is new", Reach::Well, 3, 2);
    // Who speaks dies.
    for side in [EAST, WEST] {
        let speaks = |&node: &usize| cluster.node(node).client().federation().expect("it answers").speaks;
        let speaker: Vec<usize> = side.into_iter().filter(speaks).collect();
        assert_eq!(speaker.len(), 1, "one speaks for {side:?}");
        let rest: Vec<usize> =
            (0..6).filter(|&n| !side.contains(&n) && cluster.running().any(|r| r.name() == format!("n{n}"))).collect();
        cluster.kill(speaker[0]);
        for &node in &rest {
            cluster.node(node).wait_until("the next one speaks", |node| {
                let centre = other(node);
                centre.reach == Reach::Well && centre.members == 2
            });
        }
    }
}

/// What makes no sense is refused with what to do.
#[test]
fn tg_9_bad_federations_are_refused() {
    let cluster = Cluster::empty();
    let dir = cluster.write("data", "").replace("/data", "");
    for (arguments, said) in [
        (&["--federation", "west=10.0.0.1"][..], "`federation`: name our own data centre, too: set data_centre"),
        (&["--data-centre", "east", "--federation", "west"], "`west` is no NAME=HOSTS"),
        (
            &["--data-centre", "east", "--zone", "a"],
            "a data centre is one zone, or runs on engine segment: leave out zone",
        ),
    ] {
        let mut command = std::process::Command::new(phalanx_cluster::binary());
        command.args(["agent", "--config", "/dev/null", "--bind", "127.0.0.1:0", "--data-dir", &dir]).args(arguments);
        let done = command.output().expect("it runs");
        assert_eq!(done.status.code(), Some(1));
        let text = String::from_utf8_lossy(&done.stderr).into_owned();
        assert!(text.contains(said), "{arguments:?}: {text}");
    }
}
