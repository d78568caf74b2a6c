//! Heralds: the members of a zone that tell other zones who is in theirs, and their own zone who is elsewhere.
//!
//! CM-1, 004 §2; 002 §2. The manager has replicas, agents and ranks in all zones, and each zone sees itself alone. What a zone sees of its
//! members, every member writes into its own [`Atlas`]; *heralds*, the delegates of the zone, carry it to others. Nobody watches anybody
//! because of that: who is gone is found by the zone's own failure detection, and told.
//!
//! ```text
//!    zone a                                        zone b
//!    members ◀── herald ── news, sums ──▶ herald ──▶ members
//!                   └── sums ──▶ supervisors ◀── sums ──┘        where zones that never met hear of each other
//! ```
//!
//! - **News** goes out within [`PACE`]: to the heralds of [`FANOUT`] other zones, who tell the members of theirs, and pass it on where there
//!   are more zones than that.
//! - **Sums** go round every [`BEAT`], to as many zones and one supervisor, and every other time to the members of the own zone: what was
//!   lost, or happened while nobody was a herald, is found by them. Where they differ, the parts that differ are exchanged.
//! - **Who falls**: everybody has the whole atlas, so the next delegate goes on at once, and any member of a zone whose heralds are not
//!   known, or are silent, is as good to speak to. Supervisors are needed to meet only.
//! - **A zone that falls as a whole** has nobody who says so. Each beat of a zone's first herald has a number, which travels with the
//!   sums. When it has not grown for [`SILENT`], nobody of that zone is taken to be there. That is no proof: whoever is heard by the replicas
//!   stays, and the others' ranks are given up only when their lease is over.
//!
//! ⚠ Whoever has the cluster's key is believed, as in membership.

#[cfg(test)]
mod tests;
mod tidings;

pub use tidings::{Sum, Tidings, What};

use super::atlas::{Atlas, PARTS, Record, Taken};
use super::state::NodeInfo;
use super::words::Key;
use phalanx_core::{Addr, Duration, Instant, Rng};
use std::collections::{BTreeMap, BTreeSet};

/// News waits for more of it for so long.
pub const PACE: Duration = Duration::from_millis(50);
/// Time between two sums of a herald.
pub const BEAT: Duration = Duration::from_secs(2);
/// The same while it knows of no other zone, so many times.
const HASTE: Duration = Duration::from_millis(250);
const HASTES: u8 = 40;
/// Other zones that are spoken to at once.
pub const FANOUT: usize = 4;
/// Heralds of another zone that are remembered, and beats without a word until they are not.
const HERALDS: usize = 2;
const HERALD_FOR: Duration = Duration(BEAT.0 * 5);
/// Members of a silent zone that are asked in turn.
const SOUGHT: usize = 3;
/// A zone of which no beat was heard for so long is silent: beats go through some zones on their way.
pub const SILENT: Duration = Duration::from_secs(20);
/// Somebody of our zone is said to be gone, and is there, for so long: it is said again.
const CONTRADICTED: Duration = Duration::from_secs(3);
/// Somebody is said to be in our zone, whom it does not show, for so long: it is gone. Another part of the zone may show it: then longer.
const STALE: Duration = Duration::from_secs(15);
const STALE_ELSEWHERE: Duration = Duration::from_secs(120);
/// Records in a packet, but for a part of a zone that has more.
const RECORDS: usize = 128;
/// Zones about which sums are answered at once.
const DIFFERENT: usize = 8;

/// A node's place among the zones.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Place {
    /// Its zone; none at a mere supervisor, which is a herald of nobody.
    pub zone: String,
    /// Its rank among the zone's heralds, from 0, when it is one.
    pub rank: Option<u8>,
    /// The other heralds of its zone.
    pub heralds: Vec<Addr>,
    /// Where supervisors are, or may be.
    pub supervisors: Vec<Addr>,
}

impl Place {
    fn is_supervisor(&self) -> bool {
        self.zone.is_empty()
    }

    /// Which zone this node is one of, and whether it speaks for it.
    fn tidings(&self, what: What) -> Tidings {
        Tidings { zone: self.zone.clone(), herald: self.rank.is_some(), what }
    }
}

/// What follows for the steward.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Act {
    /// Say this to the node there.
    Send(Addr, Tidings),
    /// This node of another zone is there.
    Seen(NodeInfo),
    /// This one is gone, in that start of it.
    Gone(Key, u64),
    /// Nothing is heard of this one's zone.
    Unseen(Key),
}

/// Another zone.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Abroad {
    /// Those who speak for it, and when they did.
    heralds: Vec<(Addr, Instant)>,
    beat: u64,
    beat_at: Instant,
    is_silent: bool,
}

impl Abroad {
    fn new(now: Instant) -> Self {
        Self { heralds: Vec::new(), beat: 0, beat_at: now, is_silent: false }
    }
}

/// A node's part in it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Herald {
    me: Key,
    place: Option<Place>,
    atlas: Atlas,
    /// Whom our own zone shows, and in which version.
    own: BTreeMap<Key, (NodeInfo, u32)>,
    abroad: BTreeMap<String, Abroad>,
    /// Our own beat, or the last that we heard of our zone.
    beat: u64,
    beat_at: Instant,
    hastes: u8,
    beats: u64,
    /// Of whom others have not heard yet, and since when we wait to tell.
    news: BTreeSet<Key>,
    /// Members of our zone that know nothing yet.
    newcomers: BTreeSet<Key>,
    tell_at: Instant,
    /// What others say of our zone and we see otherwise, since when.
    odd: BTreeMap<Key, Instant>,
    /// What found no room.
    pub crowded: u64,
}

impl Herald {
    /// Of a node that knows of no zones yet.
    #[must_use]
    pub fn new(me: Key) -> Self {
        Self {
            me,
            place: None,
            atlas: Atlas::default(),
            own: BTreeMap::new(),
            abroad: BTreeMap::new(),
            beat: 0,
            beat_at: Instant::NEVER,
            hastes: 0,
            beats: 0,
            news: BTreeSet::new(),
            newcomers: BTreeSet::new(),
            tell_at: Instant::NEVER,
            odd: BTreeMap::new(),
            crowded: 0,
        }
    }

    /// When it wants to act.
    #[must_use]
    pub fn deadline(&self) -> Instant {
        self.beat_at.min(self.tell_at)
    }

    /// The atlas, to be looked at.
    #[must_use]
    pub fn atlas(&self) -> &Atlas {
        &self.atlas
    }

    fn speaks(&self) -> bool {
        self.place.as_ref().is_some_and(|p| p.rank.is_some())
    }

    /// Of a node that a manager may care for; a mere supervisor carries what others say, and sees nobody itself.
    fn is_told(&self) -> bool {
        self.place.as_ref().is_some_and(|p| !p.is_supervisor())
    }

    fn zone(&self) -> Option<&str> {
        self.place.as_ref().map(|p| p.zone.as_str())
    }

    fn is_ours(&self, zone: &str) -> bool {
        self.zone() == Some(zone)
    }

    /// The node has this place from now on.
    pub fn on_placed(&mut self, now: Instant, place: Place) {
        if self.place.as_ref() == Some(&place) {
            return;
        }
        let spoke = self.speaks();
        let moved = self.zone() != Some(place.zone.as_str());
        self.place = Some(place);
        if moved {
            let zone = self.zone().unwrap_or_default().to_owned();
            self.abroad.remove(&zone);
            for (other, _) in self.atlas.zones().filter(|z| z.0 != zone) {
                self.abroad.entry(other.to_owned()).or_insert_with(|| Abroad::new(now));
            }
            // What was seen before had no zone to be of.
            self.own.retain(|_, (node, _)| node.zone == zone);
            let own: Vec<_> = self.own.values().cloned().collect();
            own.into_iter().for_each(|(node, minor)| self.write(now, node, minor));
        }
        if self.speaks() && !spoke {
            // Whoever spoke before may have said nothing for a while.
            (self.hastes, self.beat_at) = (0, now + PACE);
        } else if !self.speaks() {
            self.odd.clear();
            self.beat_at = self.beat_at.min(now + BEAT);
        }
    }

    /// Our zone shows this member, in this version.
    pub fn on_seen(&mut self, now: Instant, node: &NodeInfo, minor: u32) {
        self.own.insert(node.key, (node.clone(), minor));
        if self.is_ours(&node.zone) {
            self.write(now, node.clone(), minor);
        }
        if self.speaks() && node.key != self.me {
            self.newcomers.insert(node.key);
            self.tell_at = self.tell_at.min(now + PACE);
        }
    }

    fn write(&mut self, now: Instant, node: NodeInfo, minor: u32) {
        let key = node.key;
        let old = self.atlas.record(&key).filter(|old| old.node.incarnation == node.incarnation);
        let (minor, edition) = match old {
            Some(old) if old.there && old.node == node => return,
            // Another name, or other slots, in the same version.
            Some(old) if old.there && old.minor >= minor => (old.minor, old.edition.saturating_add(1)),
            _ => (minor, 0),
        };
        self.put(now, Record { node, minor, edition, there: true });
    }

    fn put(&mut self, now: Instant, record: Record) {
        let key = record.node.key;
        match self.atlas.take(now, record) {
            Taken::News | Taken::Newer => self.tell_soon(now, key),
            Taken::Crowded => self.crowded += 1,
            Taken::Known | Taken::Older => {}
        }
    }

    fn tell_soon(&mut self, now: Instant, key: Key) {
        if self.place.is_some() {
            self.news.insert(key);
            self.tell_at = self.tell_at.min(now + PACE);
        }
    }

    /// Our zone says that this member is gone. False when another zone has it, which is the one to say so.
    pub fn on_gone(&mut self, now: Instant, node: Key, incarnation: u64, minor: u32) -> bool {
        self.own.remove(&node);
        let Some(old) = self.atlas.record(&node) else { return true };
        if self.place.is_some() && old.there && !self.is_ours(&old.node.zone) {
            // It moved, or we did.
            return false;
        }
        if old.there && old.node.incarnation == incarnation {
            let record = Record { minor: old.minor.max(minor), there: false, ..old.clone() };
            self.put(now, record);
        }
        true
    }

    /// Time has passed.
    pub fn expire(&mut self, now: Instant, rng: &mut Rng, acts: &mut Vec<Act>) {
        if now >= self.tell_at {
            self.tell_at = Instant::NEVER;
            self.tell_news(rng, acts);
        }
        if now >= self.beat_at {
            self.on_beat(now, rng, acts);
        }
    }

    // Sums.

    fn on_beat(&mut self, now: Instant, rng: &mut Rng, acts: &mut Vec<Act>) {
        self.beats += 1;
        let is_hasty = self.abroad.is_empty() && self.hastes < HASTES;
        self.hastes += u8::from(is_hasty);
        self.beat_at = now + if is_hasty && self.speaks() { HASTE } else { BEAT };
        self.look_for_silence(now, acts);
        let Some(place) = self.place.clone().filter(|p| p.rank.is_some()) else {
            if self.abroad.is_empty() {
                self.beat_at = Instant::NEVER;
            }
            return;
        };
        if place.rank == Some(0) {
            self.beat = self.beat.saturating_add(1);
        }
        self.look_for_odds(now);
        let mut to = self.contacts(rng);
        if !place.supervisors.is_empty() {
            to.push(place.supervisors[(self.beats % place.supervisors.len() as u64) as usize]);
        }
        if place.rank == Some(0) && !self.abroad.is_empty() && self.beats.is_multiple_of(2) {
            to.extend(self.own.iter().filter(|(key, _)| **key != self.me).map(|(_, (node, _))| Addr::from(node.at)));
        }
        let have = place.tidings(What::Have(self.sums()));
        acts.extend(to.into_iter().map(|to| Act::Send(to, have.clone())));
    }

    fn sums(&self) -> Vec<Sum> {
        let zones = self.atlas.zones();
        zones.map(|(zone, sum)| Sum { zone: zone.to_owned(), sum, beat: self.beat_of(zone) }).collect()
    }

    fn beat_of(&self, zone: &str) -> u64 {
        if self.is_ours(zone) { self.beat } else { self.abroad.get(zone).map_or(0, |a| a.beat) }
    }

    /// Somebody to speak to in each of the next other zones.
    fn contacts(&self, rng: &mut Rng) -> Vec<Addr> {
        let zones: Vec<&String> = self.abroad.keys().collect();
        let count = zones.len().min(FANOUT);
        let first = if zones.len() > FANOUT { rng.index(zones.len()) } else { 0 };
        let chosen = (0..count).map(|i| zones[(first + i) % zones.len()]);
        chosen.flat_map(|zone| self.contacts_in(zone, rng)).collect()
    }

    /// Its heralds, or anybody in it.
    fn contacts_in(&self, zone: &str, rng: &mut Rng) -> Vec<Addr> {
        let heralds = self.abroad.get(zone).map_or(&[][..], |a| &a.heralds);
        if !heralds.is_empty() {
            return heralds.iter().map(|h| h.0).collect();
        }
        let there: Vec<Addr> = self.atlas.nodes_of(zone).map(|r| r.node.at.into()).collect();
        // Who may be dead is not sought at ever more places.
        let is_silent = self.abroad.get(zone).is_some_and(|a| a.is_silent);
        let count = if is_silent { there.len().min(SOUGHT) } else { there.len() };
        if count == 0 { Vec::new() } else { vec![there[rng.index(count)]] }
    }

    /// Zones of which nothing is heard, and heralds.
    fn look_for_silence(&mut self, now: Instant, acts: &mut Vec<Act>) {
        let is_told = self.is_told();
        let gone: Vec<&String> = self.abroad.keys().filter(|zone| self.atlas.sum(zone) == 0).collect();
        let gone: Vec<String> = gone.into_iter().cloned().collect();
        gone.iter().for_each(|zone| _ = self.abroad.remove(zone));
        for (zone, abroad) in &mut self.abroad {
            abroad.heralds.retain(|h| now.since(h.1) < HERALD_FOR);
            if !abroad.is_silent && now.since(abroad.beat_at) >= SILENT {
                abroad.is_silent = true;
                acts.extend(self.atlas.nodes_of(zone).filter(|_| is_told).map(|r| Act::Unseen(r.node.key)));
            }
        }
    }

    /// Others say something of our zone that we see otherwise: when that lasts, we say it again.
    fn look_for_odds(&mut self, now: Instant) {
        let zone = self.zone().unwrap_or_default().to_owned();
        if zone.is_empty() {
            return;
        }
        let mut odd = BTreeMap::new();
        let mut said = Vec::new();
        let since = |key: &Key| self.odd.get(key).copied().unwrap_or(now);
        for (key, (node, _)) in &self.own {
            let Some(record) = self.atlas.record(key).filter(|r| !r.there) else { continue };
            if record.node.incarnation == node.incarnation {
                if now.since(since(key)) < CONTRADICTED {
                    odd.insert(*key, since(key));
                } else {
                    let (minor, edition) = (record.minor, record.edition.saturating_add(1));
                    said.push(Record { node: node.clone(), minor, edition, there: true });
                }
            }
        }
        for record in self.atlas.nodes_of(&zone).filter(|r| !self.own.contains_key(&r.node.key)) {
            let key = record.node.key;
            let patience = if record.edition == 0 { STALE } else { STALE_ELSEWHERE };
            if now.since(since(&key)) < patience {
                odd.insert(key, since(&key));
            } else {
                said.push(Record { there: false, ..record.clone() });
            }
        }
        self.odd = odd;
        said.into_iter().for_each(|record| self.put(now, record));
    }

    // News.

    fn tell_news(&mut self, rng: &mut Rng, acts: &mut Vec<Act>) {
        let (news, newcomers) = (std::mem::take(&mut self.news), std::mem::take(&mut self.newcomers));
        let Some(place) = self.place.clone().filter(|p| !p.is_supervisor()) else { return };
        let of = |ours: bool| {
            let records = news.iter().filter_map(|key| self.atlas.record(key));
            records.filter(|r| self.is_ours(&r.node.zone) == ours).cloned().collect::<Vec<Record>>()
        };
        let (ours, foreign) = (of(true), of(false));
        if place.rank.is_none() {
            // Somebody from abroad took us for a herald. What our own zone sees its heralds see.
            return place.heralds.iter().for_each(|&to| tell(&place, to, &foreign, acts));
        }
        let is_small = self.abroad.len() <= FANOUT;
        for to in self.contacts(rng) {
            tell(&place, to, &ours, acts);
            // Where heralds reach all others themselves, nobody passes on anything.
            if !is_small {
                tell(&place, to, &foreign, acts);
            }
        }
        for (key, (node, _)) in self.own.iter().filter(|(key, _)| **key != self.me) {
            tell(&place, node.at.into(), &foreign, acts);
            if newcomers.contains(key) && !self.abroad.is_empty() {
                acts.push(Act::Send(node.at.into(), place.tidings(What::Have(self.sums()))));
            }
        }
    }

    // What is heard.

    /// Somebody says something.
    pub fn on_tidings(&mut self, now: Instant, from: Addr, tidings: Tidings, acts: &mut Vec<Act>) {
        let Some(place) = self.place.clone() else { return };
        let Tidings { zone, herald, what } = tidings;
        if let Some(abroad) = self.abroad.get_mut(&zone) {
            abroad.heralds.retain(|h| h.0 != from);
            if herald {
                abroad.heralds.insert(0, (from, now));
                abroad.heralds.truncate(HERALDS);
            }
        }
        match what {
            What::Have(sums) => self.on_have(now, &place, from, &sums, acts),
            What::Parts(zone, theirs) => {
                let ours = self.atlas.parts(&zone);
                let differ = (0..PARTS).filter(|&i| ours[i] != theirs[i]).fold(0, |parts, i| parts | 1 << i);
                self.show(&place, from, &zone, differ, acts);
            }
            What::Nodes { records, all } => self.on_nodes(now, &place, (from, &zone), records, all, acts),
        }
    }

    fn on_have(&mut self, now: Instant, place: &Place, from: Addr, sums: &[Sum], acts: &mut Vec<Act>) {
        let is_told = self.is_told();
        for sum in sums {
            if self.is_ours(&sum.zone) {
                self.beat = self.beat.max(sum.beat);
            } else if let Some(abroad) = self.abroad.get_mut(&sum.zone).filter(|a| sum.beat > a.beat) {
                (abroad.beat, abroad.beat_at) = (sum.beat, now);
                if std::mem::take(&mut abroad.is_silent) {
                    acts.extend(self.atlas.nodes_of(&sum.zone).filter(|_| is_told).map(|r| Act::Seen(r.node.clone())));
                }
            }
        }
        let told = |zone: &str| sums.iter().find(|s| s.zone == zone).map_or(0, |s| s.sum);
        let ours = self.atlas.zones().filter(|(zone, sum)| told(zone) != *sum).map(|z| z.0.to_owned());
        let theirs = sums.iter().filter(|s| self.atlas.sum(&s.zone) == 0 && s.sum != 0).map(|s| s.zone.clone());
        let differ: BTreeSet<String> = ours.chain(theirs).collect();
        for zone in differ.into_iter().take(DIFFERENT) {
            let parts = self.atlas.parts(&zone);
            acts.push(Act::Send(from, place.tidings(What::Parts(zone, parts))));
        }
    }

    /// Shows who is there in these parts of a zone, some parts at once.
    fn show(&self, place: &Place, to: Addr, zone: &str, parts: u16, acts: &mut Vec<Act>) {
        let (mut records, mut shown) = (Vec::new(), 0);
        for part in (0..PARTS).map(|i| 1 << i).filter(|part| parts & part != 0) {
            records.extend(self.atlas.nodes_in(zone, part).cloned());
            shown |= part;
            if records.len() >= RECORDS {
                let all = Some((zone.to_owned(), std::mem::take(&mut shown)));
                let what = What::Nodes { records: std::mem::take(&mut records), all };
                acts.push(Act::Send(to, place.tidings(what)));
            }
        }
        if shown != 0 {
            let what = What::Nodes { records, all: Some((zone.to_owned(), shown)) };
            acts.push(Act::Send(to, place.tidings(what)));
        }
    }

    fn on_nodes(
        &mut self,
        now: Instant,
        place: &Place,
        (from, zone): (Addr, &str),
        records: Vec<Record>,
        all: Option<(String, u16)>,
        acts: &mut Vec<Act>,
    ) {
        let shown: BTreeSet<Key> = records.iter().map(|r| r.node.key).collect();
        let mut better = Vec::new();
        for record in records {
            let (key, is_ours) = (record.node.key, self.is_ours(&record.node.zone));
            match self.atlas.take(now, record) {
                Taken::News => {
                    self.follow(now, key, is_ours, acts);
                    // Members of a zone hear of others from its heralds.
                    if self.speaks() || zone != place.zone {
                        self.tell_soon(now, key);
                    }
                }
                Taken::Older => better.extend(self.atlas.record(&key).cloned()),
                Taken::Crowded => self.crowded += 1,
                Taken::Newer | Taken::Known => {}
            }
        }
        if let Some((zone, parts)) = all {
            better.extend(self.atlas.nodes_in(&zone, parts).filter(|r| !shown.contains(&r.node.key)).cloned());
        }
        tell(place, from, &better, acts);
    }

    /// Somebody elsewhere came, went or changed.
    fn follow(&mut self, now: Instant, key: Key, is_ours: bool, acts: &mut Vec<Act>) {
        let Some(record) = self.atlas.record(&key) else { return };
        if is_ours {
            return;
        }
        let is_told = self.is_told();
        if !record.there {
            return acts.extend(is_told.then_some(Act::Gone(key, record.node.incarnation)));
        }
        let zone = record.node.zone.clone();
        let node = record.node.clone();
        let abroad = self.abroad.entry(zone).or_insert_with(|| Abroad::new(now));
        if is_told && !abroad.is_silent {
            acts.push(Act::Seen(node));
        }
        self.beat_at = self.beat_at.min(now + BEAT);
    }
}

fn tell(place: &Place, to: Addr, records: &[Record], acts: &mut Vec<Act>) {
    for records in records.chunks(RECORDS) {
        let what = What::Nodes { records: records.to_vec(), all: None };
        acts.push(Act::Send(to, place.tidings(what)));
    }
}
