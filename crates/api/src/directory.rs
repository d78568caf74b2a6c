//! The whole directory, and how a program keeps a copy of it: [`Directory`] once, then a [`Word`] for each change and a
//! [`Beat`] each second.

use crate::{Event, Member, Offer, Phase};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Between two beats, in milliseconds.
pub const BEAT_MS: u64 = 1000;

/// All that a node knows of the members that are there, at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Directory {
    /// The last event that is in it: changes are those that follow.
    pub event: u64,
    /// Where the node is in its life: one that starts does not know the others yet.
    pub phase: Phase,
    /// Each member that is there.
    pub entries: Vec<Entry>,
}

/// What is known of a member.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Entry {
    /// Who it is, and where. How often it spoke up for itself is not followed, nor on whose word the node has it.
    pub member: Member,
    /// What it says of itself, its load among it; services have their own list.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub attributes: BTreeMap<String, String>,
    /// Keys of attributes that are no text.
    #[serde(skip_serializing_if = "BTreeSet::is_empty", default)]
    pub opaque: BTreeSet<String>,
    /// What it offers, by name and port.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub services: Vec<Offer>,
}

impl Entry {
    /// Somebody who has said nothing yet.
    #[must_use]
    pub const fn new(member: Member) -> Self {
        Self { member, attributes: BTreeMap::new(), opaque: BTreeSet::new(), services: Vec::new() }
    }
}

/// Something for those who keep a copy.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged)]
#[allow(clippy::large_enum_variant)] // One at a time is read, and taken apart at once.
pub enum Word {
    /// Something changed.
    Event(Event),
    /// Nothing else did.
    Beat(Beat),
}

/// The node lives, and a copy that followed all events until now has this sum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Beat {
    /// The last event that is in it; it was told before.
    pub beat: u64,
    /// Of all members: see [`Sum`].
    pub sum: u64,
}

/// A sum over members, in any order. Not all that can change is an event (a member takes another name, our node moves to
/// another zone, hears one that it was told of): a copy with another sum is taken anew.
///
/// Of others it holds who and where they are and how much they say, of our node all that it says: what it writes by itself
/// is no event either, and to go through everybody's values each second would hold up the node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Sum(u64);

impl Sum {
    /// Numbers up to here are exact for all readers of JSON.
    const MASK: u64 = (1 << 53) - 1;

    /// One member, and how many attributes and services it has.
    pub fn add(&mut self, member: &Member, attributes: usize, services: usize) {
        let mut hash = Fnv::new();
        hash.text(&member.id);
        hash.text(&member.name);
        hash.text(member.zone.as_deref().unwrap_or_default());
        member.part.iter().for_each(|part| hash.text(part.name()));
        hash.number(member.incarnation);
        match member.addr.ip() {
            std::net::IpAddr::V4(ip) => hash.bytes(&ip.octets()),
            std::net::IpAddr::V6(ip) => hash.bytes(&ip.octets()),
        }
        hash.number(member.addr.port().into());
        hash.number(attributes as u64);
        hash.number(services as u64);
        self.0 = self.0.wrapping_add(hash.0);
    }

    /// One member as an entry holds it.
    pub fn add_entry(&mut self, entry: &Entry) {
        self.add(&entry.member, entry.attributes.len() + entry.opaque.len(), entry.services.len());
        if entry.member.me {
            let mut hash = Fnv::new();
            for (key, value) in &entry.attributes {
                hash.text(key);
                hash.text(value);
            }
            self.0 = self.0.wrapping_add(hash.0);
        }
    }

    /// The sum.
    #[must_use]
    pub const fn value(self) -> u64 {
        self.0 & Self::MASK
    }
}

/// FNV-1a. Nobody gains from two copies that are mistaken for each other, so it need not be a strong hash.
struct Fnv(u64);

impl Fnv {
    const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
        self.bytes(&[0xff]);
    }

    fn number(&mut self, number: u64) {
        self.bytes(&number.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Part, State, What};

    fn member(name: &str) -> Member {
        Member {
            name: name.into(),
            id: format!("id of {name}"),
            addr: "10.0.0.1:7946".parse().unwrap(),
            state: State::Alive,
            zone: None,
            incarnation: 7,
            minor: 2,
            me: false,
            part: None,
            teller: None,
        }
    }

    fn sum(entries: &[Entry]) -> u64 {
        let mut sum = Sum::default();
        entries.iter().for_each(|e| sum.add_entry(e));
        sum.value()
    }

    #[test]
    fn beats_and_events_are_told_apart() {
        let event = Word::Event(Event { id: 3, at_ms: 5, what: What::Gap });
        let beat = Word::Beat(Beat { beat: 3, sum: (1 << 53) - 1 });
        for word in [event, beat] {
            let text = serde_json::to_string(&word).unwrap();
            assert_eq!(serde_json::from_str::<Word>(&text).unwrap(), word, "{text}");
        }
        assert_eq!(serde_json::to_string(&Beat { beat: 3, sum: 9 }).unwrap(), r#"{"beat":3,"sum":9}"#);
    }

    #[test]
    fn a_sum_is_of_all_that_no_event_may_tell() {
        let (a, b) = (Entry::new(member("a")), Entry::new(member("b")));
        let same = sum(&[a.clone(), b.clone()]);
        assert_eq!(same, sum(&[b.clone(), a.clone()]));
        let renamed = Member { name: "c".into(), ..a.member.clone() };
        let moved = Member { addr: "10.0.0.2:7946".parse().unwrap(), ..a.member.clone() };
        let elsewhere = Member { zone: Some("z".into()), ..a.member.clone() };
        let again = Member { incarnation: 8, ..a.member.clone() };
        let heard = Member { part: Some(Part::Local), ..a.member.clone() };
        let told = Member { part: Some(Part::External), ..a.member.clone() };
        assert_ne!(sum(&[Entry::new(heard.clone())]), sum(&[Entry::new(told.clone())]));
        for other in [renamed, moved, elsewhere, again, heard, told] {
            assert_ne!(same, sum(&[Entry::new(other), b.clone()]));
        }
        let says = Entry { attributes: [("k".into(), "v".into())].into(), ..a.clone() };
        assert_ne!(same, sum(&[says, b.clone()]));
        let me = |value: &str| Entry {
            member: Member { me: true, ..member("me") },
            attributes: [("k".into(), value.into())].into(),
            ..a.clone()
        };
        assert_ne!(sum(&[me("v"), b.clone()]), sum(&[me("w"), b.clone()]));
        assert_ne!(same, sum(&[a]));
        let spoke = Member { minor: 9, ..b.member.clone() };
        assert_eq!(sum(&[b]), sum(&[Entry::new(spoke)]), "how often it spoke up is not followed");
    }
}
