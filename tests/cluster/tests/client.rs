//! The client library's examples run, against real daemons.

use phalanx_client::api::rumours::Question;
use phalanx_cluster::{Cluster, Node, example};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

fn run(name: &str, arguments: &[&str], node: &Node) -> std::process::Child {
    let mut command = Command::new(example("phalanx-client", name));
    command.args(arguments).env("PHALANX_SOCKET", node.socket()).stdin(Stdio::null());
    command.stdout(Stdio::piped()).spawn().expect("the example runs")
}

#[test]
fn a_watcher_sees_who_comes_and_what_is_told() {
    let cluster = Cluster::start(3);
    cluster.node(1).client().tell("deploy", "v2").unwrap();
    cluster.node(0).wait_until("the event", |n| n.client().recent(None).unwrap().len() >= 3);
    // A gap first: the watcher asks from the very first event of all times.
    let output = run("watch", &["4"], cluster.node(0)).wait_with_output().unwrap();
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
