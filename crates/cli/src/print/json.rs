//! Views as JSON: the serializable twins of the library's types, so that a change there cannot change what scripts read.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tenure::Mode as CoreMode;

/// One name: its holders and its line.
#[derive(Serialize)]
pub(crate) struct View {
    name: String,
    kind: Option<String>,
    free: bool,
    holders: Vec<Holder>,
    line: Vec<Waiter>,
}

#[derive(Serialize)]
struct Holder {
    #[serde(flatten)]
    mode: Mode,
    token: u64,
    note: String,
    #[serde(flatten)]
    origin: Origin,
    claim: String,
    held_for_ms: u64,
    expires_in_ms: u64,
    /// Released, but closed for its minimum hold.
    closing: bool,
    asked: Option<Asked>,
}

#[derive(Serialize)]
struct Waiter {
    #[serde(flatten)]
    mode: Mode,
    note: String,
    #[serde(flatten)]
    origin: Origin,
    claim: String,
    waiting_for_ms: u64,
}

/// Somebody's request to let go.
#[derive(Serialize)]
pub(crate) struct Asked {
    reason: String,
    #[serde(flatten)]
    by: Origin,
}

/// A process.
#[derive(Clone, Serialize)]
pub(crate) struct Origin {
    host: String,
    pid: u32,
}

/// A sequencer's parts.
#[derive(Serialize)]
pub(crate) struct Sequencer {
    name: String,
    kind: String,
    #[serde(flatten)]
    mode: Mode,
    token: u64,
    issued_ms: u64,
    /// The key it says it was signed with.
    signed_by: Option<String>,
}

#[derive(Serialize)]
struct Mode {
    mode: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    take: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    of: Option<u32>,
}

impl From<&tenure::View> for View {
    fn from(view: &tenure::View) -> Self {
        View {
            name: view.name.to_string(),
            kind: view.kind.map(|kind| kind.as_str().replace(' ', "-")),
            free: view.is_free(),
            holders: view.holders.iter().map(Holder::from).collect(),
            line: view.line.iter().map(Waiter::from).collect(),
        }
    }
}

impl From<&tenure::Holder> for Holder {
    fn from(holder: &tenure::Holder) -> Self {
        Holder {
            mode: holder.mode.into(),
            token: holder.token.get(),
            note: holder.note.as_str().to_owned(),
            origin: (&holder.origin).into(),
            claim: holder.claim.to_string(),
            held_for_ms: ms(holder.held_for),
            expires_in_ms: ms(holder.expires_in),
            closing: holder.closing,
            asked: holder.asked.as_ref().map(Asked::from),
        }
    }
}

impl From<&tenure::Waiter> for Waiter {
    fn from(waiter: &tenure::Waiter) -> Self {
        Waiter {
            mode: waiter.mode.into(),
            note: waiter.note.as_str().to_owned(),
            origin: (&waiter.origin).into(),
            claim: waiter.claim.to_string(),
            waiting_for_ms: ms(waiter.waiting_for),
        }
    }
}

impl From<&tenure::Ask> for Asked {
    fn from(ask: &tenure::Ask) -> Self {
        Asked { reason: ask.reason.as_str().to_owned(), by: (&ask.by).into() }
    }
}

impl From<&tenure::Origin> for Origin {
    fn from(origin: &tenure::Origin) -> Self {
        Origin { host: origin.host.to_string(), pid: origin.pid }
    }
}

impl From<&tenure::Sequencer> for Sequencer {
    fn from(sequencer: &tenure::Sequencer) -> Self {
        Sequencer {
            name: sequencer.name.to_string(),
            kind: sequencer.kind.as_str().replace(' ', "-"),
            mode: sequencer.mode.into(),
            token: sequencer.token.get(),
            issued_ms: sequencer.issued_ms,
            signed_by: sequencer.signed_by().map(str::to_owned),
        }
    }
}

impl From<CoreMode> for Mode {
    fn from(mode: CoreMode) -> Self {
        let plain = |mode| Mode { mode, take: None, of: None };
        match mode {
            CoreMode::Exclusive => plain("exclusive"),
            CoreMode::Shared => plain("shared"),
            CoreMode::Permits { take, of } => Mode { mode: "permits", take: Some(take.get()), of: Some(of.get()) },
        }
    }
}

/// Whole milliseconds.
pub(crate) fn ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Milliseconds since 1970 by the wall clock: to show, never to compare.
pub(crate) fn wall_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, ms)
}
