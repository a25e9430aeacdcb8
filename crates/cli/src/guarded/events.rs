//! What is said while a command waits, runs and ends: as text for people, or with `--json` as one object a line. Always
//! on stderr, since stdout is the command's; with `--events FD` the objects go there, beside the text.

use std::cell::Cell;
use std::ffi::OsStr;
use std::time::Duration;

use rustix::process::Pid;
use serde::Serialize;
use tenure::{Guard, LockName, LossReason, Sequencer, View};

use super::lease::Cause;
use super::once::LastRun;
use super::wait::{ahead, in_the_way};
use crate::child::{Ending, Failed, Leftovers, OnLost, name_of};
use crate::duration;
use crate::print::{DIM, OriginJson, Printer, ViewJson, clean, origin, wall_ms};

/// Something that happened.
pub(super) enum Event<'a> {
    Waiting { ahead: Option<usize>, view: &'a View },
    GaveUp { signal: i32 },
    Busy { wait_ms: Option<u64>, view: Option<&'a View> },
    Held(Held),
    Skipped { last_run: LastRun, left: Duration },
    Started { program: &'a OsStr },
    NotStarted { program: &'a OsStr, failed: Failed },
    Jeopardy { remaining: Duration },
    Safe { remaining: Duration },
    Asked(&'a tenure::Ask),
    Lost(LossReason),
    Stopping { policy: OnLost, cause: Cause, remaining: Duration },
    Leftovers { policy: Leftovers, ending: Ending, pids: Vec<Pid> },
    Exited { ending: Ending, stopped_for_loss: bool },
    Unrecorded { error: String },
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
            // A signature is proof of the hold, and logs have many readers.
            sequencer: Sequencer { signature: None, ..guard.sequencer() }.to_string(),
            waited_ms: waited.as_millis() as u64,
            valid_until_ms: wall_ms() + guard.remaining().as_millis() as u64,
        })
    }

    pub(super) fn lost(guard: &Guard) -> Self {
        Event::Lost(guard.loss_reason().unwrap_or(LossReason::Refused))
    }

    pub(super) fn stopping(policy: OnLost, cause: Cause, guard: &Guard) -> Self {
        Event::Stopping { policy, cause, remaining: guard.remaining() }
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

    /// Whether anything reads events, soon and in full.
    pub(super) fn has_events(&self) -> bool {
        self.printer.has_events()
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
            tenure::Event::Lost(reason) => self.tell(Event::Lost(reason.clone())),
            _ => {}
        }
    }

    pub(super) fn tell(&self, event: Event<'_>) {
        if matches!(event, Event::Lost(_)) && self.lost.replace(true) {
            return;
        }
        // A live line says this already.
        let is_shown = matches!(event, Event::Waiting { .. }) && self.is_live();
        let is_told = !self.quiet || matches!(event, Event::NotStarted { .. });
        if !self.printer.json
            && is_told
            && !is_shown
            && let Some(text) = event.text(&clean(self.name.as_str()))
        {
            self.printer.note(text);
        }
        if self.printer.has_events() {
            self.printer.event(&Line { event: event.json(), name: self.name.as_str(), at_ms: wall_ms() });
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
    Skipped {
        last_run: LastRun,
        left_ms: u64,
    },
    Started {
        program: String,
    },
    NotStarted {
        program: String,
        message: String,
        code: i32,
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
    Lost {
        reason: &'static str,
        message: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        by: Option<OriginJson>,
    },
    Stopping {
        policy: &'static str,
        reason: &'static str,
        remaining_ms: u64,
    },
    Leftovers {
        policy: Leftovers,
        code: i32,
        count: usize,
        pids: Vec<i32>,
    },
    Exited {
        code: i32,
        signal: Option<i32>,
        stopped_for_loss: bool,
    },
    Unrecorded {
        error: String,
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
            Event::Skipped { last_run, left } => Json::Skipped { last_run, left_ms: ms(left) },
            Event::Started { program } => Json::Started { program: program.to_string_lossy().into() },
            Event::NotStarted { program, failed } => {
                Json::NotStarted { program: program.to_string_lossy().into(), message: failed.message, code: failed.code }
            }
            Event::Jeopardy { remaining } => Json::Jeopardy { remaining_ms: ms(remaining) },
            Event::Safe { remaining } => Json::Safe { remaining_ms: ms(remaining) },
            Event::Asked(ask) => Json::Asked { reason: ask.reason.as_str().to_owned(), by: (&ask.by).into() },
            Event::Lost(reason) => {
                let by = if let LossReason::Broken(ask) = &reason { Some((&ask.by).into()) } else { None };
                Json::Lost { reason: reason.as_str(), message: reason.to_string(), by }
            }
            Event::Stopping { policy, cause, remaining } => {
                let reason = match cause {
                    Cause::Lost => "lost",
                    Cause::NotRenewed => "not_renewed",
                    Cause::MaxHold(_) => "max_hold",
                };
                Json::Stopping { policy: word(policy), reason, remaining_ms: ms(remaining) }
            }
            Event::Leftovers { policy, ending, pids } => {
                let pids: Vec<i32> = pids.iter().map(|pid| pid.as_raw_pid()).collect();
                Json::Leftovers { policy, code: ending.code(), count: pids.len(), pids }
            }
            Event::Exited { ending, stopped_for_loss } => {
                let signal = if let Ending::Signaled(signal) = ending { Some(signal) } else { None };
                Json::Exited { code: ending.code(), signal, stopped_for_loss }
            }
            Event::Unrecorded { error } => Json::Unrecorded { error },
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
            Event::Skipped { last_run, left } => {
                format!("{name}: ran {}; not again for {}", last_run.describe(), duration::show(*left))
            }
            Event::Jeopardy { remaining } => {
                format!("{name}: the lock could not be renewed in time; it is still ours for {}", duration::show(*remaining))
            }
            Event::Safe { .. } => format!("{name}: renewed after all"),
            Event::Asked(ask) => match clean(ask.reason.as_str()) {
                reason if reason.is_empty() => format!("{name}: {} asks us to let go", origin(&ask.by)),
                reason => format!("{name}: {} asks us to let go: {reason}", origin(&ask.by)),
            },
            Event::Lost(reason) => format!("{name}: {}", lost(reason)),
            Event::Stopping { policy, cause, remaining } => {
                let does = if *policy == OnLost::Kill { "killing" } else { "stopping" };
                match cause {
                    Cause::Lost => format!("{name}: {does} the command"),
                    Cause::MaxHold(max_hold) => format!("{name}: {does} the command: {}", max_hold_is_over(*max_hold)),
                    Cause::NotRenewed => {
                        format!(
                            "{name}: {does} the command, while the lock is still ours for {}",
                            duration::show(*remaining)
                        )
                    }
                }
            }
            Event::NotStarted { program, failed } => {
                format!("{}: {}", clean(&program.to_string_lossy()), failed.message)
            }
            Event::Leftovers { policy, ending, pids } => {
                let does = match policy {
                    Leftovers::Wait => "waiting for",
                    Leftovers::Term => "ending",
                    Leftovers::Keep => return None,
                };
                format!("{name}: the command ended ({}); {does} what it started: {}", ending.code(), listed(pids))
            }
            Event::Unrecorded { error } => {
                format!("{name}: this run could not be recorded, and --once-per does not count it: {error}")
            }
            Event::Released { error: Some(error) } => format!("{name}: {error}"),
            _ => return None,
        })
    }
}

/// The first few of these processes, by name and number.
fn listed(pids: &[Pid]) -> String {
    let shown: Vec<String> = pids.iter().take(MOST_LISTED).map(|&pid| format!("{} ({pid})", clean(&name_of(pid)))).collect();
    let more = pids.len().saturating_sub(MOST_LISTED);
    format!("{}{}", shown.join(", "), if more > 0 { format!(" and {more} more") } else { String::new() })
}

const MOST_LISTED: usize = 5;
/// The loss in words.
fn lost(reason: &LossReason) -> String {
    format!("the lock was lost; another process may hold it now ({})", clean(&reason.to_string()))
}

fn max_hold_is_over(max_hold: Duration) -> String {
    format!("--max-hold {} is over", duration::show(max_hold))
}

/// Why a process is stopped, in words.
pub(super) fn why(cause: Cause, guard: &Guard) -> String {
    match (cause, guard.loss_reason()) {
        (_, Some(reason)) => lost(&reason),
        (Cause::MaxHold(max_hold), None) => max_hold_is_over(max_hold),
        (_, None) => "the lock could not be renewed in time".to_owned(),
    }
}

fn word(policy: OnLost) -> &'static str {
    match policy {
        OnLost::Term => "term",
        OnLost::Kill => "kill",
        OnLost::Ignore => "ignore",
    }
}
