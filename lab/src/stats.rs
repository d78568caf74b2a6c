//! Medians and how far to trust them: percentiles, and bootstrap intervals that a seed replays.
//!
//! Timings on a shared machine have long right tails, so everything here is about medians; the bootstrap needs no
//! assumption on the shape. Ratios are resampled in *pairs*: trial `i` of both sides ran in the same round, so a slow
//! phase of the machine moves both and cancels.

use phalanx_core::Rng;

/// Resamples behind each interval. 95 % percentile intervals are steady to about a tenth of their width from here on.
const RESAMPLES: usize = 1_000;
/// The share of resamples outside the interval on each side: 95 % inside.
const TAIL: f64 = 0.025;
/// Streams of the generator, so that medians and ratios never share draws.
const MEDIAN_STREAM: u64 = 1;
const RATIO_STREAM: u64 = 2;

/// An estimate with its 95 % interval.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Interval {
    /// The estimate itself.
    pub(crate) value: f64,
    /// Lower end.
    pub(crate) low: f64,
    /// Upper end.
    pub(crate) high: f64,
}

impl Interval {
    /// Half of the interval's width relative to the estimate: 0.03 reads "± 3 %".
    pub(crate) fn half_width(&self) -> f64 {
        (self.high - self.low) / 2.0 / self.value.abs()
    }
}

/// The value below which the share `q` of `sorted` lies, interpolated between neighbours; `None` when empty.
pub(crate) fn quantile(sorted: &[f64], q: f64) -> Option<f64> {
    let last = sorted.len().checked_sub(1)?;
    let at = q.clamp(0.0, 1.0) * last as f64;
    let (below, share) = (at.floor() as usize, at.fract());
    let above = (below + 1).min(last);
    Some(sorted[below] + (sorted[above] - sorted[below]) * share)
}

/// The middle of `samples`, in any order; `None` when there are none.
pub(crate) fn median(samples: &[f64]) -> Option<f64> {
    let mut sorted = samples.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    quantile(&sorted, 0.5)
}

/// The median of `samples` and its interval; `None` with fewer than two of them.
pub(crate) fn median_interval(samples: &[f64], seed: u64) -> Option<Interval> {
    let value = median(samples)?;
    let mut drawn = vec![0.0; samples.len()];
    bootstrap(samples.len(), Rng::new(seed, MEDIAN_STREAM), |picks| {
        for (d, &i) in drawn.iter_mut().zip(picks) {
            *d = samples[i];
        }
        middle(&mut drawn)
    })
    .map(|(low, high)| Interval { value, low, high })
}

/// Median of the first over median of the second, from pairs of one round; `None` with fewer than two pairs.
pub(crate) fn ratio_interval(pairs: &[(f64, f64)], seed: u64) -> Option<Interval> {
    let (mut over, mut under): (Vec<f64>, Vec<f64>) = pairs.iter().copied().unzip();
    let value = median(&over)? / median(&under)?;
    bootstrap(pairs.len(), Rng::new(seed, RATIO_STREAM), |picks| {
        for (k, &i) in picks.iter().enumerate() {
            (over[k], under[k]) = pairs[i];
        }
        middle(&mut over) / middle(&mut under)
    })
    .map(|(low, high)| Interval { value, low, high })
}

/// The percentile interval of `estimate` over resampled indices `0..n`.
fn bootstrap(n: usize, mut rng: Rng, mut estimate: impl FnMut(&[usize]) -> f64) -> Option<(f64, f64)> {
    if n < 2 {
        return None;
    }
    let mut picks = vec![0; n];
    let mut estimates = Vec::with_capacity(RESAMPLES);
    for _ in 0..RESAMPLES {
        picks.fill_with(|| rng.index(n));
        estimates.push(estimate(&picks));
    }
    estimates.sort_unstable_by(f64::total_cmp);
    Some((quantile(&estimates, TAIL)?, quantile(&estimates, 1.0 - TAIL)?))
}

/// The median of a scratch slice, which may end up in any order.
fn middle(scratch: &mut [f64]) -> f64 {
    scratch.sort_unstable_by(f64::total_cmp);
    quantile(scratch, 0.5).expect("a resample is as long as its source, which is not empty")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn normal(rng: &mut Rng, mean: f64, deviation: f64) -> f64 {
        // Twelve uniforms: near enough to normal, and no logarithm of zero.
        mean + deviation * ((0..12).map(|_| rng.unit()).sum::<f64>() - 6.0)
    }

    #[test]
    fn the_median_is_the_middle_or_between_the_two() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[7.0]), Some(7.0));
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }

    #[test]
    fn quantiles_interpolate_and_stay_inside() {
        let sorted: Vec<f64> = (0..=100).map(f64::from).collect();
        assert_eq!(quantile(&sorted, 0.99), Some(99.0));
        assert_eq!(quantile(&sorted, 0.005), Some(0.5));
        assert_eq!((quantile(&sorted, -1.0), quantile(&sorted, 2.0)), (Some(0.0), Some(100.0)));
    }

    #[test]
    fn a_seed_replays_the_interval_and_another_moves_it() {
        let mut rng = Rng::new(5, 0);
        let pairs: Vec<(f64, f64)> =
            (0..16).map(|_| (normal(&mut rng, 10.0, 1.0), normal(&mut rng, 5.0, 1.0))).collect();
        let of = |seed| ratio_interval(&pairs, seed).unwrap();
        assert_eq!(of(1), of(1));
        assert_ne!((of(1).low, of(1).high), (of(2).low, of(2).high));
        assert_eq!(of(1).value, of(2).value);
        let samples: Vec<f64> = pairs.iter().map(|p| p.0).collect();
        assert_eq!(median_interval(&samples, 1), median_interval(&samples, 1));
    }

    /// A 95 % interval that holds the truth in far fewer or in nearly all of many experiments is not one.
    #[test]
    fn the_interval_holds_the_true_median_as_often_as_it_says() {
        let mut rng = Rng::new(6, 0);
        let held = (0..300)
            .filter(|&seed| {
                let samples: Vec<f64> = (0..25).map(|_| normal(&mut rng, 10.0, 1.0)).collect();
                let i = median_interval(&samples, seed).unwrap();
                i.low <= 10.0 && 10.0 <= i.high
            })
            .count();
        assert!((264..=298).contains(&held), "{held} of 300");
    }

    /// Both sides slow down together by up to a factor of four; the ratio does not notice.
    #[test]
    fn pairs_cancel_what_slows_both_sides() {
        let mut rng = Rng::new(7, 0);
        let pairs: Vec<(f64, f64)> = (0..20)
            .map(|_| {
                let slow = 1.0 + 3.0 * rng.unit();
                (2.0 * slow, slow)
            })
            .collect();
        let ratio = ratio_interval(&pairs, 1).unwrap();
        assert!((ratio.value - 2.0).abs() < 1e-9 && ratio.half_width() < 1e-9, "{ratio:?}");
        let alone: Vec<f64> = pairs.iter().map(|p| p.1).collect();
        assert!(median_interval(&alone, 1).unwrap().half_width() > 0.03);
    }

    #[test]
    fn one_sample_has_no_interval() {
        assert_eq!(median_interval(&[3.0], 1), None);
        assert_eq!(ratio_interval(&[(1.0, 2.0)], 1), None);
    }
}
