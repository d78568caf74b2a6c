//! What people want: jobs, signals, ends, drained nodes, replicas elsewhere.
//!
//! What is refused changes nothing, and is told why in words that say what to do. A job that could never run on the nodes that are there is
//! refused at once; one for which there are just no free slots waits.

use super::job::{Job, Phase};
use super::life::KILLED;
use super::log::Log;
use super::policy::signal_bit;
use super::queue::{QUEUE_MAX, WANTED_BYTES_MAX, weight};
use super::summed::Summed;
use super::{Decision, JobId, Key, State};
use crate::manager::words::{Answer, Ask, Command, HOSTS_MAX, RANKS_MAX, SPEC_MAX, TEXT_MAX, Wanted};
use std::collections::BTreeSet;

/// The longest name of a job.
pub const NAME_MAX: usize = 64;
/// Signals that end a job which has not begun yet.
const ENDING: [i32; 5] = [1, 2, 3, 9, 15];

impl State {
    pub(super) fn on_asked(&mut self, from: Key, ask: &Ask, out: &mut Vec<Decision>) -> Answer {
        let done = match ask {
            Ask::Run(wanted) => match self.on_run(from, wanted) {
                Ok((job, name)) => return Answer::Taken { job, name },
                Err(why) => Err(why),
            },
            Ask::Signal { job, signal, uid } => self.on_signal(*job, *signal, *uid, out),
            Ask::End { job, why, uid } => self.on_end(*job, why, *uid, out),
            Ask::Drain { node, drained } => self.on_drain(node, *drained),
            Ask::Move { from, to } => self.on_move(from, to, out),
        };
        match done {
            Ok(()) => Answer::Done,
            Err(why) => Answer::Refused(super::log::cut(why, TEXT_MAX)),
        }
    }

    fn on_run(&mut self, home: Key, wanted: &Wanted) -> Result<(JobId, String), String> {
        self.check(wanted)?;
        self.could_run(wanted, &BTreeSet::new())?;
        let weight = weight(wanted);
        if self.jobs.len() >= QUEUE_MAX || self.index.bytes + weight > WANTED_BYTES_MAX {
            let jobs = self.jobs.len();
            return Err(format!(
                "{jobs} jobs wait or run, more are not kept: try again when some have ended (`phalanx job ls`)"
            ));
        }
        self.last_job += 1;
        let id = JobId(self.last_job);
        let name = wanted.name.clone().unwrap_or_else(|| self.name_for(id));
        let mut job = Job {
            id,
            name: name.clone(),
            wanted: wanted.clone().into(),
            weight,
            home,
            deserted: false,
            asked_ms: self.now_ms,
            deadline_ms: None,
            phase: Phase::Queued,
            attempt: 0,
            starts: 0,
            crew: Summed::default(),
            places: Summed::default(),
            former: Summed::default(),
            ranks: Summed::default(),
            live: 0,
            unready: 0,
            waiting: Summed::default(),
            lives: 0,
            spares: Summed::default(),
            unfit: BTreeSet::new(),
            signals: 0,
            status: 0,
            why: String::new(),
            log: Log::default(),
        };
        let (ranks, at, policy) = (wanted.ranks, self.name_of(&home), wanted.on_failure.name());
        job.log.say(self.now_ms, format!("user {} asks on {at} for {ranks} ranks, on failure {policy}", wanted.user.0));
        self.hold_home(&job);
        self.index.list_job(&job);
        self.jobs.insert(id, job);
        self.index.room = true;
        Ok((id, name))
    }

    /// What is wrong with a job, whatever there is.
    fn check(&self, wanted: &Wanted) -> Result<(), String> {
        let bound = |what: &str, n: u64, most: u64, advice: &str| match n <= most {
            true => Ok(()),
            false => Err(format!("{n} {what} were asked for, the most is {most}: {advice}")),
        };
        if wanted.ranks == 0 {
            return Err("0 ranks were asked for: ask for 1 or more".into());
        }
        bound("ranks", wanted.ranks.into(), RANKS_MAX.into(), "use fewer")?;
        bound("spares", wanted.spares.into(), RANKS_MAX.into(), "use fewer")?;
        bound("hosts", wanted.hosts.len() as u64, HOSTS_MAX as u64, "name fewer")?;
        bound(
            "bytes of programs and environments",
            wanted.spec.len() as u64,
            SPEC_MAX as u64,
            "forward less of the environment",
        )?;
        if wanted.per_node == Some(0) {
            return Err("at most 0 ranks on each node were asked for: allow 1 or more".into());
        }
        if let Some((name, _)) = wanted.hosts.iter().find(|(_, slots)| *slots == Some(0)) {
            return Err(format!("0 ranks were asked of {name}: leave it out, or ask for 1 or more"));
        }
        if wanted.timeout_ms == Some(0) {
            return Err("a time of 0 was asked for: ask for more, or for none".into());
        }
        let Some(name) = &wanted.name else { return Ok(()) };
        let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty()
            || name.len() > NAME_MAX
            || !name.chars().all(fits)
            || name.bytes().all(|b| b.is_ascii_digit())
        {
            return Err(format!(
                "a job cannot be called {name:?}: use up to {NAME_MAX} letters, digits, `.`, `_` and `-`, not digits alone"
            ));
        }
        match self.index.runs.get(name) {
            Some(job) => Err(format!("job {} is called {name} and is not over: take another name, or wait", job.0)),
            None => Ok(()),
        }
    }

    fn name_for(&self, id: JobId) -> String {
        let mut name = format!("run-{}", id.0);
        while self.index.runs.contains_key(&name) {
            name.push('x');
        }
        name
    }

    fn on_signal(&mut self, id: JobId, signal: i32, uid: u32, out: &mut Vec<Decision>) -> Result<(), String> {
        let phase = self.owned(id, uid)?;
        let Some(bit) = signal_bit(signal) else {
            return Err(format!("there is no signal {signal}: they go from 1 to 64"));
        };
        match phase {
            Phase::Running => {
                self.with_job(id, out, |state, job, at_ms, out| {
                    job.signals |= bit;
                    job.log.say(at_ms, format!("user {uid} sends signal {signal}"));
                    let to = job.places.iter().filter(|(_, place)| job.crew.get(place).is_some_and(|m| m.live > 0));
                    let to: Vec<Key> = to.map(|(key, _)| *key).collect();
                    if !to.is_empty() {
                        out.push(Decision::Command { to, command: Command::Signal { attempt: job.current(), signal } });
                    }
                    // Those that wait to start again never will, when all were to end.
                    if ENDING.contains(&signal) && !job.waiting.is_empty() {
                        job.waiting = Summed::default();
                        state.settle(job, out);
                    }
                });
                Ok(())
            }
            Phase::Queued | Phase::Preparing { .. } | Phase::Stopping { again: true } if ENDING.contains(&signal) => {
                self.end_job(id, &format!("signal {signal} of user {uid} before it ran"), 128 + signal, out);
                Ok(())
            }
            Phase::Stopping { again: false } | Phase::Over => Ok(()),
            _ => Err(format!("job {} does not run yet: signal {signal} would reach nobody", id.0)),
        }
    }

    fn on_end(&mut self, id: JobId, why: &str, uid: u32, out: &mut Vec<Decision>) -> Result<(), String> {
        self.owned(id, uid)?;
        let why = if why.is_empty() { format!("user {uid} ended it") } else { why.to_owned() };
        self.end_job(id, &why, KILLED, out);
        Ok(())
    }

    fn end_job(&mut self, id: JobId, why: &str, status: i32, out: &mut Vec<Decision>) {
        self.with_job(id, out, |state, job, _, out| match job.phase {
            Phase::Queued => state.finish(job, status, why.to_owned(), out),
            Phase::Stopping { again: false } | Phase::Over => {}
            _ => state.stop(job, status, why, false, out),
        });
    }

    /// How far a job is that this user may touch.
    fn owned(&self, id: JobId, uid: u32) -> Result<Phase, String> {
        let owner =
            self.jobs.get(&id).map(|job| job.wanted.user.0).or_else(|| self.over.get(&id).map(|old| old.user()));
        match owner {
            None => Err(format!("there is no job {}: `phalanx job ls` lists them", id.0)),
            Some(owner) if uid != 0 && uid != owner => {
                Err(format!("job {} is user {owner}'s: only they and root may do that", id.0))
            }
            Some(_) => Ok(self.jobs.get(&id).map_or(Phase::Over, |job| job.phase)),
        }
    }
}
