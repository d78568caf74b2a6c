//! Zones as an agent knows them: a supervisor has the census of all, a member has its own zone and asks a supervisor.

use super::{Agent, RumourError, words};
use crate::store::hex;
use phalanx_api::rumours::Answer;
use phalanx_api::zones::{Census, Zone, ZoneMembers};
use phalanx_api::{Member, State};
use phalanx_core::{Addr, Duration, Instant};
use phalanx_protocol::member::{Card, Engine, Name, Version};
use phalanx_protocol::node::Plane;
use phalanx_protocol::node::scout::Scout;
use phalanx_protocol::rumour::{Id, Words};
use phalanx_protocol::zone::replicate::MONITOR;
use std::sync::Arc;
use tokio::sync::mpsc;

/// Asked of a supervisor: all zones.
pub(super) const CENSUS: &str = "phalanx.census";
/// Asked of a supervisor: the members of a zone.
pub(super) const DETAILS: &str = "phalanx.zone";
/// A supervisor answers within this time, or another one is asked.
const PATIENCE: Duration = Duration::from_secs(2);
/// Zones, and members of a zone, in one part of an answer.
const ZONES_PART: usize = 100;
const MEMBERS_PART: usize = 32;
/// Questions about zones that wait for a guard; more are not answered.
const INQUIRIES_MAX: usize = 64;

/// A question about a zone that waits for one of its guards.
#[derive(Debug)]
pub(super) struct Inquiry {
    id: Id,
    zone: Name,
    until: Instant,
}

/// What is known here, or where to ask.
pub enum Known<T> {
    /// This.
    Here(T),
    /// Nothing here; these supervisors were asked.
    Elsewhere(Vec<mpsc::Receiver<Answer>>),
}

impl Agent {
    /// All zones, and how many members each has.
    ///
    /// # Errors
    /// `Pace` when this node asks too much.
    pub fn census(&mut self) -> Result<Known<Census>, RumourError> {
        if let Some(census) = self.own_census() {
            return Ok(Known::Here(census));
        }
        let asked = self.ask_supervisors(CENSUS, b"")?;
        Ok(if asked.is_empty() { Known::Here(self.zone_alone()) } else { Known::Elsewhere(asked) })
    }

    /// Our own zone, when no supervisor can be asked.
    #[must_use]
    pub fn zone_alone(&self) -> Census {
        let engine = self.engine();
        let members = engine.len() as u64;
        let delegates = engine.members().filter(|m| engine.attribute(m.0, MONITOR).is_some()).count() as u64;
        let name = engine.name().map_or(String::new(), |n| n.as_str().to_owned());
        let source = self.name();
        Census {
            zones: vec![Zone { name, members, delegates, mine: true }],
            members,
            supervisors: 0,
            source,
            more: false,
        }
    }

    /// The members of a zone.
    ///
    /// # Errors
    /// `Pace` when this node asks too much.
    pub fn zone(&mut self, name: &Name) -> Result<Known<Option<ZoneMembers>>, RumourError> {
        let engine = self.engine();
        if engine.name() == Some(name) {
            let members = engine.members().filter_map(|(slot, version)| words::member(engine, slot, version)).collect();
            return Ok(Known::Here(Some(ZoneMembers { name: name.as_str().to_owned(), members, more: false })));
        }
        let guarded = self.management().is_some_and(|m| m.is_guard_of(name));
        if let Some(members) = self.known_details(name).filter(|_| guarded) {
            return Ok(Known::Here(Some(members)));
        }
        let asked = self.ask_supervisors(DETAILS, name.as_str().as_bytes())?;
        Ok(if asked.is_empty() { Known::Here(None) } else { Known::Elsewhere(asked) })
    }

    /// A supervisor to pass something on to that is in no zone, when we are none. Where zones come from segments, each is in one.
    #[must_use]
    pub fn a_supervisor(&self) -> Option<std::net::SocketAddr> {
        let is_one = self.management().is_some() || self.driver.node().scout().is_some_and(Scout::gives_zones);
        self.supervisors().iter().filter(|_| !is_one).find_map(|addr| match addr {
            Addr::Ip(addr) => Some(*addr),
            Addr::Group(_) | Addr::Local(_) => None,
        })
    }

    /// What we are called.
    #[must_use]
    pub fn name(&self) -> String {
        let engine = self.engine();
        engine.card(engine.me()).map_or(String::new(), |c| c.name.as_str().to_owned())
    }

    /// Where supervisors are looked for.
    pub(super) fn supervisors(&self) -> Arc<[Addr]> {
        self.engine().zone().map_or_else(Arc::default, |zone| zone.supervisors())
    }

    /// The engine of the management zone, at a supervisor.
    fn management(&self) -> Option<&phalanx_protocol::zone::Zone> {
        self.driver.node().plane(Plane::Management)?.zone()
    }

    /// The census of a supervisor.
    fn own_census(&self) -> Option<Census> {
        let management = self.management()?;
        let mine = self.driver.node().plane(Plane::Base).and_then(|e| e.name().cloned());
        let zones: Vec<Zone> = management
            .census()
            .map(|(name, summary)| Zone {
                members: summary.members.into(),
                delegates: summary.delegates.into(),
                mine: Some(&name) == mine.as_ref(),
                name: name.as_str().to_owned(),
            })
            .collect();
        let members = zones.iter().map(|z| z.members).sum();
        Some(Census { zones, members, supervisors: management.len() as u64, source: self.name(), more: false })
    }

    fn known_details(&self, zone: &Name) -> Option<ZoneMembers> {
        let details = self.management()?.details(zone)?;
        let members = details.iter().filter_map(|(card, version)| described(card, *version, zone)).collect();
        Some(ZoneMembers { name: zone.as_str().to_owned(), members, more: false })
    }

    /// Supervisors are asked directly: those that are configured, or, from one of them, the guards of a zone.
    pub(super) fn ask_supervisors(
        &mut self,
        name: &str,
        body: &[u8],
    ) -> Result<Vec<mpsc::Receiver<Answer>>, RumourError> {
        let supervisors: Vec<Addr> = match self.management() {
            Some(management) => {
                let me = management.me();
                let others = management.members().filter(|m| m.0 != me);
                others.filter_map(|(slot, _)| Some(management.card(slot)?.addr)).collect()
            }
            None => self.supervisors().to_vec(),
        };
        if supervisors.is_empty() {
            return Ok(Vec::new());
        }
        self.waiting.take(self.driver.now())?;
        let words = Words { name, body, only: "" };
        Ok(supervisors.into_iter().filter_map(|to| self.ask_words(words, PATIENCE, Some(to)).ok()).collect())
    }

    /// Somebody asks for the census. Who has none says nothing.
    pub(super) fn say_census(&mut self, id: Id) {
        let Some(mut census) = self.own_census() else { return };
        let zones = std::mem::take(&mut census.zones);
        let parts: Vec<&[Zone]> = if zones.is_empty() { vec![&[]] } else { zones.chunks(ZONES_PART).collect() };
        for (at, part) in parts.iter().enumerate() {
            census = Census { zones: part.to_vec(), more: at + 1 < parts.len(), ..census };
            self.say_part(id, &census, !census.more);
        }
    }

    /// Somebody asks for the members of a zone. When we do not guard it, a guard is asked first.
    pub(super) fn say_zone(&mut self, id: Id, body: &[u8]) {
        let Some(zone) = std::str::from_utf8(body).ok().and_then(|text| Name::new(text).ok()) else { return };
        let now = self.driver.now();
        self.inquiries.retain(|i| i.until > now);
        if self.inquiries.len() < INQUIRIES_MAX {
            // A guard answers at once by itself; what another one said before may be old.
            self.inquiries.push(Inquiry { id, zone: zone.clone(), until: now + PATIENCE });
            self.driver.act(|node, now, out| node.inquire(now, &zone, out));
        }
    }

    /// A guard answered.
    pub(super) fn on_details(&mut self, zone: &str) {
        let waiting = std::mem::take(&mut self.inquiries);
        let (answered, waiting): (Vec<_>, Vec<_>) = waiting.into_iter().partition(|i| i.zone.as_str() == zone);
        self.inquiries = waiting;
        for Inquiry { id, zone, .. } in answered {
            self.say_members(id, &zone);
        }
    }

    fn say_members(&mut self, id: Id, zone: &Name) {
        let Some(details) = self.known_details(zone) else { return };
        let count = details.members.chunks(MEMBERS_PART).count();
        for (at, part) in details.members.chunks(MEMBERS_PART).enumerate() {
            let part = ZoneMembers { name: details.name.clone(), members: part.to_vec(), more: at + 1 < count };
            self.say_part(id, &part, !part.more);
        }
    }

    pub(crate) fn say_part(&mut self, id: Id, part: &impl serde::Serialize, last: bool) {
        // Who asked may be gone.
        let _ = self.reply_to(id, &serde_json::to_vec(part).unwrap_or_default(), last);
    }
}

fn described(card: &Card, version: Version, zone: &Name) -> Option<Member> {
    let Addr::Ip(addr) = card.addr else { return None };
    Some(Member {
        name: card.name.as_str().to_owned(),
        id: hex(&card.identity.0),
        addr,
        state: State::Alive,
        zone: Some(zone.as_str().to_owned()),
        incarnation: version.incarnation,
        minor: version.minor,
        me: false,
        part: None,
        teller: None,
    })
}
