//! Durations in a scenario: a number with its unit, such as `"250ms"`.

use phalanx_core::Duration;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, Visitor};
use std::fmt;

/// A duration as a scenario writes it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct Span(pub(crate) Duration);

/// A duration that may be negative: how far a clock jumps.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Step(pub(crate) i64);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(Text).and_then(|text| parse(&text).map(Self).map_err(D::Error::custom))
    }
}

impl<'de> Deserialize<'de> for Step {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = d.deserialize_any(Text)?;
        let (sign, size) = text.strip_prefix('-').map_or((1, text.as_str()), |size| (-1, size));
        let size = parse(size.strip_prefix('+').unwrap_or(size)).map_err(D::Error::custom)?;
        Ok(Self(sign * i64::try_from(size.0).unwrap_or(i64::MAX)))
    }
}

fn parse(text: &str) -> Result<Duration, String> {
    text.parse().map_err(|e| format!("`{text}` is {e}"))
}

/// Takes a string; a bare number gets told about units.
struct Text;

impl Visitor<'_> for Text {
    type Value = String;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration in quotes with its unit (ns, us, ms, s, m, h), such as \"250ms\"")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<String, E> {
        Ok(text.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Both {
        span: Span,
        step: Step,
    }

    #[test]
    fn spans_have_units_and_steps_a_sign() {
        let both: Both = toml::from_str("span = '1.5s'\nstep = '-20ms'").unwrap();
        assert_eq!((both.span.0, both.step.0), (Duration::from_millis(1_500), -20_000_000));
        let both: Both = toml::from_str("span = '0'\nstep = '+1us'").unwrap();
        assert_eq!((both.span.0, both.step.0), (Duration::ZERO, 1_000));
    }

    #[test]
    fn a_bare_number_is_told_about_units() {
        for (text, wanted) in [
            ("span = 5\nstep = '0'", "expected a duration in quotes with its unit"),
            ("span = '5'\nstep = '0'", "`5` is not a duration"),
            ("span = '-5s'\nstep = '0'", "`-5s` is not a duration"),
            ("span = '5s'\nstep = '--1s'", "is not a duration"),
        ] {
            let error = toml::from_str::<Both>(text).err().expect(text).to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }
}
