//! Rows as a picture: one line for each series, SVG, logarithmic axes where the values span decades.
//!
//! Only the SVG backend of plotters is built in, with no font library: the viewer has the fonts.

use crate::error::Error;
use crate::report::{Report, Row, significant};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// How an experiment's rows are drawn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Picture {
    /// The column along the bottom.
    pub(crate) x: &'static str,
    /// The column up the side.
    pub(crate) y: &'static str,
    /// The columns that tell one line from another.
    pub(crate) series: &'static [&'static str],
    /// Only rows with this value in this column.
    pub(crate) only: Option<(&'static str, Is)>,
    /// More columns up the side, each with lines of its own: what a model says.
    pub(crate) beside: &'static [&'static str],
}

/// What a column must hold.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Is {
    Number(f64),
    Text(&'static str),
}

impl Is {
    fn holds(self, value: Option<&serde_json::Value>) -> bool {
        match self {
            Self::Number(n) => value.and_then(serde_json::Value::as_f64) == Some(n),
            Self::Text(t) => value.and_then(serde_json::Value::as_str) == Some(t),
        }
    }
}

impl std::fmt::Display for Is {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Number(n) => n.fmt(f),
            Self::Text(t) => f.write_str(t),
        }
    }
}

const SIZE: (u32, u32) = (960, 600);
/// From this ratio of the largest to the smallest value on, an axis is logarithmic.
const DECADE: f64 = 10.0;
/// Room left at both ends of an axis, as a share of the values' span.
const MARGIN: f64 = 0.08;
/// A log axis has no place for zero: timers that are never late are drawn here.
const FLOOR: f64 = 1e-3;
/// How a column is called that holds shares of 100: up the side they are linear, for nothing and all are among them.
const PERCENT: &str = "_percent";

type Lines = BTreeMap<String, Vec<(f64, f64)>>;
type DrawingError = Box<dyn std::error::Error>;

/// Writes the pictures of `report` to `path`, one below the other, whole or not at all.
pub(crate) fn write(report: &Report, pictures: &[Picture], path: &Path) -> Result<(), Error> {
    let failed = |reason: String| Error::Plot { path: path.into(), reason };
    let svg = draw(report, pictures).map_err(|e| failed(e.to_string()))?;
    let mut aside = path.as_os_str().to_owned();
    aside.push(".tmp");
    std::fs::write(&aside, svg).and_then(|()| std::fs::rename(&aside, path)).map_err(|e| failed(e.to_string()))
}

fn draw(report: &Report, pictures: &[Picture]) -> Result<String, DrawingError> {
    let drawn: Vec<(Picture, Lines)> = pictures.iter().map(|&p| (p, lines(report, p))).collect();
    let drawn: Vec<_> = drawn.into_iter().filter(|(_, lines)| !lines.is_empty()).collect();
    if drawn.is_empty() {
        return Err("there is no row to draw".into());
    }
    let mut svg = String::new();
    {
        let size = (SIZE.0, SIZE.1 * drawn.len() as u32);
        let area = SVGBackend::with_string(&mut svg, size).into_drawing_area();
        area.fill(&WHITE)?;
        for ((picture, lines), area) in drawn.iter().zip(area.split_evenly((drawn.len(), 1))) {
            panel(&area, report.name, *picture, lines)?;
        }
        area.present()?;
    }
    Ok(svg)
}

fn lines(report: &Report, picture: Picture) -> Lines {
    let mut lines = Lines::new();
    for row in &report.rows {
        let number = |column| row.get(column).and_then(serde_json::Value::as_f64);
        let meant = picture.only.is_none_or(|(column, is)| is.holds(row.get(column)));
        let (true, Some(x)) = (meant, number(picture.x)) else { continue };
        for &column in std::iter::once(&picture.y).chain(picture.beside) {
            let Some(y) = number(column) else { continue };
            let name = label(row, picture.series);
            let name = if column == picture.y { name } else { format!("{name}, {column}") };
            lines.entry(name).or_default().push((x.max(FLOOR), y.max(FLOOR)));
        }
    }
    lines
}

fn panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    name: &str,
    picture: Picture,
    lines: &Lines,
) -> Result<(), DrawingError> {
    let xs = Axis::over(lines.values().flatten().map(|p| p.0)).ok_or("there is no row to draw")?;
    let ys = match picture.y.ends_with(PERCENT) {
        true => Axis::Linear(0.0..100.0 * (1.0 + MARGIN)),
        false => Axis::over(lines.values().flatten().map(|p| p.1)).ok_or("there is no row to draw")?,
    };
    let title = &picture.only.map_or_else(|| name.to_owned(), |(column, value)| format!("{name}, {column} {value}"));
    match (xs, ys) {
        (Axis::Log(x), Axis::Log(y)) => chart(area, title, picture, x.log_scale(), y.log_scale(), lines),
        (Axis::Log(x), Axis::Linear(y)) => chart(area, title, picture, x.log_scale(), y, lines),
        (Axis::Linear(x), Axis::Log(y)) => chart(area, title, picture, x, y.log_scale(), lines),
        (Axis::Linear(x), Axis::Linear(y)) => chart(area, title, picture, x, y, lines),
    }
}

fn label(row: &Row, series: &[&str]) -> String {
    let words = series.iter().filter_map(|&column| match row.get(column)? {
        serde_json::Value::String(s) => Some(s.clone()),
        other => Some(format!("{column} {other}")),
    });
    words.collect::<Vec<_>>().join(", ")
}

enum Axis {
    Linear(Range<f64>),
    Log(Range<f64>),
}

impl Axis {
    fn over(values: impl Iterator<Item = f64>) -> Option<Self> {
        let (low, high) = values.fold(None, |span: Option<(f64, f64)>, v| {
            Some(span.map_or((v, v), |(low, high)| (low.min(v), high.max(v))))
        })?;
        if high / low >= DECADE {
            let room = (high / low).powf(MARGIN);
            return Some(Self::Log(low / room..high * room));
        }
        // A single value still needs a span around it.
        let room = if high > low { (high - low) * MARGIN } else { high * 0.5 };
        Some(Self::Linear((low - room).max(0.0)..high + room))
    }
}

fn chart<X, Y>(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    title: &str,
    picture: Picture,
    x: X,
    y: Y,
    lines: &Lines,
) -> Result<(), DrawingError>
where
    X: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>,
    Y: AsRangedCoord<Value = f64, CoordDescType: ValueFormatter<f64>>,
{
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 24))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(84)
        .build_cartesian_2d(x, y)?;
    chart
        .configure_mesh()
        .x_desc(picture.x)
        .y_desc(picture.y)
        .x_label_formatter(&|v| significant(*v).to_string())
        .y_label_formatter(&|v| significant(*v).to_string())
        .draw()?;
    for (i, (name, points)) in lines.iter().enumerate() {
        let colour = Palette99::pick(i).stroke_width(2);
        let mut points = points.clone();
        points.sort_unstable_by(|a, b| a.0.total_cmp(&b.0));
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour))?
            .label(name)
            .legend(move |(x, y)| PathElement::new(vec![(x, y), (x + 18, y)], colour));
        chart.draw_series(points.into_iter().map(|p| Circle::new(p, 3, colour.filled())))?;
    }
    chart.configure_series_labels().background_style(WHITE.mix(0.8)).border_style(BLACK.mix(0.3)).draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::row;

    const PICTURE: Picture = Picture { x: "bytes", y: "p50_us", series: &["layer"], only: None, beside: &[] };

    #[test]
    fn each_series_is_a_line_with_its_name() {
        let mut report = Report::new("link-latency");
        for (layer, bytes, p50) in [("udp", 4, 2.8), ("udp", 4096, 3.3), ("quinn", 4, 12.0), ("quinn", 4096, 40.0)] {
            report.rows.push(row! { "layer": layer, "bytes": bytes, "p50_us": p50 });
        }
        let svg = draw(&report, &[PICTURE]).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(["link-latency", "udp", "quinn", "p50_us"].iter().all(|word| svg.contains(word)));
        assert_eq!(svg.matches("<circle").count(), 4);
    }

    #[test]
    fn several_pictures_stand_below_each_other_with_the_rows_they_mean() {
        let mut report = Report::new("zone-churn");
        for (nodes, simultaneous, last) in [(32, 1, 3.0), (128, 1, 4.0), (128, 16, 5.0)] {
            report.rows.push(row! { "nodes": nodes, "simultaneous": simultaneous, "last_ms": last });
        }
        let picture = |x, only| Picture { x, y: "last_ms", series: &[], only: Some(only), beside: &[] };
        let pictures = [
            picture("nodes", ("simultaneous", Is::Number(1.0))),
            picture("simultaneous", ("nodes", Is::Number(128.0))),
        ];
        let svg = draw(&report, &pictures).unwrap();
        assert_eq!(svg.matches("<circle").count(), 4);
        assert!(svg.contains("zone-churn, simultaneous 1") && svg.contains("zone-churn, nodes 128"));
        let none = draw(&report, &[pictures[0], picture("nodes", ("nodes", Is::Number(7.0)))]).unwrap();
        assert!(!none.contains("nodes 7"), "a picture of nothing is left out");
    }

    #[test]
    fn a_model_stands_beside_what_was_measured() {
        let mut report = Report::new("view-stabilization");
        for (transport, nodes) in [("UDP", 3), ("UDP", 47), ("TCP", 3)] {
            report.rows.push(row! { "transport": transport, "nodes": nodes, "ts_us": 30.0, "base_us": 20.0 });
        }
        let only = Some(("transport", Is::Text("UDP")));
        let picture = Picture { x: "nodes", y: "ts_us", series: &["transport"], only, beside: &["base_us"] };
        let svg = draw(&report, &[picture]).unwrap();
        assert_eq!(svg.matches("<circle").count(), 4);
        assert!(svg.contains("UDP, base_us") && svg.contains("view-stabilization, transport UDP"));
    }

    #[test]
    fn a_share_of_nothing_is_at_the_bottom() {
        let mut report = Report::new("segment-service");
        for (at_s, percent) in [(6.0, 100.0), (7.0, 0.0)] {
            report.rows.push(row! { "at_s": at_s, "answered_percent": percent });
        }
        let picture = Picture { x: "at_s", y: "answered_percent", series: &[], only: None, beside: &[] };
        let svg = draw(&report, &[picture]).unwrap();
        assert!(svg.contains("50") && !svg.contains("0.001"), "it has no decades: {svg}");
    }

    #[test]
    fn nothing_to_draw_is_said_and_leaves_no_file() {
        let path = std::env::temp_dir().join("phalanx-lab-no-rows.svg");
        let error = write(&Report::new("empty"), &[PICTURE], &path).unwrap_err().to_string();
        assert!(error.contains("there is no row to draw"), "{error}");
        assert!(!path.exists());
    }

    #[test]
    fn an_axis_is_logarithmic_from_a_decade_on() {
        assert!(matches!(Axis::over([1.0, 9.0].into_iter()), Some(Axis::Linear(_))));
        assert!(matches!(Axis::over([1.0, 10.0].into_iter()), Some(Axis::Log(_))));
        assert!(matches!(Axis::over([3.0].into_iter()), Some(Axis::Linear(r)) if r.start < 3.0 && r.end > 3.0));
        assert!(Axis::over(std::iter::empty()).is_none());
    }
}
