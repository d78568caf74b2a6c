//! How long a message is under way: distributions, compiled into tables of quantiles.
//!
//! A draw is one random number, one look-up and one multiplication; no logarithm on the way of a message. The
//! price: beyond 1 in 65,536 the tails of the unbounded distributions are cut.

use crate::network::NetworkError;
use phalanx_core::{Duration, Rng};
use serde::Deserialize;

/// A distribution of latencies, as a scenario writes it.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Latency {
    /// Always the same.
    Fixed {
        /// The latency.
        us: f64,
    },
    /// Evenly between two bounds.
    Uniform {
        /// The shortest.
        min_us: f64,
        /// The longest.
        max_us: f64,
    },
    /// A bell around a mean, never below a floor.
    Normal {
        /// The mean.
        mean_us: f64,
        /// The standard deviation.
        sd_us: f64,
        /// The floor: what is drawn below becomes this.
        min_us: f64,
    },
    /// What networks mostly show: half of the messages below the median, a long tail above it.
    Lognormal {
        /// The median.
        median_us: f64,
        /// Standard deviation of the logarithm: 0.5 is a calm network, 1 a bad one.
        sigma: f64,
        /// The floor: what is drawn below becomes this.
        min_us: f64,
    },
    /// A base that everybody pays and an exponentially distributed wait behind it.
    Exponential {
        /// The base.
        base_us: f64,
        /// The mean of the wait.
        mean_us: f64,
    },
    /// Measured latencies: each is as likely as the others, evenly between neighbours.
    Empirical {
        /// The measurements, in any order.
        us: Vec<f64>,
    },
}

impl Default for Latency {
    /// A machine room: 100 to 200 µs.
    fn default() -> Self {
        Self::Uniform { min_us: 100.0, max_us: 200.0 }
    }
}

/// Cells of a table, as a power of two.
const CELLS: u32 = 10;
/// Where the tails are cut.
const TAIL: f64 = 1.0 / 65_536.0;

/// A compiled distribution.
#[derive(Clone, Debug)]
pub(crate) enum Sampler {
    Fixed(u64),
    Uniform {
        min: u64,
        span: u64,
    },
    /// Quantiles at equal steps of probability, one more than there are cells.
    Table(Box<[u64]>),
}

impl Sampler {
    /// The latency of one message.
    #[inline]
    pub(crate) fn draw(&self, rng: &mut Rng) -> Duration {
        Duration(match self {
            Self::Fixed(ns) => *ns,
            Self::Uniform { min, span } => min + ((u128::from(rng.u32()) * u128::from(*span)) >> 32) as u64,
            Self::Table(quantiles) => {
                let u = rng.u32();
                let (cell, rest) = ((u >> (32 - CELLS)) as usize, u64::from(u << CELLS));
                let (low, high) = (quantiles[cell], quantiles[cell + 1]);
                low + ((u128::from(high - low) * u128::from(rest)) >> 32) as u64
            }
        })
    }

    /// Nothing that is drawn is shorter.
    pub(crate) fn min(&self) -> Duration {
        Duration(match self {
            Self::Fixed(ns) => *ns,
            Self::Uniform { min, .. } => *min,
            Self::Table(quantiles) => quantiles[0],
        })
    }
}

impl Latency {
    pub(crate) fn compile(&self) -> Result<Sampler, NetworkError> {
        let bad = |what: &str| Err(NetworkError::Latency(what.to_owned()));
        Ok(match self {
            Self::Fixed { us } => Sampler::Fixed(nanos(*us)?),
            Self::Uniform { min_us, max_us } => {
                let (min, max) = (nanos(*min_us)?, nanos(*max_us)?);
                if max < min {
                    return bad("max_us is below min_us");
                }
                Sampler::Uniform { min, span: max - min }
            }
            Self::Normal { mean_us, sd_us, min_us } => {
                nanos(*mean_us)?;
                nanos(*sd_us)?;
                let z = normal_quantiles();
                table(*min_us, |i| mean_us + sd_us * z[i])?
            }
            Self::Lognormal { median_us, sigma, min_us } => {
                nanos(*median_us)?;
                nanos(*sigma)?;
                let z = normal_quantiles();
                table(*min_us, |i| median_us * (sigma * z[i]).exp())?
            }
            Self::Exponential { base_us, mean_us } => {
                nanos(*mean_us)?;
                table(*base_us, |i| base_us - mean_us * (1.0 - probability(i)).ln())?
            }
            Self::Empirical { us } => {
                let mut sorted = us.clone();
                sorted.sort_by(f64::total_cmp);
                let Some(last) = sorted.len().checked_sub(1) else {
                    return bad("an empirical distribution needs at least one measurement");
                };
                for &us in &sorted {
                    nanos(us)?;
                }
                table(0.0, |i| {
                    let place = i as f64 / f64::from(1u32 << CELLS) * last as f64;
                    let below = sorted[place as usize];
                    below + (sorted[(place as usize + 1).min(last)] - below) * place.fract()
                })?
            }
        })
    }
}

/// The probability that the `i`-th quantile stands for.
fn probability(i: usize) -> f64 {
    (i as f64 / f64::from(1u32 << CELLS)).clamp(0.0, 1.0 - TAIL)
}

fn table(floor_us: f64, quantile: impl Fn(usize) -> f64) -> Result<Sampler, NetworkError> {
    nanos(floor_us)?;
    let quantiles: Result<Box<[u64]>, _> = (0..=1usize << CELLS).map(|i| nanos(quantile(i).max(floor_us))).collect();
    Ok(Sampler::Table(quantiles?))
}

/// Quantiles of the standard normal distribution, by summing its density.
///
/// No closed form exists, and this runs once for each network: plain beats clever.
fn normal_quantiles() -> Vec<f64> {
    const STEP: f64 = 1e-4;
    let density = |z: f64| (-z * z / 2.0).exp() / std::f64::consts::TAU.sqrt();
    let (mut z, mut below) = (-6.0, 0.0);
    let quantile = |i| {
        while below < probability(i).max(TAIL) {
            below += density(z + STEP / 2.0) * STEP;
            z += STEP;
        }
        z
    };
    (0..=1usize << CELLS).map(quantile).collect()
}

/// Longest latency that makes sense, in µs: an hour.
const LONGEST_US: f64 = 3.6e9;

/// Microseconds as whole nanoseconds, refusing what is no latency.
pub(crate) fn nanos(us: f64) -> Result<u64, NetworkError> {
    if (0.0..=LONGEST_US).contains(&us) {
        Ok((us * 1e3).round() as u64)
    } else {
        Err(NetworkError::Latency(format!("{us} is not a time between 0 and {LONGEST_US} µs")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Smallest, median, mean and 90th percentile of many draws, in µs.
    fn shape(latency: &Latency) -> [f64; 4] {
        let (sampler, mut rng) = (latency.compile().unwrap(), Rng::new(1, 0));
        let mut all: Vec<f64> = (0..40_000).map(|_| sampler.draw(&mut rng).0 as f64 / 1e3).collect();
        all.sort_by(f64::total_cmp);
        assert!(all[0] >= sampler.min().0 as f64 / 1e3);
        [all[0], all[20_000], all.iter().sum::<f64>() / 40_000.0, all[36_000]]
    }

    fn near(got: [f64; 4], expected: [f64; 4]) {
        for (g, e) in got.iter().zip(expected) {
            assert!((g - e).abs() <= e * 0.03, "{got:?} is not {expected:?}");
        }
    }

    #[test]
    fn each_distribution_has_its_shape() {
        near(shape(&Latency::Fixed { us: 7.5 }), [7.5; 4]);
        near(shape(&Latency::Uniform { min_us: 100.0, max_us: 300.0 }), [100.0, 200.0, 200.0, 280.0]);
        near(shape(&Latency::Normal { mean_us: 100.0, sd_us: 20.0, min_us: 50.0 }), [50.0, 100.0, 100.0, 125.6]);
        near(shape(&Latency::Lognormal { median_us: 100.0, sigma: 0.5, min_us: 40.0 }), [40.0, 100.0, 113.6, 189.8]);
        near(shape(&Latency::Exponential { base_us: 50.0, mean_us: 100.0 }), [50.0, 119.3, 150.0, 280.3]);
        near(shape(&Latency::Empirical { us: vec![30.0, 10.0, 20.0] }), [10.0, 20.0, 20.0, 28.0]);
    }

    #[test]
    fn what_is_no_latency_is_refused() {
        for bad in [
            Latency::Fixed { us: -1.0 },
            Latency::Fixed { us: f64::NAN },
            Latency::Uniform { min_us: 2.0, max_us: 1.0 },
            Latency::Empirical { us: vec![] },
            Latency::Empirical { us: vec![1.0, f64::NAN] },
        ] {
            assert!(bad.compile().is_err(), "{bad:?}");
        }
    }
}
