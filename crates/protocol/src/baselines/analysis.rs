//! What the baselines cost and how long they take, on paper.
//!
//! BL-2, 003 §4.1 with m bytes for each member, n members, f = 1/period:
//! - all-to-all: each node hears n−1 heartbeats a period, m·(n−1)·f; all together m·n·(n−1)·f; `T_fail` = losses/f;
//! - gossip: each node hears one list a period on average, m·n·f; all together m·n²·f; `T_fail` = O(log n)/f.
//!
//! 003 leaves the constant of gossip's `T_fail` to van Renesse, Minsky and Hayden (1998), whose analysis of the basic
//! protocol is [`mistake`]: one random member gossips to another in each *round*, n rounds make a period. Of one
//! counter, k members know; a round infects one more with probability `k/n · (n−f−k)/(n−1) · P_arrival`. A mistake is
//! a counter that has not reached all n−f live members, and there are as many counters as members:
//! `P_mistake(r) ≤ (n−f) · (1 − P(k_r = n−f))`. `T_fail` is the smallest r that brings this below the bound.
//!
//! The recurrence takes O(n² log n) for one n, too much for each change of a view. [`periods`] is its limit: the time
//! from k to k+1 is geometric with mean n(n−1)/(k(n−k)·`P_arrival`) rounds, the sum of all in periods is
//! `(2·ln n + G₁ + G₂)/P_arrival` with two standard Gumbel variables (one for the first to learn of it, one for the
//! last), and `P(G₁ + G₂ > x) → (x + 1 − 2γ)·e⁻ˣ`. Tests hold it against the recurrence: never below, less than 5 %
//! above from 16 members on, 1 % from 64 on.
//!
//! ⚠ 003 §4.2 says "their BCP values are O(n²) and O(n² log n), respectively" of gossip and all-to-all: by its own §4.1
//! it is the other way round.

use phalanx_core::Duration;

/// Euler's constant.
const GAMMA: f64 = 0.577_215_664_901_532_9;
/// Steps to the fixed point of `x = ln(n(x + 1 − 2γ)/p)`: each brings it nearer by a factor of x, above 5 here.
const STEPS: usize = 24;

/// van Renesse: the bound of the probability that any of `n` members, `failed` of them dead, takes a live one for dead,
/// when a counter is given `rounds` rounds to reach all.
#[must_use]
pub fn mistake(n: usize, failed: usize, arrival: f64, rounds: usize) -> f64 {
    let mut chain = Chain::new(n, failed, arrival);
    (0..rounds).for_each(|_| chain.step());
    chain.mistake()
}

/// van Renesse: the smallest number of rounds for which [`mistake`] is at most `bound`. A positive bound and arrival
/// are needed, or it would never end.
#[must_use]
pub fn rounds(n: usize, failed: usize, arrival: f64, bound: f64) -> usize {
    assert!(bound > 0.0 && arrival > 0.0, "no number of rounds is enough");
    let mut chain = Chain::new(n, failed, arrival);
    let mut rounds = 0;
    while chain.mistake() > bound {
        chain.step();
        rounds += 1;
    }
    rounds
}

/// How many members know a counter, as probabilities.
struct Chain {
    /// By the number of members that know.
    known: Vec<f64>,
    infects: Vec<f64>,
}

impl Chain {
    fn new(n: usize, failed: usize, arrival: f64) -> Self {
        let live = n.saturating_sub(failed).max(1);
        let mut known = vec![0.0; live + 1];
        known[1] = 1.0;
        let infects = |k: usize| k as f64 / n as f64 * (live - k) as f64 / (n as f64 - 1.0).max(1.0) * arrival;
        Self { known, infects: (0..=live).map(infects).collect() }
    }

    fn step(&mut self) {
        for k in (1..self.known.len()).rev() {
            self.known[k] = self.known[k] * (1.0 - self.infects[k]) + self.known[k - 1] * self.infects[k - 1];
        }
    }

    fn mistake(&self) -> f64 {
        // Summing the small ones: 1 − P(all) would lose them to rounding.
        let live = self.known.len() - 1;
        live as f64 * self.known[..live].iter().sum::<f64>()
    }
}

/// The limit of [`rounds`]`/n`: gossip periods until a counter has reached all of `n` members, but for mistakes of
/// probability `bound`. That is the limit of a tail: above 1 the bound says little, and the result stops shrinking.
#[must_use]
pub fn periods(n: usize, arrival: f64, bound: f64) -> f64 {
    let n = (n as f64).max(2.0);
    let x = (0..STEPS).fold(1.0, |x: f64, _| (n * (x + 1.0 - 2.0 * GAMMA).max(0.1) / bound).ln().max(0.5));
    (2.0 * n.ln() + x) / arrival
}

/// 003 §4.1: bytes a second that each node hears, all-to-all, with `m` bytes for each member.
#[must_use]
pub fn all_to_all_bytes(n: usize, m: usize, period: Duration) -> f64 {
    (m * n.saturating_sub(1)) as f64 / period.as_secs_f64()
}

/// 003 §4.1: bytes a second that each node hears on average, gossip, with `m` bytes for each member.
#[must_use]
pub fn gossip_bytes(n: usize, m: usize, fanout: usize, period: Duration) -> f64 {
    (m * n * fanout) as f64 / period.as_secs_f64()
}

/// 003 §4: the product of all nodes' bandwidth and the time to detect (BDP) or to converge (BCP), in bytes.
#[must_use]
pub fn product(n: usize, bytes_per_node_s: f64, time: Duration) -> f64 {
    n as f64 * bytes_per_node_s * time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_core::Rng;

    /// BL-1: what the engine uses is the limit of the analysis it cites, from above.
    #[test]
    fn bl_1_the_limit_is_close_to_the_recurrence_and_never_below() {
        for (arrival, bound) in [(1.0, 1e-3), (0.95, 1e-3), (0.8, 1e-3), (1.0, 1e-2), (0.9, 1e-6)] {
            for n in [2, 3, 4, 5, 8, 16, 20, 32, 64, 100, 128] {
                let exact = rounds(n, 0, arrival, bound) as f64 / n as f64;
                let ratio = periods(n, arrival, bound) / exact;
                let most = if n < 16 {
                    2.2
                } else if n < 64 {
                    1.05
                } else {
                    1.011
                };
                assert!((1.0..most).contains(&ratio), "n {n}, arrival {arrival}, bound {bound}: {ratio}");
            }
        }
    }

    /// BL-2, 003 §5.4: logarithmic in n.
    #[test]
    fn bl_2_gossip_detects_in_logarithmic_time() {
        let each = |n| periods(n, 1.0, 1e-3);
        let grown: Vec<_> = [20, 200, 2_000, 20_000].map(each).windows(2).map(|w| w[1] - w[0]).collect();
        // Three times ln 10: two for the spread, one for as many counters as members.
        assert!(grown.iter().all(|g| (6.9..7.6).contains(g)), "{grown:?}");
        assert!((23.0..24.0).contains(&each(100)), "{}", each(100));
    }

    /// Rounds until all know, by playing them: one gossips in each round.
    fn played(n: usize, arrival: f64, rng: &mut Rng) -> usize {
        let (mut knows, mut known, mut rounds) = (vec![false; n], 1, 0);
        knows[0] = true;
        while known < n {
            rounds += 1;
            let from = rng.index(n);
            let to = (from + 1 + rng.index(n - 1)) % n;
            if knows[from] && !knows[to] && rng.chance(arrival) {
                (knows[to], known) = (true, known + 1);
            }
        }
        rounds
    }

    /// The same with what truly happens: each gossips once in a period, at a phase of its own.
    fn played_in_periods(n: usize, arrival: f64, rng: &mut Rng) -> f64 {
        let mut phases: Vec<_> = (0..n).map(|i| (rng.unit(), i)).collect();
        phases.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut knows, mut known) = (vec![false; n], 1);
        // The counter is raised when its owner gossips.
        let (start, owner) = phases[0];
        knows[owner] = true;
        for period in 0.. {
            for &(phase, from) in &phases {
                let to = (from + 1 + rng.index(n - 1)) % n;
                if knows[from] && !knows[to] && rng.chance(arrival) {
                    (knows[to], known) = (true, known + 1);
                }
                if known == n {
                    return f64::from(period) + phase - start;
                }
            }
        }
        unreachable!()
    }

    /// BL-1: the recurrence against its own process, and both against periodic gossip: the model errs on the safe side.
    #[test]
    fn bl_1_the_recurrence_says_what_a_simulation_finds() {
        const RUNS: usize = 20_000;
        for (n, arrival) in [(5, 1.0), (20, 0.9), (50, 1.0)] {
            let mut rng = Rng::new(n as u64, 1);
            let mut took: Vec<_> = (0..RUNS).map(|_| played(n, arrival, &mut rng)).collect();
            took.sort_unstable();
            let mut periodic: Vec<_> = (0..RUNS).map(|_| played_in_periods(n, arrival, &mut rng)).collect();
            periodic.sort_by(f64::total_cmp);
            for late in [0.5, 0.1, 0.01] {
                let quantile = RUNS - 1 - (late * RUNS as f64) as usize;
                let expected = mistake(n, 0, arrival, took[quantile]) / n as f64;
                assert!((0.75..1.25).contains(&(expected / late)), "n {n}, late {late}: {expected}");
                let in_rounds = periodic[quantile] * n as f64;
                assert!(in_rounds <= took[quantile] as f64, "n {n}, late {late}: {in_rounds} > {}", took[quantile]);
            }
        }
    }

    /// BL-2, 003 §2 and Fig. 3: 4000 nodes with 1024-byte heartbeats, 4 MB/s each; §5.4: about 5 s whatever n is.
    #[test]
    fn bl_2_the_papers_figures() {
        let second = Duration::from_secs(1);
        assert!((4.0e6..4.2e6).contains(&all_to_all_bytes(4_000, 1_024, second)));
        let (all, gossip) = (all_to_all_bytes(100, 228, second), gossip_bytes(100, 228, 1, second));
        assert_eq!((all, gossip), (22_572.0, 22_800.0));
        let (bdp, bdp_gossip) = (product(100, all, second * 5), product(100, gossip, second * 24));
        assert!(bdp_gossip > 4.0 * bdp);
    }
}
