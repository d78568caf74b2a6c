//! CL between threads of one process: a [`Hub`] and a bounded mailbox for each node.
//!
//! Buffers change hands instead of being copied. A buffer that came from another thread's pool is handed back with
//! that thread's next packet to us, so that a one-way stream allocates nothing on either side.
//!
//! Nodes sit in numbered segments. A group's datagram crosses as many of them as its TTL lets it, less one, so that
//! what multicast decides (TG) can be tried without a router.

use super::{LARGEST_DATAGRAM, Platform, TROUBLE_KEPT, Waker, Woke, checked_len};
use crate::clock::{Clock, sharpen};
use phalanx_core::{Addr, Buf, Code, Group, Instant, Ring};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Packets a mailbox holds; the next are dropped, their tickets fail with [`Code::RemoteResource`].
const MAILBOX: usize = 4096;
/// Packets that wait for [`Platform::flush`]; the next send is refused.
const SEND_QUEUE: usize = 4096;
/// Packets handed out by one receive.
const BATCH: usize = 64;
/// Used buffers kept for the threads they came from; more go to our own pool.
const SPENT_KEPT: usize = 256;
/// Nodes of a hub.
const MAX_NODES: usize = 1 << 16;

/// The network that nodes of one process share.
#[derive(Clone, Default)]
pub struct Hub(Arc<Mutex<Directory>>);

#[derive(Default)]
struct Directory {
    /// By number. Numbers are never used again, so a node may remember whom it found.
    nodes: Vec<Option<Arc<Mailbox>>>,
    groups: BTreeMap<u16, Vec<Member>>,
}

#[derive(Clone)]
struct Member {
    node: u32,
    ttl: u8,
    mailbox: Arc<Mailbox>,
}

struct Mailbox {
    segment: u8,
    /// Something is in the inbox.
    arrived: AtomicBool,
    inbox: Mutex<Inbox>,
    changed: Condvar,
}

struct Inbox {
    packets: Ring<(Addr, Buf)>,
    spent: Vec<Buf>,
    open: bool,
    called: bool,
    /// Its owner sleeps: spares a system call for each packet to one that is awake.
    asleep: bool,
}

struct Outgoing {
    to: Addr,
    packet: Buf,
    ticket: Option<u32>,
}

/// A node of a [`Hub`].
pub struct InProcess {
    hub: Hub,
    number: u32,
    clock: Clock,
    mailbox: Arc<Mailbox>,
    queue: Ring<Outgoing>,
    /// Mailboxes found before, by number.
    known: Vec<Option<Arc<Mailbox>>>,
    /// Who hears a group's datagram: kept for its memory.
    audience: Vec<Member>,
    batch: Vec<(Addr, Buf)>,
    used: Vec<Buf>,
    joined: Vec<Group>,
    troubles: Ring<(Addr, Code)>,
    dropped: u64,
}

impl Hub {
    /// A hub without nodes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A new node in segment 0.
    ///
    /// # Errors
    /// [`Code::LocalResource`] when the hub has had as many nodes as it can number.
    pub fn open(&self) -> Result<InProcess, Code> {
        self.open_in(0)
    }

    /// A new node in `segment`; segments with neighbouring numbers are one router apart.
    ///
    /// # Errors
    /// [`Code::LocalResource`] when the hub has had as many nodes as it can number.
    pub fn open_in(&self, segment: u8) -> Result<InProcess, Code> {
        let inbox = Inbox { packets: Ring::new(MAILBOX), spent: Vec::new(), open: true, called: false, asleep: false };
        let mailbox = Arc::new(Mailbox {
            segment,
            arrived: AtomicBool::new(false),
            inbox: Mutex::new(inbox),
            changed: Condvar::new(),
        });
        let mut directory = self.directory();
        if directory.nodes.len() >= MAX_NODES {
            return Err(Code::LocalResource);
        }
        let number = directory.nodes.len() as u32;
        directory.nodes.push(Some(Arc::clone(&mailbox)));
        drop(directory);
        Ok(InProcess {
            hub: self.clone(),
            number,
            clock: Clock::start(),
            mailbox,
            queue: Ring::new(SEND_QUEUE),
            known: Vec::new(),
            audience: Vec::new(),
            batch: Vec::with_capacity(BATCH),
            used: Vec::with_capacity(BATCH),
            joined: Vec::new(),
            troubles: Ring::new(TROUBLE_KEPT),
            dropped: 0,
        })
    }

    fn directory(&self) -> MutexGuard<'_, Directory> {
        // Nothing under the lock can panic half-way: the data is whole even when a thread died holding it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Platform for InProcess {
    fn local(&self) -> Addr {
        Addr::Local(self.number)
    }

    fn max_datagram(&mut self, _: Addr) -> usize {
        LARGEST_DATAGRAM
    }

    fn send(&mut self, to: Addr, mut packet: Buf, ticket: Option<u32>) -> Result<(), Code> {
        if let Addr::Ip(_) = to {
            return Err(Code::InvalidEndpoint);
        }
        checked_len(&packet, LARGEST_DATAGRAM)?;
        packet.materialize();
        self.queue.push(Outgoing { to, packet, ticket }).map_err(|_| Code::LocalResource)
    }

    fn flush(&mut self, done: &mut impl FnMut(u32, Result<(), Code>)) {
        while let Some(Outgoing { to, packet, ticket }) = self.queue.pop() {
            let outcome = match to {
                Addr::Local(number) => self.deliver(number, packet),
                Addr::Group(group) => self.deliver_group(group, &packet),
                Addr::Ip(_) => Err(Code::InvalidEndpoint),
            };
            match outcome {
                Err(Code::Unreachable) => drop(self.troubles.push_evicting((to, Code::Unreachable))),
                Err(_) => self.dropped += 1,
                Ok(()) => {}
            }
            if let Some(ticket) = ticket {
                done(ticket, outcome);
            }
        }
    }

    fn receive(&mut self, each: &mut impl FnMut(Addr, &mut [u8])) -> Result<usize, Code> {
        // Who spins must not hold the lock that a sender needs.
        if !self.mailbox.arrived.load(Ordering::Acquire) {
            return Ok(0);
        }
        let mut inbox = self.mailbox.inbox();
        let room = SPENT_KEPT.saturating_sub(inbox.spent.len()).min(self.used.len());
        inbox.spent.extend(self.used.drain(..room));
        while self.batch.len() < BATCH
            && let Some(arrived) = inbox.packets.pop()
        {
            self.batch.push(arrived);
        }
        self.mailbox.arrived.store(!inbox.packets.is_empty(), Ordering::Release);
        drop(inbox);
        self.used.clear();
        let count = self.batch.len();
        for (from, mut packet) in self.batch.drain(..) {
            each(from, packet.bytes_mut());
            self.used.push(packet);
        }
        Ok(count)
    }

    fn wait(&mut self, until: Instant) -> Woke {
        sharpen();
        let mut inbox = self.mailbox.inbox();
        loop {
            if !inbox.packets.is_empty() {
                return Woke::Ready;
            }
            if std::mem::take(&mut inbox.called) {
                return Woke::Called;
            }
            let left = self.clock.left(until);
            if left.as_nanos() == 0 {
                return Woke::Deadline;
            }
            inbox.asleep = true;
            let changed = self.mailbox.changed.wait_timeout(inbox, left.into());
            inbox = changed.unwrap_or_else(PoisonError::into_inner).0;
            inbox.asleep = false;
        }
    }

    fn waker(&self) -> Waker {
        let mailbox = Arc::clone(&self.mailbox);
        Waker::new(move || {
            let mut inbox = mailbox.inbox();
            inbox.called = true;
            mailbox.rouse(inbox);
        })
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn join(&mut self, group: Group) -> Result<(), Code> {
        if !self.joined.contains(&group) {
            self.joined.push(group);
            let member = Member { node: self.number, ttl: group.ttl, mailbox: Arc::clone(&self.mailbox) };
            self.hub.directory().groups.entry(group.number).or_default().push(member);
        }
        Ok(())
    }

    fn leave(&mut self, group: Group) -> Result<(), Code> {
        let place = self.joined.iter().position(|g| *g == group).ok_or(Code::InvalidEndpoint)?;
        self.joined.swap_remove(place);
        let mut directory = self.hub.directory();
        if let Some(members) = directory.groups.get_mut(&group.number) {
            members.retain(|m| m.node != self.number || m.ttl != group.ttl);
            if members.is_empty() {
                directory.groups.remove(&group.number);
            }
        }
        Ok(())
    }

    fn trouble(&mut self) -> Option<(Addr, Code)> {
        self.troubles.pop()
    }
}

impl InProcess {
    /// Packets that found a full mailbox.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    fn deliver(&mut self, number: u32, packet: Buf) -> Result<(), Code> {
        let slot = number as usize;
        if self.known.get(slot).is_none_or(Option::is_none) {
            let found = self.hub.directory().nodes.get(slot).cloned().flatten().ok_or(Code::Unreachable)?;
            if self.known.len() <= slot {
                self.known.resize(slot + 1, None);
            }
            self.known[slot] = Some(found);
        }
        let Some(mailbox) = &self.known[slot] else {
            return Err(Code::Unreachable);
        };
        let outcome = mailbox.put(Addr::Local(self.number), packet);
        if outcome == Err(Code::Unreachable) {
            self.known[slot] = None;
        }
        outcome
    }

    /// Sent is sent: who of a group has no room just misses it.
    fn deliver_group(&mut self, group: Group, packet: &Buf) -> Result<(), Code> {
        let own_segment = self.mailbox.segment;
        let own = self.number;
        let directory = self.hub.directory();
        let members = directory.groups.get(&group.number).map_or(&[][..], Vec::as_slice);
        let hears = |m: &&Member| m.node != own && m.mailbox.segment.abs_diff(own_segment) < group.ttl;
        self.audience.extend(members.iter().filter(hears).cloned());
        drop(directory);
        // A node may be in the group under two reaches: it hears once.
        self.audience.sort_by_key(|m| m.node);
        self.audience.dedup_by_key(|m| m.node);
        for member in self.audience.drain(..) {
            if member.mailbox.put(Addr::Local(own), packet.clone()).is_err() {
                self.dropped += 1;
            }
        }
        Ok(())
    }
}

impl Mailbox {
    fn inbox(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, from: Addr, packet: Buf) -> Result<(), Code> {
        let mut inbox = self.inbox();
        if !inbox.open {
            return Err(Code::Unreachable);
        }
        inbox.packets.push((from, packet)).map_err(|_| Code::RemoteResource)?;
        self.arrived.store(true, Ordering::Release);
        let spent = inbox.spent.pop();
        self.rouse(inbox);
        // Into this thread's pool, outside the lock.
        drop(spent);
        Ok(())
    }

    /// Lets go of the inbox and wakes its owner: in this order, or it would wake into a lock that is held.
    fn rouse(&self, inbox: MutexGuard<'_, Inbox>) {
        let asleep = inbox.asleep;
        drop(inbox);
        if asleep {
            self.changed.notify_one();
        }
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        while let Some(&group) = self.joined.last() {
            let _ = self.leave(group);
        }
        self.hub.directory().nodes[self.number as usize] = None;
        let mut inbox = self.mailbox.inbox();
        inbox.open = false;
        while inbox.packets.pop().is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(from: &mut InProcess, to: Addr, bytes: &[u8]) -> Result<(), Code> {
        let mut outcome = None;
        from.send(to, Buf::copy_of(bytes), Some(1)).unwrap();
        from.flush(&mut |_, o| outcome = Some(o));
        outcome.expect("a ticket ends")
    }

    /// CL-2: a stream in one direction uses the same few buffers over and over.
    #[test]
    fn buffers_return_to_the_thread_they_came_from() {
        let hub = Hub::new();
        let (mut a, mut b) = (hub.open().unwrap(), hub.open().unwrap());
        let mut places = Vec::new();
        for _ in 0..8 {
            let packet = Buf::copy_of(&[1; 300]);
            places.push(packet.bytes().as_ptr() as usize);
            a.send(b.local(), packet, None).unwrap();
            a.flush(&mut |_, _| {});
            // On another thread, as in life: its pool is not ours.
            b = std::thread::spawn(move || {
                assert_eq!(b.receive(&mut |_, _| {}), Ok(1));
                b
            })
            .join()
            .unwrap();
        }
        places.sort_unstable();
        places.dedup();
        assert!(places.len() <= 3, "{} buffers for 8 messages", places.len());
    }

    #[test]
    fn a_full_mailbox_drops_and_says_so() {
        let hub = Hub::new();
        let (mut a, b) = (hub.open().unwrap(), hub.open().unwrap());
        for _ in 0..MAILBOX {
            assert_eq!(sent(&mut a, b.local(), b"x"), Ok(()));
        }
        assert_eq!(sent(&mut a, b.local(), b"x"), Err(Code::RemoteResource));
        assert_eq!(a.dropped(), 1);
    }

    /// TG: a datagram with TTL t is heard up to t − 1 routers away.
    #[test]
    fn reach_follows_the_ttl() {
        let hub = Hub::new();
        let mut nodes: Vec<_> = (0..4).map(|segment| hub.open_in(segment).unwrap()).collect();
        for node in &mut nodes {
            node.join(Group { number: 5, ttl: 1 }).unwrap();
            node.join(Group { number: 5, ttl: 9 }).unwrap();
        }
        assert_eq!(sent(&mut nodes[0], Addr::Group(Group { number: 5, ttl: 3 }), b"x"), Ok(()));
        let heard: Vec<_> = nodes.iter_mut().map(|n| n.receive(&mut |_, _| {}).unwrap()).collect();
        assert_eq!(heard, [0, 1, 1, 0]);
    }

    #[test]
    fn a_node_that_left_is_unreachable_and_leaves_nothing_behind() {
        let hub = Hub::new();
        let (mut a, mut b) = (hub.open().unwrap(), hub.open().unwrap());
        b.join(Group { number: 1, ttl: 1 }).unwrap();
        let gone = b.local();
        assert_eq!(sent(&mut a, gone, b"x"), Ok(()));
        drop(b);
        assert_eq!(sent(&mut a, gone, b"x"), Err(Code::Unreachable));
        assert_eq!(a.trouble(), Some((gone, Code::Unreachable)));
        assert!(hub.directory().groups.is_empty());
    }
}
