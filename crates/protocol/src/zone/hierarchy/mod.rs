//! Hierarchy: base zones federated by a management zone.
//!
//! HI-1 to HI-4, 002 §2. Each base zone has a few *delegates*; each zone is guarded by a few *supervisors*, the members
//! of the management zone. Delegates tell their guards who is in their zone, first all, then what changes. The first
//! guard of a zone publishes a summary as an attribute in the management zone, so that each supervisor holds a *census*
//! of all zones; details of a zone are asked of its guards.
//!
//! ```text
//!   base zone              management zone
//!   delegate ── Who ────▶ any supervisor
//!            ◀─ Guards ──
//!            ── Report ──▶ guards ── attribute zone.NAME ──▶ all supervisors: the census
//! ```
//!
//! Who has a role follows from views, so that nobody has to be asked when one falls: the delegates of a zone are the
//! lowest of its ring, and declare themselves by an attribute, which makes them the zone's high-priority monitors too
//! (HI-4); the guards of a zone are the first supervisors by rendezvous hashing of the zone's name. A role that is lost
//! is taken by the next as soon as the view says so.
//!
//! | file | idea |
//! |---|---|
//! | `delegate` | a member that speaks for its zone |
//! | `supervisor` | a member of the management zone |
//! | `guarded` | a zone at one of its guards: which delegates are believed |
//! | `moving` | a member that leaves its zone for another |
//! | `replica` | a zone as its delegate tells it |
//! | [`census`] | summaries of zones |
//! | [`split`] | into how many zones to split a system (HI-6) |

pub mod census;
mod delegate;
mod guarded;
mod moving;
mod replica;
pub mod split;
mod supervisor;

pub(super) use delegate::Delegate;
pub(super) use supervisor::Supervisor;

use super::Zone;
use super::letter::Parcel;
use crate::member::{Card, Name, Out, Peer, Version};
use census::Summary;
use phalanx_core::rng::mix;
use phalanx_core::{Addr, Instant};
use phalanx_wire::member::Member;
use phalanx_wire::zone::{Letter, LetterKind, flag};
use std::sync::Arc;

/// Delegates of a zone.
const DELEGATES: usize = 2;
/// Guards of a zone.
const GUARDS: usize = 2;

/// An order of nodes that a zone's name gives (rendezvous hashing), the highest first: everybody finds the same.
fn score(zone: &Name, place: u64) -> u64 {
    let name = zone.as_str().bytes().fold(0, |hash, b| mix(hash ^ u64::from(b)));
    mix(name ^ place)
}

/// A member's place in the hierarchy.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Role {
    /// There is no hierarchy.
    #[default]
    Alone,
    /// A member of a base zone.
    Base {
        /// The name of the zone.
        zone: Name,
        /// Where supervisors are looked for.
        supervisors: Arc<[Addr]>,
    },
    /// A supervisor.
    Management,
}

/// What a member of a hierarchy holds for its role.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Office {
    /// There is none; but somebody may have answered us from a zone, see [`Zone::invitation`].
    None(Option<Box<(Name, Addr)>>),
    Delegate(Box<Delegate>),
    Supervisor(Box<Supervisor>),
}

/// A letter between the two planes.
#[derive(Clone, Copy)]
pub(super) enum Upward<'a> {
    Parcel(&'a Parcel),
    Letter(&'a Letter<'a>),
}

impl Upward<'_> {
    fn kind(&self) -> LetterKind {
        match self {
            Self::Parcel(p) => p.kind,
            Self::Letter(l) => l.kind,
        }
    }

    fn flags(&self) -> u16 {
        match self {
            Self::Parcel(p) => p.flags,
            Self::Letter(l) => l.flags,
        }
    }

    fn fingerprint(&self) -> Option<u64> {
        match self {
            Self::Parcel(p) => p.fingerprint,
            Self::Letter(l) => l.fingerprint,
        }
    }

    fn zone(&self) -> Option<Name> {
        match self {
            Self::Parcel(p) => p.zone.clone(),
            Self::Letter(l) => Name::new(l.zone).ok(),
        }
    }

    /// What a delegate says to those whom it takes for its guards; a last word needs no answer.
    fn is_for_guards(&self) -> bool {
        matches!(self.kind(), LetterKind::Who | LetterKind::Report) && self.flags() & flag::NONE == 0
    }

    /// Who sends it.
    fn sender(&self) -> Option<(Card, Version)> {
        match self {
            Self::Parcel(p) => p.author(),
            Self::Letter(l) => l.sender.as_ref().and_then(entry),
        }
    }

    /// Everybody whom the letter says is there.
    fn alive(&self) -> Vec<(Card, Version)> {
        match self {
            Self::Parcel(p) => p.members().collect(),
            Self::Letter(l) => l.alive().filter_map(|m| entry(&m)).collect(),
        }
    }
}

fn entry(m: &Member<'_>) -> Option<(Card, Version)> {
    let name = Name::new(m.name).ok()?;
    let version = Version { incarnation: m.incarnation, minor: m.minor };
    Some((Card { identity: m.identity, addr: m.addr, name }, version))
}

/// True for letters that are not about the reader's own zone.
pub(super) const fn is_upward(kind: LetterKind) -> bool {
    use LetterKind::{Detailed, Details, Guards, Report, Seek, Sought, Who};
    matches!(kind, Who | Guards | Report | Details | Detailed | Seek | Sought)
}

impl Zone {
    /// Takes a place in a hierarchy.
    #[must_use]
    pub fn with_role(mut self, role: Role) -> Self {
        self.office = match role {
            Role::Alone => Office::None(None),
            Role::Base { zone, supervisors } => Office::Delegate(Box::new(Delegate::new(zone, supervisors))),
            Role::Management => Office::Supervisor(Box::default()),
        };
        self.rearm();
        self
    }

    /// A letter about another zone, or between the planes.
    pub(super) fn on_upward(&mut self, now: Instant, from: Peer, letter: Upward<'_>, out: &mut impl Out) {
        let Some(zone) = letter.zone() else {
            self.counters.malformed += 1;
            return;
        };
        match letter.kind() {
            LetterKind::Who => self.on_who(from, &zone, out),
            LetterKind::Guards => self.on_guards(now, from.addr, &zone, letter, out),
            LetterKind::Seek => self.on_seek(now, from, &zone, letter, out),
            LetterKind::Sought => self.on_sought(now, &zone, letter, out),
            LetterKind::Report => self.on_report(now, from, zone, letter, out),
            LetterKind::Details => self.on_details(from, &zone, out),
            LetterKind::Detailed => self.on_detailed(zone, letter, out),
            _ => {}
        }
    }

    /// True for a guard of our zone, and for a delegate of a zone that we guard: their links stay.
    pub(super) fn is_colleague(&self, addr: Addr) -> bool {
        match &self.office {
            Office::None(_) => false,
            Office::Delegate(delegate) => delegate.is_guard(addr),
            Office::Supervisor(supervisor) => supervisor.is_reporter(addr),
        }
    }

    pub(super) fn office_deadline(&self) -> Instant {
        match &self.office {
            Office::None(_) => Instant::NEVER,
            Office::Delegate(delegate) => delegate.deadline(),
            Office::Supervisor(supervisor) => supervisor.deadline(),
        }
    }

    pub(super) fn expire_office(&mut self, now: Instant, out: &mut impl Out) {
        match &self.office {
            Office::None(_) => {}
            Office::Delegate(_) => self.expire_delegate(now, out),
            Office::Supervisor(_) => self.expire_supervisor(now, out),
        }
    }

    /// The view changed: roles may have moved.
    pub(super) fn settle_office(&mut self, now: Instant, changes: &[super::replicate::Change], out: &mut impl Out) {
        match &self.office {
            Office::None(_) => {}
            Office::Delegate(_) => self.settle_delegate(now, changes, out),
            Office::Supervisor(_) if changes.is_empty() => {}
            Office::Supervisor(_) => self.settle_supervisor(now, out),
        }
    }

    /// A peer is out of reach.
    pub(super) fn office_lost(&mut self, now: Instant, addr: Addr, out: &mut impl Out) {
        match &self.office {
            Office::None(_) => {}
            Office::Delegate(_) => self.guard_lost(now, addr, out),
            Office::Supervisor(_) => self.delegate_lost(now, addr, out),
        }
    }

    /// HI-3: all zones with their summaries, by name; at supervisors.
    pub fn census(&self) -> impl Iterator<Item = (Name, Summary)> {
        census::read(&self.attributes, self.book.view.slots())
    }

    /// HI-3: the members of a zone that we guard, or whose details came; `None` when neither.
    #[must_use]
    pub fn details(&self, zone: &Name) -> Option<Vec<(Card, Version)>> {
        match &self.office {
            Office::Supervisor(supervisor) => supervisor.details(zone),
            Office::None(_) | Office::Delegate(_) => None,
        }
    }
}
