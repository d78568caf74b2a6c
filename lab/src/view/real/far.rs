//! A platform whose peers are far away: what it is given to send leaves later.
//!
//! The delay lies where packets leave, not where they come: a receiver that had to wake for a packet only to lay it aside, and to wake
//! once more when its time has come, would count its own second wake as the network's.

use super::task::Ground;
use crate::error::Error;
use crate::stats::median;
use phalanx_core::{Addr, Buf, Code, Duration, Group, Instant};
use phalanx_daemon::{Platform, Waker, Woke};
use std::cell::Cell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

/// Packets on their way at once; more are refused, as by any full queue.
const HELD_MAX: usize = 4096;

pub(super) struct Far<P> {
    ground: P,
    hop: Cell<Duration>,
    held: VecDeque<Held>,
}

struct Held {
    due: Instant,
    to: Addr,
    packet: Buf,
    ticket: Option<u32>,
    answer: bool,
}

impl<P: Platform> Far<P> {
    /// How long each packet takes from now on. Those that have left keep their order.
    pub(super) fn set_hop(&self, hop: Duration) {
        self.hop.set(hop);
    }

    /// When the next packet leaves.
    pub(super) fn due(&self) -> Instant {
        self.held.front().map_or(Instant::NEVER, |h| h.due)
    }

    fn hold(&mut self, to: Addr, packet: Buf, ticket: Option<u32>, answer: bool) -> Result<(), Code> {
        if self.hop.get() == Duration::ZERO && self.held.is_empty() {
            return if answer { self.ground.answer(to, packet, ticket) } else { self.ground.send(to, packet, ticket) };
        }
        if self.held.len() == HELD_MAX {
            return Err(Code::LocalResource);
        }
        let due = self.ground.now() + self.hop.get();
        self.held.push_back(Held { due, to, packet, ticket, answer });
        Ok(())
    }
}

/// What a delay of `hop` is on this machine, whose timers are late, in µs: the median of so many waits.
pub(super) fn measured_us<P: Ground>(hop: Duration, waits: usize) -> Result<f64, Error> {
    let mut far = Far::<P>::open(SocketAddr::from(([127, 0, 0, 1], 0)), false)?;
    let waited = (0..waits).map(|_| {
        let begun = far.now();
        while far.now() < begun + hop {
            far.wait(begun + hop);
        }
        far.now().since(begun).as_nanos() as f64 / 1e3
    });
    let waited: Vec<f64> = waited.collect();
    median(&waited).ok_or_else(|| Error::Peer { library: "lab", reason: "no waits were asked for".into() })
}

impl<P: Platform> Platform for Far<P> {
    fn local(&self) -> Addr {
        self.ground.local()
    }

    fn max_datagram(&mut self, to: Addr) -> usize {
        self.ground.max_datagram(to)
    }

    fn send(&mut self, to: Addr, packet: Buf, ticket: Option<u32>) -> Result<(), Code> {
        self.hold(to, packet, ticket, false)
    }

    fn answer(&mut self, to: Addr, packet: Buf, ticket: Option<u32>) -> Result<(), Code> {
        self.hold(to, packet, ticket, true)
    }

    fn flush(&mut self, done: &mut impl FnMut(u32, Result<(), Code>)) {
        if !self.held.is_empty() {
            let now = self.ground.now();
            while self.due() <= now
                && let Some(Held { to, packet, ticket, answer, .. }) = self.held.pop_front()
            {
                let sent =
                    if answer { self.ground.answer(to, packet, ticket) } else { self.ground.send(to, packet, ticket) };
                if let (Err(code), Some(ticket)) = (sent, ticket) {
                    done(ticket, Err(code));
                }
            }
        }
        self.ground.flush(done);
    }

    fn receive(&mut self, each: &mut impl FnMut(Addr, &mut [u8])) -> Result<usize, Code> {
        self.ground.receive(each)
    }

    fn wait(&mut self, until: Instant) -> Woke {
        let until = until.min(self.due());
        self.ground.wait(until)
    }

    fn waker(&self) -> Waker {
        self.ground.waker()
    }

    fn now(&self) -> Instant {
        self.ground.now()
    }

    fn join(&mut self, group: Group) -> Result<(), Code> {
        self.ground.join(group)
    }

    fn leave(&mut self, group: Group) -> Result<(), Code> {
        self.ground.leave(group)
    }

    fn trouble(&mut self) -> Option<(Addr, Code)> {
        self.ground.trouble()
    }
}

impl<P: Ground> Ground for Far<P> {
    fn open(at: SocketAddr, crowded: bool) -> std::io::Result<Self> {
        Ok(Self { ground: P::open(at, crowded)?, hop: Cell::default(), held: VecDeque::new() })
    }

    fn file(&self) -> BorrowedFd<'_> {
        self.ground.file()
    }
}
