//! Durations as people write them, on a command line and in a URL alike.

use std::time::Duration;

const UNITS: [(&str, f64); 5] = [("d", 86_400.0), ("h", 3_600.0), ("m", 60.0), ("s", 1.0), ("ms", 0.001)];

/// Reads a duration: `30s`, `5m`, `1h30m`, `250ms`; a plain number is seconds. `None` if it is none.
///
/// ```
/// use std::time::Duration;
/// assert_eq!(tenure_core::parse_duration("1m30s"), Some(Duration::from_secs(90)));
/// assert_eq!(tenure_core::parse_duration("30s1m"), None); // from large to small: more likely a slip than a wish
/// ```
pub fn parse_duration(text: &str) -> Option<Duration> {
    if let Some(plain) = number(text) {
        return seconds(plain, 1.0);
    }
    let (mut rest, mut total, mut largest) = (text, None, f64::INFINITY);
    while !rest.is_empty() {
        let (amount, tail) = rest.split_at(rest.find(|c: char| c.is_ascii_alphabetic())?);
        let (unit, tail) = tail.split_at(tail.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(tail.len()));
        let (_, size) = UNITS.iter().find(|(name, size)| *name == unit && *size < largest)?; // each unit once
        total = Some(total.unwrap_or(Duration::ZERO).checked_add(seconds(number(amount)?, *size)?)?);
        (rest, largest) = (tail, *size);
    }
    total
}

/// Digits with at most one dot: no sign, no exponent, no `inf`.
fn number(text: &str) -> Option<f64> {
    let plain = text.starts_with(|c: char| c.is_ascii_digit()) && text.chars().all(|c| c.is_ascii_digit() || c == '.');
    text.parse().ok().filter(|_| plain)
}

fn seconds(amount: f64, unit: f64) -> Option<Duration> {
    // Rounded, so that 0.1s is 100 ms and not a hair less, which would be too short for a ttl.
    Duration::try_from_secs_f64((amount * unit * 1e6).round() / 1e6).ok()
}
