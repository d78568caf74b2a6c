//! TG-8: segments where there is no multicast, as in clouds. What routers tell by TTL elsewhere, configuration tells here.
//!
//! A [`SegmentMap`] lists the addresses at which nodes may be, segment by segment. Level 0 is our own segment; level 1 the leaders of a block of
//! [`WIDTH`] segments, level 2 the leaders of so many blocks, and the highest level holds all that there are. So no group grows with the
//! cluster, and bytes are linear in its size.
//!
//! What is multicast elsewhere goes to each who is **heard** in that level. Who is not heard is looked for by **knocks**, heartbeats to where
//! somebody may be:
//!
//! | level | where | how many |
//! |---|---|---|
//! | 0 | our segment | all in the first periods of our life, then [`KNOCKS`] in a period, in turn |
//! | above | each block from which nobody is heard | [`KNOCKS_ABROAD`] in a period, first at who lives as far as we know |
//! | above | the other blocks | one in [`ROAMS`] periods: a segment that is cut in two has two leaders |
//!
//! Who is knocked at and is not in that level says where its own leader is, and we knock there: so a leader is found in as many steps as there
//! are levels, whomever we hit. Who is heard for the first time is answered at once, so both know each other after one way there and back.
//!
//! A block from which a leader is heard is looked at seldom, one without often, and each leader that lacks another one looks for it: it is
//! enough that one of two does. So leaders meet within a few periods of any change: one died, a segment started again, a partition healed.

use super::level::Level;
use super::{LEVELS_MAX, Segment, SegmentConfig};
use crate::member::{Out, Output, Peer as From, Slot};
use phalanx_core::{Addr, Fingerprint, Instant};
use phalanx_wire::segment::{self, Says};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// Segments whose leaders are one group, and groups whose leaders are one of the next level.
pub const WIDTH: usize = 16;
/// Knocks at our own segment in a period.
const KNOCKS: usize = 4;
/// Knocks in a period at a block from which nobody is heard.
const KNOCKS_ABROAD: usize = 2;
/// Periods from one knock to the next at blocks from which somebody is heard.
const ROAMS: usize = 4;
/// Hints that are followed in a period: a few for each block, however many lie or go round in a circle.
const HINTS: u16 = 64;
/// Periods beyond those of listening in which a node knocks at all of its segment: the first ones may be lost.
const FIRST: u8 = 2;

/// Where nodes may be, segment by segment. All nodes of a process share one.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentMap {
    /// Segment after segment.
    addrs: Vec<Addr>,
    /// Where each segment begins, and the end.
    starts: Vec<usize>,
    places: BTreeMap<Addr, usize>,
    width: usize,
}

impl SegmentMap {
    /// The segments, each a list of addresses. Neighbours in this list are neighbours in the tree. An address that comes twice counts where it
    /// stands first; groups, and segments that are empty then, are left out.
    #[must_use]
    pub fn new<S: IntoIterator<Item = Addr>>(segments: impl IntoIterator<Item = S>) -> Self {
        let mut map = Self { addrs: Vec::new(), starts: vec![0], places: BTreeMap::new(), width: WIDTH };
        for segment in segments {
            for addr in segment {
                if !matches!(addr, Addr::Group(_)) && !map.places.contains_key(&addr) {
                    map.places.insert(addr, map.segments());
                    map.addrs.push(addr);
                }
            }
            if map.addrs.len() > map.starts[map.segments()] {
                map.starts.push(map.addrs.len());
            }
        }
        map
    }

    /// Groups of so many leaders; at least 2. All nodes of a cluster must have the same.
    #[must_use]
    pub fn with_width(self, width: usize) -> Self {
        Self { width: width.max(2), ..self }
    }

    /// How many segments there are.
    #[must_use]
    pub fn segments(&self) -> usize {
        self.starts.len() - 1
    }

    /// The segment of an address.
    #[must_use]
    pub fn segment_of(&self, addr: Addr) -> Option<usize> {
        self.places.get(&addr).copied()
    }

    /// Levels that it takes: at least two, so that who is in no segment can meet the others.
    #[must_use]
    pub fn levels(&self) -> u8 {
        (2..LEVELS_MAX).find(|&levels| self.block(levels - 1) >= self.segments()).unwrap_or(LEVELS_MAX)
    }

    /// Segments in a block of a level.
    fn block(&self, level: u8) -> usize {
        self.width.saturating_pow(level.into())
    }

    fn addrs(&self, segments: Range<usize>) -> &[Addr] {
        let at = |segment: usize| self.starts[segment.min(self.segments())];
        &self.addrs[at(segments.start)..at(segments.end)]
    }
}

/// What a node without multicast knows of where others may be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Fan {
    map: Arc<SegmentMap>,
    me: Addr,
    home: Option<usize>,
    /// The highest level.
    top: u8,
    /// Level 0 knocks everywhere so often.
    first: usize,
    /// Where turns begin: nodes do not all knock at the same one.
    offset: usize,
    /// How often we knocked in each level.
    turns: [usize; LEVELS_MAX as usize],
    hints: u16,
    /// Where we knocked lately.
    knocked: BTreeMap<Addr, Instant>,
}

impl Fan {
    pub(super) fn new(map: Arc<SegmentMap>, me: Addr, config: &SegmentConfig, offset: u32) -> Self {
        Self {
            home: map.segment_of(me),
            map,
            me,
            top: config.max_ttl - 1,
            first: usize::from(config.listens.saturating_add(FIRST)),
            offset: offset as usize,
            turns: [0; LEVELS_MAX as usize],
            hints: HINTS,
            knocked: BTreeMap::new(),
        }
    }

    /// The segments that a level of ours spans.
    fn scope(&self, level: u8) -> Range<usize> {
        let all = self.map.segments();
        match (level, self.home) {
            _ if level == self.top => 0..all,
            (0, home) => home.map_or(0..0, |home| home..home + 1),
            // Who is in no segment is beside the last one.
            (_, home) => {
                let block = self.map.block(level);
                let begin = home.unwrap_or(all.saturating_sub(1)) / block * block;
                begin..all.min(begin.saturating_add(block))
            }
        }
    }

    /// Where to knock in a level, in which these are heard. `living`: where members are, as far as we know.
    fn knocks(&mut self, level: u8, heard: &BTreeSet<Addr>, living: impl Fn() -> BTreeSet<Addr>) -> Vec<Addr> {
        let turn = &mut self.turns[usize::from(level)];
        let at = self.offset.wrapping_add(*turn);
        *turn += 1;
        let turn = *turn;
        if level == 0 {
            let silent: Vec<Addr> =
                self.map.addrs(self.scope(0)).iter().copied().filter(|a| *a != self.me && !heard.contains(a)).collect();
            let most = if turn <= self.first { silent.len() } else { KNOCKS.min(silent.len()) };
            return (0..most).map(|i| silent[at.wrapping_mul(KNOCKS).wrapping_add(i) % silent.len()]).collect();
        }
        let (scope, block) = (self.scope(level), self.map.block(level - 1));
        let own = self.home.map(|home| home / block).or_else(|| Some(scope.end.checked_sub(1)? / block));
        // One who is in no segment is beside the last one, and may meet its leader.
        let own = own.filter(|_| level > 1 || self.home.is_some());
        let full: BTreeSet<usize> = heard.iter().filter_map(|&a| Some(self.map.segment_of(a)? / block)).collect();
        let blocks = scope.clone().step_by(block.max(1)).map(|begin| begin / block);
        let others: Vec<usize> = blocks.filter(|&b| Some(b) != own).collect();
        let slice = |b: usize| self.map.addrs(b * block..scope.end.min((b + 1).saturating_mul(block)));
        let vacant: Vec<usize> = others.iter().copied().filter(|b| !full.contains(b)).collect();
        let mut to = BTreeSet::new();
        if !vacant.is_empty() {
            let living = living();
            for addrs in vacant.into_iter().map(slice) {
                let turned = |i: usize| addrs[at.wrapping_add(i) % addrs.len()];
                let alive = (0..addrs.len()).map(turned).find(|a| living.contains(a));
                to.extend(alive);
                // Far from each other: who is near somebody dead may be so, too.
                let rest = KNOCKS_ABROAD - usize::from(alive.is_some());
                to.extend((0..rest).map(|i| turned(i * addrs.len() / KNOCKS_ABROAD)));
            }
        } else if turn.is_multiple_of(ROAMS) && !others.is_empty() {
            let (turn, addrs) = (at / ROAMS, slice(others[at / ROAMS % others.len()]));
            to.insert(addrs[turn / others.len() % addrs.len()]);
        }
        to.into_iter().filter(|a| *a != self.me && !heard.contains(a)).collect()
    }

    pub(super) fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&(self.home, self.top, self.offset, self.turns, self.hints));
        for (addr, &at) in &self.knocked {
            print.add(addr);
            print.instant(at);
        }
    }
}

impl Segment {
    /// Looks for those of a level who are not heard.
    pub(super) fn knock(&mut self, now: Instant, level: u8, out: &mut impl Out) {
        let Some(fan) = &mut self.fan else { return };
        let book = &self.book;
        let addr = |slot: Slot| Some(book.card(slot)?.addr);
        let own = self.levels.get(usize::from(level));
        let heard = own.into_iter().flat_map(|l| l.peers.keys()).filter_map(|&slot| addr(slot)).collect();
        let living = || book.members().filter_map(|(slot, _)| addr(slot)).collect();
        let to = fan.knocks(level, &heard, living);
        if to.is_empty() {
            return;
        }
        fan.knocked.extend(to.iter().map(|&to| (to, now)));
        self.counters.knocks += to.len() as u64;
        self.encode(now, level, true, None);
        to.into_iter().for_each(|to| out.push(Output::Datagram { to, bytes: &self.scratch }));
    }

    /// Somebody was heard for the first time: it shall hear us at once.
    pub(super) fn greet(&mut self, now: Instant, level: u8, slot: Slot, out: &mut impl Out) {
        let Some(to) = self.book.card(slot).map(|c| c.addr) else { return };
        if self.may_answer() {
            self.encode(now, level, true, None);
            out.push(Output::Datagram { to, bytes: &self.scratch });
        }
    }

    /// Somebody speaks to a level that we are not in. Who knocks hears where our leader is.
    pub(super) fn on_stray(&mut self, from: From, level: u8, says: Says<'_>, out: &mut impl Out) {
        self.counters.strays += 1;
        let Says::Heartbeat { pulse, entry } = says else { return };
        let leader = self.levels.last().and_then(Level::follows).and_then(|slot| self.book.card(slot)).map(|c| c.addr);
        let Some(leader) = leader.filter(|&leader| self.fan.is_some() && leader != from.addr) else { return };
        if !pulse.leaves && entry.departed.is_none() && self.may_answer() {
            self.scratch.clear();
            segment::lead(level, leader, &mut self.scratch);
            out.push(Output::Datagram { to: from.addr, bytes: &self.scratch });
        }
    }

    /// Somebody says where a leader is who may be in a level of ours.
    pub(super) fn on_lead(&mut self, now: Instant, level: u8, to: Addr, out: &mut impl Out) {
        let is_at = |slot: Slot| self.book.card(slot).is_some_and(|c| c.addr == to);
        let is_heard = self.level(level).is_some_and(|l| l.peers.keys().any(|&slot| is_at(slot)));
        let Some(fan) = self.fan.as_ref().filter(|fan| fan.me != to && level > 0) else {
            self.counters.strays += 1;
            return;
        };
        if is_heard {
            return;
        }
        // Nobody can make us speak to strangers.
        let is_ours = fan.map.segment_of(to).is_some() || self.book.members().any(|(slot, _)| is_at(slot));
        let Some(fan) = self.fan.as_mut().filter(|fan| is_ours && fan.hints > 0) else {
            self.counters.hints += 1;
            return;
        };
        fan.hints -= 1;
        fan.knocked.insert(to, now);
        self.counters.knocks += 1;
        self.encode(now, level, true, None);
        out.push(Output::Datagram { to, bytes: &self.scratch });
    }

    /// The link may forget those who were knocked at, and are in none of our levels.
    pub(super) fn part_with_silent(&mut self, now: Instant, out: &mut impl Out) {
        let patience = self.config.fail_after(0);
        let Some(fan) = &mut self.fan else { return };
        fan.hints = HINTS;
        let over: Vec<Addr> = fan.knocked.iter().filter(|&(_, &at)| at + patience <= now).map(|(&a, _)| a).collect();
        for addr in over {
            fan.knocked.remove(&addr);
            let book = &self.book;
            let is_at = |slot: &Slot| book.card(*slot).is_some_and(|c| c.addr == addr);
            if !self.levels.iter().any(|l| l.peers.keys().any(&is_at)) {
                out.push(Output::Release { addr });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(segments: usize, size: usize) -> SegmentMap {
        SegmentMap::new((0..segments).map(|s| (0..size).map(move |i| Addr::Local((s * size + i) as u32))))
    }

    fn fan(map: SegmentMap, me: u32, max_ttl: u8) -> Fan {
        let config = SegmentConfig { max_ttl, ..SegmentConfig::paper(1, max_ttl) };
        Fan::new(Arc::new(map), Addr::Local(me), &config, 5)
    }

    #[test]
    fn tg_8_blocks_nest_and_the_highest_level_holds_all() {
        assert_eq!([1, 2, 16, 17, 256, 257].map(|n| map(n, 1).levels()), [2, 2, 2, 3, 3, 4]);
        assert_eq!(map(300, 1).with_width(2).levels(), LEVELS_MAX, "as deep as can be");
        let ninth = fan(map(40, 5).with_width(4), 9 * 5, 4);
        assert_eq!([0, 1, 2, 3].map(|l| ninth.scope(l)), [9..10, 8..12, 0..16, 0..40]);
        let flat = fan(map(40, 5).with_width(4), 9 * 5, 2);
        assert_eq!([0, 1].map(|l| flat.scope(l)), [9..10, 0..40]);
        assert_eq!(fan(map(40, 5), 9 * 5, 1).scope(0), 0..40, "one level is one group");
        let alone = fan(map(40, 5).with_width(4), 1_000, 4);
        assert_eq!([0, 1, 2, 3].map(|l| alone.scope(l)), [0..0, 36..40, 32..40, 0..40]);
    }

    #[test]
    fn tg_8_what_makes_no_sense_in_a_map_is_left_out() {
        let group = Addr::Group(phalanx_core::Group { number: 1, ttl: 1 });
        let local = |n: &[u32]| n.iter().map(|&n| Addr::Local(n)).collect::<Vec<_>>();
        let map = SegmentMap::new([local(&[1, 2]), vec![], vec![group], local(&[2, 1]), local(&[3, 3, 1])]);
        assert_eq!((map.segments(), map.segment_of(Addr::Local(3)), map.segment_of(group)), (2, Some(1), None));
        let nobody = SegmentMap::new([vec![]]);
        assert_eq!((nobody.segments(), nobody.levels()), (0, 2));
        let mut fan = fan(nobody, 1, 2);
        assert!((0..9).all(|_| fan.knocks(1, &BTreeSet::new(), BTreeSet::new).is_empty()));
    }

    /// Each address has its turn, no period has many, and nobody is knocked at who is heard.
    #[test]
    fn tg_8_knocks_are_few_and_leave_nobody_out() {
        for (me, level, others) in [(0, 0, 29), (0, 1, 90), (95, 1, 90), (500, 1, 120)] {
            let mut fan = fan(map(4, 30), me, 2);
            let mut met = BTreeSet::new();
            for turn in 0..200 {
                let to = fan.knocks(level, &BTreeSet::new(), BTreeSet::new);
                let most = if level == 0 { KNOCKS } else { KNOCKS_ABROAD * 4 };
                assert!(to.len() <= most || level == 0 && turn < fan.first, "{to:?}");
                met.extend(to);
            }
            assert_eq!(met.len(), others, "{me}");
            assert!(!met.contains(&Addr::Local(me)));
            let heard = met.clone();
            assert!((0..200).all(|_| fan.knocks(level, &heard, BTreeSet::new).is_empty()));
        }
        // From each block somebody is heard: one is met now and then.
        let mut fan = fan(map(4, 30), 0, 2);
        let heard = BTreeSet::from([30, 60, 90].map(Addr::Local));
        let roams: Vec<_> = (0..400 * ROAMS).flat_map(|_| fan.knocks(1, &heard, BTreeSet::new)).collect();
        assert!(roams.len() <= 400 && roams.iter().collect::<BTreeSet<_>>().len() == 87, "{roams:?}");
    }

    #[test]
    fn tg_8_who_lives_is_met_first() {
        let mut fan = fan(map(2, 30), 0, 2);
        for _ in 0..50 {
            let to = fan.knocks(1, &BTreeSet::new(), || BTreeSet::from([Addr::Local(41)]));
            assert!(to.contains(&Addr::Local(41)) && to.len() <= KNOCKS_ABROAD);
        }
    }
}
