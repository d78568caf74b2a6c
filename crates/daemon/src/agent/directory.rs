//! Attributes and services of an agent, in the API's words.

use super::{Agent, words};
use phalanx_api::directory::{Beat, Directory as Whole, Entry, Sum};
use phalanx_api::{Attributes, Offer, Phase, Service};
use phalanx_core::Code;
use phalanx_protocol::cast::seats;
use phalanx_protocol::directory::load::{self, Load};
use phalanx_protocol::directory::{self, Directory, Query, RegisterError};
use phalanx_protocol::member::{Engine, Name, NameError, Slot, Version};
use std::collections::BTreeMap;

/// Keys that belong to us.
const RESERVED: [&str; 3] = ["phalanx.", directory::PREFIX, "zone."];

/// Why an attribute or a service was refused. What was there before still is.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// A key that services and we ourselves use.
    #[error("`{0}` is reserved: choose a key that begins with none of phalanx., svc/ and zone.")]
    Reserved(String),
    /// Key or value are too long.
    #[error("a key has 1 to {KEY} bytes and a value at most {VALUE}", KEY = phalanx_protocol::zone::attributes::KEY_MAX, VALUE = phalanx_protocol::zone::attributes::VALUE_MAX)]
    Length,
    /// There are too many.
    #[error("the node's attributes are full: remove some")]
    Full,
    /// A service's name.
    #[error("the service's name: {0}")]
    Name(#[from] NameError),
    /// A service.
    #[error(transparent)]
    Service(#[from] RegisterError),
    /// The node has left.
    #[error("the node has left the cluster")]
    Left,
}

impl From<Code> for WriteError {
    fn from(code: Code) -> Self {
        match code {
            Code::InvalidArgs => Self::Length,
            Code::NotInitialized => Self::Left,
            _ => Self::Full,
        }
    }
}

impl Agent {
    /// Writes one of the node's own attributes, or removes it.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn set_attribute(&mut self, key: &str, value: Option<&str>) -> Result<(), WriteError> {
        if RESERVED.iter().any(|r| key.starts_with(r)) {
            return Err(WriteError::Reserved(key.to_owned()));
        }
        self.set_reserved(key, value)
    }

    /// The same for what the daemon itself says.
    pub(crate) fn set_reserved(&mut self, key: &str, value: Option<&str>) -> Result<(), WriteError> {
        Ok(self.write(key, |agent| agent.driver.act(|node, now, _| node.set(now, key, value.map(str::as_bytes))))?)
    }

    /// Writes one of the node's own attributes. An engine tells what others say; what we say ourselves is told here.
    pub(super) fn write<R>(&mut self, key: &str, act: impl FnOnce(&mut Self) -> R) -> R {
        let value = |agent: &Self| {
            let engine = agent.engine();
            engine.attribute(engine.me(), key).map(<[u8]>::to_vec)
        };
        let before = value(self);
        let said = act(self);
        let after = value(self);
        let engine = self.engine();
        if let Some(what) = words::attribute(engine, engine.me(), key, after.as_deref()).filter(|_| before != after) {
            self.journal.add(what);
        }
        said
    }

    /// How busy the machine is, in thousandths: told to others when it has clearly changed.
    pub fn observe_load(&mut self, thousandths: u32) {
        let now = self.driver.now();
        let load = self.load.get_or_insert_with(|| Load::new(load::Config::default()));
        if let Some(level) = load.observe(now, thousandths) {
            // A node that has left has nothing to tell.
            let value = level.as_str().as_bytes();
            let _ =
                self.write(load::LOAD, |agent| agent.driver.act(|node, now, _| node.set(now, load::LOAD, Some(value))));
        }
    }

    /// What members say of themselves, by name; those who say nothing are left out. Services have their own list.
    #[must_use]
    pub fn attributes(&self) -> Vec<Attributes> {
        let engine = self.engine();
        let mut all: Vec<Attributes> = Vec::new();
        for (slot, _) in engine.members() {
            let said = engine
                .attributes(slot)
                .filter(|(key, _)| !key.starts_with(directory::PREFIX) && *key != seats::ATTRIBUTE);
            let attributes: BTreeMap<String, String> =
                said.map(|(key, value)| (key.to_owned(), String::from_utf8_lossy(value).into_owned())).collect();
            if let Some(card) = engine.card(slot).filter(|_| !attributes.is_empty()) {
                all.push(Attributes { name: card.name.as_str().to_owned(), attributes });
            }
        }
        all.sort_by(|a, b| a.name.cmp(&b.name));
        all
    }

    /// Offers a service, or changes what is said of it.
    ///
    /// # Errors
    /// See [`WriteError`].
    pub fn offer(&mut self, offer: &Offer) -> Result<(), WriteError> {
        let mut service = directory::Service::new(Name::new(&offer.name)?);
        service = offer.port.into_iter().fold(service, directory::Service::port);
        service = offer.partitions.iter().fold(service, |s, &(first, last)| s.partitions(first, last));
        service = offer.tags.iter().fold(service, |s, tag| s.tag(tag));
        service = offer.parameters.iter().fold(service, |s, (key, value)| s.parameter(key, value));
        let key = directory::key(&offer.name, offer.port);
        let register =
            |agent: &mut Self| agent.driver.act(|node, now, _| directory::register(node.engine_mut(), now, &service));
        Ok(self.write(&key, register)?)
    }

    /// Offers a service no more. False when it was not offered.
    ///
    /// # Errors
    /// When the node has left.
    pub fn withdraw(&mut self, name: &str, port: Option<u16>) -> Result<bool, WriteError> {
        let key = directory::key(name, port);
        let deregister = |agent: &mut Self| {
            agent.driver.act(|node, now, _| directory::deregister(node.engine_mut(), now, name, port))
        };
        Ok(self.write(&key, deregister)?)
    }

    /// Services that are there: those that a query asks for, or all.
    #[must_use]
    pub fn services(&self, query: Option<&Query>) -> Vec<Service> {
        let engine = self.engine();
        let zone = engine.name().map_or("", Name::as_str);
        let directory = Directory::of(engine).in_zone(zone);
        let found: Vec<_> = match query {
            Some(query) => directory.find(query).collect(),
            None => directory.services().collect(),
        };
        let mut services: Vec<Service> = found
            .into_iter()
            .map(|found| {
                let (part, teller) = words::part(engine, found.member);
                let node = found.card.name.as_str().to_owned();
                Service { node, addr: found.addr(), part, teller, offer: words::offer(&found.offer) }
            })
            .collect();
        services.sort_by(|a, b| (&a.offer.name, &a.node, a.offer.port).cmp(&(&b.offer.name, &b.node, b.offer.port)));
        services
    }

    /// All that this node knows of the members that are there, for those who keep a copy. News that wait become events
    /// first: what follows the last one is all that is not in it.
    pub fn directory(&mut self) -> Whole {
        self.write_news();
        let engine = self.engine();
        let entries = engine.members().filter_map(|(slot, version)| self.entry(slot, version)).collect();
        let phase = self.status().map_or(Phase::Leaving, |status| status.phase);
        Whole { event: self.journal.last(), phase, entries }
    }

    /// What a copy must come to that has followed all events.
    pub fn beat(&mut self) -> Beat {
        self.write_news();
        let engine = self.engine();
        let mut sum = Sum::default();
        for (slot, version) in engine.members() {
            if slot == engine.me() {
                self.entry(slot, version).iter().for_each(|entry| sum.add_entry(entry));
            } else if let Some(member) = words::member(engine, slot, version) {
                let said = engine.attributes(slot).filter(|(key, _)| *key != seats::ATTRIBUTE);
                let (mut attributes, mut services) = (0, 0);
                for (key, value) in said {
                    match key.starts_with(directory::PREFIX) {
                        true => services += usize::from(directory::Offer::parse(key, value).is_some()),
                        false => attributes += 1,
                    }
                }
                sum.add(&member, attributes, services);
            }
        }
        Beat { beat: self.journal.last(), sum: sum.value() }
    }

    fn entry(&self, slot: Slot, version: Version) -> Option<Entry> {
        let engine = self.engine();
        let mut entry = Entry::new(words::member(engine, slot, version)?);
        for (key, value) in engine.attributes(slot).filter(|(key, _)| *key != seats::ATTRIBUTE) {
            if key.starts_with(directory::PREFIX) {
                entry.services.extend(directory::Offer::parse(key, value).map(|o| words::offer(&o)));
            } else if let Ok(text) = std::str::from_utf8(value) {
                entry.attributes.insert(key.to_owned(), text.to_owned());
            } else {
                entry.opaque.insert(key.to_owned());
            }
        }
        entry.services.sort_by(|a, b| (&a.name, a.port).cmp(&(&b.name, b.port)));
        Some(entry)
    }
}
