//! What an experiment hands back, as JSON for programs and as a table for people.

use crate::noise::Noise;
use serde::Serialize;
use serde_json::{Map, Value};
use std::fmt::{self, Write};

/// One row: columns in the order they were put in.
pub(crate) type Row = Map<String, Value>;

/// Everything one run found. Its fields are the JSON, exactly.
#[derive(Clone, Serialize, Debug)]
pub(crate) struct Report {
    /// The experiment.
    pub(crate) name: &'static str,
    /// What was measured.
    pub(crate) rows: Vec<Row>,
    /// What had to hold.
    pub(crate) checks: Vec<Check>,
    /// How quiet the machine was.
    pub(crate) noise: Noise,
    /// What a reader must know beside the figures.
    pub(crate) notes: Vec<String>,
}

/// A comparison that holds or does not.
#[derive(Clone, PartialEq, Serialize, Debug)]
pub(crate) struct Check {
    /// The claim, in words and signs.
    pub(crate) name: String,
    /// What was measured; `None` (JSON `null`) when it could not be, which never holds.
    pub(crate) value: Option<f64>,
    /// What it is compared with.
    pub(crate) bound: f64,
    /// The verdict.
    pub(crate) holds: bool,
}

/// How a value must stand to its bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Must {
    /// `value ≤ bound`.
    AtMost,
    /// `value < bound`.
    Below,
    /// `value ≥ bound`.
    AtLeast,
    /// `value > bound`.
    Above,
}

impl Must {
    fn holds(self, value: f64, bound: f64) -> bool {
        match self {
            Self::AtMost => value <= bound,
            Self::Below => value < bound,
            Self::AtLeast => value >= bound,
            Self::Above => value > bound,
        }
    }
}

impl fmt::Display for Must {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::AtMost => "≤",
            Self::Below => "<",
            Self::AtLeast => "≥",
            Self::Above => ">",
        })
    }
}

impl Check {
    /// The claim `name`: the value must stand so to the bound.
    pub(crate) fn new(name: impl Into<String>, value: Option<f64>, must: Must, bound: f64) -> Self {
        let value = value.filter(|v| v.is_finite());
        Self {
            name: name.into(),
            value: value.map(significant),
            bound,
            holds: value.is_some_and(|v| must.holds(v, bound)),
        }
    }
}

impl Report {
    /// An empty one.
    pub(crate) fn new(name: &'static str) -> Self {
        Self { name, rows: Vec::new(), checks: Vec::new(), noise: Noise::default(), notes: Vec::new() }
    }

    /// True when each check holds.
    pub(crate) fn holds(&self) -> bool {
        self.checks.iter().all(|c| c.holds)
    }

    /// For programs.
    pub(crate) fn json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("maps of strings, numbers and lists always encode");
        text.push('\n');
        text
    }

    /// For people: rows under their columns, then the checks.
    pub(crate) fn table(&self) -> String {
        let mut columns: Vec<&str> = Vec::new();
        for key in self.rows.iter().flat_map(Map::keys) {
            if !columns.contains(&key.as_str()) {
                columns.push(key);
            }
        }
        let heading = columns.iter().map(|c| Cell::text(*c)).collect();
        let rows = self.rows.iter().map(|row| columns.iter().map(|&c| Cell::of(row.get(c))).collect());
        let mut text = aligned(std::iter::once(heading).chain(rows).collect());
        if !self.checks.is_empty() {
            let heading = ["check", "value", "bound", "holds"].into_iter().map(Cell::text).collect();
            let checks = self.checks.iter().map(|c| {
                let holds = Cell::text(if c.holds { "yes" } else { "NO" });
                vec![
                    Cell::text(c.name.clone()),
                    Cell::of(c.value.map(Value::from).as_ref()),
                    Cell::number(c.bound),
                    holds,
                ]
            });
            text.push('\n');
            text.push_str(&aligned(std::iter::once(heading).chain(checks).collect()));
        }
        text
    }
}

/// Four significant digits: what a timing can carry.
pub(crate) fn significant(x: f64) -> f64 {
    if x == 0.0 || !x.is_finite() {
        return x;
    }
    // By way of decimal text: scaling by powers of ten would leave 0.30000000000000004 in the JSON.
    format!("{x:.3e}").parse().unwrap_or(x)
}

struct Cell {
    text: String,
    /// Numbers stand to the right, under each other.
    right: bool,
}

impl Cell {
    fn text(text: impl Into<String>) -> Self {
        Self { text: text.into(), right: false }
    }

    fn number(x: f64) -> Self {
        Self { text: format!("{}", significant(x)), right: true }
    }

    fn of(value: Option<&Value>) -> Self {
        match value {
            None | Some(Value::Null) => Self { text: "–".into(), right: true },
            Some(Value::String(s)) => Self::text(s.clone()),
            Some(Value::Number(n)) if n.is_f64() => Self::number(n.as_f64().unwrap_or(f64::NAN)),
            Some(other) => Self { text: other.to_string(), right: true },
        }
    }
}

/// Lines of cells, each column as wide as its widest cell.
fn aligned(lines: Vec<Vec<Cell>>) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| lines.iter().filter_map(|l| l.get(c)).map(|x| x.text.chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in &lines {
        let mut out = String::new();
        for (cell, &w) in line.iter().zip(&widths) {
            let (text, gap) = (&cell.text, if out.is_empty() { "" } else { "  " });
            let written = if cell.right { write!(out, "{gap}{text:>w$}") } else { write!(out, "{gap}{text:<w$}") };
            written.expect("writing to a string cannot fail");
        }
        text.push_str(out.trim_end());
        text.push('\n');
    }
    text
}

/// A row from pairs of a column and anything that serde_json has a value for.
macro_rules! row {
    ($($column:literal: $value:expr),* $(,)?) => {
        $crate::report::Row::from_iter([$(($column.to_string(), serde_json::Value::from($value))),*])
    };
}
pub(crate) use row;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::Core;

    fn sample() -> Report {
        let mut report = Report::new("link-latency");
        report.rows.push(row! { "layer": "udp", "mode": "spin", "bytes": 64, "p50_us": 3.1, "p99_us": 4.0 });
        report
            .rows
            .push(row! { "layer": "udp-sealed", "mode": "spin", "bytes": 4096, "p50_us": 13.25, "p99_us": 40.0 });
        report.checks.push(Check::new("cl / udp-sealed ≤ 1.10", Some(1.0400001), Must::AtMost, 1.10));
        report.noise.before.push(Core { core: 0, available: 0.99, largest_gap_ms: 0.2 });
        report.notes.push("quick".into());
        report
    }

    /// Others parse this: the keys, their order and nothing more.
    #[test]
    fn the_json_has_exactly_its_keys_in_order() {
        let value: Value = serde_json::from_str(&sample().json()).unwrap();
        let keys = |v: &Value| v.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
        assert_eq!(keys(&value), ["name", "rows", "checks", "noise", "notes"]);
        assert_eq!(keys(&value["rows"][0]), ["layer", "mode", "bytes", "p50_us", "p99_us"]);
        assert_eq!(keys(&value["checks"][0]), ["name", "value", "bound", "holds"]);
        assert_eq!(keys(&value["noise"]), ["before", "after"]);
        assert_eq!(value["checks"][0]["value"], 1.04);
        assert_eq!(value["notes"][0], "quick");
    }

    #[test]
    fn the_table_lines_its_columns_up() {
        let table = sample().table();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines[0], "layer       mode  bytes  p50_us  p99_us");
        assert_eq!(lines[1], "udp         spin     64     3.1       4");
        assert_eq!(lines[2], "udp-sealed  spin   4096   13.25      40");
        assert_eq!(lines[5], "cl / udp-sealed ≤ 1.10   1.04    1.1  yes");
    }

    #[test]
    fn a_check_holds_by_its_sign_and_never_without_a_value() {
        let holds = |value, must| Check::new("c", value, must, 2.0).holds;
        assert!(holds(Some(2.0), Must::AtMost) && holds(Some(2.0), Must::AtLeast));
        assert!(!holds(Some(2.0), Must::Below) && !holds(Some(2.0), Must::Above));
        assert!(holds(Some(1.9), Must::Below) && holds(Some(2.1), Must::Above));
        assert!(!holds(None, Must::AtMost) && !holds(Some(f64::NAN), Must::AtMost));
        let mut report = sample();
        assert!(report.holds());
        report.checks.push(Check::new("missing", None, Must::AtLeast, 0.0));
        assert!(!report.holds());
        assert!(report.json().contains(r#""value": null"#));
    }

    #[test]
    fn four_digits_and_no_float_dust() {
        assert_eq!(significant(0.1 + 0.2), 0.3);
        assert_eq!(significant(15_812_345.0), 15_810_000.0);
        assert_eq!(significant(0.0), 0.0);
    }
}
