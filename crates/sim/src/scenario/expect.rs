//! What must hold beyond the checkers: bounds on what a run measured, such as `delivered = ">= 1000"`.

use super::problem::{Problem, unknown};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;

/// A bound on one measure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Bound {
    /// The measure's name.
    pub measure: String,
    op: Op,
    limit: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    AtLeast,
    AtMost,
    Above,
    Below,
    Equal,
    Not,
}

/// In the order of reading: `>=` before `>`.
const OPS: [(&str, Op); 6] =
    [(">=", Op::AtLeast), ("<=", Op::AtMost), ("==", Op::Equal), ("!=", Op::Not), (">", Op::Above), ("<", Op::Below)];

impl Bound {
    /// True when `value` keeps to it.
    #[must_use]
    pub fn holds(&self, value: u64) -> bool {
        match self.op {
            Op::AtLeast => value >= self.limit,
            Op::AtMost => value <= self.limit,
            Op::Above => value > self.limit,
            Op::Below => value < self.limit,
            Op::Equal => value == self.limit,
            Op::Not => value != self.limit,
        }
    }
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let op = OPS.iter().find(|o| o.1 == self.op).map_or("", |o| o.0);
        write!(f, "{} {op} {}", self.measure, self.limit)
    }
}

/// `[expect]` as a scenario writes it: a measure, and its bound or bounds.
pub(crate) type ExpectText = BTreeMap<String, BoundsText>;

/// One bound, or several that must all hold.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "it takes a bound such as \">= 1000\", a number, or a list of these")]
pub(crate) enum BoundsText {
    /// Exactly that.
    Number(u64),
    /// An operator and a number.
    Bound(String),
    /// All of these.
    All(Vec<BoundText>),
}

/// One of a list.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged, expecting = "it takes a bound such as \">= 1000\", or a number")]
pub(crate) enum BoundText {
    /// Exactly that.
    Number(u64),
    /// An operator and a number.
    Bound(String),
}

/// All bounds, by measure, each of which must be one of `known`.
pub(crate) fn bounds(text: ExpectText, known: &[&str]) -> Result<Vec<Bound>, Problem> {
    let mut all = Vec::new();
    for (measure, bounds) in text {
        if !known.contains(&measure.as_str()) {
            return Err(Problem::new(measure.clone(), unknown(&measure, known)));
        }
        let bounds = match bounds {
            BoundsText::Number(n) => vec![BoundText::Number(n)],
            BoundsText::Bound(text) => vec![BoundText::Bound(text)],
            BoundsText::All(all) => all,
        };
        for bound in bounds {
            let (op, limit) = match bound {
                BoundText::Number(n) => (Op::Equal, n),
                BoundText::Bound(text) => parse(&text).ok_or_else(|| {
                    let accepted = "one of >=, <=, ==, !=, >, < and a whole number, such as \">= 1000\"";
                    Problem::new(measure.clone(), format!("`{text}` is no bound; it takes {accepted}"))
                })?,
            };
            all.push(Bound { measure: measure.clone(), op, limit });
        }
    }
    Ok(all)
}

fn parse(text: &str) -> Option<(Op, u64)> {
    let text = text.trim();
    let (sign, op) = OPS.into_iter().find(|(sign, _)| text.starts_with(sign))?;
    Some((op, text[sign.len()..].trim().replace('_', "").parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Bound>, String> {
        let text: ExpectText = toml::from_str(text).map_err(|e| e.message().to_owned())?;
        bounds(text, &["delivered", "retransmissions"]).map_err(|p| format!("{}: {}", p.path, p.text))
    }

    #[test]
    fn bounds_hold_or_not_as_they_say() {
        for (text, yes, no) in
            [(">= 1_000", 1_000, 999), ("<=5", 5, 6), ("> 5", 6, 5), ("< 5", 4, 5), ("== 5", 5, 4), ("!= 0", 1, 0)]
        {
            let bound = read(&format!("delivered = '{text}'")).unwrap().remove(0);
            assert!(bound.holds(yes) && !bound.holds(no), "{bound}");
        }
        assert_eq!(read("delivered = 7").unwrap()[0].to_string(), "delivered == 7");
        assert_eq!(read("delivered = ['>= 3', '< 9', 5]").unwrap().len(), 3);
    }

    #[test]
    fn what_is_no_bound_is_refused() {
        for (text, wanted) in [
            ("deliverd = 1", "deliverd: `deliverd` is unknown; known: delivered, retransmissions"),
            ("delivered = 'many'", "delivered: `many` is no bound; it takes one of >=, <="),
            ("delivered = '>= -1'", "is no bound"),
            ("delivered = '=> 5'", "is no bound"),
            ("delivered = 1.5", "it takes a bound such as"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(wanted), "{text}: {error}");
        }
    }
}
