//! Federation: data centres that tell each other what they have (TG-9; 003 §2 names it and leaves it to a report).
//!
//! Each data centre is a cluster of its own, with any membership engine. Whoever leads it **speaks** for it: every few seconds it sends a
//! summary, one datagram, to an entry point or two of each other data centre: how many members live, and which services are offered how often.
//! Whoever gets one from outside takes it, and passes it on to the members that it holds links with, and so do they: so each node can say
//! what there is elsewhere, whoever dies, and whoever speaks next goes on where the last one ended.
//!
//! ```text
//!        east                                   west
//!    speaker ── summary, datagram ──▶ entry point ──▶ its leader ──▶ all
//!         all ◀── leader ◀── entry point ◀── summary ── speaker
//! ```
//!
//! **A link that fails disturbs nobody.** This machine has no say in who is a member. What it heard of a data centre stays, with its age, and is marked
//! as silent once nothing new has come for a while. One that is heard, and does not hear us, is marked, too.
//!
//! **Numbers.** Summaries from one data centre to another are counted, and each says what has come the other way. So a new speaker, or a data centre
//! that started all over, goes on behind what was heard of it: nothing old is taken for new.
//!
//! **Bounds.** What is malformed, old, for somebody else, ahead by a leap, or too much for a period is dropped and counted. Data centres that nobody
//! configured have room beside those that are, up to a bound, and are forgotten when they are silent. Entry points need a key in common; who holds
//! it is believed, as members are.
//!
//! Where a data centre is cut in two, both parts may speak, and what is told of it is what the last one said. Nothing is passed on from one
//! data centre through another to a third.
//!
//! | file | idea |
//! |---|---|
//! | `home` | what a data centre says of itself, from any engine |

mod home;
#[cfg(test)]
mod tests;

pub use home::Home;

use crate::member::Name;
use phalanx_core::{Addr, Duration, Fingerprint, Instant, Machine, Rng, Sink};
use phalanx_wire::federation::{SERVICES_MAX, Summary};
use std::collections::BTreeMap;

/// Data centres that are remembered at most, those that are configured included.
pub const CENTRES_MAX: usize = 64;
/// The shortest period.
pub const PERIOD_LEAST: Duration = Duration::from_millis(10);
/// Summaries of one data centre that are taken in a period: two parts of it may speak, and a new speaker begins out of turn.
const TAKEN_MAX: u8 = 4;
/// A number that is further ahead than this is none of the next ones.
const LEAP_MAX: u64 = 1 << 20;
/// The highest number of one that is heard for the first time: leaps from there come to no end.
const FIRST_MAX: u64 = 1 << 48;
/// Who is not configured is forgotten after so many times the patience.
const FORGET: u64 = 10;

/// The numbers of a federation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct FederationConfig {
    /// Our own data centre.
    pub name: Name,
    /// The others, and where their nodes are reached from outside. The first [`CENTRES_MAX`] count.
    pub centres: Vec<(Name, Vec<Addr>)>,
    /// Time between two summaries; at least [`PERIOD_LEAST`].
    pub period: Duration,
    /// A data centre of which nothing new was heard for so long is silent; at least two periods.
    pub patience: Duration,
    /// Entry points of a data centre that are spoken to in a period, in turn.
    pub entries: u8,
    /// Data centres that are remembered; at most [`CENTRES_MAX`].
    pub bound: usize,
}

impl FederationConfig {
    /// Over a wide area: a summary in 5 seconds, silent after 30.
    #[must_use]
    pub fn wan(name: Name, centres: Vec<(Name, Vec<Addr>)>) -> Self {
        let (period, patience) = (Duration::from_secs(5), Duration::from_secs(30));
        Self { name, centres, period, patience, entries: 2, bound: CENTRES_MAX }
    }
}

/// What a federation hears.
#[derive(Debug)]
pub enum Input<'a> {
    /// Our own data centre is so now. To be told before each summary, or when it changes.
    Home(Home),
    /// Something came, from outside or from a member that passes it on.
    Heard {
        /// Where it comes from.
        from: Addr,
        /// What it says.
        bytes: &'a [u8],
    },
}

/// What a federation decides.
#[derive(Debug)]
pub enum Output<'a> {
    /// Send a datagram to an entry point of another data centre.
    Abroad {
        /// Where to.
        to: Addr,
        /// What it says.
        bytes: &'a [u8],
    },
    /// Send a reliable message to a member of ours.
    Inside {
        /// Where to.
        to: Addr,
        /// What it says.
        bytes: &'a [u8],
    },
    /// Something is other than it was.
    Event(Event<'a>),
}

/// What changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event<'a> {
    /// A data centre has other members or services.
    Told {
        /// Which one.
        centre: &'a Name,
    },
    /// A data centre is reached otherwise than before.
    Status {
        /// Which one.
        centre: &'a Name,
        /// How.
        status: Status,
    },
    /// A data centre that nobody configured was silent for too long.
    Forgotten {
        /// Which one.
        centre: &'a Name,
    },
}

/// How a data centre is reached.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Status {
    /// It is configured, and was never heard.
    Unheard,
    /// It is heard, and nothing says that it does not hear us.
    Well,
    /// It is heard, and does not hear us.
    Deaf,
    /// Nothing new came for too long: the link is down, or it is.
    Silent,
}

/// What was dropped.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counters {
    /// Bytes that are no summary.
    pub malformed: u64,
    /// Summaries for another data centre: an entry point is configured wrongly.
    pub misdirected: u64,
    /// Somebody else goes by our name.
    pub namesakes: u64,
    /// Numbers that were heard before: replays, detours, second copies, a speaker that does not know yet where the last one ended.
    pub old: u64,
    /// Numbers that are too far ahead.
    pub leaps: u64,
    /// More of one data centre than a period may bring.
    pub hasty: u64,
    /// Data centres that found no room.
    pub crowded: u64,
}

/// A data centre as it was last heard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Centre<'a> {
    /// What it is called.
    pub name: &'a Name,
    /// How it is reached.
    pub status: Status,
    /// When it was last heard; `None` for never.
    pub heard_at: Option<Instant>,
    /// How many members it has.
    pub members: u32,
    /// Of all of them: another one says that some have changed.
    pub digest: u64,
    /// Services and how often each is offered, by name.
    pub services: &'a [(Box<str>, u32)],
    /// Services that it does not name.
    pub more: u32,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
struct Told {
    number: u64,
    /// The last of ours that it has.
    heard: u64,
    members: u32,
    digest: u64,
    services: Vec<(Box<str>, u32)>,
    more: u32,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Record {
    /// It stays, however long it is silent.
    is_configured: bool,
    entries: Vec<Addr>,
    told: Option<Told>,
    status: Status,
    heard_at: Instant,
    /// When it last said that it hears us, or was heard again.
    well_at: Instant,
    /// The last number that we sent there.
    sent: u64,
    /// Summaries taken in this period.
    taken: u8,
}

impl Record {
    /// One that nobody configured.
    fn new() -> Self {
        let (entries, told, status, never) = (Vec::new(), None, Status::Unheard, Instant::ZERO);
        Self { is_configured: false, entries, told, status, heard_at: never, well_at: never, sent: 0, taken: 0 }
    }

    fn is_heard(&self) -> bool {
        matches!(self.status, Status::Well | Status::Deaf)
    }

    /// When there is something to look at: it has been silent, or can be forgotten.
    fn due_at(&self, patience: Duration) -> Instant {
        match self.status {
            Status::Unheard => Instant::NEVER,
            Status::Well | Status::Deaf => self.heard_at + patience,
            Status::Silent if !self.is_configured => self.heard_at + patience * FORGET,
            Status::Silent => Instant::NEVER,
        }
    }

    /// The number of our next summary for it: behind the last one, and behind what it has, but no leap from there.
    fn next(&self) -> u64 {
        let heard = self.told.as_ref().map_or(0, |t| t.heard);
        let is_next = self.sent > heard && self.sent - heard < LEAP_MAX;
        if is_next { self.sent + 1 } else { heard + 1 }
    }
}

/// What a node knows of other data centres. All nodes run one; who leads speaks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Federation {
    config: FederationConfig,
    home: Home,
    centres: BTreeMap<Name, Record>,
    beat_at: Instant,
    /// Whose turn it is among entry points.
    turn: usize,
    counters: Counters,
    scratch: Vec<u8>,
}

impl Federation {
    /// A node that starts; its first summary, should it speak, leaves within a period.
    #[must_use]
    pub fn new(mut config: FederationConfig, mut rng: Rng, now: Instant) -> Self {
        config.period = config.period.max(PERIOD_LEAST);
        config.patience = config.patience.max(config.period * 2);
        config.bound = config.bound.min(CENTRES_MAX);
        let (beat_at, turn) = (now + Duration(rng.below(config.period.0)), rng.u32() as usize);
        let (home, counters, centres) = (Home::default(), Counters::default(), std::mem::take(&mut config.centres));
        let all = BTreeMap::new();
        let mut federation = Self { config, home, centres: all, beat_at, turn, counters, scratch: Vec::new() };
        federation.configure(centres);
        federation
    }

    /// From now on these data centres are configured. What was heard of those that stay is kept; others are forgotten once they are silent for long,
    /// or make room.
    pub fn configure(&mut self, centres: Vec<(Name, Vec<Addr>)>) {
        let others = centres.into_iter().filter(|(name, _)| *name != self.config.name).take(CENTRES_MAX);
        let mut configured: BTreeMap<Name, Vec<Addr>> = BTreeMap::new();
        for (name, mut entries) in others {
            entries.retain(|addr| !matches!(addr, Addr::Group(_)));
            configured.entry(name).or_default().extend(entries);
        }
        for (name, record) in &mut self.centres {
            let entries = configured.remove(name);
            record.is_configured = entries.is_some();
            record.entries = entries.unwrap_or_default();
        }
        self.centres.retain(|_, r| r.is_configured || r.told.is_some());
        for (name, entries) in configured {
            if self.centres.len() >= CENTRES_MAX
                && let Some(other) = self.centres.iter().find(|(_, r)| !r.is_configured).map(|(n, _)| n.clone())
            {
                self.centres.remove(&other);
            }
            self.centres.insert(name, Record { is_configured: true, entries, ..Record::new() });
        }
    }

    /// What was dropped.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Our own data centre, as the last summary had it.
    #[must_use]
    pub fn home(&self) -> (&Name, &Home) {
        (&self.config.name, &self.home)
    }

    /// All other data centres, by name.
    pub fn centres(&self) -> impl Iterator<Item = Centre<'_>> {
        self.centres.iter().map(|(name, record)| centre(name, record))
    }

    /// One of them.
    #[must_use]
    pub fn centre(&self, name: &str) -> Option<Centre<'_>> {
        self.centres.iter().find(|(n, _)| n.as_str() == name).map(|(name, record)| centre(name, record))
    }

    /// Where a service is offered elsewhere, and how often. Who is silent comes, too: its status says so.
    pub fn find<'f>(&'f self, service: &'f str) -> impl Iterator<Item = (Centre<'f>, u32)> {
        self.centres().filter_map(move |centre| {
            let offered = centre.services.iter().find(|(name, _)| **name == *service)?;
            Some((centre, offered.1))
        })
    }
}

fn centre<'a>(name: &'a Name, record: &'a Record) -> Centre<'a> {
    let told = record.told.as_ref();
    Centre {
        name,
        status: record.status,
        heard_at: told.map(|_| record.heard_at),
        members: told.map_or(0, |t| t.members),
        digest: told.map_or(0, |t| t.digest),
        services: told.map_or(&[], |t| &t.services),
        more: told.map_or(0, |t| t.more),
    }
}

/// A sink for what a federation decides.
pub trait Out: for<'a> Sink<Output<'a>> {}
impl<S: for<'a> Sink<Output<'a>>> Out for S {}

impl Machine for Federation {
    type Input<'a> = Input<'a>;
    type Output<'a> = Output<'a>;

    fn handle<S: for<'a> Sink<Output<'a>>>(&mut self, now: Instant, input: Input<'_>, out: &mut S) {
        match input {
            Input::Home(home) => self.home = home,
            Input::Heard { from, bytes } => self.on_heard(now, from, bytes, out),
        }
    }

    fn expire<S: for<'a> Sink<Output<'a>>>(&mut self, now: Instant, out: &mut S) {
        self.look(now, out);
        if now < self.beat_at {
            return;
        }
        let next = self.beat_at + self.config.period;
        self.beat_at = if next > now { next } else { now + self.config.period };
        self.centres.values_mut().for_each(|r| r.taken = 0);
        if self.home.speaks {
            self.speak(out);
        }
    }

    fn deadline(&self) -> Instant {
        let due = self.centres.values().map(|r| r.due_at(self.config.patience));
        due.fold(self.beat_at, Instant::min)
    }

    fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&self.turn).add(&self.home);
        print.instant(self.beat_at);
        for (name, record) in &self.centres {
            print.add(name).add(&(record.status, record.sent, record.taken, record.is_configured)).add(&record.entries);
            print.instant(record.heard_at);
            print.instant(record.well_at);
            if let Some(told) = &record.told {
                print.add(&(told.number, told.heard, told.members, told.digest, told.more)).add(&told.services);
            }
        }
    }
}

impl Federation {
    fn on_heard(&mut self, now: Instant, from: Addr, bytes: &[u8], out: &mut impl Out) {
        let summary = Summary::parse(bytes).ok();
        let Some((summary, name)) = summary.and_then(|s| Name::new(s.from).ok().map(|name| (s, name))) else {
            self.counters.malformed += 1;
            return;
        };
        if name == self.config.name {
            self.counters.namesakes += 1;
            return;
        }
        if summary.to != self.config.name.as_str() {
            self.counters.misdirected += 1;
            return;
        }
        let count = self.centres.len();
        let known = self.centres.get(&name);
        let before = known.and_then(|r| r.told.as_ref()).map(|t| t.number);
        let refused = match before {
            Some(number) if summary.number <= number => Some(&mut self.counters.old),
            Some(number) if summary.number - number > LEAP_MAX => Some(&mut self.counters.leaps),
            None if summary.number > FIRST_MAX => Some(&mut self.counters.leaps),
            _ if known.is_some_and(|r| r.taken >= TAKEN_MAX) => Some(&mut self.counters.hasty),
            _ if known.is_none() && count >= self.config.bound => Some(&mut self.counters.crowded),
            _ => None,
        };
        if let Some(counter) = refused {
            *counter += 1;
            return;
        }
        self.take(now, &name, &summary, out);
        for &to in self.home.linked.iter().filter(|&&to| to != from) {
            out.push(Output::Inside { to, bytes });
        }
    }

    /// A summary that is new.
    fn take(&mut self, now: Instant, name: &Name, summary: &Summary<'_>, out: &mut impl Out) {
        let patience = self.config.patience;
        let record = self.centres.entry(name.clone()).or_insert_with(Record::new);
        record.taken += 1;
        if summary.hears || !record.is_heard() {
            record.well_at = now;
        }
        record.heard_at = now;
        // It takes a while until both have heard each other.
        let status = if now >= record.well_at + patience { Status::Deaf } else { Status::Well };
        let told = Told {
            number: summary.number,
            heard: summary.heard,
            members: summary.members,
            digest: summary.digest,
            services: summary.services.iter().map(|&(name, count)| (name.into(), count)).collect(),
            more: summary.more,
        };
        let is_other = record.told.as_ref().is_none_or(|old| {
            (old.members, old.digest, old.more) != (told.members, told.digest, told.more)
                || old.services != told.services
        });
        record.told = Some(told);
        let was = std::mem::replace(&mut record.status, status);
        if was != status {
            out.push(Output::Event(Event::Status { centre: name, status }));
        }
        if is_other {
            out.push(Output::Event(Event::Told { centre: name }));
        }
    }

    /// Finds who has been silent for too long.
    fn look(&mut self, now: Instant, out: &mut impl Out) {
        let patience = self.config.patience;
        self.centres.retain(|name, record| {
            if now < record.due_at(patience) {
                return true;
            }
            if record.is_heard() {
                record.status = Status::Silent;
                out.push(Output::Event(Event::Status { centre: name, status: Status::Silent }));
                return true;
            }
            out.push(Output::Event(Event::Forgotten { centre: name }));
            false
        });
    }

    /// Tells all others what we have.
    fn speak(&mut self, out: &mut impl Out) {
        self.turn = self.turn.wrapping_add(1);
        for (name, record) in &mut self.centres {
            if record.entries.is_empty() {
                continue;
            }
            let number = record.next();
            let summary = Summary {
                from: self.config.name.as_str(),
                to: name.as_str(),
                number,
                heard: record.told.as_ref().map_or(0, |t| t.number),
                hears: record.is_heard(),
                members: self.home.members,
                digest: self.home.digest,
                ..Summary::default()
            };
            let summary = self.home.with_services(summary, SERVICES_MAX);
            self.scratch.clear();
            if summary.encode(&mut self.scratch).is_err() {
                continue;
            }
            record.sent = number;
            let most = usize::from(self.config.entries.max(1)).min(record.entries.len());
            for i in 0..most {
                let to = record.entries[self.turn.wrapping_mul(most).wrapping_add(i) % record.entries.len()];
                out.push(Output::Abroad { to, bytes: &self.scratch });
            }
        }
    }
}
