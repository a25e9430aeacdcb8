//! What is said while a command waits, runs and ends: as text for people, or with `--json` as one object a line. Always
//! on stderr, since stdout is the command's.

use std::cell::Cell;
use std::ffi::OsStr;
use std::time::Duration;

use serde::Serialize;
use tenure::{Guard, LockName, View};

use super::wait::{ahead, in_the_way};
use crate::child::{Ending, OnLost};
use crate::duration;
use crate::print::{DIM, OriginJson, Printer, ViewJson, clean, origin, wall_ms};

/// Something that happened.
pub(super) enum Event<'a> {
    Waiting { ahead: Option<usize>, view: &'a View },
    GaveUp { signal: i32 },
    Busy { wait_ms: Option<u64>, view: Option<&'a View> },
    Held(Held),
    Started { program: &'a OsStr },
    Jeopardy { remaining: Duration },
    Safe { remaining: Duration },
    Asked(&'a tenure::Ask),
    Lost,
    Stopping { policy: OnLost, remaining: Duration },
    Exited { ending: Ending, stopped_for_loss: bool },
    Released { error: Option<String> },
}

/// The hold, as others may know it.
#[derive(Serialize)]
pub(super) struct Held {
    kind: String,
    mode: String,
    token: u64,
    sequencer: String,
    waited_ms: u64,
    valid_until_ms: u64,
}

impl<'a> Event<'a> {
    pub(super) fn held(guard: &Guard, waited: Duration) -> Self {
        Event::Held(Held {
            kind: guard.kind().as_str().replace(' ', "-"),
            mode: guard.mode().to_string(),
            token: guard.token().get(),
            sequencer: guard.sequencer().to_string(),
            waited_ms: waited.as_millis() as u64,
            valid_until_ms: wall_ms() + guard.remaining().as_millis() as u64,
        })
    }

    pub(super) fn started(program: &'a OsStr) -> Self {
        Event::Started { program }
    }

    pub(super) fn stopping(policy: OnLost, guard: &Guard) -> Self {
        Event::Stopping { policy, remaining: guard.remaining() }
    }

    pub(super) fn exited(ending: Ending, stopped_for_loss: bool) -> Self {
        Event::Exited { ending, stopped_for_loss }
    }
}

/// Who tells it.
pub(super) struct Teller<'a> {
    name: LockName,
    printer: &'a Printer,
    quiet: bool,
    /// A loss is found by whoever looks first, and told once.
    lost: Cell<bool>,
}

impl<'a> Teller<'a> {
    pub(super) fn new(name: LockName, printer: &'a Printer, quiet: bool) -> Self {
        Teller { name, printer, quiet, lost: Cell::new(false) }
    }

    pub(super) fn is_json(&self) -> bool {
        self.printer.json
    }

    /// Whether there is somebody who watches a line change.
    pub(super) fn is_live(&self) -> bool {
        self.printer.err_terminal && !self.quiet && !self.printer.json
    }

    pub(super) fn paint(&self, text: &str) -> String {
        self.printer.on_stderr(DIM, text)
    }

    /// Tells what the library says about the hold.
    pub(super) fn tell_of(&self, event: &tenure::Event, guard: &Guard) {
        let remaining = guard.remaining();
        match event {
            tenure::Event::Jeopardy { .. } => self.tell(Event::Jeopardy { remaining }),
            tenure::Event::Safe => self.tell(Event::Safe { remaining }),
            tenure::Event::Asked(ask) => self.tell(Event::Asked(ask)),
            tenure::Event::Lost => self.tell(Event::Lost),
            _ => {}
        }
    }

    pub(super) fn tell(&self, event: Event<'_>) {
        if matches!(event, Event::Lost) && self.lost.replace(true) {
            return;
        }
        if self.printer.json {
            self.printer.event(&Line { event: event.json(), name: self.name.as_str(), at_ms: wall_ms() });
        } else if !self.quiet
            && let Some(text) = event.text(&clean(self.name.as_str()))
        {
            self.printer.note(text);
        }
    }
}

#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    event: Json,
    name: &'a str,
    at_ms: u64,
}

/// An event as scripts read it.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Json {
    Waiting {
        ahead: Option<usize>,
        view: ViewJson,
    },
    GaveUp {
        signal: i32,
    },
    Busy {
        wait_ms: Option<u64>,
        view: Option<ViewJson>,
    },
    Held(Held),
    Started {
        program: String,
    },
    Jeopardy {
        remaining_ms: u64,
    },
    Safe {
        remaining_ms: u64,
    },
    Asked {
        reason: String,
        by: OriginJson,
    },
    Lost,
    Stopping {
        policy: &'static str,
        remaining_ms: u64,
    },
    Exited {
        code: i32,
        signal: Option<i32>,
        stopped_for_loss: bool,
    },
    Released {
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
}

impl Event<'_> {
    fn json(self) -> Json {
        let ms = |duration: Duration| duration.as_millis() as u64;
        match self {
            Event::Waiting { ahead, view } => Json::Waiting { ahead, view: view.into() },
            Event::GaveUp { signal } => Json::GaveUp { signal },
            Event::Busy { wait_ms, view } => Json::Busy { wait_ms, view: view.map(ViewJson::from) },
            Event::Held(held) => Json::Held(held),
            Event::Started { program } => Json::Started { program: program.to_string_lossy().into() },
            Event::Jeopardy { remaining } => Json::Jeopardy { remaining_ms: ms(remaining) },
            Event::Safe { remaining } => Json::Safe { remaining_ms: ms(remaining) },
            Event::Asked(ask) => Json::Asked { reason: ask.reason.as_str().to_owned(), by: (&ask.by).into() },
            Event::Lost => Json::Lost,
            Event::Stopping { policy, remaining } => Json::Stopping { policy: word(policy), remaining_ms: ms(remaining) },
            Event::Exited { ending, stopped_for_loss } => {
                let signal = if let Ending::Signaled(signal) = ending { Some(signal) } else { None };
                Json::Exited { code: ending.code(), signal, stopped_for_loss }
            }
            Event::Released { error } => Json::Released { error },
        }
    }

    /// For people: only what they would want to know.
    fn text(&self, name: &str) -> Option<String> {
        Some(match self {
            Event::Waiting { view, .. } => {
                let why = in_the_way(view).map(|why| format!(", {why}")).unwrap_or_default();
                let ahead = ahead(view).filter(|ahead| *ahead > 0).map(|ahead| format!(", {ahead} ahead of us"));
                format!("waiting for {name}{why}{}", ahead.unwrap_or_default())
            }
            Event::Busy { wait_ms, view } => {
                let why = view.and_then(in_the_way).unwrap_or_else(|| "somebody had it a moment ago".to_owned());
                let within = wait_ms.map(|ms| format!(" within {}", duration::show(Duration::from_millis(ms))));
                format!("{name} could not be had{}: {why}", within.unwrap_or_default())
            }
            Event::Jeopardy { remaining } => {
                format!("{name}: the lock could not be renewed in time; it is still ours for {}", duration::show(*remaining))
            }
            Event::Safe { .. } => format!("{name}: renewed after all"),
            Event::Asked(ask) => match clean(ask.reason.as_str()) {
                reason if reason.is_empty() => format!("{name}: {} asks us to let go", origin(&ask.by)),
                reason => format!("{name}: {} asks us to let go: {reason}", origin(&ask.by)),
            },
            Event::Lost => format!("{name}: the lock was lost; somebody else may have it now"),
            Event::Stopping { policy: OnLost::Kill, .. } => format!("{name}: killing the command"),
            Event::Stopping { remaining: Duration::ZERO, .. } => format!("{name}: stopping the command"),
            Event::Stopping { remaining, .. } => {
                format!("{name}: stopping the command, while the lock is still ours for {}", duration::show(*remaining))
            }
            Event::Released { error: Some(error) } => format!("{name}: {error}"),
            _ => return None,
        })
    }
}

fn word(policy: OnLost) -> &'static str {
    match policy {
        OnLost::Term => "term",
        OnLost::Kill => "kill",
        OnLost::Ignore => "ignore",
    }
}
