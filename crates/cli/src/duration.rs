//! Durations as people write and read them: `30s`, `5m`, `1h30m`, `250ms`; a plain number is seconds.

use std::time::Duration;

/// Reads a duration.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let what = if text.starts_with('-') { "a duration cannot be negative" } else { "that is no duration" };
    let hint = "Write something like 30s, 5m, 1h30m, 250ms, or a plain number of seconds";
    tenure::parse_duration(text).ok_or_else(|| format!("{what}. {hint}"))
}

/// Shows a duration in its two largest units: `3m12s`, `2d4h`; below ten seconds with a tenth.
pub(crate) fn show(duration: Duration) -> String {
    let seconds = duration.as_secs();
    match seconds {
        0 if duration < Duration::from_millis(100) => format!("{}ms", duration.as_millis()),
        0..10 => format!("{}.{}s", seconds, duration.subsec_millis() / 100),
        10..60 => format!("{seconds}s"),
        60..3_600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        3_600..86_400 => format!("{}h{:02}m", seconds / 3_600, seconds / 60 % 60),
        _ => format!("{}d{:02}h", seconds / 86_400, seconds / 3_600 % 24),
    }
}

/// The same in whole seconds, for a line that is refreshed once a second.
pub(crate) fn show_seconds(duration: Duration) -> String {
    if duration < Duration::from_secs(10) { format!("{}s", duration.as_secs()) } else { show(duration) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_write() {
        for (text, milliseconds) in [
            ("30s", 30_000),
            ("5m", 300_000),
            ("1h30m", 5_400_000),
            ("250ms", 250),
            ("7", 7_000),
            ("0", 0),
            ("0.1", 100),
            ("1.5s", 1_500),
            ("2d", 172_800_000),
            ("1m500ms", 60_500),
            ("1d2h3m4s5ms", 93_784_005),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(milliseconds)), "{text}");
        }
    }

    #[test]
    fn what_is_no_duration() {
        for text in [
            "", " ", "s", "-1", "-1s", "+1", "1 s", "1x", "1e3", "inf", "NaN", "1s1s", "30s1h", "1h30", ".", ".5s", "1..2s",
            "5µs", "9e99d",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse(&"9".repeat(400)).is_err());
    }

    #[test]
    fn what_people_read() {
        let show_ms = |ms| show(Duration::from_millis(ms));
        assert_eq!(show_ms(7), "7ms");
        assert_eq!(show_ms(100), "0.1s");
        assert_eq!(show_ms(1_250), "1.2s");
        assert_eq!(show_ms(59_999), "59s");
        assert_eq!(show_ms(192_000), "3m12s");
        assert_eq!(show_ms(7_260_000), "2h01m");
        assert_eq!(show_ms(180_000_000), "2d02h");
    }
}
