//! A node: the machines of one daemon, as one machine.
//!
//! The driver gives it what sockets, streams and clocks say, and does what it asks for. `route` is the one place that
//! says who hears whom.
//!
//! ```text
//!   Arrived ──▶ link ──▶ route ──▶ engine, rumours, casts ──▶ Event, Rumour, Cast
//!   Transmit ◀── link ◀── route ◀── engine, rumours, casts      Wire, Unwire ──▶ driver
//! ```

pub mod casts;
mod federation;
pub mod managed;
mod membership;
pub(crate) mod parting;
mod route;
mod rumours;
pub mod scout;
mod seats;
mod start;

pub use managed::Carriage;
pub use membership::Membership;
pub use start::{Profile, Start};

use crate::federation::Federation;
use crate::link::status::Ticket;
use crate::link::{self, Link};
use crate::member::{Engine, Event, Name, Peer};
use crate::rumour::{self, Rumours};
#[cfg(debug_assertions)]
use crate::zone::Zone;
use casts::Casts;
use parting::Parting;
use phalanx_core::buf::Attachment;
use phalanx_core::{Addr, Buf, Code, Fingerprint, Instant, Machine, Port, Sink};
use route::{Errand, Heard};
use scout::Scout;

/// HI-1: the two planes of a hierarchy. Each has an engine of its own, which speaks and listens at a port of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Plane {
    /// The zone of a node.
    Base,
    /// The zone of the supervisors.
    Management,
    /// What a scout finds in the network around.
    Scout,
}

impl Plane {
    const fn port(self) -> Port {
        match self {
            Self::Base => Port(1),
            Self::Management => Port(2),
            Self::Scout => Port(5),
        }
    }

    const fn of(port: Port) -> Option<Self> {
        match port {
            Port(1) => Some(Self::Base),
            Port(2) => Some(Self::Management),
            Port(5) => Some(Self::Scout),
            Port(_) => None,
        }
    }

    const fn other(self) -> Self {
        match self {
            Self::Base => Self::Management,
            Self::Management => Self::Base,
            Self::Scout => Self::Scout,
        }
    }
}

/// Where rumours are spoken and heard.
const RUMOURS: Port = Port(3);

/// What a driver tells a node.
#[derive(Debug)]
pub enum Input<'a> {
    /// The platform received a packet. It is opened in place.
    Arrived {
        /// Where it came from.
        from: Addr,
        /// Its bytes.
        bytes: &'a mut [u8],
        /// In simulated networks: the part of it that travels by reference.
        attached: Option<&'a Attachment>,
    },
    /// The platform answered for a ticketed packet.
    Completed {
        /// The ticket it was sent with.
        ticket: Ticket,
        /// Taken, or why not.
        result: Result<(), Code>,
    },
    /// The platform learned that nobody is at `addr`.
    Refused {
        /// Where nobody is.
        addr: Addr,
        /// What the platform said.
        code: Code,
    },
    /// A tripwire is up, ours or a peer's.
    Wired {
        /// With whom.
        addr: Addr,
    },
    /// A tripwire broke, or was never accepted.
    Tripped {
        /// With whom.
        addr: Addr,
    },
}

impl<'a> Input<'a> {
    /// The platform received a packet; of a real network, where nothing travels by reference.
    #[must_use]
    pub const fn arrived(from: Addr, bytes: &'a mut [u8]) -> Self {
        Self::Arrived { from, bytes, attached: None }
    }
}

/// What a node asks of its driver.
#[derive(Debug)]
pub enum Output<'a> {
    /// Send this packet.
    Transmit {
        /// Where to.
        to: Addr,
        /// The sealed packet.
        packet: Buf,
        /// Answer with [`Input::Completed`] when there is one.
        ticket: Option<Ticket>,
        /// See [`link::Output::Transmit`].
        answer: bool,
    },
    /// Open an idle stream to this address and hold it.
    Wire {
        /// Where to.
        to: Addr,
    },
    /// Close the streams with this address.
    Unwire {
        /// Where.
        to: Addr,
    },
    /// Hear a multicast group.
    Hear {
        /// Its number.
        group: u16,
    },
    /// A session began, or ended: what fault injectors wait for (FI-6).
    Reached(&'static str),
    /// Membership changed.
    Event(Event<'a>),
    /// Somebody tells, asks or answers something.
    Rumour(rumour::Output<'a>),
    /// Something was cast to us, or what we cast has come to all.
    Cast(casts::Said<'a>),
    /// Word between managers and agents.
    Managed {
        /// Who speaks; its session is proved.
        from: Peer,
        /// How it came.
        carriage: Carriage,
        /// What is said.
        bytes: &'a [u8],
    },
}

/// A sink for what nodes decide.
pub trait Out: for<'a> Sink<Output<'a>> {}
impl<S: for<'a> Sink<Output<'a>>> Out for S {}

/// The machines of one daemon.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node<E> {
    link: Link,
    engine: Option<E>,
    management: Option<Box<E>>,
    /// What members tell each other; not all drivers want to know.
    rumours: Option<Box<Rumours>>,
    /// What members cast; not all drivers do that either.
    casts: Option<Box<Casts>>,
    /// Looks around in the network; where zones or seeds shall come from that.
    scout: Option<Box<Scout>>,
    /// Other data centres; where there are some.
    federation: Option<Box<Federation>>,
    /// The largest datagram that the platform carries to any peer.
    largest: u16,
    /// What the link handed on, for the engine; and what the engine wants sent. Both empty between calls.
    heard: Vec<Heard>,
    errands: Vec<Errand>,
    parting: Parting,
}

impl<E: Engine> Node<E> {
    /// A node of a link and an engine. `largest` is the largest datagram that the platform carries.
    #[must_use]
    pub fn new(link: Link, engine: E, largest: u16) -> Self {
        let (heard, errands, parting) = (Vec::new(), Vec::new(), Parting::default());
        Self {
            link,
            engine: Some(engine),
            management: None,
            rumours: None,
            casts: None,
            scout: None,
            federation: None,
            largest,
            heard,
            errands,
            parting,
        }
    }

    /// A supervisor: a member of the management zone, and of no base zone.
    #[must_use]
    pub fn supervisor(link: Link, management: E, largest: u16) -> Self {
        let (heard, errands, parting) = (Vec::new(), Vec::new(), Parting::default());
        Self {
            link,
            engine: None,
            management: Some(Box::new(management)),
            rumours: None,
            casts: None,
            scout: None,
            federation: None,
            largest,
            heard,
            errands,
            parting,
        }
    }

    /// Makes a member of a base zone a supervisor, too.
    #[must_use]
    pub fn with_management(mut self, management: E) -> Self {
        self.management = Some(Box::new(management));
        self
    }

    /// The link, to be looked at.
    #[must_use]
    pub fn link(&self) -> &Link {
        &self.link
    }

    /// The link, for fault injection and keys.
    pub fn link_mut(&mut self) -> &mut Link {
        &mut self.link
    }

    /// The engine of the node's zone, to be looked at; at a mere supervisor that of the management zone.
    ///
    /// # Panics
    /// Never: each node has an engine.
    #[must_use]
    pub fn engine(&self) -> &E {
        self.engine.as_ref().or(self.management.as_deref()).expect("each node has an engine")
    }

    /// The engine of [`Node::engine`], for what this interface does not know. What it decides at once is lost: for calls that
    /// only change its state.
    pub fn engine_mut(&mut self) -> &mut E {
        self.own_engine().1
    }

    fn own_engine(&mut self) -> (Plane, &mut E) {
        match &mut self.engine {
            Some(engine) => (Plane::Base, engine),
            None => (Plane::Management, self.management.as_deref_mut().expect("each node has an engine")),
        }
    }

    /// The engine of a plane, to be looked at.
    #[must_use]
    pub fn plane(&self, plane: Plane) -> Option<&E> {
        match plane {
            Plane::Base => self.engine.as_ref(),
            Plane::Management => self.management.as_deref(),
            Plane::Scout => None,
        }
    }

    /// AT-1: writes one of our own attributes.
    ///
    /// # Errors
    /// As [`Engine::set`].
    pub fn set(&mut self, now: Instant, key: &str, value: Option<&[u8]>) -> Result<(), Code> {
        self.own_engine().1.set(now, key, value)
    }

    /// Takes another name in the node's zone.
    ///
    /// # Errors
    /// As [`Engine::rename`].
    pub fn rename(&mut self, now: Instant, name: &Name) -> Result<(), Code> {
        self.own_engine().1.rename(now, name)?;
        if let Some(rumours) = &mut self.rumours {
            rumours.rename(name.clone());
        }
        Ok(())
    }

    /// HI-1: moves to another zone while it runs: its members hear of a move, not of a failure. `seeds` are where members
    /// of the new zone may be; none are needed where supervisors are known, nor by those who move together. False when it
    /// is in that zone already.
    ///
    /// # Errors
    /// As [`Engine::relocate`]; `InvalidArgs` for a mere supervisor.
    pub fn relocate(&mut self, now: Instant, zone: &Name, seeds: &[Addr], out: &mut impl Out) -> Result<bool, Code> {
        let Self { engine: Some(engine), errands, .. } = self else { return Err(Code::InvalidArgs) };
        let moved = engine.relocate(now, zone, seeds, &mut route::EngineOut { plane: Plane::Base, errands, out })?;
        self.run_errands(now, out);
        if moved {
            self.replant(now, zone.as_str());
        }
        Ok(moved)
    }

    /// Members may be at these places, too.
    pub fn seek(&mut self, now: Instant, seeds: &[Addr], out: &mut impl Out) {
        let Self { engine, management, errands, .. } = self;
        match (engine, management) {
            (Some(engine), _) => engine.seek(now, seeds, &mut route::EngineOut { plane: Plane::Base, errands, out }),
            (None, Some(engine)) => {
                engine.seek(now, seeds, &mut route::EngineOut { plane: Plane::Management, errands, out });
            }
            (None, None) => {}
        }
        self.run_errands(now, out);
    }

    /// Leaves the cluster in an orderly way.
    pub fn leave(&mut self, now: Instant, code: u8, out: &mut impl Out) {
        let Self { engine, management, errands, .. } = self;
        if let Some(engine) = engine {
            engine.leave(now, code, &mut route::EngineOut { plane: Plane::Base, errands, out });
        }
        if let Some(management) = management {
            management.leave(now, code, &mut route::EngineOut { plane: Plane::Management, errands, out });
        }
        if let Some(scout) = &mut self.scout {
            scout.leave(now, code, errands, out);
        }
        self.run_errands(now, out);
    }
}

/// Any sink, as one kind.
struct Gate<'d>(&'d mut dyn Out);

impl<'o> Sink<Output<'o>> for Gate<'_> {
    fn push(&mut self, output: Output<'o>) {
        self.0.push(output);
    }
}

impl<E: Engine> Node<E> {
    fn hear(&mut self, now: Instant, input: Input<'_>, out: &mut Gate<'_>) {
        match input {
            Input::Arrived { from, bytes, attached } => {
                self.tell_link(now, link::Input::Arrived { from, bytes, attached }, out);
            }
            Input::Completed { ticket, result } => self.tell_link(now, link::Input::Completed { ticket, result }, out),
            Input::Refused { addr, code } => self.tell_link(now, link::Input::Refused { addr, code }, out),
            Input::Wired { addr } => self.tell_engines(now, || crate::member::Input::Wired { addr }, out),
            Input::Tripped { addr } => self.tell_engines(now, || crate::member::Input::Tripped { addr }, out),
        }
        self.run_errands(now, out);
    }

    fn wake(&mut self, now: Instant, out: &mut Gate<'_>) {
        let Self { engine, management, errands, .. } = self;
        if let Some(engine) = engine.as_mut().filter(|e| e.deadline() <= now) {
            engine.expire(now, &mut route::EngineOut { plane: Plane::Base, errands, out });
        }
        if let Some(management) = management.as_mut().filter(|e| e.deadline() <= now) {
            management.expire(now, &mut route::EngineOut { plane: Plane::Management, errands, out });
        }
        self.expire_scout(now, out);
        self.expire_federation(now);
        self.expire_rumours(now, out);
        self.run_errands(now, out);
        self.expire_casts(now, out);
        self.parting.expire(&mut self.link, now);
        if self.link.deadline() <= now {
            self.link.expire(now, &mut route::LinkOut { heard: &mut self.heard, out });
            self.pass_on(now, out);
            self.run_errands(now, out);
        }
    }
}

/// What a node does with an input.
#[cfg(debug_assertions)]
type Hears<E> = for<'a, 'b, 'c, 'd> fn(&'a mut Node<E>, Instant, Input<'b>, &'c mut Gate<'d>);
/// What it does when its time has come.
#[cfg(debug_assertions)]
type Wakes<E> = for<'a, 'c, 'd> fn(&'a mut Node<E>, Instant, &'c mut Gate<'d>);

/// Nodes on these engines are compiled here, and not again in each crate that runs them; the optimiser wants them there all the same.
#[cfg(debug_assertions)]
#[used]
static COMPILED: (Hears<Membership>, Wakes<Membership>, Hears<Zone>, Wakes<Zone>) =
    (Node::hear, Node::wake, Node::hear, Node::wake);

impl<E: Engine> Machine for Node<E> {
    type Input<'a> = Input<'a>;
    type Output<'a> = Output<'a>;

    fn handle<S>(&mut self, now: Instant, input: Input<'_>, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        self.hear(now, input, &mut Gate(out));
    }

    fn expire<S>(&mut self, now: Instant, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        self.wake(now, &mut Gate(out));
    }

    fn deadline(&self) -> Instant {
        let engines = self.engine.iter().chain(self.management.as_deref()).map(Machine::deadline);
        let rumours = self.rumours.as_ref().map_or(Instant::NEVER, |r| r.deadline());
        let casts = self.casts.as_ref().map_or(Instant::NEVER, |c| c.deadline());
        let casts = casts.min(self.scout.as_ref().map_or(Instant::NEVER, |s| s.deadline()));
        let casts = casts.min(self.federation.as_ref().map_or(Instant::NEVER, |f| f.deadline()));
        engines.fold(self.link.deadline().min(self.parting.deadline()).min(rumours).min(casts), Instant::min)
    }

    fn fingerprint(&self, print: &mut Fingerprint) {
        self.link.fingerprint(print);
        self.engine.iter().chain(self.management.as_deref()).for_each(|e| e.fingerprint(print));
        if let Some(rumours) = &self.rumours {
            rumours.fingerprint(print);
        }
        if let Some(casts) = &self.casts {
            casts.fingerprint(print);
        }
        if let Some(scout) = &self.scout {
            scout.fingerprint(print);
        }
        if let Some(federation) = &self.federation {
            federation.fingerprint(print);
        }
        self.parting.fingerprint(print);
    }
}
