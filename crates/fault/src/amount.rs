//! Amounts and distributions as people write them: `100` is messages, `"50ms"` is time, a table is a distribution.

use crate::distribution::Distribution;
use crate::rule::RuleError;
use phalanx_core::Duration;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde::ser::{SerializeMap, Serializer};
use serde::{Deserialize, Serialize};
use std::fmt;

/// A number of messages, or a span.
#[derive(Clone, Copy)]
pub(crate) enum Amount {
    Messages(u64),
    Time(Duration),
}

impl Amount {
    pub(crate) fn messages(self) -> Option<u64> {
        match self {
            Self::Messages(n) => Some(n),
            Self::Time(_) => None,
        }
    }

    pub(crate) fn span(self, field: &'static str) -> Result<Duration, RuleError> {
        match self {
            Self::Time(span) => Ok(span),
            Self::Messages(_) => {
                Err(RuleError::OutOfRange { field, accepted: "a duration with a unit, such as \"5ms\"" })
            }
        }
    }
}

/// `delay`: a distribution, or the word.
pub(crate) enum Wait {
    Lasting(Distribution<Amount>),
    UntilNext,
}

const UNTIL_NEXT: &str = "until-next";
const DISTRIBUTIONS: &[&str] = &["fixed", "exponential", "uniform", "empirical"];

impl<T: Copy> Distribution<T> {
    pub(crate) fn map<U, E>(self, f: impl Fn(T) -> Result<U, E>) -> Result<Distribution<U>, E> {
        Ok(match self {
            Self::Fixed(n) => Distribution::Fixed(f(n)?),
            Self::Exponential { mean } => Distribution::Exponential { mean: f(mean)? },
            Self::Uniform { from, to } => Distribution::Uniform { from: f(from)?, to: f(to)? },
            Self::Empirical(samples) => Distribution::Empirical(samples.into_iter().map(f).collect::<Result<_, E>>()?),
        })
    }

    pub(crate) fn amount(&self, f: impl Fn(T) -> Amount) -> Distribution<Amount> {
        match self.clone().map(|n| Ok::<_, std::convert::Infallible>(f(n))) {
            Ok(amounts) => amounts,
            Err(never) => match never {},
        }
    }
}

impl<'de> Deserialize<'de> for Amount {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        match WaitVisitor::AMOUNT.read(d)? {
            Wait::Lasting(Distribution::Fixed(amount)) => Ok(amount),
            _ => Err(D::Error::custom(WaitVisitor::AMOUNT.expected)),
        }
    }
}

impl<'de> Deserialize<'de> for Distribution<Amount> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        match WaitVisitor::DISTRIBUTION.read(d)? {
            Wait::Lasting(distribution) => Ok(distribution),
            Wait::UntilNext => Err(D::Error::custom(WaitVisitor::DISTRIBUTION.expected)),
        }
    }
}

impl<'de> Deserialize<'de> for Wait {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        WaitVisitor::WAIT.read(d)
    }
}

/// Reads all three shapes: an amount, a distribution of amounts, and either or the word `until-next`.
#[derive(Clone, Copy)]
struct WaitVisitor {
    expected: &'static str,
    map: bool,
    word: bool,
}

impl WaitVisitor {
    const AMOUNT: Self =
        Self { expected: "a number of messages such as 100, or a duration such as \"50ms\"", map: false, word: false };
    const DISTRIBUTION: Self = Self {
        expected: "a number of messages such as 100, a duration such as \"50ms\", \
                   or one of { fixed = … }, { exponential = { mean = … } }, { uniform = { from = …, to = … } }, \
                   { empirical = [ … ] }",
        map: true,
        word: false,
    };
    const WAIT: Self = Self {
        expected: "\"until-next\", a duration such as \"5ms\", or one of { fixed = … }, { exponential = { mean = … } }, \
                   { uniform = { from = …, to = … } }, { empirical = [ … ] }",
        map: true,
        word: true,
    };

    fn read<'de, D: Deserializer<'de>>(self, d: D) -> Result<Wait, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for WaitVisitor {
    type Value = Wait;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_u64<E: serde::de::Error>(self, n: u64) -> Result<Wait, E> {
        Ok(Wait::Lasting(Distribution::Fixed(Amount::Messages(n))))
    }

    fn visit_i64<E: serde::de::Error>(self, n: i64) -> Result<Wait, E> {
        u64::try_from(n)
            .map_err(|_| E::custom(format_args!("{n} is negative; it takes {}", self.expected)))
            .and_then(|n| self.visit_u64(n))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Wait, E> {
        if self.word && text == UNTIL_NEXT {
            return Ok(Wait::UntilNext);
        }
        let span =
            text.parse().map_err(|_| E::custom(format_args!("`{text}` is no duration; it takes {}", self.expected)))?;
        Ok(Wait::Lasting(Distribution::Fixed(Amount::Time(span))))
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Wait, M::Error> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Mean {
            mean: Amount,
        }
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Range {
            from: Amount,
            to: Amount,
        }
        let shape = if self.map { map.next_key::<String>()? } else { None };
        let distribution = match shape.as_deref() {
            Some("fixed") => Distribution::Fixed(map.next_value()?),
            Some("exponential") => Distribution::Exponential { mean: map.next_value::<Mean>()?.mean },
            Some("uniform") => {
                let Range { from, to } = map.next_value()?;
                Distribution::Uniform { from, to }
            }
            Some("empirical") => Distribution::Empirical(map.next_value()?),
            Some(other) => return Err(M::Error::unknown_variant(other, DISTRIBUTIONS)),
            None => return Err(M::Error::custom(format_args!("it takes {}", self.expected))),
        };
        match map.next_key::<String>()? {
            None => Ok(Wait::Lasting(distribution)),
            Some(second) => Err(M::Error::custom(format_args!("`{second}` is one distribution too many"))),
        }
    }
}

impl Serialize for Amount {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Messages(n) => s.serialize_u64(*n),
            Self::Time(span) => s.collect_str(span),
        }
    }
}

impl Serialize for Distribution<Amount> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Mean<'a> {
            mean: &'a Amount,
        }
        #[derive(Serialize)]
        struct Range<'a> {
            from: &'a Amount,
            to: &'a Amount,
        }
        if let Self::Fixed(amount) = self {
            return amount.serialize(s);
        }
        let mut map = s.serialize_map(Some(1))?;
        match self {
            Self::Fixed(amount) => map.serialize_entry("fixed", amount)?,
            Self::Exponential { mean } => map.serialize_entry("exponential", &Mean { mean })?,
            Self::Uniform { from, to } => map.serialize_entry("uniform", &Range { from, to })?,
            Self::Empirical(samples) => map.serialize_entry("empirical", samples)?,
        }
        map.end()
    }
}

impl Serialize for Wait {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Lasting(distribution) => distribution.serialize(s),
            Self::UntilNext => s.serialize_str(UNTIL_NEXT),
        }
    }
}
