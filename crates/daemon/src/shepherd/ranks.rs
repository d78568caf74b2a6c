//! The ranks of a job on this node: processes, their pipes, and how they end (CM-2).
//!
//! A rank is its process: its seat in the job's view is taken before it starts and given up when it ends, whether it ever speaks to the
//! shepherd or not. What it wrote last is read to the end; then home is told that it ended, and the manager long before. Of a rank that links
//! the client the view knows earlier still, by its [notice](super::notice).

use super::Shepherd;
use super::console::WINDOW;
use super::frames::{self, Words};
use super::notice::{Notice, Notices, Page};
use super::spawn::Started;
use super::spawned::Spawned;
use super::sweep;
use super::talk::Talk;
use super::watch::{For, Ready, Watch};
use super::words::ToDaemon;
use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;
use phalanx_api::run::{RankEnd, Stream};
use phalanx_core::{Duration, Instant};
use phalanx_protocol::company::Seat;
use std::collections::{BTreeMap, VecDeque};
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::sync::Arc;

/// Bytes of output in one frame.
const PIECE: usize = 16 << 10;
/// Pieces that are read of one pipe before another one has its turn.
const TURNS: usize = 4;
/// A pipe that somebody else holds when its rank has ended is read so much longer.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Who ended well is let out of the view after this time: often all end at once, and the view with them.
const LEAVES_AFTER: Duration = Duration::from_millis(200);

/// Bits of a mark that say which file of a rank it is.
const FILES: u64 = 3;
const OUT: u64 = 0;
const ERR: u64 = 1;
const INPUT: u64 = 2;
const TALK: u64 = 3;
const SPAWNED_OUT: u64 = 4;
const SPAWNED_ERR: u64 = 5;

/// Where a rank reads from.
struct Feed {
    pipe: PipeWriter,
    waiting: VecDeque<u8>,
    ended: bool,
}

/// A rank that was started here.
pub(super) struct Rank {
    pub(super) attempt: u32,
    pub(super) rank: u32,
    pub(super) life: u32,
    /// Its seat in the view, until it is given up.
    pub(super) seat: Option<Seat>,
    /// Its process, which is also its group. None when it never started.
    pub(super) pid: Option<Pid>,
    pub(super) end: Option<RankEnd>,
    /// It spoke MPI and had not finalised.
    pub(super) aborted: bool,
    /// It called `MPI_Abort` with this status.
    pub(super) aborts_with: Option<i32>,
    /// Our end of the socket of its MPI library.
    pub(super) talk: Option<Talk>,
    /// What it shares with us, until it has ended.
    page: Option<Arc<Page>>,
    /// The daemon was told of its end.
    is_told: bool,
    /// When its seat is given up.
    leaves_at: Option<Instant>,
    /// Standard output and standard error, until they are read to their end.
    pipes: [Option<PipeReader>; 2],
    /// A pipe has something for which home has no room.
    is_held_up: bool,
    /// Until when they are read at most.
    closes_at: Option<Instant>,
    /// Home was told of its end.
    is_closed: bool,
    input: Option<Feed>,
}

/// All ranks of a job on this node, those of earlier attempts too while home has not taken what they wrote.
pub(super) struct Ranks {
    pub(super) watch: Watch,
    notices: Notices,
    /// Deaths that were known before they were over.
    pub(super) noticed: u64,
    /// Notices of none.
    pub(super) alarms: u64,
    /// By the number of their start here.
    pub(super) all: BTreeMap<u64, Rank>,
    /// Jobs that they have spawned, by numbers of the same kind.
    pub(super) spawned: BTreeMap<u64, Spawned>,
    next: u64,
    pids: BTreeMap<Pid, u64>,
    /// Output that home has not acknowledged.
    pub(super) unacknowledged: u64,
    /// Processes that no rank is remembered for may be left.
    may_have_left: bool,
}

impl Rank {
    pub(super) fn runs(&self) -> bool {
        self.end.is_none()
    }

    fn has_pipes(&self) -> bool {
        self.pipes.iter().any(Option::is_some)
    }
}

impl Ranks {
    pub(super) fn new(watch: Watch, notices: Notices) -> Self {
        let (all, spawned, pids) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let (noticed, alarms, unacknowledged) = (0, 0, 0);
        Self { watch, notices, noticed, alarms, all, spawned, next: 1, pids, unacknowledged, may_have_left: false }
    }

    /// A rank was started, or could not be.
    pub(super) fn add(
        &mut self,
        (attempt, rank, life): (u32, u32, u32),
        seat: Option<Seat>,
        started: Result<(Started, Option<Talk>), RankEnd>,
        page: Option<Page>,
    ) -> u64 {
        let number = self.next;
        self.next += 1;
        let mark = number << FILES;
        let mut added = Rank {
            attempt,
            rank,
            life,
            seat,
            pid: None,
            end: None,
            aborted: false,
            aborts_with: None,
            talk: None,
            page: None,
            is_told: false,
            leaves_at: None,
            pipes: [None, None],
            is_held_up: false,
            closes_at: None,
            is_closed: false,
            input: None,
        };
        match started {
            Ok((Started { pid, out, err, input }, talk)) => {
                // Pipes fit into the set as long as they can be opened.
                let _ = self.watch.add(&out, mark | OUT, For::Reading);
                let _ = self.watch.add(&err, mark | ERR, For::Reading);
                added.pipes = [Some(out), Some(err)];
                if let Some(pipe) = input {
                    added.input = Some(Feed { pipe, waiting: VecDeque::new(), ended: false });
                }
                if let Some(talk) = &talk {
                    let _ = self.watch.add(talk.socket(), mark | TALK, For::Reading);
                }
                (added.talk, added.pid, added.page) = (talk, Some(pid), page.map(Arc::new));
                self.pids.insert(pid, number);
            }
            Err(end) => added.end = Some(end),
        }
        self.all.insert(number, added);
        number
    }

    /// A rank has spawned a job.
    pub(super) fn add_spawned(&mut self, spawned: Spawned) {
        let number = self.next;
        self.next += 1;
        for (pipe, file) in spawned.pipes.iter().flatten().zip([SPAWNED_OUT, SPAWNED_ERR]) {
            let _ = self.watch.add(pipe, number << FILES | file, For::Reading);
        }
        self.spawned.insert(number, spawned);
    }

    /// The rank that runs, or ran last, in an attempt.
    pub(super) fn find(&self, attempt: u32, rank: u32) -> Option<&Rank> {
        self.all.values().rfind(|r| r.rank == rank && r.attempt == attempt)
    }

    /// Waits for what the MPI library of a rank says next.
    pub(super) fn watch_talk(&self, number: u64) {
        if let Some(talk) = self.all.get(&number).and_then(|r| r.talk.as_ref()) {
            self.watch.again(talk.socket(), number << FILES | TALK, talk.waits_for());
        }
    }

    /// The word of a rank is held, or will be.
    fn watch_notice(&mut self, seat: Seat) {
        let found = self.all.iter().find(|(_, r)| r.seat == Some(seat) && r.runs());
        let Some((&number, Rank { pid: Some(pid), page: Some(page), .. })) = found else { return };
        if let Err(why) = self.notices.watch(number, pid.as_raw(), Arc::clone(page)) {
            tracing::warn!("the death of a rank will be told late: {why}");
        }
    }

    pub(super) fn by_seat(&mut self, seat: Seat) -> Option<&mut Rank> {
        self.all.values_mut().find(|r| r.seat == Some(seat))
    }

    /// Some process may be left here.
    pub(super) fn are_any(&self) -> bool {
        self.may_have_left || self.all.values().any(Rank::runs)
    }

    /// A signal for all who run.
    pub(super) fn signal(&self, signal: Signal) {
        for pid in self.all.values().filter(|r| r.runs()).filter_map(|r| r.pid) {
            // One that has just ended is still a child of ours: nobody else has its number.
            let _ = killpg(pid, signal);
        }
    }

    /// Kills all who run, and what they have started.
    pub(super) fn kill(&mut self) {
        self.signal(Signal::SIGKILL);
        if self.may_have_left && !self.all.values().any(Rank::runs) {
            sweep::kill_descendants();
        }
    }

    /// Buries who has ended. What ranks have left is adopted by us, and is buried, too.
    fn bury(&mut self) -> Vec<(u64, RankEnd)> {
        let mut ended = Vec::new();
        loop {
            let (pid, end) = match waitpid(None, Some(WaitPidFlag::WNOHANG)) {
                Ok(WaitStatus::Exited(pid, status)) => (pid, RankEnd::Exited(status)),
                Ok(WaitStatus::Signaled(pid, signal, _)) => (pid, RankEnd::Killed(signal as i32)),
                Err(Errno::ECHILD) => {
                    self.may_have_left = false;
                    return ended;
                }
                Err(Errno::EINTR) | Ok(WaitStatus::Stopped(..) | WaitStatus::Continued(_)) => continue,
                _ => {
                    self.may_have_left = true;
                    return ended;
                }
            };
            if let Some(number) = self.pids.remove(&pid) {
                // Another process may have its number from now on.
                self.notices.forget(number);
                ended.push((number, end));
            }
        }
    }

    /// True when home has all that ranks of this attempt, and of those before, wrote.
    pub(super) fn are_drained(&self) -> bool {
        self.unacknowledged == 0 && self.all.values().all(|r| r.is_closed) && self.spawned.is_empty()
    }

    /// Forgets ranks of earlier attempts that have nothing to say any more.
    pub(super) fn forget(&mut self, attempt: u32) {
        self.all.retain(|_, r| r.attempt == attempt || !r.is_closed);
    }

    pub(super) fn deadline(&self) -> Instant {
        let due = |r: &Rank| {
            let closes = r.closes_at.filter(|_| !r.is_closed && !r.is_held_up).unwrap_or(Instant::NEVER);
            closes.min(r.leaves_at.unwrap_or(Instant::NEVER))
        };
        self.all.values().map(due).fold(Instant::NEVER, Instant::min)
    }
}

impl Shepherd {
    /// What happened to processes and their files since this was last looked at.
    pub(super) fn tend_ranks(&mut self) {
        while let Some(ready) = self.work.as_mut().and_then(|w| w.ranks.watch.next()) {
            match ready {
                Ready::Deaths => self.on_deaths(),
                Ready::File(mark) => self.on_ready(mark),
            }
        }
        while let Some(notice) = self.work.as_ref().and_then(|w| w.ranks.notices.next()) {
            self.on_notice(notice);
        }
        self.close_ranks();
        self.tend_spawned();
    }

    pub(super) fn watch_notice(&mut self, seat: Seat) {
        if let Some(work) = &mut self.work {
            work.ranks.watch_notice(seat);
        }
    }

    /// A rank runs no more, though its process is still there: the view goes on without it. Whoever may start it again is told when it was
    /// waited for: until then it has its ports, locks and memory.
    fn on_notice(&mut self, notice: Notice) {
        let now = self.driver.now();
        let Some(work) = &mut self.work else { return };
        let stops = work.is_ending();
        let (number, status) = match notice {
            Notice::Dead { number, status, since } => {
                let took_us = since.elapsed().as_micros() as u64;
                tracing::debug!(job = self.terms.name, status, took_us, "a rank is dead, as its word says");
                (number, status)
            }
            Notice::Alarm(number) => {
                work.ranks.alarms += u64::from(work.ranks.all.get(&number).is_some_and(Rank::runs));
                return;
            }
        };
        // One that was waited for is out already, and the proof may be of another process. One that ends well is waited for.
        let Some(rank) = work.ranks.all.get_mut(&number).filter(|r| r.runs() && status != 0) else { return };
        work.ranks.noticed += 1;
        if rank.seat.is_some() && !stops {
            rank.leaves_at = Some(now);
            self.let_go();
        }
    }

    pub(super) fn on_deaths(&mut self) {
        let now = self.driver.now();
        let Some(work) = &mut self.work else { return };
        let (stops, mut out) = (work.is_ending(), Vec::new());
        let ended = work.ranks.bury();
        // `finalize` may have been said just before the end.
        ended.iter().for_each(|e| self.on_talk(e.0));
        let Some(work) = &mut self.work else { return };
        for (number, end) in ended {
            let Some(rank) = work.ranks.all.get_mut(&number) else { continue };
            // What it said last, and what its end means to the others' barrier.
            let aborts = work.pmi.on_gone(rank.rank, &mut out);
            rank.aborted |= aborts;
            rank.end = Some(match rank.aborts_with {
                Some(status) if end == RankEnd::Killed(Signal::SIGKILL as i32) => RankEnd::Exited(status),
                _ => end,
            });
            rank.closes_at = Some(now + LAST_WORDS);
            (rank.input, rank.talk, rank.page) = (None, None, None);
            if rank.seat.is_some() && !stops {
                let is_well = end == RankEnd::Exited(0) && !rank.aborted;
                rank.leaves_at = Some(if is_well { now + LEAVES_AFTER } else { now });
            }
        }
        self.on_pmi(out);
        self.say_ends();
        self.let_go();
    }

    /// Tells the daemon of ranks that have ended.
    pub(super) fn say_ends(&mut self) {
        let Some(work) = &mut self.work else { return };
        let attempt = work.attempt();
        let mut told = BTreeMap::<u32, (Vec<_>, Vec<_>)>::new();
        for rank in work.ranks.all.values_mut().filter(|r| Some(r.attempt) == attempt && !r.is_told) {
            let Some(end) = rank.end else { continue };
            rank.is_told = true;
            let (ranks, aborted) = told.entry(rank.life).or_default();
            ranks.push((rank.rank, end));
            aborted.extend(rank.aborted.then_some(rank.rank));
        }
        for (life, (ranks, aborted)) in told {
            self.tell_daemons(&ToDaemon::Ended { attempt: attempt.unwrap_or_default(), life, ranks, aborted });
        }
    }

    /// A daemon that has just come knows of no end.
    pub(super) fn say_all_ends(&mut self) {
        if let Some(work) = &mut self.work {
            work.ranks.all.values_mut().for_each(|r| r.is_told = false);
        }
        self.say_ends();
    }

    /// Seats of ranks that have ended are given up.
    pub(super) fn let_go(&mut self) {
        let now = self.driver.now();
        let Some(work) = &mut self.work else { return };
        let due = work.ranks.all.values_mut().filter(|r| r.leaves_at.is_some_and(|at| at <= now));
        let seats: Vec<Seat> = due
            .filter_map(|r| {
                r.leaves_at = None;
                r.seat.take()
            })
            .collect();
        for seat in seats {
            self.seats.remove(&seat);
            self.driver.act(|company, now, out| company.part(now, seat, out));
        }
    }

    fn on_ready(&mut self, mark: u64) {
        let (number, file) = (mark >> FILES, mark & ((1 << FILES) - 1));
        match file {
            OUT | ERR | SPAWNED_OUT | SPAWNED_ERR => self.read(number, file),
            INPUT => self.write(number),
            TALK => self.on_talk(number),
            _ => {}
        }
    }

    /// Reads what a rank wrote, as far as home has room for it.
    fn read(&mut self, number: u64, file: u64) {
        let mut piece = [0; PIECE];
        for turn in 0..=TURNS {
            let Some(work) = &mut self.work else { return };
            let has_room = work.ranks.unacknowledged + PIECE as u64 <= WINDOW as u64;
            let (all, spawned) = (&mut work.ranks.all, &mut work.ranks.spawned);
            let found = match file {
                OUT | ERR => all.get_mut(&number).map(|r| (r.rank, &mut r.pipes, &mut r.is_held_up)),
                _ => spawned.get_mut(&number).map(|s| (s.rank, &mut s.pipes, &mut s.is_held_up)),
            };
            let Some((name, pipes, is_held_up)) = found else { return };
            let is_out = matches!(file, OUT | SPAWNED_OUT);
            let pipe = &mut pipes[usize::from(!is_out)];
            let Some(reader) = pipe else { return };
            if !has_room {
                *is_held_up = true;
                return;
            }
            let read = if turn == TURNS { Err(std::io::ErrorKind::WouldBlock.into()) } else { reader.read(&mut piece) };
            match read {
                Ok(0) => {
                    *pipe = None;
                    return;
                }
                Ok(length) => {
                    work.ranks.unacknowledged += length as u64;
                    let stream = if is_out { Stream::Out } else { Stream::Err };
                    self.say_output(name, stream, &piece[..length]);
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    return work.ranks.watch.again(reader, number << FILES | file, For::Reading);
                }
                Err(_) => {
                    *pipe = None;
                    return;
                }
            }
        }
    }

    /// Home, or the console, has taken so much more.
    pub(super) fn on_taken(&mut self, bytes: u64) {
        let Some(work) = &mut self.work else { return };
        work.ranks.unacknowledged = work.ranks.unacknowledged.saturating_sub(bytes);
        let held_up = |(&number, rank): (&u64, &mut Rank)| std::mem::take(&mut rank.is_held_up).then_some(number);
        for number in work.ranks.all.iter_mut().filter_map(held_up).collect::<Vec<_>>() {
            self.read(number, OUT);
            self.read(number, ERR);
        }
        let Some(work) = &mut self.work else { return };
        let held_up = |(&number, s): (&u64, &mut Spawned)| std::mem::take(&mut s.is_held_up).then_some(number);
        for number in work.ranks.spawned.iter_mut().filter_map(held_up).collect::<Vec<_>>() {
            self.read(number, SPAWNED_OUT);
            self.read(number, SPAWNED_ERR);
        }
    }

    /// Ranks that have ended, and whose pipes too: home is told.
    fn close_ranks(&mut self) {
        let now = self.driver.now();
        let Some(work) = &mut self.work else { return };
        let mut closed = Vec::new();
        for rank in work.ranks.all.values_mut().filter(|r| !r.is_closed) {
            let Some(end) = rank.end else { continue };
            let is_late = rank.closes_at.is_some_and(|at| at <= now) && !rank.is_held_up;
            if rank.has_pipes() && is_late {
                // Somebody whom the rank has left holds them.
                rank.pipes = [None, None];
                rank.pid.into_iter().for_each(sweep::kill_group);
            }
            if !rank.has_pipes() {
                rank.is_closed = true;
                closed.push(Words::Ended { rank: rank.rank, end });
            }
        }
        closed.into_iter().for_each(|words| self.tell_home(&words));
    }

    /// Input for rank 0, which is here.
    pub(super) fn on_input(&mut self, bytes: &[u8], is_end: bool) {
        let Some(work) = &mut self.work else { return };
        let attempt = work.attempt();
        let reader = work.ranks.all.iter_mut().rfind(|(_, r)| r.rank == 0 && Some(r.attempt) == attempt);
        match reader.map(|(&number, rank)| (number, &mut rank.input)) {
            Some((number, Some(feed))) => {
                feed.waiting.extend(bytes);
                feed.ended |= is_end;
                self.write(number);
            }
            // It has ended, and reads no more.
            _ => self.say_fed(bytes.len()),
        }
    }

    fn write(&mut self, number: u64) {
        let Some(work) = &mut self.work else { return };
        let Some(rank) = work.ranks.all.get_mut(&number) else { return };
        let Some(feed) = &mut rank.input else { return };
        let mut fed = 0;
        loop {
            let (bytes, _) = feed.waiting.as_slices();
            if bytes.is_empty() {
                if feed.ended {
                    rank.input = None;
                }
                break;
            }
            match feed.pipe.write(bytes) {
                Ok(length) => {
                    feed.waiting.drain(..length);
                    fed += length;
                }
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {
                    let mark = number << FILES | INPUT;
                    if work.ranks.watch.add(&feed.pipe, mark, For::Writing).is_err() {
                        work.ranks.watch.again(&feed.pipe, mark, For::Writing);
                    }
                    break;
                }
                Err(_) => {
                    // It reads no more.
                    fed += feed.waiting.len();
                    rank.input = None;
                    break;
                }
            }
        }
        self.say_fed(fed);
    }

    fn say_fed(&mut self, bytes: usize) {
        if bytes > 0 {
            self.tell_home(&Words::Fed { bytes: bytes as u64 });
        }
    }

    pub(super) fn say_output(&mut self, rank: u32, stream: Stream, bytes: &[u8]) {
        self.tell_home_frame(frames::output(rank, stream, bytes));
    }
}
