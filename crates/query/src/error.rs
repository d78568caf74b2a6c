//! What is wrong with a query: where, and what is accepted there.

use super::{DEPTH_MAX, KEY_MAX, LENGTH_MAX, PATTERN_MAX};
use std::fmt;

/// Why a text is no query. As it is printed, a caret stands below the place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QueryError {
    /// The part of the query's text around the place, and how far in it the place is, in characters.
    line: String,
    column: usize,
    at: usize,
    why: Wrong,
}

/// What is wrong.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Wrong {
    /// Something else belongs here.
    Expected {
        /// What is accepted here.
        what: &'static str,
        /// What stands here.
        found: String,
    },
    /// A text, or a key in backquotes, has no end.
    Unclosed(char),
    /// A key without letters, or with too many.
    Key(usize),
    /// A number with too many digits.
    Number,
    /// A range whose end is below its beginning.
    Range,
    /// The key is a number, and what it is compared with is none.
    NeedsNumber(String),
    /// A regular expression that cannot be read, or is too large.
    Pattern(String),
    /// Parentheses and `not` are nested too deep.
    TooDeep,
    /// Too many bytes.
    TooLong(usize),
}

/// Characters shown on each side of the place.
const AROUND: usize = 60;

impl QueryError {
    pub(super) fn new(text: &str, at: usize, why: Wrong) -> Self {
        let before: Vec<char> = text[..at].chars().collect();
        let cut = before.len().saturating_sub(AROUND);
        let behind = text[at..].chars();
        let ellipsis = |wanted: bool| if wanted { "…" } else { "" };
        let more = behind.clone().nth(AROUND).is_some();
        let shown: String = before[cut..].iter().copied().chain(behind.take(AROUND)).map(printable).collect();
        let line = format!("{}{shown}{}", ellipsis(cut > 0), ellipsis(more));
        Self { line, column: before.len() - cut + usize::from(cut > 0), at, why }
    }

    /// Where, in bytes from the beginning of the text.
    #[must_use]
    pub fn at(&self) -> usize {
        self.at
    }

    /// What is wrong.
    #[must_use]
    pub fn why(&self) -> &Wrong {
        &self.why
    }
}

fn printable(c: char) -> char {
    if c.is_control() { ' ' } else { c }
}

impl std::error::Error for QueryError {}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.line)?;
        writeln!(f, "{:1$}^", "", self.column)?;
        self.why.fmt(f)
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Expected { what, found } if found.is_empty() => write!(f, "the query ends here: expected {what}"),
            Self::Expected { what, found } => {
                write!(f, "expected {what}, not `{found}`")?;
                match found.as_str() {
                    "=" => f.write_str("; equal is `==`"),
                    "&" | "&&" => f.write_str("; write `and`"),
                    "|" | "||" => f.write_str("; write `or`"),
                    "!" => f.write_str("; write `not`"),
                    "~" => f.write_str("; a regular expression follows `=~`"),
                    "." => f.write_str("; a text that begins with a digit needs quotes"),
                    _ => Ok(()),
                }
            }
            Self::Unclosed(quote) => write!(f, "what begins here has no end: expected another {quote}"),
            Self::Key(length) => write!(f, "a key has 1 to {KEY_MAX} bytes, not {length}"),
            Self::Number => f.write_str("a number has at most 15 digits"),
            Self::Range => f.write_str("the range ends before it begins: expected the lower number first"),
            Self::NeedsNumber(key) => {
                write!(f, "`{key}` is a number: expected a number, or `in` with numbers and ranges such as 3..5")
            }
            Self::Pattern(why) => {
                write!(f, "not a regular expression of up to {} KiB: {why}", PATTERN_MAX / 1024)
            }
            Self::TooDeep => write!(f, "nested too deep: expected at most {DEPTH_MAX} levels"),
            Self::TooLong(length) => write!(f, "a query has at most {LENGTH_MAX} bytes, not {length}"),
        }
    }
}
