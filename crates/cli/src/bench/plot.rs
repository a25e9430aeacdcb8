//! What was measured, as a picture: every repetition a dot, every median a bar, on a logarithmic scale.
//!
//! Times are drawn in units of the raw round trip of their own repetition, so that pictures from different machines, and of
//! different stores, can be laid side by side. CPU shares and fairness have other units, and panels of their own.
//! Written by hand: a plot of strips needs no crate. Colours come from one style sheet with a dark twin.

use std::fmt::Write;

use super::lines::{Base, Goal, Measure, Unit};
use super::results::{Results, Row};
use super::{stats, words};

const WIDTH: f64 = 1000.0;
const MARGIN: f64 = 28.0;
/// Where the strips begin and end; labels are to the left, figures to the right.
const LEFT: f64 = 272.0;
const RIGHT: f64 = 668.0;
/// Between the strips' ends and the first and last decade, so that a dot there is still a whole dot.
const PADDING: f64 = 16.0;
const ROW: f64 = 25.0;
const HEADING: f64 = 24.0;

/// The whole picture.
pub(super) fn svg(results: &Results) -> String {
    let rows = results.rows();
    let mut canvas = Canvas { out: String::new(), y: MARGIN + 14.0 };
    canvas.title(results);
    for panel in Panel::ALL {
        let rows: Vec<&Row> = rows.iter().filter(|row| Panel::of(row.line.unit) == panel).collect();
        if !rows.is_empty() {
            canvas.panel(panel, &rows, trips_in_a_pair(results));
        }
    }
    canvas.caption(results, &words::warnings(results, &rows));
    let height = canvas.y + MARGIN;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\" aria-label=\"tenure bench\">\n<style>{STYLE}</style>\n\
         <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n{}</svg>\n",
        canvas.out
    )
}

const STYLE: &str = "
text { font-family: 'Inter', 'Segoe UI', 'Helvetica Neue', 'DejaVu Sans', sans-serif; font-size: 12px; fill: #3d444d }
.paper { fill: #ffffff }
.title { font-size: 19px; font-weight: 600; fill: #1f2328 }
.heading { font-weight: 600; fill: #1f2328 }
.dim, .tick { fill: #6e7781 }
.tick, .note { font-size: 11px }
.why { paint-order: stroke; stroke: #ffffff; stroke-width: 5px }
.end { text-anchor: end }
.middle { text-anchor: middle }
.band { fill: #8c959f; fill-opacity: 0.09 }
.grid { stroke: #e3e7eb; stroke-width: 1 }
.base { stroke: #8c959f; stroke-width: 1.2 }
.pair { stroke: #8c959f; stroke-width: 1; stroke-dasharray: 2 3 }
.reach { stroke-width: 1.5; stroke-opacity: 0.35 }
.dot { fill-opacity: 0.45 }
.lock .dot, .lock .median { fill: #2f6fb3 } .lock .reach { stroke: #2f6fb3 }
.raw .dot, .raw .median { fill: #818b98 } .raw .reach { stroke: #818b98 }
.goal { fill: none; stroke: #bc6c1a; stroke-width: 1.6 }
.met { fill: #2d7d46 } .missed { fill: #b3402f; font-weight: 600 }
@media (prefers-color-scheme: dark) {
text { fill: #c4ccd4 }
.paper { fill: #14181d }
.title, .heading { fill: #eef2f6 }
.dim, .tick { fill: #8f99a3 }
.why { stroke: #14181d }
.grid { stroke: #2b323a }
.base, .pair { stroke: #6e7781 }
.lock .dot, .lock .median { fill: #6cb0f5 } .lock .reach { stroke: #6cb0f5 }
.raw .dot, .raw .median { fill: #949ea9 } .raw .reach { stroke: #949ea9 }
.goal { stroke: #e0a458 }
.met { fill: #62c07f } .missed { fill: #f0806e }
}
";

/// Lines that share an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Panel {
    Time,
    Cpu,
    Fairness,
}

impl Panel {
    const ALL: [Panel; 3] = [Panel::Time, Panel::Cpu, Panel::Fairness];

    fn of(unit: Unit) -> Self {
        match unit {
            Unit::Seconds | Unit::PerSecond => Panel::Time,
            Unit::Cores => Panel::Cpu,
            Unit::Factor => Panel::Fairness,
        }
    }

    fn title(self) -> &'static str {
        match self {
            Panel::Time => "Time, in raw round trips of the store",
            Panel::Cpu => "CPU, in % of one core",
            Panel::Fairness => "Fairness: acquisitions of the most served task ÷ the least served",
        }
    }

    /// The decades its axis has in any case.
    fn decades(self) -> (f64, f64) {
        match self {
            Panel::Time | Panel::Fairness => (0.0, 1.0),
            Panel::Cpu => (-1.0, 2.0), // from next to nothing to a whole core
        }
    }

    /// What is drawn of a row: a value for each repetition.
    fn values(self, row: &Row) -> Vec<f64> {
        let scale = if self == Panel::Cpu { 100.0 } else { 1.0 };
        let values = if self == Panel::Time { &row.in_trips } else { &row.values };
        values.iter().flatten().map(|value| value * scale).collect()
    }

    /// Where a goal is drawn.
    fn goal(self, row: &Row, trips_in_a_pair: f64) -> Option<f64> {
        let value = row.summary?.median;
        let drawn = stats::median(self.values(row))?;
        Some(match (row.goal?, row.line.unit, row.line.base) {
            (Goal::AtMost(goal) | Goal::AtLeast(goal), Unit::PerSecond, _) => drawn * value / goal,
            (Goal::AtMost(goal) | Goal::AtLeast(goal), ..) => drawn * goal / value,
            (Goal::RatioAtMost(most), _, Base::Pair) => most * trips_in_a_pair,
            (Goal::RatioAtMost(most), ..) => most,
            (Goal::RatioAtLeast(least), ..) => drawn * row.ratio?.median / least,
        })
    }
}

/// A logarithmic axis over whole decades.
struct Axis {
    low: i32,
    high: i32,
}

impl Axis {
    /// Over these values, and at least over `least` decades.
    fn around(values: impl Iterator<Item = f64>, least: (f64, f64)) -> Self {
        let logs = values.filter(|value| value.is_finite() && *value > 0.0).map(f64::log10);
        let (low, high) = logs.fold(least, |(low, high), log| (low.min(log), high.max(log)));
        Axis { low: low.floor() as i32, high: high.ceil() as i32 }
    }

    /// Beyond the ends is at the ends: a value that does not fit, an infinite one too, must not leave the picture.
    fn x(&self, value: f64) -> f64 {
        let share = (value.max(1e-12).log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        LEFT + PADDING + share.clamp(0.0, 1.0) * (RIGHT - LEFT - 2.0 * PADDING)
    }

    /// The decades, thinned out where there are many.
    fn labelled(&self, decade: i32) -> bool {
        self.high - self.low <= 7 || decade % 2 == 0
    }
}

struct Canvas {
    out: String,
    y: f64,
}

impl Canvas {
    fn title(&mut self, results: &Results) {
        let [store, ..] = words::circumstances(results);
        self.text(MARGIN, self.y, "title", "What a lock costs");
        self.y += 20.0;
        self.text(MARGIN, self.y, "dim", &format!("tenure bench on {}", shortened(&store, 120)));
        self.y += 12.0;
    }

    fn panel(&mut self, panel: Panel, rows: &[&Row], trips_in_a_pair: f64) {
        self.y += 26.0;
        self.text(MARGIN, self.y, "heading", panel.title());
        self.text(RIGHT + 102.0, self.y, "tick end", "median");
        if panel == Panel::Time {
            self.text(RIGHT + 112.0, self.y, "tick", "ratio");
        }
        if rows.iter().any(|row| row.goal.is_some() && row.skipped.is_none()) {
            self.text(WIDTH - MARGIN, self.y, "tick end", "goal");
        }
        self.y += 10.0;
        let goals = rows.iter().filter_map(|row| panel.goal(row, trips_in_a_pair));
        let axis = Axis::around(rows.iter().flat_map(|row| panel.values(row)).chain(goals), panel.decades());
        let top = self.y;
        // The grid goes beneath the dots, but its height is known only after them.
        let before = std::mem::take(&mut self.out);
        let mut measure: Option<Measure> = None;
        for row in rows {
            let begins = measure.replace(row.line.measure) != Some(row.line.measure);
            if panel == Panel::Time && begins {
                self.heading(row);
            }
            if panel != Panel::Time || row.skipped.is_none() {
                self.row(panel, &axis, row, trips_in_a_pair);
            }
        }
        let strips = std::mem::replace(&mut self.out, before);
        self.grid(panel, &axis, top, trips_in_a_pair);
        self.out += &strips;
    }

    /// The name of a measurement, and why it was not made.
    fn heading(&mut self, row: &Row) {
        self.y += HEADING;
        self.text(MARGIN, self.y - 7.0, "", row.line.measure.title());
        if let Some(why) = &row.skipped {
            self.text(LEFT + 8.0, self.y - 7.0, "dim note why", why);
        }
    }

    fn row(&mut self, panel: Panel, axis: &Axis, row: &Row, trips_in_a_pair: f64) {
        let (top, middle) = (self.y, self.y + ROW / 2.0);
        self.y += ROW;
        let width = RIGHT - LEFT;
        let height = ROW - 3.0;
        let _ = writeln!(
            self.out,
            "<rect class=\"band\" x=\"{LEFT}\" y=\"{:.1}\" width=\"{width}\" height=\"{height}\"/>",
            top + 1.5
        );
        let label = match (panel, row.line.unit) {
            (Panel::Time, Unit::PerSecond) => format!("{}, time for each", row.line.label),
            (Panel::Time, _) => row.line.label.to_owned(),
            _ => format!("{}: {}", row.line.measure.title(), short(row)),
        };
        self.text(LEFT - 12.0, middle + 4.0, "dim end", &label);
        if let Some(why) = &row.skipped {
            self.text(LEFT + 8.0, middle + 4.0, "dim note why", why);
            return;
        }
        self.strip(axis, middle, row, &panel.values(row));
        if let Some(goal) = panel.goal(row, trips_in_a_pair) {
            // An open bracket towards where it is good, which on these scales is always to the left.
            let (x, above, below) = (axis.x(goal), middle - 9.0, middle + 9.0);
            let _ = writeln!(
                self.out,
                "<path class=\"goal\" d=\"M{:.1} {above:.1}H{x:.1}V{below:.1}H{:.1}\"/>",
                x - 4.0,
                x - 4.0
            );
        }
        self.figures(middle + 4.0, row);
    }

    /// The repetitions of a line: a dot each, the reach of them, and the median.
    fn strip(&mut self, axis: &Axis, middle: f64, row: &Row, values: &[f64]) {
        let Some(summary) = stats::Summary::of(values.iter().copied()) else {
            self.text(LEFT + 8.0, middle + 4.0, "dim note", "nothing to measure");
            return;
        };
        let kind = if row.line.key.contains("raw") { "raw" } else { "lock" };
        let key = row.line.key;
        let (low, high, median) = (axis.x(summary.min), axis.x(summary.max), axis.x(summary.median));
        let _ = writeln!(self.out, "<g class=\"{kind}\" id=\"{key}\">");
        let _ = writeln!(self.out, "<path class=\"reach\" d=\"M{low:.1} {middle:.1}H{high:.1}\"/>");
        for (number, value) in values.iter().enumerate() {
            // A fixed scatter, so that equal values do not hide each other and the same run gives the same picture.
            let scatter = [0.0, -4.0, 4.0, -2.0, 2.0, -6.0, 6.0][number % 7];
            let (x, y) = (axis.x(*value), middle + scatter);
            let _ = writeln!(self.out, "<circle class=\"dot\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\"/>");
        }
        let (x, y) = (median - 1.25, middle - 8.0);
        let _ = writeln!(
            self.out,
            "<rect class=\"median\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"2.5\" height=\"16\" rx=\"1\"/>\n</g>"
        );
    }

    /// The median and its ratio, in figures, and the goal where there is one.
    fn figures(&mut self, y: f64, row: &Row) {
        let Some(summary) = row.summary else { return };
        let median = words::quantity(summary.median, row.line.unit);
        self.text(RIGHT + 102.0, y, "end", &median);
        if let Some(ratio) = row.ratio {
            self.text(RIGHT + 112.0, y, "dim", &words::ratio(ratio.median, row.line));
        }
        if let Some((goal, met)) = row.goal.zip(row.is_met()) {
            let class = if met { "met end note" } else { "missed end note" };
            self.text(WIDTH - MARGIN, y, class, &words::goal(goal, row.line));
        }
    }

    fn grid(&mut self, panel: Panel, axis: &Axis, top: f64, trips_in_a_pair: f64) {
        let bottom = self.y;
        let mut rule = |class: &str, x: f64| {
            let _ = writeln!(self.out, "<path class=\"{class}\" d=\"M{x:.1} {top:.1}V{bottom:.1}\"/>");
        };
        (axis.low..=axis.high).for_each(|decade| rule("grid", axis.x(10_f64.powi(decade))));
        if panel == Panel::Time {
            rule("base", axis.x(1.0));
            rule("pair", axis.x(trips_in_a_pair));
        }
        self.y += 15.0;
        for decade in (axis.low..=axis.high).filter(|decade| axis.labelled(*decade)) {
            self.text(axis.x(10_f64.powi(decade)), self.y, "tick middle", &power(decade));
        }
        self.y += 2.0;
    }

    fn caption(&mut self, results: &Results, warnings: &[String]) {
        let [_, machine, run] = words::circumstances(results);
        self.y += 22.0;
        let legend = "A dot is one repetition, a bar the median. Solid rule: one raw round trip; dotted: the raw pair that an \
                      acquire and a release cannot do without. Bracket: the goal.";
        let date = format!("{machine}. {}.", results.machine.date);
        let warnings = warnings.iter().map(|text| (text.as_str(), "missed note"));
        let lines = [(legend, "dim note"), (&*run, "dim note"), (&*date, "dim note")].into_iter().chain(warnings);
        for (text, class) in lines {
            self.y += 16.0;
            self.text(MARGIN, self.y, class, text);
        }
    }

    fn text(&mut self, x: f64, y: f64, class: &str, text: &str) {
        let _ = writeln!(self.out, "<text x=\"{x:.1}\" y=\"{y:.1}\" class=\"{class}\">{}</text>", escaped(text));
    }
}

/// A raw pair in raw round trips: two, unless the store does something clever.
fn trips_in_a_pair(results: &Results) -> f64 {
    let rows = results.rows();
    let pair = rows.iter().find(|row| row.line.key == "raw_pair").and_then(|row| row.ratio);
    pair.map_or(2.0, |ratio| ratio.median)
}

/// A label for a row that stands without its heading.
fn short(row: &Row) -> &'static str {
    if row.line.unit == Unit::Factor { "most ÷ least" } else { row.line.label }
}

/// At most so many characters, cut in the middle: both ends of a path say something.
fn shortened(text: &str, longest: usize) -> String {
    let letters: Vec<char> = text.chars().collect();
    if letters.len() <= longest {
        return text.to_owned();
    }
    let half = (longest - 1) / 2;
    letters[..half].iter().chain(&['…']).chain(&letters[letters.len() - half..]).collect()
}

fn power(decade: i32) -> String {
    match decade {
        0..=3 => words::digits(10_f64.powi(decade)).trim_end_matches(".00").trim_end_matches(".0").to_owned(),
        4..=5 => format!("{}k", 10_u32.pow(decade as u32 - 3)),
        6..=8 => format!("{}M", 10_u32.pow(decade as u32 - 6)),
        9.. => format!("1e{decade}"),
        _ => format!("{:.*}", decade.unsigned_abs() as usize, 10_f64.powi(decade)),
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::super::lines::LINES;
    use super::super::results::example;
    use super::*;

    /// Walks through all tags and gives the ids; panics where one does not close what was opened.
    fn walk(svg: &str) -> Vec<String> {
        let (mut open, mut ids) = (Vec::new(), Vec::new());
        let mut rest = svg;
        while let Some(start) = rest.find('<') {
            assert!(!rest[..start].contains('>'), "a stray > before {:.40}", &rest[start..]);
            let end = start + rest[start..].find('>').expect("a tag ends");
            let tag = &rest[start + 1..end];
            rest = &rest[end + 1..];
            if let Some(name) = tag.strip_prefix('/') {
                assert_eq!(open.pop().as_deref(), Some(name), "</{name}> closes something else");
                continue;
            }
            assert!(tag.matches('"').count().is_multiple_of(2), "<{tag}> has an open quote");
            if let Some((_, id)) = tag.split_once("id=\"") {
                ids.push(id.split('"').next().unwrap().to_owned());
            }
            if !tag.ends_with('/') {
                open.push(tag.split_whitespace().next().unwrap().to_owned());
            }
        }
        assert!(open.is_empty(), "never closed: {open:?}");
        ids
    }

    #[tokio::test]
    async fn it_is_well_formed_and_has_every_line() {
        let svg = svg(&example().await);
        let keys: Vec<_> = LINES.iter().map(|line| line.key).collect();
        let mut ids = walk(&svg);
        let mut expected: Vec<String> = keys.iter().map(|key| (*key).to_owned()).collect();
        ids.sort();
        expected.sort();
        assert_eq!(ids, expected);
        assert_eq!(svg.matches("<circle").count(), 3 * LINES.len(), "a dot for each repetition");
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[tokio::test]
    async fn what_was_skipped_or_infinite_stays_inside() {
        let mut results = example().await;
        results.skip(Measure::Waiting, "not <across> processes");
        results.begin_repetition();
        let never = super::super::results::Reading { key: "fair_unfairness", value: Some(f64::INFINITY), samples: 1 };
        results.add(vec![never]);
        let svg = svg(&results);
        walk(&svg);
        assert!(svg.contains("not &lt;across&gt; processes"));
        assert!(!svg.contains("NaN") && !svg.contains("\"inf"));
    }

    #[test]
    fn a_decade_is_as_wide_as_the_next() {
        let axis = Axis::around([0.2, 900.0].into_iter(), (0.0, 1.0));
        assert_eq!((axis.low, axis.high), (-1, 3));
        assert_eq!(axis.x(0.1), LEFT + PADDING);
        assert_eq!(axis.x(1000.0), RIGHT - PADDING);
        assert!((axis.x(10.0) - (LEFT + RIGHT) / 2.0).abs() < 1e-9);
        assert_eq!(axis.x(f64::INFINITY), RIGHT - PADDING);
    }

    #[test]
    fn a_long_path_keeps_both_ends() {
        assert_eq!(shortened("abc", 3), "abc");
        assert_eq!(shortened("abcdefghij", 5), "ab…ij");
    }

    #[test]
    fn powers() {
        let labels = [-2, 0, 1, 3, 4, 6].map(power);
        assert_eq!(labels, ["0.01", "1", "10", "1,000", "10k", "1M"]);
    }
}
