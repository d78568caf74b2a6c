//! Segments: membership that takes the shape of the network (003; TG-1 to TG-8).
//!
//! Each node multicasts that it lives to its own segment only: with a TTL of 1. The nodes of a segment elect a leader, which also speaks with
//! a TTL of 2, to the leaders that it reaches so; their leader climbs on. So groups take the shape of the network, nobody configures them, and a
//! heartbeat crosses no router but those that leaders need.
//!
//! | | level 0 | level 1 | … |
//! |---|---|---|---|
//! | TTL | 1 | 2 | level + 1 |
//! | who | everybody | leaders of level 0 | leaders of the level below |
//! | dead after | `losses` periods | `higher` more | … |
//!
//! **Changes** travel up and down: who finds out that a member of its level came or is gone tells it in its other levels, and whoever hears of it
//! there does the same. Each update has a number, and carries the three before it; who has missed more polls for all (TG-6).
//!
//! **Who answers for whom** ([`book`]): what a leader tells of the nodes below it is charged to it. When it falls silent they are gone with it, as
//! behind a dead switch, unless somebody else answers for them by then: its backup takes over before the higher level gives up, for that waits
//! longer. When somebody below says that it is dead no switch is: they stay until somebody else answers for them. Backups greet the level
//! above now and then, so that links know them there and their first words as leaders are understood.
//!
//! Beyond the paper: heartbeats carry a digest of their sender's view. Who sees others than its leader does polls it after a while, and
//! both correct each other. So views become equal whatever was lost, also where reachability is not transitive (Fig. 5), where whoever hears two
//! leaders passes on what each says to the other. Nodes that are told to be gone live again only with a higher count of heartbeats.
//! Where nothing changes, heartbeats are 48 bytes. Who misses one may ask its sender, and nothing that was lost counts against it then: so the
//! fast profile needs two losses where the paper's needs five, and a detection five times as fast costs no more.
//!
//! | file | idea |
//! |---|---|
//! | `book` | everybody, and who answers for them |
//! | `level` | one group: who is heard, who leads |
//! | `lead` | elections, climbing, backups |
//! | `tell` | updates, polls and images |
//! | `fan` | the same without multicast: who is in which segment is configured (TG-8) |

mod book;
mod fan;
mod lead;
mod level;
mod tell;
#[cfg(test)]
mod tests;

use crate::baselines::{PERIOD_LEAST, Start};
use crate::member::{Card, Engine, Input, Origin, Out, Output, Peer as From, Slot, Version};
use book::{Book, Note};
use fan::Fan;
pub use fan::{SegmentMap, WIDTH};
use level::{Level, Peer};
use phalanx_core::{Addr, Code, Duration, Fingerprint, Group, Instant, Machine, Payload, Rng, Sink};
use phalanx_wire::baseline::{ENTRY_MAX, Entry};
use phalanx_wire::segment::{self, CHECKSUM, HEADER, PULSE, Packet, Pulse, Says, short};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Levels there may be: a byte has a bit for each.
pub const LEVELS_MAX: u8 = 8;

/// The numbers of segments.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SegmentConfig {
    /// Time between two heartbeats of a node; at least [`PERIOD_LEAST`].
    pub period: Duration,
    /// Heartbeats missed in a row by which a member of level 0 is dead.
    pub losses: u8,
    /// How often one that missed its heartbeat is asked whether it lives, before it is dead; 0: 003 knows heartbeats only.
    pub asks: u8,
    /// How much later than expected a heartbeat may come: delays differ.
    pub grace: Duration,
    /// TG-5: each higher level waits so many periods longer.
    pub higher: u8,
    /// Periods for which a node listens for a leader before it elects one.
    pub listens: u8,
    /// The multicast group of level 0; each level has the next one.
    pub group: u16,
    /// TG-1: the largest TTL; at most [`LEVELS_MAX`]. TG-8: without multicast, the most levels there are, and the highest holds all segments.
    pub max_ttl: u8,
    /// Heartbeats are padded to this size; 0: those that say nothing new are short.
    pub heartbeat_bytes: u16,
    /// The longest datagram.
    pub datagram_bytes: u16,
    /// Members remembered, the dead included. Newcomers beyond are dropped and counted.
    pub members: usize,
    /// Questions answered in a period. Who asks beyond is not answered, counted, and asks again.
    pub answers: u16,
    /// Copies of the last heartbeat, which says that we leave.
    pub farewells: u8,
}

impl SegmentConfig {
    /// 003 §5.2: a packet a second, 5 losses, 228 bytes for each member.
    #[must_use]
    pub const fn paper(group: u16, max_ttl: u8) -> Self {
        Self {
            period: Duration::from_secs(1),
            losses: 5,
            asks: 0,
            grace: Duration::from_millis(50),
            higher: 2,
            listens: 2,
            group,
            max_ttl,
            heartbeat_bytes: 228,
            datagram_bytes: 1_400,
            members: 16 * 1024,
            answers: 64,
            farewells: 3,
        }
    }

    /// For a local network: dead after less than a second, for fewer bytes.
    #[must_use]
    pub const fn lan(group: u16, max_ttl: u8) -> Self {
        Self {
            // Seal and headers are 82 bytes more: a heartbeat is 130 against 310, and may come 2.3 times as often.
            period: Duration::from_millis(440),
            losses: 2,
            asks: 5,
            grace: Duration::from_millis(40),
            heartbeat_bytes: 0,
            ..Self::paper(group, max_ttl)
        }
    }

    /// The time from a member's last heartbeat in a level until it is dead there.
    #[must_use]
    pub fn fail_after(&self, level: u8) -> Duration {
        let periods = u64::from(self.losses.max(1)) + u64::from(self.higher) * u64::from(level);
        self.period * periods + self.grace
    }

    /// When one that was last heard then, and was asked so often since, is asked once more: evenly from its first missed heartbeat on, so
    /// that the last answer has time to come.
    fn ask_at(&self, level: u8, heard_at: Instant, asked: u8) -> Instant {
        if asked >= self.asks {
            return Instant::NEVER;
        }
        let first = self.period + self.grace;
        let step = (self.fail_after(level) - first) / (u64::from(self.asks) + 1);
        heard_at + first + step * u64::from(asked)
    }
}

/// What was dropped, and what happened how often.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Bytes that are no packet of segments, or a member that cannot be.
    pub malformed: u64,
    /// Heartbeats in another's name.
    pub forged: u64,
    /// Packets about levels that we are not in, or from those who are not heard there.
    pub strays: u64,
    /// Members that found no room.
    pub crowded: u64,
    /// Somebody knows a later life of ours than this one.
    pub ghosts: u64,
    /// Questions beyond the bound of a period.
    pub unanswered: u64,
    /// TG-6: how often we asked somebody for all it knows.
    pub polls: u64,
    /// Of those: because too many updates were missed.
    pub gaps: u64,
    /// TG-8: heartbeats to where somebody may be who is not heard.
    pub knocks: u64,
    /// TG-8: hints where a leader is that were not followed: beyond the bound of a period, or nobody of ours is there.
    pub hints: u64,
    /// How often we asked somebody whose heartbeat we missed whether it lives.
    pub asks: u64,
}

/// One of a node's levels (TG-1, TG-2).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Standing {
    /// Its number; its TTL is one more.
    pub level: u8,
    /// Who leads it; nobody while it has none.
    pub leader: Option<Slot>,
    /// Who takes over.
    pub backup: Option<Slot>,
    /// Who is heard there, we included.
    pub members: Vec<Slot>,
}

/// A node that takes part in the groups of its segment, and of those above when it leads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Segment {
    config: SegmentConfig,
    book: Book,
    /// From level 0 up; each but the last one we lead.
    levels: Vec<Level>,
    /// TG-8: there is no multicast.
    fan: Option<Fan>,
    beat_at: Instant,
    /// Groups that are heard; a platform need not be able to stop that.
    hears: u8,
    budget: u16,
    counters: Counters,
    rng: Rng,
    scratch: Vec<u8>,
}

impl Segment {
    /// A node that starts: the first heartbeat leaves within a period, at a phase of its own.
    ///
    /// # Panics
    /// When there is no room for one member, or our own address is a group.
    #[must_use]
    pub fn new(config: SegmentConfig, start: Start, rng: Rng, now: Instant) -> Self {
        Self::with(config, None, start, rng, now)
    }

    /// TG-8: the same where there is no multicast: who may be in which segment is configured. One who is in none is a segment alone.
    ///
    /// # Panics
    /// When there is no room for one member, or our own address is a group.
    #[must_use]
    pub fn unicast(config: SegmentConfig, map: &Arc<SegmentMap>, start: Start, rng: Rng, now: Instant) -> Self {
        Self::with(config, Some(map), start, rng, now)
    }

    fn with(
        mut config: SegmentConfig,
        map: Option<&Arc<SegmentMap>>,
        start: Start,
        mut rng: Rng,
        now: Instant,
    ) -> Self {
        config.period = config.period.max(PERIOD_LEAST);
        let levels = map.map_or(LEVELS_MAX, |map| map.levels());
        config.max_ttl = config.max_ttl.clamp(1, levels);
        config.datagram_bytes = config.datagram_bytes.max((HEADER + PULSE + ENTRY_MAX + CHECKSUM) as u16);
        config.heartbeat_bytes = config.heartbeat_bytes.min(config.datagram_bytes);
        let beat_at = now + Duration(rng.below(config.period.0));
        let fan = map.map(|map| Fan::new(Arc::clone(map), start.card.addr, &config, rng.u32()));
        let mut node = Self {
            fan,
            book: Book::new(start, config.members),
            levels: Vec::new(),
            beat_at,
            hears: 0,
            budget: config.answers,
            counters: Counters::default(),
            rng,
            scratch: Vec::new(),
            config,
        };
        node.levels.push(Level::new(0, beat_at + node.listening(), config.losses));
        node
    }

    /// What was dropped, and what happened how often.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Our levels, from 0 up: whom we follow there, which is ourselves where we lead; nobody while we look for a leader.
    pub fn leaders(&self) -> impl Iterator<Item = Option<Slot>> + '_ {
        self.levels.iter().map(|l| if l.leads() { Some(self.book.me()) } else { l.follows() })
    }

    /// Who is heard in a level of ours.
    pub fn group(&self, level: u8) -> impl Iterator<Item = Slot> + '_ {
        self.levels.get(usize::from(level)).into_iter().flat_map(|l| l.peers.keys().copied())
    }

    /// Our levels, from 0 up, as an operator wants to see them.
    #[must_use]
    pub fn levels(&self) -> Vec<Standing> {
        let me = self.book.me();
        let named = |own: &Level, name: u64| {
            let mut all = own.peers.keys().copied().chain([me]);
            all.find(|&s| name != 0 && self.book.identity(s).is_some_and(|i| short(&i) == name))
        };
        let standing = |own: &Level| Standing {
            level: own.number,
            leader: if own.leads() { Some(me) } else { own.follows() },
            backup: match own.follows().and_then(|leader| own.peers.get(&leader)) {
                Some(leader) => named(own, leader.pulse.backup),
                None => own.backup,
            },
            members: own.peers.keys().copied().chain([me]).collect(),
        };
        self.levels.iter().map(standing).collect()
    }

    /// Whether we have found those around us, or know that there is nobody: each of our levels has a leader.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.leaders().all(|leader| leader.is_some())
    }

    /// With whom we exchange what we know: whom we follow, and who follows us.
    pub fn neighbours(&self) -> impl Iterator<Item = Slot> + '_ {
        let all: BTreeSet<Slot> = self
            .levels
            .iter()
            .flat_map(|l| l.follows().into_iter().chain(l.peers.keys().copied().filter(|_| l.leads())))
            .collect();
        all.into_iter()
    }

    /// Whether we lead the whole cluster, as far as we know: the highest level there is.
    #[must_use]
    pub fn is_top(&self) -> bool {
        self.levels.len() == usize::from(self.config.max_ttl) && self.levels.last().is_some_and(Level::leads)
    }

    fn listening(&self) -> Duration {
        self.config.period * u64::from(self.config.listens) + self.config.grace
    }

    /// How long one who is gone is remembered, or stays without anybody who answers for it.
    fn keep(&self) -> Duration {
        self.config.fail_after(self.config.max_ttl) * 2
    }

    /// Until when those stay for whom nobody answers who did in this level: a new leader comes by then.
    fn orphans_until(&self, now: Instant, level: u8) -> Instant {
        now + self.config.fail_after(level + 1) + self.listening()
    }

    fn level(&self, number: u8) -> Option<&Level> {
        self.levels.get(usize::from(number))
    }

    fn level_mut(&mut self, number: u8) -> Option<&mut Level> {
        self.levels.get_mut(usize::from(number))
    }
}

impl Machine for Segment {
    type Input<'a> = Input<'a>;
    type Output<'a> = Output<'a>;

    fn handle<S: for<'a> Sink<Output<'a>>>(&mut self, now: Instant, input: Input<'_>, out: &mut S) {
        if self.is_empty() {
            return;
        }
        match input {
            Input::Datagram { from, bytes, .. } => self.on_packet(now, from, bytes, out),
            Input::Message { from, payload } => match payload {
                Payload::Bytes(bytes) => self.on_packet(now, from, bytes, out),
                Payload::Snapshot(snapshot) => {
                    let mut bytes = Vec::new();
                    snapshot.encode(0..snapshot.encoded_len(), &mut bytes);
                    self.on_packet(now, from, &bytes, out);
                }
            },
            // 003 knows heartbeats only; what the link finds out is not used, so that the comparison is fair.
            Input::Up { .. } | Input::Down { .. } | Input::Refused { .. } => {}
            Input::Wired { .. } | Input::Tripped { .. } => {}
        }
        self.pass_on(now, out);
    }

    fn expire<S: for<'a> Sink<Output<'a>>>(&mut self, now: Instant, out: &mut S) {
        if self.is_empty() {
            return;
        }
        self.look_for_silent(now, out);
        if now >= self.book.look_at {
            self.book.look(now, self.keep(), out);
        }
        self.look_for_leaders(now, out);
        self.announce_again(now, out);
        self.pass_on(now, out);
        if now >= self.beat_at {
            self.on_beat(now, out);
        }
    }

    fn deadline(&self) -> Instant {
        if self.is_empty() {
            return Instant::NEVER;
        }
        let due = self.levels.iter().map(|l| l.due_at(&self.config));
        due.fold(self.beat_at.min(self.book.look_at), Instant::min)
    }

    fn fingerprint(&self, print: &mut Fingerprint) {
        self.book.fingerprint(print);
        self.levels.iter().for_each(|l| l.fingerprint(print));
        self.fan.iter().for_each(|f| f.fingerprint(print));
        print.add(&self.hears).add(&self.budget);
        print.instant(self.beat_at);
    }
}

/// Heartbeats.
impl Segment {
    fn on_packet(&mut self, now: Instant, from: From, bytes: &[u8], out: &mut impl Out) {
        let Ok(Packet { level, says }) = Packet::parse(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        if self.level(level).is_none() {
            return self.on_stray(from, level, says, out);
        }
        match says {
            Says::Heartbeat { pulse, entry } => self.on_heartbeat(now, from, level, (pulse, entry), out),
            Says::Beat { pulse } => self.on_beat_of(now, from, level, pulse, out),
            Says::Update { number, sets } => self.on_update(now, from, level, (number, sets), out),
            Says::Poll => self.on_poll(from, level, out),
            Says::Image { number, changes } => self.on_image(now, from, level, (number, changes), out),
            Says::Who => {
                if self.may_answer() {
                    self.encode(now, level, true, None);
                    out.push(Output::Datagram { to: from.addr, bytes: &self.scratch });
                }
            }
            Says::Lead { addr } => self.on_lead(now, level, addr, out),
            Says::Greet => {}
        }
    }

    fn may_answer(&mut self) -> bool {
        let may = self.budget > 0;
        self.budget = self.budget.saturating_sub(1);
        self.counters.unanswered += u64::from(!may);
        may
    }

    fn on_heartbeat(
        &mut self,
        now: Instant,
        from: From,
        level: u8,
        (pulse, entry): (Pulse, Entry<'_>),
        out: &mut impl Out,
    ) {
        if entry.identity != from.identity || pulse.counter != entry.counter {
            self.counters.forged += 1;
            return;
        }
        if let Some(code) = entry.departed {
            if let Some(slot) = self.book.find(&entry.identity) {
                let is_this = self.book.version(slot).is_some_and(|v| v.incarnation == entry.incarnation);
                if is_this && self.book.counter(slot) <= entry.counter {
                    self.book.depart(now, slot, code, entry.counter, out);
                    self.forget(now, slot, false, out);
                }
            }
            return;
        }
        let note = self.book.hear(now, level, &entry, out);
        self.count(note);
        let Some(slot) = self.book.find(&entry.identity).filter(|&slot| self.book.is_heard(slot, level)) else {
            return;
        };
        // A new life of it: what was told in the old one is nothing to it.
        if let (Note::News(_), Some(own)) = (note, self.level_mut(level))
            && own.peers.get(&slot).is_some_and(|p| p.pulse.counter > pulse.counter)
        {
            own.peers.remove(&slot);
            let until = self.orphans_until(now, level);
            self.book.untell(now, level, slot, until, false, out);
        }
        self.on_pulse(now, level, slot, pulse, out);
    }

    fn on_beat_of(&mut self, now: Instant, from: From, level: u8, pulse: Pulse, out: &mut impl Out) {
        let slot = self.book.find(&from.identity);
        let known = slot.and_then(|slot| Some((slot, self.book.hear_beat(slot, level, pulse.counter)?)));
        match known {
            Some((slot, true)) => self.on_pulse(now, level, slot, pulse, out),
            Some((_, false)) => {}
            None if self.may_answer() => self.ask_who(level, from.addr, out),
            None => {}
        }
    }

    /// Asks for a heartbeat with all of its sender.
    fn ask_who(&mut self, level: u8, to: Addr, out: &mut impl Out) {
        self.scratch.clear();
        segment::who(level, &mut self.scratch);
        out.push(Output::Datagram { to, bytes: &self.scratch });
    }

    fn count(&mut self, note: Note) {
        match note {
            Note::Ghost => self.counters.ghosts += 1,
            Note::Crowded => self.counters.crowded += 1,
            Note::Malformed => self.counters.malformed += 1,
            Note::Old | Note::News(_) => {}
        }
    }

    /// Somebody was heard in a level of ours.
    fn on_pulse(&mut self, now: Instant, level: u8, slot: Slot, pulse: Pulse, out: &mut impl Out) {
        if pulse.leaves {
            return self.on_leaves(now, level, slot, out);
        }
        let (losses, introduce) = (self.config.losses, self.config.heartbeat_bytes == 0);
        let is_unicast = self.fan.is_some();
        let Some(own) = self.level_mut(level) else { return };
        let is_new = !own.peers.contains_key(&slot);
        let peer = own.peers.entry(slot).or_insert_with(|| Peer::new(now, pulse));
        let before = std::mem::replace(&mut peer.pulse, pulse);
        let is_other = (before.leads, before.follows) != (pulse.leads, pulse.follows);
        (peer.heard_at, peer.asked) = (now, 0);
        if is_new && introduce {
            own.introduce = own.introduce.max(losses.min(2));
        }
        // TG-3: whoever leads pulls from who comes from below. What a leader knows is pulled when it is followed. Without multicast all pull: what
        // it told when it came was for those whom it heard by then.
        let is_pulled = is_new && level > 0 && (own.leads() || is_unicast)
            || pulse.leads && (is_new || !before.leads) && !own.leads();
        if is_pulled {
            self.poll(now, level, slot, out);
        }
        if is_new && is_unicast {
            self.greet(now, level, slot, out);
        }
        self.look_for_leader(now, level, out);
        if is_other {
            self.revise(now, level);
        }
        self.compare(now, level, slot, out);
    }

    fn on_beat(&mut self, now: Instant, out: &mut impl Out) {
        let next = self.beat_at + self.config.period;
        self.beat_at = if next > now { next } else { now + self.config.period };
        self.budget = self.config.answers;
        self.book.beat();
        self.part_with_silent(now, out);
        self.ask_for_orphans(now, out);
        for level in 0..self.levels.len() as u8 {
            self.beat_in(now, level, out);
            self.greet_above(level, out);
        }
    }

    /// Members for whom nobody answers any more, and not because who did is dead: it may follow somebody now who has told of them before, when
    /// we had them from another one, and will not again. Whoever may answer for them is asked, until somebody does or their time is over.
    fn ask_for_orphans(&mut self, now: Instant, out: &mut impl Out) {
        if !self.book.has_orphans(|level| self.orphans_until(now, level) - self.config.grace) {
            return;
        }
        for level in 0..self.levels.len() as u8 {
            let Some(own) = self.level(level) else { return };
            let all = || own.peers.keys().copied().collect();
            let asked: Vec<Slot> = own.follows().map_or_else(all, |leader| vec![leader]);
            asked.into_iter().for_each(|slot| self.poll(now, level, slot, out));
        }
    }

    /// A heartbeat in one of our levels.
    fn beat_in(&mut self, now: Instant, level: u8, out: &mut impl Out) {
        if self.fan.is_none() && self.hears & (1 << level) == 0 {
            self.hears |= 1 << level;
            out.push(Output::Hear { group: self.group_of(level).number });
        }
        self.choose_backup(level);
        let Some(own) = self.level_mut(level) else { return };
        let is_whole = own.introduce > 0;
        own.introduce = own.introduce.saturating_sub(1);
        self.encode(now, level, is_whole, None);
        self.cast(level, out);
        if self.level_mut(level).is_some_and(|own| std::mem::take(&mut own.repeats)) {
            self.cast_last(level, out);
        }
        self.knock(now, level, out);
    }

    /// Says what is in `scratch` to all in a level of ours: to its group, or to each who is heard there.
    fn cast(&self, level: u8, out: &mut impl Out) {
        if self.fan.is_none() {
            return out.push(Output::Cast { group: self.group_of(level), bytes: &self.scratch });
        }
        let heard = self.level(level).into_iter().flat_map(|l| l.peers.keys());
        for to in heard.filter_map(|&slot| Some(self.book.card(slot)?.addr)) {
            out.push(Output::Datagram { to, bytes: &self.scratch });
        }
    }

    fn group_of(&self, level: u8) -> Group {
        Group { number: self.config.group.wrapping_add(level.into()), ttl: level + 1 }
    }

    fn pulse(&self, level: u8) -> Pulse {
        let own = self.level(level);
        let name = |slot: Option<Slot>| slot.and_then(|s| self.book.identity(s)).map_or(0, |i| short(&i));
        Pulse {
            leads: own.is_some_and(Level::leads),
            leaves: false,
            counter: self.book.counter(self.book.me()),
            number: own.map_or(0, |l| l.told),
            digest: self.book.digest(),
            follows: name(own.and_then(Level::follows)),
            backup: name(own.and_then(|l| l.backup)),
        }
    }

    /// Our heartbeat in a level, into `scratch`.
    fn encode(&mut self, _now: Instant, level: u8, is_whole: bool, departed: Option<u8>) {
        let (pulse, size) = (self.pulse(level), self.config.heartbeat_bytes.into());
        self.scratch.clear();
        if !is_whole && size == 0 {
            return segment::beat(level, &pulse, &mut self.scratch);
        }
        if let Some(own) = self.book.entry(self.book.me()) {
            segment::heartbeat(level, &pulse, &Entry { departed, ..own }, size, &mut self.scratch);
        }
    }
}

impl Engine for Segment {
    fn me(&self) -> Slot {
        self.book.me()
    }

    fn version(&self, member: Slot) -> Option<Version> {
        self.book.version(member)
    }

    fn card(&self, member: Slot) -> Option<&Card> {
        self.book.card(member)
    }

    fn members(&self) -> impl Iterator<Item = (Slot, Version)> {
        self.book.members()
    }

    fn len(&self) -> usize {
        self.book.len()
    }

    fn set(&mut self, _: Instant, key: &str, value: Option<&[u8]>) -> Result<(), Code> {
        self.book.set(key, value)?;
        let losses = self.config.losses;
        self.levels.iter_mut().for_each(|l| l.introduce = l.introduce.max(losses));
        Ok(())
    }

    fn attribute(&self, member: Slot, key: &str) -> Option<&[u8]> {
        self.book.attributes(member).get(key)
    }

    fn attributes(&self, member: Slot) -> impl Iterator<Item = (&str, &[u8])> {
        self.book.attributes(member).iter()
    }

    fn origin(&self, member: Slot) -> Option<Origin> {
        self.book.origin(member)
    }

    fn leave(&mut self, now: Instant, code: u8, out: &mut impl Out) {
        if self.is_empty() {
            return;
        }
        self.book.beat();
        for level in 0..self.levels.len() as u8 {
            self.encode(now, level, true, Some(code));
            for _ in 0..self.config.farewells.max(1) {
                self.cast(level, out);
            }
        }
        self.book.close();
        self.levels.clear();
    }

    fn speaks(&self) -> bool {
        self.is_top()
    }

    fn linked(&self) -> Vec<Addr> {
        self.neighbours().filter_map(|slot| Some(self.book.card(slot)?.addr)).collect()
    }
}
