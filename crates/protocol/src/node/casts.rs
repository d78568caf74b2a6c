//! A node's casts, and the way of their messages over the link. Who sits where: [`seats`](super::seats).

use super::parting::Parting;
use super::{Node, Out, Output};
use crate::cast::seats::{Claim, Repair};
use crate::cast::{self, CastError, Caster, Id, Input, Tree, TreeError};
use crate::link::Link;
use crate::member::{Engine, Name, Slot};
use phalanx_core::{Addr, Buf, Code, Duration, Endpoint, Fingerprint, Instant, Machine, Port, Shared, Sink};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Where casts are sent and heard.
pub(super) const CASTS: Port = Port(4);
/// Whoever starts looks around for so long before it takes a seat.
const FIRST_LOOK: Duration = Duration::from_millis(300);
/// Bytes that wait for a peer's link to take them; past it the link counts as cut.
const UNSENT_MAX: usize = 64 << 20;

/// The first byte of a cast: whom on each node it is for. For a node's owner, the name of who casts follows: its seat may be news to others.
const OWNER: u8 = 0;
const RUMOUR: u8 = 1;

/// How a node casts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Children of each node in the tree.
    pub fan_out: u32,
    /// When holes in the tree are filled.
    pub repair: Repair,
    /// Seats are handed out elsewhere, see [`Node::take_seat`]: the node does not choose its own.
    pub external: bool,
    /// How casts are handed on.
    pub caster: cast::Config,
}

impl Default for Config {
    fn default() -> Self {
        Self { fan_out: 3, repair: Repair::default(), external: false, caster: cast::Config::cluster() }
    }
}

/// What casts tell the node's owner.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Said<'a> {
    /// Something was cast to us.
    Delivered {
        /// By whom: its name.
        from: &'a str,
        /// To everybody; otherwise to some.
        whole: bool,
        /// What.
        body: &'a Shared,
    },
    /// All who live have what we cast.
    Settled {
        /// All casts to everybody up to this one; otherwise one to some.
        whole: bool,
        /// Its number.
        number: u64,
        /// Names of destinations that died before they had it.
        missed: &'a [String],
    },
}

/// Why a node does not cast. Nothing was sent.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refused {
    /// It has no seat yet.
    #[error("this node has no seat in the tree yet: wait a moment")]
    Seatless,
    /// Nobody is called so, or it has no seat yet.
    #[error("no member is called {0}, or it has only just joined: see `phalanx members`")]
    Unknown(String),
    /// The machine itself.
    #[error(transparent)]
    Cast(#[from] CastError),
}

/// Casts of a node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Casts {
    pub(super) config: Config,
    pub(super) tree: u64,
    /// How many trees it has been in.
    pub(super) planted: u64,
    pub(super) caster: Option<Caster>,
    pub(super) mine: Option<Claim>,
    pub(super) sitters: BTreeMap<Id, Sitter>,
    /// Names of those who sit somewhere, and of those who did.
    pub(super) names: BTreeMap<u64, String>,
    pub(super) slots: BTreeMap<Slot, Id>,
    /// When seats are looked at next.
    pub(super) look_at: Instant,
    /// Holes are to be filled, though the policy does not say so.
    pub(super) fill: bool,
    unsent: BTreeMap<Addr, Unsent>,
}

/// Who sits in a seat.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Sitter {
    pub(super) slot: Slot,
    pub(super) addr: Addr,
    pub(super) name: String,
    /// What its casts are known by.
    pub(super) who: u64,
}

/// What a peer's link did not take.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Unsent {
    messages: VecDeque<Vec<u8>>,
    bytes: usize,
}

/// The way of casts to the link, and to the node's owner.
pub(super) struct CastOut<'n> {
    now: Instant,
    link: &'n mut Link,
    parting: &'n mut Parting,
    largest: u16,
    sitters: &'n BTreeMap<Id, Sitter>,
    names: &'n BTreeMap<u64, String>,
    unsent: &'n mut BTreeMap<Addr, Unsent>,
    /// Links that took nothing, and hold too much already.
    stuck: Vec<Id>,
    /// What was cast to our rumours.
    told: Vec<Shared>,
    out: &'n mut dyn Out,
}

impl CastOut<'_> {
    fn name(&self, who: u64) -> &str {
        self.names.get(&who).map_or("", String::as_str)
    }

    fn send(&mut self, to: Id, bytes: &[u8]) {
        let Some(addr) = self.sitters.get(&to).map(|s| s.addr) else { return };
        if let Some(unsent) = self.unsent.get_mut(&addr) {
            if unsent.bytes + bytes.len() > UNSENT_MAX {
                return self.stuck.push(to);
            }
            return unsent.push(bytes);
        }
        // Of other trouble the zone finds out why.
        if let Err(Code::LocalResource | Code::RemoteResource) =
            deliver(self.now, self.link, self.parting, (addr, self.largest), bytes)
        {
            self.unsent.entry(addr).or_default().push(bytes);
        }
    }
}

impl Unsent {
    fn push(&mut self, bytes: &[u8]) {
        self.bytes += bytes.len();
        self.messages.push_back(bytes.to_vec());
    }
}

/// A cast, with whom it is for.
fn tagged(head: &[u8], body: &[u8]) -> Shared {
    let mut buf = Buf::new(0, head.len() + body.len());
    buf.extend(head);
    buf.extend(body);
    Shared::from(buf)
}

/// Who casts, and what.
fn named(cast: &Shared) -> Option<(&str, Shared)> {
    let (_, rest) = cast.split_first()?;
    let (&len, rest) = rest.split_first()?;
    let (name, body) = rest.split_at_checked(len.into())?;
    let name = std::str::from_utf8(name).ok().filter(|name| Name::is_valid(name))?;
    Some((name, cast.part(body)))
}

fn deliver(
    now: Instant,
    link: &mut Link,
    parting: &mut Parting,
    (addr, largest): (Addr, u16),
    bytes: &[u8],
) -> Result<(), Code> {
    let node = parting.reach(link, addr, largest)?;
    link.send_reliable(now, CASTS, Endpoint { node, port: CASTS }, bytes)
}

impl<'o> Sink<cast::Output<'o>> for CastOut<'_> {
    fn push(&mut self, output: cast::Output<'o>) {
        match output {
            cast::Output::Send { to, bytes } | cast::Output::Reach { to, bytes } => self.send(to, bytes),
            cast::Output::Deliver { whole, body, .. } => {
                match body.first() {
                    Some(&OWNER) => {
                        let Some((from, body)) = named(body) else { return };
                        self.out.push(Output::Cast(Said::Delivered { from, whole, body: &body }));
                    }
                    Some(&RUMOUR) => self.told.push(body.slice(1..body.len())),
                    // Of a node of tomorrow.
                    _ => {}
                }
            }
            cast::Output::Settled { whole, number, missed } => {
                let missed: Vec<String> = missed.iter().map(|&who| self.name(who).to_owned()).collect();
                self.out.push(Output::Cast(Said::Settled { whole, number, missed: &missed }));
            }
            // The source learns that by itself.
            cast::Output::Unreached { .. } => {}
        }
    }
}

impl<E: Engine> Node<E> {
    /// Casts and hears casts from now on, in the tree of that name: its zone's.
    ///
    /// # Errors
    /// A fan-out below 2.
    pub fn with_casts(mut self, now: Instant, config: Config, tree: &str) -> Result<Self, TreeError> {
        Tree::new(config.fan_out, 1)?;
        self.casts = Some(Box::new(Casts {
            config,
            tree: tree_number(tree, config.fan_out),
            planted: 0,
            caster: None,
            mine: None,
            sitters: BTreeMap::new(),
            names: BTreeMap::new(),
            slots: BTreeMap::new(),
            look_at: now + FIRST_LOOK,
            fill: false,
            unsent: BTreeMap::new(),
        }));
        Ok(self)
    }

    /// The machine of its casts, to be looked at; `None` as long as it has no seat.
    #[must_use]
    pub fn caster(&self) -> Option<&Caster> {
        self.casts.as_ref()?.caster.as_ref()
    }

    /// Who sits where, as far as this node knows, itself included.
    #[must_use]
    pub fn seats(&self) -> Vec<(Id, Slot)> {
        let Some(casts) = &self.casts else { return Vec::new() };
        casts.sitters.iter().map(|(&id, s)| (id, s.slot)).collect()
    }

    /// As [`Node::seats`], with what each one's casts are known by.
    pub fn sitters(&self) -> impl Iterator<Item = (Id, Slot, u64)> + '_ {
        self.casts.iter().flat_map(|casts| casts.sitters.iter().map(|(&id, s)| (id, s.slot, s.who)))
    }

    /// Casts to all members of the zone; its number. [`Said::Settled`] tells when all have it.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn broadcast(&mut self, now: Instant, body: &[u8], out: &mut impl Out) -> Result<u64, Refused> {
        let body = tagged(&self.letterhead(), body);
        self.let_cast(now, out, |caster, out| caster.broadcast(now, body, out))
    }

    /// Casts to these members; its number.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn multicast(&mut self, now: Instant, to: &[&str], body: &[u8], out: &mut impl Out) -> Result<u64, Refused> {
        let casts = self.casts.as_ref().ok_or(Refused::Seatless)?;
        let seats: BTreeMap<&str, Id> = casts.sitters.iter().map(|(&id, s)| (s.name.as_str(), id)).collect();
        let seat = |name: &&str| seats.get(name).copied().ok_or_else(|| Refused::Unknown((*name).to_owned()));
        let ids = to.iter().map(seat).collect::<Result<Vec<Id>, _>>()?;
        let body = tagged(&self.letterhead(), body);
        self.let_cast(now, out, |caster, out| caster.multicast(now, &ids, body, out))
    }

    /// What goes before that which we cast for the owners of nodes.
    fn letterhead(&self) -> Vec<u8> {
        let engine = self.engine();
        let name = engine.card(engine.me()).map_or("", |card| card.name.as_str());
        [&[OWNER, name.len() as u8], name.as_bytes()].concat()
    }

    /// Casts a letter to the rumours of all members.
    pub(super) fn cast_rumour(&mut self, now: Instant, letter: &[u8], out: &mut impl Out) -> Result<u64, Refused> {
        self.let_cast(now, out, |caster, out| caster.broadcast(now, tagged(&[RUMOUR], letter), out))
    }

    /// Where all sit whom casts come to.
    pub(super) fn seated(&self) -> BTreeSet<Addr> {
        self.casts.iter().flat_map(|casts| casts.sitters.values().map(|s| s.addr)).collect()
    }

    fn let_cast<S: Out>(
        &mut self,
        now: Instant,
        out: &mut S,
        act: impl FnOnce(&mut Caster, &mut CastOut<'_>) -> Result<u64, CastError>,
    ) -> Result<u64, Refused> {
        let result = self.with_caster(now, out, act).ok_or(Refused::Seatless)??;
        Ok(result)
    }

    /// Has the caster do something, when there is one.
    pub(super) fn with_caster<R, S: Out>(
        &mut self,
        now: Instant,
        out: &mut S,
        act: impl FnOnce(&mut Caster, &mut CastOut<'_>) -> R,
    ) -> Option<R> {
        let Self { casts, link, parting, largest, .. } = self;
        let Casts { caster, sitters, names, unsent, .. } = casts.as_deref_mut()?;
        let caster = caster.as_mut()?;
        let (stuck, told) = (Vec::new(), Vec::new());
        let mut cast_out = CastOut { now, link, parting, largest: *largest, sitters, names, unsent, stuck, told, out };
        let result = act(caster, &mut cast_out);
        while let Some(id) = cast_out.stuck.pop() {
            caster.handle(now, Input::Cut { id }, &mut cast_out);
        }
        let told = cast_out.told;
        told.iter().for_each(|letter| self.on_rumour_cast(now, letter, out));
        Some(result)
    }

    pub(super) fn on_cast(&mut self, now: Instant, bytes: &Shared, out: &mut impl Out) {
        self.with_caster(now, out, |caster, out| caster.handle(now, Input::Heard { bytes }, out));
    }

    /// A session with somebody ended, or began.
    pub(super) fn on_session(&mut self, now: Instant, addr: Addr, is_up: bool, out: &mut impl Out) {
        let Some(casts) = &mut self.casts else { return };
        if !is_up {
            casts.unsent.remove(&addr);
        }
        let Some((&id, _)) = casts.sitters.iter().find(|(_, s)| s.addr == addr) else { return };
        self.with_caster(now, out, |caster, out| match is_up {
            true if caster.lives(id) => caster.handle(now, Input::Back { ids: &[id] }, out),
            true => {}
            false => caster.handle(now, Input::Cut { id }, out),
        });
    }

    /// A peer's link takes more.
    pub(super) fn on_writable(&mut self, now: Instant, addr: Addr) {
        let Self { casts, link, parting, largest, .. } = self;
        let Some(casts) = casts else { return };
        let Some(unsent) = casts.unsent.get_mut(&addr) else { return };
        while let Some(bytes) = unsent.messages.front() {
            if let Err(Code::LocalResource | Code::RemoteResource) =
                deliver(now, link, parting, (addr, *largest), bytes)
            {
                return;
            }
            unsent.bytes -= bytes.len();
            unsent.messages.pop_front();
        }
        casts.unsent.remove(&addr);
    }

    /// Whether casts go to this peer, now or soon.
    pub(super) fn casts_to(&self, addr: Addr) -> bool {
        let Some((casts, caster)) = self.casts.as_deref().and_then(|c| Some((c, c.caster.as_ref()?))) else {
            return false;
        };
        let mut near = caster.tree().neighbours(caster.me());
        casts.unsent.contains_key(&addr) || near.any(|id| casts.sitters.get(&id).is_some_and(|s| s.addr == addr))
    }

    pub(super) fn expire_casts(&mut self, now: Instant, out: &mut impl Out) {
        let Some(casts) = &mut self.casts else { return };
        if casts.look_at <= now {
            casts.look_at = Instant::NEVER;
            self.look_at_seats(now, out);
        }
        if self.caster().is_some_and(|c| c.deadline() <= now) {
            self.with_caster(now, out, |caster, out| caster.expire(now, out));
        }
    }
}

impl Casts {
    pub(super) fn deadline(&self) -> Instant {
        self.look_at.min(self.caster.as_ref().map_or(Instant::NEVER, Machine::deadline))
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&self.mine).add(&self.slots).add(&self.fill);
        print.instant(self.look_at);
        if let Some(caster) = &self.caster {
            caster.fingerprint(print);
        }
    }
}

/// The number of a tree: those of other zones, or with another fan-out, are other trees.
pub(super) fn tree_number(name: &str, fan_out: u32) -> u64 {
    hash(name.bytes().chain(fan_out.to_le_bytes()))
}

/// FNV-1a.
pub(super) fn hash(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
}
