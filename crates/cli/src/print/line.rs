//! One line on stderr that is written over and over, and gone when it is no longer true.

use std::io;
use std::os::fd::AsFd;

use super::text;

/// The live line. Dropping it clears it.
#[derive(Debug, Default)]
pub(crate) struct LiveLine {
    shown: bool,
}

impl LiveLine {
    /// Shows this text instead of the last one, cut to the terminal's width.
    pub(crate) fn show(&mut self, text: &str, paint: impl FnOnce(&str) -> String) {
        // One column is left free: a full line would wrap on some terminals.
        let text = cut(&text::clean(text), columns(io::stderr()).saturating_sub(1));
        say(format!("\r{}{CLEAR_TO_END}", paint(&text)));
        self.shown = true;
    }

    /// Takes it off the screen.
    pub(crate) fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            say(format!("\r{CLEAR_TO_END}"));
        }
    }
}

impl Drop for LiveLine {
    fn drop(&mut self) {
        self.clear();
    }
}

fn say(text: String) {
    super::stderr().say(text, super::dropped_text);
}

/// The terminal's width, or what one usually is.
pub(super) fn columns(stream: impl AsFd) -> usize {
    let size = rustix::termios::tcgetwinsize(stream);
    size.map(|size| usize::from(size.ws_col)).ok().filter(|columns| *columns > 0).unwrap_or(80)
}

/// Cuts text to so many columns, with an ellipsis where something is missing.
pub(super) fn cut(text: &str, room: usize) -> String {
    if text.chars().map(text::width).sum::<usize>() <= room {
        return text.to_owned();
    }
    let mut used = 1;
    let mut kept: String = text
        .chars()
        .take_while(|c| {
            used += text::width(*c);
            used <= room
        })
        .collect();
    kept.push('…');
    kept
}

const CLEAR_TO_END: &str = "\x1b[K";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_by_columns() {
        assert_eq!(cut("abc", 3), "abc");
        assert_eq!(cut("abcd", 3), "ab…");
        assert_eq!(cut("漢字漢", 5), "漢字…");
        assert_eq!(cut("漢字漢", 4), "漢…");
    }
}
