//! What is known at one moment. A book never changes: readers hold one while the next is written beside it.
//!
//! Services lie in the order of their names, and a table leads from each name to its place. A query that says which names it
//! wants ([`Query::names`]) looks at those alone; any other looks at all.

use super::Query;
use super::ledger::Ledger;
use phalanx_api::directory::{Directory, Entry};
use phalanx_api::{Member, Offer, Part};
use phalanx_query::{LOAD, Names, Service, Value};
use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::ops::Range;
use std::slice;
use std::sync::Arc;

/// Members and services, as they were at one moment.
#[derive(Debug, Default)]
pub struct Book {
    event: u64,
    /// By name and key.
    members: Vec<Arc<Entry>>,
    /// In the order of [`Found::order`].
    services: Vec<Found>,
    places: Arc<Places>,
}

/// Where services of a name lie.
type Places = HashMap<Box<str>, Range<usize>>;

/// A service that is there. Keeping one keeps what was known of its node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    entry: Arc<Entry>,
    at: usize,
}

impl Book {
    /// The services that a query asks for, by name, node and port. Nothing is allocated.
    pub fn find<'b>(&'b self, query: &'b Query) -> impl Iterator<Item = &'b Found> + use<'b> {
        self.candidates(query.names()).filter(move |found| query.matches(&found.fields()))
    }

    /// All services, by name, node and port.
    #[must_use]
    pub fn services(&self) -> &[Found] {
        &self.services
    }

    /// The services of this name, by node and port.
    #[must_use]
    pub fn named(&self, name: &str) -> &[Found] {
        self.places.get(name).map_or(&[], |place| &self.services[place.clone()])
    }

    /// All members that are there, by name: who they are, what they say of themselves, what they offer.
    pub fn members(&self) -> impl ExactSizeIterator<Item = &Entry> {
        self.members.iter().map(Arc::as_ref)
    }

    /// The member of this name; of two that quarrel about it, either.
    #[must_use]
    pub fn member(&self, name: &str) -> Option<&Entry> {
        let at = self.members.binary_search_by(|e| e.member.name.as_str().cmp(name)).ok()?;
        Some(&self.members[at])
    }

    /// The last event that is in it.
    #[must_use]
    pub fn event(&self) -> u64 {
        self.event
    }

    fn candidates<'b>(&'b self, names: &'b Names) -> Candidates<'b> {
        let (names, within): (&[Box<str>], &[Found]) = match names {
            Names::Any => (&[], &self.services),
            Names::Prefix(prefix) => {
                let from = self.services.partition_point(|f| f.name() < &**prefix);
                let rest = &self.services[from..];
                (&[], &rest[..rest.partition_point(|f| f.name().starts_with(&**prefix))])
            }
            Names::Only(names) => (names, &[]),
        };
        Candidates { book: self, names: names.iter(), within: within.iter() }
    }

    /// The next book: `entries` are all members, of which those in `changed` are not as they are here, or gone.
    pub(super) fn next<'e>(
        &self,
        event: u64,
        entries: impl Iterator<Item = &'e Arc<Entry>>,
        changed: &BTreeSet<String>,
    ) -> Self {
        let mut members: Vec<Arc<Entry>> = entries.cloned().collect();
        members.sort_by(|a, b| (&a.member.name, &a.member.id).cmp(&(&b.member.name, &b.member.id)));
        let fresh = members.iter().filter(|e| changed.contains(&e.member.id)).flat_map(Found::all).collect();
        let services = replaced(&self.services, changed, fresh);
        let same = services.len() == self.services.len()
            && services.iter().zip(&self.services).all(|(a, b)| a.name() == b.name());
        let places = if same { Arc::clone(&self.places) } else { Arc::new(places(&services)) };
        Self { event, members, services, places }
    }

    /// What a query finds among members that changed, in order.
    pub(super) fn fresh(&self, query: &Query, changed: &BTreeSet<String>) -> Vec<Found> {
        let entries = self.members.iter().filter(|e| changed.contains(&e.member.id));
        entries.flat_map(Found::all).filter(|found| query.matches(&found.fields())).collect()
    }
}

/// A copy that was read elsewhere, or made up for a test.
impl From<Directory> for Book {
    fn from(whole: Directory) -> Self {
        let mut ledger = Ledger::default();
        ledger.replace(whole);
        ledger.book(&Self::default()).map(|next| next.0).unwrap_or_default()
    }
}

/// Services that may be wanted: some, then those of each name.
struct Candidates<'b> {
    book: &'b Book,
    names: slice::Iter<'b, Box<str>>,
    within: slice::Iter<'b, Found>,
}

impl<'b> Iterator for Candidates<'b> {
    type Item = &'b Found;

    fn next(&mut self) -> Option<&'b Found> {
        loop {
            if let Some(found) = self.within.next() {
                return Some(found);
            }
            self.within = self.book.named(self.names.next()?).iter();
        }
    }
}

/// The same services, where those of members that changed are the fresh ones.
pub(super) fn replaced(old: &[Found], changed: &BTreeSet<String>, mut fresh: Vec<Found>) -> Vec<Found> {
    fresh.sort_by(|a, b| a.order(b));
    let mut merged = Vec::with_capacity(old.len() + fresh.len());
    let mut fresh = fresh.into_iter().peekable();
    for kept in old.iter().filter(|f| !changed.contains(&f.entry.member.id)) {
        while let Some(before) = fresh.next_if(|f| f.order(kept).is_lt()) {
            merged.push(before);
        }
        merged.push(kept.clone());
    }
    merged.extend(fresh);
    merged
}

fn places(services: &[Found]) -> Places {
    let mut from = 0;
    let groups = services.chunk_by(|a, b| a.name() == b.name());
    groups
        .map(|group| {
            let place = from..from + group.len();
            from = place.end;
            (group[0].name().into(), place)
        })
        .collect()
}

impl Found {
    fn all(entry: &Arc<Entry>) -> impl Iterator<Item = Self> + use<'_> {
        (0..entry.services.len()).map(|at| Self { entry: Arc::clone(entry), at })
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.offer().name
    }

    /// What the node is called that offers it.
    #[must_use]
    pub fn node(&self) -> &str {
        &self.entry.member.name
    }

    /// Where to call it, when it has a port.
    #[must_use]
    pub fn addr(&self) -> Option<SocketAddr> {
        self.offer().port.map(|port| SocketAddr::new(self.entry.member.addr.ip(), port))
    }

    /// What is offered: partitions, tags, parameters.
    #[must_use]
    pub fn offer(&self) -> &Offer {
        &self.entry.services[self.at]
    }

    /// The node that offers it.
    #[must_use]
    pub fn member(&self) -> &Member {
        &self.entry.member
    }

    /// Whether its node is heard by ours, or told of by a leader (003 §5.1); `None` where there are no such parts.
    #[must_use]
    pub fn part(&self) -> Option<Part> {
        self.entry.member.part
    }

    /// What its node says of itself under a key.
    #[must_use]
    pub fn attribute(&self, key: &str) -> Option<&str> {
        self.entry.attributes.get(key).map(String::as_str)
    }

    /// How busy its node is, in steps of 0.25; above 1 work is waiting. `None` when it tells no load.
    #[must_use]
    pub fn load(&self) -> Option<f64> {
        self.attribute(LOAD)?.parse().ok()
    }

    /// By name, node and port; two are the same service when they are equal here.
    pub(super) fn order<'a>(&'a self, other: &'a Self) -> Ordering {
        let key = |found: &'a Self| (found.name(), found.node(), &*found.member().id, found.offer().port);
        key(self).cmp(&key(other))
    }
}

impl Service for Found {
    fn name(&self) -> &str {
        &self.offer().name
    }

    fn node(&self) -> &str {
        &self.entry.member.name
    }

    fn port(&self) -> Option<u16> {
        self.offer().port
    }

    fn partitions(&self) -> impl Iterator<Item = (u32, u32)> {
        self.offer().partitions.iter().copied()
    }

    fn tags(&self) -> impl Iterator<Item = &str> {
        self.offer().tags.iter().map(String::as_str)
    }

    fn parameter(&self, key: &str) -> Option<&str> {
        self.offer().parameters.get(key).map(String::as_str)
    }

    fn attribute(&self, key: &str) -> Option<Value<'_>> {
        let text = self.entry.attributes.get(key).map(|value| Value::Text(value));
        text.or_else(|| self.entry.opaque.contains(key).then_some(Value::Opaque))
    }

    /// As the daemon has it: empty where there is no hierarchy.
    fn zone(&self) -> Option<&str> {
        Some(self.entry.member.zone.as_deref().unwrap_or_default())
    }
}
