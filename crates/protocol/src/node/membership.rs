//! The membership of a daemon: whichever engine its cluster runs on.
//!
//! Engines are chosen by configuration, and everything above a node shall not care. What only one of them can say is asked of
//! [`Membership::zone`] or [`Membership::segment`].

use crate::member::{Card, Engine, Input, Name, Origin, Out, Output, Slot, Version};
use crate::segment::Segment;
use crate::zone::Zone;
use phalanx_core::{Addr, Code, Fingerprint, Instant, Machine, Sink};

/// An engine that a daemon runs on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Membership {
    /// Zones: ZN, AT, HI.
    Zone(Box<Zone>),
    /// Segments of the network: TG.
    Segment(Box<Segment>),
}

/// The same question to whichever engine there is.
macro_rules! ask {
    ($membership:expr, $engine:ident => $question:expr) => {
        match $membership {
            Membership::Zone($engine) => $question,
            Membership::Segment($engine) => $question,
        }
    };
}

/// What either of two iterators has.
enum Either<A, B> {
    Zone(A),
    Segment(B),
}

impl<T, A: Iterator<Item = T>, B: Iterator<Item = T>> Iterator for Either<A, B> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        match self {
            Self::Zone(all) => all.next(),
            Self::Segment(all) => all.next(),
        }
    }
}

impl From<Zone> for Membership {
    fn from(zone: Zone) -> Self {
        Self::Zone(Box::new(zone))
    }
}

impl From<Segment> for Membership {
    fn from(segment: Segment) -> Self {
        Self::Segment(Box::new(segment))
    }
}

impl Membership {
    /// The engine of zones, where that runs.
    #[must_use]
    pub fn zone(&self) -> Option<&Zone> {
        if let Self::Zone(zone) = self { Some(zone) } else { None }
    }

    pub(super) fn zone_mut(&mut self) -> Option<&mut Zone> {
        if let Self::Zone(zone) = self { Some(zone) } else { None }
    }

    /// The engine of segments, where that runs.
    #[must_use]
    pub fn segment(&self) -> Option<&Segment> {
        if let Self::Segment(segment) = self { Some(segment) } else { None }
    }

    /// HI-1: the name of our zone, where there are several.
    #[must_use]
    pub fn name(&self) -> Option<&Name> {
        self.zone().and_then(Zone::name)
    }

    /// Whether this member knows what others know: it has found them, or knows that there is nobody.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        ask!(self, engine => engine.is_settled())
    }

    /// The members that this one is linked with now: those that it exchanges what it knows with.
    pub fn neighbours(&self) -> impl Iterator<Item = Slot> {
        match self {
            Self::Zone(zone) => Either::Zone(zone.neighbours()),
            Self::Segment(segment) => Either::Segment(segment.neighbours()),
        }
    }
}

impl Machine for Membership {
    type Input<'a> = Input<'a>;
    type Output<'a> = Output<'a>;

    fn handle<S: for<'a> Sink<Output<'a>>>(&mut self, now: Instant, input: Input<'_>, out: &mut S) {
        ask!(self, engine => engine.handle(now, input, out));
    }

    fn expire<S: for<'a> Sink<Output<'a>>>(&mut self, now: Instant, out: &mut S) {
        ask!(self, engine => engine.expire(now, out));
    }

    fn deadline(&self) -> Instant {
        ask!(self, engine => engine.deadline())
    }

    fn fingerprint(&self, print: &mut Fingerprint) {
        ask!(self, engine => engine.fingerprint(print));
    }
}

impl Engine for Membership {
    fn me(&self) -> Slot {
        ask!(self, engine => engine.me())
    }

    fn version(&self, member: Slot) -> Option<Version> {
        ask!(self, engine => engine.version(member))
    }

    fn card(&self, member: Slot) -> Option<&Card> {
        ask!(self, engine => engine.card(member))
    }

    fn members(&self) -> impl Iterator<Item = (Slot, Version)> {
        match self {
            Self::Zone(zone) => Either::Zone(zone.members()),
            Self::Segment(segment) => Either::Segment(segment.members()),
        }
    }

    fn len(&self) -> usize {
        ask!(self, engine => engine.len())
    }

    fn speaks(&self) -> bool {
        ask!(self, engine => engine.speaks())
    }

    fn linked(&self) -> Vec<Addr> {
        ask!(self, engine => engine.linked())
    }

    fn origin(&self, member: Slot) -> Option<Origin> {
        ask!(self, engine => engine.origin(member))
    }

    fn set(&mut self, now: Instant, key: &str, value: Option<&[u8]>) -> Result<(), Code> {
        ask!(self, engine => engine.set(now, key, value))
    }

    fn seek(&mut self, now: Instant, seeds: &[Addr], out: &mut impl Out) {
        // A zone has a question of the same name.
        ask!(self, engine => Engine::seek(&mut **engine, now, seeds, out));
    }

    fn rename(&mut self, now: Instant, name: &Name) -> Result<(), Code> {
        ask!(self, engine => engine.rename(now, name))
    }

    fn attribute(&self, member: Slot, key: &str) -> Option<&[u8]> {
        ask!(self, engine => engine.attribute(member, key))
    }

    fn attributes(&self, member: Slot) -> impl Iterator<Item = (&str, &[u8])> {
        match self {
            Self::Zone(zone) => Either::Zone(zone.attributes(member)),
            Self::Segment(segment) => Either::Segment(segment.attributes(member)),
        }
    }

    fn leave(&mut self, now: Instant, code: u8, out: &mut impl Out) {
        ask!(self, engine => engine.leave(now, code, out));
    }

    fn relocate(&mut self, now: Instant, zone: &Name, seeds: &[Addr], out: &mut impl Out) -> Result<bool, Code> {
        ask!(self, engine => engine.relocate(now, zone, seeds, out))
    }
}
