//! The sockets over which MPI libraries of ranks speak to their shepherd, and what comes of it: the bytes of [`pmi`](super::pmi).

use super::Shepherd;
use super::pmi::{Answer, Errand, Met, Output};
use super::watch::For;
use super::words::ToDaemon;
use nix::sys::signal::{Signal, killpg};
use phalanx_protocol::company::Outcome;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

/// Bytes that are read of one rank before another one has its turn.
const PIECE: usize = 16 << 10;
/// Bytes that a rank was answered and has not read; who lets more wait does not speak sense.
const UNREAD_MAX: usize = 1 << 20;

/// Our end of a rank's socket.
pub(super) struct Talk {
    socket: UnixStream,
    unread: VecDeque<u8>,
}

impl Talk {
    /// A pair of ends: ours, which does not block, and the rank's.
    pub(super) fn pair() -> std::io::Result<(Self, UnixStream)> {
        let (socket, theirs) = UnixStream::pair()?;
        socket.set_nonblocking(true)?;
        Ok((Self { socket, unread: VecDeque::new() }, theirs))
    }

    pub(super) fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Writes what the rank reads now; false when it reads no more.
    fn flush(&mut self) -> bool {
        while !self.unread.is_empty() {
            match self.socket.write(self.unread.as_slices().0) {
                Ok(length) => drop(self.unread.drain(..length)),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return self.unread.len() <= UNREAD_MAX,
                Err(_) => return false,
            }
        }
        true
    }

    pub(super) fn waits_for(&self) -> For {
        if self.unread.is_empty() { For::Reading } else { For::Both }
    }
}

impl Shepherd {
    /// A rank's socket can be read, or written.
    pub(super) fn on_talk(&mut self, number: u64) {
        let mut out = Vec::new();
        let Some(work) = &mut self.work else { return };
        let Some(rank) = work.ranks.all.get_mut(&number) else { return };
        let Some(talk) = &mut rank.talk else { return };
        let mut piece = [0; PIECE];
        let is_open = match talk.socket.read(&mut piece) {
            Ok(0) => false,
            Ok(length) => {
                work.pmi.on_bytes(rank.rank, &piece[..length], &mut out);
                true
            }
            Err(e) => matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted),
        };
        if is_open && talk.flush() {
            work.ranks.watch_talk(number);
        } else {
            rank.talk = None;
        }
        self.on_pmi(out);
    }

    /// The server decided something.
    pub(super) fn on_pmi(&mut self, outputs: Vec<Output>) {
        for output in outputs {
            match output {
                Output::Say { rank, bytes } => self.talk_to(rank, &bytes),
                Output::Gather { value } => {
                    let given = self.driver.act(|company, now, out| company.muster(now, &value, out));
                    if let (Err(e), Some(work)) = (given, &mut self.work) {
                        tracing::debug!(job = self.terms.name, "a barrier waits for a view: {e}");
                        work.musters_again = true;
                    }
                }
                Output::Abort { rank, status } => self.on_abort(rank, status),
                Output::HangUp { rank, why } => {
                    if let Some((_, rank)) = self.work.as_mut().and_then(|w| w.here(rank)) {
                        rank.talk = None;
                    }
                    self.note(format!("rank {rank} does not speak PMI-1: {why}"));
                }
                Output::Ask { rank, errand: Errand::Spawn { programs } } => self.on_spawn(rank, programs),
                Output::Ask { rank, errand } => {
                    let Some(attempt) = self.work.as_ref().and_then(super::work::Managed::attempt) else { continue };
                    self.tell_daemons(&ToDaemon::Errand { attempt, rank, errand });
                }
            }
        }
    }

    fn talk_to(&mut self, rank: u32, bytes: &[u8]) {
        let Some(work) = &mut self.work else { return };
        let Some((number, rank)) = work.here(rank) else { return };
        let Some(talk) = &mut rank.talk else { return };
        talk.unread.extend(bytes);
        if !talk.flush() {
            rank.talk = None;
        } else if !talk.unread.is_empty() {
            work.ranks.watch_talk(number);
        }
    }

    /// `MPI_Abort`: the rank ends with this status, and the manager does with the job what its policy says.
    fn on_abort(&mut self, rank: u32, status: i32) {
        let Some((_, here)) = self.work.as_mut().and_then(|w| w.here(rank)) else { return };
        (here.aborted, here.aborts_with) = (true, Some(status));
        if let Some(pid) = here.pid.filter(|_| here.runs()) {
            // It waits for that.
            let _ = killpg(pid, Signal::SIGKILL);
        }
        self.note(format!("rank {rank} called MPI_Abort with status {status}"));
    }

    /// What became of an errand.
    pub(super) fn on_answer(&mut self, rank: u32, answer: Answer) {
        let mut out = Vec::new();
        if let Some(work) = &mut self.work {
            work.pmi.on_answer(rank, answer, &mut out);
        }
        self.on_pmi(out);
    }

    /// A barrier over the hosts is over, or came to nothing.
    pub(super) fn on_mustered(&mut self, outcome: Option<&Outcome>) {
        let mut out = Vec::new();
        let Some(work) = &mut self.work else { return };
        match outcome {
            Some(Outcome::Gather(values)) => {
                let values: Vec<_> = values.iter().map(|(id, value)| (id.0, value.clone())).collect();
                work.pmi.on_gathered(Met::All(&values), &mut out);
            }
            Some(Outcome::TooLarge) => work.pmi.on_gathered(Met::TooLarge, &mut out),
            _ => work.musters_again = true,
        }
        self.on_pmi(out);
    }

    /// This host is in a view, again perhaps.
    pub(super) fn muster_again(&mut self) {
        let mut out = Vec::new();
        if let Some(work) = self.work.as_mut().filter(|w| w.musters_again) {
            work.musters_again = false;
            work.pmi.gather_again(&mut out);
        }
        self.on_pmi(out);
    }
}
