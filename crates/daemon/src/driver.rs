//! A resident on a real platform: what sockets, tripwires and clocks say goes in, what it decides goes out.
//!
//! ```text
//!   Platform::receive ─▶ injector ─▶ Machine::handle ─▶ news
//!   Platform::send    ◀─ injector ◀─ outbox          ◀─ Machine
//!   tripwires         ◀───────────────────────────────── Machine
//! ```
//!
//! A [`Resident`] is a node of the cluster, or the company of a job's tasks. One thread drives it; many may share a thread. The loop of a
//! daemon is [`Driver::wait`], then [`Driver::poll`].

use crate::outbox::{Outbox, Packet};
use crate::platform::{Platform, Waker, Woke};
use crate::wires::{Handle, Told};
use phalanx_core::{Addr, Code, Duration, Group, Instant, Machine, Shared, Sink};
use phalanx_fault::Injector;
use phalanx_protocol::member::{Engine, Event, Peer, Slot, Version, Why};
use phalanx_protocol::node::casts::Said;
use phalanx_protocol::node::{Carriage, Input, Node, Output};
use phalanx_protocol::rumour::keys::Keys;
use phalanx_protocol::rumour::{self, Id};

/// Batches taken in before timers act, at most. A node that is late has the answers it waits for in its socket: a timer that
/// acts before they are read takes the living for silent, asks again, and makes all of them later still.
const BATCHES: usize = 64;
/// Rounds of expiry in one poll: a node that always has more to send must not keep us from receiving.
const ROUNDS: usize = 4;
/// Multicast stays on the segment until somebody says how far it may go.
const GROUP_TTL: u8 = 1;

/// A machine that can be driven: it is told what platforms say, and some of what it decides is for its platform.
pub trait Resident: for<'a> Machine<Input<'a> = Input<'a>> {
    /// What is not.
    type News;

    /// Tells them apart.
    fn sort(output: <Self as Machine>::Output<'_>) -> Sorted<Self::News>;
}

/// Something that a [`Resident`] decided.
pub enum Sorted<N> {
    /// A packet to send.
    Packet(Packet),
    /// A wire to hold, or to let go.
    Wire(Addr, bool),
    /// A group to hear.
    Group(u16),
    /// A state that was reached, for the injector (FI-6).
    Reached(&'static str),
    /// For others than the platform.
    News(N),
    /// For nobody.
    Nothing,
}

/// A resident, and the ground it stands on.
pub struct Driver<P, M: Resident> {
    platform: P,
    node: M,
    wire: Injector<Addr>,
    wires: Option<Handle>,
    outbox: Outbox,
    decided: Decided<M::News>,
}

/// Membership changed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum News {
    /// A member is there.
    Joined {
        /// Who.
        member: Slot,
        /// In which version.
        version: Version,
    },
    /// A member is gone.
    Left {
        /// Who.
        member: Slot,
        /// The version that is gone.
        version: Version,
        /// Why.
        why: Why,
    },
    /// A member's attribute changed.
    Attribute {
        /// Whose.
        member: Slot,
        /// Which one.
        key: String,
        /// Its value; `None` when it was removed.
        value: Option<Vec<u8>>,
    },
    /// Two living members have the name of ours, or have not any more.
    Name {
        /// Who keeps it.
        holder: Slot,
        /// Who must not.
        loser: Option<Slot>,
    },
    /// The details of a zone are there.
    Details {
        /// Which.
        zone: String,
    },
    /// Somebody tells all members something.
    Told {
        /// Who.
        from: String,
        /// What it is called.
        name: String,
        /// What is said.
        body: Vec<u8>,
    },
    /// Somebody asks, and we may answer.
    Asked {
        /// The question.
        id: Id,
        /// Who.
        from: String,
        /// What it is called.
        name: String,
        /// What is asked.
        body: Vec<u8>,
    },
    /// Somebody heard our question, or answered it.
    Replied {
        /// The question.
        id: Id,
        /// Who.
        from: String,
        /// The answer; `None` when it only heard it.
        body: Option<Vec<u8>>,
    },
    /// Nobody answers our question any more.
    Over {
        /// The question.
        id: Id,
    },
    /// The cluster has other keys.
    Rekeyed(Keys),
    /// Something was cast to us.
    Cast {
        /// By whom.
        from: String,
        /// To everybody; otherwise to some.
        whole: bool,
        /// What.
        body: Shared,
    },
    /// All who live have what we cast.
    Settled {
        /// All casts to everybody up to this one; otherwise one to some.
        whole: bool,
        /// Its number.
        number: u64,
        /// Destinations that died before they had it.
        missed: Vec<String>,
    },
    /// Word between managers and agents.
    Managed {
        /// Who speaks.
        from: Peer,
        /// How it came.
        carriage: Carriage,
        /// What is said.
        bytes: Vec<u8>,
    },
    /// A ping came to its end.
    Ponged {
        /// Its number.
        number: u32,
        /// How long it took; `None` when nobody answered.
        took: Option<Duration>,
    },
}

/// What a resident decided and nobody has acted on.
struct Decided<N> {
    news: Vec<N>,
    wires: Vec<(Addr, bool)>,
    groups: Vec<u16>,
    /// States that were reached, for the injector (FI-6).
    reached: Vec<&'static str>,
}

impl<N> Default for Decided<N> {
    fn default() -> Self {
        Self { news: Vec::new(), wires: Vec::new(), groups: Vec::new(), reached: Vec::new() }
    }
}

/// Takes what a resident decides, see [`Driver::act`].
pub struct Desk<'d, M: Resident> {
    packets: &'d mut Vec<Packet>,
    decided: &'d mut Decided<M::News>,
}

impl<'o, M: Resident> Sink<<M as Machine>::Output<'o>> for Desk<'_, M> {
    fn push(&mut self, output: <M as Machine>::Output<'o>) {
        match M::sort(output) {
            Sorted::Packet(packet) => self.packets.push(packet),
            Sorted::Wire(to, up) => self.decided.wires.push((to, up)),
            Sorted::Group(group) => self.decided.groups.push(group),
            Sorted::Reached(state) => self.decided.reached.push(state),
            Sorted::News(news) => self.decided.news.push(news),
            Sorted::Nothing => {}
        }
    }
}

impl<E: Engine> Resident for Node<E> {
    type News = News;

    fn sort(output: Output<'_>) -> Sorted<News> {
        match output {
            Output::Transmit { to, packet, ticket, answer } => Sorted::Packet(Packet { to, packet, ticket, answer }),
            Output::Wire { to } => Sorted::Wire(to, true),
            Output::Unwire { to } => Sorted::Wire(to, false),
            Output::Hear { group } => Sorted::Group(group),
            Output::Reached(state) => Sorted::Reached(state),
            Output::Event(event) => Sorted::News(News::of(event)),
            Output::Cast(said) => Sorted::News(News::cast(said)),
            Output::Managed { from, carriage, bytes } => {
                Sorted::News(News::Managed { from, carriage, bytes: bytes.to_vec() })
            }
            Output::Rumour(said) => News::said(said).map_or(Sorted::Nothing, Sorted::News),
        }
    }
}

impl News {
    /// Who was taken for dead.
    pub(crate) fn failed(&self) -> Option<Slot> {
        match self {
            Self::Left { member, why: Why::Failed, .. } => Some(*member),
            _ => None,
        }
    }

    fn of(event: Event<'_>) -> Self {
        match event {
            Event::Joined { member, version } => Self::Joined { member, version },
            Event::Left { member, version, why } => Self::Left { member, version, why },
            Event::Attribute { member, key, value } => {
                Self::Attribute { member, key: key.to_owned(), value: value.map(<[u8]>::to_vec) }
            }
            Event::Name { holder, loser } => Self::Name { holder, loser },
            Event::Details { zone } => Self::Details { zone: zone.to_owned() },
        }
    }

    fn cast(said: Said<'_>) -> Self {
        match said {
            Said::Delivered { from, whole, body } => Self::Cast { from: from.to_owned(), whole, body: body.clone() },
            Said::Settled { whole, number, missed } => Self::Settled { whole, number, missed: missed.to_vec() },
        }
    }

    fn said(said: rumour::Output<'_>) -> Option<Self> {
        Some(match said {
            // The node sends by itself.
            rumour::Output::Send { .. } => return None,
            rumour::Output::Told { from, words } => {
                Self::Told { from: from.to_owned(), name: words.name.to_owned(), body: words.body.to_vec() }
            }
            rumour::Output::Asked { id, from, words } => {
                Self::Asked { id, from: from.to_owned(), name: words.name.to_owned(), body: words.body.to_vec() }
            }
            rumour::Output::Replied { id, from, body } => {
                Self::Replied { id, from: from.to_owned(), body: body.map(<[u8]>::to_vec) }
            }
            rumour::Output::Over { id } => Self::Over { id },
            rumour::Output::Rekeyed { keys } => Self::Rekeyed(keys.clone()),
            rumour::Output::Ponged { number, took } => Self::Ponged { number, took },
        })
    }
}

impl<P: Platform, M: Resident> Driver<P, M> {
    /// A resident on `platform`; without `wires` it has no tripwires. `seed` is for the fault injector.
    #[must_use]
    pub fn new(platform: P, node: M, wires: Option<Handle>, seed: u64) -> Self {
        let wire = Injector::new(seed);
        Self { platform, node, wire, wires, outbox: Outbox::default(), decided: Decided::default() }
    }

    /// The platform's clock.
    #[must_use]
    pub fn now(&self) -> Instant {
        self.platform.now()
    }

    /// The resident, to be looked at.
    #[must_use]
    pub fn node(&self) -> &M {
        &self.node
    }

    /// The platform, to be looked at.
    #[must_use]
    pub fn platform(&self) -> &P {
        &self.platform
    }

    /// The platform, for what it alone can.
    pub fn platform_mut(&mut self) -> &mut P {
        &mut self.platform
    }

    /// FI-3: the fault injector below the seal.
    pub fn injector(&mut self) -> &mut Injector<Addr> {
        &mut self.wire
    }

    /// Has the resident do something; what it decides is carried out before this returns.
    pub fn act<R>(&mut self, act: impl FnOnce(&mut M, Instant, &mut Desk<'_, M>) -> R) -> R {
        let now = self.now();
        let mut desk = Desk::<M> { packets: &mut self.outbox.packets, decided: &mut self.decided };
        let result = act(&mut self.node, now, &mut desk);
        self.expire(now);
        self.carry_out(now);
        result
    }

    /// Takes in what has arrived, lets timers act, sends what is to be sent. Returns how many packets came; what changed is
    /// in [`Driver::news`].
    ///
    /// # Errors
    /// The platform itself failed.
    pub fn poll(&mut self) -> Result<usize, Code> {
        let Self { platform, node, wire, outbox, decided, wires } = self;
        let mut desk = Desk::<M> { packets: &mut outbox.packets, decided };
        let (mut now, mut count) = (platform.now(), 0);
        let is_late = node.deadline() <= now;
        for _ in 0..BATCHES {
            let came = platform.receive(&mut |from, bytes| {
                if wire.is_idle() {
                    return node.handle(now, Input::Arrived { from, bytes, attached: None }, &mut desk);
                }
                wire.receive(now, from, bytes, None, &mut |from, bytes, attached| {
                    node.handle(now, Input::Arrived { from, bytes, attached }, &mut desk);
                });
            })?;
            count += came;
            // A lone packet is answered before anybody looks for a second one.
            let is_answered = came == 1 && !is_late && (!desk.packets.is_empty() || node.deadline() <= now);
            if came == 0 || is_answered {
                break;
            }
            now = platform.now();
        }
        while let Some((addr, code)) = platform.trouble() {
            node.handle(now, Input::Refused { addr, code }, &mut desk);
        }
        while let Some(told) = wires.as_ref().and_then(Handle::next) {
            let input = match told {
                Told::Wired(addr) => Input::Wired { addr: Addr::Ip(addr) },
                Told::Tripped(addr) => Input::Tripped { addr: Addr::Ip(addr) },
            };
            node.handle(now, input, &mut desk);
        }
        if wire.deadline() <= now {
            wire.expire(now, &mut |from, bytes, attached| {
                node.handle(now, Input::Arrived { from, bytes, attached }, &mut desk);
            });
        }
        self.expire(now);
        self.carry_out(now);
        Ok(count)
    }

    /// What changed since this was last called.
    pub fn news(&mut self) -> Vec<M::News> {
        std::mem::take(&mut self.decided.news)
    }

    /// When to poll next, should nothing come.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.node.deadline().min(self.wire.deadline()).min(self.outbox.deadline())
    }

    /// Blocks until there is something to poll for, or until `until`.
    pub fn wait(&mut self, until: Instant) -> Woke {
        let until = until.min(self.deadline());
        self.platform.wait(until)
    }

    /// Ends a [`Driver::wait`] from another thread.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.platform.waker()
    }

    fn expire(&mut self, now: Instant) {
        for _ in 0..ROUNDS {
            if self.node.deadline() > now {
                return;
            }
            let mut desk = Desk::<M> { packets: &mut self.outbox.packets, decided: &mut self.decided };
            self.node.expire(now, &mut desk);
        }
    }

    /// Does what the node decided.
    fn carry_out(&mut self, now: Instant) {
        let Self { platform, node, wire, outbox, decided, wires } = self;
        for (addr, up) in decided.wires.drain(..) {
            if let (Addr::Ip(addr), Some(wires)) = (addr, &*wires) {
                if up { wires.wire(addr) } else { wires.unwire(addr) }
            }
        }
        for number in decided.groups.drain(..) {
            // Without multicast an engine hears nothing there, which it must bear anyway.
            let _ = platform.join(Group { number, ttl: GROUP_TTL });
        }
        for state in decided.reached.drain(..) {
            wire.signal(now, state);
        }
        let mut late = Vec::new();
        outbox.send_all(now, platform, wire, &mut |ticket, result| late.push((ticket, result)));
        for (ticket, result) in late {
            let mut desk = Desk::<M> { packets: &mut outbox.packets, decided };
            node.handle(now, Input::Completed { ticket, result }, &mut desk);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Udp;
    use crate::platform::udp::Options;
    use phalanx_core::Buf;
    use phalanx_protocol::member::Name;
    use phalanx_protocol::node::Start;

    /// What waits in the socket of a driver that comes late may be what its node's timers wait for.
    #[test]
    fn all_that_waits_is_heard_in_one_poll() {
        let open = || Udp::open(Options::at("127.0.0.1:0".parse().unwrap())).unwrap();
        let (udp, mut others) = (open(), [open(), open()]);
        let start = Start::new(Name::new("late").unwrap(), udp.local(), [1; 32], [2; 64]);
        let mut driver = Driver::new(udp, start.node(Instant::ZERO), None, 0);
        assert_eq!(driver.poll(), Ok(0));
        for _ in 0..50 {
            for other in &mut others {
                other.send(driver.platform().local(), Buf::copy_of(b"noise"), None).unwrap();
                other.flush(&mut |_, _| {});
            }
        }
        assert_eq!(driver.poll(), Ok(100));
    }
}
