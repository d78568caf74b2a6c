//! A node's casts: its seat in the tree of its zone, who sits where, and the way of their messages over the link.
//!
//! ST-2, ST-6. Seats are attributes of members ([`seats`](crate::cast::seats)), so whoever knows the members knows the tree. What the zone
//! says of a member is told to the [`Caster`] at once; seats are looked at again a moment after something changed.

use super::parting::Parting;
use super::{Node, Out, Output};
use crate::cast::seats::{ATTRIBUTE, Claim, Repair, Seats};
use crate::cast::{self, CastError, Caster, Id, Input, Tree, TreeError};
use crate::link::Link;
use crate::member::{Engine, Slot};
use phalanx_core::{Addr, Code, Duration, Endpoint, Fingerprint, Identity, Instant, Machine, Port, Sink};
use std::collections::{BTreeMap, VecDeque};

/// Where casts are sent and heard.
pub(super) const CASTS: Port = Port(4);
/// Whoever starts looks around for so long before it takes a seat.
const FIRST_LOOK: Duration = Duration::from_millis(300);
/// Changes that come together are looked at together.
const LOOK: Duration = Duration::from_millis(20);
/// Bytes that wait for a peer's link to take them; past it the link counts as cut.
const UNSENT_MAX: usize = 64 << 20;

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
        body: &'a [u8],
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
    config: Config,
    tree: u64,
    caster: Option<Caster>,
    mine: Option<Claim>,
    sitters: BTreeMap<Id, Sitter>,
    /// Who sits in each seat, and who sat there before.
    names: BTreeMap<Id, Vec<(u64, String)>>,
    /// The highest life that was claimed for each seat.
    lives: BTreeMap<Id, u64>,
    slots: BTreeMap<Slot, Id>,
    /// When seats are looked at next.
    look_at: Instant,
    /// Holes are to be filled, though the policy does not say so.
    fill: bool,
    unsent: BTreeMap<Addr, Unsent>,
}

/// Who sits in a seat.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Sitter {
    slot: Slot,
    addr: Addr,
    name: String,
    life: u64,
}

/// What a peer's link did not take.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Unsent {
    messages: VecDeque<Vec<u8>>,
    bytes: usize,
}

/// The way of casts to the link, and to the node's owner.
struct CastOut<'n, S> {
    now: Instant,
    link: &'n mut Link,
    parting: &'n mut Parting,
    largest: u16,
    sitters: &'n BTreeMap<Id, Sitter>,
    names: &'n BTreeMap<Id, Vec<(u64, String)>>,
    unsent: &'n mut BTreeMap<Addr, Unsent>,
    /// Links that took nothing, and hold too much already.
    stuck: Vec<Id>,
    out: &'n mut S,
}

impl<S: Out> CastOut<'_, S> {
    fn name(&self, id: Id, life: Option<u64>) -> &str {
        let all = self.names.get(&id).map_or(&[][..], Vec::as_slice);
        all.iter().find(|(l, _)| life.is_none_or(|life| life == *l)).map_or("", |(_, name)| name)
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

impl<'o, S: Out> Sink<cast::Output<'o>> for CastOut<'_, S> {
    fn push(&mut self, output: cast::Output<'o>) {
        match output {
            cast::Output::Send { to, bytes } | cast::Output::Reach { to, bytes } => self.send(to, bytes),
            cast::Output::Deliver { source, life, whole, body } => {
                let from = self.name(source, Some(life)).to_owned();
                self.out.push(Output::Cast(Said::Delivered { from: &from, whole, body }));
            }
            cast::Output::Settled { whole, number, missed } => {
                let missed: Vec<String> = missed.iter().map(|&id| self.name(id, None).to_owned()).collect();
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
            caster: None,
            mine: None,
            sitters: BTreeMap::new(),
            names: BTreeMap::new(),
            lives: BTreeMap::new(),
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

    /// As [`Node::seats`], with the life that each seat is in.
    pub fn sitters(&self) -> impl Iterator<Item = (Id, Slot, u64)> + '_ {
        self.casts.iter().flat_map(|casts| casts.sitters.iter().map(|(&id, s)| (id, s.slot, s.life)))
    }

    /// Casts to all members of the zone; its number. [`Said::Settled`] tells when all have it.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn broadcast(&mut self, now: Instant, body: &[u8], out: &mut impl Out) -> Result<u64, Refused> {
        self.let_cast(now, out, |caster, out| caster.broadcast(now, body, out))
    }

    /// Casts to these members; its number.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn multicast(&mut self, now: Instant, to: &[&str], body: &[u8], out: &mut impl Out) -> Result<u64, Refused> {
        let casts = self.casts.as_ref().ok_or(Refused::Seatless)?;
        let seat = |name: &&str| {
            let found = casts.sitters.iter().find(|(_, s)| s.name == *name);
            found.map(|(&id, _)| id).ok_or_else(|| Refused::Unknown((*name).to_owned()))
        };
        let ids = to.iter().map(seat).collect::<Result<Vec<Id>, _>>()?;
        self.let_cast(now, out, |caster, out| caster.multicast(now, &ids, body, out))
    }

    /// ST-6: holes in the tree are filled now, whatever the policy says.
    pub fn repair(&mut self, now: Instant) {
        if let Some(casts) = &mut self.casts {
            (casts.fill, casts.look_at) = (true, now);
        }
    }

    /// Sits where a directory outside says. Nobody held the seat in such a life before.
    pub fn take_seat(&mut self, now: Instant, seat: Id, life: u64) {
        let Self { casts: Some(casts), engine, management, .. } = self else { return };
        let Some(engine) = engine.as_mut().or(management.as_deref_mut()) else { return };
        // Who was given a seat later holds it: whoever had it before lost it there, and does not know yet.
        let claim = Claim { since: u64::MAX - life, seat, life };
        if engine.set(now, ATTRIBUTE, Some(claim.to_string().as_bytes())).is_ok() {
            casts.mine = Some(claim);
        }
        casts.look_at = now;
    }

    /// The zone is another one now, and so is its tree.
    pub fn replant(&mut self, now: Instant, tree: &str) {
        if let Some(casts) = &mut self.casts {
            casts.tree = tree_number(tree, casts.config.fan_out);
            (casts.caster, casts.mine, casts.look_at) = (None, None, now + LOOK);
            casts.sitters.clear();
            casts.names.clear();
            casts.lives.clear();
            casts.slots.clear();
        }
    }

    fn let_cast<S: Out>(
        &mut self,
        now: Instant,
        out: &mut S,
        act: impl FnOnce(&mut Caster, &mut CastOut<'_, S>) -> Result<u64, CastError>,
    ) -> Result<u64, Refused> {
        let result = self.with_caster(now, out, act).ok_or(Refused::Seatless)??;
        Ok(result)
    }

    /// Has the caster do something, when there is one.
    fn with_caster<R, S: Out>(
        &mut self,
        now: Instant,
        out: &mut S,
        act: impl FnOnce(&mut Caster, &mut CastOut<'_, S>) -> R,
    ) -> Option<R> {
        let Self { casts, link, parting, largest, .. } = self;
        let Casts { caster, sitters, names, unsent, .. } = casts.as_deref_mut()?;
        let caster = caster.as_mut()?;
        let mut out = CastOut { now, link, parting, largest: *largest, sitters, names, unsent, stuck: Vec::new(), out };
        let result = act(caster, &mut out);
        while let Some(id) = out.stuck.pop() {
            caster.handle(now, Input::Cut { id }, &mut out);
        }
        Some(result)
    }

    pub(super) fn on_cast(&mut self, now: Instant, bytes: &[u8], out: &mut impl Out) {
        self.with_caster(now, out, |caster, out| caster.handle(now, Input::Heard { bytes }, out));
    }

    /// A member's seat changed, or it is gone.
    pub(super) fn on_sitter(&mut self, now: Instant, member: Slot, is_gone: bool, out: &mut impl Out) {
        let Some(casts) = &mut self.casts else { return };
        casts.look_at = casts.look_at.min(now + LOOK);
        let gone = if is_gone { casts.slots.remove(&member) } else { None };
        if let Some(id) = gone.filter(|id| casts.mine.is_none_or(|m| m.seat != *id)) {
            self.with_caster(now, out, |caster, out| caster.handle(now, Input::Failed { ids: &[id] }, out));
        }
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

    /// Takes a seat where that is needed, and learns who sits where.
    fn look_at_seats(&mut self, now: Instant, out: &mut impl Out) {
        let Self { casts: Some(casts), engine, management, .. } = self else { return };
        let Some(engine) = engine.as_mut().or(management.as_deref_mut()) else { return };
        let me = engine.me();
        let Some(version) = engine.version(me) else { return };
        let mut all: BTreeMap<Identity, (Sitter, Option<Claim>)> = BTreeMap::new();
        for (slot, _) in engine.members() {
            let Some(card) = engine.card(slot) else { continue };
            let claim = match slot == me {
                true => casts.mine,
                false => engine.attribute(slot, ATTRIBUTE).and_then(Claim::read),
            };
            let name = card.name.as_str().to_owned();
            let sitter = Sitter { slot, addr: card.addr, name, life: claim.map_or(0, |c| c.life) };
            all.insert(card.identity, (sitter, claim));
        }
        let Some(identity) = engine.card(me).map(|c| c.identity) else { return };
        let mut seats = Seats::of(all.iter().map(|(who, (_, claim))| (*who, *claim))).after(&mut casts.lives);
        let fill = std::mem::take(&mut casts.fill);
        let wanted = match casts.config.external {
            true => None,
            false => seats.wanted(identity, version.incarnation, casts.config.repair, fill),
        };
        if let Some(claim) = wanted {
            // Who moves does not follow its casts any more: it waits for them. Until then others go around the hole.
            let moves = casts.mine.is_some_and(|mine| seats.iter().any(|(c, who)| c == mine && who == identity));
            if moves && casts.caster.as_ref().is_some_and(|c| !c.is_idle()) {
                (casts.look_at, casts.fill) = (now + LOOK, fill);
            } else if engine.set(now, ATTRIBUTE, Some(claim.to_string().as_bytes())).is_ok() {
                casts.mine = Some(claim);
                // At once: whoever hears of it casts to us.
                casts.look_at = now;
                casts.fill = fill;
                // Who moves sits there at once: what it cast meanwhile from its old seat would not be followed.
                if let Some((sitter, old)) = all.get_mut(&identity).filter(|_| moves) {
                    (sitter.life, *old) = (claim.life, Some(claim));
                    seats = Seats::of(all.iter().map(|(who, (_, claim))| (*who, *claim))).after(&mut casts.lives);
                }
            }
        }
        let held: Vec<(Claim, Sitter)> =
            seats.iter().filter_map(|(claim, who)| Some((claim, all.remove(&who)?.0))).collect();
        self.seat(now, &held, seats.size(), out);
    }

    /// Tells the caster who sits where.
    fn seat(&mut self, now: Instant, held: &[(Claim, Sitter)], size: u32, out: &mut impl Out) {
        let Some(casts) = &mut self.casts else { return };
        let mine = casts.mine.filter(|mine| held.iter().any(|(claim, _)| claim == mine));
        let before = std::mem::take(&mut casts.sitters);
        casts.sitters = held.iter().map(|(claim, sitter)| (claim.seat, sitter.clone())).collect();
        for (&id, s) in &casts.sitters {
            let names = casts.names.entry(id).or_default();
            if names.first().is_none_or(|(life, name)| (*life, name) != (s.life, &s.name)) {
                names.insert(0, (s.life, s.name.clone()));
                names.truncate(2);
            }
        }
        casts.slots = casts.sitters.iter().map(|(&id, s)| (s.slot, id)).collect();
        let Some(mine) = mine else { return };
        let is_new = casts.caster.is_none();
        if is_new {
            let Ok(tree) = Tree::new(casts.config.fan_out, size.max(mine.seat.0 + 1)) else { return };
            casts.caster = Some(Caster::new(casts.config.caster, tree, casts.tree, mine.seat));
        }
        let was = casts.sitters.get(&mine.seat).zip(before.get(&mine.seat));
        let sits_anew = is_new || was.is_none_or(|(now, before)| now.slot != before.slot || now.life != before.life);
        let empty: Vec<Id> = (0..size).map(Id).filter(|id| !casts.sitters.contains_key(id)).collect();
        // Who was gone and came back before anybody looked sits where it sat; while we had no seat, nobody was told to the caster.
        let is_back = |id: Id| casts.caster.as_ref().is_some_and(|c| !c.lives(id));
        let fresh: Vec<(Id, u64)> = casts
            .sitters
            .iter()
            .filter(|(id, s)| {
                sits_anew || is_back(**id) || before.get(id).is_none_or(|b| b.life != s.life || b.addr != s.addr)
            })
            .map(|(&id, s)| (id, s.life))
            .collect();
        let sat = |slot: Slot| before.iter().find(|(_, b)| b.slot == slot).map(|(&id, _)| id);
        let moved: Vec<Id> = fresh
            .iter()
            .map(|&(id, _)| id)
            .filter(|id| casts.sitters.get(id).and_then(|s| sat(s.slot)).is_some_and(|was| was != *id))
            .collect();
        let left: Vec<Id> = before.keys().copied().filter(|id| !casts.sitters.contains_key(id)).collect();
        self.with_caster(now, out, |caster, out| {
            // Nobody answers from seats that were left, also from those that the tree is to lose.
            caster.handle(now, Input::Failed { ids: &left }, out);
            caster.handle(now, Input::Sized { nodes: size.max(caster.tree().len()) }, out);
            let seat_all = |caster: &mut Caster, out: &mut CastOut<'_, _>| {
                for &(id, life) in &fresh {
                    caster.handle(now, Input::Seated { id, life, before: is_new }, out);
                }
            };
            seat_all(caster, out);
            if sits_anew {
                caster.sit(now, mine.seat, mine.life, out);
                // Somebody may sit where we sat.
                seat_all(caster, out);
            }
            caster.handle(now, Input::Sized { nodes: size }, out);
            caster.handle(now, Input::Failed { ids: &empty }, out);
            for id in moved {
                caster.handle(now, Input::Moved { id }, out);
            }
            if sits_anew {
                caster.hello(out);
            }
        });
    }
}

impl Casts {
    pub(super) fn deadline(&self) -> Instant {
        self.look_at.min(self.caster.as_ref().map_or(Instant::NEVER, Machine::deadline))
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&self.mine).add(&self.slots).add(&self.lives).add(&self.fill);
        print.instant(self.look_at);
        if let Some(caster) = &self.caster {
            caster.fingerprint(print);
        }
    }
}

/// The number of a tree: those of other zones, or with another fan-out, are other trees.
fn tree_number(name: &str, fan_out: u32) -> u64 {
    // FNV-1a.
    let bytes = name.bytes().chain(fan_out.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
}
