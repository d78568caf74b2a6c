//! Queries: which services are wanted.
//!
//! ```text
//!   name =~ "cache-.*" and partition in 3..5 and zone == "a" and load < 0.5
//! ```
//!
//! `docs/services.md` is the guide. In short:
//! - A key is `name`, `port`, `partition`, `tag` or `node` (the member's name); or a parameter of the service; or an
//!   attribute of its member; `load` and `zone` are there without being set. The first of these that has it counts.
//! - `==`, `!=`, `<`, `<=`, `>`, `>=` compare; with a number as numbers, with a text as texts. A text that is no number
//!   equals none.
//! - `=~` is a regular expression that fits the whole value. `in 3..5` means 3, 4 and 5; `in ["a", "b", 7..9]` any of
//!   these. `has key`. `and`, `or`, `not`, parentheses; `and` binds closer than `or`.
//! - A key with several values (`partition`, `tag`) fits when one of them does. `!=`, `!~` and `not in` are what `==`, `=~`
//!   and `in` are not: so they hold where the key is missing.
//!
//! A query is parsed once and may be asked often; asking allocates nothing, but for what a regular expression needs the
//! first time. Length, depth and the size of regular expressions are bounded, and `regex-lite` takes time in proportion
//! to pattern and text: a query can come from anybody. `regex` would be faster on long texts; ours have tens of bytes,
//! and it would be the largest dependency of the core.
//!
//! Daemons answer queries from their engine's attributes, programs from a copy in their own memory. Both read a query with
//! this code, and look up its keys with this code ([`Service`], [`matches`](Query::matches)), so both find the same.
//!
//! | file | idea |
//! |---|---|
//! | `lex` | words, numbers, signs |
//! | `parse` | the grammar |
//! | `error` | where it is wrong and what is accepted there |
//! | `service` | what a service can be asked about, and in which order a key is looked up |
//! | `names` | which names anything that fits must have |

mod error;
mod lex;
mod names;
mod parse;
mod service;

#[cfg(test)]
mod tests;

pub use error::{QueryError, Wrong};
pub use names::Names;
pub use service::{BUILT_IN, LOAD, PREFIX, Service};

use regex_lite::Regex;
use std::fmt::{self, Write};
use std::str::FromStr;

/// The longest query, in bytes, as it is written and as it is printed.
pub const LENGTH_MAX: usize = 2048;
/// How deep parentheses and `not` may nest.
pub const DEPTH_MAX: usize = 32;
/// The longest key.
pub const KEY_MAX: usize = 128;
/// The most memory that the program of a regular expression may take.
pub const PATTERN_MAX: usize = 64 * 1024;

/// Keys of a service that are numbers.
const NUMBERS: [&str; 2] = ["port", "partition"];
const KEYWORDS: [&str; 5] = ["and", "or", "not", "in", "has"];

/// What something is asked about.
pub trait Fields {
    /// True when `test` holds for one of the values under `key`.
    fn any(&self, key: &str, test: &mut dyn FnMut(Value<'_>) -> bool) -> bool;
}

/// A value under a key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Value<'a> {
    /// Text, or a number that is written as text.
    Text(&'a str),
    /// Whole numbers, from the first to the last.
    Span(u32, u32),
    /// Bytes that are no text: it is there, and that is all that can be said.
    Opaque,
}

/// A query, ready to be asked.
///
/// Threads that ask one with a regular expression at the same time take turns for an instant; a clone for each thread
/// spares them that.
#[derive(Clone, PartialEq, Debug)]
pub struct Query {
    root: Expr,
    names: Names,
}

#[derive(Clone, PartialEq, Debug)]
enum Expr {
    /// At least two, none of which is an `Or`.
    Or(Vec<Expr>),
    /// At least two, none of which is an `And`.
    And(Vec<Expr>),
    Not(Box<Expr>),
    Has(Box<str>),
    Compare(Box<str>, Compare, Literal),
    /// `=~`; negated, `!~`.
    Like(Box<str>, bool, Pattern),
    /// `in`; negated, `not in`.
    In(Box<str>, bool, Vec<Choice>),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Compare {
    Equal,
    Differs,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

#[derive(Clone, PartialEq, Debug)]
enum Literal {
    Text(Box<str>),
    Number(f64),
}

#[derive(Clone, PartialEq, Debug)]
enum Choice {
    One(Literal),
    /// From, to, both included.
    Range(f64, f64),
}

/// A regular expression, compiled to fit whole values.
#[derive(Clone, Debug)]
struct Pattern {
    source: Box<str>,
    whole: Regex,
}

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl Query {
    /// Reads a query.
    ///
    /// # Errors
    /// Where the text is wrong, and what is accepted there.
    pub fn parse(text: &str) -> Result<Self, QueryError> {
        let query = parse::parse(text)?;
        let length = query.to_string().len();
        if length > LENGTH_MAX {
            return Err(QueryError::new(text, text.len(), Wrong::TooLong(length)));
        }
        Ok(query)
    }

    /// True when something is what the query asks for.
    #[must_use]
    pub fn matches(&self, fields: &impl Fields) -> bool {
        self.root.holds(fields)
    }

    /// The names that services must have to be what the query asks for: for who has them in order, and need not look at
    /// all.
    #[must_use]
    pub fn names(&self) -> &Names {
        &self.names
    }
}

impl FromStr for Query {
    type Err = QueryError;

    fn from_str(text: &str) -> Result<Self, QueryError> {
        Self::parse(text)
    }
}

impl Expr {
    fn holds(&self, fields: &impl Fields) -> bool {
        match self {
            Self::Or(any) => any.iter().any(|e| e.holds(fields)),
            Self::And(all) => all.iter().all(|e| e.holds(fields)),
            Self::Not(inner) => !inner.holds(fields),
            Self::Has(key) => fields.any(key, &mut |_| true),
            Self::Compare(key, Compare::Differs, literal) => {
                !fields.any(key, &mut |value| literal.compare(Compare::Equal, value))
            }
            Self::Compare(key, compare, literal) => fields.any(key, &mut |value| literal.compare(*compare, value)),
            Self::Like(key, negated, pattern) => {
                let mut like = |value: Value<'_>| matches!(value, Value::Text(text) if pattern.whole.is_match(text));
                fields.any(key, &mut like) != *negated
            }
            Self::In(key, negated, choices) => {
                fields.any(key, &mut |value| choices.iter().any(|c| c.holds(value))) != *negated
            }
        }
    }
}

impl Literal {
    fn compare(&self, compare: Compare, value: Value<'_>) -> bool {
        match (self, value) {
            (Self::Text(literal), Value::Text(text)) => compare.orders(text, literal),
            (Self::Number(literal), Value::Text(text)) => number(text).is_some_and(|n| compare.orders(&n, literal)),
            (&Self::Number(literal), Value::Span(first, last)) => match compare {
                Compare::Equal => within(first, last, literal, literal),
                // One of several numbers is enough: the lowest is the least, the highest the greatest.
                Compare::Less | Compare::AtMost => compare.orders(&f64::from(first), &literal),
                Compare::Greater | Compare::AtLeast => compare.orders(&f64::from(last), &literal),
                Compare::Differs => !within(first, last, literal, literal),
            },
            (Self::Text(_), Value::Span(..)) | (_, Value::Opaque) => false,
        }
    }
}

impl Compare {
    fn orders<T: PartialOrd + ?Sized>(self, a: &T, b: &T) -> bool {
        match self {
            Self::Equal => a == b,
            Self::Differs => a != b,
            Self::Less => a < b,
            Self::AtMost => a <= b,
            Self::Greater => a > b,
            Self::AtLeast => a >= b,
        }
    }

    const fn sign(self) -> &'static str {
        match self {
            Self::Equal => "==",
            Self::Differs => "!=",
            Self::Less => "<",
            Self::AtMost => "<=",
            Self::Greater => ">",
            Self::AtLeast => ">=",
        }
    }
}

impl Choice {
    fn holds(&self, value: Value<'_>) -> bool {
        match (self, value) {
            (Self::One(literal), value) => literal.compare(Compare::Equal, value),
            (&Self::Range(from, to), Value::Text(text)) => number(text).is_some_and(|n| from <= n && n <= to),
            (&Self::Range(from, to), Value::Span(first, last)) => within(first, last, from, to),
            (Self::Range(..), Value::Opaque) => false,
        }
    }
}

/// True when a whole number of `first` to `last` lies in `from` to `to`.
fn within(first: u32, last: u32, from: f64, to: f64) -> bool {
    f64::from(first).max(from.ceil()) <= f64::from(last).min(to.floor())
}

fn number(text: &str) -> Option<f64> {
    text.parse().ok().filter(|n: &f64| n.is_finite())
}

/// A query as it is usually written; parsed again it is the same query.
impl fmt::Display for Query {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.root.fmt(f)
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Or(any) => list(f, any, " or "),
            Self::And(all) => {
                for (i, e) in all.iter().enumerate() {
                    f.write_str(if i > 0 { " and " } else { "" })?;
                    e.enclosed(f, matches!(e, Self::Or(_)))?;
                }
                Ok(())
            }
            Self::Not(inner) => {
                f.write_str("not ")?;
                inner.enclosed(f, matches!(**inner, Self::Or(_) | Self::And(_)))
            }
            Self::Has(key) => write!(f, "has {}", Key(key)),
            Self::Compare(key, compare, literal) => write!(f, "{} {} {literal}", Key(key), compare.sign()),
            Self::Like(key, negated, pattern) => {
                let sign = if *negated { "!~" } else { "=~" };
                write!(f, "{} {sign} {}", Key(key), Quoted(&pattern.source))
            }
            Self::In(key, negated, choices) => {
                write!(f, "{} {}in ", Key(key), if *negated { "not " } else { "" })?;
                match &choices[..] {
                    [range @ Choice::Range(..)] => range.fmt(f),
                    several => {
                        f.write_char('[')?;
                        list(f, several, ", ")?;
                        f.write_char(']')
                    }
                }
            }
        }
    }
}

impl Expr {
    fn enclosed(&self, f: &mut fmt::Formatter<'_>, enclose: bool) -> fmt::Result {
        if enclose { write!(f, "({self})") } else { write!(f, "{self}") }
    }
}

fn list<T: fmt::Display>(f: &mut fmt::Formatter<'_>, items: &[T], between: &str) -> fmt::Result {
    items.iter().enumerate().try_for_each(|(i, item)| {
        f.write_str(if i > 0 { between } else { "" })?;
        item.fmt(f)
    })
}

impl fmt::Display for Literal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => Quoted(text).fmt(f),
            Self::Number(n) => n.fmt(f),
        }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::One(literal) => literal.fmt(f),
            Self::Range(from, to) => write!(f, "{from}..{to}"),
        }
    }
}

/// A key, in backquotes when it is no plain word.
struct Key<'a>(&'a str);

impl fmt::Display for Key<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if lex::is_plain(self.0) { f.write_str(self.0) } else { write!(f, "`{}`", self.0) }
    }
}

/// A text in quotes. A backslash stands for itself unless a quote or another one follows: so that patterns stay readable.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        let mut chars = self.0.chars().peekable();
        while let Some(c) = chars.next() {
            let next = chars.peek();
            if c == '"' || (c == '\\' && matches!(next, None | Some('"' | '\\' | '\''))) {
                f.write_char('\\')?;
            }
            f.write_char(c)?;
        }
        f.write_char('"')
    }
}
