//! A host: the link machine over a real platform, with the `wire` fault injector between the two (FI-3).
//!
//! ```text
//!   Platform::receive ─▶ injector ─▶ Link::handle ─▶ each(Output)
//!   Platform::send    ◀─ injector ◀─ outbox       ◀─ Link
//! ```
//!
//! One thread, no locks. The loop of a daemon is [`Host::wait`], then [`Host::poll`]; one that spins only polls.

use crate::outbox::{Outbox, Packet, hand_over};
use crate::platform::{Platform, Waker, Woke};
use phalanx_core::{Addr, Boot, Buf, Code, Endpoint, Group, Instant, Machine, NodeId, Port, Sink};
use phalanx_fault::Injector;
use phalanx_protocol::link::mml;
use phalanx_protocol::link::seal::KeyRing;
use phalanx_protocol::link::sign::Signer;
use phalanx_protocol::link::status::{Status, Ticket};
use phalanx_protocol::link::{Config, Input, Link, Output, states};
use std::sync::Arc;

/// Rounds of expiry in one poll: a link that always has more to send must not keep us from receiving.
const ROUNDS: usize = 4;

/// A link on a platform.
pub struct Host<P> {
    platform: P,
    link: Link,
    wire: Injector<Addr>,
    outbox: Outbox,
    /// States that the link has reached in this turn.
    reached: Vec<&'static str>,
    /// When the clock was last read. Reading it costs 25 ns, so calls that only queue something make do with this …
    at: Instant,
    /// … unless we have slept since.
    slept: bool,
    /// While somebody spins: polls in a row that found nothing, since the clock was read.
    empty: Option<u8>,
}

/// Takes packets to the outbox and everything else to the owner.
struct Sorter<'h, F> {
    outbox: &'h mut Vec<Packet>,
    /// States that the link reached, for the injector (FI-6).
    reached: &'h mut Vec<&'static str>,
    each: &'h mut F,
}

impl<'a, F: FnMut(Output<'_>)> Sink<Output<'a>> for Sorter<'_, F> {
    #[inline]
    fn push(&mut self, output: Output<'a>) {
        match output {
            Output::Transmit { to, packet, ticket, answer } => self.outbox.push(Packet { to, packet, ticket, answer }),
            other => {
                match other {
                    Output::Up { .. } => self.reached.push(states::SESSION_UP),
                    Output::Down { .. } => self.reached.push(states::SESSION_DOWN),
                    _ => {}
                }
                (self.each)(other);
            }
        }
    }
}

/// Takes packets straight to the platform: for calls that only send, outside of a receive.
struct Outward<'h, P> {
    platform: &'h mut P,
    refused: &'h mut Vec<(Ticket, Code)>,
}

impl<'a, P: Platform> Sink<Output<'a>> for Outward<'_, P> {
    #[inline]
    fn push(&mut self, output: Output<'a>) {
        // Calls that only send say nothing else.
        if let Output::Transmit { to, packet, ticket, answer } = output
            && let (Err(code), Some(ticket)) = (hand_over(self.platform, to, packet, ticket, answer), ticket)
        {
            self.refused.push((ticket, code));
        }
    }
}

/// After so many polls that found nothing and did not look, one looks at the clock and at all that is due: less than a
/// microsecond of spinning.
const EMPTY_POLLS: u8 = 3;

/// Calls that only send have nothing else to say.
fn nothing(_: Output<'_>) {}

/// Gives `$call` a sink: the platform itself, or the outbox while the injector wants to see each packet.
macro_rules! outward {
    ($host:expr, |$link:ident, $sink:ident| $call:expr) => {{
        let host = $host;
        let $link = &mut host.link;
        if host.wire.is_idle() {
            let $sink = &mut Outward { platform: &mut host.platform, refused: &mut host.outbox.refused };
            $call
        } else {
            let $sink =
                &mut Sorter { outbox: &mut host.outbox.packets, reached: &mut host.reached, each: &mut nothing };
            $call
        }
    }};
}

impl<P: Platform> Host<P> {
    /// A fresh start of a node on `platform`. The boot is drawn from the system's generator.
    ///
    /// # Panics
    /// When the system has no random numbers: a node must not start without.
    #[must_use]
    pub fn new(platform: P, config: Config, ring: KeyRing, signer: Signer) -> Self {
        let (mut boot, mut seed) = ([0; 16], [0; 8]);
        // Straight from the kernel: the generator of our cipher library spends half a second on gathering entropy.
        let random = getrandom::fill(&mut boot).and_then(|()| getrandom::fill(&mut seed));
        random.expect("the system's random number generator");
        let seed = u64::from_le_bytes(seed);
        let link = Link::new(Arc::new(config), Arc::new(ring), signer, Boot(boot), seed);
        let at = platform.now();
        Self {
            platform,
            link,
            wire: Injector::new(seed),
            outbox: Outbox::default(),
            reached: Vec::new(),
            at,
            slept: false,
            empty: None,
        }
    }

    /// The platform's clock.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.platform.now()
    }

    /// Where peers reach us.
    #[must_use]
    pub fn local(&self) -> Addr {
        self.platform.local()
    }

    /// The link, to look at and to configure.
    pub fn link(&mut self) -> &mut Link {
        &mut self.link
    }

    /// The platform, to look at.
    pub fn platform(&mut self) -> &mut P {
        &mut self.platform
    }

    /// The fault injector below the seal.
    pub fn wire(&mut self) -> &mut Injector<Addr> {
        &mut self.wire
    }

    /// The peer at `addr`, known or new.
    ///
    /// # Errors
    /// As [`Link::peer`].
    pub fn peer(&mut self, addr: Addr) -> Result<NodeId, Code> {
        let largest = self.platform.max_datagram(addr);
        self.link.peer(addr, largest)
    }

    /// Hears a multicast group.
    ///
    /// # Errors
    /// `InvalidEndpoint` on a platform without groups.
    pub fn join(&mut self, group: Group) -> Result<(), Code> {
        self.platform.join(group)
    }

    /// Sends an unreliable datagram; it leaves with the next [`Host::flush`] or [`Host::poll`].
    ///
    /// # Errors
    /// As [`Link::send`].
    #[inline]
    pub fn send(&mut self, from: Port, to: Endpoint, payload: &[u8]) -> Result<(), Code> {
        let at = self.about_now();
        outward!(self, |link, sink| link.send(at, from, to, payload, sink))
    }

    /// CL-2: sends a buffer of [`Link::buffer`] as it is; [`Host::status`] tells what became of it.
    ///
    /// # Errors
    /// As [`Link::send_buffer`].
    pub fn send_buffer(&mut self, from: Port, to: Endpoint, buffer: Buf) -> Result<Ticket, Code> {
        let at = self.about_now();
        outward!(self, |link, sink| link.send_buffer(at, from, to, buffer, sink))
    }

    /// Sends a datagram to a group.
    ///
    /// # Errors
    /// As [`Link::send_group`].
    pub fn send_group(&mut self, from: Port, group: Group, to: Port, payload: &[u8]) -> Result<(), Code> {
        outward!(self, |link, sink| link.send_group(from, group, to, payload, sink))
    }

    /// Sends a reliable message.
    ///
    /// # Errors
    /// As [`Link::send_reliable`].
    #[inline]
    pub fn send_reliable(&mut self, from: Port, to: Endpoint, message: &[u8]) -> Result<(), Code> {
        let at = self.about_now();
        self.link.send_reliable(at, from, to, message)
    }

    /// Sends a management message.
    ///
    /// # Errors
    /// As [`Link::send_managed`].
    pub fn send_managed(&mut self, kind: mml::Kind, from: Port, to: Endpoint, message: &[u8]) -> Result<u64, Code> {
        let at = self.about_now();
        self.link.send_managed(at, kind, from, to, message)
    }

    /// What became of a ticketed send.
    #[must_use]
    pub fn status(&self, ticket: Ticket) -> Option<Status> {
        self.link.status(ticket)
    }

    /// Takes in what has arrived, lets timers act, sends what is to be sent. Returns how many packets came.
    ///
    /// # Errors
    /// The platform itself failed.
    #[inline]
    pub fn poll(&mut self, each: &mut impl FnMut(Output<'_>)) -> Result<usize, Code> {
        (self.at, self.slept, self.empty) = (self.now(), false, None);
        let count = self.take(each)?;
        self.act(self.at, each);
        Ok(count)
    }

    /// As [`Host::poll`], for a loop that does nothing but spin and answer: it looks at the clock, and at what is due,
    /// only now and then, so that a packet is found sooner.
    ///
    /// # Errors
    /// The platform itself failed.
    #[inline]
    pub fn spin(&mut self, each: &mut impl FnMut(Output<'_>)) -> Result<usize, Code> {
        let empty = match self.empty {
            Some(empty) if empty < EMPTY_POLLS => empty,
            _ => {
                let count = self.poll(each)?;
                self.empty = Some(if count == 0 { 0 } else { EMPTY_POLLS });
                return Ok(count);
            }
        };
        let count = self.take(each)?;
        if count == 0 {
            self.empty = Some(empty + 1);
            return Ok(0);
        }
        self.empty = Some(EMPTY_POLLS);
        self.act(self.at, each);
        Ok(count)
    }

    /// Hands the link what has arrived.
    #[inline]
    fn take(&mut self, each: &mut impl FnMut(Output<'_>)) -> Result<usize, Code> {
        let now = self.at;
        let Self { platform, link, wire, outbox, reached, .. } = self;
        let mut sorter = Sorter { outbox: &mut outbox.packets, reached, each };
        let count = if wire.is_idle() {
            platform.receive(&mut |from, bytes| {
                link.handle(now, Input::Arrived { from, bytes, attached: None }, &mut sorter);
            })?
        } else {
            platform.receive(&mut |from, bytes| {
                wire.receive(now, from, bytes, None, &mut |from, bytes, attached| {
                    link.handle(now, Input::Arrived { from, bytes, attached }, &mut sorter);
                });
            })?
        };
        while let Some((addr, code)) = platform.trouble() {
            link.handle(now, Input::Refused { addr, code }, &mut sorter);
        }
        Ok(count)
    }

    /// Sends what is to be sent, without receiving. For a sender that has more to do before it polls.
    pub fn flush(&mut self) {
        if self.link.has_packets() {
            // Who does not spin may have worked for long since it polled.
            if self.empty.is_none() {
                self.at = self.now();
            }
            let at = self.at;
            outward!(&mut *self, |link, sink| link.transmit(at, sink));
        }
        self.send_all(self.at);
    }

    #[inline]
    fn act(&mut self, now: Instant, each: &mut impl FnMut(Output<'_>)) {
        let Self { link, wire, outbox, reached, .. } = self;
        if wire.deadline() <= now {
            let mut sorter = Sorter { outbox: &mut outbox.packets, reached, each };
            wire.expire(now, &mut |from, bytes, attached| {
                link.handle(now, Input::Arrived { from, bytes, attached }, &mut sorter);
            });
        }
        for _ in 0..ROUNDS {
            if self.link.deadline() > now {
                break;
            }
            self.link.expire(now, &mut Sorter { outbox: &mut self.outbox.packets, reached: &mut self.reached, each });
        }
        self.send_all(now);
    }

    #[inline]
    fn send_all(&mut self, now: Instant) {
        for state in self.reached.drain(..) {
            self.wire.signal(now, state);
        }
        let Self { platform, link, wire, outbox, .. } = self;
        outbox.send_all(now, platform, wire, &mut |ticket, result| {
            link.handle(now, Input::Completed { ticket, result }, &mut Silence);
        });
    }

    /// Blocks until there is something to poll for, or until `until`.
    pub fn wait(&mut self, until: Instant) -> Woke {
        self.slept = true;
        self.platform.wait(until.min(self.link.deadline()).min(self.wire.deadline()).min(self.outbox.deadline()))
    }

    /// The time to within a turn of the loop.
    #[inline]
    fn about_now(&mut self) -> Instant {
        if std::mem::take(&mut self.slept) {
            self.at = self.now();
        }
        self.at
    }

    /// Ends a [`Host::wait`] from another thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.platform.waker()
    }
}

/// A completed ticket changes a status and says nothing.
struct Silence;

impl<'a> Sink<Output<'a>> for Silence {
    fn push(&mut self, _: Output<'a>) {}
}
