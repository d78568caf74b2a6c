//! FI-2: how long until the next fault, and how long a delay lasts (004 §4.1, "a probability distribution of the
//! fault recurrence interval").
//!
//! One shape serves two quantities: spans of time, and numbers of messages. ⚠ The paper does not say in what its
//! intervals are counted. Time is what a broken cable knows; messages are what a test can rely on: we take both.

use phalanx_core::{Duration, Rng};
use std::hash::{Hash, Hasher};

/// A distribution of spans (`T = Duration`) or of numbers of messages (`T = u64`).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Distribution<T> {
    /// Always the same.
    Fixed(T),
    /// Exponential; over messages its discrete counterpart, the geometric distribution of that mean.
    Exponential {
        /// Its mean.
        mean: T,
    },
    /// Evenly between the two, both included.
    Uniform {
        /// The least.
        from: T,
        /// The largest.
        to: T,
    },
    /// One of these measured samples, each as likely as the others.
    Empirical(Vec<T>),
}

impl Distribution<Duration> {
    /// Draws a span.
    pub(crate) fn draw(&self, rng: &mut Rng) -> Duration {
        match self {
            Self::Fixed(d) => *d,
            // The cast saturates, so the longest tail ends at the longest span.
            Self::Exponential { mean } => Duration(rng.exponential(mean.0 as f64) as u64),
            Self::Uniform { from, to } => Duration(between(rng, from.0, to.0)),
            Self::Empirical(samples) => samples[rng.index(samples.len())],
        }
    }
}

impl Distribution<u64> {
    /// Draws the number of messages up to and including the one that is hit: at least one.
    pub(crate) fn draw(&self, rng: &mut Rng) -> u64 {
        match self {
            Self::Fixed(n) => *n,
            Self::Exponential { mean } => geometric(rng, 1.0 / *mean as f64),
            Self::Uniform { from, to } => between(rng, *from, *to),
            Self::Empirical(samples) => samples[rng.index(samples.len())],
        }
    }
}

/// The probability that a message is hit, each on its own. Finite and within `[0, 1]`, so that it compares and hashes.
#[derive(Clone, Copy, Debug)]
pub struct Probability(f64);

impl Probability {
    /// `p` as a probability, when it is one.
    #[must_use]
    pub fn new(p: f64) -> Option<Self> {
        // Adding zero turns -0.0 into 0.0, which has other bits.
        (0.0..=1.0).contains(&p).then_some(Self(p + 0.0))
    }

    /// The number.
    #[must_use]
    pub fn value(self) -> f64 {
        self.0
    }

    /// Draws the number of messages up to and including the next one that is hit.
    ///
    /// One draw for each fault instead of one for each message: the messages in between cost a decrement.
    pub(crate) fn draw(self, rng: &mut Rng) -> u64 {
        geometric(rng, self.0)
    }
}

impl PartialEq for Probability {
    fn eq(&self, other: &Self) -> bool {
        self.0.to_bits() == other.0.to_bits()
    }
}

impl Eq for Probability {}

impl Hash for Probability {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.to_bits().hash(state);
    }
}

/// How many trials of chance `p` it takes until one succeeds: 1 when certain, practically for ever when impossible.
fn geometric(rng: &mut Rng, p: f64) -> u64 {
    if p >= 1.0 {
        return 1;
    }
    if p <= 0.0 {
        return u64::MAX;
    }
    // An exponential rounded up is geometric; this mean gives it exactly the chance `p`. `ln_1p` keeps tiny ones.
    let mean = -1.0 / (-p).ln_1p();
    (rng.exponential(mean).ceil() as u64).max(1)
}

fn between(rng: &mut Rng, from: u64, to: u64) -> u64 {
    from + rng.below((to - from).saturating_add(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DRAWS: u64 = 20_000;

    fn mean_of(mut draw: impl FnMut(&mut Rng) -> u64) -> f64 {
        let mut rng = Rng::new(11, 0);
        (0..DRAWS).map(|_| draw(&mut rng) as f64).sum::<f64>() / DRAWS as f64
    }

    /// FI-2: each distribution has the mean that was written down.
    #[test]
    fn means_are_the_configured_ones() {
        for (distribution, expected) in [
            (Distribution::Fixed(40), 40.0),
            (Distribution::Exponential { mean: 40 }, 40.0),
            (Distribution::Exponential { mean: 1 }, 1.0),
            (Distribution::Exponential { mean: 2 }, 2.0),
            (Distribution::Uniform { from: 10, to: 30 }, 20.0),
            (Distribution::Empirical(vec![1, 1, 4]), 2.0),
        ] {
            let mean = mean_of(|rng| distribution.draw(rng));
            assert!((mean / expected - 1.0).abs() < 0.03, "{distribution:?} has mean {mean}");
        }
        let spans = Distribution::Exponential { mean: Duration::from_millis(5) };
        let mean = mean_of(|rng| spans.draw(rng).0);
        assert!((mean / 5e6 - 1.0).abs() < 0.03, "{mean}");
    }

    /// FI-2: a probability is the geometric distribution of its gaps, and its ends draw nothing.
    #[test]
    fn a_probability_is_hit_as_often_as_it_says() {
        for p in [0.001, 0.1, 0.5, 0.9] {
            let p = Probability::new(p).unwrap();
            let mean = mean_of(|rng| p.draw(rng));
            assert!((mean * p.value() - 1.0).abs() < 0.03, "{p:?}: mean gap {mean}");
        }
        let mut rng = Rng::new(1, 1);
        let before = rng.clone();
        assert_eq!(Probability::new(1.0).unwrap().draw(&mut rng), 1);
        assert_eq!(Probability::new(0.0).unwrap().draw(&mut rng), u64::MAX);
        assert_eq!(rng, before);
    }

    #[test]
    fn only_numbers_from_zero_to_one_are_probabilities() {
        for p in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
            assert_eq!(Probability::new(p), None);
        }
        assert_eq!(Probability::new(-0.0), Probability::new(0.0));
    }

    #[test]
    fn uniform_reaches_both_its_ends() {
        let mut rng = Rng::new(5, 0);
        let mut seen = [false; 3];
        for _ in 0..100 {
            seen[Distribution::Uniform { from: 4u64, to: 6 }.draw(&mut rng) as usize - 4] = true;
        }
        assert_eq!(seen, [true; 3]);
        let _whole_range = Distribution::Uniform { from: 0u64, to: u64::MAX }.draw(&mut rng);
    }
}
