//! Trials in rounds, A B C A B C …, until the medians are known well enough.
//!
//! A shared machine drifts over seconds; variants measured one after the other would be compared across different
//! machines. Interleaved, each round sees all variants within one phase, and ratios are taken from pairs of a round.

use crate::error::Error;
use crate::experiment::Run;
use crate::stats::{Interval, median, median_interval, ratio_interval};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::time::Instant;

/// Fewer rounds say nothing about how sure they are.
const MIN_ROUNDS: usize = 5;
/// A first look.
const QUICK_ROUNDS: usize = 3;
/// Seed of the bootstrap: the same samples always give the same interval.
const SEED: u64 = 0x1ab;

/// What the trials measured: a value by key and round.
#[derive(Default)]
pub(crate) struct Samples {
    /// By key, one value for each round; NaN where that round's trial failed.
    by_key: BTreeMap<String, Vec<f64>>,
    /// Keys whose median has to become narrow.
    watched: BTreeSet<String>,
    round: usize,
}

impl Samples {
    /// Keeps `value`, whose median has to become narrow.
    pub(crate) fn watch(&mut self, key: String, value: f64) {
        self.watched.insert(key.clone());
        self.also(key, value);
    }

    /// Keeps `value` for the report only: tails never become narrow.
    pub(crate) fn also(&mut self, key: String, value: f64) {
        let values = self.by_key.entry(key).or_default();
        values.resize(self.round, f64::NAN);
        values.push(value);
    }

    /// The median of all rounds.
    pub(crate) fn median(&self, key: &str) -> Option<f64> {
        median(&self.of(key))
    }

    /// Median of `over` by median of `under`.
    pub(crate) fn ratio(&self, over: &str, under: &str) -> Option<Interval> {
        ratio_interval(&self.pairs(over, under), SEED)
    }

    fn of(&self, key: &str) -> Vec<f64> {
        self.by_key.get(key).map_or(Vec::new(), |v| v.iter().copied().filter(|x| x.is_finite()).collect())
    }

    fn pairs(&self, over: &str, under: &str) -> Vec<(f64, f64)> {
        let (Some(a), Some(b)) = (self.by_key.get(over), self.by_key.get(under)) else {
            return Vec::new();
        };
        a.iter().copied().zip(b.iter().copied()).filter(|p| p.0.is_finite() && p.1.is_finite()).collect()
    }

    /// How wide each watched median and each ratio still is; infinite when unknown.
    fn widths(&self, ratios: &[(String, String)]) -> Vec<(String, f64)> {
        let width = |i: Option<Interval>| i.map_or(f64::INFINITY, |i| i.half_width());
        let medians = self.watched.iter().map(|k| (k.clone(), width(median_interval(&self.of(k), SEED))));
        medians.chain(ratios.iter().map(|(a, b)| (format!("{a} / {b}"), width(self.ratio(a, b))))).collect()
    }
}

impl Run {
    /// Runs `trial` on all `variants` in rounds until each watched median and each of `ratios` is narrow, or a bound
    /// of the options is reached. A trial that fails costs its variant that round and a note.
    pub(crate) fn rounds<V: Display>(
        &mut self,
        variants: &[V],
        ratios: &[(String, String)],
        mut trial: impl FnMut(&V, &mut Samples) -> Result<(), Error>,
    ) -> Samples {
        let (start, options) = (Instant::now(), self.options);
        let max_rounds = if options.quick { QUICK_ROUNDS.min(options.max_rounds) } else { options.max_rounds };
        let min_rounds = MIN_ROUNDS.min(max_rounds);
        let mut samples = Samples::default();
        let mut failures: BTreeMap<String, (usize, Error)> = BTreeMap::new();
        loop {
            for (i, variant) in variants.iter().enumerate() {
                let (round, n) = (samples.round + 1, variants.len());
                self.progress(&format!("round {round} of at most {max_rounds}: {} of {n}, {variant}", i + 1));
                if let Err(e) = trial(variant, &mut samples) {
                    let failed = failures.entry(variant.to_string()).or_insert((0, e));
                    failed.0 += 1;
                }
            }
            samples.round += 1;
            let widths = samples.widths(ratios);
            let wide: Vec<_> = widths.iter().filter(|w| w.1 > options.width).collect();
            let enough = samples.round >= min_rounds && wide.is_empty();
            let spent = samples.round >= max_rounds || start.elapsed().as_secs_f64() >= options.budget_s;
            if enough || spent {
                if let Some((name, width)) = wide.iter().max_by(|a, b| a.1.total_cmp(&b.1)) {
                    self.note(not_narrow(samples.round, options.width, wide.len(), widths.len(), name, *width));
                }
                break;
            }
        }
        for (variant, (times, e)) in failures {
            self.note(format!("{variant}: {times} of {} trials failed, the first with: {e}", samples.round));
        }
        samples
    }
}

fn not_narrow(rounds: usize, goal: f64, wide: usize, all: usize, widest: &str, width: f64) -> String {
    let goal = goal * 100.0;
    let width = if width.is_finite() { format!("± {:.1} %", width * 100.0) } else { "unknown".into() };
    format!(
        "not narrow: after {rounds} rounds {wide} of {all} intervals exceed ± {goal} %; the widest, {widest}, is {width}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::Options;

    fn run(max_rounds: usize) -> Run {
        Run::for_test(Options { quick: false, width: 0.03, max_rounds, budget_s: 10.0, seeds: None })
    }

    #[test]
    fn steady_variants_interleave_and_stop_at_the_minimum() {
        let (mut run, mut order) = (run(50), String::new());
        let samples = run.rounds(&["a", "b"], &[("b".into(), "a".into())], |v, s| {
            order.push_str(v);
            s.watch((*v).to_string(), if *v == "a" { 2.0 } else { 3.0 });
            Ok(())
        });
        assert_eq!(order, "ab".repeat(MIN_ROUNDS));
        assert_eq!(samples.median("a"), Some(2.0));
        assert_eq!(samples.ratio("b", "a").unwrap().value, 1.5);
        assert!(run.notes().is_empty());
    }

    #[test]
    fn wild_variants_stop_at_the_bound_with_a_note() {
        let (mut run, mut n) = (run(8), 0.0);
        run.rounds(&["a"], &[], |_, s| {
            n += 1.0;
            s.watch("a".into(), n);
            Ok(())
        });
        assert_eq!(n, 8.0);
        assert!(run.notes()[0].starts_with("not narrow: after 8 rounds 1 of 1"), "{:?}", run.notes());
    }

    /// The pairs stay aligned: a round that one side missed counts for neither.
    #[test]
    fn a_failed_trial_costs_its_round_and_a_note() {
        let (mut run, mut round) = (run(6), 0);
        let samples = run.rounds(&["a", "b"], &[("b".into(), "a".into())], |v, s| {
            if *v == "a" {
                round += 1;
            } else if round == 2 {
                return Err(Error::UnknownRole("b".into()));
            }
            s.watch((*v).to_string(), if *v == "a" { f64::from(round) } else { 10.0 * f64::from(round) });
            Ok(())
        });
        assert!(samples.pairs("b", "a").iter().all(|(b, a)| b / a == 10.0));
        assert_eq!(samples.pairs("b", "a").len(), 5);
        assert!(run.notes().iter().any(|n| n.starts_with("b: 1 of 6 trials failed")), "{:?}", run.notes());
    }
}
