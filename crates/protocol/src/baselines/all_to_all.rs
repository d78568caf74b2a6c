//! All-to-all: each node tells all others, each period, that it lives (BL-1, 003 §2).
//!
//! A heartbeat carries the member's card, version and attributes. Who is not heard for `losses` periods is dead
//! (§4.1). A view is made of heartbeats alone: nobody speaks for another.
//!
//! Heartbeats go through a multicast group where there is one. Without one (TG-8's clouds; the paper has no such case)
//! they go to each known member, and the question is how a newcomer becomes known to all. Ours: places travel,
//! membership does not. A heartbeat carries a digest of its sender's view, and to one random member each period, and to
//! every bootstrap address at which nobody is known, it says *ask*. Whoever is asked and has another digest answers with
//! the addresses in its own view (an introduction). Introduced places are sent heartbeats for `losses` periods; who is
//! there hears a new member, and answers with its own heartbeats from then on. Equal views cost nothing; unequal ones
//! become equal whoever met whom first, whatever was lost, and also after a partition.

use super::table::{Note, Table, Waits};
use super::{Counters, PERIOD_LEAST, Start};
use crate::member::{Card, Engine, Input, Out, Output, Peer, Slot, Version};
use phalanx_core::{Addr, Code, Duration, Fingerprint, Group, Instant, Machine, Rng, Sink};
use phalanx_wire::baseline::{Addrs, CHECKSUM, ENTRY_MAX, Entry, HEADER, List, Packet, heartbeat};
use std::collections::BTreeMap;

/// The numbers of all-to-all heartbeats.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct AllToAllConfig {
    /// Time between two heartbeats of a node; at least [`PERIOD_LEAST`].
    pub period: Duration,
    /// Heartbeats missed in a row by which a member is dead.
    pub losses: u8,
    /// How much later than expected a heartbeat may come: delays differ.
    pub grace: Duration,
    /// The group that carries heartbeats, and nothing else does then; without it they go to each member.
    pub group: Option<Group>,
    /// Heartbeats are padded to this size.
    pub heartbeat_bytes: u16,
    /// The longest datagram. Heartbeats with many attributes need 700 bytes.
    pub datagram_bytes: u16,
    /// Members remembered, the dead included. Newcomers beyond are dropped and counted.
    pub members: usize,
    /// Introductions given in a period. Who asks beyond is not answered, counted, and asks again.
    pub introductions: u16,
    /// Copies of the last heartbeat, which says that we leave. Who hears none of them finds us failed.
    pub farewells: u8,
}

impl AllToAllConfig {
    /// 003 §5.2: a packet a second, 5 losses, 228 bytes for each member; through the group of this number.
    #[must_use]
    pub const fn paper(group: Option<Group>) -> Self {
        Self {
            period: Duration::from_secs(1),
            losses: 5,
            grace: Duration::from_millis(50),
            group,
            heartbeat_bytes: 228,
            datagram_bytes: 1_400,
            members: 16 * 1024,
            introductions: 64,
            farewells: 3,
        }
    }

    /// For a local network: ten times as fast, and nothing padded.
    #[must_use]
    pub const fn lan(group: Option<Group>) -> Self {
        Self {
            period: Duration::from_millis(100),
            grace: Duration::from_millis(20),
            heartbeat_bytes: 0,
            ..Self::paper(group)
        }
    }

    /// 003 §4.1: the time from a member's last heartbeat until it is dead.
    #[must_use]
    pub fn fail_after(&self) -> Duration {
        self.period * u64::from(self.losses.max(1)) + self.grace
    }
}

/// A node that tells all others that it lives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AllToAll {
    config: AllToAllConfig,
    table: Table,
    /// Places we were told of and heard nobody at yet; and how many heartbeats they still get.
    introduced: BTreeMap<Addr, u8>,
    beat_at: Instant,
    check_at: Instant,
    /// The group is being heard.
    hears: bool,
    /// Introductions left in this period.
    budget: u16,
    counters: Counters,
    rng: Rng,
    scratch: Vec<u8>,
}

impl AllToAll {
    /// A node that starts: the first heartbeat leaves within a period, at a phase of its own.
    ///
    /// # Panics
    /// When the table has no room for one, or our own address is a group.
    #[must_use]
    pub fn new(mut config: AllToAllConfig, start: Start, mut rng: Rng, now: Instant) -> Self {
        config.period = config.period.max(PERIOD_LEAST);
        config.datagram_bytes = config.datagram_bytes.max((HEADER + 8 + ENTRY_MAX + CHECKSUM) as u16);
        config.heartbeat_bytes = config.heartbeat_bytes.min(config.datagram_bytes);
        Self {
            config,
            table: Table::new(start, config.members),
            introduced: BTreeMap::new(),
            beat_at: now + Duration(rng.below(config.period.0)),
            check_at: Instant::NEVER,
            hears: false,
            budget: config.introductions,
            counters: Counters::default(),
            rng,
            scratch: Vec::new(),
        }
    }

    /// What was dropped.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn waits(&self) -> Waits {
        Waits { fail: self.config.fail_after() }
    }
}

impl Machine for AllToAll {
    type Input<'a> = Input<'a>;
    type Output<'a> = Output<'a>;

    fn handle<S: for<'a> Sink<Output<'a>>>(&mut self, now: Instant, input: Input<'_>, out: &mut S) {
        if self.is_empty() {
            return;
        }
        match input {
            Input::Datagram { from, bytes, .. } => self.on_datagram(now, from, bytes, out),
            Input::Message { .. } => self.counters.foreign += 1,
            // 003 knows heartbeats only; what the link finds out is not used, so that the comparison is fair.
            Input::Up { .. } | Input::Down { .. } | Input::Refused { .. } => {}
            Input::Wired { .. } | Input::Tripped { .. } => {}
        }
        self.check();
    }

    fn expire<S: for<'a> Sink<Output<'a>>>(&mut self, now: Instant, out: &mut S) {
        if self.is_empty() {
            return;
        }
        if now >= self.check_at {
            self.table.sweep(now, self.waits(), out);
            self.check_at = self.table.due_at(self.waits());
        }
        if now >= self.beat_at {
            self.on_beat(now, out);
        }
        self.check();
    }

    fn deadline(&self) -> Instant {
        if self.is_empty() { Instant::NEVER } else { self.beat_at.min(self.check_at) }
    }

    fn fingerprint(&self, print: &mut Fingerprint) {
        self.table.fingerprint(print);
        print.add(&self.introduced).add(&self.hears).add(&self.budget);
        print.instant(self.beat_at);
        print.instant(self.check_at);
    }
}

impl AllToAll {
    fn on_datagram(&mut self, now: Instant, from: Peer, bytes: &[u8], out: &mut impl Out) {
        match Packet::parse(bytes) {
            Ok(Packet::Heartbeat { ask, digest, entry }) => self.on_heartbeat(now, from, (ask, digest), &entry, out),
            Ok(Packet::Introduction { addrs }) => self.on_introduction(addrs),
            Ok(Packet::Gossip { .. }) => self.counters.foreign += 1,
            Err(_) => self.counters.malformed += 1,
        }
    }

    fn on_heartbeat(
        &mut self,
        now: Instant,
        from: Peer,
        (ask, digest): (bool, u64),
        entry: &Entry<'_>,
        out: &mut impl Out,
    ) {
        if entry.identity != from.identity {
            self.counters.forged += 1;
            return;
        }
        let note = self.table.note(now, entry, self.waits(), out);
        self.counters.note(note);
        if note == Note::Joined {
            self.introduced.remove(&entry.addr);
        }
        if matches!(note, Note::Joined | Note::Left) {
            self.check_at = self.check_at.min(now + self.waits().fail);
        }
        if ask && entry.departed.is_none() && digest != self.table.digest() {
            self.introduce(from.addr, out);
        }
    }

    fn on_introduction(&mut self, addrs: Addrs<'_>) {
        if self.config.group.is_some() {
            return;
        }
        for addr in addrs.iter() {
            // Our own place is in the view; a bootstrap address is knocked at anyway.
            if self.table.is_place(addr) || self.table.is_bootstrap(addr) {
                continue;
            }
            if self.introduced.len() >= self.config.members && !self.introduced.contains_key(&addr) {
                self.counters.unanswered += 1;
                continue;
            }
            self.introduced.insert(addr, self.config.losses.max(1));
        }
    }

    fn on_beat(&mut self, now: Instant, out: &mut impl Out) {
        self.beat_at = next(self.beat_at, self.config.period, now);
        self.budget = self.config.introductions;
        self.table.beat();
        if let Some(group) = self.config.group {
            if !std::mem::replace(&mut self.hears, true) {
                out.push(Output::Hear { group: group.number });
            }
            self.encode(now, false, None);
            out.push(Output::Cast { group, bytes: &self.scratch });
            return;
        }
        let asked = self.table.draw(1, &mut self.rng).pop();
        self.encode(now, true, None);
        for to in self.table.absent().chain(asked) {
            out.push(Output::Datagram { to, bytes: &self.scratch });
        }
        self.encode(now, false, None);
        for to in self.table.addrs().filter(|&to| Some(to) != asked).chain(self.introduced.keys().copied()) {
            out.push(Output::Datagram { to, bytes: &self.scratch });
        }
        self.introduced.retain(|&addr, left| {
            *left -= 1;
            if *left == 0 {
                self.table.release(addr, out);
            }
            *left > 0
        });
    }

    /// Tells the places of the view, in as many datagrams as it takes.
    fn introduce(&mut self, to: Addr, out: &mut impl Out) {
        if self.config.group.is_some() {
            return;
        }
        if self.budget == 0 {
            self.counters.unanswered += 1;
            return;
        }
        self.budget -= 1;
        let limit = self.config.datagram_bytes.into();
        let mut addrs = self.table.addrs().filter(|&addr| addr != to).peekable();
        while addrs.peek().is_some() {
            self.scratch.clear();
            let mut list = List::introduction(&mut self.scratch);
            while addrs.next_if(|&addr| list.addr(addr, limit)).is_some() {}
            list.finish();
            out.push(Output::Datagram { to, bytes: &self.scratch });
        }
    }

    /// Our heartbeat into `scratch`.
    fn encode(&mut self, now: Instant, ask: bool, departed: Option<u8>) {
        self.scratch.clear();
        if let Some(own) = self.table.own(now) {
            let (entry, size) = (Entry { departed, ..own }, self.config.heartbeat_bytes.into());
            heartbeat(ask, self.table.digest(), &entry, size, &mut self.scratch);
        }
    }

    /// What holds after each step, in every build.
    fn check(&self) {
        assert!(self.introduced.len() <= self.config.members, "places beyond their bound");
        assert!(self.table.len() == 1 || self.check_at != Instant::NEVER, "nobody watches the others");
    }
}

/// The next of a series of instants a period apart; after a pause the series begins anew.
pub(super) fn next(last: Instant, period: Duration, now: Instant) -> Instant {
    let next = last + period;
    if next > now { next } else { now + period }
}

impl Engine for AllToAll {
    fn me(&self) -> Slot {
        self.table.me()
    }

    fn version(&self, member: Slot) -> Option<Version> {
        self.table.version(member)
    }

    fn card(&self, member: Slot) -> Option<&Card> {
        self.table.card(member)
    }

    fn members(&self) -> impl Iterator<Item = (Slot, Version)> {
        self.table.members()
    }

    fn len(&self) -> usize {
        self.table.len()
    }

    fn set(&mut self, _: Instant, key: &str, value: Option<&[u8]>) -> Result<(), Code> {
        self.table.set(key, value)
    }

    fn attribute(&self, member: Slot, key: &str) -> Option<&[u8]> {
        self.table.attribute(member, key)
    }

    fn attributes(&self, member: Slot) -> impl Iterator<Item = (&str, &[u8])> {
        self.table.attributes(member)
    }

    fn leave(&mut self, now: Instant, code: u8, out: &mut impl Out) {
        if self.is_empty() {
            return;
        }
        self.table.beat();
        self.encode(now, false, Some(code));
        for _ in 0..self.config.farewells.max(1) {
            match self.config.group {
                Some(group) => out.push(Output::Cast { group, bytes: &self.scratch }),
                None => self.table.addrs().for_each(|to| out.push(Output::Datagram { to, bytes: &self.scratch })),
            }
        }
        self.table.close();
        self.introduced.clear();
    }
}
