//! Loops that nodes run in: one alone in its process, or many that share a thread.
//!
//! The same loops serve tasks and bare nodes, so that neither has an advantage: one alone waits in its own socket, those that share a
//! thread wait in one epoll set.

use super::words::{Answer, Order};
use crate::error::Error;
use nix::sys::epoll::EpollFlags;
use nix::sys::eventfd::{EfdFlags, EventFd};
use phalanx_core::{Duration, Instant};
use phalanx_daemon::platform::poller::Poller;
use phalanx_daemon::{Clock, Waker};
use std::collections::BTreeSet;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};

/// The bell's mark.
const BELL: u64 = u64::MAX - 1;

/// Says something to the experiment.
pub(super) type Say<'s> = dyn FnMut(Answer) + 's;

/// A node of the tree.
pub(super) trait Node {
    /// Does what it is told.
    fn obey(&mut self, order: Order, say: &mut Say<'_>) -> Result<(), Error>;

    /// Something is to be done: `part` of its files is ready, or it is due.
    fn work(&mut self, part: u16, say: &mut Say<'_>) -> Result<(), Error>;

    /// What to wait for, in numbered parts.
    fn files(&self) -> Vec<(u16, BorrowedFd<'_>)>;

    /// When it is due.
    fn due_in(&self) -> Option<Duration> {
        None
    }

    /// Alone: what ends a [`Node::wait`]. `None` when it cannot wait by itself.
    fn waker(&self) -> Option<Waker>;

    /// Alone: waits until there is something to do.
    fn wait(&mut self) -> Result<(), Error>;
}

/// Something that calls a thread of many.
pub(super) fn bell() -> Result<Arc<EventFd>, Error> {
    Ok(Arc::new(EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?))
}

/// What rings it.
pub(super) fn ringer(bell: &Arc<EventFd>) -> Waker {
    let bell = Arc::clone(bell);
    Waker::new(move || {
        // It fails when it has rung 2⁶⁴ times unheard.
        let _ = bell.write(1);
    })
}

/// Serves one node until it is told to end.
pub(super) fn alone(
    mut node: impl Node,
    orders: &Receiver<(usize, Order)>,
    say: &mut dyn FnMut(usize, Answer),
) -> Result<(), Error> {
    loop {
        loop {
            match orders.try_recv() {
                Ok((_, Order::End)) | Err(TryRecvError::Disconnected) => return Ok(()),
                Ok((_, order)) => node.obey(order, &mut |a| say(0, a))?,
                Err(TryRecvError::Empty) => break,
            }
        }
        node.work(0, &mut |a| say(0, a))?;
        node.wait()?;
    }
}

/// Serves many in this thread until they are told to end.
pub(super) fn together<N: Node>(
    nodes: Vec<N>,
    bell: &EventFd,
    orders: &Receiver<(usize, Order)>,
    say: &mut dyn FnMut(usize, Answer),
) -> Result<(), Error> {
    let (clock, mut poller) = (Clock::start(), Poller::new()?);
    poller.add(bell, BELL, EpollFlags::EPOLLIN)?;
    let (mut due, mut queue) = (vec![Instant::NEVER; nodes.len()], BTreeSet::new());
    let (mut nodes, mut known) = (nodes, BTreeSet::new());
    let mut ready = Vec::new();
    loop {
        loop {
            match orders.try_recv() {
                Ok((_, Order::End)) | Err(TryRecvError::Disconnected) => return Ok(()),
                Ok((at, order)) => {
                    let may_open = matches!(order, Order::Meet { .. } | Order::Take);
                    nodes[at].obey(order, &mut |a| say(at, a))?;
                    for (part, file) in if may_open { nodes[at].files() } else { Vec::new() } {
                        let mark = (at as u64) << 16 | u64::from(part);
                        if known.insert(mark) {
                            poller.add(file, mark, EpollFlags::EPOLLIN)?;
                        }
                    }
                    remember(&nodes[at], at, &clock, &mut due, &mut queue);
                }
                Err(TryRecvError::Empty) => break,
            }
        }
        while let Some(&(_, at)) = queue.first().filter(|(when, _)| *when <= clock.now()) {
            nodes[at].work(0, &mut |a| say(at, a))?;
            remember(&nodes[at], at, &clock, &mut due, &mut queue);
        }
        let until = queue.first().map_or(Instant::NEVER, |d| d.0);
        ready.clear();
        // A signal is none of our business.
        let _ = poller.wait(&clock, until, &mut |mark, _| ready.push(mark));
        for &mark in &ready {
            if mark == BELL {
                let _ = bell.read();
                continue;
            }
            let at = (mark >> 16) as usize;
            nodes[at].work(mark as u16, &mut |a| say(at, a))?;
            remember(&nodes[at], at, &clock, &mut due, &mut queue);
        }
    }
}

/// When a node is due next.
fn remember(node: &impl Node, at: usize, clock: &Clock, due: &mut [Instant], queue: &mut BTreeSet<(Instant, usize)>) {
    let when = node.due_in().map_or(Instant::NEVER, |left| clock.now() + left);
    if when != due[at] {
        queue.remove(&(due[at], at));
        due[at] = when;
        if when != Instant::NEVER {
            queue.insert((when, at));
        }
    }
}
