//! Gossip: each node tells one random other, each period, all it knows (BL-1, 003 §2; van Renesse, Minsky, Hayden).
//!
//! A list has an entry for each member: card, version, a counter that only its member raises (once a period), and its
//! attributes. Of two entries the newer one stays. Who gossips does not matter; what matters is that counters grow: one
//! that did not for `T_fail` belongs to a failed member. It is remembered until `T_cleanup` = 2·`T_fail`, because lists
//! that still praise it are under way; in this time only a greater counter or incarnation brings it back.
//!
//! `T_fail` follows from the number of members and a bound of mistakes ([`analysis`](super::analysis)). We add two
//! things that the analysis leaves out. One period: counters grow in steps, and the next one is up to a period old when
//! it sets out. And delay: with a delay of d an epidemic grows as if its period were longer by d, to first order.
//!
//! We add one thing to the protocol: an entry carries the age of its counter, and one of `T_fail` or more is no sign of
//! life. `T_cleanup` alone makes the return of the dead improbable only while few fail at once. When most of a cluster
//! falls behind a partition, most gossip goes to nobody, old counters creep through the rest, and whoever has forgotten
//! a member hears of it from somebody who has not, in turns: in a simulated run after 8·`T_fail` still. Ages end it: nobody dead joins later than
//! `T_fail` after its last beat, and nobody keeps it for longer than twice that. In fair weather counters are younger,
//! but for mistakes, and all is as van Renesse has it.
//!
//! As the paper's, a list is UDP: datagrams as long as a path carries, each complete in itself, so that a lost one
//! delays some entries. Failed members are not told of: silence is enough. Departures are, for `T_fail`.
//!
//! A bootstrap address at which nobody is known gets our own entry each period (one of them, at random). Whoever is
//! there gossips it on, so that newcomers become known and partitions heal. van Renesse uses rare broadcasts for that;
//! 003 §4.1 leaves them out.

use super::all_to_all::next;
use super::table::{Note, Table, Waits};
use super::{Counters, PERIOD_LEAST, Start, analysis};
use crate::member::{Card, Engine, Input, Out, Output, Slot, Version};
use phalanx_core::{Addr, Code, Duration, Fingerprint, Instant, Machine, Rng, Sink};
use phalanx_wire::baseline::{CHECKSUM, ENTRY_MAX, Entries, Entry, HEADER, List, Packet};

/// Parts in a whole, for probabilities as integers.
const MILLION: f64 = 1e6;

/// The numbers of gossip.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct GossipConfig {
    /// Time between two lists that a node sends; at least [`PERIOD_LEAST`].
    pub period: Duration,
    /// To how many it sends each.
    pub fanout: u8,
    /// 003 §5.2: the bound of the probability that any node takes a live one for dead, in millionths.
    pub mistake_ppm: u32,
    /// Datagrams that are lost, in millionths: what `T_fail` allows for.
    pub loss_ppm: u32,
    /// Time a datagram takes: what `T_fail` allows for.
    pub delay: Duration,
    /// `T_fail` is that of at least so many members: a newcomer knows few of many.
    pub members_least: usize,
    /// Entries are padded to this size.
    pub entry_bytes: u16,
    /// The longest datagram. An entry with many attributes needs 700 bytes.
    pub datagram_bytes: u16,
    /// Members remembered, the dead included. Newcomers beyond are dropped and counted.
    pub members: usize,
    /// How many are told at once that we leave; they tell the others.
    pub farewells: u8,
}

impl GossipConfig {
    /// 003 §5.2: a list a second, mistakes of 0.1 %, 228 bytes for each member. It says nothing of losses.
    #[must_use]
    pub const fn paper() -> Self {
        Self {
            period: Duration::from_secs(1),
            fanout: 1,
            mistake_ppm: 1_000,
            loss_ppm: 0,
            delay: Duration::from_millis(1),
            members_least: 8,
            entry_bytes: 228,
            datagram_bytes: 1_400,
            members: 16 * 1024,
            farewells: 8,
        }
    }

    /// For a local network: ten times as fast, nothing padded, one datagram in a hundred lost.
    #[must_use]
    pub const fn lan() -> Self {
        Self { period: Duration::from_millis(100), loss_ppm: 10_000, entry_bytes: 0, ..Self::paper() }
    }

    /// `T_fail` among `n` members.
    #[must_use]
    pub fn fail_after(&self, n: usize) -> Duration {
        let arrival = 1.0 - f64::from(self.loss_ppm.min(990_000)) / MILLION;
        let mistake = f64::from(self.mistake_ppm.max(1)) / MILLION;
        let spread = analysis::periods(n.max(self.members_least), arrival, mistake) / f64::from(self.fanout.max(1));
        Duration::from_secs_f64((spread + 1.0) * (self.period + self.delay).as_secs_f64())
    }
}

/// A node that tells others all it knows.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gossip {
    config: GossipConfig,
    table: Table,
    /// For the number of members that the view has.
    waits: Waits,
    gossip_at: Instant,
    check_at: Instant,
    counters: Counters,
    rng: Rng,
    scratch: Vec<u8>,
}

impl Gossip {
    /// A node that starts: it gossips first within a period, at a phase of its own.
    ///
    /// # Panics
    /// When the table has no room for one, or our own address is a group.
    #[must_use]
    pub fn new(mut config: GossipConfig, start: Start, mut rng: Rng, now: Instant) -> Self {
        config.period = config.period.max(PERIOD_LEAST);
        config.datagram_bytes = config.datagram_bytes.max((HEADER + ENTRY_MAX + CHECKSUM) as u16);
        config.entry_bytes = config.entry_bytes.min(config.datagram_bytes - (HEADER + CHECKSUM) as u16);
        Self {
            config,
            table: Table::new(start, config.members),
            waits: Waits { fail: config.fail_after(1) },
            gossip_at: now + Duration(rng.below(config.period.0)),
            check_at: Instant::NEVER,
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

    /// How long a counter may stand still now.
    #[must_use]
    pub fn fail_after(&self) -> Duration {
        self.waits.fail
    }
}

impl Machine for Gossip {
    type Input<'a> = Input<'a>;
    type Output<'a> = Output<'a>;

    fn handle<S: for<'a> Sink<Output<'a>>>(&mut self, now: Instant, input: Input<'_>, out: &mut S) {
        if self.is_empty() {
            return;
        }
        match input {
            Input::Datagram { bytes, .. } => self.on_datagram(now, bytes, out),
            Input::Message { .. } => self.counters.foreign += 1,
            // Counters alone decide, as in the paper.
            Input::Up { .. } | Input::Down { .. } | Input::Refused { .. } => {}
            Input::Wired { .. } | Input::Tripped { .. } => {}
        }
        self.check();
    }

    fn expire<S: for<'a> Sink<Output<'a>>>(&mut self, now: Instant, out: &mut S) {
        if self.is_empty() {
            return;
        }
        // First of all: who failed is not told of.
        if now >= self.check_at {
            self.table.sweep(now, self.waits, out);
            self.resize();
        }
        if now >= self.gossip_at {
            self.on_gossip_due(now, out);
        }
        self.check();
    }

    fn deadline(&self) -> Instant {
        if self.is_empty() { Instant::NEVER } else { self.gossip_at.min(self.check_at) }
    }

    fn fingerprint(&self, print: &mut Fingerprint) {
        self.table.fingerprint(print);
        print.instant(self.gossip_at);
        print.instant(self.check_at);
    }
}

impl Gossip {
    fn on_datagram(&mut self, now: Instant, bytes: &[u8], out: &mut impl Out) {
        match Packet::parse(bytes) {
            Ok(Packet::Gossip { entries }) => self.on_gossip(now, entries, out),
            Ok(Packet::Heartbeat { .. } | Packet::Introduction { .. }) => self.counters.foreign += 1,
            Err(_) => self.counters.malformed += 1,
        }
    }

    fn on_gossip(&mut self, now: Instant, entries: Entries<'_>, out: &mut impl Out) {
        let mut changed = false;
        for entry in entries.iter() {
            let note = self.table.note(now, &entry, self.waits, out);
            self.counters.note(note);
            changed |= matches!(note, Note::Joined | Note::Left);
        }
        if changed {
            self.resize();
        }
    }

    fn on_gossip_due(&mut self, now: Instant, out: &mut impl Out) {
        self.gossip_at = next(self.gossip_at, self.config.period, now);
        self.table.beat();
        let to = self.table.draw(self.config.fanout.max(1).into(), &mut self.rng);
        if !to.is_empty() {
            self.send_list(now, &to, out);
        }
        let absent: Vec<_> = self.table.absent().collect();
        if !absent.is_empty() {
            let knock = absent[self.rng.index(absent.len())];
            self.send_own(now, &[knock], None, out);
        }
    }

    /// The whole list, in as many datagrams as it takes. It begins anywhere, and our own entry is the last: a link keeps
    /// only the end of a long list for a peer that it has yet to meet, and that end must be another one each time.
    fn send_list(&mut self, now: Instant, to: &[Addr], out: &mut impl Out) {
        let (size, limit) = (self.config.entry_bytes.into(), self.config.datagram_bytes.into());
        let me = self.table.own(now).map(|own| own.identity);
        let mut entries: Vec<_> = self.table.entries(now, self.waits).collect();
        let first = self.rng.index(entries.len().max(1));
        entries.rotate_left(first);
        if let Some(own) = entries.iter().position(|e| Some(e.identity) == me) {
            let last = entries.len() - 1;
            entries.swap(own, last);
        }
        let mut entries = entries.into_iter().peekable();
        while entries.peek().is_some() {
            self.scratch.clear();
            let mut list = List::gossip(&mut self.scratch);
            while entries.next_if(|entry| list.entry(entry, size, limit)).is_some() {}
            assert!(!list.is_empty(), "an entry that no datagram holds");
            list.finish();
            for &to in to {
                out.push(Output::Datagram { to, bytes: &self.scratch });
            }
        }
    }

    fn send_own(&mut self, now: Instant, to: &[Addr], departed: Option<u8>, out: &mut impl Out) {
        let Some(own) = self.table.own(now) else { return };
        self.scratch.clear();
        let mut list = List::gossip(&mut self.scratch);
        let fits =
            list.entry(&Entry { departed, ..own }, self.config.entry_bytes.into(), self.config.datagram_bytes.into());
        assert!(fits, "an entry that no datagram holds");
        list.finish();
        for &to in to {
            out.push(Output::Datagram { to, bytes: &self.scratch });
        }
    }

    /// The view has another size: so has `T_fail`.
    fn resize(&mut self) {
        self.waits.fail = self.config.fail_after(self.table.len());
        self.check_at = self.table.due_at(self.waits);
    }

    /// What holds after each step, in every build.
    fn check(&self) {
        assert!(self.table.len() == 1 || self.check_at != Instant::NEVER, "nobody watches the others");
    }
}

impl Engine for Gossip {
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
        let to = self.table.draw(self.config.farewells.max(1).into(), &mut self.rng);
        self.send_own(now, &to, Some(code), out);
        self.table.close();
    }
}
