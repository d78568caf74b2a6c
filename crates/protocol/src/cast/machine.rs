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

use super::route::{Router, Rule};
use super::spread::{self, Message as Part};
use super::tree::{Id, Tree};
use super::walk::{Hop, Transit};
use super::window::Window;
use phalanx_core::{Duration, Fingerprint, Instant, Machine, Sink};
use phalanx_wire::cast::{BODY_MAX, Kind, LIST_MAX, Message, Multicast};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use thiserror::Error;

/// How casts are handed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// How ways around the dead are chosen.
    pub rule: Rule,
    /// How long a cast is remembered: a death must be told within that time.
    pub kept: Duration,
    /// Bytes that are remembered; the oldest are forgotten first.
    pub kept_bytes: usize,
    /// How long a message that is missing may hold up later ones of its source.
    pub patience: Duration,
}

impl Default for Config {
    fn default() -> Self {
        let (kept, patience) = (Duration::from_secs(30), Duration::from_secs(30));
        Self { rule: Rule::Detour, kept, kept_bytes: 64 << 20, patience }
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
    /// No way leads there over living neighbours: send it directly, to where the directory says that it is.
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
}

/// A sink for what nodes decide.
pub trait Out: for<'a> Sink<Output<'a>> {}
impl<S: for<'a> Sink<Output<'a>>> Out for S {}

/// What was dropped, and what happened how often.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counters {
    /// Messages that could not be read, or name nodes that there are not.
    pub malformed: u64,
    /// Messages of another tree.
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
    router: Router,
    dead: BTreeSet<Id>,
    /// How many broadcasts of ours there were, and messages to each.
    casts: u64,
    letters: BTreeMap<Id, u64>,
    /// Broadcasts, and messages to us, of each source.
    sources: BTreeMap<Id, [Window; 2]>,
    recent: VecDeque<Recent>,
    recent_bytes: usize,
    counters: Counters,
}

/// A message that we have had lately.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Recent {
    source: Id,
    number: u64,
    body: Arc<[u8]>,
    until: Instant,
    sent: Vec<Sent>,
}

/// What we made of it.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Sent {
    Down(Id),
    /// To whom, as it was before.
    Along(Id, Multicast),
}

impl Recent {
    fn bytes(&self) -> usize {
        self.body.len() + self.sent.iter().map(Sent::bytes).sum::<usize>()
    }
}

impl Sent {
    fn bytes(&self) -> usize {
        match self {
            Self::Down(_) => 0,
            Self::Along(_, Multicast { to, path, seen, dead, .. }) => {
                16 * to.len() + 4 * (path.len() + seen.len() + dead.len())
            }
        }
    }

    fn to(&self) -> Id {
        match self {
            Self::Down(to) | Self::Along(to, _) => *to,
        }
    }
}

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
            dead: BTreeSet::new(),
            casts: 0,
            letters: BTreeMap::new(),
            sources: BTreeMap::new(),
            recent: VecDeque::new(),
            recent_bytes: 0,
            counters: Counters::default(),
        }
    }

    /// Its number.
    #[must_use]
    pub fn me(&self) -> Id {
        self.me
    }

    /// What was dropped, and what happened how often.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Casts to everybody, ourselves included.
    ///
    /// # Errors
    /// See [`CastError`].
    pub fn broadcast(&mut self, now: Instant, body: &[u8], out: &mut impl Out) -> Result<(), CastError> {
        checked(body)?;
        self.casts += 1;
        let (body, number) = (Arc::from(body), self.casts);
        self.take(now, self.me, number, &body, out);
        if self.me != ROOT {
            self.envelop(now, (self.me, number, &body), vec![ROOT], out);
        }
        Ok(())
    }

    /// Casts to these, each once.
    ///
    /// # Errors
    /// See [`CastError`].
    pub fn multicast(&mut self, now: Instant, to: &[Id], body: &[u8], out: &mut impl Out) -> Result<(), CastError> {
        checked(body)?;
        let all: BTreeSet<Id> = to.iter().copied().collect();
        if !(1..=LIST_MAX).contains(&all.len()) {
            return Err(CastError::Destinations(all.len()));
        }
        if let Some(&unknown) = all.iter().find(|&&id| !self.tree.contains(id)) {
            return Err(CastError::Unknown(unknown, self.tree.len()));
        }
        let body: Arc<[u8]> = Arc::from(body);
        let mut to = Vec::with_capacity(all.len());
        for id in all {
            let number = self.letters.entry(id).or_default();
            *number += 1;
            if id == self.me {
                out.push(Output::Deliver { source: self.me, whole: false, body: &body });
            } else {
                to.push((id, *number));
            }
        }
        self.go_on(now, (self.me, 0, &body), Multicast { to, seen: vec![self.me], ..Multicast::default() }, out);
        Ok(())
    }

    fn on_heard(&mut self, now: Instant, bytes: &[u8], out: &mut impl Out) {
        let Ok(message) = Message::parse(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        if message.tree != self.name {
            self.counters.strays += 1;
            return;
        }
        let Message { source, number, kind, body, .. } = message;
        let all = match &kind {
            Kind::Multicast(Multicast { to, path, seen, dead, .. }) => {
                to.iter().map(|t| t.0).chain(path.iter().chain(seen).chain(dead).copied()).chain([source]).max()
            }
            Kind::Hello | Kind::Broadcast => Some(source),
        };
        // Who is here has been here.
        let is_lost = matches!(&kind, Kind::Multicast(header) if !header.seen.contains(&self.me));
        if is_lost || all.is_some_and(|highest| !self.tree.contains(highest)) {
            self.counters.malformed += 1;
            return;
        }
        match kind {
            // That somebody lives is told by the layers below.
            Kind::Hello => {}
            Kind::Broadcast => self.take(now, source, number, &Arc::from(body), out),
            Kind::Multicast(multicast) => self.on_multicast(now, (source, number, &Arc::from(body)), multicast, out),
        }
    }

    /// A broadcast is here: delivers it, and sends it on, unless it was here before.
    fn take(&mut self, now: Instant, source: Id, number: u64, body: &Arc<[u8]>, out: &mut impl Out) {
        let [casts, _] = self.sources.entry(source).or_default();
        if casts.has(number) {
            self.counters.twice += 1;
            return;
        }
        for body in casts.take(now, number, body) {
            out.push(Output::Deliver { source, whole: true, body: &body });
        }
        let parts = spread::messages(&self.tree, self.me, |id| !self.dead.contains(&id));
        for part in parts {
            match part {
                Part::Around(to) => self.envelop(now, (source, number, body), to, out),
                Part::Down(to) => {
                    self.remember(now, (source, number, body), Some(Sent::Down(to)));
                    self.send(to, (source, number, body), Kind::Broadcast, out);
                }
            }
        }
        // Also who sends it to nobody may have to stand in for those above it.
        self.remember(now, (source, number, body), None);
        if self.dead.contains(&source) {
            self.pass_up(now, (source, number, body), out);
        }
    }

    /// Sends a broadcast to these in an envelope.
    fn envelop(&mut self, now: Instant, cast: (Id, u64, &Arc<[u8]>), to: Vec<Id>, out: &mut impl Out) {
        let to = visits(&self.tree, self.me, to);
        self.go_on(now, cast, Multicast { to, whole: true, seen: vec![self.me], ..Multicast::default() }, out);
    }

    fn on_multicast(&mut self, now: Instant, cast: (Id, u64, &Arc<[u8]>), mut header: Multicast, out: &mut impl Out) {
        let (source, number, body) = cast;
        let (to, letter) = header.to[header.index as usize];
        if to != self.me {
            return self.go_on(now, cast, header, out);
        }
        header.index += 1;
        (header.path, header.seen) = (Vec::new(), vec![self.me]);
        let whole = header.whole;
        self.go_on(now, cast, header, out);
        if whole {
            return self.take(now, source, number, body, out);
        }
        let [_, letters] = self.sources.entry(source).or_default();
        if letters.has(letter) {
            self.counters.twice += 1;
            return;
        }
        for body in letters.take(now, letter, body) {
            out.push(Output::Deliver { source, whole: false, body: &body });
        }
    }

    /// Sends a multicast to its next hop, past destinations that are dead.
    fn go_on(&mut self, now: Instant, cast: (Id, u64, &Arc<[u8]>), mut header: Multicast, out: &mut impl Out) {
        while let Some(&(to, _)) = header.to.get(header.index as usize) {
            if to == self.me {
                // Below a dead destination we found ourselves.
                return self.on_multicast(now, cast, header, out);
            }
            let before = header.clone();
            let is_dead = self.dead.contains(&to) || header.dead.contains(&to);
            let Multicast { path, seen, dead, .. } = &mut header;
            let mut transit = Transit::of(std::mem::take(path), std::mem::take(seen), std::mem::take(dead));
            let hop = match is_dead {
                true => Hop::Nowhere,
                false => transit.hop(&mut self.router, &self.tree, self.me, to, |id| !self.dead.contains(&id)),
            };
            (header.path, header.seen, header.dead) = transit.into_parts();
            match hop {
                Hop::On(next) | Hop::Back(next) => {
                    self.remember(now, cast, Some(Sent::Along(next, before)));
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
    fn give_up(&self, cast: (Id, u64, &Arc<[u8]>), header: &mut Multicast, to: Id, is_dead: bool, out: &mut impl Out) {
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

    fn send(&self, to: Id, cast: (Id, u64, &Arc<[u8]>), kind: Kind, out: &mut impl Out) {
        let bytes = self.message(cast, kind);
        out.push(Output::Send { to, bytes: &bytes });
    }

    fn message(&self, (source, number, body): (Id, u64, &Arc<[u8]>), kind: Kind) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(body.len() + 64);
        Message { tree: self.name, source, number, kind, body }.encode(&mut bytes);
        bytes
    }

    fn remember(&mut self, now: Instant, (source, number, body): (Id, u64, &Arc<[u8]>), sent: Option<Sent>) {
        let is_it = |r: &Recent| (r.source, r.number) == (source, number) && Arc::ptr_eq(&r.body, body);
        // What is sent on was taken just now, most likely.
        if let Some(recent) = self.recent.iter_mut().rev().take(4).find(|r| is_it(r)) {
            self.recent_bytes += sent.as_ref().map_or(0, Sent::bytes);
            recent.sent.extend(sent);
            return;
        }
        let (until, sent) = (now + self.config.kept, sent.into_iter().collect());
        let recent = Recent { source, number, body: Arc::clone(body), until, sent };
        self.recent_bytes += recent.bytes();
        self.recent.push_back(recent);
        while self.recent_bytes > self.config.kept_bytes && self.recent.len() > 1 {
            self.forget();
            self.counters.forgotten += 1;
        }
    }

    fn forget(&mut self) {
        if let Some(recent) = self.recent.pop_front() {
            self.recent_bytes -= recent.bytes();
        }
    }

    fn on_failed(&mut self, now: Instant, ids: &[Id], out: &mut impl Out) {
        let news: Vec<Id> = ids.iter().copied().filter(|&id| id != self.me && self.dead.insert(id)).collect();
        if news.is_empty() {
            return;
        }
        let line: Vec<Id> = std::iter::successors(self.tree.parent(self.me), |&id| self.tree.parent(id)).collect();
        let lonely = !line.is_empty() && line.iter().all(|id| self.dead.contains(id));
        let is_above = line.iter().any(|id| news.contains(id));
        let stands_in = lonely && is_above;
        for mut recent in std::mem::take(&mut self.recent) {
            self.recent_bytes -= recent.bytes();
            let lost: Vec<Sent>;
            (lost, recent.sent) = recent.sent.drain(..).partition(|s| news.contains(&s.to()));
            let (source, number, body) = (recent.source, recent.number, Arc::clone(&recent.body));
            let cast = (source, number, &body);
            self.recent_bytes += recent.bytes();
            self.recent.push_back(recent);
            self.counters.again += lost.len() as u64;
            for sent in lost {
                match sent {
                    Sent::Down(child) => self.envelop(now, cast, spread::below(&self.tree, child), out),
                    Sent::Along(_, header) => self.go_on(now, cast, header, out),
                }
            }
            // Letters to some have no number here.
            let may_be_lost = stands_in || self.dead.contains(&source) && (news.contains(&source) || is_above);
            if number > 0 && may_be_lost {
                self.pass_up(now, cast, out);
            }
        }
    }

    /// Sees to it that whoever is next above us has it; where nobody is, we stand in for the root.
    fn pass_up(&mut self, now: Instant, cast: (Id, u64, &Arc<[u8]>), out: &mut impl Out) {
        let mut above = std::iter::successors(self.tree.parent(self.me), |&id| self.tree.parent(id));
        match above.find(|id| !self.dead.contains(id)) {
            Some(next) => self.envelop(now, cast, vec![next], out),
            None if self.me != ROOT => self.envelop(now, cast, spread::below(&self.tree, ROOT), out),
            None => {}
        }
    }
}

/// The top of each tree.
const ROOT: Id = Id(0);

fn checked(body: &[u8]) -> Result<(), CastError> {
    if body.len() > BODY_MAX { Err(CastError::TooLarge(body.len())) } else { Ok(()) }
}

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
            Input::Back { ids } => ids.iter().for_each(|id| _ = self.dead.remove(id)),
        }
    }

    fn expire<S>(&mut self, now: Instant, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        while self.recent.front().is_some_and(|r| r.until <= now) {
            self.forget();
        }
        let patience = self.config.patience;
        for (&source, windows) in &mut self.sources {
            for (window, whole) in windows.iter_mut().zip([true, false]) {
                if window.waits_since() != Instant::NEVER && window.waits_since() + patience <= now {
                    self.counters.missed += window.skip();
                    for body in window.ready(now) {
                        out.push(Output::Deliver { source, whole, body: &body });
                    }
                }
            }
        }
    }

    fn deadline(&self) -> Instant {
        let windows = self.sources.values().flatten().map(Window::waits_since);
        let waits = windows.filter(|&since| since != Instant::NEVER).map(|since| since + self.config.patience);
        waits.chain(self.recent.front().map(|r| r.until)).fold(Instant::NEVER, Instant::min)
    }

    fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&self.dead).add(&self.casts).add(&self.letters);
        for (source, windows) in &self.sources {
            print.add(source);
            windows.iter().for_each(|w| w.fingerprint(print));
        }
        for recent in &self.recent {
            print.add(&(recent.source, recent.number, &recent.body));
            print.instant(recent.until);
            for sent in &recent.sent {
                match sent {
                    Sent::Down(to) => print.add(&(to, None::<&Multicast>)),
                    Sent::Along(to, header) => print.add(&(to, Some(header))),
                };
            }
        }
    }
}
