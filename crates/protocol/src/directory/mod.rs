//! The directory: which services the members offer, and how to find them (AT-1, TG-4; 003 §5.1's yellow pages).
//!
//! A service is an attribute of the member that offers it, so it is everywhere as soon as the attribute is, and gone when
//! its member is: only services of members in the view are found. Whatever implements [`Engine`] has a directory.
//!
//! ```text
//!   svc/cache            a service without a port
//!   svc/cache:6379       one of several by that name; the value holds partitions, tags and parameters
//! ```
//!
//! | file | idea |
//! |---|---|
//! | `service` | what a member registers |
//! | [`query`] | which ones are wanted: `name =~ "cache-.*" and partition in 3..5`; the crate `phalanx-query` |
//! | [`load`] | how busy a member is, in coarse steps |

pub mod load;
mod service;

#[cfg(test)]
mod tests;

pub use phalanx_query as query;
pub use query::PREFIX;
pub use query::{Query, QueryError};
pub use service::{RegisterError, Service, key};

use crate::member::{Card, Engine, Slot, Version};
use phalanx_core::{Addr, Code, Instant};
use phalanx_wire::service::{self as wire, Item};
use query::{Service as _, Value};
use std::net::SocketAddr;

/// Offers a service, or changes what is said of it.
///
/// # Errors
/// When its value is too long, or the engine has no room for it. What was offered before still is.
pub fn register(engine: &mut impl Engine, now: Instant, service: &Service) -> Result<(), RegisterError> {
    let value = service.encode()?;
    engine.set(now, &service.key(), Some(&value)).map_err(RegisterError::Refused)
}

/// Offers a service no more. False when it was not offered.
///
/// # Errors
/// `NotInitialized` when we have left.
pub fn deregister(engine: &mut impl Engine, now: Instant, name: &str, port: Option<u16>) -> Result<bool, Code> {
    let key = service::key(name, port);
    let offered = engine.attribute(engine.me(), &key).is_some();
    engine.set(now, &key, None)?;
    Ok(offered)
}

/// What the members in an engine's view offer.
#[derive(Clone, Copy, Debug)]
pub struct Directory<'e, E> {
    engine: &'e E,
    zone: Option<&'e str>,
}

impl<'e, E: Engine> Directory<'e, E> {
    /// The services of an engine's members.
    #[must_use]
    pub const fn of(engine: &'e E) -> Self {
        Self { engine, zone: None }
    }

    /// The same, where queries for `zone` find this name at members that say nothing else.
    #[must_use]
    pub const fn in_zone(self, zone: &'e str) -> Self {
        Self { zone: Some(zone), ..self }
    }

    /// All services, by member and key. What is under the prefix and no service is left out.
    pub fn services(&self) -> impl Iterator<Item = Found<'e>> + use<'e, E> {
        let engine = self.engine;
        engine.members().flat_map(move |(member, version)| {
            let card = engine.card(member);
            let offers = engine.attributes(member).filter_map(|(key, value)| Offer::parse(key, value));
            offers.filter_map(move |offer| Some(Found { member, version, card: card?, offer }))
        })
    }

    /// The services that a query asks for, by member and key.
    pub fn find<'q>(&self, query: &'q Query) -> impl Iterator<Item = Found<'e>> + use<'e, 'q, E> {
        let (engine, zone) = (self.engine, self.zone);
        self.services().filter(move |found| query.matches(&Facts { engine, zone, found }.fields()))
    }
}

/// A service that is there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found<'e> {
    /// Who offers it.
    pub member: Slot,
    /// In which life.
    pub version: Version,
    /// Its name and where it is.
    pub card: &'e Card,
    /// What it offers.
    pub offer: Offer<'e>,
}

impl Found<'_> {
    /// Where the service is called: the member's host, the service's port. `None` without a port or a host.
    #[must_use]
    pub fn addr(&self) -> Option<SocketAddr> {
        match self.card.addr {
            Addr::Ip(host) => self.offer.port.map(|port| SocketAddr::new(host.ip(), port)),
            Addr::Local(_) | Addr::Group(_) => None,
        }
    }
}

/// What a member says of a service: a checked view of the attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer<'a> {
    /// What it is called.
    pub name: &'a str,
    /// Where it listens.
    pub port: Option<u16>,
    value: wire::Service<'a>,
}

impl<'a> Offer<'a> {
    /// The service that an attribute tells of; `None` when it is no service or makes no sense.
    #[must_use]
    pub fn parse(key: &'a str, value: &'a [u8]) -> Option<Self> {
        let (name, port) = service::split_key(key)?;
        Some(Self { name, port, value: wire::Service::parse(value).ok()? })
    }

    /// The partitions that it serves, from first to last, ascending.
    pub fn partitions(&self) -> impl Iterator<Item = (u32, u32)> + use<'a> {
        self.value.items().filter_map(|item| match item {
            Item::Partitions(first, last) => Some((first, last)),
            Item::Tag(_) | Item::Parameter(..) => None,
        })
    }

    /// Its tags.
    pub fn tags(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        self.value.items().filter_map(|item| match item {
            Item::Tag(tag) => Some(tag),
            Item::Partitions(..) | Item::Parameter(..) => None,
        })
    }

    /// Its parameters.
    pub fn parameters(&self) -> impl Iterator<Item = (&'a str, &'a str)> + use<'a> {
        self.value.items().filter_map(|item| match item {
            Item::Parameter(key, value) => Some((key, value)),
            Item::Partitions(..) | Item::Tag(_) => None,
        })
    }
}

/// What a query can ask about a service: see [`query::Service`] for the order in which a key is looked up.
struct Facts<'f, 'e, E> {
    engine: &'e E,
    zone: Option<&'e str>,
    found: &'f Found<'e>,
}

impl<E: Engine> query::Service for Facts<'_, '_, E> {
    fn name(&self) -> &str {
        self.found.offer.name
    }

    fn node(&self) -> &str {
        self.found.card.name.as_str()
    }

    fn port(&self) -> Option<u16> {
        self.found.offer.port
    }

    fn partitions(&self) -> impl Iterator<Item = (u32, u32)> {
        self.found.offer.partitions()
    }

    fn tags(&self) -> impl Iterator<Item = &str> {
        self.found.offer.tags()
    }

    fn parameter(&self, key: &str) -> Option<&str> {
        self.found.offer.parameters().find(|p| p.0 == key).map(|p| p.1)
    }

    fn attribute(&self, key: &str) -> Option<Value<'_>> {
        let bytes = self.engine.attribute(self.found.member, key)?;
        Some(std::str::from_utf8(bytes).map_or(Value::Opaque, Value::Text))
    }

    fn zone(&self) -> Option<&str> {
        self.zone
    }
}
