//! The agent of a node: says what happens here until the group has it, and carries out what most of the group said alike.
//!
//! CM-1, CM-2, CM-3. A word is carried out when two of three replicas signed for the same bytes in the same place behind the word before
//! it; once, in the order of decisions. What was carried out before is refused and counted, whoever says it.
//!
//! Words go out before the disk knows of them, and are acknowledged after: one that was carried out just before a crash comes again, and
//! whoever carries it out knows it by its attempt and life.

use super::gather::{self, Gather};
use super::group::{Digest, Group};
use super::wire::{Ballot, Id, Look, Packet, Said, Telling, Word};
use super::words::{JobId, Key, Report, decode};
use phalanx_core::{Duration, Instant};
use std::collections::{BTreeMap, VecDeque};

/// Words of which not enough voices came yet; past it the latest is dropped, it will be said again.
pub const EARLY_MAX: usize = 512;
/// What may wait to be heard by the group; past it questions are refused, and the oldest reports stay.
pub const SAID_MAX: usize = 4096;
/// What is said at once of what waits.
pub const WINDOW: usize = 64;
/// Questions about what is to be seen.
pub const LOOKS_MAX: usize = 256;
/// Heartbeats of which the time is remembered.
const BEATS: usize = 16;
/// What was not acknowledged is said again.
pub const AGAIN: Duration = Duration::from_millis(500);
/// A heartbeat that a replica answers lets ranks live for so long.
pub const LEASE: Duration = Duration::from_secs(10);
/// Jobs of which it is remembered by way of whom the last word about them came.
const ERRANDS_MAX: usize = 256;
/// A voice that stays alone for so long is shown to the others.
const ALONE: Duration = Duration::from_secs(3);
/// The lease is told at most so often.
const LEASE_TOLD: Duration = Duration::from_secs(1);

/// What waits for enough voices.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Tally {
    ballots: Vec<Ballot>,
    bodies: BTreeMap<Digest, Vec<u8>>,
    came_at: Instant,
    differs_told: bool,
}

impl Tally {
    fn new(came_at: Instant) -> Self {
        Self { ballots: Vec::new(), bodies: BTreeMap::new(), came_at, differs_told: false }
    }
}

/// What the group has not acknowledged.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Stream {
    /// The number of the first that waits.
    first: u64,
    waiting: VecDeque<Said>,
    /// Said for the first time up to here.
    told: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Looking {
    what: Look,
    asked_at: Instant,
    asked: usize,
}

/// A replica, as an agent sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ear {
    /// It granted the heartbeat that left then.
    granted_at: Option<Instant>,
    /// It heard this much.
    noted: (u64, u64),
}

/// What follows for the steward.
#[derive(Clone, PartialEq, Eq, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "these lists live for one call; a box would cost each packet an allocation"
)]
pub enum Act {
    /// Say this to that one.
    Send(Key, Packet),
    /// Sign this report, and let it go up the way by which the word of that decision came.
    Tell {
        /// Which decision.
        id: Id,
        /// Its number.
        number: u64,
        /// The report.
        report: Report,
    },
    /// Carry out, or answer.
    Word(Word),
    /// What somebody wanted to see.
    Shown(u64, Vec<u8>),
    /// Ranks here may live for so long.
    Lease(Duration),
}

/// What an agent has refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Refused {
    /// Words that were carried out before.
    pub replayed: u64,
    /// Voices that came twice.
    pub duplicates: u64,
    /// Voices of nobody in the group, or badly signed.
    pub unproved: u64,
    /// Decisions about which replicas do not say the same.
    pub differing: u64,
    /// Dropped because too much waited.
    pub early: u64,
}

/// The agent's side.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Agent {
    me: Key,
    incarnation: u64,
    /// Handed on up to here.
    handed: Id,
    /// The same, on disk.
    done: Id,
    tallies: BTreeMap<Id, Tally>,
    asks: Stream,
    reports: Stream,
    said_at: Instant,
    looks: BTreeMap<u64, Looking>,
    next_look: u64,
    ears: BTreeMap<Key, Ear>,
    beat: u64,
    beats: VecDeque<(u64, Instant)>,
    beat_at: Instant,
    leased_at: Option<Instant>,
    /// How often it sends heartbeats.
    every: Duration,
    /// The last word about a job that came by way of others.
    errands: BTreeMap<JobId, Id>,
    gather: Gather,
    /// The last word that was told to many: nobody waits for more than a heartbeat to say that it was carried out.
    with_others: Id,
    /// Counted for FI-5.
    pub refused: Refused,
    /// What was said again.
    pub said_again: u64,
    /// Tests alone: one voice is enough for it.
    #[cfg(any(test, feature = "harm"))]
    pub gullible: bool,
}

impl Agent {
    /// An agent that has carried out all up to `done`.
    #[must_use]
    pub fn new(me: Key, incarnation: u64, done: Id, now: Instant) -> Self {
        let stream = || Stream { first: 1, told: 0, ..Stream::default() };
        Self {
            me,
            incarnation,
            handed: done,
            done,
            tallies: BTreeMap::new(),
            asks: stream(),
            reports: stream(),
            said_at: Instant::NEVER,
            looks: BTreeMap::new(),
            next_look: 1,
            ears: BTreeMap::new(),
            beat: 0,
            beats: VecDeque::new(),
            beat_at: now,
            leased_at: None,
            every: Duration::from_secs(1),
            errands: BTreeMap::new(),
            gather: Gather::default(),
            with_others: Id::default(),
            refused: Refused::default(),
            said_again: 0,
            #[cfg(any(test, feature = "harm"))]
            gullible: false,
        }
    }

    /// Handed on up to here.
    #[must_use]
    pub fn handed(&self) -> Id {
        self.handed
    }

    /// When it wants to act.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        let look = self.looks.values().map(|l| l.asked_at + AGAIN).min().unwrap_or(Instant::NEVER);
        self.beat_at.min(self.said_at).min(look).min(self.gather.deadline())
    }

    /// Somebody here has something to say. Its number among those of its kind, or nothing when too much waits.
    pub fn say(&mut self, now: Instant, said: Said, group: Option<&Group>, acts: &mut Vec<Act>) -> Option<u64> {
        let stream = if matches!(said, Said::Ask(_)) { &mut self.asks } else { &mut self.reports };
        if stream.waiting.len() >= SAID_MAX {
            return None;
        }
        let number = stream.first + stream.waiting.len() as u64;
        stream.waiting.push_back(said);
        self.tell_new(now, group, true, acts);
        Some(number)
    }

    /// Says what was not said yet; what many have to say of one word may go up with what others say.
    fn tell_new(&mut self, now: Instant, group: Option<&Group>, together: bool, acts: &mut Vec<Act>) {
        let incarnation = self.incarnation;
        let mut patience = AGAIN;
        for stream in [&mut self.asks, &mut self.reports] {
            let Some(group) = group else { break };
            let window = stream.first + WINDOW as u64;
            for (number, said) in (stream.first..window).zip(&stream.waiting) {
                if number <= stream.told {
                    continue;
                }
                stream.told = number;
                if let Said::Report(report) = said
                    && let Some(id) = report.routine().and_then(|job| self.errands.get(&job)).filter(|_| together)
                {
                    acts.push(Act::Tell { id: *id, number, report: report.clone() });
                    patience = self.every + AGAIN;
                    continue;
                }
                let packet = Packet::Told { incarnation, number, said: said.clone() };
                acts.extend(group.keys().map(|key| Act::Send(key, packet.clone())));
            }
        }
        if self.said_at == Instant::NEVER && !(self.asks.waiting.is_empty() && self.reports.waiting.is_empty()) {
            self.said_at = now + patience;
        }
    }

    /// A report was signed: it goes up with others.
    pub fn tell(&mut self, now: Instant, id: Id, told: &Telling, group: &Group, acts: &mut Vec<Act>) {
        let mut sends = Vec::new();
        for replica in group.keys() {
            self.gather.say(now, (id, replica), vec![told.clone()], &mut sends);
        }
        send_all(sends, acts);
    }

    /// Others below have something to say to a replica.
    pub fn on_gathered(&mut self, now: Instant, which: (Id, Key), told: Vec<Telling>, acts: &mut Vec<Act>) {
        let mut sends = Vec::new();
        self.gather.pass_on(now, which, told, &mut sends);
        send_all(sends, acts);
    }

    /// A replica's word came by way of `parent`, for so many. True when it is to be handed on.
    pub fn on_sheaf(&mut self, which: (Id, Key), parent: Key, count: usize, acts: &mut Vec<Act>) -> bool {
        let mut sends = Vec::new();
        let is_new = self.gather.on_word(which, parent, count, &mut sends);
        send_all(sends, acts);
        is_new
    }

    /// Somebody here wants to see something.
    pub fn look(&mut self, now: Instant, what: Look, group: Option<&Group>, acts: &mut Vec<Act>) -> u64 {
        let number = self.next_look;
        self.next_look += 1;
        if self.looks.len() >= LOOKS_MAX {
            self.looks.pop_first();
        }
        let mut looking = Looking { what, asked_at: now, asked: (number as usize) % 3 };
        ask_to_look(number, &mut looking, now, group, acts);
        self.looks.insert(number, looking);
        number
    }

    /// There is another group, or one at all.
    pub fn on_group(&mut self, now: Instant, group: &Group, acts: &mut Vec<Act>) {
        self.ears.retain(|key, _| group.member(*key).is_some());
        // Who is new has heard nothing.
        (self.asks.told, self.reports.told) = (0, 0);
        self.tallies.values_mut().for_each(|t| t.ballots.retain(|b| group.member(b.by).is_some()));
        self.beat_at = now;
        self.tell_new(now, Some(group), false, acts);
    }

    /// Time has passed.
    pub fn expire(&mut self, now: Instant, group: Option<&Group>, every: Duration, acts: &mut Vec<Act>) {
        self.every = every;
        if now >= self.gather.deadline() {
            let mut sends = Vec::new();
            self.gather.expire(now, &mut sends);
            send_all(sends, acts);
        }
        if now >= self.beat_at {
            self.beat_at = now + every;
            if let Some(group) = group {
                self.beat += 1;
                if self.beats.len() == BEATS {
                    self.beats.pop_front();
                }
                self.beats.push_back((self.beat, now));
                let alive = self.alive(group.epoch);
                acts.extend(group.keys().map(|key| Act::Send(key, alive.clone())));
                self.show_lonely(now, group, acts);
            }
        }
        if now >= self.said_at {
            self.said_at = Instant::NEVER;
            for stream in [&mut self.asks, &mut self.reports] {
                self.said_again += (stream.told + 1).saturating_sub(stream.first);
                stream.told = 0;
            }
            self.tell_new(now, group, false, acts);
        }
        for (&number, looking) in self.looks.iter_mut().filter(|(_, l)| now >= l.asked_at + AGAIN) {
            ask_to_look(number, looking, now, group, acts);
        }
    }

    /// A word to replicas that the agent is here.
    #[must_use]
    pub fn alive(&self, epoch: u32) -> Packet {
        Packet::Alive { incarnation: self.incarnation, epoch, beat: self.beat, done: self.done }
    }

    /// A replica answered a heartbeat.
    pub fn on_heard(
        &mut self,
        now: Instant,
        from: Key,
        (beat, granted): (u64, bool),
        (incarnation, noted): (u64, (u64, u64)),
        group: &Group,
        acts: &mut Vec<Act>,
    ) {
        if group.member(from).is_none() {
            return;
        }
        let left = self.beats.iter().find(|b| b.0 == beat).map(|b| b.1);
        let ear = self.ears.entry(from).or_insert(Ear { granted_at: None, noted: (0, 0) });
        if granted {
            ear.granted_at = ear.granted_at.max(left);
        }
        if incarnation == self.incarnation {
            ear.noted = (ear.noted.0.max(noted.0), ear.noted.1.max(noted.1));
        }
        self.lease(now, group, acts);
        self.forget_heard(now, group, acts);
    }

    /// Ranks may live as long as most of the group grants.
    fn lease(&mut self, now: Instant, group: &Group, acts: &mut Vec<Act>) {
        let granted = |key| self.ears.get(&key).and_then(|e| e.granted_at);
        let Some(from) = most(group, granted).flatten() else { return };
        let until = from + LEASE;
        let is_due = self.leased_at.is_none_or(|at| now >= at + LEASE_TOLD);
        if until > now && is_due {
            self.leased_at = Some(now);
            acts.push(Act::Lease(until.since(now)));
        }
    }

    fn forget_heard(&mut self, now: Instant, group: &Group, acts: &mut Vec<Act>) {
        let noted = |key| self.ears.get(&key).map_or((0, 0), |e| e.noted);
        let asks = most(group, |key| noted(key).0).unwrap_or(0);
        let reports = most(group, |key| noted(key).1).unwrap_or(0);
        for (stream, upto) in [(&mut self.asks, asks), (&mut self.reports, reports)] {
            while stream.first <= upto && stream.waiting.pop_front().is_some() {
                stream.first += 1;
            }
        }
        if self.asks.waiting.is_empty() && self.reports.waiting.is_empty() {
            self.said_at = Instant::NEVER;
        }
        self.tell_new(now, Some(group), true, acts);
    }

    /// A replica's voice for a word; its signature was checked. What is to be carried out now goes to `acts`.
    pub fn on_vote(&mut self, now: Instant, ballot: Ballot, body: Option<Vec<u8>>, group: &Group, acts: &mut Vec<Act>) {
        let id = ballot.vote.id;
        if id <= self.handed {
            self.refused.replayed += 1;
            // It may not know.
            if id <= self.done && ballot.path.is_direct() {
                acts.push(Act::Send(ballot.by, self.alive(group.epoch)));
            }
            return;
        }
        if !self.tallies.contains_key(&id) && self.tallies.len() >= EARLY_MAX {
            self.refused.early += 1;
            match self.tallies.last_key_value() {
                Some((&latest, _)) if latest > id => self.tallies.remove(&latest),
                _ => return,
            };
        }
        let tally = self.tallies.entry(id).or_insert_with(|| Tally::new(now));
        let hash = ballot.vote.hash;
        if let Some(body) = body.filter(|body| !tally.bodies.contains_key(&hash) && Digest::of(body) == hash) {
            tally.bodies.insert(hash, body);
        }
        match tally.ballots.iter().position(|b| b.by == ballot.by) {
            // Front of the line has moved: what came before is gone for good.
            Some(i) if tally.ballots[i].vote != ballot.vote => tally.ballots[i] = ballot.clone(),
            Some(_) => self.refused.duplicates += 1,
            None => tally.ballots.push(ballot.clone()),
        }
        if let Some(other) = tally.ballots.iter().find(|b| b.vote.hash != ballot.vote.hash)
            && !std::mem::replace(&mut tally.differs_told, true)
        {
            self.refused.differing += 1;
            let packet = Packet::Differ(other.clone(), ballot);
            acts.extend(group.keys().map(|key| Act::Send(key, packet.clone())));
        }
        self.carry_out(group, acts);
    }

    /// A decision that one replica alone speaks of.
    fn show_lonely(&mut self, now: Instant, group: &Group, acts: &mut Vec<Act>) {
        let lonely = |t: &&mut Tally| !t.differs_told && now.since(t.came_at) >= ALONE && t.ballots.len() == 1;
        for tally in self.tallies.values_mut().filter(lonely).filter(|_| group.seats.len() > 1) {
            tally.differs_told = true;
            self.refused.differing += 1;
            let packet = Packet::Differ(tally.ballots[0].clone(), tally.ballots[0].clone());
            acts.extend(group.keys().map(|key| Act::Send(key, packet.clone())));
        }
    }

    /// Hands on what most say and what nothing stands before, in order.
    fn carry_out(&mut self, group: &Group, acts: &mut Vec<Act>) {
        let enough = group.majority();
        #[cfg(any(test, feature = "harm"))]
        let enough = if self.gullible { 1 } else { enough };
        loop {
            let ready = self.tallies.iter().find_map(|(&id, tally)| {
                let is_said = |b: &&Ballot| {
                    let same =
                        tally.ballots.iter().filter(|o| o.vote.hash == b.vote.hash && o.vote.after <= self.handed);
                    same.count() >= enough && tally.bodies.contains_key(&b.vote.hash)
                };
                tally.ballots.iter().find(is_said).map(|b| (id, b.vote.hash))
            });
            let Some((id, hash)) = ready else { return };
            let Some(mut tally) = self.tallies.remove(&id) else { return };
            let body = tally.bodies.remove(&hash).unwrap_or_default();
            let is_for_many = tally.ballots.iter().any(|b| !b.path.is_direct());
            self.handed = id;
            self.tallies = self.tallies.split_off(&id);
            match decode::<Word>(&body) {
                Some(Word::Answer { incarnation, .. }) if incarnation != self.incarnation => {}
                Some(word) => {
                    if let (Word::Do(command), true) = (&word, is_for_many) {
                        self.with_others = id;
                        self.errands.insert(command.job(), id);
                        if self.errands.len() > ERRANDS_MAX {
                            self.errands.pop_first();
                        }
                    }
                    acts.push(Act::Word(word));
                }
                None => {}
            }
        }
    }

    /// It is on disk that all up to here was carried out.
    pub fn on_done(&mut self, done: Id, group: Option<&Group>, acts: &mut Vec<Act>) {
        self.done = self.done.max(done);
        let Some(group) = group.filter(|_| done != self.with_others) else { return };
        let alive = self.alive(group.epoch);
        acts.extend(group.keys().map(|key| Act::Send(key, alive.clone())));
    }

    /// Somebody shows what we wanted to see.
    pub fn on_shown(&mut self, number: u64, bytes: Vec<u8>, acts: &mut Vec<Act>) {
        if self.looks.remove(&number).is_some() {
            acts.push(Act::Shown(number, bytes));
        }
    }

    /// Who it is.
    #[must_use]
    pub fn key(&self) -> Key {
        self.me
    }
}

fn send_all(sends: Vec<gather::Send>, acts: &mut Vec<Act>) {
    acts.extend(sends.into_iter().map(|(to, packet)| Act::Send(to, packet)));
}

fn ask_to_look(number: u64, looking: &mut Looking, now: Instant, group: Option<&Group>, acts: &mut Vec<Act>) {
    looking.asked_at = now;
    if let Some(group) = group {
        let seat = &group.seats[looking.asked % group.seats.len()];
        looking.asked += 1;
        acts.push(Act::Send(seat.key, Packet::Look { number, what: looking.what.clone() }));
    }
}

/// The largest value that most of the group reach.
fn most<T: Ord>(group: &Group, of: impl Fn(Key) -> T) -> Option<T> {
    let mut values: Vec<_> = group.keys().map(of).collect();
    values.sort_unstable_by(|a, b| b.cmp(a));
    values.into_iter().nth(group.majority() - 1)
}
