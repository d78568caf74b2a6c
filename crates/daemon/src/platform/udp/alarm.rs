//! Ends a blocked receive in time for a deadline.
//!
//! A receive that blocks costs a microsecond less for each message than a poll before it, and cannot be given a precise
//! timeout. So a thread sleeps until shortly before the deadline and rings the [`Bell`]; the rest is waited for
//! precisely. Deadlines of a busy link move later with each message: the thread is left asleep, and looks again when
//! the old one has come. It is woken only for an earlier one.

use super::bell::Bell;
use crate::clock::{Clock, sharpen};
use phalanx_core::{Duration, Instant};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

/// Between two rings for one deadline: a packet filter of this host may have dropped the first.
const RING_AGAIN: Duration = Duration::from_millis(1);

/// The thread that rings.
#[derive(Debug)]
pub(super) struct Alarm {
    times: Arc<Times>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Times {
    /// When the receiver wants to be woken; [`Instant::NEVER`] while it is awake.
    wanted: AtomicU64,
    /// When the thread will look next.
    looks: AtomicU64,
    stop: AtomicBool,
}

impl Alarm {
    /// An alarm that rings `bell` by the time of `clock`.
    pub(super) fn start(clock: Clock, bell: Arc<Bell>) -> std::io::Result<Self> {
        let never = Instant::NEVER.0;
        let times = Times { wanted: AtomicU64::new(never), looks: AtomicU64::new(never), stop: AtomicBool::new(false) };
        let times = Arc::new(times);
        let own = Arc::clone(&times);
        let builder = std::thread::Builder::new().name("udp-alarm".into()).stack_size(64 * 1024);
        let thread = builder.spawn(move || own.watch(clock, &bell))?;
        Ok(Self { times, thread: Some(thread) })
    }

    /// Will ring at `at`, and again until it is told otherwise.
    #[inline]
    pub(super) fn set(&self, at: Instant) {
        // Both sides write their own time and then read the other's, in one order for all: one of them sees.
        self.times.wanted.store(at.0, Ordering::SeqCst);
        if at.0 < self.times.looks.load(Ordering::SeqCst) {
            self.unpark();
        }
    }

    /// True when it looks by then, so that setting it wakes nobody.
    #[inline]
    pub(super) fn looks_by(&self, at: Instant) -> bool {
        self.times.looks.load(Ordering::SeqCst) <= at.0
    }

    /// Will not ring.
    #[inline]
    pub(super) fn clear(&self) {
        self.times.wanted.store(Instant::NEVER.0, Ordering::Release);
    }

    fn unpark(&self) {
        if let Some(thread) = &self.thread {
            thread.thread().unpark();
        }
    }
}

impl Times {
    fn watch(&self, clock: Clock, bell: &Bell) {
        sharpen();
        while !self.stop.load(Ordering::Acquire) {
            let now = clock.now();
            let mut looks = Instant(self.wanted.load(Ordering::SeqCst));
            if looks <= now {
                bell.nudge();
                looks = now + RING_AGAIN;
            }
            self.looks.store(looks.0, Ordering::SeqCst);
            let earlier = self.wanted.load(Ordering::SeqCst);
            if now.0 < earlier && earlier < looks.0 {
                continue;
            }
            if looks == Instant::NEVER {
                std::thread::park();
            } else {
                std::thread::park_timeout(looks.since(now).into());
            }
        }
    }
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.times.stop.store(true, Ordering::Release);
        self.unpark();
        if let Some(thread) = self.thread.take() {
            // It holds nothing that a panic could have broken.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    fn alarm() -> (Clock, UdpSocket, Alarm) {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        let bell = Arc::new(Bell::for_socket(receiver.local_addr().unwrap()).unwrap());
        let clock = Clock::start();
        (clock, receiver, Alarm::start(clock, bell).unwrap())
    }

    #[test]
    fn it_rings_at_the_time_and_again_until_cleared() {
        let (clock, receiver, alarm) = alarm();
        let at = clock.now() + Duration::from_millis(3);
        alarm.set(clock.now() + Duration::from_secs(60));
        alarm.set(at);
        for _ in 0..2 {
            receiver.recv(&mut [0; 1]).unwrap();
            assert!(clock.now() >= at);
        }
        alarm.clear();
        // One may be on its way.
        clock.sleep_until(clock.now() + RING_AGAIN);
        receiver.set_nonblocking(true).unwrap();
        while receiver.recv(&mut [0; 1]).is_ok() {}
        clock.sleep_until(clock.now() + RING_AGAIN * 5);
        assert!(receiver.recv(&mut [0; 1]).is_err(), "it rang though it was cleared");
    }

    #[test]
    fn a_deadline_that_moves_later_does_not_ring_at_its_old_time() {
        let (clock, receiver, alarm) = alarm();
        for _ in 0..20 {
            alarm.set(clock.now() + Duration::from_millis(20));
            clock.sleep_until(clock.now() + Duration::from_millis(2));
        }
        receiver.set_nonblocking(true).unwrap();
        let rang = receiver.recv(&mut [0; 1]).is_ok();
        // A test machine may stop us for longer than the deadline was ahead: then ringing was right.
        assert!(!rang || clock.now() > Instant::ZERO + Duration::from_millis(55));
    }
}
