//! Cast: hops and steps among dead nodes (001 §5, Fig. 2), by the functions that its machine routes with.

pub(crate) mod broadcast;
pub(crate) mod crash;
mod played;
pub(crate) mod rate;
pub(crate) mod sixteen;
mod steps;
pub(crate) mod unicast;

use phalanx_core::Rng;
use phalanx_protocol::cast::Id;

/// Fig. 2: fan-outs, and nodes that are dead at once.
const FAN_OUTS: std::ops::RangeInclusive<u32> = 2..=8;
const DEAD_MOST: usize = 4;
/// Its trees, which are complete for k = 2.
const NODES: u32 = 31;

/// All sets of so many of the nodes from `first` on.
fn sets(first: u32, nodes: u32, dead: usize) -> Vec<Vec<Id>> {
    if dead == 0 {
        return vec![Vec::new()];
    }
    let with = |lowest: u32| {
        let rest = sets(lowest + 1, nodes, dead - 1);
        rest.into_iter().map(move |rest| std::iter::once(Id(lowest)).chain(rest).collect())
    };
    (first..nodes).flat_map(with).collect()
}

/// A sum over cases, and their spread.
#[derive(Clone, Copy, Default)]
struct Mean {
    cases: u64,
    sum: f64,
    squares: f64,
}

impl Mean {
    fn add(&mut self, value: f64) {
        self.cases += 1;
        self.sum += value;
        self.squares += value * value;
    }

    fn join(mut self, other: Self) -> Self {
        self.cases += other.cases;
        self.sum += other.sum;
        self.squares += other.squares;
        self
    }

    fn value(&self) -> f64 {
        self.sum / self.cases as f64
    }

    /// Half of the 95 % interval around the mean of drawn cases.
    fn half_width(&self) -> f64 {
        let (n, mean) = (self.cases as f64, self.value());
        1.96 * ((self.squares / n - mean * mean).max(0.0) / n).sqrt()
    }
}

/// Two different ones of these.
fn pair(rng: &mut Rng, of: &[Id]) -> (Id, Id) {
    let from = rng.below(of.len() as u64) as usize;
    let to = (from + 1 + rng.below(of.len() as u64 - 1) as usize) % of.len();
    (of[from], of[to])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_sets_are_there_once() {
        let all = sets(1, 31, 3);
        assert_eq!(all.len(), 30 * 29 * 28 / 6);
        assert!(all.iter().all(|s| s.is_sorted() && s[0].0 >= 1) && all.is_sorted());
        assert_eq!(sets(0, 31, 4).len(), 31465);
    }
}
