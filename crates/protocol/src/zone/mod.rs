//! Zone membership: full, eventually equal views of up to a few thousand members (ZN, AT, HI; 002).
//!
//! Each member keeps a few long-term neighbours: successors on a ring, so that everybody is watched, and random ones, so
//! that news reaches all in a few hops. What a member learns goes to its neighbours, first the whole view, then what
//! changed. A member that falls silent, or whose tripwire breaks, is probed, then suspected, then gone.
//!
//! ```text
//!  letters, notes ──▶ letters ──▶ book (Algorithm 1) ──▶ Event::Joined, Left
//!                                   │ Δ
//!  Up, Down, Tripped ──▶ watch      ▼
//!                          │      pace ──▶ Update to all neighbours
//!                          ▼
//!                      topology ──▶ Connect, Accept, Wire
//! ```
//!
//! | file | idea |
//! |---|---|
//! | `config` | profiles |
//! | `view` | two bytes for each member |
//! | `book` | Algorithm 1 |
//! | `damping` | when to answer an accusation |
//! | `delta` | Δ, what is new |
//! | [`pace`] | when news leaves |
//! | `letter` | what letters hold |
//! | `post` | letters and notes, in and out |
//! | `discovery` | how members find each other, at boot and after a partition |
//! | `elsewhere` | who is in another zone |
//! | `hostile` | what members can do to a member |
//! | `names` | when a name is taken twice |
//! | `neighbour` | what is kept of a neighbour |
//! | `topology` | who becomes one |
//! | `watch` | who is silent |
//! | `absence` | who is hardly there |
//! | `relay` | probes for others |
//! | `doubt` | who is gone |
//! | [`attributes`], `replicate` | what each member says of itself |
//! | [`hierarchy`] | zones of a larger system |
//! | [`rule`] | which of them a node belongs to |

mod absence;
pub mod attributes;
mod book;
mod config;
mod damping;
mod delta;
mod discovery;
mod doubt;
mod elsewhere;
pub mod hierarchy;
#[cfg(test)]
mod hostile;
mod letter;
mod names;
mod neighbour;
pub mod pace;
mod post;
mod relay;
pub mod replicate;
pub mod rule;
mod topology;
mod view;
mod watch;

pub use config::Config;
pub use replicate::MONITOR;
pub use rule::ZoneRule;

use crate::member::{Card, Engine, Input, Name, Out, Output, Roster, Slot, Version};
use attributes::Attributes;
use book::Book;
use damping::Damping;
use discovery::Discovery;
use hierarchy::Office;
use names::Namesakes;
use neighbour::Neighbours;
use pace::Pace;
use phalanx_core::{Addr, Code, Fingerprint, Instant, Machine, Rng, Sink};
use replicate::Happening;
use std::sync::Arc;
use watch::Watch;

/// What happened, for operators. Everything that peers say and that is dropped is counted here.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Counters {
    /// Letters and notes that make no sense.
    pub malformed: u64,
    /// Letters whose sender is not whom its session belongs to.
    pub impostors: u64,
    /// Members that found no place in the roster.
    pub crowded_out: u64,
    /// Suspicions by members that are not in the view.
    pub strange_reporters: u64,
    /// Doubts that a probe dispelled.
    pub dispelled: u64,
    /// Suspicions of our own.
    pub suspected: u64,
    /// Times we spoke up for ourselves.
    pub refuted: u64,
    /// Times our driver was late.
    pub starved: u64,
    /// Questions of others for a probe that were over the bound.
    pub relays_refused: u64,
    /// Times we were removed again so soon that we held back.
    pub held_back: u64,
    /// Versions that are too far in the future to be true.
    pub implausible: u64,
    /// Requests for our view that came too soon after another of the same peer, and links given up for others.
    pub discoveries_refused: u64,
    /// Whole views sent because a neighbour's differed at rest.
    pub resyncs: u64,
    /// Members told that we have removed them.
    pub told: u64,
    /// Letters sent, each receiver counted.
    pub letters: u64,
}

/// How much a member holds, for operators and checkers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tables {
    /// Members linked with, or asked to be.
    pub neighbours: usize,
    /// Others whose link is kept for a while.
    pub contacts: usize,
    /// Removed members that are remembered.
    pub history: usize,
    /// Slots of the roster.
    pub roster: usize,
    /// Probes under way for others.
    pub relays: usize,
    /// It knows that it was removed, and holds back.
    pub holds_back: bool,
}

/// A member of a zone.
#[derive(Clone, PartialEq, Eq)]
pub struct Zone {
    config: Arc<Config>,
    roster: Roster,
    book: Book,
    pace: Pace,
    neighbours: Neighbours,
    discovery: Discovery,
    watch: Watch,
    attributes: Attributes,
    office: Office,
    /// Others have been in our view.
    has_met: bool,
    damping: Damping,
    names: Option<Box<Namesakes>>,
    /// When to look for neighbours, and what the view looked like when we did.
    mend_at: Instant,
    mended: u64,
    /// Random neighbours that refused in a row.
    refusals: u32,
    /// The time of the present call.
    now: Instant,
    /// When `expire` is wanted, as last told.
    next_at: Instant,
    rng: Rng,
    counters: Counters,
    /// For letters and notes under construction; empty between calls.
    scratch: Vec<u8>,
}

impl std::fmt::Debug for Zone {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Zone({} {}, {} members)", self.book.me.0, self.book.version(), self.book.view.len())
    }
}

impl Zone {
    /// Others whose links are kept for a while, at most.
    pub const CONTACTS: usize = 4096;
    /// Probes for others that are under way, at most; more are refused.
    pub const RELAYS: usize = 64;

    /// A start of a member. `incarnation` must be higher than in any start before; `seeds` are where to look for others.
    ///
    /// # Panics
    /// When the roster has no room for the member itself.
    #[must_use]
    pub fn new(
        config: &Arc<Config>,
        mut roster: Roster,
        card: &Card,
        incarnation: u64,
        seeds: &Arc<[Addr]>,
        mut rng: Rng,
        now: Instant,
    ) -> Self {
        let me = roster.enter(card, incarnation).expect("a roster has room for one");
        roster.change(me, card);
        let book = Book::new(me, Version::first(incarnation), &roster);
        let watch = Watch::new(now, config, &mut rng);
        let mut zone = Self {
            config: Arc::clone(config),
            roster,
            book,
            pace: Pace::new(),
            neighbours: Neighbours::default(),
            discovery: Discovery::new(now, seeds, card.addr),
            watch,
            attributes: Attributes::new(me, config.attributes()),
            office: Office::None(None),
            has_met: false,
            damping: Damping::new(),
            names: None,
            mend_at: Instant::NEVER,
            mended: 0,
            refusals: 0,
            now,
            next_at: Instant::NEVER,
            rng,
            counters: Counters::default(),
            scratch: Vec::new(),
        };
        zone.rearm();
        zone
    }

    /// How it watches and speaks.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// AT-2: what replication of attributes has done so far.
    #[must_use]
    pub fn replication(&self) -> &attributes::Counters {
        self.attributes.counters()
    }

    /// True once it knows what its bootstrap set knows, or has nobody to ask.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.discovery.is_settled()
    }

    /// The members that this one is linked with now.
    pub fn neighbours(&self) -> impl Iterator<Item = Slot> {
        self.neighbours.iter().filter(|n| n.linked).map(|n| n.slot)
    }

    /// ZN-2: the members that were removed and are remembered.
    pub fn history(&self) -> impl Iterator<Item = Slot> {
        self.book.history()
    }

    /// How much is held now.
    #[must_use]
    pub fn tables(&self) -> Tables {
        Tables {
            neighbours: self.neighbours.iter().count(),
            contacts: self.discovery.contacts(),
            history: self.book.history().len(),
            roster: self.roster.len(),
            relays: self.watch.relays.len(),
            holds_back: self.damping.is_waiting(),
        }
    }

    /// Everybody that is known.
    #[must_use]
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// The view changed, or may have: neighbours that are gone are let go, news is sent in its time.
    fn settle(&mut self, now: Instant, out: &mut impl Out) {
        let gone: Vec<Slot> = self.neighbours.iter().map(|n| n.slot).filter(|&s| !self.book.view.contains(s)).collect();
        for slot in gone {
            self.drop_neighbour(now, slot, out);
        }
        self.look_at_names(now);
        let changes = std::mem::take(&mut self.book.changes);
        for &change in &changes {
            self.replicate(now, Happening::Changed(change), out);
        }
        self.settle_office(now, &changes, out);
        self.answer_accusation(now);
        let changed = self.book.view.full_digest() != self.mended;
        if changed && self.discovery.is_settled() && self.mend_at == Instant::NEVER {
            self.mend_at = now + if self.damping.is_waiting() { damping::MEND } else { self.config.mend };
        }
        if !self.book.delta.is_empty() {
            self.pace.news(now, &self.config.paces);
        }
        self.arm_discovery(now);
    }

    fn rearm(&mut self) {
        self.has_met |= self.len() > 1;
        let news = if self.neighbours.iter().next().is_some() { self.pace.due_at() } else { Instant::NEVER };
        let own = [news, self.mend_at, self.discovery.deadline(), self.watch.deadline(), self.doubts_deadline()];
        let others = self.attributes.deadline().min(self.office_deadline()).min(self.damping.deadline());
        let others = others.min(self.names_deadline());
        self.next_at = own.into_iter().fold(others, Instant::min);
    }

    /// Our driver called much too late: what we did not hear in the meantime says nothing about others.
    fn look_at_clock(&mut self, now: Instant) {
        self.now = now;
        if self.next_at != Instant::NEVER && now >= self.next_at + self.config.late {
            self.counters.starved += 1;
            self.on_starved(now, now.since(self.next_at));
        }
    }
}

impl Machine for Zone {
    type Input<'a> = Input<'a>;
    type Output<'a> = Output<'a>;

    fn handle<S>(&mut self, now: Instant, input: Input<'_>, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        if self.book.has_left() {
            if let Input::Message { from, payload } = input {
                self.on_late_message(from, payload, out);
            }
            return;
        }
        self.look_at_clock(now);
        match input {
            Input::Datagram { from, bytes, .. } => self.on_note(now, from, bytes, out),
            Input::Message { from, payload } => self.on_message(now, from, payload, out),
            Input::Up { peer } => self.on_up(now, peer, out),
            Input::Down { addr, code } => self.on_down(now, addr, code, out),
            Input::Refused { addr } => self.on_refused(now, addr, out),
            Input::Wired { .. } => {}
            Input::Tripped { addr } => self.on_tripped(now, addr, out),
        }
        self.rearm();
    }

    fn expire<S>(&mut self, now: Instant, out: &mut S)
    where
        S: for<'a> Sink<Output<'a>>,
    {
        if self.book.has_left() {
            self.next_at = Instant::NEVER;
            return;
        }
        self.look_at_clock(now);
        if self.discovery.deadline() <= now {
            self.discover(now, out);
        }
        if self.watch.beat_at() <= now {
            self.beat(now, out);
        }
        self.expire_relays(now, out);
        self.expire_damping(now, out);
        self.expire_names(now, out);
        self.expire_doubts(now, out);
        if self.mend_at <= now {
            self.mend(now, out);
        }
        if self.pace.due_at() <= now {
            self.send_news(now, out);
        }
        if self.office_deadline() <= now {
            self.expire_office(now, out);
        }
        if self.attributes.deadline() <= now {
            self.replicate(now, Happening::Due, out);
        }
        self.rearm();
    }

    fn deadline(&self) -> Instant {
        self.next_at
    }

    fn fingerprint(&self, print: &mut Fingerprint) {
        self.book.fingerprint(print, &self.roster);
        self.pace.fingerprint(print);
        self.neighbours.fingerprint(print);
        self.discovery.fingerprint(print);
        self.watch.fingerprint(print);
        self.attributes.fingerprint(print);
        match &self.office {
            Office::None(_) => {}
            Office::Delegate(delegate) => delegate.fingerprint(print),
            Office::Supervisor(supervisor) => supervisor.fingerprint(print),
        }
        self.damping.fingerprint(print);
        self.print_names(print);
        print.instant(self.mend_at);
        print.add(&(self.mended, self.refusals));
    }
}

impl Engine for Zone {
    fn me(&self) -> Slot {
        self.book.me
    }

    fn version(&self, member: Slot) -> Option<Version> {
        self.book.view.of(member, &self.roster)
    }

    fn card(&self, member: Slot) -> Option<&Card> {
        self.roster.card(member)
    }

    fn linked(&self) -> Vec<Addr> {
        self.neighbours().filter_map(|slot| Some(self.roster.card(slot)?.addr)).collect()
    }

    fn members(&self) -> impl Iterator<Item = (Slot, Version)> {
        self.book.view.members(&self.roster)
    }

    fn len(&self) -> usize {
        self.book.view.len()
    }

    fn set(&mut self, now: Instant, key: &str, value: Option<&[u8]>) -> Result<(), Code> {
        if self.book.has_left() {
            return Err(Code::NotInitialized);
        }
        self.attributes.set(now, key, value)?;
        self.rearm();
        Ok(())
    }

    fn rename(&mut self, now: Instant, name: &Name) -> Result<(), Code> {
        self.take_name(now, name)?;
        self.rearm();
        Ok(())
    }

    fn attribute(&self, member: Slot, key: &str) -> Option<&[u8]> {
        self.attributes.get(member, key)
    }

    fn attributes(&self, member: Slot) -> impl Iterator<Item = (&str, &[u8])> {
        self.attributes.map(member)
    }

    fn relocate(&mut self, now: Instant, zone: &Name, seeds: &[Addr], out: &mut impl Out) -> Result<bool, Code> {
        self.move_to(now, zone, seeds, out)
    }

    fn seek(&mut self, now: Instant, seeds: &[Addr], out: &mut impl Out) {
        if !self.book.has_left() {
            self.on_hints(now, seeds.to_vec(), false, out);
            self.rearm();
        }
    }

    fn leave(&mut self, now: Instant, code: u8, out: &mut impl Out) {
        if self.book.has_left() {
            return;
        }
        self.now = now;
        self.abdicate(now, out);
        self.book.leave(now, code, &self.roster);
        self.hand_over(out);
        self.send_news(now, out);
        // Wires are closed by those who read that: one that breaks before would alarm them.
        for neighbour in std::mem::take(&mut self.neighbours).iter() {
            out.push(Output::Release { addr: neighbour.addr });
        }
        self.next_at = Instant::NEVER;
    }
}
