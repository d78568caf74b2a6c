//! Files of ranks, and their deaths: the shepherd waits for them beside its socket, and reads and writes them itself.
//!
//! So all that happens to ranks happens on one thread, the one that started them; the kernel ends them when that thread ends. Each file is
//! waited for once, then again when the shepherd says so: what nobody has room for stays in its pipe, and whoever writes there waits. What
//! was rejected: a thread that waits for them and wakes the shepherd. An MPI library asks a dozen questions before its program begins, and on a
//! busy machine each of them waited for a processor twice.

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// Files that are told of at once.
const EVENTS: usize = 64;
/// The mark of the deaths of children.
const DEATHS: u64 = 0;

/// What a file is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum For {
    /// Something to read, or its end.
    Reading,
    /// Room.
    Writing,
    /// Either.
    Both,
}

impl For {
    fn flags(self) -> EpollFlags {
        EpollFlags::EPOLLONESHOT
            | match self {
                Self::Reading => EpollFlags::EPOLLIN,
                Self::Writing => EpollFlags::EPOLLOUT,
                Self::Both => EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT,
            }
    }
}

/// What became ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ready {
    /// Children may have ended.
    Deaths,
    /// The file with this mark.
    File(u64),
}

/// What is waited for.
pub(super) struct Watch {
    epoll: Epoll,
    deaths: SignalFd,
    ready: VecDeque<u64>,
}

/// Deaths of children are told by a [`Watch`] only, whichever thread the kernel would have told. Before any other thread is started.
pub(super) fn hold_deaths() -> Result<(), Errno> {
    deaths().thread_block()
}

fn deaths() -> SigSet {
    SigSet::from(Signal::SIGCHLD)
}

impl Watch {
    /// Waits for deaths, and no file yet.
    pub(super) fn open() -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let deaths = SignalFd::with_flags(&deaths(), SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)?;
        epoll.add(&deaths, EpollEvent::new(For::Reading.flags(), DEATHS))?;
        Ok(Self { epoll, deaths, ready: VecDeque::new() })
    }

    /// A file that can be read while something is ready.
    pub(super) fn file(&self) -> io::Result<OwnedFd> {
        self.epoll.0.as_fd().try_clone_to_owned()
    }

    /// Waits for a file, which is called `mark`: not 0.
    pub(super) fn add(&self, file: impl AsFd, mark: u64, what: For) -> Result<(), Errno> {
        debug_assert_ne!(mark, DEATHS);
        self.epoll.add(file, EpollEvent::new(what.flags(), mark))
    }

    /// Waits again for a file that was ready.
    pub(super) fn again(&self, file: impl AsFd, mark: u64, what: For) {
        // One that was closed is waited for no more.
        let _ = self.epoll.modify(file, &mut EpollEvent::new(what.flags(), mark));
    }

    /// What became ready, if anything did.
    pub(super) fn next(&mut self) -> Option<Ready> {
        if self.ready.is_empty() {
            let mut events = [EpollEvent::empty(); EVENTS];
            let count = self.epoll.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
            self.ready.extend(events[..count].iter().map(EpollEvent::data));
        }
        let mark = self.ready.pop_front()?;
        if mark != DEATHS {
            return Some(Ready::File(mark));
        }
        // Several deaths may make one signal: whoever hears of it looks for all.
        while let Ok(Some(_)) = self.deaths.read_signal() {}
        self.again(&self.deaths, DEATHS, For::Reading);
        Some(Ready::Deaths)
    }
}
