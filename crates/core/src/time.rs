//! Time as a number of nanoseconds: the driver's clock, handed in with each call.
//!
//! Our own types instead of `std::time`: eight bytes each (a million nodes hold many), plain integers for the
//! model checker, and no way to read a clock from inside a machine.

use std::fmt;
use std::ops::{Add, AddAssign, Div, Mul, Sub};
use std::str::FromStr;
use thiserror::Error;

/// A point in time: nanoseconds since the driver's epoch (start of the run, or of the process).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(pub u64);

/// A span of time in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Duration(pub u64);

impl Instant {
    /// The driver's epoch.
    pub const ZERO: Self = Self(0);
    /// Later than everything: the deadline of an idle machine.
    pub const NEVER: Self = Self(u64::MAX);

    /// Time passed since `earlier`; zero when `earlier` is later (clocks of paused nodes may step).
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration(self.0.saturating_sub(earlier.0))
    }
}

impl Duration {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// Longer than any run.
    pub const MAX: Self = Self(u64::MAX);

    /// `n` nanoseconds.
    #[must_use]
    pub const fn from_nanos(n: u64) -> Self {
        Self(n)
    }

    /// `n` microseconds.
    #[must_use]
    pub const fn from_micros(n: u64) -> Self {
        Self(n.saturating_mul(1_000))
    }

    /// `n` milliseconds.
    #[must_use]
    pub const fn from_millis(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000))
    }

    /// `n` seconds.
    #[must_use]
    pub const fn from_secs(n: u64) -> Self {
        Self(n.saturating_mul(1_000_000_000))
    }

    /// `s` seconds, rounded to nanoseconds; negative and non-finite values become zero.
    #[must_use]
    pub fn from_secs_f64(s: f64) -> Self {
        Self((s * 1e9) as u64)
    }

    /// Whole nanoseconds.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Whole microseconds.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// Whole milliseconds.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Seconds as a float, for reports.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl Add<Duration> for Instant {
    type Output = Self;
    /// Saturates at [`Instant::NEVER`].
    fn add(self, d: Duration) -> Self {
        Self(self.0.saturating_add(d.0))
    }
}

impl AddAssign<Duration> for Instant {
    fn add_assign(&mut self, d: Duration) {
        *self = *self + d;
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;
    /// Saturates at the epoch.
    fn sub(self, d: Duration) -> Self {
        Self(self.0.saturating_sub(d.0))
    }
}

impl Add for Duration {
    type Output = Self;
    fn add(self, d: Self) -> Self {
        Self(self.0.saturating_add(d.0))
    }
}

impl Sub for Duration {
    type Output = Self;
    fn sub(self, d: Self) -> Self {
        Self(self.0.saturating_sub(d.0))
    }
}

impl Mul<u64> for Duration {
    type Output = Self;
    fn mul(self, n: u64) -> Self {
        Self(self.0.saturating_mul(n))
    }
}

impl Div<u64> for Duration {
    type Output = Self;
    fn div(self, n: u64) -> Self {
        Self(self.0 / n)
    }
}

impl From<std::time::Duration> for Duration {
    fn from(d: std::time::Duration) -> Self {
        Self(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
    }
}

impl From<Duration> for std::time::Duration {
    fn from(d: Duration) -> Self {
        Self::from_nanos(d.0)
    }
}

/// The text is no duration as people write them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Error)]
#[error("not a duration: write a number and a unit (ns, us, ms, s, m, h, d), such as 200us, 5ms or 1.5s")]
pub struct ParseDurationError;

impl FromStr for Duration {
    type Err = ParseDurationError;

    /// Reads `200us`, `5ms`, `1.5s`, `2m`, `1h`; zero may stand without a unit. Exact to the nanosecond: no
    /// float on the way, so that what [`fmt::Display`] prints is read back as it was.
    fn from_str(text: &str) -> Result<Self, ParseDurationError> {
        let text = text.trim();
        if text == "0" {
            return Ok(Self::ZERO);
        }
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or(ParseDurationError)?;
        let (number, unit) = text.split_at(digits);
        let nanos_each: u128 = match unit.trim_start() {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" | "min" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            "d" => 86_400_000_000_000,
            _ => return Err(ParseDurationError),
        };
        let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
        // Longer fractions say nothing below a nanosecond, and the power of ten stays far from overflow.
        const FRACTION_DIGITS: usize = 18;
        if whole.is_empty() || fraction.is_empty() || fraction.len() > FRACTION_DIGITS {
            return Err(ParseDurationError);
        }
        let whole: u64 = whole.parse().map_err(|_| ParseDurationError)?;
        let parts = 10u128.pow(fraction.len() as u32);
        let fraction: u64 = fraction.parse().map_err(|_| ParseDurationError)?;
        let nanos = u128::from(whole) * nanos_each + u128::from(fraction) * nanos_each / parts;
        u64::try_from(nanos).map(Self).map_err(|_| ParseDurationError)
    }
}

impl fmt::Display for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => write!(f, "0s"),
            n if n < 1_000 => write!(f, "{n}ns"),
            n if n < 1_000_000 => write!(f, "{}µs", n as f64 / 1e3),
            n if n < 1_000_000_000 => write!(f, "{}ms", n as f64 / 1e6),
            n => write!(f, "{}s", n as f64 / 1e9),
        }
    }
}

impl fmt::Debug for Duration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NEVER { write!(f, "never") } else { write!(f, "t+{}", Duration(self.0)) }
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_saturates_instead_of_wrapping() {
        assert_eq!(Instant::NEVER + Duration::from_secs(1), Instant::NEVER);
        assert_eq!(Instant(5) - Duration(9), Instant::ZERO);
        assert_eq!(Instant(5).since(Instant(9)), Duration::ZERO);
        assert_eq!(Duration::from_secs(u64::MAX), Duration::MAX);
    }

    #[test]
    fn units_print_as_people_write_them() {
        assert_eq!(Duration::from_micros(1500).to_string(), "1.5ms");
        assert_eq!(Duration::from_secs(2).to_string(), "2s");
        assert_eq!(Instant::NEVER.to_string(), "never");
    }

    #[test]
    fn durations_are_read_as_people_write_them() {
        for (text, nanos) in [
            ("0", 0),
            ("7ns", 7),
            ("200us", 200_000),
            ("1.5µs", 1_500),
            ("5ms", 5_000_000),
            (" 1.5 s ", 1_500_000_000),
            ("2m", 120_000_000_000),
            ("1h", 3_600_000_000_000),
            ("1d", 86_400_000_000_000),
            ("0.000000001s", 1),
        ] {
            assert_eq!(text.parse(), Ok(Duration(nanos)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration_is_refused() {
        for text in ["", "5", "ms", "1.2.3s", "-1s", "1e3s", ".5s", "5.s", "3 parsecs", "99999999999h", "1s2"] {
            assert_eq!(text.parse::<Duration>(), Err(ParseDurationError), "{text}");
        }
    }

    #[test]
    fn what_is_printed_is_read_back() {
        for nanos in [0, 1, 999, 1_000, 1_234_567, 50_000_000, 1_500_000_000, 86_400_000_000_001] {
            assert_eq!(Duration(nanos).to_string().parse(), Ok(Duration(nanos)));
        }
    }
}
