//! Waiting for the lock: with a way out, and in the open.

use std::time::Duration;

use rustix::process::Signal;
use tenure::{Client, Guard, Instant, Result, View, Wait};

use super::events::{Event, Teller};
use super::lock::Lock;
use crate::child::Signals;
use crate::duration;
use crate::print::{LiveLine, holder};

/// What came of it.
pub(super) enum Waited {
    Held(Guard),
    /// Somebody else had it, for longer than we were ready to wait.
    Busy,
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
        guard = lock.acquire(patience) => Ok(match guard? {
            Some(guard) => {
                teller.tell(Event::held(&guard, Instant::now().since(started)));
                Waited::Held(guard)
            }
            None => Waited::Busy,
        }),
        never = show(client, lock, started, teller), if patience != Wait::No => match never {},
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
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    view.line.iter().position(|waiter| waiter.origin.pid == me && *waiter.origin.host == *host)
}

const SOON: Duration = Duration::from_millis(200);
const SECOND: Duration = Duration::from_secs(1);
