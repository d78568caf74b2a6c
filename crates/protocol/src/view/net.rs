//! Members on a network of queues: any order between pairs, in order within a pair, with crashes, cuts and verdicts.

use super::{Config, Input, Joined, Member, Output, Person, Start, Task, View, ViewId, Wanted};
use phalanx_core::{Addr, Duration, Each, Instant, Machine, Rng};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// What members told their applications.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Told {
    Installed(ViewId),
    Delivered(Task, ViewId, Vec<u8>),
    Undelivered(Task, u64),
    Pause,
    Stalled,
    Excluded,
    Aborted,
    Refused(super::Refusal),
    Left,
}

pub(super) struct Net {
    pub(super) now: Instant,
    pub(super) config: Config,
    /// By host; a host has one task.
    pub(super) members: BTreeMap<u32, Member>,
    queues: BTreeMap<(u32, u32), VecDeque<Vec<u8>>>,
    /// Pairs between which nothing passes.
    pub(super) cuts: BTreeSet<(u32, u32)>,
    pub(super) told: Vec<(u32, Told)>,
    /// Every membership that anybody ever installed, by the name of its view.
    pub(super) views: BTreeMap<ViewId, BTreeSet<Joined>>,
    /// Letters that were delivered.
    pub(super) letters: u64,
    /// When waves began and settled, at their roots.
    pub(super) waves: Vec<(Instant, super::Wave, bool)>,
    pub(super) next_boot: u32,
    /// Hosts of which the detector says that they failed. It says so again of each view that has them.
    pub(super) failed: BTreeSet<u32>,
}

pub(super) fn config() -> Config {
    Config {
        patience: Duration::from_millis(10),
        inquiry: Duration::ZERO,
        retry: Duration::from_millis(3),
        ..Config::default()
    }
}

pub(super) fn people(n: u32) -> impl Iterator<Item = Person> {
    (0..n).map(|i| Person { host: Addr::Local(i), boot: i, stint: 0 })
}

impl Net {
    pub(super) fn new(arity: u32, n: u32, config: Config) -> Self {
        let view = View::first(arity, people(n)).expect("a good view");
        let now = Instant(1_000_000_000);
        let start = |i| Start { job: 1, host: Addr::Local(i), boot: i };
        let members = (0..n).map(|i| (i, Member::new(config, start(i), Task(i), view.clone(), now))).collect();
        let (queues, cuts, told, views) = Default::default();
        Self {
            now,
            config,
            members,
            queues,
            cuts,
            told,
            views,
            letters: 0,
            waves: Vec::new(),
            next_boot: 1000,
            failed: BTreeSet::new(),
        }
    }

    pub(super) fn act(&mut self, host: u32, act: impl FnOnce(&mut Member, Instant, &mut dyn FnMut(Output<'_>))) {
        let Some(mut member) = self.members.remove(&host) else { return };
        let now = self.now;
        let before = self.told.len();
        act(&mut member, now, &mut |output| self.take(host, output));
        let installed = self.told[before..].iter().any(|t| matches!(t.1, Told::Installed(_)));
        let failed = member.view().filter(|_| installed).map(|v| self.failed_in(v));
        self.members.insert(host, member);
        if let Some(tasks) = failed.filter(|f| !f.is_empty()) {
            self.tell(host, Input::Failed { tasks: &tasks });
        }
    }

    fn failed_in(&self, view: &View) -> Vec<Task> {
        let is_failed =
            |t: &Task| self.failed.iter().any(|&h| view.person(*t).is_some_and(|p| p.host == Addr::Local(h)));
        view.tree().tasks().filter(is_failed).collect()
    }

    pub(super) fn rejoin(&mut self, host: u32) {
        self.next_boot += 1;
        self.tell(host, Input::Rejoin { boot: self.next_boot });
    }

    pub(super) fn tell(&mut self, host: u32, input: Input<'_>) {
        self.act(host, |m, now, out| m.handle(now, input, &mut Each(|o: Output<'_>| out(o))));
    }

    fn take(&mut self, host: u32, output: Output<'_>) {
        let told = match output {
            Output::Send { to: Addr::Local(to), bytes } => {
                self.queues.entry((host, to)).or_default().push_back(bytes.to_vec());
                return;
            }
            Output::Send { .. } => return,
            Output::Installed { view, .. } => {
                let of = |t| Joined { task: t, person: view.person(t).expect("it lives") };
                let members: BTreeSet<_> = view.tree().tasks().map(of).collect();
                assert!(members.iter().any(|j| j.person.host == Addr::Local(host)), "self inclusion");
                let known = self.views.entry(view.id()).or_insert_with(|| members.clone());
                assert_eq!(*known, members, "two memberships under {}", view.id());
                Told::Installed(view.id())
            }
            Output::Begun(wave) => return self.waves.push((self.now, wave, false)),
            Output::Settled { wave, .. } => return self.waves.push((self.now, wave, true)),
            Output::Deliver { from, view, body } => Told::Delivered(from, view, body.to_vec()),
            Output::Undelivered { to, number, .. } => Told::Undelivered(to, number),
            Output::Pause { .. } => Told::Pause,
            Output::Stalled => Told::Stalled,
            Output::Excluded { .. } => Told::Excluded,
            Output::Aborted => Told::Aborted,
            Output::Refused(why) => Told::Refused(why),
            Output::Left => Told::Left,
        };
        self.told.push((host, told));
    }

    pub(super) fn crash(&mut self, host: u32) {
        self.members.remove(&host);
        self.queues.retain(|&(from, to), _| from != host && to != host);
    }

    /// All the living hear the verdict.
    pub(super) fn verdict(&mut self, tasks: &[u32]) {
        self.failed.extend(tasks);
        let tasks: Vec<_> = tasks.iter().copied().map(Task).collect();
        for host in self.members.keys().copied().collect::<Vec<_>>() {
            self.tell(host, Input::Failed { tasks: &tasks });
        }
    }

    pub(super) fn join(&mut self, host: u32, wanted: Wanted, contacts: &[u32]) {
        self.next_boot += 1;
        self.failed.remove(&host);
        let start = Start { job: 1, host: Addr::Local(host), boot: self.next_boot };
        let contacts = contacts.iter().copied().map(Addr::Local).collect();
        let (config, now) = (self.config, self.now);
        let mut outputs = Vec::new();
        let member = Member::join(
            config,
            start,
            wanted,
            contacts,
            now,
            &mut Each(|o: Output<'_>| {
                if let Output::Send { to: Addr::Local(to), bytes } = o {
                    outputs.push((to, bytes.to_vec()));
                }
            }),
        );
        for (to, bytes) in outputs {
            self.queues.entry((host, to)).or_default().push_back(bytes);
        }
        self.members.insert(host, member);
    }

    /// Delivers one letter of a pair, or loses it where a cut is.
    fn deliver(&mut self, pair: (u32, u32)) {
        let Some(queue) = self.queues.get_mut(&pair) else { return };
        let bytes = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&pair);
        }
        if let Some(bytes) = bytes.filter(|_| !self.cuts.contains(&pair)) {
            self.letters += u64::from(self.members.contains_key(&pair.1));
            self.tell(pair.1, Input::Heard { from: Addr::Local(pair.0), bytes: &bytes });
        }
    }

    /// Delivers any letter of any pair; false when none is under way.
    pub(super) fn step(&mut self, rng: &mut Rng) -> bool {
        if self.queues.is_empty() {
            return false;
        }
        let pair = *self.queues.keys().nth(rng.index(self.queues.len())).expect("there is one");
        self.deliver(pair);
        true
    }

    /// All letters, round after round, in the order of the hosts: each round is one network delay.
    pub(super) fn round(&mut self) -> bool {
        let due: Vec<_> = self.queues.iter().map(|(&pair, q)| (pair, q.len())).collect();
        self.now += Duration::from_micros(1);
        for &(pair, n) in &due {
            for _ in 0..n {
                self.deliver(pair);
            }
        }
        !due.is_empty()
    }

    /// Until nothing is under way.
    pub(super) fn run(&mut self) {
        for _ in 0..10_000 {
            if !self.round() {
                return;
            }
        }
        panic!("letters without end");
    }

    /// Time goes on to the next deadline; false when there is none.
    pub(super) fn wait(&mut self) -> bool {
        let next = self.members.values().map(Machine::deadline).fold(Instant::NEVER, Instant::min);
        if next == Instant::NEVER {
            return false;
        }
        self.now = self.now.max(next);
        for host in self.members.keys().copied().collect::<Vec<_>>() {
            if self.members[&host].deadline() <= self.now {
                self.act(host, |m, now, out| m.expire(now, &mut Each(|o: Output<'_>| out(o))));
            }
        }
        true
    }

    /// Letters and time, until all rest, for at most so long.
    pub(super) fn settle(&mut self, longest: Duration) {
        let end = self.now + longest;
        self.run();
        while self.now < end && self.wait() {
            self.run();
        }
    }

    pub(super) fn view(&self, host: u32) -> Option<&View> {
        self.members.get(&host)?.view()
    }

    /// The one view of all who are in one; panics when there are several.
    pub(super) fn one_view(&self) -> View {
        let mut views = self.members.values().filter_map(Member::view);
        let view = views.next().expect("somebody has a view").clone();
        for other in views {
            assert_eq!(other.id(), view.id(), "two views");
        }
        view
    }

    pub(super) fn tasks(&self) -> Vec<u32> {
        self.one_view().tree().tasks().map(|t| t.0).collect()
    }

    pub(super) fn told(&self, host: u32) -> Vec<&Told> {
        self.told.iter().filter(|t| t.0 == host).map(|t| &t.1).collect()
    }
}
