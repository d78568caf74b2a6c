//! Home's side of a job's input and output: what all ranks write goes to the console, what is typed there goes to rank 0.
//!
//! All that the console is told goes through one queue, so a rank's end comes after its last line. What is not taken yet is owed to the host
//! it came from, which forwards no more than a [`WINDOW`] meanwhile. Before the console has come, everything waits; when it is gone,
//! nothing does.

use super::desk::{Caller, Desk};
use phalanx_api::jobs;
use phalanx_api::run::{RankEnd, Stream, ToConsole, output_frame};
use phalanx_core::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;
use tokio::sync::OwnedSemaphorePermit;

/// Bytes of output that one shepherd has under way to the console.
pub(super) const WINDOW: usize = 256 << 10;
/// Bytes of input that are under way to rank 0.
const INPUT_WINDOW: u64 = 128 << 10;
/// Frames that are given to the console's socket at once.
const AHEAD: usize = 64;
/// A console comes within this time, or nobody waits for the job.
const PATIENCE: Duration = Duration::from_secs(10);

/// A console that came before the daemon said that one may, and what was typed there.
pub(super) struct Early {
    pub(super) caller: Caller,
    pub(super) typed: Vec<(Vec<u8>, Option<OwnedSemaphorePermit>)>,
}

/// Something for the console.
struct Item {
    frame: Vec<u8>,
    /// Whose output it is, and how much of it.
    owed: Option<(SocketAddr, u64)>,
}

/// Where rank 0 is, and what goes there.
#[derive(Default)]
struct Input {
    /// What was typed, and the right to type more.
    waiting: VecDeque<(Vec<u8>, Option<OwnedSemaphorePermit>)>,
    /// There is no more.
    ended: bool,
    /// The host of rank 0 was told so.
    end_told: bool,
    /// Bytes on their way there.
    under_way: u64,
    to: Option<SocketAddr>,
}

/// What is to be passed on.
pub(super) enum Feed {
    /// To rank 0.
    Bytes(SocketAddr, Vec<u8>),
    /// There is no more.
    End(SocketAddr),
}

/// The console of a job, and what waits for it.
pub(super) struct Console {
    caller: Option<Caller>,
    /// Since when it is awaited.
    since: Instant,
    is_gone: bool,
    queue: VecDeque<Item>,
    given: VecDeque<Option<(SocketAddr, u64)>>,
    /// What hosts may forward anew.
    taken: BTreeMap<SocketAddr, u64>,
    input: Input,
    /// Ranks that were started in this attempt.
    started: BTreeSet<u32>,
    /// Those of them of which it was said that they ended.
    ended: BTreeSet<u32>,
    /// The attempt of which it was said that it runs.
    running: Option<u32>,
    /// Hosts that may have output still.
    pub(super) hosts: BTreeSet<SocketAddr>,
    over: Option<i32>,
    /// It was told that the job is over.
    is_told: bool,
}

impl Console {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            caller: None,
            since: now,
            is_gone: false,
            queue: VecDeque::new(),
            given: VecDeque::new(),
            taken: BTreeMap::new(),
            input: Input::default(),
            started: BTreeSet::new(),
            ended: BTreeSet::new(),
            running: None,
            hosts: BTreeSet::new(),
            over: None,
            is_told: false,
        }
    }

    /// Another attempt begins: rank 0 reads what the one before has not.
    pub(super) fn begin(&mut self) {
        self.started.clear();
        self.ended.clear();
        (self.input.to, self.input.under_way, self.input.end_told) = (None, 0, false);
    }

    /// The console is there. False when another one was.
    pub(super) fn attach(&mut self, caller: Caller, desk: &mut Desk) -> bool {
        if self.caller.is_some() || self.is_gone {
            return false;
        }
        self.caller = Some(caller);
        desk.count(caller);
        self.pump(desk);
        true
    }

    pub(super) fn is_attended(&self) -> bool {
        self.caller.is_some()
    }

    pub(super) fn is(&self, caller: Caller) -> bool {
        self.caller == Some(caller)
    }

    /// Its connection ended. True when nobody waits for the job any more, though it is not over.
    pub(super) fn on_gone(&mut self) -> bool {
        let missed_the_end = !self.is_told || !self.queue.is_empty();
        self.desert();
        missed_the_end
    }

    fn desert(&mut self) {
        (self.caller, self.is_gone, self.input.ended) = (None, true, true);
        self.input.waiting.clear();
        let owed = self.given.drain(..).chain(self.queue.drain(..).map(|item| item.owed)).flatten();
        for (host, bytes) in owed {
            *self.taken.entry(host).or_default() += bytes;
        }
    }

    pub(super) fn is_deserted(&self) -> bool {
        self.is_gone
    }

    /// When [`Console::expire`] has something to do.
    pub(super) fn deadline(&self) -> Instant {
        if self.caller.is_some() || self.is_gone { Instant::NEVER } else { self.since + PATIENCE }
    }

    /// True when a console that never came is not awaited any more.
    pub(super) fn expire(&mut self, now: Instant) -> bool {
        let is_late = self.deadline() <= now;
        if is_late {
            self.desert();
        }
        is_late
    }

    fn push(&mut self, frame: Vec<u8>, owed: Option<(SocketAddr, u64)>, desk: &mut Desk) {
        if self.is_gone {
            if let Some((host, bytes)) = owed {
                *self.taken.entry(host).or_default() += bytes;
            }
            return;
        }
        self.queue.push_back(Item { frame, owed });
        self.pump(desk);
    }

    fn pump(&mut self, desk: &mut Desk) {
        let Some(caller) = self.caller else { return };
        while self.given.len() < AHEAD {
            let Some(Item { frame, owed }) = self.queue.pop_front() else { return };
            desk.send(caller, frame);
            self.given.push_back(owed);
        }
    }

    /// The console was written one frame more.
    pub(super) fn on_took(&mut self, desk: &mut Desk) {
        if let Some((host, bytes)) = self.given.pop_front().flatten() {
            *self.taken.entry(host).or_default() += bytes;
        }
        self.pump(desk);
    }

    /// What hosts may forward anew: told when it is worth a frame, or nothing else is under way.
    pub(super) fn taken(&mut self) -> Vec<(SocketAddr, u64)> {
        let is_idle = self.queue.is_empty() && self.given.is_empty();
        let worth = |bytes: u64| bytes > 0 && (is_idle || bytes >= WINDOW as u64 / 4);
        let told: Vec<_> = self.taken.iter().map(|(&host, &bytes)| (host, bytes)).filter(|t| worth(t.1)).collect();
        told.iter().for_each(|(host, _)| _ = self.taken.remove(host));
        told
    }

    pub(super) fn say(&mut self, words: &ToConsole, desk: &mut Desk) {
        self.push(jobs::words(&serde_json::to_vec(words).unwrap_or_default()), None, desk);
    }

    pub(super) fn on_output(&mut self, host: SocketAddr, rank: u32, stream: Stream, bytes: &[u8], desk: &mut Desk) {
        self.hosts.insert(host);
        self.push(output_frame(rank, stream, bytes), Some((host, bytes.len() as u64)), desk);
    }

    pub(super) fn on_ended(&mut self, rank: u32, end: RankEnd, desk: &mut Desk) {
        self.ended.insert(rank);
        self.say(&ToConsole::Ended { rank, end }, desk);
    }

    /// A host is gone with ranks whose ends it has not said.
    pub(super) fn on_lost(&mut self, ranks: &[u32], desk: &mut Desk) {
        for &rank in ranks {
            if self.started.contains(&rank) && !self.ended.contains(&rank) {
                self.on_ended(rank, RankEnd::Lost, desk);
            }
        }
    }

    /// Ranks were started on a host: the first time, or again.
    pub(super) fn on_started(
        &mut self,
        host: SocketAddr,
        attempt: u32,
        ranks: &[u32],
        nodes: &[String],
        desk: &mut Desk,
    ) {
        self.hosts.insert(host);
        self.started.extend(ranks);
        self.ended.retain(|rank| !ranks.contains(rank));
        if ranks.contains(&0) {
            (self.input.to, self.input.under_way, self.input.end_told) = (Some(host), 0, false);
        }
        if self.started.len() == nodes.len() && self.running != Some(attempt) {
            self.running = Some(attempt);
            self.say(&ToConsole::Running { attempt, nodes: nodes.to_vec() }, desk);
        }
    }

    /// Something was typed; nothing at its end.
    pub(super) fn on_input(&mut self, bytes: Vec<u8>, place: Option<OwnedSemaphorePermit>) {
        if bytes.is_empty() {
            self.input.ended = true;
        } else {
            self.input.waiting.push_back((bytes, place));
        }
    }

    /// Rank 0 has read so much more.
    pub(super) fn on_fed(&mut self, bytes: u64) {
        self.input.under_way = self.input.under_way.saturating_sub(bytes);
    }

    /// What is to go to rank 0 now.
    pub(super) fn feed(&mut self, desk: &mut Desk) -> Vec<Feed> {
        let mut feeds = Vec::new();
        let Some(to) = self.input.to else { return feeds };
        while self.input.under_way < INPUT_WINDOW {
            let Some((bytes, _)) = self.input.waiting.pop_front() else { break };
            self.input.under_way += bytes.len() as u64;
            self.say(&ToConsole::Fed { bytes: bytes.len() as u64 }, desk);
            feeds.push(Feed::Bytes(to, bytes));
        }
        if self.input.ended && self.input.waiting.is_empty() && !self.input.end_told {
            self.input.end_told = true;
            feeds.push(Feed::End(to));
        }
        feeds
    }

    /// The job is over; said to the console when all hosts have said what their ranks wrote.
    pub(super) fn over(&mut self, status: i32) {
        self.over = Some(status);
    }

    /// True when everything was said, or nobody is there to be told.
    pub(super) fn is_done(&mut self, desk: &mut Desk) -> bool {
        let Some(status) = self.over.filter(|_| self.hosts.is_empty() || self.is_gone) else { return false };
        if !std::mem::replace(&mut self.is_told, true) {
            self.say(&ToConsole::Over { status }, desk);
        }
        self.is_gone || (self.caller.is_some() && self.queue.is_empty() && self.given.is_empty())
    }
}
