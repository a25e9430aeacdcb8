//! Numbers as people read them: three digits that mean something, and a unit that fits.

use crate::lines::Unit;
use crate::stats::Summary;

/// The median, and the spread where there is one.
pub(crate) fn spread(summary: &Summary, unit: Unit) -> String {
    let [(median, own), (low, low_unit), (high, high_unit)] =
        [summary.median, summary.min, summary.max].map(|value| scaled(value, unit));
    match () {
        () if summary.min == summary.max => format!("{median}{own}"),
        () if own == low_unit && own == high_unit => format!("{median}{own} ({low} – {high})"),
        () => format!("{median}{own} ({low}{low_unit} – {high}{high_unit})"),
    }
}

/// A multiple.
pub(crate) fn times(ratio: f64) -> String {
    format!("{} ×", digits(ratio))
}

/// Three significant digits, and thousands apart.
fn digits(value: f64) -> String {
    match value {
        _ if value.is_infinite() => "∞".to_owned(),
        _ if value >= 99.95 => thousands(value.round() as u64),
        _ if value >= 9.995 => format!("{value:.1}"),
        _ if value >= 0.0995 => format!("{value:.2}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.3}"),
    }
}

fn scaled(value: f64, unit: Unit) -> (String, &'static str) {
    match unit {
        Unit::Seconds => {
            let steps = [(1.0, " s"), (1e-3, " ms")];
            // Just below a step counts as the step: 999.96 µs is shown as 1.00 ms.
            let (step, suffix) = steps.into_iter().find(|(step, _)| value >= step * 0.9995).unwrap_or((1e-6, " µs"));
            (digits(value / step), suffix)
        }
        Unit::PerSecond => (digits(value), " /s"),
        Unit::Factor => (digits(value), " ×"),
        Unit::Count if value.fract() == 0.0 && value < 1e6 => (format!("{value}"), ""),
        Unit::Count => (digits(value), ""),
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

    fn said(values: &[f64], unit: Unit) -> String {
        spread(&Summary::of(values.iter().copied()).unwrap(), unit)
    }

    #[test]
    fn three_digits_and_a_fitting_unit() {
        assert_eq!(said(&[17.96e-6], Unit::Seconds), "18.0 µs");
        assert_eq!(said(&[999.96e-6], Unit::Seconds), "1.00 ms");
        assert_eq!(said(&[12_345.6], Unit::PerSecond), "12,346 /s");
        assert_eq!(said(&[0.0], Unit::Count), "0");
        assert_eq!(said(&[2.01], Unit::Count), "2.01");
        assert_eq!(said(&[f64::INFINITY], Unit::Factor), "∞ ×");
    }

    #[test]
    fn a_spread_says_its_unit_where_it_changes() {
        assert_eq!(said(&[1e-3, 2e-3, 3e-3], Unit::Seconds), "2.00 ms (1.00 – 3.00)");
        assert_eq!(said(&[500e-6, 2e-3, 3e-3], Unit::Seconds), "2.00 ms (500 µs – 3.00 ms)");
    }
}
