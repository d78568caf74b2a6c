//! The census: a summary of each zone, published by its first guard as an attribute in the management zone.

use crate::member::{Name, Slot};
use crate::zone::attributes::Attributes;
use std::collections::BTreeMap;

/// What a zone's attribute begins with; its name follows.
pub(super) const PREFIX: &str = "zone.";
const LAYOUT: u8 = 1;

/// HI-3: what every supervisor knows of each zone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Summary {
    /// Members in the zone's view.
    pub members: u32,
    /// Delegates that report to the guard. With none, the summary is the last that is known.
    pub delegates: u8,
    /// Counts what its guard published of it.
    pub revision: u32,
}

impl Summary {
    /// As the value of an attribute.
    #[must_use]
    pub fn encode(&self) -> [u8; 10] {
        let mut value = [LAYOUT; 10];
        value[1..5].copy_from_slice(&self.members.to_le_bytes());
        value[5] = self.delegates;
        value[6..].copy_from_slice(&self.revision.to_le_bytes());
        value
    }

    /// Reads the value of an attribute; longer ones come from newer supervisors.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        let value: &[u8; 10] = value.first_chunk()?;
        let word = |at: usize| u32::from_le_bytes([value[at], value[at + 1], value[at + 2], value[at + 3]]);
        (value[0] == LAYOUT).then(|| Self { members: word(1), delegates: value[5], revision: word(6) })
    }
}

/// All zones, by name. Of two guards that both publish a zone for a moment, the one with delegates counts, then the one
/// that has published more.
pub(super) fn read(
    attributes: &Attributes,
    members: impl Iterator<Item = Slot>,
) -> impl Iterator<Item = (Name, Summary)> {
    let mut zones: BTreeMap<Name, Summary> = BTreeMap::new();
    for member in members {
        for (key, value) in attributes.map(member) {
            let Some(name) = key.strip_prefix(PREFIX).and_then(|n| Name::new(n).ok()) else { continue };
            let Some(summary) = Summary::parse(value) else { continue };
            let rank = |s: &Summary| (s.delegates > 0, s.revision);
            let known = zones.entry(name).or_insert(summary);
            if rank(&summary) > rank(known) {
                *known = summary;
            }
        }
    }
    zones.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn golden_bytes() {
        let summary = Summary { members: 2048, delegates: 2, revision: 5 };
        assert_eq!(summary.encode(), [1, 0, 8, 0, 0, 2, 5, 0, 0, 0]);
        assert_eq!(Summary::parse(&summary.encode()), Some(summary));
        assert_eq!((Summary::parse(&[1; 9]), Summary::parse(&[2; 10])), (None, None));
    }
}
