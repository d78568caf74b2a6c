//! The arithmetic of seats, as seen from one of them.
//!
//! All seats but those on the way from the top to ours (our *line*) lie in *branches*: those right below us, and at each level
//! those right beside our line. They are numbered from the nearest on, so that a table of them needs no names.

/// Where we sit, in a tree of which arity.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Seats {
    /// log₂ of the arity.
    pub(super) shift: u8,
    pub(super) me: u32,
}

impl Seats {
    pub(super) fn arity(self) -> usize {
        1 << self.shift
    }

    /// The seat right above one that is not the top.
    pub(super) fn up(self, seat: u32) -> u32 {
        (seat - 1) >> self.shift
    }

    /// The seats above one, from the nearest on.
    pub(super) fn line(self, seat: u32) -> impl Iterator<Item = u32> {
        std::iter::successors(Some(seat), move |&s| (s > 0).then(|| self.up(s))).skip(1)
    }

    /// True when `seat` is `top`, or below it.
    pub(super) fn is_within(self, top: u32, mut seat: u32) -> bool {
        while seat > top {
            seat = self.up(seat);
        }
        seat == top
    }

    /// How many branches there are.
    pub(super) fn branches(self) -> usize {
        self.arity() + (self.arity() - 1) * self.line(self.me).count()
    }

    /// The branches beside the seat of our line that is `level` levels above us.
    pub(super) fn beside(self, level: usize) -> std::ops::Range<usize> {
        let first = self.arity() + level * (self.arity() - 1);
        first..first + self.arity() - 1
    }

    /// How far up our line a branch hangs on: nothing for those below us.
    pub(super) fn distance(self, branch: usize) -> usize {
        branch.checked_sub(self.arity()).map_or(0, |i| 1 + i / (self.arity() - 1))
    }

    /// The seat on top of a branch.
    pub(super) fn top(self, branch: usize) -> u32 {
        let Some(i) = branch.checked_sub(self.arity()) else { return (self.me << self.shift) + 1 + branch as u32 };
        let (level, nth) = (i / (self.arity() - 1), (i % (self.arity() - 1)) as u32);
        let ours = std::iter::once(self.me).chain(self.line(self.me)).nth(level).expect("a branch beside our line");
        let first = (self.up(ours) << self.shift) + 1;
        first + nth + u32::from(first + nth >= ours)
    }

    /// The branch that a seat is in, unless it is on our line.
    pub(super) fn branch(self, seat: u32) -> Option<usize> {
        let (mut theirs, mut ours, mut level) = (seat, self.me, 0);
        let (mut under, mut line) = (seat, self.me);
        while theirs != ours {
            if theirs > ours {
                under = theirs;
                theirs = self.up(theirs);
            } else {
                line = ours;
                ours = self.up(ours);
                level += 1;
            }
        }
        if seat == theirs {
            return None;
        }
        let nth = (under - 1) & (self.arity() as u32 - 1);
        Some(match level {
            0 => nth as usize,
            _ => self.beside(level - 1).start + (nth - u32::from(under > line)) as usize,
        })
    }

    /// The levels of what is at or below a seat, each from its first to its last.
    pub(super) fn levels(self, top: u32) -> impl Iterator<Item = (u64, u64)> {
        let (shift, top) = (self.shift, u64::from(top));
        std::iter::successors(Some((top, top)), move |&(first, last)| {
            Some(((first << shift) + 1, (last + 1) << shift)).filter(|l| l.0 < u64::from(u32::MAX))
        })
    }

    /// The first seat at or below `top` that is not lower than `seat`.
    pub(super) fn next(self, top: u32, seat: u32) -> u32 {
        let seat = u64::from(seat);
        let level = self.levels(top).find(|&(_, last)| last >= seat);
        level.map_or(u32::MAX, |(first, _)| first.max(seat) as u32)
    }

    /// How many seats at or below `top` there are in a tree of `size`.
    pub(super) fn population(self, top: u32, size: u32) -> u32 {
        let size = u64::from(size);
        let levels = self.levels(top).take_while(|&(first, _)| first < size);
        levels.map(|(first, last)| (last.min(size - 1) - first + 1) as u32).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rv_9_each_seat_is_on_our_line_or_in_one_branch() {
        for shift in 1..4 {
            for me in [0, 1, 2, 5, 30, 77, 199] {
                let seats = Seats { shift, me };
                let mut counts = vec![0; seats.branches()];
                for seat in 0..300 {
                    let on_line = seat == me || seats.line(me).any(|s| s == seat);
                    assert_eq!(seats.branch(seat).is_none(), on_line);
                    if let Some(branch) = seats.branch(seat) {
                        counts[branch] += 1;
                        assert!(seats.is_within(seats.top(branch), seat));
                        assert_eq!(seats.branch(seats.top(branch)), Some(branch));
                        assert_eq!(seats.next(seats.top(branch), seat), seat);
                    }
                }
                let populations = (0..counts.len()).map(|b| seats.population(seats.top(b), 300)).collect::<Vec<_>>();
                assert_eq!(counts, populations);
            }
        }
    }
}
