//! Waiting for sockets and for a time, precisely: epoll with a timer of nanoseconds in the set.
//!
//! `epoll_wait` counts in milliseconds, and `ppoll` costs half a microsecond more for each wait (measured: it
//! hooks itself into each socket and out again). The timer is armed lazily: deadlines of a busy link move later with
//! each message, and an alarm that rings too early costs one loop, much less than a system call for each move.

use crate::clock::Clock;
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use phalanx_core::Instant;
use std::os::fd::{AsFd, BorrowedFd};

/// The timer's mark in the set; users of the poller mark their own files with other numbers.
const TIMER: u64 = u64::MAX;
/// Events taken in one call; more come with the next.
const EVENTS: usize = 64;

/// A set of files to wait for, and a precise deadline.
#[derive(Debug)]
pub struct Poller {
    epoll: Epoll,
    timer: TimerFd,
    /// When the timer will ring; [`Instant::NEVER`] when it is not armed.
    armed: Instant,
    events: [EpollEvent; EVENTS],
}

impl AsFd for Poller {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }
}

impl Poller {
    /// An empty set.
    ///
    /// # Errors
    /// What the system said: most often that there are too few descriptors.
    pub fn new() -> Result<Self, Errno> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK)?;
        // Edge-triggered: a ring is told once, and nobody has to read it away.
        epoll.add(&timer, EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, TIMER))?;
        Ok(Self { epoll, timer, armed: Instant::NEVER, events: [EpollEvent::empty(); EVENTS] })
    }

    /// Waits for `file` from now on, and calls it `mark`: any number but the highest.
    ///
    /// # Errors
    /// What the system said; the set is as before.
    pub fn add(&self, file: impl AsFd, mark: u64, interest: EpollFlags) -> Result<(), Errno> {
        debug_assert_ne!(mark, TIMER);
        self.epoll.add(file, EpollEvent::new(interest, mark))
    }

    pub(crate) fn change(&self, file: impl AsFd, mark: u64, interest: EpollFlags) -> Result<(), Errno> {
        self.epoll.modify(file, &mut EpollEvent::new(interest, mark))
    }

    pub(crate) fn remove(&self, file: impl AsFd) {
        // A file that is closed anyway leaves the set by itself.
        let _ = self.epoll.delete(file);
    }

    /// Tells `each` file that is ready now, without blocking.
    pub fn poll(&mut self, each: &mut impl FnMut(u64, EpollFlags)) -> usize {
        let n = self.epoll.wait(&mut self.events, EpollTimeout::ZERO).unwrap_or(0);
        self.tell(n, each)
    }

    /// Blocks until a file is ready (tells `each`, returns how many), a signal comes (`Err`), or it is `until` (0).
    ///
    /// # Errors
    /// A signal came.
    pub fn wait(
        &mut self,
        clock: &Clock,
        until: Instant,
        each: &mut impl FnMut(u64, EpollFlags),
    ) -> Result<usize, Errno> {
        loop {
            let now = clock.now();
            if now >= until {
                return Ok(self.poll(each));
            }
            self.arm(now, until)?;
            let n = self.epoll.wait(&mut self.events, EpollTimeout::NONE)?;
            let told = self.tell(n, each);
            if told > 0 {
                return Ok(told);
            }
        }
    }

    fn arm(&mut self, now: Instant, until: Instant) -> Result<(), Errno> {
        let rings_in_time = self.armed <= until && self.armed > now;
        if until == Instant::NEVER || rings_in_time {
            return Ok(());
        }
        let left = TimeSpec::from_duration(until.since(now).into());
        self.timer.set(Expiration::OneShot(left), TimerSetTimeFlags::empty())?;
        self.armed = until;
        Ok(())
    }

    fn tell(&mut self, n: usize, each: &mut impl FnMut(u64, EpollFlags)) -> usize {
        let mut told = 0;
        for event in &self.events[..n] {
            if event.data() == TIMER {
                self.armed = Instant::NEVER;
            } else {
                each(event.data(), event.events());
                told += 1;
            }
        }
        told
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::eventfd::{EfdFlags, EventFd};
    use phalanx_core::Duration;

    #[test]
    fn an_alarm_left_armed_for_an_earlier_time_does_not_end_a_later_wait() {
        let (clock, mut poller) = (Clock::start(), Poller::new().unwrap());
        let file = EventFd::from_flags(EfdFlags::EFD_NONBLOCK).unwrap();
        poller.add(&file, 7, EpollFlags::EPOLLIN).unwrap();
        // A file ends the first wait, so its alarm stays armed.
        file.write(1).unwrap();
        let soon = clock.now() + Duration::from_millis(2);
        let mut seen = Vec::new();
        assert_eq!(poller.wait(&clock, soon, &mut |mark, _| seen.push(mark)), Ok(1));
        assert_eq!((seen, poller.armed), (vec![7], soon));
        file.read().unwrap();

        let later = clock.now() + Duration::from_millis(6);
        assert_eq!(poller.wait(&clock, later, &mut |_, _| panic!("nothing is ready")), Ok(0));
        assert!(clock.now() >= later);
    }
}
