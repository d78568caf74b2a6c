//! The members as events change them: all in one place, by their keys. Books are made of it.

use super::Book;
use phalanx_api::directory::{Directory, Entry, Sum};
use phalanx_api::{Event, Offer, What};
use phalanx_query::PREFIX;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// All members that are there.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    event: u64,
    /// By key. Shared with books: who changes one writes a new one.
    entries: BTreeMap<String, Arc<Entry>>,
    /// Those that are not as in the last book, or gone.
    changed: BTreeSet<String>,
}

/// Something is missing, or makes no sense: the whole must be read anew.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lost;

impl Ledger {
    /// Another copy takes the place of all that was known. What is the same stays as it is, and is no change.
    pub(super) fn replace(&mut self, whole: Directory) {
        let mut before = std::mem::take(&mut self.entries);
        for mut entry in whole.entries {
            entry.services.sort_by(|a, b| key(a).cmp(&key(b)));
            let id = entry.member.id.clone();
            let same = before.remove(&id).filter(|known| **known == entry);
            if same.is_none() {
                self.changed.insert(id.clone());
            }
            self.entries.insert(id, same.unwrap_or_else(|| Arc::new(entry)));
        }
        self.changed.extend(before.into_keys());
        self.event = whole.event;
    }

    /// Something happened.
    pub(super) fn apply(&mut self, event: Event) -> Result<(), Lost> {
        match event.what {
            What::Joined { member } => {
                let id = member.id.clone();
                let entry = self.entries.entry(id.clone()).or_insert_with(|| Arc::new(Entry::new(member.clone())));
                match entry.member.incarnation == member.incarnation {
                    true => Arc::make_mut(entry).member = member,
                    // A new life begins with nothing said.
                    false => *entry = Arc::new(Entry::new(member)),
                }
                self.changed.insert(id);
            }
            What::Left { member } => {
                let known = self.entries.get(&member.id);
                if known.is_some_and(|e| e.member.incarnation <= member.incarnation) {
                    self.entries.remove(&member.id);
                    self.changed.insert(member.id);
                }
            }
            What::Attribute { identity: id, name, key, value, opaque, service } => {
                if let Some(entry) = self.entries.get_mut(&id) {
                    let entry = Arc::make_mut(entry);
                    entry.member.name = name;
                    match key.strip_prefix(PREFIX).map(service_key) {
                        Some(Some((name, port))) => set_service(entry, name, port, service),
                        // Under the prefix, and no service.
                        Some(None) => {}
                        None => set_attribute(entry, key, value, opaque),
                    }
                    self.changed.insert(id);
                }
            }
            What::Gap => return Err(Lost),
            // Nothing about what members are or offer; nor is what later versions may add.
            _ => {}
        }
        self.event = event.id;
        Ok(())
    }

    /// What the daemon's sum must be.
    pub(super) fn sum(&self) -> u64 {
        let mut sum = Sum::default();
        self.entries.values().for_each(|entry| sum.add_entry(entry));
        sum.value()
    }

    /// The next book after `before`, and who is not in it as before. `None` when nothing changed.
    pub(super) fn book(&mut self, before: &Book) -> Option<(Book, BTreeSet<String>)> {
        if self.changed.is_empty() {
            return None;
        }
        let changed = std::mem::take(&mut self.changed);
        Some((before.next(self.event, self.entries.values(), &changed), changed))
    }
}

fn key(offer: &Offer) -> (&str, Option<u16>) {
    (&offer.name, offer.port)
}

/// The service that an attribute is about, from what follows the prefix.
fn service_key(rest: &str) -> Option<(&str, Option<u16>)> {
    match rest.split_once(':') {
        Some((name, port)) => Some((name, Some(port.parse().ok()?))),
        None => Some((rest, None)),
    }
}

fn set_service(entry: &mut Entry, name: &str, port: Option<u16>, service: Option<Offer>) {
    let place = entry.services.binary_search_by(|offer| key(offer).cmp(&(name, port)));
    match (place, service) {
        (Ok(at), Some(offer)) => entry.services[at] = offer,
        (Ok(at), None) => _ = entry.services.remove(at),
        (Err(at), Some(offer)) => entry.services.insert(at, offer),
        (Err(_), None) => {}
    }
}

fn set_attribute(entry: &mut Entry, key: String, value: Option<String>, opaque: bool) {
    entry.attributes.remove(&key);
    entry.opaque.remove(&key);
    match value {
        Some(_) if opaque => _ = entry.opaque.insert(key),
        Some(value) => _ = entry.attributes.insert(key, value),
        None => {}
    }
}
