//! What is wrong with a scenario, said so that its author finds the place: source, line, field, and what is accepted.
//!
//! Fields are named by their path (`fault.0.at`), the same that `--set` takes. A path leads to a line through the
//! parsed text, and a place in the text leads to the deepest field that covers it.

use serde::de::DeserializeOwned;
use std::fmt;
use std::ops::Range;
use thiserror::Error;
use toml::de::{DeTable, DeValue};

/// Why a scenario was refused. Nothing has run.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub struct ScenarioError {
    /// The file, or the `--set` that brought it in.
    pub source_name: String,
    /// The line in the file, from 1; `None` when the value came from `--set`.
    pub line: Option<usize>,
    /// The path of the field; empty when the whole text is meant.
    pub field: String,
    /// What is wrong, and what is accepted.
    pub text: String,
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source_name)?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        if !self.field.is_empty() {
            write!(f, ": `{}`", self.field)?;
        }
        write!(f, ": {}", self.text)
    }
}

/// Something wrong at a path, before its line is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Problem {
    pub(crate) path: String,
    pub(crate) text: String,
}

impl Problem {
    pub(crate) fn new(path: impl Into<String>, text: impl Into<String>) -> Self {
        Self { path: path.into(), text: text.into() }
    }

    /// The same problem, seen from outside: `at` is where the part that has it lies.
    pub(crate) fn inside(self, at: &str) -> Self {
        Self { path: join(at, &self.path), text: self.text }
    }
}

/// The path of `inner` inside `outer`.
pub(crate) fn join(outer: &str, inner: &str) -> String {
    match (outer, inner) {
        ("", path) | (path, "") => path.to_owned(),
        _ => format!("{outer}.{inner}"),
    }
}

/// Reads `text`, or says where it is wrong.
pub(crate) fn read<T: DeserializeOwned>(text: &str) -> Result<T, Problem> {
    toml::from_str(text).map_err(|error| {
        let path = error.span().and_then(|span| path_at(text, &span)).unwrap_or_default();
        Problem::new(path, nearest_first(error.message()))
    })
}

/// The line of a syntax error, which comes before there are any fields.
pub(crate) fn syntax(text: &str) -> Result<(), (Option<usize>, String)> {
    let error = DeTable::parse(text).err();
    error.map_or(Ok(()), |e| Err((e.span().map(|s| line(text, s.start)), e.message().to_owned())))
}

/// The line, from 1, where `path` stands in `text`, or the nearest thing around it; `None` when nothing of it does.
pub(crate) fn line_of(text: &str, path: &str) -> Option<usize> {
    let fields = fields(text);
    let mut path = path;
    while !path.is_empty() {
        if let Some((_, key, _)) = fields.iter().find(|f| f.0 == path) {
            return Some(line(text, key.start));
        }
        path = path.rsplit_once('.').map_or("", |p| p.0);
    }
    None
}

fn line(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|&&b| b == b'\n').count() + 1
}

/// The path of the smallest field that covers a place.
fn path_at(text: &str, place: &Range<usize>) -> Option<String> {
    let covers = |span: &Range<usize>| span.start <= place.start && place.start <= span.end;
    fields(text)
        .into_iter()
        .flat_map(|(path, key, value)| [(path.clone(), key), (path, value)])
        .filter(|(_, span)| covers(span))
        .min_by_key(|(_, span)| span.len())
        .map(|f| f.0)
}

/// A field: its path, and where its key and its value stand.
type Field = (String, Range<usize>, Range<usize>);

fn fields(text: &str) -> Vec<Field> {
    let mut found = Vec::new();
    if let Ok(table) = DeTable::parse(text) {
        walk_table("", table.get_ref(), &mut found);
    }
    found
}

fn walk_table(at: &str, table: &DeTable<'_>, found: &mut Vec<Field>) {
    for (key, value) in table {
        let path = join(at, key.get_ref());
        found.push((path.clone(), key.span(), value.span()));
        walk(&path, value.get_ref(), found);
    }
}

fn walk(at: &str, value: &DeValue<'_>, found: &mut Vec<Field>) {
    if let Some(table) = value.as_table() {
        walk_table(at, table, found);
    } else if let Some(array) = value.as_array() {
        for (i, item) in array.iter().enumerate() {
            let path = format!("{at}.{i}");
            found.push((path.clone(), item.span(), item.span()));
            walk(&path, item.get_ref(), found);
        }
    }
}

/// Puts what is accepted in place of an unknown word in the order of likeness, most alike first.
///
/// The derived readers list what they know in the order of declaration, which for twenty fields hides the one meant.
fn nearest_first(message: &str) -> String {
    let message = message.trim_end();
    let Some((said, accepted)) = message.split_once(", expected ") else {
        return message.to_owned();
    };
    let unknown = said.starts_with("unknown field `") || said.starts_with("unknown variant `");
    let Some(word) = said.split('`').nth(1).filter(|_| unknown) else {
        return message.to_owned();
    };
    let mut known: Vec<&str> = accepted.split('`').skip(1).step_by(2).collect();
    if known.is_empty() {
        return message.to_owned();
    }
    order_by_likeness(word, &mut known);
    format!("{said}; known: {}", known.join(", "))
}

/// `value` is none of `known`: says so, most alike first.
pub(crate) fn unknown(value: &str, known: &[&str]) -> String {
    let mut known = known.to_vec();
    order_by_likeness(value, &mut known);
    format!("`{value}` is unknown; known: {}", known.join(", "))
}

fn order_by_likeness(word: &str, known: &mut [&str]) {
    known.sort_by_key(|k| distance(word, k));
}

/// Edits that lead from one word to the other, a swap of neighbours as one.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize, Debug)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only read")]
    struct Outer {
        #[serde(default)]
        inner: Vec<Inner>,
    }

    #[derive(Deserialize, Debug)]
    #[serde(deny_unknown_fields)]
    #[expect(dead_code, reason = "only read")]
    struct Inner {
        loss: f64,
        #[serde(default)]
        duplication: f64,
        #[serde(default)]
        reorder: f64,
    }

    const TEXT: &str = "# A comment.\n\n[[inner]]\nloss = 0.1\n\n[[inner]]\nloss = 0.1\nreodrer = 0.2\n";

    #[test]
    fn a_slip_of_the_pen_is_found_and_the_likeliest_word_comes_first() {
        let problem = read::<Outer>(TEXT).unwrap_err();
        assert_eq!(problem.path, "inner.1.reodrer");
        assert_eq!(problem.text, "unknown field `reodrer`; known: reorder, loss, duplication");
        assert_eq!(line_of(TEXT, &problem.path), Some(8));
    }

    #[test]
    fn a_wrong_type_and_a_missing_field_are_found_too() {
        let wrong = read::<Outer>("[[inner]]\nloss = 'much'").unwrap_err();
        assert_eq!(wrong.path, "inner.0.loss");
        assert!(wrong.text.contains("invalid type: string \"much\""), "{}", wrong.text);
        let missing = read::<Outer>("[[inner]]\nloss = 1\n[[inner]]\nreorder = 0.5").unwrap_err();
        assert_eq!((missing.path.as_str(), missing.text.as_str()), ("inner.1", "missing field `loss`"));
    }

    #[test]
    fn a_path_that_is_not_there_leads_to_what_is_around_it() {
        assert_eq!(line_of(TEXT, "inner.1.loss.deep"), Some(7));
        assert_eq!(line_of(TEXT, "nowhere.at.all"), None);
    }

    #[test]
    fn a_syntax_error_has_a_line() {
        let (line, text) = syntax("a = 1\nb = = 2\n").unwrap_err();
        assert_eq!(line, Some(2), "{text}");
        assert_eq!(syntax("a = 1"), Ok(()));
    }

    #[test]
    fn likeness_counts_edits() {
        assert_eq!(distance("crash", "crash"), 0);
        assert_eq!(distance("crahs", "crash"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert!(unknown("puase", &["crash", "resume", "pause"]).ends_with("known: pause, crash, resume"));
    }
}
