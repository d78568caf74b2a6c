//! Scouts: a node of zones that looks around by multicast (TG), and takes from what it finds where others are and which
//! zone it is in. Nobody is told anything on a local network but the cluster's key.
//!
//! Beside the engine of zones runs one of segments, at a port of its own. Nobody above sees its members; they are where the
//! node's own engine looks for others:
//!
//! | in its segment the node | zone | seeds | supervisors |
//! |---|---|---|---|
//! | follows a leader | the leader's | the leader | the leader |
//! | leads | its own; a new one when it is in none, and free | leaders that it hears and who are in that zone | itself, which is one then |
//!
//! So the groups of the network become zones, and their leaders the management zone (DESIGN: *its groups become base zones,
//! its leaders the first delegates*). A zone keeps its name whoever leads: the next leader is in it already. Segments that become
//! one have one leader, whom all of them follow; a host that was moved follows the leader it finds.
//!
//! Whoever was told its zone keeps it, and takes only seeds from here. Whoever was told whom to join, and nothing else, is in no zone and has
//! no scout: where it finds others it stays with them, and when those are in a zone it goes there.

use super::route::{EngineOut, Errand, Letter};
use super::{Membership, Node, Out, Output, Plane};
use crate::baselines;
use crate::member::{self, Card, Engine, Frozen, Name, Roster, Slot};
use crate::segment::{Segment, SegmentConfig};
use crate::zone::hierarchy::Role;
use crate::zone::{Config, Zone};
use phalanx_core::{Addr, Buf, Duration, Fingerprint, Instant, Machine, Rng, Sink};
use std::sync::Arc;

/// What each says of its zone to those around it; nothing where there are none.
const ZONE: &str = "zone";
/// What the zones are called that leaders found: this, and the leader's name.
const FOUNDED: &str = "seg-";
/// Who follows another leader than it did goes to that one's zone after so long: leaders that come and go move nobody.
const PATIENCE: Duration = Duration::from_millis(500);
/// It looks again though nothing changed: words get lost.
const AGAIN: Duration = Duration::from_secs(1);

/// With what a node begins to look around.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScoutConfig {
    /// How it speaks to those around it.
    pub segment: SegmentConfig,
    /// Zones come from segments, too; otherwise seeds only.
    pub zones: bool,
}

/// Looks around.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Scout {
    segment: Segment,
    zones: bool,
    /// What a member of the management zone is made of.
    profile: Arc<Config>,
    card: Card,
    incarnation: u64,
    seed: u64,
    /// Something around changed.
    changed: bool,
    look_at: Instant,
    /// Whom we follow, and since when.
    leader: Option<(Slot, Instant)>,
}

impl Scout {
    pub(super) fn new(
        config: ScoutConfig,
        profile: Config,
        card: &Card,
        incarnation: u64,
        seed: u64,
        now: Instant,
    ) -> Self {
        let start = baselines::Start {
            card: card.clone(),
            incarnation,
            bootstrap: Vec::new(),
            shared: Arc::new(Frozen::default()),
        };
        Self {
            segment: Segment::new(config.segment, start, Rng::new(seed, 2), now),
            zones: config.zones,
            profile: Arc::new(profile),
            card: card.clone(),
            incarnation,
            seed,
            changed: true,
            look_at: now,
            leader: None,
        }
    }

    /// Those around, to be looked at.
    #[must_use]
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    /// Zones come from segments, too.
    #[must_use]
    pub fn gives_zones(&self) -> bool {
        self.zones
    }

    pub(super) fn deadline(&self) -> Instant {
        self.segment.deadline()
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        self.segment.fingerprint(print);
        print.add(&(self.zones, self.changed, self.leader.map(|l| l.0)));
        print.instant(self.look_at);
    }

    pub(super) fn leave(&mut self, now: Instant, code: u8, errands: &mut Vec<Errand>, out: &mut impl Out) {
        self.segment.leave(now, code, &mut ScoutOut { errands, changed: &mut self.changed, out });
    }

    /// In which zone somebody says it is: `None` when it has not said so yet, no name where there are none.
    fn zone_of(&self, slot: Slot) -> Option<Option<Name>> {
        let text = std::str::from_utf8(self.segment.attribute(slot, ZONE)?).ok()?;
        if text.is_empty() { Some(None) } else { Name::new(text).ok().map(Some) }
    }

    fn addr_of(&self, slot: Slot) -> Option<Addr> {
        self.segment.card(slot).map(|c| c.addr)
    }

    /// Leaders of other segments that are heard.
    fn leaders(&self) -> Vec<Slot> {
        let me = self.segment.me();
        let mut all: Vec<Slot> =
            self.segment.levels().into_iter().skip(1).flat_map(|l| l.members).filter(|&s| s != me).collect();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Somebody else is around.
    fn has_company(&self) -> bool {
        self.segment.len() > 1
    }

    /// A member of the management zone.
    fn supervisor(&self, seeds: &[Addr], now: Instant) -> Zone {
        let roster = Roster::new(Arc::default(), self.profile.members);
        let seeds: Arc<[Addr]> = seeds.iter().copied().collect();
        let rng = Rng::new(self.seed, 3);
        Zone::new(&self.profile, roster, &self.card, self.incarnation, &seeds, rng, now).with_role(Role::Management)
    }

    fn founded(&self) -> Name {
        let name = self.card.name.as_str();
        let room = member::NAME_MAX - FOUNDED.len();
        let end = (0..=name.len().min(room)).rev().find(|&i| name.is_char_boundary(i)).unwrap_or(0);
        Name::new(&format!("{FOUNDED}{}", &name[..end])).unwrap_or_else(|_| self.card.name.clone())
    }
}

/// The scout's decisions: what it sends is sent, what it sees is for the node itself.
struct ScoutOut<'n> {
    errands: &'n mut Vec<Errand>,
    changed: &'n mut bool,
    out: &'n mut dyn Out,
}

impl<'o> Sink<member::Output<'o>> for ScoutOut<'_> {
    fn push(&mut self, output: member::Output<'o>) {
        const PLANE: Plane = Plane::Scout;
        match output {
            member::Output::Datagram { to, bytes } => {
                self.errands.push(Errand::Datagram { plane: PLANE, to, bytes: Buf::copy_of(bytes) });
            }
            member::Output::Cast { group, bytes } => {
                self.errands.push(Errand::Cast { plane: PLANE, group, bytes: Buf::copy_of(bytes) });
            }
            member::Output::Message { to, message, .. } => {
                let message = Letter(Arc::clone(message));
                self.errands.push(Errand::Message { from: PLANE, plane: PLANE, to, message });
            }
            member::Output::Hear { group } => self.out.push(Output::Hear { group }),
            member::Output::Event(_) => *self.changed = true,
            // Links belong to the node's engine, and segments have no wires.
            member::Output::Release { .. } | member::Output::Wire { .. } | member::Output::Unwire { .. } => {}
        }
    }
}

impl<E: Engine> Node<E> {
    /// What looks around, to be looked at.
    #[must_use]
    pub fn scout(&self) -> Option<&Scout> {
        self.scout.as_deref()
    }

    pub(super) fn tell_scout(&mut self, now: Instant, input: member::Input<'_>, out: &mut impl Out) {
        let Self { scout: Some(scout), errands, .. } = self else { return };
        let before = scout.segment.leaders().next();
        scout.segment.handle(now, input, &mut ScoutOut { errands, changed: &mut scout.changed, out });
        scout.changed |= before != scout.segment.leaders().next();
    }

    pub(super) fn expire_scout(&mut self, now: Instant, out: &mut impl Out) {
        let Self { scout: Some(scout), errands, .. } = self else { return };
        if scout.segment.deadline() <= now {
            let before = scout.segment.leaders().next();
            scout.segment.expire(now, &mut ScoutOut { errands, changed: &mut scout.changed, out });
            scout.changed |= before != scout.segment.leaders().next();
        }
    }
}

impl Node<Membership> {
    /// Looks around from now on, see [`scout`](self).
    #[must_use]
    pub fn with_scout(mut self, scout: Scout) -> Self {
        self.scout = Some(Box::new(scout));
        self
    }

    /// Whether [`Node::look_around`] would find something to do.
    #[must_use]
    pub fn is_curious(&self, now: Instant) -> bool {
        let zone = self.plane(Plane::Base).and_then(Membership::zone);
        zone.is_some_and(|z| z.invitation().is_some())
            || self.scout.as_ref().is_some_and(|s| s.changed || now >= s.look_at)
    }

    /// Does what follows from what is around: to be called after each input, at least once a second. Says into which zone the
    /// node went, when it did.
    pub fn look_around(&mut self, now: Instant, out: &mut impl Out) -> Option<Name> {
        let zone = self.plane(Plane::Base)?.zone()?;
        // Somebody answered who is in a zone, and we are in none.
        if let Some((zone, host)) = zone.invitation().cloned() {
            return self.go_to(now, &zone, &[host], out);
        }
        let (own, is_free) = (zone.name().cloned(), zone.is_free());
        let scout = self.scout.as_mut()?;
        if !std::mem::take(&mut scout.changed) && now < scout.look_at {
            return None;
        }
        scout.look_at = now + AGAIN;
        // Who is free, and shall be in a zone, does not say that it is in none. It cannot fail: it is short, and alone.
        let is_decided = !(scout.zones && is_free);
        let zone = own.as_ref().map_or("", Name::as_str).as_bytes();
        let _ = scout.segment.set(now, ZONE, is_decided.then_some(zone));
        let me = scout.segment.me();
        let leader = scout.segment.leaders().next().flatten();
        if leader != scout.leader.map(|l| l.0) {
            scout.leader = leader.map(|leader| (leader, now));
        }
        let (leader, since) = scout.leader?;
        if leader == me {
            self.lead(now, own, is_free, out)
        } else {
            self.go_along(now, leader, since, own, is_free, out)
        }
    }

    /// We lead our segment.
    fn lead(&mut self, now: Instant, own: Option<Name>, is_free: bool, out: &mut impl Out) -> Option<Name> {
        let scout = self.scout.as_deref()?;
        let others = scout.leaders();
        let same: Vec<Addr> = others
            .iter()
            .filter(|&&s| scout.zone_of(s).is_some_and(|zone| zone == own))
            .filter_map(|&s| scout.addr_of(s))
            .collect();
        let all: Vec<Addr> = others.iter().filter_map(|&s| scout.addr_of(s)).collect();
        if !scout.zones {
            self.seek(now, &same, out);
            return None;
        }
        match own {
            // One who is alone waits for others who look around: whoever is told to join it may know nothing of zones.
            None if is_free && scout.has_company() => {
                let name = scout.founded();
                return self.go_to(now, &name, &[], out);
            }
            // Others are with us who know nothing of zones.
            None => self.seek(now, &same, out),
            Some(_) => {
                self.seek(now, &same, out);
                self.supervise(now, &all, out);
            }
        }
        None
    }

    /// We follow somebody.
    fn go_along(
        &mut self,
        now: Instant,
        leader: Slot,
        since: Instant,
        own: Option<Name>,
        is_free: bool,
        out: &mut impl Out,
    ) -> Option<Name> {
        self.retire(now, out);
        let scout = self.scout.as_deref()?;
        let (zone, host) = (scout.zone_of(leader)?, scout.addr_of(leader)?);
        let may_move = scout.zones && (is_free || own.is_some()) && now >= since + PATIENCE;
        match zone {
            zone if zone == own => self.seek(now, &[host], out),
            Some(zone) if may_move || scout.zones && is_free => return self.go_to(now, &zone, &[host], out),
            _ => return None,
        }
        if own.is_some()
            && self.scout().is_some_and(|s| s.zones)
            && let Some(zone) = self.engine.as_mut().and_then(Membership::zone_mut)
        {
            zone.follow(now, Arc::from([host]));
        }
        None
    }

    fn go_to(&mut self, now: Instant, zone: &Name, seeds: &[Addr], out: &mut impl Out) -> Option<Name> {
        let went = self.relocate(now, zone, seeds, out).is_ok_and(|went| went);
        if let Some(scout) = &mut self.scout {
            scout.changed = true;
        }
        went.then(|| zone.clone())
    }

    /// We are a member of the management zone, with the leaders of other segments.
    fn supervise(&mut self, now: Instant, others: &[Addr], out: &mut impl Out) {
        let Some(scout) = self.scout.as_deref() else { return };
        match &mut self.management {
            Some(management) => {
                let errands = &mut self.errands;
                management.seek(now, others, &mut EngineOut { plane: Plane::Management, errands, out });
            }
            None => self.management = Some(Box::new(scout.supervisor(others, now).into())),
        }
        let here = scout.card.addr;
        if let Some(zone) = self.engine.as_mut().and_then(Membership::zone_mut) {
            zone.follow(now, Arc::from([here]));
        }
        self.run_errands(now, out);
    }

    /// Somebody else leads: its supervisor is not here.
    fn retire(&mut self, now: Instant, out: &mut impl Out) {
        let Self { management, errands, .. } = self;
        if let Some(mut management) = management.take() {
            management.leave(now, 0, &mut EngineOut { plane: Plane::Management, errands, out });
            self.run_errands(now, out);
        }
    }
}
