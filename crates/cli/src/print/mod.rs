//! Everything that is written: to a terminal, a pipe, or a log.
//!
//! Results go to stdout and everything else to stderr. A terminal gets tables and colours (unless `NO_COLOR` is set or
//! `TERM` is `dumb`), a pipe gets plain text, and `--json` gets one object a line. A pipe that is closed early is not our
//! failure: whoever read it has what it wanted.
//!
//! Writing to stderr never waits for its reader (`outlet`); [`flush`] before the process ends.

mod json;
mod line;
mod outlet;
mod table;
mod text;

use std::fmt::Display;
use std::fs::File;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::Duration;

use anstyle::{AnsiColor, Style};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use serde::Serialize;

use crate::failure::Failure;

use self::outlet::Outlet;

pub(crate) use self::json::{Origin as OriginJson, Sequencer as SequencerJson, View as ViewJson, wall_ms};
pub(crate) use self::line::LiveLine;
pub(crate) use self::table::Table;
pub(crate) use self::text::{clean, clock, holder, is_here, mode, origin};

pub(crate) const BOLD: Style = Style::new().bold();
pub(crate) const DIM: Style = Style::new().dimmed();
pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const WARNING: Style = AnsiColor::Yellow.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default().bold();

/// Where and how to write.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Printer {
    /// Whether `--json` was asked for.
    pub(crate) json: bool,
    /// Whether stdout is a terminal.
    pub(crate) terminal: bool,
    /// Whether stderr is one.
    pub(crate) err_terminal: bool,
    colour: bool,
    err_colour: bool,
}

impl Printer {
    pub(crate) fn new(json: bool) -> Self {
        let (terminal, err_terminal) = (io::stdout().is_terminal(), io::stderr().is_terminal());
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let wanted = !set("NO_COLOR") && std::env::var_os("TERM").is_some_and(|term| term != "dumb");
        Printer { json, terminal, err_terminal, colour: wanted && terminal, err_colour: wanted && err_terminal }
    }

    /// A line of results.
    pub(crate) fn line(&self, text: impl Display) -> io::Result<()> {
        writeln!(io::stdout().lock(), "{text}")
    }

    /// A result as JSON.
    pub(crate) fn object(&self, value: &impl Serialize) -> io::Result<()> {
        self.line(serde_json::to_string(value)?)
    }

    /// Bytes as they are.
    pub(crate) fn raw(&self, bytes: &[u8]) -> io::Result<()> {
        io::stdout().lock().write_all(bytes)
    }

    /// Something to know, on stderr.
    pub(crate) fn note(&self, text: impl Display) {
        self.say(format!("{} {text}\n", self.on_stderr(BOLD, "tenure:")));
    }

    /// What could hurt, on stderr.
    pub(crate) fn warning(&self, text: impl Display) {
        self.remark("warning", text);
    }

    /// Something to know on stderr: with `--json` an event, so that all of it is JSON.
    pub(crate) fn remark(&self, event: &'static str, text: impl Display) {
        #[derive(Serialize)]
        struct Line {
            event: &'static str,
            message: String,
        }
        if self.json {
            self.event(&Line { event, message: text.to_string() });
        } else {
            self.note(clean(&text.to_string()));
        }
    }

    /// Something that happened, as JSON: on stderr with `--json`, and where [`events_to`] says.
    pub(crate) fn event(&self, value: &impl Serialize) {
        let Ok(text) = serde_json::to_string(value) else { return };
        if let Some(events) = EVENTS.get() {
            events.say(format!("{text}\n"), dropped_json);
        }
        if self.json {
            self.say(format!("{text}\n"));
        }
    }

    /// Text for stderr, as it is.
    fn say(&self, text: String) {
        stderr().say(text, if self.json { dropped_json } else { dropped_text });
    }

    /// Whether anything reads events.
    pub(crate) fn has_events(&self) -> bool {
        self.json || EVENTS.get().is_some()
    }

    /// Asks a question on the terminal, and gives the answer.
    pub(crate) fn question(&self, text: impl Display) -> io::Result<String> {
        flush(PATIENCE);
        write!(io::stderr().lock(), "{text} ")?;
        let mut answer = String::new();
        io::stdin().read_line(&mut answer)?;
        Ok(answer)
    }

    /// Says why we could not do our work; gives the code to exit with.
    pub(crate) fn failure(&self, failure: &Failure) -> ExitCode {
        #[derive(Serialize)]
        struct Line<'a> {
            event: &'static str,
            kind: &'static str,
            message: &'a str,
            hint: Option<&'a str>,
        }
        if failure.silent {
            return failure.code().into();
        }
        let Failure { kind, message, hint, .. } = failure;
        self.event(&Line { event: "error", kind, message, hint: hint.as_deref() });
        if !self.json {
            let mut text = format!("{} {}", self.on_stderr(BAD, "tenure:"), clean(&failure.message));
            if let Some(hint) = &failure.hint {
                text.push_str(&format!("\n{} {}", self.on_stderr(DIM, "   hint:"), clean(hint)));
            }
            self.say(format!("{text}\n"));
        }
        flush(PATIENCE);
        failure.code().into()
    }

    /// Text in a style, if stdout shows styles.
    pub(crate) fn paint(&self, style: Style, text: impl Display) -> String {
        paint(self.colour, style, text)
    }

    pub(crate) fn on_stderr(&self, style: Style, text: impl Display) -> String {
        paint(self.err_colour, style, text)
    }
}

/// Sends the JSON lines of what happens to this file too.
pub(crate) fn events_to(file: File) {
    EVENTS.get_or_init(|| Outlet::new(file));
}

/// Waits until all messages are written, so long at the most: for their order with what others write, and before the process ends.
pub(crate) fn flush(limit: Duration) {
    [&STDERR, &EVENTS].into_iter().filter_map(OnceLock::get).for_each(|outlet| outlet.flush(limit));
}

/// How long a reader may take over the last messages of a process.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

static STDERR: OnceLock<Outlet> = OnceLock::new();
static EVENTS: OnceLock<Outlet> = OnceLock::new();

fn stderr() -> &'static Outlet {
    STDERR.get_or_init(|| Outlet::new(io::stderr()))
}

fn dropped_text(count: u64) -> String {
    format!("tenure: {count} messages were dropped, because stderr was not read\n")
}

fn dropped_json(count: u64) -> String {
    format!("{{\"event\":\"dropped\",\"messages\":{count}}}\n")
}

/// A usage error in clap's words, under our name.
pub(crate) fn usage(error: &clap::Error) {
    let printer = Printer::new(std::env::args_os().any(|arg| arg == "--json"));
    if let Some(failure) = misvalued(error) {
        printer.failure(&failure);
        return;
    }
    let rendered = error.render();
    let plain = rendered.to_string();
    if printer.json {
        let message = plain.trim_start_matches("error: ").lines().next().unwrap_or_default();
        printer.failure(&Failure::new(message));
        return;
    }
    let text = if printer.err_colour { rendered.ansi().to_string() } else { plain };
    let _ = write!(io::stderr().lock(), "{}", text.replacen("error:", "tenure:", 1));
}

/// What a reader of values of ours says, in our words: `what is wrong. What to do`.
fn misvalued(error: &clap::Error) -> Option<Failure> {
    let text = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text),
        _ => None,
    };
    let says = std::error::Error::source(error).filter(|_| error.kind() == ErrorKind::ValueValidation)?.to_string();
    let option = text(ContextKind::InvalidArg)?.split(' ').next()?;
    let (why, hint) = says.split_once(". ").unwrap_or((&says, "See --help"));
    Some(Failure::new(format!("{option} {}: {why}", text(ContextKind::InvalidValue)?)).with_hint(hint))
}

fn paint(colour: bool, style: Style, text: impl Display) -> String {
    if colour { format!("{style}{text}{style:#}") } else { text.to_string() }
}
