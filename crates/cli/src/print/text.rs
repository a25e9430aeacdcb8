//! Holders, modes, times and other people's text as words for people.

use std::borrow::Cow;

use tenure::{Holder, Mode, Origin};

/// Who a holder is: its note, if it has one, and where it runs.
pub(crate) fn holder(holder: &Holder) -> String {
    match clean(holder.note.as_str()) {
        note if note.is_empty() => origin(&holder.origin),
        note => format!("{note} ({})", origin(&holder.origin)),
    }
}

/// Whether a process is one of this host.
pub(crate) fn is_here(origin: &Origin) -> bool {
    *origin.host == *rustix::system::uname().nodename().to_string_lossy()
}

/// Where somebody is.
pub(crate) fn origin(origin: &Origin) -> String {
    clean(&origin.to_string()).into_owned()
}

/// A mode in a few letters, for a table.
pub(crate) fn mode(mode: Mode) -> String {
    match mode {
        Mode::Exclusive | Mode::Shared => mode.to_string(),
        Mode::Permits { take, of } => format!("{take} of {of}"),
    }
}

/// Somebody else's text, made safe to show: what would steer the terminal or turn the line around is spelled out.
pub(crate) fn clean(text: &str) -> Cow<'_, str> {
    let steers = |c: char| {
        c.is_control() && c != '\n'
            || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    if !text.contains(steers) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().map(|c| if steers(c) { c.escape_unicode().to_string() } else { c.to_string() }).collect())
}

/// How many columns a character takes. Good enough to keep tables straight; not the whole of Unicode.
pub(crate) fn width(c: char) -> usize {
    match c {
        '\u{300}'..='\u{36f}' | '\u{200b}'..='\u{200d}' | '\u{20d0}'..='\u{20ff}' | '\u{fe00}'..='\u{fe0f}' => 0,
        '\u{1100}'..='\u{115f}'
        | '\u{2e80}'..='\u{a4cf}'
        | '\u{ac00}'..='\u{d7a3}'
        | '\u{f900}'..='\u{faff}'
        | '\u{fe30}'..='\u{fe6f}'
        | '\u{ff00}'..='\u{ff60}'
        | '\u{ffe0}'..='\u{ffe6}'
        | '\u{1f300}'..='\u{1f64f}'
        | '\u{1f680}'..='\u{1faff}'
        | '\u{20000}'..='\u{3fffd}' => 2,
        _ => 1,
    }
}

/// The time of day of a moment in milliseconds since 1970, in UTC: we know no other zone.
pub(crate) fn clock(wall_ms: u64) -> String {
    let seconds = wall_ms / 1000 % 86_400;
    format!("{:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_steers_our_terminal() {
        assert_eq!(clean("plain é 漢"), "plain é 漢");
        assert_eq!(clean("a\u{1b}[2Jb"), "a\\u{1b}[2Jb");
        assert_eq!(clean("gpj.\u{202e}exe"), "gpj.\\u{202e}exe");
    }

    #[test]
    fn the_time_of_day() {
        assert_eq!(clock(0), "00:00:00Z");
        assert_eq!(clock(1_731_664_000_123), "09:46:40Z");
    }
}
