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
}

const SIZE: (u32, u32) = (960, 600);
/// From this ratio of the largest to the smallest value on, an axis is logarithmic.
const DECADE: f64 = 10.0;
/// Room left at both ends of an axis, as a share of the values' span.
const MARGIN: f64 = 0.08;
/// A log axis has no place for zero: timers that are never late are drawn here.
const FLOOR: f64 = 1e-3;

type Lines = BTreeMap<String, Vec<(f64, f64)>>;
type DrawingError = Box<dyn std::error::Error>;

/// Writes the picture of `report` to `path`, whole or not at all.
pub(crate) fn write(report: &Report, picture: Picture, path: &Path) -> Result<(), Error> {
    let failed = |reason: String| Error::Plot { path: path.into(), reason };
    let svg = draw(report, picture).map_err(|e| failed(e.to_string()))?;
    let mut aside = path.as_os_str().to_owned();
    aside.push(".tmp");
    std::fs::write(&aside, svg).and_then(|()| std::fs::rename(&aside, path)).map_err(|e| failed(e.to_string()))
}

fn draw(report: &Report, picture: Picture) -> Result<String, DrawingError> {
    let mut lines = Lines::new();
    for row in &report.rows {
        let number = |column| row.get(column).and_then(serde_json::Value::as_f64);
        if let (Some(x), Some(y)) = (number(picture.x), number(picture.y)) {
            lines.entry(label(row, picture.series)).or_default().push((x.max(FLOOR), y.max(FLOOR)));
        }
    }
    let xs = Axis::over(lines.values().flatten().map(|p| p.0)).ok_or("there is no row to draw")?;
    let ys = Axis::over(lines.values().flatten().map(|p| p.1)).ok_or("there is no row to draw")?;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        area.fill(&WHITE)?;
        let title = report.name;
        match (xs, ys) {
            (Axis::Log(x), Axis::Log(y)) => chart(&area, title, picture, x.log_scale(), y.log_scale(), &lines)?,
            (Axis::Log(x), Axis::Linear(y)) => chart(&area, title, picture, x.log_scale(), y, &lines)?,
            (Axis::Linear(x), Axis::Log(y)) => chart(&area, title, picture, x, y.log_scale(), &lines)?,
            (Axis::Linear(x), Axis::Linear(y)) => chart(&area, title, picture, x, y, &lines)?,
        }
        area.present()?;
    }
    Ok(svg)
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

    const PICTURE: Picture = Picture { x: "bytes", y: "p50_us", series: &["layer"] };

    #[test]
    fn each_series_is_a_line_with_its_name() {
        let mut report = Report::new("link-latency");
        for (layer, bytes, p50) in [("udp", 4, 2.8), ("udp", 4096, 3.3), ("quinn", 4, 12.0), ("quinn", 4096, 40.0)] {
            report.rows.push(row! { "layer": layer, "bytes": bytes, "p50_us": p50 });
        }
        let svg = draw(&report, PICTURE).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(["link-latency", "udp", "quinn", "p50_us"].iter().all(|word| svg.contains(word)));
        assert_eq!(svg.matches("<circle").count(), 4);
    }

    #[test]
    fn nothing_to_draw_is_said_and_leaves_no_file() {
        let path = std::env::temp_dir().join("phalanx-lab-no-rows.svg");
        let error = write(&Report::new("empty"), PICTURE, &path).unwrap_err().to_string();
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
