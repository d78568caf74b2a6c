//! Casts of simulated members: bodies that tell one cast from another, and who sits where.

use phalanx_protocol::cast::Id;
use std::collections::BTreeMap;

/// A cast: no other one of the run has the same name.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Cast {
    /// The node that cast it.
    pub source: u32,
    /// In which of its starts.
    pub boot: u32,
    /// The how manieth of that start.
    pub number: u64,
}

/// A place in the tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Place {
    /// The seat.
    pub seat: Id,
    /// What its casts are known by.
    pub who: u64,
}

impl Cast {
    /// Bytes of a name.
    const NAME: usize = 16;

    /// A body of so many bytes at least.
    fn body(&self, bytes: u32) -> Vec<u8> {
        let mut body = Vec::with_capacity(Self::NAME.max(bytes as usize));
        body.extend(self.source.to_le_bytes());
        body.extend(self.boot.to_le_bytes());
        body.extend(self.number.to_le_bytes());
        body.resize(Self::NAME.max(bytes as usize), self.number as u8);
        body
    }

    pub(super) fn read(body: &[u8]) -> Option<Self> {
        let (source, rest) = body.split_first_chunk()?;
        let (boot, rest) = rest.split_first_chunk()?;
        let (number, rest) = rest.split_first_chunk()?;
        let number = u64::from_le_bytes(*number);
        let whole = rest.iter().all(|&b| b == number as u8);
        whole.then(|| Self { source: u32::from_le_bytes(*source), boot: u32::from_le_bytes(*boot), number })
    }
}

/// What a member has cast, and whom it sees where.
pub(super) struct Desk {
    last: Cast,
    places: BTreeMap<u32, Place>,
}

impl Desk {
    pub(super) fn new(source: u32, boot: u32) -> Self {
        Self { last: Cast { source, boot, number: 0 }, places: BTreeMap::new() }
    }

    /// The next cast, and its body.
    pub(super) fn next(&mut self, bytes: u32) -> (Cast, Vec<u8>) {
        self.last.number += 1;
        (self.last, self.last.body(bytes))
    }

    /// Tells whose place is another one now.
    pub(super) fn look(&mut self, now: impl Iterator<Item = (u32, Place)>, mut tell: impl FnMut(u32, Option<Place>)) {
        let now: BTreeMap<u32, Place> = now.collect();
        if now == self.places {
            return;
        }
        for (&node, &place) in now.iter().filter(|(n, p)| self.places.get(n) != Some(p)) {
            tell(node, Some(place));
        }
        self.places.keys().filter(|n| !now.contains_key(n)).for_each(|&node| tell(node, None));
        self.places = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cast_is_read_as_it_was_written() {
        let mut desk = Desk::new(3, 2);
        let (cast, body) = desk.next(100);
        assert_eq!((Cast::read(&body), body.len()), (Some(cast), 100));
        let (other, short) = desk.next(0);
        assert_eq!((Cast::read(&short), short.len()), (Some(other), Cast::NAME));
        assert_ne!(cast, other);
        assert_eq!(Cast::read(&body[..9]), None);
        let torn = [&body[..50], &[77; 50]].concat();
        assert_eq!(Cast::read(&torn), None);
    }

    #[test]
    fn only_changes_are_told() {
        let (mut desk, mut told) = (Desk::new(0, 1), Vec::new());
        let place = |seat| Place { seat: Id(seat), who: 1 };
        desk.look([(1, place(1)), (2, place(2))].into_iter(), |n, p| told.push((n, p)));
        desk.look([(1, place(1)), (2, place(2))].into_iter(), |n, p| told.push((n, p)));
        desk.look([(2, place(1))].into_iter(), |n, p| told.push((n, p)));
        assert_eq!(told, [(1, Some(place(1))), (2, Some(place(2))), (2, Some(place(1))), (1, None)]);
    }
}
