//! Jobs that ranks here have spawned (`MPI_Comm_spawn`): this shepherd is their console, and what they write comes out as if the rank that
//! spawned them had written it.
//!
//! ```text
//!   rank ──▶ on_spawn ──Spawn──▶ daemon ──▶ manager
//!   rank ◀── on_answer ◀─ tend_spawned ◀── a thread at the job's console ◀──Attend── daemon
//! ```
//! The rank is answered once all ranks of the job run, or with why they never will. A job that was spawned ends with its console, so with
//! an attempt of its parent that is stopped or fails; a parent that ends well is over once they are.

use super::Shepherd;
use super::pmi::{Answer, Spawn};
use super::spawn::{program_of, unblocked};
use super::words::ToDaemon;
use crate::platform::Waker;
use phalanx_api::jobs::{self, WORDS, frame_length};
use phalanx_api::run::{
    HostSlots, OUTPUT, Program, RunWanted, Stream, ToConsole, ToConsoleShepherd, input_frame, output,
};
use std::collections::BTreeMap;
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::mpsc;

/// Jobs of ranks here that live at once. More are refused.
const SPAWNED_MAX: usize = 64;
/// By this an MPI library knows that somebody waits for it.
const MARK: (&str, &str) = ("PMI_SPAWNED", "1");

/// What the thread at a job's console tells.
enum Told {
    Running,
    Note(String),
    /// With this status; none when its shepherd is gone.
    Over(Option<i32>),
}

/// A job that a rank here has spawned.
pub(super) struct Spawned {
    /// Which rank.
    pub(super) rank: u32,
    job: String,
    line: UnixStream,
    told: mpsc::Receiver<Told>,
    /// Its output and errors, until they are read to their end.
    pub(super) pipes: [Option<PipeReader>; 2],
    /// A pipe has something for which home has no room.
    pub(super) is_held_up: bool,
    is_answered: bool,
    is_over: bool,
    /// What its console was told last.
    why: String,
}

impl Spawned {
    fn attend(rank: u32, job: String, socket: &str, waker: Waker) -> io::Result<Self> {
        let mut line = UnixStream::connect(socket)?;
        line.write_all(&jobs::words(&serde_json::to_vec(&ToConsoleShepherd::Attach)?))?;
        // Its ranks have nobody who types.
        line.write_all(&input_frame(b""))?;
        let (out, err) = (io::pipe()?, io::pipe()?);
        let pipes = [Some(unblocked(out.0)?), Some(unblocked(err.0)?)];
        let (tell, told) = mpsc::channel();
        let from = line.try_clone()?;
        std::thread::Builder::new().name("spawned".into()).spawn(move || {
            listen(from, [out.1, err.1], |word| {
                // Nobody asks any more once the attempt was stopped.
                let _ = tell.send(word);
                waker.wake();
            });
        })?;
        let why = String::new();
        Ok(Self { rank, job, line, told, pipes, is_held_up: false, is_answered: false, is_over: false, why })
    }
}

impl Drop for Spawned {
    fn drop(&mut self) {
        // Whoever was told that it is over has closed it.
        let _ = self.line.shutdown(Shutdown::Both);
    }
}

/// Passes on what a job's shepherd says. A pipe that nobody reads makes the job's ranks wait.
fn listen(mut from: UnixStream, [mut out, mut err]: [PipeWriter; 2], tell: impl Fn(Told)) {
    let status = loop {
        let Ok(frame) = frame(&mut from) else { break None };
        match frame.split_first() {
            Some((&OUTPUT, body)) => {
                // What nobody reads is dropped.
                let _ = match output(body) {
                    Some((_, Stream::Out, bytes)) => out.write_all(bytes),
                    Some((_, Stream::Err, bytes)) => err.write_all(bytes),
                    None => Ok(()),
                };
            }
            Some((&WORDS, body)) => match serde_json::from_slice(body) {
                Ok(ToConsole::Running { .. }) => tell(Told::Running),
                Ok(ToConsole::Note { text }) => tell(Told::Note(text)),
                Ok(ToConsole::Over { status }) => break Some(status),
                _ => {}
            },
            _ => {}
        }
    };
    drop((out, err));
    tell(Told::Over(status));
}

fn frame(from: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut head = [0; 4];
    from.read_exact(&mut head)?;
    let mut frame = vec![0; frame_length(head).ok_or(io::ErrorKind::InvalidData)?];
    from.read_exact(&mut frame)?;
    Ok(frame)
}

/// The job that a call means, and what its ranks find in their key-value space. `like` is what the rank runs itself.
fn wanted(programs: Vec<Spawn>, like: &Program) -> (RunWanted, Vec<(String, String)>) {
    let hint = |spawn: &Spawn, key: &str| spawn.hints.iter().find(|(k, _)| k == key).map(|(_, value)| value.clone());
    let env: BTreeMap<String, String> = like.env.iter().cloned().chain([(MARK.0.into(), MARK.1.into())]).collect();
    let hosts = programs.iter().filter_map(|p| hint(p, "host")).flat_map(|names| {
        let nodes: Vec<String> = names.split(',').filter(|n| !n.is_empty()).map(str::to_owned).collect();
        nodes.into_iter().map(|node| HostSlots { node, slots: None })
    });
    let hosts = hosts.collect();
    let puts = programs.iter().flat_map(|p| p.puts.clone()).collect::<BTreeMap<_, _>>().into_iter().collect();
    let program = |spawn: Spawn| Program {
        wdir: hint(&spawn, "wdir").unwrap_or_else(|| like.wdir.clone()),
        argv: std::iter::once(spawn.program).chain(spawn.args).collect(),
        ranks: spawn.ranks,
        env: env.clone().into_iter().collect(),
    };
    // Who spawns waits for them, so they must not wait for slots.
    let job = RunWanted { hosts, oversubscribe: true, ..RunWanted::of(programs.into_iter().map(program).collect()) };
    (job, puts)
}

impl Shepherd {
    /// A rank wants a job of its own.
    pub(super) fn on_spawn(&mut self, rank: u32, programs: Vec<Spawn>) {
        let Some(work) = &self.work else { return };
        let like = program_of(&work.work.programs, rank).and_then(|at| work.work.programs.get(at));
        let refused = match (like, self.daemons.last()) {
            _ if work.ranks.spawned.len() >= SPAWNED_MAX => {
                format!("ranks of this node have spawned {SPAWNED_MAX} jobs that live: let some of them end first")
            }
            (_, None) => "the daemon of this node is not there".to_owned(),
            (None, _) => "no program is known".to_owned(),
            (Some(like), Some(&daemon)) => {
                let (wanted, puts) = wanted(programs, like);
                let words = ToDaemon::Spawn { rank, wanted, puts, user: work.work.user };
                return self.desk.say(daemon, &words);
            }
        };
        self.on_answer(rank, Answer::Refused { why: refused });
    }

    /// The job was taken.
    pub(super) fn on_attend(&mut self, rank: u32, job: String, socket: &str) {
        let waker = self.driver.waker();
        // One that was stopped meanwhile does not come: the job is not waited for, and ends.
        let Some(work) = self.work.as_mut().filter(|w| !w.is_ending()) else { return };
        match Spawned::attend(rank, job, socket, waker) {
            Ok(spawned) => work.ranks.add_spawned(spawned),
            Err(e) => {
                let why = format!("its console cannot be reached: {e}");
                self.on_answer(rank, Answer::Refused { why });
            }
        }
    }

    /// What jobs that were spawned have told.
    pub(super) fn tend_spawned(&mut self) {
        let mut answers = Vec::new();
        let mut last_words = Vec::new();
        let Some(work) = &mut self.work else { return };
        for spawned in work.ranks.spawned.values_mut() {
            while let Ok(told) = spawned.told.try_recv() {
                match told {
                    Told::Note(text) => spawned.why = text,
                    Told::Running => {
                        if !std::mem::replace(&mut spawned.is_answered, true) {
                            answers.push((spawned.rank, Answer::Done));
                        }
                    }
                    Told::Over(status) => {
                        spawned.is_over = true;
                        let status = status.map_or("without a word".to_owned(), |s| format!("with status {s}"));
                        let because = if spawned.why.is_empty() { String::new() } else { format!(": {}", spawned.why) };
                        let why = format!("job {} ended {status}{because}", spawned.job);
                        if !std::mem::replace(&mut spawned.is_answered, true) {
                            answers.push((spawned.rank, Answer::Refused { why }));
                        } else if status != "with status 0" {
                            last_words.push((spawned.rank, format!("phalanx: rank {} spawned: {why}\n", spawned.rank)));
                        }
                    }
                }
            }
        }
        work.ranks.spawned.retain(|_, spawned| !spawned.is_over || spawned.pipes.iter().any(Option::is_some));
        answers.into_iter().for_each(|(rank, answer)| self.on_answer(rank, answer));
        last_words.into_iter().for_each(|(rank, words)| self.say_output(rank, Stream::Err, words.as_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spawned_job_is_like_the_rank_that_spawned_it() {
        let env = vec![("HOME".to_owned(), "/home/ann".to_owned())];
        let like = Program { argv: vec!["solve".into()], ranks: 9, env, wdir: "/tmp".into() };
        let pair = |k: &str, v: &str| (k.to_owned(), v.to_owned());
        let spawn = |nth, program: &str, hints| Spawn {
            ranks: nth,
            program: program.to_owned(),
            args: vec!["-v".into()],
            of: 2,
            nth,
            hints,
            puts: vec![pair("PARENT_ROOT_PORT_NAME", "tag#0$")],
        };
        let hints = vec![pair("wdir", "/var"), pair("host", "n1,n2"), pair("soft", "1:4")];
        let (job, puts) = wanted(vec![spawn(1, "a", Vec::new()), spawn(2, "b", hints)], &like);
        assert_eq!((job.ranks(), puts), (3, vec![pair("PARENT_ROOT_PORT_NAME", "tag#0$")]));
        assert!(job.oversubscribe && job.name.is_none());
        assert_eq!(job.hosts.iter().map(|h| &*h.node).collect::<Vec<_>>(), ["n1", "n2"]);
        let env = vec![pair("HOME", "/home/ann"), pair("PMI_SPAWNED", "1")];
        let program = |name: &str, ranks, wdir: &str| Program {
            argv: vec![name.into(), "-v".into()],
            ranks,
            env: env.clone(),
            wdir: wdir.into(),
        };
        assert_eq!(job.programs, [program("a", 1, "/tmp"), program("b", 2, "/var")]);
    }

    /// What the shepherd of a job says comes through pipes, and its end is told when all of it is there.
    #[test]
    fn what_a_job_says_is_passed_on() {
        let (mut theirs, ours) = UnixStream::pair().unwrap();
        let say = |words: &ToConsole| jobs::words(&serde_json::to_vec(words).unwrap());
        let mut frames = say(&ToConsole::Running { attempt: 0, nodes: Vec::new() });
        frames.extend(phalanx_api::run::output_frame(1, Stream::Out, b"hello"));
        frames.extend(phalanx_api::run::output_frame(0, Stream::Err, b"oops"));
        frames.extend(say(&ToConsole::Over { status: 3 }));
        theirs.write_all(&frames).unwrap();
        let (out, err) = (io::pipe().unwrap(), io::pipe().unwrap());
        let (tell, told) = mpsc::channel();
        listen(ours, [out.1, err.1], |word| tell.send(word).unwrap());
        let text = |mut pipe: PipeReader| {
            let mut text = String::new();
            pipe.read_to_string(&mut text).unwrap();
            text
        };
        assert_eq!((text(out.0), text(err.0)), ("hello".to_owned(), "oops".to_owned()));
        let told: Vec<Told> = told.try_iter().collect();
        assert!(matches!(told[..], [Told::Running, Told::Over(Some(3))]));
    }
}
