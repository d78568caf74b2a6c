//! Stories of jobs, one for each rule; and many clusters in which everything that can go wrong does.

mod failures;
mod jobs;
mod large;
mod replicas;
mod storms;

use super::model::key;
use super::*;
use crate::manager::words::*;

/// A cluster whose agents do what the test says.
pub(super) struct Story {
    pub(super) state: State,
    now_ms: u64,
    numbers: BTreeMap<Key, (u64, u64)>,
    incarnations: BTreeMap<Key, u64>,
    asked: u64,
}

/// What agents were told, in few words.
pub(super) fn told(out: &[Decision]) -> Vec<String> {
    let names = |to: &[Key]| (0..9).filter(|&n| to.contains(&key(n))).map(|n| n.to_string()).collect::<String>();
    let ranges = |ranks: &[(u32, u32)]| ranks.iter().map(|(a, b)| format!("{a}..{b}")).collect::<Vec<_>>().join(",");
    let one = |decision: &Decision| match decision {
        Decision::Command { to, command } => Some(match command {
            Command::Prepare { attempt, shares, .. } => {
                let shares: Vec<String> = shares.iter().map(|s| format!("{}:{}", s.name, ranges(&s.ranks))).collect();
                format!("{} prepare {}.{} {}", names(to), attempt.job.0, attempt.number, shares.join(" "))
            }
            Command::Go { attempt, life: 0, posts, .. } => {
                format!("{} go {}.{} {}", names(to), attempt.job.0, attempt.number, posts.len())
            }
            Command::Go { attempt, life, .. } => {
                format!("{} go {}.{}.{life}", names(to), attempt.job.0, attempt.number)
            }
            Command::Respawn { attempt, life, share, .. } => {
                format!("{} respawn {}.{}.{life} {}", names(to), attempt.job.0, attempt.number, ranges(&share.ranks))
            }
            Command::Signal { attempt, signal } => format!("{} signal {} {signal}", names(to), attempt.job.0),
            Command::Stop { attempt, .. } => format!("{} stop {}.{}", names(to), attempt.job.0, attempt.number),
            Command::Over { job, status, .. } => format!("{} over {} {status}", names(to), job.0),
        }),
        Decision::Answer { .. } => None,
        Decision::Move { from, to } => Some(format!("move {}{}", names(&[*from]), names(&[*to]))),
        Decision::Grow { with } => Some(format!("grow {}", names(with))),
    };
    out.iter().filter_map(one).collect()
}

/// These ranks, and nothing special.
pub(super) fn wanted(ranks: u32) -> Wanted {
    Wanted {
        name: None,
        ranks,
        hosts: Vec::new(),
        per_node: None,
        oversubscribe: false,
        on_failure: OnFailure::Abort,
        spares: 0,
        timeout_ms: None,
        user: (1000, 1000),
        spec: b"cg".to_vec(),
    }
}

pub(super) fn with(ranks: u32, on_failure: OnFailure) -> Wanted {
    Wanted { on_failure, ..wanted(ranks) }
}

pub(super) fn at(job: u64, number: u32) -> Attempt {
    Attempt { job: JobId(job), number }
}

impl Story {
    /// Nodes n0, n1 and so on with so many slots, all there; the replica is on n0.
    pub(super) fn new(slots: &[u32]) -> Self {
        let state = State::new(1, &(0..slots.len().min(3)).map(key).collect::<Vec<_>>());
        let (numbers, incarnations) = (BTreeMap::new(), BTreeMap::new());
        let mut story = Self { state, now_ms: 1_000_000, numbers, incarnations, asked: 0 };
        for (n, &slots) in slots.iter().enumerate() {
            story.comes(n, slots);
        }
        story
    }

    pub(super) fn fact(&mut self, fact: Fact) -> Vec<Decision> {
        let mut out = Vec::new();
        self.state.apply(&Entry { at_ms: self.now_ms, fact }, &mut out);
        self.state.violation().expect("all is as it should be");
        out
    }

    fn info(&self, n: usize, slots: u32) -> NodeInfo {
        let incarnation = self.incarnations.get(&key(n)).copied().unwrap_or(1);
        let (name, zone) = (format!("n{n}"), format!("z{}", n % 2));
        NodeInfo { key: key(n), name, at: At::Local(n as u32), zone, incarnation, slots }
    }

    /// A node appears, with nothing on it.
    pub(super) fn comes(&mut self, n: usize, slots: u32) -> Vec<String> {
        let mut said = told(&self.fact(Fact::Seen(self.info(n, slots))));
        said.extend(self.inventory(n, &[]));
        said
    }

    pub(super) fn lost(&mut self, n: usize) -> Vec<String> {
        let incarnation = self.info(n, 0).incarnation;
        told(&self.fact(Fact::Lost { node: key(n), incarnation }))
    }

    /// The zone sees it again, with the same agent or a new one.
    pub(super) fn back(&mut self, n: usize, slots: u32, anew: bool) -> Vec<String> {
        *self.incarnations.entry(key(n)).or_insert(1) += u64::from(anew);
        told(&self.fact(Fact::Seen(self.info(n, slots))))
    }

    pub(super) fn later(&mut self, ms: u64) -> Vec<String> {
        self.now_ms += ms;
        told(&self.fact(Fact::Tick))
    }

    pub(super) fn report(&mut self, n: usize, report: Report) -> Vec<String> {
        let incarnation = self.info(n, 0).incarnation;
        let last = self.numbers.entry(key(n)).or_default();
        *last = if last.0 == incarnation { (incarnation, last.1 + 1) } else { (incarnation, 1) };
        let number = last.1;
        told(&self.fact(Fact::Reported(vec![Reported { from: key(n), incarnation, number, report }])))
    }

    pub(super) fn inventory(&mut self, n: usize, attempts: &[Attempt]) -> Vec<String> {
        self.report(n, Report::Inventory { attempts: attempts.to_vec() })
    }

    pub(super) fn ready(&mut self, n: usize, attempt: Attempt, life: u32) -> Vec<String> {
        let post = Post { at: At::Local(n as u32), first: 100 * n as u32 + 10 * life };
        self.report(n, Report::Ready { attempt, life, post })
    }

    pub(super) fn cleared(&mut self, n: usize, attempt: Attempt, life: u32) -> Vec<String> {
        self.report(n, Report::Cleared { attempt, life })
    }

    pub(super) fn ended(&mut self, n: usize, attempt: Attempt, ranks: &[u32], end: End) -> Vec<String> {
        self.ended_in(n, attempt, 0, ranks, end)
    }

    pub(super) fn ended_in(&mut self, n: usize, attempt: Attempt, life: u32, ranks: &[u32], end: End) -> Vec<String> {
        let ranks = ranks.iter().map(|&rank| Ended { rank, life, end, aborted: true }).collect();
        self.report(n, Report::Ended { attempt, ranks })
    }

    /// Somebody asks on node n.
    pub(super) fn ask(&mut self, n: usize, ask: Ask) -> (Answer, Vec<String>) {
        self.asked += 1;
        let incarnation = self.info(n, 0).incarnation;
        let out = self.fact(Fact::Asked { from: key(n), incarnation, number: self.asked, ask });
        let answer = out.iter().find_map(|decision| match decision {
            Decision::Answer { answer, .. } => Some(answer.clone()),
            _ => None,
        });
        (answer.expect("every question is answered"), told(&out))
    }

    pub(super) fn refused(&mut self, ask: Ask) -> String {
        let before = self.state.clone();
        let (answer, said) = self.ask(0, ask);
        assert_eq!(
            (self.state.runs(), self.state.slots(), said),
            (before.runs(), before.slots(), Vec::<String>::new())
        );
        match answer {
            Answer::Refused(why) => why,
            other => panic!("it was not refused: {other:?}"),
        }
    }

    pub(super) fn run(&mut self, n: usize, wanted: Wanted) -> Vec<String> {
        let (answer, said) = self.ask(n, Ask::Run(wanted));
        assert!(matches!(answer, Answer::Taken { .. }), "{answer:?}");
        said
    }

    /// A job that runs: its nodes said that they are ready.
    pub(super) fn running(&mut self, n: usize, wanted: Wanted, nodes: &[usize]) -> Vec<String> {
        self.run(n, wanted);
        let job = self.state.last_job;
        nodes.iter().flat_map(|&n| self.ready(n, at(job, 0), 0)).collect()
    }

    pub(super) fn phase(&self, job: u64) -> RunPhase {
        self.state.run(&job.to_string()).expect("there is such a job").run.state
    }

    pub(super) fn over(&self, job: u64) -> (i32, String) {
        let run = self.state.run(&job.to_string()).expect("there is such a job").run;
        (run.status.expect("it is over"), run.why)
    }

    pub(super) fn log(&self, job: u64) -> String {
        let lines = self.state.run(&job.to_string()).expect("there is such a job").log;
        lines.into_iter().map(|line| line.text + "\n").collect()
    }

    pub(super) fn used(&self) -> Vec<u32> {
        self.state.slots().iter().map(|node| node.used).collect()
    }
}
