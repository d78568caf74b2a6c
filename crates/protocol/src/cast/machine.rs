//! The machine of one node: it casts, hands on, goes around the dead, and delivers once.
//!
//! ST-4. **Damage that is known** is gone around at once, see [`spread`](super::spread) and [`walk`](super::walk). **Damage that happens
//! meanwhile**: what was sent to somebody who dies may be lost with it, so each node remembers for a while what it sent on to whom, and
//! sends it another way when that one is told to be dead. Whoever has it twice knows by its number.
//!
//! Above each node somebody lives who remembers, but where all above it are dead: who finds itself there stands in for the root, and sends
//! what it has to the tops of the other branches. **When the source dies**, too, nobody may be left who knew that a cast was to reach the
//! root: then each who has it passes it up to who is next above it, which has it already most of the time, and spreads it if not.
//!
//! **Orphans.** Who lives and cannot be reached over living neighbours is reached through the directory ([`Output::Reach`]).
//!
//! **Receipts** (beyond 001, [`Config::receipts`]). Whoever has a cast in its whole branch tells who is next above it; who has nobody above
//! tells the source. So the source knows when all who live have it ([`Output::Settled`]), and does not send more than its window holds.

use super::progress::{Branch, Pending, Posted};
use super::recent::{Cast, Memory, Recent, Sent};
use super::route::{Router, Rule};
use super::spread::{self, Message as Part};
use super::tree::{Id, Tree};
use super::walk::{Hop, Transit};
use super::window::Window;
use phalanx_core::{Duration, Fingerprint, Instant, Machine, Sink};
use phalanx_wire::cast::{BODY_MAX, Kind, LIST_MAX, Message, Multicast};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use thiserror::Error;

/// How casts are handed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// How ways around the dead are chosen.
    pub rule: Rule,
    /// How long a cast is remembered at most: a death must be told within that time.
    pub kept: Duration,
    /// Bytes that are remembered; the oldest are forgotten first.
    pub kept_bytes: usize,
    /// How long a message that is missing may hold up later ones of its source.
    pub patience: Duration,
    /// Who has a cast says so.
    pub receipts: bool,
    /// Bytes of our own casts under way, when there are receipts.
    pub window: usize,
    /// Nodes come and go: who is heard of may be unknown yet.
    pub grows: bool,
}

impl Default for Config {
    fn default() -> Self {
        let (kept, patience) = (Duration::from_secs(30), Duration::from_secs(30));
        let (kept_bytes, window) = (64 << 20, 4 << 20);
        Self { rule: Rule::Detour, kept, kept_bytes, patience, receipts: false, window, grows: false }
    }
}

impl Config {
    /// For a cluster: with receipts, in a tree that grows.
    #[must_use]
    pub fn cluster() -> Self {
        Self { receipts: true, grows: true, ..Self::default() }
    }
}

/// Why a cast was refused. Nothing was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum CastError {
    /// Its body.
    #[error("a cast holds {BODY_MAX} bytes, not {0}: cut it into pieces")]
    TooLarge(usize),
    /// Its destinations.
    #[error("a multicast goes to 1 to {LIST_MAX} nodes, not {0}: broadcast it, or send it in parts")]
    Destinations(usize),
    /// One of them.
    #[error("there is no node {0} in this tree of {1}")]
    Unknown(Id, u32),
    /// The window is full.
    #[error("too much is under way: wait until some of it has settled")]
    Busy,
}

/// What a node is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Input<'a> {
    /// A message came from a node of the tree.
    Heard {
        /// Its bytes.
        bytes: &'a [u8],
    },
    /// These do not live.
    Failed {
        /// Who.
        ids: &'a [Id],
    },
    /// These live again.
    Back {
        /// Who.
        ids: &'a [Id],
    },
    /// Somebody sits here now; the tree grows when it must.
    Seated {
        /// Where.
        id: Id,
        /// In which life.
        life: u64,
        /// It was there before us: we begin with the first of its casts that comes.
        before: bool,
    },
    /// Who has just been [seated](Input::Seated) here sat elsewhere before: what was sent there may not have come.
    Moved {
        /// Where it is now.
        id: Id,
    },
    /// The tree has so many seats.
    Sized {
        /// How many.
        nodes: u32,
    },
    /// Our link with this one is cut, though it lives, until it is told to be back.
    Cut {
        /// Who.
        id: Id,
    },
}

/// What a node decides.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Output<'a> {
    /// Send this to a neighbour, reliably and in order.
    Send {
        /// Who.
        to: Id,
        /// The message.
        bytes: &'a [u8],
    },
    /// No way leads there over living neighbours, or none is needed: send it directly, to where the directory says that it is.
    Reach {
        /// Who.
        to: Id,
        /// The message.
        bytes: &'a [u8],
    },
    /// Something was cast to us.
    Deliver {
        /// By whom.
        source: Id,
        /// In which life: others may sit there now.
        life: u64,
        /// To everybody; otherwise to some.
        whole: bool,
        /// What.
        body: &'a [u8],
    },
    /// A destination of a multicast is dead.
    Unreached {
        /// Who.
        to: Id,
    },
    /// All who live have what we cast.
    Settled {
        /// All casts to everybody up to this one; otherwise one to some.
        whole: bool,
        /// What [`Caster::broadcast`] or [`Caster::multicast`] said.
        number: u64,
        /// Destinations that died before they had it.
        missed: &'a [Id],
    },
}

/// A sink for what nodes decide.
pub trait Out: for<'a> Sink<Output<'a>> {}
impl<S: for<'a> Sink<Output<'a>>> Out for S {}

/// What was dropped, and what happened how often.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Messages that could not be read, or name nodes that there are not.
    pub malformed: u64,
    /// Messages of another tree, or of a life that is over.
    pub strays: u64,
    /// Messages that had come before.
    pub twice: u64,
    /// Messages that were handed on another way because somebody died.
    pub again: u64,
    /// Messages that were forgotten for lack of room.
    pub forgotten: u64,
    /// Messages that never came, and held up others for too long.
    pub missed: u64,
}

/// A node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caster {
    config: Config,
    tree: Tree,
    /// Which tree.
    name: u64,
    me: Id,
    life: u64,
    /// Nobody is known to sit here or beyond.
    known: u32,
    router: Router,
    dead: BTreeSet<Id>,
    /// They live, but our links with them do not carry.
    cut: BTreeSet<Id>,
    /// How many broadcasts of ours there were, and messages to each.
    casts: u64,
    letters: BTreeMap<Id, u64>,
    /// Everybody has our casts up to this one.
    stable: u64,
    pending: Pending,
    sources: BTreeMap<Id, Source>,
    /// Sources of which a message is missing.
    waits: BTreeSet<Id>,
    memory: Memory,
    counters: Counters,
}

/// Somebody who casts.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
struct Source {
    life: u64,
    /// Lives up to this one are over, but for the present one.
    over: u64,
    /// Broadcasts, and messages to us.
    windows: [Window; 2],
    branch: Branch,
}

impl Source {
    fn waits_since(&self) -> Instant {
        self.windows.iter().map(Window::waits_since).fold(Instant::NEVER, Instant::min)
    }
}

/// Casting.
impl Caster {
    /// The node `me` of this tree, in which nobody is known to be dead.
    #[must_use]
    pub fn new(config: Config, tree: Tree, name: u64, me: Id) -> Self {
        Self {
            router: Router::new(config.rule),
            config,
            tree,
            name,
            me,
            life: 0,
            known: tree.len(),
            dead: BTreeSet::new(),
            cut: BTreeSet::new(),
            casts: 0,
            letters: BTreeMap::new(),
            stable: 0,
            pending: Pending::default(),
            sources: BTreeMap::new(),
            waits: BTreeSet::new(),
            memory: Memory::default(),
            counters: Counters::default(),
        }
    }

    /// The same one in a later life, or elsewhere in the tree. What it has had it knows; its own casts begin anew, and those that are
    /// under way are not followed any more: who can wait sits down anew when it [is idle](Caster::is_idle).
    ///
    /// Others are below it now. Casts that not everybody is known to have are sent on to them, too: who was here before may have died
    /// with them.
    pub fn sit(&mut self, now: Instant, me: Id, life: u64, out: &mut impl Out) {
        if self.casts > self.stable {
            out.push(Output::Settled { whole: true, number: self.casts, missed: &[] });
        }
        for posted in self.pending.give_up() {
            self.posted(Some(posted), out);
        }
        if self.me != me && self.life > 0 {
            // Our casts from there are over, and whoever comes there may have a lower life.
            self.sources.insert(self.me, Source { over: self.life, ..Source::default() });
        }
        self.dead.insert(std::mem::replace(&mut self.me, me));
        self.life = life;
        (self.casts, self.stable) = (0, 0);
        self.letters.clear();
        self.pending = Pending::default();
        // What comes of who sat here before is of a life that is over.
        self.sources.insert(me, Source { life, over: u64::MAX, ..Source::default() });
        self.dead.remove(&me);
        self.known = self.known.max(me.0 + 1);
        self.grow(me);
        for (&id, source) in &mut self.sources {
            source.branch.replant(self.memory.first_of(id, source.life));
        }
        for Recent { cast, .. } in self.memory.take() {
            let is_known = self.sources.get(&cast.source).is_some_and(|s| s.life == cast.life);
            if cast.number > 0 && is_known {
                self.spread(now, &cast, out);
            }
        }
    }

    /// All who live have what it cast.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    /// Its number.
    #[must_use]
    pub fn me(&self) -> Id {
        self.me
    }

    /// Its tree.
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Whether somebody lives there, as far as it knows.
    #[must_use]
    pub fn lives(&self, id: Id) -> bool {
        id.0 < self.known && !self.dead.contains(&id)
    }

    /// What was dropped, and what happened how often.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Whether a cast of so many bytes would be taken now.
    #[must_use]
    pub fn has_room(&self, len: usize) -> bool {
        !self.config.receipts || self.pending.fits(len, self.config.window)
    }

    /// ST-2: says hello to the parent and to the left neighbour, at the right end of a level also to the one at the left end.
    pub fn hello(&self, out: &mut impl Out) {
        let (parent, left, right) = (self.tree.parent(self.me), self.tree.left(self.me), self.tree.right(self.me));
        let first = right.filter(|r| r.0 < self.me.0);
        let all: BTreeSet<Id> = [parent, left, first].into_iter().flatten().filter(|&id| self.lives(id)).collect();
        let cast = Cast { number: 0, ..self.own(0, &Arc::from([])) };
        all.into_iter().for_each(|to| self.send(to, &cast, Kind::Hello, out));
    }

    /// Casts to everybody, ourselves included; its number.
    ///
    /// # Errors
    /// See [`CastError`].
    pub fn broadcast(&mut self, now: Instant, body: &[u8], out: &mut impl Out) -> Result<u64, CastError> {
        self.check(body)?;
        self.casts += 1;
        let cast = self.own(self.casts, &Arc::from(body));
        if self.config.receipts {
            self.pending.cast(cast.number, body.len());
        }
        self.take(now, &cast, out);
        if self.me != ROOT {
            self.envelop(now, &cast, vec![ROOT], out);
        }
        Ok(cast.number)
    }

    /// Casts to these, each once; its number.
    ///
    /// # Errors
    /// See [`CastError`].
    pub fn multicast(&mut self, now: Instant, to: &[Id], body: &[u8], out: &mut impl Out) -> Result<u64, CastError> {
        self.check(body)?;
        let all: BTreeSet<Id> = to.iter().copied().collect();
        if !(1..=LIST_MAX).contains(&all.len()) {
            return Err(CastError::Destinations(all.len()));
        }
        if let Some(&unknown) = all.iter().find(|&&id| !self.tree.contains(id)) {
            return Err(CastError::Unknown(unknown, self.tree.len()));
        }
        let cast = self.own(0, &Arc::from(body));
        let (mut to, mut missed) = (Vec::with_capacity(all.len()), Vec::new());
        for id in all {
            if id == self.me {
                out.push(Output::Deliver { source: self.me, life: self.life, whole: false, body: &cast.body });
            } else if self.config.receipts && self.dead.contains(&id) {
                // It may be back, and would wait for what never comes if this had a number.
                missed.push(id);
            } else {
                let number = self.letters.entry(id).or_default();
                *number += 1;
                to.push((id, *number));
            }
        }
        let mut number = 0;
        if self.config.receipts {
            number = self.pending.post(to.iter().copied().collect(), missed, body.len());
            let posted = self.pending.end(number);
            self.posted(posted, out);
        }
        self.go_on(now, &cast, Multicast { to, seen: vec![self.me], ..Multicast::default() }, out);
        Ok(number)
    }

    fn check(&self, body: &[u8]) -> Result<(), CastError> {
        if body.len() > BODY_MAX {
            return Err(CastError::TooLarge(body.len()));
        }
        if self.has_room(body.len()) { Ok(()) } else { Err(CastError::Busy) }
    }

    fn own(&self, number: u64, body: &Arc<[u8]>) -> Cast {
        Cast { source: self.me, life: self.life, number, stable: self.stable, body: Arc::clone(body) }
    }
}

/// Hearing.
impl Caster {
    fn on_heard(&mut self, now: Instant, bytes: &[u8], out: &mut impl Out) {
        let Ok(message) = Message::parse(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        if message.tree != self.name {
            self.counters.strays += 1;
            return;
        }
        let Message { source, life, number, stable, kind, body, .. } = message;
        let highest = match &kind {
            Kind::Multicast(Multicast { to, path, seen, dead, .. }) => {
                to.iter().map(|t| t.0).chain(path.iter().chain(seen).chain(dead).copied()).chain([source]).max()
            }
            Kind::Progress(from) | Kind::Receipt(from) => Some(source.max(*from)),
            Kind::Hello | Kind::Broadcast => Some(source),
        };
        // Who is here has been here.
        let is_lost = matches!(&kind, Kind::Multicast(header) if !header.seen.contains(&self.me));
        if is_lost || highest.is_some_and(|highest| !self.grow(highest)) {
            self.counters.malformed += 1;
            return;
        }
        let cast = || Cast { source, life, number, stable, body: Arc::from(body) };
        match kind {
            // That somebody lives is told by the layers below.
            Kind::Hello => {}
            Kind::Broadcast => self.take(now, &cast(), out),
            Kind::Multicast(multicast) => self.on_multicast(now, &cast(), multicast, out),
            Kind::Progress(from) => self.on_progress((source, life), number, from, out),
            Kind::Receipt(from) if (source, life) == (self.me, self.life) => {
                let posted = self.pending.received(from, number);
                self.posted(posted, out);
            }
            Kind::Receipt(_) => self.counters.strays += 1,
        }
    }

    /// Whether there can be such a node; others may know of it before us.
    fn grow(&mut self, id: Id) -> bool {
        let may_grow = self.config.grows && u64::from(id.0) < 2 * u64::from(self.known) + 64;
        if !self.tree.contains(id)
            && may_grow
            && let Ok(tree) = Tree::new(self.tree.fan_out(), id.0 + 1)
        {
            self.tree = tree;
        }
        self.tree.contains(id)
    }

    /// What is known of a source in this life of it; `None` when that is over.
    fn source(&mut self, of: (Id, u64)) -> Option<&mut Source> {
        let (id, life) = of;
        let source = self.sources.entry(id).or_insert_with(|| Source { life, ..Source::default() });
        if source.life < life && source.over < life {
            *source = Source { life, over: source.life, ..Source::default() };
        }
        (source.life == life).then_some(source)
    }

    /// A source begins another life: what waits for a message of the old one does so in vain.
    fn end_life(&mut self, (id, life): (Id, u64), out: &mut impl Out) {
        let Some(source) = self.sources.get_mut(&id).filter(|s| s.life < life && s.over < life) else { return };
        let (life, windows) = (source.life, source.windows.each_mut().map(Window::give_up));
        for (bodies, whole) in windows.into_iter().zip([true, false]) {
            bodies.iter().for_each(|body| out.push(Output::Deliver { source: id, life, whole, body }));
        }
        self.waits.remove(&id);
    }

    /// A broadcast is here: sends it on, and delivers it, unless it was here before.
    fn take(&mut self, now: Instant, cast: &Cast, out: &mut impl Out) {
        let Cast { source: id, life, number, stable, ref body } = *cast;
        // Casts are counted from 1, and nobody knows of later ones than its own.
        if number == 0 || stable > number {
            self.counters.malformed += 1;
            return;
        }
        self.end_life((id, life), out);
        let Some(source) = self.source((id, life)) else {
            self.counters.strays += 1;
            return;
        };
        let [casts, _] = &mut source.windows;
        if casts.has(number) {
            let is_open = number > source.branch.upto;
            self.counters.twice += 1;
            // Since we sat elsewhere, or in another life, others are below us.
            if is_open && self.config.receipts && !self.memory.has(id, life, number) {
                self.spread(now, cast, out);
            }
            return;
        }
        if casts.is_open() {
            source.branch.reach(number - 1);
        }
        let mut ready = casts.take(now, number, body);
        if stable > 0 {
            // All who lived had those. We were taken for dead then, if we did not.
            let (missed, more) = casts.pass(now, stable.min(number));
            ready.extend(more);
            source.branch.reach(stable);
            self.counters.missed += missed;
            self.memory.stable(id, life, stable);
        }
        self.spread(now, cast, out);
        for body in ready {
            out.push(Output::Deliver { source: id, life, whole: true, body: &body });
        }
        self.note_waits(id);
        if self.dead.contains(&id) {
            self.pass_up(now, cast, out);
        }
    }

    fn spread(&mut self, now: Instant, cast: &Cast, out: &mut impl Out) {
        let parts = spread::messages(&self.tree, self.me, |id| self.lives(id));
        let mut bytes = Vec::new();
        for part in parts {
            match part {
                Part::Around(to) => self.envelop(now, cast, to, out),
                Part::Down(to) if self.cut.contains(&to) => self.envelop(now, cast, vec![to], out),
                Part::Down(to) => {
                    self.remember(now, cast, Some(Sent::Down(to)), Vec::new());
                    if bytes.is_empty() {
                        bytes = self.message(cast, Kind::Broadcast);
                    }
                    out.push(Output::Send { to, bytes: &bytes });
                }
            }
        }
        let awaits = match self.config.receipts {
            true => self.awaited(self.me, cast),
            false => Vec::new(),
        };
        let is_done = awaits.is_empty();
        // Also who sends it to nobody may have to stand in for those above it.
        self.remember(now, cast, None, awaits);
        if is_done {
            self.finish((cast.source, cast.life), &[cast.number], out);
        }
    }

    /// Whose branches below somebody are not known to have a cast.
    fn awaited(&self, below: Id, cast: &Cast) -> Vec<Id> {
        let mut awaits = spread::heirs(&self.tree, below, |id| self.lives(id));
        if let Some(source) = self.sources.get(&cast.source).filter(|s| s.life == cast.life) {
            awaits.retain(|&id| !source.branch.has(cast.number, std::iter::once(id).chain(self.tree.above(id))));
        }
        awaits
    }

    fn note_waits(&mut self, id: Id) {
        if self.sources.get(&id).is_some_and(|s| s.waits_since() != Instant::NEVER) {
            self.waits.insert(id);
        } else {
            self.waits.remove(&id);
        }
    }

    fn on_multicast(&mut self, now: Instant, cast: &Cast, mut header: Multicast, out: &mut impl Out) {
        let (to, letter) = header.to[header.index as usize];
        if to != self.me {
            return self.go_on(now, cast, header, out);
        }
        header.index += 1;
        (header.path, header.seen) = (Vec::new(), vec![self.me]);
        let whole = header.whole;
        self.go_on(now, cast, header, out);
        if whole {
            return self.take(now, cast, out);
        }
        self.end_life((cast.source, cast.life), out);
        let Some(source) = self.source((cast.source, cast.life)) else {
            self.counters.strays += 1;
            return;
        };
        let [_, letters] = &mut source.windows;
        if letters.has(letter) {
            self.counters.twice += 1;
            return;
        }
        for body in letters.take(now, letter, &cast.body) {
            out.push(Output::Deliver { source: cast.source, life: cast.life, whole: false, body: &body });
        }
        self.note_waits(cast.source);
        if self.config.receipts && cast.source != self.me {
            let receipt = Cast { number: letter, stable: 0, body: Arc::from([]), ..cast.clone() };
            let bytes = self.message(&receipt, Kind::Receipt(self.me));
            out.push(Output::Reach { to: cast.source, bytes: &bytes });
        }
    }
}

/// Sending.
impl Caster {
    /// Sends a broadcast to these in an envelope.
    fn envelop(&mut self, now: Instant, cast: &Cast, to: Vec<Id>, out: &mut impl Out) {
        let to = visits(&self.tree, self.me, to);
        self.go_on(now, cast, Multicast { to, whole: true, seen: vec![self.me], ..Multicast::default() }, out);
    }

    /// Sends a multicast to its next hop, past destinations that are dead.
    fn go_on(&mut self, now: Instant, cast: &Cast, mut header: Multicast, out: &mut impl Out) {
        while let Some(&(to, _)) = header.to.get(header.index as usize) {
            if to == self.me {
                // Below a dead destination we found ourselves.
                return self.on_multicast(now, cast, header, out);
            }
            // The tree may have become smaller since it left.
            let tree = self.tree;
            for ids in [&mut header.path, &mut header.seen, &mut header.dead] {
                ids.retain(|&id| tree.contains(id));
            }
            let before = header.clone();
            let is_dead = !self.lives(to) || header.dead.contains(&to);
            let Multicast { path, seen, dead, .. } = &mut header;
            let mut transit = Transit::of(std::mem::take(path), std::mem::take(seen), std::mem::take(dead));
            let (known, gone, cut) = (self.known, &self.dead, &self.cut);
            let lives = |id: Id| id.0 < known && !gone.contains(&id) && !cut.contains(&id);
            let hop = match is_dead {
                true => Hop::Nowhere,
                false => transit.hop(&mut self.router, &self.tree, self.me, to, lives),
            };
            (header.path, header.seen, header.dead) = transit.into_parts();
            // Others reach them.
            header.dead.retain(|id| !self.cut.contains(id));
            match hop {
                Hop::On(next) | Hop::Back(next) => {
                    self.remember(now, cast, Some(Sent::Along(next, before)), Vec::new());
                    return self.send(next, cast, Kind::Multicast(header), out);
                }
                Hop::Nowhere => {
                    self.give_up(cast, &mut header, to, is_dead, out);
                    (header.path, header.seen) = (Vec::new(), vec![self.me]);
                }
            }
        }
    }

    /// Nobody leads to this destination: it is dead, or an orphan.
    fn give_up(&self, cast: &Cast, header: &mut Multicast, to: Id, is_dead: bool, out: &mut impl Out) {
        let index = header.index as usize;
        if !is_dead {
            let kind = if header.whole {
                Kind::Broadcast
            } else {
                Kind::Multicast(Multicast {
                    to: vec![header.to[index]],
                    index: 0,
                    seen: vec![to],
                    ..Multicast::default()
                })
            };
            let bytes = self.message(cast, kind);
            out.push(Output::Reach { to, bytes: &bytes });
        } else if !header.whole {
            out.push(Output::Unreached { to });
        }
        if !header.whole {
            header.index += 1;
            return;
        }
        // Those below it need it all the same. Who has been asked for already is not asked for twice.
        let known: BTreeSet<Id> = header.to.iter().map(|t| t.0).collect();
        let below = spread::below(&self.tree, to).into_iter().filter(|id| !known.contains(id)).collect();
        header.to.splice(index..=index, visits(&self.tree, self.me, below));
    }

    fn send(&self, to: Id, cast: &Cast, kind: Kind, out: &mut impl Out) {
        let bytes = self.message(cast, kind);
        out.push(Output::Send { to, bytes: &bytes });
    }

    fn message(&self, cast: &Cast, kind: Kind) -> Vec<u8> {
        let &Cast { source, life, number, stable, ref body } = cast;
        let mut bytes = Vec::with_capacity(body.len() + 64);
        Message { tree: self.name, source, life, number, stable, kind, body }.encode(&mut bytes);
        bytes
    }

    fn remember(&mut self, now: Instant, cast: &Cast, sent: Option<Sent>, awaits: Vec<Id>) {
        self.memory.note(now + self.config.kept, cast, sent, awaits);
        self.counters.forgotten += self.memory.fit(self.config.kept_bytes);
    }
}

/// Damage.
impl Caster {
    fn on_failed(&mut self, now: Instant, ids: &[Id], out: &mut impl Out) {
        let news: Vec<Id> = ids.iter().copied().filter(|&id| id != self.me && self.dead.insert(id)).collect();
        if news.is_empty() {
            return;
        }
        let line: Vec<Id> = self.tree.above(self.me).collect();
        let lonely = !line.is_empty() && line.iter().all(|&id| !self.lives(id));
        let is_above = line.iter().any(|id| news.contains(id));
        let stands_in = lonely && is_above;
        for mut recent in self.memory.take() {
            let lost: Vec<Sent>;
            (lost, recent.sent) = recent.sent.drain(..).partition(|s| news.contains(&s.to()));
            self.pass_awaits(&mut recent, &news, out);
            let cast = recent.cast.clone();
            self.memory.keep(recent);
            self.counters.again += lost.len() as u64;
            for sent in lost {
                match sent {
                    Sent::Down(child) => self.envelop(now, &cast, spread::below(&self.tree, child), out),
                    Sent::Along(_, header) => self.go_on(now, &cast, header, out),
                }
            }
            // Letters to some have no number here.
            let may_be_lost =
                stands_in || self.dead.contains(&cast.source) && (news.contains(&cast.source) || is_above);
            if cast.number > 0 && may_be_lost {
                self.pass_up(now, &cast, out);
            }
        }
        for posted in self.pending.failed(&news) {
            self.posted(Some(posted), out);
        }
        self.report_again(out);
    }

    /// Who was awaited and is dead is awaited no more, but those below it are.
    fn pass_awaits(&mut self, recent: &mut Recent, news: &[Id], out: &mut impl Out) {
        let (gone, mut left): (Vec<Id>, Vec<Id>) = recent.awaits.iter().partition(|id| news.contains(id));
        if gone.is_empty() {
            return;
        }
        for id in gone {
            left.extend(self.awaited(id, &recent.cast));
        }
        recent.awaits = left;
        if recent.awaits.is_empty() {
            self.finish((recent.cast.source, recent.cast.life), &[recent.cast.number], out);
        }
    }

    /// Sees to it that whoever is next above us has it; where nobody is, we stand in for the root.
    fn pass_up(&mut self, now: Instant, cast: &Cast, out: &mut impl Out) {
        match self.next_above() {
            Some(next) => self.envelop(now, cast, vec![next], out),
            None if self.me != ROOT => self.envelop(now, cast, spread::below(&self.tree, ROOT), out),
            None => {}
        }
    }

    fn next_above(&self) -> Option<Id> {
        self.tree.above(self.me).find(|&id| self.lives(id))
    }

    /// What was sent to somebody who lives may not have come: it goes around.
    fn on_cut(&mut self, now: Instant, id: Id, out: &mut impl Out) {
        if !self.lives(id) || !self.cut.insert(id) {
            return;
        }
        let mut again = Vec::new();
        for recent in self.memory.iter() {
            // Of a message to some nobody says here whether it came.
            let is_open = recent.cast.number == 0 || !recent.awaits.is_empty() || !self.config.receipts;
            // Nor who of those beyond our branch has it.
            let lost = recent.sent.iter().filter(|s| s.to() == id && (is_open || matches!(s, Sent::Along(..))));
            again.extend(lost.map(|sent| (recent.cast.clone(), sent.clone())));
        }
        self.counters.again += again.len() as u64;
        for (cast, sent) in again {
            match sent {
                Sent::Down(to) => self.envelop(now, &cast, vec![to], out),
                Sent::Along(_, header) => self.go_on(now, &cast, header, out),
            }
        }
        // It hears of our progress when the link carries again.
        for source in self.sources.values_mut() {
            source.branch.told = source.branch.told.filter(|told| told.0 != id);
        }
    }
}

/// Receipts.
impl Caster {
    /// Our whole branch has these casts of a source.
    fn finish(&mut self, of: (Id, u64), numbers: &[u64], out: &mut impl Out) {
        if !self.config.receipts {
            return;
        }
        let Some(source) = self.source(of) else { return };
        let mut moved = false;
        for &number in numbers {
            moved |= source.branch.finish(number);
        }
        if moved {
            self.report(of.0, out);
        }
    }

    /// Tells how far our branch has come with the casts of a source: who is next above us, or else the source itself.
    fn report(&mut self, id: Id, out: &mut impl Out) {
        let above = self.next_above();
        let to = match above {
            Some(above) => above,
            None if id == self.me => return self.settle(out),
            None if !self.lives(id) => return,
            None => id,
        };
        // It hears of it when the link carries again.
        if self.cut.contains(&to) {
            return;
        }
        let Some(source) = self.sources.get_mut(&id) else { return };
        let upto = source.branch.upto;
        if upto == 0 || source.branch.told == Some((to, upto)) {
            return;
        }
        source.branch.told = Some((to, upto));
        let cast = Cast { source: id, life: source.life, number: upto, stable: 0, body: Arc::from([]) };
        let bytes = self.message(&cast, Kind::Progress(self.me));
        out.push(match self.tree.are_linked(self.me, to) {
            true => Output::Send { to, bytes: &bytes },
            false => Output::Reach { to, bytes: &bytes },
        });
    }

    /// Who is above us has changed, perhaps.
    fn report_again(&mut self, out: &mut impl Out) {
        if !self.config.receipts {
            return;
        }
        let sources: Vec<Id> = self.sources.keys().copied().collect();
        sources.into_iter().for_each(|id| self.report(id, out));
        self.settle(out);
    }

    fn on_progress(&mut self, of: (Id, u64), upto: u64, from: Id, out: &mut impl Out) {
        self.end_life(of, out);
        let is_below = |id: Id, top: Id| id == top || self.tree.above(id).any(|a| a == top);
        if of == (self.me, self.life) && !is_below(from, self.me) {
            let known = self.pending.tops.entry(from).or_default();
            *known = upto.max(*known);
            return self.settle(out);
        }
        let tree = self.tree;
        if let Some(source) = self.source(of) {
            source.branch.hear(from, upto);
        }
        let done = self.memory.progress(of, upto, |id| id == from || tree.above(id).any(|a| a == from));
        self.finish(of, &done, out);
    }

    /// Looks how far all branches have come with our casts.
    fn settle(&mut self, out: &mut impl Out) {
        if self.stable >= self.casts {
            return;
        }
        let tops = spread::tops(&self.tree, |id| self.lives(id));
        let own = self.sources.get(&self.me).map_or(0, |s| s.branch.upto);
        let reached = |id: &Id| if *id == self.me { own } else { self.pending.tops.get(id).copied().unwrap_or(0) };
        let Some(upto) = tops.iter().map(reached).min().filter(|&upto| upto > self.stable) else { return };
        // Somebody may say more than there is.
        let upto = upto.min(self.casts);
        self.stable = upto;
        self.memory.stable(self.me, self.life, upto);
        if self.pending.settle(upto) {
            out.push(Output::Settled { whole: true, number: upto, missed: &[] });
        }
    }

    fn posted(&self, posted: Option<Posted>, out: &mut impl Out) {
        if let Some(Posted { number, missed }) = posted {
            out.push(Output::Settled { whole: false, number, missed: &missed });
        }
    }
}

/// Seats.
impl Caster {
    fn on_seated(&mut self, now: Instant, (id, life): (Id, u64), before: bool, out: &mut impl Out) {
        if id == self.me {
            return;
        }
        let was_there = self.lives(id);
        self.known = self.known.max(id.0.saturating_add(1));
        if !self.grow(id) {
            return;
        }
        self.dead.remove(&id);
        // Whether its link carries is found out anew.
        self.cut.remove(&id);
        let known = self.sources.get(&id).map(|s| (s.life, s.over));
        let is_back = known.is_some_and(|(known, _)| known == life);
        if !is_back {
            self.end_life((id, life), out);
            let window = || if before { Window::open() } else { Window::default() };
            // Who sits there has the last word, though its life may be a lower one than that of who sat there before.
            let over = known.map_or(0, |(life, over)| life.max(over));
            let source = Source { life, over, windows: [window(), window()], branch: Branch::default() };
            self.sources.insert(id, source);
            self.letters.remove(&id);
            // Who sat there before was told, not this one.
            for source in self.sources.values_mut() {
                source.branch.told = source.branch.told.filter(|told| told.0 != id);
            }
        }
        if !was_there || !is_back {
            self.catch_up(now, id, is_back, out);
        }
        self.report_again(out);
    }

    /// What it may not have had where it was goes to it again, from who is next above it.
    fn on_moved(&mut self, now: Instant, id: Id, out: &mut impl Out) {
        if id == self.me || !self.lives(id) || self.tree.above(id).find(|&a| self.lives(a)) != Some(self.me) {
            return;
        }
        let again: Vec<Cast> = self.memory.iter().map(|r| &r.cast).filter(|c| c.number > 0).cloned().collect();
        for cast in again.into_iter().filter(|c| c.source != id) {
            self.envelop(now, &cast, vec![id], out);
        }
    }

    /// Who sits down here stands between us and those below it, and who was away has missed something: without that its branch would
    /// not go on. Who is next above it sends it what is under way, or, when it is back, all that is remembered; where it has nobody above,
    /// sources do.
    fn catch_up(&mut self, now: Instant, id: Id, is_back: bool, out: &mut impl Out) {
        let above = self.tree.above(id).find(|&a| self.lives(a));
        let own = (self.me, self.life);
        let is_due = |r: &Recent| {
            let (of, number) = ((r.cast.source, r.cast.life), r.cast.number);
            let is_open = if of == own { number > self.stable } else { !r.awaits.is_empty() };
            let is_ours = above == Some(self.me) || above.is_none() && of == own;
            number > 0 && of.0 != id && is_ours && (is_back || is_open)
        };
        let due: BTreeMap<_, Cast> = self
            .memory
            .iter()
            .filter(|r| is_due(r))
            .map(|r| ((r.cast.source, r.cast.life, r.cast.number), r.cast.clone()))
            .collect();
        due.into_values().for_each(|cast| self.envelop(now, &cast, vec![id], out));
    }

    fn resize(&mut self, nodes: u32) {
        let nodes = nodes.max(self.me.0 + 1);
        if let Ok(tree) = Tree::new(self.tree.fan_out(), nodes) {
            (self.tree, self.known) = (tree, nodes);
            self.dead.retain(|id| id.0 < nodes);
        }
    }
}

/// The top of each tree.
const ROOT: Id = Id(0);

/// Destinations of an envelope, in the order of their visits.
fn visits(tree: &Tree, at: Id, to: Vec<Id>) -> Vec<(Id, u64)> {
    spread::in_turn(tree, at, to).into_iter().rev().map(|id| (id, 0)).collect()
}

impl Machine for Caster {
    type Input<'a> = Input<'a>;
    type Output<'a> = Output<'a>;

    fn handle<S>(&mut self, now: Instant, input: Input<'_>, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        match input {
            Input::Heard { bytes } => self.on_heard(now, bytes, out),
            Input::Failed { ids } => self.on_failed(now, ids, out),
            Input::Back { ids } => {
                for id in ids {
                    self.dead.remove(id);
                    self.cut.remove(id);
                }
                self.report_again(out);
            }
            Input::Seated { id, life, before } => self.on_seated(now, (id, life), before, out),
            Input::Moved { id } => self.on_moved(now, id, out),
            Input::Sized { nodes } => self.resize(nodes),
            Input::Cut { id } => self.on_cut(now, id, out),
        }
    }

    fn expire<S>(&mut self, now: Instant, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        self.memory.expire(now);
        let patience = self.config.patience;
        let late = |s: &Source| s.waits_since() != Instant::NEVER && s.waits_since() + patience <= now;
        let late: Vec<Id> = self.waits.iter().copied().filter(|id| self.sources.get(id).is_some_and(late)).collect();
        for id in late {
            let Some(source) = self.sources.get_mut(&id) else { continue };
            let life = source.life;
            for (window, whole) in source.windows.iter_mut().zip([true, false]) {
                if window.waits_since() != Instant::NEVER && window.waits_since() + patience <= now {
                    self.counters.missed += window.skip();
                    if whole {
                        // What is given up is not waited for, here nor above.
                        source.branch.reach(window.next() - 1);
                    }
                    for body in window.ready(now) {
                        out.push(Output::Deliver { source: id, life, whole, body: &body });
                    }
                }
            }
            self.note_waits(id);
            if self.config.receipts {
                self.report(id, out);
            }
        }
    }

    fn deadline(&self) -> Instant {
        let windows = self.waits.iter().filter_map(|id| self.sources.get(id)).map(Source::waits_since);
        let waits = windows.filter(|&since| since != Instant::NEVER).map(|since| since + self.config.patience);
        waits.fold(self.memory.deadline(), Instant::min)
    }

    fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&self.dead).add(&self.cut).add(&(self.casts, self.stable)).add(&self.letters).add(&self.pending);
        print.add(&(self.me, self.life, self.known, self.tree));
        for (id, source) in &self.sources {
            print.add(&(id, source.life, &source.branch));
            source.windows.iter().for_each(|w| w.fingerprint(print));
        }
        self.memory.fingerprint(print);
    }
}
