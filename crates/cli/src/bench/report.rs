//! What was measured, for readers: an aligned table with units.

use std::fmt::Write;

use anstyle::{AnsiColor, Style};

use super::results::{Results, Row};
use super::words;

/// The whole report.
pub(super) fn table(results: &Results, colour: bool) -> String {
    let style = |style: Style| if colour { style } else { Style::new() };
    let (bold, dim) = (style(Style::new().bold()), style(Style::new().dimmed()));
    let (good, bad) = (style(AnsiColor::Green.on_default()), style(AnsiColor::Red.on_default().bold()));
    let rows = results.rows();
    let mut out = String::new();

    let [store, machine, run] = words::circumstances(results);
    let _ = writeln!(out, "{bold}tenure bench{bold:#}  {store}\n{dim}{machine}\n{run}{dim:#}");
    for warning in words::warnings(results, &rows) {
        let _ = writeln!(out, "{bad}warning:{bad:#} {warning}");
    }

    let cells: Vec<[String; 5]> = rows.iter().map(cells).collect();
    let heads = ["", "median", "min – max", "ratio", "goal"].map(str::to_owned);
    let width = |column: usize| cells.iter().chain([&heads]).map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: [usize; 5] = std::array::from_fn(width);
    let _ = writeln!(out, "\n{dim}{}{dim:#}", aligned(&heads, &widths));

    let mut measure = None;
    for (row, cells) in rows.iter().zip(&cells) {
        if measure.replace(row.line.measure) != Some(row.line.measure) {
            let _ = write!(out, "{bold}{}{bold:#}", row.line.measure.title());
            match &row.skipped {
                Some(why) => writeln!(out, "  {dim}{why}{dim:#}"),
                None => writeln!(out),
            }
            .expect("a string takes everything");
        }
        if row.skipped.is_some() {
            continue;
        }
        let _ = write!(out, "{}", aligned(cells, &widths));
        let _ = match row.is_met() {
            Some(true) => writeln!(out, "  {good}met{good:#}"),
            Some(false) => writeln!(out, "  {bad}missed{bad:#}"),
            None => writeln!(out),
        };
    }
    out
}

/// A row's label, median, spread, ratio and goal.
fn cells(row: &Row) -> [String; 5] {
    let unit = row.line.unit;
    let nothing = || if row.skipped.is_some() { String::new() } else { "none".to_owned() };
    [
        row.line.label.to_owned(),
        row.summary.map_or_else(nothing, |summary| words::quantity(summary.median, unit)),
        row.summary.map_or_else(String::new, |summary| words::span(&summary, unit)),
        row.ratio.map_or_else(String::new, |ratio| words::ratio(ratio.median, row.line)),
        row.goal.map_or_else(String::new, |goal| words::goal(goal, row.line)),
    ]
}

/// Labels to the left, figures to the right: so are digits under digits.
fn aligned(cells: &[String; 5], widths: &[usize; 5]) -> String {
    let [label, median, spread, ratio, goal] = cells;
    let line = format!(
        "  {label:<0$}  {median:>1$}  {spread:>2$}  {ratio:>3$}  {goal:>4$}",
        widths[0], widths[1], widths[2], widths[3], widths[4]
    );
    line.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::lines::{LINES, Measure};
    use super::super::results::example;
    use super::*;

    #[tokio::test]
    async fn every_line_is_there_once_and_plain_text_is_plain() {
        let text = table(&example().await, false);
        assert!(!text.contains('\u{1b}'), "no escape codes for a pipe");
        for measure in Measure::ALL {
            assert_eq!(text.matches(measure.title()).count(), 1, "{text}");
        }
        let indented = text.lines().filter(|line| line.starts_with("  ")).count();
        assert_eq!(indented, LINES.len() + 1, "{text}");
    }

    #[tokio::test]
    async fn a_skipped_measure_says_why() {
        let mut results = example().await;
        results.skip(Measure::Recovery, "not across processes");
        let text = table(&results, false);
        assert!(text.contains("holder killed with kill -9  not across processes"), "{text}");
    }

    #[tokio::test]
    async fn a_missed_goal_is_named() {
        let text = table(&example().await, false);
        assert!(text.contains("≤ 3.00 µs  missed"), "{text}");
    }
}
