//! Rules as people write them, in TOML or JSON.
//!
//! ```toml
//! kind = "delay"
//! every = { exponential = { mean = "50ms" } }
//! delay = { uniform = { from = "1ms", to = "5ms" } }
//! ```
//! Numbers count messages, strings with a unit are time. Errors name the field and what it takes; a field that
//! means nothing for the kind is refused, because a rule that silently does less than it says ruins an experiment.

use crate::amount::{Amount, Wait};
use crate::distribution::{Distribution, Probability};
use crate::rule::{After, Call, Delay, Kind, KindName, Lasts, Recurrence, Rule, RuleError};
use phalanx_core::{Code, Duration};
use serde::de::{Deserializer, Error as _};
use serde::{Deserialize, Serialize, Serializer};

/// The fields of the text, in the order in which they are listed to those who misspell one.
#[derive(Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Text {
    kind: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    #[serde(default, deserialize_with = "every", skip_serializing_if = "Option::is_none")]
    every: Option<Distribution<Amount>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    p: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    with: Option<String>,
    #[serde(default, deserialize_with = "delay", skip_serializing_if = "Option::is_none")]
    delay: Option<Wait>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bits: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    operation: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    deliver: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    only: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    min_len: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_len: Option<usize>,
    #[serde(default, deserialize_with = "from", skip_serializing_if = "Option::is_none")]
    from: Option<Amount>,
    #[serde(default, deserialize_with = "until", skip_serializing_if = "Option::is_none")]
    until: Option<Amount>,
    #[serde(skip_serializing_if = "Option::is_none")]
    times: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    burst: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    after: Option<String>,
    #[serde(default, deserialize_with = "lasts", skip_serializing_if = "Option::is_none")]
    lasts: Option<Amount>,
}

impl<'de> Deserialize<'de> for Rule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Self::try_from(Text::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl Serialize for Rule {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Text::from(self).serialize(serializer)
    }
}

impl TryFrom<Text> for Rule {
    type Error = RuleError;

    fn try_from(mut text: Text) -> Result<Self, RuleError> {
        let name = one_of("kind", &text.kind, KindName::ALL, KindName::name)?;
        let kind = text.take_kind(name)?;
        // What the kind needed has been taken out: anything left means nothing for it.
        let left = [
            (text.delay.is_some(), "delay"),
            (text.bits.is_some(), "bits"),
            (text.operation.is_some(), "operation"),
            (text.code.is_some(), "code"),
            (text.deliver.is_some(), "deliver"),
        ];
        if let Some((_, field)) = left.into_iter().find(|l| l.0) {
            return Err(RuleError::NotApplicable { field, kind: name });
        }
        let all = Self::new(kind);
        let recurrence = text.recurrence()?.unwrap_or(all.recurrence);
        let after = text.after()?;
        let rule = Self {
            name: text.name,
            recurrence,
            only: text.only,
            min_len: text.min_len.unwrap_or(all.min_len),
            max_len: text.max_len.unwrap_or(all.max_len),
            from: text.from.map_or(Ok(all.from), |a| a.span("from"))?,
            until: text.until.map_or(Ok(all.until), |a| a.span("until"))?,
            times: text.times.unwrap_or(all.times),
            burst: text.burst.unwrap_or(all.burst),
            after,
            kind: all.kind,
        };
        rule.check()?;
        Ok(rule)
    }
}

impl Text {
    fn take_kind(&mut self, name: KindName) -> Result<Kind, RuleError> {
        const DELAY: &str = "such as \"5ms\", { exponential = { mean = \"5ms\" } } or \"until-next\"";
        Ok(match name {
            KindName::Drop => Kind::Drop,
            KindName::Delay => match self.delay.take() {
                Some(Wait::UntilNext) => Kind::Delay(Delay::UntilNext),
                Some(Wait::Lasting(d)) => Kind::Delay(Delay::Lasting(spans("delay", d)?)),
                None => return Err(RuleError::Missing { field: "delay", kind: name, accepted: DELAY }),
            },
            KindName::Modify => Kind::Modify { bits: self.bits.take().unwrap_or(1) },
            KindName::Reorder => Kind::Reorder,
            KindName::Inject => Kind::Inject { bits: self.bits.take().unwrap_or(0) },
            KindName::Invocation => {
                let Some(operation) = self.operation.take() else {
                    let accepted = "one of send, receive, allocate";
                    return Err(RuleError::Missing { field: "operation", kind: name, accepted });
                };
                let call = one_of("operation", &operation, Call::ALL, Call::name)?;
                Kind::Invocation { call, code: self.take_code()? }
            }
            KindName::Operation => Kind::Operation {
                code: self.take_code()?,
                deliver: self.deliver.take(),
                after: match self.delay.take() {
                    None => Kind::OPERATION_FAILS_AFTER,
                    Some(Wait::Lasting(d)) => spans("delay", d)?,
                    Some(Wait::UntilNext) => {
                        return Err(RuleError::OutOfRange { field: "delay", accepted: "a span for kind `operation`" });
                    }
                },
            },
        })
    }

    fn take_code(&mut self) -> Result<Option<Code>, RuleError> {
        self.code.take().map(|code| one_of("code", &code, Code::ALL, Code::name)).transpose()
    }

    fn recurrence(&mut self) -> Result<Option<Recurrence>, RuleError> {
        Ok(match (self.every.take(), self.p, self.with.take()) {
            (None, None, None) => None,
            (Some(every), None, None) => {
                let mixed = RuleError::OutOfRange { field: "every", accepted: "all messages or all durations" };
                Some(match spans("every", every.clone()) {
                    Ok(spans) => Recurrence::Time(spans),
                    Err(_) => Recurrence::Messages(every.map(|a| a.messages().ok_or(mixed.clone()))?),
                })
            }
            (None, Some(p), None) => {
                let out = RuleError::OutOfRange { field: "p", accepted: "a probability from 0 to 1" };
                Some(Recurrence::Chance(Probability::new(p).ok_or(out)?))
            }
            (None, None, Some(name)) => Some(Recurrence::With(name)),
            _ => return Err(RuleError::SeveralRecurrences),
        })
    }

    fn after(&mut self) -> Result<Option<After>, RuleError> {
        let lasts = self.lasts.take().map(|l| match l {
            Amount::Messages(n) => Lasts::Messages(n),
            Amount::Time(span) => Lasts::Span(span),
        });
        match (self.after.take(), lasts) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(RuleError::Alone { field: "lasts", needs: "after" }),
            (Some(signal), lasts) => Ok(Some(After { signal, lasts: lasts.unwrap_or(Lasts::Messages(1)) })),
        }
    }
}

impl From<&Rule> for Text {
    fn from(rule: &Rule) -> Self {
        let all = Rule::new(Kind::Drop);
        let span = |d: Duration, usual| (d != usual).then_some(Amount::Time(d));
        let mut text = Self {
            kind: rule.kind.name().name().to_owned(),
            name: rule.name.clone(),
            only: rule.only.clone(),
            min_len: Some(rule.min_len).filter(|&n| n != all.min_len),
            max_len: Some(rule.max_len).filter(|&n| n != all.max_len),
            from: span(rule.from, all.from),
            until: span(rule.until, all.until),
            times: Some(rule.times).filter(|&n| n != all.times),
            burst: Some(rule.burst).filter(|&n| n != all.burst),
            after: rule.after.as_ref().map(|a| a.signal.clone()),
            lasts: rule.after.as_ref().map(|a| match a.lasts {
                Lasts::Messages(n) => Amount::Messages(n),
                Lasts::Span(span) => Amount::Time(span),
            }),
            ..Self::default()
        };
        match &rule.recurrence {
            Recurrence::Messages(d) => text.every = Some(d.amount(Amount::Messages)),
            Recurrence::Time(d) => text.every = Some(d.amount(Amount::Time)),
            Recurrence::Chance(p) => text.p = Some(p.value()),
            Recurrence::With(name) => text.with = Some(name.clone()),
        }
        let named = |code: &Option<Code>| code.map(|c| c.name().to_owned());
        match &rule.kind {
            Kind::Drop | Kind::Reorder => {}
            Kind::Delay(Delay::UntilNext) => text.delay = Some(Wait::UntilNext),
            Kind::Delay(Delay::Lasting(d)) => text.delay = Some(Wait::Lasting(d.amount(Amount::Time))),
            Kind::Modify { bits } | Kind::Inject { bits } => text.bits = Some(*bits),
            Kind::Invocation { call, code } => {
                text.operation = Some(call.name().to_owned());
                text.code = named(code);
            }
            Kind::Operation { code, deliver, after } => {
                text.code = named(code);
                text.deliver = *deliver;
                text.delay = Some(Wait::Lasting(after.amount(Amount::Time)));
            }
        }
        text
    }
}

fn one_of<T: Copy, const N: usize>(
    field: &'static str,
    value: &str,
    all: [T; N],
    name: impl Fn(T) -> &'static str,
) -> Result<T, RuleError> {
    all.into_iter().find(|&t| name(t) == value).ok_or_else(|| {
        let accepted = format!("one of {}", all.map(&name).join(", "));
        RuleError::UnknownValue { field, value: value.to_owned(), accepted }
    })
}

fn spans(field: &'static str, d: Distribution<Amount>) -> Result<Distribution<Duration>, RuleError> {
    d.map(|amount| amount.span(field))
}

/// Puts the field's name in front of what went wrong inside it.
fn named<'de, T: Deserialize<'de>, D: Deserializer<'de>>(field: &str, d: D) -> Result<Option<T>, D::Error> {
    T::deserialize(d).map(Some).map_err(|e| D::Error::custom(format_args!("`{field}`: {}", e.to_string().trim_end())))
}

fn every<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Distribution<Amount>>, D::Error> {
    named("every", d)
}

fn delay<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Wait>, D::Error> {
    named("delay", d)
}

fn from<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Amount>, D::Error> {
    named("from", d)
}

fn until<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Amount>, D::Error> {
    named("until", d)
}

fn lasts<'de, D: Deserializer<'de>>(d: D) -> Result<Option<Amount>, D::Error> {
    named("lasts", d)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Rule {
        toml::from_str(text).unwrap_or_else(|e| panic!("{text}\n{e}"))
    }

    fn refused(text: &str) -> String {
        toml::from_str::<Rule>(text).expect_err(text).to_string()
    }

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    /// FI-1, FI-2: every kind and every distribution can be written down.
    #[test]
    fn rules_are_read_as_people_write_them() {
        let p = |p| Recurrence::Chance(Probability::new(p).unwrap());
        let drop = Rule::new(Kind::Drop);
        assert_eq!(read(r#"kind = "drop""#), drop);
        assert_eq!(read("kind = 'drop'\np = 0.01"), drop.clone().recurring(p(0.01)));
        assert_eq!(read("kind = 'drop'\np = 1"), drop.clone().recurring(p(1.0)));
        assert_eq!(
            read("kind = 'drop'\nevery = { exponential = { mean = '50ms' } }"),
            drop.clone().recurring(Recurrence::Time(Distribution::Exponential { mean: ms(50) }))
        );
        assert_eq!(
            read("kind = 'drop'\nevery = { uniform = { from = 3, to = 9 } }\nburst = 3\ntimes = 7"),
            Rule { burst: 3, times: 7, ..drop.clone() }
                .recurring(Recurrence::Messages(Distribution::Uniform { from: 3, to: 9 }))
        );
        assert_eq!(
            read("kind = 'delay'\ndelay = { empirical = ['1ms', '1.5s'] }\nevery = 100").kind,
            Kind::Delay(Delay::Lasting(Distribution::Empirical(vec![ms(1), ms(1500)])))
        );
        assert_eq!(read("kind = 'delay'\ndelay = 'until-next'").kind, Kind::Delay(Delay::UntilNext));
        assert_eq!(read("kind = 'modify'").kind, Kind::Modify { bits: 1 });
        assert_eq!(read("kind = 'inject'\nbits = 5").kind, Kind::Inject { bits: 5 });
        assert_eq!(
            read("kind = 'invocation'\noperation = 'allocate'\ncode = 'local-resource'").kind,
            Kind::Invocation { call: Call::Allocate, code: Some(Code::LocalResource) }
        );
        assert_eq!(
            read("kind = 'operation'\ncode = 'unreachable'\ndeliver = false\ndelay = '3ms'").kind,
            Kind::Operation { code: Some(Code::Unreachable), deliver: Some(false), after: Distribution::Fixed(ms(3)) }
        );
    }

    /// FI-6: signals, windows, followers and filters.
    #[test]
    fn patterns_are_read_as_people_write_them() {
        let rule = read(
            "kind = 'reorder'\nwith = 'storm'\nafter = 'wave-started'\nlasts = '20ms'\n\
             from = '1s'\nuntil = '2m'\nmin_len = 64\nmax_len = 1500\nonly = ['n3', 'n4']",
        );
        assert_eq!(rule.recurrence, Recurrence::With("storm".into()));
        assert_eq!(rule.after, Some(After { signal: "wave-started".into(), lasts: Lasts::Span(ms(20)) }));
        assert_eq!((rule.from, rule.until), (ms(1_000), ms(120_000)));
        assert_eq!((rule.min_len, rule.max_len, rule.only), (64, 1500, Some(vec!["n3".into(), "n4".into()])));
        let after = read("kind = 'drop'\nafter = 'wave-started'").after.unwrap();
        assert_eq!(after.lasts, Lasts::Messages(1));
    }

    #[test]
    fn errors_name_the_field_and_what_it_takes() {
        for (text, wanted) in [
            ("kind = 'explode'", "`kind` does not know `explode`; it takes one of drop, delay, modify,"),
            ("p = 0.1", "missing field `kind`"),
            ("kind = 'drop'\nprobability = 1", "unknown field `probability`, expected one of `kind`, `name`, `every`"),
            ("kind = 'drop'\np = 1.5", "`p` must be a probability from 0 to 1"),
            ("kind = 'drop'\np = 0.1\nevery = 3", "`every`, `p` and `with` exclude each other"),
            ("kind = 'drop'\nevery = '5 parsecs'", "`every`: `5 parsecs` is no duration; it takes"),
            ("kind = 'drop'\nevery = -3", "`every`: -3 is negative"),
            ("kind = 'drop'\nevery = 0", "`every` must be at least one message"),
            ("kind = 'drop'\nevery = { gaussian = 3 }", "`every`: unknown variant `gaussian`, expected one of `fixed`"),
            ("kind = 'drop'\nevery = { exponential = { men = 3 } }", "unknown field `men`, expected `mean`"),
            ("kind = 'drop'\nevery = { empirical = ['1ms', 3] }", "`every` must be all messages or all durations"),
            ("kind = 'drop'\nevery = {}", "`every`: it takes a number of messages"),
            ("kind = 'drop'\nevery = { fixed = 3, uniform = 4 }", "`uniform` is one distribution too many"),
            ("kind = 'drop'\ndelay = '3ms'", "`delay` does not apply to kind `drop`"),
            ("kind = 'delay'", "kind `delay` needs `delay`, such as"),
            ("kind = 'delay'\ndelay = 3", "`delay` must be a duration with a unit"),
            (
                "kind = 'operation'\ncode = 'sunshine'",
                "`code` does not know `sunshine`; it takes one of local-resource,",
            ),
            ("kind = 'invocation'", "kind `invocation` needs `operation`, one of send, receive, allocate"),
            ("kind = 'invocation'\noperation = 'dance'", "`operation` does not know `dance`; it takes one of send,"),
            ("kind = 'drop'\nfrom = 3", "`from` must be a duration"),
            ("kind = 'drop'\nuntil = { fixed = '3s' }", "`until`: it takes a number of messages such as 100, or a"),
            ("kind = 'drop'\nlasts = 3", "`lasts` only means something beside `after`"),
            ("kind = 'modify'\nbits = 65", "`bits` must be 1 to 64"),
        ] {
            let error = refused(text);
            assert!(error.contains(wanted), "{text}\n{error}\nshould say {wanted}");
        }
    }

    /// The guide's examples are rules, each of them.
    #[test]
    fn the_guide_is_right() {
        #[derive(Deserialize)]
        struct Plan {
            rule: Vec<Rule>,
        }
        const GUIDE: &str = include_str!("../../../docs/faults.md");
        let blocks: Vec<&str> = GUIDE.split("```toml").skip(1).filter_map(|b| b.split("```").next()).collect();
        assert_eq!(blocks.len(), 3);
        for block in blocks {
            if block.contains("[[rule]]") {
                let plan: Plan = toml::from_str(block).unwrap_or_else(|e| panic!("{block}\n{e}"));
                assert_eq!(plan.rule.len(), 2);
            } else {
                read(block);
            }
        }
        let rows: Vec<&str> = GUIDE.lines().filter(|l| l.starts_with("| `") && l.contains(" = ")).collect();
        assert!(rows.len() >= 13, "{} rows with examples", rows.len());
        for row in rows {
            let first = row.split(" | ").next().unwrap();
            for example in first.split('`').filter(|part| part.contains(" = ")) {
                let after = if example.starts_with("lasts") { "after = 'wave-started'" } else { "" };
                read(&format!("kind = 'drop'\n{after}\n{example}"));
            }
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for text in [
            "kind = 'drop'\np = 0.01",
            "kind = 'drop'\nname = 'storm'\nevery = { exponential = { mean = '50ms' } }\nburst = 3\ntimes = 9",
            "kind = 'delay'\ndelay = { uniform = { from = '1ms', to = '5ms' } }\nevery = { empirical = [1, 2, 3] }",
            "kind = 'delay'\ndelay = 'until-next'\nonly = ['n1']\nmin_len = 3\nmax_len = 4",
            "kind = 'modify'\nbits = 3\nafter = 'wave-started'\nlasts = 5\nfrom = '1s'\nuntil = '1.5s'",
            "kind = 'inject'\nwith = 'storm'\nafter = 'wave-started'\nlasts = '5ms'",
            "kind = 'invocation'\noperation = 'receive'",
            "kind = 'operation'\ndeliver = true",
        ] {
            let rule = read(text);
            let written = toml::to_string(&rule).unwrap();
            assert_eq!(read(&written), rule, "{written}");
            let written = serde_json::to_string(&rule).unwrap();
            assert_eq!(serde_json::from_str::<Rule>(&written).unwrap(), rule, "{written}");
        }
    }
}
