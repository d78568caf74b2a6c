//! ST-2: who sits where in the tree. The directory is embedded in the cluster: each member says in an attribute which seat is its own.
//!
//! Nobody hands seats out. Whoever has none takes a free one, and as all see the same members they do not take the same: the first of those
//! without a seat takes the first free one, the second the second. Where views differ for a moment two may sit in one seat; then the one keeps
//! it who has been seated for longer, and the other takes another.
//!
//! ST-6, [`Repair`]: a seat whose holder is dead is a hole in the tree. Casts go around holes, so nobody has to hurry.

use super::tree::{Id, NODES_MAX};
use phalanx_core::Identity;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// Seats that a tree may have more than twice its members.
const ROOM: usize = 64;

/// The attribute that says where a member sits.
pub const ATTRIBUTE: &str = "phalanx.seat";

/// A member's word on its seat.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Claim {
    /// Since when it has been seated, in starts of members: the longest keeps a seat that two claim.
    pub since: u64,
    /// Where.
    pub seat: Id,
    /// What its casts are known by: nobody else ever has that number.
    pub who: u64,
    /// In which tree: others have another shape.
    pub tree: u64,
}

impl Claim {
    /// Reads what an attribute says.
    #[must_use]
    pub fn read(value: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(value).ok()?.split(' ');
        let mut number = || words.next()?.parse::<u64>().ok();
        let (seat, who, since, tree) = (number()?, number()?, number()?, number()?);
        let seat = u32::try_from(seat).ok().filter(|&s| s < NODES_MAX).map(Id)?;
        Some(Self { since, seat, who, tree })
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {} {}", self.seat, self.who, self.since, self.tree)
    }
}

/// When a hole in the tree is filled.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Repair {
    /// At once: those who sit last move into it.
    AtOnce,
    /// When somebody comes who needs a seat.
    #[default]
    Lazy,
    /// When somebody says so; who comes sits down at the end.
    Manual,
}

/// Why a text names no policy.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("`{0}` is no repair policy: write at-once, lazy or manual")]
pub struct RepairError(String);

impl FromStr for Repair {
    type Err = RepairError;

    fn from_str(text: &str) -> Result<Self, RepairError> {
        match text {
            "at-once" => Ok(Self::AtOnce),
            "lazy" => Ok(Self::Lazy),
            "manual" => Ok(Self::Manual),
            other => Err(RepairError(other.to_owned())),
        }
    }
}

impl fmt::Display for Repair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AtOnce => "at-once",
            Self::Lazy => "lazy",
            Self::Manual => "manual",
        })
    }
}

/// Who holds each seat.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Seats {
    held: BTreeMap<Id, (Claim, Identity)>,
    /// Members without a seat, those included who lost theirs.
    without: BTreeSet<Identity>,
    /// Nobody sits here or beyond.
    bound: usize,
}

impl Seats {
    /// What living members claim.
    #[must_use]
    pub fn of(members: impl IntoIterator<Item = (Identity, Option<Claim>)>) -> Self {
        let members: Vec<_> = members.into_iter().collect();
        // Nobody sits far beyond all others: a tree of that size would cost all of them.
        let bound = 2 * members.len() + ROOM;
        let mut seats = Self { bound, ..Self::default() };
        for (who, claim) in members {
            let Some(claim) = claim.filter(|c| (c.seat.0 as usize) < bound) else {
                seats.without.insert(who);
                continue;
            };
            let mut loser = Some(who);
            let held = seats.held.entry(claim.seat).or_insert_with(|| {
                loser = None;
                (claim, who)
            });
            if loser.is_some() && (claim.since, who) < (held.0.since, held.1) {
                loser = Some(std::mem::replace(held, (claim, who)).1);
            }
            seats.without.extend(loser);
        }
        seats
    }

    /// Who holds them, from the first seat on.
    pub fn iter(&self) -> impl Iterator<Item = (Claim, Identity)> + '_ {
        self.held.values().copied()
    }

    /// Seats of the tree: up to the last that somebody holds.
    #[must_use]
    pub fn size(&self) -> u32 {
        self.held.last_key_value().map_or(0, |(id, _)| id.0 + 1)
    }

    /// Where `me` is to sit, and since when it has been seated, when that is not what it claims.
    ///
    /// `fill` has holes filled by those who sit last.
    #[must_use]
    pub fn wanted(&self, me: Identity, since: u64, repair: Repair, fill: bool) -> Option<(Id, u64)> {
        let mine = self.held.values().find(|(_, who)| *who == me).map(|held| held.0);
        let Some(mine) = mine else {
            // Where nobody fills holes the end comes some time.
            let is_room = self.size() as usize + self.without.len() < self.bound;
            let first = if repair == Repair::Manual && is_room { self.size() } else { 0 };
            let rank = self.without.iter().position(|who| *who == me)?;
            let seat = (first..).map(Id).filter(|id| !self.held.contains_key(id)).nth(rank)?;
            return Some((seat, since));
        };
        let moved = if fill || repair == Repair::AtOnce { self.hole_for(mine.seat) } else { None };
        moved.map(|seat| (seat, mine.since))
    }

    /// The hole that who sits there is to move into: the last one into the first, the last but one into the second.
    fn hole_for(&self, seat: Id) -> Option<Id> {
        let rank = self.held.keys().rev().position(|&id| id == seat)?;
        (0..seat.0).map(Id).filter(|id| !self.held.contains_key(id)).nth(rank)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(n: u8) -> Identity {
        Identity([n; 32])
    }

    fn claim(seat: u32, since: u64) -> Option<Claim> {
        Some(Claim { since, seat: Id(seat), who: since, tree: 0 })
    }

    /// Everybody does what it wants, all at once, until nobody wants anything.
    fn settle(members: &mut BTreeMap<Identity, Option<Claim>>, repair: Repair, fill: bool) -> u32 {
        for round in 0..20 {
            let seats = Seats::of(members.iter().map(|(w, c)| (*w, *c)));
            let mut changed = false;
            for (w, c) in members.iter_mut() {
                if let Some((seat, since)) = seats.wanted(*w, u64::from(w.0[0]), repair, fill) {
                    (*c, changed) = (Some(Claim { since, seat, who: since, tree: 0 }), true);
                }
            }
            if !changed {
                return round;
            }
        }
        panic!("they never sit still");
    }

    fn taken(members: &BTreeMap<Identity, Option<Claim>>) -> Vec<u32> {
        let mut all: Vec<u32> = members.values().map(|c| c.unwrap().seat.0).collect();
        all.sort_unstable();
        all
    }

    #[test]
    fn st_2_all_at_once_take_different_seats() {
        let mut members: BTreeMap<_, _> = (0..40).map(|n| (who(n), None)).collect();
        assert_eq!(settle(&mut members, Repair::Lazy, false), 1);
        assert_eq!(taken(&members), (0..40).collect::<Vec<_>>());
    }

    #[test]
    fn st_2_who_started_alone_finds_another_seat() {
        // Each began alone, in the first seat.
        let mut members: BTreeMap<_, _> = (1..9).map(|n| (who(n), claim(0, u64::from(n)))).collect();
        let first = who(1);
        settle(&mut members, Repair::Lazy, false);
        assert_eq!(taken(&members), (0..8).collect::<Vec<_>>());
        assert_eq!(members[&first].unwrap().seat, Id(0), "the oldest keeps it");
    }

    #[test]
    fn st_6_holes_are_filled_as_the_policy_says() {
        let there: BTreeMap<_, _> = [0, 2, 3, 5, 6].map(|n| (who(n as u8 + 1), claim(n, 1))).into_iter().collect();
        let with_newcomer = || {
            let mut members = there.clone();
            members.insert(who(77), None);
            members
        };
        let mut lazy = with_newcomer();
        settle(&mut lazy, Repair::Lazy, false);
        assert_eq!(lazy[&who(77)].unwrap().seat, Id(1));
        let mut manual = with_newcomer();
        settle(&mut manual, Repair::Manual, false);
        assert_eq!(manual[&who(77)].unwrap().seat, Id(7));
        settle(&mut manual, Repair::Manual, true);
        assert_eq!(taken(&manual), [0, 1, 2, 3, 4, 5]);
        let mut at_once = there.clone();
        settle(&mut at_once, Repair::AtOnce, false);
        assert_eq!(taken(&at_once), [0, 1, 2, 3, 4]);
        assert_eq!(at_once[&who(1)], claim(0, 1), "who need not move does not");
    }

    /// Seats at the end run out, and nobody believes in one that is far beyond all others.
    #[test]
    fn st_6_where_nobody_fills_holes_the_end_comes_some_time() {
        let mut members = BTreeMap::from([(who(0), claim(0, 1)), (who(1), claim(1_000_000, 2))]);
        assert_eq!(Seats::of(members.iter().map(|(w, c)| (*w, *c))).size(), 1);
        for n in 2..200 {
            members.remove(&who(n - 2));
            members.insert(who(n), None);
            settle(&mut members, Repair::Manual, false);
            assert!(taken(&members).iter().all(|&seat| (seat as usize) < 2 * members.len() + ROOM), "{n}");
        }
    }

    #[test]
    fn a_claim_is_read_as_it_is_written() {
        let claim = claim(12, 99).unwrap();
        assert_eq!(Claim::read(claim.to_string().as_bytes()), Some(claim));
        for odd in ["", "1", "1 2 3", "x 1 1 1", "99999999999 1 1 1", "-1 1 1 1"] {
            assert_eq!(Claim::read(odd.as_bytes()), None, "{odd}");
        }
        assert!("sometimes".parse::<Repair>().is_err());
        assert_eq!("at-once".parse(), Ok(Repair::AtOnce));
    }
}
