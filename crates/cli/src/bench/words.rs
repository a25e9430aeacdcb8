//! Numbers as people read them: three digits that mean something, and a unit that fits.

use super::lines::{Goal, Line, Unit};
use super::results::{Results, Row};
use super::stats::Summary;

/// A value with its unit.
pub(super) fn quantity(value: f64, unit: Unit) -> String {
    let (number, suffix) = scaled(value, unit);
    format!("{number}{suffix}")
}

/// From the smallest to the largest, the unit said once where it is the same.
pub(super) fn span(summary: &Summary, unit: Unit) -> String {
    let ((low, low_unit), (high, high_unit)) = (scaled(summary.min, unit), scaled(summary.max, unit));
    let low_unit = if low_unit == high_unit { "" } else { low_unit };
    format!("{low}{low_unit} – {high}{high_unit}")
}

/// A ratio with what it is a ratio to.
pub(super) fn ratio(ratio: f64, line: &Line) -> String {
    format!("{} {}", digits(ratio), line.base.words())
}

/// A goal, to be read beside the figure it is about.
pub(super) fn goal(goal: Goal, line: &Line) -> String {
    match goal {
        Goal::AtMost(most) => format!("≤ {}", quantity(most, line.unit)),
        Goal::AtLeast(least) => format!("≥ {}", quantity(least, line.unit)),
        Goal::RatioAtMost(most) => format!("≤ {most} ×"),
        Goal::RatioAtLeast(least) => format!("≥ {least}"),
    }
}

/// The machine, the store and the versions, in one line each.
pub(super) fn circumstances(results: &Results) -> [String; 3] {
    let machine = &results.machine;
    let processor = machine.processor.as_ref().map_or_else(String::new, |name| format!(" ({name})"));
    let load = machine.load_before.map_or_else(String::new, |load| format!(", load {load:.1}"));
    let plural = if machine.cores == 1 { "" } else { "s" };
    let machine = format!("{} core{plural}{processor}, {}{load}", machine.cores, machine.kernel);
    let temporary = if results.settings.temporary_store { " (temporary)" } else { "" };
    let version = results.store_version().map_or_else(String::new, |version| format!(", version {version}"));
    let store = format!("{}{temporary}{version}", results.describe);
    let build = if cfg!(debug_assertions) { "debug build" } else { "release build" };
    let settings = &results.settings;
    let run = format!(
        "tenure {}, {build}, runtime with {} thread{}, {} repetition{} in {:.0} s{}",
        env!("CARGO_PKG_VERSION"),
        settings.threads,
        if settings.threads == 1 { "" } else { "s" },
        settings.repetitions,
        if settings.repetitions == 1 { "" } else { "s" },
        results.took.as_secs_f64(),
        if settings.quick { ", quick" } else { "" },
    );
    [store, machine, run]
}

/// What a reader must know before believing anything.
pub(super) fn warnings(results: &Results, rows: &[Row]) -> Vec<String> {
    let mut warnings = Vec::new();
    if cfg!(debug_assertions) {
        warnings.push("This is a debug build: the figures say nothing about a release build.".to_owned());
    }
    if results.machine.was_busy() {
        warnings.push("The machine was busy before this began: trust the ratios more than the times.".to_owned());
    }
    let torn = |row: &&Row| {
        ["raw_trip", "raw_write"].contains(&row.line.key) && row.summary.is_some_and(|it| it.max > 2.0 * it.min)
    };
    if rows.iter().any(|row| torn(&row)) {
        warnings.push("What is divided by itself varied more than twofold between repetitions: measure again.".to_owned());
    }
    warnings
}

/// Three significant digits, and thousands apart.
pub(super) fn digits(value: f64) -> String {
    match value {
        _ if value.is_nan() => "–".to_owned(),
        _ if value.is_infinite() => "∞".to_owned(),
        _ if value >= 99.95 => thousands(value.round() as u64),
        _ if value >= 9.995 => format!("{value:.1}"),
        _ if value >= 0.0995 || value == 0.0 => format!("{value:.2}"),
        _ if value >= 0.00995 => format!("{value:.3}"),
        _ => format!("{value:.4}"),
    }
}

fn scaled(value: f64, unit: Unit) -> (String, &'static str) {
    match unit {
        Unit::Seconds => {
            let steps = [(1.0, " s"), (1e-3, " ms"), (1e-6, " µs")];
            // Just below a step counts as the step: 999.96 ns is shown as 1.00 µs, not as 1,000 ns.
            let (step, suffix) = steps.into_iter().find(|(step, _)| value >= step * 0.9995).unwrap_or((1e-9, " ns"));
            (digits(value / step), suffix)
        }
        Unit::PerSecond => (digits(value), " /s"),
        Unit::Factor => (digits(value), " ×"),
        Unit::Cores => (digits(value * 100.0), " %"),
    }
}

fn thousands(value: u64) -> String {
    let plain = value.to_string();
    let mut apart = String::new();
    for (place, digit) in plain.chars().enumerate() {
        if place > 0 && (plain.len() - place).is_multiple_of(3) {
            apart.push(',');
        }
        apart.push(digit);
    }
    apart
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_and_a_fitting_unit() {
        let seconds = |value| quantity(value, Unit::Seconds);
        assert_eq!(seconds(31.4e-9), "31.4 ns");
        assert_eq!(seconds(999.96e-9), "1.00 µs");
        assert_eq!(seconds(17.96e-6), "18.0 µs");
        assert_eq!(seconds(0.002), "2.00 ms");
        assert_eq!(seconds(3.0), "3.00 s");
        assert_eq!(seconds(0.0), "0.00 ns");
        assert_eq!(quantity(1_234_567.8, Unit::PerSecond), "1,234,568 /s");
        assert_eq!(quantity(0.0123, Unit::Cores), "1.23 %");
        assert_eq!(quantity(f64::INFINITY, Unit::Factor), "∞ ×");
        assert_eq!(digits(0.0512), "0.051");
    }

    #[test]
    fn a_span_says_its_unit_once() {
        let summary = Summary::of([1e-6, 2e-6]).unwrap();
        assert_eq!(span(&summary, Unit::Seconds), "1.00 – 2.00 µs");
        let summary = Summary::of([500e-9, 2e-6]).unwrap();
        assert_eq!(span(&summary, Unit::Seconds), "500 ns – 2.00 µs");
    }
}
