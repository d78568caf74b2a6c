//! Tasks of a job, the view machine alone: how long a wave takes, and how many waves are needed (RV-10, PM-1).
//!
//! Letters travel as they are, without a link, over a network that loses nothing: what 000 §4 models. Each task has one processor: what a
//! notice costs it (the paper's O_cp, the time to calculate the tree anew) is over before anything leaves.

use crate::fault::Fault;
use crate::network::{Network, NetworkError};
use crate::process::{Ctx, Process};
use crate::sim::{Setup, Sim};
use phalanx_core::{Addr, Buf, Duration, Each, Instant, Machine};
use phalanx_protocol::view::tree::TreeError;
use phalanx_protocol::view::{Config, Input, Member, Output, Person, Start, Task, View, ViewId, Wave};
use phalanx_wire::view::{Letter, Words};
use std::collections::VecDeque;
use thiserror::Error;

/// The detector's first word comes so long after the crash.
const NOTICED: Duration = Duration::from_millis(1);
/// No wave takes longer.
const LONGEST: Duration = Duration::from_secs(60);

/// A job to be hurt.
#[derive(Clone, PartialEq, Debug)]
pub struct Job {
    /// How many tasks.
    pub size: u32,
    /// Children of each.
    pub arity: u32,
    /// What lies between them.
    pub network: Network,
    /// O_cp: what a notice costs each task.
    pub compute: Duration,
    /// How long an answer may take.
    pub patience: Duration,
}

/// What a hurt job came to.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Outcome {
    /// T_s: from the root's first notice to its last acknowledgement.
    pub took: Duration,
    /// Waves that were needed.
    pub waves: u32,
    /// All survivors are in one view, without the dead.
    pub stable: bool,
}

/// Why a job cannot be simulated.
#[derive(Clone, PartialEq, Debug, Error)]
#[non_exhaustive]
pub enum JobError {
    /// Its tree.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// Its network.
    #[error(transparent)]
    Network(#[from] NetworkError),
}

/// What tasks say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Note {
    /// A root begins a wave.
    Begun(Wave),
    /// It has all answers.
    Settled(Wave),
    /// A task has a new view.
    Installed(ViewId),
}

/// A task on a node.
pub struct Tasked {
    member: Member,
    compute: Duration,
    /// Its processor is busy until then.
    free_at: Instant,
    /// What leaves when it is done.
    outbox: VecDeque<(Instant, Addr, Buf)>,
}

impl Tasked {
    fn act(&mut self, now: Instant, what: Option<Input<'_>>, mut costs: bool, net: &mut Ctx<'_, Self>) {
        let mut letters = Vec::new();
        let mut out = Each(|output: Output<'_>| match output {
            Output::Send { to, bytes } => letters.push((to, Buf::copy_of(bytes))),
            Output::Begun(wave) => {
                // The root calculates, too.
                costs = true;
                net.note(Note::Begun(wave));
            }
            Output::Settled { wave, .. } => net.note(Note::Settled(wave)),
            Output::Installed { view, .. } => net.note(Note::Installed(view.id())),
            _ => {}
        });
        match what {
            Some(input) => self.member.handle(now, input, &mut out),
            None => self.member.expire(now, &mut out),
        }
        self.free_at = self.free_at.max(now);
        if costs {
            self.free_at += self.compute;
        }
        self.outbox.extend(letters.into_iter().map(|(to, bytes)| (self.free_at, to, bytes)));
        self.depart(now, net);
    }

    fn depart(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        while self.outbox.front().is_some_and(|o| o.0 <= now) {
            if let Some((_, to, bytes)) = self.outbox.pop_front() {
                net.send(to, bytes);
            }
        }
    }
}

impl Process for Tasked {
    type Command = Vec<Task>;
    type Note = Note;

    fn start(&mut self, _: Instant, _: &mut Ctx<'_, Self>) {}

    fn arrived(&mut self, now: Instant, from: Addr, packet: Buf, net: &mut Ctx<'_, Self>) {
        let costs = matches!(Letter::parse(packet.bytes()), Ok(Letter { words: Words::Notice { .. }, .. }));
        self.act(now, Some(Input::Heard { from, bytes: packet.bytes() }), costs, net);
    }

    fn expire(&mut self, now: Instant, net: &mut Ctx<'_, Self>) {
        self.depart(now, net);
        if self.member.deadline() <= now {
            self.act(now, None, false, net);
        }
    }

    fn deadline(&self) -> Instant {
        self.outbox.front().map_or(Instant::NEVER, |o| o.0).min(self.member.deadline())
    }

    fn command(&mut self, now: Instant, failed: Vec<Task>, net: &mut Ctx<'_, Self>) {
        self.act(now, Some(Input::Failed { tasks: &failed }), false, net);
    }
}

/// Kills the `dead` at once. The root hears of those that are `known`; the others must be found.
///
/// # Errors
/// When the tree or the network makes no sense.
///
/// # Panics
/// When the root is among the dead: somebody else would have to be told.
pub fn hurt(job: &Job, dead: &[Task], known: &[Task]) -> Result<Outcome, JobError> {
    assert!(!dead.contains(&Task(0)), "the root is told");
    let people = (0..job.size).map(|i| Person { host: Addr::Local(i), boot: 1, stint: 0 });
    let view = View::first(job.arity, people)?;
    let config = Config { patience: job.patience, inquiry: Duration::ZERO, ..Config::default() };
    let setup = Setup { nodes: job.size, network: job.network.clone(), ..Setup::default() };
    let compute = job.compute;
    let mut sim = Sim::new(&setup, move |birth| {
        let start = Start { job: 1, host: Addr::Local(birth.node), boot: birth.boot };
        let member = Member::new(config, start, Task(birth.node), view.clone(), birth.now);
        Tasked { member, compute, free_at: Instant::ZERO, outbox: VecDeque::new() }
    })?;
    sim.keep_notes();
    for task in dead {
        sim.fault_at(Instant::ZERO + NOTICED / 2, Fault::crash_host(task.0));
    }
    sim.command_at(Instant::ZERO + NOTICED, 0, known.to_vec());
    let stable = |sim: &Sim<Tasked>| {
        let expected = job.size - dead.len() as u32;
        let cluster = sim.cluster();
        let mut views = cluster.processes().map(|(_, p)| p.member.view().map(|v| (v.id(), v.tree().len())));
        let first = views.next().flatten();
        first.is_some_and(|(_, len)| len == expected) && views.all(|v| v == first)
    };
    let mut step = job.patience.max(Duration::from_millis(1));
    while !stable(&sim) && sim.now() < Instant::ZERO + LONGEST {
        sim.run_for(step);
        step = step + step;
    }
    let times = |pick: fn(&Note) -> bool| sim.notes().iter().filter(move |n| pick(&n.2)).map(|n| n.0);
    let begun = times(|n| matches!(n, Note::Begun(_)));
    let took = match (begun.clone().next(), times(|n| matches!(n, Note::Settled(_))).next_back()) {
        (Some(first), Some(last)) => last.since(first),
        _ => Duration::ZERO,
    };
    Ok(Outcome { took, waves: begun.count() as u32, stable: stable(&sim) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latency::Latency;

    fn job(size: u32, arity: u32) -> Job {
        let network = Network { latency: Latency::Fixed { us: 4.6 }, ..Network::default() };
        Job { size, arity, network, compute: Duration::from_micros(2), patience: Duration::from_millis(5) }
    }

    /// PM-1: T_s = 2·L·(H − 1) + O_cp·H, where one latency holds for all and nobody waits.
    #[test]
    fn pm_1_a_wave_takes_what_the_base_model_says() {
        for (size, arity, height) in [(15, 2, 4), (1023, 2, 10), (341, 4, 5), (73, 8, 3)] {
            let outcome = hurt(&job(size, arity), &[Task(size - 1)], &[Task(size - 1)]).expect("a good job");
            let model = 2.0 * 4.6 * f64::from(height - 1) + 2.0 * f64::from(height);
            assert_eq!((outcome.waves, outcome.stable), (1, true));
            assert!((outcome.took.0 as f64 / 1e3 - model).abs() < 0.01, "{size}, {arity}: {:?}, {model}", outcome.took);
        }
    }

    /// RV-3: a dead task on each level that nobody knows of.
    #[test]
    fn rv_3_all_levels_are_found_in_one_wave() {
        let dead = [1, 4, 9, 20].map(Task);
        let outcome = hurt(&job(63, 2), &dead, &dead[3..]).expect("a good job");
        assert_eq!((outcome.waves, outcome.stable), (2, true));
    }
}
