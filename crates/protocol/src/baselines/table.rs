//! Everybody a baseline knows of: when they were last heard, and what follows from that.
//!
//! A member is alive, failed, or departed. Who is not alive is remembered for a while with its incarnation and counter,
//! so that nothing that was under way brings it back. Then its slot becomes another's.
//!
//! A counter has an age: how long ago its member raised it, as far as those know who handed it on. One that is as old
//! as the silence by which a member fails is no sign of life, whoever tells of it.

use super::attributes::{differences, view, with};
use super::{BOOTSTRAP_MAX, CLEANUP_FACTOR, Start};
use crate::member::{Card, Event, Name, Out, Output, Roster, Slot, Version, Why};
use phalanx_core::{Addr, Code, Duration, Fingerprint, Instant, Rng, rng};
use phalanx_wire::baseline::{Attributes, Entry};
use std::cmp::Ordering;
use std::collections::BTreeMap;

/// Everybody.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Table {
    roster: Roster,
    me: Slot,
    /// By slot.
    records: Vec<Option<Record>>,
    /// The view, by slot, ourselves included.
    live: Vec<Slot>,
    /// Where the view is.
    places: BTreeMap<Addr, Slot>,
    bootstrap: Vec<Addr>,
    digest: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Record {
    version: Version,
    counter: u64,
    state: State,
    /// When the counter last gave a sign of life; or when the member left.
    since: Instant,
    /// When the counter came, and how old it was then.
    came_at: Instant,
    age: Duration,
    attributes: Box<[u8]>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum State {
    Alive,
    Failed,
    Departed(u8),
}

/// How long a silence means what.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Waits {
    /// Failed after it.
    pub(super) fail: Duration,
}

impl Waits {
    fn due(self, record: &Record) -> Instant {
        record.since
            + match record.state {
                State::Alive => self.fail,
                // `T_cleanup` counts from when it was last heard, of which `fail` has passed.
                State::Failed => self.fail * (CLEANUP_FACTOR - 1),
                State::Departed(_) => self.fail * CLEANUP_FACTOR,
            }
    }
}

/// What an entry changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Note {
    /// Nothing: it was known.
    Old,
    /// The member was heard.
    Grown,
    /// Somebody came, newly or again or in a new incarnation.
    Joined,
    /// Somebody left.
    Left,
    /// It speaks of a later life of ours.
    Ghost,
    /// There is no room.
    Crowded,
    /// No member is called so.
    Malformed,
}

impl Table {
    /// We alone, with room for `bound` members.
    ///
    /// # Panics
    /// When there is no room for ourselves, or our address is a group's.
    pub(super) fn new(start: Start, bound: usize) -> Self {
        let Start { card, incarnation, mut bootstrap, shared } = start;
        assert!(!matches!(card.addr, Addr::Group(_)), "a group is nobody's address");
        bootstrap.retain(|&addr| addr != card.addr);
        bootstrap.truncate(BOOTSTRAP_MAX);
        let mut roster = Roster::new(shared, bound);
        let me = roster.enter(&card, incarnation).expect("room for ourselves");
        let mut table =
            Self { roster, me, records: Vec::new(), live: Vec::new(), places: BTreeMap::new(), bootstrap, digest: 0 };
        // Our own counter is always new, and we never wait for ourselves.
        table.put(
            me,
            Record {
                version: Version::first(incarnation),
                counter: 0,
                state: State::Alive,
                since: Instant::NEVER,
                came_at: Instant::NEVER,
                age: Duration::ZERO,
                attributes: Box::default(),
            },
        );
        table.enter_view(me);
        table
    }

    pub(super) fn me(&self) -> Slot {
        self.me
    }

    pub(super) fn version(&self, member: Slot) -> Option<Version> {
        self.record(member).filter(|r| r.state == State::Alive).map(|r| r.version)
    }

    pub(super) fn card(&self, member: Slot) -> Option<&Card> {
        self.roster.card(member)
    }

    pub(super) fn members(&self) -> impl Iterator<Item = (Slot, Version)> {
        self.live.iter().filter_map(|&slot| Some((slot, self.version(slot)?)))
    }

    pub(super) fn len(&self) -> usize {
        self.live.len()
    }

    pub(super) fn attribute(&self, member: Slot, key: &str) -> Option<&[u8]> {
        view(&self.record(member)?.attributes).get(key)
    }

    /// All that a member says, by key.
    pub(super) fn attributes(&self, member: Slot) -> impl Iterator<Item = (&str, &[u8])> {
        self.record(member).into_iter().flat_map(|record| view(&record.attributes).iter())
    }

    /// Writes one of our own attributes.
    pub(super) fn set(&mut self, key: &str, value: Option<&[u8]>) -> Result<(), Code> {
        let record = self.record_mut(self.me).ok_or(Code::NotInitialized)?;
        record.attributes = with(&record.attributes, key, value)?;
        Ok(())
    }

    /// A sum of the view, whatever the order in which it came to be.
    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    /// Where others in the view are, by slot.
    pub(super) fn addrs(&self) -> impl Iterator<Item = Addr> {
        self.live.iter().filter(|&&slot| slot != self.me).filter_map(|&slot| Some(self.card(slot)?.addr))
    }

    /// True when a member in the view is there.
    pub(super) fn is_place(&self, addr: Addr) -> bool {
        self.places.contains_key(&addr)
    }

    /// True when the configuration names it.
    pub(super) fn is_bootstrap(&self, addr: Addr) -> bool {
        self.bootstrap.contains(&addr)
    }

    /// Bootstrap addresses at which nobody in the view is.
    pub(super) fn absent(&self) -> impl Iterator<Item = Addr> {
        self.bootstrap.iter().copied().filter(|&addr| !self.is_place(addr))
    }

    /// Where up to `count` different others are, drawn evenly.
    pub(super) fn draw(&self, count: usize, rng: &mut Rng) -> Vec<Addr> {
        let Ok(me) = self.live.binary_search(&self.me) else { return Vec::new() };
        let others = self.live.len() - 1;
        let mut drawn = Vec::with_capacity(count.min(others));
        // Floyd: each subset is as likely as any other.
        for j in others - count.min(others)..others {
            let i = rng.index(j + 1);
            drawn.push(if drawn.contains(&i) { j } else { i });
        }
        let place = |i: usize| Some(self.card(self.live[i + usize::from(i >= me)])?.addr);
        drawn.into_iter().filter_map(place).collect()
    }

    /// Our own counter grows.
    pub(super) fn beat(&mut self) {
        if let Some(record) = self.record_mut(self.me) {
            record.counter += 1;
        }
    }

    /// Ourselves, as others shall know us.
    pub(super) fn own(&self, now: Instant) -> Option<Entry<'_>> {
        self.entry(now, self.me)
    }

    /// All in the view; and whoever departed within the last `fail`, so that all learn that it did.
    pub(super) fn entries(&self, now: Instant, waits: Waits) -> impl Iterator<Item = Entry<'_>> {
        let told = move |r: &Record| match r.state {
            State::Alive => true,
            State::Departed(_) => now < r.since + waits.fail,
            State::Failed => false,
        };
        let slots = (0..).map(Slot).zip(&self.records);
        slots.filter(move |(_, r)| r.as_ref().is_some_and(told)).filter_map(move |(slot, _)| self.entry(now, slot))
    }

    fn entry(&self, now: Instant, slot: Slot) -> Option<Entry<'_>> {
        let (record, card) = (self.record(slot)?, self.card(slot)?);
        Some(Entry {
            identity: card.identity,
            addr: card.addr,
            name: card.name.as_str(),
            incarnation: record.version.incarnation,
            minor: record.version.minor,
            counter: record.counter,
            age_ms: (record.age + now.since(record.came_at)).as_millis().try_into().unwrap_or(u32::MAX),
            departed: match record.state {
                State::Departed(code) => Some(code),
                State::Alive | State::Failed => None,
            },
            attributes: view(&record.attributes),
        })
    }

    /// An entry came, from its member or about it.
    pub(super) fn note(&mut self, now: Instant, entry: &Entry<'_>, waits: Waits, out: &mut impl Out) -> Note {
        let is_sign = entry.departed.is_none() && age_of(entry) < waits.fail;
        let known = self.roster.find(&entry.identity).and_then(|slot| Some((slot, self.record(slot)?)));
        let Some((slot, record)) = known else {
            // It left or failed before we knew of it. To remember that would let old news travel for ever.
            return if is_sign { self.on_stranger(now, entry, out) } else { Note::Old };
        };
        let age = entry.incarnation.cmp(&record.version.incarnation);
        if slot == self.me {
            return if age == Ordering::Greater { Note::Ghost } else { Note::Old };
        }
        match (age, record.state, entry.departed) {
            (Ordering::Less, ..) | (Ordering::Equal, State::Departed(_), _) => Note::Old,
            (Ordering::Greater, ..) => self.on_restarted(now, slot, entry, is_sign, out),
            (_, _, Some(code)) => self.on_departed(now, slot, code, entry.counter, out),
            (_, _, None) if entry.counter <= record.counter => Note::Old,
            (_, _, None) => self.on_grown(now, slot, entry, is_sign, out),
        }
    }

    fn on_stranger(&mut self, now: Instant, entry: &Entry<'_>, out: &mut impl Out) -> Note {
        let Some(card) = card_of(entry) else { return Note::Malformed };
        let Some(slot) = self.roster.enter(&card, entry.incarnation) else { return Note::Crowded };
        self.roster.change(slot, &card);
        self.put(slot, Record::new(now, entry));
        self.join(slot, out);
        Note::Joined
    }

    fn on_restarted(&mut self, now: Instant, slot: Slot, entry: &Entry<'_>, is_sign: bool, out: &mut impl Out) -> Note {
        let Some(card) = card_of(entry) else { return Note::Malformed };
        let before = self.part(now, slot, Why::Replaced, out);
        self.roster.change(slot, &card);
        self.put(slot, Record::new(now, entry));
        if is_sign {
            self.join(slot, out);
        } else if let Some(record) = self.record_mut(slot).filter(|r| r.state == State::Alive) {
            (record.state, record.attributes) = (State::Failed, Box::default());
        }
        // Only now: the new life may well be where the old one was.
        before.inspect(|&addr| self.release(addr, out));
        if is_sign { Note::Joined } else { Note::Left }
    }

    fn on_departed(&mut self, now: Instant, slot: Slot, code: u8, counter: u64, out: &mut impl Out) -> Note {
        let before = self.part(now, slot, Why::Departed(code), out);
        before.inspect(|&addr| self.release(addr, out));
        let Some(record) = self.record_mut(slot) else { return Note::Old };
        (record.state, record.since) = (State::Departed(code), now);
        record.counter = record.counter.max(counter);
        Note::Left
    }

    fn on_grown(&mut self, now: Instant, slot: Slot, entry: &Entry<'_>, is_sign: bool, out: &mut impl Out) -> Note {
        let moved = self.card(slot).is_some_and(|c| c.addr != entry.addr || c.name.as_str() != entry.name);
        let card = if moved { card_of(entry) } else { None };
        if moved && card.is_none() {
            return Note::Malformed;
        }
        if let Some(card) = card {
            self.change(slot, &card, out);
        }
        let Some(record) = self.records.get_mut(slot.at()).and_then(Option::as_mut) else { return Note::Old };
        (record.counter, record.came_at, record.age) = (entry.counter, now, age_of(entry));
        record.version.minor = record.version.minor.max(entry.minor);
        match (record.state, is_sign) {
            (State::Alive, true) => record.since = now,
            (State::Alive, false) => {}
            (_, true) => {
                (record.state, record.since) = (State::Alive, now);
                record.attributes = entry.attributes.bytes().into();
                self.join(slot, out);
                return Note::Joined;
            }
            (_, false) => return Note::Old,
        }
        if *record.attributes != *entry.attributes.bytes() {
            tell(slot, view(&record.attributes), entry.attributes, out);
            record.attributes = entry.attributes.bytes().into();
        }
        Note::Grown
    }

    /// Finds who is silent for too long and forgets who left long ago.
    pub(super) fn sweep(&mut self, now: Instant, waits: Waits, out: &mut impl Out) {
        for slot in (0..self.records.len() as u32).map(Slot) {
            let Some(state) = self.record(slot).filter(|r| waits.due(r) <= now).map(|r| r.state) else { continue };
            match state {
                State::Alive => {
                    let before = self.part(now, slot, Why::Failed, out);
                    before.inspect(|&addr| self.release(addr, out));
                }
                State::Failed | State::Departed(_) => {
                    self.records[slot.at()] = None;
                    self.roster.remove(slot);
                }
            }
        }
    }

    /// When [`Table::sweep`] finds something next.
    pub(super) fn due_at(&self, waits: Waits) -> Instant {
        self.records.iter().flatten().map(|r| waits.due(r)).min().unwrap_or(Instant::NEVER)
    }

    /// We left: nobody is in the view.
    pub(super) fn close(&mut self) {
        self.records.clear();
        self.live.clear();
        self.places.clear();
        self.digest = 0;
    }

    /// Nothing is to be said to this address any more, unless somebody else is there or may be.
    pub(super) fn release(&self, addr: Addr, out: &mut impl Out) {
        if !self.is_place(addr) && !self.is_bootstrap(addr) {
            out.push(Output::Release { addr });
        }
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&self.me).add(&self.live).add(&self.bootstrap);
        for (slot, record) in (0..).map(Slot).zip(&self.records) {
            let Some(record) = record else { continue };
            print.add(&slot).add(&self.card(slot)).add(&record.version).add(&record.counter).add(&record.state);
            print.add(&record.attributes).add(&record.age).instant(record.since);
            print.instant(record.came_at);
        }
    }

    fn record(&self, slot: Slot) -> Option<&Record> {
        self.records.get(slot.at())?.as_ref()
    }

    fn record_mut(&mut self, slot: Slot) -> Option<&mut Record> {
        self.records.get_mut(slot.at())?.as_mut()
    }

    fn put(&mut self, slot: Slot, record: Record) {
        if self.records.len() <= slot.at() {
            self.records.resize(slot.at() + 1, None);
        }
        self.records[slot.at()] = Some(record);
    }

    /// The member is alive and comes into the view.
    fn join(&mut self, slot: Slot, out: &mut impl Out) {
        self.enter_view(slot);
        let Some(record) = self.record(slot) else { return };
        out.push(Output::Event(Event::Joined { member: slot, version: record.version }));
        tell(slot, Attributes::default(), view(&record.attributes), out);
    }

    fn enter_view(&mut self, slot: Slot) {
        if let Err(at) = self.live.binary_search(&slot) {
            self.live.insert(at, slot);
            self.digest ^= self.stamp(slot);
        }
        if let Some(card) = self.roster.card(slot) {
            self.places.insert(card.addr, slot);
        }
    }

    /// The member leaves the view, if it is there; says where it was.
    fn part(&mut self, now: Instant, slot: Slot, why: Why, out: &mut impl Out) -> Option<Addr> {
        let at = self.live.binary_search(&slot).ok()?;
        self.live.remove(at);
        self.digest ^= self.stamp(slot);
        let record = self.record_mut(slot)?;
        (record.state, record.since, record.attributes) = (State::Failed, now, Box::default());
        let version = record.version;
        out.push(Output::Event(Event::Left { member: slot, version, why }));
        let addr = self.card(slot)?.addr;
        self.vacate(slot, addr);
        Some(addr)
    }

    /// The member's name or address changed.
    fn change(&mut self, slot: Slot, card: &Card, out: &mut impl Out) {
        let Some(before) = self.card(slot).map(|c| c.addr) else { return };
        self.roster.change(slot, card);
        if before != card.addr && self.live.binary_search(&slot).is_ok() {
            self.places.insert(card.addr, slot);
            self.vacate(slot, before);
            self.release(before, out);
        }
    }

    fn vacate(&mut self, slot: Slot, addr: Addr) {
        if self.places.get(&addr) == Some(&slot) {
            self.places.remove(&addr);
        }
    }

    fn stamp(&self, slot: Slot) -> u64 {
        let identity = self.card(slot).and_then(|c| c.identity.0.first_chunk()).map_or(0, |c| u64::from_le_bytes(*c));
        rng::mix(identity ^ rng::mix(self.record(slot).map_or(0, |r| r.version.incarnation)))
    }
}

impl Record {
    fn new(now: Instant, entry: &Entry<'_>) -> Self {
        Self {
            version: Version { incarnation: entry.incarnation, minor: entry.minor },
            counter: entry.counter,
            state: entry.departed.map_or(State::Alive, State::Departed),
            since: now,
            came_at: now,
            age: age_of(entry),
            attributes: entry.departed.map_or(entry.attributes.bytes(), |_| &[]).into(),
        }
    }
}

fn age_of(entry: &Entry<'_>) -> Duration {
    Duration::from_millis(entry.age_ms.into())
}

fn card_of(entry: &Entry<'_>) -> Option<Card> {
    Some(Card { identity: entry.identity, addr: entry.addr, name: Name::new(entry.name).ok()? })
}

fn tell(member: Slot, old: Attributes<'_>, new: Attributes<'_>, out: &mut impl Out) {
    differences(old, new, |key, value| out.push(Output::Event(Event::Attribute { member, key, value })));
}
