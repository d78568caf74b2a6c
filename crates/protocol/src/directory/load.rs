//! Load: how busy a member is, as an attribute that changes rarely (TG-4, 003 §5.1).
//!
//! The paper puts the load into every heartbeat. Here a change of an attribute travels to everybody, so a member tells
//! its load in coarse steps and only when it has clearly moved to another: a load that trembles around the border
//! between two steps is not told again, and an idle cluster stays silent. Between two tellings lies a pause, so a load
//! that jumps costs no more than one message in that time.
//!
//! Nothing here reads a clock or `/proc`: the driver says what it measured, in thousandths of what the machine can do (the
//! run queue over the number of processors, say; above 1000 work is waiting).
//!
//! ```
//! # use phalanx_core::Instant;
//! # use phalanx_protocol::directory::load::{Config, Load};
//! let mut load = Load::new(Config::default());
//! assert_eq!(load.observe(Instant(0), 610).unwrap().as_str(), "0.5");
//! assert_eq!(load.observe(Instant(1), 640), None);
//! ```

use phalanx_core::{Duration, Fingerprint, Instant};
use std::fmt::Write;

/// The attribute that holds the load; queries know it as `load`.
pub use phalanx_query::LOAD;
/// No higher load is told.
pub const MOST: u32 = 64_000;

/// How load is told, in thousandths.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Config {
    /// From one step to the next.
    pub step: u32,
    /// How far beyond the border of the present step a load must be before another is told.
    pub margin: u32,
    /// Between two tellings, at least.
    pub pause: Duration,
}

impl Default for Config {
    /// Quarters, told at most every five seconds.
    fn default() -> Self {
        Self { step: 250, margin: 75, pause: Duration::from_secs(5) }
    }
}

/// A load as it is told: `0.25`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Level(String);

impl Level {
    fn new(thousandths: u32) -> Self {
        let mut text = (thousandths / 1000).to_string();
        let rest = thousandths % 1000;
        if rest > 0 {
            let _ = write!(text, ".{rest:03}");
            text.truncate(text.trim_end_matches('0').len());
        }
        Self(text)
    }

    /// The value of the attribute.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// What a member has told of its load.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Load {
    config: Config,
    /// The step that was told last, and when.
    told: Option<(u32, Instant)>,
}

impl Load {
    /// Nothing was told.
    #[must_use]
    pub const fn new(config: Config) -> Self {
        Self { config, told: None }
    }

    /// The load was measured: what to write under [`LOAD`] now, if anything. What a pause holds back is told by a later
    /// measurement, if it is still true then.
    pub fn observe(&mut self, now: Instant, thousandths: u32) -> Option<Level> {
        let Config { step, margin, pause } = self.config;
        let (step, load) = (step.max(1), thousandths.min(MOST));
        let nearest = load.saturating_add(step / 2) / step;
        if let Some((told, at)) = self.told {
            let away = load.abs_diff(told.saturating_mul(step));
            if nearest == told || away <= step / 2 + margin || now < at + pause {
                return None;
            }
        }
        self.told = Some((nearest, now));
        Some(Level::new(nearest * step))
    }

    /// Adds the state to `print`.
    pub fn fingerprint(&self, print: &mut Fingerprint) {
        print.add(&self.told.map(|t| t.0));
        print.instant(self.told.map_or(Instant::NEVER, |t| t.1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use phalanx_core::Rng;

    const SECOND: Duration = Duration::from_secs(1);

    fn told(config: Config, loads: impl IntoIterator<Item = u32>) -> Vec<String> {
        let mut load = Load::new(config);
        let each = loads.into_iter().enumerate();
        each.filter_map(|(i, l)| load.observe(Instant::ZERO + SECOND * i as u64, l)).map(|l| l.0).collect()
    }

    #[test]
    fn levels_are_written_as_people_write_them() {
        let text = |t| Level::new(t).0;
        assert_eq!([0, 5, 50, 250, 1000, 1500, 64_000].map(text), ["0", "0.005", "0.05", "0.25", "1", "1.5", "64"]);
    }

    /// 375 is the border between 0.25 and 0.5.
    #[test]
    fn noise_around_a_border_does_not_flap() {
        let config = Config { pause: Duration::ZERO, ..Config::default() };
        for seed in 0..50 {
            let mut rng = Rng::new(seed, 1);
            let noise: Vec<u32> = (0..1000).map(|_| 375 - 74 + rng.below(149) as u32).collect();
            assert_eq!(told(config, noise).len(), 1, "seed {seed}: the first word and no other");
        }
        let wide = (0..100).map(|i| if i % 2 == 0 { 250 } else { 500 });
        assert_eq!(told(config, wide).len(), 100, "and what moves is told");
    }

    #[test]
    fn a_load_that_has_moved_is_told_once() {
        let ramp = (0..=1000).step_by(10);
        assert_eq!(told(Config::default(), ramp), ["0", "0.25", "0.5", "0.75", "1"]);
        assert_eq!(told(Config::default(), [0, 0, 0, 0, 0, 0, u32::MAX]), ["0", "64"]);
    }

    #[test]
    fn what_jumps_is_told_no_more_often_than_the_pause_allows() {
        let jumps = (0..100).map(|i| if i % 2 == 0 { 0 } else { 1000 });
        assert_eq!(told(Config::default(), jumps).len(), 100 / 5);
        let spike = [0, 900, 0, 0, 0, 0, 0, 0];
        assert_eq!(told(Config::default(), spike), ["0"], "over before it could be told");
    }

    #[test]
    fn a_step_of_nothing_is_no_division_by_zero() {
        let config = Config { step: 0, margin: 0, pause: Duration::ZERO };
        assert_eq!(told(config, [7, 7, 8]), ["0.007", "0.008"]);
    }
}
