//! Jobs of real tasks on real daemons: views, messages, and what becomes of them when tasks, daemons and nodes die.

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use phalanx_client::Error;
use phalanx_client::api::jobs::{TaskState, View};
use phalanx_client::blocking::Client;
use phalanx_client::casts::To;
use phalanx_client::jobs::{Event, Join};
use phalanx_cluster::{Cluster, PATIENCE, binary};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const JOB: &str = "train";

/// Tasks as processes of their own, by name.
struct Tasks {
    dir: PathBuf,
    size: u32,
    tasks: BTreeMap<String, Child>,
}

impl Tasks {
    fn new(cluster: &Cluster, size: u32) -> Self {
        Self { dir: cluster.node(0).dir().to_owned(), size, tasks: BTreeMap::new() }
    }

    /// All ranks, some on each of the first `nodes`: the lowest ones on the first.
    fn start(cluster: &Cluster, nodes: usize, size: u32, arguments: &[&str]) -> Self {
        let mut tasks = Self::new(cluster, size);
        let each = (size as usize).div_ceil(nodes);
        for rank in 0..size {
            tasks.run(cluster, rank as usize / each, &rank.to_string(), arguments);
        }
        let all: Vec<u32> = (0..size).collect();
        (0..size).for_each(|rank| tasks.wait(rank, "the whole job", |v| v.tasks == all));
        tasks
    }

    fn run(&mut self, cluster: &Cluster, node: usize, who: &str, arguments: &[&str]) {
        let mut command = Command::new(binary());
        command.args(["task", JOB, "-o", "json", "--size", &self.size.to_string()]).args(arguments);
        if who.parse::<u32>().is_ok() {
            command.args(["--rank", who]);
        }
        command.env("PHALANX_SOCKET", cluster.node(node).socket()).stdin(Stdio::null());
        let out = File::create(self.dir.join(format!("task-{who}"))).expect("a file for what it says");
        let task = command.stdout(out).spawn().expect("the command runs");
        self.tasks.insert(who.to_owned(), task);
    }

    fn pid(&self, who: impl ToString) -> u32 {
        self.tasks[&who.to_string()].id()
    }

    fn kill(&mut self, who: impl ToString) {
        let mut task = self.tasks.remove(&who.to_string()).expect("it runs");
        task.kill().expect("we may kill it");
        task.wait().expect("it ends");
    }

    /// All that it said, line by line.
    fn said(&self, who: &impl ToString) -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(self.dir.join(format!("task-{}", who.to_string()))).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    fn view(&self, who: &impl ToString) -> Option<View> {
        let mut said = self.said(who).into_iter().rev();
        said.find_map(|line| serde_json::from_value(line["view"].clone()).ok())
    }

    fn wait(&self, who: impl ToString, what: &str, holds: impl Fn(&View) -> bool) {
        let began = Instant::now();
        while !self.view(&who).is_some_and(|v| holds(&v)) {
            let said = self.said(&who);
            assert!(began.elapsed() < PATIENCE, "task {} does not see {what}: {said:#?}", who.to_string());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// It was told this.
    fn wait_for(&self, who: u32, event: &str) {
        let began = Instant::now();
        while !self.said(&who).iter().any(|line| line["event"] == event) {
            assert!(began.elapsed() < PATIENCE, "task {who} is not {event}: {:?}", self.said(&who));
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// All of `who` come to be in one view, of exactly these tasks. The same tasks may have been in an earlier one.
    fn agree(&self, who: &[u32], tasks: &[u32]) {
        let began = Instant::now();
        loop {
            who.iter().for_each(|w| self.wait(w, &format!("{tasks:?}"), |v| v.tasks == tasks));
            let names: Vec<_> = who.iter().map(|w| self.view(w).expect("it has one").view).collect();
            if names.iter().all(|n| *n == names[0]) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "one view: {names:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Tasks {
    fn drop(&mut self) {
        for task in self.tasks.values_mut() {
            let _ = task.kill();
            let _ = task.wait();
        }
    }
}

fn shepherd(cluster: &Cluster, node: usize) -> Pid {
    let jobs = cluster.node(node).client().jobs().expect("it answers");
    let pid = jobs.iter().find(|j| j.name == JOB).and_then(|j| j.shepherd).expect("a shepherd");
    Pid::from_raw(pid.cast_signed())
}

/// The daemon, the shepherd and the tasks of a node.
fn kill_node(cluster: &mut Cluster, node: usize, tasks: &mut Tasks, ranks: std::ops::Range<u32>) {
    let shepherd = shepherd(cluster, node);
    cluster.kill(node);
    kill(shepherd, Signal::SIGKILL).expect("it runs");
    ranks.for_each(|rank| tasks.kill(rank));
}

/// RV-2, RV-4, RV-5: a task dies, comes back; root and heir die with their nodes at once.
#[test]
fn rv_4_survivors_hold_one_view_whoever_dies() {
    let mut cluster = Cluster::start(5);
    let mut tasks = Tasks::start(&cluster, 5, 10, &["--arity", "2"]);
    tasks.kill(7);
    tasks.agree(&[0, 1, 2, 3, 4, 5, 6, 8, 9], &[0, 1, 2, 3, 4, 5, 6, 8, 9]);
    tasks.run(&cluster, 3, "7", &[]);
    tasks.agree(&[0, 5, 7, 9], &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    kill_node(&mut cluster, 0, &mut tasks, 0..2);
    kill_node(&mut cluster, 1, &mut tasks, 2..4);
    tasks.agree(&[4, 5, 6, 7, 8, 9], &[4, 5, 6, 7, 8, 9]);
    // From any node, and drawn.
    let (code, text, error) = cluster.command(4, &["tree", JOB]);
    assert_eq!(code, Some(0), "{error}");
    assert!(text.contains("└─ rank 4 @") && text.contains("✝ rank 0 @"), "{text}");
    let view = cluster.node(2).client().job(JOB).unwrap();
    let gone = view.tasks.iter().filter(|t| t.state == TaskState::Gone).count();
    assert_eq!((view.alive, gone, view.view.root), (6, 4, 4));
    // The first rank comes back, and is the root again in the next view that it makes.
    tasks.run(&cluster, 3, "0", &[]);
    tasks.agree(&[0, 4, 9], &[0, 4, 5, 6, 7, 8, 9]);
}

/// A daemon that dies alone is an event of the cluster and leaves its jobs alone; the next one finds its shepherds.
#[test]
fn a_job_does_not_notice_that_a_daemon_died() {
    let mut cluster = Cluster::start(3);
    let mut tasks = Tasks::start(&cluster, 3, 6, &[]);
    let before = tasks.view(&0).unwrap().view;
    cluster.kill(1);
    cluster.wait_until("it is gone", |n| n.status().alive == 2);
    // Long enough for those who doubted its tasks to have asked them.
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(tasks.view(&0).unwrap().view, before, "nobody is missing");
    cluster.run(1, &[]);
    cluster.wait_until_all_see(3);
    let here = |n: &phalanx_cluster::Node| n.client().job(JOB).is_ok_and(|v| v.tasks.iter().any(|t| t.here));
    cluster.node(1).wait_until("its job again", here);
    tasks.kill(2);
    tasks.agree(&[0, 3, 5], &[0, 1, 3, 4, 5]);
    // A task may join where the daemon is new and the shepherd old.
    tasks.run(&cluster, 1, "2", &[]);
    tasks.agree(&[0, 2, 5], &[0, 1, 2, 3, 4, 5]);
}

/// RV-8: a shepherd that is stopped is excluded, told so when it goes on, and its tasks come back.
#[test]
fn rv_8_who_was_only_slow_comes_back() {
    let cluster = Cluster::start(4);
    let tasks = Tasks::start(&cluster, 4, 4, &[]);
    let slow = shepherd(&cluster, 2);
    kill(slow, Signal::SIGSTOP).unwrap();
    tasks.agree(&[0, 1, 3], &[0, 1, 3]);
    kill(slow, Signal::SIGCONT).unwrap();
    tasks.agree(&[0, 1, 2, 3], &[0, 1, 2, 3]);
    assert!(tasks.said(&2).iter().any(|line| line["event"] == "excluded"), "{:?}", tasks.said(&2));
}

/// RV-9: a spare takes the rank of a task that fails, and whoever comes for that rank later is told who has it.
#[test]
fn rv_9_a_spare_takes_a_rank() {
    let cluster = Cluster::start(2);
    let mut tasks = Tasks::start(&cluster, 2, 4, &[]);
    tasks.run(&cluster, 1, "spare", &["--spare"]);
    tasks.wait("spare", "itself", |v| v.rank.is_none() && v.tasks.len() == 5);
    tasks.kill(1);
    tasks.wait("spare", "its rank", |v| v.rank == Some(1));
    tasks.wait(0, "all ranks", |v| v.is_full() && v.task_of(1) == Some(4));
    let (code, _, error) = cluster.command(0, &["task", JOB, "--rank", "1", "--size", "4"]);
    assert_eq!(
        (code, error.trim()),
        (Some(1), "phalanx: rank 1 of job `train` is held by task 4 now: join as a spare")
    );
}

/// RV-7: messages are delivered in the view that they were sent in; a view that is over says so. RV-9: who has hooks pauses before
/// each change, and a checkpoint is one.
#[test]
fn rv_7_messages_stay_within_a_view() {
    let cluster = Cluster::start(2);
    let clients = [cluster.node(0).client(), cluster.node(1).client()];
    let mut first = clients[0].join_with(JOB, Join { arity: Some(2), ..Join::rank(0, 2) }).unwrap();
    let mut second = clients[1].join_with(JOB, Join { hooks: true, ..Join::rank(1, 2) }).unwrap();
    assert_eq!(first.wait_full().unwrap().tasks, [0, 1]);
    assert_eq!(second.view().me, 1);
    first.send(1, b"hello").unwrap();
    let big = vec![7; 3 << 20];
    first.send(1, &big).unwrap();
    let name = first.view().view;
    let mut heard = Vec::new();
    while heard.len() < 2 {
        if let Event::Message { from, view, body } = second.event().unwrap() {
            assert_eq!((from, view), (0, name));
            heard.push(body);
        }
    }
    assert!(heard[0] == b"hello" && heard[1] == big);
    // A task that is not there, and a message that is too long.
    for (error, says) in [(first.send(9, b"?"), "not in the view"), (first.send(1, &vec![0; 9 << 20]), "split it")] {
        let error = error.unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
    }
    // Nothing has changed: what fits still arrives.
    first.send(1, &vec![3; 8 << 20]).unwrap();
    while !matches!(second.event().unwrap(), Event::Message { body, .. } if body.len() == 8 << 20) {}
}

/// What is cast to a job comes to its tasks, wherever they are, and to nobody else.
#[test]
fn st_4_a_cast_comes_to_the_tasks_of_its_job() {
    let cluster = Cluster::start(3);
    let clients = [0, 1, 2].map(|n| cluster.node(n).client());
    let mut first = clients[0].join(JOB, 0, 2).unwrap();
    let mut second = clients[1].join(JOB, 1, 2).unwrap();
    let mut other = clients[1].join("other", 0, 1).unwrap();
    first.wait_full().unwrap();
    let to = |job: &str| To::Job(job.to_owned());
    let began = Instant::now();
    let body = vec![9; 300_000];
    // Where the tasks are is told within a moment.
    while clients[2].cast(&to(JOB), "", body.clone()).map_or(0, |r| r.reached) < 2 {
        assert!(began.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(50));
    }
    for task in [&mut first, &mut second] {
        let mut heard = Vec::new();
        while heard.len() < body.len() {
            if let Event::Cast(piece) = task.event().unwrap() {
                assert_eq!((piece.heading.from.as_str(), piece.heading.name.as_str()), ("n2", JOB));
                heard.extend(piece.data);
            }
        }
        assert!(heard == body);
    }
    let reached = clients[0].cast(&to("other"), "", b"you".to_vec()).unwrap();
    assert_eq!(reached.reached, 1);
    while !matches!(other.event().unwrap(), Event::Cast(piece) if piece.data == b"you") {}
    let refused = clients[0].cast(&to("nobody"), "", b"?".to_vec()).unwrap_err();
    assert!(refused.to_string().contains("no member of this zone has tasks of a job nobody"), "{refused}");
}

/// Shepherds end with their tasks: also when all of them die at once, and nobody is left to hear a farewell.
#[test]
fn nothing_is_left_of_a_job_that_died() {
    let cluster = Cluster::start(2);
    let mut tasks = Tasks::start(&cluster, 2, 4, &[]);
    let shepherds = [shepherd(&cluster, 0), shepherd(&cluster, 1)];
    (0..4).for_each(|rank| tasks.kill(rank));
    let began = Instant::now();
    while shepherds.iter().any(|&s| kill(s, None).is_ok()) {
        assert!(began.elapsed() < PATIENCE, "{shepherds:?} are still there");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(cluster.node(0).client().jobs().unwrap().is_empty());
}

/// One node is a cluster, too; and a task that floods another is held back, not the shepherd.
#[test]
fn a_flood_of_messages_arrives_whole() {
    let cluster = Cluster::start(1);
    let client = cluster.node(0).client();
    let mut task = client.join(JOB, 0, 1).unwrap();
    let body = vec![1; 1 << 16];
    (0..200).for_each(|_| task.send(0, &body).unwrap());
    let mut heard = 0;
    while heard < 200 {
        heard += u32::from(matches!(task.event().unwrap(), Event::Message { .. }));
    }
}

#[test]
fn rv_9_hooks_hold_a_change_until_all_have_paused() {
    let cluster = Cluster::start(2);
    let clients = [cluster.node(0).client(), cluster.node(1).client()];
    let mut first = clients[0].join(JOB, 0, 2).unwrap();
    let mut second = clients[1].join_with(JOB, Join { hooks: true, ..Join::rank(1, 2) }).unwrap();
    first.wait_full().unwrap();
    let old = first.view().view;
    first.checkpoint().unwrap();
    while second.event().unwrap() != Event::Pause {}
    // The first one cannot be in the next view yet: it has none to send in.
    first.send(1, b"before").unwrap();
    second.paused().unwrap();
    let after = loop {
        if let Event::View(view) = second.event().unwrap()
            && view.checkpoint
        {
            break view;
        }
    };
    assert!(after.view.number > old.number && after.tasks == [0, 1]);
    // The first one has the new view, too, and the old one is over for it.
    while first.view().view != after.view {
        first.event().unwrap();
    }
    second.leave().unwrap();
    while second.event().unwrap() != Event::Left {}
    while first.view().tasks != [0] {
        first.event().unwrap();
    }
    let Err(Error::Refused { status: 409, error }) = first.send(1, b"late") else { panic!("it is gone") };
    assert!(error.contains("not in the view"), "{error}");
}

/// A job that died as a whole with its node begins anew elsewhere; also when the new rank 0 came before the old one was missed.
#[test]
fn a_job_that_is_gone_begins_anew() {
    let mut cluster = Cluster::start(3);
    let mut tasks = Tasks::new(&cluster, 2);
    (0..2).for_each(|rank| tasks.run(&cluster, 2, &rank.to_string(), &[]));
    tasks.agree(&[0, 1], &[0, 1]);
    let before = cluster.node(2).client().job(JOB).unwrap().instance;
    kill_node(&mut cluster, 2, &mut tasks, 0..2);
    (0..2).for_each(|rank| tasks.run(&cluster, rank, &rank.to_string(), &[]));
    tasks.agree(&[0, 1], &[0, 1]);
    assert_ne!(cluster.node(0).client().job(JOB).unwrap().instance, before);
}

/// What makes no sense is refused with what to do, and nothing has changed.
#[test]
fn bad_input_is_refused_and_changes_nothing() {
    let cluster = Cluster::start(2);
    let tasks = Tasks::start(&cluster, 2, 2, &[]);
    let before = tasks.view(&0);
    let task = |node, arguments: &[&str]| {
        let (code, _, error) = cluster.command(node, &[&["task"], arguments].concat());
        assert_eq!(code, Some(1), "{error}");
        error
    };
    let cases: [(&[&str], &str); 8] = [
        (&[JOB, "--rank", "2", "--size", "2"], "rank 2 is out of range: job `train` has ranks 0 to 1"),
        (&[JOB, "--rank", "0", "--size", "2"], "rank 0 of job `train` is taken"),
        (&[JOB, "--rank", "1", "--size", "3"], "job `train` runs with 2 ranks, not 3"),
        (&[JOB, "--rank", "1", "--size", "2", "--arity", "8"], "job `train` runs with arity 4, not 8"),
        (
            &[JOB, "--rank", "1", "--size", "2", "--on-partition", "abort"],
            "runs with --on-partition primary, not abort",
        ),
        (&["new", "--rank", "0", "--size", "2", "--arity", "3"], "must be a power of two from 2 to 256, and 3 is not"),
        (&["new", "--rank", "0", "--size", "0"], "a job has 1 to 16777216 tasks, not 0"),
        (&["../x", "--rank", "0", "--size", "1"], "is no name for a job"),
    ];
    for (arguments, says) in cases {
        let error = task(0, arguments);
        assert!(error.contains(says), "{arguments:?}: {error}");
    }
    // Its holder is on the other node: it is asked first.
    let error = task(1, &[JOB, "--rank", "0", "--size", "2"]);
    assert!(error.contains("rank 0 of job `train` is taken: its task lives"), "{error}");
    let (code, _, error) = cluster.command(1, &["view", "nope"]);
    assert_eq!(code, Some(2));
    assert!(error.contains("there is no job `nope`"), "{error}");
    assert_eq!(tasks.view(&0), before);
}

/// A job may reach over several zones; supervisors know where its tasks are.
#[test]
fn a_job_reaches_over_zones() {
    let mut cluster = Cluster::empty();
    let supervisor = cluster.add(&["--role", "supervisor"]);
    let place = cluster.node(supervisor).status().me.addr.to_string();
    for zone in ["red", "blue", "blue"] {
        cluster.add(&["--zone", zone, "--supervisor", &place]);
    }
    let members = |node: &phalanx_cluster::Node| node.client().census().map_or(0, |c| c.members);
    cluster.wait_until("the census", |node| members(node) == 3);
    let mut tasks = Tasks::new(&cluster, 3);
    (0..3).for_each(|rank| tasks.run(&cluster, 1 + rank, &rank.to_string(), &[]));
    tasks.agree(&[0, 1, 2], &[0, 1, 2]);
    // Also who has no task of it sees it.
    assert_eq!(cluster.node(supervisor).client().job(JOB).unwrap().alive, 3);
    assert!(tasks.pid(0) > 0);
    kill_node(&mut cluster, 1, &mut tasks, 0..1);
    tasks.agree(&[1, 2], &[1, 2]);
}

/// RV-6: of a job that is cut in two only the part with a majority goes on; the others wait, are told, and come back.
#[test]
fn rv_6_the_part_with_a_majority_goes_on() {
    let Some(mut cluster) = Cluster::on_hosts(5, &[]) else { return };
    let tasks = Tasks::start(&cluster, 5, 5, &[]);
    cluster.network().cut(&[0, 1], &[2, 3, 4]);
    tasks.agree(&[2, 3, 4], &[2, 3, 4]);
    assert_eq!(tasks.view(&0).unwrap().tasks, [0, 1, 2, 3, 4], "it waits in the view that was");
    tasks.wait_for(0, "stalled");
    cluster.network().heal();
    tasks.agree(&[0, 1, 2, 3, 4], &[0, 1, 2, 3, 4]);
    tasks.wait_for(0, "excluded");
}

/// A host whose network interface is gone with its address still keeps its timers: its shepherd ends with its task.
#[test]
fn a_shepherd_without_a_network_ends() {
    let Some(mut cluster) = Cluster::on_hosts(3, &[]) else { return };
    let mut tasks = Tasks::start(&cluster, 3, 3, &[]);
    let lonely = shepherd(&cluster, 2);
    cluster.network().unplug(2);
    tasks.agree(&[0, 1], &[0, 1]);
    tasks.kill(2);
    let began = Instant::now();
    while kill(lonely, None).is_ok() {
        assert!(began.elapsed() < PATIENCE, "it is still there");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// RV-6: with `abort` the tasks that cannot reach most of the job end.
#[test]
fn rv_6_the_part_without_a_majority_ends() {
    let Some(mut cluster) = Cluster::on_hosts(3, &[]) else { return };
    let tasks = Tasks::start(&cluster, 3, 3, &["--on-partition", "abort"]);
    cluster.network().cut(&[0], &[1, 2]);
    tasks.agree(&[1, 2], &[1, 2]);
    tasks.wait_for(0, "aborted");
}

/// A task of this process that reduces once the job is whole.
fn reducing(socket: PathBuf, rank: u32, size: u32, steps: impl FnOnce(&phalanx_client::blocking::Task<'_>)) {
    let client = Client::new(socket);
    let mut task = client.join(JOB, rank, size).expect("it is let in");
    task.wait_full().expect("all come");
    steps(&task);
}

/// Holds threads until all are there; one that failed is not waited for for ever.
struct Gate {
    all: u32,
    came: AtomicU32,
}

impl Gate {
    /// `step` counts from 1.
    fn pass(&self, step: u32) {
        self.came.fetch_add(1, Ordering::SeqCst);
        let began = Instant::now();
        while self.came.load(Ordering::SeqCst) < step * self.all {
            assert!(began.elapsed() < PATIENCE, "not all come to step {step}");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

/// ST-4: barrier, sum and gather over the whole job; a rank that is killed while the others wait for it holds them no longer, and one that
/// comes anew takes part in what the others do next.
#[test]
fn st_4_reductions_complete_over_survivors() {
    let cluster = Cluster::start(3);
    let mut tasks = Tasks::new(&cluster, 6);
    let (gate, passed) = (Gate { all: 6, came: AtomicU32::new(0) }, AtomicU32::new(0));
    let socket = |rank: u32| cluster.node(rank as usize / 2).socket();
    let names = |ranks: std::ops::Range<u32>| ranks.map(|r| (r, format!("rank {r}").into_bytes())).collect::<Vec<_>>();
    let whole = |task: &phalanx_client::blocking::Task<'_>, rank: u32| {
        task.barrier().unwrap();
        assert_eq!(task.sum(1 << rank).unwrap(), 0b11_1111);
        assert_eq!(task.gather(format!("rank {rank}").as_bytes()).unwrap(), names(0..6));
    };
    std::thread::scope(|scope| {
        let (gate, passed, whole) = (&gate, &passed, &whole);
        for rank in 0..5 {
            let socket = socket(rank);
            scope.spawn(move || {
                reducing(socket, rank, 6, |task| {
                    whole(task, rank);
                    gate.pass(1);
                    task.barrier().unwrap();
                    passed.fetch_add(1, Ordering::SeqCst);
                    assert_eq!(task.sum(1 << rank).unwrap(), 0b1_1111, "the dead are not in it");
                    assert_eq!(task.gather(format!("rank {rank}").as_bytes()).unwrap(), names(0..5));
                    gate.pass(2);
                    // Only when there is somebody new.
                    gate.pass(3);
                    assert_eq!(task.sum(1 << rank).unwrap(), 0b11_1111);
                });
            });
        }
        reducing(socket(5), 5, 6, |task| whole(task, 5));
        // A process that is in the view, and never comes to the barrier.
        tasks.run(&cluster, 2, "5", &[]);
        tasks.wait(5, "the whole job", |v| v.tasks.len() == 6);
        gate.pass(1);
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(passed.load(Ordering::SeqCst), 0, "all wait for it");
        tasks.kill(5);
        gate.pass(2);
        assert_eq!(passed.load(Ordering::SeqCst), 5);
        reducing(socket(5), 5, 6, |task| {
            gate.pass(3);
            assert_eq!(task.sum(1 << 5).unwrap(), 0b11_1111);
        });
    });
}

/// ST-4: the node of who collects dies while the others wait in a barrier.
#[test]
fn st_4_who_collects_may_die_with_its_node() {
    let mut cluster = Cluster::start(3);
    let mut tasks = Tasks::new(&cluster, 6);
    (0..2).for_each(|rank| tasks.run(&cluster, 0, &rank.to_string(), &[]));
    let waiting = (2..6).map(|rank| (rank, cluster.node(rank as usize / 2).socket()));
    let (came, passed) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let threads: Vec<_> = waiting
        .map(|(rank, socket)| {
            let (came, passed) = (Arc::clone(&came), Arc::clone(&passed));
            std::thread::spawn(move || {
                reducing(socket, rank, 6, |task| {
                    came.fetch_add(1, Ordering::SeqCst);
                    task.barrier().unwrap();
                    passed.fetch_add(1, Ordering::SeqCst);
                    assert_eq!(task.sum(i64::from(rank)).unwrap(), 2 + 3 + 4 + 5);
                });
            })
        })
        .collect();
    let began = Instant::now();
    while came.load(Ordering::SeqCst) < 4 {
        assert!(began.elapsed() < PATIENCE, "they are not in");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(passed.load(Ordering::SeqCst), 0, "all wait for the first two");
    kill_node(&mut cluster, 0, &mut tasks, 0..2);
    threads.into_iter().for_each(|thread| thread.join().expect("it came through"));
}

/// What cannot be reduced is refused with what to do, and the next reduction is as good as any.
#[test]
fn st_4_reductions_that_make_no_sense_are_refused() {
    let cluster = Cluster::start(2);
    let refused = |error: Error| match error {
        Error::Refused { error, .. } => error,
        other => panic!("{other}"),
    };
    let second = cluster.node(1).socket();
    let both = std::thread::spawn(move || {
        reducing(second, 1, 2, |task| {
            let error = task.barrier().unwrap_err().to_string();
            assert!(error.contains("did not all do the same reduction"), "{error}");
            let error = task.sum(1).unwrap_err().to_string();
            assert!(error.contains("does not fit into 64 bits"), "{error}");
            assert_eq!(task.sum(1).unwrap(), 3);
        });
    });
    reducing(cluster.node(0).socket(), 0, 2, |task| {
        let error = refused(task.gather(&[0; (64 << 10) + 1]).unwrap_err());
        assert!(error.contains("a task gathers up to 65536 bytes, not 65537"), "{error}");
        let error = refused(task.sum(1).unwrap_err());
        assert!(error.contains("call barrier, sum and gather in the same order"), "{error}");
        assert!(refused(task.sum(i64::MAX).unwrap_err()).contains("sum smaller numbers"));
        // A spare is in the view and holds no rank, as long as nobody fails.
        let client = Client::new(cluster.node(0).socket());
        let spare = client.join_with(JOB, Join::spare(2)).unwrap();
        let error = refused(spare.barrier().unwrap_err());
        assert!(error.contains("only tasks that hold a rank in the view reduce"), "{error}");
        assert_eq!(task.sum(2).unwrap(), 3);
    });
    both.join().expect("it saw the same");
}
