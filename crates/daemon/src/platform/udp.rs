//! CL over UDP: the platform for real networks.
//!
//! A lone packet costs what a bare `sendto` and `recvmsg` cost: the blocking wait is itself a receive whose
//! datagram the next [`Platform::receive`] hands out. Packets queued for one peer leave as one run (GSO) and arrive
//! as one (GRO), gathered from their own buffers. Nothing is copied or allocated for a message (CL-2).

mod alarm;
mod bell;
mod groups;
mod lanes;
mod socket;

use super::errno::{code_of, code_of_io};
use super::{LARGEST_DATAGRAM, Platform, TROUBLE_KEPT, Waker, Woke, checked_len};
use crate::clock::{Clock, sharpen};
use alarm::Alarm;
use bell::Bell;
use groups::{Groups, is_echo};
use lanes::Lanes;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use phalanx_core::{Addr, Buf, Code, Duration, Group, Instant, Ring};
use socket::{Patience, RUN_BYTES, RUN_DATAGRAMS, Received, Wire};
use std::collections::HashMap;
use std::io::IoSlice;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// Packets that wait for [`Platform::flush`]; the next send is refused.
const SEND_QUEUE: usize = 8192;
/// System calls in one receive, so that a flood cannot keep the host from its timers.
const RECEIVE_CALLS: usize = 16;
/// Receives between two looks for a second datagram, while none is found: a look costs 0.2 µs.
const LOOK_EVERY: u32 = 64;
/// Receives between two looks at the group socket of a host that spins; one that waits is told by the poller.
const GROUP_LOOK_EVERY: u32 = 16;
/// IPv6's least MTU less its headers: what fits everywhere needs no look at the path's limit.
const FITS_EVERYWHERE: usize = 1280 - 48;
/// Paths whose limit is remembered; past it all are forgotten, and the kernel fragments what is too large.
const PATHS_KEPT: usize = 8192;
/// A deadline nearer than this is waited for in a poll: not worth waking the alarm's thread for.
const NEAR: Duration = Duration::from_micros(300);
/// The alarm rings so much before the deadline, which leaves its thread time to wake; the rest is polled precisely.
const EARLY: Duration = Duration::from_micros(150);
/// Waits in a row that a packet ended before the alarm's thread is woken for an earlier deadline: a lone exchange is over before the
/// thread has run, and costs the processor two switches.
const BUSY_WAITS: u32 = 8;
/// Asynchronous errors that one call clears away before it gives up: each call reports one of them.
const ERRORS_PER_CALL: usize = 8;

/// How to open the platform. `Options::at(address)` has the usual values.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Where to bind; port 0 takes any.
    pub bind: SocketAddr,
    /// The address peers reach us at, when it is not the bound one (a wildcard, a translated address).
    pub advertise: Option<SocketAddr>,
    /// The port that members of multicast groups share.
    pub group_port: u16,
    /// IPv6: the index of the interface for multicast; 0 is the system's choice.
    pub interface: u32,
    /// It is one of many in a process, and takes one descriptor: no bell, no lanes. Its driver waits for
    /// [`Udp::socket`] with those of the others, and is called by other means: its wakers do nothing.
    pub crowded: bool,
}

impl Options {
    /// The port for multicast groups unless told otherwise.
    pub const GROUP_PORT: u16 = 7947;

    /// Binds `bind`, all else as usual.
    #[must_use]
    pub fn at(bind: SocketAddr) -> Self {
        Self { bind, advertise: None, group_port: Self::GROUP_PORT, interface: 0, crowded: false }
    }
}

/// What happened, for metrics.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Sends refused because the queue was full.
    pub refused: u64,
    /// Datagrams that the kernel would not send.
    pub failed: u64,
    /// Calls that sent a run of datagrams at once.
    pub runs: u64,
    /// Runs that failed and turned segmentation off for good: 0 or 1.
    pub gso_off: u64,
    /// Empty datagrams from strangers, ignored.
    pub empty: u64,
    /// Asynchronous errors read from the socket.
    pub late_errors: u64,
}

struct Outgoing {
    /// Resolved at once, so that equal destinations are found by comparing.
    to: SocketAddr,
    group: Option<Group>,
    packet: Buf,
    ticket: Option<u32>,
    /// To a peer that was heard just now: may take a lane.
    answer: bool,
}

/// The address whose interface carries multicast: the one that others know, where that is ours, rather than any.
fn carrier(local: SocketAddr, advertise: Option<SocketAddr>) -> IpAddr {
    let known = advertise.map(|a| a.ip()).filter(|ip| local.ip().is_unspecified() && ip.is_ipv4() == local.is_ipv4());
    known.filter(|&ip| UdpSocket::bind((ip, 0)).is_ok()).unwrap_or(local.ip())
}

/// The UDP platform.
pub struct Udp {
    wire: Wire,
    local: SocketAddr,
    advertised: Addr,
    clock: Clock,
    /// None where [`Options::crowded`] says so.
    bell: Option<Arc<Bell>>,
    /// Started by the first wait that blocks: a host that spins needs none.
    alarm: Option<Alarm>,
    groups: Groups,
    lanes: Option<Lanes>,
    queue: Ring<Outgoing>,
    /// Received by a wait, not handed out yet; its bytes lie in the wire's buffer.
    waiting: Option<Received>,
    /// The kernel's send buffer was full: the next wait also waits for room.
    choked: bool,
    /// The last batch was more than one datagram: the next probably is too.
    busy: bool,
    /// The last receive brought something, and nobody has waited since: who receives again wants all that is there.
    again: bool,
    /// Packets came or went since a wait came to its end without any.
    lively: bool,
    /// A wait has just found that nothing is there.
    is_drained: bool,
    /// Something else to wait for.
    beside: Option<OwnedFd>,
    looks: u32,
    /// Waits in a row in a poll, because the alarm would have had to be woken, that a packet ended.
    polled: u32,
    group_looks: u32,
    gso: bool,
    limits: HashMap<SocketAddr, usize>,
    /// The lowest of them: what fits there needs no look-up.
    least_limit: usize,
    troubles: Ring<(Addr, Code)>,
    counts: Counts,
}

impl Udp {
    /// Opens the platform.
    ///
    /// # Errors
    /// What the system said; nothing stays open.
    pub fn open(options: Options) -> std::io::Result<Self> {
        let wire = Wire::bind(options.bind, false)?;
        let local = wire.socket.local_addr()?;
        Ok(Self {
            local,
            advertised: Addr::Ip(options.advertise.unwrap_or(local)),
            clock: Clock::start(),
            bell: if options.crowded { None } else { Some(Arc::new(Bell::for_socket(local)?)) },
            alarm: None,
            groups: Groups::new(carrier(local, options.advertise), options.interface, options.group_port),
            lanes: (!options.crowded).then(Lanes::default),
            queue: Ring::new(SEND_QUEUE),
            waiting: None,
            choked: false,
            busy: false,
            again: false,
            lively: false,
            is_drained: false,
            beside: None,
            looks: 0,
            polled: 0,
            group_looks: 0,
            gso: true,
            limits: HashMap::new(),
            least_limit: LARGEST_DATAGRAM,
            troubles: Ring::new(TROUBLE_KEPT),
            counts: Counts::default(),
            wire,
        })
    }

    /// Waits for this file, too, as long as it has something to read: a wait ends with [`Woke::Ready`] then. For who hears it often, so that
    /// no thread has to wait for it and ring; a lone packet costs a call more from now on.
    pub fn wait_beside(&mut self, file: OwnedFd) {
        self.beside = Some(file);
    }

    /// What happened so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// The socket itself, for what this crate does not know.
    #[must_use]
    pub fn socket(&self) -> &UdpSocket {
        &self.wire.socket
    }

    /// True when the kernel coalesces what it receives, which it does from the first bulk on.
    #[must_use]
    pub fn coalesces(&self) -> bool {
        self.wire.coalesces()
    }
}

impl Platform for Udp {
    fn local(&self) -> Addr {
        self.advertised
    }

    fn max_datagram(&mut self, to: Addr) -> usize {
        let Addr::Ip(to) = to else {
            // A group's datagrams go over whatever its members sit on.
            return FITS_EVERYWHERE;
        };
        let headers = if to.is_ipv4() { 20 + 8 } else { 40 + 8 };
        let limit = socket::path_mtu(self.local, to).map_or(FITS_EVERYWHERE, |mtu| mtu.saturating_sub(headers));
        let limit = limit.clamp(FITS_EVERYWHERE, LARGEST_DATAGRAM);
        self.remember(to, limit);
        limit
    }

    #[inline]
    fn send(&mut self, to: Addr, packet: Buf, ticket: Option<u32>) -> Result<(), Code> {
        self.enqueue(to, packet, ticket, false)
    }

    #[inline]
    fn answer(&mut self, to: Addr, packet: Buf, ticket: Option<u32>) -> Result<(), Code> {
        self.enqueue(to, packet, ticket, true)
    }

    fn flush(&mut self, done: &mut impl FnMut(u32, Result<(), Code>)) {
        self.choked = false;
        while let Some(first) = self.queue.front() {
            let (to, group) = (first.to, first.group);
            if let Some(group) = group
                && let Err(e) = self.groups.aim(&self.wire, group)
            {
                self.finish(1, Err(e), done);
                continue;
            }
            let run = if self.gso && self.queue.len() > 1 { self.run() } else { 1 };
            let outcome = if run > 1 { self.send_run(to, run) } else { self.send_single(to) };
            match outcome {
                Err(Errno::EAGAIN) => {
                    self.choked = true;
                    return;
                }
                // Bound to no address, and none of ours is any more the one that multicasts left from: this host was moved.
                Err(_) if group.is_some() && self.local.ip().is_unspecified() && self.groups.move_on(&self.wire) => {}
                Err(Errno::EIO | Errno::EINVAL) if run > 1 => {
                    // This path's driver cannot cut a run. Others may, but a daemon that finds out again with each
                    // peer is worse off than one without.
                    self.gso = false;
                    self.counts.gso_off += 1;
                }
                // One of the run is too long for the path: singly the kernel may fragment it.
                Err(Errno::EMSGSIZE) if run > 1 => {
                    let outcome = self.send_one(to);
                    self.finish(1, outcome, done);
                }
                outcome => self.finish(run, outcome, done),
            }
        }
    }

    fn receive(&mut self, each: &mut impl FnMut(Addr, &mut [u8])) -> Result<usize, Code> {
        if std::mem::take(&mut self.is_drained) {
            return Ok(0);
        }
        let mut count = 0;
        let all = self.busy || self.again;
        if let Some(received) = self.waiting.take() {
            count += self.hand_out(received, each);
            // Light traffic: nothing is behind it, and finding that out costs a call.
            if !all && count == 1 && !self.look() {
                self.adapt(count);
                return Ok(count);
            }
        }
        let mut errors = 0;
        for _ in 0..RECEIVE_CALLS {
            match self.wire.receive() {
                Ok(received) => count += self.hand_out(received, each),
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => {}
                Err(e) => {
                    errors += 1;
                    if !self.late_errors() && errors > ERRORS_PER_CALL {
                        return Err(code_of(e));
                    }
                }
            }
            if !all && count == 1 && !self.look() {
                break;
            }
        }
        self.adapt(count);
        self.group_looks += 1;
        if self.groups.wire.is_some() && (count == 0 || self.group_looks >= GROUP_LOOK_EVERY) {
            self.group_looks = 0;
            count += self.receive_groups(each);
        }
        Ok(count)
    }

    fn wait(&mut self, until: Instant) -> Woke {
        self.again = false;
        loop {
            self.is_drained = false;
            if self.waiting.is_some() {
                return Woke::Ready;
            }
            if self.bell.as_ref().is_some_and(|b| b.answer()) {
                return Woke::Called;
            }
            let now = self.clock.now();
            let left = until.since(now);
            let blocks = self.groups.wire.is_none() && !self.choked && self.beside.is_none();
            let patience = self.wire.patience_for(left).filter(|p| *p == Patience::Long || self.lively);
            let woke = match patience {
                Some(patience) if blocks => self.wait_for_a_packet(patience),
                None if blocks && left >= NEAR => self.wait_blocked(now, until),
                _ => self.wait_precisely(now, until),
            };
            if let Some(woke) = woke {
                return woke;
            }
        }
    }

    fn waker(&self) -> Waker {
        let bell = self.bell.clone();
        Waker::new(move || bell.iter().for_each(|b| b.ring()))
    }

    fn now(&self) -> Instant {
        self.clock.now()
    }

    fn join(&mut self, group: Group) -> Result<(), Code> {
        self.groups.join(group)
    }

    fn leave(&mut self, group: Group) -> Result<(), Code> {
        self.groups.leave(group)
    }

    fn trouble(&mut self) -> Option<(Addr, Code)> {
        self.troubles.pop()
    }
}

/// Sending.
impl Udp {
    #[inline]
    fn enqueue(&mut self, to: Addr, mut packet: Buf, ticket: Option<u32>, answer: bool) -> Result<(), Code> {
        let (to, group) = match to {
            Addr::Ip(to) if to.is_ipv4() == self.local.is_ipv4() => (to, None),
            Addr::Group(group) => (self.groups.address(group), Some(group)),
            Addr::Ip(_) | Addr::Local(_) => return Err(Code::InvalidEndpoint),
        };
        if packet.is_empty() {
            return Err(Code::InvalidArgs);
        }
        if packet.len() > self.least_limit {
            checked_len(&packet, self.limits.get(&to).copied().unwrap_or(LARGEST_DATAGRAM))?;
        }
        packet.materialize();
        self.queue.push(Outgoing { to, group, packet, ticket, answer }).map_err(|_| {
            self.counts.refused += 1;
            Code::LocalResource
        })
    }

    /// How many packets at the head of the queue can leave as one run.
    fn run(&self) -> usize {
        let mut packets = self.queue.iter();
        let Some(first) = packets.next() else {
            return 0;
        };
        let stride = first.packet.len();
        let (mut run, mut bytes) = (1, stride);
        for next in packets.take(RUN_DATAGRAMS - 1) {
            let len = next.packet.len();
            bytes += len;
            if next.to != first.to || next.group != first.group || len > stride || bytes > RUN_BYTES {
                break;
            }
            run += 1;
            if len < stride {
                break;
            }
        }
        run
    }

    /// One datagram: an answer on its peer's lane if there is one, all else by the main socket.
    #[inline]
    fn send_single(&mut self, to: SocketAddr) -> Result<(), Errno> {
        if let Some(Outgoing { answer: true, packet, .. }) = self.queue.front()
            && let Some(lanes) = &mut self.lanes
            && let Some(outcome) = lanes.answer(self.local, to, packet.bytes())
        {
            return outcome;
        }
        self.send_one(to)
    }

    fn send_one(&mut self, to: SocketAddr) -> Result<(), Errno> {
        self.past_late_errors(|udp| match udp.queue.front() {
            Some(first) => udp.wire.send(to, first.packet.bytes()),
            None => Ok(()),
        })
    }

    fn send_run(&mut self, to: SocketAddr, run: usize) -> Result<(), Errno> {
        self.counts.runs += 1;
        self.past_late_errors(|udp| {
            let mut slices = [IoSlice::new(&[]); RUN_DATAGRAMS];
            for (slice, packet) in slices.iter_mut().zip(udp.queue.iter().take(run)) {
                *slice = IoSlice::new(packet.packet.bytes());
            }
            let stride = slices[0].len();
            udp.wire.send_run(to, &slices[..run], stride)
        })
    }

    /// Repeats a send that only told of the failure of an earlier one.
    fn past_late_errors(&mut self, mut send: impl FnMut(&Self) -> Result<(), Errno>) -> Result<(), Errno> {
        for _ in 0..ERRORS_PER_CALL {
            match send(self) {
                Ok(()) => return Ok(()),
                Err(Errno::EAGAIN) => return Err(Errno::EAGAIN),
                Err(Errno::EINTR) => {}
                Err(e) => {
                    if !self.late_errors() {
                        return Err(e);
                    }
                }
            }
        }
        send(self)
    }

    /// Takes `n` packets off the queue and tells what became of them.
    fn finish(&mut self, n: usize, outcome: Result<(), Errno>, done: &mut impl FnMut(u32, Result<(), Code>)) {
        if outcome.is_err() {
            self.counts.failed += n as u64;
        }
        for _ in 0..n {
            if let Some(Outgoing { ticket: Some(ticket), .. }) = self.queue.pop() {
                done(ticket, outcome.map_err(code_of));
            }
        }
    }
}

/// Receiving.
impl Udp {
    fn hand_out(&mut self, received: Received, each: &mut impl FnMut(Addr, &mut [u8])) -> usize {
        if self.is_bell(received.from) {
            return 0;
        }
        if received.len == 0 {
            self.counts.empty += 1;
            return 0;
        }
        let from = Addr::Ip(received.from);
        if received.stride >= received.len {
            each(from, self.wire.bytes(received));
            return 1;
        }
        let datagrams = self.wire.bytes(received).chunks_mut(received.stride);
        let count = datagrams.len();
        datagrams.for_each(|bytes| each(from, bytes));
        count
    }

    fn receive_groups(&mut self, each: &mut impl FnMut(Addr, &mut [u8])) -> usize {
        let mut count = 0;
        let Some(wire) = &mut self.groups.wire else {
            return 0;
        };
        for _ in 0..RECEIVE_CALLS {
            let Ok(received) = wire.receive() else {
                break;
            };
            if is_echo(received.from, self.advertised) || received.len == 0 {
                continue;
            }
            for bytes in wire.bytes(received).chunks_mut(received.stride) {
                each(Addr::Ip(received.from), bytes);
                count += 1;
            }
        }
        count
    }

    #[inline]
    fn is_bell(&self, from: SocketAddr) -> bool {
        self.bell.as_ref().is_some_and(|b| b.sent(from))
    }

    /// True now and then: whether a second datagram waits behind the first is found out only by looking.
    fn look(&mut self) -> bool {
        self.looks += 1;
        if self.looks < LOOK_EVERY {
            return false;
        }
        self.looks = 0;
        true
    }

    /// Learns from a batch: bulk wants coalescing, a lone datagram the plainest call (0.2 µs less).
    #[inline]
    fn adapt(&mut self, count: usize) {
        (self.busy, self.again) = (count > 1, count > 0);
        self.lively |= count > 0;
        if self.busy && !self.wire.coalesces() {
            self.wire.coalesce();
        }
    }

    /// Moves the socket's asynchronous errors to our trouble; true when there were any.
    #[cold]
    fn late_errors(&mut self) -> bool {
        let mut any = false;
        while let Some(late) = self.wire.late() {
            any = true;
            self.counts.late_errors += 1;
            // A path that has become narrower is nobody's trouble: the kernel remembers and fragments what is longer, and
            // a reliable packet that was cut for the old path still gets through. New sessions ask anew.
            if late.errno != Errno::EMSGSIZE {
                self.troubles.push_evicting((Addr::Ip(late.to), code_of(late.errno)));
            }
        }
        any
    }

    fn remember(&mut self, to: SocketAddr, limit: usize) {
        if self.limits.len() >= PATHS_KEPT {
            self.limits.clear();
            self.least_limit = LARGEST_DATAGRAM;
        }
        self.limits.insert(to, limit);
        self.least_limit = self.least_limit.min(limit);
    }
}

/// Waiting.
impl Udp {
    /// Waits inside a receive; `None` when the alarm or a call ended it, to be looked at again.
    fn wait_blocked(&mut self, now: Instant, until: Instant) -> Option<Woke> {
        if self.alarm.is_none()
            && let Some(bell) = &self.bell
        {
            self.alarm = Alarm::start(self.clock, Arc::clone(bell)).ok();
        }
        let at = until - EARLY;
        let is_worth_it = |alarm: &&Alarm| alarm.looks_by(at) || self.polled >= BUSY_WAITS;
        let Some(alarm) = self.alarm.as_ref().filter(is_worth_it) else {
            // Also without a bell, or when there are no more threads to be had: polling costs a little more and does the same.
            let woke = self.wait_precisely(now, until);
            self.polled = if woke == Some(Woke::Ready) { self.polled + 1 } else { 0 };
            return woke;
        };
        self.polled = 0;
        alarm.set(at);
        // Another patience costs a call, and the alarm rings in any case.
        let woke = self.wait_for_a_packet(if self.lively { self.wire.patience() } else { Patience::Long });
        if let Some(alarm) = &self.alarm {
            alarm.clear();
        }
        woke
    }

    /// Waits inside a receive; `None` when a call ended it, or nothing came.
    fn wait_for_a_packet(&mut self, patience: Patience) -> Option<Woke> {
        match self.wire.receive_blocking(patience) {
            Ok(received) if self.is_bell(received.from) => None,
            Ok(received) => {
                self.waiting = Some(received);
                Some(Woke::Ready)
            }
            Err(Errno::EINTR) => Some(Woke::Called),
            // We look at the clock.
            Err(Errno::EAGAIN) => {
                self.lively = false;
                None
            }
            Err(_) => {
                self.late_errors();
                Some(Woke::Ready)
            }
        }
    }

    /// Waits in a poll, to the nanosecond as far as the kernel keeps it. Nothing stays registered: a socket in an epoll
    /// set pays for it with each datagram (0.2 µs), also when nobody polls.
    fn wait_precisely(&mut self, now: Instant, until: Instant) -> Option<Woke> {
        sharpen();
        let mut interest = PollFlags::POLLIN;
        interest.set(PollFlags::POLLOUT, self.choked);
        let socket = self.wire.socket.as_fd();
        let (group, beside) =
            (self.groups.wire.as_ref().map(|w| w.socket.as_fd()), self.beside.as_ref().map(AsFd::as_fd));
        let count = 1 + usize::from(group.is_some()) + usize::from(beside.is_some());
        let mut others = group.into_iter().chain(beside);
        let mut other = || PollFd::new(others.next().unwrap_or(socket), PollFlags::POLLIN);
        let mut all = [PollFd::new(socket, interest), other(), other()];
        let files = &mut all[..count];
        let left = (until != Instant::NEVER).then(|| TimeSpec::from_duration(until.since(now).into()));
        let ready = ppoll(files, left, None);
        let main = files[0].revents().unwrap_or(PollFlags::empty());
        if main.contains(PollFlags::POLLERR) {
            self.late_errors();
        }
        match ready {
            Err(_) => Some(Woke::Called),
            Ok(0) => {
                self.is_drained = true;
                (self.clock.now() >= until).then_some(Woke::Deadline)
            }
            // Only taking it shows whether it is a packet, or a ring that came too late to matter.
            Ok(1) if main == PollFlags::POLLIN => match self.wire.receive() {
                Ok(received) if self.is_bell(received.from) => None,
                Ok(received) => {
                    self.waiting = Some(received);
                    Some(Woke::Ready)
                }
                Err(_) => Some(Woke::Ready),
            },
            Ok(_) => Some(Woke::Ready),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};

    fn open() -> Udp {
        Udp::open(Options::at("127.0.0.1:0".parse().unwrap())).unwrap()
    }

    fn wait_for(udp: &mut Udp, n: usize) -> Vec<Vec<u8>> {
        let mut got = Vec::new();
        let until = udp.now() + Duration::from_secs(5);
        while got.len() < n && udp.wait(until) != Woke::Deadline {
            udp.receive(&mut |_, bytes| got.push(bytes.to_vec())).unwrap();
        }
        got
    }

    /// CL-2: packets to one peer that wait together leave together.
    #[test]
    fn equal_packets_leave_as_one_run_and_the_rest_singly() {
        let (mut a, mut b, mut c) = (open(), open(), open());
        for i in 0..10 {
            a.send(b.local(), Buf::copy_of(&[i; 100]), None).unwrap();
        }
        a.send(b.local(), Buf::copy_of(&[10; 40]), None).unwrap();
        a.send(c.local(), Buf::copy_of(&[11; 100]), None).unwrap();
        a.flush(&mut |_, _| panic!("no tickets were given"));
        assert_eq!(a.counts().runs, 1);
        let lengths: Vec<usize> = wait_for(&mut b, 11).iter().map(Vec::len).collect();
        assert_eq!(lengths, [[100; 10].as_slice(), &[40]].concat());
        assert_eq!(wait_for(&mut c, 1), [[11; 100]]);
    }

    /// A file that can be read ends a wait as often as it can, and packets come as they always do.
    #[test]
    fn a_file_beside_the_socket_ends_a_wait() {
        let (mut a, mut b) = (open(), open());
        let (mut reader, mut writer) = std::io::pipe().unwrap();
        b.wait_beside(reader.try_clone().unwrap().into());
        let (until, waker) = (b.now() + Duration::from_secs(5), b.waker());
        writer.write_all(b"xy").unwrap();
        for _ in 0..2 {
            assert_eq!(b.wait(until), Woke::Ready);
            assert_eq!(b.receive(&mut |_, _| panic!("no packet was sent")), Ok(0));
            reader.read_exact(&mut [0]).unwrap();
        }
        assert_eq!(b.wait(b.now() + Duration::from_millis(2)), Woke::Deadline);
        waker.wake();
        assert_eq!(b.wait(until), Woke::Called);
        // Both at once.
        writer.write_all(b"z").unwrap();
        a.send(b.local(), Buf::copy_of(b"packet"), None).unwrap();
        a.flush(&mut |_, _| {});
        assert_eq!(wait_for(&mut b, 1), [b"packet"]);
        assert_eq!(b.wait(until), Woke::Ready);
    }

    /// CL-2: the first bulk makes the kernel coalesce, and nothing is lost over it.
    #[test]
    fn coalescing_begins_with_bulk() {
        let (mut a, mut b) = (open(), open());
        for _ in 0..20 {
            (0..20).for_each(|_| a.send(b.local(), Buf::copy_of(&[1; 100]), None).unwrap());
            a.flush(&mut |_, _| {});
            assert_eq!(wait_for(&mut b, 20).len(), 20);
        }
        assert!(b.coalesces() && !a.coalesces());
    }

    /// CL-3: a driver that cannot cut runs costs one failure, and loses nothing.
    #[test]
    fn without_segmentation_packets_leave_one_by_one() {
        let (mut a, mut b) = (open(), open());
        a.gso = false;
        for i in 0..10 {
            a.send(b.local(), Buf::copy_of(&[i; 100]), Some(u32::from(i))).unwrap();
        }
        let mut told = Vec::new();
        a.flush(&mut |ticket, outcome| told.push((ticket, outcome)));
        assert_eq!(told, (0..10).map(|i| (i, Ok(()))).collect::<Vec<_>>());
        assert_eq!((wait_for(&mut b, 10).len(), a.counts().runs), (10, 0));
    }

    /// CL-3: a closed port does not swallow packets to others, and is told by address.
    #[test]
    fn a_closed_peer_is_trouble_and_harms_nobody_else() {
        let (mut a, mut b) = (open(), open());
        let closed = open().local();
        for _ in 0..20 {
            a.send(closed, Buf::copy_of(b"dead"), None).unwrap();
            a.send(b.local(), Buf::copy_of(b"alive"), None).unwrap();
            a.flush(&mut |_, _| {});
        }
        assert_eq!(wait_for(&mut b, 20).len(), 20);
        a.receive(&mut |_, _| {}).unwrap();
        assert_eq!(a.trouble(), Some((closed, Code::Unreachable)));
    }

    #[test]
    fn a_blocked_wait_ends_at_a_deadline_a_packet_and_a_call() {
        let (mut a, mut b) = (open(), open());
        let until = a.now() + NEAR * 10;
        assert_eq!(a.wait(until), Woke::Deadline);
        assert!(a.now() >= until);
        assert!(a.alarm.is_some(), "this wait was to be a blocking receive");
        b.send(a.local(), Buf::copy_of(b"hello"), None).unwrap();
        b.flush(&mut |_, _| {});
        assert_eq!(a.wait(Instant::NEVER), Woke::Ready);
        assert_eq!(a.receive(&mut |_, bytes| assert_eq!(bytes, b"hello")), Ok(1));
        let waker = a.waker();
        let caller = std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(5));
            waker.wake();
        });
        assert_eq!(a.wait(Instant::NEVER), Woke::Called);
        caller.join().unwrap();
    }

    /// CL-1: outside loopback a datagram fits in a frame.
    #[test]
    fn the_limit_of_a_path_is_kept_by_send() {
        let mut a = open();
        let to: SocketAddr = "127.0.0.1:9".parse().unwrap();
        assert_eq!(a.max_datagram(Addr::Ip(to)), LARGEST_DATAGRAM);
        a.remember(to, 1472);
        assert_eq!(a.send(Addr::Ip(to), Buf::copy_of(&[0; 1473]), None), Err(Code::InvalidArgs));
        assert_eq!(a.send(Addr::Ip(to), Buf::copy_of(&[0; 1472]), None), Ok(()));
    }
}
