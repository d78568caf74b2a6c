//! A barrier over all nodes of an attempt, with the pairs that were put since the last one.
//!
//! Each node gives one value when all its ranks have come. What does not fit into one goes in more rounds, in which everybody takes part:
//! a barrier is over when nobody has more to tell. As all who live get the same values of each round, all agree on that.
//!
//! **Who comes late**, to be a rank that died, has seen fewer barriers than the others. Then the lowest of those who have seen most
//! tells everything that was ever put, and the barrier lasts until it has.
//!
//! ```text
//! a value:   0 1 version   1 1 flags   2 4 lowest rank   6 8 barriers seen   14 … its part of the pairs
//! ```

use super::kvs::Kvs;
use phalanx_wire::reduce::{GATHERED_MAX, VALUE_HEAD, VALUE_MAX};
use std::collections::{BTreeMap, BTreeSet};

/// Layout of values.
const VERSION: u8 = 1;
/// More of its pairs follow in another round.
const MORE: u8 = 1;
/// With this it has told everything that was ever put.
const WHOLE: u8 = 2;
/// What a value takes besides pairs.
const HEAD: usize = 14;
/// The least that a value carries, however many nodes there are.
const PART_MIN: usize = 64;

/// What became of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Met<'a> {
    /// What the node of each who lives gave.
    All(&'a [(u32, Vec<u8>)]),
    /// All values together were too long, and were lost.
    TooLarge,
}

/// A barrier that all ranks here have come to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Meeting {
    /// The lowest rank here: who we are to the others.
    me: u32,
    /// Ranks here that wait for its end.
    pub(super) waiting: BTreeSet<u32>,
    /// Barriers that we have seen before.
    seen: u64,
    /// What we tell, and from where on we have not.
    ours: Vec<u8>,
    told: usize,
    /// How much of it was in the value given last.
    part: usize,
    /// The most that goes into one value.
    most: usize,
    /// We tell everything.
    tells_whole: bool,
    /// What others have told so far.
    heard: BTreeMap<u32, Vec<u8>>,
    /// Values that made no sense.
    malformed: u64,
}

impl Meeting {
    /// `nodes`: how many give values.
    pub(super) fn new(me: u32, waiting: BTreeSet<u32>, seen: u64, ours: Vec<u8>, nodes: usize) -> Self {
        // Ranks that start again may do so on nodes that were not there at first.
        let share = GATHERED_MAX / (nodes + nodes / 4 + 4);
        let most = share.min(VALUE_MAX).saturating_sub(HEAD + VALUE_HEAD).max(PART_MIN);
        let (heard, malformed) = (BTreeMap::new(), 0);
        Self { me, waiting, seen, ours, told: 0, part: 0, most, tells_whole: false, heard, malformed }
    }

    /// What we give to the round that is next.
    pub(super) fn value(&mut self) -> Vec<u8> {
        let left = &self.ours[self.told..];
        self.part = left.len().min(self.most);
        let is_all = self.part == left.len();
        let flags = if !is_all {
            MORE
        } else if self.tells_whole {
            WHOLE
        } else {
            0
        };
        let mut value = vec![VERSION, flags];
        value.extend(self.me.to_le_bytes());
        value.extend(self.seen.to_le_bytes());
        value.extend(&left[..self.part]);
        value
    }

    /// A round is over: true when the barrier is, too.
    pub(super) fn on_met(&mut self, met: Met<'_>, kvs: &Kvs) -> bool {
        let values = match met {
            Met::All(values) => values,
            Met::TooLarge => {
                self.most = (self.most / 2).max(PART_MIN);
                return false;
            }
        };
        self.told += self.part;
        let said: Vec<Told<'_>> = values.iter().filter_map(|(_, value)| Told::read(value)).collect();
        self.malformed += (values.len() - said.len()) as u64;
        let most = said.iter().map(|t| t.seen).max().unwrap_or(self.seen);
        let lacking = said.iter().any(|t| t.seen < most);
        let knowing = said.iter().filter(|t| t.seen == most).map(|t| t.from).min();
        let mut goes_on = said.iter().any(|t| t.flags & MORE != 0);
        if lacking && !said.iter().any(|t| t.flags & WHOLE != 0) {
            goes_on = true;
            if knowing == Some(self.me) && !self.tells_whole {
                self.tells_whole = true;
                self.ours.extend(kvs.whole());
            }
        }
        for told in said {
            self.heard.entry(told.from).or_default().extend(told.pairs);
        }
        if !goes_on {
            self.seen = most;
        }
        !goes_on
    }

    /// How many barriers we have seen with this one, once it is over, and applies what was told in it.
    pub(super) fn end(self, kvs: &mut Kvs) -> u64 {
        for (from, pairs) in &self.heard {
            if !kvs.apply(pairs) {
                tracing::warn!(from, "pairs of another shepherd make no sense");
            }
        }
        if self.malformed > 0 {
            tracing::warn!(count = self.malformed, "values of other shepherds make no sense");
        }
        self.seen + 1
    }
}

/// A value, taken apart.
struct Told<'v> {
    flags: u8,
    from: u32,
    seen: u64,
    pairs: &'v [u8],
}

impl<'v> Told<'v> {
    fn read(value: &'v [u8]) -> Option<Self> {
        let (head, pairs) = value.split_first_chunk::<HEAD>()?;
        let [VERSION, flags, rest @ ..] = head else { return None };
        let (from, seen) = rest.split_first_chunk::<4>()?;
        Some(Self {
            flags: *flags,
            from: u32::from_le_bytes(*from),
            seen: u64::from_le_bytes(seen.try_into().ok()?),
            pairs,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Meets until the barrier is over for all; gives how many rounds it took.
    fn meet(nodes: &mut [(Meeting, Kvs)], mut lost: usize) -> usize {
        for round in 1..10_000 {
            let values: Vec<_> = nodes.iter_mut().enumerate().map(|(n, (m, _))| (n as u32, m.value())).collect();
            let size: usize = values.iter().map(|v| v.1.len() + VALUE_HEAD).sum();
            assert!(size <= GATHERED_MAX && values.iter().all(|v| v.1.len() <= VALUE_MAX));
            let met = if lost > 0 { Met::TooLarge } else { Met::All(&values) };
            lost = lost.saturating_sub(1);
            let over: Vec<bool> = nodes.iter_mut().map(|(m, kvs)| m.on_met(met, kvs)).collect();
            assert!(over.iter().all(|&o| o == over[0]), "all agree whether it is over");
            if over[0] {
                return round;
            }
        }
        panic!("it never ends");
    }

    fn node(me: u32, nodes: usize, seen: u64, mut kvs: Kvs) -> (Meeting, Kvs) {
        (Meeting::new(me, BTreeSet::new(), seen, kvs.take_fresh(), nodes), kvs)
    }

    fn with(pairs: std::ops::Range<u32>) -> Kvs {
        let mut kvs = Kvs::default();
        pairs.for_each(|n| kvs.put(format!("key-{n}"), "v".repeat(1000)).unwrap());
        kvs
    }

    fn end(nodes: Vec<(Meeting, Kvs)>) -> Vec<(u64, Kvs)> {
        nodes.into_iter().map(|(m, mut kvs)| (m.end(&mut kvs), kvs)).collect()
    }

    #[test]
    fn all_have_what_each_put() {
        let mut nodes: Vec<_> = (0..3).map(|n| node(n * 4, 3, 0, with(n * 10..n * 10 + 10))).collect();
        assert_eq!(meet(&mut nodes, 0), 1, "one round");
        for (seen, kvs) in end(nodes) {
            assert_eq!(seen, 1);
            assert!((0..30).all(|n| kvs.value(&format!("key-{n}")).is_some()));
        }
    }

    #[test]
    fn what_does_not_fit_takes_more_rounds() {
        let mut nodes: Vec<_> =
            (0..64).map(|n| node(n, 64, 0, if n == 7 { with(0..200) } else { with(0..1) })).collect();
        let rounds = meet(&mut nodes, 0);
        assert!((4..8).contains(&rounds), "{rounds}");
        let ended = end(nodes);
        assert!(ended.iter().all(|(_, kvs)| (0..200).all(|n| kvs.value(&format!("key-{n}")).is_some())));
    }

    #[test]
    fn what_was_too_large_is_told_again_in_smaller_parts() {
        let mut nodes: Vec<_> = (0..3).map(|n| node(n, 3, 0, with(n * 50..n * 50 + 50))).collect();
        meet(&mut nodes, 2);
        assert!(end(nodes).iter().all(|(_, kvs)| (0..150).all(|n| kvs.value(&format!("key-{n}")).is_some())));
    }

    #[test]
    fn who_comes_late_is_told_everything() {
        let known = |from| {
            let mut kvs = with(0..100);
            kvs.take_fresh();
            kvs.put(format!("new-{from}"), "1".into()).unwrap();
            kvs
        };
        // The lowest is the late one; of the others the lowest tells.
        let mut nodes = vec![node(0, 3, 0, with(0..0)), node(1, 3, 5, known(1)), node(2, 3, 5, known(2))];
        meet(&mut nodes, 0);
        assert!(nodes[1].0.tells_whole && !nodes[2].0.tells_whole);
        let ended = end(nodes);
        assert!(ended.iter().all(|(seen, kvs)| *seen == 6 && kvs == &Kvs::clone(&ended[2].1)));
        assert!(ended[0].1.value("key-99").is_some() && ended[0].1.value("new-1").is_some());
    }

    #[test]
    fn when_who_told_everything_dies_another_one_does() {
        let known = || {
            let mut kvs = with(0..200);
            kvs.take_fresh();
            kvs
        };
        let mut nodes = vec![node(0, 3, 0, with(0..0)), node(1, 3, 5, known()), node(2, 3, 5, known())];
        for (m, _) in &mut nodes {
            m.most = 1000;
        }
        let values: Vec<_> = nodes.iter_mut().enumerate().map(|(n, (m, _))| (n as u32, m.value())).collect();
        assert!(nodes.iter_mut().all(|(m, kvs)| !m.on_met(Met::All(&values), kvs)));
        nodes.remove(1);
        meet(&mut nodes, 0);
        assert!(end(nodes)[0].1.value("key-199").is_some());
    }

    #[test]
    fn values_without_sense_are_counted() {
        let (mut meeting, mut kvs) = node(0, 2, 0, with(0..1));
        let ours = meeting.value();
        assert!(meeting.on_met(Met::All(&[(0, ours), (1, vec![VERSION; 5]), (2, vec![9; 40])]), &kvs));
        assert_eq!(meeting.malformed, 2);
        assert_eq!(meeting.end(&mut kvs), 1);
    }
}
