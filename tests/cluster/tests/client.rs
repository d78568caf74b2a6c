//! The client library against real daemons: its examples run, and its directory is up to date.

use nix::sys::signal::Signal;
use phalanx_client::Directory;
use phalanx_client::api::rumours::Question;
use phalanx_client::api::{Event, Offer, What};
use phalanx_client::directory::{Change, Query, SILENCE};
use phalanx_cluster::{Cluster, Node, PATIENCE, example};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn run(name: &str, arguments: &[&str], node: &Node) -> std::process::Child {
    let mut command = Command::new(example("phalanx-client", name));
    command.args(arguments).env("PHALANX_SOCKET", node.socket()).stdin(Stdio::null());
    command.stdout(Stdio::piped()).spawn().expect("the example runs")
}

#[test]
fn a_watcher_sees_who_comes_and_what_is_told() {
    let cluster = Cluster::start(3);
    cluster.node(1).client().tell("deploy", "v2").unwrap();
    let was_told = |event: &Event| matches!(event.what, What::User { .. });
    cluster.node(0).wait_until("the event", |n| n.client().recent(None).unwrap().iter().any(was_told));
    // A gap first: the watcher asks from the very first event of all times. Attributes of nodes may come between the others.
    let most = cluster.node(0).client().recent(None).unwrap().len() + 1;
    let output = run("watch", &[&most.to_string()], cluster.node(0)).wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success());
    for line in ["n0 127.", "+ n1\n", "+ n2\n", "! deploy from n1: v2\n"] {
        assert!(said.contains(line), "{said}");
    }
}

#[test]
fn a_service_is_offered_found_and_asked() {
    let cluster = Cluster::start(3);
    let offering = run("service", &["cache", "6379", "1"], cluster.node(2));
    let find = |node: &Node| node.client().services(Some("name == cache")).unwrap().len();
    cluster.node(0).wait_until("the service", |node| find(node) == 1);
    let question =
        Question { name: "health".into(), payload: String::new(), only: vec!["n2".into()], timeout_ms: 20_000 };
    let client = cluster.node(0).client();
    let answer = client.ask(&question).unwrap().find_map(|a| a.unwrap().payload);
    assert_eq!(answer.as_deref(), Some("fine"));
    let output = offering.wait_with_output().unwrap();
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).starts_with("cache at n2"));
    cluster.wait_until("it is gone", |node| find(node) == 0);
}

#[test]
fn tasks_of_a_job_greet_each_other() {
    let cluster = Cluster::start(2);
    let mut tasks: Vec<_> =
        (0..3).map(|rank| run("task", &["ring", &rank.to_string(), "3"], cluster.node(rank % 2))).collect();
    for (rank, task) in tasks.iter_mut().enumerate() {
        let hello = format!("hello from {}", (rank + 2) % 3);
        let lines = BufReader::new(task.stdout.take().expect("a pipe")).lines();
        // Should it never come, the task is ended by the test's own end.
        assert!(lines.map_while(Result::ok).any(|line| line.ends_with(&hello)), "{hello}");
    }
    for mut task in tasks {
        task.kill().expect("we may kill it");
        task.wait().expect("it ends");
    }
}

/// Waits until something holds of a directory in memory.
fn wait(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "not so within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn query(text: &str) -> Query {
    Query::parse(text).unwrap_or_else(|e| panic!("{e}"))
}

/// The nodes at which a query finds something, in memory.
fn nodes(directory: &Directory, query: &Query) -> Vec<String> {
    directory.now().find(query).map(|found| found.node().to_owned()).collect()
}

fn cache(port: u16) -> Offer {
    Offer { name: "cache".into(), port: Some(port), partitions: vec![(3, 5)], ..Offer::default() }
}

/// TG-4: what one node offers is in the memory of another's programs, and gone with its daemon; nothing is read anew for it.
#[test]
fn services_of_other_nodes_are_in_memory_while_they_live() {
    let mut cluster = Cluster::start(3);
    let directory = cluster.node(0).client().directory().unwrap();
    assert_eq!(directory.now().members().len(), 3);
    let caches = query("name =~ 'ca.*' and partition == 4 and rack == r7");
    let mut watch = directory.watch(query("name == cache"));
    cluster.node(1).client().offer(&cache(6379)).unwrap();
    assert!(matches!(watch.wait(PATIENCE), Some(Change::Came(found)) if found.node() == "n1"));
    assert!(nodes(&directory, &caches).is_empty(), "it has not said where it is");
    cluster.node(1).client().set_attribute("rack", Some("r7")).unwrap();
    assert!(matches!(watch.wait(PATIENCE), Some(Change::Changed(found)) if found.attribute("rack") == Some("r7")));
    assert_eq!(nodes(&directory, &caches), ["n1"]);
    // Our own node's, too: it is asked like any other.
    cluster.node(0).client().offer(&cache(6380)).unwrap();
    cluster.node(0).client().set_attribute("rack", Some("r7")).unwrap();
    wait("our own", || nodes(&directory, &caches) == ["n0", "n1"]);
    assert_eq!(directory.now().find(&caches).next().and_then(|found| found.addr()).map(|a| a.port()), Some(6380));
    cluster.kill(1);
    wait("gone from memory", || nodes(&directory, &caches) == ["n0"]);
    assert_eq!(directory.now().members().len(), 2);
    cluster.node(0).client().withdraw("cache", Some(6380)).unwrap();
    wait("nothing", || nodes(&directory, &caches).is_empty());
    assert!(watch.found().is_empty());
    assert_eq!((directory.copies(), directory.stale_since()), (1, None));
}

/// The daemon ends: what was known stays, and is said to be old. It starts again: all is there, and followed.
#[test]
fn a_directory_outlives_its_daemon() {
    let mut cluster = Cluster::start(3);
    cluster.node(1).client().offer(&cache(1)).unwrap();
    let directory = cluster.node(0).client().directory().unwrap();
    let caches = query("name == cache");
    wait("the cache", || nodes(&directory, &caches) == ["n1"]);
    let before = Instant::now();
    cluster.kill(0);
    wait("stale", || directory.stale_since().is_some());
    assert!(directory.stale_since().unwrap() < before + Duration::from_secs(1), "since it was last heard");
    assert_eq!(nodes(&directory, &caches), ["n1"], "what was known is still found");
    cluster.node(2).client().offer(&cache(2)).unwrap();
    cluster.run(0, &[]);
    wait("fresh", || directory.stale_since().is_none());
    wait("both", || nodes(&directory, &caches) == ["n1", "n2"]);
    cluster.kill(1);
    wait("one", || nodes(&directory, &caches) == ["n2"]);
    assert!(directory.copies() >= 2);
}

/// A daemon that hangs breaks no stream: it is not heard any more.
#[test]
fn a_daemon_that_hangs_makes_its_directories_stale() {
    let cluster = Cluster::start(1);
    let directory = cluster.node(0).client().directory().unwrap();
    cluster.node(0).client().offer(&cache(1)).unwrap();
    wait("the cache", || directory.now().services().len() == 1);
    let stopped = Instant::now();
    cluster.node(0).signal(Signal::SIGSTOP);
    wait("stale", || directory.stale_since().is_some());
    assert!(directory.stale_since().unwrap() < stopped + SILENCE / 2, "since it was heard, not since that was noticed");
    assert_eq!(directory.now().services().len(), 1);
    cluster.node(0).signal(Signal::SIGCONT);
    wait("fresh", || directory.stale_since().is_none());
    cluster.node(0).client().offer(&cache(2)).unwrap();
    wait("both", || directory.now().services().len() == 2);
}

/// Thousands of services, and each query finds in memory what the daemon finds.
#[test]
fn memory_finds_what_the_daemon_finds_among_thousands() {
    const EACH: u16 = 240;
    let cluster = Cluster::start(10);
    let directory = cluster.node(0).client().directory().unwrap();
    std::thread::scope(|scope| {
        for (number, node) in cluster.running().enumerate() {
            scope.spawn(move || {
                let client = node.client();
                client.set_attribute("rack", Some(if number % 2 == 0 { "even" } else { "odd" })).unwrap();
                for n in 0..EACH {
                    let offer = Offer {
                        name: format!("s{:03}", n % 120),
                        port: Some(n),
                        partitions: vec![(u32::from(n), u32::from(n) + 9)],
                        tags: [if n % 3 == 0 { "hot" } else { "cold" }.to_owned()].into(),
                        parameters: [("proto".to_owned(), format!("v{}", n % 4))].into(),
                    };
                    client.offer(&offer).unwrap();
                }
            });
        }
    });
    wait("all of them", || directory.now().services().len() == 10 * usize::from(EACH));
    let client = cluster.node(0).client();
    for text in [
        "name == s007",
        "name in [s001, s119, other]",
        "name =~ 's01.*' and rack == odd",
        "partition == 100 and tag == hot",
        "node == n3 and proto != v1 and port < 20",
        "not name =~ 's.*'",
        "name == s007 and zone == ''",
        "has name",
    ] {
        let asked = client.services(Some(text)).unwrap();
        let (now, query) = (directory.now(), query(text));
        let found = now.find(&query).map(|f| (f.node(), f.addr(), f.offer()));
        assert!(found.eq(asked.iter().map(|s| (s.node.as_str(), s.addr, &s.offer))), "{text}");
    }
    assert_eq!(directory.copies(), 1, "events told it all");
}

#[test]
fn a_program_prints_what_its_memory_finds() {
    let mut cluster = Cluster::start(3);
    cluster.node(2).client().offer(&cache(6379)).unwrap();
    let mut looking = run("directory", &["name == cache", "3"], cluster.node(0));
    let mut lines = BufReader::new(looking.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    // Should a line never come, the program ends with the test.
    assert!(lines.any(|line| line.starts_with("+ cache at n2, Some(127.")));
    cluster.node(1).client().offer(&cache(6379)).unwrap();
    assert!(lines.any(|line| line.starts_with("+ cache at n1, Some(127.")));
    cluster.kill(2);
    assert!(lines.any(|line| line == "- cache at n2"));
    assert_eq!(lines.last().as_deref(), Some("  1 are there"));
    assert!(looking.wait().expect("it ends").success());
}
