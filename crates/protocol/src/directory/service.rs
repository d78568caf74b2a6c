//! What a member registers, and how that becomes an attribute.

use super::PREFIX;
use super::query::BUILT_IN;
use crate::member::Name;
use phalanx_core::Code;
use phalanx_wire::Malformed;
use phalanx_wire::service::{self as wire, ITEMS_MAX, Item, VALUE_MAX, WORD_MAX};
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// Why a service was not registered. What was offered before still is.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RegisterError {
    /// A parameter by this name could never be asked for.
    #[error("`{0}` is something that each service has: give the parameter another name")]
    BuiltIn(String),
    /// A tag, or the name of a parameter, has no letters or too many.
    #[error("`{0}` is no tag or key: use 1 to {WORD_MAX} bytes")]
    Word(String),
    /// A parameter's value is too long.
    #[error("the value of `{0}` has more than {VALUE_MAX} bytes: keep it elsewhere, and tell where")]
    Value(String),
    /// A range of partitions that ends before it begins.
    #[error("partitions {0}..{1} end before they begin")]
    Partitions(u32, u32),
    /// Too many ranges of partitions, tags and parameters.
    #[error("{0} ranges of partitions, tags and parameters: {ITEMS_MAX} at most")]
    Items(usize),
    /// The engine has no room for another attribute, or for one of this length.
    #[error("the membership engine refused the attribute ({0:?}): offer less, or under a shorter name")]
    Refused(Code),
}

/// A service as its member describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Service {
    name: Name,
    port: Option<u16>,
    partitions: Vec<(u32, u32)>,
    tags: BTreeSet<String>,
    parameters: BTreeMap<String, String>,
}

impl Service {
    /// A service that listens nowhere and serves everything.
    #[must_use]
    pub const fn new(name: Name) -> Self {
        Self { name, port: None, partitions: Vec::new(), tags: BTreeSet::new(), parameters: BTreeMap::new() }
    }

    /// It listens at this port. A member may offer several services of one name at several ports.
    #[must_use]
    pub const fn port(mut self, port: u16) -> Self {
        self.port = Some(port);
        self
    }

    /// It serves these partitions of its data, the last one included.
    #[must_use]
    pub fn partitions(mut self, first: u32, last: u32) -> Self {
        self.partitions.push((first, last));
        self
    }

    /// It carries this tag.
    #[must_use]
    pub fn tag(mut self, tag: &str) -> Self {
        self.tags.insert(tag.into());
        self
    }

    /// It has this parameter.
    #[must_use]
    pub fn parameter(mut self, key: &str, value: &str) -> Self {
        self.parameters.insert(key.into(), value.into());
        self
    }

    pub(super) fn key(&self) -> String {
        key(self.name.as_str(), self.port)
    }

    /// The attribute's value. Services that mean the same have the same bytes, so to register one again costs nothing.
    pub(super) fn encode(&self) -> Result<Vec<u8>, RegisterError> {
        if let Some(&(first, last)) = self.partitions.iter().find(|p| p.1 < p.0) {
            return Err(RegisterError::Partitions(first, last));
        }
        if let Some(key) = self.parameters.keys().find(|k| BUILT_IN.contains(&k.as_str())) {
            return Err(RegisterError::BuiltIn(key.clone()));
        }
        if let Some((key, _)) = self.parameters.iter().find(|p| p.1.len() > VALUE_MAX) {
            return Err(RegisterError::Value(key.clone()));
        }
        let partitions = joined(&self.partitions);
        let count = partitions.len() + self.tags.len() + self.parameters.len();
        if count > ITEMS_MAX {
            return Err(RegisterError::Items(count));
        }
        let mut out = Vec::new();
        wire::Service::begin(&mut out);
        let partitions = partitions.iter().map(|&(first, last)| Item::Partitions(first, last));
        let tags = self.tags.iter().map(|tag| Item::Tag(tag));
        let parameters = self.parameters.iter().map(|(key, value)| Item::Parameter(key, value));
        for item in partitions.chain(tags).chain(parameters) {
            item.encode(&mut out).map_err(|_: Malformed| match item {
                Item::Partitions(first, last) => RegisterError::Partitions(first, last),
                Item::Tag(word) | Item::Parameter(word, _) => RegisterError::Word(word.into()),
            })?;
        }
        Ok(out)
    }
}

/// The same partitions, ascending, without overlaps.
fn joined(partitions: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let mut sorted = partitions.to_vec();
    sorted.sort_unstable();
    let mut joined: Vec<(u32, u32)> = Vec::new();
    for (first, last) in sorted {
        match joined.last_mut() {
            Some(before) if first <= before.1.saturating_add(1) => before.1 = before.1.max(last),
            _ => joined.push((first, last)),
        }
    }
    joined
}

/// The attribute under which a service is told of.
#[must_use]
pub fn key(name: &str, port: Option<u16>) -> String {
    match port {
        Some(port) => format!("{PREFIX}{name}:{port}"),
        None => format!("{PREFIX}{name}"),
    }
}

/// The service that an attribute is about.
pub(super) fn split_key(key: &str) -> Option<(&str, Option<u16>)> {
    let rest = key.strip_prefix(PREFIX)?;
    let (name, port) = match rest.split_once(':') {
        Some((name, port)) => (name, Some(port.parse().ok()?)),
        None => (rest, None),
    };
    Name::is_valid(name).then_some((name, port))
}
