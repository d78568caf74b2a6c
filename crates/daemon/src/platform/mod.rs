//! CL-1: one interface to every network. What the link needs from the ground, and nothing more.
//!
//! A platform belongs to one thread; its [`Waker`]s may go anywhere. The loop of a host is
//! `wait`, `receive`, handle, `flush`: it need not call `receive` until nothing comes, because `wait` returns at
//! once while something is there. A host that spins leaves out `wait`.
//!
//! CL-2: `send` never blocks and never copies; the outcome of a send with a ticket comes out of a later `flush`.

pub mod errno;
pub mod in_process;
pub mod poller;
pub mod tcp;
pub mod udp;

use phalanx_core::{Addr, Buf, Code, Group, Instant};
use std::fmt;
use std::sync::Arc;

/// The largest datagram that any platform carries. Larger messages are the link's to split; a path's own limit
/// ([`Platform::max_datagram`]) is often lower.
pub const LARGEST_DATAGRAM: usize = 16 * 1024;

/// A network as the link sees it: datagrams out, datagrams in, time, and trouble.
pub trait Platform {
    /// Where peers reach us.
    fn local(&self) -> Addr;

    /// The largest datagram that reaches `to` in one piece, at most [`LARGEST_DATAGRAM`]. Asked once per session.
    fn max_datagram(&mut self, to: Addr) -> usize;

    /// Queues `packet`. With a ticket, its outcome is told by a later [`Platform::flush`], exactly once.
    ///
    /// # Errors
    /// Nothing has changed and no outcome follows: [`Code::InvalidArgs`] for an empty packet or one over the
    /// path's limit, [`Code::InvalidEndpoint`] for an address of another platform, [`Code::LocalResource`] when the
    /// queue is full.
    fn send(&mut self, to: Addr, packet: Buf, ticket: Option<u32>) -> Result<(), Code>;

    /// As [`Platform::send`], to a peer that was heard just now: a platform may have a faster way for answers.
    ///
    /// # Errors
    /// As [`Platform::send`].
    fn answer(&mut self, to: Addr, packet: Buf, ticket: Option<u32>) -> Result<(), Code> {
        self.send(to, packet, ticket)
    }

    /// Hands what is queued to the network, as far as it takes it now, and tells outcomes to `done`.
    fn flush(&mut self, done: &mut impl FnMut(u32, Result<(), Code>));

    /// Lends each datagram of one batch to `each`, with its sender; returns how many there were. Never blocks.
    ///
    /// # Errors
    /// The platform itself failed; trouble with single peers is told by [`Platform::trouble`].
    fn receive(&mut self, each: &mut impl FnMut(Addr, &mut [u8])) -> Result<usize, Code>;

    /// Blocks until there is something to receive or flush, a [`Waker`] calls, or it is `until`.
    fn wait(&mut self, until: Instant) -> Woke;

    /// Something that ends a [`Platform::wait`] from another thread.
    fn waker(&self) -> Waker;

    /// The platform's monotonic clock, in nanoseconds since it was opened.
    fn now(&self) -> Instant;

    /// Hears datagrams sent to `group` from now on.
    ///
    /// # Errors
    /// [`Code::InvalidEndpoint`] on a platform without multicast; the group is not joined.
    fn join(&mut self, group: Group) -> Result<(), Code>;

    /// Stops hearing `group`.
    ///
    /// # Errors
    /// [`Code::InvalidEndpoint`] when it was not joined.
    fn leave(&mut self, group: Group) -> Result<(), Code>;

    /// The next thing that was learned about a peer outside any call: a refused port, a reset connection.
    fn trouble(&mut self) -> Option<(Addr, Code)>;
}

/// Why [`Platform::wait`] returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Woke {
    /// There may be something to receive, to flush, or trouble to read.
    Ready,
    /// A [`Waker`] called, or a signal came.
    Called,
    /// The time has come.
    Deadline,
}

/// Ends a [`Platform::wait`] from another thread. A call between two waits ends the next one.
#[derive(Clone)]
pub struct Waker(Arc<dyn Fn() + Send + Sync>);

impl Waker {
    /// A waker that runs `wake`, which must be cheap and must not block.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(wake))
    }

    /// Wakes the platform's thread.
    pub fn wake(&self) {
        (self.0)();
    }
}

impl fmt::Debug for Waker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Waker")
    }
}

/// Trouble kept for [`Platform::trouble`]; past it the oldest is forgotten. Trouble is a hint, and repeats.
const TROUBLE_KEPT: usize = 256;

/// What an IP platform checks before it takes a packet.
fn checked_len(packet: &Buf, limit: usize) -> Result<(), Code> {
    if packet.is_empty() || packet.len() > limit { Err(Code::InvalidArgs) } else { Ok(()) }
}
