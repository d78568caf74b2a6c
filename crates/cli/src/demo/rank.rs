//! The program that the demo runs: each rank counts the primes of its share, and a rank on another node keeps how far it is.
//!
//! Nothing is on a disk. A rank that starts again asks its keeper where it was, and goes on from there; if that one does not know either,
//! it begins anew, which costs time and nothing else. At the end all gather what they found, again if somebody was missing.

#[path = "../../../client/examples/primes/count.rs"]
mod count;

pub(super) use count::count_at_once;

use count::Sieve;
use phalanx_client::Error;
use phalanx_client::api::jobs::View;
use phalanx_client::jobs::{Event, Task};
use serde::{Deserialize, Serialize};
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

/// Steps of each share, with a breath after each: the machine is not busy while it is measured.
const STEPS: u64 = 128;
const BREATH: Duration = Duration::from_millis(40);
/// So many ranks further is the one that keeps for us: the next one may be on our node, and dies with us.
const KEEPER: u32 = 2;

/// One rank of the demo's program, as `phalanx demo` has it run
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Primes below this are counted
    limit: u64,
}

/// What a rank writes, a line each.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Line {
    /// It is in a view of the job.
    View {
        /// When it was told, in microseconds since 1970.
        at_us: u64,
        /// Grows from view to view.
        number: u64,
        /// Ranks that live.
        ranks: Vec<u32>,
    },
    /// It was started again, and its keeper knew how much of its share was done, in percent.
    Resumed(u64),
    /// All are done: so many primes.
    Primes(u64),
}

/// How far a share is.
#[derive(Clone, Copy, Debug)]
struct Progress {
    at: u64,
    found: u64,
}

/// What ranks say to each other.
#[derive(Clone, Copy, Debug)]
enum Word {
    /// Keep this for me.
    Keep(Progress),
    /// Where was I?
    Ask,
    /// You were here.
    Kept(Progress),
}

impl Word {
    fn bytes(self) -> Vec<u8> {
        let (kind, Progress { at, found }) = match self {
            Self::Keep(progress) => (0, progress),
            Self::Ask => (1, Progress { at: 0, found: 0 }),
            Self::Kept(progress) => (2, progress),
        };
        [&[kind][..], &at.to_le_bytes(), &found.to_le_bytes()].concat()
    }

    fn parse(bytes: &[u8]) -> Option<Self> {
        let (kind, rest) = bytes.split_first()?;
        let (at, found) = rest.split_first_chunk()?;
        let progress = Progress { at: u64::from_le_bytes(*at), found: u64::from_le_bytes(found.try_into().ok()?) };
        match kind {
            0 => Some(Self::Keep(progress)),
            1 => Some(Self::Ask),
            2 => Some(Self::Kept(progress)),
            _ => None,
        }
    }
}

/// Microseconds since 1970: what ranks and the demo tell each other is of one clock.
pub(super) fn now_us() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| u64::try_from(d.as_micros()).unwrap_or(u64::MAX))
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|e| e.to_string())?;
    runtime.block_on(work(args.limit)).map_err(|e| e.to_string())?;
    Ok(ExitCode::SUCCESS)
}

async fn work(limit: u64) -> Result<(), Error> {
    // Before anybody knows that we are here: who is not ready for a signal dies of it.
    let hurry = signal(SignalKind::user_defined1()).map_err(|e| Error::Environment(e.to_string()))?;
    let task = Task::from_environment().await?;
    let view = task.view();
    let rank = view.rank.ok_or_else(|| Error::Environment("a spare has no share".to_owned()))?;
    let (share, size) = (u64::from(rank), u64::from(view.size));
    let is_new = std::env::var("PHALANX_LIFE").is_ok_and(|life| life != "0");
    let begin = limit * share / size;
    let mut rank = Rank {
        task,
        rank,
        begin,
        end: limit * (share + 1) / size,
        mine: Progress { at: begin, found: 0 },
        kept: None,
        asks: is_new,
        sieve: Sieve::below(limit),
    };
    rank.count(hurry).await?;
    let primes = rank.sum().await?;
    if rank.rank == 0 {
        say(&Line::Primes(primes));
    }
    Ok(())
}

struct Rank {
    task: Task,
    rank: u32,
    begin: u64,
    end: u64,
    mine: Progress,
    /// How far the rank is that we keep for.
    kept: Option<Progress>,
    /// We do not know yet where we were.
    asks: bool,
    sieve: Sieve,
}

impl Rank {
    /// Counts, and does whatever else comes meanwhile.
    async fn count(&mut self, mut hurry: tokio::signal::unix::Signal) -> Result<(), Error> {
        let step = (self.end - self.begin).div_ceil(STEPS);
        let (mut next, mut is_hurried) = (Instant::now(), false);
        // Who is done early still has a share to keep, and views to tell of.
        while self.mine.at < self.end || !is_hurried {
            tokio::select! {
                biased;
                event = self.task.next() => self.on(event?).await?,
                _ = hurry.recv(), if !is_hurried => (is_hurried, next) = (true, Instant::now()),
                () = tokio::time::sleep_until(next), if self.mine.at < self.end => {
                    let to = self.end.min(self.mine.at + step);
                    let found = self.mine.found + self.sieve.count(self.mine.at, to);
                    self.mine = Progress { at: to, found };
                    self.tell(self.keeper(), Word::Keep(self.mine)).await?;
                    if !is_hurried {
                        next = Instant::now() + BREATH;
                    }
                }
            }
        }
        Ok(())
    }

    async fn on(&mut self, event: Event) -> Result<(), Error> {
        match event {
            Event::View(view) => {
                let ranks = (0..view.size).filter(|&rank| view.task_of(rank).is_some()).collect();
                say(&Line::View { at_us: now_us(), number: view.view.number, ranks });
                if self.asks {
                    self.tell(self.keeper(), Word::Ask).await?;
                }
            }
            Event::Message { from, body, .. } => match Word::parse(&body) {
                // One that starts again says less at first than it said before.
                Some(Word::Keep(progress)) if self.is(from, self.kept_for()) => {
                    self.kept = self.kept.filter(|kept| kept.at > progress.at).or(Some(progress));
                }
                Some(Word::Ask) if self.is(from, self.kept_for()) => {
                    if let Some(kept) = self.kept {
                        self.tell(self.kept_for(), Word::Kept(kept)).await?;
                    }
                }
                Some(Word::Kept(progress)) if self.asks && progress.at > self.mine.at => {
                    (self.mine, self.asks) = (progress, false);
                    say(&Line::Resumed((progress.at - self.begin) * 100 / (self.end - self.begin)));
                }
                _ => {}
            },
            Event::Excluded { .. } => self.task.rejoin().await?,
            Event::Aborted => return Err(Error::Answer("most of the job cannot be reached".to_owned())),
            _ => {}
        }
        Ok(())
    }

    /// What all have found, once all were there to say it.
    async fn sum(&mut self) -> Result<u64, Error> {
        loop {
            let size = self.task.wait_full().await?.size as usize;
            let all = self.task.gather(&self.mine.found.to_le_bytes()).await?;
            if all.len() == size {
                let counts = all.iter().filter_map(|(_, bytes)| bytes.as_slice().try_into().ok());
                return Ok(counts.map(u64::from_le_bytes).sum());
            }
        }
    }

    /// Says something to a rank. Who is not there is told nothing, and neither is anybody in a view that is over: the next step says it again.
    async fn tell(&self, rank: u32, word: Word) -> Result<(), Error> {
        let Some(task) = self.view().task_of(rank) else { return Ok(()) };
        match self.task.send(task, &word.bytes()).await {
            Ok(()) | Err(Error::Refused { .. }) => Ok(()),
            Err(why) => Err(why),
        }
    }

    fn view(&self) -> &View {
        self.task.view()
    }

    fn is(&self, task: u32, rank: u32) -> bool {
        self.view().task_of(rank) == Some(task)
    }

    fn keeper(&self) -> u32 {
        (self.rank + KEEPER) % self.view().size
    }

    fn kept_for(&self) -> u32 {
        (self.rank + self.view().size - KEEPER) % self.view().size
    }
}

/// Who listens may be gone.
fn say(line: &Line) {
    crate::ask::print_json(line);
}

/// The program, as it is asked for; it needs nothing of this environment.
pub(super) fn program(ranks: u32, limit: u64, wdir: String) -> std::io::Result<phalanx_client::api::run::Program> {
    let binary = std::env::current_exe()?.to_string_lossy().into_owned();
    let argv = vec![binary, "demo-rank".to_owned(), limit.to_string()];
    Ok(phalanx_client::api::run::Program { argv, ranks, env: Vec::new(), wdir })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_were_said() {
        for word in
            [Word::Keep(Progress { at: 7, found: 4 }), Word::Ask, Word::Kept(Progress { at: 1 << 40, found: 9 })]
        {
            let read = Word::parse(&word.bytes());
            assert_eq!(format!("{read:?}"), format!("{:?}", Some(word)));
        }
        assert!(Word::parse(b"").is_none() && Word::parse(&[3; 17]).is_none() && Word::parse(&[0; 16]).is_none());
    }
}
