//! What goes wrong, how often, when and to whom: one rule is one line of a fault plan (FI-1, FI-2, FI-6; Table 2).
//!
//! Rules are plain data. `text.rs` reads and writes them as people do, `schedule.rs` says which message is hit.

use crate::distribution::{Distribution, Probability};
use phalanx_core::{Code, Duration};
use std::fmt;
use thiserror::Error;

/// Bits that one fault may flip.
pub const MAX_BITS: u32 = 64;
/// Samples of an empirical distribution.
pub const MAX_SAMPLES: usize = 4_096;
/// Bytes of a rule's or a signal's name.
pub const MAX_NAME: usize = 64;

/// One rule. [`Rule::new`] hits every message; change the fields you need.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Rule {
    /// What happens.
    pub kind: Kind,
    /// A name that other rules can follow.
    pub name: Option<String>,
    /// How often.
    pub recurrence: Recurrence,
    /// Peers it is limited to, by the names that the user wrote. Whoever adds the rule resolves them and
    /// hands the addresses to [`Injector::add_for`](crate::Injector::add_for).
    pub only: Option<Vec<String>>,
    /// Shorter packets are spared.
    pub min_len: usize,
    /// Longer packets are spared.
    pub max_len: usize,
    /// Sleeps for this long after it was added.
    pub from: Duration,
    /// Is over this long after it was added.
    pub until: Duration,
    /// Faults until it is spent.
    pub times: u64,
    /// Messages in a row that each fault hits (FI-6).
    pub burst: u32,
    /// Sleeps until the protocol reaches a state (FI-6).
    pub after: Option<After>,
}

impl Rule {
    /// A rule of that kind that hits every message of everybody, from now on.
    #[must_use]
    pub const fn new(kind: Kind) -> Self {
        Self {
            kind,
            name: None,
            recurrence: Recurrence::Messages(Distribution::Fixed(1)),
            only: None,
            min_len: 0,
            max_len: usize::MAX,
            from: Duration::ZERO,
            until: Duration::MAX,
            times: u64::MAX,
            burst: 1,
            after: None,
        }
    }

    /// The same rule with another recurrence.
    #[must_use]
    pub fn recurring(self, recurrence: Recurrence) -> Self {
        Self { recurrence, ..self }
    }
}

/// The faults of Table 2.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// The message is not sent, and the send reports success.
    Drop,
    /// A received message is held back.
    Delay(Delay),
    /// Random bits of a received message are flipped.
    Modify {
        /// How many.
        bits: u32,
    },
    /// A received message is delivered behind the next one of the same peer.
    Reorder,
    /// A copy of an earlier message is sent to a destination drawn from all.
    Inject {
        /// Bits of the copy to flip: zero sends it as it was, more make it an arbitrary message.
        bits: u32,
    },
    /// A call fails and does nothing.
    Invocation {
        /// Which call.
        call: Call,
        /// With which code; `None` draws one of Table 1.
        code: Option<Code>,
    },
    /// A send is accepted and fails later.
    Operation {
        /// With which code; `None` draws one of Table 1.
        code: Option<Code>,
        /// Whether the message arrives all the same; `None` tosses a coin.
        deliver: Option<bool>,
        /// How much later.
        after: Distribution<Duration>,
    },
}

impl Kind {
    /// How long an operation fault hides when the rule does not say: about a round trip in a machine room.
    pub const OPERATION_FAILS_AFTER: Distribution<Duration> = Distribution::Fixed(Duration::from_millis(1));

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> KindName {
        match self {
            Self::Drop => KindName::Drop,
            Self::Delay(_) => KindName::Delay,
            Self::Modify { .. } => KindName::Modify,
            Self::Reorder => KindName::Reorder,
            Self::Inject { .. } => KindName::Inject,
            Self::Invocation { .. } => KindName::Invocation,
            Self::Operation { .. } => KindName::Operation,
        }
    }

    /// The call in which it acts (Table 4).
    #[must_use]
    pub const fn call(&self) -> Call {
        match self {
            Self::Drop | Self::Inject { .. } | Self::Operation { .. } => Call::Send,
            Self::Delay(_) | Self::Modify { .. } | Self::Reorder => Call::Receive,
            Self::Invocation { call, .. } => *call,
        }
    }
}

/// The kinds without their parameters, in the order of Table 2.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum KindName {
    /// [`Kind::Drop`].
    Drop,
    /// [`Kind::Delay`].
    Delay,
    /// [`Kind::Modify`].
    Modify,
    /// [`Kind::Reorder`].
    Reorder,
    /// [`Kind::Inject`].
    Inject,
    /// [`Kind::Invocation`].
    Invocation,
    /// [`Kind::Operation`].
    Operation,
}

impl KindName {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Drop, Self::Delay, Self::Modify, Self::Reorder, Self::Inject, Self::Invocation, Self::Operation];

    /// As users write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Drop => "drop",
            Self::Delay => "delay",
            Self::Modify => "modify",
            Self::Reorder => "reorder",
            Self::Inject => "inject",
            Self::Invocation => "invocation",
            Self::Operation => "operation",
        }
    }
}

impl fmt::Display for KindName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The calls of the communication layer that can fail.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Call {
    /// A message is handed over.
    Send,
    /// A message is taken in.
    Receive,
    /// A buffer is asked for.
    Allocate,
}

impl Call {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Send, Self::Receive, Self::Allocate];

    /// As users write it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Allocate => "allocate",
        }
    }
}

/// How long a delayed message is held.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Delay {
    /// A span. Messages that come later may overtake it, as in a network.
    Lasting(Distribution<Duration>),
    /// Until the next message of the same peer arrives, in front of which it is delivered (004 §5, the variant
    /// without timers).
    UntilNext,
}

/// How often a rule hits.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Recurrence {
    /// Counted in the messages that pass the rule's filter: `Fixed(10)` hits each tenth.
    Messages(Distribution<u64>),
    /// Counted in time: hits the first message after the interval. Intervals without any message hit nothing.
    Time(Distribution<Duration>),
    /// Each message with this probability.
    Chance(Probability),
    /// Together with the rule of that name: one draw, several faults (FI-6).
    With(String),
}

/// A state of the protocol that wakes a rule.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct After {
    /// The name given to [`Injector::signal`](crate::Injector::signal), such as `wave-started`.
    pub signal: String,
    /// How long the rule stays awake.
    pub lasts: Lasts,
}

/// How long a signal keeps a rule awake. Another signal starts it anew.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Lasts {
    /// For that many messages which pass its filter.
    Messages(u64),
    /// For that span.
    Span(Duration),
}

/// Why a rule was refused. The injector is untouched by each of these.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[non_exhaustive]
pub enum RuleError {
    /// The table is full.
    #[error("{limit} rules are switched on already: heal one first")]
    TooMany {
        /// Its bound.
        limit: usize,
    },
    /// A word that the field does not know.
    #[error("`{field}` does not know `{value}`; it takes {accepted}")]
    UnknownValue {
        /// The field.
        field: &'static str,
        /// What was written.
        value: String,
        /// What it takes.
        accepted: String,
    },
    /// A number outside its range.
    #[error("`{field}` must be {accepted}")]
    OutOfRange {
        /// The field.
        field: &'static str,
        /// What it takes.
        accepted: &'static str,
    },
    /// The field means nothing for this kind.
    #[error("`{field}` does not apply to kind `{kind}`")]
    NotApplicable {
        /// The field.
        field: &'static str,
        /// The kind.
        kind: KindName,
    },
    /// The kind cannot do without the field.
    #[error("kind `{kind}` needs `{field}`, {accepted}")]
    Missing {
        /// The field.
        field: &'static str,
        /// The kind.
        kind: KindName,
        /// What it takes.
        accepted: &'static str,
    },
    /// More than one recurrence.
    #[error("`every`, `p` and `with` exclude each other: keep one")]
    SeveralRecurrences,
    /// A field that only means something beside another.
    #[error("`{field}` only means something beside `{needs}`")]
    Alone {
        /// The field.
        field: &'static str,
        /// What it needs.
        needs: &'static str,
    },
    /// `with` names no rule that is switched on.
    #[error("`with` names `{name}`, and no rule of that name is switched on: add that one first")]
    NobodyToFollow {
        /// The name.
        name: String,
    },
    /// Two rules of one name.
    #[error("a rule named `{name}` is switched on already")]
    NameTaken {
        /// The name.
        name: String,
    },
    /// `only` was not resolved.
    #[error("`only` names peers: resolve them and use `add_for`")]
    PeersUnresolved,
}

impl Rule {
    /// Checks what the types leave open.
    ///
    /// # Errors
    /// The first field that makes no sense, and what it takes.
    pub fn check(&self) -> Result<(), RuleError> {
        let range = |ok: bool, field, accepted| ok.then_some(()).ok_or(RuleError::OutOfRange { field, accepted });
        const EVERY: &str = "at least one message; a list needs 1 to 4096 samples, `from` must not exceed `to`";
        const SPAN: &str = "a span of time; a list needs 1 to 4096 samples, `from` must not exceed `to`";
        const NAME: &str = "a name of 1 to 64 bytes";
        match &self.recurrence {
            Recurrence::Messages(d) => range(makes_sense(d, &1), "every", EVERY)?,
            Recurrence::Time(d) => range(makes_sense(d, &Duration::ZERO), "every", SPAN)?,
            Recurrence::Chance(_) => {}
            Recurrence::With(name) => range(is_name(name), "with", NAME)?,
        }
        match &self.kind {
            Kind::Delay(Delay::Lasting(d)) | Kind::Operation { after: d, .. } => {
                range(makes_sense(d, &Duration::ZERO), "delay", SPAN)?;
            }
            Kind::Modify { bits } => range((1..=MAX_BITS).contains(bits), "bits", "1 to 64")?,
            Kind::Inject { bits } => range(*bits <= MAX_BITS, "bits", "0 to 64")?,
            Kind::Invocation { call: Call::Allocate, .. } => {
                let kind = KindName::Invocation;
                let spared = [
                    (self.only.is_some(), "only"),
                    (self.min_len > 0, "min_len"),
                    (self.max_len < usize::MAX, "max_len"),
                ];
                // An allocation has neither a peer nor a packet yet.
                if let Some((_, field)) = spared.into_iter().find(|s| s.0) {
                    return Err(RuleError::NotApplicable { field, kind });
                }
            }
            Kind::Drop | Kind::Delay(Delay::UntilNext) | Kind::Reorder | Kind::Invocation { .. } => {}
        }
        range(self.name.as_deref().is_none_or(is_name), "name", NAME)?;
        range(self.min_len <= self.max_len, "min_len", "at most `max_len`")?;
        range(self.from < self.until, "until", "later than `from`")?;
        range(self.times > 0, "times", "at least 1")?;
        range(self.burst > 0, "burst", "at least 1: how many messages in a row each fault hits")?;
        if let Some(after) = &self.after {
            range(is_name(&after.signal), "after", NAME)?;
            let lasting = !matches!(after.lasts, Lasts::Messages(0) | Lasts::Span(Duration::ZERO));
            range(lasting, "lasts", "a number of messages or a span, above zero")?;
        }
        Ok(())
    }
}

fn makes_sense<T: Ord>(distribution: &Distribution<T>, least: &T) -> bool {
    match distribution {
        Distribution::Fixed(n) | Distribution::Exponential { mean: n } => n >= least,
        Distribution::Uniform { from, to } => from >= least && from <= to,
        Distribution::Empirical(samples) => {
            (1..=MAX_SAMPLES).contains(&samples.len()) && samples.iter().all(|s| s >= least)
        }
    }
}

fn is_name(name: &str) -> bool {
    (1..=MAX_NAME).contains(&name.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_that_makes_no_sense_names_its_field() {
        let drop = || Rule::new(Kind::Drop);
        let every = |d| drop().recurring(Recurrence::Messages(d));
        let after = |lasts| Some(After { signal: "wave-started".into(), lasts });
        for (rule, field) in [
            (every(Distribution::Fixed(0)), "every"),
            (every(Distribution::Uniform { from: 9, to: 8 }), "every"),
            (every(Distribution::Empirical(vec![])), "every"),
            (every(Distribution::Empirical(vec![1; MAX_SAMPLES + 1])), "every"),
            (Rule::new(Kind::Modify { bits: 0 }), "bits"),
            (Rule::new(Kind::Inject { bits: MAX_BITS + 1 }), "bits"),
            (Rule { min_len: 2, max_len: 1, ..drop() }, "min_len"),
            (Rule { from: Duration(5), until: Duration(5), ..drop() }, "until"),
            (Rule { times: 0, ..drop() }, "times"),
            (Rule { burst: 0, ..drop() }, "burst"),
            (Rule { name: Some(String::new()), ..drop() }, "name"),
            (Rule { after: after(Lasts::Messages(0)), ..drop() }, "lasts"),
            (drop().recurring(Recurrence::With("x".repeat(MAX_NAME + 1))), "with"),
        ] {
            let error = rule.check().unwrap_err();
            assert!(matches!(error, RuleError::OutOfRange { field: f, .. } if f == field), "{field}: {error}");
        }
        assert_eq!(drop().check(), Ok(()));
    }

    #[test]
    fn an_allocation_has_no_peer_to_be_limited_to() {
        let fails = Rule::new(Kind::Invocation { call: Call::Allocate, code: None });
        assert_eq!(fails.check(), Ok(()));
        let error = Rule { only: Some(vec!["n1".into()]), ..fails }.check().unwrap_err();
        assert_eq!(error.to_string(), "`only` does not apply to kind `invocation`");
    }
}
