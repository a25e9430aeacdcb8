//! Waiting for the lock: with a way out, and in the open.

use std::time::Duration;

use rustix::process::Signal;
use tenure::{Client, Guard, HANDOVER_TTL, Instant, LockName, Result, View, Wait};

use super::events::{Event, Teller};
use super::lock::Lock;
use super::nested;
use crate::child::Signals;
use crate::duration;
use crate::failure::Failure;
use crate::print::{LiveLine, holder, is_here};

/// What came of it.
pub(super) enum Waited {
    Held(Guard),
    /// Somebody else had it, for longer than we were ready to wait.
    Busy,
    /// This process holds it, which waits for us to end.
    Nested(u32),
    /// A signal told us to end.
    Quit(Signal),
}

/// Waits for the lock.
///
/// # Cancel safety
/// Dropping it gives up the place in line.
pub(super) async fn wait(
    client: &Client,
    lock: &Lock,
    patience: Wait,
    ttl: Duration,
    signals: &mut Signals,
    teller: &Teller<'_>,
) -> Result<Waited> {
    let started = Instant::now();
    // A signal comes first: whoever gives up must not find that the command has started after all.
    tokio::select! {
        biased;
        signal = signals.quit() => {
            teller.tell(Event::GaveUp { signal: signal.as_raw() });
            Ok(Waited::Quit(signal))
        }
        guard = acquire(lock, patience, ttl) => Ok(match guard? {
            Some(guard) => {
                teller.tell(Event::held(&guard, Instant::now().since(started)));
                Waited::Held(guard)
            }
            None => Waited::Busy,
        }),
        outer = nested::outer(client, lock), if patience != Wait::No => Ok(Waited::Nested(outer)),
        never = show(client, lock, started, teller), if patience != Wait::No => match never {},
    }
}

/// Waiting for a lock that this very command holds.
pub(super) fn held_by_outer(name: &LockName, outer: u32) -> Failure {
    let failure =
        Failure::new(format!("you already hold {name}: this is a command of process {outer}, which holds it until we end"));
    failure.with_hint("Run the inner command without tenure, or under another name")
}

/// Acquires the lock, and its whole ttl: a waiter is let in for two seconds at first, and its keeper renews that at once. A hold that
/// is lost before then has served nobody yet, and is asked for again.
async fn acquire(lock: &Lock, patience: Wait, ttl: Duration) -> Result<Option<Guard>> {
    let deadline = patience.deadline(Instant::now());
    loop {
        let Some(guard) = lock.acquire(patience.left(deadline, Instant::now())).await? else { return Ok(None) };
        let is_whole = guard.remaining() > HANDOVER_TTL.min(ttl / 2);
        if is_whole || guard.renewed().await.is_ok() {
            return Ok(Some(guard));
        }
    }
}

/// Shows who is in the way, for as long as it is polled.
async fn show(client: &Client, lock: &Lock, started: Instant, teller: &Teller<'_>) -> std::convert::Infallible {
    let name = lock.name().as_str();
    tokio::time::sleep(if teller.is_live() || teller.has_events() { SOON } else { SECOND }).await;
    if (!teller.is_live() || teller.has_events())
        && let Ok(view) = client.view(name).await
    {
        teller.tell(Event::Waiting { ahead: ahead(&view), view: &view });
    }
    if !teller.is_live() {
        return std::future::pending().await;
    }
    let mut line = LiveLine::default();
    loop {
        if let Ok(view) = client.view(name).await {
            line.show(&describe(&view, Instant::now().since(started)), |text| teller.paint(text));
        }
        tokio::time::sleep(SECOND).await;
    }
}

/// Who is in the way, in one line.
fn describe(view: &View, waited: Duration) -> String {
    let mut text = format!("waiting for {}", view.name);
    if let Some(why) = in_the_way(view) {
        text.push_str(&format!(" · {why}"));
    }
    match ahead(view) {
        Some(0) => text.push_str(" · next in line"),
        Some(ahead) => text.push_str(&format!(" · {ahead} ahead")),
        None => {}
    }
    text.push_str(&format!(" · {}", duration::show_seconds(waited)));
    text
}

/// Who holds it, and since when.
pub(super) fn in_the_way(view: &View) -> Option<String> {
    let first = view.holders.first()?;
    let others = match view.holders.len() - 1 {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    Some(if first.closing {
        format!("closed for another {} by {}", duration::show(first.expires_in), holder(first))
    } else {
        format!("held by {}{others} for {}", holder(first), duration::show_seconds(first.held_for))
    })
}

/// How many wait before this process.
pub(super) fn ahead(view: &View) -> Option<usize> {
    let me = std::process::id();
    view.line.iter().position(|waiter| waiter.origin.pid == me && is_here(&waiter.origin))
}

const SOON: Duration = Duration::from_millis(200);
const SECOND: Duration = Duration::from_secs(1);
