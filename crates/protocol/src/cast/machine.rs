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
//! **Receipts** (beyond 001, [`Config::receipts`]), see [`status`](super::status): the source knows when all who live have a cast
//! ([`Output::Settled`]), does not send more than its window holds, and whatever got lost all the same is asked for and sent again.

use super::pending::{Pending, Posted};
use super::recent::{Cast, Memory};
use super::route::{Router, Rule};
use super::source::{Crowd, Source};
use super::tree::{Id, Tree};
use phalanx_core::{Duration, Fingerprint, Instant, Machine, Shared, Sink};
use phalanx_wire::cast::{BODY_MAX, Kind, LIST_MAX, Multicast, To};
use std::collections::{BTreeMap, BTreeSet};
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
    /// Whoever has not said so for this long is asked, then less and less often.
    pub retry: Duration,
    /// Bytes of our own casts under way, when there are receipts.
    pub window: usize,
    /// Nodes come and go: who is heard of may be unknown yet.
    pub grows: bool,
}

impl Default for Config {
    fn default() -> Self {
        let (kept, patience) = (Duration::from_secs(30), Duration::from_secs(30));
        let (kept_bytes, window, retry) = (64 << 20, 4 << 20, Duration::from_millis(250));
        Self { rule: Rule::Detour, kept, kept_bytes, patience, receipts: false, retry, window, grows: false }
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
        bytes: &'a Shared,
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
    /// Somebody sits here now, and nowhere else; the tree grows when it must.
    Seated {
        /// Where.
        id: Id,
        /// Who: nobody else ever has that number.
        who: u64,
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
        who: u64,
        /// To everybody; otherwise to some.
        whole: bool,
        /// What.
        body: &'a Shared,
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
        missed: &'a [u64],
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
    /// Messages of another tree, for somebody else, or of somebody who does not sit where it says.
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
    pub(super) config: Config,
    pub(super) tree: Tree,
    /// Which tree.
    pub(super) name: u64,
    pub(super) me: Id,
    pub(super) who: u64,
    /// Nobody is known to sit here or beyond.
    pub(super) known: u32,
    pub(super) router: Router,
    pub(super) dead: BTreeSet<Id>,
    /// They live, but our links with them do not carry.
    pub(super) cut: BTreeSet<Id>,
    /// Who sits where, and the other way round; in a tree that does not grow everybody sits where its number says.
    pub(super) sitters: BTreeMap<Id, u64>,
    pub(super) seats: BTreeMap<u64, Id>,
    /// All who live; `None` when that is to be found out.
    pub(super) crowd: Option<Crowd>,
    /// How many broadcasts of ours there were, and messages to each.
    pub(super) casts: u64,
    pub(super) letters: BTreeMap<u64, u64>,
    pub(super) pending: Pending,
    pub(super) sources: BTreeMap<u64, Source>,
    /// Sources of which a message is missing.
    pub(super) waits: BTreeSet<u64>,
    /// Sources of which not everybody is known to have everything.
    pub(super) open: BTreeSet<u64>,
    /// When they are looked after next.
    pub(super) look_at: Instant,
    pub(super) memory: Memory,
    pub(super) counters: Counters,
}

/// The top of each tree.
pub(super) const ROOT: Id = Id(0);

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
            who: number_of(me),
            known: tree.len(),
            dead: BTreeSet::new(),
            cut: BTreeSet::new(),
            sitters: BTreeMap::new(),
            seats: BTreeMap::new(),
            crowd: None,
            casts: 0,
            letters: BTreeMap::new(),
            pending: Pending::default(),
            sources: BTreeMap::new(),
            waits: BTreeSet::new(),
            open: BTreeSet::new(),
            look_at: Instant::NEVER,
            memory: Memory::default(),
            counters: Counters::default(),
        }
    }

    /// The same one in a tree that grows: it has a number that nobody else ever has, wherever it sits.
    #[must_use]
    pub fn called(mut self, who: u64) -> Self {
        self.who = who;
        self.sitters.insert(self.me, who);
        self.seats.insert(who, self.me);
        self
    }

    /// Sits elsewhere in the tree from now on. Others are below it now; what they lack it sends them.
    pub fn sit(&mut self, now: Instant, me: Id, out: &mut impl Out) {
        let was = std::mem::replace(&mut self.me, me);
        if was != me {
            self.sitters.remove(&was);
            self.dead.insert(was);
            self.sitters.insert(me, self.who);
            self.seats.insert(self.who, me);
        }
        self.dead.remove(&me);
        self.known = self.known.max(me.0 + 1);
        self.grow(me);
        self.changed(now, out);
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
        let cast = self.own(0, Shared::default());
        all.into_iter().for_each(|to| self.send(to, &cast, Kind::Hello, out));
    }

    /// Casts to everybody, ourselves included; its number.
    ///
    /// # Errors
    /// See [`CastError`].
    pub fn broadcast(&mut self, now: Instant, body: impl Into<Shared>, out: &mut impl Out) -> Result<u64, CastError> {
        let body = body.into();
        self.check(&body)?;
        self.casts += 1;
        let cast = self.own(self.casts, body);
        if self.config.receipts {
            self.pending.cast(cast.number, cast.body.len());
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
    pub fn multicast(
        &mut self,
        now: Instant,
        to: &[Id],
        body: impl Into<Shared>,
        out: &mut impl Out,
    ) -> Result<u64, CastError> {
        let body = body.into();
        self.check(&body)?;
        let all: BTreeSet<Id> = to.iter().copied().collect();
        if !(1..=LIST_MAX).contains(&all.len()) {
            return Err(CastError::Destinations(all.len()));
        }
        if let Some(&unknown) = all.iter().find(|&&id| !self.tree.contains(id)) {
            return Err(CastError::Unknown(unknown, self.tree.len()));
        }
        let cast = self.own(0, body);
        let (mut to, mut missed) = (Vec::with_capacity(all.len()), Vec::new());
        for seat in all {
            let who = self.who_at(seat);
            if seat == self.me {
                out.push(Output::Deliver { who: self.who, whole: false, body: &cast.body });
            } else if self.config.receipts && (self.dead.contains(&seat) || who.is_none()) {
                missed.extend(who);
            } else if let Some(who) = who {
                let letter = self.letters.entry(who).or_default();
                *letter += 1;
                let letter = *letter;
                let after = if self.config.receipts { self.pending.after(who, letter) } else { 0 };
                to.push(To { seat, who, letter, after });
            }
        }
        let mut number = 0;
        if self.config.receipts {
            number = self.pending.post(now, &to, missed, &cast.body);
            let posted = self.pending.end(number);
            self.posted(posted, out);
            self.look_soon(now);
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

    pub(super) fn own(&self, number: u64, body: Shared) -> Cast {
        let stable = self.sources.get(&self.who).map_or(0, |s| s.stable);
        let stable = if number > 0 { stable } else { 0 };
        Cast { source: self.me, who: self.who, number, stable, body, wire: None }
    }

    /// Who casts and lives is to know when everybody has it; windows bound how much that is.
    pub(super) fn is_needed(&self, cast: &Cast) -> bool {
        let is_open = || self.sources.get(&cast.who).is_some_and(|s| s.stable < cast.number);
        self.config.receipts && cast.number > 0 && is_open() && self.seat_of(cast.who).is_some()
    }

    pub(super) fn posted(&self, posted: Option<Posted>, out: &mut impl Out) {
        if let Some(Posted { number, missed }) = posted {
            out.push(Output::Settled { whole: false, number, missed: &missed });
        }
    }
}

/// Who is there.
impl Caster {
    /// Who sits there.
    pub(super) fn who_at(&self, id: Id) -> Option<u64> {
        match self.sitters.get(&id) {
            Some(&who) => Some(who),
            None => (!self.config.grows && self.tree.contains(id)).then(|| number_of(id)),
        }
    }

    /// Where somebody sits who lives.
    pub(super) fn seat_of(&self, who: u64) -> Option<Id> {
        let fixed = || u32::try_from(who).ok().filter(|&n| !self.config.grows && n > 0).map(|n| Id(n - 1));
        let seat = self.seats.get(&who).copied().or_else(fixed)?;
        (self.lives(seat) && self.who_at(seat) == Some(who)).then_some(seat)
    }

    /// Whether there can be such a node; others may know of it before us.
    pub(super) fn grow(&mut self, id: Id) -> bool {
        let may_grow = self.config.grows && u64::from(id.0) < 2 * u64::from(self.known) + 64;
        if !self.tree.contains(id)
            && may_grow
            && let Ok(tree) = Tree::new(self.tree.fan_out(), id.0 + 1)
        {
            self.tree = tree;
        }
        self.tree.contains(id)
    }

    fn on_seated(&mut self, now: Instant, id: Id, who: u64, out: &mut impl Out) {
        if id == self.me || who == self.who {
            return;
        }
        self.known = self.known.max(id.0.saturating_add(1));
        if !self.grow(id) {
            return;
        }
        if let Some(was) = self.seats.insert(who, id)
            && was != id
            && self.sitters.get(&was) == Some(&who)
        {
            self.sitters.remove(&was);
        }
        if let Some(other) = self.sitters.insert(id, who)
            && other != who
            && self.seats.get(&other) == Some(&id)
        {
            self.seats.remove(&other);
        }
        self.dead.remove(&id);
        // Whether its link carries is found out anew.
        self.cut.remove(&id);
        self.reopen(now, who);
        self.changed(now, out);
        self.welcome(now, id, out);
    }

    fn resize(&mut self, nodes: u32) {
        let nodes = nodes.max(self.me.0 + 1);
        if let Ok(tree) = Tree::new(self.tree.fan_out(), nodes) {
            (self.tree, self.known) = (tree, nodes);
            self.dead.retain(|id| id.0 < nodes);
            self.crowd = None;
        }
    }
}

/// What a node is called in a tree that does not grow.
fn number_of(id: Id) -> u64 {
    u64::from(id.0) + 1
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
                    self.who_at(*id).into_iter().for_each(|who| self.reopen(now, who));
                }
                self.changed(now, out);
            }
            Input::Seated { id, who } => self.on_seated(now, id, who, out),
            Input::Sized { nodes } => self.resize(nodes),
            Input::Cut { id } => self.on_cut(now, id, out),
        }
    }

    fn expire<S>(&mut self, now: Instant, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        let mut memory = std::mem::take(&mut self.memory);
        memory.expire(now, now + self.config.kept, |c| self.is_needed(c));
        self.memory = memory;
        self.expire_waits(now, out);
        if self.look_at <= now {
            self.look_after(now, out);
        }
    }

    fn deadline(&self) -> Instant {
        let windows = self.waits.iter().filter_map(|id| self.sources.get(id)).map(Source::waits_since);
        let waits = windows.filter(|&since| since != Instant::NEVER).map(|since| since + self.config.patience);
        waits.fold(self.memory.deadline().min(self.look_at), Instant::min)
    }

    fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&self.dead).add(&self.cut).add(&self.casts).add(&self.letters).add(&self.pending);
        print.add(&(self.me, self.who, self.known, self.tree)).add(&self.sitters).add(&self.open);
        print.instant(self.look_at);
        for (who, source) in &self.sources {
            print.add(who);
            source.fingerprint(print);
        }
        self.memory.fingerprint(print);
    }
}
