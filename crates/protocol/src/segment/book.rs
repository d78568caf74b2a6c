//! Everybody a node knows of: whether it hears them itself, or whom it has them from (TG-4, TG-5).
//!
//! A member is in the view while somebody answers for it: it is **heard** in a level of ours, or **told** by somebody who is heard there, or it
//! waits for a while for somebody who does (an orphan: who answered for it is gone, as a leader that dies, and another will).
//!
//! **Nothing dead comes back.** Each member counts its heartbeats. Who is gone is remembered with its count for a while, and lives again only
//! with a higher one: what others still believe of it has none. Only who went with the one that answered for it, and may live behind it, is
//! taken back from another one as it was.

use super::super::baselines::attributes::{differences, view, with};
use crate::baselines::Start;
use crate::member::{Card, Event, Name, Origin, Out, Output, Roster, Slot, Version, Why};
use phalanx_core::{Addr, Code, Duration, Fingerprint, Identity, Instant, rng};
use phalanx_wire::baseline::{Attributes, Entry};
use phalanx_wire::segment::{Change, short};
use std::cmp::Ordering;
use std::collections::BTreeSet;

/// Who tells of a member.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Teller {
    /// In which of our levels.
    pub(super) level: u8,
    pub(super) by: Slot,
    /// The member is below it: it answers for it. Otherwise it passes on what others say.
    pub(super) own: bool,
    /// Whom it has it from, by its short name; 0 when it hears it itself.
    pub(super) via: u64,
}

/// A member, or one that was.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Record {
    version: Version,
    /// How often it has said something new of itself.
    minor: u32,
    counter: u64,
    state: State,
    attributes: Box<[u8]>,
    /// Levels in which it is heard, a bit for each.
    heard: u8,
    told: Option<Teller>,
    /// The level that its last teller was in; when nobody answers for it: until when it stays.
    level: u8,
    until: Instant,
    /// What it adds to the digest of the view.
    stamp: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum State {
    Alive,
    /// Who answered for it is dead; it may be, too.
    Lost,
    Failed,
    Departed(u8),
}

/// A change of the view, for those whom it is news to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct News {
    pub(super) member: Slot,
    /// The lowest of our levels in which we have it from somebody.
    pub(super) level: u8,
}

/// What somebody's word changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Note {
    /// Nothing.
    Old,
    /// The member is in the view, or other than it was.
    News(Slot),
    /// It speaks of a later life of ours.
    Ghost,
    /// There is no room.
    Crowded,
    /// No member is called so.
    Malformed,
}

/// Everybody.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Book {
    roster: Roster,
    me: Slot,
    records: Vec<Option<Record>>,
    live: BTreeSet<Slot>,
    /// Who is remembered and does not live, as packets name them.
    gone: BTreeSet<u64>,
    digest: u64,
    /// When somebody is to be looked at: orphans, and who was gone long enough.
    pub(super) look_at: Instant,
    /// When the view last changed.
    pub(super) changed_at: Instant,
    news: Vec<News>,
}

/// No level: we ourselves, below all of them.
const SELF: u8 = 0;

impl Book {
    /// We alone, with room for `bound` members.
    ///
    /// # Panics
    /// When there is no room for ourselves, or our address is a group's.
    pub(super) fn new(start: Start, bound: usize) -> Self {
        let Start { card, incarnation, shared, .. } = start;
        assert!(!matches!(card.addr, Addr::Group(_)), "a group is nobody's address");
        let mut roster = Roster::new(shared, bound);
        let me = roster.enter(&card, incarnation).expect("room for ourselves");
        let (live, gone, records) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        let (look_at, changed_at, news) = (Instant::NEVER, Instant::ZERO, Vec::new());
        let mut book = Self { roster, me, records, live, gone, digest: 0, look_at, changed_at, news };
        let version = Version::first(incarnation);
        book.put(me, Record { heard: 1, ..Record::new(version, 0, &[]) });
        book.live.insert(me);
        book.restamp(me);
        book
    }

    pub(super) fn me(&self) -> Slot {
        self.me
    }

    pub(super) fn version(&self, member: Slot) -> Option<Version> {
        self.living(member).map(|r| r.version)
    }

    pub(super) fn card(&self, member: Slot) -> Option<&Card> {
        self.roster.card(member)
    }

    pub(super) fn identity(&self, member: Slot) -> Option<Identity> {
        self.card(member).map(|c| c.identity)
    }

    /// How packets name a member.
    fn short(&self, member: Slot) -> u64 {
        self.identity(member).map_or(0, |i| short(&i))
    }

    /// Whether one that packets name so was a member, and is not now.
    pub(super) fn is_gone(&self, name: u64) -> bool {
        self.gone.contains(&name)
    }

    pub(super) fn find(&self, identity: &Identity) -> Option<Slot> {
        self.roster.find(identity)
    }

    pub(super) fn members(&self) -> impl Iterator<Item = (Slot, Version)> {
        self.live.iter().filter_map(|&slot| Some((slot, self.version(slot)?)))
    }

    pub(super) fn len(&self) -> usize {
        self.live.len()
    }

    pub(super) fn digest(&self) -> u64 {
        self.digest
    }

    pub(super) fn attributes(&self, member: Slot) -> Attributes<'_> {
        self.record(member).map(|r| view(&r.attributes)).unwrap_or_default()
    }

    /// Writes one of our own attributes.
    pub(super) fn set(&mut self, key: &str, value: Option<&[u8]>) -> Result<(), Code> {
        let record = self.record_mut(self.me).ok_or(Code::NotInitialized)?;
        let attributes = with(&record.attributes, key, value)?;
        if attributes != record.attributes {
            record.attributes = attributes;
            record.minor = record.minor.saturating_add(1);
            self.restamp(self.me);
        }
        Ok(())
    }

    /// Our own counter grows.
    pub(super) fn beat(&mut self) -> u64 {
        self.record_mut(self.me).map_or(0, |r| {
            r.counter += 1;
            r.counter
        })
    }

    /// What changed since this was last asked.
    pub(super) fn news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// A member is to be told of though nothing changed: somebody does not know it.
    pub(super) fn entry(&self, member: Slot) -> Option<Entry<'_>> {
        let (record, card) = (self.record(member)?, self.card(member)?);
        Some(Entry {
            identity: card.identity,
            addr: card.addr,
            name: card.name.as_str(),
            incarnation: record.version.incarnation,
            minor: record.minor,
            counter: record.counter,
            age_ms: 0,
            departed: match record.state {
                State::Departed(code) => Some(code),
                State::Alive | State::Lost | State::Failed => None,
            },
            attributes: view(&record.attributes),
        })
    }

    /// What is said of a member in one of our levels.
    pub(super) fn change(&self, news: News, level: u8, is_vouched: bool) -> Option<Change<'_>> {
        let (record, entry) = (self.record(news.member)?, self.entry(news.member)?);
        let own = news.level < level || news.member == self.me || is_vouched;
        if record.state == State::Alive {
            let by = record.told.filter(|_| record.heard == 0).and_then(|t| self.identity(t.by));
            return Some(Change::Alive { own, entry, by: by.map_or(0, |by| short(&by)) });
        }
        let Entry { identity, incarnation, counter, departed, .. } = entry;
        let lost = record.state == State::Lost;
        Some(Change::Gone { own, identity, incarnation, counter, departed, lost })
    }

    /// The lowest of our levels in which we have a member from somebody.
    pub(super) fn level(&self, member: Slot) -> Option<u8> {
        self.living(member).map(Record::lowest).map(|lowest| if member == self.me { SELF } else { lowest })
    }

    /// Somebody answers for it.
    pub(super) fn is_answered(&self, member: Slot) -> bool {
        self.living(member).is_some_and(|r| r.heard != 0 || r.told.is_some())
    }

    /// TG-4: in which part of the directory it is, the local one or that of others.
    pub(super) fn origin(&self, member: Slot) -> Option<Origin> {
        let record = self.living(member)?;
        Some(if record.heard != 0 { Origin::Heard } else { Origin::Told(record.told.map(|t| t.by)) })
    }

    /// Who tells of it, when we do not hear it ourselves.
    pub(super) fn teller(&self, member: Slot) -> Option<Teller> {
        self.living(member).filter(|r| r.heard == 0)?.told
    }

    /// All whom one tells of in a level.
    pub(super) fn told_by(&self, level: u8, by: Slot) -> Vec<Slot> {
        let is_told = |r: &Record| r.told.is_some_and(|t| t.level == level && t.by == by);
        self.live.iter().copied().filter(|&slot| self.record(slot).is_some_and(is_told)).collect()
    }

    pub(super) fn is_heard(&self, member: Slot, level: u8) -> bool {
        self.living(member).is_some_and(|r| r.heard & bit(level) != 0)
    }

    pub(super) fn counter(&self, member: Slot) -> u64 {
        self.record(member).map_or(0, |r| r.counter)
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&self.me).add(&self.live).add(&self.gone).add(&self.digest);
        for (slot, record) in (0..).map(Slot).zip(&self.records) {
            let Some(record) = record else { continue };
            print
                .add(&slot)
                .add(&self.card(slot))
                .add(&record.version)
                .add(&(record.minor, record.counter))
                .add(&record.state);
            print.add(&(record.heard, record.told, record.level)).add(&record.attributes);
            print.instant(record.until);
        }
    }
}

/// Hearing.
impl Book {
    /// A heartbeat came in one of our levels, with all of its sender.
    pub(super) fn hear(&mut self, now: Instant, level: u8, entry: &Entry<'_>, out: &mut impl Out) -> Note {
        self.alive(now, entry, Answer::Heard(level), out)
    }

    /// A heartbeat came that says only how often; `None` when we do not know who that is, otherwise whether it is news.
    pub(super) fn hear_beat(&mut self, member: Slot, level: u8, counter: u64) -> Option<bool> {
        let record = self.record_mut(member).filter(|r| r.state == State::Alive && r.heard & bit(level) != 0)?;
        let is_news = counter > record.counter;
        record.counter = record.counter.max(counter);
        // Heard in another level before: each beat goes to all.
        Some(is_news || counter == record.counter)
    }

    /// It is not heard in this level any more. `until`: somebody else will answer for it, or it is gone then.
    pub(super) fn unhear(&mut self, now: Instant, member: Slot, level: u8, until: Option<Instant>, out: &mut impl Out) {
        let Some(record) = self.record_mut(member).filter(|r| r.state == State::Alive) else { return };
        record.heard &= !bit(level);
        // Others who are as far from it may answer for it because we did.
        record.told = record.told.filter(|t| t.level < level);
        if record.heard != 0 || record.told.is_some() {
            return;
        }
        match until {
            Some(until) => {
                record.level = level;
                self.orphan(member, until);
            }
            None => self.part(now, member, Why::Failed, level, out),
        }
    }

    /// Nobody is heard in this level any more.
    pub(super) fn unhear_all(&mut self, now: Instant, level: u8, until: Instant, out: &mut impl Out) {
        let is_there = |r: &Record| r.heard & bit(level) != 0 || r.told.is_some_and(|t| t.level == level);
        let all: Vec<Slot> = self.live.iter().copied().filter(|&s| s != self.me).collect();
        for slot in all {
            if !self.record(slot).is_some_and(is_there) {
                continue;
            }
            if let Some(record) = self.record_mut(slot)
                && record.told.is_some_and(|t| t.level == level)
            {
                (record.told, record.level) = (None, level);
            }
            self.unhear(now, slot, level, Some(until), out);
        }
    }

    /// Nobody tells of these any more, whom one told of in a level. Those who were below it are gone with it, as behind a dead switch; others wait
    /// until somebody else tells of them.
    pub(super) fn untell(
        &mut self,
        now: Instant,
        level: u8,
        by: Slot,
        until: Instant,
        is_dead: bool,
        out: &mut impl Out,
    ) {
        for slot in self.told_by(level, by) {
            let Some(record) = self.record_mut(slot) else { continue };
            let was = record.told.take();
            record.level = level;
            if record.heard != 0 {
                continue;
            }
            if is_dead && was.is_some_and(|t| t.own) {
                self.part(now, slot, Why::Failed, level, out);
                if let Some(record) = self.record_mut(slot) {
                    record.state = State::Lost;
                }
            } else {
                self.orphan(slot, until);
            }
        }
    }

    /// Nobody but ourselves answers for it.
    pub(super) fn untell_one(&mut self, member: Slot) {
        if let Some(record) = self.record_mut(member).filter(|r| r.heard != 0) {
            record.told = None;
        }
    }

    /// What somebody told for whom it does not answer is not its to tell any more.
    pub(super) fn untell_relayed(&mut self, level: u8, by: Slot, until: Instant) {
        for slot in self.told_by(level, by) {
            let Some(record) = self.record_mut(slot).filter(|r| r.told.is_some_and(|t| !t.own)) else { continue };
            (record.told, record.level) = (None, level);
            if record.heard == 0 {
                self.orphan(slot, until);
            }
        }
    }

    /// Whether somebody waits for one who answers for it, and its time is over by then, which follows from the level that we had it from.
    pub(super) fn has_orphans(&self, by: impl Fn(u8) -> Instant) -> bool {
        let is_orphan = |r: &Record| r.heard == 0 && r.told.is_none() && r.until <= by(r.level);
        self.look_at != Instant::NEVER && self.live.iter().any(|&slot| self.record(slot).is_some_and(is_orphan))
    }

    fn orphan(&mut self, member: Slot, until: Instant) {
        self.look_at = self.look_at.min(until);
        if let Some(record) = self.record_mut(member) {
            record.told = None;
            record.until = until;
        }
    }

    /// A member says that it leaves.
    pub(super) fn depart(&mut self, now: Instant, member: Slot, code: u8, counter: u64, out: &mut impl Out) {
        let Some(level) = self.level(member).filter(|_| member != self.me) else { return };
        if let Some(record) = self.record_mut(member) {
            record.counter = record.counter.max(counter);
        }
        self.part(now, member, Why::Departed(code), level, out);
    }

    /// Finds orphans whose time is over, and forgets who was gone long enough.
    pub(super) fn look(&mut self, now: Instant, keep: Duration, out: &mut impl Out) {
        let mut next = Instant::NEVER;
        for slot in (0..self.records.len() as u32).map(Slot) {
            let Some(record) = self.record(slot).filter(|r| r.until != Instant::NEVER) else { continue };
            if record.until > now {
                next = next.min(record.until);
                continue;
            }
            if record.state == State::Alive {
                let level = record.level;
                self.part(now, slot, Why::Failed, level, out);
                next = next.min(now + keep);
            } else {
                self.gone.remove(&self.short(slot));
                self.records[slot.at()] = None;
                self.roster.remove(slot);
            }
        }
        self.look_at = next;
    }

    /// Who has gone is remembered until then.
    pub(super) fn keep(&mut self, now: Instant, keep: Duration) {
        for news in &self.news {
            let Some(record) = self.records.get_mut(news.member.at()).and_then(Option::as_mut) else { continue };
            if record.state != State::Alive && record.until == Instant::NEVER {
                record.until = now + keep;
                self.look_at = self.look_at.min(record.until);
            }
        }
    }

    /// We left: nobody is in the view.
    pub(super) fn close(&mut self) {
        self.records.clear();
        (self.live, self.gone) = (BTreeSet::new(), BTreeSet::new());
        self.news.clear();
        (self.digest, self.look_at) = (0, Instant::NEVER);
    }
}

/// Who answers for a member.
#[derive(Clone, Copy)]
enum Answer {
    Heard(u8),
    Told(Teller),
}

/// Being told.
impl Book {
    /// Somebody says that a member lives.
    pub(super) fn tell(&mut self, now: Instant, teller: Teller, entry: &Entry<'_>, out: &mut impl Out) -> Note {
        self.alive(now, entry, Answer::Told(teller), out)
    }

    fn alive(&mut self, now: Instant, entry: &Entry<'_>, answer: Answer, out: &mut impl Out) -> Note {
        let known = self.roster.find(&entry.identity).and_then(|slot| Some((slot, self.record(slot)?)));
        let Some((slot, record)) = known else { return self.enter(now, entry, answer, out) };
        let age = entry.incarnation.cmp(&record.version.incarnation);
        if slot == self.me {
            return if age == Ordering::Greater { Note::Ghost } else { Note::Old };
        }
        // What it said of itself later has come already, and went with it.
        if age == Ordering::Equal && entry.minor < record.minor && record.state != State::Alive {
            return Note::Old;
        }
        let (is_newer, is_as_new) = (entry.counter > record.counter, entry.counter >= record.counter);
        match (age, record.state) {
            (Ordering::Less, _) | (Ordering::Equal, State::Departed(_)) => Note::Old,
            (Ordering::Greater, State::Alive) => {
                let level = record.lowest();
                self.part(now, slot, Why::Replaced, level, out);
                self.news.pop();
                self.enter(now, entry, answer, out)
            }
            (Ordering::Greater, _) => self.enter(now, entry, answer, out),
            (Ordering::Equal, State::Lost) if is_as_new => self.enter(now, entry, answer, out),
            (Ordering::Equal, State::Failed) if is_newer => self.enter(now, entry, answer, out),
            (Ordering::Equal, State::Lost | State::Failed) => Note::Old,
            (Ordering::Equal, State::Alive) => {
                let was_orphan = !self.is_answered(slot);
                self.answer(slot, answer, is_as_new);
                let note = self.renew(now, slot, entry, out);
                // Those who have it from us, and have been without it, hear of it.
                if was_orphan && note == Note::Old && self.is_answered(slot) {
                    self.note(slot);
                }
                note
            }
        }
    }

    /// Somebody answers for a member that is there.
    fn answer(&mut self, slot: Slot, answer: Answer, is_as_new: bool) {
        let by = self.record(slot).and_then(|r| r.told).map_or(0, |t| self.short(t.by));
        let name = if let Answer::Told(teller) = answer { self.short(teller.by) } else { 0 };
        let Some(record) = self.record_mut(slot) else { return };
        match answer {
            Answer::Heard(level) => {
                record.heard |= bit(level);
                record.until = Instant::NEVER;
            }
            Answer::Told(teller) => {
                let is_better = match record.told {
                    // We know better, unless it is nearer to that one.
                    _ if record.heard != 0 && !(teller.own && record.heard.trailing_zeros() > teller.level.into()) => {
                        false
                    }
                    None => true,
                    Some(told) if (told.level, told.by) == (teller.level, teller.by) => true,
                    // It says so in several levels, and stays longest in the lowest.
                    Some(told) if told.own && teller.own && told.by == teller.by => teller.level < told.level,
                    // It has it from whom we have it from, who will say more of it; or the other way round.
                    Some(told) if told.own && teller.via == by => false,
                    Some(told) if teller.own && told.via == name => true,
                    Some(told) => teller.own && (!told.own || is_as_new),
                };
                if is_better {
                    record.told = Some(teller);
                    record.until = Instant::NEVER;
                }
            }
        }
    }

    fn enter(&mut self, now: Instant, entry: &Entry<'_>, answer: Answer, out: &mut impl Out) -> Note {
        let Ok(name) = Name::new(entry.name) else { return Note::Malformed };
        let card = Card { identity: entry.identity, addr: entry.addr, name };
        let Some(slot) = self.roster.enter(&card, entry.incarnation) else { return Note::Crowded };
        self.roster.change(slot, &card);
        let version = Version::first(entry.incarnation);
        let record = Record::new(version, entry.counter, entry.attributes.bytes());
        self.put(slot, Record { minor: entry.minor, ..record });
        self.answer(slot, answer, true);
        self.live.insert(slot);
        self.gone.remove(&short(&entry.identity));
        self.restamp(slot);
        self.changed_at = now;
        out.push(Output::Event(Event::Joined { member: slot, version }));
        tell(slot, Attributes::default(), entry.attributes, out);
        self.note(slot);
        Note::News(slot)
    }

    /// A later word of a member that is there.
    fn renew(&mut self, now: Instant, slot: Slot, entry: &Entry<'_>, out: &mut impl Out) -> Note {
        let Some(record) = self.record_mut(slot) else { return Note::Old };
        record.counter = record.counter.max(entry.counter);
        // Who says how often it was heard need not know what it said last.
        if entry.minor <= record.minor {
            return Note::Old;
        }
        let is_moved = self.card(slot).is_some_and(|c| c.addr != entry.addr || c.name.as_str() != entry.name);
        if is_moved {
            let Ok(name) = Name::new(entry.name) else { return Note::Malformed };
            let before = self.card(slot).map(|c| c.addr);
            self.roster.change(slot, &Card { identity: entry.identity, addr: entry.addr, name });
            before.filter(|&addr| addr != entry.addr).into_iter().for_each(|addr| out.push(Output::Release { addr }));
        }
        let Some(record) = self.records.get_mut(slot.at()).and_then(Option::as_mut) else { return Note::Old };
        record.minor = entry.minor;
        tell(slot, view(&record.attributes), entry.attributes, out);
        record.attributes = entry.attributes.bytes().into();
        self.restamp(slot);
        self.changed_at = now;
        self.note(slot);
        Note::News(slot)
    }

    /// Somebody says that a member is gone; whether that was believed.
    pub(super) fn tell_gone(&mut self, now: Instant, teller: Teller, gone: &Gone, out: &mut impl Out) -> bool {
        let Some(slot) = self.roster.find(&gone.identity).filter(|&slot| slot != self.me) else { return false };
        let name = self.short(teller.by);
        let Some(record) = self.record_mut(slot) else { return false };
        let is_ours = record.told.is_some_and(|t| (t.level, t.by) == (teller.level, teller.by));
        let is_later = gone.counter >= record.counter;
        if gone.incarnation < record.version.incarnation || record.state != State::Alive {
            return false;
        }
        // Nobody answers for it there, and it may live: we hear that it does.
        if gone.lost && record.heard != 0 && gone.incarnation == record.version.incarnation {
            return false;
        }
        // Somebody who is heard answers for it, and does not say so.
        let is_denied = record.heard == 0 && record.told.is_some_and(|t| t.own && t.by != teller.by && t.via != name);
        let is_sure =
            teller.own && !is_denied || gone.departed.is_some() || gone.incarnation > record.version.incarnation;
        if !(is_ours && record.heard == 0 || is_sure && is_later) {
            return false;
        }
        record.counter = record.counter.max(gone.counter);
        let why = gone.departed.map_or(Why::Failed, Why::Departed);
        let level = record.lowest().min(teller.level);
        self.part(now, slot, why, level, out);
        if let Some(record) = self.record_mut(slot).filter(|_| gone.lost && gone.departed.is_none()) {
            record.state = State::Lost;
        }
        true
    }

    /// The member leaves the view.
    fn part(&mut self, now: Instant, slot: Slot, why: Why, level: u8, out: &mut impl Out) {
        if !self.live.remove(&slot) {
            return;
        }
        self.changed_at = now;
        self.gone.insert(self.short(slot));
        let Some(record) = self.records.get_mut(slot.at()).and_then(Option::as_mut) else { return };
        self.digest ^= std::mem::take(&mut record.stamp);
        record.state = if let Why::Departed(code) = why { State::Departed(code) } else { State::Failed };
        (record.heard, record.told, record.attributes) = (0, None, Box::default());
        record.until = Instant::NEVER;
        let version = record.version;
        self.news.push(News { member: slot, level });
        out.push(Output::Event(Event::Left { member: slot, version, why }));
        if let Some(card) = self.card(slot) {
            out.push(Output::Release { addr: card.addr });
        }
    }

    fn note(&mut self, slot: Slot) {
        if let Some(level) = self.level(slot) {
            self.news.push(News { member: slot, level });
        }
    }
}

/// What somebody says of one who is gone.
pub(super) struct Gone {
    pub(super) identity: Identity,
    pub(super) incarnation: u64,
    pub(super) counter: u64,
    pub(super) departed: Option<u8>,
    /// It may live: who answered for it does not.
    pub(super) lost: bool,
}

impl Book {
    fn record(&self, slot: Slot) -> Option<&Record> {
        self.records.get(slot.at())?.as_ref()
    }

    fn living(&self, slot: Slot) -> Option<&Record> {
        self.record(slot).filter(|r| r.state == State::Alive)
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

    /// What the member is has changed.
    fn restamp(&mut self, slot: Slot) {
        let Some(entry) = self.entry(slot) else { return };
        let mut stamp = rng::mix(short(&entry.identity) ^ rng::mix(entry.incarnation));
        for &byte in entry.name.as_bytes().iter().chain(entry.attributes.bytes()) {
            stamp = rng::mix(stamp ^ u64::from(byte));
        }
        let Some(record) = self.records.get_mut(slot.at()).and_then(Option::as_mut) else { return };
        self.digest ^= std::mem::replace(&mut record.stamp, stamp) ^ stamp;
    }
}

impl Record {
    fn new(version: Version, counter: u64, attributes: &[u8]) -> Self {
        let (heard, told, level, until) = (0, None, 0, Instant::NEVER);
        let (state, attributes) = (State::Alive, attributes.into());
        Self { version, minor: 0, counter, state, attributes, heard, told, level, until, stamp: 0 }
    }

    fn lowest(&self) -> u8 {
        let heard = if self.heard == 0 { u8::MAX } else { self.heard.trailing_zeros() as u8 };
        let told = self.told.map_or(u8::MAX, |t| t.level);
        if heard == u8::MAX && told == u8::MAX { self.level } else { heard.min(told) }
    }
}

fn bit(level: u8) -> u8 {
    1u8.checked_shl(level.into()).unwrap_or(0)
}

fn tell(member: Slot, old: Attributes<'_>, new: Attributes<'_>, out: &mut impl Out) {
    differences(old, new, |key, value| out.push(Output::Event(Event::Attribute { member, key, value })));
}
